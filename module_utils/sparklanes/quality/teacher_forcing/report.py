# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A verdict, and a bank's own noise, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import NOTE
from ansible.module_utils.sparklanes.quality.teacher_forcing.stats import Limits, compare
from ansible.module_utils.sparklanes.quality.teacher_forcing.verdict import PASSED, Verdict, statistics


def report(verdict: Verdict) -> str:
    """The verdict for a person: the reason, the hint, and where the lane differs most."""
    lines = [f"teacher forcing: {verdict.verdict.upper()}: {verdict.reason}"]
    if verdict.hint:
        lines.append(f"  points at: {verdict.hint}")
    if verdict.comparison and verdict.verdict != PASSED:
        numbers = statistics(verdict.comparison, verdict.limits, verdict.documents, verdict.texts)
        lines.append("  where it differs most (document, positions, tokens, ratio to noise, systematic part and its z):")
        lines += [
            f"    {cell['document']:<16} {cell['band']:<14} n {cell['n']:<6} ratio {cell['ratio']:<8} sys {cell['sys_rms']:+.3f} (z {cell['sys_z']})"
            for cell in numbers["worst_cells"]
        ]
        lines.append("  the tokens that differ most (logprob in the reference → here):")
        lines += [
            f"    {token['document']:<16} position {token['position']:<6} id {token['id']:<7} {token['text']!r:<14} {token['reference']:.3f} → {token['candidate']:.3f}"
            for token in numbers["worst_tokens"]
        ]
        lines.append("  by probability of the token (noise of the reference, ratio to it):")
        lines += [
            f"    p {row['from']:g} to {row['to']:g}: n {row['n']}, noise {row['floor']:.4f}, ratio {row['ratio']:.2f}"
            for row in numbers["probability_bins"]
        ]
    lines += [f"  differs from the bank: {text}" for text in verdict.differences]
    lines.append(f"  {NOTE}")
    return "\n".join(lines)


def floor_report(bank: Mapping[str, Any]) -> dict[str, Any]:
    """The noise of a bank's reference against itself: what a new bank can resolve."""
    runs = [run["docs"] for run in bank["runs"]]
    if len(runs) < 2:
        raise ValueError("noise shows only between two runs")
    limits = Limits()
    seen = compare(bank["corpus"]["documents"], runs, runs, limits)
    return {
        "tokens": seen.total.n,
        "runs": len(runs),
        "boots": len({run.get("boot_id") for run in bank["runs"]}),
        "mean": round(seen.total.floor(), 6),
        "largest": round(seen.total.max_reference, 4),
        "pair_sd": round(seen.pair_sd, 5),
        "resolution": round(seen.resolution, 5),
    }
