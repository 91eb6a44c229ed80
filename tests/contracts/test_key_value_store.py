"""The contract of key-value stores, over every implementation: in RocksDB and in memory, plain, timestamped and with headers, of immutable
objects (staged as objects) and of mutable ones (staged as bytes). What is special about `lru_map` is in `tests/unit/runtime/stores`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from penstock import serdes
from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError
from penstock.runtime.model.ids import NextOffset
from penstock.runtime.model.record import Headers, ValueAndTimestamp, ValueTimestampHeaders
from penstock.runtime.stores import StoreMemory, Stores
from penstock.runtime.stores.headers import encode_headers
from penstock.runtime.stores.key_value import StagedKeyValueStore
from tests.support.stores import CHANGELOG, INPUT, Opened, opened

HEADERS: Headers = [("trace", b"\x00\xff" * 40), ("trace", b""), ("ü", b"2")]
FORMATS = {
    "plain": Stores.key_value_store_builder,
    "timestamped": Stores.timestamped_key_value_store_builder,
    "headers": Stores.timestamped_key_value_store_with_headers_builder,
}
KINDS = [(persistent, form, mutable) for persistent in (True, False) for form in FORMATS for mutable in (True, False)]


class Kind:
    """One implementation, and values that fit it."""

    def __init__(self, persistent: bool, form: str, mutable: bool) -> None:
        self.persistent, self.form, self.mutable = persistent, form, mutable

    def make(self, caching: bool = False) -> StagedKeyValueStore:
        supplier = (Stores.persistent_key_value_store if self.persistent else Stores.in_memory_key_value_store)("store")
        value = serdes.JSON if self.mutable else serdes.LONG
        builder = FORMATS[self.form](supplier, serdes.STRING, value)
        return (builder.with_caching_enabled() if caching else builder).build()

    def plain(self, number: int) -> object:
        """A value as serdes and operators see it."""
        return {"n": number} if self.mutable else number

    def value(self, number: int, timestamp: int = 5) -> object:
        """A value as users put and get it."""
        return self.kept(self.plain(number), timestamp)

    def kept(self, plain: object, timestamp: int, headers: Headers = HEADERS) -> object:
        """A plain value as users put and get it."""
        if self.form == "plain":
            return plain
        return ValueAndTimestamp(plain, timestamp) if self.form == "timestamped" else ValueTimestampHeaders(plain, timestamp, headers)

    def bytes(self, number: int) -> bytes:
        """A value on the changelog, packed with its headers."""
        value = b'{"n":%d}' % number if self.mutable else number.to_bytes(8, "big")
        return encode_headers(HEADERS) + value if self.form == "headers" else value


def name_of(kind: tuple[bool, str, bool]) -> str:
    persistent, form, mutable = kind
    return f"{'rocksdb' if persistent else 'memory'}-{form}-{'bytes' if mutable else 'objects'}"


@pytest.fixture(params=KINDS, ids=name_of)
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(*request.param)


def test_reads_its_own_writes_before_and_after_the_commit(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    assert store.get("a") is None
    store.put("a", kind.value(1))
    assert store.get("a") == kind.value(1)
    under_test.commit(1)
    assert store.get("a") == kind.value(1)
    store.put("a", kind.value(2, 9))
    assert store.get("a") == kind.value(2, 9)
    store.put("a", None)
    assert store.get("a") is None
    under_test.commit(2)
    assert store.get("a") is None


def test_put_if_absent_put_all_and_delete(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    assert store.put_if_absent("a", kind.value(1)) is None
    assert store.put_if_absent("a", kind.value(2)) == kind.value(1)
    store.put_all([("b", kind.value(3)), ("c", kind.value(4))])
    assert store.delete("b") == kind.value(3)
    assert store.delete("b") is None
    assert list(store.all()) == [("a", kind.value(1)), ("c", kind.value(4))]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(
    ("first", "last", "left"), [("ab", "c", "aa d"), (None, "b", "c d"), ("b", None, "aa ab"), (None, None, ""), ("x", "b", "aa ab b c d")]
)
def test_a_range_is_deleted_through_staging(
    kind: Kind, tmp_path: Path, first: str | None, last: str | None, left: str, caching: bool
) -> None:
    forwarded: list[tuple[object, object, object]] = []
    for each in opened(lambda: kind.make(caching), tmp_path):
        store = each.store
        for key in ("ab", "c", "d"):
            store.put(key, kind.value(1))
        each.commit(1)
        store.set_flush_listener(lambda key, new, old, timestamp, headers: forwarded.append((key, new, old)))
        store.put_all([("aa", kind.value(2)), ("b", kind.value(2)), ("c", kind.value(2))])
        before = store.approximate_num_uncommitted_bytes
        store.delete_range(first, last)
        assert [key for key, _ in store.all()] == left.split()
        assert [key for key, _ in store.query_view().all()] == ["ab", "c", "d"]
        assert left or store.approximate_num_uncommitted_bytes > before - 2 * len(kind.bytes(1)) - 64
        deleted = {key for key, value, _ in store.changelog_records() if value is None}
        assert deleted == {b"aa", b"ab", b"b", b"c", b"d"} - {key.encode() for key in left.split()}
        store.flush_cache()
        if caching and not left:
            assert forwarded == [(key, None, kind.plain(1)) for key in ("ab", "c", "d")]
        store.rollback()
        assert [key for key, _ in store.all()] == ["ab", "c", "d"]
        store.delete_range(first, last)
        each.commit(2)
        assert [key for key, _ in store.query_view().all()] == [key for key in ("ab", "c", "d") if key in left.split()]


def test_a_none_key_is_refused(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    for call in (under_test.store.get, under_test.store.delete, under_test.store.query_view().get):
        with pytest.raises(ValueError, match="store store: a key must not be None"):
            call(None)


def test_a_timestamped_store_refuses_plain_values(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    if kind.form != "plain":
        with pytest.raises(TypeError, match="takes ValueAndTimestamp" if kind.form == "timestamped" else "takes ValueTimestampHeaders"):
            under_test.store.put("a", kind.plain(1))


def test_changing_a_value_in_place_does_not_change_the_state(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    if not kind.mutable:
        return
    store = under_test.store
    value = {"n": 1}
    store.put("a", kind.kept(value, 5))
    value["n"] = 99
    assert store.get("a") == kind.value(1)
    got = store.get("a")
    (got.value if isinstance(got, ValueAndTimestamp | ValueTimestampHeaders) else got)["n"] = 98  # type: ignore[index]
    assert store.get("a") == kind.value(1)
    under_test.commit(1)
    entry = store.entry(b"a")
    store.value_of(entry)["n"] = 97  # type: ignore[index]
    assert store.get("a") == kind.value(1)


KEYS = ["aa", "ab", "b", "c", "d"]
RANGES: list[tuple[Callable[[StagedKeyValueStore], Iterator[tuple[object, object]]], str]] = [
    (lambda s: s.all(), "aa ab b c d"),
    (lambda s: s.reverse_all(), "d c b ab aa"),
    (lambda s: s.range("ab", "c"), "ab b c"),
    (lambda s: s.range("abc", "bz"), "b"),
    (lambda s: s.reverse_range("ab", "c"), "c b ab"),
    (lambda s: s.range(None, "b"), "aa ab b"),
    (lambda s: s.reverse_range(None, "b"), "b ab aa"),
    (lambda s: s.range("b", None), "b c d"),
    (lambda s: s.reverse_range("b", None), "d c b"),
    (lambda s: s.range("c", "b"), ""),
    (lambda s: s.reverse_range("c", "b"), ""),
    (lambda s: s.prefix_scan("a"), "aa ab"),
    (lambda s: s.prefix_scan(b"a", serdes.BYTES), "aa ab"),
    (lambda s: s.prefix_scan("x"), ""),
]


@pytest.mark.parametrize(("read", "expected"), RANGES)
@pytest.mark.parametrize("committed", ["", "aa ab b c d", "ab c", "aa d gone"])
def test_ranges_merge_staged_and_committed_entries(
    kind: Kind,
    under_test: Opened[StagedKeyValueStore],
    read: Callable[[StagedKeyValueStore], Iterator[tuple[object, object]]],
    expected: str,
    committed: str,
) -> None:
    store = under_test.store
    for key in committed.split():
        store.put(key, kind.value(0))
    under_test.commit(1)
    for number, key in enumerate(KEYS):
        store.put(key, kind.value(number))
    store.put("gone", None)
    numbers = {key: number for number, key in enumerate(KEYS)}
    wanted = [(key, kind.value(numbers[key])) for key in expected.split()]
    assert list(read(store)) == wanted
    under_test.commit(2)
    assert list(read(store)) == wanted
    plain = [(key, kind.plain(numbers[key])) for key in expected.split()]
    assert list(read(store.query_view())) == plain  # type: ignore[arg-type]


def test_an_iteration_does_not_see_later_writes(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    store.put_all([("a", kind.value(1)), ("b", kind.value(2))])
    under_test.commit(1)
    store.put("c", kind.value(3))
    before = store.all()
    assert next(before) == ("a", kind.value(1))
    store.put("b", None)
    store.put("bb", kind.value(4))
    under_test.commit(2)
    assert list(before) == [("b", kind.value(2)), ("c", kind.value(3))]
    assert [key for key, _ in store.all()] == ["a", "bb", "c"]


def test_staged_ranges_follow_many_and_few_new_keys(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    for key in (f"{n:04d}" for n in range(0, 400, 2)):
        store.put(key, kind.value(1))
    assert len(list(store.all())) == 200
    store.put("0001", kind.value(1))
    store.put("0000", None)
    store.put("9999", kind.value(1))
    found = [str(key) for key, _ in store.all()]
    assert found[0] == "0001" and found[-1] == "9999" and found == sorted(found) and len(found) == 201


def test_rollback_restores_exactly_the_committed_view(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    store.put_all([("kept", kind.value(1)), ("changed", kind.value(2)), ("deleted", kind.value(3))])
    store.set_meta("stream-time", b"7")
    under_test.commit(1)
    committed = list(store.all())
    store.put("changed", kind.value(20, 6))
    store.put("deleted", None)
    store.put("new", kind.value(4))
    assert store.get("kept") == kind.value(1)
    store.set_meta("stream-time", b"8")
    list(store.changelog_records())
    store.rollback()
    assert list(store.all()) == committed
    assert [store.get(key) for key in ("kept", "changed", "deleted", "new")] == [kind.value(1), kind.value(2), kind.value(3), None]
    assert store.get_meta("stream-time") == b"7"
    assert store.approximate_num_uncommitted_bytes == 0
    assert list(store.changelog_records()) == []
    store.put("new", kind.value(5))
    under_test.commit(2)
    assert store.query_view().get("new") == kind.plain(5) and store.get("changed") == kind.value(2)


def test_the_changelog_is_folded_by_key_with_the_last_timestamp(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    under_test.time = 5
    store.put("a", kind.value(1))
    store.put("b", kind.value(2))
    under_test.time = 8
    store.put("a", kind.value(3, 8))
    store.put("b", None)
    assert list(store.changelog_records()) == [(b"a", kind.bytes(3), 8), (b"b", None, 8)]
    assert list(store.changelog_records()) == [(b"a", kind.bytes(3), 8), (b"b", None, 8)]
    under_test.commit(1)
    assert list(store.changelog_records()) == []


def test_a_commit_of_nothing_does_not_hide_the_next_updates(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    under_test.commit(1)
    under_test.commit(1)
    under_test.store.put("a", kind.value(1))
    assert len(list(under_test.store.changelog_records())) == 1
    under_test.commit(2)
    assert under_test.store.query_view().get("a") == kind.plain(1)


def test_an_update_between_changelog_and_commit_is_refused(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    under_test.store.put("a", kind.value(1))
    list(under_test.store.changelog_records())
    under_test.store.put("b", kind.value(2))
    with pytest.raises(StreamsError, match="updated after its changelog records were taken"):
        under_test.store.commit({})


def test_offsets_and_metas_are_committed_with_the_data(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    assert store.committed_offset(CHANGELOG) is None
    store.put("a", kind.value(1))
    store.set_meta("topic-id", b"xyz")
    assert store.get_meta("topic-id") == b"xyz"
    under_test.commit(7)
    assert store.committed_offset(CHANGELOG) == 7
    for other in (confluent_kafka.TopicPartition(*CHANGELOG), tuple(CHANGELOG), CHANGELOG.topic):
        with pytest.raises(TypeError, match=r"expected a penstock.TopicPartition"):
            store.committed_offset(other)  # type: ignore[arg-type]
    assert store.committed_offsets() == {CHANGELOG: 7, INPUT: 70}
    store.commit({CHANGELOG: NextOffset(8)})  # nothing was written: the offsets still move
    assert store.committed_offsets() == {CHANGELOG: 8, INPUT: 70}
    again = under_test.reopened()
    kept = kind.persistent
    assert again.committed_offsets() == ({CHANGELOG: 8, INPUT: 70} if kept else {})
    assert again.get_meta("topic-id") == (b"xyz" if kept else None)
    assert again.get("a") == (kind.value(1) if kept else None)


def test_what_was_not_committed_is_gone_after_a_reopening(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    under_test.store.put("a", kind.value(1))
    under_test.commit(1)
    under_test.store.put("b", kind.value(2))
    store = under_test.reopened()
    assert store.get("b") is None
    assert [key for key, _ in store.all()] == (["a"] if kind.persistent else [])


def test_restore_applies_changelog_records_and_refreshes_what_was_read(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    store.put("a", kind.value(1))
    store.put("b", kind.value(2))
    under_test.commit(1)
    assert store.get("c") is None  # now held as absent
    records = [(b"a", kind.bytes(10), 50), (b"b", None, 51), (b"c", kind.bytes(30), 52), (b"d", kind.bytes(4), 1), (b"d", None, 2)]
    store.restore(records, {CHANGELOG: NextOffset(9)})
    wanted = [("a", kind.value(10, 50)), ("c", kind.value(30, 52))]
    assert list(store.all()) == wanted
    assert [store.get(key) for key in "abcd"] == [kind.value(10, 50), None, kind.value(30, 52), None]
    assert store.committed_offset(CHANGELOG) == 9
    assert list(store.changelog_records()) == []
    if kind.persistent:
        assert list(under_test.reopened().all()) == wanted


def test_what_is_restored_equals_what_was_written(kind: Kind, under_test: Opened[StagedKeyValueStore], tmp_path: Path) -> None:
    store = under_test.store
    log = []
    for commit in range(5):
        for n in range(50):
            store.put(f"key-{(n * 7 + commit) % 80}", kind.value(n, commit) if (n + commit) % 5 else None)
        log += list(store.changelog_records())
        under_test.commit(commit)
    for other in opened(kind.make, tmp_path / "other"):
        other.store.restore(log, {CHANGELOG: NextOffset(len(log))})
        assert list(other.store.all()) == list(store.all())


def test_restore_is_refused_over_uncommitted_updates(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    under_test.store.put("a", kind.value(1))
    with pytest.raises(StreamsError, match="uncommitted"):
        under_test.store.restore([(b"a", kind.bytes(1), 1)], {})


def test_wipe_leaves_an_empty_open_store(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    store.put("a", kind.value(1))
    store.set_meta("m", b"1")
    under_test.commit(4)
    store.put("b", kind.value(2))
    store.wipe()
    assert list(store.all()) == [] and store.get("a") is None
    assert store.committed_offsets() == {} and store.get_meta("m") is None
    store.put("c", kind.value(3))
    under_test.commit(1)
    assert list(store.all()) == [("c", kind.value(3))]


def test_queries_see_committed_data_only(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    view = store.query_view()
    store.put("a", kind.value(1))
    assert view.get("a") is None and list(view.all()) == []
    assert (view.approximate_num_entries(), store.query_view(uncommitted=True).approximate_num_entries()) == (0, 1)
    under_test.commit(1)
    store.put("a", kind.value(2))
    store.put("b", kind.value(3))
    assert view.get("a") == kind.plain(1) and list(view.all()) == [("a", kind.plain(1))]
    assert store.query_view(timestamped=kind.form == "timestamped", headers=True).get("a") == kind.value(1)
    assert store.query_view(timestamped=True).get("a") == (kind.plain(1) if kind.form == "plain" else ValueAndTimestamp(kind.plain(1), 5))
    store.rollback()
    assert view.get("a") == kind.plain(1)


def test_queries_from_other_threads_while_the_store_commits(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    """Each commit sets all keys to one number: a reader that sees two numbers in one range saw half a commit."""
    store = under_test.store
    view = store.query_view()
    wrong: list[object] = []
    looks = [0]
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                seen = {str(value) for _, value in view.all()}
                looks[0] += 1
            except InvalidStateStoreError:
                return
            if len(seen) > 1:
                wrong.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    number = 0
    while looks[0] < 20 or number < 20:
        number += 1
        for key in range(40):
            store.put(f"{key:03d}", kind.value(number))
        under_test.commit(number)
    stop.set()
    reader.join()
    assert wrong == []


def test_a_closed_store_says_so(kind: Kind, under_test: Opened[StagedKeyValueStore]) -> None:
    store = under_test.store
    store.put("a", kind.value(1))
    under_test.commit(1)
    view = store.query_view()
    iteration = view.all()
    store.close()
    store.close()
    assert not store.is_open
    calls: list[Callable[[], object]] = [lambda: store.get("a"), lambda: view.get("a"), lambda: list(view.all()), store.query_view]
    for call in calls:
        with pytest.raises(InvalidStateStoreError):
            call()
    if kind.persistent:
        with pytest.raises(InvalidStateStoreError):
            list(iteration)


def test_a_checkpoint_is_a_rocksdb_of_the_committed_data(kind: Kind, under_test: Opened[StagedKeyValueStore], tmp_path: Path) -> None:
    store = under_test.store
    store.put_all([("a", kind.value(1)), ("b", kind.value(2))])
    store.set_meta("m", b"1")
    under_test.commit(3)
    store.put("c", kind.value(3))
    target = tmp_path / "copy" / "rocksdb" / "store"
    store.checkpoint(target)
    under_test.commit(4)
    for copy in opened(Kind(True, kind.form, kind.mutable).make, tmp_path / "copy"):
        assert list(copy.store.all()) == [("a", kind.value(1)), ("b", kind.value(2))]
        assert copy.store.committed_offsets() == {CHANGELOG: 3, INPUT: 30}
        assert copy.store.get_meta("m") == b"1"


def test_a_commit_with_updates_that_were_not_forwarded_is_refused(kind: Kind, tmp_path: Path) -> None:
    for cached in opened(lambda: kind.make(caching=True), tmp_path):
        cached.store.set_flush_listener(lambda key, new, old, timestamp, headers: None)
        cached.store.put("a", kind.value(1))
        with pytest.raises(StreamsError, match="not forwarded"):
            cached.store.commit({})


def test_rule_9_a_flush_forwards_each_key_once_with_its_old_value(kind: Kind, tmp_path: Path) -> None:
    forwarded: list[tuple[object, object, object, int]] = []
    for cached in opened(lambda: kind.make(caching=True), tmp_path):
        store = cached.store
        assert store.caching
        store.set_flush_listener(lambda key, new, old, timestamp, headers: forwarded.append((key, new, old, timestamp)))
        store.put("a", kind.value(1))
        cached.commit(1)
        forwarded.clear()
        cached.time = 6
        store.put("b", kind.value(2, 6))
        store.put("a", kind.value(3, 6))
        store.put("c", kind.value(9, 6))
        store.put("b", kind.value(4, 6))
        store.put("c", None)  # came and went: nothing is forwarded
        assert forwarded == []
        assert store.flush_cache() is True
        assert forwarded == [("a", kind.plain(3), kind.plain(1), 6), ("b", kind.plain(4), None, 6)]
        assert store.flush_cache() is False
        assert len(list(store.changelog_records())) == 3
        cached.commit(2)
        assert cached.memory.cache.used == 0


def test_rule_9_eviction_forwards_the_oldest_and_leaves_it_staged(kind: Kind, tmp_path: Path) -> None:
    forwarded: list[tuple[object, object, object]] = []
    memory = StoreMemory(cache_max_bytes=400)
    for cached in opened(lambda: kind.make(caching=True), tmp_path, memory):
        store = cached.store
        store.put("k0", kind.value(100))
        cached.commit(1)
        store.set_flush_listener(lambda key, new, old, timestamp, headers: forwarded.append((key, new, old)))
        for number in range(10):
            store.put(f"k{number}", kind.value(number))
            assert memory.cache.used <= 400
        evicted = len(forwarded)
        assert 0 < evicted < 10
        assert forwarded == [(f"k{n}", kind.plain(n), kind.plain(100) if n == 0 else None) for n in range(evicted)]
        assert store.query_view().get("k1") is None  # forwarded, but not committed
        store.put("k0", kind.value(7))
        store.flush_cache()
        assert forwarded[-1] == ("k0", kind.plain(7), kind.plain(0))
        assert len(list(store.changelog_records())) == 10
        store.rollback()
        assert [key for key, _ in store.all()] == ["k0"] and store.get("k0") == kind.value(100)
        assert memory.cache.used == 0


def test_rollback_and_close_give_the_cache_budget_back(kind: Kind, tmp_path: Path) -> None:
    memory = StoreMemory()
    for cached in opened(lambda: kind.make(caching=True), tmp_path, memory):
        cached.store.set_flush_listener(lambda key, new, old, timestamp, headers: None)
        cached.store.put("a", kind.value(1))
        assert memory.cache.used > 0
        cached.store.rollback()
        assert memory.cache.used == 0
        cached.store.put("a", kind.value(1))
    assert memory.cache.used == 0 and memory.read_cache.used == 0 and memory.read_cache.holders == 0


def test_a_cache_budget_of_zero_switches_caching_off(kind: Kind, tmp_path: Path) -> None:
    for cached in opened(lambda: kind.make(caching=True), tmp_path, StoreMemory(cache_max_bytes=0)):
        assert not cached.store.caching


def test_a_small_read_cache_changes_nothing_but_memory(kind: Kind, tmp_path: Path) -> None:
    """Several generations of the read cache pass; every read must still be right, also of keys that were never there."""
    memory = StoreMemory(read_cache_bytes=100_000)
    for small in opened(kind.make, tmp_path, memory):
        store = small.store
        truth: dict[str, int] = {}
        for commit in range(6):
            for n in range(700):
                key = f"key-{(n * 31 + commit * 97) % 2500}"
                assert store.get(key) == (kind.value(truth[key]) if key in truth else None)
                if n % 3:
                    truth[key] = n
                    store.put(key, kind.value(n))
                elif n % 2:
                    truth.pop(key, None)
                    store.put(key, None)
            small.commit(commit)
        assert memory.read_cache.used <= 100_000
        assert dict(store.all()) == {key: kind.value(n) for key, n in truth.items()}


def test_an_entry_held_over_a_change_of_generation_is_still_the_one_that_counts(kind: Kind, tmp_path: Path) -> None:
    for small in opened(kind.make, tmp_path, StoreMemory(read_cache_bytes=50_000)):
        store = small.store
        store.put("held", kind.value(1))
        small.commit(1)
        entry = store.entry(b"held")
        for n in range(300):
            store.get(f"other-{n}")
        store.update(b"held", "held", entry, kind.plain(2), 5, None)
        store.rollback()
        assert store.get("held") == kind.value(1)
        entry = store.entry(b"held")
        for n in range(300):
            store.get(f"more-{n}")
        store.update(b"held", "held", entry, kind.plain(3), 5, None)
        small.commit(2)
        wanted = kind.kept(kind.plain(3), 5, [])  # operators write no headers
        assert store.get("held") == wanted and dict(store.all()) == {"held": wanted}
