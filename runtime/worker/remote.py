"""A worker in a process of its own, as its client sees it (the other side is `process.py`).

The process is started fresh, not forked: no Kafka client, RocksDB or thread of this process is in it (rules.md, 6). It is a process group
of its own, so that Ctrl-C on a terminal reaches the client alone, who then stops its workers in order.

What the process tells is taken on the thread that reads its socket. What has to be done about it is the crew's, on the crew's thread: a
listener may then ask a worker something and wait, while the answer is read here.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import TypeVar, cast

from runtime import logs
from runtime.clock import Clock
from runtime.coordination.fleet import Fleet
from runtime.errors import InvalidStateStoreError, StreamsError
from runtime.metrics import MetricName
from runtime.states import State
from runtime.stores.base import CommittedView, StoreLayout
from runtime.worker.calls import Call, Stop
from runtime.worker.channel import Channel, ChannelClosedError
from runtime.worker.found import Found
from runtime.worker.messages import (
    Begin,
    ClientState,
    CloseWanted,
    Ended,
    FindStore,
    FleetKnown,
    Joins,
    LetGo,
    ListenerCall,
    Logged,
    Metadata,
    MetricValues,
    NextRows,
    Order,
    Pulse,
    ReadStore,
    Rows,
    StateIs,
    StoreFound,
)
from runtime.worker.queries import QueryPart, StoreQueryParameters
from runtime.worker.stream_worker import Boss
from runtime.worker.view import WorkerMetadata

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 5.0
"""How long it may take the process to show something; what it showed last is taken then."""
READ_SECONDS = 60.0
BEGIN_MS = 120_000
"""How long a process may take until its first word: it imports the user's modules, and builds the topology."""
END_SECONDS = 15.0
"""How long a process may take to end after its last word."""
STACKS_SECONDS = 1.0


class ProcessWorker:
    """A `StreamWorker`."""

    def __init__(
        self,
        begin: Begin,
        *,
        boss: Boss,
        later: Callable[[Callable[[], None]], None],
        listen: Callable[[ListenerCall], None],
        clock: Clock,
        silent_ms: int,
        idle_ms: int,
    ) -> None:
        """`later` has something done on the crew's thread, in order. `silent_ms`, `idle_ms`: how long the process may say nothing, and its
        loop make no turn, before the process is ended."""
        self.number = begin.seat.number
        self.name = begin.seat.thread_name(begin.instance)
        self.state = State.CREATED
        self.incarnation: int | None = None
        self.idle_ms = 0
        self.may_be_asked = True
        self._begin = begin
        self._boss = boss
        self._later = later
        self._listen = listen
        self._clock = clock
        self._silent_ms = silent_ms
        self._most_idle_ms = idle_ms
        self._heard_ms: int | None = None
        self._idle_ms = 0
        self._killed = False
        self._last_word: Ended | None = None
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
                [sys.executable, "-P", "-m", "runtime.worker.process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(), stacks),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)},
                process_group=0,
            )
        except OSError as error:
            ours.close()
            self._stacks.close()
            raise StreamsError(f"{self.name} cannot be started: {error}") from error
        finally:
            theirs.close()
        self._started_ms = self._clock.monotonic_ms()
        self._channel = Channel(ours, self._answer, self._hear)
        self._channel.tell(replace(self._begin, stacks=stacks))
        self._thread = threading.Thread(target=self._serve, name=f"{self.name}-supervisor", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _serve(self) -> None:
        """Reads what the process says until it has ended."""
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
        word = self._last_word
        if word is None:
            logger.error("%s (process %d) has died: %s", self.name, self.pid, _cause(status))
            self._later(lambda: self._boss.ended(self, None, died=True))
        else:
            error = None if word.failure is None else word.failure.error
            self._later(lambda: self._boss.ended(self, error, died=False))

    def look(self) -> None:
        """Ends the process if it says nothing any more (it is frozen, and the group has dropped it by now), or if its loop stands still
        (user code hangs; the group goes by heartbeats, and would never drop it: rules.md, 7)."""
        if self._killed or self._last_word is not None:
            return
        if self._process.poll() is not None:
            self._channel.hang_up()  # its end of the socket may be open in a process that user code has forked
            return
        now_ms = self._clock.monotonic_ms()
        if self._heard_ms is None:
            if now_ms - self._started_ms > max(BEGIN_MS, self._silent_ms):
                self._kill(f"said nothing for {now_ms - self._started_ms} ms since it was started")
        elif now_ms - self._heard_ms > self._silent_ms:
            self._kill(f"does not run: nothing was heard of it for {now_ms - self._heard_ms} ms (session.timeout.ms)")
        elif self._idle_ms > self._most_idle_ms:
            self._show_stacks()
            self._kill(f"no progress for {self._idle_ms} ms (max.poll.interval.ms)")

    def _kill(self, why: str) -> None:
        self._killed = True
        logger.critical("%s (process %d) is ended: %s", self.name, self.pid, why)
        self._process.kill()

    def _show_stacks(self) -> None:
        """The process writes them without Python's help (`faulthandler`)."""
        self._process.send_signal(signal.SIGUSR1)
        deadline_ms = self._clock.monotonic_ms() + int(STACKS_SECONDS * 1000)
        written = -1
        while self._clock.monotonic_ms() < deadline_ms and os.fstat(self._stacks.fileno()).st_size != written:
            written = os.fstat(self._stacks.fileno()).st_size or -1
            self._killable_pause()
        self._stacks.seek(0)
        logger.critical("%s: stacks of all threads:\n%s", self.name, self._stacks.read().decode(errors="replace"))

    def _killable_pause(self) -> None:
        """A tenth of a second; shorter if the process ends meanwhile."""
        self._thread.join(0.1)

    def request_stop(self, stop: Stop) -> None:
        self._channel.tell(stop)

    def join(self, timeout_s: float | None) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    # -- what the process tells ------------------------------------------------------------------------------------------------

    def _answer(self, subject: object) -> object:
        raise StreamsError(f"the client does not know {subject!r}")

    def _hear(self, subject: object) -> None:
        self._heard_ms = self._clock.monotonic_ms()
        match subject:
            case Pulse(idle_ms):
                self._idle_ms = idle_ms
            case StateIs(state):
                self._later(lambda: self._move(state))
            case Joins(incarnation):
                self.incarnation = incarnation
            case Logged(fields):
                _log(fields)
            case ListenerCall():
                self._later(lambda: self._listen(subject))
            case CloseWanted(timeout_ms):
                self._later(lambda: self._boss.close_wanted(timeout_ms))
            case Ended():
                self._last_word = subject

    def _move(self, state: State) -> None:
        self.state = state
        self._boss.changed()

    # -- what the process is asked ---------------------------------------------------------------------------------------------

    def ask(self, call: Call, *arguments: object) -> Future[object]:
        return self._channel.ask(Order(call, arguments))

    def tell_state(self, old: State, new: State) -> None:
        self._channel.tell(ClientState(old, new))

    def metadata(self) -> WorkerMetadata:
        self._metadata = self._shown(Metadata(), self._metadata)
        return self._metadata

    def metrics(self) -> Mapping[MetricName, float]:
        self._metrics = self._shown(MetricValues(), self._metrics)
        return self._metrics

    def fleet(self) -> Fleet | None:
        return cast(Fleet | None, self._shown(FleetKnown(), None))

    def _shown(self, question: object, otherwise: T) -> T:
        return self._answered(self._channel.ask(question), otherwise)

    def _answered(self, answer: Future[object], otherwise: T) -> T:
        """The answer; `otherwise` where the process does not answer (it begins, ends, or does not run)."""
        try:
            return cast(T, answer.result(LOOK_SECONDS if self._heard_ms is not None else 0))
        except (ChannelClosedError, FutureTimeoutError):
            return otherwise

    def find(self, parameters: StoreQueryParameters) -> Callable[[], Found]:
        answer = self._channel.ask(FindStore(parameters))
        return lambda: self._found(parameters, self._answered(answer, None))

    def _found(self, parameters: StoreQueryParameters, answer: object) -> Found:
        found = cast(StoreFound | None, answer)
        if found is None:
            return Found(())
        own = [number for number, layout in enumerate(found.layouts) if layout.kind == "custom"]
        parts: list[QueryPart] = [_RemotePart(self, parameters, found.layouts[number], number) for number in own]
        if found.layouts and not own:
            parts = [_RemotePart(self, parameters, found.layouts[0], None)]
        return Found(tuple(parts), found.restoring, found.known, found.whole)

    def read(self, read: ReadStore) -> object:
        """What a read gives, an iterator too. Raises InvalidStateStoreError, also if the process ends meanwhile."""
        answer = self._read(read)
        return self._rows(answer) if isinstance(answer, Rows) else answer

    def _read(self, question: object) -> object:
        try:
            return self._channel.ask(question).result(READ_SECONDS)
        except ChannelClosedError as error:
            raise InvalidStateStoreError(f"{self.name} has ended meanwhile: ask again") from error
        except FutureTimeoutError as error:
            raise InvalidStateStoreError(f"{self.name} did not answer within {READ_SECONDS:.0f} s") from error

    def _rows(self, rows: Rows) -> Iterator[object]:
        try:
            yield from rows.rows
            while rows.number is not None:
                rows = cast(Rows, self._read(NextRows(rows.number)))
                yield from rows.rows
        finally:
            if rows.number is not None:
                self._channel.tell(LetGo(rows.number))


class _RemotePart:
    """Stands for a part of a store of another process: all that a worker has of it, or, of a store of the user's own, one part."""

    def __init__(self, worker: ProcessWorker, parameters: StoreQueryParameters, layout: StoreLayout, part: int | None) -> None:
        self.name = parameters.store_name
        self.layout = layout
        self._worker = worker
        self._parameters = parameters
        self._part = part

    def query_view(self, *, timestamped: bool = False) -> CommittedView:
        """`timestamped` stands in the parameters already."""
        return cast(CommittedView, _RemoteView(self._worker, self._parameters, self._part))


class _RemoteView:
    """Every read is made by the process that has the store."""

    def __init__(self, worker: ProcessWorker, parameters: StoreQueryParameters, part: int | None) -> None:
        self._worker = worker
        self._parameters = parameters
        self._part = part

    def __getattr__(self, method: str) -> Callable[..., object]:
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *arguments, **options: self._worker.read(ReadStore(self._parameters, self._part, method, arguments, options))


def _log(fields: Mapping[str, object]) -> None:
    """A line of the worker's log becomes one of this process's."""
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
