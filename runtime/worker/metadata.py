"""Metadata of a client's workers, tasks and stores, in Kafka Streams' terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.tasks.incidents import PausePoint
from penstock.runtime.worker.view import TaskInfo, WorkerMetadata


@dataclass(frozen=True, slots=True)
class TaskMetadata:
    """A task of this client (Kafka Streams' `TaskMetadata`, with `is_running` of KIP-990). Offsets are next offsets. `paused`: why a task
    is PAUSED, since when, and the record."""

    task_id: TaskId
    topic_partitions: frozenset[TopicPartition]
    committed_offsets: Mapping[TopicPartition, int]
    end_offsets: Mapping[TopicPartition, int]
    time_current_idling_started: int | None
    kind: TaskKind
    state: TaskState
    paused: PausePoint | None = None

    @property
    def is_running(self) -> bool:
        """False only for a task that is PAUSED."""
        return self.state is not TaskState.PAUSED

    def __hash__(self) -> int:
        return hash((self.task_id, self.kind))


@dataclass(frozen=True, slots=True)
class ThreadMetadata:
    """A worker of this client and its tasks (Kafka Streams' `ThreadMetadata`)."""

    thread_name: str
    thread_state: str
    active_tasks: frozenset[TaskMetadata]
    standby_tasks: frozenset[TaskMetadata]
    learner_tasks: frozenset[TaskMetadata]


@dataclass(frozen=True, slots=True)
class LagInfo:
    """Lag of a local store behind the end of its changelog, in records (KIP-535)."""

    current_offset_position: int
    end_offset_position: int

    @property
    def offset_lag(self) -> int:
        return max(0, self.end_offset_position - self.current_offset_position)


def thread_metadata(name: str, worker: WorkerMetadata) -> ThreadMetadata:
    """Convert a worker's metadata to the public type."""
    by_kind = {kind: frozenset(task_metadata(task) for task in worker.tasks if task.kind is kind) for kind in TaskKind}
    return ThreadMetadata(
        thread_name=name,
        thread_state=worker.state.value,
        active_tasks=by_kind[TaskKind.ACTIVE],
        standby_tasks=by_kind[TaskKind.STANDBY],
        learner_tasks=by_kind[TaskKind.LEARNER],
    )


def task_metadata(task: TaskInfo) -> TaskMetadata:
    """Convert a task's metadata to the public type."""
    return TaskMetadata(
        task_id=task.task_id,
        topic_partitions=frozenset(task.partitions),
        committed_offsets=dict(task.committed),
        end_offsets=dict(task.ends),
        time_current_idling_started=task.idle_since_ms,
        kind=task.kind,
        state=task.state,
        paused=task.paused,
    )
