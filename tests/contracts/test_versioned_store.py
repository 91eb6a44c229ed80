"""The contract of versioned key-value stores (KIP-889), in RocksDB and in memory, of immutable and of mutable values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError
from penstock.runtime.model.ids import NextOffset
from penstock.runtime.model.record import VersionedRecord
from penstock.runtime.stores import Stores
from penstock.runtime.stores.versioned import StagedVersionedStore
from tests.support.stores import CHANGELOG, INPUT, MUTABLE_KINDS, MutableKind, Opened, name_of_kind, opened

HISTORY = 1_000
SEGMENT = 100
UNDEFINED = StagedVersionedStore.PUT_RETURN_CODE_VALID_TO_UNDEFINED
NOT_PUT = StagedVersionedStore.PUT_RETURN_CODE_NOT_PUT


class Kind(MutableKind):
    def make(self) -> StagedVersionedStore:
        supplier = (
            Stores.persistent_versioned_key_value_store("store", HISTORY, SEGMENT)
            if self.persistent
            else Stores.in_memory_versioned_key_value_store("store", HISTORY)
        )
        value = serdes.JSON if self.mutable else serdes.LONG
        return Stores.versioned_key_value_store_builder(supplier, serdes.STRING, value).build()

    def version(self, number: int, timestamp: int, valid_to: int | None = None) -> VersionedRecord:
        return VersionedRecord(self.value(number), timestamp, valid_to)


@pytest.fixture(params=MUTABLE_KINDS, ids=name_of_kind)
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(*request.param)


@pytest.fixture(params=[0, 1, 2, 3], ids=["staged", "committed", "every-second-committed", "every-third-committed"])
def after_each(request: pytest.FixtureRequest, under_test: Opened[StagedVersionedStore]) -> Callable[[], None]:
    """Action between two puts: nothing, or a commit, or a commit now and then."""
    puts = iter(range(1, 1000))

    def commit() -> None:
        number = next(puts)
        if request.param and number % request.param == 0:
            under_test.commit(number)

    return commit


def test_versions_in_any_order(kind: Kind, under_test: Opened[StagedVersionedStore], after_each: Callable[[], None]) -> None:
    store = under_test.store
    puts = [(20, UNDEFINED), (40, UNDEFINED), (10, 20), (30, 40), (25, 30), (50, UNDEFINED), (45, 50)]
    for timestamp, valid_to in puts:
        assert store.put("a", kind.value(timestamp), timestamp) == valid_to
        store.put("ab", kind.value(0), 33)  # a longer key that begins alike
        after_each()
    assert store.get("a") == kind.version(50, 50)
    assert store.get("a", 9) is None
    moments = [10, 20, 25, 30, 40, 45, 50]
    for begin, end in zip(moments, [*moments[1:], 99], strict=True):
        version = kind.version(begin, begin, None if end == 99 else end)
        assert store.get("a", begin) == store.get("a", end - 1) == version
    assert store.get("ab", 32) is None and store.get("ab", 33) == kind.version(0, 33)


def test_a_version_of_the_same_moment_is_replaced(
    kind: Kind, under_test: Opened[StagedVersionedStore], after_each: Callable[[], None]
) -> None:
    store = under_test.store
    for timestamp in (10, 20):
        for number in (1, 2):
            store.put("a", kind.value(number), timestamp)
            after_each()
    assert store.put("a", kind.value(3), 10) == 20
    after_each()
    assert (store.get("a", 15), store.get("a")) == (kind.version(3, 10, 20), kind.version(2, 20))


def test_deletions_are_versions(kind: Kind, under_test: Opened[StagedVersionedStore], after_each: Callable[[], None]) -> None:
    store = under_test.store
    assert store.put("a", kind.value(1), 10) == UNDEFINED
    after_each()
    assert store.put("a", None, 20) == UNDEFINED
    after_each()
    assert store.get("a") is None and store.get("a", 20) is None and store.get("a", 19) == kind.version(1, 10, 20)
    assert store.put("a", None, 30) == UNDEFINED
    after_each()
    assert store.put("a", kind.value(2), 25) == 30, "a deletion ends what is put before it"
    after_each()
    assert [store.get("a", moment) for moment in (24, 25, 30)] == [None, kind.version(2, 25, 30), None]
    assert store.put("a", kind.value(3), 40) == UNDEFINED
    after_each()
    assert store.put("a", kind.value(4), 30) == 40, "a deletion is replaced as any version"
    after_each()
    assert [store.get("a", moment) for moment in (12, 22, 29, 35)] == [
        kind.version(1, 10, 20),
        None,
        kind.version(2, 25, 30),
        kind.version(4, 30, 40),
    ]
    assert store.delete("a", 35) == kind.version(4, 30, 40)
    after_each()
    assert store.get("a", 37) is None and store.get("a", 34) == kind.version(4, 30, 35)
    assert store.delete("a", 40) == kind.version(3, 40) and store.get("a") is None
    after_each()
    assert store.delete("a", 50) is None and store.delete("never", 50) is None
    after_each()
    assert store.put("a", kind.value(5), 50) == UNDEFINED and store.get("a", 55) == kind.version(5, 50)


def test_history_ends_with_its_retention_but_the_latest_version_never(
    kind: Kind, under_test: Opened[StagedVersionedStore], after_each: Callable[[], None]
) -> None:
    store = under_test.store
    store.put("a", kind.value(1), 10)
    store.put("a", kind.value(2), 500)
    store.put("idle", kind.value(3), 10)
    after_each()
    store.put("clock", kind.value(0), 499 + HISTORY)
    after_each()
    assert store.get("a", 499) == kind.version(1, 10, 500) and store.get("a", 498) is None
    assert store.get("a", 500) == kind.version(2, 500)
    assert store.get("idle", 12) == kind.version(3, 10) == store.get("idle")
    assert store.put("a", kind.value(9), 498) == NOT_PUT and store.delete("a", 498) is None
    assert store.expired_records == 2
    assert store.put("a", kind.value(9), 499) == 500
    after_each()
    assert store.get("a", 499) == kind.version(9, 499, 500)


def test_rule_11_segments_of_older_versions_are_dropped_whole(kind: Kind, under_test: Opened[StagedVersionedStore]) -> None:
    store = under_test.store
    for timestamp in (0, 5_000, 10_000):
        store.put("a", kind.value(1), timestamp)
        store.put("gone", None, timestamp)
        under_test.commit(timestamp)
    store.put("a", kind.value(2), 20_000)
    under_test.commit(20_000)
    assert all(number >= 19_000 // store._segments.segment_ms for number in store._opened().segments())
    assert store.get("a") == kind.version(2, 20_000) and store.get("gone") is None


def test_queries_see_committed_data_only(kind: Kind, under_test: Opened[StagedVersionedStore]) -> None:
    store = under_test.store
    view = store.query_view()
    store.put("a", kind.value(1), 10)
    assert view.get("a") is None and list(view.all()) == []
    under_test.commit(1)
    store.put("a", kind.value(2), 20)
    store.put("b", kind.value(2), 9_999)
    assert view.get("a") == kind.version(1, 10) and view.get("a", 30) == kind.version(1, 10)
    under_test.commit(2)
    assert view.get("a") == kind.version(2, 20) and view.get("a", 15) is None, "history that is past goes with the commit"
    assert list(view.all()) == [("a", kind.version(2, 20)), ("b", kind.version(2, 9_999))]
    store.close()
    calls: list[Callable[[], object]] = [lambda: view.get("a"), lambda: view.get("a", 15), lambda: list(view.all()), lambda: store.get("a")]
    for call in calls:
        with pytest.raises(InvalidStateStoreError):
            call()


def test_a_query_of_the_past_never_falls_between_two_places(kind: Kind, under_test: Opened[StagedVersionedStore]) -> None:
    """Each commit moves the latest version to another segment and splits an older one; what held at 5 is there all the time."""
    store = under_test.store
    view = store.query_view()
    store.put("a", kind.value(5), 5)
    under_test.commit(1)
    wrong: list[object] = []
    looks = [0]
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            found = view.get("a", 6)
            looks[0] += 1
            if found is None or found.timestamp != 5:
                wrong.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    number = 1
    while looks[0] < 200 or number < 100:
        number += 1
        store.put("a", kind.value(number), 1_000 - number if number < 900 else 7)
        under_test.commit(number)
    stop.set()
    reader.join()
    assert wrong == []


def test_a_look_at_several_families_is_repeated_when_a_commit_came_between(tmp_path: Path) -> None:
    for each in opened(Kind(True, False).make, tmp_path):
        store, looks = each.store, [0]

        def look(store: StagedVersionedStore = store, looks: list[int] = looks, each: Opened[StagedVersionedStore] = each) -> int:
            looks[0] += 1
            if looks[0] < 3:
                store.put("a", looks[0], looks[0])
                each.commit(looks[0])
            return looks[0]

        assert store._opened().shared().read_consistently(look) == 3


def test_the_changelog_has_a_record_per_version_folded_by_key_and_timestamp(
    kind: Kind, under_test: Opened[StagedVersionedStore], tmp_path: Path
) -> None:
    store = under_test.store
    for number, timestamp in ((1, 100), (2, 50), (3, 100)):
        store.put("a", kind.value(number), timestamp)
    store.delete("a", 70)
    store.put("b", kind.value(0), 1_070)
    assert store.put("a", kind.value(9), 60) == NOT_PUT
    written = store._write_value
    log = list(store.changelog_records())
    assert log == [
        (b"a", written(kind.value(3)), 100),
        (b"a", written(kind.value(2)), 50),
        (b"a", None, 70),
        (b"b", written(kind.value(0)), 1_070),
    ]
    under_test.commit(4)
    assert list(store.changelog_records()) == [] and store.folded_by_key is False
    for other in opened(kind.make, tmp_path / "other"):
        other.store.restore(log, {CHANGELOG: NextOffset(4)})
        for key in ("a", "b"):
            for moment in (*range(0, 1_200, 10), None):
                assert other.store.get(key, moment) == store.get(key, moment)
        assert other.store.committed_offset(CHANGELOG) == 4
        assert list(other.store.changelog_records()) == [] and other.store.approximate_num_uncommitted_bytes == 0


def test_an_update_between_changelog_and_commit_is_refused(kind: Kind, under_test: Opened[StagedVersionedStore]) -> None:
    under_test.store.put("a", kind.value(1), 1)
    list(under_test.store.changelog_records())
    with pytest.raises(StreamsError, match="uncommitted"):
        under_test.store.restore([], {})
    under_test.store.put("a", kind.value(2), 2)
    with pytest.raises(StreamsError, match="updated after its changelog records were taken"):
        under_test.store.commit({})


def test_rollback_takes_versions_and_stream_time_back(kind: Kind, under_test: Opened[StagedVersionedStore]) -> None:
    store = under_test.store
    store.put("a", kind.value(1), 10)
    store.put("a", kind.value(2), 20)
    under_test.commit(1)
    store.put("a", kind.value(3), 15)
    store.put("a", None, 90_000)
    assert store.approximate_num_uncommitted_bytes > 0
    store.rollback()
    assert store.approximate_num_uncommitted_bytes == 0 and list(store.changelog_records()) == []
    assert (store.get("a", 16), store.get("a")) == (kind.version(1, 10, 20), kind.version(2, 20))
    assert store.put("a", kind.value(4), 5) == 10


def test_versions_offsets_and_stream_time_survive_a_reopening(kind: Kind, under_test: Opened[StagedVersionedStore]) -> None:
    under_test.store.put("a", kind.value(1), 10)
    under_test.store.put("a", kind.value(2), 2_000)
    under_test.commit(7)
    under_test.store.put("a", kind.value(3), 3_000)
    store = under_test.reopened()
    if not kind.persistent:
        assert store.committed_offsets() == {} and not store.has_entries()
        return
    assert store.has_entries() and store.committed_offsets() == {CHANGELOG: 7, INPUT: 70}
    assert (store.get("a"), store.get("a", 1_999)) == (kind.version(2, 2_000), kind.version(1, 10, 2_000))
    assert store.put("a", kind.value(9), 999) == NOT_PUT
    store.wipe()
    assert store.get("a") is None and store.committed_offsets() == {} and store.put("a", kind.value(9), 1) == UNDEFINED


def test_a_checkpoint_is_a_rocksdb_of_the_committed_data(kind: Kind, under_test: Opened[StagedVersionedStore], tmp_path: Path) -> None:
    if not kind.persistent:
        return  # its segments are of another length than those of the store that reads the copy
    under_test.store.put("a", kind.value(1), 10)
    under_test.store.put("a", kind.value(2), 20)
    under_test.commit(3)
    under_test.store.put("a", kind.value(3), 30)
    under_test.store.checkpoint(tmp_path / "copy" / "rocksdb" / "store")
    for copy in opened(Kind(True, kind.mutable).make, tmp_path / "copy"):
        assert (copy.store.get("a", 10), copy.store.get("a")) == (kind.version(1, 10, 20), kind.version(2, 20))


def test_a_topic_of_versions_is_not_compacted_while_they_can_be_read() -> None:
    builder = Stores.versioned_key_value_store_builder(
        Stores.persistent_versioned_key_value_store("v", 5_000), serdes.STRING, serdes.STRING
    )
    config = builder.changelog_config()
    assert (config["cleanup.policy"], config["min.compaction.lag.ms"]) == ("compact", str(5_000 + 86_400_000))
    assert builder.build().layout.kind == "versioned"
    with pytest.raises(ValueError, match="do not support caching"):
        builder.with_caching_enabled()


@pytest.mark.parametrize(
    ("history", "segment"), [(3_000, 2_000), (60_000, 20_000), (300_000, 60_000), (3_600_000, 300_000), (86_400_000, 3_600_000)]
)
def test_segments_are_as_long_as_in_kafka_streams(history: int, segment: int) -> None:
    """`RocksDbVersionedKeyValueBytesStoreSupplier.defaultSegmentInterval`."""
    assert Stores.persistent_versioned_key_value_store("v", history).segment_interval_ms == segment


def test_arguments_that_mean_nothing_are_refused(kind: Kind, under_test: Opened[StagedVersionedStore]) -> None:
    for call in (lambda: under_test.store.get(None), lambda: under_test.store.put(None, kind.value(1), 1)):
        with pytest.raises(ValueError, match="a key must not be None"):
            call()
    with pytest.raises(ValueError, match="cannot be negative"):
        under_test.store.put("a", kind.value(1), -1)
    with pytest.raises(ValueError, match="at least 1 ms"):
        Stores.persistent_versioned_key_value_store("v", 1_000, 0)
