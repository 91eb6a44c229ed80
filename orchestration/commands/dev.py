"""`penstock dev`: Dagster's UI and daemon for the declared applications, with the embedded Kafka."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from penstock.orchestration.commands.common import err, fail, hint, warn
from penstock.orchestration.declarations.project_paths import PYPROJECT, ProjectPaths
from penstock.orchestration.embedded.dagster_server import SETTINGS
from penstock.orchestration.embedded.jars import JarsError
from penstock.orchestration.embedded.java import use_java
from penstock.orchestration.embedded.kafka import BrokerError, EmbeddedBroker
from penstock.orchestration.embedded.ports import LOOPBACK, holder, is_free
from penstock.runtime.model.errors import MissingExtraError
from penstock.runtime.model.extras import extra

DAGSTER_PORT = 3000
_ADVICE = "ignore:Function `dev_command` is superseded:FutureWarning"
"""Dagster's advice to type `dg dev`, which a project need not have installed."""


def dev(
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="Port of Dagster's UI.")] = DAGSTER_PORT,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the embedded Kafka, which applications use that name no broker. Default: as last time, or 9092."
        ),
    ] = None,
    broker: Annotated[bool, typer.Option(help="Start the embedded Kafka; --no-broker if streams.toml names another one.")] = True,
    reload: Annotated[bool, typer.Option("--reload", help="Restart running instances when the project's code changes.")] = False,
) -> None:
    """Open Dagster's UI on the applications that `streams.toml` declares. Ctrl-C ends it.

    Dagster's own state is kept in `.penstock/dagster/`, or in the folder that `DAGSTER_HOME` names; `penstock where` shows it. Kafka and
    the started instances keep running after Ctrl-C: they do not depend on Dagster. Stop them with `penstock stop` and `penstock broker
    stop`.

    With `--reload`, each edit of a Python file in the project, or of `streams.toml`, is checked, and the instances that it concerns are
    restarted. Code that does not start is shown, and they continue with the code they have.
    """
    paths = ProjectPaths.find()
    try:
        with extra("dagster", "penstock dev"):
            importlib.import_module("dagster_webserver")  # before anything is started
        if not is_free(port):
            fail(f"Port {port} of {LOOPBACK} is taken by {holder(port)}. Choose another one: penstock dev --port …")
        if broker:
            with err.status("Starting Kafka …"):
                status = EmbeddedBroker(paths.broker_dir, kafka_port or paths.broker_port).start()
            err.print(f"Kafka runs at {status.bootstrap_servers}, for applications that name no other broker")
        if importlib.util.find_spec("pyspark") is not None:
            use_java()
    except (BrokerError, JarsError, MissingExtraError) as error:
        fail(str(error))
    arguments, environment = _dagster(paths)
    if not paths.declared:
        warn(f"There is no streams.toml in {paths.root} or above it, so there is nothing to show. To make a project: penstock init NAME")
    hint(f"Dagster's state: {environment['DAGSTER_HOME']}")
    err.print(f"Dagster's UI: http://{LOOPBACK}:{port}")
    os.chdir(paths.root)
    if reload:  # ends with this process, which becomes Dagster
        subprocess.Popen([sys.executable, "-m", "penstock.orchestration.instances.reloading"], env=environment, stdin=subprocess.DEVNULL)
    # A shell starts a background job of a script with SIGINT ignored. Dagster, which treats SIGTERM as SIGINT and ends its processes by it,
    # would then ignore both.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-W", _ADVICE, "-m", "dagster", "dev", "--host", LOOPBACK, "--port", str(port), *arguments]
    os.execve(sys.executable, command, environment)


def _dagster(paths: ProjectPaths) -> tuple[list[str], dict[str, str]]:
    """Return additional arguments of `dagster dev` in the project's root, and its environment.

    DAGSTER_HOME is always set: without it, Dagster would make a temporary folder, and say that nothing is kept. A project says what
    Dagster loads in its `workspace.yaml`, or in `[tool.dagster]` or `[tool.dg]` of its `pyproject.toml`; otherwise Penstock's definitions
    are loaded."""
    home, _ = paths.dagster_home
    home.mkdir(parents=True, exist_ok=True)
    if home == paths.home / "dagster":
        (home / "dagster.yaml").write_text(SETTINGS)
    environment = dict(os.environ) | paths.environment | {"DAGSTER_HOME": str(home)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(paths.root), environment.get("PYTHONPATH"))))  # for Spark's workers
    if _loads_its_own(paths.root):
        return [], environment
    location = {"module_name": "penstock.dagster", "location_name": "penstock", "working_directory": str(paths.root)}
    workspace = paths.home / "workspace.yaml"
    workspace.parent.mkdir(parents=True, exist_ok=True)
    workspace.write_text(json.dumps({"load_from": [{"python_module": location}] if paths.declared else []}))  # JSON is YAML
    return ["--workspace", str(workspace)], environment


def _loads_its_own(root: Path) -> bool:
    """Return True if `dagster dev` finds in this folder what to load."""
    if (root / "workspace.yaml").exists():
        return True
    try:
        tool = tomllib.loads((root / PYPROJECT).read_text(encoding="utf-8")).get("tool")
    except (OSError, ValueError):
        return False
    return isinstance(tool, dict) and bool(tool.keys() & {"dagster", "dg"})
