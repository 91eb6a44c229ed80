"""Rebuilding stores from their changelogs: one loop, one consumer, for every store of a worker that is behind.

Kafka Streams has a changelog reader, a state updater thread and a standby task for this. Here a store is a partition, a position and
an end; which task it belongs to matters only for saying when that task is complete. The loop belongs to the worker's thread and does a
bounded amount of work per step, so tasks that are complete process while others restore.

Records are folded by key before they are written: a changelog that was not compacted lately holds most keys many times, and a dict costs a
tenth of a RocksDB write. What is folded is written in bulk, together with the offset up to which it was read, so a kill at
any moment leaves a store that goes on from there. (Rejected: writing each poll as it comes, 1.6 times slower on the measured
changelogs; SST files and ingestion, which cannot be atomic with the offset.)
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from runtime.changelog.log_reader import ClientProperties, LogReader, Poll
from runtime.changelog.staleness import Changelog, ChangelogRecord, RestorableStore, mark_at_end, stale_reason
from runtime.clock import Clock
from runtime.errors import TaskCorruptedError
from runtime.events import EventKind, EventSink
from runtime.ids import NextOffset, Partition, TaskId
from runtime.metrics import TASK, Metrics

if TYPE_CHECKING:
    from confluent_kafka import Message

log = logging.getLogger(__name__)

_MOST_RECORDS = 400_000
_MOST_BYTES = 32 * 1024 * 1024
_LONGEST_MS = 2_000


class StateRestoreListener(Protocol):
    """Told about the restore of each store (Kafka Streams' `StateRestoreListener`); offsets are next offsets. Called on the worker's
    thread."""

    def on_restore_start(self, partition: Partition, store: str, start: int, end: int) -> None: ...

    def on_batch_restored(self, partition: Partition, store: str, batch_end: int, records: int) -> None: ...

    def on_restore_end(self, partition: Partition, store: str, total: int) -> None: ...

    def on_restore_suspended(self, partition: Partition, store: str, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far one store is: `position` of `end`, both next offsets, and the records read so far."""

    task: TaskId
    store: str
    partition: Partition
    position: int
    end: int
    records: int


class FoldedBatch:
    """The records since the last write, of which the latest of each key will be written.

    Columns, folded once when they are taken: a dict update per poll costs as much as reading the records does.
    """

    __slots__ = ("_bytes", "_keys", "_timestamps", "_values", "records", "since_ms")

    def __init__(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps: list[int] = []
        self._bytes = 0
        self.records = 0
        self.since_ms: int | None = None

    def add(self, messages: Sequence[Message], now_ms: int) -> None:
        """Adds a run of one partition, in its order."""
        values = [message.value() for message in messages]
        self._keys.extend([message.key() for message in messages])
        self._values.extend(values)
        self._timestamps.extend([message.timestamp()[1] for message in messages])
        self._bytes += sum(map(len, filter(None, values)))
        self.records += len(messages)
        if self.since_ms is None:
            self.since_ms = now_ms

    def is_due(self, now_ms: int) -> bool:
        """True when waiting longer would cost memory, or much to do again after a kill."""
        if self.since_ms is None:
            return False
        return self.records >= _MOST_RECORDS or self._bytes >= _MOST_BYTES or now_ms - self.since_ms >= _LONGEST_MS

    def take(self) -> list[ChangelogRecord]:
        """The latest record of each key; the batch is empty afterwards. Records without a key belong to no entry of a table and are
        left out. (Not sorted: that costs more than RocksDB gains by it.)"""
        last = dict(zip(self._keys, range(self.records), strict=True))
        values, timestamps = self._values, self._timestamps
        taken = [(key, values[row], timestamps[row]) for key, row in last.items() if key is not None]
        self._keys, self._values, self._timestamps = [], [], []
        self._bytes = self.records = 0
        self.since_ms = None
        return taken


@dataclass(slots=True)
class _Restore:
    """One store on its way to the end of its changelog."""

    task: TaskId
    store: RestorableStore
    log: Changelog
    start: NextOffset
    position: NextOffset
    records: int = 0
    batch: FoldedBatch = field(default_factory=FoldedBatch)


class Restorer:
    """Restores the stores of any number of tasks with one consumer. Belongs to one thread."""

    def __init__(
        self,
        properties: ClientProperties,
        clock: Clock,
        metrics: Metrics,
        events: EventSink,
        listeners: Iterable[StateRestoreListener] = (),
    ) -> None:
        """`properties`: `StreamsConfig.consumer_properties("restore")`. No connection is made before the first `add`."""
        self._properties = properties
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._listeners = tuple(listeners)
        self._reader: LogReader | None = None
        self._restores: dict[Partition, _Restore] = {}
        self._waiting: dict[TaskId, int] = {}
        self._begun: dict[TaskId, tuple[int, int]] = {}

    def add(self, task: TaskId, stores: Sequence[tuple[RestorableStore, Changelog]]) -> None:
        """Starts the restore of all stores of a task: each from its own offset, or, if it may not be built upon any more, wiped and
        from the log's start. Reads nothing yet; a task with nothing to restore is returned by the next `step`."""
        self._waiting[task] = 0
        started: dict[str, object] = {}
        for store, changelog in stores:
            start = self._begin_store(task, store, changelog)
            started[store.name] = {
                "topic": changelog.partition.topic,
                "partition": changelog.partition.number,
                "from": start,
                "to": changelog.end,
            }
        if self._waiting[task]:
            self._begun[task] = (self._clock.monotonic_ms(), 0)
            self._events.emit(EventKind.RESTORE_STARTED, {"stores": started}, task)

    def _begin_store(self, task: TaskId, store: RestorableStore, changelog: Changelog) -> int:
        now_ms = self._clock.wall_ms()
        reason = stale_reason(store, changelog, now_ms)
        if reason is not None:
            log.warning("task %s: store %s is wiped and restored: %s", task, store.name, reason)
            store.wipe()
        start = store.committed_offset(changelog.partition)
        if start == changelog.end or changelog.end == 0:
            mark_at_end(store, changelog.topic_id, now_ms)
            store.commit({changelog.partition: changelog.end})
            return changelog.end
        if start is None:
            # Until its end is reached, what the store knows is as old as the moment at which reading began.
            mark_at_end(store, changelog.topic_id, now_ms)
            store.commit({})
        position = start if start is not None else NextOffset(0)
        self._restores[changelog.partition] = _Restore(task, store, changelog, position, position)
        self._waiting[task] += 1
        for listener in self._listeners:
            listener.on_restore_start(changelog.partition, store.name, position, changelog.end)
        if self._reader is None:
            self._reader = LogReader(self._properties, "restore")
        self._reader.assign(changelog.partition, start)
        return position

    def remove(self, task: TaskId) -> None:
        """Stops the restore of a task that is closed or taken away. Nothing is written any more; what was written stays, with its
        offset."""
        for restore in [restore for restore in self._restores.values() if restore.task == task]:
            self._drop(restore)
            for listener in self._listeners:
                listener.on_restore_suspended(restore.log.partition, restore.store.name, restore.records)
        self._waiting.pop(task, None)
        self._begun.pop(task, None)

    def _drop(self, restore: _Restore) -> None:
        del self._restores[restore.log.partition]
        if self._reader is not None:
            self._reader.unassign(restore.log.partition)

    def step(self, timeout: float) -> list[TaskId]:
        """Reads once (waiting at most `timeout` seconds if nothing is there) and returns the tasks that are complete now.

        Raises TaskCorruptedError for tasks whose position is no longer on their changelog: these are removed, the others go on with the
        next step. Raises StreamsError if a changelog cannot be read at all.
        """
        if self._reader is not None and self._restores:
            self._take(self._reader.poll(timeout))
        finished = [task for task, stores in self._waiting.items() if stores == 0]
        for task in finished:
            self._finish_task(task)
        return finished

    def _take(self, poll: Poll) -> None:
        now_ms = self._clock.monotonic_ms()
        for partition, messages in poll.runs.items():
            if (restore := self._restores.get(partition)) is not None:
                self._take_run(restore, messages, now_ms)
        for partition, offset in poll.ends.items():
            if (restore := self._restores.get(partition)) is not None:
                restore.position = max(restore.position, offset)
                if offset >= restore.log.end:
                    self._complete(restore)
        for restore in list(self._restores.values()):
            if restore.batch.is_due(now_ms):
                self._write(restore, restore.position)
        if poll.out_of_range:  # last: what the same poll gave of other changelogs will not come again
            self._corrupted(poll.out_of_range)

    def _take_run(self, restore: _Restore, messages: Sequence[Message], now_ms: int) -> None:
        next_offset = _next_offset(messages[-1])
        reached = next_offset >= restore.log.end
        if next_offset > restore.log.end:
            # A source topic that serves as changelog grows while it is read; what lies beyond the end is the task's input.
            messages = messages[: bisect_left(messages, int(restore.log.end), key=_offset)]
        restore.batch.add(messages, now_ms)
        restore.records += len(messages)
        restore.position = next_offset
        if reached:
            self._complete(restore)

    def _write(self, restore: _Restore, next_offset: NextOffset) -> None:
        records = restore.batch.records
        restore.store.restore(restore.batch.take(), {restore.log.partition: next_offset})
        self._metrics.counter("restore-total", TASK, task_id=str(restore.task)).add(records)
        for listener in self._listeners:
            listener.on_batch_restored(restore.log.partition, restore.store.name, next_offset, records)

    def _complete(self, restore: _Restore) -> None:
        # Before the write, so that it lands in the same batch. The offset is the end itself: markers and aborted records before it are
        # behind us too.
        mark_at_end(restore.store, restore.log.topic_id, self._clock.wall_ms())
        self._write(restore, restore.log.end)
        restore.store.commit({restore.log.partition: restore.log.end})
        self._drop(restore)
        self._waiting[restore.task] -= 1
        if restore.task in self._begun:
            since, records = self._begun[restore.task]
            self._begun[restore.task] = (since, records + restore.records)
        for listener in self._listeners:
            listener.on_restore_end(restore.log.partition, restore.store.name, restore.records)

    def _finish_task(self, task: TaskId) -> None:
        del self._waiting[task]
        begun = self._begun.pop(task, None)
        if begun is not None:
            seconds = (self._clock.monotonic_ms() - begun[0]) / 1000
            log.info("task %s: %d records restored in %.1f s", task, begun[1], seconds)
            self._events.emit(EventKind.RESTORE_ENDED, {"records": begun[1], "seconds": seconds}, task)

    def _corrupted(self, out_of_range: dict[Partition, int | None]) -> None:
        reasons: dict[TaskId, list[str]] = {}
        for partition, offset in out_of_range.items():
            if (restore := self._restores.get(partition)) is not None:
                reasons.setdefault(restore.task, []).append(
                    f"store {restore.store.name} is at offset {offset} of {partition}, which is no longer there"
                )
        for task in reasons:
            self.remove(task)
        if reasons:
            raise TaskCorruptedError(reasons, "; ".join(text for texts in reasons.values() for text in texts))

    @property
    def restoring(self) -> frozenset[TaskId]:
        """The tasks that are not complete."""
        return frozenset(self._waiting)

    def progress(self) -> list[RestoreProgress]:
        """Of every store that is being restored; for lags and for people."""
        return [
            RestoreProgress(each.task, each.store.name, each.log.partition, each.position, each.log.end, each.records)
            for each in self._restores.values()
        ]

    def close(self) -> None:
        """Suspends what is being restored. Restores go on from the last write when they are added again."""
        for task in list(self._waiting):
            self.remove(task)
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _next_offset(message: Message) -> NextOffset:
    return NextOffset(_offset(message) + 1)
