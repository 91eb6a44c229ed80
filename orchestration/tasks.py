"""What can be asked of a task from outside: resume, pause, shift its committed offset.

There is one writer of a task's offsets: its owner, which is asked through a COMMAND. Only where no owner lives (nobody is in the members'
group) the offset is moved through Kafka's Admin interface. Either way it is a compare-and-set (rules.md, 20): to `offset + 1` only if
`offset` is committed; already there counts as done; anything else is refused. (Rejected: always through Admin. A commit of the owner may be
under way, and the later of two writes wins in silence.)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from orchestration.applications import Application
from runtime.coordination.commands import CommandClient
from runtime.coordination.records import CommandResult
from runtime.errors import BrokerUnavailableError, StreamsError
from runtime.ids import TaskId

_SECONDS = 10.0
_AGAIN_SECONDS = 0.5


class RefusedError(Exception):
    """What was asked for is not done, because the task is not in the state that it needs; the message says which one it is in."""


@dataclass(frozen=True, slots=True)
class Shift:
    """How an offset was moved: by whom (an instance's name, or `admin`), and whether it stood there already."""

    by: str
    already: bool


class TaskCommands:
    """Commands to the tasks of one application. Use it in a `with` block."""

    def __init__(self, application: Application, issued_by: str) -> None:
        self._application = application
        self._admin = AdminClient({"bootstrap.servers": application.bootstrap_servers, "log_level": 2})
        self._client = CommandClient(application.id, application.bootstrap_servers, issued_by)

    def __enter__(self) -> TaskCommands:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def owner_lives(self) -> bool:
        """True if any worker of the application is in the members' group; a killed one is, until its session has run out.

        Raises BrokerUnavailableError.
        """
        group = f"{self._application.id}-members"
        try:
            self._admin.list_topics(timeout=_SECONDS)  # a question about a group that no broker answers may end the process: see below
            description = self._admin.describe_consumer_groups([group], request_timeout=_SECONDS)[group].result(_SECONDS)
        except KafkaException as error:
            if error.args[0].name() == "GROUP_ID_NOT_FOUND":
                return False
            raise self._unavailable(error) from error
        return bool(description.members)

    def resume(self, task: TaskId, timeout_s: float = 30.0) -> str:
        """Returns the name of who resumed it. Raises RefusedError with the owner's reason."""
        return self._asked("resume", task, {}, timeout_s).by

    def pause(self, task: TaskId, timeout_s: float = 30.0) -> str:
        """Returns the name of who paused it. Raises RefusedError with the owner's reason."""
        return self._asked("pause", task, {}, timeout_s).by

    def ask_instance(self, kind: str, instance: str, args: dict[str, object], timeout_s: float = 30.0) -> CommandResult:
        """Has a whole instance do something. Raises RefusedError with its reason."""
        return self._asked(kind, instance, args, timeout_s)

    def shift(self, task: TaskId, topic: str, partition: int, offset: int, timeout_s: float = 30.0) -> Shift:
        """Moves the committed offset from `offset` to the one after it. Raises RefusedError if something else is committed."""
        if self.owner_lives():
            args: dict[str, object] = {"topic": topic, "partition": partition, "from": offset, "to": offset + 1}
            result = self._asked("shift", task, args, timeout_s)
            return Shift(result.by, already=bool(result.data.get("already")))
        committed = self.committed(topic, partition)
        if committed not in (offset, offset + 1):
            raise RefusedError(f"{topic}-{partition} is committed at {committed}, not at {offset}: somebody has moved it")
        if committed == offset:
            self._alter(topic, partition, offset + 1)
        return Shift("admin", already=committed == offset + 1)

    def committed(self, topic: str, partition: int) -> int | None:
        """The committed next offset of a partition; None if there is none. Raises BrokerUnavailableError."""
        at = TopicPartition(topic, partition)
        return committed_offsets(self._application, [at]).get((topic, partition))

    def _alter(self, topic: str, partition: int, offset: int) -> None:
        wanted = ConsumerGroupTopicPartitions(self._application.id, [TopicPartition(topic, partition, offset)])
        try:
            answer = self._admin.alter_consumer_group_offsets([wanted], request_timeout=_SECONDS)[self._application.id].result(_SECONDS)
        except KafkaException as error:
            raise self._unavailable(error) from error
        problem = answer.topic_partitions[0].error  # a group with members answers here, and raises nothing
        if problem is not None:
            raise RefusedError(f"{topic}-{partition}: the broker refuses the new offset: {problem.str()}")

    def _asked(self, kind: str, whom: TaskId | str, args: dict[str, object], timeout_s: float) -> CommandResult:
        """Asks the owner of a task, or an instance; asks again where it was rolled back and did nothing, until the time is up. Raises
        RefusedError, StreamsError."""
        task, instance = (whom, None) if isinstance(whom, TaskId) else (None, whom)
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
        return BrokerUnavailableError(f"{self._application.id}: {self._application.bootstrap_servers}: {error.args[0].str()}")


def committed_offsets(application: Application, partitions: Sequence[TopicPartition]) -> dict[tuple[str, int], int]:
    """What the application's group has committed, without what open transactions would make of it. Raises BrokerUnavailableError.

    Asked through a consumer that joins nothing. (Rejected: AdminClient. In librdkafka 2.16 its questions to a group's coordinator are never
    answered again after a broker's death, and one that ran out of time while the broker was away aborts the process when it is back.)
    """
    consumer = Consumer(
        {
            "bootstrap.servers": application.bootstrap_servers,
            "group.id": application.id,
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    try:
        found = consumer.committed(list(partitions), timeout=_SECONDS)
    except KafkaException as error:
        raise BrokerUnavailableError(f"{application.id}: {application.bootstrap_servers}: {error.args[0].str()}") from error
    finally:
        consumer.close()
    return {(at.topic, at.partition): at.offset for at in found if at.offset >= 0}
