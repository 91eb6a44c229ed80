"""Snapshots on disk and exported: atomic, found by place and id, pruned, resumed, and verified with checksums."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock import serdes
from penstock.orchestration.snapshots.exports import below, prune_exported
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.serdes.keys import window_store_key
from penstock.runtime.serdes.serde import RegistrySchema
from penstock.runtime.snapshots.catalogue import find, find_all
from penstock.runtime.snapshots.export_manager import ExportManager, expanded, progress
from penstock.runtime.snapshots.export_process import export, main
from penstock.runtime.snapshots.local import write_snapshot
from penstock.runtime.snapshots.manifest import (
    MANIFEST,
    SNAPSHOT,
    ApplicationManifest,
    TaskManifest,
    encoded,
    files_in,
    new_snapshot_id,
    read_manifest,
    time_of_id,
)
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import LocalPlace, Place
from penstock.runtime.snapshots.reading import check, copy_store, store_files
from penstock.runtime.snapshots.retention import LEFTOVER_MS, mark_complete, prune
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.rocks_files import read_files
from tests.support import wait_until, without_root

HOUR_MS = 3_600_000
TASKS = (TaskId(0, 0), TaskId(0, 1))


class Flight(msgspec.Struct):
    carrier: str
    legs: list[int]


def stores() -> list[EngineStore]:
    windows = Stores.persistent_timestamped_window_store("windows", 24 * HOUR_MS, HOUR_MS)
    return [
        Stores.timestamped_key_value_store_builder(
            Stores.persistent_timestamped_key_value_store("flights"), serdes.STRING, serdes.json(Flight)
        ).build(),
        Stores.timestamped_window_store_builder(windows, serdes.STRING, serdes.LONG).build(),
        Stores.key_value_store_builder(Stores.in_memory_key_value_store("memory"), serdes.STRING, serdes.LONG).build(),
    ]


def write(share: Path, snapshot_id: str, rows: int = 10) -> Path:
    """The parts of two tasks; the folder of the snapshot."""
    for task in TASKS:
        opened: dict[EngineStore, TopicPartition | None] = {}
        for store in stores():
            changelog = TopicPartition(f"app-{store.name}-changelog", task.partition)
            folder = share / "live" / snapshot_id / str(task)
            store.open(folder, StoreContext("app", folder, task, changelog))
            if store.layout.kind == "key_value":
                store.restore([(b"k%d" % n, os.urandom(8), n) for n in range(rows)], {changelog: NextOffset(rows)})
            opened[store] = changelog
        write_snapshot(
            share,
            snapshot_id,
            application="app",
            task=task,
            stores=opened,
            input_offsets={TopicPartition("in", task.partition): NextOffset(5)},
            stream_time=7,
            at_ms=time_of_id(snapshot_id) or 0,
            instance="one",
            partition_times={TopicPartition("in", task.partition): 6},
        )
        for store in opened:
            store.close()
    return share / snapshot_id


def complete(root: Path, share: Path, snapshot_id: str) -> Place:
    """As the control plane does when all tasks are in."""
    parts = [read_manifest(share / snapshot_id / str(task)) for task in TASKS]
    manifest = ApplicationManifest.of(parts, {part.task: str(share / snapshot_id / part.task) for part in parts})
    place = LocalPlace(root) / snapshot_id
    (place / SNAPSHOT).write(iter([encoded(manifest)]))
    return place


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A root with one complete snapshot, `s1`."""
    write(tmp_path / "share", "s1")
    complete(tmp_path / "root", tmp_path / "share", "s1")
    return tmp_path / "root"


def all_rows(folder: Path) -> list[tuple[bytes, bytes]]:
    return [entry for _, entries in read_files(folder) for entry in entries]


# -- reports --------------------------------------------------------------------------------------------------------------------


def test_a_manifest_has_offsets_times_files_and_schemas(whole: Path) -> None:
    snapshot = find(whole)
    assert snapshot.tasks == ["0_0", "0_1"]
    manifest = snapshot.manifest
    assert (manifest.application, manifest.snapshot, manifest.kind, manifest.missing) == ("app", "s1", "snapshot", [])
    assert [(at.topic, at.partition, at.next_offset) for at in manifest.inputs] == [("in", 0, 5), ("in", 1, 5)]
    assert {(at.topic, at.partition): at.next_offset for at in manifest.changelogs}["app-flights-changelog", 1] == 10
    assert len(manifest.changelogs) == 6 and manifest.stores == ["flights", "memory", "windows"]
    part = snapshot.task("0_1")
    assert (part.version, part.instance, part.stream_time, part.partition_times[0].time_ms) == (2, "one", 7, 6)
    assert part.files == files_in(Path(snapshot.task_place("0_1").uri)) and part.bytes == sum(file.bytes for file in part.files) > 0
    flights, windows, memory = part.stores
    assert flights.value_schema is not None and set(flights.value_schema) == {"$ref", "$defs"} and flights.key_schema is None
    assert (windows.kind, windows.window_size_ms, windows.retention_ms, windows.segment_ms) == (
        "window",
        HOUR_MS,
        24 * HOUR_MS,
        12 * HOUR_MS,
    )
    assert (windows.stream_time, flights.stream_time, memory.persistent) == (-1, None, False)


def test_the_schema_of_a_schema_registry_serde_is_in_the_manifest(tmp_path: Path) -> None:
    schema = '{"type": "record", "name": "Flight", "fields": []}'
    value = serdes.avro("mock://schemas", schema)
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("s"), serdes.STRING, value).build()
    store.open(tmp_path, StoreContext("app", tmp_path, TASKS[0]))
    earlier = '{"type": "record", "name": "Flight", "fields": [{"name": "gate", "type": "string"}]}'
    for each in (earlier, schema):
        serdes.avro("mock://schemas", each).serializer("app-s-changelog")({"gate": "A"})
    folder = write_snapshot(
        tmp_path / "share", "s1", application="app", task=TASKS[0], stores={store: None}, input_offsets={}, stream_time=-1, at_ms=1
    )
    [kept] = read_manifest(folder).stores
    assert kept.value_schema is None
    assert kept.value_registry_schema == RegistrySchema("AVRO", schema, writers={1: earlier, 2: schema})
    store.close()


def test_a_snapshot_is_written_without_a_schema_registry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    value = serdes.avro({"url": "http://127.0.0.1:9", "max.retries": 0}, '"string"')  # the port for discarding: nothing listens
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("s"), serdes.STRING, value).build()
    store.open(tmp_path, StoreContext("app", tmp_path, TASKS[0]))
    folder = write_snapshot(
        tmp_path / "share", "s1", application="app", task=TASKS[0], stores={store: None}, input_offsets={}, stream_time=-1, at_ms=1
    )
    [kept] = read_manifest(folder).stores
    assert kept.value_registry_schema == RegistrySchema("AVRO", '"string"')
    assert "Store s: its values with schemas of a registry will not be readable outside the program" in caplog.text
    store.close()


def test_ids_sort_by_time_and_contain_it() -> None:
    first, second = new_snapshot_id(1_700_000_000_123), new_snapshot_id(1_700_000_000_124)
    assert first < second and new_snapshot_id(1_700_000_000_123) != first
    assert time_of_id(first) == 1_700_000_000_123 and time_of_id("first") is None


@pytest.mark.parametrize("number", range(len(stores())))
def test_a_snapshot_holds_the_state_at_its_start(tmp_path: Path, number: int) -> None:
    """The rest of it is written while the store continues."""
    store, changelog = stores()[number], TopicPartition("log", 0)
    store.open(tmp_path, StoreContext("app", tmp_path, TASKS[0], changelog))
    key = window_store_key(b"k", HOUR_MS) if store.layout.kind == "window" else b"k"
    store.restore([(key, b"before", 1)], {changelog: NextOffset(1)})
    finish = store.begin_checkpoint(tmp_path / "copy")
    store.restore([(key, b"after", 2), (key[:-1] + b"l", b"after", 2)], {changelog: NextOffset(3)})
    finish()
    [(found, value)] = all_rows(tmp_path / "copy")
    assert found == key and value.endswith(b"before")
    store.close()


# -- finding --------------------------------------------------------------------------------------------------------------------


def test_find_returns_the_newest_complete_snapshot_or_the_named_one(whole: Path, tmp_path: Path) -> None:
    write(tmp_path / "share", "s2")
    complete(whole, tmp_path / "share", "s2")
    (whole / "s3").mkdir()  # begun, and never finished
    assert find(whole).id == "s2" and find(str(whole), "s1").id == "s1" and find(whole / "s1").id == "s1"
    assert find(f"file://{whole}").id == "s2"
    assert [each.id for each in find_all(LocalPlace(whole), lambda error: pytest.fail(str(error)))] == ["s1", "s2"]


@pytest.mark.parametrize("as_uri", [False, True])
def test_find_names_what_a_folder_is_that_is_no_snapshot(whole: Path, tmp_path: Path, as_uri: bool) -> None:
    def why(where: Path, snapshot: str | None = None) -> str:
        with pytest.raises(StateDirectoryError) as raised:
            find(f"file://{where}" if as_uri else where, snapshot)
        return str(raised.value)

    (whole / "half").mkdir()
    (whole / "half" / "0_0").mkdir()
    assert "there is no snapshot 'no' at" in why(whole, "no") and "complete are s1" in why(whole, "no")
    assert "'half' at" in why(whole, "half") and "is not complete" in why(whole, "half")
    assert "is snapshot s1, not s2" in why(whole / "s1", "s2")
    assert "one task's part" in why(tmp_path / "share" / "s1" / "0_0")
    assert "holds parts of a snapshot (0_0, 0_1)" in why(tmp_path / "share" / "s1")
    assert "running task's stores" in why(tmp_path / "share" / "live" / "s1" / "0_0")
    assert "running task's stores" in why(tmp_path / "share" / "live" / "s1" / "0_0" / "rocksdb" / "flights")
    assert "there is nothing" in why(tmp_path / "nowhere")
    assert "it holds the snapshots of root" in why(tmp_path)


def test_reading_a_removed_part_raises(whole: Path, tmp_path: Path) -> None:
    snapshot = find(whole)
    with pytest.raises(StateDirectoryError, match="has no task '0_9'; there are 0_0, 0_1"):
        snapshot.task_place("0_9")
    (tmp_path / "share" / "s1").rename(tmp_path / "elsewhere")
    with pytest.raises(StateDirectoryError, match=r"the part of task 0_0 is not at .* on another machine"):
        snapshot.task("0_0")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "version 9, which this Penstock does not know"),
        (lambda text: "[]", "cannot be read"),
        (lambda text: text.replace('"missing": []', '"missing": ["0_2"]'), "not complete: tasks 0_2 are missing"),
    ],
)
def test_an_unreadable_manifest_is_named(whole: Path, damage: Callable[[str], str], message: str) -> None:
    path = whole / "s1" / SNAPSHOT
    path.write_text(damage(path.read_text()))
    with pytest.raises(StateDirectoryError, match=message) as raised:
        find(whole)
    assert str(path) in str(raised.value)


def test_a_place_without_permission_is_named(whole: Path, tmp_path: Path) -> None:
    (whole / "s1" / SNAPSHOT).chmod(0o000)
    (tmp_path / "mine").mkdir(mode=0o700)
    for folder in tmp_path.parents:  # pytest keeps them for itself
        if folder.stat().st_uid == os.getuid() and folder != Path("/tmp"):
            folder.chmod(0o711)
    tmp_path.chmod(0o711)
    for where in (str(whole), f"file://{whole}"):
        with without_root(), pytest.raises(StateDirectoryError, match=r"s1/snapshot.json cannot be read: .*[Pp]ermission denied") as raised:
            find(where)
        assert "give this user the right" in str(raised.value) and "state.dir" not in str(raised.value), "it is no state directory"
    for target in (str(tmp_path / "mine" / "s1"), f"file://{tmp_path}/mine/s1"):
        with without_root(), pytest.raises(StateDirectoryError, match=r"mine.*cannot be .*[Pp]ermission denied"):
            (place_of(target) / "file").write(iter([b"x"]))
    (whole / "s1" / SNAPSHOT).chmod(0o644)


# -- retention ------------------------------------------------------------------------------------------------------------------


def test_prune_keeps_the_newest_complete_snapshots_and_removes_abandoned_ones(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    for name in ("s1", "s2", "s3", "s4", "half", "old-half", ".s0.removed"):
        (tmp_path / name / "0_0").mkdir(parents=True)
    assert all(mark_complete(tmp_path, name) for name in ("s1", "s2", "s3", "s4", ".s0.removed")) and not mark_complete(tmp_path, "other")
    long_ago = (now_ms - LEFTOVER_MS - 60_000) * 1_000_000
    os.utime(tmp_path / "old-half", ns=(long_ago, long_ago))
    assert sorted(prune(tmp_path, now_ms, keep=2)) == [".s0.removed", "old-half", "s1", "s2"]
    assert sorted(os.listdir(tmp_path)) == ["half", "s3", "s4"]
    assert prune(tmp_path, now_ms, keep=2, unwanted=["s4", "half"]) == ["half", "s4"]
    assert os.listdir(tmp_path) == ["s3"]
    assert prune(tmp_path / "nothing", now_ms) == []


def test_exported_snapshots_have_the_same_retention(whole: Path, tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    root = place_of(f"file://{tmp_path}/copies")
    for name in ("s1", "s2", "s3", new_snapshot_id(now_ms), new_snapshot_id(now_ms - 2 * 24 * HOUR_MS), "what-is-it"):
        (root / name / "0_0" / "file").write(iter([b"x"]))
    for name in ("s1", "s2", "s3"):
        (root / name / SNAPSHOT).write(iter([(whole / "s1" / SNAPSHOT).read_bytes()]))
    assert len(prune_exported(root, keep=None, now_ms=now_ms)) == 1
    assert prune_exported(root, keep=1, now_ms=now_ms, spared="s1") == ["s2"]
    assert prune_exported(root, keep=1, now_ms=now_ms) == ["s1"]
    assert len(root.children()) == 3 and find(root).place.name == "s3"


# -- copies ---------------------------------------------------------------------------------------------------------------------


def test_an_export_adds_checksums_and_is_invisible_until_complete(whole: Path, tmp_path: Path) -> None:
    share, target = tmp_path / "share" / "s1", place_of(f"file://{tmp_path}/copies/app/s1")
    reported: list[tuple[int, int]] = []
    export(share, target, ["0_0", "0_1"], lambda done, total: reported.append((done, total)))
    total = find(whole).manifest.bytes
    assert reported[0] == (0, total) and reported[-1] == (total, total) and reported == sorted(reported)
    with pytest.raises(StateDirectoryError, match="holds parts of a snapshot"):
        find(target)
    for task in ("0_0", "0_1"):
        then, now = read_manifest(share / task), read_manifest(tmp_path / "copies" / "app" / "s1" / task)
        assert [(file.path, file.bytes) for file in now.files] == [(file.path, file.bytes) for file in then.files]
        assert all(len(file.sha256 or "") == 64 for file in now.files)
        check(target / task, now.files)
        for store in now.stores:
            with store_files(target / task, now, store) as folder:
                assert all_rows(folder) == all_rows(share / task / store.directory)
            copied = copy_store(target / task, now, store, tmp_path / "seeded" / task)
            assert all_rows(copied) == all_rows(share / task / store.directory)


def test_an_interrupted_export_resumes(whole: Path, tmp_path: Path) -> None:
    share, target = tmp_path / "share" / "s1", place_of(f"file://{tmp_path}/copies/s1")

    class Cut(Exception):
        pass

    def cut(done: int, total: int) -> None:
        if done > total * 0.9:
            raise Cut

    with pytest.raises(Cut):
        export(share, target, ["0_0", "0_1"], cut)
    there = {path: path.stat().st_mtime_ns for path in (tmp_path / "copies").rglob("*") if path.is_file()}
    assert there and not any(path.name.endswith(".partial") for path in there)
    assert not (tmp_path / "copies" / "s1" / "0_1" / MANIFEST).exists()
    damaged = next(path for path in there if path.parent.parent.name == "0_1" and path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[0] ^= 1  # of the right size, and wrong all the same
    damaged.write_bytes(content)
    export(share, target, ["0_0", "0_1"], lambda done, total: None)
    for path, at in there.items():
        assert (path.stat().st_mtime_ns == at) == (path != damaged)
    for task in ("0_0", "0_1"):
        check(target / task, read_manifest(tmp_path / "copies" / "s1" / task).files)


def test_a_killed_export_process_is_started_again(tmp_path: Path) -> None:
    share, uri = big(tmp_path), f"file://{tmp_path}/copies/s1"
    exports = ExportManager()
    assert progress(share, uri).state == "none"
    exports.start(share, uri, ["0_0"])
    [process] = exports._processes.values()
    while not list((tmp_path / "copies").rglob("*.sst*")):
        time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    exports.start(share, uri, ["0_0"])
    assert list(exports._processes.values()) == [process], "one at a time"
    process.kill()
    process.wait()
    assert progress(share, uri).state == "cut off" and not (tmp_path / "copies" / "s1" / "0_0" / MANIFEST).exists()
    exports.start(share, uri, ["0_0"])
    wait_until(lambda: exports.progress(share, uri).state == "done", what="the copy")
    found = progress(share, uri)
    assert found.done == found.total == BIG
    place = place_of(uri) / "0_0"
    check(place, read_manifest(tmp_path / "copies" / "s1" / "0_0").files)
    exports.close()


def test_a_failed_export_reports_the_reason(tmp_path: Path) -> None:
    share = big(tmp_path)
    for uri, why in {
        "ftp://host/folder": "Known are file:///folder, s3://bucket/folder",
        "file:///proc/no/such": "cannot be written",
        "s3://${NOT_SET}/folder": "${NOT_SET} is not set in the environment",
    }.items():
        assert main([str(share), uri, "0_0"]) == 1
        found = progress(share, uri)
        assert found.state == "failed" and why in found.error
    with pytest.raises(StateDirectoryError, match="any more"):
        progress(tmp_path / "gone", "file:///x")


def test_credentials_in_a_uri_are_not_shown() -> None:
    place = place_of("s3://key:secret@bucket/folder?region=eu-west-1") / "s1"
    assert str(place) == "s3://bucket/folder/s1" and place.uri == "s3://key:secret@bucket/folder/s1?region=eu-west-1"
    assert below("s3://bucket/folder/?region=eu-west-1", "app") == "s3://bucket/folder/app?region=eu-west-1"
    assert expanded("s3://${A}/${B}", {"A": "x", "B": "y"}) == "s3://x/y"
    with pytest.raises(StateDirectoryError) as raised:
        place_of("nope://key:secret@bucket/folder?token=secret")
    assert "nope://bucket/folder" in str(raised.value)


def test_a_damaged_or_missing_file_is_named(whole: Path, tmp_path: Path) -> None:
    share, target = tmp_path / "share" / "s1", place_of(f"file://{tmp_path}/copies/s1")
    export(share, target, ["0_0"], lambda done, total: None)
    folder = tmp_path / "copies" / "s1" / "0_0"
    part = read_manifest(folder)
    path = next(folder.glob("flights/*.sst"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    flights = part.stores[0]
    with pytest.raises(StateDirectoryError, match=f"{path} is damaged: its SHA-256"), store_files(target / "0_0", part, flights):
        pass
    with pytest.raises(StateDirectoryError, match="SHA-256"):
        copy_store(target / "0_0", part, flights, tmp_path / "seeded")
    assert not (tmp_path / "seeded" / "flights" / path.name).exists()
    path.write_bytes(content[:-1])
    with pytest.raises(StateDirectoryError, match="bytes, and the snapshot's manifest says"):
        check(target / "0_0", part.files)
    path.unlink()
    with pytest.raises(StateDirectoryError, match="is not there, although"):
        check(target / "0_0", part.files)
    (next((share / "0_0").glob("flights/*.sst"))).unlink()
    with pytest.raises(StateDirectoryError, match="cannot be read"):
        export(share, place_of(f"file://{tmp_path}/again"), ["0_0"], lambda done, total: None)


BIG = 60_000_000


def big(folder: Path) -> Path:
    """A share whose one part takes a moment to copy."""
    part = folder / "share" / "s1" / "0_0"
    (part / "store").mkdir(parents=True)
    for number in range(6):
        (part / "store" / f"{number}.sst").write_bytes(os.urandom(BIG // 6))
    manifest = TaskManifest(
        application="app", snapshot="s1", task="0_0", at_ms=1, stream_time=1, input_offsets=[], stores=[], files=files_in(part)
    )
    (part / MANIFEST).write_bytes(encoded(manifest))
    return part.parent
