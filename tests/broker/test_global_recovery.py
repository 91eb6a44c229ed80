"""KIP-406 in a whole client: damage found at the start and during reads, consecutive recoveries, and no join with a partial table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.commit.compare_and_set import Offsets
from penstock.runtime.commit.exactly_once import ExactlyOnce
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.kafka import log_reader
from penstock.runtime.model.errors import InvalidStateStoreError, TransactionAbortedError
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.ids import NextOffset, Partition
from penstock.runtime.model.record import Record
from penstock.runtime.model.states import State
from penstock.runtime.operators.processor import Processor, ProcessorContext
from penstock.runtime.stores.key_value import StagedKeyValueStore
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.engine import BAD, airport_names, client, events_of_kind, on_worker, reaches, running, texts, texts_become, worker_of

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

    def commit(self: ExactlyOnce, offsets: Offsets, *others: object) -> Mapping[Partition, NextOffset]:
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
