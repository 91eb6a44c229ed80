"""All errors of the engine, and its reaction to each.

StreamsError                        base of all errors
├── MissingExtraError               an optional package is not installed: the message has the command
├── StreamsConfigError              wrong configuration: raised at construction, nothing was started
├── TopologyError                   wrong topology: raised while it is built, naming the node
├── MissingSourceTopicError         an input topic does not exist: the client stops, naming it
├── MissingSinkTopicError           an output topic does not exist, and brokers do not create it: the client stops, naming it
├── WrongPartitionsError            a topic's partitions do not fit (co-partitioning, changelog): the client stops
├── StateDirectoryLockedError       another process holds the state directory: nothing was started
├── StateDirectoryError             the state directory cannot be used (rights, disk): nothing was started
├── StateUnreadableError            an entry of a store cannot be read by its serde: the client stops
├── StoreChangedError               a store or its changelog has another format than the topology's: the client stops
├── StateLostError                  state exists but its input offsets are gone (rules.md, 14): refuses to count twice
├── SeedRefusedError                a seed does not fit, or the application is not ready for one: nothing was changed
├── ResetError                      a reset is incomplete, or happened while the instance was stopped: the instance does not run
├── BrokerUnavailableError          no broker answered in time
├── InvalidStateStoreError          a requested store is closed, unknown or restoring
├── DeserializationError            a record cannot be read: the handler decides (continue, pause, fail)
├── ProcessingError                 the user's code raised: the processing handler decides; without one the client stops
├── SerializationError              a sink's serde cannot write a key or value: the production handler decides (KIP-399)
├── ProductionError                 the broker refused a record, or a serde could not write it, and the production handler returned FAIL
├── ApplicationShutdownError        an instance asked all instances to close (KIP-671): the client commits and stops
├── TaskCorruptedError              tasks whose state no longer fits their changelog: wiped and restored, the client continues
├── TaskMigratedError               the group dropped this worker: its tasks are closed dirty, it rejoins
└── TransactionAbortedError         the transaction was rolled back: tasks return to their last commit and process again
    └── SchemaRegistryUnavailableError  the Schema Registry does not answer: the same, until it answers
"""

from __future__ import annotations

from collections.abc import Iterable
from traceback import clear_frames

from penstock.runtime.model.ids import TaskId


class StreamsError(Exception):
    """Base of all errors raised by Penstock. `further`: other errors that the same check has found."""

    further: tuple[StreamsError, ...] = ()


class MissingExtraError(StreamsError, ImportError):
    """A package of one of Penstock's extras is not installed."""


class StreamsConfigError(StreamsError):
    """A configuration key is unknown, of the wrong type, out of range, or contradicts another one."""


class TopologyError(StreamsError):
    """The topology cannot be built; the message names the node or store."""


class MissingSourceTopicError(StreamsError):
    """A source topic does not exist on the broker."""


class MissingSinkTopicError(StreamsError):
    """An output topic does not exist, and the brokers do not create topics automatically."""


class WrongPartitionsError(StreamsError):
    """The number of a topic's partitions does not fit the topology."""


class ApplicationShutdownError(StreamsError):
    """The uncaught-exception handler of an instance answered SHUTDOWN_APPLICATION, so this one stops too (KIP-671)."""


class StateDirectoryError(StreamsError):
    """The state directory cannot be created, read or written."""


class StateDirectoryLockedError(StateDirectoryError):
    """Another process, `holder`, holds the lock of the state directory."""

    def __init__(self, message: str, holder: str = "unknown") -> None:
        super().__init__(message)
        self.holder = holder


class StoreChangedError(StreamsError):
    """A store's data, on disk or in its changelog, has another format than the topology's store; the message lists the remedies."""


class StateUnreadableError(StreamsError):
    """An entry of a store cannot be read by the store's serde. The current record is not the cause, so no handler is called. `__cause__` is
    the serde's exception."""


class StateLostError(StreamsError):
    """Stores hold state, but the group has no committed offsets for their input: continuing would count records twice."""


class SeedRefusedError(StreamsError):
    """A seed does not fit the application, or the application's state does not allow one; the message lists the remedies."""


class ResetError(StreamsError):
    """A reset of the application is incomplete, or happened without this instance, so that its state is inconsistent."""


class BrokerUnavailableError(StreamsError):
    """No broker answered within the time given."""


class InvalidStateStoreError(StreamsError):
    """The store asked for is unknown, closed, or (where the caller did not allow it) still restoring."""


class DeserializationError(StreamsError):
    """A record's key, value or timestamp cannot be read. `__cause__` is the exception of the serde or extractor.

    `node`: the source node; `part`: `key` or `value`, which `serde` cannot read; None as far as they are not known.
    """

    def __init__(self, message: str, *, node: str | None = None, part: str | None = None, serde: str | None = None) -> None:
        super().__init__(message)
        self.node = node
        self.part = part
        self.serde = serde


class ProcessingError(StreamsError):
    """The user's code raised. `__cause__` is its exception; the message names the node and record as far as they are known.

    `index` is the record's row in the current run; None without a record (a punctuator, a cache flush, `init`, `close`), and then
    topic, partition and offset are None too. `node` is the processor node, if it is known; `node_label` also says which line made it, if
    its name was generated.
    """

    def __init__(
        self,
        message: str,
        *,
        task: TaskId | None = None,
        node: str | None = None,
        node_label: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.task = task
        self.node = node
        self.node_label = node_label or node
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.index = index


class SerializationError(StreamsError):
    """The serde of a sink, of this name, cannot write an output's key (`is_key`) or value. `__cause__` is the serde's exception; `raw_key`
    is the serialised key, if it can be written."""

    def __init__(self, message: str, *, is_key: bool, raw_key: bytes | None, serde: str | None = None) -> None:
        super().__init__(message)
        self.is_key = is_key
        self.raw_key = raw_key
        self.serde = serde


class ProductionError(StreamsError):
    """The broker or the client refused a record, or a sink's serde could not write it."""


class TaskCorruptedError(StreamsError):
    """The state of these tasks no longer fits their changelog; it is wiped and restored.

    `store`: the store whose files are damaged, if that is the cause. For a global store there are no tasks.
    """

    def __init__(self, tasks: Iterable[TaskId], reason: str, store: str | None = None) -> None:
        self.tasks = frozenset(tasks)
        self.store = store
        super().__init__(f"tasks {', '.join(map(str, sorted(self.tasks)))}: {reason}" if self.tasks else reason)

    def clear_traceback(self) -> None:
        """Clear the frames of the traceback, whose references would keep a damaged store's files open and locked. Call it before a store is
        wiped."""
        found: BaseException | None = self
        while found is not None:
            clear_frames(found.__traceback__)
            found = found.__cause__


class TaskMigratedError(StreamsError):
    """This worker is no longer a member of the group, or its transactional id was fenced: others may own its tasks now."""


class TransactionAbortedError(StreamsError):
    """The transaction could not be committed and was rolled back; none of its records are visible."""


class SchemaRegistryUnavailableError(TransactionAbortedError):
    """The Schema Registry is unavailable, so a record can be neither read nor written now. The record is retried; nothing is lost."""


def by_reset(application_id: str) -> str:
    """Return the commands that rebuild an application's state and input offsets together (docs/reset.md)."""
    return f"stop every instance (penstock stop {application_id}), then penstock reset {application_id}"
