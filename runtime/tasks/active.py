"""An active task: a sub-topology, one partition of its input, its stores, and how far it has come (Kafka Streams' `StreamTask`).

    CREATED ──open──► RESTORING ──begin──► RUNNING ◄──► PAUSED
                                             │ rollback: back to the last commit, then begin again

The task knows nothing of the broker. It is given raw messages, says what to commit, and is told when that was committed. What it cannot
decide alone is left in two places that the worker looks at after each turn: `pause_wanted` (a handler said PAUSE: commit, then pause) and
the exceptions it raises.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runtime.changelog.staleness import mark_at_end
from runtime.changelog.writer import ChangelogWriter
from runtime.commit.metadata import OffsetAndMetadata, decode_partition_time, decode_processors, encode_partition_time
from runtime.commit.order import ChangelogRows
from runtime.errors import ProcessingError, StreamsError, TransactionAbortedError
from runtime.handlers import DeserializationHandlerResponse, ProcessingHandlerResponse
from runtime.ids import NextOffset, Partition
from runtime.intake.queues import PartitionQueue, Run, TaskQueues
from runtime.intake.verdict import Batch, RawMessage, error_context, judge, punctuation_context
from runtime.metrics import TASK
from runtime.states import TaskState, check_task_move
from runtime.stores.base import EngineStore
from runtime.tasks.follower import FollowerTask
from runtime.tasks.incidents import Incidents, PausePoint
from runtime.tasks.kept import keep_inputs_at_end, keep_times, kept_at_end_ms, kept_inputs, kept_partition_time, kept_stream_time
from runtime.tasks.plan import TaskPlan
from runtime.timestamps import ConsumerRecord
from runtime.topology.pipeline import Pipeline, compile_pipeline

logger = logging.getLogger(__name__)


class ReplayBeforePauseError(TransactionAbortedError):
    """A processing handler said PAUSE: everything goes back to the last commit, and the task processes again up to the record
    (rules.md, 18)."""


class ActiveTask:
    """One active task. Belongs to the worker's thread."""

    def __init__(self, plan: TaskPlan, incidents: Incidents) -> None:
        self.id = plan.task_id
        self.state = TaskState.CREATED
        self.plan = plan
        self.pause_wanted: PausePoint | None = None
        """A handler said PAUSE: the worker commits, then calls `pause()`."""
        self.paused_at: PausePoint | None = None
        self.committed_offsets: dict[Partition, OffsetAndMetadata] = {}
        """What this task committed last, or found committed when it began."""
        self.reset_positions: dict[Partition, NextOffset] = {}
        """Where `auto.offset.reset` began partitions without a committed offset: kept, since `latest` would be later each time."""
        self.moved: dict[Partition, tuple[NextOffset, NextOffset]] = {}
        """Partitions that began somewhere else than where this task's work ended (from, to): somebody has moved their committed offsets."""
        self.remade: set[Partition] = set()
        """Partitions whose topic was deleted and made anew while this task did not read it: its offsets mean nothing there."""
        self.topic_ids: Mapping[str, str] = {}
        """Id of each changelog topic, by name (rules.md, 13); set by the worker before the restore."""
        self.stores: dict[str, EngineStore] = {}
        self.queues: TaskQueues | None = None
        self.stream_time = -1
        self.was_caught_up = False
        """True for one that was a whole copy when it became active: it misses a moment at most."""
        self.committed_ms = 0
        self.checkpoint_ms: int | None = None
        self._checkpointed: int | None = None
        self._incidents = incidents
        self._processed = plan.metrics.counter("process-total", TASK, task_id=str(plan.task_id))
        self._pipeline: Pipeline | None = None
        self._stop_before: PausePoint | None = None
        self._writer: ChangelogWriter | None = None
        self._dirty = False

    def _move(self, new: TaskState) -> None:
        self.state = check_task_move(self.state, new)

    # -- life ------------------------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Partition, ...]:
        """The input partitions."""
        return self.plan.inputs

    def _record_time(self) -> int:
        return self._context.timestamp if self._pipeline is not None else 0

    def open(self) -> list[EngineStore]:
        """Opens the stores. Returns those whose files were damaged and that are empty now. CREATED → RESTORING."""
        self.stores, wiped = self.plan.open_stores(self._record_time)
        self._writer = ChangelogWriter(self.plan.application_id, self.id, list(self.stores.values()))
        self._move(TaskState.RESTORING)
        return wiped

    def take_over(self, follower: FollowerTask) -> None:
        """In place of `open`: the stores of a standby or learner, open as they are. CREATED → RESTORING."""
        self.plan = replace(self.plan, lock=follower.plan.lock)
        self.stores, self.was_caught_up = follower.hand_over(), follower.caught_up
        follower.record_time = self._record_time
        self.checkpoint_ms, self._checkpointed = follower.checkpoint_ms, follower.checkpoint_position
        self._writer = ChangelogWriter(self.plan.application_id, self.id, list(self.stores.values()))
        self._move(TaskState.RESTORING)

    @property
    def changelogs(self) -> dict[str, Partition]:
        """Changelog partition by store name, of the stores that have one."""
        return {} if self._writer is None else self.plan.changelogs

    @property
    def position(self) -> int:
        """Sum of the next offsets of its changelogs."""
        return sum(self.stores[name].committed_offset(changelog) or 0 for name, changelog in self.changelogs.items())

    def stored_inputs(self) -> dict[Partition, NextOffset]:
        """The input offsets that the stores were last committed with: the largest of each partition."""
        return kept_inputs(self.stores, self.inputs)

    def committed_positions(self) -> dict[Partition, NextOffset]:
        """The next offset to read of each input partition, as of the last commit."""
        return {**self.reset_positions, **{partition: NextOffset(at.offset) for partition, at in self.committed_offsets.items()}}

    def committed_times(self) -> dict[Partition, int]:
        """The partition time of each input, as of the last commit."""
        return {partition: self._time_of(partition, self.committed_offsets.get(partition)) for partition in self.inputs}

    def committed_stream_time(self) -> int:
        """The task's stream time as of the last commit."""
        return max(kept_stream_time(self.stores), *self.committed_times().values())

    def holds_state(self) -> bool:
        """True if a logged store has an entry."""
        return any(self.stores[name].has_entries() for name in self.changelogs)

    def begin(self, committed: Mapping[Partition, OffsetAndMetadata], starts: Mapping[Partition, NextOffset]) -> None:
        """Takes up processing at `starts`, with new processors. `committed` is what the group holds. RESTORING or PAUSED → RUNNING;
        also after `rollback`."""
        self._found(committed, starts)
        times = {partition: self._time_of(partition, committed.get(partition)) for partition in self.inputs}
        self.stream_time = max(self.stream_time, kept_stream_time(self.stores), *times.values())
        self.queues = TaskQueues(
            [
                PartitionQueue(partition, self.plan.decoder(partition.topic), starts[partition], times[partition])
                for partition in self.inputs
            ],
            self.plan.max_task_idle_ms,
        )
        if self._stop_before is not None:
            self.queues[self._stop_before.partition].stop_before = self._stop_before.offset
        self._compile()
        if self.state is not TaskState.RUNNING:
            self._move(TaskState.RUNNING)

    def _found(self, committed: Mapping[Partition, OffsetAndMetadata], starts: Mapping[Partition, NextOffset]) -> None:
        ours = {**self.stored_inputs(), **{partition: NextOffset(at.offset) for partition, at in self.committed_offsets.items()}}
        self.moved = {
            partition: (ours[partition], starts[partition])
            for partition in committed
            if ours.get(partition, starts[partition]) != starts[partition]
        }
        self.committed_offsets = dict(committed)
        self.reset_positions = {partition: starts[partition] for partition in self.inputs if partition not in committed}

    def _compile(self) -> None:
        context = self.plan.context(self.stores, self.stream_time)
        for at in self.committed_offsets.values():
            for name, time in decode_processors(at.metadata).items():
                context.carried[name] = max(time, context.carried.get(name, -1))
        self._pipeline = compile_pipeline(self.plan.subtopology, context, self._goes_on)
        self._context = context
        self._become_current()
        self._pipeline.init()
        self._release()

    def _time_of(self, partition: Partition, committed: OffsetAndMetadata | None) -> int:
        """Partition time: of the committed metadata or of the stores, whichever is later (rules.md, 17)."""
        return max(decode_partition_time(committed.metadata if committed else None), kept_partition_time(self.stores, partition))

    def rollback(self) -> None:
        """Forgets everything since the last commit: staged updates, queues, processors (rules.md, 10). `begin` follows."""
        self._close_pipeline(quietly=True)
        self.plan.collector.drop()
        for store in self.stores.values():
            store.rollback()
        self.queues = None
        self.pause_wanted = None
        self._dirty = False
        self.stream_time = kept_stream_time(self.stores)

    def _close_pipeline(self, *, quietly: bool) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is None:
            return
        try:
            pipeline.close()
        except Exception:
            if not quietly:
                raise
            logger.exception("task %s: a processor failed to close", self.id, extra={"task": self.id})

    def close(self, *, clean: bool) -> None:
        """Closes processors and stores. Clean means that everything was committed; anything that was not is dropped. Safe to call twice."""
        if self.state is TaskState.CLOSED:
            return
        try:
            self._close_pipeline(quietly=not clean)
        finally:
            try:
                if clean and self.stores:
                    self._save()
            finally:  # also when the disk takes no checkpoint
                for store in self.stores.values():
                    store.close()
                self.plan.lock.release()
                self._move(TaskState.CLOSED)
                self.plan.metrics.remove(task_id=str(self.id))

    def _save(self) -> None:
        """What a clean end leaves: the inputs' ends, which were often seen after the commit, and a checkpoint."""
        now_ms = self.plan.clock.wall_ms()
        for store in self.stores.values():
            keep_inputs_at_end(store, self.queues or (), now_ms)
            store.commit({})
        self.checkpoint(now_ms)

    # -- processing ------------------------------------------------------------------------------------------------------------

    def add(self, partition: Partition, messages: Sequence[RawMessage]) -> None:
        """What was read of an input partition, in order."""
        if self.queues is not None:
            self.queues[partition].add(messages)

    def process(self, limit: int, now_ms: int) -> int:
        """Processes at most about `limit` records in the task's order. Returns how many; 0 if there is nothing, if input has to be
        waited for, or if `pause_wanted` is set now.

        Raises DeserializationError or ProcessingError where a handler said FAIL, ReplayBeforePauseError, and what the collector raises.
        """
        queues, pipeline = self.queues, self._pipeline
        if queues is None or pipeline is None or self.state is not TaskState.RUNNING or self.pause_wanted is not None:
            return 0
        self._become_current()
        done = 0
        while done < limit:
            run = queues.next_run(limit - done, now_ms)
            if run is None:
                if not self._unblock(queues):
                    break
                continue
            done += self._process_run(pipeline, run)
        self._count_dropped(queues)
        if done:
            self._dirty = True
            self.stream_time = self._context.stream_time
            self._processed.add(done)
        return done

    def _process_run(self, pipeline: Pipeline, run: Run) -> int:
        queue, batch, start, stop = run
        context = self._context
        context.topic, context.partition = queue.partition
        self._incidents.batch = batch
        if self.plan.hold_outputs:
            return self._process_held(pipeline, run)
        try:
            pipeline.process_run(
                queue.partition.topic, batch.keys, batch.values, batch.timestamps, batch.headers, batch.offsets, start, stop
            )
        except ProcessingError as error:
            return self._failed(queue, batch, start, error)
        queue.take(batch, stop)
        return stop - start

    def _count_dropped(self, queues: TaskQueues) -> None:
        """Records that an extractor gave a negative timestamp."""
        for queue in queues:
            if queue.dropped:
                self._incidents.dropped(self.id, queue.dropped)
                queue.dropped = 0

    def _process_held(self, pipeline: Pipeline, run: Run) -> int:
        """Under at-least-once with a handler that may PAUSE: a record's outputs are released when its chain has returned (rules.md, 18)."""
        queue, batch, start, stop = run
        collector = self.plan.collector
        for row in range(start, stop):
            try:
                pipeline.process_run(
                    queue.partition.topic, batch.keys, batch.values, batch.timestamps, batch.headers, batch.offsets, row, row + 1
                )
            except ProcessingError as error:
                collector.drop()
                return row - start + self._failed(queue, batch, row, error)
            collector.release()
            queue.take(batch, row + 1)
        return stop - start

    def _release(self) -> None:
        """What punctuators and caches sent belongs to no record that could still fail."""
        if self.plan.hold_outputs:
            self.plan.collector.release()

    def _become_current(self) -> None:
        """An output that is refused from now on is this task's."""
        self._incidents.task, self._incidents.current = self.id, self._context

    def _failed(self, queue: PartitionQueue, batch: Batch, start: int, error: ProcessingError) -> int:
        """The user's code raised on a record: those before it are done, the handler decides on it. Returns the records passed."""
        row = error.index
        if row is None:
            raise error
        if row > start:
            queue.take(batch, row)
        message = batch.messages[row]
        record = ConsumerRecord(
            queue.partition.topic,
            queue.partition.number,
            batch.offsets[row],
            batch.timestamps[row],
            batch.keys[row],
            batch.values[row],
            None if batch.headers is None else batch.headers[row],
        )
        context = error_context(message, self.id, error.node)
        response = self._incidents.ask_processing(context, record, error)
        if response is ProcessingHandlerResponse.FAIL:
            raise error
        if response is ProcessingHandlerResponse.PAUSE:
            self._stop_before = PausePoint.of(message, error, "processing")
            raise ReplayBeforePauseError(f"task {self.id} goes back to pause before {queue.partition}@{message.offset()}") from error
        self._incidents.skipped(self.id, message, error)
        queue.skip_row()
        return row - start + 1

    def _unblock(self, queues: TaskQueues) -> bool:
        """Asks the handler about a record that cannot be read and is next. True if processing may go on."""
        queue = queues.blocked()
        if queue is None:
            return False
        failure = queue.failure
        if failure is None:
            self._want_pause(queue, self._stop_before)
            return False
        response = judge(self._incidents.deserialization, failure, self.id)
        if response is DeserializationHandlerResponse.FAIL:
            raise failure.error
        if response is DeserializationHandlerResponse.PAUSE:
            self._want_pause(queue, PausePoint.of(failure.message, failure.error, "deserialization"))
            return False
        self._incidents.skipped(self.id, failure.message, failure.error)
        queue.skip_failure()
        self._dirty = True
        return True

    def _want_pause(self, queue: PartitionQueue, point: PausePoint | None) -> None:
        if point is None:
            raise StreamsError(f"task {self.id}: {queue.partition} is stopped for no reason that is known")
        # The bad record's own offset, whatever lies between it and the last good one (rules.md, 16).
        queue.next_offset = NextOffset(point.offset)
        self.pause_wanted = point

    def punctuate(self, now_ms: int) -> int:
        """Runs the punctuators that are due; `now_ms` is wall-clock time. Returns how many ran."""
        if self._pipeline is None or self.state is not TaskState.RUNNING or self.pause_wanted is not None:
            return 0
        self._become_current()
        ran = self._pipeline.punctuate(now_ms)
        self._release()
        if ran:
            self._dirty = True
        return ran

    def _goes_on(self, error: ProcessingError) -> bool:
        """The handler decides about a punctuator too (KIP-1033). There is no record that the task could pause before: PAUSE is FAIL."""
        context, record = punctuation_context(self.id, self._context.timestamp, error.node)
        if self._incidents.ask_processing(context, record, error) is not ProcessingHandlerResponse.CONTINUE:
            return False
        self._incidents.dropped(self.id, 1)
        return True

    # -- commit ----------------------------------------------------------------------------------------------------------------

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes staged in the stores, approximately."""
        return sum(store.approximate_num_uncommitted_bytes for store in self.stores.values())

    @property
    def commit_requested(self) -> bool:
        """True if the user's code called `context.commit()` since the last commit."""
        return self._pipeline is not None and self._context.commit_requested

    def flush_caches(self) -> None:
        """Forwards what the caches hold back, in topological order until none has anything. Raises ProcessingError: such an error
        belongs to no record, so no handler is asked (rules.md, 18)."""
        if self._pipeline is not None and self._dirty:
            self._become_current()
            self._pipeline.flush_caches()
            self._release()

    def pending_changelogs(self) -> Iterable[ChangelogRows]:
        """What is to be written to the changelogs."""
        return () if self._writer is None or not self._dirty else self._writer.pending()

    def prepare(self) -> None:
        """Makes what the stores will write at `committed`, while the broker takes the changelogs."""
        if self._dirty:
            for store in self.stores.values():
                store.prepare_commit()

    def offsets_to_commit(self) -> dict[Partition, OffsetAndMetadata]:
        """The next offset to process of each partition where it moved since the last commit; at a pause, of every partition."""
        if self.queues is None:
            return {}
        pausing, carried = self.pause_wanted is not None, self._context.carried
        offsets: dict[Partition, OffsetAndMetadata] = {}
        for queue in self.queues:
            known = self.committed_offsets.get(queue.partition)
            first = self._dirty or queue.next_offset > queue.start  # state is never committed without an offset for every input
            if pausing or (queue.next_offset != known.offset if known else first):
                offsets[queue.partition] = OffsetAndMetadata(queue.next_offset, encode_partition_time(queue.partition_time, carried))
        return offsets

    def committed(self, offsets: Mapping[Partition, OffsetAndMetadata], changelog_ends: Mapping[Partition, NextOffset]) -> None:
        """The broker has it: now the stores, data and offsets in one batch."""
        self.committed_offsets.update(offsets)
        for partition in offsets:
            self.reset_positions.pop(partition, None)
        if not offsets and not self._dirty:
            return
        now_ms = self.plan.clock.wall_ms()
        self.committed_ms = now_ms
        inputs = {partition: NextOffset(at.offset) for partition, at in self.committed_offsets.items()}
        changelogs = self.changelogs
        for name, store in self.stores.items():
            changelog = changelogs.get(name)
            ends = dict(inputs)
            if changelog is not None:
                if changelog in changelog_ends:
                    ends[changelog] = changelog_ends[changelog]
                if changelog.topic in self.topic_ids:
                    mark_at_end(store, self.topic_ids[changelog.topic], now_ms)
            keep_times(store, self.stream_time, self.queues or ())
            keep_inputs_at_end(store, self.queues or (), now_ms)
            store.commit(ends)
        self._dirty = False
        if self._pipeline is not None:
            self._context.commit_requested = False

    @property
    def unsaved(self) -> bool:
        """True if something was committed or restored since the last checkpoint."""
        return bool(self.stores) and (self.committed_ms > (self.checkpoint_ms or 0) or self.position != self._checkpointed)

    def at_end_ms(self, store: str, partition: Partition) -> int | None:
        """Wall-clock time at which a store was committed with all that an input partition had then; None if that is not known here."""
        return kept_at_end_ms(self.stores[store], partition)

    def checkpoint(self, now_ms: int) -> dict[str, dict[str, int]]:
        """Makes the stores durable on disk and writes `.checkpoint` (KIP-116). Returns the offsets by store and partition."""
        self.checkpoint_ms, self._checkpointed = now_ms, self.position
        return self.plan.checkpoint(self.stores, self.changelogs)

    # -- pause -----------------------------------------------------------------------------------------------------------------

    def pause(self, point: PausePoint) -> None:
        """RUNNING → PAUSED. What was read is dropped: `begin` reads from the committed offsets. The commit must have been made."""
        self._move(TaskState.PAUSED)
        self.paused_at, self.pause_wanted, self._stop_before = point, None, None
        if self.queues is not None:
            for queue in self.queues:
                queue.clear(queue.next_offset)

    def resume(self, committed: Mapping[Partition, OffsetAndMetadata], starts: Mapping[Partition, NextOffset]) -> None:
        """PAUSED → RUNNING at `starts`. Processors and their times stay as they are (rules.md, 17)."""
        self._found(committed, starts)
        self.paused_at = None
        if self.queues is not None:
            for queue in self.queues:
                queue.clear(starts[queue.partition])
        self._move(TaskState.RUNNING)
