"""`[[tables]]` of `streams.toml`: what is right is read, and each mistake is reported with file, line, key and what would be right."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from penstock.orchestration.declarations.applications import Applications, WrongDeclarationError
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.state_tables import Days, Refresh, StateTable
from tests.support.declarations import refuses_declaration

FILE = Path("/project/streams.toml")
PLACES = ProjectPaths(Path("/project"), Path("/project/.penstock"), FILE, "")
HEAD = '[applications.a]\nfactory = "m:f"\ninstances = 1\n'
TABLE = HEAD + '[[tables]]\napplication = "a"\nstore = "hourly-delay"\n'
ALL = (
    TABLE
    + """
name = "delays"
description = "Delay per hour"
format = "delta"
key-column = "origin"
value-column = "delay"
value-schema = "flights BIGINT"
columns = { origin = "The airport", flights = "How many" }
partitions = "daily"
first-day = 2013-01-01
last-day = "2013-12-31"
place = "s3a://lake/tables/"
refresh = { records = 1000, minutes = 5, days = 3 }

[[tables]]
application = "a"
store = "carriers"
source = "changelog"
place = "lake"
"""
)


def parse(text: str) -> tuple[StateTable, ...]:
    return Applications.parse(text, FILE).tables


def test_everything_that_can_be_declared_is_read() -> None:
    first, second = parse(ALL)
    assert first == StateTable(
        application="a",
        store="hourly-delay",
        name="delays",
        description="Delay per hour",
        format="delta",
        key_column="origin",
        value_column="delay",
        value_schema="flights BIGINT",
        columns={"origin": "The airport", "flights": "How many"},
        days=Days(date(2013, 1, 1), date(2013, 12, 31)),
        place="s3a://lake/tables/",
        refresh=Refresh(1000, 5, 3),
    )
    assert second == StateTable(application="a", store="carriers", name="carriers", source="changelog", place="lake")
    assert [table.location(PLACES) for table in (first, second)] == ["s3a://lake/tables/a/delays", "/project/lake/a/carriers"]


def test_defaults_are_parquet_of_a_snapshot_at_home_made_only_when_asked() -> None:
    (table,) = parse(TABLE)
    assert table == StateTable(application="a", store="hourly-delay", name="hourly_delay")
    assert (table.format, table.source, table.refresh, table.days) == ("parquet", "snapshot", None, None)
    assert table.location(PLACES) == "/project/.penstock/tables/a/hourly_delay"
    (refreshed,) = parse(TABLE + "refresh = {}\n")
    assert refreshed.refresh == Refresh(records=1, minutes=60, days=2)


def test_a_table_is_found_by_its_name() -> None:
    declared = Applications.parse(ALL, FILE)
    assert declared.table("carriers").store == "carriers"
    with pytest.raises(WrongDeclarationError, match="no table 'x' is declared; declared are delays, carriers"):
        declared.table("x")


SECOND = TABLE + '[[tables]]\napplication = "a"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "[[tables]]\n", ["line 4", "tables.application", 'expected for example application = "a"']),
        (HEAD + '[[tables]]\napplication = "b"\n', ["line 5", "tables.application", "no application 'b' is declared; declared are a"]),
        (HEAD + '[[tables]]\napplication = "a"\n', ["line 4", "tables.store", "is missing"]),
        (SECOND, ["line 7", "tables.store", "is missing"]),
        (SECOND + 'store = "hourly-delay"\n', ["line 7", "'hourly_delay' is declared already", 'name = "hourly_delay_2"']),
        (SECOND + 'store = "x"\nformat = "iceberg"\n', ["line 10", "tables.format", "'parquet', 'delta'"]),
        (TABLE + 'formt = "delta"\n', ["line 7", "tables.formt", "did you mean 'format'"]),
        (TABLE + 'key_column = "k"\n', ["line 7", "tables.key_column", "did you mean 'key-column'"]),
        (TABLE + 'partition = "daily"\n', ["line 7", "tables.partition", "did you mean 'partitions'", "'place', 'refresh'"]),
        (TABLE + 'name = "in-stances"\n', ["line 7", "tables.name", "'in-stances' is not possible"]),
        (TABLE + 'name = "instances"\n', ["line 7", "tables.name", "is taken"]),
        (TABLE + 'name = "a__malformed"\n', ["line 7", "tables.name", "is taken"]),
        (TABLE + 'source = "topic"\n', ["line 7", "tables.source", "'snapshot', 'changelog'"]),
        (TABLE + 'value-column = "key"\n', ["line 7", "tables.value-column", "is the key's column already"]),
        (TABLE + 'value-schema = " "\n', ["line 7", "tables.value-schema", "flights BIGINT, delay DOUBLE"]),
        (TABLE + "columns = { origin = 5 }\n", ["line 7", "tables.columns.origin", "expected a description"]),
        (TABLE + 'partitions = "hourly"\n', ["line 7", "tables.partitions", "'daily'"]),
        (TABLE + 'partitions = "daily"\n', ["tables.first-day", "is missing", "first-day = 2013-01-01"]),
        (TABLE + "first-day = 2013-01-01\n", ["line 7", "tables.first-day", 'partitions = "daily"']),
        (TABLE + 'partitions = "daily"\nfirst-day = "yesterday"\n', ["line 8", "tables.first-day", "expected a day"]),
        (TABLE + 'partitions = "daily"\nfirst-day = 2013-02-01\nlast-day = 2013-01-01\n', ["line 9", "last-day", "before first-day"]),
        (TABLE + 'source = "changelog"\npartitions = "daily"\nfirst-day = 2013-02-01\n', ["line 8", "partitions", "made of snapshots"]),
        (TABLE + 'place = "s3a://lake"\n', ["line 7", "tables.place", 'format = "delta"']),
        (TABLE + "refresh = { records = 0 }\n", ["line 7", "tables.refresh.records", "at least 1"]),
        (TABLE + "refresh = { days = 3 }\n", ["line 7", "tables.refresh.days", 'partitions = "daily"']),
        (TABLE + "refresh = { minute = 3 }\n", ["line 7", "tables.refresh.minute", "did you mean 'minutes'"]),
        (HEAD + '[tables.x]\nstore = "s"\n', ["line 4", "tables", "expected tables, [[tables]]"]),
        (
            HEAD + '[applications.a.tables.t]\nstore = "s"\n',
            ["line 4", "applications.a.tables", '[[tables]] on the top level, with application = "a"'],
        ),
        (
            HEAD + '[[applications.a.tables]]\nstore = "s"\n',
            ["line 4", "applications.a.tables", '[[tables]] on the top level, with application = "a"'],
        ),
    ],
)
def test_a_mistake_is_reported_with_its_place_and_what_would_be_right(text: str, says: list[str]) -> None:
    refuses_declaration(text, FILE, says)
