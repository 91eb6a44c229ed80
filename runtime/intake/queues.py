"""In which order a task takes its records: of all its input partitions, the one whose head has the smallest timestamp (Kafka Streams'
`PartitionGroup`), and, where a partition is empty, whether to wait for it (`max.task.idle.ms`, KIP-695).

Records come out as runs: stretches of one partition that may be processed in one go because no other partition has an older head. A task
with one input partition gets whole batches. Decoding is one batch ahead per partition at most, and a record that cannot be read
stops its partition there: it becomes a *failure at the head* when everything before it has been taken and its turn has come.

A failure has no timestamp of its own that could be trusted, so its turn comes as soon as it is the head of its partition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from runtime.ids import NextOffset, Partition
from runtime.intake.verdict import Batch, Decoder, Failure, RawMessage

MAX_RUN = 1000
"""Raw messages decoded at once: what is decoded should still be in the processor's cache when it is processed; it also bounds what is
decoded in vain before a pause."""


class Run(NamedTuple):
    """Rows `start` to `stop` (exclusive) of a batch, all of one partition, next in the task's order."""

    queue: PartitionQueue
    batch: Batch
    start: int
    stop: int


class PartitionQueue:
    """What was read of one partition and is not yet processed."""

    __slots__ = (
        "_batch",
        "_decoder",
        "_end",
        "_raw",
        "_row",
        "at_end",
        "buffered",
        "dropped",
        "failure",
        "idle_since",
        "next_offset",
        "partition",
        "partition_time",
        "start",
        "stop_before",
    )

    def __init__(self, partition: Partition, decoder: Decoder, start: NextOffset, partition_time: int = -1) -> None:
        self.partition = partition
        self.partition_time = partition_time
        """Largest timestamp taken from this partition, in ms; -1 before the first."""
        self.start = start
        """Where reading began."""
        self.next_offset = start
        """The next offset to process: what a commit writes. Never the consumer's position, which is ahead."""
        self.buffered = 0
        self.at_end = False
        """True when the broker said that nothing more is there, and nothing has come since."""
        self.idle_since: int | None = None
        """Since when it has been known to be empty, here and on the broker, ms of the monotonic clock."""
        self.failure: Failure | None = None
        self.dropped = 0
        """Records dropped for a negative timestamp since somebody last looked."""
        self.stop_before: int | None = None
        """A record that is to be treated as a pause when its turn comes (rules.md, 18)."""
        self._decoder = decoder
        self._raw: deque[Sequence[RawMessage]] = deque()
        self._batch: Batch | None = None
        self._row = 0
        self._end = 0

    def add(self, messages: Sequence[RawMessage]) -> None:
        """Appends what was read, in order."""
        self.at_end = False
        self.buffered += len(messages)
        for start in range(0, len(messages), MAX_RUN):
            self._raw.append(messages[start : start + MAX_RUN])

    def head(self) -> Batch | None:
        """The batch at the head, decoded if need be; None if nothing is there or `failure` is next."""
        while self._batch is None and self.failure is None and self._raw:
            messages = self._raw.popleft()
            batch, failure = self._decoder.decode(messages, self.partition_time)
            self.failure = failure
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

    def _pass(self, records: int, end: int) -> None:
        self.buffered -= records
        self.next_offset = NextOffset(max(end, self.next_offset))

    @property
    def row(self) -> int:
        """Row of the head within `head()`."""
        return self._row

    def stop_row(self, batch: Batch) -> int:
        """The row before which this batch must stop: its end, or the record that is to be treated as a pause."""
        if self.stop_before is None or batch.offsets[-1] < self.stop_before:
            return len(batch.timestamps)
        return bisect_left(batch.offsets, self.stop_before)

    @property
    def stopped(self) -> bool:
        """True if the record at the head is the one to stop before."""
        return self.stop_before is not None and self._batch is not None and self.stop_row(self._batch) <= self._row

    def take(self, batch: Batch, stop: int) -> None:
        """Rows up to `stop` (exclusive) have been processed."""
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
        """The broker has nothing more than what was added; `offset` is the next one it will give. What lies between the last record
        and it (transaction markers, aborted records) counts as processed with that record, or lag would never become 0."""
        self.at_end, self._end = True, offset
        if not self.buffered:
            self.next_offset = NextOffset(max(self.next_offset, offset))

    def skip_failure(self) -> None:
        """The record that could not be read is passed over; it counts as processed."""
        if self.failure is not None:
            self._pass(1, self.failure.message.offset() + 1)
            self.failure = None

    def skip_row(self) -> None:
        """The record at the head is passed over; it counts as processed."""
        if self._batch is not None:
            self.take(self._batch, self._row + 1)

    def jump(self, offset: int) -> None:
        """Nothing lies between what was added and `offset`, where reading goes on."""
        self.reached_end(offset)
        self.at_end = False

    def clear(self, start: NextOffset) -> None:
        """Forgets what was read; the next record will be the one at `start`. Partition time stays (rules.md, 17)."""
        self._raw.clear()
        self._batch, self._row, self.buffered, self._end = None, 0, 0, 0
        self.failure, self.stop_before, self.at_end = None, None, False
        self.start = self.next_offset = start


class TaskQueues:
    """The queues of one task."""

    __slots__ = ("_all", "_by_partition", "_idle_ms", "_idle_since", "_single")

    def __init__(self, queues: Iterable[PartitionQueue], max_task_idle_ms: int) -> None:
        self._all = sorted(queues, key=lambda queue: queue.partition)
        self._by_partition = {queue.partition: queue for queue in self._all}
        self._single = self._all[0] if len(self._all) == 1 else None
        self._idle_ms = max_task_idle_ms
        self._idle_since: int | None = None

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self._all)

    def __getitem__(self, partition: Partition) -> PartitionQueue:
        return self._by_partition[partition]

    @property
    def buffered(self) -> int:
        """Records that were read and are not yet processed."""
        return sum(queue.buffered for queue in self._all)

    @property
    def idle_since(self) -> int | None:
        """When the task began to wait for an empty partition, ms of the monotonic clock; None if it does not wait."""
        return self._idle_since

    def blocked(self) -> PartitionQueue | None:
        """The queue whose head is a record that cannot be read, or the one to stop before; None if there is none."""
        for queue in self._all:
            if queue.head() is None:
                if queue.failure is not None:
                    return queue
            elif queue.stop_before is not None and queue.stopped:
                return queue
        return None

    def next_run(self, limit: int, now_ms: int) -> Run | None:
        """The next at most `limit` records that may be processed in one go. None if nothing is there, if it must be waited for, or if
        `blocked()` has something."""
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
        for queue in self._all:
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
            if timestamp < smallest:
                first, smallest, following = queue, timestamp, smallest
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
        if following != _LATE:
            stop = _up_to(batch.timestamps, row, stop, following)
        return Run(first, batch, row, stop)

    def _is_waited_for(self, queue: PartitionQueue, now_ms: int) -> bool:
        """KIP-695: an empty partition that may have more on the broker is waited for; one that has not, for `max.task.idle.ms` since that
        became known."""
        if self._idle_ms < 0:
            return False
        if not queue.at_end:
            queue.idle_since = None
            return True
        if queue.idle_since is None:
            queue.idle_since = now_ms
        return now_ms - queue.idle_since < self._idle_ms


_LATE = 1 << 63


def _up_to(timestamps: list[int], start: int, stop: int, largest: int) -> int:
    """The end of the stretch from `start` whose timestamps are all `largest` at most; at least one row."""
    row = start + 1
    while row < stop and timestamps[row] <= largest:
        row += 1
    return row
