"""Pages name files and folders that are there: what was moved is found under its new name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT

PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/*.md",
        "roles/*/README.md",
        "sandbox/*.md",
        "tests/fixtures/**/*.md",
        "lanes/**/*.md",
        "banks/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
NAMED = re.compile(rf"(?<![\w/.<$-])(?:{'|'.join(FOLDERS)})/[\w./-]*(?:\.(?:py|yml|md|sh|txt|toml|j2)\b|/(?=`))(?![\w/*<…])")
# What a site has and a clone has not.
OF_A_SITE = ("inventory/fleet/", "lanes/overlays/", "artifacts/")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = {name for name in NAMED.findall(page.read_text(encoding="utf-8")) if not name.startswith(OF_A_SITE)}
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing, f"{page.relative_to(ROOT)} names {', '.join(missing)}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = {
        target.partition("#")[0] for target in re.findall(r"\]\((?!https?:|#)([^)\s]+)\)", page.read_text(encoding="utf-8"))
    }
    missing = sorted(target for target in targets if not (page.parent / target).exists())
    assert not missing, f"{page.relative_to(ROOT)} links to {', '.join(missing)}, which is not there"
