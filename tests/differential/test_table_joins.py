"""Joins of two tables, as java/TableJoins.java has them."""

from __future__ import annotations

from runtime import KTable, Materialized, StreamsBuilder
from runtime.stores import Stores
from tests.differential.family import Family, as_java
from tests.differential.test_stream_joins import both


def tables(builder: StreamsBuilder) -> tuple[KTable, KTable]:
    return builder.table("in"), builder.table("other")


UNCACHED: Materialized = Materialized("uncached", caching=False)


def inner_tables(builder: StreamsBuilder) -> None:
    left, right = tables(builder)
    left.join(right, both).to_stream().to("out")
    left.join(right, both, "named", Materialized("kept")).to_stream().to("kept")
    left.join(right, both, UNCACHED).to_stream().to("uncached")


def left_tables(builder: StreamsBuilder) -> None:
    left, right = tables(builder)
    left.left_join(right, both).to_stream().to("out")
    left.left_join(right, both, Materialized("kept")).to_stream().to("kept")
    left.left_join(right, both, UNCACHED).to_stream().to("uncached")


def outer_tables(builder: StreamsBuilder) -> None:
    left, right = tables(builder)
    left.outer_join(right, both).to_stream().to("out")
    left.outer_join(right, both, Materialized("kept")).to_stream().to("kept")
    left.outer_join(right, both, UNCACHED).to_stream().to("uncached")


def chained_tables(builder: StreamsBuilder) -> None:
    left, right = tables(builder)
    joined = left.filter(lambda key, value: not value.startswith("1")).outer_join(right.map_values(lambda value: value + "!"), both)
    joined.filter(lambda key, value: not value.startswith("2")).to_stream().to("filtered")
    joined.left_join(builder.table("third"), both).to_stream().to("three")
    builder.stream("stream").join(joined, lambda left, right: left + right).to("streamed")
    left.join(left.map_values(lambda value: value + "'"), both).to_stream().to("self")


def versioned(name: str) -> Materialized:
    return Materialized(Stores.persistent_versioned_key_value_store(name, 40))


def versioned_tables(builder: StreamsBuilder) -> None:
    left, right = builder.table("in", None, versioned("left")), builder.table("other", None, versioned("right"))
    left.to_stream().to("left")
    left.filter(lambda key, value: not value.startswith("1")).to_stream().to("filtered")
    left.join(right, both).to_stream().to("inner")
    left.left_join(right.map_values(lambda value: value + "!"), both).to_stream().to("left-joined")
    left.outer_join(right, both, versioned("joined")).to_stream().to("outer")
    left.filter(lambda key, value: not value.startswith("1"), Materialized("plain")).to_stream().to("plain")
    builder.stream("stream").left_join(
        left.map_values(lambda value: value + "?"), lambda left, right: left + ("null" if right is None else right)
    ).to("streamed")


TWO = ("in", "other")
FAMILIES = [
    Family("TableJoins", inner_tables, topics=TWO, distinct=True),
    Family("TableJoins", left_tables, topics=TWO, distinct=True),
    Family("TableJoins", outer_tables, topics=TWO, distinct=True),
    Family("TableJoins", chained_tables, topics=(*TWO, "third", "stream"), distinct=True),
    Family("TableJoins", versioned_tables, topics=(*TWO, "stream")),
]
test_as_java = as_java(FAMILIES)
