# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What teacher forcing is told of a lane and its ranks, kept with the scores; the size of a corpus that suits the lane, and whether
the bank that a launch will be judged by can judge it at all: asked before anything is stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.common.registered import Facts, HostVars, answered
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as banks
from ansible.module_utils.sparklanes.quality.teacher_forcing.stats import Limits
from ansible.module_utils.sparklanes.quality.teacher_forcing.window import fitting, too_long
from ansible.module_utils.sparklanes.rank.drift import flags_of, unwrapped


def engine(hostvars: HostVars, hosts: Sequence[str], specs: Facts, lane: Facts) -> dict[str, Any]:
    """What is known of the lane. Logprobs cannot name a rank, so the ranks' images and weights are compared by this."""
    flags = lane.get("lane_engine_args") or {}
    return {
        "vllm_version": (lane.get("lane_image") or {}).get("vllm") or "",
        "kv_cache_dtype": lane.get("lane_kv_cache_dtype") or "auto",
        "tensor_parallel_size": lane["lane_tensor_parallel_size"],
        "max_num_batched_tokens": lane.get("lane_max_num_batched_tokens") or 0,
        "enforce_eager": "--enforce-eager" in flags,
        "speculative_config": flags.get("--speculative-config") or "",
        **_mode(flags),
        "ranks": [identity(host, specs[host], hostvars[host].get("model_weights_result")) for host in hosts],
    }


def _mode(flags: Mapping[str, Any]) -> dict[str, str]:
    """Only where it is set: to a bank that was recorded without it, the default is no difference."""
    return {"logprobs_mode": str(flags["--logprobs-mode"])} if flags.get("--logprobs-mode") else {}


def frozen_engine(hostvars: HostVars, hosts: Sequence[str], specs: Facts) -> dict[str, Any]:
    """As `engine`, of a release that was frozen: what its own command says, whatever the lane has become since."""
    head = specs[hosts[0]]
    flags = flags_of(unwrapped([str(word) for word in [head.get("entrypoint"), *head["command"]] if word]))[1]
    log = (answered(hostvars[hosts[0]].get("gates_rank")) or {}).get("log") or {}
    return {
        "vllm_version": str(log.get("version") or ""),
        "kv_cache_dtype": flags.get("--kv-cache-dtype") or "auto",
        "tensor_parallel_size": int(flags.get("--tensor-parallel-size") or 1),
        "max_num_batched_tokens": flags.get("--max-num-batched-tokens") or 0,
        "enforce_eager": "--enforce-eager" in flags,
        "speculative_config": flags.get("--speculative-config") or "",
        **_mode(flags),
        "ranks": [identity(host, specs[host], hostvars[host].get("model_weights_result")) for host in hosts],
    }


def said(forcing: Facts, hosts: Sequence[str]) -> str:
    """Why teacher forcing refuses, in one sentence: the node where the numbers name one, then what they point at. The report has the rest.

    forcing: verdict, reason, hint, vocabulary_part and checks, as `judge` made them. hosts: in rank order; a part of the vocabulary lies on one rank only
    where there are as many parts as ranks.
    """
    hint, reason = str(forcing.get("hint") or ""), str(forcing.get("reason") or "")
    found = forcing.get("vocabulary_part") or {}
    node = hosts[int(found["part"])] if found and int(found["of"]) == len(hosts) else ""
    failed = [check for check in forcing.get("checks") or [] if check.get("status") == FAIL]
    more = f" ({len(failed)} checks failed, the report above names each)" if len(failed) > 1 else ""
    told = hint or reason or "it gave no reason"
    because = f": {reason}" if hint and reason else ""
    return f"{f'{node}: ' if node else ''}{told.rstrip('. ')}{because.rstrip('. ')}{more}"


def identity(host: str, spec: Facts, staged: Any) -> dict[str, Any]:
    """What one rank runs and reads: {rank, node, image, overlays, weights}. `staged`: its result of model_stage."""
    return {
        "rank": spec["rank"],
        "node": host,
        "image": str(spec["image"]).rpartition("@")[2],
        "overlays": sorted(str(mount["source"]) for mount in spec["mounts"] if "/overlays/" in str(mount["source"])),
        "weights": weights_of(answered(staged) or {}),
    }


def weights_of(result: Facts) -> list[Any]:
    """What names the models that a staging result found complete."""
    return [[model.get("name"), model.get("revision"), model.get("manifest_sha256")] for model in result.get("models") or []]


def corpus(lane: Facts, texts: Mapping[str, Any], max_doc_tokens: int, chat_tokens: int) -> dict[str, Any]:
    """What module teacher_forcing_score makes a corpus of. `texts`: file name → texts; the rest in tokens."""
    flags = lane.get("lane_engine_args") or {}
    asked = {
        "source": dict(texts),
        "max_doc_tokens": int(max_doc_tokens),
        "chat_tokens": int(chat_tokens),
        "chunk": lane.get("lane_max_num_batched_tokens") or 2048,
        # vLLM issue 53488: with a drafter and captured graphs, chunks of up to the largest captured size are scored wrong.
        "min_chunk": 512 if flags.get("--speculative-config") and "--enforce-eager" not in flags else 0,
    }
    longest = lane.get("lane_max_model_len")
    return {**asked, "max_model_len": longest} if longest else asked


def bank_checks(
    deployment: str, path: str, bank: Any, problem: str, lane: Facts, limits: Mapping[str, Any] | None = None
) -> list[Check]:
    """BANK.READ: the bank is there whole. BANK.FIT: this lane can score enough of it.

    path: of the bank on the controller, which `bank` was read from; `problem` says why it could not be read, empty where it could.
    """
    mend = f"Bring {path} back whole, or record it again: playbooks/bank.yml. Without it (move the file away) the lane ends as serving-unbanked."
    wrong = problem or "; ".join(banks.bank_problems(bank))
    if wrong:
        return [Check("BANK.READ", deployment, FAIL, f"{path}: {wrong}", "a whole bank", mend)]
    documents = bank["corpus"]["documents"]
    found = f"{path}: {len(documents)} documents, {banks.tokens_to_score(bank['corpus']):,} tokens, {len(bank['runs'])} runs"
    return [Check("BANK.READ", deployment, PASS, found), *_fit(deployment, bank, lane, limits)]


def _fit(deployment: str, bank: Facts, lane: Facts, limits: Mapping[str, Any] | None) -> list[Check]:
    corpus, longest = bank["corpus"], lane.get("lane_max_model_len")
    rest = fitting(corpus, longest)
    long, tokens = too_long(corpus, longest), banks.tokens_to_score(rest)
    least = Limits.for_lane(True, bank.get("limits"), limits).tokens_min
    needs = max((len(doc["token_ids"]) for doc in corpus["documents"]), default=0) + 1
    another = "record a bank of this lane: playbooks/bank.yml"
    made = []
    if tokens < least:
        why = (
            f"{len(long)} of {len(corpus['documents'])} documents are too long for lane_max_model_len {longest:,}; "
            if long
            else ""
        )
        found = f"{why}{tokens:,} tokens remain"
        remedy = (
            f"Set lane_max_model_len to {needs:,} or more, or {another}." if long else f"Too small for any verdict: {another}."
        )
        made.append(Check("BANK.FIT", deployment, FAIL, found, f"{least:,} tokens or more", remedy))
    highest, rows = max(max(doc["token_ids"]) for doc in corpus["documents"]), lane["lane_memory"]["vocab_size"]
    if rows and highest >= rows:
        found = f"the bank holds token id {highest:,}, and the lane's vocabulary has {rows:,}"
        remedy = f"It is the bank of another model: {another}, or correct lane_memory.vocab_size."
        made.append(Check("BANK.FIT", deployment, FAIL, found, f"ids below {rows:,}", remedy))
    if wrong := banks.mode_problem(str(View(lane).args.get("--logprobs-mode") or "")):
        remedy = "Remove --logprobs-mode from the lane, or move the bank away."
        made.append(Check("BANK.FIT", deployment, FAIL, wrong, "raw_logprobs", remedy))
    if made:
        return made
    notes = (
        [f"{len(long)} of {len(corpus['documents'])} documents are left out, too long for lane_max_model_len {longest:,}"]
        if long
        else []
    )
    was, now = (bank.get("engine") or {}).get("max_num_batched_tokens") or 0, lane.get("lane_max_num_batched_tokens") or 0
    if was != now:
        notes.append(
            f"recorded with max_num_batched_tokens {was or 'left to the engine'}, this lane has {now or 'it left to the engine'}"
        )
    found = "; ".join([f"{tokens:,} tokens fit", *notes])
    remedy = f"It is judged all the same, more coarsely; to judge finely {another}." if notes else ""
    return [
        Check(
            "BANK.FIT", deployment, WARN if notes else PASS, found, "the whole bank, with its own chunks" if notes else "", remedy
        )
    ]
