"""Building a corpus: lengths, classes, canaries, the far copy; on a tokenizer that is a function of bytes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import sparklanes as filters  # filter_plugins/sparklanes.py
from ansible.module_utils.sparklanes.quality import texts
from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as teacher_forcing_bank
from ansible.module_utils.sparklanes.quality.teacher_forcing import corpus as teacher_forcing_corpus
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st


class Words:
    """A tokenizer of four bytes a token, and a model that answers with a constant."""

    bos = 1

    def tokenize(self, model: str, text: str, add_special_tokens: bool = True) -> list[int]:
        data = text.encode()
        ids = [2 + sum(data[at : at + 4]) for at in range(0, len(data), 4)]
        return [self.bos, *ids] if add_special_tokens else ids

    def tokenize_chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any] | None = None
    ) -> list[int]:
        return self.tokenize(model, str(messages[0]["content"]) + str(dict(template or {})))

    def generate(self, model: str, token_ids: Sequence[int], max_tokens: int, timeout: float | None = None) -> list[int]:
        return [7] * max_tokens


@pytest.fixture(scope="module")
def source() -> dict[str, Any]:
    return filters.corpus_texts(str(ROOT / "banks" / "corpus"))


def build(source: Mapping[str, Any], *args: Any, **plan: Any) -> dict[str, Any]:
    return teacher_forcing_corpus.Builder(Words(), "tiny", source, teacher_forcing_corpus.Plan(*args, **plan)).build()


def by_id(made: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {doc["id"]: doc for doc in made["documents"]}


def test_a_lane_with_room_gets_every_length(source: dict[str, Any]) -> None:
    made = build(source, 32768)
    docs = by_id(made)
    assert teacher_forcing_bank.corpus_problems(made) == []
    for name in ("text-700", "code-1900", "text-2100", "cjk-1200", "tools-900", "code-4096", "text-8192", "text-16384"):
        assert len(docs[name]["token_ids"]) == int(name.split("-")[1])
    assert "text-32768" not in docs  # max_doc_tokens
    assert sum(doc["class"] == teacher_forcing_bank.CHAT for doc in made["documents"]) == 8
    assert made["lacks"] == []
    assert teacher_forcing_bank.tokens_to_score(made) > 20_000
    assert made["tokenizer_check"]["ids"]


def test_the_tiny_lane_gets_a_corpus_it_can_hold(source: dict[str, Any]) -> None:
    made = build(source, 512)
    docs = by_id(made)
    assert max(len(doc["token_ids"]) for doc in made["documents"]) <= 511
    assert {doc["class"] for doc in made["documents"]} == {
        "text",
        "code",
        "cjk",
        "tools",
        "copy",
        "canary",
        teacher_forcing_bank.CHAT,
    }
    assert sum(len(doc["token_ids"]) >= 129 for doc in made["documents"]) >= 8
    assert len(docs[teacher_forcing_bank.CANARY_LONG]["token_ids"]) == int(511 * 0.8)
    assert any("canaries" in text for text in made["lacks"])


def test_the_canaries_are_one_text(source: dict[str, Any]) -> None:
    docs = by_id(build(source, 4096))
    short, long = docs[teacher_forcing_bank.CANARY_SHORT]["token_ids"], docs[teacher_forcing_bank.CANARY_LONG]["token_ids"]
    assert (len(short), len(long)) == (400, 700)
    assert long[:400] == short


def test_the_copy_repeats_its_span_from_far(source: dict[str, Any]) -> None:
    made = build(source, 8192)
    ids = next(doc for doc in made["documents"] if doc["class"] == "copy")["token_ids"]
    assert len(ids) == teacher_forcing_corpus.COPY_TOKENS
    span = ids[-teacher_forcing_corpus.COPY_SPAN :]
    first = next(at for at in range(len(ids)) if ids[at : at + len(span)] == span)
    assert len(ids) - len(span) - first > 4000
    small = next(doc for doc in build(source, 512)["documents"] if doc["class"] == "copy")["token_ids"]
    assert len(small) == 511
    assert small[-63:] == small[:63]


def test_chat_is_prompt_and_the_reference_s_own_answer(source: dict[str, Any]) -> None:
    doc = by_id(build(source, 4096, template={"enable_thinking": False}))["chat-1"]
    assert doc["token_ids"][doc["n_prompt"] :] == [7] * teacher_forcing_corpus.CHAT_TOKENS


def test_no_chunk_is_short_with_a_drafter(source: dict[str, Any]) -> None:
    made = build(source, 32768, chunk=2048, min_chunk=512)
    for doc in made["documents"]:
        if doc["id"] == teacher_forcing_bank.CANARY_SHORT:
            continue
        last = len(doc["token_ids"]) % 2048 or 2048
        assert last > 512, doc["id"]
    assert made["min_chunk"] == 512


def test_a_prompt_that_does_not_fit_is_said(source: dict[str, Any]) -> None:
    long = {**source, "chat": {"prompts": ["word " * 2000, "short"]}}
    made = build(long, 512)
    assert any("chat-1" in text for text in made["lacks"])
    assert "chat-2" in by_id(made)


def test_text_is_varied_and_reproducible(source: dict[str, Any]) -> None:
    text = texts.compose(source["text"], 40_000, 5)
    assert text == texts.compose(source["text"], 40_000, 5)
    assert text != texts.compose(source["text"], 40_000, 6)
    lines = Counter(sentence.strip() for sentence in text.split(". ") if len(sentence) > 20)
    assert lines.most_common(1)[0][1] <= 3
    assert "<" not in text


@pytest.mark.parametrize("kind", texts.CLASSES)
def test_every_slot_of_the_shipped_text_is_filled(source: dict[str, Any], kind: str) -> None:
    part = source[kind]
    draw = random.Random(1)
    for template in part["templates"]:
        text = texts.fill(template, part["words"], draw)
        for slot in ("number", "code", "time", *part["words"]):
            assert f"<{slot}>" not in text


def test_a_source_without_a_class_is_an_error(source: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no class 'cjk'"):
        build({name: part for name, part in source.items() if name != "cjk"}, 4096)


@given(
    st.integers(300, 200_000),
    st.integers(1, 40_000),
    st.sampled_from([512, 1024, 2048, 8192]),
    st.sampled_from([0, 64, 256, 511]),
)
def test_fitted_lengths_fit_and_have_long_chunks(max_len: int, tokens: int, chunk: int, min_chunk: int) -> None:
    plan = teacher_forcing_corpus.Plan(max_len, chunk=chunk, min_chunk=min_chunk)
    fitted = plan.fit(tokens)
    assert 0 < fitted <= plan.room
    if min_chunk and plan.room > min_chunk:
        assert (fitted % chunk or chunk) > min_chunk
