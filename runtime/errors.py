"""Every error of the engine, and what the engine does when it meets one.

StreamsError                        something of Penstock's
├── StreamsConfigError              wrong configuration: raised at construction, nothing was started
├── TopologyError                   wrong topology: raised while it is built, naming the node
├── MissingSourceTopicError         an input topic does not exist: the client stops, naming it
├── MissingSinkTopicError           an output topic does not exist, and the brokers make none: the client stops, naming it
├── WrongPartitionsError            a topic's partitions do not fit (co-partitioning, changelog): the client stops
├── StateDirectoryLockedError       another process holds the state directory: nothing was started
├── StateDirectoryError             the state directory cannot be used (rights, disk): nothing was started
├── StoreChangedError               a store or its changelog was kept in another form than the topology's: the client stops
├── StateLostError                  state exists but its input offsets are gone (rules.md, 14): refuses to count twice
├── SeedRefusedError                a seed does not fit, or the application is not ready for one: nothing was changed
├── BrokerUnavailableError          no broker answered in time
├── InvalidStateStoreError          a store is asked for that is closed, unknown or restoring
├── DeserializationError            a record cannot be read: the handler decides (continue, pause, fail)
├── ProcessingError                 the user's code raised: the processing handler decides; without one the client stops
├── SerializationError              a sink's serde cannot write a key or value: the production handler decides (KIP-399)
├── ProductionError                 the broker refused a record, or a serde could not write it, and the production handler said FAIL
├── TaskCorruptedError              tasks whose state no longer fits their changelog: wiped and restored, the client goes on
├── TaskMigratedError               the group dropped this worker: its tasks are closed dirty, it joins again
└── TransactionAbortedError         the transaction was rolled back: tasks go back to their last commit and process again
    └── SchemaRegistryUnavailableError  the Schema Registry does not answer: likewise, until it does
"""

from __future__ import annotations

from collections.abc import Iterable
from traceback import clear_frames

from runtime.ids import TaskId


class StreamsError(Exception):
    """Base of all errors raised by Penstock."""


class StreamsConfigError(StreamsError):
    """A configuration key is unknown, of the wrong type, out of range, or contradicts another one."""


class TopologyError(StreamsError):
    """The topology cannot be built; the message names the node or store."""


class MissingSourceTopicError(StreamsError):
    """A source topic does not exist on the broker."""


class MissingSinkTopicError(StreamsError):
    """An output topic does not exist on brokers that make no topics by themselves."""


class WrongPartitionsError(StreamsError):
    """A topic has a number of partitions that does not fit what reads it."""


class StateDirectoryError(StreamsError):
    """The state directory cannot be created, read or written."""


class StateDirectoryLockedError(StateDirectoryError):
    """Another process holds the lock of the state directory."""


class StoreChangedError(StreamsError):
    """What is kept of a store, on disk or on its changelog, is of another form than the topology's; the message tells the ways out."""


class StateLostError(StreamsError):
    """Stores hold state, but the group has no committed offsets for their input: going on would count records twice."""


class SeedRefusedError(StreamsError):
    """A seed does not fit the application, or the application is not in a state to take it; the message tells the ways out."""


class BrokerUnavailableError(StreamsError):
    """No broker answered within the time given."""


class InvalidStateStoreError(StreamsError):
    """The store asked for is unknown, closed, or (where the caller did not allow it) still restoring."""


class DeserializationError(StreamsError):
    """A record's key, value or timestamp cannot be read. `__cause__` is what the serde or extractor raised."""


class ProcessingError(StreamsError):
    """The user's code raised. `__cause__` is what it raised; the message names all that is known of where.

    `index` is the row of the record in the run that was being processed; None when no record was (a punctuator, a cache that was flushed,
    `init`, `close`), and then topic, partition and offset are None too. `node` is the processor node, where it is known.
    """

    def __init__(
        self,
        message: str,
        *,
        task: TaskId | None = None,
        node: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.task = task
        self.node = node
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.index = index


class SerializationError(StreamsError):
    """The serde of a sink cannot write an output's key (`is_key`) or value. `__cause__` is what the serde raised; `raw_key` is the key in
    bytes, where that can be written."""

    def __init__(self, message: str, *, is_key: bool, raw_key: bytes | None) -> None:
        super().__init__(message)
        self.is_key = is_key
        self.raw_key = raw_key


class ProductionError(StreamsError):
    """The broker or the client refused to take a record, or a sink's serde could not write it."""


class TaskCorruptedError(StreamsError):
    """The state of these tasks no longer fits their changelog; it is wiped and restored. `store`: the one store whose files are damaged, if
    it is that. Of a global store there are no tasks."""

    def __init__(self, tasks: Iterable[TaskId], reason: str, store: str | None = None) -> None:
        self.tasks = frozenset(tasks)
        self.store = store
        super().__init__(f"tasks {', '.join(map(str, sorted(self.tasks)))}: {reason}" if self.tasks else reason)

    def let_go(self) -> None:
        """Empties the frames that the error came through: what they hold of a damaged store would keep its files open, and locked. Before a
        store is wiped."""
        found: BaseException | None = self
        while found is not None:
            clear_frames(found.__traceback__)
            found = found.__cause__


class TaskMigratedError(StreamsError):
    """This worker is no longer a member of the group, or its transactional id was fenced: others may own its tasks now."""


class TransactionAbortedError(StreamsError):
    """The transaction could not be committed and was rolled back; nothing of it is visible."""


class SchemaRegistryUnavailableError(TransactionAbortedError):
    """The Schema Registry cannot be asked, so a record can be neither read nor written now. Nothing was lost: the record is tried again."""
