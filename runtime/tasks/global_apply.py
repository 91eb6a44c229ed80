"""Two ways to apply records to a global store: as a copy of the topic (`global_table`), or through a user's processor (`add_global_store`).

Both work the same at the start, after a recovery and afterwards. Kafka Streams copies raw bytes at the start and runs the processor only
later, so a store's content depends on when it was read (KAFKA-7663), and an unreadable record fails at its first lookup. Here each record
is decoded once, the handler decides at once, and a skipped record is skipped always.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from penstock.runtime.input.deserialization import Batch, Decoder, Failure, RawMessage, ask_handler
from penstock.runtime.model.errors import DeserializationError
from penstock.runtime.model.events import EventKind, EventSink
from penstock.runtime.model.handlers import DeserializationExceptionHandler, DeserializationHandlerResponse
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.metrics import TASK, Metrics
from penstock.runtime.model.user_errors import text_of
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.stores.headers import pack
from penstock.runtime.topology.pipeline import Pipeline

log = logging.getLogger(__name__)

GLOBAL_TASK = TaskId(-1, -1)
"""The task id that handlers and processors of global stores see, as in Kafka Streams."""


class Applier:
    """Applies runs of one partition to a global store."""

    def begin(self) -> None:
        """Prepare for reading from the store's position: at the start, and after the store was wiped."""

    def apply(self, partition: TopicPartition, messages: Sequence[RawMessage], next_offset: NextOffset) -> None:
        """Apply a run, and `next_offset` with it in one atomic step."""
        raise NotImplementedError

    def punctuate(self, wall_ms: int) -> None:
        """Run punctuators that are due; called once per round."""

    def close(self) -> None:
        """Release what the application of records holds."""


class GlobalDecoder:
    """Decoder of one global topic's runs, which asks the handler about unreadable records. PAUSE counts as FAIL: a global table is never
    paused (KIP-990)."""

    def __init__(
        self,
        decoder: Decoder,
        handler: DeserializationExceptionHandler,
        metrics: Metrics,
        events: EventSink,
        keep: Callable[[RawMessage, BaseException], object] = lambda message, cause: None,
    ) -> None:
        """`keep` receives each skipped record and its error."""
        self._keep = keep
        self._decoder = decoder
        self._handler = handler
        self._events = events
        self._dropped = metrics.counter("dropped-records-total", TASK, task_id="global")
        self._partition_times: dict[TopicPartition, int] = {}

    def decode(self, partition: TopicPartition, messages: Sequence[RawMessage]) -> list[Batch]:
        """Return the readable records of a run, in order. Raises DeserializationError where the handler returns FAIL or PAUSE."""
        batches: list[Batch] = []
        while messages:
            batch, failure = self._decoder.decode(messages, self._partition_times.get(partition, -1))
            if batch.timestamps:
                self._partition_times[partition] = max(self._partition_times.get(partition, -1), *batch.timestamps)
                batches.append(batch)
            self._dropped.add(batch.dropped)
            if failure is None:
                break
            self._ask_handler(partition, failure)
            bad = failure.message.offset()
            messages = [message for message in messages if message.offset() > bad]
        return batches

    def drop(self, records: int) -> None:
        """Count records that no table can hold."""
        self._dropped.add(records)

    def _ask_handler(self, partition: TopicPartition, failure: Failure) -> None:
        response = ask_handler(self._handler, failure, GLOBAL_TASK)
        if response is DeserializationHandlerResponse.PAUSE:
            text = f"{failure.error} (of a global topic, which cannot be paused: PAUSE is FAIL there)"
            raise DeserializationError(text) from failure.error.__cause__
        if response is DeserializationHandlerResponse.FAIL:
            raise failure.error
        self._dropped.add(1)
        cause = failure.error.__cause__ or failure.error
        payload = {
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": failure.message.offset(),
            "error_type": type(cause).__name__,
            "error": text_of(cause),
        }
        self._events.emit(EventKind.RECORD_SKIPPED, payload, coordinates=f"{partition}@{failure.message.offset()}")
        self._keep(failure.message, cause)


class TableCopy(Applier):
    """Copy of the topic's bytes, and of its headers in a store that keeps them, the latest record of each key. A record without a key is
    dropped and counted."""

    def __init__(self, store: EngineStore, decoder: GlobalDecoder) -> None:
        self._store = store
        self._decoder = decoder

    def apply(self, partition: TopicPartition, messages: Sequence[RawMessage], next_offset: NextOffset) -> None:
        """Apply a run. Raises DeserializationError where the handler returns FAIL."""
        latest: dict[bytes, tuple[bytes | None, int]] = {}
        for batch in self._decoder.decode(partition, messages):
            for message, timestamp in zip(batch.messages, batch.timestamps, strict=True):
                key = message.key()
                if key is None:
                    log.warning("record %s@%d has no key: no table can hold it; it is skipped", partition, message.offset())
                    self._decoder.drop(1)
                else:
                    value = message.value()
                    latest[key] = (pack(message.headers(), value) if self._store.keeps_headers else value, timestamp)
        self._store.restore([(key, value, timestamp) for key, (value, timestamp) in latest.items()], {partition: next_offset})


class ProcessorApplier(Applier):
    """Applies records through the user's processor; its writes are committed together with the offset.

    A new processor is made each time that reading begins, and after a failed run, so its fields never outlive the store that they were
    derived from. It has no children and no outputs.
    """

    def __init__(self, store: EngineStore, decoder: GlobalDecoder, make: Callable[[], Pipeline]) -> None:
        """`make` compiles the pipeline; the store is open when it is called."""
        self._store = store
        self._decoder = decoder
        self._make = make
        self._pipeline: Pipeline | None = None
        self._failed = False

    def begin(self) -> None:
        """Raises ProcessingError where the processor's `close` or `init` raises."""
        self.close()
        self._pipeline = self._make()
        self._pipeline.init()
        self._failed = False

    def apply(self, partition: TopicPartition, messages: Sequence[RawMessage], next_offset: NextOffset) -> None:
        """Raises ProcessingError where the processor raises, DeserializationError where the handler returns FAIL; the whole run is rolled
        back then."""
        pipeline = self._running()
        pipeline.context.topic, pipeline.context.partition = partition
        try:
            for batch in self._decoder.decode(partition, messages):
                columns = (batch.keys, batch.values, batch.timestamps, batch.headers, batch.offsets)
                pipeline.process_run(partition.topic, *columns, 0, len(batch.keys))
            pipeline.flush_caches()
        except BaseException:
            self._rollback()
            raise
        self._store.commit({partition: next_offset})

    def punctuate(self, wall_ms: int) -> None:
        """Raises ProcessingError where a punctuator raises; its writes are rolled back then."""
        pipeline = self._running()
        try:
            ran = pipeline.punctuate(wall_ms)
            if ran:
                pipeline.flush_caches()
        except BaseException:
            self._rollback()
            raise
        if ran:
            self._store.commit({})

    def _running(self) -> Pipeline:
        if self._failed:
            self.begin()
        assert self._pipeline is not None, "begin comes first"
        return self._pipeline

    def _rollback(self) -> None:
        self._failed = True
        self._store.rollback()

    def close(self) -> None:
        """Raises ProcessingError where the processor's `close` raises."""
        if self._pipeline is not None:
            pipeline, self._pipeline = self._pipeline, None
            pipeline.close()
