"""State stores: committed data in RocksDB or in memory, uncommitted data staged over it (KIP-892)."""

from runtime.stores.base import (
    EngineStore,
    Entry,
    KeyValueStore,
    ReadOnlyKeyValueStore,
    ReadOnlyWindowStore,
    StateStore,
    StoreBuilder,
    StoreContext,
    StoreLayout,
    WindowStore,
)
from runtime.stores.budget import StoreMemory
from runtime.stores.suppliers import KeyValueSupplier, Stores, WindowSupplier

__all__ = [
    "EngineStore",
    "Entry",
    "KeyValueStore",
    "KeyValueSupplier",
    "ReadOnlyKeyValueStore",
    "ReadOnlyWindowStore",
    "StateStore",
    "StoreBuilder",
    "StoreContext",
    "StoreLayout",
    "StoreMemory",
    "Stores",
    "WindowStore",
    "WindowSupplier",
]
