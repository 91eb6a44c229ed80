"""Where time comes from. Every part of the engine is handed a clock, so tests can turn it by hand (`runtime.testing.ManualClock`)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: wall-clock time for records and people, monotonic time for intervals and time-outs."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
