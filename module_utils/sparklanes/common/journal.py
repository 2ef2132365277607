# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The journal of a machine and the log of its kernel, as text, and in words why they could not be read.

journalctl says beside an empty answer, on its second stream and often with status 0, that it may not see: nothing is no answer then.
"""

from __future__ import annotations

from typing import Any

from ansible.module_utils.sparklanes.common.commands import Run
from ansible.module_utils.sparklanes.common.text import said

BOOT = ("--boot", "_TRANSPORT=kernel")
_WIDTH = 200  # of the words why
_HIDDEN = ("no journal files", "not seeing messages", "insufficient permissions")


def read(run: Run, *what: str, grep: str = "", **limits: Any) -> tuple[str, str]:
    """What `journalctl WHAT…` prints, and why it is not all that there is (empty where it is). limits: as of `commands.run`.

    grep: only lines with this pattern, letters as they are. A journalctl that was built without patterns says so in the second text.
    """
    matching = ["--case-sensitive=yes", f"--grep={grep}"] if grep else []
    rc, out, err = run(["journalctl", "--no-pager", "--output=short-iso", *what, *matching], **limits)
    nothing = not out.strip() or out.startswith("-- No entries --")
    hidden = any(words in err.lower() for words in _HIDDEN)
    unmatched = bool(grep) and rc == 1 and not err.strip()
    why = (said(err, _WIDTH) or f"journalctl: exit {rc}") if hidden or (rc != 0 and not unmatched) else ""
    return ("" if rc != 0 or nothing else out), why


def kernel(run: Run, *what: str, grep: str = "", **limits: Any) -> tuple[str, str]:
    """As `read`, of what the kernel said (`*BOOT`: since the boot). Without lines in the journal those of dmesg, all of this boot, stand in."""
    text, why = read(run, *what, grep=grep, **limits)
    if text or (grep and not why):
        return text, ""
    rc, out, err = run(["dmesg"], **limits)
    if rc == 0:
        return out, ""
    return "", (said(err, _WIDTH) or why) if why else ""
