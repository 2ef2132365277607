#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Ask an engine image what it holds."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: engine_image_info
short_description: Ask an engine image what it holds
description:
  - Starts up to two short containers of the image, without GPU and network, and reads the versions of all Python packages, the image's
    ENTRYPOINT, and the flags that C(vllm serve --help) names. The answer is noted under the image's ID, and a second call starts nothing.
  - The second container imports the engine and takes 1 to 2 GB. It does not start while less than 6 GiB are available, as on a Spark
    that serves; C(flags_error) of RV(probe) says so then, and a later call asks again.
options:
  reference:
    description: C(REPOSITORY@DIGEST) or an ID.
    type: str
    required: true
  ids:
    description: IDs that mean this image too.
    type: list
    elements: str
    default: []
  timeout_seconds:
    description: How long each container may take.
    type: int
    default: 300
  images_dir:
    description: Where notes on images lie.
    type: path
    default: /var/lib/sparklanes/images
extends_documentation_fragment: [sparklanes, sparklanes.info]
attributes:
  check_mode:
    support: partial
    details: Returns what an earlier run noted, which may be nothing. No container is started and no note written.
  diff_mode:
    support: none
    details: It leaves the note under O(images_dir), which nobody sets, and nothing else.
  idempotent:
    details: >-
      C(changed) is always false. But the first run starts up to two containers, which are removed as they end, and writes a note;
      a second one starts those whose answer is still missing.
"""

EXAMPLES = r"""
- name: Ask the image what it holds
  engine_image_info:
    reference: "{{ engine_image_reference }}"
  register: image
"""

RETURN = r"""
probe:
  description: >-
    C(python), C(packages) (name to version), C(entrypoint), C(flags); C(error) and C(flags_error) say why packages or flags are not known.
  returned: always
  type: dict
asked:
  description: Whether containers were started for it now.
  returned: always
  type: bool
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.docker import probe as docker_probe
from ansible.module_utils.sparklanes.docker.containers import DockerError
from ansible.module_utils.sparklanes.docker.store import Found, ImageStore
from ansible.module_utils.sparklanes.memory.page_cache import parse_meminfo


class Probe:
    """One image on one Spark."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.store = ImageStore(commands.run, module.params["images_dir"])

    def run(self) -> dict[str, Any]:
        reference = self.module.params["reference"]
        found = self.store.find(reference, self.module.params["ids"])
        if found is None:
            return {"asked": False, "probe": {"error": f"{reference} is not on this Spark"}}
        known = (self.store.record(found.image.id) or {}).get("probe") or {}
        if (known.get("packages") and known.get("flags")) or self.module.check_mode:
            return {"asked": False, "probe": known}
        made = self.ask(found, known)
        self.store.note(found.image.id, probe=made)
        return {"asked": True, "probe": made}

    def container(self, name: str, entrypoint: str, *words: str) -> tuple[int, str, str]:
        limit = self.module.params["timeout_seconds"]
        argv = ["timeout", "--signal=TERM", "--kill-after=30", str(limit), "docker", "run", "--rm", "--label", docker_probe.LABEL]
        result: tuple[int, str, str] = commands.run(
            [*argv, *docker_probe.LIMITS, "--entrypoint", entrypoint, name, *words], seconds=limit + 60
        )
        return result

    def ask(self, found: Found, known: dict[str, Any]) -> dict[str, Any]:
        probe = dict(known)
        if "packages" not in probe:
            probe["entrypoint"] = self.entrypoint(found.name)
            code, out, err = self.container(found.name, "python3", "-c", docker_probe.VERSIONS_PROGRAM)
            try:
                probe |= docker_probe.parse_versions(out)
                probe.pop("error", None)
            except ValueError as error:
                probe["error"] = f"{error} (exit {code}): {(err or out).strip()[-300:]}"
        if not probe.get("flags"):
            probe |= self.flags(found.name)
        return probe

    def entrypoint(self, name: str) -> list[str]:
        code, out, err = commands.run(["docker", "image", "inspect", name])
        if code != 0:
            raise DockerError(f"docker image inspect {name}: {err.strip()}")
        words: list[str] = docker_probe.parse_entrypoint(out)
        return words

    def flags(self, name: str) -> dict[str, Any]:
        available = parse_meminfo(Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")).get("MemAvailable", 0)
        if available < docker_probe.HELP_BYTES:
            need = docker_probe.HELP_BYTES / GIB
            return {
                "flags": [],
                "flags_error": f"not asked: {available / GIB:.1f} GiB of memory available, expected {need:.0f}",
            }
        said = ""
        for words in (["serve", "--help=all"], ["serve", "--help"]):  # older engines know no =all, and then show everything
            code, out, err = self.container(name, "vllm", *words)
            flags = docker_probe.parse_flags(out)
            if code == 0 and "--tensor-parallel-size" in flags:
                return {"flags": flags, "flags_error": ""}
            said = f"vllm {' '.join(words)} ended with {code}: {(err or out).strip()[-300:]}"
        return {"flags": [], "flags_error": said}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "reference": {"type": "str", "required": True},
            "ids": {"type": "list", "elements": "str", "default": []},
            "timeout_seconds": {"type": "int", "default": 300},
            "images_dir": {"type": "path", "default": "/var/lib/sparklanes/images"},
        },
        supports_check_mode=True,
    )
    probe = Probe(module)
    try:
        result = probe.run()
    except (DockerError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
