"""The archive of classes with which Java starts quickly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.orchestration.embedded import class_archive


class Program:
    """Runs write these bytes, and end by themselves or are killed."""

    def __init__(self, written: bytes | None, ends: bool = True) -> None:
        self.written, self.ends, self.runs = written, ends, 0

    def record(self, options: Sequence[str]) -> bool:
        self.runs += 1
        (path,) = (option.partition("=")[2] for option in options if option.startswith("-XX:ArchiveClassesAtExit="))
        if self.written is not None:
            Path(path).write_bytes(self.written)
        return self.ends


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "java"
    path.write_text("17")
    return path


def archive_in(options: Sequence[str]) -> Path:
    (path,) = (option.partition("=")[2] for option in options if option.startswith("-XX:SharedArchiveFile="))
    return Path(path)


def test_it_is_recorded_once_for_each_java_and_each_class_path(java: Path) -> None:
    program = Program(b"classes")
    first = class_archive.options(java, "a.jar", program.record)
    assert archive_in(first).read_bytes() == b"classes"
    assert class_archive.options(java, "a.jar", program.record) == first and program.runs == 1
    assert archive_in(class_archive.options(java, "b.jar", program.record)) != archive_in(first)
    java.write_text("17.0.1")
    assert archive_in(class_archive.options(java, "a.jar", program.record)) != archive_in(first)
    assert program.runs == 3


def test_what_a_killed_program_left_is_not_used_and_the_next_start_records_again(java: Path) -> None:
    assert class_archive.options(java, "a.jar", Program(b"half", ends=False).record) == []
    assert archive_in(class_archive.options(java, "a.jar", Program(b"whole").record)).read_bytes() == b"whole"


def test_a_java_that_cannot_is_asked_once(java: Path) -> None:
    program = Program(None)
    assert [class_archive.options(java, "a.jar", program.record) for _ in range(2)] == [[], []] and program.runs == 1
