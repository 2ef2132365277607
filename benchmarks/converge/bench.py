#!/usr/bin/env python3
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""How long it takes to a served model, and what a converged site.yml costs.

    script/bench converge [--only demo|site|eight] [--cache DIR] [--folder DIR]

`demo`   script/demo in a fresh clone, to its summary; then once more, which must change nothing.
`site`   site.yml on two nodes that it has converged before: module executions and CPU seconds.
`eight`  the same on eight nodes, as four deployments of two.

It measures a clone of HEAD, with a sandbox of its own, and removes both however it ends. What it does and what the
commands said goes to standard error and, when something fails, to a log that is kept. docs/benchmarks.md says why the
numbers can be believed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.converge import reading  # noqa: E402
from benchmarks.figures import Figure, emit  # noqa: E402

AIM_DEMO, AIM_AGAIN, AIM_MODULES = 900, 180, 15
LIMIT = 3600  # a command that takes longer hangs
COUNTING_PYTHON, COUNT = "/usr/local/lib/counting-python", "/run/counting-python.log"
IDLE_SECONDS = 10
RANKS = "docker ps --no-trunc --filter label=sparklanes.deployment --format '{{.ID}}' | xargs -r docker inspect --format '{{.Id}} {{.State.StartedAt}}'"


class BenchError(Exception):
    """What could not be measured, and why."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def end(process: subprocess.Popen[bytes], patience: tuple[float, float, float] = (20, 10, 10)) -> None:
    """End a command and what it started in its process group, politely first: they have things to undo."""
    for number, seconds in zip((signal.SIGINT, signal.SIGTERM, signal.SIGKILL), patience, strict=True):
        until = time.monotonic() + seconds
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < until:
                process.poll()  # else it stays in the group as a zombie
                os.killpg(process.pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            break
    process.wait()


@dataclass(frozen=True)
class Bench:
    """A temporary clone and the sandbox in it."""

    work: Path
    environment: Mapping[str, str]

    @property
    def clone(self) -> Path:
        return self.work / "sparklanes"

    @property
    def log(self) -> Path:
        return self.work / "log"

    def run(self, *argv: str, environment: Mapping[str, str] | None = None, codes: Sequence[int] = (0,)) -> str:
        """A command in the clone that must end with one of these codes; its output comes back, and stands in the log."""
        output = self.work / "output"
        with output.open("wb") as out:
            process = subprocess.Popen(
                argv,
                cwd=self.clone,
                env=dict(environment or self.environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # ctrl-C is for us; we then end it as it needs to be ended
            )
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                end(process)
                raise BenchError(f"{' '.join(argv)} had no end after {LIMIT} s; see {self.log}") from None
            except BaseException:
                end(process)
                raise
        text = output.read_text(errors="replace")
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(argv)}\n{text}\n")
        if process.returncode not in codes:
            last = "\n".join(text.splitlines()[-15:])
            raise BenchError(f"{' '.join(argv)} ended with {process.returncode}; all of it is in {self.log}, its end:\n{last}")
        return text

    def ssh(self, node: str, command: str, stdin: str = "") -> str:
        """On a node, over one connection that stays: a login would cost the node CPU that we count."""
        options = [
            "-o",
            "ControlMaster=auto",
            "-o",
            "ControlPersist=600",
            "-o",
            f"ControlPath={self.work}/cm-%n",
            "-o",
            "BatchMode=yes",
        ]
        argv = ["ssh", "-F", str(self.clone / ".sandbox/ssh/config"), *options, node, command]
        with self.log.open("ab") as errors:  # a file, for the connection that stays would hold a pipe open
            done = subprocess.run(argv, input=stdin.encode(), stdout=subprocess.PIPE, stderr=errors, timeout=120, check=False)
        if done.returncode != 0:
            raise BenchError(f"{node}: {command!r} ended with {done.returncode}; see {self.log}")
        return done.stdout.decode()

    def hang_up(self) -> None:
        """Close the connections that ssh keeps for us and for Ansible."""
        for socket in (path for path in self.work.glob("c[mp]*/**/*") if path.is_socket()):
            close(socket)
        for socket in self.work.glob("cm-*"):
            close(socket)

    def nodes(self) -> dict[str, str]:
        """Nodes of the sandbox and their addresses."""
        found = json.loads((self.clone / ".sandbox/state.json").read_text())["nodes"]
        return {name: at["mgmt"] for name, at in found.items()}

    def ansible(self, connections: str) -> dict[str, str]:
        """The environment for Ansible, over connections that only runs of this name share."""
        return {
            **self.environment,
            "PATH": f"{Path(sys.executable).parent}:{self.environment['PATH']}",
            "ANSIBLE_CONFIG": str(self.clone / "ansible.cfg"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.work / connections),
        }

    def site(self, connections: str) -> str:
        """site.yml as a person runs it."""
        argv = ("ansible-playbook", "-i", "inventory/sandbox", "site.yml", "-l", "sparks")
        return self.run(*argv, environment=self.ansible(connections))


def close(socket: Path) -> None:
    subprocess.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "node"], capture_output=True, timeout=20, check=False)


# --- demo


def demo(bench: Bench, cached: bool) -> Iterator[Figure]:
    missing = bench.run("script/sandbox", "prepare", "--list").strip()
    note = f"apt-get installed {missing}" if missing else "apt-get had nothing to install: every package was there before"
    note += "; downloads were cached (--cache)" if cached else "; no cache of ours or of pip was used"
    took: list[float] = []
    for name, aim, extra in (("first", AIM_DEMO, note), ("again", AIM_AGAIN, "")):
        say(f"script/demo, {name}")
        before = {node: bench.ssh(node, RANKS) for node in bench.nodes()} if took else {}
        began = time.monotonic()
        output = bench.run("script/demo")
        took.append(time.monotonic() - began)
        yield Figure(f"converge.demo.{name}", round(took[-1], 1), "s", aim, "; ".join(filter(None, (extra, load()))))
    found = reading.recaps(output)
    launch = reading.changed(found, "playbooks/launch.yml")
    yield Figure("converge.demo.again_site_changed", reading.changed(found, "site.yml"), "tasks", 0)
    yield Figure(
        "converge.demo.again_launch_changed", launch, "tasks", None, "scores are measured and brought here at each launch"
    )
    restarted = sum(bench.ssh(node, RANKS) != ranks or not ranks.strip() for node, ranks in before.items())
    yield Figure("converge.demo.again_ranks_restarted", restarted, f"of {len(before)} ranks", 0)


# --- a converged site.yml


def cpu(bench: Bench, nodes: Sequence[str]) -> dict[str, float]:
    """CPU seconds each node has used so far: of all its processes, those of its containers and those gone included."""
    return {node: reading.node_cpu(bench.ssh(node, "cat /sys/fs/cgroup/cpu.stat")) for node in nodes}


def spread(values: Mapping[str, float]) -> str:
    return f"{min(values.values()):.2f} to {max(values.values()):.2f} a node"


def converged(bench: Bench, part: str, count: int) -> Iterator[Figure]:
    say(f"script/sandbox up --nodes {count} --light")
    bench.run("script/sandbox", "up", "--nodes", str(count), "--light")
    addresses = bench.nodes()
    pairs = count > 2
    source = bench.clone / "inventory/sandbox/20-benchmark.yml"  # after the nodes, before the lanes
    source.write_text(reading.inventory(COUNTING_PYTHON, addresses, pairs))
    for node in addresses:
        bench.ssh(node, f"cat > {COUNTING_PYTHON} && chmod 755 {COUNTING_PYTHON}", reading.counting_python(COUNT))
    say("site.yml, to converge the nodes")
    bench.site(f"cp-{part}-first")
    for node in addresses:
        bench.ssh(node, f"test -s {COUNT} && : > {COUNT}")  # it counted, so it is what Ansible uses
    before = cpu(bench, list(addresses))
    time.sleep(IDLE_SECONDS)
    rested = cpu(bench, list(addresses))
    idle = {node: (rested[node] - before[node]) / IDLE_SECONDS for node in addresses}
    say("site.yml, measured")
    before = cpu(bench, list(addresses))
    usage, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    output = bench.site(f"cp-{part}-measured")
    wall, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    after = cpu(bench, list(addresses))
    spent = {node: after[node] - before[node] for node in addresses}
    counts = {node: len(bench.ssh(node, f"cat {COUNT}").splitlines()) for node in addresses}
    source.unlink()

    found = reading.recaps(output, "site.yml")
    what = "four deployments of two" if pairs else "one deployment"
    yield Figure(f"converge.{part}.changed", reading.changed(found, "site.yml"), "tasks", 0, f"{count} nodes, {what}")
    many = " ".join(f"{node}:{number}" for node, number in counts.items())
    # 0 would mean that nothing was counted, not that nothing ran.
    most = max(counts.values()) if min(counts.values()) else None
    yield Figure(f"converge.{part}.modules", most, "executions on the busiest node", AIM_MODULES, many)
    seconds = used.ru_utime + used.ru_stime - usage.ru_utime - usage.ru_stime
    yield Figure(f"converge.{part}.controller_cpu", round(seconds, 2), "s")
    note = f"{spread(spent)}; of it {sum(idle.values()) / count * wall:.2f} s is what an idle node uses in that time"
    yield Figure(f"converge.{part}.node_cpu", round(sum(spent.values()) / count, 2), "s a node", None, note)
    yield Figure(f"converge.{part}.wall", round(wall, 1), "s", None, load())


# --- the clone


def clone(bench: Bench, cache: Path | None) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    changes = subprocess.run(
        ["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    say(f"clone of {commit} in {bench.clone}" + (" (what is not committed is not measured)" if changes else ""))
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(bench.clone)], check=True)
    if cache is not None:
        place = bench.clone / ".sandbox/cache"
        place.parent.mkdir()
        say(f"copying {cache}")
        subprocess.run(["cp", "-a", "--reflink=auto", f"{cache}/.", str(place)], check=True)


def clean(bench: Bench, keep_log: bool) -> None:
    """Remove the nodes, servers, connections and files, whatever state they are in."""
    bench.hang_up()
    if (bench.clone / ".sandbox").exists():
        done = subprocess.run(
            ["script/sandbox", "down", "--all"], cwd=bench.clone, stdout=sys.stderr, start_new_session=True, check=False
        )
        if done.returncode != 0:
            say(
                f"error: the sandbox in {bench.clone} could not be removed: run script/sandbox down --all there, then remove the folder"
            )
            return
    if keep_log and bench.log.exists():
        kept = Path(tempfile.mkdtemp(prefix="sparklanes-bench-log-")) / "log"
        shutil.move(bench.log, kept)
        say(f"the log was kept: {kept}")
    shutil.rmtree(bench.work)


def environment(work: Path) -> dict[str, str]:
    """Ours without what would make a clone less than fresh: our virtual environment, pip's cache, settings of Ansible."""
    ours = str(ROOT / ".venv/bin")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANSIBLE_", "SPARKLANES_", "VIRTUAL_ENV", "PYTHON"))
    }
    kept["PATH"] = ":".join(part for part in os.environ.get("PATH", "").split(":") if part != ours)
    return {**kept, "PIP_CACHE_DIR": str(work / "pip")}


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


Parts = dict[str, Callable[[Bench, bool], Iterator[Figure]]]


def arguments(name: str, purpose: str | None, parts: Parts) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"script/bench {name}", description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if len(parts) > 1:
        parser.add_argument("--only", choices=tuple(parts), help="one part; by default all, one after the other")
    parser.set_defaults(only=None)
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="copy DIR, a .sandbox/cache, into the clone: no downloads, and no figure of a bare machine",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="a disk with 20 GiB free for the clone; the system's temporary folder by default",
    )
    chosen = parser.parse_args()
    if chosen.cache is not None and not chosen.cache.is_dir():
        parser.error(f"--cache {chosen.cache} is no folder. The cache of a sandbox that was up before is .sandbox/cache")
    return chosen


def main(benchmark: str, purpose: str | None, parts: Parts) -> int:
    """Measure the parts in one clone; what a part gets told is whether downloads were cached."""
    chosen = arguments(benchmark, purpose, parts)
    for number in (signal.SIGINT, signal.SIGTERM):  # both: in the background of a script a shell ignores the first for us
        signal.signal(number, stop)
    work = Path(tempfile.mkdtemp(prefix="sparklanes-bench-", dir=chosen.folder))
    bench = Bench(work, environment(work))
    good = interrupted = False
    try:
        clone(bench, chosen.cache)
        done = True
        for name, measure in parts.items():
            if chosen.only in (None, name):
                try:
                    for figure in measure(bench, chosen.cache is not None):
                        done &= emit(figure)
                except (BenchError, subprocess.SubprocessError) as error:
                    done = emit(Figure(f"{benchmark}.{name}", None, "", None, str(error)))
        good = done
    except KeyboardInterrupt:
        interrupted = True
        say("Interrupted: removing the sandbox.")
        return 130
    finally:
        # Nothing may end the cleaning: nodes would stay.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: say("still removing what was made; this ends by itself"))
        clean(bench, keep_log=not good and not interrupted)
    return 0 if good else 1


PARTS: Parts = {
    "demo": demo,
    "site": lambda bench, cached: converged(bench, "site", 2),
    "eight": lambda bench, cached: converged(bench, "eight", 8),
}

if __name__ == "__main__":
    sys.exit(main("converge", __doc__, PARTS))
