"""Records that cannot be read or processed: each answer of each handler, the dead letters, and both guarantees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.errors import DeserializationError, ProcessingError, StreamsConfigError, StreamsError, TransactionAbortedError
from penstock.runtime.model.handlers import (
    DeserializationExceptionHandler,
    DeserializationHandlerResponse,
    ErrorHandlerContext,
    ProcessingExceptionHandler,
    ProcessingHandlerResponse,
)
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import State
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.committer import Committer
from tests.support import Kafka, RawRecord, wait_until
from tests.support.engine import BAD, client, paused, running

Topic = Callable[..., str]
GUARANTEES = ["exactly_once_v2", "at_least_once"]
KINDS = ["deserialization", "processing"]
POISON = b"poison"


class Reading(DeserializationExceptionHandler):
    """Returns the answer set by the test."""

    answer: ClassVar[object] = None
    asked: ClassVar[list[tuple[ErrorHandlerContext, ConsumerRecord, Exception]]] = []
    configs: ClassVar[list[Mapping[str, object]]] = []

    def configure(self, configs: Mapping[str, object]) -> None:
        self.configs.append(configs)

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        return answered(DeserializationHandlerResponse, context, record, exception)


class Working(ProcessingExceptionHandler):
    """The same for processing."""

    def configure(self, configs: Mapping[str, object]) -> None:
        Reading.configs.append(configs)

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        return answered(ProcessingHandlerResponse, context, record, exception)


R = TypeVar("R", DeserializationHandlerResponse, ProcessingHandlerResponse)


def answered(response: type[R], context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> R:
    """Note the question, and give the answer set by the test, which may be none that is allowed."""
    Reading.asked.append((context, record, exception))
    if isinstance(Reading.answer, Exception):
        raise Reading.answer
    return response(Reading.answer) if Reading.answer in ("CONTINUE", "FAIL", "PAUSE") else Reading.answer  # type: ignore[return-value]


@pytest.fixture
def answer() -> Iterator[Callable[[object], None]]:
    """Return a function that sets the answer of both handlers."""
    Reading.asked.clear()
    Reading.configs.clear()

    def set_answer(answer: object) -> None:
        Reading.answer = answer

    yield set_answer


def divide(key: str, value: str) -> str:
    if value == POISON.decode():
        raise ZeroDivisionError("poison")
    return value


def topology(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
    stream.map_values(divide, "divide").to(output, Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


def settings(guarantee: str, **more: object) -> dict[str, object]:
    return {
        "processing.guarantee": guarantee,
        "commit.interval.ms": 100,
        "deserialization.exception.handler": Reading,
        "processing.exception.handler": Working,
        **more,
    }


def bad(kind: str) -> bytes:
    return BAD if kind == "deserialization" else POISON


def values(records: list[RawRecord]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("kind", KINDS)
def test_continue_keeps_the_record_as_a_dead_letter_once_also_if_the_commit_is_rolled_back(
    broker: Kafka,
    topic: Topic,
    application_id: str,
    state_dir: Path,
    answer: Callable[[object], None],
    monkeypatch: pytest.MonkeyPatch,
    guarantee: str,
    kind: str,
) -> None:
    answer("CONTINUE")
    source, output, dead = topic("in"), topic("out"), topic("dead")
    rows = [("a", b"1"), ("b", bad(kind)), ("c", b"2")]
    broker.produce(source, rows, timestamps=[1_000, 2_000, 3_000], headers=[("trace", b"7")])
    fail_first_commit(monkeypatch)
    with running(
        broker, topology(source, output), application_id, state_dir, **settings(guarantee, **{"errors.dead.letter.queue.topic.name": dead})
    ):
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3}, what="the commit")
    letters = broker.consume(dead)
    assert {letter.value for letter in letters} == {bad(kind)}
    if guarantee == "exactly_once_v2":
        assert len(letters) == 1
        assert values(broker.consume(output)) == [b"1", b"2"]
    reported = dict(letters[0].headers)
    assert (letters[0].key, letters[0].timestamp, reported["trace"]) == (b"b", 2_000, b"7")
    assert reported["__streams.errors.exception"] == (b"UnicodeDecodeError" if kind == "deserialization" else b"ZeroDivisionError")
    assert (reported["__streams.errors.topic"], reported["__streams.errors.partition"], reported["__streams.errors.offset"]) == (
        source.encode(),
        b"0",
        b"1",
    )
    assert reported["__streams.errors.message"]
    assert b"Traceback" in (reported["__streams.errors.stacktrace"] or b"")
    context, record, _ = Reading.asked[0]
    assert (context.topic, context.partition, context.offset, context.task_id) == (source, 0, 1, TaskId(0, 0))
    assert (context.source_raw_key, context.source_raw_value) == (b"b", bad(kind))
    assert context.processor_node_id == (None if kind == "deserialization" else "divide")
    assert record.key == (b"b" if kind == "deserialization" else "b")
    assert Reading.configs[0]["application.id"] == application_id


def fail_first_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first commit after a handler's call fail as if the broker had refused it."""
    real = Committer.commit
    failed: list[bool] = []

    def commit(self: Committer, *arguments: object) -> bool:
        if Reading.asked and not failed:
            failed.append(True)
            raise TransactionAbortedError("refused")
        return real(self, *arguments)  # type: ignore[arg-type]  # passed on unchanged

    monkeypatch.setattr(Committer, "commit", commit)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("response", ["FAIL", ValueError("no idea"), "MAYBE"])
def test_fail_and_a_handler_that_fails_itself_end_the_client_before_the_record(
    broker: Kafka,
    topic: Topic,
    application_id: str,
    state_dir: Path,
    answer: Callable[[object], None],
    guarantee: str,
    kind: str,
    response: object,
) -> None:
    answer(response)
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", b"1"), ("b", bad(kind)), ("c", b"2")])
    with client(broker, topology(source, output), application_id, state_dir, **settings(guarantee)) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        wanted = {"deserialization": DeserializationError, "processing": ProcessingError}[kind] if response == "FAIL" else StreamsError
        assert isinstance(streams.failure, wanted)
        assert f"{source}-0@1" in str(streams.failure) or (response == "MAYBE" and "returned 'MAYBE'" in str(streams.failure))
        if response != "FAIL":
            assert ("Reading" if kind == "deserialization" else "Working") in str(streams.failure)
    assert broker.committed_offsets(application_id, source).get(0, 0) <= 1
    assert b"2" not in values(broker.consume(output))


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("kind", KINDS)
def test_pause_holds_the_task_before_the_record_and_the_others_continue(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, answer: Callable[[object], None], guarantee: str, kind: str
) -> None:
    answer("PAUSE")
    source, output, dead = topic("in", partitions=2), topic("out"), topic("dead")
    broker.produce(source, [("a", b"1"), ("b", bad(kind)), ("c", b"2")], partition=0)
    more = {"errors.dead.letter.queue.topic.name": dead}
    with running(broker, topology(source, output), application_id, state_dir, **settings(guarantee, **more)) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        broker.produce(source, [("d", b"3")], partition=1)
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 1, 1: 1}, what="the other task's commit")
        answer("CONTINUE")
        assert streams.resume(TaskId(0, 0))
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3, 1: 1}, what="the end of the input")
    found = values(broker.consume(output))
    assert sorted(found, key=str) == [b"1", b"2", b"3"] if guarantee == "exactly_once_v2" else set(found) == {b"1", b"2", b"3"}
    assert values(broker.consume(dead)) == [bad(kind)]


class Broken(DeserializationExceptionHandler):
    """A handler that rejects its configuration."""

    def configure(self, configs: Mapping[str, object]) -> None:
        raise KeyError("my.setting")


def test_a_handler_that_cannot_be_configured_is_named_with_its_key(state_dir: Path) -> None:
    with pytest.raises(StreamsConfigError, match=r"deserialization.exception.handler = .*Broken.* cannot be made: KeyError: 'my.setting'"):
        broken = {"deserialization.exception.handler": Broken}
        client(Kafka("127.0.0.1:1"), topology("in", "out"), "app", state_dir, **broken).start()
