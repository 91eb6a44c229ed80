"""Failed records: their handlers, their dead letters, and the events and metrics about them.

The three handlers of an application, its dead-letter topic, and the events and metrics about skipped records are in one module because all
of them deal with single records, which the rest of the engine avoids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from penstock.runtime.commit.order import Transport
from penstock.runtime.commit.refusals import Origin, Output, TopicLimits, is_about_the_record, is_about_the_time
from penstock.runtime.input.deserialization import Batch, RawMessage, raw_record
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.error_details import ErrorDetails, cause_of, details_of
from penstock.runtime.model.errors import ProcessingError, ProductionError, SerializationError, StreamsError, TransactionAbortedError
from penstock.runtime.model.events import EventKind, EventSink, base64_or_none
from penstock.runtime.model.handlers import (
    RECORD_TIME,
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
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.metrics import TASK, Metrics
from penstock.runtime.model.record import Headers
from penstock.runtime.model.timestamps import ConsumerRecord
from penstock.runtime.model.user_errors import described, text_of
from penstock.runtime.operators.context import TaskContext
from penstock.runtime.tasks.culprits import CulpritSearch, Verdict
from penstock.runtime.topology.nodes import labelled
from penstock.runtime.topology.topology import Topology

logger = logging.getLogger(__name__)

MOST_BYTES = 512 * 1024
"""Maximum size of key, value and headers in an event. In base64 they stay below the brokers' default limit (1 MB). A refused event would
stop the client, and its successor at the same record."""
MOST_TEXT = 10_000
"""Maximum characters of an error in an event."""


_BY_HAND = "command"
_ABOUT_THE_RECORD = (ProductionExceptionHandlerResponse.CONTINUE, ProductionExceptionHandlerResponse.PAUSE)


@dataclass(frozen=True, slots=True)
class PausePoint:
    """Why a task is paused, since when (wall-clock time), and before which record. `reason`: `deserialization`, `processing`, `production`,
    or `command` (then there is no record: key, value, error and details are None, and the offset is the next one to process)."""

    partition: TopicPartition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    error_type: str | None
    error: str | None
    reason: str
    since_ms: int = 0
    details: ErrorDetails | None = None

    @classmethod
    def of(cls, message: RawMessage, error: BaseException, reason: str, since_ms: int, details: ErrorDetails | None = None) -> PausePoint:
        """Return a pause before a record that could not be read or processed. `details`: those of the error, if they are known already."""
        cause = cause_of(error)
        return cls(
            partition=TopicPartition(message.topic(), message.partition()),
            offset=message.offset(),
            timestamp_ms=message.timestamp()[1],
            key=message.key(),
            value=message.value(),
            headers=message.headers(),
            error_type=type(cause).__name__,
            error=text_of(cause)[:MOST_TEXT],
            reason=reason,
            since_ms=since_ms,
            details=details or details_of(error, message.key(), message.value()),
        )

    @classmethod
    def command(cls, partition: TopicPartition, offset: int, since_ms: int) -> PausePoint:
        """Return a pause on command."""
        return cls(partition, offset, -1, None, None, None, None, None, _BY_HAND, since_ms)

    @property
    def by_hand(self) -> bool:
        """True for a pause on command: no record will stop the task's next owner."""
        return self.reason == _BY_HAND

    def payload(self) -> dict[str, object]:
        """Return the payload of TASK_PAUSED, without the bytes of a record larger than `MOST_BYTES`; the topic has them."""
        size = len(self.key or b"") + len(self.value or b"") + sum(len(name) + len(data or b"") for name, data in self.headers or ())
        whole = size <= MOST_BYTES
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "key_base64": base64_or_none(self.key) if whole else None,
            "value_base64": base64_or_none(self.value) if whole else None,
            "headers": [[name, base64_or_none(data)] for name, data in self.headers or ()] if whole else [],
            "left_out_bytes": 0 if whole else size,
            "error_type": self.error_type,
            "error": self.error,
            "reason": self.reason,
            "since_ms": self.since_ms,
            **({} if self.details is None else asdict(self.details)),
        }


class Incidents:
    """The handlers of one worker, and the consequences of their responses. Used by the worker's thread only."""

    def __init__(self, configs: Mapping[str, object], events: EventSink, metrics: Metrics, clock: Clock) -> None:
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
        self._clock = clock
        self._letters_now = False
        """True once the dead-letter topic has refused a record's timestamp: from then on dead letters carry the time at which they are
        written."""
        self._events = events
        self._metrics = metrics
        self._transport: Transport | None = None
        self._topics: TopicAdmin | None = None
        self._changelogs: set[str] = set()
        self._internal: set[str] = set()
        self._call_sites: Mapping[str, str] = {}
        self._sinks: Callable[[TaskId, str], str | None] = lambda task, topic: None
        self.task: TaskId | None = None
        """The task that is being processed or committed."""
        self.current: TaskContext | None = None
        self.search = CulpritSearch()
        """Search for the input record behind a refused output of unknown origin."""

    def set_topology(self, topology: Topology, topics: TopicAdmin | None) -> None:
        """Set the topology and the topics, which are needed to explain refused outputs. `topics`: None where no output is refused."""
        self._topics = topics
        self._call_sites = topology.call_sites
        self._internal = {each.name for each in topology.internal_topics()}
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
        """Value of `errors.dead.letter.queue.topic.name`."""
        return self._dead_letter

    def attach(self, transport: Transport) -> None:
        """Send dead letters to this transport."""
        self._transport = transport

    def ask_processing(self, context: ErrorHandlerContext, record: ConsumerRecord, error: ProcessingError) -> ProcessingHandlerResponse:
        """Ask the processing handler. Raises StreamsError if the handler raises or returns something else than a response."""
        cause = error.__cause__
        try:
            response = self.processing.handle(context, record, cause if isinstance(cause, Exception) else error)
        except BaseException as failed:
            raise StreamsError(f"{type(self.processing).__name__} failed on {error}: {described(failed)}") from failed
        if not isinstance(response, ProcessingHandlerResponse):
            raise StreamsError(f"{type(self.processing).__name__}.handle returned {response!r}: expected CONTINUE, FAIL or PAUSE")
        return response

    def skipped(self, task: TaskId, message: RawMessage, error: BaseException) -> None:
        """Count and publish a record that a handler skipped with CONTINUE, and write it to the dead-letter topic, if there is one."""
        self._metrics.counter("dropped-records-total", TASK, task_id=str(task)).add()
        record = raw_record(message)
        cause = cause_of(error)
        self._events.emit(
            EventKind.RECORD_SKIPPED,
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "error_type": type(cause).__name__,
                "error": text_of(cause)[:MOST_TEXT],
            },
            task,
            f"{record.topic}-{record.partition}@{record.offset}",
        )
        self._write_dead_letter(record, cause)

    def _write_dead_letter(self, record: ConsumerRecord, error: BaseException) -> None:
        """Write a record to the dead-letter topic, if there is one, in the transaction that commits its omission."""
        if self._dead_letter is not None and self._transport is not None:
            key, value = record.key, record.value
            assert not isinstance(key, str) and not isinstance(value, str)  # raw
            headers, timestamp = dead_letter_headers(record, error), max(record.timestamp, 0)
            if self._letters_now:
                headers, timestamp = [*headers, (RECORD_TIME, str(timestamp).encode())], self._clock.wall_ms()
            self._transport.send(self._dead_letter, key, value, timestamp, headers, None)  # type: ignore[arg-type]

    def dropped(self, task: TaskId, records: int) -> None:
        """Count records with a negative timestamp from their extractor."""
        self._metrics.counter("dropped-records-total", TASK, task_id=str(task)).add(records)

    # -- outputs (`penstock.runtime.commit.refusals.Refusals`) ----------------------------------------------------------------------------

    def origin(self) -> Origin:
        """Return the record that is being processed, or the only one of the current commit, or the running punctuator."""
        current = self.current
        if self.search.holds_punctuators_alone or (current is not None and current.punctuating):
            return Origin(self.task, "", -1, -1, None, None, punctuated=True)
        if current is None or current.offset < 0:
            return self.search.record or Origin(self.task, "", -1, -1, None, None)
        batch = current.batch if isinstance(current.batch, Batch) else None
        return Origin(self.task, current.topic, current.partition, current.offset, current.headers, batch)

    def refused(self, output: Output, error: Exception, origin: Origin | None = None) -> bool:
        """Decide about a refused output. Return True to try it again after a pause, False to leave it out. Raises ProductionError where the
        handler returns FAIL."""
        origin = origin or self.origin()
        again = self.decide(output, error, origin)
        if not again:
            self.left_out(output, error, origin)
        return again

    @property
    def is_replayed(self) -> bool:
        """True if everything that was rolled back has been processed again and committed."""
        return self.search.is_replayed

    def needs_search(self, origin: Origin) -> bool:
        """Return True if the record behind a refused output is unknown, and smaller commits will reveal it."""
        return origin.offset < 0 and not origin.punctuated and self.search.narrow()

    def decide(self, output: Output, error: Exception, origin: Origin) -> bool:
        """Decide as `refused` does, without the effects of CONTINUE. RETRY of an output that can never be written counts as FAIL, as in
        Kafka Streams (KIP-1065)."""
        if output.topic == self._dead_letter and not self._letters_now and is_about_the_time(error):
            self._letters_now = True
            return True
        if self.needs_search(origin):
            logger.info("%s was refused: %s; searching for its input record in smaller commits", self.where(output, origin), error)
            return True
        response = self._ask_production(output, error, origin)
        if response is ProductionExceptionHandlerResponse.CONTINUE and output.topic not in self._internal:
            return False
        if response is ProductionExceptionHandlerResponse.RETRY and not is_about_the_record(error):
            return True
        if response in _ABOUT_THE_RECORD:
            self._decide(output, error, origin, pauses=response is ProductionExceptionHandlerResponse.PAUSE)
            return True
        raise ProductionError(f"{self.where(output, origin)} was refused: {error}") from error

    def _decide(self, output: Output, error: Exception, origin: Origin, *, pauses: bool) -> None:
        """Skip the input record, or pause before it, when it is processed again. Raises ProductionError if the output has no input
        record."""
        message = _raw_message(origin)
        if message is None:
            what = "paused at" if pauses else "left out"
            limit = f"To continue, let topic {output.topic} take it (kafka-configs --alter, as the error says)"
            alone = "" if output.topic in self._internal else ", or let the handler answer CONTINUE, which drops this output alone"
            raise ProductionError(
                f"{self.where(output, origin)} was refused: {error}. No record that is being processed is behind it (a punctuator is, or a "
                f"record that was processed before), so none can be {what}. {limit}{alone}"
            ) from error
        details = details_of(error, None, None, self._node(output, origin)) if pauses else None
        cause = cause_of(error)
        self.search.add_verdict(Verdict(message, cause if isinstance(cause, Exception) else error, pauses, details))

    def _ask_production(self, output: Output, error: Exception, origin: Origin) -> ProductionExceptionHandlerResponse:
        if output.topic == self._dead_letter:
            raise ProductionError(f"dead letters are not left out: {self.where(output, origin)} was refused: {error}") from error
        context = self._context(output, origin)
        partition = -1 if output.partition is None else output.partition
        record = ConsumerRecord(output.topic, partition, -1, output.timestamp, output.key, output.value, output.headers)
        name = type(self.production).__name__
        try:
            response = self.production.handle(context, record, error)
        except BaseException as failed:
            raise ProductionError(f"{name} failed on {self.where(output, origin)}: {described(failed)}") from failed
        if not isinstance(response, ProductionExceptionHandlerResponse):
            raise ProductionError(f"{name}.handle returned {response!r}: expected CONTINUE, FAIL, PAUSE or RETRY")
        return response

    def _context(self, output: Output, origin: Origin) -> ErrorHandlerContext:
        message, node = _raw_message(origin), self._node(output, origin)
        return ErrorHandlerContext(
            topic=origin.topic,
            partition=origin.partition,
            offset=origin.offset,
            timestamp=output.timestamp,
            headers=origin.headers,
            task_id=origin.task or TaskId(0, 0),
            processor_node_id=node,
            source_raw_key=None if message is None else message.key(),
            source_raw_value=None if message is None else message.value(),
            processor_node_label=None if node is None else labelled(node, self._call_sites),
        )

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        """Decide about an output of the current record that a serde cannot write (KIP-399). Raises ProductionError where the handler
        returns FAIL, TransactionAbortedError where it returns PAUSE."""
        origin, output = self.origin(), Output(topic, error.raw_key, None, timestamp, headers, None)
        record = ConsumerRecord(topic, -1, -1, timestamp, key, value, headers)
        response = ask_serialization(self.production, self._context(output, origin), record, error)
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if response is ProductionExceptionHandlerResponse.CONTINUE:
            self.left_out(output, cause, origin)
            return
        if not self.needs_search(origin):
            self._decide(output, error, origin, pauses=True)
        raise TransactionAbortedError(f"{self.where(output, origin)} cannot be written: rolling back to pause before its input record")

    def left_out(self, output: Output, error: Exception, origin: Origin) -> None:
        """Count an output that a handler left out with CONTINUE, and write the input record behind it to the dead-letter topic."""
        self._metrics.counter("dropped-records-total", TASK, task_id=str(origin.task)).add()
        message = _raw_message(origin)
        if message is not None:
            self._write_dead_letter(raw_record(message), error)
        else:  # of a punctuator or a cache: only the output's topic is known
            self._write_dead_letter(ConsumerRecord(output.topic, -1, -1, output.timestamp, output.key, None, None), error)

    def _node(self, output: Output, origin: Origin) -> str | None:
        return None if origin.task is None else self._sinks(origin.task, output.topic)

    def where(self, output: Output, origin: Origin | None = None) -> str:
        """Describe task, node, input record and output for a message."""
        origin = origin or self.origin()
        node = self._node(output, origin)
        places = [f"task {origin.task}", *([f"node {labelled(node, self._call_sites)}"] if node else [])]
        if origin.offset >= 0:
            places.append(f"record {origin.topic}-{origin.partition}@{origin.offset}")
        if origin.punctuated:
            places.append((self.current is not None and self.current.ran_alone) or "a punctuator")
        size = len(output.key or b"") + len(output.value or b"")
        return f"{', '.join(places)}: its output of {size} bytes to {output.topic}"

    def limits(self, topic: str) -> TopicLimits:
        """Return the size and timestamp limits of a topic. Raises BrokerUnavailableError."""
        assert self._topics is not None
        found = self._topics.describe([topic]).get(topic)
        limits = TopicLimits.of({} if found is None else found.config)
        logger.warning(
            "topic %s takes batches of at most %d bytes (max.message.bytes), and times up to %d ms before and %d ms after now "
            "(message.timestamp.before.max.ms and .after.max.ms): outputs to it are checked against these limits",
            topic,
            *limits,
        )
        return limits

    def is_missing(self, topic: str) -> bool:
        """Return True if the topic does not exist and the brokers do not create it. Raises BrokerUnavailableError.

        False for every changelog: a lost changelog does not concern a single record (`TaskManager.check_changelogs`).
        """
        assert self._topics is not None
        return topic not in self._changelogs and not self._topics.describe([topic]) and not self._topics.brokers_make(topic)


def _raw_message(origin: Origin) -> RawMessage | None:
    """Return the input record as it was read."""
    batch = origin.batch
    if batch is None or origin.offset not in batch.offsets:
        return None  # also if an earlier record, which a buffer has held back, is behind it
    message = batch.messages[batch.offsets.index(origin.offset)]
    return message if (message.topic(), message.partition()) == (origin.topic, origin.partition) else None
