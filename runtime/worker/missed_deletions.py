"""Rows of a table whose deletion records are no longer on the table's *source* topic (rules.md, 13).

The changelog of a table contains what its task has processed. If the task was away from the end of a compacted source topic for longer than
`delete.retention.ms`, a deletion written in the meantime may have been cleaned up: the task never sees it, and would keep the row forever.
Reading the topic again does not help either. But compaction keeps the last record of each key, so a row whose key is nowhere on the log was
deleted.

In that case the keys on the log are read once, and the missed deletions are given to the task as if they stood on the log before its next
record. The row, its changelog and everything downstream of the table are updated, in the task's own transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.runtime.kafka.clients import ClientProperties
from penstock.runtime.kafka.log_reader import LogReader
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores.base import EntryStore

POLL_SECONDS = 1.0
SHORTEST_MS = 5_000
"""Skip this check after shorter absences, so that a restart costs no request."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion that is no longer on the log; read like any other record (`RawMessage`)."""

    place: TopicPartition
    at: int
    row: bytes
    time_ms: int

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.partition

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.row

    def value(self) -> bytes | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (1, self.time_ms)

    def headers(self) -> None:
        return None


def missed_deletions(
    store: EntryStore, partition: TopicPartition, start: NextOffset, end: NextOffset, time_ms: int, properties: ClientProperties
) -> list[Deletion]:
    """Return deletions of the rows in the store whose keys are not on the log up to `end`, to be placed before `start`. Reads the whole
    partition."""
    present = _keys(partition, end, properties)
    to_bytes = store.key_to_bytes
    rows = (to_bytes(key) for key, _ in store.query_view().all())
    return [Deletion(partition, start - 1, row, time_ms) for row in rows if row is not None and row not in present]


def _keys(partition: TopicPartition, end: NextOffset, properties: ClientProperties) -> set[bytes]:
    found: set[bytes] = set()
    reader = LogReader(properties, "missed deletions")
    try:
        reader.assign(partition, None)
        position = 0
        while position < end:
            poll = reader.poll(POLL_SECONDS)
            for message in poll.runs.get(partition, ()):
                key = message.key()
                if isinstance(key, bytes):
                    found.add(key)
                position = (message.offset() or 0) + 1
            position = max(position, poll.ends.get(partition, position))
    finally:
        reader.close()
    return found
