"""What is configured is there after a boot: by playbooks/reboot.yml on both machines, and after a power cut on one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ETC, NODES, SWAPPINESS, Person
from test_fabric import detect, rail

FIRST, SECOND = NODES
MANAGER = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"


def whole(person: Person, node: str, swappiness: str) -> None:
    assert person.swappiness(node) == swappiness
    assert person.on(node, "systemctl is-active sparklanes-page-cache") == "active"
    assert person.on(node, f"busctl get-property {MANAGER} RemoveIPC") == "b false"


def same_fabric(person: Person, before: dict[str, dict[str, Any]]) -> None:
    """Indexes may differ: they depend on the order in which addresses come."""
    after = detect(person)
    for node in NODES:
        assert after[node]["errors"] == []
        assert after[node]["env"] == before[node]["env"]
        for found in before[node]["chosen"]:
            now = rail(after, node, found["hca"])
            assert [now[key] for key in ("netdev", "ipv4", "network", "mtu")] == [
                found[key] for key in ("netdev", "ipv4", "network", "mtu")
            ]


def test_machines_reboot_one_after_the_other_and_are_as_before(person: Person) -> None:
    boots, facts = {node: person.boot(node) for node in NODES}, detect(person)
    for node in NODES:
        person.hang_up(node)
    person.play("playbooks/reboot.yml").ok()
    for node in NODES:
        person.pair.wait_for(person.machine(node), other_than=boots[node])
        whole(person, node, SWAPPINESS)
    same_fabric(person, facts)
    assert person.site().ok().changed == 0


@pytest.fixture(scope="module")
def survival(person: Person) -> Iterator[None]:
    """The second machine with what lets a wedged Spark be entered and understood; afterwards /etc is as before."""
    before = person.on(SECOND, ETC)
    parts = [f"spark_survival_{part}" for part in ("ssh", "reserve", "journal", "hold")]
    more = {"spark_survival_hold_patterns": ["rdma-core"]}
    person.role("spark_survival", hosts=SECOND, **dict.fromkeys(parts, "present"), **more).ok()
    person.hang_up(SECOND)  # what counts is the next session
    yield
    person.role("spark_survival", hosts=SECOND, **dict.fromkeys(parts, "absent"), **more).ok()
    assert person.on(SECOND, ETC) == before
    assert person.on(SECOND, "apt-mark showhold") == ""


def spared(person: Person, node: str) -> None:
    assert person.on(node, "cat /proc/self/oom_score_adj") == "-900"
    for unit in ("system.slice", "system.slice/ssh.service", "user.slice"):
        assert person.on(node, f"cat /sys/fs/cgroup/{unit}/memory.min") == str(128 * 1024**2), unit


def test_the_kernel_itself_spares_ssh_and_apt_keeps_what_is_held(person: Person, survival: None) -> None:
    spared(person, SECOND)
    refused = person.on(SECOND, "apt-get --simulate --yes remove rdma-core 2>&1; echo rc=$?")
    assert "Held packages were changed" in refused
    assert refused.endswith("rc=100")


def test_what_was_just_written_outlasts_a_power_cut(person: Person, survival: None) -> None:
    """The settings at once, and the journal but for the last 30 seconds, of which journald would keep none for five minutes."""
    facts = detect(person)
    person.on(SECOND, "logger --tag probe last words; sleep 35")
    person.role("spark_kernel", hosts=SECOND, spark_kernel_swappiness=20).ok()
    person.restart(lambda node: person.machine(node).cut_power(), [SECOND])
    whole(person, SECOND, "20")
    spared(person, SECOND)
    assert person.on(SECOND, "journalctl --boot=-1 --identifier=probe --output=cat") == "last words"
    same_fabric(person, facts)
    person.role("spark_kernel", hosts=SECOND, spark_kernel_swappiness=int(SWAPPINESS)).ok()
