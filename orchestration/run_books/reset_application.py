"""*Reset application*: delete its state, so that it starts as if it had never run, from a chosen position of its input.

The order of the steps makes it safe to kill a run anywhere and start it again. From the first step that changes something to the last, a
mark on the coordination topic prevents every instance from starting (`runtime.coordination.resets`). The information that the next attempt
needs (which topologies ran, which instances were members) is deleted in the transaction that removes the mark. State on disks that cannot
be reached from here is recognised at the next start of the instance, and removed.
"""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import ClassVar

from filelock import FileLock, Timeout
from sqlalchemy import delete, select, update

from penstock.orchestration.alerts import alerts
from penstock.orchestration.database import audit
from penstock.orchestration.database.models import Checkpoint, Event, Instance, RunBookRun, RunBookState, Sample, Task, to_ms
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.instances.supervision import is_being_started
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.resets.brokers import Brokers
from penstock.orchestration.resets.survey import Past, Survey, refuse_living, survey
from penstock.orchestration.resets.survey import Subject as ToReset
from penstock.orchestration.resets.target import Edge, Target
from penstock.orchestration.run_books import base
from penstock.orchestration.run_books.base import DryRun, Findings, Progress, Request, RunBook, Step
from penstock.runtime.coordination.group import members_group
from penstock.runtime.coordination.records import Reset
from penstock.runtime.coordination.resets import know_reset
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.seeds.journal import journal_group
from penstock.runtime.stores.directory import StateDirectory


class ResetApplication(RunBook):
    """One run. Refused if an instance lives, here or elsewhere, even suspended; if offsets do not exist; if nothing is known of the
    application.

    `internal_topics`: topics that look like the application's own but are in none of its known topologies. `force`: treat instances on
    other machines that are in no group as dead. `show_plan`: report the plan before anything is changed.
    """

    NAME = "reset-application"
    NOT_SHOWN = frozenset({"plan"})
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("check", "no instance lives, and it is known what there is"),
        Step("begin", "a mark on the coordination topic keeps every instance from starting; none is wanted any more"),
        Step("fence", "transactions of instances that were killed are aborted"),
        Step("topics", "changelogs and repartition topics are deleted"),
        Step("outputs", "output topics are emptied"),
        Step("offsets", "committed offsets are deleted, and those of the input set"),
        Step("disks", "local state on this machine is deleted"),
        Step("events", "events, alerts and what is known of tasks are forgotten; the audit trail stays"),
        Step("end", "the coordination topic forgets members, pauses and topologies, and the mark"),
    )

    def __init__(
        self,
        operations: Operations,
        application: Application,
        target: Target,
        request: Request,
        progress: Progress = lambda _: None,
        *,
        delete_outputs: bool = False,
        internal_topics: Collection[str] = (),
        force: bool = False,
        show_plan: bool = True,
    ) -> None:
        super().__init__(application, operations.control_plane, request, progress)
        self._operations = operations
        self._delete_outputs = delete_outputs
        self._show_plan = show_plan
        config = application.streams_config()
        self._reset = ToReset(application, config, operations.paths, target, tuple(internal_topics), force)
        self._topics = TopicAdmin(config)
        self._brokers = Brokers(config, self._topics)
        self._mark: Reset | None = None
        self._surveyed: Survey | None = None

    def subject(self) -> base.Subject:
        return base.Subject(f"application {self.application.id}, to {self._reset.target.text}")

    def inspect(self, findings: Findings) -> None:
        self.feed.step()  # fails if no broker answers
        past = Past.read(self._reset.config, self._topics)
        self._reset = replace(self._reset, target=self._reset.target.continued(past.unfinished))
        self._surveyed = survey(self._reset, self._topics, past)
        if self._surveyed.nothing:
            servers = self.application.bootstrap_servers
            raise RefusedError(f"nothing is known of an application {self.application.id} at {servers} or on this machine")
        self._refuse_running(past, self._surveyed)
        findings["plan"] = self._lines()

    def dry_run(self) -> DryRun:
        result = super().dry_run()
        if result.refused is not None or self._surveyed is None:
            return result
        return DryRun(tuple(self._lines()))

    def needless(self, step: Step) -> bool:
        return step.name == "outputs" and not self._delete_outputs and not self._policies_before()

    def take(self, step: Step, findings: Findings) -> None:
        if step.name == "begin":
            self._begin_reset(findings)
            return
        self._brokers.check()
        there, id_ = self._survey, self.application.id
        match step.name:
            case "fence":
                self._brokers.fence([*there.transactional_ids, f"{id_}-leader", journal_group(id_)])
                findings["members"] = len(there.transactional_ids)
            case "topics":
                findings["topics"] = self._brokers.delete_topics(there.topics)
            case "outputs":
                self._empty_outputs(findings)
            case "offsets":
                self._brokers.set_offsets(there.offsets, (id_, members_group(id_), journal_group(id_)))
                findings["offsets"] = {str(partition): offset for partition, offset in sorted(there.offsets.items())}
            case "disks":
                findings["folders"] = self._wipe()
            case "events":
                self.feed.step()
                self._brokers.forget_events()
                self._forget_rows()
            case "end":
                findings["forgotten"] = self._brokers.end(self._marked(ended=True))

    def outcome(self) -> str:
        start = " ".join(self.application.instances)
        begins = f"application {self.application.id} begins without state, at {self._reset.target}"
        return f"{begins}; nothing runs: penstock start {start}".rstrip()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        lock = self._operations.paths.home / "resets" / f"{self.application.id}.lock"
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(lock, timeout=0), super()._connected():
                yield
        except Timeout as error:
            raise base.RunBookError(f"another reset of {self.application.id} is under way on this machine ({lock} is held)") from error
        finally:
            self._brokers.close()

    @property
    def _survey(self) -> Survey:
        assert self._surveyed is not None  # set by the first step
        return self._surveyed

    def _refuse_running(self, past: Past, there: Survey) -> None:
        """Raise RefusedError if an instance lives, or is being started: a restart or deploy closes an instance and then starts it again."""
        refuse_living(self._reset, self._topics, past, there.folders)
        id_, at, launcher = self.application.id, audit.now(), self._operations.launcher
        with self.control_plane.reading() as session:
            rows = session.scalars(select(Instance).where(Instance.application == id_).order_by(Instance.name)).all()
        if starting := [row.name for row in rows if is_being_started(row, launcher.last(row.name), at)]:
            raise RefusedError(
                f"application {id_} is not stopped: {', '.join(starting)} is being started, restarted or deployed. Wait until that has "
                f"ended, then stop every instance (penstock stop {id_})"
            )

    def _lines(self) -> list[str]:
        return list(self._survey.lines(delete_outputs=self._delete_outputs))

    # -- steps -----------------------------------------------------------------------------------------------------------------

    def _begin_reset(self, findings: Findings) -> None:
        there = self._survey
        for line in self._lines() if self._show_plan else ():
            self.progress(line)
        policies = self._brokers.policies(there.outputs) if self._delete_outputs else {}
        self._mark = Reset(
            id=f"{audit.now():%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}",
            at_ms=time.time_ns() // 1_000_000,
            by=self.request.requested_by,
            policies={**policies, **self._policies_before()},
            inputs=tuple(sorted({partition.topic for partition in there.offsets})),
            options=self._options(),
            back=self._reset.target.back,
            to_ms=to_ms(self._reset.target.to) if isinstance(self._reset.target.to, datetime) else 0,
        )
        self._brokers.mark(self._mark)
        # An instance that starts from here on reads the mark first, and exits. This check finds instances that started before.
        try:
            self._refuse_running(Past.read(self._reset.config, self._topics), there)
        except RefusedError as error:
            self._brokers.take_mark_back()
            raise RefusedError(
                f"{error}. It started after the first check. Nothing was changed, but it may have ended because a reset had begun: stop "
                "every instance, then run the reset again"
            ) from error
        self._operations.want_none(self.application, there.instances, actor=self.request.requested_by)
        findings["mark"] = self._mark.id

    def _marked(self, *, ended: bool) -> Reset:
        assert self._mark is not None  # set by the second step
        return Reset(id=self._mark.id, at_ms=self._mark.at_ms, by=self._mark.by, ended=ended, options=self._mark.options)

    def _empty_outputs(self, findings: Findings) -> None:
        assert self._mark is not None  # set by the second step
        emptied = self._survey.outputs if self._delete_outputs else ()
        for topic in emptied:
            self._brokers.empty(topic, self._mark.policies.get(topic, "delete"))
        for topic, policy in self._policies_before().items():
            self._brokers.restore_policy(topic, policy)
        findings["topics"] = list(emptied)

    def _policies_before(self) -> Mapping[str, str]:
        """Return the policies of output topics that a killed reset may have left changed."""
        return {} if self._survey.unfinished is None else self._survey.unfinished.policies

    def _options(self) -> str:
        given = [] if self._reset.target.to is Edge.EARLIEST else ["--to", self._reset.target.text]
        given += ["--delete-outputs", "yes"] if self._delete_outputs else []
        given += ["--internal-topics", ",".join(self._reset.named)] if self._reset.named else []
        return shlex.join(given)

    def _wipe(self) -> list[str]:
        mark = self._marked(ended=True)
        for folder in self._survey.folders:
            directory = StateDirectory(folder.parent, self.application.id)
            directory.lock()
            try:
                directory.await_previous_workers()
                directory.wipe()
                know_reset(directory, mark.id)
            finally:
                directory.unlock()
        return [str(folder) for folder in self._survey.folders]

    def _forget_rows(self) -> None:
        """Delete the database's rows on the application from before the reset, except its history."""
        id_, actor, at = self.application.id, self.request.requested_by, audit.now()
        with self.control_plane.writing() as session:
            for alert in alerts.unresolved(session, application=id_):
                alerts.resolve(session, alert, actor=actor, at=at, resolution=f"{id_} was reset")
            waiting = [RunBookState.PROPOSED.value, RunBookState.REQUESTED.value]
            for run in session.scalars(select(RunBookRun).where(RunBookRun.application == id_, RunBookRun.state.in_(waiting))):
                run.state, run.ended_at, run.reason = RunBookState.REFUSED.value, at, f"{id_} was reset"
            for table in (Task, Checkpoint, Event, Sample):
                session.execute(delete(table).where(table.application == id_))
            fresh = {"state": None, "state_at": None, "member_id": None, "heartbeat_at": None, "deaths": 0, "died_at": None}
            session.execute(update(Instance).where(Instance.application == id_).values(fresh))
