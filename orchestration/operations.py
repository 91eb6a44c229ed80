"""What people and Dagster do with instances: start, stop, restart, look. The command line and the Dagster jobs are two faces of this.

Wanted and running are two things. What is wanted is written down first (`wanted` in the database, and a compacted DESIRED record on
`<app>-coordination`, from which a lost database is rebuilt); then the process is started or stopped. Whoever is killed in between leaves a
difference, which the sensor on instances mends. When no broker answers, a stop still stops: the record is written later by that sensor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select

from orchestration import audit, projection, supervision
from orchestration.applications import Application, Applications, WrongDeclarationError, numbered
from orchestration.control_plane import ControlPlane
from orchestration.control_plane.models import Instance, Task, from_ms, to_ms
from orchestration.draining import DRAIN_SECONDS, drain
from orchestration.feed import Feed
from orchestration.launcher import Launcher, LaunchError, Process
from orchestration.places import Places
from orchestration.tasks import RefusedError
from runtime.coordination.commands import CommandClient
from runtime.errors import BrokerUnavailableError
from runtime.states import State, TaskState

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
STOP_SECONDS = 60.0
_SCALED = "scaled by "
"""Before the name of who wants an instance that is not declared."""
_RETIRED = "retired by "
"""Before the name of who drained an instance that was not declared any more: if it is declared again, that is a new decision."""
_NOT_YET_RUNNING = (TaskState.CREATED.value, TaskState.RESTORING.value)
_REPORT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Started:
    """An instance that runs: its process, whether it was started by this call, and its row once it said RUNNING."""

    process: Process
    started: bool
    instance: Instance
    tasks: tuple[Task, ...]


class Operations:
    """One project: what is declared, its database, its processes."""

    def __init__(self, places: Places, applications: Applications, control_plane: ControlPlane) -> None:
        self.places = places
        self.applications = applications
        self.control_plane = control_plane
        self.launcher = Launcher(places)

    @classmethod
    def find(cls) -> Operations:
        """The project that the environment names (see `Places.find`). Raises WrongDeclarationError, ControlPlaneError."""
        places = Places.find()
        return cls(places, Applications.read(places.streams_toml), ControlPlane(places.database_url))

    def feed(self, application: Application) -> Feed:
        return Feed(application, self.control_plane)

    def start(
        self,
        name: str,
        *,
        actor: str,
        timeout_s: float = START_SECONDS,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Started:
        """Makes the instance wanted, starts it unless it runs, waits until it says RUNNING.

        Raises WrongDeclarationError, BrokerUnavailableError (nothing was started), LaunchError with the last line of its log.
        """
        application = self.applications.of_instance(name)
        with self.feed(application) as feed:
            feed.step()  # a broker that is away shows here, before anything is promised
            self.mark_starting(name)
            self._want(application, name, True, actor)
            self.publish_wanted(application)
            process, started = self.launcher.start(application, name)
            progress(f"process {process.pid} {'started' if started else 'runs already'}; its log: {self.places.log_path(name)}")
            if started:
                self._audit(application, name, actor, "instance started", {"pid": process.pid})
            self._wait_until_running(feed, name, process, timeout_s, progress)
        return Started(process, started, *self.look(name))

    def seed(self, name: str, where: str, *, actor: str, reset: bool = False) -> str:
        """Installs a seed or snapshot, at a path or URI, for the application of this instance, to whose disk the files come. Returns what
        was done; one that was installed before is left alone. `reset`: tasks whose changelogs are lost are put back to it.

        Raises WrongDeclarationError, LaunchError with what is in the way and the ways out.
        """
        application = self.applications.of_instance(name)
        done = self.launcher.seed(application, name, where, reset=reset)
        self._audit(application, name, actor, "seed installed", {"seed": where, "told": done})
        return done

    def stop(self, name: str, *, actor: str, timeout_s: float = STOP_SECONDS, kill: bool = False) -> bool:
        """Makes the instance unwanted and closes it. False if it did not run. Raises WrongDeclarationError, LaunchError."""
        application = self.applications.of_instance(name)
        self._want(application, name, False, actor)
        ran = self._stop_process(application, name, actor, timeout_s, kill)
        try:
            with self.feed(application) as feed:
                feed.step()  # a broker that is away shows here, sooner than in a write
            self.publish_wanted(application)
        except BrokerUnavailableError as error:
            logger.warning("%s: that it is to stand still is recorded on Kafka later: %s", name, error)
        return ran

    def instances(self, application: Application) -> tuple[str, ...]:
        """Those that are declared, and those beyond them that somebody asked for by `scale`."""
        return (*application.instances, *(row.name for row in self._undeclared(application) if _is_scaled(row)))

    def retired(self, application: Application) -> list[str]:
        """Instances that are wanted and were taken out of `streams.toml`: they are to be drained."""
        return [row.name for row in self._undeclared(application) if not _is_scaled(row)]

    def _undeclared(self, application: Application) -> list[Instance]:
        query = select(Instance).where(Instance.application == application.id, Instance.wanted.is_(True))
        with self.control_plane.reading() as session:
            rows = [row for row in session.scalars(query) if row.name not in application.instances]
        return sorted(rows, key=lambda row: (application.number(row.name) or 0, row.name))

    def follow_declaration(self, application: Application, *, actor: str) -> None:
        """Where a number of instances is declared and the application runs: those that the number was raised by are wanted too. Nothing is
        decided anew about an instance that somebody has stopped."""
        if not application.counted:
            return
        rows = {name: self.look(name)[0] for name in application.instances}
        if any(row.wanted for row in rows.values()):
            for name, row in rows.items():
                if row.wanted_at is None or (row.wanted_by or "").startswith(_RETIRED):
                    self._want(application, name, True, actor)

    def scale(self, application_id: str, count: int, *, actor: str, progress: Callable[[str], None] = lambda _: None) -> tuple[str, ...]:
        """Makes the first `count` instances of an application wanted, starts them and waits until they are RUNNING; the others are drained,
        the last one first. Gives their names. Safe to call again, also after it was killed.

        More than are declared can be asked for where `streams.toml` declares a number. They stay until somebody asks for fewer.

        Raises WrongDeclarationError, RefusedError (not so many are named), BrokerUnavailableError, LaunchError.
        """
        application = self.applications.named(application_id)
        if count < 1:
            raise RefusedError(f"{count} instances: at least 1; `penstock stop` stops all of them")
        wanted = numbered(application.id, count) if application.counted else application.instances[:count]
        if len(wanted) < count:
            raise RefusedError(
                f"{application.id} has {len(wanted)} instances, which streams.toml names one by one: add names there, "
                "or declare their number"
            )
        for name in wanted:  # all of them first: whoever is killed from here on leaves the rest to the sensor
            self._want(application, name, True, actor if name in application.instances else f"{_SCALED}{actor}")
        for name in wanted:
            started = self.start(name, actor=actor, progress=progress)
            progress(f"{name} is {started.instance.state}")
        known = {*self.instances(application), *self.retired(application)}
        for name in sorted(known - set(wanted), key=lambda name: -(application.number(name) or 0)):
            self.drain(application, name, actor=actor, progress=progress)
        return tuple(wanted)

    def drain(
        self,
        application: Application,
        name: str,
        *,
        actor: str,
        timeout_s: float = DRAIN_SECONDS,
        progress: Callable[[str], None] = lambda _: None,
    ) -> bool:
        """Closes an instance for good: it is no longer wanted, goes on with its tasks until the others have learned them, hands them over,
        and ends. After `timeout_s` it hands over what is left. False if it did not run.

        It is asked through Kafka, so it may run on any machine. Raises BrokerUnavailableError, LaunchError (it has not ended in time),
        WrongDeclarationError (nobody has heard of it, so nothing is written down).
        """
        if name not in application.instances and not self._heard_of(application, name):
            with self.feed(application) as feed:
                feed.step()
            if not self._heard_of(application, name):
                raise WrongDeclarationError(f"no instance {name!r} of {application.id} is declared, and none has run")
        self._want(application, name, False, actor if name in application.instances else f"{_RETIRED}{actor}")
        with self.feed(application) as feed:
            feed.step()  # a broker that is away shows here
        self.publish_wanted(application)
        process = self.launcher.running(name)
        progress(f"{name} hands its tasks over")
        if not drain(application, name, process, actor=actor, timeout_s=timeout_s):
            return self._stop_process(application, name, actor, STOP_SECONDS, kill=False)
        self._audit(application, name, actor, "instance drained", {"pid": process.pid if process else None})
        return True

    def close_for_restart(self, name: str, *, actor: str, timeout_s: float = STOP_SECONDS) -> bool:
        """Closes the process cleanly while the instance stays wanted: `start`, or the sensor, starts it anew. False if it did not run."""
        application = self.applications.of_instance(name)
        self.mark_starting(name)
        self._want(application, name, True, actor)
        return self._stop_process(application, name, actor, timeout_s, kill=False)

    def look(self, name: str) -> tuple[Instance, tuple[Task, ...]]:
        """What the control plane knows of an instance: its row (a new one, if it never ran) and the tasks that it has open."""
        application = self.applications.of_instance(name)
        with self.control_plane.reading() as session:
            row = session.get(Instance, (application.id, name))
            query = (
                select(Task)
                .where(Task.application == application.id, Task.instance == name, Task.state != TaskState.CLOSED.value)
                .order_by(Task.task)
            )
            tasks = tuple(session.scalars(query))
        return row or Instance(application=application.id, name=name, wanted=False, wanted_published=True, deaths=0), tasks

    def mark_starting(self, name: str) -> None:
        """Tells the sensor that somebody is about to start the instance: a process that is gone for it has not died."""
        application = self.applications.of_instance(name)
        with self.control_plane.writing() as session:
            supervision.request_start(projection.instance_row(session, application.id, name), self.launcher.last(name), audit.now())

    def publish_wanted(self, application: Application) -> None:
        """Writes the DESIRED records that are not on Kafka yet. Raises BrokerUnavailableError."""
        query = select(Instance).where(Instance.application == application.id, Instance.wanted_published.is_(False))
        with self.control_plane.reading() as session:
            late = list(session.scalars(query))
        for row in late:
            assert row.wanted_at is not None  # set together with `wanted_published`
            with CommandClient(application.id, application.bootstrap_servers, row.wanted_by or "unknown") as client:
                client.want(row.name, row.wanted, to_ms(row.wanted_at))
            with self.control_plane.writing() as session:
                now = projection.instance_row(session, application.id, row.name)
                now.wanted_published = now.wanted_at == row.wanted_at

    def _heard_of(self, application: Application, name: str) -> bool:
        with self.control_plane.reading() as session:
            return session.get(Instance, (application.id, name)) is not None

    def _want(self, application: Application, name: str, running: bool, actor: str) -> None:
        """Writes down what is wanted, if that is news; `publish_wanted` then tells Kafka."""
        at = from_ms(to_ms(audit.now()))  # to the millisecond, as it comes back from Kafka
        with self.control_plane.writing() as session:
            row = projection.instance_row(session, application.id, name)
            if row.wanted == running and row.wanted_at is not None:
                return
            row.wanted, row.wanted_at, row.wanted_by, row.wanted_published = running, at, actor, False
            action = "instance wanted" if running else "instance not wanted"
            audit.record(session, actor, action, at=at, application=application.id, instance=name)

    def _stop_process(self, application: Application, name: str, actor: str, timeout_s: float, kill: bool) -> bool:
        process = self.launcher.running(name)
        if not self.launcher.stop(name, timeout_s, kill=kill):
            return False
        self._audit(application, name, actor, "instance stopped", {"pid": process.pid if process else None})
        return True

    def _wait_until_running(self, feed: Feed, name: str, process: Process, timeout_s: float, progress: Callable[[str], None]) -> None:
        deadline = time.monotonic() + timeout_s
        last = None
        while True:
            feed.step(2.0)
            row, _ = self.look(name)
            state = row.state if row.pid == process.pid else None
            if state == State.RUNNING.value:
                self._wait_for_report(feed, name)
                return
            if state != last and state is not None:
                progress(f"state {state}")
                last = state
            if not process.alive:
                raise LaunchError(f"instance {name} ended: {self.launcher.last_words(name)} (its log: {self.places.log_path(name)})")
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"instance {name} (process {process.pid}) is {state or 'silent'} after {timeout_s:g} s, not RUNNING; it goes on. Its "
                    f"log: {self.places.log_path(name)}; penstock status shows how far its restore has come"
                )
            time.sleep(0.1)

    def _wait_for_report(self, feed: Feed, name: str) -> None:
        """RUNNING is told by an event, tasks by the next heartbeat: waits for it, so that nobody is shown tasks that still restore."""
        deadline = time.monotonic() + _REPORT_SECONDS
        while time.monotonic() < deadline:
            row, tasks = self.look(name)
            told = row.heartbeat_at is not None and row.state_at is not None and row.heartbeat_at >= row.state_at
            if told and not any(task.state in _NOT_YET_RUNNING for task in tasks):
                return
            feed.step(1.0)
            time.sleep(0.1)

    def _audit(self, application: Application, name: str, actor: str, action: str, detail: dict[str, object]) -> None:
        with self.control_plane.writing() as session:
            audit.record(session, actor, action, at=audit.now(), application=application.id, instance=name, detail=detail)


def _is_scaled(row: Instance) -> bool:
    """True for an instance that is not declared, and that somebody asked for by its number."""
    return (row.wanted_by or "").startswith(_SCALED)
