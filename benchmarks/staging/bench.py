#!/usr/bin/env python3
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What staging costs, and how that compares to a plain read.

    script/bench staging [--folder DIR] [--repeat 3] [--only chain] [--shards 96] [--no-peers]

`quick`  a look at a checkpoint of 282 shards and 177,569 tensors. The shards are sparse files with real headers, so
         the disk's share is missing; CPU seconds and the page cache are real.
`hash`   256 MiB read and hashed. `left` is what remains of the file in the page cache (mincore), beside what a
         plain read leaves.
`scale`  two files hashed at once by threads, as staging does, beside two processes of `openssl dgst` on the same files.
`arrive` a file copied by rsync, and the same hashed at rest afterwards, as staging does; both on disk at the end.
`chain`  four nodes on loopback; the Hub's uplink carries 4 MiB/s, what a node lends 8 MiB/s: as a chain, beside one node alone.
         How much later the next node has a file, and what is left in the page cache. Over the same links the real programs: one
         `hf download` handed on by `rsync -a` over ssh to all others at once, and `hf download` on each node.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import mmap
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.sparklanes.weights import folder as weights_folder  # noqa: E402
from ansible.module_utils.sparklanes.weights import model as weights_model  # noqa: E402
from ansible.module_utils.sparklanes.weights import standing as weights_standing  # noqa: E402
from ansible.module_utils.sparklanes.weights.digest import Arrival, digest  # noqa: E402
from ansible.module_utils.sparklanes.weights.pace import Pace  # noqa: E402

from benchmarks.figures import Figure, emit  # noqa: E402
from benchmarks.staging import chain, peers  # noqa: E402

SHARDS, TENSORS, MIB = 282, 177_569, 1 << 20
AIM_QUICK_CPU_SECONDS, AIM_LEFT_MIB = 1, 16
AIM_FOUR, AIM_ARRIVE_CPU_SECONDS, AIM_SUMS, AIM_ALL_LEFT_MIB = 1.15, 0.4, 1.11, 256  # 1.11: at least 0.9 of openssl's rate
libc = ctypes.CDLL("libc.so.6", use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def resident(path: Path) -> float:
    """MiB of a file in the page cache."""
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap", str(path))
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        found = libc.mincore(address, size, pages)
        libc.munmap(address, size)
    finally:
        os.close(descriptor)
    if found != 0:
        raise OSError(ctypes.get_errno(), "mincore", str(path))
    return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE / MIB


def forget(paths: Iterable[Path]) -> None:
    """Drop files from the page cache, once they are on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def timed(work: Callable[[], Any], repeat: int, before: Callable[[], Any] = lambda: None) -> dict[str, float]:
    """Median wall and CPU seconds (children included)."""
    walls, cpus = [], []
    for _ in range(repeat):
        before()
        wall, cpu = time.perf_counter(), sum(os.times()[:4])
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(sum(os.times()[:4]) - cpu)
    return {"wall_s": round(statistics.median(walls), 3), "cpu_s": round(statistics.median(cpus), 3)}


def say(name: str, value: float, unit: str, aim: float | None = None) -> bool:
    return emit(Figure(f"staging.{name}", value, unit, aim, f"load {os.getloadavg()[0]:.1f}"))


def sparse_checkpoint(folder: Path) -> None:
    """Packed weights, scales and shapes under names as long as those of a large mixture of experts."""
    mapped: dict[str, str] = {}
    total = made = 0
    for number in range(SHARDS):
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for k in range(TENSORS * (number + 1) // SHARDS - made):
            kind, dtype, shape, size = (
                ("weight_packed", "I32", [2048, 768], 2048 * 768 * 4),
                ("weight_scale", "BF16", [2048, 48], 2048 * 48 * 2),
                ("weight_shape", "I64", [2], 16),
            )[k % 3]
            name = f"model.layers.{number % 79}.mlp.experts.{number}.{k}_proj.{kind}"
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            mapped[name] = file
            at += size
        made, total = TENSORS * (number + 1) // SHARDS, total + at
        text = json.dumps(header, separators=(",", ":")).encode()
        with (folder / file).open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            stream.truncate(8 + len(text) + at)
    index = {"metadata": {"total_size": total}, "weight_map": mapped}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def quick(root: Path, repeat: int) -> bool:
    folder = root / "checkpoint"
    folder.mkdir()
    sparse_checkpoint(folder)
    expect = {"shards": SHARDS, "tensors": TENSORS}
    model = weights_model.Model.from_dict({"name": "model", "path": str(folder), "expect": expect})
    # The scales of sparse files are zeros: they are looked at in the measured runs, and not judged before.
    blind = weights_model.Model.from_dict({"name": "model", "path": str(folder), "expect": {**expect, "scale_samples": 0}})
    store = weights_folder.ModelStore(root / "staged", str(folder))
    # The marker as staging leaves it; the digests themselves play no part in a look.
    records = {
        name: weights_model.Record(seen.size, seen.mtime_ns, "0" * 64) for name, seen in weights_folder.look(folder).items()
    }
    manifest = weights_model.Manifest("", "", {name: weights_model.Content(record.size) for name, record in records.items()})
    store.save_manifest(manifest)
    store.save(manifest, records, complete=True)
    shards = sorted(folder.glob("*.safetensors"))
    found = weights_standing.standing(blind, "here", store)
    if not found.staged:
        raise SystemExit(f"the checkpoint made here is not accepted: {found.checks}")
    numbers = timed(lambda: weights_standing.standing(model, "here", store), repeat, lambda: forget(shards))
    left = sum(resident(path) for path in shards)
    shutil.rmtree(folder)
    say("quick.wall", numbers["wall_s"], "s")
    good = say("quick.cpu", numbers["cpu_s"], "s", AIM_QUICK_CPU_SECONDS)
    return good & say("quick.left", round(left, 2), "MiB", AIM_LEFT_MIB)


def plain_read(path: Path) -> None:
    sha256 = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(4 * MIB):
            sha256.update(block)


def staged_read(path: Path) -> None:
    digest(path.parent, path.name, False, Pace(0, threading.Event()), lambda count: None)


def both(start: Callable[..., Any], files: list[Path]) -> None:
    workers = [start(target=staged_read, args=(path,)) for path in files]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def hashing(root: Path, repeat: int) -> bool:
    files = [root / "a.bin", root / "b.bin"]
    for path in files:
        with path.open("wb") as stream:
            for _ in range(64):
                stream.write(os.urandom(4 * MIB))
    size = files[0].stat().st_size

    def rate(seconds: float, count: int = 1) -> float:
        return round(count * size / seconds / 1e9, 2)

    def clean() -> None:
        forget(files)

    plain = timed(lambda: plain_read(files[0]), repeat, clean)
    plain_left = resident(files[0])
    ours = timed(lambda: staged_read(files[0]), repeat, clean)
    left = resident(files[0])
    say("hash.rate", rate(ours["wall_s"]), "GB/s")
    say("hash.plain_rate", rate(plain["wall_s"]), "GB/s")
    say("hash.wall_ratio", round(ours["wall_s"] / plain["wall_s"], 2), "of a plain read")
    say("hash.cpu_ratio", round(ours["cpu_s"] / plain["cpu_s"], 2), "of a plain read")
    say("hash.plain_left", round(plain_left, 2), "MiB")
    good = say("hash.left", round(left, 2), "MiB", AIM_LEFT_MIB)
    threads = timed(lambda: both(threading.Thread, files), repeat, clean)
    programs = timed(lambda: openssl(files), repeat, clean)
    say("scale.two_threads", rate(threads["wall_s"], 2), "GB/s")
    say("scale.wall_ratio", round(threads["wall_s"] / programs["wall_s"], 2), "of the time of openssl")
    ratio = round(threads["cpu_s"] / programs["cpu_s"], 2)
    good &= say("scale.cpu_ratio", ratio, "of the CPU time of openssl", AIM_SUMS)
    return good


def openssl(files: list[Path]) -> None:
    running = [subprocess.Popen(["openssl", "dgst", "-sha256", str(path)], stdout=subprocess.DEVNULL) for path in files]
    if any(program.wait() for program in running):
        raise SystemExit("openssl failed")


def arriving(root: Path, repeat: int) -> bool:
    """What verification costs beside copying alone. In a job others arrive while one is hashed, so it is CPU that counts."""
    source, target = root / "a.bin", root / "arrived" / "a.bin"
    target.parent.mkdir()

    def clean() -> None:
        target.unlink(missing_ok=True)
        forget([source])

    def copy() -> None:
        subprocess.run(["rsync", str(source), str(target)], check=True)

    def alone() -> None:
        copy()
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def verified() -> None:
        copy()
        with Arrival(target) as arrival:
            arrival.digest(False, Pace(0, threading.Event()), lambda count: None)

    plain, ours = timed(alone, repeat, clean), timed(verified, repeat, clean)
    say("arrive.copy", plain["wall_s"], "s")
    say("arrive.left", round(resident(target), 2), "MiB")
    say("arrive.ratio", round(ours["wall_s"] / plain["wall_s"], 2), "of copying alone")
    return say("arrive.cpu", round(ours["cpu_s"] - plain["cpu_s"], 2), "CPU-s more, for 256 MiB", AIM_ARRIVE_CPU_SECONDS)


def chained(root: Path, shards: int, alone: bool) -> bool:
    source = root / "mirror" / "a" / "b"
    chain.publish(source, shards)
    hub = [sys.executable, str(ROOT / "sandbox" / "hub.py"), "--root", str(root / "mirror")]
    revision = subprocess.run([*hub, "--print-revision", peers.REPO], check=True, capture_output=True, text=True).stdout.strip()
    server = subprocess.Popen(
        [*hub, "--port", "0", "--uplink-mib", str(chain.UPLINK / MIB)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        mirror = f"{endpoint}/a/b/resolve/main"
        one = chain.run(root / "one", mirror, 1)
        four = chain.run(root / "four", mirror, chain.NODES)
        folders = [Path(node.model["path"]) for node in four.nodes]
        left = sum(resident(path) for folder in folders for path in folder.glob("*.safetensors"))
        if not chain.same(source, folders):
            raise SystemExit("a node has other bytes than the mirror")
        say("chain.one_node", round(one.seconds, 1), f"s for {shards} MiB")
        good = say("chain.four_nodes", round(four.seconds / one.seconds, 2), "of one node's time", AIM_FOUR)
        say("chain.hop", round(four.hop, 2), "s later a hop, the last file")
        say("chain.file_hop", round(four.file_hop, 2), "s later a hop, a file in the middle")
        good &= say("chain.left", round(left, 2), "MiB of four nodes", AIM_ALL_LEFT_MIB)
        return good if alone else good & compared(root, endpoint, revision, source, one.seconds)
    finally:
        server.terminate()
        server.wait()


def compared(root: Path, endpoint: str, revision: str, source: Path, one: float) -> bool:
    """The programs that people use, over the same links."""
    good = True
    for name, way in (("star_rsync_ssh", peers.star), ("each_hf_download", peers.each_downloads)):
        try:
            seconds, folders = way(root, peers.Client.make(endpoint, revision))
            if not chain.same(source, folders):
                raise peers.Missing("it ended well, and a node has other bytes than the Hub")
            good &= say(f"chain.{name}", round(seconds / one, 2), "of one node's time")
        except peers.Missing as why:
            good &= emit(Figure(f"staging.chain.{name}", None, "of one node's time", None, str(why)))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="a disk with 1 GiB free; the system's temporary folder by default")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=["chain"], help="this part only")
    parser.add_argument("--shards", type=int, default=96, help="files of 1 MiB that go through the chain")
    parser.add_argument("--no-peers", action="store_true", help="the chain without what it is compared with")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="sparklanes-bench-") as name:
        good = True
        if not options.only:
            good &= quick(Path(name), options.repeat)
            good &= hashing(Path(name), options.repeat)
            good &= arriving(Path(name), options.repeat)
        good &= chained(Path(name), options.shards, options.no_peers)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
