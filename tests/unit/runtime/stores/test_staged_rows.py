"""Rows that are put without reading those before: subscriptions of a foreign-key join."""

from __future__ import annotations

from pathlib import Path

from penstock import serdes
from penstock.runtime.stores import Stores
from penstock.runtime.stores.key_value import StagedKeyValueStore
from tests.support.stores import Opened


def rows(store: StagedKeyValueStore, prefix: bytes) -> list[tuple[object, object]]:
    return list(store.prefix_scan(prefix))


def test_they_are_seen_by_ranges_at_once_and_replace_what_is_stored(tmp_path: Path) -> None:
    def make() -> StagedKeyValueStore:
        store = Stores.key_value_store_builder(Stores.persistent_key_value_store("store"), serdes.BYTES, serdes.STRING).build()
        assert isinstance(store, StagedKeyValueStore)
        return store

    opened = Opened(make, tmp_path)
    store = opened.store
    store.stage(b"a1", "old", 1)
    store.stage(b"a2", "old", 1)
    counted = store.approximate_num_uncommitted_bytes
    store.stage(b"a1", "new", 2)
    assert store.approximate_num_uncommitted_bytes == counted, "one key is counted once"
    assert rows(store, b"a") == [(b"a1", "new"), (b"a2", "old")]
    opened.commit(1)
    store.stage(b"a1", None, 3)
    store.stage(b"a2", "newer", 3)
    store.stage(b"a0", "first", 3)
    assert rows(store, b"a") == [(b"a0", "first"), (b"a2", "newer")]
    store.rollback()
    assert rows(store, b"a") == [(b"a1", "new"), (b"a2", "old")]
    store.stage(b"a1", None, 3)
    store.stage(b"a2", "newer", 3)
    opened.commit(2)
    again = opened.reopened()
    assert rows(again, b"a") == [(b"a2", "newer")]
    again.close()
