"""The module that tries a netplan file: what it writes when, what it takes back, and that it writes nothing where it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fabric_network
import fabric_network_info
import pytest
from ansible.module_utils.sparklanes.fabric import netplan
from ansible.module_utils.sparklanes.fabric import trial as fabric_trial
from ansible.module_utils.sparklanes.host.ledger import Ledger
from ansible.module_utils.sparklanes.host.restore import report, restore
from ansible.module_utils.sparklanes.host.tree import Tree
from conftest import RunModule
from test_sysctl import lay

A, B = "enp1s0f0np0", "enP2p1s0f0np0"
WANTED = [{"name": A, "address": "192.168.100.11/24"}, {"name": B, "address": "192.168.101.11/24"}]
TEXT = netplan.render(WANTED, 9000)


def addr(mtu: int = 1500, **addresses: list[str]) -> str:
    def entry(text: str) -> dict[str, Any]:
        local, _, length = text.partition("/")
        return {"family": "inet6" if ":" in local else "inet", "local": local, "prefixlen": int(length)}

    items = [
        {
            "ifname": name,
            "flags": ["UP"],
            "mtu": mtu,
            "address": "02:00:00:00:00:01",
            "addr_info": [entry(text) for text in addresses.get(name, [])],
        }
        for name in (A, B)
    ]
    return json.dumps([*items, {"ifname": "enP7s7", "flags": ["UP"], "mtu": 1500, "addr_info": [entry("10.0.0.1/24")]}])


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with programs that write down what they were told. `armed` says what systemctl tells of the timer."""
    programs = {
        "ip": 'cat "$HERE/ip"',
        "systemctl": 'case "$1 $2" in "show "*) echo "ActiveState=$(cat "$HERE/armed")" ;; "stop "*) echo inactive > "$HERE/armed" ;; esac',
        "systemd-run": 'case "$*" in *--on-active*) echo active > "$HERE/armed" ;; *) exit "$(cat "$HERE/apply")" ;; esac',
        "netplan": 'cat "$HERE/says" >&2; exit "$(cat "$HERE/generate")"',
        "journalctl": "echo 'something broke'",
        "logger": ":",
        "ping": 'exit "$(cat "$HERE/ping")"',
    }
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, body in programs.items():
        (folder / name).write_text(f'#!/bin/sh\nHERE={folder}/state\nprintf "%s\\n" "{name} $*" >> "$HERE/calls"\n{body}\n')
        (folder / name).chmod(0o755)
    state = folder / "state"
    state.mkdir()
    for name, text in {
        "ip": addr(),
        "armed": "inactive",
        "apply": "0",
        "generate": "0",
        "says": "",
        "ping": "0",
        "calls": "",
    }.items():
        (state / name).write_text(text)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def set_state(spark: Path, **texts: str) -> None:
    for name, text in texts.items():
        (spark / "programs" / "state" / name).write_text(text)


def calls(spark: Path, *names: str) -> list[str]:
    lines = (spark / "programs" / "state" / "calls").read_text().splitlines()
    return [line for line in lines if not names or line.split()[0] in names]


Do = Callable[..., dict[str, Any]]


@pytest.fixture
def do(run_module: RunModule, spark: Path) -> Do:
    def run(state: str, check: bool = False, **more: Any) -> dict[str, Any]:
        given = {"interfaces": WANTED} if state == "present" else {}
        return run_module(fabric_network, {"state": state, "root": str(spark), **given, **more}, check=check)

    return run


def etc(spark: Path) -> Path:
    return spark / "etc/netplan/40-cx7.yaml"


def trial(spark: Path) -> Path:
    return spark / "run/netplan/40-cx7.yaml"


def test_the_way_back_is_armed_before_the_trial_and_etc_is_left_alone(do: Do, spark: Path) -> None:
    result = do("present", revert_seconds=77)
    assert (result["changed"], result["on_trial"]) == (True, True)
    assert trial(spark).read_text() == TEXT
    assert trial(spark).stat().st_mode & 0o777 == 0o600
    assert not etc(spark).exists()
    started = calls(spark, "netplan", "systemd-run")
    assert started[0].startswith("netplan generate --root-dir")
    assert "--on-active=77s" in started[1]
    assert started[2].endswith("netplan apply")
    script = (spark / fabric_trial.SCRIPT).read_text()
    assert script.index(f"rm -f {trial(spark)}") < script.index("netplan apply") < script.index(f"ip link set dev {A} mtu 1500")


def test_kept_it_stands_in_etc_and_nothing_is_armed(do: Do, spark: Path) -> None:
    do("present")
    result = do("kept")
    assert (result["changed"], result["on_trial"]) == (True, False)
    assert etc(spark).read_text() == TEXT
    assert not trial(spark).exists()
    assert "systemctl stop sparklanes-fabric-revert.timer" in calls(spark, "systemctl")
    set_state(spark, ip=addr(9000, **{A: ["192.168.100.11/24"], B: ["192.168.101.11/24"]}))
    assert do("present")["changed"] is False
    assert do("kept")["changed"] is False


@pytest.mark.parametrize(
    "now",
    [
        addr(),
        addr(1500, **{A: ["192.168.100.11/24"], B: ["192.168.101.11/24"]}),
        addr(9000, **{A: ["192.168.100.11/24"]}),
        addr(9000, **{A: ["192.168.100.11/24", "169.254.3.4/16"], B: ["192.168.101.11/24"]}),
        "garbage",
    ],
)
def test_a_file_that_nobody_applied_is_tried_again(do: Do, spark: Path, now: str) -> None:
    etc(spark).parent.mkdir(parents=True)
    etc(spark).write_text(TEXT)
    set_state(spark, ip=now)
    assert do("present")["changed"] is True


def test_an_ipv6_address_that_a_router_added_is_no_change(do: Do, spark: Path) -> None:
    six = [{"name": A, "address": "fd00::1/64"}]
    etc(spark).parent.mkdir(parents=True)
    etc(spark).write_text(netplan.render(six, 9000))
    set_state(spark, ip=addr(9000, **{A: ["fd00::1/64", "fd00::abcd/64"]}))
    assert do("present", interfaces=six)["changed"] is False


def test_what_another_author_wrote_is_kept_aside(do: Do, spark: Path) -> None:
    etc(spark).parent.mkdir(parents=True)
    etc(spark).write_text("network: {version: 2}\n")
    assert do("present", check=True)["diff"]["before"] == "network: {version: 2}\n"
    do("present")
    do("kept")
    assert (spark / fabric_trial.KEPT / "40-cx7.yaml.before").read_text() == "network: {version: 2}\n"
    do("present", mtu=1500)
    do("kept")
    assert (spark / fabric_trial.KEPT / "40-cx7.yaml.before").read_text() == "network: {version: 2}\n", (
        "ours is not another author's"
    )


def test_what_another_author_wrote_is_given_back_by_an_uninstall_too(do: Do, spark: Path) -> None:
    def standing() -> dict[str, str]:
        return {edit["name"]: edit["standing"] for edit in report(ledger)}

    ledger = Ledger(Tree(spark), "test")
    lay(spark, {"/etc/netplan/40-cx7.yaml": TEXT, f"/{fabric_trial.KEPT}/40-cx7.yaml.before": "network: {version: 2}\n"})
    do("present", mtu=1500)  # a version without a ledger kept the file of before
    do("kept")
    assert standing() == {"/etc/netplan/40-cx7.yaml": "ours"}
    assert restore(ledger, "file", "/etc/netplan/40-cx7.yaml").done
    assert etc(spark).read_text() == "network: {version: 2}\n"
    do("present")
    do("kept")
    do("absent")
    do("kept")
    assert (etc(spark).read_text(), standing()) == ("network: {version: 2}\n", {})


def test_taken_back_etc_is_as_before(do: Do, spark: Path) -> None:
    do("present")
    result = do("reverted")
    assert (result["changed"], result["on_trial"]) == (True, False)
    assert not etc(spark).exists()
    assert calls(spark, "ip")[-1] == f"ip link set dev {B} mtu 1500"
    assert not (spark / fabric_trial.SCRIPT).exists()
    assert do("reverted")["changed"] is False


def test_a_way_back_that_netplan_refuses_is_told(do: Do, spark: Path) -> None:
    do("present")
    set_state(spark, generate="1", says="no such backend")
    result = do("reverted")
    assert result["failed"] is True
    assert "no such backend" in result["msg"]
    assert result["on_trial"] is False
    assert not (spark / fabric_trial.SCRIPT).exists()
    assert calls(spark, "ip")[-1] == f"ip link set dev {B} mtu 1500", "the rest of the way back is gone all the same"


def test_the_timer_leaves_nothing_either(do: Do, spark: Path) -> None:
    """What systemd runs when nobody keeps the trial."""
    do("present")
    subprocess.run(["sh", str(spark / fabric_trial.SCRIPT)], check=True)
    assert not trial(spark).exists()
    assert not (spark / fabric_trial.SCRIPT).exists()
    set_state(spark, armed="inactive")
    assert do("kept")["changed"] is False


def test_an_apply_that_fails_is_taken_back_at_once_with_its_words(do: Do, spark: Path) -> None:
    set_state(spark, apply="1")
    result = do("present")
    assert result["failed"] is True
    assert "the trial was taken back: something broke" in result["msg"]
    assert result["on_trial"] is False
    assert not trial(spark).exists()


def test_netplan_is_asked_before_anything_is_written(do: Do, spark: Path) -> None:
    (spark / "etc/netplan").mkdir(parents=True)
    (spark / "etc/netplan/01.yaml").write_text("network: {version: 2}\n")
    set_state(spark, generate="1", says="/etc/netplan/01.yaml:5:7: unknown key")
    for check in (True, False):
        result = do("present", check=check)
        assert result["failed"] is True
        assert "nothing was written: /etc/netplan/01.yaml:5:7: unknown key" in result["msg"]
    assert not trial(spark).exists()
    assert calls(spark, "systemd-run") == []


def test_check_mode_writes_nothing(do: Do, spark: Path) -> None:
    result = do("present", check=True)
    assert (result["changed"], result["diff"]["before"], result["diff"]["after"]) == (True, "", TEXT)
    assert not (spark / "run").exists()
    do("present")
    before = calls(spark, "systemctl", "systemd-run")
    assert do("kept", check=True)["changed"] is True
    assert do("reverted", check=True)["changed"] is True
    assert trial(spark).exists()
    assert calls(spark, "systemctl", "systemd-run") == before


def test_the_same_trial_goes_on_and_another_one_is_refused(do: Do, spark: Path) -> None:
    do("present")
    again = do("present")
    assert (again["changed"], again["on_trial"]) == (False, True)
    other = do("present", mtu=1500)
    assert other["failed"] is True
    assert "Another trial" in other["msg"]
    assert trial(spark).read_text() == TEXT


def test_a_trial_whose_timer_is_gone_is_begun_anew(do: Do, spark: Path) -> None:
    """A controller that died between disarming and keeping."""
    do("present")
    set_state(spark, armed="inactive")
    assert do("present", mtu=1500)["changed"] is True


def test_absence_is_tried_too(do: Do, spark: Path) -> None:
    assert do("absent")["changed"] is False
    etc(spark).parent.mkdir(parents=True)
    etc(spark).write_text(TEXT)
    result = do("absent")
    assert (result["changed"], result["diff"]["after"]) == (True, "")
    assert trial(spark).read_text() == netplan.NOTHING
    assert etc(spark).exists()
    assert f"ip link set dev {A} mtu 1500" in (spark / fabric_trial.SCRIPT).read_text()
    do("kept")
    assert not etc(spark).exists()
    assert not trial(spark).exists()


def test_absence_brings_another_authors_file_back_and_never_removes_it(do: Do, spark: Path) -> None:
    etc(spark).parent.mkdir(parents=True)
    etc(spark).write_text("network: {version: 2}\n")
    assert do("absent")["changed"] is False, "not ours"
    do("present")
    do("kept")
    result = do("absent")
    assert (result["changed"], result["diff"]["after"]) == (True, "network: {version: 2}\n")
    do("kept")
    assert etc(spark).read_text() == "network: {version: 2}\n"
    assert not (spark / fabric_trial.KEPT / "40-cx7.yaml.before").exists()
    again = do("absent")
    assert (again["changed"], again["on_trial"]) == (False, False)
    assert "is not ours" in again["actions"][0]


def test_proof(do: Do, spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = {"peer": "s2", "rail": "0", "ifname": A, "source": "192.168.100.11", "address": "192.168.100.12", "size": 8972}
    assert [one["ok"] for one in do("proven", probes=[probe])["probes"]] == [True]
    assert "missing required arguments" in do("proven", probes=[{"peer": "s2"}])["msg"]
    set_state(spark, ping="1")
    result = do("proven", probes=[probe], prove_seconds=0)
    assert [(one["ok"], one["small"]) for one in result["probes"]] == [(False, False)]
    assert result["changed"] is False


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"file": "../40.yaml"}, "expected the name of a netplan file"),
        ({"file": "40.conf"}, "expected the name of a netplan file"),
        ({"interfaces": []}, "needs interfaces"),
    ],
)
def test_bad_input(do: Do, more: dict[str, Any], words: str) -> None:
    result = do("present", **more)
    assert result["failed"] is True
    assert words in result["msg"]


def test_without_netplan_it_says_so(do: Do, spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (spark / "programs/netplan").unlink()
    monkeypatch.setenv("PATH", f"{spark}/programs:/usr/bin:/bin")
    if not any(Path(folder, "netplan").exists() for folder in ("/usr/bin", "/bin")):
        assert "netplan is not installed" in do("present")["msg"]


# What is there now


def proc(root: Path, chain: dict[int, tuple[int, str]]) -> None:
    """pid → (parent, environment)."""
    for pid, (parent, environ) in chain.items():
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/environ").write_bytes(environ.encode())
        (root / f"proc/{pid}/stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")


def test_the_ssh_connection_is_found_behind_sudo(tmp_path: Path) -> None:
    proc(tmp_path, {9: (7, "A=1\0"), 7: (5, "SUDO_USER=x\0"), 5: (1, "SSH_CONNECTION=10.0.0.2 50000 10.0.0.1 22\0"), 1: (0, "")})
    assert fabric_trial.ssh_address(tmp_path / "proc", 9) == "10.0.0.1"
    assert fabric_trial.ssh_address(tmp_path / "proc", 1) == ""
    assert fabric_trial.ssh_address(tmp_path / "proc", 4) == ""


def test_what_must_not_be_touched() -> None:
    found = fabric_trial.management(
        fabric_trial.parse_ip(addr()), "10.0.0.1", '[{"dst":"default","gateway":"10.9.9.1","dev":"wlP9s9"}]'
    )
    assert found == {"wlP9s9": "has the default route", "enP7s7": "carries this ssh connection (10.0.0.1)"}
    assert fabric_trial.management({}, "", "garbage") == {}


def test_the_module_tells_who_has_the_say(run_module: RunModule, tmp_path: Path) -> None:
    proc(tmp_path, {1: (0, "SSH_CONNECTION=::ffff:10.0.0.2 50000 ::ffff:10.0.0.1 22\0")})
    (tmp_path / "ip_j_addr.json").write_text(addr(9000, **{A: ["192.168.100.11/24", "fe80::1/64"]}))
    (tmp_path / "ip_j_route.json").write_text('[{"dst":"default","dev":"enP7s7"}]')
    for path, text in {
        "etc/netplan/40-cx7.yaml": TEXT,
        "etc/netplan/90-nm.yaml": f"network:\n  ethernets:\n    {A}:\n      dhcp4: true\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    result = run_module(fabric_network_info, {"root": str(tmp_path), "interfaces": [A, B, "eth9"]})
    assert result["changed"] is False
    assert result["interfaces"][A]["addresses"] == ["192.168.100.11/24"]
    assert result["management"] == {"enP7s7": "carries this ssh connection (10.0.0.1)"}
    assert [(one["interface"], one["path"]) for one in result["owners"]] == [(A, "/etc/netplan/90-nm.yaml")]
    assert result["file"]["text"] == TEXT
    assert result["file"]["trial"] is None


@pytest.mark.parametrize("text", ["", "garbage", "{}", "[1, {}]", '[{"ifname": "x", "addr_info": [{"local": "no"}, 3]}]'])
def test_whatever_ip_prints_there_is_an_answer(text: str) -> None:
    assert all(one["addresses"] == [] for one in fabric_trial.parse_ip(text).values())
