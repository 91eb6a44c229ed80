"""The pages point at what exists: files by their links, make's targets by their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_makes_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.MULTILINE))
    assert named <= targets


def test_every_page_is_in_the_index_of_its_folder_and_every_folder_in_the_first() -> None:
    first = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name == "README.md":
            assert page.parent.name == "docs" or f"({page.parent.name}/README.md)" in first
        else:
            assert f"({page.name})" in (page.parent / "README.md").read_text(), page


def test_a_decision_is_short_and_says_what_was_rejected() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in decisions] == list(range(1, len(decisions) + 1))
    for page in decisions:
        text = page.read_text()
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences", "Rejected"], page.name
        assert text.count("\n") <= 40, page.name


def test_each_fault_names_tests_that_exist() -> None:
    lines = (ROOT / "docs" / "faults.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| fault |")]
    assert rows
    missing = []
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row.rsplit(" | ", 1)[-1])
        if not named:
            missing.append(f"no test: {row}")
        for file, test in named:
            path = ROOT / file
            if not path.exists() or (test and f"def {test}(" not in path.read_text()):
                missing.append(f"{file}::{test}")
    assert not missing
