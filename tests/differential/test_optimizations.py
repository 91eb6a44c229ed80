"""Topologies with `topology.optimization`, as java/Optimizations.java has them."""

from __future__ import annotations

from penstock import JoinWindows, StreamsBuilder
from tests.differential.family import Family, as_java

WINDOWS = JoinWindows.of_time_difference_and_grace(5, 3)
ASYMMETRIC = JoinWindows.of_time_difference_with_no_grace(2).before(8).after(1)
ALL = {"topology.optimization": "all"}


def text(value: object) -> str:
    return "null" if value is None else str(value)


def both(left: object, right: object) -> str:
    return f"{text(left)}+{text(right)}"


def merged_repartitions(builder: StreamsBuilder) -> None:
    table = builder.table("other")
    changed = builder.stream("in").map(lambda key, value: (value, f"{text(key)}{text(value)}"))
    changed.filter(lambda key, _value: key != "2").left_join(table, both).to("joined")
    changed.group_by_key().reduce(lambda every, one: f"{every}{one}").to_stream().to("reduced")


def self_joins(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.join(stream, both, WINDOWS).to("out")
    stream.join(stream, lambda key, left, right: f"{key}{left}+{right}", ASYMMETRIC).to("asymmetric")


def tables_of_topics(builder: StreamsBuilder) -> None:
    table = builder.table("other")
    builder.stream("in").join(table, both).to("out")
    table.map_values(lambda value: f"{value}!").to_stream().to("changes")


FAMILIES = [
    Family("Optimizations", merged_repartitions, topics=("in", "other"), config=ALL),
    Family("Optimizations", self_joins, config=ALL),
    Family("Optimizations", tables_of_topics, topics=("in", "other"), config=ALL),
]

test_as_java = as_java(FAMILIES)
