# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a Spark does by itself after a boot that nobody asked for: nothing, or start its rank of what was last good.

Role spark_boot packs this file with what it imports into one archive, which a systemd unit runs at boot. Ranks wait
for each other as in any launch, so every Spark starts its own and none looks at another. What was stopped by a person
stays stopped, and what waits for a person goes on waiting.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes import engine_boots
from ansible.module_utils.sparklanes.containers import DockerError
from ansible.module_utils.sparklanes.files import LOG_ROOT, STATE_ROOT, read_json, write_json
from ansible.module_utils.sparklanes.ranks import Rank, RankError
from ansible.module_utils.sparklanes.releases import RESTORED, SERVING, SUSPECT, UNBANKED, DeploymentState, Store, Transaction

STAY_DOWN = "stay_down"
LAUNCH = "launch_last_good"
POLICIES = (STAY_DOWN, LAUNCH)
SETTINGS = "/etc/sparklanes/boot.json"
REPORT = "/run/sparklanes/boot.json"
PACKAGE = "ansible.module_utils.sparklanes"
LINKS_SECONDS = 180.0


def decide(policy: str, state: DeploymentState, transaction: Transaction | None) -> tuple[str, str]:
    """The release to start, empty for none; and why, as a sentence. Two empty texts where nothing ran before."""
    if transaction is not None:
        return "", (
            f"stays down: transaction {transaction.id} of {transaction.controller} is open in phase '{transaction.phase}'. "
            "playbooks/recover.yml finishes or undoes it"
        )
    if state.status not in (SERVING, RESTORED, UNBANKED, SUSPECT) or not state.current:
        return "", ""
    if policy != LAUNCH:
        return (
            "",
            f"stays down by policy; release {state.current} of lane {state.lane} served before. playbooks/launch.yml starts it",
        )
    if state.waits_for_a_person():
        return "", f"stays down: {len(state.deaths)} deaths were not explained. A person reads the saved logs first"
    if state.status not in (SERVING, RESTORED) or state.current != state.last_good:
        return (
            "",
            f"stays down: release {state.current} served as {state.status}, and only what passed all gates starts by itself",
        )
    return state.current, f"starts release {state.current} of lane {state.lane}, which passed all gates"


def run_command(argv: list[str], environ_update: Mapping[str, str] | None = None, **_: Any) -> tuple[int, str, str]:
    """In the shape of AnsibleModule.run_command."""
    done = subprocess.run(
        argv, env={**os.environ, **(environ_update or {})}, capture_output=True, text=True, errors="replace", check=False
    )
    return done.returncode, done.stdout, done.stderr


def wait_for_address(address: str, seconds: float = LINKS_SECONDS) -> str:
    """Why the fabric is not there yet after all that time, empty once it is: its links come up after the management network."""
    end = time.monotonic() + seconds
    while address:
        _, out, err = run_command(["ip", "-brief", "address", "show"])
        if any(word.partition("/")[0] == address for word in out.split()):
            return ""
        if time.monotonic() >= end:
            return f"its fabric address {address} is on no interface {err.strip()}".rstrip()
        time.sleep(2)
    return ""


def one(policy: str, deployment: str, state_root: str, log_root: str) -> dict[str, Any] | None:
    """Decide about one deployment and act; what to report of it, None for nothing."""
    store = Store(deployment, state_root)
    release, sentence = decide(policy, store.state(), store.transaction())
    if not sentence:
        return None
    told = {"deployment": deployment, "release": release, "sentence": sentence, "started": False, "failed": False}
    if not release:
        return told
    missing = wait_for_address(str(((store.spec(release) or {}).get("env") or {}).get("VLLM_HOST_IP") or ""))
    if missing:
        return {**told, "failed": True, "sentence": f"stays down: release {release} could not be started, as {missing}"}
    try:
        Rank(run_command, deployment, state_root, log_root).start(release, os.environ)
    except (RankError, DockerError, OSError, ValueError, KeyError) as error:
        return {**told, "failed": True, "sentence": f"stays down: release {release} could not be started. {error}"}
    return {**told, "started": True}


def main(argv: list[str]) -> int:
    """`after_boot.pyz [SETTINGS [REPORT [STATE_ROOT [LOG_ROOT]]]]`"""
    settings, report, state_root, log_root = (*argv[1:], *(SETTINGS, REPORT, STATE_ROOT, LOG_ROOT)[len(argv) - 1 :])
    policy = str((read_json(settings) or {}).get("policy", ""))
    if policy not in POLICIES:
        print(f"{settings} names the policy {policy!r}; expected {' or '.join(POLICIES)}. Nothing was started", file=sys.stderr)
        return 1
    folder = Path(state_root, "deployments")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    told = [entry for entry in (one(policy, name, state_root, log_root) for name in names) if entry]
    write_json(report, {"boot_id": engine_boots.boot_id(), "policy": policy, "at": int(time.time()), "deployments": told}, 0o644)
    for entry in told:
        print(f"{entry['deployment']} {entry['sentence']}", flush=True)
    return 1 if any(entry["failed"] for entry in told) else 0


def sources(name: str, known: dict[str, str] | None = None) -> dict[str, str]:
    """The source of a module of this package and of all that it imports from it, by name."""
    found = {} if known is None else known
    if name in found:
        return found
    found[name] = inspect.getsource(importlib.import_module(f"{PACKAGE}.{name}"))
    for node in ast.walk(ast.parse(found[name])):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            for alias in node.names:
                sources(alias.name, found)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{PACKAGE}."):
            sources(str(node.module).removeprefix(f"{PACKAGE}."), found)
    return found


def archive() -> bytes:
    """This file and what it imports as an archive that Python runs; equal sources give equal bytes."""
    texts = {f"{PACKAGE.replace('.', '/')}/{name}.py": text for name, text in sources("after_boot").items()}
    folders = {parent.as_posix() for path in texts for parent in Path(path).parents if parent.name}
    texts |= {f"{folder}/__init__.py": "" for folder in folders}
    texts["__main__.py"] = f"import sys\nfrom {PACKAGE}.after_boot import main\nsys.exit(main(sys.argv))\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as pack:
        for path in sorted(texts):
            pack.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), texts[path])
    return buffer.getvalue()
