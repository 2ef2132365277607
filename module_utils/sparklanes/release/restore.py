# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""After a failed launch: what was the reason, and may the last good release start again by itself?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.registered import HostVars, Look, looks, results
from ansible.module_utils.sparklanes.release.transaction import DeploymentState

Facts = Mapping[str, Any]


def reason(ranks: Mapping[str, Look], failure: Facts) -> dict[str, Any]:
    """One sentence for a person, and what follows from it.

    ranks: host → result of `rank_info` in rank order.
    failure: `task` and `msg` of what failed in the playbook, and `checks`, the ids of gate B that failed, if it was that.
    Returns sentence, host (empty where no rank is to blame), remedy, hardware_or_memory, and death: a text where a
    rank ended and nothing known explains it, else empty.
    """
    causes: list[tuple[bool, str, Facts]] = []
    unexplained = []
    for host, seen in ranks.items():
        if (rank := seen.facts) is None:
            continue
        causes += [(bool(one.get("consequence")), host, one) for one in (rank.get("log") or {}).get("failures") or []]
        ended = bool(rank.get("container")) and not rank.get("running")
        if ended and not (rank.get("log") or {}).get("failures"):
            unexplained.append((host, rank))
    said = str(failure.get("msg") or "it failed without a message").rstrip(". ")
    task = f"{said} (in '{failure['task']}')" if failure.get("task") else said
    away = f" {unknown(ranks)}." if unknown(ranks) else ""
    # A cause before a consequence, and the first rank that names one: rank 0 dies of what a worker died of.
    for _, host, cause in sorted(causes, key=lambda entry: entry[0]):
        return {
            "sentence": f"{host}: {str(cause['message']).rstrip('. ')}.{away}",
            "host": host,
            "remedy": str(cause.get("remedy", "")),
            "hardware_or_memory": any(bool(one.get("hardware_or_memory")) for _, _, one in causes),
            "death": "",
        }
    for host, rank in unexplained:
        sentence = f"{host}: {str(rank.get('failure') or 'the rank ended').rstrip('. ')}.{away}"
        return {
            "sentence": sentence,
            "host": host,
            "remedy": str(rank.get("remedy", "")),
            "hardware_or_memory": bool(rank.get("hardware_or_memory")),
            "death": sentence,
        }
    # Short memory or a busy GPU after the stop would meet the last good release just the same.
    lacking = any(str(id_).startswith(("MEM.", "BUDGET.", "GPU.")) for id_ in failure.get("checks") or [])
    return {"sentence": f"{task}.{away}", "host": "", "remedy": "", "hardware_or_memory": lacking, "death": ""}


def unknown(looks: Mapping[str, Look]) -> str:
    """Of whom nothing is known, and why; empty where all told."""
    silent = [host for host, seen in looks.items() if seen.facts is None and not seen.broke]
    broke = [f"{host} could not be looked at ({seen.problem.rstrip('. ')})" for host, seen in looks.items() if seen.broke]
    return "; ".join([*([f"{', '.join(silent)} did not answer"] if silent else []), *broke])


def restore(now: Mapping[str, Look], why: Facts, failed_release: str, forget_deaths: bool = False) -> dict[str, Any]:
    """Which release to start again, or why none is.

    now: host → `readiness` facts in rank order. Returns release (empty for none), manifest, api and, where none is
    started, `refusal` as a sentence.
    """

    def none(text: str) -> dict[str, Any]:
        return {"release": "", "manifest": {}, "api": {}, "refusal": text}

    if unknown(now) or not now:
        return none(unknown(now) or "no rank was asked")
    states = {host: DeploymentState.from_dict((seen.facts or {}).get("deployment_state")) for host, seen in now.items()}
    releases = {state.last_good for state in states.values()}
    if releases == {""}:
        return none("no release has passed all gates yet")
    if len(releases) != 1:
        return none(
            "the ranks disagree about the last good release: "
            + ", ".join(f"{h}: {s.last_good or 'none'}" for h, s in states.items())
        )
    release = releases.pop()
    if release == failed_release:
        return none("the release that failed is the last good one itself")
    if why.get("hardware_or_memory"):
        return none("the failure is of memory or hardware; a person looks first, then playbooks/recover.yml")
    if not forget_deaths and any(state.waits_for_a_person() for state in states.values()):
        return none("two deaths were not explained; a person reads the saved logs first, then -e launch_forget_deaths=true")
    frozen = {host: (seen.facts or {}).get("last_good") or {} for host, seen in now.items()}
    lacking = [host for host, kept in frozen.items() if not kept.get("manifest")]
    if lacking:
        return none(f"release {release} is not frozen on {', '.join(lacking)}")
    first = next(iter(frozen.values()))
    nodes = [str(node) for node in first["manifest"].get("nodes") or now]
    if nodes != list(now):
        return none(f"release {release} is of the ranks {', '.join(nodes)}, and the deployment is now {', '.join(now)}")
    return {"release": release, "manifest": first["manifest"], "api": first["api"], "refusal": ""}


def why_it_failed(hostvars: HostVars, hosts: Sequence[str]) -> dict[str, Any]:
    """`reason`, from what role rank asked each rank (rank_autopsy) and what failed on it (rank_failure).

    The host on which a task runs once need not be the one that failed: the first that says something is heard.
    """
    failures = [dict(failure) for failure in results(hostvars, hosts, "rank_failure").values() if failure]
    said = next((failure for failure in failures if failure.get("msg")), {})
    return reason(looks(hostvars, hosts, "rank_autopsy"), said)


def what_to_restore(
    hostvars: HostVars, hosts: Sequence[str], why: Facts, failed_release: str, forget_deaths: bool = False
) -> dict[str, Any]:
    """`restore`, from what role rank saw of each Spark once nothing ran any more (rank_before_restore)."""
    return restore(looks(hostvars, hosts, "rank_before_restore", "readiness"), why, failed_release, forget_deaths)
