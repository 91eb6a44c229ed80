"""Look-ahead: the same values as without it, within bounds, and no open reference after a close."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from rocksdict import Rdict

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.kstream import KStream
from penstock.runtime.dsl.options import Consumed, Grouped, Joined, Materialized, Produced
from penstock.runtime.dsl.windows import TimeWindows
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.input.queues import MAX_RUN, PartitionQueue
from penstock.runtime.model.errors import TaskCorruptedError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.serdes.keys import window_store_key
from penstock.runtime.serdes.serde import PlainSerde
from penstock.runtime.stores import StoreContext, StoreMemory, Stores
from penstock.runtime.stores.look_ahead import MOST_BYTES, LookAhead
from penstock.runtime.stores.rocks import RocksStore
from penstock.runtime.stores.staging import StagedStore
from penstock.testing import TopologyTestDriver
from tests.support.pipelines import Compiled
from tests.support.raw_messages import Raw

CHANGELOG = TopicPartition("app-s-changelog", 0)
MINUTE = 60_000
MANY = 1 << 24
S, L = serdes.STRING, serdes.LONG


def key_values(folder: Path, read_cache_bytes: int = 1) -> StagedStore:  # type: ignore[type-arg]  # of either kind
    return opened(
        Stores.timestamped_key_value_store_builder(Stores.persistent_key_value_store("s"), S, L).build(), folder, read_cache_bytes
    )


def windows(folder: Path) -> StagedStore:  # type: ignore[type-arg]  # of either kind
    supplier = Stores.persistent_window_store("s", timedelta(minutes=8), timedelta(minutes=1), False)
    return opened(Stores.window_store_builder(supplier, S, L).build(), folder, 1)


def roomy(folder: Path) -> StagedStore:  # type: ignore[type-arg]  # of either kind
    """Return a store that was filled before it was opened, so that it does not hold all entries in memory."""
    store = key_values(folder)
    key = window_store_key(b"first", 0)
    store.update(key, None, store.entry(key), 1, 5, None)
    store.commit({CHANGELOG: NextOffset(1)})
    store.close()
    return key_values(folder, MANY)


def opened(store: object, folder: Path, read_cache_bytes: int) -> StagedStore:  # type: ignore[type-arg]  # of either kind
    assert isinstance(store, StagedStore)
    store.open(folder, StoreContext("app", folder, TaskId(0, 0), CHANGELOG, StoreMemory(read_cache_bytes=read_cache_bytes)))
    return store


def fill(store: StagedStore, count: int, first: int = 0) -> list[bytes]:  # type: ignore[type-arg]  # of either kind
    """Write numbers from `first` on, by key."""
    keys = [b"%06d" % n for n in range(count)]
    for number, key in enumerate(keys, first):
        store.update(key, None, store.entry(key), number, 5, None)
    store.commit({CHANGELOG: NextOffset(count)})
    return keys


def filled(folder: Path, count: int) -> tuple[StagedStore, list[bytes]]:  # type: ignore[type-arg]  # of either kind
    """Return a store whose entries are only on disk, and their keys."""
    store = key_values(folder)
    keys = fill(store, count)
    store.close()
    return key_values(folder), keys


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", [key_values, windows, roomy])
def test_look_ahead_never_changes_a_value(make: Callable[[Path], StagedStore], tmp_path: Path, seed: int) -> None:  # type: ignore[type-arg]
    """The read cache has no room, so that entries leave memory at each commit; or much, so that values read ahead stay."""
    choice, store = random.Random(seed), make(tmp_path)
    keys = [window_store_key(b"%04d" % n, n % 3 * MINUTE) for n in range(120)]
    committed: dict[bytes, object] = {}
    now: dict[bytes, object] = {}
    for step in range(400):
        match choice.choice(("ahead", "ahead", "update", "update", "update", "read", "commit", "rollback", "restore")):
            case "ahead":
                store.look_ahead(choice.sample(keys, 40))
            case "update":
                for key in choice.sample(keys, 20):
                    entry = store.entry(key)
                    assert entry.value == now.get(key)
                    value = None if choice.random() < 0.1 else step
                    store.update(key, None, entry, value, 5, None)
                    now[key] = value
            case "read":
                assert [store.entry(key).value for key in keys] == [now.get(key) for key in keys]
            case "commit":
                store.commit({CHANGELOG: NextOffset(step)})
                committed = dict(now)
            case "rollback":
                store.rollback()
                now = dict(committed)
            case "restore":
                store.commit({CHANGELOG: NextOffset(step)})
                key = choice.choice(keys)
                store.restore([(key, L.serializer("")(step), 5)], {CHANGELOG: NextOffset(step)})
                now[key] = step
                committed = dict(now)
    store.close()


def test_values_read_ahead_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, keys = filled(tmp_path, 500)
    one_by_one: list[bytes] = []
    get = RocksStore._get

    def noted(self: RocksStore, family: Rdict, key: bytes) -> bytes | None:
        one_by_one.append(key)
        return get(self, family, key)

    monkeypatch.setattr(RocksStore, "_get", noted)
    store.look_ahead(keys[:64])
    assert [store.entry(key).value for key in keys[:64]] == list(range(64))
    assert one_by_one == []
    assert store.entry(keys[64]).value == 64
    assert one_by_one == [keys[64]]
    for first in range(100, 400, 50):
        store.look_ahead(keys[first : first + 50])
        store.commit({CHANGELOG: NextOffset(500 + first)})  # evicts those of the turn before
        assert [store.entry(key).value for key in keys[first : first + 50]] == list(range(first, first + 50))
    assert one_by_one == [keys[64]]
    store.close()


def asked(store: StagedStore, records: int) -> set[bool]:  # type: ignore[type-arg]  # of either kind
    """Return the store's answers about so many records, a thousand at a time."""
    return {store.reads_files(1_000) for _ in range(records // 1_000)}


def test_look_ahead_is_used_only_while_files_are_read(tmp_path: Path) -> None:
    store = key_values(tmp_path, read_cache_bytes=MANY)
    keys = fill(store, 3_000)
    assert asked(store, 6_000) == {False}  # everything is in memory
    store.close()
    store = key_values(tmp_path, read_cache_bytes=MANY)
    for key in keys:
        store.entry(key)
    assert True in asked(store, 3_000)
    for key in keys:
        store.entry(key)
    assert False in asked(store, 3_000)
    assert not store.reads_files(1)
    store.close()


def test_large_values_are_read_ahead_up_to_a_bound() -> None:
    ahead = LookAhead()
    keys = [b"%06d" % n for n in range(1_000)]

    def read(wanted: Sequence[bytes]) -> Future[list[bytes | None]]:
        found: Future[list[bytes | None]] = Future()
        found.set_result([bytes(100_000) for _ in wanted])
        return found

    held = []
    for _ in range(5):
        ahead.begin(keys, read)
        ahead.collect()
        held.append(sum(len(value or b"") for value in ahead.found.values()))
        ahead.forget()
    assert held[0] <= 64 * 100_000  # before the size of the values is known
    assert 0 < max(held[1:]) <= MOST_BYTES


def test_values_that_are_never_used_are_bounded() -> None:
    """A filter before the store may drop most of the records whose keys are named."""
    ahead, numbers = LookAhead(), count()

    def read(wanted: Sequence[bytes]) -> Future[list[bytes | None]]:
        found: Future[list[bytes | None]] = Future()
        found.set_result([bytes(10_000) for _ in wanted])
        return found

    held = []
    for _ in range(50):
        ahead.begin([b"%06d" % next(numbers) for _ in range(1_000)], read)
        held.append(sum(len(value or b"") for value in ahead.found.values()))
    assert 2 * MOST_BYTES < max(held) <= 5 * MOST_BYTES


def test_a_failed_look_ahead_raises_when_the_entry_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, keys = filled(tmp_path, 100)

    def damaged(self: RocksStore, keys: Sequence[bytes]) -> list[bytes | None]:
        raise OSError("Corruption: block checksum mismatch")

    with monkeypatch.context() as patched:
        patched.setattr("penstock.runtime.stores.rocks.RocksBackend._read_all", damaged)
        store.look_ahead(keys)
        store.look_ahead(keys)
        with pytest.raises(TaskCorruptedError, match="cannot be read: Corruption"):
            store.entry(keys[0])
    assert store.entry(keys[0]).value == 0
    store.look_ahead(keys)
    store.wipe()
    assert store.entry(keys[0]).value is None
    store.close()


def test_values_read_ahead_are_dropped_by_a_wipe(tmp_path: Path) -> None:
    store, keys = filled(tmp_path, 60)
    store.look_ahead(keys)
    store.wipe()
    for _ in range(3):  # all of them leave memory
        fill(store, 60, 7)
    fill(store, 1, 8)
    assert [store.entry(key).value for key in keys[1:]] == list(range(8, 67))
    store.close()


@pytest.mark.parametrize("make", [key_values, windows])
def test_a_key_read_ahead_as_absent_is_found_after_it_was_written_and_evicted(
    make: Callable[[Path], StagedStore],  # type: ignore[type-arg]  # of either kind
    tmp_path: Path,
) -> None:
    """An empty store knows that a key is absent, and does not use values read ahead."""
    store = make(tmp_path)
    keys = [window_store_key(b"%04d" % n, MINUTE) for n in range(40)]
    store.look_ahead(keys)
    for offset, those in enumerate((keys, keys[:1], keys[:1], keys[:1])):
        for key in those:
            store.update(key, None, store.entry(key), 7, 5, None)
        store.commit({CHANGELOG: NextOffset(offset)})
    assert [store.entry(key).value for key in keys] == [7] * 40
    store.close()


def test_a_rollback_drops_values_that_were_written_since_they_were_read_ahead(tmp_path: Path) -> None:
    """The second read has keys of the first one, and ends after their entries were taken from the first one."""
    store, keys = filled(tmp_path, 100)
    store.close()
    store = key_values(tmp_path, read_cache_bytes=MANY)
    store.look_ahead(keys[:64])
    store.look_ahead(keys[:64])
    store.update(keys[0], None, store.entry(keys[0]), 7, 5, None)
    store.commit({CHANGELOG: NextOffset(101)})
    assert store.entry(keys[99]).value == 99  # waits for the second read
    store.update(keys[0], None, store.entry(keys[0]), 8, 5, None)
    store.rollback()
    assert store.entry(keys[0]).value == 7
    store.close()


def test_an_eviction_drops_values_that_were_written_since_they_were_read_ahead(tmp_path: Path) -> None:
    store, keys = filled(tmp_path, 100)
    store.look_ahead(keys[:64])
    store.look_ahead(keys[:64])
    entry = store.entry(keys[0])
    assert store.entry(keys[99]).value == 99  # waits for the second read, which has the first key again
    store.update(keys[0], None, entry, 7, 5, None)
    for offset in range(101, 104):
        store.commit({CHANGELOG: NextOffset(offset)})
        store.entry(keys[offset - 20])
    assert store.entry(keys[0]).value == 7
    store.close()


def test_a_store_can_be_closed_during_a_look_ahead(tmp_path: Path) -> None:
    """A reference to a family that outlived the read would keep the files locked."""
    store, keys = filled(tmp_path, 2_000)
    for _ in range(20):
        store.look_ahead(keys)
        store.close()
        store = key_values(tmp_path)
    assert store.entry(keys[7]).value == 7
    store.close()


# -- which keys ----------------------------------------------------------------------------------------------------------------


def looked_up(tmp_path: Path, builder: StreamsBuilder, messages: list[Raw], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """Return the keys that each store is asked to look ahead for, for these messages of the topic `in`."""
    compiled, asked = Compiled(builder.build(), tmp_path), dict[str, list[bytes]]()
    monkeypatch.setattr(StagedStore, "reads_files", lambda self, records: True)

    def noted(self: StagedStore, keys: Iterable[bytes]) -> bool:  # type: ignore[type-arg]  # of either kind
        asked[self.name] = list(keys)
        return True

    monkeypatch.setattr(StagedStore, "look_ahead", noted)
    compiled.pipeline.look_ahead("in", messages)
    for store in compiled.stores.values():
        store.close()
    return asked


MESSAGES = [Raw(0, b"a", time=5 * MINUTE), Raw(1, None, time=6 * MINUTE), Raw(2, b"b", time=6 * MINUTE + 1)]


def test_look_ahead_of_an_aggregate_reads_the_keys_of_the_next_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(stream: KStream, name: str) -> None:
        stream.group_by_key(Grouped(S, value=S)).count(Materialized(name))

    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(S, value=S))
    count(stream.filter(lambda key, value: True).peek(lambda key, value: None).map_values(lambda value: value), "kept")
    count(stream.process(_NoProcessor), "unknown")
    assert looked_up(tmp_path, builder, MESSAGES, monkeypatch) == {"kept": [b"a", b"b"]}


class _NoProcessor:
    def init(self, context: object) -> None:
        pass

    def process(self, record: object) -> None:
        pass

    def close(self) -> None:
        pass


def test_look_ahead_of_a_windowed_aggregate_reads_the_windows_of_the_next_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", Consumed(S, value=S)).group_by_key(Grouped(S, value=S))
    tumbling = TimeWindows.of_size_with_no_grace(2 * MINUTE)
    grouped.windowed_by(tumbling).count(Materialized("tumbling"))
    grouped.windowed_by(tumbling.advance_by(MINUTE)).count(Materialized("hopping"))
    assert looked_up(tmp_path, builder, MESSAGES, monkeypatch) == {
        "tumbling": [window_store_key(b"a", 4 * MINUTE), window_store_key(b"b", 6 * MINUTE)],
        "hopping": [window_store_key(b"a", start * MINUTE) for start in (4, 5)] + [window_store_key(b"b", n * MINUTE) for n in (5, 6)],
    }


def test_look_ahead_of_a_join_reads_the_rows_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StreamsBuilder()
    table = builder.table("table", Consumed(S, value=S), Materialized("rows"))
    stream = builder.stream("in", Consumed(S, value=S))
    stream.join(table, lambda left, right: left, Joined(S, value=S)).to("out", Produced(S, value=S))
    assert looked_up(tmp_path, builder, MESSAGES, monkeypatch) == {"rows": [b"a", b"b"]}


def test_look_ahead_ignores_a_record_with_an_unreadable_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(serdes.json(int), value=S)).group_by_key(Grouped(serdes.json(int), value=S)).count(Materialized("n"))
    good = [Raw(0, b" 7 "), Raw(1, b"8")]
    assert looked_up(tmp_path / "a", builder, good, monkeypatch) == {"n": [b"7", b"8"]}
    assert looked_up(tmp_path / "b", builder, [*good, Raw(2, b"no number")], monkeypatch) == {}

    def exits(data: bytes) -> int:
        raise SystemExit(0)

    builder = StreamsBuilder()
    exiting = PlainSerde("exits", lambda number: b"%d" % number, exits, immutable=True)
    builder.stream("in", Consumed(exiting, value=S)).group_by_key(Grouped(serdes.LONG, value=S)).count(Materialized("n"))
    assert looked_up(tmp_path / "c", builder, good, monkeypatch) == {}


def test_a_queue_shows_the_records_after_its_head() -> None:
    queue = PartitionQueue(TopicPartition("t", 0), Decoder("t", S, S), NextOffset(0))
    messages = [Raw(n) for n in range(MAX_RUN + 5)]
    assert not queue.coming()
    queue.enqueue(messages)
    assert list(queue.coming()) == messages[:MAX_RUN]
    queue.head()
    assert list(queue.coming()) == messages[MAX_RUN:]


def test_a_look_ahead_says_whether_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task lets others go first only then: a single record must not wait for a turn that reads nothing for it."""
    builder = StreamsBuilder()
    builder.stream("in", Consumed(S, value=S)).group_by_key().count(Materialized("counts"))
    compiled = Compiled(builder.build(), tmp_path)
    begun: list[bool] = []
    monkeypatch.setattr(StagedStore, "reads_files", lambda self, records: True)
    many = [Raw(offset, b"%06d" % offset) for offset in range(100)]
    begun += [compiled.pipeline.look_ahead("in", each) for each in (many, many[:1], [])]
    assert begun == [True, False, False]
    for store in compiled.stores.values():
        store.close()


def test_records_whose_entries_are_being_read_wait_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their task would stand still until the read ends, while others have records and the next poll has more to read ahead."""
    builder = StreamsBuilder()
    builder.stream("in", Consumed(S, value=S)).group_by_key().count(Materialized("counts"))
    monkeypatch.setattr(StagedStore, "reads_files", lambda self, records: True)
    with TopologyTestDriver(builder.build()) as driver:
        task = driver._tasks[0]
        task.enqueue(TopicPartition("in", 0), [Raw(offset, b"%06d" % offset, b"v") for offset in range(100)])
        assert [task.process(1_000, 0) for _ in range(3)] == [0, 100, 0]
