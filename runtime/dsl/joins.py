"""The joins of streams and of tables (Kafka Streams' `KStreamImplJoin`, `KStreamImpl.doStreamTableJoin`, `KTableImpl.doJoin` and
`doJoinOnForeignKey`).

Of two streams: each `windowed` node fills its stream's store and each join reads the other stream's store. Left and outer joins share a
third store of records without a partner:

left ──► windowed ──► join this ───┐
                                   ├─► merge
right ─► windowed ──► join other ──┘

Of two tables by key: each join reads the rows of the other table, and the merge has a store if the result is materialized. By a foreign
key, the nodes exchange subscriptions and responses: see `operators/table_join.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from penstock.runtime.dsl.graph import GlobalKTable, Graph, StreamNode, TableNode, TableRoot, table_from
from penstock.runtime.dsl.options import (
    KEY_AND_VALUE,
    Joined,
    JoinedOrStr,
    KeyPartitioner,
    Materialized,
    MaterializedOrStr,
    NamedOrStr,
    StreamJoined,
    StreamJoinedOrStr,
    TableJoined,
    TableJoinedOrStr,
    joined_of,
    materialized_of,
    stream_joined_of,
    table_joined_of,
)
from penstock.runtime.dsl.stores import key_value_store
from penstock.runtime.dsl.windows import JoinWindows
from penstock.runtime.model.arity import checked, takes_key
from penstock.runtime.model.clock import to_ms
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.model.type_variables import KR, VO, VR, K, V
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.stateless import PassThrough
from penstock.runtime.operators.stream_join import StreamJoin, StreamSelfJoin, StreamWindowed
from penstock.runtime.operators.stream_table_join import StreamGlobalTableJoin, StreamTableGraceJoin, StreamTableJoin
from penstock.runtime.operators.table_join import (
    ResponseResolve,
    SubscriberNotify,
    SubscriptionReceive,
    SubscriptionRespond,
    SubscriptionSend,
    TableJoin,
    TableJoinMerge,
)
from penstock.runtime.serdes.internal import JoinKeySerde, JoinValuesSerde, Response, ResponseSerde, SubscriptionSerde
from penstock.runtime.serdes.primitive import BYTES
from penstock.runtime.serdes.serde import Serde, resolved_serde, wrapped
from penstock.runtime.stores.base import EngineStore, StateStore, StoreBuilder
from penstock.runtime.stores.suppliers import Builder, Stores, WindowSupplier
from penstock.runtime.topology.nodes import Partitioner, StoreFactory
from penstock.runtime.topology.optimization import InnerJoin

S = TypeVar("S", bound=EngineStore)


def join_streams(
    left: StreamNode[K, V],
    right: StreamNode[K, VO],
    joiner: Callable[..., VR],
    windows: JoinWindows | None = None,
    stream_joined: StreamJoinedOrStr = None,
    *,
    of_left: bool,
    of_right: bool,
) -> StreamNode[K, VR]:
    """Add a windowed join. `of_left`, `of_right`: whether a record of that stream without a partner is a result too. Raises
    TopologyError."""
    if not isinstance(windows, JoinWindows):
        raise TopologyError(f"streams are joined over JoinWindows, not over {'nothing' if windows is None else type(windows).__name__}")
    how = stream_joined_of(stream_joined)
    graph = left._graph
    graph.check_same(right._graph, "join of two streams")
    left = left._repartitioned_for_join(how.name, how.key, how.value, "-left")
    right = right._repartitioned_for_join(how.name, how.key, how.other_value, "-right")
    sources = left._sources | right._sources
    graph.topology.copartition(sources)
    key = how.key or left._key
    names = _StreamJoinNames(graph, how, of_left, of_right)
    with_key = takes_key(joiner, 2, names.merge)
    this_store = _window_store(names.this_store, how.this_store, how, windows, key, how.value or left._value)
    other_store = _window_store(names.other_store, how.other_store, how, windows, key, how.other_value or right._value)
    topology = graph.topology
    topology.add_store_factory(names.this_store, this_store)
    graph.operator(names.this_windowed, StreamWindowed(names.this_store), (left._node,), (names.this_store,))
    topology.add_store_factory(names.other_store, other_store)
    graph.operator(names.other_windowed, StreamWindowed(names.other_store), (right._node,), (names.other_store,))
    waiting = names.waiting if of_left else None
    if waiting is not None:
        topology.add_store_factory(waiting, _waiting_store(waiting, how, key, left._value, right._value))
        graph.keep_records_without_key(left._node)
        graph.keep_records_without_key(right._node)
    shared = () if waiting is None else (waiting,)
    this = StreamJoin(names.other_store, windows, joiner, with_key, True, of_left, waiting)
    other = StreamJoin(names.this_store, windows, joiner, with_key, False, of_right, waiting)
    graph.operator(names.join_this, this, (names.this_windowed,), (names.other_store, *shared))
    graph.operator(names.join_other, other, (names.other_windowed,), (names.this_store, *shared))
    graph.operator(names.merge, PassThrough(), (names.join_this, names.join_other))
    if not (of_left or of_right) and windows.before_ms >= 0 <= windows.after_ms:
        itself = StreamSelfJoin(names.this_store, windows, joiner, with_key, windows.size_ms + windows.grace_period_ms)
        joins = (names.join_this, names.join_other)
        graph.hints.joins.append(InnerJoin(names.this_windowed, names.other_windowed, joins, names.merge, names.other_store, itself))
    return StreamNode(graph, names.merge, key if key is how.key or key is right._key else None, None, sources)


def join_table(
    stream: StreamNode[K, V], table: TableNode[K, VO], joiner: Callable[..., VR], joined: JoinedOrStr = None, *, left: bool
) -> StreamNode[K, VR]:
    """Add a join with a table. Raises TopologyError."""
    how, graph = joined_of(joined), stream._graph
    graph.check_same(table._graph, "join of a stream with a table")
    stream = stream._repartitioned_for_join(how.name, how.key, how.value)
    if left:
        graph.keep_records_without_key(stream._node)
    stores = table.readable_stores()
    name = graph.name("KSTREAM-LEFTJOIN-" if left else "KSTREAM-JOIN-", how.name)
    supplier = StreamTableJoin(table.node, joiner, left, takes_key(joiner, 2, name), table.history_ms is not None)
    if how.grace_period is None:
        node = graph.operator(name, supplier, (stream._node,), stores)
    else:
        node = _join_after_grace(graph, stream, table, name, supplier, stores, how)
    sources = stream._sources | table.sources
    graph.topology.copartition(sources)
    return StreamNode(graph, node, how.key or stream._key, None, sources)


def _join_after_grace(
    graph: Graph,
    stream: StreamNode[K, V],
    table: TableNode[K, VO],
    name: str,
    join: StreamTableJoin,
    stores: tuple[str, ...],
    how: Joined[K, V, VO],
) -> str:
    """Add a join whose records wait for the grace period; return its node."""
    grace, history, buffer = to_ms(how.grace_period or 0, "the grace period"), table.history_ms, f"{name}-Buffer"
    if history is None:
        raise TopologyError(f"node {name}: a join with a grace period needs a versioned table (Materialized with a versioned supplier)")
    if history < grace:
        raise TopologyError(f"node {name}: the table's history retention of {history} ms is shorter than the grace period, {grace} ms")
    supplier = Stores.persistent_key_value_store(buffer)
    graph.topology.add_store_factory(buffer, lambda _key, _value: Stores.key_value_store_builder(supplier, BYTES, BYTES))
    waiting = StreamTableGraceJoin(join, buffer, grace, how.key or stream._key, how.value or stream._value)
    return graph.operator(name, waiting, (stream._node,), (*stores, buffer))


def join_global_table(
    stream: StreamNode[K, V],
    table: GlobalKTable[KR, VO],
    key_selector: Callable[..., KR | None],
    joiner: Callable[..., VR],
    named: NamedOrStr = None,
    *,
    left: bool,
) -> StreamNode[K, VR]:
    """Add a join with a global table. Raises TopologyError."""
    stream._graph.check_same(table._graph, "join of a stream with a global table")

    def supplier(node: str) -> OperatorSupplier:
        selector = checked(key_selector, node, *KEY_AND_VALUE)
        return StreamGlobalTableJoin(table.queryable_store_name, selector, joiner, left, takes_key(joiner, 2, node))

    if left:
        stream._graph.keep_records_without_key(stream._node)
    node = stream._below("KSTREAM-LEFTJOIN-", named, supplier)  # the prefix of inner joins too, as in Kafka Streams
    return StreamNode(stream._graph, node, stream._key, None, stream._sources, stream._repartition)


class _StreamJoinNames:
    """The names of a join's nodes and stores, generated in Kafka Streams' order."""

    def __init__(self, graph: Graph, how: StreamJoined, of_left: bool, of_right: bool) -> None:
        this, other = "-outer-this-join" if of_right else "-this-join", "-outer-other-join" if of_left else "-other-join"
        self.this_windowed = graph.name("KSTREAM-WINDOWED-", how.name, "-this-windowed")
        self.other_windowed = graph.name("KSTREAM-WINDOWED-", how.name, "-other-windowed")
        prefix = "KSTREAM-OUTERTHIS-" if of_right else "KSTREAM-JOINTHIS-"
        join_this = graph.name(prefix)
        join_other = graph.name("KSTREAM-OUTEROTHER-" if of_left else "KSTREAM-JOINOTHER-")
        self.join_this = join_this if how.name is None else f"{how.name}{this}"
        self.join_other = join_other if how.name is None else f"{how.name}{other}"
        self.merge = graph.name("KSTREAM-MERGE-", how.name, "-merge")
        base = how.store_name
        self.this_store = _store_name(how.this_store, join_this if base is None else f"{base}{this}")
        self.other_store = _store_name(how.other_store, join_other if base is None else f"{base}{other}")
        base = base if how.this_store is None else how.this_store.name
        suffix = "-outer-shared-join" if of_right else "-left-shared-join"
        self.waiting = f"{f'KSTREAM-OUTERSHARED-{join_this[len(prefix) :]}' if base is None else f'{base}{suffix}'}-store"


def _store_name(supplier: WindowSupplier | None, generated: str) -> str:
    return f"{generated}-store" if supplier is None else supplier.name


def _window_store(
    name: str, supplier: WindowSupplier | None, how: StreamJoined, windows: JoinWindows, key: Serde | None, value: Serde | None
) -> StoreFactory:
    """Return the store of one stream's records. Its changelog is not compacted, because no record replaces another. Raises TopologyError
    for a supplier that does not fit the windows."""
    size, retention = windows.size_ms, windows.size_ms + windows.grace_period_ms
    if supplier is not None:
        if supplier.with_headers:
            raise TopologyError(f"store {name}: the stores of a join keep no headers, since none are read; take another supplier")
        found = (supplier.window_size_ms, supplier.retention_ms, supplier.retain_duplicates)
        if found != (size, retention, True):
            raise TopologyError(
                f"store {name}: the join needs a window size of {size} ms, a retention of {retention} ms and duplicates retained; "
                f"the supplier has {found[0]} ms, {found[1]} ms and retain_duplicates={found[2]}"
            )
    chosen = supplier or WindowSupplier(name, True, retention, size, retain_duplicates=True)

    def build(default_key: Serde | None, default_value: Serde | None) -> StoreBuilder[StateStore]:
        key_serde = resolved_serde(key, default_key, "key", f"store {name}")
        value_serde = resolved_serde(value, default_value, "value", f"store {name}")
        builder = Stores.window_store_builder(chosen, key_serde, value_serde)
        return _logged(builder, how, {} if supplier is not None else {"cleanup.policy": "delete"})

    return build


def _waiting_store(name: str, how: StreamJoined, key: Serde | None, left: Serde | None, right: Serde | None) -> StoreFactory:
    """Return the store of records without a partner; in memory if the left stream's store is."""
    persistent = how.this_store is None or how.this_store.persistent
    supplier = Stores.persistent_key_value_store(name) if persistent else Stores.in_memory_key_value_store(name)

    def build(default_key: Serde | None, default_value: Serde | None) -> StoreBuilder[StateStore]:
        key_serde = JoinKeySerde(resolved_serde(key, default_key, "key", f"store {name}"))
        left_serde = resolved_serde(how.value or left, default_value, "value", f"store {name}")
        right_serde = resolved_serde(how.other_value or right, default_value, "value", f"store {name}")
        return _logged(Stores.key_value_store_builder(supplier, key_serde, JoinValuesSerde(left_serde, right_serde)), how, {})

    return build


def _logged(builder: Builder[S], how: StreamJoined, settings: dict[str, str]) -> Builder[S]:
    if how.logging is False:
        return builder.with_logging_disabled()
    given = {} if how.logging is True else how.logging
    return builder.with_logging_enabled({**given, **settings})


_FK = "KTABLE-FK-JOIN-"


def _check_tables(left: TableNode[K, V], right: object) -> None:
    """Raise TopologyError unless the right side is a table of the same builder."""
    if not isinstance(right, TableNode):
        raise TopologyError(f"a table is joined with a KTable, not with {type(right).__name__}")
    left._graph.check_same(right._graph, "join of two tables")


def join_tables(
    left: TableNode[K, V],
    right: TableNode[K, VO],
    joiner: Callable[..., VR],
    named: NamedOrStr | Materialized[K, VR] = None,
    materialized: MaterializedOrStr[K, VR] = None,
    *,
    of_left: bool,
    of_right: bool,
) -> TableNode[K, VR]:
    """Add a join by key. `of_left`, `of_right`: whether a row of that table without a partner is a result. Raises TopologyError."""
    _check_tables(left, right)
    if isinstance(named, Materialized):  # Kafka Streams has the overload without a name
        named, materialized = None, named
    graph, how = left._graph, materialized_of(materialized)
    store = None if materialized is None else graph.store_name("KTABLE-MERGE-", how)
    merge = graph.name("KTABLE-MERGE-", named)
    with_key = takes_key(joiner, 2, merge)
    sources = left.sources | right.sources
    graph.topology.copartition(sources)
    left_stores, right_stores = left.readable_stores(), right.readable_stores()
    this_name = graph.name("KTABLE-JOINTHIS-", named, "-join-this")
    other_name = graph.name("KTABLE-JOINOTHER-", named, "-join-other")
    this = TableJoin(right.node, joiner, True, of_left, of_right, left.versioned, with_key)
    other = TableJoin(left.node, joiner, False, of_right, of_left, right.versioned, with_key)
    graph.operator(this_name, this, (left.node,), right_stores)
    graph.operator(other_name, other, (right.node,), left_stores)
    key = how.key or left._key
    if store is not None:
        graph.topology.add_store_factory(store, key_value_store(store, how, key, how.value))
    graph.operator(merge, TableJoinMerge(store), (this_name, other_name), () if store is None else (store,))
    return TableNode(
        graph,
        merge,
        key,
        how.value,
        sources,
        store,
        how.name is not None,
        left,
        _other=right,
        versioned=how.versioned,
        history=how.history_ms,
    )


def join_foreign(
    left: TableNode[K, V],
    right: TableNode[KR, VO],
    foreign_key_extractor: Callable[..., KR | None],
    joiner: Callable[..., VR],
    table_joined: TableJoinedOrStr | Materialized[K, VR] = None,
    materialized: MaterializedOrStr[K, VR] = None,
    *,
    left_join: bool,
) -> TableNode[K, VR]:
    """Add a join by a foreign key. `left_join`: whether a left row without a partner is a result. Raises TopologyError."""
    _check_tables(left, right)
    if isinstance(table_joined, Materialized):  # Kafka Streams has the overload without a name
        table_joined, materialized = None, table_joined
    graph, joined, kept = left._graph, table_joined_of(table_joined), materialized_of(materialized)
    left_stores, right_stores = left.readable_stores(), right.readable_stores()
    names = _ForeignJoinNames(graph, joined, kept)
    topic, store = names.topic, names.store

    def subscriptions(inner: Serde) -> Serde:
        return SubscriptionSerde(inner, topic, f"{store}-changelog")

    with_key = takes_key(foreign_key_extractor, 1, names.send)
    send = SubscriptionSend(foreign_key_extractor, with_key, left_join, right._key, left._value, topic, left.versioned)
    graph.operator(names.send, send, (left.node,))
    by_foreign_key = _partitioner(joined.other_partitioner)
    subscription = wrapped(left._key, subscriptions, of_key=True)
    _through(graph, (names.send,), names.sink, names.source, topic, right._key, subscription, by_foreign_key)
    graph.topology.copartition(right.sources | {names.source})

    def subscription_store(default_key: Serde | None, _default_value: Serde | None) -> StoreBuilder[StateStore]:
        serde = subscriptions(resolved_serde(left._key, default_key, "key", f"store {store}"))
        return Stores.timestamped_key_value_store_builder(Stores.persistent_key_value_store(store), BYTES, serde)

    graph.topology.add_store_factory(store, subscription_store)
    graph.operator(names.receive, SubscriptionReceive(store, right._key, left._key, topic), (names.source,), (store,))
    graph.operator(names.respond, SubscriptionRespond(right.node), (names.receive,), right_stores)
    graph.operator(names.notify, SubscriberNotify(store, right._key, left._key, topic, right.versioned), (right.node,), (store,))
    _through(
        graph,
        (names.respond, names.notify),
        names.response_sink,
        names.response_source,
        names.response_topic,
        left._key,
        wrapped(right._value, ResponseSerde),
        _partitioner(joined.partitioner) or _to_subscriber,
    )
    sources = left.sources | {names.response_source}
    graph.topology.copartition(sources)
    resolve = ResponseResolve(left.node, joiner, takes_key(joiner, 2, names.resolve), left_join, left._value, topic)
    graph.operator(names.resolve, resolve, (names.response_source,), left_stores)
    how = replace(kept, key=kept.key or left._key)
    return table_from(graph, names.resolve, names.result, TableRoot(names.result_store, how), sources)


class _ForeignJoinNames:
    """The names of a join's nodes, topics and stores, generated in Kafka Streams' order."""

    def __init__(self, graph: Graph, joined: TableJoined, kept: Materialized) -> None:
        def name(prefix: str, suffix: str) -> str:
            return graph.name(prefix, joined.name, suffix)

        self.topic = f"{name(f'{_FK}SUBSCRIPTION-REGISTRATION-', '-subscription-registration')}-topic"
        self.send = name(f"{_FK}SUBSCRIPTION-REGISTRATION-", "-subscription-registration-processor")
        self.sink = name("KTABLE-SINK-", "-subscription-registration-sink")
        self.source = name("KTABLE-SOURCE-", "-subscription-registration-source")
        self.store = name(f"{_FK}SUBSCRIPTION-STATE-STORE-", "-subscription-store")
        self.receive = name(f"{_FK}SUBSCRIPTION-PROCESSOR-", "-subscription-receive")
        self.respond = name(f"{_FK}SUBSCRIPTION-PROCESSOR-", "-subscription-join-foreign")
        self.notify = name(f"{_FK}SUBSCRIPTION-PROCESSOR-", "-foreign-join-subscription")
        self.response_topic = f"{name(f'{_FK}SUBSCRIPTION-RESPONSE-', '-subscription-response')}-topic"
        self.response_sink = name("KTABLE-SINK-", "-subscription-response-sink")
        self.response_source = name("KTABLE-SOURCE-", "-subscription-response-source")
        self.resolve = name(f"{_FK}SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-", "-subscription-response-resolver")
        self.result = name(f"{_FK}OUTPUT-", "-result")
        self.result_store = graph.store_name(f"{_FK}OUTPUT-", kept)


def _through(
    graph: Graph,
    parents: tuple[str, ...],
    sink: str,
    source: str,
    topic: str,
    key: Serde | None,
    value: Serde,
    partitioner: Partitioner | None,
) -> None:
    """Add a sink, an internal topic and its source."""
    graph.topology.add_repartition_topic(topic, None)
    graph.topology.add_sink(sink, topic, *parents, key_serde=key, value_serde=value, partitioner=partitioner)
    graph.topology.add_source(source, topic, key_serde=key, value_serde=value, offset_reset=AutoOffsetReset.earliest())


def _partitioner(partitioner: KeyPartitioner | None) -> Partitioner | None:
    """Wrap the user's partitioner so that it gets None as value: the value written is not one of the table."""
    if partitioner is None:
        return None
    chosen = partitioner
    return lambda topic, key, _value, partitions: chosen(topic, key, None, partitions)


def _to_subscriber(_topic: str, _key: object, value: object, _partitions: int) -> int | None:
    assert isinstance(value, Response)
    return value.partition
