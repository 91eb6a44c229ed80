"""Joins of two streams: what goes in, and what comes out when. The left stream is `in`, the right one `other`."""

from __future__ import annotations

from collections.abc import Callable

from penstock import Consumed, JoinWindows, KStream, Produced, StreamJoined, StreamsBuilder, Topology, serdes
from penstock.runtime.stores import Stores
from tests.cases.case import Case, check, each, each_restarted

S = serdes.STRING
FIVE = JoinWindows.of_time_difference_and_grace(5, 2)
BY_VALUE = StreamJoined(S, value=S, other_value=S, name="by-value")
IN_MEMORY = StreamJoined(
    S,
    value=S,
    other_value=S,
    this_store=Stores.in_memory_window_store("this", 12, 10, True),
    other_store=Stores.in_memory_window_store("other", 12, 10, True),
)
Given = list[tuple[str, object, object, int]]


def plus(left: object, right: object) -> str:
    return f"{left}+{right}"


def joined(join: Callable[[KStream, KStream], KStream]) -> Callable[[], Topology]:
    """Return the topology of a `join` of the streams `in` and `other`, with its result on `out`."""

    def build() -> Topology:
        builder = StreamsBuilder()
        left, right = (builder.stream(topic, Consumed(S, value=S)) for topic in ("in", "other"))
        join(left, right).to("out", Produced(S, value=S))
        return builder.build()

    return build


def case(
    name: str, join: Callable[[KStream, KStream], KStream], given: Given, out: list[tuple[object, object, int]], dropped: int = 0
) -> Case:
    return Case(name, joined(join), given, {"out": out}, dropped=dropped)


CASES = [
    case(
        "inner: every pair that is near enough, at the later time, in the order of the other side's times",
        lambda left, right: left.join(right, plus, FIVE),
        [
            ("in", "a", "1", 10),
            ("in", "a", "2", 14),
            ("in", "a", "3", 12),
            ("other", "a", "x", 15),
            ("other", "a", "y", 20),
            ("in", "b", "4", 15),
        ],
        [("a", "1+x", 15), ("a", "3+x", 15), ("a", "2+x", 15)],
    ),
    case(
        "inner: ties are kept side by side, both ends of the window belong to it",
        lambda left, right: left.join(right, plus, FIVE),
        [
            ("in", "a", "1", 10),
            ("in", "a", "2", 10),
            ("other", "a", "x", 5),
            ("other", "a", "y", 15),
            ("other", "a", "z", 16),
            ("other", "a", "w", 4),
        ],
        [("a", "1+x", 10), ("a", "2+x", 10), ("a", "1+y", 15), ("a", "2+y", 15)],
    ),
    case(
        "inner: a record that is late by more than window and grace finds no match, as the other side has expired",
        lambda left, right: left.join(right, plus, FIVE),
        [("in", "a", "1", 10), ("in", "a", "2", 30), ("other", "a", "x", 11)],
        [],
    ),
    case(
        "inner: null keys and values are dropped",
        lambda left, right: left.join(right, plus, FIVE),
        [("in", None, "1", 10), ("in", "a", None, 10), ("other", "a", "x", 10), ("other", None, "y", 11)],
        [],
        dropped=3,
    ),
    case(
        "an asymmetric window: the right record at most 8 older and 1 newer",
        lambda left, right: left.join(right, plus, FIVE.before(8).after(1)),
        [
            ("in", "a", "1", 20),
            ("other", "a", "w", 11),
            ("other", "a", "x", 12),
            ("other", "a", "y", 21),
            ("other", "a", "z", 22),
            ("in", "a", "2", 29),
        ],
        [("a", "1+x", 20), ("a", "1+y", 21), ("a", "2+y", 29), ("a", "2+z", 29)],
    ),
    case(
        "a window that begins after the left record",
        lambda left, right: left.join(right, plus, FIVE.before(-2)),
        [("in", "a", "1", 20), ("other", "a", "x", 21), ("other", "a", "y", 22), ("other", "a", "z", 25)],
        [("a", "1+y", 22), ("a", "1+z", 25)],
    ),
    case(
        "left: alone when stream time has passed window and grace, with its own time, oldest first",
        lambda left, right: left.left_join(right, plus, FIVE),
        [("in", "a", "1", 11), ("in", "b", "2", 10), ("in", "c", "3", 17), ("other", "z", "-", 18), ("in", "d", "4", 25)],
        [("b", "2+None", 10), ("a", "1+None", 11), ("c", "3+None", 17)],
    ),
    case(
        "left: who found a partner does not come alone, one of two that waited at the same time neither",
        lambda left, right: left.left_join(right, plus, FIVE),
        [("in", "a", "1", 10), ("in", "a", "2", 10), ("other", "a", "x", 12), ("in", "b", "3", 30)],
        [("a", "1+x", 12), ("a", "2+x", 12)],
    ),
    case(
        "left: two records of one key and time without a match are emitted in the order of arrival",
        lambda left, right: left.left_join(right, plus, FIVE),
        [("in", "a", "1", 10), ("in", "a", "2", 10), ("in", "b", "3", 30)],
        [("a", "1+None", 10), ("a", "2+None", 10)],
    ),
    case(
        "left: late, with its window over, it comes alone at once, and joined when a late partner comes all the same",
        lambda left, right: left.left_join(right, plus, FIVE),
        [("in", "a", "1", 20), ("in", "a", "2", 14), ("other", "b", "-", 27), ("other", "a", "x", 16)],
        [("a", "2+None", 14), ("a", "2+x", 16), ("a", "1+x", 20)],
    ),
    case(
        "left: null keys come alone at once, null values are dropped, the right side's unmatched never come",
        lambda left, right: left.left_join(right, plus, FIVE),
        [("in", None, "1", 10), ("in", "a", None, 10), ("other", "b", "x", 10), ("other", None, "y", 11), ("in", "c", "2", 40)],
        [(None, "1+None", 10)],
        dropped=2,
    ),
    case(
        "outer: both sides' unmatched; of one time the right side's first",
        lambda left, right: left.outer_join(right, plus, FIVE),
        [("in", "a", "1", 10), ("other", "b", "x", 10), ("other", "c", "y", 9), ("in", "c", "2", 12), ("in", "z", "3", 18)],
        [("c", "2+y", 12), ("b", "None+x", 10), ("a", "1+None", 10)],
    ),
    case(
        "outer: the sides wait for as long as their windows reach",
        lambda left, right: left.outer_join(right, plus, JoinWindows.of_time_difference_with_no_grace(2).before(8)),
        [("in", "a", "1", 10), ("other", "b", "x", 10), ("in", "c", "2", 13), ("in", "c", "3", 19)],
        [("a", "1+None", 10), ("b", "None+x", 10), ("c", "2+None", 13)],
    ),
    case(
        "outer: one that waits since before the first look comes when it is due, though a later one is not",
        lambda left, right: left.outer_join(right, plus, JoinWindows.of_time_difference_and_grace(5, 3)),
        [("other", "b", None, 6), ("other", "c", "x", 4), ("in", "a", "1", 2), ("other", "c", "y", 7), ("other", "a", "z", 11)],
        [("a", "1+None", 2)],
        dropped=1,
    ),
    case(
        "outer: null keys of both sides come alone at once",
        lambda left, right: left.outer_join(right, plus, FIVE, StreamJoined(S, value=S, other_value=S, name="named", store_name="stores")),
        [("in", None, "1", 10), ("other", None, "x", 9), ("other", "a", None, 9)],
        [(None, "1+None", 10), (None, "None+x", 9)],
        dropped=1,
    ),
    case(
        "a stream with itself: each pair both ways, and each record with itself",
        lambda left, right: left.join(left, plus, FIVE),
        [("in", "a", "1", 10), ("in", "a", "2", 12), ("in", "b", "3", 12)],
        [("a", "1+1", 10), ("a", "2+1", 12), ("a", "1+2", 12), ("a", "2+2", 12), ("b", "3+3", 12)],
    ),
    case(
        "by another key: through repartition topics",
        lambda left, right: left.select_key(lambda k, v: v).left_join(right.select_key(lambda k, v: v), plus, FIVE, BY_VALUE),
        [("in", "a", "1", 10), ("other", "b", "1", 11), ("in", "c", "2", 12), ("other", "d", "3", 40)],
        [("1", "1+1", 11), ("2", "2+None", 12)],
    ),
]

test_case = each(CASES)
test_restarts_change_nothing = each_restarted(CASES)


def test_a_null_value_moves_the_time_of_stores_in_memory_and_what_it_made_late_is_dropped_though_one_like_it_was_kept() -> None:
    given = case(
        "in memory, in one life",
        lambda left, right: left.outer_join(right, plus, FIVE, IN_MEMORY),
        [("other", "b", "x", 12), ("other", "a", None, 35), ("other", "b", "x", 12)],
        [("b", "None+x", 12)],
        dropped=2,
    )
    check(given)
