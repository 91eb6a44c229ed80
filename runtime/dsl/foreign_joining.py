"""Builds the join of two tables by a foreign key (Kafka Streams' `KTableImpl.doJoinOnForeignKey`). What its nodes do to each other is told
in `operators/foreign_join.py`."""

from __future__ import annotations

from collections.abc import Callable

from runtime.dsl.arity import takes_key
from runtime.dsl.graph import Graph
from runtime.dsl.join_options import KeyPartitioner, TableJoined, TableJoinedOrStr, table_joined_of
from runtime.dsl.ktable import KTable, TableRoot, table_from
from runtime.dsl.options import Materialized, MaterializedOrStr, materialized_of
from runtime.errors import TopologyError
from runtime.offset_reset import AutoOffsetReset
from runtime.operators.foreign_join import ForeignTell, ResponseResolve, SubscriptionAnswer, SubscriptionReceive, SubscriptionSend
from runtime.serdes.primitive import BYTES
from runtime.serdes.serde import Serde
from runtime.serdes.subscriptions import Response, ResponseSerde, SubscriptionSerde
from runtime.stores.base import StateStore, StoreBuilder
from runtime.stores.suppliers import Stores
from runtime.topology.nodes import Partitioner, wrapped
from runtime.topology.topology import resolved_serde
from runtime.type_variables import KR, VO, VR, K, V

_FK = "KTABLE-FK-JOIN-"


def join_foreign(
    left: KTable[K, V],
    right: KTable[KR, VO],
    foreign_key_extractor: Callable[..., KR | None],
    joiner: Callable[..., VR],
    table_joined: TableJoinedOrStr | Materialized[K, VR] = None,
    materialized: MaterializedOrStr[K, VR] = None,
    *,
    left_join: bool,
) -> KTable[K, VR]:
    """The join; `left_join`: a left row without a partner is a result. Raises TopologyError."""
    if not isinstance(right, KTable):
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
    graph.operator(names.answer, SubscriptionAnswer(right.node), (names.receive,), right_stores)
    graph.operator(names.tell, ForeignTell(store, right._key, left._key, topic, right.versioned), (right.node,), (store,))
    _through(
        graph,
        (names.answer, names.tell),
        names.response_sink,
        names.response_source,
        names.response_topic,
        left._key,
        wrapped(right._value, ResponseSerde),
        _partitioner(joined.partitioner) or _to_who_asked,
    )
    sources = left.sources | {names.response_source}
    graph.topology.copartition(sources)
    resolve = ResponseResolve(left.node, joiner, takes_key(joiner, 2, names.resolve), left_join, left._value, topic)
    graph.operator(names.resolve, resolve, (names.response_source,), left_stores)
    how = Materialized(
        kept.store,
        key=kept.key or left._key,
        value=kept.value,
        caching=kept.caching,
        logging=kept.logging,
        retention=kept.retention,
        store_type=kept.store_type,
    )
    return table_from(graph, names.resolve, names.result, TableRoot(names.result_store, how, from_topic=False), sources)


class _Names:
    """The names of a join's nodes, topics and stores, drawn in Kafka Streams' order."""

    def __init__(self, graph: Graph, joined: TableJoined, kept: Materialized) -> None:
        def name(prefix: str, suffix: str) -> str:
            return graph.name(prefix, joined.name, suffix)

        self.topic = f"{name(f'{_FK}SUBSCRIPTION-REGISTRATION-', '-subscription-registration')}-topic"
        self.send = name(f"{_FK}SUBSCRIPTION-REGISTRATION-", "-subscription-registration-processor")
        self.sink = name("KTABLE-SINK-", "-subscription-registration-sink")
        self.source = name("KTABLE-SOURCE-", "-subscription-registration-source")
        self.store = name(f"{_FK}SUBSCRIPTION-STATE-STORE-", "-subscription-store")
        self.receive = name(f"{_FK}SUBSCRIPTION-PROCESSOR-", "-subscription-receive")
        self.answer = name(f"{_FK}SUBSCRIPTION-PROCESSOR-", "-subscription-join-foreign")
        self.tell = name(f"{_FK}SUBSCRIPTION-PROCESSOR-", "-foreign-join-subscription")
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
    """A sink, an internal topic and its source."""
    graph.topology.add_repartition_topic(topic, None)
    graph.topology.add_sink(sink, topic, *parents, key_serde=key, value_serde=value, partitioner=partitioner)
    graph.topology.add_source(source, topic, key_serde=key, value_serde=value, offset_reset=AutoOffsetReset.earliest())


def _partitioner(given: KeyPartitioner | None) -> Partitioner | None:
    """A partitioner of the user's, which is asked with None for the value: what is written is not the table's own."""
    if given is None:
        return None
    chosen = given
    return lambda topic, key, _value, partitions: chosen(topic, key, None, partitions)


def _to_who_asked(_topic: str, _key: object, value: object, _partitions: int) -> int | None:
    assert isinstance(value, Response)
    return value.partition
