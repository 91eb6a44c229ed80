"""Measured programs, written as a user would write them, and the description of their runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

import msgspec

from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.kstream import KStream
from penstock.runtime.dsl.options import Consumed, Grouped, Joined, Materialized, Produced, StreamJoined
from penstock.runtime.dsl.windows import JoinWindows, SessionWindows, Suppressed, TimeWindows
from penstock.runtime.model.record import Windowed
from penstock.runtime.topology.topology import Topology
from penstock.serdes import BYTES, DOUBLE, LONG, STRING, json

LARGE_AMOUNT = 50.0
WINDOW_MS = 60_000
JOIN_WITHIN_MS = 2_000
SESSION_GAP_MS = 30_000
COMMITS_FILE = "commits"
"""File in `state` to which the engine's process writes the duration of each commit: float64, ms."""


class Run(msgspec.Struct, frozen=True):
    """Description of a run for a measured process, as JSON in `BENCH_SPEC`. `app` is group and application id; the topics exist, with four
    partitions each; `state` is an empty folder of its own; `cache` False: every update is written."""

    kind: str
    eos: bool
    commit_ms: int
    cache: bool
    app: str
    bootstrap: str
    state: str
    input: str
    output: str
    table: str = ""
    checkpoint_ms: int | None = None
    """`statestore.checkpoint.interval.ms`; None: the default."""
    window_ms: int = WINDOW_MS
    """Size of the windows of `window`."""
    linger_ms: int | None = None
    """`linger.ms` of the producers; None: the default."""

    @classmethod
    def from_environment(cls) -> Run:
        """Read `BENCH_SPEC`. Raises KeyError if it is missing, msgspec.ValidationError if it does not fit."""
        return msgspec.json.decode(os.environ["BENCH_SPEC"], type=cls)

    def streams_config(self) -> dict[str, str | int]:
        """Return the engine's configuration: its defaults and the run's settings."""
        config: dict[str, str | int] = {
            "application.id": self.app,
            "bootstrap.servers": self.bootstrap,
            "state.dir": self.state,
            "auto.offset.reset": "earliest",
            "processing.guarantee": "exactly_once_v2" if self.eos else "at_least_once",
            "commit.interval.ms": self.commit_ms,
        }
        if not self.cache:
            config["statestore.cache.max.bytes"] = 0
        if self.linger_ms is not None:
            config["producer.linger.ms"] = self.linger_ms
        if self.checkpoint_ms is not None:
            config["statestore.checkpoint.interval.ms"] = self.checkpoint_ms
        return config


class Event(msgspec.Struct, frozen=True):
    """The fields of a value of the input topic that are read."""

    user: str
    amount: float
    ts: int


class Small(msgspec.Struct, frozen=True):
    """Output of `stateless`."""

    u: str
    a: float


class Profile(msgspec.Struct, frozen=True):
    """The fields of a row of the table that are read."""

    country: str
    tier: int


class Enriched(msgspec.Struct, frozen=True):
    """Output of `join`."""

    user: str
    amount: float
    country: str
    tier: int


class Pair(msgspec.Struct, frozen=True):
    """Output of `stream-join`."""

    user: str
    amount: float
    other: float


def _stateless(events: KStream, run: Run) -> None:
    def small(value: object) -> object:
        event = cast(Event, value)
        return Small(event.user, event.amount)

    large = events.filter(lambda key, value: cast(Event, value).amount > LARGE_AMOUNT)
    large.map_values(small).to(run.output, Produced(STRING, value=json(Small)))


def _count(records: KStream, run: Run) -> None:
    counts = records.group_by_key(Grouped(STRING, value=BYTES)).count(Materialized("counts"))
    counts.to_stream().to(run.output, Produced(STRING, value=LONG))


def _window(events: KStream, run: Run) -> None:
    windows = TimeWindows.of_size_with_no_grace(run.window_ms)
    sums = events.group_by_key(Grouped(STRING, value=json(Event))).windowed_by(windows)
    table = sums.aggregate(_zero, lambda key, value, total: total + cast(Event, value).amount, Materialized("sums", value=DOUBLE))
    table.to_stream(_window_key).to(run.output, Produced(STRING, value=DOUBLE))


def _zero() -> float:
    return 0.0


def _window_key(key: object, value: object) -> str:
    windowed = cast(Windowed, key)
    return f"{windowed.key}@{windowed.window.start}"


def _join(builder: StreamsBuilder, events: KStream, run: Run) -> None:
    def enrich(left: object, right: object) -> object:
        event, profile = cast(Event, left), cast(Profile, right)
        return Enriched(event.user, event.amount, profile.country, profile.tier)

    profiles = builder.table(run.table, Consumed(STRING, value=json(Profile)), Materialized("profiles"))
    events.join(profiles, enrich, Joined(STRING, value=json(Event))).to(run.output, Produced(STRING, value=json(Enriched)))


def _stream_join(builder: StreamsBuilder, events: KStream, run: Run) -> None:
    def both(left: object, right: object) -> object:
        one, other = cast(Event, left), cast(Event, right)
        return Pair(one.user, one.amount, other.amount)

    others = builder.stream(run.table, Consumed(STRING, value=json(Event)))
    windows = JoinWindows.of_time_difference_with_no_grace(JOIN_WITHIN_MS)
    events.join(others, both, windows, StreamJoined(STRING, value=json(Event), other_value=json(Event), name="pairs")).to(
        run.output, Produced(STRING, value=json(Pair))
    )


def _session(records: KStream, run: Run) -> None:
    sessions = records.group_by_key(Grouped(STRING, value=BYTES)).windowed_by(
        SessionWindows.of_inactivity_gap_with_no_grace(SESSION_GAP_MS)
    )
    sessions.count(Materialized("sessions")).to_stream(_session_key).to(run.output, Produced(STRING, value=LONG))


def _session_key(key: object, value: object) -> str:
    windowed = cast(Windowed, key)
    return f"{windowed.key}@{windowed.window.start}-{windowed.window.end}"


def _suppress(records: KStream, run: Run) -> None:
    windows = records.group_by_key(Grouped(STRING, value=BYTES)).windowed_by(TimeWindows.of_size_with_no_grace(run.window_ms))
    closed = windows.count(Materialized("counts")).suppress(Suppressed.until_window_closes(Suppressed.BufferConfig.unbounded()))
    closed.to_stream(_window_key).to(run.output, Produced(STRING, value=LONG))


def group_of(user: str) -> str:
    """Return the group to which `table-aggregate` adds a user: one of 1,000."""
    return user[-3:]


def cents(amount: float) -> int:
    """Return an amount without fractions, whose sums do not depend on their order."""
    return round(amount * 100)


def _table_aggregate(builder: StreamsBuilder, run: Run) -> None:
    def grouped(key: object, value: object) -> tuple[str, int]:
        return group_of(cast(str, key)), cents(cast(Event, value).amount)

    latest = builder.table(run.input, Consumed(STRING, value=json(Event)), Materialized("latest"))
    totals = latest.group_by(grouped, key=STRING, value=LONG).aggregate(
        lambda: 0, lambda key, value, total: total + value, lambda key, value, total: total - value, Materialized("totals", value=LONG)
    )
    totals.to_stream().to(run.output, Produced(STRING, value=LONG))


def profile_of(amount: float) -> str:
    """Return the foreign key of `foreign-key-join`: one of 10,000 rows of the table."""
    return f"u{cents(amount):08d}"


def _foreign_key_join(builder: StreamsBuilder, run: Run) -> None:
    def enrich(left: object, right: object) -> object:
        event, profile = cast(Event, left), cast(Profile, right)
        return Enriched(event.user, event.amount, profile.country, profile.tier)

    latest = builder.table(run.input, Consumed(STRING, value=json(Event)), Materialized("latest"))
    profiles = builder.table(run.table, Consumed(STRING, value=json(Profile)), Materialized("profiles"))
    enriched = latest.join(profiles, lambda value: profile_of(value.amount), enrich)
    enriched.to_stream().to(run.output, Produced(STRING, value=json(Enriched)))


ON_TABLES: dict[str, Callable[[StreamsBuilder, Run], None]] = {"table-aggregate": _table_aggregate, "foreign-key-join": _foreign_key_join}
"""Kinds that read the events as a table."""


def build(run: Run) -> Topology:
    """Return the topology of a kind: `stateless`, `count`, `session` and `suppress` (which do not parse values), `window`, `join` (with a
    table), `stream-join`, or one of `ON_TABLES`. Raises ValueError for other kinds."""
    builder = StreamsBuilder()
    if run.kind in ON_TABLES:
        ON_TABLES[run.kind](builder, run)
        return builder.build()
    value = BYTES if run.kind in ("count", "session", "suppress") else json(Event)
    records = builder.stream(run.input, Consumed(STRING, value=value))
    match run.kind:
        case "stateless":
            _stateless(records, run)
        case "count":
            _count(records, run)
        case "window":
            _window(records, run)
        case "join":
            _join(builder, records, run)
        case "stream-join":
            _stream_join(builder, records, run)
        case "session":
            _session(records, run)
        case "suppress":
            _suppress(records, run)
        case _:
            raise ValueError(f"unknown kind {run.kind!r}")
    return builder.build()
