"""State stores: committed data in RocksDB or in memory, uncommitted data staged over it (KIP-892)."""

from penstock.runtime.stores.base import EngineStore, Entry, EntryStore, StateStore, StoreBuilder, StoreContext, StoreLayout
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.interfaces import (
    KeyValueStore,
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
    SessionStore,
    VersionedKeyValueStore,
    WindowStore,
)
from penstock.runtime.stores.suppliers import KeyValueSupplier, SessionSupplier, Stores, VersionedSupplier, WindowSupplier

__all__ = [
    "EngineStore",
    "Entry",
    "EntryStore",
    "KeyValueStore",
    "KeyValueSupplier",
    "ReadOnlyKeyValueStore",
    "ReadOnlySessionStore",
    "ReadOnlyVersionedStore",
    "ReadOnlyWindowStore",
    "SessionStore",
    "SessionSupplier",
    "StateStore",
    "StoreBuilder",
    "StoreContext",
    "StoreLayout",
    "StoreMemory",
    "Stores",
    "VersionedKeyValueStore",
    "VersionedSupplier",
    "WindowStore",
    "WindowSupplier",
]
