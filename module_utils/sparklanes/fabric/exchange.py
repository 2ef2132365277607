# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Bytes to and fro over TCP between all ranks, on each rail: what a ping and an old connection do not show.

A firewall may drop TCP and let pings pass, and a connection stays "established" while nothing gets through. Each Spark listens on its
address of each rail, connects to every other one there, sends a word and must have it back. Only an equal answer counts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, Check

Facts = Mapping[str, Any]

PORT = 18731  # beside that of staging (18730); NCCL takes any port of a fabric, so a firewall that stops this one stops NCCL too
WORD = 4096  # bytes that go to and fro: more than one segment at an MTU of 1500
SECONDS = 3.0  # for one word there and back: a lost SYN is sent again after 1 s and 3 s
MOST_AT_ONCE = 64  # who asks at one moment; each rank asks once a rail. Whoever comes on top, a stranger too, is turned away
WAIT_SECONDS = 10.0  # modules of one task begin within a few seconds of each other


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Echo:
    """Listens on addresses of this Spark and sends back what comes in, until `close`. `errors`: address → why nobody listens there."""

    def __init__(self, addresses: Sequence[str], port: int = PORT) -> None:
        self.errors: dict[str, str] = {}
        self.met: set[tuple[str, str]] = set()
        self._sockets: list[socket.socket] = []
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        for address in dict.fromkeys(addresses):
            try:
                listener = socket.create_server((address, port), family=_family(address), backlog=64)
            except (OSError, OverflowError) as error:
                self.errors[address] = str(error)
                continue
            self._sockets.append(listener)
            threading.Thread(target=self._accept, args=(listener, address), daemon=True).start()

    def _accept(self, listener: socket.socket, address: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, name = listener.accept()
                if not self._free.acquire(blocking=False):
                    peer.close()
                    continue
                threading.Thread(target=self._answer, args=(peer, address, str(name[0])), daemon=True).start()

    def _answer(self, peer: socket.socket, address: str, whose: str) -> None:
        try:
            with contextlib.suppress(OSError), peer:
                peer.sendall(_read(peer, SECONDS))
                self.met.add((address, whose))
        finally:
            self._free.release()

    def close(self) -> None:
        for listener in self._sockets:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()


def _read(peer: socket.socket, seconds: float) -> bytes:
    """A word, or what came of it before the other end closed. TimeoutError where that takes longer, however much comes meanwhile."""
    data, end = bytearray(), time.monotonic() + seconds
    while len(data) < WORD:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        peer.settimeout(left)
        chunk = peer.recv(WORD - len(data))
        if not chunk:
            break
        data += chunk
    return bytes(data)


def ask(probe: Facts, seconds: float = SECONDS, port: int = PORT) -> dict[str, Any]:
    """One word there and back: {outcome, error}. Outcome: answered, refused (nobody listens), silent (nothing came), failed."""
    word = os.urandom(WORD)
    source = str(probe.get("source") or "")
    try:
        with socket.socket(_family(str(probe["address"])), socket.SOCK_STREAM) as line:
            line.settimeout(seconds)
            if probe.get("ifname"):
                # Two rails in one subnet: by its address alone a packet may leave on the other one.
                with contextlib.suppress(OSError):
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, str(probe["ifname"]).encode())
            if source:
                line.bind((source, 0))
            line.connect((str(probe["address"]), port))
            line.sendall(word)
            back = _read(line, seconds)
    except ConnectionRefusedError as error:
        return {"outcome": "refused", "error": str(error)}
    except TimeoutError:
        return {"outcome": "silent", "error": f"nothing came back within {seconds:g} s"}
    except (OSError, OverflowError) as error:
        return {"outcome": "failed", "error": str(error)}
    if back != word:
        return {
            "outcome": "failed",
            "error": f"{len(back)} of {WORD} bytes came back" if len(back) < WORD else "other bytes came back",
        }
    return {"outcome": "answered", "error": ""}


def exchange(
    probes: Sequence[Facts], port: int = PORT, wait: float = WAIT_SECONDS, seconds: float = SECONDS
) -> list[dict[str, Any]]:
    """Every word of `probes` ({peer, rail, ifname, source, address}) at once, each again while the other end does not listen yet.

    Blocks until all are answered and the peers had the time for theirs, or until `wait` is over.
    """
    echo = Echo([str(probe["source"]) for probe in probes if probe.get("source")], port)
    end = time.monotonic() + wait
    found: list[dict[str, Any]] = [{} for _ in probes]

    def one(index: int) -> None:
        tries = 0
        while True:
            found[index] = ask(probes[index], seconds, port)
            tries += found[index]["outcome"] != "refused"
            # One word that is lost is no cut way.
            if found[index]["outcome"] == "answered" or tries > 1 or time.monotonic() + 0.2 > end:
                return
            time.sleep(0.2)

    try:
        threads = [threading.Thread(target=one, args=(index,), daemon=True) for index in range(len(probes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()) + 2 * seconds + 1)
        # Whoever this Spark reached may not have asked yet.
        sources = {str(probe.get("source") or "") for probe in probes} - {""} - set(echo.errors)
        wanted = {(str(probe["source"]), str(probe["address"])) for probe in probes if probe.get("source") in sources}
        while not wanted <= echo.met and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        echo.close()
    return [
        {
            "peer": probe["peer"],
            "rail": probe["rail"],
            "outcome": result.get("outcome", "failed"),
            "error": result.get("error", "not ended"),
        }
        for probe, result in zip(probes, found, strict=True)
    ]


# Judging it


def checks(host: str, probes: Sequence[Facts], results: Sequence[Facts] | None) -> list[Check]:
    """FABRIC.EXCHANGE: a row for each rail over which all bytes came back, and one for each pair where they did not."""
    found = {(str(result.get("peer")), str(result.get("rail"))): result for result in results or []}
    made: list[Check] = []
    expected = "bytes to and fro over TCP, between all ranks on each rail"
    for rail in dict.fromkeys(str(probe["rail"]) for probe in probes):
        mine = [probe for probe in probes if str(probe["rail"]) == rail]
        bad = [check for probe in mine if (check := _pair(host, probe, found.get((str(probe["peer"]), rail)), expected))]
        made += bad or [
            Check(
                "FABRIC.EXCHANGE",
                host,
                PASS,
                f"rail {rail} ({mine[0]['ifname']}): bytes came back from {len(mine)} peer(s)",
                expected,
            )
        ]
    return made


def _pair(host: str, probe: Facts, result: Facts | None, expected: str) -> Check | None:
    outcome = str((result or {}).get("outcome") or "")
    if outcome == "answered":
        return None
    peer = probe["peer"]
    text = f"{where(probe)}: {said(result)}"
    if outcome == "refused":
        remedy = (
            f"Look what holds or rejects port {PORT} on {peer} (ss -ltnp; nft list ruleset). Fewer forks of Ansible than ranks do the same: "
            "then the other end was not asked yet."
        )
    else:
        remedy = (
            f"A firewall drops TCP, or the way is cut: on {host} and {peer}, nft list ruleset; ufw status; then cable and switch."
        )
    return Check("FABRIC.EXCHANGE", host, FAIL, text, expected, remedy)


def where(probe: Facts) -> str:
    return f"rail {probe['rail']} ({probe['ifname']} {probe['source']}) to {probe['peer']} ({probe['address']})"


def said(result: Facts | None) -> str:
    if not result:
        return "not measured"
    words = {"refused": "the connection was refused", "silent": "no byte came back", "failed": "failed"}
    outcome = str(result.get("outcome") or "failed")
    return f"{words.get(outcome, outcome)} ({result.get('error') or 'no reason given'})"
