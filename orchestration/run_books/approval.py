"""Approval of runs that a policy proposes (`start = "after-approval"`): an approved run is executed, a rejected one is not."""

from __future__ import annotations

from penstock.orchestration.alerts import alerts
from penstock.orchestration.database import ControlPlane, audit
from penstock.orchestration.database.models import RunBookRun, RunBookState
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books.base import Progress, Request, RunBook
from penstock.orchestration.run_books.restore_global_topic import RestoreGlobalTopic
from penstock.orchestration.run_books.skip_record import SkipRecord
from penstock.orchestration.run_books.tasks import PausedRecord
from penstock.runtime.model.ids import TaskId


def approve(control_plane: ControlPlane, run_id: int, actor: str) -> RunBookRun:
    """Approve a run, and return it; if it was approved before, nothing changes. Raises RefusedError if it does not wait for an approval."""
    return _decide(control_plane, run_id, RunBookState.REQUESTED, actor, "run-book approved", "")


def reject(control_plane: ControlPlane, run_id: int, actor: str, reason: str) -> RunBookRun:
    """Reject a run, and return it. Raises RefusedError if it does not wait for an approval."""
    return _decide(
        control_plane, run_id, RunBookState.REFUSED, actor, "run-book rejected", f"rejected by {actor}: {reason or 'no reason given'}"
    )


def approved_run_book(operations: Operations, run_id: int, actor: str, progress: Progress, dagster_run_id: str | None = None) -> RunBook:
    """Return the run-book of an approved run; also if it was started before."""
    with operations.control_plane.reading() as session:
        run = session.get_one(RunBookRun, run_id)
    application = operations.applications.named(run.application)
    request = Request(requested_by=actor, reason="approved", run_id=run.id, occurrence=run.occurrence, dagster_run_id=dagster_run_id)
    assert run.topic is not None  # the policies' run-books are about a record or a topic
    if run.run_book == RestoreGlobalTopic.NAME:
        return RestoreGlobalTopic(operations, application, run.topic, request, progress)
    assert run.task is not None and run.partition is not None and run.offset is not None  # a skip-record
    record = PausedRecord(TaskId.parse(run.task), run.topic, run.partition, run.offset)
    return SkipRecord(application, operations.control_plane, record, request, progress)


def _decide(control_plane: ControlPlane, run_id: int, state: RunBookState, actor: str, action: str, reason: str) -> RunBookRun:
    at = audit.now()
    with control_plane.writing() as session:
        run = session.get(RunBookRun, run_id)
        if run is None:
            raise RefusedError(f"there is no run {run_id}; `penstock run-books` lists them")
        unresolved = alerts.unresolved(session, application=run.application)  # locked before the run, as by the sensors
        session.refresh(run, with_for_update=True)
        if run.state == state.value:
            return run
        if run.state != RunBookState.PROPOSED.value:
            raise RefusedError(f"run {run_id} waits for no approval: it is {run.state}" + (f" ({run.reason})" if run.reason else ""))
        run.state = state.value
        if state is RunBookState.REFUSED:
            run.ended_at, run.reason = at, reason
        else:
            run.requested_at = at  # from now on it counts as killed if nothing executes it, however long it has waited for this
        outcome = f"REFUSED ({reason})" if reason else f"is approved by {actor}"
        for alert in unresolved:
            if alert.detail.get("run_book_run") == run.id:
                said = f"{run.run_book} {outcome}: run {run.id}"
                alert.detail = {**alert.detail, "run-book": said, "waits_for_approval": False}
        audit.record(
            session, actor, action, at=at, application=run.application, task=run.task, run_book_run_id=run.id, detail={"reason": reason}
        )
        return run
