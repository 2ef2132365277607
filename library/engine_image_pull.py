#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Have an engine image on the Spark: by digest or ID, and by nothing else."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: engine_image_pull
short_description: Have an engine image on the Spark, by digest or ID only
description:
  - Looks for the image by its digest under any name, by its IDs, and by what this Spark noted when it received it; where it is
    missing, takes it out of an archive, from another Spark's registry, or from its own. One execution.
  - A missing or malformed digest, a tag, a digest that the registry does not know, an archive that is not the lane's, another image
    under the same name, and an image for other machines are each refused with what was found and what to do, before anything changes.
  - What it brought gets a tag where it has none, as C(docker image prune) would take it. The tag is never used.
  - An archive is hashed while Docker reads it, and its end is withheld until the hash is right; of a wrong one nothing is kept.
  - It talks to Docker through its command line rather than through M(community.docker.docker_image_pull). That module needs the
    Python package requests on each Spark, passes Docker's errors on as they are, and needs further tasks to list what is there and to compare.
options:
  repository:
    description: Name of the image without tag and digest.
    type: str
    required: true
  digest:
    description: C(sha256:) and 64 hex digits. Empty for an image that no registry has.
    type: str
    default: ''
  ids:
    description: >-
      IDs that mean this image too, as C(docker image inspect) shows them: the digest of its configuration (overlay2) or of its manifest
      (containerd). Needed where there is no digest.
    type: list
    elements: str
    default: []
  host:
    description: Name of the Spark in messages.
    type: str
    required: true
  pull:
    description: V(look) only says what is here. V(never) refuses an image that is not.
    type: str
    choices: [missing, never, look]
    default: missing
  archive:
    description: What C(docker save) wrote, on this Spark or a mount of it, packed with gzip or zstd or not. Preferred to a registry.
    type: dict
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      sha256:
        description: Its hash, 64 hex digits.
        type: str
        required: true
  through:
    description: The registry of another Spark, as C(lent) of C(image_registry) names it, for the time of this run.
    type: dict
    suboptions:
      registry:
        description: C(ADDRESS:PORT).
        type: str
        required: true
      repository:
        description: Name of the image there.
        type: str
        required: true
      digest:
        description: Its digest there.
        type: str
        required: true
      id:
        description: Its ID on the Spark that lends it.
        type: str
        required: true
      store:
        description: The image store of that Spark.
        type: str
        required: true
      size_bytes:
        description: Its size there, to see whether it fits.
        type: int
        default: 0
      ca:
        description: Certificate of the registry, in PEM.
        type: str
        required: true
      certificate:
        description: Certificate of this client, in PEM.
        type: str
        required: true
      key:
        description: Its key, in PEM.
        type: str
        required: true
  reserve_gib:
    description: GiB of Docker's disk that stay free; an image that leaves less is refused, where its size is known before.
    type: int
    default: 10
  images_dir:
    description: Where notes on images lie.
    type: path
    default: /var/lib/sparklanes/images
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  check_mode:
    details: Whether the registry knows the digest, and whether a download fits on the disk, shows only in a real run.
  diff_mode:
    details: Shows the digests of the image.
"""

EXAMPLES = r"""
- name: Have the image of the lane
  engine_image_pull:
    repository: "{{ lane_image.repository }}"
    digest: "{{ lane_image.digest }}"
    host: "{{ inventory_hostname }}"

- name: Have a local build, out of its archive
  engine_image_pull:
    repository: vllm-glm52-b12x
    ids: ['sha256:{{ config_digest }}']
    archive: {path: /mnt/nas/engine.tar.zst, sha256: '{{ archive_sha256 }}'}
    host: "{{ inventory_hostname }}"
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
reference:
  description: C(REPOSITORY@DIGEST), or the ID.
  returned: always
  type: str
here:
  description: Whether the image is on this Spark now.
  returned: always
  type: bool
image:
  description: >-
    C(name) by which Docker finds it, C(how) it was recognised (name, digest, id, record), C(id), C(repo_digests), C(repo_tags),
    C(architecture), C(size_bytes). V(null) where it is not there yet.
  returned: always
  type: dict
store:
  description: Image store of Docker on this Spark. Image IDs of two Sparks only compare where it is the same.
  returned: always
  type: str
checks:
  description: IMAGE.DIGEST and IMAGE.ARCH.
  returned: when the image is there
  type: list
  elements: dict
"""

import functools
import itertools
import os
import shutil
import time
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import again, commands
from ansible.module_utils.sparklanes.common.checks import failures, sentence
from ansible.module_utils.sparklanes.common.text import said
from ansible.module_utils.sparklanes.docker import images as docker_images
from ansible.module_utils.sparklanes.docker import moving
from ansible.module_utils.sparklanes.docker.archive import ArchiveError, guarding_memory, load, refuse_without_room
from ansible.module_utils.sparklanes.docker.containers import Docker, DockerError
from ansible.module_utils.sparklanes.docker.registry import client_certificates
from ansible.module_utils.sparklanes.docker.store import Found, ImageStore

OPTIONS: dict[str, Any] = {
    "repository": {"type": "str", "required": True},
    "digest": {"type": "str", "default": ""},
    "ids": {"type": "list", "elements": "str", "default": []},
    "host": {"type": "str", "required": True},
    "pull": {"type": "str", "choices": ["missing", "never", "look"], "default": "missing"},
    "archive": {
        "type": "dict",
        "options": {"path": {"type": "path", "required": True}, "sha256": {"type": "str", "required": True}},
    },
    "through": {
        "type": "dict",
        "options": {
            **{
                name: {"type": "str", "required": True}
                for name in ("registry", "repository", "digest", "id", "store", "ca", "certificate")
            },
            "key": {"type": "str", "required": True, "no_log": True},
            "size_bytes": {"type": "int", "default": 0},
        },
    },
    "reserve_gib": {"type": "int", "default": 10},
    "images_dir": {"type": "path", "default": "/var/lib/sparklanes/images"},
}


class EngineImage:
    """One image on one Spark."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.host: str = self.params["host"]
        self.ids: list[str] = self.params["ids"]
        self.reference = docker_images.Reference(self.params["repository"], self.params["digest"], tuple(self.ids))
        self.docker = Docker(commands.run)
        self.images = ImageStore(commands.run, self.params["images_dir"])
        self.actions: list[str] = []

    def fail(self, problem: str) -> NoReturn:
        self.module.fail_json(msg=f"{self.host}: {problem}", reference=str(self.reference), actions=self.actions)
        raise SystemExit(1)

    def local(self) -> Found | None:
        found: Found | None = self.images.find(str(self.reference), self.ids)
        return found

    def instead(self) -> str:
        rows = self.docker.call("image", "ls", "--digests", "--no-trunc", "--format", "{{json .}}")
        return str(docker_images.others(self.reference, docker_images.parse_list(rows)))

    @functools.cached_property
    def daemon(self) -> dict[str, Any]:
        """What Docker says of itself, asked once."""
        told: dict[str, Any] = self.docker.info()
        return told

    def image_root(self) -> str:
        """The folder on whose disk Docker keeps images."""
        return str(self.daemon["image_root"])

    # The three ways in which an image comes

    def fetch(self, store: str) -> None:
        if self.params["through"]:
            self.borrow(store)
        elif self.params["archive"]:
            self.load()
        elif self.reference.digest:
            self.pull(str(self.reference), None)
        else:
            self.fail(
                f"{self.reference.repository} with ID {self.reference} is not here, and no registry has it. Name an archive of it "
                "(lane_image_site: {archive: {path: …, sha256: …}}), or load it by hand: `docker load < FILE`"
            )

    def pull(self, name: str, size: int | None) -> None:
        self.actions.append(f"Pull {name}")
        if self.module.check_mode:
            return
        size = self.remote_bytes(name) if size is None else size
        try:
            refuse_without_room(size, self.params["reserve_gib"] if size else 0, self.image_root(), "the image")
        except ArchiveError as error:
            self.fail(str(error))
        for attempt in itertools.count(1):
            with guarding_memory():
                rc, out, err = moving.run("pull", "--quiet", name)
            if rc == 0:
                return
            told = (err or out).strip()
            wait = again.delay(attempt, told) if again.momentary(told) else None
            if wait is not None:
                self.actions.append(f"Asked again after {wait:g} s: {said(told, 160)}")
                time.sleep(wait)
                continue
            self.fail(f"{name} could not be pulled: {told} → {docker_images.explain(told, attempt)}. {self.instead()}".rstrip())

    def remote_bytes(self, name: str) -> int:
        """Packed size of an image in its registry, the least that it takes here; 0 where the registry doesn't tell."""
        for _ in range(2):  # the second time what an index names
            rc, out, _err = commands.run(["docker", "manifest", "inspect", name])
            told = docker_images.parse_manifest(out, os.uname().machine) if rc == 0 else None
            if isinstance(told, int):
                return told
            if told is None:
                break
            name = f"{name.rpartition('@')[0]}@{told}"
        return 0

    def borrow(self, store: str) -> None:
        """From the registry of another Spark. What came must be what that Spark has."""
        lent = self.params["through"]
        name = f"{lent['registry']}/{lent['repository']}@{lent['digest']}"
        with client_certificates(lent["registry"], lent["ca"], lent["certificate"], lent["key"], not self.module.check_mode):
            self.pull(name, lent["size_bytes"])
        if self.module.check_mode:
            return
        image = self.images.inspect(name)
        if image is None:
            self.fail(f"{name} was pulled and is not here; Docker's image store is damaged. Look at `journalctl -u docker`")
        if store == lent["store"] and image.id != lent["id"]:
            self.fail(
                f"from {lent['registry']} came an image with ID {image.id}, expected {lent['id']}. Something changed it on its way; "
                f"remove it (`docker image rm {name}`) and run this again"
            )
        # Where no registry has the image, its ID here may be of the other kind: then this note is all that knows it again.
        known_as = self.reference.digest or self.ids[0]
        self.images.note(known_as, id=image.id, name=name, received_from=lent["registry"])

    def load(self) -> None:
        archive = self.params["archive"]
        path = Path(archive["path"])
        self.actions.append(f"Load {self.reference} out of {path}")
        if self.module.check_mode and path.is_file():
            return
        try:
            loaded = load(path, archive["sha256"], self.image_root(), self.params["reserve_gib"])
        except ArchiveError as error:
            self.fail(str(error))
        wanted = {self.reference.digest, *self.ids} - {""}
        for name in loaded:
            image = self.images.inspect(name)
            if image is not None and any(docker_images.known_by(image, digest, self.ids) for digest in wanted):
                return
        self.fail(
            f"{path} holds {', '.join(loaded) or 'no image'}, and none of it is {self.reference}. It is the archive that the lane names "
            "(its sha256 is right), so the lane's digest or IDs are wrong: `docker image inspect` shows the ID of what was loaded"
        )

    def give_tag(self, found: Found) -> None:
        """`docker image prune` takes every image that no container uses and that has no tag, also one pulled by digest."""
        if not found.image.repo_tags:
            self.docker.call(
                "tag", found.name, f"{self.reference.repository}:sparklanes-{found.image.id.rpartition(':')[2][:12]}"
            )

    def run(self) -> dict[str, Any]:
        wrong = docker_images.problems(self.reference.repository, self.reference.digest, self.ids)
        if wrong:
            self.fail("; ".join(wrong))
        if not shutil.which("docker"):
            self.fail(
                "there is no docker command. A Spark comes with Docker; install it again (apt install docker-ce) before anything else"
            )
        store = str(self.daemon["image_store"])
        before = found = self.local()
        if found is None and self.params["pull"] == "never":
            self.fail(f"{self.reference} is not here. Run site.yml to pull it. {self.instead()}".rstrip())
        if found is None and self.params["pull"] == "missing":
            self.fetch(store)
            found = None if self.module.check_mode else self.local()
            if found is not None:
                self.give_tag(found)
                # What this project brought, playbooks/prune.yml may remove.
                self.images.note(
                    self.reference.digest or found.image.id, id=found.image.id, brought_for=self.params["repository"]
                )
            elif not self.module.check_mode:
                self.fail(
                    f"{self.reference} was pulled and is not here; Docker's image store is damaged. Look at `journalctl -u docker`"
                )
        made = (
            docker_images.judge(self.host, found.image, str(self.reference), os.uname().machine, found.how, self.ids)
            if found
            else []
        )
        bad = failures(made)
        if bad:
            self.fail("; ".join(sentence(check).removeprefix(f"{self.host} ") for check in bad))
        return {
            "changed": bool(self.actions),
            "reference": str(self.reference),
            "here": found is not None,
            "image": found.to_dict() if found else None,
            "store": store,
            "checks": [check.to_dict() for check in made],
            "diff": {
                "before": "".join(f"{digest}\n" for digest in before.image.repo_digests) if before else "",
                "after": "".join(f"{digest}\n" for digest in found.image.repo_digests)
                if found
                else f"{self.reference}\n" * bool(self.actions),
            },
        }


def main() -> None:
    module = AnsibleModule(OPTIONS, supports_check_mode=True)
    image = EngineImage(module)
    try:
        result = image.run()
    except (DockerError, ValueError) as error:
        module.fail_json(msg=f"{image.host}: {error} → {docker_images.explain(str(error))}", actions=image.actions)
    except OSError as error:
        module.fail_json(msg=f"{image.host}: {error.filename or ''}: {error.strerror or error}", actions=image.actions)
    module.exit_json(actions=image.actions, **result)


if __name__ == "__main__":
    main()
