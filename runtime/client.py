"""KafkaStreams: what a program holds while its topology runs (Kafka Streams' class of the same name).

The client owns the life cycle and nothing else: a worker (`runtime.worker`) does the work in a thread of its own, and everything
asked of it from outside (resume a task, read metadata) goes through the worker's inbox or reads a snapshot that the worker swaps in,
so that no lock is shared with the hot path. The client's state is derived from the worker's and moves only as `runtime.states` allows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import TracebackType
from typing import Self, TypeVar

from confluent_kafka import TopicPartition

from runtime import logs
from runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener
from runtime.clock import Clock, SystemClock
from runtime.config import StreamsConfig
from runtime.coordination.fleet import Fleet
from runtime.endpoint import HttpEndpoint, Routes
from runtime.errors import DeserializationError, InvalidStateStoreError, ProcessingError, StreamsError
from runtime.events import EventKind, EventSink
from runtime.fleet import KeyChooser, KeyQueryMetadata, StreamsMetadata, StreamsMetadataState
from runtime.ids import TaskId
from runtime.metrics import CLIENT, MetricName, Metrics, MetricsServer
from runtime.states import CLIENT_MOVES, TaskKind, TaskState
from runtime.states import State as ClientState
from runtime.stores.directory import StateDirectory
from runtime.topology.topology import Topology
from runtime.worker.loop import TaskInfo, Worker
from runtime.worker.queries import StoreQuery, StoreQueryParameters
from runtime.worker.tasks import TaskSet

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 60.0
"""How long a call waits for the stream thread, which may be in the middle of a batch or a commit."""

T = TypeVar("T")


class StreamThreadExceptionResponse(Enum):
    """What an uncaught-exception handler decides (KIP-671)."""

    REPLACE_THREAD = "REPLACE_THREAD"
    SHUTDOWN_CLIENT = "SHUTDOWN_CLIENT"


StateListener = Callable[[ClientState, ClientState], None]
ExceptionHandler = Callable[[BaseException], StreamThreadExceptionResponse]


@dataclass(frozen=True, slots=True)
class TaskMetadata:
    """A task of this client (Kafka Streams' `TaskMetadata`, with `is_running` of KIP-990). Offsets are next offsets."""

    task_id: TaskId
    topic_partitions: frozenset[TopicPartition]
    committed_offsets: Mapping[TopicPartition, int]
    end_offsets: Mapping[TopicPartition, int]
    time_current_idling_started: int | None
    kind: TaskKind
    state: TaskState

    @property
    def is_running(self) -> bool:
        """False only for a task that is PAUSED."""
        return self.state is not TaskState.PAUSED

    def __hash__(self) -> int:
        return hash((self.task_id, self.kind))


@dataclass(frozen=True, slots=True)
class ThreadMetadata:
    """A worker of this client and its tasks (Kafka Streams' `ThreadMetadata`)."""

    thread_name: str
    thread_state: str
    active_tasks: frozenset[TaskMetadata]
    standby_tasks: frozenset[TaskMetadata]
    learner_tasks: frozenset[TaskMetadata]


@dataclass(frozen=True, slots=True)
class LagInfo:
    """How far a local store is behind the end of its changelog, in records (KIP-535)."""

    current_offset_position: int
    end_offset_position: int

    @property
    def offset_lag(self) -> int:
        return max(0, self.end_offset_position - self.current_offset_position)


class KafkaStreams:
    """Runs a topology against a Kafka cluster until it is closed. A context manager: leaving the block closes it.

    `config` is a mapping of Kafka Streams' keys or a `StreamsConfig`; a wrong one raises StreamsConfigError here. Nothing is contacted
    before `start()`. `log_path` is only told on (MEMBER records and events), so that an operator finds the log of a process.
    """

    State = ClientState

    def __init__(
        self,
        topology: Topology,
        config: Mapping[str, object] | StreamsConfig,
        *,
        clock: Clock | None = None,
        log_path: str | None = None,
    ) -> None:
        self._config = config if isinstance(config, StreamsConfig) else StreamsConfig(config)
        self._topology = topology.resolved(self._config)
        self._clock = clock or SystemClock()
        self._log_path = log_path
        self._application = self._config.application_id
        self._directory = StateDirectory(self._config.state_dir, self._application)
        self._state = ClientState.CREATED
        self._state_changed = threading.Condition(threading.RLock())
        self._listener: StateListener | None = None
        self._exception_handler: ExceptionHandler | None = None
        self._restore_listener: StateRestoreListener | None = None
        self._standby_listener: StandbyUpdateListener | None = None
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._servers: list[MetricsServer | HttpEndpoint] = []
        self._places = StreamsMetadataState(self._topology, self._config.application_server, self._fleet)
        self._failure: BaseException | None = None
        self._listening = threading.local()
        """`inside` is True on a thread that is in the state listener."""
        self._metrics = Metrics(client_id=self._config.client_id or self._application)
        self._metrics.gauge_of("client-state", CLIENT, lambda: float(list(ClientState).index(self._state)))

    # -- life cycle ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Locks the state directory and starts the worker; returns at once. `state` tells how far it has come.

        Raises StateDirectoryLockedError or StateDirectoryError if the state directory cannot be used, StreamsError if the client was
        started before or a port (`metrics.port`, `http.port`) is in use. What fails later goes to the uncaught-exception handler and ends
        in ERROR.
        """
        with self._state_changed:
            if self._state is not ClientState.CREATED:
                raise StreamsError(f"the client was started before (state {self._state.value}): make a new KafkaStreams to start again")
            self._directory.lock()
            instance = self._config.client_id or f"{self._application}-{self._directory.process_id[:8]}"
            self._metrics.gauge("alive-stream-threads", CLIENT).set(1)
            try:
                self._worker = self._new_worker(instance)
                self._serve()
            except Exception:
                self._worker = None
                self._stop_serving()
                self._directory.unlock()
                raise
            self._thread = threading.Thread(target=self._run, args=(instance,), name=f"{instance}-StreamThread-1", daemon=True)
            self._move(ClientState.REBALANCING)
            self._thread.start()

    def _serve(self) -> None:
        """What listens for others. Raises StreamsError if a port is in use."""
        config = self._config
        if config.metrics_port:
            self._servers.append(MetricsServer(self.metrics, config.metrics_port))
        if config.integer("http.port"):
            routes = Routes(self, self._places, self._fleet)
            self._servers.append(HttpEndpoint(routes, config.text("http.host"), config.integer("http.port"), config.http_token))

    def _stop_serving(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _new_worker(self, instance: str) -> Worker:
        return Worker(
            config=self._config,
            topology=self._topology,
            directory=self._directory,
            instance=instance,
            clock=self._clock,
            metrics=self._metrics,
            events=EventSink(self._application, instance, self._clock),
            on_state=self._worker_state,
            restore_listener=self._restore_listener,
            standby_listener=self._standby_listener,
            log_path=self._log_path,
        )

    def _run(self, instance: str) -> None:
        """The worker's thread: runs the worker, and a new one where the handler asks for that."""
        logs.bind(application=self._application, instance=instance)
        while True:
            worker = self._worker
            assert worker is not None
            try:
                worker.run()
            except Exception as error:  # noqa: BLE001 (whatever ends the thread is the handler's to judge)
                _log_failure(instance, error)
                if self._decide(error) is StreamThreadExceptionResponse.REPLACE_THREAD and self._replaced(instance):
                    continue
                self._fail(error)
            else:
                self._finish()
            return

    def _replaced(self, instance: str) -> bool:
        """Puts a new worker in place of the one that ended, unless the client is being closed: `close` stops the worker it finds."""
        with self._state_changed:
            if self._ending():
                return False
            self._worker = self._new_worker(instance)
            return True

    def _decide(self, error: BaseException) -> StreamThreadExceptionResponse:
        if self._exception_handler is None:
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT
        try:
            return self._exception_handler(error)
        except Exception:
            logger.exception("the uncaught-exception handler itself failed: the client shuts down")
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT

    def _ending(self) -> bool:
        return self._state in (ClientState.PENDING_SHUTDOWN, ClientState.PENDING_ERROR) or self._state.has_completed_shutdown()

    def _release(self) -> None:
        self._metrics.gauge("alive-stream-threads", CLIENT).set(0)
        self._stop_serving()
        self._directory.unlock()

    def _finish(self) -> None:
        self._move(ClientState.PENDING_SHUTDOWN)
        self._release()
        self._move(ClientState.NOT_RUNNING)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._move(ClientState.PENDING_ERROR)
        self._release()
        self._move(ClientState.ERROR)

    def close(self, timeout: timedelta | int | None = None, leave_group: bool = True) -> bool:
        """Stops processing, commits, and closes. Returns True once it is closed, False if `timeout` (ms or timedelta; None waits for
        ever) ran out first. Safe to call twice, from any thread, and from the state listener.

        While other clients of the application live, this one goes on with its tasks until they have learned them (rules.md, 4), for
        `timeout` at most, or 30 s.

        `leave_group=False` is for restarts and rolling deploys: the leader keeps the tasks for this instance for `restart.grace.ms`
        (rules.md, 4).
        """
        milliseconds = int(timeout.total_seconds() * 1000) if isinstance(timeout, timedelta) else timeout
        with self._state_changed:
            if self._state is ClientState.CREATED:
                self._move(ClientState.PENDING_SHUTDOWN)
                self._move(ClientState.NOT_RUNNING)
                return True
            if not self._ending():
                self._move(ClientState.PENDING_SHUTDOWN)
                if self._worker is not None:
                    self._worker.request_stop(milliseconds, leave_group)
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(None if milliseconds is None else milliseconds / 1000)
        return self._state.has_completed_shutdown()

    def clean_up(self) -> None:
        """Deletes the local state of this application. Only before `start()` and after `close()`: raises StreamsError otherwise."""
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
        """The configuration, checked and with all defaults."""
        return self._config

    @property
    def ms_since_progress(self) -> int:
        """How long the stream thread has shown no sign of life, in ms; 0 while there is none. More than `max.poll.interval.ms` means that
        user code hangs (rules.md, 7)."""
        return 0 if self._worker is None or self._state.has_completed_shutdown() else self._worker.idle_ms

    @property
    def failure(self) -> BaseException | None:
        """What ended the client, when its state is ERROR."""
        return self._failure

    def _worker_state(self, new: ClientState) -> None:
        with self._state_changed:
            if not self._ending():
                self._move(new)

    def _move(self, new: ClientState) -> None:
        """Moves to a state if that is legal. A move that is not is ignored, as in Kafka Streams: two ends may race for the state."""
        with self._state_changed:
            old = self._state
            if new is old or new not in CLIENT_MOVES[old]:
                return
            self._state = new
            self._state_changed.notify_all()
            worker = self._worker
            listener = self._listener
        logger.info("state transition from %s to %s", old.value, new.value)
        if worker is not None:
            worker.events.emit(EventKind.INSTANCE_STATE, worker.instance_state(old, new))
        if listener is not None:
            self._listening.inside = True
            try:
                listener(new, old)
            finally:
                self._listening.inside = False

    def wait_for(self, state: ClientState, timeout: timedelta | int) -> bool:
        """Waits until the client is in `state`; False if `timeout` (ms or timedelta) ran out or the client ended in another state."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout / 1000
        with self._state_changed:
            self._state_changed.wait_for(lambda: self._state is state or self._state.has_completed_shutdown(), seconds)
            return self._state is state

    def set_state_listener(self, listener: StateListener) -> None:
        """`listener(new_state, old_state)` is called at each transition, from the thread that makes it. Only before `start()`."""
        self._require_created("set_state_listener")
        self._listener = listener

    def set_uncaught_exception_handler(self, handler: ExceptionHandler) -> None:
        """`handler(exception)` decides whether a failed stream thread is replaced or the client shuts down. Only before `start()`."""
        self._require_created("set_uncaught_exception_handler")
        self._exception_handler = handler

    def set_global_state_restore_listener(self, listener: StateRestoreListener) -> None:
        """The listener hears of every store that is restored. Only before `start()`."""
        self._require_created("set_global_state_restore_listener")
        self._restore_listener = listener

    def set_standby_update_listener(self, listener: StandbyUpdateListener) -> None:
        """The listener hears of every store of a standby or learner. Only before `start()`."""
        self._require_created("set_standby_update_listener")
        self._standby_listener = listener

    def _require_created(self, name: str) -> None:
        if self._state is not ClientState.CREATED:
            raise StreamsError(f"{name} is only possible before start() (state {self._state.value})")

    # -- tasks -----------------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pauses processing of all tasks of this client (KIP-834); they stay assigned. Ends with `resume()`."""
        self._ask("pause", lambda tasks: tasks.pause_all())

    def resume(self, task_id: TaskId | None = None) -> bool:
        """With a task id (KIP-990): reads the task's committed offsets again and runs on from there. True once the task has left PAUSED,
        False if it was not paused or is not of this client. If the offsets cannot be read it stays PAUSED and StreamsError is raised.

        Without a task id (KIP-834): ends `pause()`; tasks that met a bad record stay PAUSED. Returns True.
        """
        if task_id is None:
            self._ask("resume", lambda tasks: tasks.resume_all())
            return True
        wanted = task_id
        return self._ask(f"resume task {task_id}", lambda tasks: tasks.resume(wanted))

    def _ask(self, what: str, question: Callable[[TaskSet], T]) -> T:
        """Has the stream thread do something between two batches, and waits for it; on the stream thread itself (in a state listener, a
        handler, a processor) it is done at once. Raises StreamsError if no answer comes, or can come."""
        worker = self._running_worker(what)
        if threading.current_thread() is self._thread:
            return worker.do(question)
        if getattr(self._listening, "inside", False):
            raise StreamsError(
                f"{what}: not from the state listener at the move to {self._state.value}, which waits for the listener to return; "
                "do it at the move to RUNNING, or from another thread"
            )
        try:
            return worker.call(question).result(_ANSWER_TIMEOUT_S)
        except FutureTimeoutError as error:
            raise StreamsError(f"{what}: no answer from the stream thread within {_ANSWER_TIMEOUT_S:.0f} s") from error

    def paused_local_tasks(self) -> set[TaskMetadata]:
        """The tasks of this client that are PAUSED (KIP-990)."""
        return {
            task
            for thread in self.metadata_for_local_threads()
            for task in thread.active_tasks | thread.standby_tasks | thread.learner_tasks
            if not task.is_running
        }

    def metadata_for_local_threads(self) -> set[ThreadMetadata]:
        """The workers of this client and their tasks, as of the last commit or change."""
        worker = self._running_worker("metadata_for_local_threads")
        metadata = worker.metadata()
        by_kind = {kind: frozenset(_task_metadata(task) for task in metadata.tasks if task.kind is kind) for kind in TaskKind}
        name = self._thread.name if self._thread else ""
        return {
            ThreadMetadata(
                thread_name=name,
                thread_state=metadata.state.value,
                active_tasks=by_kind[TaskKind.ACTIVE],
                standby_tasks=by_kind[TaskKind.STANDBY],
                learner_tasks=by_kind[TaskKind.LEARNER],
            )
        }

    def all_local_store_partition_lags(self) -> dict[str, dict[int, LagInfo]]:
        """For each local store and partition, how far it is behind its changelog (KIP-535)."""
        lags = self._ask("all_local_store_partition_lags", lambda tasks: tasks.store_positions())
        return {store: {number: LagInfo(*positions) for number, positions in partitions.items()} for store, partitions in lags.items()}

    # -- reading ---------------------------------------------------------------------------------------------------------------

    def store(self, parameters: str | StoreQueryParameters) -> StoreQuery:
        """A read-only view of a store's committed content on this client, global tables included (KIP-67). Reading never waits for
        processing. `parameters` is the store's name, or says more than that.

        Raises InvalidStateStoreError if the store is unknown, or not here, or a part of it is still being restored; parameters with
        `enable_stale_stores()` read that part as it is by now, and copies too (KIP-535). A client that is being closed answers until its
        tasks are closed, which may take until others have learned them.
        """
        wanted = StoreQueryParameters(parameters) if isinstance(parameters, str) else parameters
        if not (self._state.is_running_or_rebalancing() or self._state is ClientState.PENDING_SHUTDOWN) or self._worker is None:
            name, state = wanted.store_name, self._state.value
            raise InvalidStateStoreError(f"store {name!r}: the client is {state}, stores can be read while it runs")
        return self._worker.query(wanted)

    def query_metadata_for_key(self, store: str, key: object, serializer_or_partitioner: KeyChooser | None = None) -> KeyQueryMetadata:
        """Which instances of the application have a key of a store (KIP-535). How the key's partition is found: by the store's own serde;
        by another serde, or a function from keys to bytes; or by a partitioner, if the store's input was written by one.

        Raises InvalidStateStoreError for an unknown store, StreamsError if the client does not run or the key has no one partition.
        """
        self._running_worker("query_metadata_for_key")
        return self._places.of_key(store, key, serializer_or_partitioner)

    def metadata_for_all_streams_clients(self) -> list[StreamsMetadata]:
        """The instances of the application that tell an address (`application.server`), this one included. Raises StreamsError if the
        client does not run."""
        self._running_worker("metadata_for_all_streams_clients")
        return self._places.all()

    def streams_metadata_for_store(self, store: str) -> list[StreamsMetadata]:
        """Those of them that have a part of a store, or a copy of one. Raises InvalidStateStoreError for an unknown store."""
        self._running_worker("streams_metadata_for_store")
        return self._places.for_store(store)

    def _fleet(self) -> Fleet | None:
        return None if self._worker is None else self._worker.fleet()

    def metrics(self) -> dict[MetricName, float]:
        """All metrics now, under Kafka Streams' names."""
        return self._metrics.values()

    def _running_worker(self, what: str) -> Worker:
        if self._worker is None or self._state.has_completed_shutdown():
            raise StreamsError(f"{what}: the client is not running (state {self._state.value})")
        return self._worker


def _log_failure(instance: str, error: Exception) -> None:
    """What we raise ourselves says all in its text; where something else is behind it, the trace is wanted."""
    ours = isinstance(error, StreamsError) and not isinstance(error, DeserializationError | ProcessingError)
    logger.error("the stream thread of %s failed: %s", instance, error, exc_info=None if ours else error)


def _task_metadata(task: TaskInfo) -> TaskMetadata:
    return TaskMetadata(
        task_id=task.task_id,
        topic_partitions=frozenset(TopicPartition(p.topic, p.number) for p in task.partitions),
        committed_offsets={TopicPartition(p.topic, p.number): offset for p, offset in task.committed.items()},
        end_offsets={TopicPartition(p.topic, p.number): offset for p, offset in task.ends.items()},
        time_current_idling_started=task.idle_since_ms,
        kind=task.kind,
        state=task.state,
    )
