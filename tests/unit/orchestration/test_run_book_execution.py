"""Steps of a run-book executed one by one, as Dagster's ops do: each once, in order, recorded, and continued by another process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import dagster as dg
import pytest
from sqlalchemy import select

from penstock.orchestration.dagster.jobs import approval_job, run_book_job, title
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import AuditEntry, RunBookRun, RunBookState
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books import Execution, Progress, Request, RunBook, RunBookInputs, SkipRecord, Step, base
from penstock.orchestration.run_books.base import Findings, Subject
from tests.support import wait_until

(A,) = Applications.parse('[applications.a]\nfactory = "m:f"\ninstances = 1\n', Path("streams.toml")).applications


class Repair(RunBook):
    """A run-book without a broker."""

    NAME = "repair"
    STEPS: ClassVar[tuple[Step, ...]] = tuple(Step(name, "x") for name in ("check", "keep", "wait", "close"))
    refused = False

    def subject(self) -> Subject:
        return Subject("in-0@5")

    def needless(self, step: Step) -> bool:
        return step.name == "wait"

    def inspect(self, findings: Findings) -> None:
        findings["found"] = "it"
        if self.refused:
            raise RefusedError("not now")

    def take(self, step: Step, findings: Findings) -> None:
        findings["did"] = step.name

    def outcome(self) -> str:
        return "repaired"

    @contextmanager
    def _connected(self) -> Iterator[None]:
        yield


def rows(control_plane: ControlPlane) -> list[tuple[str, str | None, list[str]]]:
    with control_plane.reading() as session:
        runs = session.scalars(select(RunBookRun).order_by(RunBookRun.id))
        return [(run.state, run.reason, [f"{step.name} {step.state}" for step in run.steps]) for run in runs]


def result(execution: Execution) -> str | None:
    return None if execution.result is None else execution.result.state


def test_each_step_is_executed_when_its_op_asks_for_it(control_plane: ControlPlane) -> None:
    execution = Execution(Repair(A, control_plane, Request("ann")))
    assert execution.execute_until("check") == {"found": "it"}
    assert rows(control_plane) == [("RUNNING", None, ["check DONE"])]
    assert [execution.execute_until(name) for name in ("keep", "wait")] == [{"did": "keep"}, None]
    assert result(execution) is None
    assert execution.execute_until("close") == {"did": "close"}
    assert result(execution) == RunBookState.DONE.value
    execution.close()
    assert rows(control_plane) == [("DONE", "repaired", ["check DONE", "keep DONE", "close DONE"])]


def test_one_that_was_interrupted_between_two_steps_is_continued_from_a_later_op(control_plane: ControlPlane) -> None:
    """Dagster executes only the ops that have not succeeded, in another process, which has to know what the earlier ones found."""
    first = Execution(Repair(A, control_plane, Request("ann")))
    first.execute_until("keep")
    first.close()
    assert rows(control_plane) == [("FAILED", "interrupted between two steps", ["check DONE", "keep DONE"])]
    second = Execution(Repair(A, control_plane, Request("ann", run_id=first.book.run_id)))
    assert second.execute_until("close") == {"did": "close"}
    assert rows(control_plane)[0][:2] == ("DONE", "repaired")
    third = Execution(Repair(A, control_plane, Request("ann", run_id=first.book.run_id)))
    assert third.execute_until("check") is None and result(third) == RunBookState.DONE.value
    assert len(rows(control_plane)[0][2]) == 5, "a run that is over is not executed again"


def test_two_processes_that_execute_the_same_run_do_not_disturb_each_other(control_plane: ControlPlane) -> None:
    """A run that takes long counts as killed, and is taken up again; or a person re-executes it meanwhile."""
    first = Execution(Repair(A, control_plane, Request("ann")))
    first.execute_until("check")
    second = Execution(Repair(A, control_plane, Request("policy", run_id=first.book.run_id)))
    second.execute_until("check")
    assert first.execute_until("keep") == {"did": "keep"}
    assert second.execute_until("close") == {"did": "close"}
    assert rows(control_plane)[0][:2] == ("DONE", "repaired")
    first.close()
    ((state, reason, steps),) = rows(control_plane)
    assert (state, reason) == ("DONE", "repaired"), "one that is interrupted does not undo what the other has completed"
    assert steps == [f"{name} DONE" for name in ("check", "check", "keep", "keep", "close")]


@pytest.mark.parametrize("later", ["check", "close"])
def test_a_refusal_ends_it_at_whatever_op_begins(control_plane: ControlPlane, later: str) -> None:
    book = Repair(A, control_plane, Request("ann"))
    book.refused = True
    execution = Execution(book)
    assert execution.execute_until(later) is None
    assert result(execution) == RunBookState.REFUSED.value
    assert rows(control_plane) == [("REFUSED", "not now", ["check REFUSED"])]


class RepairInputs(RunBookInputs):
    """Repair it."""

    BOOK, JOB, OP = Repair, "repair_it", "repair"

    def run_book(self, operations: Operations, request: Request, progress: Progress) -> RunBook:
        return Repair(operations.applications.named("a"), operations.control_plane, request, progress)


def declare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare an application `a`, in a project of this folder, which the environment names."""
    (folder / "streams.toml").write_text('[applications.a]\nfactory = "m:f"\ninstances = 1\n')
    monkeypatch.setenv("PENSTOCK_HOME", str(folder / "home"))
    monkeypatch.setenv("PENSTOCK_STREAMS", str(folder / "streams.toml"))
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)


@pytest.mark.parametrize(("dry_run", "refused"), [(False, False), (True, False), (False, True), (True, True)])
def test_each_step_is_an_op_with_its_findings_as_metadata(
    dry_run: bool, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path, monkeypatch)
    monkeypatch.setattr(Repair, "refused", refused)
    with dg.DagsterInstance.ephemeral() as dagster:
        done = run_book_job(RepairInputs).execute_in_process(
            {"ops": {"repair": {"config": {"dry_run": dry_run}}}},
            instance=dagster,
            resources={"penstock": PenstockResource()},
            raise_on_error=False,
        )
        (run,) = dagster.get_runs()
    outputs = [event for event in done.all_node_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    shown = {str(event.step_key): {name: value.value for name, value in event.step_output_data.metadata.items()} for event in outputs}
    if refused:
        assert (done.success, shown) == (False, {})
    elif dry_run:
        assert shown == {f"repair.{name}": {"would": text} for name, text in PLAN.items()}
    else:
        assert shown == {
            "repair.check": {"found": "it"},
            "repair.keep": {"did": "keep"},
            "repair.wait": {"finding": "not needed"},
            "repair.close": {"did": "close"},
        }
    assert {"try" if dry_run else "repair": "in-0@5", "penstock/application": "a"}.items() <= run.tags.items()


@pytest.mark.parametrize(
    ("config", "ops", "state"),
    [
        ({"decision": "approve", "by": "ann"}, ["decision", *(f"skip_{step.name}" for step in SkipRecord.STEPS)], RunBookState.DONE),
        ({"decision": "reject", "reason": "the code is wrong"}, ["decision"], RunBookState.REFUSED),
    ],
)
def test_an_approved_run_shows_each_step_as_an_op_too(
    config: dict[str, object],
    ops: list[str],
    state: RunBookState,
    control_plane: ControlPlane,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("inspect", "take", "needless", "outcome", "_connected"):
        monkeypatch.setattr(SkipRecord, name, getattr(Repair, name))
    monkeypatch.setattr(SkipRecord, "refused", False, raising=False)
    declare(tmp_path, monkeypatch)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", control_plane.url.render_as_string(hide_password=False))
    hours_ago = now() - timedelta(hours=3)
    record = {"task": "0_0", "topic": "in", "partition": 0, "offset": 5, "occurrence": "e", "subject": "in-0@5"}
    with control_plane.writing() as session:
        request = {"by_policy": True, "requested_by": "policy", "requested_at": hours_ago, "state": RunBookState.PROPOSED.value}
        session.add(RunBookRun(run_book=SkipRecord.NAME, application="a", **record, **request))
    with dg.DagsterInstance.ephemeral() as dagster:
        done = approval_job().execute_in_process(
            {"ops": {"decide": {"config": {"run_book_run": 1, **config}}}},
            instance=dagster,
            resources={"penstock": PenstockResource()},
            tags={"user": "bob"},  # as Dagster+ does
        )
        (run,) = dagster.get_runs()
    succeeded = [event for event in done.all_node_events if event.event_type is dg.DagsterEventType.STEP_SUCCESS]
    assert [str(event.step_key).removeprefix("decide.") for event in succeeded] == ops
    with control_plane.reading() as session:
        row = session.get_one(RunBookRun, 1)
        assert row.state == state.value
        (decided,) = session.scalars(select(AuditEntry).where(AuditEntry.action.in_(("run-book approved", "run-book rejected"))))
        assert decided.actor == f"{config.get('by', 'bob')} (dagster run {run.run_id[:8]})", "a person, not only a run"
        assert row.reason != "" and (state is RunBookState.DONE or f"rejected by {decided.actor}: the code is wrong" == row.reason)
    assert run.tags["skip" if state is RunBookState.DONE else "reject"] == run.tags["penstock/record"] == "in-0@5"
    if state is RunBookState.DONE:
        assert run.tags["skip"] == "in-0@5"
        assert [step.name for step in row.steps] == [step.name for step in SkipRecord.STEPS]
        assert row.requested_at > hours_ago, "if it is killed now, it is taken up again, as any run of the last hour"


def test_a_run_says_within_a_long_step_that_it_goes_on(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    def alive_at() -> datetime | None:
        with control_plane.reading() as session:
            return session.get_one(RunBookRun, 1).alive_at

    class Slow(Repair):
        def take(self, step: Step, findings: Findings) -> None:
            if step.name == "keep":
                wait_until(lambda: alive_at() is not None, 30, "a report within the step")

    monkeypatch.setattr(base, "ALIVE_SECONDS", 0.05)
    assert Slow(A, control_plane, Request("ann")).run().state == RunBookState.DONE.value
    last = alive_at()
    assert last is not None
    assert "run-book-alive" not in {thread.name for thread in threading.enumerate()}, "nothing reports a run that is over"


def test_the_title_of_a_run_fits_into_the_list_and_keeps_the_end_of_its_record() -> None:
    assert title("skip-record", "flights-4@15535") == {"skip": "flights-4@15535"}
    ((verb, subject),) = title("skip-record", "the-orders-of-the-customers-of-the-northern-region-2@1234567").items()
    assert (verb, subject) == ("skip", "the-order…n-region-2@1234567")


PLAN = {"check": "found it", "keep": "x", "wait": "not needed", "close": "x"}
