"""View of an application from Kafka alone: no database, no Dagster, no `streams.toml` is needed.

`<app>-coordination` (compacted) contains the last report of each instance and the wanted instances; `<app>-events` contains the history.
The command line reads them through this module, so it works from any machine that can reach the brokers. Only the database has what people
enter, such as acknowledgements and approvals.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.orchestration.kafka.log import FROM_START, reader, to_end, unreadable
from penstock.orchestration.kafka.rates import Rates
from penstock.runtime.coordination import records
from penstock.runtime.coordination.records import (
    SILENT_MS,
    Assignment,
    Death,
    Desired,
    GlobalStoreReport,
    Member,
    Reset,
    TaskReport,
    TopologyText,
)
from penstock.runtime.coordination.resets import unfinished
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, meaning
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import Event, EventKind, events_topic
from penstock.runtime.model.states import State, TaskKind, TaskState

logger = logging.getLogger(__name__)

FREQUENT = (EventKind.CHECKPOINT, EventKind.RESTORE_PROGRESS)
"""Events that a list of the last ones leaves out: tasks publish them periodically, and their content is shown elsewhere."""
_SECONDS = 10.0
_SILENCE_SECONDS = 3.0
"""After this time without an answer, the log says so."""
_STEP = 200
_WRITTEN = "written"
"""Name of a member's counter beside its tasks'."""
_PROCESSING = (TaskState.RUNNING, TaskState.PAUSED)
"""States of active tasks whose committed offsets are read."""
_CONDITIONS = (
    EventKind.TASK_CORRUPTED,
    EventKind.OFFSET_MOVED,
    EventKind.OFFSET_RESET,
    EventKind.GLOBAL_TOPIC_NOT_COMPACTED,
    EventKind.INPUT_PARTITIONS_ADDED,
)


@dataclass(frozen=True, slots=True)
class UnreadPartitions:
    """Input topic with more partitions than its tasks read: those from `read` to `partitions - 1` have no task."""

    topic: str
    read: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Flows:
    """Records per second that a worker or an instance reads (source and repartition topics) and writes (output and repartition topics), as
    far as they are committed. None: unknown."""

    read: float | None = None
    written: float | None = None

    @classmethod
    def together(cls, parts: Iterable[Flows]) -> Flows:
        """Return the sum of what is known."""
        known = [*parts]
        return cls(sum_known(part.read for part in known), sum_known(part.written for part in known))


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Picture:
    """Content of the coordination topic: members by `instance/worker/incarnation`, wanted instances by name, topologies by hash."""

    application: str
    members: Mapping[str, Member]
    desired: Mapping[str, Desired]
    topologies: Mapping[str, str]
    assignment: Assignment | None
    versions: Mapping[str, TopologyText] = field(default_factory=dict)
    """Topologies by digest; the one started last is the last one."""
    deaths: frozenset[str] = frozenset()
    """Identities of members that are dead but not fenced yet."""
    heard_ms: Mapping[str, int] = field(default_factory=dict)
    """Time of the last heartbeat by instance, including members whose record has been deleted since."""
    unread: tuple[UnreadPartitions, ...] = ()
    """Input topics with partitions that no task of the topology started last reads."""
    flows: Mapping[str, Flows] = field(default_factory=dict)
    """Records per second of each member, at its last heartbeat."""
    unfinished_reset: Reset | None = None
    """Reset that has begun and not ended: until then, no instance starts."""

    @property
    def reset_text(self) -> str | None:
        """Sentence on a reset that has not ended, with the command that ends it; None if there is none."""
        return None if self.unfinished_reset is None else unfinished(self.unfinished_reset, self.application)

    def member(self, instance: str) -> Member | None:
        """Return the last MEMBER record of the instance."""
        own = [member for member in self.members.values() if member.instance == instance]
        return max(own, key=lambda member: member.heartbeat_ms, default=None)

    def workers(self, instance: str) -> list[Member]:
        """Return the last MEMBER record of each worker of the instance, by their numbers."""
        newest: dict[int, Member] = {}
        for member in sorted(self.members.values(), key=lambda member: member.heartbeat_ms):
            if member.instance == instance:
                newest[member.worker] = member
        return [newest[number] for number in sorted(newest)]

    def instances(self, declared: Sequence[str] = ()) -> list[str]:
        """Return the declared instances in their order, then all others on the coordination topic."""
        known = {*self.desired, *(member.instance for member in self.members.values())}
        return [*declared, *sorted(known - set(declared))]

    def reports(self) -> list[tuple[str, str, TaskReport]]:
        """Return task, instance and report from the newest record of each worker; sorted by task, the active one first."""
        found = [
            (task, instance, report)
            for instance in self.instances()
            for member in self.workers(instance)
            for task, report in member.tasks.items()
        ]
        return sorted(found, key=lambda entry: (_task_order(entry[0]), entry[2].kind is not TaskKind.ACTIVE, entry[1]))

    def global_stores(self) -> list[tuple[str, str, int, GlobalStoreReport]]:
        """Return store, instance, number of the worker, and report of each copy of a global store."""
        found = [
            (store, instance, member.worker, report)
            for instance in self.instances()
            for member in self.workers(instance)
            for store, report in member.global_stores.items()
        ]
        return sorted(found, key=lambda entry: entry[:3])


@dataclass(frozen=True, slots=True)
class Condition:
    """Current problem of an application, as visible on Kafka."""

    kind: str
    severity: str
    subject: str
    what: str
    since_ms: int | None


class CoordinationLog:
    """State of an application's coordination topic, applied record by record."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._desired: dict[str, Desired] = {}
        self._begin()

    def _begin(self) -> None:
        """Forget everything but the wanted instances, which outlive a reset."""
        self._members: dict[str, Member] = {}
        self._topologies: dict[str, str] = {}
        self._versions: dict[str, TopologyText] = {}
        self._deaths: set[str] = set()
        self._heard: dict[str, int] = {}
        self._assignment: Assignment | None = None
        self._unfinished_reset: Reset | None = None
        self._rates = Rates()

    def apply(self, key: object, value: object) -> records.Record | None:
        """Apply and return the next record. One that cannot be read is logged; None is returned for it, and for records of other kinds."""
        record = self._decode(key, value)
        match record:
            case Member():
                self._members[record.identity] = record
                self._heard[record.instance] = max(record.heartbeat_ms, self._heard.get(record.instance, 0))
                self._count(record)
            case Desired():
                self._desired[record.instance] = record
            case TopologyText():
                self._topologies[record.hash] = record.text
                self._versions.pop(record.digest, None)
                self._versions[record.digest] = record
            case Assignment():
                self._assignment = record
            case Death():
                self._deaths.add(record.identity)
            case records.Tombstone(kind=records.MEMBER):
                self._members.pop(record.id, None)
                self._rates.keep(lambda key: not (isinstance(key, tuple) and key[0] == record.id))
            case records.Tombstone(kind=records.DEATH):
                self._deaths.discard(record.id)
            case Reset(ended=True):
                self._begin()
            case Reset():
                self._unfinished_reset = record
            case records.Tombstone(kind=records.RESET):
                self._unfinished_reset = None
        return record

    def _count(self, member: Member) -> None:
        for task, report in member.tasks.items():
            if report.kind is TaskKind.ACTIVE and report.state not in _PROCESSING:
                continue  # its committed offsets may not be read yet: from 0 to them it has read nothing
            count = report.offset_sum if report.kind is TaskKind.ACTIVE else report.position
            self._rates.add((member.identity, task, report.kind is TaskKind.ACTIVE), count, member.heartbeat_ms)
        if member.written is not None:
            self._rates.add((member.identity, _WRITTEN), member.written, member.heartbeat_ms)

    def rate(self, member: Member, task: str, now_ms: int) -> float | None:
        """Return the records per second that a member reads for a task: input, or changelogs of a copy. None if unknown."""
        return self._rates.per_second((member.identity, task, member.tasks[task].kind is TaskKind.ACTIVE), now_ms)

    def flows(self, member: Member, now_ms: int) -> Flows:
        """Return the records per second of a member."""
        read = sum_known(self.rate(member, task, now_ms) for task in member.active) if member.active else 0.0
        return Flows(read, self._rates.per_second((member.identity, _WRITTEN), now_ms))

    def picture(self, partitions: Mapping[str, int]) -> Picture:
        """Return a copy of the state. `partitions`: the number of partitions of every topic."""
        unread = tuple(unread_partitions([*self._versions.values()][-1], partitions)) if self._versions else ()
        return Picture(
            self._application,
            dict(self._members),
            dict(self._desired),
            dict(self._topologies),
            self._assignment,
            dict(self._versions),
            frozenset(self._deaths),
            dict(self._heard),
            unread,
            unfinished_reset=self._unfinished_reset,
        )

    def _decode(self, key: object, value: object) -> records.Record | None:
        try:
            return records.decode(key if isinstance(key, bytes) else None, value if isinstance(value, bytes) else None)
        except StreamsError as error:
            logger.warning("%s: left out: %s", self._application, error)
            return None


class Observer:
    """Reader of one application's state on Kafka. Each call makes new requests to the brokers."""

    def __init__(self, application_id: str, connection: Connection) -> None:
        self.application = application_id
        self._connection = connection

    def observe(self) -> Picture:
        """Read the coordination topic. Raises BrokerUnavailableError; StreamsError if the application was never started there."""
        log = CoordinationLog(self.application)
        with self._reading(coordination_topic(self.application)) as (consumer, partitions):
            consumer.assign([TopicPartition(coordination_topic(self.application), 0, FROM_START)])
            for message in to_end(consumer, _SECONDS):
                log.apply(message.key(), message.value())
        picture = log.picture(partitions)
        return replace(picture, flows={each.identity: log.flows(each, each.heartbeat_ms) for each in picture.members.values()})

    def events(self, limit: int, kind: str | None = None, task: str | None = None, *, without: Collection[EventKind] = ()) -> list[Event]:
        """Return the newest events of this kind and task, or of all kinds but those, at most `limit`, oldest first. Raises as `observe`."""
        topic = events_topic(self.application)
        with self._reading(topic) as (consumer, _):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_SECONDS)
            found: list[Event] = []
            start, step = high, max(_STEP, 2 * limit)
            while start > low and len(found) < limit:
                start = max(low, start - step)
                step *= 4
                consumer.assign([TopicPartition(topic, 0, start)])
                events = [event for message in to_end(consumer, 60.0) if (event := decode_event(message.value())) is not None]
                asked = [event for event in events if kind in (None, event.kind.value) and task in (None, event.task)]
                found = [event for event in asked if event.kind not in without]
        return _each_once(found)[-limit:]

    def conditions(self, now_ms: int) -> list[Condition]:
        """Return the current problems: paused tasks, wanted instances that are silent, recoveries in progress; and events of the last day
        whose resolution is not visible on Kafka. Raises as `observe`."""
        picture = self.observe()
        events = self.events(10_000)
        found = [*_paused(picture, events), *_silent(picture, now_ms), *_recoveries(events)]
        return [*found, *of_events([event for event in events if event.at_ms >= now_ms - 86_400_000])]

    @contextmanager
    def _reading(self, topic: str) -> Iterator[tuple[Consumer, Mapping[str, int]]]:
        """Yield a consumer for a topic that exists, and the number of partitions of every topic. Raises BrokerUnavailableError,
        StreamsError."""
        try:
            partitions = self._partition_counts()
            if topic not in partitions:
                raise StreamsError(f"{topic} does not exist on {self._connection}: has {self.application} ever been started there?")
            with reader(self._connection) as consumer:
                yield consumer, partitions
        except KafkaException as error:
            raise unreadable(self.application, self._connection, error, topic) from error

    def _partition_counts(self) -> Mapping[str, int]:
        """Return the number of partitions of every topic. Raises KafkaException if no broker answers."""
        admin = AdminClient(self._connection.client({"log_level": 2}))
        more = _SECONDS - _SILENCE_SECONDS
        try:
            found = admin.list_topics(timeout=_SILENCE_SECONDS)
        except KafkaException as error:
            if Meaning.NO_ANSWER not in meaning(error):
                raise
            silent = "%s: no broker at %s has answered for %g s; waiting for up to %g s more"
            logger.warning(silent, self.application, self._connection, _SILENCE_SECONDS, more)
            found = admin.list_topics(timeout=more)
        return {name: len(topic.partitions) for name, topic in found.topics.items()}


def decode_event(value: object) -> Event | None:
    """Decode a record of the events topic. One that cannot be read is logged; None is returned for it."""
    try:
        return Event.from_json(value) if isinstance(value, bytes) else None
    except msgspec.DecodeError as error:
        logger.warning("an event cannot be read and is left out: %s", error)
        return None


def _each_once(events: Sequence[Event]) -> list[Event]:
    """Drop duplicate events, which at-least-once may write."""
    return list({event.id: event for event in events}.values())


def unread_partitions(version: TopologyText, partitions: Mapping[str, int]) -> Iterator[UnreadPartitions]:
    """Yield the input topics of a topology that have more partitions than its tasks read. `partitions` by topic. Topics that a pattern
    matches are left out: their partitions are not recorded."""
    for part in version.parts.values():
        for topic in part.reads:
            read = version.inputs.get(topic, part.tasks)
            if partitions.get(topic, 0) > read:
                yield UnreadPartitions(topic, read, partitions[topic])


def of_events(events: Sequence[Event]) -> list[Condition]:
    """Return the problems reported by these events (oldest first): one per kind and subject, from its newest event. Subjects are those of
    alerts, because each instance emits an event about the same topic."""
    found: dict[tuple[EventKind, str], Condition] = {}
    for event in events:
        if event.kind not in _CONDITIONS:
            continue
        subject = _subject(event)
        found.pop((event.kind, subject), None)
        if event.kind is EventKind.INPUT_PARTITIONS_ADDED and not event.payload.get("reason"):
            continue  # the new partitions are read
        what = ", ".join(f"{key} {value}" for key, value in event.payload.items() if value is not None)
        found[event.kind, subject] = Condition(event.kind.value, "WARN", subject, what, event.at_ms)
    return list(found.values())


def _subject(event: Event) -> str:
    topic, partition = event.payload.get("topic"), event.payload.get("partition")
    match event.kind:
        case EventKind.OFFSET_MOVED | EventKind.OFFSET_RESET:
            return f"{topic}-{partition}"
        case EventKind.GLOBAL_TOPIC_NOT_COMPACTED | EventKind.INPUT_PARTITIONS_ADDED:
            return str(topic)
        case _:
            return event.task or event.instance


def _task_order(task: str) -> tuple[int, ...]:
    return tuple(int(part) for part in task.split("_") if part.isdigit())


def _paused(picture: Picture, events: Sequence[Event]) -> Iterator[Condition]:
    paused_ms = {event.task: event.at_ms for event in events if event.kind is EventKind.TASK_PAUSED}
    for task, instance, report in picture.reports():
        at = report.paused
        if at is None or report.kind is not TaskKind.ACTIVE:
            continue
        place = f"{at.topic}-{at.partition}@{at.offset}"
        what = (
            f"task {task} on {instance} is paused at {place}{f', at {at.location}' if at.location else ''}: {at.error}"
            if at.error
            else f"task {task} on {instance} was paused by hand"
        )
        yield Condition("TASK_PAUSED", "ERROR" if at.error else "INFO", place, what, paused_ms.get(task))


def _silent(picture: Picture, now_ms: int) -> Iterator[Condition]:
    for instance in picture.instances():
        desired, member = picture.desired.get(instance), picture.member(instance)
        if desired is None or not desired.running:
            continue
        since = desired.at_ms if member is None else max(member.heartbeat_ms, desired.at_ms)
        if now_ms - since > SILENT_MS or (member is not None and member.state is State.ERROR):
            yield Condition("INSTANCE_SILENT", "ERROR", instance, f"{instance} should run and has said nothing since", since)


def _recoveries(events: Sequence[Event]) -> list[Condition]:
    under_way: dict[tuple[str, object, object], Condition] = {}
    for event in events:
        store = event.payload.get("store")
        key = (event.instance, event.payload.get("worker"), store)
        if event.kind is EventKind.GLOBAL_RECOVERY_STARTED:
            what = f"global store {store} on {event.instance} is rebuilt: {event.payload.get('reason')}"
            under_way[key] = Condition("GLOBAL_RECOVERY", "WARN", f"{store} on {event.instance}", what, event.at_ms)
        elif event.kind is EventKind.GLOBAL_RECOVERY_ENDED:
            under_way.pop(key, None)
    return list(under_way.values())
