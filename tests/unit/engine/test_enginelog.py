"""Logs of ranks: recorded boots and deaths of vLLM 0.32 on CPU, lines from public reports, and vLLM's own texts."""

from __future__ import annotations

import pytest
from ansible.module_utils.sparklanes.engine import failures as engine_failures
from ansible.module_utils.sparklanes.engine import log as engine_log
from ansible.module_utils.sparklanes.engine import rank_log
from conftest import FIXTURES
from hypothesis import given
from hypothesis import strategies as st

RECORDED = FIXTURES / "engine"
HEALTHY = [
    "boot_rank0.log",
    "boot_rank1.log",
    "boot_single.log",
    "boot_spec_ngram.log",
    "alone_r0_default.log",
    "stopped_single.log",
    "vllm-boot-743b-rank0.log",
    "vllm-boot-flash-2x.log",
    "vllm-boot-multi-rank-duplicates.log",
    "vllm-engine-stats.log",
    "vllm-engine-wedge.log",
    "nccl-init-good.log",
    "nccl-ring4-good.log",
    "dmesg-nvrm-oom.log",
]


def read(name: str, transport: str = "roce") -> rank_log.RankLog:
    return engine_log.read((RECORDED / name).read_text(), transport)


def codes(text: str) -> list[str]:
    return [failure.code for failure in engine_log.read(text).failures]


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_logs_have_no_failures(name: str) -> None:
    assert read(name).failures == []


def test_a_whole_boot_of_the_head() -> None:
    log = read("boot_rank0.log")
    assert log.phase == "serving"
    assert log.progress == "serving"
    assert (log.rank, log.world_size, log.version) == (0, 2, "0.32.0")
    assert (log.kv_cache_device, log.kv_cache_tokens) == ("CPU", 65536)
    assert (log.max_concurrency, log.max_concurrency_tokens) == (128.0, 512)
    assert (log.weights_done, log.weights_total, log.weights_seconds) == (4, 4, 0.05)
    assert log.init_seconds == 0.08
    assert log.last_timestamp == "11-29 20:06:20"
    assert any("CPU KV cache size" in line for line in log.memory)
    assert not log.ended


def test_a_worker_says_nothing_after_its_kv_cache() -> None:
    log = read("boot_rank1.log")
    assert log.headless
    assert (log.rank, log.phase) == (1, "kv_cache")


def test_public_boots_of_sparks() -> None:
    log = read("vllm-boot-743b-rank0.log")
    assert (log.weights_gib, log.load_seconds) == (96.32, 384.545121)
    assert (log.kv_cache_tokens, log.max_concurrency) == (689_772, 2.63)
    assert (log.init_seconds, log.compile_seconds) == (98.19, 24.49)
    other = read("vllm-boot-flash-2x.log")
    assert (other.nccl, other.kv_cache_gib, other.weights_seconds) == ("2.30.7", 7.19, 610.43)
    assert read("nccl-init-good.log").hcas == ["rocep1s0f1", "roceP2p1s0f1"]


@pytest.mark.parametrize(
    ("line", "phase", "progress"),
    [
        ("", "init", "starting"),
        ("INFO 10-06 21:00:00 [p.py:1] world_size=4 rank=2 local_rank=0 distributed_init_method=tcp://a:1 backend=nccl",
         "rendezvous", "waiting for the other ranks (rank 2 of 4)"),
        ("Loading safetensors checkpoint shards:   0% Completed | 0/41 [00:00<?]\r"
         "Loading safetensors checkpoint shards:  41% Completed | 17/41 [02:00<03:00]", "weights", "loading weights 17/41"),
        ("Loading safetensors using Fastsafetensor loader:  50% Completed | 1/2 [00:01<00:01]", "weights", "loading weights 1/2"),
        ("INFO 10-06 21:00:00 [x.py:1] Model loading took 96.32 GiB memory and 384.5 seconds", "profiling",
         "weights loaded, profiling memory and compiling"),
        ("INFO 10-06 21:00:00 [k.py:1] GPU KV cache size: 689,772 tokens", "kv_cache", "KV cache made (689,772 tokens)"),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  51%|█████     | 34/67 [00:09<00:09, 3.5it/s]",
         "graphs", "capturing graphs 34/67"),
        ("INFO 10-06 21:00:00 [m.py:1] Graph capturing finished in 31 secs, took 0.45 GiB", "warmup", "warming up"),
        ("INFO:     Application startup complete.", "serving", "serving"),
    ],
)  # fmt: skip
def test_phases_and_what_a_waiting_person_reads(line: str, phase: str, progress: str) -> None:
    log = engine_log.read(line)
    assert (log.phase, log.progress) == (phase, progress)


@pytest.mark.parametrize(
    ("name", "first", "all_codes"),
    [
        ("alone_r0_t45.log", "after 46 s only 1 of 2 ranks had joined", {"rendezvous_timeout", "worker_exception", "engine_died"}),
        ("netns_linkdown_rank0.log", "a rank did not answer execute_model in time: it is dead, cut off or stuck",
         {"rpc_timeout", "engine_died"}),
        ("netns_rank1_worker_killed_rank1.log", "VllmWorker-1 died (exit code None)", {"worker_died"}),
        ("rank1_killed_rank0.log", "another rank closed its connection (127.0.0.1)", {"peer_lost", "worker_exception", "engine_died"}),
        ("pp2_assert_rank1.log", "a worker raised AssertionError", {"worker_exception"}),
        ("sigill_bf16_amx.log", "the worker met an instruction that this CPU refuses (SIGILL)", {"sigill", "engine_died"}),
        ("safetensors-eof.log", "a weights file could not be read: Error while deserializing header: invalid JSON in header: "
         "EOF while parsing a value at line 1 column 0", {"weights_unreadable"}),
        ("nccl-gid-fail.log", "RDMA on roceP2p1s0f0:1 could not connect: No data available (errno 61, GID index 3, GID ::)", {"gid"}),
        ("nccl-init-socket-fallback.SYNTHETIC.log", "NCCL found no RDMA device and fell back to TCP sockets", {"socket_fallback"}),
    ],
)  # fmt: skip
def test_recorded_deaths(name: str, first: str, all_codes: set[str]) -> None:
    log = read(name)
    assert log.failures[0].message == first
    assert {failure.code for failure in log.failures} == all_codes
    assert log.progress == f"failed: {first}"
    assert all(failure.remedy and failure.line for failure in log.failures)


def test_sockets_are_fine_where_they_were_asked_for() -> None:
    log = read("nccl-init-socket-fallback.SYNTHETIC.log", transport="socket")
    assert log.failures == []
    assert log.network == "Socket"


@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        ("ValueError: To serve at least one request with the models's max seq len (300000), (11.06 GiB KV cache is needed, which is "
         "larger than the available KV cache memory (10.2 GiB). Based on the available memory, the estimated maximum model length is "
         "276000.", "kv_too_small", "300000 tokens needs 11.06 GiB of KV cache against 10.2 GiB"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.", "kv_too_small", "does not hold"),
        ("ValueError: Free memory on device cuda:0 (55.87/119.56 GiB) on startup is less than desired GPU memory utilization "
         "(0.9, 107.6 GiB).", "startup_memory", "only 55.87 of 119.56 GiB"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.90 GiB.", "gpu_oom", "ran out"),
        ("misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "nccl_memory", "ENOMEM"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "gpu_fault", "fault"),
        ("RuntimeError: No CUDA GPUs are available", "gpu_missing", "no GPU"),
    ],
)  # fmt: skip
def test_memory_and_hardware_wait_for_a_person(line: str, code: str, part: str) -> None:
    log = engine_log.read(line)
    assert log.failures[0].code == code
    assert part in log.failures[0].message
    assert log.hardware_or_memory
    assert code in engine_failures.HARDWARE_OR_MEMORY


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ncclSystemError: System call (e.g. socket, malloc) failed", "nccl_unhandled"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2.30.7", "nccl_unhandled"),
        ("RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 62 MiB free", "shm_too_small"),
        ("vllm serve: error: unrecognized arguments: --kv-cache-dtyp fp8", "bad_flag"),
        ("vllm: error: argument --max-model-len: invalid value: 'x'", "bad_flag"),
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", "bad_config"),
        ("OSError: /models/tiny does not appear to have a file named config.json", "model_not_found"),
        ("OSError: [Errno 98] error while attempting to bind on address ('10.93.1.11', 8000): address already in use", "port_in_use"),
        ("ImportError: cannot import name 'dsa_block' from 'vllm.model_executor'", "import_error"),
        ("ValueError: Model architectures ['GlmMoe'] are not supported for now.", "model_unsupported"),
        ("ValueError: Out of range float values are not JSON compliant", "nan"),
        ("torch.distributed.DistNetworkError: The client socket has timed out after 45000ms while trying to connect to (10.0.0.1, 29500).",
         "rendezvous_timeout"),
        ("NCCL WARN Bootstrap : no socket interface found", "nccl_interface"),
        ("TimeoutError: RPC call to sample_tokens timed out.", "rpc_timeout"),
        ("OSError: [Errno 28] No space left on device: '/root/.cache/vllm'", "disk_full"),
    ],
)  # fmt: skip
def test_other_known_failures(line: str, code: str) -> None:
    log = engine_log.read(line)
    assert [failure.code for failure in log.failures] == [code]
    assert not log.hardware_or_memory


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) INFO 10-06 21:00:00 [u.py:1] non-default args: {'x': 'torch.OutOfMemoryError'}",
        "(EngineCore pid=1) ERROR 10-06 21:00:00 [dump_input.py:79] Dumping scheduler output: prompt 'CUDA out of memory'",
        "WARNING 10-06 21:00:00 [x.py:1] ImportError: cannot import name 'deep_gemm'",
        "mlx5_core 0000:01:00.0: mlx5_pcie_event: Detected insufficient power on the PCIe slot (27W).",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) @ mem_desc.c:1359",
        "INFO:     10.0.0.9:33210 - \"POST /v1/completions HTTP/1.1\" 200 OK",
    ],
)  # fmt: skip
def test_lines_that_only_look_like_failures(line: str) -> None:
    assert codes(line) == []


def test_one_missing_broadcast_block_is_normal_and_a_repeat_is_a_stall() -> None:
    wedge = (RECORDED / "vllm-engine-wedge.log").read_text()
    assert not engine_log.read(wedge).stalled
    last = wedge.rstrip().splitlines()[-1]
    again = engine_log.read(f"{wedge}\n{last}\n")
    assert again.stalled
    assert "no message from the workers" in again.progress
    moved = "(EngineCore pid=166) INFO 09-07 11:21:30 [core.py:1] Graph capturing finished in 31 secs, took 0.45 GiB"
    assert not engine_log.read(f"{wedge}\n{moved}\n{last}\n").stalled


def test_a_stop_on_request_is_no_death() -> None:
    text = (RECORDED / "stopped_single.log").read_text()
    assert "EngineDeadError" in text  # said after SIGTERM, once the shutdown had begun
    log = engine_log.read(text)
    assert (log.ended, log.failures, log.progress) == (True, [], "ended")


def test_only_the_last_boot_counts() -> None:
    dead = (RECORDED / "sigill_bf16_amx.log").read_text()
    fresh = (RECORDED / "boot_single.log").read_text()
    log = engine_log.read(dead + fresh)
    assert (log.boots, log.phase, log.failures) == (2, "serving", [])
    assert engine_log.read(fresh + dead).failures[0].code == "sigill"


def test_json_edge() -> None:
    data = read("rank1_killed_rank0.log").to_dict()
    assert data["failed"] is True
    assert data["failures"][0]["code"] == "peer_lost"
    assert data["failures"][0]["count"] > 1
    assert len(data["failures"][0]["line"]) <= 300


def test_every_pattern_fills_its_message() -> None:
    for known in engine_failures.KNOWN:
        names = set(known.pattern.groupindex)
        words = dict.fromkeys(names, "1")
        assert known.message.format(**words, **(known.more(words) if known.more else {}))
        assert known.remedy.format(**words, **(known.more(words) if known.more else {}))
        assert known.remedy.endswith((".", ")."))


@given(st.text())
def test_any_text_is_read_without_error(text: str) -> None:
    assert engine_log.read(text).phase in rank_log.PHASES
