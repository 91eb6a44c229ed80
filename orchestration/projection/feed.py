"""The feed stores the records of `<app>-events` and `<app>-coordination` in the database, each exactly once.

One step reads the new records and stores them. The next offset of each topic is stored *in the SQL transaction of the rows*: a step that is
killed is stored completely or not at all, and of two concurrent steps the second finds that the offset has moved, and drops what it read.
Nothing is committed to Kafka. The event's id is checked too, because with at-least-once an event may be on the topic twice.

A topic that was deleted and created again has another id: the feed starts over, and the events' ids exclude those that are stored already.
Offsets that retention has removed are skipped. That leaves a gap in the events; the state of the instances is complete, because their
MEMBER records are compacted.

Sensors, checks and the command line read SQL. (Rejected: each reads Kafka with a cursor of its own. Four cursors would disagree about what
has happened.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from penstock.orchestration.database import ControlPlane, audit
from penstock.orchestration.database.models import Event as EventRow
from penstock.orchestration.database.models import FeedOffset
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.log import WAIT_SECONDS, new_reader, unreadable
from penstock.orchestration.projection import writer
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.log_end import LogEnd
from penstock.runtime.kafka.logins import followed
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.events import events_topic

logger = logging.getLogger(__name__)

_BATCH = 1_000
_NO_ANSWER = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError.REQUEST_TIMED_OUT)
_PARTITION = 0  # both topics have a single partition, so their records are totally ordered


@dataclass(frozen=True, slots=True)
class Step:
    """Result of a step: records stored, by topic, and whether it reached the end of all topics that exist."""

    records: int
    at_end: bool


class Feed:
    """Reader of one application's two topics. Keeps its connection between steps; call `close()`, or use it in a `with` block."""

    def __init__(self, application: Application, control_plane: ControlPlane) -> None:
        self._application = application
        self._control_plane = control_plane
        self._topics = (coordination_topic(application.id), events_topic(application.id))
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._assigned: dict[str, str] = {}

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
            self._assigned = {}

    def step(self, timeout_s: float = 5.0) -> Step:
        """Read both topics to their current end, or for `timeout_s`. Topics that do not exist yet count as empty.

        Raises BrokerUnavailableError, which names the broker; records read until then are stored.
        """
        deadline = time.monotonic() + timeout_s
        self._assign(self._topic_ids(min(timeout_s, 5.0)))
        if self._consumer is None:
            return Step(0, True)
        end, waiting, stored = LogEnd(self._consumer), set(self._assigned), 0
        while waiting and (left := deadline - time.monotonic()) > 0:
            messages = self._consume(min(left, WAIT_SECONDS))
            stored += self._store([message for message in messages if message.error() is None])
            for message in messages:
                self._check(message)
                if end.reached(message):
                    waiting.discard(str(message.topic()))
        return Step(stored, not waiting)

    def _topic_ids(self, timeout_s: float) -> dict[str, str]:
        if self._admin is None:
            properties = self._application.connection.client({"log_level": 2})
            self._admin = followed(AdminClient(properties), properties)
        found: dict[str, str] = {}
        futures = self._admin.describe_topics(TopicCollection(list(self._topics)), request_timeout=timeout_s)
        for topic, future in futures.items():
            try:
                found[topic] = str(future.result().topic_id)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise self._unavailable(error) from error
        return found

    def _assign(self, topic_ids: dict[str, str]) -> None:
        """Assign the consumer to the feed's positions in SQL: at the first step, and when a topic was created or recreated."""
        if self._consumer is not None and self._assigned == topic_ids:
            self._seek(self._consumer)  # another feed may have advanced, and the client reports the end once per arrival only
            return
        self.close()
        if not topic_ids:
            return
        self._consumer = new_reader(self._application.connection, f"{self._application.id}-feed")
        for topic, topic_id in topic_ids.items():
            self._ensure_row(topic, topic_id)
        self._assigned = dict(topic_ids)
        self._seek(self._consumer)

    def _seek(self, consumer: Consumer) -> None:
        """Seek the assigned partitions to the offsets in SQL."""
        consumer.assign([TopicPartition(topic, _PARTITION, self._next(topic)) for topic in self._assigned])

    def _next(self, topic: str) -> int:
        with self._control_plane.reading() as session:
            row = session.get(FeedOffset, (self._application.id, topic, _PARTITION))
            return row.next_offset if row is not None else 0

    def _ensure_row(self, topic: str, topic_id: str) -> None:
        """Make sure that the topic has a row, and that the row belongs to this incarnation of the topic."""
        try:
            with self._control_plane.writing() as session:
                row = session.get(FeedOffset, (self._application.id, topic, _PARTITION), with_for_update=True)
                if row is None:
                    session.add(self._first_row(session, topic, topic_id))
                elif row.topic_id != topic_id:
                    logger.warning("topic %s was deleted and created again: reading it from its start", topic)
                    row.topic_id, row.next_offset, row.updated_at = topic_id, 0, audit.now()
        except IntegrityError:
            return  # another feed inserted the same row concurrently

    def _first_row(self, session: Session, topic: str, topic_id: str) -> FeedOffset:
        return FeedOffset(
            application=self._application.id,
            topic=topic,
            partition=_PARTITION,
            topic_id=topic_id,
            next_offset=0,
            sequence=session.scalar(select(func.max(EventRow.sequence)).where(EventRow.application == self._application.id)) or 0,
            updated_at=audit.now(),
        )

    def _consume(self, timeout_s: float) -> list[Message]:
        assert self._consumer is not None  # topics exist here, so partitions are assigned
        return self._consumer.consume(_BATCH, timeout_s)

    def _check(self, message: Message) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            cause = KafkaException(error)
            raise self._unavailable(cause) from cause

    def _store(self, messages: Sequence[Message]) -> int:
        """Store a batch, topic by topic, each in one transaction with the topic's next offset."""
        stored = 0
        for topic in self._topics:
            batch = [message for message in messages if message.topic() == topic]
            if batch:
                with self._control_plane.writing() as session:
                    stored += self._store_topic(session, topic, batch)
        return stored

    def _store_topic(self, session: Session, topic: str, batch: Sequence[Message]) -> int:
        row = session.get(FeedOffset, (self._application.id, topic, _PARTITION), with_for_update=True)
        if row is None or row.topic_id != self._assigned[topic]:
            self._assigned = {}  # another feed has noticed that the topic was created again: assign again at the next step
            return 0
        new = [message for message in batch if _offset(message) >= row.next_offset]
        if not new:
            return 0
        self._project(session, row, new)
        row.next_offset, row.updated_at = _offset(new[-1]) + 1, audit.now()
        return len(new)

    def _project(self, session: Session, row: FeedOffset, messages: Iterable[Message]) -> None:
        if row.topic == events_topic(self._application.id):
            row.sequence = writer.store_events(session, self._application.id, row.sequence, [_value(message) for message in messages])
            return
        for message in messages:
            key = message.key()
            writer.store_coordination(session, self._application.id, key if isinstance(key, bytes) else b"", _value(message))

    def _unavailable(self, error: KafkaException) -> BrokerUnavailableError:
        group = f"{self._application.id}-feed"
        return unreadable(self._application.id, self._application.connection, error, *self._topics, group=group)


class SilentBrokers:
    """Brokers that have not answered in a tick. Each application of such a broker would wait 5 s for it again, and Dagster ends a tick
    after 60 s: with twelve of them, applications of other brokers would not be looked at."""

    def __init__(self) -> None:
        self._silent: set[str] = set()

    @contextmanager
    def asking(self, application: Application) -> Iterator[None]:
        """Note if the application's broker does not answer in the block. Raises BrokerUnavailableError at once if that is known."""
        servers = application.bootstrap_servers
        if servers in self._silent:
            raise BrokerUnavailableError(f"{application.id}: no broker answers at {servers}")
        try:
            yield
        except BrokerUnavailableError as error:
            cause = error.__cause__
            what = cause.args[0] if isinstance(cause, KafkaException) else None
            if isinstance(what, KafkaError) and what.code() in _NO_ANSWER:
                self._silent.add(servers)
            raise


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None  # only the client's events have none, and these are not stored
    return offset


def _value(message: Message) -> bytes | None:
    value = message.value()
    return value if isinstance(value, bytes) else None
