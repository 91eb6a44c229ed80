"""What readers of a store have in common: staged and stored entries in one order, turned into keys and values."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

from runtime.errors import SchemaRegistryUnavailableError, StreamsError
from runtime.record import ValueAndTimestamp
from runtime.serdes.serde import Deserializer, Serializer

_TIMESTAMP = Struct(">q")

StagedRow = tuple[bytes, object, int]
"""Key, staged value (None is a tombstone), timestamp in ms."""


def unwritable(store: str, serde: str, what: str, given: object, error: Exception) -> StreamsError:
    """Says what (key or value) a store's serde could not write."""
    return StreamsError(
        f"store {store}: its serde {serde} cannot write the {what} {reprlib.repr(given)} (of type {type(given).__name__}): "
        f"{type(error).__name__}: {error}. Give the store a serde that can: Materialized({what}=...), or in its builder"
    )


@dataclass(frozen=True, slots=True)
class Reader:
    """How a store's bytes are read. `staged_as_objects`: staged values are objects, not bytes. `stored_with_time`: stored values
    begin with their timestamp. `give_time`: readers get `ValueAndTimestamp`."""

    read_key: Deserializer
    write_key: Serializer
    key_serde: str
    read_value: Deserializer
    staged_as_objects: bool
    stored_with_time: bool
    give_time: bool
    store: str

    def key_bytes(self, key: object) -> bytes:
        """A key's bytes. Raises ValueError for None, StreamsError for what the serde cannot write."""
        try:
            data = self.write_key(key) if key is not None else None
        except SchemaRegistryUnavailableError:
            raise  # says nothing about what was given
        except Exception as error:
            raise unwritable(self.store, self.key_serde, "key", key, error) from error
        if data is None:
            raise ValueError(f"store {self.store}: a key must not be None")
        return data

    def staged(self, value: object, timestamp: int) -> object:
        """A staged value as readers get it; None for a tombstone."""
        if value is None:
            return None
        if not self.staged_as_objects:
            value = self.read_value(value)  # type: ignore[arg-type]  # staged as bytes
        return ValueAndTimestamp(value, timestamp) if self.give_time else value

    def stored(self, data: bytes | None) -> object:
        """A stored value as readers get it; None for none."""
        if data is None:
            return None
        if not self.stored_with_time:
            return self.read_value(data)
        value = self.read_value(data[8:])
        return ValueAndTimestamp(value, _TIMESTAMP.unpack_from(data)[0]) if self.give_time else value

    def merged(self, staged: Sequence[StagedRow], stored: Iterator[tuple[bytes, bytes]], reverse: bool) -> Iterator[tuple[bytes, object]]:
        """(key bytes, value) of both, in the order of the keys; what is staged hides what is stored, a tombstone hides the key."""
        waiting = iter(reversed(staged) if reverse else staged)
        mine = next(waiting, None)
        for key, data in stored:
            while mine is not None and (mine[0] > key if reverse else mine[0] < key):
                if mine[1] is not None:
                    yield mine[0], self.staged(mine[1], mine[2])
                mine = next(waiting, None)
            if mine is None or mine[0] != key:
                yield key, self.stored(data)
        while mine is not None:
            if mine[1] is not None:
                yield mine[0], self.staged(mine[1], mine[2])
            mine = next(waiting, None)
