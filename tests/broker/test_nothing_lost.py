"""Situations in which a record could be lost or counted twice: missing responses, ends of logs that are not the end, first offsets."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as ClientPartition

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.kafka.input_reader import Reader
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.transactions import TransactionalProducer
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.record import Record
from penstock.runtime.model.states import State
from penstock.runtime.operators.processor import Processor
from tests.broker.test_commit import PauseAlways
from tests.support import Kafka, wait_until
from tests.support.engine import (
    BAD,
    PAUSE,
    client,
    count_topology,
    counts_become,
    events,
    events_of_the_start_are_committed,
    paused,
    reaches,
    running,
)
from tests.support.logs import cut, open_transaction

Topic = Callable[..., str]
TEXT = Consumed(serdes.STRING, value=serdes.STRING)


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[object]:
    """Make the first call of this method fail, as if the broker did not answer. Return the calls."""
    real = getattr(owner, method)
    calls: list[object] = []

    def answer(self: object, *arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 1:
            raise BrokerUnavailableError("the broker is away")
        return real(self, *arguments)

    monkeypatch.setattr(owner, method, answer)
    return calls


def test_rule_18_under_at_least_once_what_a_cache_held_back_goes_out_with_its_commit(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    settings: dict[str, object] = {
        "processing.guarantee": "at_least_once",
        "commit.interval.ms": 100,
        "processing.exception.handler": PauseAlways,
    }
    broker.produce(source, [("a", "1"), ("a", "2"), ("b", "1")])
    with running(broker, count_topology(source, output, caching=True), application_id, state_dir, **settings):
        counts_become(broker, output, {"a": 2, "b": 1})


def test_rule_22_a_restore_waits_for_the_marker_of_the_last_commit(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1")])
    with running(broker, count_topology(source, output), application_id, state_dir):
        counts_become(broker, output, {"a": 1})
    shutil.rmtree(state_dir / application_id)
    # For its writer, a commit is complete when the coordinator has it; the marker reaches each partition later.
    last_commit = open_transaction(broker, f"{application_id}-counts-changelog", [("a", struct.pack(">q", 7))])
    with client(broker, count_topology(source, output), application_id, state_dir, **{"session.timeout.ms": 6000}) as streams:
        streams.start()
        reaches(streams, State.RESTORING)
        assert not streams.wait_for(State.RUNNING, 1_500)
        last_commit.commit_transaction(30)
        reaches(streams, State.RUNNING)
        assert streams.store("counts").get("a") == 7


def test_a_position_that_is_gone_is_asked_for_again_when_the_broker_did_not_answer(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1")] * 10)
    place = ConsumerGroupTopicPartitions(application_id, [ClientPartition(source, 0, 3)])
    admin = broker.admin  # the client must outlive its requests
    admin.alter_consumer_group_offsets([place])[application_id].result(30)
    cut(broker, source, before=6)
    calls = fail_once(monkeypatch, Reader, "bounds")
    with running(broker, count_topology(source, output), application_id, state_dir):
        counts_become(broker, output, {"a": 4})
    assert len(calls) == 2


def test_rule_10_a_broker_that_does_not_answer_in_the_middle_of_a_record_counts_nothing_twice(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = topic("in"), topic("out")
    builder = StreamsBuilder()
    counts = builder.stream(source, TEXT).group_by_key().count(Materialized("counts", caching=False)).to_stream()

    def first(name: str, key: object, value: object, partitions: int) -> int:
        return 0

    counts.to(output, Produced(serdes.STRING, value=serdes.LONG, partitioner=first))
    calls = fail_once(monkeypatch, TopicAdmin, "partition_count")
    broker.produce(source, [("a", "1")] * 10)
    with running(broker, builder.build(), application_id, state_dir):
        counts_become(broker, output, {"a": 10})
    assert [struct.unpack(">q", record.value or b"")[0] for record in broker.consume(output)] == list(range(1, 11))
    assert len(calls) == 2


def test_rule_10_an_abort_before_the_first_commit_goes_back_to_where_latest_was(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    builder = StreamsBuilder()
    stream = builder.stream(source, TEXT)
    stream.to(output, Produced(serdes.STRING, value=serdes.STRING))
    stream.foreach(lambda key, value: 1 // (value != "poison"))
    settings: dict[str, object] = {
        "auto.offset.reset": "latest",
        "commit.interval.ms": 60_000,
        "processing.exception.handler": PauseAlways,
    }
    broker.produce(source, [("a", "before")])
    with running(broker, builder.build(), application_id, state_dir, **settings) as streams:
        events_of_the_start_are_committed(broker, application_id)
        broker.produce(source, [("a", "1"), ("a", "2"), ("a", "poison")])
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        assert broker.committed_offsets(application_id, source) == {0: 3}
        assert [record.value for record in broker.consume(output)] == [b"1", b"2"]


def test_a_pause_before_a_record_that_is_too_large_for_an_event(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", b"\xff" * 900_000)])
    settings: dict[str, object] = {"deserialization.exception.handler": PAUSE}
    with running(broker, count_topology(source, output), application_id, state_dir, **settings) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        [reported] = [event for event in events(broker, application_id) if event.kind is EventKind.TASK_PAUSED]
        assert (reported.payload["offset"], reported.payload["value_base64"], reported.payload["left_out_bytes"]) == (0, None, 900_001)


class FailsToClose(Processor):
    """A processor whose `close` fails."""

    def process(self, record: Record) -> None:
        pass

    def close(self) -> None:
        raise ValueError("not now")


def test_a_processor_that_fails_to_close_keeps_nothing_open(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source = topic("in", partitions=2)
    builder = StreamsBuilder()
    stream = builder.stream(source, TEXT)
    stream.process(FailsToClose)
    stream.group_by_key().count(Materialized("counts"))
    topology = builder.build()
    for _ in range(2):  # the second finds the stores' locks free, and its tasks not held by a member that never left
        with running(broker, topology, application_id, state_dir) as streams:
            wait_until(lambda: sum(len(each.active_tasks) for each in streams.metadata_for_local_threads()) == 2, what="both tasks")
        assert streams.state is State.ERROR


def test_rule_15_under_at_least_once_offsets_are_committed_after_what_they_stand_for(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = topic("in"), topic("out")
    seen: list[tuple[Sequence[TopicPartition], int, int]] = []
    real = TransactionalProducer.send_offsets

    def look(self: TransactionalProducer, offsets: dict[TopicPartition, object], *others: object, **named: object) -> None:
        if any(partition.topic == source for partition in offsets):
            written = len(broker.consume(output)), len(broker.consume(f"{application_id}-counts-changelog"))
            seen.append((list(offsets), *written))
        real(self, offsets, *others, **named)  # type: ignore[arg-type]  # passed on unchanged

    monkeypatch.setattr(TransactionalProducer, "send_offsets", look)
    settings: dict[str, object] = {
        "processing.guarantee": "at_least_once",
        "commit.interval.ms": 100,
        "producer.linger.ms": 5_000,  # records that no one waits for are still in flight when the offsets are sent
    }
    broker.produce(source, [("a", "1"), ("b", "1")])
    with running(broker, count_topology(source, output, caching=False), application_id, state_dir, **settings):
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 2}, what="the commit")
    assert seen[-1] == ([TopicPartition(source, 0)], 2, 2)


def test_rule_2_resume_is_done_when_it_returns_and_a_task_whose_offsets_cannot_be_read_stays_paused(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    broker.produce(source, [("a", BAD), ("a", "1")], partition=0)
    settings: dict[str, object] = {"deserialization.exception.handler": PAUSE}
    with running(broker, count_topology(source, output), application_id, state_dir, **settings) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        [thread] = streams.metadata_for_local_threads()
        assert {str(task.task_id): task.is_running for task in thread.active_tasks} == {"0_0": False, "0_1": True}
        assert streams.resume(TaskId(0, 1)) is False
        with monkeypatch.context() as patch:
            fail_once(patch, Reader, "committed")
            with pytest.raises(BrokerUnavailableError):
                streams.resume(TaskId(0, 0))
        assert paused(streams) == {"0_0"}
        admin = broker.admin  # the client must outlive its requests
        place = ConsumerGroupTopicPartitions(application_id, [ClientPartition(source, 0, 1)])
        admin.alter_consumer_group_offsets([place])[application_id].result(30)
        assert streams.resume(TaskId(0, 0)) is True
        counts_become(broker, output, {"a": 1})
        assert paused(streams) == set()
