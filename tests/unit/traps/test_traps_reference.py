"""docs/traps.md is what the rules say: UPDATE_DOCS=1 writes it again."""

from __future__ import annotations

import os

from ansible.module_utils.sparklanes.traps import frame as traps_frame
from ansible.module_utils.sparklanes.traps import rules as traps_rules
from ansible.module_utils.sparklanes.traps.elsewhere import ELSEWHERE
from conftest import ROOT

PAGE = ROOT / "docs" / "traps.md"
ACTS = {traps_frame.REFUSE: "refuses", traps_frame.ADVISE: "warns", traps_frame.NOTE: "note"}
HEAD = """\
# Traps

Made from `module_utils/sparklanes/traps/` by `UPDATE_DOCS=1 pytest tests/unit/traps/test_traps_reference.py`; change them there.

What people who served these models on Sparks paid for, as rules. Preflight applies them to every lane, before any Spark is asked anything.
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

"""


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def page() -> str:
    parts = [HEAD]
    for title, rules in traps_rules.GROUPS.items():
        parts.append(f"## {title}\n\n| id | | rule, and why | remedy | source |\n|---|---|---|---|---|\n")
        for rule in rules:
            what = f"**{cell(rule.what)}** {cell(rule.why)}"
            parts.append(f"| `{rule.id}` | {ACTS[rule.severity]} | {what} | {cell(rule.remedy)} | {cell(rule.source)} |\n")
        parts.append("\n")
    parts.append(
        "## Dealt with elsewhere\n\nTraps that no rule over a lane can see.\n\n| trap | source | where |\n|---|---|---|\n"
    )
    parts += [f"| {cell(trap)} | {cell(source)} | {cell(where)} |\n" for trap, source, where in ELSEWHERE]
    parts.append("\n## Sources\n\n| short | what |\n|---|---|\n")
    parts += [f"| {name} | {cell(what)} |\n" for name, what in traps_frame.SOURCES.items()]
    return "".join(parts)


def test_the_page_is_what_the_rules_say() -> None:
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/traps.md is stale: UPDATE_DOCS=1 pytest tests/unit/traps/test_traps_reference.py"
    )
