# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a Spark does by itself after a boot that nobody asked for: nothing, or start its rank of what was last good.

Role spark_boot packs this file with what it imports into one archive, which a systemd unit runs at boot. Ranks wait
for each other as in any launch, so every Spark starts its own and none looks at another. What was stopped by a person
stays stopped, and what waits for a person goes on waiting.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.clock import boot_id
from ansible.module_utils.sparklanes.common.files import LOG_ROOT, STATE_ROOT, Unreadable, read_json, write_json
from ansible.module_utils.sparklanes.docker.containers import DockerError
from ansible.module_utils.sparklanes.gpu import occupied
from ansible.module_utils.sparklanes.rank.run import Rank, RankError
from ansible.module_utils.sparklanes.release.store import Store, unreadable_lock, unreadable_state
from ansible.module_utils.sparklanes.release.transaction import (
    DEATHS_BEFORE_A_PERSON,
    JUDGED,
    RESTORED,
    SERVING,
    SUSPECT,
    UNBANKED,
    DeploymentState,
    Transaction,
)

STAY_DOWN = "stay_down"
LAUNCH = "launch_last_good"
POLICIES = (STAY_DOWN, LAUNCH)
SETTINGS = "/etc/sparklanes/boot.json"
REPORT = "/run/sparklanes/boot.json"
UNREADABLE = (RankError, DockerError, OSError, ValueError, KeyError, TypeError, AttributeError)
LINKS_SECONDS = 180.0
DRIVER_SECONDS = 60.0
# A start after which the Spark soon boots once more is a death that nobody saw. Two of them, and a person looks first.
STARTS = "boot-starts.json"
LOOP_SECONDS = 2 * 3600.0


def decide(policy: str, state: DeploymentState, transaction: Transaction | None) -> tuple[str, str]:
    """The release to start, empty for none; and why, as a sentence. Two empty texts where nothing ran before."""
    if transaction is not None:
        return "", (
            f"stays down: transaction {transaction.id} of {transaction.controller} is open in phase '{transaction.phase}'. "
            "playbooks/recover.yml finishes or undoes it"
        )
    if state.status not in (SERVING, RESTORED, JUDGED, UNBANKED, SUSPECT) or not state.current:
        return "", ""
    if policy != LAUNCH:
        return (
            "",
            f"stays down by policy; release {state.current} of lane {state.lane} served before. playbooks/launch.yml starts it",
        )
    if state.waits_for_a_person():
        return "", f"stays down: {len(state.deaths)} deaths were not explained. A person reads the saved logs first"
    if state.status not in (SERVING, RESTORED, JUDGED) or state.current != state.last_good:
        return (
            "",
            f"stays down: release {state.current} served as {state.status}, and only what passed all gates starts by itself",
        )
    return state.current, f"starts release {state.current} of lane {state.lane}, which passed all gates"


def wait_for_address(address: str, seconds: float = LINKS_SECONDS) -> str:
    """Why the fabric is not there yet after all that time, empty once it is: its links come up after the management network."""
    end = time.monotonic() + seconds
    while address:
        _, out, err = commands.run(["ip", "-brief", "address", "show"])
        if any(word.partition("/")[0] == address for word in out.split()):
            return ""
        if time.monotonic() >= end:
            return f"its fabric address {address} is on no interface {err.strip()}".rstrip()
        time.sleep(2)
    return ""


def started_in_vain(state_root: str, release: str, now: float, boot: str) -> int:
    """How often this release was started by itself of late, in boots of the Spark that are over."""
    known = (read_json(Path(state_root, STARTS)) or {}).get("starts")
    return sum(
        isinstance(start, dict)
        and start.get("release") == release
        and start.get("boot_id") != boot
        and isinstance(start.get("at"), int)
        and now - start["at"] < LOOP_SECONDS
        for start in (known if isinstance(known, list) else [])
    )


def note_start(state_root: str, release: str, now: float, boot: str) -> None:
    """Before the start: after it, nobody may be there to write."""
    known = (read_json(Path(state_root, STARTS)) or {}).get("starts")
    kept = [start for start in (known if isinstance(known, list) else []) if isinstance(start, dict)][-9:]
    write_json(Path(state_root, STARTS), {"starts": [*kept, {"release": release, "at": int(now), "boot_id": boot}]}, 0o644)


def in_the_way(deployment: str, state_root: str, seconds: float = DRIVER_SECONDS) -> str:
    """What works here beside this deployment already: Docker starts again what has a restart policy. Docker and the driver may need a while."""
    end = time.monotonic() + seconds
    while True:
        seen = occupied.look(root=state_root)
        if not seen.unknown or time.monotonic() >= end:
            return seen.holder(but=deployment)
        time.sleep(2)


def look(policy: str, deployment: str, state_root: str) -> tuple[str, str]:
    """`decide` for one deployment as it lies on the disk. What can't be read stays down: a lock may be held, a state is a ValueError."""
    try:
        store = Store(deployment, state_root)
    except ValueError as error:
        folder = Path(state_root, "deployments", deployment)
        raise ValueError(f"{folder} was not made by a launch ({error}). Move it out of {folder.parent}") from error
    try:
        transaction = store.transaction()
    except Unreadable as error:
        return "", f"stays down: {unreadable_lock(error)}"
    try:
        state = store.state()
    except Unreadable as error:
        raise ValueError(unreadable_state(error)) from error
    return decide(policy, state, transaction)


def start(deployment: str, release: str, state_root: str, log_root: str) -> str:
    """Start this Spark's rank; why it was not started, empty where it was."""
    store, now, boot = Store(deployment, state_root), time.time(), boot_id()
    times = started_in_vain(state_root, release, now, boot)
    if times >= DEATHS_BEFORE_A_PERSON:
        return (
            f"this Spark started it by itself {times} times within {LOOP_SECONDS / 3600:g} hours, and booted again each time. "
            "A person reads the journal of those boots first (journalctl --list-boots); playbooks/launch.yml starts it"
        )
    other = in_the_way(deployment, state_root)
    if other:
        return f"{other} already. Stop it if it may go, then playbooks/launch.yml starts the release"
    try:
        env = (store.spec(release) or {}).get("env")
    except Unreadable as error:
        return f"{error}. playbooks/launch.yml freezes it anew"
    missing = wait_for_address(str((env if isinstance(env, dict) else {}).get("VLLM_HOST_IP") or ""))
    if missing:
        return missing
    note_start(state_root, release, now, boot)
    Rank(commands.run, deployment, state_root, log_root).start(release, os.environ)
    return ""


def act(policy: str, names: Sequence[str], state_root: str, log_root: str) -> list[dict[str, Any]]:
    """Decide about every deployment that this Spark knows of, and act; what to report."""
    told: list[dict[str, Any]] = []
    for name in names:
        entry: dict[str, Any] = {"deployment": name, "release": "", "sentence": "", "started": False, "failed": False}
        try:
            entry["release"], entry["sentence"] = look(policy, name, state_root)
        except UNREADABLE as error:
            entry |= {"failed": True, "sentence": f"stays down: {error}"}
        told += [entry] if entry["sentence"] else []
    chosen = [entry for entry in told if entry["release"]]
    for entry in chosen:
        others = [one["deployment"] for one in chosen if one is not entry]
        why = (
            f"{', '.join(others)} is recorded as serving on this Spark too, and one of them can't be true. "
            "Launch the one that is meant, and stop the other (playbooks/stop.yml -e deployment=NAME)"
        )
        try:
            failure = why if others else start(entry["deployment"], entry["release"], state_root, log_root)
        except UNREADABLE as error:
            failure = str(error)
        entry |= {"started": not failure, "failed": bool(failure)}
        if failure:
            entry["sentence"] = f"stays down: release {entry['release']} was not started, as {failure}"
    return told


def main(argv: list[str]) -> int:
    """`after_boot.pyz [SETTINGS [REPORT [STATE_ROOT [LOG_ROOT]]]]`"""
    settings, report, state_root, log_root = (*argv[1:], *(SETTINGS, REPORT, STATE_ROOT, LOG_ROOT)[len(argv) - 1 :])
    policy = str((read_json(settings) or {}).get("policy", ""))
    if policy not in POLICIES:
        print(f"{settings} names the policy {policy!r}; expected {' or '.join(POLICIES)}. Nothing was started", file=sys.stderr)
        return 1
    folder = Path(state_root, "deployments")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    told = act(policy, names, state_root, log_root)
    write_json(report, {"boot_id": boot_id(), "policy": policy, "at": int(time.time()), "deployments": told}, 0o644)
    for entry in told:
        print(f"{entry['deployment']} {entry['sentence']}", flush=True)
    return 1 if any(entry["failed"] for entry in told) else 0
