# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What role model_weights reads from a lane and from what its hosts registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.registered import look, words
from ansible.module_utils.sparklanes.fabric import fact

KEYS = ("path", "repo", "revision", "sha256", "expect", "config_sha256", "bad_sha256")


def models(
    model: Mapping[str, Any], drafter: Mapping[str, Any] | None = None, mounts: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """lane_model and lane_drafter as module model_stage takes them. An empty one is left out. mounts: all that their rank mounts, where it is known."""
    named = (("model", model), ("drafter", drafter))
    shown = {"mounts": [{"source": one["source"], "target": one["target"]} for one in mounts]} if mounts else {}
    return [{"name": name, **{key: one[key] for key in KEYS if one.get(key)}, **shown} for name, one in named if one]


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


def held(hostvars: Mapping[str, Any], ranks: Sequence[str]) -> list[str]:
    """The ranks, in order, that have the model itself in a Hub cache: it need not come from anywhere, were it still to be read."""
    places = {rank: _mappings(hostvars[rank].get("model_weights_places")) for rank in ranks}
    return [rank for rank in ranks if any(one.get("cached") and one.get("name") == "model" for one in places[rank])]


def _staged(result: Any) -> bool:
    return (look(result).facts or {}).get("staged") is True


def fabric_addresses(hostvars: Mapping[str, Any], ranks: Sequence[str]) -> list[str]:
    """Addresses of the ranks on the fabric: of their rails, never the control address, which may be on the management network."""
    return [address for rank in ranks for address in fact.fabric_addresses(fact.fabric_of(hostvars[rank]))]


def management_addresses(hostvars: Mapping[str, Any], ranks: Sequence[str]) -> list[str]:
    """Addresses of the ranks in the management network, as the inventory has them."""
    names = ("model_weights_management_address", "ansible_host")
    return [str(next((hostvars[rank][name] for name in names if hostvars[rank].get(name)), rank)) for rank in ranks]


def chain_order(ranks: Sequence[str], complete: Sequence[str], hostvars: Mapping[str, Any] | None = None) -> list[str]:
    """The chain: those that have it all, then the others, as the ranks stand, and where cables join two each, as the cables go.

    A rank that no cable joins with any before it comes last, as it can't take anything over the fabric.
    """
    if not hostvars or not any(fact.is_ring(fact.fabric_of(hostvars[rank])) for rank in ranks):
        return [*complete, *(rank for rank in ranks if rank not in complete)]
    fabrics = fact.fabrics_of(hostvars, ranks)
    order = list(complete) or list(ranks[:1])
    left = [rank for rank in ranks if rank not in order]
    while left:
        joined = [(-order.index(one), rank) for rank in left for one in order if fact.address_for(fabrics[one], fabrics[rank])]
        # The one that hangs at the latest of the chain, so that the chain is long and each lends to one.
        after = min(joined, key=lambda pair: (pair[0], ranks.index(pair[1])))[1] if joined else left[0]
        order.append(after)
        left.remove(after)
    return order


def chain_peers(hostvars: Mapping[str, Any], order: Sequence[str], host: str, lent: str) -> list[dict[str, str]]:
    """Whom a Spark takes from: those before it in the chain that lend and that a cable or a switch joins with it, the nearest first.

    Over the management network last: that is what is lent at an address which is none of a rail.
    """
    mine = fact.fabric_of(hostvars[host])
    fabric: list[dict[str, str]] = []
    management: list[dict[str, str]] = []
    for name in reversed(order[: order.index(host)]):
        urls = [str(url) for url in (look(hostvars[name].get(lent)).facts or {}).get("urls") or []]
        theirs = fact.fabric_of(hostvars[name])
        at = fact.address_for(theirs, mine)
        fabric += [{"name": name, "url": url} for url in urls if at and address_in(url) == at][:1]
        rails = fact.fabric_addresses(theirs)
        others = [{"name": f"{name} (management network)", "url": url} for url in urls if address_in(url) not in rails]
        management += others[:1]
    return fabric + management


def address_in(url: str) -> str:
    """The address in rsync://USER@ADDRESS:PORT."""
    return url.rpartition("@")[2].rpartition(":")[0].strip("[]")


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
