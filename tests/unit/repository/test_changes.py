"""The news fragments in changes/, and the version: one number wherever it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = PYPROJECT["project"]["version"]


def draft(folder: Path) -> str:
    """The next section of the changelog, made of the fragments in a folder like changes/."""
    copy = folder.parent / "project"
    copy.mkdir()
    shutil.copy(ROOT / "pyproject.toml", copy)
    shutil.copytree(folder, copy / "changes")
    command = [str(Path(sys.executable).with_name("towncrier")), "build", "--draft", "--version", "9.9.9", "--dir", str(copy)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_every_fragment_stands_in_the_next_section(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "changes", tmp_path / "changes")
    (tmp_path / "changes" / "an-example.fixed.md").write_text("A line\nand its continuation.\n")
    printed = draft(tmp_path / "changes")
    assert "### Fixed\n" in printed and "- A line\n  and its continuation.\n" in printed
    for fragment in (ROOT / "changes").glob("*.*.md"):
        assert fragment.read_text(encoding="utf-8").split("\n", 1)[0] in printed, f"{fragment.name}: the kind is none of pyproject.toml's"


def test_changes_holds_nothing_that_the_tool_does_not_read() -> None:
    kinds = "|".join(kind["directory"] for kind in PYPROJECT["tool"]["towncrier"]["type"])
    others = {path.name for path in (ROOT / "changes").iterdir() if not re.fullmatch(rf"[a-z0-9-]+\.({kinds})\.md", path.name)}
    assert others == set(PYPROJECT["tool"]["towncrier"]["ignore"])


def test_the_newest_release_of_the_changelog_is_the_version_of_the_package_and_of_the_images() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\S+), (\d{4}-\d{2}-\d{2})$", changelog, re.MULTILINE)
    assert released[0][0] == VERSION
    assert "Unreleased" not in changelog, "what is not released stands in changes/"
    pages = [*(ROOT / "deploy").rglob("*.yaml"), ROOT / "docs" / "deployment.md"]
    images = {tag for page in pages for tag in re.findall(r"\bpenstock(?:-\w+)?:(\d[\w.]*)", page.read_text(encoding="utf-8"))}
    assert images == {VERSION}
