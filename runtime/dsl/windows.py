"""How time is cut into windows, and when their results go out (Kafka Streams' `TimeWindows`, `SlidingWindows`, `SessionWindows`,
`UnlimitedWindows`, `EmitStrategy`).

Anything with the three members of `Windows` serves as windows of one's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from runtime.durations import Duration, to_ms
from runtime.errors import TopologyError
from runtime.operators.windowed import Windows
from runtime.record import Window

__all__ = ["EmitStrategy", "SessionWindows", "SlidingWindows", "TimeWindows", "UnlimitedWindows", "Windows"]

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
        """Tumbling windows that take late records for `after_window_end` more."""
        size_ms = to_ms(size, "the window size")
        return cls(size_ms, size_ms, to_ms(after_window_end, "the grace period"))

    @classmethod
    def of_size_with_no_grace(cls, size: Duration) -> TimeWindows:
        """Tumbling windows that are over when stream time reaches their end."""
        return cls.of_size_and_grace(size, 0)

    def advance_by(self, advance: Duration) -> TimeWindows:
        """Hopping windows: one begins every `advance`."""
        return replace(self, advance_ms=to_ms(advance, "the advance"))

    def windows_for(self, timestamp: int) -> dict[int, Window]:
        """The windows that hold a timestamp, by their starts, earliest first."""
        first = max(0, timestamp - self.size_ms + self.advance_ms) // self.advance_ms * self.advance_ms
        return {start: Window(start, start + self.size_ms) for start in range(first, timestamp + 1, self.advance_ms)}


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows of records that are at most `time_difference_ms` apart: [t, t + difference], both ends inclusive, wherever a record lies on
    one of them. Made by `of_time_difference_and_grace` or `of_time_difference_with_no_grace`."""

    time_difference_ms: int
    grace_period_ms: int

    @classmethod
    def of_time_difference_and_grace(cls, time_difference: Duration, after_window_end: Duration) -> SlidingWindows:
        """Windows that take late records for `after_window_end` more."""
        return cls(to_ms(time_difference, "the time difference"), to_ms(after_window_end, "the grace period"))

    @classmethod
    def of_time_difference_with_no_grace(cls, time_difference: Duration) -> SlidingWindows:
        """Windows that are over when stream time has passed their end."""
        return cls.of_time_difference_and_grace(time_difference, 0)


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Sessions: what a key does without a pause longer than `inactivity_gap` (ms). Made by `of_inactivity_gap_and_grace` or
    `of_inactivity_gap_with_no_grace`."""

    inactivity_gap: int
    grace_period_ms: int

    def __post_init__(self) -> None:
        if self.inactivity_gap <= 0:
            raise TopologyError(f"SessionWindows: the inactivity gap must be positive, not {self.inactivity_gap} ms")

    @classmethod
    def of_inactivity_gap_and_grace(cls, inactivity_gap: Duration, after_window_end: Duration) -> SessionWindows:
        """Sessions that take late records for `after_window_end` more: a session is over when stream time has passed its end, the gap and
        the grace period."""
        return cls(to_ms(inactivity_gap, "the inactivity gap"), to_ms(after_window_end, "the grace period"))

    @classmethod
    def of_inactivity_gap_with_no_grace(cls, inactivity_gap: Duration) -> SessionWindows:
        """Sessions that are over when stream time has passed their end and the gap."""
        return cls.of_inactivity_gap_and_grace(inactivity_gap, 0)


@dataclass(frozen=True, slots=True)
class UnlimitedWindows:
    """One window that begins at `start_ms` and has no end; what is earlier belongs to none. Made by `of`."""

    start_ms: int = 0

    @property
    def size_ms(self) -> int:
        """The longest time there is."""
        return _LAST

    @property
    def grace_period_ms(self) -> int:
        """None: the window is never over."""
        return 0

    @classmethod
    def of(cls) -> UnlimitedWindows:
        """The window of all time."""
        return cls()

    def start_on(self, start: datetime | int) -> UnlimitedWindows:
        """The window that begins then; ms since the epoch, or a datetime with a zone."""
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise TopologyError(f"UnlimitedWindows: {start!r} has no time zone: give one, or ms since the epoch")
            start = round(start.timestamp() * 1000)
        if start < 0:
            raise TopologyError(f"UnlimitedWindows: the start must not be negative, but is {start}")
        return UnlimitedWindows(start)

    def windows_for(self, timestamp: int) -> dict[int, Window]:
        """The window, unless the timestamp is before it."""
        return {self.start_ms: Window(self.start_ms, _LAST)} if timestamp >= self.start_ms else {}


@dataclass(frozen=True, slots=True)
class EmitStrategy:
    """When an aggregate over windows sends results. Made by `on_window_update` and `on_window_close`."""

    class StrategyType(Enum):
        """The two strategies."""

        ON_WINDOW_UPDATE = "ON_WINDOW_UPDATE"
        ON_WINDOW_CLOSE = "ON_WINDOW_CLOSE"

    type: StrategyType

    @classmethod
    def on_window_update(cls) -> EmitStrategy:
        """At every update, or as often as the store's cache lets go of one; the default."""
        return cls(cls.StrategyType.ON_WINDOW_UPDATE)

    @classmethod
    def on_window_close(cls) -> EmitStrategy:
        """Once, when stream time has passed the window's end and grace. Looked at not more than once a second of wall-clock time, as
        records come."""
        return cls(cls.StrategyType.ON_WINDOW_CLOSE)

    @property
    def on_close(self) -> bool:
        """True for `on_window_close`."""
        return self.type is self.StrategyType.ON_WINDOW_CLOSE


def checked_windows(windows: Windows | SlidingWindows) -> Windows | SlidingWindows:
    """The windows. Raises TopologyError for what cuts time into none: a class that was not called, a duration, windows of joins."""
    members = ("windows_for", "size_ms", "grace_period_ms")
    if isinstance(windows, SlidingWindows) or (not isinstance(windows, type) and all(hasattr(windows, member) for member in members)):
        return windows
    raise TopologyError(
        f"windowed_by: expected windows, such as TimeWindows.of_size_with_no_grace(...), or an object with {', '.join(members)}; "
        f"not {windows!r}"
    )


def checked_strategy(strategy: EmitStrategy) -> EmitStrategy:
    """The strategy. Raises TopologyError for anything else."""
    if not isinstance(strategy, EmitStrategy):
        raise TopologyError(f"emit_strategy: expected EmitStrategy.on_window_close() or on_window_update(), not {strategy!r}")
    return strategy
