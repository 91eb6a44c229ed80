"""What a worker's process does for its client: passes orders on, shows what the worker shows, and reads its stores.

Reads run on threads of their own, so that a long one keeps nobody waiting. An iteration that has more rows than fit in an answer stays open
here until the client has had them all, or lets go of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

from runtime.errors import InvalidStateStoreError
from runtime.events import EventKind
from runtime.worker.calls import Stop
from runtime.worker.found import answering
from runtime.worker.loop import Worker
from runtime.worker.messages import (
    ClientState,
    FindStore,
    FleetKnown,
    LetGo,
    Metadata,
    MetricValues,
    NextRows,
    Order,
    ReadStore,
    Rows,
    StoreFound,
)
from runtime.worker.queries import StoreQuery

READERS = 4
FIRST_ROWS, MORE_ROWS = 100, 2_000
"""How many rows go in one answer."""


class Service:
    """Answers and hears what comes from the client."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="query")
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._open: dict[int, Iterator[object]] = {}

    def begin(self, worker: Worker) -> None:
        """From now on there is a worker. Before that the channel is not served."""
        self._worker = worker

    def hear(self, subject: object) -> None:
        """What the client tells."""
        assert self._worker is not None
        match subject:
            case Stop():
                self._worker.request_stop(subject)
            case ClientState(old, new):
                self._worker.events.emit(EventKind.INSTANCE_STATE, self._worker.instance_state(old, new))
            case LetGo(rows):
                with self._lock:
                    self._open.pop(rows, None)

    def answer(self, subject: object) -> object:
        """The answer to what the client asks, or a future of it. Raises what there is to raise."""
        worker = self._worker
        assert worker is not None
        match subject:
            case Order(call, arguments):
                return worker.call(call, *arguments)
            case Metadata():
                return worker.metadata()
            case MetricValues():
                return worker.metrics.values()
            case FleetKnown():
                return worker.fleet()
            case FindStore(parameters):
                found = worker.find(parameters)
                return StoreFound(tuple(part.layout for part in found.parts), found.restoring, found.known, found.whole)
            case ReadStore():
                return self._pool.submit(self._read, worker, subject)
            case NextRows(rows):
                return self._pool.submit(self._next, rows)
        raise TypeError(f"a worker does not know {subject!r}")

    def _read(self, worker: Worker, read: ReadStore) -> object:
        query = StoreQuery(read.parameters, lambda: answering([worker.find(read.parameters)], read.parameters), worker.report_damage)
        reader = query if read.part is None else query.views()[read.part]
        found = getattr(reader, read.method)(*read.arguments, **read.options)
        if isinstance(found, Iterator):
            return self._some(found, next(self._numbers), FIRST_ROWS)
        return found

    def _next(self, number: int) -> Rows:
        with self._lock:
            rows = self._open.pop(number, None)
        if rows is None:
            raise InvalidStateStoreError("this iteration is over: ask again")
        return self._some(rows, number, MORE_ROWS)

    def _some(self, rows: Iterator[object], number: int, most: int) -> Rows:
        some = tuple(islice(rows, most))
        if len(some) < most:
            return Rows(some, None)
        with self._lock:
            self._open[number] = rows
        return Rows(some, number)
