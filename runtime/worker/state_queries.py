"""Interactive queries, version 2 (KIP-796): a query is an object, and each partition of a store answers for itself, with the position of
its input up to which the answer goes.

The reads are those of version 1 (`queries.py`): a query names a read of a store's view and its arguments. The names are those of Kafka
Streams' `org.apache.kafka.streams.query`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, TypeVar

from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.record import ValueAndTimestamp, VersionedRecord, Windowed
from penstock.runtime.stores.base import StoreLayout
from penstock.runtime.worker.queries import IsolationLevel

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_LAST = 2**63 - 1

# -- positions -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Position:
    """Offsets of the last records of input partitions, by topic and partition (Kafka Streams' `Position`). Immutable."""

    _offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def empty_position(cls) -> Position:
        """Return the position before any record."""
        return cls()

    @classmethod
    def from_map(cls, offsets: Mapping[str, Mapping[int, int]]) -> Position:
        """Return a position from offsets by topic and partition."""
        return cls({topic: dict(partitions) for topic, partitions in offsets.items()})

    @classmethod
    def before(cls, next_offsets: Mapping[TopicPartition, NextOffset]) -> Position:
        """Return the position whose next offsets are these."""
        offsets: dict[str, dict[int, int]] = {}
        for partition, following in next_offsets.items():
            if following > 0:
                offsets.setdefault(partition.topic, {})[partition.partition] = following - 1
        return cls(offsets)

    def with_component(self, topic: str, partition: int, offset: int) -> Position:
        """Return this position with the offset of a record that was produced or read."""
        return Position({**self._offsets, topic: {**self._offsets.get(topic, {}), partition: offset}})

    def merge(self, other: Position) -> Position:
        """Return the larger offset of each partition of both."""
        merged = {topic: dict(partitions) for topic, partitions in self._offsets.items()}
        for topic, partitions in other._offsets.items():
            known = merged.setdefault(topic, {})
            for partition, offset in partitions.items():
                known[partition] = max(offset, known.get(partition, offset))
        return Position(merged)

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._offsets)

    def partition_positions(self, topic: str) -> Mapping[int, int]:
        """Return the offsets of a topic by partition."""
        return dict(self._offsets.get(topic, {}))

    @property
    def is_empty(self) -> bool:
        return not self._offsets

    def __str__(self) -> str:
        return str({topic: dict(partitions) for topic, partitions in self._offsets.items()})


@dataclass(frozen=True, slots=True)
class PositionBound:
    """The least position of an answer (Kafka Streams' `PositionBound`): it must reflect every record up to there."""

    position: Position = field(default_factory=Position)

    @classmethod
    def unbounded(cls) -> PositionBound:
        """Return the bound that every position satisfies."""
        return cls()

    @classmethod
    def at(cls, position: Position) -> PositionBound:
        """Return the bound that this position and later ones satisfy."""
        return cls(position)

    @property
    def is_unbounded(self) -> bool:
        return self.position.is_empty

    def allows(self, position: Position, partition: int | None) -> bool:
        """Return True if a position satisfies the bound in this partition of each topic; in all partitions if None."""
        for topic in self.position.topics:
            reached = position.partition_positions(topic)
            for number, offset in self.position.partition_positions(topic).items():
                if (partition is None or number == partition) and reached.get(number, -1) < offset:
                    return False
        return True


# -- queries -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a store's view: a method and its arguments. `timestamped`: values as ValueAndTimestamp."""

    method: str
    arguments: tuple[object, ...]
    timestamped: bool = False


class Query(ABC, Generic[R_co]):
    """A query with a result of type `R` (KIP-796)."""

    __slots__ = ()

    @abstractmethod
    def read(self, layout: StoreLayout) -> Read | None:
        """Return the read that answers the query in a store of this layout; None if such a store cannot answer."""


class ResultOrder(Enum):
    """Order of several results (KIP-985)."""

    ANY = "ANY"
    ASCENDING = "ASCENDING"
    DESCENDING = "DESCENDING"


@dataclass(frozen=True, slots=True)
class KeyQuery(Query[object]):
    """The value of a key in a key-value store, None if there is none."""

    key: object

    @classmethod
    def with_key(cls, key: object) -> KeyQuery:
        return cls(key)

    def read(self, layout: StoreLayout) -> Read | None:
        return Read("get", (self.key,)) if layout.kind == "key_value" else None


@dataclass(frozen=True, slots=True)
class TimestampedKeyQuery(Query[ValueAndTimestamp]):
    """The value of a key in a timestamped key-value store with its timestamp (KIP-992), None if there is none."""

    key: object

    @classmethod
    def with_key(cls, key: object) -> TimestampedKeyQuery:
        return cls(key)

    def read(self, layout: StoreLayout) -> Read | None:
        return Read("get", (self.key,), timestamped=True) if layout.kind == "key_value" and layout.timestamped else None


Q = TypeVar("Q", bound="_Range")


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of keys, both ends inclusive, None for no bound."""

    lower_bound: object = None
    upper_bound: object = None
    result_order: ResultOrder = ResultOrder.ANY

    @classmethod
    def with_range(cls: type[Q], lower_bound: object | None, upper_bound: object | None) -> Q:
        """Query the keys from one to another, both inclusive; None for no bound."""
        return cls(lower_bound, upper_bound)

    @classmethod
    def with_lower_bound(cls: type[Q], lower_bound: object) -> Q:
        """Query the keys from this one on."""
        return cls(lower_bound)

    @classmethod
    def with_upper_bound(cls: type[Q], upper_bound: object) -> Q:
        """Query the keys up to this one."""
        return cls(None, upper_bound)

    @classmethod
    def with_no_bounds(cls: type[Q]) -> Q:
        """Query all keys."""
        return cls()

    def with_ascending_keys(self: Q) -> Q:
        """Return the query with results in the order of the keys' bytes."""
        return replace(self, result_order=ResultOrder.ASCENDING)

    def with_descending_keys(self: Q) -> Q:
        """Return the query with results in the opposite order."""
        return replace(self, result_order=ResultOrder.DESCENDING)

    def _read(self, timestamped: bool) -> Read:
        method = "reverse_range" if self.result_order is ResultOrder.DESCENDING else "range"
        return Read(method, (self.lower_bound, self.upper_bound), timestamped)


@dataclass(frozen=True, slots=True)
class RangeQuery(_Range, Query[Iterator[tuple[object, object]]]):
    """The keys and values of a range in a key-value store (KIP-805, KIP-985)."""

    def read(self, layout: StoreLayout) -> Read | None:
        return self._read(False) if layout.kind == "key_value" else None


@dataclass(frozen=True, slots=True)
class TimestampedRangeQuery(_Range, Query[Iterator[tuple[object, ValueAndTimestamp]]]):
    """The keys and values, with timestamps, of a range in a timestamped key-value store (KIP-992)."""

    def read(self, layout: StoreLayout) -> Read | None:
        return self._read(True) if layout.kind == "key_value" and layout.timestamped else None


@dataclass(frozen=True, slots=True)
class WindowKeyQuery(Query[Iterator[tuple[int, object]]]):
    """The windows of a key in a window store, as (window start in ms, value); values of a timestamped store are ValueAndTimestamp
    (KIP-806)."""

    key: object
    time_from: int
    time_to: int

    @classmethod
    def with_key_and_window_start_range(cls, key: object, time_from: int, time_to: int) -> WindowKeyQuery:
        """Query the windows that start from one time to another, in ms, both inclusive."""
        return cls(key, time_from, time_to)

    def read(self, layout: StoreLayout) -> Read | None:
        return Read("fetch", (self.key, self.time_from, self.time_to), layout.timestamped) if layout.kind == "window" else None


@dataclass(frozen=True, slots=True)
class WindowRangeQuery(Query[Iterator[tuple[Windowed, object]]]):
    """The sessions of a key in a session store, or the windows of all keys in a window store, as (Windowed, value); values of a
    timestamped store are ValueAndTimestamp (KIP-806)."""

    key: object = None
    times: tuple[int, int] | None = None

    @classmethod
    def with_key(cls, key: object) -> WindowRangeQuery:
        """Query the sessions of a key. Session stores only."""
        return cls(key)

    @classmethod
    def with_window_start_range(cls, time_from: int, time_to: int) -> WindowRangeQuery:
        """Query the windows that start from one time to another, in ms, both inclusive. Window stores only."""
        return cls(times=(time_from, time_to))

    def read(self, layout: StoreLayout) -> Read | None:
        if self.times is None:
            return Read("fetch", (self.key,)) if layout.kind == "session" else None
        return Read("fetch_all", self.times, layout.timestamped) if layout.kind == "window" else None


@dataclass(frozen=True, slots=True)
class VersionedKeyQuery(Query[VersionedRecord]):
    """A version of a key in a versioned store: the latest one, or the one that was valid at a time (KIP-960); None if there is none."""

    key: object
    as_of_timestamp: int | None = None

    @classmethod
    def with_key(cls, key: object) -> VersionedKeyQuery:
        return cls(key)

    def as_of(self, timestamp: int) -> VersionedKeyQuery:
        """Query the version that was valid at this time, in ms."""
        return replace(self, as_of_timestamp=timestamp)

    def read(self, layout: StoreLayout) -> Read | None:
        return Read("get", (self.key, self.as_of_timestamp)) if layout.kind == "versioned" else None


@dataclass(frozen=True, slots=True)
class MultiVersionedKeyQuery(Query[Iterator[VersionedRecord]]):
    """The versions of a key in a versioned store that were valid at some time of a range, without deletions (KIP-968). The order is
    descending unless `with_ascending_timestamps` was called."""

    key: object
    time_from: int = 0
    time_to: int = _LAST
    result_order: ResultOrder = ResultOrder.ANY

    @classmethod
    def with_key(cls, key: object) -> MultiVersionedKeyQuery:
        return cls(key)

    def from_time(self, timestamp: int) -> MultiVersionedKeyQuery:
        """Query the versions that were valid at this time, in ms, or later."""
        return replace(self, time_from=timestamp)

    def to_time(self, timestamp: int) -> MultiVersionedKeyQuery:
        """Query the versions that were valid at this time, in ms, or earlier."""
        return replace(self, time_to=timestamp)

    def with_ascending_timestamps(self) -> MultiVersionedKeyQuery:
        """Return the query with the oldest version first."""
        return replace(self, result_order=ResultOrder.ASCENDING)

    def with_descending_timestamps(self) -> MultiVersionedKeyQuery:
        """Return the query with the latest version first."""
        return replace(self, result_order=ResultOrder.DESCENDING)

    def read(self, layout: StoreLayout) -> Read | None:
        descending = self.result_order is not ResultOrder.ASCENDING
        arguments = (self.key, self.time_from, self.time_to, descending)
        return Read("versions_between", arguments) if layout.kind == "versioned" else None


# -- requests ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateQueryRequest(Generic[R]):
    """A query, and the partitions, position and isolation at which it is to be answered (Kafka Streams' `StateQueryRequest`). By default
    every partition of the store on this client answers, including copies and partitions that are being restored, from committed data as of
    `default.state.isolation.level`."""

    store_name: str
    query: Query[R]
    partitions: frozenset[int] | None = None
    position_bound: PositionBound = field(default_factory=PositionBound)
    is_require_active: bool = False
    execution_info_enabled: bool = False
    isolation_level: IsolationLevel | None = None

    @staticmethod
    def in_store(name: str) -> InStore:
        """Begin a request: `in_store(name).with_query(query)`."""
        return InStore(name)

    def with_partitions(self, partitions: Iterable[int]) -> StateQueryRequest[R]:
        """Query these partitions only."""
        return replace(self, partitions=frozenset(partitions))

    def with_all_partitions(self) -> StateQueryRequest[R]:
        """Query all partitions of this client."""
        return replace(self, partitions=None)

    def with_position_bound(self, bound: PositionBound) -> StateQueryRequest[R]:
        """Let a partition answer only if its answer reflects this position; otherwise it fails with NOT_UP_TO_BOUND."""
        return replace(self, position_bound=bound)

    def require_active(self) -> StateQueryRequest[R]:
        """Let only running active tasks answer; others fail with NOT_ACTIVE."""
        return replace(self, is_require_active=True)

    def enable_execution_info(self) -> StateQueryRequest[R]:
        """Report how each partition answered (`QueryResult.execution_info`)."""
        return replace(self, execution_info_enabled=True)

    def with_isolation_level(self, isolation_level: IsolationLevel) -> StateQueryRequest[R]:
        """Read with this isolation instead of `default.state.isolation.level` (KIP-892)."""
        return replace(self, isolation_level=isolation_level)


@dataclass(frozen=True, slots=True)
class InStore:
    """A store to query."""

    name: str

    def with_query(self, query: Query[R]) -> StateQueryRequest[R]:
        """Return a request of this query."""
        return StateQueryRequest(self.name, query)


# -- results -------------------------------------------------------------------------------------------------------------------------


class FailureReason(Enum):
    """Why a partition did not answer (Kafka Streams' `FailureReason`)."""

    UNKNOWN_QUERY_TYPE = "UNKNOWN_QUERY_TYPE"
    """The store cannot answer this query."""
    NOT_ACTIVE = "NOT_ACTIVE"
    """A running active task was required, and the partition here is a copy or is being restored."""
    NOT_UP_TO_BOUND = "NOT_UP_TO_BOUND"
    """The position is behind the bound: ask again, or elsewhere."""
    NOT_PRESENT = "NOT_PRESENT"
    """The partition is not on this client, or has moved away."""
    DOES_NOT_EXIST = "DOES_NOT_EXIST"
    """The store has no such partition."""
    STORE_EXCEPTION = "STORE_EXCEPTION"
    """The store failed; the message says how."""


@dataclass(frozen=True, slots=True)
class QueryResult(Generic[R]):
    """The answer of one partition: a value or a failure (Kafka Streams' `QueryResult`). `position`: every record up to there is reflected
    in the answer; None where the store was not asked."""

    value: R | None = None
    failure_reason: FailureReason | None = None
    failure_message: str | None = None
    position: Position | None = None
    execution_info: tuple[str, ...] = ()

    @property
    def is_success(self) -> bool:
        return self.failure_reason is None

    @property
    def is_failure(self) -> bool:
        return self.failure_reason is not None

    @property
    def result(self) -> R | None:
        """The value; None for a key without one. Raises ValueError for a failure."""
        if self.failure_reason is not None:
            raise ValueError(f"a failed query has no result: {self.failure_reason.value}: {self.failure_message}")
        return self.value


@dataclass(frozen=True, slots=True)
class StateQueryResult(Generic[R]):
    """The answers of a store by partition; of a global store `global_result` alone (Kafka Streams' `StateQueryResult`)."""

    partition_results: Mapping[int, QueryResult[R]]
    global_result: QueryResult[R] | None = None

    @property
    def only_partition_result(self) -> QueryResult[R] | None:
        """The result of the only partition that has one, for a query of a key; None if no partition has the key. Raises ValueError if there
        are several, or a partition has failed."""
        found = [each for each in self.partition_results.values() if each.result is not None]
        if len(found) > 1:
            raise ValueError(f"{len(found)} partitions have a result: {sorted(self.partition_results)}")
        return found[0] if found else None

    @property
    def position(self) -> Position:
        """The positions of all answers together: a later query with this bound sees at least what this one saw."""
        found = Position.empty_position()
        for each in [*self.partition_results.values(), *([] if self.global_result is None else [self.global_result])]:
            if each.is_success and each.position is not None:
                found = found.merge(each.position)
        return found
