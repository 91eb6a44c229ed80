"""Commands to a task: resume, pause, shift its committed offset.

The committed offsets of a task have one writer, its owner, which receives a COMMAND record. Only if no owner lives (the members' group is
empty) is the offset moved through Kafka's Admin API. Both ways are a compare-and-set: the offset becomes `offset + 1` only if `offset` is
committed; if it is `offset + 1` already, that counts as done; anything else is refused (docs/rules.md, 20). (Rejected: always through
Admin. The owner may be committing at the same time, and the later of two writes wins silently.)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.coordination.records import CommandResult
from penstock.runtime.kafka.failures import kafka_error, with_remedy
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.ids import TaskId

_SECONDS = 10.0
_AGAIN_SECONDS = 0.5


class RefusedError(ExpectedError):
    """A request was refused because its subject is not in the required state; the message names the state."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Result of a shift: who moved the offset (an instance's name, or `admin`), and whether it was there already."""

    by: str
    already: bool


class TaskCommands:
    """Client for commands to the tasks of one application. Use it in a `with` block."""

    def __init__(self, application: Application, issued_by: str) -> None:
        self._application = application
        self._admin = AdminClient(application.connection.client({"log_level": 2}))
        self._client = CommandClient(application.id, application.connection, issued_by)

    def __enter__(self) -> TaskCommands:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def owner_lives(self) -> bool:
        """Return True if any worker is in the members' group; a killed one is, until its session times out.

        Raises BrokerUnavailableError.
        """
        group = f"{self._application.id}-members"
        try:
            self._admin.list_topics(timeout=_SECONDS)  # fail early if no broker answers: see `committed_offsets`
            description = self._admin.describe_consumer_groups([group], request_timeout=_SECONDS)[group].result(_SECONDS)
        except KafkaException as error:
            if error.args[0].name() == "GROUP_ID_NOT_FOUND":
                return False
            raise self._unavailable(error) from error
        return bool(description.members)

    def resume(self, task: TaskId, timeout_s: float = 30.0) -> str:
        """Resume a task; return the name of the instance that did. Raises RefusedError with the owner's reason."""
        return self._asked("resume", task, {}, timeout_s).by

    def pause(self, task: TaskId, timeout_s: float = 30.0) -> str:
        """Pause a task; return the name of the instance that did. Raises RefusedError with the owner's reason."""
        return self._asked("pause", task, {}, timeout_s).by

    def ask_instance(self, kind: str, instance: str, args: dict[str, object], timeout_s: float = 30.0) -> CommandResult:
        """Send a command to an instance. Raises RefusedError with its reason."""
        return self._asked(kind, instance, args, timeout_s)

    def shift(self, task: TaskId, topic: str, partition: int, offset: int, timeout_s: float = 30.0) -> Shift:
        """Move the committed offset from `offset` to the one after it. Raises RefusedError if something else is committed."""
        if self.owner_lives():
            args: dict[str, object] = {"topic": topic, "partition": partition, "from": offset, "to": offset + 1}
            result = self._asked("shift", task, args, timeout_s)
            return Shift(result.by, already=bool(result.data.get("already")))
        committed = self.committed(topic, partition)
        if committed not in (offset, offset + 1):
            raise RefusedError(f"{topic}-{partition} is committed at {committed}, not at {offset}: another program has moved it")
        if committed == offset:
            self._alter(topic, partition, offset + 1)
        return Shift("admin", already=committed == offset + 1)

    def committed(self, topic: str, partition: int) -> int | None:
        """Return the committed next offset of a partition; None if there is none. Raises BrokerUnavailableError."""
        at = TopicPartition(topic, partition)
        return committed_offsets(self._application, [at]).get((topic, partition))

    def _alter(self, topic: str, partition: int, offset: int) -> None:
        wanted = ConsumerGroupTopicPartitions(self._application.id, [TopicPartition(topic, partition, offset)])
        try:
            answer = self._admin.alter_consumer_group_offsets([wanted], request_timeout=_SECONDS)[self._application.id].result(_SECONDS)
        except KafkaException as error:
            raise self._unavailable(error) from error
        problem = answer.topic_partitions[0].error  # if the group has members, the error is here and nothing is raised
        if problem is not None:
            raise RefusedError(f"{topic}-{partition}: the broker refuses the new offset: {problem.str()}")

    def _asked(self, kind: str, receiver: TaskId | str, args: dict[str, object], timeout_s: float) -> CommandResult:
        """Send a command to the owner of a task, or to an instance. Send it again if it was rolled back without effect, until the timeout.
        Raises RefusedError, StreamsError."""
        task, instance = (receiver, None) if isinstance(receiver, TaskId) else (None, receiver)
        subject = "" if task is None else f"task {task}: "
        deadline = time.monotonic() + timeout_s
        while True:
            result = self._client.send(kind, task=task, instance=instance, args=args, timeout_s=timeout_s)
            if result.ok or not result.data.get("again"):
                break
            if time.monotonic() > deadline:
                raise StreamsError(f"{subject}{result.by} could not {kind} in {timeout_s:.0f} s: {result.reason}")
            time.sleep(_AGAIN_SECONDS)
        if not result.ok:
            raise RefusedError(f"{subject}{result.by} refuses to {kind}: {result.reason}")
        return result

    def _unavailable(self, error: KafkaException) -> BrokerUnavailableError:
        return BrokerUnavailableError(f"{self._application.id}: {self._application.bootstrap_servers}: {with_remedy(kafka_error(error))}")


def committed_offsets(application: Application, partitions: Sequence[TopicPartition]) -> dict[tuple[str, int], int]:
    """Return the committed offsets of the application's group; open transactions do not count. Raises BrokerUnavailableError.

    Uses a consumer that joins no group. (Rejected: AdminClient. In librdkafka 2.16, after a broker failure it gets no more answers from a
    group's coordinator, and a request that times out while the broker is away aborts the process when the broker is back.)
    """
    consumer = Consumer(
        application.connection.client(
            {
                "group.id": application.id,
                "isolation.level": "read_uncommitted",
                "enable.auto.commit": False,
                "log_level": 2,
            }
        )
    )
    try:
        found = consumer.committed(list(partitions), timeout=_SECONDS)
    except KafkaException as error:
        raise BrokerUnavailableError(f"{application.id}: {application.bootstrap_servers}: {with_remedy(kafka_error(error))}") from error
    finally:
        consumer.close()
    return {(at.topic, at.partition): at.offset for at in found if at.offset >= 0}
