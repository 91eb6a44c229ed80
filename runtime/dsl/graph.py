"""What the streams and tables of one builder share: the topology that they write, and the counter behind generated names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from runtime.dsl.options import Consumed, Materialized, Named, name_of
from runtime.errors import TopologyError
from runtime.offset_reset import AutoOffsetReset
from runtime.operators.base import OperatorSupplier
from runtime.operators.stateless import Filter, PassThrough
from runtime.serdes.serde import Serde
from runtime.stores.base import EngineStore, StateStore, StoreBuilder
from runtime.stores.suppliers import Builder, KeyValueSupplier, SessionSupplier, Stores, VersionedSupplier, WindowSupplier
from runtime.topology.draft import StoreFactory
from runtime.topology.names import is_generated
from runtime.topology.nodes import Partitioner
from runtime.topology.optimization import Hints, Way, has_key
from runtime.topology.topology import Topology, required_serde

S = TypeVar("S", bound=EngineStore)
_GENERATED = re.compile(r"KSTREAM.*-[0-9]{10}")


class Graph:
    """Writes nodes into a topology under Kafka Streams' names. Numbers are drawn in the same order as there, so that generated names,
    and with them topics and state directories, are equal."""

    def __init__(self) -> None:
        self.topology = Topology()
        self.hints = Hints()
        """For `topology.optimization`."""
        self._next = 0
        self._streams: dict[frozenset[str] | re.Pattern[str], tuple[str, Consumed]] = {}
        self._keyless: dict[str, str] = {}
        self._joined_through: dict[str, str] = {}
        self._closes_after: dict[str, int] = {}

    def _number(self) -> str:
        number, self._next = self._next, self._next + 1
        return f"{number:010d}"

    def name(self, prefix: str, named: Named | str | None = None, suffix: str = "") -> str:
        """The given name with the suffix, or a generated one. A number is drawn in any case, so that to name one node renames no other."""
        given, generated = name_of(named), f"{prefix}{self._number()}"
        self._note(given)
        return generated if given is None else f"{given}{suffix}"

    def store_name(self, prefix: str, materialized: Materialized) -> str:
        """The store's given name, or a generated one. (Here a given name draws no number, as in Kafka Streams.)"""
        self._note(materialized.name)
        return materialized.name or f"{prefix}STATE-STORE-{self._number()}"

    def check_same(self, other: Graph, what: str) -> None:
        """Raises TopologyError where what is to be put together comes from different builders."""
        if other is not self:
            raise TopologyError(f"{what}: they come from two StreamsBuilders; make both with the same one")

    def _note(self, given: str | None) -> None:
        if given is not None and is_generated(given):
            self.topology.give_name(given)

    def operator(self, name: str, supplier: OperatorSupplier, parents: Iterable[str], stores: Iterable[str] = ()) -> str:
        """Adds a node; returns its name."""
        self.topology.add_operator(name, supplier, parents, stores)
        return name

    def stream(self, topics: tuple[str, ...] | re.Pattern[str], how: Consumed) -> str:
        """The source node of a stream. Streams of the same topics, or pattern, share one, the first. Raises TopologyError where they
        differ."""
        name, wanted = self.name("KSTREAM-SOURCE-", how.name), topics if isinstance(topics, re.Pattern) else frozenset(topics)
        if wanted not in self._streams:
            self._streams[wanted] = (name, how)
            return self.source(name, topics, how)
        name, first = self._streams[wanted]
        if replace(how, name=None) != replace(first, name=None):
            what = f"pattern {topics.pattern} is" if isinstance(topics, re.Pattern) else f"topics {', '.join(topics)} are"
            raise TopologyError(f"source {name}: {what} read twice, with different Consumed: {first} and {how}")
        return name

    def source(self, name: str, topics: Iterable[str] | re.Pattern[str], how: Consumed) -> str:
        """Adds a source node; returns its name."""
        self.topology.add_source(
            name,
            topics,
            key_serde=how.key,
            value_serde=how.value,
            timestamp_extractor=how.timestamp_extractor,
            offset_reset=how.offset_reset_policy,
        )
        return name

    # -- repartition topics ----------------------------------------------------------------------------------------------------

    def repartition(self, parent: str, through: Repartition, shared: str | None = None, *, may_move: bool = True) -> str:
        """Sends a node's records through a repartition topic; returns the name of the source that reads it.

        `shared`: the source of a topic that is there already and serves; numbers are drawn all the same. `may_move`: an optimization may
        put it elsewhere.
        """
        topic = through.prefix if through.prefix.endswith("-repartition") else f"{through.prefix}-repartition"
        sink, keyless, source = (self.name(prefix) for prefix in ("KSTREAM-SINK-", "KSTREAM-FILTER-", "KSTREAM-SOURCE-"))
        if shared is not None:
            return shared
        name_of(through.prefix)
        if not _GENERATED.fullmatch(through.prefix):
            sink, keyless, source = f"{topic}-sink", f"{topic}-filter", f"{topic}-source"
        self.operator(keyless, Filter(has_key), (parent,))
        self._keyless[source] = keyless
        if may_move:
            self.hints.ways.append(Way(keyless, sink, source, topic, through.key, through.value))
        return self.pipe(keyless, sink, source, topic, through)

    def repartition_for_join(self, parent: str, through: Repartition, *, named: bool) -> str:
        """As `repartition`; joins of one stream that have no name share its repartition topic."""
        shared = None if named else self._joined_through.get(parent)
        self._joined_through[parent] = self.repartition(parent, through, shared)
        return self._joined_through[parent]

    def pipe(self, parent: str, sink: str, source: str, topic: str, through: Repartition) -> str:
        """A sink, an internal topic, and a source, whose name is returned."""
        self.topology.add_repartition_topic(topic, through.partitions)
        self.hints.writers[source] = parent
        self.topology.add_sink(sink, topic, parent, key_serde=through.key, value_serde=through.value, partitioner=through.partitioner)
        # What is written there before its reader begins belongs to the reader, whatever `auto.offset.reset` says of the user's topics.
        self.topology.add_source(source, topic, key_serde=through.key, value_serde=through.value, offset_reset=AutoOffsetReset.earliest())
        return source

    # -- windows ---------------------------------------------------------------------------------------------------------------

    def closes_after(self, node: str, grace_ms: int) -> None:
        """The windows of the table that this node is are closed when stream time is so much after their end (ms)."""
        self._closes_after[node] = grace_ms

    def window_grace_ms(self, node: str, below: str = "") -> int:
        """How long after their end the windows of a table can change: that of the aggregate over windows that it comes from, the longest if
        there are several. Raises TopologyError if there is a way to it without windows."""
        grace = self._closes_after.get(node)
        if grace is not None:
            return grace
        chain = f"{node}->{below}" if below else node
        writers = self.hints.writers
        parents = (writers[node],) if node in writers else self.topology.parents(node)
        if not parents:
            raise TopologyError(f"windows close in tables of windows only, which this is not: {chain}")
        return max(self.window_grace_ms(parent, chain) for parent in parents)

    def let_keyless_through(self, node: str) -> None:
        """A left join below `node` makes use of records without a key (KIP-962): repartition topics above it keep them."""
        waiting, seen = [node], set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            keyless = self._keyless.get(name)
            if keyless is None:
                waiting.extend(self.topology.parents(name))
            else:
                self.topology.replace_operator(keyless, PassThrough(), ())
                waiting.append(keyless)


@dataclass(frozen=True, slots=True)
class Repartition:
    """A way through a repartition topic, whose name begins with `prefix`. Records without a key, which nothing behind it could use, stay
    out, unless there is a left join (`let_keyless_through`)."""

    prefix: str
    key: Serde | None
    value: Serde | None
    partitions: int | None = None
    partitioner: Partitioner | None = None


def key_value_store(name: str, materialized: Materialized, key: Serde | None, value: Serde | None) -> StoreFactory:
    """The timestamped or versioned store of a table; serdes that `materialized` does not give are the inherited or the default ones."""
    supplier = materialized.store
    if isinstance(supplier, WindowSupplier | SessionSupplier):
        raise TopologyError(f"store {name}: a table without windows needs a key-value store, not a {type(supplier).__name__}")
    if isinstance(supplier, VersionedSupplier):
        versions, uncached = supplier, replace(materialized, caching=False)  # there is no caching of versions
        return store_factory(
            name, materialized, key, value, lambda k, v: configured(Stores.versioned_key_value_store_builder(versions, k, v), uncached)
        )
    if not isinstance(supplier, KeyValueSupplier):
        make = Stores.in_memory_key_value_store if materialized.store_type == "in_memory" else Stores.persistent_key_value_store
        supplier = make(name)
    chosen = supplier
    return store_factory(
        name, materialized, key, value, lambda k, v: configured(Stores.timestamped_key_value_store_builder(chosen, k, v), materialized)
    )


def store_factory(
    name: str,
    materialized: Materialized,
    key: Serde | None,
    value: Serde | None,
    build: Callable[[Serde, Serde], StoreBuilder[StateStore]],
) -> StoreFactory:
    """Builds a store with the serdes of `materialized`, else the given ones, else the default ones."""
    key, value = materialized.key or key, materialized.value or value
    return lambda default_key, default_value: build(
        required_serde(key or default_key, "key", f"store {name}"), required_serde(value or default_value, "value", f"store {name}")
    )


def configured(builder: Builder[S], materialized: Materialized) -> Builder[S]:
    """With the caching and the logging that `materialized` asks for."""
    builder = builder.with_caching_enabled() if materialized.caching else builder.with_caching_disabled()
    if materialized.logging is False:
        return builder.with_logging_disabled()
    return builder.with_logging_enabled({} if materialized.logging is True else materialized.logging)
