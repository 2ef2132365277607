# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a record of decode and prefill shows: each case a check, and one verdict.

Pure Python on plain dicts. A case is judged against the same case of the lane's own record that was taken when it was right (its bank), else
against limits by the type of its weights and KV cache. Where they come from: docs/decode.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.quality.decode.cases import (
    BETWEEN,
    BLOCKS,
    COLD,
    CONTINUED,
    CROWD,
    GREEDY,
    HIT,
    LATE,
    LONG,
    residues,
)
from ansible.module_utils.sparklanes.quality.decode.collect import SCHEMA
from ansible.module_utils.sparklanes.quality.decode.measures import Answer, Measure, measure, other_choice

PASSED, FAILED, INCONCLUSIVE = "pass", "fail", "inconclusive"
EXIT_CODES = {PASSED: 0, FAILED: 1, INCONCLUSIVE: 3}
COMPUTES = (
    "Decode computes other numbers than prefill: compare attention backend, CUDA graph sizes, KV cache type and overlays of every rank "
    "with the lane; --enforce-eager tells graphs from kernels."
)
REMEDIES = {
    HIT: "What the prefix cache gives back is not what was put in: launch with --no-enable-prefix-caching, then look at KV cache type and overlays.",
    CONTINUED: "What decode wrote into the cache is read wrongly by the next request: look at KV cache type, overlays and speculation.",
    CROWD: "Wrong only with neighbours in the batch: look at the CUDA graphs of those sizes (cudagraph_capture_sizes) and at max_num_seqs.",
    LONG: "Wrong only after many tokens: look at block tables, sparse or windowed attention and the drafter.",
}
IDS = {
    COLD: "DECODE.COLD",
    HIT: "DECODE.HIT",
    CONTINUED: "DECODE.CONTINUED",
    CROWD: "DECODE.CROWD",
    LONG: "DECODE.LONG",
    GREEDY: "DECODE.GREEDY",
}
AGAIN = "Ask again while nobody else does."


@dataclass(frozen=True)
class Limits:
    """`r`, without a bank: 1.7 times the largest of 32 healthy lanes with 16-bit weights and KV cache, and with 8-bit ones; `long` of it for
    late tokens, of which those lanes were surer. `fail`, `warn`: times
    the bank's R, which counts as `floor` at least: an engine that decodes to the last bit what it reads leaves nothing to be a multiple of. `request`: one request's rms, times the case's, at which the cache gave one of them something wrong. `rms` with `most`: no
    healthy lane is there, whatever its bank says."""

    r: float = 0.03
    r_8bit: float = 0.07
    long: float = 0.65
    fail: float = 1.6
    warn: float = 1.35
    floor: float = 0.001
    request: float = 3.5
    rms: float = 0.06
    most: float = 1.0
    tokens: int = 512
    first: int = 16
    cached: float = 0.9
    greedy: int = 128

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Limits:
        """With some of them changed; a name or a value that is none is a ValueError."""
        known = asdict(cls())
        for name, value in (given or {}).items():
            if name not in known:
                raise ValueError(f"there is no limit {name!r} of the decode check; there are {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
                raise ValueError(f"the limit {name} of the decode check is {value!r}, not a number above 0")
        return replace(cls(), **(given or {}))

    def absolute(self, record: Mapping[str, Any], narrow: bool, name: str) -> float:
        """`narrow`: weights of 8 bits or less, as the caller knows them; the engine says itself of what type its cache is."""
        cache = str(record.get("cache_dtype") or "").lower()
        r = self.r_8bit if narrow or any(word in cache for word in ("fp8", "int8", "fp4", "int4")) else self.r
        return r * self.long if name.startswith(LONG) else r


@dataclass
class Verdict:
    """`inconclusive` is no pass and no fault of the lane: a person decides."""

    verdict: str
    reason: str
    checks: list[Check]
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    lacks: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "exit_code": EXIT_CODES[self.verdict],
            "reason": self.reason,
            "checks": [check.to_dict() for check in self.checks],
            "cases": self.cases,
            "lacks": self.lacks,
        }


@dataclass
class Judge:
    """One record, its bank if there is one. `host`: the head."""

    host: str
    record: Mapping[str, Any]
    bank: Mapping[str, Any] | None
    limits: Limits
    narrow: bool
    checks: list[Check] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)

    def say(self, status: str, id: str, found: str, expected: str = "", remedy: str = "") -> None:
        self.checks.append(Check(id, self.host, status, found, expected, "" if status == PASS else remedy))

    def unshown(self, id: str, found: str, expected: str, remedy: str) -> None:
        """What proves nothing. It is no PASS, and no FAIL of the lane."""
        self.say(WARN, id, found, expected, remedy)
        self.open.append(f"{id}: {found}")

    def verdict(self) -> Verdict:
        lacks = [str(lack) for lack in self.record.get("lacks") or []]
        answers = {name: [answer_of(one) for one in made] for name, made in self.record["cases"].items()}
        self.same_boot()
        if self.finite(answers):
            for name, made in answers.items():
                self.whole(name, made)
                if name == GREEDY:
                    self.greedy(made)
                elif self.valid(name, made):
                    self.case(name, made)
        failed = next((f"{check.id}: {check.found}" for check in self.checks if check.status == FAIL), "")
        if failed:
            return Verdict(FAILED, failed, self.checks, self.cases, lacks)
        if not answers:
            self.unshown(
                "DECODE.ASKED", "; ".join(lacks) or "no case was asked", "answers of at least one case", "Serve a larger window."
            )
        if self.open:
            return Verdict(INCONCLUSIVE, self.open[0], self.checks, self.cases, lacks)
        worst = max(self.cases.items(), key=lambda item: item[1]["of_limit"], default=None)
        tokens = sum(len(one.ids) for made in answers.values() for one in made)
        said = f"{tokens:,} tokens of {len(answers)} cases"
        if worst:
            said += f"; the largest is {worst[0]} with R {worst[1]['r']:.4f}, {worst[1]['of_limit']:.0%} of its limit"
        return Verdict(PASSED, said, self.checks, self.cases, lacks)

    def same_boot(self) -> None:
        boots = self.record.get("boots") or []
        if len(boots) > 1:
            self.unshown("DECODE.ASKED", "the engine was started anew meanwhile", "one boot", "Look why, then ask again.")
        foreign = self.record.get("foreign_tokens")
        if foreign:
            self.say(WARN, "DECODE.ALONE", f"{foreign:,} tokens were generated for others meanwhile", "nobody else", AGAIN)
        elif foreign is None:
            self.say(
                WARN, "DECODE.ALONE", "the engine does not count its tokens", "vllm:generation_tokens_total in /metrics", AGAIN
            )
        else:
            self.say(PASS, "DECODE.ALONE", "no token was generated for anybody else meanwhile")

    def finite(self, answers: Mapping[str, Sequence[Answer]]) -> bool:
        bad = [f"{name}, request {at + 1}" for name, made in answers.items() for at, one in enumerate(made) if not one.finite()]
        if bad:
            found = f"{len(bad)} answer(s) with logprobs that are no numbers: {bad[0]}"
            self.say(
                FAIL, "DECODE.FINITE", found, "a logprob for each token", "Verify weights and overlays in full on every rank."
            )
        elif answers:
            self.say(PASS, "DECODE.FINITE", "each token has both logprobs")
        return not bad

    def whole(self, name: str, made: Sequence[Answer]) -> None:
        """An answer that ends early has not been where its case looks: after 1,000 tokens, for one."""
        early = [one for one in made if len(one.ids) < one.wanted]
        if early:
            found = f"{name}: {len(early)} of {len(made)} answers ended early, the first after {len(early[0].ids)} of {early[0].wanted} tokens"
            self.unshown(id_of(name), found, "as many tokens as were asked for", "Read the engine's log, then ask again.")

    def valid(self, name: str, made: Sequence[Answer]) -> bool:
        """Whether the case is what it says: read from the cache, or not."""
        block = int(self.record["block"])
        new = BETWEEN if name == CONTINUED else 0
        wanted = sum((one.prompt_tokens - new - 1) // block * block for one in made)
        said = [one.cached_tokens for one in made if one.cached_tokens is not None]
        cached = sum(said) if len(said) == len(made) else (self.record.get("read") or {}).get(name)
        from_cache = (
            f"{name}: {'an unknown number' if cached is None else f'{cached:,}'} of {wanted:,} tokens came from the prefix cache"
        )
        if name not in (HIT, CONTINUED):
            if (cached or 0) > wanted * (1 - self.limits.cached):
                self.unshown(id_of(name), from_cache, f"{1 - self.limits.cached:.0%} at most", AGAIN)
                return False
            return True
        if min((one.prompt_tokens for one in made), default=0) < BLOCKS * block:
            found = f"{name}: a prompt is shorter than {BLOCKS} blocks of {block} tokens"
            self.unshown(id_of(name), found, "three blocks", "Serve a larger window.")
            return False
        if cached is None or cached < wanted * self.limits.cached:
            remedy = "Where that is meant, launch with --no-enable-prefix-caching; else ask again when the cache is less full."
            self.unshown(id_of(name), from_cache, f"{self.limits.cached:.0%} or more", remedy)
            return False
        return True

    def case(self, name: str, made: Sequence[Answer]) -> None:
        for label, first, last in parts(name, self.limits.first):
            seen = measure([one.part(first, last) for one in made])
            if seen is None or (label == name and seen.tokens < self.limits.tokens and not name.startswith(LONG)):
                count = 0 if seen is None else seen.tokens
                self.unshown(
                    id_of(name),
                    f"{label}: only {count} tokens",
                    f"{self.limits.tokens} or more",
                    "Serve a larger window, or ask for more.",
                )
                continue
            self.ratio(name, label, seen, made)
        if name in (HIT, CONTINUED):
            self.requests(name, made)

    def ratio(self, name: str, label: str, seen: Measure, made: Sequence[Answer]) -> None:
        banked = self.banked(name, label)
        own = max(banked.r, self.limits.floor) if banked else 0.0
        limit = own * self.limits.fail if banked else self.limits.absolute(self.record, self.narrow, name)
        warn = own * self.limits.warn if banked else limit
        scatter = banked.scatter if banked and math.isfinite(banked.scatter) else 0.0
        found = f"{label}: R {seen.r:.4f}, k3 {seen.k3:.5f}, largest difference {seen.most:.2f} nat, {seen.tokens:,} tokens"
        if label == name:
            found += f", {residues([one.prompt_tokens for one in made], int(self.record['block']))}"
        expected = f"R up to {limit:.4f}, {f'{self.limits.fail:g} times its bank' if banked else 'the limit without a bank'}"
        remedy = REMEDIES.get(name.partition("-")[0], COMPUTES)
        self.cases[label] = {**seen.to_dict(), "limit": round(limit, 6), "of_limit": round(seen.r / limit, 4)}
        if seen.least(scatter) > limit or (seen.rms > self.limits.rms and seen.most > self.limits.most):
            self.say(FAIL, id_of(name), found, expected, remedy)
        elif seen.r > limit:
            self.unshown(
                id_of(name), f"{found}, which may be chance", expected, "Ask again; where it stays, ask for more tokens."
            )
        else:
            self.say(WARN if seen.r > warn else PASS, id_of(name), found, expected, remedy)

    def requests(self, name: str, made: Sequence[Answer]) -> None:
        """One request of many that read something wrong: the case as a whole would hide it."""
        banked = self.banked(name, name)
        alone = [(one, known.rms) for one in made if (known := measure([one.part()]))]
        middle = sorted(rms for _, rms in alone)[len(alone) // 2] if alone else 0.0
        limit = self.limits.request * (
            max(banked.rms, self.limits.floor)
            if banked
            else max(middle, self.limits.absolute(self.record, self.narrow, name) * 0.4)
        )
        bad = [(one, rms) for one, rms in alone if rms > limit]
        if bad:
            one, rms = bad[0]
            found = (
                f"{name}: {len(bad)} of {len(alone)} requests by themselves, the first of {one.prompt_tokens} tokens "
                f"with rms {rms:.3f} nat"
            )
            self.say(FAIL, id_of(name), found, f"rms up to {limit:.3f} for each request", REMEDIES[name])

    def banked(self, name: str, label: str) -> Measure | None:
        made = ((self.bank or {}).get("cases") or {}).get(name) or []
        bounds = {part: (first, last) for part, first, last in parts(name, self.limits.first)}[label]
        return measure([answer_of(one).part(*bounds) for one in made])

    def greedy(self, made: Sequence[Answer]) -> None:
        tokens, other = other_choice(made)
        expected = "each token at temperature 0 is the one that the engine itself found the most likely"
        if other:
            found = f"{other} of {tokens} sampled tokens are not"
            self.say(
                FAIL,
                "DECODE.GREEDY",
                found,
                expected,
                "The sampler adds what the model did not compute: look at overlays and the drafter.",
            )
        elif tokens < self.limits.greedy:
            self.unshown("DECODE.GREEDY", f"only {tokens} tokens", f"{self.limits.greedy} or more", "Serve a larger window.")
        else:
            self.say(PASS, "DECODE.GREEDY", f"all {tokens} tokens are", expected)


def id_of(name: str) -> str:
    return IDS[name.partition("-")[0]]


def parts(name: str, first: int) -> Iterator[tuple[str, int, int | None]]:
    """(label, from, up to) of what is judged of a case: of a hit also how its answers begin, of a long one only what comes late."""
    if name == f"{LONG}-12k":
        for low, high in ((LATE, 4000), (4000, 8000), (8000, None)):
            yield f"{name} from {low}", low, high
    elif name == LONG:
        yield name, LATE, None
    else:
        yield name, 0, None
        if name == HIT:
            yield f"{name}, first {first}", 0, first


def answer_of(told: Mapping[str, Any]) -> Answer:
    return Answer(
        temperature=float(told["temperature"]),
        prompt_tokens=int(told["prompt_tokens"]) if "prompt_tokens" in told else len(told["prompt"]),
        cached_tokens=told.get("cached"),
        ids=told["ids"],
        decode=told["decode"],
        prefill=told["prefill"],
        top=told["top"],
        wanted=int(told.get("wanted") or 0),
    )


def judge(
    record: Mapping[str, Any],
    bank: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    narrow: bool = False,
    host: str = "deployment",
) -> Verdict:
    """The verdict on a record of `decode_score`. `bank`: a record of the same lane; `narrow`: its weights have 8 bits or less.

    ValueError: what was given is no such record, or a limit that there isn't.
    """
    for what, data in (("record", record), ("bank", bank)):
        if data is not None and data.get("schema") != SCHEMA:
            raise ValueError(f"the {what} has the schema {data.get('schema')!r}, not {SCHEMA!r}: make it by decode_score")
    if bank is not None and bank.get("model") != record.get("model"):
        raise ValueError(f"the bank is of {bank.get('model')!r}, the record of {record.get('model')!r}")
    return Judge(host, record, bank, Limits.of(limits), narrow).verdict()
