"""Data of `python -m benchmarks tables`: an application with one store, and its rows."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import Consumed, Materialized, StreamsBuilder, serdes
from penstock.runtime.topology.topology import Topology

TOPIC, STORE, FACTORY = "bench-orders", "orders", "benchmarks.table_rows:build"
FIRST_MS = 1_700_000_000_000
CHANGED = 100
"""One in this many rows is changed before the incremental run."""


class Order(msgspec.Struct, frozen=True):
    """A value: some 60 bytes of JSON."""

    user: str
    amount: float
    orders: int


class Sums(NamedTuple):
    """Result that every reader must find: the number of rows, and the sum of a field. So each has to read and decode every value."""

    rows: int
    orders: int


def build() -> Topology:
    """Return the topology: a table of a topic."""
    builder = StreamsBuilder()
    builder.table(TOPIC, Consumed(serdes.STRING, value=serdes.json(Order)), Materialized(STORE))
    return builder.build()


def orders(spark: SparkSession, rows: int) -> DataFrame:
    """Return the store's rows as a table."""
    user = F.format_string("u%09d", "id")
    value = F.struct(user.alias("user"), (F.col("id") % 9973 / 7).alias("amount"), (F.col("id") % 1000).cast("int").alias("orders"))
    return spark.range(rows).select(
        user.alias("key"), value.alias("value"), F.timestamp_millis(F.lit(FIRST_MS) + F.col("id")).alias("timestamp")
    )


def truth(rows: int) -> Sums:
    """Return the sums of `orders`."""
    whole, rest = divmod(rows, 1000)
    return Sums(rows, whole * (999 * 1000 // 2) + rest * (rest - 1) // 2)


def sums(table: DataFrame) -> Sums:
    """Read every column of every row. (`max` of key and timestamp, so that neither is pruned.)"""
    found = table.agg(F.count("*"), F.sum("value.orders"), F.max("key"), F.max("timestamp"), F.max("value.amount")).first()
    assert found is not None
    return Sums(int(found[0]), int(found[1] or 0))


def changes(rows: int) -> list[tuple[str, str, int]]:
    """Return key, value and time of the rows that are written again: with the same `orders`, so the sums stay the same."""
    return [
        (user := f"u{number:09d}", f'{{"user":"{user}","amount":0.5,"orders":{number % 1000}}}', FIRST_MS + rows + number)
        for number in range(0, rows, CHANGED)
    ]
