"""The process of `penstock backfill`: reads the project, asks the brokers, runs Spark, prints what came of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout
from pyspark.sql import SparkSession

from penstock.assets.spark.history.errors import HistoryError
from penstock.assets.spark.history.inputs import Bounds
from penstock.assets.spark.history.run import Brokers, Estimate, HistoryRequest, HistoryResult, StageResult, estimate, run_history
from penstock.assets.spark.seeds.job import SeedError
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.assets.spark.session.explained import SPARK_ERRORS
from penstock.assets.spark.session.explained import explained as of_spark
from penstock.assets.spark.session.interrupts import Interrupts
from penstock.assets.spark.session.progress import follow
from penstock.assets.spark.session.session import spark_session
from penstock.orchestration.commands.common import explained, fail, hint, print_json, say, warn
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.backfills import BackfillRequest
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.spark_settings import WrongSparkError
from penstock.orchestration.resets.target import Edge, Target
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.ids import NextOffset, TopicPartition

Report = Callable[[str], None]
"""Takes the name of each step."""

_STAYS = "the same command goes on where it was: stages that are done are not run again"


def main(encoded: str) -> None:
    """Run a backfill. Exit status 1 if it is refused or fails, 130 after Ctrl-C."""
    request = msgspec.json.decode(encoded, type=BackfillRequest)
    with explained():
        declared = Applications.of(ProjectPaths.find())
        found = declared.named(request.application)
        run, brokers = history_of(found, request)
        settings = msgspec.structs.replace(declared.spark, delta=request.reads_delta)
        try:
            with (
                nullcontext() if request.dry_run else alone(request.application),
                Interrupts(lambda: warn(f"stopped: {_STAYS}")) as interrupts,
            ):
                log = _spark_logs_to_file(request)
                hint(f"the log of Spark and of the tasks is {log}")
                spark = spark_session(settings)
                interrupts.watch(spark, settings)
                with closing(follow(spark, settings, hint)) as progress:

                    def report(step: str) -> None:
                        hint(step)
                        progress.begin(step)

                    _run(spark, run, brokers, request, report)
        except (SeedError, WrongSparkError) as error:
            fail(str(error))
        except SPARK_ERRORS as error:
            fail(of_spark(error, settings))


def _spark_logs_to_file(request: BackfillRequest) -> Path:
    """Let processes that are started from now on write their standard error to a file: Spark's JVM logs the stack of each failed task, and
    tasks log each record that a handler skips. Return the file."""
    path = ProjectPaths.find().home / "backfills" / f"{request.application}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    sys.stderr = os.fdopen(os.dup(2), "w", 1, encoding=sys.stderr.encoding, errors="backslashreplace")
    with path.open("ab" if request.dry_run else "wb") as file:  # a run may be using it during a dry run
        os.dup2(file.fileno(), 2)
    return path


def history_of(application: Application, request: BackfillRequest) -> tuple[HistoryRequest, Brokers]:
    """Return the run of a backfill, and its brokers. Raises HistoryError, StreamsConfigError."""
    program = SeedApplication.of(application.id, application.factory, application.client_config())
    run = HistoryRequest(
        program,
        request.inputs,
        request.until,
        request.seed,
        request.outputs,
        request.rejected,
        all_stores=request.daily,  # also those that a source topic restores: the next day has only the records of a day
        daily=request.daily,
        after=None if request.restart else request.after,
    )
    return run, brokers_of(program, request.until)


def backfill(request: BackfillRequest, spark: SparkSession, report: Report) -> HistoryResult:
    """Carry out a backfill in a process that Dagster has started; each step is a line of `report`. Raises as `run_history`."""
    found = Applications.of(ProjectPaths.find()).named(request.application)
    run, brokers = history_of(found, request)
    with alone(request.application):
        return run_history(spark, run, brokers, report=report, restart=request.restart)


@contextmanager
def alone(application: str) -> Iterator[None]:
    """Let no other backfill of the application run on this machine meanwhile: the two would write the same files. Raises SeedError."""
    path = ProjectPaths.find().home / "backfills" / f"{application}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SeedError(
            f"another backfill of {application} runs on this machine, from the command line or in Dagster. Wait until it has ended, or end "
            "it with Ctrl-C; the same request then goes on where it was"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _run(spark: SparkSession, run: HistoryRequest, brokers: Brokers, request: BackfillRequest, report: Callable[[str], None]) -> None:
    if request.dry_run:
        stages = estimate(spark, run, brokers)
        if request.as_json:
            print_json([msgspec.to_builtins(stage) for stage in stages])
        else:
            _show_plan(stages)
        return
    result = run_history(spark, run, brokers, report=report, restart=request.restart)
    if request.as_json:
        print_json(msgspec.to_builtins(result, str_keys=True))
    else:
        _show(result, request.application)


def _show_plan(stages: Sequence[Estimate]) -> None:
    for number, stage in enumerate(stages, 1):
        say(f"stage {number}: {stage.label}, {stage.tasks} tasks")
        for topic, rows in stage.rows.items():
            what = "the rows that an earlier stage writes" if rows is None else f"{rows:,} records"
            say(f"  reads {topic}: {what}{' (global)' if topic in stage.global_topics else ''}")
        for name, of_kind in (("stores", stage.stores), ("writes", stage.sinks)):
            if of_kind:
                say(f"  {name} {', '.join(of_kind)}")
    say("nothing was run or written (--dry-run)")


def _show(result: HistoryResult, application: str) -> None:
    for stage in result.stages:
        say(_line(stage))
    for topic, offsets in sorted(result.next_offsets.items()):
        say(f"the stream goes on at {', '.join(f'{topic}-{number}@{offset}' for number, offset in sorted(offsets.items()))}")
    for note in result.notes:
        warn(note)
    if result.outputs is not None:
        say(f"outputs: {result.outputs}")
    if result.rejected is not None:
        warn(f"rejected records: {result.rejected}")
    say(f"seed of {result.bytes / 1e6:,.1f} MB: {result.seed}")
    say(f"next: penstock start {application} --seed {result.seed}")


def _line(stage: StageResult) -> str:
    if stage.reused:
        return f"{stage.label}: done by an earlier try, {stage.records:,} records"
    rate = stage.records / stage.cpu_seconds if stage.cpu_seconds else 0.0
    beside = [
        f"{stage.tasks} tasks, {rate:,.0f} per CPU second",
        f"slowest task {stage.slowest:.1f} s, median {stage.median:.1f} s",
        *([f"{stage.dropped:,} dropped"] if stage.dropped else []),
        *([f"{stage.rejected:,} rejected"] if stage.rejected else []),
        *(f"{rows:,} rows to {topic}" for topic, rows in sorted(stage.outputs.items())),
    ]
    return f"{stage.label}: {stage.records:,} records ({'; '.join(beside)})"


def brokers_of(application: SeedApplication, until: str) -> Brokers:
    """Return what the application's brokers know. `until`: the option's text. Raises HistoryError if it means no end of a history."""
    try:
        earliest = Target.parse(until, datetime.now(UTC)).to is Edge.EARLIEST
    except ValueError as error:
        raise HistoryError(f"until: {error}") from error
    if earliest:
        raise HistoryError("until: there is no history before the first record (earliest)")
    settings = StreamsConfig(application.config)
    admin = TopicAdmin(settings)

    def partitions(topics: Sequence[str]) -> Mapping[str, int]:
        return admin.partition_counts(topics)

    def bounds(topics: Sequence[str]) -> Bounds:
        target = Target.parse(until, datetime.now(UTC))
        counts = partitions(topics)
        all_of_them = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
        at_ms = round(target.to.timestamp() * 1000) if isinstance(target.to, datetime) else None
        return Bounds(_by_topic(admin.start_offsets(all_of_them)), _by_topic(target.offsets(admin, all_of_them)), at_ms)

    return Brokers(partitions, bounds, admin.names)


def _by_topic(offsets: Mapping[TopicPartition, NextOffset]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for partition, offset in sorted(offsets.items()):
        found.setdefault(partition.topic, {})[partition.partition] = offset
    return found
