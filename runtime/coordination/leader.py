"""What the leader does: sees who is alive, fences who is not, and writes who runs what (coordination.md, 1, 3, 5).

Nothing is granted that another may still run. A task goes over in two assignments: the first takes it from its owner (`revoking`), who
commits, closes it, and reports; the second grants it. A dead owner does not report: its transactional id is initialised, which aborts
what it left open and fences it, and its tombstone stands in the transaction of the assignment that grants its tasks anew (rules.md, 22).

Every write is one transaction, guarded with the group metadata of this membership: a leader that the group has replaced, but does not
know it yet, cannot write (rules.md, 23).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from runtime.clock import Clock
from runtime.commit.metadata import OffsetAndMetadata
from runtime.commit.transactions import TransactionalProducer, kafka_error
from runtime.config import StreamsConfig
from runtime.coordination.assignor import Candidate, assign
from runtime.coordination.group import Membership, members_group
from runtime.coordination.records import ASSIGNMENT_KEY, Assignment, Grant, Reserved, encode
from runtime.coordination.registry import Known, Registry, member_key
from runtime.errors import StreamsError, TaskMigratedError, TransactionAbortedError
from runtime.ids import TaskId
from runtime.kafka_logs import KAFKA_LOGGER
from runtime.topics import TopicLayout, coordination_topic

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 500
"""How often the group's members are asked for (rules.md, 24)."""
FENCE_SECONDS = 30.0
GUARD_OFFSET = OffsetAndMetadata(0, "")


class Leader:
    """The leader's part of one worker; idle while another leads. Belongs to the worker's thread."""

    def __init__(self, config: StreamsConfig, layout: TopicLayout, membership: Membership, registry: Registry, clock: Clock) -> None:
        self._config = config
        self._layout = layout
        self._membership = membership
        self._registry = registry
        self._clock = clock
        self._admin = AdminClient(config.admin_properties(), logger=KAFKA_LOGGER)
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="fence")
        self._looking: tuple[int, Future[object]] | None = None
        self._looked_at_ms = -LOOK_EVERY_MS
        self._alive: tuple[int, frozenset[str]] | None = None
        self._fencing: dict[str, Future[None]] = {}
        self._producer: TransactionalProducer | None = None
        self._written: Assignment | None = None
        self._name = ""

    def begin(self, name: str) -> None:
        """A new incarnation of this worker: its writes get a transactional id of their own, `<application.id>-leader-<name>`."""
        self._name = name
        self._drop_producer()

    def step(self) -> None:
        """One look and, if something has changed, one assignment. Never waits for long. Errors are logged and tried again."""
        if not self._membership.leads:
            self._alive, self._looking, self._written = None, None, None
            return
        now_ms = self._clock.monotonic_ms()
        self._look(now_ms)
        dead = self._dead()
        fenced = [key for key in dead if self._fenced(key)]
        if self._written is not None and self._registry.assignment != self._written:
            return  # written, and not yet read back
        self._written = None
        wanted = self._wanted(dead, set(fenced))
        if wanted is not None and (fenced or wanted != self._registry.assignment):
            self._write(wanted, fenced)

    # -- who is alive ------------------------------------------------------------------------------------------------------------

    def _look(self, now_ms: int) -> None:
        """Asks for the group's members without waiting for the answer."""
        if self._looking is not None:
            asked_ms, future = self._looking
            if future.done():
                self._looking = None
                try:
                    description = future.result()
                except KafkaException as error:
                    logger.info("the members' group cannot be looked at: %s", kafka_error(error).str())
                else:
                    self._alive = (asked_ms, frozenset(member.member_id for member in description.members))  # type: ignore[attr-defined] # untyped
        elif now_ms - self._looked_at_ms >= LOOK_EVERY_MS:
            self._looked_at_ms = now_ms
            group = members_group(self._config.application_id)
            self._looking = (now_ms, self._admin.describe_consumer_groups([group], request_timeout=10)[group])

    def _dead(self) -> list[str]:
        """Members that the group does not have, by an answer that was asked for after their record was read; and those whose instance has
        begun a new incarnation, which tells of the end of the one before."""
        members = self._registry.members
        newest: dict[str, int] = {}
        for known in members.values():
            newest[known.member.instance] = max(known.member.incarnation, newest.get(known.member.instance, 0))
        return [key for key, known in members.items() if known.member.incarnation < newest[known.member.instance] or self._gone(known)]

    def _gone(self, known: Known) -> bool:
        return self._alive is not None and self._alive[0] > known.since_ms and known.member.member_id not in self._alive[1]

    def _fenced(self, key: str) -> bool:
        """True once nothing more can come of the dead member's transactional id; begins to see to that the first time."""
        future = self._fencing.get(key)
        if future is None:
            logger.warning("member %s is dead; its transactions are aborted", key)
            self._fencing[key] = self._pool.submit(
                _fence, self._config.producer_properties(), self._registry.members[key].member.transactional_id
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

    # -- who runs what -------------------------------------------------------------------------------------------------------------

    def _wanted(self, dead: list[str], fenced: set[str]) -> Assignment | None:
        """The assignment as it should be now; None if nobody is there to be assigned anything."""
        registry = self._registry
        live = {
            key: known for key, known in registry.members.items() if key not in dead and known.member.member_id and not known.member.returns
        }
        if not live:
            return None
        reserved = self._reserved(live, dead)
        tasks = sorted(task for task in self._layout.tasks if str(task) not in reserved)
        candidates = [_candidate(key, known, self._before(known.member.instance, key)) for key, known in sorted(live.items())]
        wanted = assign(candidates, tasks)
        holders = {str(task): registry.holders(str(task)) - fenced for task in tasks}
        grants = []
        for key, known in sorted(live.items()):
            active = [str(task) for task in sorted(wanted[key]) if holders[str(task)] <= {key}]
            grants.append(
                Grant(member_id=known.member.member_id, incarnation=known.member.incarnation, instance=known.member.instance, active=active)
            )
        revoking = {
            key: sorted(known.held - {str(task) for task in wanted[key]})
            for key, known in sorted(live.items())
            if known.held - {str(task) for task in wanted[key]}
        }
        return Assignment(leader=self._name, grants=grants, revoking=revoking, reserved=reserved)

    def _before(self, instance: str, key: str) -> frozenset[TaskId]:
        """What a member runs, or its instance ran before it began anew: tasks stay where they were."""
        assignment = self._registry.assignment
        if assignment is None:
            return frozenset()
        own = {task for grant in assignment.grants if member_key(grant.instance, grant.incarnation) == key for task in grant.active}
        former = {task for grant in assignment.grants if grant.instance == instance for task in grant.active}
        kept = {task for task, reserved in assignment.reserved.items() if reserved.instance == instance}
        return frozenset(TaskId.parse(task) for task in own or former | kept)

    def _reserved(self, live: Mapping[str, Known], dead: list[str]) -> dict[str, Reserved]:
        """Tasks that are kept for an instance that said it would return, until its time is up (rules.md, 4)."""
        registry, now_ms = self._registry, self._clock.wall_ms()
        here = {known.member.instance for known in live.values()}
        before = registry.assignment.reserved if registry.assignment is not None else {}
        reserved = {task: kept for task, kept in before.items() if kept.until_ms > now_ms and kept.instance not in here}
        grace_ms = self._config.integer("restart.grace.ms")
        for key in dead:
            member = registry.members[key].member
            if member.returns and member.instance not in here and member.heartbeat_ms + grace_ms > now_ms:
                kept = Reserved(instance=member.instance, until_ms=member.heartbeat_ms + grace_ms)
                reserved.update((str(task), kept) for task in self._before(member.instance, key))
        return reserved

    def _write(self, assignment: Assignment, fenced: list[str]) -> None:
        """The assignment and the tombstones of the fenced, in one guarded transaction."""
        topic = coordination_topic(self._config.application_id)
        try:
            producer = self._ready_producer()
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

    def _ready_producer(self) -> TransactionalProducer:
        if self._producer is None:
            properties = {**self._config.producer_properties(), "linger.ms": 0}
            transactional_id = f"{self._config.application_id}-leader-{self._name}"
            producer = TransactionalProducer(properties, transactional_id, None, lambda: True)
            producer.init()
            self._producer = producer
        return self._producer

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def close(self) -> None:
        self._drop_producer()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _candidate(key: str, known: Known, before: frozenset[TaskId]) -> Candidate:
    positions = {TaskId.parse(task): position for task, position in known.member.disk.items()}
    running = before | {TaskId.parse(task) for task in known.member.tasks}
    return Candidate(key, frozenset(running), positions)


def _fence(properties: Mapping[str, object], transactional_id: str) -> None:
    """Aborts what is open under a transactional id, and keeps its user from writing with it. Raises StreamsError."""
    producer = Producer({**properties, "transactional.id": transactional_id}, logger=KAFKA_LOGGER)
    try:
        producer.init_transactions(FENCE_SECONDS)
    except KafkaException as error:
        raise StreamsError(f"{transactional_id} cannot be initialised: {kafka_error(error).str()}") from error
