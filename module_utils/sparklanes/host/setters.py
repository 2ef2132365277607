# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who sets a kernel setting besides the sysctl files: a service at boot, tuned, cron, rc.local.

They come after systemd-sysctl, so they win over every file, and a value that is right today is another one after a boot.
What a service does is looked for in its own text and in the scripts that it names; no further.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ansible.module_utils.sparklanes.host.sysctl import dotted, normal_key, normal_value

UNIT_FOLDERS = ("etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system")
LARGEST = 65536
# What is ordered before the files are read does not win over them.
_EARLIER = re.compile(r"^Before=(?:.*\s)?systemd-sysctl\.service(?:\s|$)", re.MULTILINE)
_PATH = re.compile(r"(?<![\w.])/[\w./+-]+")


def _text(path: Path) -> str:
    """A small text file without its comments; empty for anything else."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return ""
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "" if "\0" in text else "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", ";")))


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def enabled_units(root: Path) -> list[str]:
    """Services that start at a boot, and those of timers, by name."""
    links = [path for folder in UNIT_FOLDERS for kind in ("wants", "requires") for path in (root / folder).glob(f"*.{kind}/*")]
    names = {path.name for path in links if path.suffix == ".service"}
    return sorted(names | {f"{path.stem}.service" for path in links if path.suffix == ".timer"})


def unit_files(root: Path, name: str) -> Iterator[Path]:
    """The unit's own file, the first of its folders, and its drop-ins. One of an instance is that of its template."""
    names = [name, f"{name.partition('@')[0]}@.service"] if "@" in name else [name]
    own = [root / folder / one for one in names for folder in UNIT_FOLDERS if (root / folder / one).is_file()]
    yield from own[:1]
    for folder in UNIT_FOLDERS:
        yield from sorted((root / folder / f"{name}.d").glob("*.conf"))


def sources(root: Path) -> Iterator[tuple[str, str]]:
    """(who, text) of everything that may set something after systemd-sysctl."""
    for name in enabled_units(root):
        texts = {path: _text(path) for path in unit_files(root, name)}
        if any(_EARLIER.search(text) for text in texts.values()):
            continue
        for path, text in texts.items():
            yield f"{name} (/{path.relative_to(root)})", text
            for script in sorted({word for line in text.splitlines() if line.startswith("Exec") for word in _PATH.findall(line)}):
                yield f"{name} ({script})", _text(_below(root, script))
    profiles = _text(root / "etc/tuned/active_profile").split()
    for profile in profiles:
        for folder in ("etc/tuned", "etc/tuned/profiles", "usr/lib/tuned", "usr/lib/tuned/profiles"):
            yield f"tuned ({folder}/{profile})", _text(root / folder / profile / "tuned.conf")
    yield "rc.local", _text(root / "etc/rc.local")
    for path in (root / "etc/crontab", *sorted((root / "etc/cron.d").glob("*"))):
        yield f"cron (/{path.relative_to(root)})", _text(path)


def values(text: str, key: str) -> list[str]:
    """What this text sets the key to; empty for a text that only reads it."""
    name = normal_key(key)
    words = "|".join(re.escape(word) for word in {name, dotted(name)})
    assigned = re.findall(rf"(?<![\w./])(?:{words})\s*=\s*[\"']?([^\s\"';|&]+)", text)
    written = re.findall(
        rf"echo\s+(?:-n\s+)?[\"']?([^\s\"'|>]+)[\"']?\s*(?:>|\|\s*(?:sudo\s+)?tee)\s*/proc/sys/{re.escape(name)}", text
    )
    return [normal_value(value) for value in (*assigned, *written)]


def contradicting(root: Path, settings: Mapping[str, str]) -> list[str]:
    """One sentence for each service or script that sets one of these to something else."""
    found = []
    for who, text in sources(root):
        for key, wanted in settings.items():
            others = [value for value in values(text, key) if value != normal_value(wanted)]
            if others:
                found.append(
                    f"{key}: {who} sets {', '.join(dict.fromkeys(others))} after the files of sysctl were read; expected {normal_value(wanted)}. "
                    f"Disable it, or make it say the same"
                )
    return list(dict.fromkeys(found))
