"""KIP-892: every kind of store counts the bytes that it has not committed, so that `statestore.uncommitted.max.bytes` can bring a commit
forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock import serdes
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.record import SessionWindow, Windowed
from penstock.runtime.stores import StoreContext, Stores
from penstock.runtime.stores.base import EngineStore, EntryStore
from penstock.runtime.stores.custom import build_store
from penstock.runtime.stores.suppliers import Builder
from tests.support.own_stores import OwnBuilder

E = TypeVar("E", bound=EngineStore)


@dataclass(frozen=True)
class Kind:
    """A kind of store, and how one place of it is written."""

    make: Callable[[], EngineStore]
    write: Callable[[Any, str, str | None], object]


def _built(builder: Builder[E], caching: bool) -> EngineStore:
    return (builder.with_caching_enabled() if caching else builder).build()


KINDS: dict[str, Kind] = {}
for persistent in (True, False):
    where = "rocksdb" if persistent else "memory"
    key_value = (Stores.persistent_key_value_store if persistent else Stores.in_memory_key_value_store)("s")
    window = (Stores.persistent_window_store if persistent else Stores.in_memory_window_store)("s", 100_000, 1_000)
    session = (Stores.persistent_session_store if persistent else Stores.in_memory_session_store)("s", 100_000)
    versioned = (Stores.persistent_versioned_key_value_store if persistent else Stores.in_memory_versioned_key_value_store)("s", 100_000)
    for caching in (False, True):
        name = f"{where}-{'cached' if caching else 'uncached'}"
        KINDS[f"key-value-{name}"] = Kind(
            partial(_built, Stores.key_value_store_builder(key_value, serdes.STRING, serdes.STRING), caching),
            lambda store, key, value: store.put(key, value),
        )
        KINDS[f"window-{name}"] = Kind(
            partial(_built, Stores.window_store_builder(window, serdes.STRING, serdes.STRING), caching),
            lambda store, key, value: store.put(key, value, 5),
        )
        KINDS[f"session-{name}"] = Kind(
            partial(_built, Stores.session_store_builder(session, serdes.STRING, serdes.STRING), caching),
            lambda store, key, value: store.put(Windowed(key, SessionWindow(1, 5)), value),
        )
    KINDS[f"versioned-{where}"] = Kind(
        partial(_built, Stores.versioned_key_value_store_builder(versioned, serdes.STRING, serdes.STRING), False),
        lambda store, key, value: store.put(key, value, 5),
    )
for own in ("sqlite", "file-staged", "file-at-once"):
    KINDS[f"own-{own}"] = Kind(partial(build_store, OwnBuilder("s", own)), lambda store, key, value: store.put(key, value))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def store(kind: Kind, tmp_path: Path) -> Iterator[EngineStore]:
    made = kind.make()
    made.open(tmp_path, StoreContext("app", tmp_path, TaskId(0, 0)))
    if isinstance(made, EntryStore):
        made.set_flush_listener(lambda key, new, old, timestamp, headers: None)
    yield made
    made.close()


def test_uncommitted_bytes_follow_what_is_written(kind: Kind, store: EngineStore) -> None:
    def uncommitted() -> int:
        return store.approximate_num_uncommitted_bytes

    assert uncommitted() == 0
    kind.write(store.user_store, "a", "x" * 1_000)
    one = uncommitted()
    assert 1_000 < one < 1_300
    kind.write(store.user_store, "a", "x" * 3_000)
    assert uncommitted() == one + 2_000, "the same place, with a longer value"
    kind.write(store.user_store, "b", "x" * 1_000)
    assert uncommitted() == 2 * one + 2_000
    kind.write(store.user_store, "a", None)
    assert one < uncommitted() < 2 * one
    if isinstance(store, EntryStore):
        store.flush_cache()
    list(store.changelog_records())
    store.commit({})
    assert uncommitted() == 0
    kind.write(store.user_store, "b", None)
    assert 0 < uncommitted() < 300
