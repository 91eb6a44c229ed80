"""Assembly of a sub-topology's nodes, from the sinks to the sources; used once, when a pipeline is compiled.

The look-ups of a source are determined here too. With them, the pipeline prefetches the store entries that the source's records will need,
before the records are decoded: those (`OperatorSupplier.look_up`) of all operators that are reached from the source through operators that
forward key and timestamp unchanged. The keys are a prediction: a record that is filtered out or cannot be read does not need them, and
entries that were not predicted are read when they are needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from penstock.runtime.model.arity import takes_context
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.timestamps import extractor_function
from penstock.runtime.model.user_errors import pass_ctrl_c
from penstock.runtime.operators.base import no_children
from penstock.runtime.operators.context import Forward, Hooks, KeysAhead, NodeContext, RowGetter, TaskContext, ValueGetter
from penstock.runtime.operators.deferred import Deferrals, DeferredQueue, Levels, gate
from penstock.runtime.operators.materialized import store_rows
from penstock.runtime.operators.sink import Extractor, sink
from penstock.runtime.operators.wrapper import wrapped_operator
from penstock.runtime.serdes.serde import PlainSerde
from penstock.runtime.serdes.windowed import window_bytes
from penstock.runtime.stores.base import EntryStore
from penstock.runtime.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode, SubTopology, TopicNameExtractor, labelled

logger = logging.getLogger(__name__)

StoreKey = Callable[[bytes], "bytes | None"]


class KeyedMessage(Protocol):
    """A record before it is decoded."""

    def key(self) -> bytes | None: ...

    def timestamp(self) -> tuple[int, int]: ...


class SourceLookUp(NamedTuple):
    """Look-ups in one store."""

    store: EntryStore
    store_key: StoreKey | None
    """Converts a key's bytes on the topic to those in the store; None if they are the same."""
    keys: KeysAhead | None

    def begin(self, messages: Sequence[KeyedMessage]) -> bool:
        """Start reading the entries that the records will need; return False if there is nothing to read. The store raises errors of these
        reads when it needs the entry."""
        found = _keys(messages, self.store_key, self.keys)
        return bool(found) and self.store.look_ahead(found)


class SourceLookUps:
    """Look-ups of the records of one source node."""

    def __init__(self, source: SourceNode, subtopology: SubTopology, contexts: Mapping[str, NodeContext], extractor: object) -> None:
        """`contexts`: the contexts of the built processors. `extractor`: the configured default."""
        self.of_stores: list[SourceLookUp] = []
        serde = source.key_serde
        if not isinstance(serde, PlainSerde):  # it needs the record's headers, or a registry
            return
        read, write = serde.deserializer(""), serde.serializer("")
        own_time = extractor_function(source.timestamp_extractor or extractor) is None
        nodes = {node.name: node for node in subtopology.processors}
        for name in _reached(source.name, subtopology, nodes):
            look_up = nodes[name].supplier.look_up(contexts[name])
            if look_up is not None and (own_time or look_up.keys is None):
                to_bytes = look_up.store.key_to_bytes
                self.of_stores.append(SourceLookUp(look_up.store, None if to_bytes is write else _store_key(read, to_bytes), look_up.keys))


def _reached(source: str, subtopology: SubTopology, nodes: Mapping[str, ProcessorNode]) -> list[str]:
    """Return the processors that get the source's records with unchanged keys."""
    reached: dict[str, None] = {}
    heads = [source]
    while heads:
        for child in subtopology.children[heads.pop()]:
            if child in nodes and child not in reached:
                reached[child] = None
                if nodes[child].supplier.keeps_key():
                    heads.append(child)
    return list(reached)


def _store_key(read: Callable[[bytes], object], to_bytes: Callable[[object], bytes | None]) -> StoreKey:
    return lambda raw: to_bytes(read(raw))


def _keys(messages: Sequence[KeyedMessage], store_key: StoreKey | None, keys: KeysAhead | None) -> Sequence[bytes]:
    found = [message.key() for message in messages]
    if None in found:
        messages = [message for message in messages if message.key() is not None]
        found = [message.key() for message in messages]
    if store_key is not None:
        try:
            found = [store_key(cast(bytes, raw)) for raw in found]
        except BaseException as error:  # noqa: BLE001 (user code may raise anything; it is reported when the record is processed)
            pass_ctrl_c(error, "the key of a record")
            return ()
        if None in found:
            return ()
    raws = cast("list[bytes]", found)
    return raws if keys is None else keys(raws, [message.timestamp()[1] for message in messages])


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
        self._levels = self._levels_of_nodes()
        self.deferrals = None if self._levels is None or not self._levels.most else Deferrals(task, self._levels.most)
        """The queues of deferred records; None if no operator defers any."""

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

    # -- deferred records ------------------------------------------------------------------------------------------------------

    def _levels_of_nodes(self) -> Levels | None:
        deferring = [node.name for node in self._subtopology.processors if node.supplier.defers()]
        if not deferring:
            return None
        users: dict[object, list[str]] = {}
        for node in self._subtopology.processors:
            for store in node.stores:
                users.setdefault(("store", store), []).append(node.name)
        for output in self._subtopology.sinks:
            users.setdefault(("topic", output.topic), []).append(output.name)
        tied: dict[str, list[str]] = {name: [] for name in self.names}
        for names in users.values():
            for name in names:
                tied[name] += names
        levels = Levels(deferring, self._children, tied)
        for name in levels.at_once:
            logger.warning(
                "task %s: node %s takes one record at a time, because its input depends on its results through a store; send its results "
                "through repartition(), or do not share the store",
                *(self._task.task_id, name),
            )
        return levels

    def _queue(self, name: str) -> DeferredQueue | None:
        """Return the queue of an operator that defers records."""
        if self.deferrals is None or self._levels is None or not self._levels.defers(name):
            return None
        return self.deferrals.queues[self._levels[name] - 1]

    def _gated(self, parent: str, child: str, forward: Forward) -> Forward:
        """Return a child's function behind the queues that lie between the two nodes."""
        if self.deferrals is None or self._levels is None:
            return forward
        first, last = self._levels[parent], self._levels[child] - self._levels.defers(child)
        for level in range(last, first, -1):
            forward = gate(self.deferrals.queues[level - 1], forward)
        return forward

    # -- nodes -----------------------------------------------------------------------------------------------------------------

    def _build(self, name: str) -> Forward:
        node = self._nodes[name]
        children = {child: self._gated(name, child, self._forwards[child]) for child in self._children[name]}
        forward = _fan_out(list(children.values()))
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
            children=children,
            plain_forward=self._plain_forward(name),
            gets_old=any(self._sends_old(parent) for parent in self._parents[name]),
            send_old=self._sends_old(name),
            getters=self._getter,
            row_getters=self._rows,
            table_stores=self._store_of,
            deferred=self._queue(name),
            label=labelled(name, self._subtopology.call_sites),
        )
        self._contexts[name] = context
        wrapper, supplier = node.wrapper, node.supplier
        built = supplier.build(context, forward) if wrapper is None else wrapped_operator(wrapper, supplier, context, forward)
        return built if built is forward else self._named(name, built)

    def _named(self, name: str, function: Forward) -> Forward:
        return cast(Forward, self._hooks.mark(name, function))

    def _plain_forward(self, name: str) -> Forward | None:
        """Return the function that forwards a table's new values instead of changes; None unless all children accept them."""
        plain: list[Forward] = []
        for child in self._children[name]:
            node = self._nodes[child]
            if not isinstance(node, ProcessorNode) or node.wrapper is not None:
                return None
            function = node.supplier.build_plain(self._contexts[child], self._below[child])
            if function is None:
                return None
            function = function if function is self._below[child] else self._named(child, function)
            plain.append(self._gated(name, child, function))
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
