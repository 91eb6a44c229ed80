"""One store in restore: its task, its position, and the records not written yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.runtime.changelog.folding import FoldedBatch
from penstock.runtime.changelog.following import Following
from penstock.runtime.changelog.source_rows import SourceBatch
from penstock.runtime.changelog.staleness import Changelog, RestorableStore
from penstock.runtime.model.ids import NextOffset, TaskId

if TYPE_CHECKING:
    from penstock.runtime.kafka.messages import Message


@dataclass(slots=True)
class Reading:
    """One store in restore to the end of its changelog, or, if `following`, to its moving end."""

    task: TaskId
    store: RestorableStore
    log: Changelog
    position: NextOffset
    following: Following | None
    records: int = 0
    last: int = -1
    """Offset of the last record read."""
    batch: FoldedBatch = field(init=False)

    def __post_init__(self) -> None:
        by_key, headers, source = self.store.folded_by_key, self.store.keeps_headers, self.log.source
        self.batch = FoldedBatch(by_key, headers) if source is None else SourceBatch(by_key, headers, source())

    @property
    def has_all(self) -> bool:
        """True for a follower of a source topic that has everything committed, and waits for the next commit."""
        return self.log.source is not None and self.following is not None and self.position >= self.following.end

    @property
    def end(self) -> NextOffset:
        """End of the restore; for a follower, the last known end."""
        return self.log.end if self.following is None else max(self.following.end, self.position)

    def take(self, messages: Sequence[Message], now_ms: int) -> None:
        """Add a run of records."""
        self.batch.add(messages, now_ms)
        self.records += len(messages)
        self.last = offset_of(messages[-1])
        self.position = NextOffset(self.last + 1)


def offset_of(message: Message) -> int:
    """Return the offset of a record."""
    offset = message.offset()
    assert offset is not None
    return offset
