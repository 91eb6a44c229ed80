"""What is asked of Spark for a declared table."""

from __future__ import annotations

from datetime import date

from assets.spark.table_request import TableRequest
from orchestration.applications import Application
from orchestration.audit import now
from orchestration.control_plane.models import to_ms
from orchestration.places import Places
from orchestration.state_tables import StateTable
from runtime.snapshots.manifest import new_snapshot_id


def table_request(
    table: StateTable,
    application: Application,
    places: Places,
    version: str,
    snapshot: str | None,
    days: tuple[date, date] | None,
) -> TableRequest:
    """`version` names the version to write, `snapshot` the place of the snapshot, for tables that are made of one."""
    return TableRequest(
        application=application.id,
        store=table.store,
        table=table.name,
        format=table.format,
        source=table.source,
        location=table.location(places),
        versions=str(table.versions(places)),
        version=version,
        snapshot=snapshot,
        factory=application.factory,
        config=dict(application.config),
        key_column=table.key_column,
        value_column=table.value_column,
        value_schema=table.value_schema,
        descriptions=dict(table.columns),
        first_day=None if days is None else days[0].isoformat(),
        last_day=None if days is None else days[1].isoformat(),
    )


def new_version() -> str:
    """A name for a version; they sort by time and never repeat."""
    return new_snapshot_id(to_ms(now()))
