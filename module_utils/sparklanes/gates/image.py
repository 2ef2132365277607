# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What gate A asks of an image: the versions, the flags and the entrypoint that the lane was written for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import PASS, WARN, Check, judged
from ansible.module_utils.sparklanes.common.suggest import did_you_mean
from ansible.module_utils.sparklanes.docker.probe import DISTRIBUTIONS
from ansible.module_utils.sparklanes.engine.flags import canonical_flag, successor


def versions_of(packages: Mapping[str, str], library: str) -> list[str]:
    """Different versions under which a library is there, in the order of its distributions."""
    found = [packages[name] for name in DISTRIBUTIONS[library] if name in packages]
    return list(dict.fromkeys(found))


def plain(version: str) -> str:
    """Without the local part: as in pip, a stated `0.32.0` is met by `0.32.0+cpu`, and a stated `0.32.0+cpu` only by itself."""
    return version.partition("+")[0]


def expectations(image: Mapping[str, Any]) -> dict[str, str]:
    """Library → version that `lane_image` states."""
    wanted = {"vllm": image.get("vllm"), **(image.get("pins") or {})}
    return {name: str(wanted[name]) for name in DISTRIBUTIONS if wanted.get(name) not in (None, "")}


def measured(probe: Mapping[str, Any] | None) -> dict[str, str]:
    """Library → the versions under which the image really has it, as `lane_image.pins` names libraries."""
    packages = (probe or {}).get("packages") or {}
    found = {library: versions_of(packages, library) for library in DISTRIBUTIONS if library != "vllm"}
    return {library: ", ".join(versions) for library, versions in found.items() if versions}


def version_checks(host: str, probe: Mapping[str, Any], image: Mapping[str, Any]) -> list[Check]:
    """IMAGE.PINS: the libraries are those that the lane says. Two parts of one library may differ (`4.7.0, 4.6.2`)."""
    wanted = expectations(image)
    if not wanted:
        return []
    packages = probe.get("packages")
    if packages is None:
        return [
            judged(
                "IMAGE.PINS",
                host,
                None,
                probe.get("error") or "not measured",
                _named(wanted),
                "Run site.yml, which asks the image.",
            )
        ]
    wrong = {}
    for library, version in wanted.items():
        found = versions_of(packages, library)
        stated = [part.strip() for part in re.split(r"[,/]", version)]
        if sorted(map(plain, found) if "+" not in version else found) != sorted(stated):
            wrong[library] = ", ".join(found) or "not in the image"
    return [
        judged(
            "IMAGE.PINS",
            host,
            not wrong,
            _named(wrong or wanted),
            _named({name: wanted[name] for name in wrong or wanted}),
            "The image is not the one that the lane was measured with, or the lane says wrongly what it holds: compare lane_image.vllm and "
            "lane_image.pins with its build.",
        )
    ]


def _named(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def flag_checks(host: str, probe: Mapping[str, Any], command: Sequence[str]) -> list[Check]:
    """IMAGE.FLAGS: the engine in the image knows every flag of the rank. An unknown one ends the boot after the weights were mapped."""
    used = [word.partition("=")[0] for word in command if word.startswith("--")]
    known = probe.get("flags")
    if not known:
        # Not a failure: while a lane serves, its Spark may have no memory for a second import of the engine.
        told = probe.get("flags_error") or "not measured"
        return [Check("IMAGE.FLAGS", host, WARN, told, "the engine's own --help was read", "Run site.yml while no lane serves.")]
    names = {canonical_flag(flag) for flag in known} | set(known)
    unknown = [flag for flag in used if not _knows(names, flag)]
    hints = [f"{flag}: {successor(flag) or did_you_mean(flag, sorted(known))}".rstrip(": ") for flag in unknown]
    remedy = "Spell it as this engine does (lane_flag_names), or remove it (null). " + " ".join(hints)
    if not unknown:
        return [Check("IMAGE.FLAGS", host, PASS, f"{len(set(used))} flags known")]
    return [judged("IMAGE.FLAGS", host, False, f"unknown to this engine: {', '.join(unknown)}", "known flags", remedy)]


def _knows(names: set[str], flag: str) -> bool:
    """Flags of nested options (`--speculative-config.method`) belong to their first part; each boolean has a --no- form."""
    plain = flag.partition(".")[0].replace("_", "-")
    return plain in names or canonical_flag(plain) in names or plain.replace("--no-", "--", 1) in names


def entrypoint_checks(host: str, probe: Mapping[str, Any], spec: Mapping[str, Any], image: Mapping[str, Any]) -> list[Check]:
    """IMAGE.ENTRYPOINT: where the lane leaves the image its own, that is the one the lane's command was written for."""
    wanted = image.get("entrypoint")
    if spec.get("entrypoint") or wanted is None:
        return []
    found = probe.get("entrypoint")
    return [
        judged(
            "IMAGE.ENTRYPOINT",
            host,
            None if found is None else list(found) == list(wanted),
            "not measured" if found is None else json.dumps(found),
            json.dumps(list(wanted)),
            "`docker commit` inherits an override, and then the command's first word is another program. Write lane_container_site: {entrypoint: PROGRAM}.",
        )
    ]


def checks(host: str, probe: Mapping[str, Any] | None, lane: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Check]:
    """All that can be said of a rank's image by what it answered."""
    image, known = lane.get("lane_image") or {}, probe or {}
    return [
        *version_checks(host, known, image),
        *flag_checks(host, known, spec.get("command") or []),
        *entrypoint_checks(host, known, spec, image),
    ]
