"""Tables whose changes wait, as java/Suppressions.java has them."""

from __future__ import annotations

from datetime import timedelta

from penstock import (
    KGroupedStream,
    KTable,
    Materialized,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serdes,
)
from tests.differential.family import Family, as_java

S, L = serdes.STRING, serdes.LONG
WINDOWED, SESSION = serdes.time_windowed(S, 10), serdes.session_windowed(S)
UNBOUNDED = Suppressed.BufferConfig.unbounded()
CLOSES = Suppressed.until_window_closes(UNBOUNDED)


def grouped(builder: StreamsBuilder) -> KGroupedStream:
    return builder.stream("in").group_by_key()


def reduced(builder: StreamsBuilder) -> KTable:
    return grouped(builder).reduce(lambda left, right: right)


def out(table: KTable) -> None:
    table.to_stream().to("out", Produced(S, value=S))


def time_limit(builder: StreamsBuilder) -> None:
    out(reduced(builder).suppress(Suppressed.until_time_limit(10, UNBOUNDED)))


def no_time(builder: StreamsBuilder) -> None:
    out(reduced(builder).suppress(Suppressed.until_time_limit(0, UNBOUNDED)))


def max_records(builder: StreamsBuilder) -> None:
    out(reduced(builder).suppress(Suppressed.until_time_limit(30, Suppressed.BufferConfig.max_records(2))))


def max_bytes(builder: StreamsBuilder) -> None:
    out(reduced(builder).suppress(Suppressed.until_time_limit(30, Suppressed.BufferConfig.max_bytes(80))))


def shut_down(builder: StreamsBuilder) -> None:
    out(reduced(builder).suppress(Suppressed.until_time_limit(15, Suppressed.BufferConfig.max_records(2).shut_down_when_full())))


def filtered(builder: StreamsBuilder) -> None:
    table = reduced(builder).filter(lambda key, value: value != "3")
    out(table.suppress(Suppressed.until_time_limit(10, UNBOUNDED.with_logging_disabled())).map_values(lambda value: f"{value}!"))


def window_closes(builder: StreamsBuilder) -> None:
    table = grouped(builder).windowed_by(TimeWindows.of_size_and_grace(10, 5)).count()
    table.suppress(CLOSES).to_stream().to("out", Produced(WINDOWED, value=L))


def sliding_closes(builder: StreamsBuilder) -> None:
    table = grouped(builder).windowed_by(SlidingWindows.of_time_difference_and_grace(10, 5)).count()
    table.suppress(CLOSES.with_name("closed")).to_stream().to("out", Produced(WINDOWED, value=L))


def session_closes(builder: StreamsBuilder) -> None:
    windowed = grouped(builder).windowed_by(SessionWindows.of_inactivity_gap_and_grace(4, 6))
    table = windowed.count(Materialized("s", retention=timedelta(hours=1)))
    table.suppress(CLOSES).to_stream().to("out", Produced(SESSION, value=L))


WINDOWS, SESSIONS = {"out": (WINDOWED, L)}, {"out": (SESSION, L)}
FAMILIES = [
    Family("Suppressions", time_limit),
    Family("Suppressions", no_time),
    Family("Suppressions", max_records),
    # Headers count, and what a cache forwards has them in both.
    Family("Suppressions", max_bytes),
    Family("Suppressions", shut_down),
    Family("Suppressions", filtered),
    Family("Suppressions", window_closes, serdes=WINDOWS, null_values=False),
    Family("Suppressions", sliding_closes, serdes=WINDOWS),
    Family("Suppressions", session_closes, serdes=SESSIONS, null_values=False),
]
test_as_java = as_java(FAMILIES)
