# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What can be judged before anything is touched: the controller, the inventory, the lane.

Pure rules over what Ansible knows already; no Spark is asked anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, judged
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.gates import deployments as gates_deployments
from ansible.module_utils.sparklanes.gates import exposure
from ansible.module_utils.sparklanes.gates.removed import removed_checks
from ansible.module_utils.sparklanes.lane import budget
from ansible.module_utils.sparklanes.lane.limits import limit_checks
from ansible.module_utils.sparklanes.lane.partial import Partial, apart
from ansible.module_utils.sparklanes.lane.replaced import replaced_checks
from ansible.module_utils.sparklanes.lane.rules import lane_checks
from ansible.module_utils.sparklanes.lane.schema import Schema, resolve, resolve_apart
from ansible.module_utils.sparklanes.lane.state import negative_check, state_check
from ansible.module_utils.sparklanes.lane.unknowns import launch_refusals
from ansible.module_utils.sparklanes.traps.rules import trap_checks

CONTROLLER = "controller"
# What a playbook needs: any lane may be missing (host), each host needs one (lane), or all that a launch asks for.
NEEDS = ("host", "lane", "launch")
# Tried together; each Python line gets the newest ansible-core that supports it.
PYTHONS = ((3, 11), (3, 13))
CORES = ((2, 19), (2, 21))


def controller_checks(python: Sequence[int], core: str, collections: Mapping[str, bool]) -> list[Check]:
    """The machine that runs Ansible: versions that we test, and the collections that the playbooks name."""
    checks = [
        _version("CONTROLLER.PYTHON", "Python", list(python), PYTHONS, "Make a virtual environment with one of these."),
        _version("CONTROLLER.ANSIBLE", "ansible-core", core.split("."), CORES, "In a virtual environment: pip install -e ."),
    ]
    absent = [name for name, there in collections.items() if not there]
    remedy = f"pip install -e . brings them; or ansible-galaxy collection install {' '.join(absent)}"
    found = f"missing: {', '.join(absent)}" if absent else ", ".join(collections) or "none needed"
    checks.append(judged("CONTROLLER.COLLECTIONS", CONTROLLER, not absent, found, ", ".join(collections), remedy))
    return checks


def _version(id: str, what: str, found: Sequence[Any], supported: tuple[tuple[int, int], tuple[int, int]], remedy: str) -> Check:
    text = ".".join(str(part) for part in found)
    low, high = (".".join(str(part) for part in bound) for bound in supported)
    major_minor = tuple(int(part) for part in list(found)[:2])
    return judged(id, CONTROLLER, supported[0] <= major_minor <= supported[1], f"{what} {text}", f"{low} to {high}", remedy)


def choice_check(host: str, variables: Mapping[str, Any], known: Sequence[str], needs: str = "host") -> Check:
    """A host has a lane, we know it, and its variables were loaded."""
    lane, loaded = str(variables.get("lane") or ""), str(variables.get("lane_id") or "")
    names = f"one of {', '.join(known)}" if known else "a lane; there is none in group_vars/"
    if not lane:
        remedy = "Choose one: -e lane=NAME, or lane: NAME in the variables of the deployment's group."
        if needs == "host":
            return Check("LANE.CHOICE", host, WARN, "no lane is chosen: only the host part is done", names, remedy)
        return Check("LANE.CHOICE", host, FAIL, "no lane is chosen", names, remedy)
    if lane not in known:
        hint = did_you_mean(lane, known) or "Choose one of these, or add group_vars/lane_<id>.yml."
        return Check("LANE.CHOICE", host, FAIL, f"unknown lane {lane}", names, hint)
    if not loaded:
        remedy = (
            "An inventory given by -i replaces all three of ours. "
            "Give them around it: -i inventory/shipped -i YOURS -i inventory/lanes (and its hosts in the group sparks)."
        )
        return Check(
            "LANE.CHOICE", host, FAIL, f"the variables of lane {lane} were not loaded", f"a member of group lane_{lane}", remedy
        )
    if loaded != lane:
        remedy = f"Correct lane_id in the file group_vars/lane_{lane}.yml."
        return Check("LANE.CHOICE", host, FAIL, f"lane {lane} calls itself lane_id: {loaded}", f"lane_id: {lane}", remedy)
    return Check("LANE.CHOICE", host, PASS, f"lane {lane}")


def shared_check(host: str, variables: Mapping[str, Any], groups: Mapping[str, Sequence[str]], shared: Sequence[str]) -> Check:
    """The family and the kit that a lane names exist and were loaded; Ansible passes over a file that isn't there without a word."""
    for kind in ("family", "kit"):
        name = str(variables.get(f"lane_{kind}") or "")
        group = f"{kind}_{name}"
        if name and group not in shared:
            known = [other.removeprefix(f"{kind}_") for other in shared if other.startswith(f"{kind}_")]
            remedy = did_you_mean(name, known) or f"Write group_vars/{group}.yml, or correct lane_{kind}."
            found = f"lane_{kind} is {name}, but there is no group_vars/{group}.yml"
            return Check("LANE.CHOICE", host, FAIL, found, ", ".join(known) or "none is there", remedy)
        if name and host not in (groups.get(group) or []):
            found = f"the variables of the lane's {kind} {name} were not loaded: {host} is not in the group {group}"
            remedy = f"inventory/lanes makes that group, and stands last: -i inventory/shipped -i YOURS -i inventory/lanes (by hand: {group} below sparks, with {host} in it)."
            return Check("LANE.CHOICE", host, FAIL, found, f"a member of group {group}", remedy)
    return Check("LANE.CHOICE", host, PASS, f"lane {variables.get('lane')}")


def preflight(
    hostvars: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
    play_hosts: Sequence[str],
    known: Sequence[str],
    options: Schema,
    needs: str = "host",
    inline: Mapping[str, Mapping[str, Any]] | None = None,
    shared: Sequence[str] | None = None,
    written: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Check]:
    """Everything that can be said of the inventory and the lanes of these hosts.

    `inline`: group → the variables that stand inside an inventory file, where they are known.
    `shared`: the groups of families and kits that have a file; None where it is not known.
    `written`: lane → the variables of its file, ours or the site's own, of those that could be read.
    """
    if needs not in NEEDS:
        raise ValueError(f"needs is {needs!r}: one of {', '.join(NEEDS)}")
    if not play_hosts:
        remedy = "Write your Sparks into inventory/fleet/10-fleet.yml: script/init ADDRESS ADDRESS …; and check -l."
        return [Check("INVENTORY.HOSTS", "sparks", FAIL, "no host in the group sparks", "at least one", remedy)]
    names = {
        host: str(hostvars[host].get("deployment") or gates_deployments.DEFAULT) for host in groups.get("sparks") or play_hosts
    }
    checks: list[Check] = gates_deployments.membership_checks(names, groups, play_hosts)
    addresses = {host: address_of(host, hostvars[host]) for host in groups.get("sparks") or play_hosts}
    checks += gates_deployments.address_checks("INVENTORY.ADDRESS", "address", addresses)
    checks += inline_checks(hostvars, groups, play_hosts, inline or {})
    checks += removed_checks(hostvars, play_hosts)
    if needs == "launch":
        checks += gates_deployments.single_refusals(names, play_hosts)
    for deployment in gates_deployments.deployments_of(names, play_hosts):
        members = [host for host in groups.get(deployment) or [] if host in names]
        if needs == "launch":
            checks += gates_deployments.scope_refusals(play_hosts, members, deployment)
        checks += _deployment(deployment, members, hostvars, groups, known, options, needs, shared, written or {})
    return checks


def unread_checks(elsewhere: Sequence[str], site: str) -> list[Check]:
    """Warn of files of a lane in use that lie in the site folder of another inventory. elsewhere: them. site: the folder of this one."""
    remedy = f"Move it to {site}/group_vars, or leave out -i."
    return [
        Check(
            "INVENTORY.UNREAD",
            "sparks",
            WARN,
            f"{path} is not read under the inventory of this run",
            f"a file below {site}",
            remedy,
        )
        for path in elsewhere
    ]


def inline_checks(
    hostvars: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
    play_hosts: Sequence[str],
    inline: Mapping[str, Mapping[str, Any]],
) -> list[Check]:
    """Warn of lane variables inside an inventory file that lost: Ansible lets every group_vars file beat them."""
    checks = []
    for group, variables in inline.items():
        members = [host for host in groups.get(group) or [] if host in play_hosts]
        for name, value in variables.items():
            if members and name.startswith("lane_") and all(hostvars[host].get(name) != value for host in members):
                found = f"{name}: {value} in the variables of group {group} has no effect"
                remedy = f"Move it to inventory/fleet/group_vars/{group}.yml: group_vars, ours too, beat an inventory file."
                checks.append(Check("INVENTORY.INLINE", group, WARN, found, "lane variables in group_vars", remedy))
    return checks


def _deployment(
    deployment: str,
    hosts: Sequence[str],
    hostvars: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
    known: Sequence[str],
    options: Schema,
    needs: str,
    shared: Sequence[str] | None,
    written: Mapping[str, Mapping[str, Any]],
) -> list[Check]:
    """All hosts of a deployment are judged, also those outside -l: their lane must be the same."""
    checks: list[Check] = []
    lanes: dict[str, dict[str, Any]] = {}
    for host in hosts:
        choice = choice_check(host, hostvars[host], known, needs)
        if choice.status == PASS and shared is not None:
            choice = shared_check(host, hostvars[host], groups, shared)
        checks.append(choice)
        if choice.status != PASS:
            # Without a lane, a mistyped -e lane_… is still one.
            _, named = resolve(hostvars[host], options, host)
            checks += [check for check in named if check.id == "LANE.NAMES" and check.status == FAIL]
            continue
        # A name that nobody knows changes nothing of the others; of a wrong value nobody judges what it would mean.
        lane, resolved, wrong = resolve_apart(hostvars[host], options, host)
        checks += resolved
        own = written.get(str(hostvars[host].get("lane"))) or {}
        checks += replaced_checks(hostvars[host], own, host, options, lane["lane_replaces"] or [])
        if wrong:
            checks += [check for check in _of_lane(Partial(lane, wrong), host, options, hostvars[host]) if check.status != PASS]
        else:
            checks += _of_lane(lane, host, options, hostvars[host])
            lanes[host] = lane
    if lanes and len(lanes) == len(hosts):
        checks += [
            gates_deployments.size_check(deployment, hosts, lanes[hosts[0]]),
            *gates_deployments.agreement_checks(deployment, lanes),
        ]
        if needs == "launch":
            checks += [negative_check(lanes[hosts[0]], deployment), state_check(lanes[hosts[0]], deployment)]
            checks += launch_refusals(lanes[hosts[0]], deployment)
            checks.append(exposure.exposed(lanes[hosts[0]], deployment, hosts[0]))
    elif lanes and any(not hostvars[host].get("lane") for host in hosts):
        bare = [host for host in hosts if not hostvars[host].get("lane")]
        found = f"{', '.join(bare)} have no lane, {', '.join(lanes)} have one"
        remedy = f"Write `lane: ID` once, into the variables of group {deployment} in the inventory, or type -e lane=ID."
        checks.append(Check("DEPLOYMENT.AGREE", deployment, FAIL, found, "one lane for all ranks", remedy))
    return checks


def _of_lane(lane: Mapping[str, Any], host: str, options: Schema, variables: Mapping[str, Any]) -> list[Check]:
    """All that a resolved lane says by itself; of a partial one, what its wrong values have no part in."""
    return [
        *apart((lane_checks, limit_checks, budget.checks), lane, host),
        *apart([trap_checks], lane, host, options, variables),
    ]


def address_of(host: str, variables: Mapping[str, Any]) -> str:
    """Where ssh goes: an address, with the port where one is given."""
    address = str(variables.get("ansible_host") or host)
    port = variables.get("ansible_port")
    return f"{address}:{port}" if port else address
