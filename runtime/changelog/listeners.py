"""Listeners for restores and standbys, with Kafka Streams' arguments. All are called on the worker's thread.

`start` is the first offset that is read; `end` is the offset behind the last one; `batch_end` is the offset of a batch's last record.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeVar, cast

from penstock.runtime.model.error_details import at_line
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.user_errors import described

Listener = TypeVar("Listener")


class StateRestoreListener(Protocol):
    """Callbacks for the restore of each store, global ones too (Kafka Streams' `StateRestoreListener`): a start, batches, and an end, also
    if there is nothing to restore; or a start, batches, and a suspension, if the task is revoked or a global store wiped before the end.
    `total` is the number of the partition's records."""

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None: ...

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end: int, records: int) -> None: ...

    def on_restore_end(self, partition: TopicPartition, store: str, total: int) -> None: ...

    def on_restore_suspended(self, partition: TopicPartition, store: str, total: int) -> None: ...


class SuspendReason(Enum):
    """Why a standby ended (Kafka Streams' `StandbyUpdateListener.SuspendReason`)."""

    MIGRATED = "MIGRATED"
    PROMOTED = "PROMOTED"


class StandbyUpdateListener(Protocol):
    """Callbacks for each store of a standby or learner (Kafka Streams' `StandbyUpdateListener`). `offset` is that of the last record in
    the store, -1 if there is none; `end` the last known end."""

    def on_update_start(self, partition: TopicPartition, store: str, start: int) -> None: ...

    def on_batch_loaded(self, partition: TopicPartition, store: str, task: TaskId, batch_end: int, records: int, end: int) -> None: ...

    def on_update_suspended(self, partition: TopicPartition, store: str, offset: int, end: int, reason: SuspendReason) -> None: ...


def with_named_failures(listener: Listener) -> Listener:
    """Return a listener that calls this one, and whose failures, of any BaseException, are a StreamsError that names listener, method and
    store: they belong to no record."""
    return cast(Listener, _NamedFailures(listener))


class _NamedFailures:
    def __init__(self, listener: object) -> None:
        self._listener = listener

    def __getattr__(self, method: str) -> Callable[..., None]:
        call = getattr(self._listener, method)

        def called(partition: TopicPartition, store: str, *arguments: object) -> None:
            try:
                call(partition, store, *arguments)
            except BaseException as error:
                name = f"{type(self._listener).__qualname__}.{method}"
                raise StreamsError(
                    f"the listener {name}, called for store {store} ({partition}), has failed{at_line(error)}: {described(error)}"
                ) from error

        return called
