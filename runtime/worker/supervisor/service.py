"""Service of a worker's process for its client: executes calls, returns metadata and metrics, and reads stores.

Reads run on threads of their own, so that a long one delays no other request. An iterator with more rows than fit in a response stays open
here until the client has read them all, or closes it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, islice

from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.events import EventKind
from penstock.runtime.worker.loop import Worker
from penstock.runtime.worker.queries import StoreQuery, answering_parts
from penstock.runtime.worker.rpc import Stop
from penstock.runtime.worker.state_queries import QueryResult, StateQueryRequest
from penstock.runtime.worker.supervisor.messages import (
    CallRequest,
    ClientState,
    CloseRows,
    FindStore,
    GetFleet,
    GetMetadata,
    GetMetrics,
    NextRows,
    QueryState,
    ReadStore,
    Rows,
    StoreFound,
)

READERS = 4
FIRST_ROWS, MORE_ROWS = 100, 2_000
"""Number of rows in the first response, and in further ones."""


class Service:
    """Handlers of the client's requests and notifications."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="query")
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._open: dict[int, Iterator[object]] = {}

    def begin(self, worker: Worker) -> None:
        """Set the worker; the channel is served only after that."""
        self._worker = worker

    def handle_notification(self, subject: object) -> None:
        """Handle a notification of the client."""
        assert self._worker is not None
        match subject:
            case Stop():
                self._worker.request_stop(subject)
            case ClientState(old, new):
                self._worker.events.emit(EventKind.INSTANCE_STATE, self._worker.instance_state(old, new))
            case CloseRows(rows):
                with self._lock:
                    self._open.pop(rows, None)

    def handle_request(self, subject: object) -> object:
        """Handle a request of the client. Return the response, or a future of it. Raises what the request raises."""
        worker = self._worker
        assert worker is not None
        match subject:
            case CallRequest(call, arguments):
                return worker.call(call, *arguments)
            case GetMetadata():
                return worker.metadata()
            case GetMetrics():
                return worker.metrics.values()
            case GetFleet():
                return worker.fleet()
            case FindStore(parameters):
                found = worker.find(parameters)
                return StoreFound(tuple(part.layout for part in found.parts), found.restoring, found.known, found.whole)
            case ReadStore():
                return self._pool.submit(self._read, worker, subject)
            case QueryState(request):
                return self._pool.submit(self._query, worker, request)
            case NextRows(rows):
                return self._pool.submit(self._next, rows)
        raise TypeError(f"a worker does not know {subject!r}")

    def _read(self, worker: Worker, read: ReadStore) -> object:
        query = StoreQuery(read.parameters, lambda: answering_parts([worker.find(read.parameters)], read.parameters), worker.report_damage)
        reader = query if read.part is None else query.views()[read.part]
        return self._sendable(getattr(reader, read.method)(*read.arguments, **read.options))

    def _query(self, worker: Worker, request: StateQueryRequest[object]) -> dict[int | None, QueryResult[object]]:
        return {partition: replace(found, value=self._sendable(found.value)) for partition, found in worker.query(request).items()}

    def _sendable(self, found: object) -> object:
        """Return what was read, the first rows of an iterator."""
        return self._some(found, next(self._numbers), FIRST_ROWS) if isinstance(found, Iterator) else found

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
