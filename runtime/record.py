"""What flows through a topology, and what users see of it.

Between two nodes a record is three arguments of a call (key, value, timestamp), never an object: an allocation per record and node is
what makes Python engines slow. The classes here appear where a user asked for them (`Record` in the Processor API and the test driver,
`Windowed` keys, `ValueAndTimestamp` from stores) and on the edges of tables (`Change`).
"""

from __future__ import annotations

from typing import Generic, NamedTuple

import msgspec

from runtime.type_variables import KR, VR, K_co, V_co

Headers = list[tuple[str, bytes]]
"""A record's headers in order; names may repeat."""


class Record(msgspec.Struct, Generic[K_co, V_co], frozen=True):
    """A record as the Processor API and the test driver show it (Kafka Streams' `Record`). Immutable but for its list of headers, which the
    `with_*` copies share; the engine never shares that list with another record's.

    `timestamp` is in ms since the epoch and never negative (ValueError). A None value is a tombstone where the record belongs to a table.
    """

    key: K_co
    value: V_co
    timestamp: int = 0
    headers: Headers = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.timestamp < 0:
            raise ValueError(f"a record's timestamp is in ms since the epoch and cannot be negative: {self.timestamp}")

    def with_key(self, key: KR) -> Record[KR, V_co]:
        """This record with another key."""
        return Record(key, self.value, self.timestamp, self.headers)

    def with_value(self, value: VR) -> Record[K_co, VR]:
        """This record with another value."""
        return Record(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: int) -> Record[K_co, V_co]:
        """This record at another time, in ms since the epoch."""
        return Record(self.key, self.value, timestamp, self.headers)

    def with_headers(self, headers: Headers) -> Record[K_co, V_co]:
        """This record with a copy of other headers."""
        return Record(self.key, self.value, self.timestamp, list(headers))


class FixedKeyRecord(msgspec.Struct, Generic[K_co, V_co], frozen=True):
    """A record whose key stays, as `process_values` shows it (Kafka Streams' `FixedKeyRecord`). Otherwise as `Record`; processors make new
    ones with `with_value` and its siblings."""

    key: K_co
    value: V_co
    timestamp: int = 0
    headers: Headers = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.timestamp < 0:
            raise ValueError(f"a record's timestamp is in ms since the epoch and cannot be negative: {self.timestamp}")

    def with_value(self, value: VR) -> FixedKeyRecord[K_co, VR]:
        """This record with another value."""
        return FixedKeyRecord(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: int) -> FixedKeyRecord[K_co, V_co]:
        """This record at another time, in ms since the epoch."""
        return FixedKeyRecord(self.key, self.value, timestamp, self.headers)

    def with_headers(self, headers: Headers) -> FixedKeyRecord[K_co, V_co]:
        """This record with a copy of other headers."""
        return FixedKeyRecord(self.key, self.value, self.timestamp, list(headers))


class RecordContext(NamedTuple):
    """What a function that chooses a topic is told of the record besides key and value (Kafka Streams' `RecordContext`): topic, partition
    and offset of the input that it comes from (offset -1: of none, as from a punctuator), its own timestamp in ms, and its headers."""

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
        """Whether there is a moment that lies in both."""
        return self.start < other.end and other.start < self.end


class SessionWindow(Window):
    """A session: `start` and `end` are the times of its first and last record, both inclusive (Kafka Streams' `SessionWindow`)."""

    __slots__ = ()

    def overlap(self, other: Window) -> bool:
        """Whether there is a moment that lies in both."""
        return self.start <= other.end and other.start <= self.end


class Windowed(NamedTuple, Generic[K_co]):
    """The key of a windowed table: the record's key and the window (Kafka Streams' `Windowed`)."""

    key: K_co
    window: Window


class ValueAndTimestamp(NamedTuple, Generic[V_co]):
    """A value of a timestamped store and the time in ms at which it came to be (Kafka Streams' `ValueAndTimestamp`)."""

    value: V_co
    timestamp: int


class VersionedRecord(NamedTuple, Generic[V_co]):
    """A version of a key's value: it holds from `timestamp` (inclusive) to `valid_to` (exclusive), in ms; None: it is the latest (Kafka
    Streams' `VersionedRecord`)."""

    value: V_co
    timestamp: int
    valid_to: int | None = None


class Change(NamedTuple):
    """What an edge of a table carries: the value a key has now and the one that downstream last heard of; None where there is none.

    `old` is None too when nobody downstream asked for old values (Kafka Streams' `Change`, `enableSendingOldValues`).
    """

    new: object
    old: object


class OutOfOrder(Change):
    """A change of a versioned table that is not the latest of its key in time (KIP-914; `isLatest` of Kafka Streams' `Change`)."""

    __slots__ = ()
