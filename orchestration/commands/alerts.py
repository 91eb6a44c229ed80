"""`penstock alerts …`: list, show, acknowledge, comment and resolve alerts."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text
from sqlalchemy import select
from sqlalchemy.orm import Session
from typer.core import TyperGroup

from penstock.orchestration.alerts import alert_text, alerts
from penstock.orchestration.alerts.incidents import INSTANCE_DIED
from penstock.orchestration.commands.common import (
    CompactRows,
    Json,
    JsonValue,
    Named,
    Servers,
    Watch,
    ago,
    ago_ms,
    catch_up,
    clock,
    explained,
    out,
    print_json,
    project,
    say,
    show,
    targets,
    warn,
)
from penstock.orchestration.database import ControlPlaneError, audit
from penstock.orchestration.database.models import Alert, AlertState, AuditEntry, Task, from_ms
from penstock.orchestration.declarations.applications import Application, Severity
from penstock.orchestration.drawing.console import Wrapped
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.event_text import brief
from penstock.orchestration.kafka.observer import Condition, Observer
from penstock.orchestration.run_books.tasks import paused_at
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.states import TaskKind, TaskState

if TYPE_CHECKING:
    from typer._click import Command, Context

_LAST = ("4.1 stack", "4.3 log excerpt")


class _Alerts(TyperGroup):
    """Group of commands in which an application's name stands for the list of its alerts: `penstock alerts shop`."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name = args[0]
        is_command = name in self.commands or name.startswith("-") or difflib.get_close_matches(name, self.commands)
        return super().resolve_command(ctx, args if is_command else ["list", "--application", *args])


app = typer.Typer(cls=_Alerts, rich_markup_mode="markdown", invoke_without_command=True)

Number = Annotated[int, typer.Argument(help="The alert's number.")]
Everything = Annotated[bool, typer.Option("--all", help="Include resolved alerts.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many, the newest.")]


@app.callback()
@app.command("list", help="List alerts, like `penstock alerts` alone.")
def alerts_or_list(
    context: typer.Context,
    everything: Everything = False,
    limit: Limit = 50,
    application: Named = None,
    bootstrap_servers: Servers = None,
    as_json: Json = False,
    watch: Watch = None,
) -> None:
    """List unresolved alerts, the most severe first; `penstock alerts shop`: those of one application. Dagster's sensors open them.

    Problems that Kafka shows and that have no alert are listed below them.

    If the database is away, or with `--bootstrap-servers`, it shows the current problems according to Kafka.
    """
    if context.invoked_subcommand is not None:
        return

    def make() -> RenderableType | JsonValue:
        if bootstrap_servers is not None:
            return _from_kafka("the database was not read", application, bootstrap_servers, as_json)
        try:
            return _from_database(everything, limit, application, as_json)
        except ControlPlaneError as error:
            return _from_kafka(str(error), application, None, as_json)

    with explained():
        show(make, as_json=as_json, watch=watch)


@app.command("show")
def show_alert(number: Number, as_json: Json = False) -> None:
    """Show an alert with its details, the bad record, its history, and the next commands."""
    with project() as operations, operations.control_plane.reading() as session:
        alert = alerts.get(session, number, lock=False)
        history = audit.latest(session, alert_id=alert.id, limit=1_000)
        if as_json:
            print_json({**_row(alert), "detail": alert.detail, "next": alert_text.next_commands(alert), "history": _history_rows(history)})
            return
        _print_alert(alert)
        _print_history(history)


@app.command()
def history(number: Number, as_json: Json = False) -> None:
    """Show who did what with an alert: opened, sent, acknowledged, commented, resolved."""
    with project() as operations, operations.control_plane.reading() as session:
        entries = audit.latest(session, alert_id=alerts.get(session, number, lock=False).id, limit=1_000)
        if as_json:
            print_json(_history_rows(entries))
        else:
            _print_history(entries)


@app.command()
def ack(number: Number, comment: Annotated[str, typer.Option(help="Text of the comment.")] = "") -> None:
    """Acknowledge an alert: record that you take care of it."""
    with project() as operations, operations.control_plane.writing() as session:
        alert = alerts.acknowledge(session, number, actor=audit.this_user(), at=audit.now())
        if comment:
            alerts.comment(session, number, comment, actor=audit.this_user(), at=audit.now())
        out.print(f"alert {alert.id} is {alert.state}")


@app.command("comment")
def comment_alert(number: Number, text: Annotated[str, typer.Argument(help="Text of the comment.")]) -> None:
    """Add a comment to an alert's history."""
    with project() as operations, operations.control_plane.writing() as session:
        alerts.comment(session, number, text, actor=audit.this_user(), at=audit.now())
        out.print(f"alert {number} has your comment")


@app.command()
def resolve(number: Number, reason: Annotated[str, typer.Option(help="Reason, for the audit trail.")] = "resolved by hand") -> None:
    """Close an alert manually. Alerts on pauses, recoveries, deaths and checks close automatically when the problem is over."""
    with project() as operations, operations.control_plane.writing() as session:
        alert = alerts.resolve(session, number, actor=audit.this_user(), at=audit.now(), resolution=reason)
        out.print(f"alert {alert.id} is {alert.state}")


def _from_database(everything: bool, limit: int, application: str | None, as_json: bool) -> RenderableType | JsonValue:
    operations = Operations.find()
    try:
        with operations.control_plane.reading():
            pass  # fails here if the database is away, before a broker is contacted
        named = [operations.applications.named(application)] if application is not None else []
        catch_up(operations, *named)
        query = select(Alert).order_by(Alert.id.desc()).limit(limit)
        if not everything:
            query = query.where(Alert.state != AlertState.RESOLVED.value)
        if application is not None:
            query = query.where(Alert.application == application)
        conditions = [each for one in named or operations.applications.applications for each in _known_conditions(one)]
        with operations.control_plane.reading() as session:
            found = list(reversed(session.scalars(query).all()))
            unseen = [*_paused_without_alert(session, application), *_without_alert(session, conditions)]
    finally:
        operations.control_plane.close()
    if as_json:
        return [*(_row(alert) for alert in found), *unseen]
    notes = [Wrapped(f"no alert yet (Dagster's sensors open them): {row['what']}", "yellow") for row in unseen]
    if not found:
        return Group(*notes, *_hints(unseen)) if notes else Text("no alerts")
    several = len({alert.application for alert in found}) > 1
    cells: list[dict[str, str | Text]] = [
        {
            "alert": str(alert.id),
            "since": ago(alert.opened_at),
            "severity": Text(alert.severity, style="red" if alert.severity == Severity.ERROR.value else ""),
            "state": "" if alert.state == AlertState.OPEN.value else alert.state,
            "count": str(alert.count) if alert.count > 1 else "",
            "application": alert.application if several else "",
            "what": alert.title,
        }
        for alert in sorted(found, key=lambda alert: (-Severity(alert.severity).rank, -alert.id))
    ]
    more = Wrapped("penstock alerts show N: the details, and the next commands", "dim")
    return Group(CompactRows(cells, ("alert", "since", "severity", "state")), *notes, *_hints(unseen), more)


def _hints(unseen: Sequence[dict[str, object]]) -> list[Wrapped]:
    """Return the next commands for problems without an alert."""
    return [Wrapped(str(hint), "dim") for hint in dict.fromkeys(row["next"] for row in unseen)]


def _paused_without_alert(session: Session, application: str | None) -> list[dict[str, object]]:
    """Return paused tasks without an alert: no sensor runs, or the database is new."""
    covered = {(alert.application, alert.subject) for alert in session.scalars(select(Alert))}
    query = select(Task).where(Task.state == TaskState.PAUSED.value, Task.kind == TaskKind.ACTIVE.value)
    rows: list[dict[str, object]] = []
    for task in session.scalars(query if application is None else query.where(Task.application == application)):
        place = str(paused_at(task))
        if not covered & {(task.application, place), (task.application, task.application)}:  # the second: a bad deploy
            what = f"task {task.task} on {task.instance} is paused at {place}"
            skip = f"penstock skip {task.application} {task.task}: skip the record"
            row = {"application": task.application, "source": "kafka", "kind": "TASK_PAUSED", "subject": place, "what": what, "next": skip}
            rows.append(dict(row))
    return rows


def _without_alert(session: Session, conditions: Sequence[tuple[str, Condition]]) -> list[dict[str, object]]:
    """Return problems visible on Kafka, except paused tasks, without an alert: no sensor runs, or the database is new."""
    all_alerts = session.scalars(select(Alert)).all()
    return [
        {
            "application": application,
            "source": "kafka",
            "kind": each.kind,
            "subject": each.subject,
            "what": f"{each.kind} {each.subject}: {each.what}",
            "next": f"penstock describe {application}: its instances, tasks and last events",
        }
        for application, each in conditions
        if each.kind != "TASK_PAUSED" and not any(_covers(alert, application, each) for alert in all_alerts)
    ]


def _covers(alert: Alert, application: str, condition: Condition) -> bool:
    """Return True if an alert covers a condition: an instance's silence while the alert is unresolved, an event if it is counted."""
    if alert.application != application:
        return False
    if condition.kind == "INSTANCE_SILENT":
        about = alert.kind == condition.kind or (alert.kind == INSTANCE_DIED and alert.instance == condition.subject)
        return about and alert.state != AlertState.RESOLVED.value
    known = (alert.kind, alert.subject) == (condition.kind, condition.subject)
    return known and (condition.since_ms is None or alert.last_seen_at >= from_ms(condition.since_ms))


def _known_conditions(application: Application) -> list[tuple[str, Condition]]:
    """Return the same as `_conditions`; if no broker answers, print a warning and return nothing: the database still has its alerts."""
    try:
        return _conditions(Observer(application.id, application.connection))
    except BrokerUnavailableError as error:
        warn(f"{error}. Problems without an alert are not shown.")
        return []


def _conditions(observer: Observer) -> list[tuple[str, Condition]]:
    """Return the problems of an application that are visible on Kafka, with its name; nothing if it was never started. Raises
    BrokerUnavailableError."""
    try:
        return [(observer.application, condition) for condition in observer.conditions(time.time_ns() // 1_000_000)]
    except StreamsError as error:
        if "does not exist" not in str(error):
            raise
    return []


def _from_kafka(reason: str, application: str | None, servers: str | None, as_json: bool) -> RenderableType | JsonValue:
    """Show the current problems visible on Kafka, and state that they come from Kafka alone."""
    warn(f"{reason}. Only problems that Kafka shows are listed; numbers, acknowledgements, comments and history are in the database.")
    found = [each for target in targets(application, servers) for each in _conditions(target.observer)]
    if as_json:
        names = ("kind", "severity", "subject", "what", "since_ms")
        return [{"application": name, "source": "kafka", **{key: getattr(each, key) for key in names}} for name, each in found]
    if not found:
        return Text("no problem is visible in Kafka")
    several = len({name for name, _ in found}) > 1
    cells: list[dict[str, str | Text]] = [
        {
            "since": ago_ms(each.since_ms),
            "severity": Text(each.severity, style="red" if each.severity == Severity.ERROR.value else ""),
            "kind": each.kind,
            "application": name if several else "",
            "what": each.what,
        }
        for name, each in sorted(found, key=lambda entry: -Severity(entry[1].severity).rank)
    ]
    return CompactRows(cells, ("severity", "kind", "since"))


def _row(alert: Alert) -> dict[str, object]:
    names = ("id", "kind", "severity", "state", "application", "instance", "task", "subject", "title", "count", "resolution")
    times = ("opened_at", "last_seen_at", "acknowledged_at", "acknowledged_by", "resolved_at", "resolved_by")
    return {name: getattr(alert, name) for name in (*names, *times)}


def _history_rows(entries: Sequence[AuditEntry]) -> list[dict[str, object]]:
    return [{"at": entry.at, "actor": entry.actor, "action": entry.action, "detail": entry.detail} for entry in entries]


def _print_alert(alert: Alert) -> None:
    """Print an alert in the order of need; stack and log, which are long, come last."""
    out.print(Wrapped(f"alert {alert.id} {alert.severity} {alert.state}  {alert.title}", "bold"))
    sections = alert_text.sections(alert, whole=True)
    del sections["1 what"]
    repair = "next" if alert.state != AlertState.RESOLVED.value else "resolved"
    for name in sorted(sections, key=lambda name: (name in _LAST, name)):
        _, _, heading = name.partition(" ")
        out.print(Wrapped(f"{repair if heading == 'repair' else heading}:", "bold"))
        for line in sections[name].split("\n"):
            if line.startswith("penstock "):
                say(f"  {line}")  # to be copied, so it is one line
            else:
                out.print(Wrapped(line, indent=2))


def _print_history(entries: Sequence[AuditEntry]) -> None:
    for entry in entries:
        out.print(Wrapped(f"{clock(entry.at)}  {entry.actor}: {entry.action}"))
        if details := brief(entry.detail):
            out.print(Wrapped(details, "dim", indent=4))
