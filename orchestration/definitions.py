"""All Dagster definitions. Only the public modules import it.

`streams.toml` is read once, when the location is loaded: reload it after a change. A mistake in the file fails the load with the file, the
line and the key.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from penstock.assets.checks import checks_job, checks_schedule, health_checks
from penstock.assets.instances import instances_asset
from penstock.assets.lineage import Topics, topic_specs, topics_of_all
from penstock.assets.status import status_spec
from penstock.orchestration.dagster.jobs import jobs, snapshot_schedules, take_snapshot_job
from penstock.orchestration.dagster.names import plain_names, start_job
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import STREAMS_TOML, ProjectPaths
from penstock.orchestration.declarations.toml_table import WrongDeclarationError
from penstock.runtime.model.extras import extra
from penstock.sensors.alerts import global_recoveries, open_alerts, paused_tasks
from penstock.sensors.instances import instances_no_longer_declared, start_sensor
from penstock.sensors.tables import refresh_sensors


def definitions(declared: Applications | Path | str = STREAMS_TOML) -> dg.Definitions:
    """Return all definitions for the declared applications, to merge with those of a project (`dg.Definitions.merge`).

    A relative path, as in `definitions("streams.toml")`, is looked up in the folder of the calling module and above it, so it does not
    depend on the current folder. The file's folder becomes the project of this process, unless PENSTOCK_STREAMS names another file. Raises
    WrongDeclarationError.

    The jobs have their own executor; assets that are materialised otherwise run with the project's default one.
    """
    if isinstance(declared, Applications):
        return _definitions(declared)
    path = Path(declared).expanduser()
    return definitions_of(path if path.is_absolute() else _beside(sys._getframe(1).f_globals.get("__file__"), path))


def definitions_of(streams_toml: Path) -> dg.Definitions:
    """Return all definitions for a file, whose folder becomes the project of this process. Raises WrongDeclarationError."""
    ProjectPaths.choose(streams_toml)
    return _definitions(Applications.of(ProjectPaths.find()))


def _beside(module: object, path: Path) -> Path:
    """Return the nearest file with this relative path, from the folder of a module (without a file: the current one) upwards."""
    folder = Path(module).resolve().parent if isinstance(module, str) else Path.cwd()
    found = next((place / path for place in (folder, *folder.parents) if (place / path).is_file()), None)
    if found is None:
        raise WrongDeclarationError(f"{path} is not in {folder} or a folder above it: it declares what runs (penstock init NAME makes one)")
    return found


def _definitions(applications: Applications) -> dg.Definitions:
    topics, names = topics_of_all(applications), plain_names(applications)
    instances = {each.id: instances_asset(each, names[each.id], topics[each.id]) for each in applications.applications}
    starts = {application: _start_job(application, names[application], asset) for application, asset in instances.items()}
    instance_checks = checks_job()
    own = dg.Definitions(
        assets=[*instances.values(), *(status_spec(each, names[each]) for each in instances), *topic_specs(applications, topics)],
        asset_checks=[health_checks(application, names[application.id]) for application in applications.applications],
        jobs=[*starts.values(), *jobs(applications), take_snapshot_job, instance_checks],
        schedules=[checks_schedule(instance_checks), *snapshot_schedules(applications)],
        sensors=[
            paused_tasks,
            global_recoveries,
            start_sensor(starts),
            instances_no_longer_declared,
            open_alerts,
            *refresh_sensors(applications),
        ],
        resources={"penstock": PenstockResource()},
    )
    return dg.Definitions.merge(own, _of_spark(applications, topics))


def _start_job(application: str, plain_name: str, instances: dg.AssetsDefinition) -> dg.UnresolvedAssetJobDefinition:
    """Return the job that starts an application's instances. All assets of a job have the same partitions, so each application has one."""
    return dg.define_asset_job(
        start_job(plain_name),
        selection=dg.AssetSelection.assets(instances) | dg.AssetSelection.checks_for_assets(instances),
        description=f"Start instances of {application}: materialise their partitions.",
        executor_def=dg.in_process_executor,
    )


def _of_spark(applications: Applications, topics: Mapping[str, Topics]) -> dg.Definitions:
    """Return the declared tables and backfills, and the resources by which users' assets read tables. Without Spark there are none."""
    backfills = any(application.backfill.inputs for application in applications.applications)
    if not applications.tables and not backfills and importlib.util.find_spec("pyspark") is None:
        return dg.Definitions()
    with extra("spark", f"{'[[tables]]' if applications.tables else 'the backfill'} of {applications.source}"):
        from penstock.assets.backfills import backfill_definitions
        from penstock.assets.tables.asset import table_definitions
    return dg.Definitions.merge(table_definitions(applications, topics), backfill_definitions(applications, topics))
