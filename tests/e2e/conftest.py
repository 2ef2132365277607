"""A person at the sandbox: runs playbooks as one would type them, and looks at the nodes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
# Name and options of a container that is a rank of another deployment.
OTHER = ("sparklanes-other-rank0", "--label sparklanes.deployment=other")


def shown(run: subprocess.Popen[str], *texts: str) -> str:
    """What a run printed up to the first line that holds one of these texts. It fails where none was ever shown."""
    assert run.stdout
    seen = []
    for line in run.stdout:
        seen.append(line)
        if any(text in line for text in texts):
            return "".join(seen)
    pytest.fail(f"never shown: {' or '.join(map(repr, texts))}:\n{''.join(seen)[-4000:]}")


def eventually(true: Callable[[], bool], seconds: float, pause: float, otherwise: Callable[[], str]) -> None:
    """Until it is true; it fails after so many seconds, with these words."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(pause)


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

    def interrupted(self, number: int, *texts: str, after: float = 1.0) -> str:
        """What a launch that restarts the ranks printed that got this signal a moment after it showed one of these texts."""
        run = self.start("playbooks/launch.yml", "-e", "launch_restart=true")
        said = shown(run, *texts)
        time.sleep(after)
        os.killpg(run.pid, number)
        assert run.stdout
        said += run.stdout.read()
        run.wait(timeout=90)
        return said

    def serve(self) -> None:
        """From now on a lane serves that is last good."""
        self.play("playbooks/launch.yml").ok()
        if self.state()["status"] != "serving":
            self.play("playbooks/bank.yml", "-e", "bank_accept=true").ok()
            self.play("playbooks/launch.yml").ok()
        assert self.state()["status"] == "serving"

    @contextlib.contextmanager
    def container(self, node: str, name: str, options: str = "", program: str = "sleep 600") -> Iterator[None]:
        """A container that is none of the lane's, of its image, on a node; afterwards it is gone."""
        entrypoint, _, arguments = program.partition(" ")
        self.on(node, f"docker run -d --name {name} {options} --entrypoint {entrypoint} {self.image} {arguments}")
        try:
            yield
        finally:
            self.on(node, f"docker stop -t 1 {name} && docker rm {name}")

    def put(self, node: str, path: str, program: bytes) -> None:
        """A program at this path of a node."""
        command = ["script/sandbox", "ssh", node, f"cat > {path} && chmod 755 {path}"]
        subprocess.run(command, cwd=ROOT, input=program, check=True)

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

    def logged(self) -> set[str]:
        """Nodes whose rank has a log in the last receipt."""
        return {path.name.split("-rank")[0] for path in self.receipts()[-1].glob("*-rank*.log")}

    def values(self) -> dict[str, Any]:
        """What the sandbox wrote into its inventory for all nodes."""
        data = yaml.safe_load((ROOT / "inventory" / "sandbox" / "10-sandbox.yml").read_text(encoding="utf-8"))
        values: dict[str, Any] = data["all"]["children"]["sparks"]["vars"]
        return values

    @property
    def image(self) -> str:
        values = self.values()
        return f"{values['sandbox_image_repository']}@{values['sandbox_image_digest']}"

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
