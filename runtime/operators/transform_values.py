"""`transform_values` of a table: a custom object, which may have state, computes its rows (Kafka Streams' `KTableTransformValues`).

Unlike the function of `map_values`, a transformer is called for deletions too, with None. If a join reads the table and it has no store, a
separate transformer computes the requested row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol, TypeAlias

from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.record import Change, Headers
from penstock.runtime.model.type_variables import VR, K, KIn_contra, V, V_co, VIn_contra
from penstock.runtime.operators.base import OperatorSupplier, no_children, of_changes
from penstock.runtime.operators.context import Forward, NodeContext, Row, RowGetter
from penstock.runtime.operators.materialized import materialize
from penstock.runtime.operators.processor import ConnectedStoreProvider, ProcessorContext


class TransformerContext(ProcessorContext[object, object]):
    """A transformer's access to its task. It returns rows and cannot forward."""

    __slots__ = ()

    @property
    def timestamp(self) -> int:
        """Timestamp of the change that is being transformed, ms since the epoch."""
        return self._task.timestamp

    @property
    def headers(self) -> Headers:
        """A copy of the headers of the current record."""
        return list(self._task.headers or ())

    def forward(self, record: object, child_name: str | None = None) -> NoReturn:
        """Raise StreamsError: a transformer cannot forward."""
        raise StreamsError(f"node {self._node.name}: a ValueTransformerWithKey returns its row; it cannot forward")


class ValueTransformerWithKey(Generic[KIn_contra, VIn_contra, V_co]):
    """Computes the rows of a table. The supplier creates one for each task, which is used by one thread."""

    def init(self, context: TransformerContext) -> None:
        """Called once before the first row; stores are restored by then."""

    def transform(self, read_only_key: KIn_contra, value: VIn_contra | None, /) -> V_co | None:
        """Return the new row's value. `value` is None if the row was deleted; a result of None deletes the new row."""
        raise NotImplementedError

    def close(self) -> None:
        """Called when the task stops, or goes back to its last commit."""


class AnyValueTransformer(Protocol[KIn_contra, VIn_contra, V_co]):
    """Protocol of a transformer: `ValueTransformerWithKey`, or any class with its methods."""

    def init(self, context: TransformerContext) -> None: ...

    def transform(self, read_only_key: KIn_contra, value: VIn_contra | None, /) -> V_co | None: ...

    def close(self) -> None: ...


class ValueTransformerWithKeySupplier(ConnectedStoreProvider, ABC, Generic[KIn_contra, VIn_contra, V_co]):
    """Creates transformers and provides their stores. (Without stores, a `ValueTransformerWithKey` class or a function that returns a
    transformer will do.)"""

    @abstractmethod
    def get(self) -> AnyValueTransformer[KIn_contra, VIn_contra, V_co]:
        """Return a new transformer for each call."""

    def __call__(self) -> AnyValueTransformer[KIn_contra, VIn_contra, V_co]:
        return self.get()


MakesValueTransformer: TypeAlias = Callable[[], AnyValueTransformer[K, V, VR]]
"""A `ValueTransformerWithKey` class, a supplier, or a callable that returns a new transformer for each call."""

Transform = Callable[[object, object], object]


@dataclass(frozen=True, slots=True)
class TableTransformValues(OperatorSupplier):
    """`transform_values`. `versioned`: the parent table is versioned."""

    supplier: MakesValueTransformer
    store_name: str | None = None
    versioned: bool = False

    def global_stores(self) -> frozenset[str] | None:
        return None

    def wants_old(self, wanted_below: bool) -> bool:
        return wanted_below and self.store_name is None

    def can_send_old(self, parent_can: bool) -> bool:
        return parent_can or self.store_name is not None

    def _transformer(self, context: NodeContext) -> Transform:
        transformer = self.supplier()
        if not hasattr(transformer, "transform"):
            raise StreamsError(f"the supplier of {context.name} made a {type(transformer).__name__}, which has no method transform")
        init, close = getattr(transformer, "init", None), getattr(transformer, "close", None)
        if init is not None:
            api = TransformerContext(context, no_children)
            context.hooks.init.append((context.name, lambda: init(api)))
        if close is not None:
            context.hooks.close.append((context.name, close))
        return transformer.transform

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        if self.store_name is not None:
            return self._build_stored(context, forward, self.store_name)
        transform, task, send_old, versioned = self._transformer(context), context.task, context.send_old, self.versioned

        def transform_row(key: object, change: Change, timestamp: int) -> None:
            task.timestamp = timestamp
            new = transform(key, change[0])
            old = transform(key, change[1]) if send_old else None
            forward(key, type(change)(new, old) if versioned else Change(new, old), timestamp)

        return of_changes(transform_row)

    def _build_stored(self, context: NodeContext, forward: Forward, store_name: str) -> Forward:
        to_bytes, load, update, value_of, _, emit, _ = materialize(context, forward, store_name)
        transform, task = self._transformer(context), context.task

        def store_transformed(key: object, change: Change, timestamp: int) -> None:
            task.timestamp = timestamp
            new = transform(key, change[0])
            raw = to_bytes(key)
            entry = load(raw)
            old = None if emit is None else value_of(entry)
            update(raw, key, entry, new, timestamp, task.headers)
            if emit is not None:
                emit(key, new, old, timestamp)

        return of_changes(store_transformed)

    def row_getter(self, context: NodeContext, parent: RowGetter | None) -> RowGetter:
        assert parent is not None, context.name
        read, transform, task = parent, self._transformer(context), context.task

        def get_transformed(key: object, as_of: int | None) -> Row | None:
            value, timestamp = read(key, as_of) or (None, -1)
            now = task.topic, task.partition, task.offset, task.timestamp
            task.topic, task.partition, task.offset, task.timestamp = "", -1, -1, timestamp
            try:
                result = transform(key, value)
            finally:
                task.topic, task.partition, task.offset, task.timestamp = now
            return None if result is None else (result, timestamp)

        return get_transformed
