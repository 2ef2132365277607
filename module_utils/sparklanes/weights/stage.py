# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The job that stages models: read what is there, take what is not, prove it, write the marker last.

Files arrive in a folder beside the model (`.<model>.incoming`) and are renamed into it one by one, each after its
whole content was hashed and found right. So the model's folder never holds half a file, a second run goes on
where the first ended, and a run that finds one bad file fetches one file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, sentence
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.hub import SITE_VARIABLES, HubError
from ansible.module_utils.sparklanes.weights.model import Model, StagingError
from ansible.module_utils.sparklanes.weights.pace import Pace
from ansible.module_utils.sparklanes.weights.room import check_room
from ansible.module_utils.sparklanes.weights.sources import make_source
from ansible.module_utils.sparklanes.weights.standing import REFETCH, standing
from ansible.module_utils.sparklanes.weights.steps import Context, Outcome, adopt, complete, survey
from ansible.module_utils.sparklanes.weights.tools import Source, Tool

JOB = "stage"
REFUSALS = (StagingError, HubError, OSError)


def stage(args: dict[str, Any], secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    """Stage all models of these arguments. The function that `jobs` runs."""
    os.environ.update({name[4:]: value for name, value in secrets.items() if name.startswith("env:")})
    cancel = threading.Event()
    tool = Tool(cancel)
    context = Context(
        host=args["host"],
        source=make_source(args, secrets, tool, report, Pace(float(args["rate"]), cancel)),
        report=report,
        tool=tool,
        workers=int(args["workers"]),
        verify_workers=int(args["verify_workers"]),
        verify_pace=Pace(float(args["verify_rate"]), cancel),
        # Of what arrives each byte is hashed once, so on average no faster than it comes.
        arrival_pace=Pace(float(args["rate"]), cancel),
        full=args["verify"] == "full",
        repair=bool(args["repair"]),
        store_root=Path(args["staged_dir"]),
    )
    models = [Model.from_dict(model) for model in args["models"]]
    outcomes = [Outcome() for _ in models]
    try:
        errors = stage_all(context, models, outcomes, int(args["reserve"]), args["also"])
    except REFUSALS as error:
        errors = [str(error)]
    finally:
        tool.end()
        context.source.end()
    standings = [standing(model, context.host, ModelStore(context.store_root, model.path)) for model in models]
    checks = [check for outcome in outcomes for check in outcome.checks]
    actions = [action for outcome in outcomes for action in outcome.actions]
    result = {
        "changed": any("fetched" in action or "removed" in action for action in actions) or not args["was_staged"],
        "staged": all(one.staged for one in standings) and not checks,
        "models": [one.to_dict() for one in standings],
        "actions": actions,
        "checks": [check.to_dict() for check in checks],
    }
    sentences = [text if text.startswith(context.host) else f"{context.host}: {text}" for text in errors]
    sentences += [sentence(check) for check in checks if check.status == FAIL]
    if sentences or not result["staged"]:
        raise JobError("; ".join(sentences) or f"{context.host}: not complete: {REFETCH}", result)
    return result


def stage_all(
    context: Context, models: Sequence[Model], outcomes: Sequence[Outcome], reserve: int, also: Sequence[Mapping[str, Any]]
) -> list[str]:
    """All models, step by step; why some of them are not complete. Nothing is changed before there is room for all of them."""
    # What lies in somebody's Hub cache is read there, wherever the others come from.
    at_rest = replace(context, source=Source())
    contexts = [at_rest if model.in_place else context for model in models]
    if to_come := [model for model in models if not model.in_place]:
        context.source.begin(to_come)
    surveys = [survey(its, model) for its, model in zip(contexts, models, strict=True)]
    check_room(context.host, [(one.model, one.to_come) for one in surveys], reserve, also)
    trackers = [adopt(its, one, outcome) for its, one, outcome in zip(contexts, surveys, outcomes, strict=True)]
    errors = []
    for its, tracker, outcome in zip(contexts, trackers, outcomes, strict=True):
        try:
            complete(its, tracker, outcome)
        except REFUSALS as error:
            errors.append(str(error))
    return errors


# What a connection to the outside may need. A proxy's address may hold a password, so these travel as secrets.
NETWORK = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
)


def network_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What a login on this Spark sets for the network and for the Hub's client; a unit of systemd would not see it."""
    wanted = {name: value for name, value in environment.items() if name.upper() in NETWORK or name in SITE_VARIABLES}
    return {f"env:{name}": value for name, value in wanted.items()}
