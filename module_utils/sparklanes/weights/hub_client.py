# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The Hub's client as it is installed: the packages that a lock names, by their hashes, in a virtual environment of their own.

It runs as root, so an index that gives another file than the lock names is refused by pip before anything of that file runs. Wheels
alone: a source archive runs a program of its own to be built.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.sparklanes.common.secrets import blanked
from ansible.module_utils.sparklanes.weights.hub import HubError

PACKAGE = "huggingface-hub"
LONGEST = 1 << 20  # characters of a lock: ours has 25,000
HOW = "A lock is what script/lock writes: NAME==VERSION and --hash=sha256:… of each package"
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.+!-]+)(?:\s*;.*)?")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
# Of pip's complaint of a hash the end alone may be left: the hashes that it knew, and the one that it found.
_OTHER_FILE = re.compile(r"DO NOT MATCH THE HASHES|\bGot\s+[0-9a-f]{64}\b")


@dataclass(frozen=True)
class Lock:
    """All packages of the client with the hashes of their files, as pip reads them."""

    text: str
    version: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def name(self) -> str:
        """The folder of its environment: another lock makes another one."""
        return f"hub-{self.version}-{self.digest[:12]}"


def read(text: str) -> Lock:
    """A lock that someone wrote. HubError where pip would take more from it than packages by their hashes."""
    if len(text) > LONGEST:
        raise HubError(f"model_weights_hub_lock has more than {LONGEST:,} characters. {HOW}")
    versions = {}
    for line in _lines(text):
        requirement, *hashes = re.split(r"\s+(?=-)", line)
        if requirement.startswith("-"):
            option = re.split(r"[\s=]", requirement)[0]
            raise HubError(
                f"model_weights_hub_lock holds the option {option}. {HOW}; where they come from is model_weights_pip_args"
            )
        found = _REQUIREMENT.fullmatch(requirement)
        if not found or not hashes or not all(map(_HASH.fullmatch, hashes)):
            raise HubError(f"model_weights_hub_lock: {blanked(requirement[:80])!r} is no version with a hash. {HOW}")
        versions[re.sub(r"[._-]+", "-", found["name"]).lower()] = found["version"]
    if PACKAGE not in versions:
        raise HubError(f"model_weights_hub_lock names no {PACKAGE}. {HOW}")
    return Lock(text, versions[PACKAGE])


def _lines(text: str) -> list[str]:
    """What pip makes of a file: lines that a backslash continues are one, and a comment is never continued."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    bare = (_COMMENT.sub("", line).strip() for line in kept.replace("\\\n", "").split("\n"))
    return [line for line in bare if line]


Run = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str]]


def ensure(venv: Path, lock: Lock, pip_args: Sequence[str], run: Run, python: str) -> bool:
    """Have what the lock names in the virtual environment, and nothing else. True where it was made.

    The marker is written last: an environment whose making was interrupted is made anew. What other locks made goes.
    """
    marker = venv / "sparklanes-ready"
    if marker.is_file() and marker.read_text().strip() == lock.digest and (venv / "bin" / "hf").exists():
        return False
    marker.unlink(missing_ok=True)
    code, output = run([python, "-m", "venv", "--clear", str(venv)], os.environ)
    if code != 0:
        raise HubError(f"{venv}: the virtual environment can't be made (is python3-venv installed?): {output}")
    file = venv / "requirements.lock"
    file.write_text(lock.text)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    # Ours last, so that nothing of a site's undoes them.
    ours = ["--require-hashes", "--no-deps", "--only-binary=:all:", f"--requirement={file}"]
    code, output = run([*pip, "install", "--quiet", *pip_args, *ours], os.environ)
    if code != 0:
        raise HubError(f"{PACKAGE} {lock.version} can't be installed: {blanked(output)}. {_remedy(output)}")
    code, output = run([*pip, "check"], os.environ)
    if code != 0:
        raise HubError(f"model_weights_hub_lock is not whole for the Python of this Spark: {output}. Write it anew: script/lock")
    marker.write_text(lock.digest + "\n")
    for other in venv.parent.glob("hub-*"):
        if other != venv:
            shutil.rmtree(other, ignore_errors=True)
    return True


def _remedy(output: str) -> str:
    if _OTHER_FILE.search(output):
        return (
            "The package index gave another file than the lock names, and nothing of it was run. Find out which index that is and who changed"
            " the file; of an index that builds its own wheels, write a lock (model_weights_hub_lock)"
        )
    return "Give the node a package index that has the versions of the lock (model_weights_pip_args)"
