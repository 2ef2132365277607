"""Whatever a node's files hold: an answer with codes and sentences, never a traceback, and nothing changed."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.fabric.devices import Node, read_node
from ansible.module_utils.sparklanes.fabric.node import detect
from ansible.module_utils.sparklanes.fabric.options import Options, read_options
from ansible.module_utils.sparklanes.fabric.ports import CODES
from ansible.module_utils.sparklanes.fabric.sysfs import Tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roce_trees import Hca, Net, spark

QUICK = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
OPTIONS = [
    read_options(item)
    for item in (
        {},
        {"allow_soft": True, "allow_ipv6": True, "want_both_halves": False},
        {"fabric_cidr": ["192.168.100.0/23"], "gid_policy": "pin_per_node"},
        {"topology": "ring", "control_ifname": "enP7s7", "want_both_halves": False},
        {"transport": "socket", "fabric_cidr": ["192.168.0.0/16"]},
        {"peers": ["192.168.100.99"], "nccl_version": "2.18.1"},
    )
]


def judge_all(root: Path) -> None:
    node = read(root)
    for options in OPTIONS:
        judged(node, options)


def judge(root: Path, options: Options) -> dict[str, Any]:
    return judged(read(root), options)


def read(root: Path) -> Node:
    tree = Tree(str(root))
    texts = [tree.text(name, limit=1 << 24) for name in ("ip_j_addr.json", "ip_dj_link.json")]
    return read_node(str(root), *texts)


def judged(node: Node, options: Options) -> dict[str, Any]:
    """As the module does it; the result must be whole, JSON, and never both an error and an environment."""
    result: dict[str, Any] = detect(node, options)
    json.dumps(result).encode("utf-8")
    assert result["env"] or result["errors"]
    assert not (result["env"] and result["errors"])
    for item in result["errors"] + result["warnings"]:
        assert item["code"] in CODES
        assert item["message"]
        assert item["remedy"]
    for name, value in result["env"].items():
        assert name.isascii()
        assert value.isascii()
        assert value.isprintable()
        assert " " not in value
    return result


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = spark(ports="01", networks=("192.168.100", "192.168.101", "192.168.102", "192.168.103"))
    made.hcas.append(Hca("soft0", "enP7s7"))
    made.nets.append(Net("enp1s0f0np0.7", ["192.168.7.1/24"], kind="vlan", link="enp1s0f0np0"))
    made.files["etc/nccl.conf"] = "NCCL_DEBUG=INFO\n"
    for hca in made.hcas:
        hca.table = 6
    return made.write(tmp_path_factory.mktemp("fuzz"))


@functools.cache
def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


BYTES = st.binary(max_size=40) | st.sampled_from(
    [b"", b"\n", b"\xff\xfe", b"4: ACTIVE\n", b"InfiniBand\n", b"-1\n", b"9" * 5000, b"\0", b"../../../etc", b"RoCE v2\n", b"a,b\n", b"\xe2\x80\xa8"]
)  # fmt: skip


class Changed:
    """Some files with other bytes, some gone; afterwards as before."""

    def __init__(self, changes: dict[Path, bytes | None]) -> None:
        self.changes, self.before = changes, {path: path.read_bytes() for path in changes}

    def __enter__(self) -> None:
        for path, content in self.changes.items():
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)

    def __exit__(self, *_: object) -> None:
        for path, content in self.before.items():
            path.write_bytes(content)


@QUICK
@given(data=st.data())
def test_any_bytes_in_any_file(plain: Path, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(files(plain)), min_size=1, max_size=5, unique=True))
    changes = {path: data.draw(st.none() | BYTES) for path in chosen}
    with Changed(changes):
        judge_all(plain)


@QUICK
@given(data=st.data())
def test_any_bytes_in_all_files_of_a_kind(plain: Path, data: st.DataObject) -> None:
    names = sorted({path.name for path in files(plain)} | {"gids", "types", "ndevs"})
    name = data.draw(st.sampled_from(names))
    content = data.draw(st.none() | BYTES)
    with Changed({path: content for path in files(plain) if name in (path.name, path.parent.name)}):
        judge_all(plain)


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)


@QUICK
@given(device=NAMES, netdev=NAMES)
def test_any_name(tmp_path_factory: pytest.TempPathFactory, device: str, netdev: str) -> None:
    made = spark()
    made.hcas = made.hcas[:1]
    made.hcas[0].table = 5
    made.hcas[0].name, made.hcas[0].net, made.net("enp1s0f0np0").name = device, netdev, netdev
    root = tmp_path_factory.mktemp("names")
    try:
        result = judge(made.write(root), read_options({"want_both_halves": False}))
    finally:
        shutil.rmtree(root)
    for name in result["env"].get("NCCL_IB_HCA", "=").removeprefix("=").split(","):
        assert name in ("", device), "a name is rendered as it is, or refused"


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    root = spark().write(tmp_path)
    (root / "sys/class/infiniband" / os.fsdecode(b"roce\xff0")).symlink_to("rocep1s0f0")
    (root / "sys/devices" / os.fsdecode(b"net\xfe")).mkdir()
    (root / "sys/class/net" / os.fsdecode(b"net\xfe")).symlink_to("../../devices")
    result = judge(root, read_options({"want_both_halves": False}))
    assert "roce\ufffd0" in {item["dev"] for item in result["candidates"]}
    assert {item["code"] for item in result["errors"]} == {"NAME_UNSAFE"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(["192.168.100.10", "UP", "\ud800", "enp1s0f0np0"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["ifname", "ifindex", "flags", "mtu", "addr_info", "local", "prefixlen", "link", "master", "linkinfo", "info_kind", "operstate"]), inner, max_size=8),
    max_leaves=40,
)  # fmt: skip


@QUICK
@given(content=JSON.map(json.dumps) | st.text(max_size=40))
def test_whatever_ip_prints(plain: Path, content: str) -> None:
    encoded = content.encode("utf-8", "surrogatepass")
    with Changed({plain / "ip_j_addr.json": encoded, plain / "ip_dj_link.json": encoded}):
        judge_all(plain)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    root = spark().write(tmp_path)
    for part in ("ports", "net"):
        for path in [path for path in root.rglob(part) if path.is_dir()]:
            path.chmod(0)
    yield root
    for path in [root, *root.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)


def test_directories_that_cannot_be_read(locked: Path) -> None:
    result = judge(locked, OPTIONS[0])
    # root reads them all the same, everybody else finds no ports
    assert result["errors"] or os.geteuid() == 0


def test_files_that_are_directories_and_links_that_circle(tmp_path: Path) -> None:
    root = spark().write(tmp_path)
    for path in [path for path in root.rglob("state") if path.is_file()]:
        path.unlink()
        path.mkdir()
    for path in list(root.rglob("link_layer"))[:2]:
        path.unlink()
        path.symlink_to(path.name)
    result = judge(root, OPTIONS[0])
    assert {item["code"] for item in result["errors"]} == {"NO_USABLE_PORT", "LINK_LAYER"}


def test_a_node_without_anything(tmp_path: Path) -> None:
    assert [item["code"] for item in judge(tmp_path, OPTIONS[0])["errors"]] == ["NO_RDMA_PCI"]
    assert [item["code"] for item in judge(tmp_path / "absent", OPTIONS[4])["errors"]] == ["ADDRESS_UNKNOWN"]
