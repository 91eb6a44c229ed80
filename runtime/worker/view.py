"""What a worker shows of itself to other threads: immutable, swapped in whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.errors import InvalidStateStoreError
from runtime.ids import Partition, TaskId
from runtime.intake.reader import Reader
from runtime.states import State, TaskKind, TaskState
from runtime.stores.base import EngineStore
from runtime.tasks.active import ActiveTask
from runtime.tasks.follower import FollowerTask
from runtime.tasks.global_ import GlobalTask
from runtime.tasks.global_state import Phase
from runtime.tasks.incidents import PausePoint
from runtime.worker.queries import StoreQuery


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task. `committed` and `ends` are next offsets, `ends` as of the last fetch; `idle_since_ms` is monotonic time, None if the task
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
        """Records between what is committed and the ends; None as long as an end is unknown."""
        if any(partition not in self.ends for partition in self.partitions):
            return None
        return sum(max(0, self.ends[partition] - self.committed.get(partition, 0)) for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class WorkerMetadata:
    """The worker and its tasks as of the last commit or change."""

    state: State
    tasks: tuple[TaskInfo, ...]


def task_info(task: ActiveTask, reader: Reader) -> TaskInfo:
    """The task as it stands now. Asks no broker."""
    ends = {partition: end for partition in task.inputs if (end := reader.known_end(partition)) >= 0}
    return TaskInfo(
        task_id=task.id,
        kind=TaskKind.ACTIVE,
        state=task.state,
        partitions=task.inputs,
        committed={partition: at.offset for partition, at in task.committed_offsets.items()},
        ends=ends,
        idle_since_ms=None if task.queues is None else task.queues.idle_since,
        paused=task.paused_at,
        checkpoint_ms=task.checkpoint_ms,
    )


def follower_info(task: FollowerTask) -> TaskInfo:
    """A standby or learner. It reads no input, so it has no offsets of it."""
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
    """What other threads read. One thread publishes; each part is replaced as a whole, so readers need no lock."""

    def __init__(self) -> None:
        self.metadata = WorkerMetadata(State.CREATED, ())
        self.published_ms = -1
        self._stores: dict[str, tuple[EngineStore, ...]] = {}
        self._restoring: frozenset[str] = frozenset()
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
        """Takes the place of what was shown before."""
        stores: dict[str, list[EngineStore]] = {}
        restoring: set[str] = set()
        for task in tasks:
            ready = task.state in (TaskState.RUNNING, TaskState.PAUSED)
            for name, store in task.stores.items():
                if ready:
                    stores.setdefault(name, []).append(store)
                else:
                    restoring.add(name)
        self._stores = {name: tuple(parts) for name, parts in stores.items()}
        self._restoring = frozenset(restoring)
        self._global = global_task
        self.metadata = WorkerMetadata(state, (*(task_info(task, reader) for task in tasks), *map(follower_info, followers)))
        self.published_ms = now_ms

    def query(self, name: str) -> StoreQuery:
        """Raises InvalidStateStoreError if the store is unknown, not here, or still being restored."""
        found = self._parts(name)
        if not found:
            if name in self._restoring or (self._global is not None and self._global.store(name) is not None):
                raise InvalidStateStoreError(f"store {name!r} is still being restored")
            known = ", ".join(sorted(self._stores)) or "none"
            raise InvalidStateStoreError(f"store {name!r} is unknown or not on this client (stores here: {known})")
        return StoreQuery(name, lambda: self._parts(name))

    def _parts(self, name: str) -> tuple[EngineStore, ...]:
        parts = self._stores.get(name, ())
        if parts or self._global is None:
            return parts
        store = self._global.store(name)
        return () if store is None or self._global.phase(name) is not Phase.RUNNING else (store,)
