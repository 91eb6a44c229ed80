"""Records, windowed keys and changes of tables.

Between two nodes a record is three arguments of a call (key, value, timestamp) and not an object, because an allocation per record and node
would be slow. The classes here are for the public API (`Record` in the Processor API and the test driver, `Windowed` keys,
`ValueAndTimestamp` from stores) and for changes of tables (`Change`).
"""

from __future__ import annotations

from operator import index
from typing import Generic, NamedTuple, Self, SupportsIndex, cast

import msgspec

from penstock.runtime.model.type_variables import KR, VR, K_co, V_co

Headers = list[tuple[str, bytes]]
"""A record's headers in order; names may repeat."""


_LAST = 2**63 - 1


def _check_time(timestamp: object) -> None:
    """Raise an error here, where the record is known, for a timestamp that could not be written: stores write it at a commit."""
    try:
        if index(cast(SupportsIndex, timestamp)) <= _LAST:
            return
    except TypeError as error:
        raise TypeError(f"a record's timestamp is in whole ms since the epoch: {timestamp!r}") from error
    raise ValueError(f"a record's timestamp is in ms since the epoch and at most {_LAST}: {timestamp}")


class _Record(msgspec.Struct, Generic[K_co, V_co], frozen=True):
    key: K_co
    value: V_co
    timestamp: int = 0
    headers: Headers = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.timestamp < 0:
            raise ValueError(f"a record's timestamp is in ms since the epoch and cannot be negative: {self.timestamp}")
        if self.timestamp > _LAST or type(self.timestamp) is not int:
            _check_time(self.timestamp)

    def with_timestamp(self, timestamp: int) -> Self:
        """Return a copy with another timestamp, in ms since the epoch."""
        return type(self)(self.key, self.value, timestamp, self.headers)

    def with_headers(self, headers: Headers) -> Self:
        """Return a copy with other headers, which are copied."""
        return type(self)(self.key, self.value, self.timestamp, list(headers))


class Record(_Record[K_co, V_co], frozen=True):
    """A record of the Processor API and the test driver (Kafka Streams' `Record`). Immutable except for its list of headers, which the
    `with_*` copies share; the engine never shares that list between records.

    `timestamp` is in ms since the epoch and never negative (ValueError). A None value is a tombstone where the record belongs to a table.
    """

    def with_key(self, key: KR) -> Record[KR, V_co]:
        """Return a copy with another key."""
        return Record(key, self.value, self.timestamp, self.headers)

    def with_value(self, value: VR) -> Record[K_co, VR]:
        """Return a copy with another value."""
        return Record(self.key, value, self.timestamp, self.headers)


class FixedKeyRecord(_Record[K_co, V_co], frozen=True):
    """A record whose key cannot be changed, for `process_values` (Kafka Streams' `FixedKeyRecord`). Otherwise as `Record`; processors
    create new ones with `with_value`, `with_timestamp` and `with_headers`."""

    def with_value(self, value: VR) -> FixedKeyRecord[K_co, VR]:
        """Return a copy with another value."""
        return FixedKeyRecord(self.key, value, self.timestamp, self.headers)


class RecordContext(NamedTuple):
    """The third argument of a function that chooses a topic (Kafka Streams' `RecordContext`): topic, partition and offset of the input
    record (offset -1: none, as in a punctuator), and the output's timestamp in ms and headers."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    headers: Headers


class Window(NamedTuple):
    """A window of time: `start` inclusive and `end` exclusive, in ms since the epoch (Kafka Streams' `TimeWindow`)."""

    start: int
    end: int

    def overlap(self, other: Window) -> bool:
        """Return whether the two windows have a moment in common."""
        return self.start < other.end and other.start < self.end


class SessionWindow(Window):
    """A session: `start` and `end` are the times of its first and last record, both inclusive (Kafka Streams' `SessionWindow`)."""

    __slots__ = ()

    def overlap(self, other: Window) -> bool:
        """Return whether the two windows have a moment in common."""
        return self.start <= other.end and other.start <= self.end


class Windowed(NamedTuple, Generic[K_co]):
    """The key of a windowed table: the record's key and the window (Kafka Streams' `Windowed`)."""

    key: K_co
    window: Window


class ValueAndTimestamp(NamedTuple, Generic[V_co]):
    """A value of a timestamped store and its timestamp in ms (Kafka Streams' `ValueAndTimestamp`)."""

    value: V_co
    timestamp: int


class ValueTimestampHeaders(NamedTuple, Generic[V_co]):
    """A value of a store with headers, its timestamp in ms and its headers (Kafka Streams' `ValueTimestampHeaders`, KIP-1271)."""

    value: V_co
    timestamp: int
    headers: Headers


class AggregationWithHeaders(NamedTuple, Generic[V_co]):
    """An aggregate of a session store with headers (Kafka Streams' `AggregationWithHeaders`, KIP-1271)."""

    aggregation: V_co
    headers: Headers


class VersionedRecord(NamedTuple, Generic[V_co]):
    """A version of a key's value, valid from `timestamp` (inclusive) to `valid_to` (exclusive), in ms; `valid_to` None: the latest version
    (Kafka Streams' `VersionedRecord`)."""

    value: V_co
    timestamp: int
    valid_to: int | None = None


class Change(NamedTuple):
    """A change of a table's row: the new value, and the value that was forwarded last; None for no value.

    `old` is also None if no node downstream wants old values (Kafka Streams' `Change`, `enableSendingOldValues`).
    """

    new: object
    old: object


class OutOfOrder(Change):
    """A change of a versioned table that is not the latest of its key in time (KIP-914; `isLatest` of Kafka Streams' `Change`)."""

    __slots__ = ()
