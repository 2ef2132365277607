"""Every lane that we ship, rendered for each rank, against what its source runs: flag by flag, variable by variable, mount by mount.

Two references, made apart from our lanes (tests/fixtures/lane/README.md): `facts`, the recorded launchers as data, and
`printed`, the commands that documents print, transcribed by hand. Where we differ on purpose, differences.yml says so.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker_commands
import pytest
import roce_trees
import yaml
from ansible.module_utils.sparklanes.engine import flags as engine_flags
from ansible.module_utils.sparklanes.fabric.devices import read_node
from ansible.module_utils.sparklanes.fabric.node import detect
from ansible.module_utils.sparklanes.fabric.options import read_options
from ansible.module_utils.sparklanes.lane import render as lane_render
from ansible.module_utils.sparklanes.lane import rules as lane_rules
from ansible.module_utils.sparklanes.lane import state as lane_state
from ansible.module_utils.sparklanes.lane import unknowns as lane_unknowns
from ansible.module_utils.sparklanes.rank import drift
from ansible.module_utils.sparklanes.traps import rules as traps_rules
from conftest import FIXTURES, ROOT
from lane_files import ALL, SHIPPED, options, resolved, variables_of

FOLDER = FIXTURES / "lane"
FACTS: dict[str, dict[str, Any]] = {
    lane["id"]: lane for lane in yaml.safe_load((FOLDER / "lanes.yml").read_text(encoding="utf-8"))["lanes"]
}
PUBLISHED: dict[str, list[dict[str, Any]]] = yaml.safe_load((FOLDER / "published.yml").read_text(encoding="utf-8"))
DIFFERENCES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "differences.yml").read_text(encoding="utf-8"))
COMMANDS = {path.stem: path for path in sorted((FOLDER / "commands").glob("*.txt"))}

# The addresses of the source fleets in the order of ranks; where a document names only the network, addresses of it.
ADDRESSES = {
    "glm53_*": ["192.168.192.2", "192.168.192.4", "192.168.192.3", "192.168.192.1"],
    "flash_w4a16_dflash2_*": ["192.168.102.1", "192.168.102.2"],
    "flash_w4a16_mtp_tp2_*": ["192.168.102.1", "192.168.102.2"],
    "flash_w4a16_mtp_tp4_*": [""],
    "flash_fp8_*": ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"],
    "flash_nvfp4_dflash2_tp4": ["10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4"],
    "flash_nvfp4_dflash2_tp4_v3_negative": ["10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4"],
    "flash_nvfp4_*_tp4_1m*": ["192.168.192.2", "192.168.192.4", "192.168.192.3", "192.168.192.1"],
    "flash_nvfp4_*_tp2": ["192.168.192.2", "192.168.192.4"],
}
# Those that are shipped and not recorded are named by the first test.
RECORDED = [lane for lane in SHIPPED if lane in FACTS]
RANKS = [(lane, rank) for lane in RECORDED for rank in range(FACTS[lane]["hardware"]["nodes"])]
PRINTED = [(name, rank) for name in COMMANDS for rank in range(FACTS[name.split(".")[0]]["hardware"]["nodes"])]


def addresses(lane: str) -> list[str]:
    found = next((found for pattern, found in ADDRESSES.items() if fnmatch.fnmatch(lane, pattern)), None)
    assert found, f"ADDRESSES above has no pattern for {lane}: add the addresses of its source's fleet, in the order of ranks"
    return found


@functools.cache
def detected(port: str) -> dict[str, Any]:
    """What role roce says, by its own detection, of a Spark with a cable on this port and an address on each half of it."""
    with tempfile.TemporaryDirectory() as folder:
        root = roce_trees.spark(ports=port).write(Path(folder))
        texts = [(root / name).read_text(encoding="utf-8") for name in ("ip_j_addr.json", "ip_dj_link.json")]
        return dict(detect(read_node(str(root), *texts), read_options({"strict": True})))


def fabric_of(lane: str) -> dict[str, Any]:
    """The fabric of a Spark that is cabled as those of the source; both halves of the port have addresses, as roce wants them."""
    recorded = (FACTS[lane].get("env") or {}).get("fabric") or {}
    return detected("1" if "f1" in str(recorded.get("NCCL_IB_HCA")) else "0")


def ours(lane: str, rank: int, **more: Any) -> dict[str, Any]:
    """The rank as we render it. The image by its tag: digests are compared on their own."""
    found = fabric_of(lane)
    assert not found["errors"], found["errors"]
    fabrics = {
        f"s{number}": {
            "transport": "roce",
            "host_ip": address,
            "ifname": found["env"]["GLOO_SOCKET_IFNAME"],
            "env": found["env"],
            "rails": [],
        }
        for number, address in enumerate(addresses(lane))
        if address
    }
    hosts = [f"s{number}" for number in range(len(addresses(lane)))]
    made = resolved(lane, **more)
    spec = lane_render.render_rank(made, fabrics, "sparks", hosts, rank)
    image = made["lane_image"]
    return {**spec, "image": f"{image['repository']}:{image['tag']}" if image["tag"] else image["repository"], "secret_env": []}


def filled(value: Any, lane: str, rank: int) -> str:
    """A recorded value with what stands for the rank and its addresses filled in."""
    head, own = addresses(lane)[0], addresses(lane)[rank]
    text = str(value)
    if text.startswith("<rank0 fabric IP>"):
        return head
    if text.startswith(("<this rank's fabric IP", "<rank IP")) or re.fullmatch(r"[\d.]+-\d", text):
        return own
    device = fabric_of(lane)["env"]["GLOO_SOCKET_IFNAME"]
    for name, meant in (
        ("$HEAD_IP", head),
        ("$HOST_IP", own),
        ("$NODE_IP", own),
        ("$NIC", device),
        ("$RANK", str(rank)),
        ("<rank>", str(rank)),
    ):
        text = text.replace(name, meant)
    return text


def facts_spec(lane: str, rank: int) -> dict[str, Any]:
    """The launcher as recorded, as the spec of a rank; what is not recorded is empty."""
    facts = FACTS[lane]
    container = facts.get("container") if isinstance(facts.get("container"), dict) else {}
    words = [str(word) for word in container.get("command_prefix") or ["vllm", "serve", "model"]]
    for flag, value in facts["engine_args"].items():
        if not flag.startswith("--") or (flag == "--headless" and rank == 0):
            continue
        words.append(flag)
        if value is not True and flag != "--headless":
            words += [filled(one, lane, rank) for one in (value if isinstance(value, list) else [value])]
    if words[0] == "bash":
        words = [*words[:2], f"{words[2]} {shlex.join(words[3:])}"]
    recorded = facts.get("env") or {}
    env = {**recorded.get("fabric", {}), **(recorded["fixed"] if isinstance(recorded.get("fixed"), dict) else {})}
    mounts = [(one["host"], one["container"], one["mode"] == "ro") for one in container.get("mounts") or []]
    mounts += [(one["host"], one["container"], one["mode"] == "ro") for one in facts["overlays"].get("files") or []]
    return {
        "image": facts["image"]["name"],
        "command": words,
        "env": {name: filled(value, lane, rank) for name, value in env.items()},
        "mounts": [{"source": source, "target": target, "read_only": read_only} for source, target, read_only in mounts],
        "options": container,
    }


def printed_spec(name: str, rank: int) -> tuple[dict[str, str], dict[str, Any]]:
    lane = name.split(".")[0]
    head, words = docker_commands.printed(COMMANDS[name])
    spec = docker_commands.spec_of([filled(word, lane, rank) for word in words if word != "$HEADLESS"])
    if "$HEADLESS" in words and rank > 0:
        spec["command"].append("--headless")
    spec["env"] = {key: filled(value, lane, rank) for key, value in spec["env"].items()}
    return head, spec


def differ(lane: str, rank: int, theirs: dict[str, Any], whole: bool) -> dict[str, tuple[Any, Any]]:
    """What differs. Where mounts come from is ours to choose; a reference that is not whole says nothing of what it lacks."""
    ours_spec = ours(lane, rank)
    for spec in (ours_spec, theirs):
        spec["mounts"] = [{**mount, "source": "any"} for mount in spec["mounts"]]
    found = {one.what: (one.ours, one.theirs) for one in drift.differences(ours_spec, theirs)}
    return found if whole else {what: pair for what, pair in found.items() if pair[1] != drift.ABSENT}


def listed(lane: str, rank: int, against: str, overlays: bool = False) -> dict[str, tuple[Any, Any]]:
    """The differences that differences.yml lists for this lane and rank: of what runs, or of the content of overlays."""
    found = {}
    for entry in DIFFERENCES:
        applies = any(fnmatch.fnmatch(lane, pattern) for pattern in entry["lanes"]) and lane not in entry.get("but", [])
        ranks = {"head": rank == 0, "workers": rank > 0}.get(entry.get("ranks", ""), True)
        if applies and ranks and against in entry["against"] and entry["what"].startswith("overlay ") == overlays:
            found[entry["what"]] = (entry["ours"], entry["theirs"])
    return found


def unlike(lane: str, found: dict[str, tuple[Any, Any]], expected: dict[str, tuple[Any, Any]]) -> str:
    """What to do about differences that are not those of differences.yml."""
    new = [f"{what} (ours {found[what][0]}, theirs {found[what][1]})" for what in found if found[what] != expected.get(what)]
    gone = [what for what in expected if what not in found]
    return (
        f"{lane}: differs from its source in {', '.join(new) or 'nothing new'}; listed and no longer so: {', '.join(gone) or 'nothing'}. "
        "Correct group_vars/, or list it with its reason in tests/fixtures/lane/differences.yml"
    )


def test_every_recorded_lane_is_shipped_and_every_shipped_one_recorded() -> None:
    bare = sorted(set(SHIPPED) - set(FACTS))
    assert not bare, (
        f"group_vars/ ships {', '.join(bare)}, and tests/fixtures/lane/lanes.yml has no such id: record there what its source runs "
        "(tests/fixtures/lane/README.md). A lane of one site needs no record: it belongs to inventory/fleet/group_vars/"
    )
    gone = sorted(set(FACTS) - set(SHIPPED))
    assert not gone, f"tests/fixtures/lane/lanes.yml records {', '.join(gone)}, and group_vars/lane_<id>.yml is not there"


@pytest.mark.parametrize(("lane", "rank"), RANKS)
def test_each_rank_runs_what_the_recorded_launcher_runs(lane: str, rank: int) -> None:
    facts = FACTS[lane]
    whole = facts.get("complete", True)
    theirs = facts_spec(lane, rank)
    if not whole:
        theirs["options"] = {}
    found = differ(lane, rank, theirs, whole)
    expected = listed(lane, rank, "facts")
    if not whole:  # nothing but flags, the image and a part of the environment is recorded
        found, expected = (
            {what: pair for what, pair in one.items() if not what.startswith(("limit", "model"))} for one in (found, expected)
        )
    assert found == expected, unlike(lane, found, expected)


@pytest.mark.parametrize(("name", "rank"), PRINTED)
def test_each_rank_runs_what_the_document_prints(name: str, rank: int) -> None:
    lane = name.split(".")[0]
    head, theirs = printed_spec(name, rank)
    whole = head["whole"] == "yes"
    found, expected = differ(lane, rank, theirs, whole), listed(name, rank, "printed")
    if not whole:
        found, expected = ({what: pair for what, pair in one.items() if what.startswith("flag")} for one in (found, expected))
    assert found == expected, unlike(name, found, expected)


@pytest.mark.parametrize("entry", DIFFERENCES, ids=lambda entry: f"{entry['what']} {entry['lanes'][0]}")
def test_each_listed_difference_says_why_and_every_pattern_of_it_is_compared(entry: dict[str, Any]) -> None:
    """That it still exists is what the two tests above compare, both ways."""
    assert set(entry) - {"ranks", "but"} == {"what", "lanes", "against", "ours", "theirs", "reason", "source"}
    assert all(entry[key] for key in ("what", "lanes", "against", "reason", "source"))
    compared = {"facts": list(FACTS), "printed": list(COMMANDS)}
    for pattern in entry["lanes"]:
        assert any(fnmatch.filter(compared[against], pattern) for against in entry["against"]), pattern


@pytest.mark.parametrize("lane", RECORDED)
def test_overlays_have_the_recorded_targets_and_hashes(lane: str) -> None:
    recorded = {one["container"]: one.get("sha256") for one in FACTS[lane]["overlays"].get("files") or []}
    found = {one["target"]: one["sha256"] for one in resolved(lane)["lane_overlays"]}
    added = {target for target in found if listed(lane, 0, "facts").get(f"mount {target}", ("", ""))[1] == drift.ABSENT}
    ours_other = {
        f"overlay {target}": (sha256, recorded[target])
        for target, sha256 in found.items()
        if recorded.get(target, sha256) != sha256
    }
    expected = listed(lane, 0, "facts", overlays=True)
    assert ours_other == expected, unlike(lane, ours_other, expected)
    if FACTS[lane].get("complete", True):
        odd = (set(found) - added) ^ set(recorded)
        assert not odd, (
            f"{lane}: {', '.join(sorted(odd))} is an overlay here or in tests/fixtures/lane/lanes.yml only; "
            "list a mount that is added or left out on purpose in differences.yml"
        )
    markers = FACTS[lane]["overlays"].get("marker_preflight") or {}
    by_name = {one["target"].rpartition("/")[2]: one["markers"] for one in resolved(lane)["lane_overlays"]}
    assert {name: by_name[name] for name in markers} == markers


@pytest.mark.parametrize("lane", RECORDED)
def test_the_image_has_a_recorded_digest_or_none(lane: str) -> None:
    image = FACTS[lane]["image"]
    recorded = re.findall(r"sha256:[0-9a-f]{64}", str(image))
    digest = resolved(lane)["lane_image"]["digest"]
    assert digest in recorded if digest else not image.get("digest")


@pytest.mark.parametrize("lane", RECORDED)
def test_files_that_are_recorded_as_bad_are_known_to_the_lane(lane: str) -> None:
    weights = FACTS[lane].get("weights") or {}
    recorded = (weights.get("config") or {}).get("bad_sha256_prefix") if isinstance(weights.get("config"), dict) else None
    assert resolved(lane)["lane_model"]["bad_sha256"] == ([recorded] if recorded else [])


@pytest.mark.parametrize("lane", RECORDED)
def test_flags_are_spelled_as_this_engine_knows_them(lane: str) -> None:
    """The comparison above takes spellings for one another; forks do not (--kv-cache-memory, --kv-cache-memory-bytes)."""
    words = ours(lane, len(addresses(lane)) - 1)["command"]
    spelled = {engine_flags.canonical_flag(word): word for word in words if re.match(r"--[a-z]", word)}
    for flag in FACTS[lane]["engine_args"]:
        if flag.startswith("--"):
            assert spelled.get(engine_flags.canonical_flag(flag), flag) == flag


@pytest.mark.parametrize("lane", [lane for lane in RECORDED if isinstance(FACTS[lane].get("container"), dict)])
def test_what_comes_before_the_model(lane: str) -> None:
    """The image's own entrypoint wants exactly these words. Ours may be named; then it is the first of them."""
    made = ours(lane, 0)
    words = [word for word in [made["entrypoint"], *made["command"]] if word]
    before = words[: words.index(resolved(lane)["lane_model"]["container_path"])]
    recorded = FACTS[lane]["container"]["command_prefix"]
    if recorded[0] == "bash":
        assert before == ["bash", "-lc", recorded[2].replace("$MODEL_PATH", '"$@"'), "vllm"]
    else:
        assert before == recorded[:-1]


@pytest.mark.parametrize("lane", RECORDED)
def test_ports_swappiness_and_stagger_are_the_recorded_ones_where_there_are_any(lane: str) -> None:
    made, facts = resolved(lane), FACTS[lane]
    boot = facts.get("boot") or {}
    stagger = boot.get("stagger_seconds")
    recorded = {
        "lane_port": facts.get("port"),
        "lane_master_port": facts.get("master_port"),
        "lane_served_model_name": facts.get("served_model_name"),
        "lane_swappiness": boot.get("swappiness"),
        "lane_boot_stagger_seconds": stagger["before_head"] if isinstance(stagger, dict) else stagger,
    }
    for name, value in recorded.items():
        assert value is None or made[name] == value, name
        if value is None and name == "lane_swappiness" and made["lane_nodes"] > 1:
            assert name in made["lane_assumed"], f"{lane}: no source tells {name}: say in lane_assumed why it is {made[name]}"


@pytest.mark.parametrize("lane", RECORDED)
def test_what_a_lane_assumes_is_something_that_it_says(lane: str) -> None:
    made = resolved(lane)
    for name, why in made["lane_assumed"].items():
        told = made["lane_engine_args"].get(name) if name.startswith("--") else lane_unknowns.lookup(made, name)
        assert told is not None, f"{lane}: lane_assumed names {name}, which it does not set"
        assert str(why).endswith("."), why


@pytest.mark.parametrize("lane", RECORDED)
def test_every_lane_has_a_state_and_what_has_superseded_it_is_a_lane_or_dated(lane: str) -> None:
    made = resolved(lane)
    assert "lane_state" in variables_of(lane), lane
    assert (lane_state.state(made) == "never run") == (len(made["lane_expect"]) == 2), "what was never run has no numbers"
    if made["lane_superseded"]:
        assert re.search(r"20\d\d-\d\d-\d\d", made["lane_superseded"])
        named = [name for name in SHIPPED if re.search(rf"\b{name}\b", made["lane_superseded"])]
        assert named or "nowhere" in made["lane_superseded"]
        assert all(not resolved(name)["lane_negative"] for name in named)


@pytest.mark.parametrize("lane", RECORDED)
def test_nothing_of_a_fabric_stands_in_a_lane(lane: str) -> None:
    """Neither a name of such a variable nor an address or device of a source fleet, in any value."""
    made = resolved(lane)
    assert not set(made["lane_engine_env"]) & set(lane_rules.FABRIC_ENV)
    assert not re.search(r"\b(?:192\.168|10\.\d+)\.\d+\.\d+|roceP?\d|enp\d|enP\d|mlx5_", str(made))


@pytest.mark.parametrize("lane", RECORDED)
def test_every_lane_says_where_it_is_from_and_how_it_was_measured(lane: str) -> None:
    made = resolved(lane)
    assert {"repository", "launcher", "date"} <= set(made["lane_source"]), made["lane_source"]
    assert made["lane_title"]
    for one in (made["lane_expect"], *made["lane_expect"].get("also", [])):
        assert {"method", "date"} <= set(one)
    assert "context" in made["lane_expect"] or len(made["lane_expect"]) == 2
    for name, value in made["lane_expect"].items():
        assert name not in ("end_to_end_tok_s", "single_stream_tok_s", "aggregate_tok_s", "kv_pool_tokens") or isinstance(
            value, dict
        )


def numbers(value: Any) -> Iterator[float]:
    """All numbers in a value, also those inside text and names."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (*numbers(key), *numbers(item))
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, str):
        yield from (float(text.replace(",", "")) for text in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def expected(value: Any) -> Iterator[float]:
    """The numbers that a lane expects: in values, without names, methods and dates."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("method", "date"):
                yield from expected(item)
    elif isinstance(value, list):
        for item in value:
            yield from expected(item)
    elif not isinstance(value, bool):
        yield from numbers(value)


@pytest.mark.parametrize("lane", RECORDED)
def test_every_number_that_a_lane_expects_was_published_by_its_source(lane: str) -> None:
    """Names are left out (c6, position_1); minutes and thousands may have become seconds and units."""
    known = set(
        numbers(
            [FACTS[lane][key] for key in ("expected", "engine_args", "boot", "kv_bytes_per_token_layer") if key in FACTS[lane]]
        )
    )
    known |= set(numbers([one["figures"] for one in PUBLISHED.get(lane, [])]))
    for key, value in resolved(lane)["lane_expect"].items():
        for number in expected({key: value}):
            assert {number, number / 60, number / 1000} & known, (
                f"{lane}: lane_expect.{key} has {number:g}, which neither the entry of tests/fixtures/lane/lanes.yml has (expected, boot, "
                "engine_args) nor published.yml"
            )


def test_what_is_transcribed_is_of_lanes_that_are_recorded() -> None:
    assert set(PUBLISHED) <= set(FACTS)
    assert all(set(one) == {"where", "figures"} for entries in PUBLISHED.values() for one in entries)


@pytest.mark.parametrize("lane", RECORDED)
def test_what_the_source_does_not_tell_refuses_to_launch_with_the_line_that_fills_it(lane: str) -> None:
    refused = [check for check in lane_unknowns.launch_refusals(resolved(lane)) if check.status == "fail"]
    assert any("lane_model_site: {revision:" in check.remedy for check in refused)
    assert all(f"inventory/fleet/group_vars/lane_{lane}.yml" in check.remedy for check in refused)


@pytest.mark.parametrize("lane", RECORDED)
def test_no_lane_walks_into_a_trap_that_is_refused(lane: str) -> None:
    """What remains are warnings, which the catalogue shows."""
    assert [check for check in traps_rules.trap_checks(resolved(lane), lane, options()) if check.status == "fail"] == []


# --- overrides -------------------------------------------------------------------------------------------------


def without_names(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "lane": "", "labels": {**spec["labels"], "sparklanes.lane": ""}}


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("kind", [str, int])
def test_two_overrides_make_the_512k_lane_of_the_262k_one(rank: int, kind: type) -> None:
    """As `-e lane_max_model_len=524288 -e lane_kv_cache_memory_bytes=6000000000` would give them: as text."""
    over = {"lane_max_model_len": kind(524288), "lane_kv_cache_memory_bytes": kind(6000000000)}
    made, other = ours("glm53_dcp4_nvfp4", rank, **over), ours("glm53_dcp4_nvfp4_512k", rank)
    assert without_names(made) == without_names(other)
    assert ours("glm53_dcp4_nvfp4", rank)["command"] != other["command"]


def test_an_override_removes_a_flag_a_variable_a_mount_and_a_limit() -> None:
    made = ours(
        "flash_nvfp4_dflash2_tp2",
        0,
        lane_engine_args_override='{"--enforce-eager": null, "--speculative-config": {"num_speculative_tokens": 5}}',
        lane_engine_env_override='{"MAX_JOBS": null, "NCCL_DEBUG": "INFO"}',
        lane_container_override='{"memory": null, "memory_swap": null, "mounts": {"/root/.cache/flashinfer": null}}',
        lane_overlays_site=[{"source": "mine.py", "sha256": "a" * 64, "target": "/app/mine.py"}],
    )
    found = {one.what: (one.ours, one.theirs) for one in drift.differences(made, ours("flash_nvfp4_dflash2_tp2", 0))}
    assert {what: pair[0] for what, pair in found.items()} == {
        "flag --speculative-config": {"method": "dflash", "model": "/models/dflash2-draft", "num_speculative_tokens": 5},
        "env NCCL_DEBUG": "INFO",
        "mount /app/mine.py": f"/var/lib/sparklanes/overlays/{'a' * 64}/mine.py (read-only)",
        "flag --enforce-eager": drift.ABSENT,
        "env MAX_JOBS": drift.ABSENT,
        "mount /root/.cache/flashinfer": drift.ABSENT,
        "limit memory": drift.ABSENT,
        "limit memory_swap": drift.ABSENT,
    }


def test_nothing_knows_the_sandbox_lanes_by_name() -> None:
    """They go through the code that all lanes go through: no module, role, playbook or plugin names one."""
    words = [lane for lane in ALL if lane not in SHIPPED] + ["family_sandbox"]
    assert words != ["family_sandbox"]
    for folder in ("module_utils", "library", "filter_plugins", "action_plugins", "roles", "playbooks"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".yml", ".j2"):
                text = path.read_text(encoding="utf-8")
                assert not [word for word in words if word in text], path
