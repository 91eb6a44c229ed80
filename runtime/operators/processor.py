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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias

from runtime.durations import to_ms
from runtime.errors import InvalidStateStoreError, StreamsError
from runtime.ids import TaskId
from runtime.operators.base import OperatorSupplier
from runtime.operators.context import Forward, NodeContext
from runtime.record import Record
from runtime.stores.base import EngineStore
from runtime.tasks.punctuation import Cancellable, PunctuationType, Punctuator
from runtime.type_variables import KR, VR, K, KIn_contra, KOut, KOut_co, KOut_contra, V, VIn_contra, VOut, VOut_co, VOut_contra

__all__ = [
    "Cancellable",
    "Processor",
    "ProcessorContext",
    "ProcessorSupplier",
    "PunctuationType",
    "Punctuator",
    "RecordMetadata",
    "UserProcessor",
]


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

    def app_configs(self) -> Mapping[str, object]:
        """The application's configuration."""
        return self._task.config

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

    def schedule(self, interval: timedelta | int, type: PunctuationType, callback: Punctuator) -> Cancellable:
        """Calls `callback(now_ms)` every `interval` (ms if an int) of stream time or wall-clock time.

        Stream time: first at once when stream time is known. Wall-clock time: first after one interval. Raises ValueError below 1 ms.
        """
        task, node = self._task, self._node

        def punctuator(now_ms: int) -> None:
            task.timestamp = now_ms
            callback(now_ms)

        named = node.hooks.mark(node.name, punctuator)
        milliseconds = to_ms(interval)
        if type is PunctuationType.STREAM_TIME:
            return task.stream_punctuations.schedule(0, milliseconds, named)
        return task.wall_punctuations.schedule(task.clock.wall_ms() + milliseconds, milliseconds, named)

    def forward(self, record: Record[KOut_contra, VOut_contra], child_name: str | None = None) -> None:
        """Hands a record to all children, or to the one named. Its timestamp and headers go with it.

        Raises StreamsError if there is no such child.
        """
        task = self._task
        forward = self._forward if child_name is None else self._child(child_name)
        headers, timestamp = task.headers, task.timestamp
        task.headers = record.headers or None
        try:
            forward(record.key, record.value, record.timestamp)
        finally:
            task.headers, task.timestamp = headers, timestamp

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

    def init(self, context: ProcessorContext[KOut, VOut]) -> None:
        """Called once before the first record; stores are restored by then."""

    def process(self, record: Record[KIn_contra, VIn_contra]) -> None:
        """Called for each record."""
        raise NotImplementedError

    def close(self) -> None:
        """Called when the task stops, or goes back to its last commit."""


class AnyProcessor(Protocol[KIn_contra, VIn_contra, KOut_co, VOut_co]):
    """What the engine needs of a processor: `Processor` or anything with its methods."""

    def init(self, context: ProcessorContext[KOut_co, VOut_co]) -> None: ...

    def process(self, record: Record[KIn_contra, VIn_contra]) -> None: ...

    def close(self) -> None: ...


ProcessorSupplier: TypeAlias = Callable[[], AnyProcessor[K, V, KR, VR]]
"""A `Processor` class, or a callable that makes a new processor each time."""


class _FixedKeyContext(ProcessorContext):
    """The context of `process_values`: results keep the record's key."""

    __slots__ = ("key",)

    def __init__(self, node: NodeContext, forward: Forward) -> None:
        super().__init__(node, forward)
        self.key: object = None

    def forward(self, record: Record[KOut_contra, VOut_contra], child_name: str | None = None) -> None:
        if record.key is not self.key and record.key != self.key:
            raise StreamsError(
                f"processor {self._node.name} forwards the key {record.key!r} for a record of key {self.key!r}: "
                "process_values keeps keys; use process to change them"
            )
        super().forward(record, child_name)


@dataclass(frozen=True, slots=True)
class UserProcessor(OperatorSupplier):
    """`process`, `process_values` (fixed_key) and `Topology.add_processor`."""

    supplier: ProcessorSupplier
    fixed_key: bool = False

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        processor = self.supplier()
        if not hasattr(processor, "process"):
            raise StreamsError(f"the supplier of {context.name} made a {type(processor).__name__}, which has no method process")
        process, task = processor.process, context.task
        # A processor need not have them (Kafka Streams' defaults do nothing either).
        init, close = getattr(processor, "init", None), getattr(processor, "close", None)
        fixed = _FixedKeyContext(context, forward) if self.fixed_key else None
        api = ProcessorContext(context, forward) if fixed is None else fixed
        if init is not None:
            context.hooks.init.append((context.name, lambda: init(api)))
        if close is not None:
            context.hooks.close.append((context.name, close))

        def process_record(key: object, value: object, timestamp: int) -> None:
            headers = task.headers
            task.timestamp = timestamp
            process(Record(key, value, timestamp, list(headers) if headers else []))

        if fixed is None:
            return process_record
        keeper = fixed

        def process_value(key: object, value: object, timestamp: int) -> None:
            keeper.key = key
            process_record(key, value, timestamp)

        return process_value
