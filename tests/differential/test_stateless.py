"""Operators without state, as java/Stateless.java has them."""

from __future__ import annotations

import re

from penstock import Branched, Materialized, Produced, StreamsBuilder
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


def branches(builder: StreamsBuilder) -> None:
    found = (
        builder.stream("in")
        .split("by-")
        .branch(lambda key, value: key is None, Branched(consumer=lambda stream: stream.to("keyless")))
        .branch(lambda key, value: value == "1", Branched("ones", function=lambda stream: stream.map_values(lambda value: value + value)))
        .branch(lambda key, value: value == "2")
        .branch(lambda key, value: key == "a", "a")
        .default_branch()
    )
    found["by-ones"].merge(found["by-3"]).to("first")
    found["by-a"].to("a")
    found["by-0"].to("rest")


def chosen_topics(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.to(lambda key, value: f"to-{'null' if value is None else value}")
    stream.to(lambda key, value, context: f"{context.topic}{context.partition}-{context.timestamp % 3}-{len(context.headers)}")


PARTITIONS: dict[str, int | set[int] | None] = {"1": set(), "2": None, "3": {0}, "4": 0}


def chosen_partitions(builder: StreamsBuilder) -> None:
    builder.stream("in").to("out", Produced(partitioner=lambda topic, key, value, partitions: PARTITIONS[value]))


def as_tables(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.to_table(Materialized("rows")).filter(lambda key, value: value != "2").to_stream().to("rows-out")
    stream.to_table().map_values(lambda value: value + "!").to_stream().to("plain")
    stream.select_key(lambda key, value: value).to_table("changed").to_stream().to("changed-out")
    counts = stream.to_table("grouped").group_by(lambda key, value: (value, key)).count().to_stream()
    counts.map_values(str).to("counts")


def matching(builder: StreamsBuilder) -> None:
    builder.stream(re.compile("in.*")).map_values(lambda value: ("null" if value is None else value) + "!").to("out")


FAMILIES = [
    Family("Stateless", branches),
    Family("Stateless", chosen_topics),
    Family("Stateless", chosen_partitions, null_values=False),
    Family("Stateless", as_tables),
    Family("Stateless", matching, topics=("in", "in-2")),
    Family("Stateless", values),
    Family("Stateless", keys),
    Family("Stateless", merged_and_sent_through, topics=("in", "other")),
]
test_as_java = as_java(FAMILIES)
