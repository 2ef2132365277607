# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Read the log of one vLLM rank: how far its boot is, what it measured, and why it failed.

`read(text)` looks at the last boot in the log only: a container that was started again appends to
its log. Failures are known patterns with a cause and a next step, causes before consequences.
Lines that healthy boots print and that look like failures have no pattern: NV_ERR_NO_MEMORY at
mem_desc.c:1359 (thousands of them), a single "No available shared memory broadcast block" while
something compiles, the mlx5 27 W warning, the file-descriptor hint that quotes an OSError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.engine.failures import KNOWN, Known

PHASES = ("init", "rendezvous", "weights", "profiling", "kv_cache", "graphs", "warmup", "serving")

_PREFIX = re.compile(r"^\((?P<process>[\w.-]+)(?: pid=\d+)?\)\s+")
_STAMP = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d)\b")
_ERROR_HEAD = re.compile(r"^(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s?")
_NEW_BOOT = re.compile(r"non-default args:|headless multiproc executor, with head node")
# Lines that quote configuration or requests: what stands in them did not happen.
_QUOTES = re.compile(r"\[dump_input\.py|non-default args:|with config: model=|fd limit errors like")

_LOADING = re.compile(r"Loading [^|]*?:\s+\d+% Completed \| (\d+)/(\d+)")
_CAPTURING = re.compile(r"Capturing CUDA graph[^|]*\|[^|]*\|\s*(\d+)/(\d+)")
_KV_SIZE = re.compile(r"\b(GPU|CPU|TPU|XPU|HPU) KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_KV_MEMORY = re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")
_KV_SET = re.compile(r"(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache")
_WEIGHTS_TOOK = re.compile(r"Loading weights took ([\d.]+) seconds")
_MODEL_TOOK = re.compile(r"Model loading took ([\d.]+) (?:GiB|GB)(?: memory)? and ([\d.]+) seconds")
_INIT_TOOK = re.compile(r"init engine \([^)]*\) took ([\d.]+) s(?:econds)?(?: \(compilation: ([\d.]+) s\))?")
_GRAPHS_TOOK = re.compile(r"Graph capturing finished in ([\d.]+) secs?, took (-?[\d.]+) GiB")
_COMPILE_TOOK = re.compile(r"torch\.compile takes ([\d.]+) s in total")
_VERSION = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\)|Launching vLLM \(v([^)]+)\) headless|version (\d\S+)$")
_NCCL = re.compile(r"vLLM is using nccl==(\S+)")
_WORLD = re.compile(r"world_size=(\d+) rank=(\d+) ")
_NETWORK = re.compile(r"NCCL INFO Using network (\S+)")
_IB_DEVICES = re.compile(r"NET/IB : Using (.*?)(?:;|$)")
_IB_DEVICE = re.compile(r"\[\d+\]([\w.-]+):\d+/\w+")
_BROADCAST = "No available shared memory broadcast block"
_NV_NO_MEMORY = "NV_ERR_NO_MEMORY"
_MEMORY = re.compile(
    r"Model loading took|Available KV cache memory|KV cache size|for KV cache|Free memory on device|"
    r"Graph capturing finished|Memory profiling|peak activation|non-torch|Checkpoint size|OutOfMemory"
)

# (text in a line, phase that has begun by then); the order of a boot.
_MARKS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"distributed_init_method=", "rendezvous"),
        (r"Starting to load model|Initializing model took|Loading [^|]*? Completed \|", "weights"),
        (r"Loading weights took|Model loading took|Dynamo bytecode|torch\.compile takes|Compiling a graph", "profiling"),
        (r"KV cache size:|Available KV cache memory|for KV cache on node", "kv_cache"),
        (r"Capturing CUDA graph", "graphs"),
        (r"Graph capturing finished|init engine \(|[Aa]utotun|Warming up|Starting vLLM server", "warmup"),
        (r"Application startup complete|Avg prompt throughput", "serving"),
    )
)


# Python exceptions have these patterns; healthy boots print some of them at other levels.
_ERROR_LEVEL_ONLY = frozenset({"import_error", "model_not_found", "gpu_missing"})
# Found on a fabric of sockets, where they are what was asked for.
_SOCKET_OK = frozenset({"socket_fallback"})
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Interrupt|Exit))\b(?::\s*(.*))?$")
_UNTELLING = frozenset({"EngineDeadError", "CancelledError"})


@dataclass
class Failure:
    """One classified cause: its first line in the log (shortened), and how often it was seen."""

    code: str
    message: str
    remedy: str
    line: str
    hardware_or_memory: bool
    consequence: bool
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class RankLog:
    """What one boot of one rank said. None: it didn't say."""

    phase: str = "init"
    boots: int = 0
    headless: bool = False
    rank: int | None = None
    world_size: int | None = None
    version: str | None = None
    nccl: str | None = None
    network: str | None = None
    hcas: list[str] = field(default_factory=list)
    weights_done: int | None = None
    weights_total: int | None = None
    graphs_done: int | None = None
    graphs_total: int | None = None
    weights_seconds: float | None = None
    load_seconds: float | None = None
    weights_gib: float | None = None
    kv_cache_device: str | None = None
    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    max_concurrency: float | None = None
    max_concurrency_tokens: int | None = None
    compile_seconds: float | None = None
    graphs_seconds: float | None = None
    graphs_gib: float | None = None
    init_seconds: float | None = None
    memory: list[str] = field(default_factory=list)
    last_timestamp: str | None = None
    last_line: str = ""
    ended: bool = False
    broadcast_waits: int = 0
    nv_no_memory: int = 0
    exception: str | None = None
    failures: list[Failure] = field(default_factory=list)

    @property
    def stalled(self) -> bool:
        """The broadcast block was missing again, and nothing else was said in between: one such line is normal."""
        return self.broadcast_waits > 1

    @property
    def failed(self) -> bool:
        return bool(self.failures)

    @property
    def hardware_or_memory(self) -> bool:
        return any(failure.hardware_or_memory for failure in self.failures)

    @property
    def progress(self) -> str:
        """One line for a person who waits."""
        if self.failures:
            return f"failed: {self.failures[0].message}"
        if self.ended:
            return "ended"
        return {
            "init": "starting",
            "rendezvous": f"waiting for the other ranks (rank {self.rank} of {self.world_size})",
            "weights": f"loading weights{_of(self.weights_done, self.weights_total)}",
            "profiling": "weights loaded, profiling memory and compiling",
            "kv_cache": f"KV cache made{f' ({self.kv_cache_tokens:,} tokens)' if self.kv_cache_tokens else ''}",
            "graphs": f"capturing graphs{_of(self.graphs_done, self.graphs_total)}",
            "warmup": "warming up",
            "serving": "serving",
        }[self.phase] + (" — no message from the workers for minutes" if self.stalled else "")

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        data.update(
            stalled=self.stalled,
            failed=self.failed,
            hardware_or_memory=self.hardware_or_memory,
            progress=self.progress,
        )
        return data


def _of(done: int | None, total: int | None) -> str:
    return "" if done is None else f" {done}/{total}"


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


# A line that tells something: what its groups become in RankLog. Of two that tell the same the later one holds.
_FACTS: tuple[tuple[re.Pattern[str], tuple[tuple[str, Callable[[str], Any]], ...]], ...] = (
    (_LOADING, (("weights_done", int), ("weights_total", int))),
    (_CAPTURING, (("graphs_done", int), ("graphs_total", int))),
    (_KV_SIZE, (("kv_cache_device", str), ("kv_cache_tokens", _whole))),
    (_CONCURRENCY, (("max_concurrency_tokens", _whole), ("max_concurrency", float))),
    (_KV_SET, (("kv_cache_gib", float),)),
    (_KV_MEMORY, (("kv_cache_gib", float),)),
    (_WEIGHTS_TOOK, (("weights_seconds", float),)),
    (_MODEL_TOOK, (("weights_gib", float), ("load_seconds", float))),
    (_INIT_TOOK, (("init_seconds", float), ("compile_seconds", float))),
    (_COMPILE_TOOK, (("compile_seconds", float),)),
    (_GRAPHS_TOOK, (("graphs_seconds", float), ("graphs_gib", float))),
    (_NCCL, (("nccl", str),)),
    (_WORLD, (("world_size", int), ("rank", int))),
    (_NETWORK, (("network", str),)),
)


def _lines(text: str) -> Iterator[tuple[str, str, bool]]:
    """(line as it stands, its message without process name, whether it is an error or has no level).

    A progress bar rewrites its line with carriage returns: each state of it counts.
    """
    for raw in re.split(r"[\r\n]+", text):
        line = raw.rstrip()
        if not line.strip():
            continue
        message = _PREFIX.sub("", line)
        stamp = _STAMP.search(message)
        yield line, message, stamp is None or message.startswith(("ERROR", "CRITICAL"))


def read(text: str, transport: str = "roce") -> RankLog:
    """The last boot in the log of one rank. `transport` says what the fabric should be: on `socket` NCCL's
    fallback to sockets is no failure."""
    log = RankLog()
    boots = 0
    for line, message, serious in _lines(text):
        if _NEW_BOOT.search(line):
            boots += 1
            if boots > 1:
                log = RankLog()
        log.boots = max(boots, 1)
        _take(log, line, message)
        if not _QUOTES.search(line):
            _diagnose(log, line, message, serious, transport)
    _conclude(log)
    return log


def _take(log: RankLog, line: str, message: str) -> None:
    """Everything measured in one line."""
    log.last_line = _short(line)
    if found := _STAMP.search(line):
        log.last_timestamp = found[1]
    if _BROADCAST in line:
        log.broadcast_waits += 1
    elif log.broadcast_waits and _STAMP.search(line) and "loggers.py" not in line and "metrics.py" not in line:
        log.broadcast_waits = 0
    log.nv_no_memory += _NV_NO_MEMORY in line
    if "headless multiproc executor" in line:
        log.headless = True
    if "Finished server process" in line or "[shutdown]" in line:
        log.ended = True
    for mark, phase in _MARKS:
        if PHASES.index(phase) > PHASES.index(log.phase) and mark.search(line) and not _QUOTES.search(line):
            log.phase = phase
    for pattern, values in _FACTS:
        if found := pattern.search(line):
            for (name, convert), text in zip(values, found.groups(), strict=True):
                if text is not None:
                    setattr(log, name, convert(text))
    if found := _VERSION.search(message.strip()):
        log.version = log.version or found[1] or found[2] or found[3]
    if found := _IB_DEVICES.search(line):
        log.hcas = _IB_DEVICE.findall(found[1])
    if _MEMORY.search(line) and not _QUOTES.search(line):
        log.memory = [*log.memory, _short(message)][-20:]


def _diagnose(log: RankLog, line: str, message: str, serious: bool, transport: str) -> None:
    bare = _ERROR_HEAD.sub("", message).strip()
    raised = _EXCEPTION.match(bare) if serious else None
    # The first that says something: what follows it was raised because of it.
    bare_before = log.exception is None or ":" not in log.exception
    if raised and raised[1] not in _UNTELLING and bare_before and (raised[2] or log.exception is None):
        log.exception = _short(bare)
    for known in KNOWN:
        if known.code in _ERROR_LEVEL_ONLY and not serious:
            continue
        found = known.pattern.search(line)
        if not found:
            continue
        wanted = known.code in _SOCKET_OK and transport == "socket"
        # An engine that was told to stop says of its parts that they died: a consequence of the stop.
        stopped = known.consequence and log.ended and not log.failures
        if not wanted and not stopped:
            _add(log, known, found, line)
        return


def _add(log: RankLog, known: Known, found: re.Match[str], line: str) -> None:
    for failure in log.failures:
        if failure.code == known.code:
            failure.count += 1
            return
    words = {name: (value or "").strip() for name, value in found.groupdict().items()}
    log.failures.append(
        Failure(
            known.code,
            known.message.format(**words),
            known.remedy,
            _short(line),
            known.hardware_or_memory,
            known.consequence,
        )
    )


def _conclude(log: RankLog) -> None:
    """Causes first, then consequences from near to far. An exception that no pattern names is itself the cause."""
    for failure in log.failures:
        if failure.code == "worker_exception" and log.exception:
            failure.message = f"a worker raised {log.exception}"
            failure.consequence = any(known.pattern.search(log.exception) for known in KNOWN)
    order = [known.code for known in KNOWN]
    log.failures.sort(key=lambda failure: (failure.consequence, failure.consequence and order.index(failure.code)))


def _short(line: str, width: int = 300) -> str:
    flat = " ".join(line.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
