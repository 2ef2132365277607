# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The Hub's client: what a lock may say, and what is installed of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.weights import hub_client
from ansible.module_utils.sparklanes.weights.hub import HubError
from conftest import ROOT

OURS = ROOT / "roles/model_weights/files/hub.lock"
HASH = "--hash=sha256:" + "0" * 64
CLICK = f"click==8.5.1 {HASH}\n"
HUB = f"huggingface_hub==2.4.0 ; python_full_version >= '3.10' \\\n    {HASH} \\\n    {HASH}\n    # via -r x\n"


class Shell:
    """Stands in for python -m venv and pip, which unit tests don't run: they need a package index."""

    def __init__(self, fails: str = "", says: str = "no network") -> None:
        self.commands: list[str] = []
        self.fails, self.says = fails, says

    def __call__(self, command: Sequence[str], env: object) -> tuple[int, str]:
        text = " ".join(command)
        self.commands.append(text)
        if " -m venv" in text:
            hf = Path(text.split()[-1]) / "bin" / "hf"
            hf.parent.mkdir(parents=True, exist_ok=True)
            hf.touch()
        return (1, self.says) if self.fails and self.fails in text else (0, "")


def ensure(root: Path, shell: Shell, text: str = HUB, pip_args: Sequence[str] = ()) -> bool:
    lock = hub_client.read(text)
    return hub_client.ensure(root / lock.name, lock, pip_args, shell, "python3")


def test_our_lock_is_whole() -> None:
    text = OURS.read_text(encoding="utf-8")
    wanted = OURS.with_suffix(".in").read_text(encoding="utf-8").splitlines()[-1]
    assert hub_client.read(text).version == wanted.removeprefix("huggingface-hub==")
    assert "://" not in text, "where packages come from is a site's"
    assert "sha256:" in text
    assert not re.search(r"--hash=(?!sha256:)", text)


def test_what_a_lock_says_is_its_version_and_its_name() -> None:
    lock = hub_client.read(CLICK + HUB)
    assert (lock.version, lock.text) == ("2.4.0", CLICK + HUB)
    assert re.fullmatch(r"hub-2\.4\.0-[0-9a-f]{12}", lock.name)
    assert hub_client.read(HUB + CLICK).name != lock.name, "another lock, another environment"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no huggingface-hub"),
        (CLICK, "names no huggingface-hub"),
        (HUB + "click==8.5.1\n", "'click==8.5.1' is no version with a hash"),
        (HUB + f"click>=8 {HASH}\n", "is no version with a hash"),
        (HUB + "click==8.5.1 --hash=md5:" + "0" * 32 + "\n", "is no version with a hash"),
        (HUB + f"click @ http://u:geheim@h/click.whl {HASH}\n", "is no version with a hash"),
        (HUB + f"click==8.5.1 {HASH} --config-settings=x=y\n", "is no version with a hash"),
        ("--index-url=https://u:geheim@index\n" + HUB, "holds the option --index-url. "),
        ("-r other.txt\n" + HUB, "holds the option -r. "),
        ("--extra-index-url https://u:geheim@index\n" + HUB, "holds the option --extra-index-url. "),
        ("-e git+https://host/hub\n" + HUB, "holds the option -e. "),
        ("# a comment is not continued \\\n--index-url=https://index\n" + HUB, "holds the option --index-url. "),
        (HUB + f"click==8.5.1 ; python_version > '3' --no-binary=click {HASH}\n", "is no version with a hash"),
        (HUB + "#" * hub_client.LONGEST, "more than 1,048,576 characters"),
    ],
)
def test_a_lock_holds_packages_by_their_hashes_and_nothing_else(text: str, words: str) -> None:
    with pytest.raises(HubError, match=re.escape(words)) as refused:
        hub_client.read(text)
    assert "script/lock" in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_the_client_is_installed_once_by_its_hashes_alone(tmp_path: Path) -> None:
    shell = Shell()
    venv = tmp_path / hub_client.read(HUB).name
    assert ensure(tmp_path, shell, pip_args=["--index-url=http://i", "--no-binary=:all:"])
    made, installed, checked = shell.commands
    assert made == f"python3 -m venv --clear {venv}"
    ours = f" --require-hashes --no-deps --only-binary=:all: --requirement={venv}/requirements.lock"
    assert installed.endswith("--index-url=http://i --no-binary=:all:" + ours), "ours last: they win"
    assert (venv / "requirements.lock").read_text() == HUB
    assert checked.endswith("pip --disable-pip-version-check check")
    assert not ensure(tmp_path, shell)
    assert len(shell.commands) == 3


def test_another_lock_makes_another_environment_and_the_old_one_goes(tmp_path: Path) -> None:
    (tmp_path / "hub-2.4.0").mkdir()  # as versions before 0.3 made it, without hashes
    assert ensure(tmp_path, Shell())
    assert ensure(tmp_path, Shell(), HUB + CLICK)
    assert [path.name for path in tmp_path.iterdir()] == [hub_client.read(HUB + CLICK).name]


@pytest.mark.parametrize(
    ("fails", "says", "words"),
    [
        ("-m venv", "no ensurepip", "can't be made (is python3-venv installed?): no ensurepip"),
        ("pip --disable-pip-version-check install", "no network", "2.4.0 can't be installed: no network. Give the node a package index"),
        ("install", f"Expected or {'a' * 64} | Got        {'b' * 64}", "The package index gave another file than the lock names"),
        ("pip --disable-pip-version-check check", "hub 2.4.0 requires click", "is not whole for the Python of this Spark: hub 2.4.0 requires click"),
    ],
)  # fmt: skip
def test_a_client_that_was_not_installed_is_not_taken_for_one(tmp_path: Path, fails: str, says: str, words: str) -> None:
    with pytest.raises(HubError, match=re.escape(words)):
        ensure(tmp_path, Shell(fails, says))
    assert ensure(tmp_path, Shell())
