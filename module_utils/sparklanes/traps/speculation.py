# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps of speculative decoding: drafters, their methods, and what they do to KV cache and admission."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible.module_utils.sparklanes.lane.view import View, keys_within
from ansible.module_utils.sparklanes.traps.frame import ADVISE, REFUSE, Rules

RULES = Rules()

# Both published drafters of GLM-5.3 draft in blocks of eight, of which the first is no draft.
BLOCKS = {"glm-5.3-dflash2": 8, "glm-5.3-flash-dflash2": 8}
# Block size → tokens of the longest prompt that was still admitted on SM90 (W4A16 card); 1536 has no bound.
ADMITTED = {2304: 15_500, 1024: 17_400}
UNBOUND = 1536


@RULES.add(
    "SPEC_METHOD",
    REFUSE,
    want="method: dflash",
    remedy="Write method: dflash in --speculative-config; the engine takes version 1 or 2 from the drafter's architecture.",
    source="743B README: DFlash2, what it needs",
)
def method(view: View) -> Iterator[str]:
    """The method of a DFlash2 drafter is `dflash`.

    `dflash2` is no method of any engine: each rank ends at start.
    """
    if view.dflash and view.method != "dflash":
        yield f"--speculative-config has method {view.method or 'none'} for a DFlash drafter"


@RULES.add(
    "SPEC_TOKENS",
    REFUSE,
    want="the block size of the drafter − 1",
    remedy="Write num_speculative_tokens: 7. Fewer were measured on one lane only (Flash 2x notes, 5): accept it there with that reason.",
    source="743B README: DFlash2; FP8 TP4 recipe; W4A16 card: launcher. Against it: Flash 2x notes, 5 beats 7 at four streams",
)
def tokens(view: View) -> Iterator[str]:
    """A DFlash2 drafter proposes its block size − 1 tokens: 7.

    More can't be drafted; any other count ended in a boot that never ends on the W4A16 lanes.
    """
    block = next((size for name, size in BLOCKS.items() if view.drafter.lower().endswith(name)), None)
    if view.dflash and block and view.draft_tokens != block - 1:
        said = view.speculation.get("num_speculative_tokens", "absent")
        yield f"num_speculative_tokens is {said}, but {view.drafter} drafts in blocks of {block}"


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
    "SPEC_SKIP_LAYERS",
    REFUSE,
    want="--kv-cache-dtype-skip-layers: sliding_window",
    remedy="Add --kv-cache-dtype-skip-layers: sliding_window to lane_engine_args.",
    source="743B README: DFlash2, what it needs",
)
def skip_layers(view: View) -> Iterator[str]:
    """On the 743B model the drafter's layers are left out of the packed KV cache.

    They are plain sliding-window attention, for which no backend takes the packed layout. Leaving the dtype
    out does not help: the engine chooses the packed one by itself.
    """
    skipped = view.args.get("--kv-cache-dtype-skip-layers")
    layers = skipped if isinstance(skipped, list) else str(skipped or "").replace(",", " ").split()
    if view.big and view.dflash and "sliding_window" not in layers:
        yield f"a DFlash drafter beside a KV cache of {view.kv_dtype}, which its sliding-window layers cannot use"


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
    "SPEC_DRAFT_SAMPLING",
    REFUSE,
    want="greedy drafts",
    remedy="Remove the sampling method of drafts from --speculative-config.",
    source="743B launchers: notes of the DFlash2 port",
)
def sampling(view: View) -> Iterator[str]:
    """The DFlash2 port of the 743B engine drafts greedily.

    Its padded rows hold 0 as a sentinel; sampling drafts by probability would take them for tokens.
    """
    if view.big and view.dflash:
        for key, value in view.speculation.items():
            if "sampl" in key and "prob" in str(value).lower():
                yield f"--speculative-config has {key}: {value}"


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


@RULES.add(
    "SPEC_ENGINE",
    REFUSE,
    want="vLLM 0.28.0 or later, or an image with the port",
    remedy="Choose an image with DFlash2; if this one has a port of PR 52816, say so in its tag or accept the trap.",
    source="743B README: DFlash2; W4A16 card: the stock image can't boot this drafter",
)
def engine(view: View) -> Iterator[str]:
    """DFlash2 needs vLLM 0.28.0 or an image into which it was ported.

    An older engine doesn't know the drafter's architecture.
    """
    if view.dflash and view.version and view.version < (0, 28) and "dflash" not in view.image.lower():
        yield f"a DFlash drafter on {view.image.strip()}, which says nothing of a port"


@RULES.add(
    "SPEC_BROKEN_WINDOW",
    REFUSE,
    want="an engine built before 2026-08-22 or after 2026-08-25",
    remedy="Take the tag v0.28.0, or a build after vLLM PR 53435.",
    source="743B README: vLLM issue 53428, fixed by PR 53435",
)
def window(view: View) -> Iterator[str]:
    """An upstream build of 2026-08-22 to 2026-08-25 breaks DFlash.

    A merge conflict overwrote the class of the decoder layer.
    """
    for year, month, day in re.findall(r"(?<!\d)(20\d\d)-?([01]\d)-?([0-3]\d)(?!\d)", view.image):
        if view.dflash and "20260822" <= year + month + day <= "20260825":
            yield f"{view.image.strip()} is a build of {year}-{month}-{day}"


@RULES.add(
    "SPEC_ADMISSION",
    REFUSE,
    want=f"--block-size {UNBOUND}, or no DFlash drafter",
    remedy=f"Set --block-size: {UNBOUND}, use MTP, or accept the trap with the patch that caps the drafter's sliding window.",
    source="W4A16 card: DFlash2 admission wedge, root-caused 2026-09-04",
)
def admission(view: View) -> Iterator[str]:
    """On SM90 a DFlash2 drafter bounds the length of a prompt by the block size.

    Longer ones are never admitted: they wait at 0 % KV until the client gives up, and nothing is logged. Block 2304
    ends at about 15,500 tokens, 1024 at 17,400; 1536 has no bound. GB10 is not affected: it serves 1M at 2304.
    """
    block = view.number("--block-size")
    if view.arch == "sm_90" and view.flash and view.dflash and block != UNBOUND:
        bound = ADMITTED.get(int(block) if block and block == block and abs(block) < 1e9 else 0, min(ADMITTED.values()))
        if not view.context or view.context > bound:
            measured = "" if block in ADMITTED else ", the lowest bound that was measured"
            yield f"block size {view.args.get('--block-size', 'of the engine')}: prompts beyond {bound:,} tokens never start{measured}"


@RULES.add(
    "SPEC_NVFP4_TP2",
    REFUSE,
    want="fp8_e4m3",
    remedy="Set lane_kv_cache_dtype: fp8_e4m3, or run without the drafter.",
    source="Flash 2x README: state of NVFP4 KV",
)
def nvfp4_drafter(view: View) -> Iterator[str]:
    """On two Sparks, Flash with an NVFP4 KV cache has no DFlash2 drafter.

    It serves short prompts; one long enough for chunked prefill (about 3,000 tokens) kills the worker of rank 0.
    """
    if view.flash and view.dflash and view.tp == 2 and view.kv_dtype.startswith("nvfp4"):
        yield f"{view.kv_dtype} KV cache with a DFlash2 drafter at TP2"


@RULES.add(
    "SPEC_MTP_NVIDIA",
    REFUSE,
    want="weights whose MTP layer is quantized as the others are",
    remedy="Use RedHatAI/GLM-5.3-Flash-NVFP4, or a DFlash2 drafter.",
    source="Flash 2x notes: checkpoint guard",
)
def mtp_nvidia(view: View) -> Iterator[str]:
    """NVIDIA's NVFP4 build of Flash can't draft with MTP.

    Its layer 45 is BF16 while layer 44 is quantized; the loader of the MTP head expects the same of both.
    """
    if view.flash and view.method == "mtp" and view.repo.lower().startswith("nvidia/"):
        yield f"method mtp with {view.repo}"


@RULES.add(
    "SPEC_MTP_BF16",
    ADVISE,
    want="fp8_e4m3",
    remedy="Set lane_kv_cache_dtype: fp8_e4m3.",
    source="Flash 2x notes",
)
def mtp_bf16(view: View) -> Iterator[str]:
    """On two Sparks, Flash in NVFP4 with MTP has an fp8 KV cache.

    With a bf16 cache the driver ran out of memory (NV_ERR_NO_MEMORY).
    """
    if (
        view.spark
        and view.flash
        and view.nvfp4
        and view.tp == 2
        and view.method == "mtp"
        and view.kv_dtype in ("auto", "bfloat16")
    ):
        yield f"KV cache of {view.kv_dtype} with method mtp at TP2"


@RULES.add(
    "SPEC_MTP_HOPPER",
    ADVISE,
    want="num_speculative_tokens: 2",
    remedy="Use 2, or measure the acceptance of more before you trust it.",
    source="W4A16 card: serving on SM90",
)
def mtp_hopper(view: View) -> Iterator[str]:
    """On Hopper, MTP drafts two tokens.

    Five let the acceptance collapse from 52 % to 30 %; three and four were not published.
    """
    if view.arch == "sm_90" and view.flash and view.method == "mtp" and (view.draft_tokens or 0) > 2:
        yield f"{view.draft_tokens:g} tokens drafted by MTP"
