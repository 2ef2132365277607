# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What script/bench does once the virtual environment is there: find benchmarks by name, run them, judge their figures."""

from __future__ import annotations

import ast
import difflib
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
USAGE = """\
usage: script/bench [NAME… | all] [OPTION…]
  Runs benchmarks and prints one line of JSON a figure: figure, value, unit, aim (null: none), ok, sometimes note.
  Options go to each benchmark as they are; script/bench NAME --help shows them.
  Exit status 0: every figure is ok. 1: one is not, or a benchmark failed. 2: no such benchmark.
"""


def find(folder: Path) -> dict[str, Path]:
    """Benchmarks by name: a file without an ending, or a folder with a bench.py."""
    found = {}
    for path in sorted(folder.iterdir()):
        program = path / "bench.py" if path.is_dir() else path
        if program.is_file() and not path.suffix:
            found[path.name] = program
    return found


def purpose(source: str) -> str:
    """The first sentence of a program's documentation."""
    text = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    return text.partition(". ")[0].rstrip(".")


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names, and from the first option on what is passed through."""
    at = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:at]), list(words[at:])


def unknown(name: str, known: Mapping[str, Path]) -> str:
    near = difflib.get_close_matches(name, [*known, "all"], n=1, cutoff=0.4)
    nearest = f" The nearest name is {near[0]}." if near else ""
    return f"error: there is no benchmark {name!r}.{nearest} There are: {', '.join(known)}, and all."


def verdict(line: str) -> bool | None:
    """Whether a printed line is a figure that is ok; None: it is no figure."""
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return bool(data.get("ok")) if isinstance(data, dict) and "figure" in data else None


def run(program: Path, options: Sequence[str]) -> bool:
    """Run one benchmark with its output passed on line by line."""
    good = True
    with subprocess.Popen([sys.executable, str(program), *options], stdout=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())  # it has things to remove
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                good &= verdict(line) is not False
        except KeyboardInterrupt:
            process.wait()  # it got the same signal, and cleans up
            raise
    return good and process.returncode == 0


def main(words: Sequence[str]) -> int:
    known = find(HERE)
    names, options = split(words)
    if not names:
        print(USAGE + "benchmarks:\n" + "\n".join(f"  {name:<10} {purpose(path.read_text())}" for name, path in known.items()))
        return 0 if not options or options[0] in ("-h", "--help") else 2
    for name in names:
        if name != "all" and name not in known:
            print(unknown(name, known), file=sys.stderr)
            return 2
    chosen = list(known) if "all" in names else list(dict.fromkeys(names))
    good = True
    try:
        for name in chosen:
            good &= run(known[name], options)
    except KeyboardInterrupt:
        return 130
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
