"""`penstock start|stop|restart|status|tasks|resume|pause|skip`: instances and their tasks."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from orchestration import audit
from orchestration.applications import Application
from orchestration.commands.common import ago, catch_up, err, fail, out, project, table, task_id
from orchestration.control_plane.models import RunBookState, Task
from orchestration.launcher import Launcher
from orchestration.operations import Operations
from orchestration.places import Places
from orchestration.run_books import RecordInTheWay, Request, SkipRecord
from orchestration.tasks import TaskCommands
from runtime.ids import TaskId
from runtime.states import TaskState

Instances = Annotated[list[str] | None, typer.Argument(help="Names from streams.toml. Default: all of them.")]
ApplicationName = Annotated[str, typer.Argument(help="The application.id, as in streams.toml.")]
TaskName = Annotated[str, typer.Argument(help="The task's id, SUBTOPOLOGY_PARTITION: `0_3`.")]


def start(instances: Instances = None) -> None:
    """Start instances and wait until they are RUNNING. One that runs already is left alone.

    They run on when this command, Dagster or the shell end; Dagster starts them again if they die.
    """
    with project() as operations:
        for name in instances or operations.applications.instances:
            with err.status(f"Starting {name} …"):
                started = operations.start(name, actor=audit.this_user(), progress=lambda line: err.print(line, style="dim", markup=False))
            how = "started" if started.started else "ran already"
            out.print(f"{name} is [bold]{started.instance.state}[/bold] ({how}, process {started.process.pid}, {len(started.tasks)} tasks)")


def stop(
    instances: Instances = None,
    kill: Annotated[bool, typer.Option("--kill", help="End the process by force if it does not close in time.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a clean close may take.")] = 60.0,
) -> None:
    """Close instances cleanly. They stay stopped until somebody starts them; their state is kept.

    Works without a broker, and for instances that are no longer declared.
    """
    launcher = Launcher(Places.find())
    with project(undeclared=True) as operations:
        for name in instances or launcher.known():
            with err.status(f"Stopping {name} …"):
                if name in operations.applications.instances or instances:
                    ran = operations.stop(name, actor=audit.this_user(), timeout_s=timeout, kill=kill)
                else:
                    ran = launcher.stop(name, timeout, kill=kill)
            out.print(f"{name} has {'closed' if ran else 'not been running'}")


def restart(instances: Instances = None) -> None:
    """Close instances cleanly and start them with the code and configuration of now. Their tasks stay reserved for them meanwhile."""
    with project() as operations:
        for name in instances or operations.applications.instances:
            with err.status(f"Restarting {name} …"):
                started = operations.restart(name, actor=audit.this_user())
            out.print(f"{name} is [bold]{started.instance.state}[/bold] (process {started.process.pid})")


def status(instances: Instances = None) -> None:
    """Show what is wanted, what runs, and how it does. The exit status is 1 if something that is wanted does not run."""
    with project() as operations:
        names = instances or list(operations.applications.instances)
        catch_up(operations, *_applications(operations, names))
        shown = table("instance", "wanted", "state", "process", "heartbeat", "tasks", "paused", "lag")
        missing = False
        for name in names:
            row, tasks = operations.look(name)
            process = operations.launcher.running(name)
            missing |= row.wanted and process is None
            paused = sum(task.state == TaskState.PAUSED.value for task in tasks)
            state = (row.state or "never started") if process is not None or not row.wanted else "[red]gone[/red]"
            shown.add_row(
                name,
                "yes" if row.wanted else "no",
                state,
                str(process.pid) if process else "-",
                ago(row.heartbeat_at),
                str(len(tasks)),
                f"[red]{paused}[/red]" if paused else "0",
                str(sum(task.lag or 0 for task in tasks)),
            )
        out.print(shown)
        for name in names:
            out.print(f"log of {name}: {operations.places.log_path(name)}", style="dim", markup=False)
        if missing:
            raise typer.Exit(1)


def tasks(application: Annotated[str | None, typer.Argument(help="The application.id. Default: all.")] = None) -> None:
    """List tasks with state, lag, age of the last checkpoint, and the record that a paused one waits at."""
    with project() as operations:
        declared = [operations.applications.named(application)] if application else list(operations.applications.applications)
        catch_up(operations, *declared)
        shown = table("application", "task", "instance", "kind", "state", "lag", "checkpoint", "paused at")
        for each in declared:
            for name in each.instances:
                for task in operations.look(name)[1]:
                    lag = "" if task.lag is None else str(task.lag)
                    shown.add_row(each.id, task.task, name, task.kind, _colored(task), lag, ago(task.checkpoint_at), _paused_at(task))
        out.print(shown)


def resume(application: ApplicationName, task: TaskName) -> None:
    """Let a paused task go on, from the offsets that are committed now."""
    _command(application, task, "resume")


def pause(application: ApplicationName, task: TaskName) -> None:
    """Let a task wait, until it is resumed. It keeps its input and its state."""
    _command(application, task, "pause")


def skip(
    application: ApplicationName,
    task: TaskName,
    record: Annotated[str, typer.Option(help="The record, `topic-partition@offset`. Default: the one that the task is paused at.")] = "",
    reason: Annotated[str, typer.Option(help="Why, for the audit trail.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Run-book: take the record that a task is paused at out of its way.

    The raw record is kept in `<application>-dead-letter`, the committed offset moves by one, the task goes on, the alert is closed. Every
    step is in `penstock audit`. Refused if the task is not paused at that record. Safe to run twice.
    """
    identity = task_id(task)
    with project() as operations:
        declared = operations.applications.named(application)
        found = _record(identity, record) if record else _record_in_the_way(operations, declared, identity)
        if not yes:
            typer.confirm(f"Skip {found} in task {identity} of {application}?", abort=True, err=True)
        request = Request(requested_by=audit.this_user(), reason=reason)
        run = SkipRecord(declared, operations.control_plane, found, request, lambda line: out.print(line, markup=False)).run()
        if run.state == RunBookState.REFUSED.value:
            raise typer.Exit(1)


def _command(application: str, task: str, kind: str) -> None:
    identity = task_id(task)
    with project() as operations:
        declared = operations.applications.named(application)
        with TaskCommands(declared, audit.this_user()) as commands, err.status(f"Asking the owner of {identity} …"):
            by = commands.resume(identity) if kind == "resume" else commands.pause(identity)
        with operations.control_plane.writing() as session:
            audit.record(session, audit.this_user(), f"task {kind}d", at=audit.now(), application=application, task=task)
        out.print(f"task {identity} {kind}d by {by}")


def _record(task: TaskId, text: str) -> RecordInTheWay:
    match = re.fullmatch(r"(.+)-(\d+)@(\d+)", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not topic-partition@offset, for example flights-3@1201")
    return RecordInTheWay(task, match[1], int(match[2]), int(match[3]))


def _record_in_the_way(operations: Operations, application: Application, task: TaskId) -> RecordInTheWay:
    catch_up(operations, application)
    for name in application.instances:
        for row in operations.look(name)[1]:
            topic, partition, offset = row.paused_topic, row.paused_partition, row.paused_offset
            if row.task == str(task) and topic is not None and partition is not None and offset is not None:
                return RecordInTheWay(task, topic, partition, offset)
    fail(f"task {task} is not paused; `penstock tasks {application.id}` shows those that are")


def _applications(operations: Operations, names: list[str]) -> list[Application]:
    return list({(found := operations.applications.of_instance(name)).id: found for name in names}.values())


def _paused_at(task: Task) -> str:
    return "" if task.paused_topic is None else f"{task.paused_topic}-{task.paused_partition}@{task.paused_offset}"


def _colored(task: Task) -> str:
    return f"[red]{task.state}[/red]" if task.state == TaskState.PAUSED.value else task.state
