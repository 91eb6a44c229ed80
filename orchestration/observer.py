"""An application as Kafka alone tells of it: no database, no Dagster, no `streams.toml` is needed.

`<app>-coordination` (compacted) holds what each instance last said of itself and what should run, `<app>-events` what happened. The command
line looks through here, so that it works from any machine that reaches the brokers. What only people know (who looks after an alert, who
approved what) is in the database.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from orchestration.kafka_log import FROM_START, reader, to_end
from runtime.coordination import records
from runtime.coordination.records import Assignment, Desired, Member, TaskReport, TopologyText
from runtime.errors import BrokerUnavailableError, StreamsError
from runtime.events import Event, EventKind, events_topic
from runtime.states import State, TaskKind
from runtime.topics import coordination_topic

logger = logging.getLogger(__name__)

SILENT_MS = 30_000
"""An instance that has said nothing for so long is silent."""
_SECONDS = 10.0
_STEP = 200
_CONDITIONS = (EventKind.TASK_CORRUPTED, EventKind.OFFSET_MOVED, EventKind.OFFSET_RESET, EventKind.GLOBAL_TOPIC_NOT_COMPACTED)


@dataclass(frozen=True, slots=True)
class Picture:
    """What stands on the coordination topic: members by `instance/worker/incarnation`, what should run by instance, topologies by hash."""

    application: str
    members: Mapping[str, Member]
    desired: Mapping[str, Desired]
    topologies: Mapping[str, str]
    assignment: Assignment | None

    def member(self, instance: str) -> Member | None:
        """What the instance last said of itself."""
        own = [member for member in self.members.values() if member.instance == instance]
        return max(own, key=lambda member: member.heartbeat_ms, default=None)

    def workers(self, instance: str) -> list[Member]:
        """What each worker of the instance last said of itself, by their numbers."""
        newest: dict[int, Member] = {}
        for member in sorted(self.members.values(), key=lambda member: member.heartbeat_ms):
            if member.instance == instance:
                newest[member.worker] = member
        return [newest[number] for number in sorted(newest)]

    def instances(self, declared: Sequence[str] = ()) -> list[str]:
        """Those that are declared, in their order, then all others that the topic knows."""
        known = {*self.desired, *(member.instance for member in self.members.values())}
        return [*declared, *sorted(known - set(declared))]

    def reports(self) -> list[tuple[str, str, TaskReport]]:
        """Task, instance and report, of the newest word of each worker; sorted by task, the active one first."""
        found = [
            (task, instance, report)
            for instance in self.instances()
            for member in self.workers(instance)
            for task, report in member.tasks.items()
        ]
        return sorted(found, key=lambda entry: (_task_order(entry[0]), entry[2].kind is not TaskKind.ACTIVE, entry[1]))


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is wrong now, as far as Kafka tells."""

    kind: str
    severity: str
    subject: str
    what: str
    since_ms: int | None


class Observer:
    """Looks at one application. Contacts the brokers when it is asked; each answer is as of then."""

    def __init__(self, application_id: str, bootstrap_servers: str) -> None:
        self.application = application_id
        self._servers = bootstrap_servers

    def look(self) -> Picture:
        """Raises BrokerUnavailableError; StreamsError if the application was never started there."""
        members: dict[str, Member] = {}
        desired: dict[str, Desired] = {}
        topologies: dict[str, str] = {}
        assignment: Assignment | None = None
        with self._reading(coordination_topic(self.application)) as consumer:
            consumer.assign([TopicPartition(coordination_topic(self.application), 0, FROM_START)])
            for message in to_end(consumer, _SECONDS):
                key = message.key()
                record = self._decode(key if isinstance(key, bytes) else None, message.value())
                match record:
                    case Member():
                        members[record.who] = record
                    case Desired():
                        desired[record.instance] = record
                    case TopologyText():
                        topologies[record.hash] = record.text
                    case Assignment():
                        assignment = record
                    case records.Tombstone(kind=records.MEMBER):
                        members.pop(record.id, None)
        return Picture(self.application, members, desired, topologies, assignment)

    def events(self, limit: int, kind: str | None = None, task: str | None = None) -> list[Event]:
        """The newest events of this kind and task, at most `limit`, oldest first. Raises as `look`."""
        topic = events_topic(self.application)
        with self._reading(topic) as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_SECONDS)
            found: list[Event] = []
            start, step = high, max(_STEP, 2 * limit)
            while start > low and len(found) < limit:
                start = max(low, start - step)
                step *= 4
                consumer.assign([TopicPartition(topic, 0, start)])
                events = [event for message in to_end(consumer, 60.0) if (event := _event(message.value())) is not None]
                found = [event for event in events if kind in (None, event.kind.value) and task in (None, event.task)]
        return _each_once(found)[-limit:]

    def conditions(self, now_ms: int) -> list[Condition]:
        """What is wrong now: paused tasks, instances that should run and are silent, recoveries under way; and what was told of the last
        day that nobody can see the end of. Raises as `look`."""
        picture = self.look()
        events = self.events(10_000)
        found = [*_paused(picture, events), *_silent(picture, now_ms), *_recoveries(events)]
        day_ago = now_ms - 86_400_000
        for event in events:
            if event.kind in _CONDITIONS and event.at_ms >= day_ago:
                subject = event.task or event.instance
                what = ", ".join(f"{key} {value}" for key, value in event.payload.items() if value is not None)
                found.append(Condition(event.kind.value, "WARN", subject, what, event.at_ms))
        return found

    @contextmanager
    def _reading(self, topic: str) -> Iterator[Consumer]:
        """A consumer for a topic that is there. Raises BrokerUnavailableError, StreamsError."""
        try:
            admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 2})
            if topic not in admin.list_topics(timeout=_SECONDS).topics:
                raise StreamsError(f"{topic} does not exist on {self._servers}: has {self.application} ever been started there?")
            with reader(self._servers) as consumer:
                yield consumer
        except KafkaException as error:
            text = error.args[0].str() if isinstance(error.args[0], KafkaError) else str(error)
            raise BrokerUnavailableError(f"{self.application}: no broker answers at {self._servers} ({text})") from error

    def _decode(self, key: bytes | None, value: object) -> records.Record | None:
        try:
            return records.decode(key, value if isinstance(value, bytes) else None)
        except StreamsError as error:
            logger.warning("%s: left out: %s", self.application, error)
            return None


def _event(value: object) -> Event | None:
    try:
        return Event.from_json(value) if isinstance(value, bytes) else None
    except msgspec.DecodeError as error:
        logger.warning("an event cannot be read and is left out: %s", error)
        return None


def _each_once(events: Sequence[Event]) -> list[Event]:
    """Under at-least-once the same event may stand on the topic twice."""
    return list({event.id: event for event in events}.values())


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
            f"task {task} on {instance} is paused at {place}: {at.error}" if at.error else f"task {task} on {instance} was paused by hand"
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
    under_way: dict[tuple[str, object], Condition] = {}
    for event in events:
        key = (event.instance, event.payload.get("store"))
        if event.kind is EventKind.GLOBAL_RECOVERY_STARTED:
            what = f"global store {key[1]} on {event.instance} is rebuilt: {event.payload.get('reason')}"
            under_way[key] = Condition("GLOBAL_RECOVERY", "WARN", f"{key[1]} on {event.instance}", what, event.at_ms)
        elif event.kind is EventKind.GLOBAL_RECOVERY_ENDED:
            under_way.pop(key, None)
    return list(under_way.values())
