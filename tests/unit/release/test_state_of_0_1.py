# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What version 0.1 left on two nodes, serving and in the middle of a launch: this version reads it as what it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.clock import Moment
from ansible.module_utils.sparklanes.common.files import read_json
from ansible.module_utils.sparklanes.docker.containers import parse_inspect
from ansible.module_utils.sparklanes.host import boots
from ansible.module_utils.sparklanes.jobs import state as jobs_state
from ansible.module_utils.sparklanes.rank import after_boot, drift
from ansible.module_utils.sparklanes.release import store as release_store
from ansible.module_utils.sparklanes.release.store import Store
from ansible.module_utils.sparklanes.release.transaction import FAILED, SERVING, DeploymentState, refusal
from conftest import FIXTURES

FROZEN = FIXTURES / "release/state-0.1"
NODES = ("spark-1", "spark-2")
SERVES, WANTED = "47c33df6b66d", "f1f8f82b0c79"


def named(folder: Path) -> set[str]:
    """Paths in list.txt: everything that was there, frozen or not."""
    return {line.split()[3] for line in (folder / "list.txt").read_text().splitlines()}


def tree(tmp_path: Path, when: str, node: str) -> Path:
    """The node as it was: what lay there in the middle of the launch is laid over what lay there before."""
    root = tmp_path / when / node
    shutil.copytree(FROZEN / "serving" / node, root)
    if when != "serving":
        shutil.copytree(FROZEN / when / node, root, dirs_exist_ok=True)
    there = named(FROZEN / when / node)
    for path in [path for path in root.rglob("*") if path.is_file() and path.parent != root]:
        if str(path.relative_to(root)) not in there:
            path.unlink()
    return root


@pytest.fixture(params=NODES)
def node(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def store(root: Path) -> Store:
    return Store("sparks", str(root / "var/lib/sparklanes"))


def container(root: Path) -> Any:
    (entry,) = json.loads((root / "docker-inspect.json").read_text())
    return entry


def test_one_deployment_serves_its_last_good_release(tmp_path: Path, node: str) -> None:
    here = store(tree(tmp_path, "serving", node))
    known = DeploymentState(status=SERVING, lane="sandbox_tiny", current=SERVES, last_good=SERVES, last_good_lane="sandbox_tiny")
    assert here.state() == known
    assert here.all_states() == [known]
    assert here.transaction() is None
    assert not here.transaction_path.exists()
    assert here.releases() == [SERVES]
    assert release_store.unreferenced(here.releases(), here.all_states()) == []


def test_a_launch_that_was_interrupted_is_an_open_transaction(tmp_path: Path, node: str) -> None:
    here = store(tree(tmp_path, "interrupted", node))
    held = here.transaction()
    assert held is not None
    assert (held.phase, held.lane, held.from_release, held.to_release) == ("start", "sandbox_tiny", SERVES, WANTED)
    assert held.id == "20261201T005555Z-2f18f9fb"
    assert refusal(held, "another", 1.0), "it keeps others out"
    assert not refusal(held, held.id, 1.0), "and lets its own go on"
    later = Moment(held.heartbeat + held.lease_seconds + 1, "a boot", 5.0)
    assert held.expired(held.age(later))
    assert here.state().last_good == SERVES
    assert here.releases() == sorted([SERVES, WANTED])
    _, after = here.close(held.id, later, {"status": FAILED, "reason": "interrupted"})
    assert after is not None
    assert (after.status, after.last_good) == (FAILED, SERVES), "and this version can end it"
    assert here.transaction() is None


def test_both_nodes_tell_of_the_same_transaction(tmp_path: Path) -> None:
    first, second = (store(tree(tmp_path, "interrupted", name)).transaction() for name in NODES)
    assert first is not None
    assert second is not None
    assert (first.id, first.to_release) == (second.id, second.to_release)


def test_nothing_starts_by_itself_in_the_middle_of_a_transaction(tmp_path: Path, node: str) -> None:
    for when, starts in (("serving", SERVES), ("interrupted", "")):
        root = tree(tmp_path, when, node)
        assert after_boot.look(after_boot.LAUNCH, "sparks", str(root / "var/lib/sparklanes"))[0] == starts


@pytest.mark.parametrize(("when", "release"), [("serving", SERVES), ("interrupted", WANTED)])
def test_what_runs_is_what_was_frozen(tmp_path: Path, node: str, when: str, release: str) -> None:
    root = tree(tmp_path, when, node)
    (box,) = parse_inspect(json.dumps([container(root)]))
    assert (box.deployment, box.release, box.running) == ("sparks", release, True)
    frozen, manifest = store(root).spec(release), store(root).manifest(release)
    assert frozen is not None
    assert manifest is not None
    assert (frozen["node"], frozen["container"], manifest["lane"]) == (node, box.name, "sandbox_tiny")
    runs = drift.spec_of_inspect(container(root))
    assert [one for one in drift.differences(frozen, runs) if one.what.partition(" ")[0] not in IMAGES_OWN] == []


# Of the image, which is not in the fixture: its environment, which a container shows as its own.
IMAGES_OWN = {"env"}


def test_jobs_that_ended_are_done(tmp_path: Path, node: str) -> None:
    jobs = tree(tmp_path, "serving", node) / "var/lib/sparklanes/jobs"
    told = {path.parent.name: jobs_state.State.from_dict(read_json(path) or {}) for path in jobs.glob("*/state.json")}
    assert set(told) == ({"bank-sparks", "lend", "score-sparks", "stage"} if node == "spark-1" else {"lend", "stage"})
    for name, state in told.items():
        judged = jobs_state.judge(name, state, False, state.beat + 1, state.boot)
        assert judged.finished, name
        # A lender runs until it is told to stop.
        assert judged.error == ("stopped by SIGTERM" if name == "lend" else ""), name


def test_models_and_boots_are_known(tmp_path: Path, node: str) -> None:
    root = tree(tmp_path, "interrupted", node)
    marker = read_json(root / "var/lib/sparklanes/staged/tiny-a9703322/STAGED.json") or {}
    assert (marker["repo"], marker["path"]) == ("sparklanes/tiny", "/var/lib/sparklanes/models/tiny")
    counted = read_json(root / "var/lib/sparklanes/engine-boots.json") or {}
    assert boots.counted(counted, counted["boot_id"]) == 2


def test_the_fixture_holds_no_bytes_of_models_no_secret_and_no_path_of_who_made_it() -> None:
    files = [path for path in FROZEN.rglob("*") if path.is_file()]
    assert len(files) > 60
    assert sum(path.stat().st_size for path in files) < 300 * 1024
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert "/work/" not in text, path
        assert "PRIVATE KEY" not in text, path
