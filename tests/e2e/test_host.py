"""The host roles as a person uses them: parts come and go, and one table tells how the nodes are kept."""

from __future__ import annotations

from conftest import NODES, Fleet

PARTS = ("ssh", "reserve", "journal", "hold")
# What the roles lay down, as a person would look for it.
TRACES = (
    "find /etc/systemd/system /etc/systemd/journald.conf.d -name '*sparklanes*' ! -name '*page-cache*' ! -name '*-boot*' 2>/dev/null;"
    " apt-mark showhold; true"
)


def asked(state: str) -> list[str]:
    return [word for part in PARTS for word in ("-e", f"spark_survival_{part}={state}")]


def test_parts_go_without_a_trace_and_come_back(fleet: Fleet) -> None:
    present = {node: fleet.on(node, TRACES) for node in NODES}
    assert all("91-sparklanes-oom.conf" in text and "procps" in text and "journald.conf.d" in text for text in present.values())
    # Debian's own package makes it, so it stays when the part goes.
    assert fleet.on("spark-1", "ls -d /var/log/journal")
    seen = fleet.play("playbooks/configure.yml", "--check", *asked("absent")).ok()
    assert seen.changed == len(NODES)
    assert {node: fleet.on(node, TRACES) for node in NODES} == present
    assert fleet.play("playbooks/configure.yml", *asked("absent")).ok().changed == len(NODES)
    assert {node: fleet.on(node, TRACES) for node in NODES} == dict.fromkeys(NODES, "")
    assert fleet.on("spark-1", "systemctl show ssh.service --property=OOMScoreAdjust --value") == "0"
    assert fleet.play("playbooks/configure.yml", *asked("absent")).ok().changed == 0
    fleet.play("playbooks/configure.yml").ok()
    assert {node: fleet.on(node, TRACES) for node in NODES} == present


def test_health_is_one_table(fleet: Fleet) -> None:
    told = fleet.play("playbooks/health.yml")
    assert told.changed == 0
    for id_ in (
        "HOST.SWAPPINESS",
        "HOST.REMOVE_IPC",
        "HOST.PAGE_CACHE",
        "HOST.ENGINE_BOOTS",
        "PARITY.KERNEL",
        "MEM.CMA",
        "GPU.DRIVER",
    ):
        assert id_ in told.out
    fleet.on("spark-2", "echo 77 > /proc/sys/vm/swappiness")
    try:
        fleet.play("playbooks/health.yml").failed("HOST.SWAPPINESS spark-2 77, 10 after a boot")
    finally:
        fleet.on("spark-2", "echo 10 > /proc/sys/vm/swappiness")
