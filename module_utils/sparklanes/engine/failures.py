# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The failures of engines that are known by a line of their log: what it means, what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass


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
