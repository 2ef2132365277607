# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a verb of sparklanes shows: tables, live lines, each failure once, one box at the end. All that Ansible says goes to a log.

Documented in docs/concepts.md, "What you see". A task's variables say what its words are for: of a `debug` whose variables hold one that
ends in `closing` the text belongs into the box, of one with `brief` passed checks are only counted on the screen.
"""

# ruff: noqa: E402 - imports of our package follow the lines that let it be found

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible import constants as C
from ansible import context
from ansible.plugins.callback.default import CallbackModule as Default

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    # As in filter_plugins/sparklanes.py.
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.sparklanes.lane import site
from ansible.module_utils.sparklanes.release import receipts
from ansible.module_utils.sparklanes.screen import nobody, whole, words
from ansible.module_utils.sparklanes.screen.command import command, completed
from ansible.module_utils.sparklanes.screen.log import Log
from ansible.module_utils.sparklanes.screen.rescue import left_to_others, rescuers
from ansible.module_utils.sparklanes.screen.terminal import Terminal

DOCUMENTATION = """
name: sparklanes
type: stdout
short_description: What a verb of sparklanes shows
description:
  - Shows the tables and words of a run, live lines of long work, each failure once as a plain sentence, and one box at the end.
  - Names of tasks and everything else that the callback V(default) prints go to a log file. With C(-v) they are shown too.
  - A play for Sparks that finds none ends the run as failed, with the hosts and groups that there are.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
options:
  screen:
    description: V(short) shows what is described above, V(full) everything, as C(-v) does but without the results of tasks.
    type: str
    choices: [short, full]
    default: short
    env: [{name: SPARKLANES_SCREEN}]
    ini: [{section: callback_sparklanes, key: screen}]
  log_directory:
    description: Where logs of runs lie that have no receipt. The newest fifty are kept.
    type: path
    default: "artifacts/log of the project"
    env: [{name: SPARKLANES_LOG_DIRECTORY}]
    ini: [{section: callback_sparklanes, key: log_directory}]
"""

UNTOUCHED = "Nothing"


def takes_a_lock(task: Any) -> bool:
    return str(task.action).rpartition(".")[2] == "transaction"


class CallbackModule(Default):  # type: ignore[misc]  # ansible has no types
    """Ansible's own callback writes the log; what a person needs is said beside it."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "sparklanes"

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._terminal: Terminal
        self._full = True
        self._began = time.monotonic()
        self._verb = ""
        self._task = ""
        self._seen: set[tuple[str, str]] = set()
        self._closing: list[str] = []
        self._failures: list[tuple[str, str]] = []
        self._attempt: dict[str, Any] = {}
        self._gates: dict[str, Any] = {}
        self._new = self._ended = False
        # Whether a lock may be held, whether a task is asking for one now, whether anything was changed.
        self._locked = self._asks = self._changed = False

    def _ansible(self, colored: bool = False) -> contextlib.AbstractContextManager[None]:
        """While Ansible's own callback speaks: it does so for the log, unless everything is wanted."""
        return self._terminal.ansible(not self._full, colored)

    def _hints(self, text: str) -> str:
        """The text with its next commands and files as they are under the command line of this run."""
        sources = [str(source) for source in context.CLIARGS.get("inventory") or ()]
        folder = site.shown(site.site_folder(sources, ROOT), ROOT)
        return site.told(completed(text, context.CLIARGS, C.DEFAULT_HOST_LIST, str(Path.cwd())), folder)

    def _say(self, text: str, color: str | None = None, log: bool = False) -> None:
        self._terminal.say(self._hints(words.clean(text)), color, log)

    def _now(self, host: str, text: str, color: str | None = None) -> None:
        """A line as long_job has them."""
        self._say(f"  {time.strftime('%H:%M:%S')}  {host}  {text}".replace("\n", "\n    "), color)

    # A run

    def v2_playbook_on_start(self, playbook: Any) -> None:
        self._full = self._display.verbosity > 0 or self.get_option("screen") == "full"
        self._verb = Path(str(playbook._file_name)).stem
        folder = self.get_option("log_directory")
        log = Log(ROOT / "artifacts" / "log" if str(folder).endswith("of the project") else Path(folder), self._verb)
        self._terminal = Terminal(self._display, log, self._hints)
        atexit.register(self._interrupted)
        if log.problem:
            self._display.warning(f"There is no log of this run: {log.problem}")
        # Not as it was typed: -e may hold a secret.
        log.write(f"$ {command(str(playbook._file_name), context.CLIARGS, C.DEFAULT_HOST_LIST)}")
        with self._ansible():
            super().v2_playbook_on_start(playbook)
        given = context.CLIARGS
        why = whole.refusal(
            list(given.get("tags") or ()),
            list(given.get("skip_tags") or ()),
            str(given.get("start_at_task") or ""),
            C.DEFAULT_STRATEGY,
        )
        if why and whole.ours(Path(str(playbook._basedir), Path(str(playbook._file_name)).name), ROOT):
            self._failures.append(("", why))
            self._end([])
            sys.exit(1)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        with self._ansible():
            super().v2_playbook_on_play_start(play)
        if not self._full and nobody.FLEET in str(play.hosts):
            self._say(f"{time.strftime('%H:%M:%S')}  {play.get_name().strip()}", C.COLOR_HIGHLIGHT)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        # Plays for the controller alone are left out under -l, which is as it should be.
        if nobody.FLEET not in str(self._play.hosts):
            return
        groups = nobody.groups_of(self._play.get_variable_manager()._inventory)
        sources = [str(source) for source in context.CLIARGS.get("inventory") or ()]
        self._failures.append(("", nobody.why(str(context.CLIARGS.get("subset") or ""), groups, sources)))
        self._end([])
        # Ansible would end well: nothing failed, for nothing ran. An exception of a callback is only warned of.
        sys.exit(1)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._task, self._asks = task.get_name().strip(), takes_a_lock(task)
        with self._ansible():
            super().v2_playbook_on_task_start(task, is_conditional)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        with self._ansible():
            super().v2_playbook_on_handler_task_start(task)

    def v2_playbook_on_include(self, included_file: Any) -> None:
        with self._ansible():
            super().v2_playbook_on_include(included_file)

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        with self._ansible():
            super().v2_playbook_on_no_hosts_remaining()

    # A result

    def v2_runner_on_ok(self, result: Any) -> None:
        told = dict(result.result)
        with self._ansible():
            super().v2_runner_on_ok(result)
        self._facts(told.get("ansible_facts"))
        action = str(result.task.action).rpartition(".")[2]
        if takes_a_lock(result.task) and not told.get("skipped"):
            self._locked = True
        if told.get("changed") and not context.CLIARGS.get("check"):
            self._changed = True
        if action == "debug" or (action == "assert" and told.get("msg") not in (None, "", words.PASSED)):
            self._words(result, told, action)
        elif told.get("changed") and context.CLIARGS.get("check") and not self._full:
            host = result.host.get_name()
            for deed in told.get("actions") or [result.task.get_name().strip()]:
                self._once("would", words.named(host, f"would change: {deed}"))

    def _words(self, result: Any, told: dict[str, Any], action: str) -> None:
        if "msg" in told:
            text = words.message(told["msg"])
        else:
            text = str(
                self._dump_results({key: value for key, value in told.items() if key not in ("changed", "failed")})
            ).strip()
        marks = tuple(str(name) for name in result.task.vars)
        if any(mark.endswith("closing") for mark in marks):
            if text.strip() and text not in self._closing:
                self._closing.append(text)
        elif text.strip() and not self._full:
            if any(mark.endswith("brief") for mark in marks):
                name = result.task.get_name().rpartition(" : ")[2].strip()
                text = words.folded(text, of=name[:1].lower() + name[1:])
            self._once(str(result.task._uuid), text)

    def _once(self, group: str, text: str) -> None:
        """Equal words of several hosts are said once."""
        if (group, text) not in self._seen:
            self._seen.add((group, text))
            self._say(text)

    def _facts(self, facts: Any) -> None:
        """An attempt has begun, or a gate was judged: what the receipt needs."""
        if not isinstance(facts, dict):
            return
        if isinstance(facts.get("gates_record"), dict):
            self._gates = facts["gates_record"]
        folder = facts.get("rank_receipts")
        if folder and not self._attempt and not context.CLIARGS.get("check"):
            self._attempt = {
                "transaction": str(facts.get("rank_transaction") or ""),
                "controller": str(facts.get("rank_controller") or ""),
                "deployment": Path(folder).parent.name,
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "verb": self._verb,
                "folder": str(folder),
            }
            try:
                given = {key: value for key, value in self._attempt.items() if key != "folder"}
                self._new = receipts.begin(Path(folder), given)
                self._terminal.log.move(Path(folder, "ansible.log"))
            except OSError as error:
                self._display.warning(f"The receipt in {folder} could not be begun: {error}")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        told = dict(result.result)
        with self._ansible():
            super().v2_runner_on_failed(result, ignore_errors)
        self._failed(result, words.failure(told), ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        told = dict(result.result)
        self._locked = self._locked or takes_a_lock(result.task)  # the connection may have gone after the lock had come
        with self._ansible():
            super().v2_runner_on_unreachable(result)
        text = words.failure(told)
        text = f"no answer over ssh: {text}" if not text.startswith("no answer") else text
        self._failed(result, text, bool(result.task.ignore_unreachable))

    def _failed(self, result: Any, text: str, ignored: bool) -> None:
        # What is done once for all runs on some host, of which it tells nothing.
        host = "" if result.task.run_once else result.host.get_name()
        if not ignored and rescuers(result.task) is None:
            self._failures.append((host, text))
            return
        if not left_to_others(result.task) and not self._full and (host, text) not in self._seen:
            self._seen.add((host, text))
            self._now(host, text, C.COLOR_ERROR)

    def v2_runner_on_skipped(self, result: Any) -> None:
        with self._ansible():
            super().v2_runner_on_skipped(result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        told = dict(result.result)
        with self._ansible():
            super().v2_runner_item_on_ok(result)
        if str(result.task.action).endswith("debug"):
            self._words(result, told, "debug")

    def v2_runner_item_on_failed(self, result: Any) -> None:
        with self._ansible():
            super().v2_runner_item_on_failed(result)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        with self._ansible():
            super().v2_runner_item_on_skipped(result)

    def v2_runner_retry(self, result: Any) -> None:
        with self._ansible():
            super().v2_runner_retry(result)

    def v2_on_file_diff(self, result: Any) -> None:
        told = result.result
        diffs = [
            item.get("diff")
            for item in told.get("results") or [told]
            if isinstance(item, dict) and item.get("changed", told.get("changed"))
        ]
        if any(diffs) and not self._full:
            self._say(f"{result.host.get_name()}: {result.task.get_name().strip()}")
        # Wanted on the screen too: who asks for --diff reads it. The colors are Ansible's, the text of files is not.
        with self._terminal.ansible(muted=False, colored=True):
            super().v2_on_file_diff(result)

    def _get_diff(self, difflist: Any) -> str:
        cleaned = [
            {key: words.clean(value) if isinstance(value, str) else value for key, value in diff.items()}
            if isinstance(diff, dict)
            else diff
            for diff in (difflist if isinstance(difflist, list) else [difflist])
        ]
        return str(super()._get_diff(cleaned))

    # The end

    def v2_playbook_on_stats(self, stats: Any) -> None:
        with self._ansible(colored=self._full):
            super().v2_playbook_on_stats(stats)
        wide = max((len(host) for host in stats.processed), default=0)
        recap = []
        for host in sorted(stats.processed):
            told = stats.summarize(host)
            told["failed"] = told["failures"]
            counted = " ".join(f"{name}={told[name]}" for name in ("ok", "changed", "unreachable", "failed"))
            recap.append(f"{host.ljust(wide)} : {counted}")
        bad = any(stats.summarize(host)["failures"] or stats.summarize(host)["unreachable"] for host in stats.processed)
        if bad and not self._failures:
            self._failures.append(("", "A task failed, and its words were shown above."))
        self._end([] if self._full else recap)

    def _interrupted(self) -> None:
        """Neither Ansible's clean-ups nor its recap run after ctrl-C."""
        if self._ended or os.getpid() != self._pid:
            return
        self._locked = self._locked or self._asks
        self._failures.append(
            ("", f"It was interrupted in: {self._task or 'its beginning'}. What is so now: playbooks/status.yml")
        )
        self._end([], receipts.INTERRUPTED)

    def _end(self, recap: list[str], status: str = "") -> None:
        self._ended = True
        sentences = words.told(self._failures)
        check = bool(context.CLIARGS.get("check"))
        word = "INTERRUPTED" if status else "FAILED" if sentences else "checked, nothing was changed" if check else "done"
        if self._attempt:
            outcome = receipts.DONE if not sentences else receipts.FAILED if self._locked else receipts.REFUSED
            self._receipt(status or outcome, sentences)
            refused = not status and outcome == receipts.REFUSED
            if refused and not self._changed and UNTOUCHED not in words.joined(sentences):
                sentences = [*sentences, f"{UNTOUCHED} was stopped or changed."]
        lines = [*sentences, *self._closing, *recap]
        log = self._terminal.log
        if not log.problem:
            lines.append(f"log {os.path.relpath(log.path)}, {int(time.monotonic() - self._began)} s")
        for line in words.box(f"{self._verb}: {word}", lines):
            self._say(line, C.COLOR_ERROR if sentences and line in sentences else None, log=True)

    def _receipt(self, status: str, sentences: list[str]) -> None:
        folder = Path(self._attempt["folder"])
        with contextlib.suppress(OSError):
            receipts.end(folder, status, words.joined(sentences), {"gates": self._gates} if self._gates else {})
            if self._new and not self._locked:
                receipts.forget(folder.parent, self._attempt["transaction"])
