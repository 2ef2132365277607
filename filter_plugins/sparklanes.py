# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Our filters: each a line or two over module_utils/sparklanes, where the rules and their tests are.

To add one: write the function below, with its imports, and name it in `FilterModule.filters`.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
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

from ansible.module_utils.sparklanes import deployments, lane_schema, lanes, overlays, preflight  # noqa: E402
from ansible.module_utils.sparklanes.checks import Check, failures, sentence, table, verdict  # noqa: E402

HostVars = Mapping[str, Mapping[str, Any]]
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
    return str(hostvars[host].get("deployment") or deployments.DEFAULT)


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
        rank = deployments.rank_of(host, hosts)
        spec: dict[str, Any] = lanes.render_rank(lane_of(hostvars, host), fabrics, deployment, hosts, rank)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error
    return spec


def lane_rank_text(hostvars: HostVars, host: str, groups: Groups) -> str:
    """The command of a rank for people, with what they should know above it."""
    spec = lane_rank_spec(hostvars, host, groups)
    return f"{lanes.describe(lane_of(hostvars, host), spec)}\n{lanes.command_text(spec)}"


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
    known = lanes.known_lanes(folders)
    checks += preflight.preflight(hostvars, groups, list(play_hosts), known, lane_options(), needs, inline_variables(hostvars))
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


class FilterModule:
    """The table."""

    def filters(self) -> dict[str, Any]:
        return {
            "checks_failures": checks_failures,
            "checks_table": checks_table,
            "checks_verdict": checks_verdict,
            "docker_create_text": lanes.command_text,
            "lane_of": lane_of,
            "lane_preflight": lane_preflight,
            "lane_rank_spec": lane_rank_spec,
            "lane_rank_text": lane_rank_text,
            "overlay_plan": overlay_plan,
        }
