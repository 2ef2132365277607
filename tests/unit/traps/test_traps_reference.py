"""docs/traps.md is what the rules say, those in code and those in the files of group_vars/: UPDATE_DOCS=1 writes it again."""

from __future__ import annotations

import ast
import os
import re

import pytest
import yaml
from ansible.module_utils.sparklanes.traps import frame as traps_frame
from ansible.module_utils.sparklanes.traps import names as traps_names
from ansible.module_utils.sparklanes.traps import rules as traps_rules
from ansible.module_utils.sparklanes.traps.frame import Rule
from conftest import ROOT
from lane_files import GROUP_VARS
from trap_files import ALL, data_files

PAGE = ROOT / "docs" / "traps.md"
TOLD = yaml.safe_load((ROOT / "docs" / "traps_elsewhere.yml").read_text(encoding="utf-8"))
ACTS = {traps_frame.REFUSE: "refuses", traps_frame.ADVISE: "warns", traps_frame.NOTE: "note"}
HEAD = """\
# Traps

Made from `group_vars/`, `module_utils/sparklanes/traps/` and `docs/traps_elsewhere.yml` by
`UPDATE_DOCS=1 pytest tests/unit/traps/test_traps_reference.py`; change them there.

What people who served these models on Sparks paid for, as rules. Preflight applies them to every lane, before any Spark is asked anything; those that ask
what the files of a model or the libraries of an image say are applied by gate A of a launch, before anything is stopped.
A rule *refuses*, *warns*, or leaves a *note* above the commands that `playbooks/render.yml` prints. What breaks on one GPU need not on another:
rules look at `lane_gpu_arch`, `sm_121` being a Spark.

```console
$ ansible-playbook playbooks/preflight.yml -e lane=glm53_dcp4_nvfp4 -e lane_kv_cache_dtype=fp8_e4m3
…
FAIL  TRAP.KV_DTYPE_E4M3  all  KV cache of fp8_e4m3 on 2wild4tv/GLM-5.3-Int4-Int8Mix  (want fp8)
```

**You know better?** A lane walks into a trap knowingly when it says why. A refusal becomes a warning that shows the reason, a warning is skipped:

```yaml
# inventory/fleet/group_vars/lane_flash_nvfp4_dflash2_tp2.yml
lane_accept_site:
  TRAP.SPEC_TOKENS: five beat seven at four streams, measured here
```

## A trap of your own

What is known of one model, kit, GPU or lane stands as data beside it, in the variable `lane_traps` with its layers: `lane_traps_sparks` for
all lanes, `lane_traps_family` in `group_vars/family_<id>.yml`, `lane_traps_kit` in `kit_<id>.yml`, `lane_traps` in `lane_<id>.yml`. Yours go into
`lane_traps_site`: in `sparks.yml` they hold for all your lanes, in `lane_<id>.yml` for one (where both have some, the lane's file wins as a whole).

```yaml
# inventory/fleet/group_vars/sparks.yml
lane_traps_site:
  HEAT_AT_FULL_LOAD:                        # shown as TRAP.HEAT_AT_FULL_LOAD
    severity: refuse                        # or warn, or note
    what: Flash serves at most eight requests at a time in this room.
    when:                                   # a trap when all of these hold; a list of such mappings: when one of them does
      lane_model.repo: "*glm-5.3-flash*"
      lane_max_num_seqs: [absent, "> 8"]
    found: "{lane_max_num_seqs|Any number of} requests at a time"
    why: With twelve, two Sparks reached 95 °C and halved their clocks after half an hour.
    want: at most 8
    remedy: "Set lane_max_num_seqs: 8, or open the window."
    source: our log of 2026-11-03, spark-3 and spark-4
```

`null` removes a trap that we ship, a layer changes one part of it, and `lane_accept` accepts yours by its id as any other. What can't be read (a name
that doesn't exist, a condition that can't hold, a missing source) is refused by preflight as `LANE.TRAP_RULES`, with the nearest name.
Without `found` the values of the names in `when` are shown; `what` and `found` may be left out.

| condition | holds when the value is |
|---|---|
| `64`, `fp8`, `true` | equal to it: numbers however they are spelled, text as it stands |
| `"*nvfp4*"` | like this pattern of `*`, `?` and `[a-z]`, whatever the case of its letters |
| `"> 4"`, `"<= 0.8"`, `">= 32GiB"`, `"< 0.28"` | more or less than a number, a size, or a version; what can't be read satisfies none |
| `present`, `absent` | given at all, or left to the engine |
| `[absent, "> 8"]` | one of these |
| `{not: fp8}`, `{not: [a, b]}` | not so; what is absent is not `fp8` either |
| `{all: ["> 4", "< 9"]}` | all of these |
| `{multiple_of: 64}` | a whole number of times this number |

A name with several values, as a list has, meets a condition when one of its values does. In `found`, `{NAME}` is the value,
`{NAME:,}` with thousands set apart, `{NAME|text}` the text where it is absent.

"""


# Name → what it means, of those that no other page lists.
NAMES = {
    "`--FLAG`": "a flag of the engine, under its usual name, also where a variable of the lane spells it; `--no-FLAG` is a flag of its own",
    "`--FLAG.PART`": "a part of a flag that takes JSON, as `--speculative-config.method`; `--FLAG.*PART` at any depth",
    "`env.NAME`": "a variable of the engine's environment",
    "`lane_…`": "a [variable of a lane](lane-reference.md), a dotted part of it too: `lane_model.repo`, `lane_image.pins.nccl`",
    **{f"`{name}`": means for name, (_, _, means) in traps_names.DERIVED.items()},
    **{
        f"`{name}{'' if name == 'tensors' else '.…'}`": f"{means}; judged before the stop, on each Spark"
        for name, (_, _, means) in traps_names.STAGED.items()
    },
}


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def table(title: str, rules: list[Rule]) -> str:
    rows = [f"## {title}\n\n| id | | rule, and why | remedy | source |\n|---|---|---|---|---|\n"]
    for rule in rules:
        what = f"**{cell(rule.what)}** {cell(rule.why)}"
        rows.append(f"| `{rule.id}` | {ACTS[rule.severity]} | {what} | {cell(rule.remedy)} | {cell(rule.source)} |\n")
    return "".join([*rows, "\n"])


def page() -> str:
    parts = [HEAD, "| name | what it is |\n|---|---|\n"]
    parts += [f"| {name} | {means} |\n" for name, means in NAMES.items()]
    parts.append("\n")
    parts += [table(f"`{path}`", rules) for path, rules in data_files().items()]
    parts += [table(f"Any lane: {title[:1].lower()}{title[1:]}", rules) for title, rules in traps_rules.GROUPS.items()]
    parts.append(
        "## Dealt with elsewhere\n\nTraps that no rule over a lane can see.\n\n| trap | source | where |\n|---|---|---|\n"
    )
    parts += [f"| {cell(one['trap'])} | {cell(one['source'])} | {cell(one['where'])} |\n" for one in TOLD["elsewhere"]]
    parts.append("\n## Sources\n\n| short | what |\n|---|---|\n")
    parts += [f"| {name} | {cell(what)} |\n" for name, what in TOLD["sources"].items()]
    return "".join(parts)


def test_the_page_is_what_the_rules_say() -> None:
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/traps.md is stale: UPDATE_DOCS=1 pytest tests/unit/traps/test_traps_reference.py"
    )


def test_an_id_stands_in_one_file() -> None:
    ids = [rule.id for rule in ALL]
    assert sorted(set(ids)) == sorted(ids)


def test_every_trap_that_a_file_of_lanes_names_exists() -> None:
    """Where a lane avoids a trap, its file names the trap; the reason stands with the rule, once."""
    ids = {rule.id for rule in ALL}
    for path in GROUP_VARS.rglob("*.yml"):
        unknown = set(re.findall(r"TRAP\.[A-Z][A-Z0-9_]*", path.read_text(encoding="utf-8"))) - ids
        assert not unknown, f"{path.relative_to(ROOT)} names {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("room", ["lane", "traps", "gates"])
def test_no_code_of_a_lane_names_a_model(room: str) -> None:
    """What is known of one model is data beside it. Docstrings and the sources of rules may name one."""
    for path in (ROOT / "module_utils" / "sparklanes" / room).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        told = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        told |= {
            word.value for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords if word.arg == "source"
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in told:
                assert not re.search(r"glm-?\d|nvfp4-|w4a16-", node.value, re.IGNORECASE), (
                    f"{path.relative_to(ROOT)}:{node.lineno} knows a model: write a trap or a variable into its family's file"
                )


def test_what_is_told_beside_the_rules_has_its_form() -> None:
    assert set(TOLD) == {"elsewhere", "sources"}
    assert all(set(one) == {"trap", "source", "where"} and all(one.values()) for one in TOLD["elsewhere"])
