"""Choice of the dead letters for a replay: none that the task has not read yet, or has read since."""

from __future__ import annotations

import pytest

from penstock.orchestration.database import ControlPlane, audit
from penstock.orchestration.database.models import RunBookRun, RunBookState, RunBookStep, StepState
from penstock.orchestration.dead_letters import replay
from penstock.orchestration.dead_letters.topic import RawRecord
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books import ReplayDeadLetters
from penstock.orchestration.run_books.base import Request

APPLICATION = Application("a", "m:f", ("a-1",), {"bootstrap.servers": "127.0.0.1:1"})
STEPS = ("check", "keep", "shift", "resume", "verify", "close")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three dead letters, and none replayed."""
    letters = tuple(
        replay.DeadLetter(RawRecord("a-dead-letter", 0, number, None, b"{", None, ()), "in", 0, number, "ValueError", "not JSON")
        for number in (1, 2, 3)
    )
    monkeypatch.setattr(replay, "read_dead_letters", lambda _: replay.DeadLetters(letters, ("a-dead-letter",)))
    monkeypatch.setattr(replay, "read_marks", lambda _: frozenset())
    monkeypatch.setattr(replay, "missing_targets", lambda *_: [])


def skip_was_run(control_plane: ControlPlane, offset: int, done: int, state: RunBookState) -> None:
    """A skip-record that came so many steps far."""
    at = audit.now()
    steps = [RunBookStep(number=number, name=STEPS[number], state=StepState.DONE.value, started_at=at, detail={}) for number in range(done)]
    with control_plane.writing() as session:
        session.add(
            RunBookRun(
                run_book="skip-record",
                application="a",
                subject=f"in-0@{offset}",
                requested_by="ann",
                requested_at=at,
                state=state.value,
                steps=steps,
            )
        )


def chosen(control_plane: ControlPlane, *records: str) -> object:
    found: dict[str, object] = {}
    ReplayDeadLetters(APPLICATION, control_plane, Request("ann"), records=records).inspect(found)
    return found["records"]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("state", [RunBookState.RUNNING, RunBookState.REFUSED, RunBookState.FAILED])
def test_a_record_that_was_kept_and_not_skipped_is_left_out(control_plane: ControlPlane, state: RunBookState) -> None:
    skip_was_run(control_plane, 1, len(STEPS), RunBookState.DONE)
    skip_was_run(control_plane, 2, 2, state)
    assert chosen(control_plane) == ["in-0@1", "in-0@3"]
    with pytest.raises(RefusedError, match="in-0@2 is kept, but its skip-record has not ended"):
        chosen(control_plane, "in-0@2")


@pytest.mark.usefixtures("kept")
def test_a_record_that_was_skipped_in_the_end_is_taken(control_plane: ControlPlane) -> None:
    skip_was_run(control_plane, 2, 2, RunBookState.FAILED)
    skip_was_run(control_plane, 2, 2, RunBookState.DONE)
    skip_was_run(control_plane, 3, 3, RunBookState.RUNNING)
    assert chosen(control_plane) == ["in-0@1", "in-0@2", "in-0@3"]
