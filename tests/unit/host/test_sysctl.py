from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.host import conf_files, sysctl
from ansible.module_utils.sparklanes.host import logind as host_logind
from ansible.module_utils.sparklanes.host.conf_files import ConfFile
from ansible.module_utils.sparklanes.host.sysctl import AT_BOOT, BY_HAND
from conftest import FIXTURES
from hypothesis import given
from hypothesis import strategies as st

OURS = "/etc/sysctl.d/99-zz-sparklanes.conf"


def lay(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            target.symlink_to(text[3:])
        else:
            target.write_text(text)
    return root


@pytest.fixture
def recorded(tmp_path: Path) -> list[ConfFile]:
    """The tree over which the two recordings were made."""
    lay(
        tmp_path,
        {
            "/etc/sysctl.d/50-a.conf": "vm.swappiness=1\n",
            "/run/sysctl.d/50-a.conf": "vm.swappiness=2\n",
            "/usr/local/lib/sysctl.d/60-b.conf": "vm.swappiness=3\n",
            "/etc/sysctl.d/60-b.conf": "-> /dev/null",
            "/etc/sysctl.d/99-z.conf": "vm.swappi*=4\n",
            "/etc/sysctl.d/98-y.conf": "vm/swappiness = 5\n",
            "/etc/sysctl.d/README.sysctl": "vm.swappiness=99\n",
            "/usr/lib/sysctl.d/50-pid-max.conf": "",
            "/usr/lib/sysctl.d/99-protect-links.conf": "fs.protected_fifos = 1\n",
            "/etc/sysctl.conf": "vm.swappiness = 7\n",
        },
    )
    (tmp_path / "lib").symlink_to("usr/lib")
    return conf_files.collect(tmp_path, sysctl.SYSCTL_DIRS, sysctl.SYSCTL_CONF)


def test_procps_order_is_that_of_the_recording(recorded: list[ConfFile]) -> None:
    text = (FIXTURES / "host" / "sysctl" / "procps-4.0.2-system.txt").read_text()
    order = [line.split()[2] for line in text.splitlines() if line.startswith("* Applying")]
    last = [line.split(" = ")[1] for line in text.splitlines() if line.startswith("vm.swappiness")][-1]
    assert [file.path for file in sysctl.hand_order(recorded)] == order
    made = sysctl.winners(recorded, "vm.swappiness")[BY_HAND]
    assert made is not None
    assert (made.value, made.path) == (last, "/etc/sysctl.conf")


def test_systemd_order_is_that_of_the_recording(recorded: list[ConfFile]) -> None:
    text = (FIXTURES / "host" / "sysctl" / "systemd-252-cat-config.txt").read_text()
    assert [file.path for file in sysctl.boot_order(recorded)] == [
        line[2:] for line in text.splitlines() if line.startswith("# ")
    ]
    made = sysctl.winners(recorded, "vm/swappiness")[AT_BOOT]
    assert made is not None
    assert (made.value, made.path) == ("5", "/etc/sysctl.d/98-y.conf")  # an exact key beats the later pattern


@pytest.mark.parametrize(
    ("dotted", "slashed"),
    [
        ("vm.swappiness", "vm/swappiness"),
        ("net.ipv4.conf.enp3s0/200.forwarding", "net/ipv4/conf/enp3s0.200/forwarding"),
        ("swappiness", "swappiness"),
    ],
)
def test_both_separators_mean_the_same_key(dotted: str, slashed: str) -> None:
    assert sysctl.normal_key(dotted) == sysctl.normal_key(slashed) == slashed


def test_pattern_applies_only_where_no_exact_key_and_no_exclusion_stands() -> None:
    made = sysctl.read_files(
        [ConfFile("/a.conf", "net.ipv4.conf.*.rp_filter = 2\n-net.ipv4.conf.all.rp_filter\n-net.ipv4.conf.lo.rp_filter = 0\n")]
    )
    value = {key: made.get(f"net/ipv4/conf/{key}/rp_filter") for key in ("fab0", "all", "lo")}
    assert value["fab0"] is not None
    assert value["fab0"].value == "2"
    assert value["all"] is None
    assert value["lo"] is not None
    assert value["lo"].value == "0"
    assert made.get("net/ipv4/conf/a/b/rp_filter") is None


def test_our_default_name_wins_over_the_link_to_sysctl_conf_but_procps_reads_the_target_once_more() -> None:
    files = [
        ConfFile("/etc/sysctl.d/99-sysctl.conf", "vm.swappiness=60\n"),
        ConfFile("/etc/sysctl.conf", "vm.swappiness=60\n"),
        ConfFile(OURS, "vm.swappiness = 10\n"),
    ]
    lost = sysctl.overridden(files, OURS, {"vm.swappiness": "10"})
    assert len(lost) == 1
    assert "/etc/sysctl.conf sets 60" in lost[0]
    assert "(sysctl --system)" in lost[0]
    assert "Remove that line from /etc/sysctl.conf" in lost[0]
    assert sysctl.overridden(files[:1] + files[2:], OURS, {"vm.swappiness": "10"}) == []


def test_a_later_file_is_named_and_one_that_says_the_same_is_not() -> None:
    ours = ConfFile(OURS, "vm.swappiness = 10\n")
    later = "/usr/lib/sysctl.d/99-zzz-vendor.conf"
    lost = sysctl.overridden([ours, ConfFile(later, "vm/swappiness=1")], OURS, {"vm.swappiness": "10"})
    assert lost == [
        f"vm.swappiness: {later} sets 1 after {OURS} (systemd-sysctl and sysctl --system); expected 10. Remove that line from {later}, or make it say the same"
    ]
    assert sysctl.overridden([ours, ConfFile(later, "vm/swappiness = 10")], OURS, {"vm.swappiness": "10"}) == []


def test_a_file_of_our_name_in_run_cannot_hide_ours() -> None:
    files = [ConfFile("/run/sysctl.d/99-zz-sparklanes.conf", "vm.swappiness=3"), ConfFile(OURS, "vm.swappiness = 10\n")]
    assert sysctl.overridden(files, OURS, {"vm.swappiness": "10"}) == []


@pytest.mark.parametrize(
    ("value", "fine"),
    [
        ("0", True),
        ("200", True),
        ("201", False),
        ("-1", False),
        ("ten", False),
        ("", False),
        ("\N{SUPERSCRIPT TWO}", False),
        ("--1", False),
    ],
)
def test_range_of_swappiness(value: str, fine: bool) -> None:
    assert (sysctl.out_of_range({"vm.swappiness": value}) == []) is fine


KEYS = st.from_regex(r"[a-z]{1,8}([./][a-z0-9_]{1,8}){0,3}", fullmatch=True)


@given(st.dictionaries(KEYS, st.integers(-5, 10**6).map(str), max_size=6))
def test_what_we_write_is_what_is_read(settings: dict[str, str]) -> None:
    made = sysctl.read_files([ConfFile(OURS, sysctl.render(settings, "two\nlines"))])
    expected = {sysctl.normal_key(key): settings[key] for key in sorted(settings)}
    assert {key: item.value for key, item in made.exact.items()} == expected


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    made = sysctl.read_files([ConfFile("/etc/sysctl.d/x.conf", text)])
    assert all(key == sysctl.normal_key(key) for key in made.exact)


def test_logind_drop_in_of_a_later_name_wins_and_the_main_file_loses() -> None:
    files = [
        ConfFile("/etc/systemd/logind.conf", "[Login]\nRemoveIPC=yes\n"),
        ConfFile("/etc/systemd/logind.conf.d/90-sparklanes.conf", host_logind.render_logind({"RemoveIPC": "no"}, "why")),
    ]
    made = host_logind.logind_winner(files, "RemoveIPC")
    assert made is not None
    assert host_logind.is_no(made.value)
    late = ConfFile(
        "/usr/lib/systemd/logind.conf.d/99-vendor.conf", "[Login]\n#RemoveIPC=no\nRemoveIPC = yes\n[Other]\nRemoveIPC=no\n"
    )
    made = host_logind.logind_winner([late, *files], "RemoveIPC")
    assert made is not None
    assert (made.value, made.path) == ("yes", late.path)


def test_logind_ignores_an_empty_value() -> None:
    made = host_logind.logind_winner([ConfFile("/etc/systemd/logind.conf", "[Login]\nRemoveIPC=no\nRemoveIPC=\n")], "RemoveIPC")
    assert made is not None
    assert made.value == "no"
