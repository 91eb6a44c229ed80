"""What the streams and tables of one builder share: the topology that they write, and the counter behind generated names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from runtime.dsl.options import Materialized, Named, name_of
from runtime.durations import to_ms
from runtime.errors import TopologyError
from runtime.operators.base import OperatorSupplier
from runtime.operators.stateless import Filter
from runtime.serdes.serde import Serde
from runtime.stores.base import EngineStore, StoreBuilder
from runtime.stores.suppliers import KeyValueSupplier, Stores, WindowSupplier
from runtime.topology.nodes import Partitioner
from runtime.topology.topology import StoreFactory, Topology, required_serde

_GENERATED = re.compile(r"KSTREAM.*-[0-9]{10}")


class Graph:
    """Writes nodes into a topology under Kafka Streams' names. Numbers are drawn in the same order as there, so that generated names,
    and with them topics and state directories, are equal."""

    def __init__(self) -> None:
        self.topology = Topology()
        self._next = 0

    def _number(self) -> str:
        number, self._next = self._next, self._next + 1
        return f"{number:010d}"

    def name(self, prefix: str, named: Named | str | None = None, suffix: str = "") -> str:
        """The given name with the suffix, or a generated one. A given name draws no number."""
        given = name_of(named)
        return f"{prefix}{self._number()}" if given is None else f"{given}{suffix}"

    def store_name(self, prefix: str, materialized: Materialized) -> str:
        """The store's given name, or a generated one."""
        return materialized.name or f"{prefix}STATE-STORE-{self._number()}"

    def operator(self, name: str, supplier: OperatorSupplier, parents: Iterable[str], stores: Iterable[str] = ()) -> str:
        """Adds a node; returns its name."""
        self.topology.add_operator(name, supplier, parents, stores)
        return name

    def repartition(self, parent: str, through: Repartition) -> str:
        """Sends a node's records through a repartition topic; returns the name of the source that reads it."""
        topic = through.prefix if through.prefix.endswith("-repartition") else f"{through.prefix}-repartition"
        names = tuple(self.name(prefix) for prefix in ("KSTREAM-SINK-", "KSTREAM-FILTER-", "KSTREAM-SOURCE-"))
        if not _GENERATED.fullmatch(through.prefix):
            names = (f"{topic}-sink", f"{topic}-filter", f"{topic}-source")
        sink, keyless, source = names
        if through.drop_keyless:
            parent = self.operator(keyless, Filter(_has_key), (parent,))
        self.pipe(parent, sink, source, topic, through)
        return source

    def pipe(self, parent: str, sink: str, source: str, topic: str, through: Repartition) -> None:
        """A sink, an internal topic, and a source."""
        self.topology.add_repartition_topic(topic, through.partitions)
        self.topology.add_sink(sink, topic, parent, key_serde=through.key, value_serde=through.value, partitioner=through.partitioner)
        self.topology.add_source(source, topic, key_serde=through.key, value_serde=through.value)


@dataclass(frozen=True, slots=True)
class Repartition:
    """A way through a repartition topic. `drop_keyless`: records without a key, which nothing behind it could use, stay out."""

    prefix: str
    key: Serde | None
    value: Serde | None
    partitions: int | None = None
    partitioner: Partitioner | None = None
    drop_keyless: bool = True


def _has_key(key: object, _value: object) -> bool:
    return key is not None


def key_value_store(name: str, materialized: Materialized, key: Serde | None, value: Serde | None) -> StoreFactory:
    """The timestamped store of a table; serdes that `materialized` does not give are the inherited or the default ones."""
    supplier = materialized.store
    if isinstance(supplier, WindowSupplier):
        raise TopologyError(f"store {name}: a table without windows needs a key-value store, not a window store")
    if not isinstance(supplier, KeyValueSupplier):
        make = Stores.in_memory_key_value_store if materialized.store_type == "in_memory" else Stores.persistent_key_value_store
        supplier = make(name)
    chosen = supplier
    return _factory(
        name, materialized, key, value, lambda k, v: _configured(Stores.timestamped_key_value_store_builder(chosen, k, v), materialized)
    )


def window_store(
    name: str, materialized: Materialized, key: Serde | None, value: Serde | None, size_ms: int, grace_ms: int
) -> StoreFactory:
    """The timestamped store of a windowed table; windows are kept for size plus grace, or longer. `key` is the serde of the inner key."""
    supplier = materialized.store
    if isinstance(supplier, KeyValueSupplier):
        raise TopologyError(f"store {name}: a windowed table needs a window store, not a key-value store")
    if not isinstance(supplier, WindowSupplier):
        least = size_ms + grace_ms
        retention = least if materialized.retention is None else to_ms(materialized.retention, "the retention")
        make = Stores.in_memory_window_store if materialized.store_type == "in_memory" else Stores.persistent_window_store
        supplier = make(name, max(retention, size_ms), size_ms)
    if supplier.retention_ms < size_ms + grace_ms:
        raise TopologyError(
            f"store {name}: its retention of {supplier.retention_ms} ms is shorter than window size plus grace, {size_ms + grace_ms} ms"
        )
    chosen = supplier
    return _factory(
        name, materialized, key, value, lambda k, v: _configured(Stores.timestamped_window_store_builder(chosen, k, v), materialized)
    )


def _factory(
    name: str,
    materialized: Materialized,
    key: Serde | None,
    value: Serde | None,
    build: Callable[[Serde, Serde], StoreBuilder[EngineStore]],
) -> StoreFactory:
    key, value = materialized.key or key, materialized.value or value
    return lambda default_key, default_value: build(
        required_serde(key or default_key, "key", f"store {name}"), required_serde(value or default_value, "value", f"store {name}")
    )


def _configured(builder: StoreBuilder[EngineStore], materialized: Materialized) -> StoreBuilder[EngineStore]:
    builder = builder.with_caching_enabled() if materialized.caching else builder.with_caching_disabled()
    if materialized.logging is False:
        return builder.with_logging_disabled()
    return builder.with_logging_enabled({} if materialized.logging is True else materialized.logging)
