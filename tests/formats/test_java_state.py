"""State folders that Kafka Streams 4.2 and 4.3 left (java/WriteState.java) are gone on with, or restored; never taken for whole
when it is not.

Input: EWR v0, JFK v1, LGA v2, EWR v3, Zürich v4, EWR v5, a minute apart from 1,000,000 ms on.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.changelog.adoption import take_up
from penstock.runtime.changelog.checkpoint import read_checkpoint
from penstock.runtime.model.errors import TaskCorruptedError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import ValueAndTimestamp
from penstock.runtime.stores.base import EngineStore, StoreBuilder, StoreContext
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.stores.rocks_files import write_files
from penstock.runtime.stores.suppliers import Stores

JAVA = Path(__file__).parent / "written_by_java"
TASK = TaskId(0, 0)
HOUR = 3_600_000
ZURICH = "Zürich ✈"
LAST = {"EWR": "v5", "JFK": "v1", "LGA": "v2", ZURICH: "v4"}
COUNTS = Stores.timestamped_key_value_store_builder(Stores.persistent_timestamped_key_value_store("counts"), serdes.STRING, serdes.LONG)
KEPT_LAST = Stores.key_value_store_builder(Stores.persistent_key_value_store("last"), serdes.STRING, serdes.STRING)
AIRPORTS = Stores.timestamped_key_value_store_builder(
    Stores.persistent_timestamped_key_value_store("airports"), serdes.STRING, serdes.STRING
)
HOURLY = Stores.timestamped_window_store_builder(
    Stores.persistent_timestamped_window_store("hourly", 2 * HOUR, HOUR), serdes.STRING, serdes.LONG
)
VISITS = Stores.session_store_builder(Stores.persistent_session_store("visits", HOUR), serdes.STRING, serdes.LONG)
PRICES = Stores.versioned_key_value_store_builder(Stores.persistent_versioned_key_value_store("prices", HOUR), serdes.STRING, serdes.STRING)


def changelog(store: str) -> TopicPartition:
    return TopicPartition(f"java-app-{store}-changelog", 0)


@pytest.fixture(params=["4.2", "4.3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The application's folder."""
    shutil.copytree(JAVA / f"state-{request.param}", tmp_path / "java-app")
    return tmp_path / "java-app"


def opened(folder: Path, builder: StoreBuilder[EngineStore]) -> EngineStore:
    """The store as a task opens it."""
    store = builder.build()
    task = folder / str(TASK)
    context = StoreContext("java-app", task, TASK, changelog(store.name))
    try:
        store.open(task, context)
    except TaskCorruptedError:
        store.wipe()
    else:
        take_up(task, store, lambda partition: partition == changelog(store.name), "")
    return store


def content(store: EngineStore) -> dict[object, object]:
    return dict(store.query_view(timestamped=True).all())


def test_key_value_stores_are_gone_on_with_at_the_offset_after_the_last_one_applied(folder: Path) -> None:
    for _ in range(2):  # the second time the store itself knows
        counts, last = opened(folder, COUNTS), opened(folder, KEPT_LAST)
        assert counts.committed_offsets() == {changelog("counts"): 4}
        assert content(counts) == {
            "EWR": ValueAndTimestamp(3, 1_300_000),
            "JFK": ValueAndTimestamp(1, 1_060_000),
            "LGA": ValueAndTimestamp(1, 1_120_000),
            ZURICH: ValueAndTimestamp(1, 1_240_000),
        }
        assert last.committed_offsets() == {changelog("last"): 6}
        assert content(last) == LAST
        counts.close()
        last.close()


def test_the_stores_own_offset_wins_over_a_file(folder: Path) -> None:
    counts = opened(folder, COUNTS)
    counts.restore([(b"EWR", (9).to_bytes(8, "big"), 5)], {changelog("counts"): NextOffset(7)})
    counts.close()
    (folder / "0_0" / ".checkpoint").write_text("0\n1\njava-app-counts-changelog 0 100\n")
    counts = opened(folder, COUNTS)
    assert counts.committed_offset(changelog("counts")) == 7
    counts.close()


def test_a_global_store_is_gone_on_with_at_the_offset_that_was_written(folder: Path) -> None:
    store = AIRPORTS.build()
    for _ in range(2):
        store.open(folder / "global", StoreContext("java-app", folder / "global"))
        take_up(folder / "global", store, lambda partition: partition.topic == "java-app-airports", "")
        assert store.committed_offsets() == {TopicPartition("java-app-airports", 0): 1, TopicPartition("java-app-airports", 1): 1}
        assert content(store) == {"EWR": ValueAndTimestamp("Newark", 7), "JFK": ValueAndTimestamp("Kennedy", 8)}
        store.close()


@pytest.mark.parametrize("builder", [HOURLY, VISITS, PRICES], ids=lambda builder: builder.name)
def test_segments_in_javas_form_never_count_as_full(folder: Path, builder: StoreBuilder[EngineStore]) -> None:
    store = opened(folder, builder)
    assert store.committed_offsets() == {}
    assert not store.has_entries()
    assert not (folder / "0_0" / builder.name).exists()
    store.close()


def test_removed_segments_are_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(folder, HOURLY).close()
    assert "0_0/hourly holds segments of store hourly in Kafka Streams' form, which is not read: removed" in caplog.text


@pytest.mark.parametrize("kept", ["0\n1\njava-app-counts-changelog 0 -4\n", None, "rubbish"])
def test_entries_without_a_known_offset_are_wiped(tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: str | None) -> None:
    """-4 is Kafka Streams' sign for an offset that is not known; without a file it was killed under exactly-once."""
    shutil.copytree(JAVA / "state-4.2", tmp_path / "java-app")
    path = tmp_path / "java-app" / "0_0" / ".checkpoint"
    path.unlink() if kept is None else path.write_text(kept)
    counts = opened(tmp_path / "java-app", COUNTS)
    assert counts.committed_offsets() == {} and not counts.has_entries()
    assert "store counts" in caplog.text and "no offset is known: it is emptied and restored" in caplog.text
    counts.close()


def test_after_a_kill_javas_file_has_no_offsets_and_its_stores_are_restored(tmp_path: Path) -> None:
    """Killed with `halt`: the files are there, what was in memory is not, and each offset is -4."""
    shutil.copytree(JAVA / "state-4.2-killed", tmp_path / "java-app")
    offsets = read_checkpoint(tmp_path / "java-app" / "0_0")
    assert len(offsets) == 5 and set(offsets.values()) == {None}
    counts = opened(tmp_path / "java-app", COUNTS)
    assert counts.committed_offsets() == {} and not counts.has_entries()
    counts.close()


def test_a_store_that_kafka_streams_43_did_not_close_is_wiped(tmp_path: Path) -> None:
    path = tmp_path / "0_0" / "rocksdb" / "counts"
    offsets = {b"status": (1).to_bytes(8, "big"), b"java-app-counts-changelog-0": (3).to_bytes(8, "big")}
    write_files(path, {"offsets": list(offsets.items()), "keyValueWithTimestamp": [(b"EWR", bytes(16))]}, {}, {})
    with pytest.raises(TaskCorruptedError, match="Kafka Streams did not close it"):
        COUNTS.build().open(tmp_path / "0_0", StoreContext("java-app", tmp_path / "0_0", TASK, changelog("counts")))
    counts = opened(tmp_path, COUNTS)
    assert counts.committed_offsets() == {} and not counts.has_entries()
    counts.close()


def test_a_new_or_emptied_store_is_given_no_offset(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "0_0" / ".checkpoint").write_text("0\n2\njava-app-new-changelog 0 3\njava-app-counts-changelog 0 3\n")
    new = Stores.key_value_store_builder(Stores.persistent_key_value_store("new"), serdes.STRING, serdes.LONG)
    store = opened(folder, new)
    assert store.committed_offsets() == {}
    store.close()
    counts = opened(folder, COUNTS)
    counts.wipe()
    counts.close()
    counts = opened(folder, COUNTS)
    assert counts.committed_offsets() == {}
    counts.close()


def test_the_process_id_of_kafka_streams_stays(folder: Path) -> None:
    known = json.loads((folder / "kafka-streams-process-metadata").read_text())["processId"]
    directory = StateDirectory(folder.parent, "java-app")
    directory.lock()
    assert directory.process_id == known
    directory.unlock()


@pytest.fixture(autouse=True)
def all_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
