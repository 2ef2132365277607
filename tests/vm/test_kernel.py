"""Kernel settings on a real kernel: they win, hold over a reboot and a power cut, and go away again."""

from __future__ import annotations

import pytest
from conftest import ETC, NODES, SWAPPINESS, USER, Person, Session, until

FIRST, SECOND = NODES
OURS = "/etc/sysctl.d/99-zz-sparklanes.conf"


def applied(person: Person, node: str, program: str) -> str:
    """Swappiness after a program has read all files anew, from a value that no file has."""
    person.on(node, f"echo 77 > /proc/sys/vm/swappiness; {program} >/dev/null 2>&1 || true")
    return person.swappiness(node)


BOOT, PEOPLE = "/lib/systemd/systemd-sysctl", "sysctl --system"


def test_site_yml_sets_it_and_a_second_run_changes_nothing(person: Person) -> None:
    assert {node: person.swappiness(node) for node in NODES} == dict.fromkeys(NODES, SWAPPINESS)
    assert person.site().ok().changed == 0


@pytest.mark.parametrize(
    ("path", "winners"),
    [
        ("/etc/sysctl.d/99-zzz-site.conf", {BOOT, PEOPLE}),
        ("/run/sysctl.d/99-zzz-tuned.conf", {BOOT, PEOPLE}),
        ("/etc/sysctl.conf", {PEOPLE}),
    ],
)
def test_a_file_that_would_win_is_named_and_refused(person: Person, path: str, winners: set[str]) -> None:
    """The programs themselves say which of them it misleads; then the role has to have seen it."""
    person.on(FIRST, f"test ! -e {path} || cp -a {path} /root/kept")
    person.on(FIRST, f"mkdir -p {path.rpartition('/')[0]} && printf '\\nvm.swappiness = 3\\n' >> {path}")
    try:
        assert {program for program in (BOOT, PEOPLE) if applied(person, FIRST, program) == "3"} == winners
        person.on(FIRST, f"echo {SWAPPINESS} > /proc/sys/vm/swappiness")
        before = person.on(FIRST, f"cat {OURS}")
        person.role("spark_kernel", spark_kernel_swappiness=20).failed(path, "sets 3", "expected 20", "Remove that line")
        assert person.on(FIRST, f"cat {OURS}") == before
        assert person.swappiness(FIRST) == SWAPPINESS
    finally:
        person.on(FIRST, f"rm -f {path}; test ! -e /root/kept || mv /root/kept {path}")
    assert [applied(person, FIRST, program) for program in (BOOT, PEOPLE)] == [SWAPPINESS, SWAPPINESS]


@pytest.mark.parametrize("value", [300, -1])
def test_nonsense_never_reaches_the_disk(person: Person, value: int) -> None:
    before = person.on(FIRST, ETC)
    person.role("spark_kernel", spark_kernel_swappiness=value).failed("swappiness", str(value))
    assert person.on(FIRST, ETC) == before
    assert person.swappiness(FIRST) == SWAPPINESS


def test_a_value_that_the_kernel_refuses_never_reaches_the_disk(person: Person) -> None:
    """Within no range that we know of, so the kernel is who says no."""
    before = person.on(FIRST, ETC)
    person.role("spark_kernel", spark_kernel_settings={"vm.zone_reclaim_mode": "nonsense"}).failed(
        "vm.zone_reclaim_mode", "nonsense"
    )
    assert person.on(FIRST, ETC) == before


def left_over(person: Person, session: Session) -> dict[str, bool]:
    """What is left of a user's shared memory and semaphores once their last session is over."""
    session(f"touch /dev/shm/{USER}; ipcmk -M 4096; ipcmk -S 1")

    def over() -> bool:
        # It fails where a user goes while it lists them: then it is asked again.
        users = person.on(FIRST, "loginctl list-users --no-legend && echo listed", check=False)
        return users.endswith("listed") and USER not in users

    until("the last session is over", over)
    return {
        "posix": person.on(FIRST, f"test -e /dev/shm/{USER} && echo yes", check=False) == "yes",
        "shm": USER in person.on(FIRST, "ipcs -m"),
        "semaphores": USER in person.on(FIRST, "ipcs -s"),
    }


def test_what_a_rank_shares_outlives_the_ssh_session(person: Person, user: Session) -> None:
    assert left_over(person, user) == {"posix": True, "shm": True, "semaphores": True}
    person.role("spark_kernel", spark_kernel_keep_ipc=False).ok()
    try:
        # The distribution's own default, so this is what happens to a Spark that nobody cared for.
        assert left_over(person, user) == {"posix": False, "shm": False, "semaphores": False}
    finally:
        person.role("spark_kernel", spark_kernel_swappiness=int(SWAPPINESS)).ok()
