# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The job: see what an engine has room for, ask it for the answers of each case, write the record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.engine.api import Engine, EngineError, Model
from ansible.module_utils.sparklanes.engine.metrics import EngineMetrics, engine_metrics, number
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.quality.decode.cases import BLOCK, Plan
from ansible.module_utils.sparklanes.quality.decode.collect import Collector
from ansible.module_utils.sparklanes.quality.records import Progress, dump, pick_model
from ansible.module_utils.sparklanes.quality.texts import Texts

JOB = "decode"


def job(args: dict[str, Any], secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    return run(args, secrets.get("api_key"), report)


def run(args: Mapping[str, Any], api_key: str | None, progress: Progress) -> dict[str, Any]:
    """Ask, score, write the whole record to args["result_path"]; a summary. JobError where the engine gave up or takes none of it."""
    engine = Engine(args["base_url"], api_key, args["timeout"])
    try:
        model = pick_model(engine.models(), args.get("model"), str(engine))
        plan = plan_of(model, engine_metrics(engine.metrics()), args)
        texts = Texts(engine, model.id, args["source"], plan.seed)
        progress.phase("decode", unit="tokens")
        record = Collector(engine, model, texts, plan, args["timeout"], progress).record()
    except EngineError as error:
        raise JobError(f"{error.message}. Read the engine's log") from error
    except ValueError as error:
        raise JobError(f"no prompts could be made: {error}") from error
    return summary(record, args["result_path"], dump(args["result_path"], record))


def plan_of(model: Model, metrics: EngineMetrics, args: Mapping[str, Any]) -> Plan:
    """What this engine has room for, as it says itself; where it does not say, as vLLM is by default."""
    window = args.get("max_model_len") or model.max_model_len
    if not window:
        raise JobError(f"{model.id} doesn't say its max_model_len: give max_model_len")
    seed = args.get("seed")
    return Plan(
        window=int(window),
        block=int(number(metrics.cache.get("block_size")) or BLOCK),
        seqs=int(args["max_num_seqs"]),
        hits=metrics.cache.get("enable_prefix_caching", "True") != "False",
        long_form=bool(args["long_form"]),
        only=tuple(args.get("cases") or ()),
        # Another day draws other residues, so that each has its turn; the same day the same ones, so that a second look looks at the same.
        seed=int(time.time() // 86_400) if seed is None else int(seed),
    )


def summary(record: Mapping[str, Any], path: str, size: int) -> dict[str, Any]:
    """What a task returns: what was done, not the numbers."""
    cases = record["cases"]
    return {
        "result_path": path,
        "bytes": size,
        "model": record["model"],
        "tokens": {name: sum(len(answer["ids"]) for answer in answers) for name, answers in cases.items()},
        "block": record["block"],
        "seed": record["seed"],
        "seconds": record["seconds"],
        "foreign_tokens": record["foreign_tokens"],
        "lacks": record["lacks"],
    }
