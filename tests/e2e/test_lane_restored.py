"""What a restore stands on, what a second judgement finds, and which logs there are, with the real engine in two ranks.

Slow: a boot or two a case. Part of `script/test full`.
"""

from __future__ import annotations

import json
import time

import pytest
from conftest import NODES, Fleet

pytestmark = pytest.mark.slow


@pytest.fixture
def serving(fleet: Fleet) -> Fleet:
    """The fleet with a lane that is last good."""
    fleet.play("playbooks/launch.yml", "-e", "launch_forget_deaths=true").ok()
    if fleet.state()["status"] != "serving":
        fleet.play("playbooks/bank.yml", "-e", "bank_accept=true").ok()
        fleet.play("playbooks/launch.yml").ok()
    assert fleet.state()["status"] == "serving"
    return fleet


def test_a_fabric_that_is_cut_in_a_boot_is_named_in_seconds_and_nothing_starts_over_it(serving: Fleet) -> None:
    run = serving.start("playbooks/launch.yml", "-e", "lane_max_num_seqs=7")  # another release than what is last good
    assert run.stdout
    for line in run.stdout:
        if "starting" in line or "waiting for the other ranks" in line:
            break
    serving.on("spark-2", "iptables -I INPUT -i fab0 -j DROP; iptables -I OUTPUT -o fab0 -j DROP")
    began = time.monotonic()
    try:
        for line in run.stdout:
            if "boot: failed" in line:
                break
        assert time.monotonic() - began < 60, "not a stall of minutes"
        rest = run.stdout.read()
        run.wait(timeout=120)
        assert "the fabric is cut" in rest
        assert "a person looks first" in rest
        assert not any(serving.ranks().values())
        assert serving.state()["deaths"] == []
    finally:
        serving.on("spark-2", "iptables -D INPUT -i fab0 -j DROP; iptables -D OUTPUT -o fab0 -j DROP")


def test_a_paused_rank_is_named_at_once(serving: Fleet) -> None:
    serving.on("spark-2", "docker pause sparklanes-sparks-rank1")
    try:
        out = serving.play("playbooks/launch.yml").failed("RANK.ALIVE", "spark-2", "is paused").out
        assert "Logs in" in out
        assert serving.state()["status"] == "suspect"
    finally:
        serving.on("spark-2", "docker unpause sparklanes-sparks-rank1")


def test_a_rank_that_is_killed_while_its_lane_is_judged_again_is_a_death(serving: Fleet) -> None:
    run = serving.start("playbooks/launch.yml")
    assert run.stdout
    for line in run.stdout:
        if "Journal that it is judged" in line:  # scoring this little model takes three seconds: too late for a kill
            break
    serving.on("spark-2", "docker kill sparklanes-sparks-rank1")
    said = run.stdout.read()
    assert run.wait(timeout=600) != 0
    assert "spark-2" in said
    assert serving.state()["status"] == "restored-judged"
    assert {path.name.split("-rank")[0] for path in serving.receipts()[-1].glob("*-rank*.log")} == set(NODES)


def test_bytes_that_changed_under_their_times_are_not_restored_as_serving(serving: Fleet) -> None:
    """A new release is refused by its scores; the old one would read the same bytes."""
    shard = serving.on("spark-2", "ls /var/lib/sparklanes/models/tiny/*.safetensors | head -1")
    serving.on(
        "spark-2", f"cp -p {shard} /root/kept && dd if=/dev/urandom of={shard} bs=1k seek=40 count=400 conv=notrunc status=none"
    )
    serving.on("spark-2", f"touch -r /root/kept {shard}")
    try:
        other = ["-e", json.dumps({"lane_engine_args_override": {"--seed": 7}})]
        out = serving.play("playbooks/launch.yml", *other)
        assert out.rc != 0
        assert "serves again" not in out.out
        assert not any(serving.ranks().values()) or serving.state()["status"] not in ("serving", "restored-judged")
    finally:
        serving.on("spark-2", f"cp -p /root/kept {shard} && rm /root/kept")
        serving.play("site.yml").ok()


def test_a_full_log_disk_keeps_no_lane_from_stopping(serving: Fleet) -> None:
    serving.on("spark-2", "mount -t tmpfs -o size=64k tmpfs /var/log/sparklanes")
    try:
        serving.play("playbooks/stop.yml").ok()
        assert serving.on("spark-2", "ls /run/sparklanes/logs/sparks/*/rank1.log")
    finally:
        serving.on("spark-2", "umount /var/log/sparklanes")


def test_a_container_of_a_person_with_the_name_of_a_rank_is_found_before_the_stop(serving: Fleet) -> None:
    serving.play("playbooks/stop.yml").ok()
    values = serving.values()
    image = f"{values['sandbox_image_repository']}@{values['sandbox_image_digest']}"
    serving.on("spark-2", f"docker create --name sparklanes-sparks-rank1 {image}")
    try:
        serving.play("playbooks/launch.yml").failed("CONTAINER.NAME", "spark-2")
    finally:
        serving.on("spark-2", "docker rm sparklanes-sparks-rank1")
