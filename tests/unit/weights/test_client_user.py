# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The Hub's client runs as a user of its own, writes into one folder, and leads root nowhere by what it leaves there."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.jobs import runner as jobs_runner
from ansible.module_utils.sparklanes.weights import client_user
from ansible.module_utils.sparklanes.weights.client_user import ROOM, ClientUser
from ansible.module_utils.sparklanes.weights.digest import Arrival
from ansible.module_utils.sparklanes.weights.home import LeadsAway, private
from ansible.module_utils.sparklanes.weights.hub import client_environment
from ansible.module_utils.sparklanes.weights.model import StagingError
from ansible.module_utils.sparklanes.weights.tools import Tool, own_folder
from conftest import RunModule
from platforms import needs_root
from staging_nodes import Node, Start, hub, same, source

__all__ = ["hub", "source"]  # fixtures
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def incoming() -> Iterator[Path]:
    """Where another user can pass through, which pytest's own folders are not."""
    top = Path(tempfile.mkdtemp(prefix="sparklanes-client-", dir="/var/tmp"))
    top.chmod(0o755)
    private(top / ".tiny.incoming")
    yield top / ".tiny.incoming"
    shutil.rmtree(top)


@pytest.fixture(params=[pytest.param("nobody", marks=needs_root), ""])
def user(request: pytest.FixtureRequest) -> ClientUser:
    return ClientUser.of(request.param)


def run(user: ClientUser, program: str, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = user.command(["/usr/bin/python3", "-c", program, *args])
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def leave(user: ClientUser, path: Path, text: str = "{}") -> None:
    """A file of the client's, in its room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.chown(path, user.uid, user.gid)


@needs_root
def test_the_client_has_nothing_of_roots_and_writes_to_its_room_alone(incoming: Path) -> None:
    user = ClientUser.of("nobody")
    room = user.room(incoming)
    (incoming.parent / "model").mkdir()
    kept = own_folder("config.json", incoming)
    kept.mkdir(mode=0o700)
    (kept / "file").write_text("ours")
    program = """
import json, os, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
def can(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
print(json.dumps({"uid": os.getresuid(), "gid": os.getresgid(), "groups": os.getgroups(), "nnp": int(status["NoNewPrivs"]),
    "caps": [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")], "can": [can(path) for path in sys.argv[1:]],
    "listed": os.access(sys.argv[2], os.R_OK)}))
"""
    places = [room / "x", incoming / "x", kept / "file", incoming.parent / "model/x", Path("/var/lib/x")]
    told = json.loads(run(user, program, *map(str, places)).stdout)
    assert told["uid"] == [NOBODY.pw_uid] * 3
    assert told["gid"] == [NOBODY.pw_gid] * 3
    assert told["groups"] in ([], [NOBODY.pw_gid])
    assert (told["nnp"], told["caps"]) == (1, [0] * 5)
    assert told["can"] == [True, False, False, False, False]
    assert not incoming.stat().st_mode & 0o027


@needs_root
def test_it_ends_with_whoever_started_it(incoming: Path) -> None:
    user = ClientUser.of("nobody")
    script = "import subprocess, sys, time; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", script, *user.command(["sleep", "60"])], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    limit = time.monotonic() + 30
    while Path(f"/proc/{child}/comm").read_text().strip() != "sleep":
        assert time.monotonic() < limit
        time.sleep(0.02)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while Path(f"/proc/{child}").exists() and "State:\tZ" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < limit
        time.sleep(0.02)


@needs_root
def test_a_job_that_ends_ends_it_too(incoming: Path) -> None:
    tool, codes = Tool(threading.Event()), []

    def work() -> None:
        try:
            codes.append(tool(ClientUser.of("nobody").command(["sleep", "60"]), dict(os.environ)))
        except Exception:  # it was cancelled
            codes.append((0, ""))

    thread = threading.Thread(target=work)
    thread.start()
    while not tool.running:
        time.sleep(0.02)
    time.sleep(0.3)
    tool.end()
    thread.join(30)
    assert codes


def test_what_it_leaves_is_taken_over_and_hashed_as_ours(incoming: Path, user: ClientUser) -> None:
    room = user.room(incoming)
    leave(user, room / "sub/config.json")
    (room / "sub/config.json").chmod(0o6777)
    came = user.take_over(incoming, "sub/config.json")
    found = came.stat()
    assert (came.read_text(), found.st_uid, found.st_mode & 0o7777) == ("{}", os.geteuid(), 0o600)
    assert came == own_folder("sub/config.json", incoming) / "file"
    with Arrival(came) as arrival:
        assert arrival.size == 2
    assert not (room / "sub/config.json").exists()


def test_nobody_can_hold_a_file_open_that_was_taken_over(incoming: Path, user: ClientUser) -> None:
    room = user.room(incoming)
    leave(user, room / "config.json")
    with (room / "config.json").open("a"):
        came = user.take_over(incoming, "config.json")
        with pytest.raises(StagingError, match="something still writes to it"), Arrival(came):
            pass


def secret(incoming: Path) -> Path:
    """A file of the host, in a folder of its own."""
    found = incoming.parent / "etc/config.json"
    found.parent.mkdir()
    found.write_text("root's")
    return found


def other_names(room: Path, found: Path) -> None:
    os.link(found, room / "config.json")


TRICKS: list[tuple[str, str, Callable[[Path, Path], Any]]] = [
    ("link", "config.json", lambda room, found: (room / "config.json").symlink_to(found)),
    ("linked folder", "sub/config.json", lambda room, found: (room / "sub").symlink_to(found.parent)),
    ("hard link", "config.json", other_names),
    ("pipe", "config.json", lambda room, _: os.mkfifo(room / "config.json")),
    ("folder", "config.json", lambda room, _: (room / "config.json").mkdir()),
    ("nothing", "config.json", lambda room, _: None),
]


@pytest.mark.parametrize(("name", "trick"), [one[1:] for one in TRICKS], ids=[one[0] for one in TRICKS])
def test_what_it_leaves_leads_root_nowhere(
    incoming: Path, user: ClientUser, name: str, trick: Callable[[Path, Path], Any]
) -> None:
    room, found = user.room(incoming), secret(incoming)
    trick(room, found)
    with pytest.raises((StagingError, LeadsAway)):
        user.take_over(incoming, name)
    assert (found.read_text(), found.stat().st_uid) == ("root's", os.geteuid())
    assert not (own_folder(name, incoming) / "file").exists()


@needs_root
def test_a_file_of_somebody_else_is_none_of_the_clients(incoming: Path) -> None:
    user = ClientUser.of("nobody")
    (user.room(incoming) / "config.json").write_text("root's")
    with pytest.raises(StagingError, match="no file of the client's own"):
        user.take_over(incoming, "config.json")


def test_what_is_no_room_of_this_user_goes(incoming: Path, user: ClientUser) -> None:
    found = secret(incoming)
    (incoming / ROOM).symlink_to(found.parent)
    room = user.room(incoming)
    assert (room.is_symlink(), room.stat().st_uid) == (False, user.uid)
    assert (found.read_text(), found.parent.stat().st_uid) == ("root's", os.geteuid())
    leave(user, room / "x")
    assert [path.name for path in user.room(incoming).iterdir()] == ["x"], "an interrupted download goes on"
    if user.other:
        assert list(ClientUser.of("").room(incoming).iterdir()) == []


def test_only_what_a_killed_client_left_half_is_swept(incoming: Path, user: ClientUser) -> None:
    room, found = user.room(incoming), secret(incoming)
    half = found.with_name("a.incomplete")
    half.write_text("somebody's")
    (room / "linked").symlink_to(found.parent)
    leave(user, room / ".cache/huggingface/download/x.1.incomplete")
    leave(user, room / ".cache/huggingface/download/x.metadata")
    user.sweep(incoming)
    assert half.exists()
    assert sorted(path.name for path in (room / ".cache/huggingface/download").iterdir()) == ["x.metadata"]
    user.sweep(incoming.parent / "none")


def test_a_user_that_is_not_there_is_said_with_how_to_make_it() -> None:
    with pytest.raises(StagingError, match=r"useradd --system .* no-such-user"):
        ClientUser.of("no-such-user")


def test_without_setpriv_it_does_not_run_as_root_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_user.shutil, "which", lambda name: None)
    with pytest.raises(StagingError, match="setpriv is not installed"):
        ClientUser("nobody", os.geteuid() + 1, 1).command(["hf"])


def test_the_client_sees_no_password_of_pip_and_no_home_of_roots() -> None:
    base = {"PIP_INDEX_URL": "https://u:p@i", "HOME": "/root", "TMPDIR": "/root/tmp", "https_proxy": "http://p"}
    made = client_environment("https://h", "tok", Path("/in/client/.home"), base)
    assert not any(name.startswith("PIP_") for name in made)
    assert (made["HOME"], made["TMPDIR"], made["https_proxy"]) == ("/in/client/.home", "/in/client", "http://p")


# The whole way


@pytest.fixture
def reachable(run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A Spark whose folders another user can pass through."""
    top = Path(tempfile.mkdtemp(prefix="sparklanes-client-", dir="/var/tmp"))
    top.chmod(0o755)
    monkeypatch.setattr(jobs_runner, "SYSTEMD", top / "no-systemd")
    node = Node(top / "s1", run_module, "s1")
    yield node
    node.end()
    shutil.rmtree(top)


@needs_root
def test_a_model_is_fetched_by_the_clients_user_and_ends_as_roots(reachable: Node, hub: Start, source: Path) -> None:
    endpoint, revision = hub()
    told = reachable.root / "told"
    told.mkdir(mode=0o777)
    told.chmod(0o777)
    hf = next(reachable.root.glob("venvs/*/bin/hf"))
    hf.write_text(f"{hf.read_text()}open('{told}/' + file, 'w').write(f'{{os.getuid()}} {{os.environ.get(\"HF_TOKEN\")}}')\n")
    result = reachable.stage(revision, endpoint=endpoint, hub_user="nobody", token="secret-1", token_over_http=True)
    assert result["msg"] == ""
    assert result["staged"]
    assert {path.read_text() for path in told.iterdir()} == {f"{NOBODY.pw_uid} secret-1"}
    assert {path.name for path in told.iterdir()} == {path.name for path in source.iterdir()}
    for path in (reachable.path, *reachable.path.iterdir()):
        assert (path.stat().st_uid, path.stat().st_mode & 0o7022) == (0, 0), path
    assert same(source, reachable.path)
    assert [path.name for path in reachable.path.parent.iterdir()] == ["tiny"], "nothing of the client's is left"
    assert not reachable.ask(revision, endpoint=endpoint, hub_user="nobody")["changed"]


@needs_root
def test_where_the_clients_user_can_not_reach_it_is_said_with_what_to_write(reachable: Node, hub: Start) -> None:
    endpoint, revision = hub()
    reachable.path.parent.mkdir(mode=0o700)
    failed = reachable.stage(revision, endpoint=endpoint, hub_user="nobody")
    assert "user nobody, as whom the Hub's client runs, can't reach" in failed["msg"]
    assert "model_weights_hub_user: root" in failed["msg"]
    assert reachable.stage(revision, endpoint=endpoint, hub_user="root")["staged"]
    shutil.rmtree(reachable.path)
    assert "there is no user" in reachable.stage(revision, endpoint=endpoint, hub_user="no-such-user")["msg"]
