"""Windows of aggregates and of joins, and when results are emitted (Kafka Streams' `TimeWindows`, `SlidingWindows`, `SessionWindows`,
`UnlimitedWindows`, `JoinWindows`, `EmitStrategy`, `Suppressed`).

An object of any class with the three members of `Windows` can be used as windows.

hourly.suppress(Suppressed.until_window_closes(Suppressed.BufferConfig.unbounded()))
table.suppress(Suppressed.until_time_limit(timedelta(seconds=5), Suppressed.BufferConfig.max_records(1000)))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import TypeAlias

from penstock.runtime.dsl.options import Named, name_of
from penstock.runtime.model.clock import Duration, to_ms
from penstock.runtime.model.durations import length_ms
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.record import Window
from penstock.runtime.operators.suppress import UNLIMITED
from penstock.runtime.operators.windowed import Windows

__all__ = [
    "AnyWindows",
    "EmitStrategy",
    "JoinWindows",
    "SessionWindows",
    "SlidingWindows",
    "Suppressed",
    "TimeWindows",
    "UnlimitedWindows",
    "Windows",
]

_LAST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows of a fixed size, all in ms: tumbling, or hopping where the advance is shorter than the size. Made by `of_size_and_grace` or
    `of_size_with_no_grace`. A window starts at a multiple of the advance and holds [start, start + size)."""

    size_ms: int
    advance_ms: int
    grace_period_ms: int

    def __post_init__(self) -> None:
        if self.size_ms <= 0:
            raise TopologyError(f"TimeWindows: the size must be positive, not {self.size_ms} ms")
        if not 0 < self.advance_ms <= self.size_ms:
            raise TopologyError(f"TimeWindows: the advance must be in (0, {self.size_ms}] ms, not {self.advance_ms} ms")

    @classmethod
    def of_size_and_grace(cls, size: Duration, after_window_end: Duration) -> TimeWindows:
        """Return tumbling windows that accept late records until `after_window_end` after their end."""
        size_ms = length_ms(size, "the window size")
        return cls(size_ms, size_ms, to_ms(after_window_end, "the grace period"))

    @classmethod
    def of_size_with_no_grace(cls, size: Duration) -> TimeWindows:
        """Return tumbling windows that close when stream time reaches their end."""
        return cls.of_size_and_grace(size, 0)

    def advance_by(self, advance: Duration) -> TimeWindows:
        """Return hopping windows, which start every `advance`."""
        return replace(self, advance_ms=length_ms(advance, "the advance"))

    def windows_for(self, timestamp: int) -> dict[int, Window]:
        """Return the windows that contain a timestamp, by their starts, earliest first."""
        first = max(0, timestamp - self.size_ms + self.advance_ms) // self.advance_ms * self.advance_ms
        return {start: Window(start, min(start + self.size_ms, _LAST)) for start in range(first, timestamp + 1, self.advance_ms)}


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows of records that are at most `time_difference_ms` apart: every [t, t + difference], both ends inclusive, that starts or ends
    at a record. Made by `of_time_difference_and_grace` or `of_time_difference_with_no_grace`."""

    time_difference_ms: int
    grace_period_ms: int

    @classmethod
    def of_time_difference_and_grace(cls, time_difference: Duration, after_window_end: Duration) -> SlidingWindows:
        """Return windows that accept late records until `after_window_end` after their end."""
        return cls(length_ms(time_difference, "the time difference"), to_ms(after_window_end, "the grace period"))

    @classmethod
    def of_time_difference_with_no_grace(cls, time_difference: Duration) -> SlidingWindows:
        """Return windows that close when stream time has passed their end."""
        return cls.of_time_difference_and_grace(time_difference, 0)


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Sessions: records of a key without a pause longer than `inactivity_gap` (ms). Made by `of_inactivity_gap_and_grace` or
    `of_inactivity_gap_with_no_grace`."""

    inactivity_gap: int
    grace_period_ms: int

    def __post_init__(self) -> None:
        if self.inactivity_gap <= 0:
            raise TopologyError(f"SessionWindows: the inactivity gap must be positive, not {self.inactivity_gap} ms")

    @classmethod
    def of_inactivity_gap_and_grace(cls, inactivity_gap: Duration, after_window_end: Duration) -> SessionWindows:
        """Return sessions that accept late records until `after_window_end` later: a session closes when stream time has passed its end,
        the gap and the grace period."""
        return cls(length_ms(inactivity_gap, "the inactivity gap"), to_ms(after_window_end, "the grace period"))

    @classmethod
    def of_inactivity_gap_with_no_grace(cls, inactivity_gap: Duration) -> SessionWindows:
        """Return sessions that close when stream time has passed their end and the gap."""
        return cls.of_inactivity_gap_and_grace(inactivity_gap, 0)


@dataclass(frozen=True, slots=True)
class UnlimitedWindows:
    """One window that starts at `start_ms` and has no end. Earlier records belong to no window. Made by `of`."""

    start_ms: int = 0

    @property
    def size_ms(self) -> int:
        """The largest timestamp."""
        return _LAST

    @property
    def grace_period_ms(self) -> int:
        """0: the window never closes."""
        return 0

    @classmethod
    def of(cls) -> UnlimitedWindows:
        """Return a window that contains all records."""
        return cls()

    def start_on(self, start: datetime | int) -> UnlimitedWindows:
        """Return a window that starts at `start`: ms since the epoch, or a datetime with a time zone."""
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise TopologyError(f"UnlimitedWindows: {start!r} has no time zone: give one, or ms since the epoch")
            start = round(start.timestamp() * 1000)
        if start < 0:
            raise TopologyError(f"UnlimitedWindows: the start must not be negative, but is {start}")
        return UnlimitedWindows(start)

    def windows_for(self, timestamp: int) -> dict[int, Window]:
        """Return the window, unless the timestamp is before its start."""
        return {self.start_ms: Window(self.start_ms, _LAST)} if timestamp >= self.start_ms else {}


AnyWindows: TypeAlias = Windows | SlidingWindows | SessionWindows
"""The windows that `windowed_by` takes."""


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """Greatest distance in time between two records that are joined: the right timestamp must be in [left - before, left + after], all in
    ms. Made by `of_time_difference_and_grace` or `of_time_difference_with_no_grace`. `grace_period_ms` is how late a record may arrive."""

    before_ms: int
    after_ms: int
    grace_period_ms: int

    def __post_init__(self) -> None:
        if self.before_ms + self.after_ms < 0:
            raise TopologyError(f"JoinWindows: the window must not be negative: {self.before_ms} ms before, {self.after_ms} ms after")

    @classmethod
    def of_time_difference_and_grace(cls, time_difference: Duration, after_window_end: Duration) -> JoinWindows:
        """Join records at most `time_difference` apart; accept late ones until `after_window_end` later."""
        difference = length_ms(time_difference, "the time difference")
        return cls(difference, difference, to_ms(after_window_end, "the grace period"))

    @classmethod
    def of_time_difference_with_no_grace(cls, time_difference: Duration) -> JoinWindows:
        """Join records at most `time_difference` apart, and accept no late ones."""
        return cls.of_time_difference_and_grace(time_difference, 0)

    def before(self, time_difference: Duration) -> JoinWindows:
        """Let the right record be at most `time_difference` older than the left one; negative: it must be that much newer."""
        return replace(self, before_ms=_signed_ms(time_difference))

    def after(self, time_difference: Duration) -> JoinWindows:
        """Let the right record be at most `time_difference` newer than the left one; negative: it must be that much older."""
        return replace(self, after_ms=_signed_ms(time_difference))

    @property
    def size_ms(self) -> int:
        """Time from the oldest possible partner to the newest, in ms."""
        return self.before_ms + self.after_ms


def _signed_ms(duration: Duration) -> int:
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    return duration if duration < 0 else length_ms(duration, "the time difference")


@dataclass(frozen=True, slots=True)
class EmitStrategy:
    """When a windowed aggregate emits results. Made by `on_window_update` and `on_window_close`."""

    class StrategyType(Enum):
        """The two strategies."""

        ON_WINDOW_UPDATE = "ON_WINDOW_UPDATE"
        ON_WINDOW_CLOSE = "ON_WINDOW_CLOSE"

    type: StrategyType

    @classmethod
    def on_window_update(cls) -> EmitStrategy:
        """Emit every update, or those that the store's cache forwards. The default."""
        return cls(cls.StrategyType.ON_WINDOW_UPDATE)

    @classmethod
    def on_window_close(cls) -> EmitStrategy:
        """Emit the final result only, when stream time has passed the window's end and grace. Closed windows are looked for at most once
        per second of wall-clock time, when a record arrives."""
        return cls(cls.StrategyType.ON_WINDOW_CLOSE)

    @property
    def on_close(self) -> bool:
        """True for `on_window_close`."""
        return self.type is self.StrategyType.ON_WINDOW_CLOSE


def checked_windows(windows: Windows | SlidingWindows) -> Windows | SlidingWindows:
    """Return the windows. Raises TopologyError for anything else: a class that was not called, a duration, `JoinWindows`."""
    members = ("windows_for", "size_ms", "grace_period_ms")
    if isinstance(windows, SlidingWindows) or (not isinstance(windows, type) and all(hasattr(windows, member) for member in members)):
        return windows
    raise TopologyError(
        f"windowed_by: expected windows, such as TimeWindows.of_size_with_no_grace(...), or an object with {', '.join(members)}; "
        f"not {windows!r}"
    )


def checked_strategy(strategy: EmitStrategy) -> EmitStrategy:
    """Return the strategy. Raises TopologyError for anything else."""
    if not isinstance(strategy, EmitStrategy):
        raise TopologyError(f"emit_strategy: expected EmitStrategy.on_window_close() or on_window_update(), not {strategy!r}")
    return strategy


def _limit(limit: int) -> int:
    if type(limit) is not int or limit < 0:
        raise TopologyError(f"BufferConfig: a limit is a whole number and not negative, but is {limit!r}")
    return limit


@dataclass(frozen=True, slots=True)
class Suppressed:
    """Policy for holding back changes of a table. Made by `until_window_closes` and `until_time_limit`."""

    @dataclass(frozen=True, slots=True)
    class BufferConfig:
        """The limits of the buffer, and what happens when they are exceeded. Made by `unbounded`, `max_records` and `max_bytes`; the other
        methods return changed copies. Bytes are counted as in Kafka Streams: key, values, and the context of the record."""

        records: int = UNLIMITED
        bytes: int = UNLIMITED
        emits_early: bool = False
        logging: Mapping[str, str] | None = field(default_factory=dict)
        """Settings of the changelog topic; None: there is none."""

        @classmethod
        def unbounded(cls) -> Suppressed.BufferConfig:
            """Hold back any number of changes."""
            return cls()

        @classmethod
        def max_records(cls, limit: int) -> Suppressed.BufferConfig:
            """Hold back at most `limit` keys; emit the oldest early when there are more."""
            return cls(records=_limit(limit), emits_early=True)

        @classmethod
        def max_bytes(cls, limit: int) -> Suppressed.BufferConfig:
            """Hold back at most `limit` bytes; emit the oldest keys early when there are more."""
            return cls(bytes=_limit(limit), emits_early=True)

        def with_max_records(self, limit: int) -> Suppressed.BufferConfig:
            """Limit the number of keys."""
            return replace(self, records=_limit(limit))

        def with_max_bytes(self, limit: int) -> Suppressed.BufferConfig:
            """Limit the number of bytes."""
            return replace(self, bytes=_limit(limit))

        def with_no_bound(self) -> Suppressed.BufferConfig:
            """Hold back any number of changes."""
            return replace(self, records=UNLIMITED, bytes=UNLIMITED, emits_early=False)

        def shut_down_when_full(self) -> Suppressed.BufferConfig:
            """Stop the application when a limit is exceeded, so that no change is emitted early."""
            return replace(self, emits_early=False)

        def emit_early_when_full(self) -> Suppressed.BufferConfig:
            """Emit the oldest keys early when a limit is exceeded."""
            return replace(self, emits_early=True)

        def with_logging_disabled(self) -> Suppressed.BufferConfig:
            """Disable the changelog: changes held back are lost with the disk."""
            return replace(self, logging=None)

        def with_logging_enabled(self, config: Mapping[str, str]) -> Suppressed.BufferConfig:
            """Enable the changelog, with these settings of its topic."""
            return replace(self, logging=dict(config))

    wait_ms: int | None
    """None: until the window closes."""
    buffer: BufferConfig
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.buffer, Suppressed.BufferConfig):
            raise TopologyError(f"Suppressed: expected a BufferConfig, such as Suppressed.BufferConfig.unbounded(), not {self.buffer!r}")
        if self.wait_ms is None and self.buffer.emits_early:
            raise TopologyError("until_window_closes: the buffer must be unbounded or shut down when full; results would not be final")

    @classmethod
    def until_window_closes(cls, buffer_config: BufferConfig) -> Suppressed:
        """Emit only the final result of each window, when stream time has passed its end and grace. Raises TopologyError for a buffer that
        emits early, because its results would not be final."""
        return cls(None, buffer_config)

    @classmethod
    def until_time_limit(cls, time_to_wait_for_more_events: Duration, buffer_config: BufferConfig) -> Suppressed:
        """Emit at most one change per key in this much stream time. 0 emits every change at once."""
        return cls(length_ms(time_to_wait_for_more_events, "the time to wait"), buffer_config)

    def with_name(self, name: Named | str) -> Suppressed:
        """Name the node; the buffer is called `<name>-store`."""
        return replace(self, name=name_of(name))
