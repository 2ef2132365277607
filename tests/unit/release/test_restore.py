from __future__ import annotations

import re
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.registered import Look, look
from ansible.module_utils.sparklanes.release import restore as rules
from ansible.module_utils.sparklanes.release.cause import weigh
from hostvars import registered

FAILED = {"task": "Gate alive", "msg": "Gate alive stopped the launch"}
GOOD, BAD = "a" * 12, "b" * 12


def looks(known: dict[str, Any]) -> dict[str, Look]:
    """None stands for a host that could not be reached."""
    return {host: look({"unreachable": True}) if facts is None else Look(facts) for host, facts in known.items()}


def reason(ranks: dict[str, Any], failure: dict[str, Any]) -> dict[str, Any]:
    return weigh(looks(ranks), failure)


def restore(now: dict[str, Any], why: dict[str, Any], failed: str) -> dict[str, Any]:
    return rules.restore(looks(now), why, failed)


def test_a_look_that_failed_is_told_with_its_words_and_restores_nothing() -> None:
    broken = look({"failed": True, "msg": "state.json is no JSON."})
    assert "s2 could not be looked at (state.json is no JSON)." in weigh({"s1": Look(rank()), "s2": broken}, FAILED)["sentence"]
    chosen = rules.restore({"s1": Look(facts()), "s2": broken}, {}, BAD)
    assert chosen["release"] == ""
    assert chosen["refusal"].startswith(
        "s2 could not be looked at (state.json is no JSON); once that is mended: playbooks/recover.yml -e "
    )
    assert rules.restore({}, {}, BAD)["release"] == ""


def rank(running: bool = True, failures: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return {"running": running, "container": {"name": "r"}, "log": {"failures": failures or []}, **more}


def cause(message: str, consequence: bool = False, hardware: bool = False) -> dict[str, Any]:
    return {"message": message, "remedy": "do", "consequence": consequence, "hardware_or_memory": hardware}


def test_the_cause_is_named_before_its_consequence() -> None:
    ranks = {
        "s1": rank(False, [cause("connection closed by peer", consequence=True)]),
        "s2": rank(False, [cause("out of memory", hardware=True)]),
    }
    why = reason(ranks, FAILED)
    assert (why["host"], why["sentence"]) == ("s2", "s2: out of memory.")
    assert why["hardware_or_memory"]
    assert why["death"] == ""


def test_a_rank_that_ended_without_a_known_cause_is_a_death() -> None:
    why = reason({"s1": rank(), "s2": rank(False, failure="r ended with exit code 0")}, FAILED)
    assert why["death"] == "s2: r ended with exit code 0."


def test_without_any_rank_to_blame_the_failed_task_speaks() -> None:
    why = reason({"s1": rank(), "s2": None}, FAILED)
    assert why["sentence"] == "Gate alive stopped the launch (in 'Gate alive'). s2 did not answer."
    assert not why["death"]


@pytest.mark.parametrize(
    ("checks", "waits"),
    [
        (["MEM.SETTLED"], True),
        (["MEM.TOUCH"], True),
        (["BUDGET.UTILIZATION"], True),
        (["GPU.IDLE"], True),
        (["PORT.FREE"], False),
        ([], False),
    ],
)
def test_short_memory_after_the_stop_waits_for_a_person(checks: list[str], waits: bool) -> None:
    why = reason({"s1": {"running": False, "container": {}, "log": {}}}, {**FAILED, "checks": checks})
    assert why["hardware_or_memory"] is waits


def facts(last_good: str = GOOD, **more: Any) -> dict[str, Any]:
    kept = {"manifest": {"lane": "old"}, "api": {"host": "h", "port": 1}}
    return {"deployment_state": {"last_good": last_good}, "last_good": kept, **more}


def test_the_last_good_release_is_restored() -> None:
    chosen = restore({"s1": facts(), "s2": facts()}, {}, BAD)
    assert (chosen["release"], chosen["manifest"]["lane"], chosen["refusal"]) == (GOOD, "old", "")


@pytest.mark.parametrize(
    ("now", "why", "failed", "words"),
    [
        ({"s1": facts(), "s2": None}, {}, BAD, "s2 did not answer"),
        ({"s1": facts(""), "s2": facts("")}, {}, BAD, "no release has passed"),
        ({"s1": facts(), "s2": facts("c" * 12)}, {}, BAD, "disagree"),
        ({"s1": facts(), "s2": facts()}, {}, GOOD, "last good one itself"),
        ({"s1": facts(), "s2": facts()}, {"hardware_or_memory": True}, BAD, "memory or hardware"),
        (
            {"s1": facts(deployment_state={"last_good": GOOD, "deaths": ["1", "2"]}), "s2": facts()},
            {},
            BAD,
            "2 deaths were not explained (1; 2)",
        ),
    ],
)
def test_when_nothing_is_restored_the_reason_is_said(now: Any, why: Any, failed: str, words: str) -> None:
    chosen = restore(now, why, failed)
    assert chosen["release"] == ""
    assert words in chosen["refusal"]
    assert re.search(r"playbooks/(?:launch|recover)\.yml|-e launch_forget_deaths=true", chosen["refusal"]), "what to type next"


@pytest.mark.parametrize("nodes", [["s2", "s1"], ["s1"], ["s1", "s2", "s3"]])
def test_a_release_of_other_ranks_is_not_started(nodes: list[str]) -> None:
    kept = {"manifest": {"lane": "old", "nodes": nodes}, "api": {}}
    now = {host: facts(last_good=GOOD) | {"last_good": kept} for host in ("s1", "s2")}
    assert "the deployment is now s1, s2" in restore(now, {}, BAD)["refusal"]
    kept["manifest"]["nodes"] = ["s1", "s2"]
    assert restore(now, {}, BAD)["release"] == GOOD


def test_a_release_that_is_not_frozen_everywhere_is_not_started_on_some() -> None:
    now: Any = {"s1": facts(), "s2": {**facts(), "last_good": {}}}
    assert "not frozen on s2" in restore(now, {}, BAD)["refusal"]


def test_the_first_that_says_something_is_heard_wherever_it_failed() -> None:
    """The task that asks runs on rank 0, which may have failed at nothing."""
    seen = registered(
        ["s1", "s2", "s3"],
        rank_autopsy={"s1": rank(), "s2": {"unreachable": True}, "s3": rank()},
        rank_failure={"s1": {"task": "", "msg": ""}, "s3": {"task": "Gate B", "msg": "short", "checks": ["MEM.SETTLED"]}},
    )
    why = rules.why_it_failed(seen, ["s1", "s2", "s3"])
    assert why["sentence"] == "short (in 'Gate B'). s2 did not answer."
    assert why["hardware_or_memory"]
    assert (
        rules.why_it_failed(registered(["s1"], rank_autopsy={"s1": rank()}), ["s1"])["sentence"] == "it failed without a message."
    )


def test_what_to_restore_is_read_from_the_hosts() -> None:
    seen = registered(["s1", "s2"], rank_before_restore={host: {"readiness": facts()} for host in ("s1", "s2")})
    assert rules.what_to_restore(seen, ["s1", "s2"], {}, BAD)["release"] == GOOD
    assert rules.what_to_restore(seen, ["s1", "s2"], {"hardware_or_memory": True}, BAD)["release"] == ""
    dead = {"s1": {"readiness": facts(deployment_state={"last_good": GOOD, "deaths": ["1", "2"]})}, "s2": {"readiness": facts()}}
    doubtful = registered(["s1", "s2"], rank_before_restore=dead)
    assert rules.what_to_restore(doubtful, ["s1", "s2"], {}, BAD)["release"] == ""
    assert rules.what_to_restore(doubtful, ["s1", "s2"], {}, BAD, forget_deaths=True)["release"] == GOOD
    assert rules.what_to_restore(registered(["s1"]), ["s1"], {}, BAD)["release"] == "", "who was not asked restores nothing"


def gate(*checks: tuple[str, str]) -> dict[str, Any]:
    return {"verdict": "fail", "checks": [{"id": id_, "status": status} for id_, status in checks]}


def test_content_is_in_doubt_where_numbers_or_files_failed_and_nowhere_else() -> None:
    """Reading every byte takes minutes, and is owed wherever bytes may have changed under the same size and times."""
    doubt = rules.content_in_doubt
    assert doubt(
        {"A": gate(("WEIGHTS.STAGED", "pass")), "teacher forcing": gate(("TF.BIAS", "fail"), ("TF.FINITE", "pass"))}
    ) == ["TF.BIAS"]
    assert doubt({"alive": gate(("ENGINE.FINITE", "fail"))}) == ["ENGINE.FINITE"]
    assert doubt({"alive": gate(("ENGINE.CONTENT", "fail"))}) == ["ENGINE.CONTENT"]
    assert doubt({"alive": gate(("ENGINE.HEALTH", "fail"), ("ENGINE.COMPLETION", "fail"), ("RANK.ALIVE", "fail"))}) == []
    assert doubt({"B": gate(("MEM.SETTLED", "fail"))}) == []
    assert doubt({}) == []
    assert doubt({"A": None}) == []


def test_each_rank_is_said_to_stand_as_it_was_seen() -> None:
    box = {"name": "c", "exit_code": 137, "status": "exited"}
    found = rules.standing(
        {
            "s1": Look({"running": True, "container": {"status": "running"}}),
            "s2": Look({"running": False, "container": box}),
            "s3": Look({"running": True, "container": {"status": "paused", "name": "c"}}),
            "s4": Look({"running": False, "container": {}}),
            "s5": Look(None, "Cannot connect to the Docker daemon", broke=True),
        }
    )
    assert (found["dead"], found["paused"], found["unknown"]) == (["s2", "s4"], ["s3"], ["s5"])
    assert found["sentence"] == (
        "the rank of s1 runs, the rank of s2 has ended with exit code 137, the rank of s3 is paused (docker unpause c), "
        "the rank of s4 is gone, the rank of s5 could not be looked at (Cannot connect to the Docker daemon)"
    )


def test_who_was_not_asked_is_not_said_to_be_silent() -> None:
    seen = registered(["s1", "s2", "s3"], rank_before_restore={"s1": {"readiness": facts()}, "s2": {"unreachable": True}})
    refusal = rules.what_to_restore(seen, ["s1", "s2", "s3"], {}, BAD)["refusal"]
    assert refusal.startswith("s2 did not answer; s3 could not be looked at (was not asked")


def test_what_is_restored_carries_the_spec_of_each_rank() -> None:
    kept = {
        host: {"manifest": {"lane": "old", "nodes": ["s1", "s2"]}, "api": {}, "spec": {"node": host}} for host in ("s1", "s2")
    }
    now = {host: facts(last_good=GOOD) | {"last_good": kept[host]} for host in kept}
    assert restore(now, {}, BAD)["specs"] == {"s1": {"node": "s1"}, "s2": {"node": "s2"}}


def test_a_host_that_left_the_run_is_named_instead_of_no_message() -> None:
    """Its ssh refused after the stop: Ansible runs no rescue on it, and the others have nothing to say."""
    seen = registered(["s1", "s2"], rank_autopsy={"s1": rank()}, rank_failure={"s1": {"task": "", "msg": ""}})
    why = rules.why_it_failed(seen, ["s1", "s2"])
    assert why["sentence"].startswith("s2 could not be reached over ssh any more.")
    assert "s2 did not answer" in why["sentence"]
    assert "without a message" not in why["sentence"]
