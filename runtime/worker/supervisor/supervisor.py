"""Supervisor of a client's workers: starts them, watches them, restarts them when they die, and queries them as if they were one.

A client with one worker runs it in a thread. With more, each is a process, and a full member of the application with a transactional id of
its own: what makes several instances safe makes several workers safe. They share only the state directory. (Rejected: one member per
instance, with workers as its executors, which needs a second protocol for the same purpose.)

The supervisor decides nothing about tasks. But it knows before the other members that the process of a worker has ended. It has a sibling
announce that, and the leader reassigns the dead worker's tasks at once, without waiting for its session to expire (coordination.md, 5).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StreamsError, TaskCorruptedError
from penstock.runtime.model.metrics import MetricName
from penstock.runtime.model.states import State
from penstock.runtime.worker.queries import QueryPart, StoreQueryParameters, answering_parts
from penstock.runtime.worker.rpc import Call, Stop
from penstock.runtime.worker.state_queries import QueryResult, StateQueryRequest
from penstock.runtime.worker.supervisor.process_worker import ProcessWorker
from penstock.runtime.worker.supervisor.restarts import MAX_DEATHS, Restarts
from penstock.runtime.worker.supervisor.stream_worker import StreamWorker
from penstock.runtime.worker.supervisor.thread_worker import ThreadWorker
from penstock.runtime.worker.supervisor.watchdog import CHECK_SECONDS, Watchdog

logger = logging.getLogger(__name__)

R = TypeVar("R")

FAILED_STOP_MS = 10_000
"""Time that the other workers have to close when one has failed for good."""


@dataclass(frozen=True, slots=True)
class SupervisorCallbacks:
    """Notifications to the client. Never called while the supervisor holds its lock."""

    workers_changed: Callable[[], None]
    """A worker was started, has ended, or changed its state."""
    close_requested: Callable[[int | None], None]
    """An operator's command asks to close the client, within a number of ms (None: as `close()`)."""
    should_replace: Callable[[BaseException], bool]
    """Returns whether to replace a failed worker."""
    failing: Callable[[BaseException], None]
    """The client stops for this error; its workers are being stopped."""
    all_ended: Callable[[BaseException | None], None]
    """No worker is left, and none will be started."""


class Supervisor:
    """The workers of one client. Safe to use from any thread."""

    def __init__(self, owner: SupervisorCallbacks, clock: Clock, max_poll_ms: int) -> None:
        self._owner = owner
        self._clock = clock
        self._lock = threading.Condition(threading.RLock())
        self._workers: dict[int, StreamWorker] = {}
        self._leaving: set[int] = set()
        self._due_ms: dict[int, int] = {}
        """Workers to start, and when (monotonic time)."""
        self._may_begin = False
        """False while workers of a previous client may still run."""
        self._restarts = Restarts(max_poll_ms)
        self._stopping = False
        self._over = False
        self._failure: BaseException | None = None
        self._count = 0
        self._make: Callable[[int, bool], StreamWorker] | None = None
        self._name: Callable[[int], str] = str
        self._before: Callable[[], None] = lambda: None
        self._only: StreamWorker | None = None
        """The one worker of a client without worker processes, until it is started."""
        self._halted = False
        self._unpublished: list[tuple[State, State]] = []
        self._thread: ThreadWorker | None = None
        """The last worker that was started in this process, even if it has ended."""
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._watchdog = Watchdog(lambda: [each for each in self.workers if isinstance(each, ProcessWorker)], clock)
        self._own_thread = threading.Thread(target=self._supervise, name="workers", daemon=True)

    # -- life ------------------------------------------------------------------------------------------------------------------

    def configure(self, count: int, make: Callable[[int, bool], StreamWorker], name: Callable[[int], str]) -> None:
        """Set the number of workers. `make` makes the one of a number, paused or not (KIP-834), not started; `name` returns its name.
        Raises what `make` raises."""
        self._count, self._make, self._name = count, make, name
        if count == 1:
            self._only = self._workers[1] = make(1, False)

    def start(self, before: Callable[[], None]) -> None:
        """Start the workers, and return at once. Processes are started after `before`, which may wait; a worker in a thread calls it on its
        own thread. A failure stops the client."""
        self._before = before
        with self._lock:
            if self._only is not None:
                self._start(self._only)
            else:
                self._due_ms = dict.fromkeys(range(1, self._count + 1), self._clock.monotonic_ms())
                self._begin_soon()

    def _begin_soon(self) -> None:
        """Start the queued workers when no worker of a previous client is left. The caller holds the lock."""
        if not self._own_thread.is_alive():
            self._own_thread.start()
        self.later(self._begin_first)

    def _begin_first(self) -> None:
        try:
            self._before()
            with self._lock:
                self._may_begin = True
                for number in sorted(self._due_ms):
                    self._begin(number)
        except StreamsError as error:
            logger.error("%s", error)
            self._give_up(error)

    def _begin(self, number: int) -> StreamWorker:
        """Start a worker. The caller holds the lock."""
        assert self._make is not None
        worker = self._make(number, self._halted)
        self._start(worker)
        return worker

    def _start(self, worker: StreamWorker) -> None:
        self._due_ms.pop(worker.number, None)
        self._restarts.started(worker.number, self._clock.monotonic_ms())
        worker.start()
        self._workers[worker.number] = worker
        if isinstance(worker, ThreadWorker):
            self._thread = worker
        while self._unpublished:
            worker.publish_state(*self._unpublished.pop(0))

    def add(self) -> str:
        """Start one more worker, with the smallest free number. Return its name. Raises StreamsError if that is not possible."""
        with self._lock:
            number = next(number for number in range(1, len(self._workers) + len(self._due_ms) + 2) if self._is_free(number))
            if self._may_begin:
                self._begin(number)
            else:
                self._due_ms[number] = self._clock.monotonic_ms()
                self._begin_soon()
        self._owner.workers_changed()
        return self._name(number)

    def _is_free(self, number: int) -> bool:
        return number not in self._workers and number not in self._due_ms

    def remove(self, timeout_ms: int | None) -> str | None:
        """Stop the worker with the largest number; its tasks go to the others. Return its name when it has ended; None if there is none.
        Raises TimeoutError if it has not ended within `timeout_ms` (None: waits forever); it continues to close."""
        with self._lock:
            number = max((number for number in [*self._workers, *self._due_ms] if number not in self._leaving), default=None)
            if number is None:
                return None
            if self._due_ms.pop(number, None) is not None:  # it was not started yet
                self._restarts.forget(number)
                return self._name(number)
            worker = self._workers[number]
            self._leaving.add(number)
        worker.request_stop(Stop(timeout_ms, siblings_stay=True))
        if self._on_own_thread():
            return worker.name  # the worker may wait for this thread, so do not wait for it
        with self._lock:
            seconds = None if timeout_ms is None else timeout_ms / 1000
            if not self._lock.wait_for(lambda: self._workers.get(number) is not worker, seconds):
                raise TimeoutError(f"{worker.name} did not stop within {timeout_ms} ms; it continues to close")
        return worker.name

    def request_stop(self, stop: Stop) -> None:
        """Request all workers to commit and close; no further one is started."""
        with self._lock:
            self._stopping = True
            self._due_ms.clear()
            workers = list(self._workers.values())
        for worker in workers:
            worker.request_stop(stop)
        self._end_if_last()

    def join(self, timeout_s: float | None) -> None:
        """Wait until all have ended and the client was notified; returns at once on a thread that has to end first."""
        if self._on_own_thread():
            return
        deadline_ms = None if timeout_s is None else self._clock.monotonic_ms() + int(timeout_s * 1000)
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._own_thread.is_alive():
            self._own_thread.join(None if deadline_ms is None else max(0, deadline_ms - self._clock.monotonic_ms()) / 1000)

    def _on_own_thread(self) -> bool:
        """Return True on a thread that must end before the client can close: in a listener, or in user code of a worker in a thread."""
        return threading.current_thread() is self._own_thread or (self._thread is not None and self._thread.may_be_asked)

    # -- notifications of workers (`WorkerListener`) ---------------------------------------------------------------------------

    def later(self, job: Callable[[], None]) -> None:
        """Run a job on the supervisor's thread, in order."""
        self._jobs.put(job)

    def changed(self) -> None:
        self._owner.workers_changed()

    def close_requested(self, timeout_ms: int | None) -> None:
        self._owner.close_requested(timeout_ms)

    def listener_failed(self, error: BaseException) -> None:
        """Handle a listener's failure, on the supervisor's thread. If the handler wants the worker replaced, it runs on: nothing of it is
        lost."""
        if self._owner.should_replace(error):
            logger.error("%s: the worker runs on, as the handler of uncaught exceptions has answered", error)
        else:
            self._give_up(error)

    def ended(self, worker: StreamWorker, error: BaseException | None, *, died: bool) -> None:
        """Handle the end of a worker, on its own thread, or on the supervisor's for a process."""
        replace = died or (error is not None and self._owner.should_replace(error))
        with self._lock:
            leaving = worker.number in self._leaving
            replace = replace and not leaving and not self._stopping
            fails = error is not None and not replace and not leaving
        if fails and error is not None:
            self._fail(error)
        with self._lock:
            self._workers.pop(worker.number, None)
            if leaving:
                self._leaving.discard(worker.number)
                self._restarts.forget(worker.number)
            self._lock.notify_all()
        if died or error is not None:
            self._announce(worker)
        if replace:
            self._begin_again(worker, died=died)
        elif fails:
            self.request_stop(Stop(FAILED_STOP_MS))
        else:
            self._owner.workers_changed()
        self._end_if_last()

    def _announce(self, dead: StreamWorker) -> None:
        """Have a sibling announce a worker's death to the application. Without a sibling, its next incarnation does, or its session
        expires."""
        if dead.incarnation is None:
            return
        for sibling in self.workers:
            if sibling.incarnation is not None:
                _forget(sibling.call(Call.ANNOUNCE_DEATH, dead.number, dead.incarnation))
                return

    def _begin_again(self, worker: StreamWorker, *, died: bool) -> None:
        now_ms = self._clock.monotonic_ms()
        wait_ms = self._restarts.failed(worker.number, now_ms)
        if died and self._restarts.failures(worker.number) >= MAX_DEATHS:
            self._give_up(StreamsError(f"{worker.name} has died {MAX_DEATHS} times in a row: the log says of what"))
            return
        if isinstance(worker, ThreadWorker):
            self._replace_thread(worker.number)
        else:
            logger.info("%s is started again in %.1f s", worker.name, wait_ms / 1000)
            with self._lock:
                if not self._stopping:
                    self._due_ms[worker.number] = now_ms + wait_ms
            self.later(self._begin_due)
        self._owner.workers_changed()

    def _replace_thread(self, number: int) -> None:
        """Start a successor of a worker that has ended, on that worker's thread: an error here would leave the client RUNNING."""
        try:
            with self._lock:
                if not self._stopping:
                    self._begin(number)
        except BaseException as error:
            logger.exception("worker %d cannot be started again", number)
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        self._fail(error)
        self.request_stop(Stop(FAILED_STOP_MS))

    def _fail(self, error: BaseException) -> None:
        """Note what ends the client: the first error. Others may be its consequences, as when a sibling hears the request to shut down."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
        self._owner.failing(error)

    def _end_if_last(self) -> None:
        with self._lock:
            if self._over or not self._stopping or self._workers or self._due_ms:
                return
            self._over = True
            failure = self._failure
        self._owner.all_ended(failure)
        self.later(lambda: None)  # wakes the supervisor's thread, which ends

    # -- the supervisor's thread -----------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Handle the messages of processes, and start workers that are due, until all have ended."""
        self._watchdog.start()
        while not self._over:
            self._do(self._begin_due)
            try:
                job = self._jobs.get(timeout=CHECK_SECONDS)
            except Empty:
                continue
            self._do(job)
        self._watchdog.stop()

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException:
            logger.exception("the supervision of a worker has failed")

    def _begin_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            if not self._may_begin:
                return
            due = [number for number, due_ms in self._due_ms.items() if now_ms >= due_ms]
            for number in due:
                try:
                    self._begin(number)
                except StreamsError as error:
                    logger.error("%s", error)
                    self._due_ms[number] = now_ms + self._restarts.failed(number, now_ms)
        if due:
            self._owner.workers_changed()

    # -- all of them as one ----------------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[StreamWorker]:
        """Return the current workers, in the order of their numbers."""
        with self._lock:
            return [self._workers[number] for number in sorted(self._workers)]

    @property
    def state(self) -> State | None:
        """The client's state: the union of the workers' (rules.md, 1 and 6). None without a worker."""
        states = {worker.state for worker in self.workers}
        if State.RESTORING in states:
            return State.RESTORING
        if states & {State.CREATED, State.REBALANCING} or (not states and self._due_ms):
            return State.REBALANCING
        return State.RUNNING if states else None

    @property
    def idle_ms(self) -> int:
        """Longest time that a worker in a thread of this process has shown no sign of life."""
        return max((worker.idle_ms for worker in self.workers), default=0)

    @property
    def halted(self) -> bool:
        """True if processing of all workers is paused."""
        return self._halted

    def halt(self, halted: bool, workers: Iterable[StreamWorker]) -> list[Future[object]]:
        """Pause or resume processing of these workers (KIP-834), and of those that are started later."""
        with self._lock:
            self._halted = halted
        return [worker.call(Call.PAUSE_ALL if halted else Call.RESUME_ALL) for worker in workers]

    def publish_state(self, old: State, new: State) -> None:
        """Have a worker publish that the client's state has changed; the next one to start, if there is none now."""
        with self._lock:
            if self._workers:
                self._workers[min(self._workers)].publish_state(old, new)
            else:
                self._unpublished.append((old, new))

    def fleet(self) -> Fleet | None:
        """Return a worker's knowledge of the whole application; None before the first record."""
        return next((fleet for worker in self.workers if (fleet := worker.fleet()) is not None), None)

    def metrics(self) -> Iterable[Mapping[MetricName, float]]:
        """Return the metrics of each worker."""
        return [worker.metrics() for worker in self.workers]

    def parts(self, parameters: StoreQueryParameters) -> list[QueryPart]:
        """Return the parts of a store that answer a query. Raises InvalidStateStoreError."""
        begun = [worker.find(parameters) for worker in self.workers]
        return answering_parts([found() for found in begun], parameters)

    def query(self, request: StateQueryRequest[R]) -> dict[int | None, QueryResult[R]]:
        """Return the answers of all requested partitions here; of several for one partition, one that is not a failure. Raises
        InvalidStateStoreError if a worker does not answer."""
        found: dict[int | None, QueryResult[R]] = {}
        for answers in [worker.query(request) for worker in self.workers]:
            for partition, answer in answers().items():
                known = found.get(partition)
                if known is None or known.is_failure:
                    found[partition] = answer
        return found

    def report_damage(self, error: TaskCorruptedError) -> None:
        """Report damaged files that a query in this process has found to the worker of this process, which recovers."""
        for worker in self.workers:
            if isinstance(worker, ThreadWorker):
                worker.report_damage(error)


def _forget(answer: Future[object]) -> None:
    """Log the failure of a request whose result is not needed."""

    def look(done: Future[object]) -> None:
        if done.exception() is not None:
            logger.info("a worker's end could not be announced: %s", done.exception())

    answer.add_done_callback(look)
