"""Transport of a stage's outputs: they are held until the commit, and go to a log then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from penstock.runtime.commit.collector import WorkerCollector
from penstock.runtime.commit.refusals import Output
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.model.record import Headers
from penstock.runtime.stores.base import ChangelogRecord


class OutputLog(Protocol):
    """Receiver of committed outputs, in place of the brokers."""

    @property
    def keeps_changelogs(self) -> bool:
        """False: changelog records are not sent, and changelogs have no offsets."""
        ...

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Append a committed output. `partition` None: by the key's hash."""

    def end(self, topic: str) -> int:
        """Return the next offset of a changelog."""
        ...


class HeldTransport:
    """Transport with transactions: outputs are on the log after the commit."""

    pending = True

    def __init__(self, log: OutputLog) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        """The group's committed offsets."""
        self._log = log
        self._outputs: list[Output] = []
        self._changelogs: set[TopicPartition] = set()

    @property
    def outputs(self) -> int:
        """Number of outputs since the last commit."""
        return len(self._outputs)

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Add an output to the transaction."""
        self._outputs.append(Output(topic, key, value, timestamp, headers, partition))

    def send_changelog(self, partition: TopicPartition, rows: list[ChangelogRecord], headers: Headers | None) -> None:
        """Add changelog records, unless the log keeps none; tombstones have no headers."""
        if not self._log.keeps_changelogs:
            return
        for key, value, timestamp in rows:
            self.send(partition.topic, key, value, timestamp, None if value is None else headers, partition.partition)
        self._changelogs.add(partition)

    def begin_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Do nothing: a stage has no brokers to wait for."""

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Sequence[Callable[[], None]] = ()
    ) -> Mapping[TopicPartition, NextOffset]:
        """Append the outputs to the log. Return the changelogs' next offsets."""
        for step in meanwhile:
            step()
        self.flush()
        self.committed.update(offsets)
        changelogs, self._changelogs = self._changelogs, set()
        return {partition: NextOffset(self._log.end(partition.topic)) for partition in changelogs}

    def flush(self) -> None:
        """Append the outputs to the log without a commit, as a program sees them that reads uncommitted records."""
        outputs, self._outputs = self._outputs, []
        send = self._log.send
        for output in outputs:
            send(*output)

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None: ...

    def poll(self) -> None: ...

    def watch(self) -> None: ...

    def abort(self) -> None:
        """Drop the outputs since the last commit."""
        self._outputs.clear()
        self._changelogs.clear()

    def start(self) -> None: ...

    def close(self) -> None: ...


class StageCollector(WorkerCollector):
    """Collector of outputs without brokers: every topic exists."""

    def exists(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> bool:
        """Return True."""
        return True
