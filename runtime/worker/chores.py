"""What a worker does now and then: purge repartition topics, look whether committed offsets moved, keep them from expiring, checkpoint.

Each chore is cheap, has its own interval, and may fail without harm when the broker is away: it is tried again the next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from runtime.errors import StreamsError, TaskCorruptedError, TaskMigratedError, TransactionAbortedError

logger = logging.getLogger(__name__)

MOVED_OFFSETS_MS = 10_000
"""How often committed offsets are compared with what was committed last (rules.md, 19)."""
CHANGELOGS_MS = 10_000
"""How often it is looked whether the changelogs are still there."""
RECOMMIT_MS = 6 * 3_600_000
"""How often idle offsets are committed again: a quarter of one day, the shortest `offsets.retention.minutes` that brokers of before
Kafka 2.0 came with; the default of today is seven days (rules.md, 20)."""
CLEAN_UP_MS = 1_000
"""The least time between two looks for state that nobody owns; `state.cleanup.delay.ms` where that is longer."""


@dataclass(slots=True)
class _Chore:
    name: str
    interval_ms: int
    work: Callable[[], None]
    due_ms: int


class Chores:
    """A list of chores, looked at once a turn."""

    def __init__(self) -> None:
        self._chores: list[_Chore] = []
        self._next_ms = 0

    def add(self, name: str, interval_ms: int, work: Callable[[], None], now_ms: int) -> None:
        """`work` is called every `interval_ms`, first after one interval. Errors of the broker are logged; those of a commit pass."""
        self._chores.append(_Chore(name, interval_ms, work, now_ms + interval_ms))
        self._next_ms = min(chore.due_ms for chore in self._chores)

    def run(self, now_ms: int) -> None:
        """Does what is due. Raises TransactionAbortedError, TaskMigratedError and TaskCorruptedError only."""
        if now_ms < self._next_ms:
            return
        for chore in self._chores:
            if now_ms >= chore.due_ms:
                chore.due_ms = now_ms + chore.interval_ms
                try:
                    chore.work()
                except (TransactionAbortedError, TaskMigratedError, TaskCorruptedError):
                    raise
                except StreamsError as error:
                    logger.warning("%s: %s; next attempt in %d s", chore.name, error, chore.interval_ms // 1000)
        self._next_ms = min(chore.due_ms for chore in self._chores)
