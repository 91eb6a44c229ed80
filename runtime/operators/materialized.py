"""A table that is kept in a store: how the operators that keep one read it, write it and tell their children.

The store's key bytes and entry are looked up once per record and used for both the read and the write. With caching the children hear of an
update when the cache is flushed, with the old value they last heard of; without, the operator tells them at once (Kafka Streams'
`TimestampedTupleForwarder` and `TimestampedCacheFlushListener`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from runtime.operators.context import Forward, NodeContext, ValueGetter
from runtime.record import Change, Headers, OutOfOrder
from runtime.stores.base import Entry, EntryStore, FlushRun
from runtime.stores.versioned import NOT_PUT, VALID_TO_UNDEFINED, StagedVersionedStore

KeyBytes = Callable[[object], bytes]

Emit = Callable[[object, object, object, int], None]
"""Tells the children: key, new value, old value, timestamp."""


class Materialized(NamedTuple):
    """The functions of one store, for an operator to take into local variables."""

    to_bytes: KeyBytes
    """The bytes of a record's key."""
    load: Callable[[bytes], Entry]
    update: Callable[[bytes, object, Entry, object, int, Headers | None], None]
    value_of: Callable[[Entry], object]
    """The entry's value, as an object of the caller's own."""
    objects: bool
    """`entry.value` is the value; no need for `value_of`."""
    emit: Emit | None
    """None if the cache tells the children."""
    store: EntryStore | StagedVersionedStore


def change_emitter(context: NodeContext, forward: Forward) -> Emit:
    """Tells the children of a table in the cheapest form that they all understand."""
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
    """Binds a node to its store, and the store's cache to the node's children; `listener` is what the cache calls if that is not simply
    to tell them."""
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
    return Materialized(to_bytes, store.entry, store.update, store.value_of, store.values_are_objects, None if cached else emit, store)


def finder(store: EntryStore | StagedVersionedStore) -> Callable[[bytes], Entry | None]:
    """A faster `load` that gives None for what must be loaded, of which a versioned store has nothing: `find(key) or load(key)`."""
    return store.find if isinstance(store, EntryStore) else lambda key: None


def _versioned(context: NodeContext, forward: Forward, store: StagedVersionedStore) -> Materialized:
    """A table with history: an update is a version of its own time, of which the children hear at once whether it is the latest one. A
    version that is too old to be put is dropped and counted, and they hear nothing."""
    latest, put, read, plain = store.latest, store.put_version, store.value_from, context.plain_forward
    drop, send_old = context.task.dropped.add, context.send_old
    valid_to = VALID_TO_UNDEFINED

    def load(key: bytes) -> Entry:
        row = latest(key)
        return Entry(None, -1) if row is None else Entry(row[1], row[0])

    def update(raw: bytes, key: object, entry: Entry, value: object, timestamp: int, headers: Headers | None) -> None:
        nonlocal valid_to
        valid_to = put(raw, value, timestamp)
        if valid_to == NOT_PUT:
            drop()

    def value_of(entry: Entry) -> object:
        return None if entry.value is None else read(cast(bytes, entry.value))

    def emit(key: object, new: object, old: object, timestamp: int) -> None:
        if valid_to == NOT_PUT:
            return
        if plain is not None:
            plain(key, new, timestamp)
        else:
            change = Change if valid_to == VALID_TO_UNDEFINED else OutOfOrder
            forward(key, change(new, old if send_old else None), timestamp)

    return Materialized(cast(KeyBytes, store.key_to_bytes), load, update, value_of, False, emit, store)


def materialize_silent(context: NodeContext, store_name: str) -> Materialized:
    """Binds a node to a store of which the children do not hear by every update: nothing is held back in its cache."""
    store = context.engine_store(store_name)
    store.set_flush_listener(None)
    return Materialized(key_bytes(store), store.entry, store.update, store.value_of, store.values_are_objects, None, store)


def key_bytes(store: EntryStore) -> KeyBytes:
    """The store's serializer of keys. (A serde that makes null of a key is found out by the store, which cannot look it up.)"""
    return cast(KeyBytes, store.key_to_bytes)


def flush_listener(context: NodeContext, forward: Forward, emit: Emit) -> Callable[..., None]:
    """What the cache calls for each entry that it lets go."""
    task, plain = context.task, context.plain_forward

    # An eviction comes in the middle of another record, which needs its own headers afterwards.
    def flushed(key: object, new: object, old: object, timestamp: int, headers: Headers | None) -> None:
        before = task.headers
        task.headers = headers
        emit(key, new, old, timestamp)
        task.headers = before

    if plain is None:
        return flushed
    only_new = plain

    def flushed_value(key: object, new: object, old: object, timestamp: int, headers: Headers | None) -> None:
        before = task.headers
        task.headers = headers
        only_new(key, new, timestamp)
        task.headers = before

    return flushed_value


def flush_run(context: NodeContext, emit: Emit) -> FlushRun:
    """What a flush calls for all entries that it lets go: `flush_listener`, without a call per entry. (No record is being processed.)"""
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
    """Reads a table from its store, uncommitted updates included."""
    found = context.task.store(store_name)
    if isinstance(found, StagedVersionedStore):
        versions = found.get
        return lambda key: None if (version := versions(key)) is None else version.value
    store = context.engine_store(store_name)
    to_bytes, load, find, value_of = key_bytes(store), store.entry, store.find, store.value_of

    def get_object(key: object) -> object:
        raw = to_bytes(key)
        return (find(raw) or load(raw)).value

    def get_decoded(key: object) -> object:
        return value_of(load(to_bytes(key)))

    return get_object if store.values_are_objects else get_decoded
