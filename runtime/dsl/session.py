"""SessionWindowedKStream: records grouped by key and by sessions (Kafka Streams' class of the same name)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from runtime.dsl.arity import checked
from runtime.dsl.groups import AGGREGATOR, MERGER, REDUCER, Aggregator, Groups, Initializer, Merger, Reducer, shifted, unnamed_count
from runtime.dsl.ktable import KTable
from runtime.dsl.options import Materialized, MaterializedOrStr, NamedOrStr
from runtime.dsl.window_stores import session_key, session_store
from runtime.dsl.windows import EmitStrategy, SessionWindows, checked_strategy
from runtime.operators.aggregate import nothing
from runtime.operators.base import OperatorSupplier
from runtime.operators.session import SessionAggregate
from runtime.operators.windowed import counted, reducing, zero
from runtime.record import Windowed
from runtime.serdes import LONG
from runtime.serdes.serde import Serde
from runtime.type_variables import VR, K, V

Functions = Callable[[str], tuple[Callable[[], object], Callable[..., object], Callable[..., object]]]
"""Gives initializer, aggregator and merger, checked, for a node of this name."""


class SessionWindowedKStream(Generic[K, V]):
    """Records grouped by key and session. A session that grows or is merged is deleted before the new one comes; results have `Windowed`
    keys and the time of their session's end. Late records are dropped and counted."""

    def __init__(self, groups: Groups[K, V], windows: SessionWindows) -> None:
        self._groups = groups
        self._windows = windows
        self._on_close = False

    def emit_strategy(self, strategy: EmitStrategy) -> SessionWindowedKStream[K, V]:
        """When results go out. Changes this stream, as in Kafka Streams, and returns it."""
        self._on_close = checked_strategy(strategy).on_close
        return self

    def count(
        self, named: NamedOrStr | Materialized[K, int] = None, materialized: MaterializedOrStr[K, int] = None
    ) -> KTable[Windowed[K], int]:
        """The number of records per key and session (LONG)."""
        unnamed_count(self._groups.graph, named, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", lambda _: (zero, counted, _sum), LONG, named, materialized)

    def reduce(
        self, reducer: Reducer[V], named: NamedOrStr | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[Windowed[K], V]:
        """`reducer(aggregate, value)`, begun with the first value of a key in a session; it merges sessions too, `reducer(one, other)`."""

        def functions(node: str) -> tuple[Callable[[], object], Callable[..., object], Callable[..., object]]:
            reduce = reducing(checked(reducer, node, *REDUCER))
            return nothing, reduce, lambda key, one, other: reduce(key, other, one)

        return self._aggregate("KSTREAM-REDUCE-", functions, self._groups.how.value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        session_merger: Merger[K, VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[Windowed[K], VR]:
        """`aggregator(key, value, aggregate)`, begun with `initializer()` at every record; `session_merger(key, aggregate, aggregate)` puts
        that and the sessions together which the record joins."""
        return self._aggregate(
            "KSTREAM-AGGREGATE-",
            lambda node: (checked(initializer, node), checked(aggregator, node, *AGGREGATOR), checked(session_merger, node, *MERGER)),
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
            gap, grace = windows.inactivity_gap, windows.grace_period_ms
            groups.graph.closes_after(node, gap + grace)
            return SessionAggregate(store, gap, grace, *functions(node), on_close)

        factory = session_store(store, how, inner, value, windows)
        return groups.aggregate(prefix, named, (store, factory), make, (session_key(inner), value), how)


def _sum(key: object, one: int, other: int) -> int:
    """The merger of a count."""
    return one + other
