"""Restoring stores from changelogs on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.changelog.folding import FoldedBatch
from penstock.runtime.changelog.restore import Restorer
from penstock.runtime.changelog.staleness import Changelog, mark_at_end
from penstock.runtime.kafka.log_reader import LogReader, Poll
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.errors import TaskCorruptedError
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.record import ValueAndTimestamp
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import MIB
from tests.support import Kafka, wait_until
from tests.support.logs import cut, end_of, open_transaction, recreate_topic, transaction

TASK = TaskId(0, 0)
DAY_MS = 86_400_000


@dataclass
class Listener:
    """Keeps its calls."""

    calls: list[tuple[str, str, int]] = field(default_factory=list)

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
        self.calls.append(("start", store, start))

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end: int, records: int) -> None:
        self.calls.append(("batch", store, batch_end))

    def on_restore_end(self, partition: TopicPartition, store: str, total: int) -> None:
        self.calls.append(("end", store, total))

    def on_restore_suspended(self, partition: TopicPartition, store: str, total: int) -> None:
        self.calls.append(("suspended", store, total))


@dataclass
class Bench:
    """One store, its changelog, and restorers for it."""

    kafka: Kafka
    folder: Path
    topic: str
    listener: Listener = field(default_factory=Listener)
    events: EventSink = field(default_factory=lambda: EventSink("app", "instance", SystemClock()))

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def open(self, name: str = "counts") -> EngineStore:
        supplier = Stores.persistent_timestamped_key_value_store(name)
        store = Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.STRING).build()
        store.open(self.folder, StoreContext("app", self.folder, TASK, self.partition))
        return store

    def changelog(self, end: int | None = None, topic_id: str = "id-1") -> Changelog:
        upto = end_of(self.kafka, self.topic) if end is None else end
        return Changelog(self.partition, NextOffset(upto), topic_id, DAY_MS)

    def restorer(self, most_bytes: int = 64 * MIB, **settings: int) -> Restorer:
        properties: dict[str, str | int] = {"bootstrap.servers": self.kafka.bootstrap_servers, **settings}
        return Restorer(properties, SystemClock(), Metrics(), self.events, [self.listener], most_bytes=most_bytes)

    def restore(self, store: EngineStore, changelog: Changelog | None = None, most_bytes: int = 64 * MIB) -> None:
        restorer = self.restorer(most_bytes)
        try:
            restorer.add(TASK, [(store, changelog or self.changelog())])
            finish(restorer)
        finally:
            restorer.close()


def finish(restorer: Restorer) -> None:
    done: list[TaskId] = []

    def all_done() -> bool:
        done.extend(restorer.step(0.1))
        return not restorer.restoring

    wait_until(all_done, what="the end of the restore")
    assert done == [TASK]


def content(store: EngineStore) -> dict[object, object]:
    return dict(store.query_view().all())


@pytest.fixture
def bench(broker: Kafka, tmp_path: Path, topic: Callable[..., str]) -> Iterator[Bench]:
    yield Bench(broker, tmp_path / "0_0", topic("changelog", config={"cleanup.policy": "compact"}))


def test_latest_value_of_each_key_with_its_timestamp(bench: Bench) -> None:
    rows = [("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("c", "3")]
    bench.kafka.produce(bench.topic, rows, partition=0, timestamps=[1, 2, 3, 4, 5])
    store = bench.open()
    bench.restore(store)
    assert content(store) == {"a": "2", "c": "3"}
    assert dict(store.query_view(timestamped=True).all())["a"] == ValueAndTimestamp("2", 3)
    assert store.committed_offset(bench.partition) == 5
    assert bench.listener.calls == [("start", "counts", 0), ("batch", "counts", 4), ("end", "counts", 5)]
    store.close()


def test_records_without_a_key_are_left_out(bench: Bench) -> None:
    bench.topic = bench.kafka.create_topic("changelog", config={"cleanup.policy": "delete"})
    bench.kafka.produce(bench.topic, [("a", "1"), (None, "no key"), ("b", "1")], partition=0)
    store = bench.open()
    bench.restore(store)
    assert content(store) == {"a": "1", "b": "1"}
    assert store.committed_offset(bench.partition) == 3
    store.close()


def test_control_records_and_an_aborted_tail_do_not_hang_it(bench: Bench) -> None:
    transaction(bench.kafka, bench.topic, [("a", "1")])
    transaction(bench.kafka, bench.topic, [("a", "aborted"), ("z", "aborted")], commit=False)
    end = wait_until(lambda: end_of(bench.kafka, bench.topic) if end_of(bench.kafka, bench.topic) == 5 else 0, what="the marker")
    store = bench.open()
    bench.restore(store)
    assert content(store) == {"a": "1"}
    assert store.committed_offset(bench.partition) == end == 5
    store.close()


def test_an_empty_changelog_with_an_end_above_zero_advances_the_offset(bench: Bench) -> None:
    bench.topic = bench.kafka.create_topic("changelog", config={"cleanup.policy": "delete"})
    bench.kafka.produce(bench.topic, [("a", "1"), ("b", "1")], partition=0)
    cut(bench.kafka, bench.topic, 2)
    store = bench.open()
    bench.restore(store)
    assert content(store) == {}
    assert store.committed_offset(bench.partition) == 2
    store.close()


def test_a_changelog_that_starts_above_zero(bench: Bench) -> None:
    bench.topic = bench.kafka.create_topic("changelog", config={"cleanup.policy": "compact,delete"})
    bench.kafka.produce(bench.topic, [("old", "1"), ("a", "2"), ("b", "3")], partition=0)
    cut(bench.kafka, bench.topic, 1)
    store = bench.open()
    bench.restore(store)
    assert content(store) == {"a": "2", "b": "3"}
    store.close()


def test_nothing_beyond_the_end_is_applied(bench: Bench) -> None:
    """A source topic used as changelog: records after the end are the task's own input."""
    bench.kafka.produce(bench.topic, [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1")], partition=0)
    store = bench.open()
    bench.restore(store, bench.changelog(end=2))
    assert content(store) == {"a": "2"}
    assert store.committed_offset(bench.partition) == 2
    store.close()


def test_it_waits_for_an_open_transaction_below_the_end(bench: Bench) -> None:
    """KAFKA-10167: the end is the high watermark; an open transaction of a fenced predecessor ends first."""
    bench.kafka.produce(bench.topic, [("a", "1")], partition=0)
    producer = open_transaction(bench.kafka, bench.topic, [("a", "2")])
    store, restorer = bench.open(), bench.restorer()
    restorer.add(TASK, [(store, bench.changelog(end=2))])
    for _ in range(10):
        assert restorer.step(0.1) == []
    producer.commit_transaction(30)
    finish(restorer)
    restorer.close()
    assert content(store) == {"a": "2"}
    store.close()


def test_out_of_range_is_a_corrupted_task_and_the_others_continue(bench: Bench, topic: Callable[..., str]) -> None:
    bench.topic = topic("changelog", config={"cleanup.policy": "compact,delete"})
    bench.kafka.produce(bench.topic, [("a", str(n)) for n in range(10)], partition=0)
    store = bench.open()
    bench.restore(store, bench.changelog(end=4))
    cut(bench.kafka, bench.topic, 8)

    other_topic = topic("changelog", config={"cleanup.policy": "compact"})
    bench.kafka.produce(other_topic, [("b", "1")], partition=0)
    other = Stores.key_value_store_builder(Stores.in_memory_key_value_store("other"), serdes.STRING, serdes.STRING).build()
    other.open(bench.folder, StoreContext("app", bench.folder, TaskId(0, 1), TopicPartition(other_topic, 0)))

    restorer = bench.restorer()
    restorer.add(TASK, [(store, bench.changelog())])
    restorer.add(TaskId(0, 1), [(other, Changelog(TopicPartition(other_topic, 0), NextOffset(1), "id", None))])
    done: list[TaskId] = []

    def step() -> bool:
        done.extend(restorer.step(0.1))
        return not restorer.restoring

    with pytest.raises(TaskCorruptedError, match=r"offset 4 of .* no longer there") as raised:
        wait_until(step, what="the error")
    assert raised.value.tasks == {TASK}
    wait_until(step, what="the other task")
    assert done == [TaskId(0, 1)] and content(other) == {"b": "1"}

    store.wipe()
    restorer.add(TASK, [(store, bench.changelog())])
    finish(restorer)
    assert content(store) == {"a": "9"}
    restorer.close()
    other.close()
    store.close()


def test_an_interrupted_restore_continues_from_what_it_wrote(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.kafka.produce(bench.topic, [(f"k{n}", "1") for n in range(10_000)], partition=0)
    monkeypatch.setattr(FoldedBatch, "is_due", lambda self, *limits: self.records >= 1_000)
    monkeypatch.setattr("penstock.runtime.kafka.log_reader._MOST_PER_POLL", 1_000)
    monkeypatch.setattr("penstock.runtime.changelog.restore._STEP_MS", 0)
    store, restorer = bench.open(), bench.restorer()
    restorer.add(TASK, [(store, bench.changelog())])
    wait_until(lambda: restorer.step(0.1) or store.committed_offset(bench.partition), what="the first write")
    restorer.remove(TASK)  # the state after a kill: the last write
    written = store.committed_offset(bench.partition)
    assert written is not None and 0 < written < 10_000
    assert bench.listener.calls[-1] == ("suspended", "counts", written)
    store.close()

    store = bench.open()
    assert store.committed_offset(bench.partition) == written
    restorer.add(TASK, [(store, bench.changelog())])
    assert bench.listener.calls[-1] == ("start", "counts", written)
    finish(restorer)
    assert bench.listener.calls[-1] == ("end", "counts", 10_000 - written)
    assert len(content(store)) == 10_000
    restorer.close()
    store.close()


def test_batches_of_many_tasks_share_one_budget_of_memory(bench: Bench) -> None:
    bench.kafka.produce(bench.topic, [(f"k{n}", "v" * 100) for n in range(20_000)], partition=0)
    store = bench.open()
    bench.restore(store, most_bytes=1_000_000)
    batches = [call for call in bench.listener.calls if call[0] == "batch"]
    assert len(batches) >= 3
    assert len(content(store)) == 20_000
    store.close()


def test_nothing_to_read_is_complete_at_once_and_makes_no_connection(bench: Bench) -> None:
    restorer = Restorer({"bootstrap.servers": "127.0.0.1:1"}, SystemClock(), Metrics(), bench.events)
    store = bench.open()
    restorer.add(TASK, [(store, bench.changelog(end=0))])
    restorer.add(TaskId(1, 0), [])
    assert set(restorer.step(0)) == {TASK, TaskId(1, 0)}
    assert not bench.events
    restorer.close()
    store.close()


def test_progress_and_events(bench: Bench) -> None:
    bench.kafka.produce(bench.topic, [("a", "1"), ("b", "1")], partition=0)
    store, restorer = bench.open(), bench.restorer()
    restorer.add(TASK, [(store, bench.changelog())])
    (progress,) = restorer.progress()
    assert (progress.position, progress.end, progress.store) == (0, 2, "counts")
    finish(restorer)
    assert restorer.progress() == []
    started, ended = bench.events.drain()
    assert started.kind is EventKind.RESTORE_STARTED and started.task == "0_0"
    assert started.payload["stores"] == {"counts": {"topic": bench.topic, "partition": 0, "from": 0, "to": 2}}
    assert ended.kind is EventKind.RESTORE_ENDED and ended.payload["records"] == 2
    restorer.close()
    store.close()


# --- rule 13: stores that may still be used ------------------------------------------------------------------------------------------


def test_rule_13_a_recreated_topic_wipes_the_store_even_if_its_offset_exists(bench: Bench) -> None:
    bench.kafka.produce(bench.topic, [("gone", "1"), ("a", "1")], partition=0)
    store = bench.open()
    bench.restore(store, bench.changelog(topic_id="id-1"))
    recreate_topic(bench.kafka, bench.topic, config={"cleanup.policy": "compact"})
    bench.kafka.produce(bench.topic, [("b", "1"), ("b", "2"), ("b", "3"), ("c", "1")], partition=0)
    bench.restore(store, bench.changelog(topic_id="id-2"))
    assert content(store) == {"b": "3", "c": "1"}
    store.close()


@pytest.mark.parametrize(("away_ms", "kept"), [(DAY_MS + 60_000, False), (DAY_MS - 60_000, True)])
def test_rule_13_away_for_longer_than_delete_retention(bench: Bench, away_ms: int, kept: bool) -> None:
    """The tombstone of `gone` was cleaned meanwhile: the remaining log never mentions the key."""
    store = bench.open()
    store.restore([(b"gone", b"1", 1)], {bench.partition: NextOffset(1)})
    bench.kafka.produce(bench.topic, [("a", "1"), ("b", "1")], partition=0)
    mark_at_end(store, "id-1", SystemClock().wall_ms() - away_ms)
    store.commit({})
    bench.restore(store)
    assert ("gone" in content(store)) is kept
    assert content(store)["b"] == "1"
    store.close()


def test_rule_13_a_store_at_the_end_has_missed_nothing_however_long_it_was_away(bench: Bench) -> None:
    bench.kafka.produce(bench.topic, [("a", "1")], partition=0)
    store = bench.open()
    bench.restore(store)
    mark_at_end(store, "id-1", 1)
    store.commit({})
    bench.listener.calls.clear()
    bench.restore(store)
    assert content(store) == {"a": "1"}
    assert bench.listener.calls == [("start", "counts", 1), ("end", "counts", 0)]
    store.close()


def test_rule_13_a_store_ahead_of_its_changelog_is_wiped(bench: Bench) -> None:
    bench.kafka.produce(bench.topic, [("a", "1")], partition=0)
    store = bench.open()
    store.restore([(b"never", b"written", 1)], {bench.partition: NextOffset(50)})
    bench.restore(store)
    assert content(store) == {"a": "1"}
    assert store.committed_offset(bench.partition) == 1
    store.close()


def test_rule_13_a_slow_first_restore_counts_from_its_beginning(bench: Bench) -> None:
    """A store that never reached the end is as old as the beginning of its restore."""
    bench.kafka.produce(bench.topic, [("a", "1"), ("b", "1")], partition=0)
    store, restorer = bench.open(), bench.restorer()
    restorer.add(TASK, [(store, bench.changelog())])
    restorer.close()
    store.restore([(b"gone", b"1", 1)], {bench.partition: NextOffset(1)})

    class Later(SystemClock):
        def wall_ms(self) -> int:
            return super().wall_ms() + 2 * DAY_MS

    later = Restorer({"bootstrap.servers": bench.kafka.bootstrap_servers}, Later(), Metrics(), bench.events)
    later.add(TASK, [(store, replace(bench.changelog(), topic_id="id-1"))])
    finish(later)
    later.close()
    assert content(store) == {"a": "1", "b": "1"}
    store.close()


def test_a_lost_position_does_not_affect_records_of_other_stores_in_the_same_poll(
    bench: Bench, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.kafka.produce(bench.topic, [(f"k{n}", "v") for n in range(10)], partition=0)
    gone = replace(bench, folder=bench.folder.with_name("0_1"), topic=topic("changelog"))
    gone.kafka.produce(gone.topic, [("a", "1")] * 10, partition=0)
    cut(gone.kafka, gone.topic, before=5)
    store, lost = bench.open(), gone.open("lost")
    mark_at_end(lost, "id-1", SystemClock().wall_ms())
    lost.commit({gone.partition: NextOffset(2)})
    real, saved = LogReader.poll, Poll()

    def together(reader: LogReader, timeout: float) -> Poll:
        """Return consecutive polls as one, which is a valid poll too."""
        found = real(reader, timeout)
        for partition, run in found.runs.items():
            saved.runs.setdefault(partition, []).extend(run)
        saved.ends.update(found.ends)
        saved.out_of_range.update(found.out_of_range)
        return replace(saved) if saved.runs and saved.ends and saved.out_of_range else Poll()

    restorer = bench.restorer()
    try:
        restorer.add(TASK, [(store, bench.changelog())])
        restorer.add(TaskId(0, 1), [(lost, gone.changelog())])
        with monkeypatch.context() as patch:
            patch.setattr(LogReader, "poll", together)
            with pytest.raises(TaskCorruptedError) as corrupted:
                wait_until(lambda: restorer.step(0.1), what="the position that is gone")
        assert corrupted.value.tasks == {TaskId(0, 1)}
        finish(restorer)
    finally:
        restorer.close()
    assert len(content(store)) == 10
