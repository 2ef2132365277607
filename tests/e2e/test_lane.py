"""One lane from staged nodes to serving and through its misfortunes, with the real engine in two ranks.

The tests build on each other, in the order in which they stand: each boot takes the better part of a minute.
"""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from conftest import NODES, Fleet


def ask(fleet: Fleet, path: str, body: dict[str, Any] | None = None, timeout: float = 60) -> tuple[int, str]:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"{fleet.api}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("more", "limit", "words"),
    [
        (["-e", "lane=sandbox_tinny"], "sparks", "Did you mean sandbox_tiny"),
        (["-e", "lane_max_modle_len=256"], "sparks", "lane_max_model_len"),
        (["-e", "lane_max_model_len=many"], "sparks", "lane_max_model_len"),
        ([], "spark-2", "spark-1"),
    ],
    ids=["unknown lane", "misspelled variable", "wrong type", "part of a deployment"],
)
def test_bad_input_is_refused_before_anything_is_touched(fleet: Fleet, more: list[str], limit: str, words: str) -> None:
    fleet.play("playbooks/launch.yml", *more, limit=limit).failed(words)
    assert not any(fleet.ranks().values())
    assert fleet.transaction() == {}


def test_an_image_with_another_digest_is_refused(fleet: Fleet) -> None:
    other = ["-e", "sandbox_image_digest=sha256:" + "0" * 64]
    fleet.play("site.yml", *other).failed("0" * 12)
    fleet.play("playbooks/launch.yml", *other).failed("IMAGE.DIGEST", "not on this Spark")


def test_a_foreign_container_on_the_port_is_named_and_left_alone(fleet: Fleet) -> None:
    with fleet.container("spark-1", "squatter", "--network host", "python3 -m http.server 8000"):
        fleet.play("playbooks/launch.yml").failed("PORT.FREE", "container squatter")
        assert fleet.on("spark-1", "docker ps --quiet --filter name=squatter")
        assert fleet.transaction() == {}


def test_a_silent_node_is_a_row_and_nothing_is_stopped(fleet: Fleet, tmp_path: Path) -> None:
    away = tmp_path / "away.yml"
    lost = fleet.values()["sandbox_api_host"].rpartition(".")[0] + ".254"
    away.write_text(f"all: {{hosts: {{spark-2: {{ansible_host: {lost}}}}}}}\n")
    fleet.play("playbooks/launch.yml", "-i", str(away)).failed("NODE.REACHABLE", "spark-2")
    assert not any(fleet.ranks().values())


def test_a_changed_shard_is_found_before_the_launch_and_mended_by_site(fleet: Fleet) -> None:
    shard = fleet.on("spark-2", "ls /var/lib/sparklanes/models/tiny/*.safetensors | head -1")
    fleet.on("spark-2", f"printf X | dd of={shard} bs=1 seek=5000 conv=notrunc status=none")
    fleet.play("playbooks/launch.yml").failed("WEIGHTS.STAGED", "spark-2")
    fleet.play("site.yml").ok()
    assert fleet.play("site.yml").ok().changed == 0


def test_an_overlay_that_changed_on_one_rank_is_found_before_the_launch(fleet: Fleet) -> None:
    extra = fleet.on("spark-2", "ls /var/lib/sparklanes/overlays/*/sandbox_chat.jinja | head -1")
    fleet.on("spark-2", f"cp -p {extra} /root/kept && printf X >> {extra}")
    try:
        fleet.play("playbooks/launch.yml").failed("OVERLAYS.STAGED", "spark-2", "remove")
        assert not any(fleet.ranks().values())
    finally:
        fleet.on("spark-2", f"cp -p /root/kept {extra} && rm /root/kept")


def test_without_a_bank_the_lane_serves_and_is_not_last_good(fleet: Fleet) -> None:
    out = fleet.play("playbooks/launch.yml").ok().out
    assert "serving-unbanked" in out
    state = fleet.state()
    assert (state["status"], state["lane"], state["last_good"]) == ("serving-unbanked", "sandbox_tiny", "")
    assert state == fleet.state("spark-2")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    code, reply = ask(fleet, "/v1/chat/completions", body)
    assert code == 200
    assert json.loads(reply)["choices"][0]["message"]["content"]
    receipt = json.loads((fleet.receipts()[-1] / "receipt.json").read_text())
    assert receipt["gates"]["A"]["verdict"] != "fail"
    assert receipt["gates"]["B"]["verdict"] != "fail"
    # Memory of each node was touched for real, and the budget looked at its real size.
    touched = {check["host"]: check["found"] for check in receipt["gates"]["B"]["checks"] if check["id"] == "MEM.TOUCH"}
    assert set(touched) == {"spark-1", "spark-2"}
    assert all(found.startswith("0.2 GiB of 0.2 GiB touched") for found in touched.values()), touched
    assert [check["status"] for check in receipt["gates"]["A"]["checks"] if check["id"] == "BUDGET.FIT"] == ["pass", "pass"]
    assert receipt["release"] == state["current"]


def test_rendered_files_are_private(fleet: Fleet) -> None:
    release = fleet.state()["current"]
    assert fleet.on("spark-1", f"stat -c %a /var/lib/sparklanes/releases/{release}/rank.json") == "600"


def test_a_bank_waits_for_a_person(fleet: Fleet) -> None:
    out = fleet.play("playbooks/bank.yml").ok().out
    assert "sameness, not truth" in out
    assert not list(Path(fleet.values()["gates_bank_directories"][0]).glob("*.json.gz"))
    fleet.play("playbooks/bank.yml", "-e", "bank_accept=true").ok()
    assert list(Path(fleet.values()["gates_bank_directories"][0]).glob("sandbox_tiny.json.gz"))


def test_a_second_launch_restarts_nothing_and_makes_it_last_good(fleet: Fleet) -> None:
    before = fleet.ranks()
    fleet.play("playbooks/launch.yml").ok()
    assert fleet.ranks() == before
    state = fleet.state()
    assert (state["status"], state["last_good"]) == ("serving", state["current"])


def test_site_changes_nothing_under_a_serving_lane(fleet: Fleet) -> None:
    before = fleet.ranks()
    assert fleet.play("site.yml").ok().changed == 0
    assert fleet.ranks() == before


def test_render_tells_how_what_runs_differs_from_the_lane(fleet: Fleet) -> None:
    before = fleet.ranks()
    made = fleet.play("playbooks/render.yml", "--diff").ok()
    assert made.changed == 0
    for rank, node in enumerate(NODES):
        assert f"# {node}: sparklanes-sparks-rank{rank} is what the lane renders" in made.out
    other = fleet.play("playbooks/render.yml", "--diff", "-e", "lane_max_model_len=256", "-e", "lane_api_host=0.0.0.0").ok().out
    assert "flag --max-model-len: runs with 512, the lane says 256" in other
    # One that a person started by hand, with a secret that must not be shown.
    fleet.on(
        "spark-1",
        "docker create --name by_hand --network host -e HF_TOKEN=hf_shown -e DO_NOT_TRACK=1 "
        f"--entrypoint vllm {fleet.image} serve /models/tiny --max_model_len 512 --api-key sk_shown",
    )
    try:
        made = fleet.play("playbooks/render.yml", "--diff", "-e", "render_container=by_hand").ok()
    finally:
        fleet.on("spark-1", "docker rm by_hand")
    assert "# spark-1: by_hand, which does not run, differs from what the lane renders in" in made.out
    assert "limit ipc: runs with private, the lane says host" in made.out
    assert "flag --max-num-seqs: the lane adds 8" in made.out
    assert "flag --max-model-len:" not in made.out
    assert "env DO_NOT_TRACK:" not in made.out
    assert "hf_shown" not in made.out
    assert "sk_shown" not in made.out
    assert "# spark-2: no container to compare with" in made.out
    assert fleet.ranks() == before


def test_there_is_nothing_to_recover_while_it_serves(fleet: Fleet) -> None:
    before = fleet.ranks()
    fleet.play("playbooks/recover.yml").failed("no launch was interrupted")
    assert fleet.ranks() == before
    assert fleet.transaction() == {}


def test_part_of_a_serving_deployment_is_neither_launched_nor_stopped(fleet: Fleet) -> None:
    before = fleet.ranks()
    for verb in ("launch", "stop"):
        fleet.play(f"playbooks/{verb}.yml", limit="spark-1").failed("spark-2")
    assert fleet.ranks() == before


def test_a_lock_that_one_rank_refuses_is_given_back_on_the_other(fleet: Fleet) -> None:
    before = fleet.ranks()
    path = "/var/lib/sparklanes/deployments/sparks/transaction.json"
    held = {
        "id": "of-another",
        "phase": "boot",
        "controller": "elsewhere",
        "opened": 0,
        "heartbeat": time.time(),
        "lease_seconds": 900,
    }
    fleet.on("spark-2", f"echo '{json.dumps(held)}' > {path}")
    try:
        fleet.play("playbooks/stop.yml").failed("of-another of elsewhere", "holds the lock", "break_lock=of-another")
        assert fleet.transaction("spark-1") == {}
        assert fleet.transaction("spark-2") == held
    finally:
        fleet.on("spark-2", f"rm -f {path}")
    assert fleet.ranks() == before


def test_a_lane_that_does_not_boot_gives_way_to_the_last_good_one(fleet: Fleet) -> None:
    good = fleet.state()["current"]
    # A flag that the engine does not know would be refused before the stop; what a value means shows only in the boot.
    bad = json.dumps({"lane_engine_args_override": {"--dtype": "float128"}})
    fleet.play("playbooks/launch.yml", "-e", bad).failed("--dtype", f"Release {good}", "serves again")
    state = fleet.state()
    assert (state["status"], state["current"], state["last_good"]) == ("restored-judged", good, good)
    assert "--dtype" in state["reason"]
    assert fleet.transaction() == {}
    assert fleet.logged() == set(NODES)
    assert ask(fleet, "/health")[0] == 200


def test_status_sees_the_dead_rank_behind_a_healthy_api_and_a_launch_heals_it(fleet: Fleet) -> None:
    fleet.on("spark-2", "docker kill sparklanes-sparks-rank1")
    assert ask(fleet, "/health")[0] == 200, "this is why /health is not trusted"
    out = fleet.play("playbooks/status.yml").ok().out
    assert "BROKEN" in out
    assert "spark-2" in out.split("BROKEN")[1].splitlines()[0]
    fleet.play("playbooks/launch.yml").ok()
    assert all(fleet.ranks().values())
    assert fleet.state()["status"] == "serving"


def test_ctrl_c_in_a_boot_is_survived_by_launching_again(fleet: Fleet) -> None:
    fleet.interrupted(signal.SIGINT, "starting", "waiting for the other ranks", after=2)
    left = fleet.transaction()
    assert left["phase"] == "start", "the journal says how far it came"
    assert "open" in fleet.play("playbooks/status.yml").ok().out
    fleet.play("playbooks/launch.yml").ok()
    assert fleet.transaction() == {}
    assert fleet.state()["status"] == "serving"
    assert all(fleet.ranks().values())


def test_memory_that_is_not_there_waits_for_a_person(fleet: Fleet) -> None:
    """No machine of these tests has that much. The last good release would meet the same memory."""
    wish = ["-e", "lane_min_free_gib=100", "-e", "lane_settle_seconds=3"]
    fleet.play("playbooks/launch.yml", *wish).failed("MEM.SETTLED", "held after 3 s", "a person looks first")
    assert not any(fleet.ranks().values())
    assert fleet.state()["status"] == "failed"


def test_stopping_saves_the_logs_and_leaves_nothing(fleet: Fleet) -> None:
    fleet.play("playbooks/stop.yml").ok()
    for node in NODES:
        assert fleet.on(node, "docker ps --all --quiet --filter label=sparklanes.deployment") == ""
        assert fleet.on(node, "ls -t /var/log/sparklanes/sparks/*/rank*.log | head -1")
    assert fleet.state()["status"] == "stopped"
    assert fleet.state()["last_good"], "what was good once is known after a stop"
    assert fleet.play("playbooks/stop.yml").ok().changed == 0
