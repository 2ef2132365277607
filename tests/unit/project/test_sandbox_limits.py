# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A table of machines, and whether their kernel grants what the sandbox has podman ask for."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import FIXTURES, ROOT
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(ROOT))

from sandbox import limits
from sandbox.limits import PODMAN_DEFAULT, UNLIMITED, LimitFacts

DEFAULT = PODMAN_DEFAULT
CAPABLE = LimitFacts(nofile=DEFAULT, nproc=UNLIMITED, nr_open=DEFAULT, pid_max=4194304, threads_max=254034, may_raise=True)
BOUND = replace(CAPABLE, nofile=20000, nproc=20000, may_raise=False)


def granted(facts: LimitFacts, name: str, own: int, asked: int) -> bool:
    """The kernel's answer to setrlimit(hard=asked) of a process whose own hard limit is `own`."""
    if name == "nofile" and asked > facts.nr_open:
        return False
    return asked <= own or facts.may_raise


def in_podman(facts: LimitFacts) -> dict[str, int]:
    """Hard limits of a podman that has just started: each number it tries, until one is granted."""
    tried = {"nofile": [DEFAULT], "nproc": [facts.pid_max, DEFAULT]}
    own = {"nofile": facts.nofile, "nproc": facts.nproc}
    return {name: next((n for n in tried[name] if granted(facts, name, own[name], n)), own[name]) for name in own}


def refused(facts: LimitFacts, asked: dict[str, int]) -> list[str]:
    """What crun, podman's child, isn't granted; podman asks for its default where nothing is said."""
    have = in_podman(facts)
    return [name for name in have if not granted(facts, name, have[name], asked.get(name, DEFAULT))]


@pytest.mark.parametrize(
    ("facts", "asked"),
    [
        pytest.param(CAPABLE, {}, id="may raise: podman's own defaults"),
        pytest.param(replace(CAPABLE, nofile=1024, nproc=100), {}, id="may raise from below"),
        pytest.param(replace(CAPABLE, nr_open=65536), {"nofile": 65536}, id="may raise, but nobody above fs.nr_open"),
        pytest.param(replace(CAPABLE, nr_open=2**30), {}, id="fs.nr_open above podman's default"),
        pytest.param(replace(BOUND, nproc=96365, pid_max=32768), {"nofile": 20000, "nproc": 32768}, id="hard above pid_max"),
        pytest.param(replace(BOUND, nproc=32768, pid_max=32768), {"nofile": 20000, "nproc": 32768}, id="hard is pid_max"),
        pytest.param(replace(BOUND, nproc=4096, pid_max=32768), {"nofile": 20000, "nproc": 4096}, id="hard below pid_max"),
        pytest.param(replace(BOUND, nproc=UNLIMITED, pid_max=32768), {"nofile": 20000, "nproc": 32768}, id="unlimited"),
        pytest.param(
            replace(BOUND, nproc=2000000, threads_max=3000000), {"nofile": 20000, "nproc": DEFAULT}, id="below a large pid_max"
        ),
        pytest.param(replace(BOUND, nproc=UNLIMITED, threads_max=9000), {"nofile": 20000, "nproc": 9000}, id="few threads"),
        pytest.param(replace(BOUND, nofile=UNLIMITED), {"nofile": DEFAULT, "nproc": 20000}, id="files unlimited"),
        pytest.param(replace(BOUND, nofile=2**20 + 1, nr_open=2**30), {"nofile": DEFAULT, "nproc": 20000}, id="files above"),
        pytest.param(replace(BOUND, nofile=65536, nr_open=65536), {"nofile": 65536, "nproc": 20000}, id="files at fs.nr_open"),
        pytest.param(replace(BOUND, nofile=65536, nr_open=4096), {"nofile": 4096, "nproc": 20000}, id="fs.nr_open was lowered"),
    ],
)
def test_machines(facts: LimitFacts, asked: dict[str, int]) -> None:
    assert limits.ulimits(facts) == asked
    assert refused(facts, asked) == []


def test_what_was_asked_before_is_refused_on_the_machine_where_it_was() -> None:
    """The table can fail: the hard limit itself, where podman has lowered its own to kernel.pid_max."""
    assert refused(replace(BOUND, nproc=96365, pid_max=32768), {"nofile": 20000, "nproc": 96365}) == ["nproc"]
    assert refused(replace(CAPABLE, nr_open=65536), {}) == ["nofile"]
    assert refused(BOUND, {}) == ["nofile", "nproc"]


NUMBER = st.integers(64, 2**23) | st.sampled_from([4096, 32768, 65536, DEFAULT, 4194304])
HARD = NUMBER | st.just(UNLIMITED)


@given(
    st.builds(LimitFacts, nofile=HARD, nproc=HARD, nr_open=NUMBER, pid_max=NUMBER, threads_max=NUMBER, may_raise=st.booleans())
)
def test_no_machine_refuses(facts: LimitFacts) -> None:
    assert refused(facts, limits.ulimits(facts)) == []
    assert all(0 < value <= DEFAULT for value in limits.ulimits(facts).values())


def test_hard_limits_of_a_recorded_process() -> None:
    found = limits.hard_limits((FIXTURES / "sandbox/limits-bound.txt").read_text())
    assert (found["Max open files"], found["Max processes"], found["Max locked memory"]) == (20000, 96365, 8388608)
    assert found["Max cpu time"] == UNLIMITED


def test_hard_limits_of_this_process() -> None:
    """The kernel's text says what getrlimit does."""
    found = limits.hard_limits(Path("/proc/self/limits").read_text())
    for name, number in (("Max open files", resource.RLIMIT_NOFILE), ("Max processes", resource.RLIMIT_NPROC)):
        hard = resource.getrlimit(number)[1]
        assert found[name] == (UNLIMITED if hard == resource.RLIM_INFINITY else hard)


@pytest.mark.parametrize(
    ("uid_map", "first"),
    [("         0          0 4294967295\n", True), ("         0       1000          1\n", False), ("0 100000 65536\n", False)],
)
def test_a_user_namespace_of_ones_own_raises_nothing(uid_map: str, first: bool) -> None:
    assert limits.is_first_user_namespace(uid_map) == first


@pytest.mark.parametrize("limit", [resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC])
def test_this_kernel_answers_as_the_table_says(limit: int) -> None:
    """A child without CAP_SYS_RESOURCE may not go back above the hard limit that it lowered, root or not."""
    script = (
        "import ctypes, resource, sys; n = int(sys.argv[1]); resource.setrlimit(n, (512, 512));"
        "libc = ctypes.CDLL(None, use_errno=True); libc.setresuid(65534, 65534, 65534);"
        "resource.setrlimit(n, (512, 512));\n"
        "try: resource.setrlimit(n, (513, 513)); print('granted')\n"
        "except ValueError as error: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", script, str(limit)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "refused"
