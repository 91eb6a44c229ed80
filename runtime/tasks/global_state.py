"""What the global task knows of one of its stores, and how long a store that has to be rebuilt again and again waits before it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from runtime.changelog.topic_watch import Sight, TopicFacts
from runtime.ids import NextOffset, Partition
from runtime.stores.base import EngineStore
from runtime.tasks.global_apply import Apply

REPEATED_MS = 600_000
"""A recovery that begins within this time after the one before is a repeated one."""
FIRST_WAIT_MS, LONGEST_WAIT_MS = 1_000, 60_000
"""The second recovery in a row waits for the first of these, each further one twice as long, up to the last."""


@dataclass(frozen=True, slots=True)
class GlobalStore:
    """One global store. `own_processor`: filled by a processor of the user's (`add_global_store`), so not a copy of the topic."""

    store: EngineStore
    topic: str
    apply: Apply
    own_processor: bool


class Phase(Enum):
    """Where a global store stands. GONE: it has to be rebuilt, and waits for its topic, or for its turn."""

    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    GONE = "GONE"


@dataclass(slots=True)
class GlobalState:
    """One store. `facts`: its topic as it was when reading began; `looked_ms`: wall-clock time of that look, so that an older sight of the
    topic is known to be older. The other times are monotonic, but for `at_end_ms`."""

    spec: GlobalStore
    facts: TopicFacts
    looked_ms: int
    phase: Phase = Phase.RESTORING
    positions: dict[Partition, NextOffset] = field(default_factory=dict)
    at_end_ms: int | None = None
    sight: Sight[Mapping[str, TopicFacts]] | None = None
    recovery_since_ms: int | None = None
    restored: dict[Partition, int] = field(default_factory=dict)
    """Records since the restore began, of each partition that it was begun with."""
    attempt: int = 0
    """Recoveries in a row, each begun within `REPEATED_MS` of the one before."""
    attempted_ms: int = 0
    not_before_ms: int = 0

    def reached(self, ends: Mapping[Partition, NextOffset]) -> bool:
        return all(self.positions.get(partition, 0) >= end for partition, end in ends.items())

    def count_attempt(self, now_ms: int) -> int:
        """A recovery begins. Returns how long it has to wait, in ms: a topic that loses its records as fast as they are read, or a disk
        that breaks what it is given, is not cured by trying faster."""
        repeated = self.attempt > 0 and now_ms - self.attempted_ms < REPEATED_MS
        self.attempt = self.attempt + 1 if repeated else 1
        wait_ms = 0 if self.attempt == 1 else min(LONGEST_WAIT_MS, FIRST_WAIT_MS << min(self.attempt - 2, 16))
        self.attempted_ms, self.not_before_ms = now_ms, now_ms + wait_ms
        return wait_ms
