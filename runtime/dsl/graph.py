"""The graph that the streams and tables of one builder write: its topology, the generated names, and a stream or table as a node in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, cast

from penstock.runtime.dsl.options import Consumed, Materialized, Named, NamedOrStr, name_of
from penstock.runtime.dsl.stores import key_value_store
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.model.type_variables import KR, VR, K_co, V_co
from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.stateless import HasKey, PassThrough
from penstock.runtime.operators.table import TableSource
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.topology.checks import is_generated
from penstock.runtime.topology.nodes import Partitioner
from penstock.runtime.topology.optimization import Hints, RepartitionPath
from penstock.runtime.topology.topology import Topology

_GENERATED = re.compile(r"KSTREAM.*-[0-9]{10}")


class Graph:
    """Writes nodes into a topology under Kafka Streams' names. The counter behind generated names advances as it does there, so that the
    names of nodes, topics and state directories are equal."""

    def __init__(self) -> None:
        self.topology = Topology()
        self.hints = Hints()
        """Input of `topology.optimization`."""
        self._next_number = 0
        self._streams: dict[frozenset[str] | re.Pattern[str], tuple[str, Consumed]] = {}
        self._key_filters: dict[str, str] = {}
        """By the source of a repartition topic: the node that drops records without a key in front of it."""
        self._join_repartitions: dict[str, str] = {}
        self._grace_ms: dict[str, int] = {}

    def _number(self) -> str:
        number, self._next_number = self._next_number, self._next_number + 1
        return f"{number:010d}"

    def name(self, prefix: str, named: Named | str | None = None, suffix: str = "") -> str:
        """Return the user's name with the suffix, or a generated name. The counter advances either way, so naming one node renames no
        other."""
        given, generated = name_of(named), f"{prefix}{self._number()}"
        self._mark_as_given(given)
        return generated if given is None else f"{given}{suffix}"

    def store_name(self, prefix: str, materialized: Materialized) -> str:
        """Return the store's name, or a generated one. (A name from the user does not advance the counter here, as in Kafka Streams.)"""
        self._mark_as_given(materialized.name)
        return materialized.name or f"{prefix}STATE-STORE-{self._number()}"

    def _mark_as_given(self, name: str | None) -> None:
        """Record that a name which looks generated comes from the user."""
        if name is not None and is_generated(name):
            self.topology.give_name(name)

    def check_same(self, other: Graph, operation: str) -> None:
        """Raise TopologyError if the two sides of an operation come from different builders."""
        if other is not self:
            raise TopologyError(f"{operation}: they come from two StreamsBuilders; make both with the same one")

    def operator(self, name: str, supplier: OperatorSupplier, parents: Iterable[str], stores: Iterable[str] = ()) -> str:
        """Add a node and return its name."""
        self.topology.add_operator(name, supplier, parents, stores)
        return name

    # -- sources -----------------------------------------------------------------------------------------------------------------

    def stream(self, topics: tuple[str, ...] | re.Pattern[str], consumed: Consumed) -> str:
        """Return the source node of a stream. Streams of the same topics or pattern share the first one's; raises TopologyError if their
        `Consumed` differ."""
        name = self.name("KSTREAM-SOURCE-", consumed.name)
        key = topics if isinstance(topics, re.Pattern) else frozenset(topics)
        if key not in self._streams:
            self._streams[key] = (name, consumed)
            return self.source(name, topics, consumed)
        name, first = self._streams[key]
        if replace(consumed, name=None) != replace(first, name=None):
            what = f"pattern {topics.pattern} is" if isinstance(topics, re.Pattern) else f"topics {', '.join(topics)} are"
            raise TopologyError(f"source {name}: {what} read twice, with different Consumed: {first} and {consumed}")
        return name

    def source(self, name: str, topics: Iterable[str] | re.Pattern[str], consumed: Consumed) -> str:
        """Add a source node and return its name."""
        self.topology.add_source(
            name,
            topics,
            key_serde=consumed.key,
            value_serde=consumed.value,
            timestamp_extractor=consumed.timestamp_extractor,
            offset_reset=consumed.offset_reset_policy,
        )
        return name

    # -- repartition topics ------------------------------------------------------------------------------------------------------

    def repartition(self, parent: str, repartition: Repartition, shared: str | None = None, *, may_move: bool = True) -> str:
        """Send a node's records through a repartition topic; return the name of the source that reads it.

        `shared`: the source of an existing repartition topic to use instead; the counter advances all the same. `may_move`: whether an
        optimization may move the topic to another place.
        """
        prefix = repartition.prefix
        topic = prefix if prefix.endswith("-repartition") else f"{prefix}-repartition"
        sink, key_filter, source = (self.name(each) for each in ("KSTREAM-SINK-", "KSTREAM-FILTER-", "KSTREAM-SOURCE-"))
        if shared is not None:
            return shared
        name_of(prefix)
        if not _GENERATED.fullmatch(prefix):
            sink, key_filter, source = f"{topic}-sink", f"{topic}-filter", f"{topic}-source"
        self.operator(key_filter, HasKey(), (parent,))
        self._key_filters[source] = key_filter
        if may_move:
            self.hints.repartition_paths.append(RepartitionPath(key_filter, sink, source, topic, repartition.key, repartition.value))
        return self.internal_topic(key_filter, sink, source, topic, repartition)

    def repartition_for_join(self, parent: str, repartition: Repartition, *, named: bool) -> str:
        """As `repartition`, except that the unnamed joins of one stream share a repartition topic."""
        shared = None if named else self._join_repartitions.get(parent)
        self._join_repartitions[parent] = self.repartition(parent, repartition, shared)
        return self._join_repartitions[parent]

    def internal_topic(self, parent: str, sink: str, source: str, topic: str, repartition: Repartition) -> str:
        """Add a sink, an internal topic and a source; return the name of the source."""
        key, value = repartition.key, repartition.value
        self.topology.add_repartition_topic(topic, repartition.partitions)
        self.hints.writers[source] = parent
        self.topology.add_sink(sink, topic, parent, key_serde=key, value_serde=value, partitioner=repartition.partitioner)
        # The source must also read what was written before its first poll; `auto.offset.reset` is about the user's topics.
        self.topology.add_source(source, topic, key_serde=key, value_serde=value, offset_reset=AutoOffsetReset.earliest())
        return source

    def keep_records_without_key(self, node: str) -> None:
        """Keep records without a key in all repartition topics above a left join, which returns them too (KIP-962)."""
        waiting, seen = [node], set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            key_filter = self._key_filters.get(name)
            if key_filter is None:
                waiting.extend(self.topology.parents(name))
            else:
                self.topology.replace_operator(key_filter, PassThrough(), ())
                waiting.append(key_filter)

    # -- windows -----------------------------------------------------------------------------------------------------------------

    def closes_after(self, node: str, grace_ms: int) -> None:
        """Declare that this node is a windowed table, whose windows close when stream time is `grace_ms` past their end."""
        self._grace_ms[node] = grace_ms

    def window_grace_ms(self, node: str, below: str = "") -> int:
        """Return how long after its end a window of this table can still change: the grace of the windowed aggregate above it, the longest
        if there are several. Raises TopologyError if a path to the table has no windowed aggregate."""
        grace = self._grace_ms.get(node)
        if grace is not None:
            return grace
        path = f"{node}->{below}" if below else node
        writers = self.hints.writers
        parents = (writers[node],) if node in writers else self.topology.parents(node)
        if not parents:
            raise TopologyError(f"windows close in tables of windows only, which this is not: {path}")
        return max(self.window_grace_ms(parent, path) for parent in parents)


@dataclass(frozen=True, slots=True)
class Repartition:
    """A repartition topic whose name begins with `prefix`. Records without a key are dropped before it, because nothing below could use
    them; a left join keeps them (`Graph.keep_records_without_key`)."""

    prefix: str
    key: Serde | None
    value: Serde | None
    partitions: int | None = None
    partitioner: Partitioner | None = None


@dataclass(frozen=True, slots=True)
class StreamNode(Generic[K_co, V_co]):
    """A stream as a node of the graph, without the operations that `KStream` adds: the serdes of its records, where known, the source nodes
    they come from, and whether the key may have changed since the last topic. If so, an operation by key needs a repartition topic first.
    """

    _graph: Graph
    _node: str
    _key: Serde[K_co] | None
    _value: Serde[V_co] | None
    _sources: frozenset[str]
    _repartition: bool = False

    def _below(self, prefix: str, named: NamedOrStr, make: Callable[[str], OperatorSupplier], *stores: str) -> str:
        """Add a node below this one and return its name, which `make` gets for the errors it may raise."""
        name = self._graph.name(prefix, named)
        return self._graph.operator(name, make(name), (self._node,), stores)

    def _key_serde(self, serde: Serde[KR] | None) -> Serde[KR] | None:
        """Return `serde`, or this stream's own. (A serde never sees None, so that of K is also that of K | None.)"""
        return serde or cast("Serde[KR] | None", self._key)

    def _value_serde(self, serde: Serde[VR] | None) -> Serde[VR] | None:
        return serde or cast("Serde[VR] | None", self._value)

    def _repartitioned_for_join(self, name: str | None, key: Serde | None, value: Serde | None, suffix: str = "") -> StreamNode[K_co, V_co]:
        """Return this stream, read from a repartition topic if its keys may have changed."""
        if not self._repartition:
            return self
        prefix = name_of(name)
        repartition = Repartition(self._node if prefix is None else f"{prefix}{suffix}", key or self._key, value or self._value)
        source = self._graph.repartition_for_join(self._node, repartition, named=prefix is not None)
        return StreamNode(self._graph, source, repartition.key, repartition.value, frozenset((source,)))


@dataclass(frozen=True, slots=True)
class TableRoot:
    """The store that a table read from a topic gets as soon as something reads its rows. Until then the table is only a stream of changes
    and has no changelog."""

    store: str
    materialized: Materialized
    only_changes: bool = False
    """Whether an update that changes nothing is dropped (KIP-557). Needs the store at once."""


@dataclass(frozen=True, slots=True)
class TableNode(Generic[K_co, V_co]):
    """A table as a node of the graph, without the operations that `KTable` adds."""

    _graph: Graph
    node: str
    """Name of the node."""
    _key: Serde[K_co] | None
    _value: Serde[V_co] | None
    sources: frozenset[str]
    """Names of the source nodes that feed it."""
    _store: str | None = None
    _queryable: bool = False
    _parent: TableNode | None = None
    _root: TableRoot | None = None
    _other: TableNode | None = None
    """The second parent of a join."""
    _buffer: str | None = None
    """The buffer of a suppressed table."""
    versioned: bool = False
    """Its rows keep their history, or are computed from rows that do: a change that is not the latest of its key is marked as such."""
    history: int | None = None
    """For how long its own store keeps older rows, in ms."""

    @property
    def queryable_store_name(self) -> str | None:
        """Name of the store, if the user named it; else None."""
        return self._store if self._queryable else None

    @property
    def history_ms(self) -> int | None:
        """For how long older versions of its rows can be read, in ms; None: only the latest."""
        if self._store is not None or self._parent is None or self._other is not None:
            return self.history
        return self._parent.history_ms

    def _sends_old_values(self) -> bool:
        """Return True if its changes can carry old values, given the nodes that are defined so far."""
        if self._store is not None or self._other is not None:
            return True
        if self._parent is not None:
            return self._parent._sends_old_values()
        return self._root is not None and self._graph.topology.reads_store(self.node, self._root.store)

    def readable_stores(self) -> tuple[str, ...]:
        """Return the stores from which this table's rows are read. A table from a topic gets its store by this call."""
        if self._store is not None:
            return (self._store,)
        if self._parent is not None:
            others = () if self._other is None else self._other.readable_stores()
            buffers = () if self._buffer is None else (self._buffer,)
            return tuple(dict.fromkeys((*buffers, *self._parent.readable_stores(), *others)))
        assert self._root is not None, self.node
        topology = self._graph.topology
        if not topology.reads_store(self.node, self._root.store):
            topology.add_store_factory(self._root.store, key_value_store(self._root.store, self._root.materialized, self._key, self._value))
            topology.replace_operator(self.node, TableSource(self._root.store, self._root.only_changes), (self._root.store,))
        return (self._root.store,)


@dataclass(frozen=True, slots=True)
class GlobalKTable(Generic[K_co, V_co]):
    """A table that every instance keeps in full, for joins by any key. Made by `StreamsBuilder.global_table`."""

    queryable_store_name: str
    """Name of its store."""
    _graph: Graph = field(repr=False, compare=False)


def table_from(graph: Graph, parent: str, node: str, root: TableRoot, sources: frozenset[str] | None = None) -> TableNode:
    """Add a table whose changes are the records of the node `parent`, by default a source. A named table has its store at once."""
    graph.operator(node, TableSource(None), (parent,))
    how = root.materialized
    table: TableNode = TableNode(graph, node, how.key, how.value, sources or frozenset((parent,)), _root=root)
    if how.name is not None or root.only_changes:
        table.readable_stores()
    if how.name is None:
        return table
    return replace(table, _store=root.store, _queryable=True, versioned=how.versioned, history=how.history_ms)
