"""Commands from the coordination topic, executed by the owner of the task, which alone writes its offsets (rules.md, 20)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import Partition, TaskId
from penstock.runtime.model.states import TaskState
from penstock.runtime.tasks.active import ActiveTask
from penstock.runtime.tasks.global_task import GlobalTask
from penstock.runtime.worker.answers import Answer, Work
from penstock.runtime.worker.committer import Committer
from penstock.runtime.worker.snapshotting import SnapshotCommands
from penstock.runtime.worker.task_manager import TaskManager

logger = logging.getLogger(__name__)


class Commands:
    """Implementation of each kind of command. Used by the worker's thread only, between two batches."""

    def __init__(
        self,
        *,
        tasks: TaskManager,
        committer: Committer,
        close: Callable[[int | None], None],
        snapshots: SnapshotCommands,
        global_task: GlobalTask | None = None,
    ) -> None:
        self._tasks = tasks
        self._committer = committer
        self._close = close
        self._global_task = global_task
        self._kinds: dict[str, Callable[[TaskId | None, Mapping[str, object]], Answer | Work]] = {
            "resume": self._resume,
            "pause": self._pause,
            "shift": self._shift,
            "snapshot": lambda _, args: snapshots.snapshot(args),
            "keep-snapshots": lambda _, args: snapshots.prune(args),
            "export-snapshot": lambda _, args: snapshots.export(args),
            "rebuild-global-store": self._rebuild_global_store,
            "close": self._close_instance,
        }

    def run(self, kind: str, task: TaskId | None, args: Mapping[str, object]) -> Answer | Work:
        """Execute a command, or begin it. Its own failure becomes its answer; the failure of a commit is raised."""
        handle = self._kinds.get(kind)
        if handle is None:
            return Answer(False, f"unknown command {kind!r}: known are {', '.join(sorted(self._kinds))}")
        try:
            return handle(task, args)
        except (KeyError, ValueError) as error:
            return Answer(False, f"command {kind}: wrong or missing argument: {error}")

    def _find(self, task: TaskId | None) -> ActiveTask | str:
        if task is None:
            return "which task? The command names none"
        return self._tasks.get(task) or f"task {task} is not here"

    def _resume(self, task: TaskId | None, args: Mapping[str, object]) -> Answer:
        found = self._find(task)
        if isinstance(found, str):
            return Answer(False, found)
        if found.state is TaskState.RUNNING:
            return Answer(True, f"task {found.id} was running already")
        try:
            return Answer(True) if self._tasks.resume(found.id) else Answer(False, f"task {found.id} is {found.state.value}, not PAUSED")
        except StreamsError as error:
            return Answer(False, str(error))

    def _pause(self, task: TaskId | None, args: Mapping[str, object]) -> Answer:
        found = self._find(task)
        if isinstance(found, str):
            return Answer(False, found)
        if found.state is TaskState.PAUSED:
            return Answer(True, f"task {found.id} was paused already")
        if found.state is not TaskState.RUNNING:
            return Answer(False, f"task {found.id} is {found.state.value}: only a running task can be paused")
        self._tasks.request_pause(found.id)
        self._committer.commit()
        return Answer(True)

    def _shift(self, task: TaskId | None, args: Mapping[str, object]) -> Answer:
        """Shift a committed offset by compare-and-set: to `to`, only if it is `from` and the task is paused. An offset that is `to` already
        is success."""
        found = self._find(task)
        if isinstance(found, str):
            return Answer(False, found)
        partition = Partition(str(args["topic"]), int(str(args["partition"])))
        old, new = int(str(args["from"])), int(str(args["to"]))
        if partition not in found.inputs:
            return Answer(False, f"{partition} is not an input of task {found.id}")
        if new < 0:
            return Answer(False, f"{new} is not an offset")
        try:
            committed = self._tasks.committed([partition]).get(partition)
        except StreamsError as error:
            return Answer(False, str(error))
        at = None if committed is None else committed.offset
        if at == new:
            return Answer(True, f"{partition} was at {new} already", {"committed": new, "already": True})
        if found.state is not TaskState.PAUSED:
            return Answer(False, f"task {found.id} is {found.state.value}, not PAUSED: its offsets are its own")
        if committed is None or at != old:
            return Answer(False, f"{partition} is at {at}, not at {old}: it was moved meanwhile", {"committed": at})
        shift = self._committer.compare_and_set({partition: committed._replace(offset=new)}, {partition: committed})
        self._committer.commit(shift)
        if partition in shift.moved:
            at = shift.moved[partition].offset
            return Answer(False, f"{partition} is at {at}, not at {old}: it was moved during the commit", {"committed": at})
        logger.info("task %s: committed offset of %s shifted from %d to %d", found.id, partition, old, new)
        return Answer(True, "", {"committed": new, "already": False})

    def _rebuild_global_store(self, task: TaskId | None, args: Mapping[str, object]) -> Answer:
        """Rebuild a global store on request (KIP-406). With `dry_run`, only report its phase."""
        store = str(args["store"])
        if self._global_task is None:
            return Answer(False, "there are no global stores here")
        topic = self._global_task.topic_of(store)
        if not args.get("dry_run"):
            self._global_task.rebuild(store, str(args.get("reason", "asked for")))
        return Answer(True, "", {"topic": topic, "phase": self._global_task.phase(store).value})

    def _close_instance(self, task: TaskId | None, args: Mapping[str, object]) -> Answer:
        """Close the instance as `KafkaStreams.close`, within `timeout_ms` if given."""
        timeout = args.get("timeout_ms")
        self._close(None if timeout is None else int(str(timeout)))
        return Answer(True)
