# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The options of `docker run`, as the container of a launch: what a lane can say, what sparklanes does itself, what it can't."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.lane.importers.launch import DROPPED, OPEN, Launch
from ansible.module_utils.sparklanes.lane.importers.source import Refused, word_set

BARE = word_set(
    "--detach --help --init --interactive --no-healthcheck --oom-kill-disable --privileged --publish-all --quiet --read-only --rm "
    "--sig-proxy --tty --use-api-socket --disable-content-trust"
)
_SHORT = {
    "d": "--detach", "e": "--env", "h": "--hostname", "i": "--interactive", "l": "--label", "m": "--memory", "p": "--publish",
    "P": "--publish-all", "q": "--quiet", "t": "--tty", "u": "--user", "v": "--volume", "w": "--workdir", "c": "--cpu-shares", "a": "--attach",
}  # fmt: skip
SINGLE = {
    "--gpus": "gpus",
    "--network": "network",
    "--ipc": "ipc",
    "--shm-size": "shm_size",
    "--memory": "memory",
    "--memory-swap": "memory_swap",
    "--pids-limit": "pids_limit",
}
LISTS = {"--ulimit": "ulimits", "--cap-add": "cap_add", "--device": "devices"}
_SAME = {"--net": "--network"}
# What sparklanes decides for every rank, with the reason.
OWN = {
    "--name": "each rank has the name of its deployment",
    "--detach": "a rank runs by itself, its log is kept",
    "--interactive": "nobody types into a rank",
    "--tty": "nobody types into a rank",
    "--rm": "the logs of a rank that ended are kept first",
    "--restart": "no rank comes back alone: playbooks/launch.yml and recover.yml start all of them",
    "--pull": "staging brings the image, and a launch fetches nothing",
    "--label": "labels name deployment, lane and rank",
    "--label-file": "labels name deployment, lane and rank",
    "--log-driver": "logs are bounded and kept",
    "--log-opt": "logs are bounded and kept",
    "--quiet": "",
    "--hostname": "ranks share the network of their Spark",
    "--init": "the engine is the first process of its container",
    "--cidfile": "a rank is known by its name",
    "--sig-proxy": "nobody types into a rank",
    "--stop-timeout": "a stop waits as long as rank_stop_timeout_seconds says",
    "--stop-signal": "an engine ends by SIGTERM",
    "--publish-all": "ranks share the network of their Spark",
    "--platform": "the image is known by its digest",
    "--attach": "nobody types into a rank",
    "--health-cmd": "the gates ask the engine",
    "--health-interval": "the gates ask the engine",
    "--health-retries": "the gates ask the engine",
    "--health-timeout": "the gates ask the engine",
    "--health-start-period": "the gates ask the engine",
    "--health-start-interval": "the gates ask the engine",
    "--no-healthcheck": "the gates ask the engine",
}
# What a lane has no word for.
_UNKNOWN_HERE = word_set(
    "--add-host --annotation --blkio-weight --cap-drop --cgroup-parent --cgroupns --cpu-period --cpu-quota --cpu-shares --cpus --cpuset-cpus "
    "--cpuset-mems --device-cgroup-rule --dns --dns-option --dns-search --domainname --env-file --expose --group-add --ip --isolation "
    "--link --mac-address --memory-reservation --memory-swappiness --network-alias --oom-kill-disable --oom-score-adj --pid --read-only "
    "--security-opt --storage-opt --sysctl --tmpfs --user --userns --uts --volume-driver --volumes-from --workdir"
)
_HANDLED = frozenset({*SINGLE, *LISTS, "--env", "--volume", "--mount", "--publish", "--entrypoint", "--runtime", "--privileged"})


def read(words: Sequence[str], made: Launch, known: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """The words behind `docker run`, into `made`; what follows the image comes back, behind the entrypoint that the options name.

    known: variables that the text around it sets, which an `--env NAME` hands on.
    """
    rest = list(words)
    entrypoint: str | None = None
    while rest and rest[0].startswith("-") and rest[0] != "-":
        for name, value in _options(rest):
            if name == "--entrypoint":
                entrypoint = value
            else:
                _option(name, value, made, known or {})
    if not rest:
        raise Refused("docker run without an image: is a \\ missing at the end of a line?")
    made.image = rest.pop(0)
    if entrypoint:
        made.entrypoint = entrypoint
        return [entrypoint, *rest]
    return rest


def _options(rest: list[str]) -> list[tuple[str, str]]:
    """The next options with their values, taken from `rest`: `--name x`, `--name=x`, `-itd`, `-p8000:8000`."""
    word = rest.pop(0)
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        name = _SAME.get(name, name)
        if name in BARE:
            return [] if equals and value == "false" else [(name, "")]
        if name not in {*OWN, *_UNKNOWN_HERE, *_HANDLED}:
            hint = did_you_mean(name, {*OWN, *_UNKNOWN_HERE, *_HANDLED}) or "Put flags of the engine behind the image."
            raise Refused(f"{name:.60} is no option of docker run. {hint}")
        if not equals and not rest:
            raise Refused(f"{name} of docker run has no value")
        return [(name, value if equals else rest.pop(0))]
    made: list[tuple[str, str]] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _SHORT.get(letter, "")
        if not name:
            raise Refused(f"-{letter} in {word:.60} is no option of docker run")
        if name in BARE:
            made.append((name, ""))
            continue
        if not letters and not rest:
            raise Refused(f"-{letter} of docker run has no value")
        made.append((name, letters.removeprefix("=") or rest.pop(0)))
        break
    return made


def _option(name: str, value: str, made: Launch, known: Mapping[str, Sequence[str]]) -> None:
    shown = f"option {name} {value}".strip()
    if name == "--pids-limit":
        if re.fullmatch(r"-?\d{1,9}", value):
            made.options["pids_limit"] = max(0, int(value))  # -1 is Docker's word for none
        else:
            made.note(OPEN, shown, "lane_container.pids_limit", "no number")
    elif name in SINGLE:
        made.options[SINGLE[name]] = value.strip('"')
    elif name in LISTS:
        made.options.setdefault(LISTS[name], []).append(value)
    elif name == "--env":
        variable, equals, text = value.partition("=")
        if equals or variable in known:
            made.take_env([(variable, text if equals else " ".join(known[variable]))])
        else:
            made.take_env([(variable, f"${variable}")])
    elif name in ("--volume", "--mount"):
        _mount(name, value, made)
    elif name == "--publish":
        made.options.setdefault("publish", []).append(value)
    elif name == "--runtime":
        if value == "nvidia":
            made.options.setdefault("gpus", "all")
        made.note(DROPPED, shown, "lane_container.gpus", "GPUs are asked for by --gpus")
    elif name == "--privileged":
        made.options["privileged"] = True
    elif name in OWN:
        made.note(DROPPED, shown, "", OWN[name])
    elif name == "--env-file":
        made.note(
            OPEN,
            shown,
            "lane_engine_env",
            "the file is not here: write its variables into lane_engine_env, secrets into the vault",
        )
    else:
        made.note(OPEN, shown, "", "a lane has no such option")


def _mount(name: str, value: str, made: Launch) -> None:
    if name == "--volume":
        # A name that nobody filled in may hold a colon of its own: ${DIR:-/x}.
        source, _, more = (
            (value[: value.index("}") + 1], "", value[value.index("}") + 1 :])
            if value.startswith("${") and "}" in value
            else value.partition(":")
        )
        if value.startswith("${") and "}" in value:
            below, _, more = more.partition(":")
            source += below
        target, _, mode = more.partition(":")
        if not target:
            made.note(
                OPEN, f"mount {value}", "", "a volume without a place on the Spark: name one, lane_container_site: {mounts: …}"
            )
            return
        made.mounts.append({"source": source, "target": target, "read_only": "ro" in mode.split(",")})
        return
    parts = [part.partition("=") for part in value.split(",")]
    told = {key: text for key, _, text in parts}
    source = told.get("source", told.get("src", ""))
    target = told.get("target", told.get("destination", told.get("dst", "")))
    if told.get("type", "volume") not in ("bind", "volume") or not source or not target:
        made.note(OPEN, f"mount {value}", "", "lanes mount files and folders of the Spark: lane_container_site: {mounts: …}")
        return
    read_only = any(key in ("readonly", "ro") and text in ("", "true", "1") for key, _, text in parts)
    made.mounts.append({"source": source, "target": target, "read_only": read_only})


def image_parts(image: str) -> tuple[str, str, str]:
    """Repository, tag and digest of `host:5000/owner/name:tag@sha256:…`; empty where there is none, or a variable stands there."""
    named, _, digest = image.partition("@")
    repository, colon, tag = named.rpartition(":")
    if not colon or "/" in tag or named.startswith("$"):
        repository, tag = named, ""
    if "$" in repository:
        repository, tag = "", ""
    return repository, "" if "$" in tag else tag, digest if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else ""
