"""`spark.read.format("penstock.state")` in a real Spark session. Tests of the rows themselves need no session; they are in
tests/unit/assets/test_state_source.py."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import serdes
from penstock.assets.spark.source.state_source import StateReader
from penstock.runtime.model.record import ValueAndTimestamp
from penstock.runtime.serdes.serde import Serde
from penstock.runtime.snapshots.manifest import MANIFEST
from penstock.runtime.stores import Stores
from tests.support.state_snapshots import AT_MS, Tasks, rows_of

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector, and PySpark still calls functions deprecated by Python 3.12: not in our code.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "default::DeprecationWarning"),
]
HOUR = 3_600_000
TASKS = 2


class Colour(enum.Enum):
    RED = "red"


class Leg(msgspec.Struct):
    origin: str
    miles: int | None = None


class Flight(msgspec.Struct):
    number: int
    at: datetime
    day: date
    price: Decimal
    colour: Colour
    legs: list[Leg]
    counts: dict[str, int]
    photo: bytes
    mixed: int | str
    best: Leg | None = None


FLIGHT = Flight(
    number=1, at=datetime(2026, 1, 2, 3, 4, 5, 6, UTC), day=date(2026, 1, 2), price=Decimal("1.25"), colour=Colour.RED,
    legs=[Leg("EWR", 5), Leg("JFK")], counts={"a": 1}, photo=b"\x00", mixed="x",
)  # fmt: skip


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tasks]:
    made = Tasks(
        tmp_path_factory.mktemp("app"),
        [
            Stores.timestamped_key_value_store_builder(
                Stores.persistent_timestamped_key_value_store("flights"), serdes.STRING, serdes.json(Flight)
            ),
            Stores.window_store_builder(Stores.persistent_window_store("hours", 24 * HOUR, HOUR), serdes.json(Leg), serdes.JSON),
            Stores.versioned_key_value_store_builder(
                Stores.persistent_versioned_key_value_store("versions", HOUR), serdes.LONG, serdes.DOUBLE
            ),
        ],
        TASKS,
    )
    for number in range(20):
        task = number % TASKS
        made.store(task, "flights").put(f"k{number:02}", ValueAndTimestamp(msgspec.structs.replace(FLIGHT, number=number), AT_MS + number))
        made.store(task, "hours").put(Leg("EWR", number), {"n": number, "late": number % 2 == 0}, AT_MS + number * HOUR)
        made.store(task, "versions").put(task, number / 2, AT_MS + number)
    yield made
    made.close()


def read(spark: SparkSession, path: Path, store: str, **options: str) -> DataFrame:
    frame = spark.read.format("penstock.state").option("store", store)
    return frame.options(**{name.replace("_", "-"): value for name, value in options.items()}).load(str(path))


def test_typed_columns_and_a_partition_per_task(spark: SparkSession, app: Tasks, tmp_path: Path) -> None:
    path = app.snapshot()
    frame = read(spark, path, "flights")
    assert frame.rdd.getNumPartitions() == TASKS
    # Spark 4 returns wrong rows for a Python source with pushFilters when one frame is used twice: ours must not have it.
    assert "pushFilters" not in vars(StateReader)
    numbers = frame.where("value.number = 1").unionByName(frame.where("value.number = 2")).selectExpr("value.number AS number")
    assert sorted(row.number for row in numbers.collect()) == [1, 2] and frame.count() == 20
    # Through Parquet and back: Spark can store the types that it has read.
    frame.write.parquet(str(tmp_path / "flights"))
    kept = spark.read.parquet(str(tmp_path / "flights"))
    assert dict(kept.dtypes) == dict(frame.dtypes)
    assert dict(frame.dtypes)["value"] == (
        "struct<number:bigint,at:timestamp,day:date,price:decimal(38,18),colour:string,legs:array<struct<origin:string,miles:bigint>>,"
        "counts:map<string,bigint>,photo:binary,mixed:string,best:struct<origin:string,miles:bigint>>"
    )
    rows = {row.key: row for row in kept.collect()}
    row = rows["k01"]
    assert len(rows) == 20 and row._malformed is None and row.partition == 1
    assert row.timestamp == datetime.fromtimestamp((AT_MS + 1) / 1000)
    value = row.value.asDict(recursive=True)
    assert value == {
        "number": 1, "at": datetime(2026, 1, 2, 3, 4, 5, 6), "day": FLIGHT.day, "price": FLIGHT.price, "colour": "red",
        "legs": [{"origin": "EWR", "miles": 5}, {"origin": "JFK", "miles": None}], "counts": {"a": 1}, "photo": bytearray(b"\x00"),
        "mixed": "x", "best": None,
    }  # fmt: skip


def test_avro_of_every_version_is_read_by_the_id_in_its_bytes(spark: SparkSession, tmp_path: Path) -> None:
    """Both versions are two strings: the bytes of one fit the other, in which they would be swapped."""

    def schema(*names: str) -> str:
        fields = ",".join(f'{{"name":"{name}","type":"string"}}' for name in names)
        return f'{{"type":"record","name":"Way","fields":[{fields}]}}'

    registry, ways = "mock://spark-source", Stores.persistent_key_value_store("ways")
    of_another_subject = {"subject.name.strategy": lambda context, name: "another-subject"}
    programs: list[tuple[Serde[Any], dict[str, str]]] = [
        (serdes.avro(registry, schema("to", "origin"), serializer_config=of_another_subject), {"origin": "EWR", "to": "ORD"}),
        (serdes.avro(registry, schema("to", "origin")), {"origin": "EWR", "to": "SFO"}),
        (serdes.avro(registry, schema("origin", "to")), {"origin": "JFK", "to": "LAX"}),
    ]
    for number, (serde, value) in enumerate(programs):
        with closing(Tasks(tmp_path, [Stores.key_value_store_builder(ways, serdes.STRING, serde)])) as made:
            made.store(0, "ways").put(str(number), value)
            path = made.snapshot(f"20260101T000000000-aaaaa{number}")
            assert [made.store(0, "ways").get(str(each)) for each in range(number + 1)] == [value for _, value in programs[: number + 1]]
    first, *others = sorted(read(spark, path, "ways").collect(), key=lambda row: row.key)
    assert [row.value.asDict() for row in others] == [value for _, value in programs[1:]]
    assert first.value is None and (first.key, bytes(first._malformed.key)) == ("0", b"0")
    assert "the schema of id 1, which is not recorded here: there are 2, 3" in first._malformed.reason


def test_windows_and_versions_are_what_the_source_gives_without_spark(spark: SparkSession, app: Tasks) -> None:
    path = app.snapshot()
    first, last = str(AT_MS + 5 * HOUR), str(AT_MS + 9 * HOUR)
    hours = read(spark, path, "hours", from_time=first, to_time=last)
    assert hours.columns == ["partition", "key", "window_start", "window_end", "value", "_malformed"]
    shown = hours.selectExpr("key.miles", "unix_millis(window_end) AS ends", "value.late", "value.n", "partition").orderBy("n").collect()
    assert [tuple(row) for row in shown] == [(n, AT_MS + (n + 1) * HOUR, n % 2 == 0, n, n % 2) for n in range(5, 10)]
    versions = read(spark, path, "versions", tasks="0_1")
    expected = rows_of(path, "versions", tasks="0_1")
    assert versions.count() == len(expected) == 10
    assert versions.where("valid_to IS NULL").selectExpr("key", "value").collect() == [(1, 9.5)]
    spans = versions.groupBy("key").agg(F.count("*").alias("n"), F.sum(F.unix_millis("valid_to") - F.unix_millis("valid_from")).alias("ms"))
    assert spans.collect() == [(1, 10, 18)]


def test_a_frame_keeps_to_its_snapshot_and_its_columns(spark: SparkSession, app: Tasks) -> None:
    app.snapshot("20260201T000000000-aaaaaa")
    frame = read(spark, app.root, "flights", columns="value,key", from_key="k03", to_key="k04")
    chosen = spark.read.format("penstock.state").option("store", "versions").schema("value DOUBLE, key BIGINT").load(str(app.root))
    app.store(0, "flights").put("k035", ValueAndTimestamp(FLIGHT, AT_MS))
    app.snapshot("20260201T000000001-aaaaaa")
    assert frame.columns == ["value", "key"] and [row.key for row in frame.orderBy("key").collect()] == ["k03", "k04"]
    assert read(spark, app.root, "flights", columns="partition", from_key="k03", to_key="k04").count() == 3
    assert chosen.columns == ["value", "key"] and chosen.where("key = 1").agg({"value": "max"}).collect() == [(9.5,)]
    app.store(0, "flights").delete("k035")
    with pytest.raises(PySparkException, match="the column 'value' of store versions is double, not string"):
        spark.read.format("penstock.state").option("store", "versions").schema("value STRING").load(str(app.root)).count()


def test_malformed_rows_in_spark(spark: SparkSession, app: Tasks) -> None:
    path = app.snapshot("20260202T000000000-aaaaaa")
    manifest = path / "0_0" / MANIFEST
    manifest.write_text(
        manifest.read_text().replace('"DOUBLE"', '"json(int)"').replace('"value_schema": null', '"value_schema": {"type": "integer"}')
    )
    frame = read(spark, path, "versions", tasks="0_0")
    bad = frame.where("_malformed IS NOT NULL")
    assert (frame.count(), bad.count(), frame.where("value IS NULL").count()) == (10, 10, 10)
    row = bad.selectExpr("key", "length(_malformed.key)", "length(_malformed.value)", "_malformed.reason").first()
    assert row is not None and tuple(row)[:3] == (0, 8, 8) and "value: " in row.reason
    with pytest.raises(PySparkException, match=r"store versions of task 0_0: the row with the key .* does not fit"):
        read(spark, path, "versions", tasks="0_0", mode="FAILFAST").count()


def test_broken_rows_stay_under_their_own_keys(spark: SparkSession, tmp_path: Path) -> None:
    """Joined by a comma, the first two are one valid value, and the third is two: the same number in total."""
    raw = Serde(lambda _topic, _headers, data: data, lambda _topic, _headers, data: data, name="json(Leg)", schema=serdes.json(Leg).schema)
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("legs"), serdes.STRING, raw)
    values = {"k0": b'{"origin":"a"', "k1": b'"miles":1}', "k2": b'{"origin":"b"},{"origin":"c"}', "k3": b'{"origin":"d"}'}
    with closing(Tasks(tmp_path, [store])) as tasks:
        for key, value in values.items():
            tasks.store(0, "legs").put(key, value)
        path = tasks.snapshot()
    rows = {row.key: row for row in read(spark, path, "legs").selectExpr("key", "value.origin", "_malformed.value AS bytes").collect()}
    assert {key: row.origin for key, row in rows.items()} == {"k0": None, "k1": None, "k2": None, "k3": "d"}
    assert {key: row.bytes and bytes(row.bytes) for key, row in rows.items()} == {**values, "k3": None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "has no store 'nothing'; there are flights, hours, versions"),
        ({"tasks": "0_9"}, "has no store 'nothing'"),
        ({"colour": "red"}, "does not know the option 'colour'; its options are path, application, snapshot"),
        ({"mode": "DROPMALFORMED"}, "no row is dropped"),
    ],
)
def test_spark_shows_what_is_wrong(spark: SparkSession, app: Tasks, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        read(spark, app.snapshot(), "nothing", **options).count()
