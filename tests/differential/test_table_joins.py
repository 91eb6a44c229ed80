"""Joins of two tables, as java/TableJoins.java has them."""

from __future__ import annotations

from typing import cast

from penstock import (
    Joined,
    KeyValueStore,
    KTable,
    Materialized,
    Produced,
    StreamsBuilder,
    TransformerContext,
    ValueTransformerWithKey,
    serdes,
)
from penstock.runtime.stores import Stores
from tests.differential.family import Family, as_java
from tests.differential.test_stream_joins import both, with_key


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


def grace_join(builder: StreamsBuilder) -> None:
    table = builder.table("rows", None, Materialized(Stores.persistent_versioned_key_value_store("rows", 100)))
    stream = builder.stream("in")
    stream.join(table, both, Joined(name="inner", grace_period=6)).to("inner")
    keyed = stream.filter(lambda key, value: key is not None)  # Kafka Streams fails at a left join without a key
    keyed.left_join(table.map_values(lambda value: value + "!"), with_key, Joined(grace_period=0)).to("left")


class Numbered(ValueTransformerWithKey[str, str, str]):
    """Counts the changes of each key."""

    def init(self, context: TransformerContext) -> None:
        self.seen = cast(KeyValueStore, context.get_state_store("seen"))

    def transform(self, read_only_key: str, value: str | None) -> str | None:
        self.seen.put(read_only_key, f"{self.seen.get(read_only_key) or ''}i")
        return None if value is None or value.startswith("1") else f"{value}{self.seen.get(read_only_key)}"


class Stateless(ValueTransformerWithKey[str, str, str]):
    def transform(self, read_only_key: str, value: str | None) -> str | None:
        return None if value is None or value.startswith("1") else read_only_key + value


def transformed_table(builder: StreamsBuilder) -> None:
    builder.add_state_store(Stores.key_value_store_builder(Stores.in_memory_key_value_store("seen"), serdes.STRING, serdes.STRING))
    table = builder.table("in")
    table.transform_values(Numbered, "seen").to_stream().to("numbered")
    kept = table.transform_values(Stateless, materialized=Materialized("kept", caching=False))
    kept.filter(lambda key, value: "2" not in value).to_stream().to("kept")
    plain = table.transform_values(Stateless, named="plain")
    plain.group_by(lambda key, value: (value, value)).count().to_stream().to("counts", Produced(value=serdes.LONG))
    builder.stream("stream").left_join(plain, lambda left, right: left + ("null" if right is None else right)).to("joined")


def not_one(key: str, value: str) -> bool:
    return not value.startswith("1")


def filters_in_order(builder: StreamsBuilder) -> None:
    table = builder.table("in")
    table.filter(not_one).to_stream().to("before")
    table.group_by(lambda key, value: (value, value)).count()
    table.filter(not_one).to_stream().to("after")
    table.filter(not_one, Materialized("wanted", caching=False)).to_stream().to("wanted")
    builder.table("other").filter(not_one, Materialized("unwanted", caching=False)).to_stream().to("unwanted")


def versioned_aggregates(builder: StreamsBuilder) -> None:
    table = builder.table("in", None, versioned("rows"))
    table.group_by(lambda key, value: (value[0], value)).count().to_stream().to("counts", Produced(value=serdes.LONG))
    kept = Materialized(Stores.persistent_versioned_key_value_store("reduced", 15))
    builder.stream("stream").group_by_key().reduce(lambda left, right: left + right, kept).to_stream().to("reduced")


TWO = ("in", "other")
FAMILIES = [
    Family("TableJoins", inner_tables, topics=TWO),
    Family("TableJoins", left_tables, topics=TWO),
    Family("TableJoins", outer_tables, topics=TWO),
    Family("TableJoins", chained_tables, topics=(*TWO, "third", "stream")),
    Family("TableJoins", versioned_tables, topics=(*TWO, "stream")),
    Family("TableJoins", grace_join, topics=("rows", "in")),
    Family("TableJoins", filters_in_order, topics=TWO),
    Family("TableJoins", transformed_table, topics=("in", "stream"), serdes={"counts": (serdes.STRING, serdes.LONG)}),
    Family("TableJoins", versioned_aggregates, topics=("in", "stream"), serdes={"counts": (serdes.STRING, serdes.LONG)}),
]
test_as_java = as_java(FAMILIES)
