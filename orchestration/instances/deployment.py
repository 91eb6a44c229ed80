"""Deployment of new code: everything is checked before anything is stopped, then the instances are replaced one by one.

If an application has several instances, each first hands its tasks over to the others, without interrupting them; it then starts with the
new code and learns its tasks. A single instance is closed and started again. A deployment that was killed can be repeated: each instance
publishes which code it runs (`runtime/instance/build.py`), so those with the new code are left alone.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from filelock import FileLock, Timeout

from penstock.orchestration.database import audit
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.draining import DRAIN_SECONDS
from penstock.orchestration.instances.launcher import LaunchError
from penstock.orchestration.instances.operations import STOP_SECONDS, Operations
from penstock.orchestration.kafka.observer import Observer, Picture
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.runtime.coordination.records import Member
from penstock.runtime.instance.precheck import Findings
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.states import State, TaskKind, TaskState

DEPLOY_SECONDS = 600.0
"""Time for an instance to be RUNNING and caught up."""
_POLL_SECONDS = 0.5
_CHECKS = 3
"""Number of consecutive polls without moving tasks that are required: the leader needs a moment to react to a new member."""
_AT_WORK = (TaskState.RUNNING, TaskState.PAUSED)


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of a deployment: the instances to replace, in order, those that run the new code already, and those on other machines. `left`:
    instances that run and are not declared, whose code stays. `changes`: of the topology, line by line."""

    application: Application
    replaced: tuple[str, ...]
    current: tuple[str, ...]
    elsewhere: tuple[str, ...]
    left: tuple[str, ...]
    changes: tuple[str, ...]
    builds: dict[str, str]

    def lines(self) -> list[str]:
        """Return the plan, one sentence per line."""
        together = len(self.replaced) + len(self.current) + len(self.elsewhere) + len(self.left) > 1
        how = "hands its tasks over, and starts with the new code" if together else "is closed, and started with the new code"
        return [
            *(["the topology differs from the one that ran last:"] if self.changes else []),
            *(f"  {line}" for line in self.changes),
            *(f"{name} runs this code already" for name in self.current),
            *(f"{name} is of another machine: deploy it there" for name in self.elsewhere),
            *(f"{name} is not declared, and keeps the code that it runs: penstock drain {name} closes it" for name in self.left),
            *(f"{name} {how}" for name in self.replaced),
        ]


class Deployment:
    """One deployment of an application. `everything`: replace instances that run this code already, too."""

    def __init__(
        self,
        operations: Operations,
        application_id: str,
        *,
        actor: str,
        everything: bool = False,
        timeout_s: float = DEPLOY_SECONDS,
        progress: Callable[[str], None] = lambda _: None,
        demand: Callable[[Application], None] = lambda _: None,
    ) -> None:
        """Prepare a deployment; no broker is contacted. `demand` is called when everything else was checked, if an instance would be
        replaced, and may refuse. Raises WrongDeclarationError."""
        self._operations = operations
        self._application = operations.applications.named(application_id)
        self._observer = Observer(application_id, self._application.connection)
        self._actor = actor
        self._everything = everything
        self._timeout_s = timeout_s
        self._progress = progress
        self._demand = demand

    def plan(self) -> Plan:
        """Check everything, without stopping anything. Raises RefusedError with all obstacles, and what `demand` raises;
        BrokerUnavailableError, LaunchError."""
        application, operations = self._application, self._operations
        names = [name for name in operations.instances(application) if operations.rows(name)[0].wanted or operations.launcher.running(name)]
        if not names:
            raise RefusedError(f"no instance of {application.id} runs: penstock start starts them, with the code of now")
        findings = operations.launcher.precheck(application, names)
        picture = self._observer.observe() if not findings.problems else None
        elsewhere = [name for name in names if picture is not None and self._is_elsewhere(name, picture)]
        mine = [name for name in names if name not in elsewhere]
        members = [] if picture is None else [member for member in picture.members.values() if not member.returns]
        left = sorted({member.instance for member in members} - set(names))
        refuse(application, findings, alone=len(names) == 1 and not left)
        assert picture is not None  # no obstacle, so it was read
        builds = {member.instance: member.build for member in members}
        current = [name for name in mine if not self._everything and self._runs(name, builds, findings)]
        leader = picture.assignment.leader.rpartition("/")[0].rpartition("/")[0] if picture.assignment is not None else ""
        replaced = sorted((name for name in mine if name not in current), key=lambda name: name == leader)
        if replaced:
            self._demand(application)
        changes = tuple(findings.changes)
        return Plan(application, tuple(replaced), tuple(current), tuple(elsewhere), tuple(left), changes, findings.builds)

    def _is_elsewhere(self, name: str, picture: Picture) -> bool:
        member = picture.member(name)
        if self._operations.launcher.running(name) is not None or member is None or member.returns:
            return False
        return member.host != socket.gethostname()

    def _runs(self, name: str, builds: dict[str, str], findings: Findings) -> bool:
        """Return True if an instance lives and runs the new code."""
        return self._operations.launcher.running(name) is not None and builds.get(name) == findings.builds.get(name)

    def run(self) -> Plan:
        """Roll the new code over the instances; return the plan as carried out.

        Raises RefusedError (nothing was stopped); LaunchError if an instance does not start or catch up, with the code that each instance
        runs, and how to continue or to roll back; BrokerUnavailableError.
        """
        with self._alone():
            plan = self.plan()
            self._write_down("deploy started", {"replaced": list(plan.replaced), "current": list(plan.current)})
            done: list[str] = []
            try:
                for name in plan.replaced:
                    self._replace(plan, name)
                    done.append(name)
            except (LaunchError, StreamsError) as error:
                text = f"{error}\n{self._how_it_stands(plan, done)}"
                self._write_down("deploy stopped", {"reason": str(error), "done": done})
                raise LaunchError(text) from error
            except BaseException as error:
                self._write_down("deploy stopped", {"reason": type(error).__name__, "done": done})
                self._progress(self._how_it_stands(plan, done))
                raise
            self._write_down("deploy ended", {"done": done})
            return plan

    def _replace(self, plan: Plan, name: str) -> None:
        operations, actor = self._operations, self._actor
        others = [each for each in (*plan.replaced, *plan.current, *plan.elsewhere, *plan.left) if each != name]
        if any(self._observer_says_it_runs(each) for each in others):
            self._progress(f"{name} hands its tasks over")
            operations.hand_over_for_restart(name, actor=actor, timeout_s=DRAIN_SECONDS)
        else:
            self._progress(f"{name} is closed; its tasks wait for it")
            operations.close_for_restart(name, actor=actor, timeout_s=STOP_SECONDS)
        operations.start(name, actor=actor, timeout_s=self._timeout_s, progress=self._progress)
        self._wait_until_caught_up(name)
        self._write_down("instance deployed", {"build": plan.builds[name]}, name)
        self._progress(f"{name} runs the new code")

    def _observer_says_it_runs(self, name: str) -> bool:
        return any(member.state is State.RUNNING and not member.returns for member in self._observer.observe().workers(name))

    def _wait_until_caught_up(self, name: str) -> None:
        """Wait until no task is moving to or from an instance, and this one has its standbys."""
        deadline, settled = time.monotonic() + self._timeout_s, 0
        self._progress(f"{name} is RUNNING; it learns its tasks")
        while settled < _CHECKS:
            picture = self._observer.observe()
            settled = settled + 1 if _is_settled(picture, name) else 0
            process = self._operations.launcher.running(name)
            if process is None:
                raise LaunchError(
                    f"instance {name} ended: {self._operations.launcher.last_words(name)} "
                    f"(its log: {self._operations.paths.log_path(name)})"
                )
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"instance {name} has not caught up within {self._timeout_s:g} s; it continues. penstock tasks {self._application.id} "
                    "shows how far it is; --timeout gives it longer"
                )
            time.sleep(_POLL_SECONDS)

    def _how_it_stands(self, plan: Plan, done: Sequence[str]) -> str:
        new = [*plan.current, *done]
        previous = [name for name in plan.replaced if name not in done]
        first, *rest = previous or [""]
        name = self._application.id
        return (
            f"The deploy of {name} has stopped. New code: {', '.join(new) or 'none'}. Stopped at: {first or 'none'}. Old code: "
            f"{', '.join(rest) or 'none'}.\nTo continue: penstock deploy {name}, which leaves instances with the new code as they are. "
            f"To roll back: restore the old code, then penstock deploy {name}; if the new version has stores that the old one lacks, first "
            "stop the instances with the new code (penstock stop NAME …)"
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the application's deployment. Raises RefusedError if another is in progress."""
        path = self._operations.paths.home / "instances" / f"{self._application.id}.deploy.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise RefusedError(f"another deploy of {self._application.id} is under way ({path} is held)") from error
        try:
            yield
        finally:
            lock.release()

    def _write_down(self, action: str, detail: dict[str, object], instance: str | None = None) -> None:
        with self._operations.control_plane.writing() as session:
            audit.record(session, self._actor, action, at=audit.now(), application=self._application.id, instance=instance, detail=detail)


def refuse(application: Application, findings: Findings, *, alone: bool) -> None:
    """Raise RefusedError with all obstacles to a start with the current code and configuration. `alone`: no other instance may run
    meanwhile."""
    problems = [*findings.problems, *(() if alone else dict.fromkeys(findings.beside.values()))]
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise RefusedError(f"{application.id} would not start with the code and configuration of now; nothing was stopped:{listed}")


def _is_settled(picture: Picture, name: str) -> bool:
    """Return True if no task is moving, and the instance's workers have their assigned tasks."""
    assignment, workers = picture.assignment, picture.workers(name)
    if assignment is None or assignment.revoking or assignment.heirs or assignment.reserved or not workers:
        return False
    granted = {grant.identity for grant in assignment.grants}
    reports = [report for member in picture.members.values() if not member.returns for report in member.tasks.values()]
    at_work = all(report.state in _AT_WORK for report in reports if report.kind is TaskKind.ACTIVE)
    learns = any(report.kind is TaskKind.LEARNER for report in reports)
    return at_work and not learns and all(_is_whole(member) and member.identity in granted for member in workers)


def _is_whole(member: Member) -> bool:
    return all(report.caught_up for report in member.tasks.values() if report.kind is TaskKind.STANDBY)
