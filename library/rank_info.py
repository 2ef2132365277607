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
  - While the rank can be waiting for the others, a fabric over which nothing gets through is its failure, as C(fabric_watch) noted it.
  - Which container is the rank's is not asked of Docker alone. Where the note of what was started here can't be read the module fails and names that file.
  - A container that ended is a failure whatever its exit code says. A crashed head was seen to exit with 0.
  - While the container runs and O(health_url) answers 200, a line of the log alone is a C(warning) and no failure. A rank on TCP sockets where RDMA was
    asked for has failed all the same.
  - Lines by which an engine only says that it waits are no heartbeat, a stall that prints is a stall.
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
    description:
      - How many of the last lines of the log are read while the rank runs, and at most 50,000 once it has ended. Fewer are, down to 100,
        where one of its two streams has 64 MiB or more of these; what even so few have beyond that is not read.
    type: int
    default: 3000
  evidence:
    description:
      - Also look at the machine where the rank did not fail, for what another rank may have died of. Where this rank failed that is done anyway.
      - Reads boot time, addresses, and of the kernel's log and the journal of Docker and of memory killers the time of this rank, at most two hours.
    type: bool
    default: false
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
warning:
  description: Empty, or what the log of a rank says that is healthy all the same.
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
  description: Name, id, status, exit_code, signal, oom_killed, error (of Docker), started_at, finished_at and more; empty where there is none.
  returned: always
  type: dict
evidence:
  description:
    - What this machine says of the time of the rank - C(started), C(ended) and C(boot_time) in seconds since the epoch, C(addresses), C(kernel) and
      C(journal) (findings with C(id), C(message), C(remedy), C(hardware_or_memory), C(line)), C(unread) (what could not be read, in words).
    - Empty where nothing failed and O(evidence=false).
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
from ansible.module_utils.sparklanes.common.text import said
from ansible.module_utils.sparklanes.docker.containers import (
    DEED_SECONDS,
    LABEL_LANE,
    Container,
    Docker,
    DockerError,
)
from ansible.module_utils.sparklanes.docker.refusals import refusal_of
from ansible.module_utils.sparklanes.engine import log as engine_log
from ansible.module_utils.sparklanes.engine.failures import ENDS_THOUGH_HEALTHY
from ansible.module_utils.sparklanes.engine.lines import tells
from ansible.module_utils.sparklanes.engine.rank_log import Failure, RankLog
from ansible.module_utils.sparklanes.fabric import watch
from ansible.module_utils.sparklanes.rank import evidence
from ansible.module_utils.sparklanes.release import owned
from ansible.module_utils.sparklanes.release.store import Store

# Docker keeps what an engine wrote, and a server writes what it is asked: neither has an end of its own.
MOST_BYTES, MOST_LINES, FEWEST_LINES = 64 << 20, 50_000, 100


def log_of(box: Container, lines: int) -> tuple[str, float | None]:
    """The last lines of a container's log, and the time of the last that is a sign of life. Raises DockerError where it can't be read."""
    while True:
        argv = ["docker", "logs", "--timestamps", "--tail", str(lines), box.id]
        rc, out, err = commands.run(argv, seconds=DEED_SECONDS, most_bytes=MOST_BYTES)
        if rc != 0:
            raise DockerError(f"the log of {box.name} could not be read (docker logs: exit {rc}): {said(err[-300:])}")
        # What is over the limit is cut at its end, where the end of the rank stands: ask for less of it. A character has up to four bytes.
        if max(len(out.encode()), len(err.encode())) < MOST_BYTES or lines <= FEWEST_LINES:
            # The engine writes to both streams; put in order by their stamps they are one log again.
            return stamped("\n".join(sorted((out + err).split("\n"), key=in_order)))
        lines = max(FEWEST_LINES, lines // 8)


def stamped(text: str) -> tuple[str, float | None]:
    """A log of `docker logs --timestamps` without its stamps, and the time (s since the epoch) of its last line that tells something."""
    last = None
    bare = []
    for line in text.split("\n"):  # no other end of a line is Docker's: the others may be of what a client sent
        stamp, blank, rest = line.partition(" ")
        when = moment(stamp)
        last = when if when is not None and tells(rest) else last
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


def failure_of(box: Container, log: RankLog) -> tuple[str, str]:
    """The first cause and its remedy; empty texts where nothing failed."""
    how = f"{box.name} ended with exit code {box.exit_code}" + (f" ({box.signal})" if box.signal else "")
    how += ", killed for memory" if box.oom_killed else ""
    if log.failures:
        cause = log.failures[0]
        return cause.message + ("" if box.running else f" ({how})"), cause.remedy
    if box.running:
        return "", ""
    if box.error:
        refused = refusal_of(box.error, sure=True)
        return (
            f"{box.name} could not run: {said(box.error)}",
            refused.remedy if refused else "Look at the image and its entrypoint.",
        )
    if log.exception:
        return f"{how}; it raised {log.exception}", "Read the saved log of this rank."
    if not log.last_line:
        return (
            f"{how} before it had printed a line",
            "Look at the image and its entrypoint, and who ended it: journalctl of that time on this Spark.",
        )
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
            "evidence": {"type": "bool", "default": False},
            "root": {"type": "path", "default": STATE_ROOT},
        },
        supports_check_mode=True,
    )
    params = module.params
    docker = Docker(commands.run)
    result: dict[str, Any] = {
        "running": False, "release": "", "lane": "", "api": {}, "finished": False, "failure": "", "job_failed": False, "error": "", "remedy": "", "hardware_or_memory": False,
        "progress": "no rank runs here", "heartbeat_age": None, "container": {}, "log": {}, "warning": "", "evidence": {},
    }  # fmt: skip
    now = datetime.now(UTC).timestamp()
    try:
        store = Store(params["deployment"], params["root"])
        # A copy of a rank has its label too. Where the note of what was started can't be read, no rank is not the answer.
        boxes = owned.ours(docker, store, write=False)
        if not boxes:
            if params["evidence"]:
                result["evidence"] = evidence.gather(None, None, now)
            module.exit_json(changed=False, **result)
        box = next((one for one in boxes if one.running), boxes[0])
        text, last = log_of(box, params["log_lines"] if box.running else MOST_LINES)
    except (DockerError, ValueError) as error:  # Unreadable is a ValueError, and so is a deployment that can have no folder
        module.fail_json(msg=str(error))
    log = engine_log.read(text, params["transport"])
    age = round(max(0.0, now - max(last or 0.0, moment(box.started_at) or 0.0)), 1) if box.running else None
    if box.running and watch.waits(log.phase, age) and (lines := watch.look(params["deployment"])):
        # Before anything that the log says: whoever lost a peer says so because of it.
        log.failures.insert(0, Failure("fabric_cut", watch.sentence(lines), watch.REMEDY, "", True, False))
    failure, remedy = failure_of(box, log)
    started, ended = moment(box.started_at), None if box.running else moment(box.finished_at)
    healthy = bool(params["health_url"] and box.running and answers(params["health_url"]))
    if healthy and failure and not any(one.code in ENDS_THOUGH_HEALTHY for one in log.failures):
        result["warning"], failure, remedy = failure, "", ""
    if failure or params["evidence"]:
        result["evidence"] = evidence.gather(started, ended, now)
    result.update(
        running=box.running,
        release=box.release,
        lane=box.labels.get(LABEL_LANE, ""),
        api=frozen_api(store, box.release),
        finished=bool(failure) or healthy,
        failure=failure,
        job_failed=bool(failure),
        error=f"{failure}. {remedy}" if failure else "",
        remedy=remedy,
        hardware_or_memory=bool(failure) and (log.hardware_or_memory or box.oom_killed),
        progress=f"failed: {failure}" if failure else "serving" if healthy else log.progress,
        heartbeat_age=age,
        container=box.to_dict(),
        log=log.to_dict(),
    )
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
