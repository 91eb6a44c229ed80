"""Rebuilding stores from their changelogs: one loop for every store of a worker that is behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.clock import Clock
from runtime.ids import NextOffset, Partition, TaskId
from runtime.metrics import Metrics

ClientProperties = Mapping[str, str | int | float | bool]
"""Properties of librdkafka, as `StreamsConfig.consumer_properties("restore")` gives them."""

ChangelogRecord = tuple[bytes, bytes | None, int]
"""Key, value (None is a tombstone), timestamp in ms: as they stand on the changelog."""


class RestorableStore(Protocol):
    """What the restore needs of a store; every engine store has it."""

    @property
    def name(self) -> str: ...

    def restore(self, records: Sequence[ChangelogRecord], offsets: Mapping[Partition, NextOffset]) -> None: ...

    def committed_offset(self, partition: Partition) -> NextOffset | None: ...

    def get_meta(self, name: str) -> bytes | None: ...

    def set_meta(self, name: str, value: bytes) -> None: ...

    def commit(self, offsets: Mapping[Partition, NextOffset]) -> None: ...

    def wipe(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Changelog:
    """A changelog (or a source topic that serves as one) as it was when its owner had been fenced.

    `end` is the end offset to restore up to, taken after the fence (rules.md, 22). `topic_id` and `delete_retention_ms`
    (None where the topic is not compacted) decide whether what the store holds may still be built upon (rules.md, 13).
    """

    partition: Partition
    end: NextOffset
    topic_id: str
    delete_retention_ms: int | None


class StateRestoreListener(Protocol):
    """Told about the restore of each store (Kafka Streams' `StateRestoreListener`); offsets are next offsets. Called on the worker's thread."""

    def on_restore_start(self, partition: Partition, store: str, start: int, end: int) -> None: ...

    def on_batch_restored(self, partition: Partition, store: str, batch_end: int, records: int) -> None: ...

    def on_restore_end(self, partition: Partition, store: str, total: int) -> None: ...

    def on_restore_suspended(self, partition: Partition, store: str, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far one store is: `position` of `end`, both next offsets, and the records applied so far."""

    task: TaskId
    store: str
    partition: Partition
    position: int
    end: int
    records: int


class Restorer:
    """Restores the stores of any number of tasks with one consumer. Belongs to one thread."""

    def __init__(self, properties: ClientProperties, clock: Clock, metrics: Metrics, listeners: Iterable[StateRestoreListener] = ()) -> None: ...

    def add(self, task: TaskId, stores: Sequence[tuple[RestorableStore, Changelog]]) -> None:
        """Starts the restore of all stores of a task. A store that may not be built upon is wiped first. Reads nothing yet."""

    def remove(self, task: TaskId) -> None:
        """Stops the restore of a task (closed or taken away); what was applied stays applied. Nothing happens if it is not restoring."""

    def step(self, timeout: float) -> list[TaskId]:
        """Reads once (waiting at most `timeout` seconds if nothing is there), applies, and returns the tasks that are now complete.

        Raises TaskCorruptedError for tasks whose position is no longer on the changelog; they are removed, the others go on.
        """
        ...

    @property
    def restoring(self) -> frozenset[TaskId]:
        """The tasks that are not complete."""
        ...

    def progress(self) -> list[RestoreProgress]:
        """Of every store that is being restored; for lags and for people."""
        ...

    def close(self) -> None: ...
