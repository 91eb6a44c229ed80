"""Aggregates over windows, as java/Windows.java has them."""

from __future__ import annotations

from datetime import timedelta

from penstock import (
    EmitStrategy,
    Grouped,
    KGroupedStream,
    KTable,
    Materialized,
    Produced,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    UnlimitedWindows,
    serdes,
)
from penstock.serdes import Serde
from tests.differential.family import Family, as_java

TUMBLING = TimeWindows.of_size_and_grace(10, 5)
HOPPING = TimeWindows.of_size_with_no_grace(10).advance_by(4)
SLIDING = SlidingWindows.of_time_difference_and_grace(10, 5)
SESSIONS = SessionWindows.of_inactivity_gap_and_grace(4, 6)
WINDOWED = serdes.time_windowed(serdes.STRING, 10)
SESSION = serdes.session_windowed(serdes.STRING)
S, L = serdes.STRING, serdes.LONG
HOUR = timedelta(hours=1)
"""Kept so long, a window is found in all of Kafka Streams' caches and stores. With less, a session that is just about to expire is found
in the cache and not in the store, and a result on close is lost when time jumps."""


def joined(key: str, value: str, total: str | None) -> str | None:
    return None if value == "4" else ("+" if total is None else total) + value


def added(key: str, value: str, total: str) -> str:
    return total + value


def appended(key: str, value: str, total: str) -> str:
    return f"{total},{value}"


def merged(key: str, one: str, other: str) -> str:
    return f"{one}|{other}"


def initial() -> str:
    return ">"


def grouped(builder: StreamsBuilder) -> KGroupedStream:
    return builder.stream("in").group_by_key()


def other(builder: StreamsBuilder) -> KGroupedStream:
    return builder.stream("other").group_by_key()


def out(table: KTable, serde: Serde, key: Serde = WINDOWED) -> None:
    table.to_stream().to("out", Produced(key, value=serde))


def tumbling_count(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(TUMBLING).count(), L)


def tumbling_uncached(builder: StreamsBuilder) -> None:
    store = Stores.in_memory_window_store("w", 15, 10)
    out(grouped(builder).windowed_by(TUMBLING).aggregate(initial, joined, Materialized(store, value=S, caching=False)), S)


def hopping_reduce(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(HOPPING).reduce(lambda left, right: left + right), S)


def hopping_aggregate(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(HOPPING).aggregate(initial, joined, Materialized(value=S)), S)


def hopping_final(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(HOPPING).emit_strategy(EmitStrategy.on_window_close()).count(), L)


def tumbling_final(builder: StreamsBuilder) -> None:
    windowed = grouped(builder).windowed_by(TUMBLING).emit_strategy(EmitStrategy.on_window_close())
    out(windowed.aggregate(initial, joined, Materialized(value=S, retention=HOUR)), S)


def unlimited_count(builder: StreamsBuilder) -> None:
    table = grouped(builder).windowed_by(UnlimitedWindows.of().start_on(7)).count()
    table.to_stream(lambda k, v: f"[{k.key}@{k.window.start}/{k.window.end}]").to("out", Produced(S, value=L))


def sliding_count(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(SLIDING).count(), L)


def sliding_uncached(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(SLIDING).aggregate(initial, added, Materialized(value=S, caching=False, retention=HOUR)), S)


def sliding_reduce(builder: StreamsBuilder) -> None:
    windows = SlidingWindows.of_time_difference_with_no_grace(10)
    out(grouped(builder).windowed_by(windows).reduce(lambda left, right: left + right), S)


def sliding_deleting(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(SLIDING).aggregate(initial, joined, Materialized(value=S)), S)


def sliding_final(builder: StreamsBuilder) -> None:
    windowed = grouped(builder).windowed_by(SLIDING).emit_strategy(EmitStrategy.on_window_close())
    out(windowed.count(Materialized("w", retention=HOUR)), L)


def session_count(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(SESSIONS).count(Materialized("s", retention=HOUR)), L, SESSION)


def session_uncached(builder: StreamsBuilder) -> None:
    out(grouped(builder).windowed_by(SESSIONS).count(Materialized("s", caching=False, retention=HOUR)), L, SESSION)


def session_reduce(builder: StreamsBuilder) -> None:
    how: Materialized = Materialized("s", retention=HOUR, caching=False)
    out(grouped(builder).windowed_by(SESSIONS).reduce(lambda left, right: left + right, how), S, SESSION)


def session_aggregate(builder: StreamsBuilder) -> None:
    how = Materialized("s", retention=HOUR, value=S)
    out(grouped(builder).windowed_by(SESSIONS).aggregate(initial, joined, merged, how), S, SESSION)


def session_final(builder: StreamsBuilder) -> None:
    windowed = grouped(builder).windowed_by(SESSIONS).emit_strategy(EmitStrategy.on_window_close())
    out(windowed.count(Materialized("s", retention=HOUR)), L, SESSION)


def cogroup(builder: StreamsBuilder) -> None:
    table = grouped(builder).cogroup(added).cogroup(other(builder), joined).aggregate(initial, Materialized(value=S))
    out(table, S, S)


def cogroup_uncached(builder: StreamsBuilder) -> None:
    regrouped = builder.stream("other").select_key(lambda key, value: "a").group_by_key(Grouped(S, value=S))
    cogrouped = grouped(builder).cogroup(added).cogroup(regrouped, appended)
    out(cogrouped.aggregate(initial, Materialized(value=S, caching=False)), S, S)


def cogroup_tumbling(builder: StreamsBuilder) -> None:
    cogrouped = grouped(builder).cogroup(added).cogroup(other(builder), joined)
    out(cogrouped.windowed_by(TUMBLING).aggregate(initial, Materialized(value=S, retention=HOUR)), S)


def cogroup_sliding(builder: StreamsBuilder) -> None:
    cogrouped = grouped(builder).cogroup(added).cogroup(other(builder), appended)
    out(cogrouped.windowed_by(SLIDING).aggregate(initial, Materialized(value=S, retention=HOUR)), S)


def cogroup_sessions(builder: StreamsBuilder) -> None:
    cogrouped = grouped(builder).cogroup(added).cogroup(other(builder), appended)
    out(cogrouped.windowed_by(SESSIONS).aggregate(initial, merged, Materialized(value=S, retention=HOUR)), S, SESSION)


# Kafka Streams says that it ignores null values here, and does not (docs/dsl.md).
COUNTS, TEXTS = {"out": (WINDOWED, serdes.LONG)}, {"out": (WINDOWED, serdes.STRING)}
SESSION_COUNTS, SESSION_TEXTS = {"out": (SESSION, serdes.LONG)}, {"out": (SESSION, serdes.STRING)}
BOTH = ("in", "other")
FAMILIES = [
    Family("Windows", tumbling_count, serdes=COUNTS, null_values=False),
    Family("Windows", tumbling_uncached, serdes=TEXTS, null_values=False),
    Family("Windows", hopping_reduce, serdes=TEXTS, null_values=False),
    Family("Windows", hopping_aggregate, serdes=TEXTS, null_values=False),
    Family("Windows", hopping_final, serdes=COUNTS, null_values=False),
    Family("Windows", tumbling_final, serdes=TEXTS, null_values=False),
    Family("Windows", unlimited_count, serdes={"out": (S, L)}, null_values=False),
    Family("Windows", sliding_count, serdes=COUNTS),
    Family("Windows", sliding_uncached, serdes=TEXTS),
    Family("Windows", sliding_reduce, serdes=TEXTS),
    Family("Windows", sliding_deleting, serdes=TEXTS),
    Family("Windows", sliding_final, serdes=COUNTS),
    Family("Windows", session_count, serdes=SESSION_COUNTS, null_values=False),
    Family("Windows", session_uncached, serdes=SESSION_COUNTS, null_values=False),
    Family("Windows", session_reduce, serdes=SESSION_TEXTS, null_values=False),
    Family("Windows", session_aggregate, serdes=SESSION_TEXTS, null_values=False),
    Family("Windows", session_final, serdes=SESSION_COUNTS, null_values=False),
    Family("Windows", cogroup, topics=BOTH),
    Family("Windows", cogroup_uncached, topics=BOTH),
    Family("Windows", cogroup_tumbling, topics=BOTH, serdes=TEXTS, null_values=False),
    Family("Windows", cogroup_sliding, topics=BOTH, serdes=TEXTS),
    Family("Windows", cogroup_sessions, topics=BOTH, serdes=SESSION_TEXTS, null_values=False),
]
test_as_java = as_java(FAMILIES)
