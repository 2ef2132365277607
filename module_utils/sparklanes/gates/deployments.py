# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which hosts are the ranks of what, and whether a command may touch them.

A deployment is an inventory group whose hosts, in the order of the group, are the ranks
of one lane. The order comes from the group alone: `-l` narrows a play, never the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, Check, judged
from ansible.module_utils.sparklanes.engine.flags import FLAT_FLAGS
from ansible.module_utils.sparklanes.lane.agreement import disagreements

DEFAULT = "sparks"


def rank_of(host: str, hosts: Sequence[str]) -> int:
    """The rank of a host among those of its deployment. ValueError names both."""
    if host not in hosts:
        raise ValueError(f"{host} is no host of the deployment: {', '.join(hosts) or 'it has none'}")
    return list(hosts).index(host)


def deployments_of(names: Mapping[str, str], hosts: Sequence[str]) -> dict[str, list[str]]:
    """Deployment → its hosts among `hosts`; `names` says each host's deployment."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        found.setdefault(names.get(host) or DEFAULT, []).append(host)
    return found


def membership_checks(names: Mapping[str, str], groups: Mapping[str, Sequence[str]], hosts: Sequence[str]) -> list[Check]:
    """Each deployment that a host of the play names is a group, holds the host, and all its hosts agree."""
    checks = []
    for deployment, members in deployments_of(names, hosts).items():
        group = list(groups.get(deployment) or [])
        outside = [host for host in members if host not in group]
        elsewhere = [f"{host} ({names.get(host) or DEFAULT})" for host in group if (names.get(host) or DEFAULT) != deployment]
        if deployment not in groups:
            text, remedy = (
                f"{', '.join(members)} say deployment: {deployment}",
                f"In the inventory, make {deployment} a group below sparks that has them as its hosts, in rank order.",
            )
            checks.append(Check("DEPLOYMENT.GROUP", deployment, FAIL, text, f"an inventory group named {deployment}", remedy))
        elif outside:
            text = f"{', '.join(outside)} say deployment: {deployment} but are not in that group"
            remedy = f"In the inventory, write {', '.join(outside)} into group {deployment}, or give them another deployment."
            checks.append(Check("DEPLOYMENT.GROUP", deployment, FAIL, text, "members of the group", remedy))
        elif elsewhere:
            text = f"its group also holds {', '.join(elsewhere)}"
            remedy = "Give each host a deployment of its own group: ranks are all hosts of a group."
            checks.append(Check("DEPLOYMENT.GROUP", deployment, FAIL, text, "hosts of this deployment only", remedy))
        else:
            order = ", ".join(f"{rank} {host}" for rank, host in enumerate(group))
            checks.append(Check("DEPLOYMENT.GROUP", deployment, PASS, f"ranks {order}"))
    return checks


def size_check(deployment: str, hosts: Sequence[str], lane: Mapping[str, Any]) -> Check:
    """A deployment has as many hosts as its lane has ranks."""
    needed = lane["lane_nodes"]
    return judged(
        "DEPLOYMENT.SIZE",
        deployment,
        len(hosts) == needed,
        f"{len(hosts)} hosts: {', '.join(hosts)}",
        f"{needed} for lane {lane['lane_id']}",
        f"Make a group of {needed} Sparks below sparks and give it the variables deployment and lane, or choose another lane.",
    )


def agreement_checks(deployment: str, lanes: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """All ranks run the same lane, image and shape, with the same flags and environment; a row for each thing in which they differ.

    lanes: host → its resolved lane, the head first.
    """
    made = []
    for name, values in disagreements(lanes).items():
        found = ", but ".join(f"{value:.120} on {', '.join(hosts)}" for value, hosts in values.items())
        shown = f"{FLAT_FLAGS[name]} ({name})" if name in FLAT_FLAGS else name
        remedy = f"Set it for the whole deployment, in its group's variables or by -e; where it shall differ: lane_per_rank: {{{name}: REASON}}."
        made.append(Check("DEPLOYMENT.AGREE", deployment, FAIL, f"{shown} is {found}", "one value on all ranks", remedy))
    return made or [Check("DEPLOYMENT.AGREE", deployment, PASS, "all ranks agree")]


def address_checks(id: str, what: str, addresses: Mapping[str, str | None]) -> list[Check]:
    """No two hosts share an address, which would make one Spark two ranks."""
    holders: dict[str, list[str]] = {}
    for host, address in addresses.items():
        if address:
            holders.setdefault(str(address), []).append(host)
    shared = {address: hosts for address, hosts in holders.items() if len(hosts) > 1}
    if not shared:
        return [Check(id, host, PASS, f"{what} of its own") for host in addresses]
    return [
        Check(
            id,
            ", ".join(hosts),
            FAIL,
            f"both have the {what} {address}",
            "one address a host",
            f"In the inventory, give {' or '.join(hosts)} another ansible_host, or take one of them out.",
        )
        for address, hosts in shared.items()
    ]


def scope_refusals(play_hosts: Sequence[str], deployment_hosts: Sequence[str], deployment: str = DEFAULT) -> list[Check]:
    """Launching, stopping or judging takes all ranks of a deployment. A part may only be configured."""
    missing = [host for host in deployment_hosts if host not in play_hosts]
    if not missing:
        return [Check("DEPLOYMENT.SCOPE", deployment, PASS, "the whole deployment")]
    found = f"this run leaves out {', '.join(missing)}"
    return [
        Check(
            "DEPLOYMENT.SCOPE", deployment, FAIL, found, f"all of {', '.join(deployment_hosts)}", f"Run it with -l {deployment}."
        )
    ]


def single_refusals(names: Mapping[str, str], play_hosts: Sequence[str]) -> list[Check]:
    """A launch is of one deployment."""
    found = list(deployments_of(names, play_hosts))
    if len(found) == 1:
        return [Check("DEPLOYMENT.ONE", found[0], PASS, "one deployment")]
    if not found:
        return [
            Check(
                "DEPLOYMENT.ONE", "all", FAIL, "no host of sparks is in this run", "one deployment", "Check -l and the inventory."
            )
        ]
    remedy = f"Launch one deployment at a time: -l {found[0]}"
    return [Check("DEPLOYMENT.ONE", "all", FAIL, f"this run holds {', '.join(found)}", "one deployment", remedy)]


def whole_refusal(names: Mapping[str, str], groups: Mapping[str, Sequence[str]], hosts: Sequence[str], deployment: str) -> str:
    """Why a verb for ranks may not work on these hosts, empty where it may: it takes every rank of one deployment and nothing else.

    names: host of the run → its deployment. hosts: those of the run. What -l leaves out would be a rank that nobody watches.
    """
    members = list(groups.get(deployment) or [])
    asked = sorted({names.get(host) or DEFAULT for host in hosts})
    others = [host for host in hosts if host not in members]
    missing = [host for host in members if host not in hosts]
    if len(asked) > 1:
        return f"These hosts belong to the deployments {', '.join(asked)}; take one at a time: -l NAME."
    if others:
        return (
            f"{', '.join(others)} say deployment: {deployment} but are not in that group; take its hosts only: -l {deployment}, "
            "without -e deployment."
        )
    if missing:
        return f"Deployment {deployment} also has {', '.join(missing)}, which -l leaves out. Use -l {deployment}."
    return ""
