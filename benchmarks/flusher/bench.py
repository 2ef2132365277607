#!/usr/bin/env python3
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the unit that gives the page cache back costs in an hour.

    script/bench flusher

The unit's own loop runs as it does on a Spark, on a copy of this machine's /proc, with a clock that jumps: an hour of
looks and flushes in a second. What the kernel does for a flush is not in it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.figures import Figure, emit  # noqa: E402

HOUR = 3600
# The script as the unit starts it, but for its clock and for the writing of dirty pages, which is the kernel's work.
PLAY = """
import json, os, resource, runpy, sys, time
class Over(Exception): pass
clock = {"now": 0.0, "looks": 0}
def sleep(seconds):
    clock["now"] += seconds
    clock["looks"] += 1
    if clock["now"] >= HOUR: raise Over
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
time.monotonic, time.sleep, os.sync = (lambda: clock["now"]), sleep, (lambda: None)
sys.argv = sys.argv[1:]
began = cpu()
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except Over:
    pass
print(json.dumps({"cpu": cpu() - began, "rss_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "looks": clock["looks"]}))
""".replace("HOUR", str(HOUR))


def hour(policy: str, **settings: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "proc/sys/vm").mkdir(parents=True)
        shutil.copy("/proc/meminfo", root / "proc/meminfo")
        (root / "proc/sys/vm/drop_caches").touch()
        (root / "settings.json").write_text(json.dumps({"policy": policy, "identity": "bench", **settings}))
        script = ROOT / "module_utils/sparklanes/memory/page_cache.py"
        command = [sys.executable, "-I", "-c", PLAY, script, root / "settings.json", root / "state.json", root]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
        told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return {**told, "flushes": json.loads((root / "state.json").read_text())["flushes"]}


def main() -> int:
    """The aim is ours: a thousandth of one core."""
    good = True
    for name, policy, settings in (
        ("interval", "interval", {"interval_seconds": 60}),
        ("floor_idle", "floor", {"floor_gib": 0.001}),
        ("floor_in_vain", "floor", {"floor_gib": 100_000}),
    ):
        found = hour(policy, **settings)
        note = f"{found['looks']:.0f} looks, {found['flushes']:.0f} flushes"
        good &= emit(Figure(f"flusher.{name}.cpu", round(found["cpu"], 3), "s an hour", 3.6, note))
        good &= emit(Figure(f"flusher.{name}.memory", round(found["rss_kib"] / 1024, 1), "MiB"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
