# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The user as whom the Hub's client runs: code of others, that holds a token. It gets one folder to write to, and what it leaves there is taken
over by root before anything is done with it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.sparklanes.common.files import remove
from ansible.module_utils.sparklanes.weights.home import READ, below
from ansible.module_utils.sparklanes.weights.model import StagingError
from ansible.module_utils.sparklanes.weights.tools import own_folder

ROOM = "client"  # below the incoming folder


@dataclass(frozen=True)
class ClientUser:
    """`name` empty: whoever we are."""

    name: str
    uid: int
    gid: int

    @classmethod
    def of(cls, name: str) -> ClientUser:
        try:
            found = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
        except KeyError:
            raise StagingError(
                f"there is no user {name}, as whom the Hub's client is to run. Role model_weights makes it; by hand:"
                f" useradd --system --no-create-home --shell /usr/sbin/nologin {name}"
            ) from None
        return cls(name, found.pw_uid, found.pw_gid)

    @property
    def other(self) -> bool:
        """Whether it is somebody else than we are."""
        return self.uid != os.geteuid()

    def command(self, command: Sequence[str]) -> list[str]:
        """The command as that user, with nothing of root's left to it. Ended by the kernel with whoever started it: a new user loses that."""
        if not self.other:
            return list(command)
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise StagingError(
                "setpriv is not installed here (package util-linux), without which the Hub's client would run as root"
            )
        gone = ["--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--pdeathsig=TERM"]
        return [setpriv, f"--reuid={self.uid}", f"--regid={self.gid}", *gone, "--", *command]

    def room(self, incoming: Path) -> Path:
        """Its folder in the incoming folder, which it may pass through and not list. What another user has left there goes."""
        made = incoming / ROOM
        if self.other:
            os.chown(incoming, os.geteuid(), self.gid)
            incoming.chmod(0o710)
        if made.is_symlink() or (made.exists() and made.lstat().st_uid != self.uid):
            remove(made)
        made.mkdir(mode=0o700, exist_ok=True)
        os.chown(made, self.uid, self.gid, follow_symlinks=False)
        return made

    def take_over(self, incoming: Path, name: str) -> Path:
        """The file `name` that the client has left in its room, as ours, where the client can't go. Whoever still writes to it is found later."""
        kept = own_folder(name, incoming)
        kept.mkdir(mode=0o700, exist_ok=True)
        parent, _, last = name.rpartition("/")
        with below(incoming / ROOM, parent) as here:
            try:
                descriptor = os.open(last, READ, dir_fd=here)
            except FileNotFoundError as error:
                raise StagingError(f"nothing came: {incoming / ROOM / name} is not there") from error
            except OSError as error:
                raise StagingError(
                    f"{incoming / ROOM / name} is no file, where one should have come ({error.strerror})"
                ) from error
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != self.uid:
                    raise StagingError(f"{incoming / ROOM / name} is no file of the client's own, where one should have come")
                os.rename(last, kept / "file", src_dir_fd=here)
                mine = (kept / "file").lstat()
                if (mine.st_dev, mine.st_ino) != (found.st_dev, found.st_ino):
                    raise StagingError(f"{incoming / ROOM / name} was exchanged while it was taken")
                os.fchown(descriptor, os.geteuid(), os.getegid())
                os.fchmod(descriptor, 0o600)
            finally:
                os.close(descriptor)
        return kept / "file"

    def sweep(self, incoming: Path) -> None:
        """Remove what a killed client left half: it takes a new random name at each start. No link is followed."""
        room = incoming / ROOM
        for _, _, names, here in os.fwalk(room, follow_symlinks=False) if room.is_dir() and not room.is_symlink() else ():
            for name in names:
                if name.endswith(".incomplete"):
                    os.unlink(name, dir_fd=here)
