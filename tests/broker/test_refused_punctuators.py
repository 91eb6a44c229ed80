"""Records of a punctuator that brokers refuse: they belong to no input record, and a rollback does not produce them again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.runtime import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Produced
from penstock.runtime.model.errors import ProductionError
from penstock.runtime.model.handlers import ProductionExceptionHandlerResponse
from penstock.runtime.model.record import Record
from penstock.runtime.model.states import State
from penstock.runtime.operators.processor import Processor, ProcessorContext, PunctuationType
from penstock.runtime.stores.interfaces import KeyValueStore
from penstock.runtime.stores.suppliers import Stores
from penstock.runtime.topology.topology import Topology
from tests.broker.test_refused_outputs import Asked, settings
from tests.broker.test_refused_state import FAR_AHEAD_MS, GUARANTEES, LIMIT, TEXT, fed, limited
from tests.support import Kafka, wait_until
from tests.support.engine import client, running

Topic = Callable[..., str]
Response = ProductionExceptionHandlerResponse
OUT = Produced(serdes.STRING, value=serdes.STRING)


@pytest.fixture
def handler() -> Iterator[type[Asked]]:
    Asked.answer = Response.CONTINUE
    Asked.questions.clear()
    yield Asked


class Ticks(Processor[str, str, str, str]):
    """Forwards records; when its punctuator runs, it writes a record that is refused, and a valid output after it."""

    what: ClassVar[str]

    def init(self, context: ProcessorContext[str, str], /) -> None:
        self.context = context
        context.schedule(200, PunctuationType.WALL_CLOCK_TIME, self.punctuate)

    def punctuate(self, now_ms: int) -> None:
        key = uuid.uuid4().hex  # a new one each time
        if self.what == "time":
            self.context.forward(Record(key, "bad", now_ms + FAR_AHEAD_MS))
        else:
            self.context.forward(Record(key, "x" * (LIMIT + 1 + uuid.uuid4().int % 100), now_ms))
        self.context.forward(Record("tick", "tick", now_ms))

    def process(self, record: Record[str, str], /) -> None:
        self.context.forward(record)


def ticking(source: str, output: str, what: str) -> Topology:
    Ticks.what = what
    builder = StreamsBuilder()
    builder.stream(source, TEXT).process(Ticks).to(output, OUT)
    return builder.build()


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("what", ["time", "size"])
def test_what_a_punctuator_writes_is_left_out_alone_and_the_records_beside_it_continue(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str, what: str
) -> None:
    source, output = topic("in"), topic("out", config={"max.message.bytes": str(LIMIT)})
    with (
        running(broker, ticking(source, output, what), application_id, state_dir, **settings(guarantee)) as streams,
        fed(broker, source) as sent,
    ):
        wait_until(lambda: len(handler.questions) >= 3, what="the handler's third question")
        now = sent()
        wait_until(lambda: broker.committed_offsets(application_id, source).get(0, 0) > now, what="progress")
        assert streams.state is State.RUNNING
    assert {(context.offset, context.topic) for context, _, _ in handler.questions} == {(-1, "")}
    found = [record.value for record in broker.consume(output)]
    assert b"tick" in found and b"bad" not in found
    records = [value for value in found if value != b"tick"]
    wanted = [f"v{number}".encode() for number in range(now)]
    if guarantee == "exactly_once_v2":
        assert records[:now] == wanted and len(set(records)) == len(records)
    else:
        assert set(records) >= set(wanted)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("what", ["time", "size"])
@pytest.mark.parametrize("answer", [Response.FAIL, Response.PAUSE])
def test_fail_and_pause_end_the_client_and_name_the_punctuator(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, handler: type[Asked], guarantee: str, what: str, answer: Response
) -> None:
    """There is no record before which the task could pause."""
    handler.answer = answer
    source, output = topic("in"), topic("out", config={"max.message.bytes": str(LIMIT)})
    with fed(broker, source), client(broker, ticking(source, output, what), application_id, state_dir, **settings(guarantee)) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, ProductionError)
        for part in (
            "task 0_0, node KSTREAM-SINK",
            "a punctuator: its output",
            output,
            "INVALID_TIMESTAMP" if what == "time" else "TOO_LARGE",
        ):
            assert part in str(streams.failure)
        advised = f"let topic {output} take it" in str(streams.failure) and "answer CONTINUE, which drops this output" in str(
            streams.failure
        )
        assert advised is (answer is Response.PAUSE)


class Grows(Processor[str, str, str, str]):
    """Keeps the last value of each key; its punctuator writes a row that the changelog refuses."""

    kind: ClassVar[PunctuationType]

    def init(self, context: ProcessorContext[str, str], /) -> None:
        self.store: KeyValueStore[str, str] = context.get_state_store("rows")
        context.schedule(200, self.kind, lambda now_ms: self.store.put("large", "x" * (LIMIT + 1)))

    def process(self, record: Record[str, str], /) -> None:
        self.store.put(record.key, record.value)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("kind", PunctuationType, ids=lambda kind: kind.value)
def test_state_of_a_punctuator_that_is_refused_ends_the_client_and_no_record_is_left_out_for_it(
    broker: Kafka,
    topic: Topic,
    application_id: str,
    state_dir: Path,
    handler: type[Asked],
    guarantee: str,
    kind: PunctuationType,
) -> None:
    """Also by stream time, where a record triggers the punctuator."""
    source, dead = topic("in"), topic("dead")
    Grows.kind = kind
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store_builder(Stores.persistent_key_value_store("rows"), serdes.STRING, serdes.STRING))
    builder.stream(source, TEXT).process(Grows, "rows")
    more = {"errors.dead.letter.queue.topic.name": dead}
    with running(broker, builder.build(), application_id, state_dir, **settings(guarantee, **more)) as streams:
        refusing = limited(broker, application_id, "rows-changelog")
        with fed(broker, source):
            wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, ProductionError)
        for part in (f"a punctuator: its output of {LIMIT + 6} bytes to {refusing} was refused", "MSG_SIZE_TOO_LARGE", "a punctuator is"):
            assert part in str(streams.failure)
    assert {context.offset for context, _, _ in handler.questions} == {-1}
    assert broker.consume(dead) == []
