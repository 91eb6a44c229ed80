"""Audit of state: the stores of one snapshot, computed again from an earlier snapshot and the records between the two.

The engine's own tasks compute them, on this machine or on Spark, without the application. So a difference means that a store holds
something else than its input gives: a lost or doubled record, damaged files, or code that was another one in between.

A task that reads repartition topics can be computed again only if nothing was in transit in either snapshot (`settled`); others are
skipped, and named. Operators that depend on the order between partitions or on the wall clock may differ, as between two runs of a stream.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.rehearsals import messages
from penstock.orchestration.rehearsals.choice import all_snapshots, running_build
from penstock.orchestration.rehearsals.comparison import Difference, compare_stores
from penstock.orchestration.rehearsals.engines import Engine
from penstock.orchestration.rehearsals.messages import END
from penstock.orchestration.rehearsals.processes import RehearsalError
from penstock.orchestration.rehearsals.rehearsal import rehearsing, sample_texts, total
from penstock.orchestration.rehearsals.reporter import Reporter
from penstock.runtime.model.ids import TaskId
from penstock.runtime.snapshots.catalogue import Snapshot
from penstock.runtime.snapshots.manifest import GLOBAL

START = "start"
"""In place of a snapshot: no state, and the topics from their first records."""
MOST_KEYS = 10_000
"""Most differing keys of a store that are listed."""
_COLUMNS = ("store", "key", "stream", "computed_again")


@dataclass(frozen=True, slots=True)
class StateAudit:
    """Result. `engine`: where it was computed, and why. `first` is None for an audit from the start. `differences`: of the stream's stores
    (`running`) and those computed again (`new`). `texts`: by store, differing keys as text: key, the stream's value, the computed one.
    `table`: the file of these, if any."""

    engine: Engine
    first: str | None
    last: str
    records: int
    differences: Sequence[Difference]
    texts: Mapping[str, Sequence[tuple[str, str, str]]]
    notes: Sequence[str]
    table: Path | None

    @property
    def differing(self) -> list[Difference]:
        """The stores that differ."""
        return [each for each in self.differences if each.differing]

    def data(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "engine": self.engine.data(),
            "first": self.first,
            "last": self.last,
            "records": self.records,
            "stores": [
                {
                    "name": each.name,
                    "rows": each.rows[0],
                    "rows_computed": each.rows[1],
                    "different": each.different,
                    "only_stream": each.only_running,
                    "only_computed": each.only_new,
                }
                for each in self.differences
            ],
            "notes": list(self.notes),
            "table": None if self.table is None else str(self.table),
        }


def span_of_day(snapshots: Sequence[Snapshot], day: date) -> tuple[Snapshot | None, Snapshot]:
    """Return the snapshots around a day (UTC): the newest one before it, None if there is none, and the oldest one after it. Raises
    RehearsalError if there is none after it."""
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    begin_ms, end_ms = (round(at.timestamp() * 1000) for at in (begin, begin + timedelta(days=1)))
    after = [each for each in snapshots if each.manifest.at_ms >= end_ms]
    if not after:
        raise RehearsalError(f"there is no snapshot after {day}, whose state could be computed again: penstock snapshot take takes one")
    before = [each for each in snapshots if each.manifest.at_ms <= begin_ms]
    return before[-1] if before else None, after[0]


def named_span(snapshots: Sequence[Snapshot], first: str | None, last: str | None) -> tuple[Snapshot | None, Snapshot]:
    """Return the snapshots with these ids; by default the newest and the one before it. `first` may be `start`. Raises RehearsalError."""
    known = {each.id: each for each in snapshots}
    for name in (first, last):
        if name not in (None, START, *known):
            raise RehearsalError(f"there is no complete snapshot {name}; there are {', '.join(list(known)[-5:]) or 'none'}")
    if not snapshots:
        raise RehearsalError("there is no complete snapshot, whose state could be computed again: penstock snapshot take takes one")
    end = known[last] if last is not None else snapshots[-1]
    earlier = [each for each in snapshots if each.id < end.id]
    if first == START:
        return None, end
    if first is not None:
        return known[first], end
    return earlier[-1] if earlier else None, end


def audit_state(
    paths: ProjectPaths,
    application: Application,
    reporter: Reporter,
    *,
    day: date | None = None,
    first: str | None = None,
    last: str | None = None,
    engine: str | None = None,
) -> StateAudit:
    """Compute the state of a snapshot again. `engine`: one of `ENGINES`; None: as declared. Raises NoBeginningError, RehearsalError,
    StreamsError."""
    snapshots = all_snapshots(paths, application)
    begin, end = span_of_day(snapshots, day) if day is not None else named_span(snapshots, first, last)
    build, unsure = running_build(paths, application)
    notes = [] if unsure is None else [unsure]
    with rehearsing(paths, application, reporter) as rehearsal:
        rehearsal.check_continuous(begin, end, notes)
        reporter.step("imports the code")
        imported = rehearsal.imported(build)
        if problems := imported.ask_misfits(end):
            raise RehearsalError(f"the code ({build}) does not fit the state of snapshot {end.id}: {'; '.join(problems)}")
        description = imported.description
        tasks = list(_computable(description, begin, end, notes))
        if not tasks:
            raise RehearsalError("no task can be computed again: " + "; ".join(notes))
        spans = rehearsal.between(description.sources, begin, end, notes)
        since = "the start of the topics" if begin is None else f"snapshot {begin.id}"
        chosen, on_spark = rehearsal.choose(engine or application.snapshots.audit_engine, [imported], spans, begin, outputs=False)
        if on_spark is not None:
            report = rehearsal.run_on_spark(imported, on_spark)
            records = report.records
        else:
            reporter.step(f"reads the records from {since} to snapshot {end.id}")
            inputs = rehearsal.inputs([description], spans)
            beginnings = [] if begin is None else rehearsal.beginnings(imported, begin)
            report = rehearsal.run(imported, inputs, beginnings, [messages.Step(END, inputs.records)])
            records = total(inputs.records)
        reporter.step("compares")
        computed = {task: folder for task, folder in report.parts[END].items() if task in tasks}
        differences = [
            each
            for each in compare_stores(rehearsal.parts(end, tasks), computed, MOST_KEYS)
            if (store := description.stores.get(each.name)) is not None and not store.own
        ]
        texts = {each.name: sample_texts(each, imported.process, imported.process) for each in differences if each.samples}
    return StateAudit(
        engine=chosen,
        first=None if begin is None else begin.id,
        last=end.id,
        records=records,
        differences=differences,
        texts=texts,
        notes=notes,
        table=_written(paths.home / "audits" / application.id / f"{end.id}.csv", texts),
    )


def _computable(description: messages.Description, begin: Snapshot | None, end: Snapshot, notes: list[str]) -> list[str]:
    """Return the tasks of a snapshot that can be computed again."""
    settled = bool(end.manifest.settled) and (begin is None or bool(begin.manifest.settled))
    found: list[str] = []
    skipped: set[int] = set()
    for task in end.tasks:
        if task == GLOBAL:
            continue
        part = TaskId.parse(task).subtopology
        if set(description.reads.get(part, ())) & set(description.repartitions) and not settled:
            skipped.add(part)
        else:
            found.append(task)
    for part in sorted(skipped):
        notes.append(
            f"sub-topology {part} reads a repartition topic, and records were in transit in a snapshot: its stores are not compared. A "
            "snapshot taken while the input rests has none"
        )
    return found


def _written(path: Path, texts: Mapping[str, Sequence[tuple[str, str, str]]]) -> Path | None:
    """Write the differing keys as a table; return its path, None if nothing differs. Raises RehearsalError if that is impossible."""
    if not texts:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(_COLUMNS)
            rows.writerows((store, *text) for store, of_store in texts.items() for text in of_store)
    except OSError as error:
        raise RehearsalError(f"{path} cannot be written: {error}") from error
    return path
