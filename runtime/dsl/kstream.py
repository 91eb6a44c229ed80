"""KStream: an endless sequence of records (Kafka Streams' class of the same name)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, overload

from runtime.dsl.arity import checked, takes_key
from runtime.dsl.branched import BranchedKStream
from runtime.dsl.graph import Repartition
from runtime.dsl.options import (
    Grouped,
    GroupedOrStr,
    Materialized,
    MaterializedOrStr,
    Named,
    NamedOrStr,
    ProducedOrStr,
    Repartitioned,
    grouped_of,
    materialized_of,
    name_of,
    named_and_stores,
    produced_of,
    repartitioned_of,
)
from runtime.dsl.printed import Printed
from runtime.dsl.stream_base import KEY_AND_VALUE
from runtime.dsl.stream_joins import StreamJoins
from runtime.errors import TopologyError
from runtime.operators.base import OperatorSupplier
from runtime.operators.printing import Print, key_and_value
from runtime.operators.processor import MakesFixedKeyProcessor, MakesProcessor, UserProcessor
from runtime.operators.stateless import Filter, FlatMap, FlatMapValues, Foreach, Map, MapValues, PassThrough, Peek, SelectKey, Split
from runtime.topology.nodes import TopicNameExtractor
from runtime.type_variables import KR, VR, K, K_co, V, V_co

if TYPE_CHECKING:
    from runtime.dsl.grouped import KGroupedStream
    from runtime.dsl.ktable import KTable


class KStream(StreamJoins[K_co, V_co]):
    """A stream of keys K and values V; made by `StreamsBuilder.stream` and by other streams and tables. Every method adds a node and
    returns a new stream.

    Callbacks get `(key, value)`, or `(value)` where only values change; those may take `(key, value)` too. A key that was changed makes the
    next operation that groups or joins send the records through a repartition topic first.
    """

    __slots__ = ()

    # -- without state -----------------------------------------------------------------------------------------------------------

    def filter(self, predicate: Callable[[K_co, V_co], object], named: NamedOrStr = None) -> KStream[K_co, V_co]:
        """The records for which `predicate(key, value)` is true."""
        return self._same(self._below("KSTREAM-FILTER-", named, lambda node: Filter(checked(predicate, node, *KEY_AND_VALUE))))

    def filter_not(self, predicate: Callable[[K_co, V_co], object], named: NamedOrStr = None) -> KStream[K_co, V_co]:
        """The records for which `predicate(key, value)` is false."""
        return self._same(self._below("KSTREAM-FILTER-", named, lambda node: Filter(checked(predicate, node, *KEY_AND_VALUE), negate=True)))

    def map(self, mapper: Callable[[K_co, V_co], tuple[KR, VR]], named: NamedOrStr = None) -> KStream[KR, VR]:
        """`mapper(key, value)` gives the new pair of key and value."""
        return self._new_pairs(self._below("KSTREAM-MAP-", named, lambda node: Map(checked(mapper, node, *KEY_AND_VALUE))))

    @overload
    def map_values(self, mapper: Callable[[V_co], VR], named: NamedOrStr = None) -> KStream[K_co, VR]: ...

    @overload
    def map_values(self, mapper: Callable[[K_co, V_co], VR], named: NamedOrStr = None) -> KStream[K_co, VR]: ...

    def map_values(self, mapper: Callable[..., VR], named: NamedOrStr = None) -> KStream[K_co, VR]:
        """`mapper(value)` or `mapper(key, value)` gives the new value."""
        return self._new_values(self._below("KSTREAM-MAPVALUES-", named, lambda node: MapValues(mapper, takes_key(mapper, 1, node))))

    def flat_map(self, mapper: Callable[[K_co, V_co], Iterable[tuple[KR, VR]]], named: NamedOrStr = None) -> KStream[KR, VR]:
        """`mapper(key, value)` gives any number of pairs."""
        return self._new_pairs(self._below("KSTREAM-FLATMAP-", named, lambda node: FlatMap(checked(mapper, node, *KEY_AND_VALUE))))

    @overload
    def flat_map_values(self, mapper: Callable[[V_co], Iterable[VR]], named: NamedOrStr = None) -> KStream[K_co, VR]: ...

    @overload
    def flat_map_values(self, mapper: Callable[[K_co, V_co], Iterable[VR]], named: NamedOrStr = None) -> KStream[K_co, VR]: ...

    def flat_map_values(self, mapper: Callable[..., Iterable[VR]], named: NamedOrStr = None) -> KStream[K_co, VR]:
        """`mapper(value)` or `mapper(key, value)` gives any number of values."""
        return self._new_values(
            self._below("KSTREAM-FLATMAPVALUES-", named, lambda node: FlatMapValues(mapper, takes_key(mapper, 1, node)))
        )

    def select_key(self, mapper: Callable[[K_co, V_co], KR], named: NamedOrStr = None) -> KStream[KR, V_co]:
        """`mapper(key, value)` gives the new key."""
        node = self._below("KSTREAM-KEY-SELECT-", named, lambda node: SelectKey(checked(mapper, node, *KEY_AND_VALUE)))
        return self._stream(node, None, self._value, self._sources, True)

    def peek(self, action: Callable[[K_co, V_co], object], named: NamedOrStr = None) -> KStream[K_co, V_co]:
        """Calls `action(key, value)` for each record and passes it on."""
        return self._same(self._below("KSTREAM-PEEK-", named, lambda node: Peek(checked(action, node, *KEY_AND_VALUE))))

    def foreach(self, action: Callable[[K_co, V_co], object], named: NamedOrStr = None) -> None:
        """Calls `action(key, value)` for each record. Ends the stream."""
        self._below("KSTREAM-FOREACH-", named, lambda node: Foreach(checked(action, node, *KEY_AND_VALUE)))

    def print(self, printed: Printed[K_co, V_co]) -> None:
        """Prints a line for each record: `stream.print(Printed.to_sys_out(label="flights"))`. Ends the stream."""
        if not isinstance(printed, Printed):
            raise TopologyError(f"print: expected Printed.to_sys_out() or Printed.to_file(path), not {printed!r}")

        def supplier(node: str) -> OperatorSupplier:
            text = key_and_value if printed.key_value_mapper is None else checked(printed.key_value_mapper, node, *KEY_AND_VALUE)
            return Print(self._node if printed.label is None else printed.label, text, printed.path)

        self._below("KSTREAM-PRINTER-", printed.name, supplier)

    def split(self, named: NamedOrStr = None) -> BranchedKStream[K_co, V_co]:
        """Sends each record to the first of several branches that wants it: `stream.split("by-size").branch(is_large, "-large")
        .default_branch("-small")` gives `{"by-size-large": …, "by-size-small": …}`."""
        return BranchedKStream(self._same(self._node), self._below("KSTREAM-BRANCH-", named, lambda _node: Split((), None)))

    def merge(self: KStream[K, V], stream: KStream[K, V], named: NamedOrStr = None) -> KStream[K, V]:
        """The records of both streams, with no order between them. Serdes are inherited where both streams have the same."""
        if not isinstance(stream, KStream):
            raise TopologyError(f"a stream is merged with a KStream, not with {type(stream).__name__}")
        self._graph.check_same(stream._graph, "merge of two streams")
        node = self._graph.operator(self._graph.name("KSTREAM-MERGE-", named), PassThrough(), (self._node, stream._node))
        self._graph.hints.merges.append(node)
        return self._stream(
            node,
            self._key if self._key is stream._key else None,
            self._value if self._value is stream._value else None,
            self._sources | stream._sources,
            self._repartition or stream._repartition,
        )

    # -- topics ------------------------------------------------------------------------------------------------------------------

    def to(self: KStream[K | None, V | None], topic: str | TopicNameExtractor[K_co, V_co], produced: ProducedOrStr[K, V] = None) -> None:
        """Writes the records to a topic, or to the one that `topic(key, value, context)` names. Ends the stream."""
        how = produced_of(produced)
        self._graph.topology.add_sink(
            self._graph.name("KSTREAM-SINK-", how.name),
            topic,
            self._node,
            key_serde=how.key or self._key,
            value_serde=how.value or self._value,
            partitioner=how.partitioner,
            by_window_key=True,
        )

    def repartition(self: KStream[K | None, V | None], repartitioned: Repartitioned[K, V] | str | None = None) -> KStream[K, V]:
        """Sends the records through a topic of the application's own, partitioned by their key (KIP-221)."""
        how = repartitioned_of(repartitioned)
        through = Repartition(
            name_of(how.name) or self._graph.name("KSTREAM-REPARTITION-"),
            self._key_serde(how.key),
            self._value_serde(how.value),
            how.partitions,
            how.partitioner,
        )
        source = self._graph.repartition(self._node, through, may_move=False)
        return self._stream(source, self._key_serde(how.key), self._value_serde(how.value), frozenset((source,)), False)

    def to_table(
        self: KStream[K | None, V], named: NamedOrStr | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[K, V]:
        """The table of which the stream's records are the changes: the latest value per key; a record without a value deletes its key, one
        without a key is dropped and counted. A changed key sends the records through a repartition topic first.

        Without a name in `materialized` the rows are kept only if something reads them.
        """
        from runtime.dsl.ktable import TableRoot, table_from

        if isinstance(named, Materialized):  # Kafka Streams has the overload without a name
            named, materialized = None, named
        graph, how = self._graph, materialized_of(materialized)
        node = graph.name("KSTREAM-TOTABLE-", named)
        store = graph.store_name("KSTREAM-TOTABLE-", how)
        kept = replace(how, key=self._key_serde(how.key), value=self._value_serde(how.value))
        above, sources = self._node, self._sources
        if self._repartition:
            above = graph.repartition(above, Repartition(node, kept.key, kept.value))
            sources = frozenset((above,))
        return table_from(graph, above, node, TableRoot(store, kept, from_topic=False), sources)

    # -- with state --------------------------------------------------------------------------------------------------------------

    def group_by(
        self: KStream[K, V | None], selector: Callable[[K_co, V_co], KR | None], grouped: GroupedOrStr[KR, V] = None
    ) -> KGroupedStream[KR, V]:
        """Groups by `selector(key, value)`, a new key. A selector that gives None drops the record."""
        how = grouped_of(grouped)
        node = self._below("KSTREAM-KEY-SELECT-", how.name, lambda node: SelectKey(checked(selector, node, *KEY_AND_VALUE)))
        return self._grouped(node, Grouped(how.key, value=self._value_serde(how.value), name=how.name), repartition=True)

    def group_by_key(self: KStream[K | None, V | None], grouped: GroupedOrStr[K, V] = None) -> KGroupedStream[K, V]:
        """Groups by the key that the records have. Records without a key are dropped."""
        how = grouped_of(grouped)
        by = Grouped(self._key_serde(how.key), value=self._value_serde(how.value), name=how.name)
        return self._grouped(self._node, by, repartition=self._repartition)

    def _grouped(self, node: str, how: Grouped[KR, V], *, repartition: bool) -> KGroupedStream[KR, V]:
        from runtime.dsl.grouped import KGroupedStream

        return KGroupedStream(self._graph, node, how, self._sources, repartition)

    # -- processors --------------------------------------------------------------------------------------------------------------

    def process(
        self, supplier: MakesProcessor[K_co, V_co, KR, VR], *state_store_names: str | Named, named: NamedOrStr = None
    ) -> KStream[KR, VR]:
        """Applies a `Processor`, which may change keys. A store is connected by its name (`StreamsBuilder.add_state_store`), or brought by
        the supplier (`ProcessorSupplier.stores`). A `Named` may stand in front of the stores, as in Kafka Streams."""
        return self._new_pairs(self._processed("KSTREAM-PROCESSOR-", UserProcessor(supplier), named, state_store_names))

    def process_values(
        self, supplier: MakesFixedKeyProcessor[K_co, V_co, VR], *state_store_names: str | Named, named: NamedOrStr = None
    ) -> KStream[K_co, VR]:
        """Applies a `FixedKeyProcessor`, or a `Processor` that keeps keys; forwarding another key is an error."""
        processor = UserProcessor(supplier, fixed_key=True)
        return self._new_values(self._processed("KSTREAM-PROCESSVALUES-", processor, named, state_store_names))

    def _processed(self, prefix: str, supplier: UserProcessor, named: NamedOrStr, arguments: tuple[str | Named, ...]) -> str:
        named, stores = named_and_stores(named, arguments)
        name = name_of(named) or self._graph.name(prefix)  # here a given name draws no number, as in Kafka Streams
        self._graph.topology.add_user_processor(name, supplier, (self._node,), stores)
        return name
