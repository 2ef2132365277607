#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Write pins into a site's file of a lane, once a person has confirmed what was shown."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: lane_pin
short_description: Write pins into a site's file of a lane, once a person has confirmed what was shown
description:
  - Gives the file the content that was made of it. Unless O(confirmed), it only notes what was shown, so that a later confirmation is of that and of
    nothing else.
  - Refused are a file that changed since it was read, one that this user may not write or does not own, and a confirmation of other values than those
    that were shown last (a branch or a tag moved in between). Nothing is written then.
  - The file is whole or as it was. What it held before is kept in O(backups).
options:
  path:
    description: The site's file of the lane.
    type: path
    required: true
  content:
    description: What it is to hold.
    type: str
    required: true
  was:
    description: sha256 of what it held when O(content) was made; empty where it was not there.
    type: str
    default: ''
  values:
    description: What is pinned, by what was asked. Compared with what was shown.
    type: dict
    required: true
  confirmed:
    description: Whether a person said that it is to be written.
    type: bool
    default: false
  memory:
    description: The file that notes what was shown.
    type: path
    required: true
  backups:
    description: Folder for what the file held before.
    type: path
    required: true
extends_documentation_fragment: [sparklanes, sparklanes.change]
attributes:
  check_mode:
    details: Notes nothing and writes nothing. Without O(confirmed), C(changed) says what a confirmation would do.
  diff_mode:
    details: Shows the file.
  idempotent:
    details: The values are in the file then, and what is made of it is what it holds.
"""

EXAMPLES = r"""
- name: The pins stand in the site's file
  delegate_to: localhost
  lane_pin:
    path: inventory/fleet/group_vars/lane_mine.yml
    content: "{{ pins.content }}"
    was: "{{ pins.was }}"
    values: "{{ pins.given }}"
    confirmed: true
    memory: .cache/pins/mine.json
    backups: .cache/pins
"""

RETURN = r"""
actions:
  description: What was done, or would be done, as sentences.
  returned: always
  type: list
  elements: str
written:
  description: Whether the file was written now.
  returned: always
  type: bool
backup:
  description: Where what it held before is kept; empty where there was nothing.
  returned: always
  type: str
"""

import contextlib
import hashlib
import os
import stat
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.files import read_json, write_atomically, write_json

OPTIONS: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "content": {"type": "str", "required": True},
    "was": {"type": "str", "default": ""},
    "values": {"type": "dict", "required": True},
    "confirmed": {"type": "bool", "default": False},
    "memory": {"type": "path", "required": True},
    "backups": {"type": "path", "required": True},
}
KEPT_BACKUPS = 20


class CanNot(Exception):
    """Why nothing is written, with what helps."""


def read(path: Path) -> tuple[str, str]:
    """Content and sha256 of the file, both empty where there is none."""
    try:
        content = path.read_bytes()
        return content.decode(), hashlib.sha256(content).hexdigest()
    except FileNotFoundError:
        return "", ""
    except (OSError, ValueError) as error:
        raise CanNot(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from error


def refuse_others(path: Path) -> None:
    """A file of somebody else, or one that is read-only, stays: putting a new file in its place would go round that."""
    try:
        found = path.stat()
    except FileNotFoundError:
        folder = next(parent for parent in path.parents if parent.exists())
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CanNot(f"{folder} can't be written by this user. Make it yours, or write the lines yourself") from None
        return
    except OSError as error:
        raise CanNot(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise CanNot(f"{path} is no file")
    if found.st_uid != os.geteuid():
        raise CanNot(f"{path} belongs to another user (uid {found.st_uid}). Write the lines yourself, or run this as that user")
    # By its mode, not by what root could do.
    if not found.st_mode & stat.S_IWUSR or not os.access(path.parent, os.W_OK | os.X_OK):
        raise CanNot(f"{path} is read-only. If that is not on purpose: chmod u+w {path}; else write the lines yourself")


def moved(values: dict[str, Any], shown: dict[str, Any]) -> list[str]:
    """What is another value now than the one that was shown, as sentences."""
    return [
        f"{name} was {shown[name]} when it was shown, and is {value} now"
        for name, value in values.items()
        if shown.get(name, value) != value
    ]


def keep_backup(folder: Path, path: Path, content: str) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    backup = folder / f"{path.name}.{stamp}"
    write_atomically(backup, content)
    for old in sorted(folder.glob(f"{path.name}.*"))[:-KEPT_BACKUPS]:
        with contextlib.suppress(OSError):
            old.unlink()
    return str(backup)


def run(module: AnsibleModule) -> dict[str, Any]:
    params = module.params
    # A link stays one: a site may keep its files elsewhere.
    path, memory = Path(os.path.realpath(params["path"])), Path(params["memory"])
    before, digest = read(path)
    if digest != params["was"]:
        raise CanNot(f"{path} changed while this ran. Run it again")
    changed = before != params["content"]
    result: dict[str, Any] = {
        "changed": changed,
        "written": False,
        "backup": "",
        "actions": [f"Write {', '.join(params['values'])} into {params['path']}"] if changed else [],
        "diff": {"before": before, "after": params["content"], "before_header": str(path), "after_header": str(path)},
    }
    if not changed:
        return result
    refuse_others(path)
    shown = (read_json(memory) or {}).get("values") or {}
    other = moved(params["values"], shown if isinstance(shown, dict) else {}) if params["confirmed"] else []
    if not module.check_mode and (other or not params["confirmed"]):
        write_json(memory, {"values": params["values"]})
    if other:
        raise CanNot("; ".join(other) + ". Nothing was written. Look at it, and confirm it by the same command")
    if not params["confirmed"] or module.check_mode:
        return result
    if before:
        result["backup"] = keep_backup(Path(params["backups"]), path, before)
    mode = stat.S_IMODE(path.stat().st_mode) if before or path.exists() else 0o644
    write_atomically(path, params["content"], mode)
    memory.unlink(missing_ok=True)
    return {**result, "written": True}


def main() -> None:
    module = AnsibleModule(OPTIONS, supports_check_mode=True)
    try:
        result = run(module)
    except CanNot as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or module.params['path']}: {error.strerror or error}. Nothing was written")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
