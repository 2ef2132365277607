"""script/bench: names, options, verdicts; and what benchmarks/converge reads from the runs it measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import run
from benchmarks.converge import bench, reading
from benchmarks.figures import Figure, emit
from benchmarks.host import bench as host
from benchmarks.staging import bench as staging_bench
from benchmarks.staging import chain as staging_chain
from benchmarks.staging import peers as staging_peers

DEMO = """
$ ansible-playbook -i inventory/sandbox site.yml -l sparks

PLAY RECAP *********************************************************************
\x1b[0;32mlocalhost\x1b[0m                  : \x1b[0;32mok=1   \x1b[0m changed=0    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0
\x1b[0;33mspark-1\x1b[0m                    : \x1b[0;32mok=20  \x1b[0m \x1b[0;33mchanged=3   \x1b[0m unreachable=0    failed=0    skipped=9
spark-2                    : ok=19   changed=2    unreachable=0    failed=0    skipped=9    rescued=0    ignored=0

$ ansible-playbook -i inventory/sandbox playbooks/launch.yml -l sparks

PLAY RECAP *********************************************************************
spark-1                    : ok=44   changed=7    unreachable=0    failed=1    skipped=3    rescued=1    ignored=0
spark-2                    : ok=40   changed=6    unreachable=1    failed=0    skipped=3    rescued=0    ignored=0
"""


def test_recaps_of_a_demo_belong_to_their_playbooks() -> None:
    found = reading.recaps(DEMO)
    assert [(recap.playbook, recap.host, recap.changed, recap.broken) for recap in found] == [
        ("site.yml", "localhost", 0, 0),
        ("site.yml", "spark-1", 3, 0),
        ("site.yml", "spark-2", 2, 0),
        ("playbooks/launch.yml", "spark-1", 7, 1),
        ("playbooks/launch.yml", "spark-2", 6, 1),
    ]
    assert (reading.changed(found, "site.yml"), reading.changed(found, "playbooks/launch.yml")) == (5, 13)


def test_a_playbook_that_never_ended_has_no_number_of_changes() -> None:
    assert (
        reading.changed(reading.recaps("$ ansible-playbook -i inventory/sandbox site.yml -l sparks\nPLAY [x]"), "site.yml")
        is None
    )
    assert not Figure("x", None, "tasks", 0).ok


def test_recaps_of_one_playbook_carry_the_name_that_the_caller_gives() -> None:
    output = "spark-1   : ok=9  changed=0  unreachable=0  failed=0  skipped=1  rescued=0  ignored=0\n"
    assert reading.recaps(output, "site.yml") == [reading.Recap("site.yml", "spark-1", 0, 0)]


def test_the_demo_announces_its_playbooks_as_we_look_for_them() -> None:
    """The words are script/demo's own: when they change there, nothing would be found here."""
    announce = next(
        line for line in (ROOT / "script/demo").read_text().splitlines() if "ansible-playbook -i" in line and "printf" in line
    )
    done = subprocess.run(
        ["bash", "-c", announce, "demo", "site.yml", "-l", "sparks"], capture_output=True, text=True, check=True
    )
    assert reading.PLAYBOOK.findall(done.stdout) == ["site.yml"]


def test_cpu_time_of_a_node() -> None:
    assert reading.node_cpu("usage_usec 104242917\nuser_usec 70577702\nsystem_usec 33665215\n") == pytest.approx(104.242917)
    with pytest.raises(ValueError, match="usage_usec"):
        reading.node_cpu("nr_periods 0\n")


def test_the_counting_python_counts_each_start_and_is_python(tmp_path: Path) -> None:
    log, program = tmp_path / "the log", tmp_path / "python"
    program.write_text(reading.counting_python(str(log), sys.executable))
    program.chmod(0o755)
    # As Ansible does with pipelining: the module on standard input. All at once, as many forks do.
    script = "import sys, subprocess; subprocess.run([sys.executable, '-c', '']); print(sys.argv[1:], end='')"
    started = [
        subprocess.Popen([program, "-", "a b", '"'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    assert {process.communicate(script)[0] for process in started} == {str(["a b", '"'])}
    assert log.read_text() == "start\n" * 8  # what a module starts itself is part of that module


def test_two_nodes_get_only_the_counting_python() -> None:
    made = yaml.safe_load(reading.inventory("/x/python", {"spark-1": "10.0.0.11", "spark-2": "10.0.0.12"}, pairs=False))
    assert made == {"all": {"children": {"sparks": {"vars": {"ansible_python_interpreter": "/x/python"}}}}}


def test_eight_nodes_are_four_deployments_with_a_head_each() -> None:
    nodes = {f"spark-{n}": f"10.0.0.{10 + n}" for n in range(1, 9)}
    sparks = yaml.safe_load(reading.inventory("/x/python", nodes, pairs=True))["all"]["children"]["sparks"]
    assert [list(group["hosts"]) for group in sparks["children"].values()] == [
        ["spark-1", "spark-2"],
        ["spark-3", "spark-4"],
        ["spark-5", "spark-6"],
        ["spark-7", "spark-8"],
    ]
    assert sparks["children"]["pair_3"]["vars"] == {"deployment": "pair_3", "sandbox_api_host": "10.0.0.15"}


@pytest.mark.parametrize(
    ("figure", "ok"),
    [
        (Figure("a", 15, "n", 15), True),
        (Figure("a", 15.1, "n", 15), False),
        (Figure("a", 99, "n"), True),
        (Figure("a", 0, "n", 0), True),
        (Figure("a", None, "n"), False),
    ],
)
def test_a_figure_is_ok_up_to_its_aim(figure: Figure, ok: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert emit(figure) is ok
    line = capsys.readouterr().out
    assert json.loads(line) == {"figure": "a", "value": figure.value, "unit": "n", "aim": figure.aim, "ok": ok}
    assert run.verdict(line) is ok


def test_lines_that_are_no_figures_judge_nothing() -> None:
    assert [run.verdict(line) for line in ("text\n", "{}", "[1]", '{"ok": false}', "3")] == [None] * 5
    assert run.verdict('{"figure": "x"}') is False  # a figure that doesn't say it is ok is not


def test_benchmarks_are_found_with_their_purpose() -> None:
    known = run.find(ROOT / "benchmarks")
    assert {"converge", "fabric", "staging"} <= set(known)
    assert not {"run", "figures", "__pycache__"} & set(known)
    assert all(run.purpose(path.read_text()) for path in known.values())


@pytest.mark.parametrize(
    ("words", "names", "options"),
    [
        ([], [], []),
        (["fabric", "staging"], ["fabric", "staging"], []),
        (["converge", "--only", "site"], ["converge"], ["--only", "site"]),
        (["--help"], [], ["--help"]),
    ],
)
def test_options_begin_with_a_dash_and_are_passed_on(words: list[str], names: list[str], options: list[str]) -> None:
    assert run.split(words) == (names, options)


def test_an_unknown_name_is_an_error_that_tells_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["stagin"]) == 2
    assert "there is no benchmark 'stagin'. The nearest name is staging." in capsys.readouterr().err
    assert run.main(["fabric", "zzz"]) == 2  # and nothing ran
    told = capsys.readouterr()
    assert "The nearest" not in told.err
    assert "There are: converge, fabric" in told.err
    assert told.out == ""


def program(folder: Path, text: str) -> Path:
    path = folder / "made"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("""print('{"figure": "x", "ok": true}')""", True),
        ("""print('{"figure": "x", "ok": false}')""", False),  # although it ends with 0
        ("import sys; sys.exit(3)", False),
        ("import sys; assert sys.argv[1:] == ['--a', 'b']", True),
    ],
)
def test_a_run_is_as_good_as_its_figures_and_its_end(tmp_path: Path, text: str, good: bool) -> None:
    assert run.run(program(tmp_path, text), ["--a", "b"]) is good


def test_the_clone_starts_fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{ROOT}/.venv/bin:/usr/bin:/bin")
    monkeypatch.setenv("ANSIBLE_CONFIG", "elsewhere")
    monkeypatch.setenv("VIRTUAL_ENV", "elsewhere")
    made = bench.environment(tmp_path)
    assert made["PATH"] == "/usr/bin:/bin"
    assert made["PIP_CACHE_DIR"] == str(tmp_path / "pip")
    assert not {"ANSIBLE_CONFIG", "VIRTUAL_ENV"} & set(made)


def test_a_command_and_what_it_started_end_together(tmp_path: Path) -> None:
    script = "trap '' INT; sleep 300 & echo $! > pid; wait"
    process = subprocess.Popen(["sh", "-c", script], cwd=tmp_path, start_new_session=True)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert process.poll() is None
    bench.end(process, (0.1, 20, 20))
    # The child doesn't mind the first signal, and outlives it.
    child = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    assert process.returncode is not None
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_fails_is_told_with_its_end_and_where_the_rest_is(tmp_path: Path) -> None:
    made = bench.Bench(tmp_path, {"PATH": "/usr/bin:/bin"})
    made.clone.mkdir()
    assert made.run("sh", "-c", "echo fine") == "fine\n"
    with pytest.raises(bench.BenchError, match=r"ended with 4.*\n.*no disk"):
        made.run("sh", "-c", "echo no disk; exit 4")
    assert "fine\n" in made.log.read_text()


PROFILED = """
TASKS RECAP ********************************************************************
Monday 30 November 2026  01:00:00 +0000 (0:00:00.4)       0:00:09.1 *******
===============================================================================
\x1b[0;32mroce : Find the fabric and prove what NCCL will use --------------------- 1.25s\x1b[0m
gates : Look at every rank ---------------------------------------------- 2.50s
model_weights : See what is staged -------------------------------------- 3.00s
Say what a launch would do ---------------------------------------------- 0.04s
gates : Judge gate A ---------------------------------------------------- 0.10s
"""


def test_the_host_part_of_a_gate_is_the_tasks_of_its_roles() -> None:
    assert host.task_seconds(PROFILED, ("roce", "gates")) == [
        ("roce : Find the fabric and prove what NCCL will use", 1.25),
        ("gates : Look at every rank", 2.5),
        ("gates : Judge gate A", 0.1),
    ]
    assert host.task_seconds("PLAY RECAP ****", ("roce", "gates")) == []  # and then it wasn't measured
    assert all((ROOT / "roles" / role / "tasks").is_dir() for role in (*host.GATE_ROLES, *host.ROLES))


def test_only_the_missing_engine_may_stop_the_measured_gate() -> None:
    table = """
    msg: |-
        FAIL  IMAGE.PINS             spark-1                    vllm not in the image  (want vllm 0.32.0)
        WARN  PARITY.CLOCK           all                        not synchronised
        PASS  IMAGE.DIGEST           all                        sha256:a70a00ee8d37 (by name)
        → spark-1 IMAGE.PINS: The image is not the one that the lane was measured with
    """
    assert host.faults(table) == host.LIGHT_FAULTS
    assert host.faults(table.replace("WARN ", "FAIL ")) == {"IMAGE.PINS", "PARITY.CLOCK"}


def test_how_much_later_a_file_comes_to_the_next_node() -> None:
    run = staging_chain.Run(9.0, [], [{"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 3.0}, {"a": 2.5, "b": 3.2}])
    assert run.hop == pytest.approx(0.6), "the last files at 2.0 and, two hops on, 3.2"
    assert run.file_hop == pytest.approx(0.75), "the middle of 0.5, 1.0, 1.0, 0.2"


def test_a_peer_that_is_not_here_or_fails_gives_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot(venv: Path, *_: object) -> bool:
        raise staging_peers.weights_hub.HubError("no index")

    monkeypatch.setattr(staging_peers.hub_client, "ensure", cannot)
    assert not staging_bench.compared(tmp_path, "http://127.0.0.1:9", "c" * 40, tmp_path, 1.0)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["value"], one["ok"], one["note"]) for one in told] == [(None, False, "no Hub client: no index")] * 2
    monkeypatch.setattr(staging_peers.shutil, "which", lambda *_, **__: None)
    with pytest.raises(staging_peers.Missing, match="apt-get install openssh-server"), staging_peers.ssh_server(tmp_path / "ssh"):
        pytest.fail("no server, and yet it goes on")
