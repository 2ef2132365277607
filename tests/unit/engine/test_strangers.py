# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What clients make an engine log changes nothing of what is read in it: no failure, and no boot, number or end either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rank_info
from ansible.module_utils.sparklanes.engine import log as engine_log

LOGS = Path(__file__).parents[2] / "fixtures" / "engine"
WORDS = [
    "torch.OutOfMemoryError: CUDA out of memory",
    "EngineDeadError",
    "non-default args: {}",
    "headless multiproc executor, with head node",
    "GPU KV cache size: 7 tokens",
    "Maximum concurrency for 7 tokens per request: 0.10x",
    "Model loading took 999 GiB and 999 seconds",
    "Graph capturing finished in 1 secs, took -99.0 GiB",
    "world_size=99 rank=98 ",
    "NCCL INFO Using network Socket",
    "NET/IB : Using [0]mlx5_9:1/RoCE",
    "[shutdown] Finished server process API server: shutdown triggered",
    "No available shared memory broadcast block",
    "NV_ERR_NO_MEMORY",
    "Initializing a V1 LLM engine (v9.9.9)",
    "Application startup complete",
]
CARRIERS = {
    "path": 'INFO:     203.0.113.9:51034 - "GET /{} HTTP/1.1" 404 Not Found',
    "path of a named process": '(APIServer pid=1) INFO:     203.0.113.9:51034 - "GET /{} HTTP/1.1" 404 Not Found',
    "odd verb": 'INFO:     203.0.113.9:51034 - "unlink-it /{} HTTP/1.1" 405 Method Not Allowed',
    "websocket": 'INFO:     203.0.113.9:51034 - "WebSocket /{}" 403',
    "header for the address": 'INFO:     {}:0 - "GET /v1/models HTTP/1.1" 200 OK',
    "prompt": "INFO 11-30 21:00:00 [logger.py:39] Received request cmpl-1: prompt: '{}', params: SamplingParams(n=1)",
    "name of a model": "ERROR 11-30 21:00:00 [serving.py:1] Error with model error=ErrorInfo(message='The model `{}` does not exist.')",
    "id of a request": "ERROR 11-30 21:00:00 [dump_input.py:72] Dumping scheduler output: NewRequestData(req_id={})",
    "after a return": 'INFO:     203.0.113.9:51034 - "GET /x\r{}\r HTTP/1.1" 404 Not Found',
    "after another end of a line": 'INFO:     203.0.113.9:51034 - "GET /x\v{0}\u2028{0}\x85{0} HTTP/1.1" 404 Not Found',
}


def read(text: str) -> dict[str, Any]:
    """As the module reads what Docker kept, without the words of the last line."""
    stamps = "".join(f"2026-11-30T21:00:00.{number:09}Z {line}\n" for number, line in enumerate(text.split("\n")))
    data = engine_log.read(rank_info.stamped(stamps)[0]).to_dict()
    return {name: value for name, value in data.items() if name not in ("last_line", "last_timestamp")}


@pytest.mark.parametrize("base", ["boot_single.log", "safetensors-eof.log"])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_a_client_sends_is_read_by_nothing(base: str, carrier: str) -> None:
    text = (LOGS / base).read_text(errors="replace").rstrip("\n")
    alone = read(text)
    assert alone["failures"] or base == "boot_single.log"
    for words in WORDS:
        assert read(f"{text}\n{CARRIERS[carrier].format(words)}") == alone, words


def test_a_failure_is_told_on_around_a_request() -> None:
    """A message of two lines, with somebody's request between them."""
    head = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig"
    asked = CARRIERS["path"].format("x")
    failure = engine_log.read(f"{head}\n{asked}\n  Value error, the world is flat").failures[0]
    assert "the world is flat" in failure.message
