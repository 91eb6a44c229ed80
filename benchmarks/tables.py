"""`python -m benchmarks tables`: rows per second of every step from a store's state to a table, and back.

All in one run, over the same rows: history as Parquet, a seed that Spark writes from it, its installation (changelog and files), then the
readers. The seed is a snapshot, and its installation fills the changelog: so the measured steps also create the data.
Each reader has to find the sums of the rows, otherwise the run fails.

    Spark: Parquet          read of the finished table
    Spark: snapshot         spark.read.format("penstock.state")
    Spark: changelog        the table from the changelog, whole; and an incremental run after one row in 100 has changed
    Python: …               one process, one thread: snapshot files and Parquet without Spark

`--write` puts the table into `docs/benchmarks.md`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow.compute as pc
import pyarrow.dataset as ds
import typer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from benchmarks.brokers import broker_for
from benchmarks.data import PARTITIONS, create_topic, write
from benchmarks.measure import ROOT, MeasurementError
from benchmarks.pages import put
from benchmarks.table_rows import CHANGED, FACTORY, STORE, TOPIC, Sums, build, changes, orders, sums, truth
from penstock.assets.spark.changelog import incremental
from penstock.assets.spark.changelog.reading import read_changelog
from penstock.assets.spark.changelog.store_log import StoreLog, store_log
from penstock.assets.spark.seeds.job import SeedError, write_seed
from penstock.assets.spark.session.session import spark_session
from penstock.assets.spark.source.state_source import StoreSnapshot, find_store
from penstock.assets.spark.types.formats import Decoder
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.orchestration.drawing.console import stdout_console
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.seeds.install import install_seed
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.reading import store_files
from penstock.runtime.stores.rocks_files import read_files
from penstock.runtime.stores.rows import read_store

PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
PARQUET, SNAPSHOT, CHANGELOG = "Spark: Parquet", "Spark: snapshot (`penstock.state`)", "Spark: changelog, whole"
WHOLE, INCREMENT = "changelog table: first run", f"changelog table: a run after 1 row in {CHANGED} changed"
WRITTEN, INSTALLED = "seed: Spark writes it, from Parquet", "seed: installed, changelog and files"
SCAN, DECODED, BY_ROW, ARROW = (
    "Python: RocksDB scan, nothing decoded",
    "Python: rows as Arrow",
    "Python: a JSON object per row",
    "Python: Parquet",
)
ORDER = (PARQUET, SNAPSHOT, CHANGELOG, WHOLE, INCREMENT, WRITTEN, INSTALLED, SCAN, DECODED, BY_ROW, ARROW)

Results = dict[str, list[float]]
"""Seconds of each repeat, by step."""


def main(
    rows: Annotated[int, typer.Option(min=1_000, help="Rows of the store.")] = 10_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="How often each reader reads; the table shows medians.")] = 3,
    bootstrap: Annotated[str | None, typer.Option(help="A broker to use in place of one started for this.")] = None,
    memory: Annotated[str | None, typer.Option(help="Spark's memory; default: a quarter of the machine's, from 1g to 4g.")] = None,
    write: Annotated[bool, typer.Option("--write", help=f"Put the table into {PAGE.name}.")] = False,
) -> None:
    """Measure tables of state over one store. Exit status 1 if a reader finds other sums."""
    console = stdout_console()
    results: Results = {}
    try:
        with broker_for(bootstrap, console) as servers, tempfile.TemporaryDirectory(prefix="penstock-bench-tables-") as folder:
            console.print("starting Spark")
            spark = spark_session(SparkSettings(driver_memory=memory))
            try:
                _Run(console, results, spark, servers, Path(folder), rows).all(repeats)
            finally:
                spark.stop()
    except (MeasurementError, SeedError, StreamsError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(1) from error
    text = table(results, rows, repeats)
    console.print(text, soft_wrap=True)
    if write:
        put(PAGE, BEGIN, text, END)
        console.print(f"written: {PAGE}")


class _Run:
    def __init__(self, console: Console, results: Results, spark: SparkSession, servers: str, folder: Path, rows: int) -> None:
        self._console, self._results, self._spark, self._folder, self._rows = console, results, spark, folder, rows
        self._application = f"bench-tables-{uuid.uuid4().hex[:8]}"
        self._config = {"bootstrap.servers": servers, "state.dir": str(folder / "state")}
        self._servers = servers
        self._truth = truth(rows)

    def all(self, repeats: int) -> None:
        """Run the steps that create the data once; then the readers, in turn."""
        parquet = str(self._folder / "history")
        self._prepared("writing the history as Parquet", lambda: orders(self._spark, self._rows).write.parquet(parquet))
        self._prepared("making the topic", self._make_topic)
        history = self._spark.read.parquet(parquet)
        seed = self._seeded(history)
        parts = find_store(seed, STORE)
        log = store_log(self._application, FACTORY, STORE, self._config)
        source = self._spark.read.format("penstock.state").option("store", STORE)
        for _ in range(repeats):
            self._timed(PARQUET, lambda: sums(history))
            self._timed(SNAPSHOT, lambda: sums(source.load(seed)))
            self._timed(CHANGELOG, lambda: self._changelog(log))
            self._timed(SCAN, lambda: self._scanned(parts))
            self._timed(DECODED, lambda: self._decoded(parts))
            self._timed(BY_ROW, lambda: self._by_row(parts))
            self._timed(ARROW, lambda: self._arrow(parquet))
        first, second = self._folder / "versions" / "1", self._folder / "versions" / "2"
        self._timed(WHOLE, lambda: self._version(log, None, first))
        changed = changes(self._rows)
        topic = f"{self._application}-{STORE}-changelog"
        self._prepared("changing rows", lambda: write(self._servers, topic, changed, len(changed), lambda done: None))
        self._timed(INCREMENT, lambda: self._version(log, first, second))

    def _prepared(self, what: str, work: Callable[[], object]) -> None:
        self._console.print(what)
        work()

    def _timed(self, name: str, work: Callable[[], Sums]) -> None:
        with self._console.status(name):
            begin = time.monotonic()
            found = work()
            seconds = time.monotonic() - begin
        if found != self._truth:
            raise MeasurementError(f"{name}: found {found}, but there are {self._truth}")
        self._results.setdefault(name, []).append(seconds)
        self._console.print(f"{name}: {seconds:.1f} s, {self._rows / seconds:,.0f} rows/s")

    # --- creation of the data -----------------------------------------------------------------------------------------------

    def _make_topic(self) -> None:
        if TOPIC not in AdminClient({"bootstrap.servers": self._servers, "log_level": 3}).list_topics(timeout=30).topics:
            create_topic(self._servers, TOPIC)

    def _seeded(self, history: DataFrame) -> str:
        """Write and install the seed; return its location."""
        place = ""

        def write() -> Sums:
            nonlocal place
            result = write_seed(
                {STORE: history},
                application=self._application,
                factory=FACTORY,
                config=self._config,
                root=str(self._folder / "seeds"),
                offsets={TOPIC: dict.fromkeys(range(PARTITIONS), 0)},
                report=lambda text: None,
            )
            place = result.place
            return Sums(result.stores[0].rows, self._truth.orders)

        def install() -> Sums:
            config = StreamsConfig({**self._config, "application.id": self._application})
            installed = install_seed(build().resolved(config), config, place)
            return Sums(installed.records, self._truth.orders)

        self._timed(WRITTEN, write)
        self._timed(INSTALLED, install)
        return place

    # --- Spark --------------------------------------------------------------------------------------------------------------

    def _changelog(self, log: StoreLog) -> Sums:
        found = read_changelog(self._spark, log, self._config)
        try:
            return sums(found.rows)
        finally:
            found.close()

    def _version(self, log: StoreLog, previous: Path | None, version: Path) -> Sums:
        """Write a version of a changelog table as Parquet."""
        with incremental.run(self._spark, log, self._config, previous, version) as made:
            if (made.kind == "merged") != (previous is not None):
                raise MeasurementError(f"the run was to be an increment, or not: {made.reason}")
            made.rows.write.parquet(str(version))
            made.save(version)
        return sums(self._spark.read.parquet(str(version)))

    # --- plain Python -------------------------------------------------------------------------------------------------------

    def _scanned(self, parts: list[StoreSnapshot]) -> Sums:
        found = 0
        for part in parts:
            with store_files(place_of(part.place), part.task, part.store) as folder:
                found += sum(len(batch) for _, batch in read_files(folder))
        return Sums(found, self._truth.orders)

    def _decoded(self, parts: list[StoreSnapshot]) -> Sums:
        rows = total = 0
        for part in parts:
            decoder = Decoder.of(part.store.layout, part.store.schemas)
            with store_files(place_of(part.place), part.task, part.store) as folder:
                for found in read_store(folder, part.store.layout):
                    batch = decoder.batch(part.partition, found)
                    rows += batch.num_rows
                    total += pc.sum(pc.struct_field(batch.column("value"), "orders")).as_py()
        return Sums(rows, total)

    def _by_row(self, parts: list[StoreSnapshot]) -> Sums:
        rows = total = 0
        decode = msgspec.json.Decoder().decode
        for part in parts:
            with store_files(place_of(part.place), part.task, part.store) as folder:
                for _, batch in read_files(folder):
                    for key, value in batch:
                        key.decode()
                        total += decode(value[8:])["orders"]
                        rows += 1
        return Sums(rows, total)

    def _arrow(self, parquet: str) -> Sums:
        rows = total = 0
        for batch in ds.dataset(parquet).to_batches():
            rows += batch.num_rows
            total += pc.sum(pc.struct_field(batch.column("value"), "orders")).as_py() or 0
        return Sums(rows, total)


def table(results: Results, rows: int, repeats: int) -> str:
    """Return the table for the page, with the rows in its order."""
    rates = {name: rows / statistics.median(results[name]) for name in ORDER if name in results}
    lines = ["| | s | thousand rows/s | of Spark from Parquet | of the plain scan |", "|---|---|---|---|---|"]
    for name, rate in rates.items():
        seconds = statistics.median(results[name])
        lines.append(f"| {name} | {seconds:.1f} | {rate / 1000:,.0f} | {rate / rates[PARQUET]:.2f} | {rate / rates[SCAN]:.2f} |")
    lines += ["", f"{rows:,} rows in {PARTITIONS} tasks on {os.cpu_count()} cores; readers: the median of {repeats}."]
    return "\n".join(lines) + "\n"
