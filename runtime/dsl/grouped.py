"""KGroupedStream, TimeWindowedKStream and SessionWindowedKStream: records grouped by key, also by window or session, and their aggregates
(Kafka Streams' classes of the same names)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, overload

from penstock.runtime.dsl.aggregates import (
    AGGREGATOR,
    MERGER,
    REDUCER,
    Aggregator,
    Groups,
    Initializer,
    MakeOperator,
    Merger,
    Reducer,
    aggregate_operator,
)
from penstock.runtime.dsl.cogrouped import Cogroup, CogroupedKStream
from penstock.runtime.dsl.ktable import KTable
from penstock.runtime.dsl.options import Materialized, MaterializedOrStr, NamedOrStr
from penstock.runtime.dsl.windows import (
    EmitStrategy,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    Windows,
    checked_strategy,
    checked_windows,
)
from penstock.runtime.model.arity import checked
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.record import Windowed
from penstock.runtime.model.type_variables import VR, K, V
from penstock.runtime.operators.aggregate import StreamAggregate, StreamCount, StreamReduce, nothing
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.windowed import counted, reducing, zero
from penstock.runtime.serdes import LONG
from penstock.runtime.serdes.serde import Serde


class KGroupedStream(Groups[K, V]):
    """Records grouped by key, made by `group_by` and `group_by_key`. Records without a key or value are dropped and counted."""

    def count(self, named: NamedOrStr | Materialized[K, int] = None, materialized: MaterializedOrStr[K, int] = None) -> KTable[K, int]:
        """Count the records of each key (LONG)."""
        self._advance_for_unnamed_count(named, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", lambda _node, store: StreamCount(store), LONG, named, materialized)

    def reduce(
        self, reducer: Reducer[V], named: NamedOrStr | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[K, V]:
        """Combine the values of each key by `reducer(aggregate, value)`; the first value is the first aggregate."""

        def make(node: str, store: str) -> OperatorSupplier:
            return StreamReduce(store, checked(reducer, node, *REDUCER))

        return self._aggregate("KSTREAM-REDUCE-", make, self._how.value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[K, VR]:
        """Aggregate the records of each key by `aggregator(key, value, aggregate)`, starting with `initializer()`. An aggregate of None
        deletes the row."""

        def make(node: str, store: str) -> OperatorSupplier:
            return StreamAggregate(store, checked(initializer, node), checked(aggregator, node, *AGGREGATOR))

        return self._aggregate("KSTREAM-AGGREGATE-", make, None, named, materialized)

    def _aggregate(
        self,
        prefix: str,
        make: MakeOperator,
        value: Serde[VR] | None,
        named: NamedOrStr | Materialized[K, VR],
        materialized: MaterializedOrStr[K, VR],
    ) -> KTable[K, VR]:
        return KTable._of(self._add_aggregate(prefix, make, value, named, materialized))

    def cogroup(self, aggregator: Aggregator[K, V, VR]) -> CogroupedKStream[K, VR]:
        """Start an aggregate of several grouped streams. `aggregator(key, value, aggregate)` takes the records of this one."""
        return CogroupedKStream(Cogroup(self, aggregator))

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...

    @overload
    def windowed_by(self, windows: Windows | SlidingWindows) -> TimeWindowedKStream[K, V]: ...

    def windowed_by(self, windows: Windows | SlidingWindows | SessionWindows) -> TimeWindowedKStream[K, V] | SessionWindowedKStream[K, V]:
        """Group by window as well: `TimeWindows`, `SlidingWindows`, `SessionWindows`, `UnlimitedWindows`, or a class of your own."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self, windows)
        return TimeWindowedKStream(self, checked_windows(windows))


class TimeWindowedKStream(Generic[K, V]):
    """Records grouped by key and window. Results have `Windowed` keys. A late record, whose windows are closed, is dropped and counted."""

    def __init__(self, groups: Groups[K, V], windows: Windows | SlidingWindows) -> None:
        self._groups = groups
        self._windows = windows
        self._on_close = False

    def emit_strategy(self, strategy: EmitStrategy) -> TimeWindowedKStream[K, V]:
        """Set when results are emitted. Changes this object, as in Kafka Streams, and returns it. Raises TopologyError for
        `on_window_close` with windows other than `TimeWindows` and `SlidingWindows`."""
        if checked_strategy(strategy).on_close and not isinstance(self._windows, TimeWindows | SlidingWindows):
            raise TopologyError(f"results on window close: {type(self._windows).__name__} do not close")
        self._on_close = strategy.on_close
        return self

    def count(
        self, named: NamedOrStr | Materialized[K, int] = None, materialized: MaterializedOrStr[K, int] = None
    ) -> KTable[Windowed[K], int]:
        """Count the records of each key and window (LONG)."""
        if not isinstance(self._windows, SlidingWindows):
            self._groups._advance_for_unnamed_count(named, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", lambda _: (zero, counted), LONG, named, materialized)

    def reduce(
        self, reducer: Reducer[V], named: NamedOrStr | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[Windowed[K], V]:
        """Combine the values of each key and window by `reducer(aggregate, value)`; the first value is the first aggregate."""

        def functions(node: str) -> tuple[Callable[[], object], Callable[..., object]]:
            return nothing, reducing(checked(reducer, node, *REDUCER))

        return self._aggregate("KSTREAM-REDUCE-", functions, self._groups._how.value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[Windowed[K], VR]:
        """Aggregate the records of each key and window by `aggregator(key, value, aggregate)`, starting with `initializer()`."""

        def functions(node: str) -> tuple[Callable[[], object], Callable[..., object]]:
            return checked(initializer, node), checked(aggregator, node, *AGGREGATOR)

        return self._aggregate("KSTREAM-AGGREGATE-", functions, None, named, materialized)

    def _aggregate(
        self,
        prefix: str,
        functions: Callable[[str], tuple[Callable[[], object], Callable[..., object]]],
        value: Serde[VR] | None,
        named: NamedOrStr | Materialized[K, VR],
        materialized: MaterializedOrStr[K, VR],
    ) -> KTable[Windowed[K], VR]:
        windows, on_close = self._windows, self._on_close

        def make(node: str, store: str) -> OperatorSupplier:
            return aggregate_operator(store, windows, *functions(node), on_close=on_close)

        return KTable._of(self._groups._add_aggregate(prefix, make, value, named, materialized, windows))


class SessionWindowedKStream(Generic[K, V]):
    """Records grouped by key and session. Results have `Windowed` keys and their session's end as timestamp. A session that grows or is
    merged is deleted before the new one is emitted. A late record is dropped and counted."""

    def __init__(self, groups: Groups[K, V], windows: SessionWindows) -> None:
        self._groups = groups
        self._windows = windows
        self._on_close = False

    def emit_strategy(self, strategy: EmitStrategy) -> SessionWindowedKStream[K, V]:
        """Set when results are emitted. Changes this object, as in Kafka Streams, and returns it."""
        self._on_close = checked_strategy(strategy).on_close
        return self

    def count(
        self, named: NamedOrStr | Materialized[K, int] = None, materialized: MaterializedOrStr[K, int] = None
    ) -> KTable[Windowed[K], int]:
        """Count the records of each key and session (LONG)."""
        self._groups._advance_for_unnamed_count(named, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", lambda _: (zero, counted, _sum), LONG, named, materialized)

    def reduce(
        self, reducer: Reducer[V], named: NamedOrStr | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[Windowed[K], V]:
        """Combine the values of each key and session by `reducer(aggregate, value)`; the first value is the first aggregate. The reducer
        also merges the aggregates of two sessions."""

        def functions(node: str) -> tuple[Callable[[], object], Callable[..., object], Callable[..., object]]:
            reduce = reducing(checked(reducer, node, *REDUCER))
            return nothing, reduce, lambda key, one, other: reduce(key, other, one)

        return self._aggregate("KSTREAM-REDUCE-", functions, self._groups._how.value, named, materialized)

    def aggregate(
        self,
        initializer: Initializer[VR],
        aggregator: Aggregator[K, V, VR],
        session_merger: Merger[K, VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[Windowed[K], VR]:
        """Aggregate the records of each key and session. `aggregator(key, value, aggregate)` makes a session of each record, starting with
        `initializer()`; `session_merger(key, aggregate, other)` merges it with the sessions that the record joins."""

        def functions(node: str) -> tuple[Callable[[], object], Callable[..., object], Callable[..., object]]:
            return checked(initializer, node), checked(aggregator, node, *AGGREGATOR), checked(session_merger, node, *MERGER)

        return self._aggregate("KSTREAM-AGGREGATE-", functions, None, named, materialized)

    def _aggregate(
        self,
        prefix: str,
        functions: Callable[[str], tuple[Callable[[], object], Callable[..., object], Callable[..., object]]],
        value: Serde[VR] | None,
        named: NamedOrStr | Materialized[K, VR],
        materialized: MaterializedOrStr[K, VR],
    ) -> KTable[Windowed[K], VR]:
        windows, on_close = self._windows, self._on_close

        def make(node: str, store: str) -> OperatorSupplier:
            return aggregate_operator(store, windows, *functions(node), on_close=on_close)

        return KTable._of(self._groups._add_aggregate(prefix, make, value, named, materialized, windows))


def _sum(key: object, one: int, other: int) -> int:
    """Merge the counts of two sessions."""
    return one + other
