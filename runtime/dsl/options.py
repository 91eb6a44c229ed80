"""The configuration objects of the DSL (Kafka Streams' `Consumed`, `Produced`, …): frozen, built with keywords, the
first field also by position.

Where such an object would carry a name alone, a plain `str` is accepted in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

from runtime.durations import Duration
from runtime.errors import TopologyError
from runtime.serdes.serde import Serde
from runtime.stores.suppliers import KeyValueSupplier, WindowSupplier
from runtime.topology.nodes import Partitioner


@dataclass(frozen=True, slots=True)
class Named:
    """The name of a node."""

    name: str


@dataclass(frozen=True, slots=True)
class Consumed:
    """How a topic is read. `offset_reset_policy` is `earliest`, `latest` or `none`; None is `auto.offset.reset`.
    `timestamp_extractor` as in `runtime.timestamps`."""

    key: Serde | None = None
    _: KW_ONLY
    value: Serde | None = None
    timestamp_extractor: object | None = None
    offset_reset_policy: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Produced:
    """How a topic is written. `partitioner(topic, key, value, partitions)` chooses the partition; None is the key's murmur2 hash."""

    key: Serde | None = None
    _: KW_ONLY
    value: Serde | None = None
    partitioner: Partitioner | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Grouped:
    """How records are grouped. The name is that of the repartition topic, if one is needed: `<application.id>-<name>-repartition`."""

    key: Serde | None = None
    _: KW_ONLY
    value: Serde | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """How a stream is joined with a table: serdes of the stream's key and value and of the table's value; the name of a
    repartition topic."""

    key: Serde | None = None
    _: KW_ONLY
    value: Serde | None = None
    other_value: Serde | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """How a stream goes through a topic of its own. `partitions` None: as many as flow into it."""

    name: str | None = None
    _: KW_ONLY
    key: Serde | None = None
    value: Serde | None = None
    partitions: int | None = None
    partitioner: Partitioner | None = None

    def __post_init__(self) -> None:
        if self.partitions is not None and self.partitions < 1:
            raise TopologyError(f"Repartitioned: partitions must be at least 1, not {self.partitions}")


@dataclass(frozen=True, slots=True)
class Materialized:
    """How a table is kept. `store` is the store's name, or a supplier made by `Stores`; without it the name is generated.

    `caching`: updates of a key are folded until the next commit. `logging`: True, False, or settings of the changelog topic. `retention`
    (of windows only) is at least window size plus grace, which is the default. `store_type` is `rocksDB` or `in_memory`.
    """

    store: str | KeyValueSupplier | WindowSupplier | None = None
    _: KW_ONLY
    key: Serde | None = None
    value: Serde | None = None
    caching: bool = True
    logging: bool | Mapping[str, str] = True
    retention: Duration | None = None
    store_type: str = "rocksDB"

    def __post_init__(self) -> None:
        if self.store_type not in ("rocksDB", "in_memory"):
            raise TopologyError(f"Materialized: store_type is rocksDB or in_memory, not {self.store_type!r}")

    @property
    def name(self) -> str | None:
        """The store's name, if it was given one."""
        return self.store if self.store is None or isinstance(self.store, str) else self.store.name


NamedOrStr: TypeAlias = Named | str | None
MaterializedOrStr: TypeAlias = Materialized | str | None
GroupedOrStr: TypeAlias = Grouped | str | None
JoinedOrStr: TypeAlias = Joined | str | None


def name_of(named: Named | str | None) -> str | None:
    """The name given, if any. Raises TopologyError for anything that is no name."""
    name = named.name if isinstance(named, Named) else named
    if name is not None and (not isinstance(name, str) or not name):
        raise TopologyError(f"a name is a str that is not empty, or Named(…), not {named!r}")
    return name


def materialized_of(materialized: MaterializedOrStr) -> Materialized:
    """A name alone, or nothing, as `Materialized`."""
    return materialized if isinstance(materialized, Materialized) else Materialized(materialized)


def grouped_of(grouped: GroupedOrStr) -> Grouped:
    """A name alone, or nothing, as `Grouped`."""
    return grouped if isinstance(grouped, Grouped) else Grouped(name=name_of(grouped))


def joined_of(joined: JoinedOrStr) -> Joined:
    """A name alone, or nothing, as `Joined`."""
    return joined if isinstance(joined, Joined) else Joined(name=name_of(joined))
