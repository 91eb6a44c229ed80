"""The Dagster code location: everything that Dagster sees. Nothing imports it.

What is declared in `streams.toml` is read once, when the location is loaded: reload it after a change. A mistake in the file fails
the load with the file, the line and the key.
"""

from __future__ import annotations

import dagster as dg

from assets.checks import instance_checks, instance_checks_schedule, instances_health
from assets.instances import instances_asset
from assets.tables import source_keys, table_definitions, topics_of_all
from orchestration.applications import Applications
from orchestration.jobs import JOBS
from orchestration.places import Places
from orchestration.resources import PenstockResource
from orchestration.snapshot_job import snapshot_schedules, take_snapshot_job
from sensors.global_recoveries import global_recoveries
from sensors.instances import START_JOB, instances_no_longer_declared, instances_that_should_run
from sensors.open_alerts import open_alerts
from sensors.paused_tasks import paused_tasks
from sensors.tables import refresh_sensors


def definitions(applications: Applications) -> dg.Definitions:
    """All definitions for what is declared."""
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


defs = definitions(Applications.read(Places.find().streams_toml))
