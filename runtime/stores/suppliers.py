"""Suppliers and builders of stores, under the names of Kafka Streams' `Stores`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from penstock.runtime.model.clock import Duration, to_ms
from penstock.runtime.model.durations import length_ms
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.stores.duplicates import StagedDuplicatesStore
from penstock.runtime.stores.expiring import StagedExpiringStore
from penstock.runtime.stores.key_value import StagedKeyValueStore, StagedLruStore
from penstock.runtime.stores.settings import SessionSettings, StoreSettings, VersionSettings, WindowSettings, segment_ms, version_segment_ms
from penstock.runtime.stores.versioned import StagedVersionedStore
from penstock.runtime.stores.window import StagedSessionStore, StagedWindowStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyValueSupplier:
    """Location of a key-value store's entries, their maximum number, and their time to live (`KeyValueBytesStoreSupplier`). `with_headers`:
    for a store with headers (`HeadersBytesStoreSupplier`)."""

    name: str
    persistent: bool
    max_entries: int | None = None
    ttl_ms: int | None = None
    with_headers: bool = False


@dataclass(frozen=True, slots=True)
class WindowSupplier:
    """Location, retention and window size of a window store, in ms (`WindowBytesStoreSupplier`). `with_headers`: for a store with
    headers."""

    name: str
    persistent: bool
    retention_ms: int
    window_size_ms: int
    retain_duplicates: bool = False
    with_headers: bool = False

    @property
    def segment_interval_ms(self) -> int:
        """Length of a segment in ms."""
        return segment_ms(self.retention_ms)


@dataclass(frozen=True, slots=True)
class VersionedSupplier:
    """Location, history retention and segment length of a versioned key-value store, in ms (`VersionedBytesStoreSupplier`)."""

    name: str
    persistent: bool
    history_retention_ms: int
    segment_interval_ms: int


@dataclass(frozen=True, slots=True)
class SessionSupplier:
    """Location and retention of a session store, in ms (`SessionBytesStoreSupplier`). `with_headers`: for a store with headers."""

    name: str
    persistent: bool
    retention_ms: int
    with_headers: bool = False

    @property
    def segment_interval_ms(self) -> int:
        """Length of a segment in ms."""
        return segment_ms(self.retention_ms)


S = TypeVar("S", bound=EngineStore)


@dataclass(frozen=True, slots=True)
class Builder(Generic[S]):
    """Settings of a store, and how to build it. Each `with_` method returns a new builder."""

    settings: StoreSettings
    make: Callable[[StoreSettings], S]

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def logging_enabled(self) -> bool:
        return self.settings.logging

    @property
    def caching_enabled(self) -> bool:
        return self.settings.caching

    def changelog_config(self) -> Mapping[str, str]:
        """Return the topic settings of the changelog."""
        return self.settings.changelog_config()

    def with_caching_enabled(self) -> Builder[S]:
        """Fold updates by key before they are forwarded. A store that retains duplicates has nothing to fold, so it stays without a cache,
        as in Kafka Streams; so does one with a maximum number of entries. Raises ValueError for a versioned store."""
        if isinstance(self.settings.times, VersionSettings):
            raise ValueError(f"store {self.name}: versioned stores do not support caching")
        if isinstance(self.settings.times, WindowSettings) and self.settings.times.retain_duplicates:
            logger.warning("store %s retains duplicates: caching stays off", self.name)
            return self
        if self.settings.max_entries is not None:
            return self
        return replace(self, settings=replace(self.settings, caching=True))

    def with_caching_disabled(self) -> Builder[S]:
        """Forward every update."""
        return replace(self, settings=replace(self.settings, caching=False))

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> Builder[S]:
        """Use a changelog topic; `config` adds to its settings or overrides them."""
        return replace(self, settings=replace(self.settings, logging=True, logging_config=dict(config or {})))

    def with_logging_disabled(self) -> Builder[S]:
        """Use no changelog: the state cannot be restored."""
        return replace(self, settings=replace(self.settings, logging=False, logging_config={}))

    def build(self) -> S:
        """Return a new store, closed."""
        return self.make(self.settings)


class Stores:
    """The factories of Kafka Streams' `Stores`. Names follow Kafka's rules for topics, because a changelog is named after its store."""

    @staticmethod
    def persistent_key_value_store(name: str, *, ttl: Duration | None = None) -> KeyValueSupplier:
        """Return a supplier of a key-value store in RocksDB. With a `ttl`, which is for `timestamped_key_value_store_builder`, an entry
        expires when stream time is that long past its timestamp."""
        return KeyValueSupplier(_checked(name), True, ttl_ms=checked_ttl_ms(ttl, f"the time to live of store {name}"))

    @staticmethod
    def persistent_timestamped_key_value_store(name: str, *, ttl: Duration | None = None) -> KeyValueSupplier:
        """Return a supplier of a key-value store in RocksDB; for `timestamped_key_value_store_builder`. `ttl`: as above."""
        return KeyValueSupplier(_checked(name), True, ttl_ms=checked_ttl_ms(ttl, f"the time to live of store {name}"))

    @staticmethod
    def persistent_timestamped_key_value_store_with_headers(name: str) -> KeyValueSupplier:
        """Return a supplier of a key-value store in RocksDB; for `timestamped_key_value_store_with_headers_builder` (KIP-1271)."""
        return KeyValueSupplier(_checked(name), True, with_headers=True)

    @staticmethod
    def in_memory_key_value_store(name: str, *, ttl: Duration | None = None) -> KeyValueSupplier:
        """Return a supplier of a key-value store in memory, which is rebuilt from the changelog at each start. `ttl`: as above."""
        return KeyValueSupplier(_checked(name), False, ttl_ms=checked_ttl_ms(ttl, f"the time to live of store {name}"))

    @staticmethod
    def lru_map(name: str, max_cache_size: int) -> KeyValueSupplier:
        """Return a supplier of a key-value store in memory that keeps the `max_cache_size` most recently used entries and deletes others.
        Raises ValueError below 1."""
        if max_cache_size < 1:
            raise ValueError(f"store {name}: it keeps at least 1 entry, not {max_cache_size}")
        return KeyValueSupplier(_checked(name), False, max_cache_size)

    @staticmethod
    def persistent_window_store(
        name: str, retention_period: Duration, window_size: Duration, retain_duplicates: bool = False
    ) -> WindowSupplier:
        """Return a supplier of a window store in RocksDB. `retain_duplicates`: a put adds a value to those of its key and time, as joins
        need it. Raises ValueError when the retention is shorter than a window."""
        return _window_supplier(name, True, retention_period, window_size, retain_duplicates)

    @staticmethod
    def persistent_timestamped_window_store(
        name: str, retention_period: Duration, window_size: Duration, retain_duplicates: bool = False
    ) -> WindowSupplier:
        """Return a supplier of a window store in RocksDB; for `timestamped_window_store_builder`."""
        return _window_supplier(name, True, retention_period, window_size, retain_duplicates)

    @staticmethod
    def persistent_timestamped_window_store_with_headers(
        name: str, retention_period: Duration, window_size: Duration, retain_duplicates: bool = False
    ) -> WindowSupplier:
        """Return a supplier of a window store in RocksDB; for `timestamped_window_store_with_headers_builder` (KIP-1271)."""
        return replace(_window_supplier(name, True, retention_period, window_size, retain_duplicates), with_headers=True)

    @staticmethod
    def in_memory_window_store(
        name: str, retention_period: Duration, window_size: Duration, retain_duplicates: bool = False
    ) -> WindowSupplier:
        """Return a supplier of a window store in memory, which is rebuilt from the changelog at each start."""
        return _window_supplier(name, False, retention_period, window_size, retain_duplicates)

    @staticmethod
    def persistent_session_store(name: str, retention_period: Duration) -> SessionSupplier:
        """Return a supplier of a session store in RocksDB. `retention_period` must be as long as the inactivity gap and the grace period
        together."""
        return SessionSupplier(_checked(name), True, to_ms(retention_period, "the retention period"))

    @staticmethod
    def persistent_session_store_with_headers(name: str, retention_period: Duration) -> SessionSupplier:
        """Return a supplier of a session store in RocksDB; for `session_store_with_headers_builder` (KIP-1271)."""
        return replace(Stores.persistent_session_store(name, retention_period), with_headers=True)

    @staticmethod
    def in_memory_session_store(name: str, retention_period: Duration) -> SessionSupplier:
        """Return a supplier of a session store in memory, which is rebuilt from the changelog at each start."""
        return SessionSupplier(_checked(name), False, to_ms(retention_period, "the retention period"))

    @staticmethod
    def persistent_versioned_key_value_store(
        name: str, history_retention: Duration, segment_interval: Duration | None = None
    ) -> VersionedSupplier:
        """Return a supplier of a versioned store in RocksDB. An older version can be read until `history_retention` after the end of its
        validity, and nothing older than that can be put. It is in a segment of `segment_interval`, which is dropped as a whole (default:
        as Kafka Streams). Raises ValueError when the interval is shorter than 1 ms."""
        return _versioned_supplier(name, True, history_retention, segment_interval)

    @staticmethod
    def in_memory_versioned_key_value_store(name: str, history_retention: Duration) -> VersionedSupplier:
        """Return a supplier of a versioned store in memory, which is rebuilt from the changelog at each start."""
        return _versioned_supplier(name, False, history_retention, None)

    @staticmethod
    def key_value_store_builder(supplier: KeyValueSupplier, key_serde: Serde, value_serde: Serde) -> Builder[StagedKeyValueStore]:
        """Return a builder for plain values. Raises ValueError for a supplier with a time to live, which needs timestamps."""
        _check(KeyValueSupplier, supplier, key_serde, value_serde)
        if supplier.ttl_ms is not None:
            raise ValueError(f"store {supplier.name}: entries expire by their timestamps; use timestamped_key_value_store_builder")
        return _key_value_builder(supplier, StoreSettings(supplier.name, supplier.persistent, key_serde, value_serde))

    @staticmethod
    def timestamped_key_value_store_builder(
        supplier: KeyValueSupplier, key_serde: Serde, value_serde: Serde
    ) -> Builder[StagedKeyValueStore]:
        """Return a builder for values with their timestamp, as in the stores of tables."""
        _check(KeyValueSupplier, supplier, key_serde, value_serde)
        settings = StoreSettings(supplier.name, supplier.persistent, key_serde, value_serde, timestamped=True)
        return _key_value_builder(supplier, settings)

    @staticmethod
    def timestamped_key_value_store_with_headers_builder(
        supplier: KeyValueSupplier, key_serde: Serde, value_serde: Serde
    ) -> Builder[StagedKeyValueStore]:
        """Return a builder for values with their timestamp and headers: the store takes and gives `ValueTimestampHeaders`. Its value serde
        gets these headers. With any supplier of key-value stores; of Kafka Streams', others than its own forget the headers. Raises
        ValueError for a supplier with a time to live."""
        _check(KeyValueSupplier, supplier, key_serde, value_serde, headers=True)
        if supplier.ttl_ms is not None:
            raise ValueError(f"store {supplier.name}: a store with headers has no time to live; use timestamped_key_value_store_builder")
        settings = StoreSettings(supplier.name, supplier.persistent, key_serde, value_serde, timestamped=True, headers=True)
        return _key_value_builder(supplier, settings)

    @staticmethod
    def window_store_builder(supplier: WindowSupplier, key_serde: Serde, value_serde: Serde) -> Builder[StagedWindowStore]:
        """Return a builder for plain values."""
        _check(WindowSupplier, supplier, key_serde, value_serde)
        return Builder(_window_settings(supplier, key_serde, value_serde, False), _window_store(supplier))

    @staticmethod
    def timestamped_window_store_builder(supplier: WindowSupplier, key_serde: Serde, value_serde: Serde) -> Builder[StagedWindowStore]:
        """Return a builder for values with their timestamp, as in the stores of windowed tables."""
        _check(WindowSupplier, supplier, key_serde, value_serde)
        return Builder(_window_settings(supplier, key_serde, value_serde, True), _window_store(supplier))

    @staticmethod
    def timestamped_window_store_with_headers_builder(
        supplier: WindowSupplier, key_serde: Serde, value_serde: Serde
    ) -> Builder[StagedWindowStore]:
        """Return a builder for values with their timestamp and headers, as `timestamped_key_value_store_with_headers_builder`."""
        _check(WindowSupplier, supplier, key_serde, value_serde, headers=True)
        settings = replace(_window_settings(supplier, key_serde, value_serde, True), headers=True)
        return Builder(settings, _window_store(supplier))

    @staticmethod
    def session_store_builder(supplier: SessionSupplier, key_serde: Serde, value_serde: Serde) -> Builder[StagedSessionStore]:
        """Return a builder for sessions with plain values."""
        _check(SessionSupplier, supplier, key_serde, value_serde)
        times = SessionSettings(supplier.retention_ms)
        return Builder(StoreSettings(supplier.name, supplier.persistent, key_serde, value_serde, times=times), StagedSessionStore)

    @staticmethod
    def session_store_with_headers_builder(supplier: SessionSupplier, key_serde: Serde, value_serde: Serde) -> Builder[StagedSessionStore]:
        """Return a builder for sessions with headers: the store takes and gives `AggregationWithHeaders`. Its value serde gets these
        headers."""
        _check(SessionSupplier, supplier, key_serde, value_serde, headers=True)
        times = SessionSettings(supplier.retention_ms)
        settings = StoreSettings(supplier.name, supplier.persistent, key_serde, value_serde, times=times, headers=True)
        return Builder(settings, StagedSessionStore)

    @staticmethod
    def versioned_key_value_store_builder(
        supplier: VersionedSupplier, key_serde: Serde, value_serde: Serde
    ) -> Builder[StagedVersionedStore]:
        """Return a builder for values with their history. They have no caching, as in Kafka Streams: `with_caching_enabled` raises
        ValueError."""
        _check(VersionedSupplier, supplier, key_serde, value_serde)
        times = VersionSettings(supplier.history_retention_ms, supplier.segment_interval_ms)
        return Builder(StoreSettings(supplier.name, supplier.persistent, key_serde, value_serde, times=times), StagedVersionedStore)


def _key_value_builder(supplier: KeyValueSupplier, settings: StoreSettings) -> Builder[StagedKeyValueStore]:
    if supplier.ttl_ms is not None:
        return Builder(replace(settings, ttl_ms=supplier.ttl_ms), StagedExpiringStore)
    if supplier.max_entries is None:
        return Builder(settings, StagedKeyValueStore)
    return Builder(replace(settings, max_entries=supplier.max_entries), StagedLruStore)


def checked_ttl_ms(ttl: Duration | None, what: str = "the time to live") -> int | None:
    """Return a time to live in ms. Raises ValueError below 1 ms, TypeError for another type; `what` begins the message."""
    milliseconds = None if ttl is None else length_ms(ttl, what)
    if milliseconds == 0:
        raise ValueError(f"{what} is at least 1 ms")
    return milliseconds


def _window_store(supplier: WindowSupplier) -> Callable[[StoreSettings], StagedWindowStore]:
    return StagedDuplicatesStore if supplier.retain_duplicates else StagedWindowStore


def _window_settings(supplier: WindowSupplier, key_serde: Serde, value_serde: Serde, timestamped: bool) -> StoreSettings:
    times = WindowSettings(supplier.window_size_ms, supplier.retention_ms, supplier.retain_duplicates)
    return StoreSettings(supplier.name, supplier.persistent, key_serde, value_serde, timestamped=timestamped, times=times)


def _window_supplier(name: str, persistent: bool, retention: Duration, size: Duration, retain_duplicates: bool) -> WindowSupplier:
    retention_ms, size_ms = to_ms(retention, "the retention period"), to_ms(size, "the window size")
    if retention_ms < size_ms or size_ms == 0:
        raise ValueError(f"store {name}: the retention ({retention_ms} ms) is shorter than a window ({size_ms} ms), or the window is empty")
    return WindowSupplier(_checked(name), persistent, retention_ms, size_ms, retain_duplicates)


def _versioned_supplier(name: str, persistent: bool, retention: Duration, interval: Duration | None) -> VersionedSupplier:
    retention_ms = to_ms(retention, "the history retention")
    interval_ms = version_segment_ms(retention_ms) if interval is None else to_ms(interval, "the segment interval")
    if interval_ms < 1:
        raise ValueError(f"store {name}: a segment has at least 1 ms, not {interval_ms}")
    return VersionedSupplier(_checked(name), persistent, retention_ms, interval_ms)


def _checked(name: str) -> str:
    """Return the name, if it is valid for a topic (Kafka's `Topic.validate`). Raises ValueError."""
    if not name or name in (".", "..") or len(name) > 249 or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        raise ValueError(f"{name!r} cannot name a store: 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-'")
    return name


_MADE_BY = {
    KeyValueSupplier: "persistent_key_value_store(name)",
    WindowSupplier: "persistent_window_store(name, retention, window_size)",
    SessionSupplier: "persistent_session_store(name, retention)",
    VersionedSupplier: "persistent_versioned_key_value_store(name, history)",
}
"""Factory methods of each kind of supplier, for messages."""


def _check(
    kind: type, supplier: KeyValueSupplier | WindowSupplier | SessionSupplier | VersionedSupplier, *serdes: object, headers: bool = False
) -> None:
    """Raise TypeError for a supplier of another kind of store, or a name alone, for one of a store with headers unless `headers`, and for
    an argument that is not a serde."""
    if not isinstance(supplier, kind):
        raise TypeError(f"expected a supplier, made by Stores.{_MADE_BY[kind]}, not {supplier!r}")
    if not headers and getattr(supplier, "with_headers", False):
        raise TypeError(
            f"store {supplier.name}: its supplier is for a store with headers: use a builder whose name ends in with_headers_builder"
        )
    for serde in serdes:
        if not isinstance(serde, Serde):
            raise TypeError(f"store {supplier.name}: {serde!r} is not a Serde; for example penstock.serdes.STRING")
