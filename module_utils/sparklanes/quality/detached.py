# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A look at an engine that outlives the connection: how each module of this room starts it as a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.jobs.reporter import JobFunction
from ansible.module_utils.sparklanes.jobs.runner import Jobs, ask_systemd


def start(params: Mapping[str, Any], function: JobFunction, args: dict[str, Any], work: str) -> dict[str, Any]:
    """Start the job, or attach to one that does the same: what the module returns. `params`: of the module; `work`: what the job does, as it is said."""
    secrets = {"api_key": params["api_key"]} if params["api_key"] else {}
    started = Jobs(ask_systemd, Path(params["jobs_dir"])).start(
        params["job"], function, args, secrets, writes=[Path(params["result_path"]).parent]
    )
    did = f"Started job {params['job']}: {work}" if started else f"Attached to job {params['job']}"
    return {"changed": bool(started), "actions": [did], **started.told()}
