"""The worker's loop (Kafka Streams' `StreamThread`): one thread that reads, processes, commits, restores, and listens.

A turn of the loop does a bounded amount of each, so that nothing starves: commands and grants, a round of the global task, a round of the
restore, one poll, runs of records of the tasks, punctuation, and a commit if one is due.

A turn may fail with one of four errors, each with its own recovery (rules.md, 10):

    BrokerUnavailableError    nothing was changed: the next turn asks again
    TransactionAbortedError   roll back to the last commit and continue; tasks, producer and member id stay
    TaskCorruptedError        wipe and restore the stores of these tasks; the others continue
    TaskMigratedError         others may own the tasks now: close all dirty, begin a new incarnation, wait for tasks

Any other error stops the worker: tasks are closed dirty, and `run` raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.kafka.failures import lacks_right
from penstock.runtime.model.errors import (
    BrokerUnavailableError,
    InvalidStateStoreError,
    StreamsError,
    TaskCorruptedError,
    TaskMigratedError,
    TransactionAbortedError,
)
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.states import State
from penstock.runtime.model.user_errors import described
from penstock.runtime.tasks.active import TURN_MS
from penstock.runtime.tasks.incidents import MOST_TEXT, Incidents
from penstock.runtime.worker.assembly import Assembly, LoopCalls, assemble
from penstock.runtime.worker.garbage_collection import relaxed_collector
from penstock.runtime.worker.pace import Pace
from penstock.runtime.worker.queries import StoreParts, StoreQueryParameters
from penstock.runtime.worker.rpc import Call, Stop, dispatch
from penstock.runtime.worker.spec import WorkerSpec
from penstock.runtime.worker.state_queries import QueryResult, StateQueryRequest
from penstock.runtime.worker.task_manager import TaskManager
from penstock.runtime.worker.view import TaskInfo, View, WorkerMetadata

logger = logging.getLogger(__name__)

__all__ = ["TaskInfo", "Worker", "WorkerMetadata"]

LONGEST_WAIT_SECONDS = 0.05
"""Longest wait of a turn for input, and so the longest delay of a command or a call from another thread."""
FOLLOW_SECONDS = 0.002
"""Wait of a turn for changelog records while input may arrive too."""
HELD_SECONDS = 0.005
IDLE_TURNS = 2
"""Wait of a turn for input while all tasks with records wait, for `max.task.idle.ms` or a global table, and after how many turns in which
nothing was processed that is so: a task that reads ahead passes one turn."""
LISTEN_EVERY_MS = 50
MOVING_TURN_MS = 5
"""The same, and the longest wait of a turn, while a task moves between members: every output of the task waits for that."""
BROKER_RETRY_SECONDS = 0.5
"""Pause of the loop after a broker did not answer; the request is repeated."""
STOP_MS = 30_000
"""Default time that a stop waits for a broker that does not answer."""
CLOSE_RESERVE_MS = 2_000
"""Time that a failed worker waits for the broker to publish its failure, and that is reserved for the close of a leaving worker."""
SMALLEST_BACKOFF_MS, LARGEST_BACKOFF_MS = 100, 5_000
FAILURE_MEMORY_MS = 60_000
"""After this time without a failure the next one counts as the first, even if there was nothing to commit."""
FEWEST, MOST = 10, 20_000
LOOK_MS = 0.02
"""About what a turn takes for each task that has nothing to do: for punctuators, caches, queues, what others see of it."""
READ_SECONDS = 10.0
"""Deadline of a read of uncommitted data: a turn of the loop, with a commit and its wait for the broker."""

R = TypeVar("R")
T = TypeVar("T")


class _EndedError(StreamsError):
    """The worker's thread has ended before it came to a request."""


class Worker:
    """One worker of a client. `run()` blocks in a thread of the client's; all other methods are safe to call from any thread."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Makes no request to brokers. Raises StreamsConfigError if a handler cannot be made."""
        self.events = spec.events
        self.metrics = spec.metrics
        self._spec = spec
        self._clock = spec.clock
        self._stopping = threading.Event()
        self._starting = True
        self._stop_at_ms: int | None = None
        self._stop = Stop()
        self._draining = False
        self._closing = False
        """Components are being closed: no request about topics is waited for any more."""
        self._waits_at_stop = False
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._ended = False
        self._thread: int | None = None
        """Identifier of the thread in `run`."""
        self._progressed_ms = self._clock.monotonic_ms()
        self._idle_turns = 0
        """Turns in succession in which nothing was processed of the records that are there."""
        self._calls = LoopCalls(
            give_up=self._gives_up,
            start_given_up=lambda: self._closing or (self._starting and self._gives_up()),
            close=spec.close_client or (lambda timeout_ms: self.request_stop(Stop(timeout_ms))),
        )
        self._incidents = self._new_incidents()
        self._view = View()
        self._assembly: Assembly | None = None
        """None until the brokers have answered."""
        self._state = State.CREATED
        self._limit = 1000
        self._most_buffered = spec.config.integer("buffered.records.per.partition")
        self._listen_at_ms = 0
        self._failures = 0
        self._failed_at_ms = 0
        self._has_committed = False
        """True if input was committed since the worker's start."""
        self._steps = 0

    def _new_incidents(self) -> Incidents:
        return Incidents(self._spec.config, self._spec.events, self._spec.metrics, self._clock)

    @property
    def _assembled(self) -> Assembly:
        if self._assembly is None:
            raise StreamsError("the stream thread has not started yet")
        return self._assembly

    # -- from other threads ----------------------------------------------------------------------------------------------------

    def request_stop(self, stop: Stop) -> None:
        """Ask the worker to commit and close. Returns at once."""
        self._stop_at_ms = self._clock.monotonic_ms() + (STOP_MS if stop.timeout_ms is None else stop.timeout_ms)
        self._stop = stop
        self._stopping.set()

    @property
    def idle_ms(self) -> int:
        """Time in ms since the last turn of the loop, or the last attempt at a request that the broker does not answer."""
        return self._clock.monotonic_ms() - self._progressed_ms

    def _gives_up(self) -> bool:
        self._progressed_ms = self._clock.monotonic_ms()
        if self._starting and self._stopping.is_set():  # nothing is open that would have to be committed
            return True
        if self._stop_at_ms is None:
            return False
        left_ms = self._stop_at_ms - self._clock.monotonic_ms()
        if left_ms > 0 and not self._waits_at_stop:
            self._waits_at_stop = True
            logger.warning(
                "closing waits for a broker, to commit what was processed: for %d s more, then without (the records are processed again)",
                -(-left_ms // 1000),
            )
        return left_ms <= 0

    def do(self, call: Call, *arguments: object) -> object:
        """Execute a call now. Only on the worker's own thread."""
        assembly = self._assembled
        result = dispatch(call, arguments, assembly.tasks, assembly.coordination, self._spec.instance)
        assembly.publisher.publish(self._state)  # before the answer: after a resume the caller must not see the task as paused
        return result

    def call(self, call: Call, *arguments: object) -> Future[object]:
        """Execute a call on the worker's thread, between two batches. The future fails with StreamsError if the worker has stopped."""
        return self._request(lambda: self.do(call, *arguments))

    def execute(self, job: Callable[[], T]) -> T:
        """Execute a read of the stores on the worker's thread, between two batches, and return its result. Raises what it raises, and
        InvalidStateStoreError if the worker has stopped, or does not get to it within `READ_SECONDS`."""
        if threading.get_ident() == self._thread:
            return job()
        found = self._request(job)
        try:
            found.exception(READ_SECONDS)
        except FutureTimeoutError as error:
            found.cancel()
            raise InvalidStateStoreError(
                f"the stream thread did not read uncommitted data within {READ_SECONDS:.0f} s: ask again, or read committed data"
            ) from error
        if isinstance(found.exception(), _EndedError):
            raise InvalidStateStoreError("the stream thread has ended: ask again") from found.exception()
        return found.result()

    def _request(self, job: Callable[[], T]) -> Future[T]:
        """Let the worker's thread execute a job in its next turn."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the caller has cancelled it
            if self._ended:
                future.set_exception(_EndedError("the stream thread has ended"))
                return
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 (it belongs to the caller)
                future.set_exception(error)

        self._inbox.put(run)
        if self._ended:
            self._serve_inbox()
        return future

    def metadata(self) -> WorkerMetadata:
        """Return the worker and its tasks, as of the last commit or change."""
        return self._view.metadata

    def fleet(self) -> Fleet | None:
        """This worker's knowledge of the whole application, as of the last record that it read; None before the first."""
        return self._view.fleet

    def find(self, parameters: StoreQueryParameters) -> StoreParts:
        """Return the parts of a store that this worker has open."""
        return self._view.find(parameters, self.execute)

    def query(self, request: StateQueryRequest[R]) -> dict[int | None, QueryResult[R]]:
        """Return the answers of the requested partitions that this worker has open; None is a global store."""
        return self._view.query(request, self.execute, self.report_damage, self._clock)

    def report_damage(self, error: TaskCorruptedError) -> None:
        """Report damaged files that a query on another thread has found. The worker recovers as if it had found them itself."""
        found_ms = self._clock.monotonic_ms()

        def raise_damage() -> None:
            if not self._ended and not self._assembled.recovery.rebuilt_since(error, found_ms):
                raise error

        self._inbox.put(raise_damage)

    def instance_state(self, old: State, new: State) -> dict[str, object]:
        """Return the payload of INSTANCE_STATE."""
        spec = self._spec
        return {"old": old.value, "new": new.value, "pid": spec.identity.pid, "log_path": spec.log_path}

    # -- the worker's thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until a stop is requested. Raises the error that stopped the worker otherwise; its tasks are closed dirty then."""
        clean = False
        self._thread = threading.get_ident()
        try:
            self._start(halted=self._spec.halted)
            with relaxed_collector():
                while not self._stopping.is_set():
                    self._guarded(self._turn)
                    if self._assembled.input_changed():
                        self._restart_in_place()
                if not self._starting:
                    self._drain()
            if not self._starting:
                self._guarded(self._assembled.committer.commit)
                self._assembled.close_tasks()
                clean = True
        except TaskMigratedError:
            if not self._stopping.is_set():
                raise
            logger.warning("closing without a last commit: the tasks were lost, or the broker did not answer")
        except BaseException as error:
            self.events.emit(EventKind.SHUTDOWN, {"reason": f"{described(error)}"[:MOST_TEXT]})
            if self._stop_at_ms is None:
                self._stop_at_ms = self._clock.monotonic_ms() + CLOSE_RESERVE_MS
            if self._assembly is not None:
                self._assembly.committer.publish_failure()
            if isinstance(error, Exception):
                raise
            raise StreamsError(f"code of the application raised {described(error)}") from error
        finally:
            try:
                if self._assembly is not None:
                    self._closing = True
                    self._assembly.close(clean=clean, leave_group=self._stop.leave_group)
            finally:
                self._ended = True
                self._serve_inbox()

    def _start(self, *, halted: bool) -> None:
        """Assemble the worker and join. Starts over whenever the brokers stop answering, until a stop is requested."""
        self._starting = True
        while not self._stopping.is_set():
            try:
                self._assembly = assemble(self._spec, self._incidents, self._view, self._calls, halted=halted)
                self._assembly.start()
            except BrokerUnavailableError as error:
                if self._stopping.is_set():
                    break
                logger.warning("%s; the start waits for a broker, and begins again", error)
                self._disassemble(clean=False)
                self._wait(BROKER_RETRY_SECONDS)
            else:
                self._starting = False
                self._publish(self._assembly.publisher.current_state())
                return
        logger.info("stopped before the start was over: no task was open")

    def _disassemble(self, *, clean: bool) -> None:
        """Close all components. The next assembly shares nothing with this one."""
        assembly, self._assembly = self._assembly, None
        self._view, self._incidents = View(), self._new_incidents()
        if assembly is not None:
            self._closing = True
            assembly.close(clean=clean, leave_group=False)
            self._closing = False

    def _restart_in_place(self) -> None:
        """Restart in place, as after a restart of the instance: its tasks stay reserved for it."""
        logger.info("the input has other topics or partitions: the worker begins again with other tasks")
        self._publish(State.REBALANCING)
        self._guarded(self._assembled.committer.commit)
        self._has_committed |= self._assembled.committer.steps > 0
        halted = self._assembled.tasks.halted
        self._assembled.close_tasks()
        self._disassemble(clean=True)
        self._start(halted=halted)

    def _drain(self) -> None:
        """When leaving the group, keep processing until others have taken over the tasks, the timeout passes (less the time for a clean
        close), or no member is left to take them (rules.md, 4)."""
        stays = self._stop.siblings_stay
        if not self._stop.leave_group or self._stop_at_ms is None or not self._assembled.has_tasks_to_hand_over(stays):
            return
        logger.info("leaving: the tasks are handed over as soon as others have restored them")
        self._draining = True
        self._assembled.coordination.ask_to_leave()
        while self._assembled.has_tasks_to_hand_over(stays) and self._clock.monotonic_ms() < self._stop_at_ms - CLOSE_RESERVE_MS:
            self._guarded(self._turn)

    def _wait(self, seconds: float) -> bool:
        """Wait, or until a stop is requested. Return True if one was."""
        if self._draining:
            time.sleep(seconds)
            return True
        return self._stopping.wait(seconds)

    def _guarded(self, step: Callable[[], object]) -> None:
        """Run one step, and recover from its errors."""
        try:
            step()
        except BrokerUnavailableError as error:
            logger.warning("%s; trying again", error)
            self._wait(BROKER_RETRY_SECONDS)
        except TransactionAbortedError as error:
            self._recover(self._assembled.recovery.roll_back, error)
        except TaskCorruptedError as error:
            self._recover(partial(self._assembled.recovery.wipe, error), error)
        except TaskMigratedError as error:
            if self._gives_up():
                raise
            self._recover(self._assembled.recovery.begin_incarnation, error)

    def _recover(self, recover: Callable[[], None], error: StreamsError) -> None:
        """Recover from an error, repeating until it succeeds; the broker may be away. Raises TaskMigratedError when the time of a stop has
        run out.

        A failure that repeats before anything was committed has a lasting cause: the pause before the next attempt grows each time. A right
        that is missing before the first commit ends the worker, as at its start; one that is taken away later may come back.
        """
        assembly, now_ms = self._assembled, self._clock.monotonic_ms()
        recovery = assembly.recovery
        self._has_committed |= assembly.committer.steps > 0
        if lacks_right(error) and not self._has_committed and not self._stopping.is_set():
            raise StreamsError(str(error)) from error
        assembly.committer.failed()
        if self._steps != assembly.committer.steps or now_ms - self._failed_at_ms > FAILURE_MEMORY_MS:
            self._failures = 0
        self._steps = assembly.committer.steps
        while True:
            logger.warning("%s", error)
            self._failures += 1
            self._failed_at_ms = self._clock.monotonic_ms()
            pause_ms = min(LARGEST_BACKOFF_MS, SMALLEST_BACKOFF_MS << min(max(self._failures - 2, 0), 6))
            if self._failures > 1 and self._wait(pause_ms / 1000) and self._gives_up():
                raise TaskMigratedError(f"closing: {error}") from error
            try:
                recover()
            except TaskMigratedError as next_error:
                recover, error = recovery.begin_incarnation, next_error
            except TransactionAbortedError as next_error:
                recover, error = recovery.roll_back, next_error
            except TaskCorruptedError as next_error:
                recover, error = partial(recovery.wipe, next_error), next_error
            else:
                self._publish(assembly.publisher.current_state())  # a store that is rebuilt within a turn was RESTORING nevertheless
                return

    def _turn(self) -> None:
        assembly, clock = self._assembled, self._clock
        tasks, reader, committer = assembly.tasks, assembly.reader, assembly.committer
        now_ms = self._progressed_ms = clock.monotonic_ms()
        self._serve_inbox()
        if now_ms >= self._listen_at_ms:
            assembly.listen(now_ms)
            self._listen_at_ms = now_ms + (MOVING_TURN_MS if assembly.coordination.moving else LISTEN_EVERY_MS)
        longest = MOVING_TURN_MS / 1000 if assembly.coordination.moving else LONGEST_WAIT_SECONDS
        idle = not tasks.buffered or tasks.halted or committer.pace.room <= 0
        building = assembly.builds_global_tables
        restoring = bool(assembly.restorer.restoring) or assembly.followers.behind
        pause = 0.0 if not idle else FOLLOW_SECONDS if reader.assigned or (building and restoring) else longest
        global_moved = assembly.step_global(pause if building else 0.0)
        tasks.advance(pause if restoring and not global_moved and not tasks.opening else 0.0)
        busy = building or restoring or global_moved or tasks.opening
        if reader.assigned and not tasks.halted:
            waits = idle or self._idle_turns > IDLE_TURNS
            tasks.enqueue(reader.poll(0.0 if busy or not waits else committer.wait_seconds(now_ms, longest if idle else HELD_SECONDS)))
        elif not busy:
            self._wait(longest)
        self._process(assembly)
        tasks.balance(self._most_buffered, clock.monotonic_ms())
        committer.punctuate(clock.wall_ms())
        committer.commit_if_due(clock.monotonic_ms())
        assembly.jobs.run(clock.monotonic_ms())
        self._publish(assembly.publisher.current_state())

    def _process(self, assembly: Assembly) -> None:
        """Process records, and read and process more for about as long as the rest of a turn takes for so many tasks."""
        tasks, pace, transport = assembly.tasks, assembly.committer.pace, assembly.incarnations.current.transport
        end_ms = self._clock.monotonic_ms() + len(tasks) * LOOK_MS
        while True:
            done = self._process_some(tasks, pace)
            self._idle_turns = 0 if done or not tasks.buffered else self._idle_turns + 1
            transport.poll()
            if not done or self._clock.monotonic_ms() >= end_ms:
                return
            tasks.enqueue(assembly.reader.poll(0.0))

    def _process_some(self, tasks: TaskManager, pace: Pace) -> int:
        """Process records for about `TURN_MS`, at most about as many as fit the transaction. Return their number."""
        before = self._clock.monotonic_ms()
        if pace.room <= 0:
            return 0
        done = tasks.process(int(min(self._limit, pace.room)), before)
        pace.processed(done)
        took = self._clock.monotonic_ms() - before
        if took > TURN_MS:
            self._limit = max(FEWEST, self._limit * TURN_MS // took)
        elif done >= self._limit:
            self._limit = min(MOST, self._limit * 2)
        return done

    def _serve_inbox(self) -> None:
        while True:
            try:
                call = self._inbox.get_nowait()
            except Empty:
                return
            call()

    def _publish(self, state: State) -> None:
        self._assembled.publisher.publish(state)
        if state is not self._state:
            self._state = state
            self._spec.on_state(state)
