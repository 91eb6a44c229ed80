"""Joins of streams with tables and global tables: rows in, rows out, timestamps included."""

from __future__ import annotations

from collections.abc import Callable

from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.stream_table_join import StreamGlobalTableJoin, StreamTableJoin
from penstock.runtime.operators.table import TableFilter, TableMapValues, TableSource
from penstock.runtime.topology.topology import Topology
from tests.cases.case import Case, each
from tests.support.building import S, key_value


def joined(left: bool, *derived: OperatorSupplier, with_key: bool = False) -> Callable[[], Topology]:
    """Stream `in` joined with the table of `table`, or with a table derived from it."""
    joiner: Callable[..., object] = (
        (lambda key, value, other: f"{key}:{value}+{other}") if with_key else (lambda value, other: f"{value}+{other}")
    )

    def build() -> Topology:
        topology = Topology().add_source("rows", "table", key_serde=S, value_serde=S).add_state_store(key_value("t"))
        topology.add_operator("table", TableSource("t"), ["rows"], ["t"])
        above = "table"
        for number, supplier in enumerate(derived):
            topology.add_operator(f"derived-{number}", supplier, [above])
            above = f"derived-{number}"
        topology.add_source("source", "in", key_serde=S, value_serde=S)
        topology.add_operator("join", StreamTableJoin(above, joiner, left, with_key), ["source"], ["t"])
        return topology.add_sink("sink", "out", "join", key_serde=S, value_serde=S)

    return build


def global_joined(left: bool) -> Callable[[], Topology]:
    """Stream `in` joined with the global table of `table`, by the stream's value."""

    def build() -> Topology:
        topology = Topology().add_source("rows", "table", key_serde=S, value_serde=S).add_state_store(key_value("g"))
        topology.add_operator("fill", TableSource("g"), ["rows"], ["g"]).mark_global("rows", "fill", "g", own_processor=False)
        topology.add_source("source", "in", key_serde=S, value_serde=S)
        join = StreamGlobalTableJoin(
            "g", lambda key, value: None if value == "nobody" else value, lambda value, other: f"{value}+{other}", left
        )
        topology.add_operator("join", join, ["source"])
        return topology.add_sink("sink", "out", "join", key_serde=S, value_serde=S)

    return build


STREAM_AND_TABLE = [
    ("in", "a", "early", 1),
    ("table", "a", "T", 50),
    ("in", "a", "x", 2),
    ("in", "b", "y", 3),
    ("in", None, "z", 4),
    ("in", "a", None, 5),
    ("table", "a", None, 60),
    ("in", "a", "late", 6),
]
JOINS = [
    Case(
        "stream-table join: the table as it is now, at the stream's time; null keys and values dropped",
        joined(False),
        STREAM_AND_TABLE,
        {"out": [("a", "x+T", 2)]},
        dropped=2,
    ),
    Case(
        "stream-table left join: None where the table has nothing, null keys included (KIP-962); null values dropped",
        joined(True),
        STREAM_AND_TABLE,
        {"out": [("a", "early+None", 1), ("a", "x+T", 2), ("b", "y+None", 3), (None, "z+None", 4), ("a", "late+None", 6)]},
        dropped=1,
    ),
    Case("a joiner with the key", joined(False, with_key=True), STREAM_AND_TABLE, {"out": [("a", "a:x+T", 2)]}, dropped=2),
    Case(
        "join with a table that is computed on the way: filtered, then mapped",
        joined(False, TableFilter(lambda key, value: value != "hidden"), TableMapValues(str.lower)),
        [("table", "a", "T", 1), ("table", "b", "hidden", 1), ("in", "a", "x", 2), ("in", "b", "y", 3)],
        {"out": [("a", "x+t", 2)]},
    ),
    Case(
        "stream-global-table join: by the mapped key; None as mapped key drops",
        global_joined(False),
        [
            ("table", "x", "X", 9),
            ("in", "a", "x", 1),
            ("in", "a", "y", 2),
            ("in", "a", "nobody", 3),
            ("in", None, "x", 4),
            ("in", "a", None, 5),
        ],
        {"out": [("a", "x+X", 1), (None, "x+X", 4)]},
        dropped=2,
    ),
    Case(
        "stream-global-table left join: None as mapped key drops here too",
        global_joined(True),
        [
            ("table", "x", "X", 9),
            ("in", "a", "x", 1),
            ("in", "a", "y", 2),
            ("in", "a", "nobody", 3),
            ("table", "x", None, 9),
            ("in", "a", "x", 4),
        ],
        {"out": [("a", "x+X", 1), ("a", "y+None", 2), ("a", "x+None", 4)]},
        dropped=1,
    ),
]


CASES = [*JOINS]

test_case = each(CASES)
