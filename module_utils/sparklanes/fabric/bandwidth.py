# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the rails really carry: who measures whom with perftest's ib_write_bw, its output as data, and the judgement.

A link of 200 Gb/s is no proof: a ConnectX-7 that initialised badly reports it and carries a tenth. Each rail is measured
alone, then all of them at once, towards the next Spark in the order of ranks and one Spark after the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check, judged
from ansible.module_utils.sparklanes.common.registered import HostVars, looks
from ansible.module_utils.sparklanes.fabric.fact import address_of, fabrics_of, is_ring, meeting, rails_of

# Gb/s. NVIDIA's guide measures 92.6 + 97.3 over the two halves at once, one half alone reaches 111.7; 8 to 25 is a
# ConnectX-7 whose initialisation is stale (dgx-spark-playbooks PR 108). docs/fabric.md.
GOOD_GBPS = 80.0
STALE_GBPS = (8.0, 25.0)
ONE_HALF_GBPS = 111.7
# Of a link of 200 Gb/s twice GOOD_GBPS are wanted of both halves; the same share of a slower one.
LINK_GBPS = 200.0
SHARE = 2 * GOOD_GBPS / LINK_GBPS
RDMA_MTU = 4096  # of a network device with MTU 9000; 1500 gives 1024

FIRST_PORT = 18600  # beside perftest's own 18515
UNIT = "sparklanes-bandwidth-"
TOGETHER = "together"

Facts = Mapping[str, Any]


# Who measures whom


def neighbours(hosts: Sequence[str]) -> list[tuple[str, str]]:
    """Client → server around the ring of ranks; of two Sparks that is each direction once."""
    return [(host, hosts[(index + 1) % len(hosts)]) for index, host in enumerate(hosts)] if len(hosts) > 1 else []


def cables(fabrics: Mapping[str, Facts]) -> list[tuple[str, str]]:
    """Client → server. Behind a switch around the ring of ranks; without one each cable in both directions, whatever the order of ranks."""
    hosts = list(fabrics)
    if not any(map(is_ring, fabrics.values())):
        return neighbours(hosts)
    return [(one, two) for one in hosts for two in hosts if one != two and meeting(fabrics[one], fabrics[two])]


def plan(fabrics: Mapping[str, Facts]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Host → {serve, measure}. A server answers one client and ends, so each measurement has a server and port of its own."""
    made: dict[str, dict[str, list[dict[str, Any]]]] = {host: {"serve": [], "measure": []} for host in fabrics}
    port = FIRST_PORT
    for client, server in cables(fabrics):
        rails = meeting(fabrics[client], fabrics[server])
        modes = ["alone"] * len(rails) + [TOGETHER] * (len(rails) if len(rails) > 1 else 0)
        for mode, (index, here, there) in zip(modes, rails * 2, strict=False):
            common = {"rail": str(index), "mode": mode, "port": port, "link_gbps": slower(here, there)}
            made[server]["serve"].append({**common, "peer": client, **_device(there)})
            made[client]["measure"].append({**common, "peer": server, "address": address_of(there), **_device(here)})
            port += 1
    return made


def slower(here: Facts, there: Facts) -> float | None:
    """Gb/s of the slower end of a link, None where neither end tells."""
    return min((float(rail["link_gbps"]) for rail in (here, there) if rail.get("link_gbps")), default=None)


def unmeasured(fabrics: Mapping[str, Facts]) -> list[Check]:
    """A failed row for each rail that meets no other, and each Spark that nobody measures: what was not measured carries nothing."""
    made = []
    pairs = cables(fabrics)
    for host, fabric in fabrics.items():
        met = {index for client, server in pairs if client == host for index, _, _ in meeting(fabric, fabrics[server])}
        lost = [rail for index, rail in enumerate(rails_of(fabric)) if index not in met]
        names = ", ".join(f"{rail.get('hca') or rail.get('netdev')} in {rail.get('network')}" for rail in lost)
        if lost or not rails_of(fabric):
            found = f"not measured: {names or 'no rail'} meets no rail of another Spark"
            remedy = "Give both ends of each cable an address in one network, and every Spark the same number of rails: playbooks/fabric_network.yml."
            made.append(judged("FABRIC.BANDWIDTH", host, None, found, "each rail meets one of a neighbour", remedy))
    return made


def _device(rail: Facts) -> dict[str, Any]:
    return {
        "hca": str(rail.get("hca") or ""),
        "ib_port": int(rail.get("port") or 1),
        "gid_index": int(rail.get("gid_index") or 0),
    }


def unfit(fabrics: Mapping[str, Facts]) -> str:
    """Why nothing can be measured, empty where it can."""
    if len(fabrics) < 2:
        return "One Spark has nobody to measure with."
    for host, fabric in fabrics.items():
        rails = fabric.get("rails") or []
        if not rails or not all(rail.get("hca") for rail in rails):
            return f"{host} has no RDMA rail (transport {fabric.get('transport') or 'unknown'}): ib_write_bw measures RDMA only."
    return ""


# perftest


@dataclass(frozen=True)
class Measured:
    """One run's average; None where it did not come to one, and then `error` says why."""

    gbps: float | None
    mtu: int | None = None
    error: str = ""


_HEADER = re.compile(r"#bytes\s+#iterations\s+.*BW average\s*\[([^\]]{1,12})\]")
# perftest's MB is 2^20 bytes.
_UNITS = {"gb/sec": 1.0, "gb/s": 1.0, "mb/sec": 8 * 2**20 / 1e9, "mib/sec": 8 * 2**20 / 1e9, "mb/s": 8 * 2**20 / 1e9}
_MTU = re.compile(r"^\s*Mtu\s*:\s*([0-9]{3,5})\[B\]", re.MULTILINE)


def parse(text: str) -> Measured:
    """The output of `ib_write_bw`, of whatever release: the row below the header, in the header's unit."""
    mtu = _MTU.search(text)
    size = int(mtu[1]) if mtu else None
    lines = text.splitlines()
    for index, line in enumerate(lines):
        header = _HEADER.search(line)
        if not header:
            continue
        factor = _UNITS.get(header[1].strip().lower())
        for row in lines[index + 1 :]:
            fields = row.split()
            if len(fields) >= 4 and factor is not None:
                try:
                    int(fields[0]), int(fields[1])
                    value = float(fields[3]) * factor
                except ValueError:
                    continue
                if 0 <= value < 1e5:  # inf and nan are neither
                    return Measured(value, size)
    return Measured(None, size, complaint(text))


def complaint(text: str) -> str:
    """What perftest says last, rulers and blank lines aside."""
    said = [line.strip() for line in text.splitlines() if any(char.isalnum() for char in line)]
    return said[-1][:300] if said else "no output"


def argv(program: str, test: Facts, size: int, iterations: int) -> list[str]:
    """A bounded run: so many messages of one size, no CPU frequency check. With an address it is the client."""
    made = [program, "-d", str(test["hca"]), "-i", str(test["ib_port"]), "-x", str(test["gid_index"]), "-p", str(test["port"])]
    made += ["-s", str(size), "-n", str(iterations), "-F", "--report_gbits"]
    return [*made, str(test["address"])] if test.get("address") else made


def server_argv(program: str, test: Facts, size: int, iterations: int, seconds: int) -> list[str]:
    """The server as a transient unit: it outlives the connection that starts it, and systemd ends it in any case."""
    unit = f"--unit={UNIT}{test['port']}"
    limits = [f"--property=RuntimeMaxSec={seconds}", "--property=LimitMEMLOCK=infinity", "--property=KillMode=mixed"]
    return ["systemd-run", "--collect", "--quiet", unit, *limits, *argv(program, {**test, "address": ""}, size, iterations)]


def run(programs: Sequence[Sequence[str]], seconds: float) -> list[Measured]:
    """Run clients at once; none outlives its time."""
    found = []
    for code, text, error in commands.together(programs, seconds):
        measured = parse(text)
        if code != 0:
            why = f"no result within {seconds:g} s" if code == commands.TIMED_OUT else f"exit {code}"
            measured = Measured(None, measured.mtu, f"{why}: {complaint(text or error)}")
        found.append(measured)
    return found


# The judgement


def checks(host: str, planned: Sequence[Facts], results: Sequence[Facts] | None) -> list[Check]:
    """FABRIC.BANDWIDTH of each rail alone and of all together, FABRIC.BANDWIDTH_MTU; towards each neighbour of `host`."""
    found = {int(result["port"]): result for result in results or []}
    made: list[Check] = []
    alone = [test for test in planned if test["mode"] != TOGETHER]
    for test in alone:
        made.append(_rail(host, test, found.get(int(test["port"]))))
    peers = dict.fromkeys(str(test["peer"]) for test in planned)
    for peer in peers:
        made.append(_total(host, peer, [test for test in planned if test["peer"] == peer], found))
    small = {
        str(test["hca"]): int(result["mtu"]) for test in alone if (result := found.get(int(test["port"]))) and result.get("mtu")
    }
    low = {hca: mtu for hca, mtu in small.items() if mtu < RDMA_MTU}
    if low:
        text = f"RDMA packets of {', '.join(f'{mtu} bytes on {hca}' for hca, mtu in low.items())}"
        remedy = "MTU 1500 gives packets of 1024 bytes: set 9000 on every Spark (playbooks/fabric_network.yml) and jumbo frames on the switch."
        made.append(Check("FABRIC.BANDWIDTH_MTU", host, WARN, text, f"{RDMA_MTU} bytes", remedy))
    return made


def judge(hostvars: HostVars, hosts: Sequence[str]) -> list[Check]:
    """The checks of every host, from what role fabric_bandwidth registered."""
    fabrics = fabrics_of(hostvars, hosts)
    made = unmeasured(fabrics)
    found = looks(hostvars, hosts, "fabric_bandwidth_result")
    for host, mine in plan(fabrics).items():
        measured = (found[host].facts or {}).get("measured")
        if not isinstance(measured, list):
            why = found[host].problem or "the module gave no measured"
            measured = [{"port": test["port"], "error": why} for test in mine["measure"]]
        made += checks(host, mine["measure"], measured)
    return made


def _needed(link: float | None) -> float:
    """Gb/s that one rail must carry over a link of that speed. A half of a port carries no more than its PCIe link, whatever the cable."""
    return GOOD_GBPS if link is None else min(GOOD_GBPS, SHARE * link)


def _of(link: float | None) -> str:
    return f" over a link of {link:g} Gb/s" if link is not None and link < LINK_GBPS else ""


def _rail(host: str, test: Facts, result: Facts | None) -> Check:
    where = f"rail {test['rail']} ({test['hca']}) to {test['peer']}"
    link = test.get("link_gbps")
    needed = _needed(link)
    expected = f"≥ {needed:g} Gb/s{_of(link)}"
    gbps = (result or {}).get("gbps")
    if gbps is None:
        error = (result or {}).get("error") or "not measured"
        remedy = f"Try the two ends by hand: ib_write_bw -d {test['hca']} -x {test['gid_index']}; and look at gate A's pings."
        return judged("FABRIC.BANDWIDTH", host, None, f"{where}: {error}", expected, remedy)
    text = f"{where}: {gbps:.1f} Gb/s"
    if gbps >= needed:
        return Check("FABRIC.BANDWIDTH", host, PASS, text, expected)
    if STALE_GBPS[0] <= gbps <= STALE_GBPS[1] and needed > 2 * STALE_GBPS[1]:
        text += ": stale initialisation of the ConnectX-7"
        remedy = f"Reboot {host} and {test['peer']}; if it stays, shut both down and cut their AC power for 60 s (a reboot alone doesn't cure it)."
    else:
        remedy = (
            "Look at PCIe (32.0 GT/s x4: PCIE_LINK of roce_facts; BIOS before 2026-04), the MTU, the cable, and other traffic."
        )
    return Check("FABRIC.BANDWIDTH", host, FAIL, text, expected, remedy)


def _link_of(tests: Sequence[Facts]) -> float | None:
    """Gb/s that the ports of these rails have in sum, by their slower ends; two halves of one port share it. None where one is unknown."""
    ports: dict[str, list[float | None]] = {}
    for test in tests:
        half = re.search(r"f([0-9]+)$", str(test["hca"]))
        ports.setdefault(half[1] if half else "", []).append(test.get("link_gbps"))
    if any(None in links for links in ports.values()):
        return None
    return sum(min(float(link) for link in links if link is not None) for links in ports.values())


def _total(host: str, peer: str, planned: Sequence[Facts], found: Mapping[int, Facts]) -> Check:
    """All rails at once. Two halves of one QSFP port carry about 190 Gb/s of 200; a second cable adds nothing. A slower link carries less."""
    id_ = "FABRIC.BANDWIDTH_TOTAL"
    together = [test for test in planned if test["mode"] == TOGETHER]
    values = [(found.get(int(test["port"])) or {}).get("gbps") for test in together or planned]
    known = [float(value) for value in values if value is not None]
    total = sum(known)
    if not together:
        text = f"one half only to {peer}: {total:.1f} Gb/s of about 190" if known else f"to {peer}: not measured"
        remedy = "Both halves of the QSFP port need an address on every Spark: playbooks/fabric_network.yml, fabric_want_both_halves: true."
        return Check(id_, host, WARN if known else FAIL, text, "both halves", remedy)
    link = _link_of(together)
    wanted = GOOD_GBPS * min(len(together), 2)
    wanted = wanted if link is None else min(wanted, SHARE * link)
    expected = f"≥ {wanted:g} Gb/s{_of(link)}"
    text = f"{len(together)} rails at once to {peer}: {total:.1f} Gb/s"
    if len(known) < len(together):
        lost = ", ".join(str(test["hca"]) for test, value in zip(together, values, strict=True) if value is None)
        text = f"one half only to {peer}: {total:.1f} Gb/s, nothing over {lost}" if known else f"to {peer}: not measured"
        return judged(id_, host, None, text, expected, f"Look at {lost} on {host} and its other end on {peer}.")
    if total >= wanted:
        return Check(id_, host, PASS, text, expected)
    if link is not None and link < LINK_GBPS:
        return judged(
            id_,
            host,
            False,
            text,
            expected,
            f"The slower end's link is {link:g} Gb/s: look at the cable, the switch port and other traffic.",
        )
    if STALE_GBPS[1] * 2 < total <= ONE_HALF_GBPS:
        text += ": no more than one half carries alone"
    remedy = "Each half must be a PCIe x4 link of its own, with an address and subnet of its own on every Spark."
    return judged(id_, host, False, text, expected, remedy)
