"""Clock that is advanced manually."""

from __future__ import annotations


class ManualClock:
    """Wall-clock and monotonic time that `advance` moves together. Starts at `wall_ms` (ms since the epoch) and 0."""

    __slots__ = ("_passed", "_start")

    def __init__(self, wall_ms: int = 0) -> None:
        self._start = wall_ms
        self._passed = 0

    def wall_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        return self._start + self._passed

    def monotonic_ms(self) -> int:
        """Return the milliseconds since the clock was made."""
        return self._passed

    def advance(self, milliseconds: int) -> None:
        """Advance the time. Raises ValueError for a negative step."""
        if milliseconds < 0:
            raise ValueError(f"time does not go back: {milliseconds} ms")
        self._passed += milliseconds
