# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether what an engine answered and counted is what a healthy one does: "it answered" is not "it works".

Pure rules over the facts of `engine_probe` and of the logs of the ranks, and over what the lane says of itself: `lane_expect`,
`lane_random_weights`, its drafter. A number that nobody expects or nobody reported makes no row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, SKIP, WARN, Check

Facts = Mapping[str, Any]

# Characters below which nothing can be said of a text, and times that a piece of it stands in a row.
TEXT_LEAST, TIMES = 8, 4
# Drafted tokens below which a share says nothing; fewer than 0.15 at any position was published of no drafter that works.
DRAFTS_LEAST = 64
# Drafted tokens from which on the share is held against what the lane expects; prompts differ, so by half.
SHARE_LEAST, SHARE = 1000, 0.5
# Accepted tokens that a position lets expect, below which it says nothing.
COUNT_LEAST = 40
# How far a pool of tokens or the weights of a rank may be from what the lane expects.
POOL, WEIGHTS = 0.05, 0.03
# Methods that guess from the text so far: none or all accepted may be right. A model of that name, [ngram] too, is the same to the engine.
GUESSERS = ("ngram", "suffix")
LOOK = "Compare weights, overlays, chat template and KV cache type of every rank with the lane, before anybody uses it."


def checks(host: str, probe: Facts, logs: Mapping[str, Facts | None], lane: Facts, speculation: Facts) -> list[Check]:
    """host: the head. probe: facts of engine_probe. logs: host → what its rank's log told (`rank_info`). lane: resolved.

    speculation: what the lane's flags say of a drafter, however they are spelled (`lane.view`); empty without one.
    """
    return [
        *text_checks(host, probe, bool(lane.get("lane_random_weights"))),
        *draft_checks(host, (probe.get("metrics") or {}).get("spec"), lane, speculation),
        *graph_checks(logs, lane),
        *expected_checks(host, probe, logs, lane),
    ]


def oddity(text: str) -> str:
    """What makes this no text that a working model writes, empty where nothing does. Blanks alone are ENGINE.COMPLETION's."""
    whole = text.rstrip("\ufffd")  # the last character may be cut in the middle of its bytes
    if whole.count("\ufffd"):
        return f"U+FFFD {whole.count(chr(0xFFFD))} times: bytes that are no characters"
    words = whole.split()
    flat = " ".join(words)
    if len(flat) < TEXT_LEAST:
        return ""
    if re.fullmatch(r"[\d\s.,:;+-]+", flat) and sum(letter.isdigit() for letter in flat) >= TEXT_LEAST:
        return f"digits only: {flat[:24]!r}"
    line = f"{flat} " if len(words) > 1 else flat
    period = next((size for size in range(1, len(line) // TIMES + 1) if line[size:] == line[:-size]), 0)
    if not period:
        return ""
    piece = line[:period].strip()
    pieces = piece.split()
    return f"{' and '.join(map(repr, pieces))} in turn" if len(pieces) == 2 else f"{piece[:24]!r} over and over"


def text_checks(host: str, probe: Facts, random: bool) -> list[Check]:
    made = []
    for name in ("completion", "chat"):
        told = probe.get(name) or {}
        text = str(told.get("text") or told.get("reasoning") or "")
        if "error" in told or not text.strip():
            continue  # ENGINE.COMPLETION and ENGINE.CHAT say so
        odd = oddity(text)
        if random:
            made.append(Check("QUALITY.TEXT", host, SKIP, f"{name}: the lane says that its weights are random"))
        elif odd:
            made.append(Check("QUALITY.TEXT", host, FAIL, f"{name}: {odd}", "text", LOOK))
        else:
            made.append(Check("QUALITY.TEXT", host, PASS, f"{name}: {len(text)} characters"))
    return made


def draft_checks(host: str, spec: Facts | None, lane: Facts, speculation: Facts) -> list[Check]:
    """Drafts of a speculative lane since its boot: none accepted, each one accepted, none at one position."""
    if not speculation:
        return []
    id_, remedy = (
        "QUALITY.DRAFTS",
        "Compare drafter, revision and --speculative-config with the lane; all of 1.00 is vLLM issue 53030.",
    )
    if not spec:
        return [Check(id_, host, WARN, "the engine counts no drafts", "counters of drafts in /metrics", remedy)]
    drafted, accepted = int(spec.get("draft_tokens") or 0), int(spec.get("accepted_tokens") or 0)
    found = f"{accepted:,} of {drafted:,} drafted tokens accepted"
    if drafted < DRAFTS_LEAST:
        return [Check(id_, host, PASS, f"{found}, too few to judge")]
    drafts = str(speculation.get("method") or speculation.get("model") or "").strip("[]")
    guesses = drafts.startswith(GUESSERS)
    at = [int(count) for count in spec.get("accepted_per_position") or []]
    odd = ""
    if accepted == 0:
        odd = "none"
    elif accepted >= drafted:
        odd = "each one"
    elif int(spec.get("drafts") or 0) >= DRAFTS_LEAST and 0 in at:
        odd = f"none at position {at.index(0) + 1}"
    if odd:
        return [Check(id_, host, WARN if guesses else FAIL, f"{found}: {odd}", "some at each position, and not all", remedy)]
    expect = _expect(lane)
    broken = expect.get("acceptance_broken")
    share = accepted / drafted
    if isinstance(broken, int | float) and drafted >= SHARE_LEAST and share <= broken:
        wanted = f"> {broken:.3f}, lane_expect.acceptance_broken"
        return [Check(id_, host, FAIL, f"{found}: {share:.3f}, as a drafter that reads the wrong states", wanted, remedy)]
    measured = [expect, *(one for one in expect.get("also") or [] if isinstance(one, Mapping))]
    lowest = min((number for one in measured for number in _numbers(one.get("acceptance"), without="position")), default=None)
    if lowest is not None and drafted >= SHARE_LEAST and share < lowest * SHARE:
        status = _severity(lane, "acceptance")
        return [
            Check(
                id_,
                host,
                status,
                f"{found}: {share:.3f}",
                f"≥ {lowest * SHARE:.3f}, half of lane_expect.acceptance",
                remedy,
            )
        ]
    steps, least = int(spec.get("drafts") or 0), _positions(measured)
    for place, count in enumerate(at, 1):
        usual = least.get(place, 0.0)
        # Few are expected of a late position: of less than some dozens nothing can be said.
        if steps * usual >= COUNT_LEAST and count < steps * usual * SHARE:
            now = f"{found}; at position {place} {count / steps:.3f}"
            expected = f"≥ {usual * SHARE:.3f} there, half of lane_expect.acceptance.position_{place}"
            return [Check(id_, host, _severity(lane, "acceptance"), now, expected, remedy)]
    return [Check(id_, host, PASS, found)]


def _positions(measured: Iterable[Facts]) -> dict[int, float]:
    """Position → the least share of drafts that somebody measured to be accepted up to there."""
    least: dict[int, float] = {}
    for one in measured:
        told = one.get("acceptance")
        for name, share in told.items() if isinstance(told, Mapping) else ():
            place = str(name).removeprefix("position_")
            if place != str(name) and place.isdigit() and isinstance(share, int | float):
                least[int(place)] = min(float(share), least.get(int(place), 1.0))
    return least


def graph_checks(logs: Mapping[str, Facts | None], lane: Facts) -> list[Check]:
    """An estimate of graphs below nothing means that memory came free while the engine measured: its cache is too large."""
    made = []
    for host, log in logs.items():
        sizes = [(log or {}).get(name) for name in ("graphs_guess_gib", "graphs_gib")]
        least = min((size for size in sizes if isinstance(size, int | float)), default=None)
        if least is None:
            continue
        if least >= 0:
            made.append(Check("QUALITY.GRAPHS", host, PASS, f"graphs take {least:.2f} GiB"))
            continue
        pinned = bool(lane.get("lane_kv_cache_memory_bytes"))
        remedy = "Launch again with nothing else starting or ending on that Spark" + (
            "." if pinned else ", or pin lane_kv_cache_memory_bytes."
        )
        found = f"the engine took CUDA graphs for {least:.2f} GiB"
        made.append(Check("QUALITY.GRAPHS", host, WARN if pinned else FAIL, found, "0 GiB or more", remedy))
    return made


def expected_checks(host: str, probe: Facts, logs: Mapping[str, Facts | None], lane: Facts) -> list[Check]:
    """`lane_expect` against what boot and metrics reported; a warning, or a failure where `lane_expect.fails` names it."""
    expect, window = _expect(lane), lane.get("lane_max_model_len")
    served = next((model.get("max_model_len") for model in probe.get("models") or []), None)
    made = []
    if window and served and served != window:
        remedy = "The engine changed it: read its log."
        made.append(
            Check(
                "QUALITY.EXPECTED",
                host,
                FAIL,
                f"it serves {served:,} tokens of context",
                f"lane_max_model_len {window:,}",
                remedy,
            )
        )
    if expect.get("context") not in (None, window):
        return made  # numbers of another window
    told = expect.get("kv_pool_tokens")
    pools: Facts = told if isinstance(told, Mapping) else {}
    said = (
        ("boot_log", (logs.get(host) or {}).get("kv_cache_tokens")),
        ("cache_config_info", (probe.get("metrics") or {}).get("kv_cache_tokens")),
    )
    for name, now in said:
        made += _compared(host, lane, "kv_pool_tokens", f"kv_pool_tokens.{name}", pools.get(name), now, POOL, below=True)
    for rank, log in logs.items():
        now = (log or {}).get("weights_gib")
        made += _compared(
            rank, lane, "weights_gib_per_rank", "weights_gib_per_rank", expect.get("weights_gib_per_rank"), now, WEIGHTS
        )
    return made


def _compared(
    host: str, lane: Facts, key: str, name: str, wanted: Any, now: Any, share: float, below: bool = False
) -> list[Check]:
    """One number against another; `below`: more is fine."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and value > 0 for value in (wanted, now)):
        return []
    least, most = wanted * (1 - share), float("inf") if below else wanted * (1 + share)
    expected = f"lane_expect.{name} {wanted:,.10g}, {share:.0%} {'less' if below else 'more or less'} at most"
    if least <= now <= most:
        return [Check("QUALITY.EXPECTED", host, PASS, f"{name} {now:,.10g}", expected)]
    remedy = "Look what differs from how the lane was measured; where that is meant, write the new number into lane_expect_site."
    return [Check("QUALITY.EXPECTED", host, _severity(lane, key), f"{name} {now:,.10g}", expected, remedy)]


def _expect(lane: Facts) -> Facts:
    told = lane.get("lane_expect")
    return told if isinstance(told, Mapping) else {}


def _severity(lane: Facts, name: str) -> str:
    fails = _expect(lane).get("fails")
    return FAIL if isinstance(fails, list) and name in fails else WARN


def _numbers(value: Any, without: str) -> Iterator[float]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not str(key).startswith(without) and isinstance(item, int | float) and not isinstance(item, bool):
                yield float(item)
