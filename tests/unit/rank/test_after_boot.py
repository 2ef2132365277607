from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import boot_policy
import pytest
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.jobs import payload
from ansible.module_utils.sparklanes.rank import after_boot
from ansible.module_utils.sparklanes.release.store import Store
from ansible.module_utils.sparklanes.release.transaction import DeploymentState, Transaction
from conftest import ROOT, RunModule
from fake_systemd import FakeSystemd
from test_rank import IMAGE, RELEASE

GOOD = DeploymentState(status="serving", lane="tiny", current=RELEASE, last_good=RELEASE, last_good_lane="tiny")
OPEN = Transaction("t1", "reboot", "desk", 1.0, 1.0, 900.0)
UNIT = (ROOT / "roles/spark_boot/files/sparklanes-boot.service").read_text()


def state(**changes: Any) -> DeploymentState:
    return DeploymentState(**{**GOOD.to_dict(), "deaths": (), **changes})


@pytest.mark.parametrize(
    ("policy", "found", "transaction", "release", "words"),
    [
        ("stay_down", GOOD, None, "", "stays down by policy"),
        ("launch_last_good", GOOD, None, RELEASE, "passed all gates"),
        ("launch_last_good", state(status="restored"), None, RELEASE, "starts release"),
        ("launch_last_good", GOOD, OPEN, "", "transaction t1 of desk is open in phase 'reboot'"),
        ("stay_down", state(status="stopped", current=""), OPEN, "", "transaction t1"),
        ("launch_last_good", state(status="stopped", current=""), None, "", ""),
        ("launch_last_good", state(status="failed", current=""), None, "", ""),
        ("launch_last_good", state(status="serving-unbanked", last_good=""), None, "", "only what passed all gates"),
        ("launch_last_good", state(status="suspect"), None, "", "served as suspect"),
        ("launch_last_good", state(last_good="2" * 12), None, "", "only what passed all gates"),
        ("launch_last_good", state(deaths=("a", "b")), None, "", "2 deaths were not explained"),
        ("launch_last_good", state(deaths=("a",)), None, RELEASE, "starts"),
        ("launch_last_good", DeploymentState(), None, "", ""),
    ],
)
def test_what_starts_by_itself(
    policy: str, found: DeploymentState, transaction: Transaction | None, release: str, words: str
) -> None:
    decided, sentence = after_boot.decide(policy, found, transaction)
    assert decided == release
    assert words in sentence
    assert bool(sentence) == bool(words)


class Spark:
    """A Spark after a power cut: the archive as the unit runs it, with a fake Docker in its path."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.lib, self.report, self.settings = tmp / "lib", tmp / "run/boot.json", tmp / "boot.json"
        (tmp / "after_boot.pyz").write_bytes(payload.archive("rank.after_boot"))
        (tmp / "bin").mkdir()
        (tmp / "bin/docker").symlink_to(ROOT / "tests/unit/fake_docker.py")
        (tmp / "docker.json").write_text(json.dumps({"containers": [], "calls": [], "image": IMAGE}))
        weights = tmp / "weights"
        weights.mkdir()
        spec = {
            "deployment": "sparks", "container": "sparklanes-sparks-rank1", "image": IMAGE, "entrypoint": None, "command": ["serve"],
            "env": {}, "secret_env": ["VLLM_API_KEY"], "options": {"network": "host"},
            "mounts": [{"source": str(weights), "target": "/models/tiny", "read_only": True}],
            "labels": {"sparklanes.deployment": "sparks", "sparklanes.release": RELEASE, "sparklanes.rank": "1"},
        }  # fmt: skip
        store = Store("sparks", str(self.lib))
        store.release_folder(RELEASE).mkdir(parents=True)
        (store.release_folder(RELEASE) / "rank.json").write_text(json.dumps(spec))
        store.folder.mkdir(parents=True)
        store.state_path.write_text(json.dumps(GOOD.to_dict()))

    def boot(self, policy: str, **environ: str) -> tuple[int, dict[str, Any], str]:
        self.settings.write_text(json.dumps({"policy": policy}))
        done = subprocess.run(
            [sys.executable, "-I", self.tmp / "after_boot.pyz", self.settings, self.report, self.lib, self.tmp / "log"],
            env={
                "PATH": f"{self.tmp / 'bin'}:{os.environ['PATH']}",
                "FAKE_DOCKER_STATE": str(self.tmp / "docker.json"),
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        report = json.loads(self.report.read_text()) if self.report.exists() else {}
        return done.returncode, report, done.stdout + done.stderr

    def calls(self) -> list[str]:
        return [call[0] for call in json.loads((self.tmp / "docker.json").read_text())["calls"]]


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path)


def test_stay_down_starts_nothing_and_says_what_served(spark: Spark) -> None:
    code, report, out = spark.boot("stay_down")
    assert code == 0, out
    assert [entry["started"] for entry in report["deployments"]] == [False]
    assert f"release {RELEASE} of lane tiny served before" in out
    assert spark.calls() == []


def test_launch_last_good_starts_this_rank_from_its_frozen_spec(spark: Spark) -> None:
    code, report, out = spark.boot("launch_last_good", VLLM_API_KEY="s3cret")
    assert code == 0, out
    assert [entry["started"] for entry in report["deployments"]] == [True]
    assert spark.calls().count("start") == 1
    assert json.loads((spark.lib / "engine-boots.json").read_text())["boots"] == 1
    code, report, out = spark.boot("launch_last_good", VLLM_API_KEY="s3cret")
    assert code == 0, out
    assert spark.calls().count("create") == 1, "a rank that runs is left alone"


def test_a_rank_whose_secret_is_nowhere_stays_down_and_says_so(spark: Spark) -> None:
    code, report, out = spark.boot("launch_last_good")
    assert code == 1
    assert report["deployments"][0]["failed"]
    assert "VLLM_API_KEY" in out
    assert "create" not in spark.calls()


def test_two_deployments_that_both_seem_to_serve_both_stay_down(spark: Spark) -> None:
    stale = Store("pair", str(spark.lib))
    stale.folder.mkdir(parents=True)
    stale.state_path.write_text(json.dumps(GOOD.to_dict()))
    code, report, out = spark.boot("launch_last_good", VLLM_API_KEY="s3cret")
    assert code == 1
    assert [entry["started"] for entry in report["deployments"]] == [False, False]
    assert "sparks is recorded as serving on this Spark too" in out
    assert "create" not in spark.calls()


@pytest.mark.parametrize("broken", ["{", '{"id": ', ""])
def test_a_transaction_that_cannot_be_read_may_be_open(spark: Spark, broken: str) -> None:
    Store("sparks", str(spark.lib)).transaction_path.write_text(broken)
    _, report, out = spark.boot("launch_last_good", VLLM_API_KEY="s3cret")
    assert "a transaction may be open" in out
    assert not report["deployments"][0]["started"]
    assert spark.calls() == []


@pytest.mark.parametrize("broken", [{"deaths": 3}, {"status": "serving", "current": ["x"], "last_good": ["x"]}])
def test_a_broken_state_stays_down_and_the_others_are_still_told(spark: Spark, broken: dict[str, Any]) -> None:
    other = Store("a-first", str(spark.lib))
    other.folder.mkdir(parents=True)
    other.state_path.write_text(json.dumps(broken))
    code, report, out = spark.boot("stay_down" if "deaths" in broken else "launch_last_good", VLLM_API_KEY="s3cret")
    assert "Traceback" not in out
    assert {entry["deployment"] for entry in report["deployments"]} == {"a-first", "sparks"}
    assert code == 1


UNREAD = ["", "{", "[]", '{"deaths": 3}', '{"status": "serving", "current": ["x"]}']


@pytest.mark.parametrize("policy", after_boot.POLICIES)
@pytest.mark.parametrize("text", UNREAD)
def test_what_is_recorded_and_cannot_be_read_is_said_with_its_file_and_what_to_do(spark: Spark, text: str, policy: str) -> None:
    """A launch refuses such a state too: what it says is what is said here."""
    path = Store("sparks", str(spark.lib)).state_path
    path.write_text(text)
    code, report, out = spark.boot(policy, VLLM_API_KEY="s3cret")
    assert code == 1
    assert out.startswith(f"sparks stays down: {path} can't be read (")
    assert f"Copy it from another rank of the deployment, or move it away (mv {path} {path}.broken)" in out
    assert out.count("can't be read") == 1
    assert report["deployments"][0]["failed"]
    assert spark.calls() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"env": 3}', '{"env": []}', "{}"])
def test_a_frozen_rank_that_cannot_be_read_is_said_with_its_file_and_what_to_do(spark: Spark, text: str) -> None:
    path = Store("sparks", str(spark.lib)).release_folder(RELEASE) / "rank.json"
    path.write_text(text)
    code, _, out = spark.boot("launch_last_good", VLLM_API_KEY="s3cret")
    assert code == 1
    assert str(path) in out
    assert "launch" in out.split(str(path))[1]
    assert "create" not in spark.calls()


def test_a_folder_that_no_launch_made_is_said_and_hides_no_other(spark: Spark) -> None:
    (spark.lib / "deployments/a copy").mkdir()
    code, report, out = spark.boot("launch_last_good", VLLM_API_KEY="s3cret")
    assert code == 1
    assert f"{spark.lib}/deployments/a copy was not made by a launch" in out
    assert "Move it out" in out
    assert [entry["started"] for entry in report["deployments"]] == [False, True]


def test_what_docker_started_by_itself_is_not_joined(spark: Spark) -> None:
    known = json.loads((spark.tmp / "docker.json").read_text())
    known["containers"] = [
        {
            "Id": "f" * 64, "Name": "/by-hand", "Config": {"Image": "vllm", "Labels": {}}, "State": {"Status": "running", "Running": True},
            "HostConfig": {"NetworkMode": "host", "DeviceRequests": [{"Capabilities": [["gpu"]]}]},
        }
    ]  # fmt: skip
    (spark.tmp / "docker.json").write_text(json.dumps(known))
    code, _, out = spark.boot("launch_last_good", VLLM_API_KEY="s3cret")
    assert code == 1
    assert "by-hand runs already" in out
    assert "create" not in spark.calls()


def test_a_spark_that_boots_again_and_again_stops_starting(spark: Spark) -> None:
    """A start that wedges the Spark is followed by a power cycle, and so on."""
    starts = spark.lib / after_boot.STARTS
    code, _, out = spark.boot("launch_last_good", VLLM_API_KEY="s3cret")
    assert code == 0, out
    (first,) = json.loads(starts.read_text())["starts"]
    assert first["release"] == RELEASE

    def boots(*ages: int) -> None:
        starts.write_text(json.dumps({"starts": [{**first, "at": first["at"] - age, "boot_id": f"b{age}"} for age in ages]}))

    boots(600, 1200)
    code, report, out = spark.boot("launch_last_good", VLLM_API_KEY="s3cret")
    assert code == 1
    assert "2 times within 2 hours" in out
    assert report["deployments"][0]["failed"]
    boots(600, 9000)  # one of them long ago
    code, _, out = spark.boot("launch_last_good", VLLM_API_KEY="s3cret")
    assert code == 0, out
    starts.write_text('{"starts": [3, {"at": "x"}], "else": 1}')
    assert spark.boot("launch_last_good", VLLM_API_KEY="s3cret")[0] == 0


@pytest.mark.parametrize("policy", ["", "launch", "stay-down"])
def test_an_unknown_policy_starts_nothing(spark: Spark, policy: str) -> None:
    code, report, out = spark.boot(policy)
    assert code == 1
    assert report == {}
    assert "Nothing was started" in out


def test_the_archive_is_the_same_each_time_and_holds_only_what_is_needed() -> None:
    assert payload.archive("rank.after_boot") == payload.archive("rank.after_boot")
    names = set(payload.source_texts("rank.after_boot"))
    assert {"rank.after_boot", "rank.run", "release.store", "docker.containers", "common.files"} <= names
    assert not [name for name in names if name.startswith("quality.")]
    assert "rank.spec" in names  # a rank's command is made by it


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    made = FakeSystemd(tmp_path, boot_policy.UNIT)
    monkeypatch.setattr(commands, "run", made.run)
    return made


def test_the_unit_is_laid_down_enabled_and_never_started(tmp_path: Path, run_module: RunModule, systemd: FakeSystemd) -> None:
    wish = {"policy": "stay_down", "unit": UNIT, "root": str(tmp_path)}
    said = run_module(boot_policy, wish, check=True)
    assert said["changed"]
    assert not list(tmp_path.iterdir())
    assert run_module(boot_policy, wish)["changed"]
    assert not run_module(boot_policy, wish)["changed"]
    other = run_module(boot_policy, {**wish, "policy": "launch_last_good"})
    assert other["actions"] == [f"Write {after_boot.SETTINGS}"]
    assert systemd.calls == [f"enable --no-reload {boot_policy.UNIT}"]
    systemd.active = "activating"  # it may be starting a rank just now
    assert run_module(boot_policy, {"policy": "absent", "root": str(tmp_path)})["changed"]
    assert systemd.calls[1:] == [f"disable --no-reload {boot_policy.UNIT}"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not run_module(boot_policy, {"policy": "absent", "root": str(tmp_path)})["changed"]


def test_a_policy_without_a_unit_is_refused(tmp_path: Path, run_module: RunModule) -> None:
    assert "unit" in run_module(boot_policy, {"policy": "stay_down", "root": str(tmp_path)})["msg"]


def test_a_rank_waits_for_the_fabric_and_says_what_did_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ["lo UNKNOWN 127.0.0.1/8", "lo UNKNOWN 127.0.0.1/8\nenp1s0f0np0 UP 192.168.100.11/24"]
    clock = {"now": 0.0}
    monkeypatch.setattr(commands, "run", lambda *_: (0, shown[min(len(shown) - 1, int(clock["now"] // 2))], ""))
    monkeypatch.setattr(after_boot.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(after_boot.time, "sleep", lambda seconds: clock.update(now=clock["now"] + seconds))
    assert after_boot.wait_for_address("192.168.100.11") == ""
    assert clock["now"] == 2
    assert after_boot.wait_for_address("192.168.100.1") == "its fabric address 192.168.100.1 is on no interface"
    assert clock["now"] < 200
    assert after_boot.wait_for_address("") == ""
