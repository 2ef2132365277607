# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Where a hostile case happens: a folder with a Spark and, beside it, files of others; the product's modules and jobs as processes of their own.

A module is its own `main()`, with the arguments that Ansible would give it, in a forked process: nothing of the product is stood in for but
its waits, which are shorter, and the start of a job, which is forked instead of starting Python anew (liveness is then asked of the kernel by
its number alone). Docker and ss are a few lines of shell that print what the case has laid out.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
if str(ROOT / "library") not in sys.path:
    sys.path.append(str(ROOT / "library"))

from ansible.module_utils.sparklanes.common import again, stall  # noqa: E402
from ansible.module_utils.sparklanes.common.clock import boot_id  # noqa: E402
from ansible.module_utils.sparklanes.common.files import write_json  # noqa: E402
from ansible.module_utils.sparklanes.docker import jit_cache as kernels  # noqa: E402
from ansible.module_utils.sparklanes.jobs import reporter, runner  # noqa: E402
from ansible.module_utils.sparklanes.weights import sources, steps  # noqa: E402
from ansible.module_utils.sparklanes.weights.chain import choice, offer, take  # noqa: E402
from ansible.module_utils.testing import patch_module_args  # noqa: E402

from benchmarks.hostile.judge import Outside, Said, disk  # noqa: E402

SECRET = "of this benchmark, and of nothing else ever"
SECONDS = 40.0
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LOCK = f"huggingface-hub==2.4.0 --hash=sha256:{'0' * 64}\n"
STUBS = {
    "docker": """case "$1" in ps) cat "$LAID/ids" 2>/dev/null || true;; inspect) cat "$LAID/inspect" 2>/dev/null || echo '[]';; logs) tail -n "$4" "$LAID/log" 2>/dev/null || true;;
info) echo '{"ServerVersion": "28.0", "DockerRootDir": "/var/lib/docker", "Driver": "overlay2"}';; esac""",
    "ss": "true",
    "ping": "exit 1",
    "journalctl": "true",
    "dmesg": "true",
}
# The product's own waits, by module: seconds that a case shall not last; and two limits whose files would take a busy disk minutes.
WAITS: Mapping[Any, Mapping[str, float]] = {
    again: {"FIRST_SECONDS": 0.05},
    steps: {"RETRY_WAIT": 0.05},
    sources: {"HTTP_TIMEOUT": 3.0},
    choice: {"SILENCE": 4.0, "PENALTY": 1.0, "STANDING": 8.0},
    take: {"LOOK_SELDOM": 0.5},
    stall: {"SECONDS": 6.0, "LOOK_SECONDS": 0.5},
    reporter: {"BEAT": 0.5},
    kernels: {"MOST_FILES": 2000, "MOST_ENTRIES": 8000},
}


def alive(pid: int, *_: object, **__: object) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def launch(jobs: runner.Jobs, job: str, folder: Path, properties: Mapping[str, str]) -> None:
    """Instead of `Jobs._launch`: the job's outermost function, in a process of its own session."""
    pid = os.fork()
    if pid == 0:
        os.closerange(3, 4096)  # as an exec would: a lock goes with whoever has it open
        become(folder / "log", folder / "log", lambda: sys.exit(reporter.main(folder)))
    write_json(folder / "process.json", {"pid": pid, "boot": boot_id()})
    threading.Thread(target=lambda: os.waitpid(pid, 0), daemon=True).start()


def become(out: Path, err: Path, work: Callable[[], Any]) -> NoReturn:
    """In a process that was just forked: do this alone, and end."""
    code = 1
    try:
        os.setsid()
        os.umask(0o022)
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout, sys.stderr = (open(one, "w", encoding="utf-8", errors="backslashreplace", closefd=False) for one in (1, 2))  # noqa: SIM115
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class Arena:
    """One case's folder, and all that was started in it."""

    def __init__(self, root: Path, seed: int = 1) -> None:
        self.root = root
        self.chance = random.Random(seed)
        self.node, self.laid, self.notes = root / "node", root / "laid", root / "notes"
        for folder in (self.node / "models", self.laid, root / "said", root / "bin"):
            folder.mkdir(parents=True)
        self.notes.touch()
        for name, text in STUBS.items():
            (root / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (root / "bin" / name).chmod(0o755)
        self.outside = Outside(root / "outside", f"secret-{self.chance.getrandbits(64):016x}")
        self.says: list[Said] = []
        self.children: list[int] = []
        self.calls = self.most_disk = 0

    def places(self, *names: str) -> dict[str, str]:
        return {f"{name}_dir": str(self.node / name) for name in names}

    def note(self, **what: Any) -> None:
        """What an adversary did; whoever judges asks whether the attack was made at all."""
        with self.notes.open("a") as stream:
            stream.write(json.dumps(what) + "\n")

    def noted(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.notes.read_text().splitlines()]

    # The product.

    def ready(self) -> None:
        """In the process of the product: a Spark of its own, and no long waits."""
        os.environ.update({"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "LAID": str(self.laid), "NO_PROXY": "*"})
        os.environ.update({"HOME": str(self.node), "TMPDIR": str(self.root)})
        for place, waits in WAITS.items():
            for name, seconds in waits.items():
                setattr(place, name, seconds)
        runner.SYSTEMD = self.root / "no systemd"
        setattr(runner.Jobs, "_launch", launch)  # noqa: B010 (mypy)
        for module in (runner, offer):
            setattr(module, "process_alive", alive)  # noqa: B010 (mypy)
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))

    def run(self, what: str, work: Callable[[], Any], seconds: float = SECONDS) -> Said:
        """Do something of the product in a process of its own."""
        self.calls += 1
        out, err = (self.root / "said" / f"{self.calls}.{kind}" for kind in ("out", "err"))

        def all_of_it() -> None:
            self.ready()
            work()

        pid = self.fork(all_of_it, out, err)
        limit, code, used, looked = time.monotonic() + seconds, None, None, 0.0
        while time.monotonic() < limit:
            ended, status, used = os.wait4(pid, os.WNOHANG)
            if ended:
                self.children.remove(pid)
                code = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() > looked + 0.1:
                looked = time.monotonic()
                self.most_disk = max(self.most_disk, disk(self.node))
            time.sleep(0.005)
        printed, errors = (path.read_text(errors="replace") if path.exists() else "" for path in (out, err))
        said = Said(what, code, printed, errors, result_of(printed), memory=used.ru_maxrss * 1024 if used else 0)
        self.says.append(said)
        return said

    def module(self, name: str, args: Mapping[str, Any], check: bool = False, **more: Any) -> Said:
        """A module as Ansible runs it."""
        module = importlib.import_module(name)  # before the fork: the next one finds it

        def work() -> None:
            with patch_module_args({**args, "_ansible_check_mode": check, "_ansible_remote_tmp": str(self.root)}):
                module.main()

        return self.run(name, work, **more)

    def stage(self, model: Mapping[str, Any], seconds: float = SECONDS, **args: Any) -> Said:
        """Ask for a model and follow the job to its end."""
        common: dict[str, Any] = {"host": "spark-2", "reserve_gib": 0, "workers": 2, "hub_lock": LOCK, "hub_user": ""}
        common |= self.places("staged", "jobs", "venvs")
        first = self.module("model_stage", {"models": [dict(model)], **common, **args}, seconds=seconds)
        if "job" not in first.result:
            return first
        return self.module("job_status", {"job": "stage", "wait": seconds, **self.places("jobs")}, seconds=seconds + 10)

    def job_logs(self) -> dict[str, str]:
        return {
            f"log of job {path.parent.name}": path.read_text(errors="replace")
            for path in sorted((self.node / "jobs").glob("*/log"))
            if path.is_file() and not path.is_symlink()
        }

    # Others.

    def fork(self, work: Callable[[], Any], out: Path, err: Path) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # whatever ends the case ends it
            become(out, err, work)
        self.children.append(pid)
        return pid

    def adversary(self, work: Callable[[], Any]) -> int:
        return self.fork(work, self.root / "said" / "adversary", self.root / "said" / "adversary")

    def end(self) -> None:
        """End all that was started here, by its number."""
        for path in (self.node / "jobs").glob("*/process.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
                pid = json.loads(path.read_bytes()).get("pid")
                # A case may have written any number there: only what is of this case.
                if type(pid) is int and pid > 1 and str(self.root) in environment(pid):
                    self.children.append(pid)
        for pid in self.children:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGTERM)
        limit = time.monotonic() + 3
        for pid in self.children:
            while alive(pid) and time.monotonic() < limit:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
                time.sleep(0.01)
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)


def environment(pid: int) -> str:
    """What a process has open, which tells whose it is: a forked one has no environment of its own."""
    found = []
    for number in (1, 2):
        with contextlib.suppress(OSError):
            found.append(str(Path(f"/proc/{pid}/fd/{number}").readlink()))
    return " ".join(found)


def result_of(text: str) -> dict[str, Any]:
    """The JSON object that a module ends with."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            data = json.loads(line)
            if isinstance(data, dict):
                return data
    return {}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])
