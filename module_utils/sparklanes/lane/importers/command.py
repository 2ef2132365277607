# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The text of a `docker run …` or `vllm serve …`, also in a launcher with its assignments around them. Read as words; nothing is run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from ansible.module_utils.sparklanes.common.secrets import blanked_words
from ansible.module_utils.sparklanes.engine.command import flags_and_words
from ansible.module_utils.sparklanes.lane.importers import docker_run, shell
from ansible.module_utils.sparklanes.lane.importers.launch import DROPPED, Launch
from ansible.module_utils.sparklanes.lane.importers.shell import Statement
from ansible.module_utils.sparklanes.lane.importers.source import Refused

# Programs that serve models and are no vLLM, with the names that people know.
OTHERS = {
    "sglang": "SGLang",
    "sglang.launch_server": "SGLang",
    "trtllm-serve": "TensorRT-LLM",
    "trtllm-llmapi-launch": "TensorRT-LLM",
    "mpirun": "TensorRT-LLM (or another program that mpirun starts)",
    "tritonserver": "Triton",
    "llama-server": "llama.cpp",
    "llama-cli": "llama.cpp",
    "rpc-server": "llama.cpp",
    "ollama": "Ollama",
    "atlas": "Atlas",
    "text-generation-launcher": "text-generation-inference",
    "mistralrs-server": "mistral.rs",
    "lmdeploy": "LMDeploy",
    "ktransformers": "KTransformers",
    "exo": "exo",
}
API_SERVER = "vllm.entrypoints.openai.api_server"
# What prepares or tidies up, and is done by sparklanes itself. Words of a command, the reason.
DONE = (
    (("docker", "pull"), "staging brings the image"),
    (("docker", "rm"), "a launch stops what runs, its logs kept"),
    (("docker", "stop"), "a launch stops what runs, its logs kept"),
    (("docker", "kill"), "a launch stops what runs, its logs kept"),
    (("docker", "logs"), "each launch keeps the logs of its ranks"),
    (("docker", "ps"), "playbooks/status.yml says what runs"),
    (("hf", "download"), "staging brings the weights"),
    (("huggingface-cli", "download"), "staging brings the weights"),
    (("huggingface-cli", "login"), "hub_token belongs into the vault"),
    (("hf", "auth"), "hub_token belongs into the vault"),
    (("ray", "start"), "ranks find each other without ray"),
    (("ray", "stop"), "ranks find each other without ray"),
    (("mkdir",), "what has to be there is made or named"),
    (("echo",), ""),
    (("set",), ""),
    (("cd",), ""),
    (("ulimit",), "lane_container.ulimits"),
    (("sleep",), ""),
    (("true",), ""),
    (("export",), ""),
    (("declare",), ""),
    (("readonly",), ""),
    (("tee",), "each launch keeps the logs of its ranks"),
)
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ARGUMENTS = frozenset({"$@", "$*", "${@}", "${*}", "${@:1}", "${@:2}"})
_BEFORE = ("exec", "nohup", "time", "sudo", "command", "uv", "$", "#", "stdbuf", "setsid")
SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash")


def launch(text: str, name: str) -> Launch:
    """The one engine that a text starts. Refused says what there is instead."""
    made = Launch("command")
    container, serving, known = _picked(text, {}, 1, made)
    if container:
        made.kind = "docker run"
        inside = docker_run.read(container.words[2:], made, known)
        if inside and serving:
            _drop_waiting(inside, made, serving)
        elif inside or not serving:
            begun = unwrapped(inside, known, container.line, made, in_image=True)
            named = made.entrypoint
            read_serve(begun, made, container.line)
            if named and made.prefix[:1] == [named]:
                del made.prefix[0]
            elif named:
                made.entrypoint, made.prefix = "vllm", ["serve"]  # what it ran in a shell
    elif serving:
        made.kind = "vllm serve"
    if serving:
        read_serve(serving.words, made, serving.line)
    if not container and not serving:
        raise Refused(
            f"{name} has no docker run and no vllm serve: a lane begins from one of them, a sparkrun recipe, or the record of a container"
        )
    return made


Picked = tuple[Statement | None, Statement | None, dict[str, list[str]]]


def _picked(text: str, known: Mapping[str, list[str]], first_line: int, made: Launch) -> Picked:
    """The docker run and the vllm serve of a text, one each at most. Everything else in it is named or refused."""
    container: Statement | None = None
    serving: Statement | None = None
    found, variables = shell.statements(text, known, first_line)
    exported: dict[str, str] = {}
    for number, statement in enumerate(found):
        words = _bare(statement)
        if words[:1] in (["export"], ["declare"], ["readonly"]):
            pairs = [word.partition("=") for word in words[1:] if "=" in word]
            exported |= {name: value for name, _, value in pairs}
            continue
        if not words:
            continue
        here = Statement(statement.line, words, statement.env, statement.redirections)
        inner = _inner(words, variables, statement.line, made)
        if inner is not None:
            here.words = inner
            words = inner
        if words[:2] == ["docker", "run"] or words[:2] == ["podman", "run"]:
            container = _only(container, here, "docker run")
        elif serves(words):
            serving = _only(serving, here, "vllm serve")
        elif reason := next((why for start, why in DONE if tuple(words[: len(start)]) == start), None):
            made.note(DROPPED, f"line {statement.line}: {' '.join(words[:2])}", "", reason)
        elif not any(tuple(words[: len(start)]) == start for start, _ in DONE):
            raise _unread(words, statement)
        if here is container or here is serving:
            for text_ in statement.redirections:
                made.note(DROPPED, f"line {statement.line}: {text_}", "", "each launch keeps the logs of its ranks")
            if statement.piped and number + 1 < len(found) and _bare(found[number + 1])[:1] != ["tee"]:
                raise Refused(
                    f"line {statement.line}: its output goes to {' '.join(found[number + 1].words[:1])}. Leave the command without the |"
                )
            # What is exported reaches an engine of this shell. A container gets what its options name.
            made.take_env({**exported, **statement.env}.items() if here is serving else [])
    return container, serving, variables


def _only(there: Statement | None, one: Statement, what: str) -> Statement:
    if there:
        raise Refused(
            f"line {one.line}: a second {what}, the first stands in line {there.line}. Leave one of them in the file: a lane is one"
        )
    return one


def _bare(statement: Statement) -> list[str]:
    """The words of a command without what only stands before it."""
    words = list(statement.words)
    while words and words[0] in _BEFORE:
        words.pop(0)
        while words and words[0] in ("run", "-E", "-n", "-oL", "-eL", "--"):
            words.pop(0)
    if words[:1] == ["env"]:
        words.pop(0)
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            name, _, value = words.pop(0).partition("=")
            statement.env[name] = value
    return words


def _inner(words: Sequence[str], known: Mapping[str, list[str]], line: int, made: Launch) -> list[str] | None:
    """The command that `docker exec NAME …`, `bash -c …` or a launcher of a cluster runs; None where it is none of these."""
    if words[:2] == ["docker", "exec"]:
        rest = list(words[2:])
        while rest and rest[0].startswith("-"):
            option = rest.pop(0)
            if option in ("-e", "--env") and rest:
                name, _, value = rest.pop(0).partition("=")
                made.take_env([(name, value)])
            elif option in ("-u", "--user", "-w", "--workdir") and rest:
                rest.pop(0)
        made.note(
            DROPPED, f"line {line}: docker exec {' '.join(rest[:1])}", "", "the engine is the first process of its container"
        )
        return unwrapped(rest[1:], known, line, made)
    if words and words[0].rpartition("/")[2] == "launch-cluster.sh":
        return _of_cluster(list(words[1:]), known, line, made)
    if words and words[0] in SHELLS and len(words) > 2:
        return unwrapped(list(words), known, line, made)
    return None


def _of_cluster(words: list[str], known: Mapping[str, list[str]], line: int, made: Launch) -> list[str]:
    """`launch-cluster.sh … exec COMMAND`, of spark-vllm-docker: its own options say what sparklanes finds out."""
    valued = ("-n", "--nodes", "--eth-if", "--ib-if", "--name", "--nccl-debug", "--apply-mod", "--master-port", "-j")
    while words and words[0].startswith("-"):
        option = words.pop(0)
        value = words.pop(0) if words and (option in valued or option in ("-t", "-e")) else ""
        if option == "-t":
            made.image = value
        elif option == "-e":
            name, _, text = value.partition("=")
            made.take_env([(name, text)])
        elif option == "--apply-mod":
            made.warn(f"The source patches its container by {value} before it serves, and this lane does not.")
            made.note(
                DROPPED,
                f"option --apply-mod {value}",
                "lane_warnings",
                "it changes the container: build an image that holds it, or mount overlays",
            )
        else:
            made.note(
                DROPPED, f"option {option} {value}".rstrip(), "", "the fabric and the ranks are found and started by sparklanes"
            )
    return unwrapped(words[1:] if words[:1] == ["exec"] else words, known, line, made)


def unwrapped(words: Sequence[str], known: Mapping[str, list[str]], line: int, made: Launch, in_image: bool = False) -> list[str]:
    """The words of a command, out of the `bash -c '…'` around it; only one command may stand in there."""
    words = list(words)
    if len(words) < 2 or words[0] not in SHELLS:
        return words
    at = next((number for number, word in enumerate(words[1:3], 1) if re.fullmatch(r"-[a-z]*c", word)), 0)
    if not at or at + 1 >= len(words):
        if in_image and len(words) == 1:
            return words
        raise Refused(
            f"line {line}: {' '.join(words[:2])} runs a file that is not here. Put the docker run or vllm serve that it runs into the file"
        )
    container, serving, _ = _picked(words[at + 1], known, line, made)
    if container or not serving:
        raise Refused(f"line {line}: {' '.join(words[: at + 1])} runs no vllm serve")
    made.note(DROPPED, " ".join(words[: at + 1]), "", "the one command in it is run without a shell")
    more = words[at + 3 :] if "$@" in serving.words else []
    return [part for word in serving.words for part in (more if word == "$@" else [word])]


def _drop_waiting(words: Sequence[str], made: Launch, serving: Statement) -> None:
    """The command of a container in which the engine is started later: it only waits."""
    if "serve" in " ".join(words) or API_SERVER in " ".join(words) or words[0].startswith("-") or _HUB.fullmatch(words[0]):
        raise Refused(
            f"line {serving.line}: a second vllm serve, the docker run of this file starts one itself. Leave one of them in the file: a lane is one"
        )
    made.note(DROPPED, f"command of the container: {' '.join(words[:3])}", "", "the engine is the first process of its container")


def _shown(words: Sequence[str]) -> str:
    """The first words of a command, for a sentence."""
    return repr(" ".join(blanked_words(words[:3])))[:80]


def serves(words: Sequence[str]) -> bool:
    before = list(words[:6])
    named = any(one.rpartition("/")[2] == "vllm" and two == "serve" for one, two in itertools.pairwise(before))
    return named or API_SERVER in before


def _unread(words: Sequence[str], statement: Statement) -> Refused:
    """What stands in the text and is neither an engine nor what goes without saying."""
    other = next((shown for word in words[:4] for name, shown in OTHERS.items() if word.rpartition("/")[2] == name), "")
    if other:
        return Refused(f"line {statement.line}: this starts {other}, and lanes run vLLM: look for the vLLM recipe of the model")
    if words[0] in shell.KEYWORDS:
        return Refused(
            f"line {statement.line}: {words[0]} is of a shell's own language, which is not run here. Leave the one docker run or vllm serve"
        )
    return Refused(
        f"line {statement.line}: {_shown(words[: 1 + (words[0] == 'docker')])} is neither docker run nor vllm serve, and what it changes for them is not known. "
        "Leave it out, or build what it does into the image"
    )


def read_serve(words: Sequence[str], made: Launch, line: int = 1) -> None:
    """`[PYTHON…] vllm serve MODEL --flag …`, or what follows the image where that serves by itself, into `made`."""
    if given := [word for word in words if word in _ARGUMENTS]:
        made.note(DROPPED, f"{given[0]} of the command", "", "what its script would be given, which is nothing here")
    words = [word for word in words if word not in _ARGUMENTS]
    other = next((shown for word in words[:4] for name, shown in OTHERS.items() if word.rpartition("/")[2] == name), "")
    if other:
        raise Refused(f"line {line}: this starts {other}, and lanes run vLLM: look for the vLLM recipe of the model")
    begin = next(
        (n + 2 for n in range(min(5, len(words) - 1)) if words[n].rpartition("/")[2] == "vllm" and words[n + 1] == "serve"), 0
    )
    if not begin and API_SERVER in words[:6]:
        begin = words.index(API_SERVER) + 1
        made.prefix, made.entrypoint = ["serve"], "vllm"
        made.note(
            DROPPED,
            " ".join(words[:begin]),
            "lane_container.entrypoint",
            "the same server as vllm serve, which is what lanes run",
        )
    elif begin:
        made.prefix = words[:begin]
    elif words[:1] == ["serve"]:  # of an image that begins with vllm
        begin, made.prefix, made.entrypoint = 1, ["serve"], "vllm"
    first = words[begin] if begin < len(words) else ""
    if not begin and first and not first.startswith("-") and not (_HUB.fullmatch(first) or first[0] in "/$"):
        raise Refused(f"line {line}: the container runs {_shown(words)}, which is no vllm serve")
    if not begin:
        made.prefix, made.entrypoint = ["serve"], "vllm"
    before, flags = flags_and_words(words[begin:])
    named = [values[0] for name, values in flags if name == "--model" and values]
    made.model = named[-1] if named else before[0] if before else ""
    flags = [flag for flag in flags if flag[0] != "--model"]
    if not made.model and flags and len(flags[-1][1]) > 1:
        made.model = flags[-1][1].pop()  # vllm serve --flag value MODEL
    if not made.model:
        raise Refused(f"line {line}: vllm serve without a model: expected its name on the Hub or its folder")
    if len(before) > 1:
        raise Refused(
            f"line {line}: {_shown(before[1:2])} belongs to no flag, and the model is {made.model!r:.60}: is a \\ missing at the end of a line?"
        )
    made.take_flags(flags)
