"""What a client asks of its workers. By name, not as functions: a worker may be another process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from runtime.coordination import Coordination
from runtime.ids import TaskId
from runtime.worker.tasks import TaskSet

Positions = dict[str, dict[int, tuple[int, int]]]
"""By store and partition: position and end of its changelog, as next offsets."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A worker is to commit, close and end. `timeout_ms` bounds how long it waits for others to learn its tasks, and for a broker that does
    not answer; None is `STOP_MS`. `leave_group`: for good; otherwise its tasks are kept for it (rules.md, 4). `siblings_stay`: it leaves
    alone, and the other workers of its instance may take its tasks over."""

    timeout_ms: int | None = None
    leave_group: bool = True
    siblings_stay: bool = False


class Call(Enum):
    """A question or an order, carried out on the worker's thread between two batches, and what it takes."""

    PAUSE_ALL = "PAUSE_ALL"
    """No arguments, no answer (KIP-834)."""
    RESUME_ALL = "RESUME_ALL"
    """No arguments, no answer."""
    RESUME = "RESUME"
    """A `TaskId`; True once the task has left PAUSED (KIP-990)."""
    STORE_POSITIONS = "STORE_POSITIONS"
    """No arguments; `Positions`."""
    ANNOUNCE_DEATH = "ANNOUNCE_DEATH"
    """Number and incarnation of another worker of this instance, whose process has ended; no answer (coordination.md, 5)."""


def carry_out(call: Call, arguments: tuple[object, ...], tasks: TaskSet, coordination: Coordination, instance: str) -> object:
    """The answer. Raises what the task set raises."""
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
