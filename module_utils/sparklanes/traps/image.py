# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps of images and checkpoints: pinned libraries, builds and weights that are known to be bad."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible.module_utils.sparklanes.lane.view import View
from ansible.module_utils.sparklanes.traps.frame import ADVISE, REFUSE, Rules

RULES = Rules()


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version; empty where there are none."""
    found = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


@RULES.add(
    "PIN_FLASHINFER",
    REFUSE,
    want="0.6.18 or later",
    remedy="Rebuild the image with flashinfer-python and flashinfer-cubin 0.6.18.",
    source="Flash 2x README: why a patched image; cfontes TP4 README",
)
def flashinfer(view: View) -> Iterator[str]:
    """On GB10, an image of Flash holds FlashInfer 0.6.18 or later.

    Before it, FA2 MLA gives NaN for batches of 64 to 256 rows, where ordinary prompts land. The SM120 image runs on 0.6.17.
    """
    given = view.pinned("flashinfer")
    if view.spark and view.flash and given and version(given) < (0, 6, 18):
        yield f"lane_image.pins.flashinfer {given}"


@RULES.add(
    "PIN_NCCL",
    REFUSE,
    want="2.30 or later",
    remedy="Pin nvidia-nccl-cu13 2.30.7 again after the last pip install of the build.",
    source="Flash 2x README: the nightly's dependency sabotage",
)
def nccl(view: View) -> Iterator[str]:
    """On Sparks, an image brings NCCL 2.30 or later, or the lane preloads one.

    A FlashInfer nightly silently put 2.29.7 there, which ends in "internal error" on this fabric.
    """
    given = view.pinned("nccl")
    if view.spark and view.nodes > 1 and given and version(given) < (2, 30) and "nccl" not in str(view.env.get("LD_PRELOAD", "")):
        yield f"lane_image.pins.nccl {given}"


@RULES.add(
    "PIN_CUTLASS",
    REFUSE,
    want="4.6.2, and of one version",
    remedy="Pin nvidia-cutlass-dsl 4.6.2 again after the last pip install of the build.",
    source="Flash 2x README: the nightly's dependency sabotage. Newer harnesses use 4.7.0 throughout",
)
def cutlass(view: View) -> Iterator[str]:
    """The parts of the CUTLASS DSL in an image are of one version.

    A nightly left 4.7.0 beside 4.6.2, and the compiler of the warm-up crashed.
    """
    given = set(re.findall(r"\d+\.\d+\.\d+", view.pinned("cutlass_dsl")))
    if view.spark and len(given) > 1:
        yield f"lane_image.pins.cutlass_dsl {' and '.join(sorted(given))}"


@RULES.add(
    "PIN_PDL",
    REFUSE,
    want="off",
    remedy="Use an image that gates it off (sm121-v6 and later), and set no TRTLLM_ENABLE_PDL.",
    source="Flash 2x README: PDL on unvalidated silicon",
)
def pdl(view: View) -> Iterator[str]:
    """On SM12x there is no programmatic dependent launch.

    vLLM turns it on from capability 9 up, in kernels that carry the recurrent state; on this silicon nobody validated it.
    """
    if view.arch in ("sm_121", "sm_120") and (view.lane["lane_image"]["pins"] or {}).get("pdl"):
        yield "lane_image.pins.pdl is true"
    if view.arch in ("sm_121", "sm_120") and str(view.env.get("TRTLLM_ENABLE_PDL", "0")).lower() not in ("0", "false"):
        yield f"TRTLLM_ENABLE_PDL is {view.env['TRTLLM_ENABLE_PDL']}"


@RULES.add(
    "IMAGE_OLD",
    REFUSE,
    want="sm121-v8 or later",
    remedy="Use sm121-v8, or sm121-v11-dflash2 with a drafter.",
    source="Flash 2x README: why a patched image",
)
def old(view: View) -> Iterator[str]:
    """On GB10, Flash runs on an image with all patches: day 0 and the first stages lack some.

    v1 to v7 lack, in turn, NaN-free kernels, NCCL, the compiler pin, the PDL gate, the indexer fix, the fp8 cache.
    """
    stage = re.search(r"sm121-v(\d{1,6})", view.image)
    if view.spark and view.flash and ((stage and int(stage[1]) < 8) or "vllm-openai:glm53-flash-arm64" in view.image):
        yield view.image.split()[0]


@RULES.add(
    "IMAGE_NIGHTLY_GB10",
    REFUSE,
    want="another build",
    remedy="Use the pinned SM121 image, or a nightly that somebody booted on a Spark.",
    source="SM121 image repository, 2026-09-17. Against it: W4A16 card, upstream serves with MTP",
)
def nightly(view: View) -> Iterator[str]:
    """The upstream nightly 385dce36b does not boot Flash on GB10.

    It dies in the warm-up of sparse MLA ("Failed to run MLA, error: invalid argument"), with autotune and without.
    """
    if view.spark and view.flash and "385dce36b" in view.image:
        yield view.image.strip()


@RULES.add(
    "WEIGHTS_MODELOPT",
    ADVISE,
    want="compressed-tensors, as RedHatAI/GLM-5.3-Flash-NVFP4",
    remedy="Set lane_model_site: {repo: RedHatAI/GLM-5.3-Flash-NVFP4, revision: …}; no flag changes.",
    source="Flash 2x README: checkpoint. vLLM issue 54150",
)
def modelopt(view: View) -> Iterator[str]:
    """NVFP4 weights of Flash are not those of ModelOpt.

    They emit a broken token now and then: hardly seen in English, but inside a tool call the parser loses its place.
    """
    if view.flash and view.nvfp4 and re.match(r"libertai|drowzeys|keys", view.repo.lower()):
        yield view.repo


@RULES.add(
    "WEIGHTS_CONFIG_OLD",
    REFUSE,
    want="the config.json of 2026-09-08 or later",
    remedy="Fetch config.json again, revision ece4697 or later; the weights are the same.",
    source="W4A16 card: vLLM serving note",
)
def config(view: View) -> Iterator[str]:
    """The W4A16 weights have the config.json of 2026-09-08 or later.

    The list of ignored modules of the older one misses vLLM's names: KeyError on mlp.gate_up_proj.weight while loading.
    """
    model = view.lane["lane_model"]
    hashes = [model["config_sha256"], (model["sha256"] or {}).get("config.json")]
    if any(str(text or "").startswith("92ae6f37") for text in hashes):
        yield f"config.json of {view.repo} is the old one (92ae6f37…)"
