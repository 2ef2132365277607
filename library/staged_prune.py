#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""List, and remove where told to, what was staged and nobody needs any more."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: staged_prune
short_description: List, and remove where told to, what was staged and nobody needs any more
description:
  - Looks at releases, engine images, overlays, caches of compiled kernels and models on this Spark. What a release that runs or would be
    restored refers to, what O(keep) names, and images and mounts of any container, running or not, stay.
  - Only what this project brought is looked at. Models outside of O(models_dir) are never touched.
  - Refuses while a transaction is open or a job runs, as they may be about to need something, and where a state or a release that
    is in use can't be read. While it removes, no transaction can be acquired on this Spark.
options:
  state:
    description: V(listed) changes nothing.
    type: str
    choices: [listed, pruned]
    default: listed
  keep:
    description: Paths that the chosen lane needs.
    type: list
    elements: path
    default: []
  keep_images:
    description: Digests, digest references and IDs of images that the chosen lane needs.
    type: list
    elements: str
    default: []
  kinds:
    description: What is looked at.
    type: list
    elements: str
    choices: [release, image, overlay, jit_cache, model, leftover]
    default: [release, image, overlay, jit_cache, model, leftover]
  models_dir:
    description: Where models of this project lie.
    type: path
    default: /var/lib/sparklanes/models
  certificates_dir:
    description: Where Docker reads certificates of registries.
    type: path
    default: /etc/docker/certs.d
  root:
    description: Where everything else lies.
    type: path
    default: /var/lib/sparklanes
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  diff_mode:
    details: Shows the names of what goes.
  idempotent:
    details: V(listed) never reports a change.
"""

EXAMPLES = r"""
- name: See what may go
  staged_prune:
"""

RETURN = r"""
items:
  description: C(kind), C(name) and C(size) (bytes) of what nobody needs.
  returned: always
  type: list
  elements: dict
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
"""

import os
import shutil
import time
from pathlib import Path
from typing import NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.files import Unreadable, read_json, remove
from ansible.module_utils.sparklanes.common.ours import is_ours
from ansible.module_utils.sparklanes.docker.containers import Docker, DockerError
from ansible.module_utils.sparklanes.docker.registry import STORE, stale_certificates
from ansible.module_utils.sparklanes.docker.store import ImageStore
from ansible.module_utils.sparklanes.jobs.runner import Jobs, ask_systemd
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.release.prune import Item, Needed, unneeded
from ansible.module_utils.sparklanes.release.store import Store, alone, unreadable_lock, unreadable_state, unreferenced
from ansible.module_utils.sparklanes.weights.folder import IN_PLACE


class Prune:
    """What is staged on this Spark."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.root = Path(module.params["root"])
        self.docker = Docker(commands.run)
        self.images = ImageStore(commands.run, self.root / "images")
        self.stores = Store("prune", str(self.root)).deployments()

    def find(self) -> list[Item]:
        for store in self.stores:
            try:
                transaction = store.transaction()
            except Unreadable as error:
                self.module.fail_json(msg=f"deployment {store.deployment}: {unreadable_lock(error)}. Nothing was removed")
            if transaction is not None:
                self.module.fail_json(
                    msg=f"deployment {store.deployment}: transaction {transaction.id} of {transaction.controller} is open (phase "
                    f"'{transaction.phase}'). Wait for it, or run playbooks/recover.yml; nothing was removed"
                )
        jobs = Jobs(ask_systemd, self.root / "jobs")
        try:
            busy = [entry.name for entry in folders(jobs.root) if jobs.status(entry.name).running]
        except JobError as error:
            self.module.fail_json(msg=f"{error}; nothing was removed")
        if busy:
            self.module.fail_json(
                msg=f"job {', '.join(busy)} runs here, and what it stages or reads is referred to by no release yet. "
                "Wait for it; nothing was removed"
            )
        anyone = Store("prune", str(self.root))
        try:
            gone = unreferenced(anyone.releases(), anyone.all_states())
        except Unreadable as error:
            self.module.fail_json(msg=f"{unreadable_state(error)}. Nothing was removed")
        needed = Needed(paths=set(self.module.params["keep"]))
        for name in self.module.params["keep_images"]:
            needed.add_image(name)
        for name in sorted(set(anyone.releases()) - set(gone)):
            try:
                spec = anyone.spec(name)
                needed.add_spec(spec or {})
                # Without these it is none of ours, and may refer to anything.
                spec = spec if spec and isinstance(spec.get("image"), str) and isinstance(spec.get("mounts", []), list) else None
            except (ValueError, TypeError, AttributeError, KeyError):
                spec = None
            if spec is None:
                self.refuse(anyone.release_folder(name) / "rank.json")
        # Also those that run no more, and those which somebody started by hand.
        for box in self.docker.containers():
            needed.add_image(box.image, [box.image_id])
            needed.paths |= set(box.mounts)
        items = [*self.release_items(anyone), *self.image_items(), *self.file_items()]
        kinds = self.module.params["kinds"]
        return [item for item in unneeded(items, needed, gone) if item.kind in kinds]

    def refuse(self, path: Path) -> NoReturn:
        """What can't be read may refer to anything."""
        self.module.fail_json(
            msg=f"{path} can't be read, so what it refers to is not known. Launch that release again, which freezes it anew, "
            "then run this again; nothing was removed"
        )
        raise SystemExit(1)

    def release_items(self, store: Store) -> list[Item]:
        return [Item("release", name, size_of(store.release_folder(name))) for name in store.releases()]

    def image_items(self) -> list[Item]:
        """Images that a note of ours says we brought."""
        made: dict[str, Item] = {}
        for note in sorted(self.images.root.glob("*.json")) if self.images.root.is_dir() else []:
            name = str((read_json(note) or {}).get("id", ""))
            image = self.images.inspect(name) if name else None
            if image is not None:
                digests = [digest for digest in image.repo_digests if digest]
                also = (f"sha256:{note.stem}", *digests, *(digest.rpartition("@")[2] for digest in digests), *image.repo_tags)
                known = made[image.id].also if image.id in made else ()
                made[image.id] = Item("image", image.id, image.size_bytes, (*known, *also))
        return list(made.values())

    def file_items(self) -> list[Item]:
        overlays = [entry for entry in folders(self.root / "overlays") if len(entry.name) == 64]
        caches = [cache for image in folders(self.root / "jit") for cache in folders(image)]
        staged = [
            read_json(entry / "STAGED.json") or read_json(entry / "PARTIAL.json") or {} for entry in folders(self.root / "staged")
        ]
        models = [Path(str(data["path"])) for data in staged if data.get("path") and str(data.get("source")) not in IN_PLACE]
        # A link there leads to weights that somebody keeps elsewhere.
        inside = folders(Path(self.module.params["models_dir"]))
        return [
            *(Item("overlay", str(path), size_of(path)) for path in overlays),
            *(Item("jit_cache", str(path), size_of(path)) for path in caches),
            *(Item("leftover", str(path), size_of(path)) for path in self.leftovers()),
            *(Item("model", str(path), size_of(path)) for path in models if path in inside),
        ]

    def leftovers(self) -> list[Path]:
        """What a staging leaves that lost its power: the registry that lent an image, archives on their way, certificates for that registry."""
        ways = [*self.root.glob("overlays/.incoming.tar"), *sorted(self.root.glob("jit/*/*.tar"))]
        registry = self.root / "registry"
        trust = stale_certificates(time.time(), Path(self.module.params["certificates_dir"]))
        return [*([registry] if is_ours(registry, STORE) else []), *ways, *trust]

    def remove(self, item: Item) -> None:
        if item.kind == "image":
            # Without force: Docker refuses what a container uses. Names first, as an ID with several is refused too.
            image = self.images.inspect(item.name)
            names = [*(image.repo_tags if image else ()), *(image.repo_digests if image else ())] or [item.name]
            for name in names:
                if self.images.inspect(name) is not None:
                    self.docker.call("image", "rm", name)
            for note in self.images.root.glob("*.json"):
                if (read_json(note) or {}).get("id") == item.name or item.name.endswith(note.stem):
                    note.unlink()
        elif item.kind == "release":
            remove(self.root / "releases" / item.name)
        else:
            if item.kind == "model":
                self.forget(item.name)
            remove(Path(item.name))

    def forget(self, path: str) -> None:
        """The marker of a model goes first: what is half removed must not count as staged."""
        for entry in folders(self.root / "staged"):
            data = read_json(entry / "STAGED.json") or read_json(entry / "PARTIAL.json") or {}
            if data.get("path") == path:
                shutil.rmtree(entry)


def folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.is_symlink()) if path.is_dir() else []


def size_of(path: Path) -> int:
    """Bytes on the disk of a file or below a folder, links not followed."""
    files = (
        [path]
        if path.is_symlink() or not path.is_dir()
        else [Path(here, name) for here, _, names in os.walk(path) for name in names]
    )
    return sum(file.lstat().st_blocks * 512 for file in files)


def main() -> None:
    kinds = ["release", "image", "overlay", "jit_cache", "model", "leftover"]
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["listed", "pruned"], "default": "listed"},
            "keep": {"type": "list", "elements": "path", "default": []},
            "keep_images": {"type": "list", "elements": "str", "default": []},
            "kinds": {"type": "list", "elements": "str", "choices": kinds, "default": kinds},
            "models_dir": {"type": "path", "default": "/var/lib/sparklanes/models"},
            "certificates_dir": {"type": "path", "default": "/etc/docker/certs.d"},
            "root": {"type": "path", "default": "/var/lib/sparklanes"},
        },
        supports_check_mode=True,
    )
    actions: list[str] = []
    items: list[Item] = []
    pruned = module.params["state"] == "pruned"
    try:
        # From the look to the last removal: no launch begins in between that needs what goes.
        with alone(module.params["root"], "removes what nobody needs", write=pruned and not module.check_mode):
            prune = Prune(module)
            items = prune.find()
            for item in items if pruned else []:
                actions.append(f"Remove {item.kind} {item.name}")
                if not module.check_mode:
                    prune.remove(item)
    except (DockerError, OSError, ValueError) as error:
        module.fail_json(msg=str(error), actions=actions, items=[item.to_dict() for item in items])
    module.exit_json(
        changed=bool(actions),
        actions=actions,
        items=[item.to_dict() for item in items],
        diff={"before": "".join(f"{item.kind} {item.name}\n" for item in items) if actions else "", "after": ""},
    )


if __name__ == "__main__":
    main()
