# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The one way to the terminal: all that Ansible displays, by whomever, is cleaned of what a terminal obeys, and goes to the log of the run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ansible.module_utils.sparklanes.screen.log import Log
from ansible.module_utils.sparklanes.screen.words import clean

# Shown also while Ansible speaks for the log alone.
PASS_ON = ("[WARNING]", "[DEPRECATION WARNING]")


class Terminal:
    """Stands between Ansible's `Display` and the screen."""

    def __init__(self, display: Any, log: Log, hints: Callable[[str], str] = str) -> None:
        """hints: completes the next commands that a text names. For warnings, which modules and Ansible itself give: all else comes by `say`."""
        self.log = log
        self._hints = hints
        self._pid = os.getpid()
        self._muted = self._colored = False
        self._display = display
        self._original = display.display
        display.display = self._shown

    def _shown(
        self,
        msg: str,
        color: str | None = None,
        stderr: bool = False,
        screen_only: bool = False,
        log_only: bool = False,
        **more: Any,
    ) -> None:
        if os.getpid() != self._pid:
            # Workers hand their lines to the process that made them, which does all this once.
            self._original(msg, color=color, stderr=stderr, screen_only=screen_only, log_only=log_only, **more)
            return
        text = msg if self._colored else clean(msg)
        if not screen_only:
            self.log.write(clean(text))
        muted = self._muted and not text.startswith(PASS_ON)
        text = self._hints(text) if text.startswith(PASS_ON) else text
        if not (muted and screen_only):
            with self._unless_gone(stderr):
                self._original(text, color=color, stderr=stderr, screen_only=screen_only, log_only=log_only or muted, **more)

    @contextlib.contextmanager
    def _unless_gone(self, stderr: bool = False) -> Iterator[None]:
        """Where a stream takes no more (`| head`, a pager that was left, a terminal that is gone, a full disk): the run goes on, its log has the rest.

        Ansible would end there, or stand still for ever: a worker's line is written by a thread on whose end nobody looks.
        """
        try:
            yield
        except OSError as error:
            stream = sys.stderr if stderr else sys.stdout
            # What Python still holds for the stream would fail again at each write.
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
            self.log.write(f"{stream.name} takes no more ({error.strerror}); what follows stands here alone.")

    @contextlib.contextmanager
    def ansible(self, muted: bool, colored: bool = False) -> Iterator[None]:
        """While Ansible's own callback speaks. muted: for the log alone. colored: the escapes in its text are its own colors."""
        before = self._muted, self._colored
        self._muted, self._colored = muted, colored
        try:
            yield
        finally:
            self._muted, self._colored = before

    def say(self, text: str, color: str | None = None, log: bool = False) -> None:
        """A text on the screen, at once. log: into the log of the run too, which has all else in Ansible's own words."""
        if log:
            self.log.write(text)
        with self.ansible(muted=False):
            self._display.display(text, color=color, screen_only=True)
        with self._unless_gone():
            sys.stdout.flush()
