"""The state of a worker as other threads see it: immutable, replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.kafka.input_reader import Reader
from penstock.runtime.model.ids import Partition, TaskId
from penstock.runtime.model.states import State, TaskKind, TaskState
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.tasks.active import ActiveTask
from penstock.runtime.tasks.follower import FollowerTask
from penstock.runtime.tasks.global_state import Phase
from penstock.runtime.tasks.global_task import GlobalTask
from penstock.runtime.tasks.incidents import PausePoint
from penstock.runtime.worker.committer import Committer
from penstock.runtime.worker.followers import Followers
from penstock.runtime.worker.incarnations import Incarnations
from penstock.runtime.worker.queries import StoreParts, StoreQueryParameters
from penstock.runtime.worker.task_manager import TaskManager


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task. `committed` and `ends` are next offsets, `ends` as of the last fetch; `idle_since_ms` is wall-clock time, None if the task
    does not wait for input of an empty partition."""

    task_id: TaskId
    kind: TaskKind
    state: TaskState
    partitions: tuple[Partition, ...]
    committed: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    idle_since_ms: int | None
    paused: PausePoint | None
    checkpoint_ms: int | None

    @property
    def lag(self) -> int | None:
        """Number of records between the committed offsets and the ends; None while an end is unknown."""
        if any(partition not in self.ends for partition in self.partitions):
            return None
        return sum(max(0, self.ends[partition] - self.committed.get(partition, 0)) for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class WorkerMetadata:
    """The worker and its tasks as of the last commit or change."""

    state: State
    tasks: tuple[TaskInfo, ...]


def task_info(task: ActiveTask, reader: Reader) -> TaskInfo:
    """Return the task's current metadata. Makes no request to brokers."""
    ends = {partition: end for partition in task.inputs if (end := reader.known_end(partition)) >= 0}
    return TaskInfo(
        task_id=task.id,
        kind=TaskKind.ACTIVE,
        state=task.state,
        partitions=task.inputs,
        committed={partition: at.offset for partition, at in task.committed_offsets.items()},
        ends=ends,
        idle_since_ms=_idle_since(task),
        paused=task.paused_at,
        checkpoint_ms=task.checkpoint_ms,
    )


def _idle_since(task: ActiveTask) -> int | None:
    since = None if task.queues is None else task.queues.idle_since
    clock = task.plan.clock
    return None if since is None else clock.wall_ms() - (clock.monotonic_ms() - since)


def follower_info(task: FollowerTask) -> TaskInfo:
    """Return the metadata of a standby or learner. It reads no input, so it has no input offsets."""
    return TaskInfo(
        task_id=task.id,
        kind=task.kind,
        state=task.state,
        partitions=task.inputs,
        committed={},
        ends={},
        idle_since_ms=None,
        paused=None,
        checkpoint_ms=task.checkpoint_ms,
    )


class View:
    """State that other threads read. One thread publishes; each part is replaced as a whole, so readers need no lock."""

    def __init__(self) -> None:
        self.metadata = WorkerMetadata(State.CREATED, ())
        self.published_ms = -1
        self.fleet: Fleet | None = None
        """State of the whole application; None until this worker has read of it."""
        self._parts: dict[str, tuple[_Part, ...]] = {}
        self._global: GlobalTask | None = None

    def publish(
        self,
        state: State,
        tasks: Sequence[ActiveTask],
        followers: Sequence[FollowerTask],
        reader: Reader,
        global_task: GlobalTask | None,
        now_ms: int,
    ) -> None:
        """Replace the published state."""
        parts: dict[str, list[_Part]] = {}
        holders: list[ActiveTask | FollowerTask] = [*tasks, *followers]
        for task in holders:
            active = isinstance(task, ActiveTask)
            ready = active and task.state in (TaskState.RUNNING, TaskState.PAUSED)
            for name, store in task.stores.items():
                parts.setdefault(name, []).append(_Part(task.id, store, ready, active))
        self._parts = {name: tuple(found) for name, found in parts.items()}
        self._global = global_task
        self.metadata = WorkerMetadata(state, (*(task_info(task, reader) for task in tasks), *map(follower_info, followers)))
        self.published_ms = now_ms

    def find(self, wanted: StoreQueryParameters) -> StoreParts:
        """Return the parts of a store that are here now."""
        name, number = wanted.store_name, wanted.partition
        global_part = self._global_part(name)
        parts = [part for part in (*self._parts.get(name, ()), *global_part) if part.is_of(number)]
        may_answer = [part for part in parts if (part.store.is_open if wanted.stale_stores else part.active and part.ready)]
        return StoreParts(
            parts=tuple(part.store for part in may_answer),
            restoring=tuple(str(part.task or "global") for part in parts if part.active and not part.ready),
            known=frozenset(self._parts),
            whole=bool(global_part),
        )

    def _global_part(self, name: str) -> list[_Part]:
        store = None if self._global is None else self._global.store(name)
        if store is None or self._global is None:
            return []
        return [_Part(None, store, self._global.phase(name) is Phase.RUNNING, True)]


class Publisher:
    """Publishes the state of one worker to its `View`. Used by the worker's thread only."""

    def __init__(
        self,
        view: View,
        *,
        tasks: TaskManager,
        followers: Followers,
        global_task: GlobalTask | None,
        reader: Reader,
        incarnations: Incarnations,
        committer: Committer,
    ) -> None:
        self.view = view
        self._tasks = tasks
        self._followers = followers
        self._global_task = global_task
        self._reader = reader
        self._incarnations = incarnations
        self._committer = committer
        self.state = State.CREATED
        """The state that was published last."""

    def current_state(self) -> State:
        """Return what the client's state should be (rules.md, 1)."""
        if not self._incarnations.current.granted:
            return State.REBALANCING
        if self._tasks.restoring or (self._global_task is not None and self._global_task.restoring):
            return State.RESTORING
        if self._tasks.starting:
            return State.REBALANCING
        return State.RUNNING

    def publish(self, state: State) -> None:
        """Replace what other threads see, if the state or a task changed or a commit was made."""
        committed_at_ms = self._committer.committed_at_ms
        changed = self._tasks.changed or self._followers.changed
        if state is not self.state or changed or self.view.published_ms < committed_at_ms:
            self.state = state
            self.view.publish(state, self._tasks.all(), self._followers.all(), self._reader, self._global_task, committed_at_ms)
            self._tasks.changed = self._followers.changed = False

    def refresh(self) -> None:
        """Replace what other threads see of the tasks; the state stays."""
        self.publish(self.state)


@dataclass(frozen=True, slots=True)
class _Part:
    """A task's part of a store; of a global store `task` is None. `ready`: complete, and updated by this worker's own processing. `active`:
    not a copy."""

    task: TaskId | None
    store: EngineStore
    ready: bool
    active: bool

    def is_of(self, partition: int | None) -> bool:
        """True if it holds the requested partition."""
        return partition is None or self.task is None or self.task.partition == partition
