"""Builds the join of two tables by their keys (Kafka Streams' `KTableImpl.doJoin`).

left ──► join this ───┐          each join reads the other table's rows
                      ├─► merge (with a store, if it is to be kept)
right ─► join other ──┘
"""

from __future__ import annotations

from collections.abc import Callable

from runtime.dsl.arity import takes_key
from runtime.dsl.graph import key_value_store
from runtime.dsl.ktable import KTable
from runtime.dsl.options import Materialized, MaterializedOrStr, NamedOrStr, materialized_of
from runtime.errors import TopologyError
from runtime.operators.table_table_join import TableJoin, TableJoinMerge
from runtime.type_variables import VO, VR, K, V


def join_tables(
    left: KTable[K, V],
    right: KTable[K, VO],
    joiner: Callable[..., VR],
    named: NamedOrStr | Materialized[K, VR] = None,
    materialized: MaterializedOrStr[K, VR] = None,
    *,
    of_left: bool,
    of_right: bool,
) -> KTable[K, VR]:
    """The join; `of_left` and `of_right`: rows of that table without a partner are results. Raises TopologyError."""
    if not isinstance(right, KTable):
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
    return KTable(
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
