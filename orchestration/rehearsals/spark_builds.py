"""Builds of a rehearsal or an audit on Spark: as the stages of a backfill that begin with a snapshot's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.backfills import absolute
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.orchestration.embedded.spark_turn import spark_turn
from penstock.orchestration.rehearsals import messages
from penstock.orchestration.rehearsals.processes import ON_SPARK, A, Build, BuildProcess
from penstock.orchestration.rehearsals.reporter import Reporter
from penstock.orchestration.snapshots.exports import below, export_root
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.snapshots.catalogue import Snapshot
from penstock.runtime.snapshots.opening import place_of

SHARED = "shared"
"""File in the folder of a rehearsal, with the path or URI of its folder that executors reach: it outlives a rehearsal that is killed."""
Span = tuple[NextOffset, NextOffset]
"""First offset, and the one after the last."""


@dataclass(frozen=True, slots=True)
class SparkRun:
    """Input of builds on Spark, and the snapshot with whose state they begin. `work`: path or URI of a folder that the executors reach.
    `outputs`: they are kept."""

    settings: SparkSettings
    work: str
    spans: Mapping[TopicPartition, Span]
    global_spans: Mapping[TopicPartition, Span]
    partitions: Mapping[str, int]
    begin: Snapshot | None
    outputs: bool


class SparkBuilds:
    """Runs builds of one application on Spark, each from a process of its own. `folder`: of the rehearsal, on this machine."""

    def __init__(self, paths: ProjectPaths, application: Application, folder: Path, reporter: Reporter) -> None:
        self._paths = paths
        self._application = application
        self._folder = folder
        self._reporter = reporter

    def close(self) -> None:
        """Remove what executors have written."""
        remove_shared(self._folder)

    def work(self, settings: SparkSettings) -> str | None:
        """Return a folder for Spark; None if none is declared that the executors reach. `settings`: resolved."""
        if settings.is_local:
            return str(self._folder / "spark")
        seeds, exports = self._application.backfill.seed, self._application.snapshots.export
        shared = absolute(seeds, self._paths.root) if seeds is not None else exports and export_root(self._application)
        return None if not shared else below(shared, f".rehearsals/{self._folder.name}")

    def problems(self, build: Build, description: messages.Description, run: SparkRun) -> list[str]:
        """Return why a build cannot run on Spark. Raises RehearsalError."""
        return self._ask(build, description, run, messages.Misfits, only_plan=True).texts

    def report(self, build: Build, description: messages.Description, run: SparkRun) -> messages.Report:
        """Run a build; its parts are in `run.work`. Raises RehearsalError."""
        return self._ask(build, description, run, messages.Report)

    def _ask(self, build: Build, description: messages.Description, run: SparkRun, kind: type[A], *, only_plan: bool = False) -> A:
        label = build.label
        modules = (*run.settings.packages, build.factory.partition(":")[0].partition(".")[0])
        folder = self._folder / f"{label}-{'plan' if only_plan else 'spark'}"
        request = messages.RunOnSpark(
            application=self._application.id,
            factory=build.factory,
            config=dict(self._application.client_config()),
            settings=msgspec.structs.replace(run.settings, packages=tuple(dict.fromkeys(modules))),
            folder=str(folder),
            work=below(run.work, label),
            partitions=dict(run.partitions),
            spans=spans_of(run.spans, description.sources, run.partitions),
            global_spans=spans_of(run.global_spans, description.global_topics, run.partitions),
            begin=None if run.begin is None else run.begin.place.uri,
            outputs=run.outputs,
            only_plan=only_plan,
        )
        with (
            nullcontext() if only_plan else spark_turn(self._paths.home, self._reporter.step, local=run.settings.resolved().is_local),
            BuildProcess(build, self._paths.root, folder, ON_SPARK) as process,
        ):
            (self._folder / SHARED).write_text(run.work)
            return process.ask(request, kind, notice=self._reporter.step)


def remove_shared(folder: Path) -> None:
    """Remove what the executors of a rehearsal have written. `folder`: of the rehearsal. Raises StateDirectoryError."""
    note = folder / SHARED
    if note.exists():
        place_of(note.read_text()).remove()


def spans_of(spans: Mapping[TopicPartition, Span], topics: Sequence[str], partitions: Mapping[str, int]) -> list[messages.Span]:
    """Return what is read of each partition of these topics: nothing of one that is not among the spans."""
    wanted = [TopicPartition(topic, number) for topic in topics for number in range(partitions[topic])]
    return [messages.Span(*at, *spans.get(at, (0, 0))) for at in wanted]
