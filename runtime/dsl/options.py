"""The configuration objects of the DSL (Kafka Streams' `Consumed`, `Produced`, …): frozen, built with keywords, the
first field also by position.

Where such an object would carry a name alone, a plain `str` is accepted in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Generic, TypeAlias

from runtime.durations import Duration, to_ms
from runtime.errors import TopologyError
from runtime.offset_reset import AutoOffsetReset
from runtime.serdes.serde import Serde
from runtime.stores.suppliers import KeyValueSupplier, SessionSupplier, VersionedSupplier, WindowSupplier
from runtime.topology.nodes import Partitioner
from runtime.type_variables import VO, K, Subscripted, V

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_serdes(of: object, *serdes: object) -> None:
    """Raises TopologyError for what is no serde: a class, a name, a forgotten pair of parentheses."""
    for serde in serdes:
        if serde is not None and not isinstance(serde, Serde):
            raise TopologyError(f"{type(of).__name__}: {serde!r} is not a Serde; for example runtime.serdes.STRING")


def check_logging(of: object, logging: object) -> None:
    """Raises TopologyError for what is neither a switch nor the settings of a topic."""
    if not isinstance(logging, bool | Mapping):
        raise TopologyError(f"{type(of).__name__}: logging is True, False or a mapping of the changelog topic's settings, not {logging!r}")


@dataclass(frozen=True, slots=True)
class Named:
    """The name of a node."""

    name: str

    def __post_init__(self) -> None:
        name_of(self.name)


@dataclass(frozen=True, slots=True)
class Consumed(Subscripted, Generic[K, V]):
    """How a topic is read. `offset_reset_policy`: an `AutoOffsetReset`, or `earliest`, `latest`, `none`, `by_duration:PT1H`;
    None is `auto.offset.reset`. `timestamp_extractor` as in `runtime.timestamps`."""

    key: Serde[K] | None = None
    _: KW_ONLY
    value: Serde[V] | None = None
    timestamp_extractor: object | None = None
    offset_reset_policy: AutoOffsetReset | str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_serdes(self, self.key, self.value)


@dataclass(frozen=True, slots=True)
class Produced(Subscripted, Generic[K, V]):
    """How a topic is written. `partitioner(topic, key, value, partitions)` chooses the partition; None is the key's murmur2 hash."""

    key: Serde[K] | None = None
    _: KW_ONLY
    value: Serde[V] | None = None
    partitioner: Partitioner[K, V] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_serdes(self, self.key, self.value)


@dataclass(frozen=True, slots=True)
class Grouped(Subscripted, Generic[K, V]):
    """How records are grouped. The name is that of the repartition topic, if one is needed: `<application.id>-<name>-repartition`."""

    key: Serde[K] | None = None
    _: KW_ONLY
    value: Serde[V] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_serdes(self, self.key, self.value)


@dataclass(frozen=True, slots=True)
class Joined(Subscripted, Generic[K, V, VO]):
    """How a stream is joined with a table: serdes of the stream's key and value and of the table's value; the name of a
    repartition topic. With a `grace_period`, records wait for that long in stream time before they are joined with the row of their time,
    so that rows may be late; the table must be versioned, with a history of at least that length."""

    key: Serde[K] | None = None
    _: KW_ONLY
    value: Serde[V] | None = None
    other_value: Serde[VO] | None = None
    name: str | None = None
    grace_period: Duration | None = None

    def __post_init__(self) -> None:
        check_serdes(self, self.key, self.value, self.other_value)


@dataclass(frozen=True, slots=True)
class Repartitioned(Subscripted, Generic[K, V]):
    """How a stream goes through a topic of its own. `partitions` None: as many as flow into it."""

    name: str | None = None
    _: KW_ONLY
    key: Serde[K] | None = None
    value: Serde[V] | None = None
    partitions: int | None = None
    partitioner: Partitioner[K, V] | None = None

    def __post_init__(self) -> None:
        check_serdes(self, self.key, self.value)
        if self.partitions is not None and (type(self.partitions) is not int or self.partitions < 1):
            raise TopologyError(f"Repartitioned: partitions is a whole number of at least 1, not {self.partitions!r}")


@dataclass(frozen=True, slots=True)
class Materialized(Subscripted, Generic[K, V]):
    """How a table is kept. `store` is the store's name, or a supplier made by `Stores`; without it the name is generated.

    `caching`: updates of a key are folded until the next commit. `logging`: True, False, or settings of the changelog topic. `retention`
    (of windows and sessions) is at least as long as they can change, which is the default. `store_type` is `rocksDB` or `in_memory`.
    """

    store: str | KeyValueSupplier | WindowSupplier | SessionSupplier | VersionedSupplier | None = None
    _: KW_ONLY
    key: Serde[K] | None = None
    value: Serde[V] | None = None
    caching: bool = True
    logging: bool | Mapping[str, str] = True
    retention: Duration | None = None
    store_type: str = "rocksDB"

    def __post_init__(self) -> None:
        check_serdes(self, self.key, self.value)
        name_of(self.name)
        if self.store_type not in ("rocksDB", "in_memory"):
            raise TopologyError(f"Materialized: store_type is rocksDB or in_memory, not {self.store_type!r}")
        if type(self.caching) is not bool:
            raise TopologyError(f"Materialized: caching is True or False, not {self.caching!r}")
        check_logging(self, self.logging)
        if self.retention is not None:
            to_ms(self.retention, "Materialized: the retention")

    @property
    def versioned(self) -> bool:
        """Whether the rows are kept with their history."""
        return isinstance(self.store, VersionedSupplier)

    @property
    def history_ms(self) -> int | None:
        """For how long an older row can be read, if the rows are kept with their history."""
        return self.store.history_retention_ms if isinstance(self.store, VersionedSupplier) else None

    @property
    def name(self) -> str | None:
        """The store's name, if it was given one."""
        if isinstance(self.store, KeyValueSupplier | WindowSupplier | SessionSupplier | VersionedSupplier):
            return self.store.name
        return self.store


NamedOrStr: TypeAlias = Named | str | None
MaterializedOrStr: TypeAlias = Materialized[K, V] | str | None
ConsumedOrStr: TypeAlias = Consumed[K, V] | str | None
ProducedOrStr: TypeAlias = Produced[K, V] | str | None
GroupedOrStr: TypeAlias = Grouped[K, V] | str | None
JoinedOrStr: TypeAlias = Joined[K, V, VO] | str | None


def name_of(named: Named | str | None) -> str | None:
    """The name given, if any. Raises TopologyError for anything that is no name: names become parts of topics' names."""
    name = named.name if isinstance(named, Named) else named
    if name is None:
        return None
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise TopologyError(f"a name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-'; this is none: {named!r}")
    return name


def named_and_stores(named: NamedOrStr, arguments: tuple[object, ...]) -> tuple[NamedOrStr, tuple[str, ...]]:
    """The name of a processor and those of its stores: a `Named` may stand in front of them, as in Kafka Streams. Raises TopologyError for
    what is no store's name."""
    if named is None and arguments and isinstance(arguments[0], Named):
        named, arguments = arguments[0], arguments[1:]
    for store in arguments:
        if not isinstance(store, str):
            raise TopologyError(f"processor {name_of(named) or 'without a name'}: stores are connected by their names, not by {store!r}")
    return named, tuple(str(store) for store in arguments)


def name_instead_of(kind: type, given: object) -> str | None:
    """The name that was given in the place of an option of this kind, if any. Raises TopologyError for what is neither, as an option of
    another kind, a class that was not called, or a serde alone."""
    if given is None or isinstance(given, str | Named):
        return name_of(given)
    way_out = ""
    if given is kind:
        way_out = f": call it, {kind.__name__}(...)"
    elif isinstance(given, Serde):
        way_out = f": {kind.__name__}({given!r}, value=...)"
    raise TopologyError(f"expected {kind.__name__}(...), or a name alone, not {given!r}{way_out}")


def consumed_of(consumed: ConsumedOrStr[K, V]) -> Consumed[K, V]:
    """A name alone, or nothing, as `Consumed`."""
    return consumed if isinstance(consumed, Consumed) else Consumed(name=name_instead_of(Consumed, consumed))


def produced_of(produced: ProducedOrStr[K, V]) -> Produced[K, V]:
    """A name alone, or nothing, as `Produced`."""
    return produced if isinstance(produced, Produced) else Produced(name=name_instead_of(Produced, produced))


def materialized_of(materialized: MaterializedOrStr[K, V]) -> Materialized[K, V]:
    """A name alone, or nothing, as `Materialized`."""
    return materialized if isinstance(materialized, Materialized) else Materialized(name_instead_of(Materialized, materialized))


def grouped_of(grouped: GroupedOrStr[K, V]) -> Grouped[K, V]:
    """A name alone, or nothing, as `Grouped`."""
    return grouped if isinstance(grouped, Grouped) else Grouped(name=name_instead_of(Grouped, grouped))


def joined_of(joined: JoinedOrStr[K, V, VO]) -> Joined[K, V, VO]:
    """A name alone, or nothing, as `Joined`."""
    return joined if isinstance(joined, Joined) else Joined(name=name_instead_of(Joined, joined))


def repartitioned_of(repartitioned: Repartitioned[K, V] | str | None) -> Repartitioned[K, V]:
    """A name alone, or nothing, as `Repartitioned`."""
    return repartitioned if isinstance(repartitioned, Repartitioned) else Repartitioned(name_instead_of(Repartitioned, repartitioned))
