"""Bad input, one mutation for each option of the definition and each rule: refused by preflight, with an id and one sentence.

The mutations follow from argument_specs.yml, so that an option without one fails here.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible.module_utils.sparklanes.common.checks import STATUSES, Check, sentence
from ansible.module_utils.sparklanes.gates.preflight import preflight
from ansible.module_utils.sparklanes.host import sysctl
from ansible.module_utils.sparklanes.lane import limits as lane_limits
from ansible.module_utils.sparklanes.lane import render as lane_render
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane import unknowns as lane_unknowns
from ansible.module_utils.sparklanes.lane.budget import text as budget_text
from ansible.module_utils.sparklanes.lane.schema import Option
from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.rank import checks as rank_checks
from ansible.module_utils.sparklanes.rank import spec as rank_spec
from ansible.module_utils.sparklanes.traps import rules as traps_rules
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trap_files import data_files

SPEC = yaml.safe_load((ROOT / "roles/lane/meta/argument_specs.yml").read_text(encoding="utf-8"))
OPTIONS = lane_schema.schema(SPEC)
SHA = "a" * 64
MODEL = {
    "repo": "owner/model",
    "revision": "b" * 40,
    "path": "/srv/model",
    "container_path": "/models/model",
    "expect": {"shards": 1, "tensors": 1, "bytes": 1},
    "config_sha256": SHA,
    "sha256": {"config.json": SHA},
}
# Every option of the definition has a place in it.
GOOD: dict[str, Any] = {
    "lane": "good",
    "lane_id": "good",
    "lane_title": "A good lane",
    "lane_api_open": True,
    "lane_unknowns": [{"what": "nothing any more", "fill": "lane_port: 8000", "remedy": "None."}],
    "lane_nodes": 2,
    "lane_tensor_parallel_size": 2,
    "lane_gpu_arch": "cpu",
    "lane_image": {"repository": "registry.test/engine", "tag": "v1", "digest": f"sha256:{SHA}", "vllm": "0.32.0", "pins": {"nccl": "2.30.7"}, "archive": {"path": "/srv/e.tar", "sha256": SHA}},
    "lane_model": MODEL,
    "lane_drafter": {**MODEL, "path": "/srv/drafter", "container_path": "/models/drafter"},
    "lane_overlays": [{"source": "a.py", "sha256": SHA, "target": "/app/a.py", "replaces_sha256": SHA, "markers": ["x"]}],
    "lane_extras": [{"source": "lanes/extras/a.jinja", "sha256": SHA, "target": "/extras/a.jinja"}],
    "lane_engine_args": {"--enforce-eager": True},
    "lane_engine_env": {"HF_HUB_OFFLINE": "1"},
    "lane_fabric_env": {"RANK_ADDRESS": "host_ip"},
    "lane_container": {"entrypoint": "vllm", "command_prefix": ["serve"], "mounts": [{"source": "/srv/cache", "target": "/cache", "read_only": False, "create": True}]},
    "lane_memory": {"kv_bytes_per_token": 1024, "ranks": 2, "weights_gib": 1, "drafter_gib": 0, "other_gib": 1, "reported": [{"what": "died", "source": "a report", "from_max_model_len": 9000}]},
    "lane_served_model_name": ["good"],
    "lane_kv_cache_memory_bytes": "64MiB",
    "lane_max_model_len": 4096,
}  # fmt: skip

# What text must look like: option → a text that no one could honour, and the check that says so.
FORMATS = {
    "lane_id": ("other", "LANE.CHOICE"),
    "lane_family": ("goood", "LANE.CHOICE"),
    "lane_kit": ("goood", "LANE.CHOICE"),
    "lane_negative": ("it is slow", "LANE.NEGATIVE"),
    "lane_image.archive.sha256": ("12", "LANE.FILES"),
    "lane_image.repository": ("ghcr.io/a/b:latest", "LANE.FILES"),
    "lane_image.digest": ("sha256:12", "LANE.FILES"),
    "lane_model.revision": ("main", "LANE.FILES"),
    "lane_model.config_sha256": ("12", "LANE.FILES"),
    "lane_drafter.revision": ("main", "LANE.FILES"),
    "lane_drafter.config_sha256": ("12", "LANE.FILES"),
    "lane_overlays.0.sha256": ("12", "LANE.FILES"),
    "lane_overlays.0.replaces_sha256": ("12", "LANE.FILES"),
    "lane_extras.0.sha256": ("12", "LANE.FILES"),
    "lane_container.shm_size": ("much", "TRAP.MEMORY_SIZES"),
    "lane_container.memory": ("much", "TRAP.MEMORY_SIZES"),
    "lane_container.memory_swap": ("much", "TRAP.MEMORY_SIZES"),
    "lane_kv_cache_dtype": ("fp9", "TRAP.KV_DTYPE_NAME"),
}
# A wrong name of a file is one whatever its type.
NAMES_A_FILE = ("lane_id", "lane_family", "lane_kit")
# Text that may say anything, or whose truth only the node knows.
FREE = {
    *("lane_title", "lane_superseded", "lane_unknowns.0.what", "lane_unknowns.0.fill", "lane_unknowns.0.remedy", "lane_api_host"),
    *("lane_image.tag", "lane_image.vllm", *(f"lane_image.pins.{name}" for name in ("flashinfer", "nccl", "cutlass_dsl", "torch"))),
    *("lane_model.repo", "lane_drafter.repo", "lane_overlays.0.source", "lane_extras.0.source"),
    *(f"lane_container.{name}" for name in ("network", "ipc", "gpus", "entrypoint")),
    *("lane_memory.kv_dtype", "lane_memory.source", "lane_memory.filled_source", "lane_memory.reported.0.what", "lane_memory.reported.0.source"),
}  # fmt: skip


def every(options: dict[str, Option], prefix: str = "") -> Iterator[tuple[str, Option]]:
    """Every option of the definition with its dotted path; a list by its first element."""
    for name, option in options.items():
        yield f"{prefix}{name}", option
        yield from every(option.options, f"{prefix}{name}.0." if option.type == "list" else f"{prefix}{name}.")


ALL = dict(every(OPTIONS))
WRONG: dict[str, Any] = {
    "str": {"a": "mapping"}, "int": "many", "float": "much", "bool": "maybe", "path": "not/absolute", "size": "8G",
    "dict": "text", "list": {"a": "mapping"},
}  # fmt: skip


def put(path: str, value: Any) -> dict[str, Any]:
    """The good lane with another value at a path."""
    lane = copy.deepcopy(GOOD)
    place: Any = lane
    *parents, last = path.split(".")
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
    place[int(last) if isinstance(place, list) else last] = value
    return lane


def judge(
    *lanes_: dict[str, Any], groups: dict[str, list[str]] | None = None, limit: list[str] | None = None, needs: str = "launch"
) -> list[Check]:
    """Preflight over one host for each lane. It gets variables, and nothing by which it could reach a host."""
    hosts = [f"s{number}" for number in range(1, len(lanes_) + 1)]
    hostvars = dict(zip(hosts, lanes_, strict=True))
    made: list[Check] = preflight(hostvars, groups or {"sparks": hosts}, limit or hosts, ["good"], OPTIONS, needs, shared=[])
    return made


def refusals(checks: list[Check], id: str) -> list[Check]:
    """The failed checks with this id; each is a sentence that names a host, and none is without what was found."""
    failed = [check for check in checks if check.status == "fail"]
    for check in failed:
        text = sentence(check)
        assert "\n" not in text
        assert text.startswith(f"{check.host} {check.id}: ")
        assert check.found
        assert check.expected or check.remedy, text
    return [check for check in failed if check.id == id]


def the(lane: dict[str, Any], id: str, words: str) -> None:
    """The lane on both hosts is refused by this check, which says where."""
    found = refusals(judge(lane, lane), id)
    assert any(words in f"{check.found} {check.expected} {check.remedy}" for check in found), (id, words, judge(lane, lane))


def test_the_good_lane_is_good_and_has_every_option() -> None:
    assert [check for check in judge(GOOD, GOOD) if check.status != "pass"] == []
    for path in ALL:
        put(path, None)


# --- one for each option ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ALL)
def test_a_wrong_type(path: str) -> None:
    option = ALL[path]
    value = [5] if option.type == "list" and option.options else WRONG[option.type]
    the(put(path, value), "LANE.CHOICE" if path in NAMES_A_FILE else "LANE.TYPES", path)


@pytest.mark.parametrize("path", ALL)
def test_a_misspelled_name(path: str) -> None:
    name = path.rpartition(".")[2]
    wrong = name[:-1] + ("x" if name[-1] != "x" else "y")
    the(put(f"{path[: -len(name)]}{wrong}", "x"), "LANE.NAMES", wrong)


@pytest.mark.parametrize("path", [path for path, option in ALL.items() if option.required])
def test_a_missing_piece(path: str) -> None:
    the(put(path, None), "LANE.CHOICE" if path == "lane_id" else "LANE.TYPES", "" if path == "lane_id" else f"{path} is missing")


@pytest.mark.parametrize("path", [path for path, option in ALL.items() if option.choices])
def test_a_misspelled_choice(path: str) -> None:
    the(put(path, f"{ALL[path].choices[0]}x"), "LANE.TYPES", path)


NUMBERS = [path for path, option in ALL.items() if option.type in ("int", "float", "size")]


@pytest.mark.parametrize("path", NUMBERS)
def test_an_impossible_number(path: str) -> None:
    least, most = lane_limits.RANGES[path.replace(".0.", ".*.")]
    the(put(path, -1), "LANE.NUMBERS", path)
    assert least >= 0
    if most != float("inf"):
        the(put(path, int(most) + 1), "LANE.NUMBERS", path)


def test_no_limit_is_for_an_option_that_does_not_exist() -> None:
    assert {path.replace(".*.", ".0.") for path in lane_limits.RANGES} == set(NUMBERS)
    assert lane_limits.RANGES["lane_swappiness"] is sysctl.RANGES["vm/swappiness"], (
        "the module that sets it takes what preflight takes"
    )


@pytest.mark.parametrize("path", FORMATS)
def test_text_that_nothing_could_honour(path: str) -> None:
    value, id = FORMATS[path]
    the(put(path, value), id, value if "." not in path else path.rpartition(".")[2])


def test_every_text_has_a_format_or_is_free() -> None:
    texts = {path for path, option in ALL.items() if option.type == "str" and not option.choices}
    assert texts - set(FORMATS) - FREE == set()
    assert (set(FORMATS) | FREE) - texts == set()


# --- one for each rule -----------------------------------------------------------------------------------------

EAGER = {"--enforce-eager": True}
RULES: list[tuple[str, dict[str, Any], str]] = [
    ("LANE.FLAGS", {"lane_engine_args": {"--max-model-len": 1}}, "Set lane_max_model_len instead"),
    ("LANE.FLAGS", {"lane_engine_args": {"--node-rank": 0}}, "the place of the host"),
    ("LANE.FLAGS", {"lane_engine_args": {"--api-key": "x"}}, "a secret"),
    ("LANE.FLAGS", {"lane_engine_args": {"--enable-x": True, "--enable_x": 1}}, "one flag"),
    ("LANE.FLAGS", {"lane_engine_args": {"-q": 1}}, "no long flag"),
    ("LANE.FLAGS", {"lane_flag_names": {"--port": "port"}}, "lane_flag_names"),
    ("LANE.ENV", {"lane_engine_env": {"NCCL_IB_HCA": "mlx5_0"}}, "differs per Spark"),
    ("LANE.ENV", {"lane_engine_env": {"HF_TOKEN": "x"}}, "secret"),
    ("LANE.ENV", {"lane_engine_env": {"A": ""}}, "null to remove it"),
    ("LANE.ENV", {"lane_fabric_env": {"A": "hcaa"}}, "Did you mean hca?"),
    ("LANE.ENV", {"lane_secret_env": ["a value!"]}, "never values"),
    ("LANE.WORLD", {"lane_pipeline_parallel_size": 3}, "lane_nodes"),
    ("LANE.WORLD", {"lane_engine_args": {**EAGER, "--decode-context-parallel-size": 3}}, "divisor"),
    ("LANE.WORLD", {"lane_master_port": 8000}, "two different ports"),
    ("LANE.FILES", {"lane_extras": [{"source": "a", "target": "/models/model"}]}, "2 mounts have the target"),
    ("LANE.FILES", {"lane_extras": [{"source": "a", "target": "/models/model/chat.jinja"}]}, "lies inside /models/model"),
    ("LANE.FILES", {"lane_container": {"mounts": [{"source": "/a", "target": "/models/model/b"}]}}, "lies inside /models/model"),
    ("LANE.FILES", {"lane_model": {**MODEL, "sha256": {"config.json": "1"}}}, "lane_model.sha256.config.json"),
    ("LANE.CONTAINER", {"lane_container": {"entrypoint": "vllm"}}, "command_prefix: [serve]"),
    ("LANE.CONTAINER", {"lane_gpu_arch": "sm_121"}, "gpus: all"),
    ("LANE.TEMPLATES", {"lane_port": "TEMPLATE"}, "lane_port"),
    ("LANE.UNKNOWN", {"lane_image": {"repository": "r/e"}}, "lane_image.digest"),
    ("LANE.UNKNOWN", {"lane_unknowns": [{"what": "how long", "fill": "lane_boot: 1"}]}, "lane_boot"),
    ("LANE.CHOICE", {"lane": "goood"}, "Did you mean good?"),
    ("LANE.CHOICE", {"lane": ""}, "no lane is chosen"),
    ("LANE.ACCEPT", {"lane_accept": {"TRAP.FLAG_JSN": "because"}}, "Did you mean TRAP.FLAG_JSON?"),
    ("LANE.TRAP_RULES", {"lane_traps": {"MINE": {"severity": "warn"}}}, "MINE has no why"),
    ("LANE.CONFLICT", {"lane_max_num_batched_tokens": 4, "lane_max_num_seqs": 8}, "at least one token a request"),
    ("LANE.CONFLICT", {"lane_max_num_batched_tokens": 64, "lane_engine_args": {"--no-enable-chunked-prefill": True}}, "whole prompt"),
    ("LANE.CONFLICT", {"lane_engine_args": {"--enable-expert-parallel": True, "--no-enable-expert-parallel": True}}, "one of them"),
    ("LANE.CONFLICT", {"lane_engine_args": {**EAGER, "--compilation-config": {"cudagraph_mode": "FULL"}}}, "graphs or none"),
    ("LANE.CONFLICT", {"lane_boot_timeout_seconds": 60}, "lane_boot_stall_seconds"),
    ("LANE.CONFLICT", {"lane_page_cache_duration_seconds": 5}, "one drop"),
    ("TRAP.FLAG_UNKNOWN", {"lane_engine_args": {"--enforce-eagr": True}}, "did you mean --enforce-eager?"),
    ("TRAP.FLAG_JSON", {"lane_engine_args": {"--compilation-config": "'{}'"}}, "--compilation-config"),
    ("DEPLOYMENT.SIZE", {"lane_nodes": 4, "lane_tensor_parallel_size": 4}, "4"),
]  # fmt: skip


class Template(dict[str, Any]):
    """Variables of which one is a template that names nothing."""

    def __getitem__(self, name: str) -> Any:
        if super().__getitem__(name) == "TEMPLATE":
            raise KeyError("'nope' is undefined")
        return super().__getitem__(name)


@pytest.mark.parametrize(("id", "more", "words"), RULES, ids=[f"{id}-{number}" for number, (id, _, _) in enumerate(RULES)])
def test_a_rule_that_is_broken(id: str, more: dict[str, Any], words: str) -> None:
    the(Template(GOOD | more), id, words)


def test_what_only_several_hosts_can_break() -> None:
    same = GOOD | {"ansible_host": "10.0.0.1"}
    assert refusals(judge(same, same), "INVENTORY.ADDRESS"), "one Spark is two ranks"
    assert refusals(judge(GOOD, GOOD | {"lane_port": 8001}), "DEPLOYMENT.AGREE")
    assert refusals(judge(GOOD, GOOD, GOOD), "DEPLOYMENT.SIZE")
    assert refusals(judge(GOOD, GOOD, limit=["s1"]), "DEPLOYMENT.SCOPE")
    assert refusals(judge(GOOD, GOOD | {"lane": ""}, needs="host"), "DEPLOYMENT.AGREE")
    pair = GOOD | {"deployment": "pair"}
    assert refusals(judge(pair, pair), "DEPLOYMENT.GROUP"), "no such group"
    four = {"sparks": ["s1", "s2", "s3", "s4"], "pair": ["s1", "s2"], "other": ["s3", "s4"]}
    other = GOOD | {"deployment": "other"}
    assert refusals(judge(pair, pair, other, other, groups=four), "DEPLOYMENT.ONE")
    nobody: list[Check] = preflight({}, {"sparks": []}, [], ["good"], OPTIONS)
    assert refusals(nobody, "INVENTORY.HOSTS")


def test_every_rule_of_preflight_has_a_mutation() -> None:
    """Those of traps have theirs in test_traps.py, those of memory in test_budget.py, those of the controller in test_filters.py.

    DEPLOYMENT.NODES is of gate A (test_readiness.py).
    """
    here = (
        {"DEPLOYMENT.NODES"}
        | {id for id, _, _ in RULES}
        | {id for _, id in FORMATS.values()}
        | {"LANE.NAMES", "LANE.TYPES", "LANE.NUMBERS"}
    )
    here |= {
        "LANE.REPLACED",  # test_replaced.py
        "LANE.STATE",  # test_lanes.py
        "INVENTORY.ADDRESS",
        "INVENTORY.HOSTS",
        "INVENTORY.REMOVED",
        *(f"DEPLOYMENT.{name}" for name in ("AGREE", "SCOPE", "GROUP", "ONE")),
    }
    ids = set()
    for path in (ROOT / "module_utils" / "sparklanes").rglob("*.py"):
        ids |= set(re.findall(r'"((?:LANE|DEPLOYMENT|INVENTORY)\.[A-Z_]+)"', path.read_text(encoding="utf-8")))
    assert ids - here == {"INVENTORY.INLINE", "INVENTORY.UNREAD", "LANE.TRAPS"}  # two warnings; the name of passing all


# --- a rendered rank -------------------------------------------------------------------------------------------

FABRICS = {
    f"s{number}": {"host_ip": f"10.0.{number // 256}.{number % 256}", "ifname": "eth0", "rails": [{"hca": "rocep1s0f0", "gid_index": 3, "network": "10.0.0.0/16"}]}
    for number in range(1, 65)
}  # fmt: skip


def rank(**more: Any) -> dict[str, Any]:
    made, _ = lane_schema.resolve({**GOOD, **more}, OPTIONS, "s1")
    spec: dict[str, Any] = lane_render.render_rank(made, FABRICS, "sparks", ["s1", "s2"], 0)
    return spec


@pytest.mark.parametrize(
    ("change", "id", "words"),
    [
        ({"env": {"NCCL_IB_GID_INDEX": ""}}, "RANK.ENV", "NCCL_IB_GID_INDEX has no value"),
        ({"env": {"A": "{{ x }}"}}, "RANK.ENV", "A is"),
        ({"env": {"VLLM_HOST_IP": ""}}, "RANK.ENV", "VLLM_HOST_IP is absent"),
        ({"env": {"VLLM_HOST_IP": "169.254.1.2"}}, "RANK.ENV", "169.254.1.2"),
        ({"command": ["/models/model", "--chat-template", "$TEMPLATE"]}, "RANK.ARGV", "$TEMPLATE"),
        ({"command": ["/models/model", ""]}, "RANK.ARGV", "word 1"),
        ({"env": {"KEY": "x"}, "secret_env": ["KEY"]}, "RANK.SECRET", "KEY has its value"),
        ({"env": {"openai_key": "x"}}, "RANK.SECRET", "openai_key has its value"),
        ({"command": ["/m", "--admin-password", "x"]}, "RANK.SECRET", "--admin-password has its value"),
        ({"command": ["--header", "Bearer hf_" + "a" * 30]}, "RANK.SECRET", "looks like a key"),
        ({"api": {"host": "0.0.0.0", "port": 29500}}, "RANK.PORT", "29500"),
    ],
)
def test_what_a_rendered_rank_must_not_hold(change: dict[str, Any], id: str, words: str) -> None:
    spec = rank()
    assert [check.status for check in rank_checks.rank_checks(spec)] == ["pass"] * len(rank_checks.RULES)
    changed = {**spec, **change, "env": {**spec["env"], **change.get("env", {})}}
    failed = refusals(rank_checks.rank_checks(changed), id)
    assert any(words in check.found for check in failed)


def test_nested_json_is_no_template() -> None:
    spec = rank(lane_engine_args={"--compilation-config": {"a": {"b": {}}}})
    assert {check.status for check in rank_checks.rank_checks(spec)} == {"pass"}


# --- any lane at all -------------------------------------------------------------------------------------------

TEXT = st.text(max_size=8) | st.sampled_from(
    ["--x", "1", "8GiB", "{}", "[]", '{"a": 1}', "null", "/a", "off", "NCCL_IB_HCA", "dflash", "mtp"]
)
SCALAR = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXT
KEYS = TEXT | st.sampled_from(["--speculative-config", "--compilation-config", "--block-size", "--default-chat-template-kwargs", "method", "model", "num_speculative_tokens", "cudagraph_mode", "reasoning_effort", "--decode-context-parallel-size", "--spec-tokens", "--compilation-config.a.b", "TRAP.PARSERS"])  # fmt: skip
JSON = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8)


def likely(option: Option) -> st.SearchStrategy[Any]:
    """Values of the option's own kind, for lanes that get past the types."""
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "int": st.integers(-2, 300_000) | st.integers(0, 5),
        "float": st.floats(-1, 200),
        "bool": st.booleans(),
        "size": st.integers(0, 2**41) | st.sampled_from(["6GiB", "64MiB"]),
        "path": st.sampled_from(["/a", "/a/b", "/models/model", "/"]),
        "str": st.sampled_from(option.choices) if option.choices else TEXT | st.sampled_from(["zai-org/GLM-5.3-Flash-NVFP4", "x/GLM-5.3", "0.28.1", "sha256:" + SHA, SHA, "0.1.dev20051+g1"]),
        "raw": JSON,
    }  # fmt: skip
    members = {name: likely(member) for name, member in option.options.items()}
    required = {name: members[name] for name, member in option.options.items() if member.required}
    whole = st.fixed_dictionaries(required, optional={name: made for name, made in members.items() if name not in required})
    if option.type == "list":
        return st.lists(whole if option.options else TEXT, max_size=2)
    if option.type == "dict":
        return whole if option.options else st.dictionaries(KEYS, JSON, max_size=4)
    return kinds[option.type]


LAYERS = {name: OPTIONS[name.removesuffix(layer)] for layer in lane_schema.LAYERS for name in lane_schema.known_names(OPTIONS) if layer and name.endswith(layer) and name.removesuffix(layer) in OPTIONS}  # fmt: skip
NAMES = {**OPTIONS, **LAYERS}
LIKELY = st.fixed_dictionaries({}, optional={name: likely(option) for name, option in NAMES.items()})
ANY = st.dictionaries(st.sampled_from(sorted(NAMES)) | st.text(max_size=4).map("lane_{}".format), JSON, max_size=6)


def render_or_refuse(variables: dict[str, Any]) -> None:
    """The whole way from variables to commands: either checks that fail, or an argv of non-empty words for every rank."""
    count = variables.get("lane_nodes")
    hosts = [f"s{number}" for number in range(1, (count if isinstance(count, int) and 1 <= count <= 4 else 2) + 1)]
    checks = judge(*[variables] * len(hosts), needs="lane")
    assert {check.status for check in checks} <= set(STATUSES)
    json.dumps([check.to_dict() for check in checks])
    made, wrong = lane_schema.resolve(variables, OPTIONS, "s1")
    if any(check.status == "fail" for check in wrong):
        assert any(check.status == "fail" for check in checks)
        return
    lane_unknowns.launch_refusals(made)
    traps_rules.notes(made, OPTIONS)
    for rule in (rule for rules in data_files().values() for rule in rules):
        assert all(isinstance(text, str) for text in rule.find(View(made)))
    budget_text(made)
    if any(check.status == "fail" for check in checks):
        return
    for number in range(len(hosts)):
        try:
            spec = lane_render.render_rank(made, FABRICS, "sparks", hosts, number)
        except ValueError as error:  # a fact of the fabric that this Spark lacks: said, not shown as a traceback
            assert "lane_fabric_env" in str(error)  # noqa: PT017
            continue
        argv = rank_spec.docker_create_argv(spec)
        assert all(isinstance(word, str) for word in argv)
        rank_spec.command_text(spec)
        lane_render.describe(made, spec)
        assert json.loads(json.dumps(spec)) == spec
        if all(check.status == "pass" for check in rank_checks.rank_checks(spec)):
            assert all(word.strip() for word in spec["command"])


FUZZ = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)


# Values at which conversions break.
NASTY = [
    float("inf"), float("-inf"), float("nan"), -0.0, 1e300, 2**80, 2**63, -1, 0, True, "", " ", "null", "1_0", "١٢", "9" * 400, f"{'9' * 400}g",
    "1.5", "inf", "1e5", [], [[]], [None], [{}], {}, {"": ""}, {"a": None}, {"--x": float("nan")}, {"--x": 2**80}, {"--block-size": 2**2000},
    {"--decode-context-parallel-size": float("inf")}, {"--compilation-config": "[" * 2000}, "{", "[", '{"a":', "\0", "a\nb", "/a//b/..",
]  # fmt: skip


@pytest.mark.parametrize("path", ALL)
def test_nasty_values_render_or_give_errors(path: str) -> None:
    for value in NASTY:
        render_or_refuse(put(path, value))


@FUZZ
@given(ANY)
def test_any_variables_over_a_good_lane_render_or_give_errors(more: dict[str, Any]) -> None:
    render_or_refuse({**GOOD, **more})


@FUZZ
@given(LIKELY)
def test_likely_lanes_render_or_give_errors(more: dict[str, Any]) -> None:
    render_or_refuse({**GOOD, **more})


@FUZZ
@given(ANY)
def test_variables_without_a_lane_render_or_give_errors(more: dict[str, Any]) -> None:
    render_or_refuse({**more, "lane": "good", "lane_id": "good"})
