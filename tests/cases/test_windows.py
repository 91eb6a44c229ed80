"""Aggregates over tumbling and hopping windows: rows in, rows out, timestamps included."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime import serdes
from runtime.operators.base import OperatorSupplier
from runtime.operators.table import ToStream
from runtime.operators.windowed import WindowAggregate, window_count, window_reduce
from runtime.record import Window, Windowed
from runtime.serdes import Serde
from runtime.stores import EngineStore, StoreBuilder
from runtime.topology.topology import Topology
from tests.cases.building import L, S, Windows, chain, piped, window
from tests.cases.case import Case, check

TUMBLING = Windows(10, 10, 5)
HOPPING = Windows(10, 4, 0)
WINDOWED = {"out": (serdes.time_windowed(S, 10), L)}


def at(key: str, start: int) -> Windowed:
    return Windowed(key, Window(start, start + 10))


def windowed(supplier: OperatorSupplier, store: StoreBuilder[EngineStore], out: Serde = L) -> Callable[[], Topology]:
    return chain((supplier, store.name), (ToStream(), None), stores=(store,), out=out, key=serdes.time_windowed(S, 10))


def windows(caching: bool) -> list[Case]:
    kind = "caching" if caching else "no cache"
    return [
        Case(
            f"tumbling windows: boundaries, and results at the latest time of their records ({kind})",
            windowed(window_count("w", TUMBLING), window("w", TUMBLING, caching=caching)),
            piped(("a", "x", 0), ("a", "x", 9), ("a", "x", 3), ("a", "x", 10), ("b", "x", 12)),
            {"out": [(at("a", 0), 1, 0), (at("a", 0), 2, 9), (at("a", 0), 3, 9), (at("a", 10), 1, 10), (at("b", 10), 1, 12)]},
            WINDOWED,
        ),
        Case(
            f"late records: dropped once the window's end is not after stream time minus grace ({kind})",
            windowed(window_count("w", TUMBLING), window("w", TUMBLING, caching=caching)),
            # Stream time 14: end 10 > 14 - 5, taken. Stream time 15: 10 > 10 is not so, dropped. Other keys share the stream time.
            piped(("a", "x", 14), ("a", "x", 2), ("b", "x", 15), ("a", "x", 3), ("a", "x", 11)),
            {"out": [(at("a", 10), 1, 14), (at("a", 0), 1, 2), (at("b", 10), 1, 15), (at("a", 10), 2, 14)]},
            WINDOWED,
            dropped=1,
        ),
        Case(
            f"hopping windows: all that hold the record, earliest first, none before 0; late windows one by one ({kind})",
            windowed(window_count("w", HOPPING), window("w", HOPPING, caching=caching)),
            # 5: starts 0, 4. 13: starts 4, 8, 12. 9 at stream time 13: window 0 (end 10) is over, 4 (end 14) and 8 are not.
            piped(("a", "x", 5), ("a", "x", 13), ("a", "x", 9)),
            {
                "out": [
                    (at("a", 0), 1, 5),
                    (at("a", 4), 1, 5),
                    (at("a", 4), 2, 13),
                    (at("a", 8), 1, 13),
                    (at("a", 12), 1, 13),
                    (at("a", 4), 3, 13),
                    (at("a", 8), 2, 13),
                ]
            },
            WINDOWED,
            dropped=1,
        ),
        Case(
            f"windowed aggregates drop null keys and values ({kind})",
            windowed(window_count("w", TUMBLING), window("w", TUMBLING, caching=caching)),
            piped((None, "x", 1), ("a", None, 2), ("a", "x", 3)),
            {"out": [(at("a", 0), 1, 3)]},
            WINDOWED,
            dropped=2,
        ),
        Case(
            f"windowed aggregate ({kind})",
            windowed(
                WindowAggregate("w", TUMBLING, lambda: 100, lambda key, value, total: total + len(value)),
                window("w", TUMBLING, caching=caching),
            ),
            piped(("a", "xx", 1), ("a", "xxx", 2)),
            {"out": [(at("a", 0), 102, 1), (at("a", 0), 105, 2)]},
            WINDOWED,
        ),
        Case(
            f"windowed reduce ({kind})",
            windowed(window_reduce("w", TUMBLING, lambda total, value: total + value), window("w", TUMBLING, S, caching=caching), S),
            piped(("a", "x", 1), ("a", "y", 2), ("a", "z", 11)),
            {"out": [(at("a", 0), "x", 1), (at("a", 0), "xy", 2), (at("a", 10), "z", 11)]},
            {"out": (serdes.time_windowed(S, 10), S)},
        ),
    ]


CASES = [*windows(True), *windows(False)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    check(case)
