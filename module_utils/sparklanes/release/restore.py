# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""After a failed launch: what was the reason, and may the last good release start again by itself?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL
from ansible.module_utils.sparklanes.common.registered import NO_ANSWER, HostVars, Look, looks, results
from ansible.module_utils.sparklanes.release.cause import unknown, weigh
from ansible.module_utils.sparklanes.release.transaction import DEATHS_BEFORE_A_PERSON, DeploymentState, deaths, unreadable

Facts = Mapping[str, Any]


def restore(now: Mapping[str, Look], why: Facts, failed_release: str, forget_deaths: bool = False) -> dict[str, Any]:
    """Which release to start again, or why none is.

    now: host → `readiness` facts in rank order. Returns release (empty for none), manifest, api, specs (of each host), `judged` (what its own
    launch was judged with, as rank 0 kept it) and, where none is started, `refusal` as a sentence.
    """

    def none(text: str) -> dict[str, Any]:
        return {"release": "", "manifest": {}, "api": {}, "specs": {}, "judged": {}, "refusal": text}

    if unknown(now) or not now:
        return none(f"{unknown(now) or 'no rank was asked'}; once that is mended: playbooks/recover.yml -e recover_to=last_good")
    for host, seen in now.items():
        if unread := unreadable(seen.facts) or str(((seen.facts or {}).get("last_good") or {}).get("unreadable") or ""):
            return none(f"{host}: {unread}")
    states = {host: DeploymentState.from_dict((seen.facts or {}).get("deployment_state")) for host, seen in now.items()}
    releases = {state.last_good for state in states.values()}
    if releases == {""}:
        return none("no release has passed all gates yet; once the reason is mended: playbooks/launch.yml")
    if len(releases) != 1:
        return none(
            "the ranks disagree about the last good release: "
            + ", ".join(f"{h}: {s.last_good or 'none'}" for h, s in states.items())
            + "; a launch that passes makes it one for all: playbooks/launch.yml"
        )
    release = releases.pop()
    if release == failed_release:
        return none("the release that failed is the last good one itself; once the reason is mended: playbooks/launch.yml")
    if why.get("hardware_or_memory"):
        return none("the failure is of memory or hardware; a person looks first, then playbooks/recover.yml")
    died = deaths(states.values())
    if not forget_deaths and len(died) >= DEATHS_BEFORE_A_PERSON:
        return none(
            f"{len(died)} deaths were not explained ({'; '.join(died)}); a person reads the saved logs first, then -e launch_forget_deaths=true"
        )
    frozen = {host: (seen.facts or {}).get("last_good") or {} for host, seen in now.items()}
    lacking = [host for host, kept in frozen.items() if not kept.get("manifest")]
    if lacking:
        return none(
            f"release {release} is not frozen on {', '.join(lacking)} any more; a launch freezes what it starts: playbooks/launch.yml"
        )
    first = next(iter(frozen.values()))
    nodes = [str(node) for node in first["manifest"].get("nodes") or now]
    if nodes != list(now):
        return none(
            f"release {release} is of the ranks {', '.join(nodes)}, and the deployment is now {', '.join(now)}; start a lane on these: playbooks/launch.yml"
        )
    specs = {host: dict(kept.get("spec") or {}) for host, kept in frozen.items()}
    return {
        "release": release,
        "manifest": first["manifest"],
        "api": first["api"],
        "specs": specs,
        "judged": dict(first.get("judged") or {}),
        "refusal": "",
    }


# Checks that what is read or computed fails, where all else is well: bad weights, a bad overlay, bad numbers.
_CONTENT = ("TF.", "WEIGHTS.", "OVERLAYS.", "ENGINE.")
# These fail where an engine hangs or is not there: no word about what it computes.
_SILENCE = ("ENGINE.HEALTH", "ENGINE.MODELS", "ENGINE.COMPLETION", "ENGINE.CHAT")


def content_in_doubt(record: Facts) -> list[str]:
    """Ids of failed checks of a launch by which files may hold something else than they are taken for, whatever size and times say.

    record: verdict and checks of each gate, as role gates keeps it. What did not fail, or could not be judged, accuses no file.
    """
    checks = [check for gate in record.values() for check in (gate or {}).get("checks") or []]
    ids = {str(check.get("id")) for check in checks if check.get("status") == FAIL}
    return sorted(id_ for id_ in ids if id_.startswith(_CONTENT) and id_ not in _SILENCE)


def standing(ranks: Mapping[str, Look]) -> dict[str, Any]:
    """What a look at each rank found: `dead` (hosts whose rank has ended or is gone), `paused`, `unknown`, and all of it as a `sentence`."""
    words: dict[str, str] = {}
    found: dict[str, list[str]] = {"dead": [], "paused": [], "unknown": []}
    for host, seen in ranks.items():
        if seen.facts is None:
            found["unknown"].append(host)
            words[host] = f"could not be looked at ({seen.problem.rstrip('. ')})"
            continue
        box = seen.facts.get("container") or {}
        if box.get("status") == "paused":
            found["paused"].append(host)
            words[host] = f"is paused (docker unpause {box.get('name')})"
        elif seen.facts.get("running"):
            words[host] = "runs"
        else:
            found["dead"].append(host)
            words[host] = f"has ended with exit code {box.get('exit_code')}" if box else "is gone"
    return {**found, "sentence": ", ".join(f"the rank of {host} {said}" for host, said in words.items())}


def why_it_failed(hostvars: HostVars, hosts: Sequence[str]) -> dict[str, Any]:
    """`release.cause.weigh`, of what role rank asked each rank (rank_autopsy) and what failed on it (rank_failure).

    The host on which a task runs once need not be the one that failed: the first that says something is heard. What each said
    for itself goes beside it: words of Docker or of a full disk are those of the host that said them.
    """
    failures = {host: dict(one) for host, one in results(hostvars, hosts, "rank_failure").items() if one}
    heard = next((one for one in failures.values() if one.get("msg")), {})
    words = {host: str(one["msg"]) for host, one in failures.items() if one.get("msg")}
    asked = results(hostvars, hosts, "rank_autopsy")
    # Ansible takes a host that it can't reach out of the run, also out of its rescue: it has neither result.
    gone = [host for host, one in results(hostvars, hosts, "rank_failure").items() if one is None and asked[host] is None]
    seen = looks(hostvars, hosts, "rank_autopsy") | {host: Look(None, NO_ANSWER, silent=True) for host in gone}
    if gone and not heard:
        heard = {"msg": f"{', '.join(gone)} could not be reached over ssh any more"}
    return weigh(seen, {**heard, "said": words})


def what_to_restore(
    hostvars: HostVars, hosts: Sequence[str], why: Facts, failed_release: str, forget_deaths: bool = False
) -> dict[str, Any]:
    """`restore`, from what role rank saw of each Spark once nothing ran any more (rank_before_restore)."""
    return restore(looks(hostvars, hosts, "rank_before_restore", "readiness"), why, failed_release, forget_deaths)


def what_stands(hostvars: HostVars, hosts: Sequence[str]) -> dict[str, Any]:
    """`standing`, from what role rank asked each rank (rank_autopsy)."""
    return standing(looks(hostvars, hosts, "rank_autopsy"))
