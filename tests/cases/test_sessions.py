"""Aggregates over sessions: rows in, rows out, timestamps included; with and without a cache, on window close, and over restarts."""

from __future__ import annotations

from collections.abc import Callable

from penstock import EmitStrategy, KGroupedStream, KTable, Materialized, SessionWindows, StreamsBuilder, serdes
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.record import SessionWindow, Windowed
from penstock.runtime.topology.topology import Topology
from penstock.serdes import Serde
from tests.cases.case import Case, Row, each, each_restarted
from tests.support.building import L, S, piped

SESSIONS = SessionWindows.of_inactivity_gap_with_no_grace(5)
GRACEFUL = SessionWindows.of_inactivity_gap_and_grace(5, 10)
COUNTS: dict[str, tuple[Serde, Serde]] = {"out": (serdes.session_windowed(S), L)}
TEXTS: dict[str, tuple[Serde, Serde]] = {"out": (serdes.session_windowed(S), S)}


def at(key: str, start: int, end: int) -> Windowed:
    return Windowed(key, SessionWindow(start, end))


def one(key: str, start: int, end: int, value: object) -> Row:
    """A result; its time is the end of its session."""
    return at(key, start, end), value, end


def sessions(define: Callable[[KGroupedStream[str, str]], KTable], value: Serde = L) -> Callable[[], Topology]:
    def build() -> Topology:
        builder = StreamsBuilder()
        table = define(builder.stream("in", Consumed(S, value=S)).group_by_key())
        table.to_stream().to("out", Produced(value=value))
        return builder.build()

    return build


def counted(windows: SessionWindows, how: Materialized[str, int]) -> Callable[[], Topology]:
    return sessions(lambda grouped: grouped.windowed_by(windows).count(how))


def stores(name: str) -> list[tuple[str, Materialized]]:
    """The ways to keep sessions, which all give the same."""
    return [
        ("caching", Materialized(name)),
        ("no cache", Materialized(name, caching=False)),
        ("in memory", Materialized(name, store_type="in_memory")),
    ]


def on_updates(how: str, kept: Materialized) -> list[Case]:
    # Without a cache a session that a record lies in is deleted too, before it comes again with the same bounds.
    again = [] if how != "no cache" else [one("a", 1, 6, None)]
    return [
        Case(
            f"a session grows while records come within the gap; the one that it was is deleted first ({how})",
            counted(SESSIONS, kept),
            piped(("a", "x", 1), ("a", "x", 6), ("a", "x", 12), ("b", "x", 12)),
            {
                "out": [
                    one("a", 1, 1, 1),
                    one("a", 1, 1, None),
                    one("a", 1, 6, 2),
                    one("a", 12, 12, 1),
                    one("b", 12, 12, 1),
                ]
            },
            COUNTS,
        ),
        Case(
            f"a record inside a session, and one at its very time ({how})",
            counted(SESSIONS, kept),
            piped(("a", "x", 1), ("a", "x", 6), ("a", "x", 3), ("a", "x", 6)),
            {
                "out": [
                    one("a", 1, 1, 1),
                    one("a", 1, 1, None),
                    one("a", 1, 6, 2),
                    *again,
                    one("a", 1, 6, 3),
                    *again,
                    one("a", 1, 6, 4),
                ]
            },
            COUNTS,
        ),
        Case(
            f"two records of one time make a session of no length, which is not deleted ({how})",
            counted(SESSIONS, kept),
            piped(("a", "x", 7), ("a", "x", 7)),
            {"out": [one("a", 7, 7, 1), one("a", 7, 7, 2)]},
            COUNTS,
        ),
        Case(
            f"a late record within the grace period joins two sessions; both are deleted, earliest first ({how})",
            counted(GRACEFUL, kept),
            piped(("a", "x", 1), ("a", "x", 10), ("a", "x", 6), ("a", "x", 2)),
            {
                "out": [
                    one("a", 1, 1, 1),
                    one("a", 10, 10, 1),
                    one("a", 1, 1, None),
                    one("a", 10, 10, None),
                    one("a", 1, 10, 3),
                    *([one("a", 1, 10, None)] if again else []),
                    one("a", 1, 10, 4),
                ]
            },
            COUNTS,
        ),
        Case(
            f"late: the session would have ended before stream time minus gap and grace; exactly then it has not ({how})",
            counted(GRACEFUL, kept),
            piped(("a", "x", 30), ("b", "x", 14), ("b", "x", 15), ("b", "x", 13)),
            # 14 < 30 - 15: late. 15 is not, and takes 13 in.
            {"out": [one("a", 30, 30, 1), one("b", 15, 15, 1), one("b", 15, 15, None), one("b", 13, 15, 2)]},
            COUNTS,
            dropped=1,
        ),
        Case(
            f"no key, no value ({how})",
            counted(SESSIONS, kept),
            piped((None, "x", 1), ("a", None, 2), ("a", "x", 3)),
            {"out": [one("a", 3, 3, 1)]},
            COUNTS,
            dropped=2,
        ),
        Case(
            f"reduce; sessions are merged with the reducer, the earlier first ({how})",
            sessions(lambda grouped: grouped.windowed_by(GRACEFUL).reduce(lambda total, v: total + v, kept), S),
            piped(("a", "x", 1), ("a", "y", 10), ("a", "z", 6)),
            {
                "out": [
                    one("a", 1, 1, "x"),
                    one("a", 10, 10, "y"),
                    one("a", 1, 1, None),
                    one("a", 10, 10, None),
                    one("a", 1, 10, "xyz"),
                ]
            },
            TEXTS,
        ),
        Case(
            f"aggregate with a merger; started by each record ({how})",
            sessions(
                lambda grouped: grouped.windowed_by(GRACEFUL).aggregate(
                    lambda: ">", lambda k, v, total: total + v, lambda k, one, other: f"({one}|{other})", replaced(kept)
                ),
                S,
            ),
            piped(("a", "x", 1), ("a", "y", 10), ("a", "z", 6)),
            {
                "out": [
                    one("a", 1, 1, ">x"),
                    one("a", 10, 10, ">y"),
                    one("a", 1, 1, None),
                    one("a", 10, 10, None),
                    one("a", 1, 10, "((>|>x)|>y)z"),
                ]
            },
            TEXTS,
        ),
        Case(
            f"an aggregate of None deletes the session ({how})",
            sessions(
                lambda grouped: grouped.windowed_by(SESSIONS).aggregate(
                    lambda: "", lambda k, v, total: None if v == "stop" else total + v, lambda k, one, other: one + other, replaced(kept)
                ),
                S,
            ),
            piped(("a", "x", 1), ("a", "stop", 2), ("a", "y", 3)),
            {
                "out": [
                    one("a", 1, 1, "x"),
                    one("a", 1, 1, None),
                    *([] if how != "no cache" else [one("a", 1, 2, None)]),
                    one("a", 3, 3, "y"),
                ]
            },
            TEXTS,
        ),
    ]


def replaced(kept: Materialized) -> Materialized:
    """The same store with the serde of texts."""
    return Materialized(kept.store, value=S, caching=kept.caching, store_type=kept.store_type)


def final(windows: SessionWindows, how: Materialized[str, int]) -> Callable[[], Topology]:
    return sessions(lambda grouped: grouped.windowed_by(windows).emit_strategy(EmitStrategy.on_window_close()).count(how))


def on_close(how: str, kept: Materialized) -> Case:
    of_three = [one("b", 1, 3, 2), one("a", 3, 3, 1)]  # by end, then start; in memory by end, then key, as in Kafka Streams
    return Case(
        f"on window close: once, when stream time has passed end and gap ({how})",
        final(SESSIONS, kept),
        # At 9 those that ended at 3 are closed (3 < 9 - 5); the one of 8 is closed when time jumps far ahead.
        piped(("b", "x", 1), ("a", "x", 3), ("b", "x", 3), ("c", "x", 8), ("c", "x", 9), ("c", "x", 40)),
        {"out": [*(reversed(of_three) if how == "in memory" else of_three), one("c", 8, 9, 2)]},
        COUNTS,
    )


CASES = [case for how, kept in stores("s") for case in [*on_updates(how, kept), on_close(how, kept)]]

test_case = each(CASES)
test_restarts_change_nothing = each_restarted([case for case in CASES if "(no cache)" not in case.name])
