# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Between the stop and the start: bring a Spark's memory to what the lane needs, prove it, or say why not.

The Spark itself comes in as a `Machine`, so that a test can play any history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, judged
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.memory.facts import ENOUGH_BLOCKS, MemoryFacts, check_blocks, check_cma, gib
from ansible.module_utils.sparklanes.memory.page_cache import WORTH_BYTES
from ansible.module_utils.sparklanes.memory.processes import Process
from ansible.module_utils.sparklanes.memory.touch import Touch
from ansible.module_utils.sparklanes.memory.verdict import Done, Verdict, verdict

# No waiting mends these.
FINAL = ("ready", "kernel_fault", "reboot_required", "unknown")
# A flush that freed next to nothing is tried again after this, for memory that others gave back meanwhile.
FLUSH_PAUSE_SECONDS = 10.0
LOOK_SECONDS = 1.0


class Machine(Protocol):
    """What settling does to a Spark."""

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def look(self) -> tuple[MemoryFacts, Sequence[Process]]: ...
    def flush(self) -> int: ...
    def compact(self) -> None: ...
    def busy(self) -> str: ...
    def touch(self, wanted: int, margin: int) -> Touch: ...


@dataclass(frozen=True)
class Request:
    min_free_gib: float = 0.0
    # 0: only warn where few are left.
    min_blocks: int = 0
    seconds: float = 300.0
    may_flush: bool = True
    may_compact: bool = True
    touch_gib: float = 0.0
    margin_gib: float = 8.0

    def problems(self) -> list[str]:
        numbers = {
            "min_free_gib": self.min_free_gib,
            "min_blocks": self.min_blocks,
            "seconds": self.seconds,
            "touch_gib": self.touch_gib,
            "touch_margin_gib": self.margin_gib,
        }
        wrong = [
            f"{name}: found {value:g}, expected 0 or more" for name, value in numbers.items() if not 0 <= value < float("inf")
        ]
        if self.seconds > 3600:
            wrong.append(f"seconds: found {self.seconds:g}, expected 3600 or less")
        return wrong


@dataclass
class Outcome:
    """What came of it."""

    verdict: Verdict
    memory: MemoryFacts
    waited: float = 0.0
    touch: Touch | None = None
    actions: list[str] = field(default_factory=list)
    changed: bool = False
    # What runs, so that nothing could be touched.
    holder: str = ""
    checks: list[Check] = field(default_factory=list)

    @property
    def go(self) -> bool:
        return all(check.status != FAIL for check in self.checks)


def settle(host: str, request: Request, machine: Machine) -> Outcome:
    """Wait, flush, compact, touch: bounded, and in that order."""
    started = machine.now()
    done, flushed_at = Done(), float("-inf")
    outcome = _look(host, request, machine, done)
    while outcome.verdict.name not in FINAL:
        now = machine.now()
        over = now - started >= request.seconds
        if outcome.verdict.name == "flush" and request.may_flush and not (over and flushed_at >= started):
            freed = machine.flush()
            _note(outcome, f"Flushed the page cache: {gib(freed)} came free")
            done, flushed_at = replace(done, flushed=freed < WORTH_BYTES), now
        elif outcome.verdict.name == "compact" and request.may_compact:
            busy = machine.busy()
            if busy:
                outcome.verdict = Verdict(
                    "compact",
                    f"{outcome.verdict.figures}; {busy}",
                    f"Stop it on {host}: memory is compacted only while no rank runs",
                )
                break
            machine.compact()
            _note(outcome, "Compacted memory")
            done = replace(done, compacted=True)
        elif over or outcome.verdict.name == "compact":
            # Time is over: memory that nobody has is no longer on its way back.
            done = replace(done, idle=not machine.busy())
            outcome = _look(host, request, machine, done, outcome)
            break
        else:
            if done.flushed and now - flushed_at >= FLUSH_PAUSE_SECONDS:
                done = replace(done, flushed=False)
            machine.sleep(min(LOOK_SECONDS, max(0.05, request.seconds - (now - started))))
        outcome = _look(host, request, machine, done, outcome)
    outcome.waited = machine.now() - started
    if outcome.verdict.name == "ready" and request.touch_gib > 0:
        free = outcome.memory.mem_free or 0
        wanted = min(int(request.touch_gib * GIB), free - int(request.margin_gib * GIB))
        outcome.holder = machine.busy()
        if wanted > 0 and not outcome.holder:
            outcome.touch = machine.touch(wanted, int(request.margin_gib * GIB))
            _note(outcome, f"Touched {gib(outcome.touch.touched)} and gave it back")
    outcome.checks = checks(host, request, outcome)
    return outcome


def preview(host: str, request: Request, machine: Machine) -> Outcome:
    """What settling would begin with. Touches nothing."""
    outcome = _look(host, request, machine, Done())
    steps = {
        "flush": (request.may_flush, "Flush the page cache"),
        "compact": (request.may_compact, "Compact memory, where no rank runs"),
    }
    may, step = steps.get(outcome.verdict.name, (False, ""))
    if may:
        _note(outcome, step)
    elif outcome.verdict.name not in FINAL:
        outcome.actions.append(f"Wait up to {request.seconds:g} s for memory")
    outcome.checks = checks(host, request, outcome)
    return outcome


def _look(host: str, request: Request, machine: Machine, done: Done, before: Outcome | None = None) -> Outcome:
    memory, holders = machine.look()
    found = verdict(host, memory, None, holders, request.min_free_gib, request.min_blocks or None, done)
    if before is None:
        return Outcome(found, memory)
    before.verdict, before.memory = found, memory
    return before


def _note(outcome: Outcome, action: str) -> None:
    outcome.actions.append(action)
    outcome.changed = True


def checks(host: str, request: Request, outcome: Outcome) -> list[Check]:
    """One row for what is free, one each for the kernel, large blocks, and the probe."""
    made = [check_cma(host, outcome.memory)]
    free = outcome.memory.mem_free
    enough = None if free is None else free >= request.min_free_gib * GIB
    waited = f" after {outcome.waited:.0f} s" if outcome.waited >= 1 else ""
    made.append(
        judged(
            "MEM.SETTLED",
            host,
            enough,
            f"MemFree {gib(free)}{waited}" if enough else f"{outcome.verdict.name}{waited}: {outcome.verdict.figures}",
            f"≥ {request.min_free_gib:g} GiB free",
            outcome.verdict.remedy or f"Look at /proc/meminfo of {host}.",
        )
    )
    blocks = check_blocks(host, outcome.memory, request.min_blocks or ENOUGH_BLOCKS, strict=request.min_blocks > 0)
    if blocks.status == FAIL and outcome.verdict.name in ("compact", "reboot_required"):
        blocks = Check(blocks.id, host, FAIL, outcome.verdict.figures, blocks.expected, outcome.verdict.remedy)
    if outcome.memory.blocks is None and not request.min_blocks:
        # Nothing was asked of them, so that they could not be counted is no reason to stop.
        blocks = Check(blocks.id, host, WARN, blocks.found, blocks.expected, blocks.remedy)
    made.append(blocks)
    if request.touch_gib > 0 and outcome.verdict.name == "ready":
        made.append(_check_touch(host, request, outcome))
    return made


def _check_touch(host: str, request: Request, outcome: Outcome) -> Check:
    touch, expected = outcome.touch, f"up to {request.touch_gib:g} GiB can be touched, {request.margin_gib:g} GiB left alone"
    if outcome.holder:
        remedy = f"Stop it on {host}: memory is touched only while no rank runs."
        return Check("MEM.TOUCH", host, FAIL, outcome.holder, expected, remedy)
    if touch is None:
        remedy = "Free more memory, or lower lane_touch_margin_gib or lane_touch_probe_gib (0 turns the probe off)."
        return Check("MEM.TOUCH", host, FAIL, f"MemFree {gib(outcome.memory.mem_free)} is within the margin", expected, remedy)
    found = f"{gib(touch.touched)} of {gib(touch.wanted)} touched in {touch.seconds:.1f} s"
    if touch.died:
        remedy = f"Memory of {host} is promised and not there: look at dmesg for NVRM and oom-kill, then reboot the Spark."
        return Check("MEM.TOUCH", host, FAIL, f"{found}, then {touch.died}", expected, remedy)
    if touch.stopped:
        remedy = (
            f"Something else takes the memory of {host} at this moment: `ps -eo pid,rss,args --sort -rss | head`, nvidia-smi."
        )
        return Check("MEM.TOUCH", host, FAIL, f"{found}, then {touch.stopped}", expected, remedy)
    return Check("MEM.TOUCH", host, PASS, found, expected)


def sentence(host: str, outcome: Outcome) -> str:
    """Go or stop, and why, in one sentence."""
    waited = f" after {outcome.waited:.0f} s" if outcome.waited >= 1 else ""
    if outcome.go:
        touched = f", {gib(outcome.touch.touched)} touched" if outcome.touch else ""
        return f"{host} goes{waited}: MemFree {gib(outcome.memory.mem_free)}{touched}"
    bad = next(check for check in outcome.checks if check.status == FAIL)
    if outcome.verdict.name != "ready":
        return f"{host} stops{waited}: {outcome.verdict.sentence}"
    return f"{host} stops{waited}: {bad.found}. {bad.remedy}"


def to_dict(host: str, outcome: Outcome) -> dict[str, Any]:
    return {
        "verdict": outcome.verdict.name,
        "sentence": sentence(host, outcome),
        "go": outcome.go,
        "waited_seconds": round(outcome.waited, 1),
        "memory": outcome.memory.to_dict(),
        "touch": outcome.touch.to_dict() if outcome.touch else None,
        "checks": [check.to_dict() for check in outcome.checks],
        "actions": outcome.actions,
        "changed": outcome.changed,
    }
