"""The `.checkpoint` file, against files that Kafka Streams' own `OffsetCheckpoint` wrote (java/WriteFormats.java)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock import StreamsConfig
from penstock.runtime.changelog.checkpoint import CheckpointInterval, read_checkpoint, write_checkpoint
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from tests.support import without_root

JAVA = Path(__file__).parent / "written_by_java"
OFFSETS = {
    TopicPartition("app-counts-changelog", 0): NextOffset(42),
    TopicPartition("app-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog", 12): NextOffset(9_876_543_211),
    TopicPartition("app-unknown-changelog", 1): None,
}


def test_a_tasks_file_holds_the_last_applied_offset() -> None:
    assert read_checkpoint(JAVA / "task") == OFFSETS


def test_the_global_file_holds_the_next_offset() -> None:
    assert read_checkpoint(JAVA / "global") == {TopicPartition("airports", 0): 1458}


@pytest.mark.parametrize("folder", ["task", "global"])
def test_ours_is_byte_for_byte_javas(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    write_checkpoint(tmp_path / folder, read_checkpoint(JAVA / folder))
    assert (tmp_path / folder / ".checkpoint").read_bytes() == (JAVA / folder / ".checkpoint").read_bytes()
    assert [path.name for path in (tmp_path / folder).iterdir()] == [".checkpoint"]


def test_nothing_applied_yet_is_written_as_unknown(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {TopicPartition("t", 0): NextOffset(0), TopicPartition("t", 1): NextOffset(1)})
    assert (tmp_path / ".checkpoint").read_text() == "0\n2\nt 0 -4\nt 1 0\n"
    assert read_checkpoint(tmp_path) == {TopicPartition("t", 0): None, TopicPartition("t", 1): 1}


def test_no_offsets_no_file(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) == {}
    write_checkpoint(tmp_path, {TopicPartition("t", 0): NextOffset(5)})
    write_checkpoint(tmp_path, {})
    assert not (tmp_path / ".checkpoint").exists()
    write_checkpoint(tmp_path, {})


def test_a_negative_offset_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".checkpoint").write_text("0\n2\nt 0 -2\nt 1 7\n")
    with caplog.at_level(logging.WARNING):
        assert read_checkpoint(tmp_path) == {TopicPartition("t", 1): 8}
    assert "t-0 is negative" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "version"),
        ("1\n0\n", "version 1"),
        ("0\n", "line 2"),
        ("0\nx\n", "line 2"),
        ("0\n2\nt 0 1\n", "line 2"),
        ("0\n1\nt 0\n", "not an entry"),
        ("0\n1\nt 0 1 2\n", "not an entry"),
        ("0\n1\nt zero 1\n", "not an entry"),
        ("0\n1\nt 0 1.5\n", "not an entry"),
        (b"\xff\xfe\x00rubbish", "can't decode"),
        (b"\x00" * 512, "version"),
    ],
)
def test_an_invalid_file_is_logged_removed_and_counts_as_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | bytes, message: str
) -> None:
    path = tmp_path / ".checkpoint"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert read_checkpoint(tmp_path) == {}
    assert str(path) in caplog.text and message in caplog.text and "removed" in caplog.text
    assert not path.exists()


def test_a_folder_without_rights_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with without_root(), pytest.raises(StateDirectoryError, match="cannot be written"):
        write_checkpoint(tmp_path, {TopicPartition("t", 0): NextOffset(5)})


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryError, match="cannot be written"):
        write_checkpoint(tmp_path / "gone", {TopicPartition("t", 0): NextOffset(5)})


def test_a_checkpoint_is_due_at_the_first_commit_after_the_interval() -> None:
    interval = CheckpointInterval(250, now_ms=1_000)
    assert [now for now in range(1_000, 2_001, 100) if interval.is_due(now)] == [1_300, 1_600, 1_900]
    each = CheckpointInterval(0, now_ms=1_000)
    assert all(each.is_due(now) for now in (1_000, 1_000, 1_100))
    assert [now for now in range(1_100, 2_001, 100) if each.is_due(now, at_least_ms=400)] == [1_500, 1_900]
    assert StreamsConfig({"application.id": "a", "bootstrap.servers": "b:1"}).integer("statestore.checkpoint.interval.ms") == 5 * 60_000
