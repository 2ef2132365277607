"""The fabric on live kernels: what is detected carries RDMA, and stays right when addresses, ports and boots change."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

import pytest
from ansible import module_utils
from conftest import NODES, ROOT, Person, until

module_utils.__path__.append(str(ROOT / "module_utils"))
from ansible.module_utils.sparklanes.fabric.cluster import cluster_checks  # noqa: E402

Facts = dict[str, dict[str, Any]]
FIRST, SECOND = NODES
HALF_A, HALF_B = ("rocep1s0f0", "enp1s0f0np0"), ("roceP2p1s0f0", "enP2p1s0f0np0")


def detect(person: Person, **more: Any) -> Facts:
    """As the role does it on these machines."""
    return person.module("roce_facts", allow_soft=True, fabric_cidr=["192.168.100.0/24", "192.168.101.0/24"], strict=True, **more)


def codes(problems: list[dict[str, Any]]) -> set[str]:
    return {item["code"] for item in problems}


def rail(facts: Facts, node: str, hca: str) -> dict[str, Any]:
    found: dict[str, Any] = next(rail for rail in facts[node]["chosen"] if rail["hca"] == hca)
    return found


def gid(person: Person, node: str, hca: str, index: int) -> tuple[str, str]:
    """Address and type of a GID, as the kernel shows it at this moment."""
    port = f"/sys/class/infiniband/{hca}/ports/1"
    text, kind = person.on(node, f"cat {port}/gids/{index} {port}/gid_attrs/types/{index}").splitlines()
    return str(ipaddress.IPv6Address(text).ipv4_mapped), kind


def packets(person: Person) -> dict[tuple[str, str], int]:
    """RDMA packets that each device has received."""
    return {
        (node, hca): int(person.on(node, f"cat /sys/class/infiniband/{hca}/ports/1/hw_counters/rcvd_pkts"))
        for node in NODES
        for hca, _ in (HALF_A, HALF_B)
    }


def listens(person: Person, node: str, process: Any, port: int, rdma: bool) -> None:
    """Until the server on a machine takes connections."""
    look = f"rdma resource show cm_id | grep -w LISTEN | grep -w {port}" if rdma else f"ss -Hltn sport = :{port}"

    def ready() -> bool:
        assert process.poll() is None, process.communicate()[0]
        return bool(person.on(node, look, check=False))

    until(f"{node} listens on {port}", ready)


@pytest.fixture(scope="module")
def facts(person: Person) -> Facts:
    return detect(person)


def test_both_halves_are_found_and_nothing_is_wrong(person: Person, facts: Facts) -> None:
    for number, node in enumerate(NODES, 11):
        found = facts[node]
        assert found["errors"] == []
        assert codes(found["warnings_found"]) == {"NO_PCI_ORDER"}  # soft RoCE has no PCI address
        assert {(item["hca"], item["netdev"], item["ipv4"], item["mtu"]) for item in found["chosen"]} == {
            (*HALF_A, f"192.168.100.{number}", 9000),
            (*HALF_B, f"192.168.101.{number}", 9000),
        }
        assert found["env"]["NCCL_NET"] == "IB"
        assert set(found["env"]["NCCL_IB_HCA"].removeprefix("=").split(",")) == {HALF_A[0], HALF_B[0]}
        assert found["env"]["GLOO_SOCKET_IFNAME"] in (HALF_A[1], HALF_B[1])
        for item in found["chosen"]:
            assert gid(person, node, item["hca"], item["gid_index"]) == (item["ipv4"], "RoCE v2")
    assert not [check for check in cluster_checks({node: facts[node]["fabric"] for node in NODES}) if check.status == "fail"]


def test_without_leave_soft_devices_are_no_fabric(person: Person) -> None:
    found = person.module("roce_facts", hosts=FIRST)[FIRST]
    assert codes(found["errors"]) == {"NO_USABLE_PORT"}
    assert found["env"] == {}


@pytest.mark.parametrize("hca", [HALF_A[0], HALF_B[0]])
@pytest.mark.parametrize("server", NODES)
def test_rping_goes_over_each_chosen_rail(person: Person, facts: Facts, server: str, hca: str) -> None:
    """Both ways, and over that device only: the others' counters stand still."""
    client = next(node for node in NODES if node != server)
    target, source = rail(facts, server, hca)["ipv4"], rail(facts, client, hca)["ipv4"]
    before = packets(person)
    process = person.start(server, f"timeout 300 rping -s -a {target} -p 7174 -C 5 -S 4096 -v")
    try:
        listens(person, server, process, 7174, rdma=True)
        out = person.on(client, f"timeout 200 rping -c -a {target} -I {source} -p 7174 -C 5 -S 4096 -v")
        served = process.communicate(timeout=200)[0]
    finally:
        process.kill()
    assert out.count("ping data: ") == 5, out
    assert served.count("server ping data: ") == 5, served
    moved = {at for at, count in packets(person).items() if count > before[at]}
    assert moved == {(node, hca) for node in NODES}


def write_bandwidth(person: Person, found: Facts, hca: str) -> set[str]:
    """The addresses on the two ends of an ib_write_bw with device and GID index as emitted, once its data has come over that device.

    Its Gb/s are none of a Spark: emulated, 6.25 MiB may round to 0.00.
    """
    before = packets(person)
    ends = {node: rail(found, node, hca) for node in NODES}

    def command(node: str) -> str:
        index = ends[node]["gid_index"]
        return f"timeout 300 ib_write_bw -F -d {hca} -x {index} -s 65536 -n 100 --report_gbits -p 7175"

    process = person.start(FIRST, command(FIRST))
    try:
        listens(person, FIRST, process, 7175, rdma=False)
        out = person.on(SECOND, f"{command(SECOND)} {ends[FIRST]['ipv4']}")
        process.communicate(timeout=300)
    finally:
        process.kill()
    assert re.search(r"^ *65536 +100 +[\d.]+ +[\d.]+", out, re.M), out
    # In packets of 4096 bytes, as an MTU of 9000 makes them.
    assert packets(person)[FIRST, hca] - before[FIRST, hca] >= 100 * 65536 // 4096
    used = re.findall(r"GID: (?:00:){10}255:255:(\d+):(\d+):(\d+):(\d+)", out)
    return {".".join(str(int(part)) for part in parts) for parts in used}


@pytest.mark.parametrize("hca", [HALF_A[0], HALF_B[0]])
def test_ib_write_bw_works_with_the_emitted_device_and_index(person: Person, facts: Facts, hca: str) -> None:
    assert write_bandwidth(person, facts, hca) == {rail(facts, node, hca)["ipv4"] for node in NODES}


@pytest.fixture
def addresses_back(person: Person) -> Iterator[None]:
    """networkd puts back what its files say. The GID keeps the index that it has got until the next boot."""
    yield
    for node in NODES:
        person.on(node, "networkctl reload && networkctl reconfigure enp1s0f0np0 enP2p1s0f0np0")
        until(f"{node} has its addresses", lambda node=node: person.on(node, "ip -br -4 addr show up").count("192.168.10") == 2)


def test_a_gid_that_moved_is_found_where_it_went(person: Person, facts: Facts, addresses_back: None) -> None:
    """Another address takes its slot; the node's two devices, and the two nodes, then have different indexes."""
    hca, netdev = HALF_A
    own = rail(facts, FIRST, hca)
    person.on(
        FIRST,
        f"ip addr del {own['ipv4']}/24 dev {netdev} && ip addr add 192.168.55.11/24 dev {netdev} && ip addr add {own['ipv4']}/24 dev {netdev}",
    )
    moved = detect(person)
    now = rail(moved, FIRST, hca)
    assert now["gid_index"] != own["gid_index"]
    assert gid(person, FIRST, hca, own["gid_index"])[0] == "192.168.55.11", "the old index is another network's now"
    assert moved[FIRST]["errors"] == []
    assert (now["ipv4"], gid(person, FIRST, hca, now["gid_index"])) == (own["ipv4"], (own["ipv4"], "RoCE v2"))
    assert moved[FIRST]["env"]["NCCL_IB_ADDR_RANGE"] == "192.168.100.0/23"
    assert "NCCL_IB_GID_INDEX" not in moved[FIRST]["env"]
    assert moved[SECOND]["chosen"] == facts[SECOND]["chosen"]
    assert write_bandwidth(person, moved, hca) == {rail(facts, node, hca)["ipv4"] for node in NODES}

    pinned = person.module(
        "roce_facts",
        hosts=FIRST,
        allow_soft=True,
        fabric_cidr=["192.168.100.0/24", "192.168.101.0/24"],
        gid_policy="pin_per_node",
    )[FIRST]
    assert codes(pinned["errors"]) == {"NO_COMMON_GID_INDEX"}
    assert pinned["env"] == {}


def test_a_cable_that_is_pulled_is_named_and_stops_the_cluster(person: Person, facts: Facts) -> None:
    machine = person.machine(SECOND)
    machine.plug(2, False)
    try:
        state = f"/sys/class/infiniband/{HALF_B[0]}/ports/1/state"
        until("the port is down", lambda: "DOWN" in person.on(SECOND, f"cat {state}"))
        found = detect(person)
        down = next(item for item in found[SECOND]["candidates"] if item["dev"] == HALF_B[0])
        assert (down["code"], down["state"], down["chosen"]) == ("PORT_DOWN", "DOWN", False)
        assert "CIDR_UNUSED" in codes(found[SECOND]["warnings_found"])
        assert found[SECOND]["env"]["NCCL_IB_HCA"] == f"={HALF_A[0]}"
        bad = [check for check in cluster_checks({node: found[node]["fabric"] for node in NODES}) if check.status == "fail"]
        assert "FABRIC.RAILS" in {check.id for check in bad}
        both = person.module("roce_facts", hosts=SECOND, allow_soft=True, fabric_cidr=["192.168.101.0/24"])[SECOND]
        assert both["errors"], "the only network asked for is down"
        assert both["env"] == {}
    finally:
        machine.plug(2, True)
    until("the port is up", lambda: "ACTIVE" in person.on(SECOND, f"cat {state}"))
    assert detect(person)[SECOND]["chosen"] == facts[SECOND]["chosen"]
