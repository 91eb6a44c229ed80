"""`penstock reset`: delete the state of an application."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from penstock.orchestration.commands.common import Servers, explained, fail, named, project, say
from penstock.orchestration.commands.run_book import ApplicationName, DryRun, Reason, Yes
from penstock.orchestration.database import audit
from penstock.orchestration.database.models import RunBookState
from penstock.orchestration.resets.target import Target
from penstock.orchestration.run_books import Request, ResetApplication


class Answer(StrEnum):
    """Value of an option: yes or no."""

    YES = "yes"
    NO = "no"


def reset(
    application: ApplicationName,
    to: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|TIME|OFFSETS",
            help="Start of the input. TIME: `2026-01-31T12:00:00` (UTC, unless it names a zone), or a duration back from now: `PT1H`. "
            "OFFSETS: `flights:0=100,flights:1=200`, or a file of lines `topic,partition,offset`.",
        ),
    ] = "earliest",
    delete_outputs: Annotated[Answer, typer.Option(help="Also delete the records of the output topics.")] = Answer.NO,
    internal_topics: Annotated[
        str, typer.Option(metavar="TOPICS", help="Also delete these internal topics, which no known topology has: `a,b`.")
    ] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Treat instances on other machines as dead if they are in no group and have not reported their close."
        ),
    ] = False,
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap_servers: Servers = None,
) -> None:
    """Delete an application's state, so that it begins as if it had never run: changelogs, repartition topics, committed offsets, local
    state, pauses and events.

    Every instance must be stopped (`penstock stop`). The command says what it will do, and asks. Safe to be killed and run again; until it
    has ended no instance starts. State on other machines is removed at their next start. Input topics, output topics, dead letters,
    snapshots, seeds and the audit trail are kept. `penstock docs reset` has the details.

    `penstock reset flight-board --dry-run`
    """
    try:
        target = Target.parse(to, audit.now())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from error
    with explained(), project(undeclared=bootstrap_servers is not None) as operations:
        declared = operations.applications.named(application) if bootstrap_servers is None else named(application, bootstrap_servers)

        def book() -> ResetApplication:
            return ResetApplication(
                operations,
                declared,
                target,
                Request(requested_by=audit.this_user(), reason=reason),
                say,
                delete_outputs=delete_outputs is Answer.YES,
                internal_topics=[name.strip() for name in internal_topics.split(",") if name.strip()],
                force=force,
                show_plan=False,  # it was shown before the question
            )

        plan = book().dry_run()
        for line in plan.lines:
            say(line)
        if plan.refused is not None:
            fail(f"{'would be refused' if dry_run else 'refused'}: {plan.refused}")
        if dry_run:
            say("nothing was done (--dry-run)")
            return
        if not yes:
            _ask(application)
        if book().run().state == RunBookState.REFUSED.value:
            raise typer.Exit(1)


def _ask(application: str) -> None:
    try:
        agreed = typer.confirm(f"Reset {application}?", err=True)
    except typer.Abort:  # no terminal, or Ctrl-C
        fail("nothing was done: there was no answer; in a script add --yes")
    if not agreed:
        fail("nothing was done")
