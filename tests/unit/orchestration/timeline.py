"""An application's events as the feed stores them, and the reaction of the sensor on paused tasks; the test sets the time."""

from __future__ import annotations

from datetime import datetime

from penstock.orchestration.alerts import incidents
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import RunBookRun, from_ms
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.projection import writer
from penstock.runtime.model.events import Event, EventKind
from penstock.sensors.event_cursor import Cursor

START_MS = 1_357_000_000_000


class Timeline:
    """The events of application `a` with the instance `a-1`; `ms` is the current time."""

    def __init__(self, control_plane: ControlPlane, application: Application) -> None:
        self.control_plane = control_plane
        self.application = application
        self.ms = START_MS
        self.sequence = 0
        self.cursor = Cursor()

    @property
    def now(self) -> datetime:
        return from_ms(self.ms)

    def store(self, event_id: str, kind: EventKind, payload: dict[str, object], task: str | None) -> None:
        """Store an event of now."""
        event = Event(id=event_id, application="a", instance="a-1", incarnation=1, kind=kind, task=task, at_ms=self.ms, payload=payload)
        with self.control_plane.writing() as session:
            self.sequence = writer.store_events(session, "a", self.sequence, [event.to_json()])

    def react(self, application: Application | None = None) -> list[RunBookRun]:
        """Run one tick of the sensor; `application`: another declaration than that of the events."""
        with self.control_plane.writing() as session:
            events, self.cursor = self.cursor.read(session, "a", incidents.TASK_KINDS)
            return incidents.of_tasks(session, application or self.application, events, self.now)
