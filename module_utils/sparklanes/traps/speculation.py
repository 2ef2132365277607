# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps of speculative decoding: what a lane says of its drafter in two places, and what no drafter stands."""

from __future__ import annotations

from collections.abc import Iterator

from ansible.module_utils.sparklanes.lane.view import View, keys_within
from ansible.module_utils.sparklanes.traps.frame import REFUSE, Rules

RULES = Rules()


@RULES.add(
    "SPEC_DRAFTER",
    REFUSE,
    want="lane_drafter is the model that --speculative-config names",
    remedy="Describe the drafter in lane_drafter, and write its container_path as model into --speculative-config.",
    source="743B launchers: exit codes for a missing drafter",
)
def drafter(view: View) -> Iterator[str]:
    """A drafter that is named is staged, and the other way round.

    The engine looks for it after minutes of loading; Docker makes an empty directory of a missing one.
    """
    named = str(view.speculation.get("model") or "")
    staged = str((view.lane["lane_drafter"] or {}).get("container_path") or "")
    if view.method == "dflash" and not named:
        yield "--speculative-config names no model for method dflash"
    elif named.startswith("/") and named.rstrip("/") != staged and named.rstrip("/") != view.lane["lane_model"]["container_path"]:
        yield f"--speculative-config names {named}, lane_drafter is mounted at {staged or 'no place'}"


@RULES.add(
    "SPEC_PAGE_PADDED",
    REFUSE,
    want="no page_size_padded",
    remedy="Remove page_size_padded: the drafter's group gets compact tensors of its own, for a few percent of the pool.",
    source="743B README: DFlash2, what it needs",
)
def padded(view: View) -> Iterator[str]:
    """Pages of the drafter's KV group are never padded.

    Padded, each kernel block is charged a whole page: 13.59 GB were asked of a tensor of 377 MB.
    """
    for flag, value in view.args.items():
        if view.speculation and any(key == "page_size_padded" and item for key, item in keys_within({flag: value})):
            yield f"{flag} sets page_size_padded beside a drafter"


@RULES.add(
    "SPEC_RENAMED",
    REFUSE,
    want="the architectures of the published config.json",
    remedy="Remove it and use an image whose engine knows the drafter (vLLM 0.28.0, or a port of PR 52816).",
    source="743B README: DFlash2, what it needs",
)
def renamed(view: View) -> Iterator[str]:
    """No architecture is renamed to get past an older engine.

    A DFlash2 drafter then runs as DFlash1, without its convolution: no error, only fewer accepted tokens.
    """
    for flag in ("--hf-overrides", "--speculative-config", "--model-class-overrides"):
        if any(key in ("architectures", "model_type") for key, _ in keys_within(view.json(flag))):
            yield f"{flag} names another architecture"
