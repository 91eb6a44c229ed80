"""`penstock start|stop|restart|scale|drain|pause|resume`: instances and their tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from orchestration import audit
from orchestration.applications import Application
from orchestration.commands.common import Named, Servers, err, explained, fail, named, out, project, task_id
from orchestration.commands.look import look_at
from orchestration.commands.run_book import ApplicationName, TaskName
from orchestration.control_plane.models import RunBookState
from orchestration.draining import DRAIN_SECONDS
from orchestration.draining import drain as drain_through_kafka
from orchestration.launcher import Launcher
from orchestration.observer import Observer
from orchestration.operations import Operations
from orchestration.places import Places
from orchestration.run_books import Request, RestartInstance
from orchestration.tasks import TaskCommands
from runtime.coordination.commands import CommandClient
from runtime.errors import StreamsError
from runtime.ids import TaskId

Instances = Annotated[list[str] | None, typer.Argument(help="Names from streams.toml. Default: all of them.")]


Seed = Annotated[
    str | None,
    typer.Option(
        metavar="URI", help="First put the state of this seed or snapshot (a path or URI) into the application, which must be stopped."
    ),
]
Reset = Annotated[
    bool,
    typer.Option("--reset-offsets", help="With --seed, after changelogs were lost: put their tasks back to it, state and input offsets."),
]


def start(instances: Instances = None, seed: Seed = None, reset_offsets: Reset = False) -> None:
    """Start instances and wait until they are RUNNING. One that runs already is left alone.

    They run on when this command, Dagster or the shell end; Dagster starts them again if they die.
    With --seed an application begins with years of history, and goes on from where that ends (docs/seeding.md).
    """
    if reset_offsets and seed is None:
        raise typer.BadParameter("--reset-offsets needs --seed: the offsets are those of the seed")
    with project() as operations:
        names = instances or list(operations.applications.instances)
        if seed is not None:
            _seed(operations, names, seed, reset_offsets)
        for name in names:
            with err.status(f"Starting {name} …"):
                started = operations.start(name, actor=audit.this_user(), progress=lambda line: err.print(line, style="dim", markup=False))
            how = "started" if started.started else "ran already"
            out.print(f"{name} is [bold]{started.instance.state}[/bold] ({how}, process {started.process.pid}, {len(started.tasks)} tasks)")


def _seed(operations: Operations, names: Sequence[str], seed: str, reset: bool) -> None:
    """Through the first of the instances: they are of one application."""
    applications = {operations.applications.of_instance(name).id for name in names}
    if len(applications) != 1:
        raise typer.BadParameter(f"a seed is of one application; these instances are of {', '.join(sorted(applications))}: name one's")
    out.print(operations.seed(names[0], seed, actor=audit.this_user(), reset=reset), markup=False)


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
                if instances or operations.applications.knows(name):
                    ran = operations.stop(name, actor=audit.this_user(), timeout_s=timeout, kill=kill)
                else:
                    ran = launcher.stop(name, timeout, kill=kill)
            out.print(f"{name} has {'closed' if ran else 'not been running'}")


def scale(application: ApplicationName, instances: Annotated[int, typer.Argument(min=1, help="How many instances shall run.")]) -> None:
    """Have so many instances of an application run. Tasks move as soon as their state is there; instances that are too many are drained.

    Safe to repeat. More than `streams.toml` declares can be asked for where it declares a number.
    """
    with project() as operations:
        names = operations.scale(
            application, instances, actor=audit.this_user(), progress=lambda line: err.print(line, style="dim", markup=False)
        )
        out.print(f"{application} runs as {', '.join(names)}", markup=False)


def drain(
    instance: Annotated[str, typer.Argument(help="The name of an instance.")],
    application: Named = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which it hands over what the others have not learned yet.")
    ] = DRAIN_SECONDS,
    bootstrap_servers: Servers = None,
) -> None:
    """Close an instance for good: others learn its tasks and take them over first. It stays stopped until somebody starts it.

    It is asked through Kafka, so it may run on any machine. `--application` names that of one that is no longer declared.
    With `--bootstrap-servers` too, neither streams.toml nor the database is needed.
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
    out.print(f"{instance} has {'handed its tasks over and closed' if ran else 'not been running'}", markup=False)


def _drain_elsewhere(application: Application, instance: str, timeout: float) -> bool:
    """False if it did not run."""
    with explained(), err.status(f"Draining {instance} …"):
        _check_known(application, instance)
        actor = audit.this_user()
        with CommandClient(application.id, application.bootstrap_servers, actor) as client:
            client.want(instance, False)
        return drain_through_kafka(application, instance, Launcher(Places.find()).running(instance), actor=actor, timeout_s=timeout)


def _check_known(application: Application, instance: str) -> None:
    """Raises StreamsError for a name that Kafka has not heard of, before anything is written under it."""
    known = look_at(Observer(application.id, application.bootstrap_servers)).instances()
    if instance not in known:
        raise StreamsError(f"no instance {instance!r} of {application.id} is known; known are {', '.join(known) or 'none'}")


def restart(instances: Instances = None) -> None:
    """Close instances cleanly and start them with the code and configuration of now. Their tasks stay reserved for them meanwhile."""
    with project() as operations:
        for name in instances or operations.applications.instances:
            with err.status(f"Restarting {name} …"):
                run = RestartInstance(operations, name, Request(requested_by=audit.this_user())).run()
            if run.state != RunBookState.DONE.value:
                fail(str(run.reason))
            out.print(str(run.reason), markup=False)


def pause(application: ApplicationName, task: TaskName, bootstrap_servers: Servers = None) -> None:
    """Let a task wait, until it is resumed. It keeps its input and its state.

    Its owner is asked through Kafka, and answers: from any machine that reaches the brokers.
    """
    _ask(application, task, bootstrap_servers, TaskCommands.pause, "paused")


def resume(application: ApplicationName, task: TaskName, bootstrap_servers: Servers = None) -> None:
    """Let a paused task go on, from the offsets that are committed now. `penstock run-book resume` also waits until it does.

    Its owner is asked through Kafka, and answers: from any machine that reaches the brokers.
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
    """In the audit trail, if the database answers."""
    try:
        with project() as operations, operations.control_plane.writing() as session:
            audit.record(session, audit.this_user(), action, at=audit.now(), application=application, task=task)
    except typer.Exit:
        err.print("it is done, but not in the audit trail", style="yellow")
