"""Schedules of punctuators (Kafka Streams' `PunctuationQueue`, `PunctuationSchedule`).

Stream time: first as soon as stream time is known (the schedule is aligned to 0), then whenever stream time has passed the next
multiple. Wall-clock time: first one interval after `schedule`. A punctuator is called once however many intervals were missed, gets the
current time, and is next due at the first multiple after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock.runtime.model.clock import NEVER

Punctuator = Callable[[int], None]
"""Called with the current stream time or wall-clock time, in ms since the epoch."""


class PunctuationType(Enum):
    """The clock of a schedule."""

    STREAM_TIME = "STREAM_TIME"
    WALL_CLOCK_TIME = "WALL_CLOCK_TIME"


class Cancellable:
    """Handle of a scheduled punctuator, returned by `ProcessorContext.schedule`."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel further calls. Safe at any time, also from inside the punctuator."""
        self.cancelled = True


@dataclass(slots=True)
class _Schedule:
    due: int
    interval_ms: int
    punctuator: Punctuator
    handle: Cancellable


class _Heap:
    """Java's `PriorityQueue`, ordered by time alone, so that punctuators due at the same time run in the same order as in Kafka Streams.
    (`heapq` orders equal elements differently.)"""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[_Schedule] = []

    @property
    def due(self) -> int:
        return self._rows[0].due if self._rows else NEVER

    def add(self, schedule: _Schedule) -> None:
        rows = self._rows
        rows.append(schedule)
        at = len(rows) - 1
        while at and schedule.due < rows[(at - 1) // 2].due:
            rows[at] = rows[(at - 1) // 2]
            at = (at - 1) // 2
        rows[at] = schedule

    def pop(self) -> _Schedule:
        rows = self._rows
        first, last, at = rows[0], rows.pop(), 0
        if not rows:
            return first
        while (below := 2 * at + 1) < len(rows):
            if below + 1 < len(rows) and rows[below + 1].due < rows[below].due:
                below += 1
            if last.due <= rows[below].due:
                break
            rows[at] = rows[below]
            at = below
        rows[at] = last
        return first

    def clear(self) -> None:
        self._rows.clear()


class PunctuationQueue:
    """The schedules of one task that follow one clock. `due` is the time in ms of the next one, NEVER if there is none."""

    __slots__ = ("_heap", "due")

    def __init__(self) -> None:
        self._heap = _Heap()
        self.due = NEVER

    def schedule(self, first: int, interval_ms: int, punctuator: Punctuator) -> Cancellable:
        """Schedule `punctuator` at `first` and then every `interval_ms`. Raises ValueError for an interval below 1 ms."""
        if interval_ms < 1:
            raise ValueError(f"the interval of a punctuator is at least 1 ms, not {interval_ms}")
        handle = Cancellable()
        self._heap.add(_Schedule(first, interval_ms, punctuator, handle))
        self.due = self._heap.due
        return handle

    def schedule_anchored(self, start: int, interval_ms: int, punctuator: Punctuator, now_ms: int) -> Cancellable:
        """Schedule `punctuator` at `start` and at whole intervals after it; times before `now_ms` are skipped."""
        if interval_ms >= 1 and start < now_ms:
            start = _following(start, interval_ms, now_ms)
        return self.schedule(start, interval_ms, punctuator)

    def punctuate(self, now_ms: int, finish: Callable[[], object] = lambda: None) -> int:
        """Call the punctuators due at `now_ms`, and `finish` after each. Return how many ran. One that raises stays scheduled."""
        ran, heap = 0, self._heap
        try:
            while heap.due <= now_ms:
                schedule = heap.pop()
                if schedule.handle.cancelled:
                    continue
                try:
                    schedule.punctuator(now_ms)
                    finish()
                finally:
                    if not schedule.handle.cancelled:
                        schedule.due = _following(schedule.due, schedule.interval_ms, now_ms)
                        heap.add(schedule)
                ran += 1
        finally:
            self.due = heap.due
        return ran

    def clear(self) -> None:
        """Remove all schedules."""
        self._heap.clear()
        self.due = NEVER


def _following(due: int, interval_ms: int, now_ms: int) -> int:
    """Return the first time after `now_ms` that is a whole number of intervals after `due`."""
    return due + ((now_ms - due) // interval_ms + 1) * interval_ms
