# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A lane as rules and as commands: what it may say, and what each rank of it runs.

The lanes that come in here are resolved (`lane_schema.resolve`): layers merged, typed,
defaults filled in. The spec of a rank that goes out is plain JSON, frozen in a release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, Fault, as_checks
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.engine.flags import DERIVED_FLAGS, FLAT_FLAGS, HEAD_FLAGS, canonical_flag
from ansible.module_utils.sparklanes.fabric.names import FABRIC_ONLY
from ansible.module_utils.sparklanes.lane.schema import SITE_FILE
from ansible.module_utils.sparklanes.rank.spec import overlay_path

SCHEMA = "sparklanes-rank/1"
JIT_ROOT = "/var/lib/sparklanes/jit"
JIT_TARGET = "/jit"

# Environment that belongs to a host's fabric or to its rank: never in a lane.
FABRIC_ENV = (
    *FABRIC_ONLY,
    "MN_IF_NAME",
    "VLLM_HOST_IP",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
)
FABRIC_SOURCES = (
    "rank",
    "world_size",
    "host_ip",
    "ifname",
    "master_addr",
    "master_port",
    "hca",
    "hcas",
    "gid_index",
    "network",
)

_FLAG = re.compile(r"--[a-z0-9][A-Za-z0-9.-]*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(?:^|_)(?:TOKEN|API_KEY|SECRET|PASSWORD|PASSWD)$")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REVISION = re.compile(r"[0-9a-f]{40}")

RULES = {
    "LANE.FLAGS": "every flag has one spelling",
    "LANE.ENV": "no fabric, no secrets, no empty values",
    "LANE.WORLD": "one rank a host",
    "LANE.FILES": "well-formed hashes and mounts",
}


# --- what is there ---------------------------------------------------------------------------------------------


def known_lanes(folders: Iterable[Path]) -> list[str]:
    """The lanes that these group_vars folders define."""
    return _known(folders, "lane")


def known_shared(folders: Sequence[Path]) -> list[str]:
    """What lanes may share, as groups: family_<id> and kit_<id>."""
    return [f"{kind}_{name}" for kind in ("family", "kit") for name in _known(folders, kind)]


def _known(folders: Iterable[Path], kind: str) -> list[str]:
    found = set()
    for folder in folders:
        for entry in folder.glob(f"{kind}_*"):
            # Ansible turns other characters of a group's name into _, and would not find the file.
            name = re.fullmatch(rf"{kind}_(\w+)(?:\.ya?ml|\.json)?", entry.name, re.ASCII)
            if name:
                found.add(name[1])
    return sorted(found)


# --- rules -----------------------------------------------------------------------------------------------------


def lane_checks(lane: Mapping[str, Any], host: str) -> list[Check]:
    """What a resolved lane says that no rank could honour."""
    faults = [*_flag_faults(lane), *_env_faults(lane), *_world_faults(lane), *_file_faults(lane)]
    checks: list[Check] = as_checks(faults, host, RULES)
    return checks


def _flag_faults(lane: Mapping[str, Any]) -> Iterator[Fault]:
    args, spelled = lane["lane_engine_args"], {**FLAT_FLAGS, **HEAD_FLAGS}
    seen: dict[str, str] = {}
    for flag, value in args.items():
        name = canonical_flag(flag)
        if not _FLAG.fullmatch(name):
            yield Fault("LANE.FLAGS", f"{flag!r} in lane_engine_args is no long flag", "--name-of-flag", _long_flag_hint(flag))
        elif name in spelled:
            yield Fault(
                "LANE.FLAGS", f"{flag} stands in lane_engine_args", f"only {spelled[name]}", f"Set {spelled[name]} instead."
            )
        elif name in DERIVED_FLAGS:
            yield Fault("LANE.FLAGS", f"{flag} stands in lane_engine_args", f"no such entry: {DERIVED_FLAGS[name]}", "Remove it.")
        elif name in seen:
            yield Fault("LANE.FLAGS", f"{flag} and {seen[name]} are one flag", "one of them", f"Remove {flag}.")
        elif value is False:
            yield Fault(
                "LANE.FLAGS",
                f"{flag} is false, which no flag can say",
                "true, a value, or null to remove it",
                f"Write {flag}: null, or the engine's own --no-{name[2:]}: true.",
            )
        elif value in ("", []) or (isinstance(value, list) and any(item in ("", None) for item in value)):
            yield Fault("LANE.FLAGS", f"{flag} has an empty value", "a value, or null to remove it", "")
        seen.setdefault(name, flag)
    for flag, own in lane["lane_flag_names"].items():
        if not _FLAG.fullmatch(flag) or not _FLAG.fullmatch(str(own)):
            yield Fault("LANE.FLAGS", f"lane_flag_names has {flag}: {own}", "two long flags", "")


def _long_flag_hint(flag: str) -> str:
    long = "--" + flag.lstrip("-")
    known = {**FLAT_FLAGS, **HEAD_FLAGS}
    if canonical_flag(long) in known:
        return f"Set {known[canonical_flag(long)]} instead."
    return f"Write {long.replace('_', '-')}." if _FLAG.fullmatch(long.replace("_", "-")) and len(flag.lstrip("-")) > 2 else ""


def _env_faults(lane: Mapping[str, Any]) -> Iterator[Fault]:
    env, secrets = lane["lane_engine_env"], lane["lane_secret_env"]
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            yield Fault("LANE.ENV", f"{name!r} in lane_engine_env is no name of a variable", "letters, digits, _", "")
        elif name in FABRIC_ENV:
            yield Fault(
                "LANE.ENV",
                f"{name} stands in lane_engine_env, but differs per Spark",
                "derived from the fabric",
                f"Remove it. If this engine reads it beside the usual ones: lane_fabric_env: {{{name}: …}}.",
            )
        elif name in secrets or _SECRET.search(name):
            yield Fault("LANE.ENV", f"{name} would put a secret into a rendered file", "its name in lane_secret_env", "")
        elif isinstance(value, bool):
            yield Fault("LANE.ENV", f"{name} is the boolean {str(value).lower()}", "text", "Quote it: '1' or 'true'.")
        elif value == "" or isinstance(value, dict | list):
            yield Fault(
                "LANE.ENV",
                f"{name} is {'empty' if value == '' else 'not text'}",
                "text, or null to remove it",
                "An empty value is not the same as none: libraries read it as 0.",
            )
    for name, source in lane["lane_fabric_env"].items():
        if source not in FABRIC_SOURCES:
            hint = did_you_mean(str(source), FABRIC_SOURCES)
            yield Fault("LANE.ENV", f"lane_fabric_env.{name} asks for {source!r}", ", ".join(FABRIC_SOURCES), hint)
        if name in env:
            yield Fault("LANE.ENV", f"{name} stands in lane_engine_env and in lane_fabric_env", "one of them", "")
    for name, folder in lane["lane_jit_caches"].items():
        if (
            not _ENV_NAME.fullmatch(name)
            or not isinstance(folder, str)
            or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", folder)
        ):
            yield Fault("LANE.ENV", f"lane_jit_caches has {name}: {folder!r}", "a variable and the plain name of a folder", "")
        elif name in env:
            yield Fault("LANE.ENV", f"{name} stands in lane_engine_env and in lane_jit_caches", "one of them", "")
    for name in secrets:
        if not _ENV_NAME.fullmatch(name):
            yield Fault("LANE.ENV", f"lane_secret_env holds {name!r:.20}", "names of variables, never values", "")


def _world_faults(lane: Mapping[str, Any]) -> Iterator[Fault]:
    nodes, tp, pp = lane["lane_nodes"], lane["lane_tensor_parallel_size"], lane["lane_pipeline_parallel_size"]
    gpus = lane["lane_gpus_per_node"]
    if None in (nodes, tp, pp):
        return  # said by LANE.TYPES already
    if min(nodes, tp, pp, gpus) < 1 or tp * pp != nodes * gpus:
        hosts = f"{nodes} Sparks" if gpus == 1 else f"{nodes} hosts of {gpus} GPUs"
        yield Fault(
            "LANE.WORLD",
            f"tensor parallel {tp} × pipeline parallel {pp} on {hosts}",
            "their product equals lane_nodes: a Spark has one GPU" if gpus == 1 else "their product is the number of GPUs",
            "Correct lane_nodes, lane_gpus_per_node, lane_tensor_parallel_size or lane_pipeline_parallel_size.",
        )
    dcp = lane["lane_engine_args"].get("--decode-context-parallel-size")
    if dcp is not None and (not str(dcp).isdigit() or int(dcp) < 1 or tp % int(dcp)):
        yield Fault("LANE.WORLD", f"--decode-context-parallel-size {dcp} with tensor parallel {tp}", "a divisor of it", "")
    ports = (lane["lane_port"], lane["lane_master_port"])
    if ports[0] == ports[1] or not all(0 < port < 65536 for port in ports):
        yield Fault("LANE.WORLD", f"lane_port {ports[0]}, lane_master_port {ports[1]}", "two different ports", "")


def _file_faults(lane: Mapping[str, Any]) -> Iterator[Fault]:
    image = lane["lane_image"] or {}
    if "@" in str(image.get("repository")) or re.search(r":[^/]+$", str(image.get("repository"))):
        yield Fault("LANE.FILES", f"lane_image.repository is {image['repository']}", "no tag and no digest in it", "")
    hashes = [("lane_image.digest", image.get("digest"), _DIGEST, "sha256: and 64 hex digits")]
    hashes.append(("lane_image.archive.sha256", (image.get("archive") or {}).get("sha256"), _SHA256, "64 hex digits"))
    hashes += [
        (f"lane_image.ids.{index}", text, _DIGEST, "sha256: and 64 hex digits")
        for index, text in enumerate(image.get("ids") or [])
    ]
    hashes.append(("lane_image.archive.sha256", (image.get("archive") or {}).get("sha256"), _SHA256, "64 hex digits"))
    for name in ("lane_model", "lane_drafter"):
        model = lane[name] or {}
        hashes.append((f"{name}.revision", model.get("revision"), _REVISION, "a commit, 40 hex digits"))
        hashes.append((f"{name}.config_sha256", model.get("config_sha256"), _SHA256, "64 hex digits"))
        hashes += [
            (f"{name}.sha256.{file}", text, _SHA256, "64 hex digits") for file, text in (model.get("sha256") or {}).items()
        ]
    for name in ("lane_overlays", "lane_extras"):
        for index, item in enumerate(lane[name] or []):
            hashes.append((f"{name}.{index}.sha256", item.get("sha256"), _SHA256, "64 hex digits"))
            hashes.append((f"{name}.{index}.replaces_sha256", item.get("replaces_sha256"), _SHA256, "64 hex digits"))
    for where, text, pattern, expected in hashes:
        if text is not None and not pattern.fullmatch(str(text)):
            yield Fault("LANE.FILES", f"{where} is {text!r}", expected, "Copy it whole; leave it empty while unknown.")
    targets: dict[str, int] = {}
    for mount in _mounts(lane):
        targets[mount["target"]] = targets.get(mount["target"], 0) + 1
    for target, times in targets.items():
        if times > 1:
            yield Fault("LANE.FILES", f"{times} mounts have the target {target}", "one", "Remove all but one.")


# --- what is still unknown -------------------------------------------------------------------------------------


def lookup(lane: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path such as `lane_image.digest` or `lane_overlays.0.sha256`; None where there is none."""
    value: Any = lane
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def site_line(variable: str, tree: Any) -> str:
    """The line of a site's file that fills parts of a variable: `lane_image_site: {digest: …}`, or `lane_max_model_len: …`."""
    return f"{variable}_site: {_flow(tree)}" if isinstance(tree, Mapping) else f"{variable}: {tree}"


def _flow(tree: Any) -> str:
    return (
        "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in tree.items()) + "}" if isinstance(tree, Mapping) else str(tree)
    )


@dataclass
class _Unknowns:
    """What is still unknown, and for each variable the one line that fills all its parts: a second line would replace the first."""

    where: str
    who: str
    refused: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    trees: dict[str, Any] = field(default_factory=dict)

    def add(self, path: str, what: str, keys: Sequence[str], value: str, remedy: str = "") -> None:
        if path in self.refused:
            return
        self.refused[path] = (what, keys[0], remedy)
        if remedy:
            return
        tree: Any = self.trees
        for key in keys[:-1]:
            tree = tree.setdefault(key, {})
            if not isinstance(tree, dict):
                return  # the whole is asked for already
        tree.setdefault(keys[-1], value)

    def checks(self) -> list[Check]:
        return [
            Check(
                "LANE.UNKNOWN",
                self.who,
                FAIL,
                what,
                f"{path} is known before launch",
                remedy or f"Add one line to {self.where}: {site_line(variable, self.trees[variable])}",
            )
            for path, (what, variable, remedy) in self.refused.items()
        ]


def launch_refusals(lane: Mapping[str, Any], host: str = "") -> list[Check]:
    """What a lane must still be told before it may launch, each with the one line that fills it.

    Rendering works without: a person may look at the commands first.
    """
    who, name = host or str(lane["lane_id"]), str(lane["lane_id"])
    unknown = _Unknowns(SITE_FILE.format(lane=name), who)
    for item in lane["lane_unknowns"]:
        path, _, value = (part.strip() for part in item["fill"].partition(":"))
        if path == "lane_image.digest" and lookup(lane, "lane_image.ids"):
            continue  # An ID names the image as well, where no registry has it.
        if lookup(lane, path) in (None, "", [], {}):
            unknown.add(path, item["what"], path.split("."), value, item["remedy"] or "")
    if lookup(lane, "lane_image.digest") is None and not lookup(lane, "lane_image.ids"):
        unknown.add("lane_image.digest", "the image has no digest", ("lane_image", "digest"), '"sha256:<64 hex digits>"')
    for model in ("lane_model", "lane_drafter"):
        if lane[model] and lane[model].get("revision") is None:
            what = f"{lane[model]['repo']} has no revision"
            unknown.add(f"{model}.revision", what, (model, "revision"), '"<40 hex digits>"')
    for files in ("lane_overlays", "lane_extras"):
        for index, item in enumerate(lane[files] or []):
            if item.get("sha256") is None:
                value = f'"<64 hex digits: sha256sum {PurePosixPath(item["source"]).name}>"'
                what = f"{item['source']} has no sha256"
                unknown.add(f"{files}.{index}.sha256", what, (files, str(item["target"]), "sha256"), value)
    return unknown.checks() or [Check("LANE.UNKNOWN", who, PASS, "nothing is unknown")]


def negative_check(lane: Mapping[str, Any], host: str) -> Check:
    """A lane that is kept to show what does not work launches only where a person says so."""
    reason = lane["lane_negative"]
    if not reason:
        return Check("LANE.NEGATIVE", host, PASS, "the lane is meant to be run")
    if lane["lane_accept_negative"]:
        return Check("LANE.NEGATIVE", host, WARN, f"a negative example, launched all the same: {reason}")
    remedy = "Choose another lane (docs/lanes.md), or launch it all the same: -e lane_accept_negative=true"
    return Check(
        "LANE.NEGATIVE", host, FAIL, f"lane {lane['lane_id']} is a negative example: {reason}", "a lane to serve", remedy
    )


# --- rendering -------------------------------------------------------------------------------------------------


def render_rank(
    lane: Mapping[str, Any],
    fabrics: Mapping[str, Mapping[str, Any]],
    deployment: str,
    hosts: Sequence[str],
    rank: int,
) -> dict[str, Any]:
    """The spec of one rank: `hosts` are those of the deployment in the order of its group, `fabrics` theirs by host.

    ValueError says what is missing. Unknown digests and revisions don't stop it; `launch_refusals` does.
    """
    if len(hosts) != lane["lane_nodes"]:
        raise ValueError(
            f"deployment {deployment} has {len(hosts)} hosts ({', '.join(hosts)}), but lane {lane['lane_id']} needs {lane['lane_nodes']}"
        )
    if not 0 <= rank < len(hosts):
        raise ValueError(f"deployment {deployment} has no rank {rank}: its ranks are 0 to {len(hosts) - 1}")
    host, world = hosts[rank], len(hosts)
    fabric = fabrics.get(host) or {}
    master = None
    if world > 1:
        for needed in (hosts[0], host):
            if not (fabrics.get(needed) or {}).get("host_ip"):
                raise ValueError(f"{needed} has no fabric address yet: role roce finds it, run for all of {deployment}")
        master = {"host": str(fabrics[hosts[0]]["host_ip"]), "port": lane["lane_master_port"]}
    container = lane["lane_container"]
    return {
        "schema": SCHEMA,
        "deployment": deployment,
        "lane": lane["lane_id"],
        "rank": rank,
        "world_size": world,
        "node": host,
        "container": f"sparklanes-{deployment}-rank{rank}",
        **_image(lane["lane_image"]),
        "entrypoint": container["entrypoint"],
        "command": [
            *container["command_prefix"],
            lane["lane_model"]["container_path"],
            *_flags(lane, rank, world, master),
        ],
        "env": _environment(lane, fabric, rank, world, master),
        "secret_env": sorted(lane["lane_secret_env"]),
        "mounts": _mounts(lane),
        **({"jit_cache": jit_cache(lane)} if jit_cache(lane) else {}),
        "options": {
            key: container[key]
            for key in ("network", "ipc", "shm_size", "ulimits", "cap_add", "devices", "gpus", "memory", "memory_swap")
        }
        | {"restart": "no"},
        "api": {"host": lane["lane_api_host"], "port": lane["lane_port"]},
        "master": master,
        "labels": {
            "sparklanes.deployment": deployment,
            "sparklanes.lane": str(lane["lane_id"]),
            "sparklanes.rank": str(rank),
        },
    }


def _image(image: Mapping[str, Any]) -> dict[str, Any]:
    """What the rank runs: by digest, or by ID where no registry has the image. `image_ids` are there only if the lane has them."""
    ids = list(image.get("ids") or [])
    if not image["digest"] and ids:
        return {"image": ids[0], "image_ids": ids}
    named = f"{image['repository']}@{image['digest'] or 'sha256:unknown'}"
    return {"image": named, "image_ids": ids} if ids else {"image": named}


def _flags(lane: Mapping[str, Any], rank: int, world: int, master: Mapping[str, Any] | None) -> list[str]:
    """What follows the path of the model. The flags that people override come first, the lane's own keep their order."""
    flags: dict[str, Any] = {}
    if rank == 0:
        flags |= {flag: lane[name] for flag, name in HEAD_FLAGS.items()}
    flags |= {flag: lane[name] for flag, name in FLAT_FLAGS.items() if lane[name] is not None}
    if lane["lane_pipeline_parallel_size"] == 1:
        del flags["--pipeline-parallel-size"]
    flags |= lane["lane_engine_args"]
    if master:
        flags |= {"--nnodes": world, "--node-rank": rank, "--master-addr": master["host"], "--master-port": master["port"]}
        if rank > 0:
            flags["--headless"] = True
    words: list[str] = []
    for flag, value in flags.items():
        words += _words(str(lane["lane_flag_names"].get(flag, flag)), value)
    return words


def _words(flag: str, value: Any) -> list[str]:
    """A flag and its value as words of a command; a value that looks like a flag is bound to its own."""
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *(_text(item) for item in value)]
    text = _text(value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _text(value: Any) -> str:
    """A value as the engine reads it: mappings as compact JSON, numbers without a trailing `.0` of their own making."""
    if isinstance(value, Mapping | list | bool):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)


def _environment(
    lane: Mapping[str, Any], fabric: Mapping[str, Any], rank: int, world: int, master: Mapping[str, Any] | None
) -> dict[str, str]:
    """The lane's environment with the host's fabric over it: where both speak, the fabric was measured here."""
    env = {name: str(value) for name, value in lane["lane_engine_env"].items()}
    env |= {name: f"{JIT_TARGET}/{folder}" for name, folder in (lane.get("lane_jit_caches") or {}).items()}
    env |= {name: str(value) for name, value in (fabric.get("env") or {}).items() if value not in (None, "")}
    if fabric.get("host_ip"):
        env["VLLM_HOST_IP"] = str(fabric["host_ip"])
    rails = fabric.get("rails") or []
    facts = {
        "rank": rank,
        "world_size": world,
        "host_ip": fabric.get("host_ip"),
        "ifname": fabric.get("ifname"),
        "master_addr": master and master["host"],
        "master_port": master and master["port"],
        "hca": rails[0].get("hca") if rails else None,
        "hcas": ",".join(str(rail["hca"]) for rail in rails if rail.get("hca")) or None,
        "gid_index": rails[0].get("gid_index") if rails else None,
        "network": rails[0].get("network") if rails else None,
    }
    for name, source in lane["lane_fabric_env"].items():
        if facts[source] is None:
            raise ValueError(f"lane_fabric_env.{name} needs the fabric's {source}, which this Spark does not have")
        env[name] = str(facts[source])
    return env


def _mounts(lane: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Weights, drafter, overlays and extras read-only, then what the lane adds."""
    mounts = [_mount(model["path"], model["container_path"]) for model in (lane["lane_model"], lane["lane_drafter"]) if model]
    for item in [*(lane["lane_overlays"] or []), *(lane["lane_extras"] or [])]:
        mounts.append(_mount(overlay_path(item["source"], item["sha256"]), item["target"]))
    for item in (lane["lane_container"] or {}).get("mounts") or []:
        mounts.append(_mount(item["source"], item["target"], item["read_only"], item["create"]))
    if jit_cache(lane):
        mounts.append(_mount(jit_cache(lane), JIT_TARGET, read_only=False, create=True))
    return mounts


def _mount(source: str, target: str, read_only: bool = True, create: bool = False) -> dict[str, Any]:
    return {"source": source, "target": target, "read_only": read_only, "create": create}


def jit_cache(lane: Mapping[str, Any]) -> str:
    """The folder of a lane's compiled kernels on a Spark, empty where it keeps none. Another image compiles other kernels."""
    if not lane.get("lane_jit_caches"):
        return ""
    image = lane["lane_image"]
    named = image["digest"] or next(iter(image.get("ids") or []), "sha256:unknown")
    return f"{JIT_ROOT}/{named.rpartition(':')[2][:12]}/{lane['lane_id']}"


def needs(lane: Mapping[str, Any]) -> dict[str, list[str]]:
    """What a lane refers to on a Spark: paths, and names of its image."""
    paths = [mount["source"] for mount in _mounts(lane)]
    image = _image(lane["lane_image"])
    return {"paths": paths, "images": [image["image"], *image.get("image_ids", [])]}


def archive_files(lane: Mapping[str, Any]) -> list[dict[str, str]]:
    """Overlays and extras as an archive takes them: name there, place on a Spark, hash."""
    made = []
    for folder, items in (("overlays", lane["lane_overlays"]), ("extras", lane["lane_extras"])):
        for item in items or []:
            name = f"{folder}/{str(item['source']).lstrip('/')}"
            made.append({"name": name, "path": overlay_path(item["source"], item["sha256"]), "sha256": str(item["sha256"] or "")})
    return made


# --- commands --------------------------------------------------------------------------------------------------


def describe(lane: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """What stands above a rendered command, as comments of a shell: who runs it, what fits, what is still unknown."""
    head = f"the head, API on {spec['api']['host']}:{spec['api']['port']}" if spec["rank"] == 0 else "a worker"
    lines = [f"rank {spec['rank']} of {spec['world_size']} on {spec['node']}: {head}", str(lane["lane_title"] or lane["lane_id"])]
    if lane["lane_max_model_len"]:
        at_once = f", {lane['lane_max_num_seqs']} requests at a time" if lane["lane_max_num_seqs"] else ""
        lines.append(f"{lane['lane_max_model_len']:,} tokens of context{at_once}")
    pinned = lane["lane_kv_cache_memory_bytes"]
    lines.append(f"KV cache {pinned / 2**30:.2f} GiB on each rank, pinned" if pinned else "KV cache sized by the engine")
    if spec["secret_env"]:
        lines.append(f"needs {', '.join(spec['secret_env'])} in the environment of this shell")
    if lane["lane_negative"]:
        lines.append(f"a negative example: {lane['lane_negative']}")
    unknown = [check.expected.split()[0] for check in launch_refusals(lane) if check.status == FAIL]
    if unknown:
        lines.append(f"unknown, so a launch is refused: {', '.join(unknown)}")
    return "\n".join(f"# {line}" for line in lines)
