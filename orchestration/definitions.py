"""The Dagster code location with all definitions. Nothing imports it.

`streams.toml` is read once, when the location is loaded: reload it after a change. A mistake in the file fails the load with the file, the
line and the key.
"""

from __future__ import annotations

import dagster as dg

from penstock.assets.checks import instance_checks, instance_checks_schedule, instances_health
from penstock.assets.instances import instances_asset
from penstock.assets.tables import source_keys, table_definitions, topics_of_all
from penstock.orchestration.dagster.jobs import JOBS, snapshot_schedules, take_snapshot_job
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.sensors.alerts import global_recoveries, open_alerts, paused_tasks
from penstock.sensors.instances import START_JOB, instances_no_longer_declared, instances_that_should_run
from penstock.sensors.tables import refresh_sensors


def definitions(applications: Applications) -> dg.Definitions:
    """Return all definitions for the declared applications."""
    topics = topics_of_all(applications)
    instances = instances_asset(source_keys(topics))
    start_instances = dg.define_asset_job(
        START_JOB,
        selection=dg.AssetSelection.assets(instances) | dg.AssetSelection.checks_for_assets(instances),
        description="Start instances: materialise their partitions.",
        executor_def=dg.in_process_executor,
    )
    own = dg.Definitions(
        assets=[instances],
        asset_checks=[instances_health],
        jobs=[start_instances, *JOBS, take_snapshot_job, instance_checks],
        schedules=[instance_checks_schedule, *snapshot_schedules(applications)],
        sensors=[
            paused_tasks,
            global_recoveries,
            instances_that_should_run,
            instances_no_longer_declared,
            open_alerts,
            *refresh_sensors(applications),
        ],
        resources={"penstock": PenstockResource()},
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(own, table_definitions(applications, topics))


defs = definitions(Applications.read(ProjectPaths.find().streams_toml))
