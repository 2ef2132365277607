"""The comparison with other ways: ours is never silently wrong, and docs/fabric.md has the numbers of today."""

from __future__ import annotations

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from conftest import ROOT


def load() -> Any:
    loader = SourceFileLoader("fabric_benchmark", str(ROOT / "benchmarks" / "fabric"))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_table_of_the_page_is_the_table_of_the_benchmark(tmp_path: Path) -> None:
    benchmark = load()
    table = benchmark.compare(tmp_path)
    found = benchmark.counts(table)
    page = (ROOT / "docs" / "fabric.md").read_text()
    written = {way: (int(n), int(total)) for way, n, total in re.findall(r"\(`(\w+)`\) \| (\d+) of (\d+)", page)}
    assert written == {way: (kinds["silent"], len(table)) for way, kinds in found.items()}
    assert (found["sparklanes"]["silent"], found["sparklanes"]["refused"]) == (0, 0)


def test_what_is_left_out_exists() -> None:
    benchmark = load()
    assert {case.id for case in benchmark.CASES} >= benchmark.POLICY
