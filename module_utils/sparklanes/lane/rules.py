# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a resolved lane says that no rank could honour: flags, environment, world, files."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import Check, Fault, as_checks
from ansible.module_utils.sparklanes.common.secrets import secret_keys, secret_name, secret_value
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.docker import gpu_access
from ansible.module_utils.sparklanes.engine.flags import DERIVED_FLAGS, FLAT_FLAGS, HEAD_FLAGS, canonical_flag
from ansible.module_utils.sparklanes.fabric.names import FABRIC_ONLY
from ansible.module_utils.sparklanes.lane.partial import apart
from ansible.module_utils.sparklanes.lane.render import MODELS, mounts
from ansible.module_utils.sparklanes.weights import hub_cache

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
_FLAG = re.compile(r"--[a-z0-9][A-Za-z0-9.-]*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# What starts the engine's API, as a program or as a module of Python.
_SERVES = re.compile(r"\bserve\b|\bapi_server\b")
RULES = {
    "LANE.FLAGS": "every flag has one spelling",
    "LANE.ENV": "no fabric, no secrets, no empty values",
    "LANE.WORLD": "one rank a host",
    "LANE.FILES": "well-formed hashes and mounts",
    "LANE.CONTAINER": "serves, on a GPU where it needs one",
}
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
# Folders of the system, in which no model of a lane belongs: what stages it writes and removes there as root. And those that hold more than it.
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/lib/containerd", "/var/lib/docker")  # fmt: skip
_SHARED = (
    "/home", "/media", "/mnt", "/opt", "/root", "/srv", "/tmp", "/var", "/var/cache", "/var/lib", "/var/lib/sparklanes", "/var/lib/sparklanes/models", "/var/log", "/var/tmp",
)  # fmt: skip
_REVISION = re.compile(r"[0-9a-f]{40}")


def lane_checks(lane: Mapping[str, Any], host: str) -> list[Check]:
    """What a resolved lane says that no rank could honour."""
    faults = apart((_flag_faults, _env_faults, _world_faults, _port_faults, _file_faults, _container_faults), lane)
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
        elif leaking := _secrets_in(flag, value):
            remedy = "A command can be read on its Spark: give it by a variable that lane_secret_env names."
            yield Fault("LANE.FLAGS", f"{leaking} would put a secret into a rendered file", "no secret in a flag", remedy)
        elif value in ("", []) or (isinstance(value, list) and any(item in ("", None) for item in value)):
            yield Fault("LANE.FLAGS", f"{flag} has an empty value", "a value, or null to remove it", "")
        seen.setdefault(name, flag)
    for flag, own in lane["lane_flag_names"].items():
        if not _FLAG.fullmatch(flag) or not _FLAG.fullmatch(str(own)):
            yield Fault("LANE.FLAGS", f"lane_flag_names has {flag}: {own}", "two long flags", "")


def _secrets_in(flag: str, value: Any) -> str:
    """Where a flag with this value holds a secret: by its own name, by a name inside it, or by the look of a text."""
    text = value is not None and not isinstance(value, bool | Mapping)
    return flag if (text and secret_name(flag)) or secret_value(str(value)) else next(secret_keys(value, flag), "")


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
                "Remove it: role roce sets it where the fabric asks for it (docs/fabric.md)."
                if name in FABRIC_ONLY
                else f"Remove it. If this engine reads it beside the usual ones: lane_fabric_env: {{{name}: …}}.",
            )
        elif name in secrets or secret_name(name) or secret_value(str(value)):
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
        if not _ENV_NAME.fullmatch(str(name or "")):
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


def _port_faults(lane: Mapping[str, Any]) -> Iterator[Fault]:
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
    for name in ("lane_model", "lane_drafter"):
        model = lane[name] or {}
        if model.get("path") and _holds_more(str(model["path"])):
            own = str(model.get("repo") or "").rpartition("/")[2] or "NAME"
            remedy = f"Give it a folder of its own, such as /var/lib/sparklanes/models/{own}."
            found = f"{name}.path is {model['path']}, which holds more than a model"
            yield Fault("LANE.FILES", found, "a folder of the model alone", remedy)
        yield from _cache_faults(name, str(model.get("path") or ""), str(model.get("revision") or ""))
    targets: dict[str, int] = {}
    models = [str(lane[name]["container_path"]) for name in MODELS if (lane[name] or {}).get("container_path")]
    for mount in mounts(lane):
        targets[mount["target"]] = targets.get(mount["target"], 0) + 1
        inside = next((path for path in models if str(mount["target"]).startswith(f"{path}/")), "")
        if inside:
            remedy = "Mount it beside the weights, as under /extras, and name it there in its flag."
            found = f"the mount {mount['target']} lies inside {inside}, which is mounted read-only"
            yield Fault("LANE.FILES", found, "nothing in the folder of a model: Docker can't make the place for it", remedy)
    for target, times in targets.items():
        if times > 1:
            yield Fault("LANE.FILES", f"{times} mounts have the target {target}", "one", "Remove all but one.")


def _cache_faults(name: str, path: str, revision: str) -> Iterator[Fault]:
    """Of a Hub cache it is one snapshot that is served, and it is that of the lane's revision."""
    if hub_cache.no_snapshot(path):
        folder = path.removesuffix("/snapshots")
        remedy = f"Write {name}_site: {{path: {folder}/snapshots/{revision or 'COMMIT'}}}."
        yield Fault("LANE.FILES", f"{name}.path is {path}, a repository of a Hub cache", "a snapshot in it", remedy)
    cached = hub_cache.snapshot(path)
    if cached and revision and cached.commit != revision:
        found = f"{name}.path is the snapshot of {cached.commit} in a Hub cache"
        remedy = f"Write the revision that is meant: {name}_site: {{revision: …, path: …}}."
        yield Fault("LANE.FILES", found, f"that of {name}.revision, {revision}", remedy)


def _holds_more(path: str) -> bool:
    """Whether a folder is the system's, or holds what others put there."""
    plain = "/" + posixpath.normpath(path).strip("/")
    return plain in ("/", *_SYSTEM, *_SHARED) or plain.startswith(tuple(f"{folder}/" for folder in _SYSTEM))


def _container_faults(lane: Mapping[str, Any]) -> Iterator[Fault]:
    """A container that begins with the model's path as a program, or sees no GPU, ends after the old ranks were stopped."""
    container, arch = lane["lane_container"], str(lane["lane_gpu_arch"])
    begun = [container["entrypoint"]] if container["entrypoint"] else list((lane["lane_image"] or {}).get("entrypoint") or [])
    words = " ".join(map(str, [*begun, *(container["command_prefix"] or [])]))
    if not _SERVES.search(words):
        remedy = (
            "Set lane_container_site: {entrypoint: vllm, command_prefix: [serve]}; where the image's own ENTRYPOINT serves, say so: "
            "lane_image_site: {entrypoint: [vllm, serve]}, which gate A compares."
        )
        found = f"before the path of the model stands {words!r}" if words else "nothing stands before the path of the model"
        yield Fault("LANE.CONTAINER", found, "vllm serve", remedy)
    if arch.startswith("sm_") and not gpu_access.of_options(container):
        found = f"lane_gpu_arch is {arch}, and the container asks for no GPU"
        yield Fault("LANE.CONTAINER", found, "lane_container.gpus", "Set lane_container_site: {gpus: all}.")
