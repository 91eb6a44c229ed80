"""Tables of stores with a real Spark: made whole and by days, in both formats, under Dagster, as inputs of other assets."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, TypeVar

import dagster as dg
import filelock
import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import serdes
from penstock.assets.lineage import topic_key
from penstock.assets.spark.process.pipes import Context, SparkJobs
from penstock.assets.spark.tables.check import TableCheck, check
from penstock.assets.spark.tables.files import TableFiles, table_files
from penstock.assets.spark.tables.job import MALFORMED_TABLE, make
from penstock.assets.spark.tables.request import TableRequest, TableResult
from penstock.assets.tables.asset import JOB, report_differences, table_definitions
from penstock.assets.tables.requests import new_version, table_request
from penstock.orchestration.alerts import alerts
from penstock.orchestration.alerts.incidents import TABLE_DIFFERS
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database.models import Alert
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.tables import TableVersion, WrongTableError
from penstock.runtime.model.record import ValueAndTimestamp
from penstock.runtime.stores import Stores
from tests.dagster.telling import Project
from tests.support import Kafka, wait_until
from tests.support.state_snapshots import AT_MS, Tasks

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    # py4j leaves its sockets to the garbage collector, and PySpark still calls functions deprecated by Python 3.12: not in our code.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "default::DeprecationWarning"),
]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DAY0 = 1_767_225_600_000  # 2026-01-01T00:00:00Z
Request = TypeVar("Request")
Result = TypeVar("Result")


class Delay(msgspec.Struct):
    """A value with a declared type."""

    flights: Annotated[int, msgspec.Meta(description="Departures")]
    timestamp: str = "never"


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    """Yield two tasks with a key-value store of numbers, and a store of one-hour windows with a retention of three days."""
    numbers = Stores.persistent_timestamped_key_value_store("carriers")
    windows = Stores.persistent_timestamped_window_store("hourly-delay", 3 * DAY_MS, HOUR_MS)
    made = Tasks(
        tmp_path,
        [
            Stores.timestamped_key_value_store_builder(numbers, serdes.STRING, serdes.LONG),
            Stores.timestamped_window_store_builder(windows, serdes.STRING, serdes.json(Delay)),
        ],
        tasks=2,
    )
    yield made
    made.close()


def request(tasks: Tasks, version: str, store: str = "carriers", form: str = "parquet", **settings: Any) -> TableRequest:  # noqa: ANN401
    """Return a request for a table from the newest snapshot."""
    table = store.replace("-", "_")
    location = tasks.folder / "tables" / table
    return TableRequest(
        application="app",
        store=store,
        table=table,
        format=form,
        source="snapshot",
        location=str(location),
        versions=str(location.with_name(f".{table}")),
        version=version,
        snapshot=str(tasks.root),
        **settings,
    )


def nothing(_text: str) -> None:
    """Ignore the report."""


def window(tasks: Tasks, task: int, key: str, hour: int, flights: int) -> None:
    tasks.store(task, "hourly-delay").put(key, ValueAndTimestamp(Delay(flights), DAY0 + hour * HOUR_MS), DAY0 + hour * HOUR_MS)


def number(tasks: Tasks, task: int, key: str, value: int) -> None:
    tasks.store(task, "carriers").put(key, ValueAndTimestamp(value, AT_MS))


def counted(spark: SparkSession, asked: TableRequest) -> dict[str, int]:
    """Return the content of a table of numbers."""
    frame = table_files(asked.format, asked.location, Path(asked.versions)).read(spark)
    return {row.carrier: row.flights for row in frame.collect()}


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_table_is_made_with_all_that_is_known_of_it_and_replaced_in_one_step(spark: SparkSession, tasks: Tasks, form: str) -> None:
    names: dict[str, Any] = {"form": form, "key_column": "carrier", "value_column": "flights", "descriptions": {"carrier": "IATA code"}}
    for task, key, value in ((0, "UA", 58_665), (0, "AA", 2), (1, "DL", 7)):
        number(tasks, task, key, value)
    tasks.snapshot("20260101T000000000-aaaaaa")
    said: list[str] = []
    first = make(request(tasks, "v1", **names), spark, said.append)
    assert counted(spark, request(tasks, "", **names)) == {"UA": 58_665, "AA": 2, "DL": 7}
    assert (first.rows, first.rows_by_partition, first.malformed, first.snapshot) == (3, {0: 2, 1: 1}, 0, "20260101T000000000-aaaaaa")
    assert [(column.name, column.type) for column in first.columns] == [
        ("carrier", "string"),
        ("flights", "bigint"),
        ("timestamp", "timestamp"),
        ("partition", "int"),
    ]
    assert [column.description for column in first.columns][:1] == ["IATA code"] and all(column.description for column in first.columns[2:])
    assert first.bytes > 0 and first.seconds > 0 and "| UA | 58665 |" in first.preview
    assert [(at.topic, at.partition) for at in first.changelogs] == [("app-carriers-changelog", 0), ("app-carriers-changelog", 1)]
    assert [(at.topic, at.next_offset) for at in first.inputs] == [("input", 10), ("input", 10)]
    assert msgspec.json.decode(msgspec.json.encode(first), type=TableResult) == first and len(said) == 3

    before = table_files(form, request(tasks, "").location, Path(request(tasks, "").versions)).read(spark)
    number(tasks, 0, "AA", 3)
    tasks.snapshot("20260102T000000000-aaaaaa")
    make(request(tasks, "v2", **names), spark, nothing)
    make(request(tasks, "v2", **names), spark, nothing)  # repeated: it is there already
    assert counted(spark, request(tasks, "", **names))["AA"] == 3
    if form == "parquet":
        assert {row.carrier: row.flights for row in before.collect()}["AA"] == 2, "who had opened the old version continues with it"
        assert sorted(path.name for path in Path(request(tasks, "").versions).iterdir()) == [".lock", "v1", "v2"]


def test_what_cannot_be_made_says_what_would_be_right_and_leaves_the_table(spark: SparkSession, tasks: Tasks) -> None:
    number(tasks, 0, "UA", 1)
    tasks.snapshot()
    names = {"key_column": "carrier", "value_column": "flights"}
    make(request(tasks, "v1", **names), spark, nothing)
    number(tasks, 0, "UA", 2)
    tasks.snapshot("20260202T000000000-aaaaaa")
    for settings, message in (
        (
            {"descriptions": {"carier": "x"}},
            "columns.carier: the table has no such column; there are carrier, flights, timestamp, partition",
        ),
        ({"first_day": "2026-01-01", "last_day": "2026-01-02"}, "partitions by day are for stores with windows"),
    ):
        with pytest.raises(WrongTableError, match=message):
            make(request(tasks, "v2", **names, **settings), spark, nothing)
    with (
        filelock.FileLock(Path(request(tasks, "").versions) / ".lock"),
        pytest.raises(WrongTableError, match="is being written by another run"),
    ):
        make(request(tasks, "v2", **names), spark, nothing)
    assert counted(spark, request(tasks, "")) == {"UA": 1}
    taken = msgspec.structs.replace(request(tasks, "v1"), location=str(tasks.folder / "taken"), versions=str(tasks.folder / ".taken"))
    (tasks.folder / "taken").mkdir()
    with pytest.raises(WrongTableError, match="is a folder that is not a table of this project"):
        make(taken, spark, nothing)
    (tasks.folder / "file").write_text("")
    nowhere = msgspec.structs.replace(taken, location=str(tasks.folder / "file" / "t"), versions=str(tasks.folder / "file" / ".t"))
    with pytest.raises(WrongTableError, match=r"the table .*/file/t cannot be written: Not a directory"):
        make(nowhere, spark, nothing)


@pytest.mark.parametrize("form", [pytest.param("parquet", marks=pytest.mark.nightly), "delta"])
def test_days_are_overwritten_one_by_one_and_those_that_the_store_forgets_stay(spark: SparkSession, tasks: Tasks, form: str) -> None:
    def asked(version: str, first: str, last: str) -> TableRequest:
        return request(tasks, version, "hourly-delay", form, key_column="origin", first_day=first, last_day=last)

    def hours() -> dict[str, int]:
        frame = table_files(form, asked("", "", "").location, Path(asked("", "", "").versions)).read(spark)
        return {f"{row.day} {row.window_start:%H} {row.origin}": row.flights for row in frame.collect()}

    for task, key, hour, flights in ((0, "EWR", 5, 1), (0, "EWR", 23, 2), (0, "EWR", 24, 3), (1, "JFK", 25, 4), (1, "JFK", 49, 5)):
        window(tasks, task, key, hour, flights)
    tasks.snapshot("20260101T000000000-aaaaaa")
    made = make(asked("v1", "2026-01-01", "2026-01-02"), spark, nothing)
    assert hours() == {"2026-01-01 05 EWR": 1, "2026-01-01 23 EWR": 2, "2026-01-02 00 EWR": 3, "2026-01-02 01 JFK": 4}
    assert made.rows_by_day == {"2026-01-01": 2, "2026-01-02": 2} and not made.kept_days
    columns = {column.name: column.description for column in made.columns}
    assert list(columns) == ["origin", "window_start", "window_end", "flights", "value_timestamp", "timestamp", "partition", "day"]
    assert columns["flights"] == "Departures" and columns["day"] == "Day (UTC) of window_start"

    window(tasks, 0, "EWR", 23, 20)  # a late change of the first day
    window(tasks, 1, "JFK", 25, 40)  # and one of a day that was not requested
    tasks.snapshot("20260102T000000000-aaaaaa")
    make(asked("v2", "2026-01-01", "2026-01-01"), spark, nothing)
    assert hours() == {"2026-01-01 05 EWR": 1, "2026-01-01 23 EWR": 20, "2026-01-02 00 EWR": 3, "2026-01-02 01 JFK": 4}

    for task in (0, 1):
        window(tasks, task, "LGA", 24 + 72 + 1, 6)  # time advances: the first day expires, and the second except for an hour
    tasks.snapshot("20260103T000000000-aaaaaa")
    result = make(asked("v3", "2026-01-01", "2026-01-03"), spark, nothing)
    assert result.kept_days == ["2026-01-01", "2026-01-02"]
    assert hours() == {
        "2026-01-01 05 EWR": 1,
        "2026-01-01 23 EWR": 20,
        "2026-01-02 00 EWR": 3,
        "2026-01-02 01 JFK": 4,
        "2026-01-03 01 JFK": 5,
    }
    with pytest.raises(WrongTableError, match=r"no longer holds all windows of the days 2025-12-31 to 2025-12-31: .* whole is 2026-01-03"):
        make(asked("v4", "2025-12-31", "2026-01-03"), spark, nothing)


def test_rows_whose_bytes_do_not_fit_are_counted_and_kept_apart_until_they_fit(spark: SparkSession, tasks: Tasks) -> None:
    window(tasks, 0, "EWR", 1, 1)
    window(tasks, 1, "JFK", 1, 2)
    tasks.snapshot()
    wrong = request(tasks, "v1", "hourly-delay", value_schema="flights BIGINT, timestamp BIGINT")
    result = make(wrong, spark, nothing)
    assert (result.rows, result.malformed) == (0, 2)
    assert result.malformed_location == wrong.location + MALFORMED_TABLE
    apart = table_files("parquet", result.malformed_location, Path(wrong.versions + MALFORMED_TABLE))
    rows = apart.read(spark).collect()
    assert {bytes(row["_malformed"].value) for row in rows} == {
        b'{"flights":1,"timestamp":"never"}',
        b'{"flights":2,"timestamp":"never"}',
    }
    assert all(row["_malformed"].reason for row in rows)
    right = make(msgspec.structs.replace(wrong, version="v2", value_schema=None), spark, nothing)
    assert (right.rows, right.malformed, right.malformed_location, apart.read(spark).count()) == (2, 0, None, 0)


# --- under Dagster ------------------------------------------------------------------------------------------------------------------

STREAMS = """
[applications.app]
factory = "tests.dagster.topology:not_there"
instances = 1
[applications.app.config]
"bootstrap.servers" = "127.0.0.1:1"

[[tables]]
application = "app"
store = "hourly-delay"
description = "Delay by the hour"
key-column = "origin"
partitions = "daily"
first-day = 2026-01-01
last-day = 2026-01-31

[[tables]]
application = "app"
store = "carriers"
key-column = "carrier"
value-column = "flights"
"""


class Here(SparkJobs):
    """Runs Spark jobs in this process."""

    def run(
        self,
        context: Context,
        job: Callable[[Request, SparkSession, Callable[[str], None]], Result],
        request: Request,
        *,
        delta: bool = False,
    ) -> Result:
        return job(request, SparkSession.active(), context.log.info)


@pytest.fixture
def defs(tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    """Return the tables, and two assets of a user that read them."""
    streams = tmp_path / "streams.toml"
    streams.write_text(STREAMS)
    monkeypatch.setenv("PENSTOCK_STREAMS", str(streams))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    tables = table_definitions(Applications.read(streams))

    @dg.asset(io_manager_key="tables", metadata={"format": "delta"})
    def large(carriers: DataFrame) -> DataFrame:
        return carriers.where("flights > 5").select("carrier")

    @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-02-01"))
    def report(context: dg.AssetExecutionContext, hourly_delay: DataFrame, large: DataFrame) -> dg.MaterializeResult[None]:
        flights = [row.flights for row in hourly_delay.collect()]
        return dg.MaterializeResult(metadata={"flights": sum(flights), "large": [row.carrier for row in large.collect()]})

    return here(dg.Definitions(assets=tables.assets, resources=tables.resources), large, report)  # there is no broker to check against


def here(tables: dg.Definitions, *more: dg.AssetsDefinition) -> dg.Definitions:
    """Return the tables, made in this process, and more assets."""
    return dg.Definitions(
        assets=[*(tables.assets or ()), *more],
        asset_checks=tables.asset_checks,
        jobs=tables.jobs,
        resources={**(tables.resources or {}), "spark": Here(), "penstock": PenstockResource()},
        executor=dg.in_process_executor,
    )


def ran(
    defs: dg.Definitions, instance: dg.DagsterInstance, asset: str, days: tuple[str, str] | None = None
) -> Mapping[str, dg.MetadataValue]:
    """Materialise an asset like the UI, a table from the newest snapshot; return the metadata."""
    tags = {} if days is None else {"dagster/asset_partition_range_start": days[0], "dagster/asset_partition_range_end": days[1]}
    config = {"ops": {asset: {"config": {"snapshot": "newest"}}}} if asset in ("carriers", "hourly_delay") else {}
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(asset_selection=[dg.AssetKey(asset)], instance=instance, tags=tags, run_config=config)
    events = result.asset_materializations_for_node(asset)
    if days is not None:
        made = {str(event.partition) for event in events}
        assert made == {str(date.fromordinal(day)) for day in range(*_ordinals(days))}
    return events[-1].metadata


def _ordinals(days: tuple[str, str]) -> tuple[int, int]:
    return date.fromisoformat(days[0]).toordinal(), date.fromisoformat(days[1]).toordinal() + 1


def test_tables_under_dagster_backfill_over_days_and_assets_that_take_them(
    spark: SparkSession, tasks: Tasks, defs: dg.Definitions, tmp_path: Path
) -> None:
    for task, key, hour, flights in ((0, "EWR", 5, 1), (0, "EWR", 24, 2), (1, "JFK", 25, 4), (1, "JFK", 49, 8)):
        window(tasks, task, key, hour, flights)
    for key, value in (("UA", 10), ("AA", 3)):
        number(tasks, 0, key, value)
    taken = tasks.snapshot()
    shutil.copytree(tasks.root, tmp_path / "home" / "snapshots" / "app")
    with dg.DagsterInstance.ephemeral() as instance:
        # A backfill over a range of days, launched like the UI for a table with a single-run policy: one snapshot, one run.
        metadata = ran(defs, instance, "hourly_delay", ("2026-01-01", "2026-01-03"))
        assert metadata["dagster/row_count"].value == 4 and metadata["snapshot"].value == taken.name
        assert "data:image/svg+xml;base64," in str(metadata["plots"].value)
        assert len(instance.get_runs()) == 1
        schema = metadata["dagster/column_schema"].value
        assert isinstance(schema, dg.TableSchema) and schema.columns[3].description == "Departures"
        again = ran(defs, instance, "hourly_delay", ("2026-01-02", "2026-01-02"))
        assert again["dagster/row_count"].value == 4, "one day of it was written again, the others are unchanged"
        ran(defs, instance, "carriers")
        large = ran(defs, instance, "large")
        assert large["dagster/row_count"].value == 1 and str(large["path"].value).endswith("/tables/assets/large")
        found = ran(defs, instance, "report", ("2026-01-02", "2026-01-02"))
        assert (found["flights"].value, found["large"].value) == (6, ["UA"]), "the rows of the run's days, and all of the other table"


def test_a_table_of_the_users_own_needs_a_frame_and_a_day(spark: SparkSession, tmp_path: Path) -> None:
    files = table_files("parquet", str(tmp_path / "t"), tmp_path / ".t")
    with pytest.raises(WrongTableError, match="holds no table yet: materialise it first"):
        files.read(spark)
    frame = spark.range(3)
    files.write(frame, TableVersion(table="t", version="v1", schema=frame.schema.json()))
    (tmp_path / ".t" / "v1" / "_source.json").write_text("{}")
    with pytest.raises(WrongTableError, match="was not written by this project"):
        files.version(spark)


# --- with real instances, on a real broker --------------------------------------------------------------------------------------------

TABLES = """
[[tables]]
application = "{application}"
store = "counts"
key-column = "word"
value-column = "records"

[[tables]]
application = "{application}"
store = "counts"
name = "counts_of_changelog"
format = "delta"
source = "changelog"
key-column = "word"
value-column = "records"
"""


@pytest.mark.nightly
def test_two_instances_under_dagster(project: Project, spark: SparkSession) -> None:
    """Two processes share the tasks, and both take part in the snapshot. Both tables equal the input and the changelog; the one made from
    the changelog continues incrementally. A damaged table is detected, with an alert until it is made again."""
    application = project.application.id
    streams = project.operations.paths.streams_toml
    streams.write_text(streams.read_text() + TABLES.format(application=application))
    operations = Operations.find()
    for end in ("in", "out"):
        project.broker.create_topic(f"{application}-{end}", 4, exact=True)
    for instance in operations.applications.named(application).instances:
        operations.start(instance, actor="test")
    words = [f"w{n % 50}" for n in range(5_000)]
    project.broker.produce(f"{application}-in", [(word, b"1") for word in words])
    wait_until(lambda: _latest(project.broker, f"{application}-out") == Counter(words), 60, "the counts")

    job = here(table_definitions(operations.applications)).resolve_job_def(JOB)
    with dg.DagsterInstance.ephemeral() as dagster:
        result = job.execute_in_process(instance=dagster)
        for table in ("counts", "counts_of_changelog"):
            (made,) = result.asset_materializations_for_node(table)
            assert made.metadata["dagster/row_count"].value == 50
            lineage = made.metadata["dagster/column_lineage"].value
            assert isinstance(lineage, dg.TableColumnLineage)
            assert lineage.deps_by_column["word"] == [dg.TableColumnDep(topic_key(f"{application}-counts-changelog"), "key")]
            assert " | 100 | " in str(made.metadata["preview"].value)
            assert _records(operations, spark, table) == Counter(words)
        checks = result.get_asset_check_evaluations()
        assert [check.passed for check in checks] == [True, True]
        assert all(check.metadata["rows"].value == check.metadata["expected"].value == 50 for check in checks)

        project.broker.produce(f"{application}-in", [("w0", b"1"), ("new", b"1")])
        words += ["w0", "new"]
        wait_until(lambda: _latest(project.broker, f"{application}-out") == Counter(words), 60, "the counts")
        result = job.execute_in_process(instance=dagster, asset_selection=[dg.AssetKey("counts_of_changelog")])
        (made,) = result.asset_materializations_for_node("counts_of_changelog")
        assert str(made.metadata["run"].value).startswith("merged")
        assert _records(operations, spark, "counts_of_changelog") == Counter(words)

        assert _checked(operations, spark, "counts").equal, "what came later does not count"
        files = _files(operations, "counts")
        version = files.version(spark)
        assert version is not None
        damaged = files.read(spark).where("word <> 'w1'").replace(100, 99, subset=["records"])
        files.write(damaged, msgspec.structs.replace(version, version=new_version()))
        found = _checked(operations, spark, "counts")
        assert (found.missing, found.different, found.equal) == (1, 49, False)
        (alert,) = _alerts(operations)
        assert (alert.kind, alert.subject) == (TABLE_DIFFERS, "counts") and alert.title.count("w") > 1
        assert spark.read.parquet(str(Path(found.differences).resolve())).count() == 50
        job.execute_in_process(instance=dagster, asset_selection=[dg.AssetKey("counts")])
        assert _records(operations, spark, "counts") == Counter(words)
        assert _alerts(operations) == []

        for name in operations.launcher.known():
            operations.stop(name, actor="test")
        failed = job.execute_in_process(instance=dagster, asset_selection=[dg.AssetKey("counts")], raise_on_error=False)
        assert not failed.success and "no instance of" in str(failed.failure_data_for_node("counts"))
    operations.control_plane.close()


def _files(operations: Operations, name: str) -> TableFiles:
    table = operations.applications.table(name)
    return table_files(table.format, table.location(operations.paths), table.versions(operations.paths))


def _records(operations: Operations, spark: SparkSession, name: str) -> dict[str, int]:
    return {row.word: row.records for row in _files(operations, name).read(spark).collect()}


def _checked(operations: Operations, spark: SparkSession, name: str) -> TableCheck:
    """Run the check like the asset check."""
    table = operations.applications.table(name)
    application = operations.applications.named(table.application)
    request = table_request(table, application, operations.paths, new_version(), None, None)
    found = check(request, spark, nothing)
    report_differences(operations, table, found, occurrence=request.version, actor="test")
    return found


def _alerts(operations: Operations) -> list[Alert]:
    with operations.control_plane.reading() as session:
        return list(alerts.unresolved(session, kinds=[TABLE_DIFFERS]))


def _latest(broker: Kafka, topic: str) -> dict[str, int]:
    return {(record.key or b"").decode(): int.from_bytes(record.value or b"", "big") for record in broker.consume(topic)}
