#!/usr/bin/env python3
"""A stand-in for Docker's command line, for unit tests of what we ask of it: state in a JSON file, calls in a list.

The real one is used by the scenarios on the sandbox.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

STATE = Path(os.environ["FAKE_DOCKER_STATE"])


def main() -> int:
    state: dict[str, Any] = json.loads(STATE.read_text())
    args = sys.argv[1:]
    state["calls"].append(args)
    hangs = state.setdefault("hangs", {})
    if hangs.get(args[0]):  # so many more times
        hangs[args[0]] -= 1
        STATE.write_text(json.dumps(state))
        return hang(args[0])
    code = answer(state, args)
    STATE.write_text(json.dumps(state))
    return code


def hang(what: str) -> int:
    """As a client does whose daemon, registry or disk hangs: half of it may have gone well."""
    if what == "save":
        print("half", end="", flush=True)
    elif what == "load":
        sys.stdin.buffer.read(4096)
    time.sleep(600)
    return 1


def move(state: dict[str, Any], what: str, name: str) -> int:
    if what == "load":
        print(f"Loaded image: loaded-{len(sys.stdin.buffer.read())}")
    elif what == "pull":
        state["image"] = name
        print(name)
    else:
        print("whole" if what == "save" else f"staged: digest: sha256:{'a' * 64} size: 9")
    return 0


def answer(state: dict[str, Any], args: list[str]) -> int:
    boxes: list[dict[str, Any]] = state["containers"]
    if args[0] in ("pull", "push", "save", "load"):
        return move(state, args[0], args[-1])
    if args[0] == "ps":
        wanted = [args[index + 1] for index, word in enumerate(args) if word == "--filter"]
        for box in boxes:
            labels = box["Config"]["Labels"]
            if all(
                labels.get(text.split("=")[1]) == text.split("=")[2]
                if text.startswith("label=")
                else box["State"].get("Status") == text.partition("=")[2]
                if text.startswith("status=")
                else box["Name"][1:] in text.replace("\\", "")
                for text in wanted
            ):
                print(box["Id"])
        return 0
    if args[0] == "inspect":
        print(json.dumps([box for box in boxes if box["Id"] in args]))
        return 0
    if args[:2] == ["image", "inspect"]:
        if state["image"] == args[-1]:
            print(json.dumps([{"Id": "sha256:1", "RepoDigests": [state["image"]]}]))
            return 0
        print(f"Error response from daemon: No such image: {args[-1]}", file=sys.stderr)
        return 1
    if args[:2] == ["image", "ls"]:
        return 0
    if args[0] == "create":
        options = dict(word.split("=", 1) for flag, word in itertools.pairwise(args) if flag == "--label")
        given = [word for flag, word in itertools.pairwise(args) if flag == "--env"]
        boxes.append(
            {
                "Id": f"{len(state['calls']):064x}",
                "Name": "/" + args[args.index("--name") + 1],
                "Config": {
                    "Image": state["image"],
                    "Labels": options,
                    "Env": [f"{e}={os.environ[e]}" if "=" not in e else e for e in given],
                },
                "State": {"Running": False, "Status": "created"},
                "HostConfig": {},
            }
        )
        print(boxes[-1]["Id"])
        return 0
    if state.get("refuses") == args[0]:
        print("refused, as asked", file=sys.stderr)
        return 1
    box = next(one for one in boxes if args[-1] in (one["Id"], one["Name"][1:]))
    if args[0] == "start":
        box["State"] = {"Running": True, "Status": "running"}
    elif args[0] == "stop":
        box["State"] = {"Running": False, "Status": "exited", "ExitCode": 0}
    elif args[0] == "logs":
        print(state.get("log", f"the log of {box['Name']}"))
    elif args[0] == "rm":
        if box["State"]["Running"] or "-f" in args or "--force" in args:
            print("refused: it runs, or force was used", file=sys.stderr)
            return 1
        boxes.remove(box)
    return 0


if __name__ == "__main__":
    sys.exit(main())
