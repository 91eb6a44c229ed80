"""Rehearsal of a repair: the record before which a task is paused, and some after it, with a build and the task's own state.

The task begins with its part of the newest snapshot that is not after the pause. It processes what it has committed since, and its stores
are written; then the record and those after it. What differs between the two is what the record does. Other tasks do not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import msgspec

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.kafka.observer import Observer
from penstock.orchestration.rehearsals import messages
from penstock.orchestration.rehearsals.choice import all_snapshots, chosen_snapshot
from penstock.orchestration.rehearsals.comparison import Difference, compare_stores
from penstock.orchestration.rehearsals.outputs import in_order
from penstock.orchestration.rehearsals.processes import Build, RehearsalError
from penstock.orchestration.rehearsals.rehearsal import NEW, Imported, Rehearsal, rehearsing, sample_texts, total
from penstock.orchestration.rehearsals.reporter import Reporter
from penstock.runtime.coordination.records import PausedAt
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.snapshots.catalogue import Snapshot
from penstock.runtime.snapshots.manifest import PartitionOffset

MOST_OUTPUTS = 20
_BEFORE, _AFTER = "before", "after"


@dataclass(frozen=True, slots=True)
class Repair:
    """Result. `read`: whether the record is processed now; `rejected`: the records that are not, it included. `outputs`: topic, key and
    value of the first of `written` records. `changes`: of the stores, with samples by store: key, value before, value after. `snapshot` is
    None for a task that began without state; `stateless`: it has no stores."""

    application: str
    task: TaskId
    build: Build
    paused: PausedAt
    snapshot: str | None
    stateless: bool
    records: int
    rejected: Sequence[messages.Rejected]
    written: int
    outputs: Sequence[tuple[str, str, str]]
    changes: Sequence[tuple[Difference, Sequence[tuple[str, str, str]]]]

    @property
    def at(self) -> str:
        return f"{self.paused.topic}-{self.paused.partition}@{self.paused.offset}"

    @property
    def read(self) -> bool:
        return all(str(each) != self.at for each in self.rejected)

    def data(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "task": str(self.task),
            "build": str(self.build),
            "paused_at": self.at,
            "error": self.paused.error,
            "snapshot": self.snapshot,
            "read": self.read,
            "records": self.records,
            "rejected": [msgspec.to_builtins(each) for each in self.rejected],
            "written": self.written,
            "outputs": [dict(zip(("topic", "key", "value"), each, strict=True)) for each in self.outputs],
            "changes": [
                {
                    "store": difference.name,
                    "keys": difference.differing,
                    "samples": [dict(zip(("key", "before", "after"), each, strict=True)) for each in samples],
                }
                for difference, samples in self.changes
            ],
        }


def rehearsed_repair(
    paths: ProjectPaths,
    application: Application,
    task: TaskId,
    reporter: Reporter,
    *,
    factory: str | None,
    following: int,
    snapshot: str | None,
) -> Repair:
    """Rehearse a repair with a build: a factory, or the declared one with the code as it is now. Raises RehearsalError, StreamsError."""
    paused = paused_record(application, task)
    known = all_snapshots(paths, application) if snapshot is None else [chosen_snapshot(paths, application, 0, where=snapshot)[0]]
    build = Build(NEW, factory or application.factory)
    with rehearsing(paths, application, reporter) as rehearsal:
        return rehearse_repair(rehearsal, build, task, paused, usable(known, task, paused), following)


def paused_record(application: Application, task: TaskId) -> PausedAt:
    """Return where a task is paused. Raises RehearsalError, naming the tasks that are paused, BrokerUnavailableError."""
    picture = Observer(application.id, application.connection).observe()
    reports = {
        name: report
        for name, _, report in picture.reports()
        if report.kind is TaskKind.ACTIVE and report.state is TaskState.PAUSED and report.paused is not None
    }
    found = reports.get(str(task))
    if found is None or found.paused is None:
        others = ", ".join(sorted(reports)) or "none is"
        raise RehearsalError(f"task {task} of {application.id} is not paused (paused: {others})")
    if found.paused.error is None:
        raise RehearsalError(
            f"task {task} of {application.id} was paused by hand, not by a record: penstock resume {application.id} {task}"
        )
    return found.paused


def usable(snapshots: Sequence[Snapshot], task: TaskId, paused: PausedAt) -> Snapshot | None:
    """Return the newest snapshot that contains the task, and not the record or a later one."""
    for snapshot in reversed(snapshots):
        if str(task) in snapshot.tasks:
            begun = {(at.topic, at.partition): at.next_offset for at in snapshot.task(str(task)).input_offsets}
            if begun.get((paused.topic, paused.partition), paused.offset) <= paused.offset:
                return snapshot
    return None


def rehearse_repair(
    rehearsal: Rehearsal, build: Build, task: TaskId, paused: PausedAt, snapshot: Snapshot | None, following: int
) -> Repair:
    """Run the record, and up to `following` records of each input after it. Raises RehearsalError, StreamsError."""
    imported = rehearsal.imported(build)
    description = imported.description
    if task.subtopology not in description.reads:
        raise RehearsalError(f"the build ({build}) has no sub-topology {task.subtopology}, so it has no task {task}")
    if snapshot is not None and (problems := imported.ask_misfits(snapshot)):
        listed = "".join(f"\n- {text}" for text in problems)
        raise RehearsalError(f"the build ({build}) does not fit the state of the snapshot {snapshot.id}:{listed}")
    beginnings = [] if snapshot is None else rehearsal.beginnings(imported, snapshot, [str(task)])
    before, after = rehearsal.around_pause(description.reads[task.subtopology], task, paused, beginnings, following)
    inputs = rehearsal.inputs([description], {})
    steps = [messages.Step(_BEFORE, rehearsal.read(before, _BEFORE)), messages.Step(_AFTER, rehearsal.read(after, _AFTER))]
    if not beginnings:
        offsets = [PartitionOffset(*partition, first) for partition, (first, _) in before.items()]
        beginnings = [messages.Beginning(str(task), offsets, [], [])]
    report = rehearsal.run(imported, inputs, beginnings, steps, [str(task)])
    changes = [each for each in compare_stores(report.parts[_BEFORE], report.parts[_AFTER]) if each.differing]
    return Repair(
        application=rehearsal.application.id,
        task=task,
        build=build,
        paused=paused,
        snapshot=None if snapshot is None else snapshot.id,
        stateless=not any(store.sub_topology == task.subtopology for store in description.stores.values()),
        records=total(steps[-1].records),
        rejected=[each for each in report.rejected if each.offset >= after[TopicPartition(each.topic, each.partition)][0]],
        written=report.written[_AFTER] - report.written[_BEFORE],
        outputs=_outputs(imported, Path(report.outputs), report.written[_BEFORE]),
        changes=[(each, sample_texts(each, imported.process, imported.process)) for each in changes],
    )


def _outputs(build: Imported, path: Path, first: int) -> list[tuple[str, str, str]]:
    shown: list[tuple[str, str, str]] = []
    outputs = islice(in_order(path, first), MOST_OUTPUTS)
    for topic, run in groupby(outputs, key=lambda output: output[0]):
        entries = [messages.Entry(key, output.value) for _, key, output in run]
        texts = build.process.ask(messages.Show(None, topic, entries), messages.Shown).texts
        shown += [(topic, text.key, text.value) for text in texts]
    return shown
