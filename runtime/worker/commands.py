"""Commands from the coordination topic, executed by the owner of the task, which alone writes its offsets (rules.md, 20)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StateDirectoryError, StreamsError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.states import TaskState
from penstock.runtime.snapshots.export_manager import ExportManager
from penstock.runtime.snapshots.local import begin_snapshot, left_out, snapshots_directory
from penstock.runtime.snapshots.manifest import GLOBAL, PartitionOffset, PartitionTime, TaskManifest, read_manifest, task_order
from penstock.runtime.snapshots.retention import KEPT, mark_complete, prune
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.tasks.active import ActiveTask
from penstock.runtime.tasks.global_task import GlobalTask
from penstock.runtime.worker.committer import Committer
from penstock.runtime.worker.spec import WorkerSpec
from penstock.runtime.worker.task_manager import TaskManager

logger = logging.getLogger(__name__)


class Answer(NamedTuple):
    """Result of a command: `ok`, and if not, the reason; `data` goes to the sender."""

    ok: bool
    reason: str = ""
    data: Mapping[str, object] = {}


Work = Callable[[], Answer | None]
"""A command that takes several turns: called once per turn, until it returns the answer."""


LEAST_FREE_BYTES = 64 << 20
"""A checkpoint flushes what the store holds in memory. On a disk that is almost full that could fail in the running store itself."""
_READY = (TaskState.RUNNING, TaskState.PAUSED)


class Snapshotting:
    """One snapshot under way. Call `step` until it is done.

    A checkpoint takes some ten milliseconds for each store with recent writes. All tasks of a large worker at once would take a second,
    which is not needed, since a snapshot is consistent per task. A commit comes first, so that the snapshot is at least as new as the
    command; a later task is written as of its own last commit. Work that does not need the worker's thread is done on another one: above
    all, writing the files of in-memory stores.
    """

    def __init__(
        self,
        snapshots: Path,
        snapshot_id: str,
        *,
        application: str,
        instance: str,
        tasks: TaskManager,
        wanted: Collection[str] | None,
        global_task: GlobalTask | None,
        clock: Clock,
    ) -> None:
        """`wanted`: tasks to write, None for all that are here; `global_task`: written too, if given."""
        self._snapshots = snapshots
        self._id = snapshot_id
        self._application = application
        self._instance = instance
        self._tasks = tasks
        self._global_task = global_task if wanted is None or GLOBAL in wanted else None
        self._clock = clock
        self._left = [each.id for each in tasks.in_state(*_READY) if each.stores and (wanted is None or str(each.id) in wanted)]
        self._background = ThreadPoolExecutor(1, "snapshot")
        self._finishing: Future[Path] | None = None
        self.written: list[str] = []

    @property
    def directory(self) -> Path:
        """Directory with the parts of this instance."""
        return self._snapshots / self._id

    def step(self) -> bool:
        """Begin with the next task, once the previous one is written. Return True when none is left. A task that was closed, or is being
        restored, is left out.

        Raises StateDirectoryError where the disk refuses; this worker's files of the snapshot are removed then.
        """
        try:
            if self._finishing is not None:
                if not self._finishing.done():
                    return False
                self.written.append(self._finishing.result().name)
                self._finishing = None
            if self._global_task is not None:
                self._begin_global(self._global_task)
                self._global_task = None
            elif self._left:
                self._begin(self._left.pop(0))
        except StateDirectoryError:
            self._background.shutdown()
            for name in self.written:
                shutil.rmtree(self.directory / name, ignore_errors=True)
            raise
        if self._left or self._finishing is not None:
            return False
        self._background.shutdown()
        return True

    def _begin(self, task_id: TaskId) -> None:
        task = self._tasks.get(task_id)
        if task is None or task.state not in _READY:
            return
        stores = {store: task.changelogs.get(name) for name, store in task.stores.items()}
        self._take(str(task_id), stores, {}, task.committed_positions(), task.committed_times(), task.committed_stream_time())

    def _begin_global(self, global_task: GlobalTask) -> None:
        topics = global_task.commit_if_complete()
        if topics is None:
            return
        offsets = {partition: offset for store in topics for partition, offset in store.committed_offsets().items()}
        self._take(GLOBAL, dict.fromkeys(topics), {store.name: topic for store, topic in topics.items()}, offsets, {}, -1)

    def _take(
        self,
        task: str,
        stores: Mapping[EngineStore, TopicPartition | None],
        global_topics: Mapping[str, str],
        offsets: Mapping[TopicPartition, NextOffset],
        times: Mapping[TopicPartition, int],
        stream_time: int,
    ) -> None:
        """Begin checkpoints of the stores; the rest is written on another thread."""
        self._check_space()
        part = TaskManifest(
            application=self._application,
            snapshot=self._id,
            task=task,
            instance=self._instance,
            at_ms=self._clock.wall_ms(),
            stream_time=stream_time,
            input_offsets=PartitionOffset.of(offsets),
            partition_times=PartitionTime.of(times),
            stores=[],
            left_out=left_out(stores),
        )
        self._finishing = self._background.submit(begin_snapshot(self._snapshots, part, stores, global_topics))

    def _check_space(self) -> None:
        self._snapshots.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._snapshots.parent).free
        if free < LEAST_FREE_BYTES:
            raise StateDirectoryError(
                f"snapshot {self._id}: only {free >> 20} MiB are free at {self._snapshots}, and {LEAST_FREE_BYTES >> 20} are kept for the "
                f"running stores. Nothing was written; make room and take it again"
            )


class SnapshotCommands:
    """Commands for snapshots: `snapshot`, `keep-snapshots`, `export-snapshot`. Used by the worker's thread only."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        tasks: TaskManager,
        stateful: Collection[TaskId],
        commit: Callable[[], object],
        global_task: GlobalTask | None,
    ) -> None:
        """`stateful` are all tasks of the application that have stores."""
        self._application = spec.application_id
        self._instance = spec.instance
        self._snapshots = snapshots_directory(spec.directory.path)
        self._identity = spec.identity
        self._tasks = tasks
        self._expected = [*([GLOBAL] if global_task is not None else []), *(str(task) for task in sorted(stateful))]
        self._commit = commit
        self._global_task = global_task
        self._clock = spec.clock
        self.exports = ExportManager()

    def snapshot(self, args: Mapping[str, object]) -> Work:
        """Begin the snapshot `snapshot_id` of the active tasks here, or of those among them that `tasks` names. With `global` the first
        worker of the instance writes the global stores too. The answer contains the written `tasks` and their `parts`, the tasks
        `expected` of the whole application, and the `directory` of the instance's part."""
        names = args.get("tasks")
        wanted = None if names is None else [str(name) for name in names] if isinstance(names, list) else [str(names)]
        snapshot_id = str(args["snapshot_id"])
        self._commit()
        under_way = Snapshotting(
            self._snapshots,
            snapshot_id,
            application=self._application,
            instance=self._instance,
            tasks=self._tasks,
            wanted=wanted,
            global_task=self._global_task if args.get("global") and self._identity.number == 1 else None,
            clock=self._clock,
        )

        def step() -> Answer | None:
            try:
                if not under_way.step():
                    return None
            except StateDirectoryError as error:
                return Answer(False, str(error))
            written = sorted(under_way.written, key=task_order)
            parts = [msgspec.to_builtins(read_manifest(under_way.directory / task).summary) for task in written]
            return Answer(True, "", {"directory": str(under_way.directory), "tasks": written, "parts": parts, "expected": self._expected})

        return step

    def prune(self, args: Mapping[str, object]) -> Answer:
        """Apply retention: mark the snapshots in `complete` as complete, remove those in `unwanted`, and all but the newest `keep`. The
        command names all complete snapshots each time, because this instance may have been down for the earlier commands."""
        for name in _names(args.get("complete")):
            mark_complete(self._snapshots, name)
        keep, unwanted = int(str(args.get("keep", KEPT))), _names(args.get("unwanted"))
        return Answer(True, "", {"removed": prune(self._snapshots, self._clock.wall_ms(), keep=keep, unwanted=unwanted)})

    def export(self, args: Mapping[str, object]) -> Answer:
        """Copy the parts `tasks` of this instance's share of `snapshot_id` to `uri`, if `start` is set; return the progress."""
        share, uri = self._snapshots / str(args["snapshot_id"]), str(args["uri"])
        names = args.get("tasks")
        try:
            if args.get("start") and share.is_dir() and isinstance(names, list):
                self.exports.start(share, uri, [str(name) for name in names])
            return Answer(True, "", msgspec.structs.asdict(self.exports.progress(share, uri)))
        except (OSError, StateDirectoryError) as error:
            return Answer(False, str(error))


def _names(given: object) -> list[str]:
    return [str(name) for name in given] if isinstance(given, list) else []


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
        partition = TopicPartition(str(args["topic"]), int(str(args["partition"])))
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
        """Rebuild a global store on request (KIP-406). With `dry_run`, only report on it (`GlobalTask.report`)."""
        store = str(args["store"])
        if self._global_task is None:
            return Answer(False, "there are no global stores here")
        if not args.get("dry_run"):
            self._global_task.rebuild(store, str(args.get("reason", "asked for")))
        return Answer(True, "", self._global_task.report(store))

    def _close_instance(self, task: TaskId | None, args: Mapping[str, object]) -> Answer:
        """Close the instance as `KafkaStreams.close`, within `timeout_ms` if given."""
        timeout = args.get("timeout_ms")
        self._close(None if timeout is None else int(str(timeout)))
        return Answer(True)
