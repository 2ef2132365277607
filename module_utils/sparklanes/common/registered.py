# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Results that tasks registered: the facts of a module that ran to its end, or the reason why there are none.

A result is judged by what it proves, never by what it lacks. A module that broke, a host that did not answer and a task that never
ran have no facts; the words that Ansible or the module gave for it go into the row of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common.checks import Check, judged

Facts = Mapping[str, Any]
HostVars = Mapping[str, Mapping[str, Any]]

NO_ANSWER = "no answer over ssh"
NOT_ASKED = "was not asked: an earlier step failed on this host, or it did not answer there"
LONGEST = 600  # characters of somebody else's words in a row


@dataclass(frozen=True)
class Look:
    """What is known of one host by one result: `facts`, or None and the `problem` in words.

    `broke` tells a module that ran on the host and failed from a host that was not reached. `silent` is said of a host that was asked
    and could not be reached, of no other: one that nobody asked may well answer.
    """

    facts: Facts | None = None
    problem: str = ""
    broke: bool = False
    silent: bool = False


def look(result: Any, part: str = "") -> Look:
    """The facts of a registered result, or of the mapping `part` in it."""
    if result is None or result == {}:
        return Look(None, NOT_ASKED)
    if not isinstance(result, Mapping):
        return Look(None, f"a result that is no mapping but {type(result).__name__}", broke=True)
    if result.get("unreachable"):
        said = words(result)
        return Look(None, f"{NO_ANSWER} ({said})" if said else NO_ANSWER, silent=True)
    if result.get("skipped"):
        return Look(None, f"was not asked ({result.get('skip_reason') or 'skipped'})", broke=True)
    # Under failed_when a failure is no longer called one, but Ansible keeps its exception.
    if result.get("failed") or result.get("failed_when_suppressed_exception"):
        return Look(None, words(result) or "the module failed without a word", broke=True)
    if not part:
        return Look(result)
    facts = result.get(part)
    if not isinstance(facts, Mapping):
        return Look(None, words(result) or f"the module gave no {part}", broke=True)
    return Look(facts)


def answered(result: Any) -> Facts | None:
    """A registered result of a module that ran to its end, else None."""
    return look(result).facts


# How a failure begins that only its output explains: of a command until ansible-core 2.20, from 2.21 on, and of a module that broke.
_SAYS_NOTHING = ("non-zero return code", "The command exited with a non-zero return code", "Module result deserialization")
# A module that broke under a terminal prints its traceback to the one output, and ssh its farewell to the other.
_OUTPUTS = ("stderr", "module_stdout", "stdout", "exception", "module_stderr")


def says_nothing(text: str) -> bool:
    """Whether the message of a failed result leaves it to the output to say why."""
    return not text or "MODULE FAILURE" in text.upper() or text.startswith(_SAYS_NOTHING)


def last_line(result: Facts) -> str:
    """The last line of what a failed result printed, where a traceback and most programs say why; empty where it printed nothing."""
    outputs = (str(result.get(name) or "").strip() for name in _OUTPUTS)
    return next((output.splitlines()[-1].strip() for output in outputs if output), "")


def words(result: Facts) -> str:
    """What a result says for itself, on one line: its message, and the last line of a traceback under it."""
    said = " ".join(str(result.get("msg") or "").split())
    if says_nothing(said) and (more := last_line(result)):
        said = ": ".join(part for part in (said.rstrip(":. "), " ".join(more.split())) if part)
    return said if len(said) <= LONGEST else f"{said[:LONGEST]} …"


def look_again(host: str) -> str:
    """What to do where a look itself failed, so that it found nothing: the row has its words."""
    return f"The look at {host} itself failed, so nothing is known of it: mend what it says, then run this again."


def check_rows(result: Any, id: str, host: str, expected: str, remedy: str) -> list[Check]:
    """The checks that a module itself made. Where it made none, or failed beside them, that is a failed row `id`."""
    made = []
    problem = look(result).problem
    found = result.get("checks") if isinstance(result, Mapping) else None
    for one in found if isinstance(found, list) else []:
        try:
            made.append(Check.from_dict(one))
        except (AttributeError, ValueError):
            problem = problem or f"a check that is none: {one!r}"[:LONGEST]
    if not made and not problem:
        problem = (words(result) if isinstance(result, Mapping) else "") or "not measured"
    if problem:
        made.append(judged(id, host, None, problem, expected, remedy))
    return made


def results(hostvars: HostVars, hosts: Sequence[str], name: str) -> dict[str, Any]:
    """Host → what is there under the name of a result or fact, None where nothing is. `hosts`: in rank order."""
    return {host: hostvars[host].get(name) for host in hosts}


def looks(hostvars: HostVars, hosts: Sequence[str], name: str, part: str = "") -> dict[str, Look]:
    """Host → what is known by the result that was registered as `name`, or by a part of it."""
    return {host: look(result, part) for host, result in results(hostvars, hosts, name).items()}


def said(hostvars: HostVars, hosts: Sequence[str], name: str) -> list[str]:
    """The messages of these results, without those that say nothing."""
    found = [result.get("msg") for result in results(hostvars, hosts, name).values() if isinstance(result, Mapping)]
    return [str(message) for message in found if message]
