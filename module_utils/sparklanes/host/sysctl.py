# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which file decides a kernel setting at boot, and which one later.

Two programs read the same sysctl files in different orders. At boot systemd-sysctl takes every
`*.conf` of the four directories by file name; /etc/sysctl.conf counts only where a link in
/etc/sysctl.d points to it. `sysctl --system` (procps) takes the same files and then
/etc/sysctl.conf once more, last. A setting is ours for good only where both end with our file.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible.module_utils.sparklanes.host.conf_files import Assigned, ConfFile, in_order

# The first directory that has a file of a given name hides the others' files of that name.
SYSCTL_DIRS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
SYSCTL_CONF = "/etc/sysctl.conf"
AT_BOOT = "systemd-sysctl"
BY_HAND = "sysctl --system"
# Settings whose range the kernel states; the others are judged by the kernel when they are written.
RANGES = {"vm/swappiness": (0, 200)}


@dataclass
class Settings:
    """What a sequence of files sets: exact keys, patterns, and keys that patterns must leave alone."""

    exact: dict[str, Assigned] = field(default_factory=dict)
    globs: list[tuple[str, Assigned]] = field(default_factory=list)
    excluded: set[str] = field(default_factory=set)

    def get(self, key: str) -> Assigned | None:
        """What decides `key`. An exact key beats every pattern, wherever it stands."""
        if key in self.exact:
            return self.exact[key]
        if key in self.excluded:
            return None
        return next((made for pattern, made in reversed(self.globs) if _matches(key, pattern)), None)


def _matches(key: str, pattern: str) -> bool:
    """glob(7) on paths: a `*` stops at a slash."""
    parts, patterns = key.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def normal_key(key: str) -> str:
    """`vm.swappiness` and `vm/swappiness` → `vm/swappiness`; the first separator says which of the two is meant."""
    first = next((letter for letter in key if letter in "./"), "/")
    return key if first == "/" else key.translate(str.maketrans("./", "/."))


def dotted(key: str) -> str:
    """`vm/swappiness` → `vm.swappiness`, the spelling that people use."""
    return key.translate(str.maketrans("./", "/."))


def normal_value(value: object) -> str:
    """Values as the kernel prints them differ from files only in white space."""
    return " ".join(str(value).split())


def read_files(files: Iterable[ConfFile]) -> Settings:
    """The files applied in this order."""
    made = Settings()
    for file in files:
        for raw in file.text.splitlines():
            line = raw.strip()
            if not line or line[0] in "#;":
                continue
            left, equals, right = line.partition("=")
            key = normal_key(left.strip().removeprefix("-").strip())
            if not equals:
                if line.startswith("-"):
                    made.excluded.add(key)
                continue
            assigned = Assigned(normal_value(right), file.path)
            if any(letter in key for letter in "*?["):
                made.globs.append((key, assigned))
            else:
                made.exact[key] = assigned
    return made


def boot_order(files: Sequence[ConfFile]) -> list[ConfFile]:
    """What systemd-sysctl reads, first to last."""
    return in_order(files, SYSCTL_DIRS)


def hand_order(files: Sequence[ConfFile]) -> list[ConfFile]:
    """What `sysctl --system` reads, first to last: /etc/sysctl.conf always has the last word."""
    return [*in_order(files, SYSCTL_DIRS), *(file for file in files if file.path == SYSCTL_CONF)]


def winners(files: Sequence[ConfFile], key: str) -> dict[str, Assigned | None]:
    """Per program the value of `key` and the file that decides it."""
    wanted = normal_key(key)
    return {AT_BOOT: read_files(boot_order(files)).get(wanted), BY_HAND: read_files(hand_order(files)).get(wanted)}


def overridden(files: Sequence[ConfFile], path: str, settings: Mapping[str, str]) -> list[str]:
    """One sentence for each setting that a file other than `path` decides, given that `path` sets all of them."""
    told: dict[tuple[str, str, str], list[str]] = {}
    for key, value in settings.items():
        for program, made in winners(files, key).items():
            if made is None or (made.path != path and made.value != normal_value(value)):
                where, found = (made.path, made.value) if made else ("no file", "nothing")
                told.setdefault((key, where, found), []).append(program)
    return [
        f"{key}: {where} sets {found} after {path} ({' and '.join(programs)}); expected {normal_value(settings[key])}. "
        f"Remove that line from {where}, or make it say the same"
        for (key, where, found), programs in told.items()
    ]


def out_of_range(settings: Mapping[str, str]) -> list[str]:
    """Settings that the kernel would refuse, as sentences."""
    wrong = []
    for key, value in settings.items():
        low, high = RANGES.get(normal_key(key), (None, None))
        if low is None or high is None:
            continue
        if not (value.isascii() and value.isdigit()) or not low <= int(value) <= high:
            wrong.append(f"{key}: found {value!r}, expected a whole number from {low} to {high}")
    return wrong


def render(settings: Mapping[str, str], comment: str) -> str:
    """The text of our file."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + "".join(f"{key} = {normal_value(settings[key])}\n" for key in sorted(settings))
