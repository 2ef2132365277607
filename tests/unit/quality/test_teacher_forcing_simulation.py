"""False alarms and misses of the gate at full size: 24,766 tokens, the noise of a public reference, 2 + 2 runs.

SPARKLANES_SIMULATIONS=300 repeats what docs/teacher-forcing.md quotes; the default keeps the suite fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from ansible.module_utils.sparklanes.quality.teacher_forcing import judge as teacher_forcing_judge
from ansible.module_utils.sparklanes.quality.teacher_forcing import verdict as teacher_forcing_verdict
from noisy_engine import Fault, NoisyEngine

RUNS = int(os.environ.get("SPARKLANES_SIMULATIONS", "6"))
SOME = max(1, RUNS // 6)


def test_no_false_alarms() -> None:
    for seed in range(RUNS):
        engine = NoisyEngine(seed)
        verdict = teacher_forcing_judge.judge(engine.bank(2), engine.record())
        assert verdict.verdict == teacher_forcing_verdict.PASSED, (seed, verdict.reason)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (lambda engine: engine.logit_error(0.10), "TF.SYSTEMATIC"),
        (lambda engine: engine.logit_error(0.20), "TF.RATIO"),
        (lambda engine: engine.bias(0.03), "TF.BIAS"),
        (lambda engine: engine.logit_error(0.2, 8192), "TF.BANDS"),
        (lambda engine: engine.polluted("chat-3"), "TF.BANDS"),
        (lambda engine: engine.bad_tokens(2000), "TF.ISOLATED"),
        (lambda engine: engine.soup(), "TF.COHERENCE"),
        (lambda engine: engine.vocabulary_part(2, 4, 0.3), "TF.SYSTEMATIC"),
    ],
    ids=["error 0.10", "error 0.20", "bias 0.03", "long positions", "one document", "12 tokens", "soup", "one shard"],
)
def test_each_fault_is_seen(fault: Callable[[NoisyEngine], Fault], check: str) -> None:
    for seed in range(1000, 1000 + SOME):
        engine = NoisyEngine(seed)
        verdict = teacher_forcing_judge.judge(engine.bank(2), engine.record(fault(engine)))
        assert verdict.verdict == teacher_forcing_verdict.FAILED, seed
        assert check in {found.id for found in verdict.checks if found.status == "fail"}


@pytest.mark.parametrize("size", [0.05])
def test_what_lies_below_the_limit_passes_and_the_report_says_so(size: float) -> None:
    engine = NoisyEngine(2000)
    verdict = teacher_forcing_judge.judge(engine.bank(2), engine.record(engine.logit_error(size)))
    assert verdict.verdict == teacher_forcing_verdict.PASSED
    assert "from 0.080 nat up it would have failed" in verdict.reason
