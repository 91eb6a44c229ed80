"""Versions of one application with different types of an aggregate: factories for instances that are processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import msgspec

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced, Repartitioned
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.topology.topology import Topology

T = TypeVar("T")


class First(msgspec.Struct, frozen=True):
    """Version 1."""

    n: int


class Second(msgspec.Struct, frozen=True):
    """Version 2: a wider number, a field with a default."""

    n: float
    last: str = "none"


class Third(msgspec.Struct, frozen=True):
    """Version 3: reads the output of version 2, but not that of version 1."""

    n: float
    last: str


def watching() -> StreamsBuilder:
    """Return a sub-topology that only reads the output."""
    builder = StreamsBuilder()
    builder.stream(os.environ["TEST_OUTPUT"], Consumed(serdes.STRING, value=serdes.LONG)).foreach(lambda key, value: None)
    return builder


def counting(
    value: Serde[T],
    begin: Callable[[], T],
    add: Callable[[str, str, T], T],
    count: Callable[[T], int],
    builder: StreamsBuilder | None = None,
) -> Topology:
    """Append a count of the records per key, in a value of some type, to the builder's topology; every update is written."""
    builder = StreamsBuilder() if builder is None else builder
    totals = (
        builder.stream(os.environ["TEST_SOURCE"], Consumed(serdes.STRING, value=serdes.STRING))
        .group_by_key()
        .aggregate(begin, add, Materialized("totals", key=serdes.STRING, value=value, caching=False))
    )
    totals.to_stream().map_values(count).to(os.environ["TEST_OUTPUT"], Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()


def first() -> Topology:
    """Version 1."""
    return counting(serdes.json(First), lambda: First(0), lambda key, value, total: First(total.n + 1), lambda total: total.n)


def second() -> Topology:
    """Version 2."""
    return counting(
        serdes.json(Second), lambda: Second(0), lambda key, value, total: Second(total.n + 1, value), lambda total: round(total.n)
    )


def third() -> Topology:
    """Version 3."""
    return counting(
        serdes.json(Third), lambda: Third(0, ""), lambda key, value, total: Third(total.n + 1, value), lambda total: round(total.n)
    )


def doubles() -> Topology:
    """Return the same count as a number of 8 bytes."""
    return counting(serdes.DOUBLE, lambda: 0.0, lambda key, value, total: total + 1, round)


def watched() -> Topology:
    """Return the count as a number, after another sub-topology."""
    return counting(serdes.LONG, lambda: 0, lambda key, value, total: total + 1, int, watching())


def watched_doubles() -> Topology:
    """Return the same with other bytes of equal length."""
    return counting(serdes.DOUBLE, lambda: 0.0, lambda key, value, total: total + 1, round, watching())


def only_watching() -> Topology:
    """Return the topology without the sub-topology that counts."""
    return watching().build()


def on_their_way() -> Topology:
    """Return a topology with a repartition topic, and without state."""
    builder = StreamsBuilder()
    stream = builder.stream(os.environ["TEST_SOURCE"], Consumed(serdes.STRING, value=serdes.STRING))
    again = stream.repartition(Repartitioned("again", key=serdes.STRING, value=serdes.STRING))
    again.to(os.environ["TEST_OUTPUT"], Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()
