#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Tell how the rank of a deployment on this Spark is doing."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rank_info
short_description: Tell how the rank of a deployment on this Spark is doing
description:
  - Reads the rank's container and its log, how far its boot is, what it measured, why it failed.
  - A container that ended is a failure whatever its exit code says. A crashed head was seen to exit with 0.
options:
  deployment:
    description: Name of the deployment.
    type: str
    required: true
  transport:
    description: What the fabric is meant to use; a lane on V(roce) whose log says sockets has failed.
    type: str
    choices: [roce, socket]
    default: roce
  health_url:
    description:
      - URL that answers 200 once this rank serves (on the head, its API's C(/health)).
        C(finished) is then true as soon as it does. It says nothing about the other ranks.
    type: str
  log_lines:
    description: How many of the last lines of the log are read while the rank runs. All of it is read once it has ended.
    type: int
    default: 3000
  root:
    description: Where releases lie.
    type: path
    default: /var/lib/sparklanes
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: How is the rank doing?
  rank_info:
    deployment: sparks
    health_url: http://192.168.1.11:8000/health
  register: rank_now
"""

RETURN = r"""
running:
  description: Whether the container runs.
  returned: always
  type: bool
release:
  description: The release that the container was started from, empty where there is no container.
  returned: always
  type: str
lane:
  description: The lane that the container was started for, empty where there is no container.
  returned: always
  type: str
api:
  description: Host and port of the API as they stand in the frozen release, empty where it is not on this Spark.
  returned: always
  type: dict
finished:
  description: True once O(health_url) answered 200, or once the rank failed.
  returned: always
  type: bool
failure:
  description: Empty, or the first cause that the log or the container tells, as one sentence.
  returned: always
  type: str
remedy:
  description: What to do about it.
  returned: always
  type: str
job_failed:
  description: Whether the rank failed, as C(long_job) wants to know it, with C(error) as failure and remedy together.
  returned: always
  type: bool
hardware_or_memory:
  description: Whether the failure is of the kind that does not restore by itself.
  returned: always
  type: bool
progress:
  description: One line for a person who waits.
  returned: always
  type: str
heartbeat_age:
  description: Seconds since the log's last line, or since the start where there is none yet; null without a running container.
  returned: always
  type: float
container:
  description: Name, id, status, exit_code, oom_killed, started_at, finished_at and more; empty where there is none.
  returned: always
  type: dict
log:
  description: What the log tells - phase, KV cache size in tokens, load times in seconds, failures, last line.
  returned: always
  type: dict
"""

import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.files import STATE_ROOT
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.docker.containers import (
    DEED_SECONDS,
    LABEL_DEPLOYMENT,
    LABEL_LANE,
    Container,
    Docker,
    DockerError,
)
from ansible.module_utils.sparklanes.engine import log as engine_log
from ansible.module_utils.sparklanes.release.store import Store


def stamped(text: str) -> tuple[str, float | None]:
    """A log of `docker logs --timestamps` without its stamps, and the time (s since the epoch) of its last line."""
    lines = text.splitlines()
    last = None
    bare = []
    for line in lines:
        stamp, blank, rest = line.partition(" ")
        when = moment(stamp)
        last = when if when is not None else last
        bare.append(rest if blank and when is not None else line)
    return "\n".join(bare), last


def moment(stamp: str) -> float | None:
    """Docker's RFC 3339 time with nanoseconds in seconds since the epoch, None where it is none or the zero time."""
    try:
        whole, _, fraction = stamp.rstrip("Z").partition(".")
        when = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    except ValueError:
        return None
    return when.timestamp() + float(f"0.{fraction}" if fraction.isdigit() else 0) if when.year > 1 else None


def in_order(line: str) -> str:
    """Sorting key of a stamped line: Docker drops trailing zeros of the fraction."""
    return line.partition(" ")[0].rstrip("Z").ljust(30, "0")


# A proxy in the environment of the Spark knows nothing of an address on the Spark itself.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answers(url: str) -> bool:
    try:
        with DIRECT.open(url, timeout=3) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def failure_of(box: Container, log: engine_log.RankLog) -> tuple[str, str]:
    """The first cause and its remedy; empty texts where nothing failed."""
    how = f"{box.name} ended with exit code {box.exit_code}" + (", killed for memory" if box.oom_killed else "")
    if log.failures:
        cause = log.failures[0]
        return cause.message + ("" if box.running else f" ({how})"), cause.remedy
    if box.running:
        return "", ""
    if box.error:
        return f"{box.name} could not run: {box.error}", "Look at the image and its entrypoint."
    return f"{how} and its log names no cause we know; its last line: {log.last_line[:200]}", "Read the saved log of this rank."


def frozen_api(store: Store, release: str) -> dict[str, Any]:
    """What cannot be read is as good as absent here: whoever asks only wants to know where to ask."""
    try:
        found = (store.spec(release) or {}).get("api")
    except (OSError, ValueError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "transport": {"type": "str", "choices": ["roce", "socket"], "default": "roce"},
            "health_url": {"type": "str"},
            "log_lines": {"type": "int", "default": 3000},
            "root": {"type": "path", "default": STATE_ROOT},
        },
        supports_check_mode=True,
    )
    params = module.params
    docker = Docker(commands.run)
    result: dict[str, Any] = {
        "running": False, "release": "", "lane": "", "api": {}, "finished": False, "failure": "", "job_failed": False, "error": "", "remedy": "", "hardware_or_memory": False,
        "progress": "no rank runs here", "heartbeat_age": None, "container": {}, "log": {},
    }  # fmt: skip
    try:
        boxes = docker.containers(f"label={LABEL_DEPLOYMENT}={params['deployment']}")
        if not boxes:
            module.exit_json(changed=False, **result)
        box = next((one for one in boxes if one.running), boxes[0])
        tail = ["--tail", str(params["log_lines"])] if box.running else []
        rc, out, err = commands.run(["docker", "logs", "--timestamps", *tail, box.id], seconds=DEED_SECONDS, most_bytes=GIB)
        if rc != 0:
            module.fail_json(msg=f"the log of {box.name} could not be read (docker logs: exit {rc}): {err.strip()[-300:]}")
        # The engine writes to both streams; put in order by their stamps they are one log again.
        text, last = stamped("\n".join(sorted((out + err).splitlines(), key=in_order)))
    except DockerError as error:
        module.fail_json(msg=str(error))
    log = engine_log.read(text, params["transport"])
    failure, remedy = failure_of(box, log)
    now = datetime.now(UTC).timestamp()
    started = moment(box.started_at)
    result.update(
        running=box.running,
        release=box.release,
        lane=box.labels.get(LABEL_LANE, ""),
        api=frozen_api(Store(params["deployment"], params["root"]), box.release),
        failure=failure,
        job_failed=bool(failure),
        error=f"{failure}. {remedy}" if failure else "",
        remedy=remedy,
        hardware_or_memory=bool(failure) and (log.hardware_or_memory or box.oom_killed),
        progress=f"failed: {failure}" if failure else log.progress,
        heartbeat_age=round(max(0.0, now - max(last or 0.0, started or 0.0)), 1) if box.running else None,
        container=box.to_dict(),
        log=log.to_dict(),
    )
    result["finished"] = bool(failure) or bool(params["health_url"] and answers(params["health_url"]))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
