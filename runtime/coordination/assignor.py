"""Who should run what: a pure function of members, tasks and what was before (coordination.md, 1).

Kafka Streams' HighAvailabilityTaskAssignor without warm-ups: every member gets its share by capacity, within one task; a task stays where it
runs if its owner is within its share, and otherwise goes to the member whose copy of the state lags least. Ties fall to the member with
the fewest tasks, then to the smallest name, so the same input gives the same answer, and a second round changes nothing.

Tasks of one sub-topology tend to be alike, and tasks of different ones not: what has to be dealt is therefore dealt sub-topology by sub-topology,
each time beginning with the least loaded member.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from runtime.ids import TaskId


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member as the assignor sees it. `name` is unique and orders ties. `positions`: tasks of which it has state, with the sum of their changelog
    offsets. `capacity`: how many workers it counts for."""

    name: str
    running: frozenset[TaskId] = frozenset()
    positions: Mapping[TaskId, int] | None = None
    capacity: int = 1


def assign(candidates: Collection[Candidate], tasks: Collection[TaskId]) -> dict[str, frozenset[TaskId]]:
    """The wanted active tasks of each candidate, by name. Every task is given to exactly one, unless there are no candidates."""
    members = sorted(candidates, key=lambda member: member.name)
    if not members:
        return {}
    shares = _shares(members, len(tasks))
    wanted: dict[str, set[TaskId]] = {member.name: set() for member in members}
    left = _keep_running(members, sorted(tasks), shares, wanted)
    for task in left:
        wanted[_best(members, task, shares, wanted).name].add(task)
    return {name: frozenset(mine) for name, mine in wanted.items()}


def _shares(members: list[Candidate], count: int) -> dict[str, int]:
    """How many tasks each may have: by capacity, the rest of the division to those that run most, so that the fewest tasks move."""
    capacity = sum(member.capacity for member in members)
    shares = {member.name: count * member.capacity // capacity for member in members}
    rest = count - sum(shares.values())
    by_surplus = sorted(members, key=lambda member: (shares[member.name] - len(member.running), member.name))
    for member in by_surplus[:rest]:
        shares[member.name] += 1
    return shares


def _keep_running(members: list[Candidate], tasks: list[TaskId], shares: Mapping[str, int], wanted: dict[str, set[TaskId]]) -> list[TaskId]:
    """Leaves tasks where they run, as far as the share goes. Returns those that have to be placed."""
    left: list[TaskId] = []
    for task in tasks:
        owner = next((member for member in members if task in member.running and len(wanted[member.name]) < shares[member.name]), None)
        if owner is None:
            left.append(task)
        else:
            wanted[owner.name].add(task)
    return left


def _best(members: list[Candidate], task: TaskId, shares: Mapping[str, int], wanted: Mapping[str, set[TaskId]]) -> Candidate:
    """The member within its share whose copy is newest, then the one with most room."""
    free = [member for member in members if len(wanted[member.name]) < shares[member.name]]
    return min(
        free, key=lambda member: (-(member.positions or {}).get(task, -1), len(wanted[member.name]) - shares[member.name], member.name)
    )
