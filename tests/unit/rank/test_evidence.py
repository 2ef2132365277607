"""What a Spark is asked about the end of its rank, and what is said where it can't tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.host import killers
from ansible.module_utils.sparklanes.rank import evidence

NOW = 1_800_010_000.0
STARTED = NOW - 600
LINK = "2026-12-01T04:00:00+00:00 spark-2 kernel: mlx5_core 0000:01:00.0 enp1s0f0np0: Link down\n"
IP = json.dumps(
    [
        {"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}]},
        {"ifname": "enp1s0f0np0", "addr_info": [{"local": "10.0.0.2"}, {"local": "fe80::2"}]},
    ]
)
Answer = tuple[int, str, str]


class Machine:
    """Answers by program, and for journalctl by whether the kernel or units are asked for."""

    def __init__(self, **answers: Answer) -> None:
        self.answers, self.asked = answers, list[list[str]]()

    def __call__(self, argv: Sequence[str], **options: Any) -> Answer:
        assert options["seconds"] <= 60, "nothing is waited for without end"
        self.asked.append(list(argv))
        kernel = argv[0] == "journalctl" and "_TRANSPORT=kernel" in argv
        name = "ip" if argv[0] == "ip" else "dmesg" if argv[0] == "dmesg" else "kernel" if kernel else "units"
        return self.answers.get(name, (0, IP, "") if name == "ip" else (0, "", ""))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(f"cpu 1 2\nbtime {int(STARTED - 5000)}\nprocesses 5\n")
    return tmp_path


def gather(machine: Machine, root: Path, ended: float | None = None, started: float | None = STARTED) -> dict[str, Any]:
    return evidence.gather(started, ended, NOW, machine, root)


def test_boot_addresses_kernel_and_journal_of_that_time(root: Path) -> None:
    machine = Machine(
        kernel=(0, LINK, ""), units=(0, "2026-12-01T04:00:00+00:00 spark-2 systemd[1]: Stopping docker.service - Docker...\n", "")
    )
    found = gather(machine, root, ended=NOW - 100)
    assert (found["boot_time"], found["addresses"]) == (STARTED - 5000, ["10.0.0.2", "127.0.0.1", "fe80::2"])
    assert [one["id"] for one in found["kernel"]] == ["link_down"]
    assert [one["id"] for one in found["journal"]] == ["docker_restarted"]
    assert found["unread"] == []
    (asked,) = [argv for argv in machine.asked if "_TRANSPORT=kernel" in argv]
    assert f"--since=@{STARTED:.0f}" in asked
    assert f"--until=@{NOW - 100 + evidence.AFTER_SECONDS:.0f}" in asked
    assert any(word.startswith("--lines=") for word in asked)


def test_every_program_that_may_have_ended_a_rank_is_asked_for(root: Path) -> None:
    machine = Machine()
    gather(machine, root)
    (asked,) = [argv for argv in machine.asked if argv[0] == "journalctl" and "_TRANSPORT=kernel" not in argv]
    assert {f"--unit={unit}" for unit in (*killers.UNITS, "docker.service")} <= set(asked)


def test_no_more_than_two_hours_are_read(root: Path) -> None:
    machine = Machine()
    gather(machine, root, started=NOW - 10**6)
    assert any(f"--since=@{NOW + evidence.AFTER_SECONDS - evidence.LONGEST_SECONDS:.0f}" in argv for argv in machine.asked)


def test_dmesg_stands_in_with_the_lines_of_that_time(root: Path) -> None:
    late, early = 5000 + 300, 100
    lines = "".join(f"[{at:12.6f}] mlx5_core 0000:01:00.0 {name}: Link down\n" for at, name in ((early, "old"), (late, "new")))
    found = gather(Machine(kernel=(1, "", "No journal files were found."), dmesg=(0, lines, "")), root)
    assert ["new: Link down" in one["message"] for one in found["kernel"]] == [True]
    assert found["unread"] == []


def test_what_could_not_be_read_is_said(root: Path) -> None:
    denied = (1, "", "dmesg: read kernel buffer failed: Operation not permitted")
    found = gather(
        Machine(
            kernel=(127, "", "journalctl: not found"), units=(127, "", "journalctl: not found"), dmesg=denied, ip=(1, "", "x")
        ),
        root,
    )
    assert len(found["unread"]) == 2
    assert "Operation not permitted" in found["unread"][0]
    assert found["addresses"] == []
    hidden = (0, "", "Hint: You are currently not seeing messages from other users and the system.")
    assert gather(Machine(kernel=hidden, units=hidden, dmesg=denied), root)["unread"]
    assert gather(Machine(), root)["unread"] == [], "no line of that time is an answer"
    empty = Machine(units=(0, "-- No entries --\n", "No journal files were found."))
    assert len(gather(empty, root)["unread"]) == 1
    assert not any("--quiet" in argv for argv in empty.asked), "journalctl then hides that it may not see"


def test_a_host_that_is_a_container_boots_with_its_first_process(root: Path) -> None:
    (root / "proc/1").mkdir()
    (root / "proc/1/stat").write_text(f"1 (sys (t) emd) S {' '.join(['0'] * 18)} 4200 0 0\n")
    assert evidence.boot_time(root, ticks=100) == STARTED - 5000 + 42
    (root / "proc/1/stat").write_text("garbage")
    assert evidence.boot_time(root) == STARTED - 5000
    (root / "run/systemd").mkdir(parents=True)
    (root / "run/systemd/container").write_text("podman")
    machine = Machine(kernel=(0, LINK, ""))
    assert gather(machine, root)["kernel"] == []
    assert not any("_TRANSPORT=kernel" in argv or argv == ["dmesg"] for argv in machine.asked), (
        "it is the kernel of its neighbours too"
    )


@pytest.mark.parametrize("text", ["", "btime x\n", "cpu 1\n"])
def test_an_unknown_boot_time_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "proc").mkdir()
    assert evidence.boot_time(tmp_path) is None
    (tmp_path / "proc/stat").write_text(text)
    assert evidence.boot_time(tmp_path) is None


@pytest.mark.parametrize("out", ["", "{", "[1]", '[{"addr_info": null}]', '{"a": 1}'])
def test_garbage_of_ip_is_no_address(out: str) -> None:
    assert evidence.addresses(Machine(ip=(0, out, ""))) == []
