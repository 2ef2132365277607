# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Why a deployment failed: the evidence of all its ranks, weighed against each other.

A rank dies, and the others say that they lost it. What they say is loud and comes first in time; the rank that died says little or
nothing. So evidence has a weight by what it is, not by where or when it was found. Here is data only: `library/rank_info.py` gathers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.registered import Look
from ansible.module_utils.sparklanes.release.evidence_of_rank import Cause, Weight, of_look, of_words

Facts = Mapping[str, Any]

SAID = 3  # causes in the sentence; the others stand in `also`


def weigh(ranks: Mapping[str, Look], failure: Facts) -> dict[str, Any]:
    """One sentence for a person, and what follows from it.

    ranks: host → result of `rank_info` in rank order.
    failure: `task` and `msg` of what failed in the playbook, `said` (host → words, where a module failed on one), and `checks`,
    the ids of gate B that failed, if it was that.
    Returns id, sentence, host (empty where no rank is to blame), remedy, hardware_or_memory (a person looks first), death (a text where
    a rank ended by a signal, for memory, or for no reason that is known, else empty) and `also`: the other causes, as mappings.
    """
    causes = [cause for host, seen in ranks.items() for cause in of_look(host, seen)]
    causes += [cause for host, words in (failure.get("said") or {}).items() if host in ranks for cause in of_words(host, words)]
    causes += _lost(ranks, causes)
    causes = sorted(dict.fromkeys(causes), key=lambda cause: cause.weight)
    told = [cause for cause in causes if cause.weight < Weight.REMARK]
    checks = [str(id_) for id_ in failure.get("checks") or []]
    stands_still = _STALL.search(str(failure.get("msg") or ""))
    task = _still(ranks, stands_still[0]) if stands_still else _task(failure)
    # Short memory or a busy GPU after the stop would meet the last good release just the same.
    lacking = any(id_.startswith(("MEM.", "BUDGET.", "GPU.")) for id_ in checks)
    main = told[0] if told else None
    said = [str(cause) for cause in _explanations(told)][:SAID]
    # Of healthy ranks only a kernel has something to say: then what was asked and refused is said too.
    if main is None or {cause.weight for cause in told} == {Weight.KERNEL}:
        said.append(task)
    deaths = [str(cause) for cause in told if cause.death and (cause is main or cause.weight < Weight.ENDED)]
    return {
        "id": main.id if main else _id_of_step(checks, bool(stands_still)),
        "sentence": " ".join(f"{text.rstrip('. ')}." for text in [*said, unknown(ranks)] if text),
        "host": main.host if main else "",
        "remedy": main.remedy if main else "",
        "hardware_or_memory": lacking or any(cause.hardware_or_memory for cause in causes),
        "death": "; ".join(deaths) + "." if deaths else "",
        "also": [cause.to_dict() for cause in causes if cause is not main],
    }


def _explanations(told: list[Cause]) -> Iterator[Cause]:
    """The first cause, and beside it what is no consequence: one of each other rank, and what a kernel says."""
    hosts = set()
    for cause in told:
        if cause is told[0] or (
            not told[0].consequence and not cause.consequence and (cause.host not in hosts or cause.weight == Weight.KERNEL)
        ):
            hosts.add(cause.host)
            yield cause


def unknown(looks: Mapping[str, Look]) -> str:
    """Of whom nothing is known, and why; empty where all told."""
    silent = [host for host, seen in looks.items() if seen.silent]
    others = [
        f"{host} could not be looked at ({seen.problem.rstrip('. ')})"
        for host, seen in looks.items()
        if seen.facts is None and not seen.silent
    ]
    return "; ".join([*([f"{', '.join(silent)} did not answer"] if silent else []), *others])


def _task(failure: Facts) -> str:
    said = str(failure.get("msg") or "it failed without a message").rstrip(". ")
    return f"{said} (in '{failure['task']}')" if failure.get("task") else said


# What action long_job says of a job whose heartbeat is too old, or that gets nowhere.
_STALL = re.compile(r"no (?:sign of life|progress) for \d{1,7} s(?: \(limit \d{1,7} s\))?")


def _still(ranks: Mapping[str, Look], said: str) -> str:
    """Where each rank stood when nothing moved any more. Ranks that wait for each other got no word over the fabric."""
    logs = {host: (seen.facts or {}).get("log") or {} for host, seen in ranks.items() if seen.facts and seen.facts.get("running")}
    where = "; ".join(f"{host}: {log.get('progress') or log.get('phase') or 'it runs'}" for host, log in logs.items())
    waits = [host for host, log in logs.items() if log.get("phase") == "rendezvous"]
    text = f"the boot stood still, {said} ({where or 'no rank runs any more'})"
    if len(waits) < 2:
        return text
    return f"{text}; {' and '.join(waits)} wait for each other: each runs and nothing comes over the fabric between them"


def _id_of_step(checks: list[str], stands_still: bool) -> str:
    if any(id_.startswith("FABRIC.") for id_ in checks):
        return "fabric_cut"
    return "boot_stalled" if stands_still else "step_failed"


def _lost(ranks: Mapping[str, Look], causes: list[Cause]) -> Iterator[Cause]:
    """Whom the others lost: by the address that they name, or because one alone doesn't answer."""
    holders: dict[str, list[str]] = {}
    for host, seen in ranks.items():
        for address in ((seen.facts or {}).get("evidence") or {}).get("addresses") or []:
            holders.setdefault(str(address), []).append(host)
    accused: dict[str, dict[str, str]] = {}
    strange: dict[str, str] = {}
    for host, seen in ranks.items():
        for failure in ((seen.facts or {}).get("log") or {}).get("failures") or []:
            for peer in failure.get("peers") or []:
                of = holders.get(str(peer), [])
                # 127.0.0.1 and the bridge of Docker are on every Spark.
                if len(of) == 1 and of[0] != host:
                    accused.setdefault(of[0], {}).setdefault(host, str(peer))
                elif not of:
                    strange.setdefault(str(peer), host)
    # Of a Spark that is gone the fabric says only that nothing comes from it.
    explained = {cause.host for cause in causes if cause.weight <= Weight.ENDED and cause.id != "fabric_cut"}
    for host, by in accused.items():
        if host in explained:
            continue
        others = ", ".join(f"{other} ({address})" for other, address in by.items())
        mutual = [other for other in by if host in accused.get(other, {})]
        if mutual:
            text = f"it and {', '.join(mutual)} lost each other, and both are there: nothing passes between them"
            yield Cause(
                "fabric_cut",
                host,
                text,
                "Ping and bandwidth of that pair: playbooks/fabric_test.yml; then cable, switch, firewall.",
                Weight.LOST,
            )
        else:
            yield Cause(
                "rank_lost", host, f"it was lost by {others}", "Look at its container, its log and its fabric link.", Weight.LOST
            )
    silent = [host for host, seen in ranks.items() if seen.silent]
    left = [cause for cause in causes if cause.weight == Weight.CONSEQUENCE or cause.id == "fabric_cut"]
    told_of = {host for host, by in accused.items() if by}
    if len(silent) == 1 and left and not explained and (strange or not told_of):
        host, by_whom = silent[0], left[0].host
        named = next(iter(strange), "")
        text = f"it does not answer, and {by_whom} lost it{f' ({named})' if named else ''}: this Spark is down or cut off"
        yield Cause("machine_gone", host, text, "Look at its power, console and cables.", Weight.MACHINE, True, True)
