"""Tasks near what they read (`rack.aware.assignment.strategy`, KIP-925): of assignments that are balanced alike, one with less traffic.

Between racks, data centres or zones traffic costs money and time. A task reads its input from the leader of each partition, or from a
replica in its own rack (`client.rack`); where there is none, the partition's records come from another rack.

Kafka Streams solves a minimum-cost flow. Here tasks are swapped, one for one, as long as that makes the sum of costs smaller: the balance
stays as it was, and the work is bounded by the tasks that are in the wrong rack. What is promised: no assignment gets worse by it, a task
that has moved for this stays, and no pair of a task and one of the member that it is compared with is left that would gain by a swap.
What is not: the best of all assignments, which may need three tasks to change places at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.runtime.coordination.assignor import Candidate
from penstock.runtime.model.ids import TaskId

Target = Mapping[str, frozenset[TaskId]]


class RackStrategy(StrEnum):
    """`min_traffic` swaps any tasks; `balance_subtopology` only tasks of one sub-topology, so that these stay spread evenly."""

    NONE = "none"
    MIN_TRAFFIC = "min_traffic"
    BALANCE_SUBTOPOLOGY = "balance_subtopology"


@dataclass(frozen=True, slots=True)
class RackRules:
    """`traffic_cost` of each partition that is read from another rack, `non_overlap_cost` of a task that leaves where it runs; None means
    Kafka Streams' own: 10 and 1 for tasks with state, 1 and 0 for others. `racks`: of each partition that a task reads, where its
    replicas are; empty where no broker tells."""

    strategy: RackStrategy = RackStrategy.NONE
    traffic_cost: int | None = None
    non_overlap_cost: int | None = None
    racks: Mapping[TaskId, Collection[frozenset[str]]] = field(default_factory=dict)


def less_traffic(target: Target, members: Collection[Candidate], stateful: Collection[TaskId], rules: RackRules) -> Target:
    """An assignment with as many tasks for each member as `target`, and no more cost."""
    if rules.strategy is RackStrategy.NONE or not rules.racks:
        return target
    return _Swaps(target, members, stateful, rules).done()


class _Swaps:
    """The search, while it goes on."""

    def __init__(self, target: Target, members: Collection[Candidate], stateful: Collection[TaskId], rules: RackRules) -> None:
        self._members = {member.name: member for member in members}
        self._given = {name: set(tasks) for name, tasks in target.items()}
        self._stateful = stateful
        self._rules = rules

    def done(self) -> Target:
        """Swaps until nothing is gained: each swap lowers the sum of costs, so it ends."""
        while self._swap_round():
            pass
        return {name: frozenset(tasks) for name, tasks in self._given.items()}

    def _swap_round(self) -> bool:
        swapped = False
        for name in sorted(self._given):
            for task in sorted(self._given[name]):
                if self._traffic(task, name) and task in self._given[name]:
                    swapped = self._swap(task, name) or swapped
        return swapped

    def _swap(self, task: TaskId, name: str) -> bool:
        """Changes places with the task that makes most of it, if any does."""
        best: tuple[int, str, TaskId] | None = None
        for other in sorted(self._given):
            if self._members[other].rack == self._members[name].rack:
                continue
            mine = self._cost(task, other) - self._cost(task, name)
            if mine >= 0:
                continue
            if task in self._members[other].barred:
                continue
            for partner in self._given[other] - self._members[name].barred:
                if self._may_swap(task, partner):
                    change = mine + self._cost(partner, name) - self._cost(partner, other)
                    if change < 0 and (best is None or (change, other, partner) < best):
                        best = change, other, partner
        if best is None:
            return False
        _, other, partner = best
        self._given[name] = self._given[name] - {task} | {partner}
        self._given[other] = self._given[other] - {partner} | {task}
        return True

    def _may_swap(self, one: TaskId, other: TaskId) -> bool:
        if (one in self._stateful) is not (other in self._stateful):
            return False  # both kinds are balanced
        return self._rules.strategy is RackStrategy.MIN_TRAFFIC or one.subtopology == other.subtopology

    def _traffic(self, task: TaskId, name: str) -> int:
        """Partitions that would come from another rack. Where a rack is not known, none are."""
        rack = self._members[name].rack
        return sum(bool(racks) and rack not in racks for racks in self._rules.racks.get(task, ())) if rack else 0

    def _cost(self, task: TaskId, name: str) -> int:
        heavy = task in self._stateful
        traffic = self._rules.traffic_cost if self._rules.traffic_cost is not None else (10 if heavy else 1)
        leaving = self._rules.non_overlap_cost if self._rules.non_overlap_cost is not None else (1 if heavy else 0)
        return traffic * self._traffic(task, name) + (0 if task in self._members[name].running else leaving)
