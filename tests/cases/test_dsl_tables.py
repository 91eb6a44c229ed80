"""Tables of the DSL, from builder to output. Rows in, rows out."""

from __future__ import annotations

from collections.abc import Callable

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.ktable import KTable
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized, Produced
from penstock.runtime.topology.topology import Topology
from tests.cases.case import Case, each

S, L = serdes.STRING, serdes.LONG


def table(
    define: Callable[[KTable], KTable], materialized: Materialized | None = None, out: serdes.Serde = S, *, emit_on_change: bool = False
) -> Callable[[], Topology]:
    """Return the topology that `define` makes from the table of topic `in`, with its changes on `out`."""

    def build() -> Topology:
        builder = StreamsBuilder()
        rows = builder.table("in", Consumed(S, value=S), materialized, emit_on_change=emit_on_change)
        define(rows).to_stream().to("out", Produced(S, value=out))
        return builder.build()

    return build


def long(key: object, value: str) -> bool:
    return len(value) > 1


GIVEN = [("in", "a", "1", 1), ("in", "a", "22", 2), ("in", "a", "333", 3), ("in", "a", "4", 4), ("in", "a", "5", 5), ("in", "a", None, 6)]
BY_LENGTH = Grouped(S, value=S, name="by-length")


def by_length(key: object, value: str) -> tuple[str, str]:
    return str(len(value)), value


CASES = [
    Case(
        "a table without a store forwards everything",
        table(lambda t: t),
        [("in", "a", "1", 5), ("in", "a", "1", 6), ("in", "b", None, 7)],
        {"out": [("a", "1", 5), ("a", "1", 6), ("b", None, 7)]},
    ),
    Case(
        "a table with a store forwards equal values",
        table(lambda t: t, Materialized("rows")),
        [("in", "a", "1", 5), ("in", "a", "1", 6), ("in", "b", None, 7), ("in", "a", "2", 3)],
        {"out": [("a", "1", 5), ("a", "1", 6), ("a", "2", 3)]},
    ),
    Case(
        "a table that emits on change keeps its rows, although it has no name",
        table(lambda t: t, emit_on_change=True),
        [("in", "a", "1", 5), ("in", "a", "1", 6), ("in", "b", None, 7), ("in", "a", "2", 3)],
        {"out": [("a", "1", 5), ("a", "2", 3)]},
    ),
    Case(
        "filter of a kept table",
        table(lambda t: t.filter(long), Materialized("rows")),
        GIVEN,
        {"out": [("a", "22", 2), ("a", "333", 3), ("a", None, 4)]},
    ),
    Case(
        "filter of a table that is not kept: a tombstone for each row that does not pass",
        table(lambda t: t.filter(long)),
        GIVEN,
        {"out": [("a", None, 1), ("a", "22", 2), ("a", "333", 3), ("a", None, 4), ("a", None, 5), ("a", None, 6)]},
    ),
    Case(
        "filter that is kept itself",
        table(lambda t: t.filter(long, Materialized("long-ones"))),
        GIVEN,
        {"out": [("a", "22", 2), ("a", "333", 3), ("a", None, 4)]},
    ),
    Case(
        "filter_not",
        table(lambda t: t.filter_not(long), Materialized("rows")),
        GIVEN[:4],
        {"out": [("a", "1", 1), ("a", None, 2), ("a", "4", 4)]},
    ),
    Case(
        "filter behind map_values of a kept table knows the old values, mapped",
        table(
            lambda t: t.map_values(lambda v: v * 2, Materialized("m", key=S, value=S)).filter(lambda k, v: len(v) > 2), Materialized("rows")
        ),
        GIVEN[:5],
        {"out": [("a", "2222", 2), ("a", "333333", 3), ("a", None, 4)]},
    ),
    Case(
        "count of a grouped table",
        table(lambda t: t.group_by(by_length, BY_LENGTH).count(), out=L),
        [("in", "a", "1", 1), ("in", "b", "2", 2), ("in", "a", "22", 3), ("in", "b", None, 4)],
        {"out": [("1", 1, 1), ("1", 2, 2), ("1", 1, 3), ("2", 1, 3), ("1", 0, 4)]},
        {"out": (S, L)},
    ),
    Case(
        "reduce of a grouped table: the old value goes before the new one comes, in one step where the group stays",
        table(lambda t: t.group_by(by_length, BY_LENGTH).reduce(lambda total, v: f"{total}+{v}", lambda total, v: f"{total}-{v}")),
        [("in", "a", "1", 1), ("in", "b", "2", 2), ("in", "a", "3", 3), ("in", "a", "44", 1)],
        {"out": [("1", "1", 1), ("1", "1+2", 2), ("1", "1+2-1+3", 3), ("1", "1+2-1+3-3", 3), ("2", "44", 1)]},
    ),
    Case(
        "aggregate of a filtered, grouped table",
        table(
            lambda t: (
                t.filter(long)
                .group_by(by_length, BY_LENGTH)
                .aggregate(
                    lambda: 0,
                    lambda k, v, total: total + int(v),
                    lambda k, v, total: total - int(v),
                    Materialized("sums", value=L),
                )
            ),
            out=L,
        ),
        [("in", "a", "10", 1), ("in", "b", "20", 2), ("in", "a", "1", 3), ("in", "b", "5", 4)],
        {"out": [("2", 10, 1), ("2", 30, 2), ("2", 20, 3), ("2", 0, 4)]},
        {"out": (S, L)},
    ),
]

test_case = each(CASES)
