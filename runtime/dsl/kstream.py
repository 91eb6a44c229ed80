"""KStream: an endless sequence of records (Kafka Streams' class of the same name)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

from runtime.dsl.arity import checked, takes_key
from runtime.dsl.graph import Graph, Repartition
from runtime.dsl.options import (
    Grouped,
    GroupedOrStr,
    Joined,
    JoinedOrStr,
    NamedOrStr,
    ProducedOrStr,
    Repartitioned,
    grouped_of,
    joined_of,
    name_of,
    produced_of,
)
from runtime.errors import TopologyError
from runtime.operators.base import OperatorSupplier
from runtime.operators.processor import ProcessorSupplier, UserProcessor
from runtime.operators.stateless import Filter, FlatMap, FlatMapValues, Foreach, Map, MapValues, PassThrough, Peek, SelectKey
from runtime.operators.table_join import StreamGlobalTableJoin, StreamTableJoin
from runtime.serdes.serde import Serde
from runtime.topology.nodes import TopicNameExtractor

if TYPE_CHECKING:
    from runtime.dsl.grouped import KGroupedStream
    from runtime.dsl.ktable import GlobalKTable, KTable

Predicate = Callable[..., object]
"""Takes (key, value)."""

_PAIR = ("key", "value")


@dataclass(frozen=True, slots=True)
class KStream:
    """A stream; made by `StreamsBuilder.stream` and by other streams and tables. Every method adds a node and returns a new stream.

    Callbacks get `(key, value)`, or `(value)` where only values change; those may take `(key, value)` too. A key that was changed makes the
    next operation that groups or joins send the records through a repartition topic first.
    """

    _graph: Graph
    _node: str
    _key: Serde | None
    _value: Serde | None
    _sources: frozenset[str]
    _repartition: bool = False

    def _next(self, prefix: str, named: NamedOrStr, make: Callable[[str], OperatorSupplier], *stores: str) -> KStream:
        """The stream behind a new node, as yet with this one's serdes. `make` gets the node's name, for the errors that it may raise."""
        name = self._graph.name(prefix, named)
        return replace(self, _node=self._graph.operator(name, make(name), (self._node,), stores))

    # -- without state -----------------------------------------------------------------------------------------------------------

    def filter(self, predicate: Predicate, named: NamedOrStr = None) -> KStream:
        """The records for which `predicate(key, value)` is true."""
        return self._next("KSTREAM-FILTER-", named, lambda node: Filter(checked(predicate, node, *_PAIR)))

    def filter_not(self, predicate: Predicate, named: NamedOrStr = None) -> KStream:
        """The records for which `predicate(key, value)` is false."""
        return self._next("KSTREAM-FILTER-", named, lambda node: Filter(checked(predicate, node, *_PAIR), negate=True))

    def map(self, mapper: Callable[..., tuple[object, object]], named: NamedOrStr = None) -> KStream:
        """`mapper(key, value)` gives the new pair of key and value."""
        stream = self._next("KSTREAM-MAP-", named, lambda node: Map(checked(mapper, node, *_PAIR)))
        return replace(stream, _key=None, _value=None, _repartition=True)

    def map_values(self, mapper: Callable[..., object], named: NamedOrStr = None) -> KStream:
        """`mapper(value)` or `mapper(key, value)` gives the new value."""
        return replace(self._next("KSTREAM-MAPVALUES-", named, lambda node: MapValues(mapper, takes_key(mapper, 1, node))), _value=None)

    def flat_map(self, mapper: Callable[..., Iterable[tuple[object, object]]], named: NamedOrStr = None) -> KStream:
        """`mapper(key, value)` gives any number of pairs."""
        stream = self._next("KSTREAM-FLATMAP-", named, lambda node: FlatMap(checked(mapper, node, *_PAIR)))
        return replace(stream, _key=None, _value=None, _repartition=True)

    def flat_map_values(self, mapper: Callable[..., Iterable[object]], named: NamedOrStr = None) -> KStream:
        """`mapper(value)` or `mapper(key, value)` gives any number of values."""
        stream = self._next("KSTREAM-FLATMAPVALUES-", named, lambda node: FlatMapValues(mapper, takes_key(mapper, 1, node)))
        return replace(stream, _value=None)

    def select_key(self, mapper: Callable[..., object], named: NamedOrStr = None) -> KStream:
        """`mapper(key, value)` gives the new key."""
        stream = self._next("KSTREAM-KEY-SELECT-", named, lambda node: SelectKey(checked(mapper, node, *_PAIR)))
        return replace(stream, _key=None, _repartition=True)

    def peek(self, action: Callable[..., object], named: NamedOrStr = None) -> KStream:
        """Calls `action(key, value)` for each record and passes it on."""
        return self._next("KSTREAM-PEEK-", named, lambda node: Peek(checked(action, node, *_PAIR)))

    def foreach(self, action: Callable[..., object], named: NamedOrStr = None) -> None:
        """Calls `action(key, value)` for each record. Ends the stream."""
        self._next("KSTREAM-FOREACH-", named, lambda node: Foreach(checked(action, node, *_PAIR)))

    def merge(self, stream: KStream, named: NamedOrStr = None) -> KStream:
        """The records of both streams, with no order between them. Serdes are inherited where both streams have the same."""
        name = self._graph.operator(self._graph.name("KSTREAM-MERGE-", named), PassThrough(), (self._node, stream._node))
        return KStream(
            self._graph,
            name,
            self._key if self._key is stream._key else None,
            self._value if self._value is stream._value else None,
            self._sources | stream._sources,
            self._repartition or stream._repartition,
        )

    # -- topics ------------------------------------------------------------------------------------------------------------------

    def to(self, topic: str | TopicNameExtractor, produced: ProducedOrStr = None) -> None:
        """Writes the records to a topic, or to the one that `topic(key, value, context)` names. Ends the stream."""
        how = produced_of(produced)
        self._graph.topology.add_sink(
            self._graph.name("KSTREAM-SINK-", how.name),
            topic,
            self._node,
            key_serde=how.key or self._key,
            value_serde=how.value or self._value,
            partitioner=how.partitioner,
        )

    def repartition(self, repartitioned: Repartitioned | str | None = None) -> KStream:
        """Sends the records through a topic of the application's own, partitioned by their key (KIP-221)."""
        how = repartitioned if isinstance(repartitioned, Repartitioned) else Repartitioned(name_of(repartitioned))
        through = Repartition(
            name_of(how.name) or self._graph.name("KSTREAM-REPARTITION-"),
            how.key or self._key,
            how.value or self._value,
            how.partitions,
            how.partitioner,
        )
        return self._behind(self._graph.repartition(self._node, through), through)

    def _behind(self, source: str, through: Repartition) -> KStream:
        return KStream(self._graph, source, through.key, through.value, frozenset((source,)))

    # -- with state --------------------------------------------------------------------------------------------------------------

    def group_by(self, selector: Callable[..., object], grouped: GroupedOrStr = None) -> KGroupedStream:
        """Groups by `selector(key, value)`, a new key. A selector that gives None drops the record."""
        how = grouped_of(grouped)
        selected = self._next("KSTREAM-KEY-SELECT-", how.name, lambda node: SelectKey(checked(selector, node, *_PAIR)))
        return selected._grouped(Grouped(how.key, value=how.value or self._value, name=how.name), repartition=True)

    def group_by_key(self, grouped: GroupedOrStr = None) -> KGroupedStream:
        """Groups by the key that the records have. Records without a key are dropped."""
        how = grouped_of(grouped)
        return self._grouped(Grouped(how.key or self._key, value=how.value or self._value, name=how.name), repartition=self._repartition)

    def _grouped(self, how: Grouped, *, repartition: bool) -> KGroupedStream:
        from runtime.dsl.grouped import KGroupedStream

        return KGroupedStream(self._graph, self._node, how, self._sources, repartition)

    @overload
    def join(self, other: KTable, joiner: Callable[..., object], joined: JoinedOrStr = None) -> KStream: ...

    @overload
    def join(
        self, other: GlobalKTable, key_selector: Callable[..., object], joiner: Callable[..., object], named: NamedOrStr = None
    ) -> KStream: ...

    def join(self, other: KTable | GlobalKTable, *arguments: object, **keywords: object) -> KStream:
        """Joins each record with the row that the table has for its key at that moment; a record without a row is dropped.

        With a table: `join(table, joiner, joined=None)`, where both must be partitioned alike. With a global table:
        `join(table, key_selector, joiner, named=None)`, where `key_selector(key, value)` gives the table's key. `joiner` takes
        `(left, right)` or `(key, left, right)`.
        """
        return self._join(other, arguments, keywords, left=False)

    @overload
    def left_join(self, other: KTable, joiner: Callable[..., object], joined: JoinedOrStr = None) -> KStream: ...

    @overload
    def left_join(
        self, other: GlobalKTable, key_selector: Callable[..., object], joiner: Callable[..., object], named: NamedOrStr = None
    ) -> KStream: ...

    def left_join(self, other: KTable | GlobalKTable, *arguments: object, **keywords: object) -> KStream:
        """As `join`, but a record without a row goes on with None on the right."""
        return self._join(other, arguments, keywords, left=True)

    def _join(self, other: KTable | GlobalKTable, arguments: tuple[object, ...], keywords: dict[str, object], *, left: bool) -> KStream:
        from runtime.dsl.ktable import GlobalKTable, KTable

        if isinstance(other, GlobalKTable):
            return self._join_global(other, *arguments, left=left, **keywords)  # type: ignore[arg-type]  # the overloads say which
        if isinstance(other, KTable):
            return self._join_table(other, *arguments, left=left, **keywords)  # type: ignore[arg-type]  # the overloads say which
        raise TopologyError(f"a stream is joined with a KTable or a GlobalKTable, not with {type(other).__name__}")

    def _join_table(self, table: KTable, joiner: Callable[..., object], joined: JoinedOrStr = None, *, left: bool) -> KStream:
        how: Joined = joined_of(joined)
        stream, graph = self, self._graph
        if self._repartition:
            through = Repartition(name_of(how.name) or self._node, how.key or self._key, how.value or self._value)
            stream = self._behind(graph.repartition_for_join(self._node, through, named=how.name is not None), through)
        if left:
            graph.let_keyless_through(stream._node)
        prefix = "KSTREAM-LEFTJOIN-" if left else "KSTREAM-JOIN-"
        stores = table.readable_stores()
        joined_stream = stream._next(
            prefix, how.name, lambda node: StreamTableJoin(table.node, joiner, left, takes_key(joiner, 2, node)), *stores
        )
        sources = stream._sources | table.sources
        graph.topology.copartition(sources)
        return replace(joined_stream, _key=how.key or stream._key, _value=None, _sources=sources, _repartition=False)

    def _join_global(
        self,
        table: GlobalKTable,
        key_selector: Callable[..., object],
        joiner: Callable[..., object],
        named: NamedOrStr = None,
        *,
        left: bool,
    ) -> KStream:
        def supplier(node: str) -> OperatorSupplier:
            selector = checked(key_selector, node, *_PAIR)
            return StreamGlobalTableJoin(table.queryable_store_name, selector, joiner, left, takes_key(joiner, 2, node))

        if left:
            self._graph.let_keyless_through(self._node)
        # Kafka Streams calls both joins so.
        return replace(self._next("KSTREAM-LEFTJOIN-", named, supplier), _value=None)

    # -- processors --------------------------------------------------------------------------------------------------------------

    def process(self, supplier: ProcessorSupplier, *state_store_names: str, named: NamedOrStr = None) -> KStream:
        """Applies a `Processor`, which may change keys. A store is connected by its name (`StreamsBuilder.add_state_store`)."""
        stream = self._processed("KSTREAM-PROCESSOR-", UserProcessor(supplier), named, state_store_names)
        return replace(stream, _key=None, _value=None, _repartition=True)

    def process_values(self, supplier: ProcessorSupplier, *state_store_names: str, named: NamedOrStr = None) -> KStream:
        """Applies a `Processor` that keeps keys; forwarding another key is an error."""
        stream = self._processed("KSTREAM-PROCESSVALUES-", UserProcessor(supplier, fixed_key=True), named, state_store_names)
        return replace(stream, _value=None)

    def _processed(self, prefix: str, supplier: OperatorSupplier, named: NamedOrStr, stores: tuple[str, ...]) -> KStream:
        name = name_of(named) or self._graph.name(prefix)  # here a given name draws no number, as in Kafka Streams
        return replace(self, _node=self._graph.operator(name, supplier, (self._node,), stores))
