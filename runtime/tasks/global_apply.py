"""How records come into a global store: as a copy of the topic (`global_table`), or through a processor of the user's (`add_global_store`).

Both ways are the same at the start, after a recovery and live. Kafka Streams copies raw bytes at the start and runs the processor
afterwards only, so a store's content depends on when it was read (KAFKA-7663), and a record that cannot be read is met by whoever
looks it up; here each record is decoded once, the handler is asked at once, and a skipped record is skipped on every way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from runtime.changelog.staleness import RestorableStore
from runtime.errors import DeserializationError
from runtime.events import EventKind, EventSink
from runtime.handlers import DeserializationExceptionHandler, DeserializationHandlerResponse
from runtime.ids import NextOffset, Partition, TaskId
from runtime.intake.verdict import Batch, Decoder, Failure, RawMessage, judge
from runtime.metrics import TASK, Metrics
from runtime.stores.base import EngineStore
from runtime.topology.pipeline import Pipeline

log = logging.getLogger(__name__)

GLOBAL_TASK = TaskId(-1, -1)
"""What handlers and processors of global stores see as their task, as in Kafka Streams."""


class Apply:
    """Brings runs of one partition into a global store."""

    def begin(self) -> None:
        """Called when reading begins or begins again: at the start, and after the store was wiped."""

    def run(self, partition: Partition, messages: Sequence[RawMessage], next_offset: NextOffset) -> None:
        """Applies a run, and `next_offset` with it in one atomic step."""
        raise NotImplementedError

    def punctuate(self, wall_ms: int) -> None:
        """Called once a round."""

    def close(self) -> None:
        """Nothing comes any more."""


class Verdict:
    """Decodes runs of one global topic and asks the handler about what cannot be read. PAUSE is FAIL: a global table is never paused
    (KIP-990)."""

    def __init__(
        self,
        decoder: Decoder,
        handler: DeserializationExceptionHandler,
        metrics: Metrics,
        events: EventSink,
        keep: Callable[[RawMessage, BaseException], object] = lambda message, cause: None,
    ) -> None:
        """`keep` is given each record that is skipped, and why."""
        self._keep = keep
        self._decoder = decoder
        self._handler = handler
        self._events = events
        self._dropped = metrics.counter("dropped-records-total", TASK, task_id="global")
        self._partition_times: dict[Partition, int] = {}

    def batches(self, partition: Partition, messages: Sequence[RawMessage]) -> list[Batch]:
        """What can be read of a run, in order. Raises DeserializationError where the handler answers FAIL or PAUSE."""
        batches: list[Batch] = []
        while messages:
            batch, failure = self._decoder.decode(messages, self._partition_times.get(partition, -1))
            if batch.timestamps:
                self._partition_times[partition] = max(self._partition_times.get(partition, -1), *batch.timestamps)
                batches.append(batch)
            self._dropped.add(batch.dropped)
            if failure is None:
                break
            self._judge(partition, failure)
            bad = failure.message.offset()
            messages = [message for message in messages if message.offset() > bad]
        return batches

    def drop(self, records: int) -> None:
        """Counts records that no table can hold."""
        self._dropped.add(records)

    def _judge(self, partition: Partition, failure: Failure) -> None:
        response = judge(self._handler, failure, GLOBAL_TASK)
        if response is DeserializationHandlerResponse.PAUSE:
            text = f"{failure.error} (of a global topic, which cannot be paused: PAUSE is FAIL there)"
            raise DeserializationError(text) from failure.error.__cause__
        if response is DeserializationHandlerResponse.FAIL:
            raise failure.error
        self._dropped.add(1)
        cause = failure.error.__cause__ or failure.error
        payload = {
            "topic": partition.topic,
            "partition": partition.number,
            "offset": failure.message.offset(),
            "error_type": type(cause).__name__,
            "error": str(cause),
        }
        self._events.emit(EventKind.RECORD_SKIPPED, payload, coordinates=f"{partition}@{failure.message.offset()}")
        self._keep(failure.message, cause)


class TableCopy(Apply):
    """The topic's bytes, latest record of each key; a record without a key is left out and counted."""

    def __init__(self, store: RestorableStore, verdict: Verdict) -> None:
        self._store = store
        self._verdict = verdict

    def run(self, partition: Partition, messages: Sequence[RawMessage], next_offset: NextOffset) -> None:
        """Raises DeserializationError where the handler says so."""
        latest: dict[bytes, tuple[bytes | None, int]] = {}
        for batch in self._verdict.batches(partition, messages):
            for message, timestamp in zip(batch.messages, batch.timestamps, strict=True):
                key = message.key()
                if key is None:
                    log.warning("record %s@%d has no key: no table can hold it; it is left out", partition, message.offset())
                    self._verdict.drop(1)
                else:
                    latest[key] = (message.value(), timestamp)
        self._store.restore([(key, value, timestamp) for key, (value, timestamp) in latest.items()], {partition: next_offset})


class Processed(Apply):
    """Each record goes through the user's processor; what it writes is committed together with the offset.

    The processor is made anew each time that reading begins, and after a run that failed, so what it remembers in its fields never
    outlives the store that it was learnt from. It has no children and no outputs.
    """

    def __init__(self, store: EngineStore, verdict: Verdict, make: Callable[[], Pipeline]) -> None:
        """`make` compiles the pipeline; the store is open when it is called."""
        self._store = store
        self._verdict = verdict
        self._make = make
        self._pipeline: Pipeline | None = None
        self._failed = False

    def begin(self) -> None:
        """Raises ProcessingError where the processor's `close` or `init` does."""
        self.close()
        self._pipeline = self._make()
        self._pipeline.init()
        self._failed = False

    def run(self, partition: Partition, messages: Sequence[RawMessage], next_offset: NextOffset) -> None:
        """Raises ProcessingError where the processor does, DeserializationError where the handler says so; nothing of the run is kept
        then."""
        pipeline = self._begun()
        pipeline.context.topic, pipeline.context.partition = partition
        try:
            for batch in self._verdict.batches(partition, messages):
                columns = (batch.keys, batch.values, batch.timestamps, batch.headers, batch.offsets)
                pipeline.process_run(partition.topic, *columns, 0, len(batch.keys))
            pipeline.flush_caches()
        except BaseException:
            self._take_back()
            raise
        self._store.commit({partition: next_offset})

    def punctuate(self, wall_ms: int) -> None:
        """Raises ProcessingError where a punctuator does; nothing of what it did is kept then."""
        pipeline = self._begun()
        try:
            ran = pipeline.punctuate(wall_ms)
            if ran:
                pipeline.flush_caches()
        except BaseException:
            self._take_back()
            raise
        if ran:
            self._store.commit({})

    def _begun(self) -> Pipeline:
        if self._failed:
            self.begin()
        assert self._pipeline is not None, "begin comes first"
        return self._pipeline

    def _take_back(self) -> None:
        self._failed = True
        self._store.rollback()

    def close(self) -> None:
        """Raises ProcessingError where the processor's `close` does."""
        if self._pipeline is not None:
            pipeline, self._pipeline = self._pipeline, None
            pipeline.close()
