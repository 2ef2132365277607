"""The metrics page of an engine."""

from __future__ import annotations

from ansible.module_utils.sparklanes.engine import metrics
from conftest import FIXTURES
from hypothesis import given
from hypothesis import strategies as st

RECORDED = FIXTURES / "engine"


def read(name: str) -> metrics.EngineMetrics:
    return metrics.engine_metrics((RECORDED / name).read_text())


def test_a_recorded_page() -> None:
    seen = read("metrics.txt")
    assert (seen.running, seen.waiting, seen.preemptions) == (0, 0, 0)
    assert seen.requests_finished == 9
    assert seen.prompt_tokens == 114
    assert seen.generation_tokens == 34
    assert seen.boot_time == 1795980198.76
    assert (seen.kv_cache_tokens, seen.kv_blocks) == (65536, 512)
    assert seen.idle
    assert seen.spec is None


def test_the_pool_of_an_engine_that_names_only_blocks() -> None:
    """vLLM 0.23.0: its boot log says 524,288 tokens."""
    line = 'vllm:cache_config_info{block_size="16",kv_cache_memory_bytes="3221225472",num_gpu_blocks="32768"} 1.0\n'
    assert metrics.engine_metrics(line).kv_cache_tokens == 524_288
    assert metrics.engine_metrics(line.replace('"32768"', '"None"')).kv_cache_tokens is None


def test_speculative_decoding() -> None:
    seen = read("metrics_spec_ngram.txt").spec
    assert seen is not None
    assert (seen.drafts, seen.draft_tokens, seen.accepted_tokens) == (17, 44, 42)
    assert seen.accepted_per_position == [17, 15, 10]
    assert seen.acceptance == 42 / 44
    assert seen.mean_length == 1 + 42 / 17
    later = metrics.Spec(20, 53, 45, [19, 16, 10])
    assert later.since(seen) == metrics.Spec(3, 9, 3, [2, 1, 0])
    assert metrics.Spec(0, 0, 0).acceptance is None


def test_none_in_labels_created_twins_and_whole_names() -> None:
    seen = read("metrics-vllm.prom")
    assert seen.kv_blocks is None
    assert seen.kv_cache_tokens == 467367
    assert seen.spec is not None
    assert seen.spec.accepted_tokens == 420  # the _created twin is a time of 1.7e9
    assert (seen.running, seen.waiting) == (1, 0)
    assert not seen.idle
    text = 'vllm:num_requests_waiting_by_reason{reason="capacity"} 7\nvllm:num_requests_waiting{engine="0"} 2\n'
    assert metrics.engine_metrics(text).waiting == 2


def test_label_order_escapes_and_engines() -> None:
    text = (
        'vllm:num_requests_running{model_name="a",engine="0"} 1\n'
        'vllm:num_requests_running{engine="1", model_name="a",} 2 1700000000\n'
        'odd{path="C:\\\\x",say="a \\"b\\" {c},d",line="1\\n2"} +Inf # {trace="1"} 0.5\n'
    )
    assert metrics.engine_metrics(text).running == 3
    odd = metrics.parse(text)[2]
    assert odd.labels == {"path": "C:\\x", "say": 'a "b" {c},d', "line": "1\n2"}
    assert odd.value == float("inf")


def test_unknown_is_not_idle() -> None:
    assert not metrics.engine_metrics("").idle
    assert metrics.engine_metrics("").to_dict()["kv_cache_tokens"] is None


def test_an_older_name_of_the_cache_usage() -> None:
    assert metrics.engine_metrics("vllm:gpu_cache_usage_perc 0.25").kv_cache_usage == 0.25


@given(st.text())
def test_any_text_is_read_without_error(text: str) -> None:
    usage = metrics.engine_metrics(text).kv_cache_usage
    assert usage is None or isinstance(usage, float)


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text(max_size=12).filter(lambda s: "\r" not in s))
)
def test_labels_survive(labels: dict[str, str]) -> None:
    def escape(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    # A page is lines; other separators that Python knows do not end one in this format, and engines don't send them.
    clean = {name: "".join(value.splitlines()) for name, value in labels.items()}
    line = "m{" + ",".join(f'{name}="{escape(value)}"' for name, value in clean.items()) + "} 1"
    assert metrics.parse(line) == [metrics.Sample("m", clean, 1.0)]
