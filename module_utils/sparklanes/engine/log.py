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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class Known:
    """A failure that we can name. `hardware_or_memory`: it doesn't restore by itself, a person looks first.
    `consequence`: something else happened before, in this log or in that of another rank."""

    code: str
    pattern: re.Pattern[str]
    message: str
    remedy: str
    hardware_or_memory: bool = False
    consequence: bool = False


def _known(code: str, pattern: str, message: str, remedy: str, *, hw: bool = False, after: bool = False) -> Known:
    return Known(code, re.compile(pattern), message, remedy, hw, after)


# Named groups of a pattern fill the message. A line is given to the first pattern that matches.
KNOWN: tuple[Known, ...] = (
    # --- memory and hardware -------------------------------------------------------------------------
    _known(
        "kv_too_small",
        r"To serve at least one request.*?(?P<tokens>\d[\d,]*)\).*?(?P<need>[\d.]+) GiB KV cache is needed.*?"
        r"available KV cache memory \((?P<have>[\d.]+) GiB\)",
        "one request of {tokens} tokens needs {need} GiB of KV cache against {have} GiB available",
        "Lower lane_max_model_len, or give the pool more (lane_kv_cache_memory_bytes, lane_gpu_memory_utilization).",
        hw=True,
    ),
    _known(
        "kv_too_small",
        r"KV cache[^.]*?(?P<need>\d[\d.]*) GiB (?:is )?needed[^.\d]*(?P<have>\d[\d.]*) GiB available|"
        r"No available memory for the cache blocks",
        "the memory that is left does not hold the KV cache of one request",
        "Lower lane_max_model_len, or free memory on the Spark (page cache, other processes) before launching again.",
        hw=True,
    ),
    _known(
        "startup_memory",
        r"Free memory on device.*?\((?P<free>[\d.]+)/(?P<all>[\d.]+) GiB\) on startup is less than desired",
        "only {free} of {all} GiB were free when the engine started",
        "Something holds memory: drop the page cache, look for other GPU processes, then launch again.",
        hw=True,
    ),
    _known(
        "gpu_oom",
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation",
        "the GPU ran out of memory",
        "Lower lane_max_num_batched_tokens, lane_max_num_seqs or the KV cache; check what else holds memory.",
        hw=True,
    ),
    _known(
        "nccl_memory",
        r"ibv_reg_mr\w* failed with (?:error )?.*?(?:Cannot allocate memory|ENOMEM|\b12\b)",
        "RDMA memory could not be registered (ENOMEM)",
        "Check memlock of the container and the kernel: on some 7.0 kernels CmaFree exceeds CmaTotal, "
        "which kho=off or an older kernel cures. Reboot after that.",
        hw=True,
    ),
    _known(
        "sigill",
        r"(?:died unexpectedly \(exit code: -4\)|Illegal instruction)",
        "the worker met an instruction that this CPU refuses (SIGILL)",
        "The image is built for another CPU, or its dtype takes a path that this CPU lacks (float32 is safe on CPU).",
        hw=True,
    ),
    _known(
        "killed",
        r"Worker proc (?P<worker>\S+) died unexpectedly \(exit code: -9\)",
        "{worker} was killed (SIGKILL): the kernel's out-of-memory killer, or a person",
        "Look at the kernel log of this Spark for oom-kill and at its memory before launching again.",
        hw=True,
    ),
    _known(
        "shm_bus_error",
        r"died unexpectedly \(exit code: -7\)|\bBus error\b",
        "a worker died of SIGBUS: usually /dev/shm is full",
        "Give the container a larger shm_size in lane_container, or clear /dev/shm on the Spark with ipc: host.",
    ),
    _known(
        "gpu_fault",
        r"CUDA error: (?P<what>an illegal memory access|unspecified launch failure|misaligned address|"
        r"uncorrectable ECC error|device-side assert|the launch timed out)|(?P<xid>NVRM: Xid)",
        "the GPU reported a fault",
        "Look at the kernel log for Xid lines. The same fault at the same place again is software (an overlay, a "
        "kernel), at other places hardware.",
        hw=True,
    ),
    _known(
        "gpu_missing",
        r"No CUDA GPUs are available|Failed to infer device type|could not select device driver|"
        r"Driver/library version mismatch|no CUDA-capable device",
        "the container sees no GPU",
        "Check nvidia-smi on the Spark and inside the container; a reboot after a driver update is the usual cure.",
        hw=True,
    ),
    _known(
        "gpu_kernel_image",
        r"no kernel image is available for execution",
        "the image holds no code for this GPU",
        "Use an image that is built for the GB10 (sm_121).",
    ),
    # --- fabric ---------------------------------------------------------------------------------------
    _known(
        "gid",
        r"ibv_modify_qp failed with (?P<errno>\d+) (?P<why>.*?), on dev (?P<dev>\S+?),.*?"
        r"local GID index (?P<index>\d+), local GID (?P<gid>\S+)",
        "RDMA on {dev} could not connect: {why} (errno {errno}, GID index {index}, GID {gid})",
        "The GID table moved or the address is gone: run the fabric preflight, leave the index unpinned, or bounce "
        "the interface.",
    ),
    _known(
        "gid",
        r"ibv_modify_qp failed|local GID ::",
        "RDMA could not connect its queue pairs",
        "Run the fabric preflight: the GID, the MTU or the pairing of the two ends is wrong.",
    ),
    _known(
        "nccl_unhandled",
        r"unhandled system error|unhandled cuda error|nccl(?:System|Internal|Remote|UnhandledCuda)Error|"
        r"NCCL error[^:]*: (?:internal|remote)",
        "NCCL gave up",
        "The cause stands in the NCCL WARN lines before it, often in the log of another rank; run the fabric preflight.",
        after=True,
    ),
    _known(
        "socket_fallback",
        r"NET/IB : No device found|NCCL INFO Using network Socket",
        "NCCL found no RDMA device and fell back to TCP sockets",
        "Check NCCL_IB_HCA against the devices of this Spark, /dev/infiniband and IPC_LOCK in the container; "
        "a lane on sockets serves at less than half speed.",
    ),
    _known(
        "nccl_interface",
        r"Bootstrap : no socket interface found|no socket interface found",
        "NCCL found no interface for its bootstrap",
        "NCCL_SOCKET_IFNAME names an interface that this Spark lacks or that has no address.",
    ),
    _known(
        "rendezvous_timeout",
        r"DistStoreError: Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<here>\d+)/(?P<want>\d+)",
        "after {seconds} s only {here} of {want} ranks had joined",
        "A rank did not start or cannot reach the head's master port over the fabric: read the other ranks' logs.",
    ),
    _known(
        "rendezvous_timeout",
        r"DistNetworkError: The client socket has timed out after (?P<ms>\d+)\s?ms while trying to connect to "
        r"\((?P<host>[^,]+), (?P<port>\d+)\)",
        "the head did not answer at {host} port {port} within {ms} ms",
        "The head did not start, or a firewall or a wrong fabric address stands between: read the head's log.",
    ),
    _known(
        "rendezvous_timeout",
        r"DistNetworkError:|DistStoreError:|Timed out waiting for clients",
        "the ranks did not find each other",
        "Compare master address and port on all ranks and read the other ranks' logs.",
    ),
    # --- files and flags --------------------------------------------------------------------------------
    _known(
        "shm_too_small",
        r"Insufficient space in /dev/shm.*?: (?P<need>\d+ \w+) required, (?P<free>\d+ \w+) free",
        "/dev/shm is too small: {need} required, {free} free",
        "Raise shm_size in lane_container; with ipc: host the Spark's own /dev/shm counts.",
    ),
    _known(
        "shm_too_small",
        r"No space left on device.*?/dev/shm|/dev/shm.*?No space left on device",
        "/dev/shm is full",
        "Raise shm_size in lane_container, and remove psm_* files of dead engines with ipc: host.",
    ),
    _known(
        "disk_full",
        r"OSError: \[Errno 28\] No space left on device",
        "a disk is full",
        "Free space where the engine writes (compile cache, logs) on this Spark.",
    ),
    _known(
        "bad_flag",
        r"(?:vllm|api_server)\S*(?: serve)?: error: (?P<what>.+)",
        "the engine refused its arguments: {what}",
        "Correct lane_engine_args; the spelling belongs to the engine version of the image.",
    ),
    _known(
        "bad_config",
        r"validation errors? for (?P<what>\w*(?:Config|Args))\b",
        "the engine refused its configuration ({what})",
        "Correct lane_engine_args; the next lines of the log name the field.",
    ),
    _known(
        "model_not_found",
        r"Invalid repository ID or local directory specified|is not a local folder and is not a valid model identifier|"
        r"does not appear to have a file named (?P<file>\S+)|Cannot find any model weights|Repo id must be in the form|"
        r"HFValidationError",
        "the engine found no model where it was told to look",
        "Check lane_model.path and container_path, and stage the weights again.",
    ),
    _known(
        "model_unsupported",
        r"Model architectures? .*(?:not supported|failed to be inspected)",
        "this engine does not know the architecture of the model",
        "Use an image (or overlay) that has it.",
    ),
    _known(
        "weights_unreadable",
        r"SafetensorError: (?P<what>.+)",
        "a weights file could not be read: {what}",
        "Verify the staged weights in full. Where every hash matches, the file is not at fault: look at memory and the loader.",
    ),
    _known(
        "import_error",
        r"(?:ImportError|ModuleNotFoundError): (?P<what>.+)",
        "a module could not be imported: {what}",
        "Overlay and image do not belong together, or the overlay set is incomplete.",
    ),
    _known(
        "port_in_use",
        r"\[Errno 98\]|Address already in use|EADDRINUSE",
        "a port that the engine needs is taken",
        "Find the listener (ss -ltnp): a rank that was not stopped, or another service on lane_port or lane_master_port.",
    ),
    # --- while it served --------------------------------------------------------------------------------
    _known(
        "nan",
        r"Out of range float values are not JSON compliant",
        "the engine computed NaN",
        "Weights, quantization, overlay or KV cache are wrong on some rank. Do not serve: run the parity report.",
    ),
    _known(
        "boot_timeout",
        r"Timed out waiting for engine core processes|VLLM_ENGINE_READY_TIMEOUT_S",
        "the engine core was not ready in time",
        "The log before this line says what it waited for; slow storage needs a larger VLLM_ENGINE_READY_TIMEOUT_S.",
        after=True,
    ),
    _known(
        "rpc_timeout",
        r"RPC call to (?P<method>\w+) timed out",
        "a rank did not answer {method} in time: it is dead, cut off or stuck",
        "Look at the other ranks' containers and logs, and at the fabric; the head cannot say which one it was.",
        after=True,
    ),
    _known(
        "peer_lost",
        r"(?:gloo|Worker failed|TCPStore|c10d|NCCL).*?(?:Connection closed by peer|Connection reset by peer|"
        r"remote process exited)(?P<peer> \[[^\]]+\](?::\d+)?)?",
        "another rank closed its connection",
        "That rank died first: read its log and its container's state.",
        after=True,
    ),
    _known(
        "worker_died",
        r"Worker proc (?P<worker>\S+) died unexpectedly \(exit code: (?P<code>[^)]+)\)",
        "{worker} died (exit code {code})",
        "Its own last lines, or the kernel log of this Spark, name the cause.",
        after=True,
    ),
    _known(
        "worker_exception",
        r"WorkerProc (?:hit an exception|failed to start)|Worker failed with error|WorkerProc initialization failed",
        "a worker raised an exception",
        "The last line of its traceback names the cause.",
        after=True,
    ),
    _known(
        "engine_died",
        r"EngineCore (?:failed to start|encountered a)|EngineDeadError|Engine core initialization failed|"
        r"EngineCore_?\w* died",
        "the engine core died",
        "Its cause stands above in the log, or in the log of another rank. The container exits with code 0 all the same.",
        after=True,
    ),
)
HARDWARE_OR_MEMORY = frozenset(known.code for known in KNOWN if known.hardware_or_memory)
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
    if found := _LOADING.search(line):
        log.weights_done, log.weights_total = int(found[1]), int(found[2])
    elif found := _CAPTURING.search(line):
        log.graphs_done, log.graphs_total = int(found[1]), int(found[2])
    if found := _KV_SIZE.search(line):
        log.kv_cache_device, log.kv_cache_tokens = found[1], _whole(found[2])
    if found := _CONCURRENCY.search(line):
        log.max_concurrency_tokens, log.max_concurrency = _whole(found[1]), float(found[2])
    if found := _KV_MEMORY.search(line) or _KV_SET.search(line):
        log.kv_cache_gib = float(found[1])
    if found := _WEIGHTS_TOOK.search(line):
        log.weights_seconds = float(found[1])
    if found := _MODEL_TOOK.search(line):
        log.weights_gib, log.load_seconds = float(found[1]), float(found[2])
    if found := _INIT_TOOK.search(line):
        log.init_seconds = float(found[1])
        if found[2]:
            log.compile_seconds = float(found[2])
    if found := _COMPILE_TOOK.search(line):
        log.compile_seconds = float(found[1])
    if found := _GRAPHS_TOOK.search(line):
        log.graphs_seconds, log.graphs_gib = float(found[1]), float(found[2])
    if found := _VERSION.search(message.strip()):
        log.version = log.version or found[1] or found[2] or found[3]
    if found := _NCCL.search(line):
        log.nccl = found[1]
    if found := _WORLD.search(line):
        log.world_size, log.rank = int(found[1]), int(found[2])
    if found := _NETWORK.search(line):
        log.network = found[1]
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
