"""A worker as its client sees it: in a thread, or in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol, TypeVar

from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.model.metrics import MetricName
from penstock.runtime.model.states import State
from penstock.runtime.worker.queries import StoreParts, StoreQueryParameters
from penstock.runtime.worker.rpc import Call, Stop
from penstock.runtime.worker.state_queries import QueryResult, StateQueryRequest
from penstock.runtime.worker.view import WorkerMetadata

R = TypeVar("R")


class StreamWorker(Protocol):
    """A worker from its creation to its end; its successor has the same number. Safe to use from any thread."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str:
        """The name, as Kafka Streams names its threads: `<instance>-StreamThread-<number>`."""
        ...

    @property
    def state(self) -> State: ...

    @property
    def incarnation(self) -> int | None:
        """The incarnation under which the application knows it, or will; None before the first."""
        ...

    @property
    def idle_ms(self) -> int:
        """Time in ms since the loop's last sign of life, for a worker that only the client's own process can stop; 0 for others."""
        ...

    @property
    def may_be_asked(self) -> bool:
        """False where the caller is in a listener that this worker waits for, and so would wait for itself."""
        ...

    def start(self) -> None:
        """Start the worker. Raises StreamsError if that is not possible."""
        ...

    def request_stop(self, stop: Stop) -> None:
        """Request a stop. Returns at once."""
        ...

    def call(self, call: Call, *arguments: object) -> Future[object]:
        """Execute a call between two batches; at once, if this is the worker's own thread. The future fails with StreamsError if the worker
        stops first."""
        ...

    def publish_state(self, old: State, new: State) -> None:
        """Note a change of the client's state, to be published by this worker."""
        ...

    def metadata(self) -> WorkerMetadata:
        """Return the worker and its tasks, as of the last commit or change."""
        ...

    def find(self, parameters: StoreQueryParameters) -> Callable[[], StoreParts]:
        """Start to look for the open parts of a store; the returned function waits for them."""
        ...

    def query(self, request: StateQueryRequest[R]) -> Callable[[], dict[int | None, QueryResult[R]]]:
        """Start to query the open parts of a store; the returned function waits for the answers by partition (None: a global store). It
        raises InvalidStateStoreError if the worker does not answer."""
        ...

    def fleet(self) -> Fleet | None:
        """Return the worker's knowledge of the whole application; None before the first record."""
        ...

    def metrics(self) -> Mapping[MetricName, float]:
        """Return the metrics of the worker."""
        ...

    def join(self, timeout_s: float | None) -> None:
        """Wait until its thread or process has ended, and the supervisor was notified."""
        ...


class WorkerListener(Protocol):
    """Receives the notifications of workers: the supervisor."""

    def changed(self) -> None:
        """A worker's state has changed."""
        ...

    def close_requested(self, timeout_ms: int | None) -> None:
        """An operator's command asks to close the instance, within a number of ms (None: as `close()`)."""
        ...

    def listener_failed(self, error: BaseException) -> None:
        """A listener of the client, which a worker's process has called, has failed. The worker itself runs on."""
        ...

    def ended(self, worker: StreamWorker, error: BaseException | None, *, died: bool) -> None:
        """A worker has ended. `error`: its failure; `died`: its process ended without a last message."""
        ...
