"""State of one global store, and the growing delay of repeated rebuilds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.runtime.changelog.progress import TaskProgress, TaskRestore
from penstock.runtime.kafka.topic_watch import Observation, TopicFacts
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.tasks.global_apply import Applier

REPEATED_MS = 600_000
"""A recovery that begins within this time after the previous one counts as repeated."""
FIRST_WAIT_MS, LONGEST_WAIT_MS = 1_000, 60_000
"""The second recovery in a row waits `FIRST_WAIT_MS`, each further one twice as long, at most `LONGEST_WAIT_MS`."""


@dataclass(frozen=True, slots=True)
class GlobalStore:
    """One global store. `own_processor`: filled by a user's processor (`add_global_store`), so not a copy of the topic."""

    store: EngineStore
    topic: str
    applier: Applier
    own_processor: bool


class Phase(Enum):
    """Phase of a global store. GONE: it must be rebuilt, and waits for its topic or for its delay."""

    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class GlobalProgress:
    """State of one global store for reports. `position` and `end`: sums of next offsets over its topic's partitions; the end is the last
    known one. `checkpoint_ms`: wall-clock time. `restore`: while the topic is read up to the end. `reason`: of the recovery under way, with
    its number in a row, `attempt`."""

    store: str
    topic: str
    phase: Phase
    position: int
    end: int
    checkpoint_ms: int | None
    restore: TaskProgress | None
    reason: str | None
    attempt: int


@dataclass(slots=True)
class GlobalState:
    """State of one store. `facts`: its topic's description when reading began; `looked_ms`: wall-clock time of that description, to
    recognise older ones. The other times are monotonic, except `at_end_ms` and `complete_ms`."""

    spec: GlobalStore
    facts: TopicFacts
    looked_ms: int
    phase: Phase = Phase.RESTORING
    positions: dict[TopicPartition, NextOffset] = field(default_factory=dict)
    at_end_ms: int | None = None
    complete_ms: int | None = None
    """Wall-clock time until which its content had everything of the topic, as stored; None: its content was never complete."""
    stored_positions: Mapping[TopicPartition, NextOffset | None] = field(default_factory=dict)
    """Offsets in the store when it was opened, if they are of this topic."""
    observation: Observation[Mapping[str, TopicFacts]] | None = None
    recovery_since_ms: int | None = None
    restored: dict[TopicPartition, int] = field(default_factory=dict)
    """Records since the restore began, by partition."""
    restore: TaskRestore | None = None
    """While the topic is read up to the end."""
    reason: str | None = None
    """Why the store is rebuilt; None outside a recovery."""
    attempt: int = 0
    """Recoveries in a row, each begun within `REPEATED_MS` of the previous one."""
    attempted_ms: int = 0
    not_before_ms: int = 0

    @property
    def remaining(self) -> int:
        """Offsets up to the ends of the topic when reading began."""
        return sum(max(0, end - self.positions.get(partition, 0)) for partition, end in self.facts.ends.items())

    def reached(self, ends: Mapping[TopicPartition, NextOffset]) -> bool:
        return all(self.positions.get(partition, 0) >= end for partition, end in ends.items())

    def count_attempt(self, now_ms: int) -> int:
        """Count a recovery. Return its delay in ms: faster retries help neither against a topic that loses records as fast as they are read
        nor against a broken disk."""
        repeated = self.attempt > 0 and now_ms - self.attempted_ms < REPEATED_MS
        self.attempt = self.attempt + 1 if repeated else 1
        wait_ms = 0 if self.attempt == 1 else min(LONGEST_WAIT_MS, FIRST_WAIT_MS << min(self.attempt - 2, 16))
        self.attempted_ms, self.not_before_ms = now_ms, now_ms + wait_ms
        return wait_ms
