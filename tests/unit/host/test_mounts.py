# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which file system a path is on."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.host.mounts import mount_of, parse_mounts, where

# Lines as proc(5) describes them.
MOUNTS = r"""
/dev/nvme0n1p2 / ext4 rw,relatime 0 0
server:/export/models /mnt/models nfs4 rw,vers=4.2,addr=10.0.0.9 0 0
/dev/nvme1n1 /mnt/models/local\040disk xfs rw 0 0
tmpfs /tmp tmpfs rw 0 0
/dev/sdb1 /tmp ext4 rw 0 0
short line
"""


@pytest.mark.parametrize(
    ("path", "kind", "server"),
    [
        ("/var/lib/sparklanes/models/tiny", "ext4", ""),
        ("/mnt/models/glm", "nfs4", "server:/export/models"),
        ("/mnt/models", "nfs4", "server:/export/models"),
        ("/mnt/models/local disk/glm", "xfs", ""),
        ("/mnt/modelsother", "ext4", ""),
        ("/tmp/x", "ext4", ""),
    ],
)
def test_the_longest_and_last_mount_holds_a_path(path: str, kind: str, server: str) -> None:
    mount = mount_of(path, parse_mounts(MOUNTS))
    assert mount is not None
    assert (mount.kind, mount.server) == (kind, server)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(f"/dev/a / ext4 rw 0 0\nsrv:/x {tmp_path}/nfs nfs rw 0 0\n")
    (tmp_path / "nfs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nfs")
    found = where(str(tmp_path / "link" / "model"), tmp_path)
    assert found is not None
    assert found.shared
    assert where("/x", tmp_path / "none") is None
    assert mount_of("/x", []) is None
