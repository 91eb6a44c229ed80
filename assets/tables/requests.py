"""Requests to Spark for declared tables."""

from __future__ import annotations

from datetime import date

from penstock.assets.spark.tables.request import TableRequest
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import to_ms
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.state_tables import StateTable
from penstock.runtime.snapshots.manifest import new_snapshot_id


def table_request(
    table: StateTable,
    application: Application,
    paths: ProjectPaths,
    version: str,
    snapshot: str | None,
    days: tuple[date, date] | None,
) -> TableRequest:
    """Build the request. `version` names the version to write, `snapshot` the location of the snapshot, for tables made from one."""
    return TableRequest(
        application=application.id,
        store=table.store,
        table=table.name,
        format=table.format,
        source=table.source,
        location=table.location(paths),
        versions=str(table.versions(paths)),
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
    """Return a name for a version; names sort by time and never repeat."""
    return new_snapshot_id(to_ms(now()))
