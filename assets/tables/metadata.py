"""Metadata of a table's materialisation, with three small charts: rows over the last materialisations, their growth, and their distribution
over tasks."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import dagster as dg

from penstock.assets.lineage import Topics, column_lineage
from penstock.assets.spark.tables.request import TableResult
from penstock.orchestration.declarations.state_tables import StateTable
from penstock.orchestration.drawing.bars import Bars, bars
from penstock.runtime.snapshots.manifest import PartitionOffset

_HISTORY = 20
_MOST_OFFSETS = 500
_ROWS = "dagster/row_count"


def table_metadata(
    table: StateTable, result: TableResult, topics: Topics, history: Sequence[tuple[str, int]]
) -> dict[str, dg.MetadataValue]:
    """Return metadata under stable names, so that Dagster plots it over time. `history`: earlier materialisations, newest last."""
    columns = [dg.TableColumn(column.name, column.type, column.description) for column in result.columns]
    names = [column.name for column in result.columns]
    found: dict[str, dg.MetadataValue] = {
        _ROWS: dg.MetadataValue.int(result.rows),
        "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
        "preview": dg.MetadataValue.md(result.preview),
        "plots": dg.MetadataValue.md(plots(table.name, [*history, (_short(datetime.now(UTC)), result.rows)], result.rows_by_partition)),
        "skew": dg.MetadataValue.float(round(skew(result.rows_by_partition), 3)),
        "malformed": dg.MetadataValue.int(result.malformed),
        "bytes": dg.MetadataValue.int(result.bytes),
        "seconds": dg.MetadataValue.float(result.seconds),
        "path": dg.MetadataValue.url(result.location) if table.is_uri else dg.MetadataValue.path(result.location),
        "format": dg.MetadataValue.text(table.format),
        "store": dg.MetadataValue.text(table.store),
        "version": dg.MetadataValue.text(result.version),
        "offsets": _offsets(result),
    }
    if result.snapshot is not None:
        found["snapshot"] = dg.MetadataValue.text(result.snapshot)
    if table.source == "changelog":
        found["run"] = dg.MetadataValue.text(f"{result.kind}: {result.reason}" if result.reason else result.kind)
    if result.malformed_location is not None:
        found["malformed_rows"] = dg.MetadataValue.text(result.malformed_location)
    if result.kept_days:
        found["kept_days"] = dg.MetadataValue.text(
            f"{result.kept_days[0]} to {result.kept_days[-1]}: the store has forgotten a part of them, so they stay as they were"
        )
    if result.notes:
        found["notes"] = dg.MetadataValue.md("\n".join(f"- {note}" for note in result.notes))
    topic = topics.of_stores.get(table.store)
    if topic is not None:
        found["dagster/column_lineage"] = dg.MetadataValue.column_lineage(column_lineage(topic, table.key_column, names))
    return found


def history(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[tuple[str, int]]:
    """Return times and row counts of earlier materialisations, newest last. A run over many days counts once."""
    records = instance.fetch_materializations(key, limit=_HISTORY * 50).records
    found: dict[str, tuple[str, int]] = {}
    for record in records:
        made = record.asset_materialization
        rows = None if made is None else made.metadata.get(_ROWS)
        if isinstance(rows, dg.IntMetadataValue) and rows.value is not None and len(found) < _HISTORY:
            found.setdefault(record.run_id, (_short(datetime.fromtimestamp(record.timestamp, UTC)), rows.value))
    return list(reversed(found.values()))


def _short(at: datetime) -> str:
    return f"{at:%H:%M}"


def _offsets(result: TableResult) -> dg.TableMetadataValue:
    """Return the vector of next offsets at which the table was made: of the application's source topics, and of the changelog."""
    columns = {"what": "string", "topic": "string", "partition": "int", "next_offset": "int", "rows": "int", "stream_time": "string"}
    records = [dg.TableRecord(dict(zip(columns, row, strict=True))) for row in _offset_rows(result)][:_MOST_OFFSETS]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()]))


def _offset_rows(result: TableResult) -> Iterator[tuple[str, str, int, int, int | None, str]]:
    for at in result.changelogs:
        time_ms = result.stream_times.get(at.partition, -1)
        shown = "" if time_ms < 0 else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        yield *_position("changelog", at), result.rows_by_partition.get(at.partition, 0), shown
    for at in result.inputs:
        yield *_position("input", at), None, ""


def _position(what: str, at: PartitionOffset) -> tuple[str, str, int, int]:
    return what, at.topic, at.partition, at.next_offset


_MOST_TASKS = 64


def plots(table: str, history: Sequence[tuple[str, int]], rows_by_partition: Mapping[int, int]) -> str:
    """Return a picture in Markdown. `history`: time (a short text) and number of rows, newest last, which is the table's current state."""
    charts = [Bars("rows", [at for at, _ in history], [rows for _, rows in history])]
    growth = [(at, rows - before) for (_, before), (at, rows) in pairwise(history)]
    if growth:
        charts.append(Bars("growth", [at for at, _ in growth], [more for _, more in growth]))
    if rows_by_partition:
        names, values = _tasks(rows_by_partition)
        charts.append(Bars(f"rows per task (skew {skew(rows_by_partition):.2f})", names, values))
    drawn = base64.b64encode(bars(charts).encode()).decode()
    return f"![rows, growth and skew of {table}](data:image/svg+xml;base64,{drawn})"


def skew(rows_by_partition: Mapping[int, int]) -> float:
    """Return the ratio of the fullest task to the average: 1 if all tasks have the same number of rows; 0 for a table without rows."""
    total = sum(rows_by_partition.values())
    return max(rows_by_partition.values()) * len(rows_by_partition) / total if total else 0.0


def _tasks(rows_by_partition: Mapping[int, int]) -> tuple[list[str], list[int]]:
    """Return a bar per task; with very many tasks only the fullest, which are the relevant ones."""
    found = sorted(rows_by_partition.items())
    if len(found) > _MOST_TASKS:
        found = sorted(sorted(found, key=lambda entry: -entry[1])[:_MOST_TASKS])
    return [str(partition) for partition, _ in found], [rows for _, rows in found]
