"""Gate A tries the fabric itself: what a firewall or a switch eats is found before anything is stopped, pair and rail named."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from conftest import Fleet

pytestmark = pytest.mark.slow
Rule = Callable[[str, str], None]


@pytest.fixture
def rule(fleet: Fleet) -> Iterator[Rule]:
    """Adds a rule to a node's firewall, and takes it away in the end."""
    added: list[tuple[str, str]] = []

    def add(node: str, text: str) -> None:
        fleet.on(node, f"iptables -I INPUT -i fab0 {text}")
        added.append((node, text))

    yield add
    for node, text in added:
        fleet.on(node, f"iptables -D INPUT -i fab0 {text}")


@pytest.mark.parametrize(
    ("node", "text", "words"),
    [
        ("spark-2", "-p icmp -j DROP", ["FABRIC.PEER", "to spark-2", "no answer at all"]),
        # What a switch without jumbo frames does: nothing says why.
        ("spark-2", "-p icmp -m length --length 1000:65535 -j DROP", ["FABRIC.PEER", "to spark-2", "small packets pass, 1472 bytes don't"]),
        ("spark-2", "-p tcp -j DROP", ["FABRIC.EXCHANGE", "to spark-2", "no byte came back"]),
        # Established and dead: every segment with data is dropped.
        ("spark-2", "-p tcp -m length --length 61:65535 -j DROP", ["FABRIC.EXCHANGE", "to spark-2", "no byte came back"]),
        ("spark-1", "-p tcp --dport 29500 -j DROP", ["FABRIC.MASTER_PORT", "no answer", "A firewall drops it"]),
        ("spark-1", "-p tcp --dport 29500 -j REJECT --reject-with tcp-reset", ["FABRIC.MASTER_PORT", "refused, though rank 0 listened there"]),
    ],
    ids=["no ping", "no large ping", "no TCP", "no data", "port dropped", "port rejected"],
)  # fmt: skip
def test_what_does_not_get_through_stops_a_launch_before_the_stop(
    fleet: Fleet, rule: Rule, node: str, text: str, words: list[str]
) -> None:
    rule(node, text)
    fleet.play("playbooks/launch.yml", "--check").failed(*words, "Nothing was stopped or changed")


def test_a_lower_mtu_of_one_node_is_found_without_a_packet(fleet: Fleet) -> None:
    fleet.on("spark-2", "ip link set fab0 mtu 1400")
    try:
        fleet.play("playbooks/launch.yml", "--check").failed("FABRIC.MTU", "fab0: MTU 1400, the other end")
    finally:
        fleet.on("spark-2", "ip link set fab0 mtu 1500")


def test_a_whole_fabric_passes_and_the_port_is_free_again(fleet: Fleet) -> None:
    outcome = fleet.play("playbooks/launch.yml", "--check").ok()
    assert "1 peer(s) answer 1472 bytes unfragmented" in outcome.out
    assert fleet.on("spark-1", "ss -Hltn 'sport = :29500'") == ""
