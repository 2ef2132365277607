# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The frame in which a rule about traps stands, and the documents that rules cite.

A rule is a generator over a `View` that yields what it found. Its docstring says the rule in one
line and, below, what happens to those who break it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN
from ansible.module_utils.sparklanes.lane.view import View

# What a rule that found something does: refuses, warns, or says something good to know.
REFUSE, ADVISE, NOTE = FAIL, WARN, PASS

# The documents that rules cite.
SOURCES = {
    "743B README": "tonyd2wild/GLM-5.3-Int4-Int8Mix-TP4-4x-DGX-Spark, README of 2026-10-06",
    "743B launchers": "the same repository, launch/ and bench/RESULTS-*.md",
    "Flash 2x README": "tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark, README",
    "Flash 2x notes": "the same repository, CURRENT.md and launchers of 2026-09",
    "Flash 4x notes": "tonyd2wild/GLM-5.3-Flash-NVFP4-1M-KV-4x-DGX-Spark, CURRENT.md and launchers of 2026-09",
    "FP8 TP4 recipe": "GLM-5.3-Flash TP4 at 393,216 tokens, image aidendle94/sparkrun-vllm-glm53-gb10",
    "cfontes TP4 README": "cfontes/glm-5.3-flash-dflash2-tp4, README",
    "W4A16 card": "canada-quant/GLM-5.3-Flash-W4A16-MTP, model card of 2026-09-11",
    "SM121 image repository": "canada-quant/vllm-glm53-flash-sm121, NOTES of 2026-09-17",
    "vLLM 0.32.0": "measured with this release, or read in its command line",
    "Docker reference": "docker run, memory constraints and IPC settings",
    "field reports": "issues of public repositories, named in the rule",
}

Find = Callable[[View], Iterator[str]]


@dataclass(frozen=True)
class Rule:
    """A trap: what must hold, what happens otherwise, who says so, what to do."""

    id: str
    severity: str
    what: str
    why: str
    want: str
    remedy: str
    source: str
    find: Find


class Rules(list[Rule]):
    """The rules of one file, in their order."""

    def add(self, id: str, severity: str, want: str, remedy: str, source: str) -> Callable[[Find], Find]:
        """A decorator: the function becomes a rule."""

        def keep(find: Find) -> Find:
            what, _, why = inspect.cleandoc(find.__doc__ or "").partition("\n")
            self.append(Rule(f"TRAP.{id}", severity, what, " ".join(why.split()), want, remedy, source, find))
            return find

        return keep
