# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Failures of engines, by a line of their log: what computed wrongly, and what says that something else has died."""

from __future__ import annotations

from ansible.module_utils.sparklanes.engine.known import Known, known, named

# Consequences from near to far: of two the first is told.
WHILE_SERVING: tuple[Known, ...] = (
    known(
        "nan",
        r"Out of range float values are not JSON compliant",
        "the engine computed NaN",
        "Weights, quantization, overlay or KV cache are wrong on some rank. Do not serve: run the parity report.",
    ),
    known(
        "boot_timeout",
        r"Timed out waiting for engine core processes|VLLM_ENGINE_READY_TIMEOUT_S",
        "the engine core was not ready in time",
        "The log before this line says what it waited for; slow storage needs a larger VLLM_ENGINE_READY_TIMEOUT_S.",
        after=True,
    ),
    known(
        "rpc_timeout",
        r"RPC call to (?P<method>\w{1,60}) timed out",
        "a rank did not answer {method} in time: it is dead, cut off or stuck",
        "Look at the other ranks' containers and logs, and at the fabric; the head cannot say which one it was.",
        after=True,
    ),
    known(
        "peer_lost",
        r"(?:Connection closed by peer|Connection reset by peer)(?: \[(?P<peer>[\w.:%-]{2,60})\](?::\d+)?)?|"
        r"remote process exited",
        "another rank closed its connection{told}",
        "That rank died first: read its log and its container's state.",
        after=True,
        where=r"gloo|Worker failed|TCPStore|c10d|NCCL",
        more=named,
    ),
    known(
        "worker_died",
        r"Worker proc (?P<worker>\S{1,60}) died unexpectedly(?: \(exit code: (?P<exit>[^)]{1,20})\)|,)",
        "{worker} died{told}",
        "It was ended from outside, or its own last lines or the kernel log of this Spark name the cause.",
        death=True,
        more=lambda words: {"told": f" (exit code {words['exit']})" if words["exit"] else " without an exit code"},
    ),
    known(
        "worker_exception",
        r"WorkerProc (?:hit an exception|failed to start)|Worker failed with error|WorkerProc initialization failed",
        "a worker raised an exception",
        "The last line of its traceback names the cause.",
        after=True,
    ),
    known(
        "engine_died",
        r"EngineCore (?:failed to start|encountered a)|EngineDeadError|Engine core initialization failed|"
        r"EngineCore_?\w{0,20} died",
        "the engine core died",
        "Its cause stands above in the log, or in the log of another rank. The container exits with code 0 all the same.",
        after=True,
    ),
)
