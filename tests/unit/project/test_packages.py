# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Packages of this machine: the one list, and that installing one starts no server."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT))

from sandbox import packages
from sandbox.layout import Clone
from sandbox.shell import SandboxError

# Of every Debian and Ubuntu (priority required, or there with any Python); docker is what a fake of ours is called.
ALWAYS = {
    "bash",
    "cat",
    "chmod",
    "cp",
    "docker",
    "env",
    "rm",
    "mount",
    "sh",
    "sha256sum",
    "sleep",
    "umount",
    "tail",
    "true",
    "touch",
    "kill",
}
RUNNERS = {"run", "Popen", "check_output", "check_call", "call"}


def programs(path: Path) -> set[str]:
    """First words of the commands, written as lists, that a Python file runs by subprocess."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RUNNERS and node.args:
            first = node.args[0]
            if isinstance(first, ast.List) and first.elts and isinstance(first.elts[0], ast.Constant):
                found.add(str(first.elts[0].value))
    return {name for name in found if "/" not in name}


@pytest.mark.parametrize(
    ("folders", "purpose"), [(("tests/unit", "tests/sanity"), "tests"), (("benchmarks",), "bench")], ids=["tests", "bench"]
)
def test_every_program_that_is_called_is_installed(folders: tuple[str, ...], purpose: str) -> None:
    known = ALWAYS | {what for what, _ in packages.PACKAGES[purpose]} | {"ssh-keygen"}  # openssh-client's
    called = {name for folder in folders for path in (ROOT / folder).rglob("*.py") for name in programs(path)}
    assert "git" in called, "the search finds what is there"
    assert called <= known, f"in no row of sandbox/packages.py: {sorted(called - known)}"


def test_one_program_is_one_package() -> None:
    pairs = {entry for rows in packages.PACKAGES.values() for entry in rows}
    assert len({what for what, _ in pairs}) == len(pairs)
    assert set(packages.SERVERS) <= {package for _, package in pairs}


def test_only_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_there", lambda what: what not in ("rsync", "sshd"))
    assert packages.missing("tests") == ["rsync"]
    assert packages.missing("tests", "bench") == ["rsync", "openssh-server"]


def test_who_may_not_install_is_told_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: "/usr/bin/" + name)
    with pytest.raises(SandboxError, match="sudo apt-get install --no-install-recommends rsync"):
        packages.install(Clone(tmp_path), ["rsync"])
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(SandboxError, match="own package manager"):
        packages.install(Clone(tmp_path), ["rsync"])
    packages.install(Clone(tmp_path), [])


def test_no_server_starts_by_being_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, said = tmp_path / "policy-rc.d", []
    monkeypatch.setattr(shutil, "which", lambda name, path=None: "/bin/" + name)
    monkeypatch.setattr(packages, "attempt", lambda argv, timeout: said.append(argv))
    with packages.without_servers(["openssh-server"], policy):
        assert policy.stat().st_mode & 0o777 == 0o755
        assert "exit 101" in policy.read_text()
    assert not policy.exists()
    assert said == [["systemctl", "disable", "ssh.service", "ssh.socket"]]
    with packages.without_servers(["rsync"], policy):
        assert not policy.exists()
    with pytest.raises(RuntimeError), packages.without_servers(["openssh-server"], policy):
        raise RuntimeError
    assert not policy.exists(), "whatever happens"
    policy.write_text("#!/bin/sh\nexit 0\n")
    with packages.without_servers(["openssh-server"], policy):
        assert policy.read_text() == "#!/bin/sh\nexit 0\n", "the machine's own is left alone"
    assert policy.exists()
