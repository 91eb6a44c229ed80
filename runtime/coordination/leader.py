"""What the leader does: sees who is alive, fences who is not, and writes who runs what (coordination.md, 1, 3, 5).

Nothing is granted that another may still run. A task goes over in two assignments: the first takes it from its owner (`revoking`), who
commits, closes it, and reports; the second grants it. A dead owner does not report: its transactional id is initialised, which aborts
what it left open and fences it, and its tombstone stands in the transaction of the assignment that grants its tasks anew (rules.md, 22).

There is one who writes, at any time. Every write is one transaction of the one transactional id `<application.id>-leader`, and is guarded
with the group metadata of the writer's membership. Whoever begins to lead initialises the id, which ends what was open under it and fences
its former user; then reads the topic to its end; then decides. So each decision knows of all before it, and whoever has lost the lead
without knowing cannot write: the id is another's, and when it takes that back, it reads first, and the guard refuses it (rules.md, 23).

A leader whose process ends is a member of the group until its session is over. A sibling worker that says so on the topic, and was the
first to (`Death`), leads as its *deputy* until the group has chosen anew. Its guard is the metadata of the generation in which it began:
with the next generation, which brings the next leader, that is worth nothing any more.

Nothing here waits in the worker's thread but the commit of an assignment: looking, fencing and making a producer are done elsewhere, and
`step` takes what has come of it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka import KafkaException, Producer

from runtime.clock import Clock
from runtime.commit.metadata import OffsetAndMetadata
from runtime.commit.transactions import GroupMetadata, TransactionalProducer, kafka_error
from runtime.config import StreamsConfig
from runtime.coordination.assignor import Candidate
from runtime.coordination.copies import CopyRules, Placement, place
from runtime.coordination.group import Membership
from runtime.coordination.liveness import Liveness
from runtime.coordination.log import CoordinationLog
from runtime.coordination.rack_watch import RackWatch
from runtime.coordination.racks import RackRules
from runtime.coordination.records import ASSIGNMENT_KEY, Assignment, Grant, Member, Reserved, encode
from runtime.coordination.registry import Known, Registry
from runtime.errors import StreamsError, TaskMigratedError, TransactionAbortedError
from runtime.ids import TaskId
from runtime.kafka_logs import KAFKA_LOGGER
from runtime.states import TaskKind
from runtime.topics import TopicLayout, coordination_topic

logger = logging.getLogger(__name__)

FENCE_SECONDS = (0.1, 0.1, 0.1, 0.1, 0.1, 30.0)
"""How long each attempt at fencing may take. One of them has the broker abort what is open. Where that, or the coordinator, is not there at
once, librdkafka asks again half a second later; a new client asks at once (0.2 s in place of 0.6 to 1)."""
REJOIN_MS = 5_000
"""How long the group may take beyond the old session's end to take in a worker that was killed and is back."""
REST = 4
"""The worker does other things for so many times as long as an assignment took to be thought out."""
GUARD_OFFSET = OffsetAndMetadata(0, "")


class Leader:
    """The leader's part of one worker; idle while another leads. Belongs to the worker's thread."""

    def __init__(
        self,
        config: StreamsConfig,
        layout: TopicLayout,
        membership: Membership,
        liveness: Liveness,
        log: CoordinationLog,
        registry: Registry,
        racks: RackWatch,
        clock: Clock,
    ) -> None:
        self._config = config
        self._layout = layout
        self._membership = membership
        self._liveness = liveness
        self._log = log
        self._registry = registry
        self._clock = clock
        self._copy_rules = CopyRules(
            layout.stateful,
            config.integer("acceptable.recovery.lag"),
            config.integer("num.standby.replicas"),
            config.integer("max.warmup.replicas"),
            config.rack_aware_tags,
        )
        self._probing_ms = config.integer("probing.rebalance.interval.ms")
        self._racks = racks
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="fence")
        self._fencing: dict[str, Future[None]] = {}
        self._producer: TransactionalProducer | None = None
        self._preparing: Future[TransactionalProducer] | None = None
        self._end: Future[int] | None = None
        self._caught_up = False
        self._written_after: int | None = None
        """The epoch before the assignment that was written last, until that is read back."""
        self._deputy: tuple[int, GroupMetadata] | None = None
        """While this worker stands in for a dead leader: the group's rebalances so far, and the metadata of then."""
        self._name = ""
        self._seen: object = None
        """What the assignment was last made of, and when (monotonic ms)."""
        self._seen_ms = 0
        self._not_before_ms = 0

    def begin(self, name: str) -> None:
        """A new incarnation of this worker, by its identity."""
        self._name = name
        self._stand_down()

    def step(self) -> None:
        """One look and, if something has changed, one assignment. Never waits for long. Errors are logged and tried again."""
        guard = self._guard()
        if guard is None:
            self._stand_down()
            return
        self._liveness.look()
        dead = self._dead()
        fenced = [who for who in dead if self._fenced(who)]
        if not self._prepared() or self._racks.rules() is None or not self._begun():
            return
        if self._written_after is not None and self._registry.epoch <= self._written_after:
            return  # written, and not yet read back
        self._written_after = None
        if not self._anything_new(dead, fenced):
            return
        begun_ms = self._clock.monotonic_ms()
        wanted = self._wanted(dead, set(fenced))
        self._not_before_ms = self._clock.monotonic_ms() + REST * (self._clock.monotonic_ms() - begun_ms)
        if wanted is not None and (fenced or wanted != self._registry.assignment or self._settled_deaths(fenced)):
            self._write(wanted, fenced, guard)

    def _anything_new(self, dead: list[str], fenced: list[str]) -> bool:
        """False as long as the assignment would be what it was when it was last thought about: nobody has said anything, no time is up.
        Where there are so many tasks and members that thinking takes long, the worker's own tasks have most of its time."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._not_before_ms:
            return False
        kept = self._registry.assignment.reserved.values() if self._registry.assignment is not None else ()
        over = sum(reserved.until_ms <= self._clock.wall_ms() for reserved in kept)
        seen = (self._registry.version, tuple(dead), tuple(fenced), over, id(self._racks.rules()))
        if seen == self._seen and now_ms - self._seen_ms < self._probing_ms:
            return False
        self._seen, self._seen_ms = seen, now_ms
        return True

    def _guard(self) -> GroupMetadata | None:
        """What this worker's assignments are guarded with, if it leads or stands in for a leader."""
        try:
            if self._membership.leads:
                self._deputy = None
                return self._membership.metadata(self._membership.member_id)
            return self._deputy_guard()
        except TaskMigratedError:
            return None

    def _deputy_guard(self) -> GroupMetadata | None:
        assignment, rebalances = self._registry.assignment, self._membership.rebalances
        over = self._deputy is not None and self._deputy[0] != rebalances
        if assignment is None or over or not self._membership.joined:
            self._deputy = None
        elif assignment.leader != self._name:
            if not self._stands_in_for(assignment.leader):
                self._deputy = None
            elif self._deputy is None:
                logger.warning("the leader is dead; this worker stands in for it")
                self._deputy = rebalances, self._membership.metadata(self._membership.member_id)
        return None if self._deputy is None else self._deputy[1]

    def _stands_in_for(self, leader: str) -> bool:
        """Whether this worker was the first to tell of the end of this leader; or, where the leader has left, of the end of any worker
        since: that one may have led and not written anything yet. (If it did not, the leader writes, and this one stands down.)"""
        registry = self._registry
        if leader in registry.deaths:
            return registry.successor(leader) == self._name
        return leader not in registry.members and any(registry.successor(who) == self._name for who in registry.deaths)

    def _stand_down(self) -> None:
        self._written_after = self._seen = None
        self._liveness.forget()
        self._drop_producer()

    def _prepared(self) -> bool:
        """True once there is a producer, and everything is read that was on the topic when its id was initialised."""
        try:
            if self._ready_producer() is None:
                return False
            if self._end is None:
                self._end = self._log.ask_end()
            elif not self._caught_up and self._end.done():
                self._caught_up = self._log.position >= self._end.result()
        except (TaskMigratedError, TransactionAbortedError, KafkaException, StreamsError) as error:
            logger.warning("this worker cannot lead yet, and tries again: %s", error)
            self._drop_producer()
        return self._caught_up

    def _begun(self) -> bool:
        """True once there is an assignment, or all members of the group have announced themselves. In a log that is empty because its topic
        was deleted, who is not there yet may run tasks that nobody else knows of."""
        if self._registry.assignment is not None:
            return True
        everybody = self._liveness.everybody
        return everybody is not None and everybody <= {known.member.member_id for known in self._registry.members.values()}

    # -- who is alive ------------------------------------------------------------------------------------------------------------

    def _dead(self) -> list[str]:
        """Members that the group does not have, by an answer that was asked for after their record was read; those whose death was
        announced; and those of which there is a later incarnation, which tells of the end of the one before."""
        members = self._registry.members
        newest: dict[tuple[str, int], int] = {}
        for known in members.values():
            worker = known.member.instance, known.member.worker
            newest[worker] = max(known.member.incarnation, newest.get(worker, 0))
        return [
            who
            for who, known in members.items()
            if who in self._registry.deaths
            or known.member.incarnation < newest[known.member.instance, known.member.worker]
            or self._liveness.lives(known) is False
        ]

    def _settled_deaths(self, fenced: Iterable[str]) -> list[str]:
        """Deaths that need not be told any more, because who died is fenced. A deputy leaves them: they say why it is one."""
        if not self._membership.leads:
            return []
        return [who for who in self._registry.deaths if who not in self._registry.members or who in fenced]

    def _fenced(self, key: str) -> bool:
        """True once nothing more can come of the dead member's transactional ids; begins to see to that the first time."""
        future = self._fencing.get(key)
        if future is None:
            logger.warning("member %s is dead; its transaction is aborted", key)
            transactional_id = self._registry.members[key].member.transactional_id
            self._fencing[key] = self._pool.submit(_fence, self._config.producer_properties(), transactional_id)
            return False
        if not future.done():
            return False
        error = future.exception()
        if error is not None:
            logger.warning("member %s cannot be fenced yet: %s", key, error)
            del self._fencing[key]
            return False
        return True

    # -- who runs what -------------------------------------------------------------------------------------------------------------

    def _wanted(self, dead: list[str], fenced: set[str]) -> Assignment | None:
        """The assignment as it should be now; None if nobody is there to be assigned anything."""
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
        wanted = place(candidates, tasks, dataclasses.replace(self._copy_rules, racks=self._racks.rules() or RackRules()))
        follows = {candidate.name: candidate.follows for candidate in candidates}
        orphans = {task for who in dead for task in registry.members[who].held}
        grants = [self._grant(known, wanted, follows[key], orphans, fenced) for key, known in sorted(live.items())]
        granted = {task for grant in grants for task in grant.active}
        next_heirs = {str(task): who for who, mine in sorted(wanted.active.items()) for task in sorted(mine) if str(task) not in granted}
        revoking = {
            key: sorted(known.held - {str(task) for task in wanted.active[key]})
            for key, known in sorted(live.items())
            if known.held - {str(task) for task in wanted.active[key]}
        }
        return Assignment(leader=self._name, grants=grants, revoking=revoking, heirs=next_heirs, reserved=reserved)

    def _grant(self, known: Known, wanted: Placement, follows: frozenset[TaskId], orphans: set[str], fenced: set[str]) -> Grant:
        """What a member may have now of what it is wanted to have: nothing that another may still run, and nothing of which a worker of
        its own instance may still have the folder open."""
        member, who = known.member, known.member.who
        others = {name for name, other in self._registry.members.items() if other.member.instance != member.instance} | fenced

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
        registry, now_ms = self._registry, self._clock.wall_ms()
        here = {(known.member.instance, known.member.worker) for known in live.values()}
        workers = {known.member.instance: known.member.workers for known in live.values()}

        def away(instance: str, worker: int) -> bool:
            return (instance, worker) not in here and worker <= workers.get(instance, worker)

        before = registry.assignment.reserved if registry.assignment is not None else {}
        reserved = {task: kept for task, kept in before.items() if away(kept.instance, kept.worker)}
        for who, death in registry.deaths.items():
            back = death.by.rpartition("/")[0] == who.rpartition("/")[0]  # told by the next incarnation of the same worker
            if back and who in registry.members and away(death.instance, death.worker):
                until_ms = death.at_ms + self._config.integer("session.timeout.ms") + REJOIN_MS
                kept = Reserved(instance=death.instance, worker=death.worker, until_ms=until_ms)
                tasks = self._before(registry.members[who].member) & self._layout.stateful
                reserved.update((str(task), kept) for task in tasks)
        grace_ms = self._config.integer("restart.grace.ms")
        for known in registry.members.values():
            member = known.member
            if member.returns and away(member.instance, member.worker):
                kept = Reserved(instance=member.instance, worker=member.worker, until_ms=member.heartbeat_ms + grace_ms)
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
                told = {**other.member.disk, **{task: report.position for task, report in other.member.tasks.items()}}
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

    def _write(self, assignment: Assignment, fenced: list[str], guard: GroupMetadata) -> None:
        """The assignment and the tombstones of the fenced, in one guarded transaction."""
        topic = coordination_topic(self._config.application_id)
        gone = [self._registry.members[who].key for who in fenced]
        gone += [self._registry.deaths[who].key for who in self._settled_deaths(fenced)]
        try:
            producer = self._ready_producer()
            if producer is None:
                return
            producer.producer.produce(topic, encode(assignment), ASSIGNMENT_KEY, 0)
            for key in gone:
                producer.producer.produce(topic, None, key, 0)
            producer.send_offsets({self._layout.guard: GUARD_OFFSET}, guard)
            producer.commit()
        except (TaskMigratedError, TransactionAbortedError, KafkaException, BufferError) as error:
            logger.warning("the assignment could not be written, and is tried again: %s", error)
            self._seen = None
            self._drop_producer()
            return
        self._written_after = self._registry.epoch
        for who in fenced:
            del self._fencing[who]

    def _ready_producer(self) -> TransactionalProducer | None:
        """The producer, or None as long as it is being made. Raises what went wrong with that, once."""
        if self._producer is None:
            if self._preparing is None:
                properties = {**self._config.producer_properties(), "linger.ms": 0}
                transactional_id = f"{self._config.application_id}-leader"
                self._preparing = self._pool.submit(_prepare, properties, transactional_id)
            if not self._preparing.done():
                return None
            preparing, self._preparing = self._preparing, None
            self._producer = preparing.result()
        return self._producer

    def _drop_producer(self) -> None:
        """The next one initialises the id anew, and then everything that others wrote meanwhile is read before anything is decided."""
        self._end, self._caught_up = None, False
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        if self._preparing is not None:
            self._preparing.add_done_callback(_close_prepared)
            self._preparing = None

    def close(self) -> None:
        self._drop_producer()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _prepare(properties: Mapping[str, object], transactional_id: str) -> TransactionalProducer:
    """Raises TaskMigratedError or TransactionAbortedError."""
    producer = TransactionalProducer(properties, transactional_id, None, lambda: True)
    producer.init()
    return producer


def _close_prepared(future: Future[TransactionalProducer]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()


def _fence(properties: Mapping[str, object], transactional_id: str) -> None:
    """Aborts what is open under a transactional id, and keeps its user from writing with it. Raises StreamsError."""
    for patience in FENCE_SECONDS:
        producer = Producer({**properties, "transactional.id": transactional_id}, logger=KAFKA_LOGGER)
        try:
            producer.init_transactions(patience)
        except KafkaException as error:
            inner, failed = kafka_error(error), error
            if not inner.retriable():
                break
        else:
            return
    raise StreamsError(f"{transactional_id} cannot be initialised: {inner.str()}") from failed
