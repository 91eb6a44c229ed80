"""Under at-least-once, records of a rolled-back commit stay in the changelog: what the store writes after them takes a restore back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from penstock import serdes
from penstock.runtime.changelog.writer import ChangelogWriter
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import AggregationWithHeaders, Headers, SessionWindow, ValueAndTimestamp, ValueTimestampHeaders, Windowed
from penstock.runtime.serdes.keys import session_key
from penstock.runtime.stores import StoreContext, Stores
from penstock.runtime.stores.base import ChangelogRecord, EngineStore
from penstock.runtime.stores.buffer import ChangeBuffer, Origin
from penstock.runtime.stores.headers import pack
from penstock.runtime.stores.settings import StoreSettings
from penstock.runtime.stores.window import StagedSessionStore

Write = Callable[[Any, str, int, int], object]
"""Writes a number for a key at a time in ms."""
LOG = TopicPartition("app-s-changelog", 0)
KEPT: Headers = [("kept", b"1")]


@dataclass(frozen=True)
class Kind:
    """A kind of store, how it is written, and what it shows."""

    make: Callable[[], EngineStore]
    write: Write
    rows: Callable[[Any], object] = lambda store: list(store.all())


def _put(store: Any, key: str, number: int, time: int) -> None:  # noqa: ANN401
    store.put(key, number)


def _put_at(store: Any, key: str, number: int, time: int) -> None:  # noqa: ANN401
    store.put(key, number, time)


def _versions(store: Any) -> object:  # noqa: ANN401
    """Return what each key was at each time. A restored version may begin later than the one whose value it repeats."""
    found = {(key, time): store.get(key, time) for key in "abcd" for time in range(0, 60, 5)}
    return {place: record.value for place, record in found.items() if record is not None}


def _buffered(store: Any) -> object:  # noqa: ANN401
    store.load()
    return sorted((raw, store._value(waiting).to_bytes()) for raw, waiting in store._waiting.items())


def _kinds() -> Iterator[tuple[str, Kind]]:
    s, text, number = Stores, serdes.STRING, serdes.LONG
    for where, persistent in (("rocksdb", True), ("memory", False)):
        key_value = (s.persistent_key_value_store if persistent else s.in_memory_key_value_store)("s")
        window = (s.persistent_window_store if persistent else s.in_memory_window_store)("s", 100_000, 1_000)
        joined = (s.persistent_window_store if persistent else s.in_memory_window_store)("s", 100_000, 1_000, True)
        session = (s.persistent_session_store if persistent else s.in_memory_session_store)("s", 100_000)
        versions = (s.persistent_versioned_key_value_store if persistent else s.in_memory_versioned_key_value_store)("s", 100_000)
        yield f"key-value-{where}", Kind(s.key_value_store_builder(key_value, text, number).build, _put)
        yield f"mutable-{where}", Kind(s.key_value_store_builder(key_value, text, serdes.json(dict[str, int])).build, _put_dict)
        yield f"timestamped-{where}", Kind(s.timestamped_key_value_store_builder(key_value, text, number).build, _put_stamped)
        yield f"window-{where}", Kind(s.window_store_builder(window, text, number).build, _put_at)
        yield f"duplicates-{where}", Kind(s.window_store_builder(joined, text, number).build, _put_at)
        yield f"session-{where}", Kind(s.session_store_builder(session, text, number).build, _put_session)
        yield f"versioned-{where}", Kind(s.versioned_key_value_store_builder(versions, text, number).build, _put_at, _versions)
        settings = StoreSettings("s", persistent, text, number, buffer=True)
        yield f"buffer-{where}", Kind(lambda settings=settings: ChangeBuffer(settings), _put_change, _buffered)  # type: ignore[misc]
    with_headers = s.persistent_timestamped_key_value_store_with_headers("s")
    yield "headers", Kind(s.timestamped_key_value_store_with_headers_builder(with_headers, text, number).build, _put_headers)
    sessions = s.persistent_session_store_with_headers("s", 100_000)
    yield "session-headers", Kind(s.session_store_with_headers_builder(sessions, text, number).build, _put_session_headers)


def _put_dict(store: Any, key: str, number: int, time: int) -> None:  # noqa: ANN401
    store.put(key, {"n": number})


def _put_stamped(store: Any, key: str, number: int, time: int) -> None:  # noqa: ANN401
    store.put(key, ValueAndTimestamp(number, time))


def _put_session(store: Any, key: str, number: int, time: int) -> None:  # noqa: ANN401
    store.put(Windowed(key, SessionWindow(1, 5)), number)


def _put_headers(store: Any, key: str, number: int, time: int) -> None:  # noqa: ANN401
    store.put(key, ValueTimestampHeaders(number, time, KEPT))


def _put_session_headers(store: Any, key: str, number: int, time: int) -> None:  # noqa: ANN401
    store.put(Windowed(key, SessionWindow(1, 5)), AggregationWithHeaders(number, KEPT))


def _put_change(store: Any, key: str, number: int, time: int) -> None:  # noqa: ANN401
    store.put(time, key, number, None, time, Origin("in", 0, 0, None))


KINDS = dict(_kinds())


def opened(kind: Kind, folder: Path) -> EngineStore:
    store = kind.make()
    store.open(folder, StoreContext("app", folder, TaskId(0, 0), LOG))
    if isinstance(store, ChangeBuffer):
        store.load()
    return store


def taken(writer: ChangelogWriter, store: EngineStore) -> list[ChangelogRecord]:
    """Return the records that a commit writes, as a restore gets them."""
    return [
        (key, pack(headers, value) if store.keeps_headers else value, time)
        for _, rows, headers in writer.pending()
        for key, value, time in rows
    ]


@pytest.mark.parametrize("name", KINDS)
def test_a_restore_does_not_see_what_was_rolled_back_and_not_written_again(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    store, other = opened(kind, tmp_path / "one"), opened(kind, tmp_path / "other")
    writer = ChangelogWriter("app", TaskId(0, 0), [store], rolls_back=False)

    def rolled_back() -> list[ChangelogRecord]:
        log = taken(writer, store)
        assert log
        store.rollback()
        if isinstance(store, ChangeBuffer):
            store.load()
        assert writer.rolled_back()
        return log

    for number, key in enumerate("ab"):
        kind.write(store.user_store, key, number, 10)
    log = taken(writer, store)
    store.commit({LOG: NextOffset(2)})
    writer.committed()
    for key in "abcd":
        kind.write(store.user_store, key, 7, 20)
    log += rolled_back()
    kind.write(store.user_store, "a", 8, 20)
    kind.write(store.user_store, "d", 8, 30)
    log += rolled_back()
    kind.write(store.user_store, "c", 9, 20)  # the dropped records were those of a, b and d
    log += taken(writer, store)
    store.commit({LOG: NextOffset(len(log))})
    writer.committed()
    assert not taken(writer, store)
    assert not writer.rolled_back()
    for record in log:
        other.restore([record], {LOG: NextOffset(1)})
    assert kind.rows(other) == kind.rows(store)
    if name.startswith(("timestamped", "headers", "key-value", "mutable")):
        assert [key for key, _ in cast(Any, other).all()] == ["a", "b", "c"]
    for each in (store, other):
        each.close()


def test_a_session_that_was_rolled_back_and_then_extended_is_not_restored(tmp_path: Path) -> None:
    """The longer session replaces the one before it commits, so the store itself writes no tombstone."""
    builder = Stores.session_store_builder(Stores.persistent_session_store("s", 100_000), serdes.STRING, serdes.LONG)
    kind = Kind(builder.with_caching_enabled().build, _put_session)
    store, other = opened(kind, tmp_path / "one"), opened(kind, tmp_path / "other")
    assert isinstance(store, StagedSessionStore)
    writer = ChangelogWriter("app", TaskId(0, 0), [store], rolls_back=False)
    short, long = (session_key(b"a", 1, end) for end in (5, 9))
    _put_session(store, "a", 1, 10)
    log = taken(writer, store)
    store.rollback()
    writer.rolled_back()
    store.set_flush_listener(lambda *change: None)
    entry = store.entry(short)
    store.update(short, None, entry, 1, 10, None)
    assert store.extend(short, long, Windowed("a", SessionWindow(1, 9)), entry, 2, 11, None)
    store.flush_cache()
    log += taken(writer, store)
    store.commit({LOG: NextOffset(len(log))})
    for record in log:
        other.restore([record], {LOG: NextOffset(1)})
    assert kind.rows(other) == kind.rows(store) == [(Windowed("a", SessionWindow(1, 9)), 2)]
    for each in (store, other):
        each.close()


def test_under_exactly_once_nothing_is_written_again(tmp_path: Path) -> None:
    kind = KINDS["key-value-rocksdb"]
    store = opened(kind, tmp_path)
    writer = ChangelogWriter("app", TaskId(0, 0), [store], rolls_back=True)
    kind.write(store.user_store, "a", 1, 10)
    assert taken(writer, store)
    store.rollback()
    assert not writer.rolled_back()
    assert not taken(writer, store)
    store.close()
