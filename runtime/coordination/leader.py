"""What the leader does: sees who is alive, fences who is not, and writes who runs what (coordination.md, 1, 3, 5).

Nothing is granted that another may still run. A task goes over in two assignments: the first takes it from its owner (`revoking`), who
commits, closes it, and reports; the second grants it. A dead owner does not report: its transactional id is initialised, which aborts
what it left open and fences it, and its tombstone stands in the transaction of the assignment that grants its tasks anew (rules.md, 22).

Every write is one transaction, guarded with the group metadata of this membership: a leader that the group has replaced, but does not
know it yet, cannot write (rules.md, 23). What a leader had passed the guard with but not yet committed is aborted when its successor fences
it; and the successor decides nothing before it has read the topic to the end that it had when it became leader.

Nothing here waits in the worker's thread but the commit of an assignment: looking, fencing and making a producer are done elsewhere, and
`step` takes what has come of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka import KafkaException, Producer

from runtime.clock import Clock
from runtime.commit.metadata import OffsetAndMetadata
from runtime.commit.transactions import TransactionalProducer, kafka_error
from runtime.config import StreamsConfig
from runtime.coordination.assignor import Candidate
from runtime.coordination.copies import CopyRules, place
from runtime.coordination.group import Membership
from runtime.coordination.liveness import Liveness
from runtime.coordination.log import CoordinationLog
from runtime.coordination.records import ASSIGNMENT_KEY, Assignment, Grant, Reserved, encode
from runtime.coordination.registry import Known, Registry, member_key
from runtime.errors import StreamsError, TaskMigratedError, TransactionAbortedError
from runtime.ids import TaskId
from runtime.kafka_logs import KAFKA_LOGGER
from runtime.states import TaskKind
from runtime.topics import TopicLayout, coordination_topic

logger = logging.getLogger(__name__)

FENCE_SECONDS = 30.0
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
        )
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="fence")
        self._fencing: dict[str, Future[None]] = {}
        self._producer: TransactionalProducer | None = None
        self._preparing: Future[TransactionalProducer] | None = None
        self._end: Future[int] | None = None
        self._caught_up = False
        self._written: Assignment | None = None
        self._name = ""

    def begin(self, name: str) -> None:
        """A new incarnation of this worker: its writes get a transactional id of their own, `<application.id>-leader-<name>`."""
        self._name = name
        self._drop_producer()

    def step(self) -> None:
        """One look and, if something has changed, one assignment. Never waits for long. Errors are logged and tried again."""
        if not self._membership.leads:
            self._written, self._end, self._caught_up = None, None, False
            self._liveness.forget()
            return
        self._liveness.look()
        dead = self._dead()
        fenced = [key for key in dead if self._fenced(key)]
        if not self._has_caught_up():
            return
        if self._written is not None and self._registry.assignment != self._written:
            return  # written, and not yet read back
        self._written = None
        wanted = self._wanted(dead, set(fenced))
        if wanted is not None and (fenced or wanted != self._registry.assignment):
            self._write(wanted, fenced)

    def _has_caught_up(self) -> bool:
        """True once everything is read that was on the topic when this worker became leader. What is open there is a predecessor's
        transaction, which ends when that is fenced."""
        if not self._caught_up:
            if self._end is None:
                self._end = self._log.ask_end()
            elif self._end.done():
                try:
                    self._caught_up = self._log.position >= self._end.result()
                except (KafkaException, StreamsError) as error:
                    logger.info("the end of the coordination topic is not known yet: %s", error)
                    self._end = None
        return self._caught_up

    # -- who is alive ------------------------------------------------------------------------------------------------------------

    def _dead(self) -> list[str]:
        """Members that the group does not have, by an answer that was asked for after their record was read; and those whose instance has
        begun a new incarnation, which tells of the end of the one before."""
        members = self._registry.members
        newest: dict[str, int] = {}
        for known in members.values():
            newest[known.member.instance] = max(known.member.incarnation, newest.get(known.member.instance, 0))
        return [
            key
            for key, known in members.items()
            if known.member.incarnation < newest[known.member.instance] or self._liveness.lives(known) is False
        ]

    def _fenced(self, key: str) -> bool:
        """True once nothing more can come of the dead member's transactional ids; begins to see to that the first time."""
        future = self._fencing.get(key)
        if future is None:
            logger.warning("member %s is dead; its transactions are aborted", key)
            member = self._registry.members[key].member
            ids = (member.transactional_id, self._transactional_id(f"{member.instance}-{member.incarnation}"))
            self._fencing[key] = self._pool.submit(_fence, self._config.producer_properties(), ids)
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
        candidates = [_candidate(key, known, self._before(known.member.instance, key)) for key, known in sorted(live.items())]
        wanted = place(candidates, tasks, self._copy_rules)
        holders = {task: registry.holders(str(task)) - fenced for task in tasks}
        follows = {candidate.name: candidate.follows for candidate in candidates}
        grants = []
        for key, known in sorted(live.items()):
            free = {task for task in wanted.active[key] if holders[task] <= {key}}
            # A copy that is about to become active is kept until its former owner has let go.
            learner = wanted.learner[key] | (wanted.active[key] - free) & follows[key]
            grants.append(
                Grant(
                    member_id=known.member.member_id,
                    incarnation=known.member.incarnation,
                    instance=known.member.instance,
                    active=[str(task) for task in sorted(free)],
                    standby=[str(task) for task in sorted(wanted.standby[key])],
                    learner=[str(task) for task in sorted(learner)],
                )
            )
        revoking = {
            key: sorted(known.held - {str(task) for task in wanted.active[key]})
            for key, known in sorted(live.items())
            if known.held - {str(task) for task in wanted.active[key]}
        }
        return Assignment(leader=self._name, grants=grants, revoking=revoking, reserved=reserved)

    def _before(self, instance: str, key: str) -> frozenset[TaskId]:
        """What a member runs, or its instance ran before it began anew: tasks stay where they were."""
        assignment = self._registry.assignment
        if assignment is None:
            return frozenset()
        own = {task for grant in assignment.grants if member_key(grant.instance, grant.incarnation) == key for task in grant.active}
        former = {task for grant in assignment.grants if grant.instance == instance for task in grant.active}
        former |= {task for known in self._registry.members.values() if known.member.instance == instance for task in known.held}
        kept = {task for task, reserved in assignment.reserved.items() if reserved.instance == instance}
        return frozenset(TaskId.parse(task) for task in own or former | kept)

    def _reserved(self, live: Mapping[str, Known]) -> dict[str, Reserved]:
        """Tasks that are kept for an instance that said it would return, from when it says so until its time is up (rules.md, 4)."""
        registry, now_ms = self._registry, self._clock.wall_ms()
        here = {known.member.instance for known in live.values()}
        before = registry.assignment.reserved if registry.assignment is not None else {}
        reserved = {task: kept for task, kept in before.items() if kept.until_ms > now_ms and kept.instance not in here}
        grace_ms = self._config.integer("restart.grace.ms")
        for key, known in registry.members.items():
            member = known.member
            if member.returns and member.instance not in here and member.heartbeat_ms + grace_ms > now_ms:
                kept = Reserved(instance=member.instance, until_ms=member.heartbeat_ms + grace_ms)
                reserved.update((str(task), kept) for task in self._before(member.instance, key))
        return reserved

    def _write(self, assignment: Assignment, fenced: list[str]) -> None:
        """The assignment and the tombstones of the fenced, in one guarded transaction."""
        topic = coordination_topic(self._config.application_id)
        try:
            producer = self._ready_producer()
            if producer is None:
                return
            producer.producer.produce(topic, encode(assignment), ASSIGNMENT_KEY, 0)
            for key in fenced:
                producer.producer.produce(topic, None, f"member/{key}".encode(), 0)
            producer.send_offsets({self._layout.guard: GUARD_OFFSET}, self._membership.metadata(self._membership.member_id))
            producer.commit()
        except (TaskMigratedError, TransactionAbortedError, KafkaException, BufferError) as error:
            logger.warning("the assignment could not be written, and is tried again: %s", error)
            self._drop_producer()
            return
        self._written = assignment
        for key in fenced:
            del self._fencing[key]

    def _transactional_id(self, name: str) -> str:
        return f"{self._config.application_id}-leader-{name}"

    def _ready_producer(self) -> TransactionalProducer | None:
        """The producer, or None as long as it is being made. Raises what went wrong with that, once."""
        if self._producer is None:
            if self._preparing is None:
                properties = {**self._config.producer_properties(), "linger.ms": 0}
                self._preparing = self._pool.submit(_prepare, properties, self._transactional_id(self._name))
            if not self._preparing.done():
                return None
            preparing, self._preparing = self._preparing, None
            self._producer = preparing.result()
        return self._producer

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        if self._preparing is not None:
            self._preparing.add_done_callback(_close_prepared)
            self._preparing = None

    def close(self) -> None:
        self._drop_producer()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _candidate(key: str, known: Known, before: frozenset[TaskId]) -> Candidate:
    member = known.member
    reports = {TaskId.parse(task): report for task, report in member.tasks.items()}
    positions = {TaskId.parse(task): position for task, position in member.disk.items()}
    positions.update((task, report.position) for task, report in reports.items())

    def of_kind(*kinds: TaskKind) -> frozenset[TaskId]:
        return frozenset(task for task, report in reports.items() if report.kind in kinds)

    return Candidate(
        key,
        before | of_kind(TaskKind.ACTIVE),
        positions,
        follows=of_kind(TaskKind.STANDBY, TaskKind.LEARNER),
        learns=of_kind(TaskKind.LEARNER),
        caught_up=frozenset(task for task, report in reports.items() if report.caught_up),
        leaves=member.leaves,
    )


def _prepare(properties: Mapping[str, object], transactional_id: str) -> TransactionalProducer:
    """Raises TaskMigratedError or TransactionAbortedError."""
    producer = TransactionalProducer(properties, transactional_id, None, lambda: True)
    producer.init()
    return producer


def _close_prepared(future: Future[TransactionalProducer]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()


def _fence(properties: Mapping[str, object], transactional_ids: Iterable[str]) -> None:
    """Aborts what is open under transactional ids, and keeps their users from writing with them. Raises StreamsError."""
    for transactional_id in transactional_ids:
        producer = Producer({**properties, "transactional.id": transactional_id}, logger=KAFKA_LOGGER)
        try:
            producer.init_transactions(FENCE_SECONDS)
        except KafkaException as error:
            raise StreamsError(f"{transactional_id} cannot be initialised: {kafka_error(error).str()}") from error
