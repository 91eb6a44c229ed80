"""Restart policy for workers that have died."""

from __future__ import annotations

from dataclasses import dataclass

HEALTHY_MS = 60_000
"""A worker that has lived this long was healthy: its next failure counts as the first."""
FIRST_WAIT_MS, LONGEST_WAIT_MS = 1_000, 30_000
MAX_DEATHS = 6
"""After this many deaths in a row the client stops."""


@dataclass(slots=True)
class _History:
    started_ms: int
    failures: int = 0


class Restarts:
    """Failures of each worker of a client, by number."""

    def __init__(self, max_poll_ms: int) -> None:
        """`max_poll_ms`: a hanging worker is killed only after this time, so it must live longer to count as healthy."""
        self._healthy_ms = max(HEALTHY_MS, 2 * max_poll_ms)
        self._histories: dict[int, _History] = {}

    def started(self, number: int, now_ms: int) -> None:
        """Note that a worker was started."""
        self._histories.setdefault(number, _History(now_ms)).started_ms = now_ms

    def failed(self, number: int, now_ms: int) -> int:
        """Note that a worker has died. Return the delay before its next start in ms: none the first time."""
        history = self._histories.setdefault(number, _History(now_ms))
        history.failures = 1 if now_ms - history.started_ms >= self._healthy_ms else history.failures + 1
        return 0 if history.failures == 1 else min(LONGEST_WAIT_MS, FIRST_WAIT_MS << min(history.failures - 2, 10))

    def failures(self, number: int) -> int:
        """Return the number of failures in a row."""
        return self._histories[number].failures if number in self._histories else 0

    def forget(self, number: int) -> None:
        """Drop the history of a removed worker."""
        self._histories.pop(number, None)
