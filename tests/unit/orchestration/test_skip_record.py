"""The last line of the run-book skip-record states the outcome for the task."""

from __future__ import annotations

import pytest

from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Task
from penstock.orchestration.dead_letters.topic import DeadLetter
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.task_commands import TaskCommands
from penstock.orchestration.run_books import SkipRecord
from penstock.orchestration.run_books.base import Request
from penstock.orchestration.run_books.tasks import PausedRecord
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import TaskState

APPLICATION = Application("a", "m:f", ("a-1",), {"bootstrap.servers": "127.0.0.1:1"})


@pytest.mark.parametrize(
    ("state", "paused_offset", "says"),
    [(TaskState.RUNNING, None, "; the task runs"), (TaskState.PAUSED, 9, "; the task is paused at in-0@9 now")],
)
def test_the_outcome_says_whether_the_task_runs_or_has_paused_again(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, state: TaskState, paused_offset: int | None, says: str
) -> None:
    row = Task(application="a", task="0_0", instance="a-1", state=state.value)
    row.paused_topic, row.paused_partition, row.paused_offset = (None if paused_offset is None else "in"), 0, paused_offset
    monkeypatch.setattr(SkipRecord, "wait_until_past", lambda *_: row)
    monkeypatch.setattr(
        "penstock.orchestration.dead_letters.topic.store_dead_letter", lambda *_: DeadLetter("a-dead-letter", 3, already=False)
    )
    monkeypatch.setattr("penstock.orchestration.dead_letters.topic.read_record", lambda *_: object())
    monkeypatch.setattr(TaskCommands, "committed", lambda *_: 9)
    run_book = SkipRecord(APPLICATION, control_plane, PausedRecord(TaskId(0, 0), "in", 0, 7), Request("ann"))
    run_book._commands = TaskCommands(APPLICATION, "ann")
    _, keep, _, _, verify, _ = run_book.STEPS
    run_book.take(keep, {})
    run_book.take(verify, {})
    assert run_book.outcome().endswith(says)
