"""Traps as data: what a condition means, and what of `lane_traps` is refused with which words."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.gates.preflight import preflight
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.traps import known
from ansible.module_utils.sparklanes.traps import rules as traps_rules
from ansible.module_utils.sparklanes.traps.conditions import version
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lane_files import options, resolved, variables_of

LANE = "flash_nvfp4_dflash2_tp2"
TEXTS = {"why": "It broke.", "want": "less", "remedy": "Say less.", "source": "measured here", "severity": "warn"}
SPEC = yaml.safe_load((ROOT / "roles/lane/meta/argument_specs.yml").read_text(encoding="utf-8"))


def trap(when: Any, **more: Any) -> dict[str, Any]:
    return {**TEXTS, "when": when, **more}


def found(when: Any, lane: dict[str, Any] | None = None, **more: Any) -> list[str]:
    """What a trap with these conditions finds in a lane; ValueError where it can't be read."""
    made, faults = known.rules({"MINE": trap(when, **more)}, options())
    if faults:
        raise ValueError(faults[0].found)
    return list(made[0].find(View(lane or resolved(LANE))))


# The lane: NVFP4 on two Sparks, 262,144 tokens, 6 GiB pinned, DFlash2, vLLM 0.1.dev20051, block size 2304, eager.
@pytest.mark.parametrize(
    ("name", "condition", "holds"),
    [
        ("lane_nodes", 2, True),
        ("lane_nodes", "2", True),
        ("lane_nodes", 3, False),
        ("lane_nodes", "> 1", True),
        ("lane_nodes", "<1", False),
        ("lane_nodes", {"not": 2}, False),
        ("lane_nodes", {"all": ["> 1", "< 3"]}, True),
        ("lane_nodes", {"all": ["> 1", {"not": [2, 4]}]}, False),
        ("lane_max_model_len", "> 262143", True),
        ("lane_max_model_len", [absent := "absent", ">= 262144"], True),
        ("lane_max_model_len", absent, False),
        ("lane_kv_cache_memory_bytes", ">= 6GiB", True),
        ("lane_kv_cache_memory_bytes", "> 6 GiB", False),
        ("lane_kv_cache_memory_bytes", "6GiB", True),
        ("lane_gpu_arch", "sm_121", True),
        ("lane_gpu_arch", ["sm_90", "sm_120"], False),
        ("lane_swap", "recycle", True),
        ("lane_model.repo", "*GLM-5.3-flash*", True),
        ("lane_model.repo", "*-w4a16-*", False),
        ("lane_model.repo", "RedHatAI/GLM-5.3-Flash-NVFP4", True),
        ("lane_model.repo", "redhatai/glm-5.3-flash-nvfp4", False),
        ("lane_model.sha256.config.json", absent, True),
        ("lane_image.vllm", "< 0.28", True),
        ("lane_image.vllm", {"not": ">= 0.0.9"}, False),
        ("lane_image.vllm", "*g487ecf187", True),
        ("lane_image.pins.nccl", "< 2.30", False),
        ("lane_image.pins.pdl", {"not": True}, True),
        ("lane_image.pins.flashinfer", {"not": ">= 0.6.18"}, False),
        ("lane_container.memory", "112g", True),
        ("lane_max_model_len", {"multiple_of": 64}, True),
        ("lane_max_model_len", {"multiple_of": 100}, False),
        ("--block-size", {"not": {"multiple_of": 64}}, False),
        ("env.NOBODY", {"multiple_of": 2}, False),
        ("--block-size", 2304, True),
        ("--block-size", "2304", True),
        ("--block_size", "> 2303.5", True),
        ("--max-model-len", 262144, True),
        ("--enforce-eager", absent, False),
        ("--no-enable-prefix-caching", absent, True),
        ("--speculative-config", "present", True),
        ("--speculative-config.method", "dflash", True),
        ("--speculative-config.*method", "dflash", True),
        ("--speculative-config.*nothing", absent, True),
        ("--speculative-config.num_speculative_tokens", {"not": 7}, False),
        ("--served-model-name", "glm-5.3-flash", True),
        ("env.MAX_JOBS", 2, True),
        ("env.MAX_JOBS", "> 1", True),
        ("env.NOBODY", absent, True),
        ("env.NOBODY", {"not": "1"}, True),
        ("env.NOBODY", "> 0", False),
        ("drafts", "dflash", True),
        ("image", "*:sm121-v11-dflash2", True),
        ("image", ["*sm121-v[0-7]", "*sm121-v[0-7][!0-9]*"], False),
        ("build_dates", absent, True),
        ("cuda_graphs", "NONE", True),
        ("overlays", "*/sparse_attn_indexer_kpool.py", True),
        ("overlays", {"not": "*/indexer.py"}, True),
        ("overlay_markers", {"not": "*/flashmla_sparse.py nvfp4_ds_mla"}, True),
        ("unknowns", "lane_drafter", True),
    ],
)
def test_what_a_condition_means(name: str, condition: Any, holds: bool) -> None:
    assert bool(found({name: condition})) is holds


def test_names_of_text_take_the_words_that_yaml_reads_as_booleans() -> None:
    assert found({"lane_page_cache_policy": {"not": False}})
    assert not found({"lane_page_cache_policy": False})


@pytest.mark.parametrize(
    ("left", "right", "less"),
    [
        ("0.9", "0.28", True),
        ("0.28.1rc1.dev580+g385dce36b", "0.28", False),
        ("0.6.18.dev20260819", "0.6.18", False),
        ("v2.29.7", "2.30", True),
        ("2.30", "2.30.0", False),
    ],
)
def test_versions_compare_by_their_numbers(left: str, right: str, less: bool) -> None:
    assert (version(left) < version(right)) is less


def test_all_conditions_of_one_mapping_hold_or_nothing_is_found() -> None:
    assert found({"lane_nodes": 2, "lane_max_model_len": "> 200000"})
    assert not found({"lane_nodes": 2, "lane_max_model_len": "> 900000"})


def test_one_of_several_ways_is_enough_and_each_that_holds_is_said_in_one_sentence() -> None:
    when = [{"lane_nodes": 2}, {"lane_nodes": 3}, {"lane_max_model_len": "> 0"}, {"lane_nodes": "> 1"}]
    assert found(when) == ["lane_nodes is 2; lane_max_model_len is 262144"]
    assert found(when, found=["two", "three", "long", "two"]) == ["two; long"]
    assert found(when, found="{lane_nodes} nodes") == ["2 nodes"]


def test_what_was_found_shows_values() -> None:
    said = "{lane_max_model_len:,} tokens, {lane_kv_cache_memory_bytes}, {--kv-cache-dtype}, {env.NOBODY|nothing}, {env.NOBODY}{env.NOBODY|}, {overlays}"
    (text,) = found({"lane_nodes": 2}, found=said)
    assert text.startswith("262,144 tokens, 6.00 GiB, fp8_e4m3, nothing, absent, /usr/local/lib/")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("text", "is 'text'; a mapping belongs there"),
        ([1], "is a list of 1; a mapping"),
        (None, "is nothing; a mapping"),
        ({}, "has no severity"),
        (trap(None), "when is nothing; a mapping of 1 to 32"),
        (trap({}), "when is a mapping of 0"),
        (trap([]), "lists 0 ways"),
        (trap(["x"]), "when is 'x'"),
        (trap([{"lane_nodes": 1}] * 33), "lists 33 ways"),
        (trap({"lane_nodes": 1}, source=""), "has no source"),
        (trap({"lane_nodes": 1}, source=" "), "source is ' '; a text"),
        (trap({"lane_nodes": 1}, why={"a": 1}), "why is a mapping of 1; a text"),
        (trap({"lane_nodes": 1}, remedy="x" * 2001), "remedy is 'xxx"),
        (trap({"lane_nodes": 1}, severity="refuses"), "severity is 'refuses': refuse, warn or note. Did you mean refuse?"),
        (trap({"lane_nodes": 1}, sorce="x"), ".sorce is no part of a trap. Did you mean source?"),
        (trap({"lane_nodes": 1}, found="{lane_node}"), "found: lane_node is no flag, variable or fact. Did you mean lane_nodes?"),
        (trap({"lane_nodes": 1}, found="{lane_nodes"), "braces belong around names only"),
        (trap({"lane_nodes": 1}, found=["a", "b"]), "found has 2 texts for 1 of when"),
        (trap({"contxt": 1}), "when: contxt is no flag, variable or fact"),
        (trap({"lane_max_model_length": 1}), "Did you mean lane_max_model_len?"),
        (trap({"overlay": "x"}), "Did you mean overlays?"),
        (trap({1: 1}), "when: 1 is no name"),
        (trap({"lane_model.rep": 1}), "lane_model has no part rep. Did you mean repo?"),
        (trap({"lane_nodes.x": 1}), "lane_nodes has no parts"),
        (trap({"lane_engine_args.--block-size": 1}), "write --block-size, which is what the engine reads"),
        (trap({"lane_engine_env.MAX_JOBS": 1}), "write env.MAX_JOBS"),
        (trap({"--block-sice": 1}), "no engine that we know has --block-sice. Did you mean --block-size?"),
        (trap({"--nnodes": 1}), "--nnodes is no flag of a lane: it is lane_nodes"),
        (trap({"--spec-method": 1}), "read as --speculative-config.method: write that"),
        (trap({"--block-size.x": 1}), "--block-size takes no JSON"),
        (trap({"env.MAX JOBS": 1}), "no variable of an environment"),
        (trap({"x" * 300: 1}), "is too long for a name"),
        (trap({"lane_nodes": None}), "when.lane_nodes: nothing is no condition"),
        (trap({"lane_nodes": "two"}), "when.lane_nodes: 'two' is no number"),
        (trap({"lane_nodes": True}), "neither true nor false"),
        (trap({"lane_nodes": "> many"}), "'many' is no number"),
        (trap({"lane_nodes": "> nan"}), "'nan' is no number"),
        (trap({"lane_nodes": float("inf")}), "no finite number"),
        (trap({"lane_nodes": ">"}), "compares with nothing"),
        (trap({"lane_nodes": "*2*"}), "is a pattern of text, and lane_nodes is a number"),
        (trap({"lane_nodes": []}), "a list of 1 to 64"),
        (trap({"lane_nodes": [1] * 65}), "a list of 1 to 64"),
        (trap({"lane_nodes": {"nto": 1}}), "'nto' is no operator: not, all and multiple_of are. Did you mean not?"),
        (trap({"lane_nodes": {"multiple_of": 0}}), "multiple_of is 0; a whole number from 2 on"),
        (trap({"lane_nodes": {"multiple_of": "64"}}), "multiple_of is '64'; a whole number"),
        (trap({"lane_model.repo": {"multiple_of": 2}}), "multiple_of is of numbers"),
        (trap({"config": "x"}), "name a part of it, as config.model_type"),
        (trap({"tensors.x": "x"}), "tensors has no parts"),
        (trap({"drafter_confg.x": 1}), "is no flag, variable or fact. Did you mean drafter_config?"),
        (trap({"lane_nodes": {"not": 1, "all": [1]}}), "one operator"),
        (trap({"lane_nodes": {}}), "one operator"),
        (trap({"lane_nodes": {"all": 1}}), "a list of 1 to 64"),
        (trap({"lane_nodes": [[[[[[1]]]]]]}), "more than 4 deep"),
        (trap({"lane_gpu_arch": "sm121"}), "is none of sm_121, sm_120, sm_90, cpu. Did you mean sm_121?"),
        (trap({"lane_model.repo": "> 4"}), "compares numbers, and lane_model.repo is text"),
        (trap({"lane_verify_serial": "yes please"}), "neither true nor false"),
        (trap({"lane_verify_serial": 1}), "neither true nor false"),
        (trap({"lane_kv_cache_memory_bytes": "> 32G"}), "is no size"),
        (trap({"lane_image.vllm": "< latest"}), "is no version"),
        (trap({"lane_image.vllm": 0.28}), "write versions in quotes"),
        (trap({"image": "*" * 9}), "8 times *"),
    ],
)
def test_what_can_not_be_read_is_refused_by_name(given: Any, words: str) -> None:
    made, (fault,) = known.rules({"MINE": given}, options())
    assert made == []
    assert fault.id == "LANE.TRAP_RULES"
    assert fault.found.startswith("lane_traps.MINE")
    assert words in fault.found
    assert len(fault.found) < 400


@pytest.mark.parametrize("id_", ["mine", "TRAP.MINE", "M", "M" * 80, "1", ""])
def test_ids_have_their_form(id_: str) -> None:
    _, (fault,) = known.rules({id_: trap({"lane_nodes": 1})}, options())
    assert "an id is of capital letters" in fault.found


def test_a_site_can_not_replace_a_rule_for_all_lanes() -> None:
    lane = resolved(LANE, lane_traps_site={"FLAG_UNKNOWN": trap({"lane_nodes": 1})})
    _, (fault,) = traps_rules.rules_of(lane, options())
    assert "this id is that of a rule for all lanes" in fault.found


def test_a_broken_trap_hides_no_other_and_is_never_a_pass() -> None:
    lane = resolved(LANE, lane_traps_site={"MINE": trap({"lane_nodes": 2}), "BROKEN": trap({"lane_nods": 2})})
    checks = traps_rules.trap_checks(lane, "s1", options(), {"lane_traps_site": {"BROKEN": {}}, "lane_traps": {"BROKEN": {}}})
    by_id = {check.id: check for check in checks}
    assert by_id["LANE.TRAP_RULES"].status == "fail"
    assert "lane_nods is no flag, variable or fact. Did you mean lane_nodes?" in by_id["LANE.TRAP_RULES"].found
    assert by_id["LANE.TRAP_RULES"].remedy == "Correct it in lane_traps_site, or in lane_traps."
    assert by_id["TRAP.MINE"].status == "warn"
    assert "LANE.TRAPS" not in by_id


def test_large_and_deep_values_are_refused_in_linear_time() -> None:
    deep: Any = 2
    for _ in range(300):
        deep = {"not": deep}
    begun = time.monotonic()
    assert "more than 4 deep" in known.rules({"MINE": trap({"lane_nodes": deep})}, options())[1][0].found
    assert known.rules({"MINE": trap({"lane_nodes": list(range(10**6))})}, options())[1]
    assert known.rules({"MINE": trap({f"--x{n}": 1 for n in range(10**5)})}, options())[1]
    assert "at most 500" in known.rules({f"T{n}": trap({"lane_nodes": 1}) for n in range(10**5)}, options())[1][0].expected
    hostile = resolved(LANE, lane_engine_env_override={"LONG": "a" * 10**6})
    assert found({"env.LONG": "*a*a*a*a*a*a*a*b"}, hostile) == []
    assert time.monotonic() - begun < 5


NAMES = st.sampled_from(
    ["lane_nodes", "lane_traps", "lane_drafter.repo", "--speculative-config.*", "image", "overlays", "env.A", "x", ""]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["absent", "> 4", "< x", "*[", "[!]*"])
)
CONDITIONS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["not", "all", "x"]), inner, max_size=2),
    max_leaves=6,
)
WAY = st.dictionaries(NAMES, CONDITIONS, max_size=3)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(when=WAY | st.lists(WAY, max_size=3) | CONDITIONS, said=st.none() | st.text("{}|:,lane_nodes ", max_size=20) | CONDITIONS)
def test_whatever_is_written_is_read_or_refused(when: Any, said: Any) -> None:
    made, faults = known.rules({"MINE": {**trap(when), "found": said}}, options())
    assert len(made) + len(faults) == 1
    view = View(resolved(LANE))
    for rule in made:
        assert all("\n" not in text for text in rule.find(view))


def test_layers_change_one_condition_and_remove_a_trap() -> None:
    base = {"lane_traps_family": {"MINE": trap({"lane_nodes": 2}), "OTHER": trap({"lane_nodes": 2})}}
    more = {**base, "lane_traps_site": {"MINE": {"when": {"lane_nodes": "> 2"}}, "OTHER": None}}
    lane = resolved(LANE, **more)
    rules = {rule.id: rule for rule in traps_rules.rules_of(lane, options())[0]}
    assert "TRAP.OTHER" not in rules
    assert list(rules["TRAP.MINE"].find(View(lane))) == []


# --- the example of docs/traps.md --------------------------------------------------------------------------------


def example() -> dict[str, Any]:
    page = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")
    blocks = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    (block,) = [block for block in blocks if "lane_traps_site:" in block]
    made: dict[str, Any] = yaml.safe_load(block)
    return made


def test_the_example_of_the_page_works_as_the_page_says() -> None:
    """The trap trips, is named by preflight with its reason, can be accepted, and passes once the lane does as it wants."""
    variables = {**example(), "lane": LANE}
    (id_,) = variables["lane_traps_site"]

    def judged(**more: Any) -> dict[str, Any]:
        lane, wrong = lane_schema.resolve({**variables_of(LANE), **variables, **more}, options(), "s1")
        assert [check for check in wrong if check.status != "pass"] == []
        return {check.id: check for check in traps_rules.trap_checks(lane, "s1", options())}

    tripped = judged(lane_max_num_seqs=12)[f"TRAP.{id_}"]
    assert (tripped.status, tripped.found) == ("fail", "12 requests at a time")
    assert f"TRAP.{id_}" not in judged(lane_max_num_seqs=4)
    accepted = judged(lane_max_num_seqs=12, lane_accept_site={f"TRAP.{id_}": "the room is cooled now"})[f"TRAP.{id_}"]
    assert (accepted.status, accepted.found) == ("warn", "12 requests at a time. Accepted: the room is cooled now")


def test_preflight_names_the_variable_in_which_a_trap_is_wrong() -> None:
    bad = {"lane_traps_site": {"MINE": {**trap({"lane_nodes": 2}), "severity": "fatal"}}}
    hosts = ["s1", "s2"]
    hostvars = {host: {**variables_of(LANE), "lane": LANE, **bad} for host in hosts}
    checks = preflight(hostvars, {"sparks": hosts}, hosts, [LANE], lane_schema.schema(SPEC))
    (check, _) = [check for check in checks if check.id == "LANE.TRAP_RULES"]
    assert check.found == "lane_traps.MINE.severity is 'fatal': refuse, warn or note."
    assert check.remedy == "Correct it in lane_traps_site."
