"""The worker's loop (Kafka Streams' `StreamThread`): one thread that reads, processes, commits, restores, and listens.

A turn of the loop does a bounded amount of each, so that nothing starves: commands and grants, a round of the global task, a round of the
restore, one poll, one run of records per task, punctuation, and a commit if one is due.

What can go wrong escapes a turn as one of four errors, and each has one way back (rules.md, 10):

    BrokerUnavailableError    nothing was changed: the next turn asks again
    TransactionAbortedError   roll back to the last commit and go on; tasks, producer and member id stay
    TaskCorruptedError        empty the stores of these tasks and restore them; the others go on
    TaskMigratedError         others may own the tasks now: close all dirty, begin a new incarnation, wait to be granted tasks again

Anything else ends the worker: tasks are closed dirty, and `run` raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue

from runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener
from runtime.clock import Clock
from runtime.config import StreamsConfig
from runtime.coordination.fleet import Fleet
from runtime.errors import BrokerUnavailableError, StreamsError, TaskCorruptedError, TaskMigratedError, TransactionAbortedError
from runtime.events import EventKind, EventSink
from runtime.metrics import Metrics
from runtime.states import State
from runtime.stores.directory import StateDirectory
from runtime.tasks.incidents import MOST_TEXT
from runtime.topology.topology import Topology
from runtime.worker.calls import Call, Stop
from runtime.worker.found import Found
from runtime.worker.memory import calm_collector
from runtime.worker.parts import Parts
from runtime.worker.queries import StoreQueryParameters
from runtime.worker.seat import Seat
from runtime.worker.tasks import TaskSet
from runtime.worker.view import TaskInfo, WorkerMetadata

logger = logging.getLogger(__name__)

__all__ = ["TaskInfo", "Worker", "WorkerMetadata"]

LONGEST_WAIT_SECONDS = 0.05
"""How long a turn waits for input: bounds how late a command or a call of another thread is noticed."""
FOLLOW_SECONDS = 0.002
"""How long a turn waits for changelogs where there is input that may come too."""
LISTEN_EVERY_MS = 50
CLOSELY_MS = 5
"""The same, and the longest wait of a turn, while a task is on its way from one member to another: every output of it waits for that."""
AWAY_SECONDS = 0.5
"""How long the loop rests when a broker did not answer; what was asked is asked again."""
STOP_MS = 30_000
"""How long a stop waits for a broker that does not answer, unless the caller said otherwise."""
LAST_WORD_MS = 2_000
"""How long a worker that has failed waits for a broker that does not answer, to say so; and what is left to one that leaves for its end."""
SMALLEST_BACKOFF_MS, LARGEST_BACKOFF_MS = 100, 5_000
PEACE_MS = 60_000
"""After so long without a failure the next one counts as the first, also if there was nothing to commit meanwhile."""
TURN_MS = 40
"""How long the tasks of one turn should take; the number of records per turn follows from it."""
FEWEST, MOST = 10, 20_000


class Worker:
    """One worker of a client. `run()` blocks in a thread of the client's; everything else is safe to call from any thread."""

    def __init__(
        self,
        *,
        config: StreamsConfig,
        topology: Topology,
        directory: StateDirectory,
        instance: str,
        clock: Clock,
        metrics: Metrics,
        events: EventSink,
        on_state: Callable[[State], None],
        restore_listener: StateRestoreListener | None = None,
        standby_listener: StandbyUpdateListener | None = None,
        log_path: str | None = None,
        seat: Seat | None = None,
        halted: bool = False,
        ask_to_close: Callable[[int | None], None] | None = None,
        joins: Callable[[int], None] = lambda incarnation: None,
    ) -> None:
        """`halted`: begins paused (KIP-834). `ask_to_close`: has the client closed, where an operator's command says so; without it the
        worker stops. `joins`: hears of each incarnation before the application does."""
        self.events = events
        self.metrics = metrics
        self._clock = clock
        self._on_state = on_state
        self._log_path = log_path
        self._stopping = threading.Event()
        self._stop_at_ms: int | None = None
        self._stop = Stop()
        self._draining = False
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._ended = False
        self._progressed_ms = clock.monotonic_ms()
        self._make_parts = partial(
            Parts,
            config=config,
            topology=topology,
            directory=directory,
            instance=instance,
            clock=clock,
            metrics=metrics,
            events=events,
            restore_listener=restore_listener,
            standby_listener=standby_listener,
            log_path=log_path,
            give_up=self._gives_up,
            ask_to_close=ask_to_close or (lambda timeout_ms: self.request_stop(Stop(timeout_ms))),
            seat=seat or Seat(),
            joins=joins,
        )
        self._parts = self._make_parts(halted=halted)
        self._state = State.CREATED
        self._limit = 1000
        self._listen_at_ms = 0
        self._failures = 0
        self._failed_at_ms = 0
        self._steps = 0

    # -- from other threads ----------------------------------------------------------------------------------------------------

    def request_stop(self, stop: Stop) -> None:
        """Asks the worker to commit, close and end. Returns at once."""
        self._stop_at_ms = self._clock.monotonic_ms() + (STOP_MS if stop.timeout_ms is None else stop.timeout_ms)
        self._stop = stop
        self._stopping.set()

    @property
    def idle_ms(self) -> int:
        """Time in ms since the last turn of the loop, or attempt at something that the broker does not answer."""
        return self._clock.monotonic_ms() - self._progressed_ms

    def _gives_up(self) -> bool:
        self._progressed_ms = self._clock.monotonic_ms()
        return self._stop_at_ms is not None and self._clock.monotonic_ms() >= self._stop_at_ms

    def do(self, call: Call, *arguments: object) -> object:
        """Carries out a call now. Only on the worker's own thread."""
        result = self._parts.carry_out(call, arguments)
        self._parts.publish(self._state)  # before the answer: who was told that a task is resumed must not still see it paused
        return result

    def call(self, call: Call, *arguments: object) -> Future[object]:
        """Has a call carried out on the worker's thread, between two batches. The future fails with StreamsError if the worker has
        ended."""
        future: Future[object] = Future()

        def run() -> None:
            if self._ended:
                future.set_exception(StreamsError("the stream thread has ended"))
                return
            try:
                future.set_result(self.do(call, *arguments))
            except Exception as error:  # noqa: BLE001 (it belongs to the caller)
                future.set_exception(error)

        self._inbox.put(run)
        if self._ended:
            self._serve_inbox()
        return future

    def metadata(self) -> WorkerMetadata:
        """The worker and its tasks, as of the last commit or change."""
        return self._parts.view.metadata

    def fleet(self) -> Fleet | None:
        """What this worker knows of the whole application, as of the last record that it read; None for nothing yet."""
        return self._parts.view.fleet

    def find(self, parameters: StoreQueryParameters) -> Found:
        """The parts of a store that this worker has open now."""
        return self._parts.view.find(parameters)

    def report_damage(self, error: TaskCorruptedError) -> None:
        """A query of another thread found damaged files: met by the worker as if it had found them itself."""
        found_ms = self._clock.monotonic_ms()

        def meet() -> None:
            if not self._ended and not self._parts.rebuilt_since(error, found_ms):
                raise error

        self._inbox.put(meet)

    def instance_state(self, old: State, new: State) -> dict[str, object]:
        """The payload of INSTANCE_STATE."""
        return self._parts.instance_state(old, new)

    # -- the worker's thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs until a stop is requested. Raises what ended the worker otherwise; its tasks are closed dirty then."""
        clean = False
        try:
            self._parts.start()
            with calm_collector():
                while not self._stopping.is_set():
                    self._guarded(self._turn)
                    if self._parts.other_topics_match():
                        self._begin_anew()
                self._drain()
            self._guarded(self._parts.commit)
            clean = True
        except TaskMigratedError:
            if not self._stopping.is_set():
                raise
            logger.warning("closing without a last commit: the tasks were lost, or the broker did not answer")
        except Exception as error:
            self.events.emit(EventKind.SHUTDOWN, {"reason": f"{type(error).__name__}: {error}"[:MOST_TEXT]})
            if self._stop_at_ms is None:
                self._stop_at_ms = self._clock.monotonic_ms() + LAST_WORD_MS
            self._parts.tell_the_end()
            raise
        finally:
            try:
                self._parts.close(clean=clean, leave_group=self._stop.leave_group)
            finally:
                self._ended = True
                self._serve_inbox()

    def _begin_anew(self) -> None:
        """As a restart of the instance, but that all stays in place: the members count its tasks as its own meanwhile."""
        logger.info("other topics match the patterns of the topology: beginning anew")
        self._show(State.REBALANCING)
        self._guarded(self._parts.commit)
        halted = self._parts.tasks.halted
        self._parts.close(clean=True, leave_group=False)
        self._parts = self._make_parts(halted=halted)
        self._parts.start()

    def _drain(self) -> None:
        """Who leaves for good goes on until the others have learned its tasks and taken them over (rules.md, 4), or its time is up but for
        a clean end, or nobody is left to take them."""
        stays = self._stop.siblings_stay
        if not self._stop.leave_group or self._stop_at_ms is None or not self._parts.to_be_handed_over(stays):
            return
        logger.info("leaving: the tasks are handed over as soon as others have learned them")
        self._draining = True
        self._parts.ask_to_leave()
        while self._parts.to_be_handed_over(stays) and self._clock.monotonic_ms() < self._stop_at_ms - LAST_WORD_MS:
            self._guarded(self._turn)

    def _rest(self, seconds: float) -> bool:
        """Waits; shorter if a stop is asked for meanwhile. True if one was."""
        if self._draining:
            time.sleep(seconds)
            return True
        return self._stopping.wait(seconds)

    def _guarded(self, step: Callable[[], object]) -> None:
        """One step, and the way back from what it raises."""
        try:
            step()
        except BrokerUnavailableError as error:
            logger.warning("%s; trying again", error)
            self._rest(AWAY_SECONDS)
        except TransactionAbortedError as error:
            self._recover(self._parts.roll_back, error)
        except TaskCorruptedError as error:
            self._recover(partial(self._parts.wipe, error), error)
        except TaskMigratedError as error:
            if self._gives_up():
                raise
            self._recover(self._parts.begin_incarnation, error)

    def _recover(self, way_back: Callable[[], None], error: StreamsError) -> None:
        """Tries the way back until it works; the broker may be away. Raises TaskMigratedError when a stop's time is up.

        What fails again before anything was committed fails for a reason that stays: each time the pause before the next attempt is longer.
        """
        now_ms = self._clock.monotonic_ms()
        if self._steps != self._parts.steps or now_ms - self._failed_at_ms > PEACE_MS:
            self._failures = 0
        self._steps = self._parts.steps
        while True:
            logger.warning("%s", error)
            self._failures += 1
            self._failed_at_ms = self._clock.monotonic_ms()
            pause_ms = min(LARGEST_BACKOFF_MS, SMALLEST_BACKOFF_MS << min(max(self._failures - 2, 0), 6))
            if self._failures > 1 and self._rest(pause_ms / 1000) and self._gives_up():
                raise TaskMigratedError(f"closing: {error}") from error
            try:
                way_back()
            except TaskMigratedError as next_error:
                way_back, error = self._parts.begin_incarnation, next_error
            except TransactionAbortedError as next_error:
                way_back, error = self._parts.roll_back, next_error
            except TaskCorruptedError as next_error:
                way_back, error = partial(self._parts.wipe, next_error), next_error
            else:
                self._show(self._parts.state())  # a store that is rebuilt within a turn was RESTORING all the same
                return

    def _turn(self) -> None:
        parts, clock = self._parts, self._clock
        tasks = parts.tasks
        now_ms = self._progressed_ms = clock.monotonic_ms()
        self._serve_inbox()
        if now_ms >= self._listen_at_ms:
            parts.listen(now_ms)
            self._listen_at_ms = now_ms + (CLOSELY_MS if parts.moving else LISTEN_EVERY_MS)
        longest = CLOSELY_MS / 1000 if parts.moving else LONGEST_WAIT_SECONDS
        global_moved = parts.step_global()
        idle = not tasks.buffered or tasks.halted
        busy_restoring = bool(parts.restorer.restoring) or parts.followers.behind
        tasks.advance((FOLLOW_SECONDS if parts.reader.assigned else longest) if busy_restoring and idle else 0.0)
        if parts.reader.assigned and not tasks.halted:
            wait = 0.0 if busy_restoring or global_moved or not idle else parts.wait_seconds(now_ms, longest)
            tasks.take(parts.reader.poll(wait))
            tasks.balance(parts.most_buffered)
        elif not busy_restoring:
            self._rest(longest)
        self._process(tasks)
        parts.transport.poll()
        tasks.punctuate(clock.wall_ms())
        parts.commit_if_due(clock.monotonic_ms())
        parts.chores(clock.monotonic_ms())
        self._show(parts.state())

    def _process(self, tasks: TaskSet) -> None:
        """One run of records per task, of a size that takes about `TURN_MS`."""
        before = self._clock.monotonic_ms()
        done = tasks.process(self._limit, before)
        took = self._clock.monotonic_ms() - before
        if took > TURN_MS:
            self._limit = max(FEWEST, self._limit * TURN_MS // took)
        elif done >= self._limit:
            self._limit = min(MOST, self._limit * 2)

    def _serve_inbox(self) -> None:
        while True:
            try:
                call = self._inbox.get_nowait()
            except Empty:
                return
            call()

    def _show(self, state: State) -> None:
        self._parts.publish(state)
        if state is not self._state:
            self._state = state
            self._on_state(state)
