"""Wrong options of the source of state, and damaged files: each is reported with the remedy, and no row is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock import serdes
from penstock.assets.spark.source.source_options import SourceOptions, read_time
from penstock.assets.spark.source.state_source import ReadPlan, find_store
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.snapshots.arrow import ArrowPlace
from penstock.runtime.snapshots.manifest import MANIFEST, SNAPSHOT, StoreManifest, TaskManifest
from penstock.runtime.snapshots.places import Place
from penstock.runtime.snapshots.reading import copy_store
from penstock.runtime.stores import Stores
from tests.support import without_root
from tests.support.state_snapshots import MakeTasks, counts, made_in, rows_of


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[MakeTasks]:
    yield from made_in(tmp_path)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """URIs of this machine's disk are taken for those of another one."""
    monkeypatch.setattr(ArrowPlace, "local", None)


def values(rows: Sequence[dict[str, Any]]) -> list[object]:
    return [row["value"] for row in rows]


# --- options ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"from_key": "x"}, "'x' is not a whole number: the store's keys are LONG"),
        ({"from_key": "9", "to_key": "1"}, r"from-key' \(9\) is after 'to-key' \(1\)"),
        ({"to_key": str(2**63)}, "is out of range: the store's keys are LONG"),
        ({"from_time": "5"}, "are for windows, sessions and versions; kv is a key_value store"),
        ({"from_time": "noon"}, "'from-time' cannot be 'noon': a time is ISO 8601"),
        ({"from_time": "9", "to_time": "1"}, "is later than 'to-time'"),
        ({"columns": "key,valu"}, "there is no column 'valu'; there are partition, key, value, _malformed"),
        ({"value_schema": "a INT"}, "value-schema is for values in JSON; these are LONG"),
        ({"tasks": "0_7"}, "has no part of store kv of the tasks 0_7; there are 0_0"),
        ({"mode": "DROPMALFORMED"}, "no row is dropped"),
        ({"mode": "quick"}, "cannot be 'quick'; there are PERMISSIVE and FAILFAST"),
        ({"sample": "0"}, "'sample' cannot be '0': it is a number of rows per task, from 1"),
        ({"filter": "x"}, "does not know the option 'filter'; its options are path, application"),
        ({"snapshot": "nonesuch"}, "is snapshot 20260101T000000000-aaaaaa, not nonesuch"),
    ],
)
def test_wrong_options_are_named_with_what_would_be_right(tasks: MakeTasks, options: dict[str, str], message: str) -> None:
    app = tasks(Stores.key_value_store_builder(Stores.in_memory_key_value_store("kv"), serdes.LONG, serdes.LONG))
    path = app.snapshot()
    with pytest.raises((ValueError, StateDirectoryError), match=message):
        rows_of(path, "kv", **options)


def test_the_snapshot_or_topic_to_read_must_be_named() -> None:
    for options, message in (({"path": "/x"}, "needs the option 'store'"), ({"store": "s"}, "needs the option 'application' or 'path'")):
        with pytest.raises(ValueError, match=message):
            SourceOptions.of(options)
    with pytest.raises(ValueError, match="both the options 'path' and 'snapshot' name a place"):
        SourceOptions.of({"store": "s", "path": "/x", "snapshot": "/y"})
    assert SourceOptions.of({"store": "s", "snapshot": "s3://bucket/app"}).path == "s3://bucket/app"
    assert read_time("1970-01-01") == 0 and read_time("-5") == -5 and read_time("1970-01-01T01:00:00.001+01:00") == 1


def test_keys_that_have_no_order_cannot_be_a_range(tasks: MakeTasks) -> None:
    app = tasks(Stores.key_value_store_builder(Stores.in_memory_key_value_store("kv"), serdes.list_of(serdes.LONG), serdes.LONG))
    with pytest.raises(ValueError, match=r"are for keys of one value; these are array<bigint> \(list_of\(LONG\)\)"):
        rows_of(app.snapshot(), "kv", from_key="1")


# --- snapshots ----------------------------------------------------------------------------------------------------------------------


def test_the_newest_complete_snapshot_by_default_and_any_by_its_id(tasks: MakeTasks) -> None:
    app = tasks(counts())
    for number in range(3):
        app.store(0, "counts").put("a", number)
        app.snapshot(f"2026010{number + 1}T000000000-aaaaaa")
    (app.root / "20260103T000000000-aaaaaa" / SNAPSHOT).unlink()
    assert values(rows_of(app.root, "counts")) == [1]
    assert values(rows_of(app.root, "counts", snapshot="20260101T000000000-aaaaaa")) == [0]
    assert values(rows_of(app.root.parent, "counts", application="snapshots")) == [1]
    with pytest.raises(StateDirectoryError, match=r"'20260103T000000000-aaaaaa' at .* is not complete"):
        rows_of(app.root, "counts", snapshot="20260103T000000000-aaaaaa")


def test_an_application_is_looked_for_where_the_control_plane_keeps_its_snapshots(
    tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tasks(counts())
    app.store(0, "counts").put("a", 1)
    path = app.snapshot()
    home = app.folder / "home"
    (home / "snapshots").mkdir(parents=True)
    shutil.copytree(app.root, home / "snapshots" / "app")
    monkeypatch.setenv("PENSTOCK_HOME", str(home))
    plan = ReadPlan.of(SourceOptions.of({"application": "app", "store": "counts"}))
    assert [part.place for part in plan.parts] == [str(home / "snapshots" / "app" / path.name / "0_0")]


@pytest.mark.usefixtures("elsewhere")
def test_a_snapshot_at_a_uri_is_fetched_checked_and_removed(tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = tasks(counts())
    app.store(0, "counts").put("a", 1)
    path = app.snapshot()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert values(rows_of(path.as_uri(), "counts")) == [1]
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.usefixtures("elsewhere")
def test_an_executor_fetches_what_lies_at_a_uri_once(tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = tasks(counts(), tasks=2)
    for number in range(20):
        app.store(number % 2, "counts").put(f"k{number}", number)
    path = app.snapshot()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'local'},{tmp_path / 'other'}")
    fetches: list[str] = []

    def counted(place: Place, task: TaskManifest, store: StoreManifest, into: Path) -> Path:
        fetches.append(place.uri)
        return copy_store(place, task, store, into)

    monkeypatch.setattr("penstock.assets.spark.source.state_source.copy_store", counted)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: len(rows_of(path.as_uri(), "counts")), range(8)))
    assert found == [20] * 8 and len(fetches) == 2
    shutil.rmtree(path)  # it is read from the copy, which Spark removes with the executor
    assert sorted(file.suffix for file in (tmp_path / "local" / "penstock-snapshots").iterdir()) == ["", "", ".lock", ".lock"]


@pytest.mark.usefixtures("elsewhere")
def test_a_copy_that_failed_is_not_taken_for_one(tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = tasks(counts())
    app.store(0, "counts").put("a", 1)
    path = app.snapshot()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    file = next((path / "0_0" / "counts").glob("MANIFEST*"))
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1])
    for _ in range(2):
        with pytest.raises(StateDirectoryError, match=f"{file.name} is damaged"):
            rows_of(path.as_uri(), "counts")
    file.write_bytes(data)
    assert values(rows_of(path.as_uri(), "counts")) == [1]


@pytest.mark.parametrize("as_uri", [False, True])
def test_damaged_and_missing_files_are_named(tasks: MakeTasks, as_uri: bool) -> None:
    app = tasks(counts())
    for number in range(2_000):
        app.store(0, "counts").put(f"k{number}", number)
    path = app.snapshot()
    part = path / "0_0"
    largest = max((part / "counts").iterdir(), key=lambda file: file.stat().st_size)
    where = path.as_uri() if as_uri else path
    data = largest.read_bytes()
    largest.unlink()
    largest.write_bytes(data[:-10])
    with pytest.raises(StateDirectoryError, match=f"{largest.name} is damaged: it has"):
        rows_of(where, "counts")
    largest.unlink()
    with pytest.raises(StateDirectoryError, match=f"{largest.name} is not there"):
        rows_of(where, "counts")
    shutil.rmtree(part)
    with pytest.raises(StateDirectoryError, match="the part of task 0_0 is not at"):
        rows_of(where, "counts")


def test_a_folder_that_is_not_a_snapshot_is_refused(tasks: MakeTasks) -> None:
    app = tasks(counts())
    app.store(0, "counts").put("a", 1)
    path = app.snapshot()
    for where, message in (
        (app.folder / "nowhere", "there is nothing"),
        (path / "0_0", "is one task's part of a snapshot"),
        (app.folder / "state" / "0_0", "the folder of a running task's stores"),
    ):
        with pytest.raises(StateDirectoryError, match=message):
            rows_of(where, "counts")
    with pytest.raises(StateDirectoryError, match="has no store 'count'; there are counts"):
        rows_of(path, "count")
    other = json.loads((path / "0_0" / MANIFEST).read_text())
    (path / "0_0" / MANIFEST).write_text(json.dumps({**other, "version": 99}))
    with pytest.raises(StateDirectoryError, match="of version 99"):
        rows_of(path, "counts")


def test_a_snapshot_that_may_not_be_read_says_so(tasks: MakeTasks) -> None:
    app = tasks(counts())
    path = app.snapshot()
    (path / "0_0").chmod(0)
    try:
        with without_root(), pytest.raises(StateDirectoryError, match="Permission denied"):
            rows_of(path, "counts")
    finally:
        (path / "0_0").chmod(0o755)


def test_parts_that_two_versions_of_the_program_wrote_are_refused(tasks: MakeTasks) -> None:
    app = tasks(counts(), tasks=2)
    path = app.snapshot()
    manifest = path / "0_1" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"LONG"', '"INTEGER"'))
    with pytest.raises(StateDirectoryError, match="store counts of task 0_1 is not of the same layout as that of task 0_0"):
        rows_of(path, "counts")
    assert [part.partition for part in find_store(str(path), "counts", frozenset({"0_0"}))] == [0]


# --- bytes that do not fit ----------------------------------------------------------------------------------------------------------


def test_malformed_rows_are_kept_apart_and_none_is_lost(tasks: MakeTasks) -> None:
    raw = Stores.key_value_store_builder(Stores.persistent_key_value_store("raw"), serdes.BYTES, serdes.BYTES)
    app = tasks(raw, counts())
    for key, value in ((b"a", bytes(8)), (b"b", b"short"), (b"\xff", bytes(8))):
        app.store(0, "raw").put(key, value)
    path = app.snapshot()
    manifest = path / "0_0" / MANIFEST
    manifest.write_text(
        manifest.read_text()
        .replace('"key_format": "BYTES"', '"key_format": "STRING"')
        .replace('"value_format": "BYTES"', '"value_format": "LONG"')
    )
    good, short, odd = rows_of(path, "raw")
    assert good == {"partition": 0, "key": "a", "value": 0, "_malformed": None}
    assert (short["key"], short["value"]) == ("b", None) and short["_malformed"]["value"] == b"short"
    assert (odd["key"], odd["value"]) == (None, 0) and odd["_malformed"]["key"] == b"\xff"
    assert "value: b'short' is not of the serde LONG" in short["_malformed"]["reason"]
    with pytest.raises(StateDirectoryError, match=r"store raw of task 0_0: the row with the key b'b' does not fit \(value: b'short'"):
        rows_of(path, "raw", mode="failfast")
    assert len(rows_of(path, "raw", mode="FAILFAST", columns="partition")) == 3  # nothing that does not fit was looked at


def test_entries_that_are_too_short_to_be_of_their_store(tasks: MakeTasks) -> None:
    app = tasks(Stores.key_value_store_builder(Stores.persistent_key_value_store("raw"), serdes.BYTES, serdes.BYTES))
    app.store(0, "raw").put(b"a", b"1234567")
    app.store(0, "raw").put(b"b", bytes(8) + b"x")
    path = app.snapshot()
    manifest = path / "0_0" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"timestamped": false', '"timestamped": true'))
    with pytest.raises(StateDirectoryError, match="has no column family 'keyValueWithTimestamp'; there are default"):
        rows_of(path, "raw")
    manifest.write_text(manifest.read_text().replace('"kind": "key_value"', '"kind": "buffer"'))
    found = rows_of(path, "raw")
    assert [row["_malformed"]["key"] for row in found] == [b"a", b"b"]
    assert all(row["partition"] == 0 and row["key"] is None for row in found)
    assert "are not a change that waits in a buffer" in found[0]["_malformed"]["reason"]
