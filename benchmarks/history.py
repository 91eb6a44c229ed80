"""`python -m benchmarks history`: a count per key as a history run on Spark, beside the stream's engine and the same in Spark SQL.

All in one run, over the same records of one topic, on one core each (`local[1]`; the stream has one processing thread, and its client's
threads run beside it). Each count has to be right, otherwise the run fails.

    stream          KafkaStreams from the first record to the last commit; records per second of time and of CPU time
    history         from the topic, and from a Parquet table with offsets, whose rows Spark sorts: a stage's task on Spark (decoding,
                    processing, stores, the part of the seed); then the whole command, with the reading and sorting by Spark and the
                    seed (its CPU time is that of the JVM, the Python worker and the driver)
    Spark SQL       SELECT key, count(*) … GROUP BY key from the same topic, written as Parquet

Memory is the most that was seen of the Python worker that runs the tasks, of the JVM, and of this process, the driver's Python.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import psutil
import pyarrow.dataset as ds
import typer
from pyspark.sql import SparkSession
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.brokers import broker_for
from benchmarks.data import PARTITIONS, create_topic, records, write
from benchmarks.measure import MeasurementError
from penstock.assets.spark.history.command import brokers_of
from penstock.assets.spark.history.run import HistoryRequest, run_history
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.assets.spark.session.session import spark_session
from penstock.orchestration.declarations.backfills import KAFKA, BackfillInput
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.embedded.kafka import BrokerError
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.metrics import TASK
from penstock.runtime.topology.topology import Topology
from penstock.serdes import LONG, STRING

TOPIC_VARIABLE = "PENSTOCK_BENCH_HISTORY"
"""Environment variable with the topic, for the executors."""
TABLE_FILES = 8
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 600.0
_MEGABYTE = 1024 * 1024


def counts() -> Topology:
    """Return a count per key."""
    builder = StreamsBuilder()
    grouped = builder.stream(os.environ[TOPIC_VARIABLE], Consumed(STRING, value=STRING)).group_by_key(Grouped(STRING, value=STRING))
    grouped.count(Materialized("counts", key=STRING, value=LONG))
    return builder.build()


class Usage:
    """CPU seconds of this process and all that it has started, and the most memory, in MB, of the tasks' Python worker, of the JVM, and of
    this process."""

    def __init__(self) -> None:
        self.worker = self.jvm = self.driver = 0.0
        self._cpu: dict[psutil.Process, float] = {}
        self.sample()
        self._before = sum(self._cpu.values())

    @property
    def cpu_seconds(self) -> float:
        self.sample()
        return sum(self._cpu.values()) - self._before

    def sample(self) -> None:
        """Look once. What a process has used until it ended is kept: its parent does not count it before it has waited for it."""
        here = psutil.Process()
        for process in (here, *here.children(recursive=True)):
            try:
                times, command, used = process.cpu_times(), " ".join(process.cmdline()), process.memory_info().rss / _MEGABYTE
            except psutil.Error:
                continue  # it has ended
            self._cpu[process] = times.user + times.system
            if process == here:
                self.driver = max(self.driver, used)
            elif "SparkSubmit" in command:
                self.jvm = max(self.jvm, used)
            elif "pyspark" in command:
                self.worker = max(self.worker, used)


@contextmanager
def _watched() -> Iterator[Usage]:
    usage, over = Usage(), threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            usage.sample()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        over.set()
        thread.join()


def main(
    count: Annotated[int, typer.Option("--records", min=1000, help="Records in the topic.")] = 1_000_000,
    stream: Annotated[bool, typer.Option(help="Measure the stream too.")] = True,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
) -> None:
    """Measure a history run on Spark against the stream's engine and Spark SQL. Exit status 1 if a count is wrong."""
    console = stdout_console()
    try:
        with broker_for(bootstrap, console) as servers, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            console.print(_measured(console, servers, count, Path(folder), with_stream=stream))
    except (BrokerError, StreamsError, MeasurementError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error


def _measured(console: Console, servers: str, count: int, folder: Path, *, with_stream: bool) -> Table:
    topic = f"bench-history-{uuid.uuid4().hex[:8]}"
    os.environ[TOPIC_VARIABLE] = topic
    create_topic(servers, topic)
    with console.status(f"writing {count:,} records"):
        keys = len(write(servers, topic, records(count), count, lambda done: None))
    table = Table(title=f"A count of {count:,} records of {keys:,} keys, {PARTITIONS} partitions, one core", box=box.SIMPLE)
    for heading in ("", "seconds", "records/s", "per CPU second", "worker MB", "JVM MB", "driver MB"):
        table.add_column(heading, justify="right" if heading else "left")
    config = {"bootstrap.servers": servers, "state.dir": str(folder / "state")}
    if with_stream:
        with console.status("the stream"):
            seconds, cpu = _stream({**config, "application.id": topic, "num.stream.threads": 1}, count)
        table.add_row("stream", f"{seconds:.1f}", f"{count / seconds:,.0f}", f"{count / cpu:,.0f}", "", "", "")
    spark = spark_session(SparkSettings(master="local[1]", driver_memory="1g"))
    try:
        for name, given in (("topic", BackfillInput(KAFKA)), ("table", BackfillInput(_table(spark, servers, topic, folder / "table")))):
            with console.status(f"history on Spark, from the {name}"), _watched() as usage:
                application = SeedApplication.of(topic, f"{__name__}:counts", config)
                request = HistoryRequest(application, {topic: given}, "latest", str(folder / f"seeds-{name}"))
                began = time.monotonic()
                result = run_history(spark, request, brokers_of(application, "latest"))
                whole, cpu = time.monotonic() - began, usage.cpu_seconds
            [stage] = result.stages
            if stage.records != count:
                raise MeasurementError(f"the history run has read {stage.records:,} of {count:,} records")
            used = f"{usage.worker:,.0f}", f"{usage.jvm:,.0f}", f"{usage.driver:,.0f}"
            table.add_row(f"history of the {name}: the tasks", "", "", f"{count / stage.cpu_seconds:,.0f}", "", "", "")
            table.add_row(f"history of the {name}: everything", f"{whole:.1f}", f"{count / whole:,.0f}", f"{count / cpu:,.0f}", *used)
        with console.status("Spark SQL"), _watched() as usage:
            seconds = _sql(spark, servers, topic, folder / "sql", keys)
            cpu = usage.cpu_seconds
        table.add_row("Spark SQL by hand", f"{seconds:.1f}", f"{count / seconds:,.0f}", f"{count / cpu:,.0f}", "", f"{usage.jvm:,.0f}", "")
    finally:
        spark.stop()
    return table


def _stream(config: dict[str, object], count: int) -> tuple[float, float]:
    """Return the seconds, of time and of CPU time, until all records are processed and committed."""
    done = 0.0
    with KafkaStreams(counts(), config) as streams:
        began, cpu_began = time.monotonic(), time.process_time()
        streams.start()
        while done < count:
            if time.monotonic() - began > _PATIENCE_SECONDS:
                raise MeasurementError(f"the stream has processed {done:,.0f} of {count:,} records in {_PATIENCE_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
            done = sum(float(value) for name, value in streams.metrics().items() if name.name == "process-total" and name.group == TASK)
        streams.close()
        return time.monotonic() - began, time.process_time() - cpu_began


def _table(spark: SparkSession, servers: str, topic: str, target: Path) -> str:
    """Write the topic's records as a Parquet table; each of its files has records of all partitions, as one of an hour has."""
    rows = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()
    rows = rows.select("partition", "offset", "timestamp", "key", "value")
    rows.repartitionByRange(TABLE_FILES, "offset").write.parquet(str(target))
    return str(target)


def _sql(spark: SparkSession, servers: str, topic: str, target: Path, keys: int) -> float:
    began = time.monotonic()
    rows = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()
    rows.groupBy("key").count().write.parquet(str(target))
    seconds = time.monotonic() - began
    if (found := ds.dataset(target).count_rows()) != keys:
        raise MeasurementError(f"Spark SQL has found {found:,} of {keys:,} keys")
    return seconds
