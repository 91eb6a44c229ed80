"""The set of tasks of a worker (Kafka Streams' `TaskManager`): makes them, restores them, moves them through pause, rollback and close.

Operations here are on one task or on the set as a whole, between two batches, on the worker's thread. What is written to the broker is the
loop's business (`loop.py`); what happens inside a task is the task's (`tasks/active.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from runtime.changelog.restore import Restorer
from runtime.commit.metadata import OffsetAndMetadata
from runtime.errors import StateDirectoryLockedError, StateLostError, StreamsError, TaskCorruptedError
from runtime.events import EventKind, EventSink
from runtime.ids import NextOffset, Partition, TaskId
from runtime.intake.reader import Polled, Reader
from runtime.seeds.first_state import FirstState
from runtime.states import TaskState
from runtime.tasks.active import ActiveTask
from runtime.tasks.follower import FollowerTask
from runtime.tasks.global_ import GlobalTask
from runtime.tasks.incidents import PausePoint
from runtime.worker.lock_waits import LockWaits
from runtime.worker.plans import Planner
from runtime.worker.positions import MADE_ANEW, OFFSETS_SECONDS, OUT_OF_RANGE, Positions

logger = logging.getLogger(__name__)


class Holds(Protocol):
    """Tasks that were paused by hand: known to whoever runs them next (`Coordination`)."""

    def held(self, task: TaskId) -> bool: ...

    def hold(self, task: TaskId) -> None: ...

    def release(self, task: TaskId) -> None: ...


class TaskSet:
    """All active tasks of one worker."""

    def __init__(
        self,
        planner: Planner,
        reader: Reader,
        restorer: Restorer,
        global_task: GlobalTask | None,
        events: EventSink,
        holds: Holds,
        positions: Positions,
        waits: LockWaits,
        first_state: FirstState,
    ) -> None:
        self._planner = planner
        self._reader = reader
        self._restorer = restorer
        self._global = global_task
        self._events = events
        self._holds = holds
        self._positions = positions
        self._waits = waits
        self._first_state = first_state
        self._tasks: dict[TaskId, ActiveTask] = {}
        self._by_partition: dict[Partition, ActiveTask] = {}
        self._turn: list[TaskId] = []
        self._restored: set[TaskId] = set()
        """Tasks whose stores are complete and that do not process yet."""
        self._lost: dict[Partition, tuple[int | None, str]] = {}
        """Partitions whose position means nothing any more, that position, and why: told once, and kept until the broker has said where to
        go on."""
        self.halted = False
        """True between `pause_all` and `resume_all`: nothing is processed (KIP-834)."""
        self.changed = True
        """Set when a task came, went or changed its state; whoever publishes that resets it."""

    # -- looking ---------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    def all(self) -> list[ActiveTask]:
        """Every task, in the order of ids."""
        return [self._tasks[task] for task in sorted(self._tasks)]

    def get(self, task: TaskId) -> ActiveTask | None:
        return self._tasks.get(task)

    def in_state(self, *states: TaskState) -> list[ActiveTask]:
        return [task for task in self.all() if task.state in states]

    def paused(self) -> list[TaskId]:
        """The tasks that are PAUSED."""
        return [task.id for task in self.in_state(TaskState.PAUSED)]

    @property
    def restoring(self) -> bool:
        """True while the store of a task is being restored (rules.md, 1)."""
        return any(task.plan.subtopology.stores for task in self.in_state(TaskState.CREATED, TaskState.RESTORING))

    @property
    def starting(self) -> bool:
        """True while a task is not yet where it can process."""
        return any(task.state in (TaskState.CREATED, TaskState.RESTORING) for task in self._tasks.values())

    @property
    def buffered(self) -> int:
        """Records read and not yet processed, of tasks that may process."""
        return sum(task.queues.buffered for task in self._tasks.values() if task.queues is not None and task.state is TaskState.RUNNING)

    @property
    def uncommitted_bytes(self) -> int:
        return sum(task.uncommitted_bytes for task in self._tasks.values())

    @property
    def commit_requested(self) -> bool:
        """True if a processor called `context.commit()`."""
        return any(task.commit_requested for task in self._tasks.values())

    def store_positions(self) -> dict[str, dict[int, tuple[int, int]]]:
        """By store and partition: position and end of its changelog, as next offsets (KIP-535). Of a running store both are its
        position."""
        positions: dict[str, dict[int, tuple[int, int]]] = {}
        for task in self._tasks.values():
            for name, changelog in task.changelogs.items():
                at = task.stores[name].committed_offset(changelog) or 0
                positions.setdefault(name, {})[changelog.number] = (at, at)
        for progress in self._restorer.progress():
            positions.setdefault(progress.store, {})[progress.partition.number] = (progress.position, progress.end)
        return positions

    # -- coming ----------------------------------------------------------------------------------------------------------------

    def create(self, ids: Collection[TaskId], promoted: Collection[FollowerTask] = ()) -> None:
        """Opens tasks that are not here yet and starts their restore; those that were standbys or learners here go on from there. Order as
        in rules.md, 22: committed offsets first (this waits until what a fenced predecessor left open has ended), then the ends of the
        changelogs.

        Raises StateLostError (rules.md, 14), StreamsError if the broker does not answer; what was opened by then is kept and tried again.
        """
        for task_id in sorted(ids):
            if task_id not in self._tasks:
                self._tasks[task_id] = self._planner.task(task_id)
                self._turn = []
                self.changed = True
        for follower in promoted:
            self._tasks[follower.id].take_over(follower)
        self._start_restores()

    def _start_restores(self) -> None:
        """Opens what is CREATED and begins restores that are not under way; what an absent broker, or a folder that another process still
        holds, kept from it is tried again so."""
        for task in self.in_state(TaskState.CREATED):
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
        self._waits.over(task.id)
        for store in damaged:
            logger.warning("task %s: the files of store %s were damaged; it is restored from its changelog", task.id, store.name)

    def _restore(self, tasks: list[ActiveTask]) -> None:
        committed = self._reader.committed([partition for task in tasks for partition in task.inputs], OFFSETS_SECONDS)
        for task in tasks:
            self._refuse_lost_state(task, committed)
        changelogs = self._planner.changelogs([partition for task in tasks for partition in task.changelogs.values()])
        for task in tasks:
            own = [changelogs[partition] for partition in task.changelogs.values() if changelogs[partition].source is None]
            task.topic_ids = {log.partition.topic: log.topic_id for log in own}
            begin = self._restorer.promote if task.id in self._restorer.following else self._restorer.add
            begin(task.id, [(task.stores[name], changelogs[partition]) for name, partition in task.changelogs.items()])
            task.plan.restore_begins(task.stores, task.changelogs)

    def _refuse_lost_state(self, task: ActiveTask, committed: Mapping[Partition, OffsetAndMetadata]) -> None:
        """State without committed offsets would be counted into twice (rules.md, 14); but with a topic that is deleted Kafka deletes its
        offsets, and what comes in its place was counted by nobody."""
        known = committed.keys() | task.remade
        lost = {partition: offset for partition, offset in task.stored_inputs().items() if offset and partition not in known}
        if lost:
            raise StateLostError(self._planner.state_lost_message(task.id, lost))
        if self._planner.exactly_once and not any(partition in known for partition in task.inputs) and task.holds_state():
            # Under exactly-once a changelog is never written without offsets. (Under at-least-once a crash between the two is no loss.)
            raise StateLostError(self._planner.state_lost_message(task.id, {}))

    def advance(self, timeout: float) -> None:
        """Restores a little, and lets tasks that are complete process. Raises TaskCorruptedError and what `create` raises."""
        self._start_restores()
        self._restored.update(task_id for task_id in self._restorer.step(timeout) if task_id in self._tasks)
        ready = [task_id for task_id in sorted(self._restored) if self._may_begin(self._tasks[task_id])]
        if ready:
            self._begin([self._tasks[task_id] for task_id in ready])
            self._restored.difference_update(ready)
            self.changed = True

    def _may_begin(self, task: ActiveTask) -> bool:
        """False for a task whose processors may read global tables as soon as they are made, while one of those is not whole."""
        return self._global is None or not self._global.restoring or not task.plan.may_read_global_stores

    def _begin(self, tasks: list[ActiveTask]) -> None:
        """Takes up processing at the committed offsets."""
        committed = self._reader.committed([partition for task in tasks for partition in task.inputs], OFFSETS_SECONDS)
        starts: dict[TaskId, dict[Partition, NextOffset]] = {}
        for task in tasks:  # everything is asked before anything is begun: an answer that does not come leaves all as it was
            self._refuse_lost_state(task, committed)
            starts[task.id] = self._positions.starts(task, committed)
        for task in tasks:
            task.begin({partition: committed[partition] for partition in task.inputs if partition in committed}, starts[task.id])
            self._by_partition.update(dict.fromkeys(task.inputs, task))
            self._positions.add_missed_deletions(task, starts[task.id])
            if self._holds.held(task.id):
                self.want_pause(task.id)
            logger.info("task %s runs from %s", task.id, _text(starts[task.id]), extra={"task": task.id})
        self._reader.assign({partition: start for of_task in starts.values() for partition, start in of_task.items()})

    # -- input -----------------------------------------------------------------------------------------------------------------

    def take(self, polled: Polled) -> None:
        """Hands what was read to the tasks."""
        for partition, messages in polled.runs:
            task = self._by_partition.get(partition)
            if task is not None:
                task.add(partition, messages)  # type: ignore[arg-type]  # confluent-kafka's stubs leave more open than a read message does
        for partition, offset in polled.ends:
            task = self._by_partition.get(partition)
            if task is not None and task.queues is not None:
                task.queues[partition].reached_end(offset)
        self._lost.update((partition, (position, OUT_OF_RANGE)) for partition, position in polled.lost)
        self._reset_lost()

    def begin_anew(self, topics: Iterable[str]) -> None:
        """These topics were deleted and made anew: what tasks know of their positions means nothing there. Raises StreamsError if the
        broker does not answer (it is tried again then), or where the policy is `none`."""
        for topic in topics:
            for partition, task in self._by_partition.items():
                if partition.topic != topic:
                    continue
                if task.state is TaskState.RUNNING and task.queues is not None:
                    self._lost[partition] = task.queues[partition].next_offset, MADE_ANEW
                else:
                    task.remade.add(partition)
        self._reset_lost()

    def _reset_lost(self) -> None:
        for partition, (position, why) in list(self._lost.items()):
            task = self._by_partition.get(partition)
            if task is not None and task.queues is not None:
                self._positions.reset(task, task.queues[partition], position, why)
            del self._lost[partition]

    def balance(self, most: int) -> None:
        """Stops fetching partitions whose queue holds more than `most` records, and fetches them again when it has come down."""
        for partition, task in self._by_partition.items():
            if task.queues is None or len(task.inputs) == 1:
                continue
            queue = task.queues[partition]
            if queue.buffered > most:
                self._reader.hold(partition)
            elif queue.buffered <= most // 2:
                self._reader.release(partition)
            if not queue.buffered and not queue.at_end and 0 <= self._reader.known_end(partition) <= queue.next_offset:
                queue.at_end = True

    def process(self, limit: int, now_ms: int) -> int:
        """Lets each task process at most `limit` records, a different one first each time. Returns how many in all."""
        if self.halted:
            return 0
        order = self._turn or self._reorder()
        done = 0
        for task_id in order:
            task = self._tasks.get(task_id)
            if task is not None and task.state is TaskState.RUNNING and self._may_process(task_id):
                done += task.process(limit, now_ms)
        if order:
            order.append(order.pop(0))
        return done

    def _reorder(self) -> list[TaskId]:
        self._turn = sorted(self._tasks)
        return self._turn

    def _may_process(self, task: TaskId) -> bool:
        return self._global is None or self._global.may_process(task)

    def punctuate(self, now_ms: int) -> None:
        """Runs what is due, wall-clock and stream time."""
        if not self.halted:
            for task in self._tasks.values():
                if task.state is TaskState.RUNNING and self._may_process(task.id):
                    task.punctuate(now_ms)

    # -- pause -----------------------------------------------------------------------------------------------------------------

    def wanting_pause(self) -> list[ActiveTask]:
        """Tasks whose handler said PAUSE."""
        return [task for task in self._tasks.values() if task.pause_wanted is not None]

    def announce_pause(self, task: ActiveTask) -> None:
        """Queues TASK_PAUSED, to ride in the commit that makes it true (rules.md, 26)."""
        point = task.pause_wanted
        if point is not None:
            self._events.emit(EventKind.TASK_PAUSED, point.payload(), task.id, f"{point.partition}@{point.offset}")

    def pause(self, task: ActiveTask) -> None:
        """After the commit: the task holds its input until `resume`."""
        point = task.pause_wanted
        if point is None:
            return
        task.pause(point)
        if point.by_hand:
            self._holds.hold(task.id)
        self._reader.unassign(task.inputs)
        self.changed = True
        logger.warning(
            "task %s is paused before %s@%d (%s): %s",
            task.id,
            point.partition,
            point.offset,
            point.reason,
            point.error,
            extra={"task": task.id},
        )

    def want_pause(self, task_id: TaskId) -> None:
        """An operator's pause: taken up with the next commit. Raises StreamsError if the task is not running."""
        task = self._tasks.get(task_id)
        if task is None or task.state is not TaskState.RUNNING or task.queues is None:
            raise StreamsError(f"task {task_id} is {'not here' if task is None else task.state.value}: only a running task can be paused")
        if task.pause_wanted is None:  # else it stands before a bad record already
            partition = task.inputs[0]
            task.pause_wanted = PausePoint.command(partition, task.queues[partition].next_offset)

    def resume(self, task_id: TaskId) -> bool:
        """Reads the task's committed offsets again (somebody may have moved them) and runs on from there. True once it has left PAUSED,
        False if it was not paused or is not here. Raises StreamsError if the offsets cannot be read: it stays PAUSED (rules.md, 2 and
        17)."""
        task = self._tasks.get(task_id)
        if task is None or task.state is not TaskState.PAUSED:
            return False
        committed = self._reader.committed(task.inputs, OFFSETS_SECONDS)
        self._refuse_lost_state(task, committed)
        starts = self._positions.starts(task, committed)
        task.resume(committed, starts)
        self._positions.add_missed_deletions(task, starts)
        self._holds.release(task_id)
        self._reader.assign(starts)
        self.changed = True
        offsets = {str(partition): offset for partition, offset in starts.items()}
        moved = {str(partition): {"from": old, "to": new} for partition, (old, new) in task.moved.items()}
        self._events.emit(EventKind.TASK_RESUMED, {"offsets": offsets, "moved": moved}, task_id)
        shifted = "".join(f"; {partition} was moved there from {old}" for partition, (old, _) in sorted(task.moved.items()))
        logger.info("task %s is resumed at %s%s", task_id, _text(starts), shifted, extra={"task": task_id})
        return True

    def pause_all(self) -> None:
        """Nothing is processed until `resume_all` (KIP-834)."""
        self.halted = True
        self.changed = True

    def resume_all(self) -> None:
        """Ends `pause_all`. Tasks that met a bad record stay PAUSED."""
        self.halted = False
        self.changed = True

    # -- offsets of the group --------------------------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetAndMetadata]:
        """What the group holds now. Raises StreamsError."""
        return self._reader.committed(partitions, OFFSETS_SECONDS)

    def moved_offsets(self) -> None:
        """Compares what the group holds with what running tasks committed last; a difference is told once, and the next commit overwrites
        it (rules.md, 19). Raises StreamsError if the offsets cannot be read."""
        running = self.in_state(TaskState.RUNNING)
        found = self.committed([partition for task in running for partition in task.committed_offsets])
        for task in running:
            for partition, expected in list(task.committed_offsets.items()):
                at = found.get(partition)
                if at is None or at.offset == expected.offset:
                    continue
                payload = {"topic": partition.topic, "partition": partition.number, "committed": at.offset, "expected": expected.offset}
                self._events.emit(EventKind.OFFSET_MOVED, payload, task.id, f"{partition}@{at.offset}")
                logger.warning(
                    "%s: committed offset is %d, not %d as committed last, while its task runs", partition, at.offset, expected.offset
                )
                task.committed_offsets[partition] = at

    def lost_changelogs(self) -> None:
        """Looks whether the changelogs are still those that the stores belong to: one that is deleted gives no error while nothing is
        written to it, and one that is made anew none at all. Raises TaskCorruptedError; StreamsError if the brokers do not answer."""
        tasks = [task for task in self.in_state(TaskState.RUNNING, TaskState.PAUSED) if task.topic_ids]
        found = self._planner.topic_ids({topic for task in tasks for topic in task.topic_ids})
        lost = {task.id: topic for task in tasks for topic, known in task.topic_ids.items() if found.get(topic) != known}
        if lost:
            gone = ", ".join(f"{topic} was deleted{' and created again' if topic in found else ''}" for topic in sorted(set(lost.values())))
            raise TaskCorruptedError(lost, gone)

    def held_offsets(self) -> dict[Partition, OffsetAndMetadata]:
        """What to commit again so that offsets of idle and paused partitions do not expire (rules.md, 20): of paused tasks what the group
        holds now, since an operator may have moved it."""
        tasks = self.in_state(TaskState.RUNNING, TaskState.PAUSED)
        found = self.committed([partition for task in tasks for partition in task.inputs])
        running = {partition for task in tasks if task.state is TaskState.RUNNING for partition in task.offsets_to_commit()}
        return {partition: at for partition, at in found.items() if partition not in running}

    # -- going -----------------------------------------------------------------------------------------------------------------

    def rollback(self) -> None:
        """Every task that processes goes back to the last commit: stores, queues, processors, input (rules.md, 10). Paused and restoring
        tasks have nothing to roll back. A task whose store cannot go back (rules.md, 12) is emptied, to be restored.

        Raises StreamsError if the broker does not answer; call it again then."""
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
        """The state of these tasks does not fit their changelog: closed dirty and emptied; the next `advance` restores them from the
        start, or from a snapshot."""
        for task_id in sorted(error.tasks):
            if task_id in self._tasks:
                self._events.emit(EventKind.TASK_CORRUPTED, {"reason": str(error)}, task_id)
                self.drop([task_id])
                task = self._planner.task(task_id)
                self._tasks[task_id] = task
                task.open()
                for store in task.stores.values():
                    store.wipe()
                if self._first_state.may_begin_anew(task_id):
                    task.close(clean=False)
                    self._tasks[task_id] = self._planner.task(task_id)
        self.changed = True

    def close(self, ids: Iterable[TaskId]) -> None:
        """Closes tasks whose work is committed."""
        self._remove(ids, clean=True)

    def drop(self, ids: Iterable[TaskId] | None = None) -> None:
        """Closes tasks dirty: what is not committed is forgotten. All of them without `ids`."""
        self._remove(list(self._tasks) if ids is None else ids, clean=False)

    def _remove(self, ids: Iterable[TaskId], *, clean: bool) -> None:
        """Closes all of them, also if one fails; then raises the first failure of a clean close."""
        failed: list[Exception] = []
        for task_id in list(ids):
            task = self._tasks.pop(task_id, None)
            if task is None:
                continue
            self._waits.over(task_id)
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
            except Exception as error:
                if clean:
                    failed.append(error)
                logger.exception("task %s could not be closed", task_id, extra={"task": task_id})
        self._turn = []
        self.changed = True
        if failed:
            raise failed[0]


def _text(starts: Mapping[Partition, NextOffset]) -> str:
    return ", ".join(f"{partition}@{offset}" for partition, offset in sorted(starts.items()))
