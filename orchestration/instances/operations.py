"""Operations on instances: start, stop, restart, scale, drain. The command line and the Dagster jobs both call them.

The desired state of an instance is separate from its process. The desired state is recorded first: in the database, and as a compacted
DESIRED record on `<app>-coordination`, from which a lost database is rebuilt. Then the process is started or stopped. A kill in between
leaves a difference, which the sensor on instances removes. A stop works without a broker: the sensor writes the DESIRED record later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import select

from penstock.orchestration.database import ControlPlane, audit
from penstock.orchestration.database.models import GLOBAL_KIND, Instance, Task, from_ms, to_ms
from penstock.orchestration.declarations.applications import Application, Applications, WrongDeclarationError, numbered
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.unknown_names import did_you_mean
from penstock.orchestration.instances import supervision
from penstock.orchestration.instances.draining import DRAIN_SECONDS, drain
from penstock.orchestration.instances.launcher import Launcher, LaunchError, Process
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.projection import writer
from penstock.orchestration.projection.feed import Feed
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.states import State, TaskState

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
STOP_SECONDS = 60.0
_SCALED = "scaled by "
"""Prefix of the actor who added an instance that is not declared."""
RETIRED = "retired by "
"""Prefix of the actor who drained an instance that was no longer declared. If it is declared again, it may start."""
_NOT_YET_RUNNING = (TaskState.CREATED.value, TaskState.RESTORING.value)
_REPORT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Started:
    """Running instance: its process, whether this call started it, and its row once RUNNING."""

    process: Process
    started: bool
    instance: Instance
    tasks: tuple[Task, ...]


class Operations:
    """One project: its declarations, database and processes."""

    def __init__(self, paths: ProjectPaths, applications: Applications, control_plane: ControlPlane) -> None:
        self.paths = paths
        self.applications = applications
        self.control_plane = control_plane
        self.launcher = Launcher(paths)

    @classmethod
    def find(cls) -> Operations:
        """Return the project selected by the environment (see `ProjectPaths.find`). Raises WrongDeclarationError, ControlPlaneError."""
        paths = ProjectPaths.find()
        return cls(paths, Applications.of(paths), ControlPlane(paths.database_url))

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
        """Mark the instance as wanted, start it unless it runs, and wait until it is RUNNING.

        Raises WrongDeclarationError, BrokerUnavailableError (nothing was started), LaunchError with the last line of its log.
        """
        application = self.owner(name)
        try:
            with self.feed(application) as feed:
                self._want_started(feed, application, name, actor)
                process, started = self.launcher.start(application, name)
                progress(f"process {process.pid} {'started' if started else 'runs already'}; its log: {self.paths.log_path(name)}")
                if started:
                    self._audit(application, name, actor, "instance started", {"pid": process.pid})
                else:
                    self._mark_not_starting(name)
                self._wait_until_running(feed, name, process, timeout_s, progress)
        except BaseException:
            self._mark_not_starting(name)
            raise
        return Started(process, started, *self.rows(name))

    def start_all(
        self, names: Iterable[str], *, actor: str, running: Callable[[Started], None], progress: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start instances one by one as `start` does, and call `running` for each once it is RUNNING. All are marked as wanted before the
        first one starts, so that it does not take the tasks of the others.

        Raises what `start` raises. The instances that are not started then do not count as starting: nobody starts them.
        """
        left = list(names)
        try:
            for name in left:
                application = self.owner(name)
                with self.feed(application) as feed:
                    self._want_started(feed, application, name, actor)
            while left:
                running(self.start(left.pop(0), actor=actor, progress=progress))
        finally:
            for name in left:
                self._mark_not_starting(name)

    def _want_started(self, feed: Feed, application: Application, name: str, actor: str) -> None:
        feed.step()  # fails if no broker answers, before anything is recorded
        self.mark_starting(name)
        self._want(application, name, True, self._asker(application, name, actor))
        self.publish_wanted(application)

    def seed(self, name: str, where: str, *, actor: str, reset: bool = False) -> str:
        """Install a seed or snapshot, from a path or URI, for the application of this instance, on whose disk the files are written. Return
        a summary; one that is installed already is left alone. `reset`: tasks whose changelogs are lost are set back to it.

        Raises WrongDeclarationError, LaunchError with the obstacle and the remedies.
        """
        application = self.owner(name)
        done = self.launcher.seed(application, name, where, reset=reset)
        self._audit(application, name, actor, "seed installed", {"seed": where, "result": done})
        return done

    def stop(self, name: str, *, actor: str, timeout_s: float = STOP_SECONDS, kill: bool = False) -> bool:
        """Mark the instance as unwanted and close it. Return False if it did not run. Raises WrongDeclarationError, LaunchError."""
        application = self.applications.of_instance(name) if self.launcher.last(name) is not None else self.owner(name)
        self._want(application, name, False, actor)
        self._mark_not_starting(name)
        ran = self._stop_process(application, name, actor, timeout_s, kill)
        try:
            with self.feed(application) as feed:
                feed.step()  # fails earlier than a write if no broker answers
            self.publish_wanted(application)
        except BrokerUnavailableError as error:
            logger.warning("%s: that it is to stand still is recorded on Kafka later: %s", name, error)
        return ran

    def owner(self, name: str) -> Application:
        """Return the application of an instance that is declared, or that was added by `scale` and not drained since. Raises
        WrongDeclarationError with the nearest names: a misspelt name would start an additional member."""
        application = self.applications.of_instance(name)
        if name in application.instances or self._asked_for(application, name):
            return application
        with suppress(BrokerUnavailableError), self.feed(application) as feed:
            feed.step()  # a new database reads it from Kafka
        if self._asked_for(application, name):
            return application
        raise self.applications.unknown_instance(name, [more for more in self.instances(application) if more not in application.instances])

    def _asked_for(self, application: Application, name: str) -> bool:
        with self.control_plane.reading() as session:
            row = session.get(Instance, (application.id, name))
        return row is not None and row.wanted_at is not None and not (row.wanted_by or "").startswith(RETIRED)

    @staticmethod
    def _asker(application: Application, name: str, actor: str) -> str:
        """Return `wanted_by` of an instance to start: an undeclared one stays marked as added by `scale`, and is not drained as retired."""
        return actor if name in application.instances else f"{_SCALED}{actor}"

    def instances(self, application: Application) -> tuple[str, ...]:
        """Return the declared instances, and additional ones that `scale` added."""
        return (*application.instances, *(row.name for row in self._undeclared(application) if _is_scaled(row)))

    def retired(self, application: Application) -> list[str]:
        """Return the instances to drain: wanted, but removed from `streams.toml`."""
        return [row.name for row in self._undeclared(application) if not _is_scaled(row)]

    def _undeclared(self, application: Application) -> list[Instance]:
        query = select(Instance).where(Instance.application == application.id, Instance.wanted.is_(True))
        with self.control_plane.reading() as session:
            rows = [row for row in session.scalars(query) if row.name not in application.instances]
        return sorted(rows, key=lambda row: (application.number(row.name) or 0, row.name))

    def follow_declaration(self, application: Application, *, actor: str) -> None:
        """Mark instances that a raised number in the declaration has added as wanted, if the application runs. Instances that were stopped
        on request are left alone."""
        if not application.counted:
            return
        rows = {name: self.rows(name)[0] for name in application.instances}
        if any(row.wanted for row in rows.values()):
            for name, row in rows.items():
                if row.wanted_at is None or (row.wanted_by or "").startswith(RETIRED):
                    self._want(application, name, True, actor)

    def scale(self, application_id: str, count: int, *, actor: str, progress: Callable[[str], None] = lambda _: None) -> tuple[str, ...]:
        """Mark the first `count` instances of an application as wanted, start them and wait until they are RUNNING; drain the others, the
        last one first. Return their names. Safe to repeat, also after a kill.

        If `streams.toml` declares a number, `count` may exceed it. Additional instances stay until a smaller `count` is requested.

        Raises WrongDeclarationError, RefusedError (fewer instances are declared by name), BrokerUnavailableError, LaunchError.
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
        with self.feed(application) as feed:
            feed.step()  # fails if no broker answers, before anything is recorded
        for name in wanted:  # mark all of them first: if killed from here on, the sensor does the rest
            self._want(application, name, True, self._asker(application, name, actor))
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
        """Close an instance for good: it is no longer wanted, keeps processing until others have learned its tasks, hands them over, and
        ends. After `timeout_s` it hands over the remaining tasks. Return False if it did not run.

        Requested through Kafka, so it may run on any machine. Raises BrokerUnavailableError, LaunchError (it has not ended in time),
        WrongDeclarationError (it is unknown, so nothing is recorded).
        """
        if name not in application.instances and not self._heard_of(application, name):
            with self.feed(application) as feed:
                feed.step()
            if not self._heard_of(application, name):
                hint = did_you_mean(name, self.instances(application))
                raise WrongDeclarationError(f"no instance {name!r} of {application.id} is declared, and none has run{hint}")
        with self.feed(application) as feed:
            feed.step()  # fails if no broker answers, before anything is recorded
        self._want(application, name, False, actor if name in application.instances else f"{RETIRED}{actor}")
        self.publish_wanted(application)
        process = self.launcher.running(name)
        progress(f"{name} hands its tasks over")
        if not drain(application, name, process, actor=actor, timeout_s=timeout_s):
            return self._stop_process(application, name, actor, STOP_SECONDS, kill=False)
        self._audit(application, name, actor, "instance drained", {"pid": process.pid if process else None})
        return True

    def want_none(self, application: Application, names: Iterable[str], *, actor: str) -> None:
        """Mark these instances as unwanted, on Kafka too: they are not started until they are wanted again. Raises
        BrokerUnavailableError."""
        for name in names:
            self._want(application, name, False, actor)
        self.publish_wanted(application)

    def close_for_restart(self, name: str, *, actor: str, timeout_s: float = STOP_SECONDS) -> bool:
        """Close the process cleanly while the instance stays wanted, so `start` or the sensor restarts it. Return False if it did not
        run."""
        application = self.owner(name)
        self.mark_starting(name)
        self._want(application, name, True, self._asker(application, name, actor))
        return self._stop_process(application, name, actor, timeout_s, kill=False)

    def hand_over_for_restart(self, name: str, *, actor: str, timeout_s: float = DRAIN_SECONDS) -> bool:
        """Close the process like `close_for_restart`, after others have learned its tasks and taken them over. After `timeout_s` it hands
        over the remaining tasks. Return False if it did not run."""
        application = self.owner(name)
        self.mark_starting(name)
        self._want(application, name, True, self._asker(application, name, actor))
        process = self.launcher.running(name)
        if process is None:
            return False
        if not drain(application, name, process, actor=actor, timeout_s=timeout_s):
            return self._stop_process(application, name, actor, STOP_SECONDS, kill=False)
        self._audit(application, name, actor, "instance drained", {"pid": process.pid})
        return True

    def rows(self, name: str) -> tuple[Instance, tuple[Task, ...]]:
        """Return the row of an instance (a new one, if it never ran) and those of its open tasks, without global stores."""
        application = self.applications.of_instance(name)
        with self.control_plane.reading() as session:
            row = session.get(Instance, (application.id, name))
            query = (
                select(Task)
                .where(Task.application == application.id, Task.instance == name, Task.state != TaskState.CLOSED.value)
                .where(Task.kind != GLOBAL_KIND)
                .order_by(Task.task)
            )
            tasks = tuple(session.scalars(query))
        return row or Instance(application=application.id, name=name, wanted=False, wanted_published=True, deaths=0), tasks

    def mark_starting(self, name: str) -> None:
        """Record a planned start, so that the sensor does not count the end of the old process as a death."""
        application = self.applications.of_instance(name)
        with self.control_plane.writing() as session:
            supervision.request_start(writer.instance_row(session, application.id, name), self.launcher.last(name), audit.now())

    def _mark_not_starting(self, name: str) -> None:
        """Record that nobody starts the instance, for one that was marked as starting: a reset may begin, and a death counts."""
        application = self.applications.of_instance(name)
        with self.control_plane.writing() as session:
            writer.instance_row(session, application.id, name).start_requested_at = None

    def publish_wanted(self, application: Application) -> None:
        """Write the DESIRED records that are not on Kafka yet. Raises BrokerUnavailableError."""
        query = select(Instance).where(Instance.application == application.id, Instance.wanted_published.is_(False))
        with self.control_plane.reading() as session:
            late = list(session.scalars(query))
        for row in late:
            assert row.wanted_at is not None  # set together with `wanted_published`
            with CommandClient(application.id, application.connection, row.wanted_by or "unknown") as client:
                client.want(row.name, row.wanted, to_ms(row.wanted_at))
            with self.control_plane.writing() as session:
                now = writer.instance_row(session, application.id, row.name)
                now.wanted_published = now.wanted_at == row.wanted_at

    def _heard_of(self, application: Application, name: str) -> bool:
        with self.control_plane.reading() as session:
            return session.get(Instance, (application.id, name)) is not None

    def _want(self, application: Application, name: str, running: bool, actor: str) -> None:
        """Record a change of the desired state in the database; `publish_wanted` then writes it to Kafka."""
        at = from_ms(to_ms(audit.now()))  # with millisecond precision, as on Kafka
        with self.control_plane.writing() as session:
            row = writer.instance_row(session, application.id, name)
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
            waits = self._fed(feed)
            if waits is not None and waits != last:
                progress(f"{name} waits for a broker, as this does: {waits}")
                last = waits
            row, _ = self.rows(name)
            state = row.state if row.pid == process.pid else None
            if state == State.RUNNING.value:
                self._wait_for_report(feed, name)
                return
            if state != last and state is not None:
                progress(f"state {state}")
                last = state
            if not process.alive:
                raise LaunchError(f"instance {name} ended: {self.launcher.last_words(name)} (its log: {self.paths.log_path(name)})")
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"instance {name} (process {process.pid}) is {state or 'silent'} after {timeout_s:g} s, not RUNNING; it continues. "
                    f"It said last: {self.launcher.last_words(name)} (its log: {self.paths.log_path(name)}). penstock tasks shows how "
                    "far its restore has come"
                )
            time.sleep(0.1)

    @staticmethod
    def _fed(feed: Feed) -> str | None:
        """Read the instances' new records. Return the reason if no broker answers, else None."""
        try:
            feed.step(2.0)
        except BrokerUnavailableError as error:
            return str(error)
        return None

    def _wait_for_report(self, feed: Feed, name: str) -> None:
        """Wait for the heartbeat after RUNNING, which reports the tasks, so that no task is shown as still restoring."""
        deadline = time.monotonic() + _REPORT_SECONDS
        while time.monotonic() < deadline:
            row, tasks = self.rows(name)
            reported = row.heartbeat_at is not None and row.state_at is not None and row.heartbeat_at >= row.state_at
            if reported and not any(task.state in _NOT_YET_RUNNING for task in tasks):
                return
            self._fed(feed)
            time.sleep(0.1)

    def _audit(self, application: Application, name: str, actor: str, action: str, detail: dict[str, object]) -> None:
        with self.control_plane.writing() as session:
            audit.record(session, actor, action, at=audit.now(), application=application.id, instance=name, detail=detail)


def _is_scaled(row: Instance) -> bool:
    """Return True for an undeclared instance that was added by `scale`."""
    return (row.wanted_by or "").startswith(_SCALED)
