"""Search for the input record behind a refused output whose origin is unknown.

A changelog record folds all updates that a commit made to its key, and a cache forwards at a commit the result of many records. When the
brokers refuse such an output, the worker rolls back and processes the same input again in smaller commits, each a part of the failed one,
until the failing commit holds one record. The production exception handler decides about that record. `CulpritSearch` keeps the decision
until the record is committed: when the task reaches the record again it skips it, or pauses before it, so that nothing of it stays in a
store. After that, commits grow again.

Rejected: remembering the last writer of each key (work for every record), and bisection by halves (twice as many rollbacks).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock.runtime.commit.refusals import Origin
from penstock.runtime.input.deserialization import RawMessage
from penstock.runtime.input.queues import Run
from penstock.runtime.model.error_details import ErrorDetails
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata

logger = logging.getLogger(__name__)

PARTS = 16
"""Number of parts in which a failed commit is repeated."""
LARGEST = 20_000
"""A commit that has grown to this many records is no longer limited."""


class Verdict(NamedTuple):
    """The handler's decision about an input record: skip it, or pause before it. `details`: those of the error, for a pause."""

    message: RawMessage
    error: Exception
    pauses: bool
    details: ErrorDetails | None = None


class CulpritSearch:
    """The search of one worker. Used by the worker's thread only."""

    def __init__(self) -> None:
        self.limit: int | None = None
        """Maximum number of records in a commit; None while no search is under way."""
        self.steps = 0
        """Steps of all searches so far. A rollback that is part of a search counts as progress."""
        self.record: Origin | None = None
        """The only record in the current commit, once commits hold one record."""
        self.separates_punctuators = False
        """True once a commit with outputs of punctuators was rolled back: from then on punctuators have commits of their own."""
        self._punctuated = False
        self._processed_records = 0
        self._suspected = 0
        self._narrowed = False
        self._verdicts: dict[TopicPartition, dict[int, Verdict]] = {}
        self._rolled_back: dict[TopicPartition, int] = {}
        """Position of each input when it was rolled back. Other tasks may commit before the input is processed again."""
        self._suspects: dict[TopicPartition, int] = {}
        """The same, for the commit that was narrowed last."""

    # -- the size of commits ---------------------------------------------------------------------------------------------------

    def remaining(self, most: int) -> int:
        """Return how many records may still be processed before the next commit, at most `most`."""
        return most if self.limit is None else min(most, self.limit - self._processed_records)

    def note_record(self, task: TaskId, run: Run) -> None:
        """Note the record of a run that is about to be processed, once commits hold one record."""
        if self.limit == 1:
            partition, offset = run.queue.partition, run.batch.offsets[run.start]
            headers = None if run.batch.headers is None else run.batch.headers[run.start]
            self.record = Origin(task, *partition, offset, headers, run.batch)

    def count_records(self, records: int) -> None:
        """Count records that were processed."""
        self._processed_records += records

    def note_punctuation(self) -> None:
        """Note that punctuators have run since the last commit."""
        self._punctuated = True

    @property
    def holds_punctuators_alone(self) -> bool:
        """True if punctuators alone did the work of the current commit."""
        return self._punctuated and not self._processed_records and (self.separates_punctuators or self.limit is not None)

    def narrow(self, most: int = LARGEST) -> bool:
        """Make commits smaller, because the current or failed commit holds a refused output of an unknown record. Return False if the
        commit holds at most one record, so that there is nothing to search."""
        if self.limit == 1 and not self._narrowed:
            return False
        if not self._narrowed:
            self._narrowed = True
            self._suspected = self._processed_records or min(self.limit or most, most)
            self.limit = max(1, self._suspected // PARTS)
            self.steps += 1
        return True

    @property
    def is_replayed(self) -> bool:
        """True if everything that was rolled back has been processed again and committed."""
        return not self._rolled_back

    def committed(self, inputs: Collection[TopicPartition] = ()) -> None:
        """Allow a larger commit after one that succeeded. `inputs`: the input partitions of the running tasks."""
        self._retain_inputs(lambda partition, _: partition in inputs)
        if self.limit is not None and self._processed_records:
            self._suspected -= self._processed_records
            if self._suspected <= 0 and not self._suspects:
                self.limit *= PARTS
            if self.limit > LARGEST:
                self.limit = None
        self._begin_commit()

    def rolled_back(self, reached: Mapping[TopicPartition, OffsetAndMetadata] = MappingProxyType({})) -> None:
        """Restart the commit after a rollback. Records since the last commit will be processed again; punctuators will not repeat their
        work but run again when they are due. `reached`: the offsets that the commit would have had."""
        self.separates_punctuators |= self._punctuated
        offsets = {partition: at.offset for partition, at in reached.items()}
        if self._narrowed:
            self._suspects = offsets
        for partition, offset in offsets.items():
            self._rolled_back[partition] = max(offset, self._rolled_back.get(partition, 0))
        self._begin_commit()

    def _begin_commit(self) -> None:
        self._processed_records, self.record, self._narrowed, self._punctuated = 0, None, False, False

    # -- verdicts --------------------------------------------------------------------------------------------------------------

    def add_verdict(self, verdict: Verdict) -> None:
        """Keep the handler's decision until the record is processed again."""
        message = verdict.message
        self._verdicts.setdefault(TopicPartition(message.topic(), message.partition()), {})[message.offset()] = verdict
        self._suspected = 0
        self._suspects.clear()
        self.steps += 1

    def verdict(self, partition: TopicPartition, offset: int) -> Verdict | None:
        return self._verdicts.get(partition, {}).get(offset)

    def next_verdict(self, partition: TopicPartition, offset: int) -> int | None:
        """Return the offset of the first record, at or after this one, with a verdict."""
        return min((known for known in self._verdicts.get(partition, ()) if known >= offset), default=None)

    def drop_verdicts(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Drop verdicts on records before these committed offsets."""
        for partition, verdicts in list(self._verdicts.items()):
            at = offsets.get(partition)
            if at is not None:
                self._retain_verdicts(partition, (offset for offset in verdicts if offset >= at.offset))
        self._retain_inputs(lambda partition, offset: partition not in offsets or offsets[partition].offset < offset)

    def _retain_inputs(self, still: Callable[[TopicPartition, int], bool]) -> None:
        """Drop inputs that were processed again, or will not be."""
        self._rolled_back = {partition: offset for partition, offset in self._rolled_back.items() if still(partition, offset)}
        self._suspects = {partition: offset for partition, offset in self._suspects.items() if still(partition, offset)}

    def drop_verdict(self, partition: TopicPartition, offset: int) -> None:
        """Drop the verdict on the record before which a task is paused: the handler decides again when the task resumes there."""
        self._retain_verdicts(partition, (known for known in self._verdicts.get(partition, ()) if known != offset))

    def _retain_verdicts(self, partition: TopicPartition, offsets: Iterable[int]) -> None:
        verdicts = self._verdicts.pop(partition, {})
        remaining = {offset: verdicts[offset] for offset in offsets}
        if remaining:
            self._verdicts[partition] = remaining
