# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Netplan files of the fabric: the text that we write, and who else says something about an interface.

Netplan, NetworkManager and systemd-networkd read their files from /etc, /run and /usr/lib, and merge or order them each in
its own way. Netplan's are read with the parser that netplan itself depends on (python3-yaml): where that is missing, or a
file is none that it reads, nobody knows whose the interface is, and the file stands in the way.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import yaml
except ImportError:
    yaml = None  # type: ignore[assignment]

NETPLAN_FOLDERS = ("lib/netplan", "etc/netplan", "run/netplan")  # a name in a later one hides it in an earlier one
NM_FOLDERS = (
    "usr/lib/NetworkManager/system-connections",
    "etc/NetworkManager/system-connections",
    "run/NetworkManager/system-connections",
)
NETWORKD_FOLDERS = ("usr/lib/systemd/network", "run/systemd/network", "etc/systemd/network")
SECTIONS = (
    "ethernets",
    "wifis",
    "modems",
    "bridges",
    "bonds",
    "tunnels",
    "vlans",
    "vrfs",
    "dummy-devices",
    "virtual-ethernets",
    "nm-devices",
)
HEAD = "# The fabric of this Spark. Written by sparklanes (role fabric_network): change its variables, not this file.\n"
NOTHING = "network:\n  version: 2\n"  # hides a file of the same name in another folder

# Blocks: it would decide beside or instead of our file. Tells: it has the interface now and gives way.
BLOCKS, TELLS = "blocks", "tells"


@dataclass(frozen=True)
class Owner:
    """A file that says something about an interface."""

    interface: str
    kind: str
    path: str
    weight: str
    why: str

    def to_dict(self) -> dict[str, str]:
        return {"interface": self.interface, "kind": self.kind, "path": self.path, "weight": self.weight, "why": self.why}


def render(interfaces: Sequence[Mapping[str, Any]], mtu: int, renderer: str = "") -> str:
    """The file: static addresses, no DHCP, no link-local address (which keeps the GID table small), a boot that does not wait for a cable."""
    lines = [HEAD.rstrip(), "network:", "  version: 2"]
    lines += [f"  renderer: {renderer}"] if renderer else []
    lines += ["  ethernets:"]
    for interface in interfaces:
        lines += [
            f"    {interface['name']}:",
            "      dhcp4: false",
            "      dhcp6: false",
            "      link-local: []",
            f"      mtu: {mtu}",
            "      optional: true",
            f"      addresses: [{interface['address']}]",
        ]
    return "\n".join(lines) + "\n"


# netplan


@dataclass(frozen=True)
class Definition:
    """One device definition of a netplan file: its id, and its `match`, if it has one. An empty match means every device."""

    section: str
    id: str
    names: tuple[str, ...] = ()
    macs: tuple[str, ...] = ()
    matches: bool = False

    def means(self, interface: str, mac: str) -> bool:
        if not self.matches:
            return self.id == interface
        by_name = not self.names or any(fnmatch.fnmatchcase(interface, name) for name in self.names)
        return by_name and (not self.macs or mac.lower() in self.macs)


def plain(text: str) -> str:
    """The text without comments."""
    return "\n".join(re.sub(r"(^|\s)#.*$", "", line) for line in text.expandtabs().splitlines())


def definitions(text: str) -> list[Definition]:
    """The device definitions of a netplan file. ValueError says why it can't be read."""
    if yaml is None:
        raise ValueError("python3-yaml, on which netplan depends, is not there for the Python that Ansible uses")
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    network = _mapping(_mapping(tree).get("network"))
    return [
        _definition(section, str(id_), _mapping(device))
        for section in SECTIONS
        for id_, device in _mapping(network.get(section)).items()
    ]


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _definition(section: str, id_: str, device: Mapping[Any, Any]) -> Definition:
    match = device.get("match")
    values = {
        key: tuple(str(item) for item in (value if isinstance(value, list) else [value]) if item is not None)
        for key, value in _mapping(match).items()
    }
    macs = tuple(mac.lower() for mac in values.get("macaddress", ()))
    return Definition(section, id_, values.get("name", ()), macs, "match" in device)


def mentions(text: str, interface: str) -> bool:
    """Whether the interface's name stands anywhere in a file, comments aside: in flow style, as part of a bond, as `set-name`."""
    return re.search(rf"(?<![\w.\-]){re.escape(interface)}(?![\w.\-])", plain(text)) is not None


def effective(files: Mapping[str, str], folders: Sequence[str] = NETPLAN_FOLDERS) -> dict[str, str]:
    """Of files of one name only that of the last folder counts. `files`: path below the root → text."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(files):
            if path.rpartition("/")[0] == folder:
                name = path.rpartition("/")[2]
                found = {known: text for known, text in found.items() if known.rpartition("/")[2] != name}
                found[path] = files[path]
    return dict(sorted(found.items(), key=lambda item: item[0].rpartition("/")[2]))


def netplan_owners(files: Mapping[str, str], interface: str, mac: str, ours: str) -> list[Owner]:
    """Netplan merges all files: a second one that means the interface adds its addresses and DHCP to ours."""
    found = []
    for path, text in effective(files).items():
        if path.rpartition("/")[2] == ours or not path.endswith(".yaml"):
            continue
        try:
            meant = [one for one in definitions(text) if one.means(interface, mac)]
        except ValueError as error:
            found.append(Owner(interface, "netplan", f"/{path}", BLOCKS, f"can't be read, so it may mean any interface: {error}"))
            continue
        if meant:
            ids = ", ".join(f"{one.section} {one.id}" for one in meant)
            found.append(Owner(interface, "netplan", f"/{path}", BLOCKS, f"defines it too ({ids}); netplan merges the files"))
        elif mentions(text, interface):
            found.append(Owner(interface, "netplan", f"/{path}", BLOCKS, "names it; netplan merges the files"))
    return found


# NetworkManager and networkd


def parse_ini(text: str) -> dict[str, dict[str, str]]:
    """Sections of a key file; a key that comes twice joins its values, as networkd reads lists."""
    found: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if stripped.startswith("[") and stripped.endswith("]"):
            section = found.setdefault(stripped[1:-1].strip().lower(), {})
        elif "=" in stripped:
            key, _, value = stripped.partition("=")
            name, value = key.strip().lower(), value.strip()
            section[name] = f"{section[name]} {value}" if section.get(name) and value else value
    return found


def nm_owners(files: Mapping[str, str], interface: str, mac: str) -> list[Owner]:
    """Profiles that bind the interface. One that netplan wrote into /run is netplan's own; one made by itself gives way to netplan."""
    found = []
    for path, text in effective(files, NM_FOLDERS).items():
        profile = parse_ini(text)
        about = profile.get("connection", {})
        kind = about.get("type", "")
        wired = profile.get("ethernet") or profile.get("802-3-ethernet") or {}
        named, wanted_mac = about.get("interface-name", ""), wired.get("mac-address", "").lower()
        globs = re.split(r"[;\s]+", profile.get("match", {}).get("interface-name", ""))
        bound = named == interface or (bool(wanted_mac) and wanted_mac == mac.lower())
        bound = bound or any(glob and fnmatch.fnmatchcase(interface, glob) for glob in globs)
        if path.rpartition("/")[2].startswith("netplan-") or kind not in ("ethernet", "802-3-ethernet", ""):
            continue
        label = about.get("id") or path.rpartition("/")[2]
        if bound and path.startswith("etc/"):
            found.append(Owner(interface, "NetworkManager", f"/{path}", BLOCKS, f"profile {label} binds it"))
        elif bound:
            found.append(Owner(interface, "NetworkManager", f"/{path}", TELLS, f"profile {label} has it until netplan takes it"))
        elif not (named or wanted_mac or any(globs)) and kind:
            found.append(Owner(interface, "NetworkManager", f"/{path}", TELLS, f"profile {label} takes any wired interface"))
    return found


def networkd_owners(files: Mapping[str, str], interface: str, mac: str) -> list[Owner]:
    """Of all .network files that match, the first by name decides alone. Netplan's will be 10-netplan-INTERFACE.network."""
    mine = f"10-netplan-{interface}.network"
    found = []
    for path, text in effective(files, NETWORKD_FOLDERS).items():
        name = path.rpartition("/")[2]
        match = parse_ini(text).get("match", {})
        if not name.endswith(".network") or name == mine or not _networkd_means(match, interface, mac):
            continue
        first = name < mine
        why = f"comes before {mine} and matches it" if first else f"matches it, and gives way to {mine}"
        found.append(Owner(interface, "systemd-networkd", f"/{path}", BLOCKS if first else TELLS, why))
    return found


def _networkd_means(match: Mapping[str, str], interface: str, mac: str) -> bool:
    # Without any setting a file matches every interface (systemd.network(5)), as netplan's empty `match` does.
    names = match.get("name", "").split()
    inverted = bool(names) and names[0].startswith("!")
    globs = [name.lstrip("!") for name in names]
    if globs and any(fnmatch.fnmatchcase(interface, glob) for glob in globs) is inverted:
        return False
    macs = match.get("macaddress", "").lower().replace("-", ":").split()
    if macs and mac.lower() not in macs:
        return False
    kinds = match.get("type", "").split()
    return not kinds or "ether" in kinds  # what else it asks for can't be answered here: it may match


def owners(files: Mapping[str, str], interface: str, mac: str, ours: str) -> list[Owner]:
    """Everybody but our own file who says something about the interface."""
    return netplan_owners(files, interface, mac, ours) + nm_owners(files, interface, mac) + networkd_owners(files, interface, mac)


def read_files(root: Path) -> dict[str, str]:
    """All files of these folders, path below the root → text; what can't be read is read as empty."""
    found = {}
    for folder in (*NETPLAN_FOLDERS, *NM_FOLDERS, *NETWORKD_FOLDERS):
        for path in sorted((root / folder).glob("*")):
            if path.suffix in (".yaml", ".nmconnection", ".network"):
                try:
                    found[f"{folder}/{path.name}"] = path.read_text(encoding="utf-8", errors="replace")
                except OSError:
                    found[f"{folder}/{path.name}"] = ""
    return found
