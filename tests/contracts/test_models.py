"""Every kind of store against a plain model, with random updates, reads, commits, rollbacks, restores and crashes.

A crash leaves the store open and continues with a copy of its folder, as kill -9 leaves it; a store in memory is empty then and restored
from its changelog. After each step the store must be exactly the model, and what is committed exactly the model as of the last commit,
offsets included."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Generic, TypeVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from penstock import serdes
from penstock.runtime.model.ids import NextOffset, TaskId
from penstock.runtime.model.record import SessionWindow, ValueAndTimestamp, Windowed
from penstock.runtime.stores import StoreContext, StoreMemory, Stores
from penstock.runtime.stores.base import ChangelogRecord, EngineStore, EntryStore
from penstock.runtime.stores.expiring import StagedExpiringStore
from penstock.runtime.stores.key_value import StagedKeyValueStore
from penstock.runtime.stores.versioned import NOT_PUT, VALID_TO_UNDEFINED, StagedVersionedStore
from penstock.runtime.stores.window import StagedSessionStore, StagedWindowStore
from tests.contracts.models import Cell, ExpiringModel, KeyValueModel, TimesModel, VersionsModel, session_row, window_row
from tests.support import examples
from tests.support.stores import CHANGELOG, INPUT

KEYS = st.sampled_from(["a", "a\0", "a\0\0", "ab", "b", "c\x7f", "d"])
BOUNDS = st.none() | KEYS
VALUES = st.none() | st.integers(0, 9)
TIMES = st.integers(0, 400_000)
MINUTE = 60_000
RETENTION = 150_000
TTL = 100_000
SIZE = 1_000
END = 2**63 - 1

Model = TypeVar("Model", KeyValueModel, ExpiringModel, TimesModel, VersionsModel)
RowsByKey = TypeVar("RowsByKey", KeyValueModel, ExpiringModel)
Store = TypeVar("Store", bound=EngineStore)
KeyValueStore = TypeVar("KeyValueStore", bound=StagedKeyValueStore)


class Machine(RuleBasedStateMachine, Generic[Store, Model]):
    """Steps of a store of any kind."""

    persistent: ClassVar[bool]
    caching: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self._folders = [Path(tempfile.mkdtemp(prefix="store-model-"))]
        self._open: list[EngineStore] = []
        # A read cache that holds a few entries only: generations change all the time.
        self._memory = StoreMemory(cache_max_bytes=2_000, read_cache_bytes=4_000)
        self._log: list[ChangelogRecord] = []
        self._commits = 0
        self.model: Model = self.new_model()
        self.committed: Model = self.model.copy()

    def new_model(self) -> Model:
        raise NotImplementedError

    def new_store(self) -> Store:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.store = self._opened(self._folders[0])

    def _opened(self, folder: Path) -> Store:
        store = self.new_store()
        store.open(folder, StoreContext("app", folder, TaskId(0, 3), CHANGELOG, self._memory, record_time=lambda: 7))
        if isinstance(store, EntryStore):
            store.set_flush_listener(lambda key, new, old, timestamp, headers: None)
        self._open.append(store)
        return store

    # --- commits, and all that goes wrong ---------------------------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        if isinstance(self.store, EntryStore):
            self.store.flush_cache()
        self._log += list(self.store.changelog_records())
        self._commits += 1
        self.store.set_meta("number", str(self._commits).encode())
        self.store.commit({CHANGELOG: NextOffset(len(self._log)), INPUT: NextOffset(self._commits)})
        self.committed = self.model.copy()

    @precondition(lambda self: self.store.approximate_num_uncommitted_bytes > 0)
    @rule(cut=st.booleans())
    def rollback(self, cut: bool) -> None:
        if cut:
            list(self.store.changelog_records())  # the broker refused them
        self.store.rollback()
        self.model = self.committed.copy()
        assert self.store.approximate_num_uncommitted_bytes == 0

    @rule(flush=st.booleans())
    def crash(self, flush: bool) -> None:
        if flush:
            self.store.flush()
        self._folders.append(_as_left_by_a_kill(self._folders[-1]))
        self._went_on(self._opened(self._folders[-1]))

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._went_on(self._opened(self._folders[-1]))

    @precondition(lambda self: self._commits > 0)
    @rule(batch=st.integers(1, 7))
    def rebuild(self, batch: int) -> None:
        """The changelog alone makes the store."""
        self.store.wipe()
        assert not self.store.has_entries()
        self._restore(self.store, batch)
        self.model = self.committed.copy()

    def _went_on(self, store: Store) -> None:
        self.store = store
        self.model = self.committed.copy()
        if not self.persistent and self._commits:
            assert store.committed_offset(CHANGELOG) is None
            self._restore(store, 5)

    def _restore(self, store: Store, batch: int) -> None:
        for first in range(0, len(self._log), batch):
            store.restore(self._log[first : first + batch], {CHANGELOG: NextOffset(min(first + batch, len(self._log)))})
        store.set_meta("number", str(self._commits).encode())
        store.commit({CHANGELOG: NextOffset(len(self._log)), INPUT: NextOffset(self._commits)})

    @invariant()
    def offsets_are_those_of_the_last_commit(self) -> None:
        if self._commits:
            assert self.store.committed_offsets() == {CHANGELOG: len(self._log), INPUT: self._commits}
            assert self.store.get_meta("number") == str(self._commits).encode()

    def teardown(self) -> None:
        for store in self._open:
            store.close()
        for folder in self._folders:
            shutil.rmtree(folder)


class ByKey(Machine[KeyValueStore, RowsByKey]):
    """Reads and deletions of ranges of keys."""

    @rule(first=BOUNDS, last=BOUNDS)
    def delete_range(self, first: str | None, last: str | None) -> None:
        self.store.delete_range(first, last)
        for key, _ in self.model.between(first, last):
            del self.model.entries[key]

    @rule(first=BOUNDS, last=BOUNDS, prefix=KEYS)
    def scans(self, first: str | None, last: str | None, prefix: str) -> None:
        expected = self.model.between(first, last)
        assert list(self.store.range(first, last)) == expected
        assert list(self.store.reverse_range(first, last)) == expected[::-1]
        assert list(self.store.prefix_scan(prefix)) == [row for row in self.model.between(None, None) if row[0].startswith(prefix)]


class KeyValues(ByKey[StagedKeyValueStore, KeyValueModel]):
    def new_model(self) -> KeyValueModel:
        return KeyValueModel()

    def new_store(self) -> StagedKeyValueStore:
        supplier = Stores.persistent_key_value_store("s") if self.persistent else Stores.in_memory_key_value_store("s")
        builder = Stores.key_value_store_builder(supplier, serdes.STRING, serdes.LONG)
        return (builder.with_caching_enabled() if self.caching else builder).build()

    @rule(key=KEYS, value=VALUES)
    def put(self, key: str, value: int | None) -> None:
        self.store.put(key, value)
        self.model.put(key, value)

    @rule(key=KEYS, value=st.integers(0, 9))
    def put_if_absent(self, key: str, value: int) -> None:
        assert self.store.put_if_absent(key, value) == self.model.entries.get(key)
        self.model.entries.setdefault(key, value)

    @rule(entries=st.lists(st.tuples(KEYS, VALUES), max_size=4))
    def put_all(self, entries: list[tuple[str, int | None]]) -> None:
        self.store.put_all(entries)
        for key, value in entries:
            self.model.put(key, value)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.store.delete(key) == self.model.entries.pop(key, None)

    @invariant()
    def is_the_model(self) -> None:
        assert list(self.store.all()) == self.model.between(None, None)
        assert list(self.store.query_view().reverse_all()) == self.committed.between(None, None)[::-1]
        uncommitted = self.store.query_view(uncommitted=True)
        assert list(uncommitted.all()) == self.model.between(None, None)
        for key in ("a", "ab"):
            assert self.store.get(key) == uncommitted.get(key) == self.model.entries.get(key)


class _Task:
    stream_time = -1


class Expiring(ByKey[StagedExpiringStore, ExpiringModel]):
    """A key-value store with a time to live. Commits remove a few expired entries only, so that there is always a backlog."""

    def new_model(self) -> ExpiringModel:
        return ExpiringModel(TTL)

    def new_store(self) -> StagedExpiringStore:
        make = Stores.persistent_key_value_store if self.persistent else Stores.in_memory_key_value_store
        builder = Stores.timestamped_key_value_store_builder(make("s", ttl=TTL), serdes.STRING, serdes.LONG)
        return cast(StagedExpiringStore, (builder.with_caching_enabled() if self.caching else builder).build())

    @rule(to=TIMES)
    def time_passes(self, to: int) -> None:
        self.task.stream_time = self.model.now = max(self.model.now, to)

    @rule(key=KEYS, value=VALUES, time=TIMES)
    def put(self, key: str, value: int | None, time: int) -> None:
        self.store.put(key, None if value is None else ValueAndTimestamp(value, time))
        assert self.store.dropped == (not self.model.put(key, value, time))

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.store.delete(key) == self.model.get(key)
        self.model.put(key, None, 0)

    @rule()
    def everything_expires(self) -> None:
        """No entry is left without a row of the index that removes it, whatever the store was restored or copied from."""
        self.time_passes(max([self.model.now, *(entry.timestamp for entry in self.model.entries.values())]) + TTL)
        commits = 0
        while self.store.has_entries() or self.store.approximate_num_uncommitted_bytes:
            self.commit()
            commits += 1
            assert commits < 200
        assert not _folded(self._log)

    @rule()
    def commit(self) -> None:
        self.store.expire()
        super().commit()
        assert dict(self.store._opened().range(None, None)) == _folded(self._log)  # what every reader of files or changelog sees

    def _follow(self) -> None:
        if self.store._task is not self.task:  # opened, rolled back: it begins at the committed stream time
            self.task.stream_time = self.committed.now
            self.store.follow(self.task)

    def _opened(self, folder: Path) -> StagedExpiringStore:
        self.task = _Task()
        return super()._opened(folder)

    @rule(batch=st.integers(1, 7))
    def copy_agrees(self, batch: int) -> None:
        """A copy holds what its original held at that offset, until it becomes active and expires entries itself."""
        copy = Stores.timestamped_key_value_store_builder(
            Stores.in_memory_key_value_store("s", ttl=TTL), serdes.STRING, serdes.LONG
        ).build()
        folder = self._folders[0]
        copy.open(folder, StoreContext("app", folder, TaskId(0, 3), CHANGELOG, StoreMemory()))
        self._open.append(copy)
        self._restore(cast(StagedExpiringStore, copy), batch)
        assert dict(copy._opened().range(None, None)) == _folded(self._log)
        if self._commits:
            cast(StagedExpiringStore, copy).follow(self.task)
            assert list(copy.all()) == [row for row in self.committed.between(None, None) if row[1][1] > self.task.stream_time - TTL]

    @invariant()
    def is_the_model(self) -> None:
        self._follow()
        assert list(self.store.all()) == self.model.between(None, None)
        assert list(self.store.query_view(timestamped=True).reverse_all()) == self.committed.between(None, None)[::-1]
        uncommitted = self.store.query_view(timestamped=True, uncommitted=True)
        assert list(uncommitted.all()) == self.model.between(None, None)
        for key in ("a", "ab"):
            assert self.store.get(key) == uncommitted.get(key) == self.model.get(key)


def _folded(log: list[ChangelogRecord]) -> dict[bytes, bytes]:
    """Return the content of a timestamped store by its changelog."""
    last = {key: (value, time) for key, value, time in log}
    return {key: time.to_bytes(8, "big") + value for key, (value, time) in last.items() if value is not None}


class Windows(Machine[StagedWindowStore, TimesModel]):
    def new_model(self) -> TimesModel:
        return TimesModel(RETENTION, lambda cell: cell[1])

    def new_store(self) -> StagedWindowStore:
        make = Stores.persistent_window_store if self.persistent else Stores.in_memory_window_store
        builder = Stores.window_store_builder(make("s", RETENTION, SIZE), serdes.STRING, serdes.LONG)
        return (builder.with_caching_enabled() if self.caching else builder).build()

    @rule(key=KEYS, value=VALUES, start=TIMES)
    def put(self, key: str, value: int | None, start: int) -> None:
        self.store.put(key, value, start)
        self.model.put((key, start, 0), value)

    @rule(key=KEYS, first=TIMES, length=TIMES)
    def of_one_key(self, key: str, first: int, length: int) -> None:
        last = first + length
        found = self.model.live(lambda cell: cell[0] == key and first <= cell[1] <= last)
        expected = sorted((start, value) for (_, start, _), value in found)
        assert list(self.store.fetch(key, first, last)) == expected
        assert list(self.store.backward_fetch(key, first, last)) == expected[::-1]
        uncommitted = self.store.query_view(uncommitted=True)
        for start, value in expected:
            assert self.store.fetch(key, start) == uncommitted.fetch(key, start) == value

    @rule(low=BOUNDS, high=BOUNDS, first=TIMES, length=TIMES)
    def of_several_keys(self, low: str | None, high: str | None, first: int, length: int) -> None:
        last = first + length
        expected = self._rows(self.model, lambda cell: _inside(cell[0], low, high) and first <= cell[1] <= last)
        assert list(self.store.fetch(low, high, first, last)) == expected
        assert list(self.store.backward_fetch(low, high, first, last)) == expected[::-1]

    def _rows(self, model: TimesModel, wanted: Callable[[Cell], bool] = lambda cell: True) -> list[tuple[Windowed, int]]:
        length = max(RETENTION // 2, MINUTE)
        cells = sorted(model.live(wanted), key=lambda row: (row[0][1] // length, _store_order(row[0][0], row[0][1:2])))
        return [(window_row(cell, SIZE), value) for cell, value in cells]

    @invariant()
    def is_the_model(self) -> None:
        assert list(self.store.all()) == self._rows(self.model)
        assert list(self.store.query_view().backward_all()) == self._rows(self.committed)[::-1]
        assert list(self.store.query_view(uncommitted=True).all()) == self._rows(self.model)


class Sessions(Machine[StagedSessionStore, TimesModel]):
    def new_model(self) -> TimesModel:
        return TimesModel(RETENTION, lambda cell: cell[2])

    def new_store(self) -> StagedSessionStore:
        make = Stores.persistent_session_store if self.persistent else Stores.in_memory_session_store
        builder = Stores.session_store_builder(make("s", RETENTION), serdes.STRING, serdes.LONG)
        return (builder.with_caching_enabled() if self.caching else builder).build()

    @rule(key=KEYS, value=VALUES, start=TIMES, length=st.integers(0, 90_000))
    def put(self, key: str, value: int | None, start: int, length: int) -> None:
        self.store.put(Windowed(key, SessionWindow(start, start + length)), value)
        self.model.put((key, start, start + length), value)

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        """Do as an operator does: remove a session and puts a longer one."""
        if live := self.model.live():
            (key, start, end), _ = data.draw(st.sampled_from(live))
            self.store.remove(Windowed(key, SessionWindow(start, end)))
            self.model.put((key, start, end), None)
            self.put(key, 1, start, end - start + 10)

    @rule(key=KEYS, earliest=TIMES, latest=TIMES)
    def of_one_key(self, key: str, earliest: int, latest: int) -> None:
        expected = self._rows(self.model, lambda cell: cell[0] == key and cell[2] >= earliest and cell[1] <= latest)
        assert list(self.store.find_sessions(key, earliest, latest)) == expected
        assert list(self.store.backward_find_sessions(key, earliest, latest)) == expected[::-1]
        for windowed, value in expected:
            assert self.store.fetch_session(key, *windowed.window) == value

    @rule(low=BOUNDS, high=BOUNDS, earliest=TIMES, latest=TIMES)
    def of_several_keys(self, low: str | None, high: str | None, earliest: int, latest: int) -> None:
        expected = self._rows(self.model, lambda cell: _inside(cell[0], low, high) and cell[2] >= earliest and cell[1] <= latest)
        assert list(self.store.find_sessions(low, high, earliest, latest)) == expected
        assert list(self.store.backward_find_sessions(low, high, earliest, latest)) == expected[::-1]

    def _rows(self, model: TimesModel, wanted: Callable[[Cell], bool] = lambda cell: True) -> list[tuple[Windowed, int]]:
        length = max(RETENTION // 2, MINUTE)
        cells = sorted(model.live(wanted), key=lambda row: (row[0][2] // length, _store_order(row[0][0], (row[0][2], row[0][1]))))
        return [(session_row(cell), value) for cell, value in cells]

    @invariant()
    def is_the_model(self) -> None:
        assert list(self.store.fetch(None, None)) == self._rows(self.model)
        assert list(self.store.query_view().backward_fetch(None, None)) == self._rows(self.committed)[::-1]
        assert list(self.store.query_view(uncommitted=True).all()) == self._rows(self.model)


class Versions(Machine[StagedVersionedStore, VersionsModel]):
    def new_model(self) -> VersionsModel:
        return VersionsModel(300)

    def new_store(self) -> StagedVersionedStore:
        supplier = (
            Stores.persistent_versioned_key_value_store("s", 300, 40)
            if self.persistent
            else Stores.in_memory_versioned_key_value_store("s", 300)
        )
        return Stores.versioned_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()

    @rule(key=KEYS, value=VALUES, back=st.integers(-60, 350))
    def put(self, key: str, value: int | None, back: int) -> None:
        time = max(0, self.model.now - back)
        answer = self.store.put(key, value, time)
        if not self.model.put(key, value, time):
            assert answer == NOT_PUT
            return
        valid_to = self.model.valid_to(key, time)
        assert answer == (VALID_TO_UNDEFINED if valid_to is None else valid_to)

    @rule(key=KEYS, back=st.integers(-60, 350))
    def delete(self, key: str, back: int) -> None:
        time = max(0, self.model.now - back)
        self.model.now = max(self.model.now, time)
        expected = self.model.get(key, time) if time >= self.model.now - 300 else None
        assert self.store.delete(key, time) == expected
        self.model.put(key, None, time)

    @rule(key=KEYS, back=st.integers(-10, 400))
    def as_of(self, key: str, back: int) -> None:
        moment = self.model.now - back
        assert self.store.get(key, moment) == self.model.get(key, moment)
        moment = self.committed.now - back
        assert self.store.query_view().get(key, moment) == self.committed.get(key, moment)

    @rule(key=KEYS, back=st.integers(-10, 400), length=st.integers(0, 200), descending=st.booleans())
    def between(self, key: str, back: int, length: int, descending: bool) -> None:
        for model, view in ((self.committed, self.store.query_view()), (self.model, self.store.query_view(uncommitted=True))):
            first = model.now - back
            expected = model.between(key, first, first + length)
            found = view.versions_between(key, first, first + length, descending)
            assert list(found) == (expected[::-1] if descending else expected)

    @invariant()
    def is_the_model(self) -> None:
        for key in ("a", "a\0", "ab"):
            assert self.store.get(key) == self.model.get(key, None)
            assert self.store.query_view().get(key) == self.committed.get(key, None)
            assert self.store.query_view(uncommitted=True).get(key) == self.model.get(key, None)
        for model, view in ((self.committed, self.store.query_view()), (self.model, self.store.query_view(uncommitted=True))):
            assert list(view.all()) == [(key, latest) for key in sorted(model.versions) if (latest := model.get(key, None)) is not None]


def _as_left_by_a_kill(folder: Path) -> Path:
    """A copy of a store's folder while the store is open, as of one moment: RocksDB's own threads remove files in between."""
    while True:
        target = Path(tempfile.mkdtemp(prefix="store-model-"))
        with suppress(shutil.Error, FileNotFoundError):  # a file went meanwhile: again
            before = _files(folder)
            shutil.copytree(folder, target, dirs_exist_ok=True)
            if _files(folder) == before:
                return target
        shutil.rmtree(target)


def _files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.rglob("*") if path.name != "LOG"}


def _inside(key: str, low: str | None, high: str | None) -> bool:
    return (low is None or low <= key) and (high is None or key <= high)


def _store_order(key: str, times: tuple[int, ...]) -> bytes:
    return key.encode() + b"".join(time.to_bytes(8, "big") for time in times)


MACHINES: list[type[RuleBasedStateMachine]] = [KeyValues, Expiring, Windows, Sessions, Versions]


@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "cached"])
@pytest.mark.parametrize("persistent", [True, False], ids=["rocksdb", "memory"])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__.lower())
def test_a_store_equals_its_model(
    machine: type[RuleBasedStateMachine], persistent: bool, caching: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runtime.stores.expiring._LEAST_ROWS", 2)
    if caching and machine is Versions:
        return  # there are none
    kind = type(machine.__name__, (machine,), {"persistent": persistent, "caching": caching})
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=examples(8 if persistent else 15),  # a store in RocksDB is opened in every example
            stateful_step_count=25,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
