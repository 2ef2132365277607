"""The API client and its parsers, on recorded answers of vLLM 0.32 and on a server in this process."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from ansible.module_utils.sparklanes.engine import api as engine_api
from ansible.module_utils.sparklanes.engine.api import Engine
from conftest import FIXTURES, free_port
from fake_engine import FakeEngine

RECORDED = FIXTURES / "engine"


def recorded(name: str) -> Any:
    return json.loads((RECORDED / name).read_text())


def test_completion() -> None:
    made = engine_api.parse_completion(recorded("completions.json"))
    assert (made.text, made.finish_reason) == (" all all allcal all _ _ _", "length")
    assert (made.prompt_tokens, made.completion_tokens, made.cached_tokens) == (9, 8, None)


def test_chat_and_its_logprobs() -> None:
    made = engine_api.parse_chat(recorded("chat_logprobs.json"))
    assert made.text == "IDror"
    assert made.reasoning == ""
    assert made.logprobs[0] == pytest.approx(-5.169373512268066)
    assert made.finite


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_under_both_names(name: str) -> None:
    answer = recorded("chat.json")
    answer["choices"][0]["message"].update({"reasoning": None, name: "so they fit", "content": None})
    made = engine_api.parse_chat(answer)
    assert (made.text, made.reasoning) == ("", "so they fit")


def test_scores_with_top_1_and_without() -> None:
    ids = recorded("completions_prompt_logprobs_0_rettokids.json")["choices"][0]["prompt_token_ids"]
    bare = engine_api.parse_scores(recorded("completions_prompt_logprobs_0_rettokids.json"), ids)
    both = engine_api.parse_scores(recorded("completions_prompt_logprobs_max1.json"), ids)
    assert bare.logprobs[0] is None
    assert bare.ranks[1] == 510
    assert both.ranks[1] == 512
    assert bare.texts[475] == "def"
    assert bare.prompt_token_ids == ids
    # One was computed in float32 by two ranks, the other in bfloat16 by one.
    assert all(a == pytest.approx(b, abs=0.03) for a, b in zip(bare.logprobs[1:], both.logprobs[1:], strict=True))


def test_scores_of_another_prompt_are_refused() -> None:
    with pytest.raises(engine_api.EngineError, match="10 prompt_logprobs for 3 tokens"):
        engine_api.parse_scores(recorded("completions_prompt_logprobs_max1.json"), [1, 2, 3])


def test_a_token_that_was_not_sent_has_no_logprob() -> None:
    answer = recorded("completions_prompt_logprobs_0_rettokids.json")
    ids = answer["choices"][0]["prompt_token_ids"]
    assert engine_api.parse_scores(answer, [*ids[:3], 9, *ids[4:]]).logprobs[3] is None


def test_models_and_tokens() -> None:
    assert engine_api.parse_models(recorded("models.json")) == [engine_api.Model("tiny", 512)]
    assert engine_api.parse_tokens(recorded("tokenize.json"))[:3] == [0, 475, 926]


@pytest.mark.parametrize(
    "parse", [engine_api.parse_models, engine_api.parse_tokens, engine_api.parse_completion, engine_api.parse_chat]
)
@pytest.mark.parametrize("data", [{}, [], None, {"choices": []}, {"data": 3}, {"tokens": ["a"]}])
def test_nonsense_is_malformed(parse: Any, data: Any) -> None:
    with pytest.raises(engine_api.EngineError) as caught:
        parse(data)
    assert caught.value.kind == engine_api.MALFORMED


@pytest.mark.parametrize(
    ("status", "name", "text"),
    [
        (404, "err_model_404.json", "HTTP 404 The model `nope` does not exist. Valid aliases: tiny."),
        (400, "completions_prompt_logprobs_max0.json", "HTTP 400 max_tokens must be at least 1"),
        (404, "notfound_404.json", "HTTP 404 Not Found"),
        (400, "err_type.json", "int_parsing"),
    ],
)
def test_errors_say_what_the_engine_said(status: int, name: str, text: str) -> None:
    error = engine_api.classify(status, (RECORDED / name).read_text())
    assert (error.kind, error.status) == (engine_api.HTTP, status)
    assert text in error.message


def test_not_json_compliant_is_nan() -> None:
    body = '{"error":{"message":"Out of range float values are not JSON compliant","code":400}}'
    assert engine_api.classify(400, body).kind == engine_api.NAN


def test_an_error_page_is_shortened() -> None:
    message = engine_api.classify(502, "<html>" + "x" * 5000).message
    assert len(message) < 350
    assert message.endswith("…")


def test_base_url_forms() -> None:
    assert str(engine_api.Engine("10.0.0.1:8000")) == "http://10.0.0.1:8000"
    assert str(engine_api.Engine("https://spark.example/lane/v1/")) == "https://spark.example/lane"
    assert str(engine_api.Engine("http://[fd00::1]:8000")) == "http://[fd00::1]:8000"
    for wrong in ("ftp://x", "http://", ""):
        with pytest.raises(ValueError, match="no http"):
            engine_api.Engine(wrong)


def test_against_a_server() -> None:
    with FakeEngine() as fake:
        fake.key = "open sesame"
        engine = engine_api.Engine(fake.url, "open sesame", 5)
        engine.health()
        assert engine.version() == "0.32.0"
        assert engine.models() == [engine_api.Model("tiny", 512)]
        ids = engine.tokenize("tiny", "hello")
        scores = engine.score("tiny", ids)
        assert len(scores.logprobs) == 5
        assert all(value is not None and math.isfinite(value) for value in scores.logprobs[1:])
        assert len(engine.generate("tiny", ids, 3)) == 3
        sent = fake.requests[-2][1]
        assert (sent["prompt_logprobs"], sent["max_tokens"]) == (0, 1)
        with pytest.raises(engine_api.EngineError) as caught:
            engine_api.Engine(fake.url, "guess", 5).models()
        assert (caught.value.kind, caught.value.status) == (engine_api.HTTP, 401)


def test_refused_timeout_and_broken_are_told_apart() -> None:
    with pytest.raises(engine_api.EngineError) as caught:
        engine_api.Engine(f"http://127.0.0.1:{free_port()}").health()
    assert caught.value.kind == engine_api.REFUSED
    with FakeEngine() as fake:
        fake.generation = "hangs"
        with pytest.raises(engine_api.EngineError) as caught:
            engine_api.Engine(fake.url, timeout=0.05).score("tiny", [1, 2, 3])
        assert caught.value.kind == engine_api.TIMEOUT
        fake.generation = "drops"
        with pytest.raises(engine_api.EngineError) as caught:
            engine_api.Engine(fake.url, timeout=5).score("tiny", [1, 2, 3])
        assert caught.value.kind == engine_api.BROKEN


@pytest.mark.parametrize(
    ("host", "elsewhere", "address"),
    [
        ("10.0.0.1", "spark-1", "http://10.0.0.1:8000"),
        ("0.0.0.0", "spark-1", "http://spark-1:8000"),
        ("::", "spark-1", "http://spark-1:8000"),
        ("", "fd00::7", "http://[fd00::7]:8000"),
        ("fd00::1", "spark-1", "http://[fd00::1]:8000"),
    ],
)
def test_where_an_engine_is_asked(host: str, elsewhere: str, address: str) -> None:
    assert engine_api.address({"host": host, "port": 8000}, elsewhere) == address


def test_an_engine_that_listens_everywhere_is_asked_on_its_own_spark() -> None:
    assert engine_api.address({"host": "0.0.0.0", "port": 1}) == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "odd",
    ["http://h:99999", "http://h:abc", "http://[::1", "http://a b:1", "http://h\n:1", "http://" + "a" * 70 + ":1", "http://é..x:1",
     "http://.:1", "", "ftp://x", "//", "http://h:1/a b", "http://h:1/é", "http://h\x00:1", "http://h\x7f:1"],
)  # fmt: skip
def test_an_address_that_is_none_is_said_in_a_sentence(odd: str) -> None:
    with pytest.raises(ValueError, match=r"is no http:// or https:// address of an engine, such as"):
        Engine(odd)


@pytest.mark.parametrize("good", ["10.93.1.11:8000", "http://[fd00::1]:8000/v1", "https://engine.example/x/", "http://spark-1"])
def test_an_address_that_is_one_is_taken(good: str) -> None:
    assert str(Engine(good)).startswith(("http://", "https://"))
