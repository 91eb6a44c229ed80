"""The folders of the tests: what one folder uses of another is in tests/support (tests/README.md)."""

from __future__ import annotations

import re

from tests.support import ROOT

TESTS = ROOT / "tests"
SHARED = {"support", "cases", "differential"}
"""The cases are data: `cases` runs them through the driver, `broker` on a broker. So are the families: `differential` runs them beside
Java, `unit` and `dagster` as history."""


def test_a_folder_uses_no_helper_of_another_folder() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {used[0]}"
        for path in sorted(TESTS.rglob("*.py"))
        for used in re.finditer(r"\btests\.(\w+)(?=[.\s:])", path.read_text(encoding="utf-8"))
        if (TESTS / used[1]).is_dir() and used[1] not in {*SHARED, path.relative_to(TESTS).parts[0]}
    ]
    assert found == [], "move what both folders use to tests/support"


def test_every_folder_is_described() -> None:
    described = set(re.findall(r"`(\w+)/`", (TESTS / "README.md").read_text(encoding="utf-8")))
    assert described == {path.parent.name for path in TESTS.glob("*/__init__.py")}


def test_the_folders_of_the_engines_unit_tests_are_its_own() -> None:
    tested = {path.parent.name for path in (TESTS / "unit" / "runtime").glob("*/__init__.py")}
    assert tested <= {path.parent.name for path in (ROOT / "runtime").glob("*/__init__.py")}, "a room was moved: move its tests with it"
