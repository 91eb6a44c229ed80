"""Restore of stores from their changelogs, and update of copies: one loop with one consumer for all stores of a worker that are behind.

Kafka Streams has a changelog reader, a state updater thread and a standby task for this. Here a store has a partition, a position and an
end; its task matters only for reporting when that task is complete. A standby or a learner is the same with a growing end: it is
*followed*. The loop runs on the worker's thread and does a bounded amount of work per step, so complete tasks process while others restore.
Followers wait while an active task restores, as in Kafka Streams, because its output is waiting.

Records are folded by key as they are read (`folding.py`), and the result is written in bulk with its offset, so after a kill at any moment
the store continues from there. Rejected, by measurement (`python -m benchmarks restore`, docs/benchmarks.md): a write per poll, which takes
more than twice as long; SST files and ingestion, which save less than the difference between two runs of the same program where keys are
repeated, since a write is a tenth of a restore then, and which cannot be atomic with the offset.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.runtime.changelog.following import POLL_SECONDS, Following
from penstock.runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener, SuspendReason
from penstock.runtime.changelog.progress import UPDATE_MS, RestoreProgress, TaskProgress, TaskRestore
from penstock.runtime.changelog.reading import Reading, offset_of
from penstock.runtime.changelog.staleness import Changelog, mark_at_end, recreation_reason, stale_reason
from penstock.runtime.kafka.clients import ClientProperties
from penstock.runtime.kafka.log_reader import LogReader, Poll
from penstock.runtime.kafka.topic_watch import Observation, TopicWatch, TopicWatcher
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import TaskCorruptedError
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import TASK, Metrics
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.stores.budget import DEFAULT_READ_CACHE_BYTES
from penstock.runtime.stores.process_memory import return_free_memory

if TYPE_CHECKING:
    from penstock.runtime.kafka.messages import Message

log = logging.getLogger(__name__)

_LONGEST_MS = 5_000
"""Longest time between writes: a kill loses at most this much work."""
_MOST_KEYS = 100_000
"""Limit of keys per write, which blocks the worker for about 0.1 s."""
_STEP_MS = 20
"""Reading time of a step: half the processing time in a turn of a busy worker."""
_FOLLOW_MS = 200
"""As `_LONGEST_MS`, for a follower, whose task may be promoted at any moment."""

DescribeChangelogs = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, Changelog]]
"""Returns the current facts about changelogs. Raises StreamsError if no broker answers."""


class Restorer:
    """Restores and follows the stores of any number of tasks with one consumer. Used by one thread."""

    def __init__(
        self,
        properties: ClientProperties,
        clock: Clock,
        metrics: Metrics,
        events: EventSink,
        listeners: Iterable[StateRestoreListener] = (),
        *,
        standby_listeners: Iterable[StandbyUpdateListener] = (),
        describe: DescribeChangelogs | None = None,
        watcher: TopicWatcher | None = None,
        most_bytes: int = DEFAULT_READ_CACHE_BYTES,
    ) -> None:
        """`properties`: `StreamsConfig.consumer_properties("restore")`. `most_bytes`: approximate memory of records before they are
        written (`StoreMemory.restore_bytes`). `watcher` (default: a new one) calls `describe` every few seconds, because topics may be
        created again while they are read. Without `describe` that is not noticed, and `follow` is refused. No connection is made before the
        first `add` or `follow`."""
        self._properties = properties
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._listeners = tuple(listeners)
        self._standby_listeners = tuple(standby_listeners)
        self._describe = describe
        self._watcher = watcher or TopicWatcher(clock)
        self._most_bytes = most_bytes
        self.held_bytes = 0
        """Approximate bytes of the records not written yet; any thread may read it."""
        self._watch: TopicWatch[Mapping[TopicPartition, Changelog]] | None = None
        self._reader: LogReader | None = None
        self._readings: dict[TopicPartition, Reading] = {}
        self._waiting: dict[TaskId, int] = {}
        self._begun: dict[TaskId, TaskRestore] = {}
        self._updated_ms = 0
        self._following: set[TaskId] = set()
        self._promoted: set[TaskId] = set()
        """Restoring tasks that were followers."""

    # --- adding and removing tasks ----------------------------------------------------------------------------------------------

    def add(self, task: TaskId, stores: Sequence[tuple[EngineStore, Changelog]]) -> None:
        """Start the restore of all stores of a task, each from its own offset or, if its content is stale, wiped and from the log's start.
        Reads nothing yet; a task with nothing to restore is returned by the next `step`."""
        self._waiting[task] = 0
        started: dict[str, object] = {}
        remaining = 0
        for store, changelog in stores:
            start = self._begin_restore(task, store, changelog)
            remaining += changelog.end - start
            started[store.name] = _started(changelog, start)
        if not stores:
            return
        self._metrics.counter("restore-total", TASK, task_id=str(task))
        restore = TaskRestore(task, remaining, self._clock, self._metrics, self._events)
        if self._waiting[task]:
            self._begun[task] = restore
            self._events.emit(EventKind.RESTORE_STARTED, {"stores": started}, task)

    def _begin_restore(self, task: TaskId, store: EngineStore, changelog: Changelog) -> int:
        start, partition = self._prepare(task, store, changelog), changelog.partition
        complete = start == changelog.end or changelog.end == 0
        position = changelog.end if complete else start or NextOffset(0)
        for listener in self._listeners:
            listener.on_restore_start(partition, store.name, position, changelog.end)
        if complete:
            mark_at_end(store, changelog.topic_id, self._clock.wall_ms())
            store.commit({partition: changelog.end})
            for listener in self._listeners:
                listener.on_restore_end(partition, store.name, 0)
        else:
            self._readings[partition] = Reading(task, store, changelog, position, None)
            self._waiting[task] += 1
            self._watch_topics()
            self._open_reader().assign(partition, start)
        return position

    def _prepare(self, task: TaskId, store: EngineStore, changelog: Changelog) -> NextOffset | None:
        """Wipe a stale store. Return the offset to read from, None for the log's start."""
        now_ms = self._clock.wall_ms()
        reason = stale_reason(store, changelog, now_ms)
        if reason is not None:
            log.warning("task %s: store %s is wiped and restored: %s", task, store.name, reason)
            store.wipe()
        start = store.committed_offset(changelog.partition)
        if start is None and changelog.end > 0:
            # Until the end is reached, the store is as old as the moment at which reading began.
            mark_at_end(store, changelog.topic_id, now_ms)
            store.commit({})
        return start

    def follow(self, task: TaskId, stores: Sequence[tuple[EngineStore, Changelog]]) -> None:
        """As `add`, for a standby or a learner: never complete, it keeps applying new changelog records until `remove`.

        A batch is written every 200 ms. While an active task restores, followers are not read.
        """
        assert self._describe is not None, "following needs `describe`"
        self._following.add(task)
        for store, changelog in stores:
            start = self._prepare(task, store, changelog)
            position = start or NextOffset(0)
            self._readings[changelog.partition] = Reading(task, store, changelog, position, Following(changelog, changelog.end))
            for listener in self._standby_listeners:
                listener.on_update_start(changelog.partition, store.name, position)
        self._watch_topics()

    def promote(self, task: TaskId, stores: Sequence[tuple[EngineStore, Changelog]]) -> None:
        """Make a follower active: as `add`, but reading continues at its position, so that only the latest records are missing."""
        if any(not self._may_continue(changelog) for _, changelog in stores):
            self.remove(task, promoted=True)
            self.add(task, stores)
            return
        self._following.discard(task)
        self._promoted.add(task)
        readings = [(self._readings[changelog.partition], changelog) for _, changelog in stores]
        for reading, _ in readings:
            self._notify_suspended(reading, SuspendReason.PROMOTED)
            self._write(reading, reading.position)
        self._waiting[task] = len(readings)
        remaining = sum(max(0, changelog.end - reading.position) for reading, changelog in readings)
        self._begun[task] = TaskRestore(task, remaining, self._clock, self._metrics, self._events)
        started = {reading.store.name: _started(changelog, reading.position) for reading, changelog in readings}
        self._events.emit(EventKind.RESTORE_STARTED, {"stores": started}, task)
        for reading, changelog in readings:
            reading.log = replace(changelog, end=max(changelog.end, reading.position))
            reading.following, reading.records = None, 0
            for listener in self._listeners:
                listener.on_restore_start(changelog.partition, reading.store.name, reading.position, reading.log.end)
            if reading.position >= reading.log.end:
                self._complete(reading)
            elif changelog.partition not in self._open_reader().assigned:
                self._open_reader().assign(changelog.partition, reading.position or None)
        self._watch_topics()

    def _may_continue(self, changelog: Changelog) -> bool:
        """Return True if a follower of this changelog may continue at its position."""
        reading = self._readings.get(changelog.partition)
        if reading is None or reading.following is None or reading.log.topic_id != changelog.topic_id:
            return False
        return reading.following.gap(self._clock.wall_ms()) is None

    def _notify_suspended(self, reading: Reading, reason: SuspendReason) -> None:
        partition, store = reading.log.partition, reading.store
        for standby in self._standby_listeners:
            standby.on_update_suspended(partition, store.name, (store.committed_offset(partition) or 0) - 1, reading.end, reason)

    def _watch_topics(self) -> None:
        if self._watch is not None:
            self._watch.discard()  # the caller's descriptions of the changelogs are newer
        elif (describe := self._describe) is not None:
            self._watch = self._watcher.watch(lambda: describe(tuple(self._readings)), "changelog", POLL_SECONDS)
            self._watch.start()

    def _open_reader(self) -> LogReader:
        if self._reader is None:
            self._reader = LogReader(self._properties, "restore")
        return self._reader

    def remove(self, task: TaskId, promoted: bool = False) -> None:
        """Stop reading for a task that is closed, revoked, or (`promoted`) becomes active. Records not written yet are dropped; written
        ones stay, with their offset."""
        for reading in [reading for reading in self._readings.values() if reading.task == task]:
            self._drop(reading)
            partition, store = reading.log.partition, reading.store
            if reading.following is None:
                for listener in self._listeners:
                    listener.on_restore_suspended(partition, store.name, reading.records)
            else:
                self._notify_suspended(reading, SuspendReason.PROMOTED if promoted else SuspendReason.MIGRATED)
        self._waiting.pop(task, None)
        self._promoted.discard(task)
        if (begun := self._begun.pop(task, None)) is not None:
            begun.suspend()
        self._following.discard(task)

    def _drop(self, reading: Reading) -> None:
        del self._readings[reading.log.partition]
        if self._reader is not None:
            self._reader.unassign(reading.log.partition)

    # --- reading ----------------------------------------------------------------------------------------------------------------

    def step(self, timeout: float) -> list[TaskId]:
        """Read for about 20 ms, or less if there is nothing (waiting at most `timeout` seconds for the first record). Return the tasks that
        are complete now.

        Raises TaskCorruptedError for tasks whose position is no longer on their changelog, or whose changelog is another topic
        now: these are removed, the others continue with the next step. Raises StreamsError if a changelog cannot be read at all.
        """
        if self._watch is not None and (observation := self._watch.take()) is not None:
            self._apply_observation(observation)
        if self._following:
            self._arrange_followers()
        moved = False
        until_ms = self._clock.monotonic_ms() + _STEP_MS
        while self._reader is not None and self._reader.assigned:
            poll = self._reader.poll(0 if moved else timeout)
            self._take(poll)
            if not poll.runs:
                break
            moved = True
            if self._clock.monotonic_ms() >= until_ms:
                break
        self._update_progress()
        finished = [task for task, stores in self._waiting.items() if stores == 0]
        for task in finished:
            del self._waiting[task]
            self._promoted.discard(task)
            if (begun := self._begun.pop(task, None)) is not None:
                begun.end()
        if finished and not self._waiting:
            self.held_bytes = sum(reading.batch.memory for reading in self._readings.values())
            return_free_memory()
        return finished

    def _update_progress(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if not self._begun or now_ms - self._updated_ms < UPDATE_MS:
            return
        self._updated_ms = now_ms
        sums = {task: [begun.done, 0] for task, begun in self._begun.items()}
        for reading in self._readings.values():
            if reading.following is None:
                of_task = sums[reading.task]
                of_task[0] += reading.records
                of_task[1] += max(0, reading.log.end - reading.position)
        for task, (records, remaining) in sums.items():
            self._begun[task].update(records, remaining)

    def _arrange_followers(self) -> None:
        """Read followers only while no active task restores, apart from promoted followers, which complete at once. A source topic is not
        read beyond the committed offset."""
        reader = self._open_reader()
        wait = any(stores for task, stores in self._waiting.items() if task not in self._promoted)
        for partition, reading in self._readings.items():
            wanted = not wait and not reading.has_all
            if reading.has_all and reading.batch.since_ms is not None:
                self._write(reading, reading.position)  # the batch will not grow
            if reading.following is not None and (partition in reader.assigned) is not wanted:
                if wanted:
                    reader.assign(partition, reading.position or None)
                else:
                    reader.unassign(partition)

    def _apply_observation(self, observation: Observation[Mapping[TopicPartition, Changelog]]) -> None:
        reasons: dict[TaskId, list[str]] = {}
        for partition, seen in observation.facts.items():
            if (reading := self._readings.get(partition)) is not None:
                reason = recreation_reason(seen, reading.log.topic_id)
                if reason is not None:
                    reasons.setdefault(reading.task, []).append(f"store {reading.store.name}: {reason}")
                elif reading.following is not None:
                    reading.following.take_answer(seen, observation.asked_ms)
        self._give_up(reasons)

    def _take(self, poll: Poll) -> None:
        now_ms = self._clock.monotonic_ms()
        reasons: dict[TaskId, list[str]] = {}
        for partition, messages in poll.runs.items():
            if (reading := self._readings.get(partition)) is not None:
                if reading.following is None:
                    self._take_run(reading, messages, now_ms)
                elif (reason := reading.following.gap(self._clock.wall_ms())) is not None:
                    reasons.setdefault(reading.task, []).append(f"store {reading.store.name}: {reason}")
                else:
                    self._follow_run(reading, messages, now_ms)
        for partition, offset in poll.ends.items():
            if (reading := self._readings.get(partition)) is not None:
                self._take_end(reading, offset, now_ms)
        for reading in list(self._readings.values()):
            if reading.task not in reasons:
                self._write_if_due(reading, now_ms)
        self.held_bytes = sum(reading.batch.memory for reading in self._readings.values())
        if self.held_bytes > self._most_bytes:
            largest = max(self._readings.values(), key=lambda reading: reading.batch.memory)
            self._write(largest, largest.position)
        for partition, lost in poll.out_of_range.items():  # last: the poll's records of other changelogs will not come again
            if (reading := self._readings.get(partition)) is not None:
                reason = f"store {reading.store.name} is at offset {lost} of {partition}, which is no longer there"
                reasons.setdefault(reading.task, []).append(reason)
        self._give_up(reasons)

    def _take_run(self, reading: Reading, messages: Sequence[Message], now_ms: int) -> None:
        next_offset = NextOffset(offset_of(messages[-1]) + 1)
        reached = next_offset >= reading.log.end
        if next_offset > reading.log.end:
            # A source topic that serves as changelog grows while it is read; records beyond the end are the task's input.
            messages = messages[: bisect_left(messages, int(reading.log.end), key=offset_of)]
        if messages:
            reading.take(messages, now_ms)
        reading.position = next_offset
        if reached:
            self._complete(reading)

    def _follow_run(self, reading: Reading, messages: Sequence[Message], now_ms: int) -> None:
        end = reading.log.end if reading.following is None else reading.following.end
        if reading.log.source is None or offset_of(messages[-1]) < end:
            reading.take(messages, now_ms)
            return
        if within := messages[: bisect_left(messages, int(end), key=offset_of)]:
            reading.take(within, now_ms)
        self._pass_to(reading, end, now_ms)

    def _take_end(self, reading: Reading, offset: NextOffset, now_ms: int) -> None:
        """Handle the end of the log: control records and aborted records before it are passed too."""
        if reading.log.source is not None and reading.following is not None:
            self._pass_to(reading, min(offset, reading.following.end), now_ms)
            return
        if offset > reading.position:
            reading.position = offset
            reading.batch.touch(now_ms)
        if reading.following is None and offset >= reading.log.end:
            self._complete(reading)

    def _pass_to(self, reading: Reading, offset: NextOffset, now_ms: int) -> None:
        """Advance a follower of a source topic to the committed offset."""
        if offset > reading.position:
            reading.position = offset
            reading.batch.touch(now_ms)

    def _write_if_due(self, reading: Reading, now_ms: int) -> None:
        following = reading.following
        if reading.batch.is_due(now_ms, _LONGEST_MS if following is None else _FOLLOW_MS, _MOST_KEYS):
            self._write(reading, reading.position)
        elif following is not None and reading.batch.since_ms is None and following.settle(reading.store, reading.position):
            reading.store.commit({reading.log.partition: reading.position})
            following.marked()

    def _write(self, reading: Reading, next_offset: NextOffset) -> None:
        following, records, partition = reading.following, reading.batch.records, reading.log.partition
        if following is not None:
            following.settle(reading.store, next_offset)
        reading.store.restore(reading.batch.take(), {partition: next_offset})
        name = "restore-total" if following is None else "update-total"
        self._metrics.counter(name, TASK, task_id=str(reading.task)).add(records)
        if following is not None:
            following.marked()
        if records:
            self._notify_written(reading, records)

    def _notify_written(self, reading: Reading, records: int) -> None:
        partition, store = reading.log.partition, reading.store.name
        if reading.following is None:
            for listener in self._listeners:
                listener.on_batch_restored(partition, store, reading.last, records)
        else:
            for standby in self._standby_listeners:
                standby.on_batch_loaded(partition, store, reading.task, reading.last, records, reading.end)

    def _complete(self, reading: Reading) -> None:
        # Before the write, so that it lands in the same batch. The offset is the end itself: the position is beyond the markers and aborted
        # records before it, too.
        mark_at_end(reading.store, reading.log.topic_id, self._clock.wall_ms())
        self._write(reading, reading.log.end)
        reading.store.commit({reading.log.partition: reading.log.end})
        self._drop(reading)
        self._waiting[reading.task] -= 1
        self._begun[reading.task].done += reading.records
        for listener in self._listeners:
            listener.on_restore_end(reading.log.partition, reading.store.name, reading.records)

    def _give_up(self, reasons: Mapping[TaskId, Sequence[str]]) -> None:
        for task in reasons:
            self.remove(task)
        if reasons:
            raise TaskCorruptedError(reasons, "; ".join(text for texts in reasons.values() for text in texts))

    # --- queries ----------------------------------------------------------------------------------------------------------------

    @property
    def restoring(self) -> frozenset[TaskId]:
        """Tasks in restore."""
        return frozenset(self._waiting)

    @property
    def following(self) -> frozenset[TaskId]:
        """Standbys and learners."""
        return frozenset(self._following)

    def lag(self, task: TaskId) -> int | None:
        """Return the records between the position and the last known ends of the task's changelogs; None for a task that is neither
        restored nor followed. Makes no request: ends come with each fetch, and every few seconds while a follower waits."""
        if task not in self._waiting and task not in self._following:
            return None
        self._update_ends()
        return sum(reading.end - reading.position for reading in self._readings.values() if reading.task == task)

    def _update_ends(self) -> None:
        if self._reader is not None:
            for partition, reading in self._readings.items():
                if reading.following is not None and reading.log.source is None and partition in self._reader.assigned:
                    reading.following.end = max(reading.following.end, self._reader.known_end(partition))

    def task_progress(self, task: TaskId) -> TaskProgress | None:
        """Return the progress of a task's restore, at most 0.5 s old; None if it does not restore."""
        begun = self._begun.get(task)
        return None if begun is None else begun.progress

    def progress(self) -> list[RestoreProgress]:
        """Return the progress of every store that is restored or followed."""
        self._update_ends()
        return [
            RestoreProgress(
                each.task, each.store.name, each.log.partition, each.position, each.end, each.records, each.following is not None
            )
            for each in self._readings.values()
        ]

    def close(self) -> None:
        """Suspend all restores. They continue from the last write when they are added again."""
        for task in [*self._waiting, *self._following]:
            self.remove(task)
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _started(changelog: Changelog, start: int) -> dict[str, object]:
    """Return the fields of RESTORE_STARTED for one store."""
    return {"topic": changelog.partition.topic, "partition": changelog.partition.partition, "from": start, "to": changelog.end}
