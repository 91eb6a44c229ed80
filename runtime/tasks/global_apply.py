"""How records come into a global store: as a copy of the topic (`global_table`), or through a processor of the user's (`add_global_store`).

Both ways are the same at the start, after a recovery and live. Kafka Streams copies raw bytes at the start and runs the processor
afterwards only, so a store's content depends on when it was read (KAFKA-7663), and a record that cannot be read is met by whoever
looks it up; here each record is decoded once, the handler is asked at once, and a skipped record is skipped on every way.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from runtime.changelog.staleness import RestorableStore
from runtime.errors import DeserializationError
from runtime.events import EventKind, EventSink
from runtime.handlers import DeserializationExceptionHandler, DeserializationHandlerResponse
from runtime.ids import NextOffset, Partition, TaskId
from runtime.intake.verdict import Batch, Decoder, Failure, RawMessage, judge
from runtime.metrics import TASK, Metrics
from runtime.record import Headers

log = logging.getLogger(__name__)

GLOBAL_TASK = TaskId(-1, -1)
"""What handlers and processors of global stores see as their task, as in Kafka Streams."""


class ProcessRun(Protocol):
    """`Pipeline.process_run`."""

    def __call__(
        self,
        topic: str,
        keys: Sequence[object],
        values: Sequence[object],
        timestamps: Sequence[int],
        headers: Sequence[Headers | None] | None,
        offsets: Sequence[int],
        start: int,
        stop: int,
    ) -> None: ...


class Verdict:
    """Decodes runs of one global topic and asks the handler about what cannot be read. PAUSE is FAIL: a global table is never paused
    (KIP-990)."""

    def __init__(self, decoder: Decoder, handler: DeserializationExceptionHandler, metrics: Metrics, events: EventSink) -> None:
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
        cause = failure.error.__cause__
        payload = {
            "topic": partition.topic,
            "partition": partition.number,
            "offset": failure.message.offset(),
            "error_type": type(cause).__name__,
            "error": str(cause),
        }
        self._events.emit(EventKind.RECORD_SKIPPED, payload, coordinates=f"{partition}@{failure.message.offset()}")


class TableCopy:
    """The topic's bytes, latest record of each key; a record without a key is left out and counted."""

    def __init__(self, store: RestorableStore, verdict: Verdict) -> None:
        self._store = store
        self._verdict = verdict

    def __call__(self, partition: Partition, messages: Sequence[RawMessage], next_offset: NextOffset) -> None:
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


class Processed:
    """Each record goes through the user's processor; what it writes is committed together with the offset."""

    def __init__(
        self, store: RestorableStore, verdict: Verdict, process_run: ProcessRun, rollback: Rollback, context: RecordContext
    ) -> None:
        self._store = store
        self._verdict = verdict
        self._process_run = process_run
        self._rollback = rollback
        self._context = context

    def __call__(self, partition: Partition, messages: Sequence[RawMessage], next_offset: NextOffset) -> None:
        """Raises ProcessingError where the processor does; nothing of the run is kept then."""
        self._context.topic, self._context.partition = partition
        try:
            for batch in self._verdict.batches(partition, messages):
                rows = len(batch.keys)
                self._process_run(partition.topic, batch.keys, batch.values, batch.timestamps, batch.headers, batch.offsets, 0, rows)
        except BaseException:
            self._rollback()
            raise
        self._store.commit({partition: next_offset})


class Rollback(Protocol):
    """Drops what is staged."""

    def __call__(self) -> None: ...


class RecordContext(Protocol):
    """The part of a `TaskContext` that says where the current record comes from."""

    topic: str
    partition: int
