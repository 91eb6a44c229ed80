"""`python -m benchmarks reports`: what the reports to Dagster cost each minute, with many applications.

The broker, Dagster's storage (SQLite) and the control plane's database are real. The instances are not started: their reports are written
to the applications' topics, as instances write them. Minutes follow each other without a pause, with the times that they would have.
"""

from __future__ import annotations

import logging
import os
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import dagster as dg
import typer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.brokers import broker_for
from penstock.assets.checks import reports
from penstock.orchestration.dagster import day_events
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import to_ms
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.drawing.console import stdout_console
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.coordination.records import Desired, Member, TaskReport, encode
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.model.states import State, TaskKind, TaskState

TASKS = 4
"""Active tasks of an instance, each with state."""


def main(
    applications: Annotated[int, typer.Option(min=1, help="Number of applications.")] = 50,
    instances: Annotated[int, typer.Option(min=1, help="Number of instances of each.")] = 6,
    minutes: Annotated[int, typer.Option(min=1, help="Minutes to measure, after the first one.")] = 12,
    bootstrap_servers: Annotated[str | None, typer.Option(help="A running broker; default: one is started.")] = None,
) -> None:
    """Measure the work of a minute, as the schedule does it."""
    console = stdout_console()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-reports-") as folder,
        broker_for(bootstrap_servers, console) as servers,
        _project(Path(folder), servers, applications, instances) as operations,
        dg.DagsterInstance.local_temp(folder) as dagster,
    ):
        fleet = _Fleet(operations, servers, instances)
        start = datetime.now(UTC)

        def report(at: datetime) -> None:
            day_events.delete_old(dagster, at)
            found = reports(operations, dagster, at, logging.getLogger(__name__))
            for event in found.kept:
                dagster.report_runless_asset_event(event)
            for observation in found.of_the_day:
                day_events.report(dagster, observation, at)

        console.print(f"{applications} applications with {instances} instances of {TASKS} tasks")
        console.print(f"{'':24}{'CPU s':>8}{'seconds':>9}{'events':>8}{'checks':>8}{'runs':>6}{'KiB':>8}")
        for name, count in (("first minute", 1), ("each minute after it", minutes)):
            fleet.report(start)
            before, used, began = _sizes(Path(folder, "history")), _cpu(), time.monotonic()
            for _ in range(count):
                start += timedelta(minutes=1)
                fleet.report(start)
                report(start)
            after = _sizes(Path(folder, "history"))
            rows = [(later - sooner) / count for sooner, later in zip(before, after, strict=True)]
            cpu, seconds = (_cpu() - used) / count, (time.monotonic() - began) / count
            console.print(f"{name:24}{cpu:8.1f}{seconds:9.1f}{rows[0]:8.0f}{rows[1]:8.0f}{rows[2]:6.0f}{rows[3] / 1024:8.0f}")


@contextmanager
def _project(folder: Path, servers: str, applications: int, instances: int) -> Iterator[Operations]:
    path = folder / "streams.toml"
    path.write_text(
        "\n".join(
            f'[applications.app-{number}]\nfactory = "m:f"\ninstances = {instances}\n'
            f'[applications.app-{number}.config]\n"bootstrap.servers" = "{servers}"'
            for number in range(applications)
        )
    )
    os.environ |= {"PENSTOCK_STREAMS": str(path), "PENSTOCK_HOME": str(folder / "home")}
    paths = ProjectPaths(folder, folder / "home", path, default_database_url(folder / "home"))
    with closing(ControlPlane(paths.database_url)) as control_plane:
        yield Operations(paths, Applications.read(path), control_plane)


class _Fleet:
    """Instances that report to their applications' topics."""

    def __init__(self, operations: Operations, servers: str, instances: int) -> None:
        self._applications = [application.id for application in operations.applications.applications]
        self._instances = instances
        self._producer = Producer({"bootstrap.servers": servers})
        admin = AdminClient({"bootstrap.servers": servers})
        topics = [NewTopic(coordination_topic(each), 1, 1, config={"cleanup.policy": "compact"}) for each in self._applications]
        for done in admin.create_topics(topics).values():
            done.result(60)

    def report(self, at: datetime) -> None:
        """Let each instance report that it is wanted, runs, and has processed more."""
        for application in self._applications:
            for number in range(1, self._instances + 1):
                name = f"{application}-{number}"
                for record in (Desired(instance=name, running=True, at_ms=1, by="bench"), _member(name, number, to_ms(at))):
                    self._producer.produce(coordination_topic(application), encode(record), record.key)
        self._producer.flush(60)


def _member(name: str, number: int, at_ms: int) -> Member:
    task = TaskReport(
        kind=TaskKind.ACTIVE, state=TaskState.RUNNING, offset_sum=at_ms // 10, end_sum=at_ms // 10, lag=at_ms % 97, checkpoint_ms=at_ms
    )
    return Member(
        instance=name,
        incarnation=1,
        transactional_id="",
        host="elsewhere",
        pid=number,
        state=State.RUNNING,
        tasks={f"0_{(number - 1) * TASKS + each}": task for each in range(TASKS)},
        heartbeat_ms=at_ms,
        memory={"resident": 300 << 20},
    )


def _sizes(home: Path) -> tuple[float, float, float, float]:
    """Return the rows of events, check results and runs in Dagster's storage, and its bytes."""
    files = [path for path in home.rglob("*.db") if path.is_file()]
    count: Callable[[str], float] = lambda table: sum(_rows(path, table) for path in files)  # noqa: E731
    return count("event_logs"), count("asset_check_executions"), count("runs"), sum(path.stat().st_size for path in files)


def _rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        there = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) if there else 0


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
