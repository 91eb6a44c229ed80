"""The leader: detects dead members, fences them, and writes assignments (coordination.md, 3, 5, 6).

A task is never granted while another member may still run it. It moves in two assignments: the first revokes it from its owner
(`revoking`), which commits, closes and reports it; the second grants it. A dead owner does not report: the leader initialises its
transactional id, which aborts its open transaction and fences it, and deletes its record in the transaction of the assignment that grants
its tasks to others (rules.md, 22).

At any time there is one writer. Every write is one transaction of the transactional id `<application.id>-leader`, guarded with the group
metadata of the writer's membership. A new leader initialises the id, which aborts an open transaction and fences its previous user, then
reads the topic to its end, then decides. So each decision takes all earlier ones into account, and a member that has lost the lead without
noticing cannot write: the id is fenced, and if that member initialises it again, it reads first, and the guard refuses it (rules.md, 23).

A leader whose process has ended stays a member of the group until its session expires. The sibling worker that reported the death first
(`Death`) leads as its *deputy* until the group has elected another leader. Its guard is the metadata of the generation in which it began,
which the next generation, with the next leader, makes invalid.

The worker's thread waits only for the commit of an assignment. Liveness, fencing and the creation of producers run on other threads, and
`step` uses their results.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.decision import Decision, cause_of
from penstock.runtime.coordination.liveness import Liveness
from penstock.runtime.coordination.log import CoordinationLog
from penstock.runtime.coordination.rack_watch import RackWatch
from penstock.runtime.coordination.records import ASSIGNMENT_KEY, Assignment, encode
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.coordination.topics import TopicLayout, coordination_topic
from penstock.runtime.kafka.membership import Membership
from penstock.runtime.kafka.producer import NotTakenError
from penstock.runtime.kafka.transactions import GroupMetadata, TransactionalProducer, fence
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StreamsError, TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.offsets import OffsetAndMetadata

logger = logging.getLogger(__name__)

PAUSE_FACTOR = 4
"""Pause between two computations of an assignment, in multiples of the time of the first: the worker's tasks need the thread."""
GUARD_OFFSET = OffsetAndMetadata(0, "")


class Leader:
    """Leadership of one worker; idle while another worker leads. Used by the worker's thread only."""

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
        self._decision = Decision(config, layout, registry, racks, clock)
        self._probing_ms = config.integer("probing.rebalance.interval.ms")
        self._racks = racks
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="fence")
        self._fencing: dict[str, Future[None]] = {}
        self._producer: TransactionalProducer | None = None
        self._preparing: Future[TransactionalProducer] | None = None
        self._end: Future[int] | None = None
        self._caught_up = False
        self._written_after: int | None = None
        """Epoch before the assignment that was written last, until that one is read back."""
        self._own: tuple[int, GroupMetadata] | None = None
        """While this worker leads: number of the group's rebalances, and its metadata as of then. A reading waits for the client's thread;
        and metadata of a generation that is over fails to commit."""
        self._deputy: tuple[int, GroupMetadata] | None = None
        """While this worker is the deputy of a dead leader: number of the group's rebalances, and its metadata, when that began."""
        self._name = ""
        self._seen: object = None
        """Input of the last assignment that was computed, and its time (monotonic ms)."""
        self._seen_ms = 0
        self._not_before_ms = 0

    @property
    def leads(self) -> bool:
        """True while this worker leads, or stands in for a dead leader."""
        return self._membership.leads or self._deputy is not None

    def begin(self, name: str) -> None:
        """Begin a new incarnation of this worker. `name` is its identity."""
        self._name = name
        self._stand_down()

    def step(self) -> None:
        """Write an assignment if the state of the group or the log calls for one. Waits only for its commit. Errors are logged, and the
        next step tries again."""
        guard = self._guard()
        if guard is None:
            self._stand_down()
            return
        self._liveness.poll()
        dead = self._dead()
        fenced = [identity for identity in dead if self._fenced(identity)]
        if not self._prepared() or self._racks.rules() is None or not self._begun():
            return
        if self._written_after is not None and self._registry.epoch <= self._written_after:
            return  # written, and not yet read back
        self._written_after = None
        if not self._anything_new(dead, fenced):
            return
        begun_ms = self._clock.monotonic_ms()
        wanted = self._decision.assignment(self._name, dead, fenced)
        self._not_before_ms = self._clock.monotonic_ms() + PAUSE_FACTOR * (self._clock.monotonic_ms() - begun_ms)
        if wanted is None:
            return
        before = self._registry.assignment
        same = before is not None and wanted == msgspec.structs.replace(before, cause="")
        if fenced or not same or self._settled_deaths(fenced):
            leaving = [identity for identity, known in self._registry.members.items() if known.member.leaves]
            cause = cause_of(before, wanted, dead, leaving)
            self._write(msgspec.structs.replace(wanted, cause=cause.value), fenced, guard)

    def _anything_new(self, dead: list[str], fenced: list[str]) -> bool:
        """Return False while a new computation would give the same assignment: no record was read, no reservation has expired. Also False
        soon after a computation that took long, because of many tasks and members, so that the worker's own tasks get most of the time."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._not_before_ms:
            return False
        kept = self._registry.assignment.reserved.values() if self._registry.assignment is not None else ()
        wall_ms = self._registry.wall_ms(self._clock)
        over = sum(reserved.until_ms <= wall_ms for reserved in kept)
        seen = (self._registry.version, tuple(dead), tuple(fenced), over, id(self._racks.rules()))
        if seen == self._seen and now_ms - self._seen_ms < self._probing_ms:
            return False
        self._seen, self._seen_ms = seen, now_ms
        return True

    def _guard(self) -> GroupMetadata | None:
        """Return the guard of this worker's assignments; None unless it leads or is a deputy."""
        try:
            if self._membership.leads:
                self._deputy, rebalances = None, self._membership.rebalances
                if self._own is None or self._own[0] != rebalances:
                    self._own = rebalances, self._membership.metadata(self._membership.member_id)
                return self._own[1]
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
        """Return True if this worker was the first to report the death of this leader; or, if the leader has left, the death of any worker
        since: that one may have led without having written anything. (If it did not lead, the leader writes, and this worker stands
        down.)

        False for this worker's own earlier incarnations: the group has admitted this one, so it has elected a leader without them. The two
        would fence each other."""
        registry = self._registry
        reported = {identity for identity in registry.deaths if not self._is_predecessor(identity)}
        if leader in registry.deaths:
            return leader in reported and registry.successor(leader) == self._name
        return leader not in registry.members and any(registry.successor(identity) == self._name for identity in reported)

    def _is_predecessor(self, identity: str) -> bool:
        return identity.rpartition("/")[0] == self._name.rpartition("/")[0]

    def _stand_down(self) -> None:
        self._written_after = self._seen = None
        self._liveness.forget()
        self._drop_producer()

    def _prepared(self) -> bool:
        """Return True once there is a producer, and the topic is read to the end that it had when the producer's id was initialised."""
        try:
            if self._ready_producer() is None:
                return False
            if self._end is None:
                self._end = self._log.ask_end()
            elif not self._caught_up and self._end.done():
                self._caught_up = self._log.position >= self._end.result()
        except (TaskMigratedError, TransactionAbortedError, StreamsError) as error:
            logger.warning("this worker cannot lead yet, and tries again: %s", error)
            self._drop_producer()
        return self._caught_up

    def _begun(self) -> bool:
        """Return True once there is an assignment, or all members of the group have announced themselves. While the log is empty because
        its topic was deleted, a member that is not on it yet may run tasks that no record shows."""
        if self._registry.assignment is not None:
            return True
        members = self._liveness.members
        return members is not None and members <= {known.member.member_id for known in self._registry.members.values()}

    # -- live members ------------------------------------------------------------------------------------------------------------

    def _dead(self) -> list[str]:
        """Return the dead members: those missing from an answer of the group that was requested after their record was read, those whose
        death was reported, those that wrote a record after theirs was deleted, and earlier incarnations of a worker with a later one."""
        members = self._registry.members
        newest: dict[tuple[str, int], int] = {}
        for known in members.values():
            worker = known.member.instance, known.member.worker
            newest[worker] = max(known.member.incarnation, newest.get(worker, 0))
        return [
            identity
            for identity, known in members.items()
            if self._is_reported_dead(identity)
            or identity in self._registry.buried
            or known.member.incarnation < newest[known.member.instance, known.member.worker]
            or self._liveness.lives(known) is False
        ]

    def _is_reported_dead(self, identity: str) -> bool:
        """Return True for a member whose death was reported. The leader itself lives: only its deputy, the reporter, can take its
        place. Without a deputy, no other worker would fence this one, and it would never grant itself a task."""
        death = self._registry.deaths.get(identity)
        if death is None or identity != self._name or not self._membership.leads:
            return death is not None
        deputy = self._registry.members.get(death.by)
        return deputy is not None and self._liveness.lives(deputy) is not False

    def _settled_deaths(self, fenced: Iterable[str]) -> list[str]:
        """Return the reports of deaths that can be deleted: the dead member is fenced, or it is this leader, which lives. A deputy keeps
        them: they are the reason why it leads."""
        if not self._membership.leads:
            return []
        return [
            identity
            for identity in self._registry.deaths
            if identity not in self._registry.members or identity in fenced or not self._is_reported_dead(identity)
        ]

    def _fenced(self, key: str) -> bool:
        """Return True once the dead member's transactional id is fenced. The first call starts that."""
        future = self._fencing.get(key)
        if future is None:
            member = self._registry.members[key].member
            if member.returns:
                logger.info("member %s closed; its transactional id is fenced", key)
            else:
                logger.warning("member %s is dead; its transaction is aborted", key)
            self._fencing[key] = self._pool.submit(
                fence, self._config.producer_properties(), member.transactional_id, self._layout.guard.topic
            )
            return False
        if not future.done():
            return False
        error = future.exception()
        if error is not None:
            logger.warning("member %s cannot be fenced yet: %s", key, error)
            del self._fencing[key]
            return False
        return True

    # -- writing ---------------------------------------------------------------------------------------------------------------

    def _write(self, assignment: Assignment, fenced: list[str], guard: GroupMetadata) -> None:
        """Write the assignment and the tombstones of the fenced members in one guarded transaction."""
        topic = coordination_topic(self._config.application_id)
        gone = [self._registry.members[identity].key for identity in fenced]
        gone += [self._registry.deaths[identity].key for identity in self._settled_deaths(fenced)]
        try:
            producer = self._ready_producer()
            if producer is None:
                return
            producer.producer.send(topic, ASSIGNMENT_KEY, encode(assignment), None, None, 0)
            for key in gone:
                producer.producer.send(topic, key, None, None, None, 0)
            producer.send_offsets({self._layout.guard: GUARD_OFFSET}, guard)
            producer.commit()
        except (TaskMigratedError, TransactionAbortedError, NotTakenError) as error:
            logger.warning("the assignment could not be written, and is tried again: %s", error)
            self._seen = None
            self._drop_producer()
            return
        self._written_after = self._registry.epoch
        for identity in fenced:
            del self._fencing[identity]

    def _ready_producer(self) -> TransactionalProducer | None:
        """Return the producer, or None while it is being created. Raises an error of the creation once."""
        if self._producer is None:
            if self._preparing is None:
                properties = {**self._config.producer_properties(), "linger.ms": 0}
                transactional_id = f"{self._config.application_id}-leader"
                self._preparing = self._pool.submit(_prepare, properties, transactional_id, self._layout.guard.topic)
            if not self._preparing.done():
                return None
            preparing, self._preparing = self._preparing, None
            self._producer = preparing.result()
        return self._producer

    def _drop_producer(self) -> None:
        """Close the producer, and forget the guard. The next producer initialises the id again, and all records written meanwhile are read
        before a decision."""
        self._end, self._caught_up, self._own = None, False, None
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        if self._preparing is not None:
            self._preparing.add_done_callback(_close_prepared)
            self._preparing = None

    def close(self) -> None:
        self._drop_producer()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _prepare(properties: Mapping[str, object], transactional_id: str, topic: str) -> TransactionalProducer:
    """Return an initialised producer. Raises TaskMigratedError or TransactionAbortedError."""
    producer = TransactionalProducer(properties, transactional_id, None, lambda: True, topic)
    producer.init()
    return producer


def _close_prepared(future: Future[TransactionalProducer]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
