#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Give the page cache back once, and report what that did."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: page_cache_flush
short_description: Give the page cache back once, and report what that did
description:
  - Flushes the page cache of a Spark and measures MemFree, Cached and free blocks of 32 MiB before and after. The result is the effect, not the attempt.
  - Where O(wanted_free_gib) is free already, nothing is flushed.
options:
  wanted_free_gib:
    description: MemFree in GiB that must be there afterwards; the module fails where it is not.
    type: float
  paths:
    description:
      - Files and folders to drop from the cache one file at a time (C(posix_fadvise)). Needs no root, only the right to read them.
      - Without it the whole cache is dropped through C(/proc/sys/vm/drop_caches), which needs root.
    type: list
    elements: path
  drop:
    description: What is written to C(/proc/sys/vm/drop_caches); 1 page cache, 2 dentries and inodes, 3 both.
    type: int
    choices: [1, 2, 3]
    default: 3
  root:
    description: Root of the file tree, for tests.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  check_mode:
    details: Says whether it would flush. How much comes free shows only in a real run.
  diff_mode:
    support: partial
    details: Shows MemFree and Cached before and after. In check mode nothing was flushed, and the two are equal.
  idempotent:
    support: partial
    details: With O(wanted_free_gib), where so much is free already. Otherwise it flushes at each run.
"""

EXAMPLES = r"""
- name: Have 100 GiB free before the engine starts
  page_cache_flush:
    wanted_free_gib: 100

- name: Forget the weights that were just copied, without root
  page_cache_flush:
    paths: [/var/lib/sparklanes/models]
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
before:
  description:
    - C(mem_free), C(cached) and C(mem_available) in bytes before the flush, and C(blocks), the free blocks of 32 MiB.
    - What the kernel does not tell is V(null).
  returned: always
  type: dict
after:
  description: The same afterwards; equal to RV(before) where nothing was flushed.
  returned: always
  type: dict
freed_bytes:
  description: Bytes that became free or left the cache, whichever is more.
  returned: always
  type: int
files:
  description: Number of files that were dropped one by one.
  returned: always
  type: int
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.memory import facts as memory
from ansible.module_utils.sparklanes.memory import page_cache
from ansible.module_utils.sparklanes.memory.page_cache import Effect


def gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / GIB:.2f} GiB"


def shown(memory: page_cache.Memory) -> str:
    return f"MemFree {gib(memory.mem_free)}\nCached {gib(memory.cached)}\n"


def blocks(root: Path) -> int | None:
    """Free blocks of 32 MiB: memory that came free in pieces helps no loader that wants large ones."""
    try:
        text = (root / "proc/buddyinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = memory.large_blocks(memory.parse_buddyinfo(text), os.sysconf("SC_PAGE_SIZE"))
    return None if found is None else int(found.equivalent)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "wanted_free_gib": {"type": "float"},
            "paths": {"type": "list", "elements": "path"},
            "drop": {"type": "int", "choices": [1, 2, 3], "default": 3},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root, wanted, paths = Path(module.params["root"]), module.params["wanted_free_gib"], module.params["paths"]
    missing = [path for path in paths or [] if not Path(path).exists()]
    if missing:
        module.fail_json(msg=f"{', '.join(missing)}: not on this Spark, so nothing of it can be in the cache. Correct `paths`")
    if wanted is not None:
        total = page_cache.mem_total(root)
        if not wanted >= 0:
            module.fail_json(msg=f"wanted_free_gib: found {wanted:g}, expected 0 or more. Nothing was flushed")
        if total is not None and wanted * GIB > total:
            module.fail_json(
                msg=f"wanted_free_gib: found {wanted:g}, expected at most all memory of this Spark, {gib(total)}. Nothing was flushed"
            )
    actions: list[str] = []
    files = 0
    try:
        now = page_cache.measure(root)
        torn = blocks(root)
        effect = Effect(now, now)
        enough = wanted is not None and now.mem_free is not None and now.mem_free >= wanted * GIB
        what = f"the files below {', '.join(paths)}" if paths else "the whole page cache"
        if enough:
            actions.append(f"Nothing to flush: MemFree is {gib(now.mem_free)}, wanted {wanted:g} GiB")
        elif module.check_mode:
            actions.append(f"Flush {what}: MemFree is {gib(now.mem_free)}, Cached {gib(now.cached)}")
        else:
            if paths:
                effect, files = page_cache.forget(paths, root)
            else:
                effect = page_cache.drop_caches(module.params["drop"], root)
            actions.append(
                f"Flushed {what}: MemFree {gib(effect.before.mem_free)} → {gib(effect.after.mem_free)}, "
                f"Cached {gib(effect.before.cached)} → {gib(effect.after.cached)}"
            )
    except PermissionError as error:
        module.fail_json(
            msg=f"{error.filename}: no right to open it. Run with become, or name files of your own in `paths`", actions=actions
        )
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'the page cache'}: {error.strerror or error}", actions=actions)
    measured = effect.to_dict()
    result = {
        **measured,
        "before": {**measured["before"], "blocks": torn},
        "after": {**measured["after"], "blocks": blocks(root)},
        "actions": actions,
        "files": files,
        "changed": not enough,
        "diff": {"before": shown(effect.before), "after": shown(effect.after)},
    }
    free = effect.after.mem_free
    if wanted is not None and not module.check_mode and (free is None or free < wanted * GIB):
        cached = effect.after.cached or 0
        module.fail_json(
            msg=f"MemFree is {gib(free)} after the flush (before {gib(effect.before.mem_free)}), wanted {wanted:g} GiB; "
            f"Cached is still {gib(cached)}. What is left belongs to processes, the GPU or the kernel: "
            "look at `docker ps`, `nvidia-smi` and `ps -eo pid,rss,args --sort -rss | head`, stop what is not needed, then run this again",
            **result,
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
