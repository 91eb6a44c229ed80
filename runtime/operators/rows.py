"""Reading a table's rows with their timestamps, for joins of tables (Kafka Streams' `KTableValueGetter`, `KeyValueStoreWrapper`).

A stream-table join needs only a row's value, and uses the faster `OperatorSupplier.value_getter`.
"""

from __future__ import annotations

from typing import cast

from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.record import Windowed
from penstock.runtime.operators.context import NodeContext, Row, RowGetter
from penstock.runtime.operators.materialized import key_bytes
from penstock.runtime.serdes.keys import pack_session_suffix, pack_window_suffix
from penstock.runtime.stores.base import EntryStore
from penstock.runtime.stores.session import StagedSessionStore
from penstock.runtime.stores.versioned import StagedVersionedStore
from penstock.runtime.stores.window import StagedWindowStore


def is_versioned(context: NodeContext, store_name: str) -> bool:
    """Return True if a store of the task is a versioned store."""
    return isinstance(context.task.store(store_name), StagedVersionedStore)


def store_rows(context: NodeContext, store_name: str) -> RowGetter:
    """Return a function that reads rows from their store, including uncommitted updates."""
    store = context.task.store(store_name)
    if isinstance(store, StagedVersionedStore):
        return _versioned_rows(store)
    if not isinstance(store, EntryStore):
        raise InvalidStateStoreError(f"node {context.name}: a table's rows cannot be read from a store like {store_name!r}")
    to_bytes, load, value_of = key_bytes(store), store.entry, store.value_of
    windowed, session = isinstance(store, StagedWindowStore), isinstance(store, StagedSessionStore)

    def get(key: object, as_of: int | None) -> Row | None:
        if windowed:
            inner, window = cast(Windowed, key)
            raw = to_bytes(inner) + pack_window_suffix(window.start, 0)
        elif session:
            inner, window = cast(Windowed, key)
            raw = to_bytes(inner) + pack_session_suffix(window.end, window.start)
            value = value_of(load(raw))
            return None if value is None else (value, window.end)  # a session store has no timestamps
        else:
            raw = to_bytes(key)
        entry = load(raw)
        return None if entry.value is None else (value_of(entry), entry.timestamp)

    return get


def _versioned_rows(store: StagedVersionedStore) -> RowGetter:
    read = store.get

    def get(key: object, as_of: int | None) -> Row | None:
        version = read(key, as_of)
        return None if version is None else (version.value, version.timestamp)

    return get
