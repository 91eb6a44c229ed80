"""`topology.optimization`: the same results with fewer topics and stores (Kafka Streams' `InternalStreamsBuilder.optimizeTopology`).

Problem: the DSL makes each operation as if it were alone. Two aggregates of one stream whose key was changed write the same records to
two repartition topics; a stream that is joined with itself keeps its records twice; and a table read from a topic copies the topic into a
changelog.

    merge.repartition.topics      changed key ─► repartition ─┬─► count         in place of a repartition topic for each of the two
                                                              └─► filter ─► join
    single.store.self.join        one store and one operator in place of two windowed nodes, two joins and their merge
    reuse.ktable.source.topics    the table's topic is its store's changelog, up to the committed offset

Way taken: the DSL writes nodes at once, and notes beside them what an optimization has to know and a node does not tell (`Hints`). At the
end, when the configuration is known, the nodes are rewritten in a copy. Names, and the order of nodes that gives sub-topologies their
numbers, are Kafka Streams'. Rejected: a graph of its own above the topology, written out late, as there: everything would be said twice.

What Kafka Streams would get wrong is left as it is: a repartition topic does not move above a processor of the user's or a join with a
global table (values of another type are above them), nor above a place where records come in that did not pass the changed key; and only
inner joins whose window holds the record itself become self-joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

from runtime.offset_reset import AutoOffsetReset
from runtime.operators.self_join import StreamSelfJoin
from runtime.operators.stateless import Filter, FlatMap, Map, PassThrough, Peek, SelectKey, Split
from runtime.optimizations import MERGE_REPARTITIONS, REUSE_TABLE_TOPICS, SELF_JOIN
from runtime.serdes.serde import Serde
from runtime.stores.base import EntryStore
from runtime.stores.suppliers import Builder
from runtime.topology.draft import Draft, StoreFactory
from runtime.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode

_CHANGE_KEYS = (SelectKey, Map, FlatMap)
"""Not `process`, behind which Kafka Streams moves nothing either."""
_CHANGE_NOTHING = (Filter, PassThrough, Peek, Split)


@dataclass(frozen=True, slots=True)
class Way:
    """Three nodes that send records through a repartition topic which nobody gave properties of its own."""

    keyless: str
    sink: str
    source: str
    topic: str
    key: Serde | None
    value: Serde | None


@dataclass(frozen=True, slots=True)
class InnerJoin:
    """The nodes of an inner join of two streams, the store that a self-join does not need, and what such a join would be."""

    this_windowed: str
    other_windowed: str
    joins: tuple[str, str]
    merge: str
    other_store: str
    as_self_join: StreamSelfJoin


@dataclass(slots=True)
class Hints:
    """What the DSL notes for optimizations, in the order of the calls. `writers`: by source of an internal topic the node before it."""

    ways: list[Way] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    joins: list[InnerJoin] = field(default_factory=list)
    tables: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By the node of a table from a topic: its store, if it has one, and the topic."""
    writers: dict[str, str] = field(default_factory=dict)


def optimize(draft: Draft, hints: Hints, wanted: frozenset[str]) -> None:
    """Rewrites the draft."""
    if REUSE_TABLE_TOPICS in wanted:
        _reuse_topics(draft, hints)
    if MERGE_REPARTITIONS in wanted:
        for changer, ways in _ways_below(draft, hints).items():
            _merge(draft, changer, ways)
    if SELF_JOIN in wanted:
        for join in hints.joins:
            if draft.parents[join.this_windowed] == draft.parents[join.other_windowed]:
                _join_itself(draft, join)


def has_key(key: object, _value: object) -> bool:
    """What passes into a repartition topic."""
    return key is not None


# -- source topics as changelogs -------------------------------------------------------------------------------------------------


def _reuse_topics(draft: Draft, hints: Hints) -> None:
    for node, (store, topic) in hints.tables.items():
        table = draft.nodes[node]
        if isinstance(table, ProcessorNode) and store in table.stores:
            draft.source_changelogs[store] = topic
            draft.stores[store] = _without_logging(draft.stores[store])


def _without_logging(factory: StoreFactory) -> StoreFactory:
    return lambda key, value: cast(Builder[EntryStore], factory(key, value)).with_logging_disabled()


# -- merged repartition topics ---------------------------------------------------------------------------------------------------


class _Above:
    """Looks up from a node, through internal topics too, in Kafka Streams' order: what is above the first parent comes first."""

    def __init__(self, draft: Draft, hints: Hints) -> None:
        self._draft = draft
        self._writers = hints.writers

    def parents(self, name: str) -> tuple[str, ...]:
        return (self._writers[name],) if name in self._writers else self._draft.parents[name]

    def first(self, name: str, fits: Callable[[str], bool]) -> str | None:
        """The first node that fits, from `name` upwards."""
        if fits(name):
            return name
        for parent in self.parents(name):
            if (found := self.first(parent, fits)) is not None:
                return found
        return None

    def always(self, name: str, wanted: str) -> bool:
        """Whether every record that reaches `name` has passed `wanted`."""
        parents = self.parents(name)
        return name == wanted or (bool(parents) and all(self.always(parent, wanted) for parent in parents))


def _ways_below(draft: Draft, hints: Hints) -> dict[str, list[Way]]:
    """The repartition topics that can begin behind one node: where keys are changed, or where such streams are merged."""
    above = _Above(draft, hints)
    found: dict[str, list[Way]] = {name: [] for name in draft.nodes if _changes_key(draft, name)}
    merged: dict[str, list[Way]] = {name: [] for name in hints.merges}
    for way in hints.ways:
        changer = above.first(way.keyless, lambda name: _changes_key(draft, name))
        changes = above.first(way.keyless, lambda name: not _changes_nothing(draft, name) and not isinstance(draft.nodes[name], SourceNode))
        if changer is None or changer != changes:
            continue
        between = [name for name in hints.merges if above.always(way.keyless, name) and above.first(name, changer.__eq__) is not None]
        if between:
            merged[between[-1]].append(way)
        elif above.always(way.keyless, changer):
            found[changer].append(way)
    return {name: ways for name, ways in (*found.items(), *merged.items()) if ways}


def _changes_key(draft: Draft, name: str) -> bool:
    node = draft.nodes[name]
    return isinstance(node, ProcessorNode) and isinstance(node.supplier, _CHANGE_KEYS)


def _changes_nothing(draft: Draft, name: str) -> bool:
    node = draft.nodes[name]
    return isinstance(node, ProcessorNode) and isinstance(node.supplier, _CHANGE_NOTHING)


def _merge(draft: Draft, changer: str, ways: list[Way]) -> None:
    """Puts one way, under the topic of the first, right behind the node that changes keys, in place of all."""
    topic = ways[0].topic
    keyless, sink, source = f"{topic}-filter", f"{topic}-sink", f"{topic}-source"
    key = next((way.key for way in ways if way.key is not None), None)
    value = next((way.value for way in ways if way.value is not None), None)
    relaxed = any(isinstance(cast(ProcessorNode, draft.nodes[way.keyless]).supplier, PassThrough) for way in ways)
    for name in _leading_to(draft, {way.keyless for way in ways}):
        draft.parents[name] = tuple(source if parent == changer else parent for parent in draft.parents[name])
    for way in ways:
        _skip(draft, way.source, draft.parents[way.keyless])
        _remove(draft, (way.keyless, way.sink, way.source))
        del draft.repartitions[way.topic]
        draft.copartitioned = [frozenset(source if name == way.source else name for name in group) for group in draft.copartitioned]
    draft.copartitioned = [group for group in draft.copartitioned if len(group) > 1]
    draft.repartitions[topic] = None
    added: dict[str, Node] = {
        keyless: ProcessorNode(keyless, PassThrough() if relaxed else Filter(has_key)),
        sink: SinkNode(sink, topic, key, value),
        source: SourceNode(source, (topic,), key, value, offset_reset=AutoOffsetReset.earliest()),
    }
    draft.parents.update({keyless: (changer,), sink: (keyless,), source: ()})
    nodes, draft.nodes = draft.nodes, {}
    for name, node in nodes.items():
        draft.nodes[name] = node
        if name == changer:
            draft.nodes.update(added)


def _leading_to(draft: Draft, wanted: set[str]) -> set[str]:
    """These nodes and all above them, up to the next topics."""
    found, waiting = set[str](), list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(draft.parents[name])
    return found


def _skip(draft: Draft, gone: str, parents: tuple[str, ...]) -> None:
    """What was below a node is below others now."""
    for name, above in draft.parents.items():
        if gone in above:
            put = (found for parent in above for found in (parents if parent == gone else (parent,)))
            draft.parents[name] = tuple(dict.fromkeys(put))


def _remove(draft: Draft, names: Iterable[str]) -> None:
    for name in names:
        del draft.nodes[name], draft.parents[name]


# -- self-joins ------------------------------------------------------------------------------------------------------------------


def _join_itself(draft: Draft, join: InnerJoin) -> None:
    supplier = join.as_self_join
    _remove(draft, (join.other_windowed, *join.joins))
    draft.nodes[join.merge] = ProcessorNode(join.merge, supplier, (supplier.store_name,))
    draft.parents[join.merge] = (join.this_windowed,)
    del draft.stores[join.other_store]
