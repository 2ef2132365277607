# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A bank held against the window of another lane: documents that are too long for it are left out, of scoring and of judging alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import corpus_sha256, text_problems


def too_long(corpus: Mapping[str, Any], longest: int | None) -> list[Mapping[str, Any]]:
    """The documents that a lane with this max_model_len can't score: one slot must stay free. None: it doesn't say."""
    return [doc for doc in corpus.get("documents") or [] if longest and len(doc["token_ids"]) >= longest]


def fitting(corpus: Mapping[str, Any], longest: int | None) -> Mapping[str, Any]:
    """The corpus without what is too long; itself where nothing is."""
    long = {doc["id"] for doc in too_long(corpus, longest)}
    return {**corpus, "documents": [doc for doc in corpus["documents"] if doc["id"] not in long]} if long else corpus


def fitted(bank: Mapping[str, Any], longest: int | None) -> tuple[Mapping[str, Any], str]:
    """The bank without what is too long, and a sentence about it; itself where nothing is, and where it can't be trusted as it is."""
    if not longest or text_problems(bank):
        return bank, ""
    corpus = bank["corpus"]
    less = fitting(corpus, longest)
    if less is corpus:
        return bank, ""
    kept = {doc["id"] for doc in less["documents"]}
    runs = [{**run, "docs": {id_: doc for id_, doc in run["docs"].items() if id_ in kept}} for run in bank.get("runs") or []]
    said = f"documents: {len(corpus['documents']) - len(kept)} of {len(corpus['documents'])} are left out, {longest:,} tokens and more"
    return {**bank, "corpus": less, "corpus_sha256": corpus_sha256(less), "runs": runs}, said
