"""A worker in a thread of the client's process: the one worker of a client that has one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from runtime import logs
from runtime.coordination.fleet import Fleet
from runtime.errors import DeserializationError, ProcessingError, StreamsError, TaskCorruptedError
from runtime.events import EventKind
from runtime.metrics import MetricName
from runtime.states import State
from runtime.worker.calls import Call, Stop
from runtime.worker.found import Found
from runtime.worker.loop import Worker
from runtime.worker.queries import StoreQueryParameters
from runtime.worker.seat import Seat
from runtime.worker.stream_worker import Boss
from runtime.worker.view import WorkerMetadata

logger = logging.getLogger(__name__)

MakeWorker = Callable[[Callable[[State], None], Callable[[int], None]], Worker]
"""Makes the worker, which tells its state and its incarnations to these two."""


class ThreadWorker:
    """A `StreamWorker`."""

    def __init__(self, make: MakeWorker, seat: Seat, application: str, instance: str, boss: Boss, before: Callable[[], None]) -> None:
        """`before` is called on the worker's thread first; what it raises is the worker's failure."""
        self.number = seat.number
        self.name = seat.thread_name(instance)
        self.state = State.CREATED
        self.incarnation: int | None = None
        self._application = application
        self._instance = instance
        self._boss = boss
        self._before = before
        self.worker = make(self._moved, self._joins)
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def _moved(self, state: State) -> None:
        self.state = state
        self._boss.changed()

    def _joins(self, incarnation: int) -> None:
        self.incarnation = incarnation

    def _run(self) -> None:
        logs.bind(application=self._application, instance=self._instance)
        try:
            self._before()
            self.worker.run()
        except Exception as error:  # noqa: BLE001 (whatever ends the thread is the handler's to judge)
            log_failure(self._instance, error)
            self._boss.ended(self, error, died=False)
        else:
            self._boss.ended(self, None, died=False)

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

    def ask(self, call: Call, *arguments: object) -> Future[object]:
        if threading.current_thread() is not self._thread:
            return self.worker.call(call, *arguments)
        future: Future[object] = Future()
        try:
            future.set_result(self.worker.do(call, *arguments))
        except StreamsError as error:
            future.set_exception(error)
        return future

    def tell_state(self, old: State, new: State) -> None:
        self.worker.events.emit(EventKind.INSTANCE_STATE, self.worker.instance_state(old, new))

    def metadata(self) -> WorkerMetadata:
        return self.worker.metadata()

    def find(self, parameters: StoreQueryParameters) -> Callable[[], Found]:
        return lambda: self.worker.find(parameters)

    def report_damage(self, error: TaskCorruptedError) -> None:
        """A query has met damaged files of this worker's."""
        self.worker.report_damage(error)

    def fleet(self) -> Fleet | None:
        return self.worker.fleet()

    def metrics(self) -> Mapping[MetricName, float]:
        return {}

    def join(self, timeout_s: float | None) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


def log_failure(name: str, error: BaseException) -> None:
    """What we raise ourselves says all in its text; where something else is behind it, the trace is wanted."""
    ours = isinstance(error, StreamsError) and not isinstance(error, DeserializationError | ProcessingError)
    logger.error("the stream thread of %s failed: %s", name, error, exc_info=None if ours else error)
