"""The last rehearsal in Dagster: a check of each application's asset, which passes if nothing differed by more than was allowed."""

from __future__ import annotations

import dagster as dg

from penstock.orchestration.dagster.names import instances_key
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.rehearsals.demand import last
from penstock.runtime.model.clock import from_ms

REHEARSAL = "rehearsal"


def check_spec(application_id: str) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        REHEARSAL,
        asset=instances_key(application_id),
        description="In the last rehearsal (job rehearse_application, penstock rehearse) the new code made of the same state and records "
        "what the running code makes of them, but for what was allowed. The metadata shows the stores and topics.",
    )


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
        description="; ".join(found.failures[:5]) or f"nothing differed in {found.records:,} records since snapshot {found.snapshot}",
        metadata={
            "1 rehearsed": dg.MetadataValue.timestamp(from_ms(found.at_ms)),
            "2 builds": dg.MetadataValue.text(f"running: {found.builds[0]}; new: {found.builds[1]}"),
            **({"3 stores and topics": dg.MetadataValue.table(rows)} if rows else {}),
            "records": dg.MetadataValue.int(found.records),
            "differing_keys": dg.MetadataValue.int(sum(each[3] for each in found.differences)),
            "rejected": dg.MetadataValue.int(found.rejections[1]),
        },
    )
