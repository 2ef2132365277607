"""docs/lanes.md is what the lanes say: UPDATE_DOCS=1 writes it again."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from ansible.module_utils.sparklanes.lane import schema as lane_schema
from ansible.module_utils.sparklanes.lane import state as lane_state
from ansible.module_utils.sparklanes.lane import unknowns as lane_unknowns
from ansible.module_utils.sparklanes.traps import rules as traps_rules
from conftest import ROOT
from lane_files import ALL, SHIPPED, options, variables_of

PAGE = ROOT / "docs" / "lanes.md"
HEAD = """\
# Lanes

Which lane to run, and what each one is. Made from `group_vars/` by `UPDATE_DOCS=1 pytest tests/unit/lane/test_lanes_catalogue.py`; change it there.
Every number is its source's, with the method and date that the source gives; none was measured by this project. What a lane may
say: [variables of a lane](lane-reference.md). How lanes, families and kits fit together: [concepts](concepts.md). What is known to go wrong, and
is refused or warned of before a launch: [traps](traps.md). What a lane leaves open, `playbooks/pin.yml` looks up: [pins](pin.md).

## Which one

| you have | you want | take | mind |
|---|---|---|---|
"""
# Hand-written; a test holds the names against the lanes, and the numbers stand in the tables below.
GUIDE = [
    (
        "2 Sparks",
        "a first lane that serves today: an image by digest, 262K",
        "flash_nvfp4_dflash2_tp2",
        "get a chat template and an overlay; `playbooks/pin.yml` looks up the two commits",
    ),
    ("2 Sparks", "1M tokens of context", "flash_w4a16_dflash2_tp2_1m", "int4 experts; 1M of NVFP4 took two Sparks down"),
    (
        "2 Sparks",
        "several users at 262K",
        "flash_w4a16_dflash2_tp2_262k",
        "121.8 tok/s for six, against 84.8 with NVFP4; other harnesses",
    ),
    (
        "2 Sparks",
        "no drafter, whose licence allows research only",
        "flash_nvfp4_mtp_tp2",
        "half the speed; superseded for its source",
    ),
    (
        "4 Sparks",
        "speed, many users, 1M",
        "flash_nvfp4_dflash2_tp4_1m",
        "superseded by weights that its source publishes nowhere; look at acceptance after each boot",
    ),
    ("4 Sparks", "nothing cut to four bits", "flash_fp8_dflash2_tp4_393k", "`playbooks/pin.yml` looks up the image's digest"),
    ("4 Sparks", "the large model at 262K", "glm53_dcp4_nvfp4", "build the image; prefill of 400 tok/s"),
    ("4 Sparks", "the large model at 512K", "glm53_dcp4_nvfp4_512k", "one full window fits"),
    ("4 Sparks", "the large model without NVFP4 in the cache", "glm53_dcp4_fp8", "two thirds of the pool"),
    ("4 Sparks", "a reference for teacher forcing", "glm53_dcp1_nvfp4_reference", "not to serve with"),
    ("a host with 4 H100 or H200", "the same weights", "flash_w4a16_mtp_tp4_hopper", "no Spark, no fabric"),
    ("a host with 4 RTX PRO 6000", "the same weights", "flash_w4a16_mtp_tp4_sm120", "no Spark, no fabric"),
    ("no Spark at all", "to try the project", "sandbox_tiny", "a tiny model on CPUs: `script/sandbox up`"),
]
GROUPS = {
    "GLM-5.3 743B on four Sparks": lambda lane: lane["lane_family"] == "glm53_743b",
    "GLM-5.3-Flash (320B, 18B active) on two Sparks": lambda lane: (
        lane["lane_family"] == "glm53_flash" and lane["lane_nodes"] == 2
    ),
    "GLM-5.3-Flash on four Sparks": lambda lane: lane["lane_family"] == "glm53_flash" and lane["lane_nodes"] == 4,
    "GLM-5.3-Flash on one x86 host": lambda lane: lane["lane_family"] == "glm53_flash_x86",
    "Sandbox": lambda lane: lane["lane_family"] == "sandbox",
}
COLUMNS = (
    "lane",
    "context",
    "KV cache of a rank",
    "pool (tokens)",
    "one stream, tok/s",
    "together, tok/s",
    "state",
    "measured",
    "image",
    "open",
)
TAIL = """\
## A lane of your own

```console
$ ansible-playbook playbooks/new_lane.yml -e new_lane=mine -e new_lane_from=flash_nvfp4_dflash2_tp2
$ ansible-playbook playbooks/preflight.yml -e lane=mine -e preflight_needs=launch    # what is wrong or missing
$ ansible-playbook playbooks/render.yml -e lane=mine                                 # the command of each rank
$ ansible-playbook playbooks/render.yml -e lane=mine --diff                          # … against what runs now
```

The last one prints, below the command of each rank:

```
# spark-1: sparklanes-sparks-rank0 differs from what the lane renders in 2 places
flag --max-model-len: runs with 262144, the lane says 524288
mount /root/.cache/flashinfer: runs with /var/lib/sparklanes/cache/glm53_flash/flashinfer (writable), which the lane does not have
```

A container that was started by hand is compared by its name: `-e render_container=vllm_glm53`. Values of secrets are not shown.

The first writes `inventory/fleet/group_vars/lane_mine.yml` from the parent's file, without the numbers that the parent's source
measured but for `lane_memory`, from which the budget is judged: correct it where the model is another one. A lane is that one file: no code, no list to be added to. To change a few values of a lane that is there, a
site file of the same name is enough ([concepts](concepts.md), "Layers"), or `-e` for one run:

```console
$ ansible-playbook playbooks/launch.yml -e lane=glm53_dcp4_nvfp4 -e lane_max_model_len=524288 -e lane_kv_cache_memory_bytes=6000000000
```

A lane that should ship with the project also goes into the golden test: its source's command below `tests/fixtures/lane/`
([README](../tests/fixtures/lane/README.md)).
"""


@functools.cache
def lane_of(name: str) -> dict[str, Any]:
    made, _ = lane_schema.resolve(variables_of(name), options(), name)
    return made


def tokens(value: int | None) -> str:
    return f"{value:,}" if value else "unknown"


def cache(lane: Mapping[str, Any]) -> str:
    size = lane["lane_kv_cache_memory_bytes"]
    return f"{lane['lane_kv_cache_dtype'] or 'auto'}, " + (f"{size / 2**30:.2f} GiB" if size else "sized by the engine")


def pool(lane: Mapping[str, Any]) -> str:
    """The printed pool, and the measured one where somebody filled it."""
    said = lane["lane_expect"].get("kv_pool_tokens") or {}
    parts = [f"{said['boot_log']:,}" if said.get("boot_log") else "–"]
    if said.get("measured"):
        parts.append(f"({said['measured']:,} by filling it)")
    return " ".join(parts)


def alone(lane: Mapping[str, Any]) -> str:
    """Speeds of one request, those that people ask for first."""
    said = {**(lane["lane_expect"].get("end_to_end_tok_s") or {}), **(lane["lane_expect"].get("single_stream_tok_s") or {})}
    first = [name for name in ("code", "prose", "mixed", "count100") if name in said] or list(said)[:2]
    return ", ".join(f"{name} {said[name]}" for name in first) or "–"


def together(lane: Mapping[str, Any]) -> str:
    said = lane["lane_expect"].get("aggregate_tok_s") or {}
    names = list(said)
    return ", ".join(f"{name} {said[name]}" for name in ([names[0], names[-1]] if len(names) > 1 else names)) or "–"


def image(lane: Mapping[str, Any]) -> str:
    given = lane["lane_image"]
    if given["digest"] and "{{" in given["digest"]:
        return "built by script/sandbox"
    return "by digest" if given["digest"] else "digest unknown"


def unknowns(lane: Mapping[str, Any]) -> list[str]:
    return [
        check.expected.removesuffix(" is known before launch")
        for check in lane_unknowns.launch_refusals(lane)
        if check.status == "fail"
    ]


def figures(one: Mapping[str, Any]) -> str:
    """What was measured, as its file writes it."""
    told = {name: value for name, value in one.items() if name not in ("method", "date")}
    return f"`{yaml.safe_dump(told, default_flow_style=True, sort_keys=False, width=10**6).strip().strip('{}')}`"


def shown(lane: Mapping[str, Any], path: str) -> str:
    told = lane["lane_engine_args"].get(path) if path.startswith("--") else lane_unknowns.lookup(lane, path)
    return f"{told:,}" if isinstance(told, int) else str(told)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def overview(names: list[str]) -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for name in names:
        lane = lane_of(name)
        title = linked(name)
        date = str(lane["lane_expect"].get("date", "–")).partition(" (")[0]
        values = (
            title,
            tokens(lane["lane_max_model_len"]),
            cache(lane),
            pool(lane),
            alone(lane),
            together(lane),
            lane_state.state(lane),
            date,
            image(lane),
        )
        yield "| " + " | ".join(cell(value) for value in (*values, str(len(unknowns(lane))))) + " |"


def section(name: str) -> Iterator[str]:
    lane = lane_of(name)
    source, expect, given = lane["lane_source"], lane["lane_expect"], lane["lane_image"]
    yield f"### {name}\n\n{lane['lane_title']}.\n"
    if lane["lane_negative"]:
        yield f"**A negative example**: {lane['lane_negative']}. A launch refuses it without `-e lane_accept_negative=true`.\n"
    if lane["lane_superseded"]:
        yield f"**Superseded**: {lane['lane_superseded']}.\n"
    hosts = f"{lane['lane_nodes']} × {lane['lane_gpus_per_node']} GPU ({lane['lane_gpu_arch']})"
    shape = f"{hosts}, {lane['lane_max_num_seqs'] or '?'} requests at a time, {len(lane['lane_overlays'])} overlays"
    tag = f":{given['tag']}" if given["tag"] else ""
    rows = [
        ("shape", shape),
        ("source", ", ".join(f"`{source[key]}`" for key in ("repository", "launcher", "commit", "date") if source.get(key))),
        ("image", f"`{given['repository']}{tag}`, {given['digest'] or 'digest unknown'}, vLLM {given['vllm'] or 'unknown'}"),
        (
            "weights",
            f"`{lane['lane_model']['repo']}`" + (f", drafter `{lane['lane_drafter']['repo']}`" if lane["lane_drafter"] else ""),
        ),
        ("measured", f"{expect.get('date', 'not stated')}: {expect.get('method', 'not stated')}"),
    ]
    yield from (f"- **{label}**: {value}" for label, value in rows)
    if expect.get("also"):
        yield "- **measured in other ways**:"
        yield from (f"  - {one['date']}: {one['method']}: {figures(one)}" for one in expect["also"])
    if lane["lane_assumed"]:
        yield "- **ours, as no source tells it**:"
        yield from (f"  - `{path}` {shown(lane, path)}: {why}" for path, why in lane["lane_assumed"].items())
    for label, texts in (("contradictions", lane["lane_contradictions"]), ("its source warns", lane["lane_warnings"])):
        if texts:
            yield f"- **{label}**:"
            yield from (f"  - {text}" for text in texts)
    found = [check for check in traps_rules.trap_checks(lane, name, options()) if check.status == "warn"]
    if found:
        yield f"- **known [traps](traps.md)**: {'; '.join(f'{check.found} (`{check.id}`)' for check in found)}"
    missing = unknowns(lane)
    if missing:
        yield f"- **open, so a launch is refused**: {', '.join(f'`{path}`' for path in missing)}"
    yield ""


def linked(name: str) -> str:
    """To its section; the lane of the sandbox has none here."""
    return f"[`{name}`](#{name})" if name in SHIPPED else f"[`{name}`](../sandbox/README.md)"


@functools.cache
def page() -> str:
    parts = [HEAD + "\n".join(f"| {have} | {want} | {linked(name)} | {mind} |" for have, want, name, mind in GUIDE), ""]
    real = [name for name in ALL if name in SHIPPED]
    for title, belongs in GROUPS.items():
        names = [name for name in ALL if belongs(lane_of(name))]
        parts += [f"## {title}", "", *overview(names), ""]
    parts += [
        "*pool*: what the boot log prints. It is the number of full windows that fit times the window, so it grows with the window without one",
        "byte more of memory; compare pools of one window only. *one stream*, *together*: how they were measured differs, and stands with each lane",
        "below; counting to 100 (count100) is the ceiling of a drafter, prose its floor. *open*: what a launch asks for first, since no source tells it.",
        "*state*: measured by its source; reported, without a harness; superseded, by what its source runs now (a launch warns); negative, kept as a",
        "warning (a launch refuses it); never run. `playbooks/lanes.yml` lists them with yours.",
        "",
        "## Each lane",
        "",
    ]
    parts += [line for name in real for line in section(name)]
    return "\n".join(parts) + TAIL


def test_the_page_is_what_the_lanes_say() -> None:
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/lanes.md is stale: UPDATE_DOCS=1 pytest tests/unit/lane/test_lanes_catalogue.py"
    )


def test_every_lane_stands_in_one_table_and_the_guide_names_lanes_that_are_there() -> None:
    for name in ALL:
        tables = [title for title, belongs in GROUPS.items() if belongs(lane_of(name))]
        assert len(tables) == 1, (
            f"{name} belongs to {tables or 'no table'}: give GROUPS above one for its family and number of nodes"
        )
    assert {name for _have, _want, name, _mind in GUIDE} <= set(ALL)
    # Nobody is sent to a negative example, nor to what is superseded without a word, and the number of Sparks is that of the lane.
    for have, _want, name, mind in GUIDE:
        assert not lane_of(name)["lane_negative"]
        assert ("superseded" in mind) == bool(lane_of(name)["lane_superseded"])
        if "Sparks" in have:
            assert int(have.split()[0]) == lane_of(name)["lane_nodes"]


def test_every_link_within_the_page_leads_somewhere() -> None:
    text = page()
    for target in re.findall(r"\]\(#([a-z0-9_]+)\)", text):
        assert f"### {target}\n" in text, target
