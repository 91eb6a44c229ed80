"""What the leader decides: who is to have which task now, given what the log says (coordination.md, 1 to 5).

The assignor says where tasks should be (`copies.py`); this says what may be granted of it now. A task that another may still run is
promised to its heir; what is on its way is not thought over; what an instance that restarts comes back for is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from runtime.clock import Clock
from runtime.config import StreamsConfig
from runtime.coordination.assignor import Candidate
from runtime.coordination.copies import CopyRules, Placement, place
from runtime.coordination.rack_watch import RackWatch
from runtime.coordination.racks import RackRules
from runtime.coordination.records import Assignment, Grant, Member, Reserved
from runtime.coordination.registry import Known, Registry
from runtime.ids import TaskId
from runtime.states import TaskKind
from runtime.topics import TopicLayout

REJOIN_MS = 5_000
"""How long the group may take beyond the old session's end to take in a worker that was killed and is back."""


class Decision:
    """Makes assignments. Belongs to the worker's thread."""

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
        self._rejoin_ms = config.integer("session.timeout.ms") + REJOIN_MS

    def assignment(self, leader: str, dead: Collection[str], fenced: Collection[str]) -> Assignment | None:
        """The assignment as it should be now, in the name of `leader`; None if nobody is there to be assigned anything. Members that are
        `dead` are given nothing, and what they may run is not free before they are `fenced`."""
        registry = self._registry
        live = {
            key: known for key, known in registry.members.items() if key not in dead and known.member.member_id and not known.member.returns
        }
        if not live:
            return None
        first = min(live.values(), key=lambda known: known.offset)
        live = {key: known for key, known in live.items() if known.member.topology_hash == first.member.topology_hash}
        reserved = self._reserved(live)
        tasks = sorted(task for task in self._layout.tasks if str(task) not in reserved)
        heirs = self._heirs(live)
        candidates = [self._candidate(key, known, heirs) for key, known in sorted(live.items())]
        wanted = place(candidates, tasks, dataclasses.replace(self._rules, racks=self._racks.rules() or RackRules()))
        follows = {candidate.name: candidate.follows for candidate in candidates}
        orphans = {task for who in dead for task in registry.members[who].held}
        grants = [self._grant(known, wanted, follows[key], orphans, fenced) for key, known in sorted(live.items())]
        granted = {task for grant in grants for task in grant.active}
        next_heirs = {str(task): who for who, mine in sorted(wanted.active.items()) for task in sorted(mine) if str(task) not in granted}
        revoking = {
            key: sorted(surplus)
            for key, known in sorted(live.items())
            if (surplus := known.held - {str(task) for task in wanted.active[key]})
        }
        return Assignment(leader=leader, grants=grants, revoking=revoking, heirs=next_heirs, reserved=reserved)

    def _grant(
        self, known: Known, wanted: Placement, follows: frozenset[TaskId], orphans: Collection[str], fenced: Collection[str]
    ) -> Grant:
        """What a member may have now of what it is wanted to have: nothing that another may still run, and nothing of which a worker of
        its own instance may still have the folder open. `follows`: what it keeps copies of; `orphans`: tasks of the dead."""
        member, who = known.member, known.member.who
        others = {name for name, other in self._registry.members.items() if other.member.instance != member.instance}
        others.update(fenced)

        def free(task: TaskId) -> bool:
            return self._registry.is_free(str(task), who, others)

        active = {task for task in wanted.active[who] if self._registry.is_free(str(task), who, fenced)}
        # A copy that is about to become active is kept until its former owner has let go; and while a dead one is fenced, which takes up
        # to a second, its heir restores already.
        soon = wanted.active[who] - active
        learner = wanted.learner[who] | {task for task in soon & self._layout.stateful if task in follows or str(task) in orphans}
        return Grant(
            member_id=member.member_id,
            incarnation=member.incarnation,
            instance=member.instance,
            worker=member.worker,
            active=[str(task) for task in sorted(active)],
            standby=[str(task) for task in sorted(wanted.standby[who]) if free(task)],
            learner=[str(task) for task in sorted(learner) if free(task)],
        )

    def _before(self, member: Member) -> frozenset[TaskId]:
        """What a member runs, or its worker ran before it began anew: tasks stay where they were."""
        assignment = self._registry.assignment
        if assignment is None:
            return frozenset()
        place = member.instance, member.worker
        own = {task for grant in assignment.grants if grant.who == member.who for task in grant.active}
        former = {task for grant in assignment.grants if (grant.instance, grant.worker) == place for task in grant.active}
        for known in self._registry.members.values():
            if (known.member.instance, known.member.worker) == place:
                former |= known.held
        kept = {task for task, reserved in assignment.reserved.items() if (reserved.instance, reserved.worker) == place}
        return frozenset(TaskId.parse(task) for task in own or former | kept)

    def _reserved(self, live: Mapping[str, Known]) -> dict[str, Reserved]:
        """Tasks that are kept for a worker that said it would return, from when it says so until its time is up (rules.md, 4), or its
        instance is back with fewer workers; and tasks with state whose owner was killed and is back, but has to wait until the group takes
        it in, which is when the old session is over. Where another has a whole copy, that one runs the task."""
        registry, now_ms = self._registry, self._registry.wall_ms(self._clock)
        here = {(known.member.instance, known.member.worker) for known in live.values()}
        workers = {known.member.instance: known.member.workers for known in live.values()}

        def away(instance: str, worker: int) -> bool:
            return (instance, worker) not in here and worker <= workers.get(instance, worker)

        before = registry.assignment.reserved if registry.assignment is not None else {}
        reserved = {task: kept for task, kept in before.items() if away(kept.instance, kept.worker)}
        for who, death in registry.deaths.items():
            back = death.by.rpartition("/")[0] == who.rpartition("/")[0]  # told by the next incarnation of the same worker
            if back and who in registry.members and death.instance not in workers:  # its siblings have the same disk
                until_ms = death.at_ms + self._rejoin_ms
                kept = Reserved(instance=death.instance, worker=death.worker, until_ms=until_ms)
                tasks = self._before(registry.members[who].member) & self._layout.stateful
                reserved.update((str(task), kept) for task in tasks)
        for known in registry.members.values():
            member = known.member
            if member.returns and away(member.instance, member.worker):
                kept = Reserved(instance=member.instance, worker=member.worker, until_ms=known.told_ms + self._grace_ms)
                reserved.update((str(task), kept) for task in self._before(member))
        ready = {task for known in live.values() for task, report in known.member.tasks.items() if report.caught_up}
        return {task: kept for task, kept in reserved.items() if kept.until_ms > now_ms and task not in ready}

    def _heirs(self, live: Mapping[str, Known]) -> dict[TaskId, str]:
        """Tasks that are on their way, and to whom: granted, or promised, and not yet reported as active there. What was decided about such
        a one is not thought over: it would be on its way for ever."""
        assignment = self._registry.assignment
        if assignment is None:
            return {}
        given = {task: grant.who for grant in assignment.grants for task in grant.active} | assignment.heirs
        return {TaskId.parse(task): who for task, who in given.items() if who in live and task not in live[who].member.active}

    def _candidate(self, who: str, known: Known, heirs: Mapping[TaskId, str]) -> Candidate:
        """A member as the assignor sees it. What is on its disk, a sibling that died a moment ago may have told."""
        member = known.member
        positions: dict[TaskId, int] = {}
        for other in self._registry.members.values():
            if other is known or other.member.instance == member.instance:
                open_there = other.member.tasks.items()
                here = {task: report.position for task, report in open_there if other is known or not report.in_memory}
                told = {**other.member.disk, **here}
                for task, position in told.items():
                    positions[TaskId.parse(task)] = max(position, positions.get(TaskId.parse(task), 0))
        reports = {TaskId.parse(task): report for task, report in member.tasks.items()}

        def of_kind(*kinds: TaskKind) -> frozenset[TaskId]:
            return frozenset(task for task, report in reports.items() if report.kind in kinds)

        inherits = frozenset(task for task, heir in heirs.items() if heir == who)
        running = frozenset(task for task in self._before(member) | of_kind(TaskKind.ACTIVE) if heirs.get(task, who) == who)
        return Candidate(
            who,
            running | inherits,
            positions,
            follows=of_kind(TaskKind.STANDBY, TaskKind.LEARNER),
            learns=of_kind(TaskKind.LEARNER),
            caught_up=frozenset(task for task, report in reports.items() if report.caught_up),
            leaves=member.leaves,
            instance=member.instance,
            inherits=inherits,
            rack=member.rack,
            tags=member.tags,
        )
