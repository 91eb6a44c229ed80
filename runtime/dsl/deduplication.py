"""`KStream.deduplicate`: its store, and the repartition topic that brings equal ids together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from penstock.runtime.dsl.graph import Repartition, StreamNode
from penstock.runtime.dsl.options import KEY_AND_VALUE, MaterializedOrStr, NamedOrStr, StoreOrNamed, node_and_store
from penstock.runtime.dsl.stores import key_value_store
from penstock.runtime.model.arity import checked
from penstock.runtime.model.clock import Duration
from penstock.runtime.model.durations import length_ms
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.type_variables import KR, K, V
from penstock.runtime.operators.deduplicate import Deduplicate
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.serdes.primitive import BYTES, JSON
from penstock.runtime.serdes.serde import Serde, Serializer
from penstock.runtime.topology.nodes import Partitioner


def deduplicate(
    stream: StreamNode[K, V],
    key: Callable[..., KR | None] | None,
    within: Duration | None,
    store: StoreOrNamed,
    materialized: MaterializedOrStr,
    named: NamedOrStr,
    *,
    repartition: bool,
) -> StreamNode[K, V]:
    """Add a deduplication. Raises TopologyError."""
    graph = stream._graph
    within_ms = 0 if within is None else length_ms(within, "the interval")
    if within_ms == 0:
        raise TopologyError("deduplicate: within=… is the interval in which records of one id are duplicates, at least 1 ms")
    named, how = node_and_store(store, materialized, named)
    if how.expires:
        raise TopologyError("deduplicate: the time to live of its store follows from within=…")
    node = graph.name("KSTREAM-DEDUPLICATE-", named)
    name = graph.store_name("KSTREAM-DEDUPLICATE-", how)
    select = None if key is None else checked(key, node, *KEY_AND_VALUE)
    serde = how.key or (stream._key if select is None else JSON)
    parent, sources = stream._node, stream._sources
    by_id = select is not None and repartition
    if by_id or stream._repartition:
        partitioner = _by_id(select, serde) if select is not None and by_id else None
        topic = Repartition(name, stream._key, stream._value, partitioner=partitioner)
        parent = graph.repartition(parent, topic, may_move=not by_id)
        sources = frozenset((parent,))
    graph.keep_records_without_key(parent)
    kept = replace(how, key=serde, value=BYTES, ttl=timedelta(milliseconds=2 * within_ms), caching=False)
    graph.topology.add_store_factory(name, key_value_store(name, kept, serde, BYTES))
    graph.operator(node, Deduplicate(name, within_ms, select), (parent,), (name,))
    return StreamNode(graph, node, stream._key, stream._value, sources, by_id)


def _by_id(select: Callable[..., object], serde: Serde | None) -> Partitioner[object, object]:
    """Return a partitioner by the bytes of the id. Records without an id go where those of their key go."""
    assert serde is not None
    writers: dict[str, Serializer] = {}

    def partition(topic: str, key: object, value: object, partitions: int) -> int | None:
        identity = select(key, value)
        if identity is None:
            return None
        write = writers.get(topic) or writers.setdefault(topic, serde.serializer(topic))
        data = write(identity)
        return None if data is None else partition_for(data, partitions)

    return partition
