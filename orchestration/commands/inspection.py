"""`penstock status|tasks|events|describe`: the published state of applications, read from Kafka only.

These commands need neither Dagster nor the database, and with `--bootstrap-servers` and `--application` not even `streams.toml`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from penstock.orchestration.commands.common import (
    CompactRows,
    Json,
    JsonValue,
    Named,
    Servers,
    Target,
    Watch,
    ago_ms,
    clock,
    explained,
    show,
    targets,
)
from penstock.orchestration.declarations.unknown_names import unknown
from penstock.orchestration.drawing import with_call_sites
from penstock.orchestration.drawing.console import Wrapped
from penstock.orchestration.drawing.live import newest_call_sites, newest_text
from penstock.orchestration.instances.launcher import Launcher
from penstock.orchestration.instances.seen_states import NOT_RUNNING, lives, state_of
from penstock.orchestration.kafka.event_text import brief, one_line
from penstock.orchestration.kafka.idle_tasks import idle_tasks
from penstock.orchestration.kafka.observer import FREQUENT, Flows, Observer, Picture
from penstock.runtime.coordination.records import GlobalStoreReport, TaskReport
from penstock.runtime.kafka.throttling import throttled
from penstock.runtime.model.clock import from_ms
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.stores.process_memory import RESIDENT
from penstock.runtime.topology.input_growth import remedies
from penstock.runtime.worker.input_partitions import INTERVAL_SECONDS

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[INSTANCE|APPLICATION]...", help="An application's name means all its instances. Default: all instances."),
]
Application = Annotated[str | None, typer.Argument(help="The application.id. Default: all that are declared.")]
Row = dict[str, object]
_PAUSES_SHOWN = 5
"""Paused tasks that `status` lists for each application."""
_MOST_ERROR = 300
"""Characters of a paused task's error that a line shows; the alert has the whole text."""
_WHOLE_RATE = 10.0
"""From this rate on, a table shows whole records per second."""


def status(
    names: Names = None, application: Named = None, bootstrap_servers: Servers = None, as_json: Json = False, watch: Watch = None
) -> None:
    """Show the instances: desired and current state; tasks that no instance runs, with the reason; and partitions of input topics that no
    task reads.

    The exit status is 1 if there are such tasks or partitions, if an instance that is wanted does not run, or if a reset has not ended.

    Read from Kafka alone: from any machine that reaches the brokers, with Dagster and the database away.
    """
    missing = False

    def make() -> RenderableType | JsonValue:
        nonlocal missing
        known = targets(application, bootstrap_servers)
        rows = [row for target in _asked(known, names or []) for row in _status(target)]
        rows = _named_rows(rows, [target.observer.application for target in known], names or [])
        missing = any(_is_missing(row) or row["idle_tasks"] or row["unread_partitions"] or row["unfinished_reset"] for row in rows)
        return rows if as_json else Group(*_status_problems(rows), *_status_table(rows, detailed=_one_by_one(rows, names or [])))

    with explained():
        show(make, as_json=as_json, watch=watch)
    if missing:
        raise typer.Exit(1)


def tasks(
    application: Application = None, named: Named = None, bootstrap_servers: Servers = None, as_json: Json = False, watch: Watch = None
) -> None:
    """List tasks and global stores with state, lag, age of the last checkpoint, the progress of a restore, and the record that a paused
    task waits at. Read from Kafka alone."""

    def make() -> RenderableType | JsonValue:
        rows = [row for target in targets(application or named, bootstrap_servers) for row in _tasks(_picture(target))]
        return rows if as_json else Group(*_task_problems(rows), *_tasks_table(rows))

    with explained():
        show(make, as_json=as_json, watch=watch)


def events(
    application: Application = None,
    named: Named = None,
    bootstrap_servers: Servers = None,
    kind: Annotated[str | None, typer.Option(help="Only of this kind: `TASK_PAUSED`.")] = None,
    task: Annotated[str | None, typer.Option(help="Only of this task: `0_3`.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many, the newest.")] = 50,
    as_json: Json = False,
    watch: Watch = None,
) -> None:
    """Show the applications' events, oldest first: states, assignments, restores, pauses, checkpoints. Read from Kafka alone."""

    def make() -> RenderableType | JsonValue:
        wanted = None if kind is None else _kind(kind)
        found = [event for target in targets(application or named, bootstrap_servers) for event in _events(target, limit, wanted, task)]
        newest = sorted(found, key=lambda event: event.at_ms)[-limit:]
        return [_event_row(event) for event in newest] if as_json else _events_text(newest)

    with explained():
        show(make, as_json=as_json, watch=watch)


def describe(
    application: Application = None,
    named: Named = None,
    bootstrap_servers: Servers = None,
    topology: Annotated[bool, typer.Option("--topology", "-t", help="Also show the topology.")] = False,
    as_json: Json = False,
    watch: Watch = None,
) -> None:
    """Describe an application: what is wrong, its instances, its tasks, what happened last, and with --topology its topology. Read from
    Kafka alone."""

    def make() -> RenderableType | JsonValue:
        described = [_describe(target) for target in targets(application or named, bootstrap_servers)]
        return described if as_json else Group(*(part for one in described for part in _description(one, topology)))

    with explained():
        show(make, as_json=as_json, watch=watch)


def picture_of(observer: Observer) -> Picture:
    """Return the picture of an application; an empty one if it was never started."""
    try:
        return observer.observe()
    except StreamsError as error:
        if "does not exist" not in str(error):
            raise
        return Picture(observer.application, {}, {}, {}, None)


def _picture(target: Target) -> Picture:
    return picture_of(target.observer)


def _events(target: Target, limit: int, kind: str | None, task: str | None, without: Collection[EventKind] = ()) -> list[Event]:
    try:
        return target.observer.events(limit, kind, task, without=without)
    except StreamsError as error:
        if "does not exist" not in str(error):
            raise
        return []


def _status(target: Target) -> list[Row]:
    picture = _picture(target)
    idle = [{"task": each.task, "reason": each.reason} for each in idle_tasks(picture, lives, time.time_ns() // 1_000_000)]
    runs = any(lives(member) for member in picture.members.values())  # a start takes up new partitions, or is refused because of them
    unread = [asdict(each) for each in picture.unread] if runs else []
    of_all = {"idle_tasks": idle, "unread_partitions": unread, "unfinished_reset": picture.reset_text}
    return [{**_instance_row(picture, name, target.launcher), **of_all} for name in picture.instances(target.instances)]


def _asked(known: Sequence[Target], names: Sequence[str]) -> Sequence[Target]:
    """Return the applications to read: those named, if each name is one's or that of an instance it declares; else all."""
    found = [target for target in known if target.observer.application in names or not {*target.instances}.isdisjoint(names)]
    named = {name for target in found for name in (target.observer.application, *target.instances)}
    return found if names and named.issuperset(names) else known


def _named_rows(rows: Sequence[Row], applications: Sequence[str], names: Sequence[str]) -> list[Row]:
    """Return the rows of these instances; an application's name, unless an instance has it too, means all of its own. Raises
    StreamsError for an unknown name."""
    instances = {str(row["instance"]) for row in rows}
    whole = {name for name in names if name not in instances and name in applications}
    if strangers := {*names} - instances - whole:
        raise StreamsError(unknown("instance or application", min(strangers), [*sorted(instances), *applications], how="known"))
    return [row for row in rows if not names or row["instance"] in names or row["application"] in whole]


def _one_by_one(rows: Sequence[Row], names: Sequence[str]) -> bool:
    """Return True if instances were named, or there is one alone: their memory is shown by part."""
    return len(rows) == 1 or any(row["instance"] in names for row in rows)


def _instance_row(picture: Picture, name: str, launcher: Launcher | None) -> Row:
    member, desired = picture.member(name), picture.desired.get(name)
    workers, state = picture.workers(name), state_of(picture, name, launcher)
    reports = [report for worker in workers for report in worker.tasks.values()]
    active = [report for report in reports if report.kind is TaskKind.ACTIVE]
    runs = state not in (*NOT_RUNNING, "stopped")
    flows = Flows.together(picture.flows.get(worker.identity, Flows()) for worker in workers) if runs else Flows(0.0, 0.0)
    return {
        "application": picture.application,
        "instance": name,
        "wanted": desired is not None and desired.running,
        "state": state,
        "ended": _end(name, launcher, picture.heard_ms.get(name)) if state in NOT_RUNNING else None,
        "host": None if member is None else member.host,
        "process": None if member is None else member.pid,
        "heartbeat_ms": None if member is None else member.heartbeat_ms,
        "workers": len(workers),
        "tasks": len(active),
        "paused": sum(report.state is TaskState.PAUSED for report in active),
        "pauses": [_task_row(picture.application, *row) for row in _paused_tasks(picture, name)],
        "restoring": sum(report.state is TaskState.RESTORING for report in active),
        "standbys": sum(report.kind is TaskKind.STANDBY for report in reports),
        "learners": sum(report.kind is TaskKind.LEARNER for report in reports),
        "lag": sum(report.lag or 0 for report in active),
        "in_per_s": _rounded(flows.read),
        "out_per_s": _rounded(flows.written),
        "throttled_ms": max((worker.throttled_ms for worker in workers), default=0),
        "memory": dict(sum((Counter(worker.memory) for worker in workers), Counter[str]())),
        "log": None if member is None else member.log_path,
    }


def _end(name: str, launcher: Launcher | None, heard_ms: int | None) -> str | None:
    """Return how the instance's last process ended, with the error. None if it still runs, was on another machine, or nothing is known.
    `heard_ms`: time of the instance's last heartbeat."""
    process = None if launcher is None else launcher.last(name)
    if launcher is None or process is None or process.alive:
        return None
    heard = None if heard_ms is None or heard_ms < process.created * 1000 else heard_ms / 1000
    return launcher.cause_of_end(process, heard)


def _missing_line(row: Row) -> Wrapped:
    ended = f"; its process died {row['ended']}" if row["ended"] else ""
    return Wrapped(f"instance {row['instance']} should run: it is {row['state']}{ended}", "red")


def _status_problems(rows: Sequence[Row]) -> list[Wrapped]:
    """Return a line for each thing that is wrong."""
    resets = dict.fromkeys(str(row["unfinished_reset"]) for row in rows if row["unfinished_reset"])
    missing = (_missing_line(row) for row in rows if _is_missing(row))
    stopped = [*(Wrapped(text, "red") for text in resets), *missing, *_idle_lines(rows), *_pause_lines(rows)]
    return [*stopped, *_throttled_lines(rows), *_unread_lines(rows)]


def _throttled_lines(rows: Sequence[Row]) -> Iterator[Wrapped]:
    for row in rows:
        delay_ms = row["throttled_ms"]
        if isinstance(delay_ms, int) and delay_ms:
            yield Wrapped(f"instance {throttled(str(row['instance']), delay_ms)}", "yellow")


def _status_table(rows: Sequence[Row], *, detailed: bool) -> list[RenderableType]:
    """Return the instances, in the columns that say something: hosts if there are several, counts if one is not 0; and their logs.
    `detailed`: also the parts of their memory."""
    hosts = {row["host"] for row in rows if row["host"]}
    all_wanted = all(row["wanted"] for row in rows)
    cells: list[dict[str, str | Text]] = [
        {
            "instance": str(row["instance"]),
            "wanted": "" if all_wanted else "yes" if row["wanted"] else "no",
            "state": Text(str(row["state"]), style="red" if _is_missing(row) else ""),
            "host": str(row["host"] or "") if len(hosts) > 1 else "",
            "process": "" if row["state"] == "stopped" else str(row["process"] or ""),
            "heartbeat": ago_ms(row["heartbeat_ms"] if isinstance(row["heartbeat_ms"], int) else None),
            "tasks": str(row["tasks"]),
            "paused": Text(str(row["paused"]), style="red" if row["paused"] else ""),
            "restoring": str(row["restoring"]),
            "standbys": str(row["standbys"]),
            "lag": _lag(row["lag"], paused=bool(row["paused"])),
            "in/s": _rate(row["in_per_s"]),
            "out/s": _rate(row["out_per_s"]),
            "MiB": "" if row["state"] == "stopped" else _mib(_memory(row).get(RESIDENT)),
        }
        for row in rows
    ]
    memory = [line for row in rows if detailed and row["state"] != "stopped" and (line := _memory_line(row)) is not None]
    return [CompactRows(cells, ("instance", "state")), *memory, *_log_lines(rows)]


def _pause_lines(rows: Sequence[Row]) -> Iterator[Wrapped]:
    """Yield a line for each of the first paused tasks of an application, and one for the others."""
    paused: dict[str, list[str]] = {}
    for row in rows:
        pauses = row["pauses"]
        paused.setdefault(str(row["application"]), []).extend(map(_pause, pauses) if isinstance(pauses, list) else [])
    for application, lines in paused.items():
        yield from (Wrapped(f"{line} ({application})" if len(paused) > 1 else line, "red") for line in lines[:_PAUSES_SHOWN])
        if len(lines) > _PAUSES_SHOWN:
            yield Wrapped(f"and {len(lines) - _PAUSES_SHOWN} more paused tasks: penstock tasks {application}", "red")


def _log_lines(rows: Sequence[Row]) -> Iterator[Wrapped]:
    """Yield where the logs are: one line if they are in one folder and have the instances' names."""
    logs = {str(row["instance"]): Path(str(row["log"])) for row in rows if row["log"]}
    folders = {log.parent if log.name == f"{name}.log" else log for name, log in logs.items()}
    if len(logs) > 1 and len(folders) == 1:
        yield Wrapped(f"logs: {folders.pop()}/<instance>.log", "dim")
    else:
        yield from (Wrapped(f"log of {name}: {log}", "dim") for name, log in logs.items())


def _lag(lag: object, *, paused: bool) -> str:
    """Format a lag. That of a paused task was measured when it paused, since it reads nothing, so it is a lower bound."""
    return "" if lag is None else f"≥ {lag}" if paused and lag else str(lag)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def _rate(rate: object) -> str:
    """Format a rate, which is empty if unknown."""
    return f"{rate:.{0 if rate >= _WHOLE_RATE else 1}f}".removesuffix(".0") if isinstance(rate, float) else ""


def _is_missing(row: Row) -> bool:
    """Return True for an instance that is wanted and does not run."""
    return bool(row["wanted"]) and row["state"] in NOT_RUNNING


def _memory(row: Row) -> dict[str, int]:
    """Return the bytes of an instance's processes by part; empty if it does not run."""
    found = row["memory"]
    return found if isinstance(found, dict) else {}


def _memory_line(row: Row) -> Wrapped | None:
    parts = [f"{name} {_mib(size)}" for name, size in _memory(row).items() if name != RESIDENT and _mib(size) != "0"]
    return Wrapped(f"memory of {row['instance']}, MiB: {', '.join(parts)}", "dim") if parts else None


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.0f}"


def _idle_lines(rows: Sequence[Row]) -> list[Wrapped]:
    """Return one line for each task that no instance runs; all rows of an application list the same ones."""
    idle = {str(row["application"]): row["idle_tasks"] for row in rows}
    return [
        Wrapped(f"task {each['task']} of {application} is run by no instance: {each['reason']}", "red")
        for application, tasks in idle.items()
        if isinstance(tasks, list)
        for each in tasks
    ]


def _unread_lines(rows: Sequence[Row]) -> list[Wrapped]:
    """Return one line for each input topic with partitions that no task reads; all rows of an application list the same ones."""
    unread = {str(row["application"]): row["unread_partitions"] for row in rows}
    return [
        Wrapped(_unread_text(application, each["topic"], each["read"], each["partitions"]), "red")
        for application, topics in unread.items()
        if isinstance(topics, list)
        for each in topics
    ]


def _unread_text(application: str, topic: str, read: int, partitions: int) -> str:
    reason = f"penstock events {application} --kind {EventKind.INPUT_PARTITIONS_ADDED.value}"
    return (
        f"input topic {topic} of {application} has {partitions} partitions, and tasks read the first {read}. If this stays for more than "
        f"{INTERVAL_SECONDS:.0f} s, the others cannot be taken up, with the reason in {reason}. {remedies(topic, read, application)}"
    )


def _paused_tasks(picture: Picture, name: str) -> list[tuple[str, str, TaskReport]]:
    """Return the paused tasks of an instance."""
    paused = [each for each in picture.reports() if each[1] == name and each[2].state is TaskState.PAUSED]
    return [each for each in paused if each[2].kind is TaskKind.ACTIVE and each[2].paused is not None]


def _tasks(picture: Picture) -> list[Row]:
    rows = [_task_row(picture.application, task, instance, report) for task, instance, report in picture.reports()]
    return rows + [_global_row(picture.application, *copy) for copy in picture.global_stores()]


def _task_row(application: str, task: str, instance: str, report: TaskReport) -> Row:
    paused = report.paused
    return {
        "application": application,
        "task": task,
        "instance": instance,
        "kind": report.kind.value,
        "state": report.state.value,
        "lag": report.lag,
        "position": report.position,
        "restore": None if report.restore is None else msgspec.structs.asdict(report.restore),
        "checkpoint_ms": report.checkpoint_ms,
        "paused_at": None if paused is None else f"{paused.topic}-{paused.partition}@{paused.offset}",
        "paused_since_ms": None if paused is None else paused.since_ms,
        "error": None if paused is None else paused.error,
        "location": None if paused is None else paused.location,
        "store": None,
        "worker": None,
        "recovery": None,
    }


def _global_row(application: str, store: str, instance: str, worker: int, report: GlobalStoreReport) -> Row:
    """Return the row of a worker's copy of a global store. `recovery`: why it is rebuilt."""
    return {
        "application": application,
        "task": "global",
        "instance": instance,
        "kind": "GLOBAL",
        "state": report.state.value,
        "lag": report.lag,
        "position": report.position,
        "restore": None if report.restore is None else msgspec.structs.asdict(report.restore),
        "checkpoint_ms": report.checkpoint_ms,
        "paused_at": None,
        "paused_since_ms": None,
        "error": None,
        "location": None,
        "store": store,
        "worker": worker,
        "recovery": report.reason,
    }


def _tasks_table(rows: Sequence[Row]) -> list[RenderableType]:
    """Return the tasks of each application, with its name if there are several."""
    by_application: dict[str, list[Row]] = {}
    for row in rows:
        by_application.setdefault(str(row["application"]), []).append(row)
    shown: list[RenderableType] = []
    for application, own in by_application.items():
        if len(by_application) > 1:
            shown.append(Wrapped(application, "bold"))
        shown.append(CompactRows([_task_cells(row) for row in own], ("task", "instance")))
    return shown


def _task_cells(row: Row) -> dict[str, str | Text]:
    return {
        "task": _task_name(row),
        "instance": str(row["instance"]),
        "kind": str(row["kind"]),
        "state": Text(str(row["state"]), style="red" if row["state"] == TaskState.PAUSED.value else ""),
        "lag": _lag(row["lag"], paused=row["paused_at"] is not None),
        "checkpoint": ago_ms(checkpoint if isinstance(checkpoint := row["checkpoint_ms"], int) else None),
        "restore": _progress(row["restore"]),
    }


def _task_problems(rows: Sequence[Row]) -> list[Wrapped]:
    """Return a line for each paused task, and for each global store that is rebuilt."""
    paused = [Wrapped(_pause(row), "red") for row in rows if row["paused_at"]]
    rebuilt = [
        Wrapped(f"{_task_name(row)} on {row['instance']} is rebuilt: {row['recovery']}", "yellow") for row in rows if row["recovery"]
    ]
    return [*paused, *rebuilt]


def _task_name(row: Row) -> str:
    """Return the id of a task, or the name of a global store, with the worker's number beyond the first."""
    worker = row["worker"]
    number = f" (worker {worker})" if isinstance(worker, int) and worker > 1 else ""
    return str(row["task"]) if row["store"] is None else f"global {row['store']}{number}"


def _pause(row: Row) -> str:
    since, location = row["paused_since_ms"], row["location"]
    ago = f", {ago_ms(since)}" if isinstance(since, int) else ""
    error = one_line(str(row["error"] or "by hand"), _MOST_ERROR)
    return f"task {row['task']} is paused at {row['paused_at']}{ago}: {error}{f' ({location})' if location else ''}"


def _progress(restore: object) -> str:
    """Return the progress of a restore: records, rate, remaining time."""
    if not isinstance(restore, dict):
        return ""
    left = restore["seconds_left"]
    time_left = "" if left is None else f", {left:.0f} s left"
    return f"{restore['records']} read, {restore['remaining']} to go, {restore['rate']:.0f}/s{time_left}"


def _event_row(event: Event) -> Row:
    names = ("id", "application", "instance", "incarnation", "task", "at_ms", "payload")
    return {"kind": event.kind.value, **{name: getattr(event, name) for name in names}}


def _kind(text: str) -> str:
    """Convert the name of a kind. Raises typer.BadParameter for an unknown one."""
    known = [kind.value for kind in EventKind]
    if text.upper() not in known:
        raise typer.BadParameter(f"there are no events of kind {text!r}; the kinds are {', '.join(known)}")
    return text.upper()


def _events_text(found: Sequence[Event]) -> RenderableType:
    lines: list[Wrapped] = []
    for event in found:
        subject = f"{event.application} {event.instance}" + (f" {event.task}" if event.task else "")
        lines.append(Wrapped(f"{clock(from_ms(event.at_ms))}  {subject}  {event.kind.value}  {brief(event.payload)}"))
    return Group(*lines) if lines else Text("no events")


def _describe(target: Target) -> Row:
    picture = _picture(target)
    wrong = target.observer.conditions(time.time_ns() // 1_000_000) if picture.members else []
    return {
        "application": picture.application,
        "topology": newest_text(picture),
        "call_sites": newest_call_sites(picture),
        "leader": None if picture.assignment is None else picture.assignment.leader,
        "instances": _status(target),
        "tasks": _tasks(picture),
        "wrong": [{"kind": each.kind, "severity": each.severity, "subject": each.subject, "what": each.what} for each in wrong],
        "events": [_event_row(event) for event in _events(target, 10, None, None, FREQUENT)],
    }


def _description(described: Row, topology: bool) -> list[RenderableType]:
    def rows(name: str) -> list[Row]:
        found = described[name]
        return found if isinstance(found, list) else []

    sites = described["call_sites"] if isinstance(described["call_sites"], dict) else {}
    last = [
        Wrapped(
            " ".join(
                filter(None, (clock(from_ms(int(str(row["at_ms"])))), "", str(row["kind"]), str(row["task"] or ""), str(row["instance"])))
            )
        )
        for row in rows("events")
    ]
    started = bool(described["topology"])
    drawn = [Text(with_call_sites(str(described["topology"]), sites))] if started and topology else []
    instances = rows("instances")
    pauses = {str(row["paused_at"]) for row in rows("tasks") if row["paused_at"]}
    wrong = [row for row in rows("wrong") if row["subject"] not in pauses]  # these are among the problems of the tasks
    return [
        Wrapped(str(described["application"]), "bold"),
        *([] if started else [Text("it was never started here")]),
        *(line for line in _status_problems([{**row, "pauses": []} for row in instances])),
        *_task_problems(rows("tasks")),
        *(Wrapped(f"{row['severity']} {row['kind']} {row['what']}", "red" if row["severity"] == "ERROR" else "yellow") for row in wrong),
        *_status_table(instances, detailed=False),
        *([Wrapped(f"leader: {described['leader']}", "dim")] if described["leader"] else []),
        *_tasks_table(rows("tasks")),
        *([Text("last events:", style="bold"), *last] if last else [Text("no events")]),
        *drawn,
    ]
