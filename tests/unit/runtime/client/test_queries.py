"""Interactive queries over several parts of a store, of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from penstock import QueryableStoreTypes, SessionWindow, StoreQueryParameters, ValueAndTimestamp, VersionedRecord, Windowed, serdes
from penstock.runtime.model.errors import InvalidStateStoreError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.stores import StoreContext, Stores
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.stores.custom import build_store
from penstock.runtime.worker.queries import StoreQuery
from tests.support.own_stores import OwnBuilder

Opened = Callable[[str, int], EngineStore]


def builder_of(kind: str) -> EngineStore:
    match kind:
        case "key-value":
            supplier = Stores.in_memory_key_value_store("s")
            return Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()
        case "window":
            return Stores.window_store_builder(Stores.in_memory_window_store("s", 10_000, 10), serdes.STRING, serdes.LONG).build()
        case "session":
            return Stores.session_store_builder(Stores.in_memory_session_store("s", 10_000), serdes.STRING, serdes.LONG).build()
        case "versioned":
            versions = Stores.in_memory_versioned_key_value_store("s", 10_000)
            return Stores.versioned_key_value_store_builder(versions, serdes.STRING, serdes.LONG).build()
        case _:
            return build_store(OwnBuilder("s", "sqlite"))


@contextmanager
def parts(kind: str, folder: Path) -> Iterator[list[EngineStore]]:
    """Two parts of a store, open."""
    stores = [builder_of(kind), builder_of(kind)]
    for number, store in enumerate(stores):
        directory = folder / f"0_{number}"
        directory.mkdir()
        store.open(directory, StoreContext("app", directory, TaskId(0, number)))
    try:
        yield stores
    finally:
        for store in stores:
            store.close()


def query(stores: list[EngineStore], parameters: StoreQueryParameters | None = None) -> StoreQuery:
    return StoreQuery(parameters or StoreQueryParameters("s"), lambda: stores, lambda error: None)


def starts(rows: object) -> list[tuple[object, int]]:
    """Key and start of each window."""
    return [(key.key, key.window.start) for key, _ in cast(Iterator[tuple[Windowed, object]], rows)]


def test_a_key_value_store(tmp_path: Path) -> None:
    with parts("key-value", tmp_path) as stores:
        for number, keys in enumerate(("ac", "bd")):
            for key in keys:
                stores[number].put(key, ValueAndTimestamp(ord(key), 5))  # type: ignore[attr-defined]
            stores[number].commit({})
        found = query(stores)
        assert (found.get("a"), found.get("d"), found.get("x")) == (97, 100, None)
        assert [key for key, _ in found.all()] == ["a", "c", "b", "d"]
        assert [key for key, _ in found.reverse_all()] == ["c", "a", "d", "b"]
        assert [key for key, _ in found.range("b", "c")] == ["c", "b"]
        assert [key for key, _ in found.reverse_range("a", "c")] == ["c", "a", "b"]
        assert list(found.prefix_scan("d")) == [("d", 100)] and found.approximate_num_entries() == 4
        timed = StoreQueryParameters.from_name_and_type("s", QueryableStoreTypes.timestamped_key_value_store())
        assert query(stores, timed).get("a") == ValueAndTimestamp(97, 5)
        with pytest.raises(InvalidStateStoreError, match="is a key-value store, not a window store"):
            query(stores, StoreQueryParameters.from_name_and_type("s", QueryableStoreTypes.window_store())).all()
        with pytest.raises(InvalidStateStoreError, match="is a key-value store: use get, range"):
            found.fetch("a", 1)
        with pytest.raises(InvalidStateStoreError, match="is a key-value store: use get, range"):
            found.get("a", 1)


def test_a_window_store(tmp_path: Path) -> None:
    with parts("window", tmp_path) as stores:
        for number, key in enumerate("ab"):
            for start in (10, 20, 30):
                stores[number].put(key, start + number, start)  # type: ignore[attr-defined]
            stores[number].commit({})
        found = query(stores)
        assert (found.fetch("b", 20), found.fetch("b", 21)) == (21, None)
        assert list(found.fetch("b", 10, 20)) == [(10, 11), (20, 21)]  # type: ignore[call-overload]
        assert list(found.backward_fetch("b", 10, 20)) == [(20, 21), (10, 11)]
        assert starts(found.fetch("a", "b", 20, 30)) == [("a", 20), ("a", 30), ("b", 20), ("b", 30)]
        assert starts(found.fetch_all(30, 40)) == [("a", 30), ("b", 30)]
        assert starts(found.backward_fetch_all(20, 30)) == [("a", 30), ("a", 20), ("b", 30), ("b", 20)]
        assert len(list(found.all())) == len(list(found.backward_all())) == 6
        with pytest.raises(InvalidStateStoreError, match="is a window store: use fetch"):
            found.get("a")


def test_a_session_store(tmp_path: Path) -> None:
    with parts("session", tmp_path) as stores:
        for number, key in enumerate("ab"):
            for start in (10, 20):
                stores[number].put(Windowed(key, SessionWindow(start, start + 5)), start)  # type: ignore[attr-defined]
            stores[number].commit({})
        found = query(stores)
        assert found.fetch_session("b", 20, 25) == 20
        assert list(found.fetch("b")) == [  # type: ignore[call-overload]
            (Windowed("b", SessionWindow(10, 15)), 10),
            (Windowed("b", SessionWindow(20, 25)), 20),
        ]
        assert [key.window.start for key, _ in found.backward_fetch("b")] == [20, 10]  # type: ignore[attr-defined]
        assert [key.key for key, _ in found.fetch("a", "b")] == ["a", "a", "b", "b"]  # type: ignore[attr-defined]
        assert [value for _, value in found.find_sessions("a", 16, 30)] == [20]
        assert [value for _, value in found.backward_find_sessions("a", "b", 0, 30)] == [20, 10, 20, 10]
        assert [value for _, value in found.find_sessions(0, 16)] == [10, 10]
        assert len(list(found.all())) == 4
        with pytest.raises(InvalidStateStoreError, match="is a session store: use fetch, find_sessions"):
            found.fetch_all(0, 1)


def test_a_versioned_store(tmp_path: Path) -> None:
    with parts("versioned", tmp_path) as stores:
        stores[1].put("a", 1, 10)  # type: ignore[attr-defined]
        stores[1].put("a", 2, 20)  # type: ignore[attr-defined]
        stores[1].commit({})
        found = query(stores)
        assert (found.get("a"), found.get("a", 15)) == (VersionedRecord(2, 20), VersionedRecord(1, 10, 20))
        assert list(found.all()) == [("a", VersionedRecord(2, 20))]
        with pytest.raises(InvalidStateStoreError, match=r"is a versioned store: use get\(key, as_of\)"):
            found.range()


def test_a_store_of_the_users_own(tmp_path: Path) -> None:
    with parts("own", tmp_path) as stores:
        stores[0].user_store.put("a", "1")  # type: ignore[attr-defined]
        found = query(stores)
        assert list(found.all()) == []
        stores[0].commit({})
        assert list(found.all()) == [("a", "1")] and len(found.views()) == 2
        with pytest.raises(InvalidStateStoreError, match="is a custom store: use views"):
            found.get("a")


def test_an_iteration_outlives_its_store_with_a_clear_error(tmp_path: Path) -> None:
    with parts("key-value", tmp_path) as stores:
        stores[1].put("a", ValueAndTimestamp(1, 5))  # type: ignore[attr-defined]
        stores[1].commit({})
        iteration = query(stores).all()
        stores[1].close()
        with pytest.raises(InvalidStateStoreError, match="was closed during an iteration"):
            list(iteration)
        with pytest.raises(InvalidStateStoreError, match="not open"):
            query(stores).get("a")
