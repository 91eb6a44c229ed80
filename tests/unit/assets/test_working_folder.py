"""Working folders of tasks: they go away although their process was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.assets.spark.history.working_folder import working_folder

HOLDS = """
import sys
from penstock.assets.spark.history.working_folder import working_folder

with working_folder() as folder:
    (folder / "store").write_text("1")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[subprocess.Popen[str], Path]]]:
    """Start processes that each have a folder in `tmp_path`."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    started = []

    def start() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(
    hold: Callable[[], tuple[subprocess.Popen[str], Path]], tmp_path: Path
) -> None:
    (killed, left), (_, in_use) = hold(), hold()
    killed.kill()
    killed.wait()
    assert (left / "store").exists()
    with working_folder() as own:
        assert not left.exists()
        assert (in_use / "store").exists() and own.is_dir()
    assert sorted(tmp_path.iterdir()) == [in_use, in_use.with_name(f"{in_use.name}.lock")]


def test_files_of_others_with_such_names_stay(hold: Callable[[], object], tmp_path: Path) -> None:
    """A link at the place of a lock may lead anywhere; a folder without a lock may be in use by an earlier version."""
    (tmp_path / "precious").write_text("1")
    (tmp_path / "penstock-history-a.lock").symlink_to(tmp_path / "precious")
    (tmp_path / "penstock-history-b").mkdir()
    with working_folder():
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "penstock-history-a.lock", "penstock-history-b"}
