"""What users of a store see, by kind of store: Kafka Streams' interfaces of the same names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, overload

from runtime.record import VersionedRecord, Windowed
from runtime.serdes.serde import Serde


class ReadOnlyKeyValueStore(Protocol):
    """Reads of a key-value store (Kafka Streams' `ReadOnlyKeyValueStore`). Ranges are in the order of the keys' bytes, both ends inclusive,
    None for no bound. Iterators read lazily; they see the store as it was when they were made."""

    def get(self, key: object) -> object: ...

    def range(self, from_key: object | None, to_key: object | None) -> Iterator[tuple[object, object]]: ...

    def reverse_range(self, from_key: object | None, to_key: object | None) -> Iterator[tuple[object, object]]: ...

    def all(self) -> Iterator[tuple[object, object]]: ...

    def reverse_all(self) -> Iterator[tuple[object, object]]: ...

    def prefix_scan(self, prefix: object, prefix_serde: Serde | None = None) -> Iterator[tuple[object, object]]:
        """Entries whose key's bytes begin with the prefix's, written by `prefix_serde` (default: the store's own)."""
        ...

    def approximate_num_entries(self) -> int: ...


class KeyValueStore(ReadOnlyKeyValueStore, Protocol):
    """Kafka Streams' `KeyValueStore`. A timestamped store takes and gives `ValueAndTimestamp`. A None key raises ValueError; None as
    a value deletes."""

    def put(self, key: object, value: object) -> None: ...

    def put_if_absent(self, key: object, value: object) -> object: ...

    def put_all(self, entries: Iterable[tuple[object, object]]) -> None: ...

    def delete(self, key: object) -> object: ...

    def delete_range(self, from_key: object | None, to_key: object | None) -> None:
        """Removes the keys from one to another, both inclusive; None: no bound."""


class ReadOnlyWindowStore(Protocol):
    """Reads of a window store (Kafka Streams' `ReadOnlyWindowStore`). Times are window starts in ms, both ends inclusive; windows
    older than the retention are not seen. Several keys come segment by segment, inside one by key."""

    @overload
    def fetch(self, key: object, time_from: int, /) -> object:
        """The value of one window, or None."""

    @overload
    def fetch(self, key: object, time_from: int, time_to: int, /) -> Iterator[tuple[int, object]]:
        """(window start, value) of one key, by time."""

    @overload
    def fetch(self, key_from: object | None, key_to: object | None, time_from: int, time_to: int, /) -> Iterator[tuple[Windowed, object]]:
        """(Windowed key, value) of the keys from `key_from` to `key_to` (None: no bound)."""

    @overload
    def backward_fetch(self, key: object, time_from: int, time_to: int, /) -> Iterator[tuple[int, object]]:
        """`fetch` of one key, from the latest window down."""

    @overload
    def backward_fetch(
        self, key_from: object | None, key_to: object | None, time_from: int, time_to: int, /
    ) -> Iterator[tuple[Windowed, object]]:
        """`fetch` of several keys, in the opposite order."""

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]: ...

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, object]]: ...

    def all(self) -> Iterator[tuple[Windowed, object]]: ...

    def backward_all(self) -> Iterator[tuple[Windowed, object]]: ...


class WindowStore(ReadOnlyWindowStore, Protocol):
    """Kafka Streams' `WindowStore`. A put whose window start is older than stream time minus retention is dropped and counted."""

    def put(self, key: object, value: object, window_start: int) -> None: ...


class ReadOnlySessionStore(Protocol):
    """Reads of a session store (Kafka Streams' `ReadOnlySessionStore`). Times in ms, both ends inclusive; sessions that ended before the
    retention are not seen. One key's sessions come by end, then start; several keys come segment by segment, inside one by key."""

    @overload
    def find_sessions(self, key: object, earliest_end: int, latest_start: int, /) -> Iterator[tuple[Windowed, object]]:
        """Sessions of one key that end at `earliest_end` or later and start at `latest_start` or earlier."""

    @overload
    def find_sessions(
        self, key_from: object | None, key_to: object | None, earliest_end: int, latest_start: int, /
    ) -> Iterator[tuple[Windowed, object]]:
        """The same, of the keys from `key_from` to `key_to` (None: no bound)."""

    @overload
    def find_sessions(self, earliest_end: int, latest_end: int, /) -> Iterator[tuple[Windowed, object]]:
        """Sessions of all keys that end between the two times."""

    @overload
    def backward_find_sessions(self, key: object, earliest_end: int, latest_start: int, /) -> Iterator[tuple[Windowed, object]]: ...

    @overload
    def backward_find_sessions(
        self, key_from: object | None, key_to: object | None, earliest_end: int, latest_start: int, /
    ) -> Iterator[tuple[Windowed, object]]: ...

    def fetch_session(self, key: object, session_start: int, session_end: int) -> object:
        """The value of exactly this session, or None."""
        ...

    @overload
    def fetch(self, key: object, /) -> Iterator[tuple[Windowed, object]]:
        """All sessions of one key."""

    @overload
    def fetch(self, key_from: object | None, key_to: object | None, /) -> Iterator[tuple[Windowed, object]]:
        """All sessions of the keys from `key_from` to `key_to` (None: no bound)."""

    @overload
    def backward_fetch(self, key: object, /) -> Iterator[tuple[Windowed, object]]: ...

    @overload
    def backward_fetch(self, key_from: object | None, key_to: object | None, /) -> Iterator[tuple[Windowed, object]]: ...

    def all(self) -> Iterator[tuple[Windowed, object]]: ...


class SessionStore(ReadOnlySessionStore, Protocol):
    """Kafka Streams' `SessionStore`. A put of a session that ended before stream time minus retention is dropped and counted."""

    def put(self, session_key: Windowed, aggregate: object) -> None: ...

    def remove(self, session_key: Windowed) -> None: ...


class ReadOnlyVersionedStore(Protocol):
    """Reads of a versioned store."""

    def get(self, key: object, as_of: int | None = None) -> VersionedRecord | None:
        """The latest version, or the one that was valid at `as_of` (ms); None if there is none, if it is a deletion, or if `as_of` is
        older than the history retention (the latest version never is)."""
        ...


class VersionedKeyValueStore(ReadOnlyVersionedStore, Protocol):
    """Kafka Streams' `VersionedKeyValueStore` (KIP-889). A version holds from its timestamp to the next version's."""

    PUT_RETURN_CODE_VALID_TO_UNDEFINED: int
    """What `put` returns for the latest version."""
    PUT_RETURN_CODE_NOT_PUT: int
    """What `put` returns when the version was older than the history retention and dropped."""

    def put(self, key: object, value: object, timestamp: int) -> int:
        """Sets the version of a moment (ms), in any order of moments; None is a deletion as of then. Returns until when it is valid: the
        next version's timestamp, or one of the codes above."""
        ...

    def delete(self, key: object, timestamp: int) -> VersionedRecord | None:
        """Deletes as of a moment (ms); returns what was valid then, or None."""
        ...
