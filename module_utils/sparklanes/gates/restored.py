# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which bank a release that started again is judged by, and how much that proves.

It is the bank that its own launch was judged with: that stands beside the frozen release on rank 0, with its name and the limits of then. The
bank of its lane may have become one of other weights since, and says nothing certain of this release. Where only that one is left it
is asked all the same, and called by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL
from ansible.module_utils.sparklanes.common.registered import Facts
from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as banks
from ansible.module_utils.sparklanes.release.transaction import JUDGED, RESTORED

# What is wrong whatever it is compared with.
_ABSOLUTE = "TF.FINITE"
_PERSON = "A person looks at its answers, then launches it, which judges it."


@dataclass(frozen=True)
class Candidate:
    """A bank that could be judged with: its place on the controller and what was read there, or why there is none."""

    path: str
    bank: Any = None
    problem: str = ""

    @property
    def name(self) -> str:
        return banks.named(self.bank) if isinstance(self.bank, Mapping) else ""


def choose(lane: str, judged: Facts, kept: Candidate, current: Candidate, limits: Facts) -> dict[str, Any]:
    """The bank to judge a restored release by: path (empty for none), name, limits, `own` (it is that of its launch) and, where it is not, why.

    judged: what was noted beside the release, bank (its name) and limits; `unreadable` where that can't be read, empty where nothing
    was noted. kept: the bank beside the release. current: the bank of its lane now. limits: those of now.
    """
    noted = str(judged.get("bank") or "")
    for one in (kept, current) if noted else ():
        if one.name == noted:
            return {
                "path": one.path,
                "name": noted,
                "own": True,
                "noted": noted,
                "why": "",
                "limits": dict(judged.get("limits") or {}),
            }
    if noted:
        lost = kept.problem or f"what lies in its place is bank {kept.name or 'of nobody'}"
        why = f"not with bank {noted}, which its own launch was judged with: {lost}"
    elif judged.get("unreadable"):
        why = f"and which bank its own launch was judged with is not known: {judged['unreadable']}"
    else:
        why = "and which bank its own launch was judged with is not noted"
    if not current.name:
        none = f"the bank of lane {lane} can't be read ({current.problem})" if current.problem else f"lane {lane} has no bank"
        lacks = f"{none}, and bank {noted} of its own launch is gone: {lost}" if noted else none
        return {"path": "", "name": "", "own": False, "noted": noted, "why": lacks, "limits": dict(limits)}
    return {"path": current.path, "name": current.name, "own": False, "noted": noted, "why": why, "limits": dict(limits)}


def proven(forcing: Facts, chosen: Facts, failure: str = "") -> dict[str, Any]:
    """How far a restored release is judged: its `status`, the `words` for it, `short` for the record, and the checks that still decide.

    forcing: the verdict of teacher forcing, empty where there is none. failure: why no scores came. Another bank than its own refuses nothing where that
    is known to be another: it may be the bank that differs. Where nobody knows, wrong numbers are taken for what they most likely are.
    """
    verdict = forcing.get("verdict")
    failed = sorted({str(check["id"]) for check in forcing.get("checks") or [] if check.get("status") == FAIL})
    with_which = f"with bank {chosen['name']}, {chosen['why']}"
    if not chosen["path"]:
        unjudged = str(chosen["why"])
    elif verdict is None:
        unjudged = f"it could not be scored: {failure or 'no scores came'}"
    elif verdict == "invalid":
        unjudged = f"its scores could not be judged: {forcing.get('reason')}"
    elif not chosen["own"] and chosen["noted"] and failed and _ABSOLUTE not in failed:
        unjudged = f"it differs ({', '.join(failed)}) where it was compared {with_which}"
    else:
        unjudged = ""
    if unjudged:
        short = f"restored, not judged: {unjudged.rstrip('. ')}."
        return {"status": RESTORED, "words": f"runs again, {short} {_PERSON}", "short": f"R{short[1:]}", "checks": [], "note": ""}
    checks = list(forcing["checks"])
    if chosen["own"]:
        words = f"serves again: alive, and within the noise of its bank ({chosen['name']})."
        return {"status": JUDGED, "words": words, "short": "", "checks": checks, "note": ""}
    short = f"restored, judged {with_which.rstrip('. ')}."
    return {
        "status": RESTORED,
        "words": f"runs again, {short} It is within the noise of that one. {_PERSON}",
        "short": f"R{short[1:]}",
        "checks": checks,
        "note": f" (judged {with_which.rstrip('. ')})",
    }
