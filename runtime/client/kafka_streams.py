"""`KafkaStreams`: the client that runs a topology (Kafka Streams' class of the same name).

The client owns the life cycle only: workers (`runtime.worker`) do the work, one in a thread of this process, several each in a
process of its own, and everything asked of them from outside (resume a task, read metadata) goes through a worker's inbox or reads a
snapshot that the worker swaps in, so that no lock is shared with the hot path. The client's state is derived from the workers' and moves
only as `penstock.runtime.model.states` allows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from functools import partial
from queue import Empty, SimpleQueue
from signal import Signals
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar, cast

from penstock.runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener, with_named_failures
from penstock.runtime.client.running import EXIT_CLEAN, end_at_once, end_stalled, log_failure, log_refusal, received_signals
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import Shutdown, encode
from penstock.runtime.coordination.streams_metadata import KeyChooser, KeyQueryMetadata, StreamsMetadata, StreamsMetadataState
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.shared_log import RecordWriter
from penstock.runtime.model.clock import Clock, SystemClock
from penstock.runtime.model.errors import ApplicationShutdownError, InvalidStateStoreError, StreamsError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.metrics import CLIENT, MetricName, Metrics
from penstock.runtime.model.states import CLIENT_MOVES
from penstock.runtime.model.states import State as ClientState
from penstock.runtime.model.user_errors import described, pass_ctrl_c
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.tasks.incidents import MOST_TEXT
from penstock.runtime.topology.factory import build_topology, checked_topology, warn_of_no_effect
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.metadata import LagInfo, TaskMetadata, ThreadMetadata, thread_metadata
from penstock.runtime.worker.queries import IsolationLevel, StoreQuery, StoreQueryParameters
from penstock.runtime.worker.rpc import Call, Positions, Stop
from penstock.runtime.worker.spec import WorkerIdentity
from penstock.runtime.worker.state_queries import FailureReason, QueryResult, StateQueryRequest, StateQueryResult
from penstock.runtime.worker.supervisor.factory import WorkerFactory
from penstock.runtime.worker.supervisor.stream_worker import StreamWorker
from penstock.runtime.worker.supervisor.supervisor import Supervisor, SupervisorCallbacks

if TYPE_CHECKING:
    from penstock.runtime.endpoint import HttpEndpoint

logger = logging.getLogger(__name__)

R = TypeVar("R")

_ANSWER_TIMEOUT_S = 60.0
"""Time-out of calls to a stream thread, which may be in the middle of a batch or a commit."""


class StreamThreadExceptionResponse(Enum):
    """Decision of an uncaught-exception handler (KIP-671).

    SHUTDOWN_CLIENT ends this client in ERROR; its other workers commit first. SHUTDOWN_APPLICATION ends all running clients of the
    application so: the request is a record on the coordination topic, which clients that start later ignore.
    """

    REPLACE_THREAD = "REPLACE_THREAD"
    SHUTDOWN_CLIENT = "SHUTDOWN_CLIENT"
    SHUTDOWN_APPLICATION = "SHUTDOWN_APPLICATION"


StateListener = Callable[[ClientState, ClientState], None]
ExceptionHandler = Callable[[BaseException], StreamThreadExceptionResponse]


class KafkaStreams:
    """Runs a topology against a Kafka cluster until it is closed. A context manager: leaving the block closes it.

    `topology` is one that was built, or the name of a function that builds it, `module:function`, which `num.stream.threads` above 1 needs:
    each worker is then a process that builds the topology itself. `config` is a mapping of Kafka Streams' keys or a
    `StreamsConfig`; a wrong one raises StreamsConfigError here. No broker is contacted before `start()`. `log_path` is published in
    MEMBER records and events, so that an operator finds the log of a process.
    """

    State: TypeAlias = ClientState

    def __init__(
        self,
        topology: Topology | str,
        config: Mapping[str, object] | StreamsConfig,
        *,
        clock: Clock | None = None,
        log_path: str | None = None,
    ) -> None:
        self._config = config if isinstance(config, StreamsConfig) else StreamsConfig(config)
        made = build_topology(topology) if isinstance(topology, str) else checked_topology(topology)
        self._topology = made.resolved(self._config)
        turn_ms = self._topology.longest_turn_ms(unlimited_ms=self._config.integer("max.poll.interval.ms"))
        self._config = self._config.with_time_for_calls(turn_ms)
        if generated := made.generated_names():
            logger.warning(
                "names were generated, which move when something is put before them, and with them the state: %s "
                "(ensure.explicit.internal.resource.naming = true refuses this)",
                generated,
            )
        warn_of_no_effect(self._topology)
        self._clock = clock or SystemClock()
        self._application = self._config.application_id
        self._isolation_level = IsolationLevel(self._config.text("default.state.isolation.level"))
        self._directory = StateDirectory(self._config.state_dir, self._application)
        self._state = ClientState.CREATED
        self._state_changed = threading.Condition(threading.RLock())
        self._listener: StateListener | None = None
        self._exception_handler: ExceptionHandler | None = None
        self._servers: list[HttpEndpoint] = []
        self._failure: BaseException | None = None
        self._wakeups: SimpleQueue[int | None] = SimpleQueue()
        """For `run()`: the number of a signal, or None at the client's end."""
        self._listening = threading.local()
        """`inside` is True on the thread that runs the state listener."""
        self._metrics = Metrics(client_id=self._config.client_id or self._application)
        owner = SupervisorCallbacks(self._workers_changed, self._close_wanted, self._shall_replace, self._failing, self._all_ended)
        self._supervisor = Supervisor(owner, self._clock, self._config.integer("max.poll.interval.ms"))
        self._worker_factory = WorkerFactory(
            config=self._config,
            topology=self._topology,
            factory=topology if isinstance(topology, str) else None,
            directory=self._directory,
            clock=self._clock,
            log_path=log_path,
        )
        self._places = StreamsMetadataState(self._topology, self._config.application_server, self._supervisor.fleet)
        self._metrics.gauge_of("alive-stream-threads", CLIENT, lambda: float(len(self._supervisor.workers)))

    # -- life cycle ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Lock the state directory and start the workers; return at once. `state` shows the progress. Workers do not outlive the program.

        Raises StateDirectoryLockedError or StateDirectoryError if the state directory cannot be used, StreamsError if the client was
        started before or a port (`metrics.port`, `http.port`) is in use. Later failures go to the uncaught-exception handler and end
        in ERROR.
        """
        with self._state_changed:
            if self._state is not ClientState.CREATED:
                raise StreamsError(f"the client was started before (state {self._state.value}): make a new KafkaStreams to start again")
            self._directory.lock()
            of_state = {"process_id": self._directory.process_id, "application_id": self._application}
            self._metrics.gauge_of("client-state", CLIENT, lambda: float(self._state.number), **of_state)
            instance = self._instance
            count = self._config.integer("num.stream.threads")
            try:
                self._directory.remove_global_copies(above=count)
                self._serve()
                make = partial(self._worker_factory.make, self._supervisor, instance)
                self._supervisor.configure(count, make, lambda number: WorkerIdentity(number).thread_name(instance))
            except BaseException:
                self._stop_serving()
                self._directory.unlock()
                raise
            self._move(ClientState.REBALANCING)
            self._supervisor.start(self._directory.await_previous_workers)

    def run(self, *, leave_group: bool = False) -> int:
        """Start, block until the client has ended, and return the exit status of the process: `sys.exit(streams.run())`.

        The first SIGTERM or SIGINT (Ctrl-C) closes the client like `close(leave_group=leave_group)`; the second ends the process at once,
        without a commit, with status 128 + its number. The previous handlers are restored when this returns. On another thread than the
        main one Python handles no signals: a warning says so, and `close()` ends it.

        Returns 0 if the client was closed. Otherwise the error is logged, and the status is 1 if the client failed while running, 2 if the
        topology does not fit the state or the running members, 3 if the state directory cannot be used. If a stream thread makes no
        progress for `max.poll.interval.ms`, the process ends with status 4 (rules.md, 7). Raises StreamsError if the client was started
        before.
        """
        self._require_created("run")
        with received_signals(self._wakeups.put):
            try:
                self.start()
            except StreamsError as error:
                return log_refusal(error)
            self._wait_until_ended(leave_group)
            self._supervisor.join(None)
            if self._state is ClientState.ERROR:
                return log_failure(self._failure)
            logger.info("instance %s closed cleanly", self._instance)
            return EXIT_CLEAN

    def _wait_until_ended(self, leave_group: bool) -> None:
        limit_ms = self._config.integer("max.poll.interval.ms")
        closing = False
        while not self._state.has_completed_shutdown():
            try:
                number = self._wakeups.get(timeout=min(1.0, limit_ms / 4000))
            except Empty:
                if not closing and self.ms_since_progress > limit_ms:
                    end_stalled(self._instance, limit_ms)
                continue
            if number is not None:
                if closing:
                    end_at_once(number)
                closing = True
                logger.info("signal %s: closing; a second one ends the process at once, without a commit", Signals(number).name)
                self._request_close(Stop(None, leave_group))

    def add_stream_thread(self) -> str | None:
        """Start one more worker process (KIP-663). Return its name, or None if the client is not running. Raises StreamsConfigError if the
        client was given a topology instead of a factory."""
        self._worker_factory.check_processes()
        with self._state_changed:
            return self._supervisor.add() if self._state.is_running_or_rebalancing() else None

    def remove_stream_thread(self, timeout: timedelta | int | None = None) -> str | None:
        """Stop the worker with the largest number, once others have taken its tasks over (KIP-663). Return its name, or None if the client
        is not running or has no worker. Raises TimeoutError if it has not ended within `timeout` (ms or timedelta; None: no limit); it
        keeps closing then."""
        return self._supervisor.remove(_milliseconds(timeout)) if self._state.is_running_or_rebalancing() else None

    def _serve(self) -> None:
        """Start the HTTP servers. Raises StreamsError if a port is in use."""
        config = self._config
        if not config.metrics_port and not config.integer("http.port"):
            return
        from penstock.runtime.endpoint import HttpEndpoint, Routes, metrics_server  # imports Python's server, and Prometheus

        if config.metrics_port:
            self._servers.append(metrics_server(self.metrics, config.metrics_port))
        if config.integer("http.port"):
            routes = Routes(self, self._places, self._supervisor.fleet)
            self._servers.append(HttpEndpoint(routes, config.text("http.host"), config.integer("http.port"), config.http_token))

    def _stop_serving(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    # -- callbacks of the supervisor ---------------------------------------------------------------------------------------------------

    def _workers_changed(self) -> None:
        """Update the client's state."""
        with self._state_changed:
            state = self._supervisor.state
            if state is not None and not self._ending():
                self._move(state)

    def _close_wanted(self, timeout_ms: int | None) -> None:
        """Close by an operator's command."""
        self._request_close(Stop(timeout_ms))

    def _shall_replace(self, error: BaseException) -> bool:
        """Return the handler's decision on a failed worker. It is not asked about another client's request to shut down."""
        if self._exception_handler is None or isinstance(error, ApplicationShutdownError):
            return False
        try:
            answer: object = self._exception_handler(error)  # an application without a type checker may return anything
        except BaseException:
            logger.exception("the uncaught-exception handler itself failed: the client shuts down")
            return False
        if answer is StreamThreadExceptionResponse.SHUTDOWN_APPLICATION:
            self._shut_down_application(error)
        elif not isinstance(answer, StreamThreadExceptionResponse):
            logger.error("the uncaught-exception handler returned %r, no StreamThreadExceptionResponse: the client shuts down", answer)
        return answer is StreamThreadExceptionResponse.REPLACE_THREAD

    def _shut_down_application(self, error: BaseException) -> None:
        """Ask all other clients of the application to close."""
        config, topic = self._config, coordination_topic(self._application)
        request = Shutdown(by=self._instance, error=described(error)[:MOST_TEXT], at_ms=self._clock.wall_ms())
        logger.error("the application is shut down, as its uncaught-exception handler has answered")
        writer = RecordWriter(Connection.of(config.admin_properties()), topic)
        try:
            writer.write(request.key, encode(request))
        except StreamsError as unwritten:
            logger.error("the other clients of %s are not notified and keep running: %s", self._application, unwritten)
        finally:
            writer.close()

    def _failing(self, error: BaseException) -> None:
        """Note the error that ends the client."""
        self._failure = error
        self._move(ClientState.PENDING_ERROR)

    def _all_ended(self, error: BaseException | None) -> None:
        """Handle the end of the last worker."""
        self._stop_serving()
        self._directory.unlock()
        self._move(ClientState.NOT_RUNNING if error is None else ClientState.ERROR)

    def _ending(self) -> bool:
        return self._state in (ClientState.PENDING_SHUTDOWN, ClientState.PENDING_ERROR) or self._state.has_completed_shutdown()

    # -- the end ---------------------------------------------------------------------------------------------------------------

    def close(self, timeout: timedelta | int | None = None, leave_group: bool = True) -> bool:
        """Stop processing, commit, and close. Return True once closed, False if `timeout` (ms or timedelta; None: no limit) expired first.
        Safe to call twice, from any thread, and from the state listener.

        While other clients of the application run, this one keeps processing its tasks until they have learned them, for at most `timeout`,
        or 30 s (rules.md, 4).

        `leave_group=False` is for restarts and rolling deploys: the leader keeps the tasks for this instance for `restart.grace.ms`
        (rules.md, 4).
        """
        milliseconds = _milliseconds(timeout)
        self._request_close(Stop(milliseconds, leave_group))
        self._supervisor.join(None if milliseconds is None else milliseconds / 1000)
        return self._state.has_completed_shutdown()

    def _request_close(self, stop: Stop) -> None:
        with self._state_changed:
            if self._state is ClientState.CREATED:
                self._move(ClientState.PENDING_SHUTDOWN)
                self._move(ClientState.NOT_RUNNING)
            elif not self._ending():
                self._move(ClientState.PENDING_SHUTDOWN)
                self._supervisor.request_stop(stop)

    def clean_up(self) -> None:
        """Delete the local state of this application. Only before `start()` and after `close()`; raises StreamsError otherwise."""
        if self._state is not ClientState.CREATED and not self._state.has_completed_shutdown():
            raise StreamsError(f"clean_up() deletes local state: close the client first (state {self._state.value})")
        self._directory.lock()
        try:
            self._directory.wipe()
        finally:
            self._directory.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- states ----------------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClientState:
        return self._state

    @property
    def config(self) -> StreamsConfig:
        """Checked configuration, with all defaults."""
        return self._config

    @property
    def ms_since_progress(self) -> int:
        """Milliseconds since a stream thread of this process last made progress; 0 without one. More than `max.poll.interval.ms` means that
        user code hangs (rules.md, 7). Worker processes do not count: one that hangs is killed and replaced."""
        return 0 if self._state.has_completed_shutdown() else self._supervisor.idle_ms

    @property
    def failure(self) -> BaseException | None:
        """Error that ended the client, if its state is ERROR."""
        return self._failure

    def _move(self, new: ClientState) -> None:
        """Move to a state if that is legal. A move that is not is ignored, as in Kafka Streams: two ends may race for the state."""
        with self._state_changed:
            old = self._state
            if new is old or new not in CLIENT_MOVES[old]:
                return
            self._state = new
            self._state_changed.notify_all()
            listener = self._listener
        logger.info("state transition from %s to %s", old.value, new.value)
        self._supervisor.publish_state(old, new)
        if listener is not None:
            self._listening.inside = True
            try:
                listener(new, old)
            except BaseException as error:  # the transition is made, and what follows from it has to come
                pass_ctrl_c(error, f"state listener, at the move from {old.value} to {new.value}")
                logger.exception("the state listener failed at the move from %s to %s", old.value, new.value)
            finally:
                self._listening.inside = False
        if new.has_completed_shutdown():
            self._wakeups.put(None)

    def wait_for(self, state: ClientState, timeout: timedelta | int) -> bool:
        """Wait until the client is in `state`. Return False if `timeout` (ms or timedelta) passed or the client ended in another state."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout / 1000
        with self._state_changed:
            self._state_changed.wait_for(lambda: self._state is state or self._state.has_completed_shutdown(), seconds)
            return self._state is state

    def set_state_listener(self, listener: StateListener) -> None:
        """`listener(new_state, old_state)` is called at each transition, from the thread that makes it; what it raises is logged. Only
        before `start()`."""
        self._require_created("set_state_listener")
        self._listener = listener

    def set_uncaught_exception_handler(self, handler: ExceptionHandler) -> None:
        """`handler(exception)` decides whether a failed stream thread is replaced, or the client or the whole application shuts down
        (KIP-671). Only before `start()`."""
        self._require_created("set_uncaught_exception_handler")
        self._exception_handler = handler

    def set_global_state_restore_listener(self, listener: StateRestoreListener) -> None:
        """Set the listener that is notified of every store that is restored. Only before `start()`. What it raises is a failure like that
        of an operator: the handler of uncaught exceptions decides."""
        self._require_created("set_global_state_restore_listener")
        self._worker_factory.restore_listener = with_named_failures(listener)

    def set_standby_update_listener(self, listener: StandbyUpdateListener) -> None:
        """Set the listener that is notified of every store of a standby or learner. Only before `start()`. What it raises is a failure like
        that of an operator: the handler of uncaught exceptions decides."""
        self._require_created("set_standby_update_listener")
        self._worker_factory.standby_listener = with_named_failures(listener)

    @property
    def _instance(self) -> str:
        return self._config.client_id or f"{self._application}-{self._directory.process_id[:8]}"

    def _require_created(self, name: str) -> None:
        if self._state is not ClientState.CREATED:
            raise StreamsError(f"{name} is only possible before start() (state {self._state.value})")

    # -- tasks -----------------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause processing of all tasks of this client (KIP-834); they stay assigned. Ends with `resume()`."""
        self._answers("pause", self._supervisor.halt(True, self._asked("pause")))

    def is_paused(self) -> bool:
        """Return True from `pause()` to `resume()`. Tasks that are paused each by itself do not count (`paused_local_tasks`)."""
        return self._supervisor.halted

    def resume(self, task_id: TaskId | None = None) -> bool:
        """With a task id (KIP-990): reads the task's committed offsets again and runs on from there. True once the task has left PAUSED,
        False if it was not paused or is not of this client. If the offsets cannot be read it stays PAUSED and StreamsError is raised.

        Without a task id (KIP-834): ends `pause()`; tasks that met a bad record stay PAUSED. Returns True.
        """
        if task_id is None:
            self._answers("resume", self._supervisor.halt(False, self._asked("resume")))
            return True
        what = f"resume task {task_id}"
        return any(self._answers(what, [worker.call(Call.RESUME, task_id) for worker in self._asked(what)]))

    def _asked(self, what: str) -> list[StreamWorker]:
        """Return the workers, each to be asked to do something between two batches; on a stream thread of this process (in a state
        listener, a handler, a processor) that is done at once. Raises StreamsError if no answer can come."""
        workers = self._running_workers(what)
        if getattr(self._listening, "inside", False) and not (workers and all(worker.may_be_asked for worker in workers)):
            raise StreamsError(
                f"{what}: not from the state listener at the move to {self._state.value}, which waits for the listener to return; "
                "do it at the move to RUNNING, or from another thread"
            )
        return workers

    def _answers(self, what: str, asked: list[Future[object]]) -> list[object]:
        """Return the workers' answers. Raises the first worker's error once all have answered; StreamsError if an answer is missing."""
        try:
            for future in asked:
                future.exception(_ANSWER_TIMEOUT_S)
        except FutureTimeoutError as error:
            raise StreamsError(f"{what}: no answer from the stream thread within {_ANSWER_TIMEOUT_S:.0f} s") from error
        return [future.result() for future in asked]

    def paused_local_tasks(self) -> set[TaskMetadata]:
        """Return the tasks of this client that are PAUSED (KIP-990)."""
        return {
            task
            for thread in self.metadata_for_local_threads()
            for task in thread.active_tasks | thread.standby_tasks | thread.learner_tasks
            if not task.is_running
        }

    def metadata_for_local_threads(self) -> set[ThreadMetadata]:
        """Return the workers of this client and their tasks, as of the last commit or change."""
        return {thread_metadata(worker.name, worker.metadata()) for worker in self._running_workers("metadata_for_local_threads")}

    def all_local_store_partition_lags(self) -> dict[str, dict[int, LagInfo]]:
        """For each local store and partition, how far it is behind its changelog (KIP-535)."""
        what = "all_local_store_partition_lags"
        lags: dict[str, dict[int, LagInfo]] = {}
        for answer in self._answers(what, [worker.call(Call.STORE_POSITIONS) for worker in self._asked(what)]):
            for store, partitions in cast(Positions, answer).items():
                lags.setdefault(store, {}).update({number: LagInfo(*positions) for number, positions in partitions.items()})
        return lags

    # -- reading ---------------------------------------------------------------------------------------------------------------

    def store(self, parameters: str | StoreQueryParameters) -> StoreQuery:
        """Return a read-only view of a store's content on this client, global tables included (KIP-67). `parameters` is the store's name,
        or says more than that. Committed data, the default, is read without waiting for processing; a read of uncommitted data waits for
        the stream thread to finish a batch (KIP-892).

        Raises InvalidStateStoreError if the store is unknown, or not here, or a part of it is still being restored; parameters with
        `enable_stale_stores()` read that part as it is by now, and copies too (KIP-535). A client that is being closed answers until its
        tasks are closed, which may take until others have learned them.
        """
        wanted = StoreQueryParameters(parameters) if isinstance(parameters, str) else parameters
        self._require_readable(wanted.store_name)
        wanted = replace(wanted, isolation_level=IsolationLevel(wanted.isolation_level or self._isolation_level))
        query = StoreQuery(wanted, lambda: self._supervisor.parts(wanted), self._supervisor.report_damage)
        query.views()
        return query

    def query(self, request: StateQueryRequest[R]) -> StateQueryResult[R]:
        """Query the partitions of a store on this client; each answers or fails for itself (KIP-796). A global store answers as
        `global_result`.

        Raises InvalidStateStoreError if the topology has no such store, the client does not run, or a worker does not answer.
        """
        self._require_readable(request.store_name)
        store = self._places.store(request.store_name)
        isolation = IsolationLevel(request.isolation_level or self._isolation_level)
        found = self._supervisor.query(replace(request, isolation_level=isolation))
        if store.is_global:
            absent: QueryResult[R] = QueryResult(None, FailureReason.NOT_PRESENT, f"global store {store.name!r} is not open yet")
            return StateQueryResult({}, found.get(None, absent))
        answers = {partition: answer for partition, answer in found.items() if partition is not None}
        number = self._places.partitions(store)
        for partition in (request.partitions or frozenset()) - answers.keys():
            if 0 < number <= partition:
                answers[partition] = QueryResult(None, FailureReason.DOES_NOT_EXIST, f"the store has partitions 0 to {number - 1}")
            else:
                answers[partition] = QueryResult(None, FailureReason.NOT_PRESENT, f"partition {partition} is not on this client")
        return StateQueryResult(dict(sorted(answers.items())))

    def _require_readable(self, store: str) -> None:
        if not (self._state.is_running_or_rebalancing() or self._state is ClientState.PENDING_SHUTDOWN):
            raise InvalidStateStoreError(f"store {store!r}: the client is {self._state.value}, stores can be read while it runs")

    def query_metadata_for_key(self, store: str, key: object, serializer_or_partitioner: KeyChooser | None = None) -> KeyQueryMetadata:
        """Return the instances of the application that have a key of a store (KIP-535). The key's partition is computed with the store's
        own serde; with another serde or a function from keys to bytes; or with a partitioner, if the store's input was written with one.

        Raises InvalidStateStoreError for an unknown store, StreamsError if the client does not run or the key has no one partition.
        """
        self._running_workers("query_metadata_for_key")
        return self._places.of_key(store, key, serializer_or_partitioner)

    def metadata_for_all_streams_clients(self) -> list[StreamsMetadata]:
        """Return the instances of the application that have an address (`application.server`), including this one. Raises StreamsError if
        the client does not run."""
        self._running_workers("metadata_for_all_streams_clients")
        return self._places.all()

    def streams_metadata_for_store(self, store: str) -> list[StreamsMetadata]:
        """Return the instances with an address that have a part of a store, or a copy of one. Raises InvalidStateStoreError for an unknown
        store."""
        self._running_workers("streams_metadata_for_store")
        return self._places.for_store(store)

    def metrics(self) -> dict[MetricName, float]:
        """Return all metrics now, under Kafka Streams' names (docs/metrics.md); those of a worker have its name as `thread-id`."""
        found = self._metrics.values()
        for of_worker in self._supervisor.metrics():
            found.update(of_worker)
        return found

    def _running_workers(self, what: str) -> list[StreamWorker]:
        if self._state is ClientState.CREATED or self._state.has_completed_shutdown():
            raise StreamsError(f"{what}: the client is not running (state {self._state.value})")
        return self._supervisor.workers


def _milliseconds(timeout: timedelta | int | None) -> int | None:
    return int(timeout.total_seconds() * 1000) if isinstance(timeout, timedelta) else timeout
