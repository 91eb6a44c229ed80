"""A process that commits to a store for as long as it lives; `test_store_kill.py` kills it. Usage: `python -m
tests.chaos.store_writer FOLDER KIND`.

Commit n writes n under `KEYS` keys, with n as the next offset of input and changelog, and takes back something that an earlier commit had
written. It says `committed n` when the store's `commit` has returned: from then on, n may not be lost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from penstock import serdes
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import SessionWindow, ValueAndTimestamp, VersionedRecord, Windowed
from penstock.runtime.stores import StoreContext, Stores
from penstock.runtime.stores.base import EngineStore
from penstock.runtime.stores.custom import build_store
from penstock.runtime.stores.key_value import StagedKeyValueStore
from penstock.runtime.stores.versioned import StagedVersionedStore
from penstock.runtime.stores.window import StagedSessionStore, StagedWindowStore
from tests.support.own_stores import OwnBuilder, SqliteStore

KEYS = [f"key-{n}" for n in range(60)]
MINUTE = 60_000
RETENTION = 10 * MINUTE
LIVE = 10
"""Commits whose windows and sessions are not expired: each writes a minute later, so that segments come and go."""
INPUT = TopicPartition("input", 0)
CHANGELOG = TopicPartition("app-store-changelog", 0)

S = TypeVar("S")


@dataclass(frozen=True)
class Kind(Generic[S]):
    """A kind of store: how it is made, what commit n writes, and what is there after it."""

    make: Callable[[], EngineStore]
    write: Callable[[S, int], None]
    check: Callable[[S, int], None]


def _counts() -> EngineStore:
    return Stores.timestamped_key_value_store_builder(Stores.persistent_key_value_store("store"), serdes.STRING, serdes.LONG).build()


def _write_counts(store: StagedKeyValueStore, n: int) -> None:
    for key in KEYS:
        data = key.encode()
        store.update(data, None, store.entry(data), n, n, None)
    store.put(f"only-{n}", ValueAndTimestamp(n, n))
    store.delete_range(f"only-{n - 1}", f"only-{n - 1}")


def _check_counts(store: StagedKeyValueStore, n: int) -> None:
    assert dict(store.query_view().all()) == dict.fromkeys(KEYS, n) | {f"only-{n}": n}


def _windows() -> EngineStore:
    supplier = Stores.persistent_window_store("store", RETENTION, MINUTE)
    return Stores.window_store_builder(supplier, serdes.STRING, serdes.LONG).build()


def _write_windows(store: StagedWindowStore, n: int) -> None:
    for key in KEYS:
        store.put(key, n, n * MINUTE)
    if n > 1:
        store.put(KEYS[0], None, (n - 1) * MINUTE)


def _check_windows(store: StagedWindowStore, n: int) -> None:
    wanted = {(key, m): m for m in range(max(1, n - LIVE + 1), n + 1) for key in (KEYS if m == n else KEYS[1:])}
    assert {(key.key, key.window.start // MINUTE): value for key, value in store.query_view().all()} == wanted


def _sessions() -> EngineStore:
    supplier = Stores.persistent_session_store("store", RETENTION)
    return Stores.session_store_builder(supplier, serdes.STRING, serdes.LONG).build()


def _session(key: str, n: int) -> Windowed:
    return Windowed(key, SessionWindow(n * MINUTE - 30_000, n * MINUTE))


def _write_sessions(store: StagedSessionStore, n: int) -> None:
    for key in KEYS:
        store.put(_session(key, n), n)
    store.remove(_session(KEYS[0], n - 1))


def _check_sessions(store: StagedSessionStore, n: int) -> None:
    wanted = {_session(key, m): m for m in range(max(1, n - LIVE + 1), n + 1) for key in (KEYS if m == n else KEYS[1:])}
    assert dict(store.query_view().all()) == wanted


def _versions() -> EngineStore:
    supplier = Stores.persistent_versioned_key_value_store("store", RETENTION, MINUTE)
    return Stores.versioned_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()


def _write_versions(store: StagedVersionedStore, n: int) -> None:
    for key in KEYS:
        store.put(key, n, n * MINUTE)
    store.delete(KEYS[0], n * MINUTE)
    store.put(KEYS[1], -n, (n - 1) * MINUTE + 1)  # behind the latest one


def _check_versions(store: StagedVersionedStore, n: int) -> None:
    view = store.query_view()
    assert dict(view.all()) == dict.fromkeys(KEYS[1:], VersionedRecord(n, n * MINUTE))
    for m in range(max(1, n - LIVE + 1), n):
        assert view.get(KEYS[0], m * MINUTE) is None
        assert view.get(KEYS[1], m * MINUTE + 1) == VersionedRecord(-m - 1, m * MINUTE + 1, (m + 1) * MINUTE)
        assert view.get(KEYS[2], m * MINUTE + 1) == VersionedRecord(m, m * MINUTE, (m + 1) * MINUTE)


def _own() -> EngineStore:
    return build_store(OwnBuilder("store", "sqlite"))


def _write_own(store: SqliteStore, n: int) -> None:
    for key in KEYS:
        store.put(key, str(n))
    store.put(f"only-{n}", str(n))
    store.put(f"only-{n - 1}", None)


def _check_own(store: SqliteStore, n: int) -> None:
    assert dict(store.query_view().all()) == dict.fromkeys(KEYS, str(n)) | {f"only-{n}": str(n)}


KINDS: dict[str, Kind[Any]] = {
    "key-value": Kind(_counts, _write_counts, _check_counts),
    "windows": Kind(_windows, _write_windows, _check_windows),
    "sessions": Kind(_sessions, _write_sessions, _check_sessions),
    "versions": Kind(_versions, _write_versions, _check_versions),
    "own": Kind(_own, _write_own, _check_own),
}


def opened(folder: Path, kind: str) -> EngineStore:
    """The store; to open it is also the check that its files can be read."""
    store = KINDS[kind].make()
    store.open(folder, StoreContext("app", folder, TaskId(0, 0), CHANGELOG))
    return store


def main(folder: Path, kind: str) -> None:
    store, write = opened(folder, kind), cast(Kind[object], KINDS[kind]).write
    number = store.committed_offset(INPUT) or 0
    while True:
        number += 1
        write(store.user_store, number)
        list(store.changelog_records())
        store.set_meta("number", str(number).encode())
        store.commit({INPUT: NextOffset(number), CHANGELOG: NextOffset(number)})
        if number % 7 == 0:
            store.flush()
        print(f"committed {number}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
