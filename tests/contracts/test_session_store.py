"""The contract of session stores, over every implementation: in RocksDB and in memory, of immutable and of mutable values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.record import AggregationWithHeaders, Headers, SessionWindow, Window, Windowed
from penstock.runtime.stores import Stores
from penstock.runtime.stores.rows import read_store
from penstock.runtime.stores.window import StagedSessionStore
from tests.support.stores import CHANGELOG, INPUT, MUTABLE_KINDS, MutableKind, Opened, name_of_kind, opened, restored

MINUTE = 60_000
RETENTION = 240 * MINUTE
SEGMENT = 120 * MINUTE
END = 2**63 - 1


HEADERS: Headers = [("trace", b"1"), ("trace", b"")]
KINDS = [(*kind, headers) for kind in MUTABLE_KINDS for headers in (False, True)]


class Kind(MutableKind):
    """As `MutableKind`; also with headers."""

    def __init__(self, persistent: bool, mutable: bool, headers: bool) -> None:
        super().__init__(persistent, mutable)
        self.headers = headers

    def value(self, number: int) -> object:
        return AggregationWithHeaders(self.plain(number), HEADERS) if self.headers else self.plain(number)

    def plain(self, number: int) -> object:
        """A value as queries and operators see it."""
        return super().value(number)

    def make(self, caching: bool = False) -> StagedSessionStore:
        supplier = Stores.persistent_session_store if self.persistent else Stores.in_memory_session_store
        value = serdes.JSON if self.mutable else serdes.LONG
        of = Stores.session_store_with_headers_builder if self.headers else Stores.session_store_builder
        builder = of(supplier("store", RETENTION), serdes.STRING, value)
        return (builder.with_caching_enabled() if caching else builder).build()


@pytest.fixture(params=KINDS, ids=lambda kind: name_of_kind(kind[:2]) + "-headers" * kind[2])
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(*request.param)


def session(key: str, start: int, end: int) -> Windowed:
    return Windowed(key, SessionWindow(start, end))


def spans(rows: Iterator[tuple[Windowed, object]]) -> list[tuple[object, int, int]]:
    return [(key.key, key.window.start, key.window.end) for key, _ in rows]


def test_a_session_includes_both_its_ends() -> None:
    assert SessionWindow(1, 5).overlap(SessionWindow(5, 9)) and not SessionWindow(1, 5).overlap(SessionWindow(6, 9))
    assert not Window(1, 5).overlap(Window(5, 9))


@pytest.mark.parametrize("committed", [0, 2, 5])
def test_sessions_of_one_key_are_found_by_their_ends_and_starts(kind: Kind, under_test: Opened[StagedSessionStore], committed: int) -> None:
    store = under_test.store
    sessions = [(0, 10), (20, 20), (5, SEGMENT), (SEGMENT + 1, SEGMENT + 9), (SEGMENT + 3, 2 * SEGMENT - 1)]
    for number, (start, end) in enumerate(sessions):
        for key in ("a", "ab"):  # a longer key that begins alike
            store.put(session(key, start, end), kind.value(number))
        if number + 1 == committed:
            under_test.commit(1)
    store.put(session("a", 20, 20), kind.value(9))
    for _ in range(2):
        assert spans(store.fetch("a")) == [("a", *each) for each in sessions]
        assert list(store.find_sessions("a", 20, 20)) == [(session("a", 20, 20), kind.value(9)), (session("a", 5, SEGMENT), kind.value(2))]
        assert spans(store.find_sessions("a", 11, SEGMENT)) == [("a", 20, 20), ("a", 5, SEGMENT)]
        assert spans(store.backward_find_sessions("a", 0, 20)) == [("a", 5, SEGMENT), ("a", 20, 20), ("a", 0, 10)]
        assert spans(store.find_sessions("a", SEGMENT + 10, END)) == [("a", *sessions[4])]
        assert spans(store.find_sessions("a", 2 * SEGMENT, END)) == []
        assert spans(store.backward_fetch("a")) == [("a", *each) for each in sessions[::-1]]
        assert store.fetch_session("a", 20, 20) == kind.value(9) and store.fetch_session("a", 20, 21) is None
        assert store.fetch_session("x", 0, 10) is None
        under_test.commit(2)
    assert next(store.query_view().find_sessions("a", 20, 20)) == (session("a", 20, 20), kind.plain(9))
    assert store.query_view().fetch_session("a", 0, 10) == kind.plain(0)
    assert store.query_view(headers=True).fetch_session("a", 0, 10) == kind.value(0)


def test_sessions_of_several_keys_come_by_segment_then_key(kind: Kind, under_test: Opened[StagedSessionStore]) -> None:
    store = under_test.store
    for end in (10, SEGMENT):
        for key in ("b", "a", "c", "ab"):
            store.put(session(key, end - 5, end), kind.value(1))
        under_test.commit(1)
    store.remove(session("a", SEGMENT - 5, SEGMENT))
    store.put(session("d", 1, 50), kind.value(1))

    def found(rows: Iterator[tuple[Windowed, object]]) -> str:
        return " ".join(f"{key.key}{key.window.end // SEGMENT}" for key, _ in rows)

    for _ in range(2):
        assert found(store.fetch(None, None)) == "a0 ab0 b0 c0 d0 ab1 b1 c1"
        assert found(store.backward_fetch(None, None)) == "c1 b1 ab1 d0 c0 b0 ab0 a0"
        assert found(store.fetch("ab", "c")) == "ab0 b0 c0 ab1 b1 c1"
        assert found(store.backward_fetch("ab", "b")) == "b1 ab1 b0 ab0"
        assert found(store.find_sessions("a", "d", 11, END)) == "d0 ab1 b1 c1"
        assert found(store.find_sessions(None, "b", 0, 5)) == "a0 ab0 b0"
        assert found(store.backward_find_sessions("c", None, 0, END)) == "c1 d0 c0"
        assert found(store.find_sessions(11, 50)) == "d0"
        under_test.commit(2)
    with pytest.raises(TypeError, match="sessions are found by"):
        store.find_sessions("a")  # type: ignore[call-overload]


def test_the_changelog_key_is_kafka_streams_session_key(kind: Kind, under_test: Opened[StagedSessionStore]) -> None:
    """`SessionKeySchema.toBinary`: key, end, start."""
    under_test.time = 77
    under_test.store.put(session("k", 0x0102, 0x0304), kind.value(1))
    under_test.store.remove(session("k", 0, 1))
    key = b"k" + bytes.fromhex("0000000000000304") + bytes.fromhex("0000000000000102")
    first, second = under_test.store.changelog_records()
    assert (first[0], first[2]) == (key, 77)
    assert second == (b"k" + (1).to_bytes(8, "big") + bytes(8), None, 77)
    assert serdes.session_windowed(serdes.STRING).serializer("t")(session("k", 0x0102, 0x0304)) == key
    assert serdes.session_windowed(serdes.STRING).deserializer("t")(key) == session("k", 0x0102, 0x0304)


def test_a_topic_of_sessions_is_kept_as_long_as_the_sessions() -> None:
    builder = Stores.session_store_builder(Stores.persistent_session_store("s", RETENTION), serdes.STRING, serdes.LONG)
    config = builder.changelog_config()
    assert (config["cleanup.policy"], config["retention.ms"]) == ("compact,delete", str(RETENTION))
    assert builder.build().layout.kind == "session" and builder.build().layout.retention_ms == RETENTION
    assert Stores.persistent_session_store("s", RETENTION).segment_interval_ms == SEGMENT


def test_rule_11_expired_segments_are_dropped_whole_and_expired_sessions_not_seen(
    kind: Kind, under_test: Opened[StagedSessionStore]
) -> None:
    store = under_test.store
    view = store.query_view()
    store.put(session("a", 0, 1), kind.value(1))
    store.put(session("a", 2, SEGMENT + 1), kind.value(2))
    under_test.commit(1)
    store.put(session("b", 0, RETENTION + 1), kind.value(3))  # the first session is expired by now, its segment not yet
    assert spans(store.fetch("a")) == [("a", 2, SEGMENT + 1)] and store.fetch_session("a", 0, 1) is None
    assert spans(view.fetch("a")) == [("a", 0, 1), ("a", 2, SEGMENT + 1)], "what is not committed expires nothing for queries"
    store.put(session("a", 0, 1), kind.value(9))
    assert store.expired_records == 1
    under_test.commit(2)
    assert store._opened().segments() == [0, 1, 2]
    store.put(session("b", 0, RETENTION + 2 * SEGMENT), kind.value(3))
    under_test.commit(3)
    assert store._opened().segments() == [2, 4]
    assert spans(view.fetch(None, None)) == [("b", 0, RETENTION + 1), ("b", 0, RETENTION + 2 * SEGMENT)]


def test_rollback_restores_exactly_the_committed_view(kind: Kind, under_test: Opened[StagedSessionStore]) -> None:
    store = under_test.store
    for number in range(4):
        store.put(session(f"k{number}", number, number + 5), kind.value(number))
    under_test.commit(1)
    before = list(store.fetch(None, None))
    store.remove(session("k1", 1, 6))
    store.put(session("k1", 1, 90 * SEGMENT), kind.value(8))
    store.rollback()
    assert list(store.fetch(None, None)) == before
    assert store.approximate_num_uncommitted_bytes == 0


def test_what_is_restored_equals_what_was_written(kind: Kind, under_test: Opened[StagedSessionStore], tmp_path: Path) -> None:
    store = under_test.store
    chance = random.Random(7)
    log = []
    for commit in range(12):
        for _ in range(60):
            end = max(0, commit * 30 * MINUTE - chance.randrange(RETENTION * 2))
            value = kind.value(chance.randrange(99)) if chance.random() > 0.2 else None
            store.put(session(chance.choice("abcdef"), max(0, end - chance.randrange(SEGMENT)), end), value)
        log += list(store.changelog_records())
        under_test.commit(commit)
    assert store.expired_records > 0
    for other in restored(kind.make, tmp_path / "other", log):
        assert list(other.fetch(None, None)) == list(store.fetch(None, None))


def test_offsets_are_committed_with_the_data_and_survive(kind: Kind, under_test: Opened[StagedSessionStore]) -> None:
    under_test.store.put(session("a", 1, 2), kind.value(1))
    under_test.commit(7)
    under_test.store.put(session("b", 1, 2), kind.value(1))
    store = under_test.reopened()
    kept = kind.persistent
    assert store.committed_offsets() == ({CHANGELOG: 7, INPUT: 70} if kept else {})
    assert spans(store.fetch(None, None)) == ([("a", 1, 2)] if kept else [])


def test_queries_see_committed_data_only(kind: Kind, under_test: Opened[StagedSessionStore]) -> None:
    store = under_test.store
    view = store.query_view()
    store.put(session("a", 1, 2), kind.value(1))
    assert view.fetch_session("a", 1, 2) is None and spans(view.all()) == []
    under_test.commit(1)
    store.put(session("a", 1, 2), kind.value(2))
    store.put(session("b", 1, 2), kind.value(2))
    assert list(view.fetch(None, None)) == [(session("a", 1, 2), kind.plain(1))]
    iteration = view.fetch("a")
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: view.fetch_session("a", 1, 2),
        lambda: list(view.fetch("a")),
        lambda: list(iteration),
    ]
    for call in calls:
        with pytest.raises(InvalidStateStoreError):
            call()


def test_rule_9_the_flush_listener_gets_windowed_keys_and_old_values(kind: Kind, tmp_path: Path) -> None:
    forwarded: list[tuple[object, object, object, int]] = []
    for cached in opened(lambda: kind.make(caching=True), tmp_path):
        store = cached.store
        store.set_flush_listener(lambda key, new, old, timestamp, headers: forwarded.append((key, new, old, timestamp)))
        store.put(session("a", 1, 2), kind.value(1))
        cached.commit(1)
        store.remove(session("a", 1, 2))
        store.put(session("a", 1, 5), kind.value(2))
        store.put(session("a", 1, 5), kind.value(3))
        assert spans(store.fetch("a")) == [("a", 1, 5)]
        cached.commit(2)
        assert [row[:3] for row in forwarded] == [
            (session("a", 1, 2), kind.plain(1), None),
            (session("a", 1, 2), None, kind.plain(1)),
            (session("a", 1, 5), kind.plain(3), None),
        ]
        assert isinstance(forwarded[0][0].window, SessionWindow)  # type: ignore[attr-defined]


def test_a_checkpoint_is_a_rocksdb_of_the_committed_data(kind: Kind, under_test: Opened[StagedSessionStore], tmp_path: Path) -> None:
    under_test.store.put(session("a", 1, SEGMENT), kind.value(1))
    under_test.commit(3)
    under_test.store.put(session("b", 1, 2), kind.value(1))
    under_test.store.checkpoint(tmp_path / "copy" / "rocksdb" / "store")
    for copy in opened(Kind(True, kind.mutable, kind.headers).make, tmp_path / "copy"):
        assert list(copy.store.fetch(None, None)) == [(session("a", 1, SEGMENT), kind.value(1))]
        assert copy.store.committed_offsets() == {CHANGELOG: 3, INPUT: 30}
    (rows,) = read_store(tmp_path / "copy" / "rocksdb" / "store", under_test.store.layout)
    assert rows.window_starts is not None and rows.window_ends is not None
    assert (rows.keys.to_pylist(), rows.window_starts.to_pylist(), rows.window_ends.to_pylist()) == ([b"a"], [1], [SEGMENT])
