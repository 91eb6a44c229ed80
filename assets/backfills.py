"""Backfills in Dagster: an asset for each application that declares one, and the job that starts the application with its seed."""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta

import dagster as dg
import msgspec
from pydantic import Field

from penstock.assets.lineage import Topics, topic_key
from penstock.assets.spark.history.command import backfill
from penstock.assets.spark.history.run import HistoryResult
from penstock.assets.spark.process.pipes import Context, SparkJobs
from penstock.orchestration.dagster.names import plain_names
from penstock.orchestration.dagster.ops import actor_of, explained, failure
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.instances.operations import Operations, Started

BACKFILL = "backfill"
JOB = "backfill_and_start"


class BackfillConfig(dg.Config):
    """Configuration of a backfill's run."""

    until: str = Field(default="", description="End of the history, as `penstock backfill --until`; empty: as declared")
    restart: bool = Field(
        default=False, description="Begin with the first record, although an unfinished run or the day before could be continued"
    )


def backfill_asset(application: Application, group: str, topics: Topics) -> dg.AssetsDefinition:
    """Materialise: run the application's program over its history, on Spark. A partition is the history up to the end of a day (UTC)."""
    declared = application.backfill
    days = None if declared.first_day is None else dg.DailyPartitionsDefinition(declared.first_day.isoformat())
    key = dg.AssetKey([application.id, BACKFILL])
    # Dagster materialises a range of days in their order.
    day_before = [dg.AssetDep(key, partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1))] if days else []

    @dg.asset(
        key=key,
        deps=[*(topic_key(topic) for topic in sorted(declared.inputs) if topic in topics.sources), *day_before],
        partitions_def=days,
        group_name=group,
        kinds={"spark", "parquet"},
        description=f"The state and outputs of `{application.id}` over its history, made by its own program on Spark: a seed with which it "
        "starts (`penstock docs history`)."
        + (" A partition is the state at the end of that day (UTC), and goes on with that of the day before." if days else ""),
    )
    def history(
        context: dg.AssetExecutionContext, config: BackfillConfig, penstock: PenstockResource, spark: SparkJobs
    ) -> dg.MaterializeResult[None]:
        day = context.partition_key if context.has_partition_key else None
        until = end_of(day) if day else config.until or None
        found = run_backfill(context, penstock.operations, spark, application, until, day=day, restart=config.restart)
        return dg.MaterializeResult(metadata=metadata(found, application.id))

    return history


def end_of(day: str) -> str:
    """Return the time at which a day ends, as `--until`."""
    return f"{date.fromisoformat(day) + timedelta(days=1)}T00:00:00"


def run_backfill(
    context: Context,
    operations: Operations,
    spark: SparkJobs,
    application: Application,
    until: str | None,
    *,
    day: str | None = None,
    restart: bool = False,
) -> HistoryResult:
    """Run the declared backfill of an application. `day`: the partition, which goes on with the state of the day before if that is there,
    unless `restart`. Fails with the message of what it refused."""
    paths, first = operations.paths, application.backfill.first_day
    with explained():
        request = application.backfill.request(application.id, paths.root, paths.home, until)
        after = None if day is None or first is None or date.fromisoformat(day) <= first else f"{day}T00:00:00"
        request = msgspec.structs.replace(request, restart=restart, daily=day is not None, after=after)
        return spark.run(context, backfill, request, delta=request.reads_delta)


def metadata(found: HistoryResult, application: str) -> Mapping[str, dg.MetadataValue]:
    """Return what a run has made and what it cost. Numbers have names of their own, so that Dagster plots them."""
    columns = ("sub-topology", "tasks", "records", "CPU seconds", "slowest task, s", "median, s")
    stages = [
        dg.TableRecord(
            dict(
                zip(
                    columns,
                    (
                        each.sub_topology,
                        each.tasks,
                        each.records,
                        round(each.cpu_seconds, 1),
                        round(each.slowest, 1),
                        round(each.median, 1),
                    ),
                    strict=True,
                )
            )
        )
        for each in found.stages
    ]
    return {
        "1 seed": dg.MetadataValue.text(found.seed),
        "2 next": dg.MetadataValue.text(f"penstock start {application} --seed {found.seed}"),
        **({"3 outputs": dg.MetadataValue.text(found.outputs)} if found.outputs else {}),
        **({"4 rejected": dg.MetadataValue.text(found.rejected)} if found.rejected else {}),
        **({"goes on from": dg.MetadataValue.text(found.goes_on_from)} if found.goes_on_from else {}),
        "5 stages": dg.MetadataValue.table(stages),
        **({"6 notes": dg.MetadataValue.text("; ".join(found.notes))} if found.notes else {}),
        "records": dg.MetadataValue.int(sum(each.records for each in found.stages)),
        "rejected_records": dg.MetadataValue.int(sum(each.rejected for each in found.stages)),
        "cpu_seconds": dg.MetadataValue.float(sum(each.cpu_seconds for each in found.stages)),
        "skew": dg.MetadataValue.float(max((each.slowest / each.median for each in found.stages if each.median), default=1.0)),
        "bytes": dg.MetadataValue.int(found.bytes),
    }


class StartConfig(dg.Config):
    """Configuration of a backfill and start."""

    application: str = Field(description="The application.id, for example flight-board; none of its instances may run")
    until: str = Field(default="", description="End of the history, as `penstock backfill --until`; empty: as declared")


def _job(applications: Sequence[Application]) -> dg.JobDefinition:
    known = {each.id: each for each in applications}

    @dg.op(description="Run the application's program over its history, on Spark.", out=dg.Out(str, description="The seed"))
    def make_seed(context: dg.OpExecutionContext, config: StartConfig, penstock: PenstockResource, spark: SparkJobs) -> str:
        operations = penstock.operations
        application = known.get(config.application)
        if application is None:
            raise failure(f"{config.application} declares no backfill; those that do are {', '.join(sorted(known))}")
        if running := [name for name in operations.instances(application) if operations.launcher.running(name) is not None]:
            raise failure(f"{', '.join(running)} of {application.id} run: state is installed only while none does (penstock stop)")
        found = run_backfill(context, operations, spark, application, config.until or None)
        context.add_output_metadata(dict(metadata(found, application.id)))
        return found.seed

    @dg.op(description="Install the seed and start the application's instances, which continue where the history ends.")
    def start_with_seed(context: dg.OpExecutionContext, config: StartConfig, penstock: PenstockResource, seed: str) -> None:
        operations, actor = penstock.operations, actor_of(context)
        names = operations.instances(known[config.application])

        def running(started: Started) -> None:
            context.log.info(f"{started.instance.name} is {started.instance.state}")

        with explained():
            context.log.info(operations.seed(names[0], seed, actor=actor))
            operations.start_all(names, actor=actor, running=running, progress=context.log.info)

    def mapped(asked: Mapping[str, object]) -> Mapping[str, object]:
        return {"ops": {name: {"config": dict(asked)} for name in ("make_seed", "start_with_seed")}}

    both = dg.ConfigMapping(config_schema=StartConfig.to_config_schema().as_field(), config_fn=mapped)

    @dg.graph(description="Run an application over its history on Spark, then start it with the seed, at the exact offsets.")
    def backfill_and_start() -> None:
        start_with_seed(make_seed())

    return backfill_and_start.to_job(name=JOB, config=both, executor_def=dg.in_process_executor)


def backfill_definitions(applications: Applications, topics: Mapping[str, Topics]) -> dg.Definitions:
    """Return the assets of all declared backfills, and the job. The resource `spark` is defined with the tables."""
    declared = [application for application in applications.applications if application.backfill.inputs]
    if not declared:
        return dg.Definitions()
    groups = plain_names(applications)
    assets = [backfill_asset(application, groups[application.id], topics[application.id]) for application in declared]
    return dg.Definitions(assets=assets, jobs=[_job(declared)])
