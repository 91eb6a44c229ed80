"""Report of an audit of state: the audit trail, alerts, and the last result, which Dagster shows.

<home>/audits/<application>/last.json     the last result (`LastAudit`)
                           /<snapshot>.csv
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.orchestration.alerts import incidents
from penstock.orchestration.database import audit
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.rehearsals.comparison import Difference
from penstock.orchestration.rehearsals.state_audit import StateAudit

_NAMED = 5


class LastAudit(msgspec.Struct, frozen=True, kw_only=True):
    """A finished audit. `stores`: name, rows of the stream, rows computed again, differing keys."""

    at_ms: int
    first: str | None
    last: str
    records: int
    stores: list[tuple[str, int, int, int]]
    notes: list[str]
    table: str


def report_audit(operations: Operations, application: Application, found: StateAudit, *, actor: str) -> None:
    """Open an alert for each store that differs, resolve those of the others, and keep the result."""
    at, occurrence = audit.now(), f"{found.first or 'start'}..{found.last}"
    with operations.control_plane.writing() as session:
        for each in found.differences:
            check = incidents.DifferenceCheck(
                incidents.STATE_DIFFERS,
                application.id,
                each.name,
                occurrence,
                _counts(each),
                _first(found.texts.get(each.name, ())),
                "" if found.table is None else str(found.table),
            )
            incidents.of_check(session, check, actor=actor, at=at)
        detail: dict[str, object] = {"snapshots": occurrence, "records": found.records, "differ": [each.name for each in found.differing]}
        audit.record(session, actor, "state audited", at=at, application=application.id, detail=detail)
    path = _path(operations.paths, application.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(
        msgspec.json.encode(
            LastAudit(
                at_ms=round(at.timestamp() * 1000),
                first=found.first,
                last=found.last,
                records=found.records,
                stores=[(each.name, *each.rows, each.differing) for each in found.differences],
                notes=list(found.notes),
                table="" if found.table is None else str(found.table),
            )
        )
    )
    partial.replace(path)


def _counts(each: Difference) -> dict[str, int]:
    return {"keys differ": each.different, "only in the stream": each.only_running, "only computed": each.only_new}


def _first(texts: Sequence[tuple[str, str, str]]) -> tuple[str, ...]:
    return tuple(f"{key}: {stream}, computed {computed}" for key, stream, computed in texts[:_NAMED])


def last_audit(paths: ProjectPaths, application_id: str) -> LastAudit | None:
    """Return the last finished audit of an application; None if there was none, or its file is of another version."""
    try:
        return msgspec.json.decode(_path(paths, application_id).read_bytes(), type=LastAudit)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _path(paths: ProjectPaths, application_id: str) -> Path:
    return paths.home / "audits" / application_id / "last.json"
