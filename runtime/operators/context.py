"""The contexts of an operator: one of its task, shared by all nodes of the task, and one of its node.

The hot loop writes the offset and headers of the current record into the task's context, so that they need not be passed from call to call.
An operator reads everything else from its context once, when it is built, into local variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, cast

from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import InvalidStateStoreError, SerializationError, TopologyError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.metrics import TASK, Counter, Metrics
from penstock.runtime.model.record import Headers
from penstock.runtime.operators.deferred import DeferredQueue
from penstock.runtime.operators.punctuation import PunctuationQueue
from penstock.runtime.stores.base import EngineStore, EntryStore, StateStore

EMIT_INTERVAL_MS = 1_000
"""Least time between two checks for results that are due, as in Kafka Streams."""
T = TypeVar("T")

Forward = Callable[[object, object, int], None]
"""Takes key, value and timestamp (ms). On the edges of tables the value is a `Change`."""

ValueGetter = Callable[[object], object]
"""Returns a table's current value for a key; None if it has none (Kafka Streams' `KTableValueGetter`)."""

Row = tuple[object, int]
"""A row's value and timestamp."""
RowGetter = Callable[[object, "int | None"], "Row | None"]
"""Returns a table's row for a key: the current one (None), or that of a time in ms, for versioned tables only."""


KeysAhead = Callable[["Sequence[bytes]", "Sequence[int]"], "Sequence[bytes]"]
"""Returns the store keys that records will need, from the bytes of the records' keys and their timestamps (ms)."""


class LookUp(NamedTuple):
    """Entries of a store that an operator reads for each record, known from the record's key and timestamp alone."""

    store: EntryStore
    keys: KeysAhead | None = None
    """None: the store keys are the records' keys."""


class Collector(Protocol):
    """Receives outputs: the producer, or the test driver's log."""

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Send one record. `partition` None: by the key's murmur2 hash. Raises ProductionError and the errors of a lost transaction."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic, for custom partitioners."""
        ...

    def exists(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> bool:
        """Return whether a topic chosen by the user's code exists; called before its first record. False: the record is skipped."""
        ...

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        """Handle an output that a serde cannot write. It is skipped if this returns. Raises ProductionError to stop the client."""


class GlobalStores(Protocol):
    """Access of tasks to the global stores of the process."""

    def store(self, name: str) -> EngineStore | None:
        """Return the global store of this name, or None."""
        ...

    def register_reader(self, name: str, task: TaskId) -> None:
        """Declare that a task reads the store, so that the task waits while the store recovers (rules.md, 27)."""


class TaskContext:
    """The context of a task (or global task), from the start to the close of its pipeline.

    `topic`, `partition`, `offset` and `headers` are those of the record being processed. `stream_time` is the largest timestamp that the
    task has processed, -1 before the first; it never decreases. `emit_interval_ms` is the least wall-clock time between two checks for
    results that are due (0 in the test driver). `timestamp` is set for the user's processors only: the timestamp of updates that they put
    into a store without timestamps.
    """

    __slots__ = (
        "application_id",
        "batch",
        "clock",
        "collector",
        "commit_requested",
        "config",
        "dropped",
        "emit_interval_ms",
        "global_stores",
        "headers",
        "held",
        "holds",
        "metrics",
        "offset",
        "partition",
        "processor_metadata",
        "punctuating",
        "ran_alone",
        "shared",
        "state_dir",
        "stores",
        "stream_punctuations",
        "stream_time",
        "task_id",
        "timestamp",
        "topic",
        "wall_punctuations",
    )

    def __init__(
        self,
        *,
        task_id: TaskId,
        application_id: str,
        config: Mapping[str, object],
        clock: Clock,
        metrics: Metrics,
        collector: Collector,
        stores: Mapping[str, StateStore | EngineStore],
        global_stores: GlobalStores | None = None,
        state_dir: Path | None = None,
        stream_time: int = -1,
        emit_interval_ms: int = EMIT_INTERVAL_MS,
    ) -> None:
        self.task_id = task_id
        self.application_id = application_id
        self.config = config
        self.clock = clock
        self.metrics = metrics
        self.collector = collector
        self.stores = stores
        self.global_stores = global_stores
        self.state_dir = state_dir
        self.stream_time = stream_time
        self.emit_interval_ms = emit_interval_ms
        self.processor_metadata: dict[str, int] = {}
        """Times of nodes (ms, by name) that the metadata of the committed offsets contains."""
        self.shared: dict[str, object] = {}
        """Objects that several nodes of the task use, by name (`share`)."""
        self.topic = ""
        self.partition = -1
        self.offset = -1
        self.batch: object = None
        """The batch of the record that is being processed, for code that knows its type."""
        self.punctuating = False
        """True while a punctuator runs."""
        self.holds = False
        """True if stream-time punctuators and results that are due wait for `Pipeline.punctuate`, so that a commit with one record contains
        nothing that other records are behind."""
        self.held: dict[Callable[[], None], None] = {}
        """Calls that wait for `Pipeline.punctuate`, in order."""
        self.ran_alone = ""
        """Kind of call that `Pipeline.punctuate` ran last, for messages."""
        self.timestamp = 0
        self.headers: Headers | None = None
        self.commit_requested = False
        self.dropped: Counter = metrics.counter("dropped-records-total", TASK, task_id=str(task_id))
        """Records that operators dropped: without the key or value they need, or for closed windows."""
        self.stream_punctuations = PunctuationQueue()
        self.wall_punctuations = PunctuationQueue()

    def share(self, name: str, make: Callable[[], T]) -> T:
        """Return the object that nodes share under this name; the first call creates it."""
        if name not in self.shared:
            self.shared[name] = make()
        return cast(T, self.shared[name])

    def release(self, emit: Callable[[], None]) -> None:
        """Emit results of earlier records that are due now. `emit` is called at once, or later if the task `holds` them."""
        if self.holds:
            self.held[emit] = None
        else:
            emit()

    def store(self, name: str) -> StateStore | EngineStore:
        """Return the task's store of this name, else the global store, of which the task is then registered as a reader.

        Raises InvalidStateStoreError with the names of the task's stores.
        """
        store = self.stores.get(name)
        if store is not None:
            return store
        found = self.global_stores.store(name) if self.global_stores is not None else None
        if self.global_stores is None or found is None:
            known = ", ".join(sorted(self.stores)) or "none"
            raise InvalidStateStoreError(f"task {self.task_id} has no store {name!r} (its stores: {known}); connect it to the processor")
        self.global_stores.register_reader(name, self.task_id)
        return found


@dataclass(slots=True)
class Hooks:
    """Callbacks that the nodes of a task register, each with the name of its node.

    `mark` attaches a node's name to a function that is called from outside the chain (flush listeners, punctuators), so that errors name
    the node.
    """

    mark: Callable[[str, Callable[..., None]], Callable[..., None]]
    init: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    before_commit: list[Callable[[], None]] = field(default_factory=list)
    close: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    caches: list[tuple[str, EntryStore]] = field(default_factory=list)
    """Stores with a cache, each with its node."""


class NodeContext:
    """The context with which a node is built."""

    __slots__ = (
        "children",
        "deferred",
        "gets_old",
        "getters",
        "hooks",
        "label",
        "mark",
        "name",
        "plain_forward",
        "row_getters",
        "send_old",
        "stores",
        "table_stores",
        "task",
    )

    def __init__(
        self,
        name: str,
        task: TaskContext,
        *,
        hooks: Hooks,
        stores: tuple[str, ...] = (),
        children: Mapping[str, Forward] | None = None,
        plain_forward: Forward | None = None,
        gets_old: bool = False,
        send_old: bool = False,
        getters: Callable[[str], ValueGetter] | None = None,
        row_getters: Callable[[str], RowGetter] | None = None,
        table_stores: Callable[[str], str | None] = lambda table: None,
        deferred: DeferredQueue | None = None,
        label: str | None = None,
    ) -> None:
        self.name = name
        self.label = label or name
        """The name for warnings, with the line that made the node."""
        self.task = task
        self.hooks = hooks
        self.stores = stores
        self.children: Mapping[str, Forward] = children or {}
        self.plain_forward = plain_forward
        """For a table: takes the new value instead of a `Change`; None if a child needs the `Change`."""
        self.gets_old = gets_old
        """Whether incoming changes carry old values."""
        self.send_old = send_old
        """For a table: whether its changes must carry old values."""
        self.deferred = deferred
        """The queue of an operator that defers records; None if it must not."""
        self.getters = getters
        self.row_getters = row_getters
        self.table_stores = table_stores

    def engine_store(self, name: str) -> EntryStore:
        """Return a store of the engine's own type. Raises InvalidStateStoreError for a custom store."""
        store = self.task.store(name)
        if not isinstance(store, EntryStore):
            raise InvalidStateStoreError(f"node {self.name}: this operation cannot keep its state in a store like {name!r}")
        return store

    def getter(self, table: str) -> ValueGetter:
        """Return a function that reads the table of another node of this task."""
        if self.getters is None:
            raise TopologyError(f"node {self.name} reads the table {table}, which is not in its sub-topology")
        return self.getters(table)

    def store_of(self, table: str) -> str | None:
        """Return the name of the store of another node's table; None if the table is not materialized."""
        return self.table_stores(table)

    def rows(self, table: str) -> RowGetter:
        """Return a function that reads the table of another node of this task, with the timestamps of its rows."""
        if self.row_getters is None:
            raise TopologyError(f"node {self.name} reads the table {table}, which is not in its sub-topology")
        return self.row_getters(table)
