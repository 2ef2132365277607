"""What a rank is told of: its end, its words, whether it lives, and what its machine saw."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import rank_info
from ansible.module_utils.sparklanes.common.registered import look
from ansible.module_utils.sparklanes.docker.containers import DockerError, parse_inspect
from ansible.module_utils.sparklanes.gates.readiness import ranks_alive
from ansible.module_utils.sparklanes.rank import evidence
from conftest import ROOT, RunModule

Ask = Callable[..., dict[str, Any]]
OOM = "torch.OutOfMemoryError: CUDA out of memory."
SOCKETS = "vm:1:1 [0] NCCL INFO Using network Socket"
WAITS = "(EngineCore pid=1) INFO 11-30 22:08:44 [shm_broadcast.py:705] No available shared memory broadcast block found in 60 seconds."


def stamp(seconds_ago: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.fixture
def ask(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """rank_info over a Docker with one rank in a state, whose log is these lines (seconds ago, text)."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").symlink_to(ROOT / "tests/unit/fake_docker.py")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("FAKE_DOCKER_STATE", str(tmp_path / "docker.json"))
    gathered: list[tuple[Any, ...]] = []

    def gather(*times: Any) -> dict[str, Any]:
        gathered.append(times)
        return {
            "kernel": [],
            "journal": [],
            "unread": [],
            "addresses": ["10.0.0.2"],
            "boot_time": 1.0,
            "started": times[0],
            "ended": times[1],
        }

    monkeypatch.setattr(evidence, "gather", gather)

    def asked(state: dict[str, Any] | None, *lines: tuple[float, str], healthy: bool = False, **more: Any) -> dict[str, Any]:
        gathered.clear()
        monkeypatch.setattr(rank_info, "answers", lambda url: healthy)
        box = {
            "Id": "c" * 64, "Name": "/sparklanes-sparks-rank1", "HostConfig": {}, "State": {"StartedAt": stamp(5000), **(state or {})},
            "Config": {"Image": "x", "Labels": {"sparklanes.deployment": "sparks", "sparklanes.release": "a" * 12}},
        }  # fmt: skip
        log = "\n".join(f"{stamp(ago)} {text}" for ago, text in lines)
        text = json.dumps({"containers": [box] if state is not None else [], "calls": [], "image": "x", "log": log})
        (tmp_path / "docker.json").write_text(text)
        more.setdefault("health_url", "http://127.0.0.1:1/health" if healthy else None)
        result = run_module(rank_info, {"deployment": "sparks", "root": str(tmp_path / "lib"), **more})
        return {**result, "gathered": list(gathered)}

    return asked


RUNS = {"Running": True, "Status": "running"}


def test_how_a_container_ended_is_told(ask: Ask) -> None:
    found = ask({"Status": "exited", "ExitCode": 137, "OOMKilled": True, "FinishedAt": stamp(10)}, (20, "last words"))
    assert (found["container"]["exit_code"], found["container"]["signal"], found["container"]["oom_killed"]) == (
        137,
        "SIGKILL",
        True,
    )
    assert found["failure"].startswith("sparklanes-sparks-rank1 ended with exit code 137 (SIGKILL), killed for memory")
    assert (found["hardware_or_memory"], found["job_failed"], found["finished"]) == (True, True, True)
    assert found["evidence"]["addresses"] == ["10.0.0.2"]
    ((started, ended, now),) = found["gathered"]
    assert now - started == pytest.approx(5000, abs=60)
    assert now - ended == pytest.approx(10, abs=60)


def test_of_a_rank_that_printed_nothing_no_last_line_is_quoted(ask: Ask) -> None:
    found = ask({"Status": "exited", "ExitCode": 137, "FinishedAt": stamp(10)})
    assert found["failure"] == "sparklanes-sparks-rank1 ended with exit code 137 (SIGKILL) before it had printed a line"


def test_docker_speaks_for_a_container_that_never_ran(ask: Ask) -> None:
    words = 'could not select device driver "" with capabilities: [[gpu]]'
    found = ask({"Status": "created", "ExitCode": 128, "Error": words})
    assert words in found["failure"]
    assert "nvidia-container-toolkit" in found["remedy"]
    assert found["container"]["error"] == words


def test_an_exception_is_said_where_nothing_else_names_the_end(ask: Ask) -> None:
    found = ask({"Status": "exited", "ExitCode": 1}, (20, "ValueError: no such thing"), (19, "bye"))
    assert "it raised ValueError: no such thing" in found["failure"]


def test_the_machine_is_asked_where_a_rank_failed_or_somebody_wants_to_know(ask: Ask) -> None:
    assert ask(RUNS, (5, "all is well"))["gathered"] == []
    assert len(ask(RUNS, (5, OOM))["gathered"]) == 1
    assert len(ask(RUNS, (5, "all is well"), evidence=True)["gathered"]) == 1
    assert len(ask(None, evidence=True)["gathered"]) == 1
    assert ask(None)["evidence"] == {}


def test_a_line_of_a_healthy_rank_is_a_warning(ask: Ask) -> None:
    found = ask(RUNS, (5, OOM), healthy=True)
    assert (found["job_failed"], found["finished"], found["progress"]) == (False, True, "serving")
    assert found["warning"] == "the GPU ran out of memory"
    assert not found["hardware_or_memory"]
    assert ask(RUNS, (5, OOM))["job_failed"], "nobody says that it is healthy"
    ended = ask({"Status": "exited", "ExitCode": 1}, (5, OOM), healthy=True)
    assert (ended["job_failed"], ended["warning"]) == (True, ""), "who answers on that port is somebody else"


def test_a_rank_on_sockets_has_failed_however_well_it_answers(ask: Ask) -> None:
    assert ask(RUNS, (5, SOCKETS), healthy=True)["job_failed"]
    assert not ask(RUNS, (5, SOCKETS), healthy=True, transport="socket")["job_failed"]


def test_a_stall_that_prints_is_a_stall(ask: Ask) -> None:
    found = ask(RUNS, (900, "INFO 11-30 22:00:00 [x.py:1] Loading"), (60, WAITS), (1, WAITS))
    assert found["heartbeat_age"] == pytest.approx(900, abs=60)
    assert "no message from the workers" in found["progress"]
    assert ask(RUNS, (1, "INFO 11-30 22:00:00 [x.py:1] Loading"))["heartbeat_age"] < 60


def test_what_a_log_writes_to_a_terminal_stays_there(ask: Ask) -> None:
    found = ask({"Status": "exited", "ExitCode": 1, "Error": "\x1b[2Jx"}, (5, "\x1b]52;c;cm0gLXJm\x07evil\u202e"))
    found.pop("gathered")
    told = json.dumps([found["failure"], found["error"], found["progress"], found["log"]])
    assert "\\u001b" not in told
    assert "\\u202e" not in told


def test_of_a_log_without_an_end_the_last_lines_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def run(argv: list[str], **options: Any) -> tuple[int, str, str]:
        lines = int(argv[argv.index("--tail") + 1])
        asked.append(lines)
        return 0, "2026-12-01T00:00:00Z " + "x" * min(lines * 400, options["most_bytes"]), ""

    monkeypatch.setattr(rank_info.commands, "run", run)
    monkeypatch.setattr(rank_info, "MOST_BYTES", 100_000)
    (box,) = parse_inspect('[{"Id": "c", "Name": "/r"}]')
    text, _ = rank_info.log_of(box, 50_000)
    assert asked == [50_000, 6250, 781, 100]
    assert len(text) < 50_000
    monkeypatch.setattr(rank_info.commands, "run", lambda argv, **_: (1, "", "\x1b[2Jno such container"))
    with pytest.raises(DockerError, match=r"exit 1\): no such container"):
        rank_info.log_of(box, 10)


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("letter", ["x", "é", "€", "😀"])
def test_a_log_that_was_cut_is_known_by_its_bytes(monkeypatch: pytest.MonkeyPatch, letter: str, stream: int) -> None:
    """With some 100 bytes a line the limit holds 1,000 lines, however many bytes a letter takes: it is asked again only where it was cut."""
    asked: list[int] = []

    def run(argv: list[str], **options: Any) -> tuple[int, str, str]:
        asked.append(int(argv[argv.index("--tail") + 1]))
        line = "2026-12-01T00:00:00Z " + letter * (78 // len(letter.encode())) + "\n"
        whole = (line * (asked[-1] - 1) + "2026-12-01T00:00:00Z its last words").encode()
        kept = whole[: options["most_bytes"]].decode(errors="replace")  # as common.commands keeps it
        return (0, kept, "") if stream == 1 else (0, "", kept)

    monkeypatch.setattr(rank_info.commands, "run", run)
    monkeypatch.setattr(rank_info, "MOST_BYTES", 100_000)
    (box,) = parse_inspect('[{"Id": "c", "Name": "/r"}]')
    assert rank_info.log_of(box, 8000)[0].endswith("its last words")
    assert asked == [8000, 1000]
    asked.clear()
    assert rank_info.log_of(box, 1030)[0].endswith("its last words")
    assert asked == [1030, 128]
    asked.clear()
    assert rank_info.log_of(box, 900)[0].endswith("its last words")
    assert asked == [900], "it is whole, so it is asked for once"


def test_a_cut_fabric_fails_a_rank_that_waits_for_others_and_no_other(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a cable is out ranks say nothing: the wait would end as a stall, minutes later and without the pair."""
    lines = [
        {
            "peer": "s2",
            "rail": "0",
            "ifname": "f0",
            "source": "10.0.0.1",
            "address": "10.0.0.2",
            "seconds": 8.0,
            "outcome": "silent",
        }
    ]
    monkeypatch.setattr(rank_info.watch, "look", lambda deployment: lines)
    found = ask(RUNS, (5, "starting"))
    assert found["failure"].startswith("the fabric is cut: rail 0 (f0 10.0.0.1) to s2 (10.0.0.2) for 8 s: no byte came back")
    assert (found["job_failed"], found["finished"], found["hardware_or_memory"]) == (True, True, True)
    assert found["log"]["failures"][0]["code"] == "fabric_cut"
    weights = "(Worker pid=1) INFO 11-30 22:08:44 [m.py:1] Starting to load model x..."
    assert ask(RUNS, (5, weights))["failure"] == "", "it reads its disk and waits for nobody"
    assert "the fabric is cut" in ask(RUNS, (60, weights))["failure"], "it has been silent for long"
    serving = "(APIServer pid=1) INFO:     Application startup complete."
    assert ask(RUNS, (60, serving))["failure"] == ""
    monkeypatch.setattr(rank_info.watch, "look", lambda deployment: [])
    assert ask(RUNS, (5, "starting"))["failure"] == ""


def noted(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lib/deployments/sparks/container.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"name": "sparklanes-sparks-rank1", "id": 5}', '{"name": [], "id": "c"}'])
@pytest.mark.parametrize("state", [RUNS, {"Status": "exited", "ExitCode": 137}, None])
def test_a_rank_does_not_vanish_behind_a_note_that_is_not_read(
    ask: Ask, tmp_path: Path, text: str, state: dict[str, Any] | None
) -> None:
    path = noted(tmp_path, text)
    for more in ({}, {"evidence": True}):
        found = ask(state, (5, "serving"), **more)
        assert found["failed"]
        assert f"{path} can't be read" in found["msg"]
        assert "docker ps --all --filter label=sparklanes.deployment=sparks" in found["msg"]
        assert f"mv {path} {path}.broken" in found["msg"]
        assert "finished" not in found, "a look that failed is asked again, and ends no boot"
    assert path.read_text() == text
    row = ranks_alive(["s1"], {"s1": look(found)}, "a" * 12)[0]
    assert (row.id, row.status) == ("RANK.ALIVE", "fail")
    assert str(path) in row.found


def test_a_look_at_a_rank_writes_no_note_and_sees_no_copy(ask: Ask, tmp_path: Path) -> None:
    assert ask(RUNS, (5, "serving"))["running"]
    assert not (tmp_path / "lib").exists()
    noted(tmp_path, json.dumps({"name": "sparklanes-sparks-rank1", "id": "c" * 64}))
    assert ask(RUNS, (5, "serving"))["running"]
    noted(tmp_path, json.dumps({"name": "sparklanes-sparks-rank1", "id": "d" * 64}))
    assert ask(RUNS, (5, "serving"))["progress"] == "no rank runs here"


def test_a_deployment_that_can_have_no_folder_is_said(ask: Ask) -> None:
    assert "deployment name '../x'" in ask(None, deployment="../x")["msg"]
