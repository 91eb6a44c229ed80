"""The engine's clock. It is passed as an argument everywhere, so that tests can control it (`runtime.testing.ManualClock`)."""

from __future__ import annotations

import time
from typing import Protocol

NEVER = 1 << 62
"""Later than any time in ms."""


class Clock(Protocol):
    """Wall-clock time for records and people, monotonic time for intervals and time-outs."""

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
