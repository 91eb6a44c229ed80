"""The number of input records that a worker processes per span of time, while a quota delays its outputs, or slow user code behind a cache
its commits.

A transaction must end within `transaction.timeout.ms`, or the brokers abort it. What a worker processes within a commit interval may be
more than they take in that time: when a producer quota is used up, a broker reads nothing from the worker's connections until the average
of the last seconds is within the quota (KIP-13), not even the commit. Each attempt would process as much again, and fail again. So a commit
that takes long limits the records of the next ones, and quick ones raise the limit again until there is none. While brokers report delays,
it is raised only when their average is that of the present limit: after a quiet time they take several times the quota for a moment, and
then nothing for seconds. (Kafka Streams has no limit, and repeats such a transaction.) A commit that takes long for another reason, such as
a partition without a leader, limits nothing: the worker has to catch up afterwards.

Without a cache, user code is called while records are processed, which is measured (`ActiveTask`). What is behind a cache is called for all
cached updates when they are flushed, within the commit: if that takes long, fewer records are processed before the next one.
"""

from __future__ import annotations

import logging
import math

from penstock.runtime.kafka.throttling import Throttling
from penstock.runtime.model.clock import Clock

logger = logging.getLogger(__name__)

SPAN_MS = 100
"""Time for which the limit is. A transaction whose records are used up is committed after it, if the commit interval is longer."""
_LONG, _SHORT, _CHANGE = 1 / 4, 1 / 16, 1 / 2
"""Parts of the transaction timeout: a commit that takes longer than the first lowers the limit; while commits take longer than the second,
it is not raised; the least time between two changes."""
_WINDOW_MS = 11_000
"""Time over which brokers take the average, by default: `quota.window.num` × `quota.window.size.seconds`."""
_NO_LIMIT = 20_000
"""More records than a worker processes in the span."""


class Pace:
    """Used by the worker's thread only."""

    def __init__(self, timeout_ms: float, throttling: Throttling, clock: Clock) -> None:
        """`timeout_ms`: `transaction.timeout.ms`; infinite without transactions."""
        self._timeout_ms = timeout_ms
        self._throttling = throttling
        self._clock = clock
        self._limit: float = math.inf
        self._records = 0
        self._changed_ms = 0
        self._quick_since_ms: int | None = None
        """Time of the first commit that used up the limit and was quick, if none was slow since."""

    @property
    def room(self) -> float:
        """Number of records that may be processed before the next commit."""
        return max(0, self._limit - self._records)

    def processed(self, records: int) -> None:
        self._records += records

    def committed(self, took_ms: float) -> None:
        """Note a commit, and how long it took."""
        records, self._records = self._records, 0
        if took_ms > self._timeout_ms * _LONG:
            self._lower(records, took_ms)
        elif took_ms > self._timeout_ms * _SHORT:
            self._quick_since_ms = None
        elif records >= self._limit:
            self._quick()

    def failed(self, late_ms: float, *, in_flush: bool = False) -> None:
        """Note that the open transaction is aborted, `late_ms` after its commit was due. `in_flush`: while the caches were flushed."""
        records, self._records, self._quick_since_ms = self._records, 0, None
        if in_flush and late_ms > self._timeout_ms * _LONG:
            self._flush_less(records // 2, late_ms)
        elif late_ms > self._timeout_ms * _LONG:
            self._lower(records // 2, late_ms)

    def _flush_less(self, records: int, flush_ms: float) -> None:
        if not records:
            return
        self._limit, self._quick_since_ms = max(1, int(min(records, self._limit) * SPAN_MS / flush_ms)), None
        self._changed_ms = self._clock.monotonic_ms()
        logger.warning(
            "the flush of the caches, with the user code behind them, took %.1f s (transaction.timeout.ms is %.1f s): less is processed "
            "before the next one, first %d records per %d ms",
            *(flush_ms / 1000, self._timeout_ms / 1000, self._limit, SPAN_MS),
        )

    def _lower(self, records: int, late_ms: float) -> None:
        if not records or not self._throttling.recent_ms():
            return
        now_ms, self._quick_since_ms = self._clock.monotonic_ms(), None
        if self._limit == math.inf:
            # the brokers took some of them at once: what the quota allows for the time before
            self._limit = max(1, int(records * SPAN_MS / (late_ms + _WINDOW_MS)))
            logger.warning(
                "a quota has delayed a commit by %.1f s (transaction.timeout.ms is %.1f s): while it does, less is processed, first %d "
                "records per %d ms",
                *(late_ms / 1000, self._timeout_ms / 1000, self._limit, SPAN_MS),
            )
        elif now_ms - self._changed_ms >= self._timeout_ms * _CHANGE:
            self._limit = max(1, self._limit // 2)
        self._changed_ms = now_ms

    def _quick(self) -> None:
        """Raise the limit if commits have been quick with it for long enough."""
        now_ms = self._clock.monotonic_ms()
        if self._quick_since_ms is None:
            self._quick_since_ms = self._changed_ms = now_ms
        wait_ms = _WINDOW_MS if self._throttling.delayed_within(_WINDOW_MS) else self._timeout_ms * _CHANGE
        if now_ms - self._quick_since_ms < _WINDOW_MS or now_ms - self._changed_ms < wait_ms:
            return
        self._limit *= 2
        self._changed_ms = now_ms
        if self._limit > _NO_LIMIT:
            self._limit = math.inf
            logger.info("commits are in time again: what is processed is not limited any more")
