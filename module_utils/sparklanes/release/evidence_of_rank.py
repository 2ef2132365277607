# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is known of one rank of a failed deployment, as causes with a weight: its end, its lines, its machine, Docker's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from ansible.module_utils.sparklanes.common.registered import Look
from ansible.module_utils.sparklanes.docker.containers import signal_of
from ansible.module_utils.sparklanes.docker.refusals import refusal_of

Facts = Mapping[str, Any]

# Between the boot of a machine and its first container lie seconds; a clock that was set anew moves both.
BOOT_MARGIN_SECONDS = 5.0


class Weight(IntEnum):
    """From what explains all the rest to what explains nothing."""

    MACHINE = 0
    DEATH = 1
    OWN = 2
    KERNEL = 3
    DOCKER = 4
    ENDED = 5
    LOST = 6
    CONSEQUENCE = 7
    REMARK = 8


@dataclass(frozen=True)
class Cause:
    """One explanation: a stable id, the node, a sentence without the node's name and full stop, and what follows from it.

    `death`: a rank ended and nobody meant it to. `consequence`: something else happened before.
    """

    id: str
    host: str
    sentence: str
    remedy: str = ""
    weight: Weight = Weight.OWN
    hardware_or_memory: bool = False
    death: bool = False

    @property
    def consequence(self) -> bool:
        return self.weight >= Weight.LOST

    def __str__(self) -> str:
        return f"{self.host}: {self.sentence}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "weight": self.weight.name.lower(), "consequence": self.consequence}


def of_look(host: str, seen: Look) -> list[Cause]:
    if seen.facts is None:
        return list(of_words(host, seen.problem)) if seen.broke else []
    return list(_of_rank(host, seen.facts))


def of_words(host: str, words: Any) -> Iterator[Cause]:
    """What a module of ours, or Docker by its mouth, says of itself, where it is known what that means."""
    if found := refusal_of(str(words or "")):
        yield Cause(found.id, host, found.sentence, found.remedy, Weight.DOCKER, found.hardware)


def _of_rank(host: str, rank: Facts) -> Iterator[Cause]:
    box, evidence = rank.get("container") or {}, rank.get("evidence") or {}
    own = [one for one in (rank.get("log") or {}).get("failures") or [] if not one.get("consequence")]
    after = [one for one in (rank.get("log") or {}).get("failures") or [] if one.get("consequence")]
    ended = bool(box) and not rank.get("running")
    if box.get("status") == "paused":
        yield Cause(
            "rank_paused",
            host,
            f"its container {box.get('name')} is paused",
            f"docker unpause {box.get('name')}, by whom paused it.",
        )
    machine = [*(evidence.get("kernel") or []), *(evidence.get("journal") or [])]
    short = next((one for one in machine if one["id"] in ("oom_killed", "memory_killer")), None)
    if short and any(one.get("death") for one in own) and not box.get("oom_killed"):
        text = f"a process of its rank was killed for memory: {short['message']}"
        yield Cause(str(short["id"]), host, text, str(short["remedy"]), Weight.DEATH, True, True)
    itself = ended and signal_of(box.get("exit_code")) in BY_ITSELF
    yield from (_of_line(host, one, Weight.OWN, itself) for one in own)
    yield from (_of_line(host, one, Weight.CONSEQUENCE) for one in after)
    for finding in machine:
        hardware = bool(finding.get("hardware_or_memory"))
        weight = Weight.KERNEL if hardware else Weight.REMARK
        yield Cause(str(finding["id"]), host, str(finding["message"]), str(finding.get("remedy", "")), weight, hardware)
    if not ended:
        return
    started, booted = evidence.get("started"), evidence.get("boot_time")
    if started and booted and booted > started + BOOT_MARGIN_SECONDS:
        yield Cause(
            "machine_rebooted", host, f"this Spark went down and booted again after its rank had started ({_how(box)})",
            "Read the end of that boot: journalctl --boot -1 --priority warning. Power, heat or the kernel: a person looks first.",
            Weight.MACHINE, True, True,
        )  # fmt: skip
    elif end := _of_end(host, rank, box, own, after, evidence):
        yield end


def _of_line(host: str, one: Facts, weight: Weight, died: bool = False) -> Cause:
    return Cause(
        str(one.get("code") or "known_line"), host, str(one["message"]).rstrip(". "), str(one.get("remedy", "")), weight,
        bool(one.get("hardware_or_memory")), died or bool(one.get("death")),
    )  # fmt: skip


# What a process does to itself: its own last words say why. The others come from outside.
BY_ITSELF = {
    "SIGABRT": "rank_aborted",
    "SIGSEGV": "rank_segfault",
    "SIGBUS": "rank_bus_error",
    "SIGILL": "rank_illegal_instruction",
}
_MEANING = {
    "SIGABRT": "it aborted itself",
    "SIGSEGV": "it touched memory that isn't its own",
    "SIGBUS": "a page of memory could not be had, usually of a full /dev/shm",
    "SIGILL": "it met an instruction that this CPU refuses",
}


def _how(box: Facts) -> str:
    name = signal_of(box.get("exit_code"))
    return f"exit code {box.get('exit_code')}{f', {name}' if name else ''}{', OOMKilled' if box.get('oom_killed') else ''}"


def _of_end(host: str, rank: Facts, box: Facts, own: list[Facts], after: list[Facts], evidence: Facts) -> Cause | None:
    """What the end of a container says; None where the log, or being left alone, explains it."""
    how, name, code = _how(box), signal_of(box.get("exit_code")), box.get("exit_code")
    kernel = [one for one in evidence.get("kernel") or [] if one["id"] == "oom_killed"]
    journal = {one["id"]: one for one in evidence.get("journal") or []}
    last = str((rank.get("log") or {}).get("last_line") or "")[:200]
    words = f"; its last line: {last}" if last else ""
    if box.get("oom_killed") or (name in ("SIGKILL", "SIGTERM") and kernel):
        told = f": {kernel[0]['message']}" if kernel else ""
        return Cause(
            "oom_killed", host, f"its container was killed for memory ({how}){told}",
            "Memory ran out: give the lane less (lane_gpu_memory_utilization, KV cache), or end what else holds memory on this Spark.",
            Weight.DEATH, True, True,
        )  # fmt: skip
    log = rank.get("log") or {}
    in_order = code == 0 and bool(log.get("ended")) and not (log.get("exception") or own or after)
    if (name in ("SIGKILL", "SIGTERM") or in_order) and "memory_killer" in journal:
        one = journal["memory_killer"]
        return Cause("memory_killer", host, f"{one['message']} ({how})", str(one["remedy"]), Weight.DEATH, True, True)
    if (name in ("SIGKILL", "SIGTERM") or code == 255 or in_order) and "docker_restarted" in journal:
        one = journal["docker_restarted"]
        text = f"{one['message']}, which ended its container ({how})"
        return Cause("docker_restarted", host, text, str(one["remedy"]), Weight.DEATH)
    unread = f"; {', '.join(evidence['unread'])}" if evidence.get("unread") else ""
    if name == "SIGKILL":
        text = f"its container was killed ({how}) by somebody or something; Docker saw no lack of memory{unread}"
        return Cause("rank_killed", host, text, "Look who did: journalctl of that time on this Spark.", Weight.DEATH, death=True)
    if name == "SIGTERM":
        text = f"its container was asked to end ({how}), and not by this launch: a person, a service or a shutdown{unread}"
        return Cause(
            "rank_terminated", host, text, "Look who did: journalctl of that time on this Spark.", Weight.DEATH, death=True
        )
    if name in BY_ITSELF:
        if own:
            return None  # said with its own line, which is why
        if name == "SIGABRT" and after:
            return None  # NCCL's watchdog aborts a rank whose peer is lost
        text = f"its engine died of {name} ({how}): {_MEANING[name]}{words}"
        return Cause(
            BY_ITSELF[name],
            host,
            text,
            "Read the end of its saved log, and the kernel log of this Spark.",
            Weight.DEATH,
            death=True,
        )
    if name:
        return Cause(
            "rank_signal",
            host,
            f"its container was ended by {name} ({how}){unread}",
            "Read its saved log.",
            Weight.DEATH,
            death=True,
        )
    if code == 255:
        text = f"its container ended without anybody seeing how ({how}): Docker or the machine went down under it{unread}"
        return Cause(
            "rank_vanished",
            host,
            text,
            "journalctl -u docker and journalctl --list-boots on this Spark.",
            Weight.DEATH,
            death=True,
        )
    if box.get("error") or code in (125, 126, 127) or box.get("status") == "created":
        if own:
            return None
        found = refusal_of(str(box.get("error") or "") or f"{how}{words}", sure=True)
        return Cause(found.id, host, found.sentence, found.remedy, Weight.DOCKER, found.hardware) if found else None
    if own or after:
        return None
    if in_order:
        text = f"its container ended in good order ({how}), and this launch did not ask it to: a person or a service did"
        return Cause(
            "rank_terminated", host, text, "Look who did: journalctl of that time on this Spark.", Weight.DEATH, death=True
        )
    if raised := log.get("exception"):
        return Cause("engine_exception", host, f"it raised {raised} ({how})", "Read the saved log of this rank.")
    said = str(rank.get("failure") or f"its container ended ({how}) and its log names no cause we know{words}").rstrip(". ")
    return Cause(
        "rank_ended", host, said, str(rank.get("remedy") or "Read the saved log of this rank."), Weight.ENDED, death=True
    )
