"""Where the outputs of a worker's tasks go: straight to the transport, or held back for one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runtime.clock import Clock
from runtime.commit.order import Transport
from runtime.commit.refusals import Output, Refusals
from runtime.errors import BrokerUnavailableError, MissingSinkTopicError, SerializationError, TransactionAbortedError
from runtime.record import Headers

ASK_EVERY_MS = 1_000
"""How often the brokers are asked about a topic that did not exist."""


@dataclass(slots=True)
class _Missing:
    """A topic that does not exist: since when, and when the brokers were last asked (ms of the monotonic clock)."""

    since_ms: int
    asked_ms: int


class WorkerCollector:
    """Hands outputs to the transport. `send` is the transport's own bound method: nothing lies between a sink and the producer.

    With `hold`, outputs wait for `release()`, so that those of a record that fails can be dropped (rules.md, 18).
    """

    def __init__(
        self, transport: Transport, partitions: Callable[[str], int], refusals: Refusals, clock: Clock, *, hold: bool, patience_ms: int
    ) -> None:
        """`patience_ms`: how long an output topic that does not exist may still be just being made."""
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
        """Sends what is held."""
        held, self._held = self._held, []
        for output in held:
            self._transport.send(*output)

    def drop(self) -> None:
        """Forgets what is held."""
        self._held.clear()

    def exists(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> bool:
        """Asked about a topic that the user's code has chosen, before the first record for it. False: the record is left out.

        One that does not exist may be just being made: for so long everything goes back to the last commit, and is tried again after a
        pause. Then the production exception handler is asked. Raises TransactionAbortedError, ProductionError.
        """
        if topic in self._existing:
            return True
        now_ms = self._clock.monotonic_ms()
        if not self._is_missing(topic, now_ms):
            self._existing.add(topic)
            self._missing.pop(topic, None)
            return True
        output = Output(topic, key, value, timestamp, headers, None)
        text = f"{self._refusals.where(output)}: there is no such topic, and the brokers make none (auto.create.topics.enable=false)"
        waited_ms = now_ms - self._missing[topic].since_ms
        if waited_ms < self._patience_ms:
            raise TransactionAbortedError(f"{text}; waiting for it for {(self._patience_ms - waited_ms) / 1000:.0f} s more")
        if self._refusals.refused(output, MissingSinkTopicError(text)):
            raise TransactionAbortedError(f"{text}; trying again")
        return False

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        """The production exception handler is asked (KIP-399). Raises ProductionError."""
        self._refusals.unwritable(topic, key, value, timestamp, headers, error)

    def _is_missing(self, topic: str, now_ms: int) -> bool:
        missing = self._missing.get(topic)
        if missing is not None and now_ms - missing.asked_ms < ASK_EVERY_MS:
            return True
        try:
            is_missing = self._refusals.is_missing(topic)
        except BrokerUnavailableError as error:
            raise TransactionAbortedError(f"whether topic {topic} exists cannot be asked for: {error}") from error
        if is_missing:
            self._missing[topic] = _Missing(now_ms if missing is None else missing.since_ms, now_ms)
        return is_missing

    def partitions(self, topic: str) -> int:
        """Number of partitions of an output topic; asked once, in the middle of a record: so a broker that does not answer leaves only
        the way back to the last commit. Raises TransactionAbortedError, MissingSourceTopicError."""
        count = self._counts.get(topic)
        if count is None:
            try:
                count = self._counts[topic] = self._partitions(topic)
            except BrokerUnavailableError as error:
                raise TransactionAbortedError(f"the number of partitions of {topic} cannot be asked for: {error}") from error
        return count
