"""`penstock rehearse`: a new build beside the one in operation, over the same state and records, before it is deployed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from penstock.orchestration.commands.common import (
    Json,
    err,
    explained,
    explained_interrupt,
    hint,
    out,
    print_json,
    say,
    table,
    task_id,
    warn,
)
from penstock.orchestration.commands.run_book import ApplicationName
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.rehearsal_limits import ENGINES, allowances, span_ms
from penstock.orchestration.rehearsals.comparison import Difference
from penstock.orchestration.rehearsals.demand import compare
from penstock.orchestration.rehearsals.rehearsal import Comparison
from penstock.orchestration.rehearsals.repair import Repair, rehearsed_repair
from penstock.orchestration.rehearsals.reporter import Reporter
from penstock.orchestration.rehearsals.verdict import unknown_names
from penstock.runtime.model.ids import TaskId

EngineName = Annotated[
    str | None,
    typer.Option(
        metavar="spark|local|auto",
        help="Where it is computed. auto: on this machine, or for millions of records on the cluster of [spark]. Default: as declared, "
        "else auto.",
    ),
]
_DIFFERS = 1
_FOLLOWING = 10
_REJECTED_SHOWN = 5
_NOTHING_STAYS = "nothing is left of the rehearsal; the application was not touched"


def rehearse(
    application: ApplicationName,
    factory: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="The new build. Default: the declared factory, with the code as it is now."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Begin with the newest snapshot that is at least so old: 6h, 30min, 1d.")
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="At most so many records of each input partition. Default: all since the snapshot."),
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option(metavar="ID|URI", help="Begin with this snapshot. Default: the newest, or the one of --since.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N|P%|any",
            help="Keys of a store or topic that may differ, in number or percent; `rejected=N` for records. Once per name. Default: none.",
        ),
    ] = None,
    paused: Annotated[
        str | None,
        typer.Option(
            metavar="TASK", help="Rehearse a repair: run the record before which this task is paused, and N after it (default 10)."
        ),
    ] = None,
    engine: EngineName = None,
    as_json: Json = False,
) -> None:
    """Run a new build beside the one in operation, over the same state and records, and show what differs. Exit status 1 if anything does.

    Both begin with the state of one snapshot and process the records since then, on this machine or on Spark, without touching the
    application: nothing is written to Kafka or to its state. The build in operation is the code that an instance on this machine has kept
    when it started; the new one is the project's code now, or `--factory`.

    For each store and output topic: the number of rows of both, and the first keys with both values. A topology that does not fit the state
    is refused with the reasons that a start would give. `penstock docs rehearsals` says what is compared and what cannot be.

    **A repair:** with `--paused`, only that task runs, with its state from the newest snapshot before the pause. Shown is whether the
    record is read now, what it writes, and which entries of stores it changes. Exit status 1 if it or a record after it is rejected.

    **Examples**

    `penstock rehearse flight-board --since 6h` compares the code on disk with the code that runs.

    `penstock rehearse flight-board --factory new_board:build --records 10000 --allow hourly-delay=any`

    `penstock rehearse flight-board --paused 0_4` runs the record that cannot be read with the code on disk.
    """
    with explained(), explained_interrupt(_NOTHING_STAYS):
        if paused is not None:
            if since is not None or allow or engine is not None:
                raise typer.BadParameter("goes with --factory, --records and --snapshot alone", param_hint="--paused")
            following = _FOLLOWING if records is None else records
            _rehearse_repair(application, task_id(paused), factory, following, snapshot, as_json=as_json)
            return
        allowed = _parsed(allow or [], since)
        paths = ProjectPaths.find()
        declared = Applications.of(paths).named(application)
        with shown_progress() as reporter:
            found, failed = compare(
                paths,
                declared,
                reporter,
                factory=factory,
                since=since,
                records=records,
                snapshot=snapshot,
                allowed=allowed,
                engine=engine_of(engine),
            )
        for name in unknown_names(found, allowed):
            warn(f"--allow {name}: neither a store nor an output topic of these builds")
        if as_json:
            print_json({**found.data(), "failures": failed})
        else:
            show(found, failed)
        if failed:
            raise typer.Exit(_DIFFERS)


def _rehearse_repair(application: str, task: TaskId, factory: str | None, following: int, snapshot: str | None, *, as_json: bool) -> None:
    paths = ProjectPaths.find()
    declared = Applications.of(paths).named(application)
    with shown_progress() as reporter:
        repair = rehearsed_repair(paths, declared, task, reporter, factory=factory, following=following, snapshot=snapshot)
    if repair.snapshot is None and not repair.stateless:
        warn(
            f"no snapshot before the pause contains task {task}: it began without state. penstock snapshot take {application} takes "
            "one now, of paused tasks too"
        )
    if as_json:
        print_json(repair.data())
    else:
        _show_repair(repair)
    if repair.rejected:
        raise typer.Exit(_DIFFERS)


def _parsed(allow: Sequence[str], since: str | None) -> dict[str, str]:
    """Return the allowances. Raises BadParameter for one, or a duration, that is wrong."""
    try:
        allowed = allowances(allow)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--allow") from error
    try:
        span_ms(since or "1s")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from error
    return allowed


def engine_of(name: str | None) -> str | None:
    """Return the option's value. Raises BadParameter."""
    if name is not None and name not in ENGINES:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(ENGINES)}", param_hint="--engine")
    return name


@contextmanager
def shown_progress() -> Iterator[Reporter]:
    """Show the steps of a rehearsal, and how far each is."""
    bar = Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=err, transient=True)
    with bar:
        current = bar.add_task("", total=None, visible=False)

        def step(text: str) -> None:
            hint(text)
            bar.update(current, description=text, completed=0, total=None, visible=False)

        def progress(done: int, total: int) -> None:
            bar.update(current, completed=done, total=total, visible=True)

        yield Reporter(step, progress)


def show(found: Comparison, failed: Sequence[str]) -> None:
    """Print a comparison: both builds, then what differs, and the verdict last."""
    say(f"{found.records:,} records since snapshot {found.snapshot}")
    say(f"computed {found.engine}")
    columns = table("", "running build", "new build")
    for name, cells in _facts(found):
        columns.add_row(name, *cells)
    out.print(columns)
    for each in found.differences:
        say(difference_line(each))
        for key, before, after in found.texts.get(each.label, ()):
            say(f"  {key}: {before} -> {after}")
    for build, report in zip(found.builds, found.reports, strict=True):
        for rejected in report.rejected[:_REJECTED_SHOWN]:
            say(f"rejected by the {build.label} build: {rejected}: {rejected.error}{f' ({rejected.where})' if rejected.where else ''}")
        if report.rejections > _REJECTED_SHOWN:
            say(f"and {report.rejections - _REJECTED_SHOWN:,} more by the {build.label} build")
    for note in found.notes:
        warn(note)
    for text in failed:
        err.print(text, style="red", markup=False)
    if not failed:
        say("the new build passes")


def _facts(found: Comparison) -> Iterator[tuple[str, tuple[str, str]]]:
    (running, new), (before, after) = found.builds, found.reports
    yield "factory", (running.factory, new.factory)
    yield "rejected", (f"{before.rejections:,}", f"{after.rejections:,}")
    yield "dropped", (f"{before.dropped:,}", f"{after.dropped:,}")
    yield "records/s", (_rate(found.records, before.seconds), _rate(found.records, after.seconds))
    sizes = [sum(each.bytes[place] for each in found.differences) / 1e6 for place in (0, 1)]
    yield "state", (f"{sizes[0]:,.1f} MB", f"{sizes[1]:,.1f} MB")


def _rate(records: int, seconds: float) -> str:
    return f"{records / seconds:,.0f}" if seconds else ""


def difference_line(each: Difference, sides: tuple[str, str] = ("the running build", "the new one")) -> str:
    """Return a line about a store or topic. `sides`: what the two are called."""
    what = "rows" if each.kind == "store" else "records"
    rows = f"{each.rows[0]:,} {what}" if each.rows[0] == each.rows[1] else f"{each.rows[0]:,} and {each.rows[1]:,} {what}"
    if not each.differing:
        return f"{each.label}: {rows}, equal"
    parts = [
        *([f"{each.different:,} keys differ"] if each.different else []),
        *([f"{each.only_running:,} only in {sides[0]}"] if each.only_running else []),
        *([f"{each.only_new:,} only in {sides[1]}"] if each.only_new else []),
    ]
    return f"{each.label}: {rows}; {', '.join(parts)}"


def _show_repair(found: Repair) -> None:
    say(f"task {found.task} is paused at {found.at}: {found.paused.error}")
    build = found.build
    say(f"{build}: {'the record is processed' if found.read else 'the record is rejected again'}")
    after = found.records - 1
    others = sum(str(each) != found.at for each in found.rejected)
    say(f"records after it: {after:,}, of which {others:,} are rejected")
    for rejected in found.rejected[:_REJECTED_SHOWN]:
        say(f"rejected: {rejected}: {rejected.error}{f' ({rejected.where})' if rejected.where else ''}")
    say(f"writes {found.written:,} records{':' if found.outputs else ''}")
    for topic, key, value in found.outputs:
        say(f"  {topic}: {key} = {value}")
    if found.written > len(found.outputs):
        say(f"  and {found.written - len(found.outputs):,} more")
    for difference, samples in found.changes:
        say(f"store {difference.name}: {difference.differing:,} keys change")
        for key, before, now in samples:
            say(f"  {key}: {before} -> {now}")
    if found.snapshot is not None:
        hint(f"with the state of snapshot {found.snapshot}")
    if not found.rejected:
        hint(
            f"nothing was written. When this code runs (penstock deploy), penstock resume {found.application} {found.task} continues there"
        )
