"""Tables, derived tables and grouped tables: rows in, rows out, timestamps included."""

from __future__ import annotations

from collections.abc import Callable

from penstock import serdes
from penstock.runtime.operators.aggregate import TableAggregate, TableCount, TableReduce
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.table import TableFilter, TableGroupBy, TableMapValues, TableSource, ToStream
from penstock.runtime.serdes.internal import ChangedSerde
from penstock.runtime.stores import EngineStore, StoreBuilder
from penstock.runtime.topology.topology import Topology
from penstock.serdes import Serde
from tests.cases.case import Case, each
from tests.support.building import L, S, chain, key_value, piped


def table(
    *derived: tuple[OperatorSupplier, str | None],
    store: str | None = "t",
    extra: tuple[StoreBuilder[EngineStore], ...] = (),
    caching: bool = True,
    only_changes: bool = False,
) -> Callable[[], Topology]:
    """`in` as a table → derived tables → `out`."""
    stores = ((key_value(store, caching=caching),) if store else ()) + extra
    return chain((TableSource(store, only_changes), store), *derived, (ToStream(), None), stores=stores)


def starts_with_x(key: object, value: object) -> bool:
    return str(value).startswith("x")


def tables(caching: bool) -> list[Case]:
    kind = "caching" if caching else "no cache"
    return [
        Case(
            f"a table drops null keys and passes tombstones of keys it has ({kind})",
            table(caching=caching),
            piped(("a", "1", 1), (None, "2", 2), ("a", None, 3), ("b", None, 4)),
            {"out": [("a", "1", 1), ("a", None, 3), *([] if caching else [("b", None, 4)])]},
            dropped=1,
        ),
        Case(
            f"an equal value is forwarded, whatever its time ({kind})",
            table(caching=caching),
            piped(("a", "1", 10), ("a", "1", 10), ("a", "1", 12), ("a", "1", 4), ("a", "2", 5)),
            {"out": [("a", "1", 10), ("a", "1", 10), ("a", "1", 12), ("a", "1", 4), ("a", "2", 5)]},
        ),
        Case(
            f"emit on change: the same bytes, not older, are suppressed; older ones are an update; no deletion of an absent key ({kind})",
            table(caching=caching, only_changes=True),
            piped(("a", "1", 10), ("a", "1", 10), ("a", "1", 12), ("a", "1", 4), ("a", "2", 5), ("b", None, 6)),
            {"out": [("a", "1", 10), ("a", "1", 4), ("a", "2", 5)]},
        ),
        Case(
            f"filter over a table with a store: a tombstone only for rows that passed before ({kind})",
            table((TableFilter(starts_with_x), None), caching=caching),
            piped(("a", "y", 1), ("a", "x1", 2), ("a", "x2", 3), ("a", "y", 4), ("a", "z", 5), ("a", None, 6)),
            {"out": [("a", "x1", 2), ("a", "x2", 3), ("a", None, 4)]},
        ),
        Case(
            f"filter with a store of its own ({kind})",
            table((TableFilter(starts_with_x, "f"), "f"), extra=(key_value("f", caching=caching),), caching=caching),
            piped(("a", "y", 1), ("a", "x1", 2), ("a", "y", 4), ("a", "z", 5)),
            {"out": [("a", "x1", 2), ("a", None, 4)]},
        ),
        Case(
            f"filter with a store over a table without one ({kind})",
            table((TableFilter(starts_with_x, "f"), "f"), store=None, extra=(key_value("f", caching=caching),)),
            piped(("a", "y", 1), ("a", "x1", 2), ("a", "y", 4), ("a", "z", 5)),
            # The old row is unknown, and no cache compares: each row that does not pass is forwarded as a deletion.
            {"out": [("a", "x1", 2), ("a", None, 4)] if caching else [("a", None, 1), ("a", "x1", 2), ("a", None, 4), ("a", None, 5)]},
        ),
        Case(
            f"filter_not ({kind})",
            table((TableFilter(starts_with_x, negate=True), None), caching=caching),
            piped(("a", "y", 1), ("a", "x1", 2), ("a", "x2", 3)),
            {"out": [("a", "y", 1), ("a", None, 2)]},
        ),
        Case(
            f"map_values maps values and passes tombstones unmapped ({kind})",
            table((TableMapValues(str.upper), None), caching=caching),
            piped(("a", "x", 1), ("a", None, 2)),
            {"out": [("a", "X", 1), ("a", None, 2)]},
        ),
        Case(
            f"map_values with key and a store ({kind})",
            table(
                (TableMapValues(lambda key, value: key + value, True, "m"), "m"), extra=(key_value("m", caching=caching),), caching=caching
            ),
            piped(("a", "x", 1), ("a", None, 2)),
            {"out": [("a", "ax", 1), ("a", None, 2)]},
        ),
    ]


UNMATERIALIZED = [
    Case(
        "a source table without a store forwards everything, and its filter sends a tombstone for each row that does not pass",
        table((TableFilter(starts_with_x), None), store=None),
        piped(("a", "y", 1), ("a", "x1", 2), ("a", "x1", 2), ("b", None, 3), (None, "x", 4)),
        {"out": [("a", None, 1), ("a", "x1", 2), ("a", "x1", 2), ("b", None, 3)]},
        dropped=1,
    ),
    Case(
        "map_values over a table without a store",
        table((TableMapValues(str.upper), None), store=None),
        piped(("a", "y", 1), ("a", None, 2)),
        {"out": [("a", "Y", 1), ("a", None, 2)]},
    ),
    Case(
        "to_stream with a key of its own",
        chain((TableSource("t"), "t"), (ToStream(lambda key, value: f"{key}/{value}"), None), stores=(key_value("t"),)),
        piped(("a", "y", 1), ("a", None, 2)),
        {"out": [("a/y", "y", 1), ("a/None", None, 2)]},
    ),
]


def grouped(supplier: OperatorSupplier, store: StoreBuilder[EngineStore], out: Serde, *, caching: bool = True) -> Callable[[], Topology]:
    """A table of key → "group:number", grouped by group over a repartition topic."""

    def select(key: object, value: object) -> tuple[object, object] | None:
        group, _, number = str(value).partition(":")
        return (group, number) if group != "none" else None

    def build() -> Topology:
        topology = Topology().add_source("source", "in", key_serde=S, value_serde=S).add_state_store(key_value("t", caching=caching))
        topology.add_operator("table", TableSource("t"), ["source"], ["t"])
        topology.add_operator("select", TableGroupBy(select), ["table"])
        topology.add_repartition_topic("g-repartition", None)
        topology.add_sink("to-groups", "g-repartition", "select", key_serde=S, value_serde=ChangedSerde(S))
        topology.add_source("groups", "g-repartition", key_serde=S, value_serde=ChangedSerde(S)).add_state_store(store)
        topology.add_operator("aggregate", supplier, ["groups"], [store.name]).add_operator("stream", ToStream(), ["aggregate"])
        return topology.add_sink("sink", "out", "stream", key_serde=S, value_serde=out)

    return build


def traced(order: list[str]) -> TableAggregate:
    def add(key: object, value: object, total: str) -> str:
        order.append("add")
        return f"{total}+{value}"

    def subtract(key: object, value: object, total: str) -> str:
        order.append("subtract")
        return f"{total}-{value}"

    return TableAggregate("a", lambda: "0", add, subtract)


GROUPED = [
    Case(
        "count of a grouped table: rows leave and enter groups, old group first; 0 when the last one left",
        grouped(TableCount("a"), key_value("a", L), L),
        piped(("k1", "g:1", 1), ("k2", "g:2", 2), ("k1", "h:1", 3), ("k2", None, 4), ("k3", "none:1", 5)),
        {"out": [("g", 1, 1), ("g", 2, 2), ("g", 1, 3), ("h", 1, 3), ("g", 0, 4)]},
        {"out": (S, L)},
    ),
    Case(
        "aggregate of a grouped table subtracts before it adds, in one step when the group stays",
        grouped(traced([]), key_value("a"), S),
        piped(("k1", "g:1", 10), ("k1", "g:2", 5), ("k2", "g:7", 20)),
        {"out": [("g", "0+1", 10), ("g", "0+1-1+2", 10), ("g", "0+1-1+2+7", 20)]},
    ),
    Case(
        "reduce of a grouped table",
        grouped(TableReduce("a", lambda total, value: f"{total}+{value}", lambda total, value: f"{total}-{value}"), key_value("a"), S),
        piped(("k1", "g:1", 10), ("k2", "g:2", 5), ("k1", None, 20)),
        {"out": [("g", "1", 10), ("g", "1+2", 10), ("g", "1+2-1", 20)]},
    ),
    Case(
        "a change on the repartition topic is written as Kafka's ChangedSerializer does",
        grouped(TableCount("a"), key_value("a", L), L),
        piped(("k1", "g:1", 1), ("k1", "g:22", 2), ("k1", None, 3)),
        {"topology-test-g-repartition": [("g", b"1\x01", 1), ("g", b"\x04221\x02", 2), ("g", b"22\x00", 3)]},
        {"topology-test-g-repartition": (S, serdes.BYTES)},
    ),
]

CASES = [*tables(True), *tables(False), *UNMATERIALIZED, *GROUPED]

test_case = each(CASES)
