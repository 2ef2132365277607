# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Archives of compiled kernels that another Spark made, and caches that a container fills while root packs them."""

from __future__ import annotations

import ctypes
import io
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.hostile.arena import Arena
from benchmarks.hostile.cases import Case
from benchmarks.hostile.judge import Outcome
from benchmarks.hostile.plays.staging import ended, everywhere

KINDS = {
    "file": tarfile.REGTYPE,
    "link": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "block": tarfile.BLKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "folder": tarfile.DIRTYPE,
    "sparse": tarfile.GNUTYPE_SPARSE,
    "contiguous": tarfile.CONTTYPE,
    "odd": b"V",
}
RENAME_EXCHANGE = 2


def members(words: Mapping[str, Any], arena: Arena) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for one in words.get("members") or []:
        for number in range(int(one.get("times", 1))):
            name = str(one["name"]).format(n=number, outside=arena.outside.folder) * int(one.get("long", 1))
            made = tarfile.TarInfo(name)
            made.type = KINDS[one.get("kind", "file")]
            content = str(one.get("text", "kernel")).encode() if made.type == tarfile.REGTYPE else b""
            made.size, made.mode = int(one.get("size", len(content))), int(str(one.get("mode", "644")), 8)
            made.linkname = str(one.get("to", "")).format(outside=arena.outside.folder)
            made.mtime = float(one.get("mtime", 1))
            made.pax_headers = {str(key): str(value) for key, value in (one.get("pax") or {}).items()}
            yield made, content


def archive(arena: Arena, words: Mapping[str, Any]) -> Path:
    """A tar of these members; `raw`: bytes instead; `cut`: so many bytes less; `packed`: by gzip; `after`: bytes instead of its end."""
    path = arena.root / "kernels.tar"
    if "raw" in words:
        path.write_bytes(str(words["raw"]).encode("latin-1") * int(words.get("times", 1)))
        return path
    mode: Any = "w:gz" if words.get("packed") else "w"
    with tarfile.open(path, mode, format=tarfile.GNU_FORMAT if words.get("gnu") else tarfile.PAX_FORMAT) as made:
        for member, content in members(words, arena):
            made.addfile(member, io.BytesIO(content) if member.type == tarfile.REGTYPE and member.size == len(content) else None)
            if member.type == tarfile.REGTYPE and member.size != len(content):
                made.fileobj.write(content)
    data = path.read_bytes()
    if cut := int(words.get("cut", 0)):
        path.write_bytes(data[:-cut])
    if header := words.get("header"):  # a field of the first header by its place, with the sum made right again
        block = bytearray(data[:512])
        place, text = int(header["at"]), str(header["text"]).encode("latin-1")
        block[place : place + len(text)] = text
        block[148:156] = b" " * 8
        block[148:156] = f"{sum(block):06o}\0 ".encode()
        path.write_bytes(bytes(block) + data[512:])
    return path


def unpack(arena: Arena, case: Case) -> Outcome:
    """A Spark is given an archive."""
    path = archive(arena, case.with_)
    folder = arena.node / "jit" / "image" / "lane"
    for name, to in (case.with_.get("there") or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(str(to).format(outside=arena.outside.folder))
    said = arena.module("jit_cache", {"path": str(folder), "state": "filled", "archive": str(path)})
    outcome = everywhere(arena)
    there = [one for one in sorted((arena.node / "jit").rglob("*")) if not one.is_dir()] if (arena.node / "jit").is_dir() else []
    for one in there:
        mode = one.lstat().st_mode
        if not one.is_file() or one.is_symlink() or mode & 0o7000:
            if one.relative_to(folder).as_posix() not in (case.with_.get("there") or {}):
                outcome.touched.append(f"{one.relative_to(arena.node)} was unpacked as what is no plain file (mode {mode:o})")
        elif not one.is_relative_to(folder):
            outcome.touched.append(f"{one.relative_to(arena.node)} is left beside the cache")
    if said.failed and [one for one in there if one.is_relative_to(folder) and not one.is_symlink()]:
        outcome.wrong_bits.append(f"{len(there)} files of an archive that was refused are kept")
    ended(case, outcome, not said.failed, said)
    return outcome


def exchanged(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    while True:
        libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), RENAME_EXCHANGE)
        time.sleep(0.0003)


def pack(arena: Arena, case: Case) -> Outcome:
    """A container fills its cache with `puts`, and exchanges a folder or file of it with a link to outside while root packs, `rounds` times."""
    words = case.with_
    folder = arena.node / "jit" / "image" / "lane"
    (folder / "z").mkdir(parents=True)
    for number in range(int(words.get("files", 40))):
        (folder / f"a{number:03}.so").write_bytes(b"k" * 2000)
    (folder / "z" / "shadow").write_text("harmless")
    outside = arena.outside.folder
    for what in words.get("puts") or []:
        PUTS[what](folder, outside)
    if what := words.get("swaps"):
        aside = arena.node / "aside"
        mine = folder / "z" if what == "folder" else folder / "z" / "shadow"
        aside.symlink_to(outside if what == "folder" else outside / "shadow")
        arena.adversary(lambda: exchanged(mine, aside))
    outcome = Outcome()
    packed = arena.node / "kernels.tar"
    for _ in range(int(words.get("rounds", 1))):
        said = arena.module("jit_cache", {"path": str(folder), "state": "packed", "archive": str(packed)})
        if packed.exists():
            mode = packed.stat().st_mode & 0o777
            if mode & 0o077:
                outcome.touched.append(f"the archive may be read by everybody (mode {mode:o})")
            outcome.touched += arena.outside.given_away({"the archive": packed.read_bytes()})
            with tarfile.open(packed) as made:
                odd = [one.name for one in made if not one.isreg()]
            if odd:
                outcome.touched.append(f"the archive has what is no plain file: {odd[:3]}")
        if outcome.red:
            break
    outcome.add(everywhere(arena))
    ended(case, outcome, not said.failed, said)
    return outcome


def endless(folder: Path, outside: Path) -> None:
    with (folder / "huge.so").open("wb") as stream:
        stream.truncate(40 << 30)


def many(folder: Path, outside: Path) -> None:
    for number in range(90):
        (folder / f"d{number}").mkdir()
        for one in range(100):
            (folder / f"d{number}" / f"{one}.lock").touch()


def deep(folder: Path, outside: Path) -> None:
    """Deeper than a process may have files open, by steps from within."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(700):
        os.mkdir("d", dir_fd=here)
        inside = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inside
    os.close(os.open("k.so", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


def odd_names(folder: Path, outside: Path) -> None:
    for name in (b"a\nb.so", b"-rf", b"\xff\xfe.so", b"\x1b[2J.so", "a\u202eb.so".encode()):
        (folder / os.fsdecode(name)).write_bytes(b"k")


PUTS = {
    "link": lambda folder, outside: (folder / "l.so").symlink_to(outside / "shadow"),
    "folder link": lambda folder, outside: (folder / "d").symlink_to(outside),
    "hard link": lambda folder, outside: os.link(folder / "a000.so", folder / "h.so"),
    "pipe": lambda folder, outside: os.mkfifo(folder / "p.so"),
    "device": lambda folder, outside: os.mknod(folder / "zero.so", 0o600 | 0o020000, os.makedev(1, 5)),
    "endless": endless,
    "many": many,
    "deep": deep,
    "names": odd_names,
}
PLAYS = {"unpack": unpack, "pack": pack}
