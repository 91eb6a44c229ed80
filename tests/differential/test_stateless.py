"""Operators without state, as java/Stateless.java has them."""

from __future__ import annotations

from runtime import StreamsBuilder
from tests.differential.family import Family, as_java


def values(builder: StreamsBuilder) -> None:
    (
        builder.stream("in")
        .filter(lambda key, value: value is not None)
        .map_values(lambda value: value + "!")
        .flat_map_values(lambda key, value: [("null" if key is None else key) + value, value])
        .filter_not(lambda key, value: value.startswith("b"))
        .to("out")
    )


def keys(builder: StreamsBuilder) -> None:
    (
        builder.stream("in")
        .map(lambda key, value: (value, key))
        .select_key(lambda key, value: "none" if key is None else key + ("null" if value is None else value))
        .flat_map(lambda key, value: [(key, value), *([] if value is None else [(value, None)])])
        .to("out")
    )


def merged_and_sent_through(builder: StreamsBuilder) -> None:
    left, right = builder.stream("in"), builder.stream("other")
    left.select_key(lambda key, value: value).merge(right).repartition().to("out")


FAMILIES = [
    Family("Stateless", values),
    Family("Stateless", keys),
    Family("Stateless", merged_and_sent_through, topics=("in", "other")),
]
test_as_java = as_java(FAMILIES)
