"""What a standby or learner knows of the end of a changelog that goes on growing.

A store that is followed may be built upon for as long as it is known to have missed nothing (`staleness.py`). While it is read that has to
be seen as it happens: the topic may be made anew under the reader, and after an outage longer than `delete.retention.ms` the log goes on
without the deletions that were cleaned away meanwhile. So the brokers are asked for ids and ends now and then, and what they said is a
promise with a time: once the reader has passed the ends that were there at a moment, it has known all there was at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.changelog.staleness import Changelog, RestorableStore, mark_at_end
from runtime.ids import NextOffset

LOOK_SECONDS = 5.0
"""How often the brokers are asked."""
_SHORTEST_GAP_MS = 20_000
"""The time at the end is known to a few looks, so a shorter retention of deletions cannot be watched over."""
_MARK_MS = 60_000
"""How often an idle store is told that it still misses nothing."""


@dataclass(slots=True)
class Following:
    """One changelog that is followed, as last seen."""

    log: Changelog
    end: NextOffset
    """The last known end."""
    at_end_ms: int | None = None
    """Wall-clock time of the last moment at which nothing was missing; None before the end was first reached."""
    _promise: tuple[int, NextOffset] | None = None
    _marked_ms: int = 0

    def take_sight(self, seen: Changelog, asked_ms: int) -> None:
        """What the brokers said at `asked_ms`, of the same topic."""
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
