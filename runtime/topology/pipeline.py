"""Pipeline: a sub-topology compiled into chains of function calls, for one task.

Problem: a record passes five to ten nodes. In Python, any work of the engine per node (an object for the record, a dispatch, a lookup of
the children, a try block that remembers the node) costs as much as the node's own work.

Solution: nodes are compiled from the sinks to the sources. Each node's supplier builds a closure over the closures of its children, so that
a source's topic maps to one function of (key, value, timestamp), and a run of records is one loop over that function. The loop writes the
offset and headers of a record into the task's context, as targets of the `for` statement.

The names of nodes cost nothing either: the function of each node has its own code object with the node's name. A traceback then contains
the name, which `_node_of` reads, and CPython's inline caches are not shared between nodes that run the same code.

Rejected: source code generated per topology (saves few calls and makes debugging hard); generators between nodes (twice the cost of a
call); batches between nodes (a record would no longer be finished before the next one starts, which the Processor API can see).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, TracebackType
from typing import cast

from penstock.runtime.model.clock import NEVER
from penstock.runtime.model.error_details import at_line
from penstock.runtime.model.errors import (
    BrokerUnavailableError,
    ProcessingError,
    ProductionError,
    StateDirectoryError,
    StateUnreadableError,
    StreamsError,
    TaskCorruptedError,
    TaskMigratedError,
    TransactionAbortedError,
)
from penstock.runtime.model.record import Headers
from penstock.runtime.model.user_errors import described, is_ctrl_c, pass_ctrl_c
from penstock.runtime.operators.context import Forward, Hooks, TaskContext
from penstock.runtime.operators.deferred import Deferred, Place
from penstock.runtime.operators.processor import UserProcessor
from penstock.runtime.operators.punctuation import PunctuationQueue
from penstock.runtime.operators.transform_values import TableTransformValues
from penstock.runtime.stores.base import EntryStore
from penstock.runtime.stores.expiring import StagedExpiringStore
from penstock.runtime.topology.assembly import Assembly, KeyedMessage
from penstock.runtime.topology.nodes import SubTopology

_NOT_THE_USERS = (
    BrokerUnavailableError,
    ProcessingError,
    ProductionError,
    StateDirectoryError,
    TaskCorruptedError,
    TaskMigratedError,
    StateUnreadableError,
    TransactionAbortedError,
)
"""Errors of the engine itself, which pass through a chain unchanged."""

PUNCTUATOR, HELD_BACK = "a punctuator", "a result that was held back"

MergedRow = tuple[int, int, int, Headers | None, object, object, int]
"""A record of several partitions' in order: the largest timestamp of its partition so far, number of the partition, offset, headers, key,
value, timestamp."""

ContinuesAfter = Callable[[ProcessingError], bool]
"""Decides whether a task continues after user code failed outside of a run; `__cause__` is its error."""


def _never(_error: ProcessingError) -> bool:
    return False


class Pipeline:
    """The compiled chains of one task, from its (re)start to its close or abort. Used by one thread."""

    def __init__(
        self,
        subtopology: SubTopology,
        context: TaskContext,
        continues_after: ContinuesAfter = _never,
        skips_deferred: ContinuesAfter = _never,
    ) -> None:
        """Build all nodes; stores must be open. `continues_after` decides about a punctuator that failed, `skips_deferred` about a deferred
        record: its error has topic, partition and offset, and `context.batch` is the record's batch.

        Raises TopologyError, InvalidStateStoreError, or ProcessingError if a user's supplier raises.
        """
        self.context = context
        self._continues_after = continues_after
        self._label = subtopology.label
        self._skips_deferred = skips_deferred
        self._codes: dict[CodeType, str] = {}
        self._hooks = Hooks(self._named)
        assembly = Assembly(subtopology, context, self._hooks)
        try:
            self._heads = assembly.heads()
            self._of_source = {source.name: assembly.head(source.name) for source in subtopology.sources}
            self._look_ups_of = {source.name: assembly.look_ups(source) for source in subtopology.sources}
            self._look_ups = {topic: self._look_ups_of[source.name] for source in subtopology.sources for topic in source.topics}
        except StreamsError:
            raise
        except BaseException as error:
            raise self._error(error, "while it was built", assembly.building) from error
        self._deferrals = assembly.deferrals
        self.turn = 0 if self._deferrals is None else self._deferrals.turn
        """Records that a turn should process for operators that defer records to be efficient; 0 if there are none. Then `finish_deferred`
        follows each turn."""
        order = {name: place for place, name in enumerate(assembly.names)}
        self._hooks.init.sort(key=lambda hook: order[hook[0]])
        self._hooks.close.sort(key=lambda hook: order[hook[0]])
        self._caches: list[EntryStore] = [store for _, store in sorted(self._hooks.caches, key=lambda cache: order[cache[0]])]
        self._expiring = [store for store in context.stores.values() if isinstance(store, StagedExpiringStore)]
        for store in self._expiring:
            store.follow(context)
        self._follows_time = bool(self._expiring) or any(
            isinstance(node.supplier, UserProcessor | TableTransformValues) or node.wrapper is not None for node in subtopology.processors
        )
        self._run_timed = self._run_with_time
        if self._deferrals is not None:
            self._follows_time, self._run_timed = True, self._run_deferring

    # -- life ------------------------------------------------------------------------------------------------------------------

    def init(self) -> None:
        """Initialise the user's processors, parents first. Raises ProcessingError."""
        self._no_record()
        for name, init in self._hooks.init:
            try:
                init()
            except _NOT_THE_USERS:
                raise
            except BaseException as error:
                raise self._error(error, "in init", name) from error
        try:
            self.finish_deferred()
        except _NOT_THE_USERS:
            raise
        except BaseException as error:
            raise self._error(error, "in init") from error

    def close(self) -> None:
        """Close all of the user's processors, even if one raises; then raise ProcessingError for the first error."""
        self.context.stream_punctuations.clear()
        self.context.wall_punctuations.clear()
        self._no_record()
        self._drop_deferred()
        failed: list[tuple[str, BaseException]] = []
        for name, close in self._hooks.close:
            try:
                close()
            except BaseException as error:  # noqa: BLE001 (user code may raise anything; the first is raised below)
                failed.append((name, error))
        if failed:
            name, first = failed[0]
            raise self._error(first, "in close", name) from first

    # -- processing ------------------------------------------------------------------------------------------------------------

    @property
    def stream_time(self) -> int:
        """The largest timestamp processed, in ms; -1 before the first."""
        return self.context.stream_time

    def process(self, topic: str) -> Forward:
        """Return the head of a source topic's chain, which takes (key, value, timestamp) after decoding."""
        return self._heads[topic]

    def read_also(self, topic: str, source: str) -> None:
        """Send the records of another topic to a source node whose pattern it matches."""
        self._heads[topic] = self._of_source[source]
        self._look_ups[topic] = self._look_ups_of[source]

    def look_ahead(self, topic: str, messages: Sequence[KeyedMessage]) -> bool:
        """Start reading the store entries that records will need, while earlier records are processed. Return True if a read began."""
        begun = False
        if messages:
            for look_up in self._look_ups[topic].of_stores:
                if look_up.store.reads_files(len(messages)):
                    begun |= look_up.begin(messages)
        return begun

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
        """Process rows `start` to `stop` (exclusive) of a decoded run. `context.topic` and `.partition` are set by the caller.

        Raises ProcessingError if the user's code raises: `index` is the row, and rows before it are done. Errors of the engine itself are
        not wrapped.
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
                self._run_timed(process, keys, values, timestamps, headers, offsets, start)
            elif headers is None:
                context.headers = None
                for context.offset, key, value, timestamp in zip(offsets, keys, values, timestamps):  # noqa: B905 (columns of one run)
                    process(key, value, timestamp)
            else:
                for context.offset, context.headers, key, value, timestamp in zip(offsets, headers, keys, values, timestamps):  # noqa: B905
                    process(key, value, timestamp)
        except _NOT_THE_USERS:
            raise
        except BaseException as error:
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
        """Process a run of one record. Alternating topics have many of them, and slicing columns would cost more than the record."""
        context = self.context
        context.offset, context.headers = offset, None if headers is None else headers[row]
        if timestamp > context.stream_time:
            context.stream_time = timestamp
        try:
            process(key, value, timestamp)
        except _NOT_THE_USERS:
            raise
        except BaseException as error:
            raise self._error(error, "", row=row) from error

    @property
    def merges(self) -> bool:
        """True if `process_merged` is possible: no user code or store reads stream time, and no operator defers records."""
        return not self._follows_time

    def process_merged(self, partitions: Sequence[tuple[str, int, object]], rows: Sequence[MergedRow]) -> None:
        """Process rows of several partitions, in their order. `partitions` are topic, partition and batch of each number in the rows; the
        context's are set here. Raises as `process_run`; the error's `index` is the row."""
        context = self.context
        places = [(self._heads[topic], topic, partition, batch) for topic, partition, batch in partitions]
        number = 0
        try:
            for _, number, context.offset, context.headers, key, value, timestamp in rows:
                process, context.topic, context.partition, context.batch = places[number]
                process(key, value, timestamp)
        except _NOT_THE_USERS:
            raise
        except BaseException as error:
            at = next((at for at, row in enumerate(rows) if row[1] == number and row[2] == context.offset), None)
            if at is not None:
                context.stream_time = max(context.stream_time, rows[at][0])
            raise self._error(error, "", row=at) from error
        context.stream_time = max(context.stream_time, rows[-1][0])

    def _run_with_time(
        self,
        process: Forward,
        keys: Sequence[object],
        values: Sequence[object],
        timestamps: Sequence[int],
        headers: Sequence[Headers | None] | None,
        offsets: Sequence[int],
        start: int,
    ) -> None:
        """Process a run of a pipeline whose user code or stores read stream time: set it before each record, and run punctuators after each
        record. (`start` is the row of the run's first record, which only `_run_deferring` uses.)"""
        context, due = self.context, self.context.stream_punctuations
        rows = headers if headers is not None else [None] * len(keys)
        for context.offset, context.headers, key, value, timestamp in zip(offsets, rows, keys, values, timestamps):  # noqa: B905
            if timestamp > context.stream_time:
                context.stream_time = timestamp
            process(key, value, timestamp)
            if due.due <= context.stream_time and not context.holds:
                self._punctuate(due, context.stream_time)

    # -- deferred records (`operators/deferred.py`) ----------------------------------------------------------------------------

    def _run_deferring(
        self,
        process: Forward,
        keys: Sequence[object],
        values: Sequence[object],
        timestamps: Sequence[int],
        headers: Sequence[Headers | None] | None,
        offsets: Sequence[int],
        start: int,
    ) -> None:
        """Process a run of a pipeline in which operators defer records. Between two records, finish as many as the operators need; finish
        all before a punctuator, and before an error of a later record."""
        context, deferrals, due = self.context, self._deferrals, self.context.stream_punctuations
        assert deferrals is not None
        topic, partition, batch, stream_time = context.topic, context.partition, context.batch, context.stream_time
        place = None
        rows = headers if headers is not None else [None] * len(keys)
        for row, (offset, own_headers, key, value, timestamp) in enumerate(
            zip(offsets, rows, keys, values, timestamps, strict=True), start
        ):
            stream_time = max(stream_time, timestamp)
            place = deferrals.place = Place(topic, partition, offset, row, batch, stream_time)
            self._return_to(place)
            context.headers = own_headers
            try:
                process(key, value, timestamp)
            except _NOT_THE_USERS:
                deferrals.drop()
                raise
            except BaseException as error:
                if not is_ctrl_c(error):
                    self.finish_deferred()
                self._return_to(place)
                if not place.failed:  # then it was skipped already
                    raise
            for level, queue in enumerate(deferrals.queues):
                while queue.is_full():
                    self._finish(queue.records.popleft(), level)
            if due.due <= stream_time and not context.holds:
                context.stream_time = stream_time
                self.finish_deferred()
                if not place.failed:
                    self._punctuate(due, stream_time)
        if place is not None:
            self._return_to(place)

    def finish_deferred(self) -> bool:
        """Forward the results of all deferred records, in their order. Return False if there was none.

        Raises ProcessingError for a record that is not skipped, and the user's own error if there is no record (in a punctuator or flush).
        """
        deferrals, context = self._deferrals, self.context
        if deferrals is None or not any(queue.records for queue in deferrals.queues):
            return False
        stream_time = context.stream_time
        self._finish_all(0)
        context.stream_time = stream_time
        self._no_record()
        return True

    def finish_if_many(self) -> None:
        """Finish all deferred records if they are more than a turn should process: those in front of an operator that takes fewer at once
        would make the turn long."""
        deferrals = self._deferrals
        if deferrals is not None and deferrals.most_open >= self.turn:
            self.finish_deferred()

    def _finish_all(self, first: int) -> None:
        """Finish the records of the queues from this level on."""
        assert self._deferrals is not None
        for level, queue in enumerate(self._deferrals.queues[first:], first):
            while queue.records:
                self._finish(queue.records.popleft(), level)

    def _finish(self, record: Deferred, level: int) -> None:
        """Forward the result of a record that was at the head of its queue, with its own context. If that fails, finish the records before
        it first, which are in the queues behind."""
        context, deferrals, place = self.context, self._deferrals, record.place
        assert deferrals is not None
        if place is not None:
            if place.failed:
                if record.node is not None:
                    record.node.forget(record)
                return
            self._return_to(place)
        context.offset, context.headers, deferrals.place = record.offset, record.headers, place
        try:
            try:
                record.finish(record)
            except _NOT_THE_USERS:
                raise
            except BaseException as error:
                if not is_ctrl_c(error):
                    self._finish_all(level + 1)
                if place is None:
                    raise
                place.failed = True
                self._return_to(place)
                failure = self._error(error, "", row=place.row)
                failure.__cause__ = error
                if not self._skips_deferred(failure):
                    failure.index = None  # not a row of the current run
                    raise failure from error
        except BaseException:
            if place is not None:
                deferrals.drop()
            raise

    def _return_to(self, place: Place) -> None:
        """Make an earlier record the current one again."""
        context = self.context
        context.topic, context.partition, context.offset = place.topic, place.partition, place.offset
        context.batch, context.stream_time = place.batch, place.stream_time

    def _drop_deferred(self) -> None:
        if self._deferrals is not None:
            self._deferrals.drop()

    def is_punctuation_due(self, wall_ms: int) -> bool:
        """Return whether `punctuate` would run anything."""
        context = self.context
        if context.held:
            return True
        by_stream_time = context.stream_time >= 0 and context.stream_punctuations.due <= context.stream_time
        return by_stream_time or context.wall_punctuations.due <= wall_ms

    def punctuate(self, wall_ms: int) -> int:
        """Emit the results that the task holds, and run the punctuators that are due, by stream time and by `wall_ms`. Returns how many
        ran. Raises ProcessingError."""
        context = self.context
        context.holds = False
        stream, wall = context.stream_punctuations, context.wall_punctuations
        ran = 0
        if context.held:
            ran = self._run_alone(HELD_BACK, self._emit_held)
        if stream.due == NEVER and wall.due == NEVER:
            return ran
        if context.stream_time >= 0 and stream.due <= context.stream_time:
            ran += self._punctuate(stream, context.stream_time)
        if wall.due <= wall_ms:
            ran += self._punctuate(wall, wall_ms)
        return ran

    def _emit_held(self) -> int:
        held, emitted = self.context.held, 0
        while held:  # one that raises is not repeated, and the others follow
            emit = next(iter(held))
            del held[emit]
            emit()
            emitted += 1
        return emitted

    def _punctuate(self, queue: PunctuationQueue, now_ms: int) -> int:
        return self._run_alone(PUNCTUATOR, lambda: queue.punctuate(now_ms, self.finish_deferred))

    def _run_alone(self, kind: str, run: Callable[[], int]) -> int:
        """Run punctuators, or emit results that were held: work that does not belong to the current record. `kind` names it in the message
        about an output that is refused meanwhile. Return how many ran."""
        self.context.ran_alone = kind
        self._no_record()
        self.context.punctuating = True
        ran = 0
        try:
            while True:
                try:
                    ran += run()
                    self.finish_deferred()
                    return ran
                except _NOT_THE_USERS:
                    self._drop_deferred()
                    raise
                except BaseException as error:
                    failure = self._error(error, "in a punctuator")
                    failure.__cause__ = error
                    if not self._continues_after(failure):
                        self._drop_deferred()
                        raise failure from error
                    ran += 1  # the others that are due follow
        finally:
            self.context.punctuating = False

    def flush_caches(self) -> None:
        """Expire entries, forward all cached updates, parents before children, until all caches are empty; then call the nodes' hooks
        before a commit. Raises ProcessingError."""
        self._no_record()
        try:
            for store in self._expiring:
                self.context.release(store.expire)
            while any([store.flush_cache() for store in self._caches]) or self.finish_deferred():  # noqa: C419 (every store)
                pass
            for keep in self._hooks.before_commit:
                keep()
        except _NOT_THE_USERS:
            raise
        except BaseException as error:
            raise self._error(error, "while a cache was flushed") from error

    def _no_record(self) -> None:
        self.context.offset = -1
        self.context.headers = None
        if self._deferrals is not None:
            self._deferrals.place = None

    # -- errors ----------------------------------------------------------------------------------------------------------------

    def _named(self, node: str, function: Callable[..., None]) -> Callable[..., None]:
        """Return the function with a code object that has the node's name."""
        if not isinstance(function, FunctionType):
            return function
        code = function.__code__.replace(co_name=node, co_qualname=node)
        self._codes[code] = node
        named = FunctionType(code, function.__globals__, node, function.__defaults__, function.__closure__)
        named.__kwdefaults__ = function.__kwdefaults__
        return cast(Callable[..., None], named)

    def _node_of(self, traceback: TracebackType | None) -> str | None:
        """Return the node whose code raised: that of the innermost named frame."""
        node = None
        while traceback is not None:
            node = self._codes.get(traceback.tb_frame.f_code, node)
            traceback = traceback.tb_next
        return node

    def _error(self, error: BaseException, when: str, node: str | None = None, row: int | None = None) -> ProcessingError:
        """Wrap an error of the user's code, with the place where it was raised. Raises the error itself if it is a Ctrl-C of the
        program."""
        context = self.context
        node = node or self._node_of(error.__traceback__)
        where = [f"task {context.task_id}"]
        label = None if node is None else self._label(node)
        if label is not None:
            where.append(f"node {label}")
        if row is not None:
            where.append(f"record {context.topic}-{context.partition}@{context.offset}")
        place = f"{', '.join(where)}{' ' if when else ''}{when}"
        pass_ctrl_c(error, place)
        text = f"{place}{at_line(error)}: {described(error)}"
        return ProcessingError(
            text,
            task=context.task_id,
            node=node,
            node_label=label,
            topic=None if row is None else context.topic,
            partition=None if row is None else context.partition,
            offset=None if row is None else context.offset,
            index=row,
        )


def compile_pipeline(
    subtopology: SubTopology,
    context: TaskContext,
    continues_after: ContinuesAfter = _never,
    skips_deferred: ContinuesAfter = _never,
) -> Pipeline:
    """Return the task's pipeline. Its stores must be open; call `init()` after they are restored.

    Raises TopologyError, InvalidStateStoreError, or ProcessingError if a user's supplier raises.
    """
    return Pipeline(subtopology, context, continues_after, skips_deferred)
