# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""RemoveIPC of systemd-logind: what its files say, and what it says itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible.module_utils.sparklanes.common.commands import Run, ask
from ansible.module_utils.sparklanes.host.conf_files import Assigned, ConfFile, in_order

LOGIND_CONF = "/etc/systemd/logind.conf"
LOGIND_DIRS = (
    "/etc/systemd/logind.conf.d",
    "/run/systemd/logind.conf.d",
    "/usr/local/lib/systemd/logind.conf.d",
    "/usr/lib/systemd/logind.conf.d",
)
NOT_RUNNING = "not running"


def render_logind(options: Mapping[str, str], comment: str) -> str:
    """The text of our drop-in for systemd-logind."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + "[Login]\n" + "".join(f"{key}={options[key]}\n" for key in sorted(options))


def logind_order(files: Sequence[ConfFile]) -> list[ConfFile]:
    """What systemd-logind reads: its main file, then every drop-in by name."""
    return [*(file for file in files if file.path == LOGIND_CONF), *in_order(files, LOGIND_DIRS)]


def logind_winner(files: Sequence[ConfFile], option: str) -> Assigned | None:
    """The value of an option of [Login] and the file that decides it. logind ignores an empty value."""
    found: Assigned | None = None
    for file in logind_order(files):
        section = ""
        for raw in file.text.splitlines():
            line = raw.strip()
            if line.startswith("["):
                section = line
            elif section == "[Login]" and line[:1] not in "#;":
                key, equals, value = line.partition("=")
                if equals and key.strip() == option and value.strip():
                    found = Assigned(value.strip(), file.path)
    return found


def is_no(value: str) -> bool:
    """systemd's spellings of no."""
    return value.strip().lower() in ("no", "n", "false", "f", "0", "off")


def remove_ipc(run: Run) -> tuple[str, str]:
    """What systemd-logind itself says to RemoveIPC: yes, no or `not running`; and an error where it runs and does not answer."""
    if ask(run, ["systemctl", "is-active", "--quiet", "systemd-logind.service"])[0] != 0:
        return NOT_RUNNING, ""
    place = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "RemoveIPC"]
    rc, out, err = ask(run, ["busctl", "get-property", *place])
    if rc != 0:
        return "", err.strip() or f"busctl: exit {rc}"
    return ("no" if out.split() == ["b", "false"] else "yes"), ""
