"""Looks at topics now and then, from a thread of its own, so that a broker that is slow to answer never holds up the worker's loop.

Kafka says nothing when a topic is deleted and made anew while it is read: a reader whose offset exists in the new one goes on in the middle
of other data. Only the topic's id tells, and nobody sends it; so it is asked for (rules.md, 27). The end offsets that come with it
tell since when the reader has known all there is (rules.md, 13).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from runtime.clock import Clock
from runtime.errors import StreamsError
from runtime.ids import NextOffset, Partition

log = logging.getLogger(__name__)

INTERVAL_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the brokers say of a topic. `ends` are last stable offsets: what a `read_committed` reader can reach."""

    topic_id: str
    ends: Mapping[Partition, NextOffset]
    compacted: bool
    cleanup_policy: str
    delete_retention_ms: int | None
    """None where the topic is not compacted: then nothing is cleaned away but by age, which an out-of-range offset tells."""


@dataclass(frozen=True, slots=True)
class Sight(Generic[T]):
    """One look, and the wall-clock time at which the question was put: the ends that `facts` tell were reached then or later."""

    asked_ms: int
    facts: T


class TopicWatch(Generic[T]):
    """Keeps the newest sight of some topics."""

    def __init__(self, look: Callable[[], T], clock: Clock, name: str, interval_s: float = INTERVAL_S) -> None:
        """`look` is called from the thread. When it raises StreamsError (no broker answers) the last sight stands. `name` says in logs
        whose topics these are."""
        self._look = look
        self._clock = clock
        self._name = name
        self._interval_s = interval_s
        self._newest: Sight[T] | None = None
        self._lock = Lock()
        self._stop = Event()
        self._failing = False
        self._thread = Thread(target=self._run, name=f"{name}-topic-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self) -> Sight[T] | None:
        """The newest sight, if there is one that was not taken yet."""
        with self._lock:
            newest, self._newest = self._newest, None
            return newest

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            asked_ms = self._clock.wall_ms()
            try:
                facts = self._look()
            except StreamsError as error:
                if not self._failing:
                    log.warning("%s topics cannot be looked at, next try in %.0f s: %s", self._name, self._interval_s, error)
                self._failing = True
                continue
            self._failing = False
            with self._lock:
                self._newest = Sight(asked_ms, facts)

    def close(self) -> None:
        """Stops looking; waits for a look that is under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
