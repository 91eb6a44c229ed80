"""Periodic requests about topics, in one thread of a worker, so that a slow broker never blocks the worker's loop.

Kafka does not report when a topic is deleted and created again while it is read: a consumer whose offset exists in the new topic continues
in the middle of other data. Only the topic's id shows it, so the id is polled (rules.md, 27). End offsets are polled with it; they show
since when a reader is up to date (rules.md, 13).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Any, Generic, TypeVar

from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import NextOffset, TopicPartition

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
THREAD = "topics"
"""Name of the thread."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """State of a topic at the brokers. `ends` are last stable offsets, which a `read_committed` consumer can reach."""

    topic_id: str
    ends: Mapping[TopicPartition, NextOffset]
    compacted: bool
    cleanup_policy: str
    delete_retention_ms: int | None
    """None if the topic is not compacted: then records are deleted only by age, which shows as an out-of-range offset."""


@dataclass(frozen=True, slots=True)
class Observation(Generic[T]):
    """Result of one request, and the wall-clock time of the request. The ends in `facts` are as of that time or later."""

    asked_ms: int
    facts: T


class TopicWatch(Generic[T]):
    """A periodic request, with its newest observation. Created by `TopicWatcher.watch`."""

    def __init__(self, watcher: TopicWatcher, request: Callable[[], T], name: str, interval_s: float) -> None:
        self._watcher = watcher
        self._request = request
        self._name = name
        self._newest: Observation[T] | None = None
        self._failing = False
        self._discarded = 0
        self._lock = Lock()
        self.interval_s = interval_s
        self.due_s = 0.0
        """Time of the next request, by the monotonic clock. Used by the watcher."""

    def start(self, *, at_once: bool = False) -> None:
        """Start the requests: the first one after the interval, or `at_once`."""
        self._watcher.add(self, 0.0 if at_once else self.interval_s)

    def take(self) -> Observation[T] | None:
        """Remove and return the newest observation, if there is a new one. Never waits."""
        with self._lock:
            newest, self._newest = self._newest, None
        return newest

    def discard(self) -> None:
        """Drop the newest observation, and that of a running request. For a caller that has just learned something newer itself: an
        observation from before would contradict it."""
        with self._lock:
            self._newest = None
            self._discarded += 1

    def run(self, clock: Clock) -> None:
        """Make one request, on the watcher's thread."""
        asked_ms, discarded = clock.wall_ms(), self._discarded
        try:
            facts = self._request()
        except StreamsError as error:
            if not self._failing:
                log.warning("%s topics cannot be requested, next try in %.0f s: %s", self._name, self.interval_s, error)
            self._failing = True
            return
        self._failing = False
        with self._lock:
            if discarded == self._discarded:
                self._newest = Observation(asked_ms, facts)

    def close(self) -> None:
        """Stop the requests; waits for a running one."""
        self._watcher.remove(self)


class TopicWatcher:
    """The thread of a worker that makes all its periodic requests about topics. Requests are made one at a time, the longest overdue first,
    so that a slow broker has only one to answer. Methods may be called from any other thread."""

    def __init__(self, clock: Clock) -> None:
        """The first watch starts the thread."""
        self._clock = clock
        self._watches: list[TopicWatch[Any]] = []
        self._running: TopicWatch[Any] | None = None
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closed = False

    def watch(self, request: Callable[[], T], name: str, interval_s: float = INTERVAL_S) -> TopicWatch[T]:
        """Return a new watch, which makes no requests before `start`. `request` is called from the watcher's thread; if it raises
        StreamsError (no broker answers), the last observation remains. `name` identifies the topics in logs."""
        return TopicWatch(self, request, name, interval_s)

    def add(self, watch: TopicWatch[Any], first_s: float) -> None:
        with self._changed:
            watch.due_s = monotonic() + first_s
            self._watches.append(watch)
            if self._thread is None and not self._closed:
                self._thread = Thread(target=self._run, name=THREAD, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, watch: TopicWatch[Any]) -> None:
        with self._changed:
            if watch in self._watches:
                self._watches.remove(watch)
            self._changed.wait_for(lambda: self._running is not watch)
            self._changed.notify_all()

    def close(self) -> None:
        """Start no further requests. Does not wait for a running one; closing its watch does."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (watch := self._next()) is not None:
            try:
                watch.run(self._clock)
            finally:
                with self._changed:
                    watch.due_s = monotonic() + watch.interval_s
                    self._running = None
                    self._changed.notify_all()

    def _next(self) -> TopicWatch[Any] | None:
        """Wait for the next watch that is due. Returns None, which ends the thread, when there are no watches or the watcher is closed."""
        with self._changed:
            while self._watches and not self._closed:
                watch = min(self._watches, key=lambda each: each.due_s)
                wait_s = watch.due_s - monotonic()
                if wait_s <= 0:
                    self._running = watch
                    return watch
                self._changed.wait(wait_s)
            self._thread = None
            return None
