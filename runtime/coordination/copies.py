"""Placement of copies, and the time at which an active task may move to its target (coordination.md, 2).

An active task never moves to a member that is not ready. It stays where it runs (or goes to a member with a complete copy, if no member
runs it), and the target member gets a *learner*, which restores the changelog and reports when it has caught up. The next call then places
the active task there. A move takes as long as its restore, and costs one hand-over.

A member whose global tables are being built is not ready for tasks that may read them, unless every member with their state builds them:
the tasks stay where they process. It restores their state meanwhile.

A member that leaves has an empty target; its tasks stay until others have learned them.

A *standby* replaces the owner when that dies. It is placed where it shares the fewest tags (zone, rack) with the owner and other copies;
among equals, a member that follows the task already is preferred, then the one with most of its state on disk.

Kafka Streams' HighAvailabilityTaskAssignor (`TaskMovement`, and its default standby assignor), with one difference: there a warm-up ends
at a probing rebalance, every ten minutes; here when the follower reports that it has caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.runtime.coordination.assignor import Candidate, assign
from penstock.runtime.coordination.instances import as_instances, share_out
from penstock.runtime.coordination.racks import RackRules, less_traffic
from penstock.runtime.model.ids import TaskId


@dataclass(frozen=True, slots=True)
class Placement:
    """Tasks to run, to keep a copy of, and to learn, by the member's name."""

    active: Mapping[str, frozenset[TaskId]]
    standby: Mapping[str, frozenset[TaskId]]
    learner: Mapping[str, frozenset[TaskId]]


@dataclass(frozen=True, slots=True)
class CopyRules:
    """Settings of the placement. `stateful`: tasks that have state to copy. `acceptable_lag` in records (`acceptable.recovery.lag`);
    `standbys` per task (`num.standby.replicas`); `warmups`: learners at a time, of all members together (`max.warmup.replicas`). `tags` by
    which standbys are kept apart (`rack.aware.assignment.tags`); `racks`: rack-aware assignment of active tasks."""

    stateful: frozenset[TaskId]
    acceptable_lag: int = 0
    standbys: int = 0
    warmups: int = 2
    tags: tuple[str, ...] = ()
    racks: RackRules = field(default_factory=RackRules)


def place(candidates: Collection[Candidate], tasks: Collection[TaskId], rules: CopyRules) -> Placement:
    """Return the placement of all tasks. Each task is active at exactly one member, unless none can run it; no instance has a task
    twice."""
    members = as_instances(candidates)
    staying = [member for member in members if not member.leaves] or members
    by_name = {member.name: member for member in members}
    target = less_traffic(assign(staying, tasks, rules.acceptable_lag, rules.stateful), staying, rules.stateful, rules.racks)
    active: dict[str, set[TaskId]] = {member.name: set() for member in members}
    waiting: list[tuple[TaskId, str]] = []
    for task, wanted in sorted((task, name) for name, mine in target.items() for task in mine):
        able = [member for member in members if task not in member.barred]
        stateful = task in rules.stateful
        source = _ready_source(task, by_name[wanted], able, target, rules) if stateful or task in by_name[wanted].waits else None
        active[source or wanted].add(task)
        if source is not None and stateful:
            waiting.append((task, wanted))
    swaps = {(task, name) for task, name in waiting if rules.standbys and task in by_name[name].follows - by_name[name].learns}
    learner = _learners([move for move in waiting if move not in swaps], members, rules)
    standby = _standbys(staying, active, learner, swaps, [task for task in tasks if task in rules.stateful], rules)
    actives, standbys, learners = ({name: frozenset(each.get(name, ())) for name in by_name} for each in (active, standby, learner))
    return Placement(*share_out(candidates, actives, standbys, learners, rules.stateful))


def _ready_source(
    task: TaskId, wanted: Candidate, members: list[Candidate], target: Mapping[str, frozenset[TaskId]], rules: CopyRules
) -> str | None:
    """Return the member that runs a task until its target has caught up; None if the target may have it now, or no other member is
    ready."""
    inheritor = next((member for member in members if task in member.inherits and not member.leaves), None)
    if inheritor is not None:
        return None if inheritor is wanted else inheritor.name  # one hand-over at a time
    newest = max(_position(member, task) for member in members)

    def complete(member: Candidate) -> bool:
        return task in member.caught_up or newest - _position(member, task) <= rules.acceptable_lag

    built = any(complete(member) and task not in member.waits for member in members)

    def ready(member: Candidate) -> bool:
        return complete(member) and not (built and task in member.waits)

    runner = next((member for member in members if task in member.running and member is not wanted and ready(member)), None)
    if runner is not None and task not in wanted.running | wanted.caught_up:
        return runner.name  # also if little is missing: the target opens and completes its stores before the task moves
    if ready(wanted):
        return None
    better = [member for member in members if ready(member)]
    if task in rules.stateful and task in wanted.running and not any(task in member.caught_up for member in better):
        return None  # it restores already; an old copy without a follower is no better

    def preference(member: Candidate) -> tuple[bool, bool, int, str]:
        return task not in member.running, task not in member.caught_up, len(target.get(member.name, ())), member.name

    return min(better, key=preference).name


def _position(member: Candidate, task: TaskId) -> int:
    return (member.positions or {}).get(task, 0)


def _learners(waiting: list[tuple[TaskId, str]], members: list[Candidate], rules: CopyRules) -> dict[str, set[TaskId]]:
    """Return learners for the waiting moves, up to `warmups` at a time, those already begun first. Learners within the acceptable lag take
    a moment and do not count."""
    learner: dict[str, set[TaskId]] = {member.name: set() for member in members}
    by_name = {member.name: member for member in members}
    counted = []
    for task, name in sorted(waiting, key=lambda move: (move[0] not in by_name[move[1]].follows, move)):
        missing = max(_position(member, task) for member in members) - _position(by_name[name], task)
        if missing <= rules.acceptable_lag:
            learner[name].add(task)
        else:
            counted.append((task, name))
    for task, name in counted[: rules.warmups]:
        learner[name].add(task)
    return learner


def _standbys(
    members: list[Candidate],
    active: Mapping[str, set[TaskId]],
    learner: Mapping[str, set[TaskId]],
    swaps: Collection[tuple[TaskId, str]],
    tasks: list[TaskId],
    rules: CopyRules,
) -> dict[str, set[TaskId]]:
    """Return standbys on members that do not have the task, preferring standbys that are to become its owner (`swaps`), then members with
    new tags, then those that follow it already, then the least loaded."""
    standby: dict[str, set[TaskId]] = {member.name: set() for member in members}
    if not members:
        return standby
    share = -(-len(tasks) * rules.standbys // len(members))

    def preference(member: Candidate, task: TaskId, seen: Mapping[str, Collection[str]]) -> tuple[bool, int, bool, bool, int, int, str]:
        mine = standby[member.name]
        load = len(active[member.name]) + len(mine)
        near = sum(member.tags.get(tag, "") in seen[tag] for tag in rules.tags)
        swap, full = (task, member.name) in swaps, len(mine) >= share
        return not swap, near, full, task not in member.follows, load, -_position(member, task), member.name

    for _ in range(rules.standbys):
        for task in sorted(tasks):
            taken = [member for member in members if any(task in kind[member.name] for kind in (active, learner, standby))]
            free = [member for member in members if member not in taken and task not in member.barred]
            if free:
                # A learner is to be the owner: it counts, as far as tags go, and the owner of today does not.
                learned = any(task in learner[member.name] for member in taken)
                stays = [member for member in taken if not (learned and task in active[member.name])]
                seen = {tag: {member.tags.get(tag, "") for member in stays} for tag in rules.tags}
                standby[min(free, key=lambda member: preference(member, task, seen)).name].add(task)
    return standby
