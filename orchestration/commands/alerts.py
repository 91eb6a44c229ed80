"""`penstock alerts …`: what went wrong, who looks after it, what became of it."""

from __future__ import annotations

from typing import Annotated

import typer
from sqlalchemy import select

from orchestration import alerts, audit
from orchestration.commands.common import brief, catch_up, clock, out, project, table
from orchestration.control_plane.models import Alert, AlertState

app = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)

Number = Annotated[int, typer.Argument(help="The alert's number.")]


@app.callback()
def list_alerts(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Resolved ones too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 50,
) -> None:
    """List alerts that are not resolved, newest last. Dagster's sensors open them: without Dagster nobody does."""
    if context.invoked_subcommand is not None:
        return
    with project() as operations:
        catch_up(operations)
        query = select(Alert).order_by(Alert.id.desc()).limit(limit)
        if not everything:
            query = query.where(Alert.state != AlertState.RESOLVED.value)
        with operations.control_plane.reading() as session:
            found = list(reversed(session.scalars(query).all()))
        if not found:
            out.print("no alerts")
            return
        shown = table("alert", "since", "severity", "state", "application", "what")
        for alert in found:
            shown.add_row(str(alert.id), clock(alert.opened_at), alert.severity, alert.state, alert.application, _plain(alert.title))
        out.print(shown)


@app.command()
def show(number: Number) -> None:
    """Show an alert with its details and its history."""
    with project() as operations, operations.control_plane.reading() as session:
        alert = session.get(Alert, number)
        if alert is None:
            raise alerts.UnknownAlertError(f"there is no alert {number}; `penstock alerts --all` lists them")
        out.print(f"[bold]alert {alert.id}[/bold] {alert.severity} {alert.state}  {_plain(alert.title)}")
        for key, value in alert.detail.items():
            if value is not None and not key.endswith("_base64"):
                out.print(f"  {key}: {value}", markup=False)
        for entry in audit.latest(session, alert_id=alert.id):
            out.print(f"{clock(entry.at)}  {entry.actor}: {entry.action}  {brief(entry.detail)}", markup=False)


@app.command()
def ack(number: Number) -> None:
    """Say that you look after an alert."""
    with project() as operations, operations.control_plane.writing() as session:
        alert = alerts.acknowledge(session, number, actor=audit.this_user(), at=audit.now())
        out.print(f"alert {alert.id} is {alert.state}")


@app.command()
def resolve(number: Number, reason: Annotated[str, typer.Option(help="Why it is over.")] = "resolved by hand") -> None:
    """Close an alert by hand. Those on pauses, recoveries and deaths close by themselves when it is over."""
    with project() as operations, operations.control_plane.writing() as session:
        alert = alerts.resolve(session, number, actor=audit.this_user(), at=audit.now(), resolution=reason)
        out.print(f"alert {alert.id} is {alert.state}")


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
