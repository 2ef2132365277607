# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A restore is judged by what its own launch was judged with, and where that is gone it says by what else. It never claims more."""

from __future__ import annotations

import copy
import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sparklanes as filters  # filter_plugins/sparklanes.py
import yaml
from ansible.module_utils.sparklanes.gates import restored
from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as banks
from ansible.module_utils.sparklanes.release.store import Store
from conftest import ROOT
from test_bank import bank, written

PLACE = "spark-1:/var/lib/sparklanes/releases/aaaaaaaaaaaa/bank.json.gz"
LIMITS = {"sys_rms": 0.2}


def recorded(day: str, **more: Any) -> dict[str, Any]:
    made = copy.deepcopy(bank(**more))
    for run in made["runs"]:
        run["time"] = f"{day}T10:00:00Z"
    return made


OWN, LATER = recorded("2026-11-01"), recorded("2026-11-30", highest=17)
NOTE = {"bank": banks.named(OWN), "limits": {"sys_rms": 0.1}}


def test_a_bank_has_one_name_wherever_it_lies(tmp_path: Path) -> None:
    assert NOTE["bank"].endswith(", recorded 2026-11-01")
    assert filters.bank_named(filters.read_given(written(tmp_path / "x.json.gz", OWN), "bank")) == NOTE["bank"]
    assert banks.named(LATER) != NOTE["bank"]
    for odd in ({}, {"runs": None}, {"runs": [5]}, {"runs": [{"time": "soon\n\x1b[2J"}]}):
        assert banks.named(odd).endswith(", recorded at a time that it does not say")


def choose(tmp_path: Path, judged: dict[str, Any], kept: Any = None, current: Any = None) -> dict[str, Any]:
    """kept, current: a bank, bytes, or None for no file."""
    paths = {}
    for name, content in (("kept", kept), ("current", current)):
        path = tmp_path / f"{name}.json.gz"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content) if isinstance(content, bytes) else written(path, content)
        paths[name] = str(path)
    paths["current"] = paths["current"] if current is not None else ""  # as first_found has it
    return filters.bank_of_restore(paths["current"], "tiny", judged, paths["kept"], PLACE, LIMITS)


@pytest.mark.parametrize("current", [None, LATER, OWN, b"cut"], ids=["none", "another", "the same", "damaged"])
def test_it_is_judged_by_its_own_bank_and_limits_whatever_the_lane_has_now(tmp_path: Path, current: Any) -> None:
    chosen = choose(tmp_path, NOTE, OWN, current)
    assert (chosen["own"], chosen["path"], chosen["limits"]) == (True, str(tmp_path / "kept.json.gz"), NOTE["limits"])


@pytest.mark.parametrize("kept", [None, LATER, gzip.compress(json.dumps(OWN).encode())[:50]], ids=["gone", "another", "cut off"])
def test_the_bank_of_the_lane_is_its_own_where_it_is_the_same(tmp_path: Path, kept: Any) -> None:
    chosen = choose(tmp_path, NOTE, kept, OWN)
    assert (chosen["own"], chosen["path"], chosen["limits"]) == (True, str(tmp_path / "current.json.gz"), NOTE["limits"])


@pytest.mark.parametrize(
    ("judged", "kept", "why"),
    [
        (NOTE, None, f"not with bank {NOTE['bank']}, which its own launch was judged with: it could not be had from {PLACE}"),
        (NOTE, b"\x1f\x8b", "which its own launch was judged with: the bank "),
        (NOTE, LATER, f"what lies in its place is bank {banks.named(LATER)}"),
        ({}, OWN, "and which bank its own launch was judged with is not noted"),
        (
            {"unreadable": "/x/judged.json can't be read (it is empty)"},
            OWN,
            "is not known: /x/judged.json can't be read (it is empty)",
        ),
    ],
    ids=["gone", "damaged", "another", "not noted", "note unreadable"],
)
def test_another_bank_is_called_by_its_name_and_passed_for_no_more(tmp_path: Path, judged: Any, kept: Any, why: str) -> None:
    chosen = choose(tmp_path, judged, kept, LATER)
    assert (chosen["own"], chosen["path"], chosen["limits"]) == (False, str(tmp_path / "current.json.gz"), LIMITS)
    assert why in chosen["why"]
    made = filters.FilterModule().filters()["sparklanes_restored"]({"verdict": "pass", "checks": [PASSED]}, chosen)
    assert made["status"] == "restored"
    assert f"runs again, restored, judged with bank {banks.named(LATER)}, " in made["words"]
    assert why in made["words"]
    assert why in made["short"]
    assert "serves again" not in made["words"]


def test_without_any_bank_it_is_not_judged(tmp_path: Path) -> None:
    for judged, current, why in (
        ({}, None, "restored, not judged: lane tiny has no bank."),
        (
            NOTE,
            None,
            f"lane tiny has no bank, and bank {NOTE['bank']} of its own launch is gone: it could not be had from {PLACE}.",
        ),
        ({}, b"\x1f\x8b", "the bank of lane tiny can't be read (the bank "),
    ):
        chosen = choose(tmp_path, judged, None, current)
        assert chosen["path"] == ""
        made = restored.proven({}, chosen)
        assert (made["status"], made["checks"]) == ("restored", [])
        assert why in made["words"]


PASSED = {"id": "TF.BIAS", "status": "pass"}
BIASED, BROKEN = {"id": "TF.BIAS", "status": "fail"}, {"id": "TF.FINITE", "status": "fail"}
KNOWN = {"path": "/b", "name": "b, recorded x", "own": False, "noted": "a", "why": "not with bank a"}
UNKNOWN = {**KNOWN, "noted": "", "why": "and which is not noted"}
ITS_OWN = {**KNOWN, "own": True, "why": ""}


@pytest.mark.parametrize(
    ("chosen", "forcing", "status", "words", "decides"),
    [
        (ITS_OWN, {"verdict": "pass", "checks": [PASSED]}, "restored-judged", "serves again: alive, and within the noise of its bank (b", True),
        (ITS_OWN, {"verdict": "fail", "checks": [BIASED]}, "restored-judged", "", True),
        (ITS_OWN, {}, "restored", "restored, not judged: it could not be scored: ssh", False),
        (ITS_OWN, {"verdict": "invalid", "reason": "canary"}, "restored", "not judged: its scores could not be judged: canary.", False),
        (KNOWN, {"verdict": "fail", "checks": [BIASED]}, "restored", "not judged: it differs (TF.BIAS) where it was compared with bank b, recorded x, not", False),
        (KNOWN, {"verdict": "fail", "checks": [BIASED, BROKEN]}, "restored", "", True),
        (UNKNOWN, {"verdict": "fail", "checks": [BIASED]}, "restored", "", True),
        (UNKNOWN, {"verdict": "pass", "checks": [PASSED]}, "restored", "judged with bank b, recorded x, and which is not noted. It is within", True),
    ],
    ids=["own", "own differs", "no scores", "invalid", "another differs", "another, not finite", "unknown differs", "unknown"],
)  # fmt: skip
def test_what_is_said_is_what_was_proven(chosen: Any, forcing: Any, status: str, words: str, decides: bool) -> None:
    made = restored.proven(forcing, chosen, "ssh")
    assert made["status"] == status
    assert words in made["words"]
    assert bool(made["checks"]) is decides, "only these may still refuse it"
    assert ("not judged" in made["words"]) is (not decides)
    assert bool(made["short"]) is (status == "restored"), "the record says why it is no more"


def test_what_a_release_was_judged_with_lies_beside_it(tmp_path: Path) -> None:
    store, release = Store("sparks", str(tmp_path)), "a" * 12
    assert store.judged(release) == {}
    folder = store.release_folder(release)
    folder.mkdir(parents=True)
    (folder / "judged.json").write_text(json.dumps(NOTE))
    assert store.judged(release) == NOTE
    (folder / "judged.json").write_text("{")
    assert "judged.json can't be read" in store.judged(release)["unreadable"]


def test_what_is_kept_is_where_a_restore_looks_for_it() -> None:
    """By the launch that passed, of the release that passed; and a disk without room fails no launch."""
    tasks = yaml.safe_load((ROOT / "roles/gates/tasks/quality.yml").read_text())
    (kept,) = [task for task in tasks if "Keep beside the release" in task["name"]]
    assert [task["ansible.builtin.copy"]["dest"] for task in kept["block"]] == [
        "{{ __gates_kept_bank }}",
        "{{ __gates_kept_note }}",
    ]
    assert kept["rescue"]
    defaults = yaml.safe_load((ROOT / "roles/gates/defaults/main.yml").read_text())
    root = "/var/lib/sparklanes/releases/{{ gates_release }}"
    assert (defaults["__gates_kept_bank"], defaults["__gates_kept_note"]) == (f"{root}/bank.json.gz", f"{root}/judged.json")
    names = [task["name"] for task in tasks]
    assert names.index("Judge teacher forcing") < names.index(kept["name"])


ALIVE = """
- ansible.builtin.set_fact:
    gates_probe: {facts: {}}
"""
SCORE = """
- run_once: true
  ansible.builtin.set_fact:
    gates_forcing: "{{ stub_forcing | combine({'bank': stub_name}) }}"
- run_once: true
  ansible.builtin.debug:
    msg: "scored with {{ gates_bank }} and {{ gates_teacher_forcing_limits | to_json }}"
"""
PLAY = """
- hosts: sparks
  gather_facts: false
  any_errors_fatal: true
  tasks:
    - ansible.builtin.include_role: {name: gates, tasks_from: quality}
    - {run_once: true, delegate_to: localhost, ansible.builtin.copy: {src: "{{ later }}", dest: "{{ banks }}/tiny.json.gz", mode: "0600"}}
    - ansible.builtin.include_role: {name: gates, tasks_from: prove}
      vars: &noted
        gates_judged: "{{ lookup('ansible.builtin.file', __gates_kept_note) | from_json if inventory_hostname == 's1' else {} }}"
    - {run_once: true, ansible.builtin.debug: {msg: "first: {{ gates_restored.status }} {{ gates_restored.words }}"}}
    - {run_once: true, ansible.builtin.file: {path: "{{ __gates_kept_bank }}", state: absent}}
    - {run_once: true, ansible.builtin.file: {path: "{{ gates_receipts }}/bank-of-the-restore.json.gz", state: absent}}
    - ansible.builtin.include_role: {name: gates, tasks_from: prove}
      vars: {<<: *noted, stub_forcing: "{{ stub_differs }}"}
    - {run_once: true, ansible.builtin.debug: {msg: "second: {{ gates_restored.status }} {{ gates_restored.words }}"}}
"""


def test_a_launch_keeps_its_bank_and_a_restore_takes_it(tmp_path: Path) -> None:
    """The tasks themselves, with stand-ins for the engine and for who scores it."""
    role = tmp_path / "roles/gates"
    shutil.copytree(ROOT / "roles/gates", role)
    (role / "tasks/alive.yml").write_text(ALIVE)
    (role / "tasks/score.yml").write_text(SCORE)
    for folder in ("banks", "release", "receipts"):
        (tmp_path / folder).mkdir()
    written(tmp_path / "banks/tiny.json.gz", OWN)
    row = {"id": "TF.BIAS", "host": "sparks", "status": "pass", "found": "x", "expected": "", "remedy": ""}
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "deployment": "sparks",
        "lane_id": "tiny",
        "banks": str(tmp_path / "banks"),
        "later": written(tmp_path / "later.json.gz", LATER),
        "gates_bank_directories": [str(tmp_path / "banks")],
        "gates_teacher_forcing_limits": {"sys_rms": 0.1},
        "gates_release": "a" * 12,
        "gates_api": {},
        "gates_specs": {},
        "gates_lanes": {},
        "gates_manifest": {"lane": "tiny"},
        "gates_receipts": str(tmp_path / "receipts"),
        "__gates_kept_bank": str(tmp_path / "release/bank.json.gz"),
        "__gates_kept_note": str(tmp_path / "release/judged.json"),
        "stub_name": banks.named(OWN),
        "stub_forcing": {"verdict": "pass", "reason": "", "checks": [row]},
        "stub_differs": {"verdict": "fail", "reason": "off", "checks": [{**row, "status": "fail"}]},
    }
    inventory = {"all": {"children": {"sparks": {"hosts": {"s1": {}, "s2": {}}, "vars": common}}}}
    (tmp_path / "inventory.json").write_text(json.dumps(inventory))
    (tmp_path / "play.yml").write_text(PLAY)
    command = ["ansible-playbook", "-i", str(tmp_path / "inventory.json"), str(tmp_path / "play.yml")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "release/judged.json").read_text()) == NOTE
    said = " ".join(done.stdout.replace("''", "'").split())
    limits = '{"sys_rms": 0.1}'
    wanted = [
        f"scored with {tmp_path}/banks/tiny.json.gz and {limits}",
        f"scored with {tmp_path}/receipts/bank-of-the-restore.json.gz and {limits}",
        f"first: restored-judged serves again: alive, and within the noise of its bank ({NOTE['bank']}).",
        f"scored with {tmp_path}/banks/tiny.json.gz and {limits}",
        "second: restored runs again, restored, not judged: it differs (TF.BIAS) where it was compared with bank "
        f"{banks.named(LATER)}, not with bank {NOTE['bank']}, which its own launch was judged with: it could not be had from s1:{tmp_path}/release/bank.json.gz",
    ]
    for text in wanted:
        assert text in said, done.stdout
        said = said.partition(text)[2]
