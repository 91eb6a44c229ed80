"""A history run: stages one after the other, each done once, then the seed and the tables of outputs.

    <seed>/.backfill/<fingerprint>/run.json           the id, and the offsets at which the run ends
                                   stage-<n>.json     reports of a stage that is done
                                   rows/<topic>/      rows between stages
    <seed>/<id>/<attempt>/<task>/                     a task's part of the seed
               /snapshot.json                         written last: the seed is complete
    <outputs>/<id>/<topic>/*.parquet, outputs.json    outputs, complete when `outputs.json` is there
    <rejected>/<id>/*.parquet
    <seed>/.days/<program>-<until>.json               a day's run, with whose state the next day goes on (`days.py`)

The fingerprint is that of everything that determines the result: the program, its configuration, the inputs and their files, the options.
So a run that was killed is continued by the same command: a stage whose reports are there, with all their files, is not run again. A
change of any of these begins a new run. The folder of the run is removed at its end.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.assets.spark.history.beginning import Parts, parts_of
from penstock.assets.spark.history.days import Day, Days, Offset, bounds_of, offsets_of
from penstock.assets.spark.history.errors import spark_errors
from penstock.assets.spark.history.inputs import Bounds, Input, load_table, read_input, rows_before_end
from penstock.assets.spark.history.job import Places, StageJob, TaskReport, run_stage, write_global_rows
from penstock.assets.spark.history.plan import HistoryPlan, StagePlan, history_topology, plan_history
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.assets.spark.session.session import code_digest
from penstock.orchestration.declarations.backfills import DELTA, KAFKA, BackfillInput
from penstock.runtime.model.clock import Clock, SystemClock
from penstock.runtime.snapshots.catalogue import find
from penstock.runtime.snapshots.manifest import SNAPSHOT, ApplicationManifest, encoded, new_snapshot_id
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import Place
from penstock.runtime.stores.store_format import StoreFormat
from penstock.runtime.stores.suppliers import Builder

log = logging.getLogger(__name__)

RUNS = ".backfill"
"""Folder of unfinished runs, in the folder of the seeds."""
OUTPUTS_MANIFEST = "outputs.json"


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """A run. `inputs`: by topic. `until` is the option's text, by which a killed run is found again. `outputs` None: they are not kept.
    `rejected` None: a record for which a handler returns PAUSE ends the run. `begin`: the state with which tasks begin, in place of none;
    records before its offsets are passed over. `all_stores`: the result has also the stores that a source topic restores, which a seed
    leaves out. `daily`: the run is kept for the next day; `after`: the `until` of the day before, whose state is the beginning if it is
    there."""

    application: SeedApplication
    inputs: Mapping[str, BackfillInput]
    until: str
    seed: str
    outputs: str | None = None
    rejected: str | None = None
    begin: Parts = field(default_factory=dict)
    all_stores: bool = False
    daily: bool = False
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Brokers:
    """Topics as the brokers know them. `partitions` returns the number of partitions of each of these topics that exists; `bounds`, where
    they begin and end; `names`, all topics, for sources with a pattern."""

    partitions: Callable[[list[str]], Mapping[str, int]]
    bounds: Callable[[list[str]], Bounds]
    names: Callable[[], Collection[str]] = tuple


class RunManifest(msgspec.Struct, frozen=True):
    """An unfinished run. `day`: the run with whose state it begins."""

    id: str
    at_ms: int
    offsets: list[Offset]
    until_ms: int | None
    day: Day | None = None

    def bounds(self, given: str) -> Bounds:
        """Return where the inputs begin and end. Those of tasks (`given` is the name of one) begin where the day before ended."""
        found = bounds_of(self.offsets, self.until_ms)
        return found if self.day is None else self.day.followed(found, given)


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """A stage that is done. `slowest` and `median`, the seconds of its tasks, show skew. `reused`: it was done by an earlier try."""

    sub_topology: int
    label: str
    tasks: int
    records: int
    dropped: int
    rejected: int
    outputs: dict[str, int]
    cpu_seconds: float
    slowest: float
    median: float
    reused: bool

    @classmethod
    def of(cls, stage: StagePlan, reports: list[TaskReport], *, reused: bool) -> StageResult:
        outputs: dict[str, int] = {}
        for report in reports:
            for file in report.files:
                outputs[file.topic] = outputs.get(file.topic, 0) + file.rows
        seconds = sorted(report.seconds for report in reports)
        return cls(
            sub_topology=stage.sub_topology,
            label=stage.label,
            tasks=len(reports),
            records=sum(report.records for report in reports),
            dropped=sum(report.dropped for report in reports),
            rejected=sum(report.rejected for report in reports),
            outputs=outputs,
            cpu_seconds=sum(report.cpu_seconds for report in reports),
            slowest=seconds[-1],
            median=seconds[len(seconds) // 2],
            reused=reused,
        )


class OutputsManifest(msgspec.Struct, frozen=True):
    """Outputs of a complete run: rows and files by topic."""

    id: str
    application: str
    rows: dict[str, int]
    files: dict[str, list[str]]


class HistoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """A complete run. `seed` is its folder or URI, for `penstock start --seed`; `goes_on_from`, the seed of the day before."""

    id: str
    seed: str
    outputs: str | None
    rejected: str | None
    stages: list[StageResult]
    next_offsets: dict[str, dict[int, int]]
    bytes: int
    notes: list[str]
    goes_on_from: str | None = None


class Estimate(msgspec.Struct, frozen=True):
    """A stage of a run that was not started. `rows`: of its inputs, by topic; None where an earlier stage makes them."""

    sub_topology: int
    label: str
    tasks: int
    rows: dict[str, int | None]
    stores: list[str]
    sinks: list[str]
    global_topics: list[str]


def plan_run(request: HistoryRequest, brokers: Brokers) -> HistoryPlan:
    """Return the plan of a run. Raises HistoryError with everything that the run could not do right."""
    given = tuple(request.inputs)
    topology = history_topology(request.application, given)
    named = {*given, *topology.sink_topics, *(topic for part in topology.sub_topologies() for topic in part.source_topics)}
    existing = brokers.names() if topology.patterns else ()
    return plan_history(request.application, given, brokers.partitions(sorted(named)), existing)


def estimate(spark: SparkSession, request: HistoryRequest, brokers: Brokers) -> list[Estimate]:
    """Return the stages of a run with the rows that they would read. Nothing is written."""
    plan = plan_run(request, brokers)
    bounds = brokers.bounds(sorted((*plan.inputs, *plan.global_inputs)))
    rows: dict[str, int | None] = {}
    for topic, given in request.inputs.items():
        if given.location == KAFKA:
            rows[topic] = sum(end - bounds.starts[topic][number] for number, end in bounds.ends[topic].items())
        else:
            table = load_table(spark, topic, given)
            with spark_errors(f"input of topic {topic}"):
                rows[topic] = _input(spark, request, plan, bounds, topic, table).rows.count()
    return [
        Estimate(
            sub_topology=stage.sub_topology,
            label=stage.label,
            tasks=stage.tasks,
            rows={topic: rows.get(topic) for topic in (*stage.topics, *stage.global_topics)},
            stores=list(stage.stores),
            sinks=list(stage.sinks),
            global_topics=list(stage.global_topics),
        )
        for stage in plan.stages
    ]


def run_history(
    spark: SparkSession,
    request: HistoryRequest,
    brokers: Brokers,
    *,
    report: Callable[[str], None] = log.info,
    clock: Clock | None = None,
    restart: bool = False,
) -> HistoryResult:
    """Run an application over its history and write the seed. A run of the same request that was killed is continued; `restart` begins it
    again. `report` is called with the name of each step.

    Raises HistoryError, TopologyError, StreamsConfigError, BrokerUnavailableError, StateDirectoryError. What is done so far stays for the
    next try.
    """
    plan = plan_run(request, brokers)
    run = _Run(spark, request, plan, report)
    if restart:
        run.folder.remove()
    return run.finish(run.stages(run.begin(brokers, clock or SystemClock())))


def _input(spark: SparkSession, request: HistoryRequest, plan: HistoryPlan, bounds: Bounds, topic: str, table: DataFrame | None) -> Input:
    partitions = plan.partitions[topic] if topic in plan.partitions else len(bounds.ends[topic])
    return read_input(spark, topic, request.inputs[topic], table, partitions, bounds, request.application, tuple(request.inputs))


class _Run:
    """One try of a run."""

    def __init__(self, spark: SparkSession, request: HistoryRequest, plan: HistoryPlan, report: Callable[[str], None]) -> None:
        self._spark = spark
        self._request = request
        self._plan = plan
        self._report = report
        self._token = uuid.uuid4().hex[:8]
        self._tables = {
            topic: load_table(spark, topic, given) for topic, given in sorted(request.inputs.items()) if given.location != KAFKA
        }
        self.folder = place_of(request.seed) / RUNS / _fingerprint(spark, request, plan, self._tables)
        self._days = Days(place_of(request.seed), _program(request, plan))
        self._manifest = self.folder / "run.json"

    def begin(self, brokers: Brokers, clock: Clock) -> RunManifest:
        """Continue the run that is there, or begin one."""
        if (data := self._manifest.read()) is not None:
            found = msgspec.json.decode(data, type=RunManifest)
            self._report(f"continues run {found.id}, which was not finished")
            return found
        bounds = brokers.bounds(sorted((*self._plan.inputs, *self._plan.global_inputs)))
        now_ms = clock.wall_ms()
        day = self._day_before() if self._request.after is not None else None
        return RunManifest(new_snapshot_id(now_ms), now_ms, offsets_of(bounds), bounds.until_ms, day)

    def _day_before(self) -> Day | None:
        """Return the run of the day before, if its state can be continued; otherwise say why not."""
        request = self._request
        assert request.after is not None  # asked before
        found = self._days.read(request.after)
        why = f"there is no state until {request.after} of this program, with this configuration and these inputs"
        if found is not None:
            why = self._changed(found) or ""
            if not why:
                self._report(f"goes on with the state until {request.after}: seed {found.seed}")
                return found
        self._report(f"begins with the first record: {why}")
        return None

    def _changed(self, day: Day) -> str | None:
        """Return why a day's state cannot be continued; None if it can."""
        if (place_of(day.seed) / SNAPSHOT).size() is None:
            return f"seed {day.seed}, the state until {self._request.after}, was removed"
        for topic, rows in day.rows.items():
            if (now := self._rows(topic, bounds_of(day.offsets, day.until_ms))) != rows:
                return f"the input of topic {topic} has {now:,} records until {self._request.after}, and had {rows:,} then"
        return None

    def _rows(self, topic: str, bounds: Bounds) -> int:
        """Return the number of records of a table that are before the end of the run."""
        return rows_before_end(self._tables[topic], topic, self._request.inputs[topic], bounds)

    def _keep_day(self, run: RunManifest, next_offsets: Mapping[str, Mapping[int, int]], seed: str) -> None:
        """Keep what the run of the next day needs."""
        bounds = bounds_of(run.offsets, run.until_ms)
        tables = [topic for topic in self._plan.inputs if self._request.inputs[topic].location != KAFKA]
        rows = {topic: self._rows(topic, bounds) for topic in tables}
        self._days.write(
            self._request.until, Day(seed, run.offsets, run.until_ms, {topic: dict(each) for topic, each in next_offsets.items()}, rows)
        )

    def stages(self, run: RunManifest) -> tuple[RunManifest, dict[int, list[TaskReport]], set[int], dict[str, Input]]:
        """Run the stages that are not done yet."""
        plan, begin = self._plan, self._request.begin
        inputs = {
            topic: _input(self._spark, self._request, plan, run.bounds(topic), topic, self._tables.get(topic))
            for topic in self._request.inputs
        }
        if run.day is not None:
            begin = parts_of(find(run.day.seed))
        self._manifest.write(iter([encoded(run)]))  # only now: inputs that do not fit are refused without a trace
        next_offsets = {topic: dict(given.next_offsets) for topic, given in inputs.items()}
        places = self._places(run)
        done: dict[int, list[TaskReport]] = {}
        reused: set[int] = set()
        global_files: dict[str, tuple[str, ...]] = {}
        for number, stage in enumerate(plan.stages, 1):
            what = f"stage {number} of {len(plan.stages)} ({stage.label}, {stage.tasks} tasks)"
            manifest = self.folder / f"stage-{stage.sub_topology}.json"
            if (reports := self._done(manifest, places)) is not None:
                self._report(f"{what} was done before")
                reused.add(stage.sub_topology)
            else:
                for topic in stage.global_topics:
                    if topic not in global_files:
                        folder = (place_of(places.rows) / topic).uri
                        global_files[topic] = write_global_rows(self._spark, topic, inputs[topic], folder, self._token)
                self._report(what)
                job = StageJob(
                    plan,
                    stage,
                    places,
                    run.id,
                    run.at_ms,
                    self._token,
                    next_offsets,
                    dict(global_files),
                    begin,
                    self._request.all_stores,
                )
                reports = run_stage(self._spark, job, inputs, [each for earlier in done.values() for each in earlier])
                manifest.write(iter([encoded(_Reports(reports))]))
            done[stage.sub_topology] = reports
        return run, done, reused, inputs

    def _places(self, run: RunManifest) -> Places:
        outputs, rejected = self._request.outputs, self._request.rejected
        return Places(
            seed=(place_of(self._request.seed) / run.id).uri,
            rows=(self.folder / "rows").uri,
            outputs=None if outputs is None else (place_of(outputs) / run.id).uri,
            rejected=None if rejected is None else (place_of(rejected) / run.id).uri,
        )

    def _done(self, manifest: Place, places: Places) -> list[TaskReport] | None:
        """Return the reports of a stage that was done, if all its files are still there."""
        data = manifest.read()
        if data is None:
            return None
        reports = msgspec.json.decode(data, type=_Reports).reports
        for report in reports:
            for place, size in self._files(report, places):
                if place.size() != size:
                    self._report(f"{place} is no longer as it was written: its stage runs again")
                    return None
        return reports

    def _files(self, report: TaskReport, places: Places) -> Iterator[tuple[Place, int]]:
        for file in report.files:
            folder = places.rows if file.topic in self._plan.repartitions else places.outputs
            if folder is not None:
                yield place_of(folder) / file.topic / file.name, file.bytes
        if report.rejected_file is not None and places.rejected is not None:
            yield place_of(places.rejected) / report.rejected_file.name, report.rejected_file.bytes
        for part in report.manifest.files:
            yield place_of(places.seed) / f"{report.part}/{part.path}", part.bytes

    # --- end ---------------------------------------------------------------------------------------------------------------------

    def finish(self, found: tuple[RunManifest, dict[int, list[TaskReport]], set[int], dict[str, Input]]) -> HistoryResult:
        """Remove files of attempts that do not count, and write the manifests, that of the seed last."""
        run, done, reused, inputs = found
        plan, places = self._plan, self._places(run)
        reports = [report for of_stage in done.values() for report in of_stage]
        self._sweep(reports, places)
        if places.outputs is not None:
            (place_of(places.outputs) / OUTPUTS_MANIFEST).write(iter([encoded(self._outputs(run, reports))]))
        whole = ApplicationManifest.of(
            [report.manifest for report in reports],
            {report.task: report.part for report in reports},
            topology_hash=plan.topology_hash,
            kind="seed",
            formats=_formats(plan, tuple(self._request.inputs)),
        )
        (place_of(places.seed) / SNAPSHOT).write(iter([encoded(whole)]))
        next_offsets = {topic: dict(inputs[topic].next_offsets) for topic in plan.inputs}
        if self._request.daily:
            self._keep_day(run, next_offsets, places.seed)
        self.folder.remove()
        return HistoryResult(
            id=run.id,
            seed=places.seed,
            outputs=places.outputs,
            rejected=places.rejected if any(report.rejected for report in reports) else None,
            stages=[StageResult.of(stage, done[stage.sub_topology], reused=stage.sub_topology in reused) for stage in plan.stages],
            next_offsets=next_offsets,
            bytes=whole.bytes,
            notes=[note for given in inputs.values() for note in given.notes],
            goes_on_from=None if run.day is None else run.day.seed,
        )

    def _outputs(self, run: RunManifest, reports: list[TaskReport]) -> OutputsManifest:
        rows: dict[str, int] = {}
        files: dict[str, list[str]] = {}
        for report in reports:
            for file in report.files:
                if file.topic not in self._plan.repartitions:
                    rows[file.topic] = rows.get(file.topic, 0) + file.rows
                    files.setdefault(file.topic, []).append(file.name)
        return OutputsManifest(run.id, self._plan.application.id, rows, files)

    def _sweep(self, reports: list[TaskReport], places: Places) -> None:
        parts = {report.part for report in reports}
        for attempt in place_of(places.seed).children():
            if not any(part.startswith(f"{attempt.name}/") for part in parts):
                attempt.remove()
        if places.outputs is not None:
            kept = {(file.topic, file.name) for report in reports for file in report.files}
            for topic in place_of(places.outputs).children():
                for file in topic.children():
                    if (topic.name, file.name) not in kept:
                        file.remove()
        if places.rejected is not None:
            names = {report.rejected_file.name for report in reports if report.rejected_file is not None}
            for file in place_of(places.rejected).children():
                if file.name not in names:
                    file.remove()


class _Reports(msgspec.Struct, frozen=True):
    reports: list[TaskReport]


def _formats(plan: HistoryPlan, given: tuple[str, ...]) -> dict[str, StoreFormat]:
    topology = history_topology(plan.application, given)
    builders = [builder for part in topology.sub_topologies() for builder in part.stores]
    return {builder.name: builder.settings.format() for builder in builders if isinstance(builder, Builder)}


def _add(digest: hashlib._Hash, *parts: object) -> None:
    digest.update("\0".join([*map(str, parts), "\n"]).encode())


def _program(request: HistoryRequest, plan: HistoryPlan) -> str:
    """Return a name for everything that determines the state, except where the run begins and ends."""
    digest = hashlib.sha256()
    add = partial(_add, digest)
    application = request.application
    add(application.id, application.factory, plan.topology_hash, code_digest([application.factory.partition(":")[0].partition(".")[0]]))
    for key, value in sorted(application.config.items()):
        named = value if isinstance(value, str | int | float | bool | None) else getattr(value, "__qualname__", type(value).__qualname__)
        add(key, named)
    add(request.rejected, request.all_stores)
    for topic, given in sorted(request.inputs.items()):
        add(topic, given.location, given.format, sorted(given.columns.items()))
    for topic, count in sorted(plan.partitions.items()):
        add(topic, count)
    return digest.hexdigest()[:16]


def _versions(spark: SparkSession, location: str) -> list[tuple[str, int, int]]:
    """Return path, size and time of the files of a table: one that was written again in place has another."""
    files = spark.read.format("binaryFile").load(location).select("path", "length", F.unix_millis("modificationTime").alias("at"))
    return sorted((row.path, row.length, row.at) for row in files.collect())


def _fingerprint(spark: SparkSession, request: HistoryRequest, plan: HistoryPlan, tables: Mapping[str, DataFrame]) -> str:
    """Return a name for everything that determines the result of a run."""
    digest = hashlib.sha256(_program(request, plan).encode())
    add = partial(_add, digest)
    add(request.until, request.seed, request.outputs, sorted(request.begin.items()), request.daily, request.after)
    for topic, table in sorted(tables.items()):
        given = request.inputs[topic]
        with spark_errors(f"input of topic {topic}"):
            add(topic, *sorted(table.inputFiles()))
            if given.format != DELTA:  # Delta writes each file once
                add(topic, *_versions(spark, given.location))
    return digest.hexdigest()[:16]
