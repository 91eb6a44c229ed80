"""`penstock where`: the project, files and folders in effect here, and why."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

import penstock
from penstock.orchestration.commands.common import Json, out, print_json, table
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.embedded.cache import cache_dir
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.runtime.config.streams_config import StreamsConfig

EXTRAS = {"dagster": "dagster_webserver", "spark": "pyspark", "registry": "fastavro", "cloud": "pyarrow"}
"""Extras, and a package that only this one installs (pyarrow: also `spark`)."""


def where(as_json: Json = False) -> None:
    """Show the project in effect in this folder, where its files are, and why: a variable, a file, or a default.

    Creates nothing, and makes no request to Kafka or the database.
    """
    found = list(_rows(ProjectPaths.find()))
    if as_json:
        print_json([{"name": name, "value": value, "why": why} for name, value, why in found])
        return
    shown = table("name", "value", "why")
    for row in found:
        shown.add_row(*map(Text, row))  # no markup: a path may hold brackets
    shown.columns[1].overflow = "fold"
    out.print(shown)


def _rows(paths: ProjectPaths) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and reason."""
    declared = paths.sources["streams_toml"]
    yield "project", str(paths.root), f"its {paths.streams_toml.name}" if paths.declared else "the current folder: nothing is declared"
    yield "streams.toml", str(paths.streams_toml) if paths.declared else "none", declared
    yield "home", str(paths.home), paths.sources["home"]
    yield "database", _without_password(paths.database_url), paths.sources["database_url"]
    yield "state", str(paths.home / "state"), "of instances that penstock starts: state in the home"
    yield "logs", str(paths.home / "logs"), "of instances that penstock starts: logs in the home"
    dagster, why = paths.dagster_home
    yield "dagster home", str(dagster), why
    broker = EmbeddedBroker(paths.broker_dir)
    running = broker.status()
    yield "embedded kafka", str(paths.broker_dir), f"runs, process {running.pid}" if running else "does not run"
    yield "broker", paths.embedded_broker, "of applications that name none: the embedded Kafka"
    yield "cache", str(cache_dir(create=False)), "PENSTOCK_CACHE" if os.environ.get("PENSTOCK_CACHE") else "default: of this user"
    state = StreamsConfig({"application.id": "where", "bootstrap.servers": paths.embedded_broker}).state_dir
    yield "state.dir", str(state), "of programs with their own KafkaStreams that do not set it: of this user"
    yield "penstock", str(Path(penstock.__file__).parent), "the package; nothing is written there"
    for name, package in EXTRAS.items():
        there = importlib.util.find_spec(package) is not None
        yield f"extra {name}", "installed" if there else "missing", "" if there else f"pip install 'penstock[{name}]'"


def _without_password(url: str) -> str:
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1:…@", url)
