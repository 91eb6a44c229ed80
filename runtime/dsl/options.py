"""The configuration objects of the DSL (Kafka Streams' `Consumed`, `Produced`, …). They are frozen and built with keywords; the first
field may be given by position.

A plain `str` is accepted instead of an object that would contain a name only, and the keywords `key` and `value` instead of one that would
contain serdes only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from penstock.runtime.model.clock import Duration, to_ms
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.model.type_variables import VO, K, Subscripted, V
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.suppliers import KeyValueSupplier, SessionSupplier, VersionedSupplier, WindowSupplier, checked_ttl_ms
from penstock.runtime.topology.nodes import Partitioner

KeyPartitioner: TypeAlias = Callable[[str, object, object, int], int | None]
"""`(topic, key, None, number of partitions) -> partition`; None is the default partitioner's choice."""


Option = TypeVar("Option", bound="Consumed | Produced | Grouped | Repartitioned | Materialized")

KEY_AND_VALUE = ("key", "value")
"""The parameters of most callbacks, for the error about one that takes others."""
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def at_least_one(number: int, node: str, what: str) -> int:
    """Return a positive whole number. Raises TopologyError for anything else."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise TopologyError(f"node {node}: {what} is a whole number of at least 1, not {number!r}")
    return number


def check_serdes(of: object, *serdes: object) -> None:
    """Raise TopologyError for an object that is not a serde, such as a class, a name, or a function that was not called."""
    for serde in serdes:
        if serde is not None and not isinstance(serde, Serde):
            raise TopologyError(f"{type(of).__name__}: {serde!r} is not a Serde; for example penstock.serdes.STRING")


def check_logging(of: object, logging: object) -> None:
    """Raise TopologyError for an object that is neither a bool nor the settings of a topic."""
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
    """Options for reading a topic. `offset_reset_policy`: an `AutoOffsetReset`, or `earliest`, `latest`, `none`, `by_duration:PT1H`;
    None is `auto.offset.reset`. `timestamp_extractor` as in `penstock.runtime.model.timestamps`."""

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
    """Options for writing to a topic. `partitioner(topic, key, value, partitions)` returns the partition; None uses the key's murmur2
    hash."""

    key: Serde[K] | None = None
    _: KW_ONLY
    value: Serde[V] | None = None
    partitioner: Partitioner[K, V] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_serdes(self, self.key, self.value)


@dataclass(frozen=True, slots=True)
class Grouped(Subscripted, Generic[K, V]):
    """Options for grouping records. `name` is the name of the repartition topic, if one is needed:
    `<application.id>-<name>-repartition`."""

    key: Serde[K] | None = None
    _: KW_ONLY
    value: Serde[V] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_serdes(self, self.key, self.value)


@dataclass(frozen=True, slots=True)
class Joined(Subscripted, Generic[K, V, VO]):
    """Options for joining a stream with a table: the serdes of the stream's key and value and of the table's value, and the name of the
    repartition topic. With a `grace_period`, a record waits that long in stream time and is then joined with the row valid at its
    timestamp, so that rows may arrive late. The table must be versioned, with a history of at least that length."""

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
    """Options for repartitioning a stream. `partitions` None: as many as its input has."""

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
    """Options for the store of a table. `store` is the store's name, or a supplier made by `Stores`; without it, the name is generated.

    `caching`: whether only the last update of a key between two commits is forwarded. `logging`: True, False, or settings of the changelog
    topic. `retention` of windows and sessions must be at least the time in which they can change, which is the default. `ttl` of a table
    without windows: a row expires when stream time is that long past the row's timestamp. `store_type` is `rocksDB` or `in_memory`.
    """

    store: str | KeyValueSupplier | WindowSupplier | SessionSupplier | VersionedSupplier | None = None
    _: KW_ONLY
    key: Serde[K] | None = None
    value: Serde[V] | None = None
    caching: bool = True
    logging: bool | Mapping[str, str] = True
    retention: Duration | None = None
    ttl: Duration | None = None
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
        if (ttl_ms := checked_ttl_ms(self.ttl)) is not None:
            object.__setattr__(self, "ttl", timedelta(milliseconds=ttl_ms))  # so that copies do not warn about a bare number again
            if isinstance(self.store, WindowSupplier | SessionSupplier):
                raise TopologyError("Materialized: windows and sessions have a retention instead of a ttl")
        if self.ttl is not None and (self.versioned or (isinstance(self.store, KeyValueSupplier) and self.store.max_entries is not None)):
            raise TopologyError("Materialized: versioned stores and lru_map have no ttl: they decide themselves what they keep")

    @property
    def versioned(self) -> bool:
        """Whether older versions of a row are stored too."""
        return isinstance(self.store, VersionedSupplier)

    @property
    def expires(self) -> bool:
        """Whether rows expire."""
        return self.ttl is not None or (isinstance(self.store, KeyValueSupplier) and self.store.ttl_ms is not None)

    @property
    def history_ms(self) -> int | None:
        """For how long older versions of a row can be read, in ms; None if they are not stored."""
        return self.store.history_retention_ms if isinstance(self.store, VersionedSupplier) else None

    @property
    def name(self) -> str | None:
        """Name of the store, if the user gave one."""
        if isinstance(self.store, KeyValueSupplier | WindowSupplier | SessionSupplier | VersionedSupplier):
            return self.store.name
        return self.store


@dataclass(frozen=True, slots=True)
class StreamJoined(Subscripted, Generic[K, V, VO]):
    """Options for joining two streams: the serdes of the key, of the left value and of the right value.

    `name` is the base name of nodes and repartition topics (`<name>-left`, `<name>-right`), `store_name` that of stores and changelogs; by
    default both are generated. `this_store` and `other_store` are window stores of `Stores` that retain duplicates, with the join's window
    size, and size plus grace as retention. `logging`: True, False, or settings of the changelog topics.
    """

    key: Serde[K] | None = None
    _: KW_ONLY
    value: Serde[V] | None = None
    other_value: Serde[VO] | None = None
    name: str | None = None
    store_name: str | None = None
    this_store: WindowSupplier | None = None
    other_store: WindowSupplier | None = None
    logging: bool | Mapping[str, str] = True

    def __post_init__(self) -> None:
        check_serdes(self, self.key, self.value, self.other_value)
        name_of(self.name)
        name_of(self.store_name)
        check_logging(self, self.logging)
        for store in (self.this_store, self.other_store):
            if store is not None and not isinstance(store, WindowSupplier):
                raise TopologyError(
                    f"StreamJoined: a join keeps its streams in window stores (Stores.persistent_window_store), not in {store!r}"
                )
        if self.this_store is not None and self.other_store is not None and self.this_store.name == self.other_store.name:
            raise TopologyError(f"StreamJoined: both stores are called {self.this_store.name}; give them different names")


@dataclass(frozen=True, slots=True)
class TableJoined:
    """Options for joining two tables by a foreign key. `partitioner` is that of the left table's topic and `other_partitioner` that of the
    right table's, if they are not the default; both get None as value. `name` is the base name of nodes, internal topics and store."""

    partitioner: KeyPartitioner | None = None
    other_partitioner: KeyPartitioner | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        name_of(self.name)


@dataclass(frozen=True, slots=True)
class Printed(Subscripted, Generic[K, V]):
    """Options for printing records, a line `[label]: text` for each. Made by `to_sys_out` and `to_file`.

    `label` is by default the name of the parent node. `key_value_mapper(key, value)` returns the text, by default `key, value`. `name` is
    the name of the node.
    """

    path: Path | None = None
    _: KW_ONLY
    label: str | None = None
    key_value_mapper: Callable[[K, V], str] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        name_of(self.name)

    @classmethod
    def to_sys_out(
        cls, *, label: str | None = None, key_value_mapper: Callable[[K, V], str] | None = None, name: str | None = None
    ) -> Printed[K, V]:
        """Print to standard output."""
        return Printed(None, label=label, key_value_mapper=key_value_mapper, name=name)

    @classmethod
    def to_file(
        cls,
        file_path: str | Path,
        *,
        label: str | None = None,
        key_value_mapper: Callable[[K, V], str] | None = None,
        name: str | None = None,
    ) -> Printed[K, V]:
        """Print to a file, which is emptied now and flushed at each commit. Raises TopologyError if it cannot be written."""
        path = Path(file_path)
        try:
            path.write_bytes(b"")
        except OSError as error:
            raise TopologyError(f"Printed: the stream cannot be written to {str(file_path)!r}: {error}") from error
        return Printed(path, label=label, key_value_mapper=key_value_mapper, name=name)

    def with_label(self, label: str) -> Printed[K, V]:
        """Return a copy with another label."""
        return replace(self, label=label)

    def with_key_value_mapper(self, mapper: Callable[[K, V], str]) -> Printed[K, V]:
        """Return a copy with another text."""
        return replace(self, key_value_mapper=mapper)

    def with_name(self, name: str) -> Printed[K, V]:
        """Return a copy with a name for the node."""
        return replace(self, name=name)


NamedOrStr: TypeAlias = Named | str | None
MaterializedOrStr: TypeAlias = Materialized[K, V] | str | None
StoreOrNamed: TypeAlias = Materialized[K, V] | Named | str | None
"""The first argument about an aggregate's names: see `node_and_store`."""
ConsumedOrStr: TypeAlias = Consumed[K, V] | str | None
ProducedOrStr: TypeAlias = Produced[K, V] | str | None
GroupedOrStr: TypeAlias = Grouped[K, V] | str | None
JoinedOrStr: TypeAlias = Joined[K, V, VO] | str | None
StreamJoinedOrStr: TypeAlias = StreamJoined[K, V, VO] | str | None
TableJoinedOrStr: TypeAlias = TableJoined | str | None


def name_of(named: Named | str | None) -> str | None:
    """Return the name, if any. Raises TopologyError for an invalid one: names become part of topic names."""
    name = named.name if isinstance(named, Named) else named
    if name is None:
        return None
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise TopologyError(f"a name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-'; this is none: {named!r}")
    return name


_OF_SERDES = (Consumed, Produced, Grouped, Repartitioned)
"""Options whose serdes may be given as keywords instead."""


def named_and_stores(named: NamedOrStr, arguments: tuple[object, ...]) -> tuple[NamedOrStr, tuple[str, ...]]:
    """Sort the arguments of a processor, whose store names may follow a `Named`, as in Kafka Streams. Raises TopologyError for an argument
    that is not a store's name."""
    if named is None and arguments and isinstance(arguments[0], Named):
        named, arguments = arguments[0], arguments[1:]
    for store in arguments:
        if not isinstance(store, str):
            raise TopologyError(f"processor {name_of(named) or 'without a name'}: stores are connected by their names, not by {store!r}")
    return named, tuple(str(store) for store in arguments)


def name_instead_of(kind: type, argument: object) -> str | None:
    """Return the name that was given instead of an option of this kind, if any. Raises TopologyError for an option of another kind, a class
    that was not called, or a serde alone."""
    if argument is None or isinstance(argument, str | Named):
        return name_of(argument)
    remedy = ""
    if argument is kind:
        remedy = f": call it, {kind.__name__}(...)"
    elif isinstance(argument, Serde):
        remedy = f": key={argument!r}, value=..." if kind in _OF_SERDES else f": {kind.__name__}({argument!r}, value=...)"
    raise TopologyError(f"expected {kind.__name__}(...), or a name alone, not {argument!r}{remedy}")


def _with_its_own(option: Option, key: Serde | None, value: Serde | None) -> Option:
    """Return the option. Raises TopologyError if serdes are given beside it."""
    if key is not None or value is not None:
        kind = type(option).__name__
        raise TopologyError(f"serdes are given twice, beside {kind}(...) too: give them in {kind}(...), or as key= and value= without it")
    return option


def consumed_of(consumed: ConsumedOrStr[K, V], key: Serde[K] | None = None, value: Serde[V] | None = None) -> Consumed[K, V]:
    """Convert a name, or None, to `Consumed` with these serdes. Raises TopologyError for serdes beside a `Consumed`."""
    if isinstance(consumed, Consumed):
        return _with_its_own(consumed, key, value)
    return Consumed(key, value=value, name=name_instead_of(Consumed, consumed))


def produced_of(produced: ProducedOrStr[K, V], key: Serde[K] | None = None, value: Serde[V] | None = None) -> Produced[K, V]:
    """Convert a name, or None, to `Produced`, like `consumed_of`."""
    if isinstance(produced, Produced):
        return _with_its_own(produced, key, value)
    return Produced(key, value=value, name=name_instead_of(Produced, produced))


def materialized_of(materialized: MaterializedOrStr[K, V], value: Serde[V] | None = None) -> Materialized[K, V]:
    """Convert a name, or None, to `Materialized`, like `consumed_of`."""
    if isinstance(materialized, Materialized):
        return _with_its_own(materialized, None, value)
    return Materialized(name_instead_of(Materialized, materialized), value=value)


def node_and_store(
    store: StoreOrNamed[K, V], materialized: MaterializedOrStr[K, V], named: NamedOrStr, value: Serde[V] | None = None
) -> tuple[str | None, Materialized[K, V]]:
    """Return the name of an aggregate's node, if it has one, and how its table is stored.

    A name alone is the store's, which every aggregate has. Before a second argument it is the node's, as in Kafka Streams'
    `count(Named, Materialized)`; a `Named` always is. Raises TopologyError if either is given twice.
    """
    if isinstance(store, Named) or (isinstance(store, str) and materialized is not None):
        if named is not None:
            raise TopologyError(f"the node is named twice: {name_of(store)} and {name_of(named)}")
        store, named = None, store
    if store is not None and materialized is not None:
        raise TopologyError(f"the store is given twice: {store!r} and {materialized!r}")
    return name_of(named), materialized_of(materialized if store is None else store, value)


def grouped_of(grouped: GroupedOrStr[K, V], key: Serde[K] | None = None, value: Serde[V] | None = None) -> Grouped[K, V]:
    """Convert a name, or None, to `Grouped`, like `consumed_of`."""
    if isinstance(grouped, Grouped):
        return _with_its_own(grouped, key, value)
    return Grouped(key, value=value, name=name_instead_of(Grouped, grouped))


def joined_of(joined: JoinedOrStr[K, V, VO]) -> Joined[K, V, VO]:
    """Convert a name, or None, to `Joined`."""
    return joined if isinstance(joined, Joined) else Joined(name=name_instead_of(Joined, joined))


def repartitioned_of(
    repartitioned: Repartitioned[K, V] | str | None, key: Serde[K] | None = None, value: Serde[V] | None = None
) -> Repartitioned[K, V]:
    """Convert a name, or None, to `Repartitioned`, like `consumed_of`."""
    if isinstance(repartitioned, Repartitioned):
        return _with_its_own(repartitioned, key, value)
    return Repartitioned(name_instead_of(Repartitioned, repartitioned), key=key, value=value)


def stream_joined_of(joined: StreamJoinedOrStr[K, V, VO]) -> StreamJoined[K, V, VO]:
    """Convert a name of stores (as in Kafka Streams' `StreamJoined.as`), or None, to `StreamJoined`."""
    return joined if isinstance(joined, StreamJoined) else StreamJoined(store_name=name_instead_of(StreamJoined, joined))


def table_joined_of(joined: TableJoinedOrStr) -> TableJoined:
    """Convert a name, or None, to `TableJoined`."""
    return joined if isinstance(joined, TableJoined) else TableJoined(name=name_instead_of(TableJoined, joined))
