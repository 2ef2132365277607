# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether a pid is the process of a job: one that is just being started, one that ended, one whose number somebody else has."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.jobs.state import process_alive

FOLDER = Path("/var/lib/sparklanes/jobs/stage")


def proc(root: Path, cmdline: bytes, stat: str) -> Path:
    (root / "7").mkdir()
    (root / "7/cmdline").write_bytes(cmdline)
    (root / "7/stat").write_text(stat)
    return root


@pytest.mark.parametrize(
    ("cmdline", "stat", "alive"),
    [
        (b"python3\0-m\0/var/lib/sparklanes/jobs/stage\0", "7 (python3) S 1 7 7 0 -1 4194304 0", True),
        (b"", "7 (python3 (x) y) R 1 7 7 0 -1 4194304 0", True),
        (b"", "7 (python3) Z 1 7 7 0 -1 4194304 0", False),
        (b"", "7 (python3) X 1 7 7 0 -1 4194304 0", False),
        (b"", "7 (kworker/0:1) I 2 0 0 0 -1 69238880 0", False),
        (b"", "", False),
        (b"", "7 (python3) R", False),
        (b"sleep\x00100\0", "7 (sleep) S 1 7 7 0 -1 4194304 0", False),
        (b"python3\0/var/lib/sparklanes/jobs/stage2\0", "7 (python3) S 1 7 7 0 -1 4194304 0", False),
    ],
    ids=["runs", "in its execve", "zombie", "dead", "kernel thread", "nothing readable", "half a line", "another", "another job"],
)
def test_a_pid_is_the_job(tmp_path: Path, cmdline: bytes, stat: str, alive: bool) -> None:
    assert process_alive(7, FOLDER, proc(tmp_path, cmdline, stat)) is alive


def test_a_pid_that_is_gone_is_not(tmp_path: Path) -> None:
    assert not process_alive(7, FOLDER, tmp_path)


def test_a_job_that_has_written_its_state_has_words(tmp_path: Path) -> None:
    """Who has its number and hides its own words is somebody else."""
    assert not process_alive(7, FOLDER, proc(tmp_path, b"", "7 (python3) S 1 7 7 0 -1 4194304 0"), starting=False)
