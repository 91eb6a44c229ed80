"""A worker in a thread of the client's process: the one worker of a client without worker processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.model import logs
from penstock.runtime.model.errors import DeserializationError, ProcessingError, StreamsError, TaskCorruptedError
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.metrics import MetricName
from penstock.runtime.model.states import State
from penstock.runtime.worker.loop import Worker
from penstock.runtime.worker.queries import StoreParts, StoreQueryParameters
from penstock.runtime.worker.rpc import Call, Stop
from penstock.runtime.worker.spec import WorkerIdentity
from penstock.runtime.worker.state_queries import QueryResult, StateQueryRequest
from penstock.runtime.worker.supervisor.stream_worker import WorkerListener
from penstock.runtime.worker.view import WorkerMetadata

logger = logging.getLogger(__name__)

R = TypeVar("R")

MakeWorker = Callable[[Callable[[State], None], Callable[[int], None]], Worker]
"""Makes the worker, which reports its state and its incarnations to these two functions."""


class ThreadWorker:
    """A `StreamWorker` in a thread of this process."""

    def __init__(
        self,
        make: MakeWorker,
        identity: WorkerIdentity,
        application: str,
        instance: str,
        listener: WorkerListener,
        before: Callable[[], None],
    ) -> None:
        """`before` is called on the worker's thread first; what it raises is the worker's failure."""
        self.number = identity.number
        self.name = identity.thread_name(instance)
        self.state = State.CREATED
        self.incarnation: int | None = None
        self._application = application
        self._instance = instance
        self._listener = listener
        self._before = before
        self.worker = make(self._moved, self._joins)
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def _moved(self, state: State) -> None:
        self.state = state
        self._listener.changed()

    def _joins(self, incarnation: int) -> None:
        self.incarnation = incarnation

    def _run(self) -> None:
        logs.bind(application=self._application, instance=self._instance)
        failure: BaseException | None = None
        try:
            self._before()
            self.worker.run()
        except BaseException as error:  # noqa: BLE001 (the interpreter ends a thread on SystemExit without a message)
            log_failure(self._instance, error)
            failure = error
        self._listener.ended(self, failure, died=False)

    def start(self) -> None:
        self._thread.start()

    @property
    def idle_ms(self) -> int:
        return self.worker.idle_ms

    @property
    def may_be_asked(self) -> bool:
        return threading.current_thread() is self._thread

    def request_stop(self, stop: Stop) -> None:
        self.worker.request_stop(stop)

    def call(self, call: Call, *arguments: object) -> Future[object]:
        if threading.current_thread() is not self._thread:
            return self.worker.call(call, *arguments)
        future: Future[object] = Future()
        try:
            future.set_result(self.worker.do(call, *arguments))
        except StreamsError as error:
            future.set_exception(error)
        return future

    def publish_state(self, old: State, new: State) -> None:
        self.worker.events.emit(EventKind.INSTANCE_STATE, self.worker.instance_state(old, new))

    def metadata(self) -> WorkerMetadata:
        return self.worker.metadata()

    def find(self, parameters: StoreQueryParameters) -> Callable[[], StoreParts]:
        return lambda: self.worker.find(parameters)

    def query(self, request: StateQueryRequest[R]) -> Callable[[], dict[int | None, QueryResult[R]]]:
        return lambda: self.worker.query(request)

    def report_damage(self, error: TaskCorruptedError) -> None:
        """Report damaged files of this worker, found by a query."""
        self.worker.report_damage(error)

    def fleet(self) -> Fleet | None:
        return self.worker.fleet()

    def metrics(self) -> Mapping[MetricName, float]:
        return self.worker.metrics.values()

    def join(self, timeout_s: float | None) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


def log_failure(name: str, error: BaseException) -> None:
    """Log a failure. The engine's own errors are complete in their text; with another cause behind it, the trace is logged too."""
    ours = isinstance(error, StreamsError) and not isinstance(error, DeserializationError | ProcessingError)
    ours = ours and (error.__cause__ is None or isinstance(error.__cause__, Exception))
    logger.error("the stream thread of %s failed: %s", name, error, exc_info=None if ours else error)
