# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Failures of engines, by a line of their log: memory, GPU, CPU, and what ends a process."""

from __future__ import annotations

from ansible.module_utils.sparklanes.engine.known import Known, Words, known


def _fitting(words: Words) -> Words:
    """The largest share of memory, in hundredths, that what was free would have held; empty where none would."""
    share = int(100 * float(words["free"]) / float(words["all"])) / 100 if float(words["all"]) else 0.0
    fits = f"lane_gpu_memory_utilization {share:.2f} would have fitted (it asked for {words['share']}). " if share >= 0.05 else ""
    return {"fits": fits}


HARDWARE: tuple[Known, ...] = (
    known(
        "kv_too_small",
        r"To serve at least one request[^(]{0,120}\((?P<tokens>\d[\d,]*)\)[^\d]{0,20}(?P<need>[\d.]+) GiB KV cache is needed.{0,80}?"
        r"available KV cache memory \((?P<have>-?[\d.]+) GiB\)",
        "one request of {tokens} tokens needs {need} GiB of KV cache against {have} GiB available",
        "Lower lane_max_model_len, or give the pool more (lane_kv_cache_memory_bytes, lane_gpu_memory_utilization).",
        hw=True,
    ),
    known(
        "kv_too_small",
        r"KV cache[^.]{0,120}?(?P<need>\d[\d.]{0,12}) GiB (?:is )?needed[^.\d]{0,120}(?P<have>\d[\d.]{0,12}) GiB available|"
        r"No available memory for the cache blocks",
        "the memory that is left does not hold the KV cache of one request",
        "Lower lane_max_model_len, or free memory on the Spark (page cache, other processes) before launching again.",
        hw=True,
    ),
    known(
        "startup_memory",
        r"Free memory on device[^(]{0,40}\((?P<free>[\d.]+)/(?P<all>[\d.]+) GiB\) on startup is less than desired GPU memory utilization "
        r"\((?P<share>[\d.]+), (?P<want>[\d.]+) GiB\)",
        "only {free} of {all} GiB were free when the engine started, and its share of {share} is {want} GiB",
        "{fits}Where more was free before: something holds memory (page cache, GPU processes, an engine that has not ended).",
        hw=True,
        more=_fitting,
    ),
    known(
        "startup_memory",
        r"Free memory on device[^(]{0,40}\((?P<free>[\d.]+)/(?P<all>[\d.]+) GiB\) on startup is less than desired",
        "only {free} of {all} GiB were free when the engine started",
        "Something holds memory: drop the page cache, look for other GPU processes, then launch again.",
        hw=True,
    ),
    known(
        "gpu_oom",
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation",
        "the GPU ran out of memory",
        "Lower lane_max_num_batched_tokens, lane_max_num_seqs or the KV cache; check what else holds memory.",
        hw=True,
    ),
    known(
        "nccl_memory",
        r"ibv_(?:reg_mr\w{0,12}|create_qp|create_cq|alloc_pd) failed.{0,80}?(?:Cannot allocate memory|ENOMEM|\b12\b)",
        "RDMA memory could not be registered (ENOMEM)",
        "Check memlock of the container and the kernel: on some 7.0 kernels CmaFree exceeds CmaTotal, "
        "which kho=off or an older kernel cures. Reboot after that.",
        hw=True,
    ),
    known(
        "sigill",
        r"died unexpectedly \(exit code: -4\)|Illegal instruction",
        "the worker met an instruction that this CPU refuses (SIGILL)",
        "The image is built for another CPU, or its dtype takes a path that this CPU lacks (float32 is safe on CPU).",
        hw=True,
        death=True,
    ),
    known(
        "killed",
        r"Worker proc (?P<worker>\S{1,60}) died unexpectedly \(exit code: -9\)",
        "{worker} was killed (SIGKILL): the kernel's out-of-memory killer, or a person",
        "Look at the kernel log of this Spark for oom-kill and at its memory before launching again.",
        death=True,
    ),
    known(
        "shm_bus_error",
        r"died unexpectedly \(exit code: -7\)|\bBus error\b",
        "a worker died of SIGBUS: usually /dev/shm is full",
        "Give the container a larger shm_size in lane_container, or clear /dev/shm on the Spark with ipc: host.",
        death=True,
    ),
    known(
        "gpu_fault",
        r"CUDA error: (?P<what>an illegal memory access|unspecified launch failure|misaligned address|"
        r"uncorrectable ECC error|device-side assert|the launch timed out)|(?P<xid>NVRM: Xid)",
        "the GPU reported a fault",
        "Look at the kernel log for Xid lines. The same fault at the same place again is software (an overlay, a "
        "kernel), at other places hardware.",
        hw=True,
    ),
    known(
        "driver_mismatch",
        r"[Dd]river/library version mismatch|Error 803: system has unsupported display driver",
        "driver and user libraries of the GPU are of different versions",
        "The driver was updated under a running kernel, or the image brings libraries for another one: reboot this Spark; "
        "then nvidia-smi on it and in the container.",
        hw=True,
    ),
    known(
        "gpu_missing",
        r"No CUDA GPUs are available|Failed to infer device type|could not select device driver|"
        r"no CUDA-capable device|adjusted local rank \d{1,4} is out of bounds",
        "the container sees no GPU",
        "Check nvidia-smi on the Spark and inside the container, and CUDA_VISIBLE_DEVICES; a reboot after a driver update is the usual cure.",
        hw=True,
    ),
    known(
        "gpu_kernel_image",
        r"no kernel image is available for execution|ptxas fatal\s{0,4}: Value '(?P<arch>sm_\w{1,12})'",
        "the image holds no code, or no compiler, for this GPU",
        "Use an image that is built for the GB10 (sm_121), with a ptxas of CUDA 13 (TRITON_PTXAS_PATH).",
    ),
)
