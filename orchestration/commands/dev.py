"""`penstock dev`: Dagster's UI and daemon for the declared applications, with the embedded Kafka."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from penstock.orchestration.commands.common import err, fail
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.embedded.dagster_server import SETTINGS
from penstock.orchestration.embedded.jars import JarsError
from penstock.orchestration.embedded.java import use_java
from penstock.orchestration.embedded.kafka import DEFAULT_PORT, BrokerError, EmbeddedBroker
from penstock.orchestration.embedded.ports import LOOPBACK, holder, is_free

DAGSTER_PORT = 3000


def dev(
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="Port of Dagster's UI.")] = DAGSTER_PORT,
    kafka_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the embedded Kafka.")] = DEFAULT_PORT,
    broker: Annotated[bool, typer.Option(help="Start the embedded Kafka; --no-broker if streams.toml names another one.")] = True,
) -> None:
    """Open Dagster's UI on the applications that `streams.toml` declares. Ctrl-C ends it.

    Dagster's own state is kept in `.dagster/`. Kafka and the started instances keep running after Ctrl-C: they do not depend on Dagster.
    Stop them with `penstock stop` and `penstock broker stop`.
    """
    if not is_free(port):
        fail(f"Port {port} of {LOOPBACK} is taken by {holder(port)}. Choose another one: penstock dev --port …")
    paths = ProjectPaths.find()
    try:
        if broker:
            with err.status("Starting Kafka …"):
                status = EmbeddedBroker(paths.broker_dir, kafka_port).start()
            err.print(f"Kafka runs at {status.bootstrap_servers}")
            if kafka_port != DEFAULT_PORT:
                at = f'"bootstrap.servers" = "{status.bootstrap_servers}"'
                err.print(f"Applications find it there by {at} in {paths.streams_toml}", markup=False)
        use_java()
    except (BrokerError, JarsError) as error:
        fail(str(error))
    arguments, environment = _dagster(paths)
    err.print(f"Dagster's UI: http://{LOOPBACK}:{port}")
    os.chdir(paths.root)
    os.execve(sys.executable, [sys.executable, "-m", "dagster", "dev", "--host", LOOPBACK, "--port", str(port), *arguments], environment)


def _dagster(paths: ProjectPaths) -> tuple[list[str], dict[str, str]]:
    """Return additional arguments of `dagster dev` in the project's root, and its environment. A root with its own `workspace.yaml`
    configures what Dagster loads and where its state is; otherwise both are in `.dagster/`."""
    kept = paths.root / ".dagster"
    (kept / "storage").mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"} | paths.environment
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(paths.root), environment.get("PYTHONPATH"))))  # for Spark's workers
    if (paths.root / "workspace.yaml").exists():
        return [], environment
    (kept / "dagster.yaml").write_text(SETTINGS)
    location = {"module_name": "penstock.dagster", "location_name": "penstock", "working_directory": str(paths.root)}
    (kept / "workspace.yaml").write_text(json.dumps({"load_from": [{"python_module": location}]}))  # JSON is YAML
    return ["--workspace", str(kept / "workspace.yaml")], environment | {"DAGSTER_HOME": str(kept)}
