"""Joins of tables, by key and by foreign key, and versioned tables: rows in, rows out. The left table is `in`, the right one `other`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock import Consumed, Grouped, Joined, KStream, KTable, Materialized, Produced, StreamsBuilder, TableJoined, Topology, serdes
from penstock.runtime.stores import Stores
from tests.cases.case import Case, each, each_restarted

S, L = serdes.STRING, serdes.LONG
ROWS = Consumed(S, value=S)
Given = list[tuple[str, object, object, int]]
Out = list[tuple[object, object, int]]


def plus(left: object, right: object) -> str:
    return f"{left}+{right}"


def versions(name: str, history_ms: int = 100) -> Materialized:
    return Materialized(Stores.persistent_versioned_key_value_store(name, history_ms))


def topology(define: Callable[[StreamsBuilder], KTable | KStream], out: serdes.Serde = S) -> Callable[[], Topology]:
    """Return the topology that `define` makes, with its result on `out`."""

    def build() -> Topology:
        builder = StreamsBuilder()
        made = define(builder)
        (made.to_stream() if isinstance(made, KTable) else made).to("out", Produced(S, value=out))
        return builder.build()

    return build


def case(name: str, join: Callable[[KTable, KTable], KTable], given: Given, out: Out, dropped: int = 0) -> Case:
    return Case(name, topology(lambda b: join(b.table("in", ROWS), b.table("other", ROWS))), given, {"out": out}, dropped=dropped)


def kept(
    name: str, join: Callable[[KTable, KTable, Materialized | None], KTable], given: Given, out: Out, dropped: int = 0
) -> Iterable[Case]:
    """The case three times: without a store for the result, and with one, with and without a cache."""
    stores = {"no store": None, "a store": Materialized("result", value=S), "no cache": Materialized("result", value=S, caching=False)}
    for how, store in stores.items():
        yield case(f"{name} ({how})", lambda left, right, store=store: join(left, right, store), given, out, dropped)  # type: ignore[misc]


BY_KEY: Given = [
    ("in", "a", "1", 10),
    ("other", "a", "x", 5),
    ("other", "a", "y", 20),
    ("in", "a", "2", 7),
    ("other", "b", "z", 8),
    ("other", "a", None, 9),
    ("in", "a", None, 30),
    ("in", "b", "3", 9),
]
LETTERS = {"x": "a", "y": "b"}
BY_FOREIGN_KEY: Given = [
    ("in", "k", "x1", 10),
    ("other", "a", "A", 5),
    ("in", "l", "x2", 3),
    ("in", "k", "y1", 20),
    ("other", "b", "B", 25),
    ("other", "a", "A'", 30),
    ("in", "k", "?", 31),
    ("in", "l", None, 32),
    ("other", "a", None, 33),
]


def letter(value: str) -> str | None:
    """The foreign key of a row."""
    return LETTERS.get(value[0])


CASES = [
    *kept(
        "inner join of tables: the later of both times; a tombstone when either row goes",
        lambda left, right, store: left.join(right, plus, store),
        BY_KEY,
        [("a", "1+x", 10), ("a", "1+y", 20), ("a", "2+y", 20), ("a", None, 9), ("b", "3+z", 9)],
    ),
    *kept(
        "left join of tables: with None where there is no right row",
        lambda left, right, store: left.left_join(right, plus, "named", store),
        BY_KEY,
        [
            *[("a", "1+None", 10), ("a", "1+x", 10), ("a", "1+y", 20), ("a", "2+y", 20), ("a", "2+None", 9)],
            *[("a", None, 30), ("b", "3+z", 9)],
        ],
    ),
    *kept(
        "outer join of tables: with None on either side; the result goes with the last of both",
        lambda left, right, store: left.outer_join(right, plus, store),
        BY_KEY,
        [
            *[("a", "1+None", 10), ("a", "1+x", 10), ("a", "1+y", 20), ("a", "2+y", 20), ("b", "None+z", 8), ("a", "2+None", 9)],
            *[("a", None, 30), ("b", "3+z", 9)],
        ],
    ),
    case(
        "a join of tables drops nothing but rows without a key",
        lambda left, right: left.join(right, plus),
        [("in", None, "1", 10), ("other", "a", "x", 10), ("in", "a", "1", 11)],
        [("a", "1+x", 11)],
        dropped=1,
    ),
    case(
        "a join of a joined and of a filtered table, none of them kept",
        lambda left, right: left.outer_join(right, plus).join(left.filter(lambda k, v: v != "1"), plus),
        [("in", "a", "1", 10), ("other", "a", "x", 11), ("in", "a", "2", 12), ("in", "a", "1", 13)],
        [("a", "2+x+2", 12), ("a", "2+x+2", 12), ("a", None, 13)],
    ),
    *kept(
        "foreign key, inner: follows both rows and the key; when the right row changes, the result has its time",
        lambda left, right, store: left.join(right, letter, plus, TableJoined(name="named"), store),
        BY_FOREIGN_KEY,
        [
            *[("k", "x1+A", 5), ("l", "x2+A", 5), ("k", None, 20), ("k", "y1+B", 25), ("l", "x2+A'", 30)],
            *[("k", None, 31), ("l", None, 32)],
        ],
        dropped=1,
    ),
    case(
        "foreign key, left: every left row has a result",
        lambda left, right: left.left_join(right, lambda key, value: letter(value), plus),
        BY_FOREIGN_KEY,
        [
            *[("k", "x1+None", 10), ("k", "x1+A", 5), ("l", "x2+A", 5), ("k", "y1+None", 20), ("k", "y1+B", 25), ("l", "x2+A'", 30)],
            *[("k", "?+None", 31), ("l", None, 32)],
        ],
    ),
    case(
        "foreign key of a table to itself",
        lambda left, right: left.join(left, lambda value: value[1:] or None, plus),
        [("in", "a", "1", 1), ("in", "b", "2a", 2), ("in", "a", "3b", 3), ("in", "b", None, 4)],
        [("b", "2a+1", 2), ("b", "2a+3b", 3), ("a", "3b+2a", 3), ("a", None, 4), ("b", None, 4)],
        dropped=1,
    ),
    Case(
        "a versioned table takes changes in any order and forwards all; a filter of it too; what is older than its history is dropped",
        topology(lambda b: b.table("in", ROWS, versions("rows", 20)).filter(lambda k, v: v != "2")),
        [("in", "a", "1", 10), ("in", "a", "2", 5), ("in", "a", None, 7), ("in", "a", "3", 40), ("in", "a", "4", 19)],
        {"out": [("a", "1", 10), ("a", None, 5), ("a", None, 7), ("a", "3", 40)]},
        dropped=1,
    ),
    Case(
        "joins of versioned tables leave out what is not the latest",
        topology(lambda b: b.table("in", ROWS, versions("left")).left_join(b.table("other", ROWS, versions("right")), plus)),
        [("in", "a", "1", 10), ("in", "a", "0", 5), ("other", "a", "x", 8), ("other", "a", "w", 3), ("in", "a", "2", 20)],
        {"out": [("a", "1+None", 10), ("a", "1+x", 10), ("a", "2+x", 20)]},
        dropped=2,
    ),
    Case(
        "a grouped versioned table counts the latest rows only",
        topology(lambda b: b.table("in", ROWS, versions("rows")).group_by(lambda k, v: (v, v), Grouped(S, value=S)).count(), out=L),
        [("in", "a", "x", 10), ("in", "a", "y", 5), ("in", "b", "x", 11), ("in", "a", "z", 20)],
        {"out": [("x", 1, 10), ("x", 2, 11), ("x", 1, 20), ("z", 1, 20)]},
        {"out": (S, L)},
    ),
    Case(
        "a stream is joined with the row of its own time of a versioned table",
        topology(lambda b: b.stream("in", ROWS).left_join(b.table("other", ROWS, versions("rows")).map_values(str.upper), plus)),
        [
            ("other", "a", "x", 10),
            ("other", "a", "y", 20),
            ("in", "a", "1", 15),
            ("in", "a", "2", 25),
            ("in", "a", "3", 5),
            ("in", None, "4", 26),
        ],
        {"out": [("a", "1+X", 15), ("a", "2+Y", 25), ("a", "3+None", 5), (None, "4+None", 26)]},
    ),
    Case(
        "with a grace period a record waits for late rows; in the order of time, then of keys; one whose time is over does not wait",
        topology(
            lambda b: b.stream("in", ROWS).join(
                b.table("other", ROWS, versions("rows")), plus, Joined(S, value=S, name="late", grace_period=5)
            )
        ),
        [
            *[
                ("other", "a", "x", 10),
                ("in", "b", "2", 16),
                ("in", "a", "1", 16),
                ("in", "a", "0", 15),
                ("other", "a", "y", 15),
                ("other", "b", "z", 16),
            ],
            *[("in", "a", "3", 20), ("in", "a", "4", 21), ("in", "a", "5", 11), ("in", "a", None, 22)],
        ],
        {"out": [("a", "0+y", 15), ("a", "1+y", 16), ("b", "2+z", 16), ("a", "5+x", 11)]},
        dropped=1,
    ),
]

test_case = each(CASES)
test_restarts_change_nothing = each_restarted(CASES)
