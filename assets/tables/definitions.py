"""Dagster definitions of the declared tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from penstock.assets.lineage import Topics, topics_of_all
from penstock.assets.spark.process.pipes import SparkJobs
from penstock.assets.tables.asset import IO_MANAGER, table_asset, table_check
from penstock.assets.tables.io_manager import TablesIOManager
from penstock.orchestration.dagster.names import plain_names
from penstock.orchestration.declarations.applications import Applications

JOB = "state_tables"


def table_definitions(applications: Applications, topics: Mapping[str, Topics] | None = None) -> dg.Definitions:
    """Return assets and checks of all declared tables, and the job for those without days. `topics`: the result of `topics_of_all`,
    if the caller already has it.

    The resources are defined even without tables: users' own assets may need them.
    """
    resources = {IO_MANAGER: TablesIOManager(), "spark": SparkJobs()}
    if not applications.tables:
        return dg.Definitions(resources=resources)
    topics = topics_of_all(applications) if topics is None else topics
    assets: list[dg.AssetsDefinition] = []
    checks: list[dg.AssetChecksDefinition] = []
    groups = plain_names(applications)
    for table in applications.tables:
        application, known = applications.named(table.application), topics[table.application]
        assets.append(table_asset(table, application, groups[application.id], known))
        if not known.of_stores or table.store in known.of_stores:
            checks.append(table_check(table, application))
    whole = [asset for asset in assets if asset.partitions_def is None]
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=[_job(whole)] if whole else [],
        resources=resources,
    )


def _job(tables: Sequence[dg.AssetsDefinition]) -> dg.UnresolvedAssetJobDefinition:
    """Return one job for all tables without days. Those by days are not in it: their runs need days, which a backfill in the UI names."""
    return dg.define_asset_job(
        JOB,
        selection=dg.AssetSelection.assets(*tables) | dg.AssetSelection.checks_for_assets(*tables),
        description="Make tables of state again, and compare them with the changelogs.",
        executor_def=dg.in_process_executor,
    )
