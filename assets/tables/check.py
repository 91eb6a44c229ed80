"""Check of a table: it equals its changelog, at the offsets at which it was made."""

import dagster as dg

from penstock.assets.spark.process.pipes import SparkJobs
from penstock.assets.spark.tables.check import TableCheck, check
from penstock.assets.tables.requests import new_version, table_request
from penstock.orchestration.alerts import incidents
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import audit
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.state_tables import StateTable
from penstock.orchestration.instances.operations import Operations

CHECK = "equals_changelog"


def table_check(table: StateTable, application: Application) -> dg.AssetChecksDefinition:
    """Return the check. Differences are written to the table `<table>__differences`, and open an alert, which the next passing check
    resolves."""

    @dg.asset_check(
        asset=dg.AssetKey([table.name]),
        name=CHECK,
        description="Every row is in the changelog, as of the table's offsets, with the same value and time, and the other way round. Keys "
        "whose record compaction has taken since are counted as moved on. Of a table by days, the days that were made last are looked at.",
    )
    def equals_changelog(context: dg.AssetCheckExecutionContext, penstock: PenstockResource, spark: SparkJobs) -> dg.AssetCheckResult:
        operations = penstock.operations
        with spark.turn(context):
            request = table_request(table, application, operations.paths, new_version(), None, None)
            found = spark.run(context, check, request, delta=table.format == "delta")
        tell(operations, table, found, occurrence=request.version, actor=f"dagster run {context.run.run_id[:8]}")
        return check_result(found)

    return equals_changelog


def tell(operations: Operations, table: StateTable, found: TableCheck, *, occurrence: str, actor: str) -> None:
    """Open, count or resolve the alert on the table."""
    counts = {"missing": found.missing, "surplus": found.surplus, "different": found.different}
    checked = incidents.TableCheck(table.application, table.name, occurrence, counts, found.first, found.differences)
    with operations.control_plane.writing() as session:
        incidents.of_check(session, checked, actor=actor, at=audit.now())


def check_result(found: TableCheck) -> dg.AssetCheckResult:
    """Convert the result to Dagster's."""
    numbers = ("rows", "expected", "missing", "surplus", "different", "moved_on", "malformed")
    metadata: dict[str, dg.MetadataValue] = {name: dg.MetadataValue.int(getattr(found, name)) for name in numbers}
    metadata |= {"version": dg.MetadataValue.text(found.version), "differences": dg.MetadataValue.text(found.differences)}
    if found.snapshot is not None:
        metadata["snapshot"] = dg.MetadataValue.text(found.snapshot)
    for name, lines in (("first_differences", found.first), ("notes", found.notes)):
        if lines:
            metadata[name] = dg.MetadataValue.md("\n".join(f"    {line}" for line in lines))
    return dg.AssetCheckResult(passed=found.equal, severity=dg.AssetCheckSeverity.ERROR, description=_text(found), metadata=metadata)


def _text(found: TableCheck) -> str:
    text = f"{found.rows:,} rows equal the changelog"
    if not found.equal:
        text = (
            f"{found.different:,} rows differ from the changelog, {found.missing:,} are missing, {found.surplus:,} are in the table only, "
            f"of {found.expected:,}: see {found.differences}"
        )
    if found.days:
        text += f" (days {found.days[0]} to {found.days[1]})"
    if found.moved_on:
        text += f"; of {found.moved_on:,} keys, written again since, the changelog no longer tells"
    return text
