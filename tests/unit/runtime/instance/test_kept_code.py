"""The copy of the application's code that an instance keeps, and its fingerprint."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.runtime.instance.build import build_of, keep_code, kept_code

FACTORY = "kept_shop.flow.topology:build"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of an imported package of the user's."""
    folder = tmp_path / "project" / "kept_shop" / "flow"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("NAME = 'flow'\n")
    (folder / "topology.py").write_text("VERSION = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "project")
    importlib.import_module("kept_shop.flow.topology")
    yield folder
    for name in [name for name in sys.modules if name.startswith("kept_shop")]:
        del sys.modules[name]


def test_the_copy_is_the_code_that_was_read_although_its_files_have_changed(package: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert kept_code(state) is None
    build = build_of({}, FACTORY)
    (package / "topology.py").write_text("VERSION = 2\n")
    keep_code(state, build)
    kept = kept_code(state)
    assert kept is not None and kept.name == build
    assert (kept / "kept_shop" / "flow" / "topology.py").read_text() == "VERSION = 1\n"
    assert (kept / "kept_shop" / "flow" / "__init__.py").read_text() == "NAME = 'flow'\n"


def test_a_newer_build_replaces_the_copy_and_an_interrupted_one_does_not_count(package: Path, tmp_path: Path) -> None:
    state, first = tmp_path / "state", build_of({}, FACTORY)
    keep_code(state, first)
    (package / "topology.py").write_text("VERSION = 2\n")
    second = build_of({}, FACTORY)
    assert second != first
    (state / "code" / f".{second}").mkdir()
    assert (kept := kept_code(state)) is not None and kept.name == first
    keep_code(state, second)
    assert [folder.name for folder in (state / "code").iterdir()] == [second]
    assert (state / "code" / second / "kept_shop" / "flow" / "topology.py").read_text() == "VERSION = 2\n"


def test_a_copy_that_cannot_be_written_is_only_logged(package: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").write_text("not a folder")
    keep_code(tmp_path / "state", build_of({}, FACTORY))
    assert "no copy of the code is kept" in caplog.text
