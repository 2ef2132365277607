# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which files of a model are known to be right, while several threads stage it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, Record

# Seconds. The next Spark of a chain waits for what is saved: each file at once, those that are verified meanwhile together.
TICK_EVERY, SAVE_REST = 0.25, 0.05


class Tracker:
    """What the threads that stage one model share: its manifest, and a record of each file that was read and found right.

    All of it is behind one lock, and each method may be called from any thread. A model that stands complete keeps its
    marker while it is read again, until a file is found bad.
    """

    def __init__(
        self, model: Model, store: ModelStore, manifest: Manifest, records: Mapping[str, Record], complete: bool
    ) -> None:
        self.model = model
        self.store = store
        self._lock = threading.RLock()
        self._manifest = manifest
        self._records = dict(records)
        self._complete = complete
        self._digests_learnt = False  # the manifest in memory says more than the one on the disk
        self._unsaved = threading.Event()

    @property
    def manifest(self) -> Manifest:
        """As it is now: a file of which only git's hash was known has its sha256 once it was read."""
        with self._lock:
            return self._manifest

    def records(self) -> dict[str, Record]:
        with self._lock:
            return dict(self._records)

    def lacking(self) -> list[str]:
        """The files that are not there, or not known to be right."""
        with self._lock:
            return [name for name in self._manifest.files if name not in self._records]

    def verified_bytes(self, names: Iterable[str]) -> int:
        with self._lock:
            return sum(self._records[name].size for name in names if name in self._records)

    def found_right(self, name: str, record: Record) -> None:
        with self._lock:
            self._records[name] = record
            content = self._manifest.files[name]
            if not content.sha256:
                # git's hash proved it, or nothing was known of it. From now on its sha256 does.
                files = {**self._manifest.files, name: Content(content.size, record.sha256, content.git_sha1, content.at)}
                self._manifest = replace(self._manifest, files=files)
                self._digests_learnt = True
        self._unsaved.set()

    def found_bad(self, name: str) -> None:
        with self._lock:
            self._records.pop(name, None)
            self._complete = False
        self.save()

    def save(self) -> None:
        """Save what is known so far, so that a later run goes on from here and the next Spark of a chain can take it."""
        with self._lock:
            self._unsaved.clear()
            if not self._complete:
                if self._digests_learnt:
                    self.store.save_manifest(self._manifest)
                    self._digests_learnt = False
                self.store.save(self._manifest, self._records, complete=False)

    @contextlib.contextmanager
    def saving(self, tick: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Meanwhile what becomes known is saved at once; while that is written, more may come and is saved together.

        `tick` is called by the thread that saves, several times a second.
        """
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(SAVE_REST):
                if self._unsaved.wait(TICK_EVERY):
                    with contextlib.suppress(OSError):  # a full disk is reported by whoever writes the model
                        self.save()
                tick()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            self._unsaved.set()
            thread.join()
            self.save()
