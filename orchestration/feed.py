"""The feed: what an application wrote to `<app>-events` and `<app>-coordination` becomes rows of the control plane, exactly once.

One step reads what is new and stores it; where it goes on (the next offset of each topic) is stored *in the SQL transaction of the rows*.
So a step that is killed anywhere has either happened or not, and two steps at once do no harm: the second one to get the lock of a topic's
row finds that the offset has moved, and drops what it read. Nothing is committed to Kafka. An event's id is checked as well, because under
at-least-once the same event may stand on the topic twice.

A topic that was deleted and made anew has another id: the feed starts over, and the ids of the events keep out what it knew. Offsets that
retention has removed are skipped; the rows then have a gap, which the application's own state (MEMBER, compacted) closes.

Sensors, checks and the command line read SQL. (Rejected: each of them as a reader of Kafka with a cursor of its own. Four cursors give
four opinions about what has happened.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from orchestration import audit, projection
from orchestration.applications import Application
from orchestration.control_plane import ControlPlane
from orchestration.control_plane.models import Event as EventRow
from orchestration.control_plane.models import FeedOffset
from runtime.errors import BrokerUnavailableError
from runtime.events import events_topic
from runtime.log_end import LogEnd
from runtime.topics import coordination_topic

logger = logging.getLogger(__name__)

_BATCH = 1_000
_WAIT_SECONDS = 0.05  # the client library waits for so long even if less than a batch has come
_PARTITION = 0  # both topics have one, which is what gives their records one order


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did: records stored, by topic, and whether it came to the end of each topic that there is."""

    records: int
    at_end: bool


class Feed:
    """Reads the two topics of one application. Keeps its connection between steps; `close()` it, or use it in a `with` block."""

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
        """Reads to the end of both topics as they are now, or for `timeout_s`. Topics that do not exist yet are empty.

        Raises BrokerUnavailableError, which names the broker; what was read until then is stored.
        """
        deadline = time.monotonic() + timeout_s
        self._assign(self._topic_ids(min(timeout_s, 5.0)))
        if self._consumer is None:
            return Step(0, True)
        end, waiting, stored = LogEnd(self._consumer), set(self._assigned), 0
        while waiting and (left := deadline - time.monotonic()) > 0:
            messages = self._consume(min(left, _WAIT_SECONDS))
            stored += self._store([message for message in messages if message.error() is None])
            for message in messages:
                self._check(message)
                if end.reached(message):
                    waiting.discard(str(message.topic()))
        return Step(stored, not waiting)

    def _topic_ids(self, timeout_s: float) -> dict[str, str]:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self._application.bootstrap_servers, "log_level": 2})
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
        """Points the consumer at where SQL says that the feed goes on: at the first step, and when a topic appeared or was made anew."""
        if self._consumer is not None and self._assigned == topic_ids:
            self._seek_behind()
            return
        self.close()
        if not topic_ids:
            return
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._application.bootstrap_servers,
                "group.id": f"{self._application.id}-feed",  # asked for by the client; nothing is committed to it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "fetch.queue.backoff.ms": 5,
                "log_level": 2,
            }
        )
        for topic, topic_id in topic_ids.items():
            self._ensure_row(topic, topic_id)
        self._consumer.assign([TopicPartition(topic, _PARTITION, self._next(topic)) for topic in topic_ids])
        self._assigned = dict(topic_ids)

    def _seek_behind(self) -> None:
        """Starts both partitions from SQL's offsets again: another feed may have gone on, and the end is reported once per arrival only."""
        assert self._consumer is not None  # called by `_assign` with a consumer
        self._consumer.assign([TopicPartition(topic, _PARTITION, self._next(topic)) for topic in self._assigned])

    def _next(self, topic: str) -> int:
        with self._control_plane.reading() as session:
            row = session.get(FeedOffset, (self._application.id, topic, _PARTITION))
            return row.next_offset if row is not None else 0

    def _ensure_row(self, topic: str, topic_id: str) -> None:
        """The topic's row is there and is of this very topic."""
        try:
            with self._control_plane.writing() as session:
                row = session.get(FeedOffset, (self._application.id, topic, _PARTITION), with_for_update=True)
                if row is None:
                    session.add(self._first_row(session, topic, topic_id))
                elif row.topic_id != topic_id:
                    logger.warning("topic %s was deleted and made anew: reading it from its start", topic)
                    row.topic_id, row.next_offset, row.updated_at = topic_id, 0, audit.now()
        except IntegrityError:
            return  # another feed made the same row at the same moment

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
        assert self._consumer is not None  # there is something to wait for, so something is assigned
        return self._consumer.consume(_BATCH, timeout_s)

    def _check(self, message: Message) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise self._unavailable(KafkaException(error))

    def _store(self, messages: Sequence[Message]) -> int:
        """Stores a batch, topic by topic, each in one transaction with where its topic goes on."""
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
            self._assigned = {}  # another feed has seen the topic made anew: start over at the next step
            return 0
        new = [message for message in batch if _offset(message) >= row.next_offset]
        if not new:
            return 0
        self._project(session, row, new)
        row.next_offset, row.updated_at = _offset(new[-1]) + 1, audit.now()
        return len(new)

    def _project(self, session: Session, row: FeedOffset, messages: Iterable[Message]) -> None:
        if row.topic == events_topic(self._application.id):
            row.sequence = projection.store_events(session, self._application.id, row.sequence, [_value(message) for message in messages])
            return
        for message in messages:
            key = message.key()
            projection.store_coordination(session, self._application.id, key if isinstance(key, bytes) else b"", _value(message))

    def _unavailable(self, error: KafkaException) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"{self._application.id}: no broker answers at {self._application.bootstrap_servers} ({error.args[0].str()}); "
            "the application's instances go on by themselves as soon as it does"
        )


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None  # only events of the client have none, and these are not stored
    return offset


def _value(message: Message) -> bytes | None:
    value = message.value()
    return value if isinstance(value, bytes) else None
