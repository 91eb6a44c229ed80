"""Rows of a table whose deletion the table's *source* topic has forgotten (rules.md, 13).

The changelog of a table holds what its task has processed. If the task was away from the end of a compacted source topic for longer than
`delete.retention.ms`, a deletion that was written meanwhile may have been cleaned away: the task never hears of it, and would keep the row
for ever. Nor does reading the topic once more tell. What tells is which keys the log still has: compaction keeps the last record of each,
so a row whose key is nowhere on the log was deleted.

So then the keys are read once, and the missed deletions are given to the task as if they stood on the log in front of the record that it
goes on with. The row, its changelog, and all that follows from the table hear of it, in the task's own transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.changelog.log_reader import ClientProperties, LogReader
from runtime.ids import NextOffset, Partition
from runtime.stores.base import EntryStore

POLL_SECONDS = 1.0
SHORTEST_MS = 5_000
"""Who was away for less than this is not asked about: a restart costs no question."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A record that the log has no more; read like any other (`RawMessage`)."""

    place: Partition
    at: int
    row: bytes
    time_ms: int

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.number

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
    store: EntryStore, partition: Partition, start: NextOffset, end: NextOffset, time_ms: int, properties: ClientProperties
) -> list[Deletion]:
    """Deletions of the rows in the store whose keys are not on the log up to `end`; they stand before `start`. Takes as long as it takes
    to read the partition."""
    present = _keys(partition, end, properties)
    to_bytes = store.key_to_bytes
    rows = (to_bytes(key) for key, _ in store.query_view().all())
    return [Deletion(partition, start - 1, row, time_ms) for row in rows if row is not None and row not in present]


def _keys(partition: Partition, end: NextOffset, properties: ClientProperties) -> set[bytes]:
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
