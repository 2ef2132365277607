"""The netplan file that we write, and who else has a say over an interface."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.module_utils.sparklanes.fabric import netplan
from ansible.module_utils.sparklanes.fabric.netplan import BLOCKS, TELLS
from conftest import FIXTURES
from hypothesis import given
from hypothesis import strategies as st

A, B = "enp1s0f0np0", "enP2p1s0f0np0"
MAC = "4c:bb:47:00:00:01"
OURS = "40-cx7.yaml"


def test_the_file_says_all_that_it_should() -> None:
    text = netplan.render(
        [{"name": A, "address": "192.168.100.11/24"}, {"name": B, "address": "192.168.101.11/24"}], 9000, "networkd"
    )
    assert yaml.safe_load(text) == {
        "network": {
            "version": 2,
            "renderer": "networkd",
            "ethernets": {
                name: {"dhcp4": False, "dhcp6": False, "link-local": [], "mtu": 9000, "optional": True, "addresses": [address]}
                for name, address in ((A, "192.168.100.11/24"), (B, "192.168.101.11/24"))
            },
        }
    }
    assert "renderer" not in netplan.render([], 9000)
    assert yaml.safe_load(netplan.NOTHING) == {"network": {"version": 2}}
    assert text.startswith(netplan.HEAD)


def test_the_parser_reads_our_own_file_and_public_ones() -> None:
    ours = netplan.render([{"name": A, "address": "192.168.100.11/24"}, {"name": B, "address": "fd00::1/64"}], 9000)
    for text, ids in (
        (ours, [A, B]),
        ((FIXTURES / "fabric" / "netplan-40-cx7.yaml").read_text(), [A, B]),
        ((FIXTURES / "fabric" / "netplan-link-local-off.yaml").read_text(), [B]),
    ):
        assert [one.id for one in netplan.definitions(text)] == ids
        assert sorted(yaml.safe_load(text)["network"]["ethernets"]) == sorted(ids)


NM = """network:
  version: 2
  renderer: NetworkManager
  ethernets:
    NM-2f1d:
      renderer: NetworkManager
      match:
        name: "enp1s0f0np0"
      addresses:
      - "192.168.11.13/24"
      networkmanager:
        uuid: "2f1d"
        name: "cx7 link"
  wifis:
    wlP9s9: {access-points: {}}
"""


@pytest.mark.parametrize(
    ("text", "interface", "said"),
    [
        (NM, A, "ethernets NM-2f1d"),
        (NM, B, None),
        (f"network:\n ethernets:\n  {A}:\n   dhcp4: true\n", A, f"ethernets {A}"),
        (f"network:\n ethernets:\n  {A}.77:\n   dhcp4: true\n", A, None),
        (f"network:\n ethernets:\n  '{A}':\n   dhcp4: true\n", A, f"ethernets {A}"),
        (f"network:\n ethernets:\n  # {A}:\n  other:\n   dhcp4: true\n", A, None),
        ("network:\n  ethernets:\n    all:\n      match: {name: 'en*'}\n      dhcp4: true\n", A, "ethernets all"),
        ("network:\n  ethernets:\n    all:\n      match:\n        name: [eth*, enp*]\n      dhcp4: true\n", A, "ethernets all"),
        ("network:\n  ethernets:\n    all:\n      match: {name: 'enP*'}\n", A, None),
        (f"network:\n  ethernets:\n    card:\n      match:\n        macaddress: {MAC.upper()}\n", A, "ethernets card"),
        ("network:\n  ethernets:\n    card:\n      match:\n        macaddress: 00:00:00:00:00:09\n", A, None),
        (f"network:\n  ethernets:\n    {A}:\n      match:\n        macaddress: 00:00:00:00:00:09\n", A, "names it"),
        (f"network: {{version: 2, ethernets: {{{A}: {{dhcp4: true}}}}}}", A, f"ethernets {A}"),
        ("network:\n  ethernets:\n    any: {match: {}}\n", A, "ethernets any"),
        ("network:\n  ethernets:\n    any: {match: {name: null}}\n", A, "ethernets any"),
        # As NetworkManager mirrors a profile that names no device.
        (
            "network:\n  version: 2\n  ethernets:\n    NM-3a0c2a4e:\n      renderer: NetworkManager\n      match: {}\n      dhcp4: true\n"
            "      networkmanager:\n        uuid: 3a0c2a4e\n        name: Wired connection 1\n",
            A,
            "ethernets NM-3a0c2a4e",
        ),
        ("network:\n  ethernets:\n    any:\n      match:\n      dhcp4: true\n", A, "ethernets any"),
        ("network:\n  ethernets:\n    any: {match: []}\n", A, "ethernets any"),
        ("network:\n  ethernets: [a list]\n", A, None),
        ("just a word", A, None),
        ("network:\n  ethernets: {\n", A, "can't be read"),
        ("network: !include other.yaml\n", A, "can't be read"),
        ("network:\n\tethernets: {}\n", A, "can't be read"),
        ("[" * 3000, A, "can't be read"),
        (f"network:\n  bonds:\n    bond0:\n      interfaces: [{A}, {B}]\n", A, "names it"),
        (f"network:\n  ethernets:\n    x:\n      match: {{macaddress: aa}}\n      set-name: {A}\n", A, "names it"),
        (f"network:\n  vlans:\n    v77:\n      id: 77\n      link: {A}\n", A, "names it"),
        ("network:\n  version: 2\n  renderer: NetworkManager\n", A, None),
        ("", A, None),
    ],
)
def test_who_else_defines_it_in_netplan(text: str, interface: str, said: str | None) -> None:
    found = netplan.netplan_owners({"etc/netplan/90-x.yaml": text}, interface, MAC, OURS)
    assert [one.weight for one in found] == ([BLOCKS] if said else [])
    assert said is None or said in found[0].why


def test_without_netplans_own_parser_nobody_knows_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netplan, "yaml", None)
    (found,) = netplan.netplan_owners({"etc/netplan/90-x.yaml": "network: {}\n"}, A, MAC, OURS)
    assert found.weight == BLOCKS
    assert "python3-yaml" in found.why


def test_our_own_file_and_hidden_ones_are_nobodys() -> None:
    mine = f"network:\n  ethernets:\n    {A}:\n      dhcp4: true\n"
    assert netplan.netplan_owners({f"etc/netplan/{OURS}": mine, f"run/netplan/{OURS}": mine}, A, MAC, OURS) == []
    assert netplan.netplan_owners({"lib/netplan/01.yaml": mine, "etc/netplan/01.yaml": "network: {}\n"}, A, MAC, OURS) == []
    assert netplan.netplan_owners({"etc/netplan/01.yaml.bak": mine}, A, MAC, OURS) == []
    (found,) = netplan.netplan_owners({"lib/netplan/01.yaml": "network: {}\n", "run/netplan/01.yaml": mine}, A, MAC, OURS)
    assert found.path == "/run/netplan/01.yaml"


def profile(**more: str) -> str:
    about = {"id": "link", "uuid": "1", "type": "ethernet", **{key.replace("_", "-"): value for key, value in more.items()}}
    return "[connection]\n" + "".join(f"{key}={value}\n" for key, value in about.items())


@pytest.mark.parametrize(
    ("path", "text", "weight"),
    [
        ("etc/NetworkManager/system-connections/link.nmconnection", profile(interface_name=A), BLOCKS),
        ("etc/NetworkManager/system-connections/link.nmconnection", profile(interface_name=B), None),
        ("etc/NetworkManager/system-connections/wifi.nmconnection", profile(interface_name=A, type="wifi"), None),
        (
            "etc/NetworkManager/system-connections/card.nmconnection",
            profile() + f"[ethernet]\nmac-address={MAC.upper()}\n",
            BLOCKS,
        ),
        ("etc/NetworkManager/system-connections/glob.nmconnection", profile() + "[match]\ninterface-name=en*;eth*\n", BLOCKS),
        ("etc/NetworkManager/system-connections/any.nmconnection", profile(), TELLS),
        ("run/NetworkManager/system-connections/Wired connection 2.nmconnection", profile(interface_name=A), TELLS),
        ("run/NetworkManager/system-connections/netplan-enp1s0f0np0.nmconnection", profile(interface_name=A), None),
        ("usr/lib/NetworkManager/system-connections/any.nmconnection", profile(), TELLS),
        ("etc/NetworkManager/system-connections/broken.nmconnection", "not an ini file", None),
    ],
)
def test_profiles_of_network_manager(path: str, text: str, weight: str | None) -> None:
    assert [one.weight for one in netplan.nm_owners({path: text}, A, MAC)] == ([weight] if weight else [])


@pytest.mark.parametrize(
    ("path", "match", "weight"),
    [
        ("etc/systemd/network/05-cx7.network", f"Name={A}", BLOCKS),
        ("etc/systemd/network/20-cx7.network", f"Name={A}", TELLS),
        ("etc/systemd/network/05-all.network", "Name=e*", BLOCKS),
        ("etc/systemd/network/05-but.network", f"Name=!{A} eth0", None),
        ("etc/systemd/network/05-other.network", "Name=eth*", None),
        ("etc/systemd/network/05-mac.network", f"MACAddress={MAC.replace(':', '-')}", BLOCKS),
        ("etc/systemd/network/05-mac.network", "MACAddress=00:00:00:00:00:09", None),
        ("usr/lib/systemd/network/80-ether.network", "Type=ether", TELLS),
        ("usr/lib/systemd/network/80-wifi.network", "Type=wlan", None),
        ("run/systemd/network/10-netplan-enp1s0f0np0.network", f"Name={A}", None),
        ("run/systemd/network/10-netplan-enp1s0f0np0.link", f"OriginalName={A}", None),
        ("etc/systemd/network/05-empty.network", "", BLOCKS),
        ("etc/systemd/network/20-empty.network", "# Name=eth9", TELLS),
    ],
)
def test_files_of_networkd(path: str, match: str, weight: str | None) -> None:
    found = netplan.networkd_owners({path: f"[Match]\n{match}\n[Network]\nDHCP=yes\n"}, A, MAC)
    assert [one.weight for one in found] == ([weight] if weight else [])


def test_names_on_several_lines_add_up() -> None:
    text = f"[Match]\nName=eth0\nName={A}\n"
    assert len(netplan.networkd_owners({"etc/systemd/network/05.network": text}, A, MAC)) == 1


def test_files_are_read_below_the_root(tmp_path: Path) -> None:
    for path in ("etc/netplan/01.yaml", "etc/netplan/readme.txt", "run/systemd/network/x.network"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"network: \xff\n")
    assert sorted(netplan.read_files(tmp_path)) == ["etc/netplan/01.yaml", "run/systemd/network/x.network"]
    assert netplan.read_files(tmp_path / "nowhere") == {}


NAMES = st.sampled_from([A, B, "eth0", "en*"])
PIECES = st.sampled_from(
    [
        "network:\n",
        "  ethernets:\n",
        f"    {A}:\n",
        "      match:\n",
        "        name: 'en*'\n",
        "{",
        "}",
        "[",
        "#",
        "\t",
        f"{A}: {{",
        "é",
        "\x00",
        ": :\n",
    ]
)


@given(st.text() | st.lists(PIECES, max_size=20).map("".join), NAMES)
def test_whatever_the_files_say_there_is_an_answer(text: str, interface: str) -> None:
    files = {
        "etc/netplan/01.yaml": text,
        "etc/NetworkManager/system-connections/a.nmconnection": text,
        "etc/systemd/network/01.network": text,
    }
    for owner in netplan.owners(files, interface, MAC, OURS):
        assert owner.weight in (BLOCKS, TELLS)
        assert owner.why


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True), st.booleans(), max_size=5))
def test_definitions_are_those_that_yaml_sees(devices: dict[str, bool]) -> None:
    """In the block style that netplan and its tools write."""
    tree = {
        "network": {
            "version": 2,
            "ethernets": {name: {"dhcp4": flag, "addresses": ["10.0.0.1/24"]} for name, flag in devices.items()},
        }
    }
    text = yaml.safe_dump(tree, sort_keys=False)
    assert [one.id for one in netplan.definitions(text)] == list(devices)
