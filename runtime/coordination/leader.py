"""What the leader does: sees who is alive, fences who is not, and writes who runs what (coordination.md, 3, 5, 6).

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

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.decision import Decision
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
from penstock.runtime.model.offset_metadata import OffsetAndMetadata

logger = logging.getLogger(__name__)

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
        wanted = self._decision.assignment(self._name, dead, fenced)
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
        wall_ms = self._registry.wall_ms(self._clock)
        over = sum(reserved.until_ms <= wall_ms for reserved in kept)
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
        except (TaskMigratedError, TransactionAbortedError, StreamsError) as error:
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
            self._fencing[key] = self._pool.submit(fence, self._config.producer_properties(), transactional_id)
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
        """The assignment and the tombstones of the fenced, in one guarded transaction."""
        topic = coordination_topic(self._config.application_id)
        gone = [self._registry.members[who].key for who in fenced]
        gone += [self._registry.deaths[who].key for who in self._settled_deaths(fenced)]
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
