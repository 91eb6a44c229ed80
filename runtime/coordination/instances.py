"""Placement by instance. Workers of one instance share a state directory, so each of them finds the state of its tasks (coordination.md,
1).

So tasks are placed on instances first, as if each were one member, and then distributed among its workers. A copy is then never on the same
instance as its active task or another copy, and a task that moves between workers of one instance needs no learner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.runtime.coordination.assignor import Candidate, assign
from penstock.runtime.model.ids import TaskId

Sets = Mapping[str, frozenset[TaskId]]


def home(worker: Candidate) -> str:
    """Return the name of a worker's instance; the worker's own name if it has none."""
    return worker.instance or worker.name


def as_instances(workers: Collection[Candidate]) -> list[Candidate]:
    """Return one candidate per instance, sorted by name. Leaving workers add no capacity, unless all workers of the instance leave."""
    found = []
    for name, mine in sorted(_by_home(workers).items()):
        positions: dict[TaskId, int] = {}
        for worker in mine:
            for task, position in (worker.positions or {}).items():
                positions[task] = max(position, positions.get(task, 0))
        follows = _all(worker.follows for worker in mine)
        found.append(
            Candidate(
                name,
                _all(worker.running for worker in mine),
                positions,
                sum(worker.capacity for worker in _staying(mine)),
                follows,
                follows - _all(worker.follows - worker.learns for worker in mine),
                _all(worker.caught_up for worker in mine),
                all(worker.leaves for worker in mine),
                inherits=_all(worker.inherits for worker in mine),
                rack=mine[0].rack,
                tags=mine[0].tags,
                barred=_all(worker.barred for worker in mine),
                waits=frozenset.intersection(*(worker.waits for worker in mine)),
            )
        )
    return found


def share_out(
    workers: Collection[Candidate], active: Sets, standby: Sets, learner: Sets, stateful: Collection[TaskId]
) -> tuple[Sets, Sets, Sets]:
    """Distribute the tasks of instances evenly, within one, among their workers. As far as that allows, a task stays with the worker that
    runs it, a copy with the one that follows it, and a copy that becomes active with the same worker."""
    actives: dict[str, frozenset[TaskId]] = {}
    standbys: dict[str, frozenset[TaskId]] = {}
    learners: dict[str, frozenset[TaskId]] = {}
    for name, mine in _by_home(workers).items():
        idle = dict.fromkeys((worker.name for worker in mine), frozenset[TaskId]())
        staying = _staying(mine)
        waits = frozenset.intersection(*(worker.waits for worker in staying))  # of each: then it makes no difference
        owners = assign(
            [replace(_holding(worker, worker.running, worker.follows), barred=worker.waits - waits) for worker in staying],
            active[name],
            stateful=stateful,
        )
        keepers = assign([_holding(worker, worker.follows, worker.running) for worker in _staying(mine)], standby[name] | learner[name])
        actives.update(idle | owners)
        standbys.update(idle | {worker: tasks & standby[name] for worker, tasks in keepers.items()})
        learners.update(idle | {worker: tasks & learner[name] for worker, tasks in keepers.items()})
    return actives, standbys, learners


def _holding(worker: Candidate, holds: frozenset[TaskId], has_open: frozenset[TaskId]) -> Candidate:
    """Return a worker as a candidate among its siblings. They share all files, so only an open store counts as a position."""
    return Candidate(worker.name, holds, dict.fromkeys(has_open, 1), worker.capacity)


def _staying(workers: Sequence[Candidate]) -> Sequence[Candidate]:
    return [worker for worker in workers if not worker.leaves] or workers


def _by_home(workers: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    found: dict[str, list[Candidate]] = {}
    for worker in workers:
        found.setdefault(home(worker), []).append(worker)
    return found


def _all(sets: Iterable[frozenset[TaskId]]) -> frozenset[TaskId]:
    return frozenset().union(*sets)
