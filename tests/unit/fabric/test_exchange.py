# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Only an equal answer shows that TCP gets through: no ping, no accepted and no established connection does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ansible.module_utils.sparklanes.fabric import exchange
from conftest import free_port

HERE, THERE = "127.0.0.1", "127.0.0.2"


def probe(source: str = HERE, address: str = THERE, peer: str = "s2", rail: str = "0") -> dict[str, Any]:
    return {"peer": peer, "rail": rail, "ifname": "", "source": source, "address": address, "size": 8972}


@contextlib.contextmanager
def other_end(port: int, does: Callable[[socket.socket], Any]) -> Iterator[None]:
    """A listener that accepts, and then does as it likes."""
    with socket.create_server((THERE, port)) as listener:
        held = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    held.append(peer)
                    does(peer)

        threading.Thread(target=accept, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        for peer in held:
            peer.close()


def test_two_sparks_that_ask_each_other_get_their_bytes_back() -> None:
    port, made = free_port(), {}

    def spark(name: str, mine: dict[str, Any], late: float) -> None:
        time.sleep(late)
        made[name] = exchange.exchange([mine], port, wait=8)

    threads = [
        threading.Thread(target=spark, args=("s1", probe(), 0.0)),
        threading.Thread(target=spark, args=("s2", probe(THERE, HERE, "s1"), 1.0)),
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: results[0]["outcome"] for name, results in made.items()} == {"s1": "answered", "s2": "answered"}
    assert time.monotonic() - began < 6, "nobody waits once all have met"
    checks = exchange.checks("s1", [probe()], made["s1"])
    assert [(check.id, check.status) for check in checks] == [("FABRIC.EXCHANGE", "pass")]


@pytest.mark.parametrize(
    ("does", "outcome"),
    [
        (lambda peer: None, "silent"),
        (lambda peer: peer.close(), "failed"),
        (lambda peer: (peer.sendall(b"x" * 100), peer.shutdown(socket.SHUT_WR)), "failed"),
        (lambda peer: peer.sendall(b"x" * exchange.WORD), "failed"),
    ],
    ids=["accepts and says nothing", "hangs up", "half a word", "another word"],
)
def test_an_accepted_connection_is_no_answer(does: Any, outcome: str) -> None:
    port = free_port()
    with other_end(port, does):
        assert exchange.ask(probe(), 0.5, port)["outcome"] == outcome
        (result,) = exchange.exchange([probe()], port, wait=1, seconds=0.3)
    assert result["outcome"] != "answered"
    (check,) = exchange.checks("s1", [probe()], [result])
    assert (check.status, check.host) == ("fail", "s1")
    assert "to s2 (127.0.0.2)" in check.found
    assert "nft list ruleset" in check.remedy


def test_who_does_not_listen_is_refused_within_the_time() -> None:
    began = time.monotonic()
    (result,) = exchange.exchange([probe()], free_port(), wait=1)
    assert result["outcome"] == "refused"
    assert time.monotonic() - began < 4
    (check,) = exchange.checks("s1", [probe()], [result])
    assert "forks" in check.remedy


def test_an_address_that_is_gone_is_a_failure_in_words() -> None:
    (result,) = exchange.exchange([probe(source="192.0.2.1")], free_port(), wait=1)
    assert result["outcome"] == "failed"
    assert "assign requested address" in result["error"]


def test_what_was_not_measured_fails_for_each_pair() -> None:
    probes = [probe(), probe(peer="s3", address="127.0.0.3"), probe(rail="1")]
    for results in (None, []):
        made = exchange.checks("s1", probes, results)
        assert [check.status for check in made] == ["fail"] * 3
        assert all("not measured" in check.found for check in made)
    some = exchange.checks("s1", probes, [{"peer": "s2", "rail": "0", "outcome": "answered"}])
    assert [check.status for check in some] == ["fail", "fail"]
    assert exchange.checks("s1", [], None) == []


def test_an_echo_leaves_its_port_free() -> None:
    port = free_port()
    for _ in range(2):
        echo = exchange.Echo([HERE, HERE], port)
        assert echo.errors == {}
        assert exchange.ask(probe(THERE, HERE), 1, port)["outcome"] == "answered"
        echo.close()


def test_whoever_sends_byte_after_byte_is_not_waited_for() -> None:
    """Each byte comes in time, and the word never."""
    port = free_port()

    def trickle(peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer.sendall(b"x")
                time.sleep(0.1)

    with other_end(port, lambda peer: threading.Thread(target=trickle, args=(peer,), daemon=True).start()):
        result = exchange.ask(probe(), 0.5, port)
    assert result["outcome"] == "silent"


def test_strangers_that_hold_the_line_are_let_go_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MOST_AT_ONCE", 4)
    monkeypatch.setattr(exchange, "SECONDS", 0.5)
    port = free_port()
    echo = exchange.Echo([THERE], port)
    with contextlib.ExitStack() as held:
        held.callback(echo.close)
        lines = [held.enter_context(socket.create_connection((THERE, port))) for _ in range(12)]
        for line in lines:
            line.settimeout(10)
        # Those on top of four are closed at once, the four after their time.
        assert [line.recv(1) for line in lines] == [b""] * 12
        assert exchange.ask(probe(), 2.0, port)["outcome"] == "answered"
