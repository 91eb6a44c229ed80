"""Remote calls of a client to its workers. By name, not as functions: a worker may be another process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.runtime.coordination import Coordination
from penstock.runtime.model.ids import TaskId
from penstock.runtime.worker.task_manager import TaskManager

Positions = dict[str, dict[int, tuple[int, int]]]
"""By store and partition: position and end of its changelog, as next offsets."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Request to commit and close. `timeout_ms` bounds the wait for others to learn its tasks, and for a broker that does not answer; None
    is `STOP_MS`. `leave_group`: for good; otherwise its tasks are reserved for it (rules.md, 4). `siblings_stay`: only this worker
    leaves, and the other workers of its instance may take its tasks over."""

    timeout_ms: int | None = None
    leave_group: bool = True
    siblings_stay: bool = False


class Call(Enum):
    """A call that the worker's thread executes between two batches, and its arguments."""

    PAUSE_ALL = "PAUSE_ALL"
    """No arguments, no result (KIP-834)."""
    RESUME_ALL = "RESUME_ALL"
    """No arguments, no result."""
    RESUME = "RESUME"
    """A `TaskId`; True once the task has left PAUSED (KIP-990)."""
    STORE_POSITIONS = "STORE_POSITIONS"
    """No arguments; `Positions`."""
    ANNOUNCE_DEATH = "ANNOUNCE_DEATH"
    """Number and incarnation of another worker of this instance, whose process has exited; no result (coordination.md, 5)."""


def dispatch(call: Call, arguments: tuple[object, ...], tasks: TaskManager, coordination: Coordination, instance: str) -> object:
    """Execute a call on the worker's thread and return its result. Raises what the task manager raises."""
    match call, arguments:
        case Call.PAUSE_ALL, ():
            tasks.pause_all()
        case Call.RESUME_ALL, ():
            tasks.resume_all()
        case Call.RESUME, (TaskId() as task,):
            return tasks.resume(task)
        case Call.STORE_POSITIONS, ():
            return tasks.store_positions()
        case Call.ANNOUNCE_DEATH, (int(worker), int(incarnation)):
            coordination.announce_death(instance, worker, incarnation)
        case _:
            raise TypeError(f"{call.value} does not take {arguments!r}")
    return None
