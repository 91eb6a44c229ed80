"""Global tables and restores in a whole client: its states, tasks, outputs and events when a position is lost."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewPartitions

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.errors import InvalidStateStoreError, StreamsConfigError
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.states import State
from penstock.runtime.tasks.global_task import GlobalTask
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.engine import PAUSE, client, count_topology, counts_become, events, reaches, running
from tests.support.logs import alter, recreate_topic

COMPACT = {"cleanup.policy": "compact"}


@dataclass
class Board:
    """An application that joins flights with a global table of airports, and counts other records without it."""

    broker: Kafka
    application_id: str
    state_dir: Path
    flights: str
    airports: str
    others: str
    joined: str
    counted: str
    states: list[State] = field(default_factory=list)

    def topology(self) -> Topology:
        builder = StreamsBuilder()
        text = Consumed(serdes.STRING, value=serdes.STRING)
        airports = builder.global_table(self.airports, text, Materialized("airports"))
        (
            builder.stream(self.flights, text)
            .left_join(airports, lambda _, airport: airport, lambda flight, name: f"{flight}={name}")
            .to(self.joined, Produced(serdes.STRING, value=serdes.STRING))
        )
        (
            builder.stream(self.others, text)
            .group_by_key()
            .count(Materialized("counts"))
            .to_stream()
            .to(self.counted, Produced(serdes.STRING, value=serdes.LONG))
        )
        return builder.build()

    def client(self, **settings: object) -> KafkaStreams:
        streams = client(self.broker, self.topology(), self.application_id, self.state_dir, **settings)
        streams.set_state_listener(lambda new, _old: self.states.append(new))
        return streams

    def flies_to(self, airport: str, name: str | None) -> None:
        """Check that a flight to an airport is output with the table's name for it."""
        self.broker.produce(self.flights, [("flight", airport)], partition=0)
        wanted = f"{airport}={name}"
        wait_until(lambda: [r.value for r in self.broker.consume(self.joined)][-1:] == [wanted.encode()], 40, f"{wanted} at the end")


@pytest.fixture
def board(broker: Kafka, application_id: str, state_dir: Path, topic: Callable[..., str]) -> Iterator[Board]:
    flights, others, joined, counted = (topic(name) for name in ("flights", "others", "joined", "counted"))
    yield Board(broker, application_id, state_dir, flights, topic("airports", config=COMPACT), others, joined, counted)


def test_kip_406_a_topic_recreated_under_a_running_client(board: Board) -> None:
    def recoveries() -> list[Event]:
        return [event for event in events(board.broker, board.application_id) if event.kind.value.startswith("GLOBAL_RECOVERY")]

    board.broker.produce(board.airports, [("EWR", "Newark"), ("OLD", "Closed")], partition=0)
    with board.client() as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        board.flies_to("EWR", "Newark")
        board.states.clear()
        recreate_topic(board.broker, board.airports, config=COMPACT)
        board.broker.produce(board.airports, [("EWR", "Liberty"), ("EWR", "Liberty"), ("JFK", "Kennedy")], partition=0)
        wait_until(lambda: EventKind.GLOBAL_RECOVERY_ENDED in [event.kind for event in recoveries()], 40, "the end of the recovery")
        reaches(streams, State.RUNNING)
        # If the new topic is seen before its rows are produced, the store is rebuilt at once: RESTORING does not last.
        assert board.states[:2] in ([], [State.RESTORING, State.RUNNING])
        board.flies_to("EWR", "Liberty")
        board.flies_to("OLD", None)
        assert streams.state is State.RUNNING
        wait_until(lambda: dict(streams.store("airports").all()) == {"EWR": "Liberty", "JFK": "Kennedy"}, what="the rows of the new topic")
    reported = recoveries()
    assert [event.kind for event in reported] == [EventKind.GLOBAL_RECOVERY_STARTED, EventKind.GLOBAL_RECOVERY_ENDED]
    assert reported[0].payload["topic"] == board.airports


@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "while nothing runs"])
def test_partitions_that_are_added_to_a_global_topic_are_read_and_reported(
    board: Board, caplog: pytest.LogCaptureFixture, running: bool
) -> None:
    """A key whose partition changed has two records then, and a rebuild may find the older one last."""

    def reports() -> list[Mapping[str, object]]:
        found = events(board.broker, board.application_id)
        return [event.payload for event in found if event.kind is EventKind.INPUT_PARTITIONS_ADDED]

    def grow() -> None:
        board.broker.admin.create_partitions([NewPartitions(board.airports, 3)])[board.airports].result(30)

    board.broker.produce(board.airports, [("EWR", "Newark")], partition=0)
    for starts in range(2):
        with board.client() as streams:
            streams.start()
            reaches(streams, State.RUNNING)
            if running and not starts:
                grow()
            if running or starts:
                board.broker.produce(board.airports, [("EWR", "Liberty")], partition=2)
                wait_until(lambda streams=streams: dict(streams.store("airports").all()) == {"EWR": "Liberty"}, what="the row")  # type: ignore[misc]
                wait_until(reports, what="the event")
        if not running and not starts:
            grow()
    [report] = reports()
    assert (report["topic"], report["read"], report["partitions"], report["store"]) == (board.airports, 1, 3, "airports")
    assert f"global topic {board.airports} has 3 partitions, and had 1" in caplog.text and "penstock alerts" in caplog.text


def test_rule_27_only_tasks_that_read_the_table_wait(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rebuild is delayed: flights wait, the others are counted; then the flights are output, none of them joined with a partial
    table."""
    held, go_on = threading.Event(), threading.Event()
    settle = GlobalTask._settle

    def settle_when_told(self: GlobalTask, state: object) -> None:
        if go_on.is_set():
            settle(self, state)  # type: ignore[arg-type]  # passed on unchanged
        else:
            held.set()

    board.broker.produce(board.airports, [("EWR", "Newark")], partition=0)
    with board.client() as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        board.flies_to("EWR", "Newark")
        monkeypatch.setattr(GlobalTask, "_settle", settle_when_told)
        recreate_topic(board.broker, board.airports, config=COMPACT)
        board.broker.produce(board.airports, [("EWR", "Liberty")], partition=0)
        reaches(streams, State.RESTORING)
        board.broker.produce(board.flights, [("flight", "EWR")], partition=0)
        board.broker.produce(board.others, [("a", "1"), ("a", "2")], partition=0)
        counts_become(board.broker, board.counted, {"a": 2})
        assert held.is_set() and len(board.broker.consume(board.joined)) == 1
        with pytest.raises(InvalidStateStoreError, match="airports"):
            streams.store("airports").get("EWR")
        go_on.set()
        board.flies_to("EWR", "Liberty")
    assert [r.value for r in board.broker.consume(board.joined)] == [b"EWR=Newark", b"EWR=Liberty", b"EWR=Liberty"]


def test_kip_990_a_bad_record_of_a_global_topic_stops_the_client_even_where_tasks_would_pause(board: Board) -> None:
    board.broker.produce(board.airports, [("EWR", b"\xff\xfe")], partition=0)
    with board.client(**{"deserialization.exception.handler": PAUSE}) as streams:
        streams.start()
        reaches(streams, State.ERROR)
        assert "a global topic, which cannot be paused" in str(streams.failure)


def test_rule_3_a_client_refuses_a_global_topic_that_is_not_compacted_if_configured(board: Board) -> None:
    alter(board.broker, board.airports, "cleanup.policy", "delete")
    with board.client(**{"global.topic.compaction.check": "error"}) as streams:
        streams.start()
        reaches(streams, State.ERROR)
        assert isinstance(streams.failure, StreamsConfigError)


def test_kip_116_checkpoints_of_global_and_task_stores(board: Board) -> None:
    board.broker.produce(board.airports, [("EWR", "Newark")], partition=0)
    board.broker.produce(board.others, [("a", "1")], partition=0)
    with board.client(**{"statestore.checkpoint.interval.ms": 0}) as streams:
        streams.start()
        counts_become(board.broker, board.counted, {"a": 1})
        folder = board.state_dir / board.application_id
        wait_until((folder / "global" / ".checkpoint").exists, 40, "the global checkpoint")
        assert (folder / "global" / ".checkpoint").read_text().splitlines() == ["0", "1", f"{board.airports} 0 1"]


# --- rule 13 in a whole client: a task's stores -----------------------------------------------------------------------------------------


def words_and_counts(topic: Callable[..., str]) -> tuple[str, str]:
    return topic("words"), topic("counted")


def test_rule_13_a_store_does_not_continue_from_a_recreated_changelog(
    broker: Kafka, application_id: str, state_dir: Path, topic: Callable[..., str]
) -> None:
    """The changelog was deleted and created again: its id has changed, so the state on disk belongs to another log."""
    words, output = words_and_counts(topic)
    broker.produce(words, [("a", "1")] * 3, partition=0)
    with running(broker, count_topology(words, output), application_id, state_dir):
        counts_become(broker, output, {"a": 3})
    changelog = f"{application_id}-counts-changelog"
    recreate_topic(broker, changelog, config=COMPACT)
    broker.produce(changelog, [(b"a", (40).to_bytes(8, "big"))] * 9, partition=0)
    with running(broker, count_topology(words, output), application_id, state_dir):
        broker.produce(words, [("a", "1")], partition=0)
        counts_become(broker, output, {"a": 41})


def test_a_lost_state_folder_is_restored(broker: Kafka, application_id: str, state_dir: Path, topic: Callable[..., str]) -> None:
    words, output = words_and_counts(topic)
    broker.produce(words, [("a", "1"), ("b", "1"), ("a", "2")], partition=0)
    with running(broker, count_topology(words, output), application_id, state_dir):
        counts_become(broker, output, {"a": 2, "b": 1})
    shutil.rmtree(state_dir)
    with running(broker, count_topology(words, output), application_id, state_dir):
        broker.produce(words, [("a", "3")], partition=0)
        counts_become(broker, output, {"a": 3, "b": 1})
    kinds = [event.kind for event in events(broker, application_id) if event.kind.value.startswith("RESTORE")]
    assert kinds[-2:] == [EventKind.RESTORE_STARTED, EventKind.RESTORE_ENDED]


def test_damaged_files_of_a_task_are_wiped_and_restored(
    broker: Kafka, application_id: str, state_dir: Path, topic: Callable[..., str]
) -> None:
    words, output = words_and_counts(topic)
    broker.produce(words, [("a", "1"), ("a", "2")], partition=0)
    with running(broker, count_topology(words, output), application_id, state_dir):
        counts_become(broker, output, {"a": 2})
    (manifest,) = state_dir.glob("*/*/rocksdb/counts/MANIFEST-*")
    manifest.write_bytes(b"torn")
    with running(broker, count_topology(words, output), application_id, state_dir):
        broker.produce(words, [("a", "3")], partition=0)
        counts_become(broker, output, {"a": 3})
