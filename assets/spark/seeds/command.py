"""The command that writes seeds (`python -m penstock.assets.spark.seeds --help`), and the offsets at which a stream continues.

    python -m penstock.assets.spark.seeds --application flight-board --root /lake/seeds/flight-board \\
        --store carriers=/lake/carriers --store hourly-delay=/lake/hourly --as-of 2026-01-01T00:00:00Z

Reads a table per store, writes the seed, and prints the command that starts the application with it. Rows that are not in a table yet
take a few lines of Spark and `write_seed` (`assets/spark/seeds/job.py`; docs/seeding.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from pyspark.sql import DataFrame, SparkSession

from penstock.assets.spark.seeds.job import SeedError, SeedResult, write_seed
from penstock.assets.spark.seeds.plan import SeedApplication, source_topics
from penstock.assets.spark.session.explained import SPARK_ERRORS
from penstock.assets.spark.session.explained import explained as of_spark
from penstock.assets.spark.session.interrupts import Interrupts
from penstock.assets.spark.session.progress import follow
from penstock.assets.spark.session.session import spark_session
from penstock.orchestration.commands.common import err, explained, fail, out, warn
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.spark_settings import WrongSparkError
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import MissingSourceTopicError
from penstock.runtime.model.ids import NextOffset, TopicPartition

__all__ = ["SeedError", "SeedResult", "offsets_as_of", "offsets_at_end", "write_seed"]

Offsets = dict[str, dict[int, int]]
"""Next offsets by source topic and partition."""


def offsets_at_end(application: str, factory: str, config: Mapping[str, object]) -> Offsets:
    """Return the end offsets of the application's source topics, for rows that contain everything up to now. Raises
    MissingSourceTopicError, BrokerUnavailableError, TopologyError."""
    return _asked(application, factory, config, TopicAdmin.end_offsets)


def offsets_as_of(application: str, factory: str, config: Mapping[str, object], at: datetime | int) -> Offsets:
    """Return the first offsets of the application's source topics whose records have a timestamp of `at` (ms since the epoch, or a datetime
    with its time zone) or later. Later records may have older timestamps: choose a time before which the history is known to be complete.
    Raises like `offsets_at_end`."""
    at_ms = int(at.timestamp() * 1000) if isinstance(at, datetime) else at
    return _asked(application, factory, config, lambda admin, partitions: admin.offsets_for_times(partitions, at_ms))


def _asked(
    application: str,
    factory: str,
    config: Mapping[str, object],
    ask: Callable[[TopicAdmin, Iterable[TopicPartition]], Mapping[TopicPartition, NextOffset]],
) -> Offsets:
    settings = StreamsConfig({**config, "application.id": application})
    admin = TopicAdmin(settings)
    topology = SeedApplication.of(application, factory, config).topology()
    if topology.patterns:
        topology = topology.matched(admin.names())
    topics = sorted(source_topics(topology))
    found = admin.partition_counts(topics)
    if missing := [topic for topic in topics if topic not in found]:
        raise MissingSourceTopicError(
            f"source topic {missing[0]} does not exist on {settings['bootstrap.servers']}: where would the stream continue?"
        )
    offsets: Offsets = {topic: {} for topic in topics}
    partitions = [TopicPartition(topic, number) for topic in topics for number in range(found[topic])]
    for partition, offset in ask(admin, partitions).items():
        offsets[partition.topic][partition.partition] = offset
    return offsets


# --- the command ---------------------------------------------------------------------------------------------------------------------


def _moment(text: str) -> datetime:
    """Parse an ISO date or time; UTC unless it has an offset."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a moment like 2026-01-31T12:00:00Z") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def main(
    application: Annotated[str, typer.Option("--application", "-a", help="The application.id, as streams.toml declares it.")],
    root: Annotated[str, typer.Option(help="Place of the seeds: a folder that all executors share, or a URI (s3://…).")],
    store: Annotated[list[str], typer.Option(help="A store and the path or URI of its table, NAME=PATH. May be given several times.")],
    table_format: Annotated[str, typer.Option("--format", help="Format of the tables: parquet, delta, json, …")] = "parquet",
    as_of: Annotated[datetime | None, typer.Option(parser=_moment, help="The stream continues with the records of this time.")] = None,
    ends: Annotated[bool, typer.Option("--ends", help="The stream continues at the current ends of the topics.")] = False,
    offsets: Annotated[Path | None, typer.Option(help='A file with the next offsets: {"topic": {"0": 42}}.')] = None,
    stream_time: Annotated[
        datetime | None, typer.Option(parser=_moment, help="Stream time of the seed. Default: that of the rows.")
    ] = None,
) -> None:
    """Write a seed of an application from a table per store. Exit status 1 if rows do not fit, or something is not there."""
    if sum((as_of is not None, ends, offsets is not None)) != 1:
        raise typer.BadParameter("say where the stream continues: one of --as-of, --ends and --offsets")
    tables = dict(_named(each) for each in store)
    with explained():
        declared = Applications.of(ProjectPaths.find())
        found = declared.named(application)
        if offsets is not None:
            start = _read_offsets(offsets)
        elif as_of is not None:
            start = offsets_as_of(application, found.factory, found.client_config(), as_of)
        else:
            start = offsets_at_end(application, found.factory, found.client_config())
        try:
            with Interrupts(lambda: warn("stopped: no seed was written; the same command begins again")) as interrupts:
                spark = spark_session(declared.spark)
                interrupts.watch(spark, declared.spark)
                with closing(follow(spark, declared.spark, err.print)) as progress:
                    result = write_seed(
                        {name: _table(spark, table_format, path) for name, path in tables.items()},
                        application=application,
                        factory=found.factory,
                        config=found.client_config(),
                        root=root,
                        offsets=start,
                        stream_time=stream_time,
                        report=progress.begin,
                    )
        except (SeedError, WrongSparkError) as error:
            fail(str(error))
        except SPARK_ERRORS as error:
            fail(of_spark(error, declared.spark))
    _print(result)


def _named(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise typer.BadParameter(f"--store {text}: expected NAME=PATH, for example carriers=/lake/carriers")
    return name, path


def _table(spark: SparkSession, table_format: str, path: str) -> DataFrame:
    return spark.read.format(table_format).load(path)


def _read_offsets(path: Path) -> Offsets:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[int, int]])
    except (OSError, msgspec.DecodeError) as error:
        raise typer.BadParameter(f'--offsets {path}: {error}. Expected is {{"topic": {{"0": 42, "1": 17}}}}') from error


def _print(result: SeedResult) -> None:
    for store in result.stores:
        beside = [f"{store.nulls:,} without a value" if store.nulls else "", f"{store.expired:,} expired" if store.expired else ""]
        left = ", ".join(text for text in beside if text)
        out.print(f"{store.name}: {store.rows:,} rows" + (f" ({left}: not in the seed)" if left else ""))
    if result.left_empty:
        out.print(f"begin empty: {', '.join(result.left_empty)}")
    out.print(f"seed of {result.tasks} tasks, {result.bytes / 1e6:,.1f} MB: {result.place}")
