from __future__ import annotations

import json
from typing import Any

import pytest
import readiness_info
from ansible.module_utils.sparklanes.common.checks import Check, verdict
from ansible.module_utils.sparklanes.common.registered import NOT_ASKED, Look, look
from ansible.module_utils.sparklanes.docker import containers as docker_containers
from ansible.module_utils.sparklanes.gates import launch, readiness
from ansible.module_utils.sparklanes.host.listeners import parse_ss
from conftest import FIXTURES
from hostvars import registered
from test_host import spark

GIB = 1024**3
HOSTS = ["s1", "s2"]
IMAGE = "registry/engine@sha256:" + "a" * 64


def spec(rank: int) -> dict[str, Any]:
    return {
        "deployment": "sparks",
        "rank": rank,
        "world_size": 2,
        "image": IMAGE,
        "api": {"host": "10.0.0.1", "port": 8000},
        "master": {"host": "10.1.0.1", "port": 29500},
        "options": {"ipc": "host", "shm_size": "2g", "gpus": None},
    }


SPECS = {"s1": spec(0), "s2": spec(1)}
FABRICS = {
    host: {
        "transport": "socket",
        "host_ip": f"10.1.0.{number}",
        "ifname": "fab0",
        "rails": [{"netdev": "fab0", "ipv4": f"10.1.0.{number}", "network": "10.1.0.0/24", "mtu": 9000}],
    }
    for number, host in enumerate(HOSTS, 1)
}


PROBE = {"packages": {"vllm": "0.10.0"}, "flags": ["--port"], "flags_error": ""}


def answers(**more: Any) -> list[dict[str, Any]]:
    """What a host's ping of its one peer gave; both hosts' under one roof, as results are found by peer."""
    return [{"peer": peer, "rail": "0", "ok": True, "small": None, "said": "", **more} for peer in HOSTS]


def facts(**more: Any) -> dict[str, Any]:
    return {
        "docker": {"version": "28.0", "root": "/var/lib/docker", "image_root": "/var/lib/docker"},
        "disk": [{"what": "logs", "path": "/var/log/sparklanes", "free_bytes": 9 * GIB, "device": 1, "error": ""}],
        "containers": [],
        "listeners": [],
        "gpu": {"present": False, "processes": None, "error": "nvidia-smi is not installed"},
        "memory": {"MemFree": 100 * GIB},
        "shm_total_bytes": 4 * GIB,
        "image": {"name": IMAGE, "how": "name", "id": "sha256:1", "repo_digests": [IMAGE], "store": "overlay2", "probe": PROBE},
        "image_conf": {},
        "probes": answers(),
        "exchange": [{"peer": peer, "rail": "0", "outcome": "answered", "error": ""} for peer in HOSTS],
        "master_port": {"listened": True, "outcome": "accepted", "error": ""},
        "transaction": {},
        "deployment_state": {},
        **more,
    }


SETTLED = {
    host: {"checks": [{"id": "MEM.SETTLED", "host": host, "status": "pass", "found": "MemFree 100 GiB"}]} for host in HOSTS
}
STAGED = {
    "model_weights_result": {"changed": False, "staged": True},
    "kernel_overlays_result": {"changed": False, "mounts": [], "missing": [], "actions": []},
}
KEPT = {host: {"host": spark()} for host in HOSTS}


def world(known: dict[str, Any], **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """hostvars of a deployment of which all is well, but for `known` (host → readiness) and what `more` registers. None: no answer."""
    readiness = {host: {"unreachable": True} if facts is None else {"readiness": facts} for host, facts in known.items()}
    rest = {name: dict.fromkeys(HOSTS, value) for name, value in STAGED.items()}
    return registered(
        HOSTS,
        **{"gates_readiness": readiness, "gates_host": KEPT, "gates_settled": SETTLED, "roce_fabric": FABRICS, **rest, **more},
    )


def gate_a(known: dict[str, Any], **more: dict[str, Any]) -> dict[str, Check]:
    """Checks by host and id; of several under one id one that failed, if any."""
    made = launch.gate_a(world(known, **more), HOSTS, SPECS, {}, "mine", 1001.0)
    return {f"{check.host} {check.id}": check for check in sorted(made, key=lambda check: check.status == "fail")}


def gate_b(known: dict[str, Any], specs: Any = SPECS, **more: dict[str, Any]) -> list[Check]:
    return launch.gate_b(world(known, **more), HOSTS, specs, {})


def test_a_ready_fleet_passes() -> None:
    made = gate_a({host: facts() for host in HOSTS})
    assert verdict(made.values()) == "pass"
    ids = {key.split()[1] for key in made}
    assert {"HOST.KERNEL", "HOST.ENGINE_BOOTS", "PARITY.MACHINE", "PARITY.CLOCK"} <= ids
    assert {id_ for id_ in ids if not id_.startswith(("HOST.", "PARITY."))} == {
        "IMAGE.FLAGS",
        "NODE.REACHABLE",
        "NODE.DOCKER",
        "DISK.ROOM",
        "LOCK.FREE",
        "DEATHS.EXPLAINED",
        "CONTAINER.FOREIGN",
        "CONTAINER.NAME",
        "DEPLOYMENT.NODES",
        "PORT.FREE",
        "IMAGE.DIGEST",
        "IMAGE.PARITY",
        "WEIGHTS.STAGED",
        "OVERLAYS.STAGED",
        "FABRIC.PEER",
        "FABRIC.EXCHANGE",
        "FABRIC.MASTER_PORT",
        "FABRIC.IMAGE_CONF",
        "MEM.SHM",
    }


def test_the_controller_needs_room_for_what_it_fetches(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(folder: str) -> Check:
        made = launch.gate_a(world({host: facts() for host in HOSTS}), HOSTS, SPECS, {}, "mine", 1001.0, receipts=folder)
        return next(check for check in made if check.id == "DISK.ROOM" and check.host == "controller")

    monkeypatch.setattr(launch.room, "LEAST", {**launch.room.LEAST, "receipts": 1})
    assert judged(str(tmp_path / "yet/to/come")).status == "pass"
    monkeypatch.setattr(launch.room, "LEAST", {**launch.room.LEAST, "receipts": 1 << 62})
    assert judged(str(tmp_path)).status == "fail"


def test_a_silent_host_is_a_failed_row_and_the_others_are_still_judged() -> None:
    made = gate_a({"s1": facts(), "s2": None})
    assert made["s2 NODE.REACHABLE"].status == "fail"
    assert made["s1 IMAGE.DIGEST"].status == "pass"


@pytest.mark.parametrize(
    ("broken", "failing", "words"),
    [
        ({"docker": {"error": "the Docker daemon does not answer"}}, "NODE.DOCKER", "does not answer"),
        ({"docker": {}}, "NODE.DOCKER", "not measured"),
        ({"disk": None}, "DISK.ROOM", "not measured"),
        (
            {"disk": [{"what": "logs", "path": "/var/log/x", "free_bytes": 65536, "device": 1, "error": ""}]},
            "DISK.ROOM",
            "logs (/var/log/x): 64.0 KiB free",
        ),
        ({"image": None}, "IMAGE.DIGEST", "not on this Spark"),
        (
            {"image": {"name": "b", "how": "id", "id": "sha256:2", "repo_digests": [], "store": "overlay2"}},
            "IMAGE.PARITY",
            "sha256:1",
        ),
        ({"probes": answers(ok=False, small=False)}, "FABRIC.PEER", "no answer at all"),
        ({"probes": answers(ok=False, small=True)}, "FABRIC.PEER", "small packets pass, 8972 bytes don't"),
        ({"probes": None}, "FABRIC.PEER", "not measured"),
        ({"exchange": None}, "FABRIC.EXCHANGE", "not measured"),
        (
            {"exchange": [{"peer": peer, "rail": "0", "outcome": "silent", "error": "nothing came"} for peer in HOSTS]},
            "FABRIC.EXCHANGE",
            "no byte came back",
        ),
        ({"image_conf": None}, "FABRIC.IMAGE_CONF", "not measured"),
        ({"image_conf": {"/etc/nccl.conf": "NCCL_IB_GID_INDEX=3\n"}}, "FABRIC.IMAGE_CONF", "NCCL_IB_GID_INDEX=3"),
        ({"shm_total_bytes": 62 * 1024**2}, "MEM.SHM", "0.06 GiB"),
        ({"shm_total_bytes": None}, "MEM.SHM", "not measured"),
        ({"deployment_state": {"deaths": ["a", "b"]}}, "DEATHS.EXPLAINED", "2 unexplained"),
        (
            {
                "transaction": {
                    "id": "t9",
                    "phase": "boot",
                    "controller": "desk",
                    "opened": 1,
                    "heartbeat": 990,
                    "lease_seconds": 60,
                }
            },
            "LOCK.FREE",
            "t9 of desk",
        ),
        (
            {"containers": [{"name": "mine", "image": "x", "running": True, "uses_gpu": True, "deployment": ""}]},
            "CONTAINER.FOREIGN",
            "mine (x)",
        ),
        (
            {"containers": [{"name": "r", "image": "x", "running": True, "uses_gpu": False, "deployment": "pair_a"}]},
            "CONTAINER.FOREIGN",
            "r (a rank of deployment pair_a)",
        ),
        (
            {"listeners": [{"address": "*", "port": 8000, "process": "nginx", "pid": 7, "container": "", "deployment": ""}]},
            "PORT.FREE",
            "process nginx (pid 7)",
        ),
        (
            {
                "listeners": [
                    {"address": "10.0.0.1", "port": 8000, "process": "x", "pid": 7, "container": "web", "deployment": ""}
                ]
            },
            "PORT.FREE",
            "container web",
        ),
    ],
)
def test_each_thing_amiss_fails_its_own_check(broken: dict[str, Any], failing: str, words: str) -> None:
    made = gate_a({"s1": facts(**broken), "s2": facts()})
    failed = [check for check in made.values() if check.status == "fail"]
    # Without Docker's answer it is not known either who works on the GPU.
    assert [check.id for check in failed] == [failing, *(["CONTAINER.FOREIGN"] if failing == "NODE.DOCKER" else [])]
    assert words in failed[0].found


def process(container: str | None, pid: int = 7) -> dict[str, Any]:
    return {"pid": pid, "name": "python3", "memory_bytes": None, "container": container}


def box(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "nb", "running": True, "uses_gpu": False, "deployment": "", **more}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ""),
        ({"gpu": {"present": True, "processes": [], "error": ""}}, ""),
        # Our own rank, however it asked for the GPU.
        ({"containers": [box("r0", deployment="sparks")], "gpu": {"present": True, "processes": [process("r0")]}}, ""),
        # A container that asked by no known spelling and has it; each is named once.
        (
            {"containers": [box("priv")], "gpu": {"present": True, "processes": [process("priv"), process("priv", 8)]}},
            "priv (nb)",
        ),
        (
            {"containers": [box("cdi", uses_gpu=True)], "gpu": {"present": True, "processes": [process("cdi")]}},
            "cdi (nb)",
        ),
        (
            {"containers": [box("r", deployment="pair_a")], "gpu": {"present": True, "processes": [process("r")]}},
            "r (a rank of deployment pair_a)",
        ),
        ({"gpu": {"present": True, "processes": [process("")]}}, "process python3 (pid 7)"),
        ({"gpu": {"present": True, "processes": [process(None)]}}, "process python3 (pid 7), of which no container is known"),
        ({"gpu": {"present": True, "processes": [process("gone")]}}, "process python3 (pid 7) of container gone"),
        # What could not be found out fails.
        (
            {"gpu": {"present": True, "processes": None, "error": "nvidia-smi: exit 124: the driver hangs"}},
            "not known: the GPU's processes are not known (nvidia-smi: exit 124: the driver hangs)",
        ),
        (
            {"gpu": {"present": True, "processes": None, "error": ""}},
            "not known: the GPU's processes are not known (nvidia-smi does not tell them)",
        ),
        ({"gpu": {}}, "not known: the GPU's processes are not known (it was not asked)"),
        ({"docker": {"error": "no daemon"}}, "not known: Docker does not answer (no daemon)"),
        ({"docker": {}}, "not known: Docker does not answer (it was not asked)"),
    ],
)
def test_who_has_the_gpu_and_is_not_ours(more: dict[str, Any], words: str) -> None:
    check = readiness.strangers("s1", facts(**more), "sparks")
    assert (check.id, check.status, check.found) == ("CONTAINER.FOREIGN", "fail" if words else "pass", words or "none")


@pytest.mark.parametrize("options", [{"gpus": "all"}, {"devices": ["nvidia.com/gpu=all"]}, {"devices": ["/dev/nvidia0"]}])
def test_a_lane_keeps_its_gpu_gates_however_it_asks(options: dict[str, Any]) -> None:
    specs = {host: {**SPECS[host], "options": options} for host in HOSTS}
    known = {host: facts() for host in HOSTS}
    before = {check.id: check for check in launch.gate_a(world(known), HOSTS, specs, {}, "mine", 1001.0)}
    assert "GPU.DRIVER" in before
    assert "DOCKER.GPU" in before
    untold = launch.gate_a(world(known, gates_host={}), HOSTS, specs, {}, "mine", 1001.0)
    assert {check.found for check in untold if check.id == "DOCKER.GPU"} == {"not measured: Docker was not asked"}
    assert "GPU.IDLE" in {check.id for check in gate_b(known, specs)}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ""),
        ({"gpu": {"present": True, "processes": []}}, ""),
        ({"containers": [{"name": "web", "image": "x", "running": True, "uses_gpu": False, "deployment": ""}]}, ""),
        ({"containers": [{"name": "r0", "image": "x", "running": False, "uses_gpu": True, "deployment": "sparks"}]}, ""),
        (
            {"containers": [{"name": "r0", "image": "x", "running": True, "uses_gpu": False, "deployment": "sparks"}]},
            "r0 (a rank of deployment sparks)",
        ),
        (
            {"containers": [{"name": "jupyter", "image": "nb", "running": True, "uses_gpu": True, "deployment": ""}]},
            "jupyter (nb)",
        ),
        ({"gpu": {"present": True, "processes": [{"pid": 7, "name": "python3"}]}}, "process python3 (pid 7)"),
        ({"gpu": {"present": True, "processes": None, "error": "hangs"}}, "not known (hangs)"),
        ({"docker": {"error": "no daemon"}}, "Docker does not answer (no daemon)"),
        (
            {
                "transaction": {
                    "id": "t9",
                    "phase": "boot",
                    "controller": "desk",
                    "opened": 1,
                    "heartbeat": 2,
                    "lease_seconds": 60,
                }
            },
            "t9 of desk",
        ),
    ],
)
def test_what_must_not_run_beside_a_test_of_the_fabric(more: dict[str, Any], words: str) -> None:
    check = readiness.idle("s1", Look(facts(**more)))
    assert (check.id, check.status) == ("NODE.IDLE", "fail" if words else "pass")
    assert words in check.found


def test_a_silent_spark_is_not_idle() -> None:
    assert readiness.idle("s1", look(None)).status == "fail"


def test_our_own_rank_may_hold_the_ports_before_the_stop_and_not_after_it() -> None:
    own = {"address": "10.0.0.1", "port": 8000, "process": "vllm", "pid": 7, "container": "r0", "deployment": "sparks"}
    assert gate_a({"s1": facts(listeners=[own]), "s2": facts()})["s1 PORT.FREE"].status == "pass"
    after = gate_b({"s1": facts(listeners=[own]), "s2": facts()})
    assert [check.id for check in after if check.status == "fail"] == ["PORT.FREE"]


def test_an_api_on_every_address_meets_any_listener() -> None:
    listener = {"address": "10.0.0.7", "port": 8000, "process": "nginx", "pid": 7, "container": "", "deployment": ""}
    for wildcard in ("0.0.0.0", "::"):
        want = [{"purpose": "API", "address": wildcard, "port": 8000}]
        assert readiness.ports("s1", {"listeners": [listener]}, want, "sparks", stopped=True)[0].status == "fail"


def test_a_listener_on_another_address_is_in_nobodys_way() -> None:
    other = {"address": "127.0.0.1", "port": 8000, "process": "x", "pid": 7, "container": "", "deployment": ""}
    assert gate_a({"s1": facts(listeners=[other]), "s2": facts()})["s1 PORT.FREE"].status == "pass"


@pytest.mark.parametrize(
    "result",
    [None, {"changed": True, "actions": ["Fetch 3 files"]}, {"failed": True, "changed": False, "msg": "shard 2 is truncated"}],
)
def test_weights_that_are_not_in_place_fail(result: dict[str, Any] | None) -> None:
    staging: dict[str, Any] = {"s1": result, "s2": STAGED["model_weights_result"]}
    made = gate_a({host: facts() for host in HOSTS}, model_weights_result=staging)
    assert made["s1 WEIGHTS.STAGED"].status == "fail"
    assert made["s2 WEIGHTS.STAGED"].status == "pass"


def test_gate_b_wants_the_old_ranks_gone_and_memory_free() -> None:
    box = {"name": "sparklanes-sparks-rank1", "deployment": "sparks", "running": False}
    short = {"checks": [{"id": "MEM.SETTLED", "host": "s1", "status": "fail", "found": "held: MemFree 3.0 GiB"}]}
    known = {"s1": facts(), "s2": facts(containers=[box])}
    made = gate_b(known, gates_settled={**SETTLED, "s1": short})
    assert {(check.host, check.id) for check in made if check.status == "fail"} == {("s1", "MEM.SETTLED"), ("s2", "RANK.STOPPED")}


def test_memory_that_was_not_settled_was_not_measured() -> None:
    broken = {"failed": True, "msg": "drop_caches: Permission denied. Run with become"}
    made = gate_b({host: facts() for host in HOSTS}, gates_settled={"s1": None, "s2": broken})
    failed = {check.host: check.found for check in made if check.status == "fail"}
    assert failed == {"s1": NOT_ASKED, "s2": "drop_caches: Permission denied. Run with become"}


def test_a_lane_on_gpus_needs_an_idle_gpu_and_one_that_can_be_asked() -> None:
    asked = {host: {**SPECS[host], "options": {"gpus": "all"}} for host in HOSTS}
    busy = facts(gpu={"present": True, "processes": [{"pid": 5, "name": "python3"}], "error": ""})
    made = gate_b({"s1": busy, "s2": facts()}, asked)
    failed = {check.host: check.found for check in made if check.id == "GPU.IDLE" and check.status == "fail"}
    assert failed == {"s1": "python3 (pid 5)", "s2": "nvidia-smi is not installed"}


def test_a_rank_counts_as_alive_only_with_the_right_release() -> None:
    ranks = {"s1": Look({"running": True, "release": "a" * 12}), "s2": Look({"running": True, "release": "b" * 12})}
    made = readiness.ranks_alive(HOSTS, ranks, "a" * 12)
    assert [(check.id, check.status) for check in made] == [("RANK.ALIVE", "pass"), ("RANK.ALIVE", "fail")]
    assert readiness.ranks_alive(["s1"], {"s1": look({"unreachable": True})}, "a" * 12)[0].status == "fail"
    assert readiness.ranks_alive(["s1"], {"s1": Look({"running": False})}, "a" * 12)[0].status == "fail"


def test_listeners_of_a_real_engine() -> None:
    found = parse_ss((FIXTURES / "host" / "listeners" / "ss-vllm-rank0.txt").read_text())
    api = [listener for listener in found if listener.port == 18111]
    assert [(one.address, one.process, one.pid) for one in api] == [("10.77.0.1", "vllm", 27047)]
    assert any(listener.address == "*" for listener in found), "the rendezvous listens on every interface"
    assert all(listener.process for listener in found)


def test_listeners_without_owner_and_of_another_shape() -> None:
    found = parse_ss("LISTEN 0 128 [::]:22 [::]:*\nnonsense\nLISTEN 0 128 [::ffff:10.0.0.1]:80 *:*\n")
    assert [(one.address, one.port, one.pid) for one in found] == [("*", 22, 0), ("10.0.0.1", 80, 0)]


def test_inspect_tells_ours_from_others() -> None:
    entry = {
        "Id": "f" * 64,
        "Name": "/hand-made",
        "Config": {"Image": "x", "Labels": None, "Env": ["A=1"]},
        "HostConfig": {"NetworkMode": "host", "DeviceRequests": [{"Capabilities": [["gpu"]]}]},
        "State": {"Running": True, "Status": "running", "ExitCode": 0},
    }
    box = docker_containers.parse_inspect(json.dumps([entry]))[0]
    assert (box.name, box.uses_gpu, box.deployment, box.host_network) == ("hand-made", True, "", True)
    assert docker_containers.parse_inspect("") == []


def test_a_container_that_goes_away_while_it_is_looked_at_is_no_error() -> None:
    def run(argv: list[str], **_: Any) -> tuple[int, str, str]:
        if argv[1] == "ps":
            return 0, "a\nb\n", ""
        return 1, '[{"Id": "a", "Name": "/x"}]\n', "Error response from daemon: No such container: b\n"

    assert [box.name for box in docker_containers.Docker(run).containers()] == ["x"]

    def broken(argv: list[str], **_: Any) -> tuple[int, str, str]:
        return (0, "a\n", "") if argv[1] == "ps" else (1, "[]", "Cannot connect to the Docker daemon")

    with pytest.raises(docker_containers.DockerError, match="Cannot connect"):
        docker_containers.Docker(broken).containers()


def test_the_container_of_a_process() -> None:
    v2 = "0::/system.slice/docker-" + "ab" * 32 + ".scope\n"
    assert docker_containers.container_of_cgroup(v2) == "ab" * 32
    assert docker_containers.container_of_cgroup("0::/user.slice\n") == ""


def test_each_process_is_told_with_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    box = docker_containers.parse_inspect(
        json.dumps([{"Id": "a" * 64, "Name": "/rank0", "Config": {}, "State": {}, "HostConfig": {}}])
    )
    texts = {
        1: f"0::/system.slice/docker-{'a' * 64}.scope\n",
        2: "0::/user.slice/user-1000.slice/session-1.scope\n",
        3: "",
        4: f"0::/x/docker-{'b' * 64}.scope\n",
    }
    monkeypatch.setattr(readiness_info.gpu_facts, "read", lambda path: texts.get(int(path.parent.name), ""))

    def told(boxes: Any) -> list[Any]:
        found = {"processes": [{"pid": pid} for pid in (*texts, None)]}
        monkeypatch.setattr(readiness_info.gpu_facts, "facts", lambda: found)
        return [process["container"] for process in readiness_info.gpu_seen(boxes)["processes"]]

    assert told(box) == ["rank0", "", None, "", None]
    assert told(None) == [None] * 5


@pytest.mark.parametrize("status", ["running", "exited", "created", "paused"])
def test_a_container_of_a_person_with_the_name_of_a_rank_is_found_before_the_stop(status: str) -> None:
    spec = {**SPECS["s2"], "container": "sparklanes-sparks-rank1"}
    box = {"name": "sparklanes-sparks-rank1", "image": "mine", "status": status, "running": status == "running", "deployment": ""}
    check = readiness.name_free("s2", facts(containers=[box]), spec)
    assert (check.status, check.host, check.id) == ("fail", "s2", "CONTAINER.NAME")
    assert f"(image mine, {status})" in check.found
    assert "docker rename sparklanes-sparks-rank1" in check.remedy
    assert readiness.name_free("s2", facts(containers=[{**box, "deployment": "sparks"}]), spec).status == "pass"
    assert readiness.name_free("s2", facts(containers=[{**box, "name": "other"}]), spec).status == "pass"


def test_a_deployment_that_shrank_leaves_no_rank_behind() -> None:
    """Its old rank would go on, unseen, on the Spark that was dropped."""
    kept = readiness.nodes_kept("s1", facts(current_nodes=["s1", "s2"]), ["s1"])
    assert (kept.status, kept.id) == ("fail", "DEPLOYMENT.NODES")
    assert "runs on s2 too" in kept.found
    assert "playbooks/stop.yml" in kept.remedy
    for nodes in (["s1", "s2"], ["s1"], []):
        assert readiness.nodes_kept("s1", facts(current_nodes=nodes), ["s1", "s2"]).status == "pass"
    assert readiness.nodes_kept("s1", facts(), ["s1", "s2"]).status == "pass", "nothing serves"
    made = gate_a({host: facts(current_nodes=["s1", "s2", "s3"]) for host in HOSTS})
    assert made["s1 DEPLOYMENT.NODES"].status == "fail"


def test_who_runs_what_serves_is_no_pass_where_it_was_not_read() -> None:
    unread = {"current_nodes": None, "current_unread": "release.json can't be read (it is empty)"}
    made = readiness.nodes_kept("s1", facts(**unread, deployment_state={"current": "a" * 12}), ["s1", "s2"])
    assert (made.status, made.found) == ("fail", "not known: release.json can't be read (it is empty)")
    assert "a" * 12 in made.remedy
    assert "from another rank" in made.remedy
    assert "playbooks/stop.yml" in made.remedy
    state = readiness.nodes_kept("s1", facts(**unread, deployment_state={"unreadable": "x"}), ["s1", "s2"])
    assert (state.status, "release.json" in state.remedy) == ("fail", False)
    assert verdict([readiness.nodes_kept("s1", facts(current_nodes=None), ["s1"])]) == "fail"
    assert gate_a({host: facts(**unread) for host in HOSTS})["s1 DEPLOYMENT.NODES"].status == "fail"
