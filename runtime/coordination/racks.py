"""Rack-aware assignment (`rack.aware.assignment.strategy`, KIP-925): less traffic between racks at the same balance.

Traffic between racks, data centres or zones costs money and time. A task reads its input from the leader of each partition, or from a
replica in its own rack (`client.rack`); without one, the partition's records come from another rack.

Kafka Streams solves a minimum-cost flow. Here two tasks are swapped as long as that lowers the sum of costs, so the balance is kept, and
the work is bounded by the number of tasks in the wrong rack. Guaranteed: no assignment gets worse, a task that was moved for this stays,
and no swap of two tasks is left that would lower the sum. Not guaranteed: the optimum, which may need a rotation of three tasks.
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
    """Costs and racks of the assignment. `traffic_cost`: of each partition that is read from another rack; `non_overlap_cost`: of a task
    that moves to another member; None means Kafka Streams' defaults: 10 and 1 for tasks with state, 1 and 0 for others. `racks`: for each
    partition that a task reads, the racks of its replicas; empty if unknown."""

    strategy: RackStrategy = RackStrategy.NONE
    traffic_cost: int | None = None
    non_overlap_cost: int | None = None
    racks: Mapping[TaskId, Collection[frozenset[str]]] = field(default_factory=dict)


def less_traffic(target: Target, members: Collection[Candidate], stateful: Collection[TaskId], rules: RackRules) -> Target:
    """Return an assignment with as many tasks per member as `target`, at the same or a lower cost."""
    if rules.strategy is RackStrategy.NONE or not rules.racks:
        return target
    return _Swaps(target, members, stateful, rules).run()


class _Swaps:
    """Search for swaps that lower the sum of costs."""

    def __init__(self, target: Target, members: Collection[Candidate], stateful: Collection[TaskId], rules: RackRules) -> None:
        self._members = {member.name: member for member in members}
        self._given = {name: set(tasks) for name, tasks in target.items()}
        self._stateful = stateful
        self._rules = rules

    def run(self) -> Target:
        """Swap until no swap lowers the sum of costs. Each lowers it, so the search ends."""
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
        """Swap the task with the one that lowers the costs most, if any does."""
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
        """Return the number of partitions that would be read from another rack; those whose racks are unknown do not count."""
        rack = self._members[name].rack
        return sum(bool(racks) and rack not in racks for racks in self._rules.racks.get(task, ())) if rack else 0

    def _cost(self, task: TaskId, name: str) -> int:
        heavy = task in self._stateful
        traffic = self._rules.traffic_cost if self._rules.traffic_cost is not None else (10 if heavy else 1)
        leaving = self._rules.non_overlap_cost if self._rules.non_overlap_cost is not None else (1 if heavy else 0)
        return traffic * self._traffic(task, name) + (0 if task in self._members[name].running else leaving)
