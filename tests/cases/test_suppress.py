"""Tables whose changes wait: until a time limit, until their window closes, until the buffer is full; over restarts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import (
    Grouped,
    KTable,
    Materialized,
    ProcessingError,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    serdes,
)
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.metrics import NODE, STATE
from penstock.runtime.model.record import SessionWindow, Window, Windowed
from penstock.runtime.stores.buffer import BufferValue, Origin
from penstock.runtime.topology.topology import Topology
from penstock.serdes import Serde
from penstock.testing import TopologyTestDriver
from tests.cases.case import Case, check, each, each_restarted
from tests.support.building import J, L, S, piped

Buffer = Suppressed.BufferConfig
UNBOUNDED = Buffer.unbounded()
CLOSES = Suppressed.until_window_closes(UNBOUNDED)
WINDOWED: dict[str, tuple[Serde, Serde]] = {"out": (serdes.time_windowed(S, 10), L)}


def table(how: Suppressed, *, caching: bool = True) -> Callable[[], Topology]:
    """The last value of each key, which waits."""
    return defined(lambda builder: builder.table("in", Consumed(S, value=S), Materialized("t", caching=caching)).suppress(how))


def defined(define: Callable[[StreamsBuilder], KTable], value: Serde = S) -> Callable[[], Topology]:
    def build() -> Topology:
        builder = StreamsBuilder()
        define(builder).to_stream().to("out", Produced(value=value))
        return builder.build()

    return build


def counts(windows: TimeWindows | SlidingWindows, kept: Materialized[str, int]) -> Callable[[StreamsBuilder], KTable]:
    return lambda builder: builder.stream("in", Consumed(S, value=S)).group_by_key().windowed_by(windows).count(kept).suppress(CLOSES)


def sessions(builder: StreamsBuilder) -> KTable:
    windows = SessionWindows.of_inactivity_gap_and_grace(5, 2)
    return builder.stream("in", Consumed(S, value=S)).group_by_key().windowed_by(windows).count().suppress(CLOSES.with_name("final"))


def grouped(builder: StreamsBuilder) -> KTable:
    waiting = builder.table("in", Consumed(S, value=S)).suppress(Suppressed.until_time_limit(10, UNBOUNDED))
    groups = waiting.group_by(lambda key, value: ("all", value), Grouped(S, value=S))
    return groups.aggregate(str, lambda k, v, total: f"{total}+{v}", lambda k, v, total: f"{total}-{v}", Materialized(key=S, value=S))


LIMITED = [
    Case(
        f"the last change of a key goes out when it has waited so long in stream time; the first one counts ({caching=})",
        table(Suppressed.until_time_limit(10, UNBOUNDED), caching=caching),
        piped(("a", "1", 0), ("b", "1", 4), ("a", "2", 9), ("c", "1", 10), ("c", "2", 14), ("c", None, 15), ("d", "1", 24)),
        {"out": [("a", "2", 9), ("b", "1", 4), ("c", None, 15)]},
    )
    for caching in (True, False)
] + [
    Case(
        "changes of one time go out by the bytes of their keys",
        table(Suppressed.until_time_limit(5, UNBOUNDED)),
        piped(("b", "1", 0), ("a", "1", 0), ("aa", "1", 0), ("c", "1", 5)),
        {"out": [("a", "1", 0), ("aa", "1", 0), ("b", "1", 0)]},
    ),
    Case(
        "a change that is older than stream time by the limit goes out at once; without a limit each does",
        table(Suppressed.until_time_limit(0, UNBOUNDED)),
        piped(("a", "1", 7), ("a", "2", 3), ("a", "2", 9), ("a", None, 9)),
        {"out": [("a", "1", 7), ("a", "2", 3), ("a", "2", 9), ("a", None, 9)]},
    ),
    Case(
        "more keys than the limit: the oldest goes out early, with its last change",
        table(Suppressed.until_time_limit(100, Buffer.max_records(2))),
        piped(("a", "1", 3), ("b", "1", 1), ("a", "2", 4), ("c", "1", 5), ("d", "1", 6)),
        {"out": [("b", "1", 1), ("a", "2", 4)]},
    ),
    Case(
        "more bytes than the limit: the oldest keys go out early",
        # An entry is 8 + key + values + 16 + topic + 4 bytes: 32 here for a key and a value of one byte.
        table(Suppressed.until_time_limit(100, Buffer.max_bytes(70))),
        piped(("a", "1", 1), ("b", "1", 2), ("b", "1234567", 3), ("c", "1", 4)),
        {"out": [("a", "1", 1), ("b", "1234567", 3)]},
    ),
    Case(
        "an aggregate of a suppressed table subtracts what it has added, whatever came between",
        defined(grouped),
        piped(("a", "1", 0), ("a", "2", 10), ("a", "3", 11), ("a", "4", 12), ("b", "x", 30)),
        {"out": [("all", "+2", 10), ("all", "+2-2+4", 12)]},
    ),
    Case(
        "what waits is absent for a stream that is joined, or as downstream last heard of it",
        lambda: joined(),
        [
            *piped(("a", "x", 1)),
            ("t", "a", "1", 5),
            *piped(("a", "y", 6)),
            ("t", "b", "1", 30),
            *piped(("a", "z", 7)),
            ("t", "a", "2", 31),
            *piped(("a", "w", 8)),
        ],
        {"out": [("a", "x+None", 1), ("a", "y+None", 6), ("a", "z+1", 7), ("a", "w+1", 8)]},
    ),
]


def joined() -> Topology:
    builder = StreamsBuilder()
    rows = builder.table("t", Consumed(S, value=S)).suppress(Suppressed.until_time_limit(10, UNBOUNDED))
    source = builder.stream("in", Consumed(S, value=S))
    source.left_join(rows, lambda value, row: f"{value}+{row}").to("out", Produced(S, value=S))
    return builder.build()


def closing(how: str, kept: Materialized[str, int]) -> list[Case]:
    return [
        Case(
            f"a window's last result, when stream time has passed its end and grace ({how})",
            defined(counts(TimeWindows.of_size_and_grace(10, 5), kept), L),
            piped(("a", "x", 1), ("b", "x", 3), ("a", "x", 12), ("a", "x", 2), ("a", "x", 15), ("a", "x", 3)),
            {"out": [(Windowed("a", Window(0, 10)), 2, 2), (Windowed("b", Window(0, 10)), 1, 3)]},
            WINDOWED,
            dropped=1,
        ),
        Case(
            f"hopping windows close one after the other, those of one end by key ({how})",
            defined(counts(TimeWindows.of_size_with_no_grace(10).advance_by(5), kept), L),
            piped(("b", "x", 6), ("a", "x", 7), ("a", "x", 16)),
            {
                "out": [
                    (Windowed("a", Window(0, 10)), 1, 7),
                    (Windowed("b", Window(0, 10)), 1, 6),
                    (Windowed("a", Window(5, 15)), 1, 7),
                    (Windowed("b", Window(5, 15)), 1, 6),
                ]
            },
            WINDOWED,
        ),
        Case(
            f"sliding windows ({how})",
            defined(counts(SlidingWindows.of_time_difference_with_no_grace(10), kept), L),
            piped(("a", "x", 20), ("a", "x", 25), ("a", "x", 50)),
            {
                "out": [
                    (Windowed("a", Window(10, 20)), 1, 20),
                    (Windowed("a", Window(15, 25)), 2, 25),
                    (Windowed("a", Window(21, 31)), 1, 25),
                    (Windowed("a", Window(40, 50)), 1, 50),
                ]
            },
            WINDOWED,
        ),
    ]


CLOSING = [
    *closing("caching", Materialized("w")),
    *closing("no cache", Materialized("w", caching=False)),
    Case(
        "sessions; the state of a session before it grew is not emitted, not even as deleted",
        defined(sessions, L),
        piped(("a", "x", 1), ("a", "x", 5), ("b", "x", 12), ("b", "x", 40)),
        {"out": [(Windowed("a", SessionWindow(1, 5)), 2, 5), (Windowed("b", SessionWindow(12, 12)), 1, 12)]},
        {"out": (serdes.session_windowed(S), L)},
    ),
]
CASES = [*LIMITED, *CLOSING]

test_case = each(CASES)
test_restarts_change_nothing = each_restarted(CASES)


def test_a_full_buffer_that_may_not_emit_early_stops_the_application() -> None:
    topology = table(Suppressed.until_time_limit(100, Buffer.max_records(1).shut_down_when_full()))()
    with TopologyTestDriver(topology, None, 0) as driver:
        source = driver.create_input_topic("in", S, S)
        source.pipe_input("a", "1", 1)
        with pytest.raises(
            ProcessingError, match=r"KTABLE-SUPPRESS-0000000002 buffer exceeded its max capacity. Currently \[2/1\] records"
        ):
            source.pipe_input("b", "1", 2)


WRITTEN_BY_JAVA: dict[object, list[str | None]] = {
    "a": [
        "0000000000000003000000000000000000000002696e000000000000000100000001680000000178ffffffffffffffff00000001310000000000000003",
        "0000000000000004000000000000000100000002696e0000000000000000ffffffff000000013100000001320000000000000003",
        None,
        "0000000000000010000000000000000300000002696e00000000000000000000000133fffffffe00000001340000000000000010",
        "0000000000000011000000000000000400000002696e00000000000000000000000133000000013400000001350000000000000010",
        None,
    ],
    "b": ["0000000000000028000000000000000500000002696e0000000000000000ffffffffffffffff00000001310000000000000028"],
}
"""What the test driver of Kafka Streams 4.3.1 shows on the changelog for this topology and input."""


def test_what_waits_stands_on_the_changelog_as_in_kafka_streams() -> None:
    found: dict[object, list[str | None]] = {"a": [], "b": []}
    with TopologyTestDriver(table(Suppressed.until_time_limit(10, UNBOUNDED).with_name("w"), caching=False)(), None, 0) as driver:
        source = driver.create_input_topic("in", S, S)
        source.pipe_input("a", "1", 3, headers=[("h", b"x")])
        for key, value, timestamp in (("a", "2", 4), ("a", "3", 15), ("a", "4", 16), ("a", "5", 17), ("b", "1", 40)):
            source.pipe_input(key, value, timestamp)
        for record in driver.create_output_topic("topology-test-w-store-changelog", S, serdes.BYTES).read_records_to_list():
            found[record.key].append(None if record.value is None else record.value.hex())
            assert record.headers == ([] if record.value is None else [("v", b"\x03")])
    assert found == WRITTEN_BY_JAVA
    written = [bytes.fromhex(data) for rows in WRITTEN_BY_JAVA.values() for data in rows if data is not None]
    assert [BufferValue.from_bytes(data).to_bytes() for data in written] == written
    assert BufferValue.from_bytes(written[2]) == BufferValue(b"3", b"3", b"4", 16, Origin("in", 0, 3, None), 16)


def test_metrics_show_suppressed_and_emitted_records() -> None:
    with TopologyTestDriver(table(Suppressed.until_time_limit(10, UNBOUNDED).with_name("few"))(), None, 0) as driver:
        source = driver.create_input_topic("in", S, S)
        for key, timestamp in (("a", 1), ("b", 2), ("c", 12)):
            source.pipe_input(key, "1", timestamp)
        found = {
            (name.name, name.group, dict(name.tags).get("in-memory-suppression-state-id")): value
            for name, value in driver.metrics().items()
        }
    assert found["suppression-buffer-count-max", STATE, "few-store"] == 2
    assert found["suppression-buffer-size-max", STATE, "few-store"] == 2 * 32
    assert found["suppression-emit-total", NODE, None] == 2


def test_values_that_can_be_changed_wait_as_they_were() -> None:
    def define(builder: StreamsBuilder) -> KTable:
        counted = builder.stream("in", Consumed(S, value=S)).group_by_key()
        total = counted.aggregate(dict[str, bool], lambda k, v, seen: {**seen, v: True}, Materialized("seen", value=J))
        return total.suppress(Suppressed.until_time_limit(5, UNBOUNDED))

    check(
        Case(
            "JSON",
            defined(define, J),
            piped(("a", "x", 1), ("a", "y", 2), ("b", "z", 9)),
            {"out": [("a", {"x": True, "y": True}, 2)]},
            {"out": (S, J)},
        )
    )


def test_a_buffer_without_a_changelog_writes_none_and_keeps_what_waits() -> None:
    with TopologyTestDriver(table(Suppressed.until_time_limit(10, UNBOUNDED.with_logging_disabled()))(), None, 0) as driver:
        driver.create_input_topic("in", S, S).pipe_input("a", "1", 3)
        assert not any("SUPPRESS" in topic for topic in driver.produced_topic_names())


def test_what_cannot_be_suppressed_is_refused() -> None:
    with pytest.raises(TopologyError, match="results would not be final"):
        Suppressed.until_window_closes(Buffer.max_records(1))
    assert Suppressed.until_window_closes(Buffer.max_records(1).shut_down_when_full()).buffer.records == 1
    assert Buffer.max_bytes(1).with_max_records(2).with_no_bound() == UNBOUNDED
    assert Buffer.unbounded().with_max_bytes(3).emit_early_when_full() == Buffer.max_bytes(3)
    with pytest.raises(TopologyError, match="negative"):
        Buffer.max_records(-1)
    with pytest.raises(
        TopologyError, match="windows close in tables of windows only, which this is not: KSTREAM-SOURCE-0000000001->KTABLE"
    ):
        StreamsBuilder().table("in").suppress(CLOSES)
