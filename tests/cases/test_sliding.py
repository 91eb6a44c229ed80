"""Aggregates over sliding windows: rows in, rows out, timestamps included; with and without a cache, on window close, and over restarts."""

from __future__ import annotations

from collections.abc import Callable

from penstock import EmitStrategy, Materialized, SlidingWindows, StreamsBuilder, serdes
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.record import Window, Windowed
from penstock.runtime.topology.topology import Topology
from penstock.serdes import Serde
from tests.cases.case import Case, Row, each, each_restarted
from tests.support.building import S, piped

TEN = SlidingWindows.of_time_difference_with_no_grace(10)
GRACEFUL = SlidingWindows.of_time_difference_and_grace(10, 20)
TEXTS: dict[str, tuple[Serde, Serde]] = {"out": (serdes.time_windowed(S, 10), S)}


def one(start: int, value: object, timestamp: int, key: str = "a") -> Row:
    return Windowed(key, Window(start, start + 10)), value, timestamp


def joined(windows: SlidingWindows, kept: Materialized, *, on_close: bool = False) -> Callable[[], Topology]:
    """The values of each window, in the order in which they came."""

    def build() -> Topology:
        builder = StreamsBuilder()
        windowed = builder.stream("in", Consumed(S, value=S)).group_by_key().windowed_by(windows)
        if on_close:
            windowed.emit_strategy(EmitStrategy.on_window_close())
        table = windowed.aggregate(lambda: "", lambda k, v, total: None if v == "stop" else total + v, kept)
        table.to_stream().to("out", Produced(value=S))
        return builder.build()

    return build


def cases(how: str, kept: Materialized) -> list[Case]:
    return [
        Case(
            f"each record ends a window; a later one opens the window that begins behind it ({how})",
            joined(TEN, kept),
            piped(("a", "x", 20), ("a", "y", 25), ("a", "z", 31)),
            {
                "out": [
                    one(10, "x", 20),
                    one(21, "y", 25),  # behind x
                    one(15, "xy", 25),  # up to y
                    one(21, "yz", 31),
                    one(26, "z", 31),  # behind y
                    # Up to z: it begins with what was behind x, which x is not in.
                ]
            },
            TEXTS,
        ),
        Case(
            f"both ends belong to a window ({how})",
            joined(TEN, kept),
            piped(("a", "x", 20), ("a", "y", 30), ("a", "z", 41)),
            # The window behind y is the one up to z: without a cache it is emitted twice, as in Kafka Streams.
            {"out": [one(10, "x", 20), one(21, "y", 30), one(20, "xy", 30), *[one(31, "z", 41)] * (2 if how == "no cache" else 1)]},
            TEXTS,
        ),
        Case(
            f"several records of one time are in the same windows ({how})",
            joined(TEN, kept),
            piped(("a", "x", 20), ("a", "y", 20), ("b", "z", 20)),
            {"out": [one(10, "x", 20), one(10, "xy", 20), one(10, "z", 20, "b")]},
            TEXTS,
        ),
        Case(
            f"a record out of order joins the windows that hold it, and has a window behind it at once ({how})",
            joined(GRACEFUL, kept),
            piped(("a", "x", 30), ("a", "y", 25)),
            {"out": [one(20, "x", 30), one(20, "xy", 30), one(15, "y", 25), one(26, "x", 30)]},
            TEXTS,
        ),
        Case(
            f"what is earlier than the difference goes into the window from 0 ({how})",
            joined(TEN, kept),
            piped(("a", "x", 3), ("a", "y", 8), ("a", "z", 11)),
            {"out": [one(0, "x", 3), one(4, "y", 8), one(0, "xy", 8), one(4, "yz", 11), one(9, "z", 11), one(1, "xyz", 11)]},
            TEXTS,
        ),
        Case(
            f"late: its own right window would have ended before stream time minus grace; exactly then it has not ({how})",
            joined(TEN, kept),
            # 19 + 10 < 30: late. 20 is not: its left window is over, which is one more drop, its right window is not.
            piped(("b", "x", 30), ("a", "y", 19), ("a", "z", 20)),
            {"out": [one(20, "x", 30, "b")]},
            TEXTS,
            dropped=2,
        ),
        Case(
            f"no key, no value ({how})",
            joined(TEN, kept),
            piped((None, "x", 20), ("a", None, 20), ("a", "x", 20)),
            {"out": [one(10, "x", 20)]},
            TEXTS,
            dropped=2,
        ),
        Case(
            f"an aggregate of None deletes the window; the next record starts a new one, at its own time ({how})",
            joined(GRACEFUL, kept),
            piped(("a", "stop", 26), ("a", "x", 24)),
            {"out": [*[one(16, None, 26)] * (how == "no cache"), one(14, "x", 24)]},
            TEXTS,
        ),
        Case(
            f"on window close: by start, then key, once stream time has passed the end ({how})",
            joined(TEN, kept, on_close=True),
            piped(("b", "x", 20), ("a", "y", 20), ("a", "z", 30), ("c", "w", 31), ("c", "w", 90)),
            {"out": [one(10, "y", 20), one(10, "x", 20, "b"), one(20, "yz", 30), one(21, "z", 30), one(21, "w", 31, "c")]},
            TEXTS,
        ),
    ]


STORES: list[tuple[str, Materialized]] = [
    ("caching", Materialized("w", value=S)),
    ("no cache", Materialized("w", value=S, caching=False)),
    ("in memory", Materialized("w", value=S, store_type="in_memory")),
]
CASES = [case for how, kept in STORES for case in cases(how, kept)]

test_case = each(CASES)
test_restarts_change_nothing = each_restarted([case for case in CASES if "(no cache)" not in case.name])
