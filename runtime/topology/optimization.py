"""`topology.optimization`: the same results with fewer topics and stores (Kafka Streams' `InternalStreamsBuilder.optimizeTopology`).

Problem: the DSL builds each operation separately. Two aggregates of one stream with a changed key write the same records to two repartition
topics; a stream that is joined with itself stores its records twice; and a table of a topic copies the topic to a changelog.

    merge.repartition.topics      changed key ─► repartition ─┬─► count         instead of a repartition topic for each of the two
                                                              └─► filter ─► join
    single.store.self.join        one store and one operator instead of two windowed nodes, two joins and their merge
    reuse.ktable.source.topics    the table's topic is its store's changelog, up to the committed offset

Solution: the DSL creates nodes at once, and records what an optimization needs beyond them (`Hints`). In `build`, when the configuration is
known, the nodes are rewritten in a copy. Names, and the order of nodes that determines the numbers of sub-topologies, are those of Kafka
Streams. Rejected: a second graph above the topology that is translated in `build`, as in Kafka Streams: it would duplicate everything.

Cases in which Kafka Streams' optimization is wrong are not optimized: a repartition topic does not move above a custom processor or a join
with a global table (values above them have another type), nor above a node with other parents that do not change the key; and only inner
joins whose window contains the record itself become self-joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

from penstock.runtime.config.optimizations import MERGE_REPARTITIONS, REUSE_TABLE_TOPICS, SELF_JOIN
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.operators.stateless import Filter, FlatMap, HasKey, Map, PassThrough, Peek, SelectKey, Split
from penstock.runtime.operators.stream_join import StreamSelfJoin
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import EntryStore
from penstock.runtime.stores.suppliers import Builder
from penstock.runtime.topology.nodes import Draft, Node, ProcessorNode, SinkNode, SourceNode, StoreFactory

_CHANGE_KEYS = (SelectKey, Map, FlatMap)
"""`process` is not among them, as in Kafka Streams."""
_CHANGE_NOTHING = (Filter, HasKey, PassThrough, Peek, Split)


@dataclass(frozen=True, slots=True)
class RepartitionPath:
    """Three nodes that send records through a repartition topic without explicit properties."""

    keyless: str
    sink: str
    source: str
    topic: str
    key: Serde | None
    value: Serde | None


@dataclass(frozen=True, slots=True)
class InnerJoin:
    """The nodes of an inner join of two streams, the store that a self-join does not need, and the operator of the self-join."""

    this_windowed: str
    other_windowed: str
    joins: tuple[str, str]
    merge: str
    other_store: str
    as_self_join: StreamSelfJoin


@dataclass(slots=True)
class Hints:
    """Information that the DSL records for optimizations, in the order of the calls. `writers`: by the source of an internal topic, the
    node before it."""

    repartition_paths: list[RepartitionPath] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    joins: list[InnerJoin] = field(default_factory=list)
    tables: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By the node of a table of a topic: its store, if it has one, and the topic."""
    writers: dict[str, str] = field(default_factory=dict)


def optimize(draft: Draft, hints: Hints, wanted: frozenset[str]) -> None:
    """Rewrite the draft with the wanted optimizations."""
    if REUSE_TABLE_TOPICS in wanted:
        _reuse_topics(draft, hints)
    if MERGE_REPARTITIONS in wanted:
        for changer, paths in _paths_below(draft, hints).items():
            _merge(draft, changer, paths)
    if SELF_JOIN in wanted:
        for join in hints.joins:
            if draft.parents[join.this_windowed] == draft.parents[join.other_windowed]:
                _join_itself(draft, join)


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
    """Search upwards from a node, through internal topics too, in Kafka Streams' order: depth first, first parent first."""

    def __init__(self, draft: Draft, hints: Hints) -> None:
        self._draft = draft
        self._writers = hints.writers

    def parents(self, name: str) -> tuple[str, ...]:
        return (self._writers[name],) if name in self._writers else self._draft.parents[name]

    def first(self, name: str, fits: Callable[[str], bool]) -> str | None:
        """Return the first node that fits, from `name` upwards."""
        if fits(name):
            return name
        for parent in self.parents(name):
            if (found := self.first(parent, fits)) is not None:
                return found
        return None

    def dominates(self, name: str, wanted: str) -> bool:
        """Return True if every record that reaches `name` has passed `wanted`."""
        parents = self.parents(name)
        return name == wanted or (bool(parents) and all(self.dominates(parent, wanted) for parent in parents))


def _paths_below(draft: Draft, hints: Hints) -> dict[str, list[RepartitionPath]]:
    """Return, by node that changes keys or merges such streams, the repartition paths that can start right after it."""
    above = _Above(draft, hints)
    found: dict[str, list[RepartitionPath]] = {name: [] for name in draft.nodes if _changes_key(draft, name)}
    merged: dict[str, list[RepartitionPath]] = {name: [] for name in hints.merges}
    for path in hints.repartition_paths:
        changer = above.first(path.keyless, lambda name: _changes_key(draft, name))
        changes = above.first(
            path.keyless, lambda name: not _changes_nothing(draft, name) and not isinstance(draft.nodes[name], SourceNode)
        )
        if changer is None or changer != changes:
            continue
        between = [name for name in hints.merges if above.dominates(path.keyless, name) and above.first(name, changer.__eq__) is not None]
        if between:
            merged[between[-1]].append(path)
        elif above.dominates(path.keyless, changer):
            found[changer].append(path)
    return {name: paths for name, paths in (*found.items(), *merged.items()) if paths}


def _changes_key(draft: Draft, name: str) -> bool:
    node = draft.nodes[name]
    return isinstance(node, ProcessorNode) and isinstance(node.supplier, _CHANGE_KEYS)


def _changes_nothing(draft: Draft, name: str) -> bool:
    node = draft.nodes[name]
    return isinstance(node, ProcessorNode) and isinstance(node.supplier, _CHANGE_NOTHING)


def _merge(draft: Draft, changer: str, paths: list[RepartitionPath]) -> None:
    """Replace all paths by one right after the node that changes keys, with the topic of the first."""
    topic = paths[0].topic
    keyless, sink, source = f"{topic}-filter", f"{topic}-sink", f"{topic}-source"
    key = next((path.key for path in paths if path.key is not None), None)
    value = next((path.value for path in paths if path.value is not None), None)
    relaxed = any(isinstance(cast(ProcessorNode, draft.nodes[path.keyless]).supplier, PassThrough) for path in paths)
    for name in _leading_to(draft, {path.keyless for path in paths}):
        draft.parents[name] = tuple(source if parent == changer else parent for parent in draft.parents[name])
    for path in paths:
        _skip(draft, path.source, draft.parents[path.keyless])
        _remove(draft, (path.keyless, path.sink, path.source))
        del draft.repartitions[path.topic]
        draft.copartitioned = [frozenset(source if name == path.source else name for name in group) for group in draft.copartitioned]
    draft.copartitioned = [group for group in draft.copartitioned if len(group) > 1]
    draft.repartitions[topic] = None
    added: dict[str, Node] = {
        keyless: ProcessorNode(keyless, PassThrough() if relaxed else HasKey()),
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
    """Return these nodes and all above them, up to the next topics."""
    found, waiting = set[str](), list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(draft.parents[name])
    return found


def _skip(draft: Draft, gone: str, parents: tuple[str, ...]) -> None:
    """Connect the children of a node to other parents."""
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
