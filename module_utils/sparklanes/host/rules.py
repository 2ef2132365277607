# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether a Spark is kept as its lane and its site want it: rules over what `host_info` reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, judged
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.host import boots as host_boots
from ansible.module_utils.sparklanes.host import hardware, kernel_log
from ansible.module_utils.sparklanes.host.logind import NOT_RUNNING

Facts = Mapping[str, Any]
NOT_MEASURED = "not measured"


def swappiness(host: str, facts: Facts, wanted: int | None = None) -> Check:
    """Live and after the next boot the same, and as the lane wants it. While another lane serves, its value is live: `wanted` is None."""
    told = (facts.get("settings") or {}).get("vm.swappiness") or {}
    live, boot = str(told.get("live") or ""), str(told.get("boot") or "")
    after = f"{boot} after a boot ({told.get('file')})" if boot else "no file sets it"
    found = f"{live}, {after}" if live else NOT_MEASURED
    expected = "live and after a boot the same" if wanted is None else f"{wanted}, live and after a boot"
    remedy = "Run site.yml: role spark_kernel sets it and names the file that is in its way."
    if live and boot and live != boot:
        remedy += (
            f" If it comes back, a service, tuned or cron on {host} sets it after the files: "
            "sudo grep -rIl swappiness /etc/systemd /etc/tuned /etc/cron* /etc/rc.local /usr/local"
        )
    if not live:
        return judged("HOST.SWAPPINESS", host, None, found, expected, remedy)
    if wanted is None:
        # Nobody asked for a value: without a file the kernel's own default is as good as any.
        return judged("HOST.SWAPPINESS", host, not boot or live == boot, found, expected, remedy)
    return judged("HOST.SWAPPINESS", host, live == boot == str(wanted), found, expected, remedy)


def semaphores(host: str, facts: Facts) -> Check:
    told = facts.get("remove_ipc") or {}
    says, error = str(told.get("says") or ""), str(told.get("error") or "")
    found = (
        f"systemd-logind: {error}" if error else f"RemoveIPC={says}" if says not in ("", NOT_RUNNING) else says or NOT_MEASURED
    )
    return judged(
        "HOST.REMOVE_IPC",
        host,
        None if error or not says else says in ("no", NOT_RUNNING),
        "systemd-logind does not run" if says == NOT_RUNNING else found,
        "no",
        "Run site.yml (spark_kernel_keep_ipc: true). Otherwise the end of the ssh session that started a rank takes its semaphores.",
    )


def page_cache(host: str, facts: Facts) -> Check:
    """The unit is in the state that its own settings ask for."""
    told = facts.get("page_cache") or {}
    settings, state, active = told.get("settings") or {}, told.get("state") or {}, told.get("active")
    policy = settings.get("policy")
    remedy = f"On {host}: journalctl -u sparklanes-page-cache. Run site.yml, which puts it right."
    if not policy:
        return Check("HOST.PAGE_CACHE", host, WARN, "no unit", "a policy", "Run site.yml: role page_cache keeps MemFree up.")
    if policy == "off":
        return judged(
            "HOST.PAGE_CACHE", host, None if active is None else not active, f"policy off, {_active(active)}", "off", remedy
        )
    ended = str(state.get("ended") or "")
    same = state.get("identity") == settings.get("identity")
    found = f"policy {policy}, {f'ended: {ended}' if ended and same else _active(active)}, {state.get('flushes', 0)} flushes"
    if not same:
        found += ", with older settings"
    ok = None if active is None else same and (bool(active) or bool(ended))
    return judged("HOST.PAGE_CACHE", host, ok, found, "the unit runs its settings", remedy)


def _active(active: bool | None) -> str:
    return {True: "runs", False: "does not run", None: NOT_MEASURED}[active]


def swap(host: str, facts: Facts, needed: bool, least_gib: float = 0) -> Check | None:
    """Swap is a valve for some lanes: without it a worker dies while it repacks weights. Not judged where no lane needs it."""
    if not needed and least_gib <= 0:
        return None
    total = sum(int(one["size"]) for one in facts.get("swap") or [])
    found = f"{total / GIB:.1f} GiB in {', '.join(one['path'] for one in facts.get('swap') or [])}" if total else "swap is off"
    expected = f"≥ {least_gib:g} GiB" if least_gib > 0 else "on"
    remedy = f"On {host}: swapon --all, and look at /etc/fstab; or let spark_survival_swap: present make a file."
    if total == 0:
        return Check("HOST.SWAP", host, FAIL, found, expected, remedy)
    # A swap file loses a page to its header.
    enough = total >= least_gib * GIB - GIB // 16
    return Check("HOST.SWAP", host, PASS if enough else WARN, found, expected, "" if enough else remedy)


def boots(host: str, facts: Facts, warn_from: int = host_boots.WARN_FROM) -> Check:
    """`warn_from` 0 turns the warning off."""
    count = int((facts.get("engine_boots") or {}).get("boots") or 0)
    many = 0 < warn_from <= count
    return Check(
        "HOST.ENGINE_BOOTS",
        host,
        WARN if many else PASS,
        f"{count} boots of an engine since the Spark booted",
        f"< {warn_from}" if warn_from > 0 else "",
        "Reboot the deployment when it suits: playbooks/reboot.yml. Each boot leaves memory mapped that only a reboot gives back."
        if many
        else "",
    )


def pending_reboot(host: str, facts: Facts) -> Check:
    packages = facts.get("reboot_required")
    if packages is None:
        return Check("HOST.REBOOT_REQUIRED", host, PASS, "no package asks for a reboot", "none")
    names = ", ".join(packages[:6]) + (f" and {len(packages) - 6} more" if len(packages) > 6 else "")
    return Check(
        "HOST.REBOOT_REQUIRED", host, WARN, f"asked for by {names or 'a package'}", "none",
        "The next boot brings another kernel or driver. Look at what it is before playbooks/reboot.yml, and hold what you don't want "
        "(spark_survival_hold).",
    )  # fmt: skip


def after_boot(host: str, facts: Facts) -> Check | None:
    """What the boot unit did after the last boot. None where there is no policy."""
    told = facts.get("after_boot") or {}
    policy, report = (told.get("settings") or {}).get("policy"), told.get("report") or {}
    if not policy:
        return None
    boot = (facts.get("kernel") or {}).get("boot_id")
    if boot and (told.get("settings") or {}).get("since") == boot:
        return Check("HOST.AFTER_BOOT", host, PASS, f"policy {policy}, from the next boot on")
    if not report or report.get("boot_id") != boot:
        return judged("HOST.AFTER_BOOT", host, None, f"policy {policy}; the unit did not report in this boot", "a report",
                      f"On {host}: journalctl -b -u sparklanes-boot.")  # fmt: skip
    entries = report.get("deployments") or []
    said = (
        "; ".join(f"{entry.get('deployment')}: {entry.get('sentence')}" for entry in entries) or "nothing was recorded as serving"
    )
    bad = any(entry.get("failed") for entry in entries)
    return judged(
        "HOST.AFTER_BOOT", host, not bad, f"policy {policy}. {said}", "", f"On {host}: journalctl -b -u sparklanes-boot."
    )


def before_launch(host: str, facts: Facts, lane: Facts | None = None) -> list[Check]:
    """What a launch can't put right by itself. `lane`: the lane's settings."""
    lane = lane or {}
    made = [
        swap(host, facts, lane.get("lane_swap") == "recycle", float(lane.get("lane_swap_min_gib") or 0)),
        boots(host, facts, int(lane.get("lane_engine_boots_warn", host_boots.WARN_FROM))),
        pending_reboot(host, facts),
        hardware.clock_check(host, facts.get("cpu_clocks")),
        hardware.link_check(host, facts.get("link_errors")),
        *kernel_log.checks(host, facts.get("kernel_log")),
    ]
    return [check for check in made if check is not None]


def judge(host: str, facts: Facts, lane: Facts | None = None, wanted_swappiness: int | None = None) -> list[Check]:
    """All that can be said of one host by itself."""
    made = [swappiness(host, facts, wanted_swappiness), semaphores(host, facts), page_cache(host, facts), after_boot(host, facts)]
    return [check for check in made if check is not None] + before_launch(host, facts, lane)


def rebooted(host: str, before: Facts, after: Facts, rails_before: Facts, rails_after: Facts) -> list[Check]:
    """What a reboot must leave as it was. `rails_*` are the fact roce_fabric."""
    old, new = before.get("kernel") or {}, after.get("kernel") or {}
    made = [
        judged("REBOOT.DONE", host, bool(new.get("boot_id")) and new.get("boot_id") != old.get("boot_id"),
               f"up for {float(new.get('uptime_seconds') or 0):.0f} s" if new.get("boot_id") else NOT_MEASURED, "a new boot",
               f"Look at {host}: uptime, journalctl --list-boots."),
        Check("REBOOT.KERNEL", host, PASS if old.get("release") == new.get("release") else WARN, f"{new.get('release') or NOT_MEASURED}",
              str(old.get("release") or ""), "The reboot brought another kernel; look at what reports say of it before you launch."),
    ]  # fmt: skip
    was, now = before.get("driver") or {}, after.get("driver") or {}
    if was or now:
        ok = bool(now)
        status = FAIL if not ok else PASS if was == now else WARN
        made.append(Check("REBOOT.DRIVER", host, status, _driver_text(now), _driver_text(was),
                          "No NVIDIA module was loaded for this kernel: dkms status, dmesg | grep -i nvrm." if not ok
                          else "The reboot brought another driver; all ranks should have the same."))  # fmt: skip
    return [*made, rails(host, rails_before, rails_after)]


def rails(host: str, before: Facts, after: Facts) -> Check:
    """REBOOT.RAILS: what NCCL sees is what it saw. A fabric without `rails` was not measured.

    The index of a GID depends on the order in which addresses came since the boot. With the same variables as before, none of which
    pins it, NCCL looks the GID up where it is now.
    """
    changes = rail_changes(before, after)
    errors = [str(error.get("message")) for error in after.get("errors") or []]
    same_env = (before.get("env") or {}) == (after.get("env") or {})
    unpinned = same_env and "NCCL_IB_GID_INDEX" not in (after.get("env") or {})
    serious = [change for change in changes if not (unpinned and ": gid_index " in change)]
    return judged(
        "REBOOT.RAILS", host, "rails" in after and not serious and not errors,
        "; ".join([*changes, *errors]) or ("rails and GIDs as before" if "rails" in after else NOT_MEASURED), "as before",
        "docs/fabric.md tells what each code means. Where a GID only moved, playbooks/launch.yml renders with the new one; a frozen "
        "release keeps the old.",
    )  # fmt: skip


def _driver_text(driver: Facts) -> str:
    return f"{driver.get('version')} ({driver.get('flavour')})" if driver else "no NVIDIA driver"


def rail_changes(before: Facts, after: Facts) -> list[str]:
    """What NCCL would see otherwise than before, as sentences."""
    keys = ("hca", "netdev", "ipv4", "mtu", "gid_index", "gid")
    was, now = (
        {str(rail.get("hca") or rail.get("netdev")): rail for rail in fabric.get("rails") or []} for fabric in (before, after)
    )
    said = [f"rail {name} is gone" for name in was if name not in now]
    said += [f"rail {name} is new" for name in now if name not in was]
    for name in was.keys() & now.keys():
        for key in keys:
            if was[name].get(key) != now[name].get(key):
                said.append(f"{name}: {key} {was[name].get(key)} → {now[name].get(key)}")
    env_was, env_now = before.get("env") or {}, after.get("env") or {}
    said += [
        f"{key}: {env_was.get(key)} → {env_now.get(key)}"
        for key in sorted({*env_was, *env_now})
        if env_was.get(key) != env_now.get(key)
    ]
    return sorted(said)
