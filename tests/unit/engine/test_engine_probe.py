"""The probe: what a healthy engine, a dead rank, NaN and wrong keys look like."""

from __future__ import annotations

from typing import Any

import engine_probe
import pytest
from conftest import RunModule
from fake_engine import FakeEngine


def probe(run_module: RunModule, engine: FakeEngine, **more: Any) -> dict[str, Any]:
    return run_module(engine_probe, {"base_url": engine.url, "timeout": 5, "host": "sparks", **more})


def found(result: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {check["id"]: check for check in result["checks"]}


@pytest.mark.parametrize("check", [False, True])
def test_a_healthy_engine(run_module: RunModule, check: bool) -> None:
    with FakeEngine() as engine:
        result = run_module(engine_probe, {"base_url": engine.url, "host": "sparks"}, check=check)
    assert result["verdict"] == "pass"
    assert result["changed"] is False
    assert list(found(result)) == ["ENGINE.HEALTH", "ENGINE.MODELS", "ENGINE.COMPLETION", "ENGINE.FINITE", "ENGINE.CHAT"]
    facts = result["facts"]
    assert (facts["version"], facts["model"]) == ("0.32.0", "tiny")
    assert facts["completion"]["completion_tokens"] == 16
    assert facts["chat"]["text"] == "It warns ships."
    assert facts["metrics"]["running"] == 0


def test_without_generation_or_chat(run_module: RunModule) -> None:
    with FakeEngine() as engine:
        assert list(found(probe(run_module, engine, generate=False))) == ["ENGINE.HEALTH", "ENGINE.MODELS"]
        assert "ENGINE.CHAT" not in found(probe(run_module, engine, chat=False))


def test_health_is_200_while_a_generation_hangs(run_module: RunModule) -> None:
    with FakeEngine() as engine:
        engine.generation = "hangs"
        result = probe(run_module, engine, timeout=0.2)
    checks = found(result)
    assert checks["ENGINE.HEALTH"]["status"] == "pass"
    assert checks["ENGINE.COMPLETION"]["status"] == "fail"
    assert "health is 200, but a generation brought nothing" in checks["ENGINE.COMPLETION"]["found"]
    assert "a rank is dead" in checks["ENGINE.COMPLETION"]["remedy"]
    assert result["facts"]["completion"]["error"] == "timeout"


def test_it_asks_as_the_rules_of_chat_want_it(run_module: RunModule) -> None:
    """On whatever lane of GLM-5.3: an effort that its template knows, and a short answer that does not end inside the thoughts."""
    with FakeEngine() as engine:
        probe(run_module, engine)
        bodies = [body for path, body in engine.requests if "chat" in path]
        probe(run_module, engine, template={})
    assert bodies
    assert all(body["chat_template_kwargs"] == {"reasoning_effort": "low"} for body in bodies)
    assert "chat_template_kwargs" not in engine.requests[-1][1]


@pytest.mark.parametrize("behaviour", ["dies", "drops"])
def test_health_is_200_while_a_generation_ends_the_engine(run_module: RunModule, behaviour: str) -> None:
    with FakeEngine() as engine:
        engine.generation = behaviour
        result = probe(run_module, engine)
    assert "ended the engine" in found(result)["ENGINE.COMPLETION"]["found"]
    assert "a rank is dead" in found(result)["ENGINE.CHAT"]["remedy"]


def test_nan_as_an_error_and_as_empty_text(run_module: RunModule) -> None:
    with FakeEngine() as engine:
        engine.generation = "nan"
        refused = found(probe(run_module, engine))["ENGINE.COMPLETION"]
        engine.generation = "empty"
        empty = found(probe(run_module, engine))
    assert "NaN" in refused["found"]
    assert empty["ENGINE.COMPLETION"]["status"] == "fail"
    assert "NaN logits" in empty["ENGINE.COMPLETION"]["remedy"]
    assert empty["ENGINE.FINITE"]["status"] == "fail"


def test_not_healthy_and_not_there(run_module: RunModule) -> None:
    with FakeEngine() as engine:
        engine.healthy = False
        result = probe(run_module, engine)
        assert found(result)["ENGINE.HEALTH"]["found"].startswith("HTTP 503")
        assert list(found(result)) == ["ENGINE.HEALTH"]
        assert result["verdict"] == "fail"
    gone = probe(run_module, engine)
    assert "nothing answers" in found(gone)["ENGINE.HEALTH"]["found"]
    assert "still loading" in found(gone)["ENGINE.HEALTH"]["remedy"]


def test_wrong_model_and_wrong_key(run_module: RunModule) -> None:
    with FakeEngine() as engine:
        models = found(probe(run_module, engine, model="other"))
        assert (models["ENGINE.MODELS"]["found"], models["ENGINE.MODELS"]["expected"]) == ("tiny", "other")
        assert "ENGINE.COMPLETION" not in models
        engine.key = "right"
        assert "api_key" in found(probe(run_module, engine, api_key="wrong"))["ENGINE.MODELS"]["remedy"]


def test_strict_fails_the_task(run_module: RunModule) -> None:
    with FakeEngine() as engine:
        engine.generation = "dies"
        result = probe(run_module, engine, strict=True)
    assert result["failed"]
    assert "sparks ENGINE.COMPLETION" in result["msg"]
    assert run_module(engine_probe, {"base_url": "ftp://x"})["failed"]


@pytest.mark.parametrize(
    ("generation", "id", "words"),
    [
        ("blanks", "ENGINE.COMPLETION", "The text is blanks"),
        ("blanks", "ENGINE.CHAT", "of another template"),
        ("swallowed", "ENGINE.CHAT", "compare the reasoning and tool-call parser"),
        ("special", "ENGINE.COMPLETION", "compare tokenizer"),
        ("special", "ENGINE.CHAT", "compare the reasoning and tool-call parser"),
        ("ends", "ENGINE.COMPLETION", "compare tokenizer"),
        ("ends", "ENGINE.CHAT", "compare the reasoning and tool-call parser"),
    ],
)
def test_nan_is_not_blamed_where_the_numbers_are_finite(run_module: RunModule, generation: str, id: str, words: str) -> None:
    with FakeEngine() as engine:
        engine.generation = generation
        checks = found(probe(run_module, engine))
    assert checks["ENGINE.FINITE"]["status"] == "pass"
    assert (checks[id]["status"], "NaN" in checks[id]["remedy"]) == ("fail", False)
    assert words in checks[id]["remedy"]


@pytest.mark.parametrize("generation", ["blanks", "special", "ends"])
def test_a_completion_is_blamed_on_nothing_that_only_a_chat_passes(run_module: RunModule, generation: str) -> None:
    with FakeEngine() as engine:
        engine.generation = generation
        remedy = found(probe(run_module, engine))["ENGINE.COMPLETION"]["remedy"]
    assert remedy
    assert not [word for word in ("template", "parser", "/v1/completions") if word in remedy]
