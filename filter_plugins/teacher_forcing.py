# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Filters of teacher forcing: a table of names over module_utils/sparklanes/teacher_forcing*.py.

Banks and records are megabytes, so each may be given as the path of a file on the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml
from ansible.errors import AnsibleFilterError

_OURS = str(Path(__file__).resolve().parents[1] / "module_utils")
if _OURS not in ansible.module_utils.__path__:
    # Ansible's setting module_utils serves modules only; plugins find our package by this.
    ansible.module_utils.__path__.append(_OURS)

from ansible.module_utils.sparklanes import teacher_forcing as gate  # noqa: E402
from ansible.module_utils.sparklanes import teacher_forcing_bank as files  # noqa: E402
from ansible.module_utils.sparklanes.lane_schema import plain  # noqa: E402
from ansible.module_utils.sparklanes.teacher_forcing_run import dump, load  # noqa: E402

Given = str | Mapping[str, Any]


def _read(data: Given, what: str) -> Mapping[str, Any]:
    if isinstance(data, str):
        try:
            data = load(str(data))
        except (OSError, ValueError) as error:
            raise AnsibleFilterError(f"the {what} {data} can't be read: {error}") from error
    if not isinstance(data, Mapping):
        raise AnsibleFilterError(f"the {what} is no object but a {type(data).__name__}")
    return data


def judge(
    bank: Given,
    record: Given,
    limits: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
    host: str = "deployment",
) -> dict[str, Any]:
    """The verdict on a record: verdict (pass, fail, invalid), reason, checks, statistics, report (lines for a person)."""
    try:
        made = gate.judge(_read(bank, "bank"), _read(record, "record"), plain(limits), plain(identity), str(host))
    except (ValueError, KeyError, TypeError) as error:
        raise AnsibleFilterError(f"teacher forcing could not be judged: {type(error).__name__}: {error}") from error
    return {**made.to_dict(), "report": gate.report(made).splitlines()}


def bank(
    records: Sequence[Given], engine: Mapping[str, Any], limits: Mapping[str, Any] | None = None, path: str | None = None
) -> dict[str, Any]:
    """A bank from records of the reference. With `path` it is written there, and what is returned is its noise."""
    try:
        made = files.make_bank([_read(record, "record") for record in records], plain(engine), plain(limits))
        noise = gate.floor_report(made)
    except (ValueError, KeyError) as error:
        raise AnsibleFilterError(f"no bank can be made: {error}") from error
    return {**noise, "path": str(path), "bytes": dump(str(path), made)} if path else {**made, "noise": noise}


def source(folder: str) -> dict[str, Any]:
    """The texts of a corpus: each YAML file of a folder under its name."""
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(Path(str(folder)).glob("*.yml"))}
    if not found:
        raise AnsibleFilterError(
            f"there is no text for a corpus in {folder}: expected text.yml, code.yml, cjk.yml, tools.yml, chat.yml"
        )
    return found


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "teacher_forcing_bank": bank,
            "teacher_forcing_judge": judge,
            "teacher_forcing_source": source,
        }
