"""Tables as Dagster and the command line show them, without Spark."""

import base64
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import ClassVar, TypeVar, cast
from xml.etree import ElementTree

import dagster as dg
import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from typer.testing import CliRunner

from penstock import serdes
from penstock.assets.lineage import Topics
from penstock.assets.spark.process.pipes import Context, SparkJobs
from penstock.assets.spark.tables.check import TableCheck
from penstock.assets.spark.tables.job import _Content, _of_all_tasks, first_whole_day
from penstock.assets.spark.tables.request import ColumnText, TableRequest, TableResult
from penstock.assets.spark.tables.shape import Shape, column_texts, ddl
from penstock.assets.tables.asset import JOB, check_result, partitions, table_definitions
from penstock.assets.tables.metadata import plots, skew, table_metadata
from penstock.orchestration.cli import app
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.state_tables import Days, StateTable
from penstock.orchestration.definitions import definitions
from penstock.orchestration.tables import SOURCE, TableVersion, WrongTableError, newest_version
from penstock.runtime.snapshots.manifest import PartitionOffset
from penstock.runtime.stores import Stores
from tests.support.state_snapshots import Tasks

Request = TypeVar("Request")
Result = TypeVar("Result")
CHANGELOG = "flight-board-hourly-delay-changelog"
DECLARED = """
[applications.a]
factory = "m:f"
instances = 1
[[tables]]
application = "a"
store = "hourly-delay"
partitions = "daily"
first-day = 2013-01-01
last-day = 2013-01-03
[[tables]]
application = "a"
store = "carriers"
format = "delta"
"""


def pictured(markdown: str) -> list[str]:
    """The texts in a picture."""
    found = re.fullmatch(r"!\[[^]]*\]\(data:image/svg\+xml;base64,([^)]+)\)", markdown)
    assert found is not None
    return [element.text or "" for element in ElementTree.fromstring(base64.b64decode(found[1])).iter() if element.tag.endswith("text")]


def test_the_plots_show_rows_growth_and_how_tasks_share_them() -> None:
    texts = pictured(plots("t", [("10:00", 5), ("11:00", 9), ("12:00", 7)], {0: 6, 1: 1}))
    assert [text for text in texts if not text[0].isdigit() and text[0] != "-"] == ["rows", "growth", "rows per task (skew 1.71)"]
    assert {"5", "9", "7", "4", "-2", "6", "1"} <= set(texts)
    assert "growth" not in pictured(plots("t", [("10:00", 5)], {0: 5})), "nothing to compare with"
    assert pictured(plots("t", [("10:00", 0)], {})), "a table without rows has a picture too"
    assert (skew({}), skew({0: 0}), skew({0: 5, 1: 5})) == (0.0, 0.0, 1.0)


def test_columns_are_described_by_declaration_type_or_what_every_table_has() -> None:
    value = T.StructType([T.StructField("flights", T.LongType()), T.StructField("Timestamp", T.StringType())])
    shape = Shape("origin", "value", False, ["partition", "key", "value", "timestamp", "window_start"], value)
    schema = T.StructType([T.StructField(name, T.LongType()) for name in ("origin", "flights", "timestamp", "other")])
    of_type = {"$ref": "#/$defs/D", "$defs": {"D": {"properties": {"flights": {"description": "Departures"}, "other": {}}}}}
    found = column_texts(schema, shape, {"origin": "FAA code"}, of_type)
    assert found[0] == ColumnText("origin", "bigint", "FAA code")
    assert [column.description for column in found[1:]] == ["Departures", "Time of the record that wrote the row", None]
    assert shape.key_columns == ["partition", "origin", "window_start"]
    with pytest.raises(WrongTableError, match=r"columns\.x: the table has no such column; there are origin, flights"):
        column_texts(schema, shape, {"x": "?"}, None)


def test_a_type_is_written_so_that_it_can_be_read_again() -> None:
    inner = T.StructType([T.StructField("a b`c", T.MapType(T.StringType(), T.LongType()))])
    assert ddl(T.StructType([T.StructField("x", T.ArrayType(inner))])) == "STRUCT<`x`: ARRAY<STRUCT<`a b``c`: MAP<string, bigint>>>>"


def test_tasks_without_rows_count_as_such() -> None:
    def counted(rows: dict[int, int], changelogs: Sequence[int], stream_times: dict[int, int]) -> dict[int, int]:
        offsets = [PartitionOffset("t", partition, 0) for partition in changelogs]
        return _of_all_tasks(rows, _Content(rows=cast("DataFrame", None), changelogs=offsets, stream_times=stream_times))

    assert counted({1: 4}, [0, 1, 2], {1: 7}) == {0: 0, 1: 4, 2: 0}
    assert counted({-1: 3}, [0, 1], {}) == {-1: 3}, "a global store is one, whatever partitions its topic has"
    assert counted({}, [0, 1], {-1: 7}) == {}
    assert counted({0: 2}, [], {0: 7, 1: -1}) == {0: 2, 1: 0}, "a store without a changelog"


@pytest.mark.parametrize(
    ("horizon", "day"),
    [(datetime(2026, 1, 2), date(2026, 1, 2)), (datetime(2026, 1, 2, 0, 0, 1), date(2026, 1, 3)), (None, date(1970, 1, 1))],
)
def test_the_first_day_that_a_store_holds_whole(horizon: datetime | None, day: date) -> None:
    assert first_whole_day(-5 if horizon is None else int(horizon.replace(tzinfo=UTC).timestamp() * 1000)) == day


def test_partitions_are_the_days_with_both_ends_or_up_to_today() -> None:
    bounded = partitions(Days(date(2013, 1, 1), date(2013, 1, 3)))
    assert bounded is not None and bounded.get_partition_keys() == ["2013-01-01", "2013-01-02", "2013-01-03"]
    today = datetime.now(UTC).date()
    growing = partitions(Days(today))
    assert growing is not None and growing.get_partition_keys()[0] == today.isoformat()
    assert partitions(None) is None


def test_tables_by_days_are_not_in_the_job_and_backfill_in_one_run() -> None:
    defs = table_definitions(Applications.parse(DECLARED, Path("x")))
    days = next(asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition) and asset.key.path == ["hourly_delay"])
    assert days.backfill_policy == dg.BackfillPolicy.single_run()
    job = definitions(Applications.parse(DECLARED, Path("x"))).resolve_job_def(JOB)
    assert set(job.asset_layer.executable_asset_keys) == {dg.AssetKey("carriers")}


RESULT = TableResult(
    table="t",
    location="/tables/a/t",
    version="v1",
    rows=7,
    bytes=99,
    malformed=2,
    malformed_location="/tables/a/t__malformed",
    seconds=1.5,
    columns=[ColumnText("key", "string", "The key"), ColumnText("n", "bigint"), ColumnText("timestamp", "timestamp")],
    preview="| key |",
    rows_by_partition={0: 6, 1: 1},
    kept_days=["2026-01-01", "2026-01-02"],
    snapshot="s1",
    stream_times={0: 0},
    inputs=[PartitionOffset("in", 0, 5)],
    changelogs=[PartitionOffset("log", 0, 3), PartitionOffset("log", 1, 4)],
    notes=["a note"],
)


def test_what_a_materialisation_shows() -> None:
    table = StateTable(application="a", store="s", name="t")
    found = table_metadata(table, RESULT, Topics(of_stores={"s": "log"}), [("09:00", 4)])
    numbers = {name: value.value for name, value in found.items() if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue)}
    assert numbers == {"dagster/row_count": 7, "skew": 1.714, "malformed": 2, "bytes": 99, "seconds": 1.5}
    schema, lineage, offsets = (found[name] for name in ("dagster/column_schema", "dagster/column_lineage", "offsets"))
    assert isinstance(schema, dg.TableSchemaMetadataValue) and schema.schema.columns[0].description == "The key"
    assert isinstance(lineage, dg.TableColumnLineageMetadataValue)
    sources = {column: [dep.column_name for dep in deps] for column, deps in lineage.column_lineage.deps_by_column.items()}
    assert sources == {"key": ["key"], "n": ["value"], "timestamp": ["timestamp"]}
    assert isinstance(offsets, dg.TableMetadataValue)
    assert [(record.data["what"], record.data["next_offset"], record.data["rows"]) for record in offsets.records] == [
        ("changelog", 3, 6),
        ("changelog", 4, 1),
        ("input", 5, None),
    ]
    assert found["snapshot"].value == "s1" and "2026-01-01 to 2026-01-02" in str(found["kept_days"].value)


class RecordedJobs(SparkJobs):
    """Makes nothing, and remembers what it was asked for."""

    asked: ClassVar[list[TableRequest]] = []
    turns: ClassVar[list[datetime]] = []

    @contextlib.contextmanager
    def turn(self, context: Context) -> Iterator[None]:
        with super().turn(context):
            self.turns.append(datetime.now(UTC))
            yield

    def run(
        self,
        context: Context,
        job: Callable[[Request, SparkSession, Callable[[str], None]], Result],
        request: Request,
        *,
        delta: bool = False,
    ) -> Result:
        assert isinstance(request, TableRequest)
        assert request.version[:18] >= f"{self.turns[-1]:%Y%m%dT%H%M%S%f}"[:18], "made when it is the run's turn, not before it waits"
        self.asked.append(request)
        return cast(Result, RESULT)


def test_a_backfill_over_days_is_one_run_and_a_day_alone_is_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streams.toml").write_text(DECLARED)
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    stores = [Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), serdes.STRING, serdes.LONG)]
    tasks = Tasks(tmp_path, stores)
    taken = tasks.snapshot()
    tasks.close()
    (tmp_path / "snapshots" / "a").mkdir()
    taken.rename(tmp_path / "snapshots" / "a" / taken.name)
    spark = RecordedJobs()
    spark.asked.clear()
    tables = table_definitions(Applications.read(tmp_path / "streams.toml"))
    resources = {**(tables.resources or {}), "spark": spark, "penstock": PenstockResource()}
    job = dg.Definitions(assets=tables.assets, resources=resources).resolve_implicit_global_asset_job_def()
    config = {"ops": {"hourly_delay": {"config": {"snapshot": "newest"}}}}
    days = ["2013-01-01", "2013-01-02", "2013-01-03"]
    with dg.DagsterInstance.ephemeral() as instance:
        for first, last in ((0, 2), (1, 1)):
            result = job.execute_in_process(
                asset_selection=[dg.AssetKey("hourly_delay")],
                instance=instance,
                run_config=config,
                tags={"dagster/asset_partition_range_start": days[first], "dagster/asset_partition_range_end": days[last]},
            )
            made = [str(event.partition) for event in result.asset_materializations_for_node("hourly_delay")]
            assert sorted(made) == days[first : last + 1]
        result = job.execute_in_process(
            asset_selection=[dg.AssetKey("hourly_delay")],
            instance=instance,
            run_config=config,
            resources={"spark": spark},
            partition_key=days[0],
        )
    assert [(request.first_day, request.last_day) for request in spark.asked] == [
        (days[0], days[2]),
        (days[1], days[1]),
        (days[0], days[0]),
    ]
    assert {request.snapshot for request in spark.asked} == {str(tmp_path / "snapshots" / "a" / taken.name)}
    assert len({request.version for request in spark.asked}) == 3


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "5 rows equal the changelog"),
        ({"moved_on": 3}, "5 rows equal the changelog; 3 keys were not compared, because they were written again since"),
        ({"missing": 1, "days": ["2026-01-01", "2026-01-02"]}, r"1 are missing, 0 .* of 6: see /d \(days 2026-01-01 to 2026-01-02\)"),
    ],
)
def test_what_the_check_says(changes: dict[str, int], text: str) -> None:
    counts = {"rows": 5, "expected": 6, "missing": 0, "surplus": 0, "different": 0, "moved_on": 0, "malformed": 0} | changes
    found = msgspec.convert({**counts, "first": ["UA"], "notes": [], "differences": "/d", "version": "v", "snapshot": None}, TableCheck)
    result = check_result(found)
    assert re.search(text, str(result.description)) and result.passed is ("missing" not in changes)


def test_the_command_lists_tables_and_shows_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streams.toml").write_text(DECLARED)
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    versions = tmp_path / "home" / "tables" / "a" / ".carriers"
    schema = T.StructType([T.StructField("key", T.StringType())]).json()
    for name in ("20260101T000000000-aaaaaa", "20260102T000000000-aaaaaa"):
        (versions / name).mkdir(parents=True)
        version = TableVersion(table="carriers", version=name, schema=schema, snapshot="s", changelogs=[PartitionOffset("log", 0, 3)])
        (versions / name / SOURCE).write_bytes(msgspec.json.encode(version))
    assert getattr(newest_version(versions), "version", None) == "20260102T000000000-aaaaaa"
    listed = CliRunner().invoke(app, ["tables"])
    assert listed.exit_code == 0 and "hourly_delay" in listed.output and "never" in listed.output
    one = CliRunner().invoke(app, ["tables", "carriers", "--json"])
    shown = json.loads(one.output)
    assert (shown["made_at"], shown["columns"], shown["offsets"][0]["next_offset"]) == ("2026-01-02 00:00:00+00:00", {"key": "string"}, 3)
    assert "key: string" in CliRunner().invoke(app, ["tables", "carriers"]).output
    wrong = CliRunner().invoke(app, ["tables", "x"])
    assert wrong.exit_code == 1 and "no table 'x' is declared; declared are hourly_delay, carriers" in wrong.output
    (versions / "20260102T000000000-aaaaaa" / SOURCE).write_text("{}")
    assert "was not written by this project" in CliRunner().invoke(app, ["tables"]).output
