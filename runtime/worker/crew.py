"""The workers of a client: begun, watched, begun again when they die, and asked as if they were one.

A client with one worker runs it in a thread. With more, each is a process, and a full member of the application with a transactional id of
its own: what makes several instances safe makes several workers safe, and nothing else is needed between them but what they share, the
state directory. (Rejected: one member per instance, with workers as hands of it: a second protocol for what the first does already.)

The crew decides nothing about tasks. It knows one thing before the others: that the process of a worker has ended. It has a sibling say so,
and the leader gives the dead worker's tasks out at once, without waiting for its session to run out (coordination.md, 5).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from runtime.clock import Clock
from runtime.coordination.fleet import Fleet
from runtime.errors import StreamsError, TaskCorruptedError
from runtime.metrics import MetricName
from runtime.states import State
from runtime.worker.calls import Call, Stop
from runtime.worker.found import answering
from runtime.worker.local import ThreadWorker
from runtime.worker.queries import QueryPart, StoreQueryParameters
from runtime.worker.remote import ProcessWorker
from runtime.worker.restarts import MOST_DEATHS, Restarts
from runtime.worker.stream_worker import StreamWorker

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
FROZEN_MS = 3_000
FAILED_STOP_MS = 10_000
"""How long the others may take to close when one has failed for good."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What the crew tells its client. Never called with a lock of the crew's held."""

    workers_changed: Callable[[], None]
    """A worker has come, gone, or changed its state."""
    close_wanted: Callable[[int | None], None]
    """An operator's command says that the client is to close, within so long (ms; None: as `close()`)."""
    shall_replace: Callable[[BaseException], bool]
    """A worker has failed: is another to take its place?"""
    failing: Callable[[BaseException], None]
    """The client ends for this reason; its workers are being stopped."""
    all_ended: Callable[[BaseException | None], None]
    """No worker is left, and none will be begun."""


class Crew:
    """The workers of one client. Safe to use from any thread."""

    def __init__(self, owner: Owner, clock: Clock, max_poll_ms: int) -> None:
        self._owner = owner
        self._clock = clock
        self._lock = threading.Condition(threading.RLock())
        self._workers: dict[int, StreamWorker] = {}
        self._leaving: set[int] = set()
        self._due_ms: dict[int, int] = {}
        """Workers that are to be begun, the first time or again, and when (monotonic time)."""
        self._may_begin = False
        """False as long as workers of a client before may be there."""
        self._restarts = Restarts(max_poll_ms)
        self._stopping = False
        self._over = False
        self._failure: BaseException | None = None
        self._count = 0
        self._make: Callable[[int, bool], StreamWorker] | None = None
        self._name: Callable[[int], str] = str
        self._before: Callable[[], None] = lambda: None
        self._only: StreamWorker | None = None
        """The one worker of a client that has one, until it is begun."""
        self._halted = False
        self._untold: list[tuple[State, State]] = []
        self._thread: ThreadWorker | None = None
        """The last that was begun in this process, also when it has ended."""
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._supervisor = threading.Thread(target=self._supervise, name="workers", daemon=True)

    # -- life ------------------------------------------------------------------------------------------------------------------

    def recruit(self, count: int, make: Callable[[int, bool], StreamWorker], name: Callable[[int], str]) -> None:
        """How many workers there are to be. `make` makes the one of a number, paused or not (KIP-834), and does not start it; `name` tells
        its name. Raises what `make` raises."""
        self._count, self._make, self._name = count, make, name
        if count == 1:
            self._only = self._workers[1] = make(1, False)

    def start(self, before: Callable[[], None]) -> None:
        """Begins the workers, and returns at once. Processes are begun after `before`, which may wait; a worker in a thread has one of its
        own, which does the same. What fails ends the client."""
        self._before = before
        with self._lock:
            if self._only is not None:
                self._start(self._only)
            else:
                self._due_ms = dict.fromkeys(range(1, self._count + 1), self._clock.monotonic_ms())
                self._begin_soon()

    def _begin_soon(self) -> None:
        """Has what is due begun when nothing of a client before is left. With the lock held."""
        if not self._supervisor.is_alive():
            self._supervisor.start()
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
        """With the lock held."""
        assert self._make is not None
        worker = self._make(number, self._halted)
        self._start(worker)
        return worker

    def _start(self, worker: StreamWorker) -> None:
        self._due_ms.pop(worker.number, None)
        self._restarts.begun(worker.number, self._clock.monotonic_ms())
        worker.start()
        self._workers[worker.number] = worker
        if isinstance(worker, ThreadWorker):
            self._thread = worker
        while self._untold:
            worker.tell_state(*self._untold.pop(0))

    def add(self) -> str:
        """Begins one more worker, under the smallest number that is free. Returns its name. Raises StreamsError if that is not possible."""
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
        """Ends the worker with the largest number, whose tasks go to the others. Returns its name when it has ended; None if there is none.
        Raises TimeoutError if it has not ended within `timeout_ms` (None: waits for ever); it goes on closing."""
        with self._lock:
            number = max((number for number in [*self._workers, *self._due_ms] if number not in self._leaving), default=None)
            if number is None:
                return None
            if self._due_ms.pop(number, None) is not None:  # it is not there yet
                self._restarts.forget(number)
                return self._name(number)
            worker = self._workers[number]
            self._leaving.add(number)
        worker.request_stop(Stop(timeout_ms, siblings_stay=True))
        if self._on_own_thread():
            return worker.name  # who waits here may keep it from ending
        with self._lock:
            seconds = None if timeout_ms is None else timeout_ms / 1000
            if not self._lock.wait_for(lambda: self._workers.get(number) is not worker, seconds):
                raise TimeoutError(f"{worker.name} did not stop within {timeout_ms} ms; it goes on closing")
        return worker.name

    def request_stop(self, stop: Stop) -> None:
        """Has all workers commit, close and end; none is begun any more."""
        with self._lock:
            self._stopping = True
            self._due_ms.clear()
            workers = list(self._workers.values())
        for worker in workers:
            worker.request_stop(stop)
        self._end_if_last()

    def join(self, timeout_s: float | None) -> None:
        """Waits until all have ended and the client was told; not on a thread that has to end for it."""
        if self._on_own_thread():
            return
        deadline_ms = None if timeout_s is None else self._clock.monotonic_ms() + int(timeout_s * 1000)
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._supervisor.is_alive():
            self._supervisor.join(None if deadline_ms is None else max(0, deadline_ms - self._clock.monotonic_ms()) / 1000)

    def _on_own_thread(self) -> bool:
        """True on a thread that has to end before all has ended: in a listener, or in user code of a worker in a thread."""
        return threading.current_thread() is self._supervisor or (self._thread is not None and self._thread.may_be_asked)

    # -- what workers tell (`Boss`) ----------------------------------------------------------------------------------------------

    def later(self, job: Callable[[], None]) -> None:
        """Has something done on the crew's thread, in order."""
        self._jobs.put(job)

    def changed(self) -> None:
        self._owner.workers_changed()

    def close_wanted(self, timeout_ms: int | None) -> None:
        self._owner.close_wanted(timeout_ms)

    def ended(self, worker: StreamWorker, error: BaseException | None, *, died: bool) -> None:
        """On the worker's own thread, or the crew's for a process."""
        replace = died or (error is not None and self._owner.shall_replace(error))
        with self._lock:
            leaving = worker.number in self._leaving
            replace = replace and not leaving and not self._stopping
            fails = error is not None and not replace and not leaving
            if fails and self._failure is None:
                self._failure = error
        if fails and error is not None:
            self._owner.failing(error)
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
        """A sibling tells the application of a worker's end. Without one, its next incarnation does, or its session runs out."""
        if dead.incarnation is None:
            return
        for sibling in self.workers:
            if sibling.incarnation is not None:
                _forget(sibling.ask(Call.ANNOUNCE_DEATH, dead.number, dead.incarnation))
                return

    def _begin_again(self, worker: StreamWorker, *, died: bool) -> None:
        now_ms = self._clock.monotonic_ms()
        wait_ms = self._restarts.failed(worker.number, now_ms)
        if died and self._restarts.failures(worker.number) >= MOST_DEATHS:
            self._give_up(StreamsError(f"{worker.name} has died {MOST_DEATHS} times in a row: the log says of what"))
            return
        if isinstance(worker, ThreadWorker):
            with self._lock:
                if not self._stopping:
                    self._begin(worker.number)
        else:
            logger.info("%s is started again in %.1f s", worker.name, wait_ms / 1000)
            with self._lock:
                if not self._stopping:
                    self._due_ms[worker.number] = now_ms + wait_ms
            self.later(self._begin_due)
        self._owner.workers_changed()

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._owner.failing(error)
        self.request_stop(Stop(FAILED_STOP_MS))

    def _end_if_last(self) -> None:
        with self._lock:
            if self._over or not self._stopping or self._workers or self._due_ms:
                return
            self._over = True
            failure = self._failure
        self._owner.all_ended(failure)
        self.later(lambda: None)  # wakes the crew's thread, which ends

    # -- the crew's thread -----------------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Does what processes tell, and looks after them, until all is over."""
        looked_ms = self._clock.monotonic_ms()
        while not self._over:
            passed_ms = self._clock.monotonic_ms() - looked_ms
            if passed_ms >= LOOK_SECONDS * 1000:
                looked_ms += passed_ms
                self._do(partial(self._look, passed_ms))
            try:
                job = self._jobs.get(timeout=LOOK_SECONDS)
            except Empty:
                continue
            self._do(job)

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:
            logger.exception("a listener, or the supervision of a worker, has failed")

    def _look(self, passed_ms: int) -> None:
        """`passed_ms`: since the last look. After a pause of this process itself (Ctrl-Z) what the workers said meanwhile is to be read
        before it is judged that they say nothing."""
        if passed_ms < FROZEN_MS:
            for worker in self.workers:
                if isinstance(worker, ProcessWorker):
                    worker.look()
        self._begin_due()

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
        """Those that there are now, in the order of their numbers."""
        with self._lock:
            return [self._workers[number] for number in sorted(self._workers)]

    @property
    def state(self) -> State | None:
        """What the client's state should be: the union of the workers' (rules.md, 1 and 6). None where there is nobody to say."""
        states = {worker.state for worker in self.workers}
        if State.RESTORING in states:
            return State.RESTORING
        if states & {State.CREATED, State.REBALANCING} or (not states and self._due_ms):
            return State.REBALANCING
        return State.RUNNING if states else None

    @property
    def idle_ms(self) -> int:
        """The longest that a worker in a thread of this process has shown no sign of life."""
        return max((worker.idle_ms for worker in self.workers), default=0)

    @property
    def halted(self) -> bool:
        """Whether processing of all workers is paused."""
        return self._halted

    def halt(self, halted: bool, workers: Iterable[StreamWorker]) -> list[Future[object]]:
        """Pauses or resumes processing of these workers (KIP-834), and of those that are begun later."""
        with self._lock:
            self._halted = halted
        return [worker.ask(Call.PAUSE_ALL if halted else Call.RESUME_ALL) for worker in workers]

    def tell_state(self, old: State, new: State) -> None:
        """One worker publishes that the client's state has changed; the next one that there is, if there is none now."""
        with self._lock:
            if self._workers:
                self._workers[min(self._workers)].tell_state(old, new)
            else:
                self._untold.append((old, new))

    def fleet(self) -> Fleet | None:
        """What a worker knows of the whole application; None for nothing yet."""
        return next((fleet for worker in self.workers if (fleet := worker.fleet()) is not None), None)

    def metrics(self) -> Iterable[Mapping[MetricName, float]]:
        """Those that are not in the client's own registry."""
        return [worker.metrics() for worker in self.workers]

    def parts(self, parameters: StoreQueryParameters) -> list[QueryPart]:
        """The parts of a store that answer a query. Raises InvalidStateStoreError."""
        begun = [worker.find(parameters) for worker in self.workers]
        return answering([found() for found in begun], parameters)

    def damage_found(self, error: TaskCorruptedError) -> None:
        """A query in this process has met damaged files: they are of the worker in it, which mends them."""
        for worker in self.workers:
            if isinstance(worker, ThreadWorker):
                worker.report_damage(error)


def _forget(answer: Future[object]) -> None:
    """Nobody waits for it; a failure is worth a line."""

    def look(done: Future[object]) -> None:
        if done.exception() is not None:
            logger.info("a worker's end could not be announced: %s", done.exception())

    answer.add_done_callback(look)
