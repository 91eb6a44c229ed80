"""The ends of a topology under test: topics to write to and to read from (Kafka Streams' `TestInputTopic`, `TestOutputTopic`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, cast, overload

from penstock.runtime.model.clock import Duration, to_ms
from penstock.runtime.model.errors import DeserializationError, SerializationError
from penstock.runtime.model.record import Headers, Record
from penstock.runtime.model.type_variables import K, V
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.testing.log import LogRecord

Pipe = Callable[[bytes | None, bytes | None, int, Headers], None]


class _NotGiven:
    """Tells `pipe_input(value)` from `pipe_input(key, None)`."""


_NOT_GIVEN = _NotGiven()


class TestInputTopic(Generic[K, V]):
    """Pipes records into a topology. Each call returns when everything that follows from the record has happened.

    Records without a timestamp get the topic's time, which starts at the driver's wall-clock time (or at `start_timestamp`) and moves by
    `auto_advance` after each of them.
    """

    __test__ = False  # not a test, whatever its name says to pytest

    def __init__(self, name: str, key_serde: Serde[K], value_serde: Serde[V], pipe: Pipe, start_ms: int, auto_advance_ms: int) -> None:
        self.name = name
        self._pipe = pipe
        self._now_ms = start_ms
        self._step_ms = auto_advance_ms
        self._headers: Headers = []
        self._write_key = key_serde.serializer(name, lambda: self._headers)
        self._write_value = value_serde.serializer(name, lambda: self._headers)
        self._serdes = {"key": key_serde, "value": value_serde}

    @overload
    def pipe_input(self, key: K | None, value: V | None, timestamp: int | None = None, *, headers: Headers | None = None) -> None: ...

    @overload
    def pipe_input(self, key: V | Record[K, V] | None, *, timestamp: int | None = None, headers: Headers | None = None) -> None: ...

    def pipe_input(self, key: object, value: object = _NOT_GIVEN, timestamp: int | None = None, *, headers: Headers | None = None) -> None:
        """`pipe_input(key, value)`, `pipe_input(value)` (a null key), or `pipe_input(record)`. `timestamp` is in ms since the epoch.

        Raises SerializationError where the topic's own serdes cannot write it, and what the topology raises: DeserializationError,
        ProcessingError and ProductionError where a handler returns FAIL.
        """
        if value is _NOT_GIVEN:
            if isinstance(key, Record):
                record = key
                key, value, timestamp, headers = record.key, record.value, record.timestamp, record.headers
            else:
                key, value = None, key
        if timestamp is None:
            timestamp = self._now_ms
            self._now_ms += self._step_ms
        self._headers = list(headers or ())
        raw_key = None if key is None else self._written("key", self._write_key, key)
        raw_value = None if value is None else self._written("value", self._write_value, value)
        self._pipe(raw_key, raw_value, timestamp, self._headers)

    def _written(self, what: str, write: Callable[..., bytes | None], data: object) -> bytes | None:
        try:
            return write(data)
        except Exception as error:
            text = f"input topic {self.name}: {self._serdes[what]} cannot write the {what} {data!r}: {type(error).__name__}: {error}"
            raise SerializationError(text, is_key=what == "key", raw_key=None) from error

    def pipe_key_value_list(
        self, pairs: Iterable[tuple[K | None, V | None]], start_timestamp: int | None = None, advance: Duration | None = None
    ) -> None:
        """Pipe (key, value) pairs; with `start_timestamp` (ms) the first at that time and each next one `advance` later."""
        step = to_ms(advance) if advance is not None else 0
        for number, (key, value) in enumerate(pairs):
            self.pipe_input(key, value, None if start_timestamp is None else start_timestamp + number * step)

    def pipe_value_list(self, values: Iterable[V | None], start_timestamp: int | None = None, advance: Duration | None = None) -> None:
        """Pipe values with null keys; times as in `pipe_key_value_list`."""
        self.pipe_key_value_list(((None, value) for value in values), start_timestamp, advance)

    def pipe_record_list(self, records: Iterable[Record[K, V]]) -> None:
        """Pipe records with their own timestamps and headers."""
        for record in records:
            self.pipe_input(record)

    def advance_time(self, duration: Duration) -> None:
        """Move the topic's time, not the driver's clock."""
        self._now_ms += to_ms(duration)


class TestOutputTopic(Generic[K, V]):
    """Reads what a topology wrote to a topic, each record once, oldest first. A None value is a tombstone, though its type
    does not say so, as in Java: most records have values."""

    __test__ = False

    def __init__(self, name: str, key_serde: Serde[K], value_serde: Serde[V], unread: deque[LogRecord]) -> None:
        self.name = name
        self._unread = unread
        self._headers: Headers = []
        self._read_key = key_serde.deserializer(name, lambda: self._headers)
        self._read_value = value_serde.deserializer(name, lambda: self._headers)
        self._serdes = {"key": key_serde, "value": value_serde}

    def is_empty(self) -> bool:
        """Return True if everything was read."""
        return not self._unread

    def get_queue_size(self) -> int:
        """Return the number of records that were not read yet."""
        return len(self._unread)

    def read_record(self) -> Record[K, V]:
        """Return the next record. Raises LookupError if there is none, DeserializationError if this topic's serdes cannot read it."""
        if not self._unread:
            raise LookupError(f"topic {self.name} has no more records")
        found = self._unread.popleft()
        self._headers = list(found.record_headers or ())
        return Record(
            cast(K, None if found.raw_key is None else self._read("key", self._read_key, found.raw_key)),
            cast(V, None if found.raw_value is None else self._read("value", self._read_value, found.raw_value)),
            found.time_ms,
            self._headers,
        )

    def _read(self, what: str, read: Callable[[bytes], object], data: bytes) -> object:
        try:
            return read(data)
        except Exception as error:
            text = f"output topic {self.name}: {self._serdes[what]} cannot read the {what} {data!r}: {type(error).__name__}: {error}"
            raise DeserializationError(text) from error

    def read_key_value(self) -> tuple[K, V]:
        """Return the key and value of the next record. Raises LookupError if there is none."""
        record = self.read_record()
        return record.key, record.value

    def read_value(self) -> V:
        """Return the value of the next record. Raises LookupError if there is none."""
        return self.read_record().value

    def read_records_to_list(self) -> list[Record[K, V]]:
        """Return all records that are left."""
        return [self.read_record() for _ in range(len(self._unread))]

    def read_key_values_to_list(self) -> list[tuple[K, V]]:
        """Return the key and value of all records that are left."""
        return [(record.key, record.value) for record in self.read_records_to_list()]

    def read_values_to_list(self) -> list[V]:
        """Return the values of all records that are left."""
        return [record.value for record in self.read_records_to_list()]

    def read_key_values_to_map(self) -> dict[K, V]:
        """Return the last value of each key among the records that are left. Raises ValueError for a null key."""
        found: dict[K, V] = {}
        for key, value in self.read_key_values_to_list():
            if key is None:
                raise ValueError(f"topic {self.name}: a record without a key has no place in a map")
            found[key] = value
        return found
