"""The contract of window stores, over every implementation: in RocksDB and in memory, plain and timestamped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.ids import NextOffset
from penstock.runtime.model.record import Headers, ValueAndTimestamp, ValueTimestampHeaders, Window, Windowed
from penstock.runtime.serdes import keys
from penstock.runtime.stores import Stores
from penstock.runtime.stores.headers import encode_headers
from penstock.runtime.stores.window import StagedWindowStore
from tests.support.stores import CHANGELOG, INPUT, Opened, opened, restored

MINUTE = 60_000
SIZE = 10 * MINUTE
RETENTION = 4 * 60 * MINUTE
SEGMENT = 2 * 60 * MINUTE
HEADERS: Headers = [("trace", b"1"), ("trace", b"")]
FORMATS = {
    "plain": Stores.window_store_builder,
    "timestamped": Stores.timestamped_window_store_builder,
    "headers": Stores.timestamped_window_store_with_headers_builder,
}
KINDS = [(persistent, form) for persistent in (True, False) for form in FORMATS]


class Kind:
    """One implementation, and values that fit it."""

    def __init__(self, persistent: bool, form: str) -> None:
        self.persistent, self.form = persistent, form

    def make(self, caching: bool = False) -> StagedWindowStore:
        supplier = Stores.persistent_window_store if self.persistent else Stores.in_memory_window_store
        builder = FORMATS[self.form](supplier("store", timedelta(milliseconds=RETENTION), SIZE), serdes.STRING, serdes.LONG)
        return (builder.with_caching_enabled() if caching else builder).build()

    def value(self, number: int, timestamp: int = 5) -> object:
        if self.form == "plain":
            return number
        return ValueAndTimestamp(number, timestamp) if self.form == "timestamped" else ValueTimestampHeaders(number, timestamp, HEADERS)

    def shown(self, number: int) -> object:
        """A value as `query_view(timestamped=True)` gives it."""
        return number if self.form == "plain" else ValueAndTimestamp(number, 5)


@pytest.fixture(params=KINDS, ids=lambda kind: f"{'rocksdb' if kind[0] else 'memory'}-{kind[1]}")
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(*request.param)


def windowed(key: str, start: int) -> Windowed:
    return Windowed(key, Window(start, start + SIZE))


def test_segments_are_as_long_as_in_kafka_streams() -> None:
    assert Stores.persistent_window_store("w", RETENTION, SIZE).segment_interval_ms == SEGMENT
    assert Stores.persistent_window_store("w", 90_000, 1_000).segment_interval_ms == 60_000


@pytest.mark.parametrize("commit_between", [False, True])
def test_puts_and_fetches_of_one_key(kind: Kind, under_test: Opened[StagedWindowStore], commit_between: bool) -> None:
    store = under_test.store
    for number, start in enumerate((0, MINUTE, SEGMENT, SEGMENT + MINUTE)):
        store.put("a", kind.value(number), start)
        store.put("ab", kind.value(100 + number), start)  # a longer key that begins alike
        if commit_between and number == 2:
            under_test.commit(1)
            store.put("a", kind.value(20), SEGMENT)
    third = 20 if commit_between else 2
    assert store.fetch("a", MINUTE) == kind.value(1)
    assert store.fetch("a", MINUTE + 1) is None and store.fetch("x", 0) is None
    everything = [(0, kind.value(0)), (MINUTE, kind.value(1)), (SEGMENT, kind.value(third)), (SEGMENT + MINUTE, kind.value(3))]
    assert list(store.fetch("a", 0, 10 * SEGMENT)) == everything
    assert list(store.fetch("a", MINUTE, SEGMENT)) == everything[1:3]
    assert list(store.fetch("a", -5, 2**63)) == everything
    assert list(store.fetch("a", MINUTE, 0)) == []
    assert list(store.backward_fetch("a", MINUTE, SEGMENT)) == everything[1:3][::-1]
    under_test.commit(2)
    assert list(store.fetch("a", 0, 10 * SEGMENT)) == everything
    assert list(store.query_view(timestamped=True, headers=True).fetch("a", MINUTE, SEGMENT)) == everything[1:3]
    shown = [(MINUTE, kind.shown(1)), (SEGMENT, kind.shown(third))]
    assert list(store.query_view(timestamped=True).fetch("a", MINUTE, SEGMENT)) == shown


def test_fetches_of_several_keys_come_by_segment_then_key(kind: Kind, under_test: Opened[StagedWindowStore]) -> None:
    store = under_test.store
    for start in (0, SEGMENT):
        for key in ("b", "a", "c", "ab"):
            store.put(key, kind.value(start + ord(key[-1])), start)
        under_test.commit(1)
    store.put("a", None, SEGMENT)
    store.put("d", kind.value(1), MINUTE)

    def found(rows: Iterator[tuple[Windowed, object]]) -> str:
        return " ".join(f"{key.key}{key.window.start // SEGMENT}" for key, _ in rows)

    for _ in range(2):
        assert found(store.all()) == "a0 ab0 b0 c0 d0 ab1 b1 c1"
        assert found(store.backward_all()) == "c1 b1 ab1 d0 c0 b0 ab0 a0"
        assert found(store.fetch_all(0, MINUTE)) == "a0 ab0 b0 c0 d0"
        assert found(store.fetch_all(1, MINUTE)) == "d0"
        assert found(store.backward_fetch_all(0, SEGMENT - 1)) == "d0 c0 b0 ab0 a0"
        assert found(store.fetch("ab", "c", 0, SEGMENT)) == "ab0 b0 c0 ab1 b1 c1"
        assert found(store.fetch("a", "a", 0, SEGMENT)) == "a0"
        assert found(store.fetch(None, "ab", 0, SEGMENT)) == "a0 ab0 ab1"
        assert found(store.fetch("c", None, 0, SEGMENT)) == "c0 d0 c1"
        under_test.commit(2)
    assert next(store.all()) == (windowed("a", 0), kind.value(ord("a")))
    with pytest.raises(TypeError, match="fetch takes"):
        store.fetch("a")  # type: ignore[call-overload]


def test_keys_with_zero_bytes_are_found_in_ranges(tmp_path: Path) -> None:
    """Kafka Streams' bound for such ranges leaves some of these out."""
    builder = Stores.window_store_builder(Stores.persistent_window_store("store", RETENTION, SIZE), serdes.BYTES, serdes.LONG)
    for each in opened(builder.build, tmp_path):
        wanted = [b"a", b"a\0", b"a\0\0\0\0", b"a\0\0\0\0\0\0\0\0\1", b"a\x7f", b"a\xff\xff"]
        for key in wanted:
            each.store.put(key, 1, MINUTE)
        each.commit(1)
        for first in range(len(wanted)):
            for last in range(first, len(wanted)):
                found = {key.key for key, _ in each.store.fetch(wanted[first], wanted[last], 0, MINUTE)}
                assert found == set(wanted[first : last + 1])


def test_rule_11_expired_segments_are_dropped_whole_and_expired_windows_not_seen(kind: Kind, under_test: Opened[StagedWindowStore]) -> None:
    store = under_test.store
    view = store.query_view()
    for number in range(3):
        store.put("a", kind.value(number), number * SEGMENT + 1)
    under_test.commit(1)
    # the first window is the only one of its segment that is expired, one ms later: not seen, but the segment stays while it may live
    assert store.fetch("a", 1) is None and view.fetch("a", 1) is None
    assert [start for start, _ in store.fetch("a", 0, 10 * SEGMENT)] == [SEGMENT + 1, 2 * SEGMENT + 1]
    assert store._opened().segments() == [0, 1, 2]
    store.put("b", kind.value(9), 4 * SEGMENT)
    assert store.fetch("a", SEGMENT + 1) is None
    assert view.fetch("a", SEGMENT + 1) == 1, "what is not committed expires nothing for queries"
    under_test.commit(2)
    assert view.fetch("a", SEGMENT + 1) is None
    assert store._opened().segments() == [2, 4]
    assert [key.window.start for key, _ in store.all()] == [2 * SEGMENT + 1, 4 * SEGMENT]


def test_a_put_to_an_expired_window_is_dropped_and_counted(kind: Kind, under_test: Opened[StagedWindowStore]) -> None:
    store = under_test.store
    store.put("a", kind.value(1), RETENTION + 5)
    store.put("a", kind.value(2), 5)
    assert store.expired_records == 1 and store.fetch("a", 5) is None
    store.put("a", kind.value(3), 6)
    assert store.expired_records == 1 and store.fetch("a", 6) == kind.value(3)
    assert len(list(store.changelog_records())) == 2


def test_windows_that_expire_inside_one_commit(kind: Kind, under_test: Opened[StagedWindowStore]) -> None:
    """Staged first, expired by a later put of the same commit: on the changelog, but not in a segment that would be dropped at once."""
    store = under_test.store
    store.put("a", kind.value(1), 0)
    store.put("a", kind.value(2), 10 * SEGMENT)
    assert len(list(store.changelog_records())) == 2
    under_test.commit(1)
    assert store._opened().segments() == [10]
    assert [key.window.start for key, _ in store.all()] == [10 * SEGMENT]


def test_stream_time_is_committed_and_rolled_back_with_the_data(kind: Kind, under_test: Opened[StagedWindowStore]) -> None:
    store = under_test.store
    store.put("a", kind.value(1), 0)
    under_test.commit(1)
    store.put("a", kind.value(2), 10 * SEGMENT)
    assert store.fetch("a", 0) is None
    store.rollback()
    assert store.fetch("a", 0) == kind.value(1)
    store.put("b", kind.value(3), MINUTE)
    assert store.expired_records == 0
    store.put("a", kind.value(2), 10 * SEGMENT)
    under_test.commit(2)
    if kind.persistent:
        store = under_test.reopened()
        store.put("a", kind.value(1), 0)
        assert store.expired_records == 1
        assert [key.window.start for key, _ in store.all()] == [10 * SEGMENT]


def test_rollback_restores_exactly_the_committed_view(kind: Kind, under_test: Opened[StagedWindowStore]) -> None:
    store = under_test.store
    for number in range(4):
        store.put(f"k{number}", kind.value(number), number * MINUTE)
    under_test.commit(1)
    before = list(store.all())
    store.put("k1", None, MINUTE)
    store.put("k2", kind.value(99), 2 * MINUTE)
    store.put("new", kind.value(5), 5 * MINUTE)
    store.rollback()
    assert list(store.all()) == before
    assert store.approximate_num_uncommitted_bytes == 0


def test_the_changelog_key_is_kafka_streams_window_store_key(kind: Kind, under_test: Opened[StagedWindowStore]) -> None:
    under_test.time = 77
    under_test.store.put("k", kind.value(1, 77), 0x0102030405)
    key = b"k" + bytes.fromhex("0000000102030405") + bytes.fromhex("00000000")
    packed = encode_headers(HEADERS) if kind.form == "headers" else b""
    assert list(under_test.store.changelog_records()) == [(key, packed + (1).to_bytes(8, "big"), 77)]


def test_what_is_restored_equals_what_was_written(kind: Kind, under_test: Opened[StagedWindowStore], tmp_path: Path) -> None:
    store = under_test.store
    chance = random.Random(7)
    log = []
    for commit in range(12):
        for _ in range(60):
            start = max(0, commit * 30 * MINUTE - chance.randrange(RETENTION * 2))
            store.put(chance.choice("abcdef"), kind.value(chance.randrange(99), 3) if chance.random() > 0.2 else None, start)
        under_test.time = 3
        log += list(store.changelog_records())
        under_test.commit(commit)
    assert store.expired_records > 0
    for other in restored(kind.make, tmp_path / "other", log):
        assert list(other.all()) == list(store.all())
        assert list(other.changelog_records()) == []


def test_offsets_are_committed_with_the_data_and_a_wipe_takes_all(kind: Kind, under_test: Opened[StagedWindowStore]) -> None:
    store = under_test.store
    store.put("a", kind.value(1), 10 * SEGMENT)
    under_test.commit(7)
    assert store.committed_offsets() == {CHANGELOG: 7, INPUT: 70}
    store.wipe()
    assert store.committed_offsets() == {} and list(store.all()) == []
    store.put("a", kind.value(1), 0)
    assert store.expired_records == 0 and store.fetch("a", 0) == kind.value(1)


def test_queries_see_committed_data_only(kind: Kind, under_test: Opened[StagedWindowStore]) -> None:
    store = under_test.store
    view = store.query_view()
    store.put("a", kind.value(1), MINUTE)
    assert view.fetch("a", MINUTE) is None and list(view.all()) == []
    under_test.commit(1)
    store.put("a", kind.value(2), MINUTE)
    assert view.fetch("a", MINUTE) == 1 and list(view.all()) == [(windowed("a", MINUTE), 1)]
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: view.fetch("a", MINUTE),
        lambda: list(view.all()),
        lambda: list(view.fetch("a", 0, MINUTE)),
    ]
    for call in calls:
        with pytest.raises(InvalidStateStoreError):
            call()


def test_a_checkpoint_is_a_rocksdb_of_the_committed_data(kind: Kind, under_test: Opened[StagedWindowStore], tmp_path: Path) -> None:
    store = under_test.store
    store.put("a", kind.value(1), 0)
    store.put("a", kind.value(2), SEGMENT)
    under_test.commit(3)
    store.put("a", kind.value(3), SEGMENT + 1)
    store.checkpoint(tmp_path / "copy" / "rocksdb" / "store")
    for copy in opened(Kind(True, kind.form).make, tmp_path / "copy"):
        assert list(copy.store.all()) == [(windowed("a", 0), kind.value(1)), (windowed("a", SEGMENT), kind.value(2))]
        assert copy.store.committed_offsets() == {CHANGELOG: 3, INPUT: 30}


def test_rule_9_the_flush_listener_gets_windowed_keys_and_old_values(kind: Kind, tmp_path: Path) -> None:
    forwarded: list[tuple[object, object, object, int]] = []
    for cached in opened(lambda: kind.make(caching=True), tmp_path):
        store = cached.store
        store.set_flush_listener(lambda key, new, old, timestamp, headers: forwarded.append((key, new, old, timestamp)))
        store.put("a", kind.value(1), 0)
        cached.commit(1)
        data = keys.window_store_key(b"a", 0)
        store.update(data, windowed("a", 0), store.entry(data), 2, 8, None)
        store.update(data, windowed("a", 0), store.entry(data), 3, 9, None)
        cached.commit(2)
        assert [row[:3] for row in forwarded] == [(windowed("a", 0), 1, None), (windowed("a", 0), 3, 1)]
        assert forwarded[1][3] == 9


# --- duplicates, as the stores of joins keep them -----------------------------------------------------------------------------------


@pytest.fixture
def duplicates(kind: Kind, tmp_path: Path) -> Iterator[Opened[StagedWindowStore]]:
    make = Stores.persistent_window_store if kind.persistent else Stores.in_memory_window_store
    of = FORMATS[kind.form]
    supplier = make("store", RETENTION, SIZE, retain_duplicates=True)
    yield from opened(of(supplier, serdes.STRING, serdes.LONG).build, tmp_path)


def test_duplicates_of_one_key_and_time_stay_side_by_side(kind: Kind, duplicates: Opened[StagedWindowStore]) -> None:
    store = duplicates.store
    for number in range(4):
        store.put("a", kind.value(number), MINUTE)
        store.put("ab", kind.value(10 + number), MINUTE)
        store.put("a", None, MINUTE)  # it would delete nothing
        if number == 1:
            duplicates.commit(1)
    for _ in range(2):
        assert list(store.fetch("a", 0, MINUTE)) == [(MINUTE, kind.value(number)) for number in range(4)]
        assert list(store.backward_fetch("a", 0, MINUTE)) == [(MINUTE, kind.value(number)) for number in (3, 2, 1, 0)]
        assert store.fetch("a", MINUTE) == kind.value(3) and store.fetch("a", 0) is None
        assert [value for _, value in store.all()] == [kind.value(number) for number in (0, 1, 2, 3, 10, 11, 12, 13)]
        duplicates.commit(2)
    assert [value for _, value in store.query_view().fetch("a", 0, MINUTE)] == [0, 1, 2, 3]


def test_a_sequence_number_is_never_given_twice(kind: Kind, duplicates: Opened[StagedWindowStore], tmp_path: Path) -> None:
    """Kafka Streams begins at 0 after each restart, and overwrites."""
    store = duplicates.store
    store.put("a", kind.value(1), MINUTE)
    log = list(store.changelog_records())
    duplicates.commit(1)
    store.put("a", kind.value(99), MINUTE)
    store.rollback()
    store.put("a", kind.value(2), MINUTE)
    log += list(store.changelog_records())
    duplicates.commit(2)
    assert [record[0][-4:] for record in log] == [(1).to_bytes(4, "big"), (2).to_bytes(4, "big")]
    again = duplicates.reopened()
    if not kind.persistent:
        again.restore(log, {CHANGELOG: NextOffset(2)})
    again.put("a", kind.value(3), MINUTE)
    duplicates.commit(3)
    found = [value for _, value in again.query_view().fetch("a", 0, MINUTE)]
    assert found == [1, 2, 3]


def test_duplicates_are_not_cached(caplog: pytest.LogCaptureFixture) -> None:
    supplier = Stores.persistent_window_store("w", RETENTION, SIZE, retain_duplicates=True)
    builder = Stores.window_store_builder(supplier, serdes.STRING, serdes.LONG).with_caching_enabled()
    assert not builder.caching_enabled and "caching stays off" in caplog.text
