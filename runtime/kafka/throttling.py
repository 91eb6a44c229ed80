"""Delays that brokers impose on a worker's clients because a quota is used up (KIP-13, KIP-124), as its clients report them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Lock

from confluent_kafka import ThrottleEvent

from penstock.runtime.kafka.connection import Connection
from penstock.runtime.model.clock import Clock

logger = logging.getLogger(__name__)

RECENT_MS = 60_000
SLOW_MS = 100
"""Least delay of a request that counts."""


def quotas_shown(connection: Connection) -> str:
    """Return a sentence with the command that shows quotas."""
    return f"`{connection.tool('kafka-configs')} --describe --entity-type users --entity-type clients` shows the quotas"


def throttled(instance: str, delay_ms: int) -> str:
    """Return that a quota delays an instance's clients."""
    return f"{instance} is throttled: a quota of its clients is used up, and brokers delay each request by up to {delay_ms / 1000:.1f} s"


class Throttling:
    """The delays of the last minute. Safe to use from several threads: librdkafka's clients report on those that use them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._delays: deque[tuple[int, int]] = deque()
        """Time on the monotonic clock, and delay; only delays that are longer than each later one."""
        self._logged_ms: int | None = None

    @property
    def properties(self) -> dict[str, Callable[[ThrottleEvent], None]]:
        """Properties of a client whose delays count."""
        return {"throttle_cb": lambda event: self.add(round(event.throttle_time * 1000))}

    def add(self, delay_ms: int) -> None:
        """Note the delay of one request; log it if none was logged for a minute."""
        if delay_ms < SLOW_MS:
            return
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            while self._delays and self._delays[-1][1] <= delay_ms:
                self._delays.pop()
            self._delays.append((now_ms, delay_ms))
            logged = self._logged_ms is not None and now_ms - self._logged_ms < RECENT_MS
            self._logged_ms = self._logged_ms if logged else now_ms
        if not logged:
            logger.warning(
                "a quota is used up: the brokers delay this instance's clients, now by %.1f s per request, so its lag may grow. "
                "kafka-configs shows the quotas of users and clients",
                delay_ms / 1000,
            )

    def recent_ms(self) -> int:
        """Return the longest delay of a request in the last minute, in ms; 0 if there was none of `SLOW_MS`."""
        before_ms = self._clock.monotonic_ms() - RECENT_MS
        with self._lock:
            while self._delays and self._delays[0][0] < before_ms:
                self._delays.popleft()
            return self._delays[0][1] if self._delays else 0

    def delayed_within(self, span_ms: int) -> bool:
        """Return True if a request was delayed within this time, of at most a minute."""
        with self._lock:
            return bool(self._delays) and self._clock.monotonic_ms() - self._delays[-1][0] < span_ms
