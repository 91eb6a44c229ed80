"""What the tests of the control plane share: a project, and an application's voice on its topics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from orchestration.applications import Application
from orchestration.control_plane import ControlPlane
from orchestration.feed import Feed, Step
from orchestration.operations import Operations
from runtime.events import Event, EventKind, events_topic
from tests.support import Kafka

STREAMS_TOML = """
[applications.{application}]
factory = "tests.dagster.topology:build"
instances = ["{application}-1", "{application}-2"]

[applications.{application}.config]
"bootstrap.servers" = "{bootstrap_servers}"
"deserialization.exception.handler" = "runtime.handlers.LogAndPauseExceptionHandler"

[applications.{application}.paused]
run-book = "skip-record"
budget-per-hour = 2
"""


@dataclass
class Project:
    """A project of one application with two instances on a broker."""

    operations: Operations
    broker: Kafka
    told: int = field(default=0)

    @property
    def application(self) -> Application:
        (application,) = self.operations.applications.applications
        return application

    @property
    def control_plane(self) -> ControlPlane:
        return self.operations.control_plane

    def event(self, kind: EventKind, payload: dict[str, object], task: str | None = None, *, event_id: str = "") -> Event:
        """An event as the first instance would make it; not published."""
        self.told += 1
        identity = self.application.id
        return Event(
            id=event_id or f"{identity}/{task}/{kind.value}//{self.told}",
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

    def tell(self, *events: Event) -> None:
        """Publishes events, as the application does."""
        self.broker.produce(events_topic(self.application.id), [(event.key, event.to_json()) for event in events])

    def feed(self) -> Step:
        """One step of a feed of its own."""
        with Feed(self.application, self.control_plane) as feed:
            return feed.step(20.0)
