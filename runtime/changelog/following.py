"""Position of a standby or learner on a changelog that keeps growing.

A followed store is usable as long as it has missed nothing (`staleness.py`), which must be noticed while it is read: the topic may be
deleted and created again under the reader, and after an outage longer than `delete.retention.ms` the log lacks tombstones that were removed
meanwhile. So topic ids and ends are requested periodically, with the time of the request: once the reader has passed these ends, it has
read everything that existed at that time."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.runtime.changelog.staleness import Changelog, mark_at_end
from penstock.runtime.model.ids import NextOffset
from penstock.runtime.stores.base import EngineStore

POLL_SECONDS = 5.0
"""Interval of the requests to the brokers."""
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

    def take_answer(self, seen: Changelog, asked_ms: int) -> None:
        """Take the brokers' answer to the request of `asked_ms`, for the same topic."""
        self.end = max(self.end, seen.end)
        if self._promise is None:
            self._promise = (asked_ms, seen.end)

    def gap(self, now_ms: int) -> str | None:
        """Return a message why reading cannot continue although the offset exists, else None: `stale_reason` for an open store. None
        until the store has first caught up."""
        retention_ms = self.log.delete_retention_ms
        if retention_ms is None or self.at_end_ms is None or now_ms - self.at_end_ms <= max(retention_ms, _SHORTEST_GAP_MS):
            return None
        return (
            f"it was last at the end of {self.log.partition} {now_ms - self.at_end_ms} ms ago, longer than the topic's "
            f"delete.retention.ms of {retention_ms}"
        )

    def settle(self, store: EngineStore, position: NextOffset) -> bool:
        """Record that the store is up to date, once `position` has reached the end of the last answer. Call it when everything up to
        `position` is written, or part of the next write. Return True if the stored time is old enough to be written on its own."""
        if self._promise is None or position < self._promise[1]:
            return False
        self.at_end_ms, self._promise = self._promise[0], None
        mark_at_end(store, self.log.topic_id, self.at_end_ms)
        return self.at_end_ms - self._marked_ms >= _MARK_MS

    def marked(self) -> None:
        """The mark was written."""
        self._marked_ms = self.at_end_ms or 0
