"""The state of a worker as other threads see it: immutable, replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.kafka.input_reader import Reader
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import TaskCorruptedError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import THREAD, Metrics
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
from penstock.runtime.worker.queries import Execute, IsolationLevel, QueryPart, StoreParts, StoreQueryParameters, UncommittedPart
from penstock.runtime.worker.query_execution import answer
from penstock.runtime.worker.state_queries import QueryResult, StateQueryRequest
from penstock.runtime.worker.task_manager import TaskManager

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task. `committed` and `ends` are next offsets, `ends` as of the last fetch; `idle_since_ms` is wall-clock time, None if the task
    does not wait for input of an empty partition."""

    task_id: TaskId
    kind: TaskKind
    state: TaskState
    partitions: tuple[TopicPartition, ...]
    committed: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
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


class KnownEnds(Protocol):
    """Ends of input partitions as far as they are known; -1: not yet."""

    def known_end(self, partition: TopicPartition) -> int: ...


def task_info(task: ActiveTask, reader: KnownEnds) -> TaskInfo:
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
                parts.setdefault(name, []).append(_Part(task, store, ready, active))
        self._parts = {name: tuple(found) for name, found in parts.items()}
        self._global = global_task
        self.metadata = WorkerMetadata(state, (*(task_info(task, reader) for task in tasks), *map(follower_info, followers)))
        self.published_ms = now_ms

    def find(self, wanted: StoreQueryParameters, execute: Execute) -> StoreParts:
        """Return the parts of a store that are here now. `execute`: for reads of uncommitted data."""
        name, number = wanted.store_name, wanted.partition
        global_part = self._global_part(name)
        parts = [part for part in (*self._parts.get(name, ()), *global_part) if part.is_of(number)]
        may_answer = [part for part in parts if (part.store.is_open if wanted.stale_stores else part.active and part.ready)]
        return StoreParts(
            parts=tuple(part.read_at(wanted.isolation_level, execute) for part in may_answer),
            restoring=tuple(str(part.task or "global") for part in parts if part.active and not part.ready),
            known=frozenset(self._parts),
            whole=bool(global_part),
        )

    def query(
        self, request: StateQueryRequest[R], execute: Execute, report: Callable[[TaskCorruptedError], None], clock: Clock
    ) -> dict[int | None, QueryResult[R]]:
        """Return the answer of each requested part of a store that is open here, by partition; None is a global store."""
        parts = [part for part in (*self._parts.get(request.store_name, ()), *self._global_part(request.store_name)) if part.store.is_open]
        wanted = request.partitions
        return {
            part.partition: answer(part, request, execute, report, clock)
            for part in parts
            if wanted is None or part.partition is None or part.partition in wanted
        }

    def _global_part(self, name: str) -> list[_Part]:
        store = None if self._global is None else self._global.store(name)
        if store is None or self._global is None:
            return []
        return [_Part(None, store, self._global.phase(name) is Phase.RUNNING, True)]


def show_tasks(metrics: Metrics, view: View) -> None:
    """Register gauges of the worker's tasks, as last published."""

    def number(matches: Callable[[TaskInfo], bool]) -> Callable[[], float]:
        return lambda: float(sum(map(matches, view.metadata.tasks)))

    def of_kind(kind: TaskKind) -> Callable[[], float]:
        return number(lambda task: task.kind is kind)

    for kind in TaskKind:
        metrics.gauge_of(f"{kind.value.lower()}-tasks", THREAD, of_kind(kind))
    metrics.gauge_of("restoring-tasks", THREAD, number(lambda task: task.state in (TaskState.CREATED, TaskState.RESTORING)))
    metrics.gauge_of("paused-tasks", THREAD, number(lambda task: task.state is TaskState.PAUSED))
    metrics.gauge_of("input-lag-records", THREAD, lambda: float(sum(task.lag or 0 for task in view.metadata.tasks)))


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
        if self._global_task is not None and self._global_task.restoring:
            return State.RESTORING
        if not self._incarnations.current.granted:
            return State.REBALANCING
        if self._tasks.restoring:
            return State.RESTORING
        return State.REBALANCING if self._tasks.starting else State.RUNNING

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
    """A task's part of a store; of a global store `holder` is None. `ready`: complete, and updated by this worker's own processing.
    `active`: not a copy."""

    holder: ActiveTask | FollowerTask | None
    store: EngineStore
    ready: bool
    active: bool

    @property
    def task(self) -> TaskId | None:
        return None if self.holder is None else self.holder.id

    @property
    def partition(self) -> int | None:
        return None if self.task is None else self.task.partition

    @property
    def is_running(self) -> bool:
        return self.active and self.ready

    @property
    def inputs(self) -> Collection[TopicPartition]:
        return () if self.holder is None else self.holder.inputs

    @property
    def description(self) -> str:
        """The part's kind, state and task, for messages."""
        if self.holder is None:
            return "the global task" if self.ready else "the global task, which is being restored,"
        kind = TaskKind.ACTIVE if isinstance(self.holder, ActiveTask) else self.holder.kind
        return f"task {self.holder.id} ({kind.value}, {self.holder.state.value})"

    def processed(self) -> Mapping[TopicPartition, NextOffset]:
        """Return the next offsets of the inputs by processing. Only on the worker's thread."""
        return self.holder.processed_positions() if isinstance(self.holder, ActiveTask) else {}

    def read_at(self, isolation: IsolationLevel | None, execute: Execute) -> QueryPart:
        """Return the part as a query with this isolation reads it. Only processing leaves uncommitted data."""
        uncommitted = isolation is IsolationLevel.READ_UNCOMMITTED and self.ready and self.holder is not None
        return UncommittedPart(self.store, execute) if uncommitted else self.store

    def is_of(self, partition: int | None) -> bool:
        """Return True if it holds the requested partition."""
        return partition is None or self.task is None or self.task.partition == partition
