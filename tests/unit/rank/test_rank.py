from __future__ import annotations

import hashlib
import http.server
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import rank
import rank_info
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.clock import now
from ansible.module_utils.sparklanes.docker import logs
from ansible.module_utils.sparklanes.docker.containers import Docker
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.rank import run
from ansible.module_utils.sparklanes.release import owned
from ansible.module_utils.sparklanes.release.store import Store
from ansible.module_utils.sparklanes.release.transaction import Transaction
from conftest import RunModule

IMAGE = "registry/engine@sha256:" + "a" * 64
RELEASE = "1" * 12


class Bench:
    """One Spark with a fake Docker: run the module, look at what it did."""

    def __init__(self, tmp_path: Path, run_module: RunModule) -> None:
        self.tmp, self.run_module, self.state = tmp_path, run_module, tmp_path / "docker.json"
        self.state.write_text(json.dumps({"containers": [], "calls": [], "image": IMAGE}))
        self.weights = tmp_path / "weights"
        self.weights.mkdir()
        self.freeze(RELEASE)
        self.store = Store("sparks", str(tmp_path / "lib"))
        self.lock("t1")

    def lock(self, name: str, break_lock: str = "") -> None:
        asked = Transaction(name, "stop", f"{name}@desk", 1.0, 1.0, 900.0, boot=now().boot, beat=now().clock)
        self.store.acquire(asked, now(), break_lock)

    def box(self, **more: Any) -> dict[str, Any]:
        """A running container with the labels of a rank, which nobody here started."""
        labels = {"sparklanes.deployment": "sparks", "sparklanes.release": RELEASE, "sparklanes.rank": "1"}
        made = {
            "Id": "d" * 64,
            "Name": "/sparklanes-sparks-rank1",
            "Config": {"Image": "mine:1", "Labels": labels, "Env": []},
            "State": {"Running": True, "Status": "running"},
            "HostConfig": {},
        }
        state = self.docker()
        state["containers"].append({**made, **more})
        self.state.write_text(json.dumps(state))
        return made

    def touched(self) -> list[list[str]]:
        return [call for call in self.docker()["calls"] if call[0] in ("stop", "rm", "create", "start", "kill")]

    def freeze(self, release: str, **more: Any) -> None:
        spec = {
            "schema": "sparklanes-rank/1",
            "deployment": "sparks",
            "container": "sparklanes-sparks-rank1",
            "image": IMAGE,
            "entrypoint": None,
            "command": ["serve", "/models/tiny"],
            "env": {"A": "1"},
            "secret_env": ["VLLM_API_KEY"],
            "mounts": [{"source": str(self.weights), "target": "/models/tiny", "read_only": True}],
            "options": {"network": "host", "restart": "no"},
            "labels": {"sparklanes.deployment": "sparks", "sparklanes.release": release, "sparklanes.rank": "1"},
            **more,
        }
        folder = Store("sparks", str(self.tmp / "lib")).release_folder(release)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank.json").write_text(json.dumps(spec))

    def docker(self) -> Any:
        return json.loads(self.state.read_text())

    def calls(self, verb: str) -> list[list[str]]:
        return [call for call in self.docker()["calls"] if call[0] == verb]

    def __call__(self, state: str, check: bool = False, **more: Any) -> dict[str, Any]:
        args = {
            "deployment": "sparks",
            "state": state,
            "root": str(self.tmp / "lib"),
            "log_root": str(self.tmp / "log"),
            "stamp": "T1",
            "transaction": "t1",
        }
        if state == "started":
            args |= {"release": RELEASE, "secret_env": {"VLLM_API_KEY": "s3cret"}}
        return self.run_module(rank, {**args, **more}, check=check)


@pytest.fixture
def bench(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path, run_module)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").symlink_to(Path(__file__).parents[1] / "fake_docker.py")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("FAKE_DOCKER_STATE", str(made.state))
    return made


def test_a_rank_starts_once_from_its_frozen_spec(bench: Bench) -> None:
    assert bench("started", check=True)["changed"]
    assert bench.docker()["containers"] == []
    assert bench("started")["changed"]
    assert not bench("started")["changed"]
    assert len(bench.calls("create")) == 1


def test_the_secret_goes_by_name_and_stands_in_no_file(bench: Bench) -> None:
    bench("started")
    assert not any("s3cret" in word for call in bench.docker()["calls"] for word in call)
    bench("stopped")
    written = [path for path in (*bench.tmp.joinpath("log").rglob("*"), *bench.tmp.joinpath("lib").rglob("*")) if path.is_file()]
    assert written
    assert not any("s3cret" in path.read_text() for path in written)


@pytest.mark.parametrize("left", [None, "", "{", "[]"])
def test_a_container_whose_release_was_pruned_leaves_no_secret_behind(bench: Bench, left: str | None) -> None:
    bench("started")
    spec = Store("sparks", str(bench.tmp / "lib")).release_folder(RELEASE) / "rank.json"
    if left is None:
        spec.unlink()
    else:
        spec.write_text(left)
    assert not bench("stopped").get("failed")
    written = [path.read_text() for path in bench.tmp.joinpath("log").rglob("*") if path.is_file()]
    assert len(written) == 2
    assert not any("s3cret" in text for text in written)


def test_a_missing_secret_is_refused_before_anything_starts(bench: Bench) -> None:
    result = bench("started", secret_env={"VLLM_API_KEY": ""})
    assert "VLLM_API_KEY" in result["msg"]
    assert bench.calls("create") == []


def test_stopping_saves_the_log_first_and_never_forces(bench: Bench) -> None:
    bench("started")
    result = bench("stopped")
    assert result["changed"]
    assert Path(result["logs"][0]).read_text() == "the log of /sparklanes-sparks-rank1\n"
    assert next(call for call in bench.docker()["calls"] if call[0] in ("stop", "logs", "rm"))[:3] == ["stop", "--time", "30"]
    assert bench.docker()["containers"] == []
    assert not bench("stopped")["changed"]


def test_a_second_log_of_the_same_transaction_does_not_overwrite_the_first(bench: Bench) -> None:
    for _ in range(2):
        bench("started")
        bench("stopped")
    assert sorted(path.name for path in (bench.tmp / "log" / "sparks" / "T1").glob("*.log")) == ["rank1.2.log", "rank1.log"]


def test_another_release_that_runs_is_not_replaced_behind_its_back(bench: Bench) -> None:
    bench("started")
    bench.freeze("2" * 12)
    result = bench("started", release="2" * 12)
    assert "already runs release 111111111111" in result["msg"]


def test_a_dead_rank_is_replaced_and_its_log_kept(bench: Bench) -> None:
    bench("started")
    state = bench.docker()
    state["containers"][0]["State"] = {"Running": False, "Status": "exited", "ExitCode": 0}
    bench.state.write_text(json.dumps(state))
    assert bench("started")["logs"]
    assert bench.docker()["containers"][0]["State"]["Running"]


def test_a_missing_mount_is_named_and_never_made(bench: Bench) -> None:
    bench.weights.rmdir()
    result = bench("started")
    assert str(bench.weights) in result["msg"]
    assert not bench.weights.exists()
    assert bench.calls("create") == []


def test_a_missing_image_is_not_fetched_in_a_launch(bench: Bench) -> None:
    bench.freeze(RELEASE, image="registry/engine@sha256:" + "b" * 64)
    assert "Run site.yml" in bench("started")["msg"]


def test_an_unfrozen_release_is_refused(bench: Bench) -> None:
    assert "not frozen" in bench("started", release="3" * 12)["msg"]


def test_a_container_of_ours_by_name_only_is_left_alone(bench: Bench) -> None:
    state = bench.docker()
    state["containers"].append(
        {
            "Id": "d" * 64,
            "Name": "/sparklanes-sparks-rank1",
            "Config": {"Image": "x", "Labels": {}},
            "State": {},
            "HostConfig": {},
        }
    )
    bench.state.write_text(json.dumps(state))
    assert "did not make" in bench("started")["msg"]
    assert not bench("stopped")["changed"]
    assert len(bench.docker()["containers"]) == 1


@pytest.mark.parametrize("key", ["container", "image", "mounts", "options", "labels", "env", "secret_env", "command"])
@pytest.mark.parametrize("value", ["missing", None, 5, [5]])
def test_a_spec_that_is_none_starts_nothing_and_is_named(bench: Bench, key: str, value: Any) -> None:
    path = bench.store.release_folder(RELEASE) / "rank.json"
    spec = json.loads(path.read_text())
    del spec[key]
    path.write_text(json.dumps(spec if value == "missing" else {**spec, key: value}))
    result = bench("started")
    assert bench.touched() == []
    assert result["failed"]
    assert "Traceback" not in result["msg"]


def test_a_half_written_spec_starts_nothing_and_is_named(bench: Bench) -> None:
    path = bench.store.release_folder(RELEASE) / "rank.json"
    path.write_text('{"schema": ')
    result = bench("started")
    assert f"{path} can't be read" in result["msg"]
    assert "freezes it anew" in result["msg"]
    assert bench.touched() == []


@pytest.mark.parametrize("how", ["broken", "broken and done", "given back", "unreadable"])
@pytest.mark.parametrize("verb", ["stopped", "started"])
def test_who_lost_the_lock_touches_no_container(bench: Bench, verb: str, how: str) -> None:
    bench("started")
    if how == "unreadable":
        bench.store.transaction_path.write_text('{"id": "t1"}')
    elif how == "given back":
        bench.store.close("t1", now(), {})
    else:
        bench.lock("t2", "t1")
        if how == "broken and done":
            bench.store.close("t2", now(), {})
    before = bench.touched()
    result = bench(verb)
    assert result["failed"]
    assert "No container was touched" in result["msg"]
    assert {"broken": "t2 of t2@desk", "unreadable": "can't be read"}.get(how, "lost the lock") in result["msg"]
    assert bench.touched() == before
    assert bench.docker()["containers"][0]["State"]["Running"]


def test_a_copy_of_a_rank_is_somebody_elses(bench: Bench) -> None:
    """`docker commit` keeps the labels in the image, and whoever runs it has them."""
    bench.box(Name="/my-experiment")
    assert not bench("stopped")["changed"]
    bench("started")
    bench("stopped")
    (left,) = bench.docker()["containers"]
    assert left["Name"] == "/my-experiment"
    assert left["State"]["Running"]


def test_under_our_name_only_the_container_that_was_started_is_ours(bench: Bench) -> None:
    bench("started")
    bench("stopped")
    bench.box()  # ours is gone, and a copy has taken its name
    assert not bench("stopped")["changed"]
    assert "did not make" in bench("started")["msg"]
    assert bench.docker()["containers"][0]["State"]["Running"]


def test_what_version_0_1_started_is_ours_by_name_and_label_and_is_noted(bench: Bench) -> None:
    bench.box()
    assert bench("stopped", check=True)["changed"]
    assert not (bench.store.folder / "container.json").exists()
    assert bench("stopped")["changed"]
    assert json.loads((bench.store.folder / "container.json").read_text())["id"] == "d" * 64


def test_an_attempt_that_ended_before_the_id_was_noted_is_cleaned_up(bench: Bench) -> None:
    bench.store.folder.joinpath("container.json").write_text(json.dumps({"name": "sparklanes-sparks-rank1", "id": ""}))
    bench.box(State={"Running": False, "Status": "created"})
    assert bench("started")["changed"]
    (box,) = bench.docker()["containers"]
    assert box["Id"] != "d" * 64
    assert json.loads((bench.store.folder / "container.json").read_text())["id"] == box["Id"]


@pytest.mark.parametrize("note", ["", "{", "[]", '{"id": 5, "name": "x"}', '{"name": "x"}'])
def test_a_note_that_cannot_be_read_makes_nothing_ours(bench: Bench, note: str) -> None:
    bench("started")
    bench.store.folder.joinpath("container.json").write_text(note)
    before = bench.touched()
    for verb in ("stopped", "started"):
        assert "container.json can't be read" in bench(verb)["msg"]
    assert bench.touched() == before


@pytest.mark.parametrize(
    ("name", "id_", "deployment"),
    [
        ("/sparklanes-sparks-rank1", "d" * 64, "sparks"),
        ("/sparklanes-sparks-rank1", "e" * 64, ""),
        ("/my-experiment", "d" * 64, ""),
        ("/sparklanes-sparks-rank1-copy", "d" * 64, ""),
        ("/sparklanes-other-rank1", "d" * 64, ""),
    ],
)
def test_a_look_tells_a_rank_from_a_copy(bench: Bench, name: str, id_: str, deployment: str) -> None:
    bench.box(Name=name, Id=id_)
    bench.store.folder.joinpath("container.json").write_text(json.dumps({"name": "sparklanes-sparks-rank1", "id": "d" * 64}))
    (box,) = owned.told(Docker(commands.run).containers(), str(bench.tmp / "lib"))
    assert (box.deployment, box.claims, box.serves) == (deployment, "sparks", True)
    check = readiness.strangers(
        "s1", {"containers": [box.to_dict()], "docker": {"version": "28"}, "gpu": {"present": False}}, "sparks"
    )
    assert check.status == ("pass" if deployment else "fail")
    assert deployment or "a copy of a rank of sparks" in check.found


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_health_is_asked_past_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert rank_info.answers(f"http://127.0.0.1:{server.server_port}/health")
        server.shutdown()


def test_a_full_log_disk_keeps_no_rank_from_stopping(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever frees room is not there at night: the end of the log goes into memory, is fetched from there, and the disk is named."""
    spare = bench.tmp / "spare"
    monkeypatch.setattr(run, "SPARE_LOG_ROOT", str(spare))
    monkeypatch.setattr(logs, "free_bytes", lambda path: 0 if str(path).startswith(str(bench.tmp / "log")) else 10**9)
    bench("started")
    result = bench("stopped")
    assert "failed" not in result
    assert bench.docker()["containers"] == []
    (saved,) = result["saved"]
    assert saved["path"] == result["logs"][0] == str(spare / "sparks" / "T1" / "rank1.log")
    assert not saved["whole"]
    assert str(bench.tmp / "log") in saved["problem"]
    assert "the disk is full" in saved["problem"]
    # The next start finds no container of ours in its way.
    assert bench("started")["changed"]


def test_a_log_that_can_not_be_saved_anywhere_is_said_and_the_lane_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "free_bytes", lambda path: 0)
    monkeypatch.setattr(run, "SPARE_LOG_ROOT", str(bench.tmp / "spare"))
    bench("started")
    result = bench("stopped")
    assert result["logs"] == []
    assert result["saved"][0]["path"] == ""
    assert "the disk is full" in result["saved"][0]["problem"]
    assert bench.docker()["containers"] == []


def test_what_was_saved_is_told_also_where_the_rest_failed(bench: Bench) -> None:
    bench("started")
    state = bench.docker()
    state["refuses"] = "rm"
    bench.state.write_text(json.dumps(state))
    result = bench("stopped")
    assert result["failed"]
    assert len(result["logs"]) == 1
    assert result["saved"][0]["whole"]


def test_the_log_of_a_rank_is_saved_while_it_runs_on(bench: Bench) -> None:
    bench("started")
    result = bench("logged")
    assert not result["changed"]
    assert Path(result["saved"][0]["path"]).read_text().startswith("the log of")
    assert bench.docker()["containers"][0]["State"]["Running"]
    assert bench.calls("stop") == bench.calls("rm") == []


def test_an_overlay_whose_bytes_changed_starts_in_no_rank(bench: Bench) -> None:
    """A restore starts what was frozen, and looks at each overlay again: its folder is named by its content."""
    content = b"print('patched')\n"
    overlay = bench.tmp / "overlays" / hashlib.sha256(content).hexdigest() / "patch.py"
    overlay.parent.mkdir(parents=True)
    overlay.write_bytes(content)
    bench.freeze(RELEASE, mounts=[{"source": str(overlay), "target": "/x/patch.py", "read_only": True}])
    assert bench("started")["changed"]
    bench("stopped")
    overlay.write_bytes(content + b"#")
    result = bench("started")
    assert result["failed"]
    assert f"{overlay}: its content is not what its folder is named by" in result["msg"]
    assert bench.docker()["containers"] == []
