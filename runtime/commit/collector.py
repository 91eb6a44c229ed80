"""Where the outputs of a worker's tasks go: straight to the transport, or held back for one record."""

from __future__ import annotations

from collections.abc import Callable

from runtime.commit.order import Transport
from runtime.commit.refusals import Output
from runtime.errors import BrokerUnavailableError, TransactionAbortedError
from runtime.record import Headers


class WorkerCollector:
    """Hands outputs to the transport. `send` is the transport's own bound method: nothing lies between a sink and the producer.

    With `hold`, outputs wait for `release()`, so that those of a record that fails can be dropped (rules.md, 18).
    """

    def __init__(self, transport: Transport, partitions: Callable[[str], int], *, hold: bool) -> None:
        self._transport = transport
        self._partitions = partitions
        self._counts: dict[str, int] = {}
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
