"""The stores of tables over windows, as `Materialized` asks for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from runtime.dsl.graph import configured, store_factory
from runtime.dsl.options import Materialized
from runtime.dsl.windows import SessionWindows, SlidingWindows, Windows
from runtime.durations import to_ms
from runtime.errors import TopologyError
from runtime.serdes import session_windowed, time_windowed
from runtime.serdes.serde import Serde
from runtime.stores.base import EngineStore
from runtime.stores.settings import SessionSettings, WindowSettings
from runtime.stores.suppliers import Builder, SessionSupplier, Stores, WindowSupplier
from runtime.topology.draft import StoreFactory
from runtime.topology.nodes import wrapped
from runtime.type_variables import K

S = TypeVar("S", bound=EngineStore)


def window_store(
    name: str, materialized: Materialized, key: Serde | None, value: Serde | None, windows: Windows | SlidingWindows
) -> StoreFactory:
    """The timestamped store of a windowed table; windows are kept as long as they can change, or longer. `key` is the serde of the inner
    key."""
    size = window_size_ms(windows)
    least, why = size + windows.grace_period_ms, "window size plus grace"
    if isinstance(windows, SlidingWindows):  # a record looks back at the windows before its own
        least, why = 2 * size + windows.grace_period_ms, "two times the time difference plus grace"
    supplier = materialized.store
    if supplier is None or isinstance(supplier, str):
        make = Stores.in_memory_window_store if materialized.store_type == "in_memory" else Stores.persistent_window_store
        retention = _retention_ms(name, materialized, least, why)
        # A store of windows without extent is one of windows of a millisecond: only their starts are kept.
        supplier = make(name, max(retention, 1), max(size, 1))
    elif not isinstance(supplier, WindowSupplier):
        raise TopologyError(f"store {name}: a windowed table needs a window store, not a {type(supplier).__name__}")
    if supplier.window_size_ms != max(size, 1):
        raise TopologyError(f"store {name}: its windows are of {supplier.window_size_ms} ms, those of the aggregate of {size} ms")
    _check(name, supplier.retention_ms, least, why)
    chosen, longer = supplier, size + 1 if isinstance(windows, SlidingWindows) else 0
    return store_factory(
        name,
        materialized,
        key,
        value,
        lambda k, v: _longer(configured(Stores.timestamped_window_store_builder(chosen, k, v), materialized), longer),
    )


def session_store(name: str, materialized: Materialized, key: Serde | None, value: Serde | None, windows: SessionWindows) -> StoreFactory:
    """The store of a table of sessions; sessions are kept as long as they can change, or longer."""
    least, why = windows.inactivity_gap + windows.grace_period_ms, "inactivity gap plus grace"
    supplier = materialized.store
    if supplier is None or isinstance(supplier, str):
        make = Stores.in_memory_session_store if materialized.store_type == "in_memory" else Stores.persistent_session_store
        supplier = make(name, _retention_ms(name, materialized, least, why))
    elif not isinstance(supplier, SessionSupplier):
        raise TopologyError(f"store {name}: a table of sessions needs a session store, not a {type(supplier).__name__}")
    _check(name, supplier.retention_ms, least, why)
    chosen = supplier
    return store_factory(
        name, materialized, key, value, lambda k, v: _longer(configured(Stores.session_store_builder(chosen, k, v), materialized), 1)
    )


def _longer(builder: Builder[S], longer_ms: int) -> Builder[S]:
    """A store whose windows can be read somewhat longer than its retention says: as long as they can change, or new ones be made from them.
    (Kafka Streams keeps them too short by so much; mostly they are in its cache yet.)"""
    times = builder.settings.times
    assert isinstance(times, WindowSettings | SessionSettings)
    return replace(builder, settings=replace(builder.settings, times=replace(times, longer_ms=longer_ms)))


def _retention_ms(name: str, materialized: Materialized, least: int, why: str) -> int:
    retention = least if materialized.retention is None else to_ms(materialized.retention, "the retention")
    _check(name, retention, least, why)
    return retention


def _check(name: str, retention_ms: int, least_ms: int, why: str) -> None:
    if retention_ms < least_ms:
        raise TopologyError(f"store {name}: its retention of {retention_ms} ms is shorter than {why}, {least_ms} ms")


def window_size_ms(windows: Windows | SlidingWindows) -> int:
    """The size of windows, of sliding ones the time difference."""
    return windows.time_difference_ms if isinstance(windows, SlidingWindows) else windows.size_ms


def window_key(key: Serde[K] | None, windows: Windows | SlidingWindows) -> Serde:
    """The serde of a windowed table's keys, around that of the inner key."""
    return wrapped(key, lambda serde: time_windowed(serde, window_size_ms(windows)))


def session_key(key: Serde[K] | None) -> Serde:
    """The serde of the keys of a table of sessions."""
    return wrapped(key, session_windowed)
