"""Opening of tasks, a few in a turn of the worker.

A store is opened in some milliseconds, on a busy disk in fifty, and an assignment may bring hundreds. The tasks that run already, the
reports and the leader's work must not wait for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from penstock.runtime.model.clock import Clock

OPENING_MS = 100
"""Time for which tasks are opened in one turn."""

T = TypeVar("T")


class Openings:
    """Used by the worker's thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.unfinished = False
        """True if tasks were left for the next turn."""

    def of_this_turn(self, tasks: Iterable[T]) -> Iterator[T]:
        """Yield the first task, and more until `OPENING_MS` have passed."""
        end_ms = self._clock.monotonic_ms() + OPENING_MS
        self.unfinished = False
        for number, task in enumerate(tasks):
            if number and self._clock.monotonic_ms() >= end_ms:
                self.unfinished = True
                return
            yield task
