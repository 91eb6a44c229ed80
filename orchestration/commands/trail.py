"""`penstock audit|run-books`: the audit trail, and the runs of run-books."""

from __future__ import annotations

from typing import Annotated

import typer
from sqlalchemy import select

from penstock.orchestration.commands.common import clock, out, project, say
from penstock.orchestration.database import audit as trail
from penstock.orchestration.database.models import RunBookRun, RunBookState
from penstock.orchestration.drawing.console import Wrapped
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.event_text import brief

Application = Annotated[str | None, typer.Argument(help="The application.id. Default: all.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many, the newest.")]


def audit(application: Application = None, limit: Limit = 50) -> None:
    """Show who did what, oldest first: starts, stops, alerts, every step of every run-book."""
    with project() as operations, operations.control_plane.reading() as session:
        entries = trail.latest(session, application=application, limit=limit)
        if not entries:
            _check_declared(operations, application)
            out.print("the audit trail is empty")
        for entry in entries:
            named = (entry.instance or "").startswith(f"{entry.application}-")  # its instance's name says which application it is
            subject = " ".join(filter(None, (None if named else entry.application, entry.instance, entry.task)))
            out.print(Wrapped(f"{clock(entry.at)}  {entry.actor}: {entry.action}  {subject}".rstrip()))
            if details := brief(entry.detail):
                out.print(Wrapped(details, "dim", indent=4))


def _check_declared(operations: Operations, application: str | None) -> None:
    """Raise WrongDeclarationError for an application without declaration and without records: its name is misspelt."""
    if application is not None:
        operations.applications.named(application)


def run_books(application: Application = None, limit: Limit = 20) -> None:
    """Show runs of run-books with their steps, oldest first."""
    query = select(RunBookRun).order_by(RunBookRun.id.desc()).limit(limit)
    if application is not None:
        query = query.where(RunBookRun.application == application)
    with project() as operations, operations.control_plane.reading() as session:
        runs = session.scalars(query).all()
        if not runs:
            _check_declared(operations, application)
            out.print("no run-book has run")
        for run in reversed(runs):
            about = " ".join(filter(None, (run.application, run.task, run.subject)))
            out.print(f"[bold]run {run.id}[/bold]  {clock(run.requested_at)}  {run.run_book} {about}  {run.state}")
            if run.state == RunBookState.PROPOSED.value:
                say(f"    next: penstock run-book approve {run.id}")
            for step in run.steps:
                out.print(Wrapped(f"{step.number}. {step.name}: {step.state}  {brief(step.detail)}", indent=4))
            if run.reason:
                out.print(Wrapped(run.reason, indent=4))
