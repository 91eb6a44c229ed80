"""KIP-116 in a whole client, with a clock that the test advances: stores are flushed and `.checkpoint` is written at the interval, not
before."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from penstock import serdes
from penstock.runtime.changelog.checkpoint import read_checkpoint
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.coordination.coordination import Coordination, Instruction
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.kafka import log_reader
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.metrics import STATE
from penstock.runtime.model.states import State
from penstock.runtime.stores.budget import MIB
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.stores.rocks import RocksStore
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker import committer
from penstock.runtime.worker.queries import IsolationLevel, StoreQueryParameters
from tests.broker.test_queries import hold_restores
from tests.support import Kafka, wait_until
from tests.support.engine import client, counts_become, reaches, running

FIVE_MINUTES = 300_000
TEXT = Consumed(serdes.STRING, value=serdes.STRING)


class ShiftedClock(SystemClock):
    """The machine's clock, `ahead` ms ahead."""

    __slots__ = ("ahead",)

    def __init__(self) -> None:
        self.ahead = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the flushes of each store, by name."""
    counted: Counter[str] = Counter()
    flush = RocksStore.flush

    def counting(store: RocksStore) -> None:
        counted[store._path.name] += 1
        flush(store)

    monkeypatch.setattr(RocksStore, "flush", counting)
    return counted


def topology(words: str, airports: str, counted: str) -> Topology:
    """Return a topology with a count and a global table."""
    builder = StreamsBuilder()
    counts = builder.stream(words, TEXT).group_by_key().count(Materialized("counts"))
    counts.to_stream().to(counted, Produced(serdes.STRING, value=serdes.LONG))
    builder.global_table(airports, TEXT, Materialized("airports"))
    return builder.build()


@contextmanager
def shifted(
    broker: Kafka, topology: Topology, application_id: str, state_dir: Path, clock: ShiftedClock, **settings: object
) -> Iterator[KafkaStreams]:
    config = client(broker, topology, application_id, state_dir, **settings).config
    with KafkaStreams(topology, config, clock=clock) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        yield streams


def test_active_and_global_stores_are_flushed_at_the_interval_and_not_before(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path, flushes: Counter[str]
) -> None:
    words, counted, airports = topic("words"), topic("counted"), topic("airports", config={"cleanup.policy": "compact"})
    broker.produce(airports, [("EWR", "Newark")], partition=0)
    task, everywhere = state_dir / application_id / "0_0", state_dir / application_id / "global"
    changelog = TopicPartition(f"{application_id}-counts-changelog", 0)
    clock = ShiftedClock()
    made = topology(words, airports, counted)
    with shifted(broker, made, application_id, state_dir, clock) as streams:
        for number in range(1, 4):  # several commits
            broker.produce(words, [("a", "1")], partition=0)
            counts_become(broker, counted, {"a": number})
        clock.ahead += FIVE_MINUTES * 2 // 3
        broker.produce(words, [("a", "1")], partition=0)
        counts_become(broker, counted, {"a": 4})
        assert not flushes and not (task / ".checkpoint").exists() and not (everywhere / ".checkpoint").exists()
        clock.ahead += FIVE_MINUTES // 3
        broker.produce(words, [("a", "1")], partition=0)
        wait_until(lambda: flushes["counts"] and flushes["airports"], 20, "the flush")
        wait_until((everywhere / ".checkpoint").exists, 20, "the file")
        first = read_checkpoint(task)[changelog]
        assert first is not None and read_checkpoint(everywhere) == {TopicPartition(airports, 0): 1}
        broker.produce(words, [("a", "1")], partition=0)
        counts_become(broker, counted, {"a": 6})
        assert flushes == {"counts": 1, "airports": 1}
        assert streams.state is State.RUNNING
    assert flushes == {"counts": 2, "airports": 2}, "once more at a clean close"
    last = read_checkpoint(task)[changelog]
    assert last is not None and last > first


def test_a_checkpoint_waits_for_a_commit(
    broker: Kafka,
    topic: Callable[..., str],
    application_id: str,
    state_dir: Path,
    flushes: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KIP-116: only what is committed is saved, so the commit interval is the least one."""
    words, counted, airports = topic("words"), topic("counted"), topic("airports", config={"cleanup.policy": "compact"})
    monkeypatch.setattr(committer, "EVENTS_WAIT_MS", 4 * FIVE_MINUTES)
    clock, task = ShiftedClock(), state_dir / application_id / "0_0"
    settings: dict[str, object] = {"commit.interval.ms": 2 * FIVE_MINUTES, "processing.guarantee": "at_least_once"}
    with shifted(broker, topology(words, airports, counted), application_id, state_dir, clock, **settings) as streams:
        broker.produce(words, [("a", "1")], partition=0)
        uncommitted = StoreQueryParameters("counts", isolation_level=IsolationLevel.READ_UNCOMMITTED)
        wait_until(lambda: streams.store(uncommitted).get("a") == 1, what="the record")
        clock.ahead += FIVE_MINUTES + 1
        for _ in range(10):
            streams.all_local_store_partition_lags()  # a turn of the worker
        assert not flushes and not (task / ".checkpoint").exists(), "the interval has passed, without a commit"
        clock.ahead += FIVE_MINUTES
        wait_until((task / ".checkpoint").exists, what="the file, after the commit")
        assert read_checkpoint(task)[TopicPartition(f"{application_id}-counts-changelog", 0)] == 1


def test_a_worker_that_waits_for_its_first_tasks_saves_global_stores_at_the_commit_interval(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path, flushes: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits nothing, so a commit stays due."""
    words, counted, airports = topic("words"), topic("counted"), topic("airports", config={"cleanup.policy": "compact"})
    broker.produce(airports, [("EWR", "Newark")], partition=0)
    turns, may_join, poll = Counter[str](), Event(), Coordination.poll

    def held(coordination: Coordination) -> list[Instruction]:
        turns["turn"] += 1
        return poll(coordination) if may_join.is_set() else []

    monkeypatch.setattr(Coordination, "poll", held)
    clock = ShiftedClock()
    settings = {"statestore.checkpoint.interval.ms": 0, "commit.interval.ms": FIVE_MINUTES}
    made = topology(words, airports, counted)
    with KafkaStreams(made, client(broker, made, application_id, state_dir, **settings).config, clock=clock) as streams:
        streams.start()
        wait_until(lambda: turns["turn"], what="a turn")
        clock.ahead += FIVE_MINUTES
        wait_until(lambda: flushes["airports"], what="a checkpoint")
        before = turns["turn"]
        wait_until(lambda: turns["turn"] >= before + 20, what="more turns")
        assert flushes == {"airports": 1} and streams.state is not State.RUNNING
        may_join.set()
        reaches(streams, State.RUNNING)


def test_an_interval_of_0_means_each_commit(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path, flushes: Counter[str]
) -> None:
    words, counted, airports = topic("words"), topic("counted"), topic("airports", config={"cleanup.policy": "compact"})
    settings: dict[str, object] = {"statestore.checkpoint.interval.ms": 0}
    with running(broker, topology(words, airports, counted), application_id, state_dir, **settings):
        for number in range(1, 4):
            broker.produce(words, [("a", "1")], partition=0)
            counts_become(broker, counted, {"a": number})
            wait_until(lambda number=number: flushes["counts"] >= number, 10, "the flush of this commit")  # type: ignore[misc]  # a default argument


def test_a_task_that_is_being_restored_is_flushed_at_the_interval_too(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, counted, airports = topic("words"), topic("counted"), topic("airports", config={"cleanup.policy": "compact"})
    made, task = topology(words, airports, counted), state_dir / application_id / "0_0"
    broker.produce(words, [(f"k{n}", "1") for n in range(1_000)], partition=0)
    with running(broker, made, application_id, state_dir):
        wait_until(lambda: broker.committed_offsets(application_id, words).get(0) == 1_000, what="the commit")
    changelog = TopicPartition(f"{application_id}-counts-changelog", 0)
    end = read_checkpoint(task)[changelog]
    shutil.rmtree(task)
    go_on = hold_restores(monkeypatch)
    monkeypatch.setattr(log_reader, "_MOST_PER_POLL", 50)
    clock = ShiftedClock()
    with KafkaStreams(made, client(broker, made, application_id, state_dir).config, clock=clock) as streams:
        streams.start()
        reaches(streams, State.RESTORING)
        wait_until(lambda: streams.store(StoreQueryParameters("counts").enable_stale_stores()).approximate_num_entries(), what="a part")
        assert not (task / ".checkpoint").exists(), "the interval has not passed"
        clock.ahead += FIVE_MINUTES
        wait_until((task / ".checkpoint").exists, what="the file")
        assert streams.state is State.RESTORING
        so_far = read_checkpoint(task)[changelog]
        assert so_far is not None and end is not None and 0 < so_far < end
        go_on.set()
        reaches(streams, State.RUNNING)


def test_an_open_task_is_locked_and_the_cleaner_leaves_it(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path
) -> None:
    words, counted, airports = topic("words"), topic("counted"), topic("airports", config={"cleanup.policy": "compact"})
    directory = StateDirectory(state_dir, application_id)
    with running(broker, topology(words, airports, counted), application_id, state_dir):
        assert directory.clean(set(), 0, 1 << 60) == [], "as a worker in another process would"
        assert directory.tasks_on_disk() == [TaskId(0, 0)]
    assert directory.clean(set(), 0, 1 << 60) == [TaskId(0, 0)]


def test_memory_is_configured_and_reported(
    broker: Kafka,
    topic: Callable[..., str],
    application_id: str,
    state_dir: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words, counted, airports = topic("words"), topic("counted"), topic("airports", config={"cleanup.policy": "compact"})
    caplog.set_level(logging.INFO)
    settings: dict[str, object] = {
        "rocksdb.block.cache.bytes": 24 * MIB,
        "rocksdb.write.buffer.bytes": 12 * MIB,
        "statestore.read.cache.max.bytes": 3 * MIB,
        "statestore.cache.max.bytes": 2 * MIB,
    }
    with running(broker, topology(words, airports, counted), application_id, state_dir, **settings) as streams:
        broker.produce(words, [("a", "1")], partition=0)
        counts_become(broker, counted, {"a": 1})
        found = {name.name: value for name, value in streams.metrics().items() if name.group == STATE}
    assert found["block-cache-capacity"] == 24 * MIB
    assert found["write-buffer-capacity"] == 12 * MIB
    assert found["record-cache-capacity"] == 2 * MIB
    assert found["read-cache-capacity"] == 3 * MIB
    assert found["process-resident-bytes"] > found["process-other-bytes"] > 0
    assert found["restore-buffer-capacity"] == 16 * MIB, "the least there is"
    assert 0 < found["size-all-mem-tables"] <= found["block-cache-usage"] <= 24 * MIB
    assert "block cache 24.0 MiB, of which write buffers at most 12.0 MiB; record caches 2.0 MiB, read caches 3.0 MiB" in caplog.text


def test_a_file_that_is_no_longer_true_is_removed_when_a_store_begins_from_nothing(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path
) -> None:
    """Otherwise a kill during the restore would leave the file, and the next start would report a complete task."""
    words, counted, airports = topic("words"), topic("counted"), topic("airports", config={"cleanup.policy": "compact"})
    made = topology(words, airports, counted)
    task = state_dir / application_id / "0_0"
    with running(broker, made, application_id, state_dir):
        broker.produce(words, [("a", "1")], partition=0)
        counts_become(broker, counted, {"a": 1})
        assert not (task / ".checkpoint").exists(), "the interval has not passed"
    assert read_checkpoint(task)
    with running(broker, made, application_id, state_dir):
        assert (task / ".checkpoint").exists(), "true as long as the store is what it was"
    shutil.rmtree(task / "rocksdb")
    with running(broker, made, application_id, state_dir):
        assert not (task / ".checkpoint").exists()
        broker.produce(words, [("a", "1")], partition=0)
        counts_become(broker, counted, {"a": 2})
    assert read_checkpoint(task)


def test_a_clean_close_whose_checkpoint_fails_leaves_nothing_open(
    broker: Kafka, topic: Callable[..., str], application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, counted, airports = topic("words"), topic("counted"), topic("airports", config={"cleanup.policy": "compact"})
    made = topology(words, airports, counted)

    def refuse(*_: object) -> None:
        raise StateDirectoryError("no room for a checkpoint")

    with running(broker, made, application_id, state_dir):
        broker.produce(words, [("a", "1")], partition=0)
        counts_become(broker, counted, {"a": 1})
        monkeypatch.setattr("penstock.runtime.tasks.plan.write_checkpoint", refuse)
    monkeypatch.undo()
    with running(broker, made, application_id, state_dir):
        broker.produce(words, [("a", "1")], partition=0)
        counts_become(broker, counted, {"a": 2})
