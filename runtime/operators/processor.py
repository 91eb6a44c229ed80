"""The Processor API: processors of the user's own, with state stores and punctuators (Kafka Streams' `processor.api`).

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

from runtime.config import StreamsConfig
from runtime.dsl.arity import checked
from runtime.durations import to_ms
from runtime.errors import InvalidStateStoreError, StreamsError
from runtime.ids import TaskId
from runtime.metrics import StreamsMetrics
from runtime.operators.base import OperatorSupplier
from runtime.operators.context import Forward, NodeContext, TaskContext
from runtime.record import FixedKeyRecord, Headers, Record
from runtime.serdes.serde import Serde
from runtime.stores.base import EngineStore, StateStore, StoreBuilder
from runtime.tasks.punctuation import Cancellable, PunctuationType, Punctuator
from runtime.type_variables import KR, VR, K, KIn, KIn_contra, KOut, KOut_co, KOut_contra, V, VIn_contra, VOut, VOut_co, VOut_contra

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
    """Where the record that is being processed came from: topic, partition and offset of the input."""

    topic: str
    partition: int
    offset: int


class ProcessorContext(Generic[KOut_contra, VOut_contra]):
    """What a processor may ask of its task (Kafka Streams' `ProcessorContext`). KOut and VOut are what it forwards."""

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
        """The task's folder; None in the test driver when no store is on disk."""
        return self._task.state_dir

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """None in `init`, `close` and punctuators, where there is no record."""
        task = self._task
        return RecordMetadata(task.topic, task.partition, task.offset) if task.offset >= 0 else None

    @property
    def metrics(self) -> StreamsMetrics:
        """For metrics of the processor's own."""
        return StreamsMetrics(self._task.metrics, str(self._task.task_id), self._node.name)

    def app_configs(self) -> Mapping[str, object]:
        """The application's configuration."""
        return self._task.config

    def app_configs_with_prefix(self, prefix: str) -> dict[str, object]:
        """The part of the configuration whose keys begin so; the keys without the prefix."""
        return {key.removeprefix(prefix): value for key, value in self._task.config.items() if key.startswith(prefix)}

    @property
    def key_serde(self) -> Serde | None:
        """The application's default serde of keys, `default.key.serde`; None if there is none."""
        return self._settings().default_key_serde

    @property
    def value_serde(self) -> Serde | None:
        """The application's default serde of values, `default.value.serde`; None if there is none."""
        return self._settings().default_value_serde

    def _settings(self) -> StreamsConfig:
        config = self._task.config
        return config if isinstance(config, StreamsConfig) else StreamsConfig(config)

    def current_stream_time_ms(self) -> int:
        """The largest timestamp that the task has processed, ms since the epoch; -1 before the first record."""
        return self._task.stream_time

    def current_system_time_ms(self) -> int:
        """Wall-clock time, ms since the epoch, of the clock that the application runs by."""
        return self._task.clock.wall_ms()

    def get_state_store(self, name: str) -> Any:  # noqa: ANN401 (who asks for a store knows what it is, as in Kafka Streams)
        """A store that is connected to this processor, or a global store.

        Raises InvalidStateStoreError for any other name. The task becomes a reader of the global store: while that is recovered, it waits.
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
        """Calls `callback(now_ms)` every `interval` (ms if an int) of stream time or wall-clock time.

        Stream time: first at once when stream time is known. Wall-clock time: first after one interval. With `start_time` (ms since the
        epoch if an int): then, and at whole intervals after it, as far as they are still to come (KIP-1146). Raises ValueError below 1 ms,
        TypeError for what is no PunctuationType, TopologyError for a callback that does not take the time.
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
        """Hands a record to all children, or to the one named. Its timestamp and headers go with it.

        Raises StreamsError if there is no such child, TypeError for what is no record.
        """
        try:
            key, headers = record.key, record.headers
        except AttributeError:
            raise TypeError(
                f"processor {self._node.name} forwards {record!r}, which is no Record: context.forward(Record(key, value, timestamp))"
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
        """Asks for a commit soon after the current record; does not commit by itself."""
        self._task.commit_requested = True


class Processor(Generic[KIn_contra, VIn_contra, KOut, VOut]):
    """A processor of the user's: it takes keys KIn and values VIn and forwards KOut and VOut. One instance for each task, made by the
    supplier; used by one thread."""

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
    """A processor that keeps its context, as `context` (Kafka Streams' `ContextualProcessor`). An `init` of one's own calls this one."""

    context: ProcessorContext[KOut, VOut]

    def init(self, context: ProcessorContext[KOut, VOut], /) -> None:
        self.context = context


class ContextualFixedKeyProcessor(FixedKeyProcessor[KIn, VIn_contra, VOut]):
    """The same for `process_values` (Kafka Streams' `ContextualFixedKeyProcessor`)."""

    context: FixedKeyProcessorContext[KIn, VOut]

    def init(self, context: FixedKeyProcessorContext[KIn, VOut], /) -> None:
        self.context = context


class AnyProcessor(Protocol[KIn_contra, VIn_contra, KOut_co, VOut_co]):
    """What the engine needs of a processor: `Processor` or anything with its methods."""

    def init(self, context: ProcessorContext[KOut_co, VOut_co], /) -> None: ...

    def process(self, record: Record[KIn_contra, VIn_contra], /) -> None: ...

    def close(self) -> None: ...


class AnyFixedKeyProcessor(Protocol[KIn, VIn_contra, VOut_co]):
    """The same for `process_values`."""

    def init(self, context: FixedKeyProcessorContext[KIn, VOut_co], /) -> None: ...

    def process(self, record: FixedKeyRecord[KIn, VIn_contra], /) -> None: ...

    def close(self) -> None: ...


class ConnectedStoreProvider:
    """What makes processors may bring the stores that they use (Kafka Streams' `ConnectedStoreProvider`, KIP-401)."""

    def stores(self) -> Iterable[StoreBuilder[StateStore]]:
        """Builders of stores that are added to the topology, unless they are there, and connected to the processor."""
        return ()


class ProcessorSupplier(ConnectedStoreProvider, ABC, Generic[KIn_contra, VIn_contra, KOut_co, VOut_co]):
    """Makes processors, and brings their stores. (One that needs no stores may be a `Processor` class, or any function that makes one.)"""

    @abstractmethod
    def get(self) -> AnyProcessor[KIn_contra, VIn_contra, KOut_co, VOut_co]:
        """A new processor, each time."""

    def __call__(self) -> AnyProcessor[KIn_contra, VIn_contra, KOut_co, VOut_co]:
        return self.get()


class FixedKeyProcessorSupplier(ConnectedStoreProvider, ABC, Generic[KIn, VIn_contra, VOut_co]):
    """The same for `process_values`."""

    @abstractmethod
    def get(self) -> AnyFixedKeyProcessor[KIn, VIn_contra, VOut_co]:
        """A new processor, each time."""

    def __call__(self) -> AnyFixedKeyProcessor[KIn, VIn_contra, VOut_co]:
        return self.get()


MakesProcessor: TypeAlias = Callable[[], AnyProcessor[K, V, KR, VR]]
"""A `Processor` class, a `ProcessorSupplier`, or a callable that makes a new processor each time."""

MakesFixedKeyProcessor: TypeAlias = Callable[[], AnyFixedKeyProcessor[K, V, VR]] | Callable[[], AnyProcessor[K, V, K, VR]]
"""The same for `process_values`; a `Processor` will do, whose records keep their keys."""


def stores_of(supplier: object) -> tuple[StoreBuilder[StateStore], ...]:
    """The stores that a supplier brings."""
    return tuple(supplier.stores()) if isinstance(supplier, ConnectedStoreProvider) else ()


class FixedKeyProcessorContext(ProcessorContext[KIn, VOut_contra]):
    """The context of `process_values`: what is forwarded keeps the record's key (Kafka Streams' `FixedKeyProcessorContext`)."""

    __slots__ = ("key",)

    def __init__(self, node: NodeContext, forward: Forward) -> None:
        super().__init__(node, forward)
        self.key: object = None
        """Of the record that is being processed."""

    def forward(self, record: FixedKeyRecord[KIn, VOut_contra] | Record[KIn, VOut_contra], child_name: str | None = None) -> None:
        """As in any processor. Raises StreamsError for a key that is not that of the record that is being processed, and, where none is
        (in a punctuator), for anything but a `FixedKeyRecord` that was kept."""
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
    """`process`, `process_values` (fixed_key) and `Topology.add_processor`."""

    supplier: MakesProcessor | MakesFixedKeyProcessor
    fixed_key: bool = False

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        processor = self.supplier()
        if not hasattr(processor, "process"):
            raise StreamsError(f"the supplier of {context.name} made a {type(processor).__name__}, which has no method process")
        if inspect.iscoroutinefunction(processor.process):
            raise StreamsError(f"{context.name}: {type(processor).__name__}.process is async, and nobody would await it; make it plain")
        api = FixedKeyProcessorContext(context, forward) if self.fixed_key else ProcessorContext(context, forward)
        # A processor need not have them (Kafka Streams' defaults do nothing either).
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
