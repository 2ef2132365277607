"""A person at the sandbox: runs playbooks as one would type them, and looks at the nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from outcome import Outcome  # noqa: E402

# These tests follow the tasks of a run and count its changes. What a person sees is tested in tests/unit/screen.
os.environ["SPARKLANES_SCREEN"] = "full"

NODES = ("spark-1", "spark-2")


class Fleet:
    """The two nodes of the sandbox and the controller beside them."""

    deployment = "sparks"

    def command(self, playbook: str, *more: str, limit: str = "sparks") -> list[str]:
        return ["ansible-playbook", "-i", "inventory/sandbox", playbook, "-l", limit, *more]

    def play(self, playbook: str, *more: str, limit: str = "sparks") -> Outcome:
        done = subprocess.run(self.command(playbook, *more, limit=limit), cwd=ROOT, capture_output=True, text=True, check=False)
        return Outcome(done.returncode, done.stdout + done.stderr)

    def start(self, playbook: str, *more: str) -> subprocess.Popen[str]:
        """Start a playbook in a process group of its own, as a terminal does."""
        return subprocess.Popen(
            self.command(playbook, *more),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def on(self, node: str, command: str, check: bool = True) -> str:
        done = subprocess.run(["script/sandbox", "ssh", node, command], cwd=ROOT, capture_output=True, text=True, check=False)
        if check:
            assert done.returncode == 0, f"{node}: {command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def ranks(self) -> dict[str, str]:
        """Id of the running rank container of each node, empty where none runs."""
        return {node: self.on(node, "docker ps --quiet --no-trunc --filter label=sparklanes.deployment=sparks") for node in NODES}

    def state(self, node: str = "spark-1") -> dict[str, Any]:
        text = self.on(node, "cat /var/lib/sparklanes/deployments/sparks/state.json 2>/dev/null || echo '{}'")
        state: dict[str, Any] = json.loads(text)
        return state

    def transaction(self, node: str = "spark-1") -> dict[str, Any]:
        text = self.on(node, "cat /var/lib/sparklanes/deployments/sparks/transaction.json 2>/dev/null || echo '{}'")
        held: dict[str, Any] = json.loads(text)
        return held

    def receipts(self) -> list[Path]:
        """Folders of receipts, oldest first."""
        return sorted(path.parent for path in (ROOT / "artifacts" / self.deployment).glob("*/receipt.json"))

    def values(self) -> dict[str, Any]:
        """What the sandbox wrote into its inventory for all nodes."""
        data = yaml.safe_load((ROOT / "inventory" / "sandbox" / "10-sandbox.yml").read_text(encoding="utf-8"))
        values: dict[str, Any] = data["all"]["children"]["sparks"]["vars"]
        return values

    @property
    def api(self) -> str:
        return f"http://{self.values()['sandbox_api_host']}:8000"


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """Two staged nodes on which nothing runs and no lane has a bank; afterwards nothing runs either."""
    os.environ.setdefault("ANSIBLE_CONFIG", str(ROOT / "ansible.cfg"))
    made = Fleet()
    made.play("playbooks/stop.yml").ok()
    for node in NODES:  # what earlier runs on kept nodes left
        made.on(node, "rm -rf /var/lib/sparklanes/deployments/sparks")
    for bank in Path(made.values()["gates_bank_directories"][0]).glob("*.json.gz"):
        bank.unlink()
    made.play("site.yml").ok()
    yield made
    made.play("playbooks/stop.yml")
