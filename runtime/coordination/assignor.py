"""Target assignment of active tasks: a pure function of members, tasks and the previous assignment (coordination.md, 1).

The first half of Kafka Streams' HighAvailabilityTaskAssignor; the second half, `copies.py`, decides when a member may get a task. Every
member gets its share by capacity, within one task, first of the tasks with state (which cost memory and disk), then of all. A task stays
where it runs if its owner is within its share, and otherwise goes to the member with the newest copy of its state. Ties go to the member
furthest below its share, then to the smallest name, so the same input gives the same result, and a second round changes nothing.

Tasks that have to move are placed in this order: first tasks with copies, those with the fewest first, since the others can go anywhere;
then by sub-topology, each task to the member furthest below its share: tasks of one sub-topology tend to cost the same, and are spread this
way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.runtime.model.ids import TaskId


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member as input of the assignor. `name` is unique and orders ties; `instance`: the instance whose state directory it uses.
    `positions`: tasks of which it has state, with the sum of their changelog offsets. `capacity`: number of workers that it counts for.
    `follows`: tasks of which it keeps a copy; `learns`: those of them that it copies as a learner; `caught_up`: those whose copy is within
    the acceptable lag. `leaves`: it gets no tasks, and its own move away. `inherits`: tasks in transit to it, which count as running there.
    `rack` (`client.rack`) and `tags` (`client.tag.*`): its location. `barred`: tasks that its version of the topology cannot run.
    `waits`: tasks that could not process there yet, because its global tables are being built."""

    name: str
    running: frozenset[TaskId] = frozenset()
    positions: Mapping[TaskId, int] | None = None
    capacity: int = 1
    follows: frozenset[TaskId] = frozenset()
    learns: frozenset[TaskId] = frozenset()
    caught_up: frozenset[TaskId] = frozenset()
    leaves: bool = False
    instance: str = ""
    inherits: frozenset[TaskId] = frozenset()
    rack: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    barred: frozenset[TaskId] = frozenset()
    waits: frozenset[TaskId] = frozenset()


def assign(
    candidates: Collection[Candidate],
    tasks: Collection[TaskId],
    acceptable_lag: int = 0,
    stateful: Collection[TaskId] | None = None,
) -> dict[str, frozenset[TaskId]]:
    """Return the target active tasks of each candidate, by name. Every task has exactly one candidate, unless none can run it. A copy at
    most `acceptable_lag` records behind the newest counts as the newest (`acceptable.recovery.lag`). Tasks in `stateful` are placed before
    the others; None: all tasks count as stateful."""
    members = sorted(candidates, key=lambda member: member.name)
    if not members:
        return {}
    shares = _Shares(members, acceptable_lag)
    heavy = frozenset(tasks if stateful is None else stateful)
    for part in ([task for task in tasks if task in heavy], [task for task in tasks if task not in heavy]):
        shares.raise_by(len(part))
        for task in _fewest_copies_first(members, _not_kept(members, part, shares)):
            if (name := shares.best(task)) is not None:
                shares.give(name, task)
    return {name: frozenset(mine) for name, mine in shares.given.items()}


class _Shares:
    """Share of tasks of each member, and the tasks that it has been given. A share is proportional to the capacity, rounded down; the
    remainder (`rest`) is given out one task at a time."""

    def __init__(self, members: list[Candidate], acceptable_lag: int) -> None:
        self._capacity = sum(member.capacity for member in members)
        self._members = members
        self._acceptable_lag = acceptable_lag
        self._count = 0
        self.given: dict[str, set[TaskId]] = {member.name: set() for member in members}

    def raise_by(self, tasks: int) -> None:
        """Increase the number of tasks to be shared."""
        self._count += tasks
        parts = {member.name: divmod(self._count * member.capacity, self._capacity) for member in self._members}
        self.least = {name: whole for name, (whole, _) in parts.items()}
        self._may_have_more = {name for name, (_, fraction) in parts.items() if fraction}
        over = sum(max(0, len(mine) - self.least[name]) for name, mine in self.given.items())
        self._rest = self._count - sum(self.least.values()) - over

    def spare(self, name: str) -> int:
        """Return the number of tasks that the member's share lacks; 0: it may have one of the rest; negative: it is full."""
        missing = self.least[name] - len(self.given[name])
        return missing if missing > 0 or (missing == 0 and self._rest > 0 and name in self._may_have_more) else -1

    def give(self, name: str, task: TaskId) -> None:
        if len(self.given[name]) == self.least[name]:
            self._rest -= 1
        self.given[name].add(task)

    def best(self, task: TaskId) -> str | None:
        """Return the member below its share whose copy is newest, then the one furthest below it; if no member that can run the task is
        below its share, the one least over it. None if no member can run it."""
        newest = max((member.positions or {}).get(task, 0) for member in self._members)

        def preference(member: Candidate) -> tuple[int, int, str]:
            behind = newest - (member.positions or {}).get(task, 0)
            return behind if behind > self._acceptable_lag else 0, -self.spare(member.name), member.name

        able = [member for member in self._members if task not in member.barred]
        below_share = [member for member in able if self.spare(member.name) >= 0]
        least_over = min((self._over(member.name) for member in able), default=0)
        best = min(below_share or [member for member in able if self._over(member.name) == least_over], key=preference, default=None)
        return None if best is None else best.name

    def _over(self, name: str) -> int:
        return len(self.given[name]) - self.least[name]


def _not_kept(members: list[Candidate], tasks: Collection[TaskId], shares: _Shares) -> list[TaskId]:
    """Keep tasks where they run, within the shares; members that run most choose first from the rest. Return the tasks not kept."""
    left = set(tasks)
    running = {member.name: len(member.running & left) + len(shares.given[member.name]) for member in members}
    for member in sorted(members, key=lambda member: (shares.least[member.name] - running[member.name], member.name)):
        for task in sorted((member.running & left) - member.barred):
            if shares.spare(member.name) < 0:
                break
            shares.give(member.name, task)
            left.discard(task)
    return sorted(left)


def _fewest_copies_first(members: list[Candidate], tasks: list[TaskId]) -> list[TaskId]:
    """Return tasks in the order of placement: those that the fewest members can run first, those without a copy last."""
    copies = Counter(task for member in members for task in member.positions or ())
    able = {task: sum(task not in member.barred for member in members) for task in tasks}
    return sorted(tasks, key=lambda task: (able[task], copies[task] or len(members) + 1, task))
