"""Progress of restores, for metrics, events, the log and status queries."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.runtime.model.clock import Clock
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.metrics import TASK, Metrics

log = logging.getLogger(__name__)

UPDATE_MS = 500
"""Interval of measurements."""
REPORT_MS = 5_000
"""Interval of log lines and events of a long restore."""
STUCK_MS = 30_000
"""A restore that gets no record for as long is reported with the likely cause: brokers end an open transaction much earlier."""
_SAMPLES = 10
"""Number of measurements for a rate."""


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """Progress of one store: `position` and `end` as next offsets, and records read so far. `follows`: a standby or learner, whose end is
    the last known one."""

    task: TaskId
    store: str
    partition: TopicPartition
    position: int
    end: int
    records: int
    follows: bool


@dataclass(frozen=True, slots=True)
class GlobalStoreName:
    """A global store that is restored: its topic, and the number of the worker whose copy it is."""

    store: str
    topic: str
    worker: int = 1

    def __str__(self) -> str:
        return f"global store {self.store}"

    @property
    def payload(self) -> dict[str, object]:
        """The fields of each event about it."""
        return {"store": self.store, "topic": self.topic, "worker": self.worker}


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Progress of the restore of one task, or of one global store. `records`: restored so far; `remaining`: offsets up to the ends, an
    upper bound of the records; `rate`: recent records per second; `seconds_left`: at the recent rate, None while it is 0."""

    records: int
    remaining: int
    rate: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ms: int
    records: int
    remaining: int


class TaskRestore:
    """The restore of one task, or of one global store, from start to end."""

    def __init__(self, of: TaskId | GlobalStoreName, remaining: int, clock: Clock, metrics: Metrics, events: EventSink) -> None:
        """`remaining`: offsets up to the ends of its changelogs, or of the global topic."""
        task, store = (of, None) if isinstance(of, TaskId) else (None, of)
        tags = {"task_id": str(task)} if store is None else {"task_id": "global", "store": store.store}
        self._name = f"task {task}" if store is None else str(store)
        self._task = task
        self._payload: Mapping[str, object] = {} if store is None else store.payload
        self._clock = clock
        self._events = events
        self._since_ms = self._reported_ms = self._moved_ms = clock.monotonic_ms()
        self._samples = deque([_Sample(self._since_ms, 0, remaining)], maxlen=_SAMPLES)
        self._rate = metrics.gauge("restore-rate", TASK, **tags)
        self._remaining = metrics.gauge("restore-remaining-records-total", TASK, **tags)
        self._left = metrics.gauge("restore-seconds-left", TASK, **tags)
        self._remaining.set(remaining)
        self.done = 0
        """Records of completed stores."""

    @property
    def progress(self) -> TaskProgress:
        """Progress at the last measurement."""
        first, last = self._samples[0], self._samples[-1]
        seconds = (last.at_ms - first.at_ms) / 1000
        if seconds <= 0:
            return TaskProgress(last.records, last.remaining, 0.0, None)
        pace = (first.remaining - last.remaining) / seconds
        left = last.remaining / pace if pace > 0 else None
        return TaskProgress(last.records, last.remaining, (last.records - first.records) / seconds, left)

    def update(self, records: int, remaining: int) -> None:
        """Update the progress; report it every few seconds."""
        now_ms = self._clock.monotonic_ms()
        if remaining != self._samples[-1].remaining:
            self._moved_ms = now_ms
        self._samples.append(_Sample(now_ms, records, remaining))
        progress = self.progress
        self._rate.set(progress.rate)
        self._remaining.set(remaining)
        self._left.set(-1 if progress.seconds_left is None else progress.seconds_left)
        if now_ms - self._reported_ms >= REPORT_MS:
            self._reported_ms = now_ms
            left = "unknown" if progress.seconds_left is None else f"{progress.seconds_left:.0f} s"
            text = "%s restores: %d records so far, %.0f a second, %d offsets to go, time left: %s"
            log.info(text, self._name, records, progress.rate, remaining, left, extra={"task": self._task})
            if now_ms - self._moved_ms >= STUCK_MS:
                text = "%s has restored nothing for %d s: an open transaction may hold its log (`penstock docs recovery`)"
                log.warning(text, self._name, (now_ms - self._moved_ms) // 1000, extra={"task": self._task})
            payload = {
                **self._payload,
                "records": records,
                "remaining": remaining,
                "rate": round(progress.rate),
                "seconds_left": None if progress.seconds_left is None else round(progress.seconds_left, 1),
            }
            self._events.emit(EventKind.RESTORE_PROGRESS, payload, self._task)

    def end(self) -> None:
        """Report that it is complete."""
        self._silence()
        seconds = (self._clock.monotonic_ms() - self._since_ms) / 1000
        log.info("%s: %d records restored in %.1f s", self._name, self.done, seconds, extra={"task": self._task})
        self._events.emit(EventKind.RESTORE_ENDED, {**self._payload, "records": self.done, "seconds": seconds}, self._task)

    def suspend(self) -> None:
        """Report that it ended before it was complete."""
        self._silence()

    def _silence(self) -> None:
        for gauge in (self._rate, self._remaining, self._left):
            gauge.set(0)
