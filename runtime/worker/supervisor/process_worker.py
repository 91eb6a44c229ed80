"""A worker in a process of its own, as its client sees it (the other side is `process.py`).

The process is started fresh, not forked: no Kafka client, RocksDB or thread of this process is in it (rules.md, 6). It is a process group
of its own, so that Ctrl-C on a terminal reaches only the client, which then stops its workers in order.

Messages of the process are received on the thread that reads its socket, and handled on the supervisor's thread: so a listener may send a
request to a worker and wait, while the response is read here.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import TypeVar, cast

from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.model import child_process, logs
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError
from penstock.runtime.model.metrics import MetricName
from penstock.runtime.model.states import State
from penstock.runtime.stores.base import CommittedView, StoreLayout
from penstock.runtime.worker.queries import QueryPart, StoreParts, StoreQueryParameters
from penstock.runtime.worker.rpc import Call, Stop
from penstock.runtime.worker.state_queries import QueryResult, StateQueryRequest
from penstock.runtime.worker.supervisor.channel import Channel, ChannelClosedError
from penstock.runtime.worker.supervisor.messages import (
    Begin,
    CallRequest,
    ClientState,
    CloseRequested,
    CloseRows,
    Ended,
    FindStore,
    GetFleet,
    GetMetadata,
    GetMetrics,
    Heartbeat,
    IncarnationStarted,
    ListenerCall,
    Logged,
    NextRows,
    QueryState,
    ReadStore,
    Rows,
    StateChanged,
    StoreFound,
)
from penstock.runtime.worker.supervisor.stream_worker import WorkerListener
from penstock.runtime.worker.supervisor.watchdog import PAUSED_MS, is_stopped
from penstock.runtime.worker.view import WorkerMetadata

logger = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

RESPONSE_SECONDS = 5.0
"""Timeout of requests for metadata; after it the last response is used."""
READ_SECONDS = 60.0
BEGIN_MS = 120_000
"""Time that a process may take until its first message: it imports the user's modules, and builds the topology."""
END_SECONDS = 15.0
"""Time that a process may take to exit after its last message."""
STACKS_SECONDS = 1.0


class ProcessWorker:
    """A `StreamWorker` in a process of its own."""

    def __init__(
        self,
        begin: Begin,
        *,
        listener: WorkerListener,
        later: Callable[[Callable[[], None]], None],
        listen: Callable[[ListenerCall], None],
        clock: Clock,
        silent_ms: int,
        idle_ms: int,
    ) -> None:
        """`later` runs a job on the supervisor's thread, in order. `silent_ms`, `idle_ms`: longest time without a message, and without a
        turn of the loop, before the process is killed."""
        self.number = begin.identity.number
        self.name = begin.identity.thread_name(begin.instance)
        self.state = State.CREATED
        self.incarnation: int | None = None
        self.idle_ms = 0
        self.may_be_asked = True
        self._begin = begin
        self._listener = listener
        self._later = later
        self._listen = listen
        self._clock = clock
        self._silent_ms = silent_ms
        self._most_idle_ms = idle_ms
        self._heard_ms: int | None = None
        """Time of the process's last message; None until its first heartbeat, which comes when the topology is built."""
        self._checked_ms: int | None = None
        self._stopped_ms: int | None = None
        """Time since which the process was seen to be stopped, before its first heartbeat."""
        self._idle_ms = 0
        self._killed = False
        self._ended: Ended | None = None
        self._ended_ms: int | None = None
        self._metadata = WorkerMetadata(State.CREATED, ())
        self._metrics: Mapping[MetricName, float] = {}

    # -- life ------------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        try:
            self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise StreamsError(f"{self.name} cannot be started: {error}") from error
        stacks = self._stacks.fileno()
        try:
            self._process = subprocess.Popen(
                child_process.command("penstock.runtime.worker.supervisor.process", str(theirs.fileno())),
                pass_fds=(theirs.fileno(), stacks),
                stdin=subprocess.DEVNULL,
                env=child_process.environment(),
                process_group=0,
            )
        except OSError as error:
            ours.close()
            self._stacks.close()
            raise StreamsError(f"{self.name} cannot be started: {error}") from error
        finally:
            theirs.close()
        self._started_ms = self._clock.monotonic_ms()
        self._channel = Channel(ours, self._handle_request, self._handle_notification)
        self._channel.notify(replace(self._begin, stacks=stacks))
        self._thread = threading.Thread(target=self._serve, name=f"{self.name}-supervisor", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _serve(self) -> None:
        """Handle the process's messages until it has ended."""
        logs.bind(application=str(self._begin.settings["application.id"]), instance=self._begin.instance, worker=self.name)
        self._channel.serve()
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("%s (process %d) does not end: killed", self.name, self.pid)
            self._process.kill()
            status = self._process.wait()
        self._channel.close()
        self._stacks.close()
        ended = self._ended
        if ended is None:
            logger.error("%s (process %d) has died: %s", self.name, self.pid, _cause(status))
            self._later(lambda: self._listener.ended(self, None, died=True))
        else:
            error = None if ended.failure is None else ended.failure.error
            self._later(lambda: self._listener.ended(self, error, died=False))

    def check(self) -> None:
        """Kill the process if it sends no messages any more (it is frozen, and the group has dropped it by now), or if its loop makes no
        turn (user code hangs; the group relies on heartbeats, and would never drop it), or if it does not end (rules.md, 7)."""
        if self._killed:
            return
        if self._process.poll() is not None:
            self._channel.shut_down()  # its end of the socket may be open in a process that user code has forked
            return
        now_ms = self._checked_ms = self._clock.monotonic_ms()
        if self._ended_ms is not None:
            if now_ms - self._ended_ms > END_SECONDS * 1000:  # frozen: its end of the socket is still open
                self._kill(f"does not end: it sent its last message {now_ms - self._ended_ms} ms ago")
        elif self._heard_ms is None:
            self._check_start(now_ms)
        elif now_ms - self._heard_ms > self._silent_ms:
            self._kill_silent(now_ms - self._heard_ms)
        elif self._idle_ms > self._most_idle_ms:
            self._show_stacks()
            self._kill(f"no progress for {self._idle_ms} ms (max.poll.interval.ms)")

    def _check_start(self, now_ms: int) -> None:
        """Check a process before its first heartbeat: it may be silent for long, importing the user's modules, so only a stopped process
        counts."""
        if not is_stopped(self.pid):
            self._stopped_ms = None
        elif self._stopped_ms is None:
            self._stopped_ms = now_ms
        elif now_ms - self._stopped_ms > self._silent_ms:
            self._kill(f"does not run: it has been stopped for {now_ms - self._stopped_ms} ms (session.timeout.ms)")
            return
        if now_ms - self._started_ms > max(BEGIN_MS, self._silent_ms):
            self._kill(f"said nothing for {now_ms - self._started_ms} ms since it was started")

    def _kill_silent(self, silent_ms: int) -> None:
        self._kill(f"does not run: it has sent nothing for {silent_ms} ms (session.timeout.ms)")

    def _kill(self, why: str) -> None:
        self._killed = True
        logger.critical("%s (process %d) is ended: %s", self.name, self.pid, why)
        self._process.kill()

    def _show_stacks(self) -> None:
        """Have the process write its stacks, without Python's help (`faulthandler`)."""
        self._process.send_signal(signal.SIGUSR1)
        deadline_ms = self._clock.monotonic_ms() + int(STACKS_SECONDS * 1000)
        written = -1
        while self._clock.monotonic_ms() < deadline_ms and os.fstat(self._stacks.fileno()).st_size != written:
            written = os.fstat(self._stacks.fileno()).st_size or -1
            self._killable_pause()
        self._stacks.seek(0)
        logger.critical("%s: stacks of all threads:\n%s", self.name, self._stacks.read().decode(errors="replace"))

    def _killable_pause(self) -> None:
        """Wait a tenth of a second, or until the process ends."""
        self._thread.join(0.1)

    def request_stop(self, stop: Stop) -> None:
        self._channel.notify(stop)

    def join(self, timeout_s: float | None) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    # -- messages of the process -----------------------------------------------------------------------------------------------

    def _handle_request(self, subject: object) -> object:
        raise StreamsError(f"the client does not know {subject!r}")

    def _handle_notification(self, subject: object) -> None:
        self._note_sign_of_life(self._clock.monotonic_ms(), subject)
        match subject:
            case Heartbeat(idle_ms):
                self._idle_ms = idle_ms
            case StateChanged(state):
                self._later(lambda: self._move(state))
            case IncarnationStarted(incarnation):
                self.incarnation = incarnation
            case Logged(fields):
                _log(fields)
            case ListenerCall():
                self._later(lambda: self._call_listener(subject))
            case CloseRequested(timeout_ms):
                self._later(lambda: self._listener.close_requested(timeout_ms))
            case Ended():
                self._ended, self._ended_ms = subject, self._clock.monotonic_ms()

    def _note_sign_of_life(self, now_ms: int, subject: object) -> None:
        """Note a sign of life. A process whose message comes too late was frozen for longer than its session: it is killed as if it were
        still frozen, unless this process did not run either."""
        if self._heard_ms is not None:
            silent_ms, watching = now_ms - self._heard_ms, now_ms - (self._checked_ms or 0) < PAUSED_MS
            if silent_ms > self._silent_ms and watching and not self._killed and not isinstance(subject, Ended):
                self._kill_silent(silent_ms)
        if self._heard_ms is not None or isinstance(subject, Heartbeat):
            self._heard_ms = now_ms

    def _call_listener(self, call: ListenerCall) -> None:
        try:
            self._listen(call)
        except BaseException as error:  # noqa: BLE001 (user code may raise anything; the handler decides)
            self._listener.listener_failed(error)

    def _move(self, state: State) -> None:
        self.state = state
        self._listener.changed()

    # -- requests to the process -----------------------------------------------------------------------------------------------

    def call(self, call: Call, *arguments: object) -> Future[object]:
        return self._channel.request(CallRequest(call, arguments))

    def publish_state(self, old: State, new: State) -> None:
        self._channel.notify(ClientState(old, new))

    def metadata(self) -> WorkerMetadata:
        self._metadata = self._request_or(GetMetadata(), self._metadata)
        return self._metadata

    def metrics(self) -> Mapping[MetricName, float]:
        self._metrics = self._request_or(GetMetrics(), self._metrics)
        return self._metrics

    def fleet(self) -> Fleet | None:
        return cast(Fleet | None, self._request_or(GetFleet(), None))

    def _request_or(self, request: object, otherwise: T) -> T:
        return self._answered(self._channel.request(request), otherwise)

    def _answered(self, answer: Future[object], otherwise: T) -> T:
        """Return the response, or `otherwise` where the process does not respond (it is starting, ending, or frozen)."""
        try:
            return cast(T, answer.result(RESPONSE_SECONDS if self._heard_ms is not None else 0))
        except (ChannelClosedError, FutureTimeoutError):
            return otherwise

    def find(self, parameters: StoreQueryParameters) -> Callable[[], StoreParts]:
        answer = self._channel.request(FindStore(parameters))
        return lambda: self._found(parameters, self._answered(answer, None))

    def _found(self, parameters: StoreQueryParameters, answer: object) -> StoreParts:
        found = cast(StoreFound | None, answer)
        if found is None:
            return StoreParts(())
        own = [number for number, layout in enumerate(found.layouts) if layout.kind == "custom"]
        parts: list[QueryPart] = [_RemotePart(self, parameters, found.layouts[number], number) for number in own]
        if found.layouts and not own:
            parts = [_RemotePart(self, parameters, found.layouts[0], None)]
        return StoreParts(tuple(parts), found.restoring, found.known, found.whole)

    def query(self, request: StateQueryRequest[R]) -> Callable[[], dict[int | None, QueryResult[R]]]:
        if self._heard_ms is None:
            return dict
        sent = self._channel.request(QueryState(cast(StateQueryRequest[object], request)))

        def answers() -> dict[int | None, QueryResult[R]]:
            try:
                found = cast(dict[int | None, QueryResult[R]], self._waited(sent))
            except InvalidStateStoreError as error:
                if isinstance(error.__cause__, ChannelClosedError):
                    return {}  # its partitions are not here any more
                raise
            return {
                partition: replace(each, value=cast(R, RemoteRows(self, each.value))) if isinstance(each.value, Rows) else each
                for partition, each in found.items()
            }

        return answers

    def read(self, read: ReadStore) -> object:
        """Return the result of a read, which may be an iterator. Raises InvalidStateStoreError, also if the process ends meanwhile."""
        answer = self._read(read)
        return RemoteRows(self, answer) if isinstance(answer, Rows) else answer

    def _read(self, request: object) -> object:
        return self._waited(self._channel.request(request))

    def _waited(self, answer: Future[object]) -> object:
        try:
            return answer.result(READ_SECONDS)
        except ChannelClosedError as error:
            raise InvalidStateStoreError(f"{self.name} has ended meanwhile: ask again") from error
        except FutureTimeoutError as error:
            raise InvalidStateStoreError(f"{self.name} did not answer within {READ_SECONDS:.0f} s") from error

    def next_rows(self, number: int) -> Rows:
        """Return the next rows of an iterator. Raises as `read`."""
        return cast(Rows, self._read(NextRows(number)))

    def close_rows(self, number: int) -> None:
        """Let the process close an iterator."""
        self._channel.notify(CloseRows(number))


class RemoteRows(Iterator[object]):
    """Iterator over rows of which the process has the rest. The process closes its own when this one is dropped, read or not."""

    def __init__(self, worker: ProcessWorker, rows: Rows) -> None:
        self._worker = worker
        self._rows = iter(rows.rows)
        self._number = rows.number

    def __next__(self) -> object:
        for row in self._rows:
            return row
        if self._number is None:
            raise StopIteration
        rows = self._worker.next_rows(self._number)
        self._rows, self._number = iter(rows.rows), rows.number
        return next(self)

    def __del__(self) -> None:
        if self._number is not None:
            self._worker.close_rows(self._number)


class _RemotePart:
    """Proxy for a part of a store in another process: everything that a worker has of it, or one part of a user's own store."""

    def __init__(self, worker: ProcessWorker, parameters: StoreQueryParameters, layout: StoreLayout, part: int | None) -> None:
        self.name = parameters.store_name
        self.layout = layout
        self._worker = worker
        self._parameters = parameters
        self._part = part

    def query_view(self, *, timestamped: bool = False, headers: bool = False) -> CommittedView:
        """Both are in the parameters already."""
        return cast(CommittedView, _RemoteView(self._worker, self._parameters, self._part))


class _RemoteView:
    """View whose reads are made by the process that has the store."""

    def __init__(self, worker: ProcessWorker, parameters: StoreQueryParameters, part: int | None) -> None:
        self._worker = worker
        self._parameters = parameters
        self._part = part

    def __getattr__(self, method: str) -> Callable[..., object]:
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *arguments, **options: self._worker.read(ReadStore(self._parameters, self._part, method, arguments, options))


def _log(fields: Mapping[str, object]) -> None:
    """Log a record of the worker's log in this process."""
    record = logging.makeLogRecord(dict(fields))
    target = logging.getLogger(record.name)
    if target.isEnabledFor(record.levelno):
        target.handle(record)


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
