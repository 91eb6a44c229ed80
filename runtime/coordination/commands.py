"""Commands from outside: the command line, Dagster, run-books. They go through the coordination topic to the task's owner, and so does
the answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from runtime.coordination.records import MEMBER, Command, CommandResult, Desired, Member, Tombstone, decode, encode
from runtime.errors import BrokerUnavailableError, StreamsError
from runtime.ids import TaskId
from runtime.log_end import LogEnd
from runtime.topics import COORDINATION_CONFIG, coordination_topic, ensure_topic

FLUSH_SECONDS = 15.0
RETRY_SECONDS = 0.1
_FOR_EVERY_WORKER = frozenset({"snapshot", "rebuild-global-store"})
"""Commands to an instance that each of its workers carries out; of the others, one does."""
UNKNOWN_SECONDS = 1.0
"""For so long a topic that is not known is asked for again, before it is taken not to exist."""
_NO_LEADER_YET = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)


class CommandClient:
    """Sends commands to the instances of one application, and records what should run. Use it in a `with` block, or `close()` it."""

    def __init__(self, application_id: str, bootstrap_servers: str, issued_by: str) -> None:
        """Contacts nobody."""
        self._topic = coordination_topic(application_id)
        self._servers = bootstrap_servers
        self._by = issued_by
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 0, "log_level": 2})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._producer.flush(FLUSH_SECONDS)

    def send(
        self,
        kind: str,
        *,
        task: TaskId | None = None,
        instance: str | None = None,
        args: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
    ) -> CommandResult:
        """Sends a command and waits for its result. One to an instance goes to its workers, and what they answer comes as one result.

        Raises BrokerUnavailableError, or StreamsError if somebody did not answer in time: the task has no owner now, or it is restoring.
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
        reader = self._reader()
        try:
            self._at_end(reader)
            for command in commands:
                self._write(command.key, encode(command))
            results = self._await(reader, {command.id for command in commands}, timeout_s)
        finally:
            reader.close()
        for key in [*(command.key for command in commands), *(result.key for result in results)]:
            self._write(key, None)
        if len(results) < len(commands):
            subject = f"instance {instance}" if task is None else f"task {task}"
            raise StreamsError(f"{kind}: nobody answered for {subject} within {timeout_s:.0f} s: does it run, and has it an owner?")
        return _as_one(results)

    def _workers(self, kind: str, instance: str) -> list[int | None]:
        """Which of an instance's workers are to carry a command out."""
        workers: list[int | None] = [*sorted({member.worker for member in self.members() if member.instance == instance})]
        return (workers if kind in _FOR_EVERY_WORKER else workers[:1]) or [None]

    def want(self, instance: str, running: bool, at_ms: int | None = None) -> None:
        """Records whether an instance should run (rules.md, 26); makes the topic if this is the first word about the application.

        `at_ms`: when that was decided, if not now (wall-clock ms): a word that arrives late does not outdo a newer one.

        Raises BrokerUnavailableError.
        """
        ensure_topic(self._servers, self._topic, 1, COORDINATION_CONFIG)
        decided = time.time_ns() // 1_000_000 if at_ms is None else at_ms
        record = Desired(instance=instance, running=running, at_ms=decided, by=self._by)
        self._write(record.key, encode(record))

    def members(self) -> list[Member]:
        """The MEMBER records as they stand, alive or not yet fenced. Raises BrokerUnavailableError."""
        reader = self._reader()
        try:
            _, high = self._bounds(reader)
            reader.assign([TopicPartition(self._topic, 0, 0)])
            found: dict[str, Member] = {}
            end, at_end = LogEnd(reader), high == 0
            while not at_end:
                message = reader.poll(FLUSH_SECONDS)
                if message is None:
                    raise BrokerUnavailableError(
                        f"bootstrap.servers = {self._servers}: the coordination topic could not be read to its end"
                    )
                at_end = end.reached(message)
                if message.error() is not None:
                    continue
                record = decode(message.key(), message.value())
                if isinstance(record, Member):
                    found[record.who] = record
                elif isinstance(record, Tombstone) and record.kind == MEMBER:
                    found.pop(record.id, None)
            return list(found.values())
        finally:
            reader.close()

    def _reader(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": f"{self._topic}-client",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "log_level": 2,
            }
        )

    def _bounds(self, reader: Consumer) -> tuple[int, int]:
        began = time.monotonic()
        while True:
            try:
                low, high = reader.get_watermark_offsets(TopicPartition(self._topic, 0), FLUSH_SECONDS)
                return low, high
            except KafkaException as error:
                # A topic that was made a moment ago may not have a leader yet, and a broker that has just started may not know of it yet.
                code = error.args[0].code()
                patience = FLUSH_SECONDS if code in _NO_LEADER_YET else UNKNOWN_SECONDS if code in _UNKNOWN else 0.0
                if time.monotonic() - began >= patience:
                    raise self._unavailable(error) from error
                time.sleep(RETRY_SECONDS)

    def _at_end(self, reader: Consumer) -> None:
        _, end = self._bounds(reader)
        reader.assign([TopicPartition(self._topic, 0, end)])

    def _write(self, key: bytes, value: bytes | None) -> None:
        failed: list[KafkaError] = []
        self._producer.produce(self._topic, value, key, 0, lambda error, _message: failed.append(error) if error is not None else None)
        if self._producer.flush(FLUSH_SECONDS) or failed:
            reason = failed[0].str() if failed else f"no answer within {FLUSH_SECONDS:.0f} s"
            raise BrokerUnavailableError(f"bootstrap.servers = {self._servers}: the coordination topic cannot be written: {reason}")

    def _await(self, reader: Consumer, commands: set[str], timeout_s: float) -> list[CommandResult]:
        """The results that came in time."""
        deadline = time.monotonic() + timeout_s
        found: dict[str, CommandResult] = {}
        while len(found) < len(commands) and (left := deadline - time.monotonic()) > 0:
            message = reader.poll(min(left, 1.0))
            if message is None or message.error() is not None:
                continue
            record = decode(message.key(), message.value())
            if isinstance(record, CommandResult) and record.id in commands:
                found[record.id] = record
        return list(found.values())

    def _unavailable(self, error: KafkaException) -> StreamsError:
        inner = error.args[0]
        if inner.code() in _UNKNOWN:
            return StreamsError(f"{self._topic} does not exist on {self._servers}: has the application ever been started?")
        return BrokerUnavailableError(f"bootstrap.servers = {self._servers}: no broker answered ({inner.str()})")


def _as_one(results: list[CommandResult]) -> CommandResult:
    """What several workers answer, as one: it went well if it did everywhere; lists in the data are put together."""
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
