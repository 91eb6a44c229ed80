"""Type checkers of users see the types of the package (PEP 561)."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path


def test_the_package_says_that_it_is_typed_and_is_found_by_a_path() -> None:
    """Type checkers read no import hooks: an editable installation must be a path (scripts/build-env)."""
    assert (files("penstock") / "py.typed").is_file()
    root = str(Path(str(files("penstock"))).parent)
    installed = [line for folder in map(Path, sys.path) for file in folder.glob("*penstock*.pth") for line in file.read_text().splitlines()]
    assert root in installed
