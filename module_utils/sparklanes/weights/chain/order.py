# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What role model_weights reads from a lane and from what its hosts registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.registered import look, words

KEYS = ("path", "repo", "revision", "sha256", "expect", "config_sha256", "bad_sha256")


def models(model: Mapping[str, Any], drafter: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """lane_model and lane_drafter as module model_stage takes them. An empty one is left out."""
    named = (("model", model), ("drafter", drafter))
    return [{"name": name, **{key: one[key] for key in KEYS if one.get(key)}} for name, one in named if one]


def borrowed(asked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same as module model_lend takes them."""
    return [{key: one[key] for key in ("name", "path", "repo", "revision") if key in one} for one in asked]


def now(result: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """What a Spark has, by the last job that worked on it and, where that told less (it failed), by the look before it.

    What a job that failed says of itself (`failed`, `msg`) stays; it never makes models complete.
    """
    told = dict(result) if isinstance(result, Mapping) else {"failed": True, "msg": look(result).problem}
    if look(result).facts is None:
        told["staged"] = False
    return {**before, **told}


def complete_on(hostvars: Mapping[str, Any], ranks: Sequence[str], result: str) -> list[str]:
    """The ranks, in order, whose registered `result` says that all models are complete."""
    return [rank for rank in ranks if _staged(hostvars[rank].get(result))]


def _staged(result: Any) -> bool:
    return (look(result).facts or {}).get("staged") is True


def fabric_addresses(hostvars: Mapping[str, Any], ranks: Sequence[str]) -> list[str]:
    """Fabric addresses of the ranks that have one."""
    found = [(hostvars[rank].get("roce_fabric") or {}).get("host_ip") for rank in ranks]
    return [str(address) for address in found if address]


def management_addresses(hostvars: Mapping[str, Any], ranks: Sequence[str]) -> list[str]:
    """Addresses of the ranks in the management network, as the inventory has them."""
    names = ("model_weights_management_address", "ansible_host")
    return [str(next((hostvars[rank][name] for name in names if hostvars[rank].get(name)), rank)) for rank in ranks]


def chain_order(ranks: Sequence[str], complete: Sequence[str]) -> list[str]:
    """The chain: those that have it all, then the others, as the ranks stand."""
    return [*complete, *(rank for rank in ranks if rank not in complete)]


def chain_peers(hostvars: Mapping[str, Any], order: Sequence[str], host: str, lent: str) -> list[dict[str, str]]:
    """Whom a Spark takes from: those before it in the chain that lend, the nearest first; over the management network last."""
    before = reversed(order[: order.index(host)])
    found = [(name, (look(hostvars[name].get(lent)).facts or {}).get("urls") or []) for name in before]
    fabric = [{"name": name, "url": urls[0]} for name, urls in found if urls]
    return fabric + [{"name": f"{name} (management network)", "url": urls[1]} for name, urls in found if len(urls) > 1]


def servers(hostvars: Mapping[str, Any], ranks: Sequence[str], result: str) -> list[str]:
    """The file servers that hold the models of the ranks; empty where each has them on its own disk."""
    # A job that failed has seen the disks all the same.
    looks = [_mappings(one.get("models")) for rank in ranks if isinstance(one := hostvars[rank].get(result), Mapping)]
    return sorted({str(model["server"]) for models in looks for model in models if model.get("server")})


def lack(result: Mapping[str, Any], host: str) -> str:
    """Why a Spark does not have all models, and what it lacks."""
    parts = []
    for model in _mappings(result.get("models")):
        if not model.get("staged"):
            files = f"{model['lacking']} files ({model['lacks']})" if model.get("lacking") else "files, or their proof"
            parts.append(f"{model['name']} in {model['path']} lacks {files}")
    told = [
        f"{check['found']}; expected {check['expected']}"
        for check in _mappings(result.get("checks"))
        if check.get("status") == "fail"
    ]
    why = words(result) or "; ".join(told[:3]) or "nobody said why"
    text = f"{host}: {'; '.join(parts) or 'not known what it has'}. {why.removeprefix(f'{host}: ')}"
    return f"{text}. Mend that and run this again: what is verified stays"


def _mappings(items: Any) -> list[Mapping[str, Any]]:
    return [one for one in items if isinstance(one, Mapping)] if isinstance(items, list) else []


def table(hostvars: Mapping[str, Any], ranks: Sequence[str], result: str, asked: Sequence[str]) -> list[str]:
    """A line a Spark, where not all have everything. `asked`: the hosts of this play."""
    here = {rank: hostvars[rank].get(result) for rank in ranks if rank in asked}
    if all(_staged(one) for one in here.values()):
        return []
    lines = []
    for rank, one in here.items():
        seen = look(one)
        if _staged(one):
            lines.append(f"{rank}: complete")
        elif seen.facts is None and not seen.broke:
            lines.append(f"{rank}: did not answer")
        else:
            lines.append(lack(one if isinstance(one, Mapping) else {"msg": seen.problem}, rank))
    return lines
