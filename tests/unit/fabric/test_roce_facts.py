"""The module: options, result, one second look, plain sockets."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest
import roce_facts
from ansible.module_utils.sparklanes.fabric.ports import CODES, Problem
from conftest import ROOT, RunModule
from roce_trees import A0, B0, Net, Spark, gid, spark

FABRIC_KEYS = {"transport", "host_ip", "ifname", "rails", "env", "warnings", "errors"}
RAIL_KEYS = {"link_gbps", "hca", "port", "netdev", "ipv4", "network", "mtu", "gid_index"}


def snapshot(root: Path) -> dict[str, Any]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in sorted(root.rglob("*"))
    }


def test_the_result_for_a_person_and_for_the_ranks(run_module: RunModule, tmp_path: Path) -> None:
    root = spark().write(tmp_path)
    before = snapshot(root)
    result = run_module(roce_facts, {"root": str(root)})
    assert snapshot(root) == before, "nothing on the node is changed"
    assert (result["changed"], result["actions"], result["errors"], result["warnings_found"]) == (False, [], [], [])
    assert set(result["fabric"]) == FABRIC_KEYS
    assert [set(rail) for rail in result["fabric"]["rails"]] == [RAIL_KEYS, RAIL_KEYS]
    assert result["fabric"]["rails"][0] == {
        "hca": A0,
        "port": 1,
        "netdev": "enp1s0f0np0",
        "ipv4": "192.168.100.10",
        "network": "192.168.100.0/24",
        "mtu": 9000,
        "gid_index": 3,
        "link_gbps": 200.0,
    }
    assert result["fabric"]["env"] == result["env"]
    assert (result["fabric"]["host_ip"], result["fabric"]["ifname"]) == ("192.168.100.10", "enp1s0f0np0")
    assert result["summary"][:3] == [
        "fabric over roce: usable, 2 rail(s)",
        f"rail 0: {A0}:1 GID 3 on enp1s0f0np0 192.168.100.10 in 192.168.100.0/24, MTU 9000",
        f"rail 1: {B0}:1 GID 3 on enP2p1s0f0np0 192.168.101.10 in 192.168.101.0/24, MTU 9000",
    ]
    assert len(result["candidates"]) == 4


def test_check_mode_says_the_same(run_module: RunModule, tmp_path: Path) -> None:
    args = {"root": str(spark().write(tmp_path))}
    assert run_module(roce_facts, args) == run_module(roce_facts, args, check=True, diff=True)


def test_errors_of_the_node_are_facts(run_module: RunModule, tmp_path: Path) -> None:
    result = run_module(roce_facts, {"root": str(tmp_path)})
    assert "failed" not in result
    assert [item["code"] for item in result["errors"]] == ["NO_RDMA_PCI"]
    assert result["summary"][-1].startswith("error NO_RDMA_PCI: ")
    assert set(result["fabric"]) == FABRIC_KEYS
    assert result["fabric"]["env"] == {}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"fabric_cidr": ["fabric"]}, "is not a network"),
        ({"fabric_cidr": ["10.0.0.0/24", "fd00::/64"], "allow_ipv6": True}, "mixes IPv4 and IPv6"),
        ({"fabric_cidr": ["fd00::/64"]}, "allow_ipv6 is false"),
        ({"peers": ["spark-2"]}, "is not an address"),
        ({"peers": ["10.0.0.1", "10.0.0.2", "10.0.0.3"], "topology": "direct"}, "joins two Sparks"),
        ({"ports_wanted": 0}, "at least 1"),
        ({"gid_index": 3}, "gid_policy is validated_unset"),
        ({"gid_index": -1, "gid_policy": "pin_per_node"}, "let NCCL choose"),
        ({"nccl_version": "newest"}, "not an NCCL version"),
        ({"topology": "ring", "ports_wanted": 1}, "both QSFP ports"),
        ({"transport": "socket", "topology": "ring"}, "uses no RDMA device"),
        ({"transport": "socket", "hcas": ["mlx5_0"]}, "uses no RDMA device"),
    ],
)
def test_contradictions_fail_in_a_sentence(run_module: RunModule, tmp_path: Path, args: dict[str, Any], words: str) -> None:
    result = run_module(roce_facts, {"root": str(tmp_path), **args})
    assert result["failed"]
    assert words in result["msg"]


def test_a_gid_index_is_fine_with_an_old_nccl(run_module: RunModule, tmp_path: Path) -> None:
    result = run_module(roce_facts, {"root": str(spark().write(tmp_path)), "gid_index": 3, "nccl_version": "2.19.3"})
    assert result["env"]["NCCL_IB_GID_INDEX"] == "3"
    assert result["fabric"]["nccl_version"] == "2.19.3"


def sandbox(*more: Net) -> Spark:
    return Spark(nets=[Net("mgmt0", ["10.93.1.11/24"], mtu=1500), Net("fab0", ["10.93.2.11/24"], mtu=1500), *more])


def test_plain_sockets(run_module: RunModule, tmp_path: Path) -> None:
    result = run_module(
        roce_facts, {"root": str(sandbox().write(tmp_path)), "transport": "socket", "fabric_cidr": "10.93.2.0/24"}
    )
    assert (result["errors"], result["warnings_found"]) == ([], [])
    assert result["fabric"] == {
        "transport": "socket",
        "host_ip": "10.93.2.11",
        "ifname": "fab0",
        "rails": [
            {
                "hca": None,
                "port": None,
                "netdev": "fab0",
                "ipv4": "10.93.2.11",
                "network": "10.93.2.0/24",
                "mtu": 1500,
                "gid_index": None,
            }
        ],
        "env": {
            "NCCL_SOCKET_IFNAME": "=fab0",
            "GLOO_SOCKET_IFNAME": "fab0",
            "TP_SOCKET_IFNAME": "fab0",
            "NCCL_NET": "Socket",
            "NCCL_IB_DISABLE": "1",
        },
        "warnings": [],
        "errors": [],
    }
    assert result["nccl"]["with_env"]["bootstrap"] == {"ifname": "fab0", "address": "10.93.2.11"}
    assert result["nccl"]["without_env"]["bootstrap"]["ifname"] == "mgmt0", "what NCCL would take by itself"


SOCKETS = [
    ({}, sandbox(), "CIDR_MISSING"),
    ({"fabric_cidr": "10.93.0.0/16"}, sandbox(), "SOCKET_AMBIGUOUS"),
    ({"fabric_cidr": "10.94.0.0/16"}, sandbox(), "SOCKET_NONE"),
    ({"fabric_cidr": "127.0.0.0/8"}, sandbox(), "SOCKET_NONE"),
    ({"fabric_cidr": "10.93.3.0/24"}, sandbox(Net("fab1", ["10.93.3.11/24"], carrier=False)), "SOCKET_DOWN"),
    ({"fabric_cidr": "10.93.3.0/24"}, sandbox(Net("a,b", ["10.93.3.11/24"])), "NAME_UNSAFE"),
]


@pytest.mark.parametrize(("args", "made", "code"), SOCKETS, ids=[item[2] + str(index) for index, item in enumerate(SOCKETS)])
def test_sockets_that_are_not_clear(run_module: RunModule, tmp_path: Path, args: dict[str, Any], made: Spark, code: str) -> None:
    result = run_module(roce_facts, {"root": str(made.write(tmp_path)), "transport": "socket", **args})
    assert [item["code"] for item in result["errors"]] == [code]
    assert result["env"] == {}


@pytest.mark.parametrize(
    "args", [{"peers": ["10.93.2.12"]}, {"control_ifname": "fab0"}, {"fabric_cidr": "10.93.0.0/16", "control_ifname": "fab0"}]
)
def test_sockets_by_peers_or_by_name(run_module: RunModule, tmp_path: Path, args: dict[str, Any]) -> None:
    result = run_module(roce_facts, {"root": str(sandbox().write(tmp_path)), "transport": "socket", **args})
    assert result["fabric"]["ifname"] == "fab0"


def test_a_second_address_on_the_socket_device_is_told(run_module: RunModule, tmp_path: Path) -> None:
    made = sandbox(Net("fab1", ["10.99.0.1/24", "10.93.3.11/24"]))
    result = run_module(roce_facts, {"root": str(made.write(tmp_path)), "transport": "socket", "fabric_cidr": "10.93.3.0/24"})
    assert [item["code"] for item in result["warnings_found"]] == ["SOCKET_ADDRESS"]
    assert result["fabric"]["host_ip"] == "10.93.3.11"


def test_an_address_that_is_coming_is_looked_at_again(
    run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the GID is there and the address isn't; the second look finds both."""
    root = spark().write(tmp_path)
    late = spark()
    late.net("enp1s0f0np0").addresses = []
    early = late.write(tmp_path / "early")
    texts = iter([(early / "ip_j_addr.json").read_text(), (root / "ip_j_addr.json").read_text()])
    monkeypatch.setattr(roce_facts, "addresses", lambda module, where: (next(texts),))
    result = run_module(roce_facts, {"root": str(root)})
    assert result["errors"] == []
    assert next(texts, None) is None, "exactly two looks"


def test_a_stale_gid_is_looked_at_twice_and_no_more(
    run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spark()
    made.hca(A0).slots = {3: (gid("10.5.5.5"), "RoCE v2", "enp1s0f0np0")}
    looks = []
    real = roce_facts.addresses
    monkeypatch.setattr(roce_facts, "addresses", lambda module, where: looks.append(where) or real(module, where))
    result = run_module(roce_facts, {"root": str(made.write(tmp_path))})
    assert len(looks) == 2
    assert [item["code"] for item in result["errors"]] == ["HALF_MISSING"]
    assert "10.5.5.5 on enp1s0f0np0" in result["errors"][0]["message"]


def test_on_this_machine_it_answers(run_module: RunModule) -> None:
    """The real /, with the real `ip` where there is one: some answer, in JSON."""
    result = run_module(roce_facts, {"transport": "socket", "fabric_cidr": "127.0.0.0/8"})
    assert "failed" not in result
    assert {item["code"] for item in result["errors"]} <= {"SOCKET_NONE", "ADDRESS_UNKNOWN"}
    assert len(result["errors"]) == 1


@pytest.mark.parametrize("output", ["", "garbage", json.dumps([{"ifname": "x"}])])
def test_ip_that_fails_or_says_nothing(
    run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    command = tmp_path / "ip"
    command.write_text(f"#!/bin/sh\nprintf '%s' '{output}'\nexit {1 if not output else 0}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    result = run_module(roce_facts, {"transport": "socket", "fabric_cidr": "10.0.0.0/8"})
    assert [item["code"] for item in result["errors"]] == ["SOCKET_NONE" if output.startswith("[") else "ADDRESS_UNKNOWN"]


def literals() -> set[str]:
    """The codes in our sources, as they are written."""
    found = set()
    for path in sorted((ROOT / "module_utils" / "sparklanes" / "fabric").glob("*.py")):
        tree = ast.parse(path.read_text())
        found |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in CODES}
    return found


def test_every_code_is_used_and_explained() -> None:
    page = (ROOT / "docs" / "fabric.md").read_text()
    for code in CODES:
        assert f"`{code}`" in page, f"docs/fabric.md doesn't explain {code}"
    used = literals()
    source = "".join(path.read_text() for path in (ROOT / "module_utils" / "sparklanes" / "fabric").glob("*.py"))
    for code in CODES:
        assert code in used
        assert source.count(f'"{code}"') > 1, f"{code} is declared and never returned"


def test_an_unknown_code_can_not_be_made() -> None:
    with pytest.raises(ValueError, match="unknown code"):
        Problem("NO_SUCH", "message", "remedy")
