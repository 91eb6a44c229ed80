"""Sessions that grow before they are committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.model.record import SessionWindow, Windowed
from penstock.runtime.serdes.keys import session_key
from penstock.runtime.stores import Stores
from penstock.runtime.stores.backed import UPDATE_BYTES
from penstock.runtime.stores.base import Entry
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.window import StagedSessionStore
from tests.support.stores import Opened

RETENTION = 1_000


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Opened[StagedSessionStore]]:
    def make() -> StagedSessionStore:
        supplier = Stores.persistent_session_store("store", RETENTION)
        store = Stores.session_store_builder(supplier, serdes.STRING, serdes.LONG).with_caching_enabled().build()
        assert isinstance(store, StagedSessionStore)
        return store

    opened = Opened(make, tmp_path, StoreMemory(cache_max_bytes=1 << 20))
    opened.store.set_flush_listener(lambda *change: forwarded.append(change[:3]))
    yield opened
    forwarded.clear()
    opened.store.close()


forwarded: list[tuple[object, object, object]] = []


def added(store: StagedSessionStore, end: int, value: int) -> Entry:
    """Add the session from 0 to `end` of the key a, as the operator does."""
    key = session_key(b"a", 0, end)
    entry = store.entry(key)
    store.update(key, Windowed("a", SessionWindow(0, end)), entry, value, end, None)
    return entry


def extended(store: StagedSessionStore, entry: Entry, end: int, longer: int, value: int) -> bool:
    windowed = Windowed("a", SessionWindow(0, longer))
    return store.extend(session_key(b"a", 0, end), session_key(b"a", 0, longer), windowed, entry, value, longer, None)


def test_a_session_that_grows_before_it_is_committed_leaves_nothing_behind(sessions: Opened[StagedSessionStore]) -> None:
    store = sessions.store
    entry = added(store, 5, 1)
    assert [row[0] for row in store._staged_range(None, None)] == [session_key(b"a", 0, 5)]
    assert extended(store, entry, 5, 9, 2)
    assert extended(store, entry, 9, 12, 3)
    assert [row[0] for row in store._staged_range(None, None)] == [session_key(b"a", 0, 12)]
    assert store.flush_cache()
    assert forwarded == [(Windowed("a", SessionWindow(0, 12)), 3, None)]
    assert [key for key, *_ in store.changelog_records()] == [session_key(b"a", 0, 12)]
    sessions.commit(1)
    assert list(sessions.reopened().all()) == [(Windowed("a", SessionWindow(0, 12)), 3)]


def test_a_session_that_is_stored_or_forwarded_must_be_deleted(sessions: Opened[StagedSessionStore]) -> None:
    store = sessions.store
    entry = added(store, 5, 1)
    sessions.commit(1)
    added(store, 5, 2)
    assert not extended(store, entry, 5, 9, 3)  # stored
    store.update(session_key(b"a", 0, 5), None, entry, None, 6, None)
    store.flush_cache()
    added(store, 5, 3)
    assert not extended(store, entry, 5, 9, 4)  # deleted and added again: still stored
    other = added(store, 7, 1)
    store.flush_cache()
    assert not extended(store, other, 7, 9, 2)  # downstream has it
    store.update(session_key(b"a", 0, 7), None, other, 2, 8, None)
    assert not extended(store, other, 7, 9, 2)  # and waits for the next value


def test_a_session_cannot_be_extended_to_an_expired_time(sessions: Opened[StagedSessionStore]) -> None:
    store = sessions.store
    entry = added(store, 5, 1)
    added(store, 5 + 2 * RETENTION, 1)
    assert not extended(store, entry, 5, 9, 2)


def test_a_full_cache_passes_over_sessions_that_have_moved(sessions: Opened[StagedSessionStore]) -> None:
    """The cache's order is that of an earlier look: it has keys that are no longer there."""
    store = sessions.store
    store._cache.limit = 4 * (UPDATE_BYTES + 25)  # a key of 17 bytes and a value of 8
    entries = {end: added(store, end, end) for end in range(1, 8)}
    assert store._waiting < 7  # some were evicted
    waiting = [end for end, entry in entries.items() if entry.unforwarded]
    assert extended(store, entries[waiting[0]], waiting[0], 100, 1)
    for end in range(200, 240):
        added(store, end, end)
    sessions.commit(1)
    assert (Windowed("a", SessionWindow(0, 100)), 1) in list(store.all())
    assert len(forwarded) == len(list(store.all()))
