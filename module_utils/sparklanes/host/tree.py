# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Files of a host, reached as root without being led astray.

Each folder on the way is opened from the one before it. A link in it is followed only where nobody but root could have put it
there: else whoever owns the folder chooses which file of the system we read, write or remove.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ansible.module_utils.sparklanes.common.walk import LINKS

# A file of the system that we read whole is a configuration, a table or a program of ours.
LARGEST = 16 * 1024**2


@dataclass(frozen=True)
class Entry:
    """What stands at a path: `kind` is file, link or other; a link has a `target`, a file its content. `mode` is four octal digits."""

    kind: str
    mode: str = ""
    uid: int = 0
    gid: int = 0
    content: bytes = b""
    target: str = ""


class Tree:
    """The files below `root`. Paths are those of the host: absolute, and `..` has no place in them."""

    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)

    def at(self, path: str) -> Path:
        """Where `path` lies, for programs that want a name. What is read or written by us goes the way of `folder`."""
        return self.root / path.lstrip("/")

    @contextlib.contextmanager
    def folder(self, path: str, make: bool = False, follow: bool = False) -> Iterator[tuple[int, str]]:
        """The open folder that holds `path`, and the name in it. FileNotFoundError where there is no such folder.

        `make` makes folders, of mode 0755. With `follow` it is where the link at `path` ends.
        """
        if ".." in PurePosixPath(path).parts or not path.strip("/"):
            raise OSError(errno.EINVAL, "expected an absolute path without ..", path)
        handle, links = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY), 0
        ahead = list(PurePosixPath(path.lstrip("/")).parts)
        try:
            while len(ahead) > 1 or follow:
                name = ahead[0]
                target = self._target(handle, name, path)
                if target is not None:
                    links += 1
                    if links > LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                    ahead[:1] = [part for part in PurePosixPath(target).parts if part != "/"]
                elif len(ahead) == 1:
                    break
                else:
                    ahead.pop(0)
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, 0o755, dir_fd=handle)
                if target is None or target.startswith("/"):
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                    below = os.open(self.root, flags & ~os.O_NOFOLLOW) if target else os.open(name, flags, dir_fd=handle)
                    os.close(handle)
                    handle = below
            yield handle, ahead[0]
        except OSError as error:  # of a component: say the whole path
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(handle)

    def _target(self, handle: int, name: str, path: str) -> str | None:
        """Where the link of this name points; None where it is no link. Refused where others than root may have made it."""
        try:
            target = os.readlink(name, dir_fd=handle)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise
        status = os.fstat(handle)
        if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & 0o022:
            problem = f"{name} is a link in a folder that others than root may write to, so it is not followed. Remove the link"
            raise OSError(errno.EPERM, problem, path)
        return target

    def entry(self, path: str) -> Entry | None:
        """What stands at `path` itself, a link not followed. None where nothing does."""
        try:
            with self.folder(path) as (handle, name):
                status = os.stat(name, dir_fd=handle, follow_symlinks=False)
                about = (f"{stat.S_IMODE(status.st_mode):04o}", status.st_uid, status.st_gid)
                if stat.S_ISLNK(status.st_mode):
                    return Entry("link", *about, target=os.readlink(name, dir_fd=handle))
                if stat.S_ISREG(status.st_mode):
                    return Entry("file", *about, content=_read(handle, name, path))
                return Entry("other", *about)
        except FileNotFoundError:
            return None

    def there(self, path: str) -> bool:
        """Whether anything stands at `path`, a link not followed, without reading it."""
        try:
            with self.folder(path) as (handle, name):
                os.stat(name, dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def read(self, path: str) -> bytes | None:
        """The content of the file at `path`, or at the end of a link that root made. None where there is none."""
        try:
            with self.folder(path, follow=True) as (handle, name):
                return _read(handle, name, path)
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
        """Give `path` this content: aside, fsync, rename. What stood there, a link too, is replaced and not followed."""
        with self.folder(path, make=True) as (folder, name):
            aside = f".{name}.{os.urandom(6).hex()}"
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    if owner is not None:
                        os.fchown(stream.fileno(), *owner)
                    os.fchmod(stream.fileno(), mode)
                    os.fsync(stream.fileno())
                os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(aside, dir_fd=folder)
                raise
            os.fsync(folder)

    def link(self, path: str, target: str) -> None:
        """Put a link where nothing stands."""
        with self.folder(path, make=True) as (folder, name):
            os.symlink(target, name, dir_fd=folder)
            os.fsync(folder)

    def remove(self, path: str) -> None:
        """Remove a file, or a link and not what it points to."""
        with self.folder(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
            os.fsync(folder)


def _read(handle: int, name: str, path: str) -> bytes:
    """A plain file, and of devices only /dev/null, by which people mask a configuration file."""
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    with os.fdopen(opened, "rb") as stream:
        status = os.fstat(stream.fileno())
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3):
            return b""
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no plain file", path)
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, f"is larger than {LARGEST // 1024**2} MiB, which no configuration is", path)
    return content
