"""`penstock doctor`: whether an application would start here, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from penstock.orchestration.commands.common import Json, explained_interrupt, out, print_json
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.doctor.examination import examined
from penstock.orchestration.doctor.finding import Finding, Outcome
from penstock.orchestration.drawing.console import Wrapped
from penstock.orchestration.rights import Role

_STYLES = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.WRONG: "red", Outcome.UNKNOWN: "dim"}
_INDENT = 11


def doctor(
    application: Annotated[str | None, typer.Argument(help="The application.id. Default: all that are declared.")] = None,
    role: Annotated[Role, typer.Option(help="Whose rights the login of this environment should have.")] = Role.INSTANCE,
    as_json: Json = False,
) -> None:
    """Look at everything that a start needs, and say what is wrong and the way out. Changes nothing. Exit status 1 if something is wrong.

    It looks at: room in the state folder, open files; configuration, variables and the factory; the brokers, their versions and the login;
    input and output topics, their copies; whether topology, topics and state fit together, as before a deploy; each right that
    `penstock acls` lists; clocks; quotas that slow this client down.

    Each line is **ok**; a **warning**: a start works; **wrong**: a start fails; or **unknown**: it could not be looked at. All problems are
    listed, also if no broker answers. Run it with the environment of the instances, whose login it uses.

    **Examples**

    `penstock doctor flight-board`

    `KAFKA_USER=ops penstock doctor flight-board --role operator` looks at the rights of the command line and Dagster.

    `penstock doctor --json | jq '.[] | select(.outcome == "wrong")'`
    """
    wrong, rows = False, []
    with explained_interrupt("nothing was changed"):
        for name, finding in _findings(application, role):
            wrong |= finding.outcome is Outcome.WRONG
            rows.append({"application": name, **_row(finding)})
            if not as_json:
                _show(name, finding, first=len(rows) == 1 or rows[-2]["application"] != name)
    if as_json:
        print_json(rows)
    if wrong:
        raise typer.Exit(1)


def _findings(application: str | None, role: Role) -> Iterator[tuple[str, Finding]]:
    paths = ProjectPaths.find()
    try:
        declared = Applications.of(paths)
        chosen = list(declared.applications) if application is None else [declared.named(application)]
    except ExpectedError as error:
        yield application or "", Finding("streams.toml", Outcome.WRONG, str(error), "correct it: `penstock where` shows which file it is")
        return
    if not chosen:
        yield "", Finding("streams.toml", Outcome.WRONG, "no application is declared", "penstock init makes a project")
    for each in chosen:
        yield from ((each.id, finding) for finding in examined(paths, each, role))


def _row(finding: Finding) -> dict[str, object]:
    return {"subject": finding.subject, "outcome": finding.outcome.value, "text": finding.text, "remedy": finding.remedy}


def _show(application: str, finding: Finding, *, first: bool) -> None:
    """Print a finding as soon as it is known: some take seconds."""
    if first and application:
        out.print(Wrapped(application, "bold"))
    style = _STYLES[finding.outcome]
    out.print(Wrapped(f"{finding.outcome:<8} {finding.subject}: {finding.text}", style))
    if finding.remedy:
        out.print(Wrapped(finding.remedy, "", _INDENT))
