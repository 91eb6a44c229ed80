"""How restores come on: for metrics, events, the log, and whoever asks how long it will take."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from runtime.clock import Clock
from runtime.events import EventKind, EventSink
from runtime.ids import Partition, TaskId
from runtime.metrics import TASK, Metrics

log = logging.getLogger(__name__)

LOOK_MS = 500
"""How often a restore is looked at."""
TELL_MS = 5_000
"""How often the log and an event tell of a restore that takes long."""
_LOOKS = 10
"""Looks over which a rate is taken."""


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far one store is: `position` of `end`, both next offsets, and the records read so far. `follows`: of a standby or learner,
    whose end is the last one known."""

    task: TaskId
    store: str
    partition: Partition
    position: int
    end: int
    records: int
    follows: bool


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far the restore of one task is. `records`: restored so far; `remaining`: offsets up to the ends, which is as many records
    or fewer; `rate`: records per second, lately; `seconds_left`: at the pace of the last seconds, None while there is none."""

    records: int
    remaining: int
    rate: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class _Look:
    at_ms: int
    records: int
    remaining: int


class TaskRestore:
    """The restore of one task, from its first look to its end."""

    def __init__(self, task: TaskId, remaining: int, clock: Clock, metrics: Metrics, events: EventSink) -> None:
        """`remaining`: offsets up to the ends of its changelogs."""
        self._task = task
        self._clock = clock
        self._events = events
        self._since_ms = self._told_ms = clock.monotonic_ms()
        self._looks = deque([_Look(self._since_ms, 0, remaining)], maxlen=_LOOKS)
        self._rate = metrics.gauge("restore-rate", TASK, task_id=str(task))
        self._remaining = metrics.gauge("restore-remaining-records-total", TASK, task_id=str(task))
        self._left = metrics.gauge("restore-seconds-left", TASK, task_id=str(task))
        self._remaining.set(remaining)
        self.done = 0
        """Records of the stores that are complete."""

    @property
    def progress(self) -> TaskProgress:
        """As of the last look."""
        first, last = self._looks[0], self._looks[-1]
        seconds = (last.at_ms - first.at_ms) / 1000
        if seconds <= 0:
            return TaskProgress(last.records, last.remaining, 0.0, None)
        pace = (first.remaining - last.remaining) / seconds
        left = last.remaining / pace if pace > 0 else None
        return TaskProgress(last.records, last.remaining, (last.records - first.records) / seconds, left)

    def look(self, records: int, remaining: int) -> None:
        """Takes note of where it is now; tells if it was not told for some seconds."""
        now_ms = self._clock.monotonic_ms()
        self._looks.append(_Look(now_ms, records, remaining))
        progress = self.progress
        self._rate.set(progress.rate)
        self._remaining.set(remaining)
        self._left.set(-1 if progress.seconds_left is None else progress.seconds_left)
        if now_ms - self._told_ms >= TELL_MS:
            self._told_ms = now_ms
            left = "unknown" if progress.seconds_left is None else f"{progress.seconds_left:.0f} s"
            text = "task %s restores: %d records so far, %.0f a second, %d offsets to go, time left: %s"
            log.info(text, self._task, records, progress.rate, remaining, left, extra={"task": self._task})
            payload = {
                "records": records,
                "remaining": remaining,
                "rate": round(progress.rate),
                "seconds_left": None if progress.seconds_left is None else round(progress.seconds_left, 1),
            }
            self._events.emit(EventKind.RESTORE_PROGRESS, payload, self._task)

    def end(self) -> None:
        """It is complete."""
        self._silence()
        seconds = (self._clock.monotonic_ms() - self._since_ms) / 1000
        log.info("task %s: %d records restored in %.1f s", self._task, self.done, seconds, extra={"task": self._task})
        self._events.emit(EventKind.RESTORE_ENDED, {"records": self.done, "seconds": seconds}, self._task)

    def suspend(self) -> None:
        """It ends before it is complete."""
        self._silence()

    def _silence(self) -> None:
        for gauge in (self._rate, self._remaining, self._left):
            gauge.set(0)
