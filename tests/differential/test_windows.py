"""Aggregates over windows, as java/Windows.java has them."""

from __future__ import annotations

from runtime import KGroupedStream, KTable, Materialized, Produced, StreamsBuilder, TimeWindows, serdes
from runtime.serdes import Serde
from tests.differential.family import Family, as_java

TUMBLING = TimeWindows.of_size_and_grace(10, 5)
HOPPING = TimeWindows.of_size_with_no_grace(10).advance_by(4)
WINDOWED = serdes.time_windowed(serdes.STRING, 10)


def grouped(builder: StreamsBuilder) -> KGroupedStream:
    return builder.stream("in").group_by_key()


def out(table: KTable, serde: Serde) -> None:
    table.to_stream().to("out", Produced(WINDOWED, value=serde))


def tumbling_count(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(TUMBLING).count(), serdes.LONG)


def hopping_reduce(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(HOPPING).reduce(lambda left, right: left + right), serdes.STRING)


def hopping_aggregate(builder: StreamsBuilder) -> None:
    table = (
        grouped(builder)
        .windowed_by(HOPPING)
        .aggregate(
            lambda: ">",
            lambda key, value, total: None if value == "4" else ("+" if total is None else total) + value,
            Materialized(value=serdes.STRING),
        )
    )
    out(table, serdes.STRING)


# Kafka Streams says that it ignores null values here, and does not (docs/dsl.md).
COUNTS, TEXTS = {"out": (WINDOWED, serdes.LONG)}, {"out": (WINDOWED, serdes.STRING)}
FAMILIES = [
    Family("Windows", tumbling_count, serdes=COUNTS, null_values=False),
    Family("Windows", hopping_reduce, serdes=TEXTS, null_values=False),
    Family("Windows", hopping_aggregate, serdes=TEXTS, null_values=False),
]
test_as_java = as_java(FAMILIES)
