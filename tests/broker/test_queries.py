"""Interactive queries of a running client: committed data only, under load, during restores, from other threads."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock import (
    Consumed,
    KafkaStreams,
    KeyValueStore,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    StoreQueryParameters,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
)
from penstock.runtime.changelog import restore
from penstock.runtime.changelog.folding import FoldedBatch
from penstock.runtime.changelog.restore import Restorer
from penstock.runtime.commit.exactly_once import ExactlyOnce
from penstock.runtime.kafka import log_reader
from penstock.runtime.kafka.log_reader import LogReader, Poll
from penstock.runtime.model.errors import InvalidStateStoreError, TransactionAbortedError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.states import State
from penstock.runtime.serdes.serde import Serde
from tests.broker.test_commit import fail_some_commits
from tests.support import Kafka, wait_until
from tests.support.engine import client, reaches, running

Topic = Callable[..., str]
KEYS = [f"k{n:02d}" for n in range(30)]


class SetAll(Processor):
    """Sets every key to the record's number, one after the other: meanwhile they differ."""

    def init(self, context: ProcessorContext) -> None:
        self._store = cast(KeyValueStore, context.get_state_store("numbers"))

    def process(self, record: Record) -> None:
        for key in KEYS:
            self._store.put(key, int(str(record.value)))


def numbers(source: str) -> Topology:
    """Return a topology that keeps the number of the last record under every key."""
    return _with_store(source, SetAll, "numbers", serdes.LONG)


def _with_store(source: str, processor: type[Processor], store: str, value: Serde) -> Topology:
    builder = Stores.key_value_store_builder(Stores.persistent_key_value_store(store), serdes.STRING, value)
    topology = Topology().add_source("source", source, key_serde=serdes.STRING, value_serde=serdes.STRING)
    return topology.add_processor("processor", processor, "source").add_state_store(builder, "processor")


def test_a_query_never_sees_what_is_not_committed(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third transaction is aborted. A visible number is one whose record is committed, and all keys have it."""
    source = topic("in")
    fail_some_commits(monkeypatch, ExactlyOnce, TransactionAbortedError("for the test"), every=3)
    wrong: list[object] = []
    seen: set[object] = set()
    stop = threading.Event()
    with running(broker, numbers(source), application_id, state_dir) as streams:

        def read() -> None:
            while not stop.is_set():
                try:
                    store = streams.store("numbers")
                    found = {value for _, value in store.all()} | {value for _, value in store.range("k05", "k07")}
                    if len({value for _, value in store.all()}) > 1:
                        wrong.append(found)
                    number = store.get("k29")
                except InvalidStateStoreError:
                    continue
                if number is None or number in seen:
                    continue
                seen.add(number)
                committed = sum(broker.committed_offsets(application_id, source, stable=True).values())
                if cast(int, number) > committed:
                    wrong.append((number, committed))

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            for number in range(1, 2_001, 50):
                broker.produce(source, [("k", str(n)) for n in range(number, number + 50)])
            wait_until(lambda: sum(broker.committed_offsets(application_id, source).values()) == 2_000, 60, "the last commit")
            wait_until(lambda: 2_000 in seen, 20, "the last number")
        finally:
            stop.set()
            for reader in readers:
                reader.join()
        assert streams.failure is None
    assert wrong == [] and len(seen) > 2


def hold_restores(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make a restore stop after its first write, until the event is set."""
    go_on, real, read = threading.Event(), Restorer.step, set[int]()

    def step(self: Restorer, timeout: float) -> list[TaskId]:
        if id(self) in read and not go_on.is_set():
            return []
        complete = real(self, timeout)
        if any(progress.records for progress in self.progress()):
            read.add(id(self))
        return complete

    monkeypatch.setattr(Restorer, "step", step)
    monkeypatch.setattr(restore, "_STEP_MS", 0)
    monkeypatch.setattr(FoldedBatch, "is_due", lambda self, *limits: self.records > 0)
    return go_on


class Count(Processor):
    """Keeps each record."""

    def init(self, context: ProcessorContext) -> None:
        self._store = cast(KeyValueStore, context.get_state_store("rows"))

    def process(self, record: Record) -> None:
        self._store.put(record.key, record.value)


def rows(source: str) -> Topology:
    """Return a topology with a table of the source."""
    return _with_store(source, Count, "rows", serdes.STRING)


def test_a_store_that_is_restored_is_refused_unless_stale_parts_were_asked_for(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = topic("in")
    broker.produce(source, [(f"k{n:05d}", "v") for n in range(60_000)])
    with running(broker, rows(source), application_id, state_dir) as streams:
        wait_until(lambda: sum(broker.committed_offsets(application_id, source).values()) == 60_000, what="the last commit")
        before = streams.store("rows")
    with pytest.raises(InvalidStateStoreError):
        before.get("k00000")
    shutil.rmtree(state_dir / application_id)
    go_on = hold_restores(monkeypatch)
    with client(broker, rows(source), application_id, state_dir) as streams:
        streams.start()
        reaches(streams, State.RESTORING)
        stale = streams.store(StoreQueryParameters("rows").enable_stale_stores())
        wait_until(lambda: next(stale.all(), None), what="a first part")
        with pytest.raises(InvalidStateStoreError, match=r"still being restored \(0_0\).*enable_stale_stores"):
            streams.store("rows")
        first = len(list(stale.all()))
        assert 0 < first < 60_000 and stale.get("k00000") == "v" and stale.get("k59999") is None
        with pytest.raises(InvalidStateStoreError, match="not its partition 7"):
            streams.store(StoreQueryParameters("rows", partition=7, stale_stores=True))
        go_on.set()
        reaches(streams, State.RUNNING)
        assert len(list(stale.all())) == 60_000 == len(list(streams.store("rows").all()))
        assert streams.store(StoreQueryParameters("rows").with_partition(0)).get("k59999") == "v"


def hold_partition(monkeypatch: pytest.MonkeyPatch, number: int) -> threading.Event:
    """Restore only the first few records of changelog partitions with this number until the event is set; the others continue."""
    go_on, begun, held, real = threading.Event(), set[TopicPartition](), Poll(), LogReader.poll

    def poll(self: LogReader, timeout: float) -> Poll:
        found = real(self, timeout)
        if go_on.is_set():
            found.runs = {**found.runs, **{each: run + found.runs.get(each, []) for each, run in held.runs.items()}}
            found.ends = {**held.ends, **found.ends}
            held.runs, held.ends = {}, {}
            return found
        for each in [each for each in found.runs if each.partition == number]:
            if each in begun:
                held.runs[each] = held.runs.get(each, []) + found.runs.pop(each)
            begun.add(each)
        for each in [each for each in found.ends if each.partition == number]:
            held.ends[each] = found.ends.pop(each)
        return found

    monkeypatch.setattr(LogReader, "poll", poll)
    monkeypatch.setattr(log_reader, "_MOST_PER_POLL", 50)
    monkeypatch.setattr(FoldedBatch, "is_due", lambda self, *limits: self.records > 0)
    return go_on


WINDOW_MS, ROUNDS = 60_000, 3
BEGIN_MS = time.time_ns() // 1_000_000 // WINDOW_MS * WINDOW_MS
"""Start of the only window. It is recent, because brokers delete old records from a changelog of windows."""
WORDS = [f"k{n:04d}" for n in range(2_000)]


def counts(source: str) -> Topology:
    """Return a topology that counts per key, and per key and window."""
    builder = StreamsBuilder()
    grouped = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key()
    grouped.count(Materialized("counts"))
    grouped.windowed_by(TimeWindows.of_size_with_no_grace(WINDOW_MS)).count(Materialized("windows"))
    return builder.build()


class Reads:
    """Reads everything repeatedly, in threads, and keeps wrong results. A refusal is a valid result; other errors are not."""

    def __init__(self, streams: KafkaStreams) -> None:
        self._streams = streams
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(stale,)) for stale in (False, True)]
        self.wrong: list[object] = []
        self.whole = self.parts = self.refused = 0

    def __enter__(self) -> Reads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _read(self, stale: bool) -> None:
        while not self._stop.is_set():
            try:
                self._once(stale)
            except InvalidStateStoreError:
                self.refused += 1
            except Exception as error:  # noqa: BLE001 (the test reports it)
                self.wrong.append(error)

    def _once(self, stale: bool) -> None:
        found, windows = (self._streams.store(StoreQueryParameters(name, stale_stores=stale)) for name in ("counts", "windows"))
        rows = {key: value for key, value in found.all() if key in _WANTED}
        some = dict(found.range("k0100", "k0199"))
        word = WORDS[self.parts % len(WORDS)]
        fetched = list(cast(Iterator[tuple[int, object]], windows.fetch(word, 0, BEGIN_MS)))
        wanted = range(ROUNDS, ROUNDS + 1) if not stale else range(1, ROUNDS + 1)
        values = [*rows.values(), *some.values(), *(value for _, value in fetched)]
        if not all(value in wanted for value in values):
            self.wrong.append((stale, word, fetched, set(rows.values())))
        if not stale and (len(rows), len(some), len(fetched)) != (len(WORDS), 100, 1):
            self.wrong.append((len(rows), len(some), fetched))
        self.whole += not stale
        self.parts += stale and len(rows) < len(WORDS)


_WANTED = frozenset(WORDS)


def test_stores_are_read_without_end_while_one_task_is_restored_and_another_is_under_load(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query for whole partitions gets all of them, or a refusal; one that accepts stale data gets some. None blocks: the load is
    committed."""
    source = topic("in", partitions=2)
    broker.produce(source, [(word, "v") for word in WORDS] * ROUNDS, timestamps=[BEGIN_MS] * (ROUNDS * len(WORDS)))
    with running(broker, counts(source), application_id, state_dir):
        wait_until(lambda: sum(broker.committed_offsets(application_id, source).values()) == ROUNDS * len(WORDS), what="the last commit")
    shutil.rmtree(state_dir / application_id / "0_1")
    go_on = hold_partition(monkeypatch, 1)
    with client(broker, counts(source), application_id, state_dir) as streams, Reads(streams) as reads:
        streams.start()
        reaches(streams, State.RESTORING)
        before = broker.committed_offsets(application_id, source)[0]
        broker.produce(source, [("load", "v")] * 3_000, partition=0, timestamps=[BEGIN_MS] * 3_000)
        wait_until(lambda: broker.committed_offsets(application_id, source)[0] == before + 3_000, what="the load on the other task")
        wait_until(lambda: reads.parts > 3, what="reads of the part that is there")
        assert reads.whole == 0
        go_on.set()
        reaches(streams, State.RUNNING)
        wait_until(lambda: reads.whole > 3, what="reads of all")
        assert streams.failure is None
    assert reads.wrong == [] and reads.refused > 0
