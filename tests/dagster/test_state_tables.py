"""Tables of state with a real Spark: snapshots of real stores, held against real changelogs on a real broker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from assets.spark.changelog import read_changelog
from assets.spark.session import spark_session
from assets.spark.state_source import StateReader, StoreSnapshot, find_store
from assets.spark.tables import (
    Comparison,
    TableSettings,
    WrongTableError,
    compare,
    preview,
    read_source,
    shaped,
    write_table,
)
from assets.state_tables import JOB, make_table, require_all_partitions
from orchestration.applications import Application, StateTable
from orchestration.definitions import definitions
from orchestration.operations import Operations
from runtime import serdes
from runtime.changelog.restore import Restorer
from runtime.changelog.snapshot import snapshots_directory, write_snapshot
from runtime.changelog.staleness import Changelog
from runtime.clock import SystemClock
from runtime.errors import StateDirectoryError
from runtime.events import EventSink
from runtime.ids import NextOffset, Partition, TaskId
from runtime.metrics import Metrics
from runtime.serdes.keys import window_store_key
from runtime.stores import Stores
from runtime.stores.base import EngineStore, StoreContext
from tests.broker.logs import transaction
from tests.dagster.telling import Project
from tests.support import Kafka, wait_until

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector, and PySpark still calls what Python 3.12 deprecates: neither is ours to change.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "default::DeprecationWarning"),
]

HOUR_MS = 3_600_000
RETENTION_MS = 24 * HOUR_MS
TASKS = 2


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = spark_session(driver_memory="512m")
    yield session
    session.stop()


def flights(n: int) -> bytes:
    return json.dumps({"flights": n, "delay": n / 2}).encode()


@dataclass
class App:
    """An application of two tasks whose stores are made from their changelogs, as a restored instance holds them."""

    kafka: Kafka
    folder: Path
    window: bool
    changelog: str
    stream_time: int = 0
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def store_name(self) -> str:
        return "hourly-delay" if self.window else "carriers"

    @property
    def declared(self) -> Application:
        return Application("flight-board", "m:f", ("flight-board-1",), {"bootstrap.servers": self.kafka.bootstrap_servers})

    def put(self, task: int, rows: Mapping[bytes, bytes | None], *, commit: bool = True) -> None:
        transaction(self.kafka, self.changelog, list(rows.items()), partition=task, commit=commit)

    def snapshot(self, snapshot_id: str = "s1") -> str:
        """Restores both tasks to the ends of their changelogs and takes a snapshot."""
        for task in range(TASKS):
            self._task(task, snapshot_id)
        return str(snapshots_directory(self.folder) / snapshot_id)

    def _task(self, number: int, snapshot_id: str) -> None:
        task, partition = TaskId(0, number), Partition(self.changelog, number)
        store = self._store()
        directory = self.folder / str(task)
        store.open(directory, StoreContext("flight-board", directory, task, partition))
        clock = SystemClock()
        end = NextOffset(self.kafka.end_offsets(self.changelog)[number])
        restorer = Restorer({"bootstrap.servers": self.kafka.bootstrap_servers}, clock, Metrics(), EventSink("app", "i", clock))
        restorer.add(task, [(store, Changelog(partition, end, "id", None))])
        wait_until(lambda: restorer.step(0.1), what="the restore")
        restorer.close()
        self.ends[number] = end
        write_snapshot(
            snapshots_directory(self.folder),
            snapshot_id,
            application="flight-board",
            task=task,
            stores={store: partition},
            input_offsets={},
            stream_time=self.stream_time,
            at_ms=clock.wall_ms(),
        )
        store.close()

    def _store(self) -> EngineStore:
        if self.window:
            windows = Stores.persistent_timestamped_window_store(self.store_name, RETENTION_MS, HOUR_MS)
            return Stores.timestamped_window_store_builder(windows, serdes.STRING, serdes.JSON).build()
        supplier = Stores.persistent_timestamped_key_value_store(self.store_name)
        return Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()


@pytest.fixture
def app(broker: Kafka, tmp_path: Path, topic: Callable[..., str]) -> Callable[[bool], App]:
    return lambda window: App(broker, tmp_path / "state", window, topic("changelog", TASKS, {"cleanup.policy": "compact"}))


def long(n: int) -> bytes:
    return n.to_bytes(8, "big")


def made(spark: SparkSession, app: App, path: str, tables: Path, settings: Mapping[str, str] | None = None) -> tuple[DataFrame, Path]:
    """Makes the table of the app's store from a snapshot."""
    declared = StateTable("the_table", app.store_name, settings or {})
    parts = find_store(path, app.store_name)
    rows, source = make_table(spark, app.declared, declared, Path(path).name, path, parts)
    link = write_table(rows, source, tables)
    return spark.read.parquet(str(link.resolve())), link


def checked(spark: SparkSession, app: App, link: Path) -> Comparison:
    source = read_source(link)
    view = read_changelog(spark, app.kafka.bootstrap_servers, source.parts)
    moved_on = view.moved_on.withColumnRenamed("key", source.key_column)
    return compare(spark.read.parquet(str(link.resolve())), shaped(view.rows, source), moved_on, source)


def test_a_key_value_store_is_a_table_that_equals_its_changelog(spark: SparkSession, app: Callable[[bool], App], tmp_path: Path) -> None:
    carriers = app(False)
    carriers.put(0, {b"UA": long(1), b"AA": long(2), b"gone": long(3)})
    carriers.put(0, {b"UA": long(58_665), b"gone": None})
    carriers.put(1, {b"DL": long(7)})
    carriers.put(1, {b"DL": long(8), b"ZZ": long(9)}, commit=False)
    table, link = made(spark, carriers, carriers.snapshot(), tmp_path / "tables", {"key-column": "carrier", "value-column": "flights"})
    assert [(row.carrier, row.flights, row.partition) for row in table.collect()] == [("AA", 2, 0), ("DL", 7, 1), ("UA", 58_665, 0)]
    assert table.columns == ["carrier", "flights", "timestamp", "partition"]
    found = checked(spark, carriers, link)
    assert found.equal and (found.rows, found.expected, found.moved_on) == (3, 3, 0)


def test_a_window_store_with_json_values(spark: SparkSession, app: Callable[[bool], App], tmp_path: Path) -> None:
    hourly = app(True)
    hourly.stream_time = 30 * HOUR_MS
    hourly.put(0, {window_store_key(b"EWR", hour * HOUR_MS): flights(hour) for hour in (0, 10, 29)})
    hourly.put(1, {window_store_key(b"JFK", 20 * HOUR_MS): flights(4)})
    table, link = made(spark, hourly, hourly.snapshot(), tmp_path / "tables", {"key-column": "origin"})
    assert table.columns == ["origin", "window_start", "window_end", "delay", "flights", "timestamp", "partition"]
    rows = [(row.origin, row.flights, row.delay) for row in table.collect()]
    # The window of hour 0 has expired at the task's stream time, whether or not its files are still there.
    assert rows == [("EWR", 10, 5.0), ("EWR", 29, 14.5), ("JFK", 4, 2.0)]
    first = table.first()
    assert first is not None and (first.window_end - first.window_start).total_seconds() == 3600
    found = checked(spark, hourly, link)
    assert found.equal and found.rows == 3


def test_the_check_sees_what_is_wrong_missing_or_too_many(spark: SparkSession, app: Callable[[bool], App], tmp_path: Path) -> None:
    carriers = app(False)
    carriers.put(0, {b"UA": long(1), b"AA": long(2), b"DL": long(3)})
    _, link = made(spark, carriers, carriers.snapshot(), tmp_path / "tables")
    source = read_source(link)
    view = read_changelog(spark, carriers.kafka.bootstrap_servers, source.parts)
    wrong = spark.read.parquet(str(link.resolve())).where("key <> 'AA'").replace(1, 99, subset=["value"]).cache()
    surplus = wrong.unionByName(wrong.where("key = 'DL'").replace("DL", "never", subset=["key"]))
    found = compare(surplus, shaped(view.rows, source), view.moved_on, source)
    assert not found.equal
    assert (found.missing, found.surplus) == (2, 2)  # UA and AA are missing, UA with another value and `never` are too many
    assert any("'never'" in line for line in found.differences)


def test_rule_29_what_is_written_after_the_snapshot_does_not_count(spark: SparkSession, app: Callable[[bool], App], tmp_path: Path) -> None:
    carriers = app(False)
    carriers.put(0, {b"UA": long(1), b"AA": long(2)})
    _, link = made(spark, carriers, carriers.snapshot(), tmp_path / "tables")
    carriers.put(0, {b"UA": long(100), b"new": long(1), b"AA": None})
    found = checked(spark, carriers, link)
    assert found.equal and found.rows == 2
    assert found.moved_on == 1  # `new` has no record below the snapshot's offset


def test_rule_29_keys_that_moved_on_are_counted_apart(spark: SparkSession, app: Callable[[bool], App], tmp_path: Path) -> None:
    """As compaction leaves it: the record that the snapshot was made of is gone, a newer one of the same key is there."""
    carriers = app(False)
    carriers.put(0, {b"UA": long(1), b"AA": long(2)})
    _, link = made(spark, carriers, carriers.snapshot(), tmp_path / "tables")
    source = read_source(link)
    compacted = carriers.kafka.create_topic("changelog", TASKS, {"cleanup.policy": "compact"})
    offset = carriers.ends[0]
    carriers.kafka.produce(compacted, [("AA", long(2))] + [("filler", None)] * (offset - 1), partition=0, timestamps=[1_000] * offset)
    carriers.kafka.produce(compacted, [("UA", long(50))], partition=0)
    parts = [_elsewhere(part, compacted) for part in source.parts]
    view = read_changelog(spark, carriers.kafka.bootstrap_servers, parts)
    found = compare(spark.read.parquet(str(link.resolve())), shaped(view.rows, source), view.moved_on, source)
    assert found.equal and (found.rows, found.expected, found.moved_on) == (2, 1, 1)


def _elsewhere(part: StoreSnapshot, topic: str) -> StoreSnapshot:
    changelog = part.store.changelog
    assert changelog is not None
    return replace(part, store=replace(part.store, changelog=replace(changelog, topic=topic)))


def test_a_partition_per_task_and_no_push_down(spark: SparkSession, app: Callable[[bool], App]) -> None:
    carriers = app(False)
    carriers.put(0, {b"k%d" % n: long(n) for n in range(5)})
    carriers.put(1, {b"m%d" % n: long(n) for n in range(5)})
    path = carriers.snapshot()
    rows = spark.read.format("state").option("path", path).option("store", "carriers").load()
    assert rows.rdd.getNumPartitions() == TASKS
    # Spark 4 gives wrong rows for a Python source with pushFilters when one frame is used twice: ours must not have it.
    assert "pushFilters" not in vars(StateReader)
    assert [rows.count(), rows.where("value = 3").count(), rows.count()] == [10, 2, 10]
    assert sorted(row.value for row in rows.where("value=1").unionByName(rows.where("value=2")).collect()) == [1, 1, 2, 2]
    one = spark.read.format("state").option("path", path).option("store", "carriers").option("tasks", "0_1").load()
    assert {row.key for row in one.collect()} == {f"m{n}" for n in range(5)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'path'"),
        ({"path": "{path}"}, "needs the option 'store'"),
        ({"path": "{path}", "store": "nothing"}, "has a store 'nothing'; there are carriers"),
        ({"path": "{path}", "store": "carriers", "tasks": "0_9"}, "tasks 0_9 are not in the snapshot"),
        ({"path": "/nowhere", "store": "carriers"}, "no snapshot at /nowhere"),
        ({"path": "{path}", "store": "carriers", "filter": "x"}, "does not know the option 'filter'"),
    ],
)
def test_wrong_options_are_named(spark: SparkSession, app: Callable[[bool], App], options: Mapping[str, str], message: str) -> None:
    carriers = app(False)
    path = carriers.snapshot()
    reader = spark.read.format("state").options(**{name: value.format(path=path) for name, value in options.items()})
    with pytest.raises(Exception, match=message):
        reader.load().count()


def test_a_new_version_replaces_the_table_in_one_step(spark: SparkSession, app: Callable[[bool], App], tmp_path: Path) -> None:
    carriers = app(False)
    carriers.put(0, {b"UA": long(1)})
    first, link = made(spark, carriers, carriers.snapshot("s1"), tmp_path / "tables")
    carriers.put(0, {b"UA": long(2)})
    second, again = made(spark, carriers, carriers.snapshot("s2"), tmp_path / "tables")
    assert link == again and link.is_symlink()
    assert [row.value for row in second.collect()] == [2]
    assert [row.value for row in first.collect()] == [1]  # a reader that began with the old version goes on with it
    assert read_source(link).snapshot_id == "s2"


def test_settings(spark: SparkSession, app: Callable[[bool], App], tmp_path: Path) -> None:
    hourly = app(True)
    hourly.stream_time = HOUR_MS
    hourly.put(0, {window_store_key(b"EWR", 0): flights(3)})
    path = hourly.snapshot()
    declared, _ = made(spark, hourly, path, tmp_path / "tables", {"value-schema": "flights BIGINT, timestamp STRING"})
    assert declared.columns == ["key", "window_start", "window_end", "flights", "value_timestamp", "timestamp", "partition"]
    with pytest.raises(WrongTableError, match="names no fields"):
        made(spark, hourly, path, tmp_path / "tables", {"value-schema": "BIGINT"})
    with pytest.raises(WrongTableError, match="'colour' is not a setting of a table"):
        TableSettings.of({"colour": "red"})
    assert "| key | window_start |" in preview(declared) and "| EWR |" in preview(declared)


def test_a_store_without_a_changelog_cannot_be_checked(spark: SparkSession, app: Callable[[bool], App]) -> None:
    carriers = app(False)
    parts = find_store(carriers.snapshot(), "carriers")
    unlogged = [replace(part, store=replace(part.store, changelog=None)) for part in parts]
    with pytest.raises(StateDirectoryError, match="has no changelog"):
        read_changelog(spark, carriers.kafka.bootstrap_servers, unlogged)


def test_every_partition_must_be_there_once(app: Callable[[bool], App]) -> None:
    parts = find_store(app(False).snapshot(), "carriers")
    require_all_partitions(parts, TASKS)
    with pytest.raises(WrongTableError, match="partitions 2 of store carriers are in no snapshot"):
        require_all_partitions(parts, TASKS + 1)
    with pytest.raises(WrongTableError, match="in two snapshots"):
        require_all_partitions([*parts, parts[0]], TASKS)


# --- with real instances, under Dagster ----------------------------------------------------------------------------------------------

TABLES = """
[applications.{application}.tables.counts]
store = "counts"
key-column = "word"
value-column = "records"
"""


def test_two_instances_under_dagster(project: Project, spark: SparkSession) -> None:
    """Two processes share the tasks; both take part in the snapshot. The table equals what was fed and what the changelog says."""
    application = project.application.id
    streams = project.operations.places.streams_toml
    streams.write_text(streams.read_text() + TABLES.format(application=application))
    operations = Operations.find()
    for end in ("in", "out"):
        project.broker.create_topic(f"{application}-{end}", 4, exact=True)
    for instance in operations.applications.named(application).instances:
        operations.start(instance, actor="test")
    words = [f"w{n % 50}" for n in range(5_000)]
    project.broker.produce(f"{application}-in", [(word, b"1") for word in words])
    wait_until(lambda: _latest(project.broker, f"{application}-out") == Counter(words), 60, "the counts")

    job = definitions(operations.applications).resolve_job_def(JOB)
    with dg.DagsterInstance.ephemeral() as dagster:
        result = job.execute_in_process(instance=dagster)
    assert result.success
    (made,) = result.asset_materializations_for_node("counts")
    metadata = made.metadata
    assert metadata["dagster/row_count"].value == 50
    schema = metadata["dagster/column_schema"].value
    assert isinstance(schema, dg.TableSchema)
    assert [column.name for column in schema.columns] == ["word", "records", "timestamp", "partition"]
    assert "| w0 | 100 |" in str(metadata["preview"].value)
    table = spark.read.parquet(str(Path(str(metadata["path"].value)).resolve()))
    assert {row.word: row.records for row in table.collect()} == Counter(words)
    (check,) = result.get_asset_check_evaluations()
    assert check.passed and check.metadata["rows"].value == check.metadata["expected"].value == 50
    for name in operations.launcher.known():
        operations.stop(name, actor="test")
    with dg.DagsterInstance.ephemeral() as dagster:
        failed = job.execute_in_process(instance=dagster, raise_on_error=False)
    assert not failed.success
    assert "no instance of" in str(failed.failure_data_for_node("counts"))


def _latest(broker: Kafka, topic: str) -> dict[str, int]:
    return {(record.key or b"").decode(): int.from_bytes(record.value or b"", "big") for record in broker.consume(topic)}
