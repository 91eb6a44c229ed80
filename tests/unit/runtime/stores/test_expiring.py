"""The index of a store with a time to live, where its files were not written by this store: it must have a row for each entry."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from penstock import serdes
from penstock.runtime.model.ids import NextOffset
from penstock.runtime.model.record import ValueAndTimestamp
from penstock.runtime.stores import Stores
from penstock.runtime.stores.backend import Entries, Meta, Offsets
from penstock.runtime.stores.expiring import LiveSource, StagedExpiringStore
from penstock.runtime.stores.key_value import StagedKeyValueStore
from penstock.runtime.stores.layout import LAYOUT_META, layout_with_versions
from penstock.runtime.stores.store_format import accepted_changes, store_changes
from tests.support.stores import CHANGELOG, Opened

MINUTE = 60_000


class Task:
    stream_time = -1


def opened(directory: Path, ttl: int | None) -> Opened[StagedKeyValueStore]:
    supplier = Stores.persistent_key_value_store("store", ttl=ttl)
    return Opened(Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build, directory)


def expired(under_test: Opened[StagedKeyValueStore], time: int) -> list[str]:
    """The keys that the commit at this stream time removes."""
    store, task = cast(StagedExpiringStore, under_test.store), Task()
    task.stream_time = time
    store.follow(task)
    store.expire()
    removed = [key.decode() for key, value, _ in store.changelog_records() if value is None]
    store.commit({CHANGELOG: NextOffset(time)})
    return removed


def put(store: StagedKeyValueStore, key: str, time: int) -> None:
    store.put(key, ValueAndTimestamp(1, time))


def test_a_time_to_live_is_added_changed_removed_and_added_again(tmp_path: Path) -> None:
    before = opened(tmp_path, None)
    put(before.store, "a", 0)
    put(before.store, "b", 5 * MINUTE)
    before.commit(1)
    before.store.close()

    added = opened(tmp_path, MINUTE)
    assert expired(added, 3 * MINUTE) == ["a"]
    put(added.store, "c", 9 * MINUTE)
    added.commit(2)
    added.store.close()

    longer = opened(tmp_path, 4 * MINUTE)  # its segments have another length
    assert expired(longer, 8 * MINUTE) == []
    assert expired(longer, 9 * MINUTE) == ["b"]
    put(longer.store, "d", 9 * MINUTE)
    longer.commit(3)
    longer.store.close()

    removed = opened(tmp_path, None)
    assert [key for key, _ in removed.store.all()] == ["c", "d"]
    put(removed.store, "e", 9 * MINUTE)
    removed.store.set_meta(LAYOUT_META, layout_with_versions(removed.store, removed.store.get_meta(LAYOUT_META)))  # as its adoption does
    removed.commit(4)
    removed.store.close()

    again = opened(tmp_path, 4 * MINUTE)
    assert expired(again, 13 * MINUTE) == ["c", "d", "e"]
    assert not again.store.has_entries()
    again.store.close()


def test_segments_of_windows_survive_being_opened_as_a_store_without_windows(tmp_path: Path) -> None:
    """It is refused when its layout is read, and nothing may be lost until then."""
    supplier = Stores.persistent_window_store("store", 10 * MINUTE, MINUTE)
    builder = Stores.window_store_builder(supplier, serdes.STRING, serdes.LONG)
    windows = Opened(builder.build, tmp_path)
    windows.store.put("a", 1, 0)
    windows.commit(1)
    windows.store.close()
    for ttl in (None, MINUTE):
        opened(tmp_path, ttl).store.close()
    assert windows.reopened().fetch("a", 0) == 1
    windows.store.close()


def test_an_entry_restored_behind_the_cursor_is_removed_too(tmp_path: Path) -> None:
    """An operator may erase the metadata of offsets, and with it stream time, so that another instance accepts older records."""
    under_test = opened(tmp_path, MINUTE)
    assert expired(under_test, 9 * MINUTE) == []
    under_test.reopened().restore([(b"a", (1).to_bytes(8, "big"), MINUTE)], {CHANGELOG: NextOffset(10)})
    assert expired(under_test, 9 * MINUTE) == ["a"]
    under_test.store.close()


def test_a_copy_drops_index_segments_of_removed_entries_and_keeps_those_of_others(tmp_path: Path) -> None:
    under_test = opened(tmp_path, 2 * MINUTE)
    store = cast(StagedExpiringStore, under_test.store)
    value = (1).to_bytes(8, "big")
    store.restore([(b"a", value, 0), (b"b", value, 2 * MINUTE)], {CHANGELOG: NextOffset(2)})
    store.restore([(b"a", None, 2 * MINUTE), (b"c", value, 9 * MINUTE)], {CHANGELOG: NextOffset(4)})
    store.restore([(b"c", value, 10 * MINUTE)], {CHANGELOG: NextOffset(5)})
    assert store._expiring().segments() == [2, 9, 10]  # a's is gone; b has expired too, but its tombstone has not been read
    store.restore([(b"b", None, 4 * MINUTE)], {CHANGELOG: NextOffset(6)})
    store.restore([(b"c", value, 11 * MINUTE)], {CHANGELOG: NextOffset(7)})
    assert store._expiring().segments() == [9, 10, 11]
    store.close()


def test_a_commit_removes_more_than_the_last_one_wrote_although_its_own_updates_come_later(tmp_path: Path) -> None:
    """A cache in front of the store is flushed after the removal, so that nothing is uncommitted then."""
    under_test = opened(tmp_path, MINUTE)
    store, task, removed = cast(StagedExpiringStore, under_test.store), Task(), []
    for commit in range(6):
        task.stream_time = commit * MINUTE
        store.follow(task)
        store.expire()
        for number in range(3_000):
            put(under_test.store, f"{commit}-{number}", task.stream_time)
        removed.append(sum(value is None for _, value, _ in store.changelog_records()))
        store.commit({CHANGELOG: NextOffset(commit)})
    assert removed == [0, 3_000, 3_000, 3_000, 3_000, 3_000]
    task.stream_time = 60 * MINUTE
    for left in (0, 0):
        store.expire()
        store.commit({CHANGELOG: NextOffset(10)})
        assert sum(1 for _ in store._expiring().range(None, None)) == left
    store.close()


def test_a_query_never_misses_an_entry_whose_life_is_prolonged_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a commit between its steps nor by a restore between the new stream time and the new entry."""
    under_test = opened(tmp_path, MINUTE)
    store, task = cast(StagedExpiringStore, under_test.store), Task()
    store.follow(task)
    task.stream_time = 0
    put(under_test.store, "a", 0)
    under_test.commit(1)
    view, backend = store.query_view(), store._expiring()
    source = cast(LiveSource, view._backend)._source
    read, write, found = source.get, backend.write, list[object]()

    def commits_then(key: bytes) -> bytes | None:
        entry = read(key)
        task.stream_time = 9 * MINUTE
        put(under_test.store, "a", 9 * MINUTE)
        under_test.commit(2)
        return entry

    def asked_first(entries: Entries, offsets: Offsets, meta: Meta) -> None:
        found.append(view.get("a"))
        write(entries, offsets, meta)

    with monkeypatch.context() as patched:
        patched.setattr(source, "get", commits_then)
        assert view.get("a") == 1
    assert view.get("a") == 1
    monkeypatch.setattr(backend, "write", asked_first)
    store.restore([(b"a", (2).to_bytes(8, "big"), 20 * MINUTE)], {CHANGELOG: NextOffset(3)})
    assert [*found, view.get("a")] == [1, 2]
    store.close()


def test_a_changed_time_to_live_is_accepted_with_a_warning() -> None:
    def form(ttl: int | None) -> object:
        supplier = Stores.persistent_key_value_store("s", ttl=ttl)
        return Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).settings.format()

    found = {(before, after): accepted_changes(form(before), form(after)) for before, after in [(None, 10), (10, 20), (20, 10), (10, None)]}  # type: ignore[arg-type]
    assert found == {
        (None, 10): ["its time to live was unlimited and is 10 ms now: entries that are older expire"],
        (10, 20): ["its time to live was 10 ms and is 20 ms now: entries that have expired by the former stay gone"],
        (20, 10): ["its time to live was 20 ms and is 10 ms now: entries that are older expire"],
        (10, None): ["its time to live was 10 ms and is unlimited now: entries that have expired by the former stay gone"],
    }
    assert store_changes(form(10), form(None)) == [] == accepted_changes(form(10), form(10))  # type: ignore[arg-type]
