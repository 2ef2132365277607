# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""script/sandbox: arguments in, an exit status out."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from sandbox import debian, fleet, packages
from sandbox.host import detect, pick_engine
from sandbox.layout import Clone
from sandbox.shell import SandboxError
from sandbox.vms import Pair

EPILOG = """\
script/sandbox up            two nodes, spark-1 and spark-2, with the real vLLM for CPU
script/sandbox ssh spark-1   a shell there; with a command, that
ansible-playbook -i inventory/sandbox site.yml -l sparks
script/sandbox down          removes all but the caches; --all these, too
script/sandbox vms up        two virtual machines instead, with a kernel and soft RoCE of their own: vms ssh spark-1, vms down
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="script/sandbox",
        description="A fleet of emulated Sparks on this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="up|down|status|ssh|prepare|vms")
    up = verbs.add_parser("up", help="bring it up; changes nothing when it is")
    up.add_argument("--nodes", type=int, default=2, choices=range(1, 9), metavar="N", help="1 to 8, default 2")
    up.add_argument("--light", action="store_true", help="without vLLM: roles can be tried, nothing can be served")
    down = verbs.add_parser("down", help="remove all that up made")
    down.add_argument("--all", action="store_true", help="the caches, too")
    verbs.add_parser("status", help="how it is; exit status 0 when it is whole")
    prepare = verbs.add_parser("prepare", help="only install the packages it needs, or those of the tests or benchmarks")
    prepare.add_argument("purpose", nargs="?", default="sandbox", choices=["sandbox", "tests", "bench", "vms"])
    prepare.add_argument("--list", action="store_true", help="only say which are missing")
    ssh = verbs.add_parser("ssh", help="a shell on a node, or a command there")
    ssh.add_argument("node", metavar="NODE")
    ssh.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD")
    vms = verbs.add_parser("vms", help="virtual machines, for what needs a real kernel (script/test vm)")
    actions = vms.add_subparsers(dest="action", required=True, metavar="up|down|ssh")
    actions.add_parser("up", help="two that have just booted from new disks")
    actions.add_parser("down", help="end them; their image stays")
    shell = actions.add_parser("ssh", help="a shell on one, or a command there")
    shell.add_argument("node", metavar="NODE")
    shell.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD")
    return top


def as_root(arguments: Sequence[str], why: str = "The sandbox starts privileged containers") -> None:
    """Ask for root once, and go on as it."""
    if os.geteuid() == 0:
        return
    if shutil.which("sudo") is None:
        raise SandboxError(f"{why}: run this as root (there is no sudo here).")
    print(f"{why}; sudo may ask for your password.", flush=True)
    os.execvp("sudo", ["sudo", "-E", sys.executable, *arguments])


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def prepare(args: argparse.Namespace, arguments: Sequence[str], clone: Clone) -> int:
    """Nothing, root not even asked for, where all is there."""
    if args.purpose in ("sandbox", "vms"):
        debian.check_machine(detect())
    needed = packages.missing(
        *(fleet.purposes(pick_engine(detect().limits.may_raise)) if args.purpose == "sandbox" else [args.purpose])
    )
    if args.list:
        print(" ".join(needed))
    elif needed:
        as_root(arguments, f"Packages are missing ({', '.join(needed)}) and are installed with apt-get")
        with fleet.locked(clone):
            packages.install(clone, needed)
    return 0


def virtual(args: argparse.Namespace, arguments: Sequence[str], pair: Pair) -> int:
    if args.action == "ssh":
        if not pair.inventory.exists():
            raise SandboxError("The virtual machines aren't up. Bring them up: script/sandbox vms up")
        os.execvp("ssh", pair.ssh(args.node, *args.command))
    as_root(arguments)
    with fleet.locked(pair.clone):
        if args.action == "up":
            pair.up()
            print(f"Inventory: {pair.inventory}; a shell: script/sandbox vms ssh spark-1", flush=True)
        else:
            pair.down()
    return 0


def main(arguments: Sequence[str], root: Path) -> int:
    args = parser().parse_args(arguments[1:])
    clone = Clone(root)
    signal.signal(signal.SIGTERM, stop)
    try:
        if args.verb == "ssh":
            if not (clone.ssh / "config").exists():
                raise SandboxError("The sandbox isn't up. Bring it up: script/sandbox up")
            os.execvp("ssh", fleet.ssh(clone, args.node, *args.command))
        if args.verb == "vms":
            return virtual(args, arguments, Pair(clone))
        if args.verb == "prepare":
            return prepare(args, arguments, clone)
        as_root(arguments)
        if args.verb == "status":
            return fleet.status(clone)
        with fleet.locked(clone):
            if args.verb == "up":
                fleet.up(clone, args.nodes, args.light)
            else:
                fleet.down(clone, args.all)
    except BrokenPipeError:  # `script/sandbox status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. `script/sandbox up` goes on from here, `script/sandbox down` cleans up.", file=sys.stderr)
        return 130
    return 0
