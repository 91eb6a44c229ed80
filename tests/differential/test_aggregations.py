"""Aggregates without windows, of streams and of tables, as java/Aggregations.java has them."""

from __future__ import annotations

from penstock import KTable, Materialized, Produced, StreamsBuilder, serdes
from tests.differential.family import Family, as_java

LONGS = Produced(serdes.STRING, value=serdes.LONG)
TEXTS = Materialized(key=serdes.STRING, value=serdes.STRING)
UNCACHED = Materialized(key=serdes.STRING, value=serdes.STRING, caching=False)


def stream_count(builder: StreamsBuilder) -> None:
    builder.stream("in").group_by_key().count().to_stream().to("out", LONGS)


def streams_uncached(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in").group_by(lambda key, value: value)
    grouped.count(Materialized("counts", caching=False)).to_stream().to("counts", LONGS)
    grouped.reduce(lambda left, right: None if right == "4" else left + right, UNCACHED).to_stream().to("reduced")
    texts = grouped.aggregate(lambda: ">", lambda key, value, total: ("+" if total is None else total) + key + value, UNCACHED)
    texts.to_stream().to("texts")


def stream_aggregate(builder: StreamsBuilder) -> None:
    (
        builder.stream("in")
        .group_by_key()
        .aggregate(lambda: ">", lambda key, value, total: None if value == "4" else total + value, TEXTS)
        .filter(lambda key, value: len(value) % 2 == 0)
        .map_values(lambda value: value + "!")
        .to_stream()
        .to("out")
    )


def totals(builder: StreamsBuilder, kept: Materialized) -> KTable:
    grouped = builder.table("in").group_by(lambda key, value: None if value.startswith("4") else (value[0], value))
    return grouped.aggregate(
        lambda: ">", lambda key, value, total: f"{total}+{value}", lambda key, value, total: f"{total}-{value}", materialized=kept
    )


def grouped_table(builder: StreamsBuilder) -> None:
    totals(builder, TEXTS).to_stream().to("out")


def grouped_table_uncached(builder: StreamsBuilder) -> None:
    totals(builder, UNCACHED).to_stream().to("out")


def grouped_table_count_and_reduce(builder: StreamsBuilder) -> None:
    table = builder.table("in")
    table.group_by(lambda key, value: (value[0], value)).count().to_stream().to("counts", LONGS)
    reduced = table.group_by(lambda key, value: (value[0], value)).reduce(
        lambda total, value: f"{total}+{value}", lambda total, value: None if len(total) > 20 else f"{total}-{value}"
    )
    reduced.to_stream().to("reduced")


COUNTS = (serdes.STRING, serdes.LONG)
FAMILIES = [
    Family("Aggregations", stream_count, serdes={"out": COUNTS}),
    Family("Aggregations", streams_uncached, serdes={"counts": COUNTS}),
    Family("Aggregations", stream_aggregate),
    Family("Aggregations", grouped_table),
    Family("Aggregations", grouped_table_uncached),
    Family("Aggregations", grouped_table_count_and_reduce, serdes={"counts": COUNTS}),
]
test_as_java = as_java(FAMILIES)
