"""Rows of tables become the very entries that the engine's own stores write; what is no row of a store is counted and told. Without Spark:
its part, shuffle and sort, is played by Arrow."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from penstock import serdes
from penstock.assets.spark.seeds.files import PartReport, PartWriter, write_parts
from penstock.assets.spark.seeds.job import SeedError, sweep
from penstock.assets.spark.seeds.partitioner import partitions_of
from penstock.assets.spark.seeds.plan import SeedApplication, StorePlan, plan_seed
from penstock.assets.spark.seeds.rows import SeedEncoder, version_entries, written_bytes
from penstock.assets.spark.types.inference import infer
from penstock.assets.spark.types.serde_formats import format_of
from penstock.runtime.model.errors import TopologyError, WrongPartitionsError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.record import SessionWindow, ValueAndTimestamp, Window, Windowed
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.snapshots.arrow import ArrowPlace
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.stores.base import EngineStore, StoreContext
from penstock.runtime.stores.key_value import StagedKeyValueStore
from penstock.runtime.stores.rocks_files import read_files
from penstock.runtime.stores.versioned import StagedVersionedStore
from penstock.runtime.stores.window import StagedSessionStore, StagedWindowStore
from tests.support import examples
from tests.support.seeded import HOUR_MS, TOPIC, Order, Total

FIRST_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
APPLICATION = SeedApplication.of("shop", "tests.support.seeded:build", {})
OFFSETS = {TOPIC: {0: 10, 1: 20}}
KEYS = ("a", "a\x00", "b", "carol", "d", "d\x00", "dave", "erin")
Rows = Sequence[Mapping[str, object]]


@pytest.fixture(params=["DEFAULT", "HEADERS"])
def each_format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with both formats of tables' stores."""
    formatted = SeedApplication.of("shop", "tests.support.seeded:build", {"dsl.store.format": request.param})
    monkeypatch.setattr(f"{__name__}.APPLICATION", formatted)


def planned(store: str) -> StorePlan:
    return plan_seed(APPLICATION, (store,), OFFSETS).stores[store]


def seeded(store: str, rows: Rows, folder: Path, types: Mapping[str, pa.DataType] | None = None) -> dict[int | None, PartReport]:
    """Writes a store's parts as the job does."""
    plan = planned(store)
    table = pa.Table.from_pylist([dict(row) for row in rows])
    for name, kind in (types or {}).items():
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(kind))
    found = pa.Table.from_batches(list(SeedEncoder(plan, [0, 1]).entries(table.to_batches(max_chunksize=7))))
    if plan.settings.kind == "versioned":
        times = plan.settings.times
        assert times is not None
        found = pa.Table.from_batches(list(version_entries(times.segments.segment_ms, with_ends(found).to_batches(max_chunksize=7))))
    order = found.sort_by([("partition", "ascending"), ("segment", "descending"), ("entry_key", "ascending")])
    return {part.partition: part for part in write_parts(plan, str(folder), "7", order.to_batches(max_chunksize=5))}


def with_ends(versions: pa.Table) -> pa.Table:
    """Return the column that Spark's window function adds."""
    ordered = versions.sort_by([("partition", "ascending"), ("version_key", "ascending"), ("since", "ascending")]).to_pylist()
    following = [
        after["since"] if after["version_key"] == row["version_key"] and after["partition"] == row["partition"] else None
        for row, after in zip(ordered, [*ordered[1:], {"version_key": None, "partition": None}], strict=True)
    ]
    return pa.Table.from_pylist(ordered, versions.schema).append_column("next_since", pa.array(following, pa.int64()))


def engines(store: str, partition: int, folder: Path, fill: Callable[[EngineStore], None]) -> list[tuple[str, bytes, bytes]]:
    """The entries of the engine's own store after `fill`, with their families."""
    made = planned(store).builder.build()
    task = TaskId(0, partition)
    made.open(folder, StoreContext("shop", folder, task, TopicPartition(f"shop-{store}-changelog", partition)))
    fill(made)
    made.commit({})
    kept = folder / f"{store}.copy"
    made.checkpoint(kept)
    made.close()
    return entries(kept)


def entries(folder: Path) -> list[tuple[str, bytes, bytes]]:
    return sorted((family, key, value) for family, batch in read_files(folder) for key, value in batch)


def assert_as_the_engine(store: str, rows: Rows, tmp_path: Path, put: Callable[[EngineStore, Mapping[str, object]], None]) -> None:
    """Each part holds what the engine's store of that task holds after the same puts."""
    reports = seeded(store, rows, tmp_path / "seed")
    total = 0
    for partition in (0, 1):
        mine = [row for row in rows if partition_for(str(row["key"]).encode(), 2) == partition]

        def fill(made: EngineStore, mine: Rows = mine) -> None:
            for row in mine:
                put(made, row)

        expected = engines(store, partition, tmp_path / f"engine-{partition}", fill)
        part = reports[partition]
        found = entries(tmp_path / "seed" / f"0_{partition}" / part.directory)
        assert found == expected
        assert part.rows == len(found)
        total += len(found)
    assert total


def keys(count: int) -> Iterable[str]:
    """Keys of many lengths, some the beginning of others: their order with a suffix is not their own."""
    choice = random.Random(3)
    return ["".join(choice.choices("a\x00bé", k=choice.randrange(1, 9))) + str(number % 97) for number in range(count)]


def test_partitions_are_those_of_the_default_partitioner() -> None:
    choice = random.Random(5)
    many = [choice.randbytes(choice.randrange(0, 40)) for _ in range(2_000)]
    assert partitions_of(many, 7).tolist() == [partition_for(key, 7) for key in many]
    assert partitions_of([], 7).tolist() == []


@pytest.mark.usefixtures("each_format")
def test_key_values_are_as_the_engine_writes_them(tmp_path: Path) -> None:
    found = {key: number for number, key in enumerate(keys(300))}
    rows = [
        {"key": key, "value": {"orders": number, "amount": 2 * number}, "timestamp": FIRST_MS + number} for key, number in found.items()
    ]

    def put(store: EngineStore, row: Mapping[str, object]) -> None:
        assert isinstance(store, StagedKeyValueStore)
        number = found[str(row["key"])]
        store.put(row["key"], ValueAndTimestamp(Total(number, 2 * number), FIRST_MS + number))

    assert_as_the_engine("totals", rows, tmp_path, put)


@pytest.mark.usefixtures("each_format")
def test_windows_are_as_the_engine_writes_them_and_expired_segments_are_counted(tmp_path: Path) -> None:
    rows = [
        {"key": key, "window_start": FIRST_MS + hour * HOUR_MS, "value": hour, "timestamp": FIRST_MS + hour * HOUR_MS + 5}
        for hour in range(60)
        for key in KEYS
    ]

    def put(store: EngineStore, row: Mapping[str, object]) -> None:
        assert isinstance(store, StagedWindowStore)
        store.put(row["key"], ValueAndTimestamp(row["value"], int(str(row["timestamp"]))), int(str(row["window_start"])))

    assert_as_the_engine("hourly", rows, tmp_path, put)
    parts = seeded("hourly", rows, tmp_path / "again").values()
    assert sum(part.expired + part.rows for part in parts) == len(rows)
    assert all(part.expired and part.time == FIRST_MS + 59 * HOUR_MS and part.observed == part.time + 5 for part in parts)


@pytest.mark.usefixtures("each_format")
def test_sessions_are_as_the_engine_writes_them(tmp_path: Path) -> None:
    rows = [
        {"key": key, "window_start": FIRST_MS + number * 1_000, "window_end": FIRST_MS + number * 1_000 + 700, "value": number}
        for number, key in enumerate(keys(200))
    ]

    def put(store: EngineStore, row: Mapping[str, object]) -> None:
        assert isinstance(store, StagedSessionStore)
        window = SessionWindow(int(str(row["window_start"])), int(str(row["window_end"])))
        store.put(Windowed(row["key"], window), row["value"])

    assert_as_the_engine("visits", rows, tmp_path, put)


def test_versions_are_as_the_engine_writes_them_deletions_and_expired_ones_too(tmp_path: Path) -> None:
    choice = random.Random(1)
    rows = []
    for key in KEYS:
        for number in range(30):
            value = None if choice.random() < 0.3 else {"amount": number, "city": None}
            rows.append({"key": key, "valid_from": FIRST_MS + number * 2 * HOUR_MS + choice.randrange(HOUR_MS), "value": value})
    in_time = sorted(rows, key=lambda row: int(str(row["valid_from"])))

    def put(store: EngineStore, row: Mapping[str, object]) -> None:
        assert isinstance(store, StagedVersionedStore)
        value = row["value"]
        store.put(row["key"], None if value is None else Order(value["amount"]), int(str(row["valid_from"])))  # type: ignore[index]

    choice.shuffle(rows)
    reports = seeded("latest", rows, tmp_path / "seed")
    for partition in (0, 1):
        mine = [row for row in in_time if partition_for(str(row["key"]).encode(), 2) == partition]

        def fill(made: EngineStore, mine: Rows = mine) -> None:
            for row in mine:
                put(made, row)

        expected = engines("latest", partition, tmp_path / f"engine-{partition}", fill)
        part = reports[partition]
        assert entries(tmp_path / "seed" / f"0_{partition}" / part.directory) == expected
        assert part.expired


def test_a_version_that_ends_before_the_next_begins_is_followed_by_a_deletion(tmp_path: Path) -> None:
    rows = [
        {"key": "a", "valid_from": FIRST_MS, "valid_to": FIRST_MS + 10, "value": {"amount": 1, "city": "x"}},
        {"key": "a", "valid_from": FIRST_MS + 50, "valid_to": None, "value": {"amount": 2, "city": "x"}},
        {"key": "b", "valid_from": FIRST_MS, "valid_to": FIRST_MS + 10, "value": {"amount": 3, "city": "x"}},
    ]
    reports = seeded("latest", rows, tmp_path)
    assert sum(part.rows for part in reports.values()) == 5
    overlapping = [{**rows[0], "valid_to": FIRST_MS + 60}, rows[1]]
    notes = seeded("latest", overlapping, tmp_path / "again")[None].notes
    assert notes is not None
    assert notes.malformed == 1
    assert "the next one begins" in notes.examples[0]


@pytest.mark.parametrize(
    ("row", "reported"),
    [
        ({"key": None}, "the key is null"),
        ({"timestamp": None}, "timestamp is null"),
        ({"timestamp": -5}, "before 1970"),
        ({"value": '{"orders": "many"}'}, "does not fit"),
        ({"value": "{"}, "does not fit"),
    ],
)
def test_rows_that_do_not_fit_are_counted_and_reported(row: dict[str, object], reported: str, tmp_path: Path) -> None:
    good = {"key": "a", "value": '{"orders": 1, "amount":  2}', "timestamp": FIRST_MS}
    reports = seeded("totals", [good, {**good, "key": "b", **row}], tmp_path)
    notes = reports[None].notes
    assert notes is not None
    assert notes.malformed == 1
    assert reported in notes.examples[0]
    assert sum(part.rows for part in reports.values()) == 1
    (part,) = (part for part in reports.values() if part.partition is not None)
    assert entries(tmp_path / f"0_{part.partition}" / part.directory)[0][2][8:] == b'{"orders":1,"amount":2}'


@pytest.mark.parametrize(
    ("serde", "kind", "shown", "value"),
    [
        (serdes.JSON, pa.map_(pa.string(), pa.int64()), {"a": 1}, {"a": 1}),
        (serdes.JSON, pa.string(), '{"a": [1, 2]}', {"a": [1, 2]}),
        (serdes.json(dict[str, int]), pa.map_(pa.string(), pa.int64()), {"a": 1}, {"a": 1}),
        (serdes.LONG, pa.int32(), 7, 7),
        (serdes.LONG, pa.binary(), serdes.LONG.serializer("t")(7), 7),
        (serdes.UUID, pa.string(), str(UUID(int=5)), UUID(int=5)),
        (serdes.list_of(serdes.INTEGER), pa.list_(pa.int32()), [1, 2], [1, 2]),
        (
            serdes.time_windowed(serdes.STRING, 60_000),
            pa.struct([("key", pa.string()), ("window_start", pa.timestamp("us", tz="UTC"))]),
            {"key": "a", "window_start": FIRST_MS * 1000},
            Windowed("a", Window(FIRST_MS, FIRST_MS + 60_000)),
        ),
        (
            serdes.session_windowed(serdes.STRING),
            pa.struct([("key", pa.string()), ("window_start", pa.int64()), ("window_end", pa.int64())]),
            {"key": "a", "window_start": 5, "window_end": 9},
            Windowed("a", SessionWindow(5, 9)),
        ),
    ],
)
def test_what_tables_show_is_written_as_the_serde_writes_it(serde: Serde, kind: pa.DataType, shown: object, value: object) -> None:
    bad: dict[int, str] = {}
    found = written_bytes(pa.array([shown, None], kind), serde, "topic", "value", bad)
    assert (found, bad) == ([serde.serializer("topic")(value), None], {})


UNTYPED = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["5", "null", "true", '"a"', "{}", "[1]", '{"a":1}', "1.0", "", " 5 ", "a", "NaN", "-", "1e5"]) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "5"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
INT_OR_STR: Any = int | str
ONE_OF_MANY: list[tuple[Serde, st.SearchStrategy[object]]] = [
    (serdes.JSON, UNTYPED.filter(lambda value: value is not None)),
    (serdes.json(str), st.sampled_from(["5", "null", '"a"', "a", "{}", ""])),
    (serdes.json(INT_OR_STR), st.sampled_from([5, "5", "a", '"a"'])),
    (serdes.json(list[int | str]), st.lists(st.sampled_from([5, "5", "a"]))),
    (serdes.json(dict[str, object]), st.dictionaries(st.sampled_from(["a", "b"]), UNTYPED)),
    (serdes.json(UUID), st.uuids()),
    (serdes.list_of(serdes.JSON), st.lists(UNTYPED.filter(lambda value: value is not None), max_size=3)),
]


@pytest.mark.parametrize(("serde", "values"), ONE_OF_MANY, ids=lambda each: getattr(each, "name", ""))
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_table_is_seeded_as_its_values_were_or_refused(serde: Serde, values: st.SearchStrategy[object], data: st.DataObject) -> None:
    """A table shows `5` for a number and for a string."""
    drawn = data.draw(st.lists(values, min_size=1, max_size=5))
    write, read = serde.serializer("topic"), serde.deserializer("topic")
    written = pa.array([write(value) for value in drawn], pa.binary())
    shown = format_of(serde.name, infer([written]) if serde is serdes.JSON else serde.schema).decode(written)
    assert shown.wrong == {}
    bad: dict[int, str] = {}
    seeded = written_bytes(shown.column, serde, "topic", "value", bad, of_table=True)
    assert [read(each) for row, each in enumerate(seeded) if row not in bad and each is not None] == [
        value for row, value in enumerate(drawn) if row not in bad
    ]


@pytest.mark.parametrize(
    ("serde", "kind", "shown", "reason"),
    [
        (serdes.JSON, pa.string(), "5", "5 may be that JSON or a string"),
        (serdes.json(INT_OR_STR), pa.string(), "5", "5 may be that JSON or a string"),
        (serdes.JSON, pa.struct([("a", pa.string())]), {"a": "true"}, "true may be that JSON or a string"),
        (serdes.JSON, pa.struct([("a", pa.string())]), {"a": None}, "a may be null or missing"),
        (serdes.list_of(serdes.JSON), pa.list_(pa.string()), ["5"], "5 may be that JSON or a string"),
    ],
)
def test_what_a_table_shows_alike_is_refused(serde: Serde, kind: pa.DataType, shown: object, reason: str) -> None:
    bad: dict[int, str] = {}
    assert written_bytes(pa.array([shown], kind), serde, "topic", "value", bad, of_table=True) == [None]
    assert reason in bad[0]


@pytest.mark.parametrize("serde", [serdes.JSON, serdes.json(dict[str, float | None])])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_does_not_become_null(serde: Serde, number: float) -> None:
    bad: dict[int, str] = {}
    kind = pa.struct([("a", pa.float64()), ("b", pa.float64())])
    found = written_bytes(pa.array([{"a": number, "b": None}, {"a": 1.0, "b": None}], kind), serde, "topic", "value", bad)
    assert found == [None, b'{"a":1.0,"b":null}']
    assert "JSON has no NaN and no infinity" in bad[0]


def test_rows_without_a_value_are_no_entries_and_counted(tmp_path: Path) -> None:
    rows = [{"key": key, "value": value, "timestamp": FIRST_MS} for key, value in (("a", b'{"orders":1,"amount":2}'), ("b", None))]
    reports = seeded("totals", rows, tmp_path)
    notes = reports[None].notes
    assert notes is not None
    assert (notes.nulls, notes.malformed) == (1, 0)


def test_a_repeated_key_is_counted_and_reported(tmp_path: Path) -> None:
    rows = [{"key": f"k{number % 40}", "value": {"orders": number, "amount": 0}, "timestamp": FIRST_MS + number} for number in range(60)]
    reports = seeded("totals", rows, tmp_path)
    assert sum(part.duplicates for part in reports.values()) == 20
    assert sum(part.rows for part in reports.values()) == 40
    assert any("k1" in example for part in reports.values() for example in part.examples)


def test_a_window_of_another_size_is_refused(tmp_path: Path) -> None:
    row = {"key": "a", "window_start": FIRST_MS, "window_end": FIRST_MS + 60_000, "value": 1, "timestamp": FIRST_MS}
    notes = seeded("hourly", [row], tmp_path)[None].notes
    assert notes is not None
    assert "60000 ms long; those of the store are 3600000 ms" in notes.examples[0]


def test_attempts_do_not_meet_and_what_does_not_count_is_swept_away(tmp_path: Path) -> None:
    rows = [{"key": key, "value": {"orders": 1, "amount": 2}, "timestamp": FIRST_MS} for key in KEYS]
    plan = plan_seed(APPLICATION, ("totals",), OFFSETS)
    table = pa.Table.from_batches(list(SeedEncoder(plan.stores["totals"], [0, 1]).entries(pa.Table.from_pylist(rows).to_batches())))
    batches = table.sort_by([("partition", "ascending"), ("entry_key", "ascending")]).to_batches(max_chunksize=3)

    def fails() -> Iterator[pa.RecordBatch]:
        yield batches[0]
        raise OSError("the executor is gone")

    seed = tmp_path / "seed"
    duplicate = list(write_parts(plan.stores["totals"], str(seed), "1", batches))
    counted = list(write_parts(plan.stores["totals"], str(seed), "2", batches))
    with pytest.raises(OSError, match="is gone"):
        list(write_parts(plan.stores["totals"], str(seed), "3", fails()))
    assert [part.directory for part in duplicate] == ["totals.1", "totals.1"]
    sweep(place_of(seed), {"totals": counted}, plan)
    assert sorted(str(path.relative_to(seed)) for path in seed.glob("*/*")) == ["0_0/totals.2", "0_1/totals.2"]
    assert not (seed / ".building").exists()
    with pytest.raises(SeedError, match="must be a folder that all executors share"):
        sweep(place_of(seed), {"totals": duplicate}, plan)


def test_a_part_is_copied_where_the_seed_is_no_folder_of_this_machine(tmp_path: Path) -> None:
    elsewhere = ArrowPlace(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "seed", "far://", "")
    assert elsewhere.local is None
    report = PartWriter(planned("totals"), elsewhere, 1, "empty").finish()
    folder = tmp_path / "seed" / "0_1"
    assert entries(folder / "totals.empty") == []
    assert [(folder / file.path).stat().st_size for file in report.files] == [file.bytes for file in report.files]
    assert all(file.sha256 for file in report.files)


@pytest.mark.parametrize(
    ("stores", "offsets", "reported"),
    [
        (("totals", "nothing"), OFFSETS, "no store 'nothing'; it has hourly"),
        (("totals",), {}, "has no input offsets"),
        (("totals",), {TOPIC: {0: 1, 2: 1}}, "every partition needs one"),
        (("totals",), {TOPIC: {0: 1}, "other": {0: 1}}, "which no task reads"),
        (("totals",), {TOPIC: {0: -1}}, "offsets are next offsets"),
    ],
)
def test_a_seed_that_cannot_be_planned_says_why(stores: tuple[str, ...], offsets: Mapping[str, Mapping[int, int]], reported: str) -> None:
    with pytest.raises((TopologyError, WrongPartitionsError), match=reported):
        plan_seed(APPLICATION, stores, offsets)
