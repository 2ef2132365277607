#!/usr/bin/env python3
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""How much of public recipes arrives in a lane: flags that are rendered as their source has them, and those kept without being understood.

    script/bench lanes [--folder DIR]

Each recipe of tests/fixtures/lane/recipes.yml is imported in every form that people have it in. --folder: files of your own instead.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import ansible.module_utils  # noqa: E402
import yaml  # noqa: E402

ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.sparklanes.lane import rules, schema  # noqa: E402
from ansible.module_utils.sparklanes.lane.importers import compare, importing  # noqa: E402
from ansible.module_utils.sparklanes.lane.importers.source import Refused  # noqa: E402

from benchmarks.figures import Figure, emit  # noqa: E402
from benchmarks.lanes import forms  # noqa: E402

LOST_AIM, VERBATIM_AIM = 0.05, 0.10


def written(folder: Path) -> Iterator[Path]:
    """Every recorded recipe in every form, as files."""
    for facts in forms.recorded():
        for form, (write, ending) in forms.FORMS.items():
            path = folder / f"{facts['id']}.{form}.{ending}"
            path.write_text(write(facts), encoding="utf-8")
            yield path


def measure(paths: Sequence[Path], options: schema.Schema) -> list[Figure]:
    total: Counter[str] = Counter()
    unlike: Counter[str] = Counter()
    refused: list[str] = []
    faulty: list[str] = []
    for path in paths:
        try:
            imported = importing.of_file(str(path), "measured")
            counts = compare.counts(imported, options)
        except Refused as error:
            refused.append(f"{path.name}: {error}")
            continue
        total += Counter(flags=counts.flags, ours=counts.ours, same=counts.same, verbatim=counts.verbatim)
        unlike.update(counts.unlike)
        lane, checks = schema.resolve(imported.variables, options, "localhost")
        faulty += [
            f"{path.name}: {one.found}" for one in [*checks, *rules.lane_checks(lane, "localhost")] if one.status == "fail"
        ]
    judged = total["flags"] - total["ours"]
    of_all = f"{total['flags']} flags of {len(paths) - len(refused)} files; {total['ours']} of them each rank gets without a lane's word"
    shares = (None, None) if not judged else (1 - total["same"] / judged, total["verbatim"] / judged)
    return [
        Figure("lanes.flags_lost", _rounded(shares[0]), "share", LOST_AIM, _named(of_all, unlike)),
        Figure("lanes.verbatim", _rounded(shares[1]), "share", VERBATIM_AIM, of_all),
        Figure("lanes.refused", len(refused), "files", 0, " | ".join(refused)[:2000]),
        Figure("lanes.faulty", len(faulty), "faults", 0, " | ".join(faulty)[:2000]),
    ]


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _named(text: str, names: Counter[str]) -> str:
    return f"{text}; unlike: {', '.join(f'{name} {times}' for name, times in names.most_common())}" if names else text


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="script/bench lanes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="files to import instead of the recorded recipes: each is one")
    chosen = parser.parse_args(words)
    options = schema.schema(yaml.safe_load((ROOT / "roles/lane/meta/argument_specs.yml").read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as made:
        paths = sorted(path for path in chosen.folder.iterdir() if path.is_file()) if chosen.folder else list(written(Path(made)))
        figures = measure(paths, options)
    good = [emit(figure) for figure in figures]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
