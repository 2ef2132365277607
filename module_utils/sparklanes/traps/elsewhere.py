# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps that the sources name and no rule over a lane can see: what each is, who says so, where it is dealt with."""

from __future__ import annotations

# (trap, source, where)
ELSEWHERE: tuple[tuple[str, str, str], ...] = (
    ("An empty environment value is read as 0: an empty GID index is a link-local address", "DeepSeek-v4-Flash-Vision 40",
     "`LANE.ENV`, and `RANK.ENV` over the rendered rank"),
    ("Secrets stay behind in rendered scripts", "MiaAI-Lab Qwen 41", "`LANE.ENV`, `RANK.SECRET`; specs have mode 0600"),
    ("A world size that does not fit the hosts, a context-parallel size that does not divide", "743B launchers",
     "`LANE.WORLD`, `DEPLOYMENT.SIZE`"),
    ("HCAs, interfaces, addresses or ranks in a lane are wrong on the next fleet", "all launchers", "`LANE.ENV`; role `roce`"),
    ("NCCL falls back to TCP without a word; GIDs move after a reboot", "743B README; field reports", "`FABRIC.*`"),
    ("An image of another version on one rank: garbage", "Flash 2x README", "`IMAGE.DIGEST`: by digest on every rank"),
    ("One tag, two digests; images that vanish", "Flash 2x README; W4A16 card", "`lane_image.digest`; `LANE.UNKNOWN` where it is not known"),
    ("Overlays of another version of the engine", "743B launchers", "`lane_overlays.0.replaces_sha256` and `markers`, checked when staged"),
    ("The chat template is patched inside the weights, on one node", "743B README", "`lane_extras`: mounted beside the weights"),
    ("Page cache counts as used memory for CUDA", "743B README", "role `page_cache`; `MEM.SETTLED` before the start"),
    ("Weights, KV cache, graphs and shared memory beyond what a Spark has", "743B README; DeepSeek-v4-Flash-Vision 31", "`BUDGET.*`"),
    ("Swap is full after many boots; swap turned off kills the worker", "Flash 2x README", "`lane_swap`: recycled, never off"),
    ("A fresh rank meets a dying one and hangs", "743B README; Flash 2x README", "`RANK.STOPPED`, `GPU.IDLE`, `PORT.FREE`"),
    ("A container with a GPU is removed by force: the driver wedges", "W4A16 card", "ranks are stopped gracefully"),
    ("Logs are gone with the container", "Flash 2x README", "logs are saved before ranks are removed"),
    ("Two unexplained deaths, then a third boot", "Flash 2x README", "`DEATHS.EXPLAINED`"),
    ("`/v1/models` and even `/health` answer over a dead rank", "Flash 2x README; vLLM 0.32.0", "`RANK.ALIVE`, `ENGINE.COMPLETION`"),
    ("Thoughts come as `reasoning`, not `reasoning_content`", "743B README", "the client reads both"),
    ("Greedy text differs from run to run", "743B README", "`TF.*`: teacher forcing against the lane's own noise"),
    ("One GPU at a third of its clock", "743B README", "a check of the host; it has nothing to do with a lane"),
    ("Acceptance of exactly 1.00 after a boot with graphs (vLLM 53030)", "Flash 4x notes", "seen in the metrics only"),
    ("Acceptance measured on a cold server", "cfontes TP4 README", "benchmarks warm up first"),
    ("Filler text is 3.5 times as dense on one tokenizer as on another", "743B README", "prompts are sized by `/tokenize`"),
    ("The reported KV pool grows with the context; rank 0 logs its own share, the least of all counts", "Flash 2x README",
     "`playbooks/render.yml` shows no pool without saying so"),
    ("Memory of the driver is counted nowhere; the wrong process is killed", "743B README", "`MEM.BLOCKS` reads the buddy allocator"),
    ("The pool of allocations degrades after many boots", "cfontes TP4 README", "`MEM.BLOCKS`; reboot"),
    ("MTP with three requests or more needs the indexer's overhang patch", "743B launchers", "part of the image; no lane can show it"),
    ("CUDA graphs gain nothing at TP2", "Flash 2x notes", "no harm: −0.3 %"),
    ("Capture sizes 6 to 36 fit MTP-5, a drafter of seven verifies 8 to 48", "our inference", "no source measured it"),
    ("Five drafted tokens beat seven at four streams on one lane", "Flash 2x notes", "contradicts `TRAP.SPEC_TOKENS`; accept it with that reason"),
    ("Expandable segments: off cured a reset, on is every launcher's default", "dgx-spark-playbooks 97", "sources contradict; left to the lane"),
    ("Pinning and not pinning the KV cache", "743B README against Flash 2x README", "per lane; `TRAP.KV_PIN_PROOF`"),
    ("Forcing Marlin off split-K: illegal memory access at M = 256", "W4A16 card, vLLM 56064", "no flag reaches it"),
    ("Quantizing router, indexer, first layer or head", "743B README", "a matter of making weights; guards of `lane_model.expect`"),
    ("Weights and a drafter brought up at once", "743B README", "advice: serve bare first"),
)  # fmt: skip
