"""Commands of the command line, Dagster and run-books. A command and its result travel on the coordination topic, to and from the task's
owner."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from penstock.runtime.coordination.records import (
    MEMBER,
    SHAPE,
    Command,
    CommandResult,
    Desired,
    Member,
    Record,
    StateShape,
    Tombstone,
    decode,
    encode,
    newest,
)
from penstock.runtime.coordination.topics import COORDINATION_CONFIG, coordination_topic
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import Meaning, lacks_right, meaning
from penstock.runtime.kafka.first_contact import refused_login
from penstock.runtime.kafka.shared_log import ANSWER_SECONDS, RecordWriter, Tail
from penstock.runtime.kafka.topic_admin import ensure_topic
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.stores.store_format import StoreFormat

_FOR_EVERY_WORKER = frozenset({"snapshot", "rebuild-global-store"})
"""Commands that every worker of an instance carries out; other commands to an instance go to one worker."""


class CommandClient:
    """Client that sends commands to the instances of one application and records their desired state. Use it in a `with` block, or
    `close()` it."""

    def __init__(self, application_id: str, connection: Connection, issued_by: str) -> None:
        """Makes no request."""
        self._topic = coordination_topic(application_id)
        self._connection = connection
        self._by = issued_by
        self._writer = RecordWriter(connection, self._topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._writer.close()

    def send(
        self,
        kind: str,
        *,
        task: TaskId | None = None,
        instance: str | None = None,
        args: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
    ) -> CommandResult:
        """Send a command and return its result. The results of an instance's workers are merged into one.

        Raises BrokerUnavailableError, or StreamsError if a result is missing after `timeout_s`: the task has no owner now, or is restoring.
        """
        issued_ms = time.time_ns() // 1_000_000
        commands = [
            Command(
                id=uuid.uuid4().hex,
                kind=kind,
                task=None if task is None else str(task),
                instance=instance,
                worker=worker,
                args=dict(args or {}),
                issued_by=self._by,
                issued_ms=issued_ms,
            )
            for worker in ([None] if instance is None or task is not None else self._workers(kind, instance))
        ]
        reader = Tail.quiet(self._connection, self._topic)
        try:
            reader.begin(self._end(reader))
            for command in commands:
                self._writer.write(command.key, encode(command))
            results = self._await(reader, {command.id for command in commands}, timeout_s)
        finally:
            reader.close()
        for key in [*(command.key for command in commands), *(result.key for result in results)]:
            self._writer.write(key, None)
        if len(results) < len(commands):
            subject = f"instance {instance}" if task is None else f"task {task}"
            raise StreamsError(f"{kind}: no instance answered for {subject} within {timeout_s:.0f} s: does it run, and has it an owner?")
        return _as_one(results)

    def _workers(self, kind: str, instance: str) -> list[int | None]:
        """Return the workers of an instance that are to carry out a command."""
        workers: list[int | None] = [*sorted({member.worker for member in self.members() if member.instance == instance})]
        return (workers if kind in _FOR_EVERY_WORKER else workers[:1]) or [None]

    def want(self, instance: str, running: bool, at_ms: int | None = None) -> None:
        """Record whether an instance should run (rules.md, 26). Creates the topic if this is the application's first record.

        `at_ms`: wall-clock time of the decision, if it is not now: a record that arrives late does not override a newer one.

        Raises BrokerUnavailableError.
        """
        ensure_topic(self._connection, self._topic, 1, COORDINATION_CONFIG)
        decided = time.time_ns() // 1_000_000 if at_ms is None else at_ms
        record = Desired(instance=instance, running=running, at_ms=decided, by=self._by)
        self._writer.write(record.key, encode(record))

    def members(self) -> list[Member]:
        """Return the current MEMBER records, of members that are alive or not yet fenced. Raises BrokerUnavailableError."""
        found: dict[str, Member] = {}
        for record in self._records():
            if isinstance(record, Member):
                found[record.identity] = record
            elif isinstance(record, Tombstone) and record.kind == MEMBER:
                found.pop(record.id, None)
        return list(found.values())

    def store_formats(self) -> dict[str, StoreFormat]:
        """Return the recorded formats of the stores' entries; empty for an application that only earlier versions of Penstock have run.
        Raises BrokerUnavailableError."""
        shapes: dict[str, StateShape] = {}
        for record in self._records():
            if isinstance(record, StateShape):
                shapes.setdefault(record.key.decode(), record)
            elif isinstance(record, Tombstone) and record.kind == SHAPE:
                shapes.pop(f"{SHAPE}/{record.id}", None)
        holds = newest(shapes.values())
        return {} if holds is None else {store.name: store.format for store in holds.shape.stores if store.format is not None}

    def _records(self) -> Iterator[Record | None]:
        """Yield all records, in order."""
        reader = Tail.quiet(self._connection, self._topic)
        try:
            if self._end(reader) == 0:
                return
            reader.begin()
            until = time.monotonic() + ANSWER_SECONDS
            while not reader.at_end:
                for message in reader.poll(1.0):
                    until = time.monotonic() + ANSWER_SECONDS
                    yield decode(message.key(), message.value())
                if time.monotonic() >= until and not reader.at_end:
                    raise BrokerUnavailableError(
                        f"bootstrap.servers = {self._connection}: the coordination topic could not be read to its end"
                    )
        finally:
            reader.close()

    def _end(self, reader: Tail) -> int:
        try:
            return reader.end()
        except StreamsError as error:
            if meaning(error.__cause__) & (Meaning.UNKNOWN_TOPIC | Meaning.UNKNOWN_PARTITION):
                raise StreamsError(f"{self._topic} does not exist on {self._connection}: has the application ever been started?") from error
            refused = None if lacks_right(error) else refused_login(self._connection)
            why = f"no broker answered ({error})" if refused is None else f"the brokers refuse this client ({refused.str()})"
            raise BrokerUnavailableError(f"bootstrap.servers = {self._connection}: {why}") from error

    def _await(self, reader: Tail, commands: set[str], timeout_s: float) -> list[CommandResult]:
        """Return the results that arrive before the timeout."""
        deadline = time.monotonic() + timeout_s
        found: dict[str, CommandResult] = {}
        while len(found) < len(commands) and (left := deadline - time.monotonic()) > 0:
            for message in reader.poll(min(left, 1.0)):
                record = decode(message.key(), message.value())
                if isinstance(record, CommandResult) and record.id in commands:
                    found[record.id] = record
        return list(found.values())


def _as_one(results: list[CommandResult]) -> CommandResult:
    """Merge the results of several workers: successful if all are; lists in the data are concatenated."""
    first = results[0]
    data = dict(first.data)
    for result in results[1:]:
        for name, value in result.data.items():
            known = data.setdefault(name, value)
            if isinstance(known, list) and isinstance(value, list):
                data[name] = [*known, *value]
    reasons = dict.fromkeys(result.reason for result in results if not result.ok)
    ok = all(result.ok for result in results)
    return CommandResult(id=first.id, ok=ok, reason=first.reason if ok else "; ".join(reasons), data=data, by=first.by)
