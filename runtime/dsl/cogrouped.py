"""CogroupedKStream: several grouped streams in one aggregate (Kafka Streams' classes of the same names, KIP-150).

    flights.cogroup(add_flight).cogroup(delays, add_delay).aggregate(dict, Materialized("day"))

Each stream has an aggregator of its own; all of them work on one store, whose table is what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, overload

from runtime.dsl.arity import checked
from runtime.dsl.graph import key_value_store
from runtime.dsl.groups import AGGREGATOR, MERGER, Aggregator, Groups, Initializer, Merger, shifted
from runtime.dsl.ktable import KTable
from runtime.dsl.options import Materialized, MaterializedOrStr, NamedOrStr, name_of
from runtime.dsl.window_stores import session_key, session_store, window_key, window_store
from runtime.dsl.windowed import windowed_operator
from runtime.dsl.windows import SessionWindows, SlidingWindows, Windows, checked_windows
from runtime.errors import TopologyError
from runtime.operators.aggregate import StreamAggregate
from runtime.operators.base import OperatorSupplier
from runtime.operators.cogroup import Cogrouped
from runtime.operators.session import SessionAggregate
from runtime.record import Windowed
from runtime.serdes.serde import Serde
from runtime.topology.draft import StoreFactory
from runtime.type_variables import VR, K, V

if TYPE_CHECKING:
    from runtime.dsl.grouped import KGroupedStream

_PREFIX = "COGROUPKSTREAM-AGGREGATE-"
MakePart = Callable[[str, str, Callable[..., object], int], OperatorSupplier]
"""Makes the operator of one of the streams: names of its node and store, its aggregator, its number."""


class Cogroup(Generic[K, VR]):
    """The grouped streams with their aggregators, and where their aggregates hang."""

    def __init__(self, groups: Groups, aggregator: Callable[..., object]) -> None:
        self.graph = groups.graph
        self._members: list[tuple[Groups, Callable[..., object]]] = [(groups, aggregator)]
        self._through: dict[int, str] = {}

    def add(self, groups: Groups, aggregator: Callable[..., object]) -> None:
        """One more stream. Raises TopologyError for one of another builder."""
        self.graph.check_same(groups.graph, "cogroup of two streams")
        self._members.append((groups, aggregator))

    @property
    def key(self) -> Serde | None:
        """The serde of the first stream that has one."""
        return next((groups.how.key for groups, _ in self._members if groups.how.key is not None), None)

    def aggregate(
        self,
        named: NamedOrStr,
        how: Materialized,
        store: tuple[str, StoreFactory],
        make: MakePart,
        serdes: tuple[Serde | None, Serde | None],
        closes_after: int | None,
    ) -> KTable:
        """Adds an operator for each stream, their common store, and the table that they are together."""
        graph, given = self.graph, name_of(named)
        parents = [self._parent(place, groups, store[0]) for place, (groups, _) in enumerate(self._members)]
        sources = frozenset(source for _, of_parent in parents for source in of_parent)
        if len(sources) > 1:
            graph.topology.copartition(sources)
        graph.topology.add_store_factory(*store)
        names, suppliers = list[str](), list[OperatorSupplier]()
        for place, ((parent, _), (_, aggregator)) in enumerate(zip(parents, self._members, strict=True)):
            node = graph.name(_PREFIX, given, f"-cogroup-agg-{place}")
            suppliers.append(make(node, store[0], checked(aggregator, node, *AGGREGATOR), place))
            names.append(graph.operator(node, suppliers[-1], (parent,), store[:1]))
            if closes_after is not None:
                graph.closes_after(node, closes_after)
        merged = graph.operator(graph.name("COGROUPKSTREAM-MERGE-", given, "-cogroup-merge"), Cogrouped(suppliers[0]), names)
        return KTable(graph, merged, *serdes, sources, store[0], how.name is not None, versioned=how.versioned, history=how.history_ms)

    def _parent(self, place: int, groups: Groups, store: str) -> tuple[str, frozenset[str]]:
        """The node above one stream's aggregate. All aggregates of this cogroup share its repartition topic."""
        if not groups.repartition:
            return groups.node, groups.sources
        source = groups.graph.repartition(groups.node, groups.through(store), self._through.get(place))
        self._through[place] = source
        return source, frozenset((source,))


class CogroupedKStream(Generic[K, VR]):
    """Grouped streams that are aggregated together; made by `KGroupedStream.cogroup`. Records without key or value are dropped and
    counted."""

    def __init__(self, cogroup: Cogroup[K, VR]) -> None:
        self._cogroup = cogroup

    def cogroup(self, grouped_stream: KGroupedStream[K, V], aggregator: Aggregator[K, V, VR]) -> CogroupedKStream[K, VR]:
        """Adds a grouped stream, with `aggregator(key, value, aggregate)`. Changes this one, as in Kafka Streams, and returns it."""
        from runtime.dsl.grouped import KGroupedStream

        if not isinstance(grouped_stream, KGroupedStream):
            raise TopologyError(f"cogroup: expected a KGroupedStream (group_by_key or group_by), not {type(grouped_stream).__name__}")
        self._cogroup.add(grouped_stream.groups, aggregator)
        return self

    def aggregate(
        self,
        initializer: Initializer[VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[K, VR]:
        """What the aggregators make of the records of all streams, begun with `initializer()` per key."""
        cogroup = self._cogroup
        named, how = shifted(named, materialized)
        key, store = how.key or cogroup.key, cogroup.graph.store_name(_PREFIX, how)

        def make(node: str, store: str, aggregator: Callable[..., object], place: int) -> OperatorSupplier:
            return StreamAggregate(store, checked(initializer, node), aggregator)

        factory = key_value_store(store, how, key, how.value)
        return cogroup.aggregate(named, how, (store, factory), make, (key, how.value), None)

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream[K, VR]: ...

    @overload
    def windowed_by(self, windows: Windows | SlidingWindows) -> TimeWindowedCogroupedKStream[K, VR]: ...

    def windowed_by(
        self, windows: Windows | SlidingWindows | SessionWindows
    ) -> TimeWindowedCogroupedKStream[K, VR] | SessionWindowedCogroupedKStream[K, VR]:
        """Groups by window as well."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._cogroup, windows)
        return TimeWindowedCogroupedKStream(self._cogroup, checked_windows(windows))


class TimeWindowedCogroupedKStream(Generic[K, VR]):
    """Grouped streams that are aggregated together, by windows of time."""

    def __init__(self, cogroup: Cogroup[K, VR], windows: Windows | SlidingWindows) -> None:
        self._cogroup = cogroup
        self._windows = windows

    def aggregate(
        self,
        initializer: Initializer[VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[Windowed[K], VR]:
        """What the aggregators make of the records of all streams, begun with `initializer()` per key and window. Each stream has a stream
        time of its own."""
        cogroup, windows = self._cogroup, self._windows
        named, how = shifted(named, materialized)
        inner, store = how.key or cogroup.key, cogroup.graph.store_name(_PREFIX, how)

        def make(node: str, store: str, aggregator: Callable[..., object], place: int) -> OperatorSupplier:
            return windowed_operator(store, windows, checked(initializer, node), aggregator, part=place)

        factory = window_store(store, how, inner, how.value, windows)
        serdes = (window_key(inner, windows), how.value)
        return cogroup.aggregate(named, how, (store, factory), make, serdes, windows.grace_period_ms)


class SessionWindowedCogroupedKStream(Generic[K, VR]):
    """Grouped streams that are aggregated together, by sessions."""

    def __init__(self, cogroup: Cogroup[K, VR], windows: SessionWindows) -> None:
        self._cogroup = cogroup
        self._windows = windows

    def aggregate(
        self,
        initializer: Initializer[VR],
        session_merger: Merger[K, VR],
        named: NamedOrStr | Materialized[K, VR] = None,
        materialized: MaterializedOrStr[K, VR] = None,
    ) -> KTable[Windowed[K], VR]:
        """What the aggregators make of the records of all streams, by sessions; `session_merger(key, aggregate, aggregate)` puts sessions
        together. Each stream has a stream time of its own."""
        cogroup, windows = self._cogroup, self._windows
        named, how = shifted(named, materialized)
        inner, store = how.key or cogroup.key, cogroup.graph.store_name(_PREFIX, how)
        gap, grace = windows.inactivity_gap, windows.grace_period_ms

        def make(node: str, store: str, aggregator: Callable[..., object], place: int) -> OperatorSupplier:
            merger: Callable[..., object] = checked(session_merger, node, *MERGER)
            return SessionAggregate(store, gap, grace, checked(initializer, node), aggregator, merger, part=place)

        factory = session_store(store, how, inner, how.value, windows)
        return cogroup.aggregate(named, how, (store, factory), make, (session_key(inner), how.value), gap + grace)
