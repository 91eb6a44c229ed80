"""Materialized tables: how operators with a store read it, write it and forward changes to their children.

The key's bytes and its entry are looked up once per record, for both the read and the write. With caching, changes are forwarded when the
cache is flushed, with the old value that was last forwarded; without, the operator forwards at once (Kafka Streams'
`TimestampedTupleForwarder` and `TimestampedCacheFlushListener`).

Joins of tables read rows with their timestamps by `store_rows` (Kafka Streams' `KTableValueGetter`, `KeyValueStoreWrapper`). A
stream-table join needs only a row's value, and uses the faster `OperatorSupplier.value_getter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.record import Change, Headers, OutOfOrder, Windowed
from penstock.runtime.operators.context import Forward, KeysAhead, LookUp, NodeContext, Row, RowGetter, ValueGetter
from penstock.runtime.serdes.keys import pack_session_suffix, pack_window_suffix
from penstock.runtime.stores.base import Entry, EntryStore, FlushRun
from penstock.runtime.stores.expiring import StagedExpiringStore
from penstock.runtime.stores.versioned import NOT_PUT, VALID_TO_UNDEFINED, StagedVersionedStore
from penstock.runtime.stores.window import StagedSessionStore, StagedWindowStore

KeyBytes = Callable[[object], bytes]

Emit = Callable[[object, object, object, int], None]
"""Forwards a change to the children: key, new value, old value, timestamp."""


class Materialized(NamedTuple):
    """The functions of one store, which an operator binds to local variables."""

    to_bytes: KeyBytes
    """Serialises a record's key."""
    load: Callable[[bytes], Entry]
    update: Callable[[bytes, object, Entry, object, int, Headers | None], None]
    value_of: Callable[[Entry], object]
    """Returns the entry's value, as an object that the caller may modify."""
    objects: bool
    """True if `entry.value` is the value itself, so that `value_of` is not needed."""
    emit: Emit | None
    """None if the cache forwards changes."""
    store: EntryStore | StagedVersionedStore


def change_emitter(context: NodeContext, forward: Forward) -> Emit:
    """Return the function that forwards a table's changes, in the cheapest form that all children accept."""
    plain = context.plain_forward
    if plain is not None:
        only_new = plain

        def emit_value(key: object, new: object, old: object, timestamp: int) -> None:
            only_new(key, new, timestamp)

        return emit_value

    def emit_change(key: object, new: object, old: object, timestamp: int) -> None:
        forward(key, Change(new, old), timestamp)

    def emit_new(key: object, new: object, old: object, timestamp: int) -> None:
        forward(key, Change(new, None), timestamp)

    return emit_change if context.send_old else emit_new


def materialize(context: NodeContext, forward: Forward, store_name: str, listener: Callable[..., None] | None = None) -> Materialized:
    """Bind a node to its store, and the store's cache to the node's children. `listener` replaces the cache's default flush listener, which
    forwards each change."""
    found = context.task.store(store_name)
    if isinstance(found, StagedVersionedStore):
        return _versioned(context, forward, found)
    store = context.engine_store(store_name)
    to_bytes = key_bytes(store)
    emit = change_emitter(context, forward)
    run = None if listener is not None else context.hooks.mark(context.name, flush_run(context, emit))
    store.set_flush_listener(context.hooks.mark(context.name, listener or flush_listener(context, forward, emit)), run)
    cached = store.caching
    if cached:
        context.hooks.caches.append((context.name, store))
    else:
        store.set_flush_listener(None)
    if isinstance(store, StagedExpiringStore):
        return _expiring(context, store, to_bytes, None if cached else emit)
    return Materialized(to_bytes, store.entry, store.update, store.value_of, store.values_are_objects, None if cached else emit, store)


def finder(store: EntryStore | StagedVersionedStore) -> Callable[[bytes], Entry | None]:
    """Return a lookup in memory, None for entries that must be loaded: `find(key) or load(key)` is faster than `load(key)`. It always
    returns None for a versioned store."""
    return store.find if isinstance(store, EntryStore) else lambda key: None


def _expiring(context: NodeContext, store: StagedExpiringStore, to_bytes: KeyBytes, emit: Emit | None) -> Materialized:
    """Bind a node to a store whose entries expire. The tombstone of an expired row is forwarded by the cache, or at once. An update whose
    timestamp has expired is dropped and counted, and not forwarded."""
    drop, send_old, task = context.task.dropped.add, context.send_old, context.task

    def update(raw: bytes, key: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        store.update(raw, key, entry, value, timestamp, headers)
        if store.dropped:
            drop()

    if emit is None:
        return Materialized(to_bytes, store.entry, update, store.value_of, store.values_are_objects, None, store)
    forward = emit

    def emit_kept(key: object, new: object, old: object, timestamp: int) -> None:
        if not store.dropped:
            forward(key, new, old, timestamp)

    def emit_expired(key: object, new: object, old: object, timestamp: int) -> None:
        before = task.headers, task.offset
        task.headers, task.offset = None, -1
        try:
            forward(key, new, old if send_old else None, timestamp)
        finally:
            task.headers, task.offset = before

    store.forward_expired(context.hooks.mark(context.name, emit_expired))
    return Materialized(to_bytes, store.entry, update, store.value_of, store.values_are_objects, emit_kept, store)


def _versioned(context: NodeContext, forward: Forward, store: StagedVersionedStore) -> Materialized:
    """Bind a node to a versioned store. Each update is a version, forwarded at once as `Change` if it is the latest, else as `OutOfOrder`.
    A version that is too old for the store is dropped and counted, and not forwarded."""
    latest, put, read, plain = store.latest, store.put_version, store.value_from, context.plain_forward
    drop, send_old = context.task.dropped.add, context.send_old
    valid_to = VALID_TO_UNDEFINED

    def load(key: bytes) -> Entry:
        row = latest(key)
        return Entry(None, -1) if row is None else Entry(row[1], row[0], key)

    def update(raw: bytes, key: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        nonlocal valid_to
        valid_to = put(raw, value, timestamp)
        if valid_to == NOT_PUT:
            drop()

    def value_of(entry: Entry) -> object:
        return None if entry.value is None else read(cast(bytes, entry.value), cast(bytes, entry.key))

    def emit(key: object, new: object, old: object, timestamp: int) -> None:
        if valid_to == NOT_PUT:
            return
        if plain is not None:
            plain(key, new, timestamp)
        else:
            change = Change if valid_to == VALID_TO_UNDEFINED else OutOfOrder
            forward(key, change(new, old if send_old else None), timestamp)

    return Materialized(cast(KeyBytes, store.key_to_bytes), load, update, value_of, False, emit, store)


def entries_of(context: NodeContext, store_name: str | None, keys: KeysAhead | None = None) -> LookUp | None:
    """Return the look-up of a store's entries for each record; None for no store, and for one without entries (a versioned one)."""
    store = None if store_name is None else context.task.store(store_name)
    return LookUp(store, keys) if isinstance(store, EntryStore) else None


def materialize_silent(context: NodeContext, store_name: str) -> Materialized:
    """Bind a node to a store whose updates are not forwarded one by one, so that its cache has no flush listener."""
    store = context.engine_store(store_name)
    store.set_flush_listener(None)
    return Materialized(key_bytes(store), store.entry, store.update, store.value_of, store.values_are_objects, None, store)


def key_bytes(store: EntryStore) -> KeyBytes:
    """Return the store's key serializer. (A serde that returns null for a key fails in the store's look-up.)"""
    return cast(KeyBytes, store.key_to_bytes)


def flush_listener(context: NodeContext, forward: Forward, emit: Emit) -> Callable[..., None]:
    """Return the function that the cache calls for each evicted or flushed entry."""
    task, plain = context.task, context.plain_forward

    # An eviction happens while another record is processed, whose headers and offset are restored afterwards.
    def flushed(key: object, new: object, old: object, timestamp: int, headers: Headers | None) -> None:
        before = task.headers, task.offset
        task.headers, task.offset = headers, -1
        try:
            emit(key, new, old, timestamp)
        finally:
            task.headers, task.offset = before

    if plain is None:
        return flushed
    only_new = plain

    def flushed_value(key: object, new: object, old: object, timestamp: int, headers: Headers | None) -> None:
        before = task.headers, task.offset
        task.headers, task.offset = headers, -1
        try:
            only_new(key, new, timestamp)
        finally:
            task.headers, task.offset = before

    return flushed_value


def flush_run(context: NodeContext, emit: Emit) -> FlushRun:
    """Return the function that a flush calls with all its entries: as `flush_listener`, without a call per entry. (No record is being
    processed.)"""
    task, plain = context.task, context.plain_forward

    def flushed(entries: Sequence[Entry]) -> None:
        for entry in entries:
            if not entry.unforwarded:
                continue
            entry.unforwarded = False
            task.headers, entry.headers = entry.headers, None
            new, old = entry.value, entry.forwarded_value
            if new is not None or old is not None:
                emit(entry.key, new, old, entry.timestamp)
        task.headers = None

    if plain is None:
        return flushed
    only_new = plain

    def flushed_values(entries: Sequence[Entry]) -> None:
        for entry in entries:
            if not entry.unforwarded:
                continue
            entry.unforwarded = False
            task.headers, entry.headers = entry.headers, None
            new = entry.value
            if new is not None or entry.forwarded_value is not None:
                only_new(entry.key, new, entry.timestamp)
        task.headers = None

    return flushed_values


def store_getter(context: NodeContext, store_name: str) -> ValueGetter:
    """Return a function that reads a table from its store, including uncommitted updates."""
    found = context.task.store(store_name)
    if isinstance(found, StagedVersionedStore):
        versions = found.get
        return lambda key: None if (version := versions(key)) is None else version.value
    store = context.engine_store(store_name)
    to_bytes, value_of = key_bytes(store), store.value_of
    load, find = (store.peek, store.peek) if isinstance(store, StagedExpiringStore) else (store.entry, store.find)

    def get_object(key: object) -> object:
        raw = to_bytes(key)
        return (find(raw) or load(raw)).value

    def get_decoded(key: object) -> object:
        return value_of(load(to_bytes(key)))

    return get_object if store.values_are_objects else get_decoded


def store_rows(context: NodeContext, store_name: str) -> RowGetter:
    """Return a function that reads rows from their store, including uncommitted updates."""
    store = context.task.store(store_name)
    if isinstance(store, StagedVersionedStore):
        return _versioned_rows(store)
    if not isinstance(store, EntryStore):
        raise InvalidStateStoreError(f"node {context.name}: a table's rows cannot be read from a store like {store_name!r}")
    to_bytes, value_of = key_bytes(store), store.value_of
    load = store.peek if isinstance(store, StagedExpiringStore) else store.entry
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
