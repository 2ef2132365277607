# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The fabric under a boot: each Spark sends bytes to and fro to every other one, again and again, and writes down what came back.

Ranks that wait for each other print nothing when a cable goes: without this a cut fabric shows as a stall, after minutes and without the
pair. Another Spark that does not listen (not yet, or no more) refuses, and a refusal is bytes that came through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.clock import boot_id, clock
from ansible.module_utils.sparklanes.common.files import read_json, write_json
from ansible.module_utils.sparklanes.fabric import exchange
from ansible.module_utils.sparklanes.jobs.reporter import Reporter

Facts = Mapping[str, Any]

ROOT = Path("/run/sparklanes/fabric")
EVERY_SECONDS = 2.0  # between two words of one pair
# Two words in a row that do not come back, each with its own time-out: a Spark that is busy for some seconds is no cut cable.
CUT_TRIES, CUT_SECONDS = 2, 6.0
FRESH_SECONDS = 15.0  # older than that the watch itself has ended, and nothing is known
# A rank that has printed nothing for so long waits for something, whatever its phase.
QUIET_SECONDS = 30.0
WAITING = ("init", "rendezvous")  # phases of engine.log in which ranks only wait for each other


def job(deployment: str) -> str:
    return f"fabric-{deployment}"


def record(deployment: str, root: Path = ROOT) -> Path:
    return root / f"{deployment}.json"


def watch(args: dict[str, Any], secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    """Ask all peers until `seconds` are over or the job is stopped. The function that `jobs` runs."""
    probes, path = list(args["probes"]), Path(args["path"])
    port, end = int(args.get("port") or exchange.PORT), time.monotonic() + float(args["seconds"])
    echo = exchange.Echo([str(probe["source"]) for probe in probes if probe.get("source")], port)
    began = clock()
    lines: list[dict[str, Any]] = [{**probe, "since": began, "tries": 0, "outcome": "", "error": ""} for probe in probes]
    report.phase("watch the fabric")
    try:
        while time.monotonic() < end:
            asked = time.monotonic()
            threads = [threading.Thread(target=_one, args=(line, port), daemon=True) for line in lines]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(exchange.SECONDS + 2)
            write_json(path, {"boot": boot_id(), "time": clock(), "lines": [dict(line) for line in lines]}, 0o644)
            report.alive()
            time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - asked)))
    finally:
        echo.close()
        path.unlink(missing_ok=True)
    return {"changed": False, "actions": []}


def _one(line: dict[str, Any], port: int) -> None:
    result = exchange.ask(line, exchange.SECONDS, port)
    if result["outcome"] in ("answered", "refused"):
        line.update(result, since=clock(), tries=0)
    else:
        line.update(result, tries=int(line["tries"]) + 1)


def cut(data: Any, now: float, boot: str) -> list[dict[str, Any]]:
    """The pairs between which nothing gets through now, as `watch` wrote them down; none where it wrote nothing lately. Pure."""
    if not isinstance(data, Mapping) or data.get("boot") != boot:
        return []
    try:
        if now - float(data["time"]) > FRESH_SECONDS:
            return []
        return [
            {**line, "seconds": round(now - float(line["since"]), 1)}
            for line in data["lines"]
            if int(line["tries"]) >= CUT_TRIES and now - float(line["since"]) >= CUT_SECONDS
        ]
    except (KeyError, TypeError, ValueError):
        return []


def look(deployment: str, root: Path = ROOT) -> list[dict[str, Any]]:
    """`cut`, of this Spark now."""
    return cut(read_json(record(deployment, root)), clock(), boot_id())


def waits(phase: str, heartbeat_age: float | None) -> bool:
    """Whether a rank in this phase, silent for so long, can be waiting for another one."""
    return phase in WAITING or (phase != "serving" and (heartbeat_age or 0.0) >= QUIET_SECONDS)


def sentence(lines: Sequence[Facts]) -> str:
    """What is cut, without the name of this Spark and full stop."""
    told = [f"{exchange.where(line)} for {float(line['seconds']):.0f} s: {exchange.said(line)}" for line in lines]
    return "the fabric is cut: " + "; ".join(told)


REMEDY = "Look at the cable, the switch port and the firewall of that pair, then playbooks/fabric_test.yml; then playbooks/recover.yml."
