"""`penstock broker …`: the embedded Kafka."""

from __future__ import annotations

import subprocess
from typing import Annotated

import typer

from penstock.orchestration.commands.common import err, fail, out
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.embedded import tools
from penstock.orchestration.embedded.jars import JarsError
from penstock.orchestration.embedded.kafka import BrokerError, BrokerStatus, EmbeddedBroker
from penstock.runtime.model.errors import MissingExtraError

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

Port = Annotated[
    int | None,
    typer.Option("--port", "-p", min=1, max=65535, help="Port of 127.0.0.1 to listen on. Default: as last time, or 9092."),
]


def _broker(port: int | None = None) -> EmbeddedBroker:
    paths = ProjectPaths.find()
    return EmbeddedBroker(paths.broker_dir, port or paths.broker_port)


@app.command()
def start(port: Port = None) -> None:
    """Start Kafka on this machine's loopback interface, and return when it answers.

    It keeps running when this command, Dagster or the shell ends. Its data is kept for the next start. The first start downloads Kafka's
    jars (44 MB, once per user). Starting twice does no harm.
    """
    broker = _broker(port)
    running = broker.status()
    try:
        with err.status("Starting Kafka …"):
            status = broker.start()
    except (BrokerError, JarsError, MissingExtraError) as error:
        fail(str(error))
    out.print(f"Kafka {'runs already' if running else 'is ready'} at [bold]{status.bootstrap_servers}[/bold]")
    _describe(status)


@app.command()
def stop() -> None:
    """Stop Kafka. Its data stays."""
    try:
        stopped = _broker().stop()
    except BrokerError as error:
        fail(str(error))
    out.print("Kafka has stopped; its data is kept" if stopped else "Kafka does not run")


@app.command()
def status() -> None:
    """Say whether Kafka runs, and where. The exit status is 0 if it does, 1 if not."""
    running = _broker().status()
    if running is None:
        out.print("Kafka does not run. Start it: [bold]penstock broker start[/bold]")
        raise typer.Exit(1)
    out.print(f"Kafka runs at [bold]{running.bootstrap_servers}[/bold]")
    _describe(running)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def tool(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The tool's name as in Kafka's distribution: " + ", ".join(tools.TOOLS) + ".")],
) -> None:
    """Run one of Kafka's own tools against the embedded broker (or against the `--bootstrap-server` that you give).

    **Examples**

    `penstock broker tool kafka-topics -- --list`

    `penstock broker tool kafka-consumer-groups -- --describe --group flight-board`

    `penstock broker tool kafka-consumer-groups -- --group flight-board --topic flights:3 --reset-offsets --shift-by 1 --execute`
    """
    if name not in tools.TOOLS:
        fail(f"There is no tool {name}. Known tools: {', '.join(tools.TOOLS)}")
    arguments = list(context.args)
    running = _broker().status()
    if name != "kafka-dump-log" and not any(argument.startswith("--bootstrap-server") for argument in arguments):
        if running is None:
            fail("Kafka does not run. Start it (penstock broker start), or name another one with --bootstrap-server host:port")
        arguments += ["--bootstrap-server", running.bootstrap_servers]
    try:
        raise typer.Exit(subprocess.run(tools.command(name, arguments), check=False).returncode)
    except (JarsError, MissingExtraError) as error:
        fail(str(error))


def _describe(status: BrokerStatus) -> None:
    out.print(f"  process  {status.pid}\n  data     {status.data_dir}\n  log      {status.log_path}")
