# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Start work on a Spark by one module, follow it by another, and show a line a host while it runs.

Documented in library/long_job.py (`ansible-doc long_job`).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

OPTIONS = {
    "module": {"type": "str"},
    "args": {"type": "dict", "default": {}},
    "status_module": {"type": "str", "default": "job_status"},
    "status_args": {"type": "dict", "default": {}},
    "poll": {"type": "float", "default": 5},
    "stall": {"type": "float", "default": 600},
    "silence": {"type": "float", "default": 60},
    "deadline": {"type": "float", "default": 0},
    "reconnect": {"type": "float", "default": 300},
    "label": {"type": "str", "default": ""},
    "board": {"type": "path", "default": ""},
    "leader": {"type": "str", "default": ""},
}

# Where hosts tell each other of their ends while the disk of the controller is full: in a folder of this user alone.
SPARE = ("/dev/shm",)

# Looks that may fail, one after the other, before the first that is answered: a wrong question is never answered.
FIRST_ANSWER = 3


@dataclass(frozen=True)
class Limits:
    """When patience ends. Zero: never."""

    silence: float
    stall: float
    deadline: float


def stalled(answer: Mapping[str, Any], waited: float, limits: Limits) -> str:
    """Why a job that says it runs is not to be waited for any longer, or nothing. Pure."""
    beat = float(answer.get("heartbeat_age") or 0)
    moved = float(answer.get("progress_age") or 0)
    if limits.silence and beat > limits.silence:
        return f"no sign of life for {beat:.0f} s (limit {limits.silence:.0f} s)"
    if limits.stall and moved > limits.stall:
        return f"no progress for {moved:.0f} s (limit {limits.stall:.0f} s)"
    if limits.deadline and waited > limits.deadline:
        return f"not ready after {waited:.0f} s (limit {limits.deadline:.0f} s)"
    return ""


def question(options: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the status module: of a job, that very run which was started or attached to. Pure."""
    asked = dict(options["status_args"])
    if options["status_module"] == "job_status":
        asked = {"job": start.get("job"), "run": str(start.get("job_run") or ""), "wait": options["poll"], **asked}
        if "jobs_dir" in options["args"]:
            asked.setdefault("jobs_dir", options["args"]["jobs_dir"])
    return asked


def ending(start: Mapping[str, Any], answer: Mapping[str, Any], host: str, label: str) -> dict[str, Any]:
    """The task's result from what the first module said and the last status. Pure."""
    result = answer.get("result")
    merged = {key: value for key, value in start.items() if key not in ("invocation", "_ansible_parsed")}
    if isinstance(result, Mapping):
        merged |= result
        merged["actions"] = [*start.get("actions", []), *result.get("actions", [])]
    merged.setdefault("changed", True)
    merged["progress"] = answer.get("progress", "")
    if answer.get("failed") or answer.get("job_failed"):
        why = answer.get("error") or answer.get("msg") or "it gave no reason"
        return {**merged, "failed": True, "msg": str(why) if host in str(why) else f"{host}: {label}: {why}"}
    return merged


@dataclass(frozen=True)
class Board:
    """A folder on the controller where the hosts of one task tell each other how their part ended."""

    folder: str
    host: str
    leader: str

    def post(self, why: str = "") -> None:
        """This host's part ended: well, or for the reason `why`. A full disk of the controller must not end a boot: then it is said in memory."""
        problems = []
        for place in self._folders():
            try:
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not self._ours(place):
                    raise PermissionError(f"{place} is somebody else's")
                aside = place / f"{self.host}.part"
                aside.write_text(json.dumps({"failed": why}), encoding="utf-8")
                aside.rename(place / f"{self.host}.json")
                return
            except OSError as error:
                problems.append(str(error))
        if problems:
            raise AnsibleActionFail(f"the hosts of this task can't tell each other how they end: {'; '.join(problems)}")

    def _ours(self, place: Path) -> bool:
        """Whether to believe what lies there. Everybody may write into shared memory; the other folder is where this run keeps its
        receipts, on a file system that may name other owners than this machine does."""
        return place == Path(self.folder) or place.stat().st_uid == os.getuid()

    def _folders(self) -> list[Path]:
        """Where to post, the wanted place first; each host reads all of them."""
        if not self.folder:
            return []
        name = "sparklanes-" + hashlib.sha256(f"{os.getuid()} {self.folder}".encode()).hexdigest()[:16]
        return [Path(self.folder), *(Path(root, name) for root in SPARE if Path(root).is_dir())]

    def read(self) -> tuple[bool, str]:
        """Whether the leader's part ended well, and why another host's part failed (empty where none did)."""
        done = False
        mine = [place for place in self._folders() if place.is_dir() and self._ours(place)]
        for path in sorted(path for place in mine for path in place.glob("*.json")):
            why = json.loads(path.read_text(encoding="utf-8"))["failed"]
            if path.stem != self.host and why:
                return False, f"{path.stem} failed first: {why}"
            done = done or (path.stem == self.leader != self.host)
        return done, ""


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible has no types
    """One task, one host."""

    _supports_check_mode = True
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _, options = self.validate_argument_spec(OPTIONS)
        host = str(variables["inventory_hostname"])
        start: dict[str, Any] = {}
        if options["module"]:
            start = dict(self._execute_module(module_name=options["module"], module_args=options["args"], task_vars=variables))
        elif not options["status_args"]:
            raise AnsibleActionFail("long_job needs module (what starts the work) or status_args (what to follow)")
        following = bool(start.get("job") or options["status_args"])
        if start.get("failed") or self._task.check_mode or not following:
            return start
        arguments = question(options, start)
        label = options["label"] or str(start.get("job") or options["status_module"])
        if start.get("job"):
            verb = "goes on, attached to it" if start.get("attached") else "started"
            self.say(host, f"{label} {verb}; it runs on if this is interrupted, and the same command attaches to it again")

        def ask() -> dict[str, Any]:
            return dict(self._execute_module(module_name=options["status_module"], module_args=arguments, task_vars=variables))

        limits = Limits(options["silence"], options["stall"], options["deadline"])
        board = Board(str(options["board"]), host, options["leader"])
        try:
            result = self.follow(host, label, start, ask, options["poll"], options["reconnect"], limits, board)
        except AnsibleConnectionFailure as error:
            board.post(f"no connection ({first_line(str(error))})")
            raise
        if not result.get("peer_failed"):
            board.post(str(result.get("msg", "")) if result.get("failed") else "")
        return result

    def follow(
        self,
        host: str,
        label: str,
        start: dict[str, Any],
        ask: Callable[[], dict[str, Any]],
        poll: float,
        reconnect: float,
        limits: Limits,
        board: Board,
    ) -> dict[str, Any]:
        began = last_seen = time.monotonic()
        shown, answered = "", False
        while True:
            asked = time.monotonic()
            try:
                answer = ask()
            except AnsibleConnectionFailure as error:
                # The work doesn't depend on this connection. Give the network the time to come back.
                if asked - last_seen > reconnect:
                    raise
                self.say(host, f"{label}: no connection ({first_line(str(error))}); the job runs on, trying again")
                time.sleep(poll)
                continue
            if answer.get("failed") and not answer.get("finished"):
                # The look failed, not the work: a module that was killed, a disk that was full for a moment.
                why = first_line(str(answer.get("msg") or answer.get("module_stderr") or ""))
                patience = reconnect if answered else min(reconnect, FIRST_ANSWER * poll)
                if asked - last_seen < patience and not board.read()[1]:
                    self.say(host, f"{label}: no answer ({why}); the job runs on, trying again")
                    time.sleep(poll)
                    continue
                self.say(host, f"{label}: failed")
                return ending(start, answer, host, label)
            last_seen, answered = time.monotonic(), True
            if answer.get("finished"):
                self.say(host, f"{label}: {'failed' if answer.get('failed') or answer.get('job_failed') else 'done'}")
                return ending(start, answer, host, label)
            done, why = board.read()
            if why:
                return {
                    **ending(start, answer, host, label),
                    "failed": True,
                    "peer_failed": True,
                    "msg": f"{host}: {label}: stopped waiting; {why}",
                }
            if done:
                return ending(start, answer, host, label)
            line = str(answer.get("progress") or "")
            if line and line != shown:
                self.say(host, line)
                shown = line
            why = stalled(answer, last_seen - began, limits)
            if why:
                text = f"{host}: {label}: {why}, last seen: {line or 'nothing'}."
                log, stop = answer.get("log") or "its log", answer.get("stopped_by")
                text += f" It was not stopped: see {log} on the node, then run the same command to attach again"
                text += f", or stop it there first: {stop}" if stop else ""
                return {**ending(start, answer, host, label), "failed": True, "stalled": True, "msg": text}
            # A status module that waits by itself has used the time already.
            time.sleep(max(0.0, poll - (last_seen - asked)))

    @staticmethod
    def say(host: str, text: str) -> None:
        display.display(f"  {time.strftime('%H:%M:%S')}  {host}  {text}")


def first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"
