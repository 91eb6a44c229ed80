"""Records that went wrong: whom to ask, whom to tell, and what is kept of them.

The three handlers of an application, its dead-letter topic, and the events and metrics about records that were skipped stand together here,
because each of them is about one record at a time, which is what the rest of the engine avoids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from runtime.commit.order import Transport
from runtime.commit.refusals import Origin, Output, is_permanent
from runtime.errors import ProductionError, SerializationError, StreamsError
from runtime.events import EventKind, EventSink, base64_or_none
from runtime.handlers import (
    DeserializationExceptionHandler,
    ErrorHandlerContext,
    ProcessingExceptionHandler,
    ProcessingHandlerResponse,
    ProductionExceptionHandler,
    ProductionExceptionHandlerResponse,
    ask_serialization,
    dead_letter_headers,
    make_handler,
)
from runtime.ids import Partition, TaskId
from runtime.intake.verdict import Batch, RawMessage, raw_record
from runtime.metrics import TASK, Metrics
from runtime.record import Headers
from runtime.timestamps import ConsumerRecord
from runtime.topics import TopicAdmin
from runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

MOST_BYTES = 512 * 1024
"""Key, value and headers of a record that an event carries at most: in base64 that stays below what a broker takes by default (1 MB).
An event that is refused would end the client, and its successor at the same record."""
BROKERS_LIMIT = 1_048_588
"""What a broker takes in one batch where it does not say."""
MOST_TEXT = 10_000
"""Characters of an error that are told."""


_BY_HAND = "command"


@dataclass(frozen=True, slots=True)
class PausePoint:
    """Why a task is paused, and before which record. `reason`: `deserialization`, `processing`, or `command` (no record then: key, value
    and error are None, and the offset is the next one to process)."""

    partition: Partition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    error_type: str | None
    error: str | None
    reason: str

    @classmethod
    def of(cls, message: RawMessage, error: BaseException, reason: str) -> PausePoint:
        """A pause before the record that could not be read or processed."""
        cause = error.__cause__ or error
        return cls(
            partition=Partition(message.topic(), message.partition()),
            offset=message.offset(),
            timestamp_ms=message.timestamp()[1],
            key=message.key(),
            value=message.value(),
            headers=message.headers(),
            error_type=type(cause).__name__,
            error=str(cause)[:MOST_TEXT],
            reason=reason,
        )

    @classmethod
    def command(cls, partition: Partition, offset: int) -> PausePoint:
        """A pause that somebody asked for."""
        return cls(partition, offset, -1, None, None, None, None, None, _BY_HAND)

    @property
    def by_hand(self) -> bool:
        """True for a pause that somebody asked for: no record will stop the task's next owner."""
        return self.reason == _BY_HAND

    def payload(self) -> dict[str, object]:
        """The payload of TASK_PAUSED. The bytes of a record of more than `MOST_BYTES` are left out; they stand in the topic."""
        size = len(self.key or b"") + len(self.value or b"") + sum(len(name) + len(data or b"") for name, data in self.headers or ())
        whole = size <= MOST_BYTES
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "key_base64": base64_or_none(self.key) if whole else None,
            "value_base64": base64_or_none(self.value) if whole else None,
            "headers": [[name, base64_or_none(data)] for name, data in self.headers or ()] if whole else [],
            "left_out_bytes": 0 if whole else size,
            "error_type": self.error_type,
            "error": self.error,
            "reason": self.reason,
        }


class CurrentRecord(Protocol):
    """What is known of the record that is being processed. Offset -1: none is."""

    topic: str
    partition: int
    offset: int
    headers: Headers | None


class Incidents:
    """The handlers of one worker, and what follows from their answers. Belongs to the worker's thread."""

    def __init__(self, configs: Mapping[str, object], events: EventSink, metrics: Metrics) -> None:
        """Raises StreamsConfigError if a handler cannot be made."""
        self.deserialization = make_handler(
            configs["deserialization.exception.handler"], DeserializationExceptionHandler, configs, "deserialization.exception.handler"
        )
        self.processing = make_handler(
            configs["processing.exception.handler"], ProcessingExceptionHandler, configs, "processing.exception.handler"
        )
        self.production = make_handler(
            configs["production.exception.handler"], ProductionExceptionHandler, configs, "production.exception.handler"
        )
        topic = configs.get("errors.dead.letter.queue.topic.name")
        self._dead_letter = str(topic) if topic else None
        self._events = events
        self._metrics = metrics
        self._transport: Transport | None = None
        self._topics: TopicAdmin | None = None
        self._changelogs: set[str] = set()
        self._sinks: Callable[[TaskId, str], str | None] = lambda task, topic: None
        self.task: TaskId | None = None
        """The task that is being processed or committed."""
        self.current: CurrentRecord | None = None
        self.batch: Batch | None = None
        """The run that is being processed."""

    def know(self, topology: Topology, topics: TopicAdmin) -> None:
        """What outputs are asked about when they are refused."""
        self._topics = topics
        self._changelogs = {each.name for each in topology.internal_topics() if each.kind == "changelog"}
        parts = {part.id: part.sinks for part in topology.sub_topologies()}

        def sink(task: TaskId, topic: str) -> str | None:
            sinks = parts[task.subtopology]
            fixed = [sink.name for sink in sinks if sink.topic == topic]
            chosen = [] if topic in self._changelogs else [sink.name for sink in sinks if not isinstance(sink.topic, str)]
            return next(iter(fixed or chosen), None)

        self._sinks = sink

    @property
    def dead_letter_topic(self) -> str | None:
        """`errors.dead.letter.queue.topic.name`."""
        return self._dead_letter

    def attach(self, transport: Transport) -> None:
        """Where dead letters go from now on."""
        self._transport = transport

    def ask_processing(self, context: ErrorHandlerContext, record: ConsumerRecord, error: BaseException) -> ProcessingHandlerResponse:
        """Raises StreamsError if the handler raises itself or answers with something else than a response."""
        cause = error.__cause__
        try:
            response = self.processing.handle(context, record, cause if isinstance(cause, Exception) else StreamsError(str(error)))
        except Exception as failed:
            raise StreamsError(f"{type(self.processing).__name__} failed on {error}: {failed}") from failed
        if not isinstance(response, ProcessingHandlerResponse):
            raise StreamsError(f"{type(self.processing).__name__}.handle returned {response!r}: expected CONTINUE, FAIL or PAUSE")
        return response

    def skipped(self, task: TaskId, message: RawMessage, error: BaseException) -> None:
        """A handler said CONTINUE: counted, told, and kept in the dead-letter topic if there is one."""
        self._metrics.counter("dropped-records-total", TASK, task_id=str(task)).add()
        record = raw_record(message)
        cause = error.__cause__ or error
        self._events.emit(
            EventKind.RECORD_SKIPPED,
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "error_type": type(cause).__name__,
                "error": str(cause)[:MOST_TEXT],
            },
            task,
            f"{record.topic}-{record.partition}@{record.offset}",
        )
        self._keep(record, cause)

    def _keep(self, record: ConsumerRecord, error: BaseException) -> None:
        """Writes a record to the dead-letter topic, if there is one, within the transaction that commits that it was left out."""
        if self._dead_letter is not None and self._transport is not None:
            key, value = record.key, record.value
            assert not isinstance(key, str) and not isinstance(value, str)  # raw
            headers = dead_letter_headers(record, error)
            self._transport.send(self._dead_letter, key, value, max(record.timestamp, 0), headers, None)  # type: ignore[arg-type]

    def dropped(self, task: TaskId, records: int) -> None:
        """Records that an extractor gave a negative timestamp."""
        self._metrics.counter("dropped-records-total", TASK, task_id=str(task)).add(records)

    # -- outputs (`runtime.commit.refusals.Refusals`) ----------------------------------------------------------------------------

    def origin(self) -> Origin:
        """The record that is being processed."""
        current = self.current
        if current is None or current.offset < 0:
            return Origin(self.task, "", -1, -1, None, None)
        return Origin(self.task, current.topic, current.partition, current.offset, current.headers, self.batch)

    def refused(self, output: Output, error: Exception, origin: Origin | None = None) -> bool:
        """An output was not taken. True: try it again after a pause; False: it is left out. Raises ProductionError where the handler says
        FAIL."""
        origin = origin or self.origin()
        again = self.judged(output, error, origin)
        if not again:
            self.left_out(output, error, origin)
        return again

    def judged(self, output: Output, error: Exception, origin: Origin) -> bool:
        """As `refused`, without what follows from CONTINUE. RETRY of what can never be taken is FAIL, as in Kafka Streams (KIP-1065)."""
        response = self._ask_production(output, error, origin)
        if response is ProductionExceptionHandlerResponse.CONTINUE:
            return False
        if response is ProductionExceptionHandlerResponse.RETRY and not is_permanent(error):
            return True
        raise ProductionError(f"{self.where(output, origin)} was refused: {error}") from error

    def _ask_production(self, output: Output, error: Exception, origin: Origin) -> ProductionExceptionHandlerResponse:
        if output.topic == self._dead_letter:
            raise ProductionError(f"dead letters are not left out: {self.where(output, origin)} was refused: {error}") from error
        if output.topic in self._changelogs:  # the store would hold what its changelog does not
            raise ProductionError(f"changelog records are not left out: {self.where(output, origin)} was refused: {error}") from error
        context = self._context(output, origin)
        partition = -1 if output.partition is None else output.partition
        record = ConsumerRecord(output.topic, partition, -1, output.timestamp, output.key, output.value, output.headers)
        name = type(self.production).__name__
        try:
            response = self.production.handle(context, record, error)
        except Exception as failed:
            raise ProductionError(f"{name} failed on {self.where(output, origin)}: {failed}") from failed
        if not isinstance(response, ProductionExceptionHandlerResponse):
            raise ProductionError(f"{name}.handle returned {response!r}: expected CONTINUE, FAIL or RETRY")
        return response

    def _context(self, output: Output, origin: Origin) -> ErrorHandlerContext:
        message = _raw_message(origin)
        return ErrorHandlerContext(
            topic=origin.topic,
            partition=origin.partition,
            offset=origin.offset,
            timestamp=output.timestamp,
            headers=origin.headers,
            task_id=origin.task or TaskId(0, 0),
            processor_node_id=self._node(output, origin),
            source_raw_key=None if message is None else message.key(),
            source_raw_value=None if message is None else message.value(),
        )

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        """A serde cannot write an output of the record that is being processed (KIP-399). Raises ProductionError where the handler does not
        say CONTINUE."""
        origin, output = self.origin(), Output(topic, error.raw_key, None, timestamp, headers, None)
        record = ConsumerRecord(topic, -1, -1, timestamp, key, value, headers)
        ask_serialization(self.production, self._context(output, origin), record, error)
        self.left_out(output, error.__cause__ if isinstance(error.__cause__, Exception) else error, origin)

    def left_out(self, output: Output, error: Exception, origin: Origin) -> None:
        """A handler said CONTINUE about an output: counted, and the input record behind it is kept in the dead-letter topic."""
        self._metrics.counter("dropped-records-total", TASK, task_id=str(origin.task)).add()
        message = _raw_message(origin)
        if message is not None:
            self._keep(raw_record(message), error)
        else:  # of a punctuator, or a cache: all that is known is where it was to go
            self._keep(ConsumerRecord(output.topic, -1, -1, output.timestamp, output.key, None, None), error)

    def _node(self, output: Output, origin: Origin) -> str | None:
        return None if origin.task is None else self._sinks(origin.task, output.topic)

    def where(self, output: Output, origin: Origin | None = None) -> str:
        """Task, node, input record and output, in words."""
        origin = origin or self.origin()
        node = self._node(output, origin)
        places = [f"task {origin.task}", *([f"node {node}"] if node else [])]
        if origin.offset >= 0:
            places.append(f"record {origin.topic}-{origin.partition}@{origin.offset}")
        size = len(output.key or b"") + len(output.value or b"")
        return f"{', '.join(places)}: its output of {size} bytes to {output.topic}"

    def limit(self, topic: str) -> int:
        """`max.message.bytes` of a topic. Raises BrokerUnavailableError."""
        assert self._topics is not None
        found = self._topics.describe([topic]).get(topic)
        limit = int(found.config.get("max.message.bytes", BROKERS_LIMIT)) if found is not None else BROKERS_LIMIT
        logger.warning("topic %s takes batches of at most %d bytes (max.message.bytes): batches to it are kept below that", topic, limit)
        return limit

    def is_missing(self, topic: str) -> bool:
        """True if there is no such topic and the brokers make none. Raises BrokerUnavailableError.

        Never for a changelog: that one is lost is not a matter of one record (`TaskSet.lost_changelogs`)."""
        assert self._topics is not None
        return topic not in self._changelogs and not self._topics.describe([topic]) and not self._topics.brokers_make_topics()


def _raw_message(origin: Origin) -> RawMessage | None:
    """The input record as it was read."""
    batch = origin.batch
    return None if batch is None else batch.messages[batch.offsets.index(origin.offset)]
