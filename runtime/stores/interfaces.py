"""Interfaces of stores for users, by kind of store: Kafka Streams' interfaces of the same names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, overload

from penstock.runtime.model.record import VersionedRecord, Windowed
from penstock.runtime.model.type_variables import K, K_contra, V, V_co
from penstock.runtime.serdes.serde import Serde


class ReadOnlyKeyValueStore(Protocol[K, V_co]):
    """Reads of a key-value store (Kafka Streams' `ReadOnlyKeyValueStore`). Ranges are in the order of the keys' bytes, both ends inclusive,
    None for no bound. Iterators read lazily; they see the store as it was when they were made."""

    def get(self, key: K) -> V_co | None: ...

    def range(self, from_key: K | None, to_key: K | None) -> Iterator[tuple[K, V_co]]: ...

    def reverse_range(self, from_key: K | None, to_key: K | None) -> Iterator[tuple[K, V_co]]: ...

    def all(self) -> Iterator[tuple[K, V_co]]: ...

    def reverse_all(self) -> Iterator[tuple[K, V_co]]: ...

    def prefix_scan(self, prefix: object, prefix_serde: Serde | None = None) -> Iterator[tuple[K, V_co]]:
        """Iterate over entries whose key's bytes begin with the prefix's, written by `prefix_serde` (default: the store's own)."""
        ...

    def approximate_num_entries(self) -> int: ...


class KeyValueStore(ReadOnlyKeyValueStore[K, V], Protocol[K, V]):
    """Kafka Streams' `KeyValueStore`. Values of a timestamped store are `ValueAndTimestamp`. A None key raises ValueError; a value of None
    deletes."""

    def put(self, key: K, value: V | None) -> None: ...

    def put_if_absent(self, key: K, value: V | None) -> V | None: ...

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None: ...

    def delete(self, key: K) -> V | None: ...

    def delete_range(self, from_key: K | None, to_key: K | None) -> None:
        """Remove the keys from one to another, both inclusive; None: no bound."""


class ReadOnlyWindowStore(Protocol[K, V_co]):
    """Reads of a window store (Kafka Streams' `ReadOnlyWindowStore`). Times are window starts in ms, both ends inclusive; windows older
    than the retention are left out. Several keys come segment by segment, by key in each."""

    @overload
    def fetch(self, key: K, time_from: int, /) -> V_co | None:
        """Return the value of one window, or None."""

    @overload
    def fetch(self, key: K, time_from: int, time_to: int, /) -> Iterator[tuple[int, V_co]]:
        """Iterate over (window start, value) of one key, by time."""

    @overload
    def fetch(self, key_from: K | None, key_to: K | None, time_from: int, time_to: int, /) -> Iterator[tuple[Windowed[K], V_co]]:
        """Iterate over (Windowed key, value) of the keys from `key_from` to `key_to` (None: no bound)."""

    @overload
    def backward_fetch(self, key: K, time_from: int, time_to: int, /) -> Iterator[tuple[int, V_co]]:
        """Iterate as `fetch` of one key, from the latest window down."""

    @overload
    def backward_fetch(self, key_from: K | None, key_to: K | None, time_from: int, time_to: int, /) -> Iterator[tuple[Windowed[K], V_co]]:
        """Iterate as `fetch` of several keys, in the opposite order."""

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed[K], V_co]]: ...

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed[K], V_co]]: ...

    def all(self) -> Iterator[tuple[Windowed[K], V_co]]: ...

    def backward_all(self) -> Iterator[tuple[Windowed[K], V_co]]: ...


class WindowStore(ReadOnlyWindowStore[K, V], Protocol[K, V]):
    """Kafka Streams' `WindowStore`. A put whose window start is older than stream time minus retention is dropped and counted."""

    def put(self, key: K, value: V | None, window_start: int) -> None: ...


class ReadOnlySessionStore(Protocol[K, V_co]):
    """Reads of a session store (Kafka Streams' `ReadOnlySessionStore`). Times in ms, both ends inclusive; sessions that ended before the
    retention are left out. One key's sessions come by end, then start; several keys come segment by segment, by key in each."""

    @overload
    def find_sessions(self, key: K, earliest_end: int, latest_start: int, /) -> Iterator[tuple[Windowed[K], V_co]]:
        """Iterate over sessions of one key that end at `earliest_end` or later and start at `latest_start` or earlier."""

    @overload
    def find_sessions(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int, /
    ) -> Iterator[tuple[Windowed[K], V_co]]:
        """Iterate over the same of the keys from `key_from` to `key_to` (None: no bound)."""

    @overload
    def find_sessions(self, earliest_end: int, latest_end: int, /) -> Iterator[tuple[Windowed[K], V_co]]:
        """Iterate over sessions of all keys that end between the two times."""

    @overload
    def backward_find_sessions(self, key: K, earliest_end: int, latest_start: int, /) -> Iterator[tuple[Windowed[K], V_co]]: ...

    @overload
    def backward_find_sessions(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int, /
    ) -> Iterator[tuple[Windowed[K], V_co]]: ...

    def fetch_session(self, key: K, session_start: int, session_end: int) -> V_co | None:
        """Return the value of exactly this session, or None."""
        ...

    @overload
    def fetch(self, key: K, /) -> Iterator[tuple[Windowed[K], V_co]]:
        """Iterate over all sessions of one key."""

    @overload
    def fetch(self, key_from: K | None, key_to: K | None, /) -> Iterator[tuple[Windowed[K], V_co]]:
        """Iterate over all sessions of the keys from `key_from` to `key_to` (None: no bound)."""

    @overload
    def backward_fetch(self, key: K, /) -> Iterator[tuple[Windowed[K], V_co]]: ...

    @overload
    def backward_fetch(self, key_from: K | None, key_to: K | None, /) -> Iterator[tuple[Windowed[K], V_co]]: ...

    def all(self) -> Iterator[tuple[Windowed[K], V_co]]: ...


class SessionStore(ReadOnlySessionStore[K, V], Protocol[K, V]):
    """Kafka Streams' `SessionStore`. A put of a session that ended before stream time minus retention is dropped and counted."""

    def put(self, session_key: Windowed[K], aggregate: V | None) -> None: ...

    def remove(self, session_key: Windowed[K]) -> None: ...


class ReadOnlyVersionedStore(Protocol[K_contra, V_co]):
    """Reads of a versioned store."""

    def get(self, key: K_contra, as_of: int | None = None) -> VersionedRecord[V_co] | None:
        """Return the latest version, or the one that was valid at `as_of` (ms). None if there is none, if it is a deletion, or if `as_of`
        is older than the history retention (the latest version never is)."""
        ...


class VersionedKeyValueStore(ReadOnlyVersionedStore[K_contra, V], Protocol[K_contra, V]):
    """Kafka Streams' `VersionedKeyValueStore` (KIP-889). A version is valid from its timestamp to the next version's."""

    PUT_RETURN_CODE_VALID_TO_UNDEFINED: int
    """Result of `put` for the latest version."""
    PUT_RETURN_CODE_NOT_PUT: int
    """Result of `put` when the version was older than the history retention and dropped."""

    def put(self, key: K_contra, value: V | None, timestamp: int) -> int:
        """Put the version of a timestamp (ms), in any order of timestamps; None is a deletion as of then. Return until when it is valid:
        the next version's timestamp, or one of the codes above."""
        ...

    def delete(self, key: K_contra, timestamp: int) -> VersionedRecord[V] | None:
        """Delete as of a timestamp (ms). Return the version that was valid then, or None."""
        ...
