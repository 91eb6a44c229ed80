"""Decoding by runs, and the record that cannot be read."""

from __future__ import annotations

import pytest

from penstock import serdes
from penstock.runtime.input.deserialization import Decoder, ask_handler, raw_record
from penstock.runtime.model.errors import DeserializationError, StreamsError
from penstock.runtime.model.handlers import (
    DeserializationExceptionHandler,
    DeserializationHandlerResponse,
    ErrorHandlerContext,
    LogAndContinueExceptionHandler,
    LogAndFailExceptionHandler,
    LogAndPauseExceptionHandler,
    dead_letter_headers,
    make_handler,
)
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.timestamps import ConsumerRecord, LogAndSkipOnInvalidTimestamp, UsePartitionTimeOnInvalidTimestamp
from penstock.serdes import Serde
from tests.support.raw_messages import Raw


def strings(extractor: object = None) -> Decoder:
    return Decoder("t", serdes.STRING, serdes.STRING, extractor)


def test_a_run_becomes_columns() -> None:
    batch, failure = strings().decode([Raw(7, b"a", b"1", 10), Raw(8, None, b"2", 11), Raw(9, b"c", None, 12)], -1)
    assert failure is None
    assert batch.keys == ["a", None, "c"]
    assert batch.values == ["1", "2", None]
    assert batch.timestamps == [10, 11, 12]
    assert list(batch.offsets) == [7, 8, 9]
    assert batch.headers is None
    assert batch.end == 10


def test_offsets_with_gaps_are_kept() -> None:
    batch, _ = strings().decode([Raw(1), Raw(2), Raw(9)], -1)
    assert list(batch.offsets) == [1, 2, 9]
    assert batch.end == 10


def test_headers_are_there_when_a_record_has_some() -> None:
    batch, _ = strings().decode([Raw(1), Raw(2, raw_headers=[("h", b"x")])], -1)
    assert batch.headers == [None, [("h", b"x")]]


def test_rule_16_decoding_stops_at_the_first_failure_and_leaves_the_rest() -> None:
    messages = [Raw(1, b"a"), Raw(2, b"\xff"), Raw(3, b"c"), Raw(4, b"\xff")]
    batch, failure = strings().decode(messages, -1)
    assert batch.keys == ["a"]
    assert batch.end == 2
    assert failure is not None
    assert failure.message.offset() == 2
    assert isinstance(failure.error.__cause__, UnicodeDecodeError)
    assert "t-0@2" in str(failure.error)


def test_a_failure_at_the_first_record_gives_an_empty_batch() -> None:
    batch, failure = strings().decode([Raw(5, b"\xff"), Raw(6)], -1)
    assert batch.timestamps == []
    assert batch.end == 5
    assert failure is not None


def test_a_negative_timestamp_fails_by_default() -> None:
    batch, failure = strings().decode([Raw(1, time=3), Raw(2, time=-1)], -1)
    assert len(batch.keys) == 1
    assert failure is not None
    assert "timestamp" in str(failure.error)


def test_a_negative_timestamp_is_dropped_by_an_extractor_that_skips() -> None:
    batch, failure = strings(LogAndSkipOnInvalidTimestamp).decode([Raw(1, time=3), Raw(2, time=-1), Raw(3, time=4)], -1)
    assert failure is None
    assert list(batch.offsets) == [1, 3]
    assert batch.dropped == 1
    assert batch.end == 4


def test_partition_time_takes_the_place_of_a_negative_timestamp() -> None:
    batch, _ = strings(UsePartitionTimeOnInvalidTimestamp).decode([Raw(1, time=-1), Raw(2, time=9), Raw(3, time=-1)], 5)
    assert batch.timestamps == [5, 9, 9]


def test_an_extractor_that_raises_is_a_failure_of_the_record() -> None:
    def extract(record: ConsumerRecord, partition_time: int) -> int:
        if record.value == "bad":
            raise KeyError("when")
        return 1

    batch, failure = strings(extract).decode([Raw(1), Raw(2, raw_value=b"bad")], -1)
    assert len(batch.keys) == 1
    assert failure is not None
    assert isinstance(failure.error.__cause__, KeyError)


def test_a_serde_of_the_users_sees_the_headers_of_its_own_record() -> None:
    seen: list[object] = []

    def read(topic: str, headers: object, data: bytes) -> bytes:
        seen.append(headers)
        return data

    serde = Serde(lambda topic, headers, data: data, read)
    Decoder("t", serdes.BYTES, serde).decode([Raw(1, raw_headers=[("n", b"1")]), Raw(2, raw_headers=[("n", b"2")])], -1)
    assert seen == [[("n", b"1")], [("n", b"2")]]


@pytest.mark.parametrize(
    ("handler", "response"),
    [
        (LogAndFailExceptionHandler, DeserializationHandlerResponse.FAIL),
        (LogAndContinueExceptionHandler, DeserializationHandlerResponse.CONTINUE),
        (LogAndPauseExceptionHandler, DeserializationHandlerResponse.PAUSE),
    ],
)
def test_the_handlers_answers(handler: type[DeserializationExceptionHandler], response: DeserializationHandlerResponse) -> None:
    _, failure = strings().decode([Raw(5, b"\xff", b"v", 3)], -1)
    assert failure is not None
    assert ask_handler(handler(), failure, TaskId(0, 0)) is response


def test_a_handler_gets_the_raw_bytes_and_what_the_serde_raised() -> None:
    got: list[tuple[ErrorHandlerContext, ConsumerRecord, Exception]] = []

    class Watcher(DeserializationExceptionHandler):
        def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
            got.append((context, record, exception))
            return DeserializationHandlerResponse.CONTINUE

    _, failure = strings().decode([Raw(5, b"\xff", b"v", 3)], -1)
    assert failure is not None
    ask_handler(Watcher(), failure, TaskId(1, 0))
    [(context, record, exception)] = got
    assert (context.topic, context.partition, context.offset, context.task_id) == ("t", 0, 5, TaskId(1, 0))
    assert (record.key, record.value, record.timestamp) == (b"\xff", b"v", 3)
    assert isinstance(exception, UnicodeDecodeError)


def test_a_handler_that_answers_nonsense_is_an_error() -> None:
    class Silent(DeserializationExceptionHandler):
        def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
            return None  # type: ignore[return-value]  # what a handler without a return statement does

    _, failure = strings().decode([Raw(5, b"\xff")], -1)
    assert failure is not None
    with pytest.raises(StreamsError, match="expected CONTINUE, FAIL or PAUSE"):
        ask_handler(Silent(), failure, TaskId(0, 0))


def test_a_handler_is_made_from_its_dotted_path_and_configured_once() -> None:
    handler = make_handler("penstock.LogAndPauseExceptionHandler", DeserializationExceptionHandler, {}, "key")
    assert isinstance(handler, LogAndPauseExceptionHandler)
    with pytest.raises(StreamsError, match=r"deserialization\.exception\.handler"):
        make_handler("penstock.Nothing", DeserializationExceptionHandler, {}, "deserialization.exception.handler")
    with pytest.raises(StreamsError, match="not a DeserializationExceptionHandler"):
        make_handler(int, DeserializationExceptionHandler, {}, "key")


def test_a_dead_letter_keeps_its_headers_and_says_where_it_came_from() -> None:
    record = raw_record(Raw(5, b"k", b"v", 3, [("own", b"1")]))
    headers = dict(dead_letter_headers(record, DeserializationError("no")))
    assert headers["own"] == b"1"
    assert headers["__streams.errors.topic"] == b"t"
    assert headers["__streams.errors.offset"] == b"5"
    assert headers["__streams.errors.message"] == b"no"
