# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Our filters: each a few lines over module_utils/sparklanes, where the rules and their tests are.

All in one file, because this is the place that lets plugins find our package, and Ansible loads plugin files in any order.

To add one: write the function below, with its imports, and name it in `FilterModule.filters`.
"""

# ruff: noqa: E402 - imports of our package follow the lines that let it be found

from __future__ import annotations

import datetime
import functools
import importlib.util
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml
from ansible.errors import AnsibleError, AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.release import __version__ as ansible_version

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    # Ansible's setting module_utils serves modules only; plugins find our package by this.
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.sparklanes.common.checks import Check, failures, named, sentence, table, verdict
from ansible.module_utils.sparklanes.common.files import hash_file
from ansible.module_utils.sparklanes.common.registered import HostVars, said
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.docker import spread
from ansible.module_utils.sparklanes.engine import api as engine_api
from ansible.module_utils.sparklanes.fabric import addresses as fabric_addresses
from ansible.module_utils.sparklanes.fabric import bandwidth
from ansible.module_utils.sparklanes.fabric import reach as fabric_reach
from ansible.module_utils.sparklanes.fabric.fact import fabric_of, fabrics_of
from ansible.module_utils.sparklanes.gates import decoding, exposure, network, preflight
from ansible.module_utils.sparklanes.gates import deployments as gates_deployments
from ansible.module_utils.sparklanes.gates import forcing as gates_forcing
from ansible.module_utils.sparklanes.gates import ground as gates_ground
from ansible.module_utils.sparklanes.gates import health as gates_health
from ansible.module_utils.sparklanes.gates import launch as gates_launch
from ansible.module_utils.sparklanes.gates import reboot as gates_reboot
from ansible.module_utils.sparklanes.gates import restored as gates_restored
from ansible.module_utils.sparklanes.gpu import health as gpu_health
from ansible.module_utils.sparklanes.lane import budget, pin_answers, pin_written
from ansible.module_utils.sparklanes.lane import capacity as lane_capacity
from ansible.module_utils.sparklanes.lane import catalogue as lane_catalogue
from ansible.module_utils.sparklanes.lane import listing as lane_listing
from ansible.module_utils.sparklanes.lane import pin as lane_pin
from ansible.module_utils.sparklanes.lane import render as lane_render
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane import site as lane_site
from ansible.module_utils.sparklanes.lane.catalogue import new_lane
from ansible.module_utils.sparklanes.lane.importers import importing as lane_importing
from ansible.module_utils.sparklanes.quality import records as quality_records
from ansible.module_utils.sparklanes.quality.decode import verdict as decode_verdict
from ansible.module_utils.sparklanes.quality.teacher_forcing import judge as judging
from ansible.module_utils.sparklanes.quality.teacher_forcing import report as teacher_forcing_report
from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import make_bank
from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import named as bank_named
from ansible.module_utils.sparklanes.rank import boot as rank_boot
from ansible.module_utils.sparklanes.rank import checks as rank_checks
from ansible.module_utils.sparklanes.rank import drift, overlays
from ansible.module_utils.sparklanes.rank import spec as rank_spec
from ansible.module_utils.sparklanes.release import archive as release_archive
from ansible.module_utils.sparklanes.release import controller
from ansible.module_utils.sparklanes.release import logs as release_logs
from ansible.module_utils.sparklanes.release import plan as release_plan
from ansible.module_utils.sparklanes.release import prune as release_prune
from ansible.module_utils.sparklanes.release import restore as release_restore
from ansible.module_utils.sparklanes.release import status as release_status
from ansible.module_utils.sparklanes.traps import rules as traps_rules
from ansible.module_utils.sparklanes.weights import pip
from ansible.module_utils.sparklanes.weights.chain import order as chain_order

Given = str | Mapping[str, Any]
Groups = Mapping[str, Sequence[str]]
Dicts = list[dict[str, str]]


def dicts(function: Callable[..., list[Check]]) -> Callable[..., Dicts]:
    """A rule as a filter: its checks as the dicts that YAML hands around."""

    @functools.wraps(function)
    def wrapped(*args: Any, **given: Any) -> Dicts:
        try:
            return [check.to_dict() for check in function(*args, **given)]
        except ValueError as error:
            raise AnsibleFilterError(str(error)) from error

    return wrapped


@functools.cache
def lane_options() -> lane_schema.Schema:
    """The definition of a lane, read from the role's argument specs."""
    text = (ROOT / "roles" / "lane" / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    return lane_schema.schema(yaml.safe_load(text))


def lane_as_written(hostvars: HostVars, host: str) -> dict[str, Any]:
    """The resolved lane of a host: layers merged, types right, defaults filled in. Its models' paths are those of the lane."""
    lane: dict[str, Any]
    lane, checks = lane_schema.resolve(hostvars[host], lane_options(), host)
    wrong = failures(checks)
    if wrong:
        raise AnsibleFilterError("The lane has errors: " + "; ".join(sentence(check) for check in wrong))
    return lane


def lane_of(hostvars: HostVars, host: str) -> dict[str, Any]:
    """The same with each model where this host has it (role model_weights, places), as the rank that is rendered of it mounts it."""
    return dict(lane_render.placed(lane_as_written(hostvars, host), places_of(hostvars, host)))


def places_of(hostvars: HostVars, host: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lane_schema.plain(hostvars[host].get("model_weights_places") or [])
    return found


def models_as_written(hostvars: HostVars, host: str) -> list[dict[str, Any]]:
    """The models of a host's lane at the lane's own paths, as modules take them; none without a lane."""
    if not hostvars[host].get("lane"):
        return []
    lane = lane_as_written(hostvars, host)
    return list(chain_order.models(lane["lane_model"], lane["lane_drafter"]))


def deployment_of(hostvars: HostVars, host: str) -> str:
    return str(hostvars[host].get("deployment") or gates_deployments.DEFAULT)


def models_of(hostvars: HostVars, host: str) -> dict[str, Any]:
    """The models of a host's lane alone. Whatever is wrong with it is said where that host's own rank is rendered."""
    options = {name: lane_options()[name] for name in lane_render.MODELS}
    theirs = {name: hostvars[host][name] for name in hostvars[host] if str(name).startswith(lane_render.MODELS)}
    lane = lane_schema.resolve(theirs, options, host)[0]
    return dict(lane_render.placed(lane, places_of(hostvars, host)))


def lane_rank_spec(hostvars: HostVars, host: str, groups: Groups) -> dict[str, Any]:
    """What a host runs as a rank of its deployment, as the dict that a release freezes."""
    deployment = deployment_of(hostvars, host)
    hosts = list(groups[deployment])
    fabrics = {name: lane_schema.plain(fabric_of(hostvars[name])) for name in hosts}
    try:
        rank = gates_deployments.rank_of(host, hosts)
        lane = lane_of(hostvars, host)
        below = lane_render.below_mounts([lane, *(models_of(hostvars, name) for name in hosts if name != host)])
        spec: dict[str, Any] = lane_render.render_rank(lane, fabrics, deployment, hosts, rank, below)
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


def lane_ranks_text(hostvars: HostVars, hosts: Sequence[str], groups: Groups) -> str:
    """The commands of these ranks, in their order."""
    return "\n\n".join(lane_rank_text(hostvars, host, groups) for host in hosts)


def fabric_file(path: str, host: str) -> dict[str, Any]:
    """The fabric of a host as a file tells it: host → what roce_facts calls fabric."""
    try:
        told = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise AnsibleFilterError(
            f"render_fabric: {path} can't be read: {error}. A render with the Sparks there keeps what it saw"
        ) from error
    found = told.get(host) if isinstance(told, dict) else None
    if not isinstance(found, dict):
        names = ", ".join(map(str, told)) if isinstance(told, dict) else "nothing"
        raise AnsibleFilterError(f"render_fabric: {path} tells of {names}, and not of {host}")
    return found


def lane_rank_drift(hostvars: HostVars, host: str, groups: Groups, running: Mapping[str, Any]) -> str:
    """How what a host runs (the spec of rank_command_info) differs from what the lane renders."""
    ours = lane_rank_spec(hostvars, host, groups)
    return str(drift.report(host, str(ours["deployment"]), ours, lane_schema.plain(running)))


def new_lane_made(folders: Sequence[str], parent: str, name: str, running: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The file of lane `name` and what to say of it: begun from lane `parent` in the first of these folders that has one, or imported.

    running: what rank_command_info told, where `parent` is container:NAME@HOST.
    """
    parent, name = str(parent), str(name)  # without what Ansible attaches to a text
    known = lane_catalogue.known_lanes(map(Path, folders))
    files = [path for folder in folders if (path := Path(folder) / f"lane_{parent}.yml").is_file()]
    if name in known:
        raise AnsibleFilterError(f"lane {name} is there already")
    try:
        if files:
            return {"text": str(new_lane(files[0].read_text(encoding="utf-8"), parent, name)), "report": []}
        lane_catalogue.fit_name(name)
        if lane_importing.container_of(parent):
            imported = lane_importing.of_container(lane_schema.plain(running or {}), name, parent)
        elif lane_importing.is_file(parent):
            imported = lane_importing.of_file(parent, name)
        else:
            raise AnsibleFilterError(
                f"there is no lane and no file {parent}. {did_you_mean(parent, known)} Known: {', '.join(known)}"
            )
        made: dict[str, Any] = lane_importing.written(imported, parent, lane_options())
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error
    return made


def lane_container_named(given: str) -> dict[str, str]:
    """Name and host of container:NAME@HOST, empty for anything else."""
    try:
        return dict(lane_importing.container_of(given))
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


def lane_rank_unlike(hostvars: HostVars, host: str, groups: Groups, path: str) -> str:
    """How what a host would run differs from a recipe or command in a file."""
    ours = lane_rank_spec(hostvars, host, groups)
    try:
        theirs = lane_importing.runs(path)
    except ValueError as error:
        raise AnsibleFilterError(f"render_compare: {error}") from error
    return str(drift.report(host, str(ours["deployment"]), ours, theirs))


def variables_in(path: Path) -> Mapping[str, Any]:
    """The variables of a file as Ansible reads it; templates stay as they are."""
    try:
        told = DataLoader().load_from_file(str(path), unsafe=False) or {}
    except AnsibleError as error:
        raise ValueError(str(error)) from error
    if not isinstance(told, Mapping):
        raise ValueError(f"{path} holds no variables")
    return told


def lanes_text(sources: Sequence[str]) -> str:
    """The lanes of these inventory sources and ours, as a table for people."""
    lanes, unread = lane_listing.found(lane_site.group_vars_folders(sources, ROOT), variables_in, lane_options())
    return "\n".join(lane_listing.text(lanes, unread))


def pin_lane(hostvars: HostVars, groups: Groups, hosts: Sequence[str], sources: Sequence[str]) -> dict[str, Any]:
    """The lane that these hosts have, resolved. What keeps it from being known is said as preflight says it."""
    lanes = {str(hostvars[host].get("lane") or "") for host in hosts}
    if len(lanes) > 1:
        raise AnsibleFilterError(
            f"the Sparks of this run have the lanes {', '.join(sorted(lanes))}. Name one: -e lane=ID, or its deployment: -l NAME"
        )
    folders = lane_site.group_vars_folders(sources, ROOT)
    check = preflight.choice_check(hosts[0], hostvars[hosts[0]], lane_catalogue.known_lanes(folders), "lane")
    if check.status == "pass":
        check = preflight.shared_check(hosts[0], hostvars[hosts[0]], groups, lane_catalogue.known_shared(folders))
    if check.status != "pass":
        raise AnsibleFilterError(sentence(check))
    return lane_of(hostvars, hosts[0])


def pin_questions(
    hostvars: HostVars, groups: Groups, hosts: Sequence[str], sources: Sequence[str], wanted: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """What to ask the Hub and the registry about the lane of these hosts."""
    lane = pin_lane(hostvars, groups, hosts, sources)
    made: dict[str, Any] = lane_pin.questions(lane, pin_wanted(wanted), str(source), os.uname().machine)
    return made


def pin_wanted(wanted: Mapping[str, Any]) -> lane_pin.Wanted:
    texts = {name: str(wanted.get(name) or "").strip() for name in ("model", "drafter", "tag", "architecture")}
    return lane_pin.Wanted(**texts, all=bool(wanted.get("all")))


def pins(
    hostvars: HostVars,
    host: str,
    sources: Sequence[str],
    wanted: Mapping[str, Any],
    hub: Mapping[str, Any],
    image: Mapping[str, Any],
    places: Mapping[str, str],
) -> dict[str, Any]:
    """What came of asking, and the site's file of the lane with it: a table, checks, and what module lane_pin takes."""
    lane = lane_of(hostvars, host)
    hashed = functools.partial(file_on_controller, places)
    made = pin_answers.weigh(
        lane, pin_wanted(wanted), lane_schema.plain(hub), lane_schema.plain(image), hashed, datetime.date.today()
    )
    folder = lane_site.site_folder(sources, ROOT)
    written, problem = pin_written.written(
        lane, made.settings, Path(folder) / "group_vars", lambda name: lane_schema.plain(hostvars[host].get(name))
    )
    if problem:
        made.checks.append(problem)
    checks = lane_site.in_this_site(made.checks, lane_site.shown(folder, ROOT))
    return {
        **written,
        "shown": lane_site.shown(Path(written["path"]), ROOT),
        "table": pin_answers.table(made.rows),
        "notes": made.notes,
        "checks": [check.to_dict() for check in checks],
        "given": {} if problem else made.given,
        "moved": sum(row.now != pin_answers.OPEN and bool(row.becomes) for row in made.rows),
        "open": pin_answers.left_open(made, bool(problem)),
    }


def unreadable_lanes(sources: Sequence[str]) -> list[str]:
    """The site's files of lanes that can't be read, before Ansible reads them."""
    return pin_written.unreadable(Path(lane_site.site_folder(sources, ROOT)) / "group_vars")


def pin_closing(result: Mapping[str, Any], file: Mapping[str, Any], wanted: Mapping[str, Any], confirmed: bool) -> list[str]:
    """What came of it and what to type next."""
    return pin_answers.closing(result, file, pin_wanted(wanted), confirmed)


def file_on_controller(places: Mapping[str, str], files: str, source: str) -> tuple[str, str] | None:
    """sha256 and the time of the last change of an overlay or extra, None where it is not here. places: the folder of each kind."""
    path = Path(str(places[files])).expanduser() / source
    try:
        return hash_file(path), datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).isoformat()
    except OSError:
        return None


def lane_preflight(
    hostvars: HostVars,
    groups: Groups,
    play_hosts: Sequence[str],
    sources: Sequence[str],
    collections: Sequence[str],
    needs: str = "host",
) -> list[dict[str, str]]:
    """The checks of playbooks/preflight.yml. `sources` are the inventory sources, which may bring lanes of their own."""
    folders = lane_site.group_vars_folders(sources, ROOT)
    there = {name: collection_present(name) for name in collections}
    checks = preflight.controller_checks(sys.version_info[:3], ansible_version, there)
    known, shared = lane_catalogue.known_lanes(folders), lane_catalogue.known_shared(folders)
    inline = inline_variables(hostvars)
    lanes = sorted({str(hostvars[host].get("lane") or "") for host in play_hosts} - {""})
    written = lane_listing.written(lanes, folders, variables_in)
    checks += preflight.preflight(hostvars, groups, list(play_hosts), known, lane_options(), needs, inline, shared, written)
    site = lane_site.shown(lane_site.site_folder(sources, ROOT), ROOT)
    elsewhere = [lane_site.shown(path, ROOT) for path in lane_site.unread(sources, ROOT, lanes)]
    checks = lane_site.in_this_site(checks, site) + preflight.unread_checks(elsewhere, site)
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


def checks_named(checks: Sequence[Mapping[str, Any]]) -> str:
    """The failed checks by host and id."""
    return str(named([Check.from_dict(check) for check in checks]))


def site_folder(sources: Sequence[str]) -> str:
    """Where a site writes under these inventory sources."""
    return str(lane_site.site_folder(sources, ROOT))


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


def lane_mounts(lane: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a rank of a lane mounts, nothing where there is no lane."""
    return lane_render.mounts(lane) if lane else []


def lane_needs(lane: Mapping[str, Any]) -> dict[str, list[str]]:
    """Paths and images that the chosen lane needs on a Spark; nothing without a lane."""
    return lane_render.needs(lane) if lane else {"paths": [], "images": []}


@dicts
def gate_a(
    hostvars: HostVars,
    hosts: Sequence[str],
    specs: HostVars,
    lanes: HostVars,
    transaction: str,
    received: float,
    fatal: Sequence[str],
    break_lock: str,
    forget_deaths: bool,
    receipts: str,
) -> list[Check]:
    return gates_launch.gate_a(
        hostvars,
        hosts,
        specs,
        lanes,
        transaction,
        float(received),
        list(fatal),
        break_lock,
        forget_deaths,
        receipts,
        lane_options(),
    )


@dicts
def health(hostvars: HostVars, hosts: Sequence[str], fatal: Sequence[str]) -> list[Check]:
    return gates_health.health(hostvars, hosts, time.time(), list(fatal))


@dicts
def before_reboot(hostvars: HostVars, hosts: Sequence[str], deployment: str, transaction: str) -> list[Check]:
    return gates_reboot.before_reboot(hostvars, hosts, deployment, transaction)


def network_plan(hostvars: HostVars, hosts: Sequence[str], present: bool) -> dict[str, Any]:
    """Rails of each host and the checks of them."""
    made = fabric_addresses.network_plan(hostvars, hosts, present)
    return {**made, "checks": [check.to_dict() for check in made["checks"]]}


def bandwidth_plan(hostvars: HostVars, hosts: Sequence[str]) -> dict[str, Any]:
    """Host → what it serves and what it measures."""
    found: dict[str, Any] = bandwidth.plan(fabrics_of(hostvars, hosts))
    return found


def fabric_probes(hostvars: HostVars, hosts: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Host → what it asks over the fabric: all other ranks on each rail. One rank asks nobody."""
    return fabric_reach.plan(fabrics_of(hostvars, hosts)) if len(hosts) > 1 else {host: [] for host in hosts}


def bandwidth_unfit(hostvars: HostVars, hosts: Sequence[str]) -> str:
    """Why nothing can be measured, empty where it can."""
    return str(bandwidth.unfit(fabrics_of(hostvars, hosts)))


def whole_refusal(hostvars: HostVars, groups: Groups, hosts: Sequence[str], deployment: str) -> str:
    """Why a verb for ranks may not work on the hosts of this run, empty where it may."""
    names = {host: deployment_of(hostvars, host) for host in hosts}
    return str(gates_deployments.whole_refusal(names, groups, hosts, deployment))


def release(hostvars: HostVars, hosts: Sequence[str], settings: Sequence[str]) -> dict[str, Any]:
    """The release of these ranks: its id, its identity, specs and lanes by host."""
    found: dict[str, Any] = release_plan.planned(lane_schema.plain(ranks_of(hostvars, hosts)), hosts, settings)
    return found


def ranks_of(hostvars: HostVars, hosts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What role rank rendered of each host."""
    return {host: {name: hostvars[host][name] for name in ("rank_lane", "rank_bare_spec")} for host in hosts}


def transaction_note(folder: str, transaction: str) -> str:
    """The file in which this controller remembers a transaction that has ended; empty where it remembers another one."""
    return str(controller.forgettable(Path(folder), transaction))


def transaction_id(folder: str, resume: bool = True, remember: bool = True) -> str:
    """The id under which this controller works on a deployment: a new one, or that of its own interrupted run."""
    try:
        return controller.transaction_id(
            Path(folder), os.getpid(), secrets.token_hex(4), resume=bool(resume), remember=bool(remember)
        )
    except OSError as error:
        raise AnsibleFilterError(
            f"{folder}: receipts can't be written there: {error.strerror or error}. Make room for them on this machine, or choose another folder:"
            " -e artifacts_directory=/another/folder"
        ) from error


def pip_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """Arguments of pip: those that anybody may read, and those with a password as variables."""
    try:
        plain, environment = pip.split(lane_schema.plain(arguments))
    except ValueError as error:
        raise AnsibleFilterError(f"model_weights_pip_args: {error}") from error
    return {"arguments": plain, "environment": environment}


def one_time_secret(_: Any) -> str:
    """A new secret at each evaluation: store it at once."""
    return secrets.token_urlsafe(32)


def read_given(data: Given, what: str) -> Mapping[str, Any]:
    """A bank or record, or the path of a file that holds it on the controller: they are megabytes."""
    if isinstance(data, str):
        try:
            data = quality_records.load(str(data))
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
    held = read_given(bank, "bank")
    try:
        made = judging.judge(
            held,
            read_given(record, "record"),
            lane_schema.plain(limits),
            lane_schema.plain(identity),
            str(host),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise AnsibleFilterError(f"teacher forcing could not be judged: {type(error).__name__}: {error}") from error
    return {**made.to_dict(), "bank": bank_named(held), "report": teacher_forcing_report.report(made).splitlines()}


def decode_judge(
    record: Given,
    bank: Given | None = None,
    limits: Mapping[str, Any] | None = None,
    narrow: bool = False,
    host: str = "deployment",
) -> dict[str, Any]:
    """The verdict on a record of decode_score: verdict (pass, fail, inconclusive), reason, checks, cases, lacks. `bank`: a record or ""."""
    try:
        made = decode_verdict.judge(
            read_given(record, "record"),
            read_given(bank, "bank") if bank else None,
            lane_schema.plain(limits),
            bool(narrow),
            str(host),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise AnsibleFilterError(f"decode could not be judged: {error}") from error
    return made.to_dict()


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
    return {**noise, "path": str(path), "bytes": quality_records.dump(str(path), made)} if path else {**made, "noise": noise}


def bank_checks(lane: Mapping[str, Any], path: str, deployment: str, limits: Mapping[str, Any] | None = None) -> list[Check]:
    """Whether the bank of a lane, a file on the controller, can judge it; none where it has no bank. For gate A, before the stop."""
    if not path:
        return []
    bank, problem = None, ""
    try:
        bank = quality_records.load(path)
    except (OSError, ValueError) as error:
        problem = str(error)
    return gates_forcing.bank_checks(deployment, path, bank, problem, lane, lane_schema.plain(limits))


def bank_of_restore(
    current: str, lane: str, judged: Mapping[str, Any], kept: str, place: str, limits: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The bank to judge a restored release of `lane` by. current: path of the lane's bank now, empty for none. kept: path of what was fetched from
    `place` (the Spark and the file of the bank that the release was judged with)."""

    def candidate(path: str, absent: str) -> gates_restored.Candidate:
        if not path or not Path(path).is_file():
            return gates_restored.Candidate(path, problem=absent)
        try:
            return gates_restored.Candidate(path, read_given(path, "bank"))
        except AnsibleFilterError as error:
            return gates_restored.Candidate(path, problem=str(error))

    return gates_restored.choose(
        str(lane),
        lane_schema.plain(judged),
        candidate(str(kept), f"it could not be had from {place}"),
        candidate(str(current), ""),
        lane_schema.plain(limits) or {},
    )


def corpus_texts(folder: str) -> dict[str, Any]:
    """The texts of a corpus: each YAML file of a folder under its name."""
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(Path(str(folder)).glob("*.yml"))}
    if not found:
        raise AnsibleFilterError(
            f"there is no text for a corpus in {folder}: expected text.yml, code.yml, cjk.yml, tools.yml, chat.yml"
        )
    return found


def corpus(lane: Mapping[str, Any], folder: str, max_doc_tokens: int, chat_tokens: int) -> dict[str, Any]:
    """What a corpus is made of: the texts in a folder, and lengths that suit the lane."""
    asked: dict[str, Any] = gates_forcing.corpus(lane, corpus_texts(folder), max_doc_tokens, chat_tokens)
    return asked


def gpu_verdicts(hostvars: HostVars, hosts: Sequence[str], limits: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the runs of gpu_health say of each GPU: checks, table, verdicts."""
    try:
        found: dict[str, Any] = gpu_health.health(hostvars, hosts, lane_schema.plain(limits))
    except (TypeError, ValueError) as error:
        raise AnsibleFilterError(str(error)) from error
    return found


class FilterModule:
    """The table, by room. A filter of several hosts takes hostvars and the hosts, in rank order, and reads what they registered."""

    def filters(self) -> dict[str, Any]:
        return {
            # common
            "sparklanes_checks_failures": checks_failures,
            "sparklanes_checks_named": checks_named,
            "sparklanes_checks_table": checks_table,
            "sparklanes_checks_verdict": checks_verdict,
            "sparklanes_said": said,
            # docker
            "sparklanes_kernels": spread.kernels,
            "sparklanes_lenders": spread.lenders,
            "sparklanes_spreads": spread.spreads,
            "sparklanes_with_image": spread.with_image,
            # engine
            "sparklanes_engine_address": engine_api.address,
            # fabric
            "sparklanes_bandwidth_checks": dicts(bandwidth.judge),
            "sparklanes_bandwidth_plan": bandwidth_plan,
            "sparklanes_bandwidth_unfit": bandwidth_unfit,
            "sparklanes_fabric_probes": fabric_probes,
            "sparklanes_network_kept": fabric_addresses.network_kept,
            "sparklanes_network_plan": network_plan,
            "sparklanes_network_probes": fabric_addresses.network_probes,
            # gates
            "sparklanes_after_reboot": dicts(gates_reboot.after_reboot),
            "sparklanes_alive": dicts(gates_launch.alive),
            "sparklanes_bank_checks": dicts(bank_checks),
            "sparklanes_bank_of_restore": bank_of_restore,
            "sparklanes_before_reboot": before_reboot,
            "sparklanes_gpu_free": dicts(gates_reboot.gpu_free),
            "sparklanes_corpus": corpus,
            "sparklanes_corpus_texts": corpus_texts,
            "sparklanes_decode": decode_judge,
            "sparklanes_doors": exposure.doors,
            "sparklanes_engine": gates_forcing.engine,
            "sparklanes_forcing_said": gates_forcing.said,
            "sparklanes_frozen_engine": gates_forcing.frozen_engine,
            "sparklanes_ground": dicts(gates_ground.ground),
            "sparklanes_gate_a": gate_a,
            "sparklanes_gate_b": dicts(gates_launch.gate_b),
            "sparklanes_health": health,
            "sparklanes_idle": dicts(gates_launch.idle),
            "sparklanes_narrow": decoding.narrow,
            "sparklanes_network_proof": dicts(network.network_proof),
            "sparklanes_other_lane": gates_launch.other_lane,
            "sparklanes_preflight": lane_preflight,
            "sparklanes_rails_kept": dicts(gates_reboot.rails_kept),
            "sparklanes_ranks_alive": dicts(gates_launch.ranks_alive),
            "sparklanes_reach": dicts(gates_launch.reach),
            "sparklanes_reach_plans": gates_launch.reach_plans,
            "sparklanes_restored": gates_restored.proven,
            "sparklanes_serves": gates_launch.serves,
            "sparklanes_whole_refusal": whole_refusal,
            # gpu
            "sparklanes_gpu_health": gpu_verdicts,
            "sparklanes_gpu_measured": gpu_health.measured_before,
            # lane
            "sparklanes_archive_files": lane_archive_files,
            "sparklanes_jit_cache": lane_jit_cache,
            "sparklanes_lane": lane_of,
            "sparklanes_needs": lane_needs,
            "sparklanes_lanes": lanes_text,
            "sparklanes_container_named": lane_container_named,
            "sparklanes_new_lane": new_lane_made,
            "sparklanes_pin_closing": pin_closing,
            "sparklanes_pin_questions": pin_questions,
            "sparklanes_pins": pins,
            "sparklanes_unreadable_lanes": unreadable_lanes,
            "sparklanes_site_folder": site_folder,
            "sparklanes_rank_drift": lane_rank_drift,
            "sparklanes_rank_unlike": lane_rank_unlike,
            "sparklanes_rank_spec": lane_rank_spec,
            "sparklanes_fabric_file": fabric_file,
            "sparklanes_fabrics": fabrics_of,
            "sparklanes_ranks_text": lane_ranks_text,
            # quality
            "sparklanes_bank": teacher_forcing_bank,
            "sparklanes_teacher_forcing": teacher_forcing_judge,
            # rank
            "sparklanes_boot_seconds": rank_boot.boot_seconds,
            "sparklanes_cold": rank_boot.cold,
            "sparklanes_overlays": overlay_plan,
            # release
            "sparklanes_archive_lines": lane_restore_lines,
            "sparklanes_interrupted": controller.interrupted,
            "sparklanes_lock_is_back": controller.lock_is_back,
            "sparklanes_log_fetched": release_logs.fetched,
            "sparklanes_logs": release_logs.sentence,
            "sparklanes_logs_to_fetch": release_logs.to_fetch,
            "sparklanes_lost": controller.lost,
            "sparklanes_note": transaction_note,
            "sparklanes_prune_table": release_prune.table,
            "sparklanes_content_in_doubt": release_restore.content_in_doubt,
            "sparklanes_standing": release_restore.what_stands,
            "sparklanes_reason": release_restore.why_it_failed,
            "sparklanes_release": release,
            "sparklanes_restore": release_restore.what_to_restore,
            "sparklanes_at_rest": controller.at_rest,
            "sparklanes_askable": release_status.askable,
            "sparklanes_status": release_status.status,
            "sparklanes_transaction_id": transaction_id,
            # weights
            "sparklanes_borrowed": chain_order.borrowed,
            "sparklanes_chain_order": chain_order.chain_order,
            "sparklanes_chain_peers": chain_order.chain_peers,
            "sparklanes_complete_on": chain_order.complete_on,
            "sparklanes_fabric_addresses": chain_order.fabric_addresses,
            "sparklanes_management_addresses": chain_order.management_addresses,
            "sparklanes_models": chain_order.models,
            "sparklanes_models_as_written": models_as_written,
            "sparklanes_mounts": lane_mounts,
            "sparklanes_one_time_secret": one_time_secret,
            "sparklanes_pip": pip_arguments,
            "sparklanes_weights_held": chain_order.held,
            "sparklanes_weights_lack": chain_order.lack,
            "sparklanes_weights_now": chain_order.now,
            "sparklanes_weights_servers": chain_order.servers,
            "sparklanes_weights_table": chain_order.table,
        }
