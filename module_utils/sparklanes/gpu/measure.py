# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The job that loads the GPU of a Spark for a bounded time and watches it meanwhile.

The load is gpu_burn.py in a container of the lane's image, or in a Python of the Spark that has torch. It ends by itself; where
the job is stopped the container is asked to stop, never killed late. Nothing of it starts while anything else uses the GPU.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.clock import boot_id
from ansible.module_utils.sparklanes.common.files import STATE_ROOT, read_json, write_atomically, write_json
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.docker.store import ImageStore
from ansible.module_utils.sparklanes.gpu import burn as gpu_burn
from ansible.module_utils.sparklanes.gpu import facts as gpu_facts
from ansible.module_utils.sparklanes.gpu import health as gpu_health
from ansible.module_utils.sparklanes.gpu import nvidia_smi, occupied
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.memory.page_cache import parse_meminfo

JOB = "gpu-health"
CONTAINER = "sparklanes-gpu-health"
LABEL = "sparklanes.job"
FOLDER = "/var/lib/sparklanes/health"
SCHEMA = "sparklanes-gpu-health/1"
RUNS_KEPT = 20
NEEDED_GIB = 6.0  # the burn takes 3.3 GiB, CUDA's context about one
# A cold image reads gigabytes of libraries before torch answers.
START_SECONDS = 300.0
STOP_SECONDS = 10
FIELDS = ("clocks.sm", "power.draw", "utilization.gpu", "temperature.gpu", "pstate")
REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


# --- may it start --------------------------------------------------------------------------------------------


def refusal(facts: Mapping[str, Any], seen: occupied.Seen, free: int | None) -> str:
    """Why the GPU must not be loaded now, or an empty text. Pure. free: bytes of MemAvailable."""
    if facts.get("error"):
        return f"{facts['error']}. Mend the driver first: there is nothing to measure with"
    if seen.unknown:
        return f"{seen.unknown}, so something may serve or boot here"
    if seen.holder():
        return f"{seen.holder()}. A burn would hurt it. Stop the lane (playbooks/stop.yml) or the process first"
    if seen.transactions:
        open_ = ", ".join(seen.transactions)
        return f"a transaction of deployment {open_} is open: a launch goes on, or playbooks/recover.yml has to end it"
    if free is None or free < NEEDED_GIB * GIB:
        found = "unknown" if free is None else f"{free / GIB:.1f} GiB"
        return f"MemAvailable is {found}, the burn needs {NEEDED_GIB:g} GiB. See what holds the memory"
    return ""


def may_start(root: str = STATE_ROOT) -> tuple[str, dict[str, Any]]:
    """`refusal` of this Spark as it is, and the facts of its GPU."""
    facts = gpu_facts.facts()
    free = parse_meminfo(Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")).get("MemAvailable")
    return refusal(facts, occupied.look(root=root, gpu=facts), free), facts


# --- watching ------------------------------------------------------------------------------------------------


def sampler_argv(reason_field: str, milliseconds: int = 1000) -> list[str]:
    query = ",".join([*FIELDS, reason_field])
    return ["nvidia-smi", "--id=0", f"--query-gpu={query}", "--format=csv,noheader,nounits", f"--loop-ms={milliseconds}"]


def parse_sample(line: str) -> dict[str, Any] | None:
    rows = nvidia_smi.parse_csv(line, (*FIELDS, "reasons"))
    if not rows:
        return None
    row = rows[0]
    return {
        "sm_mhz": nvidia_smi.integer(row["clocks.sm"]),
        "power_w": nvidia_smi.number(row["power.draw"]),
        "utilization_percent": nvidia_smi.integer(row["utilization.gpu"]),
        "temperature_c": nvidia_smi.integer(row["temperature.gpu"]),
        "performance_state": row["pstate"],
        "reasons": nvidia_smi.reasons(row["reasons"]),
    }


def reason_field(ask: gpu_facts.Ask = gpu_facts.ask) -> str:
    """The driver's name for it: renamed with release 535."""
    for name in REASON_FIELDS:
        if ask(["nvidia-smi", "--id=0", f"--query-gpu={name}", "--format=csv,noheader"])[0] == 0:
            return name
    return "pstate"  # neither: reasons are unknown then


def burn_argv(args: Mapping[str, Any], script: Path, image: str = "") -> list[str]:
    """The command of the load: a container of the image under its local name, or a Python of this Spark."""
    tail = ["--seconds", f"{args['seconds']:g}"]
    if args.get("python"):
        return [str(args["python"]), "-B", str(script), *tail]
    return [
        "docker", "run", "--rm", "--init", "--name", CONTAINER, "--label", f"{LABEL}={JOB}", "--pull", "never", "--network", "none",
        "--gpus", "all", "--volume", f"{script}:/sparklanes/gpu_burn.py:ro", "--entrypoint", "python3",
        image, "-B", "/sparklanes/gpu_burn.py", *tail,
    ]  # fmt: skip


def local_image(args: Mapping[str, Any]) -> str:
    """The name under which this Spark's Docker finds the image, as a rank finds it."""
    found = ImageStore(commands.run).find(str(args["image"]), args.get("image_ids") or [])
    if found is None:
        raise JobError(f"{args['image']} is not on this Spark. Run site.yml, which brings the lane's image")
    return str(found.name)


def pump(name: str, stream: Any, lines: queue.Queue[tuple[str, str | None]]) -> None:
    for line in stream:
        lines.put((name, line))
    lines.put((name, None))


def read_line(line: str) -> dict[str, Any] | None:
    """A line of the burn; what an image prints besides is no JSON object."""
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


@contextlib.contextmanager
def process(argv: Sequence[str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace", start_new_session=True, **more
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(STOP_SECONDS)


def measure(args: Mapping[str, Any], folder: Path, report: Reporter) -> dict[str, Any]:
    """Run the load and the sampler side by side until the load ends."""
    script = folder / "gpu_burn.py"
    write_atomically(script, inspect.getsource(gpu_burn), 0o644)
    lines: queue.Queue[tuple[str, str | None]] = queue.Queue()
    said: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    noise: list[str] = []
    most_processes, asked = 0, 0.0
    seconds = float(args["seconds"])
    began = time.monotonic()
    limit = began + START_SECONDS + 2 * seconds
    image = "" if args.get("python") else local_image(args)
    report.phase("load the libraries")
    with (
        process(sampler_argv(reason_field())) as sampler,
        process(burn_argv(args, script, image), stderr=subprocess.STDOUT) as load,
    ):
        for name, one in (("sample", sampler), ("load", load)):
            threading.Thread(target=pump, args=(name, one.stdout, lines), daemon=True).start()
        phase, phase_began, burning = "start", began, 0.0
        while True:
            now = time.monotonic()
            if now > limit:
                raise JobError(f"the load did not end after {now - began:.0f} s: {' '.join(noise[-5:]) or 'it said nothing'}")
            if burning and now - asked > 5:
                asked = now
                most_processes = max(most_processes, compute_processes())
            try:
                name, line = lines.get(timeout=1.0)
            except queue.Empty:
                continue
            if name == "sample":
                sample = parse_sample(line) if line else None
                if sample is not None:
                    samples.append({"at": round(now - began, 2), "phase": phase, "into": round(now - phase_began, 2), **sample})
                    report.update(file=shown(phase, sample), done=min(int(seconds), int(now - burning)) if burning else 0)
                continue
            if line is None:
                break
            data = read_line(line)
            if data is None:
                noise.append(line.strip())
                continue
            said.append(data)
            if data.get("phase", phase) != phase:
                phase, phase_began = str(data["phase"]), now
                if not burning:
                    burning = now
                    report.phase("load", int(seconds), unit="s")
        code = load.wait()
    error = next((str(data["error"]) for data in said if data.get("error")), "")
    if code not in (0, 4) and not error:
        error = f"the load ended with exit {code}: {' '.join(noise[-8:])[-600:] or 'it said nothing'}"
    return {"said": said, "samples": samples, "error": error, "most_processes": most_processes}


def shown(phase: str, sample: Mapping[str, Any]) -> str:
    parts = [phase]
    for key, unit in (("sm_mhz", "MHz"), ("power_w", "W"), ("utilization_percent", "%"), ("temperature_c", "°C")):
        if sample.get(key) is not None:
            parts.append(f"{sample[key]:.0f} {unit}")
    return "  ".join(parts)


def compute_processes() -> int:
    """How many use the GPU now. Ours is one of them."""
    rc, out, _ = gpu_facts.ask(nvidia_smi.COMPUTE_APPS)
    return len(nvidia_smi.parse_compute_apps(out)) if rc == 0 else 0


def history(folder: Path) -> list[dict[str, Any]]:
    """Runs that this Spark remembers, oldest first."""
    found = (read_json(folder / "gpu.json") or {}).get("runs")
    return [run for run in found if isinstance(run, dict)] if isinstance(found, list) else []


def keep(folder: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    write_json(folder / "gpu.json", {"schema": SCHEMA, "runs": list(runs)[-RUNS_KEPT:]}, 0o644)


def burn(args: dict[str, Any], _secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    """The job. Its result is the run; the history keeps it too."""
    folder = Path(args.get("folder") or FOLDER)
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    in_docker = not args.get("python")
    why, before = may_start()
    if why:
        raise JobError(why)
    began = time.time()
    try:
        found = measure(args, folder, report)
    finally:
        if in_docker:
            # A container that ended is gone (--rm). One that still runs is asked first, as a rank is.
            commands.run(["docker", "stop", "--time", str(STOP_SECONDS), CONTAINER], STOP_SECONDS + 30.0)
    report.phase("judge")
    run = {
        "at": int(began),
        "boot_id": boot_id(),
        "image": str(args.get("image") or ""),
        "seconds": args["seconds"],
        "driver": before["driver"],
        "caps": before["caps"],
        **gpu_health.summarise(found["said"], found["samples"]),
        "other_load": found["most_processes"] > 1,
        "error": found["error"],
        "samples": found["samples"],
        "blocks": [data for data in found["said"] if "rate" in data],
        "verdict": "",
    }
    keep(folder, [*history(folder), run])
    return {"run": run, "actions": [f"Loaded the GPU for {args['seconds']:g} s"]}
