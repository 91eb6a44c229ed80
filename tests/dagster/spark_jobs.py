"""Spark jobs that tests run in the child process."""

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import dagster as dg
import msgspec
import pyarrow as pa
from dagster_pipes import decode_param
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.assets.spark.history.inputs import Bounds
from penstock.assets.spark.history.run import Brokers, HistoryRequest, run_history
from penstock.assets.spark.process.messages import MESSAGES
from penstock.assets.spark.process.pipes import SparkJobs
from penstock.assets.spark.seeds.job import write_seed
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.orchestration.declarations.backfills import BackfillInput
from tests.support.history import APPLICATION, CONFIG
from tests.support.seeded import TOPIC


class Work(msgspec.Struct, frozen=True):
    """A number of tasks that show activity in `folder` for some time. The `table` is written when all of them are done."""

    folder: str
    tasks: int = 4
    seconds: float = 0.0
    snapshot: str | None = None
    """A snapshot whose store `carriers` is read too, and written as a seed of another application."""
    topic: str | None = None
    """`<bootstrap servers> <topic>`, the records of which are counted."""
    delta: bool = False
    """The store is also written as a Delta table."""


class Done(msgspec.Struct, frozen=True):
    """The number of tasks, and the origin of their engine code; the rows of the store, the total of their values, the rows of
    the seed and of the Delta table, the records of the topic."""

    tasks: int
    code: list[str]
    rows: int = 0
    total: int = 0
    seeded: int = 0
    delta: int = 0
    records: int = 0


def work(request: Work, session: SparkSession, report: Callable[[str], None]) -> Done:
    """Write the table beside its location, and move it there when it is complete, like tables of state."""
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
        factory="tests.support.seeded:build",
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
    """Return the number of rows of a Delta table."""
    state.select("key", "value").write.format("delta").save(place)
    return session.read.format("delta").load(place).count()


def records(session: SparkSession, bootstrap_servers: str, topic: str) -> int:
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
    return reader.option("subscribe", topic).load().count()


def beats(session: SparkSession, request: Work) -> DataFrame:
    """Return a row per task."""
    function = functools.partial(beat, request.folder, request.seconds)
    return session.range(0, request.tasks, 1, request.tasks).mapInArrow(function, "id LONG, code STRING")


def beat(folder: str, seconds: float, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Run on an executor: touch `beat-<task>` repeatedly."""
    import penstock.runtime

    for batch in batches:
        for task in batch.column(0).to_pylist():
            until = time.monotonic() + seconds
            while True:
                written = Path(folder, f".beat-{task}")
                written.write_text(str(os.getpid()))
                written.replace(written.with_name(f"beat-{task}"))  # complete for any reader
                if time.monotonic() >= until:
                    break
                time.sleep(0.05)
            yield pa.RecordBatch.from_pylist([{"id": task, "code": str(penstock.runtime.__file__)}], BEAT)


BEAT = pa.schema([("id", pa.int64()), ("code", pa.string())])


def fail(request: Work, session: SparkSession, report: Callable[[str], None]) -> Done:
    """Fail on an executor, with the error of malformed bytes."""
    session.range(1).mapInArrow(refuse, "id LONG").collect()
    raise AssertionError("not reached")


def refuse(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            raise ValueError("b'\\x01' is not a number of 8 bytes")
        yield batch


def talk(request: Work, session: SparkSession, report: Callable[[str], None]) -> Done:
    """Write messages in pieces and incomplete ones, and kill Spark's JVM when the work is done."""
    report("before")
    found = decode_param(os.environ["DAGSTER_PIPES_MESSAGES"])
    line = json.dumps(
        {"__dagster_pipes_version": "0.1", "method": "log", "params": {"message": "in pièces", "level": "info"}}, ensure_ascii=False
    )
    data = line.encode() + b"\n"
    cut = data.index("è".encode()) + 1  # in the middle of a character
    with open(found.get("path") or Path(found["folder"], MESSAGES), "ab", buffering=0) as file:
        for piece in (data[:cut], data[cut:], b'{"method": "log", "par', b"\n"):
            file.write(piece)
            time.sleep(0.3)  # meanwhile the reader polls many times
    report("after")
    gateway = session.sparkContext._gateway
    assert gateway is not None
    gateway.proc.kill()
    return Done(1, [])


def history(request: Work, session: SparkSession, report: Callable[[str], None]) -> Done:
    """Run a foreign-key join over the tables `left` and `right`; write the result to `history.json`."""
    tables = {topic: BackfillInput(f"{request.folder}/{topic}") for topic in ("left", "right")}
    application = SeedApplication.of(APPLICATION, "tests.support.history:interrupted_foreign_keys", CONFIG)
    run = HistoryRequest(application, tables, "latest", f"{request.folder}/seeds", f"{request.folder}/outputs")
    ends = {topic: {0: 1_000_000} for topic in tables}
    brokers = Brokers(lambda topics: dict.fromkeys(tables, 1), lambda topics: Bounds({topic: {0: 0} for topic in tables}, ends))
    result = run_history(session, run, brokers, report=report)
    Path(request.folder, "history.json").write_bytes(msgspec.json.encode(result))
    return Done(len(result.stages), [])


JOBS = {job.__name__: job for job in (work, fail, talk, history)}


def run(name: str, request: Work, instance: dg.DagsterInstance) -> tuple[dg.ExecuteInProcessResult, list[Done]]:
    """Run a job like an asset; return the run's result, and the job's result, if there is one, in a list."""
    results: list[Done] = []

    @dg.asset
    def table(context: dg.AssetExecutionContext, spark: SparkJobs) -> dg.MaterializeResult[None]:
        results.append(spark.run(context, JOBS[name], request, delta=request.delta))
        return dg.MaterializeResult()

    return dg.materialize([table], instance=instance, resources={"spark": SparkJobs()}, raise_on_error=False), results


def main() -> None:
    """Run the job and the request that the command line names, as a Dagster run in a separate process."""
    with dg.DagsterInstance.get() as own:
        run(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Work), own)
