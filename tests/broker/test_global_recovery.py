"""KIP-406 in a whole client: damage found at the start and during reads, consecutive recoveries, and no join with a partial table."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock import serdes
from penstock.orchestration.cli import app
from penstock.orchestration.kafka.observer import Observer
from penstock.runtime.changelog import progress
from penstock.runtime.commit.compare_and_set import Offsets
from penstock.runtime.commit.exactly_once import ExactlyOnce
from penstock.runtime.coordination.records import Member
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.kafka import log_reader
from penstock.runtime.kafka.log_reader import LogReader, Poll
from penstock.runtime.model.errors import InvalidStateStoreError, TransactionAbortedError
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.record import Record
from penstock.runtime.model.states import State
from penstock.runtime.operators.processor import Processor, ProcessorContext
from penstock.runtime.stores.key_value import StagedKeyValueStore
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.engine import (
    BAD,
    active_tasks,
    airport_names,
    client,
    counts_become,
    events_of_kind,
    on_worker,
    reaches,
    running,
    texts,
    texts_become,
    worker_of,
)

Topic = Callable[..., str]
COMPACT = {"cleanup.policy": "compact"}
TEXT = Consumed(serdes.STRING, value=serdes.STRING)


def flip(path: Path) -> None:
    """Flip one byte in the first block of entries of a store's files."""
    data = bytearray(path.read_bytes())
    data[len(data) // 8] ^= 0xFF
    path.write_bytes(data)


# -- damage ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def topics(topic: Topic) -> Iterator[tuple[str, str, str]]:
    yield topic("flights"), topic("airports", config=COMPACT), topic("out")


def fill(broker: Kafka, airports: str) -> None:
    broker.produce(airports, [(f"A{n:04d}", f"name {n} " + "x" * 200) for n in range(2000)], partition=0)


def damaged(broker: Kafka, topics: tuple[str, str, str], application_id: str, state_dir: Path) -> Topology:
    """Run the application with a full table, flip a byte in each of its files, and return the topology."""
    fill(broker, topics[1])
    topology = airport_names(*topics)
    for _ in range(2):  # the second start writes the first one's log to table files
        with running(broker, topology, application_id, state_dir):
            pass
    tables = list(state_dir.glob("*/global/rocksdb/airports/*.sst"))
    assert tables
    for path in tables:
        flip(path)
    return topology


def test_a_flipped_byte_that_a_join_finds_leads_to_a_rebuild_without_a_restart(
    broker: Kafka, topics: tuple[str, str, str], application_id: str, state_dir: Path
) -> None:
    """RocksDB verifies a block when it reads it: the start detects nothing."""
    flights, _, output = topics
    topology = damaged(broker, topics, application_id, state_dir)
    states: list[State] = []
    with client(broker, topology, application_id, state_dir) as streams:
        streams.set_state_listener(lambda new, old: states.append(new))
        streams.start()
        reaches(streams, State.RUNNING)
        assert events_of_kind(broker, application_id, EventKind.GLOBAL_RECOVERY_STARTED) == []
        broker.produce(flights, [("f", f"A{n:04d}") for n in range(0, 2000, 10)], partition=0)
        texts_become(broker, output, [f"A{n:04d}=name {n} " + "x" * 200 for n in range(0, 2000, 10)])
        assert streams.failure is None
    [started] = events_of_kind(broker, application_id, EventKind.GLOBAL_RECOVERY_STARTED)
    assert "damaged" in str(started.payload["reason"]) and "Corruption" in str(started.payload["reason"])
    assert started.payload["attempt"] == 1
    assert [event.payload["records"] for event in events_of_kind(broker, application_id, EventKind.GLOBAL_RECOVERY_ENDED)] == [2000]
    assert State.RESTORING in states[states.index(State.RUNNING) :]


@pytest.mark.parametrize("damage", ["a truncated MANIFEST", "a truncated table", "no CURRENT"])
def test_damaged_files_are_found_at_the_start(
    broker: Kafka, topics: tuple[str, str, str], application_id: str, state_dir: Path, damage: str
) -> None:
    flights, airports, output = topics
    fill(broker, airports)
    topology = airport_names(*topics)
    for _ in range(2):
        with running(broker, topology, application_id, state_dir):
            pass
    folder = next(state_dir.glob("*/global/rocksdb/airports"))
    if damage == "no CURRENT":
        (folder / "CURRENT").write_bytes(b"")
    else:
        for path in folder.glob("MANIFEST-*" if "MANIFEST" in damage else "*.sst"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with running(broker, topology, application_id, state_dir) as streams:
        broker.produce(flights, [("f", "A0007")], partition=0)
        texts_become(broker, output, ["A0007=name 7 " + "x" * 200])
        assert sum(1 for _ in streams.store("airports").all()) == 2000
    [started] = events_of_kind(broker, application_id, EventKind.GLOBAL_RECOVERY_STARTED)
    assert "damaged" in str(started.payload["reason"])


def test_a_checkpoint_file_of_rubbish_does_no_harm(
    broker: Kafka, topics: tuple[str, str, str], application_id: str, state_dir: Path
) -> None:
    """The authoritative offsets are in the store, next to the data."""
    flights, airports, output = topics
    broker.produce(airports, [("EWR", "Newark")], partition=0)
    topology = airport_names(*topics)
    with running(broker, topology, application_id, state_dir):
        pass
    (path,) = state_dir.glob("*/global/.checkpoint")
    path.write_bytes(bytes(range(256)))
    broker.produce(airports, [("JFK", "Kennedy")], partition=0)
    with running(broker, topology, application_id, state_dir):
        broker.produce(flights, [("f", "EWR"), ("f", "JFK")], partition=0)
        texts_become(broker, output, ["EWR=Newark", "JFK=Kennedy"])
    assert path.read_text().splitlines() == ["0", "1", f"{airports} 0 2"]


def test_a_query_that_finds_damage_has_the_table_rebuilt(
    broker: Kafka, topics: tuple[str, str, str], application_id: str, state_dir: Path
) -> None:
    topology = damaged(broker, topics, application_id, state_dir)
    with running(broker, topology, application_id, state_dir) as streams:

        def whole() -> bool:
            try:
                return sum(1 for _ in streams.store("airports").all()) == 2000
            except InvalidStateStoreError:
                return False

        wait_until(whole, what="the whole table")
    [started] = events_of_kind(broker, application_id, EventKind.GLOBAL_RECOVERY_STARTED)
    assert "Corruption" in str(started.payload["reason"])


# -- dead letters -----------------------------------------------------------------------------------------------------------------------


def test_a_record_of_a_global_topic_that_is_skipped_is_kept_as_a_dead_letter_also_over_an_abort(
    broker: Kafka, topics: tuple[str, str, str], topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights, airports, output = topics
    letters = topic("letters")
    aborted: list[int] = []
    real = ExactlyOnce.commit

    def commit(self: ExactlyOnce, offsets: Offsets, *others: object) -> Mapping[TopicPartition, NextOffset]:
        if len(aborted) < 2:
            aborted.append(len(offsets))
            raise TransactionAbortedError("a test wants it")
        return real(self, offsets, *others)  # type: ignore[arg-type]  # passed on unchanged

    monkeypatch.setattr(ExactlyOnce, "commit", commit)
    broker.produce(airports, [("EWR", "Newark"), ("EWR", BAD)], partition=0, headers=[("own", b"1")])
    settings: dict[str, object] = {
        "deserialization.exception.handler": "penstock.LogAndContinueExceptionHandler",
        "errors.dead.letter.queue.topic.name": letters,
    }
    with running(broker, airport_names(*topics), application_id, state_dir, **settings):
        wait_until(lambda: len(broker.consume(letters)) == 1, what="the letter of the start")
        aborted.clear()
        broker.produce(airports, [("JFK", BAD), ("JFK", "Kennedy")], partition=0)
        wait_until(lambda: len(broker.consume(letters)) == 2, what="the letter of the live one")
        broker.produce(flights, [("f", "EWR"), ("f", "JFK")], partition=0)
        texts_become(broker, output, ["EWR=Newark", "JFK=Kennedy"])
    first, second = broker.consume(letters)
    assert (first.key, first.value, dict(first.headers)["own"]) == (b"EWR", BAD, b"1")
    assert [dict(each.headers)["__streams.errors.offset"] for each in (first, second)] == [b"1", b"2"]
    assert dict(second.headers)["__streams.errors.topic"] == airports.encode()
    assert [event.payload["offset"] for event in events_of_kind(broker, application_id, EventKind.RECORD_SKIPPED)] == [1, 2]


# -- partial tables ------------------------------------------------------------------------------------------------------------------


class Lookups(Processor):
    """Reads the whole table on creation, and for each record."""

    at_init: list[int] = []  # noqa: RUF012 (a class attribute: the engine creates the processors)

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        store = context.get_state_store("airports")
        assert isinstance(store, StagedKeyValueStore)
        self.store = store
        Lookups.at_init.append(self.rows())

    def rows(self) -> int:
        return sum(1 for _ in self.store.all())

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(str(self.rows())))


def test_rule_27_no_record_and_no_processors_init_ever_sees_half_a_table(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is rebuilt in small steps, repeatedly, while records arrive and tasks are rolled back meanwhile."""
    monkeypatch.setattr(log_reader, "_MOST_PER_POLL", 40)
    Lookups.at_init.clear()
    flights, others, airports = topic("flights"), topic("others"), topic("airports", config=COMPACT)
    output, counted = topic("out"), topic("counted")
    builder = StreamsBuilder()
    builder.global_table(airports, TEXT, Materialized("airports"))
    builder.stream(flights, TEXT).process(Lookups).to(output, Produced(serdes.STRING, value=serdes.STRING))
    builder.stream(others, TEXT).to(counted, Produced(serdes.STRING, value=serdes.STRING))
    rows, rounds = 2000, 4
    broker.produce(airports, [(f"A{n}", "v") for n in range(rows)], partition=0)
    in_the_middle: list[bool] = []
    stop = threading.Event()

    def fly() -> None:
        while not stop.wait(0.05):
            broker.produce(flights, [("f", "x")] * 3, partition=0)
            broker.produce(others, [("o", "x")] * 3, partition=0)

    with running(broker, builder.build(), application_id, state_dir) as streams:
        worker = worker_of(streams)
        task = worker._assembled.global_task
        assert task is not None

        def go_back() -> None:
            in_the_middle.append(task.restoring)
            raise TransactionAbortedError("a test wants it")

        flying = threading.Thread(target=fly)
        flying.start()
        try:
            for number in range(rounds):
                before = broker.end_offsets(output)[0]
                on_worker(worker, lambda: task.rebuild("airports", "a test wants it"))
                worker._inbox.put(go_back)
                done = number + 1
                wait_until(
                    lambda done=done: len(events_of_kind(broker, application_id, EventKind.GLOBAL_RECOVERY_ENDED)) == done,  # type: ignore[misc]
                    what="the rebuild",
                )
                wait_until(lambda before=before: broker.end_offsets(output)[0] > before, what="flights")  # type: ignore[misc]
        finally:
            stop.set()
            flying.join()
        flown, counts = broker.end_offsets(flights)[0], broker.end_offsets(others)[0]
        wait_until(lambda: len(broker.consume(output)) == flown and len(broker.consume(counted)) == counts, what="all of it")
    assert in_the_middle == [True] * rounds
    assert set(texts(broker, output)) == {str(rows)}
    assert set(Lookups.at_init) == {rows}
    assert len(Lookups.at_init) == 1 + rounds


# -- the first build, and a recovery at the start --------------------------------------------------------------------------------------


class Gate:
    """Holds back the reader of the global topics as if they were long: it reads while the gate is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        real = LogReader.poll

        def poll(reader: LogReader, timeout: float) -> Poll:
            if reader._name == "global" and not self.opened.wait(timeout):
                return Poll()
            return real(reader, timeout)

        monkeypatch.setattr(LogReader, "poll", poll)


def test_the_first_build_and_a_recovery_at_the_start_are_visible_and_hold_up_only_the_readers(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-406: a client may process while a global store is restored; it is a member, and says what it does."""
    gate = Gate(monkeypatch)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(progress, "REPORT_MS", 0)  # each measurement is reported
    flights, airports, joined = topic("flights"), topic("airports", config=COMPACT), topic("joined")
    others, counted = topic("others"), topic("counted")
    builder = StreamsBuilder()
    table = builder.global_table(airports, TEXT, Materialized("airports"))
    names = builder.stream(flights, TEXT).left_join(table, lambda _, airport: airport, lambda airport, name: f"{airport}={name}")
    names.to(joined, Produced(serdes.STRING, value=serdes.STRING))
    counts = builder.stream(others, TEXT).group_by_key().count(Materialized("counts"))
    counts.to_stream().to(counted, Produced(serdes.STRING, value=serdes.LONG))
    topology = builder.build()
    fill(broker, airports)
    observer, runner = Observer(application_id, broker.connection), CliRunner()

    def published(kind: EventKind) -> list[Event]:
        return [event for event in events_of_kind(broker, application_id, kind) if event.payload.get("store") == "airports"]

    def is_built(count: int) -> Member:
        """Check that the client lives, counts, and reports the store, while flights wait."""
        states: list[State] = []
        with client(broker, topology, application_id, state_dir, **{"statestore.checkpoint.interval.ms": 0}) as streams:
            streams.set_state_listener(lambda new, old: states.append(new))
            streams.start()
            broker.produce(others, [("a", "1")], partition=0)
            broker.produce(flights, [("f", "A0007")], partition=0)
            counts_become(broker, counted, {"a": count})
            assert states == [State.REBALANCING, State.RESTORING]
            assert len(broker.consume(joined)) == count - 1
            with pytest.raises(InvalidStateStoreError, match="airports"):
                streams.store("airports")
            wait_until(lambda: len(published(EventKind.RESTORE_STARTED)) == count, what="the event of the start")
            seen = len(published(EventKind.RESTORE_PROGRESS))
            wait_until(lambda: len(published(EventKind.RESTORE_PROGRESS)) > seen, what="the progress")
            [member] = observer.observe().members.values()
            tasks = runner.invoke(
                app, ["tasks", "--application", application_id, "--bootstrap-servers", broker.bootstrap_servers, "--json"]
            )
            [row] = [row for row in json.loads(tasks.stdout) if row["store"] == "airports"]
            assert (row["kind"], row["state"], row["lag"], row["restore"]["remaining"]) == ("GLOBAL", "RESTORING", 2000, 2000)
            metrics = {key.name: value for key, value in streams.metrics().items() if ("store", "airports") in key.tags}
            assert metrics["restore-remaining-records-total"] == 2000
            gate.opened.set()
            reaches(streams, State.RUNNING)
            texts_become(broker, joined, ["A0007=name 7 " + "x" * 200] * count)
            metrics = {key.name: value for key, value in streams.metrics().items() if ("store", "airports") in key.tags}
            assert (metrics["restore-remaining-records-total"], metrics["restore-total"]) == (0, 2000)
            wait_until(lambda: len(published(EventKind.RESTORE_ENDED)) == count, what="the event of the end")
        gate.opened.clear()
        return member

    member = is_built(1)
    assert member.state is State.RESTORING and member.global_stores["airports"].reason is None
    assert published(EventKind.GLOBAL_RECOVERY_STARTED) == []
    [at_end] = published(EventKind.RESTORE_ENDED)
    assert at_end.payload["records"] == 2000 and at_end.payload["topic"] == airports
    assert "global store airports restores: 0 records so far, 0 a second, 2000 offsets to go, time left: unknown" in caplog.messages
    checkpoints = [event for event in events_of_kind(broker, application_id, EventKind.CHECKPOINT) if event.task is None]
    assert checkpoints[-1].payload == {"stores": {"airports": {f"{airports}-0": 2000}}, "worker": 1}

    for manifest in state_dir.glob("*/global/rocksdb/airports/MANIFEST-*"):
        manifest.write_bytes(b"torn")
    member = is_built(2)
    [started] = published(EventKind.GLOBAL_RECOVERY_STARTED)
    assert started.incarnation == member.incarnation  # so that the next recovery at a start has another id
    report = member.global_stores["airports"]
    assert report.reason == started.payload["reason"] and "damaged" in str(report.reason)
    assert len(published(EventKind.GLOBAL_RECOVERY_ENDED)) == 1


def test_a_new_instance_takes_over_tasks_that_read_a_table_once_it_has_built_it(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    flights, airports, output = topic("flights", 2), topic("airports", config=COMPACT), topic("out")
    broker.produce(airports, [("EWR", "Newark")], partition=0)
    topology, none = airport_names(flights, airports, output), {"acceptable.recovery.lag": 0}
    gate.opened.set()
    with running(broker, topology, application_id, state_dir / "a", **none) as first:
        gate.opened.clear()
        with client(broker, topology, application_id, state_dir / "b", **none) as second:
            second.start()
            joined = events_of_kind(broker, application_id, EventKind.TASKS_ASSIGNED)
            wait_until(lambda: events_of_kind(broker, application_id, EventKind.TASKS_ASSIGNED) != joined, what="an assignment")
            for partition in (0, 1):
                broker.produce(flights, [("f", "EWR")], partition=partition)
            texts_become(broker, output, ["EWR=Newark"] * 2)
            assert (second.state, len(active_tasks(first))) == (State.RESTORING, 2)
            gate.opened.set()
            wait_until(lambda: {len(active_tasks(each)) for each in (first, second)} == {1}, what="a task at each")
