"""Reactions to a pause: budgets, patterns, approval, and how a bad deploy is distinguished from bad records. The test sets the clock."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from penstock.orchestration.alerts import alert_text, alerts, incidents, pauses
from penstock.orchestration.dagster import alert_check
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.database.models import Alert, AlertState, AuditEntry, RunBookRun, RunBookState, Task
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.policies import RunBook
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books import approve, reject
from penstock.runtime.model.events import EventKind
from penstock.sensors.event_cursor import Cursor
from tests.unit.orchestration.timeline import START_MS, Timeline

HOUR_MS = 3_600_000
HEAD = '[applications.a]\nfactory = "m:f"\ninstances = ["a-1"]\n[applications.a.paused]\nrun-book = "skip-record"\n'


def declared(policy: str = "") -> Application:
    (application,) = Applications.parse(HEAD + policy, Path("streams.toml")).applications
    return application


class Story(Timeline):
    """Pauses of tasks, told and reacted to one by one."""

    def tell(self, kind: EventKind, payload: dict[str, object], task: str) -> None:
        self.store(f"a/{task}/{kind.value}/{self.sequence}", kind, payload, task)

    def pause(self, offset: int, task: str = "0_0", error_type: str = "ValueError", error: str = "not JSON", by_hand: bool = False) -> None:
        payload: dict[str, object] = {"topic": "in", "partition": int(task[-1]), "offset": offset, "reason": "deserialization"}
        payload |= {"reason": "command"} if by_hand else {"error_type": error_type, "error": error}
        self.tell(EventKind.TASK_PAUSED, payload, task)

    def resumed(self, task: str = "0_0") -> None:
        self.ms += 1
        self.tell(EventKind.TASK_RESUMED, {"offsets": {}}, task)

    def alerts(self, state: AlertState | None = None) -> list[Alert]:
        query = select(Alert).order_by(Alert.id)
        with self.control_plane.reading() as session:
            return list(session.scalars(query if state is None else query.where(Alert.state == state.value)))

    def runs(self) -> list[RunBookRun]:
        with self.control_plane.reading() as session:
            return list(session.scalars(select(RunBookRun).order_by(RunBookRun.id)))

    def end(self, run: RunBookRun, state: RunBookState) -> None:
        with self.control_plane.writing() as session:
            session.get_one(RunBookRun, run.id).state = state.value


@pytest.fixture
def story(control_plane: ControlPlane) -> Story:
    return Story(control_plane, declared("budget-per-hour = 5\n"))


def test_a_thousand_pauses_within_an_hour_skip_no_more_than_the_budget_and_end_in_one_alert(story: Story) -> None:
    """A record each 3.6 s, by an injected clock; each run that the policy starts is done before the next pause."""
    skipped: list[RunBookRun] = []
    for offset in range(1_000):
        story.ms = START_MS + offset * 3_600
        story.pause(offset)
        for run in story.react():
            story.end(run, RunBookState.DONE)
            skipped.append(run)
            story.resumed()
    assert [run.offset for run in skipped] == [0, 1, 2, 3, 4]
    (alert,) = story.alerts(AlertState.OPEN)
    assert (alert.kind, alert.count, alert.last_seen_at) == (pauses.BAD_DEPLOY, 995, story.now)
    assert "the budget of 5 records an hour is used up" in alert.title
    assert len(story.alerts()) == 7, "one for each record that was skipped, the one that found no budget, and the one on all that followed"
    with story.control_plane.reading() as session:
        assert session.scalar(select(func.count()).select_from(AuditEntry)) == 13, "each alert is opened, and all but the last resolved"


def test_after_the_hour_and_the_resolved_alert_the_policy_continues(story: Story) -> None:
    for offset in range(6):
        story.pause(offset)
        for run in story.react():
            story.end(run, RunBookState.DONE)
        story.resumed()
    story.react()
    assert story.alerts(AlertState.OPEN) == [], "its task runs again"
    story.ms += HOUR_MS - 10_000
    story.pause(8)
    assert story.react() == [], "the first reservations are not an hour old"
    story.resumed()
    story.react()
    story.ms += 10_000
    story.pause(9)
    assert [run.offset for run in story.react()] == [9]


def test_tasks_that_pause_on_the_same_type_of_error_at_once_are_a_bad_deploy_and_what_has_not_begun_is_called_off(story: Story) -> None:
    for partition in range(3):
        story.pause(7, f"0_{partition}", error=f"no field {partition}")
        story.ms += 5_000
    story.react()
    (alert,) = story.alerts(AlertState.OPEN)
    assert "3 tasks paused on ValueError within 60 s" in alert.title
    assert (alert.kind, alert.count) == (pauses.BAD_DEPLOY, 3)
    assert alert.detail["tasks"] == {f"0_{partition}": f"in-{partition}@7" for partition in range(3)}
    assert {run.state for run in story.runs()} == {RunBookState.REFUSED.value}
    story.pause(8, "0_3", "KeyError")
    assert story.react() == []
    (alert,) = story.alerts(AlertState.OPEN)
    assert (alert.count, list(alert.detail["tasks"])) == (4, ["0_0", "0_1", "0_2", "0_3"])  # type: ignore[call-overload]  # a dictionary


def test_different_errors_and_pauses_far_apart_are_no_bad_deploy(control_plane: ControlPlane) -> None:
    story = Story(control_plane, declared("budget-per-hour = 10\n"))
    for partition, error in enumerate(("ValueError", "KeyError", "TypeError")):
        story.pause(7, f"0_{partition}", error)
    for partition in range(3, 6):
        story.ms += 61_000
        story.pause(7, f"0_{partition}", "IndexError")
    story.react()
    assert {alert.kind for alert in story.alerts()} == {"TASK_PAUSED"}


def test_a_bad_deploy_is_over_when_all_of_its_tasks_run(story: Story) -> None:
    for partition in range(3):
        story.pause(7, f"0_{partition}")
    story.react()
    for partition in range(3):
        assert [alert.kind for alert in story.alerts(AlertState.OPEN)] == [pauses.BAD_DEPLOY]
        story.resumed(f"0_{partition}")
        story.react()
    assert story.alerts(AlertState.OPEN) == []


def test_a_standby_that_runs_does_not_close_the_alert_of_a_paused_task(story: Story) -> None:
    story.pause(1)
    story.react()
    later = story.now + timedelta(seconds=5)
    with story.control_plane.writing() as session:
        session.add(Task(application="a", task="0_0", instance="a-2", kind="STANDBY", state="RUNNING", updated_at=later))
    story.react()
    assert len(story.alerts(AlertState.OPEN)) == 1


def test_a_pause_by_hand_is_information_and_nothing_is_skipped(story: Story) -> None:
    for partition in range(4):
        story.pause(3, f"0_{partition}", by_hand=True)
    assert story.react() == []
    assert {(alert.kind, alert.severity) for alert in story.alerts()} == {("TASK_PAUSED", "INFO")}


@pytest.mark.parametrize(
    ("error_type", "error", "skipped"),
    [("JSONDecodeError", "Expecting value", True), ("ValueError", "a\nnull byte", True), ("KeyError", "Expecting value", False)],
)
def test_only_errors_that_a_pattern_matches_are_skipped(control_plane: ControlPlane, error_type: str, error: str, skipped: bool) -> None:
    story = Story(control_plane, declared('skip-errors = ["JSONDecodeError: .*", "ValueError: .*null byte"]\n'))
    story.pause(1, error_type=error_type, error=error)
    assert bool(story.react()) is skipped
    (alert,) = story.alerts()
    assert ("no pattern of skip-errors matches" in str(alert.detail.get("run-book"))) is not skipped


def test_a_run_after_approval_waits_for_an_operator_and_costs_no_budget(control_plane: ControlPlane) -> None:
    story = Story(control_plane, declared('start = "after-approval"\nbudget-per-hour = 0\n'))
    story.pause(1)
    assert story.react() == []
    (run,) = story.runs()
    assert run.state == RunBookState.PROPOSED.value
    assert "waits for approval" in str(story.alerts()[0].detail["run-book"])
    assert approve(control_plane, run.id, "ann").state == RunBookState.REQUESTED.value
    assert approve(control_plane, run.id, "ann").state == RunBookState.REQUESTED.value
    (alert,) = story.alerts()
    assert (alert.detail["run-book"], alert_text.waits_for_approval(alert)) == (f"skip-record is approved by ann: run {run.id}", None)
    with pytest.raises(RefusedError, match="waits for no approval: it is REQUESTED"):
        reject(control_plane, run.id, "bob", "no")
    with pytest.raises(RefusedError, match="there is no run 99"):
        approve(control_plane, 99, "ann")


def test_a_rejected_run_is_over(control_plane: ControlPlane) -> None:
    story = Story(control_plane, declared('start = "after-approval"\n'))
    story.pause(1)
    story.react()
    (run,) = story.runs()
    with control_plane.reading() as session:
        _, shown = alert_check.changed(session, {})
    assert reject(control_plane, run.id, "bob", "the code is wrong").reason == "rejected by bob: the code is wrong"
    with control_plane.reading() as session:
        (alert,), _ = alert_check.changed(session, shown)
    assert alert.detail["run-book"] == f"skip-record REFUSED (rejected by bob: the code is wrong): run {run.id}", "its page says so"
    assert list(alert_check.links(alert)) == ["repair", "try", "rehearse", "instance"], "nothing waits any more"
    assert "skip-record" in alert_text.next_commands(alert)[0]
    with pytest.raises(RefusedError, match="waits for no approval: it is REFUSED"):
        approve(control_plane, run.id, "ann")


def test_a_run_that_was_killed_is_started_again_while_the_task_is_paused_three_times_in_all(story: Story) -> None:
    story.pause(1)
    (run,) = story.react()
    story.end(run, RunBookState.RUNNING)

    def unfinished(seconds: int) -> list[int]:
        story.ms += seconds * 1_000
        with story.control_plane.writing() as session:
            return [found.attempts for found in pauses.unfinished(session, story.application, story.now)]

    assert unfinished(60) == []
    assert unfinished(250) == [2]
    assert unfinished(250) == []
    assert unfinished(60) == [3]
    assert unfinished(250) == []
    assert story.runs()[0].state == RunBookState.RUNNING.value, "its last attempt may still go on"
    assert unfinished(600) == []
    (over,) = story.runs()
    assert (over.state, str(over.reason)[:34]) == (RunBookState.FAILED.value, "started 3 times, and did not end: ")
    assert "started 3 times" in str(story.alerts()[0].detail["run-book"]), "an alert does not announce a run that nothing starts"
    assert unfinished(600) == []


def test_a_run_whose_process_reports_that_it_goes_on_does_not_count_as_killed_however_long_a_step_takes(story: Story) -> None:
    story.pause(1)
    (run,) = story.react()
    story.end(run, RunBookState.RUNNING)
    story.ms += 600_000
    with story.control_plane.writing() as session:
        session.get_one(RunBookRun, run.id).alive_at = story.now
    story.ms += 60_000
    with story.control_plane.writing() as session:
        assert pauses.unfinished(session, story.application, story.now) == []
    story.ms += 300_000
    with story.control_plane.writing() as session:
        assert [found.id for found in pauses.unfinished(session, story.application, story.now)] == [run.id], "silent: killed"


@pytest.mark.parametrize(("state", "again"), [(RunBookState.RUNNING, 1), (RunBookState.FAILED, 0)])
def test_a_run_that_was_killed_after_its_effects_is_ended_though_its_alert_is_resolved(
    story: Story, state: RunBookState, again: int
) -> None:
    """It would be RUNNING forever otherwise. One that failed has ended, and its alert with it."""
    story.pause(1)
    (run,) = story.react()
    story.end(run, state)
    story.ms += 600_000
    with story.control_plane.writing() as session:
        alerts.resolve(session, 1, actor="sensor", at=story.now, resolution="the task runs")
        assert len(pauses.unfinished(session, story.application, story.now)) == again


def test_the_same_pause_of_another_owner_starts_no_second_run(story: Story) -> None:
    story.pause(1)
    (run,) = story.react()
    story.end(run, RunBookState.RUNNING)
    story.ms += 1_000
    story.pause(1)
    assert story.react() == []
    assert (len(story.runs()), story.alerts()[0].count) == (1, 2)


def test_comments_stay_in_the_history(story: Story) -> None:
    story.pause(1)
    story.react()
    with story.control_plane.writing() as session:
        alerts.comment(session, 1, "the producer was\x00 wrong", actor="ann", at=story.now)
        assert [entry.detail.get("comment") for entry in session.scalars(select(AuditEntry).where(AuditEntry.alert_id == 1))] == [
            None,
            "the producer was\\x00 wrong",
        ]


def lose(story: Story, number: int, topic: str = "names", **payload: object) -> None:
    story.ms += 1_000
    lost = {"lost": {f"{topic}-0": {"from": 1, "to": 4}}}
    reported = {"store": f"of-{topic}", "topic": topic, "reason": "gone", "attempt": 1, **lost, **payload}
    story.store(f"a/a-1/GLOBAL_RECOVERY_STARTED/{number}", EventKind.GLOBAL_RECOVERY_STARTED, reported, None)


def react_globals(story: Story, application: Application) -> list[RunBookRun]:
    with story.control_plane.writing() as session:
        events, story.cursor = story.cursor.read(session, "a", incidents.GLOBAL_KINDS)
        runs = incidents.of_globals(session, application, events, story.now)
        return [*runs, *pauses.unfinished(session, application, story.now, RunBook.RESTORE_GLOBAL_TOPIC)]


def running_again(story: Story) -> None:
    story.ms += 1_000
    story.store(f"a/running/{story.ms}", EventKind.INSTANCE_STATE, {"old": "RESTORING", "new": "RUNNING", "pid": 7}, None)


RESTORE = 'budget-per-hour = 1\n[applications.a.global-recovery]\nrun-book = "restore-global-topic"\n'


def test_a_topic_that_lost_records_has_one_run_that_waits_and_its_alert_stays_until_a_person_decides(story: Story) -> None:
    application = declared(RESTORE)
    lose(story, 1)
    lose(story, 2)
    lose(story, 3, lost={}, topic="damaged")
    assert react_globals(story, application) == []
    (run,) = story.runs()
    assert (run.state, run.topic, run.subject) == (RunBookState.PROPOSED.value, "names", "global topic names")
    running_again(story)
    react_globals(story, application)
    (alert,) = story.alerts(AlertState.OPEN)
    assert alert_text.next_commands(alert)[-1] == f"penstock run-book approve {run.id}"
    assert list(alert_check.links(alert)) == ["approve", "reject", "try", "instance"]
    assert "approve_run_book" in alert_check.links(alert)["approve"]
    assert alert.title.endswith("; a-1 is RUNNING"), "nothing waits any more"
    reject(story.control_plane, run.id, "ann", "it was meant")
    react_globals(story, application)
    assert story.alerts(AlertState.OPEN) == []
    (alert,) = (each for each in story.alerts(AlertState.RESOLVED) if each.id == alert.id)
    assert alert.resolution == "a-1 is RUNNING; run-book restore-global-topic REFUSED (rejected by ann: it was meant)"
    assert alert.detail["run-book"] == f"restore-global-topic REFUSED (rejected by ann: it was meant): run {run.id}"
    lose(story, 4)
    react_globals(story, application)
    assert [each.state for each in story.runs()] == [RunBookState.REFUSED.value, RunBookState.PROPOSED.value]


def test_an_automatic_run_is_started_once_and_again_after_it_was_killed_and_skips_of_records_do_not_count_it(story: Story) -> None:
    application = declared(f'{RESTORE}start = "automatic"\n')
    lose(story, 1)
    (run,) = react_globals(story, application)
    story.cursor = Cursor()
    assert [each.id for each in react_globals(story, application)] == [run.id], "the sensor's cursor is lost: the same run, by its key"
    story.end(run, RunBookState.RUNNING)
    assert react_globals(story, application) == []
    story.pause(5)
    assert [each.offset for each in story.react(application)] == [5], "the budget of records is its own"
    story.ms += 5 * 60_000
    (again,) = react_globals(story, application)
    assert (again.id, again.attempts) == (run.id, 2)
