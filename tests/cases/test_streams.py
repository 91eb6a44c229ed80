"""Operators on streams, and aggregates of grouped streams: rows in, rows out, timestamps included."""

from __future__ import annotations

from collections.abc import Callable

from penstock.runtime.operators.aggregate import StreamAggregate, StreamCount, StreamReduce
from penstock.runtime.operators.stateless import Filter, FlatMap, FlatMapValues, Map, MapValues, PassThrough, SelectKey
from penstock.runtime.operators.table import TableFilter, ToStream
from penstock.runtime.topology.topology import Topology
from tests.cases.case import Case, each
from tests.support.building import J, L, S, chain, key_value, piped

STATELESS = [
    Case(
        "filter keeps what the predicate accepts, null keys and values included",
        chain((Filter(lambda key, value: value != "no"), None)),
        piped(("a", "yes", 1), ("a", "no", 2), (None, "yes", 3), ("b", None, 4)),
        {"out": [("a", "yes", 1), (None, "yes", 3), ("b", None, 4)]},
    ),
    Case(
        "filter_not",
        chain((Filter(lambda key, value: value == "no", negate=True), None)),
        piped(("a", "yes", 1), ("a", "no", 2)),
        {"out": [("a", "yes", 1)]},
    ),
    Case(
        "map",
        chain((Map(lambda key, value: (value, key)), None)),
        piped(("a", "b", 7), (None, "c", 8)),
        {"out": [("b", "a", 7), ("c", None, 8)]},
    ),
    Case("map_values", chain((MapValues(lambda value: value * 2), None)), piped(("a", "b", 7)), {"out": [("a", "bb", 7)]}),
    Case(
        "map_values with key",
        chain((MapValues(lambda key, value: key + value, with_key=True), None)),
        piped(("a", "b", 7)),
        {"out": [("a", "ab", 7)]},
    ),
    Case(
        "flat_map gives records in order, all at the record's time",
        chain((FlatMap(lambda key, value: [(letter, value) for letter in value]), None)),
        piped(("k", "xy", 3), ("k", "", 4)),
        {"out": [("x", "xy", 3), ("y", "xy", 3)]},
    ),
    Case(
        "flat_map_values",
        chain((FlatMapValues(lambda value: value.split()), None)),
        piped(("k", "a b", 3)),
        {"out": [("k", "a", 3), ("k", "b", 3)]},
    ),
    Case(
        "flat_map_values with key",
        chain((FlatMapValues(lambda key, value: [key, value], with_key=True), None)),
        piped(("k", "a", 3)),
        {"out": [("k", "k", 3), ("k", "a", 3)]},
    ),
    Case("select_key", chain((SelectKey(lambda key, value: value), None)), piped(("k", "a", 3)), {"out": [("a", "a", 3)]}),
]


def length_sum(*, caching: bool = True) -> Callable[[], Topology]:
    aggregate = StreamAggregate("sums", lambda: 0, lambda key, value, total: total + len(value))
    return chain((aggregate, "sums"), (ToStream(), None), stores=(key_value("sums", L, caching=caching),), out=L)


def aggregates(caching: bool) -> list[Case]:
    out = {"out": (S, L)}
    kind = "caching" if caching else "no cache"
    return [
        Case(
            f"count: result's time is the later of record and count ({kind})",
            chain((StreamCount("counts"), "counts"), (ToStream(), None), stores=(key_value("counts", L, caching=caching),), out=L),
            piped(("a", "x", 5), ("a", "x", 3), ("b", "x", 4), ("a", "x", 9)),
            {"out": [("a", 1, 5), ("a", 2, 5), ("b", 1, 4), ("a", 3, 9)]},
            out,
        ),
        Case(
            f"count drops null keys and values ({kind})",
            chain((StreamCount("counts"), "counts"), (ToStream(), None), stores=(key_value("counts", L, caching=caching),), out=L),
            piped((None, "x", 5), ("a", None, 6), ("a", "x", 7)),
            {"out": [("a", 1, 7)]},
            out,
            dropped=2,
        ),
        Case(
            f"aggregate ({kind})",
            length_sum(caching=caching),
            piped(("a", "xx", 5), ("a", "yyy", 4), (None, "x", 6), ("a", None, 6)),
            {"out": [("a", 2, 5), ("a", 5, 5)]},
            out,
            dropped=2,
        ),
        Case(
            f"an aggregate of None is a tombstone, and the next record starts a new aggregate ({kind})",
            chain(
                (StreamAggregate("sums", lambda: 10, lambda key, value, total: None if value == "reset" else total + 1), "sums"),
                (ToStream(), None),
                stores=(key_value("sums", L, caching=caching),),
                out=L,
            ),
            piped(("a", "x", 5), ("a", "reset", 3), ("a", "x", 4)),
            # A cache knows no other time of a deletion than that of the record that caused it.
            {"out": [("a", 11, 5), ("a", None, 3 if caching else 5), ("a", 11, 4)]},
            out,
        ),
        Case(
            f"reduce: the first value is the first aggregate ({kind})",
            chain(
                (StreamReduce("r", lambda total, value: total + value), "r"), (ToStream(), None), stores=(key_value("r", caching=caching),)
            ),
            piped(("a", "x", 5), ("a", "y", 3), ("a", None, 9), ("b", "z", 1)),
            {"out": [("a", "x", 5), ("a", "xy", 5), ("b", "z", 1)]},
            dropped=1,
        ),
    ]


def changed_in_place(*, caching: bool) -> Callable[[], Topology]:
    """An aggregator that changes the aggregate in place, under a filter that looks at old values."""

    def add(key: object, value: object, total: dict[str, int]) -> dict[str, int]:
        total["n"] += 1
        return total

    return chain(
        (StreamAggregate("totals", lambda: {"n": 0}, add), "totals"),
        (TableFilter(lambda key, value: value["n"] % 2 == 0), None),
        (ToStream(), None),
        stores=(key_value("totals", J, caching=caching),),
        out=J,
    )


IN_PLACE = [
    Case(
        f"an aggregate changed in place does not reach the old value (caching={caching})",
        changed_in_place(caching=caching),
        piped(("a", "x", 1), ("a", "x", 2), ("a", "x", 3), ("a", "x", 4)),
        # 1: nothing before, nothing now; 2: passes; 3: passed before, no longer; 4: passes again.
        {"out": [("a", {"n": 2}, 2), ("a", None, 3), ("a", {"n": 4}, 4)]},
        {"out": (S, J)},
    )
    for caching in (True, False)
]


def merged() -> Topology:
    """Two branches that come together again, in the order in which they were added."""
    topology = Topology().add_source("source", "in", key_serde=S, value_serde=S)
    topology.add_operator("first", MapValues(lambda value: value + "1"), ["source"])
    topology.add_operator("second", MapValues(lambda value: value + "2"), ["source"])
    topology.add_operator("third", MapValues(lambda value: value + "3"), ["source"])
    topology.add_operator("merge", PassThrough(), ["first", "second"])
    return topology.add_sink("sink", "out", "merge", "third", key_serde=S, value_serde=S)


ORDER = [
    Case(
        "children are reached depth first, in the order in which they were added",
        merged,
        piped(("a", "x", 1), ("a", "y", 2)),
        {"out": [("a", "x1", 1), ("a", "x2", 1), ("a", "x3", 1), ("a", "y1", 2), ("a", "y2", 2), ("a", "y3", 2)]},
    )
]

CASES = [*STATELESS, *aggregates(True), *aggregates(False), *IN_PLACE, *ORDER]

test_case = each(CASES)
