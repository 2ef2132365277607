# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A Spark before this one in the chain that lies, and somebody on the fabric who is none: by a real rsync daemon."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.hostile import models
from benchmarks.hostile.arena import SECRET, Arena, free_port
from benchmarks.hostile.cases import Case
from benchmarks.hostile.judge import Outcome
from benchmarks.hostile.plays.staging import asked, ended, everywhere, folder, judged, staged, truth
from benchmarks.hostile.servers import Silent

LEND_SECRET = "L" * 43


class Neighbour:
    """What somebody shows by an rsync daemon: `offers/model.json`, and files below `model/`."""

    def __init__(self, arena: Arena, case: Case) -> None:
        self.arena, self.words = arena, case.with_
        self.root = arena.root / "neighbour"
        for name in ("offers", "model"):
            (self.root / name).mkdir(parents=True)
        self.files = models.good()
        for name, content in self.files.items():
            self.put(name, content)
        if "file" in self.words:
            FILES[self.words["file"]](self, str(self.words["of"]))
        self.offer()
        self.port = free_port()

    def put(self, name: str, content: bytes) -> None:
        path = self.root / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def offer(self) -> None:
        """The offer of a case: `verified` and `manifest` change entries, `work` what it says of itself, `text` all of it, `seal` by whom."""
        words = self.words
        shown = models.Offer(models.manifest(self.files), models.entries(self.files))
        shown.work = {**shown.work, **(words.get("work") or {})}
        for name, change in (words.get("verified") or {}).items():
            shown.verified = {**shown.verified, name: {**shown.verified.get(name, {}), **change}}
        for name, change in (words.get("manifest") or {}).items():
            assert shown.manifest
            entries = shown.manifest["files"]
            name = name.replace("{long}", "a" * 300)
            entries[name] = {key: value for key, value in {**entries.get(name, {}), **change}.items() if value is not None}
        text = str(words["text"]).encode() * int(words.get("times", 1)) if "text" in words else shown.text()
        seal = words.get("seal", "right")
        known = {"right": SECRET, "other": "somebody else's"}.get(seal, SECRET)
        made = models.sealed(text, known) if seal != "none" else text
        if seal == "of another text":
            made = models.sealed(text.replace(b"harmless", b"evil"), SECRET).partition(b"\n")[0] + b"\n" + text + b" "
        path = self.root / "offers" / "model.json"
        kind = words.get("offer", "file")
        if kind == "file":
            path.write_bytes(made)
        elif kind == "link":
            path.symlink_to(self.arena.outside.folder / "passwd")
        elif kind == "folder":
            path.mkdir()
        elif kind == "large":
            with path.open("wb") as stream:
                stream.write(made)
                stream.truncate(200 << 20)

    def serve(self) -> None:
        places = "".join(f"[{name}]\npath={self.root / name}\n" for name in ("offers", "model"))
        conf = self.root / "conf"
        log = self.root / "log"
        conf.write_text(
            f"address=127.0.0.1\nport={self.port}\nuse chroot=no\nread only=yes\nmunge symlinks=no\nlog file={log}\n"
            f"transfer logging=yes\npid file={self.root}/pid\n{places}"
        )
        command = ["rsync", "--daemon", "--no-detach", f"--config={conf}"]
        self.arena.adversary(lambda: os.execvp(command[0], command))
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.02)

    def asked(self) -> bool:
        log = self.root / "log"
        return log.exists() and "rsync on" in log.read_text(errors="replace")


def grown(neighbour: Neighbour, name: str) -> None:
    """Small when it is listed, and of half a gigabyte when it is sent; `between` does it."""


def linked(neighbour: Neighbour, name: str) -> None:
    (neighbour.root / "model" / name).unlink()
    (neighbour.root / "model" / name).symlink_to(neighbour.arena.outside.folder / "shadow")


def made_folder(neighbour: Neighbour, name: str) -> None:
    (neighbour.root / "model" / name).unlink()
    (neighbour.root / "model" / name / "x").mkdir(parents=True)


def made_pipe(neighbour: Neighbour, name: str) -> None:
    (neighbour.root / "model" / name).unlink()
    os.mkfifo(neighbour.root / "model" / name)


FILES: dict[str, Callable[[Neighbour, str], None]] = {
    "evil": lambda here, name: here.put(name, models.evil(here.files[name])),
    "longer": lambda here, name: here.put(name, here.files[name] + b"more"),
    "shorter": lambda here, name: here.put(name, here.files[name][:-1]),
    "other": lambda here, name: here.put(name, here.files[models.CONFIG]),
    "missing": lambda here, name: (here.root / "model" / name).unlink(),
    "grows": grown,
    "link": linked,
    "folder": made_folder,
    "pipe": made_pipe,
}


class Between:
    """Hands bytes on between a taker and a neighbour. `spoil` is called with what comes from the neighbour, before it goes on."""

    def __init__(self, neighbour: Neighbour, spoil: Callable[[bytes], bytes | None]) -> None:
        self.neighbour, self.spoil = neighbour, spoil
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])

    def serve(self) -> None:
        self.neighbour.arena.adversary(self._serve)
        self.listener.close()

    def _serve(self) -> None:
        import threading

        while True:
            taker, _ = self.listener.accept()
            giver = socket.create_connection(("127.0.0.1", self.neighbour.port))
            for a, b, spoils in ((taker, giver, False), (giver, taker, True)):
                threading.Thread(target=self._pump, args=(a, b, spoils), daemon=True).start()

    def _pump(self, a: socket.socket, b: socket.socket, spoils: bool) -> None:
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                passed = self.spoil(data) if spoils else data
                if passed is None:
                    time.sleep(3600)
                b.sendall(passed or b"")
        for one in (a, b):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def grows(neighbour: Neighbour) -> Callable[[bytes], bytes]:
    """Once the list of files is under way, the file is another one."""
    target = neighbour.root / "model" / neighbour.words["of"]

    def spoil(data: bytes) -> bytes:
        if (
            target.name.encode() in data and target.stat().st_size < 1 << 20 and b"verified" not in data
        ):  # not the offer, which has the name too
            neighbour.arena.note(at="between", grown=target.name)
            with target.open("r+b") as stream:
                stream.truncate(512 << 20)
        return data

    return spoil


def silent(neighbour: Neighbour) -> Callable[[bytes], bytes | None]:
    """After some of the shard it says nothing more, and closes nothing."""
    content = neighbour.files[models.SHARD]

    def spoil(data: bytes) -> bytes | None:
        if content[2000:2040] in data or (len(data) > 20_000 and content[40_000:40_040] in data):
            neighbour.arena.note(at="between", silent=True)
            return None
        return data

    return spoil


SPOILS: dict[str, Callable[[Neighbour], Callable[[bytes], bytes | None]]] = {"grows": grows, "silent": silent}


def chain(arena: Arena, case: Case) -> Outcome:
    """`pins`: the lane's own hash of the shard; `between`: somebody hands the bytes on; `second`: an honest Spark stands behind the liar."""
    neighbour = Neighbour(arena, case)
    neighbour.serve()
    port = neighbour.port
    if name := case.with_.get("between"):
        between = Between(neighbour, SPOILS[name](neighbour))
        between.serve()
        port = between.port
    peers = [{"name": "spark-1", "url": f"rsync://{models.user_of(SECRET)}@127.0.0.1:{port}"}]
    if case.with_.get("second"):
        honest = arena.root / "honest"
        honest.mkdir()
        other = Neighbour(HonestArena(arena, honest), Case("neighbour", "honest", "", "chain"))
        other.serve()
        peers.append({"name": "spark-0", "url": f"rsync://{models.user_of(SECRET)}@127.0.0.1:{other.port}"})
    pins = {models.SHARD: truth(neighbour.files)[models.SHARD]} if case.with_.get("pins") else {}
    said = arena.stage(
        asked(arena, sha256=pins),
        source="chain",
        chain={"peers": peers, "secret": SECRET, "patience": float(case.with_.get("patience", 2))},
        seconds=float(case.with_.get("seconds", 60)),
    )
    attacked = neighbour.asked() and (not name or any(one["at"] == "between" for one in arena.noted()))
    return judged(arena, case, said, neighbour.files, attacked)


class HonestArena(Arena):
    """The arena of a case, with another folder for another neighbour."""

    def __init__(self, arena: Arena, root: Path) -> None:
        self.__dict__.update(arena.__dict__)
        self.root = root
        (root / "said").mkdir()


def half_open(arena: Arena, case: Case) -> Outcome:
    """The one before holds each connection and says `greeting` and no more."""
    port = Silent(arena, str(case.with_.get("greeting", "")).encode()).serve()
    peers = [{"name": "spark-1", "url": f"rsync://{models.user_of(SECRET)}@127.0.0.1:{port}"}]
    said = arena.stage(asked(arena), source="chain", chain={"peers": peers, "secret": SECRET, "patience": 1}, seconds=60)
    return judged(arena, case, said, models.good(), bool(arena.noted()))


def lay_out(arena: Arena) -> dict[str, bytes]:
    """A model that stands complete on this Spark, found so by the product itself."""
    files = models.good()
    for name, content in files.items():
        folder(arena).mkdir(parents=True, exist_ok=True)
        (folder(arena) / name).write_bytes(content)
    said = arena.stage(asked(arena), source="directory")
    assert staged(said), said
    return files


def rsync(port: int, user: str, secret: str, *words: str) -> tuple[int, bytes]:
    command = [word.format(at=f"rsync://{user}@127.0.0.1:{port}") for word in words]
    done = subprocess.run(
        ["rsync", "--timeout=5", "--contimeout=5", *command],
        env={**os.environ, "RSYNC_PASSWORD": secret},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def lender(arena: Arena, case: Case) -> Outcome:
    """This Spark lends, and strangers knock: `tries` of rsync without the secret; `hold` connections that say nothing; `raw` bytes; `idle`."""
    words = case.with_
    files = lay_out(arena)
    user = models.user_of(LEND_SECRET)
    if words.get("link"):
        (folder(arena) / "more.txt").symlink_to(arena.outside.folder / "shadow")
    args = {
        "models": [{key: value for key, value in asked(arena).items() if key != "sha256"}],
        "address": ["127.0.0.1"],
        "port": free_port(),
        "allow": words.get("allow", ["127.0.0.0/8"]),
        "secret": LEND_SECRET,
        "idle_seconds": int(words.get("idle", 600)),
        **arena.places("staged", "jobs"),
    }
    said = arena.module("model_lend", args)
    outcome = Outcome()
    got = arena.root / "got"
    got.mkdir()
    for number, one in enumerate(words.get("tries") or []):
        out = got / str(number)
        out.mkdir()
        name = user if one.get("user", "right") == "right" else one["user"]
        secret = LEND_SECRET if one.get("secret") == "right" else str(one.get("secret", ""))
        call = [
            str(word).replace("{out}", str(out)).replace("{passwd}", str(arena.outside.folder / "passwd"))
            for word in one["words"]
        ]
        code, text = rsync(args["port"], name, secret, *call)
        arena.note(at="stranger", code=code)
        outcome.touched += arena.outside.given_away({f"what rsync {' '.join(call)} printed": text})
        came = [path for path in out.rglob("*") if path.is_file()]
        if came and not one.get("may"):
            outcome.touched.append(f"a stranger got {', '.join(path.name for path in came)} by rsync {' '.join(call)}")
        outcome.touched += arena.outside.given_away({str(path): path.read_bytes() for path in came})
    with contextlib.ExitStack() as held:
        for _ in range(int(words.get("hold", 0))):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_connection(("127.0.0.1", args["port"]), timeout=2)).sendall(
                    str(words.get("raw", "")).encode("latin-1")
                )
            arena.note(at="stranger")
        if words.get("idle"):
            idle(arena, args, outcome)
        elif not said.failed:
            code, text = rsync(args["port"], user, LEND_SECRET, "-r", "{at}/model/", str(got / "mine"))
            mine = {path.name: path.read_bytes() for path in (got / "mine").rglob("*") if path.is_file()}
            if code or truth(mine) != truth(files):
                outcome.unexpected.append(f"who has the secret got {sorted(mine)} (rsync status {code}): {text[-200:]!r}")
    kept = arena.module("model_lend", {"state": "kept", "models": [], **arena.places("jobs")})
    outcome.add(everywhere(arena))
    ended(case, outcome, not said.failed and not kept.failed, said)
    log = arena.node / "jobs/lend/rsync.log"
    if log.exists() and log.stat().st_size > 4 << 20:
        outcome.without_end.append(f"rsync.log has {log.stat().st_size >> 20} MiB")
    if not arena.noted():
        outcome.unexpected.append("the attack was not made")
    return outcome


def idle(arena: Arena, args: dict[str, Any], outcome: Outcome) -> None:
    """A stranger who knocks does not keep the lender up past its idle end."""
    limit = time.monotonic() + 3 * args["idle_seconds"] + 4
    while time.monotonic() < limit:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", args["port"]), timeout=1) as one:
            one.sendall(b"@RSYNCD: 31.0\nmodel\nnobody x\n")
        arena.note(at="stranger")
        state = json.loads((arena.node / "jobs/lend/state.json").read_bytes())
        if state.get("finished"):
            return
        time.sleep(0.4)
    outcome.without_end.append(f"it lends on, {3 * args['idle_seconds'] + 4} s after anybody who may asked, as strangers knock")


PLAYS = {"chain": chain, "half_open": half_open, "lender": lender}
