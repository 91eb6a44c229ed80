"""Shared by the tests of the control plane: a project, and publication of an application's events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest

from penstock.orchestration.dagster.names import plain_names, start_job
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.projection.feed import Feed, Step
from penstock.runtime.model.events import Event, EventKind, events_topic
from penstock.sensors.instances import evaluate
from tests.support import Kafka, unique

STREAMS_TOML = """
[applications.{application}]
factory = "tests.dagster.topology:build"
instances = ["{application}-1", "{application}-2"]

[applications.{application}.config]
"bootstrap.servers" = "{bootstrap_servers}"
"deserialization.exception.handler" = "penstock.LogAndPauseExceptionHandler"

[applications.{application}.paused]
run-book = "skip-record"
budget-per-hour = 2
"""


def start_jobs(operations: Operations) -> dict[str, str]:
    """Return the name of each application's job that starts its instances."""
    return {application: start_job(plain) for application, plain in plain_names(operations.applications).items()}


def instances_that_should_run(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """Evaluate the sensor of that name, for the applications that are declared now."""
    penstock = context.resources.penstock
    assert isinstance(penstock, PenstockResource)
    return evaluate(context, penstock.operations, start_jobs(penstock.operations))


@dataclass
class Project:
    """A project of one application with two instances on a broker."""

    operations: Operations
    broker: Kafka
    reported: int = field(default=0)

    @property
    def application(self) -> Application:
        (application,) = self.operations.applications.applications
        return application

    @property
    def start_job(self) -> str:
        """The name of the job that starts its instances."""
        return start_jobs(self.operations)[self.application.id]

    @property
    def control_plane(self) -> ControlPlane:
        return self.operations.control_plane

    def event(self, kind: EventKind, payload: dict[str, object], task: str | None = None, *, event_id: str = "") -> Event:
        """Return an event like the first instance's, without publishing it."""
        self.reported += 1
        identity = self.application.id
        return Event(
            id=event_id or f"{identity}/{task}/{kind.value}//{self.reported}",
            application=identity,
            instance=f"{identity}-1",
            incarnation=1,
            kind=kind,
            task=task,
            at_ms=time.time_ns() // 1_000_000,
            payload=payload,
        )

    def create_events_topic(self) -> None:
        self.broker.create_topic(events_topic(self.application.id), exact=True)

    def publish(self, *events: Event) -> None:
        """Publish events like the application."""
        self.broker.produce(events_topic(self.application.id), [(event.key, event.to_json()) for event in events])

    def feed(self) -> Step:
        """Run one step of a separate feed."""
        with Feed(self.application, self.control_plane) as feed:
            return feed.step(20.0)


@contextmanager
def project_on(
    broker: Kafka, folder: Path, monkeypatch: pytest.MonkeyPatch, prefix: str = "app", *, repairs: bool = True
) -> Iterator[Project]:
    """Yield a project of one application with two instances, in a folder. Its processes are killed after the block. `repairs`: run-books
    for paused tasks are declared, otherwise operators decide."""
    application, path, home = unique(prefix), folder / "streams.toml", folder / "home"
    text = STREAMS_TOML.format(application=application, bootstrap_servers=broker.bootstrap_servers)
    path.write_text(text if repairs else text.partition(f"[applications.{application}.paused]")[0])
    monkeypatch.setenv("PENSTOCK_STREAMS", str(path))
    monkeypatch.setenv("PENSTOCK_HOME", str(home))
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_TEST_APPLICATION", application)
    paths = ProjectPaths(folder, home, path, default_database_url(home))
    operations = Operations(paths, Applications.read(path), ControlPlane(paths.database_url))
    try:
        yield Project(operations, broker)
    finally:
        for name in operations.launcher.known():
            operations.launcher.stop(name, 5.0, kill=True)
        operations.control_plane.close()
