"""Outputs that the client or the broker refuses: identification of the record, the handler's answer, and the effect on other tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.errors import MissingSinkTopicError, ProductionError, StreamsError
from penstock.runtime.model.handlers import (
    ErrorHandlerContext,
    ProductionExceptionHandler,
    ProductionExceptionHandlerResponse,
    SerializationExceptionOrigin,
)
from penstock.runtime.model.states import State
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, RawRecord, unique, wait_until
from tests.support.engine import client, running
from tests.support.logs import alter

Topic = Callable[..., str]
GUARANTEES = ["exactly_once_v2", "at_least_once"]
TEXT = Consumed(serdes.STRING, value=serdes.STRING)
LIMIT = 20_000
"""`max.message.bytes` of the output topic: a tenth of what the client puts into one batch."""


class Asked(ProductionExceptionHandler):
    """Returns the answer set by the test, and keeps its arguments."""

    answer: object = ProductionExceptionHandlerResponse.CONTINUE
    questions: ClassVar[list[tuple[ErrorHandlerContext, ConsumerRecord, Exception]]] = []
    configs: ClassVar[Mapping[str, object]] = {}

    def configure(self, configs: Mapping[str, object]) -> None:
        type(self).configs = configs

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProductionExceptionHandlerResponse:
        self.questions.append((context, record, exception))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]  # a test may answer wrongly

    def handle_serialization_exception(
        self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception, origin: SerializationExceptionOrigin
    ) -> ProductionExceptionHandlerResponse:
        return self.handle(context, record, exception)


@pytest.fixture
def handler() -> Iterator[type[Asked]]:
    Asked.answer = ProductionExceptionHandlerResponse.CONTINUE
    Asked.questions.clear()
    yield Asked


def stretching(source: str, output: str) -> Topology:
    """Return a topology in which a value `*n` becomes n bytes; others pass unchanged. A count shows that each record is processed once."""
    builder = StreamsBuilder()
    stream = builder.stream(source, TEXT)
    stretched = stream.map_values(lambda value: "x" * int(value[1:]) if value.startswith("*") else value)
    stretched.to(output, Produced(serdes.STRING, value=serdes.STRING, name="the-sink"))
    return builder.build()


def settings(guarantee: str, **more: object) -> dict[str, object]:
    return {"processing.guarantee": guarantee, "production.exception.handler": Asked, "commit.interval.ms": 100, **more}


def values(records: list[RawRecord]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("refused_by", ["the broker", "the client"])
def test_a_record_that_is_too_large_is_left_out_and_all_others_come_once(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str, refused_by: str
) -> None:
    source, output = topic("in"), topic("out", config={"max.message.bytes": str(LIMIT)} if refused_by == "the broker" else None)
    dead = topic("dead")
    size = LIMIT + 1 if refused_by == "the broker" else 1_000_001
    rows = [(f"k{n}", f"value {n} " + "." * 100) for n in range(1_000)]  # five times the limit: batches must be made to fit
    broker.produce(source, [*rows[:500], ("large", f"*{size}"), *rows[500:]], headers=[("trace", b"7")])
    more = {"errors.dead.letter.queue.topic.name": dead, "producer.linger.ms": 50}
    with running(broker, stretching(source, output), application_id, state_dir, **settings(guarantee, **more)):
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 1_001}, what="the end of the input")
        [letter] = wait_until(lambda: broker.consume(dead), what="the dead letter")
    found = values(broker.consume(output))
    wanted = [value.encode() for _, value in rows]
    assert found == wanted if guarantee == "exactly_once_v2" else set(found) == set(wanted)
    [(context, record, error), *_] = handler.questions
    assert len(handler.questions) == 1
    assert (context.topic, context.partition, context.offset) == (source, 0, 500)
    assert (context.processor_node_id, context.source_raw_key) == ("the-sink", b"large")
    assert (record.topic, record.key, len(record.value)) == (output, b"large", size)  # type: ignore[arg-type]  # bytes
    assert "MSG_SIZE_TOO_LARGE" in str(error)
    assert (letter.key, letter.value) == (b"large", f"*{size}".encode())
    reported = dict(letter.headers)
    assert reported["trace"] == b"7"
    assert reported["__streams.errors.topic"] == source.encode()
    assert (reported["__streams.errors.partition"], reported["__streams.errors.offset"]) == (b"0", b"500")
    assert b"MSG_SIZE_TOO_LARGE" in (reported["__streams.errors.message"] or b"")


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("answer", [ProductionExceptionHandlerResponse.FAIL, ProductionExceptionHandlerResponse.RETRY])
def test_a_record_that_the_broker_finds_too_large_ends_the_client_and_is_named(
    broker: Kafka,
    topic: Topic,
    application_id: str,
    state_dir: Path,
    handler: type[Asked],
    guarantee: str,
    answer: ProductionExceptionHandlerResponse,
) -> None:
    """RETRY of a record that can never be accepted is FAIL."""
    handler.answer = answer
    source, output = topic("in"), topic("out", config={"max.message.bytes": str(LIMIT)})
    broker.produce(source, [("a", "1"), ("large", f"*{LIMIT}"), ("a", "2")])
    with client(broker, stretching(source, output), application_id, state_dir, **settings(guarantee)) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, ProductionError)
        for part in ("node the-sink", f"record {source}-0@1", f"{LIMIT + 5} bytes to {output}", "MSG_SIZE_TOO_LARGE"):
            assert part in str(streams.failure)
    assert broker.committed_offsets(application_id, source).get(0, 0) <= 1
    if guarantee == "exactly_once_v2":
        assert values(broker.consume(output)) in ([], [b"1"])


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_an_output_that_its_serde_cannot_write_becomes_a_dead_letter_and_the_others_come_once(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str
) -> None:
    """The processing handler is not called (KIP-399): its default would stop the client."""
    source, output, dead = topic("in"), topic("out"), topic("dead")
    broker.produce(source, [("a", "1"), ("b", "bad"), ("c", "2")], headers=[("trace", b"7")])
    builder = StreamsBuilder()
    stream = builder.stream(source, TEXT).map_values(lambda value: 5 if value == "bad" else value)
    stream.to(output, Produced(serdes.STRING, value=serdes.STRING, name="the-sink"))  # type: ignore[arg-type]
    more = {"errors.dead.letter.queue.topic.name": dead}
    with running(broker, builder.build(), application_id, state_dir, **settings(guarantee, **more)):
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3}, what="the end of the input")
    assert values(broker.consume(output)) == [b"1", b"2"]
    [(context, record, error)] = handler.questions
    assert (context.offset, context.processor_node_id, context.source_raw_value) == (1, "the-sink", b"bad")
    assert (record.topic, record.key, record.value) == (output, "b", 5)
    [letter] = broker.consume(dead)
    assert (letter.key, letter.value) == (b"b", b"bad")
    reported = dict(letter.headers)
    assert (reported["trace"], reported["__streams.errors.exception"]) == (b"7", type(error).__name__.encode())


def test_the_dead_letter_of_an_output_without_an_input_record_has_the_outputs_key(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked]
) -> None:
    """Outputs that a cache flushes at the commit belong to no record."""
    source, output, dead = topic("in"), topic("out"), topic("dead")
    broker.produce(source, [("a", "1"), ("a", "2")])
    builder = StreamsBuilder()
    counts = builder.stream(source, TEXT).group_by_key().count(Materialized("counts"))
    counts.to_stream().to(output, Produced(serdes.STRING, value=serdes.STRING))  # type: ignore[arg-type]
    more = {"errors.dead.letter.queue.topic.name": dead}
    with running(broker, builder.build(), application_id, state_dir, **settings("exactly_once_v2", **more)):
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 2}, what="the end of the input")
    assert {letter.key for letter in broker.consume(dead)} == {b"a"}
    assert {(context.offset, record.key) for context, record, _ in handler.questions} == {(-1, "a")}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_limit_that_is_lowered_while_it_runs_costs_nothing_but_smaller_batches(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str
) -> None:
    source, output = topic("in"), topic("out")
    rows = [(f"k{n}", f"value {n} " + "." * 500) for n in range(400)]
    with running(broker, stretching(source, output), application_id, state_dir, **settings(guarantee, **{"producer.linger.ms": 50})):
        broker.produce(source, rows[:100])
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 100}, what="the first records")
        alter(broker, output, "max.message.bytes", str(LIMIT))
        broker.produce(source, rows[100:])
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 400}, what="the others")
    found = values(broker.consume(output))
    wanted = [value.encode() for _, value in rows]
    assert found == wanted if guarantee == "exactly_once_v2" else set(found) == set(wanted)
    assert not handler.questions


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_record_that_the_brokers_find_invalid_is_left_out_alone(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str
) -> None:
    """A compacted topic rejects records without a key."""
    source, output = topic("in"), topic("out", config={"cleanup.policy": "compact"})
    broker.produce(source, [("a", "1"), (None, "2"), ("b", "3")])
    with running(broker, stretching(source, output), application_id, state_dir, **settings(guarantee)):
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3}, what="the end of the input")
    found = values(broker.consume(output))
    assert found == [b"1", b"3"] if guarantee == "exactly_once_v2" else set(found) == {b"1", b"3"}
    [(context, record, _)] = handler.questions
    assert (context.offset, record.key, record.value) == (1, None, b"2")


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_changelog_record_is_never_left_out_without_its_input_record(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str
) -> None:
    """The store would differ from its changelog."""
    source = topic("in")
    builder = StreamsBuilder()
    grouped = builder.stream(source, TEXT).map_values(lambda value: "x" * int(value[1:])).group_by_key()
    grouped.reduce(lambda old, new: new, Materialized("large", value=serdes.STRING))
    broker.produce(source, [("a", "*1000"), ("b", "*2000000")])
    with running(broker, builder.build(), application_id, state_dir, **settings(guarantee)) as streams:
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 2}, what="the end of the input")
        assert streams.store("large").get("a") == "x" * 1000
        assert streams.store("large").get("b") is None
    assert [(context.offset, record.topic) for context, record, _ in handler.questions] == [(1, f"{application_id}-large-changelog")]


@pytest.mark.parametrize("answer", [ValueError("no idea"), "CONTINUE"])
def test_a_handler_that_fails_or_answers_wrongly_ends_the_client_and_is_named(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], answer: object
) -> None:
    handler.answer = answer
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "*2000000")])
    with client(broker, stretching(source, output), application_id, state_dir, **settings("exactly_once_v2")) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, StreamsError)
        assert "Asked" in str(streams.failure)
    assert handler.configs["application.id"] == application_id


# -- topics that do not exist ------------------------------------------------------------------------------------------------------


def routing(source: str) -> Topology:
    """Return a topology that sends each record to the topic that its value names."""
    builder = StreamsBuilder()
    produced = Produced(serdes.STRING, value=serdes.STRING, name="the-router")
    builder.stream(source, TEXT).to(lambda key, value: value, produced)
    return builder.build()


def patience(milliseconds: int) -> dict[str, object]:
    return {"producer.topic.metadata.propagation.max.ms": milliseconds}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_chosen_topic_that_does_not_exist_ends_the_client_and_is_named_with_node_and_record(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, guarantee: str
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", output), ("b", "no-such-topic")])
    more: dict[str, object] = {"processing.guarantee": guarantee, **patience(1_000)}
    with client(broker, routing(source), application_id, state_dir, **more) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, ProductionError)
        assert isinstance(streams.failure.__cause__, MissingSinkTopicError)
        for part in ("node the-router", f"record {source}-0@1", "to no-such-topic", "there is no such topic"):
            assert part in str(streams.failure)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_chosen_topic_that_is_made_meanwhile_is_waited_for(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str
) -> None:
    source, output, late = topic("in"), topic("out"), unique("late")
    broker.produce(source, [("a", output), ("b", late), ("c", output)])
    with running(broker, routing(source), application_id, state_dir, **settings(guarantee)):
        broker.create_topic(late, exact=True)
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3}, what="the end of the input")
    assert [record.key for record in broker.consume(late)] == [b"b"]
    if guarantee == "exactly_once_v2":
        assert [record.key for record in broker.consume(output)] == [b"a", b"c"]
    assert not handler.questions


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_records_for_a_chosen_topic_that_does_not_exist_are_left_out_where_the_handler_says_so(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str
) -> None:
    source, output, dead = topic("in"), topic("out"), topic("dead")
    broker.produce(source, [("a", output), ("b", "no-such-topic"), ("c", output), ("d", "no-such-topic")])
    more = {"errors.dead.letter.queue.topic.name": dead, **patience(300)}
    with running(broker, routing(source), application_id, state_dir, **settings(guarantee, **more)):
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 4}, what="the end of the input")
    assert [context.offset for context, _, _ in handler.questions] == [1, 3]
    assert [record.key for record in broker.consume(dead)] == [b"b", b"d"]
    if guarantee == "exactly_once_v2":
        assert [record.key for record in broker.consume(output)] == [b"a", b"c"]


def test_retry_continues_until_the_topic_exists(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked]
) -> None:
    handler.answer = ProductionExceptionHandlerResponse.RETRY
    source, late = topic("in"), unique("late")
    broker.produce(source, [("b", late)])
    with running(broker, routing(source), application_id, state_dir, **settings("exactly_once_v2", **patience(0))):
        wait_until(lambda: len(handler.questions) >= 2, what="two questions")
        broker.create_topic(late, exact=True)
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 1}, what="the end of the input")
    assert [record.key for record in broker.consume(late)] == [b"b"]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.nightly)])
def test_an_output_topic_that_is_deleted_while_it_runs_ends_the_client_and_is_named(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, guarantee: str
) -> None:
    source, output = topic("in"), topic("out")
    settings: dict[str, object] = {"processing.guarantee": guarantee, "producer.message.timeout.ms": 4_000, "commit.interval.ms": 100}
    with client(broker, stretching(source, output), application_id, state_dir, **settings) as streams:
        streams.start()
        broker.produce(source, [("a", "1")])
        wait_until(lambda: broker.consume(output), what="the first output")
        wait_until(
            lambda: broker.committed_offsets(application_id, source).get(0) == 1,
            what="its commit, or it is the record whose replay is refused",
        )
        broker.delete_topic(output)
        broker.produce(source, [("b", "2")])
        wait_until(lambda: streams.state is State.ERROR, 60, "the end")
        assert isinstance(streams.failure, ProductionError)
        for part in ("node the-sink", f"record {source}-0@1", output):
            assert part in str(streams.failure)


def test_a_missing_dead_letter_topic_is_reported_at_the_start(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    more: dict[str, object] = {"errors.dead.letter.queue.topic.name": "no-dead-letters"}
    with client(broker, stretching(topic("in"), topic("out")), application_id, state_dir, **more) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, MissingSinkTopicError)
        assert "no-dead-letters" in str(streams.failure)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_dead_letter_that_is_refused_is_not_left_out(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str
) -> None:
    source, output, dead = topic("in"), topic("out"), topic("dead", config={"max.message.bytes": "1000"})
    broker.produce(source, [("a", "1"), ("large", "*2000000")], headers=[("much", b"." * 2_000)])
    more: dict[str, object] = {"errors.dead.letter.queue.topic.name": dead}
    with client(broker, stretching(source, output), application_id, state_dir, **settings(guarantee, **more)) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, ProductionError)
        assert f"to {dead} was refused" in str(streams.failure)
    assert broker.committed_offsets(application_id, source).get(0, 0) <= 1
