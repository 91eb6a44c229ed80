"""Reading shared by all kinds of stores: merges staged and stored entries, and decodes keys and values."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct

from penstock.runtime.model.error_details import at_line
from penstock.runtime.model.errors import SchemaRegistryUnavailableError, StateUnreadableError, StreamsError
from penstock.runtime.model.record import ValueAndTimestamp
from penstock.runtime.model.user_errors import described, pass_ctrl_c
from penstock.runtime.serdes.serde import Deserializer, Serializer

_TIMESTAMP = Struct(">q")

StagedRow = tuple[bytes, object, int]
"""Key, staged value (None is a tombstone), timestamp in ms."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The uncommitted rows of a store: that of a key, those with lo <= key < hi in the order of the keys, and their number. Only the
    store's own thread may call these; what they return does not change any more."""

    find: Callable[[bytes], StagedRow | None]
    range: Callable[[bytes | None, bytes | None], list[StagedRow]]
    count: Callable[[], int]


NOTHING_STAGED = Staged(lambda key: None, lambda lo, hi: [], lambda: 0)
"""For views of committed data."""


_CAUSE = (
    "What stands there was written by another version of the program, or by another program: start the version that wrote it, or see "
    "`penstock docs changing`"
)


def unwritable(store: str, serde: str, what: str, given: object, error: BaseException) -> StreamsError:
    """Return an error that names the key or value which a store's serde could not write."""
    pass_ctrl_c(error, f"store {store}")
    return StreamsError(
        f"store {store}: its serde {serde} cannot write the {what} {reprlib.repr(given)} (of type {type(given).__name__})"
        f"{at_line(error)}: {described(error)}. Give the store a serde that can: Materialized({what}=...), or in its builder"
    )


def unreadable(store: str, serde: str, key: bytes | None, read_key: Deserializer, data: object, error: BaseException) -> Exception:
    """Return an error that names the entry which a store's serde could not read, or the error itself where the Schema Registry is
    unavailable. `key`: in the store."""
    pass_ctrl_c(error, f"store {store}")
    if isinstance(error, SchemaRegistryUnavailableError | StateUnreadableError):
        return error
    return StateUnreadableError(
        f"store {store}: the value of key {_shown(key, read_key)} cannot be read by its serde {serde}{at_line(error)}: {described(error)}. "
        f"Its bytes are {reprlib.repr(data)}. {_CAUSE}"
    )


def unreadable_key(store: str, serde: str, key: bytes, error: BaseException) -> Exception:
    """Return an error that names the stored key which a store's serde could not read, or the error itself where the Schema Registry is
    unavailable."""
    pass_ctrl_c(error, f"store {store}")
    if isinstance(error, SchemaRegistryUnavailableError):
        return error
    return StateUnreadableError(
        f"store {store}: the key {reprlib.repr(key)} cannot be read by its serde {serde}{at_line(error)}: {described(error)}. {_CAUSE}"
    )


def _shown(key: bytes | None, read_key: Deserializer) -> str:
    """Format a key for a message: as an object if its bytes are one, which those of windows are not."""
    if key is None:
        return "(unknown)"
    try:
        return reprlib.repr(read_key(key))
    except BaseException as error:  # noqa: BLE001  # any error of a user's serde; the message then shows the bytes
        pass_ctrl_c(error, "the key of an entry that cannot be read")
        return repr(key)


@dataclass(frozen=True, slots=True)
class Reader:
    """Decoding of a store's bytes. `staged_as_objects`: staged values are objects, not bytes. `stored_with_time`: stored values begin with
    their timestamp. `give_time`: results are `ValueAndTimestamp`."""

    read_key: Deserializer
    write_key: Serializer
    key_serde: str
    read_value: Deserializer
    staged_as_objects: bool
    stored_with_time: bool
    give_time: bool
    store: str
    value_serde: str = ""

    def key_bytes(self, key: object) -> bytes:
        """Encode a key. Raises ValueError for None, StreamsError if the serde cannot write it."""
        try:
            data = self.write_key(key) if key is not None else None
        except SchemaRegistryUnavailableError:
            raise  # not the fault of the value
        except BaseException as error:
            raise unwritable(self.store, self.key_serde, "key", key, error) from error
        if data is None:
            raise ValueError(f"store {self.store}: a key must not be None")
        return data

    def value(self, data: bytes, key: bytes) -> object:
        """Decode the value of a key. Raises StateUnreadableError."""
        try:
            return self.read_value(data)
        except BaseException as error:
            raise unreadable(self.store, self.value_serde, key, self.read_key, data, error) from error

    def unreadable_key(self, key: bytes, error: BaseException) -> Exception:
        """Return the error of a stored key that `read_key` could not decode. Loops over rows call `read_key` themselves: a call per row
        costs more than a `try`."""
        return unreadable_key(self.store, self.key_serde, key, error)

    def giving(self, timestamped: bool, headers: bool = False) -> Reader:
        """Return a reader with other results: values as `ValueAndTimestamp`, or with their headers, where the store has them; or alone."""
        return replace(self, give_time=timestamped and self.stored_with_time)

    def unpacked(self, data: bytes, key: bytes) -> tuple[int, bytes]:
        """Return the timestamp in ms (0 without one) of stored bytes, and the value's bytes as they are staged. Raises
        StateUnreadableError."""
        return (_TIMESTAMP.unpack_from(data)[0], data[8:]) if self.stored_with_time else (0, data)

    def staged(self, value: object, timestamp: int, key: bytes) -> object:
        """Return the result for a staged value; None for a tombstone. Raises StateUnreadableError."""
        if value is None:
            return None
        if not self.staged_as_objects:
            value = self.value(value, key)  # type: ignore[arg-type]  # staged as bytes
        return ValueAndTimestamp(value, timestamp) if self.give_time else value

    def stored(self, data: bytes | None, key: bytes) -> object:
        """Return the result for a stored value; None for none. Raises StateUnreadableError."""
        if data is None:
            return None
        if not self.stored_with_time:
            return self.value(data, key)
        value = self.value(data[8:], key)
        return ValueAndTimestamp(value, _TIMESTAMP.unpack_from(data)[0]) if self.give_time else value

    def merged(self, staged: Sequence[StagedRow], stored: Iterator[tuple[bytes, bytes]], reverse: bool) -> Iterator[tuple[bytes, object]]:
        """Iterate over (key bytes, value) of both, in the order of the keys; a staged value hides the stored one, a tombstone hides the
        key."""
        waiting = iter(reversed(staged) if reverse else staged)
        mine = next(waiting, None)
        for key, data in stored:
            while mine is not None and (mine[0] > key if reverse else mine[0] < key):
                if mine[1] is not None:
                    yield mine[0], self.staged(mine[1], mine[2], mine[0])
                mine = next(waiting, None)
            if mine is None or mine[0] != key:
                yield key, self.stored(data, key)
        while mine is not None:
            if mine[1] is not None:
                yield mine[0], self.staged(mine[1], mine[2], mine[0])
            mine = next(waiting, None)
