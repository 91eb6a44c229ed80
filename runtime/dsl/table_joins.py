"""The joins of two tables (Kafka Streams' `KTableImpl.doJoin` and `doJoinOnForeignKey`).

By key, each join reads the rows of the other table:

left ──► join this ───┐
                      ├─► merge (with a store if the result is materialized)
right ─► join other ──┘

By a foreign key, the nodes exchange subscriptions and responses: see `operators/foreign_join.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.runtime.dsl.graph import Graph, TableNode, TableRoot, table_from
from penstock.runtime.dsl.options import (
    KeyPartitioner,
    Materialized,
    MaterializedOrStr,
    NamedOrStr,
    TableJoined,
    TableJoinedOrStr,
    materialized_of,
    table_joined_of,
)
from penstock.runtime.dsl.stores import key_value_store
from penstock.runtime.model.arity import takes_key
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.offset_reset import AutoOffsetReset
from penstock.runtime.model.type_variables import KR, VO, VR, K, V
from penstock.runtime.operators.foreign_join import (
    ResponseResolve,
    SubscriberNotify,
    SubscriptionReceive,
    SubscriptionRespond,
    SubscriptionSend,
)
from penstock.runtime.operators.table_table_join import TableJoin, TableJoinMerge
from penstock.runtime.serdes.pending import resolved_serde, wrapped
from penstock.runtime.serdes.primitive import BYTES
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.serdes.subscriptions import Response, ResponseSerde, SubscriptionSerde
from penstock.runtime.stores.base import StateStore, StoreBuilder
from penstock.runtime.stores.suppliers import Stores
from penstock.runtime.topology.nodes import Partitioner

_FK = "KTABLE-FK-JOIN-"


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
    if not isinstance(right, TableNode):
        raise TopologyError(f"a table is joined with a KTable, not with {type(right).__name__}")
    if isinstance(named, Materialized):  # Kafka Streams has the overload without a name
        named, materialized = None, named
    graph, how = left._graph, materialized_of(materialized)
    graph.check_same(right._graph, "join of two tables")
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
    if not isinstance(right, TableNode):
        raise TopologyError(f"a table is joined with a KTable, not with {type(right).__name__}")
    if isinstance(table_joined, Materialized):  # Kafka Streams has the overload without a name
        table_joined, materialized = None, table_joined
    graph, joined, kept = left._graph, table_joined_of(table_joined), materialized_of(materialized)
    graph.check_same(right._graph, "join of two tables")
    left_stores, right_stores = left.readable_stores(), right.readable_stores()
    names = _Names(graph, joined, kept)
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
    return table_from(graph, names.resolve, names.result, TableRoot(names.result_store, how, from_topic=False), sources)


class _Names:
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
