"""The stores of tables as `Materialized` and `Suppressed` configure them, and the serdes of windowed keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from penstock.runtime.dsl.options import Materialized
from penstock.runtime.dsl.windows import AnyWindows, SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows, Windows
from penstock.runtime.model.clock import to_ms
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.serdes import session_windowed, time_windowed
from penstock.runtime.serdes.serde import Serde, required_serde, resolved_serde, wrapped
from penstock.runtime.stores.base import EngineStore, StateStore, StoreBuilder
from penstock.runtime.stores.buffer import ChangeBuffer
from penstock.runtime.stores.key_value import StagedKeyValueStore
from penstock.runtime.stores.settings import SessionSettings, StoreSettings, WindowSettings
from penstock.runtime.stores.suppliers import Builder, KeyValueSupplier, SessionSupplier, Stores, VersionedSupplier, WindowSupplier
from penstock.runtime.stores.window import StagedSessionStore, StagedWindowStore
from penstock.runtime.topology.nodes import StoreFactory

S = TypeVar("S", bound=EngineStore)


def table_store(
    name: str, materialized: Materialized, key: Serde | None, value: Serde | None, windows: AnyWindows | None = None
) -> StoreFactory:
    """Return the timestamped store of a table, by key, by window or by session. `key` is the serde of the key without its window."""
    if windows is not None and materialized.ttl is not None:
        raise TopologyError(f"store {name}: a table of windows has a retention instead of a ttl")
    match windows:
        case None:
            return key_value_store(name, materialized, key, value)
        case SessionWindows():
            return _session_store(name, materialized, key, value, windows)
    return _window_store(name, materialized, key, value, windows)


def key_value_store(name: str, materialized: Materialized, key: Serde | None, value: Serde | None) -> StoreFactory:
    """Return the timestamped or versioned store of a table without windows. Serdes missing in `materialized` are `key` and `value`, else
    the configured default serdes."""
    supplier = materialized.store
    if isinstance(supplier, WindowSupplier | SessionSupplier):
        raise TopologyError(f"store {name}: a table without windows needs a key-value store, not a {type(supplier).__name__}")
    if isinstance(supplier, VersionedSupplier):
        versions, uncached = supplier, replace(materialized, caching=False)  # versioned stores have no cache
        return _store_factory(
            name, materialized, key, value, lambda k, v: _configured(Stores.versioned_key_value_store_builder(versions, k, v), uncached)
        )
    if not isinstance(supplier, KeyValueSupplier):
        make = Stores.in_memory_key_value_store if materialized.store_type == "in_memory" else Stores.persistent_key_value_store
        supplier = make(name)
    chosen = supplier if materialized.ttl is None else replace(supplier, ttl_ms=to_ms(materialized.ttl))
    if chosen.ttl_ms is not None and chosen.with_headers:
        raise TopologyError(f"store {name}: a store with headers has no ttl; take a supplier of a timestamped store")

    def build(k: Serde, v: Serde) -> Builder[StagedKeyValueStore]:
        if chosen.ttl_ms is not None:  # whatever `dsl.store.format` says
            return _configured(Stores.timestamped_key_value_store_builder(chosen, k, v), materialized)
        builder = _configured(Stores.timestamped_key_value_store_with_headers_builder(chosen, k, v), materialized)
        return _with_headers(builder, materialized, chosen)

    return _store_factory(name, materialized, key, value, build)


def _window_store(
    name: str, materialized: Materialized, key: Serde | None, value: Serde | None, windows: Windows | SlidingWindows
) -> StoreFactory:
    """Return the timestamped store of a windowed table. It keeps a window for at least as long as the window can change."""
    size = _window_size_ms(windows)
    least, why = size + windows.grace_period_ms, "window size plus grace"
    if isinstance(windows, SlidingWindows):  # a record reads the windows before its own
        least, why = 2 * size + windows.grace_period_ms, "two times the time difference plus grace"
    supplier = materialized.store
    if supplier is None or isinstance(supplier, str):
        make = Stores.in_memory_window_store if materialized.store_type == "in_memory" else Stores.persistent_window_store
        retention = _retention_ms(name, materialized, least, why)
        # Only the start of a window is stored, so a window of length 0 is stored as one of a millisecond.
        supplier = make(name, max(retention, 1), max(size, 1))
    elif not isinstance(supplier, WindowSupplier):
        raise TopologyError(f"store {name}: a windowed table needs a window store, not a {type(supplier).__name__}")
    if supplier.window_size_ms != max(size, 1):
        raise TopologyError(f"store {name}: its windows are of {supplier.window_size_ms} ms, those of the aggregate of {size} ms")
    _check_retention(name, supplier.retention_ms, least, why)
    chosen, longer, starts = supplier, size + 1 if isinstance(windows, SlidingWindows) else 0, _starts(windows)

    def build(k: Serde, v: Serde) -> Builder[StagedWindowStore]:
        builder = _configured(Stores.timestamped_window_store_with_headers_builder(chosen, k, v), materialized)
        return _with_headers(_with_window_times(builder, longer, starts), materialized, chosen)

    return _store_factory(name, materialized, key, value, build)


def _session_store(name: str, materialized: Materialized, key: Serde | None, value: Serde | None, windows: SessionWindows) -> StoreFactory:
    """Return the store of a table of sessions. It keeps a session for at least as long as the session can change."""
    least, why = windows.inactivity_gap + windows.grace_period_ms, "inactivity gap plus grace"
    supplier = materialized.store
    if supplier is None or isinstance(supplier, str):
        make = Stores.in_memory_session_store if materialized.store_type == "in_memory" else Stores.persistent_session_store
        supplier = make(name, _retention_ms(name, materialized, least, why))
    elif not isinstance(supplier, SessionSupplier):
        raise TopologyError(f"store {name}: a table of sessions needs a session store, not a {type(supplier).__name__}")
    _check_retention(name, supplier.retention_ms, least, why)
    chosen, starts = supplier, f"after a gap of {windows.inactivity_gap} ms"

    def build(k: Serde, v: Serde) -> Builder[StagedSessionStore]:
        builder = _configured(Stores.session_store_with_headers_builder(chosen, k, v), materialized)
        return _with_headers(_with_window_times(builder, 1, starts), materialized, chosen)

    return _store_factory(name, materialized, key, value, build)


def buffer_store(name: str, logging: Mapping[str, str] | None, key: Serde | None, value: Serde | None) -> StoreFactory:
    """Return the buffer of a suppressed table. `logging`: settings of its changelog topic; None for no changelog."""

    def build(default_key: Serde | None, default_value: Serde | None) -> Builder[ChangeBuffer]:
        settings = StoreSettings(
            name,
            True,
            resolved_serde(key, default_key, "key", f"store {name}"),
            resolved_serde(value, default_value, "value", f"store {name}"),
            logging=logging is not None,
            logging_config=dict(logging or {}),
            buffer=True,
        )
        return Builder(settings, ChangeBuffer)

    return build


def table_key(key: Serde | None, windows: AnyWindows | None) -> Serde | None:
    """Return the serde of a table's keys: that of `Windowed` keys if the table has windows. `key` is the serde of the key without its
    window."""
    match windows:
        case None:
            return key
        case SessionWindows():
            return wrapped(key, session_windowed)
    return wrapped(key, lambda serde: time_windowed(serde, _window_size_ms(windows)))


def _store_factory(
    name: str,
    materialized: Materialized,
    key: Serde | None,
    value: Serde | None,
    build: Callable[[Serde, Serde], StoreBuilder[StateStore]],
) -> StoreFactory:
    key, value = materialized.key or key, materialized.value or value
    return lambda default_key, default_value: build(
        required_serde(key or default_key, "key", f"store {name}"), required_serde(value or default_value, "value", f"store {name}")
    )


def _configured(builder: Builder[S], materialized: Materialized) -> Builder[S]:
    """Apply the caching and logging of `materialized`."""
    builder = builder.with_caching_enabled() if materialized.caching else builder.with_caching_disabled()
    if materialized.logging is False:
        return builder.with_logging_disabled()
    return builder.with_logging_enabled({} if materialized.logging is True else materialized.logging)


def _with_headers(
    builder: Builder[S], materialized: Materialized, supplier: KeyValueSupplier | WindowSupplier | SessionSupplier
) -> Builder[S]:
    """Decide whether a store keeps headers, as Kafka Streams does: one of the user's supplier as that says; in RocksDB as
    `dsl.store.format` says; in memory never."""
    own = not isinstance(materialized.store, str | None)
    headers = supplier.with_headers if own or not supplier.persistent else None
    return replace(builder, settings=replace(builder.settings, headers=headers))


def _with_window_times(builder: Builder[S], longer_ms: int, starts: str) -> Builder[S]:
    """Declare where windows start, and keep them readable for `longer_ms` beyond the retention: as long as they can change, or new windows
    can be computed from them. (Kafka Streams drops them that much too early, which its cache mostly hides.)"""
    times = builder.settings.times
    assert isinstance(times, WindowSettings | SessionSettings)
    return replace(builder, settings=replace(builder.settings, times=replace(times, longer_ms=longer_ms, starts=starts)))


def _starts(windows: Windows | SlidingWindows) -> str:
    """Return the starts of windows, as text for the recorded shape of the state. Of a user's own class only the name is known."""
    match windows:
        case TimeWindows():
            return f"every {windows.advance_ms} ms"
        case UnlimitedWindows():
            return f"at {windows.start_ms}"
        case SlidingWindows():
            return "at records"
    return f"as {type(windows).__qualname__} says"


def _retention_ms(name: str, materialized: Materialized, least: int, why: str) -> int:
    retention = least if materialized.retention is None else to_ms(materialized.retention, "the retention")
    _check_retention(name, retention, least, why)
    return retention


def _check_retention(name: str, retention_ms: int, least_ms: int, why: str) -> None:
    if retention_ms < least_ms:
        raise TopologyError(f"store {name}: its retention of {retention_ms} ms is shorter than {why}, {least_ms} ms")


def _window_size_ms(windows: Windows | SlidingWindows) -> int:
    return windows.time_difference_ms if isinstance(windows, SlidingWindows) else windows.size_ms
