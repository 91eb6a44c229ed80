"""`penstock start|stop|restart|deploy|scale|drain|pause|resume`: instances and their tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from penstock.orchestration.commands.common import (
    Named,
    Servers,
    err,
    explained,
    explained_interrupt,
    fail,
    hint,
    named,
    out,
    project,
    say,
    task_id,
)
from penstock.orchestration.commands.inspection import picture_of
from penstock.orchestration.commands.rehearse import shown_progress
from penstock.orchestration.commands.run_book import ApplicationName, TaskName
from penstock.orchestration.database import audit
from penstock.orchestration.database.models import RunBookState
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.unknown_names import unknown
from penstock.orchestration.instances.deployment import DEPLOY_SECONDS, Deployment
from penstock.orchestration.instances.draining import DRAIN_SECONDS
from penstock.orchestration.instances.draining import drain as drain_through_kafka
from penstock.orchestration.instances.launcher import Launcher
from penstock.orchestration.instances.operations import Operations, Started
from penstock.orchestration.kafka.observer import Observer
from penstock.orchestration.kafka.task_commands import TaskCommands
from penstock.orchestration.rehearsals.demand import demand
from penstock.orchestration.run_books import Request, RestartInstance
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import TaskId

Instances = Annotated[
    list[str] | None, typer.Argument(help="Names from streams.toml; an application's means all of its own. Default: all instances.")
]


Seed = Annotated[
    str | None,
    typer.Option(metavar="URI", help="Path or URI of a seed or snapshot to install first; the application must be stopped."),
]
Reset = Annotated[
    bool,
    typer.Option("--reset-offsets", help="With --seed, after changelogs were lost: reset state and input offsets of their tasks to it."),
]


def start(instances: Instances = None, seed: Seed = None, reset_offsets: Reset = False) -> None:
    """Start instances and wait until they are RUNNING. One that runs already is left alone.

    They keep running when this command, Dagster or the shell ends; Dagster restarts them if they die. With --seed an application starts
    with years of history, and continues where that ends (`penstock docs seeding`).
    """
    if reset_offsets and seed is None:
        raise typer.BadParameter("--reset-offsets needs --seed: the offsets are those of the seed")
    with project() as operations:
        names = operations.applications.expanded(instances or operations.applications.instances)
        for name in names:  # before anything is done
            operations.owner(name)
        if seed is not None:
            _seed(operations, names, seed, reset_offsets)
        for application in dict.fromkeys(operations.owner(name).id for name in names):
            # one by one: if the next cannot start, instances of this one would be said to be starting, and nothing would start them
            own = [name for name in names if operations.owner(name).id == application]
            with err.status(f"Starting {', '.join(own)} …"):
                operations.start_all(own, actor=audit.this_user(), running=_running, progress=hint)


def _running(started: Started) -> None:
    name, state = started.instance.name, started.instance.state
    how = "started" if started.started else "ran already"
    out.print(f"{name} is [bold]{state}[/bold] ({how}, process {started.process.pid}, {len(started.tasks)} tasks)")


def _seed(operations: Operations, names: Sequence[str], seed: str, reset: bool) -> None:
    """Install a seed through the first instance: all are of one application."""
    applications = {operations.applications.of_instance(name).id for name in names}
    if len(applications) != 1:
        raise typer.BadParameter(f"a seed is of one application; these instances are of {', '.join(sorted(applications))}: name one's")
    out.print(operations.seed(names[0], seed, actor=audit.this_user(), reset=reset), markup=False)


def stop(
    instances: Instances = None,
    kill: Annotated[bool, typer.Option("--kill", help="Kill the process if it does not close in time.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds allowed for a clean close.")] = 60.0,
) -> None:
    """Close instances cleanly. They stay stopped until they are started; their state is kept.

    Works without a broker, and for instances that are no longer declared.
    """
    launcher = Launcher(ProjectPaths.find())
    with project(undeclared=True) as operations:
        known = launcher.known()
        names = operations.applications.expanded(instances, known) if instances else known
        for name in names:  # before anything is done
            if launcher.last(name) is None:
                operations.owner(name)
        for name in names:
            with err.status(f"Stopping {name} …"):
                if operations.applications.knows(name):
                    ran = operations.stop(name, actor=audit.this_user(), timeout_s=timeout, kill=kill)
                else:
                    ran = launcher.stop(name, timeout, kill=kill)
            out.print(f"{name} has {'closed' if ran else 'not been running'}")


def scale(application: ApplicationName, instances: Annotated[int, typer.Argument(min=1, help="Number of instances to run.")]) -> None:
    """Change the number of an application's instances. Tasks move as soon as their state is restored; surplus instances are drained.

    Safe to repeat. If `streams.toml` declares a number, more instances than that can be requested.
    """
    with project() as operations:
        names = operations.scale(application, instances, actor=audit.this_user(), progress=hint)
        say(f"{application} runs as {', '.join(names)}")


def drain(
    instance: Annotated[str, typer.Argument(help="The name of an instance.")],
    application: Named = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which it hands over tasks that others have not restored yet.")
    ] = DRAIN_SECONDS,
    bootstrap_servers: Servers = None,
) -> None:
    """Close an instance for good: others learn its tasks and take them over first. It stays stopped until it is started.

    The request goes through Kafka, so the instance may run on any machine. `--application` names the application of an instance that is no
    longer declared. With `--bootstrap-servers` too, neither streams.toml nor the database is needed.
    """
    if bootstrap_servers is not None:
        if application is None:
            raise typer.BadParameter("--bootstrap-servers needs to know which application: add --application")
        ran = _drain_elsewhere(named(application, bootstrap_servers), instance, timeout)
    else:
        with project() as operations, err.status(f"Draining {instance} …"):
            applications = operations.applications
            owner = applications.of_instance(instance) if application is None else applications.named(application)
            ran = operations.drain(owner, instance, actor=audit.this_user(), timeout_s=timeout)
    say(f"{instance} has {'handed its tasks over and closed' if ran else 'not been running'}")


def _drain_elsewhere(application: Application, instance: str, timeout: float) -> bool:
    """Drain an instance through Kafka; return False if it did not run."""
    with explained(), err.status(f"Draining {instance} …"):
        _check_known(application, instance)
        actor = audit.this_user()
        with CommandClient(application.id, application.connection, actor) as client:
            client.want(instance, False)
        return drain_through_kafka(application, instance, Launcher(ProjectPaths.find()).running(instance), actor=actor, timeout_s=timeout)


def _check_known(application: Application, instance: str) -> None:
    """Raise StreamsError for an instance that Kafka does not know, before anything is written under its name."""
    known = picture_of(Observer(application.id, application.connection)).instances()
    if instance not in known:
        raise StreamsError(unknown("instance", instance, known, how="known", of=application.id))


def restart(instances: Instances = None) -> None:
    """Close instances cleanly and start them with the current code and configuration. Their tasks stay reserved for them meanwhile. Of an
    application, or of all, those that were stopped stay stopped; one that is named is started.

    Each is checked first: an instance that would not start is refused, with all errors, and is not closed. `penstock deploy` checks all
    instances at once and hands their tasks over first, so that no task waits for a restart.
    """
    with project() as operations:
        names = operations.applications.expanded(instances or operations.applications.instances)
        for name in names:  # before anything is done
            operations.owner(name)
        stopped = [name for name in names if name not in (instances or ()) and _is_stopped(operations, name)]
        for name in stopped:
            say(f"{name} is stopped, and stays so: penstock start {name}")
        for name in [name for name in names if name not in stopped]:
            with err.status(f"Restarting {name} …"):
                run = RestartInstance(operations, name, Request(requested_by=audit.this_user())).run()
            if run.state != RunBookState.DONE.value:
                fail(str(run.reason))
            say(str(run.reason))


def _is_stopped(operations: Operations, name: str) -> bool:
    return not operations.rows(name)[0].wanted and operations.launcher.running(name) is None


def pause(application: ApplicationName, task: TaskName, bootstrap_servers: Servers = None) -> None:
    """Pause a task until it is resumed. It keeps its input and its state.

    The command goes to the task's owner through Kafka, from any machine that can reach the brokers.
    """
    _ask(application, task, bootstrap_servers, TaskCommands.pause, "paused")


def resume(application: ApplicationName, task: TaskName, bootstrap_servers: Servers = None) -> None:
    """Resume a paused task from the committed offsets. `penstock run-book resume` also waits until it runs.

    The command goes to the task's owner through Kafka, from any machine that can reach the brokers.
    """
    _ask(application, task, bootstrap_servers, TaskCommands.resume, "resumed")


def _ask(application: str, task: str, servers: str | None, ask: Callable[[TaskCommands, TaskId], str], done: str) -> None:
    identity = task_id(task)
    with explained():
        declared = named(application, servers)
        with TaskCommands(declared, audit.this_user()) as commands, err.status(f"Asking the owner of {identity} …"):
            by = ask(commands, identity)
        out.print(f"task {identity} {done} by {by}")
        if servers is None:
            _write_down(application, task, f"task {done}")


def _write_down(application: str, task: str, action: str) -> None:
    """Add an entry to the audit trail, if the database is reachable."""
    try:
        with project() as operations, operations.control_plane.writing() as session:
            audit.record(session, audit.this_user(), action, at=audit.now(), application=application, task=task)
    except typer.Exit:
        err.print("done, but not recorded in the audit trail", style="yellow")


def deploy(
    application: ApplicationName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan; no instance is stopped.")] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also replace instances that run this code already, for example after a changed environment variable."),
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds allowed for an instance to run and catch up.")] = DEPLOY_SECONDS,
) -> None:
    """Roll new code and configuration over the instances, one by one, while the others keep processing.

    Everything is checked first: the factory is imported, the configuration and its variables exist, the topology fits the state and may run
    beside the running one. With `[applications.NAME.deploy] rehearse = "6h"`, the new code is rehearsed, too (`penstock docs rehearsals`).
    If a check fails, nothing is stopped. Safe to repeat: instances that run this code already are left alone.
    `penstock docs changing` lists possible changes, `penstock docs deployment` describes an upgrade.

    `penstock deploy flight-board --dry-run`
    """
    with project() as operations, explained_interrupt(f"penstock deploy {application} continues where it stopped"):

        def rehearsed(declared: Application) -> None:
            with shown_progress() as reporter:
                demand(operations.paths, declared, reporter)

        deployment = Deployment(
            operations,
            application,
            actor=audit.this_user(),
            everything=everything,
            timeout_s=timeout,
            progress=hint,
            demand=rehearsed,
        )
        if dry_run:
            for line in deployment.plan().lines():
                say(line)
            return
        plan = deployment.run()
        left = f"; not those of other machines: {', '.join(plan.elsewhere)}" if plan.elsewhere else ""
        left += f"; not those that are not declared: {', '.join(plan.left)}" if plan.left else ""
        say(f"{application} runs the new code: {', '.join((*plan.current, *plan.replaced))}{left}")
