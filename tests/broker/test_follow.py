"""Standbys and learners: stores that follow their changelogs, on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.runtime.changelog.listeners import SuspendReason
from penstock.runtime.changelog.restore import Restorer
from penstock.runtime.changelog.staleness import Changelog
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.deserialization import Decoder
from penstock.runtime.kafka.log_reader import LogReader, Poll
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicWatch
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.errors import MissingSourceTopicError, TaskCorruptedError
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.serdes import STRING
from tests.support import Kafka, wait_until
from tests.support.engine import client, count_topology, counts_become
from tests.support.logs import cut, open_transaction, recreate_topic, transaction

TASK, OTHER = TaskId(0, 0), TaskId(0, 1)
COMPACT = {"cleanup.policy": "compact"}
DAY_MS = 86_400_000


@dataclass
class Listener:
    """A `StandbyUpdateListener` that keeps its calls."""

    calls: list[tuple[object, ...]] = field(default_factory=list)

    def on_update_start(self, partition: TopicPartition, store: str, start: int) -> None:
        self.calls.append(("start", store, start))

    def on_batch_loaded(self, partition: TopicPartition, store: str, task: TaskId, batch_end: int, records: int, end: int) -> None:
        self.calls.append(("batch", store, task, batch_end, records))

    def on_update_suspended(self, partition: TopicPartition, store: str, offset: int, end: int, reason: SuspendReason) -> None:
        self.calls.append(("suspended", store, offset, end, reason))


class Later(SystemClock):
    """The machine's clock, which can be advanced."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


@dataclass
class Copies:
    """Stores, their changelogs, and one restorer for all of them."""

    kafka: Kafka
    folder: Path
    clock: Later = field(default_factory=Later)
    listener: Listener = field(default_factory=Listener)

    def __post_init__(self) -> None:
        self._topics = TopicAdmin(StreamsConfig({"application.id": "app", "bootstrap.servers": self.kafka.bootstrap_servers}))
        self._stores: list[EngineStore] = []
        self.committed: int | None = None
        """If set, topics are source topics, and this number of records was processed."""
        self.restorer = Restorer(
            {"bootstrap.servers": self.kafka.bootstrap_servers},
            self.clock,
            Metrics(),
            EventSink("app", "instance", self.clock),
            standby_listeners=[self.listener],
            describe=lambda partitions: {each: self.changelog(each.topic) for each in partitions},
        )

    def changelog(self, topic: str) -> Changelog:
        partition = TopicPartition(topic, 0)
        facts = self._topics.describe([topic]).get(topic)
        if facts is None:
            raise MissingSourceTopicError(topic)
        end = self._topics.high_watermarks([partition])[partition]
        if self.committed is not None:
            return Changelog(partition, NextOffset(self.committed), facts.topic_id, None, lambda: Decoder(topic, STRING, STRING))
        return Changelog(partition, end, facts.topic_id, facts.delete_retention_ms)

    def open(self, task: TaskId, topic: str) -> EngineStore:
        builder = Stores.key_value_store_builder(Stores.persistent_key_value_store("counts"), STRING, STRING)
        store = builder.build()
        folder = self.folder / str(task)
        store.open(folder, StoreContext("app", folder, task, TopicPartition(topic, 0)))
        self._stores.append(store)
        return store

    def follow(self, topic: str, task: TaskId = TASK) -> EngineStore:
        store = self.open(task, topic)
        self.restorer.follow(task, [(store, self.changelog(topic))])
        return store

    def until(self, condition: Callable[[], object], what: str, timeout: float = 30.0) -> list[TaskId]:
        """Step until the condition holds; return the tasks that became complete meanwhile."""
        done: list[TaskId] = []

        def stepped() -> object:
            done.extend(self.restorer.step(0.02))
            return condition()

        wait_until(stepped, timeout, what)
        return done

    def close(self) -> None:
        self.restorer.close()
        for store in self._stores:
            store.close()


@pytest.fixture
def copies(broker: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copies]:
    monkeypatch.setattr("penstock.runtime.changelog.restore.POLL_SECONDS", 0.2)
    copies = Copies(broker, tmp_path)
    yield copies
    copies.close()


def content(store: EngineStore) -> dict[object, object]:
    return dict(store.query_view().all())


def test_a_follower_applies_what_is_written_and_is_never_complete(copies: Copies, topic: Callable[..., str]) -> None:
    name = topic("changelog", config=COMPACT)
    copies.kafka.produce(name, [("a", "1"), ("b", "1")], partition=0)
    store = copies.follow(name)
    assert copies.restorer.following == {TASK} and not copies.restorer.restoring
    done = copies.until(lambda: content(store) == {"a": "1", "b": "1"}, "the first records")
    copies.kafka.produce(name, [("a", "2"), ("b", None), ("c", "1")], partition=0)
    done += copies.until(lambda: content(store) == {"a": "2", "c": "1"}, "the next records")
    assert done == []
    assert store.committed_offset(TopicPartition(name, 0)) == 5
    copies.restorer.remove(TASK, promoted=True)
    assert copies.restorer.following == frozenset()
    calls = copies.listener.calls
    assert calls[0] == ("start", "counts", 0)
    assert calls[1] == ("batch", "counts", TASK, 1, 2)
    assert calls[-1] == ("suspended", "counts", 4, 5, SuspendReason.PROMOTED)


def test_a_follower_that_becomes_active_is_read_on_to_the_end_as_it_was_then(copies: Copies, topic: Callable[..., str]) -> None:
    """The store stays open, no record is read twice, and the other followers are read meanwhile."""
    name, other = topic("changelog", config=COMPACT), topic("changelog", config=COMPACT)
    copies.kafka.produce(name, [("a", "1")], partition=0)
    store, beside = copies.follow(name), copies.follow(other, OTHER)
    copies.until(lambda: content(store) == {"a": "1"}, "the first record")
    copies.kafka.produce(name, [("a", "2"), ("b", "1")], partition=0)
    copies.restorer.promote(TASK, [(store, copies.changelog(name))])
    assert copies.restorer.following == {OTHER} and copies.restorer.restoring == {TASK}
    done = copies.until(lambda: not copies.restorer.restoring, "its end")
    assert done == [TASK]
    assert content(store) == {"a": "2", "b": "1"}
    assert store.committed_offset(TopicPartition(name, 0)) == 3
    copies.kafka.produce(name, [("a", "3")], partition=0)
    copies.kafka.produce(other, [("x", "1")], partition=0)
    copies.until(lambda: content(beside) == {"x": "1"}, "the other, which continues")
    assert content(store) == {"a": "2", "b": "1"}, "it reads on after its end"
    assert ("suspended", "counts", 0, 1, SuspendReason.PROMOTED) in copies.listener.calls


def test_a_follower_of_a_source_topic_goes_as_far_as_is_committed(copies: Copies, topic: Callable[..., str]) -> None:
    """Later records are input: if the table already had them, the active task would not forward the change."""
    name, beside = topic("source", config=COMPACT), topic("changelog", config=COMPACT)
    copies.kafka.produce(name, [("a", "1"), ("b", b"\xff"), ("b", "1"), ("a", "2"), ("c", "1")], partition=0)
    copies.kafka.produce(beside, [("x", "1")], partition=0)
    other = copies.follow(beside, OTHER)
    copies.committed = 2
    store = copies.follow(name)
    copies.until(lambda: content(other) == {"x": "1"} and content(store) == {"a": "1"}, "what is committed")
    assert store.committed_offset(TopicPartition(name, 0)) == 2
    assert copies.restorer.lag(TASK) == 0
    copies.committed = 4
    copies.until(lambda: content(store) == {"a": "2", "b": "1"}, "what was committed since")
    assert store.committed_offset(TopicPartition(name, 0)) == 4
    copies.committed = 5
    copies.restorer.promote(TASK, [(store, copies.changelog(name))])
    assert copies.until(lambda: not copies.restorer.restoring, "its end") == [TASK]
    assert content(store) == {"a": "2", "b": "1", "c": "1"}


def test_a_follower_at_the_end_is_active_at_once(copies: Copies, topic: Callable[..., str]) -> None:
    name = topic("changelog", config=COMPACT)
    copies.kafka.produce(name, [("a", "1")], partition=0)
    store = copies.follow(name)
    copies.until(lambda: content(store) == {"a": "1"}, "the record")
    copies.restorer.promote(TASK, [(store, copies.changelog(name))])
    assert copies.restorer.step(0) == [TASK]


def test_a_follower_of_a_recreated_changelog_is_restored_from_its_start(copies: Copies, topic: Callable[..., str]) -> None:
    name = topic("changelog", config=COMPACT)
    copies.kafka.produce(name, [("a", "1"), ("b", "1")], partition=0)
    store = copies.follow(name)
    copies.until(lambda: content(store) == {"a": "1", "b": "1"}, "the records")
    recreate_topic(copies.kafka, name, 1, COMPACT)
    copies.kafka.produce(name, [("c", "1")], partition=0)
    copies.restorer.promote(TASK, [(store, copies.changelog(name))])
    copies.until(lambda: not copies.restorer.restoring, "its end")
    assert content(store) == {"c": "1"}


def test_a_follower_continues_where_its_store_was(copies: Copies, topic: Callable[..., str]) -> None:
    name = topic("changelog", config=COMPACT)
    copies.kafka.produce(name, [("a", "1"), ("b", "1")], partition=0)
    store = copies.open(TASK, name)
    store.restore([(b"a", b"kept", 1)], {TopicPartition(name, 0): NextOffset(1)})
    copies.restorer.follow(TASK, [(store, copies.changelog(name))])
    copies.until(lambda: content(store) == {"a": "kept", "b": "1"}, "the second record alone")
    assert copies.listener.calls[0] == ("start", "counts", 1)


def test_its_lag_is_known_before_it_has_read_and_follows_the_log(copies: Copies, topic: Callable[..., str]) -> None:
    name = topic("changelog", config=COMPACT)
    copies.kafka.produce(name, [("a", str(n)) for n in range(10)], partition=0)
    assert copies.restorer.lag(TASK) is None
    store = copies.follow(name)
    assert copies.restorer.lag(TASK) == 10
    copies.until(lambda: copies.restorer.lag(TASK) == 0, "lag 0")
    copies.kafka.produce(name, [("a", "more")], partition=0)
    copies.until(lambda: content(store) == {"a": "more"} and copies.restorer.lag(TASK) == 0, "lag 0 again")
    (progress,) = copies.restorer.progress()
    assert progress.follows and (progress.position, progress.end) == (11, 11)


def test_markers_and_an_aborted_tail_leave_no_lag(copies: Copies, topic: Callable[..., str]) -> None:
    name = topic("changelog", config=COMPACT)
    transaction(copies.kafka, name, [("a", "1")])
    store = copies.follow(name)
    copies.until(lambda: copies.restorer.lag(TASK) == 0, "the marker")
    transaction(copies.kafka, name, [("a", "aborted")], commit=False)
    copies.until(lambda: store.committed_offset(TopicPartition(name, 0)) == 4, "the end of the aborted tail")
    assert content(store) == {"a": "1"} and copies.restorer.lag(TASK) == 0


def test_what_is_not_committed_is_not_applied_and_counts_as_lag(
    copies: Copies, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is that of the last fetch: it takes no request to the broker."""
    monkeypatch.setattr(TopicWatch, "take", lambda watch: None)
    name = topic("changelog", config=COMPACT)
    copies.kafka.produce(name, [("a", "1")], partition=0)
    store = copies.follow(name)
    copies.until(lambda: content(store) == {"a": "1"} and copies.restorer.lag(TASK) == 0, "what is committed")
    producer = open_transaction(copies.kafka, name, [("a", "2")])
    copies.until(lambda: copies.restorer.lag(TASK) == 1, "the lag")
    assert content(store) == {"a": "1"}
    producer.commit_transaction(30)
    copies.until(lambda: content(store) == {"a": "2"} and copies.restorer.lag(TASK) == 0, "the transaction")


def test_followers_wait_for_an_active_restore(copies: Copies, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    followed, restored = topic("followed", config=COMPACT), topic("restored", config=COMPACT)
    copies.kafka.produce(followed, [("a", "1")], partition=0)
    copies.kafka.produce(restored, [("b", "1")], partition=0)
    producer = open_transaction(copies.kafka, restored, [("b", "2")])  # the restore waits for it
    copy = copies.follow(followed)
    copies.until(lambda: content(copy) == {"a": "1"}, "the follower")
    store = copies.open(OTHER, restored)
    copies.restorer.add(OTHER, [(store, copies.changelog(restored))])
    copies.kafka.produce(followed, [("a", "2")], partition=0)
    for _ in range(25):
        assert copies.restorer.step(0.02) == []
    assert content(copy) == {"a": "1"} and copies.restorer.restoring == {OTHER}
    copies.until(lambda: copies.restorer.lag(TASK) == 1, "the lag of a follower that waits")
    producer.commit_transaction(30)
    done = copies.until(lambda: content(copy) == {"a": "2"}, "the follower again")
    assert done == [OTHER] and content(store) == {"b": "2"}


def test_a_batch_is_not_kept_longer_than_a_moment(copies: Copies, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A promotion reads unwritten records again: they must be few, also while new records arrive continuously."""
    name = topic("changelog", config=COMPACT)
    now = [1_000]
    monkeypatch.setattr(copies.clock, "monotonic_ms", lambda: now[0])
    copies.kafka.produce(name, [("a", "1")], partition=0)
    store = copies.follow(name)
    copies.until(lambda: copies.restorer.lag(TASK) == 0, "the record")
    assert content(store) == {}
    now[0] += 199
    copies.restorer.step(0)
    assert content(store) == {}
    now[0] += 1
    copies.restorer.step(0)
    assert content(store) == {"a": "1"}


def test_a_client_notifies_its_listener_of_its_standbys(
    broker: Kafka, topic: Callable[..., str], application_id: str, tmp_path: Path
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("b", "1")])
    listener = Listener()
    clients = [
        client(broker, count_topology(source, output), application_id, tmp_path / name, **{"client.id": name, "num.standby.replicas": 1})
        for name in ("one", "two")
    ]
    clients[1].set_standby_update_listener(listener)
    with clients[0] as first, clients[1] as second:
        first.start()
        counts_become(broker, output, {"a": 1, "b": 1})
        second.start()
        wait_until(lambda: sum(int(str(call[4])) for call in listener.calls if call[0] == "batch") == 2, 60, "both records at the standby")
        assert listener.calls[0] == ("start", "counts", 0)
        first.close(20_000)
        wait_until(lambda: listener.calls[-1][0] == "suspended", 60, "the promotion")
    assert listener.calls[-1][-1] is SuspendReason.PROMOTED


# --- state that a follower may keep -------------------------------------------------------------------------------------------------


def test_a_log_that_is_cut_past_a_follower_is_a_corrupted_task(copies: Copies, topic: Callable[..., str]) -> None:
    name = topic("changelog", config={"cleanup.policy": "compact,delete"})
    copies.kafka.produce(name, [("a", str(n)) for n in range(10)], partition=0)
    cut(copies.kafka, name, 8)
    store = copies.open(TASK, name)
    store.commit({TopicPartition(name, 0): NextOffset(4)})
    copies.restorer.follow(TASK, [(store, copies.changelog(name))])
    with pytest.raises(TaskCorruptedError, match=r"offset 4 of .* no longer there") as raised:
        copies.until(lambda: False, "the error")
    assert raised.value.tasks == {TASK} and copies.restorer.following == frozenset()
    store.wipe()
    copies.restorer.follow(TASK, [(store, copies.changelog(name))])
    copies.until(lambda: content(store) == {"a": "9"}, "the follower, restored from scratch")


def test_a_topic_recreated_under_a_follower_is_a_corrupted_task(copies: Copies, topic: Callable[..., str]) -> None:
    name, other = topic("changelog", config=COMPACT), topic("other", config=COMPACT)
    copies.kafka.produce(name, [("gone", "1")], partition=0)
    copies.follow(name)
    neighbour = copies.follow(other, OTHER)
    copies.until(lambda: copies.restorer.lag(TASK) == 0, "the end")
    recreate_topic(copies.kafka, name, config=COMPACT)
    copies.kafka.produce(name, [("a", "1"), ("a", "2")], partition=0)
    with pytest.raises(TaskCorruptedError, match="deleted and created again") as raised:
        copies.until(lambda: False, "the error")
    assert raised.value.tasks == {TASK} and copies.restorer.following == {OTHER}
    copies.kafka.produce(other, [("b", "1")], partition=0)
    copies.until(lambda: content(neighbour) == {"b": "1"}, "the neighbour")


def test_a_topic_recreated_during_a_restore_is_a_corrupted_task(copies: Copies, topic: Callable[..., str]) -> None:
    name = topic("changelog", config=COMPACT)
    copies.kafka.produce(name, [("gone", "1")], partition=0)
    producer = open_transaction(copies.kafka, name, [("gone", "2")])  # the restore waits for it
    store = copies.open(TASK, name)
    copies.restorer.add(TASK, [(store, copies.changelog(name))])
    copies.until(lambda: copies.restorer.progress()[0].position == 1, "the first record")
    producer.abort_transaction(30)
    recreate_topic(copies.kafka, name, config=COMPACT)
    copies.kafka.produce(name, [("a", "1")], partition=0)
    with pytest.raises(TaskCorruptedError, match="deleted and created again"):
        copies.until(lambda: False, "the error")
    store.wipe()
    copies.restorer.add(TASK, [(store, copies.changelog(name))])
    assert copies.until(lambda: not copies.restorer.restoring, "the end") == [TASK]
    assert content(store) == {"a": "1"}


def test_a_follower_cut_off_for_longer_than_delete_retention_is_a_corrupted_task(
    copies: Copies, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic("changelog", config=COMPACT)
    copies.kafka.produce(name, [("a", "1")], partition=0)
    store = copies.follow(name)
    begun = store.get_meta("at.end.ms")
    copies.until(lambda: store.get_meta("at.end.ms") != begun, "a time at which it was at the end")
    monkeypatch.setattr(LogReader, "poll", lambda reader, timeout: Poll())  # no broker answers
    monkeypatch.setattr(TopicWatch, "take", lambda watch: None)
    copies.restorer.step(0)
    copies.clock.ahead_ms = DAY_MS + 60_000
    copies.kafka.produce(name, [("a", "2")], partition=0)
    monkeypatch.undo()
    with pytest.raises(TaskCorruptedError, match=r"delete\.retention\.ms"):
        copies.until(lambda: False, "the error")
