"""Aggregates over tumbling and hopping windows: rows in, rows out, timestamps included."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from penstock import EmitStrategy, Materialized, StreamsBuilder, StreamsConfig, TimeWindows, TopologyError, UnlimitedWindows, serdes
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.metrics import NODE
from penstock.runtime.model.record import Window, Windowed
from penstock.runtime.operators.aggregate import nothing, reducing
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.table import ToStream
from penstock.runtime.operators.windowed import WindowAggregate
from penstock.runtime.stores import EngineStore, StoreBuilder
from penstock.runtime.topology.topology import Topology
from penstock.serdes import Serde
from penstock.testing import TopologyTestDriver
from tests.cases.case import Case, each, each_restarted
from tests.cases.restarting import State, restart
from tests.support.building import L, S, Windows, chain, piped, window, window_count

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
            windowed(
                WindowAggregate("w", TUMBLING, nothing, reducing(lambda total, value: total + value)),
                window("w", TUMBLING, S, caching=caching),
                S,
            ),
            piped(("a", "x", 1), ("a", "y", 2), ("a", "z", 11)),
            {"out": [(at("a", 0), "x", 1), (at("a", 0), "xy", 2), (at("a", 10), "z", 11)]},
            {"out": (serdes.time_windowed(S, 10), S)},
        ),
    ]


def on_close(windows: TimeWindows, *, kept: Materialized[str, int]) -> Callable[[], Topology]:
    def build() -> Topology:
        builder = StreamsBuilder()
        windowed = builder.stream("in", Consumed(S, value=S)).group_by_key().windowed_by(windows)
        table = windowed.emit_strategy(EmitStrategy.on_window_close()).count(kept)
        table.to_stream().to("out", Produced(value=L))
        return builder.build()

    return build


def closing(how: str, kept: Materialized[str, int]) -> list[Case]:
    return [
        Case(
            f"on window close: each window once, when stream time has passed its end and grace; by start, then key ({how})",
            on_close(TimeWindows.of_size_and_grace(10, 5), kept=kept),
            # 10 closes at 15; the late 3 is in time, the next one is not.
            piped(("b", "x", 1), ("a", "x", 8), ("a", "x", 14), ("a", "x", 3), ("c", "x", 15), ("a", "x", 4), ("a", "x", 25)),
            {"out": [(at("a", 0), 2, 8), (at("b", 0), 1, 1), (at("a", 10), 1, 14), (at("c", 10), 1, 15)]},
            WINDOWED,
            dropped=1,
        ),
        Case(
            f"on window close: no window is forgotten when stream time jumps far ahead ({how})",
            on_close(TimeWindows.of_size_with_no_grace(10).advance_by(5), kept=kept),
            piped(("a", "x", 7), ("b", "x", 1_000_000), ("b", "x", 1_000_007)),
            {"out": [(at("a", 0), 1, 7), (at("a", 5), 1, 7), (at("b", 999_995), 1, 1_000_000)]},
            WINDOWED,
        ),
    ]


def everything() -> Topology:
    builder = StreamsBuilder()
    table = builder.stream("in", Consumed(S, value=S)).group_by_key().windowed_by(UnlimitedWindows.of().start_on(5)).count()
    table.to_stream(lambda key, count: f"{key.key}@{key.window.start}-{key.window.end}").to("out", Produced(S, value=L))
    return builder.build()


class Weekdays:
    """Windows of a user's own: [0, 7), [7, 12), again and again; 2 ms of grace."""

    size_ms = 7
    grace_period_ms = 2

    def windows_for(self, timestamp: int) -> dict[int, Window]:
        week, day = divmod(timestamp, 12)
        start, end = (0, 7) if day < 7 else (7, 12)
        return {week * 12 + start: Window(week * 12 + start, week * 12 + end)}


def weekdays() -> Topology:
    builder = StreamsBuilder()
    table = builder.stream("in", Consumed(S, value=S)).group_by_key().windowed_by(Weekdays()).count(Materialized("w", caching=False))
    table.to_stream(lambda key, count: f"{key.key}@{key.window.start}-{key.window.end}").to("out", Produced(S, value=L))
    return builder.build()


OTHERS = [
    Case(
        "one window without an end; what is before its start belongs to none and is not dropped",
        everything,
        piped(("a", "x", 4), ("a", "x", 5), ("a", "x", 9_999), ("a", "x", 6)),
        {"out": [("a@5-9223372036854775807", count, timestamp) for count, timestamp in ((1, 5), (2, 9_999), (3, 9_999))]},
        {"out": (S, L)},
    ),
    Case(
        "windows of a user's own",
        weekdays,
        piped(("a", "x", 1), ("a", "x", 8), ("a", "x", 2), ("a", "x", 9), ("a", "x", 3), ("a", "x", 19)),
        {"out": [("a@0-7", 1, 1), ("a@7-12", 1, 8), ("a@0-7", 2, 2), ("a@7-12", 2, 9), ("a@19-24", 1, 19)]},
        {"out": (S, L)},
        dropped=1,
    ),
]
CASES = [
    *windows(True),
    *windows(False),
    *closing("caching", Materialized("w")),
    *closing("in memory", Materialized("w", store_type="in_memory", caching=False)),
    *OTHERS,
]

test_case = each(CASES)
test_restarts_change_nothing = each_restarted(CASES)


def test_dropped_records_are_counted_with_the_reason_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    topology = windowed(window_count("w", TUMBLING), window("w", TUMBLING))()
    with TopologyTestDriver(topology, {"application.id": "dropping"}, 0) as driver:
        source = driver.create_input_topic("in", S, S)
        for key, value, timestamp in (("a", "x", 30), (None, "x", 31), ("a", None, 32), ("a", "x", 9), ("a", "x", 15)):
            source.pipe_input(key, value, timestamp)
        found = {
            dict(name.tags)["reason"]: value for name, value in driver.metrics().items() if name.name == "dropped-records-by-reason-total"
        }
        (group,) = {name.group for name in driver.metrics() if name.name == "dropped-records-by-reason-total"}
    assert (found, group) == ({"null-key-or-value": 2, "expired-window": 2}, NODE)
    reported = [re.sub(r"building\.py:\d+", "building.py:7", record.message) for record in caplog.records]
    node = "task 0_0, node node-0 (add_operator at building.py:7)"
    (null,) = (message for message in reported if "without a key or value" in message)
    assert null.startswith(f"{node}: dropped a record without a key or value: in-0@1. "), "the first one alone, with its operation's line"
    assert (
        f"{node}: skipped 1 records for expired windows. topic=[in] partition=[0] offset=[3] timestamp=[9] window=[0,10) "
        "expiration=[25] streamTime=[30]"
    ) in reported


def test_results_on_close_come_at_most_once_a_second_of_wall_clock_time() -> None:
    supplier = window_count("w", Windows(10, 10, 0), on_close=True)
    with TopologyTestDriver(windowed(supplier, window("w", Windows(10, 10, 0)))(), None, 0) as driver:
        (task,) = driver._tasks
        task._context.emit_interval_ms = 1_000
        restart(driver, State.KEPT)  # built again, with the interval
        source, out = driver.create_input_topic("in", S, S), driver.create_output_topic("out", *WINDOWED["out"])
        for timestamp in (1, 11, 21):
            source.pipe_input("a", "x", timestamp)
        assert out.read_key_values_to_list() == [(at("a", 0), 1)]
        driver.advance_wall_clock_time(1_000)
        source.pipe_input("a", "x", 22)
        assert out.read_key_values_to_list() == [(at("a", 10), 1)]


def test_only_windows_that_close_have_results_on_close() -> None:
    grouped = StreamsBuilder().stream("in").group_by_key()
    with pytest.raises(TopologyError, match="results on window close: UnlimitedWindows do not close"):
        grouped.windowed_by(UnlimitedWindows.of()).emit_strategy(EmitStrategy.on_window_close())
    with pytest.raises(TopologyError, match="has no time zone"):
        UnlimitedWindows.of().start_on(datetime(2013, 1, 1))
    assert UnlimitedWindows.of().start_on(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)).start_ms == 1_000


def test_the_changelog_of_windows_without_an_end_is_kept_as_long_as_a_broker_can() -> None:
    (changelog,) = everything().resolved(StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:9092"})).internal_topics()
    assert changelog.config["retention.ms"] == str(2**63 - 1)
