"""TimeWindowedKStream: records grouped by key and by windows of time, sliding ones included (Kafka Streams' class of the same name)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from runtime.dsl.arity import checked
from runtime.dsl.groups import AGGREGATOR, REDUCER, Aggregator, Groups, Initializer, Reducer, shifted, unnamed_count
from runtime.dsl.ktable import KTable
from runtime.dsl.options import Materialized, MaterializedOrStr, NamedOrStr
from runtime.dsl.window_stores import window_key, window_store
from runtime.dsl.windows import EmitStrategy, SlidingWindows, TimeWindows, Windows, checked_strategy
from runtime.errors import TopologyError
from runtime.operators.aggregate import nothing
from runtime.operators.base import OperatorSupplier
from runtime.operators.sliding import SlidingAggregate
from runtime.operators.windowed import WindowAggregate, counted, reducing, zero
from runtime.record import Windowed
from runtime.serdes import LONG
from runtime.serdes.serde import Serde
from runtime.type_variables import VR, K, V

Functions = Callable[[str], tuple[Callable[[], object], Callable[..., object]]]
"""Gives initializer and aggregator, checked, for a node of this name."""


class TimeWindowedKStream(Generic[K, V]):
    """Records grouped by key and window; a late record, whose windows are over, is dropped and counted. Results have `Windowed` keys."""

    def __init__(self, groups: Groups[K, V], windows: Windows | SlidingWindows) -> None:
        self._groups = groups
        self._windows = windows
        self._on_close = False

    def emit_strategy(self, strategy: EmitStrategy) -> TimeWindowedKStream[K, V]:
        """When results go out. Changes this stream, as in Kafka Streams, and returns it. Raises TopologyError for results on close of
        windows that are neither `TimeWindows` nor `SlidingWindows`."""
        if checked_strategy(strategy).on_close and not isinstance(self._windows, TimeWindows | SlidingWindows):
            raise TopologyError(f"results on window close: {type(self._windows).__name__} do not close")
        self._on_close = strategy.on_close
        return self

    def count(
        self, named: NamedOrStr | Materialized[K, int] = None, materialized: MaterializedOrStr[K, int] = None
    ) -> KTable[Windowed[K], int]:
        """The number of records per key and window (LONG)."""
        if not isinstance(self._windows, SlidingWindows):
            unnamed_count(self._groups.graph, named, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", lambda _: (zero, counted), LONG, named, materialized)

    def reduce(
        self, reducer: Reducer[V], named: NamedOrStr | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[Windowed[K], V]:
        """`reducer(aggregate, value)`, begun with the first value of a key in a window."""
        return self._aggregate(
            "KSTREAM-REDUCE-",
            lambda node: (nothing, reducing(checked(reducer, node, *REDUCER))),
            self._groups.how.value,
            named,
            materialized,
        )

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[Windowed[K], VR]:
        """`aggregator(key, value, aggregate)`, begun with `initializer()` per key and window."""
        return self._aggregate(
            "KSTREAM-AGGREGATE-",
            lambda node: (checked(initializer, node), checked(aggregator, node, *AGGREGATOR)),
            None,
            named,
            materialized,
        )

    def _aggregate(
        self,
        prefix: str,
        functions: Functions,
        value: Serde[VR] | None,
        named: NamedOrStr | Materialized[K, VR],
        materialized: MaterializedOrStr[K, VR],
    ) -> KTable[Windowed[K], VR]:
        named, how = shifted(named, materialized)
        groups, windows, on_close = self._groups, self._windows, self._on_close
        inner, value = how.key or groups.how.key, how.value or value
        store = groups.graph.store_name(prefix, how)

        def make(node: str, store: str) -> OperatorSupplier:
            groups.graph.closes_after(node, windows.grace_period_ms)
            return windowed_operator(store, windows, *functions(node), on_close=on_close)

        factory = window_store(store, how, inner, value, windows)
        return groups.aggregate(prefix, named, (store, factory), make, (window_key(inner, windows), value), how)


def windowed_operator(
    store: str,
    windows: Windows | SlidingWindows,
    initializer: Callable[[], object],
    aggregator: Callable[..., object],
    *,
    on_close: bool = False,
    part: int = 0,
) -> OperatorSupplier:
    """The operator of an aggregate over windows."""
    if isinstance(windows, SlidingWindows):
        difference, grace = windows.time_difference_ms, windows.grace_period_ms
        return SlidingAggregate(store, difference, grace, initializer, aggregator, on_close, part)
    return WindowAggregate(store, windows, initializer, aggregator, on_close, part)
