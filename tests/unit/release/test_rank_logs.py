# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is said of logs was saved and fetched; of each rank without one, why."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.sparklanes.release import logs
from hostvars import registered

WHERE = "/art/T1"


def saved(path: str = "/var/log/sparklanes/sparks/T1/rank0.log", **more: Any) -> dict[str, Any]:
    return {"container": "c", "path": path, "bytes": 9, "whole": True, "problem": ""} | more


def kept(host: str, **more: Any) -> list[dict[str, Any]]:
    dest = f"{WHERE}/{host}-rank0.log"
    return [saved() | {"dest": dest, "here": dest, "why": ""} | more]


def test_each_log_is_fetched_once_also_of_a_stop_that_failed() -> None:
    known: dict[str, Any] = {"rank_stopped_head": {"failed": True, "msg": "docker rm failed", "saved": [saved()]}}
    (one,) = logs.to_fetch({"s1": known}, "s1", WHERE)
    assert one["dest"] == "/art/T1/s1-rank0.log"
    known["rank_logs"] = [logs.fetched(one, {"changed": True, "checksum": "a", "dest": one["dest"]})]
    assert known["rank_logs"][0]["here"] == one["dest"]
    assert logs.to_fetch({"s1": known}, "s1", WHERE) == []


def test_two_logs_of_one_name_keep_two_places() -> None:
    """One on the disk, one in memory, where the disk was full by then."""
    known = {"rank_stopped_head": {"saved": [saved(), saved("/run/sparklanes/logs/sparks/T1/rank0.log")]}}
    assert [one["dest"] for one in logs.to_fetch({"s1": known}, "s1", WHERE)] == [
        "/art/T1/s1-rank0.log",
        "/art/T1/s1-rank0-2.log",
    ]
    later = {"rank_logs": kept("s1"), "rank_stopped_head": {"saved": [saved("/run/sparklanes/logs/sparks/T1/rank0.log")]}}
    assert logs.to_fetch({"s1": later}, "s1", WHERE)[0]["dest"] == "/art/T1/s1-rank0-2.log"


def test_what_was_not_saved_is_kept_and_said_once() -> None:
    known: dict[str, Any] = {"rank_stopped_worker": {"saved": [saved("", whole=False, problem="the disk is full")]}}
    (one,) = logs.to_fetch({"s1": known}, "s1", WHERE)
    known["rank_logs"] = [logs.fetched(one, {"skipped": True})]
    assert logs.to_fetch({"s1": known}, "s1", WHERE) == []
    assert logs.sentence({"s1": known}, ["s1"], WHERE) == "The log of s1 is lost: the disk is full."


def test_results_of_any_shape_give_no_log() -> None:
    for result in (None, {}, {"skipped": True}, {"unreachable": True, "msg": "x"}, "text", {"saved": None}, {"saved": []}):
        assert logs.to_fetch({"s1": {"rank_stopped_head": result}}, "s1", WHERE) == []


def test_a_fetch_counts_by_the_copy_it_proves() -> None:
    one = saved() | {"dest": "/art/x.log"}
    for result, why in [
        ({"failed": True, "msg": "No space left on device"}, "No space left on device"),
        ({"unreachable": True, "msg": "Connection timed out"}, "no answer over ssh (Connection timed out)"),
        (
            {"changed": False, "msg": "the remote file does not exist, not transferring, ignored"},
            "the remote file does not exist",
        ),
        ({"changed": False}, "the fetch said nothing"),
        (None, "was not asked"),
    ]:
        made = logs.fetched(one, result)
        assert made["here"] == ""
        assert why in made["why"]


def test_all_logs_there_is_one_short_sentence() -> None:
    hosts = registered(["s1", "s2"], rank_logs={"s1": kept("s1"), "s2": kept("s2")})
    assert logs.sentence(hosts, ["s1", "s2"], WHERE) == "Logs in /art/T1: s1-rank0.log, s2-rank0.log."


def test_of_each_rank_without_a_log_it_is_said_why() -> None:
    hosts = {
        "s1": {"rank_logs": kept("s1")},
        "s2": {
            "rank_stopped_worker": {"failed": True, "msg": "docker stop failed (exit 1): Cannot connect to the Docker daemon"}
        },
        "s3": {"rank_stopped_worker": {"unreachable": True, "msg": "Connection refused"}},
        "s4": {"rank_stopped_worker": {"changed": False, "saved": []}},
        "s5": {},
        "s6": {"rank_logs": kept("s6", here="", why="No space left on device")},
        "s7": {"rank_logs": kept("s7", problem="3 MiB in the middle of the log were left out", whole=False)},
    }
    text = logs.sentence(hosts, list(hosts), WHERE)
    assert text.startswith("Logs in /art/T1: s1-rank0.log, s7-rank0.log. ")
    assert "Of s2 there is no log: docker stop failed (exit 1): Cannot connect to the Docker daemon." in text
    assert "Of s3 there is no log: no answer over ssh (Connection refused)." in text
    assert "Of s4 there is no log: no container of this deployment was there." in text
    assert "Of s5 there is no log: it was not asked for one." in text
    assert (
        "The log of s6 is on it as /var/log/sparklanes/sparks/T1/rank0.log and could not be brought here: No space left" in text
    )
    assert "Not all of the log of s7 was kept: 3 MiB in the middle of the log were left out." in text
    assert "every rank" not in text
