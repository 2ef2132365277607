# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the plays about a model have in common: the model as a Spark asks for it, and what is judged once it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.screen.words import clean

from benchmarks.hostile import judge, models
from benchmarks.hostile.arena import Arena
from benchmarks.hostile.cases import Case
from benchmarks.hostile.judge import Outcome, Said


def asked(arena: Arena, **more: Any) -> dict[str, Any]:
    return {"name": "model", "path": str(folder(arena)), "repo": models.REPO, "revision": models.COMMIT, **more}


def folder(arena: Arena) -> Path:
    return arena.node / "models" / "tiny"


def truth(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: models.sha256(content) for name, content in files.items()}


def told(said: Said) -> Mapping[str, Any]:
    """What the product says of its models, at the end of a job or without one."""
    inner = said.result.get("result")
    return inner if isinstance(inner, Mapping) else said.result


def staged(said: Said) -> bool:
    return told(said).get("staged") is True and not said.failed


def words(said: Said) -> str:
    return str(said.result.get("error") or said.result.get("msg") or "")


def judged(arena: Arena, case: Case, said: Said, files: Mapping[str, bytes], attacked: bool = True) -> Outcome:
    """What is wrong with a staging. `files`: the model as it is. `attacked`: whether the adversary came to do what he does."""
    outcome = everywhere(arena)
    true = truth(files)
    outcome.wrong_bits += judge.kept(folder(arena), true) + judge.recorded(arena.node / "staged", true)
    complete = all((folder(arena) / name).is_file() for name in true)
    if staged(said) and not complete:
        outcome.wrong_bits.append("it is called complete, and is not")
    ended(case, outcome, staged(said), said)
    if not attacked:
        outcome.unexpected.append("the attack was not made: nobody asked for it")
    return outcome


def ended(case: Case, outcome: Outcome, right: bool, said: Said) -> None:
    """Whether it ended as the case says."""
    if case.ends != "either" and right is not (case.ends == "right"):
        outcome.unexpected.append(f"it ended {'right' if right else 'refused'}, not {case.ends}: {words(said)[:300]}")
    if case.says and case.says not in words(said):
        outcome.unexpected.append(f"it does not say {case.says!r}: {words(said)[:300]}")
    if said.result.get("running"):
        outcome.without_end.append(f"its job goes on without an end: {said.result.get('progress')}")
    elif not right and not words(said):
        outcome.unexpected.append("it was refused without a word")
    outcome.unexpected += judge.controls(clean(words(said)))


def everywhere(arena: Arena) -> Outcome:
    """What is judged of each case."""
    outcome = judge.printed(arena.says, arena.job_logs())
    outcome.touched += arena.outside.touched()
    printed = {said.what: (said.out + said.err).encode() for said in arena.says}
    outcome.touched += arena.outside.given_away(printed)
    if (size := max(arena.most_disk, judge.disk(arena.node))) > judge.MOST_DISK:
        outcome.without_end.append(f"{size >> 20} MiB lay on the disk")
    return outcome
