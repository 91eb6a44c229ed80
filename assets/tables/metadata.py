"""Metadata of a table's materialisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import dagster as dg

from penstock.assets.spark.tables.request import TableResult
from penstock.assets.tables.lineage import Topics, column_lineage
from penstock.assets.tables.plots import plots, skew
from penstock.orchestration.declarations.state_tables import StateTable
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
