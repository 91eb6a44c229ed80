"""Several grouped streams in one aggregate, with windows and without; with and without a cache, and over restarts."""

from __future__ import annotations

from collections.abc import Callable

from penstock import CogroupedKStream, Grouped, KTable, Materialized, SessionWindows, SlidingWindows, StreamsBuilder, TimeWindows, serdes
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.record import SessionWindow, Window, Windowed
from penstock.runtime.topology.topology import Topology
from penstock.serdes import Serde
from tests.cases.case import Case, each, each_restarted
from tests.support.building import S

WINDOWED: dict[str, tuple[Serde, Serde]] = {"out": (serdes.time_windowed(S, 10), S)}
SESSIONS: dict[str, tuple[Serde, Serde]] = {"out": (serdes.session_windowed(S), S)}


def cogrouped(define: Callable[[CogroupedKStream[str, str]], KTable]) -> Callable[[], Topology]:
    """Topics `one` and `two`: values of the one are appended, those of the other put in front."""

    def build() -> Topology:
        builder = StreamsBuilder()
        one, two = (builder.stream(topic, Consumed(S, value=S)).group_by_key() for topic in ("one", "two"))
        together = one.cogroup(lambda k, v, total: total + v).cogroup(two, lambda k, v, total: None if v == "end" else v + total)
        define(together).to_stream().to("out", Produced(value=S))
        return builder.build()

    return build


def regrouped(kept: Materialized[str, str]) -> Callable[[], Topology]:
    def build() -> Topology:
        builder = StreamsBuilder()
        one = builder.stream("one", Consumed(S, value=S)).group_by_key()
        two = builder.stream("two", Consumed(S, value=S)).group_by(lambda k, v: v[0], Grouped(S, value=S))
        table = one.cogroup(lambda k, v, total: total + v).cogroup(two, lambda k, v, total: f"{total}({k}{v})").aggregate(str, kept)
        table.filter(lambda k, v: len(v) > 1).to_stream().to("out", Produced(S, value=S))
        return builder.build()

    return build


def cases(how: str, kept: Materialized[str, str]) -> list[Case]:
    return [
        Case(
            f"each stream has its own aggregator; all of them work on one table ({how})",
            cogrouped(lambda together: together.aggregate(lambda: ">", kept)),
            [
                ("one", "a", "x", 5),
                ("two", "a", "y", 3),
                ("one", "b", "z", 6),
                ("two", None, "z", 7),
                ("one", "a", None, 8),
                ("two", "a", "end", 9),
            ],
            {"out": [("a", ">x", 5), ("a", "y>x", 5), ("b", ">z", 6), ("a", None, 9)]},
            dropped=2,
        ),
        Case(
            f"a stream with another key goes through a topic named after the store ({how})",
            regrouped(kept),
            [("one", "a", "x", 1), ("two", "k", "ay", 2), ("one", "a", "z", 3)],
            {
                "out": [("a", "x(aay)", 2), ("a", "x(aay)z", 3)],
                "topology-test-w-repartition": [("a", "ay", 2)],
            },
        ),
        Case(
            f"by windows; each stream has a stream time of its own, so what is late in one is not in the other ({how})",
            cogrouped(lambda together: together.windowed_by(TimeWindows.of_size_with_no_grace(10)).aggregate(lambda: ">", kept)),
            [("one", "a", "x", 5), ("two", "a", "y", 7), ("one", "a", "z", 15), ("one", "a", "late", 3), ("two", "a", "w", 3)],
            {
                "out": [
                    (Windowed("a", Window(0, 10)), ">x", 5),
                    (Windowed("a", Window(0, 10)), "y>x", 7),
                    (Windowed("a", Window(10, 20)), ">z", 15),
                    (Windowed("a", Window(0, 10)), "wy>x", 7),
                ]
            },
            WINDOWED,
            dropped=1,
        ),
        Case(
            f"by sliding windows ({how})",
            cogrouped(lambda together: together.windowed_by(SlidingWindows.of_time_difference_with_no_grace(10)).aggregate(str, kept)),
            [("one", "a", "x", 20), ("two", "a", "y", 25)],
            {
                "out": [
                    (Windowed("a", Window(10, 20)), "x", 20),
                    (Windowed("a", Window(21, 31)), "y", 25),
                    (Windowed("a", Window(15, 25)), "yx", 25),
                ]
            },
            WINDOWED,
        ),
        Case(
            f"by sessions ({how})",
            cogrouped(
                lambda together: together.windowed_by(SessionWindows.of_inactivity_gap_and_grace(5, 20)).aggregate(
                    str, lambda k, one, other: f"{one}|{other}", kept
                )
            ),
            [("one", "a", "x", 1), ("two", "a", "y", 10), ("one", "a", "z", 6)],
            {
                "out": [
                    (Windowed("a", SessionWindow(1, 1)), "x", 1),
                    (Windowed("a", SessionWindow(10, 10)), "y", 10),
                    (Windowed("a", SessionWindow(1, 1)), None, 1),
                    (Windowed("a", SessionWindow(10, 10)), None, 10),
                    (Windowed("a", SessionWindow(1, 10)), "|x|yz", 10),
                ]
            },
            SESSIONS,
        ),
    ]


CASES = [
    *cases("caching", Materialized("w", value=S, retention=1_000)),
    *cases("no cache", Materialized("w", value=S, caching=False, retention=1_000)),
]

test_case = each(CASES)
test_restarts_change_nothing = each_restarted(CASES)


def test_aggregates_of_one_cogroup_share_a_repartition_topic() -> None:
    builder = StreamsBuilder()
    regroup = builder.stream("in", Consumed(S, value=S)).group_by(lambda k, v: v, Grouped(S, value=S))
    together = regroup.cogroup(lambda k, v, total: f"{total}{v}")
    together.aggregate(str, Materialized("first", value=S))
    together.aggregate(str, Materialized("second", value=S))
    text = str(builder.build().describe())
    assert "first-repartition" in text and "second-repartition" not in text
