# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Decisions about the virtual machines, without one."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

sys.path.insert(0, str(ROOT))

from sandbox import cli, vms
from sandbox.layout import Clone, boot_id
from sandbox.shell import SandboxError
from sandbox.vms import Machine, Pair


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    made = Pair(Clone(tmp_path))
    made.home.mkdir(parents=True)
    return made


@pytest.fixture
def image(tmp_path: Path) -> Path:
    folder = tmp_path / "image"
    folder.mkdir()
    for name in ("id_ed25519.pub", "host_key.pub", "host_key"):
        (folder / name).write_text(f"ssh-ed25519 AAAA{name} sparklanes-vm\n")
    return folder


def option(argv: list[str], flag: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == flag]


def test_each_wire_ends_at_the_other_machine(pair: Pair, image: Path) -> None:
    first, second = pair.machines
    ends = []
    for machine, peer in ((first, second), (second, first)):
        wires = [text for text in option(machine.command(peer, image, 2201, False), "-netdev") if text.startswith("dgram")]
        fields = [dict(field.split("=", 1) for field in text.split(",")[1:]) for text in wires]
        ends.append([(wire["local.path"], wire["remote.path"]) for wire in fields])
    assert ends[0] == [(there, here) for here, there in ends[1]]
    assert len({path for both in ends[0] for path in both}) == 4
    # A socket's path may not be longer; the folder of a clone may.
    assert all(len(path) < 100 for both in ends[0] for path in both)


def test_machines_reach_nothing_but_each_other(pair: Pair, image: Path) -> None:
    first, second = pair.machines
    mgmt = option(first.command(second, image, 2201, True), "-netdev")[0]
    assert "restrict=on" in mgmt.split(",")
    assert "hostfwd=tcp:127.0.0.1:2201-:22" in mgmt.split(",")


@pytest.mark.parametrize("kvm", [True, False])
def test_kvm_is_used_only_where_it_runs(pair: Pair, image: Path, kvm: bool) -> None:
    first, second = pair.machines
    assert option(first.command(second, image, 2201, kvm), "-accel") == (["kvm"] if kvm else ["tcg"])


@pytest.mark.parametrize(("code", "runs"), [(0, True), (124, False), (1, False)])
def test_kvm_is_tried_once_a_boot(pair: Pair, image: Path, monkeypatch: pytest.MonkeyPatch, code: int, runs: bool) -> None:
    tries: list[list[str]] = []

    def attempt(argv: list[str], **_: Any) -> tuple[int, str, str]:
        tries.append(argv)
        return code, "", ""

    monkeypatch.setattr(vms, "attempt", attempt)
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert [pair.kvm_runs(image), pair.kvm_runs(image)] == [runs, runs]
    assert len(tries) == 1
    (pair.home / "kvm").write_text(f"another-boot {'does not' if runs else 'runs'}\n")
    assert pair.kvm_runs(image) is runs
    assert (pair.home / "kvm").read_text().startswith(boot_id())


def test_without_the_device_kvm_is_not_tried(pair: Pair, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vms, "attempt", None)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not pair.kvm_runs(image)


def test_nics_are_named_and_addressed_by_their_mac(pair: Pair) -> None:
    files = pair.network()
    assert "52:54:00:5a:01:02 52:54:00:5a:02:02" in files["etc/systemd/network/10-enP2p1s0f0np0.link"]
    assert "Address=192.168.101.12/24\n" in files["etc/systemd/network/20-spark-2-enP2p1s0f0np0.network"]
    assert "MACAddress=52:54:00:5a:02:02\n" in files["etc/systemd/network/20-spark-2-enP2p1s0f0np0.network"]
    every = [machine.mac(nic) for machine in pair.machines for nic in range(len(vms.NICS))]
    assert len(set(every)) == len(every)


def test_files_of_the_image_are_one_whole_tar(pair: Pair, image: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(pair.files(image))) as tar:
        names = tar.getnames()
        assert {"root/.ssh/authorized_keys", "etc/systemd/system/emulated-rdma.service", *pair.network()} <= set(names)
        assert len(names) == len(set(names))
        unit = tar.extractfile("etc/systemd/system/emulated-rdma.service")
        assert unit is not None
        text = unit.read().decode()
    for nic, hca in (("enp1s0f0np0", "rocep1s0f0"), ("enP2p1s0f0np0", "roceP2p1s0f0")):
        assert f"rdma link add {hca} type rxe netdev {nic}\n" in text
        assert nic in vms.NICS


def test_the_inventory_stands_for_itself(pair: Pair, image: Path) -> None:
    for name in (
        "inventory/shipped/00-groups.yml",
        "inventory/lanes/80-lanes.yml",
        "inventory/lanes/90-families.yml",
        "inventory/lanes/99-limit.yml",
    ):
        (pair.clone.root / name).parent.mkdir(parents=True, exist_ok=True)
        (pair.clone.root / name).write_text("x")
    (pair.clone.root / "group_vars").mkdir()
    pair.write_inventory(image, [2201, 2202])
    sparks = yaml.safe_load((pair.inventory / "10-vm.yml").read_text())["all"]["children"]["sparks"]
    assert sparks["hosts"] == {"spark-1": {"ansible_port": 2201}, "spark-2": {"ansible_port": 2202}}
    assert sparks["vars"]["fabric_allow_soft"] is True
    assert "lane" not in sparks["vars"]
    assert all(path.exists() for path in pair.inventory.iterdir())
    pair.down()
    assert (pair.clone.root / "group_vars").is_dir(), "down follows no link"


def test_hosts_are_known_by_their_port(pair: Pair, image: Path) -> None:
    pair.write_ssh(image, [2201, 2202])
    assert (pair.home / "known_hosts").read_text().splitlines()[1] == "[127.0.0.1]:2202 ssh-ed25519 AAAAhost_key.pub"
    shown = subprocess.run(["ssh", "-G", *pair.ssh("spark-2")[1:]], capture_output=True, text=True, check=True).stdout
    assert {"port 2202", "hostname 127.0.0.1", "stricthostkeychecking true"} <= set(shown.splitlines())


def test_a_number_that_another_process_has_now_is_not_ended(pair: Pair) -> None:
    machine = pair.machines[0]
    machine.pid_file.write_text(f"{os.getpid()}\n")
    assert machine.pid == 0
    machine.stop()
    assert not machine.pid_file.exists()


@pytest.mark.parametrize("text", ["", "x", "-1", "999999999999"])
def test_a_broken_pid_file_is_no_machine(pair: Pair, text: str) -> None:
    pair.machines[0].pid_file.write_text(text)
    assert pair.machines[0].pid == 0


def test_a_machine_is_ended_by_its_pid_file(pair: Pair) -> None:
    machine = pair.machines[0]
    argv = [sys.executable, "-c", "print('up', flush=True); input()", "-pidfile", str(machine.pid_file)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"  # from then on it is the process with these arguments
    try:
        machine.pid_file.write_text(f"{process.pid}\n")
        assert machine.pid == process.pid
        machine.stop()
        assert process.wait(20) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def answer(path: Path, last: dict[str, Any], got: list[Any]) -> threading.Thread:
    """A monitor that greets, tells an event, and answers."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)

    def serve() -> None:
        link, _ = server.accept()
        with link, server, link.makefile("rw") as stream:
            stream.write('{"QMP": {}}\n')
            stream.flush()
            decoder, text = json.JSONDecoder(), ""
            for reply in ({"return": {}}, last):
                while True:
                    text += link.recv(4096).decode()
                    try:
                        message, end = decoder.raw_decode(text)
                    except ValueError:
                        continue
                    break
                got.append(message)
                text = text[end:]
                stream.write(json.dumps({"event": "RESUME"}) + "\n" + json.dumps(reply) + "\n")
                stream.flush()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("last", [{"return": {"x": 1}}, {"error": {"desc": "no such device"}}])
def test_the_monitor_is_asked_and_its_refusal_told(tmp_path: Path, last: dict[str, Any]) -> None:
    machine, got = Machine(1, tmp_path, tmp_path), []
    thread = answer(machine.monitor, last, got)
    if "error" in last:
        with pytest.raises(SandboxError, match="spark-1: set_link: no such device"):
            machine.plug(2, False)
    else:
        machine.plug(2, False)
    thread.join(20)
    assert got == [
        {"execute": "qmp_capabilities"},
        {"execute": "set_link", "arguments": {"name": "fabric2", "up": False}},
    ]


def test_free_ports_differ() -> None:
    ports = vms.free_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        with socket.socket() as link:
            link.bind(("127.0.0.1", port))


def test_a_shell_needs_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["script/sandbox", "vms", "ssh", "spark-1"], tmp_path) == 1
    assert "script/sandbox vms up" in capsys.readouterr().err
