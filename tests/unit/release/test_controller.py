from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sparklanes as filters  # filter_plugins/sparklanes.py
import yaml
from ansible.errors import AnsibleFilterError
from ansible.module_utils.sparklanes.release import controller
from conftest import ROOT
from hostvars import registered


def process(proc: Path, pid: int, parent: int, command: str, started: int = 100) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode())
    (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} " + " ".join(["0"] * 17) + f" {started} 0\n")


def test_a_worker_belongs_to_the_run_that_forked_it(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, "bash")
    process(tmp_path, 20, 10, "python3 /x/ansible-playbook site.yml", 500)
    process(tmp_path, 30, 20, "python3 /x/ansible-playbook site.yml", 600)
    assert controller.run_of(30, tmp_path) == (20, "500")


def test_a_script_in_a_folder_named_ansible_is_no_run(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, "bash /home/me/ansible/nightly.sh")
    process(tmp_path, 20, 10, "/home/me/ansible/.venv/bin/python3 /home/me/ansible/.venv/bin/ansible-playbook site.yml", 500)
    assert controller.run_of(20, tmp_path) == (20, "500")


def test_a_run_keeps_its_id_and_another_one_gets_its_own(tmp_path: Path) -> None:
    proc, receipts = tmp_path / "proc", tmp_path / "receipts"
    process(proc, 20, 1, "python3 ansible-playbook", 500)
    process(proc, 21, 1, "python3 ansible-playbook", 501)
    first = controller.transaction_id(receipts, 20, "aa", proc=proc)
    assert controller.transaction_id(receipts, 20, "bb", proc=proc) == first
    assert controller.transaction_id(receipts, 21, "cc", proc=proc) != first


def test_an_interrupted_run_is_gone_on_with(tmp_path: Path) -> None:
    proc, receipts = tmp_path / "proc", tmp_path / "receipts"
    process(proc, 20, 1, "python3 ansible-playbook", 500)
    first = controller.transaction_id(receipts, 20, "aa", proc=proc)
    process(proc, 21, 1, "python3 ansible-playbook", 700)
    (proc / "20" / "stat").write_text("20 (x) S 1 " + " ".join(["0"] * 17) + " 999 0\n")  # the pid was given to another
    assert controller.transaction_id(receipts, 21, "bb", proc=proc) == first
    (note,) = receipts.iterdir()
    assert controller.forgettable(receipts, "20261130T210000Z-cc", controller.machine(tmp_path)) == "", (
        "nor is that of another run"
    )
    assert controller.forgettable(receipts, first, controller.machine(tmp_path)) == str(note)
    note.unlink()  # as the playbooks do once the transaction is closed
    assert controller.transaction_id(receipts, 21, "cc", proc=proc) != first


def test_a_check_reads_the_note_and_writes_none(tmp_path: Path) -> None:
    proc, receipts = tmp_path / "proc", tmp_path / "receipts"
    process(proc, 20, 1, "python3 ansible-playbook", 500)
    controller.transaction_id(receipts, 20, "aa", remember=False, proc=proc)
    assert not receipts.exists()
    first = controller.transaction_id(receipts, 20, "bb", proc=proc)
    (proc / "20" / "stat").unlink()
    assert controller.transaction_id(receipts, 21, "cc", remember=False, proc=proc) == first


def test_without_resume_a_dead_run_is_left_alone(tmp_path: Path) -> None:
    proc, receipts = tmp_path / "proc", tmp_path / "receipts"
    process(proc, 20, 1, "python3 ansible-playbook", 500)
    first = controller.transaction_id(receipts, 20, "aa", proc=proc)
    process(proc, 21, 1, "python3 ansible-playbook", 700)
    (proc / "20" / "stat").unlink()
    assert controller.transaction_id(receipts, 21, "bb", resume=False, proc=proc) != first


def test_two_machines_that_share_the_receipts_never_get_one_transaction(tmp_path: Path) -> None:
    """The folder of the project lies on a network; a container has pids of its own; a cloned machine has the id of the first."""
    receipts, ids = tmp_path / "receipts", set()
    for name, fresh in (("one", "aa"), ("two", "bb")):
        proc = tmp_path / name / "proc"
        process(proc, 20, 1, "python3 ansible-playbook", 500)
        ids.add(controller.transaction_id(receipts, 20, fresh, proc=proc, where=name))
    assert len(ids) == 2
    # Each is interrupted, and goes on with its own.
    for name in ("one", "two"):
        proc = tmp_path / name / "proc"
        process(proc, 21, 1, "python3 ansible-playbook", 600)
        (proc / "20" / "stat").unlink()
        assert controller.transaction_id(receipts, 21, "cc", proc=proc, where=name) in ids
    assert len(list(receipts.iterdir())) == 2


def test_what_tells_machines_apart(tmp_path: Path) -> None:
    def at(folder: str, id_: str, pids: str) -> Path:
        root = tmp_path / folder
        (root / "etc").mkdir(parents=True)
        (root / "etc/machine-id").write_text(id_)
        (root / "proc/self/ns").mkdir(parents=True)
        (root / "proc/self/ns/pid").symlink_to(pids)
        return root

    same = at("a", "m1", "pid:[1]")
    told = [controller.machine(same, "desk"), controller.machine(same, "clone")]
    told += [controller.machine(at("b", "m2", "pid:[1]"), "desk"), controller.machine(at("c", "m1", "pid:[2]"), "desk")]
    told.append(controller.machine(tmp_path / "none", "desk"))
    assert len(set(told)) == 5
    assert controller.machine(same, "desk") == told[0]


def test_after_a_reboot_of_the_controller_no_run_of_before_is_alive(tmp_path: Path) -> None:
    proc, receipts = tmp_path / "proc", tmp_path / "receipts"
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("b1\n")
    process(proc, 20, 1, "python3 ansible-playbook", 500)
    first = controller.transaction_id(receipts, 20, "aa", proc=proc)
    assert controller.ended(receipts, 21, proc) == []
    process(proc, 21, 1, "python3 ansible-playbook", 700)
    (proc / "sys/kernel/random/boot_id").write_text("b2\n")
    # Another process has its pid and its start now.
    assert controller.ended(receipts, 21, proc) == [first]
    assert controller.transaction_id(receipts, 21, "bb", proc=proc) == first


@pytest.mark.parametrize(
    "bad",
    [
        b"garbage",
        b"[]",
        b"null",
        b'{"a":' * 5000,
        b'{"id": "x", "pid": "abc", "started": 1}',
        b'{"id": ["a"], "pid": 1}',
        b'{"id": "20261130T210000Z-aaaa", "pid": null, "machine": "here", "boot": "", "started": ""}',
        b'{"id": "../../x", "pid": 4194000, "machine": "here", "boot": "", "started": ""}',
        b'{"id": "20261130T210000Z-aaaa", "pid": 4194000, "machine": "there", "boot": "", "started": ""}',
        b'{"id": "20261130T210000Z-aaaa", "pid": 4194000, "started": "1234"}',  # of version 0.1: whose it is is not known
    ],
)
def test_a_note_of_nobody_is_not_gone_on_with(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "transaction.json").write_bytes(bad)
    controller.note_path(tmp_path, "here").write_bytes(bad)
    made = controller.transaction_id(tmp_path, 2, "bbbb", where="here")
    assert made.endswith("-bbbb")
    assert controller.forgettable(tmp_path, made, "here")


MINE, OTHERS = (
    {"held": True, "lost": ""},
    {"held": False, "lost": "transaction a lost the lock: transaction b of desk holds it now"},
)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (MINE, MINE, ""),
        (MINE, {"unreachable": True}, ""),  # what it is asked for later, it compares itself
        (MINE, OTHERS, "s2: transaction a lost the lock: transaction b of desk"),
        (OTHERS, {"unreachable": True}, "s1: transaction a lost the lock"),
        (MINE, {"failed": True, "msg": "no such module."}, "s2: whose lock it is could not be asked (no such module)"),
        (MINE, {"changed": False}, "s2: whose lock it is was not told"),
        (MINE, {"held": "true"}, "s2: whose lock it is was not told"),
        ({"unreachable": True}, {"unreachable": True}, "no rank answers"),
        (None, None, "no rank answers"),
    ],
)
def test_an_undo_begins_only_where_the_lock_is_proven(first: Any, second: Any, words: str) -> None:
    said = controller.lost(registered(["s1", "s2"], held={"s1": first, "s2": second}), ["s1", "s2"], "held")
    assert (words in said) if words else said == ""


def tasks_of(node: Any) -> list[dict[str, Any]]:
    """The tasks of a list, those in blocks too, in their order."""
    found = []
    for task in node if isinstance(node, list) else []:
        found.append(task)
        for part in ("block", "rescue", "always", "tasks"):
            found += tasks_of(task.get(part))
    return found


TOUCHES = {"restore", "suspect", "stop", "close", "start", "promote"}


def included(task: dict[str, Any]) -> str:
    """The entry point of role rank that a task includes."""
    role, file = task.get("ansible.builtin.include_role") or {}, task.get("ansible.builtin.include_tasks")
    if role.get("name") == "rank":
        return str(role.get("tasks_from", "main"))
    return Path(file["file"] if isinstance(file, dict) else file).stem if file else ""


@pytest.mark.parametrize("path", ["playbooks/launch.yml", "roles/rank/tasks/restore.yml"])
def test_every_undo_proves_its_lock_first(path: str) -> None:
    rescues = [task["rescue"] for task in tasks_of(yaml.safe_load((ROOT / path).read_text())) if "rescue" in task]
    undoes = [steps for steps in ([included(task) for task in tasks_of(rescue)] for rescue in rescues) if TOUCHES & set(steps)]
    assert undoes
    for steps in undoes:
        assert "owned" in steps
        assert steps.index("owned") < min(steps.index(name) for name in TOUCHES & set(steps))


LIVING, EXPIRED = {"id": "t1", "expired": False}, {"id": "t1", "expired": True}


@pytest.mark.parametrize(
    ("other", "interrupted"),
    [
        ({"readiness": {"transaction": {}}}, True),
        ({"readiness": {"transaction": None}}, True),
        ({"readiness": {"transaction": EXPIRED}}, True),
        ({"readiness": {"transaction": LIVING}}, False),
        ({"readiness": {"transaction": {"id": "t1"}}}, False),
        ({"unreachable": True}, False),
        ({"failed": True, "msg": "x"}, False),
        (None, False),
    ],
)
def test_a_lock_is_taken_by_itself_only_where_every_rank_says_that_nobody_is_at_work(other: Any, interrupted: bool) -> None:
    seen = registered(["s1", "s2"], journal={"s1": {"readiness": {"transaction": EXPIRED}}, "s2": other})
    assert controller.interrupted(seen, ["s1", "s2"], "journal") is interrupted


@pytest.mark.parametrize(
    ("other", "back"),
    [
        ({"deployment_state": {}, "changed": False}, True),
        ({"skipped": True, "skip_reason": "it never had the lock"}, True),
        ({"failed": True, "msg": "No space left on device"}, False),
        ({"unreachable": True}, False),
        ({}, False),
        (None, False),
    ],
)
def test_the_note_of_a_transaction_stays_while_a_rank_may_hold_its_lock(other: Any, back: bool) -> None:
    seen = registered(["s1", "s2"], closed={"s1": {"deployment_state": {}}, "s2": other})
    assert controller.lock_is_back(seen, ["s1", "s2"], "closed") is back


@pytest.mark.parametrize(("opened_now", "back"), [(True, True), (False, False)])
def test_who_went_on_with_an_interrupted_transaction_and_closed_nothing_holds_it_still(opened_now: bool, back: bool) -> None:
    closed = {"s1": {"deployment_state": {}}, "s2": {"skipped": True}}
    seen = registered(["s1", "s2"], closed=closed, rank_lock_worker={"s2": {"deployment_state": {}, "opened_now": opened_now}})
    assert controller.lock_is_back(seen, ["s1", "s2"], "closed") is back


def test_a_deployment_is_at_rest_only_where_every_rank_says_so() -> None:
    """Then there is nothing to recover, and nothing is started."""
    rest: dict[str, Any] = {
        "transaction": {},
        "deployment_state": {"status": "stopped"},
        "docker": {"version": "28"},
        "containers": [],
    }

    def hosts(second: Any) -> dict[str, dict[str, Any]]:
        return {
            "s1": {"deployment": "sparks", "journal": {"readiness": rest}},
            "s2": {"deployment": "sparks", "journal": second if "unreachable" in second else {"readiness": second}},
        }

    runs = {"running": True, "deployment": "sparks"}
    assert controller.at_rest(hosts(rest), ["s1", "s2"], "journal")
    assert controller.at_rest(hosts({**rest, "containers": [{**runs, "deployment": "other"}]}), ["s1", "s2"], "journal")
    for other in (
        {**rest, "transaction": {"id": "t1", "expired": True}},
        {**rest, "transaction": {"id": "unreadable-1", "unreadable": "x"}},
        {**rest, "deployment_state": {"status": "failed"}},
        {**rest, "deployment_state": {"unreadable": "x"}},
        {**rest, "docker": {"error": "no daemon"}},
        {**rest, "containers": [runs]},
        {"unreachable": True},
    ):
        assert not controller.at_rest(hosts(other), ["s1", "s2"], "journal"), other
    assert not controller.at_rest({}, [], "journal")


def test_an_attempt_of_this_controller_whose_process_is_gone_has_ended(tmp_path: Path) -> None:
    proc, receipts = tmp_path / "proc", tmp_path / "receipts"
    process(proc, 20, 1, "python3 ansible-playbook", 500)
    process(proc, 21, 1, "python3 ansible-playbook", 501)
    assert controller.ended(receipts, 21, proc) == []
    first = controller.transaction_id(receipts, 20, "aa", proc=proc)
    assert controller.ended(receipts, 20, proc) == [], "it is the one that asks"
    assert controller.ended(receipts, 21, proc) == [], "it is at work"
    assert controller.ended(receipts, 21, proc, "elsewhere") == [], "another machine knows nothing of it"
    (proc / "20" / "stat").unlink()
    assert controller.ended(receipts, 21, proc) == [first]


def test_a_folder_that_takes_no_receipts_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        AnsibleFilterError,
        match=r"file/sparks: receipts can't be written there: Not a directory\. Make room .* -e artifacts_directory=",
    ):
        filters.transaction_id(str(tmp_path / "file" / "sparks"))
