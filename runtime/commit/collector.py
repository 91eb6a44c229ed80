"""Collector of a worker's outputs: passes them to the transport, or holds them for one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.commit.order import Transport
from penstock.runtime.commit.refusals import Output, Refusals
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import BrokerUnavailableError, MissingSinkTopicError, SerializationError, TransactionAbortedError
from penstock.runtime.model.record import Headers

ASK_EVERY_MS = 1_000
"""Interval at which the brokers are asked again about a topic that did not exist."""


@dataclass(slots=True)
class _Missing:
    """A missing topic: since when, and when the brokers were last asked (ms, monotonic)."""

    since_ms: int
    asked_ms: int


class WorkerCollector:
    """Passes outputs to the transport. `send` is the transport's own bound method, so there is no call between a sink and the producer.

    With `hold`, outputs wait for `release()`, so that those of a failed record can be dropped (rules.md, 18).
    """

    def __init__(
        self, transport: Transport, partitions: Callable[[str], int], refusals: Refusals, clock: Clock, *, hold: bool, patience_ms: int
    ) -> None:
        """`patience_ms`: how long a missing output topic is taken for one that is just being created."""
        self._transport = transport
        self._partitions = partitions
        self._refusals = refusals
        self._clock = clock
        self._patience_ms = patience_ms
        self._counts: dict[str, int] = {}
        self._existing: set[str] = set()
        self._missing: dict[str, _Missing] = {}
        self._held: list[Output] = []
        self.send: Callable[[str, bytes | None, bytes | None, int, Headers | None, int | None], None] = (
            self._hold if hold else transport.send
        )

    def _hold(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        self._held.append(Output(topic, key, value, timestamp, headers, partition))

    def release(self) -> None:
        """Send the outputs that are held."""
        held, self._held = self._held, []
        for output in held:
            self._transport.send(*output)

    def drop(self) -> None:
        """Drop the outputs that are held."""
        self._held.clear()

    def exists(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> bool:
        """Check a topic that the user's code has chosen, before the first record for it. Return False if the record is to be left out.

        A missing topic may be just being created: until `patience_ms` have passed, the worker rolls back to the last commit and tries again
        after a pause. Then the production exception handler decides. Raises TransactionAbortedError, ProductionError.
        """
        if topic in self._existing:
            return True
        now_ms = self._clock.monotonic_ms()
        if not self._is_missing(topic, now_ms):
            self._existing.add(topic)
            self._missing.pop(topic, None)
            return True
        output = Output(topic, key, value, timestamp, headers, None)
        text = (
            f"{self._refusals.where(output)}: there is no such topic, and the brokers make none for this client "
            "(auto.create.topics.enable, or its rights)"
        )
        waited_ms = now_ms - self._missing[topic].since_ms
        if waited_ms < self._patience_ms:
            raise TransactionAbortedError(f"{text}; waiting for it for {(self._patience_ms - waited_ms) / 1000:.0f} s more")
        if self._refusals.refused(output, MissingSinkTopicError(text)):
            raise TransactionAbortedError(f"{text}; trying again")
        return False

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        """Ask the production exception handler (KIP-399). Raises ProductionError."""
        self._refusals.unwritable(topic, key, value, timestamp, headers, error)

    def _is_missing(self, topic: str, now_ms: int) -> bool:
        missing = self._missing.get(topic)
        if missing is not None and now_ms - missing.asked_ms < ASK_EVERY_MS:
            return True
        try:
            is_missing = self._refusals.is_missing(topic)
        except BrokerUnavailableError as error:
            raise TransactionAbortedError(f"cannot find out whether topic {topic} exists: {error}") from error
        if is_missing:
            self._missing[topic] = _Missing(now_ms if missing is None else missing.since_ms, now_ms)
        return is_missing

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of an output topic. The brokers are asked once, in the middle of a record; if they do not answer,
        only a rollback to the last commit remains. Raises TransactionAbortedError, MissingSourceTopicError."""
        count = self._counts.get(topic)
        if count is None:
            try:
                count = self._counts[topic] = self._partitions(topic)
            except BrokerUnavailableError as error:
                raise TransactionAbortedError(f"cannot read the number of partitions of topic {topic}: {error}") from error
        return count
