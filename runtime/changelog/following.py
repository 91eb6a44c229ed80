"""Position of a standby or learner on a changelog that keeps growing.

A followed store is usable as long as it has missed nothing (`staleness.py`), which must be noticed while it is read: the topic may be
deleted and created again under the reader, and after an outage longer than `delete.retention.ms` the log lacks tombstones that were removed
meanwhile. So the brokers are asked periodically for topic ids and ends, with the time of the question: once the reader has passed these
ends, it has seen everything that was there at that time.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.runtime.changelog.staleness import Changelog, RestorableStore, mark_at_end
from penstock.runtime.model.ids import NextOffset

LOOK_SECONDS = 5.0
"""Interval of the questions to the brokers."""
_SHORTEST_GAP_MS = 20_000
"""The end is polled every 5 s, so a delete.retention.ms below 20 s cannot be enforced."""
_MARK_MS = 60_000
"""Interval at which an idle store's mark, that it misses nothing, is renewed."""


@dataclass(slots=True)
class Following:
    """One followed changelog, as last seen."""

    log: Changelog
    end: NextOffset
    """The last known end."""
    at_end_ms: int | None = None
    """Wall-clock time at which nothing was missing last; None before the end was first reached."""
    _promise: tuple[int, NextOffset] | None = None
    _marked_ms: int = 0

    def take_sight(self, seen: Changelog, asked_ms: int) -> None:
        """Take the brokers' answer to a question of `asked_ms`, about the same topic."""
        self.end = max(self.end, seen.end)
        if self._promise is None:
            self._promise = (asked_ms, seen.end)

    def gap(self, now_ms: int) -> str | None:
        """Why reading on is not safe although the offset is there, or None: as `stale_reason`, for one that lives. While it still
        catches up with what was there when it began, it counts from its beginning."""
        retention_ms = self.log.delete_retention_ms
        if retention_ms is None or self.at_end_ms is None or now_ms - self.at_end_ms <= max(retention_ms, _SHORTEST_GAP_MS):
            return None
        return (
            f"it was last at the end of {self.log.partition} {now_ms - self.at_end_ms} ms ago, longer than the topic's "
            f"delete.retention.ms of {retention_ms}"
        )

    def settle(self, store: RestorableStore, position: NextOffset) -> bool:
        """Keeps a promise that has come true, in the store too; call it when all up to `position` is written, or is with the next write.
        True if the store's mark is old enough to be written although there is nothing else to write."""
        if self._promise is None or position < self._promise[1]:
            return False
        self.at_end_ms, self._promise = self._promise[0], None
        mark_at_end(store, self.log.topic_id, self.at_end_ms)
        return self.at_end_ms - self._marked_ms >= _MARK_MS

    def marked(self) -> None:
        """The mark was written."""
        self._marked_ms = self.at_end_ms or 0
