"""KafkaStreams: what a program holds while its topology runs (Kafka Streams' class of the same name).

The client owns the life cycle and nothing else: workers (`runtime.worker`) do the work, one in a thread of this process, several each in a
process of its own, and everything asked of them from outside (resume a task, read metadata) goes through a worker's inbox or reads a
snapshot that the worker swaps in, so that no lock is shared with the hot path. The client's state is derived from the workers' and moves
only as `runtime.states` allows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias, cast

from runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener
from runtime.clock import Clock, SystemClock
from runtime.config import StreamsConfig
from runtime.endpoint import HttpEndpoint, Routes
from runtime.errors import InvalidStateStoreError, StreamsError
from runtime.fleet import KeyChooser, KeyQueryMetadata, StreamsMetadata, StreamsMetadataState
from runtime.ids import TaskId
from runtime.metadata import LagInfo, TaskMetadata, ThreadMetadata, thread_metadata
from runtime.metrics import CLIENT, MetricName, Metrics, MetricsServer
from runtime.states import CLIENT_MOVES
from runtime.states import State as ClientState
from runtime.stores.directory import StateDirectory
from runtime.topology.factory import build_topology
from runtime.topology.given import checked_topology
from runtime.topology.topology import Topology
from runtime.worker.calls import Call, Positions, Stop
from runtime.worker.crew import Crew, Owner
from runtime.worker.queries import StoreQuery, StoreQueryParameters
from runtime.worker.recruiting import Recruiter
from runtime.worker.seat import Seat
from runtime.worker.stream_worker import StreamWorker

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 60.0
"""How long a call waits for a stream thread, which may be in the middle of a batch or a commit."""


class StreamThreadExceptionResponse(Enum):
    """What an uncaught-exception handler decides (KIP-671)."""

    REPLACE_THREAD = "REPLACE_THREAD"
    SHUTDOWN_CLIENT = "SHUTDOWN_CLIENT"


StateListener = Callable[[ClientState, ClientState], None]
ExceptionHandler = Callable[[BaseException], StreamThreadExceptionResponse]


class KafkaStreams:
    """Runs a topology against a Kafka cluster until it is closed. A context manager: leaving the block closes it.

    `topology` is one that was built, or the name of a function that builds it, `module:function`, which `num.stream.threads` above 1 needs:
    each worker is a process of its own then, and builds the topology itself. `config` is a mapping of Kafka Streams' keys or a
    `StreamsConfig`; a wrong one raises StreamsConfigError here. Nothing is contacted before `start()`. `log_path` is only told on (MEMBER
    records and events), so that an operator finds the log of a process.
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
        if generated := made.generated_names():
            logger.warning(
                "names were generated, which move when something is put before them, and with them the state: %s "
                "(ensure.explicit.internal.resource.naming = true refuses this)",
                generated,
            )
        self._clock = clock or SystemClock()
        self._application = self._config.application_id
        self._directory = StateDirectory(self._config.state_dir, self._application)
        self._state = ClientState.CREATED
        self._state_changed = threading.Condition(threading.RLock())
        self._listener: StateListener | None = None
        self._exception_handler: ExceptionHandler | None = None
        self._servers: list[MetricsServer | HttpEndpoint] = []
        self._failure: BaseException | None = None
        self._listening = threading.local()
        """`inside` is True on a thread that is in the state listener."""
        self._metrics = Metrics(client_id=self._config.client_id or self._application)
        owner = Owner(self._workers_changed, self._close_wanted, self._shall_replace, self._failing, self._all_ended)
        self._crew = Crew(owner, self._clock, self._config.integer("max.poll.interval.ms"))
        self._recruiter = Recruiter(
            config=self._config,
            topology=self._topology,
            factory=topology if isinstance(topology, str) else None,
            directory=self._directory,
            clock=self._clock,
            metrics=self._metrics,
            log_path=log_path,
        )
        self._places = StreamsMetadataState(self._topology, self._config.application_server, self._crew.fleet)
        self._metrics.gauge_of("client-state", CLIENT, lambda: float(list(ClientState).index(self._state)))
        self._metrics.gauge_of("alive-stream-threads", CLIENT, lambda: float(len(self._crew.workers)))

    # -- life cycle ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Locks the state directory and starts the workers; returns at once. `state` tells how far it has come. The program has to stay for
        as long as they are to run: a worker does not outlive it.

        Raises StateDirectoryLockedError or StateDirectoryError if the state directory cannot be used, StreamsError if the client was
        started before or a port (`metrics.port`, `http.port`) is in use. What fails later goes to the uncaught-exception handler and ends
        in ERROR.
        """
        with self._state_changed:
            if self._state is not ClientState.CREATED:
                raise StreamsError(f"the client was started before (state {self._state.value}): make a new KafkaStreams to start again")
            self._directory.lock()
            instance = self._config.client_id or f"{self._application}-{self._directory.process_id[:8]}"
            count = self._config.integer("num.stream.threads")
            try:
                self._directory.remove_global_copies(above=count)
                self._serve()
                make = partial(self._recruiter.make, self._crew, instance)
                self._crew.recruit(count, make, lambda number: Seat(number).thread_name(instance))
            except Exception:
                self._stop_serving()
                self._directory.unlock()
                raise
            self._move(ClientState.REBALANCING)
            self._crew.start(self._directory.await_former_workers)

    def add_stream_thread(self) -> str | None:
        """Starts one more worker, as a process (KIP-663). Returns its name, or None if the client is not running. Raises StreamsConfigError
        where the client was given a topology in the place of a factory."""
        self._recruiter.check_processes()
        with self._state_changed:
            return self._crew.add() if self._state.is_running_or_rebalancing() else None

    def remove_stream_thread(self, timeout: timedelta | int | None = None) -> str | None:
        """Ends the worker that has the largest number, when others have taken its tasks over (KIP-663). Returns its name, or None if the
        client is not running or has no worker. Raises TimeoutError if it has not ended within `timeout` (ms or timedelta; None: however
        long that takes); it goes on closing then."""
        return self._crew.remove(_milliseconds(timeout)) if self._state.is_running_or_rebalancing() else None

    def _serve(self) -> None:
        """What listens for others. Raises StreamsError if a port is in use."""
        config = self._config
        if config.metrics_port:
            self._servers.append(MetricsServer(self.metrics, config.metrics_port))
        if config.integer("http.port"):
            routes = Routes(self, self._places, self._crew.fleet)
            self._servers.append(HttpEndpoint(routes, config.text("http.host"), config.integer("http.port"), config.http_token))

    def _stop_serving(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    # -- what the crew tells ---------------------------------------------------------------------------------------------------

    def _workers_changed(self) -> None:
        """The client's state is to be looked at."""
        with self._state_changed:
            state = self._crew.state
            if state is not None and not self._ending():
                self._move(state)

    def _close_wanted(self, timeout_ms: int | None) -> None:
        """An operator's command."""
        self._request_close(Stop(timeout_ms))

    def _shall_replace(self, error: BaseException) -> bool:
        """The handler's word on a worker that has failed."""
        if self._exception_handler is None:
            return False
        try:
            return self._exception_handler(error) is StreamThreadExceptionResponse.REPLACE_THREAD
        except Exception:
            logger.exception("the uncaught-exception handler itself failed: the client shuts down")
            return False

    def _failing(self, error: BaseException) -> None:
        """The client ends for this reason."""
        self._failure = error
        self._move(ClientState.PENDING_ERROR)

    def _all_ended(self, error: BaseException | None) -> None:
        """No worker is left."""
        self._stop_serving()
        self._directory.unlock()
        self._move(ClientState.NOT_RUNNING if error is None else ClientState.ERROR)

    def _ending(self) -> bool:
        return self._state in (ClientState.PENDING_SHUTDOWN, ClientState.PENDING_ERROR) or self._state.has_completed_shutdown()

    # -- the end ---------------------------------------------------------------------------------------------------------------

    def close(self, timeout: timedelta | int | None = None, leave_group: bool = True) -> bool:
        """Stops processing, commits, and closes. Returns True once it is closed, False if `timeout` (ms or timedelta; None waits for
        ever) ran out first. Safe to call twice, from any thread, and from the state listener.

        While other clients of the application live, this one goes on with its tasks until they have learned them (rules.md, 4), for
        `timeout` at most, or 30 s.

        `leave_group=False` is for restarts and rolling deploys: the leader keeps the tasks for this instance for `restart.grace.ms`
        (rules.md, 4).
        """
        milliseconds = _milliseconds(timeout)
        self._request_close(Stop(milliseconds, leave_group))
        self._crew.join(None if milliseconds is None else milliseconds / 1000)
        return self._state.has_completed_shutdown()

    def _request_close(self, stop: Stop) -> None:
        with self._state_changed:
            if self._state is ClientState.CREATED:
                self._move(ClientState.PENDING_SHUTDOWN)
                self._move(ClientState.NOT_RUNNING)
            elif not self._ending():
                self._move(ClientState.PENDING_SHUTDOWN)
                self._crew.request_stop(stop)

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
        """How long a stream thread of this process has shown no sign of life, in ms; 0 while there is none. More than
        `max.poll.interval.ms` means that user code hangs (rules.md, 7). Workers in processes of their own do not count: one that hangs
        is ended and replaced."""
        return 0 if self._state.has_completed_shutdown() else self._crew.idle_ms

    @property
    def failure(self) -> BaseException | None:
        """What ended the client, when its state is ERROR."""
        return self._failure

    def _move(self, new: ClientState) -> None:
        """Moves to a state if that is legal. A move that is not is ignored, as in Kafka Streams: two ends may race for the state."""
        with self._state_changed:
            old = self._state
            if new is old or new not in CLIENT_MOVES[old]:
                return
            self._state = new
            self._state_changed.notify_all()
            listener = self._listener
        logger.info("state transition from %s to %s", old.value, new.value)
        self._crew.tell_state(old, new)
        if listener is not None:
            self._listening.inside = True
            try:
                listener(new, old)
            except Exception:  # the transition is made, and what follows from it has to come
                logger.exception("the state listener failed at the move from %s to %s", old.value, new.value)
            finally:
                self._listening.inside = False

    def wait_for(self, state: ClientState, timeout: timedelta | int) -> bool:
        """Waits until the client is in `state`; False if `timeout` (ms or timedelta) ran out or the client ended in another state."""
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
        """`handler(exception)` decides whether a failed stream thread is replaced or the client shuts down. Only before `start()`."""
        self._require_created("set_uncaught_exception_handler")
        self._exception_handler = handler

    def set_global_state_restore_listener(self, listener: StateRestoreListener) -> None:
        """The listener hears of every store that is restored. Only before `start()`."""
        self._require_created("set_global_state_restore_listener")
        self._recruiter.restore_listener = listener

    def set_standby_update_listener(self, listener: StandbyUpdateListener) -> None:
        """The listener hears of every store of a standby or learner. Only before `start()`."""
        self._require_created("set_standby_update_listener")
        self._recruiter.standby_listener = listener

    def _require_created(self, name: str) -> None:
        if self._state is not ClientState.CREATED:
            raise StreamsError(f"{name} is only possible before start() (state {self._state.value})")

    # -- tasks -----------------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pauses processing of all tasks of this client (KIP-834); they stay assigned. Ends with `resume()`."""
        self._answers("pause", self._crew.halt(True, self._asked("pause")))

    def is_paused(self) -> bool:
        """True from `pause()` to `resume()`. Tasks that are paused each by itself do not count (`paused_local_tasks`)."""
        return self._crew.halted

    def resume(self, task_id: TaskId | None = None) -> bool:
        """With a task id (KIP-990): reads the task's committed offsets again and runs on from there. True once the task has left PAUSED,
        False if it was not paused or is not of this client. If the offsets cannot be read it stays PAUSED and StreamsError is raised.

        Without a task id (KIP-834): ends `pause()`; tasks that met a bad record stay PAUSED. Returns True.
        """
        if task_id is None:
            self._answers("resume", self._crew.halt(False, self._asked("resume")))
            return True
        what = f"resume task {task_id}"
        return any(self._answers(what, [worker.ask(Call.RESUME, task_id) for worker in self._asked(what)]))

    def _asked(self, what: str) -> list[StreamWorker]:
        """The workers, each to be asked to do something between two batches; on a stream thread of this process (in a state listener, a
        handler, a processor) that is done at once. Raises StreamsError if no answer can come."""
        workers = self._running_workers(what)
        if getattr(self._listening, "inside", False) and not (workers and all(worker.may_be_asked for worker in workers)):
            raise StreamsError(
                f"{what}: not from the state listener at the move to {self._state.value}, which waits for the listener to return; "
                "do it at the move to RUNNING, or from another thread"
            )
        return workers

    def _answers(self, what: str, asked: list[Future[object]]) -> list[object]:
        """What they answer. Raises what the first of them raises, when all have answered; StreamsError if no answer comes."""
        try:
            for future in asked:
                future.exception(_ANSWER_TIMEOUT_S)
        except FutureTimeoutError as error:
            raise StreamsError(f"{what}: no answer from the stream thread within {_ANSWER_TIMEOUT_S:.0f} s") from error
        return [future.result() for future in asked]

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
        return {thread_metadata(worker.name, worker.metadata()) for worker in self._running_workers("metadata_for_local_threads")}

    def all_local_store_partition_lags(self) -> dict[str, dict[int, LagInfo]]:
        """For each local store and partition, how far it is behind its changelog (KIP-535)."""
        what = "all_local_store_partition_lags"
        lags: dict[str, dict[int, LagInfo]] = {}
        for answer in self._answers(what, [worker.ask(Call.STORE_POSITIONS) for worker in self._asked(what)]):
            for store, partitions in cast(Positions, answer).items():
                lags.setdefault(store, {}).update({number: LagInfo(*positions) for number, positions in partitions.items()})
        return lags

    # -- reading ---------------------------------------------------------------------------------------------------------------

    def store(self, parameters: str | StoreQueryParameters) -> StoreQuery:
        """A read-only view of a store's committed content on this client, global tables included (KIP-67). Reading never waits for
        processing. `parameters` is the store's name, or says more than that.

        Raises InvalidStateStoreError if the store is unknown, or not here, or a part of it is still being restored; parameters with
        `enable_stale_stores()` read that part as it is by now, and copies too (KIP-535). A client that is being closed answers until its
        tasks are closed, which may take until others have learned them.
        """
        wanted = StoreQueryParameters(parameters) if isinstance(parameters, str) else parameters
        if not (self._state.is_running_or_rebalancing() or self._state is ClientState.PENDING_SHUTDOWN):
            name, state = wanted.store_name, self._state.value
            raise InvalidStateStoreError(f"store {name!r}: the client is {state}, stores can be read while it runs")
        query = StoreQuery(wanted, lambda: self._crew.parts(wanted), self._crew.damage_found)
        query.views()
        return query

    def query_metadata_for_key(self, store: str, key: object, serializer_or_partitioner: KeyChooser | None = None) -> KeyQueryMetadata:
        """Which instances of the application have a key of a store (KIP-535). How the key's partition is found: by the store's own serde;
        by another serde, or a function from keys to bytes; or by a partitioner, if the store's input was written by one.

        Raises InvalidStateStoreError for an unknown store, StreamsError if the client does not run or the key has no one partition.
        """
        self._running_workers("query_metadata_for_key")
        return self._places.of_key(store, key, serializer_or_partitioner)

    def metadata_for_all_streams_clients(self) -> list[StreamsMetadata]:
        """The instances of the application that tell an address (`application.server`), this one included. Raises StreamsError if the
        client does not run."""
        self._running_workers("metadata_for_all_streams_clients")
        return self._places.all()

    def streams_metadata_for_store(self, store: str) -> list[StreamsMetadata]:
        """Those of them that have a part of a store, or a copy of one. Raises InvalidStateStoreError for an unknown store."""
        self._running_workers("streams_metadata_for_store")
        return self._places.for_store(store)

    def metrics(self) -> dict[MetricName, float]:
        """All metrics now, under Kafka Streams' names; those of a worker in a process of its own with its name as `thread-id`."""
        found = self._metrics.values()
        for of_worker in self._crew.metrics():
            found.update(of_worker)
        return found

    def _running_workers(self, what: str) -> list[StreamWorker]:
        if self._state is ClientState.CREATED or self._state.has_completed_shutdown():
            raise StreamsError(f"{what}: the client is not running (state {self._state.value})")
        return self._crew.workers


def _milliseconds(timeout: timedelta | int | None) -> int | None:
    return int(timeout.total_seconds() * 1000) if isinstance(timeout, timedelta) else timeout
