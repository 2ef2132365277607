# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The gates as wholes: who did not answer is never taken for well, and one table says everything at once."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.gates import forcing, launch
from ansible.module_utils.sparklanes.quality.teacher_forcing import bank as banks
from hostvars import registered
from lane_files import options, resolved
from test_budget import measured
from test_readiness import FABRICS, HOSTS, SPECS, facts, world

RELEASE = "a" * 12
SILENT = [None, {}, {"unreachable": True}, {"skipped": True}]
GOOD = {host: facts() for host in HOSTS}


def looked(**more: Any) -> dict[str, Any]:
    return {"readiness": facts(**more)}


def failed(checks: list[Check]) -> set[str]:
    return {f"{check.host} {check.id}" for check in checks if check.status == "fail"}


def gate_a(known: Any, lanes: Any = None, **given: Any) -> list[Check]:
    more = {"fatal": ["machine"], "break_lock": "", "forget_deaths": False} | given
    return launch.gate_a(known, HOSTS, SPECS, lanes or {}, "mine", 1001.0, **more)


def test_a_ready_deployment_passes_both_gates() -> None:
    assert failed(gate_a(world(GOOD))) == set()
    assert failed(launch.gate_b(world(GOOD), HOSTS, SPECS, {})) == set()


@pytest.mark.parametrize("silent", SILENT)
def test_a_silent_host_fails_every_gate(silent: Any) -> None:
    known = world(GOOD, gates_readiness={"s1": looked(), "s2": silent}, gates_rank={"s1": {}, "s2": silent})
    assert {name.split()[0] for name in failed(gate_a(known))} == {"s2"}
    assert {name.split()[0] for name in failed(launch.gate_b(known, HOSTS, SPECS, {}))} == {"s2"}
    assert "s2 RANK.ALIVE" in failed(launch.alive(known, HOSTS, RELEASE))
    assert launch.serves(known, HOSTS, RELEASE, "gates_readiness") is False


def test_a_look_that_failed_is_no_silent_host() -> None:
    """Who reads "no answer over ssh" looks at cables and power; the module said what is wrong."""
    known = world(GOOD, gates_readiness={"s1": looked(), "s2": {"failed": True, "msg": "state.json is no JSON"}})
    rows = {
        check.id: (check.status, check.found) for check in gate_a(known) if check.host == "s2" and check.id.startswith("NODE.")
    }
    assert rows == {"NODE.REACHABLE": ("pass", "answers"), "NODE.FACTS": ("fail", "state.json is no JSON")}


def test_gate_a_is_one_table_of_host_image_memory_and_readiness() -> None:
    """Whoever has to mend four things is told of all four at once."""
    memory = {"MemTotal": 121 * 1024**3, "MemAvailable": 60 * 1024**3}
    lane = {**measured("glm53_dcp4_nvfp4"), "lane_image": {"vllm": "0.11.0"}}
    broken = facts(memory=memory, shm_total_bytes=1)
    known = world({"s1": broken, "s2": facts()}, gates_host={"s1": {"unreachable": True}, "s2": None})
    assert {"s1 MEM.SHM", "s1 BUDGET.UTILIZATION", "s1 IMAGE.PINS", "s1 HOST.FACTS", "s2 HOST.FACTS"} <= failed(
        gate_a(known, dict.fromkeys(HOSTS, lane))
    )


def test_gate_a_holds_what_the_sparks_have_against_the_traps_of_the_lane() -> None:
    """Config of the weights and versions of the image: preflight asks no Spark."""
    lane = resolved("flash_nvfp4_dflash2_tp2", lane_image_site={"pins": {"nccl": None}})
    gist = {"config": {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "tensors": ["a.*.weight"]}
    probe = {"packages": {"nvidia-nccl-cu13": "2.29.7"}}
    image = {**facts()["image"], "probe": probe}

    def traps(models: Any, asked: Any) -> set[tuple[str, str]]:
        staging: dict[str, Any] = {"s1": {"staged": True, "models": models}, "s2": {"staged": True}}
        known = world({"s1": facts(image=asked), "s2": facts()}, model_weights_result=staging)
        made = gate_a(known, dict.fromkeys(HOSTS, lane), schema=options())
        return {(check.host, check.id) for check in made if check.id.startswith("TRAP.")}

    bad = [{"name": "model", "gist": gist}, {"name": "drafter", "gist": {"config": {"architectures": ["DFlashDraftModel"]}}}]
    assert traps(bad, None) == {
        ("s1", "TRAP.WEIGHTS_MODELOPT"),
        ("s1", "TRAP.NVFP4_INPUT_SCALE"),
        ("s1", "TRAP.SPEC_DRAFTER_RENAMED"),
    }
    assert traps([{"name": "model", "gist": None}], image) == {("s1", "TRAP.PIN_NCCL"), ("s2", "TRAP.PIN_NCCL")}
    assert traps([], None) == set()


@pytest.mark.parametrize(
    ("first", "second", "fails"),
    [
        (["a (transaction t1)"], ["a (transaction t1)"], False),
        (["a (transaction t1)"], [], False),
        (["a (transaction t1)"], ["b (transaction t2)"], True),
        ([], ["a (transaction t1)", "b (transaction t2)"], True),
    ],
)
def test_deaths_are_counted_once_for_the_deployment_with_their_causes(first: list[str], second: list[str], fails: bool) -> None:
    known = world({"s1": facts(deployment_state={"deaths": first}), "s2": facts(deployment_state={"deaths": second})})
    (row,) = [check for check in gate_a(known) if check.id == "DEATHS.EXPLAINED"]
    assert (row.host, row.status == "fail") == ("sparks", fails)
    assert all(death in row.found for death in {*first, *second})


@pytest.mark.parametrize("part", ["transaction", "deployment_state"])
def test_what_a_rank_cannot_read_stops_a_launch_and_is_named(part: str) -> None:
    unread = {"unreadable": f"/var/lib/{part}.json can't be read (it is empty)", "id": "unreadable-1a2b3c4d"}
    known = world({"s1": facts(), "s2": facts(**{part: unread})})
    rows = [check for check in gate_a(known) if check.status == "fail" and check.host == "s2"]
    assert [check.id for check in rows] == ["LOCK.FREE" if part == "transaction" else "DEATHS.EXPLAINED"]
    assert "can't be read" in rows[0].found
    lifted = failed(gate_a(known, break_lock="unreadable-1a2b3c4d"))
    assert lifted == (set() if part == "transaction" else {"s2 DEATHS.EXPLAINED"})


def test_a_persons_decisions_lift_what_they_name_and_nothing_else() -> None:
    other = {"id": "theirs", "phase": "boot", "controller": "desk", "opened": 1, "heartbeat": 990, "lease_seconds": 60}
    known = world({"s1": facts(transaction=other, deployment_state={"deaths": ["a", "b"]}), "s2": facts()})
    assert failed(gate_a(known)) == {"s1 LOCK.FREE", "sparks DEATHS.EXPLAINED"}
    (row,) = [check for check in gate_a(known) if check.id == "LOCK.FREE" and check.status == "fail"]
    assert row.remedy.endswith("playbooks/recover.yml -e break_lock=theirs"), (
        "what to type is no part of a column, which is wrapped"
    )
    assert "playbooks" not in row.found
    assert failed(gate_a(known, break_lock="theirs")) == {"sparks DEATHS.EXPLAINED"}
    assert failed(gate_a(known, break_lock="true")) == {"s1 LOCK.FREE", "sparks DEATHS.EXPLAINED"}
    assert failed(gate_a(known, forget_deaths=True)) == {"s1 LOCK.FREE"}


def test_a_misspelled_property_is_refused_with_its_variable() -> None:
    with pytest.raises(ValueError, match=r"gates_parity_fatal: machin is unknown"):
        gate_a(world(GOOD), fatal=["machin"])


def test_gate_b_tells_what_the_engine_would_refuse() -> None:
    memory = {"MemTotal": 121 * 1024**3, "MemAvailable": 90 * 1024**3}
    known = world({"s1": facts(memory=memory), "s2": facts(memory={**memory, "MemAvailable": 118 * 1024**3})})
    lane = {"lane_gpu_memory_utilization": 0.9, "lane_gpu_arch": "sm_121"}
    assert failed(launch.gate_b(known, HOSTS, SPECS, dict.fromkeys(HOSTS, lane))) == {"s1 BUDGET.UTILIZATION"}


def reach(found: Any, fabrics: Any) -> list[Check]:
    return launch.reach(registered(found, __roce_found=found, roce_fabric=fabrics), list(found))


def test_the_first_look_compares_the_fabrics_of_all_ranks() -> None:
    both: dict[str, Any] = {host: {"fabric": {}} for host in HOSTS}
    assert failed(reach(both, FABRICS)) == set()
    assert failed(reach(both, {**FABRICS, "s2": {}})) == {"s2 FABRIC.FACTS"}
    assert "s2 FABRIC.ADDRESS" in failed(reach(both, {**FABRICS, "s2": FABRICS["s1"]}))
    assert failed(reach({"s1": {"skipped": True}}, {})) == set(), "one node needs no fabric"


def test_the_first_look_names_the_silent_and_compares_no_parts() -> None:
    made = reach({"s1": {"fabric": {}}, "s2": {"unreachable": True}}, FABRICS)
    assert failed(made) == {"s2 NODE.REACHABLE"}
    assert not any(check.id.startswith("FABRIC") for check in made)


def test_what_each_rank_tries_over_the_fabric() -> None:
    plans = launch.reach_plans(world(GOOD), HOSTS, SPECS)
    assert {host: [probe["peer"] for probe in plan["probes"]] for host, plan in plans.items()} == {"s1": ["s2"], "s2": ["s1"]}


def test_a_deployment_lives_by_its_containers_and_by_a_real_generation() -> None:
    ranks = {host: {"running": True, "release": RELEASE} for host in HOSTS}
    good = {"checks": [{"id": "ENGINE.COMPLETION", "host": "s1", "status": "pass", "found": "5 tokens"}]}
    bad = {"checks": [{"id": "ENGINE.COMPLETION", "host": "s1", "status": "fail", "found": "no tokens"}]}

    def alive(**more: Any) -> set[str]:
        return failed(
            launch.alive(registered(HOSTS, **{"gates_rank": ranks, "gates_probe": {"s1": good}, **more}), HOSTS, RELEASE)
        )

    assert alive() == set()
    assert alive(gates_probe={"s1": bad}) == {"s1 ENGINE.COMPLETION"}
    assert alive(gates_probe={}) == {"s1 ENGINE.HEALTH"}, "who was not asked generated nothing"
    assert alive(gates_rank={**ranks, "s2": {"running": True, "release": "b" * 12}}) == {"s2 RANK.ALIVE"}


@pytest.mark.parametrize(
    "args",
    [
        {"--speculative-config": {"method": "mtp", "num_speculative_tokens": 2}},
        {"--speculative-config": '{"method": "mtp", "num_speculative_tokens": 2}'},
        {"--speculative_config.method": "mtp", "--speculative_config.num_speculative_tokens": 2},
        {"--spec-method": "mtp", "--spec-tokens": 2},
    ],
)
def test_drafts_are_judged_however_the_lane_spells_its_drafter(args: dict[str, Any]) -> None:
    counted = {"drafts": 335.0, "draft_tokens": 670.0, "accepted_tokens": 0.0, "accepted_per_position": [0.0, 0.0]}
    asked = {"id": "ENGINE.COMPLETION", "host": "s1", "status": "pass", "found": "5 tokens"}
    probe = {"checks": [asked], "facts": {"metrics": {"spec": counted}}}
    ranks = {host: {"running": True, "release": RELEASE} for host in HOSTS}
    known = registered(HOSTS, gates_rank=ranks, gates_probe={"s1": probe})
    drafting, plain = (measured("glm53_dcp4_nvfp4", with_={"lane_engine_args": given}) for given in (args, {}))
    assert failed(launch.alive(known, HOSTS, RELEASE, dict.fromkeys(HOSTS, drafting))) == {"s1 QUALITY.DRAFTS"}
    assert failed(launch.alive(known, HOSTS, RELEASE, dict.fromkeys(HOSTS, plain))) == set()


@pytest.mark.parametrize("silent", SILENT)
def test_no_other_lane_is_seen_on_a_silent_host(silent: Any) -> None:
    assert launch.other_lane(silent, "tiny") == ""


@pytest.mark.parametrize("silent", SILENT)
def test_a_silent_host_is_not_idle(silent: Any) -> None:
    idle = facts(gpu={"present": True, "processes": []})
    known = registered(HOSTS, seen={"s1": {"readiness": idle}, "s2": silent})
    assert failed(launch.idle(known, HOSTS, "seen")) == {"s2 NODE.IDLE"}


SPEC = {
    "rank": 0,
    "image": "r/engine@sha256:abc",
    "mounts": [{"source": "/v/overlays/b"}, {"source": "/v/models/m"}, {"source": "/v/overlays/a"}],
}


def test_the_identity_of_a_rank_is_image_overlays_and_weights() -> None:
    models = {"models": [{"name": "model", "revision": "c0ffee", "manifest_sha256": "d1"}]}
    assert forcing.identity("s1", SPEC, models) == {
        "rank": 0,
        "node": "s1",
        "image": "sha256:abc",
        "overlays": ["/v/overlays/a", "/v/overlays/b"],
        "weights": [["model", "c0ffee", "d1"]],
    }
    assert forcing.identity("s1", SPEC, None)["weights"] == [], "nothing is known, nothing is claimed"


def lane(**more: Any) -> dict[str, Any]:
    return {"lane_tensor_parallel_size": 2, "lane_engine_args": {}, **more}


def test_what_is_kept_with_the_scores() -> None:
    bare = forcing.engine({"s1": {}}, ["s1"], {"s1": SPEC}, lane())
    assert {key: value for key, value in bare.items() if key != "ranks"} == {
        "vllm_version": "",
        "kv_cache_dtype": "auto",
        "tensor_parallel_size": 2,
        "max_num_batched_tokens": 0,
        "enforce_eager": False,
        "speculative_config": "",
    }
    told = lane(
        lane_image={"vllm": "0.11"}, lane_kv_cache_dtype="fp8", lane_max_num_batched_tokens=4096,
        lane_engine_args={"--enforce-eager": True, "--speculative-config": {"method": "mtp"}},
    )  # fmt: skip
    made = forcing.engine({"s1": {}}, ["s1"], {"s1": SPEC}, told)
    assert (made["vllm_version"], made["kv_cache_dtype"], made["max_num_batched_tokens"]) == ("0.11", "fp8", 4096)
    assert (made["enforce_eager"], made["speculative_config"], made["ranks"][0]["node"]) == (True, {"method": "mtp"}, "s1")


def test_the_judge_is_told_of_what_no_bank_can_be_compared_with() -> None:
    """As BANK.FIT refuses it before the stop: of a lane, and of a release that was frozen when nobody asked."""
    told = lane(lane_engine_args={"--logprobs-mode": "raw_logits"})
    frozen = {**SPEC, "entrypoint": "vllm", "command": ["serve", "/m", "--logprobs-mode", "raw_logits"]}
    for made in (
        forcing.engine({"s1": {}}, ["s1"], {"s1": SPEC}, told),
        forcing.frozen_engine({"s1": {}}, ["s1"], {"s1": frozen}),
    ):
        assert banks.mode_problem(made["logprobs_mode"]) == "--logprobs-mode raw_logits gives logits"
    assert banks.mode_problem("raw_logprobs") == banks.mode_problem("") == ""


@pytest.mark.parametrize(
    ("more", "chunk", "min_chunk", "longest"),
    [
        ({}, 2048, 0, None),
        ({"lane_max_num_batched_tokens": 8192, "lane_max_model_len": 4096}, 8192, 0, 4096),
        ({"lane_engine_args": {"--speculative-config": "{}"}}, 2048, 512, None),
        ({"lane_engine_args": {"--speculative-config": "{}", "--enforce-eager": True}}, 2048, 0, None),
    ],
)
def test_a_corpus_suits_the_lane(more: dict[str, Any], chunk: int, min_chunk: int, longest: int | None) -> None:
    made = forcing.corpus(lane(**more), {"text": []}, 16384, 200)
    assert (made["chunk"], made["min_chunk"], made.get("max_model_len")) == (chunk, min_chunk, longest)
    assert (made["source"], made["max_doc_tokens"], made["chat_tokens"]) == ({"text": []}, 16384, 200)


def test_a_paused_rank_fails_at_once_and_nobody_waits_for_its_engine() -> None:
    """Docker calls a paused container running, and each question to its engine waits for its time-out."""
    box = {"name": "sparklanes-sparks-rank1", "status": "paused"}
    ranks = {"s1": {"running": True, "release": RELEASE}, "s2": {"running": True, "release": RELEASE, "container": box}}
    known = registered(HOSTS, gates_rank=ranks, gates_probe={"s1": {"skipped": True, "changed": False}})
    (row,) = [check for check in launch.alive(known, HOSTS, RELEASE) if check.status == "fail"]
    assert (row.host, row.id, row.found) == ("s2", "RANK.ALIVE", "sparklanes-sparks-rank1 is paused")
    assert "docker unpause sparklanes-sparks-rank1" in row.remedy


def test_ranks_that_live_without_an_answer_of_the_engine_do_not_pass() -> None:
    ranks = {host: {"running": True, "release": RELEASE} for host in HOSTS}
    for probe in (None, {"skipped": True}, {}):
        known = registered(HOSTS, gates_rank=ranks, gates_probe={"s1": probe})
        assert failed(launch.alive(known, HOSTS, RELEASE)) == {"s1 ENGINE.HEALTH"}


def test_what_teacher_forcing_refuses_is_one_sentence_with_node_and_hint_first() -> None:
    checks = [{"id": id_, "status": "fail", "found": "x" * 500} for id_ in ("TF.BIAS", "TF.BANDS")]
    hint = "only tokens of vocabulary part 1 of 2: the embedding or head shard of that rank"
    forcing_ = {
        "verdict": "fail",
        "reason": "bias -1.2 nat",
        "hint": hint,
        "vocabulary_part": {"part": 1, "of": 2},
        "checks": checks,
    }
    text = forcing.said(forcing_, ["s1", "s2"])
    assert text == f"s2: {hint}: bias -1.2 nat (2 checks failed, the report above names each)"
    assert forcing.said(forcing_, ["s1", "s2", "s3"]).startswith("only tokens"), "three ranks do not split two parts"
    assert forcing.said({"reason": "ranks differ.", "hint": "", "checks": checks[:1]}, ["s1"]) == "ranks differ"
    assert forcing.said({}, ["s1"]) == "it gave no reason"
