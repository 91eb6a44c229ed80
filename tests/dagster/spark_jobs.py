"""Jobs of Spark that tests run in the child process."""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import dagster as dg
import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from assets.spark.pipes import SparkJobs
from assets.spark.seed_job import write_seed
from tests.dagster.seeded import TOPIC


class Work(msgspec.Struct, frozen=True):
    """So many tasks that each show for so long, in `folder`, that they are at work. The `table` is written when all of them are done."""

    folder: str
    tasks: int = 4
    seconds: float = 0.0
    snapshot: str | None = None
    """Its store `carriers` is read too, and written as a seed of another application."""
    topic: str | None = None
    """`<bootstrap servers> <topic>`, whose records are counted."""
    delta: bool = False
    """The store is also written as a Delta table."""


class Done(msgspec.Struct, frozen=True):
    """How many tasks there were, and from where they had the engine's code; the rows of the store, the total of their values, the rows of
    the seed and of the Delta table, the records of the topic."""

    tasks: int
    code: list[str]
    rows: int = 0
    total: int = 0
    seeded: int = 0
    delta: int = 0
    records: int = 0


def work(request: Work, session: SparkSession, report: Callable[[str], None]) -> Done:
    """Writes the table beside its place and puts it there when it is whole, as the tables of state are."""
    report("beating")
    table = Path(request.folder, "table")
    beats(session, request).write.parquet(str(table.with_name(".table")))
    table.with_name(".table").rename(table)
    written = session.read.parquet(str(table)).collect()
    done = Done(len(written), sorted({row.code for row in written}))
    if request.snapshot is None:
        return done
    report("reading the store")
    state = session.read.format("penstock.state").option("path", request.snapshot).option("store", "carriers").load()
    found = state.agg(F.count("value").alias("rows"), F.sum("value").alias("total")).collect()[0]
    seed = write_seed(
        {"totals": state.select("key", F.col("value").alias("orders"), F.col("value").alias("amount"), "timestamp")},
        application="shop",
        factory="tests.dagster.seeded:build",
        config={},
        root=str(Path(request.folder, "seeds")),
        offsets={TOPIC: {0: 0, 1: 0, 2: 0}},
        report=report,
    )
    again = session.read.format("penstock.state").option("path", seed.place).option("store", "totals").load()
    return msgspec.structs.replace(
        done,
        rows=found["rows"],
        total=found["total"],
        seeded=again.count(),
        delta=as_delta(session, state, f"{request.folder}/delta") if request.delta else 0,
        records=records(session, *request.topic.split()) if request.topic else 0,
    )


def as_delta(session: SparkSession, state: DataFrame, place: str) -> int:
    """The rows of a Delta table."""
    state.select("key", "value").write.format("delta").save(place)
    return session.read.format("delta").load(place).count()


def records(session: SparkSession, bootstrap_servers: str, topic: str) -> int:
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
    return reader.option("subscribe", topic).load().count()


def beats(session: SparkSession, request: Work) -> DataFrame:
    """A row per task."""
    function = functools.partial(beat, request.folder, request.seconds)
    return session.range(0, request.tasks, 1, request.tasks).mapInArrow(function, "id LONG, code STRING")


def beat(folder: str, seconds: float, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Runs on an executor: touches `beat-<task>` again and again."""
    import runtime

    for batch in batches:
        for task in batch.column(0).to_pylist():
            until = time.monotonic() + seconds
            while True:
                written = Path(folder, f".beat-{task}")
                written.write_text(str(os.getpid()))
                written.replace(written.with_name(f"beat-{task}"))  # whole for whoever reads it
                if time.monotonic() >= until:
                    break
                time.sleep(0.05)
            yield pa.RecordBatch.from_pylist([{"id": task, "code": str(runtime.__file__)}], BEAT)


BEAT = pa.schema([("id", pa.int64()), ("code", pa.string())])


def fail(request: Work, session: SparkSession, report: Callable[[str], None]) -> Done:
    """Fails on an executor, as bytes that do not fit fail."""
    session.range(1).mapInArrow(refuse, "id LONG").collect()
    raise AssertionError("not reached")


def refuse(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            raise ValueError("b'\\x01' is not a number of 8 bytes")
        yield batch


JOBS = {job.__name__: job for job in (work, fail)}


def run(name: str, request: Work, instance: dg.DagsterInstance) -> tuple[dg.ExecuteInProcessResult, list[Done]]:
    """Runs a job as an asset does; its result, where there is one, in a list."""
    results: list[Done] = []

    @dg.asset
    def table(context: dg.AssetExecutionContext, spark: SparkJobs) -> dg.MaterializeResult[None]:
        results.append(spark.run(context, JOBS[name], request, delta=request.delta))
        return dg.MaterializeResult()

    return dg.materialize([table], instance=instance, resources={"spark": SparkJobs()}, raise_on_error=False), results


def main() -> None:
    """A run of Dagster in a process of its own, of the job and the request that the command line names."""
    with dg.DagsterInstance.get() as own:
        run(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Work), own)
