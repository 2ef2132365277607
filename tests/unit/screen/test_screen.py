"""What a person sees of a run: the callback under ansible-playbook itself, on hosts that are this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.release import controller
from ansible.module_utils.sparklanes.screen.log import Log
from conftest import ROOT

HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
FLEET: dict[str, Any] = {"s1": {}, "s2": {}}
ESCAPES = "\x1b[31mred\x1b[0m\x07"


class Run:
    """A playbook of one play for Sparks, with its output and its log."""

    def __init__(self, tmp_path: Path, tasks: Any, *more: str, hosts: Any = None, **play: Any) -> None:
        self.folder = tmp_path
        (tmp_path / "trial.yml").write_text(
            yaml.safe_dump([{"name": "Trial", "hosts": "sparks", "gather_facts": False, "tasks": tasks, **play}])
        )
        inventory = {"all": {"children": {"sparks": {"hosts": hosts or FLEET, "vars": HERE}}}}
        (tmp_path / "fleet.yml").write_text(json.dumps(inventory), encoding="utf-8")
        self.environ = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_HOME": str(tmp_path / "home"),
            "ANSIBLE_LOG_PATH": str(tmp_path / "whole.log"),
            "ANSIBLE_NOCOLOR": "1",
            "SPARKLANES_LOG_DIRECTORY": str(tmp_path / "log"),
        }
        self.command = ["ansible-playbook", "-i", str(tmp_path / "fleet.yml"), str(tmp_path / "trial.yml"), *more]

    def done(self) -> Run:
        done = subprocess.run(self.command, cwd=ROOT, env=self.environ, capture_output=True, text=True, check=False)
        self.rc, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.lines = [re.sub(r"\d\d:\d\d:\d\d", "TIME", line) for line in self.out.splitlines()]
        return self

    @property
    def log(self) -> str:
        return next(self.folder.glob("log/*.log")).read_text(encoding="utf-8")

    @property
    def box(self) -> list[str]:
        first = next(number for number, line in enumerate(self.lines) if line.startswith("══ trial: "))
        assert self.lines[-1] == "═" * 78, self.out
        return self.lines[first:-1]


def debug(text: Any, **more: Any) -> dict[str, Any]:
    return {"name": "Say it", "ansible.builtin.debug": {"msg": text}, **more}


def failing(text: str, **more: Any) -> dict[str, Any]:
    return {"name": "It fails", "ansible.builtin.fail": {"msg": text}, **more}


def test_what_fails_once_for_all_is_said_of_no_host(tmp_path: Path) -> None:
    run = Run(tmp_path, [failing("Gate A stopped the launch: s2 NODE.DOCKER", run_once=True)]).done()
    assert run.rc != 0
    assert run.box[1] == "Gate A stopped the launch: s2 NODE.DOCKER."


QUIET = {"name": "Nothing to see", "ansible.builtin.set_fact": {"x": 1}}


def test_a_run_shows_its_words_and_one_box_and_the_log_has_all(tmp_path: Path) -> None:
    closing = debug(
        "write inventory/fleet/group_vars/lane_x.yml\nstop it: playbooks/stop.yml", run_once=True, vars={"__rank_closing": True}
    )
    run = Run(tmp_path, [QUIET, closing, debug("a\ntable"), QUIET]).done()
    assert run.rc == 0, run.out + run.err
    assert run.lines[:3] == ["TIME  Trial", "a", "table"], "once, though two hosts said it"
    assert run.box[0].startswith("══ trial: done ")
    assert run.box[1:5] == [
        f"write {tmp_path}/group_vars/lane_x.yml", f"stop it: ansible-playbook -i {tmp_path}/fleet.yml playbooks/stop.yml",
        "s1 : ok=4 changed=0 unreachable=0 failed=0", "s2 : ok=3 changed=0 unreachable=0 failed=0",
    ]  # fmt: skip
    assert run.box[5].startswith("log ")
    assert "TASK [Nothing to see]" not in run.out
    for text in (run.log, (tmp_path / "whole.log").read_text(encoding="utf-8")):
        assert "TASK [Nothing to see]" in text
        assert "ok: [s2]" in text
        assert "PLAY RECAP" in text


def test_a_failure_is_said_once_in_its_own_words(tmp_path: Path) -> None:
    """No place in a file, no chain of causes, no wrapping."""
    long = "It failed for a reason that is longer than any terminal is wide, " * 4
    run = Run(tmp_path, [failing(f"{long}playbooks/recover.yml -e recover_to=nothing")], any_errors_fatal=True).done()
    assert run.rc == 2
    assert run.out.count("longer than any terminal") == 4, "that is once"
    assert any(
        line.startswith(f"s1, s2: {long}ansible-playbook -i ") and line.endswith("recover_to=nothing.") for line in run.box
    )
    assert "Origin:" not in run.out + run.err
    assert "Origin:" in run.log or "fatal: [s1]" in run.log


def test_a_rescued_failure_is_a_live_line_and_the_box_has_the_last_word(tmp_path: Path) -> None:
    block = {"block": [failing("the cause")], "rescue": [debug("undone"), failing("The launch failed: it is undone")]}
    run = Run(tmp_path, [block], hosts={"s1": {}}).done()
    assert "  TIME  s1  the cause" in run.lines
    assert run.box[1] == "s1: The launch failed: it is undone."
    assert sum("the cause" in line for line in run.lines) == 1


def test_a_failure_that_a_table_tells_is_not_shown_beside_it(tmp_path: Path) -> None:
    block = {"block": [failing("the cause")], "rescue": [{"name": "Told", "ansible.builtin.meta": "noop"}]}
    run = Run(tmp_path, [block, debug("row: the cause")]).done()
    assert run.rc == 0
    assert sum("the cause" in line for line in run.lines) == 1


def test_a_module_that_breaks_says_what_it_can(tmp_path: Path) -> None:
    broken = {"name": "Break", "ansible.builtin.command": "sh -c 'echo why it broke >&2; exit 3'", "changed_when": False}
    run = Run(tmp_path, [broken], hosts={"s1": {}}).done()
    assert run.rc == 2
    assert run.box[1] in (
        "s1: non-zero return code: why it broke.",
        "s1: The command exited with a non-zero return code: why it broke.",  # ansible-core 2.21
    )
    missing = Run(tmp_path, [debug("{{ nothing_of_that_name }}")], hosts={"s1": {}}).done()
    assert missing.rc == 2
    assert "nothing_of_that_name" in missing.box[1]


def test_a_host_that_does_not_answer_is_said(tmp_path: Path) -> None:
    ping = {"name": "Ping", "ansible.builtin.ping": {}}
    run = Run(tmp_path, [{**ping, "ignore_unreachable": True}, ping], hosts={"s1": {}, "s2": AWAY}).done()
    assert run.rc == 4
    assert any(line.startswith("  TIME  s2  no answer over ssh: ") for line in run.lines)
    assert run.box[1].startswith("s2: no answer over ssh: ")
    assert "Connection refused" in run.box[1]


def test_warnings_and_deprecations_are_shown(tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "warns.py").write_text(
        "from ansible.module_utils.basic import AnsibleModule\nm = AnsibleModule({})\nm.warn('take care, playbooks/status.yml')\n"
        "m.deprecate('it goes', version='9.9', collection_name='ansible.builtin')\nm.exit_json(changed=False)\n"
    )
    run = Run(tmp_path, [{"name": "Warn", "warns": {}}], hosts={"s1": {}}).done()
    assert run.rc == 0
    told = f"[WARNING]: take care, ansible-playbook -i {tmp_path}/fleet.yml playbooks/status.yml"
    assert "".join(told.split()) in "".join(run.err.split()), "Ansible may wrap it"
    assert "[DEPRECATION WARNING]: it goes" in run.err
    assert "DEPRECATION WARNING" in (tmp_path / "whole.log").read_text(encoding="utf-8"), "script/test looks there"
    assert "DEPRECATION WARNING" in run.log


def test_a_check_with_differences_shows_them(tmp_path: Path) -> None:
    copy = {"name": "The file is there", "ansible.builtin.copy": {"content": f"new {ESCAPES}\n", "dest": f"{tmp_path}/made"}}
    run = Run(tmp_path, [copy], "--check", "--diff", hosts={"s1": {}}).done()
    assert run.rc == 0, run.out
    assert "+new red" in run.lines
    assert "s1: would change: The file is there" in run.lines
    assert run.box[0].startswith("══ trial: checked, nothing was changed ")
    assert not (tmp_path / "made").exists()


def test_nothing_of_a_host_commands_the_terminal_or_whoever_reads_the_log(tmp_path: Path) -> None:
    said = {
        "name": "Ask",
        "ansible.builtin.command": f"printf %s {json.dumps(ESCAPES)}",
        "register": "asked",
        "changed_when": False,
    }
    tasks = [said, debug("{{ asked.stdout }}"), failing("{{ asked.stdout }}")]
    for more in ((), ("-v",)):
        run = Run(tmp_path, tasks, *more, hosts={"s1": {}}).done()
        assert "red" in run.out
        for text in (run.out, run.err, run.log, (tmp_path / "whole.log").read_text(encoding="utf-8")):
            assert "\x1b" not in text
            assert "\x07" not in text


@pytest.mark.parametrize("how", [("-v",), ()], ids=["-v", "full"])
def test_everything_is_on_the_screen_where_it_is_wanted(tmp_path: Path, how: tuple[str, ...]) -> None:
    run = Run(tmp_path, [QUIET, debug("words")], *how, hosts={"s1": {}})
    if not how:
        run.environ["SPARKLANES_SCREEN"] = "full"
    run.done()
    assert "TASK [Nothing to see]" in run.out
    assert "PLAY RECAP" in run.out
    assert run.out.count("words") == 1
    assert run.box[0].startswith("══ trial: done ")
    assert not any("ok=" in line for line in run.box), "the recap is above it"


ID = "20261201T101500Z-abcd"


def attempt(folder: Path) -> dict[str, Any]:
    facts = {"rank_receipts": f"{folder}/pair/{ID}", "rank_transaction": ID, "rank_controller": "me@desk"}
    return {"name": "Name it", "ansible.builtin.set_fact": facts, "run_once": True}


def test_an_attempt_that_is_refused_leaves_a_receipt_with_its_reason_and_log(tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    note = controller.note_path(tmp_path / "pair", controller.machine())
    note.write_text(
        json.dumps({"id": ID, "machine": controller.machine(), "boot": "b", "pid": 1, "started": ""}), encoding="utf-8"
    )
    assert controller.noted(tmp_path / "pair", controller.machine())
    gates = {
        "name": "Gate",
        "ansible.builtin.set_fact": {"gates_record": {"A": {"verdict": "fail", "checks": []}}},
        "run_once": True,
    }
    run = Run(tmp_path, [attempt(tmp_path), gates, failing("gate A said no", run_once=True)], any_errors_fatal=True).done()
    assert run.rc == 2
    assert "Nothing was stopped or changed." in run.box
    receipt = json.loads((tmp_path / "pair" / ID / "receipt.json").read_text(encoding="utf-8"))
    assert receipt["outcome"] == {"status": "refused", "reason": "gate A said no."}
    assert (receipt["deployment"], receipt["transaction"], receipt["verb"]) == ("pair", ID, "trial")
    assert receipt["gates"]["A"]["verdict"] == "fail"
    assert "TASK [Gate]" in (tmp_path / "pair" / ID / "ansible.log").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("log/*.log")), "it moved"
    assert not note.exists(), "no lock was taken: nothing to go on with"


def test_where_something_was_changed_nobody_says_that_nothing_was(tmp_path: Path) -> None:
    written = {"name": "Write", "ansible.builtin.copy": {"content": "x", "dest": str(tmp_path / "bank")}, "run_once": True}
    run = Run(
        tmp_path, [attempt(tmp_path), written, failing("the record is no bank", run_once=True)], any_errors_fatal=True
    ).done()
    assert run.rc == 2
    assert not any("Nothing was stopped" in line for line in run.box)


def test_a_check_leaves_no_receipt(tmp_path: Path) -> None:
    Run(tmp_path, [attempt(tmp_path), failing("no")], "--check").done()
    assert not (tmp_path / "pair").exists()


def test_an_interrupted_attempt_says_where_and_its_receipt_too(tmp_path: Path) -> None:
    wait = {"name": "Wait for long", "ansible.builtin.pause": {"seconds": 60}}
    run = Run(tmp_path, [attempt(tmp_path), debug("now"), wait])
    started = subprocess.Popen(run.command, cwd=ROOT, env=run.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)  # fmt: skip
    assert started.stdout
    for line in started.stdout:
        if line.startswith("now"):
            break
    time.sleep(1)
    os.killpg(started.pid, signal.SIGINT)
    rest = started.stdout.read()
    assert started.wait(timeout=60) != 0
    assert "══ trial: INTERRUPTED" in rest
    assert "It was interrupted in: Wait for long." in rest
    receipt = json.loads((tmp_path / "pair" / ID / "receipt.json").read_text(encoding="utf-8"))
    assert receipt["outcome"]["status"] == "interrupted"


@pytest.mark.parametrize("gone", [False, True], ids=["asked", "out of reach"])
def test_what_may_hold_a_lock_is_remembered(tmp_path: Path, gone: bool) -> None:
    """No result came of the task that takes it: the next run of this controller has to go on with that very transaction."""
    (tmp_path / "pair").mkdir()
    note = controller.note_path(tmp_path / "pair", controller.machine())
    note.write_text(
        json.dumps({"id": ID, "machine": controller.machine(), "boot": "b", "pid": 1, "started": ""}), encoding="utf-8"
    )
    (tmp_path / "library").mkdir()
    slow = "#!/bin/sh\n# WANT_JSON\nsleep 60\n"
    (tmp_path / "library/transaction").write_text(slow, encoding="utf-8")
    task = {"name": "Take the lock", "transaction": {"deployment": "pair"}}
    run = Run(tmp_path, [attempt(tmp_path), debug("now"), task], hosts={"s1": AWAY if gone else {}})
    run.environ["ANSIBLE_LIBRARY"] = str(tmp_path / "library")
    if gone:
        run.done()
        out = run.out
    else:
        started = subprocess.Popen(run.command, cwd=ROOT, env=run.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)  # fmt: skip
        assert started.stdout
        for line in started.stdout:
            if line.startswith("now"):
                break
        time.sleep(3)
        os.killpg(started.pid, signal.SIGINT)
        out = started.stdout.read()
        assert started.wait(timeout=60) != 0
    assert "Nothing was stopped" not in out
    assert note.exists()


def test_a_log_that_cannot_be_written_hinders_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("no folder", encoding="utf-8")
    run = Run(tmp_path, [debug("words")], hosts={"s1": {}}).done()
    assert run.rc == 0
    assert "words" in run.lines
    assert "There is no log of this run" in run.err
    full = Log(tmp_path / "logs", "x")
    full._stream = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115
    full.write("a line")
    full.write("another")
    assert "No space left" in full.problem


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"2020010{number:03}.log").touch()
    Log(tmp_path, "x")
    assert len(list(tmp_path.glob("*.log"))) == 50


@pytest.mark.parametrize("screen", ["short", "full"])
@pytest.mark.parametrize("errors_too", [False, True], ids=["output", "both"])
def test_a_reader_that_goes_away_ends_no_run(tmp_path: Path, screen: str, errors_too: bool) -> None:
    """`… | head -3`, a pager that was left, a terminal that is gone: a launch must not stand still in its middle, with its lock."""
    # More than any buffer of a pipe or of Python holds, from live lines of workers too: Ansible hands those over in a thread.
    tasks = [
        debug("much " * 20_000),
        {"name": "A warning", "ansible.builtin.command": "true", "loop": list(range(3))},
        debug("more " * 20_000),
    ]
    tasks += [debug("the last word", run_once=True)]
    run = Run(tmp_path, tasks)
    run.environ["SPARKLANES_SCREEN"] = screen
    going = subprocess.Popen(
        run.command, cwd=ROOT, env=run.environ, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors_too else subprocess.DEVNULL,
    )  # fmt: skip
    assert going.stdout
    going.stdout.read(1)
    going.stdout.close()
    try:
        assert going.wait(timeout=120) == 0
    finally:
        going.kill()
    assert "the last word" in run.log
    assert "PLAY RECAP" in run.log


def test_a_full_disk_under_the_output_ends_no_run_and_is_said_as_such(tmp_path: Path) -> None:
    run = Run(tmp_path, [debug("much " * 20_000), debug("the last word", run_once=True)])
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            run.command, cwd=ROOT, env=run.environ, stdout=full, stderr=subprocess.DEVNULL, check=False, timeout=120
        )
    assert done.returncode == 0
    assert "<stdout> takes no more (No space left on device)" in run.log
    assert "the last word" in run.log
