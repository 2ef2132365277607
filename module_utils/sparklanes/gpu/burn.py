# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Load a GPU for a bounded time and print how fast it was, a JSON object a line.

This file also runs by itself, in the image of a lane: nothing but the standard library and torch. Three loads, since each
known fault shows in another: `matmul` (a clock that is stuck), `gemv` (a hidden slow state: 3.3 times slower there while
clocks and copies look well, DeepSeek-V4.1-Flash-vLLM-DGX-Spark issue 1), `copy` (memory).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

SCHEMA = "sparklanes-gpu-burn/1"
# 8192³ is the size that public GB10 numbers were measured with; 0.4 GiB. The vector's matrix and the copy are far larger than any cache.
MATMUL = 8192
GEMV_ROWS, GEMV_COLUMNS = 32768, 8192
COPY_BYTES = 1 << 30
BLOCK_SECONDS = 0.5


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def plan(seconds: float) -> list[tuple[str, float]]:
    """How long each load runs. The matrix product gets most: clocks and power are judged under it."""
    return [("warmup", min(5.0, seconds / 6)), ("matmul", seconds * 0.6), ("gemv", seconds * 0.2), ("copy", seconds * 0.2)]


def block(run: Callable[[int], float], guess: int, seconds: float = BLOCK_SECONDS) -> tuple[int, float]:
    """Repetitions that fill about a block, and the seconds they took."""
    took = run(guess)
    return max(1, round(guess * seconds / max(took, 1e-6))), took


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Load a GPU for a bounded time")
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args(argv)
    if not 5 <= options.seconds <= 600:
        parser.error("--seconds: expected 5 to 600")

    import torch  # type: ignore[import-not-found,unused-ignore]

    if not torch.cuda.is_available():
        say(error="torch finds no CUDA device in this image: was the container started with --gpus all, for this machine?")
        return 3
    device = torch.device("cuda", 0)
    properties = torch.cuda.get_device_properties(device)
    say(
        schema=SCHEMA,
        gpu=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        torch=torch.__version__,
        cuda=torch.version.cuda,
    )
    torch.manual_seed(0)

    def random(*shape: int) -> Any:
        # Random content: a GPU draws less power, and clocks higher, on zeros.
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    left, right, product = random(MATMUL, MATMUL), random(MATMUL, MATMUL), random(MATMUL, MATMUL)
    matrix, vector, image = random(GEMV_ROWS, GEMV_COLUMNS), random(GEMV_COLUMNS), random(GEMV_ROWS)
    source = torch.empty(COPY_BYTES, device=device, dtype=torch.uint8).random_()
    target = torch.empty_like(source)

    def timed(work: Callable[[], Any]) -> Callable[[int], float]:
        def run(count: int) -> float:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(count):
                work()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1000

        return run

    # Load → what to run, and its work in units of 1e12 operations or 1e9 bytes.
    tera = 2 * MATMUL**3 / 1e12
    loads: dict[str, tuple[Callable[[int], float], float, str]] = {
        "matmul": (timed(lambda: torch.matmul(left, right, out=product)), tera, "TFLOPS"),
        "gemv": (timed(lambda: torch.mv(matrix, vector, out=image)), matrix.numel() * 2 / 1e9, "GB/s"),
        "copy": (timed(lambda: target.copy_(source)), 2 * COPY_BYTES / 1e9, "GB/s"),
    }
    loads["warmup"] = loads["matmul"]
    for name, seconds in plan(options.seconds):
        run, work, unit = loads[name]
        run(1)  # libraries load and choose their kernels
        count, _ = block(run, 3)
        say(phase=name)
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            now, (again, took) = count, block(run, count)
            count = again
            say(phase=name, rate=round(now * work / took, 3), unit=unit, seconds=round(took, 3))
    # Rounding to bfloat16 costs 0.4 % of entries of about 90; anything else is a fault.
    exact = left[:8].float() @ right.float()
    correct = torch.allclose(product[:8].float(), exact, rtol=0.02, atol=4.0) and torch.equal(source, target)
    say(phase="end", correct=bool(correct), memory_bytes=torch.cuda.max_memory_allocated(device))
    return 0 if correct else 4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
