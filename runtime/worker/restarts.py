"""When a worker that has ended is started again."""

from __future__ import annotations

from dataclasses import dataclass

HEALTHY_MS = 60_000
"""A worker that has lived so long has not failed again, but anew."""
FIRST_WAIT_MS, LONGEST_WAIT_MS = 1_000, 30_000
MOST_DEATHS = 6
"""So many deaths in a row, and the client ends."""


@dataclass(slots=True)
class _History:
    begun_ms: int
    failures: int = 0


class Restarts:
    """The failures of each worker of a client, by number."""

    def __init__(self, max_poll_ms: int) -> None:
        """`max_poll_ms`: a worker that hangs is ended only after so long, and must have lived longer to count as healthy."""
        self._healthy_ms = max(HEALTHY_MS, 2 * max_poll_ms)
        self._histories: dict[int, _History] = {}

    def begun(self, number: int, now_ms: int) -> None:
        """The worker was started, again perhaps."""
        self._histories.setdefault(number, _History(now_ms)).begun_ms = now_ms

    def failed(self, number: int, now_ms: int) -> int:
        """The worker has ended by itself. How long to wait before the next start, in ms: nothing the first time."""
        history = self._histories.setdefault(number, _History(now_ms))
        history.failures = 1 if now_ms - history.begun_ms >= self._healthy_ms else history.failures + 1
        return 0 if history.failures == 1 else min(LONGEST_WAIT_MS, FIRST_WAIT_MS << min(history.failures - 2, 10))

    def failures(self, number: int) -> int:
        """How often in a row."""
        return self._histories[number].failures if number in self._histories else 0

    def forget(self, number: int) -> None:
        """The worker was removed."""
        self._histories.pop(number, None)
