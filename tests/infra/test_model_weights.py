# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The sandbox's model on every node: verified by other means than our own, and nothing of staging left running."""

from __future__ import annotations

import json
from typing import Any

MODEL = "/var/lib/sparklanes/models/tiny"


def marker(host: Any) -> dict[str, Any]:
    found = host.run("cat /var/lib/sparklanes/staged/tiny-*/STAGED.json")
    assert found.rc == 0, "the model has no marker"
    data: dict[str, Any] = json.loads(found.stdout)
    return data


def test_every_file_is_what_its_record_says(host: Any) -> None:
    files = marker(host)["files"]
    assert len(files) > 4
    sums = "".join(f"{record['sha256']}  {MODEL}/{name}\n" for name, record in files.items())
    checked = host.run("printf '%%s' %s | sha256sum --check --strict --quiet", sums)
    assert checked.rc == 0, checked.stdout + checked.stderr


def test_nothing_but_the_model_lies_in_its_folder(host: Any) -> None:
    found = host.run(f"cd {MODEL} && find . -type f -printf '%P\\n'").stdout.split()
    assert sorted(found) == sorted(marker(host)["files"])
    assert host.run("ls -d /var/lib/sparklanes/models/.*.incoming").rc != 0, "files under way were left"


def test_lending_has_ended(host: Any) -> None:
    assert not host.service("sparklanes-job-lend").is_running
    assert not host.file("/run/sparklanes-lend").exists
    assert host.run("ss -Hltn 'sport = :18730'").stdout == ""


def test_jobs_and_their_logs_are_roots_own(host: Any) -> None:
    folder = host.file("/var/lib/sparklanes/jobs/stage")
    assert (folder.user, folder.mode) == ("root", 0o700)
    assert not host.file("/var/lib/sparklanes/jobs/stage/secrets").exists
