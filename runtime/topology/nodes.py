"""The nodes of a topology, as data. Nothing here runs; `pipeline.py` compiles the nodes of a sub-topology into function calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from penstock.runtime.model.offset_reset import AutoOffsetReset
from penstock.runtime.model.record import RecordContext
from penstock.runtime.model.type_variables import K, V
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import StateStore, StoreBuilder

if TYPE_CHECKING:
    from penstock.runtime.operators.base import OperatorSupplier

Partitioner: TypeAlias = Callable[[str, K, V, int], int | Collection[int] | None]
"""`(topic, key, value, number of partitions) -> partition`, or several, or none (empty); None: by the key's murmur2 hash
(`StreamPartitioner`, KIP-837)."""

TopicNameExtractor: TypeAlias = Callable[[K, V], str] | Callable[[K, V, RecordContext], str]
"""`(key, value) -> topic`, or `(key, value, record context) -> topic`: a sink that chooses the topic per record."""


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A node that reads topics. `offset_reset` and a serde of None mean the configured default. With a `pattern`, `topics` are those that
    matched when the brokers were last polled."""

    name: str
    topics: tuple[str, ...]
    key_serde: Serde | None
    value_serde: Serde | None
    timestamp_extractor: object | None = None
    offset_reset: AutoOffsetReset | None = None
    pattern: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class ProcessorNode:
    """A node that processes records, and the stores it may use."""

    name: str
    supplier: OperatorSupplier
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkNode:
    """A node that writes to a topic, fixed or chosen per record."""

    name: str
    topic: str | TopicNameExtractor
    key_serde: Serde | None
    value_serde: Serde | None
    partitioner: Partitioner | None = None
    by_window_key: bool = False
    """Without a partitioner: send all windows of a key to the key's partition, as the DSL's sinks do."""


Node: TypeAlias = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the application creates, with Kafka Streams' name and settings.

    `partitions` is None if other topics determine it: for a repartition topic the largest of its inputs, for a changelog one per task of
    `subtopology`. For a repartition topic, `subtopology` reads it and `writers` write it.
    """

    name: str
    kind: str
    config: Mapping[str, str]
    partitions: int | None
    subtopology: int
    writers: tuple[int, ...] = ()


StoreFactory = Callable[[Serde | None, Serde | None], StoreBuilder[StateStore]]
"""Returns a store's builder, given the configured default serdes. Raises TopologyError if a serde is needed and missing."""


@dataclass(slots=True)
class Draft:
    """A mutable copy of a topology's tables, which the optimizations rewrite: nodes in order, their parents, stores, repartition topics
    with their configured number of partitions, sets of copartitioned sources, and source topics that serve as the changelog of a store."""

    nodes: dict[str, Node]
    parents: dict[str, tuple[str, ...]]
    stores: dict[str, StoreFactory]
    repartitions: dict[str, int | None]
    copartitioned: list[frozenset[str]]
    source_changelogs: dict[str, str]

    def children(self) -> dict[str, tuple[str, ...]]:
        """Return the names of each node's children, in the order of the nodes."""
        found: dict[str, tuple[str, ...]] = dict.fromkeys(self.nodes, ())
        for name in self.nodes:
            for parent in self.parents[name]:
                found[parent] += (name,)
        return found
