"""Changelog and repartition records, and event times, that brokers refuse: the input record is found, and the handler decides."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized, Produced
from penstock.runtime.dsl.windows import TimeWindows
from penstock.runtime.model.errors import ProductionError
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.handlers import LogAndContinueProcessingExceptionHandler, ProductionExceptionHandlerResponse
from penstock.runtime.model.states import State, TaskState
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.metadata import TaskMetadata
from tests.broker.test_refused_outputs import Asked, settings, stretching
from tests.support import Kafka, wait_until
from tests.support.engine import client, events_of_kind, running
from tests.support.logs import alter

Topic = Callable[..., str]
Response = ProductionExceptionHandlerResponse
GUARANTEES = ["exactly_once_v2", "at_least_once"]
TEXT = Consumed(serdes.STRING, value=serdes.STRING)
LIMIT = 20_000
RECORDS = 600
BAD = 411
"""Offset of the record that makes an output too large."""


@pytest.fixture
def handler() -> Iterator[type[Asked]]:
    Asked.answer = Response.CONTINUE
    Asked.questions.clear()
    yield Asked


def stretched(value: str) -> str:
    return "x" * int(value[1:]) if value.startswith("*") else value


def latest(source: str, output: str, *, caching: bool) -> Topology:
    """Return a topology with the last value of each key; a value `*n` becomes n bytes. The length of each goes to the output."""
    builder = StreamsBuilder()
    grouped = builder.stream(source, TEXT).map_values(stretched).group_by_key()
    table = grouped.reduce(lambda old, new: new, Materialized("latest", value=serdes.STRING, caching=caching))
    table.to_stream().map_values(len).to(output, Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()


def repartitioned(source: str, output: str, *, caching: bool) -> Topology:
    """Return a topology with a repartition topic, and a count that reveals rollbacks."""
    builder = StreamsBuilder()
    table = builder.table(source, TEXT, Materialized("rows", caching=caching))
    again = table.group_by(lambda key, value: (key, stretched(value)), Grouped(serdes.STRING, value=serdes.STRING, name="again"))
    again.count(Materialized("counts")).to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()


@contextmanager
def fed(broker: Kafka, source: str) -> Iterator[Callable[[], int]]:
    """Produce input continuously during the block; yield a function for the number sent so far."""
    stop, sent = threading.Event(), 0

    def feed() -> None:
        nonlocal sent
        while not stop.wait(0.02):
            broker.produce(source, [(f"k{sent}", f"v{sent}")], timestamps=[int(time.time() * 1000)])
            sent += 1

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        yield lambda: sent
    finally:
        stop.set()
        feeding.join()


def rows(size: int = LIMIT + 1) -> list[tuple[str, str]]:
    found = [(f"k{number % 50}", f"value {number}") for number in range(RECORDS)]
    found[BAD] = ("large", f"*{size}")
    return found


def tasks(streams: KafkaStreams) -> list[TaskMetadata]:
    return [task for thread in streams.metadata_for_local_threads() for task in thread.active_tasks]


def limited(broker: Kafka, application_id: str, name: str) -> str:
    """Limit the batch size of the internal topic to `LIMIT`; return its name."""
    topic = f"{application_id}-{name}"
    alter(broker, topic, "max.message.bytes", str(LIMIT))
    return topic


KINDS = {"changelog": (latest, "latest-changelog"), "repartition": (repartitioned, "again-repartition")}


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "plain"])
def test_the_record_behind_a_state_record_that_is_too_large_is_left_out_as_a_whole(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str, kind: str, caching: bool
) -> None:
    source, output, dead = topic("in"), topic("out"), topic("dead")
    make, name = KINDS[kind]
    more = {"errors.dead.letter.queue.topic.name": dead, "commit.interval.ms": 500}
    with running(broker, make(source, output, caching=caching), application_id, state_dir, **settings(guarantee, **more)) as streams:
        refusing = limited(broker, application_id, name)
        broker.produce(source, rows())
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: RECORDS}, what="the end of the input")
        assert streams.state is State.RUNNING
        store = streams.store("latest" if kind == "changelog" else "rows")
        assert store.get("k5") == "value 555"
        assert store.get("large") is None, "the store is rolled back for this record"
    asked = [(context.offset, context.source_raw_key, record.topic) for context, record, _ in handler.questions]
    assert asked == [(BAD, b"large", refusing)]
    [letter] = broker.consume(dead)
    assert (letter.key, letter.value) == (b"large", f"*{LIMIT + 1}".encode())
    assert dict(letter.headers)["__streams.errors.offset"] == str(BAD).encode()
    if guarantee == "exactly_once_v2":  # under at-least-once, outputs written before the refusal remain
        assert b"large" not in {record.key for record in broker.consume(output)}


@pytest.mark.parametrize("kind", KINDS)
def test_fail_names_the_input_record(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], kind: str
) -> None:
    handler.answer = Response.FAIL
    source, output = topic("in"), topic("out")
    make, name = KINDS[kind]
    with running(broker, make(source, output, caching=True), application_id, state_dir, **settings("exactly_once_v2")) as streams:
        refusing = limited(broker, application_id, name)
        broker.produce(source, rows())
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, ProductionError)
        for part in (f"record {source}-0@{BAD}", f"bytes to {refusing} was refused", "MSG_SIZE_TOO_LARGE"):
            assert part in str(streams.failure)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("where", ["changelog", "repartition", "sink"])
def test_pause_is_an_answer_to_a_refused_output_and_the_task_continues_when_it_is_taken(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str, where: str
) -> None:
    """Everything before the record is committed, nothing of the record is; the stores are those of the commit."""
    handler.answer = Response.PAUSE
    source, output = topic("in"), topic("out")
    make, name = KINDS.get(where, (stretching, ""))
    made = make(source, output) if where == "sink" else make(source, output, caching=True)  # type: ignore[call-arg]
    with running(broker, made, application_id, state_dir, **settings(guarantee)) as streams:
        refusing = output if where == "sink" else f"{application_id}-{name}"
        alter(broker, refusing, "max.message.bytes", str(LIMIT))
        broker.produce(source, rows())
        wait_until(lambda: TaskState.PAUSED in states(streams), what="the pause")
        assert broker.committed_offsets(application_id, source) == {0: BAD}
        [event] = events_of_kind(broker, application_id, EventKind.TASK_PAUSED)
        assert (event.payload["offset"], event.payload["reason"]) == (BAD, "production")
        if where == "changelog":
            assert streams.store("latest").get("k10") == "value 410"
            assert streams.store("latest").get("large") is None
        alter(broker, refusing, "max.message.bytes", "1000000")
        [paused] = [task.task_id for task in tasks(streams) if task.state is TaskState.PAUSED]
        assert streams.resume(paused)
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: RECORDS}, what="the end of the input")
    assert {(context.offset) for context, _, _ in handler.questions} == {BAD}


def states(streams: KafkaStreams) -> set[TaskState]:
    return {task.state for task in tasks(streams)}


def test_many_records_in_a_row_are_left_out_each_by_its_name(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked]
) -> None:
    source, output = topic("in"), topic("out")
    bad = range(100, 112)
    found = [(f"bad{number}", f"*{LIMIT + 1}") if number in bad else (f"k{number % 9}", f"value {number}") for number in range(200)]
    with running(broker, latest(source, output, caching=True), application_id, state_dir, **settings("exactly_once_v2")) as streams:
        limited(broker, application_id, "latest-changelog")
        broker.produce(source, found)
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 200}, what="the end of the input")
        assert streams.store("latest").get("k1") == "value 199"
    assert [context.offset for context, _, _ in handler.questions] == list(bad)


# -- times -------------------------------------------------------------------------------------------------------------------------

FAR_AHEAD_MS = 400 * 86_400_000


def windowed(source: str, output: str) -> Topology:
    """Return a topology that counts per window of the time in the value: a payload's own time."""

    def own_time(record: ConsumerRecord, _partition_time: int) -> int:
        return int(str(record.value))

    builder = StreamsBuilder()
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING, timestamp_extractor=own_time))
    grouped = stream.select_key(lambda key, value: f"{key}!").group_by_key(Grouped(serdes.STRING, value=serdes.STRING, name="again"))
    counts = grouped.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1))).count(Materialized("counts"))
    counts.to_stream(lambda windowed, count: windowed.key).to(output, Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()


ANY_TIME = ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms")


def config_of(broker: Kafka, topic: str) -> dict[str, str | None]:
    admin = broker.admin  # the client must outlive its requests
    [described] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in described.result(30).items()}


def strict(broker: Kafka, topic: str) -> None:
    """Create a topic like an earlier version, on brokers that accept timestamps within an hour."""
    for name in ANY_TIME:
        alter(broker, topic, name, "3600000")


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_internal_topics_take_any_time_also_those_of_an_earlier_version(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, guarantee: str
) -> None:
    source, output = topic("in"), topic("out", config=dict.fromkeys(ANY_TIME, str(2**63 - 1)))
    internal = [f"{application_id}-{name}" for name in ("again-repartition", "counts-changelog")]
    now_ms = int(time.time() * 1000)
    with running(broker, windowed(source, output), application_id, state_dir, **{"processing.guarantee": guarantee}):
        assert all(config_of(broker, name)[limit] == str(2**63 - 1) for name in internal for limit in ANY_TIME)
    for name in internal:
        strict(broker, name)
    with running(broker, windowed(source, output), application_id, state_dir, **{"processing.guarantee": guarantee}):
        assert all(config_of(broker, name)[limit] == str(2**63 - 1) for name in internal for limit in ANY_TIME)
        broker.produce(source, [("a", "86400000"), ("b", str(now_ms)), ("c", str(now_ms + FAR_AHEAD_MS))])
        wait_until(lambda: {record.key for record in broker.consume(output)} >= {b"a!", b"b!", b"c!"}, what="the counts")
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3}, what="the end of the input")


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("answer", [Response.CONTINUE, Response.PAUSE, Response.FAIL])
def test_a_refused_time_of_an_output_goes_to_the_handler_with_the_input_record_also_behind_a_cache(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str, answer: Response
) -> None:
    handler.answer = answer
    source, output, dead = topic("in"), topic("out"), topic("dead")
    now_ms = int(time.time() * 1000)
    builder = StreamsBuilder()
    consumed = Consumed(serdes.STRING, value=serdes.STRING, timestamp_extractor=lambda record, _: int(str(record.value)))
    counts = builder.stream(source, consumed).group_by_key().count(Materialized("counts"))
    counts.to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG, name="the-sink"))
    rows = [(f"k{number}", str(now_ms + (FAR_AHEAD_MS if number == 60 else 0))) for number in range(100)]
    broker.produce(source, rows)
    more = {"errors.dead.letter.queue.topic.name": dead}
    with client(broker, builder.build(), application_id, state_dir, **settings(guarantee, **more)) as streams:
        streams.start()
        match answer:
            case Response.CONTINUE:
                wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 100}, what="the end of the input")
                [letter] = wait_until(lambda: broker.consume(dead), what="the dead letter")
                assert (letter.key, letter.value) == (b"k60", rows[60][1].encode())
            case Response.PAUSE:
                wait_until(lambda: TaskState.PAUSED in states(streams), what="the pause")
                assert broker.committed_offsets(application_id, source) == {0: 60}
            case _:
                wait_until(lambda: streams.state is State.ERROR, what="the end")
                assert f"node the-sink, record {source}-0@60" in str(streams.failure)
    [(context, record, error)] = handler.questions
    assert (context.offset, context.source_raw_key, record.topic) == (60, b"k60", output)
    assert "INVALID_TIMESTAMP" in str(error)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_dead_letter_is_written_also_where_its_topic_refuses_the_time_of_the_record(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, guarantee: str
) -> None:
    source, dead = topic("in", config=dict.fromkeys(ANY_TIME, str(2**63 - 1))), topic("dead")
    ahead_ms = int(time.time() * 1000) + FAR_AHEAD_MS
    broker.produce(source, [("a", "1"), ("b", "bad"), ("c", "2")], timestamps=[ahead_ms] * 3)
    builder = StreamsBuilder()
    builder.stream(source, TEXT).foreach(lambda key, value: int(value))
    more = {"errors.dead.letter.queue.topic.name": dead, "processing.exception.handler": LogAndContinueProcessingExceptionHandler}
    with running(broker, builder.build(), application_id, state_dir, **settings(guarantee, **more)):
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3}, what="the end of the input")
    [letter] = broker.consume(dead)
    assert letter.key == b"b"
    assert letter.timestamp < ahead_ms
    assert dict(letter.headers)["__streams.errors.timestamp"] == str(ahead_ms).encode()


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("answer", [Response.CONTINUE, Response.PAUSE, Response.FAIL])
def test_an_output_that_is_another_one_each_time_its_record_is_processed_is_known_again(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str, answer: Response
) -> None:
    """Keys and sizes are random; the records before and after it arrive once."""
    handler.answer = answer
    source, output = topic("in"), topic("out", config={"cleanup.policy": "compact"})
    builder = StreamsBuilder()
    stream = builder.stream(source, TEXT).select_key(lambda key, value: None if value == "bad" else uuid.uuid4().hex)
    stream.map_values(lambda value: value + " " * (1 + uuid.uuid4().int % 90)).to(output, Produced(serdes.STRING, value=serdes.STRING))
    broker.produce(source, [("k", "bad" if number == 60 else f"v{number}") for number in range(100)])
    with client(broker, builder.build(), application_id, state_dir, **settings(guarantee)) as streams:
        streams.start()
        if answer is Response.FAIL:
            wait_until(lambda: streams.state is State.ERROR, what="the end")
            assert f"record {source}-0@60" in str(streams.failure)
        else:
            end = 60 if answer is Response.PAUSE else 100
            wait_until(lambda: broker.committed_offsets(application_id, source) == {0: end}, what="what is committed")
    assert [context.offset for context, _, _ in handler.questions] == [60]
    if guarantee == "exactly_once_v2" and answer is Response.CONTINUE:
        values = [(record.value or b"").decode().strip() for record in broker.consume(output)]
        assert values == [f"v{number}" for number in range(100) if number != 60]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("refused", ["sink", "changelog"])
def test_the_record_is_found_also_while_another_task_commits_all_the_time(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str, refused: str
) -> None:
    """The task with the record waits for its other input each time (max.task.idle.ms), and the commits in between are the other task's."""
    source, waits, busy, output = topic("in"), topic("waits"), topic("busy"), topic("out", config={"cleanup.policy": "compact"})
    builder = StreamsBuilder()
    both = builder.stream(source, TEXT).merge(builder.stream(waits, TEXT)).map_values(stretched)
    if refused == "sink":
        both.select_key(lambda key, value: None if len(value) > LIMIT else key).to(output, Produced(serdes.STRING, value=serdes.STRING))
    else:
        both.group_by_key().reduce(lambda old, new: new, Materialized("latest", value=serdes.STRING))
    builder.stream(busy, TEXT).group_by_key().count(Materialized("counts"))
    made = settings(guarantee, **{"max.task.idle.ms": 400, "commit.interval.ms": 50})
    with running(broker, builder.build(), application_id, state_dir, **made) as streams, fed(broker, busy):
        if refused == "changelog":
            limited(broker, application_id, "latest-changelog")
        broker.produce(source, rows()[BAD - 5 : BAD + 5])
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 10}, what="the end of the input")
        assert streams.state is State.RUNNING
    assert [context.offset for context, _, _ in handler.questions] == [5]
