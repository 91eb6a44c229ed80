"""The states of clients and tasks, and all transitions between them, each in one table (rules.md, 1; Kafka Streams' `KafkaStreams.State`
and `Task.State`, with PAUSED from KIP-990 and RESTORING from KIP-406)."""

from __future__ import annotations

from enum import Enum

from penstock.runtime.model.errors import StreamsError


class State(Enum):
    """The state of a client. RESTORING means that at least one active or global store of this client is being restored; other
    tasks may still process. Standbys and learners do not count."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"

    def is_running_or_rebalancing(self) -> bool:
        return self in (State.REBALANCING, State.RESTORING, State.RUNNING)

    def has_completed_shutdown(self) -> bool:
        return self in (State.NOT_RUNNING, State.ERROR)

    @property
    def number(self) -> int:
        """The value of the metric `client-state`: Kafka Streams' ordinal of the state (KIP-1091), and 7 for RESTORING, which it does not
        have."""
        return _NUMBERS[self]


_NUMBERS = {
    State.CREATED: 0,
    State.REBALANCING: 1,
    State.RUNNING: 2,
    State.PENDING_SHUTDOWN: 3,
    State.NOT_RUNNING: 4,
    State.PENDING_ERROR: 5,
    State.ERROR: 6,
    State.RESTORING: 7,
}

_ENDING = {State.PENDING_SHUTDOWN, State.PENDING_ERROR}
CLIENT_MOVES: dict[State, set[State]] = {
    State.CREATED: {State.REBALANCING} | _ENDING,
    State.REBALANCING: {State.RESTORING, State.RUNNING} | _ENDING,
    State.RESTORING: {State.RUNNING, State.REBALANCING} | _ENDING,
    State.RUNNING: {State.RESTORING, State.REBALANCING} | _ENDING,
    State.PENDING_SHUTDOWN: {State.NOT_RUNNING, State.PENDING_ERROR},
    State.NOT_RUNNING: set(),
    State.PENDING_ERROR: {State.ERROR},
    State.ERROR: set(),
}


class TaskState(Enum):
    """The state of a task. PAUSED (KIP-990): assigned and keeping its input, but processing nothing until `resume`."""

    CREATED = "CREATED"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    SUSPENDED = "SUSPENDED"
    CLOSED = "CLOSED"


TASK_MOVES: dict[TaskState, set[TaskState]] = {
    TaskState.CREATED: {TaskState.RESTORING, TaskState.CLOSED},
    TaskState.RESTORING: {TaskState.RUNNING, TaskState.SUSPENDED, TaskState.CLOSED},
    TaskState.RUNNING: {TaskState.PAUSED, TaskState.RESTORING, TaskState.SUSPENDED, TaskState.CLOSED},
    TaskState.PAUSED: {TaskState.RUNNING, TaskState.RESTORING, TaskState.SUSPENDED, TaskState.CLOSED},
    TaskState.SUSPENDED: {TaskState.RESTORING, TaskState.CLOSED},
    TaskState.CLOSED: {TaskState.CREATED},
}


class TaskKind(Enum):
    """The role of a task: active, standby (a copy for failover), or learner, which restores a task that will move here (KIP-429 v3)."""

    ACTIVE = "ACTIVE"
    STANDBY = "STANDBY"
    LEARNER = "LEARNER"

    @property
    def number(self) -> int:
        """The value of the metric `task-kind`: 0, 1, 2."""
        return _KIND_NUMBERS[self]


_KIND_NUMBERS = {TaskKind.ACTIVE: 0, TaskKind.STANDBY: 1, TaskKind.LEARNER: 2}


def check_task_move(old: TaskState, new: TaskState) -> TaskState:
    """Return `new` if the transition is allowed. Raises StreamsError otherwise."""
    if new not in TASK_MOVES[old]:
        raise StreamsError(f"illegal move of a task from {old.value} to {new.value}")
    return new
