#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Lay overlay files down on a Spark by content, and verify them at each run."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: overlay_stage
short_description: Lay overlay files down on a Spark by content, and verify them
description:
  - Takes all overlays and extras of a lane at once. Each lies at C(ROOT/SHA256/NAME), read-only, and is hashed at each run;
    a file with another hash is refused and never mended in silence. Files of earlier lanes stay, as releases refer to them.
  - Without O(archive) it only looks, and RV(missing) names what this Spark lacks. With it, missing files are taken from the archive.
  - Where a file says what it replaces (C(replaces_sha256)), that is compared with the image's own file. It is copied out of a
    container that is created and never started, so that nothing of the image runs; the result is kept per image digest.
options:
  files:
    description: >-
      C(source), C(sha256), C(target), and as needed C(replaces_sha256) and C(markers) of each file.
    type: list
    elements: dict
    required: true
  archive:
    description: Archive on the Spark that the module overlay_bundle made. It is removed afterwards.
    type: path
  image:
    description: C(REPOSITORY@DIGEST) of the image that files replace something in, or its ID.
    type: str
    default: ''
  image_ids:
    description: IDs that mean this image too.
    type: list
    elements: str
    default: []
  protected:
    description: Directories of weights in the container, below which nothing is mounted.
    type: list
    elements: str
    default: []
  host:
    description: Name of the Spark in messages.
    type: str
    required: true
  root:
    description: Where the files lie.
    type: path
    default: /var/lib/sparklanes/overlays
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  check_mode:
    support: partial
    details: >-
      Counts every missing file as a change, with or without O(archive). The image is not opened, so what was not compared before
      counts as a change too.
  diff_mode:
    details: Shows the paths of the files.
"""

EXAMPLES = r"""
- name: Look which files this Spark lacks
  overlay_stage:
    files: "{{ lane_overlays | overlay_plan(lane_extras, 'lanes/overlays', '.') }}"
    image: "{{ engine_image_reference }}"
    host: "{{ inventory_hostname }}"
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, as sentences.
  returned: always
  type: list
  elements: str
mounts:
  description: C(source), C(target), C(read_only) of each file, for the rank.
  returned: always
  type: list
  elements: dict
missing:
  description: Hashes of the files that this Spark lacks.
  returned: always
  type: list
  elements: str
"""

import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.files import hash_file, read_json, write_json
from ansible.module_utils.sparklanes.docker.containers import DEED_SECONDS, Docker, DockerError
from ansible.module_utils.sparklanes.docker.store import ImageStore
from ansible.module_utils.sparklanes.rank import overlays


class OverlayStage:
    """The files of one lane on one Spark."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.host: str = self.params["host"]
        self.root: str = self.params["root"]
        self.image: str = self.params["image"]
        self.files = [overlays.OverlayFile.of(item) for item in self.params["files"]]
        self.actions: list[str] = []
        self.missing: list[str] = []
        self.changed = False

    def fail(self, problems: list[str]) -> NoReturn:
        self.module.fail_json(msg=f"{self.host}: " + "; ".join(problems), actions=self.actions, missing=self.missing)
        raise SystemExit(1)

    def note(self, action: str) -> None:
        self.changed = True
        self.actions.append(action)

    def run(self) -> None:
        wrong = overlays.faults(self.files, self.params["protected"])
        if any(file.replaces_sha256 for file in self.files) and "sha256:" not in self.image:
            wrong.append(
                f"image: found {self.image!r}, expected REPOSITORY@sha256:… or an ID, as a file says what it replaces in the image"
            )
        if wrong:
            self.fail(wrong)
        self.compare_with_image()
        self.stage()

    def stage(self) -> None:
        """Nothing gets its final name before all of it is known to be right; what is there is read again."""
        absent = []
        wrong = []
        for file in self.files:
            path = Path(file.staged(self.root))
            if not path.exists():
                absent.append(file)
                continue
            wrong += [
                f"{text}. Nobody but this module writes there: find out who did, remove {path.parent} (no rank may run that mounts it), and run this again"
                for text in overlays.link_faults(path, self.root) + overlays.read_faults(file, path)
            ]
        if wrong:
            self.fail(wrong)
        archive = self.params["archive"]
        if not archive:
            self.missing = sorted({file.sha256 for file in absent})
            if absent and self.module.check_mode:
                for file in absent:
                    self.note(f"Stage {file.source} as {file.staged(self.root)}")
            return
        for file in absent:
            self.note(f"Stage {file.source} as {file.staged(self.root)}")
            if self.module.check_mode:
                continue
            path = Path(file.staged(self.root))
            overlays.unpack(Path(archive), file.sha256, path)
            problems = overlays.read_faults(file, path)
            if problems:
                self.fail(problems)
        if not self.module.check_mode:
            Path(archive).unlink(missing_ok=True)

    # The image's own files

    def compare_with_image(self) -> None:
        wanted = [file for file in self.files if file.replaces_sha256]
        if not wanted:
            return
        known_path = Path(self.root) / "images" / f"{self.image.rpartition(':')[2]}.json"
        known: dict[str, str | None] = dict(read_json(known_path) or {})
        unknown = sorted({file.target for file in wanted} - set(known))
        if unknown and self.module.check_mode:
            self.note(f"Compare {', '.join(unknown)} in {self.image} with what the overlays replace")
            return
        if unknown:
            known.update(self.hashes_in_image(unknown))
            write_json(known_path, known, mode=0o644)
        wrong = overlays.replaced_faults(wanted, known, self.image)
        if wrong:
            self.fail(wrong)

    def hashes_in_image(self, targets: list[str]) -> dict[str, str | None]:
        """sha256 of these files in the image, None for a file that it does not have."""
        docker = Docker(commands.run)
        found = ImageStore(commands.run).find(self.image, self.params["image_ids"])
        if found is None:
            self.fail(
                [
                    f"{self.image} is not here, so what the overlays replace can't be compared. Role engine_image pulls it; run site.yml"
                ]
            )
        made: dict[str, str | None] = {}
        box = docker.call("create", "--network", "none", "--label", "sparklanes.purpose=compare", found.name, "true").strip()
        folder = Path(tempfile.mkdtemp(prefix="overlay-", dir=self.module.tmpdir))
        try:
            for number, target in enumerate(targets):
                copy = folder / str(number)
                rc, _, err = commands.run(["docker", "cp", "--follow-link", f"{box}:{target}", str(copy)], seconds=DEED_SECONDS)
                if rc == 0 and copy.is_file():
                    made[target] = hash_file(copy)
                elif rc == 0 or "could not find the file" in err.lower() or "no such" in err.lower():
                    made[target] = None
                else:
                    self.fail([f"{target} could not be copied out of {self.image}: {err.strip()}"])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            # Created by us and never started, so this can't hurt a rank.
            commands.run(["docker", "rm", box], seconds=DEED_SECONDS)
        return made

    def result(self) -> dict[str, Any]:
        lines = [f"{file.staged(self.root)}\n" for file in self.files]
        fresh = {action.rpartition(" as ")[2] + "\n" for action in self.actions if action.startswith("Stage ")}
        return {
            "changed": self.changed,
            "actions": self.actions,
            "missing": self.missing,
            "mounts": [file.mount(self.root) for file in self.files],
            "diff": {"before": "".join(line for line in lines if line not in fresh), "after": "".join(lines)},
        }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "required": True},
            "archive": {"type": "path"},
            "image": {"type": "str", "default": ""},
            "image_ids": {"type": "list", "elements": "str", "default": []},
            "protected": {"type": "list", "elements": "str", "default": []},
            "host": {"type": "str", "required": True},
            "root": {"type": "path", "default": "/var/lib/sparklanes/overlays"},
        },
        supports_check_mode=True,
    )
    stage = OverlayStage(module)
    try:
        stage.run()
    except (DockerError, ValueError) as error:
        stage.fail([str(error)])
    except (tarfile.TarError, EOFError) as error:
        stage.fail([f"{stage.params['archive']} is damaged: {error}; nothing was kept. Run this again"])
    except OSError as error:
        stage.fail([f"{error.filename or stage.root}: {error.strerror or error}"])
    module.exit_json(**stage.result())


if __name__ == "__main__":
    main()
