"""Reading of an application's topics and offsets for the board, by two threads: one follows the coordination and events topics, the other
requests offsets periodically. Both continue when a broker is away, and say so in the state.

A request for metadata each second shows whether a broker answers. (Rejected: the client library's own events. It reports a broken
connection, but not a broker that hangs.) The client library may ask the same broker again and again, so that if one of
several hangs, all seem to. Then each is asked by a new client that knows it alone; that of the first that answers reads on. (Rejected: one
new client that knows all of them. It asks one at random, which may be the one that hangs.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from threading import Event as Flag
from threading import Thread

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.orchestration.board.state import BoardState
from penstock.orchestration.kafka.log import cause
from penstock.orchestration.kafka.observer import decode_event
from penstock.orchestration.kafka.topic_offsets import TopicOffsets
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.clients import QUIET, tail_consumer
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, meaning
from penstock.runtime.kafka.log_end import LogEnd
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import events_topic

logger = logging.getLogger(__name__)

EVENTS_BACK = 10_000
"""The events topic is read from so many records before its end."""
_PROBE_SECONDS, _ANSWER_SECONDS = 1.0, 2.0
_POLL_SECONDS = 0.1
_COUNTS_SECONDS = 10.0
_BATCH = 500


class _StartAgainError(Exception):
    """The topics were deleted, or created again."""


class Follower:
    """Reader of one application. `start()` returns at once; `stop()` ends both threads."""

    def __init__(self, config: StreamsConfig, state: BoardState) -> None:
        self._config = config
        self._state = state
        self._application = config.application_id
        self._topics = (coordination_topic(self._application), events_topic(self._application))
        self._brokers: tuple[str, ...] = ()
        self._stop = Flag()
        self._threads = [
            Thread(target=self._follow_topics, name=f"board-topics-{self._application}", daemon=True),
            Thread(target=self._follow_offsets, name=f"board-offsets-{self._application}", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask both threads to end; does not wait for requests to a broker that does not answer."""
        self._stop.set()

    # -- topics ----------------------------------------------------------------------------------------------------------------

    def _follow_topics(self) -> None:
        while not self._stop.is_set():
            self._consumer = self._new_consumer()
            try:
                self._state.begin()
                self._follow()
            except _StartAgainError:
                logger.info("%s: its topics were created again: reading them from the start", self._application)
            except KafkaException as error:
                self._state.lost(self._unavailable(error))
                self._stop.wait(_PROBE_SECONDS)
            finally:
                self._consumer.close()

    def _new_consumer(self, servers: str = "") -> Consumer:
        """Return a consumer. `servers`: the addresses that it begins with; without them, those of the configuration, and those of the
        brokers that have been met."""
        servers = servers or ",".join(dict.fromkeys((str(self._config["bootstrap.servers"]), *self._brokers)))
        properties = {**self._config.consumer_properties("main"), **QUIET, "bootstrap.servers": servers}
        return tail_consumer(properties, f"{self._application}-board")

    def _follow(self) -> None:
        """Read until `stop()`. Raises _StartAgainError, KafkaException."""
        waiting: set[str] = set()
        end: LogEnd | None = None
        positions: dict[str, int] = {}
        probed = float("-inf")
        while not self._stop.is_set():
            if time.monotonic() - probed >= _PROBE_SECONDS:
                before = self._consumer
                there = self._probe(positions)
                if end is not None and self._consumer is not before:
                    end = LogEnd(self._consumer)
                probed = time.monotonic()
                if there is False and positions:
                    raise _StartAgainError
                if there and events_topic(self._application) not in positions and self._assign(positions):
                    waiting, end = set(positions), LogEnd(self._consumer)
            if not positions:
                self._stop.wait(_POLL_SECONDS)
                continue
            for message in self._consumer.consume(_BATCH, _POLL_SECONDS):
                self._apply(message, positions)
                if end is not None and end.reached(message):
                    waiting.discard(str(message.topic()))
            if end is not None and not waiting:
                self._state.complete()
                end = None

    def _probe(self, positions: Mapping[str, int]) -> bool | None:
        """Return True if the application's topics exist, False if not, None if no broker answers."""
        try:
            found = self._ask(self._consumer)
        except KafkaException as error:
            try:
                found = self._replace(error, positions)
            except KafkaException:
                self._state.lost(self._unavailable(error))
                return None
        if Meaning.NO_RIGHT in meaning(found):
            raise KafkaException(found)
        missing = found is not None and found.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        self._state.contact(_now_ms(), missing=missing)
        return not missing

    def _ask(self, consumer: Consumer) -> KafkaError | None:
        """Request the metadata of the topics; return the error of the first. Raises KafkaException: no answer."""
        topic, events = self._topics
        found = consumer.list_topics(topic, timeout=_ANSWER_SECONDS)
        consumer.list_topics(events, timeout=_ANSWER_SECONDS)  # so that its leader is known, if that has changed
        self._brokers = tuple(f"{broker.host}:{broker.port}" for broker in found.brokers.values())
        error: KafkaError | None = found.topics[topic].error
        return error

    def _replace(self, error: KafkaException, positions: Mapping[str, int]) -> KafkaError | None:
        """Ask as `_ask`, each broker that has been met with a new consumer; read on with that of the first that answers. `error`: of the
        present one. Raises it if none answers, or there is no other broker."""
        for server in self._brokers if len(self._brokers) > 1 else ():
            fresh = self._new_consumer(server)
            try:
                found = self._ask(fresh)
            except KafkaException:
                fresh.close()
                continue
            self._consumer.close()
            self._consumer = fresh
            if positions:
                fresh.assign([TopicPartition(topic, 0, offset) for topic, offset in positions.items()])
            return found
        raise error

    def _assign(self, positions: dict[str, int]) -> bool:
        """Assign the topics that exist, at their positions; add those of topics that were not read yet, the events from their last ones
        on. Return True if there are such: an application creates its events topic after the coordination topic. The broker that has the
        events may hang, while others answer: they are added once another one has replaced it."""
        coordination, events = self._topics
        found = {} if coordination in positions else {coordination: 0}
        consumer = self._consumer
        try:
            if consumer.list_topics(events, timeout=_ANSWER_SECONDS).topics[events].error is None:
                low, high = consumer.get_watermark_offsets(TopicPartition(events, 0), timeout=_ANSWER_SECONDS)
                found[events] = max(low, high - EVENTS_BACK)
        except KafkaException as error:
            if Meaning.NO_RIGHT in meaning(error):
                raise
            logger.info("%s: its events cannot be read yet: %s", self._application, error)
        if found:
            positions.update(found)
            consumer.assign([TopicPartition(topic, 0, offset) for topic, offset in positions.items()])
        return bool(found)

    def _apply(self, message: Message, positions: dict[str, int]) -> None:
        error, topic, offset = message.error(), str(message.topic()), message.offset()
        if error is not None:
            if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.OFFSET_OUT_OF_RANGE):
                raise _StartAgainError
            if Meaning.NO_RIGHT in meaning(error):
                raise KafkaException(error)
            return  # the end of a partition, or a lost connection, which the next probe shows
        assert offset is not None  # only errors have none
        if offset < positions[topic]:
            raise _StartAgainError
        positions[topic] = offset + 1
        if topic == events_topic(self._application):
            event = decode_event(message.value())
            if event is not None:
                self._state.event(event)
        else:
            self._state.coordination(message.key(), message.value())

    def _unavailable(self, error: KafkaException) -> str:
        why = cause(self._application, Connection.of(self._config.consumer_properties("main")), error, *self._topics)
        return f"{why[0].upper()}{why[1:]}"

    # -- offsets ---------------------------------------------------------------------------------------------------------------

    def _follow_offsets(self) -> None:
        admin = TopicAdmin(self._config, self._stop.is_set)
        counts: dict[str, int] = {}
        known: set[str] = set()
        counted = float("-inf")
        while not self._stop.wait(_PROBE_SECONDS):
            if not self._state.answered:  # some requests must not time out (`TopicAdmin.last_committed`)
                continue
            try:
                topics, read = self._state.topics()
                if topics != known or time.monotonic() - counted > _COUNTS_SECONDS:
                    counts, known, counted = admin.partition_counts(topics), topics, time.monotonic()
                if counts:
                    self._state.offsets(TopicOffsets.of(admin, self._application, counts, read), counts, _now_ms())
            except (StreamsError, KafkaException, ValueError) as error:
                known = set()  # a topic may have been deleted
                logger.info("%s: offsets cannot be read: %s", self._application, error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
