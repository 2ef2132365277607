# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Staging from end to end on this machine: the module, its detached job, a Hub, a peer's rsync daemon.

The Hub is sandbox/hub.py and rsync is the real one. Only the Hub's client is stood in for, by a few lines that
download by name: the real one needs a package index, and runs in the sandbox.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import model_stage
import pytest
from ansible.module_utils.sparklanes.gpu import occupied
from ansible.module_utils.sparklanes.jobs import runner as jobs_runner
from ansible.module_utils.sparklanes.weights import pace as weights_pace
from ansible.module_utils.sparklanes.weights import stage as weights_stage
from ansible.module_utils.sparklanes.weights.chain import lend as lending
from checkpoints import SECOND, flip, hub_cache, rot
from conftest import RunModule, free_port
from staging_nodes import LOCK, Node, Start, hub, same, source

__all__ = ["hub", "source"]  # fixtures


@pytest.fixture
def nodes(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Node]]:
    monkeypatch.setattr(jobs_runner, "SYSTEMD", tmp_path / "no-systemd")
    made = [Node(tmp_path / name, run_module, name) for name in ("s1", "s2")]
    yield made
    for node in made:
        node.end()


def test_check_mode_on_a_virgin_node_gives_the_plan(nodes: list[Node]) -> None:
    result = nodes[0].ask("c" * 40, check=True, endpoint="http://127.0.0.1:9")
    assert (result["changed"], result["staged"]) == (True, False)
    assert result["plan"][0].startswith(f"model ({nodes[0].path}): take acme/tiny from http://127.0.0.1:9, size not known yet; ")
    assert result["actions"][0].startswith("s1 WEIGHTS.REVISION: ")
    assert not (nodes[0].root / "jobs").exists()


def test_fetch_then_nothing_to_do(nodes: list[Node], hub: Start, source: Path) -> None:
    endpoint, revision = hub("--token", "s3cr3t")
    first = nodes[0].stage(revision, endpoint=endpoint, token="s3cr3t", guards={"expect": {"shards": 3, "tensors": 12}})
    assert first["msg"] == ""
    assert (first["changed"], first["staged"]) == (True, True)
    assert same(source, nodes[0].path), "the model's files and nothing else"
    assert not list(nodes[0].path.parent.glob(".*")), "nothing is left beside it"
    again = nodes[0].ask(revision, endpoint="http://127.0.0.1:9")
    assert (again["changed"], again["staged"], "job" in again) == (False, True, False)
    for file in nodes[0].root.rglob("*"):
        assert not file.is_file() or b"s3cr3t" not in file.read_bytes(), file


@pytest.mark.parametrize(
    "endpoint",
    ["http://hub.example", "http://10.9.8.7:8080", "http://[fd00::1]/", "hub.example", "ftp://hub.example", "http://["],
)
def test_a_token_goes_nowhere_without_tls_unless_somebody_says_so(nodes: list[Node], endpoint: str) -> None:
    refused = nodes[0].ask("c" * 40, endpoint=endpoint, token="s3cr3t", check=True)
    assert refused["failed"]
    assert "without TLS" in refused["msg"]
    assert "model_weights_token_over_http: true" in refused["msg"]
    assert "s3cr3t" not in refused["msg"]
    assert not nodes[0].ask("c" * 40, endpoint=endpoint, token="s3cr3t", token_over_http=True, check=True).get("failed")
    assert not nodes[0].ask("c" * 40, endpoint=endpoint, check=True).get("failed"), "without a token there is nothing to keep"


@pytest.mark.parametrize("endpoint", ["https://hub.example", "http://127.0.0.1:9", "http://localhost:9", "http://[::1]:9"])
def test_a_token_goes_by_tls_and_to_this_machine(nodes: list[Node], endpoint: str) -> None:
    assert not nodes[0].ask("c" * 40, endpoint=endpoint, token="s3cr3t", check=True).get("failed")


def test_a_password_for_pip_is_in_no_file(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub()
    done = nodes[0].stage(revision, endpoint=endpoint, pip_env={"PIP_INDEX_URL": "https://me:s3cr3t@a.example/simple"})
    assert done["staged"]
    for file in nodes[0].root.rglob("*"):
        assert not file.is_file() or b"s3cr3t" not in file.read_bytes(), file


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pip_args": ["--index-url=https://me:s3cr3t@a.example/simple"]}, "give it as pip_env"),
        ({"pip_env": {"LD_PRELOAD": "/x"}}, "expected variables of pip"),
        ({"endpoint": "https://me:s3cr3t@hub.example"}, "endpoint holds a password"),
        (
            {"source": "mirror", "mirror": {"urls": {"model": "https://me:s3cr3t@m.example/x"}}},
            "mirror.urls.model holds a password",
        ),
    ],
)
def test_a_secret_in_the_wrong_place_is_refused_before_a_job_writes_it_down(
    nodes: list[Node], given: dict[str, Any], says: str
) -> None:
    refused = nodes[0].ask("c" * 40, **{"endpoint": "https://hub.example", **given})
    assert refused["failed"]
    assert says in refused["msg"]
    assert "s3cr3t" not in refused["msg"]
    assert not (nodes[0].root / "jobs").exists()


def test_the_code_of_a_model_is_told_with_its_hashes(nodes: list[Node], hub: Start, source: Path) -> None:
    code = source / "modeling_tiny.py"
    code.write_text("# code that an engine runs where its lane trusts it\n")
    endpoint, revision = hub()
    assert nodes[0].ask(revision, state="planned")["models"][0]["code"] == {}
    nodes[0].stage(revision, endpoint=endpoint)
    looked = nodes[0].ask(revision, state="planned")["models"][0]
    assert looked["code"] == {code.name: hashlib.sha256(code.read_bytes()).hexdigest()}


def test_a_refused_token_says_what_to_do(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub("--token", "s3cr3t")
    result = nodes[0].stage(revision, endpoint=endpoint)
    assert result["failed"]
    assert "access denied (401). Accept the model's terms" in result["msg"]


def test_files_that_are_there_are_read_not_fetched(nodes: list[Node], hub: Start, source: Path) -> None:
    endpoint, revision = hub()
    shutil.copytree(source, nodes[0].path)
    (nodes[0].path / SECOND).unlink()
    result = nodes[0].stage(revision, endpoint=endpoint)
    assert [action.split(" of ")[0].split(" (")[0] for action in result["actions"]] == ["read 4 files", "fetched 1 files"]
    assert same(source, nodes[0].path)


@pytest.mark.parametrize("who", ["a program", "one that sets the mtime back", "the disk"])
def test_a_flipped_bit_is_found_and_the_file_replaced(nodes: list[Node], hub: Start, source: Path, who: str) -> None:
    endpoint, revision = hub()
    nodes[0].stage(revision, endpoint=endpoint)
    if who == "the disk":
        rot(nodes[0].path / SECOND, nodes[0].root / "staged")
    else:
        flip(nodes[0].path / SECOND, who != "a program")
    quick = nodes[0].ask(revision, check=True)
    assert quick["staged"] is (who == "the disk"), "size and times are all that quick looks at"
    result = nodes[0].stage(revision, endpoint=endpoint, verify="full")
    assert result["staged"]
    bad = next(action for action in result["actions"] if action.startswith("replaced a bad file"))
    assert f"{nodes[0].path}/{SECOND}: hash " in bad
    assert hashlib.sha256((source / SECOND).read_bytes()).hexdigest()[:16] in bad
    assert same(source, nodes[0].path)


def test_a_bad_file_is_kept_for_inspection_where_asked(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub()
    nodes[0].stage(revision, endpoint=endpoint)
    flip(nodes[0].path / SECOND, keep_mtime=True)
    rotten = (nodes[0].path / SECOND).read_bytes()
    for way in ({"endpoint": endpoint, "repair": False}, {"source": "directory"}):
        result = nodes[0].stage(revision, verify="full", **way)
        assert result["failed"]
        assert f"s1 WEIGHTS.CONTENT: {nodes[0].path}/{SECOND}: hash" in result["msg"]
        assert result["checks"][0]["remedy"]
        assert (nodes[0].path / SECOND).read_bytes() == rotten
        assert not nodes[0].ask(revision, state="planned")["staged"]


def test_a_full_read_of_good_files_changes_nothing(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub()
    nodes[0].stage(revision, endpoint=endpoint)
    result = nodes[0].stage(revision, endpoint=endpoint, verify="full")
    assert (result["changed"], result["staged"]) == (False, True)
    assert result["actions"][0].startswith("read 5 files of")


def test_wrong_bytes_from_the_hub_never_get_the_name(nodes: list[Node], hub: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, revision = hub("--corrupt", f"acme/tiny/{SECOND}")
    result = nodes[0].stage(revision, endpoint=endpoint)
    assert result["failed"]
    assert f"s1: {endpoint} sent {SECOND} with" in result["msg"]
    assert "verify the source" in result["msg"]
    assert not (nodes[0].path / SECOND).exists()
    healthy, _ = hub()
    after = nodes[0].stage(revision, endpoint=healthy)
    assert after["staged"]


def test_another_revision_fetches_what_differs_and_removes_what_was_of_the_old(
    nodes: list[Node], hub: Start, source: Path
) -> None:
    (source / "notes.json").write_text("{}")
    endpoint, before = hub()
    nodes[0].stage(before, endpoint=endpoint)
    (nodes[0].path / "mine.txt").write_text("of the user")
    (source / "notes.json").unlink()
    same_size = '{"architectures": ["Ynit"]}'
    assert len(same_size) == (source / "config.json").stat().st_size, "and git's hash is all that the Hub tells of it"
    (source / "config.json").write_text(same_size)
    endpoint, after = hub()
    result = nodes[0].stage(after, endpoint=endpoint)
    assert result["staged"]
    assert any("fetched 1 files" in action for action in result["actions"])
    assert (nodes[0].path / "config.json").read_text() == same_size
    assert any("notes.json, which belonged to revision" in action for action in result["actions"])
    assert not (nodes[0].path / "notes.json").exists()
    assert (nodes[0].path / "mine.txt").exists()


def test_a_guard_that_fails_is_said_before_anything_is_done(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub()
    guards = {"expect": {"tensors": 13}}
    result = nodes[0].stage(revision, endpoint=endpoint, guards=guards)
    assert "12 tensors; expected 13" in result["msg"]
    again = nodes[0].ask(revision, endpoint=endpoint, guards=guards)
    assert again["failed"]
    assert "12 tensors; expected 13" in again["msg"]


def test_what_cannot_fit_is_refused_before_the_first_byte(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub()
    result = nodes[0].stage(revision, endpoint=endpoint, reserve_gib=1 << 30)
    assert result["failed"]
    assert "s1: model needs" in result["msg"]
    assert "are to stay free" in result["msg"]
    assert not nodes[0].path.exists()


def test_a_directory_is_adopted_in_place(nodes: list[Node], source: Path) -> None:
    shutil.copytree(source, nodes[0].path)
    before = {file.name: file.stat() for file in nodes[0].path.iterdir()}
    result = nodes[0].stage("", source="directory")
    assert result["staged"]
    after = {file.name: file.stat() for file in nodes[0].path.iterdir()}
    assert {name: (s.st_ino, s.st_mtime_ns) for name, s in before.items()} == {
        name: (s.st_ino, s.st_mtime_ns) for name, s in after.items()
    }
    flip(nodes[0].path / SECOND, keep_mtime=False)
    assert "WEIGHTS.CONTENT" in nodes[0].stage("", source="directory")["msg"], "what was seen first is what must be"


def test_a_directory_that_is_not_there(nodes: list[Node]) -> None:
    result = nodes[0].ask("", source="directory")
    assert result["failed"]
    assert f"s1: {nodes[0].path} is no folder" in result["msg"]


def test_a_running_job_is_attached_to(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub("--rate-mib", "0.004")
    first = nodes[0].ask(revision, endpoint=endpoint)
    second = nodes[0].ask(revision, endpoint=endpoint)
    assert (first["attached"], second["attached"]) == (False, True)
    other = nodes[0].ask("d" * 40, endpoint=endpoint)
    assert other["failed"]
    assert "is running with other arguments" in other["msg"]
    status = nodes[0].status()
    assert status["running"]
    assert status["heartbeat_age"] < 30


def borrow(node: Node, revision: str, lent: dict[str, Any], secret: str, **args: Any) -> dict[str, Any]:
    chain = {"peers": [{"name": "s1", "url": lent["urls"][0]}], "secret": secret, "patience": 2}
    return node.stage(revision, source="chain", chain=chain, **args)


def test_a_peer_takes_it_from_the_first(nodes: list[Node], hub: Start, source: Path) -> None:
    endpoint, revision = hub()
    nodes[0].stage(revision, endpoint=endpoint)
    lent = nodes[0].lend(revision, free_port(), "once-1")
    assert lent["urls"][0].startswith("rsync://stage-")
    # The beginning of a file from a run that was cut is continued; a wrong beginning is found by the hash.
    for name, content in ((SECOND, (source / SECOND).read_bytes()[:5000]), ("config.json", b"wrong")):
        incoming = nodes[1].path.parent / ".tiny.incoming" / hashlib.sha256(name.encode()).hexdigest()[:16]
        incoming.mkdir(parents=True)
        (incoming / name).write_bytes(content)
    result = borrow(nodes[1], revision, lent, "once-1")
    assert result["msg"] == ""
    assert result["staged"]
    assert same(source, nodes[1].path)
    digests = {node.ask(revision, state="planned")["models"][0]["manifest_sha256"] for node in nodes}
    assert len(digests) == 1
    assert len(digests.pop()) == 64
    again = nodes[0].lend(revision, int(lent["urls"][0].rpartition(":")[2]), "once-2")
    assert not again["changed"], "a second staging joins the first"
    shutil.rmtree(nodes[1].path)
    assert borrow(nodes[1], revision, again, "once-2")["staged"]
    assert nodes[0].keep()["changed"]
    assert not nodes[0].keep()["changed"]
    for file in nodes[0].root.rglob("*"):
        assert not file.is_file() or b"once-" not in file.read_bytes(), file


def test_a_hub_cache_with_odd_names_is_lent_as_it_lies(nodes: list[Node], source: Path) -> None:
    (source / "more stuff").mkdir()
    (source / "more stuff" / "we*rd #[1];ü.json").write_text("{}")
    (source / "twin.json").write_bytes((source / "config.json").read_bytes())
    snapshot = hub_cache(nodes[0].root / "models--acme--tiny", source)
    nodes[0].path = snapshot
    before = sorted(nodes[0].root.joinpath("models--acme--tiny").rglob("*"))
    assert nodes[0].stage("c" * 40, source="directory")["staged"]
    lent = nodes[0].lend("c" * 40, free_port(), "once-1")
    result = borrow(nodes[1], "c" * 40, lent, "once-1")
    assert result["msg"] == ""
    for file in source.rglob("*"):
        if file.is_file():
            copy = nodes[1].path / file.relative_to(source)
            assert copy.read_bytes() == file.read_bytes()
            assert not copy.is_symlink()
    assert sorted(nodes[0].root.joinpath("models--acme--tiny").rglob("*")) == before, "nothing was written into the cache"


def test_model_and_drafter_in_one_job(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub()
    node = nodes[0]
    drafter = {**node.model(revision), "name": "drafter", "path": str(node.root / "models" / "draft")}
    args = {"models": [node.model(revision), drafter], "host": "s1", "reserve_gib": 0, "endpoint": endpoint, "hub_lock": LOCK}
    args |= node.places("staged", "jobs", "venvs")
    started = node.run_module(model_stage, args)
    assert node.status(wait=60)["result"]["staged"], started
    again = node.run_module(model_stage, args)
    assert (again["changed"], [one["staged"] for one in again["models"]]) == (False, [True, True])
    twice = node.run_module(model_stage, {**args, "models": [node.model(revision), node.model(revision)]})
    assert "two models have the same name" in twice["msg"]


def test_without_the_secret_nothing_is_given(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub()
    nodes[0].stage(revision, endpoint=endpoint)
    lent = nodes[0].lend(revision, free_port(), "once-1")
    result = borrow(nodes[1], revision, lent, "guessed")
    assert result["failed"]
    assert "auth failed" in result["msg"]


def test_rot_at_the_lender_does_not_spread(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub()
    nodes[0].stage(revision, endpoint=endpoint)
    rot(nodes[0].path / SECOND, nodes[0].root / "staged")
    lent = nodes[0].lend(revision, free_port(), "once-1")
    result = borrow(nodes[1], revision, lent, "once-1")
    assert result["failed"]
    assert f"s1: has 0 of the 1 files that are lacking here, and gave bad content: sent {SECOND} with" in result["msg"]
    assert not (nodes[1].path / SECOND).exists()


def test_lending_ends_by_itself(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub()
    nodes[0].stage(revision, endpoint=endpoint)
    nodes[0].lend(revision, free_port(), "once-1", idle_seconds=0)
    lending = jobs_runner.Jobs(lambda command: (0, "", ""), nodes[0].root / "jobs", systemd=False)
    limit = time.monotonic() + 30
    while lending.status("lend").running and time.monotonic() < limit:
        time.sleep(0.05)
    assert not lending.status("lend").failed
    assert json.dumps(lending.result("lend")).count("without a request") == 1


def test_a_daemon_left_by_another_staging_is_replaced(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub()
    nodes[0].stage(revision, endpoint=endpoint)
    port = free_port()
    assert nodes[0].lend(revision, port, "once-1", allow=["127.0.0.1"])["changed"]
    assert not nodes[0].lend(revision, port, "once-2", allow=["127.0.0.1"])["changed"]
    wider = nodes[0].lend(revision, port, "once-3", allow=["127.0.0.1", "127.0.0.2"])
    assert wider["changed"]
    assert borrow(nodes[1], revision, wider, "once-3")["staged"]


def test_a_peer_that_has_nothing_and_gets_nothing_is_not_waited_for(nodes: list[Node]) -> None:
    lent = nodes[0].lend("c" * 40, free_port(), "once-1")
    result = borrow(nodes[1], "c" * 40, lent, "once-1")
    assert result["failed"]
    assert f"nobody before this Spark has model ({nodes[1].path}): s1: has nothing of it" in result["msg"]


def test_a_killed_job_is_reported_and_the_next_goes_on(nodes: list[Node], hub: Start) -> None:
    endpoint, revision = hub("--rate-mib", "0.004")
    nodes[0].ask(revision, endpoint=endpoint)
    stage = jobs_runner.Jobs(lambda command: (0, "", ""), nodes[0].root / "jobs", systemd=False)
    stage.stop("stage")
    status = nodes[0].status(wait=20)
    assert status["job_failed"]
    quick, _ = hub()
    result = nodes[0].stage(revision, endpoint=quick)
    assert result["staged"]


def test_what_is_there_is_read_gently_and_what_arrives_has_no_such_limit(
    nodes: list[Node], hub: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(occupied, "look", lambda: occupied.Seen())
    _, revision = hub()
    node = nodes[0]

    def asked(**args: Any) -> tuple[Any, ...]:
        node.jobs.stop("stage")
        assert node.ask(revision, source="chain", chain={"peers": [], "secret": "once"}, **args)["changed"]
        spec = node.jobs.spec("stage")["args"]
        return spec["workers"], spec["rate"], spec["verify_workers"], spec["verify_rate"]

    assert asked() == (2, 0, 2, 1 << 30)
    assert asked(rate_mib=100) == (2, 100 << 20, 2, 100 << 20)
    assert asked(verify_rate_mib=0, verify_workers=8) == (2, 0, 8, 0)
    assert asked(rate_mib=500, verify_rate_mib=0) == (2, 500 << 20, 2, 500 << 20)
    assert "verify_workers is 0" in node.ask(revision, verify_workers=0)["msg"]


def test_another_daemon_on_the_port_is_not_taken_for_ours(nodes: list[Node], tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "other.conf").write_text(f"address = 127.0.0.1\nport = {port}\nuse chroot = no\n")
    other = subprocess.Popen(["rsync", "--daemon", "--no-detach", f"--config={tmp_path}/other.conf"], stdin=subprocess.DEVNULL)
    try:
        while not lending.answers("127.0.0.1", port):
            assert other.poll() is None
        found = nodes[0].lend("c" * 40, port, "once")
    finally:
        other.terminate()
        other.wait()
    assert found["failed"]
    assert f"127.0.0.1 port {port} is served by another rsync daemon; set model_weights_port" in found["msg"]


def test_proxies_of_the_node_reach_the_job_as_secrets() -> None:
    seen = weights_stage.network_settings({"https_proxy": "http://u:p@proxy", "PATH": "/bin", "SSL_CERT_FILE": "/ca"})
    assert seen == {"env:https_proxy": "http://u:p@proxy", "env:SSL_CERT_FILE": "/ca"}


def test_pace_shares_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    class Cancel:
        def wait(self, seconds: float) -> bool:
            waited.append(round(seconds, 3))
            return False

        def is_set(self) -> bool:
            return False

    monkeypatch.setattr(weights_pace.time, "monotonic", lambda: 100.0)
    pace = weights_pace.Pace(1000, Cancel())
    for _ in range(3):
        pace.take(500)
    assert waited == [0.5, 1.0, 1.5]


def test_a_cancelled_read_ends() -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(weights_pace.Cancelled):
        weights_pace.Pace(0, cancel).take(1)


def test_a_hub_cache_is_staged_only_as_its_rank_sees_it(nodes: list[Node], source: Path) -> None:
    """The snapshot alone, mounted, shows links into nothing: known at once, before any of it is read."""
    node = nodes[0]
    snapshot = node.path = hub_cache(node.root / "models--acme--tiny", source)
    alone, whole = ({"mounts": [{"source": str(place), "target": "/models/tiny"}]} for place in (snapshot, snapshot.parents[1]))
    refused = node.ask("c" * 40, source="directory", guards=alone)
    assert refused["failed"]
    assert "WEIGHTS.VISIBLE" in refused["msg"]
    assert "job" not in refused
    assert node.stage("c" * 40, source="directory", guards=whole)["staged"]
    looked = node.ask("c" * 40, source="directory", state="planned", guards=alone)
    assert (looked["staged"], "WEIGHTS.VISIBLE" in "".join(looked["actions"])) == (False, True)
    assert node.ask("c" * 40, source="directory", state="planned", guards=whole)["staged"]


def test_a_dangling_link_is_named_by_the_job_too(nodes: list[Node], source: Path) -> None:
    snapshot = nodes[0].path = hub_cache(nodes[0].root / "models--acme--tiny", source)
    (snapshot / "config.json").resolve().unlink()
    looked = nodes[0].ask("c" * 40, source="directory", state="planned")
    assert "WEIGHTS.MISSING" in "".join(looked["actions"])
    assert "lacks config.json (links that lead nowhere: config.json)" in nodes[0].stage("c" * 40, source="directory")["msg"]


def test_a_cache_is_read_where_it_lies_whatever_the_source_and_never_written_to(
    nodes: list[Node], source: Path, hub: Start
) -> None:
    """The model is there, the drafter is fetched, in one job; no Hub is asked for what is there."""
    endpoint, revision = hub()
    node = nodes[0]
    snapshot = node.path = hub_cache(node.root / "models--acme--tiny", source)
    cached = node.model("c" * 40)
    drafter = {**node.model(revision), "name": "drafter", "path": str(node.root / "models" / "draft")}
    args = {
        "models": [cached, drafter],
        "host": "s1",
        "reserve_gib": 0,
        "endpoint": endpoint,
        "hub_lock": LOCK,
        **node.places("staged", "jobs", "venvs"),
    }
    before = sorted(snapshot.parents[2].glob("models--acme--tiny/**/*"))
    told = node.run_module(model_stage, args, check=True)
    assert told["changed"]
    started = node.run_module(model_stage, args)
    result = node.status(wait=60)["result"]
    assert result["staged"], (started, result)
    assert [action for action in result["actions"] if str(snapshot) in action] == [result["actions"][0]]
    assert result["actions"][0].startswith("read ")
    assert sorted(snapshot.parents[2].glob("models--acme--tiny/**/*")) == before
    assert not node.run_module(model_stage, args)["changed"]


def test_what_a_cache_lost_is_not_fetched_into_it(nodes: list[Node], source: Path, hub: Start) -> None:
    endpoint, _ = hub()
    node = nodes[0]
    snapshot = node.path = hub_cache(node.root / "models--acme--tiny", source)
    assert node.stage("c" * 40, endpoint=endpoint, hub_user="nobody needs it")["staged"]
    (snapshot / SECOND).resolve().unlink()
    looked = node.ask("c" * 40, state="planned")
    assert "Have its owner complete it" in "".join(looked["actions"])
    assert "its folder" in looked["plan"][0]
    failed = node.stage("c" * 40, endpoint=endpoint)
    assert (failed["failed"], failed["staged"]) == (True, False)
    assert SECOND in failed["msg"]
    assert not (snapshot / SECOND).exists()
    assert not list(snapshot.parents[1].rglob("*incoming*"))
    # A bad one neither.
    again = nodes[1]
    spoiled = again.path = hub_cache(again.root / "models--acme--tiny", source)
    flip((spoiled / SECOND).resolve(), keep_mtime=False)
    bad = again.stage("c" * 40, endpoint=endpoint)
    assert "WEIGHTS.CONTENT" in bad["msg"]
    assert "model_weights_use_hub_cache: false" in bad["msg"]


def test_the_next_spark_takes_from_a_cache_that_is_still_being_read(nodes: list[Node], source: Path) -> None:
    snapshot = nodes[0].path = hub_cache(nodes[0].root / "models--acme--tiny", source)
    lent = nodes[0].lend("c" * 40, free_port(), "once-1")
    nodes[0].ask("c" * 40, endpoint="http://127.0.0.1:9")
    result = borrow(nodes[1], "c" * 40, lent, "once-1")
    assert result["msg"] == ""
    assert same(source, nodes[1].path)
    assert nodes[0].status(wait=60)["result"]["staged"]
    assert all(path.is_symlink() for path in snapshot.iterdir())
