"""Events of the engine, published in the order in which they happened.

Events of transitions (a task paused, a recovery started) are published on `<application.id>-events`, one partition, by the worker's
producer and in the transaction of the commit to which they belong. So a consumer with `read_committed` never sees a pause whose outputs
were rolled back, and never misses one whose outputs are visible (rules.md, 26). When a transaction aborts, its events return to the head of
the queue and are published with the next one.

A record on the topic: key = the task id, or the instance's name for events of the whole instance (UTF-8); value = `Event` as JSON:

    {"id": str, "application": str, "instance": str, "incarnation": int, "kind": str, "task": str | null, "at_ms": int, "payload": {…}}

`id` identifies the occurrence: application, task or instance, kind, coordinates, incarnation, number. Under at-least-once an event may be
published twice; consumers drop the second one with the same id.

    kind                      payload
    INSTANCE_STATE            old, new, pid, log_path, [reason]
    TASKS_ASSIGNED            active, standby, learner: [task]; cause (`runtime/coordination/decision.py`); at each change of one of these
    TASK_TAKEN_OVER           from (identity of the previous owner), gap_ms (from its release, or its last record if it ended without one,
                              until the task processes here), copied (this worker had a standby or learner of the task)
    RESTORE_STARTED           stores: {store: {topic, partition, from, to}}; of a global store (task null): store, topic, worker, remaining
    RESTORE_PROGRESS          records, remaining, rate (records/s), seconds_left; every 5 s of a restore; of a global store also store,
                              topic, worker
    RESTORE_ENDED             records, seconds; of a global store also store, topic, worker
    TASK_PAUSED               topic, partition, offset, timestamp_ms, key_base64, value_base64, headers, left_out_bytes (of a record
                              too large for an event: key, value and headers are missing then), error_type, error, reason, since_ms,
                              [location, stack, node, serde, part, field, byte] (`ErrorDetails`; not of a pause on command)
    TASK_RESUMED              offsets: {topic-partition: offset}, moved: {topic-partition: {from, to}} (while it was paused)
    RECORD_SKIPPED            topic, partition, offset, error_type, error
    OFFSET_MOVED              topic, partition, committed, expected
    OFFSET_RESET              topic, partition, from, to, policy (`nearest`: the committed offset had been set to one that does not exist),
                              reason
    GLOBAL_RECOVERY_STARTED   store, topic, worker, partition, reason, attempt (of several in a row), wait_seconds, lost:
                              {topic-partition: {from, to}} (records deleted before they were read; `to` is the log's start), current_ms
                              (when the table last had everything; null: it was being built)
    GLOBAL_RECOVERY_ENDED     store, topic, worker, records, seconds
    GLOBAL_TOPIC_NOT_COMPACTED  topic, cleanup_policy
    INPUT_PARTITIONS_ADDED    topic, read (number of partitions with a task), partitions (current number), subtopologies (that read it),
                              reason (why no task reads them; null: the worker restarts with tasks for them)
    CHECKPOINT                stores: {store: {topic-partition: next offset}}; of active tasks and copies; of a worker's global stores (task
                              null) also worker
    TASK_CORRUPTED            reason
    SHUTDOWN                  reason

The broker sets the record's timestamp (LogAppendTime), so that a wrong clock of the machine does not matter. `at_ms` is the machine's time.

`worker` is the number of the worker whose copy of the global store it is.

Bytes are base64; offsets are next offsets unless the field is called `offset`, which is the record's own.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum
from threading import Lock

import msgspec

from penstock.runtime.model.clock import Clock
from penstock.runtime.model.ids import TaskId


class EventKind(Enum):
    """Kind of an event; the module's docstring describes the payload of each."""

    INSTANCE_STATE = "INSTANCE_STATE"
    TASKS_ASSIGNED = "TASKS_ASSIGNED"
    TASK_TAKEN_OVER = "TASK_TAKEN_OVER"
    RESTORE_STARTED = "RESTORE_STARTED"
    RESTORE_PROGRESS = "RESTORE_PROGRESS"
    RESTORE_ENDED = "RESTORE_ENDED"
    TASK_PAUSED = "TASK_PAUSED"
    TASK_RESUMED = "TASK_RESUMED"
    RECORD_SKIPPED = "RECORD_SKIPPED"
    OFFSET_MOVED = "OFFSET_MOVED"
    OFFSET_RESET = "OFFSET_RESET"
    GLOBAL_RECOVERY_STARTED = "GLOBAL_RECOVERY_STARTED"
    GLOBAL_RECOVERY_ENDED = "GLOBAL_RECOVERY_ENDED"
    GLOBAL_TOPIC_NOT_COMPACTED = "GLOBAL_TOPIC_NOT_COMPACTED"
    INPUT_PARTITIONS_ADDED = "INPUT_PARTITIONS_ADDED"
    CHECKPOINT = "CHECKPOINT"
    TASK_CORRUPTED = "TASK_CORRUPTED"
    SHUTDOWN = "SHUTDOWN"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event; the module's docstring describes the JSON and the payloads."""

    id: str
    application: str
    instance: str
    incarnation: int
    kind: EventKind
    task: str | None
    at_ms: int
    payload: dict[str, object]

    @property
    def key(self) -> bytes:
        """The record's key on the topic."""
        return (self.task or self.instance).encode()

    def to_json(self) -> bytes:
        """Return the record's value on the topic."""
        return _ENCODER.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> Event:
        """Decode a record's value. Raises msgspec.DecodeError for anything that `to_json` did not write."""
        return _DECODER.decode(data)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Event)


def events_topic(application_id: str) -> str:
    """Return the topic of an application's events."""
    return f"{application_id}-events"


def base64_or_none(data: bytes | None) -> str | None:
    """Encode raw bytes of a record for an event's payload."""
    return None if data is None else base64.b64encode(data).decode("ascii")


class EventSink:
    """Queue of one worker's events until the next commit. Safe to use from several threads.

    When the worker starts a new incarnation, it calls `begin_incarnation` (rules.md, 21).
    """

    def __init__(self, application: str, instance: str, clock: Clock, worker: int = 1) -> None:
        """`worker`: its number in the instance, which makes ids unique: two may start an incarnation in the same millisecond."""
        self._worker = worker
        self._application = application
        self._instance = instance
        self._clock = clock
        self._incarnation = clock.wall_ms()  # until the worker joins: events of an earlier start have other ids
        self._number = 0
        self._pending: deque[Event] = deque()
        self._lock = Lock()

    @property
    def application(self) -> str:
        """The application's id."""
        return self._application

    def begin_incarnation(self, incarnation: int) -> None:
        with self._lock:
            self._incarnation = incarnation

    def emit(self, kind: EventKind, payload: Mapping[str, object], task: TaskId | None = None, coordinates: str = "") -> Event:
        """Queue an event for the next commit. `coordinates` (for example `flights-3@1201`) make its id readable."""
        with self._lock:
            self._number += 1
            subject = self._instance if task is None else str(task)
            number = f"{self._incarnation}-{self._number}" if self._worker == 1 else f"{self._incarnation}-{self._worker}-{self._number}"
            event = Event(
                id="/".join((self._application, subject, kind.value, coordinates, f"{self._instance}-{number}")),
                application=self._application,
                instance=self._instance,
                incarnation=self._incarnation,
                kind=kind,
                task=None if task is None else str(task),
                at_ms=self._clock.wall_ms(),
                payload=dict(payload),
            )
            self._pending.append(event)
            return event

    def __bool__(self) -> bool:
        """Return True if events are queued."""
        return bool(self._pending)

    def drain(self) -> list[Event]:
        """Remove and return all queued events, oldest first. If their transaction aborts, return them with `put_back`."""
        with self._lock:
            events = list(self._pending)
            self._pending.clear()
            return events

    def put_back(self, events: Iterable[Event]) -> None:
        """Return the events of an aborted transaction to the head of the queue, in their order."""
        with self._lock:
            self._pending.extendleft(reversed(list(events)))
