"""The evidence of all ranks: who died, of what, and who only says that somebody did."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.registered import Look, look
from ansible.module_utils.sparklanes.docker import refusals
from ansible.module_utils.sparklanes.engine import log as engine_log
from ansible.module_utils.sparklanes.host import kernel_log
from ansible.module_utils.sparklanes.release import cause as rules
from ansible.module_utils.sparklanes.release import evidence_of_rank
from conftest import FIXTURES, ROOT

NOTHING: dict[str, Any] = {}
STARTED = 1_800_000_000.0
SILENT = look({"unreachable": True, "msg": "timed out"})


def rank(exit_code: int | None = None, *lines: dict[str, Any], oom: bool = False, **more: Any) -> dict[str, Any]:
    """What rank_info says of a rank: it runs where no exit code is given."""
    evidence = {
        "started": STARTED,
        "boot_time": STARTED - 86400,
        "kernel": [],
        "journal": [],
        "unread": [],
        **more.pop("evidence", {}),
    }
    return {
        "running": exit_code is None,
        "container": {"name": "r", "status": "running" if exit_code is None else "exited", "exit_code": exit_code or 0, "oom_killed": oom,
                      "error": more.pop("error", "")},
        "log": {"failures": list(lines), "last_line": more.pop("last_line", "")},
        "evidence": evidence,
        **more,
    }  # fmt: skip


def line(code: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"code": code, "message": message or code, "remedy": "do.", "consequence": False, "hardware_or_memory": False, **more}


def finding(id: str, message: str = "", hardware: bool = True) -> dict[str, Any]:
    return {"id": id, "message": message or id, "remedy": "do.", "hardware_or_memory": hardware}


LOST = line("peer_lost", "another rank closed its connection", consequence=True)
TIMED_OUT = line("rpc_timeout", "a rank did not answer sample_tokens in time", consequence=True)
LINK = {"kernel": [finding("link_down", "the link of enp1s0f0np0 went down")]}


def weigh(s0: Any, s1: Any, **failure: Any) -> dict[str, Any]:
    known = {host: facts if isinstance(facts, Look) else Look(facts) for host, facts in (("s0", s0), ("s1", s1))}
    return rules.weigh(known, {"task": "Gate alive", "msg": "Gate alive stopped the launch", **failure})


@pytest.mark.parametrize(
    ("s1", "id", "words", "waits", "death"),
    [
        (rank(137, oom=True), "oom_killed", "killed for memory (exit code 137, SIGKILL, OOMKilled)", True, True),
        (rank(0, oom=True), "oom_killed", "killed for memory (exit code 0, OOMKilled)", True, True),
        (rank(137, evidence={"kernel": [finding("oom_killed", "the kernel killed VLLM")]}), "oom_killed", "the kernel killed VLLM", True, True),
        (rank(137), "rank_killed", "Docker saw no lack of memory", False, True),
        (rank(137, evidence={"unread": ["the kernel log could not be read"]}), "rank_killed", "the kernel log could not be read", False, True),
        (rank(143), "rank_terminated", "asked to end (exit code 143, SIGTERM)", False, True),
        (rank(143, evidence={"journal": [finding("memory_killer", "earlyoom sent SIGTERM to it")]}), "memory_killer", "earlyoom", True, True),
        (rank(137, evidence={"journal": [finding("docker_restarted", "Docker was restarted", False)]}), "docker_restarted",
         "Docker was restarted, which ended its container", False, False),
        (rank(139), "rank_segfault", "SIGSEGV", False, True),
        (rank(135), "rank_bus_error", "SIGBUS", False, True),
        (rank(134), "rank_aborted", "SIGABRT", False, True),
        (rank(132), "rank_illegal_instruction", "SIGILL", False, True),
        (rank(131), "rank_signal", "SIGQUIT", False, True),
        (rank(255), "rank_vanished", "exit code 255", False, True),
        (rank(255, evidence={"boot_time": STARTED + 60}), "machine_rebooted", "went down and booted again", True, True),
        (rank(143, evidence={"boot_time": STARTED + 60}), "machine_rebooted", "went down and booted again", True, True),
        (rank(0, line("worker_died", "VllmWorker-1 died", death=True)), "worker_died", "VllmWorker-1 died", False, True),
        (rank(0, line("disk_full", "a disk is full")), "disk_full", "a disk is full", False, False),
        (rank(None, evidence=LINK), "link_down", "went down", True, False),
        (rank(1, last_line="Segmentation"), "rank_ended", "its last line: Segmentation", False, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", [LOST, TIMED_OUT])
def test_a_consequence_on_one_rank_hides_nothing_of_another(
    first: dict[str, Any], s1: dict[str, Any], id: str, words: str, waits: bool, death: bool
) -> None:
    for head in (rank(0, first), rank(None, first), rank(134, first)):
        why = weigh(head, s1)
        assert (why["id"], why["host"]) == (id, "s1")
        assert why["sentence"].startswith("s1: ")
        assert words in why["sentence"]
        assert why["hardware_or_memory"] is waits
        assert bool(why["death"]) is death
        assert any(other["id"] == first["code"] and other["consequence"] for other in why["also"])


# Each is weightier than all that follow it, on whichever rank it was found.
ORDER = [
    ("machine_rebooted", rank(255, evidence={"boot_time": STARTED + 60})),
    ("rank_killed", rank(137)),
    ("kv_too_small", rank(1, line("kv_too_small"))),
    ("link_down", rank(None, evidence=LINK)),
    ("docker_refused", rank(127, error="OCI runtime create failed")),
    ("rank_ended", rank(1)),
    ("peer_lost", rank(0, LOST)),
]


@pytest.mark.parametrize("above", range(len(ORDER)))
def test_the_order_of_evidence(above: int) -> None:
    for id, facts in ORDER[above + 1 :]:
        for why in (weigh(ORDER[above][1], facts), weigh(facts, ORDER[above][1])):
            assert why["id"] == ORDER[above][0], id


def test_two_explanations_on_two_ranks_are_both_said() -> None:
    why = weigh(rank(1, line("kv_too_small", "the pool is too small", hardware_or_memory=True)), rank(137))
    assert why["sentence"].startswith("s1: its container was killed")
    assert "s0: the pool is too small." in why["sentence"]
    assert why["hardware_or_memory"], "whatever another rank's log says"


def test_a_consequence_is_no_second_explanation() -> None:
    assert "another rank closed" not in weigh(rank(0, LOST), rank(137))["sentence"]
    only = weigh(rank(0, LOST), rank(None))
    assert (only["id"], only["sentence"], only["death"]) == ("peer_lost", "s0: another rank closed its connection.", "")


def test_what_a_process_did_to_itself_is_said_in_its_own_words() -> None:
    why = weigh(rank(134, line("gpu_fault", "the GPU reported a fault", hardware_or_memory=True)), rank(0, LOST))
    assert (why["id"], why["host"]) == ("gpu_fault", "s0")
    assert why["death"] == "s0: the GPU reported a fault."
    aborted = weigh(rank(134, LOST), rank(None))
    assert (aborted["id"], aborted["death"]) == ("peer_lost", ""), "the watchdog of NCCL aborts a rank whose peer is lost"


@pytest.mark.parametrize(
    ("addresses", "peer", "host"),
    [
        ({"s0": ["10.0.0.1", "127.0.0.1"], "s1": ["10.0.0.2", "127.0.0.1"]}, "10.0.0.2", "s1"),
        ({"s0": ["10.0.0.1"], "s1": ["fe80::2"]}, "fe80::2", "s1"),
        ({"s0": ["10.0.0.1", "127.0.0.1"], "s1": ["10.0.0.2", "127.0.0.1"]}, "127.0.0.1", "s0"),
        ({"s0": ["10.0.0.1"], "s1": ["10.0.0.2"]}, "10.0.0.9", "s0"),
    ],
)
def test_the_peer_that_is_named_is_the_rank_that_was_lost(addresses: dict[str, list[str]], peer: str, host: str) -> None:
    why = weigh(
        rank(0, {**LOST, "peers": [peer]}, evidence={"addresses": addresses["s0"]}),
        rank(None, evidence={"addresses": addresses["s1"]}),
    )
    assert why["host"] == host
    assert why["id"] == ("rank_lost" if host == "s1" else "peer_lost")
    assert not why["death"]


def test_ranks_that_lost_each_other_are_cut_off() -> None:
    why = weigh(
        rank(0, {**LOST, "peers": ["10.0.0.2"]}, evidence={"addresses": ["10.0.0.1"]}),
        rank(0, {**LOST, "peers": ["10.0.0.1"]}, evidence={"addresses": ["10.0.0.2"]}),
    )
    assert why["id"] == "fabric_cut"
    assert "lost each other" in why["sentence"]
    assert not why["death"], "a cable is no death"


def test_a_spark_that_its_peers_lost_and_that_does_not_answer_is_gone() -> None:
    for lost in (LOST, TIMED_OUT, {**LOST, "peers": ["10.0.0.2"]}):
        why = weigh(rank(0, lost, evidence={"addresses": ["10.0.0.1"]}), SILENT)
        assert (why["id"], why["host"], why["hardware_or_memory"]) == ("machine_gone", "s1", True)
        assert why["death"]
    assert weigh(rank(1, line("kv_too_small"), LOST), SILENT)["id"] == "kv_too_small", "what died of itself lost nobody"
    still = weigh(rank(None), SILENT)
    assert (still["id"], still["hardware_or_memory"]) == ("step_failed", False), "ssh alone is no death"


@pytest.mark.parametrize(
    ("error", "id", "hardware"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "docker_refused", True),
        ("could not select device driver \"nvidia\" with capabilities: [[gpu]]", "docker_refused", True),
        ("failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
         "container process: error during container init: error running createContainer hook #0: exit status 1", "docker_refused", True),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all", "docker_refused", True),
        ("nvidia-container-cli: initialization error: nvml error: driver/library version mismatch", "docker_refused", True),
        ('error gathering device information while adding custom device "/dev/infiniband": no such file or directory', "docker_refused", True),
        ('exec: "vllmm": executable file not found in $PATH', "docker_refused", False),
        ("write /var/lib/docker/x: no space left on device", "disk_full", False),
        ("something that nobody has seen", "docker_refused", False),
    ],
)  # fmt: skip
def test_the_words_of_docker_are_the_cause(error: str, id: str, hardware: bool) -> None:
    for code in (125, 126, 127, 128):
        s1 = rank(code, error=error)
        why = weigh(rank(0, LOST), s1)
        assert (why["id"], why["host"], why["hardware_or_memory"], why["death"]) == (id, "s1", hardware, "")
        assert error[:60] in why["sentence"]


def test_a_module_that_docker_refused_speaks_for_its_own_host() -> None:
    words = (
        'docker start failed (exit 1): Error response from daemon: could not select device driver "" with capabilities: [[gpu]]'
    )
    why = weigh(NOTHING, rank(None), msg=words, said={"s1": words, "elsewhere": words})
    assert (why["id"], why["host"], why["hardware_or_memory"]) == ("docker_refused", "s1", True)
    down = look(
        {"failed": True, "msg": "docker ps failed (exit 1): Cannot connect to the Docker daemon at unix:///var/run/docker.sock"}
    )
    why = weigh(rank(0, LOST), down)
    assert (why["id"], why["host"]) == ("docker_down", "s1")
    full = weigh(rank(None), rank(None), said={"s1": "[Errno 28] No space left on device: '/var/log/sparklanes/x'"})
    assert (full["id"], full["host"], full["death"]) == ("disk_full", "s1", "")


def test_what_a_kernel_says_of_healthy_ranks_goes_beside_what_was_refused() -> None:
    why = weigh(rank(None), rank(None, evidence=LINK))
    assert why["sentence"] == "s1: the link of enp1s0f0np0 went down. Gate alive stopped the launch (in 'Gate alive')."
    remark = weigh(rank(None), rank(None, evidence={"kernel": [finding("xid", "Xid 201", hardware=False)]}))
    assert (remark["id"], remark["host"], remark["hardware_or_memory"]) == ("step_failed", "", False)
    assert [one["id"] for one in remark["also"]] == ["xid"]


def test_a_paused_container_is_named() -> None:
    paused = rank(None)
    paused["container"]["status"] = "paused"
    assert weigh(paused, rank(None))["sentence"] == "s0: its container r is paused."


def test_an_answer_of_an_older_module_is_weighed() -> None:
    old = {"running": False, "container": {"name": "r"}, "log": {"failures": [{"message": "out of memory"}]}}
    assert weigh(old, NOTHING)["sentence"] == "s0: out of memory."
    assert weigh(NOTHING, NOTHING)["id"] == "step_failed"


def test_every_cause_has_its_id_and_node_in_what_goes_on() -> None:
    why = weigh(rank(0, LOST), rank(137, line("gpu_oom")))
    assert {"id", "host", "sentence", "remedy", "hardware_or_memory", "death", "consequence"} <= set(why["also"][0])
    assert [one["id"] for one in why["also"]] == ["gpu_oom", "peer_lost"]


def test_the_lines_of_the_engine_are_taken_as_they_come() -> None:
    read = engine_log.read("torch.OutOfMemoryError: CUDA out of memory.").to_dict()
    assert weigh({**rank(1), "log": read}, NOTHING)["id"] == "gpu_oom"


def test_a_process_in_a_container_that_was_killed_for_memory() -> None:
    short = {"kernel": [finding("oom_killed", "the kernel killed a process for memory (Killed process 7)")]}
    for end in (None, 0):
        why = weigh(rank(0, LOST), rank(end, line("killed", "VllmWorker-1 was killed", death=True), evidence=short))
        assert (why["id"], why["host"], why["hardware_or_memory"]) == ("oom_killed", "s1", True)
    other = weigh(rank(0, LOST), rank(0, line("killed", "VllmWorker-1 was killed", death=True)))
    assert (other["id"], other["hardware_or_memory"]) == ("killed", False)


def test_a_rank_that_ended_in_good_order_was_asked_to() -> None:
    gone = rank(0)
    gone["log"]["ended"] = True
    why = weigh(rank(None), gone)
    assert (why["id"], why["host"], bool(why["death"])) == ("rank_terminated", "s1", True)
    raised = rank(1)
    raised["log"]["exception"] = "ValueError: no such thing"
    why = weigh(rank(0, LOST), raised)
    assert (why["id"], why["host"], why["death"]) == ("engine_exception", "s1", "")
    assert "it raised ValueError: no such thing" in why["sentence"]


def test_a_boot_that_stands_still_says_where_and_no_death() -> None:
    words = (
        "s0: boot: no sign of life for 302 s (limit 300 s), last seen: x. It was not stopped: see its log on the node, then run the same "
        "command to attach again"
    )
    waiting = rank(None)
    waiting["log"] |= {"phase": "rendezvous", "progress": "waiting for the other ranks (rank 0 of 2)"}
    other = rank(None)
    other["log"] |= {"phase": "rendezvous", "progress": "waiting for the other ranks (rank 1 of 2)"}
    why = weigh(waiting, other, msg=words)
    assert (why["id"], why["host"], why["death"], why["hardware_or_memory"]) == ("boot_stalled", "", "", False)
    assert "attach again" not in why["sentence"], "what stood still was stopped since"
    assert "no sign of life for 302 s (limit 300 s)" in why["sentence"]
    assert "s0 and s1 wait for each other" in why["sentence"]
    starting = rank(None)
    starting["log"] |= {"phase": "init", "progress": "starting"}
    assert "s1: starting" in weigh(waiting, starting, msg=words)["sentence"]
    assert weigh(waiting, rank(137), msg=words)["id"] == "rank_killed"


def test_a_fabric_that_failed_its_check_is_the_cause() -> None:
    assert weigh(rank(None), rank(None), checks=["FABRIC.PEER"])["id"] == "fabric_cut"


# --- both ranks of recorded deaths -------------------------------------------------------------------------------


def of_log(name: str, exit_code: int | None = 0, **more: Any) -> dict[str, Any]:
    read = engine_log.read((FIXTURES / "engine" / f"{name}.log").read_text(encoding="utf-8"), "socket").to_dict()
    return {**rank(exit_code, **more), "log": read}


@pytest.mark.parametrize(
    ("s0", "s1", "id", "host", "death"),
    [
        (of_log("gpu/K-kill-flight.rank0"), rank(137), "rank_killed", "s1", True),
        (of_log("gpu/K-kill-idle.rank0"), rank(137), "rank_killed", "s1", True),
        (of_log("gpu/K-kill-idle.rank0", 134), rank(137, oom=True), "oom_killed", "s1", True),
        (of_log("gpu/K-killworker-flight.rank0"), of_log("gpu/K-killworker-flight.rank1"), "worker_died", "s1", True),
        (of_log("gpu/K-killhead-worker.rank0"), of_log("gpu/K-killhead-worker.rank1", None), "worker_died", "s0", True),
        (of_log("gpu/E-ifname.rank0"), of_log("gpu/E-ifname.rank1"), "nccl_interface", "s0", False),
        (of_log("rank1_killed_rank0"), of_log("netns_rank1_worker_killed_rank1"), "worker_died", "s1", True),
        (of_log("rank1_killed_rank0"), rank(255, evidence={"boot_time": STARTED + 9}), "machine_rebooted", "s1", True),
        (of_log("netns_linkdown_rank0"), rank(None, evidence=LINK), "link_down", "s1", False),
        (of_log("netns_linkdown_rank0"), SILENT, "machine_gone", "s1", True),
        (of_log("alone_r0_t45", 1), of_log("gpu/E-no-model.rank0", 1), "model_not_found", "s1", False),
        (of_log("alone_r0_t45", 1), rank(127, error="OCI runtime create failed"), "docker_refused", "s1", False),
        (of_log("netns_linkdown_rank0"), of_log("pp2_assert_rank1"), "worker_exception", "s1", False),
        (of_log("gpu/P1.rank0", None), of_log("gpu/P1.rank1", None), "step_failed", "", False),
    ],
)  # fmt: skip
def test_recorded_deaths_of_two_ranks(s0: Any, s1: Any, id: str, host: str, death: bool) -> None:
    why = weigh(s0, s1)
    assert (why["id"], why["host"], bool(why["death"])) == (id, host, death), why["sentence"]


def test_the_order_of_the_hosts_changes_nothing() -> None:
    worker, head = of_log("gpu/K-killworker-flight.rank1"), of_log("gpu/K-killworker-flight.rank0")
    assert (weigh(worker, head)["id"], weigh(worker, head)["host"]) == ("worker_died", "s0")


def made_in(module: str) -> set[str]:
    """The ids of causes that a module makes by name."""
    tree = ast.parse((ROOT / "module_utils/sparklanes/release" / f"{module}.py").read_text(encoding="utf-8"))
    calls = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Cause"
    )
    return {str(call.args[0].value) for call in calls if isinstance(call.args[0], ast.Constant)}


def test_the_page_names_every_cause() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page.partition("### Why it failed")[2].partition("\n## ")[0]
    told = set(re.findall(r"`([a-z_]+)`", table))
    grave = {kind.cause or kind.name for kind in kernel_log.KINDS if kind.grave} - {"oom_killed"}
    known = made_in("evidence_of_rank") | made_in("cause") | set(evidence_of_rank.BY_ITSELF.values()) | grave
    known |= {id for _, id, _, _, _ in refusals.KNOWN} | {
        "memory_killer",
        "docker_restarted",
        "gpu_xid_fatal",
        "boot_stalled",
        "step_failed",
    }
    assert known <= told, known - told


def test_a_rank_that_ended_in_good_order_may_have_been_ended_by_its_machine() -> None:
    for id, grave in (("memory_killer", True), ("docker_restarted", False)):
        gone = rank(0, evidence={"journal": [finding(id, id, grave)]})
        gone["log"]["ended"] = True
        why = weigh(rank(0, LOST), gone)
        assert (why["id"], why["host"], why["hardware_or_memory"], bool(why["death"])) == (id, "s1", grave, grave)
    assert (
        weigh(rank(0, LOST), rank(255, evidence={"journal": [finding("docker_restarted", "x", False)]}))["id"]
        == "docker_restarted"
    )
    worker = rank(
        0,
        line("worker_died", "VllmWorker-1 died", death=True),
        evidence={"journal": [finding("memory_killer", "earlyoom sent SIGTERM to 7")]},
    )
    assert weigh(rank(0, LOST), worker)["id"] == "memory_killer"


def test_a_fabric_that_is_cut_because_a_spark_is_gone() -> None:
    cut = line("fabric_cut", "the fabric is cut: rail 0 to s1: no byte came back", hardware_or_memory=True)
    assert weigh(rank(None, cut), SILENT)["id"] == "machine_gone"
    assert weigh(rank(None, cut), rank(None))["id"] == "fabric_cut"
    assert weigh(rank(None, cut), rank(255, evidence={"boot_time": STARTED + 60}))["id"] == "machine_rebooted"
    assert weigh(rank(None, cut), rank(137))["id"] == "rank_killed"
    assert not weigh(rank(None, cut), rank(None, cut))["death"]
