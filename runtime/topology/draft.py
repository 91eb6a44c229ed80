"""A topology's parts while they are rewritten (`optimization.py`): plain tables that may be changed, copies of the topology's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runtime.serdes.serde import Serde
from runtime.stores.base import StateStore, StoreBuilder
from runtime.topology.nodes import Node

StoreFactory = Callable[[Serde | None, Serde | None], StoreBuilder[StateStore]]
"""Makes a store's builder, given the configured default serdes. Raises TopologyError if one is needed and missing."""


@dataclass(slots=True)
class Draft:
    """Nodes in order, the names of those above each, stores, repartition topics with the partitions they were told to have, sets of
    sources whose topics have the same number of partitions, and by store the source topic that serves as its changelog."""

    nodes: dict[str, Node]
    parents: dict[str, tuple[str, ...]]
    stores: dict[str, StoreFactory]
    repartitions: dict[str, int | None]
    copartitioned: list[frozenset[str]]
    source_changelogs: dict[str, str]

    def children(self) -> dict[str, tuple[str, ...]]:
        """The names of the nodes below each, in the order of the nodes."""
        found: dict[str, tuple[str, ...]] = dict.fromkeys(self.nodes, ())
        for name in self.nodes:
            for parent in self.parents[name]:
                found[parent] += (name,)
        return found
