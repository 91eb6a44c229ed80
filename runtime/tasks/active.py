"""Active task: a sub-topology on one partition of its input, with its stores and its position (Kafka Streams' `StreamTask`).

    CREATED ──open──► RESTORING ──begin──► RUNNING ◄──► PAUSED
                                             │ rollback: back to the last commit, then begin again

The task makes no request to brokers. It gets raw messages, returns the offsets to commit, and is called when they are committed. Decisions
of the worker are requested in two ways: `pause_wanted` (a handler returned PAUSE: commit, then pause) and exceptions.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from penstock.runtime.changelog import store_metadata
from penstock.runtime.changelog.writer import ChangelogRows, ChangelogWriter
from penstock.runtime.input.deserialization import Batch, RawMessage, ask_handler, error_context, punctuation_context
from penstock.runtime.input.queues import Merge, PartitionQueue, Run, TaskQueues
from penstock.runtime.model.errors import ProcessingError, StreamsError, TransactionAbortedError
from penstock.runtime.model.handlers import DeserializationHandlerResponse, ProcessingHandlerResponse
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.metrics import STATE, TASK
from penstock.runtime.model.offsets import OffsetAndMetadata, Strategy, decode_partition_time, decode_processors, encode_partition_time
from penstock.runtime.model.states import TaskKind, TaskState, check_task_move
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.tasks.follower import FollowerTask
from penstock.runtime.tasks.incidents import Incidents, PausePoint
from penstock.runtime.tasks.plan import TaskPlan
from penstock.runtime.topology.pipeline import Pipeline, compile_pipeline

logger = logging.getLogger(__name__)

TURN_MS = 40
"""Target duration of a turn's processing. After it, no further run is taken: slow user code must not hold up the worker for a whole batch,
nor its transaction."""
RUN_MS = 10
"""Target duration of a run."""
_MOST_AT_ONCE = 1 << 15

MERGED_BELOW = 8
"""Length of a run below which the runs of several partitions are merged: a merge costs a sort, a run some calls."""


class ReplayBeforePauseError(TransactionAbortedError):
    """A processing handler returned PAUSE: roll back to the last commit and process again up to the record (rules.md, 18)."""


class ActiveTask:
    """Active task. Used by the worker's thread only."""

    def __init__(self, plan: TaskPlan, incidents: Incidents) -> None:
        self.id = plan.task_id
        self.state = TaskState.CREATED
        self.plan = plan
        self.inputs = plan.inputs
        """The input partitions."""
        self._at_once = 1
        """Number of records that a run may have, so that it ends in time: 1 before it is known how long they take."""
        self.pause_wanted: PausePoint | None = None
        """Set when a handler returned PAUSE: the worker commits, then calls `pause()`."""
        self.paused_at: PausePoint | None = None
        self.committed_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        """Last committed offsets, of this task or found at its start."""
        self.reset_positions: dict[TopicPartition, NextOffset] = {}
        """Start offsets by `auto.offset.reset` of partitions without a committed offset; kept, since `latest` would move."""
        self.moved: dict[TopicPartition, tuple[NextOffset, NextOffset]] = {}
        """Partitions whose committed offsets were moved from outside: (end of this task's work, start)."""
        self.remade: set[TopicPartition] = set()
        """Partitions whose topic was deleted and created again while this task did not read it, so that its offsets are invalid."""
        self.topic_ids: Mapping[str, str] = {}
        """Id of each changelog topic, by name (rules.md, 13); set by the worker before the restore."""
        self.stores: dict[str, EngineStore] = {}
        self.changelogs: Mapping[str, TopicPartition] = {}
        """Changelog partition by name of a logged store; empty before the stores are open."""
        self.queues: TaskQueues | None = None
        self.stream_time = -1
        self.was_caught_up = self.was_a_copy = False
        """True if it was a caught-up copy, or any copy, when it became active."""
        self.committed_ms = 0
        self.checkpoint_ms: int | None = None
        self._checkpointed: int | None = None
        self._incidents = incidents
        self._processed = plan.metrics.counter("process-total", TASK, task_id=str(plan.task_id))
        self._paused_since = plan.metrics.gauge("paused-since-ms", TASK, task_id=str(plan.task_id))
        plan.metrics.gauge("task-kind", TASK, task_id=str(plan.task_id)).set(TaskKind.ACTIVE.number)
        self._pipeline: Pipeline | None = None
        self._stop_before: PausePoint | None = None
        self._writer: ChangelogWriter | None = None
        self._dirty = False
        self._continues = False
        self._reads_begun = False

    def _move(self, new: TaskState) -> None:
        self.state = check_task_move(self.state, new)

    # -- life ------------------------------------------------------------------------------------------------------------------

    def _record_time(self) -> int:
        return self._context.timestamp if self._pipeline is not None else 0

    def open(self) -> list[EngineStore]:
        """Open the stores. Return those that were damaged and are empty now. CREATED → RESTORING."""
        self.stores, wiped = self.plan.open_stores(self._record_time)
        self._stores_open()
        return wiped

    def _stores_open(self) -> None:
        self._writer = ChangelogWriter(
            self.plan.application_id, self.id, list(self.stores.values()), rolls_back=self.plan.changelogs_roll_back
        )
        self.changelogs = self.plan.changelogs  # derived from the topology's builders once, not at every commit
        for name, store in self.stores.items():
            self.plan.metrics.gauge_of("uncommitted-bytes", STATE, partial(_uncommitted, store), task_id=str(self.id), store=name)
        self._move(TaskState.RESTORING)

    def take_over(self, follower: FollowerTask) -> None:
        """Take the open stores of a standby or learner, instead of `open`. CREATED → RESTORING."""
        self.plan = replace(self.plan, lock=follower.plan.lock)
        self.stores, self.was_caught_up, self.was_a_copy = follower.hand_over(), follower.caught_up, True
        follower.record_time = self._record_time
        self.checkpoint_ms, self._checkpointed = follower.checkpoint_ms, follower.checkpoint_position
        self._stores_open()

    @property
    def position(self) -> int:
        """Sum of the next offsets of its changelogs."""
        return sum(self.stores[name].committed_offset(changelog) or 0 for name, changelog in self.changelogs.items())

    def stored_inputs(self) -> dict[TopicPartition, NextOffset]:
        """Return the input offsets stored with the last commit, the largest of each partition."""
        return store_metadata.stored_input_offsets(self.stores, self.inputs)

    def committed_positions(self) -> dict[TopicPartition, NextOffset]:
        """Return the next offset to read of each input partition, as of the last commit."""
        return {**self.reset_positions, **{partition: NextOffset(at.offset) for partition, at in self.committed_offsets.items()}}

    def processed_positions(self) -> dict[TopicPartition, NextOffset]:
        """Return the next offset to process of each input partition."""
        return self.committed_positions() if self.queues is None else {queue.partition: queue.next_offset for queue in self.queues.all}

    def committed_times(self) -> dict[TopicPartition, int]:
        """Partition time of each input, as of the last commit."""
        return {partition: self._time_of(partition, self.committed_offsets.get(partition)) for partition in self.inputs}

    def committed_stream_time(self) -> int:
        """Return the stream time as of the last commit."""
        return max(store_metadata.stored_stream_time(self.stores), *self.committed_times().values())

    def ever_held_state(self) -> bool:
        """Return True unless nothing was ever written to any store: all are logged, and their changelogs had no record."""
        return len(self.changelogs) < len(self.stores) or any(
            self.stores[name].committed_offset(changelog) for name, changelog in self.changelogs.items()
        )

    def holds_state(self) -> bool:
        """Return True if a logged store has state."""
        return any(self.stores[name].has_state() for name in self.changelogs)

    def missed_inputs(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[str, dict[TopicPartition, NextOffset | None]]:
        """Return the stores without a changelog whose content is older than the group's offsets, with their own offset of each such input;
        None for an input of which they hold nothing. Nothing can restore what they lack."""
        found: dict[str, dict[TopicPartition, NextOffset | None]] = {}
        for name, store in self.stores.items():
            if name not in self.changelogs:
                own = {partition: store.committed_offset(partition) for partition in self.inputs if partition in committed}
                older = {partition: at for partition, at in own.items() if (at or 0) < committed[partition].offset}
                if older:
                    found[name] = older
        return found

    def begin(self, committed: Mapping[TopicPartition, OffsetAndMetadata], starts: Mapping[TopicPartition, NextOffset]) -> None:
        """Begin processing at `starts`, with new processors. `committed`: the group's offsets. RESTORING or PAUSED → RUNNING; also after
        `rollback`."""
        self._found(committed, starts)
        times = {partition: self._time_of(partition, committed.get(partition)) for partition in self.inputs}
        self.stream_time = max(self.stream_time, store_metadata.stored_stream_time(self.stores), *times.values())
        self.queues = TaskQueues(
            [
                PartitionQueue(partition, self.plan.decoder(partition.topic), starts[partition], times[partition])
                for partition in self.inputs
            ],
            self.plan.max_task_idle_ms,
        )
        for queue in self.queues.all:
            self._set_stop(queue)
        self._compile()
        self._continues = bool(committed)
        if self.state is not TaskState.RUNNING:
            self._move(TaskState.RUNNING)

    def _found(self, committed: Mapping[TopicPartition, OffsetAndMetadata], starts: Mapping[TopicPartition, NextOffset]) -> None:
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
                context.processor_metadata[name] = max(time, context.processor_metadata.get(name, -1))
        self._pipeline = compile_pipeline(self.plan.subtopology, context, self._continues_after, self._skips_deferred)
        self._context = context
        self._become_current()
        self._pipeline.init()
        self._release()

    def _time_of(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> int:
        """Return the partition time: the later one of the committed metadata and the stores (rules.md, 17)."""
        of_commit = decode_partition_time(committed.metadata if committed else None)
        return max(of_commit, store_metadata.stored_partition_time(self.stores, partition))

    def rollback(self) -> None:
        """Drop everything since the last commit: staged updates, queues, processors (rules.md, 10). `begin` follows."""
        self._close_pipeline(quietly=True)
        self.plan.collector.drop()
        for store in self.stores.values():
            store.rollback()
        self.queues = None
        self.pause_wanted = None
        self._dirty = self._writer is not None and self._writer.rolled_back()
        self.stream_time = store_metadata.stored_stream_time(self.stores)

    def _close_pipeline(self, *, quietly: bool) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is None:
            return
        try:
            pipeline.close()
        except BaseException:
            if not quietly:
                raise
            logger.exception("task %s: a processor failed to close", self.id, extra={"task": self.id})

    def close(self, *, clean: bool) -> None:
        """Close processors and stores. `clean`: everything was committed; otherwise uncommitted work is dropped. Safe to call twice."""
        if self.state is TaskState.CLOSED:
            return
        try:
            self._close_pipeline(quietly=not clean)
        finally:
            try:
                if clean and self.stores:
                    self._save()
            finally:  # also if the checkpoint cannot be written
                for store in self.stores.values():
                    store.close()
                self.plan.lock.release()
                self._move(TaskState.CLOSED)
                self.plan.metrics.remove(task_id=str(self.id))

    def _save(self) -> None:
        """Write the inputs' ends, which were often seen after the commit, and a checkpoint."""
        now_ms = self.plan.clock.wall_ms()
        metadata = {} if self.queues is None else store_metadata.encode_inputs_at_end(self.queues.all, now_ms)
        for store in self.stores.values():
            store_metadata.stage(store, metadata)
            store.commit({})
        self.checkpoint(now_ms)

    # -- processing ------------------------------------------------------------------------------------------------------------

    @property
    def turn(self) -> int:
        """Records that a turn should process for operators that defer records to be efficient; 0 if there are none."""
        return 0 if self._pipeline is None else self._pipeline.turn

    @property
    def buffered(self) -> int:
        """Number of records read and not yet processed; 0 while it does not process."""
        return self.queues.buffered if self.queues is not None and self.state is TaskState.RUNNING else 0

    def enqueue(self, partition: TopicPartition, messages: Sequence[RawMessage]) -> None:
        """Enqueue records of an input partition, in order."""
        if self.queues is None:
            return
        queue = self.queues[partition]
        follows = bool(queue.coming())
        queue.enqueue(messages)
        if not follows and self._pipeline is not None and self.state is TaskState.RUNNING:
            self._reads_begun |= self._pipeline.look_ahead(partition.topic, queue.coming())

    def process(self, limit: int, now_ms: int) -> int:
        """Process about `limit` records in the task's order, fewer if they take longer than `TURN_MS`. Return their number; 0 if there is
        none, if the task waits for input, if `pause_wanted` is set, or once after `enqueue` began to read ahead: other tasks and the next
        poll use the time of the read.

        Raises DeserializationError or ProcessingError where a handler returned FAIL, ReplayBeforePauseError, and the collector's errors.
        """
        queues, pipeline = self.queues, self._pipeline
        if queues is None or pipeline is None or self.state is not TaskState.RUNNING or self.pause_wanted is not None:
            return 0
        search, done, turn, clock = self._incidents.search, 0, pipeline.turn, self.plan.clock
        began_ms = looked_ms = clock.monotonic_ms()
        searching = search.limit is not None
        if self._reads_begun:
            self._reads_begun = False
            if not searching:
                return 0
        self._become_current()
        self._context.holds = search.limit == 1  # so that outputs of punctuators and of earlier records are not attributed to the record
        merges = len(queues.all) > 1 and pipeline.merges and not (searching or self.plan.hold_outputs)
        while done < limit:
            most = min(limit - done, self._at_once)
            run = queues.next_run(min(most, turn) if turn else most, now_ms)
            if run is None:
                if not self._unblock(queues) or searching:
                    break
                continue
            if searching:
                search.note_record(self.id, run)
            at_once, self._at_once = self._at_once, 1  # also after an error: a transaction may have been aborted because a run took long
            if run.stop - run.start < MERGED_BELOW and most > 1 and merges:
                done += self._process_merge(pipeline, queues.next_merge(most))
            else:
                done += self._process_run(pipeline, run)
            if turn:
                pipeline.finish_if_many()
            before_ms, looked_ms = looked_ms, clock.monotonic_ms()
            took_ms = looked_ms - before_ms
            self._at_once = min(at_once * 2, _MOST_AT_ONCE) if took_ms <= RUN_MS else max(1, at_once * RUN_MS // took_ms)
            if looked_ms - began_ms > TURN_MS:
                break
        if turn:
            pipeline.finish_deferred()
            self._release()
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
        context.batch = batch
        if not start:
            pipeline.look_ahead(queue.partition.topic, queue.coming())
        if self.plan.hold_outputs and not pipeline.turn:
            return self._process_held(pipeline, run)
        try:
            pipeline.process_run(
                queue.partition.topic, batch.keys, batch.values, batch.timestamps, batch.headers, batch.offsets, start, stop
            )
        except ProcessingError as error:
            return self._failed(queue, batch, start, error)
        queue.take(batch, stop)
        return stop - start

    def _process_merge(self, pipeline: Pipeline, merge: Merge) -> int:
        for queue, _, start, _ in merge.runs:
            if not start:
                pipeline.look_ahead(queue.partition.topic, queue.coming())
        passed = [run.stop - run.start for run in merge.runs]
        failure: ProcessingError | None = None
        done = len(merge.rows)
        try:
            pipeline.process_merged([(*run.queue.partition, run.batch) for run in merge.runs], merge.rows)
        except ProcessingError as error:
            if error.index is None:
                raise
            failure, done = error, error.index
            of_run = Counter(row[1] for row in merge.rows[:done])
            passed = [of_run[number] for number in range(len(merge.runs))]
        for (queue, batch, start, _), count in zip(merge.runs, passed, strict=True):
            if count:
                queue.take(batch, start + count)
        if failure is None:
            return done
        queue, batch, _, _ = merge.runs[merge.rows[done][1]]
        self._ask_handler(queue.partition, batch, queue.row, failure)
        queue.skip_row()
        return done + 1

    def _count_dropped(self, queues: TaskQueues) -> None:
        """Count records with a negative timestamp from their extractor."""
        for queue in queues.all:
            if queue.dropped:
                self._incidents.dropped(self.id, queue.dropped)
                queue.dropped = 0

    def _process_held(self, pipeline: Pipeline, run: Run) -> int:
        """Process under at-least-once with a handler that may PAUSE: release a record's outputs when its chain has returned (rules.md,
        18)."""
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
        """Release outputs of punctuators and caches, which belong to no record that could still fail."""
        if self.plan.hold_outputs:
            self.plan.collector.release()

    def _become_current(self) -> None:
        """Attribute refused outputs to this task from now on."""
        self._incidents.task, self._incidents.current = self.id, self._context

    def _failed(self, queue: PartitionQueue, batch: Batch, start: int, error: ProcessingError) -> int:
        """Handle an error of user code on a record: those before it are done, the handler decides. Return the number of records passed."""
        row = error.index
        if row is None:
            raise error
        if row > start:
            queue.take(batch, row)
        self._ask_handler(queue.partition, batch, row, error)
        queue.skip_row()
        return row - start + 1

    def _skips_deferred(self, error: ProcessingError) -> bool:
        """Handle an error on a deferred record, whose run was taken already: return if the handler skips it."""
        batch, row = self._context.batch, error.index
        if not isinstance(batch, Batch) or row is None:
            return False
        try:
            self._ask_handler(TopicPartition(self._context.topic, self._context.partition), batch, row, error)
        except ProcessingError:
            return False
        return True

    def _ask_handler(self, partition: TopicPartition, batch: Batch, row: int, error: ProcessingError) -> None:
        """Ask the handler about a record, and note that it is skipped if this returns. Raises the error for FAIL, ReplayBeforePauseError
        for PAUSE."""
        message = batch.messages[row]
        record = ConsumerRecord(
            partition.topic,
            partition.partition,
            batch.offsets[row],
            batch.timestamps[row],
            batch.keys[row],
            batch.values[row],
            None if batch.headers is None else batch.headers[row],
        )
        context = error_context(message, self.id, error.node, error.node_label)
        response = self._incidents.ask_processing(context, record, error)
        if response is ProcessingHandlerResponse.FAIL:
            raise error
        if response is ProcessingHandlerResponse.PAUSE:
            self._stop_before = PausePoint.of(message, error, "processing", self.plan.clock.wall_ms())
            raise ReplayBeforePauseError(f"task {self.id} goes back to pause before {partition}@{message.offset()}") from error
        self._incidents.skipped(self.id, message, error)

    def _unblock(self, queues: TaskQueues) -> bool:
        """Ask the handler about the unreadable record that is next. Return True if processing may continue."""
        queue = queues.blocked()
        if queue is None:
            return False
        failure = queue.failure
        if failure is None:
            return self._stopped(queue)
        response = ask_handler(self._incidents.deserialization, failure, self.id)
        if response is DeserializationHandlerResponse.FAIL:
            raise failure.error
        if response is DeserializationHandlerResponse.PAUSE:
            self._want_pause(queue, PausePoint.of(failure.message, failure.error, "deserialization", self.plan.clock.wall_ms()))
            return False
        self._incidents.skipped(self.id, failure.message, failure.error)
        queue.skip_failure()
        self._dirty = True
        return True

    def _stopped(self, queue: PartitionQueue) -> bool:
        """Apply the handler's decision, made before the last rollback, to the record at the head. Return True if it is left out."""
        verdict = None if queue.stop_before is None else self._incidents.search.verdict(queue.partition, queue.stop_before)
        if verdict is None:
            self._want_pause(queue, self._stop_before)
            return False
        if verdict.pauses:
            now_ms = self.plan.clock.wall_ms()
            self._want_pause(queue, PausePoint.of(verdict.message, verdict.error, "production", now_ms, verdict.details))
            return False
        self._incidents.skipped(self.id, verdict.message, verdict.error)
        queue.skip_row()
        self._set_stop(queue)
        self._dirty = True
        return True

    def _set_stop(self, queue: PartitionQueue) -> None:
        """Set the next record of a partition that needs a decision."""
        decided, own = self._incidents.search.next_verdict(queue.partition, queue.next_offset), self._stop_before
        stops = [] if own is None or own.partition != queue.partition else [own.offset]
        queue.stop_before = min([*stops, *([] if decided is None else [decided])], default=None)

    def _want_pause(self, queue: PartitionQueue, point: PausePoint | None) -> None:
        if point is None:
            raise StreamsError(f"task {self.id}: {queue.partition} is stopped for no reason that is known")
        # The bad record's own offset, even if offsets lie between it and the last good one (rules.md, 16).
        queue.next_offset = NextOffset(point.offset)
        self.pause_wanted = point

    def is_punctuation_due(self, now_ms: int) -> bool:
        """Return True if `punctuate` would run a punctuator."""
        running = self.state is TaskState.RUNNING and self.pause_wanted is None
        return self._pipeline is not None and running and self._pipeline.is_punctuation_due(now_ms)

    def punctuate(self, now_ms: int) -> int:
        """Run the punctuators that are due; `now_ms` is wall-clock time. Return the number that ran."""
        if self._pipeline is None or self.state is not TaskState.RUNNING or self.pause_wanted is not None:
            return 0
        self._become_current()
        ran = self._pipeline.punctuate(now_ms)
        self._release()
        if ran:
            self._dirty = True
        return ran

    def _continues_after(self, error: ProcessingError) -> bool:
        """Ask the handler about a punctuator's error (KIP-1033). Without a record to pause at, PAUSE is FAIL."""
        context, record = punctuation_context(self.id, self._context.timestamp, error.node, error.node_label)
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

    @property
    def has_first_results(self) -> bool:
        """True if this task continues what was committed before `begin`, and has something to commit for the first time since."""
        return self._continues and self._dirty

    def flush_caches(self) -> None:
        """Flush the caches in topological order until all are empty. Raises ProcessingError: such an error belongs to no record, so no
        handler is asked (rules.md, 18)."""
        if self._pipeline is not None and self._dirty:
            self._become_current()
            self._pipeline.flush_caches()
            self._release()

    def pending_changelogs(self) -> Iterable[ChangelogRows]:
        """Return the rows to write to the changelogs."""
        return () if self._writer is None or not self._dirty else self._writer.pending()

    def prepare(self) -> None:
        """Prepare the stores' write batches, while the broker takes the changelogs."""
        if self._dirty:
            for store in self.stores.values():
                store.prepare_commit()

    def offsets_to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the next offsets of partitions that moved since the last commit; at a pause, of every partition."""
        if self.queues is None:
            return {}
        pausing, metadata = self.pause_wanted is not None, self._context.processor_metadata
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for queue in self.queues.all:
            known = self.committed_offsets.get(queue.partition)
            if known is not None:
                moved = queue.next_offset != known.offset
            else:  # state is never committed without an offset for every input; and a start at the end would be another after a restart
                moved = self._dirty or queue.next_offset > queue.start or self._starts_at_end(queue.partition)
            if pausing or moved:
                offsets[queue.partition] = OffsetAndMetadata(queue.next_offset, encode_partition_time(queue.partition_time, metadata))
        return offsets

    def _starts_at_end(self, partition: TopicPartition) -> bool:
        """Return True if the start by `auto.offset.reset` depends on the time of the start."""
        return self.plan.offset_reset(partition.topic).strategy in (Strategy.LATEST, Strategy.BY_DURATION)

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], changelog_ends: Mapping[TopicPartition, NextOffset]) -> None:
        """Commit the stores after the broker's commit: data and offsets in one batch."""
        self.committed_offsets.update(offsets)
        self._incidents.search.drop_verdicts(offsets)
        if self._writer is not None:
            self._writer.committed()
        for partition in offsets:
            self.reset_positions.pop(partition, None)
        if not offsets and not self._dirty:
            return
        now_ms = self.plan.clock.wall_ms()
        self.committed_ms = now_ms
        inputs = {partition: NextOffset(at.offset) for partition, at in self.committed_offsets.items()}
        of_task = store_metadata.encode_task(self.stream_time, () if self.queues is None else self.queues.all, now_ms)
        changelogs = self.changelogs
        for name, store in self.stores.items():
            changelog = changelogs.get(name)
            ends, metadata = dict(inputs), of_task
            if changelog is not None:
                if changelog in changelog_ends:
                    ends[changelog] = changelog_ends[changelog]
                if changelog.topic in self.topic_ids:
                    # The only writer of a changelog is at its end at each commit, without reading.
                    metadata = {**of_task, **store_metadata.encode_changelog_end(self.topic_ids[changelog.topic], now_ms)}
            store_metadata.stage(store, metadata)
            store.commit(ends)
        self._dirty = self._continues = False
        if self._pipeline is not None:
            self._context.commit_requested = False

    @property
    def unsaved(self) -> bool:
        """True if something was committed or restored since the last checkpoint."""
        return bool(self.stores) and (self.committed_ms > (self.checkpoint_ms or 0) or self.position != self._checkpointed)

    def at_end_ms(self, store: str, partition: TopicPartition) -> int | None:
        """Return the wall-clock time at which a store was committed with everything on an input partition; None if unknown."""
        return store_metadata.stored_at_end_ms(self.stores[store], partition)

    def checkpoint(self, now_ms: int) -> dict[str, dict[str, int]]:
        """Flush the stores to disk and write `.checkpoint` (KIP-116). Return the offsets by store and partition."""
        self.checkpoint_ms, self._checkpointed = now_ms, self.position
        return self.plan.checkpoint(self.stores, self.changelogs)

    # -- pause -----------------------------------------------------------------------------------------------------------------

    def pause(self, point: PausePoint) -> None:
        """Pause after the commit. Queued records are dropped; `begin` reads from the committed offsets. RUNNING → PAUSED."""
        self._move(TaskState.PAUSED)
        self.paused_at, self.pause_wanted, self._stop_before = point, None, None
        self._paused_since.set(self.plan.clock.wall_ms())
        self._incidents.search.drop_verdict(point.partition, point.offset)
        if self.queues is not None:
            for queue in self.queues.all:
                queue.clear(queue.next_offset)

    def resume(self, committed: Mapping[TopicPartition, OffsetAndMetadata], starts: Mapping[TopicPartition, NextOffset]) -> None:
        """Resume at `starts` with the same processors and times (rules.md, 17). PAUSED → RUNNING."""
        self._found(committed, starts)
        self.paused_at = None
        self._paused_since.set(0)
        if self.queues is not None:
            for queue in self.queues.all:
                queue.clear(starts[queue.partition])
        self._move(TaskState.RUNNING)


def _uncommitted(store: EngineStore) -> float:
    """Return the value of `uncommitted-bytes`, on any thread."""
    return float(store.approximate_num_uncommitted_bytes)
