"""Files of version 1 (`v1`, by write_v1.py) are read by today's version, which writes the same."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.runtime.changelog.adoption import take_up
from penstock.runtime.changelog.checkpoint import read_checkpoint
from penstock.runtime.coordination.records import Tombstone, decode
from penstock.runtime.model.events import Event
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.offsets import decode_partition_time, encode_partition_time
from penstock.runtime.model.record import ValueAndTimestamp
from penstock.runtime.snapshots.manifest import read_manifest
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.stores.layout import LAYOUT_META, decode_layout
from penstock.runtime.stores.rocks import RocksStore
from penstock.runtime.stores.rows import read_store
from tests.formats.write_v1 import BUILDERS, EVENT, GLOBAL, HOUR, INPUT, NOON, TASK, changelog, coordination, opened, write

V1 = Path(__file__).parent / "v1"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The application's folder of version 1, to be written to."""
    shutil.copytree(V1 / "app", tmp_path / "app")
    return tmp_path / "app"


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files that today's version writes."""
    folder = tmp_path_factory.mktemp("today")
    write(folder)
    return folder


def _plain(store: EngineStore) -> object:
    return dict(store.query_view().all())


def _timestamped(store: EngineStore) -> object:
    return dict(store.query_view(timestamped=True).all())


def _windows(store: EngineStore) -> object:
    return list(store.query_view().fetch("EWR", 0, NOON + 9 * HOUR))  # type: ignore[attr-defined]  # a window store's view


def _sessions(store: EngineStore) -> object:
    return store.query_view().fetch_session("EWR", NOON, NOON + 60_000)  # type: ignore[attr-defined]  # a session store's view


def _versions(store: EngineStore) -> object:
    view = store.query_view()
    return [found and (found.value, found.timestamp) for found in (view.get("EWR", NOON + 1), view.get("EWR"))]  # type: ignore[attr-defined]  # as above


CONTENT: dict[str, tuple[Callable[[EngineStore], object], object]] = {
    "plain": (_plain, {"EWR": 2}),
    "timestamped": (_timestamped, {"EWR": ValueAndTimestamp(2, NOON + 2)}),
    "windows": (_windows, [(NOON, 1), (NOON + 2 * HOUR, 2)]),
    "timestamped-windows": (_windows, [(NOON, 1), (NOON + 2 * HOUR, 2)]),
    "sessions": (_sessions, 2),
    "versioned": (_versions, [(1, NOON), (2, NOON + 60_000)]),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_store_of_version_1_is_gone_on_with(state: Path, name: str) -> None:
    task = state / str(TASK)
    store = opened(name, task)
    take_up(task, store, lambda partition: partition == changelog(name), "")
    read, expected = CONTENT[name]
    assert read(store) == expected
    assert store.committed_offsets() == {changelog(name): 7, INPUT: 5}
    assert store.get_meta("stream.time") == NOON.to_bytes(8, "big")
    store.close()


def test_a_global_store_of_version_1_is_gone_on_with(state: Path) -> None:
    store = GLOBAL.build()
    store.open(state / "global", StoreContext("app", state / "global"))
    take_up(state / "global", store, lambda partition: partition.topic == "airports", "")
    assert _timestamped(store) == {"EWR": ValueAndTimestamp("Newark", NOON)}
    assert store.committed_offsets() == {TopicPartition("airports", 0): 3}
    store.close()


def _raw(folder: Path) -> tuple[object, object]:
    """All bytes of a store by family, and the layout that it keeps."""
    store = RocksStore(folder, [], StoreMemory(), TASK)
    try:
        found = {name: dict(family.items()) for name, family in store._families.items()}
    finally:
        store.close()
    layout = found["offsets"].pop(b"\x00" + LAYOUT_META.encode())
    assert isinstance(layout, bytes)
    return found, decode_layout(layout)


@pytest.mark.parametrize("name", BUILDERS)
def test_stores_are_written_as_version_1_wrote_them(state: Path, today: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(today / "app" / "0_0", tmp_path / "today")
    assert _raw(state / "0_0" / "rocksdb" / name) == _raw(tmp_path / "today" / "rocksdb" / name)


@pytest.mark.parametrize("file", ["app/0_0/.checkpoint", "app/global/.checkpoint", "commit-metadata.txt"])
def test_files_are_written_as_version_1_wrote_them(today: Path, file: str) -> None:
    assert (today / file).read_bytes() == (V1 / file).read_bytes()


def test_checkpoint_files_of_version_1_are_read() -> None:
    wanted = {changelog(name): 7 for name in BUILDERS}
    assert read_checkpoint(V1 / "app" / "0_0") == wanted | {changelog("unknown"): None}
    assert read_checkpoint(V1 / "app" / "global") == {TopicPartition("airports", 0): 3}


def test_the_process_metadata_of_version_1_is_read_and_stays(state: Path) -> None:
    content = (state / "kafka-streams-process-metadata").read_text()
    directory = StateDirectory(state.parent, "app")
    directory.lock()
    assert directory.process_id == str(uuid.UUID(json.loads(content)["processId"]))
    directory.unlock()
    assert (state / "kafka-streams-process-metadata").read_text() == content


def test_a_snapshot_of_version_1_is_read_and_todays_is_the_same(today: Path) -> None:
    then, now = (read_manifest(folder / "app" / "snapshots" / "first" / "0_0") for folder in (V1, today))
    assert (then.version, now.version) == (1, 2)
    assert (then.snapshot, then.files != []) == ("first", True)
    for name in ("application", "task", "at_ms", "stream_time", "input_offsets"):
        assert getattr(then, name) == getattr(now, name)
    assert then.stores == [replace(store, segment_ms=None, stream_time=None) for store in now.stores]
    by_name = {store.name: store for store in then.stores}
    assert sorted(by_name) == ["timestamped", "windows"]
    folder = V1 / "app" / "snapshots" / "first" / "0_0"
    [rows] = read_store(folder / "timestamped", by_name["timestamped"].layout)
    assert rows.timestamps is not None
    assert (rows.keys.to_pylist(), rows.values.to_pylist(), rows.timestamps.to_pylist()) == ([b"EWR"], [(2).to_bytes(8, "big")], [NOON + 2])
    windows = list(read_store(folder / "windows", by_name["windows"].layout))
    starts = [start for rows in windows if rows.window_starts is not None for start in rows.window_starts.to_pylist()]
    assert starts == [NOON, NOON + 2 * HOUR]


def test_coordination_records_of_version_1_are_read_and_mean_the_same() -> None:
    lines = [line.split("\t", 1) for line in (V1 / "coordination.tsv").read_text(encoding="utf-8").splitlines()]
    now = {key.partition(b"/")[0].decode(): decode(key, value) for key, value in coordination()}
    assert len(lines) == len(now) == 7
    for key, value in lines:
        assert decode(key.encode(), value.encode()) == now[key.partition("/")[0]]


def test_a_member_of_version_1_is_worker_1_of_its_instance() -> None:
    """So its tombstone, whose key has no number of a worker, is that of the same member."""
    gone = decode(b"member/one/1", None)
    assert isinstance(gone, Tombstone) and gone.id == "one/1/1"
    assert decode(b"member/one/2/1", None) == Tombstone("member", "one/2/1")


def test_events_of_version_1_are_read_and_written_the_same() -> None:
    data = (V1 / "event.json").read_bytes()
    assert Event.from_json(data) == EVENT
    assert EVENT.to_json() == data


def test_the_metadata_of_commits_of_version_1_is_read() -> None:
    text = (V1 / "commit-metadata.txt").read_text(encoding="utf-8")
    assert decode_partition_time(text) == NOON
    assert encode_partition_time(NOON) == text
    assert decode_partition_time("AgAAAYvP2TMAAAAAAA==") == NOON, "with an empty list of processors, as it was written at first"
