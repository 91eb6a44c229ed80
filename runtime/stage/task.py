"""Active task that runs without a worker: the engine's own task and commit, with outputs that go to a log.

The records handed over since the last commit are kept. So a rollback (a handler returned PAUSE, or an output was refused) processes them
again, as a worker does that reads them from the brokers again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.runtime.input.deserialization import RawMessage
from penstock.runtime.model.errors import ProductionError, TransactionAbortedError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata, encode_partition_time
from penstock.runtime.operators.context import GlobalStores
from penstock.runtime.snapshots.local import write_snapshot
from penstock.runtime.stage.environment import Environment
from penstock.runtime.stores.base import ChangelogRecord
from penstock.runtime.stores.rocks_loading import place
from penstock.runtime.tasks.active import ActiveTask, ReplayBeforePauseError
from penstock.runtime.topology.nodes import SourceNode, SubTopology


@dataclass(frozen=True, slots=True)
class TaskStart:
    """State with which a task begins: the records that fill stores kept in memory, by store; the next offset and the time of each input.
    Files of persistent stores are in `OfflineTask.store_folder` by then."""

    offsets: Mapping[TopicPartition, NextOffset]
    times: Mapping[TopicPartition, int] = field(default_factory=dict)
    in_memory: Mapping[str, Iterable[list[ChangelogRecord]]] = field(default_factory=dict)


class OfflineTask(ActiveTask):
    """A task of a sub-topology. Records are handed over with `give` and processed by `step`."""

    def __init__(
        self, part: SubTopology, partition: int, sources: Mapping[str, SourceNode], around: Environment, global_stores: GlobalStores
    ) -> None:
        self._around = around
        self._given: dict[TopicPartition, list[Sequence[RawMessage]]] = {}
        """Records handed over that are not all committed yet."""
        self._sources = dict(sources)
        self.uncommitted_records = 0
        """Records processed since the last commit."""
        self.committed_records = 0
        """Records processed and committed, without those that were skipped."""
        self._begins_with: TaskStart | None = None
        super().__init__(around.plan(part, partition, self._sources, global_stores), around.incidents)

    def store_folder(self, store: str) -> Path:
        """Return the folder of a persistent store's files."""
        return self.plan.directory / "rocksdb" / store

    def begin_with(self, start: TaskStart) -> None:
        """Set the state with which the task begins, before `start`."""
        self._begins_with = start
        for partition, offset in start.offsets.items():
            metadata = encode_partition_time(start.times.get(partition, -1))
            self._around.transport.committed[partition] = OffsetAndMetadata(offset, metadata)

    def start(self) -> None:
        """Open the stores, with the state of `begin_with`; initialise the processors, and commit what they have done."""
        start = self._begins_with
        for name, changelog in self.plan.changelogs.items() if start is not None else ():
            if (folder := self.store_folder(name)).is_dir():
                place(folder, {changelog: NextOffset(0)}, {})  # files without an offset would count as incomplete, and be emptied
        self.open()
        for name, rows in start.in_memory.items() if start is not None else ():
            for records in rows:
                self.stores[name].restore(records, {})
        self.init()

    def init(self) -> None:
        """Initialise the processors of a task whose stores are open, and commit what they have done."""
        self._begin()
        self.commit()

    def _begin(self) -> None:
        self.begin(*self._positions())

    def _positions(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, NextOffset]]:
        """Return the committed offsets of the inputs, and where each begins."""
        committed = {partition: at for partition, at in self._around.transport.committed.items() if partition in self.inputs}
        starts = {partition: NextOffset(0) for partition in self.inputs}
        return committed, starts | {partition: NextOffset(at.offset) for partition, at in committed.items()}

    def give(self, partition: TopicPartition, messages: Sequence[RawMessage]) -> None:
        """Hand over consecutive records of an input partition."""
        self._given.setdefault(partition, []).append(messages)
        self._enqueue_from_start(partition, messages)

    def _enqueue_given(self) -> None:
        for partition, runs in self._given.items():
            for messages in runs:
                self._enqueue_from_start(partition, messages)

    def _enqueue_from_start(self, partition: TopicPartition, messages: Sequence[RawMessage]) -> None:
        """Enqueue the records that are not before the queue's position."""
        assert self.queues is not None
        position: int = self.queues[partition].next_offset
        first = bisect_left(messages, position, key=_offset)
        if first < len(messages):
            self.enqueue(partition, messages[first:] if first else messages)

    def step(self, limit: int, *, commits: bool = True) -> int:
        """Process about `limit` records, and commit if `commits` or if it is needed. Return their number. If an output is refused or the
        task is to be paused before a record, roll back and return 0: the next steps process the records again, as a worker does.

        Raises DeserializationError, ProcessingError and ProductionError where the handler returns FAIL.
        """
        search = self._around.incidents.search
        steps = search.steps
        try:
            done = self.process(search.remaining(limit), self.plan.clock.monotonic_ms())
            search.count_records(done)
            self.uncommitted_records += done
            if commits or search.limit is not None or self.pause_wanted is not None:
                self.commit()
            if self._context.held:
                self.punctuate(self.plan.clock.wall_ms())
        except TransactionAbortedError as error:
            if search.steps == steps and not isinstance(error, ReplayBeforePauseError):
                raise ProductionError(str(error)) from error
            reached = self.offsets_to_commit()
            self._around.transport.abort()
            search.rolled_back(reached)
            self.rollback()
            self.uncommitted_records = 0
            self._begin()
            self._enqueue_given()
            return 0
        return done

    def punctuate(self, now_ms: int) -> int:
        """Run the punctuators that are due, then commit. Raises ProductionError if an output of theirs is refused: it has no record at
        which the task could pause."""
        ran = super().punctuate(now_ms)
        if ran:
            try:
                self.commit()
            except TransactionAbortedError as error:
                raise ProductionError(str(error)) from error
        return ran

    def commit(self) -> None:
        """Commit this task, whether it has processed a record or a test has written to its stores, and pause it if its handler said so."""
        self._dirty = True
        self._around.events.drain()  # nothing reads them
        self._around.commit([self])
        self._around.incidents.search.committed(self.inputs)
        self.committed_records += self.uncommitted_records
        self.uncommitted_records = 0
        self._drop_committed()
        if self.pause_wanted is not None:
            self.pause(self.pause_wanted)

    def _drop_committed(self) -> None:
        positions = self.committed_positions()
        for partition, runs in self._given.items():
            while runs and _offset(runs[0][-1]) < positions[partition]:
                del runs[0]

    def pass_paused(self) -> None:
        """Continue after the record before which the task is PAUSED, which counts as processed."""
        assert self.paused_at is not None
        point, committed = self.paused_at, self._around.transport.committed
        metadata = committed[point.partition].metadata
        committed[point.partition] = OffsetAndMetadata(point.offset + 1, metadata)
        self.resume(*self._positions())
        self._enqueue_given()

    def write_seed(
        self, folder: Path, snapshot: str, at_ms: int, inputs: Mapping[TopicPartition, NextOffset], *, all_stores: bool = False
    ) -> Path:
        """As `write_snapshot`, for a seed: `inputs` are the next offsets on the brokers' topics. Stores that a source topic restores are
        left out, unless `all_stores`."""
        return self.write_snapshot(folder, snapshot, at_ms, inputs, () if all_stores else self.plan.subtopology.source_changelogs)

    def write_snapshot(
        self,
        folder: Path,
        snapshot: str,
        at_ms: int,
        inputs: Mapping[TopicPartition, NextOffset] | None = None,
        left_out: Collection[str] = (),
    ) -> Path:
        """Write the stores, without `left_out`, and times as a part of a snapshot; return its folder. `inputs`: the next offsets, by
        default those committed."""
        return write_snapshot(
            folder,
            snapshot,
            application=self._around.config.application_id,
            task=self.id,
            stores={store: None for name, store in self.stores.items() if name not in left_out},
            input_offsets=self.committed_positions() if inputs is None else inputs,
            stream_time=self.stream_time,
            at_ms=at_ms,
            partition_times=self.committed_times(),
        )

    def close(self, *, clean: bool) -> None:
        """Close processors and stores, with the outputs of their last commit."""
        super().close(clean=clean)
        self._around.transport.flush()

    def _save(self) -> None:
        """Write nothing: the state is in a folder that is removed."""


def _offset(message: RawMessage) -> int:
    return message.offset()
