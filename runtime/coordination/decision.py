"""The leader's decision: which task each member gets now, given the state of the log (coordination.md, 1 to 5).

The assignor computes the target (`copies.py`); this module computes how much of it can be granted now. A task that another member may
still run is promised to its heir. A move in progress is not reconsidered. Tasks of an instance that restarts are kept for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from enum import Enum

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.assignor import Candidate
from penstock.runtime.coordination.compatibility import major
from penstock.runtime.coordination.copies import CopyRules, Placement, place
from penstock.runtime.coordination.disk import positions_at
from penstock.runtime.coordination.rack_watch import RackWatch
from penstock.runtime.coordination.racks import RackRules
from penstock.runtime.coordination.records import PROTOCOL, Assignment, Grant, Member, Reserved
from penstock.runtime.coordination.registry import Known, Registry
from penstock.runtime.coordination.topics import TopicLayout
from penstock.runtime.coordination.versions import Versions
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import TaskKind, TaskState

REJOIN_MS = 5_000
"""Time allowed, after the end of the old session, until the group admits a worker that was killed and restarted."""


RESTORED_PER_SECOND = 100_000
"""Records that a busy machine restores at least. A task whose restore would take longer than a killed instance needs to come back is kept
for it."""


class Cause(Enum):
    """Why an assignment differs from the one before, in the order in which causes are named if there are several. COPIES_CHANGED: of
    standbys and learners only. OTHER: reservations, versions of the topology."""

    FIRST = "FIRST"
    MEMBER_DIED = "MEMBER_DIED"
    MEMBER_JOINED = "MEMBER_JOINED"
    MEMBER_LEFT = "MEMBER_LEFT"
    MEMBER_LEAVES = "MEMBER_LEAVES"
    TASKS_MOVED = "TASKS_MOVED"
    COPIES_CHANGED = "COPIES_CHANGED"
    OTHER = "OTHER"


def cause_of(before: Assignment | None, after: Assignment, dead: Collection[str], leaving: Collection[str]) -> Cause:
    """Return the cause of an assignment. `dead` and `leaving`: identities of members."""
    if before is None:
        return Cause.FIRST
    old, new = ({grant.identity: grant for grant in each.grants} for each in (before, after))
    gone, moved = old.keys() - new.keys(), _actives(before) != _actives(after)
    if gone & set(dead):
        return Cause.MEMBER_DIED
    if new.keys() - old.keys():
        return Cause.MEMBER_JOINED
    if gone:
        return Cause.MEMBER_LEFT
    if moved or before.heirs != after.heirs:
        return Cause.MEMBER_LEAVES if leaving else Cause.TASKS_MOVED
    copies = [{identity: (grant.standby, grant.learner) for identity, grant in each.items()} for each in (old, new)]
    return Cause.OTHER if copies[0] == copies[1] else Cause.COPIES_CHANGED


def _actives(assignment: Assignment) -> dict[str, list[str]]:
    return {grant.identity: grant.active for grant in assignment.grants}


class Decision:
    """Computes assignments. Used by the worker's thread only."""

    def __init__(self, config: StreamsConfig, layout: TopicLayout, registry: Registry, racks: RackWatch, clock: Clock) -> None:
        self._layout = layout
        self._registry = registry
        self._racks = racks
        self._clock = clock
        self._rules = CopyRules(
            layout.stateful,
            config.integer("acceptable.recovery.lag"),
            config.integer("num.standby.replicas"),
            config.integer("max.warmup.replicas"),
            config.rack_aware_tags,
        )
        self._grace_ms = config.integer("restart.grace.ms")
        self._waiting: frozenset[TaskId] = frozenset()
        self._rejoin_ms = config.integer("session.timeout.ms") + REJOIN_MS

    def assignment(self, leader: str, dead: Collection[str], fenced: Collection[str]) -> Assignment | None:
        """Return the assignment for the current state, written by `leader`; None if there is no live member. Members in `dead` get nothing,
        and tasks that they may run are not free before they are in `fenced`."""
        registry = self._registry
        live = {
            key: known for key, known in registry.members.items() if key not in dead and known.member.member_id and not known.member.returns
        }
        if not live:
            return None
        first = min(live.values(), key=lambda known: known.offset)
        live = {key: known for key, known in live.items() if self._runs_with(first.member, known.member)}
        versions = Versions(registry, self._layout, [known.member for known in live.values()])
        all_tasks, rules = versions.tasks, dataclasses.replace(self._rules, stateful=versions.stateful)
        reserved = self._reserved(live, rules.stateful, versions.storeless)
        tasks = sorted(task for task in all_tasks if str(task) not in reserved)
        heirs = self._heirs(live)
        barred = {key: versions.barred(known.member, all_tasks) for key, known in live.items()}
        readers = versions.readers
        candidates = [self._candidate(key, known, heirs, barred[key], readers) for key, known in sorted(live.items())]
        wanted = place(candidates, tasks, dataclasses.replace(rules, racks=self._racks.rules() or RackRules()))
        self._warn_of_waiting(versions, frozenset(tasks).difference(*wanted.active.values()))
        follows = {candidate.name: candidate.follows for candidate in candidates}
        orphans = {task for identity in dead for task in registry.members[identity].held}
        grants = [self._grant(known, wanted, follows[key], orphans, fenced, rules.stateful) for key, known in sorted(live.items())]
        granted = {task for grant in grants for task in grant.active}
        next_heirs = {
            str(task): identity for identity, mine in sorted(wanted.active.items()) for task in sorted(mine) if str(task) not in granted
        }
        revoking = {
            key: sorted(surplus)
            for key, known in sorted(live.items())
            if (surplus := known.held - {str(task) for task in wanted.active[key]})
        }
        ran = versions.ran(grants, next_heirs)
        return Assignment(leader=leader, grants=grants, revoking=revoking, heirs=next_heirs, reserved=reserved, ran=ran)

    def _warn_of_waiting(self, versions: Versions, waiting: frozenset[TaskId]) -> None:
        """Log each task that no member can run, once per such period."""
        versions.warn_of(waiting - self._waiting)
        self._waiting = waiting

    def _runs_with(self, first: Member, member: Member) -> bool:
        """Return True if a member runs the first member's topology, or a version that was checked against it."""
        if major(member.protocol) != major(PROTOCOL):
            return False
        return member.topology in self._registry.versions or member.topology_hash == first.topology_hash

    def _grant(
        self,
        known: Known,
        wanted: Placement,
        follows: frozenset[TaskId],
        orphans: Collection[str],
        fenced: Collection[str],
        stateful: frozenset[TaskId],
    ) -> Grant:
        """Return the part of the target that a member may have now: no task that another may still run, none whose folder another worker of
        its instance may have open. `follows`: tasks of which it keeps copies; `orphans`: tasks of dead members."""
        member, identity = known.member, known.member.identity
        others = {name for name, other in self._registry.members.items() if other.member.instance != member.instance}
        others.update(fenced)

        def free(task: TaskId) -> bool:
            return self._registry.is_free(str(task), identity, others)

        active = {task for task in wanted.active[identity] if self._registry.is_free(str(task), identity, fenced)}
        # A copy that is about to become active is kept until its previous owner has released it; and while a dead one is fenced, which
        # takes up to a second, its heir restores already.
        soon = wanted.active[identity] - active
        learner = wanted.learner[identity] | {task for task in soon & stateful if task in follows or str(task) in orphans}
        return Grant(
            member_id=member.member_id,
            incarnation=member.incarnation,
            instance=member.instance,
            worker=member.worker,
            active=[str(task) for task in sorted(active)],
            standby=[str(task) for task in sorted(wanted.standby[identity]) if free(task)],
            learner=[str(task) for task in sorted(learner) if free(task)],
        )

    def _before(self, member: Member) -> frozenset[TaskId]:
        """Return the tasks that a member runs, or that its worker ran before it restarted: tasks stay where they were."""
        assignment = self._registry.assignment
        if assignment is None:
            return frozenset()
        place = member.instance, member.worker
        own = {task for grant in assignment.grants if grant.identity == member.identity for task in grant.active}
        previous = {task for grant in assignment.grants if (grant.instance, grant.worker) == place for task in grant.active}
        for known in self._registry.members.values():
            if (known.member.instance, known.member.worker) == place:
                previous |= known.held
        kept = {task for task, reserved in assignment.reserved.items() if (reserved.instance, reserved.worker) == place}
        return frozenset(TaskId.parse(task) for task in own or previous | kept)

    def _reserved(self, live: Mapping[str, Known], stateful: frozenset[TaskId], storeless: frozenset[TaskId]) -> dict[str, Reserved]:
        """Return the tasks reserved for workers that restart (rules.md, 4). A worker that announced its return keeps them until its grace
        period ends or its instance is back with fewer workers. A killed worker that is back keeps its tasks with state until the group
        admits it, when the old session has expired; one that is not back keeps as long those that would take others longer to restore. A
        task of which another member has a complete copy is not reserved, nor one without stores, and nothing is reserved for an instance
        that was stopped on purpose."""
        registry, now_ms = self._registry, self._registry.wall_ms(self._clock)
        here = {(known.member.instance, known.member.worker) for known in live.values()}
        workers = {known.member.instance: known.member.workers for known in live.values()}

        def away(instance: str, worker: int) -> bool:
            return (instance, worker) not in here and worker <= workers.get(instance, worker)

        before = registry.assignment.reserved if registry.assignment is not None else {}
        reserved = {task: kept for task, kept in before.items() if away(kept.instance, kept.worker)}
        for identity, death in registry.deaths.items():
            back = death.by.rpartition("/")[0] == identity.rpartition("/")[0]  # reported by the next incarnation of the same worker
            if identity in registry.members and death.instance not in workers:  # its siblings have the same disk
                member = registry.members[identity].member
                until_ms = death.at_ms + self._rejoin_ms
                kept = Reserved(instance=death.instance, worker=death.worker, until_ms=until_ms)
                tasks = self._before(member) & stateful
                reserved.update((str(task), kept) for task in (tasks if back else self._long_to_restore(member, tasks, live)))
        for known in registry.members.values():
            member = known.member
            if member.returns and away(member.instance, member.worker):
                kept = Reserved(instance=member.instance, worker=member.worker, until_ms=known.written_ms + self._grace_ms)
                reserved.update((str(task), kept) for task in self._before(member) - storeless)
        ready = {task for known in live.values() for task, report in known.member.tasks.items() if report.caught_up}
        return {
            task: kept
            for task, kept in reserved.items()
            if kept.until_ms > now_ms and task not in ready and kept.instance not in registry.stopped
        }

    def _long_to_restore(self, dead: Member, tasks: frozenset[TaskId], live: Collection[str]) -> frozenset[TaskId]:
        """Return the tasks of a dead member which none of the live ones can restore within the time that it has to come back."""
        copies = [positions_at(self._registry, identity) for identity in live]
        soon = RESTORED_PER_SECOND * self._rejoin_ms // 1000

        def behind(task: TaskId) -> int:
            report = dead.tasks.get(str(task))
            return 0 if report is None else report.position - max((copy.get(task, 0) for copy in copies), default=0)

        return frozenset(task for task in tasks if behind(task) > soon)

    def _heirs(self, live: Mapping[str, Known]) -> dict[TaskId, str]:
        """Return the tasks in transit with their next owners: granted or promised, and not yet reported active there. Their destination is
        not reconsidered: they might never arrive."""
        assignment = self._registry.assignment
        if assignment is None:
            return {}
        given = {task: grant.identity for grant in assignment.grants for task in grant.active} | assignment.heirs
        active = {identity: known.member.active for identity, known in live.items()}
        return {TaskId.parse(task): identity for task, identity in given.items() if identity in live and task not in active[identity]}

    def _candidate(
        self, identity: str, known: Known, heirs: Mapping[TaskId, str], barred: frozenset[TaskId], readers: frozenset[TaskId]
    ) -> Candidate:
        """Return a member as input of the assignor. `readers`: tasks that may read global stores. Those that it runs already stay while a
        store is rebuilt."""
        member = known.member
        reports = {TaskId.parse(task): report for task, report in member.tasks.items()}

        def of_kind(*kinds: TaskKind) -> frozenset[TaskId]:
            return frozenset(task for task, report in reports.items() if report.kind in kinds)

        inherits = frozenset(task for task, heir in heirs.items() if heir == identity)
        builds = any(
            store.state is not TaskState.RUNNING and store.lag > self._rules.acceptable_lag for store in member.global_stores.values()
        )
        running = frozenset(task for task in self._before(member) | of_kind(TaskKind.ACTIVE) if heirs.get(task, identity) == identity)
        return Candidate(
            identity,
            running | inherits,
            positions_at(self._registry, identity),
            follows=of_kind(TaskKind.STANDBY, TaskKind.LEARNER),
            learns=of_kind(TaskKind.LEARNER),
            caught_up=frozenset(task for task, report in reports.items() if report.caught_up),
            leaves=member.leaves,
            instance=member.instance,
            inherits=inherits,
            rack=member.rack,
            tags=member.tags,
            barred=barred,
            waits=readers - of_kind(TaskKind.ACTIVE) if builds else frozenset(),
        )
