# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One fault after the other: from a known state, injected at its moment, looked at, undone, healed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults import score
from benchmarks.faults.injectors import Injector
from benchmarks.faults.nodes import DEPLOYMENT, DEPLOYMENTS, Fleet, NodeError
from benchmarks.faults.plays import INVENTORY, Play, run, wait_for
from benchmarks.faults.progress import Progress
from benchmarks.faults.table import NODES, Fault

# Makes another release of the lane: its own failure gives way to last good.
ANOTHER = ("-e", "lane_max_num_seqs=7")
# What a launch recorded of last good that passed, or came back.
GOOD = re.compile(r"serving$|restored")
# How long a playbook that is not measured may take.
PATIENCE = 900


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Runner:
    """The sandbox's two nodes with last good serving on them, and what was measured so far."""

    def __init__(self, fleet: Fleet, progress: Progress) -> None:
        self.fleet, self.progress = fleet, progress
        self.good, self.text = "", ""

    # --- the known state

    def ready(self) -> None:
        """Last good serves: what it needs is staged, its bank is there, it was judged against it."""
        serving = self.fleet.serving()
        good = {str(self.fleet.state(node).get("last_good") or "") for node in self.fleet.nodes.values()}
        if serving.text and serving.releases == good and set(serving.ranks) == set(NODES) and not self.fleet.phase():
            self.good, self.text = good.pop(), serving.text
            say(f"release {self.good} serves and is last good")
            return
        say("site.yml, a launch, its bank, and a launch that is judged by it")
        if held := self.fleet.held():  # of a run that was ended
            self._must("playbooks/recover.yml", "-e", f"break_lock={held}", "-e", "recover_to=nothing")
        self._must("site.yml")
        self._must("playbooks/launch.yml", "-e", "launch_forget_deaths=true")
        if not (self.fleet.home / "banks/sandbox_tiny.json.gz").exists():
            self._must("playbooks/bank.yml", "-e", "bank_accept=true")
            self._must("playbooks/launch.yml")
        serving = self.fleet.serving()
        if not serving.text or len(serving.releases) != 1:
            raise NodeError("a healthy launch ended well, and nothing serves")
        self.good, self.text = next(iter(serving.releases)), serving.text

    def _must(self, playbook: str, *arguments: str) -> None:
        play = run(self.fleet.root, playbook, *arguments, limit=PATIENCE)
        if play.wait() != 0:
            kept = self.progress.output(f"setup-{Path(playbook).stem}", play.output)
            raise NodeError(f"{playbook} failed with nothing amiss: {kept}")

    def is_good(self) -> bool:
        """Whether the known state is there, as far as the next fault depends on it."""
        serving = self.fleet.serving()
        states = [self.fleet.state(node) for node in self.fleet.nodes.values()]
        return (
            set(serving.ranks) == set(NODES)
            and serving.releases == {self.good}
            and serving.text == self.text
            and not any(rank.paused for rank in serving.ranks.values())
            and not any((node.read(f"{DEPLOYMENTS}/transaction.json") or "").strip() for node in self.fleet.nodes.values())
            and all(state.get("last_good") == self.good and GOOD.match(str(state.get("status"))) for state in states)
        )

    def heal(self, site: bool = False) -> str:
        """Bring the known state back; how it was done, empty where it was there."""
        if not self.fleet.wait_ready():
            raise NodeError("a node's sshd or Docker did not come back after the fault was undone")
        for node in self.fleet.nodes.values():
            state = self.fleet.state(node)
            if state.get("deaths"):  # each fault has its own: two of them would make the next wait for a person
                node.do(f"cat > {DEPLOYMENTS}/state.json", stdin=json.dumps({**state, "deaths": []}).encode())
        if site:
            run(self.fleet.root, "site.yml", limit=PATIENCE)
        if self.is_good():
            return "site" if site else ""
        again = ("playbooks/launch.yml", "-e", "launch_forget_deaths=true")
        undo = ("playbooks/recover.yml", "-e", f"break_lock={self.fleet.held()}", "-e", "recover_to=nothing")
        for how, steps in (("launch", [again]), ("recover", [undo, again])):
            for playbook, *arguments in steps:
                run(self.fleet.root, playbook, *arguments, limit=PATIENCE)
            if self.is_good():
                return how
        say("  neither launch nor recover puts it right: by hand")
        for node in self.fleet.nodes.values():
            node.attempt(f"docker stop -t 30 {node.container}; docker rm {node.container}; rm -rf {DEPLOYMENTS}", timeout=120)
        for note in (self.fleet.root / "artifacts" / DEPLOYMENT).glob("transaction-*.json"):
            note.unlink()
        self._must("site.yml")
        self._must("playbooks/launch.yml")
        if not self.is_good():
            raise NodeError("the known state can't be brought back; look at the nodes: script/sandbox ssh spark-1")
        return "hand"

    # --- one fault

    def fault(self, fault: Fault, number: int) -> None:
        """Inject it, judge it, keep the result, heal."""
        key = f"{number}/{fault.id}"
        say(f"{key}: {fault.title}")
        injectors = fault.injectors()
        began = time.time()
        try:
            if fault.from_state == "stopped":
                self._must("playbooks/stop.yml")
            evidence, plays = self._perform(fault, injectors, began)
        finally:
            wrong = self._undo(injectors)
        verdict = score.judge(fault, evidence)
        output = "\n".join(f"$ {' '.join(play.argv)}\n{play.output}\n" for play in plays)
        kept = self.progress.output(key, output)
        mark = "right" if verdict.right else "WRONG"
        say(f"  {mark}: {verdict.found}; {'; '.join(verdict.notes) or 'as it should'}")
        healed = self.heal(fault.site)
        self.progress.keep(
            key,
            {
                **asdict(verdict),
                "right": verdict.right,
                "ended_well": evidence.ended_well,
                "ended": round(evidence.ended, 1),
                "printed": evidence.printed,
                "healed": healed,
                "undo": wrong,
                "output": str(kept.relative_to(self.fleet.root)),
                "load": round(os.getloadavg()[0], 1),
            },
        )

    def _inject(self, injectors: Sequence[Injector]) -> str:
        """Inject them in their order; why one could not be."""
        try:
            for injector in injectors:
                injector.inject(self.fleet)
        except (NodeError, OSError, subprocess.SubprocessError) as error:
            return str(error)
        return ""

    def _undo(self, injectors: Sequence[Injector]) -> str:
        """Undo all of them, last first, whatever one of them says."""
        wrong = []
        for injector in reversed(injectors):
            try:
                injector.undo(self.fleet)
            except (NodeError, OSError, subprocess.SubprocessError) as error:
                wrong.append(f"{injector.name}: {error}")
        for text in wrong:
            say(f"  not undone: {text}")
        return "; ".join(wrong)

    def _perform(self, fault: Fault, injectors: Sequence[Injector], began: float) -> tuple[score.Evidence, list[Play]]:
        fleet = self.fleet
        before = fleet.serving(ask=False)
        arguments = [*fault.arguments, *(ANOTHER if fault.new else ())]
        playbook = f"playbooks/{fault.run}.yml"
        inventory = self._small() if fault.inventory == "small" else INVENTORY
        missed = self._inject(injectors) if fault.at == "before" else ""
        plays = [Play(fleet.root, playbook, arguments, inventory)]
        since, since_wall = plays[0].began, time.time()
        if fault.controller.startswith("twin"):
            plays.append(Play(fleet.root, playbook, arguments, inventory, elsewhere=fault.controller == "twin-elsewhere"))
        if fault.at != "before":
            missed = "" if wait_for(fault.at, fleet, plays[0]) else f"the run never came to its moment ({fault.at})"
            since, since_wall = time.monotonic(), time.time()
            missed = missed or self._inject(injectors)
        well, strange = self._follow(fault, plays, missed)
        ended = time.monotonic() - since
        after = fleet.serving(ask=not fault.cut)
        touched = "; ".join(filter(None, [strange, *(injector.touched(fleet) for injector in injectors)])) if not missed else ""
        lines = sorted((round(line.at - since, 2), line.text) for play in plays for line in play.lines)
        return (
            score.Evidence(
                lines,
                well,
                before,
                after,
                self.good,
                self.text,
                self._receipts(began),
                self._logs(since_wall),
                touched,
                missed,
                ended,
                len(plays[-1 if fault.controller == "kill" else 0].lines),
            ),
            plays,
        )

    def _follow(self, fault: Fault, plays: list[Play], missed: str) -> tuple[bool, str]:
        """What happens to the controller, and what is typed next. Whether it ended well, and what was done to another's ranks."""
        first, root = plays[0], self.fleet.root
        if missed or fault.controller == "":
            return first.wait() == 0, ""
        if fault.controller.startswith("twin"):
            return sorted(play.wait() == 0 for play in plays) == [False, True], ""
        first.send(signal.SIGKILL if fault.controller == "kill" else signal.SIGSTOP)
        if fault.controller == "kill":
            first.wait()
        playbook = "playbooks/launch.yml" if fault.then == "launch" else "playbooks/recover.yml"
        arguments = [word.replace("{held}", self.fleet.held()) for word in fault.then_arguments]
        then = [Play(root, playbook, arguments) for _ in range(2 if fault.then == "recover-twice" else 1)]
        plays.extend(then)
        codes = [play.wait() for play in then]
        if fault.controller == "kill":
            return sum(code == 0 for code in codes) == 1, ""
        between = self.fleet.serving(ask=False)
        first.send(signal.SIGCONT)
        woken = first.wait()
        strange = [] if codes == [0] else [f"{fault.then} failed beside a controller that sleeps"]
        if not between.ids or self.fleet.serving(ask=False).ids != between.ids:
            strange.append("the controller that woke up late replaced or stopped what another one had started")
        return woken == 0, "; ".join(strange)

    # --- what it left behind

    def _receipts(self, since: float) -> list[dict[str, Any]]:
        found = []
        for path in sorted((self.fleet.root / "artifacts" / DEPLOYMENT).glob("*/receipt.json")):
            if path.stat().st_mtime >= since:
                try:
                    found.append(json.loads(path.read_text()))
                except ValueError:
                    say(f"  {path} is no JSON")
        return found

    def _logs(self, since: float) -> list[str]:
        """Nodes of which the controller has got a log since the fault."""
        files = (self.fleet.root / "artifacts" / DEPLOYMENT).glob("*/*.log*")
        fresh = [path.name for path in files if path.stat().st_size and path.stat().st_mtime >= since]
        return [name for name in NODES if any(file.startswith(f"{name}-") for file in fresh)]

    def _small(self) -> str:
        """The sandbox's inventory without its second node."""
        place = self.fleet.home / "faults/small"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for path in (self.fleet.root / INVENTORY).iterdir():
            if path.name != "10-sandbox.yml":
                (place / path.name).symlink_to(path)
        (place / "10-sandbox.yml").write_text(without((self.fleet.root / INVENTORY / "10-sandbox.yml").read_text(), NODES[1]))
        return str(place)

    # --- nothing amiss

    def healthy(self, number: int) -> None:
        """A launch that starts all ranks anew. It must pass, and name nothing."""
        key = f"healthy/{number}"
        say(f"{key}: a launch with nothing amiss")
        fault = Fault(key, "", run="launch", arguments=("-e", "launch_restart=true"), ends=True, serves=("last-good",))
        evidence, plays = self._perform(fault, (), time.time())
        verdict = score.judge(fault, evidence)
        self.progress.output(key, plays[0].output)
        say(f"  {'right' if verdict.right else 'WRONG'}: {verdict.found}; {'; '.join(verdict.notes) or 'as it should'}")
        healed = self.heal()
        result = {**asdict(verdict), "right": verdict.right, "ended_well": evidence.ended_well, "printed": evidence.printed}
        self.progress.keep(key, {**result, "ended": round(evidence.ended, 1), "healed": healed})


def without(inventory: str, node: str) -> str:
    """The generated inventory less one of its nodes."""
    data = yaml.safe_load(inventory)
    del data["all"]["children"]["sparks"]["hosts"][node]
    return yaml.safe_dump(data)
