"""All that Dagster sees of the declared tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from assets.spark.pipes import SparkJobs
from assets.tables.asset import IO_MANAGER, table_asset
from assets.tables.check import table_check
from assets.tables.io_manager import TablesIOManager
from assets.tables.lineage import Topics, topic_specs, topics_of_all
from orchestration.applications import Applications

JOB = "state_tables"


def table_definitions(applications: Applications, topics: Mapping[str, Topics] | None = None) -> dg.Definitions:
    """Assets, checks and topics of all declared tables, and the job that makes those that are one piece. `topics`: what `topics_of_all`
    gives, for who has asked it already.

    The resources are there without a table too: an asset of one's own may use them.
    """
    resources = {IO_MANAGER: TablesIOManager(), "spark": SparkJobs()}
    if not applications.tables:
        return dg.Definitions(resources=resources)
    topics = topics_of_all(applications) if topics is None else topics
    assets: list[dg.AssetsDefinition] = []
    checks: list[dg.AssetChecksDefinition] = []
    for table in applications.tables:
        application, known = applications.named(table.application), topics[table.application]
        assets.append(table_asset(table, application, known))
        if not known.of_stores or table.store in known.of_stores:
            checks.append(table_check(table, application))
    whole = [asset for asset in assets if asset.partitions_def is None]
    return dg.Definitions(
        assets=[*topic_specs(applications, topics), *assets],
        asset_checks=checks,
        jobs=[_job(whole)] if whole else [],
        resources=resources,
    )


def _job(tables: Sequence[dg.AssetsDefinition]) -> dg.UnresolvedAssetJobDefinition:
    """One job for them all. Those by days are not in it: their runs are for days, which a backfill in the UI names."""
    return dg.define_asset_job(
        JOB,
        selection=dg.AssetSelection.assets(*tables) | dg.AssetSelection.checks_for_assets(*tables),
        description="Make tables of state anew, and hold them against the changelogs.",
        executor_def=dg.in_process_executor,
    )
