"""`map_async`: calls an async function for each record, several at once, and forwards the results in the order of the records.

All calls of a process run on one event loop in a thread of its own, so that a client made at module level (a connection pool) serves all
tasks. The worker's thread waits for the call at the head of the queue; the calls behind it continue meanwhile. Calls are passed to the loop
in groups, because waking its thread costs more than starting a call.

Time is real time, in the test driver too, because the calls are real.

Rejected: an event loop on the worker's own thread (a notebook has one there already, and nothing would run in it between two turns, such as
the keep-alive of connections); a pool of threads (an async function that calls `asyncio.to_thread` does the same, for blocking libraries).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeVar, cast

from penstock.runtime.model.user_errors import described
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.context import Forward, NodeContext
from penstock.runtime.operators.deferred import Deferred, DeferringNode

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
AsyncMapper = Callable[..., Awaitable[object]]
GROUPS = 8
"""Groups in which the calls of a full window are passed to the event loop."""
THREADS = 256
"""Maximum number of threads for blocking calls (`asyncio.to_thread`) of a process; they are started when they are needed."""


_loop: asyncio.AbstractEventLoop | None = None
_starting = threading.Lock()


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all calls of this process. The first call starts its thread, which ends with the process."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _loop.set_default_executor(_BlockingCalls())
            threading.Thread(target=_run, args=(_loop,), name="map-async", daemon=True).start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the event loop until the process ends. A `sys.exit()` in a task that a call has created stops asyncio's loop, and so does
    `loop.stop()`; the calls of other records must continue."""
    while True:
        try:
            loop.run_forever()
        except BaseException as error:
            logger.error("map_async: a task that a call has created raised %s; the event loop continues", described(error), exc_info=error)
        else:
            logger.error("map_async: a call has stopped the event loop that all calls of the process share; it continues")


class _BlockingCalls(ThreadPoolExecutor):
    """Threads for blocking calls (`asyncio.to_thread`). Unlike those of the base class, they do not hold up the end of the process when a
    call hangs. Used by the event loop's thread."""

    def __init__(self) -> None:
        super().__init__(THREADS)
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._waiting.put(partial(_fulfil, future, partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._started < THREADS:
            self._started += 1
            threading.Thread(target=self._serve, name=f"map-async-blocking-{self._started}", daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            self._waiting.get()()
            self._idle.release()


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 (user code may raise anything; it is raised where the call is awaited)
        future.set_exception(error)


@dataclass(frozen=True, slots=True)
class MapAsync(OperatorSupplier):
    """`map_async`; `fn(value)`, or `fn(key, value)` if `with_key`, is awaited. `timeout_ms`: None waits forever."""

    fn: AsyncMapper
    with_key: bool
    limit: int
    timeout_ms: int | None

    def keeps_key(self) -> bool:
        return True

    def defers(self) -> bool:
        return True

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        queue, task, calls = context.deferred, context.task, _Calls(self)
        begin = calls.begin

        def finish(record: Deferred) -> None:
            forward(record.key, calls.result(record), record.timestamp)

        if queue is None:

            def call_alone(key: object, value: object, timestamp: int) -> None:
                record = Deferred(calls, finish, key, value, timestamp, task, None)
                calls.open += 1
                begin(record)
                finish(record)

            return call_alone
        queue.nodes.append(calls)
        defer, named = queue.defer, context.hooks.mark(context.name, finish)

        def call(key: object, value: object, timestamp: int) -> None:
            begin(defer(calls, named, key, value, timestamp))

        return call


class _Calls(DeferringNode):
    """The calls of one node."""

    __slots__ = ("_awaited", "_fn", "_group", "_limit", "_running", "_timeout", "_unstarted", "_with_key", "_woken", "most", "turn")

    def __init__(self, operator: MapAsync) -> None:
        super().__init__()
        self.turn = self.most = 2 * operator.limit
        self._fn = operator.fn
        self._with_key = operator.with_key
        self._limit = operator.limit
        self._group = max(1, operator.limit // GROUPS)
        self._timeout = None if operator.timeout_ms is None else operator.timeout_ms / 1000
        self._unstarted: deque[Deferred] = deque()
        self._running = 0
        """Calls that were started and whose records are in the queue."""
        self._awaited: Deferred | None = None
        self._woken = threading.Event()

    def is_full(self) -> bool:
        return self.open >= self._limit + self._group

    def begin(self, record: Deferred) -> None:
        """Call the function for a record, at once or when the next group is complete or waited for."""
        self._unstarted.append(record)
        if len(self._unstarted) >= self._group:
            self._start()

    def _start(self) -> None:
        group = [self._unstarted.popleft() for _ in range(min(len(self._unstarted), self._limit - self._running))]
        if group:
            self._running += len(group)
            now = time.monotonic()
            for record in group:
                record.began = now
            event_loop().call_soon_threadsafe(self._create_tasks, group)

    def result(self, record: Deferred) -> object:
        """Wait for the result of the first record in the queue. Raises what the function raises, and TimeoutError."""
        if not record.done:
            self._start()
        self.open -= 1
        self._running -= 1
        if not record.done:
            self._wait(record)
        if record.error is not None:
            raise record.error
        return record.result

    def _wait(self, record: Deferred) -> None:
        self._awaited = record
        while not record.done:
            left = None if self._timeout is None else record.began + self._timeout - time.monotonic()
            if left is not None and left <= 0:
                event_loop().call_soon_threadsafe(_cancel, record)
                raise TimeoutError(f"map_async: the call did not return within {self._timeout:g} s (timeout)")
            self._woken.clear()
            if not record.done:
                self._woken.wait(left)

    def forget(self, record: Deferred) -> None:
        self.open -= 1
        if not record.began:
            self._unstarted.popleft()
            return
        self._running -= 1
        if not record.done:
            event_loop().call_soon_threadsafe(_cancel, record)

    # -- on the event loop -----------------------------------------------------------------------------------------------------

    def _create_tasks(self, group: list[Deferred]) -> None:
        loop = asyncio.get_running_loop()
        for record in group:
            record.work = loop.create_task(self._call(record))

    async def _call(self, record: Deferred) -> None:
        try:
            awaited = self._fn(record.key, record.value) if self._with_key else self._fn(record.value)
            if not hasattr(awaited, "__await__"):
                raise TypeError(f"map_async: its function returned {awaited!r}, which cannot be awaited: make it an async function")
            record.result = await awaited
        except BaseException as error:  # noqa: BLE001 (user code may raise anything; it is raised where the record is finished)
            record.error = error
        record.done = True
        if self._awaited is record:
            self._woken.set()


def _cancel(record: Deferred) -> None:
    cast("asyncio.Task[None]", record.work).cancel()
