"""`sys.exit()`, KeyboardInterrupt and the like in code of the application are failures like any other, wherever that code is called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams, StreamThreadExceptionResponse
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.handlers import (
    DeserializationExceptionHandler,
    DeserializationHandlerResponse,
    ErrorHandlerContext,
    LogAndContinueExceptionHandler,
    LogAndContinueProcessingExceptionHandler,
    LogAndPauseExceptionHandler,
    LogAndPauseProcessingExceptionHandler,
    LogAndPauseProductionExceptionHandler,
    ProcessingExceptionHandler,
    ProcessingHandlerResponse,
    ProductionExceptionHandler,
    ProductionExceptionHandlerResponse,
    SerializationExceptionOrigin,
)
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.record import Record
from penstock.runtime.model.states import State, TaskState
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.operators.processor import Processor, ProcessorContext, PunctuationType
from penstock.runtime.serdes.serde import PlainSerde, Serde
from penstock.runtime.stores.suppliers import Stores
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.metadata import TaskMetadata
from tests.support import Kafka, wait_until
from tests.support.engine import client, paused, reaches, running

Topic = Callable[..., str]
TEXT = Consumed(serdes.STRING, value=serdes.STRING)
OUT = Produced(serdes.STRING, value=serdes.STRING)
Answer = Callable[[ErrorHandlerContext, ConsumerRecord, Exception], object]


class Vanished(BaseException):
    """An exception class of the application."""


EXITS = [SystemExit(0), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Vanished("away")]


def bad(error: BaseException) -> Callable[[object], str]:
    """Return a function that raises for the value `bad`."""

    def check(value: object) -> str:
        if value in ("bad", b"bad"):
            raise error
        return value.decode() if isinstance(value, bytes) else str(value)

    return check


def failing_serde(error: BaseException, *, reads: bool) -> Serde:
    check = bad(error)
    return PlainSerde(
        "failing",
        lambda value: str(value).encode() if reads else check(value).encode(),
        lambda data: check(data) if reads else data.decode(),
        immutable=True,
    )


class Scheduled(Processor[str, str, str, str]):
    """Raises in one of the places that have no record."""

    error: ClassVar[BaseException]
    where: ClassVar[str]

    def init(self, context: ProcessorContext[str, str], /) -> None:
        if self.where == "init":
            raise self.error
        kind = PunctuationType.STREAM_TIME if self.where == "stream time" else PunctuationType.WALL_CLOCK_TIME
        context.schedule(50, kind, self.punctuate)

    def punctuate(self, now_ms: int) -> None:
        raise self.error

    def process(self, record: Record[str, str], /) -> None:
        """Accept any record."""


def scheduled(source: str, error: BaseException, where: str) -> Topology:
    Scheduled.error, Scheduled.where = error, where
    builder = StreamsBuilder()
    builder.stream(source, TEXT).process(Scheduled)
    return builder.build()


def copied(source: str, output: str, check: Callable[[str], str] = str, consumed: Consumed = TEXT, produced: Produced = OUT) -> Topology:
    builder = StreamsBuilder()
    builder.stream(source, consumed).map_values(check).to(output, produced)
    return builder.build()


def topology(where: str, source: str, output: str, error: BaseException) -> Topology:
    check = bad(error)
    match where:
        case "operator":
            return copied(source, output, check)
        case "deserializer":
            return copied(source, output, consumed=Consumed(serdes.STRING, value=failing_serde(error, reads=True)))
        case "serializer":
            return copied(source, output, produced=Produced(serdes.STRING, value=failing_serde(error, reads=False)))
        case "extractor of the time":
            return copied(
                source,
                output,
                consumed=Consumed(serdes.STRING, value=serdes.STRING, timestamp_extractor=lambda record, _: int(bool(check(record.value)))),
            )
        case "partitioner":
            produced = Produced(serdes.STRING, value=serdes.STRING, partitioner=lambda topic, key, value, count: int(not check(value)))
            return copied(source, output, produced=produced)
        case "extractor of the topic":
            builder = StreamsBuilder()
            builder.stream(source, TEXT).to(lambda key, value, _: output if check(value) else "", OUT)
            return builder.build()
        case "store":
            builder = StreamsBuilder()
            grouped = builder.stream(source, TEXT).group_by_key()
            grouped.reduce(lambda old, new: new, Materialized("latest", value=failing_serde(error, reads=False)))
            return builder.build()
        case _:
            return scheduled(source, error, where)


def alive(streams: KafkaStreams) -> list[float]:
    return [value for name, value in streams.metrics().items() if name.name == "alive-stream-threads"]


WITH_A_RECORD = ["operator", "deserializer", "serializer", "extractor of the time", "partitioner", "extractor of the topic"]
WITHOUT = ["init", "stream time", "wall clock", "store"]


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["operator"])
def test_whatever_an_operator_raises_ends_the_client_and_is_named(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, where: str, error: BaseException
) -> None:
    ends_and_is_named(broker, topic, application_id, state_dir, where, error)


@pytest.mark.parametrize("where", [*WITH_A_RECORD[1:], *WITHOUT])
def test_sys_exit_ends_the_client_and_is_named_wherever_it_is_called(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, where: str
) -> None:
    ends_and_is_named(broker, topic, application_id, state_dir, where, SystemExit(0))


def ends_and_is_named(broker: Kafka, topic: Topic, application_id: str, state_dir: Path, where: str, error: BaseException) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "good"), ("b", "bad")])
    with client(broker, topology(where, source, output, error), application_id, state_dir, **{"commit.interval.ms": 100}) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, StreamsError)
        assert type(error).__name__ in str(streams.failure)
        place = f"{source}-0@1" if where in WITH_A_RECORD else "store latest" if where == "store" else "task 0_0, node"
        assert place in str(streams.failure)
        assert alive(streams) == [0]
    assert broker.committed_offsets(application_id, source).get(0, 0) <= 1 + (where == "wall clock")


@pytest.mark.parametrize("handler", [LogAndContinueProcessingExceptionHandler, LogAndPauseProcessingExceptionHandler])
def test_the_processing_handler_decides_about_it(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[ProcessingExceptionHandler]
) -> None:
    source, output, dead = topic("in"), topic("out"), topic("dead")
    broker.produce(source, [("a", "good"), ("b", "bad"), ("c", "good")])
    made = topology("operator", source, output, SystemExit(7))
    settings = {"processing.exception.handler": handler, "errors.dead.letter.queue.topic.name": dead, "commit.interval.ms": 100}
    with running(broker, made, application_id, state_dir, **settings) as streams:
        if handler is LogAndContinueProcessingExceptionHandler:
            wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3}, what="the end of the input")
            [letter] = broker.consume(dead)
            assert dict(letter.headers)["__streams.errors.exception"] == b"SystemExit"
        else:
            wait_until(lambda: [task.state for task in tasks_of(streams)] == [TaskState.PAUSED], what="the pause")
            assert broker.committed_offsets(application_id, source) == {0: 1}
        assert streams.state is State.RUNNING


def tasks_of(streams: KafkaStreams) -> list[TaskMetadata]:
    return [task for thread in streams.metadata_for_local_threads() for task in thread.active_tasks]


class ExitsOnBytes(DeserializationExceptionHandler):
    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        raise SystemExit(0)


class ExitsOnErrors(ProcessingExceptionHandler):
    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        raise SystemExit(0)


@pytest.mark.parametrize(
    ("where", "key", "handler"),
    [
        ("deserializer", "deserialization.exception.handler", ExitsOnBytes),
        ("operator", "processing.exception.handler", ExitsOnErrors),
    ],
)
def test_a_handler_that_exits_ends_the_client_and_is_named(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, where: str, key: str, handler: type
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("b", "bad")])
    with client(broker, topology(where, source, output, ValueError("bad")), application_id, state_dir, **{key: handler}) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        for part in (handler.__name__, f"{source}-0@0", "SystemExit"):
            assert part in str(streams.failure)


class ExitsOnRestore:
    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
        raise SystemExit(0)


def test_listeners_and_the_uncaught_exception_handler_that_exit_do_not_stop_what_follows(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The state changes although its listener exits at every change; a restore listener that exits stops the client."""
    asked: list[BaseException] = []

    def exits(*_arguments: object) -> None:
        raise SystemExit(0)

    def ask(error: BaseException) -> StreamThreadExceptionResponse:
        asked.append(error)
        raise SystemExit(0)

    made = topology("store", topic("in"), topic("out"), ValueError())
    with client(broker, made, application_id, state_dir) as streams:
        streams.set_state_listener(exits)
        streams.set_uncaught_exception_handler(ask)
        streams.set_global_state_restore_listener(ExitsOnRestore())  # type: ignore[arg-type]  # it gets no further
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert alive(streams) == [0]
    assert "the listener ExitsOnRestore.on_restore_start, called for store latest (" in str(asked[0]) and "SystemExit" in str(asked[0])
    assert "the state listener failed at the move from CREATED to REBALANCING" in caplog.text
    assert "the uncaught-exception handler itself failed" in caplog.text


class ExitsInClose(Processor[str, str, str, str]):
    """Raises when it is closed."""

    def process(self, record: Record[str, str], /) -> None:
        """Accept any record."""

    def close(self) -> None:
        raise SystemExit(0)


@pytest.mark.parametrize("of", ["task", "global store"])
def test_a_processor_that_exits_in_close_at_a_clean_stop_ends_the_client_in_error(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, of: str
) -> None:
    """Processed records are committed nevertheless."""
    source, builder = topic("in"), StreamsBuilder()
    stream = builder.stream(source, TEXT)
    if of == "task":
        stream.process(ExitsInClose)
    else:
        rows = Stores.key_value_store_builder(Stores.in_memory_key_value_store("rows"), serdes.STRING, serdes.STRING)
        builder.add_global_store(rows, topic("global", 1, {"cleanup.policy": "compact"}), TEXT, ExitsInClose)
    broker.produce(source, [("a", "good")])
    with running(broker, builder.build(), application_id, state_dir, **{"commit.interval.ms": 60_000}) as streams:
        wait_until(lambda: [value for name, value in streams.metrics().items() if name.name == "process-total"] == [1.0], what="the record")
        streams.close()
        assert streams.state is State.ERROR
        assert "in close, at " in str(streams.failure) and ": SystemExit: 0" in str(streams.failure)
    assert broker.committed_offsets(application_id, source) == {0: 1}


def test_a_thread_that_is_replaced_continues(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("b", "bad"), ("c", "good")])
    left: Iterator[int] = iter([1])

    def once(value: str) -> str:
        if value == "bad" and next(left, None):
            raise SystemExit(0)
        return value

    with client(broker, copied(source, output, once), application_id, state_dir) as streams:
        streams.set_uncaught_exception_handler(lambda error: StreamThreadExceptionResponse.REPLACE_THREAD)
        streams.start()
        wait_until(lambda: len(broker.consume(output)) == 2, what="both records")
        reaches(streams, State.RUNNING)
        assert alive(streams) == [1]


class Textless(Exception):
    """An exception that raises when it is converted to text."""

    def __str__(self) -> str:
        return str(self.args[7])


class ContinueProduction(ProductionExceptionHandler):
    def handle_serialization_exception(
        self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception, origin: SerializationExceptionOrigin
    ) -> ProductionExceptionHandlerResponse:
        return ProductionExceptionHandlerResponse.CONTINUE


HANDLERS: dict[str, dict[str, type]] = {
    "CONTINUE": {
        "deserialization": LogAndContinueExceptionHandler,
        "processing": LogAndContinueProcessingExceptionHandler,
        "production": ContinueProduction,
    },
    "PAUSE": {
        "deserialization": LogAndPauseExceptionHandler,
        "processing": LogAndPauseProcessingExceptionHandler,
        "production": LogAndPauseProductionExceptionHandler,
    },
}
TEXTS = [Textless(), ValueError("no text for UTF-8: \ud800")]


@pytest.mark.parametrize("error", TEXTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["operator", "deserializer", "serializer", "extractor of the time"])
@pytest.mark.parametrize("answer", ["CONTINUE", "PAUSE", "FAIL"])
def test_an_error_whose_text_cannot_be_written_goes_to_the_handler_like_any_other(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, where: str, error: BaseException, answer: str
) -> None:
    """Such a text appears in log, event and dead letter, and comes from the record itself."""
    source, output, dead = topic("in"), topic("out"), topic("dead")
    broker.produce(source, [("a", "good"), ("b", "bad"), ("c", "good")])
    settings: dict[str, object] = {"errors.dead.letter.queue.topic.name": dead, "commit.interval.ms": 100}
    for kind, handlers in HANDLERS.get(answer, {}).items():
        settings[f"{kind}.exception.handler"] = handlers
    with client(broker, topology(where, source, output, error), application_id, state_dir, **settings) as streams:
        streams.start()
        match answer:
            case "CONTINUE":
                wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3} or streams.failure, what="the input's end")
                assert streams.failure is None
                [letter] = broker.consume(dead)
                assert dict(letter.headers)["__streams.errors.exception"] == type(error).__name__.encode()
            case "PAUSE":
                wait_until(lambda: paused(streams) == {"0_0"} or streams.failure, what="the pause")
                assert streams.failure is None
            case _:
                wait_until(lambda: streams.state is State.ERROR, what="the end")
                assert f"{source}-0@1" in str(streams.failure)
                assert type(error).__name__ in str(streams.failure)
