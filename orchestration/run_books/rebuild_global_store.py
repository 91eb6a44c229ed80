"""*Rebuild global store*: one or all living instances delete their copy of a global store and read it again from the topic's start."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import ClassVar

from sqlalchemy import select

from penstock.orchestration.database import ControlPlane, audit
from penstock.orchestration.database.models import Event, Instance
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books.base import Findings, Progress, Request, RunBook, RunBookError, Step, Subject
from penstock.runtime.model.events import EventKind

HEARTBEAT = timedelta(seconds=30)
_REBUILD_SECONDS = 600.0


def living(control_plane: ControlPlane, application: Application) -> tuple[str, ...]:
    """Return the instances that reported lately, from the projection."""
    query = select(Instance.name).where(
        Instance.application == application.id, Instance.member_id.is_not(None), Instance.heartbeat_at > audit.now() - HEARTBEAT
    )
    with control_plane.reading() as session:
        return tuple(sorted(session.scalars(query)))


class RebuildGlobalStore(RunBook):
    """One run. Tasks that read the store wait meanwhile, others keep processing. Without `instance` it applies to all living instances.

    Refused if no instance lives, or one of them has no such store.
    """

    NAME = "rebuild-global-store"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("check", "the instances live and have the store"),
        Step("rebuild", "each wipes its copy and reads the topic from its start; tasks that read the store wait, the others continue"),
        Step("verify", "each worker has reported that its copy is complete"),
    )

    def __init__(
        self,
        application: Application,
        control_plane: ControlPlane,
        store: str,
        request: Request,
        progress: Progress = lambda _: None,
        *,
        instance: str | None = None,
    ) -> None:
        super().__init__(application, control_plane, request, progress)
        self._store = store
        self._instance = instance
        self._instances: tuple[str, ...] = ()
        self._known = 0

    def subject(self) -> Subject:
        return Subject(f"global store {self._store}" + (f" on {self._instance}" if self._instance else ""))

    def inspect(self, findings: Findings) -> None:
        self.feed.step()
        self._instances = tuple(name for name in living(self.control_plane, self.application) if self._instance in (None, name))
        if not self._instances:
            raise RefusedError(
                f"{self._instance or f'no instance of {self.application.id}'} {'does not run' if self._instance else 'runs'}"
            )
        for instance in self._instances:
            findings[instance] = self._ask(instance, dry_run=True)

    def take(self, step: Step, findings: Findings) -> None:
        match step.name:
            case "rebuild":
                self.feed.step()
                self._known = self._last_sequence()
                for instance in self._instances:
                    findings[instance] = self._ask(instance, dry_run=False)
            case "verify":
                findings.update(self._wait())

    def outcome(self) -> str:
        return f"global store {self._store} is rebuilt on {', '.join(self._instances)}"

    def _ask(self, instance: str, *, dry_run: bool) -> str:
        args: dict[str, object] = {"store": self._store, "reason": f"asked for by {self.request.requested_by}", "dry_run": dry_run}
        result = self.commands.ask_instance("rebuild-global-store", instance, args)
        return str(result.data.get("phase"))

    def _last_sequence(self) -> int:
        query = select(Event.sequence).where(Event.application == self.application.id).order_by(Event.sequence.desc()).limit(1)
        with self.control_plane.reading() as session:
            return session.scalar(query) or 0

    def _wait(self) -> Findings:
        """Wait until each instance has reported that its copy is complete; return the reports."""
        deadline = time.monotonic() + _REBUILD_SECONDS
        while time.monotonic() < deadline:
            self.feed.step()
            reports = self._ended()
            if set(reports) >= set(self._instances):
                return reports
            time.sleep(0.2)
        missing = ", ".join(sorted(set(self._instances) - set(reports)))
        raise RunBookError(f"global store {self._store} is not complete on {missing} after {_REBUILD_SECONDS:.0f} s; it continues there")

    def _ended(self) -> Findings:
        query = select(Event).where(
            Event.application == self.application.id,
            Event.sequence > self._known,
            Event.kind == EventKind.GLOBAL_RECOVERY_ENDED.value,
        )
        with self.control_plane.reading() as session:
            events = [event for event in session.scalars(query) if event.payload.get("store") == self._store]
        return {event.instance: f"{event.payload.get('records')} records in {event.payload.get('seconds')} s" for event in events}
