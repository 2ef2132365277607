# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A verdict of teacher forcing: the checks that it stands on, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.quality.teacher_forcing.bank import NOTE
from ansible.module_utils.sparklanes.quality.teacher_forcing.stats import PROBABILITY_BINS, Cell, Comparison, Limits, band_name

PASSED, FAILED, INVALID = "pass", "fail", "invalid"
SCORER = "scorer corrupted by drafter or CUDA graph (vLLM #53488)"
EXIT_CODES = {PASSED: 0, FAILED: 1, INVALID: 2}
RERUN = "Make the bank anew, or score this lane again with the bank's corpus."


@dataclass
class Verdict:
    """What the gate says. `invalid` is no pass: nothing was shown."""

    verdict: str
    reason: str
    checks: list[Check]
    hint: str = ""
    limits: Limits = field(default_factory=Limits)
    comparison: Comparison | None = None
    documents: list[Mapping[str, Any]] = field(default_factory=list)
    texts: Mapping[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    part: tuple[int, int] | None = None  # the only part of the vocabulary that differs, of how many, where the hint says so

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "verdict": self.verdict,
            "exit_code": EXIT_CODES[self.verdict],
            "reason": self.reason,
            "hint": self.hint,
            "vocabulary_part": {"part": self.part[0], "of": self.part[1]} if self.part else None,
            "note": NOTE,
            "checks": [check.to_dict() for check in self.checks],
            "differences": self.differences,
            "limits": {**asdict(self.limits), "bands": list(self.limits.bands)},
        }
        if self.comparison:
            data["statistics"] = statistics(self.comparison, self.limits, self.documents, self.texts)
        return data


@dataclass
class Findings:
    """Collects checks. A check either judges (pass, warn, fail) or says why nothing can be judged."""

    host: str
    checks: list[Check] = field(default_factory=list)
    inconclusive: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, id: str, status: str, found: str, expected: str = "", remedy: str = "") -> None:
        self.checks.append(Check(id, self.host, status, found, expected, remedy if status != PASS else ""))
        if status == FAIL:
            self.failed.append(f"{id}: {found}")

    def unjudged(self, id: str, why: str, expected: str = "", remedy: str = "") -> None:
        self.checks.append(Check(id, self.host, FAIL, f"cannot be judged: {why}", expected, remedy))
        self.inconclusive.append(f"{id}: {why}")

    def warn_too(self, id: str, found: str) -> None:
        """Say one more thing in a check that is there already."""
        at = next(index for index, check in enumerate(self.checks) if check.id == id)
        said = self.checks[at]
        before = f"{said.found}; " if said.status == WARN else ""
        self.checks[at] = replace(said, status=WARN, found=before + found)


def statistics(
    comparison: Comparison, limits: Limits, documents: Iterable[Mapping[str, Any]], texts: Mapping[str, str]
) -> dict[str, Any]:
    """The numbers behind a verdict, small enough for a log."""
    floor_min = limits.floor_min
    total = comparison.total
    classes = {doc["id"]: doc["class"] for doc in documents}
    cells = sorted(comparison.cells.items(), key=lambda item: -badness(item[1], limits))
    return {
        "total": total.to_dict(floor_min),
        "pair_sd": round(comparison.pair_sd, 5),
        "diffuse_tokens": comparison.diffuse_n,
        "resolution": round(comparison.resolution, 5) if total.n else None,
        "sensitivity": round(comparison.sensitivity(limits), 5) if total.n else None,
        "nll_reference": round(comparison.nll_reference / total.n, 5) if total.n else None,
        "nll_candidate": round(comparison.nll_candidate / total.n, 5) if total.n else None,
        "worst_cells": [
            {
                "document": name,
                "class": classes.get(name, ""),
                "band": band_name(band, limits.bands),
                "first_bad_position": comparison.first_bad.get(name),
                **cell.to_dict(floor_min),
            }
            for (name, band), cell in cells[:5]
        ],
        "worst_tokens": [
            {
                "document": token.doc,
                "position": token.position,
                "id": token.id,
                "text": texts.get(str(token.id)),
                "reference": round(token.reference, 4),
                "candidate": round(token.candidate, 4),
            }
            for token in comparison.worst
        ],
        "probability_bins": [
            {"from": PROBABILITY_BINS[i], "to": PROBABILITY_BINS[i + 1], **cell.to_dict(floor_min)}
            for i, cell in sorted(comparison.bins.items())
        ],
        "vocabulary_parts": [
            {"part": part, **comparison.quarters[part].to_dict(floor_min)} for part in sorted(comparison.quarters)
        ],
        "bands": [
            {"band": band_name(band, limits.bands), **comparison.band(band).to_dict(floor_min)}
            for band in sorted({band for _, band in comparison.cells})
        ],
    }


def badness(cell: Cell, limits: Limits) -> float:
    if cell.n < limits.band_tokens:
        return float(cell.n) / 1e9  # listed last: it proves nothing
    return float(max(cell.sys_rms / limits.band_sys_rms, cell.ratio(limits.floor_min) / limits.band_ratio))
