"""Assembly of a sub-topology's nodes, from the sinks to the sources; used once, when a pipeline is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from penstock.runtime.model.arity import takes_context
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.operators.base import no_children
from penstock.runtime.operators.context import Forward, Hooks, NodeContext, RowGetter, TaskContext, ValueGetter
from penstock.runtime.operators.rows import store_rows
from penstock.runtime.operators.sink import Extractor, sink
from penstock.runtime.serdes.windowed import window_bytes
from penstock.runtime.topology.look_ups import SourceLookUps
from penstock.runtime.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode, TopicNameExtractor
from penstock.runtime.topology.subtopologies import SubTopology


class Assembly:
    """The nodes of one task while they are being built."""

    def __init__(self, subtopology: SubTopology, task: TaskContext, hooks: Hooks) -> None:
        self._subtopology = subtopology
        self._task = task
        self._hooks = hooks
        self._children = subtopology.children
        self._parents = subtopology.parents
        self._nodes: dict[str, Node] = {node.name: node for node in subtopology.nodes}
        self.names = list(self._nodes)
        """Nodes in the order in which they were added: parents before children."""
        self._can_send = self._nodes_that_can_send_old()
        self._wanted = self._nodes_with_wanted_old()
        self.building: str | None = None
        """Name of the node that is being built, for errors of the user's suppliers."""
        self._contexts: dict[str, NodeContext] = {}
        self._forwards: dict[str, Forward] = {}
        self._below: dict[str, Forward] = {}

    def heads(self) -> dict[str, Forward]:
        """Build all nodes, children before parents, and return the function of each source topic by the topic's name."""
        for name in reversed(self.names):
            self.building = name
            self._forwards[name] = self._build(name)
        return {topic: self._forwards[source.name] for source in self._subtopology.sources for topic in source.topics}

    def head(self, source: str) -> Forward:
        """Return the function of a source node, which must have been built."""
        return self._forwards[source]

    def look_ups(self, source: SourceNode) -> SourceLookUps:
        """Return the store look-ups of a source node's records; all nodes must have been built."""
        extractor = self._task.config.get("default.timestamp.extractor")
        return SourceLookUps(source, self._subtopology, self._contexts, extractor)

    # -- old values of tables --------------------------------------------------------------------------------------------------

    def _nodes_that_can_send_old(self) -> dict[str, bool]:
        can: dict[str, bool] = {}
        for name in self.names:
            node = self._nodes[name]
            above = any(can[parent] for parent in self._parents[name])
            can[name] = node.supplier.can_send_old(above) if isinstance(node, ProcessorNode) else isinstance(node, SourceNode)
        return can

    def _nodes_with_wanted_old(self) -> dict[str, bool]:
        """Return for each node whether a child wants its old values."""
        wanted: dict[str, bool] = {}
        for name in reversed(self.names):
            children = [(child, self._nodes[child]) for child in self._children[name]]
            wanted[name] = any(isinstance(node, ProcessorNode) and node.supplier.wants_old(wanted[child]) for child, node in children)
        return wanted

    def _sends_old(self, name: str) -> bool:
        return self._can_send[name] and self._wanted[name]

    # -- nodes -----------------------------------------------------------------------------------------------------------------

    def _build(self, name: str) -> Forward:
        node = self._nodes[name]
        children = self._children[name]
        forward = _fan_out([self._forwards[child] for child in children])
        if isinstance(node, SourceNode):
            return forward
        if isinstance(node, SinkNode):
            return self._named(name, self._sink(node))
        self._below[name] = forward
        context = NodeContext(
            name,
            self._task,
            hooks=self._hooks,
            stores=node.stores,
            children={child: self._forwards[child] for child in children},
            plain_forward=self._plain_forward(name),
            gets_old=any(self._sends_old(parent) for parent in self._parents[name]),
            send_old=self._sends_old(name),
            getters=self._getter,
            row_getters=self._rows,
            table_stores=self._store_of,
        )
        self._contexts[name] = context
        built = node.supplier.build(context, forward)
        return built if built is forward else self._named(name, built)

    def _named(self, name: str, function: Forward) -> Forward:
        return cast(Forward, self._hooks.mark(name, function))

    def _plain_forward(self, name: str) -> Forward | None:
        """Return the function that forwards a table's new values instead of changes; None unless all children accept them."""
        plain: list[Forward] = []
        for child in self._children[name]:
            node = self._nodes[child]
            if not isinstance(node, ProcessorNode):
                return None
            function = node.supplier.build_plain(self._contexts[child], self._below[child])
            if function is None:
                return None
            plain.append(function if function is self._below[child] else self._named(child, function))
        return _fan_out(plain) if plain else None

    def _getter(self, table: str) -> ValueGetter:
        node = self._nodes.get(table)
        if not isinstance(node, ProcessorNode):
            raise TopologyError(f"there is no table {table!r} in sub-topology {self._subtopology.id} to read from")
        parents = [parent for parent in self._parents[table] if isinstance(self._nodes[parent], ProcessorNode)]
        above = self._getter(parents[0]) if parents and _table_store(node) is None else None
        context = NodeContext(table, self._task, hooks=self._hooks, stores=node.stores, row_getters=self._rows)
        return node.supplier.value_getter(context, above)

    def _store_of(self, table: str) -> str | None:
        node = self._nodes.get(table)
        return _table_store(node) if isinstance(node, ProcessorNode) else None

    def _rows(self, table: str) -> RowGetter:
        node = self._nodes.get(table)
        if not isinstance(node, ProcessorNode):
            raise TopologyError(f"there is no table {table!r} in sub-topology {self._subtopology.id} to read from")
        context = NodeContext(table, self._task, hooks=self._hooks, stores=node.stores, row_getters=self._rows)
        store = _table_store(node)
        if store is not None:
            return store_rows(context, store)
        parents = [parent for parent in self._parents[table] if isinstance(self._nodes[parent], ProcessorNode)]
        return node.supplier.row_getter(context, self._rows(parents[0]) if parents else None)

    # -- sinks -----------------------------------------------------------------------------------------------------------------

    def _sink(self, node: SinkNode) -> Forward:
        if node.key_serde is None or node.value_serde is None:
            raise TopologyError(f"sink {node.name} has no serdes yet: only a resolved topology can be compiled")
        topic = node.topic if isinstance(node.topic, str) else _extractor(node.topic, node.name)
        behind_the_key = window_bytes(node.key_serde) if node.by_window_key else 0
        return sink(self._task, topic, node.key_serde, node.value_serde, node.partitioner, behind_the_key)


def _extractor(function: TopicNameExtractor, node: str) -> Extractor:
    """Return a topic extractor in the form with three parameters."""
    if takes_context(function, node):
        return cast(Extractor, function)
    plain = cast("Callable[[object, object], str]", function)
    return lambda key, value, _context: plain(key, value)


def _table_store(node: ProcessorNode) -> str | None:
    """Return the store of a table's rows, if the node has one."""
    return cast("str | None", getattr(node.supplier, "store_name", None))


def _fan_out(forwards: Sequence[Forward]) -> Forward:
    """Return one function that calls all functions in order."""
    if not forwards:
        return no_children
    if len(forwards) == 1:
        return forwards[0]
    if len(forwards) == 2:
        return _both(*forwards)
    every = tuple(forwards)

    def to_all(key: object, value: object, timestamp: int) -> None:
        for forward in every:
            forward(key, value, timestamp)

    return to_all


def _both(first: Forward, second: Forward) -> Forward:
    def to_both(key: object, value: object, timestamp: int) -> None:
        first(key, value, timestamp)
        second(key, value, timestamp)

    return to_both
