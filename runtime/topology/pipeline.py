"""A sub-topology made into chains of plain calls, for one task.

The problem: a record passes five to ten nodes, and in Python everything that an engine does per node (an object for the record, a
dispatch, a look-up of the children, a try block that remembers the node) costs as much as the node's own work.

The way taken: compile from the ends to the heads. Each node's supplier builds a closure that knows the closures of its children, so a
source's topic maps to one function of (key, value, timestamp), and a run of records is one loop over that function. What is known of
a record besides (offset, headers) is left in the task's context by the loop itself, as targets of the `for` statement.

Nodes' names cost nothing either: each node's function gets a code object of its own that carries the node's name. An error's traceback
then names the node, to people and to `_node_of`, and CPython's inline caches are not shared between nodes that run the same code.

Ways rejected: source code generated per topology (the calls saved are few, and the debugger is lost); generators between the nodes
(twice the cost of a call); batches between the nodes (what a record does would no longer be finished before the next one begins, which
the Processor API can see).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, TracebackType
from typing import cast

from runtime.errors import (
    BrokerUnavailableError,
    ProcessingError,
    ProductionError,
    StateDirectoryError,
    StreamsError,
    TaskCorruptedError,
    TaskMigratedError,
    TransactionAbortedError,
)
from runtime.operators.context import Forward, Hooks, TaskContext
from runtime.operators.processor import UserProcessor
from runtime.operators.transform_values import TableTransformValues
from runtime.record import Headers
from runtime.stores.base import EntryStore
from runtime.tasks.punctuation import NEVER, PunctuationQueue
from runtime.topology.assembly import Assembly
from runtime.topology.subtopologies import SubTopology

_NOT_THE_USERS = (
    BrokerUnavailableError,
    ProcessingError,
    ProductionError,
    StateDirectoryError,
    TaskCorruptedError,
    TaskMigratedError,
    TransactionAbortedError,
)
"""Errors of the engine's own, which pass through a chain as they are."""

GoesOn = Callable[[ProcessingError], bool]
"""Whether a task goes on although a punctuator failed; `__cause__` is what it raised."""


def _never(_error: ProcessingError) -> bool:
    return False


class Pipeline:
    """The compiled chains of one task. Lives from (re)start to close or abort; used by one thread."""

    def __init__(self, subtopology: SubTopology, context: TaskContext, goes_on: GoesOn = _never) -> None:
        """Builds all nodes; stores must be open. `goes_on` is asked about a punctuator that failed.

        Raises TopologyError, InvalidStateStoreError, or ProcessingError where a supplier of the user's raises.
        """
        self.context = context
        self._goes_on = goes_on
        self._codes: dict[CodeType, str] = {}
        self._hooks = Hooks(self._named)
        assembly = Assembly(subtopology, context, self._hooks)
        try:
            self._heads = assembly.heads()
            self._of_source = {source.name: assembly.head(source.name) for source in subtopology.sources}
        except StreamsError:
            raise
        except Exception as error:
            raise self._error(error, "while it was built", assembly.building) from error
        order = {name: place for place, name in enumerate(assembly.names)}
        self._hooks.init.sort(key=lambda hook: order[hook[0]])
        self._hooks.close.sort(key=lambda hook: order[hook[0]])
        self._caches: list[EntryStore] = [store for _, store in sorted(self._hooks.caches, key=lambda cache: order[cache[0]])]
        self._follows_time = any(isinstance(node.supplier, UserProcessor | TableTransformValues) for node in subtopology.processors)

    # -- life ------------------------------------------------------------------------------------------------------------------

    def init(self) -> None:
        """Initialises the user's processors, parents first. Raises ProcessingError."""
        self._no_record()
        for name, init in self._hooks.init:
            try:
                init()
            except _NOT_THE_USERS:
                raise
            except Exception as error:
                raise self._error(error, "in init", name) from error

    def close(self) -> None:
        """Closes the user's processors, all of them even if one raises; then raises ProcessingError for the first."""
        self.context.stream_punctuations.clear()
        self.context.wall_punctuations.clear()
        self._no_record()
        failed: list[tuple[str, Exception]] = []
        for name, close in self._hooks.close:
            try:
                close()
            except Exception as error:  # noqa: BLE001 (user code may raise anything; the first is raised below)
                failed.append((name, error))
        if failed:
            name, first = failed[0]
            raise self._error(first, "in close", name) from first

    # -- processing ------------------------------------------------------------------------------------------------------------

    @property
    def stream_time(self) -> int:
        """The largest timestamp in ms that was processed, -1 before the first."""
        return self.context.stream_time

    def process(self, topic: str) -> Forward:
        """The head of a source topic's chain: takes (key, value, timestamp) after decoding."""
        return self._heads[topic]

    def read_also(self, topic: str, source: str) -> None:
        """Another topic goes the way of a source node: one that its pattern matches."""
        self._heads[topic] = self._of_source[source]

    def process_run(
        self,
        topic: str,
        keys: Sequence[object],
        values: Sequence[object],
        timestamps: Sequence[int],
        headers: Sequence[Headers | None] | None,
        offsets: Sequence[int],
        start: int,
        stop: int,
    ) -> None:
        """Processes rows `start` to `stop` (exclusive) of a decoded run. `context.topic` and `.partition` are set by the caller.

        Raises ProcessingError where the user's code raises: `index` is the row, rows before it are done. Errors of the engine's own
        pass as they are.
        """
        context = self.context
        process = self._heads[topic]
        if stop - start == 1 and not self._follows_time:
            self._process_one(process, keys[start], values[start], timestamps[start], headers, offsets[start], start)
            return
        if start or stop != len(keys):
            keys, values, timestamps, offsets = keys[start:stop], values[start:stop], timestamps[start:stop], offsets[start:stop]
            headers = None if headers is None else headers[start:stop]
        try:
            if self._follows_time:
                self._run_with_time(process, keys, values, timestamps, headers, offsets)
            elif headers is None:
                context.headers = None
                for context.offset, key, value, timestamp in zip(offsets, keys, values, timestamps):  # noqa: B905 (columns of one run)
                    process(key, value, timestamp)
            else:
                for context.offset, context.headers, key, value, timestamp in zip(offsets, headers, keys, values, timestamps):  # noqa: B905
                    process(key, value, timestamp)
        except _NOT_THE_USERS:
            raise
        except Exception as error:
            row = offsets.index(context.offset) if context.offset >= 0 else None
            if row is not None:
                context.stream_time = max(context.stream_time, *timestamps[: row + 1])
            raise self._error(error, "", row=None if row is None else start + row) from error
        if timestamps:
            context.stream_time = max(context.stream_time, max(timestamps))

    def _process_one(
        self,
        process: Forward,
        key: object,
        value: object,
        timestamp: int,
        headers: Sequence[Headers | None] | None,
        offset: int,
        row: int,
    ) -> None:
        """A run of one record: two topics that take turns have many of them, and columns would cost more than the record."""
        context = self.context
        context.offset, context.headers = offset, None if headers is None else headers[row]
        if timestamp > context.stream_time:
            context.stream_time = timestamp
        try:
            process(key, value, timestamp)
        except _NOT_THE_USERS:
            raise
        except Exception as error:
            raise self._error(error, "", row=row) from error

    def _run_with_time(
        self,
        process: Forward,
        keys: Sequence[object],
        values: Sequence[object],
        timestamps: Sequence[int],
        headers: Sequence[Headers | None] | None,
        offsets: Sequence[int],
    ) -> None:
        """The loop where somebody can see stream time move: it is set before each record, and punctuators run after it."""
        context, due = self.context, self.context.stream_punctuations
        rows = headers if headers is not None else [None] * len(keys)
        for context.offset, context.headers, key, value, timestamp in zip(offsets, rows, keys, values, timestamps):  # noqa: B905
            if timestamp > context.stream_time:
                context.stream_time = timestamp
            process(key, value, timestamp)
            if due.due <= context.stream_time:
                self._punctuate(due, context.stream_time)

    def punctuate(self, wall_ms: int) -> int:
        """Runs the punctuators that are due, by stream time and by `wall_ms`. Returns how many ran. Raises ProcessingError."""
        context = self.context
        stream, wall = context.stream_punctuations, context.wall_punctuations
        if stream.due == NEVER and wall.due == NEVER:
            return 0
        ran = 0
        if context.stream_time >= 0 and stream.due <= context.stream_time:
            ran += self._punctuate(stream, context.stream_time)
        if wall.due <= wall_ms:
            ran += self._punctuate(wall, wall_ms)
        return ran

    def _punctuate(self, queue: PunctuationQueue, now_ms: int) -> int:
        self._no_record()
        ran = 0
        while True:
            try:
                return ran + queue.punctuate(now_ms)
            except _NOT_THE_USERS:
                raise
            except Exception as error:
                failure = self._error(error, "in a punctuator")
                failure.__cause__ = error
                if not self._goes_on(failure):
                    raise failure from error
                ran += 1  # the others that are due follow

    def flush_caches(self) -> None:
        """Forwards everything that caches hold back, parents before children, until none holds anything; then lets nodes write what
        belongs to the commit into their stores. Raises ProcessingError."""
        self._no_record()
        try:
            while any([store.flush_cache() for store in self._caches]):  # noqa: C419 (every store, not up to the first)
                pass
            for keep in self._hooks.before_commit:
                keep()
        except _NOT_THE_USERS:
            raise
        except Exception as error:
            raise self._error(error, "while a cache was flushed") from error

    def _no_record(self) -> None:
        self.context.offset = -1
        self.context.headers = None

    # -- errors ----------------------------------------------------------------------------------------------------------------

    def _named(self, node: str, function: Callable[..., None]) -> Callable[..., None]:
        """The function with a code object that carries the node's name."""
        if not isinstance(function, FunctionType):
            return function
        code = function.__code__.replace(co_name=node, co_qualname=node)
        self._codes[code] = node
        named = FunctionType(code, function.__globals__, node, function.__defaults__, function.__closure__)
        named.__kwdefaults__ = function.__kwdefaults__
        return cast(Callable[..., None], named)

    def _node_of(self, traceback: TracebackType | None) -> str | None:
        """The node whose code, or whose user's code, raised: the innermost named frame."""
        node = None
        while traceback is not None:
            node = self._codes.get(traceback.tb_frame.f_code, node)
            traceback = traceback.tb_next
        return node

    def _error(self, error: Exception, when: str, node: str | None = None, row: int | None = None) -> ProcessingError:
        """What is known of where the user's code raised."""
        context = self.context
        node = node or self._node_of(error.__traceback__)
        where = [f"task {context.task_id}"]
        if node is not None:
            where.append(f"node {node}")
        if row is not None:
            where.append(f"record {context.topic}-{context.partition}@{context.offset}")
        text = f"{', '.join(where)}{' ' if when else ''}{when}: {type(error).__name__}: {error}"
        return ProcessingError(
            text,
            task=context.task_id,
            node=node,
            topic=None if row is None else context.topic,
            partition=None if row is None else context.partition,
            offset=None if row is None else context.offset,
            index=row,
        )


def compile_pipeline(subtopology: SubTopology, context: TaskContext, goes_on: GoesOn = _never) -> Pipeline:
    """The task's pipeline; its stores must be open. `init()` comes after their restore.

    Raises TopologyError, InvalidStateStoreError, or ProcessingError where a supplier of the user's raises.
    """
    return Pipeline(subtopology, context, goes_on)
