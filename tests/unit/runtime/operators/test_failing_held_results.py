"""A result that was held back fails in user code, and the handler says CONTINUE: that result is gone, and all others come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import Consumed, Joined, JoinWindows, Materialized, Produced, Stores, StreamJoined, StreamsBuilder, TimeWindows, serdes
from penstock.runtime.dsl.windows import EmitStrategy
from penstock.runtime.topology.topology import Topology
from penstock.testing import TopologyTestDriver

S = serdes.STRING
TEXT = Consumed(S, value=S)
OUT = Produced(S, value=S)


def checked(value: str, _other: str | None = None) -> str:
    if value == "bad":
        raise ValueError("a bad value")
    return value


def unmatched() -> Topology:
    builder = StreamsBuilder()
    joined = StreamJoined(S, value=S, other_value=S)
    windows = JoinWindows.of_time_difference_with_no_grace(5)
    builder.stream("in", TEXT).left_join(builder.stream("other", TEXT), checked, windows, joined).to("out", OUT)
    return builder.build()


def closed() -> Topology:
    builder = StreamsBuilder()
    windows = builder.stream("in", TEXT).group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(5))
    last = windows.emit_strategy(EmitStrategy.on_window_close()).reduce(lambda old, new: new, Materialized("last", value=S))
    last.to_stream(lambda windowed, value: windowed.key).map_values(checked).to("out", OUT)
    return builder.build()


def joined_later() -> Topology:
    builder = StreamsBuilder()
    table = builder.table("other", TEXT, Materialized(Stores.persistent_versioned_key_value_store("versions", 100)))
    later = Joined(S, value=S, other_value=S, grace_period=5)
    builder.stream("in", TEXT).left_join(table, checked, later).to("out", OUT)
    return builder.build()


@pytest.mark.parametrize("make", [unmatched, closed, joined_later])
def test_a_result_that_fails_is_not_repeated_and_takes_no_other_with_it(make: Callable[[], Topology]) -> None:
    config = {"processing.exception.handler": "penstock.LogAndContinueProcessingExceptionHandler"}
    with TopologyTestDriver(make(), config) as driver:
        source, output = driver.create_input_topic("in", S, S), driver.create_output_topic("out", S, S)
        for key, value in [("a", "good"), ("b", "bad"), ("c", "good")]:
            source.pipe_input(key, value, 0)
        if make is not closed:  # a window has one result for each key
            source.pipe_input("b", "good", 0)
        for number in range(5):  # each has those emitted that are due
            source.pipe_input(f"later {number}", "good", 100 + number)
        source.pipe_input("end", "good", 1000)
        source.pipe_input("end", "good", 1001)
        found = sorted(str(record.key) for record in output.read_records_to_list())
    # The join of streams emits such results before it processes the record, which is then skipped by name, as in Kafka Streams.
    skipped = 1 if make is unmatched else 0
    assert found == ["a", *(["b"] if make is not closed else []), "c", *(f"later {number}" for number in range(skipped, 5))]
