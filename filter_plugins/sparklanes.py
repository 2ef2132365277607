# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Our filters: each a few lines over module_utils/sparklanes, where the rules and their tests are.

All in one file, because this is the place that lets plugins find our package, and Ansible loads plugin files in any order.

To add one: write the function below, with its imports, and name it in `FilterModule.filters`.
"""

# ruff: noqa: E402 - imports of our package follow the lines that let it be found

from __future__ import annotations

import functools
import importlib.util
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml
from ansible.errors import AnsibleFilterError
from ansible.release import __version__ as ansible_version

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    # Ansible's setting module_utils serves modules only; plugins find our package by this.
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.sparklanes.common.checks import Check, failures, sentence, table, verdict
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.fabric import bandwidth
from ansible.module_utils.sparklanes.fabric import reach as fabric_reach
from ansible.module_utils.sparklanes.gates import deployments as gates_deployments
from ansible.module_utils.sparklanes.gates import hosts as gates_hosts
from ansible.module_utils.sparklanes.gates import launch as gates_launch
from ansible.module_utils.sparklanes.gates import preflight
from ansible.module_utils.sparklanes.gpu import health as gpu_health
from ansible.module_utils.sparklanes.lane import budget
from ansible.module_utils.sparklanes.lane import capacity as lane_capacity
from ansible.module_utils.sparklanes.lane import catalogue as lane_catalogue
from ansible.module_utils.sparklanes.lane import render as lane_render
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane.catalogue import new_lane
from ansible.module_utils.sparklanes.quality.teacher_forcing import judge as judging
from ansible.module_utils.sparklanes.quality.teacher_forcing import report as teacher_forcing_report
from ansible.module_utils.sparklanes.quality.teacher_forcing import score as teacher_forcing_score
from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import make_bank
from ansible.module_utils.sparklanes.rank import checks as rank_checks
from ansible.module_utils.sparklanes.rank import drift, overlays
from ansible.module_utils.sparklanes.rank import spec as rank_spec
from ansible.module_utils.sparklanes.release import archive as release_archive
from ansible.module_utils.sparklanes.release import controller
from ansible.module_utils.sparklanes.release import prune as release_prune
from ansible.module_utils.sparklanes.traps import rules as traps_rules
from ansible.module_utils.sparklanes.weights.chain import order as chain_order

HostVars = Mapping[str, Mapping[str, Any]]
Given = str | Mapping[str, Any]
Groups = Mapping[str, Sequence[str]]


@functools.cache
def lane_options() -> lane_schema.Schema:
    """The definition of a lane, read from the role's argument specs."""
    text = (ROOT / "roles" / "lane" / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    return lane_schema.schema(yaml.safe_load(text))


def lane_of(hostvars: HostVars, host: str) -> dict[str, Any]:
    """The resolved lane of a host: layers merged, types right, defaults filled in."""
    lane: dict[str, Any]
    lane, checks = lane_schema.resolve(hostvars[host], lane_options(), host)
    wrong = failures(checks)
    if wrong:
        raise AnsibleFilterError("The lane has errors: " + "; ".join(sentence(check) for check in wrong))
    return lane


def deployment_of(hostvars: HostVars, host: str) -> str:
    return str(hostvars[host].get("deployment") or gates_deployments.DEFAULT)


def fabric_of(hostvars: HostVars, host: str) -> dict[str, Any]:
    """The fact of role roce, empty before it was gathered."""
    variables = hostvars[host]
    facts = variables.get("roce_fabric") or (variables.get("ansible_facts") or {}).get("roce_fabric") or {}
    fabric: dict[str, Any] = lane_schema.plain(facts)
    return fabric


def lane_rank_spec(hostvars: HostVars, host: str, groups: Groups) -> dict[str, Any]:
    """What a host runs as a rank of its deployment, as the dict that a release freezes."""
    deployment = deployment_of(hostvars, host)
    hosts = list(groups[deployment])
    fabrics = {name: fabric_of(hostvars, name) for name in hosts}
    try:
        rank = gates_deployments.rank_of(host, hosts)
        spec: dict[str, Any] = lane_render.render_rank(lane_of(hostvars, host), fabrics, deployment, hosts, rank)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error
    wrong = failures(rank_checks.rank_checks(spec))
    if wrong:
        raise AnsibleFilterError("The rank has errors: " + "; ".join(sentence(check) for check in wrong))
    return spec


def lane_rank_text(hostvars: HostVars, host: str, groups: Groups) -> str:
    """The command of a rank for people, with what they should know above it."""
    spec, lane = lane_rank_spec(hostvars, host, groups), lane_of(hostvars, host)
    lines = lane_render.describe(lane, spec).splitlines()
    if spec["rank"] == 0:
        fits = ["", "What fits:", *lane_capacity.text(lane), "", "Memory of the worst rank:", *budget.text(lane)]
        known = traps_rules.notes(lane, lane_options())
        lines += [f"# {line}".rstrip() for line in [*fits, *(["", "Good to know:", *known] if known else [])]]
    return "\n".join([*lines, rank_spec.command_text(spec)])


def lane_rank_drift(hostvars: HostVars, host: str, groups: Groups, running: Mapping[str, Any]) -> str:
    """How what a host runs (the spec of rank_command_info) differs from what the lane renders."""
    ours = lane_rank_spec(hostvars, host, groups)
    return str(drift.report(host, str(ours["deployment"]), ours, lane_schema.plain(running)))


def new_lane_text(folders: Sequence[str], parent: str, name: str) -> str:
    """The file of lane `name`, begun from that of `parent` in the first of these folders that has one."""
    known = lane_catalogue.known_lanes(map(Path, folders))
    files = [path for folder in folders if (path := Path(folder) / f"lane_{parent}.yml").is_file()]
    if not files:
        raise AnsibleFilterError(f"there is no lane {parent}. {did_you_mean(parent, known)} Known: {', '.join(known)}")
    if name in known:
        raise AnsibleFilterError(f"lane {name} is there already")
    try:
        return str(new_lane(files[0].read_text(encoding="utf-8"), parent, name))
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


def lane_preflight(
    hostvars: HostVars,
    groups: Groups,
    play_hosts: Sequence[str],
    sources: Sequence[str],
    collections: Sequence[str],
    needs: str = "host",
) -> list[dict[str, str]]:
    """The checks of playbooks/preflight.yml. `sources` are the inventory sources, which may bring lanes of their own."""
    folders = [ROOT / "group_vars"]
    for source in map(Path, sources):
        folders.append((source if source.is_dir() else source.parent) / "group_vars")
    there = {name: collection_present(name) for name in collections}
    checks = preflight.controller_checks(sys.version_info[:3], ansible_version, there)
    known, shared = lane_catalogue.known_lanes(folders), lane_catalogue.known_shared(folders)
    inline = inline_variables(hostvars)
    checks += preflight.preflight(hostvars, groups, list(play_hosts), known, lane_options(), needs, inline, shared)
    return [check.to_dict() for check in checks]


def inline_variables(hostvars: HostVars) -> dict[str, dict[str, Any]]:
    """Group → its variables inside inventory files. Ansible tells this only to itself; without it, one warning is lost."""
    inventory = getattr(hostvars, "_inventory", None)
    return {name: group.vars for name, group in inventory.groups.items()} if inventory else {}


def collection_present(name: str) -> bool:
    """Ansible's own loader finds the collection."""
    try:
        return importlib.util.find_spec(f"ansible_collections.{name}") is not None
    except ImportError:
        return False


def checks_verdict(checks: Sequence[Mapping[str, Any]]) -> str:
    return str(verdict([Check.from_dict(check) for check in checks]))


def checks_table(checks: Sequence[Mapping[str, Any]], hosts: Sequence[str] | None = None) -> str:
    return str(table([Check.from_dict(check) for check in checks], hosts))


def checks_failures(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each failed check."""
    return [sentence(check) for check in failures([Check.from_dict(check) for check in checks])]


def overlay_plan(
    files: Sequence[Mapping[str, Any]],
    extras: Sequence[Mapping[str, Any]],
    folder: str,
    project: str,
    protected: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The overlays and extras of a lane with their places on this controller, hashes compared."""
    found, wrong = overlays.plan(files, extras, folder, project)
    wrong += overlays.faults(found, protected)
    if wrong:
        raise AnsibleFilterError("The lane's files: " + "; ".join(wrong))
    return [file.to_dict() for file in found]


def lane_jit_cache(lane: Mapping[str, Any]) -> str:
    """Folder of a lane's compiled kernels on a Spark, empty where it keeps none."""
    return lane_render.jit_cache(lane)


def lane_archive_files(lane: Mapping[str, Any]) -> list[dict[str, str]]:
    """Overlays and extras of a lane with their names in an archive and their places on a Spark."""
    return lane_render.archive_files(lane)


def lane_restore_lines(archived: Mapping[str, Any]) -> str:
    """What a site writes to use an archive. `archived`: the result of lane_archive's job."""
    return release_archive.restore_lines(archived["folder"], archived["image"], archived["image_sha256"])


def lane_needs(lane: Mapping[str, Any]) -> dict[str, list[str]]:
    """Paths and images that the chosen lane needs on a Spark; nothing without a lane."""
    return lane_render.needs(lane) if lane else {"paths": [], "images": []}


def gate_images(registered: Mapping[str, Any], lanes_: Mapping[str, Any], specs: Mapping[str, Any]) -> list[dict[str, str]]:
    """Whether the image holds what the lane says it does."""
    return gates_launch.images(registered, lanes_, specs)


def gate_a(
    registered: gates_launch.Facts,
    specs: gates_launch.Facts,
    staging: gates_launch.Facts,
    fabrics: gates_launch.Facts,
    transaction: str,
    break_lock: bool = False,
    forget_deaths: bool = False,
) -> list[dict[str, str]]:
    return gates_launch.gate_a(registered, specs, staging, fabrics, transaction, time.time(), break_lock, forget_deaths)


def hosts_kept(
    registered: gates_launch.Facts,
    lanes_settings: gates_launch.Facts,
    fatal: Sequence[str],
    swappiness: gates_launch.Facts | None = None,
    launch: bool = False,
) -> list[dict[str, str]]:
    try:
        return gates_hosts.hosts_kept(registered, lanes_settings, time.time(), list(fatal), swappiness, bool(launch))
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


def health(hostvars: HostVars, hosts: Sequence[str], fatal: Sequence[str]) -> list[dict[str, str]]:
    """The checks of playbooks/health.yml, from what it registered."""
    looks = {}
    for host in hosts:
        known = hostvars[host]
        readiness, lane = known.get("health_readiness") or {}, str(known.get("lane") or "")
        looks[host] = {
            **{part: known.get(f"health_{part}") or {} for part in ("readiness", "host", "memory")},
            "roce": known.get("__roce_found") or {},
            "fabric": fabric_of(hostvars, host),
            "lane": {name: known[name] for name in gates_hosts.LANE_SETTINGS if name in known} if lane else {},
            "other_lane": gates_launch.other_lane(readiness, lane),
        }
    try:
        return gates_hosts.health(looks, time.time(), list(fatal))
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


def before_reboot(registered: gates_launch.Facts, deployment: str, transaction: str) -> list[dict[str, str]]:
    return gates_hosts.before_reboot(registered, str(deployment), str(transaction), time.time())


def transaction_id(folder: str, resume: bool = True, remember: bool = True) -> str:
    """The id under which this controller works on a deployment: a new one, or that of its own interrupted run."""
    try:
        return controller.transaction_id(
            Path(folder), os.getpid(), secrets.token_hex(4), resume=bool(resume), remember=bool(remember)
        )
    except OSError as error:
        raise AnsibleFilterError(f"{folder}: receipts can't be written there: {error}") from error


def one_time_secret(_: Any) -> str:
    """A new secret at each evaluation: store it at once."""
    return secrets.token_urlsafe(32)


def read_given(data: Given, what: str) -> Mapping[str, Any]:
    """A bank or record, or the path of a file that holds it on the controller: they are megabytes."""
    if isinstance(data, str):
        try:
            data = teacher_forcing_score.load(str(data))
        except (OSError, ValueError) as error:
            raise AnsibleFilterError(f"the {what} {data} can't be read: {error}") from error
    if not isinstance(data, Mapping):
        raise AnsibleFilterError(f"the {what} is no object but a {type(data).__name__}")
    return data


def teacher_forcing_judge(
    bank: Given,
    record: Given,
    limits: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
    host: str = "deployment",
) -> dict[str, Any]:
    """The verdict on a record: verdict (pass, fail, invalid), reason, checks, statistics, report (lines for a person)."""
    try:
        made = judging.judge(
            read_given(bank, "bank"),
            read_given(record, "record"),
            lane_schema.plain(limits),
            lane_schema.plain(identity),
            str(host),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise AnsibleFilterError(f"teacher forcing could not be judged: {type(error).__name__}: {error}") from error
    return {**made.to_dict(), "report": teacher_forcing_report.report(made).splitlines()}


def teacher_forcing_bank(
    records: Sequence[Given], engine: Mapping[str, Any], limits: Mapping[str, Any] | None = None, path: str | None = None
) -> dict[str, Any]:
    """A bank from records of the reference. With `path` it is written there, and what is returned is its noise."""
    try:
        made = make_bank(
            [read_given(record, "record") for record in records], lane_schema.plain(engine), lane_schema.plain(limits)
        )
        noise = teacher_forcing_report.floor_report(made)
    except (ValueError, KeyError) as error:
        raise AnsibleFilterError(f"no bank can be made: {error}") from error
    return (
        {**noise, "path": str(path), "bytes": teacher_forcing_score.dump(str(path), made)} if path else {**made, "noise": noise}
    )


def teacher_forcing_source(folder: str) -> dict[str, Any]:
    """The texts of a corpus: each YAML file of a folder under its name."""
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(Path(str(folder)).glob("*.yml"))}
    if not found:
        raise AnsibleFilterError(
            f"there is no text for a corpus in {folder}: expected text.yml, code.yml, cjk.yml, tools.yml, chat.yml"
        )
    return found


def gpu_verdicts(registered: HostVars, known: HostVars, limits: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the runs of gpu_health say of each GPU: checks, table, verdicts."""
    try:
        found: dict[str, Any] = gpu_health.assess(registered, known, lane_schema.plain(limits))
    except (TypeError, ValueError) as error:
        raise AnsibleFilterError(str(error)) from error
    return found


class FilterModule:
    """The table."""

    def filters(self) -> dict[str, Any]:
        return {
            "checks_failures": checks_failures,
            "checks_table": checks_table,
            "checks_verdict": checks_verdict,
            "docker_create_text": rank_spec.command_text,
            "lane_of": lane_of,
            "lane_preflight": lane_preflight,
            "lane_rank_drift": lane_rank_drift,
            "lane_rank_spec": lane_rank_spec,
            "lane_rank_text": lane_rank_text,
            "new_lane_text": new_lane_text,
            "overlay_plan": overlay_plan,
            "sparklanes_after_reboot": gates_hosts.after_reboot,
            "sparklanes_before_reboot": before_reboot,
            "sparklanes_bandwidth_checks": gates_launch.bandwidth_checks,
            "sparklanes_bandwidth_plan": bandwidth.plan,
            "sparklanes_bandwidth_unfit": bandwidth.unfit,
            "sparklanes_idle": gates_launch.idle,
            "sparklanes_borrowed": chain_order.borrowed,
            "sparklanes_budgets": gates_launch.budgets,
            "sparklanes_chain_order": chain_order.chain_order,
            "sparklanes_chain_peers": chain_order.chain_peers,
            "sparklanes_complete_on": chain_order.complete_on,
            "sparklanes_fabric_plans": fabric_reach.plans,
            "sparklanes_fabric_addresses": chain_order.fabric_addresses,
            "sparklanes_gate_a": gate_a,
            "sparklanes_gate_images": gate_images,
            "lane_archive_files": lane_archive_files,
            "lane_jit_cache": lane_jit_cache,
            "lane_needs": lane_needs,
            "lane_restore_lines": lane_restore_lines,
            "prune_table": release_prune.table,
            "sparklanes_gate_b": gates_launch.gate_b,
            "sparklanes_gpu_free": gates_hosts.gpu_free,
            "sparklanes_gpu_health": gpu_verdicts,
            "sparklanes_health": health,
            "sparklanes_hosts_kept": hosts_kept,
            "sparklanes_identities": gates_launch.identities,
            "sparklanes_management_addresses": chain_order.management_addresses,
            "sparklanes_models": chain_order.models,
            "sparklanes_one_time_secret": one_time_secret,
            "sparklanes_network_plan": gates_launch.network_plan,
            "sparklanes_network_probes": gates_launch.network_probes,
            "sparklanes_network_proof": gates_launch.network_proof,
            "sparklanes_other_lane": gates_launch.other_lane,
            "sparklanes_ranks_alive": gates_launch.ranks_alive,
            "sparklanes_rails_kept": gates_hosts.rails_kept,
            "sparklanes_reach": gates_launch.reach,
            "sparklanes_reason": gates_launch.reason,
            "sparklanes_release_id": gates_launch.release_id,
            "sparklanes_restore": gates_launch.what_to_restore,
            "sparklanes_serves": gates_launch.serves,
            "sparklanes_staging": gates_launch.staging_of,
            "sparklanes_status": gates_launch.status_lines,
            "sparklanes_transaction_id": transaction_id,
            "sparklanes_weights_lack": chain_order.lack,
            "sparklanes_weights_now": chain_order.now,
            "sparklanes_weights_servers": chain_order.servers,
            "sparklanes_weights_table": chain_order.table,
            "teacher_forcing_bank": teacher_forcing_bank,
            "teacher_forcing_judge": teacher_forcing_judge,
            "teacher_forcing_source": teacher_forcing_source,
        }
