"""Check of a store's files when it is opened: a changed store is refused, one that has to be restored is emptied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.changelog.adoption import store_remedies, take_up
from penstock.runtime.changelog.checkpoint import write_checkpoint
from penstock.runtime.changelog.staleness import mark_at_end
from penstock.runtime.model.errors import StoreChangedError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.stores.base import EngineStore, StoreBuilder, StoreContext
from penstock.runtime.stores.rocks_files import write_files
from penstock.runtime.stores.suppliers import Stores

TASK = TaskId(0, 0)
CHANGELOG = TopicPartition("app-s-changelog", 0)
HOUR = 3_600_000
PLAIN = Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), serdes.STRING, serdes.LONG)
TIMESTAMPED = Stores.timestamped_key_value_store_builder(Stores.persistent_timestamped_key_value_store("s"), serdes.STRING, serdes.LONG)
OTHER_VALUES = Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), serdes.STRING, serdes.STRING)
OTHER_KEYS = Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), serdes.LONG, serdes.LONG)
IN_MEMORY = Stores.timestamped_key_value_store_builder(Stores.in_memory_key_value_store("s"), serdes.STRING, serdes.STRING)
SESSIONS = Stores.session_store_builder(Stores.persistent_session_store("s", HOUR), serdes.STRING, serdes.LONG)
VERSIONED = Stores.versioned_key_value_store_builder(Stores.persistent_versioned_key_value_store("s", HOUR), serdes.STRING, serdes.LONG)


def windows(retention_ms: int, size_ms: int = HOUR) -> StoreBuilder[EngineStore]:
    supplier = Stores.persistent_window_store("s", retention_ms, size_ms)
    return Stores.window_store_builder(supplier, serdes.STRING, serdes.LONG)


def opened(
    folder: Path,
    builder: StoreBuilder[EngineStore],
    changelog: TopicPartition | None = CHANGELOG,
    topic_id: Callable[[], str | None] = lambda: "first",
) -> EngineStore:
    store = builder.build()
    store.open(folder, StoreContext("app", folder, TASK, changelog))
    try:
        take_up(
            folder,
            store,
            None if changelog is None else lambda partition: partition == changelog,
            store_remedies("app", "s", changelog, folder),
            topic_id=topic_id,
        )
    except StoreChangedError:
        store.close()
        raise
    return store


def filled(folder: Path, builder: StoreBuilder[EngineStore], key: bytes = b"EWR") -> None:
    store = opened(folder, builder)
    mark_at_end(store, "first", 0)
    store.restore([(key, (1).to_bytes(8, "big"), 5)], {CHANGELOG: NextOffset(3)})
    store.close()


@pytest.mark.parametrize(
    ("now", "reported"),
    [
        (windows(2 * HOUR), "it was a key-value store and is a window store now"),
        (SESSIONS, "it was a key-value store and is a session store now"),
        (VERSIONED, "it was a key-value store and is a versioned store now"),
        (TIMESTAMPED, "its values were kept without a timestamp and would be read with a timestamp"),
        (OTHER_VALUES, "its values were LONG and are STRING now"),
        (OTHER_KEYS, "its keys were STRING and are LONG now"),
    ],
)
def test_a_changed_store_is_refused_with_the_remedies(tmp_path: Path, now: StoreBuilder[EngineStore], reported: str) -> None:
    filled(tmp_path, PLAIN)
    with pytest.raises(
        StoreChangedError, match=rf"store s has changed: {reported}.*another name.*stop every instance.*penstock reset app$"
    ):
        opened(tmp_path, now)
    store = opened(tmp_path, PLAIN)  # nothing was harmed: the change can be taken back
    assert store.has_entries() and store.committed_offset(CHANGELOG) == 3
    store.close()


def test_a_store_that_has_changed_is_emptied_once_its_changelog_was_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, PLAIN)
    with pytest.raises(StoreChangedError, match=r"begin this store empty: .*\(penstock stop app\), delete its changelog app-s-changelog"):
        opened(tmp_path, OTHER_VALUES, topic_id=lambda: None)  # unknown is not another one
    store = opened(tmp_path, OTHER_VALUES, topic_id=lambda: "second")
    assert not store.has_entries() and store.committed_offsets() == {}
    assert "store s has changed (its values were LONG and are STRING now) and is emptied" in caplog.text
    assert "its topic id was first and is second" in caplog.text
    store.close()
    opened(tmp_path, OTHER_VALUES).close()


def test_a_changed_store_without_a_changelog_is_refused_with_the_files_to_delete(tmp_path: Path) -> None:
    filled(tmp_path, PLAIN)
    with pytest.raises(StoreChangedError, match=f"delete {tmp_path / 'rocksdb' / 's'} on every machine"):
        opened(tmp_path, OTHER_VALUES, None)


def test_windows_that_become_a_table_are_refused(tmp_path: Path) -> None:
    filled(tmp_path, windows(2 * HOUR), b"EWR" + bytes(12))
    with pytest.raises(StoreChangedError, match="it was a window store and is a key-value store now"):
        opened(tmp_path, PLAIN)


def test_a_serde_that_is_only_called_otherwise_can_be_given_its_old_name(tmp_path: Path) -> None:
    def store(name: str | None) -> StoreBuilder[EngineStore]:
        def money(topic: str, headers: object, data: int) -> bytes:
            return data.to_bytes(8, "big")

        serde = Serde(money, lambda topic, headers, data: int.from_bytes(data, "big"), name=name)
        return Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), serdes.STRING, serde)

    filled(tmp_path, store("cents"))
    with pytest.raises(StoreChangedError, match=r"name it as before \(Serde\(…, name=…\)\)"):
        opened(tmp_path, store(None))
    opened(tmp_path, store("cents")).close()


def test_a_store_that_holds_nothing_may_become_another_one(tmp_path: Path) -> None:
    opened(tmp_path, PLAIN).close()
    store = opened(tmp_path, windows(2 * HOUR))
    assert store.committed_offsets() == {}
    store.close()
    filled(tmp_path, windows(2 * HOUR), b"EWR" + bytes(12))


def test_a_store_in_memory_may_take_the_place_of_one_on_disk(tmp_path: Path) -> None:
    filled(tmp_path, PLAIN)
    store = opened(tmp_path, IN_MEMORY)
    assert store.committed_offsets() == {}
    store.close()


def test_windows_of_another_retention_are_emptied_since_their_segments_are_cut_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, windows(2 * HOUR), b"EWR" + bytes(12))
    store = opened(tmp_path, windows(4 * HOUR))
    assert store.committed_offsets() == {} and not store.has_entries()
    assert "store s is emptied and restored" in caplog.text
    store.close()
    filled(tmp_path, windows(4 * HOUR), b"EWR" + bytes(12))
    with pytest.raises(StoreChangedError, match="its windows were of 3600000 ms and are of 7200000 ms now"):
        opened(tmp_path, windows(4 * HOUR, 2 * HOUR))


def test_the_layout_is_kept_from_the_first_opening_on_also_after_a_wipe(tmp_path: Path) -> None:
    store = opened(tmp_path, PLAIN)
    store.wipe()
    store.restore([(b"EWR", (1).to_bytes(8, "big"), 5)], {CHANGELOG: NextOffset(3)})
    store.close()
    with pytest.raises(StoreChangedError):
        opened(tmp_path, TIMESTAMPED)


@pytest.mark.parametrize(("was", "now"), [(PLAIN, TIMESTAMPED), (VERSIONED, PLAIN)])
def test_the_layout_is_kept_also_where_a_rollback_came_between_a_wipe_and_the_first_commit(
    tmp_path: Path, was: StoreBuilder[EngineStore], now: StoreBuilder[EngineStore]
) -> None:
    store = opened(tmp_path, was)
    store.wipe()
    store.rollback()
    store.restore([(b"EWR", (1).to_bytes(8, "big"), 5)], {CHANGELOG: NextOffset(3)})
    store.close()
    with pytest.raises(StoreChangedError):
        opened(tmp_path, now)


def test_a_store_without_a_changelog_keeps_its_entries(tmp_path: Path) -> None:
    write_files(tmp_path / "rocksdb" / "s", {"default": [(b"EWR", (1).to_bytes(8, "big"))]}, {}, {})
    store = opened(tmp_path, PLAIN, None)
    assert store.has_entries()
    store.close()


def test_an_offset_that_the_file_knows_is_older_than_the_deletions_after_it(tmp_path: Path) -> None:
    """A store that continues from it after `delete.retention.ms` would miss deletions (rules.md, 13): the file's time counts."""
    write_files(tmp_path / "rocksdb" / "s", {"default": [(b"EWR", (1).to_bytes(8, "big"))]}, {}, {})
    write_checkpoint(tmp_path, {CHANGELOG: NextOffset(4)})
    store = opened(tmp_path, PLAIN)
    assert store.committed_offset(CHANGELOG) == 4
    at_end = store.get_meta("at.end.ms")
    assert at_end is not None and int(at_end) == (tmp_path / ".checkpoint").stat().st_mtime_ns // 1_000_000
    store.close()
