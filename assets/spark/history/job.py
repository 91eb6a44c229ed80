"""Spark's part of a history run: the rows of a stage go to the executors that run its tasks, which write what comes of them.

An executor's task is a task of the sub-topology. It writes files to places that all machines reach, under names with its attempt, and
returns a report. So attempts that failed, or lost against a copy, leave files that no report names; the driver removes them.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.assets.spark.history.beginning import Parts, fetched_start
from penstock.assets.spark.history.errors import HistoryError, spark_errors
from penstock.assets.spark.history.inputs import Input, never_null
from penstock.assets.spark.history.plan import HistoryPlan, StagePlan, history_topology
from penstock.assets.spark.history.records import (
    BEGIN,
    ORDER,
    REJECTED,
    REPARTITIONED,
    ROWS,
    CircleInput,
    ParquetPart,
    PartitionInput,
    TaskInput,
    TopicWriter,
    header_array,
    raw_columns,
    runs_by,
)
from penstock.assets.spark.history.working_folder import working_folder
from penstock.assets.spark.seeds.files import REPORTS
from penstock.assets.spark.seeds.partitioner import slots
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.input.columns import RawColumns
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import Headers
from penstock.runtime.snapshots.export_process import export
from penstock.runtime.snapshots.manifest import TaskManifest, read_manifest
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import Place
from penstock.runtime.stage.local_application import LocalApplication
from penstock.runtime.stage.stage import Stage
from penstock.runtime.tasks.incidents import PausePoint
from penstock.runtime.topology.internal_topics import task_count
from penstock.runtime.topology.topology import Topology

_BATCH_ROWS = 10_000
_PIECE = 8 * 1024 * 1024


class FileReport(msgspec.Struct, frozen=True):
    """A written file. `name` is relative to the folder of its topic."""

    topic: str
    name: str
    rows: int
    bytes: int


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a task. `part` is the folder of its share of the seed, relative to the seed; `files` are its outputs."""

    task: str
    part: str
    manifest: TaskManifest
    records: int
    dropped: int
    rejected: int
    files: list[FileReport]
    rejected_file: FileReport | None
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Places:
    """URIs of a run: of its seed, of outputs and rejected records (None: not kept, or not allowed), of rows for later stages."""

    seed: str
    rows: str
    outputs: str | None
    rejected: str | None


@dataclass(frozen=True, slots=True)
class StageJob:
    """Parameters of a task on an executor. `inputs`: all topics of the run; `next_offsets`: where the stream goes on; `global_files`: the
    files of each global topic; `run`: token of the driver, unique. `begin`: the state with which tasks begin. `all_stores`: also those that
    a source topic restores are kept."""

    plan: HistoryPlan
    stage: StagePlan
    places: Places
    seed: str
    at_ms: int
    run: str
    next_offsets: Mapping[str, Mapping[int, int]]
    global_files: Mapping[str, tuple[str, ...]]
    begin: Parts = field(default_factory=dict)
    all_stores: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*self.plan.inputs, *self.plan.global_inputs)


def run_stage(spark: SparkSession, job: StageJob, inputs: Mapping[str, Input], earlier: Sequence[TaskReport]) -> list[TaskReport]:
    """Run all tasks of a stage and return their reports, ordered by partition. Raises HistoryError."""
    stage = job.stage

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for report in run_circle(job, batches) if stage.circle else [run_task(job, batches)]:
            yield _reported(msgspec.json.encode(report))

    def run_in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = iter(batches)
        if (first := next((batch for batch in rows if batch.num_rows), None)) is not None:
            yield _reported(msgspec.json.encode(run_task(job, chain([first], rows), in_order=True)))

    def reports_of(rows: DataFrame, made_by: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> list[TaskReport]:
        reports = _collected(stage.label, rows.mapInArrow(made_by, from_arrow_schema(REPORTS)))
        return [msgspec.json.decode(report, type=TaskReport) for report in reports]

    only = inputs.get(stage.topics[0]) if len(stage.topics) == 1 and not stage.circle else None
    if only is not None and only.in_order:
        found = reports_of(only.rows, run_in_order)
        seen = Counter(report.task for report in found)
        if twice := [task for task, times in seen.items() if times > 1]:
            raise HistoryError(f"Spark has read a partition of topic {only.topic} in several parts: task {', '.join(sorted(twice))}")
        if without := [number for number in range(stage.tasks) if str(TaskId(stage.sub_topology, number)) not in seen]:
            found += reports_of(_begins(spark, without), run)
    else:
        found = reports_of(_sorted_rows(spark, job, inputs, earlier), run)
    return sorted(found, key=lambda report: TaskId.parse(report.task))


def write_global_rows(spark: SparkSession, topic: str, given: Input, folder: str, run: str) -> tuple[str, ...]:
    """Write the rows of a global topic as files in order, for every task to read. Return their URIs."""
    order = ["partition", "offset"] if given.ordered else ["partition", "timestamp", "key", "value"]

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with working_folder() as local:
            part: ParquetPart | None = None
            for batch in batches:
                part = part or ParquetPart(local / "rows.parquet", batch.schema)
                part.write(batch.columns)
            if part is not None:
                name = f"{_attempt(run)}.parquet"
                place = place_of(folder) / name
                part.finish(place)
                yield _reported(msgspec.json.encode(place.uri))

    rows = given.rows.repartition("partition").sortWithinPartitions(*order)
    reports = _collected(f"global topic {topic}", rows.mapInArrow(write, from_arrow_schema(REPORTS)))
    return tuple(sorted(msgspec.json.decode(report, type=str) for report in reports))


def _collected(what: str, reports: DataFrame) -> list[bytes]:
    with spark_errors(what):
        return [bytes(row.report) for row in reports.collect()]


def _reported(report: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([report])], schema=REPORTS)


def _attempt(run: str) -> str:
    context = TaskContext.get()
    return f"{run}-{context.taskAttemptId() if context is not None else 0}"


# --- rows of a stage -----------------------------------------------------------------------------------------------------------------


def _sorted_rows(spark: SparkSession, job: StageJob, inputs: Mapping[str, Input], earlier: Sequence[TaskReport]) -> DataFrame:
    """Return the rows of all tasks, those of each in a Spark partition of their own, in order."""
    stage = job.stage
    rows = _begins(spark, range(stage.spark_tasks))
    for place, topic in enumerate(stage.topics):
        if topic in stage.repartitions:
            folder = place_of(job.places.rows) / topic
            files = [(folder / file.name).uri for report in earlier for file in report.files if file.topic == topic]
            rows = rows.unionByName(_read_repartitioned(spark, files, place))
        else:
            rows = rows.unionByName(_of_input(inputs[topic], place))
    numbers = F.array(*[F.lit(slot) for slot in slots(stage.spark_tasks)])
    task = F.lit(0) if stage.circle else F.col("partition")
    rows = rows.withColumns({"slot": F.element_at(numbers, task + 1), "headers": never_null(F.col("headers"))}).select(*ROWS.names)
    timed = any(topic in inputs and not inputs[topic].ordered for topic in stage.topics)
    order = ["partition", "place", *ORDER, *(["key", "value"] if timed else [])]
    return rows.repartition(stage.spark_tasks, "slot").sortWithinPartitions(*order).drop("slot", *ORDER)


def _begins(spark: SparkSession, tasks: Sequence[int]) -> DataFrame:
    """Return the row that begins each of these tasks, in a Spark partition of its own."""
    none = [F.lit(None).cast(from_arrow_schema(ROWS)[name].dataType).alias(name) for name in ROWS.names[3:]]
    partition = F.element_at(F.array(*[F.lit(number) for number in tasks]), F.col("id").cast("int") + 1)
    rows = spark.range(0, len(tasks), 1, len(tasks))
    return rows.select(F.lit(0).alias("slot"), partition.alias("partition"), F.lit(BEGIN).alias("place"), *none)


def _of_input(given: Input, place: int) -> DataFrame:
    first = F.col("offset") if given.ordered else F.col("timestamp")
    return given.rows.select(
        F.lit(0).alias("slot"),
        "partition",
        F.lit(place).alias("place"),
        first.alias("o1"),
        F.lit(0).cast("long").alias("o2"),
        F.lit(0).cast("long").alias("o3"),
        *ROWS.names[6:],
    )


def _read_repartitioned(spark: SparkSession, files: Sequence[str], place: int) -> DataFrame:
    """Return rows that an earlier stage has written. The executors read the files, at any URI that they could write."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for uri in batch.column("uri").to_pylist():
                yield from repartitioned_rows(uri, place)

    uris = spark.createDataFrame([(uri,) for uri in files], "uri string").repartition(max(1, len(files)))
    return uris.mapInArrow(read, from_arrow_schema(ROWS))


def repartitioned_rows(uri: str, place: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that an earlier stage has written, as rows of a stage."""
    for rows in read_file(place_of(uri)):
        count = rows.num_rows
        columns = {name: rows.column(name) for name in REPARTITIONED.names}
        columns |= {name: pa.array(np.full(count, value, np.int32)) for name, value in (("slot", 0), ("place", place))}
        columns["offset"] = pa.nulls(count, pa.int64())
        yield pa.RecordBatch.from_arrays([columns[name] for name in ROWS.names], schema=ROWS)


def read_file(place: Place) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file at any place, some thousand at a time."""
    if place.local is not None:
        with pq.ParquetFile(place.local) as file:
            yield from file.iter_batches(_BATCH_ROWS)
        return
    with tempfile.TemporaryFile() as local:  # it has no name, so nothing is left of it if the process is killed
        for piece in place.reading(_PIECE):
            local.write(piece)
        local.seek(0)
        with pq.ParquetFile(local) as file:
            yield from file.iter_batches(_BATCH_ROWS)


# --- a task, on an executor ----------------------------------------------------------------------------------------------------------


def run_task(job: StageJob, batches: Iterable[pa.RecordBatch], *, in_order: bool = False) -> TaskReport:
    """Run a task over its rows; `in_order`: they are those of its only topic, as Spark has read them. Raises HistoryError for records that
    do not fit or are rejected, and the engine's errors."""
    began, cpu_began = time.monotonic(), time.process_time()
    with working_folder() as local:
        given = PartitionInput(job.stage.topics[0], batches) if in_order else TaskInput(job.stage.topics, batches, local)
        task, attempt = TaskId(job.stage.sub_topology, given.partition), _attempt(job.run)
        outputs = _TaskOutputs(job, task, local)
        rejected = _Rejected(job.places.rejected, local)
        topology = _topology(job)
        [part] = [part for part in topology.sub_topologies() if part.id == task.subtopology]
        stage = Stage(
            StreamsConfig(job.plan.application.config),
            topology,
            part,
            task.partition,
            local / "state",
            partitions=job.plan.partitions,
            outputs=outputs,
            rejected=rejected.add,
        )
        begins: Mapping[TopicPartition, NextOffset] = {}
        try:
            if str(task) in job.begin:
                start = fetched_start(job.begin[str(task)], part, local / "state", local / "kept")
                stage.begin(start)
                begins = start.offsets
            for topic in sorted(stage.global_topics):
                for partition, run in _global_runs(topic, job.global_files[topic]):
                    stage.fill_globals(partition, run)
            stage.run(given.sources(begins))
            next_offsets = _next_offsets(job, task, job.stage.topics)
            snapshot = stage.write_snapshot(local / "snapshots", job.seed, job.at_ms, next_offsets, all_stores=job.all_stores)
            dropped = stage.dropped()  # a closed task has no metrics
            stage.close(clean=True)
        except BaseException:
            stage.close()
            raise
        seed = place_of(job.places.seed) / attempt
        export(snapshot.parent, seed, [snapshot.name], lambda done, total: None)
        return TaskReport(
            task=str(task),
            part=f"{attempt}/{snapshot.name}",
            manifest=read_manifest(snapshot),
            records=stage.records,
            dropped=dropped,
            rejected=rejected.rows,
            files=outputs.finish(attempt),
            rejected_file=rejected.finish(f"{task}.{attempt}.parquet"),
            seconds=time.monotonic() - began,
            cpu_seconds=time.process_time() - cpu_began,
        )


def run_circle(job: StageJob, batches: Iterable[pa.RecordBatch]) -> list[TaskReport]:
    """Run all tasks of a circle over their rows, in turns. Raises like `run_task`."""
    began, cpu_began = time.monotonic(), time.process_time()
    with working_folder() as local:
        given, attempt = CircleInput(job.stage.topics, batches, local), _attempt(job.run)
        topology = _topology(job)
        parts = {part.id: part for part in topology.sub_topologies() if part.id in job.stage.sub_topologies}
        wanted = [TaskId(part.id, number) for part in parts.values() for number in range(task_count(part, job.plan.partitions))]
        outputs = {task: _TaskOutputs(job, task, local / str(task)) for task in wanted}
        rejected = {task: _Rejected(job.places.rejected, local / str(task)) for task in wanted}
        application = LocalApplication(
            StreamsConfig(job.plan.application.config),
            topology,
            local / "state",
            partitions=job.plan.partitions,
            outputs=lambda *output: outputs[application.writer].send(*output),
            rejected=lambda task, point: rejected[task].add(point),
            tasks=wanted,
            one_by_one=True,
        )
        begins: dict[TopicPartition, NextOffset] = {}
        try:
            for task in wanted:
                if str(task) in job.begin:
                    start = fetched_start(job.begin[str(task)], parts[task.subtopology], local / "state", local / "kept")
                    application.begin(task, start)
                    begins |= start.offsets
            for topic in job.stage.global_topics:
                for partition, run in _global_runs(topic, job.global_files[topic]):
                    application.fill_globals(partition, run)
            application.run(given.sources(begins))
            snapshots = application.write_seed(
                local / "snapshots",
                job.seed,
                job.at_ms,
                lambda task: _next_offsets(job, task, parts[task.subtopology].source_topics),
                all_stores=job.all_stores,
            )
            dropped = application.dropped()  # closed tasks have no metrics
            application.close(clean=True)
        except BaseException:
            application.close()
            raise
        seed = place_of(job.places.seed) / attempt
        for snapshot in snapshots.values():
            export(snapshot.parent, seed, [snapshot.name], lambda done, total: None)
        seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
        records = {task.id: task.committed_records for task in application.tasks}
        return [
            TaskReport(
                task=str(task),
                part=f"{attempt}/{snapshots[task].name}",
                manifest=read_manifest(snapshots[task]),
                records=records[task],
                dropped=dropped if task == wanted[0] else 0,
                rejected=rejected[task].rows,
                files=outputs[task].finish(attempt),
                rejected_file=rejected[task].finish(f"{task}.{attempt}.parquet"),
                seconds=seconds,
                cpu_seconds=cpu_seconds / len(wanted),
            )
            for task in wanted
        ]


def _topology(job: StageJob) -> Topology:
    """Return the topology, which must be that of the driver."""
    topology = history_topology(job.plan.application, job.inputs)
    if topology.hash() != job.plan.topology_hash:
        raise HistoryError(
            f"{job.plan.application.factory} makes another topology on the executors than here: another version of the program, "
            "or another environment"
        )
    return topology


def _next_offsets(job: StageJob, task: TaskId, topics: Iterable[str]) -> dict[TopicPartition, NextOffset]:
    return {
        TopicPartition(topic, task.partition): NextOffset(job.next_offsets[topic][task.partition])
        for topic in topics
        if topic not in job.plan.repartitions and task.partition in job.next_offsets[topic]
    }


def _global_runs(topic: str, files: Sequence[str]) -> Iterator[tuple[TopicPartition, RawColumns]]:
    last: dict[int, int] = {}
    for uri in files:
        for batch in read_file(place_of(uri)):
            for number, rows in runs_by(batch, "partition"):
                run = raw_columns(topic, rows, number, last.get(number))
                last[number] = run.offsets[-1]
                yield TopicPartition(topic, number), run


class _TaskOutputs:
    """Outputs of a task, a file per topic (`OutputLog`)."""

    keeps_changelogs = False

    def __init__(self, job: StageJob, task: TaskId, local: Path) -> None:
        self._job = job
        self._task = task
        self._local = local
        self._writers: dict[str, TopicWriter | None] = {}

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None, partition: int | None
    ) -> None:
        """Append an output."""
        writer = self._writers[topic] if topic in self._writers else self._begin(topic)
        if writer is not None:
            writer.add(key, value, timestamp, headers, partition)

    def _begin(self, topic: str) -> TopicWriter | None:
        if topic in self._job.inputs:
            raise HistoryError(
                f"task {self._task} writes to topic {topic}, which the topology reads: its records would count in the history and in the "
                "stream. Topics between two parts of a topology must be internal: repartition()"
            )
        repartitions = topic in self._job.plan.repartitions
        writer: TopicWriter | None = None
        if repartitions or self._job.places.outputs is not None:
            local = self._local / f"output-{len(self._writers)}.parquet"
            count = self._job.plan.partitions.get(topic)
            writer = TopicWriter(local, topic, str(self._task), self._task.partition, count, repartitions=repartitions)
        self._writers[topic] = writer
        return writer

    def end(self, topic: str) -> int:
        """Changelogs are not kept."""
        raise NotImplementedError(topic)

    def finish(self, attempt: str) -> list[FileReport]:
        """Move all files to their places."""
        found = []
        for topic, writer in sorted(self._writers.items()):
            if writer is not None:
                writer.flush()
                folder = self._job.places.rows if topic in self._job.plan.repartitions else self._job.places.outputs
                assert folder is not None  # otherwise there is no writer
                name = f"{self._task}.{attempt}.parquet"
                size = writer.part.finish(place_of(folder) / topic / name)
                found.append(FileReport(topic, name, writer.part.rows, size))
        return found


class _Rejected:
    """Records for which a handler returned PAUSE: a table of them, or the end of the run."""

    def __init__(self, folder: str | None, local: Path) -> None:
        self._folder = folder
        self._part = ParquetPart(local / "rejected.parquet", REJECTED)

    @property
    def rows(self) -> int:
        return self._part.rows

    def add(self, point: PausePoint) -> None:
        """Keep a record. Raises HistoryError if none may be rejected."""
        if self._folder is None:
            raise HistoryError(
                f"record {point.partition}@{point.offset} pauses its task ({point.reason}): {point.error_type}: {point.error}. "
                "--rejected URI keeps such records in a table and goes on"
            )
        values = (point.partition.topic, point.partition.partition, point.offset, point.timestamp_ms, point.key, point.value)
        columns = [pa.array([value], field.type) for value, field in zip(values, REJECTED, strict=False)]
        columns.append(header_array([point.headers], 1))
        columns += [pa.array([text], pa.string()) for text in (point.reason, point.error_type, point.error)]
        self._part.write(columns)

    def finish(self, name: str) -> FileReport | None:
        """Move the table to its place."""
        if self._folder is None or not self._part.rows:
            return None
        return FileReport("", name, self._part.rows, self._part.finish(place_of(self._folder) / name))
