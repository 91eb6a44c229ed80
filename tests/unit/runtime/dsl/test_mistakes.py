"""Mistakes that change results without an error are warned of, once, with the node and its line."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import pytest

from penstock import (
    JoinWindows,
    KafkaStreams,
    KGroupedStream,
    KStream,
    LogAndContinueProcessingExceptionHandler,
    LogAndFailProcessingExceptionHandler,
    LogAndPauseProcessingExceptionHandler,
    Materialized,
    ProcessingError,
    ProcessingExceptionHandler,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serdes,
)
from penstock.testing import TopologyTestDriver

HOUR = timedelta(hours=1)
NONE = "returned None for every record"
NO_KEY = "dropped a record without a key"
HERE = "test_mistakes.py"


def forgets(key: object, value: object, total: list[object]) -> list[object]:
    return total.append(value)  # type: ignore[func-returns-value, return-value]  # the mistake


def remembers(key: object, value: object, total: list[object]) -> list[object]:
    return [*total, value]


def merges(key: object, one: list[object], other: list[object]) -> list[object]:
    return [*one, *other]


Define = Callable[[KStream], object]
Aggregate = Callable[[KGroupedStream, Callable[..., list[object]]], object]


def driven(define: Define, keys: list[str | None], caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings while records with these keys pass through a topology, twice: as two tasks would log them."""
    builder = StreamsBuilder()
    define(builder.stream("in", key=serdes.STRING, value=serdes.STRING))
    config = {"application.id": f"app-{uuid4().hex}"}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with TopologyTestDriver(builder.build(), config) as driver:
                source = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
                for at, key in enumerate(keys):
                    source.pipe_input(key, "value", timestamp=10_000 + at)
    return [record.getMessage() for record in caplog.records]


AGGREGATES: list[Aggregate] = [
    lambda grouped, add: grouped.aggregate(list, add, value=serdes.JSON),
    lambda grouped, add: grouped.windowed_by(TimeWindows.of_size_with_no_grace(HOUR)).aggregate(list, add, value=serdes.JSON),
    lambda grouped, add: grouped.windowed_by(SlidingWindows.of_time_difference_with_no_grace(HOUR)).aggregate(list, add, value=serdes.JSON),
    lambda grouped, add: grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(HOUR)).aggregate(
        list, add, merges, value=serdes.JSON
    ),
    lambda grouped, add: grouped.cogroup(add).aggregate(list, value=serdes.JSON),
    lambda grouped, add: (
        grouped.count().group_by(lambda k, v: (k, v), key=serdes.STRING, value=serdes.LONG).aggregate(list, add, add, value=serdes.JSON)
    ),
]


@pytest.mark.parametrize(
    ("handler", "then"),
    [
        (LogAndFailProcessingExceptionHandler, "the client stops"),
        (LogAndContinueProcessingExceptionHandler, "it is skipped"),
        (LogAndPauseProcessingExceptionHandler, "the task pauses"),
    ],
)
def test_a_failed_record_is_logged_with_line_error_and_consequence(
    handler: type[ProcessingExceptionHandler], then: str, caplog: pytest.LogCaptureFixture
) -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.STRING, value=serdes.JSON).map_values(lambda value: value["gate"]).to("out")
    settings = {"application.id": "app", "processing.exception.handler": handler, "default.value.serde": serdes.JSON}
    with TopologyTestDriver(builder.build(), settings) as driver, suppress(ProcessingError):
        driver.create_input_topic("in", serdes.STRING, serdes.JSON).pipe_input("UA1", {})
    (message,) = (record.getMessage() for record in caplog.records if "failed in" in record.getMessage())
    assert re.search(rf"record in-0@0 failed in .*, at .*{HERE}:\d+ in .*: KeyError: 'gate'; {then}$", message), message


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("records", [1, 25])
def test_an_aggregator_that_always_returns_none(aggregate: Aggregate, records: int, caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = driven(lambda stream: aggregate(stream.group_by_key(), forgets), ["a"] * records, caplog)
    assert NONE in warning and f"(aggregate at {HERE}:" in warning and f"so far ({min(records, 10)})" in warning


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_an_aggregator_that_returns_a_value_is_not_reported(aggregate: Aggregate, caplog: pytest.LogCaptureFixture) -> None:
    def once(key: object, value: object, total: list[object]) -> list[object] | None:
        return None if total else remembers(key, value, total)

    assert driven(lambda stream: aggregate(stream.group_by_key(), remembers), ["a"] * 3, caplog) == []
    assert driven(lambda stream: aggregate(stream.group_by_key(), once), ["a"] * 25, caplog) == []  # type: ignore[arg-type]


def test_an_aggregator_is_called_directly_once_it_has_returned_a_value(caplog: pytest.LogCaptureFixture) -> None:
    import inspect

    callers: list[str] = []

    def add(key: str, value: str, total: int) -> int | None:
        frame = inspect.currentframe()
        assert frame is not None and frame.f_back is not None
        callers.append(frame.f_back.f_code.co_name)
        return total + 1 if len(callers) > 2 else None

    driven(lambda stream: stream.group_by_key().aggregate(int, add, "n", value=serdes.LONG, named="adding"), ["a"] * 5, caplog)
    assert callers[:5] == ["watched", "watched", "watched", "adding", "adding"]


JOINS: list[Define] = [
    lambda stream: stream.group_by_key().count(),
    lambda stream: stream.group_by_key().aggregate(list, remembers, value=serdes.JSON),
    lambda stream: stream.map(lambda k, v: (k, v)).group_by_key(key=serdes.STRING, value=serdes.STRING).count(),
    lambda stream: stream.group_by(lambda k, v: k, key=serdes.STRING).count(),
    lambda stream: stream.join(stream.group_by_key().count(), lambda left, right: left),
    lambda stream: stream.join(stream, lambda left, right: left, JoinWindows.of_time_difference_with_no_grace(HOUR)),
    lambda stream: stream.to_table(Materialized("rows")),
    lambda stream: stream.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(HOUR)).count(),
    lambda stream: stream.group_by_key().windowed_by(SlidingWindows.of_time_difference_with_no_grace(HOUR)).count(),
    lambda stream: stream.group_by_key().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(HOUR)).count(),
]


@pytest.mark.parametrize("define", JOINS)
def test_records_without_a_key_before_an_operation_by_key(define: Define, caplog: pytest.LogCaptureFixture) -> None:
    warnings = driven(define, ["a", None, None], caplog)
    assert 1 <= len(warnings) <= 2, "one for each node that drops them"
    for warning in warnings:
        assert NO_KEY in warning and f" at {HERE}:" in warning and ": in-0@1. " in warning


def test_a_node_with_a_name_is_shown_with_its_line_too(caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = driven(lambda stream: stream.group_by_key().count("n", named="counting"), [None], caplog)
    assert f"node counting (count at {HERE}:" in warning


def test_they_are_counted_by_reason_in_front_of_a_repartition_topic_too(caplog: pytest.LogCaptureFixture) -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.STRING, value=serdes.STRING).group_by(lambda k, v: None, key=serdes.STRING).count()
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", serdes.STRING, serdes.STRING).pipe_value_list(["a", "b"])
        dropped = {
            dict(name.tags).get("reason"): value for name, value in driver.metrics().items() if name.name.startswith("dropped-records")
        }
    assert dropped["null-key"] == 2.0 and dropped[None] == 0.0, "in Kafka Streams' total they are not"


def idle(stream: KStream) -> None:
    stream.filter(lambda key, value: True).map_values(lambda value: value)


def test_a_reducer_that_forgets_its_result_is_reported_and_one_that_was_never_called_is_not(caplog: pytest.LogCaptureFixture) -> None:
    def forgets(kept: str, value: str) -> str:
        """Like a function without a return."""
        return None  # type: ignore[return-value]

    (warning,) = driven(lambda stream: stream.group_by_key().reduce(forgets), ["a"] * 5, caplog)
    assert NONE in warning and f"(reduce at {HERE}:" in warning
    caplog.clear()
    assert driven(lambda stream: stream.group_by_key().reduce(forgets, "again"), ["a"], caplog) == []


async def posted(value: str) -> None:
    """A call to a service."""


def test_a_topology_of_which_nothing_comes(caplog: pytest.LogCaptureFixture) -> None:
    warning, again = driven(idle, [], caplog)
    line = idle.__code__.co_firstlineno + 1
    assert f"without effect: sub-topology 0, which ends at KSTREAM-MAPVALUES-0000000002 (map_values at {HERE}:{line}). It" in warning
    assert warning == again, "each client warns"


def test_a_client_warns_of_it_too(caplog: pytest.LogCaptureFixture) -> None:
    builder = StreamsBuilder()
    idle(builder.stream("in", key=serdes.STRING, value=serdes.STRING))
    builder.stream("other", key=serdes.STRING, value=serdes.STRING).to("out")
    with caplog.at_level(logging.WARNING):
        KafkaStreams(builder.build(), {"application.id": "app", "bootstrap.servers": "none:9092"}).close()
    assert [record.getMessage().count("sub-topology 0") for record in caplog.records] == [1]
    assert "sub-topology 1" not in caplog.text


@pytest.mark.parametrize(
    "define",
    [
        lambda stream: stream.to("out"),
        lambda stream: stream.foreach(lambda key, value: None),
        lambda stream: stream.peek(lambda key, value: None),
        lambda stream: stream.map_async(posted),
        lambda stream: stream.map_batches(list),
        lambda stream: stream.group_by_key().count(),
    ],
)
def test_what_has_an_effect_is_not_reported(define: Define, caplog: pytest.LogCaptureFixture) -> None:
    assert driven(define, ["a"], caplog) == []


def test_a_length_below_a_second_as_a_bare_number(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        TimeWindows.of_size_with_no_grace(5)
        SlidingWindows.of_time_difference_and_grace(999, 0)
        SessionWindows.of_inactivity_gap_with_no_grace(30)
        JoinWindows.of_time_difference_with_no_grace(60)
        Materialized("rows", ttl=60)
        Stores.persistent_key_value_store("rows", ttl=60)
        StreamsBuilder().stream("in", key=serdes.STRING).deduplicate(within=60)
        TimeWindows.of_size_with_no_grace(HOUR).advance_by(10)
        JoinWindows.of_time_difference_with_no_grace(HOUR).before(5).after(-5)
        Suppressed.until_time_limit(5, Suppressed.BufferConfig.unbounded())
    StreamsBuilder().table("in", Materialized("rows", key=serdes.STRING, value=serdes.STRING, ttl=30)).filter(lambda k, v: True, "filtered")
    Materialized("rows", ttl=timedelta(milliseconds=60))
    TimeWindows.of_size_and_grace(1000, 5)
    TimeWindows.of_size_with_no_grace(timedelta(milliseconds=5))
    JoinWindows.of_time_difference_with_no_grace(0)
    here = [message for record in caplog.records if f" at {HERE}:" in (message := record.getMessage())]
    assert [message.partition(" at ")[0] for message in here] == [
        "of_size_with_no_grace",
        "of_time_difference_and_grace",
        "of_inactivity_gap_with_no_grace",
        "of_time_difference_with_no_grace",
        "Materialized",
        "persistent_key_value_store",
        "deduplicate",
        "advance_by",
        "before",
        "until_time_limit",
        "Materialized",
    ]
    assert len(here) == len(caplog.records), "a copy of a Materialized with the name of its node is not reported again"
    assert "the window size of 5 is 5 ms. A bare number is in milliseconds; for seconds give timedelta(seconds=5)" in here[0]
    assert all(line.count("Materialized") <= 1 for line in here), "the call is named once"
