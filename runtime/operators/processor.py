"""The Processor API: custom processors with state stores and punctuators (Kafka Streams' `processor.api`).

class Enrich(Processor):
    def init(self, context):
        self.context = context
        self.seen = context.get_state_store("seen")
        context.schedule(timedelta(seconds=10), PunctuationType.WALL_CLOCK_TIME, self.report)

    def process(self, record):
        self.context.forward(record.with_value(...))
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.arity import checked
from penstock.runtime.model.clock import to_ms
from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.metrics import StreamsMetrics
from penstock.runtime.model.record import FixedKeyRecord, Headers, Record
from penstock.runtime.model.type_variables import (
    KR,
    VR,
    K,
    KIn,
    KIn_contra,
    KOut,
    KOut_co,
    KOut_contra,
    V,
    VIn_contra,
    VOut,
    VOut_co,
    VOut_contra,
)
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.context import Forward, NodeContext, TaskContext
from penstock.runtime.operators.punctuation import Cancellable, PunctuationType, Punctuator
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import EngineStore, StateStore, StoreBuilder

__all__ = [
    "Cancellable",
    "ConnectedStoreProvider",
    "FixedKeyProcessor",
    "FixedKeyProcessorContext",
    "FixedKeyProcessorSupplier",
    "Processor",
    "ProcessorContext",
    "ProcessorSupplier",
    "PunctuationType",
    "Punctuator",
    "RecordMetadata",
    "UserProcessor",
]


def _epoch_ms(moment: datetime | int) -> int:
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: give one, or ms since the epoch")
    return round(moment.timestamp() * 1000)


class RecordMetadata(NamedTuple):
    """Topic, partition and offset of the input record that is being processed."""

    topic: str
    partition: int
    offset: int


class ProcessorContext(Generic[KOut_contra, VOut_contra]):
    """A processor's access to its task (Kafka Streams' `ProcessorContext`). KOut and VOut are the types of forwarded keys and values."""

    __slots__ = ("_forward", "_node", "_task")

    def __init__(self, node: NodeContext, forward: Forward) -> None:
        self._node = node
        self._task = node.task
        self._forward = forward

    @property
    def application_id(self) -> str:
        return self._task.application_id

    @property
    def task_id(self) -> TaskId:
        return self._task.task_id

    @property
    def state_dir(self) -> Path | None:
        """The task's directory; None in the test driver if no store is on disk."""
        return self._task.state_dir

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Metadata of the current record; None in `init`, `close` and punctuators, where there is none."""
        task = self._task
        return RecordMetadata(task.topic, task.partition, task.offset) if task.offset >= 0 else None

    @property
    def metrics(self) -> StreamsMetrics:
        """Registry for the processor's own metrics."""
        return StreamsMetrics(self._task.metrics, str(self._task.task_id), self._node.name)

    def app_configs(self) -> Mapping[str, object]:
        """Return the application's configuration."""
        return self._task.config

    def app_configs_with_prefix(self, prefix: str) -> dict[str, object]:
        """Return the configuration entries whose keys begin with the prefix, with the prefix removed."""
        return {key.removeprefix(prefix): value for key, value in self._task.config.items() if key.startswith(prefix)}

    @property
    def key_serde(self) -> Serde | None:
        """The application's default key serde, `default.key.serde`; None if it is not set."""
        return self._settings().default_key_serde

    @property
    def value_serde(self) -> Serde | None:
        """The application's default value serde, `default.value.serde`; None if it is not set."""
        return self._settings().default_value_serde

    def _settings(self) -> StreamsConfig:
        config = self._task.config
        return config if isinstance(config, StreamsConfig) else StreamsConfig(config)

    def current_stream_time_ms(self) -> int:
        """Return the largest timestamp that the task has processed, ms since the epoch; -1 before the first record."""
        return self._task.stream_time

    def current_system_time_ms(self) -> int:
        """Return the wall-clock time of the application's clock, ms since the epoch."""
        return self._task.clock.wall_ms()

    def get_state_store(self, name: str) -> Any:  # noqa: ANN401 (the caller knows the store's type, as in Kafka Streams)
        """Return a store that is connected to this processor, or a global store.

        Raises InvalidStateStoreError for any other name. The task becomes a reader of the global store: it waits while that store recovers.
        """
        node = self._node
        if name in self._task.stores and name not in node.stores:
            raise InvalidStateStoreError(f"processor {node.name} has no access to store {name!r}: name it where the processor is added")
        store = self._task.store(name)
        return store.user_store if isinstance(store, EngineStore) else store

    def schedule(
        self,
        interval: timedelta | int,
        type: PunctuationType,
        callback: Punctuator,
        *,
        start_time: datetime | int | None = None,
    ) -> Cancellable:
        """Call `callback(now_ms)` every `interval` (ms if an int) of stream time or wall-clock time.

        The first call is made as soon as stream time is known, or after one interval of wall-clock time. With `start_time` (ms since the
        epoch if an int), calls are made at that time and at whole intervals after it; past times are skipped (KIP-1146). Raises ValueError
        for an interval below 1 ms, TypeError if `type` is not a PunctuationType, TopologyError if the callback does not accept the time.
        """
        task, node = self._task, self._node
        if not isinstance(type, PunctuationType):
            raise TypeError(f"processor {node.name}: schedule takes a PunctuationType, such as PunctuationType.STREAM_TIME, not {type!r}")
        checked(callback, node.name, "now_ms")

        def punctuator(now_ms: int) -> None:
            task.timestamp = now_ms
            callback(now_ms)

        named = node.hooks.mark(node.name, punctuator)
        milliseconds, by_stream = to_ms(interval), type is PunctuationType.STREAM_TIME
        queue = task.stream_punctuations if by_stream else task.wall_punctuations
        if start_time is None:
            return queue.schedule(0 if by_stream else task.clock.wall_ms() + milliseconds, milliseconds, named)
        now_ms = task.stream_time if by_stream else task.clock.wall_ms()
        return queue.schedule_anchored(_epoch_ms(start_time), milliseconds, named, now_ms)

    def forward(self, record: Record[KOut_contra, VOut_contra], child_name: str | None = None) -> None:
        """Forward a record, with its timestamp and headers, to all children or to the named one.

        Raises StreamsError if there is no such child, TypeError if `record` is no record.
        """
        try:
            key, headers = record.key, record.headers
        except AttributeError:
            raise TypeError(
                f"processor {self._node.name} forwards {record!r}, which is not a Record: context.forward(Record(key, value, timestamp))"
            ) from None
        self._send(key, record.value, record.timestamp, headers, child_name)

    def _send(self, key: object, value: object, timestamp: int, headers: Headers, child_name: str | None) -> None:
        task = self._task
        forward = self._forward if child_name is None else self._child(child_name)
        own_headers, own_timestamp = task.headers, task.timestamp
        task.headers = headers or None
        try:
            forward(key, value, timestamp)
        finally:
            task.headers, task.timestamp = own_headers, own_timestamp

    def _child(self, name: str) -> Forward:
        found = self._node.children.get(name)
        if found is None:
            known = ", ".join(self._node.children) or "none"
            raise StreamsError(f"processor {self._node.name} has no child {name!r} (its children: {known})")
        return found

    def commit(self) -> None:
        """Request a commit soon after the current record. Does not commit by itself."""
        self._task.commit_requested = True


class Processor(Generic[KIn_contra, VIn_contra, KOut, VOut]):
    """Base of custom processors: accepts keys KIn and values VIn, forwards keys KOut and values VOut.

    The supplier creates one processor for each task, which is used by one thread.
    """

    def init(self, context: ProcessorContext[KOut, VOut], /) -> None:
        """Called once before the first record; stores are restored by then."""

    def process(self, record: Record[KIn_contra, VIn_contra], /) -> None:
        """Called for each record."""
        raise NotImplementedError

    def close(self) -> None:
        """Called when the task stops, or goes back to its last commit."""


class FixedKeyProcessor(Generic[KIn, VIn_contra, VOut]):
    """A processor for `process_values`, which changes values and keeps keys (Kafka Streams' `FixedKeyProcessor`)."""

    def init(self, context: FixedKeyProcessorContext[KIn, VOut], /) -> None:
        """Called once before the first record; stores are restored by then."""

    def process(self, record: FixedKeyRecord[KIn, VIn_contra], /) -> None:
        """Called for each record."""
        raise NotImplementedError

    def close(self) -> None:
        """Called when the task stops, or goes back to its last commit."""


class ContextualProcessor(Processor[KIn_contra, VIn_contra, KOut, VOut]):
    """A processor with its context in `context` (Kafka Streams' `ContextualProcessor`). An overriding `init` must call this one."""

    context: ProcessorContext[KOut, VOut]

    def init(self, context: ProcessorContext[KOut, VOut], /) -> None:
        self.context = context


class ContextualFixedKeyProcessor(FixedKeyProcessor[KIn, VIn_contra, VOut]):
    """As `ContextualProcessor`, for `process_values` (Kafka Streams' `ContextualFixedKeyProcessor`)."""

    context: FixedKeyProcessorContext[KIn, VOut]

    def init(self, context: FixedKeyProcessorContext[KIn, VOut], /) -> None:
        self.context = context


class AnyProcessor(Protocol[KIn_contra, VIn_contra, KOut_co, VOut_co]):
    """Protocol of a processor: `Processor`, or any class with its methods."""

    def init(self, context: ProcessorContext[KOut_co, VOut_co], /) -> None: ...

    def process(self, record: Record[KIn_contra, VIn_contra], /) -> None: ...

    def close(self) -> None: ...


class AnyFixedKeyProcessor(Protocol[KIn, VIn_contra, VOut_co]):
    """Protocol of a processor of `process_values`."""

    def init(self, context: FixedKeyProcessorContext[KIn, VOut_co], /) -> None: ...

    def process(self, record: FixedKeyRecord[KIn, VIn_contra], /) -> None: ...

    def close(self) -> None: ...


class ConnectedStoreProvider:
    """A supplier of processors that provides their stores too (Kafka Streams' `ConnectedStoreProvider`, KIP-401)."""

    def stores(self) -> Iterable[StoreBuilder[StateStore]]:
        """Return builders of stores. They are added to the topology, unless it has them, and connected to the processor."""
        return ()


class ProcessorSupplier(ConnectedStoreProvider, ABC, Generic[KIn_contra, VIn_contra, KOut_co, VOut_co]):
    """Creates processors and provides their stores. (Without stores, a `Processor` class or a function that returns one will do.)"""

    @abstractmethod
    def get(self) -> AnyProcessor[KIn_contra, VIn_contra, KOut_co, VOut_co]:
        """Return a new processor for each call."""

    def __call__(self) -> AnyProcessor[KIn_contra, VIn_contra, KOut_co, VOut_co]:
        return self.get()


class FixedKeyProcessorSupplier(ConnectedStoreProvider, ABC, Generic[KIn, VIn_contra, VOut_co]):
    """As `ProcessorSupplier`, for `process_values`."""

    @abstractmethod
    def get(self) -> AnyFixedKeyProcessor[KIn, VIn_contra, VOut_co]:
        """Return a new processor for each call."""

    def __call__(self) -> AnyFixedKeyProcessor[KIn, VIn_contra, VOut_co]:
        return self.get()


MakesProcessor: TypeAlias = Callable[[], AnyProcessor[K, V, KR, VR]]
"""A `Processor` class, a `ProcessorSupplier`, or a callable that returns a new processor for each call."""

MakesFixedKeyProcessor: TypeAlias = Callable[[], AnyFixedKeyProcessor[K, V, VR]] | Callable[[], AnyProcessor[K, V, K, VR]]
"""`MakesProcessor` for `process_values`. A `Processor` that forwards the records' own keys is accepted too."""


def stores_of(supplier: object) -> tuple[StoreBuilder[StateStore], ...]:
    """Return the store builders of a supplier."""
    return tuple(supplier.stores()) if isinstance(supplier, ConnectedStoreProvider) else ()


class FixedKeyProcessorContext(ProcessorContext[KIn, VOut_contra]):
    """The context of `process_values`: forwarded records have the current record's key (Kafka Streams' `FixedKeyProcessorContext`)."""

    __slots__ = ("key",)

    def __init__(self, node: NodeContext, forward: Forward) -> None:
        super().__init__(node, forward)
        self.key: object = None
        """Key of the record that is being processed."""

    def forward(self, record: FixedKeyRecord[KIn, VOut_contra] | Record[KIn, VOut_contra], child_name: str | None = None) -> None:
        """As `ProcessorContext.forward`. Raises StreamsError for another key than that of the current record. In a punctuator, which has no
        current record, only a `FixedKeyRecord` of an earlier call may be forwarded."""
        if self._task.offset < 0 and isinstance(record, FixedKeyRecord):
            pass
        elif record.key is not self.key and record.key != self.key:
            raise StreamsError(
                f"processor {self._node.name} forwards the key {record.key!r} for a record of key {self.key!r}: "
                "process_values keeps keys; use process to change them"
            )
        self._send(record.key, record.value, record.timestamp, record.headers, child_name)


@dataclass(frozen=True, slots=True)
class UserProcessor(OperatorSupplier):
    """`process`, `process_values` (`fixed_key`) and `Topology.add_processor`."""

    supplier: MakesProcessor | MakesFixedKeyProcessor
    fixed_key: bool = False

    def global_stores(self) -> frozenset[str] | None:
        return None

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        processor = self.supplier()
        if not hasattr(processor, "process"):
            raise StreamsError(f"the supplier of {context.name} made a {type(processor).__name__}, which has no method process")
        if inspect.iscoroutinefunction(processor.process):
            raise StreamsError(
                f"{context.name}: {type(processor).__name__}.process is async, which is never awaited: make it a plain method"
            )
        api = FixedKeyProcessorContext(context, forward) if self.fixed_key else ProcessorContext(context, forward)
        # Both are optional (Kafka Streams has empty defaults).
        init, close = getattr(processor, "init", None), getattr(processor, "close", None)
        if init is not None:
            context.hooks.init.append((context.name, lambda: init(api)))
        if close is not None:
            context.hooks.close.append((context.name, close))
        process: Callable[[object], None] = processor.process  # type: ignore[assignment]  # of the kind of record that `api` belongs to
        return _of_values(process, api) if isinstance(api, FixedKeyProcessorContext) else _of_records(process, context.task)


def _of_records(process: Callable[[object], None], task: TaskContext) -> Forward:
    def process_record(key: object, value: object, timestamp: int) -> None:
        headers = task.headers
        task.timestamp = timestamp
        process(Record(key, value, timestamp, list(headers) if headers else []))

    return process_record


def _of_values(process: Callable[[object], None], api: FixedKeyProcessorContext) -> Forward:
    task = api._task

    def process_value(key: object, value: object, timestamp: int) -> None:
        headers = task.headers
        api.key, task.timestamp = key, timestamp
        process(FixedKeyRecord(key, value, timestamp, list(headers) if headers else []))

    return process_value
