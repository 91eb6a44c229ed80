"""What an operator may know and use: its task's context, shared by all nodes of the task, and its own node's.

The task's context is the one mutable place where the hot loop leaves what belongs to the current record and is not passed from call to
call: offset and headers. Everything an operator needs per record it takes from here once, when it is built, into local variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, cast

from runtime.clock import Clock
from runtime.errors import InvalidStateStoreError, SerializationError, TopologyError
from runtime.ids import TaskId
from runtime.metrics import TASK, Counter, Metrics
from runtime.record import Headers
from runtime.stores.base import EngineStore, EntryStore, StateStore
from runtime.tasks.punctuation import PunctuationQueue

EMIT_INTERVAL_MS = 1_000
"""Least time between two looks for results that wait for time to pass, as in Kafka Streams."""
T = TypeVar("T")

Forward = Callable[[object, object, int], None]
"""Takes key, value and timestamp (ms). On the edges of tables the value is a `Change`."""

ValueGetter = Callable[[object], object]
"""The value a table has now for a key; None if it has none (Kafka Streams' `KTableValueGetter`)."""

Row = tuple[object, int]
"""A row's value and timestamp."""
RowGetter = Callable[[object, "int | None"], "Row | None"]
"""The row that a table has for a key: now (None), or as of a time in ms, which only versioned tables know."""


class Collector(Protocol):
    """Where outputs go: the producer, or the test driver's log."""

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Takes one record. `partition` None: by the key's murmur2 hash. Raises ProductionError and the errors of a lost transaction."""

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic, for partitioners of the user's."""
        ...

    def exists(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None) -> bool:
        """Asked before the first record for a topic that the user's code has chosen. False: the record is left out."""
        ...

    def unwritable(
        self, topic: str, key: object, value: object, timestamp: int, headers: Headers | None, error: SerializationError
    ) -> None:
        """A serde cannot write an output: it is left out if this returns. Raises ProductionError where the client is to stop."""


class GlobalStores(Protocol):
    """The process's global stores, as tasks see them."""

    def store(self, name: str) -> EngineStore | None:
        """The store, or None if there is no global store of that name."""
        ...

    def register_reader(self, name: str, task: TaskId) -> None:
        """This task reads the store: a recovery of it makes the task wait (rules.md, 27)."""


class TaskContext:
    """One per task (or global task) and life of its pipeline.

    `topic`, `partition`, `offset` and `headers` are those of the record that is being processed. `stream_time` is the largest timestamp
    that the task has processed, -1 before the first; it only grows. `emit_interval_ms` is the least wall-clock time between two looks for
    results that wait for time to pass (0 in the test driver). `timestamp` is kept for processors of the user's only: the time of what
    they put into a plain store.
    """

    __slots__ = (
        "application_id",
        "carried",
        "clock",
        "collector",
        "commit_requested",
        "config",
        "dropped",
        "emit_interval_ms",
        "global_stores",
        "headers",
        "metrics",
        "offset",
        "partition",
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
        self.carried: dict[str, int] = {}
        """Times of nodes (ms, by name) that go with the committed offsets."""
        self.shared: dict[str, object] = {}
        """What nodes of this task have in common, by a name of theirs (`share`)."""
        self.topic = ""
        self.partition = -1
        self.offset = -1
        self.timestamp = 0
        self.headers: Headers | None = None
        self.commit_requested = False
        self.dropped: Counter = metrics.counter("dropped-records-total", TASK, task_id=str(task_id))
        """Records that an operator could not use: null keys and values where they mean nothing, windows that are over."""
        self.stream_punctuations = PunctuationQueue()
        self.wall_punctuations = PunctuationQueue()

    def share(self, name: str, make: Callable[[], T]) -> T:
        """The object that the nodes which know this name have in common; the first one makes it."""
        if name not in self.shared:
            self.shared[name] = make()
        return cast(T, self.shared[name])

    def store(self, name: str) -> StateStore | EngineStore:
        """The task's store of this name, else the global one (and the task is then known as its reader).

        Raises InvalidStateStoreError naming what there is.
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
    """What a task's nodes want to be called for, each with its node's name.

    `mark` gives a function the name of its node, so that an error in it is reported as the node's: for functions that are called from
    outside the chain (flush listeners, punctuators).
    """

    mark: Callable[[str, Callable[..., None]], Callable[..., None]]
    init: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    before_commit: list[Callable[[], None]] = field(default_factory=list)
    close: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    caches: list[tuple[str, EntryStore]] = field(default_factory=list)
    """Stores that hold updates back, each with its node."""


class NodeContext:
    """What one node is built with."""

    __slots__ = ("children", "gets_old", "getters", "hooks", "mark", "name", "plain_forward", "row_getters", "send_old", "stores", "task")

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
    ) -> None:
        self.name = name
        self.task = task
        self.hooks = hooks
        self.stores = stores
        self.children: Mapping[str, Forward] = children or {}
        self.plain_forward = plain_forward
        """For a table: takes the new value in place of a `Change`; None if a child needs the `Change`."""
        self.gets_old = gets_old
        """The changes that come in carry old values."""
        self.send_old = send_old
        """For a table: its changes shall carry old values."""
        self.getters = getters
        self.row_getters = row_getters

    def engine_store(self, name: str) -> EntryStore:
        """A store of entries, made by the engine. Raises InvalidStateStoreError if the user put another one in its place."""
        store = self.task.store(name)
        if not isinstance(store, EntryStore):
            raise InvalidStateStoreError(f"node {self.name}: this operation cannot keep its state in a store like {name!r}")
        return store

    def getter(self, table: str) -> ValueGetter:
        """Reads the table that another node of this task is."""
        if self.getters is None:
            raise TopologyError(f"node {self.name} reads the table {table}, which is not in its sub-topology")
        return self.getters(table)

    def rows(self, table: str) -> RowGetter:
        """Reads the table that another node of this task is, with the times of its rows."""
        if self.row_getters is None:
            raise TopologyError(f"node {self.name} reads the table {table}, which is not in its sub-topology")
        return self.row_getters(table)
