from __future__ import annotations

import pytest
from ansible.module_utils.sparklanes.common import checks
from ansible.module_utils.sparklanes.common.checks import Check


def test_no_checks_is_a_failure() -> None:
    assert checks.verdict([]) == "fail"


def test_one_failure_outweighs_everything() -> None:
    made = [Check("A.B", "s1", "pass", "x"), Check("A.B", "s2", "warn", "y"), Check("A.B", "s3", "fail", "z")]
    assert checks.verdict(made) == "fail"
    assert checks.verdict(made[:2]) == "warn"
    assert checks.verdict(made[:1]) == "pass"


def test_unknown_counts_as_failed() -> None:
    assert checks.judged("A.B", "s1", None, "not measured").status == "fail"


def test_a_made_up_status_is_refused() -> None:
    with pytest.raises(ValueError, match="maybe"):
        Check("A.B", "s1", "maybe", "x")


def test_table_folds_equal_rows_of_all_hosts_and_puts_failures_first() -> None:
    made = [Check("MEM.FREE", h, "pass", "110 GiB", "≥ 100 GiB") for h in ("s1", "s2")]
    made.append(Check("FABRIC.MTU", "s2", "fail", "1500", "9000", "Set MTU 9000 on s2."))
    text = checks.table(made)
    assert text.splitlines()[0].startswith("FAIL")
    assert "all" in text.splitlines()[1]
    assert "→ s2 FABRIC.MTU: Set MTU 9000 on s2." in text


def test_round_trip_through_json_types() -> None:
    made = Check("A.B", "s1", "fail", "1", "2", "do x")
    assert Check.from_dict(made.to_dict()) == made
