"""Tables, and streams joined with them, as java/Tables.java has them."""

from __future__ import annotations

from penstock import Materialized, StreamsBuilder
from tests.differential.family import Family, as_java


def text(value: object) -> str:
    """As Java adds it to a text."""
    return "null" if value is None else str(value)


def rows(builder: StreamsBuilder) -> None:
    table = builder.table("in")
    table.filter(lambda key, value: not value.startswith("1")).to_stream().to("filtered")
    table.map_values(lambda value: None if value.startswith("2") else value + "!").to_stream().to("mapped")
    both = table.filter_not(lambda key, value: value.startswith("3")).map_values(lambda key, value: key + value)
    both.to_stream(lambda key, value: key + "?").to("both")


def kept_rows(builder: StreamsBuilder) -> None:
    table = builder.table("in", materialized=Materialized("rows"))
    table.filter(lambda key, value: not value.startswith("1"), Materialized("filtered")).to_stream().to("filtered")
    mapped = table.map_values(lambda value: None if value.startswith("2") else value + "!", Materialized("mapped", caching=False))
    mapped.to_stream().to("mapped")
    negated = table.filter_not(lambda key, value: value.startswith("3"), Materialized("not", caching=False))
    negated.map_values(lambda key, value: key + value, Materialized("both")).to_stream().to("both")
    table.filter(lambda key, value: value.startswith("4"), Materialized("fours", caching=False)).to_stream().to("fours")


def changes(builder: StreamsBuilder) -> None:
    table = builder.table("in")
    table.filter(lambda key, value: value.startswith("4"), Materialized("fours", caching=False)).to_stream().to("fours")
    others = table.filter_not(lambda key, value: value.startswith("4"), Materialized("others", caching=False))
    others.to_stream().to("others")
    grouped = others.group_by(lambda key, value: (value[0], value))
    reduced = grouped.reduce(lambda total, value: f"{total}+{value}", lambda total, value: f"{total}-{value}")
    reduced.to_stream().to("reduced")


def stream_table(builder: StreamsBuilder) -> None:
    stream, table = builder.stream("in"), builder.table("rows")
    stream.join(table, lambda left, right: left + right).to("inner")
    stream.left_join(table, lambda key, left, right: text(key) + left + text(right)).to("left")
    by_value = stream.select_key(lambda key, value: value)
    by_value.left_join(table, lambda left, right: left + text(right)).to("by-value")


def global_table(builder: StreamsBuilder) -> None:
    stream, table = builder.stream("in"), builder.global_table("rows")
    stream.join(table, lambda key, value: value, lambda left, right: left + right).to("inner")
    stream.left_join(table, lambda key, value: key, lambda key, left, right: text(key) + left + text(right)).to("left")


FAMILIES = [
    Family("Tables", rows),
    Family("Tables", kept_rows),
    Family("Tables", changes),
    Family("Tables", stream_table, topics=("in", "rows"), keys=("1", "2", "3")),
    Family("Tables", global_table, topics=("in", "rows"), keys=("1", "2", "3")),
]
test_as_java = as_java(FAMILIES)
