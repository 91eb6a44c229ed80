"""Event times at the ends of what a timestamp holds: each operator takes or drops such a record, and the records around it count."""

from __future__ import annotations

import ast
from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock import Processor, ProcessorContext, PunctuationType, Record, serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.grouped import KGroupedStream
from penstock.runtime.dsl.ktable import KTable
from penstock.runtime.dsl.options import Consumed, Grouped, Produced, StreamJoined
from penstock.runtime.dsl.windows import (
    EmitStrategy,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)
from penstock.runtime.model.errors import ProcessingError
from penstock.testing import TopologyTestDriver

MINUTE = timedelta(minutes=1)
TEXT = Consumed(serdes.STRING, value=serdes.STRING, timestamp_extractor=lambda record, _: int(str(record.value)))
TIMES = [-(2**63), -1, 0, 2**40, 253_402_300_800_000, 2**62, 2**63 - 1_000, 2**63 - 3, 2**63 - 2, 2**63 - 1]
KINDS: dict[str, Callable[[KGroupedStream[str, str]], KTable[object, int]]] = {
    "none": lambda grouped: grouped.count(),
    "tumbling": lambda grouped: grouped.windowed_by(TimeWindows.of_size_with_no_grace(MINUTE)).count(),
    "hopping": lambda grouped: grouped.windowed_by(TimeWindows.of_size_and_grace(MINUTE, MINUTE).advance_by(timedelta(seconds=20))).count(),
    "sliding": lambda grouped: grouped.windowed_by(SlidingWindows.of_time_difference_and_grace(MINUTE, MINUTE)).count(),
    "sessions": lambda grouped: grouped.windowed_by(SessionWindows.of_inactivity_gap_and_grace(MINUTE, MINUTE)).count(),
    "emitted at the close": lambda grouped: (
        grouped.windowed_by(TimeWindows.of_size_with_no_grace(MINUTE)).emit_strategy(EmitStrategy.on_window_close()).count()
    ),
    "unlimited": lambda grouped: grouped.windowed_by(UnlimitedWindows.of()).count(),
    "suppressed": lambda grouped: (
        grouped.windowed_by(TimeWindows.of_size_with_no_grace(MINUTE))
        .count()
        .suppress(Suppressed.until_window_closes(Suppressed.BufferConfig.unbounded()))
    ),
}


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregate_takes_or_drops_a_record_of_any_time(kind: str, time: int) -> None:
    builder = StreamsBuilder()
    counts = KINDS[kind](builder.stream("in", TEXT).group_by_key())
    counts.to_stream(lambda key, count: "k").to("out", Produced(serdes.STRING, value=serdes.LONG))
    with TopologyTestDriver(builder.build()) as driver:
        records = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        for value in (5, time, time, max(time, 6)):
            records.pipe_input("k", str(value))
        found = driver.create_output_topic("out", serdes.STRING, serdes.LONG).read_values_to_list()
    if kind not in ("suppressed", "emitted at the close"):
        assert found[0] == 1
        assert len(found) > (3 if time >= 0 and kind != "unlimited" else 0)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("outer", [False, True], ids=["inner", "outer"])
def test_a_join_takes_or_drops_a_record_of_any_time(outer: bool, time: int) -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left", TEXT), builder.stream("right", TEXT)
    windows = JoinWindows.of_time_difference_and_grace(MINUTE, MINUTE)
    serdes_of_both = StreamJoined(serdes.STRING, value=serdes.STRING, other_value=serdes.STRING)
    join = left.outer_join if outer else left.join
    join(right, lambda one, other: f"{one} {other}", windows, serdes_of_both).to("out", Produced(serdes.STRING, value=serdes.STRING))
    with TopologyTestDriver(builder.build()) as driver:
        for topic in ("left", "right"):
            records = driver.create_input_topic(topic, serdes.STRING, serdes.STRING)
            records.pipe_input("k", str(time))
        found = driver.create_output_topic("out", serdes.STRING, serdes.STRING).read_values_to_list()
    assert found == ([f"{time} {time}"] if time >= 0 else [])


class Stamping(Processor[str, str, str, str]):
    """Forwards each record with the time in its value."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context
        self.times: list[int] = []
        context.schedule(MINUTE, PunctuationType.STREAM_TIME, self.times.append)

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_timestamp(ast.literal_eval(record.value)))


@pytest.mark.parametrize(
    ("time", "error"),
    [
        (str(2**63 - 1), None),
        (str(2**63), "ms since the epoch and at most 9223372036854775807: 9223372036854775808"),
        ("-1", "cannot be negative: -1"),
        ("1.5", r"in whole ms since the epoch: 1\.5"),
        ("'now'", "not supported between"),
    ],
)
def test_a_time_that_cannot_be_written_is_an_error_of_the_record_that_sets_it(time: str, error: str | None) -> None:
    """Not of the commit that writes it, which names no record."""
    builder = StreamsBuilder()
    stamped = builder.stream("in", Consumed(serdes.STRING, value=serdes.STRING)).process(Stamping)
    stamped.group_by_key(Grouped(serdes.STRING, value=serdes.STRING)).count()
    with TopologyTestDriver(builder.build()) as driver:
        records = driver.create_input_topic("in", serdes.STRING, serdes.STRING)
        records.pipe_input("k", "5", 2**63 - 1)
        if error is None:
            records.pipe_input("k", time)
            return
        with pytest.raises(ProcessingError, match=rf"record in-0@1, .*{error}"):
            records.pipe_input("k", time)
