# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What nvidia-smi, the driver and the kernel log tell of a GPU, as data.

A GB10 leaves much open: memory, power limit and memory clock are `[N/A]`, a process is listed once as C and once as G.
What is not told is None here and never an error, whatever the driver's release calls it.
"""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.checks import Check, judged

# --- values --------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"\s*(-?[0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z%]*)")
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_UNTOLD = re.compile(
    r"[\[<(]?\s*(?:n/?a|not supported|not available|not found|unknown(?: error)?|insufficient permissions?|err!|requested functionality has been deprecated|)\s*[\])>]?",
    re.IGNORECASE,
)


def told(text: str | None) -> str | None:
    """The text without its edges; None for `[N/A]`, `[Not Supported]`, `Insufficient Permissions` and the like."""
    return None if text is None or _UNTOLD.fullmatch(text.strip()) else text.strip()


def number(text: str | None) -> float | None:
    """`45.20 W`, `2405 MHz`, `96 %` → the number."""
    match = _NUMBER.match(text or "")
    return float(match[1]) if match else None


def integer(text: str | None) -> int | None:
    value = number(text)
    return None if value is None else round(value)


def size(text: str | None) -> int | None:
    """`69564 MiB` → bytes. nvidia-smi leaves the unit out with `nounits`, and then means MiB."""
    match = _NUMBER.match(text or "")
    return round(float(match[1]) * _BYTES.get(match[2] or "MiB", 1024**2)) if match else None


# --- why a clock is lower than it could be -------------------------------------------------------------------

# nvml.h: nvmlClocksEventReasons (before driver 535: nvmlClocksThrottleReasons), the same bits.
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
# Somebody's wish, or rest. The others hold back a GPU that has work.
WISHED = {"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clocks_setting"}
_REASON_TAG = re.compile(r"clocks_(?:event|throttle)_reason_(\w+)")
_OLD_REASONS = {"user_defined_clocks": "applications_clocks_setting", "display_clock_setting": "display_clocks_setting"}


def reasons(mask: str | None) -> list[str] | None:
    """The names in `0x0000000000000004` of `clocks_event_reasons.active`; bits without a name keep their number."""
    match = re.fullmatch(r"\s*0[xX]([0-9a-fA-F]{1,16})\s*", mask or "")
    if not match:
        return None
    bits = int(match[1], 16)
    names = [name for bit, name in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    return [*names, hex(rest)] if rest else names


# --- nvidia-smi -q -x ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A process on the GPU. `types` is C (compute), G (graphics) or C+G; None where it isn't told."""

    pid: int | None
    name: str
    types: str | None
    memory_bytes: int | None

    @property
    def computes(self) -> bool:
        """One of unknown type counts: it may well be a rank."""
        return self.types is None or "C" in self.types.split("+")


def once(processes: Sequence[Process]) -> list[Process]:
    """Each process once: the same pid comes as C and as G, and with several GPUs from each."""
    merged: dict[object, Process] = {}
    for index, process in enumerate(processes):
        key = ("unknown", index) if process.pid is None else process.pid
        seen = merged.get(key)
        if seen is None:
            merged[key] = process
            continue
        types = None if None in (seen.types, process.types) else {*str(seen.types).split("+"), *str(process.types).split("+")}
        known = [one.memory_bytes for one in (seen, process) if one.memory_bytes is not None]
        merged[key] = Process(
            process.pid, seen.name or process.name, None if types is None else "+".join(sorted(types)), max(known, default=None)
        )
    return list(merged.values())


@dataclass(frozen=True)
class Gpu:
    """One GPU. None is untold."""

    index: int
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None
    vbios: str | None = None
    performance_state: str | None = None
    persistence_mode: bool | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    memory_mhz: int | None = None
    application_mhz: int | None = None
    utilization_percent: int | None = None
    temperature_c: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    throttle_reasons: list[str] | None = None
    recovery_action: str | None = None
    processes: list[Process] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Report:
    """What one call of `nvidia-smi -q -x` told; `error` says why it told nothing."""

    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: list[Gpu] = field(default_factory=list)
    error: str = ""

    @property
    def processes(self) -> list[Process] | None:
        """Of all GPUs, each once. None where one of them does not tell: then nothing is known to be idle."""
        lists = [gpu.processes for gpu in self.gpus]
        if not lists or any(one is None for one in lists):
            return None
        return once([process for one in lists for process in one or []])


def _text(node: ET.Element, *paths: str) -> str | None:
    """The first of these elements that tells something; releases moved and renamed them."""
    for path in paths:
        found = told(node.findtext(path))
        if found is not None:
            return found
    return None


def _reasons(node: ET.Element) -> list[str] | None:
    found: list[str] = []
    any_told = False
    for parent in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for child in node.find(parent) if node.find(parent) is not None else ():  # type: ignore[union-attr]
            match = _REASON_TAG.fullmatch(child.tag)
            state = told(child.text)
            if match and state is not None:
                any_told = True
                if state.lower() == "active":
                    found.append(_OLD_REASONS.get(match[1], match[1]))
    return found if any_told else None


def _processes(node: ET.Element) -> list[Process] | None:
    parent = node.find("processes")
    if parent is None or (len(parent) == 0 and (parent.text or "").strip()):
        return None  # left out, or `N/A`: not the same as an empty list
    return once(
        [
            Process(
                integer(told(entry.findtext("pid"))),
                entry.findtext("process_name", "").strip(),
                told(entry.findtext("type")),
                size(told(entry.findtext("used_memory"))),
            )
            for entry in parent.iter("process_info")
        ]
    )


def _gpu(index: int, node: ET.Element) -> Gpu:
    persistence = _text(node, "persistence_mode")
    return Gpu(
        index=index,
        name=_text(node, "product_name"),
        uuid=_text(node, "uuid"),
        bus_id=told(node.get("id")),
        vbios=_text(node, "vbios_version"),
        performance_state=_text(node, "performance_state", "gpu_power_readings/power_state", "power_readings/power_state"),
        persistence_mode=None if persistence is None else persistence.lower() == "enabled",
        power_w=number(
            _text(
                node,
                "gpu_power_readings/instant_power_draw",
                "gpu_power_readings/power_draw",
                "gpu_power_readings/average_power_draw",
                "power_readings/power_draw",
            )
        ),
        power_limit_w=number(
            _text(node, "gpu_power_readings/current_power_limit", "gpu_power_readings/power_limit", "power_readings/power_limit")
        ),
        default_power_limit_w=number(_text(node, "gpu_power_readings/default_power_limit", "power_readings/default_power_limit")),
        sm_mhz=integer(_text(node, "clocks/sm_clock", "clocks/graphics_clock")),
        max_sm_mhz=integer(_text(node, "max_clocks/sm_clock", "max_clocks/graphics_clock")),
        memory_mhz=integer(_text(node, "clocks/mem_clock")),
        application_mhz=integer(_text(node, "applications_clocks/graphics_clock")),
        utilization_percent=integer(_text(node, "utilization/gpu_util")),
        temperature_c=integer(_text(node, "temperature/gpu_temp")),
        memory_total_bytes=size(_text(node, "fb_memory_usage/total")),
        memory_used_bytes=size(_text(node, "fb_memory_usage/used")),
        throttle_reasons=_reasons(node),
        recovery_action=_text(node, "gpu_recovery_action"),
        processes=_processes(node),
    )


def parse_xml(text: str) -> Report:
    """The output of `nvidia-smi -q -x`."""
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, ValueError) as error:
        return Report(error=f"nvidia-smi -q -x printed no XML ({error}): {' '.join(text.split())[:120] or 'nothing'}")
    gpus = [_gpu(index, node) for index, node in enumerate(root.iter("gpu"))]
    return Report(
        driver_version=_text(root, "driver_version"),
        cuda_version=_text(root, "cuda_version"),
        gpus=gpus,
        error="" if gpus else "nvidia-smi lists no GPU",
    )


# --- nvidia-smi --query-… --format=csv -----------------------------------------------------------------------


def parse_csv(text: str, fields: Sequence[str] = ()) -> list[dict[str, str | None]]:
    """Rows by field. Without `fields` the first line names them (`power.draw [W]`, unit dropped).

    nvidia-smi quotes nothing: a line with more cells than fields keeps the surplus in `process_name`, or else in the last one.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    names = list(fields)
    if not names and rows:
        names = [re.sub(r"\s*\[[^\]]*\]\s*$", "", cell) for cell in rows.pop(0)]
    made = []
    for cells in rows:
        surplus = len(cells) - len(names)
        if surplus < 0 or not names:
            continue  # a message, not a row
        wide = names.index("process_name") if "process_name" in names else len(names) - 1
        cells = [*cells[:wide], ", ".join(cells[wide : wide + surplus + 1]), *cells[wide + surplus + 1 :]]
        made.append({name: told(cell) for name, cell in zip(names, cells, strict=True)})
    return made


def parse_compute_apps(text: str) -> list[Process]:
    """`--query-compute-apps=pid,process_name,used_memory --format=csv,noheader[,nounits]`."""
    return once(
        [
            Process(integer(row["pid"]), row["process_name"] or "", "C", size(row["used_memory"]))
            for row in parse_csv(text, ("pid", "process_name", "used_memory"))
        ]
    )


# --- driver and kernel ---------------------------------------------------------------------------------------

_NVRM = re.compile(r"NVRM version:\s*(.*)")
_VERSION = re.compile(r"\s(\d+\.\d+(?:\.\d+)*)\s")


def parse_driver_version(text: str) -> dict[str, str | None]:
    """/proc/driver/nvidia/version: the loaded kernel module, which may differ from what nvidia-smi was installed with."""
    line = _NVRM.search(text)
    if not line:
        return {"module_version": None, "flavour": None}
    version = _VERSION.search(line[1] + " ")
    return {
        "module_version": version[1] if version else None,
        "flavour": "open" if "open kernel module" in line[1].lower() else "proprietary",
    }


# After these the GPU does not recover by itself; a reset or a reboot does it (NVIDIA's Xid catalog, "immediate action").
# The others (13, 31, 43, 45 …) end a program, not the GPU. 154 says itself what it wants.
FATAL_XIDS = {
    46: "the GPU stopped processing",
    48: "double-bit memory error",
    62: "the GPU's power controller halted",
    64: "a memory row could not be remapped",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "a context switch timed out",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor crashed",
    140: "unrecovered memory error",
    143: "the GPU could not be initialised",
}
_XID = re.compile(r"(?P<head>.*?)NVRM:\s+Xid\s+\((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\):\s+(?P<code>[0-9]{1,4}),?\s*(?P<text>.*)")
_XID_PROCESS = re.compile(r"pid='?(?P<pid>[^,']*)'?,\s*(?:name='?(?P<name>[^,']*)'?,?\s*)?")
_XIDS_KEPT = 20


@dataclass(frozen=True)
class Xid:
    """One error that the driver wrote to the kernel log."""

    when: str
    bus_id: str
    code: int
    pid: int | None
    name: str | None
    text: str

    @property
    def fatal(self) -> str:
        """Why the GPU needs a reset or reboot after it; empty where it doesn't."""
        if self.code == 154:
            wish = self.text.rpartition("(")[2].rstrip(") ")
            return wish if re.search(r"reset|reboot|flr", wish, re.IGNORECASE) else ""
        return FATAL_XIDS.get(self.code, "")


def parse_kernel_log(text: str) -> dict[str, Any]:
    """Xid errors and failed allocations of the driver.

    `NV_ERR_NO_MEMORY` comes thousands of times in healthy boots, so it is counted and judges nothing by itself.
    """
    found: list[Xid] = []
    starved = 0
    for line in text.splitlines():
        starved += "NV_ERR_NO_MEMORY" in line
        match = _XID.search(line)
        if not match:
            continue
        rest, pid, name = match["text"].strip(), None, None
        process = _XID_PROCESS.match(rest)
        if process:
            pid, name, rest = integer(process["pid"]), told(process["name"]), rest[process.end() :]
        when = re.sub(r"\s*(?:\S+\s+)?kernel:\s*$", "", match["head"].strip()) if "kernel:" in match["head"] else match["head"]
        found.append(Xid(when.strip(" []"), match["bus"], int(match["code"]), pid, name, rest))
    counts = Counter(xid.code for xid in found)
    return {
        "xids": [asdict(xid) for xid in found[-_XIDS_KEPT:]],
        "xid_counts": {str(code): count for code, count in sorted(counts.items())},
        "fatal": [f"Xid {xid.code} ({xid.fatal})" for xid in {one.code: one for one in found if one.fatal}.values()],
        "no_memory_lines": starved,
    }


# --- a cap that somebody set ---------------------------------------------------------------------------------

CAP_UNIT = "sparklanes-gpu-clock.service"
CAP_SETTINGS = "etc/sparklanes/gpu-clock.env"
# A clock that is sampled overshoots its lock by a few MHz at most: 2080 to 2086 were seen under 2100, 2184 to 2190 under 2200.
CAP_SLACK_MHZ = 30
_LOCK = re.compile(r"nvidia-smi\b[^\n]*?(?:-lgc|--lock-gpu-clocks)[=\s]+\"?(?P<low>\$?[\w{}]+)(?:,(?P<high>\$?[\w{}]+))?")


@dataclass(frozen=True)
class Cap:
    """A range of clocks that a unit locks the GPU to at boot. There is no way to ask the driver for it."""

    unit: str
    min_mhz: int
    max_mhz: int


def parse_settings(text: str) -> dict[str, str]:
    """KEY=value lines."""
    return {key.strip(): value.strip() for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def parse_cap(unit: str, text: str, settings: Mapping[str, str]) -> Cap | None:
    """The `nvidia-smi -lgc` in a unit file; a lone number locks to exactly it."""
    for line in text.splitlines():
        if line.lstrip().startswith(("#", ";")):
            continue
        match = _LOCK.search(line)
        if match:
            ends = [
                integer(settings.get(re.sub(r"\W", "", word), word) if word.startswith("$") else word)
                for word in (match["low"], match["high"] or match["low"])
            ]
            if ends[0] is not None and ends[1] is not None:
                return Cap(unit, ends[0], ends[1])
    return None


def cap_problems(min_mhz: int, max_mhz: int, power_w: float | None, gpus: Sequence[Gpu]) -> list[str]:
    """What makes this cap unusable on these GPUs, as sentences."""
    wrong = []
    top = max((gpu.max_sm_mhz or 0 for gpu in gpus), default=0) or 4000
    if not 300 <= max_mhz <= top:
        wrong.append(f"max_mhz: found {max_mhz}, expected 300 to {top}, the highest clock of this GPU")
    if not 0 <= min_mhz <= max_mhz:
        wrong.append(f"min_mhz: found {min_mhz}, expected 0 to max_mhz ({max_mhz})")
    if power_w is not None:
        limits = [gpu.default_power_limit_w for gpu in gpus]
        without = [gpu.name or "GPU" for gpu in gpus if gpu.default_power_limit_w is None]
        if without or not limits:
            wrong.append(
                f"power_limit_w: {', '.join(without) or 'this GPU'} has no power limit that could be set. Cap the clock alone"
            )
        elif not 1 <= power_w <= min(limit or 0 for limit in limits):
            wrong.append(
                f"power_limit_w: found {power_w:g}, expected 1 to {min(limit or 0 for limit in limits):g}, the default of this GPU"
            )
    return wrong


def cap_settings(min_mhz: int, max_mhz: int, power_w: float | None, default_w: str) -> str:
    """The environment file of our unit."""
    power = "" if power_w is None else f"{power_w:g}"
    return f"MIN_MHZ={min_mhz}\nMAX_MHZ={max_mhz}\nPOWER_W={power}\nDEFAULT_POWER_W={default_w if power else ''}\n"


def cap_contradiction(max_mhz: int, power_w: float | None, gpus: Sequence[Gpu]) -> str:
    """What these GPUs show that the cap forbids; empty where nothing does, which is no proof while they idle."""
    for gpu in gpus:
        if gpu.sm_mhz is None:
            return "the clock is not told"
        if gpu.sm_mhz > max_mhz + CAP_SLACK_MHZ:
            return f"the clock is {gpu.sm_mhz} MHz, above {max_mhz}"
        if power_w is not None and (gpu.power_limit_w is None or abs(gpu.power_limit_w - power_w) > 1):
            return f"the power limit reads {'nothing' if gpu.power_limit_w is None else f'{gpu.power_limit_w:g} W'}, not {power_w:g} W"
    return ""


# --- checks of the gates -------------------------------------------------------------------------------------


def clock_checks(host: str, found: Mapping[str, Any]) -> list[Check]:
    """The lock that our unit declares, against the clock that the GPU shows now; nothing where none is declared.

    A driver may accept a lock and ignore it. Above the lock is proof of that at any load; below it, only a burn tells.
    """
    made = []
    for cap in found.get("caps") or []:
        if cap["unit"] != CAP_UNIT:
            continue
        top, clocks = int(cap["max_mhz"]), [gpu.get("sm_mhz") for gpu in found.get("gpus") or []]
        known = bool(clocks) and None not in clocks
        made.append(
            judged(
                "GPU.CLOCK_CAP",
                host,
                max(clocks) <= top + CAP_SLACK_MHZ if known else None,
                f"{max(clocks)} MHz now" if known else "clock not told",
                f"at most {top} MHz, as {CAP_UNIT} locks it",
                f"On {host}: sudo systemctl restart {CAP_UNIT}. If the clock stays above, the driver ignores the lock: reboot",
            )
        )
    return made


def gate(host: str, found: Mapping[str, Any]) -> list[Check]:
    """What can be known of a GPU without loading it; `found` is of `facts`."""
    driver, gpus, log = found.get("driver") or {}, found.get("gpus") or [], found.get("kernel_log") or {}
    problem = found.get("error") or ("" if gpus and driver.get("version") else "not measured")
    names = ", ".join(str(gpu.get("name") or "GPU") for gpu in gpus)
    told_as = f"{names}, driver {driver.get('version')} ({driver.get('flavour') or 'flavour unknown'}), CUDA {driver.get('cuda_version') or '?'}"
    made = [
        judged(
            "GPU.DRIVER",
            host,
            not problem,
            problem or told_as,
            "nvidia-smi answers and lists a GPU",
            f"On {host}: nvidia-smi; journalctl -k | grep NVRM. A driver that was updated or hangs needs a reboot",
        )
    ]
    if not found.get("present"):
        return made
    fatal = list(log.get("fatal") or [])
    fatal += [
        f"the driver asks for: {gpu['recovery_action']}" for gpu in gpus if str(gpu.get("recovery_action") or "None") != "None"
    ]
    counts = ", ".join(f"Xid {code} ×{count}" for code, count in (log.get("xid_counts") or {}).items())
    unread = log.get("error") or ("" if log else "the kernel log was not read")
    made.append(
        judged(
            "GPU.XID",
            host,
            not fatal and not unread,
            ", ".join(fatal) or unread or counts or "no Xid since boot",
            "no Xid since boot that only a reset or reboot mends",
            f"On {host}: journalctl -k -b | grep Xid, then reboot it" if fatal else f"On {host}: journalctl -k -b | grep Xid",
        )
    )
    return [*made, *clock_checks(host, found)]


# --- the system ----------------------------------------------------------------------------------------------

# A wedged driver held nvidia-smi for 8 to 12 minutes (DeepSeek-v4.1-Flash-DGX-Sparks issue 23), out of reach of any signal.
PATIENCE_SECONDS = 20.0
ABSENT = "nvidia-smi is not installed"
Ask = Callable[[Sequence[str]], tuple[int, str, str]]


def ask(argv: Sequence[str], seconds: float = PATIENCE_SECONDS) -> tuple[int, str, str]:
    """Run a program; one that does not end in time is left behind, since a kill may not reach it either."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return 127, "", f"{argv[0]}: {error.strerror or error}"
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return 124, "", f"{argv[0]} did not answer within {seconds:g} s: the driver hangs"
    return process.returncode, out, err


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def kernel_log(run: Ask) -> tuple[str, str]:
    """The driver's lines of this boot, and why they could not be read."""
    rc, out, err = run(("journalctl", "--dmesg", "--boot", "--no-pager", "--output=short-iso", "--grep=NVRM"))
    if rc == 1 and not err.strip():
        return "", ""  # nothing matches
    if rc == 0:
        return out, ""
    rc, out, second = run(("dmesg",))
    return (out, "") if rc == 0 else ("", (second or err).strip()[:200] or f"journalctl and dmesg failed (exit {rc})")


def report(run: Ask) -> Report:
    """Ask nvidia-smi for everything; where it leaves the processes out, ask for these again."""
    rc, out, err = run(("nvidia-smi", "-q", "-x"))
    if rc == 127:
        return Report(error=ABSENT)
    if rc != 0:
        return Report(error=f"nvidia-smi: exit {rc}: {' '.join((err or out).split())[:200]}")
    return parse_xml(out)


def recorded(root: Path) -> Report:
    xml = read(root / "nvidia_smi_q_x.xml")
    return parse_xml(xml) if xml else Report(error=ABSENT)


def caps(root: Path) -> list[Cap]:
    """Units that are enabled and lock the clocks."""
    settings = parse_settings(read(root / CAP_SETTINGS))
    units = {path.name: path for path in sorted((root / "etc/systemd/system").glob("*.wants/*.service"))}
    # A link in the recorded tree may lead out of it; then the file of that name beside it is meant.
    found = [parse_cap(name, read(root / "etc/systemd/system" / name) or read(path), settings) for name, path in units.items()]
    return [cap for cap in found if cap is not None]


def facts(root: Path = Path("/"), run: Ask = ask) -> dict[str, Any]:
    """All that is known of the GPUs of a Spark.

    Below another root than / nothing is run: `nvidia_smi_q_x.xml` and `kernel.log` there stand in for the programs.
    """
    live = root == Path("/")
    found = report(run) if live else recorded(root)
    present = found.error != ABSENT
    processes = found.processes
    if live and processes is None and not found.error:
        rc, out, _ = run(("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"))
        processes = parse_compute_apps(out) if rc == 0 else None
    # Without a driver there is nothing of it in the log, and asking takes time.
    log, problem = kernel_log(run) if live and present else (read(root / "kernel.log") if not live else "", "")
    return {
        "present": present,
        "error": found.error,
        "driver": {
            "version": found.driver_version,
            "cuda_version": found.cuda_version,
            **parse_driver_version(read(root / "proc/driver/nvidia/version")),
        },
        "gpus": [gpu.to_dict() for gpu in found.gpus],
        "processes": None
        if processes is None
        else [
            {"pid": one.pid, "name": one.name, "memory_bytes": one.memory_bytes}
            for one in sorted(processes, key=lambda one: one.pid or 0)
            if one.computes
        ],
        "kernel_log": {**parse_kernel_log(log), "error": problem},
        "caps": [asdict(cap) for cap in caps(root)],
    }
