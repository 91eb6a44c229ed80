"""Streams (Kafka Streams' `KStream`), and their splitting (`BranchedKStream`, `Branched`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass, fields, replace
from datetime import timedelta
from typing import Generic, overload

from penstock.runtime.dsl.aggregates import name_and_materialized
from penstock.runtime.dsl.deduplication import deduplicate
from penstock.runtime.dsl.graph import GlobalKTable, Repartition, StreamNode, TableRoot, table_from
from penstock.runtime.dsl.grouped import KGroupedStream
from penstock.runtime.dsl.joins import join_global_table, join_streams, join_table
from penstock.runtime.dsl.ktable import KTable
from penstock.runtime.dsl.options import (
    KEY_AND_VALUE,
    Grouped,
    GroupedOrStr,
    JoinedOrStr,
    Materialized,
    MaterializedOrStr,
    Named,
    NamedOrStr,
    Printed,
    ProducedOrStr,
    Repartitioned,
    StoreOrNamed,
    StreamJoinedOrStr,
    at_least_one,
    grouped_of,
    name_instead_of,
    name_of,
    named_and_stores,
    produced_of,
    repartitioned_of,
)
from penstock.runtime.dsl.signatures import with_overloads
from penstock.runtime.dsl.windows import JoinWindows
from penstock.runtime.model.arity import checked, takes_key
from penstock.runtime.model.clock import Duration, to_ms
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.type_variables import KR, VO, VR, K, K_co, Subscripted, V, V_co
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.map_async import MapAsync
from penstock.runtime.operators.map_batches import MapBatches
from penstock.runtime.operators.processor import MakesFixedKeyProcessor, MakesProcessor, UserProcessor
from penstock.runtime.operators.stateless import (
    Filter,
    FlatMap,
    FlatMapValues,
    Foreach,
    Map,
    MapValues,
    PassThrough,
    Peek,
    Print,
    SelectKey,
    Split,
    key_and_value,
)
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.topology.nodes import TopicNameExtractor

CALL_TIMEOUT = timedelta(seconds=5)
"""Default timeout of a call of `map_async`."""


@dataclass(frozen=True, slots=True)
class KStream(StreamNode[K_co, V_co]):
    """A stream of keys K and values V; made by `StreamsBuilder.stream` and by other streams and tables. Every method adds a node and
    returns a new stream.

    Callbacks take `(key, value)`; those of the `…_values` methods take `(value)` or `(key, value)`. After a method that may change keys,
    the next grouping or join sends the records through a repartition topic first.
    """

    @classmethod
    def _of(cls, stream: StreamNode[K, V]) -> KStream[K, V]:
        """Give a node of the graph the operations of a stream."""
        return KStream(*(getattr(stream, each.name) for each in fields(stream)))

    def _same(self, node: str) -> KStream[K_co, V_co]:
        """Return the stream of a node that changes neither keys nor values."""
        return KStream(self._graph, node, self._key, self._value, self._sources, self._repartition)

    def _new_values(self, node: str) -> KStream[K_co, VR]:
        """Return the stream of a node that changes values."""
        return KStream(self._graph, node, self._key, None, self._sources, self._repartition)

    def _new_pairs(self, node: str) -> KStream[KR, VR]:
        """Return the stream of a node that changes keys and values."""
        return KStream(self._graph, node, None, None, self._sources, True)

    # -- without state -----------------------------------------------------------------------------------------------------------

    def filter(self, predicate: Callable[[K_co, V_co], object], named: NamedOrStr = None) -> KStream[K_co, V_co]:
        """Keep the records for which `predicate(key, value)` is true."""
        return self._same(self._below("KSTREAM-FILTER-", named, lambda node: Filter(checked(predicate, node, *KEY_AND_VALUE))))

    def filter_not(self, predicate: Callable[[K_co, V_co], object], named: NamedOrStr = None) -> KStream[K_co, V_co]:
        """Keep the records for which `predicate(key, value)` is false."""
        return self._same(self._below("KSTREAM-FILTER-", named, lambda node: Filter(checked(predicate, node, *KEY_AND_VALUE), negate=True)))

    def map(self, mapper: Callable[[K_co, V_co], tuple[KR, VR]], named: NamedOrStr = None) -> KStream[KR, VR]:
        """Replace key and value by the pair that `mapper(key, value)` returns."""
        return self._new_pairs(self._below("KSTREAM-MAP-", named, lambda node: Map(checked(mapper, node, *KEY_AND_VALUE))))

    @overload
    def map_values(self, mapper: Callable[[V_co], VR], named: NamedOrStr = None) -> KStream[K_co, VR]: ...

    @overload
    def map_values(self, mapper: Callable[[K_co, V_co], VR], named: NamedOrStr = None) -> KStream[K_co, VR]: ...

    def map_values(self, mapper: Callable[..., VR], named: NamedOrStr = None) -> KStream[K_co, VR]:
        """Replace the value by the result of `mapper(value)` or `mapper(key, value)`."""
        return self._new_values(self._below("KSTREAM-MAPVALUES-", named, lambda node: MapValues(mapper, takes_key(mapper, 1, node))))

    def map_batches(self, mapper: Callable[[list[V_co]], Iterable[VR]], *, size: int = 256, named: NamedOrStr = None) -> KStream[K_co, VR]:
        """Replace the values of up to `size` records at once by the results of `mapper(values)`: as many, in the same order (any iterable,
        such as an array). Keys, timestamps, headers and the order of the records are kept.

        A batch has the records that were read together; it never waits for more. If `mapper` raises, it is called for each record of the
        batch alone, and the error belongs to the record with which it raises again (docs/enrichment.md).
        """

        def supplier(node: str) -> OperatorSupplier:
            return MapBatches(checked(mapper, node, "values"), at_least_one(size, node, "size"))

        return self._new_values(self._below("KSTREAM-MAPBATCHES-", named, supplier))

    @overload
    def map_async(
        self,
        mapper: Callable[[V_co], Awaitable[VR]],
        *,
        limit: int = 100,
        timeout: Duration | None = CALL_TIMEOUT,
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def map_async(
        self,
        mapper: Callable[[K_co, V_co], Awaitable[VR]],
        *,
        limit: int = 100,
        timeout: Duration | None = CALL_TIMEOUT,
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]: ...

    def map_async(
        self,
        mapper: Callable[..., Awaitable[VR]],
        *,
        limit: int = 100,
        timeout: Duration | None = CALL_TIMEOUT,
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]:
        """Replace the value by the result of `mapper(value)` or `mapper(key, value)`, an async function, which is called for up to `limit`
        records of a task at once. Results are forwarded in the order of the records, with their keys, timestamps and headers, and are part
        of the transaction that commits the records.

        A call that does not return within `timeout` (ms if an int; None: no limit) fails with TimeoutError. An error belongs to its record,
        as in `map_values`. After a failure or restart calls are repeated (docs/enrichment.md).
        """

        def supplier(node: str) -> OperatorSupplier:
            timeout_ms = None if timeout is None else at_least_one(to_ms(timeout, "timeout"), node, "timeout")
            return MapAsync(mapper, takes_key(mapper, 1, node, awaited=True), at_least_one(limit, node, "limit"), timeout_ms)

        return self._new_values(self._below("KSTREAM-MAPASYNC-", named, supplier))

    def flat_map(self, mapper: Callable[[K_co, V_co], Iterable[tuple[KR, VR]]], named: NamedOrStr = None) -> KStream[KR, VR]:
        """Replace each record by any number of records, the pairs that `mapper(key, value)` returns."""
        return self._new_pairs(self._below("KSTREAM-FLATMAP-", named, lambda node: FlatMap(checked(mapper, node, *KEY_AND_VALUE))))

    @overload
    def flat_map_values(self, mapper: Callable[[V_co], Iterable[VR]], named: NamedOrStr = None) -> KStream[K_co, VR]: ...

    @overload
    def flat_map_values(self, mapper: Callable[[K_co, V_co], Iterable[VR]], named: NamedOrStr = None) -> KStream[K_co, VR]: ...

    def flat_map_values(self, mapper: Callable[..., Iterable[VR]], named: NamedOrStr = None) -> KStream[K_co, VR]:
        """Replace each record by any number of records with the same key, the values that `mapper(value)` or `mapper(key, value)`
        returns."""
        return self._new_values(
            self._below("KSTREAM-FLATMAPVALUES-", named, lambda node: FlatMapValues(mapper, takes_key(mapper, 1, node)))
        )

    def select_key(self, mapper: Callable[[K_co, V_co], KR], named: NamedOrStr = None) -> KStream[KR, V_co]:
        """Replace the key by the result of `mapper(key, value)`."""
        node = self._below("KSTREAM-KEY-SELECT-", named, lambda node: SelectKey(checked(mapper, node, *KEY_AND_VALUE)))
        return KStream(self._graph, node, None, self._value, self._sources, True)

    def peek(self, action: Callable[[K_co, V_co], object], named: NamedOrStr = None) -> KStream[K_co, V_co]:
        """Call `action(key, value)` for each record and forward the record."""
        return self._same(self._below("KSTREAM-PEEK-", named, lambda node: Peek(checked(action, node, *KEY_AND_VALUE))))

    def foreach(self, action: Callable[[K_co, V_co], object], named: NamedOrStr = None) -> None:
        """Call `action(key, value)` for each record. A terminal operation."""
        self._below("KSTREAM-FOREACH-", named, lambda node: Foreach(checked(action, node, *KEY_AND_VALUE)))

    def print(self, printed: Printed[K_co, V_co]) -> None:
        """Print a line for each record: `stream.print(Printed.to_sys_out(label="flights"))`. A terminal operation."""
        if not isinstance(printed, Printed):
            raise TopologyError(f"print: expected Printed.to_sys_out() or Printed.to_file(path), not {printed!r}")

        def supplier(node: str) -> OperatorSupplier:
            text = key_and_value if printed.key_value_mapper is None else checked(printed.key_value_mapper, node, *KEY_AND_VALUE)
            return Print(self._node if printed.label is None else printed.label, text, printed.path)

        self._below("KSTREAM-PRINTER-", printed.name, supplier)

    def split(self, named: NamedOrStr = None) -> BranchedKStream[K_co, V_co]:
        """Send each record to the first branch whose predicate it matches: `stream.split("by-size").branch(is_large, "-large")
        .default_branch("-small")` returns `{"by-size-large": …, "by-size-small": …}`."""
        return BranchedKStream(self._same(self._node), self._below("KSTREAM-BRANCH-", named, lambda _node: Split((), None)))

    def merge(self: KStream[K, V], stream: KStream[K, V], named: NamedOrStr = None) -> KStream[K, V]:
        """Merge two streams, in no particular order. The result has a serde where both streams have the same one."""
        if not isinstance(stream, KStream):
            raise TopologyError(f"a stream is merged with a KStream, not with {type(stream).__name__}")
        self._graph.check_same(stream._graph, "merge of two streams")
        node = self._graph.operator(self._graph.name("KSTREAM-MERGE-", named), PassThrough(), (self._node, stream._node))
        self._graph.hints.merges.append(node)
        return KStream(
            self._graph,
            node,
            self._key if self._key is stream._key else None,
            self._value if self._value is stream._value else None,
            self._sources | stream._sources,
            self._repartition or stream._repartition,
        )

    # -- topics ------------------------------------------------------------------------------------------------------------------

    def to(
        self: KStream[K | None, V | None],
        topic: str | TopicNameExtractor[K_co, V_co],
        produced: ProducedOrStr[K, V] = None,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
    ) -> None:
        """Write the records to a topic, or to the topic that `topic(key, value, context)` returns. A terminal operation. `key` and `value`
        are the serdes, by default those of the stream; with more to say, give a `Produced` instead."""
        how = produced_of(produced, key, value)
        self._graph.topology.add_sink(
            self._graph.name("KSTREAM-SINK-", how.name),
            topic,
            self._node,
            key_serde=how.key or self._key,
            value_serde=how.value or self._value,
            partitioner=how.partitioner,
            by_window_key=True,
        )

    def repartition(
        self: KStream[K | None, V | None],
        repartitioned: Repartitioned[K, V] | str | None = None,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
    ) -> KStream[K, V]:
        """Send the records through an internal topic, partitioned by their key (KIP-221). `key` and `value` are the serdes, by default the
        stream's."""
        how = repartitioned_of(repartitioned, key, value)
        topic = Repartition(
            name_of(how.name) or self._graph.name("KSTREAM-REPARTITION-"),
            self._key_serde(how.key),
            self._value_serde(how.value),
            how.partitions,
            how.partitioner,
        )
        source = self._graph.repartition(self._node, topic, may_move=False)
        return KStream(self._graph, source, self._key_serde(how.key), self._value_serde(how.value), frozenset((source,)))

    def to_table(
        self: KStream[K | None, V], named: NamedOrStr | Materialized[K, V] = None, materialized: MaterializedOrStr[K, V] = None
    ) -> KTable[K, V]:
        """Return the table that has the latest value of each key. A record without a value deletes its key; a record without a key is
        dropped and counted.

        Without a name in `materialized`, the rows are stored only if another operation reads them.
        """
        named, how = name_and_materialized(named, materialized)
        graph = self._graph
        node = graph.name("KSTREAM-TOTABLE-", named)
        store = graph.store_name("KSTREAM-TOTABLE-", how)
        kept = replace(how, key=self._key_serde(how.key), value=self._value_serde(how.value))
        parent, sources = self._node, self._sources
        if self._repartition:
            parent = graph.repartition(parent, Repartition(node, kept.key, kept.value))
            sources = frozenset((parent,))
        return KTable._of(table_from(graph, parent, node, TableRoot(store, kept), sources))

    # -- with state --------------------------------------------------------------------------------------------------------------

    def group_by(
        self: KStream[K, V | None],
        selector: Callable[[K_co, V_co], KR | None],
        grouped: GroupedOrStr[KR, V] = None,
        *,
        key: Serde[KR] | None = None,
        value: Serde[V] | None = None,
    ) -> KGroupedStream[KR, V]:
        """Group by the key that `selector(key, value)` returns. A record for which it returns None is dropped. `key` is the serde of the
        new key, `value` that of the value, by default the stream's."""
        how = grouped_of(grouped, key, value)
        node = self._below("KSTREAM-KEY-SELECT-", how.name, lambda node: SelectKey(checked(selector, node, *KEY_AND_VALUE)))
        return self._grouped(node, Grouped(how.key, value=self._value_serde(how.value), name=how.name), repartition=True)

    def group_by_key(
        self: KStream[K | None, V | None],
        grouped: GroupedOrStr[K, V] = None,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
    ) -> KGroupedStream[K, V]:
        """Group by the key of the records. A record without a key is dropped. `key` and `value` are the serdes, by default the stream's."""
        how = grouped_of(grouped, key, value)
        by = Grouped(self._key_serde(how.key), value=self._value_serde(how.value), name=how.name)
        return self._grouped(self._node, by, repartition=self._repartition)

    def _grouped(self, node: str, how: Grouped[KR, V], *, repartition: bool) -> KGroupedStream[KR, V]:
        return KGroupedStream(self._graph, node, how, self._sources, repartition)

    @overload
    def deduplicate(
        self,
        key: Callable[[K_co, V_co], KR | None],
        within: Duration,
        store: StoreOrNamed[KR, bytes] = None,
        materialized: MaterializedOrStr[KR, bytes] = None,
        *,
        named: NamedOrStr = None,
        repartition: bool = True,
    ) -> KStream[K_co, V_co]: ...

    @overload
    def deduplicate(
        self: KStream[K | None, V_co],
        key: None = None,
        *,
        within: Duration,
        store: StoreOrNamed[K, bytes] = None,
        materialized: MaterializedOrStr[K, bytes] = None,
        named: NamedOrStr = None,
    ) -> KStream[K_co, V_co]: ...

    def deduplicate(
        self,
        key: Callable[..., object] | None = None,
        within: Duration | None = None,
        store: StoreOrNamed = None,
        materialized: MaterializedOrStr = None,
        *,
        named: NamedOrStr = None,
        repartition: bool = True,
    ) -> KStream[K_co, V_co]:
        """Drop duplicates: of records with one id whose timestamps are less than `within` apart, the one that is processed first passes,
        unchanged. The id is the record's key, or what `key(key, value)` returns; a record without one always passes.

        Records out of order by less than `within`, in stream time, are compared exactly; later ones pass. The store, which can be named as
        that of an aggregate, forgets an id after two intervals. Ids of `key` are written as JSON, or by `Materialized(key=…)`.

        With `key`, records are partitioned by the id first, through a repartition topic, since equal ids may have different keys.
        `repartition=False`: they never do, so none is needed. Raises TopologyError.
        """
        return KStream._of(deduplicate(self, key, within, store, materialized, named, repartition=repartition))

    # -- joins -------------------------------------------------------------------------------------------------------------------

    @overload
    def join(
        self: KStream[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[V_co, VO], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K, VR]: ...

    @overload
    def join(
        self: KStream[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[K, V_co, VO], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K, VR]: ...

    @overload
    def join(
        self: KStream[K | None, V_co], other: KTable[K, VO], joiner: Callable[[V_co, VO], VR], joined: JoinedOrStr[K, V_co] = None
    ) -> KStream[K, VR]: ...

    @overload
    def join(
        self: KStream[K | None, V_co], other: KTable[K, VO], joiner: Callable[[K, V_co, VO], VR], joined: JoinedOrStr[K, V_co] = None
    ) -> KStream[K, VR]: ...

    @overload
    def join(
        self,
        other: GlobalKTable[KR, VO],
        key_selector: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[V_co, VO], VR],
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def join(
        self,
        other: GlobalKTable[KR, VO],
        key_selector: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[K_co, V_co, VO], VR],
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]: ...

    @with_overloads
    def join(self, other: KStream | KTable | GlobalKTable, *arguments: object, **keywords: object) -> KStream:
        """Join records with equal keys; `joiner` takes `(left, right)` or `(key, left, right)`. A record without a partner is dropped.

        With a stream, `join(stream, joiner, windows, stream_joined=None)` returns every pair of records within the time difference of
        `windows`, with the later of the two timestamps. With a table, `join(table, joiner, joined=None)` reads the table's current row or,
        if the table is versioned, its row at the record's timestamp. Both sides must have the same number of partitions. With a global
        table, use `join(table, key_selector, joiner, named=None)`, where `key_selector(key, value)` returns the table's key.
        """
        return self._join(other, arguments, keywords, left=False)

    @overload
    def left_join(
        self: KStream[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[V_co, VO | None], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self: KStream[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[K_co, V_co, VO | None], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self: KStream[K | None, V_co],
        other: KTable[K, VO],
        joiner: Callable[[V_co, VO | None], VR],
        joined: JoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self: KStream[K | None, V_co],
        other: KTable[K, VO],
        joiner: Callable[[K_co, V_co, VO | None], VR],
        joined: JoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self,
        other: GlobalKTable[KR, VO],
        key_selector: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[V_co, VO | None], VR],
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def left_join(
        self,
        other: GlobalKTable[KR, VO],
        key_selector: Callable[[K_co, V_co], KR | None],
        joiner: Callable[[K_co, V_co, VO | None], VR],
        named: NamedOrStr = None,
    ) -> KStream[K_co, VR]: ...

    @with_overloads
    def left_join(self, other: KStream | KTable | GlobalKTable, *arguments: object, **keywords: object) -> KStream:
        """As `join`, but a record without a partner is joined with None. With a stream, that happens when its window closes."""
        return self._join(other, arguments, keywords, left=True)

    @overload
    def outer_join(
        self: KStream[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[V_co | None, VO | None], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    @overload
    def outer_join(
        self: KStream[K | None, V_co],
        other: KStream[K, VO],
        joiner: Callable[[K_co, V_co | None, VO | None], VR],
        windows: JoinWindows,
        stream_joined: StreamJoinedOrStr[K, V_co] = None,
    ) -> KStream[K_co, VR]: ...

    def outer_join(
        self, other: KStream, joiner: Callable[..., object], windows: JoinWindows, stream_joined: StreamJoinedOrStr = None
    ) -> KStream:
        """As `left_join` of two streams, but a record of the other stream without a partner is joined with None as well."""
        if not isinstance(other, KStream):
            raise TopologyError(f"an outer join of a stream is one with a KStream, not with {type(other).__name__}")
        return KStream._of(join_streams(self, other, joiner, windows, stream_joined, of_left=True, of_right=True))

    def _join(
        self, other: KStream | KTable | GlobalKTable, arguments: tuple[object, ...], keywords: dict[str, object], *, left: bool
    ) -> KStream:
        # The overloads declare the arguments.
        if isinstance(other, KStream):
            return KStream._of(join_streams(self, other, *arguments, of_left=left, of_right=False, **keywords))  # type: ignore[arg-type]
        if isinstance(other, KTable):
            return KStream._of(join_table(self, other, *arguments, left=left, **keywords))  # type: ignore[arg-type]
        if isinstance(other, GlobalKTable):
            return KStream._of(join_global_table(self, other, *arguments, left=left, **keywords))  # type: ignore[arg-type]
        raise TopologyError(f"a stream is joined with a KStream, a KTable or a GlobalKTable, not with {type(other).__name__}")

    # -- processors --------------------------------------------------------------------------------------------------------------

    def process(
        self, supplier: MakesProcessor[K_co, V_co, KR, VR], *state_store_names: str | Named, named: NamedOrStr = None
    ) -> KStream[KR, VR]:
        """Apply a `Processor`, which may change keys. Its stores are connected by name (after `StreamsBuilder.add_state_store`), or
        declared by its supplier (`ProcessorSupplier.stores`). The first of `state_store_names` may be a `Named`, as in Kafka Streams."""
        return self._new_pairs(self._processed("KSTREAM-PROCESSOR-", UserProcessor(supplier), named, state_store_names))

    def process_values(
        self, supplier: MakesFixedKeyProcessor[K_co, V_co, VR], *state_store_names: str | Named, named: NamedOrStr = None
    ) -> KStream[K_co, VR]:
        """Apply a `FixedKeyProcessor`, or a `Processor` that does not change keys. Forwarding another key raises an error."""
        processor = UserProcessor(supplier, fixed_key=True)
        return self._new_values(self._processed("KSTREAM-PROCESSVALUES-", processor, named, state_store_names))

    def _processed(self, prefix: str, supplier: UserProcessor, named: NamedOrStr, arguments: tuple[str | Named, ...]) -> str:
        named, stores = named_and_stores(named, arguments)
        name = name_of(named) or self._graph.name(prefix)  # a name from the user does not advance the counter here, as in Kafka Streams
        self._graph.topology.add_user_processor(name, supplier, (self._node,), stores)
        return name


@dataclass(frozen=True, slots=True)
class Branched(Subscripted, Generic[K, V]):
    """Options for a branch of a split. `name` is appended to the name of the split. `function` gets the branch and returns the stream that
    replaces it among the results, or None for no result. `consumer` gets the branch, which is then not among the results."""

    name: str | None = None
    _: KW_ONLY
    function: Callable[[KStream[K, V]], KStream[K, V] | None] | None = None
    consumer: Callable[[KStream[K, V]], object] | None = None

    def __post_init__(self) -> None:
        name_of(self.name)
        if self.function is not None and self.consumer is not None:
            raise TopologyError("Branched: a branch goes to a function or to a consumer, not to both")


class BranchedKStream(Generic[K, V]):
    """A stream that is being split, made by `KStream.split`. Each record goes to the first branch whose predicate is true, else to the
    default branch; without one, it is dropped.

    `default_branch()` or `no_default_branch()` ends the split and returns the branches by name: the name of the split, followed by the name
    of the branch or its number (from 1; the default branch is 0).
    """

    def __init__(self, stream: KStream[K, V], node: str) -> None:
        self._stream = stream
        self._node = node
        self._split = Split((), None)
        self._results: dict[str, KStream[K, V]] = {}

    def branch(self, predicate: Callable[[K, V], object], branched: Branched[K, V] | str | None = None) -> BranchedKStream[K, V]:
        """Add a branch for records for which `predicate(key, value)` is true and no earlier predicate is."""
        self._check_open()
        holds = checked(predicate, self._node, *KEY_AND_VALUE)
        number = len(self._split.branches) + 1
        name, how = self._named(branched, number)
        self._end_in(replace(self._split, branches=(*self._split.branches, (holds, name))), name, how)
        return self

    def default_branch(self, branched: Branched[K, V] | str | None = None) -> dict[str, KStream[K, V]]:
        """Add a branch for all other records, and end the split."""
        self._check_open()
        name, how = self._named(branched, 0)
        self._end_in(replace(self._split, default=name), name, how)
        return self._results

    def no_default_branch(self) -> dict[str, KStream[K, V]]:
        """End the split. Records of no branch are dropped and not counted."""
        return self._results

    def _check_open(self) -> None:
        if self._split.default is not None:
            raise TopologyError(f"node {self._node}: default_branch() has ended this split")

    def _named(self, branched: Branched[K, V] | str | None, number: int) -> tuple[str, Branched[K, V]]:
        how = branched if isinstance(branched, Branched) else Branched(name_instead_of(Branched, branched))
        return f"{self._node}{number if how.name is None else how.name}", how

    def _end_in(self, split: Split, name: str, how: Branched[K, V]) -> None:
        stream = self._stream
        graph = stream._graph
        graph.name(name)  # advances the counter, as Kafka Streams does for a branch
        graph.operator(name, PassThrough(), (self._node,))
        graph.topology.replace_operator(self._node, split, ())
        self._split = split
        branch = stream._same(name)
        result: KStream[K, V] | None = branch
        if how.function is not None:
            result = how.function(branch)
            if result is not None and not isinstance(result, StreamNode):
                raise TopologyError(f"branch {name}: its function makes a KStream of it, or None, not {result!r}")
        elif how.consumer is not None:
            how.consumer(branch)
            result = None
        if result is not None:
            self._results[name] = result
