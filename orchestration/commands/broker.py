"""`penstock broker …`: the embedded Kafka."""

from __future__ import annotations

import subprocess
from typing import Annotated

import typer

from penstock.orchestration.commands.common import err, fail, out
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.embedded import ports, tools
from penstock.orchestration.embedded.cluster import EmbeddedCluster
from penstock.orchestration.embedded.jars import JarsError
from penstock.orchestration.embedded.kafka import BrokerError, BrokerStatus, EmbeddedBroker
from penstock.runtime.model.errors import MissingExtraError

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

Port = Annotated[
    int | None,
    typer.Option("--port", "-p", min=1, max=65535, help="Port of 127.0.0.1 to listen on. Default: as last time, or 9092."),
]


Brokers = Annotated[
    int | None,
    typer.Option("--brokers", min=2, max=9, help="Start a cluster of so many brokers, on consecutive ports. Default: one broker."),
]


def _broker(port: int | None = None) -> EmbeddedBroker:
    paths = ProjectPaths.find()
    return EmbeddedBroker(paths.broker_dir, port or paths.broker_port)


def _cluster(ports: list[int] | None = None) -> EmbeddedCluster:
    return EmbeddedCluster(ProjectPaths.find().broker_dir / "cluster", ports)


@app.command()
def start(port: Port = None, brokers: Brokers = None) -> None:
    """Start Kafka on this machine's loopback interface, and return when it answers.

    It keeps running when this command, Dagster or the shell ends. Its data is kept for the next start. The first start downloads Kafka's
    jars (46 MB, once per user). Starting twice does no harm.

    With `--brokers 3` it is a cluster, with data of its own: three copies of each topic, of which two must have a record before it counts
    as written, so that one broker may be away. Each broker is a process with 512 MB, and has a rack of its own (`rack-1` …). `stop` and
    `status` see it.
    """
    if brokers is not None:
        _start_cluster(port, brokers)
        return
    if members := _cluster().status():
        fail(
            f"A cluster runs already ({', '.join(each.bootstrap_servers for each in members)}), with data of its own: penstock broker stop"
        )
    broker = _broker(port)
    running = broker.status()
    try:
        with err.status("Starting Kafka …"):
            status = broker.start()
    except (BrokerError, JarsError, MissingExtraError) as error:
        fail(str(error))
    out.print(f"Kafka {'runs already' if running else 'is ready'} at [bold]{status.bootstrap_servers}[/bold]")
    _describe(status)


def _start_cluster(port: int | None, brokers: int) -> None:
    if (single := _broker().status()) is not None:
        fail(f"A single broker runs already at {single.bootstrap_servers}, with data of its own: penstock broker stop")
    try:
        known = _cluster()
        first = port or (known.brokers[0].port if known.exists else ports.KAFKA_PORT)
        cluster = _cluster(list(range(first, first + brokers)))
        with err.status(f"Starting {brokers} brokers …"):
            running = cluster.start()
        servers = cluster.bootstrap_servers
    except (BrokerError, JarsError, MissingExtraError) as error:
        fail(str(error))
    out.print(f"Kafka is ready at [bold]{servers}[/bold]")
    for each in running:
        _describe(each)
    out.print(f'For an application in streams.toml: "bootstrap.servers" = "{servers}"', soft_wrap=True)


@app.command()
def stop() -> None:
    """Stop Kafka, one broker or a cluster. Its data stays."""
    try:
        stopped = any([_broker().stop(), _cluster().stop()])
    except BrokerError as error:
        fail(str(error))
    out.print("Kafka has stopped; its data is kept" if stopped else "Kafka does not run")


@app.command()
def status() -> None:
    """Say whether Kafka runs, and where. The exit status is 0 if it does, 1 if not."""
    running = _running()
    if not running:
        out.print("Kafka does not run. Start it: [bold]penstock broker start[/bold]")
        raise typer.Exit(1)
    for each in running:
        out.print(f"Kafka runs at [bold]{each.bootstrap_servers}[/bold]")
        _describe(each)
    brokers = _cluster().brokers if _broker().status() is None else []
    if away := [broker.bootstrap_servers for broker in brokers if broker.status() is None]:
        out.print(f"Not all of the cluster runs, {', '.join(away)} does not: penstock broker start --brokers {len(brokers)}")
        raise typer.Exit(1)


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
    running = _running()
    if name != "kafka-dump-log" and not any(argument.startswith("--bootstrap-server") for argument in arguments):
        if not running:
            fail("Kafka does not run. Start it (penstock broker start), or name another one with --bootstrap-server host:port")
        servers = ",".join(each.bootstrap_servers for each in running)
        arguments = ["--bootstrap-server", servers, *arguments]  # first: tools with subcommands want it before those
    try:
        raise typer.Exit(subprocess.run(tools.command(name, arguments), check=False).returncode)
    except (JarsError, MissingExtraError) as error:
        fail(str(error))


def _running() -> list[BrokerStatus]:
    """Return the single broker, if it runs, else the running brokers of the cluster."""
    single = _broker().status()
    return [single] if single is not None else _cluster().status()


def _describe(status: BrokerStatus) -> None:
    out.print(f"  process  {status.pid}\n  data     {status.data_dir}\n  log      {status.log_path}")
