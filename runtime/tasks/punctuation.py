"""When punctuators run (Kafka Streams' `PunctuationQueue`, `PunctuationSchedule`).

Stream time: first as soon as stream time is known (the schedule is aligned to 0), then whenever stream time has passed the next
multiple. Wall-clock time: first one interval after `schedule`. A punctuator is called once however many intervals were missed, gets the
current time, and is next due at the first multiple after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import Enum

NEVER = 1 << 62
"""Later than any time in ms."""

Punctuator = Callable[[int], None]
"""Called with the current stream time or wall-clock time, in ms since the epoch."""


class PunctuationType(Enum):
    """Which clock a schedule follows."""

    STREAM_TIME = "STREAM_TIME"
    WALL_CLOCK_TIME = "WALL_CLOCK_TIME"


class Cancellable:
    """What `ProcessorContext.schedule` returns."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        """The punctuator is not called again; safe at any time, also from inside the punctuator."""
        self.cancelled = True


class PunctuationQueue:
    """The schedules of one task that follow one clock. `due` is the time in ms of the next one, NEVER if there is none."""

    __slots__ = ("_heap", "_number", "due")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Punctuator, Cancellable]] = []
        self._number = 0
        self.due = NEVER

    def schedule(self, first: int, interval_ms: int, punctuator: Punctuator) -> Cancellable:
        """`punctuator` at `first` and then every `interval_ms`. Raises ValueError for an interval below 1 ms."""
        if interval_ms < 1:
            raise ValueError(f"the interval of a punctuator is at least 1 ms, not {interval_ms}")
        handle = Cancellable()
        # The number keeps schedules that are due at the same time in the order in which they were made.
        self._number += 1
        heapq.heappush(self._heap, (first, self._number, interval_ms, punctuator, handle))
        self.due = self._heap[0][0]
        return handle

    def schedule_anchored(self, start: int, interval_ms: int, punctuator: Punctuator, now_ms: int) -> Cancellable:
        """`punctuator` at `start` and at whole intervals after it; those that were before `now_ms` are not made up for."""
        if interval_ms >= 1 and start < now_ms:
            start = _following(start, interval_ms, now_ms)
        return self.schedule(start, interval_ms, punctuator)

    def punctuate(self, now_ms: int) -> int:
        """Calls what is due at `now_ms`. Returns how many punctuators ran."""
        ran = 0
        heap = self._heap
        try:
            while heap and heap[0][0] <= now_ms:
                due, number, interval, punctuator, handle = heapq.heappop(heap)
                if not handle.cancelled:
                    # The next time is known before the call, so that a punctuator that raises keeps its place.
                    heapq.heappush(heap, (_following(due, interval, now_ms), number, interval, punctuator, handle))
                    punctuator(now_ms)
                    ran += 1
        finally:
            self._drop_cancelled()
        return ran

    def _drop_cancelled(self) -> None:
        heap = self._heap
        while heap and heap[0][4].cancelled:
            heapq.heappop(heap)
        self.due = heap[0][0] if heap else NEVER

    def clear(self) -> None:
        """Forgets all schedules."""
        self._heap.clear()
        self.due = NEVER


def _following(due: int, interval_ms: int, now_ms: int) -> int:
    """The first time after `now_ms` that is a whole number of intervals after `due`."""
    return due + ((now_ms - due) // interval_ms + 1) * interval_ms
