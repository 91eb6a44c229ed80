"""`penstock audit-state`: state computed again from its input, and held against the stream's."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import typer

from penstock.orchestration.commands.common import Json, explained_interrupt, hint, print_json, project, say, warn
from penstock.orchestration.commands.rehearse import EngineName, difference_line, engine_of, shown_progress
from penstock.orchestration.commands.run_book import ApplicationName
from penstock.orchestration.database import audit
from penstock.orchestration.rehearsals import state_audit
from penstock.orchestration.rehearsals.report import report_audit
from penstock.orchestration.rehearsals.state_audit import MOST_KEYS, StateAudit

_DIFFERS = 1
_SHOWN = 5


def audit_state(
    application: ApplicationName,
    day: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="From the last snapshot before this day (UTC) to the first one after it.")
    ] = None,
    first: Annotated[
        str | None, typer.Option("--from", metavar="ID|start", help="Snapshot to begin with. Default: the one before the last.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="ID", help="Snapshot to compare with. Default: the newest.")] = None,
    engine: EngineName = None,
    as_json: Json = False,
) -> None:
    """Compute the state of a snapshot again, from an earlier one and the records between them, and compare. Exit status 1 if it differs.

    The engine's own tasks do it, on this machine or on Spark, with the code that runs; the application is not touched. A difference is a
    lost or doubled record, damaged files, or code that was another one in between. It opens an alert per store; an audit without one
    resolves it. The keys are in a table in the project's home. `penstock docs rehearsals` says what cannot be compared.

    **Examples**

    `penstock audit-state flight-board --day 2026-11-25`

    `penstock audit-state flight-board --day 2026-11-25 --engine spark` computes the state on Spark, however few the records are.

    `penstock audit-state flight-board --from start` computes everything since the first record.
    """
    of_day = _day(day)
    if of_day is not None and (first or last):
        raise typer.BadParameter("goes without --from and --to", param_hint="--day")
    with project() as operations, explained_interrupt("nothing is left of the audit; the application was not touched"):
        declared = operations.applications.named(application)
        with shown_progress() as reporter:
            found = state_audit.audit_state(
                operations.paths, declared, reporter, day=of_day, first=first, last=last, engine=engine_of(engine)
            )
        report_audit(operations, declared, found, actor=audit.this_user())
        if as_json:
            print_json(found.data())
        else:
            _show(found)
        if found.differing:
            raise typer.Exit(_DIFFERS)


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a day: expected for example 2026-11-25", param_hint="--day") from error


def _show(found: StateAudit) -> None:
    begin = "the start" if found.first is None else f"snapshot {found.first}"
    say(f"{found.records:,} records from {begin} to snapshot {found.last}")
    say(f"computed {found.engine}")
    for each in found.differences:
        say(difference_line(each, ("the stream", "the computed state")))
        for key, stream, computed in found.texts.get(each.name, ())[:_SHOWN]:
            say(f"  {key}: {stream} -> {computed}")
    for note in found.notes:
        warn(note)
    if found.table is not None:
        say(f"differing keys (at most {MOST_KEYS:,} per store): {found.table}")
        hint("an alert is open for each store that differs: penstock alerts")
    else:
        say("the state is what its input gives")
