"""All active tasks of a worker (Kafka Streams' `TaskManager`): creates and restores them, and takes them through pause, rollback and close.

Operations are on one task or on all of them, between two batches, on the worker's thread. Writing to the broker is up to the loop
(`loop.py`), processing to the task (`tasks/active.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from penstock.runtime.changelog.restore import Restorer
from penstock.runtime.coordination import Coordination
from penstock.runtime.kafka.input_reader import Polled, Reader
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StateDirectoryLockedError, StateLostError, StreamsError, TaskCorruptedError
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import THREAD, Metrics
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.model.states import TaskState
from penstock.runtime.seeds.first_state import FirstState
from penstock.runtime.tasks.active import TURN_MS, ActiveTask
from penstock.runtime.tasks.follower import FollowerTask
from penstock.runtime.tasks.global_task import GlobalTask
from penstock.runtime.tasks.incidents import PausePoint
from penstock.runtime.worker.lock_waits import LockWaits
from penstock.runtime.worker.openings import Openings
from penstock.runtime.worker.positions import OFFSETS_SECONDS, OUT_OF_RANGE, RECREATED, Positions
from penstock.runtime.worker.task_factory import TaskFactory

logger = logging.getLogger(__name__)

SHORTEST_RUN = 250
"""Records that a task with as many processes at least, when its turn comes, unless those of a whole turn are fewer."""


class TaskManager:
    """All active tasks of one worker."""

    def __init__(
        self,
        task_factory: TaskFactory,
        reader: Reader,
        restorer: Restorer,
        global_task: GlobalTask | None,
        events: EventSink,
        coordination: Coordination,
        positions: Positions,
        waits: LockWaits,
        first_state: FirstState,
        metrics: Metrics,
        clock: Clock,
        *,
        halted: bool = False,
    ) -> None:
        self._task_factory = task_factory
        self._reader = reader
        self._restorer = restorer
        self._global = global_task
        self._events = events
        self._coordination = coordination
        self._positions = positions
        self._waits = waits
        self._first_state = first_state
        self._openings = Openings(clock)
        self._hand_overs = metrics.counter("hand-over-total", THREAD)
        self._gaps = metrics.latency("hand-over-gap", THREAD)
        self._tasks: dict[TaskId, ActiveTask] = {}
        self._by_partition: dict[TopicPartition, ActiveTask] = {}
        self._waiting: dict[TaskId, ActiveTask] = {}
        """Tasks with records that are not processed yet, in the order of their turns."""
        self._restored: set[TaskId] = set()
        """Tasks whose stores are complete and that do not process yet."""
        self._lost: dict[TopicPartition, tuple[int | None, str]] = {}
        """Partitions with an invalid position, that position, and the reason. Each is reported once, and kept until the broker has answered
        where to continue."""
        self.halted = halted
        """True between `pause_all` and `resume_all`: nothing is processed (KIP-834)."""
        self.changed = True
        """Set when a task was added, removed or changed its state. Reset when that is published."""

    # -- queries ---------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    def all(self) -> list[ActiveTask]:
        """Return every task, in the order of ids."""
        return [self._tasks[task] for task in sorted(self._tasks)]

    def get(self, task: TaskId) -> ActiveTask | None:
        return self._tasks.get(task)

    def in_state(self, *states: TaskState) -> list[ActiveTask]:
        return [task for task in self.all() if task.state in states]

    def paused(self) -> list[TaskId]:
        """Return the tasks that are PAUSED."""
        return [task.id for task in self.in_state(TaskState.PAUSED)]

    @property
    def restoring(self) -> bool:
        """True while the store of a task is being restored (rules.md, 1)."""
        return any(task.plan.subtopology.stores for task in self.in_state(TaskState.CREATED, TaskState.RESTORING))

    @property
    def opening(self) -> bool:
        """True while tasks are left to be opened in the next turn."""
        return self._openings.unfinished

    @property
    def starting(self) -> bool:
        """True while a task is not yet able to process."""
        return any(task.state in (TaskState.CREATED, TaskState.RESTORING) for task in self._tasks.values())

    @property
    def buffered(self) -> int:
        """Number of records read and not yet processed, of tasks that may process."""
        return sum(task.buffered for task in self._waiting.values())

    @property
    def uncommitted_bytes(self) -> int:
        return sum(task.uncommitted_bytes for task in self._tasks.values())

    @property
    def commit_requested(self) -> bool:
        """True if a processor called `context.commit()`."""
        return any(task.commit_requested for task in self._tasks.values())

    @property
    def has_first_results(self) -> bool:
        """True if a task that continues another's work has something to commit for the first time."""
        return any(task.has_first_results for task in self._tasks.values())

    def store_positions(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Return, by store and partition, position and end of its changelog, as next offsets (KIP-535). For a running store both are its
        position."""
        positions: dict[str, dict[int, tuple[int, int]]] = {}
        for task in self._tasks.values():
            for name, changelog in task.changelogs.items():
                at = task.stores[name].committed_offset(changelog) or 0
                positions.setdefault(name, {})[changelog.partition] = (at, at)
        for progress in self._restorer.progress():
            positions.setdefault(progress.store, {})[progress.partition.partition] = (progress.position, progress.end)
        return positions

    # -- creation and restore --------------------------------------------------------------------------------------------------

    def create(self, ids: Collection[TaskId], promoted: Collection[FollowerTask] = ()) -> None:
        """Create the tasks that are not here yet and start their restore; promoted standbys and learners continue from their position. Of
        many tasks `advance` opens the rest (`openings.py`). Committed offsets are read first, which waits for the open transaction of a
        fenced predecessor, then the ends of the changelogs (rules.md, 22).

        Raises StateLostError (rules.md, 14), StreamsError if the broker does not answer; what was opened by then is kept and tried again.
        """
        for task_id in sorted(ids):
            if task_id not in self._tasks:
                self._tasks[task_id] = self._task_factory.task(task_id)
                self.changed = True
        for follower in promoted:
            self._tasks[follower.id].take_over(follower)
        self._start_restores()

    def _start_restores(self) -> None:
        """Open tasks that are CREATED and start restores that are not under way: also those that failed before because a broker was away or
        another process held the directory's lock."""
        for task in self._openings.of_this_turn(self.in_state(TaskState.CREATED)):
            self._open(task)
        begun = self._restorer.restoring | self._restored
        waiting = [task for task in self.in_state(TaskState.RESTORING) if task.id not in begun]
        if waiting:
            self._restore(waiting)

    def _open(self, task: ActiveTask) -> None:
        try:
            if not self._first_state.is_settled(task.plan):
                return
            damaged = task.open()
        except StateDirectoryLockedError as error:
            self._waits.wait(task.id, error)
            return
        self._waits.done(task.id)
        for store in damaged:
            if store.name in task.changelogs:
                logger.warning("task %s: the files of store %s were damaged; it is restored from its changelog", task.id, store.name)
            else:
                logger.error(
                    "task %s: the files of store %s were damaged; it has no changelog (logging=False) and is empty now", task.id, store.name
                )

    def _restore(self, tasks: list[ActiveTask]) -> None:
        committed = self._reader.committed([partition for task in tasks for partition in task.inputs], OFFSETS_SECONDS)
        for task in tasks:
            self._refuse_lost_state(task, committed)
        changelogs = self._task_factory.changelogs([partition for task in tasks for partition in task.changelogs.values()])
        for task in tasks:
            own = [changelogs[partition] for partition in task.changelogs.values() if changelogs[partition].source is None]
            task.topic_ids = {log.partition.topic: log.topic_id for log in own}
            begin = self._restorer.promote if task.id in self._restorer.following else self._restorer.add
            begin(task.id, [(task.stores[name], changelogs[partition]) for name, partition in task.changelogs.items()])
            task.plan.prepare_restore(task.stores, task.changelogs)

    def _refuse_lost_state(self, task: ActiveTask, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Refuse state without committed offsets: its input would be counted twice (rules.md, 14). But when a topic is deleted Kafka
        deletes its offsets too, and the records of its successor were never counted. A task that never wrote a store has no state."""
        known = committed.keys() | task.remade
        lost = {partition: offset for partition, offset in task.stored_inputs().items() if offset and partition not in known}
        if lost and task.ever_held_state():
            raise StateLostError(self._task_factory.state_lost_message(task.id, lost))
        if self._task_factory.exactly_once and not any(partition in known for partition in task.inputs) and task.holds_state():
            # Under exactly-once a changelog is never written without offsets. (Under at-least-once a crash between the two loses nothing.)
            raise StateLostError(self._task_factory.state_lost_message(task.id, {}))

    def advance(self, timeout: float) -> None:
        """Advance the restores, and begin processing in tasks that are complete. Raises TaskCorruptedError and what `create` raises."""
        self._start_restores()
        self._restored.update(task_id for task_id in self._restorer.step(timeout) if task_id in self._tasks)
        ready = [task_id for task_id in sorted(self._restored) if self._may_begin(self._tasks[task_id])]
        if ready:
            self._begin([self._tasks[task_id] for task_id in ready])
            self._restored.difference_update(ready)
            self.changed = True

    def _may_begin(self, task: ActiveTask) -> bool:
        """Return False for a task whose processors may read global tables, from their `init` on, while one of those is not complete."""
        return self._global is None or self._global.complete(task.plan.subtopology.global_stores)

    def _begin(self, tasks: list[ActiveTask]) -> None:
        """Begin processing at the committed offsets."""
        committed = self._reader.committed([partition for task in tasks for partition in task.inputs], OFFSETS_SECONDS)
        bounds = self._positions.bounds([partition for task in tasks for partition in task.inputs if partition not in committed])
        starts: dict[TaskId, dict[TopicPartition, NextOffset]] = {}
        for task in tasks:  # ask everything before beginning anything, so that a missing answer changes nothing
            self._refuse_lost_state(task, committed)
            starts[task.id] = self._positions.starts(task, committed, bounds)
        for task in tasks:
            self._warn_of_missed_inputs(task, committed)
            task.begin({partition: committed[partition] for partition in task.inputs if partition in committed}, starts[task.id])
            self._by_partition.update(dict.fromkeys(task.inputs, task))
            self._positions.add_missed_deletions(task, starts[task.id])
            if self._coordination.held(task.id):
                self.request_pause(task.id)
            self._note_hand_over(task)
            logger.info("task %s runs from %s", task.id, _text(starts[task.id]), extra={"task": task.id})
        self._reader.assign({partition: start for of_task in starts.values() for partition, start in of_task.items()})

    def _warn_of_missed_inputs(self, task: ActiveTask, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for name, own in sorted(task.missed_inputs(committed).items()):
            ends = _text({partition: NextOffset(committed[partition].offset) for partition in own})
            has = _text({partition: offset for partition, offset in own.items() if offset is not None})
            logger.warning(
                "task %s: store %s has no changelog and %s, so results lack what came before %s: another instance ran the task, or the "
                "state folder is another one. With a changelog (logging=True) a store is restored",
                task.id,
                name,
                f"was last updated at {has}" if has else "begins empty",
                ends,
                extra={"task": task.id},
            )

    def _note_hand_over(self, task: ActiveTask) -> None:
        taken = self._coordination.taken_over(task.id)
        if taken is not None:
            self._hand_overs.add()
            self._gaps.record(taken.gap_ms)
            copied = task.was_a_copy
            self._events.emit(EventKind.TASK_TAKEN_OVER, {"from": taken.owner, "gap_ms": taken.gap_ms, "copied": copied}, task.id)

    # -- input -----------------------------------------------------------------------------------------------------------------

    def enqueue(self, polled: Polled) -> None:
        """Enqueue polled records in their tasks."""
        for partition, messages in polled.runs:
            task = self._by_partition.get(partition)
            if task is not None:
                task.enqueue(partition, messages)  # type: ignore[arg-type]  # confluent-kafka's stubs leave more open than a read message does
                self._waiting.setdefault(task.id, task)
        for partition, offset in polled.ends:
            task = self._by_partition.get(partition)
            if task is not None and task.queues is not None:
                task.queues[partition].reached_end(offset)
        self._lost.update((partition, (position, OUT_OF_RANGE)) for partition, position in polled.lost)
        self._reset_lost()

    def reset_positions(self, topics: Iterable[str]) -> None:
        """Reset the positions in topics that were deleted and recreated. Raises StreamsError if the broker does not answer (it is tried
        again then), or where the policy is `none`."""
        for topic in topics:
            for partition, task in self._by_partition.items():
                if partition.topic != topic:
                    continue
                if task.state is TaskState.RUNNING and task.queues is not None:
                    self._lost[partition] = task.queues[partition].next_offset, RECREATED
                else:
                    task.remade.add(partition)
        self._reset_lost()

    def _reset_lost(self) -> None:
        for partition, (position, why) in list(self._lost.items()):
            task = self._by_partition.get(partition)
            if task is not None and task.queues is not None:
                self._positions.reset(task, task.queues[partition], position, why)
            del self._lost[partition]

    def balance(self, most: int, now_ms: int) -> None:
        """Pause fetching of partitions whose queue holds more than `most` records, and resume it when the queue has shrunk. Note which
        partitions are empty, and since when."""
        for partition, task in self._by_partition.items():
            if task.queues is None:
                continue
            queue = task.queues[partition]
            if queue.buffered > most:
                self._reader.hold(partition)
            elif queue.buffered <= most // 2:
                self._reader.release(partition)
            if len(task.inputs) == 1 or queue.buffered:  # a task with one input waits for no other
                continue
            if not queue.at_end and 0 <= self._reader.known_end(partition) <= queue.next_offset:
                queue.at_end = True
            task.queues.note_end(queue, now_ms)

    def process(self, limit: int, now_ms: int) -> int:
        """Process about `limit` records of the tasks that have any, in turn. Return their number.

        The tasks have equal shares of at least `SHORTEST_RUN`: of hundreds of tasks, some process that many now and the others when this is
        called again, so that what a task costs per call and per commit is spread over more records. If an operator computes results for
        many records at once, every share is at least that number, so that the tasks behind it keep up. After more than `TURN_MS` return
        early: a commit may be due."""
        if self.halted:
            return 0
        search = self._task_factory.incidents.search
        self._waiting = {task_id: task for task_id, task in self._waiting.items() if task.buffered}
        ready = [task for task in self._waiting.values() if self._may_process(task.id)]
        share = max((limit // max(len(ready), 1), min(limit, SHORTEST_RUN), *(task.turn for task in ready)))
        done = 0
        for task in ready:
            most = share if search.limit is None else search.remaining(share)
            if most <= 0 or done >= limit:
                break
            processed = task.process(most, now_ms)
            search.count_records(processed)
            done += processed
            self._waiting[task.id] = self._waiting.pop(task.id)  # behind the others
            if task.plan.clock.monotonic_ms() - now_ms > TURN_MS:
                break
        return done

    def _may_process(self, task: TaskId) -> bool:
        return self._global is None or self._global.may_process(task)

    def is_punctuation_due(self, now_ms: int) -> bool:
        """Return True if `punctuate` would run a punctuator."""
        return any(task.is_punctuation_due(now_ms) for task in self._punctuated())

    def punctuate(self, now_ms: int) -> int:
        """Run the punctuators that are due, by wall-clock and stream time. Return how many ran."""
        return sum(task.punctuate(now_ms) for task in self._punctuated())

    def _punctuated(self) -> list[ActiveTask]:
        if self.halted:
            return []
        return [task for task in self._tasks.values() if task.state is TaskState.RUNNING and self._may_process(task.id)]

    # -- pause -----------------------------------------------------------------------------------------------------------------

    def pausing(self) -> list[ActiveTask]:
        """Return the tasks whose handler returned PAUSE."""
        return [task for task in self._tasks.values() if task.pause_wanted is not None]

    def announce_pause(self, task: ActiveTask) -> None:
        """Queue TASK_PAUSED for the commit that makes it true (rules.md, 26)."""
        point = task.pause_wanted
        if point is not None:
            self._events.emit(EventKind.TASK_PAUSED, point.payload(), task.id, f"{point.partition}@{point.offset}")

    def pause(self, task: ActiveTask) -> None:
        """Pause a task after its commit; it keeps its position until `resume`."""
        point = task.pause_wanted
        if point is None:
            return
        task.pause(point)
        if point.by_hand:
            self._coordination.hold(task.id)
        self._reader.unassign(task.inputs)
        self.changed = True
        logger.warning(
            "task %s is paused before %s@%d (%s%s): %s",
            task.id,
            point.partition,
            point.offset,
            point.reason,
            f" at {point.details.location}" if point.details and point.details.location else "",
            point.error,
            extra={"task": task.id},
        )

    def request_pause(self, task_id: TaskId) -> None:
        """Request a pause on an operator's command; it takes effect with the next commit. Raises StreamsError if the task is not
        running."""
        task = self._tasks.get(task_id)
        if task is None or task.state is not TaskState.RUNNING or task.queues is None:
            raise StreamsError(f"task {task_id} is {'not here' if task is None else task.state.value}: only a running task can be paused")
        if task.pause_wanted is None:  # otherwise it is about to pause before a bad record
            partition = task.inputs[0]
            task.pause_wanted = PausePoint.command(partition, task.queues[partition].next_offset, task.plan.clock.wall_ms())

    def resume(self, task_id: TaskId) -> bool:
        """Read the task's committed offsets again (an operator may have moved them) and continue there. Return True once it has left
        PAUSED, False if it was not paused or is not here. Raises StreamsError if the offsets cannot be read: it stays PAUSED (rules.md,
        2 and 17)."""
        task = self._tasks.get(task_id)
        if task is None or task.state is not TaskState.PAUSED:
            return False
        committed = self._reader.committed(task.inputs, OFFSETS_SECONDS)
        self._refuse_lost_state(task, committed)
        starts = self._positions.starts(task, committed)
        task.resume(committed, starts)
        self._positions.add_missed_deletions(task, starts)
        self._coordination.release(task_id)
        self._reader.assign(starts)
        self.changed = True
        offsets = {str(partition): offset for partition, offset in starts.items()}
        moved = {str(partition): {"from": old, "to": new} for partition, (old, new) in task.moved.items()}
        self._events.emit(EventKind.TASK_RESUMED, {"offsets": offsets, "moved": moved}, task_id)
        shifted = "".join(f"; {partition} was moved there from {old}" for partition, (old, _) in sorted(task.moved.items()))
        logger.info("task %s is resumed at %s%s", task_id, _text(starts), shifted, extra={"task": task_id})
        return True

    def pause_all(self) -> None:
        """Stop all processing until `resume_all` (KIP-834)."""
        self.halted = True
        self.changed = True

    def resume_all(self) -> None:
        """End `pause_all`. Tasks that are paused before a bad record stay PAUSED."""
        self.halted = False
        self.changed = True

    # -- offsets of the group --------------------------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's current offsets. Raises StreamsError."""
        return self._reader.committed(partitions, OFFSETS_SECONDS)

    def check_moved_offsets(self) -> None:
        """Compare the group's offsets with those that running tasks committed last. A difference is reported once, and the next commit
        overwrites it (rules.md, 19). Raises StreamsError if the offsets cannot be read."""
        running = self.in_state(TaskState.RUNNING)
        found = self.committed([partition for task in running for partition in task.committed_offsets])
        for task in running:
            for partition, expected in list(task.committed_offsets.items()):
                at = found.get(partition)
                if at is None or at.offset == expected.offset:
                    continue
                payload = {"topic": partition.topic, "partition": partition.partition, "committed": at.offset, "expected": expected.offset}
                self._events.emit(EventKind.OFFSET_MOVED, payload, task.id, f"{partition}@{at.offset}")
                logger.warning(
                    "%s: committed offset is %d, not %d as committed last, while its task runs", partition, at.offset, expected.offset
                )
                task.committed_offsets[partition] = at

    def check_changelogs(self) -> None:
        """Check that the changelogs are still those that the stores belong to: a deleted changelog gives no error while nothing is written
        to it, and a recreated one none at all. Raises TaskCorruptedError; StreamsError if the brokers do not answer."""
        tasks = [task for task in self.in_state(TaskState.RUNNING, TaskState.PAUSED) if task.topic_ids]
        found = self._task_factory.topic_ids({topic for task in tasks for topic in task.topic_ids})
        lost = {task.id: topic for task in tasks for topic, known in task.topic_ids.items() if found.get(topic) != known}
        if lost:
            gone = ", ".join(f"{topic} was deleted{' and created again' if topic in found else ''}" for topic in sorted(set(lost.values())))
            raise TaskCorruptedError(lost, gone)

    def offsets_to_recommit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets of idle and paused partitions, to be committed again before they expire (rules.md, 20): for paused tasks the
        group's current ones, since an operator may have moved them."""
        tasks = self.in_state(TaskState.RUNNING, TaskState.PAUSED)
        found = self.committed([partition for task in tasks for partition in task.inputs])
        running = {partition for task in tasks if task.state is TaskState.RUNNING for partition in task.offsets_to_commit()}
        return {partition: at for partition, at in found.items() if partition not in running}

    # -- rollback and close ----------------------------------------------------------------------------------------------------

    def rollback(self) -> None:
        """Roll every processing task back to the last commit: stores, queues, processors, input (rules.md, 10). Paused and restoring tasks
        have nothing to roll back. A task whose store cannot be rolled back is wiped, to be restored (rules.md, 12).

        Raises StreamsError if the broker does not answer; call it again then.
        """
        for task in self.in_state(TaskState.RUNNING):
            self._reader.unassign(task.inputs)
            for partition in task.inputs:
                self._lost.pop(partition, None)
            if self._global is not None:
                self._global.unregister_reader(task.id)
            try:
                task.rollback()
            except TaskCorruptedError as error:
                logger.warning("%s", error)
                self.wipe(error)
        tasks = self.in_state(TaskState.RUNNING)
        ready = [task for task in tasks if self._may_begin(task)]
        self._restored.update(task.id for task in tasks if task not in ready)
        self._begin(ready)

    def wipe(self, error: TaskCorruptedError) -> None:
        """Close these tasks dirty and wipe them, because their state does not fit their changelog. The next `advance` restores them from
        the start, or from a snapshot. A store without a changelog keeps its state, of which there is no other copy, unless its own files
        are damaged."""
        for task_id in sorted(error.tasks):
            if task_id in self._tasks:
                self._events.emit(EventKind.TASK_CORRUPTED, {"reason": str(error)}, task_id)
                self.drop([task_id])
                task = self._task_factory.task(task_id)
                self._tasks[task_id] = task
                task.open()
                for name, store in task.stores.items():
                    if name in task.changelogs or name == error.store:
                        store.wipe()
                if self._first_state.may_retry(task_id):
                    task.close(clean=False)
                    self._tasks[task_id] = self._task_factory.task(task_id)
        self.changed = True

    def close(self, ids: Iterable[TaskId]) -> None:
        """Close tasks whose work is committed."""
        self._remove(ids, clean=True)

    def drop(self, ids: Iterable[TaskId] | None = None) -> None:
        """Close tasks dirty, dropping uncommitted work. All of them without `ids`."""
        self._remove(list(self._tasks) if ids is None else ids, clean=False)

    def _remove(self, ids: Iterable[TaskId], *, clean: bool) -> None:
        """Close the tasks, all of them even if one fails; then raise the first failure of a clean close."""
        failed: list[BaseException] = []
        for task_id in list(ids):
            task = self._tasks.pop(task_id, None)
            if task is None:
                continue
            self._waiting.pop(task_id, None)
            self._waits.done(task_id)
            self._first_state.forget(task_id)
            self._restorer.remove(task_id)
            self._restored.discard(task_id)
            self._reader.unassign(task.inputs)
            for partition in task.inputs:
                self._by_partition.pop(partition, None)
                self._lost.pop(partition, None)
            if self._global is not None:
                self._global.unregister_reader(task_id)
            try:
                task.close(clean=clean)
            except BaseException as error:
                if clean:
                    failed.append(error)
                logger.exception("task %s could not be closed", task_id, extra={"task": task_id})
        self.changed = True
        if failed:
            raise failed[0]


def _text(starts: Mapping[TopicPartition, NextOffset]) -> str:
    return ", ".join(f"{partition}@{offset}" for partition, offset in sorted(starts.items()))
