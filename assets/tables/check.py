"""The check of a table: it equals its changelog, at the offsets that it stands for."""

import dagster as dg

from assets.spark.pipes import SparkJobs
from assets.spark.table_check import TableCheck, check
from assets.tables.requests import new_version, table_request
from orchestration import audit, table_alerts
from orchestration.applications import Application
from orchestration.operations import Operations
from orchestration.resources import PenstockResource
from orchestration.state_tables import StateTable

CHECK = "equals_changelog"


def table_check(table: StateTable, application: Application) -> dg.AssetChecksDefinition:
    """Differences are written to the table `<table>__differences`, and open an alert, which the next check that finds none resolves."""

    @dg.asset_check(
        asset=dg.AssetKey([table.name]),
        name=CHECK,
        description="Every row is in the changelog, as of the table's offsets, with the same value and time, and the other way round. Keys "
        "whose record compaction has taken since are counted as moved on. Of a table by days, the days that were made last are looked at.",
    )
    def equals_changelog(context: dg.AssetCheckExecutionContext, penstock: PenstockResource, spark: SparkJobs) -> dg.AssetCheckResult:
        operations = penstock.operations
        with spark.turn(context):
            request = table_request(table, application, operations.places, new_version(), None, None)
            found = spark.run(context, check, request, delta=table.format == "delta")
        tell(operations, table, found, occurrence=request.version, actor=f"dagster run {context.run.run_id[:8]}")
        return check_result(found)

    return equals_changelog


def tell(operations: Operations, table: StateTable, found: TableCheck, *, occurrence: str, actor: str) -> None:
    """Opens, counts or resolves the alert on the table."""
    counts = {"missing": found.missing, "surplus": found.surplus, "different": found.different}
    checked = table_alerts.TableCheck(table.application, table.name, occurrence, counts, found.first, found.differences)
    with operations.control_plane.writing() as session:
        table_alerts.of_check(session, checked, actor=actor, at=audit.now())


def check_result(found: TableCheck) -> dg.AssetCheckResult:
    """As Dagster shows it."""
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
