"""The order of a commit (KIP-892; rules.md, 9).

    1. flush the caches of every task: forwarded updates may reach further stores and outputs
    2. write the changelogs: staged updates, folded by key; under exactly-once the brokers take guard and input offsets meanwhile
    3. write the events that became true with this commit
    4. flush the producer, end the transaction; meanwhile the stores prepare what they will write
    5. commit the stores: data, changelog offsets and input offsets in one batch

A crash between 4 and 5 leaves the stores behind their changelogs, never ahead; the restore replays the gap. A failure up to 4 rolls
everything back, and the events of this commit wait for the next one (rules.md, 10).

Rejected: committing stores first (a crash before the broker's commit leaves state that no reader may see), and one commit per task (a
transaction costs the broker as much for one task as for all).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from penstock.runtime.changelog.writer import ChangelogRows
from penstock.runtime.commit.compare_and_set import CompareAndSet
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import EventSink, events_topic
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.model.record import Headers
from penstock.runtime.stores.base import ChangelogRecord


class Transport(Protocol):
    """A transport of records and offsets to the brokers: `ExactlyOnce` or `AtLeastOnce`."""

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None: ...

    def send_changelog(self, partition: TopicPartition, rows: list[ChangelogRecord], headers: Headers | None) -> None: ...

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None: ...

    def begin_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None: ...

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]] = ()
    ) -> Mapping[TopicPartition, NextOffset]: ...

    @property
    def pending(self) -> bool: ...

    @property
    def outputs(self) -> int: ...

    def poll(self) -> None: ...

    def watch(self) -> None: ...

    def abort(self) -> None: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


class Committable(Protocol):
    """The part of a task that a commit uses."""

    def flush_caches(self) -> None: ...

    def pending_changelogs(self) -> Iterable[ChangelogRows]: ...

    def prepare(self) -> None: ...

    def offsets_to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]: ...

    def committed(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], changelog_ends: Mapping[TopicPartition, NextOffset]
    ) -> None: ...


class Commit:
    """Commits a set of tasks in this order."""

    def __init__(self, transport: Transport, events: EventSink, application_id: str) -> None:
        self._transport = transport
        self._events = events
        self._topic = events_topic(application_id)
        self.flushing = False
        """True while the caches are flushed, and after a commit that failed there."""
        self.moved = False
        """True if the last commit included input offsets."""
        self.written = 0
        """Number of records that the last commit has written to output and repartition topics."""

    def __call__(self, tasks: Sequence[Committable], extra: CompareAndSet | None = None) -> bool:
        """Commit the work of the tasks. `extra`: further offsets to commit with it (of an idle partition, or shifted by an operator), of
        partitions that have nothing to commit of their own.

        Return False if there was nothing to commit. Raises TransactionAbortedError or TaskMigratedError; nothing is committed then, and the
        tasks must be rolled back. Raises StateDirectoryError or TaskCorruptedError if a store cannot be written to.
        """
        self.flushing = True
        for task in tasks:
            task.flush_caches()
        self.flushing = False
        outputs = self._transport.outputs  # before changelog records and events, some of which are sent as outputs are
        offsets = [task.offsets_to_commit() for task in tasks]
        everything = {partition: at for of_task in offsets for partition, at in of_task.items()}
        if everything:
            self._transport.begin_commit(everything)
        for task in tasks:
            for changelog in task.pending_changelogs():
                self._transport.send_changelog(*changelog)
        if not everything and not extra and not self._transport.pending and not self._events:
            return False
        if extra:
            extra.write(self._transport.send_offsets)
        ends = self._to_broker(everything, [task.prepare for task in tasks])
        self.moved, self.written = bool(everything), outputs
        for task, of_task in zip(tasks, offsets, strict=True):
            task.committed(of_task, ends)
        return True

    def _to_broker(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]]
    ) -> Mapping[TopicPartition, NextOffset]:
        events = self._events.drain()
        try:
            for event in events:
                self._transport.send(self._topic, event.key, event.to_json(), event.at_ms, None, 0)
            return self._transport.commit(offsets, meanwhile)
        except StreamsError:
            self._events.put_back(events)
            raise
