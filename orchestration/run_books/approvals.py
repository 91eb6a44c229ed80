"""Runs that a policy proposed (`start = "after-approval"`): somebody approves one, and it is run; or rejects it."""

from __future__ import annotations

from orchestration import audit
from orchestration.control_plane import ControlPlane
from orchestration.control_plane.models import RunBookRun, RunBookState
from orchestration.operations import Operations
from orchestration.run_books.base import Progress, Request, RunBook
from orchestration.run_books.skip_record import SkipRecord
from orchestration.run_books.tasks import RecordInTheWay
from orchestration.tasks import RefusedError
from runtime.ids import TaskId


def approve(control_plane: ControlPlane, run_id: int, actor: str) -> RunBookRun:
    """The run, to be run now; one that was approved before stays so. Raises RefusedError if it waits for no approval."""
    return _decide(control_plane, run_id, RunBookState.REQUESTED, actor, "run-book approved", "")


def reject(control_plane: ControlPlane, run_id: int, actor: str, reason: str) -> RunBookRun:
    """The run, which is not to be run. Raises RefusedError if it waits for no approval."""
    return _decide(control_plane, run_id, RunBookState.REFUSED, actor, "run-book rejected", f"rejected by {actor}: {reason}")


def approved_run_book(
    operations: Operations, run: RunBookRun, actor: str, progress: Progress, dagster_run_id: str | None = None
) -> RunBook:
    """The run-book of an approved run."""
    assert run.task is not None and run.topic is not None and run.partition is not None and run.offset is not None  # a skip-record
    record = RecordInTheWay(TaskId.parse(run.task), run.topic, run.partition, run.offset)
    request = Request(requested_by=actor, reason="approved", run_id=run.id, occurrence=run.occurrence, dagster_run_id=dagster_run_id)
    return SkipRecord(operations.applications.named(run.application), operations.control_plane, record, request, progress)


def _decide(control_plane: ControlPlane, run_id: int, state: RunBookState, actor: str, action: str, reason: str) -> RunBookRun:
    at = audit.now()
    with control_plane.writing() as session:
        run = session.get(RunBookRun, run_id, with_for_update=True)
        if run is None:
            raise RefusedError(f"there is no run {run_id}; `penstock run-books` lists them")
        if run.state == state.value:
            return run
        if run.state != RunBookState.PROPOSED.value:
            raise RefusedError(f"run {run_id} waits for no approval: it is {run.state}" + (f" ({run.reason})" if run.reason else ""))
        run.state = state.value
        if state is RunBookState.REFUSED:
            run.ended_at, run.reason = at, reason
        audit.record(
            session, actor, action, at=at, application=run.application, task=run.task, run_book_run_id=run.id, detail={"reason": reason}
        )
        return run
