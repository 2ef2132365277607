# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Start and stop the rank of a deployment on this Spark, from the spec that a release froze here.

Module `rank` does it for a playbook, the unit of role spark_boot after a power cut: both by this.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.sparklanes.common import clock
from ansible.module_utils.sparklanes.common.commands import Run
from ansible.module_utils.sparklanes.common.files import LOG_ROOT, STATE_ROOT, Unreadable, hash_file, lend_to_login
from ansible.module_utils.sparklanes.common.sizes import MIB
from ansible.module_utils.sparklanes.docker.containers import Container, Docker
from ansible.module_utils.sparklanes.docker.jit_cache import measure
from ansible.module_utils.sparklanes.docker.logs import Saved
from ansible.module_utils.sparklanes.docker.store import ImageStore
from ansible.module_utils.sparklanes.host import boots as host_boots
from ansible.module_utils.sparklanes.rank.spec import docker_create_argv, overlay_sha256
from ansible.module_utils.sparklanes.release import owned
from ansible.module_utils.sparklanes.release.store import Store, alone

# Where a log goes while the disk of the other place is full, and how much of it: it is held in memory there.
SPARE_LOG_ROOT = "/run/sparklanes/logs"
SPARE_BYTES = MIB


class RankError(Exception):
    """The rank can't be started or stopped; the text says why and what to do."""


class Rank:
    """The rank of one deployment on this Spark."""

    def __init__(
        self,
        run: Run,
        deployment: str,
        root: str = STATE_ROOT,
        log_root: str = LOG_ROOT,
        stamp: str | None = None,
        check: bool = False,
        transaction: str = "",
    ) -> None:
        """transaction: under which a controller works; empty where none may be open, as after a boot."""
        self.run = run
        self.docker = Docker(run)
        self.store = Store(deployment, root)
        self.root, self.log_root, self.stamp, self.check = root, log_root, stamp, check
        self.transaction = transaction
        self.actions: list[str] = []
        self.logs: list[str] = []
        self.saved: list[Saved] = []

    def fail(self, message: str) -> NoReturn:
        raise RankError(message)

    def ours(self) -> list[Container]:
        return owned.ours(self.docker, self.store, write=not self.check)

    @contextlib.contextmanager
    def _holding(self, what: str) -> Iterator[None]:
        """Nobody takes the lock of this Spark while the block runs, and it is held by this transaction. A check touches nothing and took none."""
        if self.check:
            yield
            return
        with alone(self.root, f"{what} the rank of {self.store.deployment}"):
            lost = self.store.lost(self.transaction, clock.now())
            if lost:
                self.fail(f"{lost}. No container was touched here")
            yield

    def start(self, release: str, secret_env: Mapping[str, Any]) -> dict[str, Any]:
        with self._holding("starts"):
            return self._start(release, secret_env)

    def stop(self, timeout_seconds: int) -> dict[str, Any]:
        with self._holding("stops"):
            return self._stop(timeout_seconds)

    def _start(self, release: str, secret_env: Mapping[str, Any]) -> dict[str, Any]:
        frozen = self.store.release_folder(release) / "rank.json"
        try:
            spec = self.store.spec(release)
            name = str((spec or {}).get("container"))
            # The command asks for every part, and each of its words is a text.
            if spec is not None and not all(isinstance(word, str) for word in docker_create_argv(spec)):
                raise TypeError("a word of its command is no text")
        except (Unreadable, KeyError, TypeError, AttributeError, ValueError) as error:
            said = str(error) if isinstance(error, Unreadable) else f"{frozen} is no rank that can be started ({error!r})"
            self.fail(f"{said}. No container was touched; launch the release again, which freezes it anew")
        if spec is None:
            self.fail(
                f"release {release} is not frozen on this Spark ({frozen} is missing). "
                "Run playbooks/launch.yml, which freezes it on every rank before anything is stopped"
            )
        mine = self.ours()
        for box in mine:
            if box.running and (box.name != name or box.release != release):
                self.fail(
                    f"container {box.name} already runs release {box.release or 'unknown'} of deployment {self.store.deployment}; "
                    f"expected none or release {release}. Stop it first: playbooks/stop.yml"
                )
            if box.running:
                return {"changed": False, "cold": False, "container": {"name": box.name, "id": box.id[:12]}}
        stranger = self.docker.named(name)
        if stranger is not None and stranger.id not in [box.id for box in mine]:
            self.fail(
                f"a container named {name} exists that sparklanes did not make (image {stranger.image}, {stranger.status}). "
                f"Remove or rename it by hand; it is never touched from here"
            )
        local = self.refuse_missing(spec)
        self.actions.append(f"Start {name} from {spec['image']}")
        cold = bool(spec.get("jit_cache")) and not measure(Path(spec["jit_cache"]))[0]
        made = None
        if not self.check:
            # Asked again: since then a hand may have removed one.
            for box in self.ours():
                self.remove(box)
            argv = docker_create_argv({**spec, "image": local})
            secrets = self.secrets(spec, secret_env)
            owned.note(self.store, name, "")
            self.docker.call(*argv[1:], environ=secrets)
            made = self.docker.named(name)
            owned.note(self.store, name, made.id if made else "")
            host_boots.add(self.root)
            self.docker.call("start", name)
        return {
            "changed": True,
            "cold": cold,
            "container": {"name": name, "id": made.id[:12] if made else ""},
            "diff": {"before": "no rank runs\n", "after": f"{name} runs release {release}\n"},
        }

    def secrets(self, spec: Mapping[str, Any], secret_env: Mapping[str, Any]) -> dict[str, str]:
        given = {str(key): str(value) for key, value in secret_env.items()}
        missing = [name for name in spec.get("secret_env") or [] if not given.get(name)]
        if missing:
            self.fail(
                f"the spec needs {', '.join(missing)} and no value was given. Put it into the site's vault "
                "(inventory/fleet/group_vars/all/vault.yml) or remove the API key of the lane"
            )
        return {name: given[name] for name in spec.get("secret_env") or []}

    def refuse_missing(self, spec: dict[str, Any]) -> str:
        """The name of the image on this Spark, once all that the rank needs is there."""
        absent = [
            mount["source"] for mount in spec.get("mounts") or [] if not (mount.get("create") or Path(mount["source"]).exists())
        ]
        if absent:
            self.fail(f"{', '.join(absent)}: to be mounted into the rank, and missing on this Spark. Run site.yml to stage it")
        changed = [source for mount in spec.get("mounts") or [] if _changed(source := str(mount["source"]))]
        if changed:
            self.fail(f"{', '.join(changed)}: its content is not what its folder is named by. Run site.yml to stage it anew")
        found = ImageStore(self.run, Path(self.root, "images")).find(spec["image"], spec.get("image_ids") or [])
        if found is None:
            self.fail(f"image {spec['image']} is not on this Spark. Run site.yml to pull it")
        return str(found.name)

    def _stop(self, timeout_seconds: int) -> dict[str, Any]:
        boxes = self.ours()
        for box in boxes:
            if box.running:
                self.actions.append(f"Stop {box.name} (release {box.release}), {timeout_seconds} s to end")
            self.actions.append(f"Save the log of {box.name} and remove it")
            if self.check:
                continue
            if box.running:
                self.docker.call("stop", "--time", str(timeout_seconds), box.id)
            self.remove(box)
        before = "".join(f"{box.name} ({box.status}) of release {box.release}\n" for box in boxes)
        return {"changed": bool(boxes), "diff": {"before": before, "after": ""}}

    def save(self) -> dict[str, Any]:
        """Save the log of each rank as it is now; it runs on."""
        for box in self.ours():
            self.actions.append(f"Save the log of {box.name}")
            if not self.check:
                self.keep(box)
        return {"changed": False}

    def remove(self, box: Container) -> None:
        """Save the log of an ended container, then remove it. Docker itself refuses a running one."""
        self.keep(box)
        self.docker.call("rm", box.id)

    def keep(self, box: Container) -> None:
        """Save the log of a container where there is room, and give it to whoever fetches it."""
        try:
            spec = self.store.spec(box.release) if box.release else None
        except ValueError:  # it can't be read
            spec = None
        stamp = self.stamp or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        # A release that was pruned, or can't be read, names its secrets no more: then no value is written.
        redact = None if spec is None else list(spec.get("secret_env") or [])
        label = f"rank{box.labels.get('sparklanes.rank', '')}"
        saved = self.docker.save_logs(box, _free_name(Path(self.log_root, self.store.deployment, stamp), label), redact)
        if not saved.path:
            # A full disk must not keep a lane down. In memory there is room for the end of a log, until it is fetched.
            aside = _free_name(Path(SPARE_LOG_ROOT, self.store.deployment, stamp), label)
            why = saved.problem
            saved = self.docker.save_logs(box, aside, redact, SPARE_BYTES)
            where = f"so {saved.path} in memory holds it until the next reboot" if saved.path else f"and {saved.problem}"
            more = f"; {saved.problem}" if saved.path and saved.problem else ""
            saved = replace(saved, whole=False, problem=f"not saved below {self.log_root} ({why}), {where}{more}")
        self.saved.append(saved)
        if saved.path:
            lend_to_login(saved.path)
            self.logs.append(saved.path)


def _free_name(folder: Path, label: str) -> Path:
    """A second log of one attempt does not overwrite the first."""
    names = [f"{label}.log", *(f"{label}.{again}.log" for again in range(2, 100))]
    return next((folder / name for name in names if not (folder / name).exists()), folder / names[-1])


def _changed(source: str) -> bool:
    """Whether an overlay or extra, which lies by the sha256 of its content (`rank.spec.overlay_path`), holds something else by now."""
    wanted = overlay_sha256(source)
    return bool(wanted) and Path(source).is_file() and hash_file(Path(source)) != wanted
