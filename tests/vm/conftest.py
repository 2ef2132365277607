"""A person at two virtual machines: runs playbooks and modules as one would type them, and looks at the machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from outcome import Outcome  # noqa: E402

from sandbox.layout import Clone  # noqa: E402
from sandbox.vms import Machine, Pair  # noqa: E402

NODES = ("spark-1", "spark-2")
GIB, MIB = 1024**3, 1024**2
# What the fixtures converge the machines to; a Spark's kernel starts with 60.
SWAPPINESS = "10"


def until(what: str, condition: Callable[[], Any], seconds: float = 300, pause: float = 1) -> Any:
    """The first true answer. The time is for a machine that is emulated and shares its cores; no test measures it."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(pause)
    return answer


class Person:
    """What can be done to the two machines."""

    def __init__(self, pair: Pair, sockets: Path) -> None:
        self.pair = pair
        self.sockets = sockets
        self.environment = os.environ | {
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_HOME": str(ROOT / ".ansible"),
            "SPARKLANES_SCREEN": "full",
        }

    def machine(self, node: str) -> Machine:
        return self.pair.machines[NODES.index(node)]

    def ssh(self, node: str, *command: str) -> list[str]:
        """Over one connection that stays: a login costs an emulated processor seconds."""
        argv = self.pair.ssh(node, *command)
        stays = ("ControlMaster=auto", f"ControlPath={self.sockets}/%n", "ControlPersist=600", "ServerAliveInterval=10")
        return [argv[0], *(word for option in stays for word in ("-o", option)), *argv[1:]]

    def hang_up(self, node: str) -> None:
        argv = self.ssh(node)
        subprocess.run([*argv[:1], "-O", "exit", *argv[1:]], capture_output=True, timeout=60, check=False)

    def on(self, node: str, command: str, check: bool = True, stdin: str = "") -> str:
        # A file for the errors: the connection that stays would hold a pipe open.
        with tempfile.TemporaryFile("w+") as errors:
            done = subprocess.run(
                self.ssh(node, command), input=stdin, stdout=subprocess.PIPE, stderr=errors, text=True, check=False
            )
            errors.seek(0)
            why = errors.read()
        if check:
            assert done.returncode == 0, f"{node}: {command}: {done.stdout}{why}"
        return done.stdout.strip()

    def start(self, node: str, command: str) -> subprocess.Popen[str]:
        """A command that goes on; ended by the caller."""
        return subprocess.Popen(
            self.ssh(node, command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def play(self, playbook: str, *more: str, limit: str = "sparks") -> Outcome:
        done = self.ansible("ansible-playbook", playbook, "-l", limit, *more)
        return Outcome(done.returncode, done.stdout + done.stderr)

    def site(self, limit: str = "sparks", swappiness: str = SWAPPINESS, **variables: Any) -> Outcome:
        """The host part, there being no lane. The swappiness is what a lane would ask for."""
        wanted = {"spark_kernel_swappiness": int(swappiness), **variables}
        return self.play("site.yml", "-e", json.dumps(wanted), limit=limit)

    def role(self, name: str, hosts: str = NODES[0], **variables: Any) -> Outcome:
        """One role alone, where the rest of site.yml is not the matter."""
        done = self.ansible("ansible", hosts, "-m", "include_role", "-a", f"name={name}", "-e", json.dumps(variables))
        return Outcome(done.returncode, done.stdout + done.stderr)

    def module(self, name: str, hosts: str = "sparks", user: str = "root", **arguments: Any) -> dict[str, dict[str, Any]]:
        """Results of a module by host, failed ones included."""
        given = ("-a", json.dumps(arguments)) if arguments else ()
        done = self.ansible(
            *("ansible", hosts, "-m", name, *given, "-e", f"ansible_user={user}"),
            more={"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"},
        )
        try:
            results: dict[str, dict[str, Any]] = json.loads(done.stdout)["plays"][0]["tasks"][0]["hosts"]
        except (ValueError, LookupError):
            raise AssertionError(f"no result of {name}: {done.stdout[-3000:]}{done.stderr[-3000:]}") from None
        assert results, f"{name} ran nowhere: {done.stdout}{done.stderr}"
        return results

    def ansible(self, *command: str, more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        argv = [command[0], "-i", str(self.pair.inventory), *command[1:]]
        return subprocess.run(
            argv,
            cwd=ROOT,
            env=self.environment | (more or {}),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    # --- what a machine says of itself

    def boot(self, node: str) -> str:
        return self.on(node, "cat /proc/sys/kernel/random/boot_id")

    def swappiness(self, node: str) -> str:
        return self.on(node, "cat /proc/sys/vm/swappiness")

    def meminfo(self, node: str) -> dict[str, int]:
        """In bytes."""
        lines = (line.split() for line in self.on(node, "cat /proc/meminfo").splitlines())
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}

    def restart(self, reset: Callable[[str], Any], nodes: Sequence[str] = NODES) -> None:
        """All at once by the given means, until each is in another boot and whole."""
        before = {node: self.boot(node) for node in nodes}

        def one(node: str) -> None:
            reset(node)
            self.hang_up(node)
            self.pair.wait_for(self.machine(node), other_than=before[node])

        with ThreadPoolExecutor() as pool:
            list(pool.map(one, nodes))


@pytest.fixture(scope="session")
def fresh() -> Iterator[Person]:
    """Two machines, up by `script/sandbox vms up`."""
    pair = Pair(Clone(ROOT))
    assert all(machine.pid for machine in pair.machines), "the machines aren't up: script/sandbox vms up"
    with tempfile.TemporaryDirectory(prefix="vm-") as sockets:  # a short path, as sockets need
        person = Person(pair, Path(sockets))
        yield person
        for node in NODES:
            person.hang_up(node)


@pytest.fixture(scope="session")
def untouched(fresh: Person) -> dict[str, str]:
    """Files below /etc with their hashes, by machine, as they were before we did anything."""
    note = fresh.pair.untouched
    if not note.exists():
        note.write_text(json.dumps({node: fresh.on(node, ETC) for node in NODES}))
    found: dict[str, str] = json.loads(note.read_text())
    return found


# But the copies that useradd leaves.
ETC = "find /etc -type f ! -name '*-' -print0 | sort -z | xargs -0 sha256sum; find /etc -type l -printf '%p -> %l\\n' | sort"


@pytest.fixture(scope="session")
def person(fresh: Person, untouched: dict[str, str]) -> Person:
    """Machines that site.yml has converged."""
    fresh.site().ok()
    return fresh


Session = Callable[[str], str]
USER = "probe"


@pytest.fixture
def user(person: Person) -> Iterator[Session]:
    """An ordinary user of the first machine who comes by ssh: runs a command of theirs in a session of its own."""
    node = NODES[0]
    key = (person.pair.image() / "id_ed25519.pub").read_text()
    person.on(node, f"useradd --create-home --shell /bin/sh {USER} && install -d -m 700 -o {USER} ~{USER}/.ssh")
    person.on(node, f"cat > ~{USER}/.ssh/authorized_keys", stdin=key)
    own = person.pair.ssh(node)
    own[1:1] = ["-l", USER]

    def session(command: str) -> str:
        done = subprocess.run([*own, command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{USER}: {command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    yield session
    person.on(node, f"loginctl terminate-user {USER}; rm -f /dev/shm/{USER}; userdel --force --remove {USER}", check=False)
    for kind in ("-m", "-s"):
        person.on(node, f"for id in $(ipcs {kind} | awk '$3 == \"{USER}\" {{print $2}}'); do ipcrm {kind} $id; done")
