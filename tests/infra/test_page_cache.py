# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The unit gives the page cache back: measured at a file of our own, and at the memory of the machine.

Sandbox nodes share one kernel and so one page cache: each node's unit empties the cache of all of them
and of the machine they run on. So the unit's own count of flushes is read too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

UNIT = "sparklanes-page-cache"
FILE = "/var/lib/sparklanes/page-cache-probe"
MIB = 1024**2


def state(host: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(host.check_output("cat /run/sparklanes/page-cache.json"))
    return told


def resident(host: Any) -> int:
    """Bytes of the file that are in the page cache."""
    return int(host.check_output("fincore --bytes --noheadings --output RES %s", FILE))


@pytest.fixture
def settings(host: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(host.check_output("cat /etc/sparklanes/page-cache.json"))
    return told


@pytest.fixture
def probe(host: Any) -> Iterator[None]:
    yield
    host.run("rm -f %s", FILE)


def test_unit_is_the_lanes_and_comes_back_after_a_boot(host: Any, settings: dict[str, Any]) -> None:
    wanted = host.ansible.get_variables()
    assert settings["policy"] == wanted["lane_page_cache_policy"]
    assert settings["interval_seconds"] == wanted["lane_page_cache_interval_seconds"]
    assert host.service(UNIT).is_enabled
    told = state(host)
    assert told["identity"] == settings["identity"]
    assert host.service(UNIT).is_running or told["ended"]


def test_cache_that_fills_is_given_back_within_an_interval(host: Any, settings: dict[str, Any], probe: None) -> None:
    assert settings["policy"] == "interval", "the sandbox's family has it; another one leaves a small cache alone"
    host.check_output("systemctl restart %s", UNIT)  # its time begins anew
    deadline = time.monotonic() + 30
    while state(host)["flushes"] == 0:
        assert time.monotonic() < deadline, host.check_output(f"journalctl -u {UNIT} -n 20 --no-pager")
        time.sleep(0.5)
    host.check_output("dd if=/dev/zero of=%s bs=1M count=200 status=none && sync", FILE)
    for _ in range(3):  # another node's unit may empty the cache in between
        host.check_output("cat %s > /dev/null", FILE)
        if resident(host) == 200 * MIB:
            break
    assert resident(host) == 200 * MIB
    before = state(host)["flushes"]
    deadline = time.monotonic() + settings["interval_seconds"] + 30
    while state(host)["flushes"] == before:
        assert time.monotonic() < deadline, "no flush within an interval"
        time.sleep(1)
    assert resident(host) == 0
    last = state(host)["last"]
    assert last["before"]["mem_free"] > 0
    assert last["after"]["cached"] <= last["before"]["cached"]


def test_unit_is_as_hardened_as_systemd_can_tell(host: Any) -> None:
    """1.0 of 10 and less; what it is, by default, is 9.6."""
    told = host.run("systemd-analyze security --no-pager --threshold=10 %s", UNIT)
    assert told.rc == 0, told.stdout[-3000:]


def test_unit_may_write_two_kernel_settings_and_nothing_else(host: Any) -> None:
    """From inside the unit's own view of the file system."""
    if not host.service(UNIT).is_running:
        host.check_output("systemctl restart %s", UNIT)
    number = host.check_output("systemctl show --property MainPID --value %s", UNIT)
    inside = f"nsenter --target {number} --mount -- sh -c"
    for path in ("/proc/sys/vm/drop_caches", "/proc/sys/vm/compact_memory"):
        assert host.run(f"{inside} 'test -w {path}'").rc == 0, path
    for path in ("/proc/sys/vm/swappiness", "/etc/hostname", "/var/lib/sparklanes", "/usr/local/lib/sparklanes/page_cache.py"):
        assert host.run(f"{inside} 'test -w {path}'").rc != 0, path
    assert host.check_output(f"grep CapEff /proc/{number}/status").split()[1] == "0" * 16
