"""The last rehearsal and the last audit of state in Dagster: checks of each application's asset, which pass if nothing differed by more
than was allowed."""

from __future__ import annotations

import dagster as dg

from penstock.orchestration.dagster import live_metadata
from penstock.orchestration.dagster.names import instances_key
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.rehearsals.demand import last
from penstock.orchestration.rehearsals.report import last_audit
from penstock.runtime.model.clock import from_ms

REHEARSAL, STATE_AUDIT = "rehearsal", "state_audit"


def check_specs(application_id: str) -> tuple[dg.AssetCheckSpec, dg.AssetCheckSpec]:
    rehearsal = dg.AssetCheckSpec(
        REHEARSAL,
        asset=instances_key(application_id),
        description="In the last rehearsal (job rehearse_application, penstock rehearse) the new code made of the same state and records "
        "what the running code makes of them, but for what was allowed. The metadata shows the stores and topics.",
    )
    state_audit = dg.AssetCheckSpec(
        STATE_AUDIT,
        asset=instances_key(application_id),
        description="In the last audit (job audit_state, penstock audit-state) the stores were what their input gives, computed again "
        "from a snapshot and the records since then. The metadata shows the stores.",
    )
    return rehearsal, state_audit


def result(paths: ProjectPaths, application_id: str) -> dg.AssetCheckResult:
    """Return the result of the check: of the last rehearsal, or that there was none."""
    found = last(paths, application_id)
    key = instances_key(application_id)
    if found is None:
        return dg.AssetCheckResult(asset_key=key, check_name=REHEARSAL, passed=True, description="no new code was rehearsed yet")
    columns = ("what", "rows, running", "rows, new", "differing keys")
    rows = [dg.TableRecord(dict(zip(columns, each, strict=True))) for each in found.differences]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=REHEARSAL,
        passed=not found.failures,
        severity=dg.AssetCheckSeverity.WARN,
        description=live_metadata.sentence("; ".join(found.failures[:5]))
        or f"nothing differed in {found.records:,} records since snapshot {found.snapshot}",
        metadata={
            "1 rehearsed": dg.MetadataValue.timestamp(from_ms(found.at_ms)),
            "2 builds": dg.MetadataValue.text(f"running: {found.builds[0]}; new: {found.builds[1]}"),
            **({"3 stores and topics": dg.MetadataValue.table(rows)} if rows else {}),
            "records": dg.MetadataValue.int(found.records),
            "differing_keys": dg.MetadataValue.int(sum(each[3] for each in found.differences)),
            "rejected": dg.MetadataValue.int(found.rejections[1]),
        },
    )


def audit_result(paths: ProjectPaths, application_id: str) -> dg.AssetCheckResult:
    """Return the result of the check: of the last audit, or that there was none."""
    found = last_audit(paths, application_id)
    key = instances_key(application_id)
    if found is None:
        return dg.AssetCheckResult(asset_key=key, check_name=STATE_AUDIT, passed=True, description="the state was not audited yet")
    differing = [name for name, _, _, keys in found.stores if keys]
    columns = ("store", "rows", "rows, computed", "differing keys")
    rows = [dg.TableRecord(dict(zip(columns, each, strict=True))) for each in found.stores]
    span = f"{found.records:,} records from {'the start' if found.first is None else f'snapshot {found.first}'} to snapshot {found.last}"
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=STATE_AUDIT,
        passed=not differing,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{', '.join(differing)} differ: {span}" if differing else f"nothing differs: {span}",
        metadata={
            "1 audited": dg.MetadataValue.timestamp(from_ms(found.at_ms)),
            **({"2 stores": dg.MetadataValue.table(rows)} if rows else {}),
            **({"3 differing keys": dg.MetadataValue.path(found.table)} if found.table else {}),
            **({"4 not compared": dg.MetadataValue.text("; ".join(found.notes))} if found.notes else {}),
            "records": dg.MetadataValue.int(found.records),
            "differing_keys": dg.MetadataValue.int(sum(each[3] for each in found.stores)),
        },
    )
