"""Who is told how restores and standbys come on. All are called on the worker's thread; offsets are next offsets."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from runtime.ids import Partition, TaskId


class StateRestoreListener(Protocol):
    """Told about the restore of each store, global ones too (Kafka Streams' `StateRestoreListener`)."""

    def on_restore_start(self, partition: Partition, store: str, start: int, end: int) -> None: ...

    def on_batch_restored(self, partition: Partition, store: str, batch_end: int, records: int) -> None: ...

    def on_restore_end(self, partition: Partition, store: str, total: int) -> None: ...

    def on_restore_suspended(self, partition: Partition, store: str, total: int) -> None:
        """The task is closed before its end was reached; `total` records were restored."""


class SuspendReason(Enum):
    """Why a standby ended (Kafka Streams' `StandbyUpdateListener.SuspendReason`)."""

    MIGRATED = "MIGRATED"
    PROMOTED = "PROMOTED"


class StandbyUpdateListener(Protocol):
    """Told about each store of a standby or learner (Kafka Streams' `StandbyUpdateListener`)."""

    def on_update_start(self, partition: Partition, store: str, start: int) -> None: ...

    def on_batch_loaded(self, partition: Partition, store: str, task: TaskId, batch_end: int, records: int, end: int) -> None: ...

    def on_update_suspended(self, partition: Partition, store: str, offset: int, end: int, reason: SuspendReason) -> None: ...
