"""The source of state without Spark: what it gives of a snapshot is what the engine's own reads find in the store, of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import serdes
from penstock.assets.spark.source.source_options import SourceOptions
from penstock.assets.spark.source.state_source import ReadPlan
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.model.record import SessionWindow, ValueAndTimestamp, VersionedRecord, Windowed
from penstock.runtime.snapshots.local import write_snapshot
from penstock.runtime.snapshots.manifest import GLOBAL, SNAPSHOT, ApplicationManifest, encoded, read_manifest
from penstock.runtime.stores import StoreContext, Stores
from penstock.runtime.stores.base import StoreBuilder
from penstock.runtime.stores.buffer import ChangeBuffer, Origin
from penstock.runtime.stores.rocks_files import Families, Opened
from penstock.runtime.stores.rows import read_store
from penstock.runtime.stores.settings import StoreSettings
from penstock.serdes import Serde
from tests.support import examples
from tests.support.state_snapshots import APPLICATION, AT_MS, MakeTasks, Tasks, counts, made_in, rows_of

MINUTE = 60_000
HOUR = 60 * MINUTE
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[MakeTasks]:
    yield from made_in(tmp_path)


def at(ms: int | None) -> datetime | None:
    return None if ms is None else EPOCH + timedelta(milliseconds=ms)


def names(rows: Sequence[dict[str, Any]], *columns: str) -> list[object]:
    return sorted((tuple(row[column] for column in columns) if len(columns) > 1 else row[columns[0]]) for row in rows)


# --- every kind of store ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "supplier", [Stores.persistent_key_value_store, Stores.in_memory_key_value_store, lambda name: Stores.lru_map(name, 3)]
)
def test_key_value_stores(tasks: MakeTasks, supplier: Callable[[str], Any]) -> None:
    app = tasks(Stores.key_value_store_builder(supplier("kv"), serdes.STRING, serdes.LONG), tasks=2)
    for number, key in enumerate(["a", "b", "gone"]):
        app.store(number % 2, "kv").put(key, number)
    app.commit()
    app.store(0, "kv").delete("gone")
    path = app.snapshot()
    app.store(0, "kv").put("later", 9)
    nothing = {"_malformed": None}
    assert rows_of(path, "kv") == [{"partition": 0, "key": "a", "value": 0, **nothing}, {"partition": 1, "key": "b", "value": 1, **nothing}]


@pytest.mark.parametrize("supplier", [Stores.persistent_timestamped_key_value_store, Stores.in_memory_key_value_store])
def test_timestamped_stores(tasks: MakeTasks, supplier: Callable[[str], Any]) -> None:
    app = tasks(Stores.timestamped_key_value_store_builder(supplier("kv"), serdes.INTEGER, serdes.STRING))
    app.store(0, "kv").put(-5, ValueAndTimestamp("x", AT_MS + 1))
    assert rows_of(app.snapshot(), "kv") == [{"partition": 0, "key": -5, "value": "x", "timestamp": at(AT_MS + 1), "_malformed": None}]


@pytest.mark.parametrize("supplier", [Stores.persistent_window_store, Stores.in_memory_window_store])
@pytest.mark.parametrize("timestamped", [True, False])
def test_windows_that_the_store_would_find(tasks: MakeTasks, supplier: Callable[..., Any], timestamped: bool) -> None:
    make = Stores.timestamped_window_store_builder if timestamped else Stores.window_store_builder
    app = tasks(make(supplier("w", 4 * HOUR, HOUR), serdes.STRING, serdes.LONG))
    store = app.store(0, "w")
    for hour in range(10):
        store.put("EWR", ValueAndTimestamp(hour, AT_MS + hour) if timestamped else hour, hour * HOUR)
        store.put("JFK" * hour, ValueAndTimestamp(hour, AT_MS) if timestamped else hour, hour * HOUR + 30 * MINUTE)
    path = app.snapshot()
    found = rows_of(path, "w")
    asked = [(key.key, at(key.window.start)) for key, _ in store.query_view().fetch_all(0, 100 * HOUR)]
    assert [(row["key"], row["window_start"]) for row in found] == asked and len(asked) == 8
    assert {row["window_end"] - row["window_start"] for row in found} == {timedelta(hours=1)}
    assert ("timestamp" in found[0]) is timestamped and found[0]["value"] == 6
    between = rows_of(path, "w", from_time=str(7 * HOUR), to_time="1970-01-01T08:00:00Z")
    assert [row["value"] for row in between] == [7, 7, 8]
    assert names(rows_of(path, "w", from_key="EWR", to_key="EWR", columns="value"), "value") == [6, 7, 8, 9]


def test_segments_outside_the_range_are_not_opened(tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    app = tasks(Stores.window_store_builder(Stores.persistent_window_store("w", 20 * HOUR, HOUR), serdes.STRING, serdes.LONG))
    for hour in range(40):
        app.store(0, "w").put("a", hour, hour * HOUR)
    path = app.snapshot()
    opened: list[set[str]] = []
    real = Families.opened

    def watched(self: Families, families: Sequence[str]) -> AbstractContextManager[Opened]:
        opened.append(set(families))
        return real(self, families)

    monkeypatch.setattr(Families, "opened", watched)
    assert [row["value"] for row in rows_of(path, "w", from_time=str(30 * HOUR), to_time=str(31 * HOUR))] == [30, 31]
    assert opened == [{f"segment.{30 * HOUR}"}]


def test_windows_of_joins_hold_several_values_of_one_key_and_time(tasks: MakeTasks) -> None:
    app = tasks(Stores.window_store_builder(Stores.persistent_window_store("j", HOUR, MINUTE, True), serdes.STRING, serdes.STRING))
    for value in ("x", "y", "x"):
        app.store(0, "j").put("a", value, AT_MS)
    found = rows_of(app.snapshot(), "j")
    assert [(row["key"], row["sequence"], row["value"]) for row in found] == [("a", 1, "x"), ("a", 2, "y"), ("a", 3, "x")]


@pytest.mark.parametrize("supplier", [Stores.persistent_session_store, Stores.in_memory_session_store])
def test_sessions(tasks: MakeTasks, supplier: Callable[..., Any]) -> None:
    app = tasks(Stores.session_store_builder(supplier("s", 4 * HOUR), serdes.STRING, serdes.LONG))
    store = app.store(0, "s")
    for hour in range(10):
        store.put(Windowed("a", SessionWindow(hour * HOUR - MINUTE, hour * HOUR)), hour)
    store.put(Windowed("a", SessionWindow(8 * HOUR - MINUTE, 8 * HOUR)), None)
    path = app.snapshot()
    found = rows_of(path, "s")
    asked = [(key.key, at(key.window.start), at(key.window.end), value) for key, value in store.query_view().fetch(None, None)]
    assert [(row["key"], row["window_start"], row["window_end"], row["value"]) for row in found] == asked and len(asked) == 3
    assert [row["value"] for row in rows_of(path, "s", from_time=str(7 * HOUR), to_time=str(8 * HOUR))] == [7]


@pytest.mark.parametrize("supplier", [Stores.persistent_versioned_key_value_store, Stores.in_memory_versioned_key_value_store])
def test_versions_with_the_times_in_which_they_held(tasks: MakeTasks, supplier: Callable[..., Any]) -> None:
    app = tasks(Stores.versioned_key_value_store_builder(supplier("v", HOUR), serdes.STRING, serdes.LONG))
    store = app.store(0, "v")
    for key, value, minute in [("a", 1, 0), ("a", 2, 10), ("a", None, 20), ("a", 3, 30), ("b", 4, 5), ("b", None, 15), ("c", 7, 1)]:
        store.put(key, value, AT_MS + minute * MINUTE)
    path = app.snapshot("20260101T000000000-aaaaaa")

    def spans(**options: str) -> list[tuple[Any, ...]]:
        rows = rows_of(path, "v", **options)
        return sorted((row["key"], row["value"], row["valid_from"], row["valid_to"] or at(2**40)) for row in rows)

    def span(key: str, value: int, first: int, last: int | None) -> tuple[Any, ...]:
        return key, value, at(AT_MS + first * MINUTE), at(2**40) if last is None else at(AT_MS + last * MINUTE)

    everything = [span("a", 1, 0, 10), span("a", 2, 10, 20), span("a", 3, 30, None), span("b", 4, 5, 15), span("c", 7, 1, None)]
    assert spans() == everything  # a deletion is no row: the version before it ends there
    now = str(AT_MS + 12 * MINUTE)
    assert spans(from_time=now, to_time=now) == [span("a", 2, 10, 20), span("b", 4, 5, 15), span("c", 7, 1, None)]
    turn = str(AT_MS + 10 * MINUTE)  # one ends here, and the next begins
    assert spans(from_time=turn, to_time=turn, to_key="a") == [span("a", 2, 10, 20)]
    assert spans(from_key="b", to_key="b") == [span("b", 4, 5, 15)]
    store.put("z", 0, AT_MS + 75 * MINUTE)
    path = app.snapshot("20260101T000000001-aaaaaa")
    left = {(row[0], row[1]) for row in spans()}
    assert left == {("a", 2), ("a", 3), ("c", 7), ("z", 0)}  # what ended an hour before stream time or earlier cannot be read any more
    for held, number, first, _ in spans():
        found = store.query_view().get(held, max(AT_MS + 15 * MINUTE, int((first - EPOCH).total_seconds() * 1000)))
        assert isinstance(found, VersionedRecord) and found.value == number


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    puts=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9) | st.none(), st.integers(0, 60)), max_size=25),
    commits=st.integers(1, 8),
    from_key=st.sampled_from([None, "a", "b"]),
)
def test_versions_are_those_that_the_store_finds(
    tasks: MakeTasks, puts: list[tuple[str, int | None, int]], commits: int, from_key: str | None
) -> None:
    app = tasks(
        Stores.versioned_key_value_store_builder(Stores.persistent_versioned_key_value_store("v", 30_000), serdes.STRING, serdes.LONG)
    )
    store = app.store(0, "v")
    for place, (key, value, second) in enumerate(puts):
        store.put(key, value, second * 1_000)
        if place % commits == 0:
            app.commit()
    found = rows_of(app.snapshot(), "v", **({} if from_key is None else {"from_key": from_key}))
    view, newest = store.query_view(), max((second for _, _, second in puts), default=0)
    for key in "ab" if from_key is None else "ab"["ab".index(from_key) :]:
        for second in range(max(0, newest - 30), newest + 1):
            moment = EPOCH + timedelta(seconds=second)
            valid = [
                row
                for row in found
                if row["key"] == key and row["valid_from"] <= moment and (row["valid_to"] is None or moment < row["valid_to"])
            ]
            asked = view.get(key, second * 1_000)
            assert [row["value"] for row in valid] == ([] if asked is None else [asked.value])
    assert all(row["key"] >= (from_key or "") for row in found)


def test_changes_that_wait_in_a_buffer(tmp_path: Path) -> None:
    class Builder:
        name = "b"

        def build(self) -> ChangeBuffer:
            buffer = ChangeBuffer(StoreSettings("b", True, serdes.STRING, serdes.LONG, buffer=True))
            return buffer

    app = Tasks(tmp_path, [Builder()])  # type: ignore[list-item]
    buffer = app.store(0, "b")
    buffer.load()
    buffer.put(5, "k", 7, 6, AT_MS, Origin("in", 0, 0, [("h", b"v")]))
    buffer.put(6, "gone", None, 6, AT_MS + 1, Origin("in", 0, 1, None))
    found = rows_of(app.snapshot(), "b")
    assert [(row["key"], row["value"], row["timestamp"]) for row in found] == [("gone", None, at(AT_MS + 1)), ("k", 7, at(AT_MS))]
    app.close()


def test_global_stores_and_what_is_left_out(tmp_path: Path) -> None:
    store = counts().build()
    store.open(tmp_path / "state", StoreContext(APPLICATION, tmp_path / "state"))
    store.restore([(b"a", bytes(8), AT_MS)], {TopicPartition("topic", 0): NextOffset(1), TopicPartition("topic", 1): NextOffset(0)})
    part = write_snapshot(
        tmp_path, "s", application=APPLICATION, task=GLOBAL, stores={store: None},
        input_offsets={TopicPartition("topic", 0): NextOffset(1)},
        stream_time=-1, at_ms=AT_MS, global_topics={"counts": "topic"},
    )  # fmt: skip
    store.close()
    manifest = ApplicationManifest.of([read_manifest(part)], {GLOBAL: GLOBAL})
    (tmp_path / "s" / SNAPSHOT).write_bytes(encoded(msgspec.structs.replace(manifest, left_out=["own"])))
    assert rows_of(tmp_path, "counts") == [{"partition": -1, "key": "a", "value": 0, "_malformed": None}]
    with pytest.raises(
        StateDirectoryError, match="no store 'own': it is a store of the user's own kind, whose files only the application can read"
    ):
        rows_of(tmp_path, "own")


def test_times_that_nothing_has_a_name_for(tasks: MakeTasks) -> None:
    app = tasks(
        Stores.window_store_builder(Stores.persistent_window_store("unlimited", 2**63 - 1, 2**63 - 1), serdes.STRING, serdes.LONG),
        Stores.timestamped_key_value_store_builder(Stores.persistent_timestamped_key_value_store("kv"), serdes.STRING, serdes.LONG),
    )
    app.store(0, "unlimited").put("a", 1, 5)
    app.store(0, "kv").put("a", ValueAndTimestamp(1, 2**60))
    path = app.snapshot()
    (unlimited,) = rows_of(path, "unlimited")
    assert (unlimited["window_start"], unlimited["window_end"]) == (at(5), datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC))
    (odd,) = rows_of(path, "kv")
    assert (odd["key"], odd["value"], odd["timestamp"]) == ("a", 1, None)
    assert odd["_malformed"]["reason"] == f"timestamp: {2**60} ms since the epoch is not a time of the years 1 to 9999"


def test_large_values_come_in_small_batches(tasks: MakeTasks) -> None:
    app = tasks(Stores.key_value_store_builder(Stores.persistent_key_value_store("kv"), serdes.LONG, serdes.BYTES))
    for number in range(600):
        app.store(0, "kv").put(number, bytes(200_000))
    layout = app.store(0, "kv").layout
    batches = [len(rows) for rows in read_store(app.snapshot() / "0_0" / "kv", layout)]
    assert batches == [256, 256, 88]


# --- ranges of keys -----------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_range_of_keys_is_inclusive_and_in_the_order_of_the_keys(tasks: MakeTasks, data: st.DataObject) -> None:
    small = st.integers(-5, 5)
    cases: list[tuple[Serde[Any], st.SearchStrategy[Any]]] = [
        (serdes.STRING, st.text("ab\x00é", max_size=3)),
        (serdes.LONG, small | st.integers(-(2**63), 2**63 - 1)),
        (serdes.SHORT, small),
        (serdes.DOUBLE, small.map(float) | st.floats(allow_nan=False)),
        (serdes.json(int), small),
    ]
    serde, keys = data.draw(st.sampled_from(cases))
    windows = data.draw(st.booleans())
    values = data.draw(st.lists(keys, min_size=1, max_size=12, unique=True))
    low, high = sorted(data.draw(st.tuples(keys, keys)))
    make: StoreBuilder[Any] = (
        Stores.window_store_builder(Stores.persistent_window_store("s", HOUR, MINUTE), serde, serdes.LONG)
        if windows
        else Stores.key_value_store_builder(Stores.in_memory_key_value_store("s"), serde, serdes.LONG)
    )
    app = tasks(make)
    for place, key in enumerate(values):
        app.store(0, "s").put(key, place, *([AT_MS + place] if windows else []))
    path = app.snapshot()
    shown: Callable[[object], str] = repr if serde is serdes.DOUBLE else str
    bounds = data.draw(st.sampled_from([("from_key", "to_key"), ("from_key",), ("to_key",)]))
    given_bounds = {name: shown(low if name == "from_key" else high) for name in bounds}
    wanted = {key for key in values if ("from_key" not in bounds or key >= low) and ("to_key" not in bounds or key <= high)}
    assert {row["key"] for row in rows_of(path, "s", **given_bounds)} == wanted


# --- JSON ---------------------------------------------------------------------------------------------------------------------------


def test_json_is_typed_by_what_is_there_and_a_sample_loses_nothing(tasks: MakeTasks) -> None:
    app = tasks(Stores.key_value_store_builder(Stores.persistent_key_value_store("j"), serdes.JSON, serdes.JSON), tasks=2)
    app.store(0, "j").put("a", {"n": 1})
    app.store(0, "j").put("b", {"n": 2.5, "tags": ["x"]})
    app.store(1, "j").put("c", {"late": {"er": True}})
    path = app.snapshot()
    a, b, c = rows_of(path, "j")
    assert (a["key"], a["value"]) == ("a", {"late": None, "n": 1.0, "tags": None})
    assert b["value"] == {"late": None, "n": 2.5, "tags": ["x"]} and c["value"] == {"late": {"er": True}, "n": None, "tags": None}
    sampled = rows_of(path, "j", sample="1")
    assert [row["value"] for row in sampled] == [{"late": None, "n": 1}, None, {"late": {"er": True}, "n": None}]
    assert "b" in str(sampled[1]["_malformed"])
    assert rows_of(path, "j", value_schema="n STRING", tasks="0_0", columns="value") == [{"value": {"n": "1"}}, {"value": {"n": "2.5"}}]
    assert rows_of(path, "j", columns="key", to_key="a") == [{"key": "a"}]
    assert rows_of(path, "j", columns="value.n,key", from_key="b") == [
        {"value": {"n": 2.5}, "key": "b"},
        {"value": {"n": None}, "key": "c"},
    ]
    with pytest.raises(ValueError, match=r"there is no column 'valu\.n'; there are partition"):
        rows_of(path, "j", columns="valu.n")


def test_an_empty_store_has_columns_too(tasks: MakeTasks) -> None:
    app = tasks(Stores.key_value_store_builder(Stores.persistent_key_value_store("j"), serdes.JSON, serdes.JSON))
    plan = ReadPlan.of(SourceOptions.of({"path": str(app.snapshot()), "store": "j"}))
    assert plan.decoder().schema.simpleString().startswith("struct<partition:int,key:string,value:string,_malformed:")
    assert rows_of(app.root, "j") == []
