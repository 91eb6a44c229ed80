"""`penstock dev`: Dagster's UI and daemon on the declared applications, with the embedded Kafka under them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from orchestration.embedded.jars import JarsError
from orchestration.embedded.java import use_java
from orchestration.embedded.kafka import DEFAULT_PORT, BrokerError, EmbeddedBroker
from orchestration.embedded.ports import LOOPBACK, holder, is_free
from orchestration.places import Places

DAGSTER_PORT = 3000


def dev(
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="Port of Dagster's UI.")] = DAGSTER_PORT,
    kafka_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the embedded Kafka.")] = DEFAULT_PORT,
    broker: Annotated[bool, typer.Option(help="Start the embedded Kafka; --no-broker if streams.toml names another one.")] = True,
) -> None:
    """Open Dagster's UI on the applications that `streams.toml` declares. Ctrl-C ends it.

    Dagster's own state is kept in `.dagster/`. Kafka and the instances that were started run on after Ctrl-C: they do not depend on
    Dagster. Stop them with `penstock stop` and `penstock broker stop`.
    """
    out = Console(stderr=True, highlight=False, soft_wrap=True)
    if not is_free(port):
        out.print(
            f"Port {port} of {LOOPBACK} is taken by {holder(port)}. Choose another one: penstock dev --port …", style="red", markup=False
        )
        raise typer.Exit(1)
    places = Places.find()
    try:
        if broker:
            with out.status("Starting Kafka …"):
                status = EmbeddedBroker(places.broker_dir, kafka_port).start()
            out.print(f"Kafka runs at {status.bootstrap_servers}")
            if kafka_port != DEFAULT_PORT:
                out.print(
                    f'Applications find it there by "bootstrap.servers" = "{status.bootstrap_servers}" in {places.streams_toml}',
                    markup=False,
                )
        use_java()
    except (BrokerError, JarsError) as error:
        out.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from error
    (places.root / ".dagster" / "storage").mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}  # dagster.yaml stands in the root
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(places.root), environment.get("PYTHONPATH"))))  # for Spark's workers
    out.print(f"Dagster's UI: http://{LOOPBACK}:{port}")
    os.chdir(places.root)
    os.execve(sys.executable, [sys.executable, "-m", "dagster", "dev", "--host", LOOPBACK, "--port", str(port)], environment)
