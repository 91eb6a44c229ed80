"""`penstock run-book …`: an operator's procedures in steps, each recorded before it runs. Dagster has the same as jobs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from penstock.orchestration.commands.common import catch_up, fail, project, say, task_id
from penstock.orchestration.database import audit
from penstock.orchestration.database.models import RunBookState
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.run_books import PausedRecord, Request, RunBook, RunBookInputs, SkipRecord, approve, approved_run_book, reject
from penstock.orchestration.run_books.inputs import (
    RebuildGlobalStoreInputs,
    ReplayDeadLettersInputs,
    RestartInstanceInputs,
    RestoreGlobalTopicInputs,
    ResumeTaskInputs,
)
from penstock.orchestration.run_books.tasks import paused_at
from penstock.runtime.model.ids import TaskId

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

ApplicationName = Annotated[str, typer.Argument(help="The application.id, as in streams.toml.")]
TaskName = Annotated[str, typer.Argument(help="The task's id, SUBTOPOLOGY_PARTITION: `0_3`.")]
Reason = Annotated[str, typer.Option(help="Reason, for the audit trail.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only print what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
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
    """Move a paused task past the record that it is paused at.

    The raw record is stored in `<application>-dead-letter`, the committed offset moves by one, the task continues, the alert is closed.
    Every step is in `penstock audit`. Refused if the task is not paused at that record. Safe to run twice.
    """
    identity = task_id(task)
    with project() as operations:
        declared = operations.applications.named(application)
        found = _record(identity, record) if record else _record_in_the_way(operations, declared, identity)
        if not yes and not dry_run:
            typer.confirm(f"Skip {found} in task {identity} of {application}?", abort=True, err=True)
        _carry_out(SkipRecord(declared, operations.control_plane, found, _request(reason), _print), dry_run)


_NOT_OPTIONS = ("reason", "by", "dry_run", "run_book_run", "occurrence")
"""Inputs that are not options of their own: two that every command has, the user, whom it knows, and those of the policies."""


def _command(declared: type[RunBookInputs]) -> Callable[..., None]:
    """Return the command of a run-book, generated from its declaration."""

    def command(**options: object) -> None:
        asks = not options.pop("yes", True)
        try:
            inputs = declared.model_validate({name: value for name, value in options.items() if value is not None})
        except ValidationError as error:
            raise typer.BadParameter(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from error
        with project() as operations:
            book = inputs.run_book(operations, inputs.request(audit.this_user()), _print)
            question = inputs.question()
            if question is not None and asks and not inputs.dry_run:
                typer.confirm(question, abort=True, err=True)
            _carry_out(book, inputs.dry_run)

    parameters = [_parameter(name, field) for name, field in declared.model_fields.items() if name not in _NOT_OPTIONS]
    parameters += [_option("reason", "", Reason), _option("dry_run", False, DryRun)]
    if declared.question is not RunBookInputs.question:
        parameters.append(_option("yes", False, Yes))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    command.__doc__ = inspect.getdoc(declared)
    return command


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    if field.is_required():
        return _option(name, inspect.Parameter.empty, Annotated[field.annotation, typer.Argument(help=field.description)])
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    names = [str(extra["option"])] if "option" in extra else []
    return _option(name, field.get_default(), Annotated[field.annotation, typer.Option(*names, help=field.description)])


def _option(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# `skip-record` finds the record itself, and `penstock reset` shows the plan first: these two commands are not generated.
for each in (ResumeTaskInputs, ReplayDeadLettersInputs, RebuildGlobalStoreInputs, RestoreGlobalTopicInputs, RestartInstanceInputs):
    app.command(each.BOOK.NAME)(_command(each))


@app.command("approve")
def approve_run(run: Run) -> None:
    """Approve a run-book that a policy proposed (`start = "after-approval"`), and run it."""
    with project() as operations:
        actor = audit.this_user()
        approved = approve(operations.control_plane, run, actor)
        _carry_out(approved_run_book(operations, approved.id, actor, _print), dry_run=False)


@app.command("reject")
def reject_run(run: Run, reason: Reason = "no reason given") -> None:
    """Reject a run-book that a policy proposed."""
    with project() as operations:
        rejected = reject(operations.control_plane, run, audit.this_user(), reason)
        say(f"run {rejected.id}: {rejected.reason}")


def _carry_out(book: RunBook, dry_run: bool) -> None:
    """Run it and show its steps; or list them for a dry run. The exit status is 1 if it is refused, or would be."""
    if not dry_run:
        if book.run().state == RunBookState.REFUSED.value:
            raise typer.Exit(1)
        return
    plan = book.dry_run()
    for line in plan.lines:
        say(line)
    if plan.refused is not None:
        fail(f"would be refused: {plan.refused}")
    say("nothing was done (--dry-run)")


def _print(line: str) -> None:
    say(line)


def _request(reason: str) -> Request:
    return Request(requested_by=audit.this_user(), reason=reason)


def _record(task: TaskId, text: str) -> PausedRecord:
    match = re.fullmatch(r"(.+)-(\d+)@(\d+)", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not topic-partition@offset, for example flights-3@1201")
    return PausedRecord(task, match[1], int(match[2]), int(match[3]))


def _record_in_the_way(operations: Operations, application: Application, task: TaskId) -> PausedRecord:
    catch_up(operations, application)
    for name in application.instances:
        for row in operations.rows(name)[1]:
            record = paused_at(row)
            if row.task == str(task) and record is not None:
                return record
    fail(f"task {task} is not paused; `penstock tasks {application.id}` shows those that are")
