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

from sandbox import fleet
from sandbox.host import missing_packages, pick_engine
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
    prepare = verbs.add_parser("prepare", help="only install the packages it needs")
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


def as_root(arguments: Sequence[str]) -> None:
    """Containers with systemd need root; ask for it once."""
    if os.geteuid() == 0:
        return
    if shutil.which("sudo") is None:
        raise SandboxError("The sandbox starts privileged containers: run this as root (there is no sudo here).")
    print("The sandbox starts privileged containers; sudo may ask for your password.", flush=True)
    os.execvp("sudo", ["sudo", "-E", sys.executable, *arguments])


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


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
        if args.verb == "prepare" and args.list:
            print(" ".join(missing_packages(pick_engine())))
            return 0
        as_root(arguments)
        if args.verb == "status":
            return fleet.status(clone)
        with fleet.locked(clone):
            if args.verb == "up":
                fleet.up(clone, args.nodes, args.light)
            elif args.verb == "prepare":
                fleet.prepare(clone)
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
