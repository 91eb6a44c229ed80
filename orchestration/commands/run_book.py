"""`penstock run-book …`: what an operator would do, step by step, written down before it is done. The same as the jobs in Dagster."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

import typer

from orchestration import audit
from orchestration.applications import Application
from orchestration.commands.common import catch_up, fail, out, project, task_id
from orchestration.control_plane.models import RunBookState
from orchestration.operations import Operations
from orchestration.run_books import (
    Progress,
    RebuildGlobalStore,
    RecordInTheWay,
    ReplayDeadLetters,
    Request,
    RestartInstance,
    ResumeTask,
    RunBook,
    SkipRecord,
    approve,
    approved_run_book,
    reject,
)
from orchestration.run_books.tasks import paused_at
from runtime.ids import TaskId

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

ApplicationName = Annotated[str, typer.Argument(help="The application.id, as in streams.toml.")]
TaskName = Annotated[str, typer.Argument(help="The task's id, SUBTOPOLOGY_PARTITION: `0_3`.")]
Reason = Annotated[str, typer.Option(help="Why, for the audit trail.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Run = Annotated[int, typer.Argument(help="The number of the run, as the alert and `penstock run-books` show it.")]


@app.command("skip-record")
def skip_record(
    application: ApplicationName,
    task: TaskName,
    record: Annotated[str, typer.Option(help="The record, `topic-partition@offset`. Default: the one that the task is paused at.")] = "",
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Take the record that a task is paused at out of its way.

    The raw record is kept in `<application>-dead-letter`, the committed offset moves by one, the task goes on, the alert is closed. Every
    step is in `penstock audit`. Refused if the task is not paused at that record. Safe to run twice.
    """
    identity = task_id(task)
    with project() as operations:
        declared = operations.applications.named(application)
        found = _record(identity, record) if record else _record_in_the_way(operations, declared, identity)
        if not yes and not dry_run:
            typer.confirm(f"Skip {found} in task {identity} of {application}?", abort=True, err=True)
        _carry_out(lambda tell: SkipRecord(declared, operations.control_plane, found, _request(reason), tell), dry_run)


@app.command()
def resume(application: ApplicationName, task: TaskName, reason: Reason = "", dry_run: DryRun = False) -> None:
    """Let a paused task go on, from the offsets that are committed now."""
    identity = task_id(task)
    with project() as operations:
        declared = operations.applications.named(application)
        _carry_out(lambda tell: ResumeTask(declared, operations.control_plane, identity, _request(reason), tell), dry_run)


@app.command("replay-dead-letters")
def replay_dead_letters(
    application: ApplicationName,
    record: Annotated[
        list[str] | None, typer.Option(help="Only this one: where it stood, `topic-partition@offset`. May be repeated.")
    ] = None,
    error: Annotated[str, typer.Option(help="Only where this regular expression is found in `type: message` of the error.")] = "",
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """After a fix: dead letters go back into their input, each exactly once, in order per key among them.

    Refused where the raw record is gone, or was never kept. What was replayed before stays replayed, however often this is started.
    """
    with project() as operations:
        declared = operations.applications.named(application)
        if not yes and not dry_run:
            which = ", ".join(record or []) or "all dead letters"
            typer.confirm(f"Write {which} of {application} back to where they came from?", abort=True, err=True)

        def book(tell: Progress) -> RunBook:
            return ReplayDeadLetters(
                declared, operations.control_plane, _request(reason), tell, records=record or (), error=_pattern(error)
            )

        _carry_out(book, dry_run)


@app.command("rebuild-global-store")
def rebuild_global_store(
    application: ApplicationName,
    store: Annotated[str, typer.Argument(help="The store's name.")],
    instance: Annotated[str | None, typer.Option(help="Only on this instance. Default: all that run.")] = None,
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Have a global store wiped and read anew. Tasks that read it wait meanwhile, the others go on."""
    with project() as operations:
        declared = operations.applications.named(application)
        if not yes and not dry_run:
            typer.confirm(f"Wipe and rebuild {store} on {instance or f'all instances of {application}'}?", abort=True, err=True)

        def book(tell: Progress) -> RunBook:
            return RebuildGlobalStore(declared, operations.control_plane, store, _request(reason), tell, instance=instance)

        _carry_out(book, dry_run)


@app.command("restart-instance")
def restart_instance(
    instance: Annotated[str, typer.Argument(help="A name from streams.toml.")], reason: Reason = "", dry_run: DryRun = False
) -> None:
    """Close an instance cleanly and start it with the code and configuration of now. Its tasks stay reserved for it meanwhile."""
    with project() as operations:
        operations.applications.of_instance(instance)  # one that is not declared is named before anything is written down
        _carry_out(lambda tell: RestartInstance(operations, instance, _request(reason), tell), dry_run)


@app.command("approve")
def approve_run(run: Run) -> None:
    """Approve a run-book that a policy proposed (`start = "after-approval"`), and run it."""
    with project() as operations:
        actor = audit.this_user()
        approved = approve(operations.control_plane, run, actor)
        _carry_out(lambda tell: approved_run_book(operations, approved, actor, tell), dry_run=False)


@app.command("reject")
def reject_run(run: Run, reason: Reason = "no reason given") -> None:
    """Reject a run-book that a policy proposed."""
    with project() as operations:
        rejected = reject(operations.control_plane, run, audit.this_user(), reason)
        out.print(f"run {rejected.id}: {rejected.reason}", markup=False)


def _carry_out(book: Callable[[Progress], RunBook], dry_run: bool) -> None:
    """Runs it and shows its steps; or shows what it would do. The exit status is 1 where it is, or would be, refused."""
    made = book(lambda line: out.print(line, markup=False))
    if not dry_run:
        if made.run().state == RunBookState.REFUSED.value:
            raise typer.Exit(1)
        return
    told = made.dry_run()
    for line in told.lines:
        out.print(line, markup=False)
    if told.refused is not None:
        fail(f"would be refused: {told.refused}")
    out.print("nothing was done (--dry-run)", markup=False)


def _request(reason: str) -> Request:
    return Request(requested_by=audit.this_user(), reason=reason)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise typer.BadParameter(f"{text!r} is not a regular expression: {error}") from error
    return text


def _record(task: TaskId, text: str) -> RecordInTheWay:
    match = re.fullmatch(r"(.+)-(\d+)@(\d+)", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not topic-partition@offset, for example flights-3@1201")
    return RecordInTheWay(task, match[1], int(match[2]), int(match[3]))


def _record_in_the_way(operations: Operations, application: Application, task: TaskId) -> RecordInTheWay:
    catch_up(operations, application)
    for name in application.instances:
        for row in operations.look(name)[1]:
            record = paused_at(row)
            if row.task == str(task) and record is not None:
                return record
    fail(f"task {task} is not paused; `penstock tasks {application.id}` shows those that are")
