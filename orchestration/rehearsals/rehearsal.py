"""A rehearsal: both builds begin with the state of one snapshot, process the same records, and are compared.

    <home>/rehearsals/<application>.<number>/records/<topic>-<partition>     read once from the brokers
                                            /<build>/state, parts, outputs.db, log
                                            /<build>-spark, spark/         of a rehearsal on Spark

The application is not touched: its topics are read outside its group, and nothing is written to the brokers. The folder is removed at the
end; folders of rehearsals that were killed are removed by the next one.

A snapshot is consistent per task, not between tasks (docs/snapshots.md): records in transit in repartition topics at that time are
processed by neither build. So the results are comparable with each other, and not always with the running application.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.rehearsal_limits import AUTO
from penstock.orchestration.rehearsals import messages
from penstock.orchestration.rehearsals.comparison import Difference, compare_outputs, compare_stores
from penstock.orchestration.rehearsals.continuity import check_continuous
from penstock.orchestration.rehearsals.engines import Engine, chosen_engine
from penstock.orchestration.rehearsals.messages import END
from penstock.orchestration.rehearsals.processes import Build, BuildProcess, RehearsalError
from penstock.orchestration.rehearsals.reporter import Reporter
from penstock.orchestration.rehearsals.spark_builds import Span, SparkBuilds, SparkRun, remove_shared
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import PausedAt
from penstock.runtime.kafka.log_reader import LogReader
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.clock import Clock, SystemClock
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.seeds.files import fetch_store
from penstock.runtime.snapshots.catalogue import Snapshot
from penstock.runtime.snapshots.manifest import GLOBAL, MANIFEST, TaskManifest, decode_manifest, encoded
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import LocalPlace, Place
from penstock.runtime.snapshots.reading import copy_store
from penstock.runtime.stage.spool import SpoolWriter
from penstock.runtime.topology.shape import misfits

RUNNING, NEW = "running", "new"
"""Labels of the two builds."""
_POLL_SECONDS = 1.0
_SILENT_MS = 30_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a rehearsal. `engine`: where it ran, and why. `builds` and `reports`: of the running build and of the new one. `texts`: by
    the label of a store or topic, samples as text: key, value of the running build, of the new one."""

    engine: Engine
    snapshot: str
    records: int
    builds: tuple[Build, Build]
    reports: tuple[messages.Report, messages.Report]
    differences: Sequence[Difference]
    texts: Mapping[str, Sequence[tuple[str, str, str]]]
    notes: Sequence[str]

    def data(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "engine": self.engine.data(),
            "snapshot": self.snapshot,
            "records": self.records,
            "notes": list(self.notes),
            **{
                build.label: {
                    "build": str(build),
                    "rejected": report.rejections,
                    "rejections": [msgspec.to_builtins(each) for each in report.rejected],
                    "dropped": report.dropped,
                    "seconds": report.seconds,
                    "cpu_seconds": report.cpu_seconds,
                    "state_bytes": sum(each.bytes[place] for each in self.differences),
                }
                for place, (build, report) in enumerate(zip(self.builds, self.reports, strict=True))
            },
            "differences": [
                {
                    "kind": each.kind,
                    "name": each.name,
                    "rows": list(each.rows),
                    "different": each.different,
                    "only_running": each.only_running,
                    "only_new": each.only_new,
                    "samples": [dict(zip(("key", RUNNING, NEW), text, strict=True)) for text in self.texts.get(each.label, ())],
                }
                for each in self.differences
            ],
        }


@dataclass(frozen=True, slots=True)
class Imported:
    """A build in its process, and its topology."""

    process: BuildProcess
    description: messages.Description

    def ask_misfits(self, snapshot: Snapshot) -> list[str]:
        """Return why its stores cannot read a snapshot's."""
        return self.process.ask(messages.CheckState(snapshot.place.uri), messages.Misfits).texts


@dataclass(slots=True)
class Inputs:
    """Records that both builds read."""

    records: list[messages.Records] = field(default_factory=list)
    global_records: list[messages.Records] = field(default_factory=list)
    partitions: dict[str, int] = field(default_factory=dict)


class Rehearsal:
    """Reads the brokers, and runs builds of one application in a folder of its own. Use it in `rehearsing`."""

    def __init__(self, paths: ProjectPaths, application: Application, folder: Path, reporter: Reporter, clock: Clock) -> None:
        self._paths = paths
        self.application = application
        self._folder = folder
        self._reporter = reporter
        self._clock = clock
        self._config = StreamsConfig({**application.client_config(), "application.id": application.id})
        self._topics = TopicAdmin(self._config)
        self._stack = ExitStack()
        self._spark = SparkBuilds(paths, application, folder, reporter)

    def close(self) -> None:
        """End the processes of all builds, and remove what executors have written."""
        self._stack.close()
        self._spark.close()

    def imported(self, build: Build) -> Imported:
        """Import a build in a process of its own. Raises RehearsalError, BrokerUnavailableError."""
        own = f"{self.application.id}-"
        known = sorted(name for name in self._topics.names() if not name.startswith(own))
        process = self._stack.enter_context(BuildProcess(build, self._paths.root, self._folder / build.label))
        config = {name: str(value) if isinstance(value, str) else value for name, value in self.application.client_config().items()}
        return Imported(process, process.ask(messages.Describe(self.application.id, build.factory, config, known), messages.Description))

    def check_continuous(self, first: Snapshot | None, last: Snapshot, notes: list[str]) -> None:
        """Raise NoBeginningError if a snapshot's state does not come from that of an earlier one and the records since then."""
        check_continuous(self._config, self._topics, first, last, notes)

    # --- records -------------------------------------------------------------------------------------------------------------------

    def spans(self, topics: Sequence[str], snapshot: Snapshot, per_partition: int | None, notes: list[str]) -> dict[TopicPartition, Span]:
        """Return what is read of source topics: from the snapshot's offsets, or its time where it has none, to the end of today, at most
        `per_partition` records of each. Raises RehearsalError for topics that do not exist."""
        begun = {TopicPartition(at.topic, at.partition): at.next_offset for at in (*snapshot.manifest.settled, *snapshot.manifest.inputs)}
        partitions = [TopicPartition(topic, number) for topic, count in self.counts(topics).items() for number in range(count)]
        starts, ends = self._topics.start_offsets(partitions), self._topics.end_offsets(partitions)
        timed = self._topics.offsets_for_times([each for each in partitions if each not in begun], snapshot.manifest.at_ms)
        found: dict[TopicPartition, Span] = {}
        for partition in partitions:
            first = int(begun.get(partition, timed.get(partition, NextOffset(0))))
            if first < starts[partition]:
                notes.append(f"{partition}: {starts[partition] - first:,} records after the snapshot were deleted by retention")
            first = max(first, starts[partition])
            end = max(ends[partition], first)
            if per_partition is not None:
                end = min(end, first + per_partition)
            found[partition] = (NextOffset(first), NextOffset(end))
        return found

    def between(self, topics: Sequence[str], first: Snapshot | None, last: Snapshot, notes: list[str]) -> dict[TopicPartition, Span]:
        """Return what is read of source topics from one snapshot to a later one; from the topics' start without the first. Raises
        RehearsalError for records that are not there any more, and partitions of which the snapshots have no offset."""
        ends, starts = _offsets(last), {} if first is None else _offsets(first)
        partitions = [TopicPartition(topic, number) for topic, count in self.counts(topics).items() for number in range(count)]
        there = self._topics.start_offsets(partitions)
        found: dict[TopicPartition, Span] = {}
        for partition in partitions:
            if (end := ends.get(partition)) is None or (first is not None and partition not in starts):
                notes.append(f"{partition}: the snapshots have no offset of it, because no store depends on it: it is not read")
                continue
            begin = starts.get(partition, NextOffset(0))
            if there[partition] > begin:
                raise RehearsalError(
                    f"the state cannot be computed again: records of {partition} from {begin} to {there[partition]} were deleted by "
                    "retention. Begin with a later snapshot (--from ID)"
                )
            found[partition] = (begin, max(begin, end))
        return found

    def around_pause(
        self, topics: Sequence[str], task: TaskId, paused: PausedAt, beginnings: Sequence[messages.Beginning], following: int
    ) -> tuple[dict[TopicPartition, Span], dict[TopicPartition, Span]]:
        """Return what a paused task has processed since the state with which it begins, and what comes next: the record before which it is
        paused, and up to `following` records of each input."""
        counts = self.counts(topics)
        partitions = [TopicPartition(topic, task.partition) for topic in topics if task.partition < counts[topic]]
        starts, ends = self._topics.start_offsets(partitions), self._topics.end_offsets(partitions)
        committed = self._topics.committed_offsets(self.application.id)
        begun = {TopicPartition(at.topic, at.partition): at.next_offset for beginning in beginnings for at in beginning.offsets}
        before: dict[TopicPartition, Span] = {}
        after: dict[TopicPartition, Span] = {}
        for partition in partitions:
            here = partition == TopicPartition(paused.topic, paused.partition)
            reached = NextOffset(paused.offset) if here else committed.get(partition, starts[partition])
            first = NextOffset(min(max(begun.get(partition, reached), starts[partition]), reached))
            before[partition] = (first, reached)
            after[partition] = (reached, NextOffset(max(reached, min(ends[partition], reached + following + here))))
        return before, after

    def counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the number of partitions of each topic. Raises RehearsalError for topics that do not exist."""
        counts = self._topics.partition_counts(topics)
        if missing := sorted(set(topics) - counts.keys()):
            raise RehearsalError(f"the builds read {', '.join(missing)}, which does not exist on {self.application.bootstrap_servers}")
        return counts

    def read(self, spans: Mapping[TopicPartition, Span], folder: str = "records") -> list[messages.Records]:
        """Read records into files of a new folder. Raises RehearsalError, StreamsError."""
        wanted = {partition: span for partition, span in spans.items() if span[0] < span[1]}
        total = sum(end - first for first, end in wanted.values())
        done = dict.fromkeys(wanted, 0)
        files = {partition: self._folder / folder / str(partition) for partition in wanted}
        reader = LogReader(self._config.consumer_properties("restore"), "rehearsal")
        with ExitStack() as stack:
            stack.callback(reader.close)
            writers = {partition: stack.enter_context(SpoolWriter(path)) for partition, path in files.items()}
            for partition, (first, _) in wanted.items():
                reader.assign(partition, first)
            heard_ms = self._clock.monotonic_ms()
            while reader.assigned:
                found = reader.poll(_POLL_SECONDS)
                if found:
                    heard_ms = self._clock.monotonic_ms()
                elif self._clock.monotonic_ms() - heard_ms > _SILENT_MS:
                    left = ", ".join(map(str, sorted(reader.assigned)))
                    raise RehearsalError(f"no broker of {self.application.bootstrap_servers} has sent a record of {left} for 30 s")
                for partition in found.out_of_range:
                    raise RehearsalError(f"records of {partition} were deleted while they were read: take a new snapshot, and try again")
                for partition, run in found.runs.items():
                    first, end = wanted[partition]
                    kept = [message for message in run if (message.offset() or 0) < end]
                    writers[partition].write(kept)  # type: ignore[arg-type]  # records, which have a topic and an offset
                    last = run[-1].offset() or 0
                    done[partition] = min(end, last + 1) - first
                    if last + 1 >= end:
                        reader.unassign(partition)
                for partition, at in found.ends.items():
                    if at >= wanted[partition][1]:
                        done[partition] = wanted[partition][1] - wanted[partition][0]
                        reader.unassign(partition)
                self._reporter.progress(sum(done.values()), total)
        return [messages.Records(*partition, str(path), writers[partition].records) for partition, path in files.items()]

    def inputs(self, descriptions: Sequence[messages.Description], spans: Mapping[TopicPartition, Span]) -> Inputs:
        """Read the records of `spans`, and all of the global topics."""
        found = Inputs()
        found.global_records = self.read(self._global_spans(descriptions), "global")
        found.records = self.read(spans)
        found.partitions = self._partitions(descriptions)
        return found

    def _global_spans(self, descriptions: Sequence[messages.Description]) -> dict[TopicPartition, Span]:
        counts = self.counts(sorted({topic for each in descriptions for topic in each.global_topics}))
        of_globals = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        starts, ends = self._topics.start_offsets(of_globals), self._topics.end_offsets(of_globals)
        return {partition: (starts[partition], ends[partition]) for partition in of_globals}

    def _partitions(self, descriptions: Sequence[messages.Description]) -> dict[str, int]:
        """Return the number of partitions of all topics that the builds read or write, as far as they exist."""
        written = sorted({topic for each in descriptions for topic in each.sinks})
        read = sorted({topic for each in descriptions for topic in (*each.sources, *each.global_topics)})
        return {**self._topics.partition_counts(written), **self.counts(read)}

    # --- Spark ---------------------------------------------------------------------------------------------------------------------

    def choose(
        self,
        asked: str,
        builds: Sequence[Imported],
        spans: Mapping[TopicPartition, Span],
        begin: Snapshot | None,
        *,
        outputs: bool = True,
    ) -> tuple[Engine, SparkRun | None]:
        """Return the engine for builds over spans, and what they read if it is Spark. `outputs`: they are compared too. Raises
        RehearsalError."""
        settings = Applications.of(self._paths).spark
        found: list[SparkRun] = []

        def refusal() -> str | None:
            if settings.code == "installed" and any(build.process.build.code is not None for build in builds):
                return '[spark] code = "installed": the executors have one version of the code, and the build in operation may be another'
            resolved = settings.resolved()  # the settings go on unresolved: they may hold secrets
            if (work := self._spark.work(resolved)) is None:
                name = self.application.id
                return (
                    f"the executors at {resolved.place} need a folder that all of them reach: [applications.{name}.backfill] seed, or "
                    f"[applications.{name}.snapshots] export"
                )
            descriptions = [build.description for build in builds]
            run = SparkRun(settings, work, spans, self._global_spans(descriptions), self._partitions(descriptions), begin, outputs)
            found.append(run)
            for build in builds:
                if problems := self._spark.problems(build.process.build, build.description, run):
                    return "; ".join(problems)
            return None

        engine = chosen_engine(asked, sum(end - first for first, end in spans.values()), settings, refusal)
        self._reporter.step(f"is computed {engine}")
        return engine, found[0] if engine.on_spark else None

    def run_on_spark(self, build: Imported, run: SparkRun) -> messages.Report:
        """Run a build on Spark. Its parts are on this machine then."""
        self._reporter.step(f"runs the {build.process.build.label} build on Spark")
        report = self._spark.report(build.process.build, build.description, run)
        parts = {}
        for task, uri in report.parts[END].items():
            place = place_of(uri)
            if (part := (place / MANIFEST).read()) is None:
                raise RehearsalError(f"the part of task {task} is no longer at {place}")
            parts[task] = str(self._local(place, decode_manifest(part, TaskManifest, place)).local)
        return msgspec.structs.replace(report, parts={END: parts})

    # --- state ---------------------------------------------------------------------------------------------------------------------

    def beginnings(self, build: Imported, snapshot: Snapshot, tasks: Sequence[str] | None = None) -> list[messages.Beginning]:
        """Put the snapshot's stores into the folder of a build, and return the state with which its tasks begin. Raises
        StateDirectoryError."""
        found = []
        for task in tasks if tasks is not None else [task for task in snapshot.tasks if task != GLOBAL]:
            part = snapshot.task(task)
            place = self._local(snapshot.task_place(task), part)
            in_memory = []
            for store in part.stores:
                known = build.description.stores.get(store.name)
                if known is None or known.own or known.sub_topology != TaskId.parse(task).subtopology:
                    continue
                if known.in_memory:
                    target = build.process.folder / "memory" / task / store.name
                    in_memory.append(messages.KeptInMemory(store.name, str(target), part.at_ms))
                else:
                    target = build.process.folder / "state" / task / "rocksdb" / store.name
                fetch_store(place, part, store, target)
            found.append(messages.Beginning(task, part.input_offsets, part.partition_times, in_memory))
        return found

    def _local(self, place: Place, part: TaskManifest) -> Place:
        """Return a place on this machine with the files of a part; those elsewhere are copied once."""
        if place.local is not None:
            return place
        folder = self._folder / "snapshot" / part.snapshot / part.task
        if not folder.is_dir():
            for store in part.stores:
                copy_store(place, part, store, folder)
            (folder / MANIFEST).write_bytes(encoded(part))
        return LocalPlace(folder)

    def parts(self, snapshot: Snapshot, tasks: Sequence[str]) -> dict[str, str]:
        """Return the folders of these tasks' stores on this machine. Raises StateDirectoryError."""
        found = {}
        for task in tasks:
            local = self._local(snapshot.task_place(task), snapshot.task(task)).local
            assert local is not None  # as it was made
            found[task] = str(local)
        return found

    # --- runs ----------------------------------------------------------------------------------------------------------------------

    def compare(self, running: Build, new: Build, snapshot: Snapshot, per_partition: int | None, engine: str = AUTO) -> Comparison:
        """Run both builds and compare them. `engine`: one of `ENGINES`. Raises RehearsalError, StreamsError."""
        self._reporter.step("imports both builds")
        builds = [self.imported(build) for build in (running, new)]
        descriptions = [build.description for build in builds]
        self.require_fit(builds[0].description, builds[1], snapshot)
        notes: list[str] = []
        sources = sorted({topic for each in descriptions for topic in each.sources})
        spans = self.spans(sources, snapshot, per_partition, notes)
        notes += _notes(descriptions, snapshot)
        chosen, on_spark = self.choose(engine, builds, spans, snapshot)
        if on_spark is not None:
            reports = [self.run_on_spark(build, on_spark) for build in builds]
            records = max(report.records for report in reports)
        else:
            self._reporter.step(f"reads the records since snapshot {snapshot.id}")
            inputs = self.inputs(descriptions, spans)
            reports, records = [], total(inputs.records)
            for build in builds:
                read = [each for each in inputs.records if each.topic in build.description.sources]
                reports.append(self.run(build, inputs, self.beginnings(build, snapshot), [messages.Step(END, read)]))
        if not records:
            notes.append(
                f"no record came after snapshot {snapshot.id}, so the builds have processed none: --since begins with an older snapshot"
            )
        self._reporter.step("compares")
        differences = [
            *compare_stores(reports[0].parts[END], reports[1].parts[END]),
            *compare_outputs(Path(reports[0].outputs), Path(reports[1].outputs)),
        ]
        texts = {each.label: sample_texts(each, builds[0].process, builds[1].process) for each in differences if each.samples}
        return Comparison(chosen, snapshot.id, records, (running, new), (reports[0], reports[1]), differences, texts, notes)

    def run(
        self,
        build: Imported,
        inputs: Inputs,
        beginnings: list[messages.Beginning],
        steps: Sequence[messages.Step],
        tasks: Sequence[str] = (),
    ) -> messages.Report:
        """Run a build over the records of the steps. `tasks`: those that run; none means all."""
        self._reporter.step(f"runs the {build.process.build.label} build")
        description = build.description
        expected = sum(total(step.records) for step in steps)
        request = messages.Run(
            folder=str(build.process.folder),
            partitions=inputs.partitions,
            global_records=[each for each in inputs.global_records if each.topic in description.global_topics],
            beginnings=beginnings,
            steps=list(steps),
            tasks=list(tasks),
        )
        return build.process.ask(request, messages.Report, lambda records: self._reporter.progress(records, expected))

    def require_fit(self, running: messages.Description, new: Imported, snapshot: Snapshot) -> None:
        """Raise RehearsalError if the new build does not fit the state of the running one: with the sentences of a start."""
        known = {name for name in snapshot.manifest.stores if name in running.stores}
        problems = [*misfits(running.shape, new.description.shape, known, {}), *new.ask_misfits(snapshot)]
        if problems:
            listed = "".join(f"\n- {text}" for text in dict.fromkeys(problems))
            raise RehearsalError(
                f"the new build ({new.process.build}) does not fit the state of {self.application.id}, and would not start:{listed}\n"
                "penstock docs changing says what may change, and how"
            )


def total(records: Sequence[messages.Records]) -> int:
    """Return the number of records of all partitions."""
    return sum(each.count for each in records)


def _offsets(snapshot: Snapshot) -> dict[TopicPartition, NextOffset]:
    known = (*snapshot.manifest.settled, *snapshot.manifest.inputs)
    return {TopicPartition(at.topic, at.partition): NextOffset(at.next_offset) for at in known}


def _notes(descriptions: Sequence[messages.Description], snapshot: Snapshot) -> Iterator[str]:
    for name in sorted({name for each in descriptions for name, store in each.stores.items() if store.own}):
        yield f"store {name} is one of your own, which snapshots leave out: it begins empty"
    missing = {name for name in descriptions[0].stores if name not in snapshot.manifest.stores} - {
        name for each in descriptions for name, store in each.stores.items() if store.own
    }
    for name in sorted(missing):
        yield f"store {name} is not in the snapshot: it begins empty"


def sample_texts(difference: Difference, running: BuildProcess, new: BuildProcess) -> list[tuple[str, str, str]]:
    """Return samples as text, each decoded by the build that wrote it."""
    store = difference.name if difference.kind == "store" else None
    topic = difference.name if difference.kind == "topic" else None
    shown: list[list[messages.Text | None]] = []
    for process, entries in ((running, [each.running for each in difference.samples]), (new, [each.new for each in difference.samples])):
        texts = iter(process.ask(messages.Show(store, topic, [each for each in entries if each is not None]), messages.Shown).texts)
        shown.append([None if entry is None else next(texts) for entry in entries])
    found = []
    for before, after in zip(*shown, strict=True):
        key = next(text.key for text in (before, after) if text is not None)
        found.append((key, "(none)" if before is None else before.value, "(none)" if after is None else after.value))
    return found


@contextmanager
def rehearsing(paths: ProjectPaths, application: Application, reporter: Reporter, clock: Clock | None = None) -> Iterator[Rehearsal]:
    """Provide a rehearsal in a new folder, which is removed at the end. Raises StreamsConfigError, RehearsalError."""
    root = paths.home / "rehearsals"
    folder = root / f"{application.id}.{uuid.uuid4().hex[:8]}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        with FileLock(_lock(folder), timeout=0):
            folder.mkdir()
            rehearsal = Rehearsal(paths, application, folder, reporter, clock or SystemClock())
            try:
                yield rehearsal
            finally:
                rehearsal.close()
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise RehearsalError(f"the rehearsal in {folder} failed: {error}") from error
    finally:
        _lock(folder).unlink(missing_ok=True)


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _sweep(root: Path) -> None:
    """Remove the folders of rehearsals whose process is gone."""
    for folder in root.iterdir():
        if not folder.is_dir():
            continue
        lock = FileLock(_lock(folder), timeout=0)
        try:
            with lock:
                remove_shared(folder)
                shutil.rmtree(folder, ignore_errors=True)
        except (Timeout, OSError, StateDirectoryError):  # it runs; or its storage does not answer, and the next rehearsal tries again
            continue
        _lock(folder).unlink(missing_ok=True)
