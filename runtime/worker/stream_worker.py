"""What a client knows of its workers: the same of one that runs in a thread and of one that is a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

from runtime.coordination.fleet import Fleet
from runtime.metrics import MetricName
from runtime.states import State
from runtime.worker.calls import Call, Stop
from runtime.worker.found import Found
from runtime.worker.queries import StoreQueryParameters
from runtime.worker.view import WorkerMetadata


class StreamWorker(Protocol):
    """A worker from when it is made until it has ended; the next of its number is another. Safe to use from any thread."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str:
        """As Kafka Streams names its threads: `<instance>-StreamThread-<number>`."""
        ...

    @property
    def state(self) -> State: ...

    @property
    def incarnation(self) -> int | None:
        """Under which it is, or will be, known to the application; None before it has begun one."""
        ...

    @property
    def idle_ms(self) -> int:
        """How long its loop has shown no sign of life, in ms, where nobody but the client's own process can end it; 0 elsewhere."""
        ...

    @property
    def may_be_asked(self) -> bool:
        """False where the caller, in a listener that this worker waits for, would wait for itself."""
        ...

    def start(self) -> None:
        """Raises StreamsError if that is not possible."""
        ...

    def request_stop(self, stop: Stop) -> None:
        """Returns at once."""
        ...

    def ask(self, call: Call, *arguments: object) -> Future[object]:
        """Has a call carried out between two batches; at once, if this is the worker's own thread. The future fails with StreamsError if
        the worker ends first."""
        ...

    def tell_state(self, old: State, new: State) -> None:
        """The client's state has changed: one worker of it publishes that."""
        ...

    def metadata(self) -> WorkerMetadata:
        """The worker and its tasks, as of the last commit or change."""
        ...

    def find(self, parameters: StoreQueryParameters) -> Callable[[], Found]:
        """Has it look for the parts of a store that it has open now; the result gives them."""
        ...

    def fleet(self) -> Fleet | None:
        """What it knows of the whole application; None for nothing yet."""
        ...

    def metrics(self) -> Mapping[MetricName, float]:
        """Metrics that are not in the client's own registry."""
        ...

    def join(self, timeout_s: float | None) -> None:
        """Waits until its thread or process has ended, and everybody was told."""
        ...


class Boss(Protocol):
    """Whom workers tell: the crew."""

    def changed(self) -> None:
        """A worker's state has changed."""
        ...

    def close_wanted(self, timeout_ms: int | None) -> None:
        """An operator's command says that the instance is to close, within so long (None: as `close()`)."""
        ...

    def ended(self, worker: StreamWorker, error: BaseException | None, *, died: bool) -> None:
        """A worker is no more. `error`: what it failed with; `died`: its process has ended without a word."""
        ...
