"""Every failure that is known by a line: an example of each, what a stranger can make of it, and what a long line costs."""

from __future__ import annotations

import re
import warnings
from typing import Any
from urllib.parse import quote

import pytest
from ansible.module_utils.sparklanes.engine import lines as engine_lines
from ansible.module_utils.sparklanes.engine import log as engine_log
from ansible.module_utils.sparklanes.engine.failures import KNOWN
from ansible.module_utils.sparklanes.engine.known import Known

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import sre_constants
    import sre_parse

# A line for each pattern: code → lines of it, in the words of vLLM, torch, NCCL, gloo and pydantic.
EXAMPLES: list[tuple[str, str, str]] = [
    ("kv_too_small", "ValueError: To serve at least one request with the model's max seq len (300000), (11.06 GiB KV cache is needed, which is "
     "larger than the available KV cache memory (10.2 GiB).", "300000 tokens needs 11.06 GiB"),
    ("kv_too_small", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.", "does not hold"),
    ("startup_memory", "ValueError: Free memory on device cuda:0 (102.1/121.69 GiB) on startup is less than desired GPU memory utilization "
     "(0.87, 105.87 GiB). Decrease GPU memory utilization", "only 102.1 of 121.69 GiB were free when the engine started, and its share of 0.87 is 105.87"),
    ("startup_memory", "ValueError: Free memory on device (1.0/2.0 GiB) on startup is less than desired", "only 1.0 of 2.0 GiB"),
    ("gpu_oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.90 GiB.", "ran out"),
    ("nccl_memory", "misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "ENOMEM"),
    ("nccl_memory", "misc/ibvwrap.cc:300 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory errno 12", "ENOMEM"),
    ("nccl_memory", "misc/ibvwrap.cc:311 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory", "ENOMEM"),
    ("no_more_processes", "RuntimeError: can't start new thread", "no more processes"),
    ("no_more_processes", "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 20: Resource temporarily unavailable", "no more"),
    ("no_more_processes", "/bin/bash: fork: retry: Resource temporarily unavailable", "no more processes"),
    ("sigill", "Worker proc VllmWorker-0 died unexpectedly (exit code: -4), shutting down executor.", "SIGILL"),
    ("killed", "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.", "VllmWorker-0 was killed"),
    ("shm_bus_error", "Worker proc VllmWorker-0 died unexpectedly (exit code: -7), shutting down executor.", "SIGBUS"),
    ("gpu_fault", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "fault"),
    ("driver_mismatch", "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch", "different versions"),
    ("driver_mismatch", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver "
     "combination", "different versions"),
    ("gpu_missing", "RuntimeError: No CUDA GPUs are available", "no GPU"),
    ("gpu_missing", "AssertionError: DP adjusted local rank 0 is out of bounds.", "no GPU"),
    ("gpu_kernel_image", "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device", "no code"),
    ("gpu_kernel_image", "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "no code"),
    ("gid", "NCCL WARN Call to ibv_modify_qp failed with 61 No data available, on dev roceP2p1s0f0:1, curr state INIT, next state RTR, local GID "
     "index 3, local GID ::, remote GID ::ffff:10.0.0.2", "errno 61"),
    ("gid", "NCCL WARN ibv_modify_qp failed", "queue pairs"),
    ("rdma_port", "misc/ibv.cc:90 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error", "port error"),
    ("rdma_unanswered", "NCCL WARN NET/IB: Got completion from peer 10.0.0.2<41000> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=0 len=0 vendor err 129",
     "IBV_WC_RETRY_EXC_ERR"),
    ("rdma_unanswered", "NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", "(12)"),
    ("peer_lost", "[2026-11-30 22:07:44] vm:1:2 [0] misc/socket.cc:72 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.2<38632>",
     "closed its connection (10.0.0.2)"),
    ("peer_lost", "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:3780, remote process exited or there was a network error", "connection"),
    ("peer_lost", "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:21930", "(10.0.0.2)"),
    ("nccl_no_network", "NCCL WARN Failed to initialize any NET plugin", "no network"),
    ("collective_timeout", "[rank1]:[E1130 22:07:39.9 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, "
     "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600027 milliseconds before timing out.", "waited for each other"),
    ("nccl_connect", "transport/generic.cc:20 NCCL WARN ncclTransportTreeConnect failed", "connect"),
    ("nccl_unhandled", "ncclSystemError: System call (e.g. socket, malloc) failed", "gave up"),
    ("socket_fallback", "vm:1:1 [0] NCCL INFO NET/IB : No device found.", "sockets"),
    ("nccl_interface", "NCCL WARN Bootstrap : no socket interface found", "interface"),
    ("nccl_interface", "RuntimeError: [enforce fail at tcp/device.cc:87] ifa != nullptr. Unable to find address for: enp1s0f0np0", "enp1s0f0np0"),
    ("rendezvous_timeout", "torch.distributed.DistStoreError: Timed out after 46 seconds waiting for clients. 1/2 clients joined.", "only 1 of 2"),
    ("rendezvous_timeout", "torch.distributed.DistNetworkError: The client socket has timed out after 45000ms while trying to connect to (10.0.0.1, 29500).",
     "10.0.0.1 port 29500"),
    ("rendezvous_timeout", "torch.distributed.DistStoreError: wait timeout after 300000ms", "did not find each other"),
    ("port_in_use", "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, "
     "code: -98, name: EADDRINUSE, message: address already in use", "master port"),
    ("shm_too_small", "RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 62 MiB free", "160 MiB required"),
    ("shm_too_small", "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", "/dev/shm is full"),
    ("disk_full", "OSError: [Errno 28] No space left on device: '/root/.cache/vllm'", "a disk is full"),
    ("bad_flag", "vllm serve: error: unrecognized arguments: --kv-cache-dtyp fp8", "--kv-cache-dtyp fp8"),
    ("bad_flag", "main.py: error: unrecognized arguments: --no-such-flag 1", "--no-such-flag 1"),
    ("bad_config", "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig", "ParallelConfig"),
    ("model_not_found", "OSError: /models/tiny does not appear to have a file named config.json", "no model"),
    ("model_unsupported", "ValueError: Model architectures ['GlmMoe'] are not supported for now.", "architecture"),
    ("weights_unreadable", "safetensors_rust.SafetensorError: Error while deserializing header: EOF", "EOF"),
    ("import_error", "ImportError: cannot import name 'dsa_block' from 'vllm.model_executor'", "dsa_block"),
    ("port_in_use", "OSError: [Errno 98] error while attempting to bind on address ('10.93.1.11', 8000): address already in use", "taken"),
    ("nan", "ValueError: Out of range float values are not JSON compliant: nan", "NaN"),
    ("boot_timeout", "TimeoutError: Timed out waiting for engine core processes to start", "not ready in time"),
    ("rpc_timeout", "TimeoutError: RPC call to sample_tokens timed out.", "sample_tokens"),
    ("worker_died", "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", "VllmWorker-1 died without an exit code"),
    ("worker_died", "Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor.", "exit code None"),
    ("worker_exception", "WorkerProc hit an exception.\nValueError: x", "a worker raised ValueError: x"),
    ("engine_died", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", "the engine core died"),
]  # fmt: skip


def codes(text: str) -> list[str]:
    return [failure.code for failure in engine_log.read(text).failures]


@pytest.mark.parametrize(("code", "line", "part"), EXAMPLES)
def test_a_line_has_its_code_and_its_words(code: str, line: str, part: str) -> None:
    for text in (line, f"(EngineCore pid=7) ERROR 11-30 22:16:07 [core.py:1195] {line}"):
        if code == "bad_flag" and text != line:
            continue
        failure = engine_log.read(text).failures[0]
        assert (failure.code, part in failure.message) == (code, True), failure.message


def test_every_pattern_has_an_example() -> None:
    for known in KNOWN:
        assert any(first(line) is known for _, line, _ in EXAMPLES), known.pattern.pattern


def first(line: str) -> Known | None:
    return next((known for known in KNOWN if known.search(line)), None)


def test_which_utilization_would_have_fitted() -> None:
    wanted = next(line for code, line, _ in EXAMPLES if code == "startup_memory")
    assert (
        engine_log.read(wanted)
        .failures[0]
        .remedy.startswith("lane_gpu_memory_utilization 0.83 would have fitted (it asked for 0.87).")
    )
    nothing = wanted.replace("102.1/", "0.92/")
    assert engine_log.read(nothing).failures[0].remedy.startswith("Where more was free before")


@pytest.mark.parametrize(
    ("next_lines", "told"),
    [
        (["  Value error, tensor_parallel_size (2) must be divisible", "    For further information visit https://errors.pydantic.dev"],
         "Value error, tensor_parallel_size (2) must be divisible"),
        (["distributed_executor_backend", "  Value error, Ray is not installed [type=value_error]"],
         "distributed_executor_backend: Value error, Ray is not installed [type=value_error]"),
    ],
)  # fmt: skip
def test_the_line_that_tells_what_is_wrong_with_a_configuration_is_taken(next_lines: list[str], told: str) -> None:
    said = ["pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig", *next_lines, "INFO:     done"]
    failure = engine_log.read("\n".join(f"(APIServer pid=1) {line}" for line in said)).failures[0]
    assert failure.message == f"the engine refused its configuration (ParallelConfig): {told}"


def test_a_frame_of_cpp_is_no_failure() -> None:
    frames = ["#2: c10::DistNetworkError::DistNetworkError(std::string)", "frame #3: c10d::TCPStore ncclSystemError: x (0x7f)"]
    assert codes("\n".join(frames)) == []
    good = next(line for code, line, _ in EXAMPLES if code == "port_in_use")
    assert codes("\n".join([*frames, good])) == ["port_in_use"]


# --- strangers -------------------------------------------------------------------------------------------------

SERVES = "(APIServer pid=1) INFO:     Application startup complete."
ASKED: dict[str, Any] = {
    "path": lambda text: f'INFO:     10.0.0.9:34530 - "GET /{quote(text)} HTTP/1.1" 404 Not Found',
    "path as it came": lambda text: f'(APIServer pid=1) INFO:     10.0.0.9:34530 - "GET /{text} HTTP/1.1" 404 Not Found',
    "query": lambda text: f'INFO:     [fd00::1]:34530 - "POST /v1/models?a={text} HTTP/1.1" 401 Unauthorized',
    "in a line that two processes share": lambda text: f'INFO 11-30 22:00:00 [core.py:1] x INFO:     10.0.0.9:3 - "GET /{text} HTTP/1.1" 404',
    "model": lambda text: f"(APIServer pid=1) ERROR 11-30 22:00:00 [serving.py:1] Error with model error=ErrorInfo(message='The model `{text}` does not "
    "exist.', type='NotFoundError', param='model', code=404)",
    "prompt": lambda text: f"(APIServer pid=1) INFO 11-30 22:00:00 [logger.py:1] Received request cmpl-1: prompt: '{text}', params: SamplingParams(n=1)",
    "prompt when the engine died": lambda text: f"(EngineCore pid=1) ERROR 11-30 22:00:00 [dump_input.py:79] Dumping scheduler output: '{text}'",
    "exception of an answer": lambda text: f"(APIServer pid=1) ERROR 11-30 22:00:00 [serving.py:1] ValueError: cannot parse '{text}'",
    "traceback of an answer": lambda text: f"jinja2.exceptions.TemplateError: {text} is not a role",
    "header": lambda text: f"(APIServer pid=1) WARNING 11-30 22:00:00 [api_server.py:1] invalid header value '{text}'",
}  # fmt: skip


@pytest.mark.parametrize("place", ASKED)
@pytest.mark.parametrize("line", [line for _, line, _ in EXAMPLES])
def test_what_a_stranger_asks_for_is_never_a_failure(line: str, place: str) -> None:
    log = engine_log.read(f"{SERVES}\n{ASKED[place](line)}\n")
    assert log.failures == []
    assert log.exception is None


@pytest.mark.parametrize(
    "text",
    ["non-default%20args:", "Graph capturing finished in 3 secs, took 9 GiB", "[shutdown]", "Loading x: 50% Completed | 1/2"],
)
def test_a_stranger_tells_nothing_of_the_boot(text: str) -> None:
    before = engine_log.read(f"{SERVES}\n")
    after = engine_log.read(f"{SERVES}\n{ASKED['path as it came'](text)}\n")
    assert (after.phase, after.boots, after.ended, after.graphs_gib, after.weights_done) == (
        before.phase, before.boots, before.ended, before.graphs_gib, before.weights_done)  # fmt: skip


def test_what_the_server_says_of_itself_still_counts() -> None:
    died = "(APIServer pid=1) ERROR 11-30 22:00:00 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    assert codes(f"{SERVES}\n{died}") == ["engine_died"]
    nan = "(APIServer pid=1) ERROR:    Exception in ASGI application\n(APIServer pid=1) ValueError: Out of range float values are not JSON compliant: nan"
    assert codes(f"{SERVES}\n{nan}") == ["nan"]
    native = "vm:1:2 [0] misc/socket.cc:72 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.2<38632>"
    assert codes(f"{SERVES}\n{native}") == ["peer_lost"]


# --- long lines ------------------------------------------------------------------------------------------------


def test_a_line_is_cut_before_any_pattern_reads_it() -> None:
    late = "x" * engine_lines.LONGEST + " torch.OutOfMemoryError: CUDA out of memory"
    assert codes(late) == []
    assert codes("torch.OutOfMemoryError: CUDA out of memory " + "x" * 16384) == ["gpu_oom"]
    assert all(len(line.text) <= engine_lines.LONGEST for line in engine_lines.lines("y" * 60_000))


def endless(parsed: Any, last: bool = True) -> list[str]:
    """Repetitions without an end that something follows, of what can be nearly anything: the makings of quadratic time."""
    found = []
    items = list(parsed)
    for at, (kind, value) in enumerate(items):
        end = last and at == len(items) - 1
        if kind in (sre_constants.MAX_REPEAT, sre_constants.MIN_REPEAT):
            low, high, inner = value
            wide = any(
                one is sre_constants.ANY
                or (
                    one is sre_constants.IN
                    and any(
                        sort is sre_constants.NEGATE or (sort is sre_constants.CATEGORY and "NOT" in str(what))
                        for sort, what in many
                    )
                )
                or (
                    one is sre_constants.IN and any(sort is sre_constants.CATEGORY and "WORD" in str(what) for sort, what in many)
                )
                for one, many in inner
            )
            if high == sre_constants.MAXREPEAT and wide and not end:
                found.append(f"{low},{high} of {inner}")
            found += endless(inner, end)
        elif kind is sre_constants.SUBPATTERN:
            found += endless(value[-1], end)
        elif kind is sre_constants.BRANCH:
            found += [one for branch in value[1] for one in endless(branch, end)]
    return found


def test_no_pattern_is_quadratic() -> None:
    patterns = [known.pattern for known in KNOWN] + [known.where for known in KNOWN if known.where]
    for pattern in patterns:
        assert not endless(sre_parse.parse(pattern.pattern)), pattern.pattern
    assert endless(sre_parse.parse(r"(?:vllm|api_server)\S*(?: serve)?: error"))
    assert endless(sre_parse.parse(r"NCCL.*?closed"))


@pytest.mark.parametrize(
    "token",
    [
        "vllm",
        "NCCL",
        "gloo",
        "NCCL error",
        "Free memory on device",
        "To serve at least one request",
        "(",
        "[",
        "DistNetworkError:",
    ],
)
def test_long_lines_are_read(token: str) -> None:
    text = "\n".join([token * (16384 // len(token))] * 30)
    assert engine_log.read(text).boots == 1


# --- what reaches a person -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "evil",
    [
        "\x1b]52;c;cm0gLXJm\x07",
        "\x1b[2J\x1b[31m",
        "\x9b31m",
        "\u202egnp.exe\u202c",
        "\x00\x08\x7f",
        "\u2066x\u2069",
        "\u200b",
        "\u2028",
    ],
)
def test_nothing_that_moves_a_cursor_or_turns_a_text_is_said(evil: str) -> None:
    log = engine_log.read(f"safetensors_rust.SafetensorError: {evil}broken{evil}\nValueError: {evil}x\n{evil}last{evil}")
    told = [
        log.last_line,
        log.exception or "",
        log.progress,
        *(text for one in log.failures for text in (one.message, one.line, one.remedy)),
    ]
    assert not any(re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", text) for text in told)
    assert "broken" in log.failures[0].message
    assert "[31m" not in log.last_line


def test_a_stall_that_prints_is_a_stall() -> None:
    wait = "(EngineCore pid=1) INFO 11-30 22:08:44 [shm_broadcast.py:705] No available shared memory broadcast block found in 60 seconds."
    assert not engine_lines.tells(wait)
    assert not engine_lines.tells("DEBUG 11-30 [utils.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.")
    assert not engine_lines.tells(
        "[W1130 socket.cpp:752] [c10d] The client socket has failed to connect to [spark-1]:29500 (errno: 111)"
    )
    assert engine_lines.tells("INFO 11-30 [weight_utils.py:1] Loading safetensors")
