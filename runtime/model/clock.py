"""Time: the engine's clock, and the durations of the public API.

The clock is passed as an argument everywhere, so that tests can control it (`runtime.testing.ManualClock`).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime.fromtimestamp(0, UTC)

NEVER = 1 << 63
"""Later than any time in ms."""


class Clock(Protocol):
    """Wall-clock time for records and people, monotonic time for intervals and time-outs."""

    def wall_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Return the milliseconds since an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


Duration = timedelta | int
"""A `timedelta`, or whole milliseconds as an int."""


def from_ms(milliseconds: int) -> datetime:
    """Convert milliseconds since the epoch, as the engine writes them, to a time in UTC."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


def to_ms(duration: Duration, what: str = "a duration") -> int:
    """Convert to whole milliseconds. Raises ValueError for a negative duration, TypeError for any other type; `what` names it in the
    message."""
    if isinstance(duration, timedelta):
        milliseconds = duration // timedelta(milliseconds=1)
    elif isinstance(duration, int) and not isinstance(duration, bool):
        milliseconds = duration
    else:
        raise TypeError(f"{what} is a datetime.timedelta or whole milliseconds (int), not {type(duration).__name__}")
    if milliseconds < 0:
        raise ValueError(f"{what} must not be negative: {milliseconds} ms")
    return milliseconds
