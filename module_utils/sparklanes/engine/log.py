# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Read the log of one vLLM rank: how far its boot is, what it measured, and why it failed.

`read(text)` looks at the last boot in the log only: a container that was started again appends to
its log. Failures are known patterns with a cause and a next step, causes before consequences.
Lines that healthy boots print and that look like failures have no pattern: NV_ERR_NO_MEMORY at
mem_desc.c:1359 (thousands of them), a single "No available shared memory broadcast block" while
something compiles, the mlx5 27 W warning, the file-descriptor hint that quotes an OSError.

A server writes what strangers ask of it into its log, before it asks for a key: paths, names of models, prompts. That is data
(`engine.lines`), and no pattern reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ansible.module_utils.sparklanes.common.text import said
from ansible.module_utils.sparklanes.engine.failures import KNOWN
from ansible.module_utils.sparklanes.engine.known import Known
from ansible.module_utils.sparklanes.engine.lines import BROADCAST, Line, lines
from ansible.module_utils.sparklanes.engine.rank_log import PHASES, Failure, RankLog

_NEW_BOOT = re.compile(r"non-default args:|headless multiproc executor, with head node")
# Said by an engine that was asked to end; its `[shutdown]` alone comes before the traceback of one that broke, too.
_ASKED = re.compile(r"API server: shutdown triggered|trigger received signal=SIGTERM")

_LOADING = re.compile(r"Loading [^|]*?:\s+\d+% Completed \| (\d+)/(\d+)")
_CAPTURING = re.compile(r"Capturing CUDA graph[^|]*\|[^|]*\|\s*(\d+)/(\d+)")
_KV_SIZE = re.compile(r"\b(GPU|CPU|TPU|XPU|HPU) KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_KV_MEMORY = re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")
_KV_SET = re.compile(r"(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache")
_KV_PINNED = re.compile(r"reserved ([\d.]+) GiB memory for KV Cache")
_WEIGHTS_TOOK = re.compile(r"Loading weights took ([\d.]+) seconds")
_MODEL_TOOK = re.compile(r"Model loading took ([\d.]+) (?:GiB|GB)(?: memory)? and ([\d.]+) seconds")
_INIT_TOOK = re.compile(r"init engine \([^)]*\) took ([\d.]+) s(?:econds)?(?: \(compilation: ([\d.]+) s\))?")
_GRAPHS_TOOK = re.compile(r"Graph capturing finished in ([\d.]+) secs?, took (-?[\d.]+) GiB")
_GRAPHS_GUESS = re.compile(r"Estimated CUDA graph memory: (-?[\d.]+) GiB")
_COMPILE_TOOK = re.compile(r"torch\.compile takes ([\d.]+) s in total")
_VERSION = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\)|Launching vLLM \(v([^)]+)\) headless|version (\d\S+)$")
_NCCL = re.compile(r"(?:vLLM is using nccl==|NCCL INFO NCCL version )([\d.]{1,20})")
_WORLD = re.compile(r"world_size=(\d+) rank=(\d+) ")
_NETWORK = re.compile(r"NCCL INFO Using network (\S+)")
_IB_DEVICES = re.compile(r"NET/IB : Using (.*?)(?:;|$)")
_IB_DEVICE = re.compile(r"\[\d+\]([\w.-]+):\d+/\w+")
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


_PEERS = 8  # addresses of others that are kept of one failure
# Found on a fabric of sockets, where they are what was asked for.
_SOCKET_OK = frozenset({"socket_fallback"})
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]{0,120}\.)?((?:[A-Z]\w{0,60})?(?:Error|Exception|Interrupt|Exit))(?![\w.])(?::\s{0,20}(.*))?$"
)
_UNTELLING = frozenset({"EngineDeadError", "CancelledError", "SystemExit", "KeyboardInterrupt"})
# What is raised because of something else, and only says so.
_UNTELLING_WORDS = re.compile(
    r"^(?:WorkerProc initialization failed|Engine core initialization failed|EngineCore encountered|cancelled$|Executor failed)"
)
# Raised by the one who waits for another, or whose peer is gone: not where it began.
_OF_PEERS = frozenset(
    {"peer_lost", "nccl_unhandled", "rpc_timeout", "rdma_unanswered", "collective_timeout", "rendezvous_timeout"}
)


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


# A line that tells something: what its groups become in RankLog. Of two that tell the same the later one holds.
_FACTS: tuple[tuple[re.Pattern[str], tuple[tuple[str, Callable[[str], Any]], ...]], ...] = (
    (_LOADING, (("weights_done", int), ("weights_total", int))),
    (_CAPTURING, (("graphs_done", int), ("graphs_total", int))),
    (_KV_SIZE, (("kv_cache_device", str), ("kv_cache_tokens", _whole))),
    (_CONCURRENCY, (("max_concurrency_tokens", _whole), ("max_concurrency", float))),
    (_KV_SET, (("kv_cache_gib", float),)),
    (_KV_PINNED, (("kv_cache_gib", float),)),
    (_KV_MEMORY, (("kv_cache_gib", float),)),
    (_WEIGHTS_TOOK, (("weights_seconds", float),)),
    (_MODEL_TOOK, (("weights_gib", float), ("load_seconds", float))),
    (_INIT_TOOK, (("init_seconds", float), ("compile_seconds", float))),
    (_COMPILE_TOOK, (("compile_seconds", float),)),
    (_GRAPHS_TOOK, (("graphs_seconds", float), ("graphs_gib", float))),
    (_GRAPHS_GUESS, (("graphs_guess_gib", float),)),
    (_NCCL, (("nccl", str),)),
    (_WORLD, (("world_size", int), ("rank", int))),
    (_NETWORK, (("network", str),)),
)


def read(text: str, transport: str = "roce") -> RankLog:
    """The last boot in the log of one rank. `transport` says what the fabric should be: on `socket` NCCL's
    fallback to sockets is no failure."""
    log = RankLog()
    boots = 0
    follows: list[int] = [0]
    for line in lines(text):
        if _NEW_BOOT.search(line.text):
            boots += 1
            if boots > 1:
                log = RankLog()
        log.boots = max(boots, 1)
        _take(log, line)
        if not line.quotes:
            _diagnose(log, line, transport, follows)
    log.last_line = said(log.last_line)
    _conclude(log)
    return log


def _take(log: RankLog, line: Line) -> None:
    """Everything measured in one line."""
    text = line.text
    log.last_line = text
    if line.stamp:
        log.last_timestamp = line.stamp
    if BROADCAST in text:
        log.broadcast_waits += 1
    elif log.broadcast_waits and line.stamp and "loggers.py" not in text and "metrics.py" not in text:
        log.broadcast_waits = 0
    log.nv_no_memory += _NV_NO_MEMORY in text
    if "headless multiproc executor" in text:
        log.headless = True
    if "Finished server process" in text or "[shutdown]" in text:
        log.ended = True
        log.asked_to_end |= not log.failures and bool(_ASKED.search(text))
    for mark, phase in _MARKS:
        if PHASES.index(phase) > PHASES.index(log.phase) and mark.search(text) and not line.quotes:
            log.phase = phase
    for pattern, values in _FACTS:
        if found := pattern.search(text):
            for (name, convert), word in zip(values, found.groups(), strict=True):
                if word is not None:
                    setattr(log, name, convert(word))
    if found := _VERSION.search(line.message.strip()):
        log.version = log.version or found[1] or found[2] or found[3]
    if found := _IB_DEVICES.search(text):
        log.hcas = _IB_DEVICE.findall(found[1])
    if _MEMORY.search(text) and not line.quotes:
        log.memory = [*log.memory, said(line.message)][-20:]


def _diagnose(log: RankLog, line: Line, transport: str, follows: list[int]) -> None:
    if not line.serious:
        follows[0] = 0
        return
    bare = line.bare
    if follows[0] and log.failures and bare:
        _follow(log.failures[-1], bare, follows)
    raised = _EXCEPTION.match(bare)
    # Whoever asks an API makes it raise; what it raises then is its answer.
    asked = log.phase == "serving" and line.of_server
    if asked and not raised:
        return
    # The first that says something: what follows it was raised because of it.
    bare_before = log.exception is None or ":" not in log.exception
    telling = raised and raised[1] not in _UNTELLING and not _UNTELLING_WORDS.match(raised[2] or "")
    if raised and telling and not asked and bare_before and (raised[2] or log.exception is None):
        log.exception = said(bare)
    for known in KNOWN:
        found = known.search(line.text)
        if not found or (asked and raised and not _of_itself(known, raised[1], raised[2] or "")):
            continue
        wanted = known.code in _SOCKET_OK and transport == "socket"
        # An engine that was told to stop says of its parts that they died, and a worker whose head is stopped that it is gone.
        gone = log.headless and log.ended and known.code in _OF_PEERS
        if not wanted and not (known.consequence and not log.failures and (log.asked_to_end or gone)):
            _add(log, known, found, line.text)
            follows[0] = known.follows
        return


def _of_itself(known: Known, name: str, words: str) -> bool:
    """Whether a server that serves says of itself, by an exception, that it broke: by its kind or its first words, never by what it quotes."""
    if known.code == "nan":
        return name == "ValueError" and bool(known.pattern.match(words))
    return known.code == "engine_died" and name == "EngineDeadError"


def _follow(failure: Failure, bare: str, follows: list[int]) -> None:
    """The next line belongs to the message: the field of a configuration, and what was wrong with it."""
    follows[0] = 0 if bare.startswith("For further information") else follows[0] - 1
    if not bare.startswith(("For further information", "Traceback", "File ")) and failure.count == 1:
        failure.message = said(f"{failure.message}: {bare}", 600)


def _add(log: RankLog, known: Known, found: re.Match[str], line: str) -> None:
    words = {name: said((value or "").strip()) for name, value in found.groupdict().items()}
    peers = [words[name] for name in ("peer", "host") if words.get(name)]
    for failure in log.failures:
        if failure.code == known.code:
            failure.count += 1
            failure.peers = list(dict.fromkeys([*failure.peers, *peers]))[:_PEERS]
            return
    words.update(known.more(words) if known.more else {})
    # NCCL's watchdog ends a worker whose peer is lost: its end is no death of its own then.
    after = known.consequence or (known.code == "worker_died" and bool(log.failures))
    log.failures.append(
        Failure(
            known.code,
            known.message.format(**words).strip(),
            known.remedy.format(**words),
            said(line),
            known.hardware_or_memory,
            after,
            known.death and not after,
            peers,
        )
    )


def _conclude(log: RankLog) -> None:
    """Causes first, then consequences from near to far. An exception that no pattern names is itself the cause."""
    codes = {failure.code for failure in log.failures}
    for failure in log.failures:
        worker = failure.code == "worker_exception"
        if not worker and (failure.code != "engine_died" or "worker_exception" in codes):
            continue
        if log.exception:
            failure.message = f"{'a worker' if worker else 'the engine core'} raised {log.exception}"
            failure.consequence = any(known.search(log.exception) for known in KNOWN)
        elif worker and codes <= {"worker_exception", "engine_died"}:
            failure.message = "a worker process ended before it was ready, and said nothing: it was ended from outside"
            failure.remedy = "Look at the kernel log of this Spark for oom-kill, and who ended it."
            failure.code, failure.consequence, failure.death = "worker_died", False, True
    order = [known.code for known in KNOWN]
    log.failures.sort(key=lambda failure: (failure.consequence, failure.consequence and order.index(failure.code)))
