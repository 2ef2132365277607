# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Each file that a lane mounts lies on each node under its hash, read-only."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

ROOT = "/var/lib/sparklanes/overlays"


def test_files_of_the_lane_are_there(host: Any) -> None:
    found = host.ansible.get_variables()
    files = [*(found.get("lane_overlays") or []), *(found.get("lane_extras") or [])]
    assert files, "the sandbox's lane has an extra"
    for item in files:
        staged = host.file(f"{ROOT}/{item['sha256']}/{PurePosixPath(item['source']).name}")
        assert staged.sha256sum == item["sha256"]


def test_each_file_is_what_its_folder_says_and_nobody_may_write_it(host: Any) -> None:
    lines = host.check_output(f"find {ROOT} -mindepth 2 -type f -not -path '{ROOT}/images/*' -exec sha256sum {{}} +").splitlines()
    assert lines
    for line in lines:
        found, path = line.split(maxsplit=1)
        assert PurePosixPath(path).parent.name == found
        assert host.file(path).mode == 0o444
    assert host.run(f"ls {ROOT}/.incoming.tar").rc != 0, "the archive is gone once its files are laid down"
