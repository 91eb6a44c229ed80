"""Rule 12: stores that users write are committed, rolled back, restored and kept like the engine's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError, TaskCorruptedError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.stores import StateStore, StoreContext
from penstock.runtime.stores.custom import CustomStore, build_global_store, build_store, changelog_config
from tests.support.own_stores import KINDS, FileStore, OwnBuilder, OwnStore

CHANGELOG = TopicPartition("app-own-changelog", 0)
INPUT = TopicPartition("input", 0)


class Bench:
    """A store in a task's folder, which is left in every way that there is."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.adapter, self.own = self._made()
        self.open()

    def _made(self) -> tuple[CustomStore, OwnStore]:
        adapter = build_store(OwnBuilder("own", self.kind))
        assert isinstance(adapter, CustomStore)
        return adapter, cast(OwnStore, adapter.user_store)

    def open(self) -> None:
        self.adapter.open(self.folder, StoreContext("app", self.folder, TaskId(0, 0), CHANGELOG, record_time=lambda: 7))

    def killed(self) -> None:
        """The process is gone without a word; another one opens the store."""
        if self.kind == "sqlite":
            self.own.close()  # what SQLite does with the transaction of a process that is gone
        self.adapter, self.own = self._made()
        self.open()

    def commit(self, offset: int) -> list[object]:
        records: list[object] = list(self.adapter.changelog_records())
        self.adapter.commit({CHANGELOG: NextOffset(offset), INPUT: NextOffset(10 * offset)})
        return records

    def content(self) -> dict[str, str | None]:
        return {key: value for key in "abcd" if (value := self.own.get(key)) is not None}


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(request.param, tmp_path)
    yield bench
    if bench.adapter.is_open:
        bench.adapter.close()


def test_changes_reach_the_changelog_once_per_key_and_commit(bench: Bench) -> None:
    bench.own.put("a", "1")
    bench.own.put("b", "1")
    bench.own.put("a", "2")
    bench.own.put("b", None)
    assert bench.content() == {"a": "2"}, "a store reads its own writes"
    assert bench.adapter.approximate_num_uncommitted_bytes > 2 * 64
    assert bench.commit(1) == [(b"a", b"2", 7), (b"b", None, 7)]
    assert bench.commit(2) == [] and bench.adapter.approximate_num_uncommitted_bytes == 0
    assert bench.content() == {"a": "2"}
    assert bench.adapter.committed_offset(CHANGELOG) == 2 and bench.adapter.committed_offset(INPUT) == 20
    with pytest.raises(TypeError, match=r"expected a penstock.TopicPartition"):
        bench.adapter.committed_offset(tuple(CHANGELOG))  # type: ignore[arg-type]


def test_a_rollback_takes_back_what_was_not_committed(bench: Bench) -> None:
    bench.own.put("a", "1")
    bench.commit(1)
    bench.adapter.rollback()
    assert bench.content() == {"a": "1"}
    bench.own.put("a", "2")
    bench.own.put("b", "2")
    if bench.kind == "file-at-once":
        with pytest.raises(TaskCorruptedError, match="it contains uncommitted writes") as caught:
            bench.adapter.rollback()
        assert caught.value.tasks == {TaskId(0, 0)}
        bench.adapter.rollback()  # once: the way back from it may roll back again
        bench.adapter.close()
        with pytest.raises(TaskCorruptedError, match="was not closed"):
            bench.open()
        bench.adapter.wipe()
        assert bench.content() == {} and bench.adapter.committed_offset(CHANGELOG) is None
        bench.adapter.restore([(b"a", b"1", 7)], {CHANGELOG: NextOffset(1)})
    else:
        bench.adapter.rollback()
    assert bench.content() == {"a": "1"} and bench.adapter.approximate_num_uncommitted_bytes == 0
    bench.own.put("c", "3")
    assert bench.commit(2) == [(b"c", b"3", 7)]


def test_a_clean_end_keeps_content_offsets_and_metas(bench: Bench) -> None:
    bench.own.put("a", "1")
    bench.adapter.set_meta("topic.id", b"xyz")
    bench.commit(3)
    bench.adapter.close()
    bench.adapter.close()
    assert not bench.adapter.is_open
    with pytest.raises(InvalidStateStoreError):
        bench.adapter.flush()
    bench.open()
    assert bench.content() == {"a": "1"} and bench.adapter.has_entries()
    assert bench.adapter.committed_offset(CHANGELOG) == 3 and bench.adapter.get_meta("topic.id") == b"xyz"


def test_after_a_kill_the_store_is_never_ahead_of_the_changelog(bench: Bench) -> None:
    """A restore from the offset that the store then has ends at the changelog's content."""
    log = []
    for number, (key, value) in enumerate([("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("c", "1")], 1):
        bench.own.put(key, value)
        log += list(bench.adapter.changelog_records())
        bench.commit(number)
        if number == 2:
            bench.adapter.flush()
    bench.own.put("d", "never committed")
    if bench.kind == "file-at-once":
        with pytest.raises(TaskCorruptedError, match="was not closed"):
            bench.killed()
        bench.adapter.wipe()
        assert bench.adapter.committed_offset(CHANGELOG) is None and bench.content() == {}
    else:
        bench.killed()
    expected = {"sqlite": 5, "file-staged": 2, "file-at-once": None}[bench.kind]
    start = bench.adapter.committed_offset(CHANGELOG)
    assert start == expected, "offsets count when what belongs to them was flushed"
    bench.adapter.restore(log[start or 0 :], {CHANGELOG: NextOffset(5)})
    assert bench.content() == {"a": "2", "c": "1"}


def test_an_unclean_close_counts_as_a_kill(bench: Bench) -> None:
    bench.own.put("a", "1")
    bench.commit(1)
    bench.own.put("b", "1")
    bench.adapter.close()
    if bench.kind == "file-at-once":
        with pytest.raises(TaskCorruptedError, match="was not closed"):
            bench.open()
        bench.adapter.wipe()
    else:
        bench.open()
        assert bench.own.get("b") is None


def test_a_wipe_leaves_an_empty_open_store(bench: Bench) -> None:
    bench.own.put("a", "1")
    bench.adapter.set_meta("m", b"1")
    bench.commit(1)
    bench.adapter.flush()
    bench.own.put("b", "1")
    bench.adapter.wipe()
    assert bench.adapter.is_open and bench.content() == {} and not bench.adapter.has_entries()
    assert bench.adapter.committed_offset(CHANGELOG) is None and bench.adapter.get_meta("m") is None
    assert list(bench.adapter.changelog_records()) == []
    bench.own.put("c", "1")
    assert len(bench.commit(1)) == 1


def test_offsets_that_cannot_be_read_are_a_corrupted_task(tmp_path: Path) -> None:
    bench = Bench("file-staged", tmp_path)
    bench.commit(1)
    bench.adapter.close()
    (tmp_path / "custom" / "own.offsets").write_text("{")
    with pytest.raises(TaskCorruptedError, match="offsets cannot be read"):
        bench.open()
    bench.adapter.wipe()
    assert bench.adapter.committed_offset(CHANGELOG) is None
    bench.adapter.close()


def test_queries_go_to_the_stores_own_view(tmp_path: Path) -> None:
    bench = Bench("sqlite", tmp_path / "sqlite")
    view = bench.adapter.query_view()
    bench.own.put("a", "1")
    assert list(view.all()) == []
    bench.commit(1)
    assert list(view.all()) == [("a", "1")]
    bench.adapter.close()
    without = Bench("file-staged", tmp_path / "file")
    with pytest.raises(InvalidStateStoreError, match=r"cannot be queried: it has no query_view\(\)"):
        without.adapter.query_view()
    without.adapter.close()


def test_a_store_may_count_its_uncommitted_bytes_itself(tmp_path: Path) -> None:
    bench = Bench("file-staged", tmp_path)
    bench.own.put("a", "1")
    logged = bench.adapter.approximate_num_uncommitted_bytes
    bench.own.approximate_num_uncommitted_bytes = 5_000  # type: ignore[union-attr]
    assert 64 < logged < 5_000 == bench.adapter.approximate_num_uncommitted_bytes
    bench.adapter.close()


class Silent(FileStore):
    """Forgets to say how it is restored."""

    def init(self, context: StoreContext, root: StateStore | None = None) -> None:
        self._context, self.is_open = context, True


def test_violations_of_the_store_interface_are_reported(tmp_path: Path) -> None:
    silent = CustomStore(Silent("own", True), logging=True, changelog_config={})
    with pytest.raises(StreamsError, match="its init must say how it is restored"):
        silent.open(tmp_path, StoreContext("app", tmp_path, TaskId(0, 0), CHANGELOG))
    bench = Bench("file-staged", tmp_path)
    with pytest.raises(TypeError, match="logged as bytes"):
        bench.own._context.log_change("a", b"1")  # type: ignore[arg-type]
    with pytest.raises(StreamsError, match="already open"):
        bench.open()
    bench.own.put("a", "1")
    with pytest.raises(StreamsError, match="uncommitted"):
        bench.adapter.restore([], {})
    bench.adapter.close()
    with pytest.raises(StreamsError, match="only a store of your own"):
        StoreContext("app", tmp_path).log_change(b"a", b"1")


def test_builders_of_users_need_little(tmp_path: Path) -> None:
    assert changelog_config(OwnBuilder("own", "sqlite"))["cleanup.policy"] == "compact"
    assert build_store(OwnBuilder("own", "sqlite", logging_enabled=False)).logging_enabled is False
    assert build_global_store(OwnBuilder("own", "sqlite")).logging_enabled is False
    assert isinstance(OwnBuilder("own", "sqlite").build(), StateStore)
