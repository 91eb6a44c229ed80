"""Joins of two tables by a foreign key, as java/ForeignJoins.java has them."""

from __future__ import annotations

from penstock import Materialized, StreamsBuilder, TableJoined
from tests.differential.family import Family, as_java
from tests.differential.test_stream_joins import both
from tests.differential.test_table_joins import UNCACHED, tables, versioned


def foreign_key(value: str) -> str | None:
    """1, 2, 3: a, b, c; others: none."""
    return {"1": "a", "2": "b", "3": "c"}.get(value[0])


def inner_foreign(builder: StreamsBuilder) -> None:
    left, right = tables(builder)
    left.join(right, foreign_key, both).to_stream().to("out")


def left_foreign(builder: StreamsBuilder) -> None:
    left, right = tables(builder)
    left.left_join(right, foreign_key, both, TableJoined(name="named"), Materialized("kept")).to_stream().to("out")


def derived_foreign(builder: StreamsBuilder) -> None:
    left, right = tables(builder)
    (
        left.filter(lambda key, value: not value.startswith("2"))
        .join(right.filter(lambda key, value: not value.startswith("1")), lambda key, value: foreign_key(value), both, UNCACHED)
        .filter(lambda key, value: "3" not in value)
        .to_stream()
        .to("out")
    )
    mapped = right.map_values(lambda value: value + "!")
    left.map_values(lambda value: value + "1").left_join(mapped, lambda key, value: key, both).to_stream().to("mapped")


def self_foreign(builder: StreamsBuilder) -> None:
    table = builder.table("in")
    table.join(table, foreign_key, both).to_stream().to("inner")
    table.left_join(table, foreign_key, both).to_stream().to("left")


def versioned_foreign(builder: StreamsBuilder) -> None:
    left, right = builder.table("in", None, versioned("left")), builder.table("other", None, versioned("right"))
    left.join(right, foreign_key, both).to_stream().to("inner")
    left.left_join(right, foreign_key, both).to_stream().to("left")


TWO = ("in", "other")
FAMILIES = [
    Family("ForeignJoins", inner_foreign, topics=TWO),
    Family("ForeignJoins", left_foreign, topics=TWO),
    Family("ForeignJoins", derived_foreign, topics=TWO),
    Family("ForeignJoins", self_foreign),
    Family("ForeignJoins", versioned_foreign, topics=TWO),
]
test_as_java = as_java(FAMILIES)
