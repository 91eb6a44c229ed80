"""Queues of a task's input partitions. The next record is the one with the smallest timestamp at the head of a queue (Kafka Streams'
`PartitionGroup`), at equal timestamps that of the first partition; an empty partition may be waited for (`max.task.idle.ms`, KIP-695).

Records come out as runs: stretches of one partition that may be processed in one go because no other partition has an older head. A task
with one input partition gets whole batches. Where partitions alternate, as the streams of a join do, a run would be a record or two, and
cost more than they do: then the next records of all partitions come as one merge.

Decoding is one batch ahead per partition at most, and a record that cannot be read stops its partition there: it becomes a *failure at the
head* when everything before it has been taken and its turn has come.

A failure has no reliable timestamp, so its turn comes as soon as it is the head of its partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from operator import itemgetter
from typing import NamedTuple

from penstock.runtime.input.deserialization import Batch, Decoder, Failure, RawMessage
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.topology.pipeline import MergedRow

MAX_RUN = 1000
"""Raw messages decoded at once: what is decoded should still be in the processor's cache when it is processed; it also bounds what is
decoded in vain before a pause."""
_REACH = 4
"""A merge looks at this many times the rows of the partition that has the fewest."""


class Run(NamedTuple):
    """Rows `start` to `stop` (exclusive) of a batch, all of one partition, next in the task's order."""

    queue: PartitionQueue
    batch: Batch
    start: int
    stop: int


class Merge(NamedTuple):
    """The next records of a task, in order, and the rows of each partition among them. The time of a row is the largest timestamp of its
    partition in the merge so far: rows are in the order of their times, and at equal times in that of the partitions."""

    runs: list[Run]
    rows: list[MergedRow]


class PartitionQueue:
    """Records of one partition that were read and are not yet processed."""

    __slots__ = (
        "_batch",
        "_decoder",
        "_end",
        "_failure",
        "_raw",
        "_row",
        "at_end",
        "buffered",
        "dropped",
        "idle_since",
        "next_offset",
        "partition",
        "partition_time",
        "start",
        "stop_before",
    )

    def __init__(self, partition: TopicPartition, decoder: Decoder, start: NextOffset, partition_time: int = -1) -> None:
        self.partition = partition
        self.partition_time = partition_time
        """Largest timestamp taken from this partition, in ms; -1 before the first."""
        self.start = start
        """Offset at which reading began."""
        self.next_offset = start
        """Next offset to process, which a commit writes. The consumer's position is ahead of it."""
        self.buffered = 0
        self.at_end = False
        """True if the broker reported the end of the partition and no record has arrived since."""
        self.idle_since: int | None = None
        """Time since which it is known to be empty, here and on the broker; monotonic ms."""
        self.dropped = 0
        """Records dropped for a negative timestamp since the last report."""
        self.stop_before: int | None = None
        """Offset of a record at which the task pauses when its turn comes (rules.md, 18)."""
        self._decoder = decoder
        self._raw: deque[Sequence[RawMessage]] = deque()
        self._batch: Batch | None = None
        self._failure: Failure | None = None
        """The record behind the batch, if it cannot be read."""
        self._row = 0
        self._end = 0

    def enqueue(self, messages: Sequence[RawMessage]) -> None:
        """Append records in order."""
        self.at_end = False
        self.buffered += len(messages)
        for start in range(0, len(messages), MAX_RUN):
            self._raw.append(messages[start : start + MAX_RUN])

    @property
    def failure(self) -> Failure | None:
        """The record at the head if it cannot be read; None while decoded records are before it, at one of which the task may pause."""
        return self._failure if self._batch is None else None

    def head(self) -> Batch | None:
        """Return the batch at the head, decoding it if needed; None if the queue is empty or `failure` is next."""
        while self._batch is None and self._failure is None and self._raw:
            messages = self._raw.popleft()
            batch, failure = self._decoder.decode(messages, self.partition_time)
            self._failure = failure
            self.dropped += batch.dropped
            if failure is not None:
                rest = messages[len(batch.timestamps) + batch.dropped + 1 :]
                if rest:
                    self._raw.appendleft(rest)
            if batch.timestamps:
                self._batch, self._row = batch, 0
                self.buffered -= batch.dropped
            else:
                self._pass(batch.dropped, batch.end)
        return self._batch

    def coming(self) -> Sequence[RawMessage]:
        """Return the messages to be decoded after the batch at the head; empty if there are none."""
        return self._raw[0] if self._raw else ()

    def _pass(self, records: int, end: int) -> None:
        self.buffered -= records
        self.next_offset = NextOffset(max(end, self.next_offset))

    @property
    def row(self) -> int:
        """Row of the head within `head()`."""
        return self._row

    def stop_row(self, batch: Batch) -> int:
        """Return the row before which this batch must stop: its end, or the record at which the task pauses."""
        if self.stop_before is None or batch.offsets[-1] < self.stop_before:
            return len(batch.timestamps)
        return bisect_left(batch.offsets, self.stop_before)

    @property
    def stopped(self) -> bool:
        """True if the record at the head is the one to stop before."""
        return self.stop_before is not None and self._batch is not None and self.stop_row(self._batch) <= self._row

    def take(self, batch: Batch, stop: int) -> None:
        """Mark rows up to `stop` (exclusive) as processed."""
        row = self._row
        self.buffered -= stop - row
        latest = batch.timestamps[row] if stop - row == 1 else max(batch.timestamps[row:stop])
        if latest > self.partition_time:
            self.partition_time = latest
        self._row = stop
        if stop == len(batch.timestamps):
            self.next_offset = NextOffset(batch.end)
            self._batch = None
            if not self.buffered:
                self.next_offset = NextOffset(max(self.next_offset, self._end))
        else:
            self.next_offset = NextOffset(batch.offsets[stop])

    def reached_end(self, offset: int) -> None:
        """Note the end of the partition; `offset` is the next one. Offsets between the last record and it (transaction markers, aborted
        records) count as processed with that record, or lag would never become 0."""
        self.at_end, self._end = True, offset
        if not self.buffered:
            self.next_offset = NextOffset(max(self.next_offset, offset))

    def skip_failure(self) -> None:
        """Skip the record that could not be read; it counts as processed."""
        if self.failure is not None:
            self._pass(1, self.failure.message.offset() + 1)
            self._failure = None

    def skip_row(self) -> None:
        """Skip the record at the head; it counts as processed."""
        if self._batch is not None:
            self.take(self._batch, self._row + 1)

    def jump(self, offset: int) -> None:
        """Continue at `offset`; nothing lies between the queued records and it."""
        self.reached_end(offset)
        self.at_end = False

    def clear(self, start: NextOffset) -> None:
        """Drop all records; the next one will be that at `start`. Partition time is kept (rules.md, 17)."""
        self._raw.clear()
        self._batch, self._row, self.buffered, self._end = None, 0, 0, 0
        self._failure, self.stop_before, self.at_end = None, None, False
        self.start = self.next_offset = start


class TaskQueues:
    """The queues of one task."""

    __slots__ = ("_by_partition", "_idle_ms", "_idle_since", "_single", "all")

    def __init__(self, queues: Iterable[PartitionQueue], max_task_idle_ms: int) -> None:
        self.all = sorted(queues, key=lambda queue: queue.partition)
        """The queues, in the order of their partitions."""
        self._by_partition = {queue.partition: queue for queue in self.all}
        self._single = self.all[0] if len(self.all) == 1 else None
        self._idle_ms = max_task_idle_ms
        self._idle_since: int | None = None

    def __getitem__(self, partition: TopicPartition) -> PartitionQueue:
        return self._by_partition[partition]

    @property
    def buffered(self) -> int:
        """Number of records read and not yet processed."""
        return sum(queue.buffered for queue in self.all)

    @property
    def idle_since(self) -> int | None:
        """Time at which the task began to wait for an empty partition, monotonic ms; None if it does not wait."""
        return self._idle_since

    def blocked(self) -> PartitionQueue | None:
        """Return the queue whose head cannot be read or is the record to stop before; None if there is none."""
        for queue in self.all:
            if queue.head() is None:
                if queue.failure is not None:
                    return queue
            elif queue.stop_before is not None and queue.stopped:
                return queue
        return None

    def next_run(self, limit: int, now_ms: int) -> Run | None:
        """Return the next run of at most `limit` records. None if there is none, if the task must wait, or if `blocked()` returns a
        queue."""
        queue = self._single
        if queue is None:
            return self._smallest(limit, now_ms)
        batch = queue.head()
        if batch is None:
            return None
        row = queue.row
        stop = min(row + limit, queue.stop_row(batch))
        return Run(queue, batch, row, stop) if stop > row else None

    def _smallest(self, limit: int, now_ms: int) -> Run | None:
        first: PartitionQueue | None = None
        smallest = following = _LATE
        waits = False
        for queue in self.all:
            batch = queue._batch or queue.head()
            if batch is None:
                if queue.failure is not None:
                    return None
                waits = self._is_waited_for(queue, now_ms) or waits
                continue
            queue.idle_since = None
            if queue.stop_before is not None and queue.stopped:
                return None
            timestamp = batch.timestamps[queue._row]
            if timestamp < smallest:  # all queues so far are before this one, and come first at equal times
                first, smallest, following = queue, timestamp, smallest - 1
            elif timestamp < following:
                following = timestamp
        if first is None or waits:
            self._idle_since = now_ms if waits and self._idle_since is None else self._idle_since
            return None
        self._idle_since = None
        batch, row = first._batch, first._row
        if batch is None:
            return None
        stop = min(row + limit, first.stop_row(batch))
        if following < _LATE - 1:
            stop = _up_to(batch.timestamps, row, stop, following)
        return Run(first, batch, row, stop)

    def next_merge(self, limit: int) -> Merge:
        """Return the next records, about `limit` of them at most, of all partitions that have some. To be called after `next_run`, which
        returned a run; that run's records are the first.

        No partition has an unknown head before any of these records: they end with the first partition whose decoded rows end.
        """
        runs, most = [], limit
        for queue in self.all:
            if (batch := queue.head()) is not None:
                runs.append(Run(queue, batch, queue.row, queue.stop_row(batch)))
                most = min(most, _REACH * (runs[-1].stop - queue.row))
        times = [list(accumulate(run.batch.timestamps[run.start : min(run.stop, run.start + most)], max)) for run in runs]
        last = min(of_run[-1] for of_run in times)
        ends = [of_run[-1] for of_run in times].index(last)
        rows: list[MergedRow] = []
        for number, (run, of_run) in enumerate(zip(runs, times, strict=True)):
            count = len(of_run) if number == ends else (bisect_right if number < ends else bisect_left)(of_run, last)
            start, stop = run.start, run.start + count
            batch = run.batch
            headers = repeat(None) if batch.headers is None else batch.headers[start:stop]
            columns = batch.offsets[start:stop], headers, batch.keys[start:stop], batch.values[start:stop], batch.timestamps[start:stop]
            rows += zip(of_run, repeat(number), *columns)
            runs[number] = run._replace(stop=stop)
        rows.sort(key=_BY_TIME)  # stable, and linear, because the rows of each partition are in order
        return Merge(runs, rows)

    def note_end(self, queue: PartitionQueue, now_ms: int) -> None:
        """Note since when a partition is empty, for `max.task.idle.ms`, also while the task has no records and is not asked for a run."""
        if self._idle_ms > 0 and queue.at_end and not queue.buffered and queue.idle_since is None:
            queue.idle_since = now_ms

    def _is_waited_for(self, queue: PartitionQueue, now_ms: int) -> bool:
        """Return True if an empty partition is waited for: always while the broker may have more, else for `max.task.idle.ms` (KIP-695)."""
        if self._idle_ms < 0:
            return False
        if not queue.at_end:
            queue.idle_since = None
            return True
        if queue.idle_since is None:
            queue.idle_since = now_ms
        return now_ms - queue.idle_since < self._idle_ms


_LATE = 1 << 63
_BY_TIME = itemgetter(0)


def _up_to(timestamps: list[int], start: int, stop: int, largest: int) -> int:
    """Return the end of the rows from `start` with timestamps up to `largest`; at least one row."""
    row = start + 1
    while row < stop and timestamps[row] <= largest:
        row += 1
    return row
