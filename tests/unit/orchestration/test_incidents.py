"""From events to alerts and run-books: the feed's projection, the cursor, alerts and their ends, budgets. Rules 26 and 28."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from penstock.orchestration.alerts import alert_text, alerts, incidents
from penstock.orchestration.alerts.alerts import NewAlert
from penstock.orchestration.alerts.notifications import NOTIFY_ATTEMPTS, NotificationError, notify_pending
from penstock.orchestration.database import ControlPlane, audit
from penstock.orchestration.database.models import Alert, AlertState, Event, Instance, RunBookState, Task
from penstock.orchestration.declarations.applications import Applications, NotificationRule, Severity
from penstock.orchestration.health import examine
from penstock.orchestration.projection import writer
from penstock.runtime.model.events import Event as EngineEvent
from penstock.runtime.model.events import EventKind
from penstock.sensors.event_cursor import Cursor
from tests.unit.orchestration.timeline import Timeline

A_FILE = Path("streams.toml")
APPLICATIONS = Applications.parse(
    '[applications.a]\nfactory = "m:f"\ninstances = ["a-1"]\n[applications.a.paused]\nrun-book = "skip-record"\nbudget-per-hour = 2\n'
    "[applications.a.checkpoint-freshness]\nwarn-seconds = 60\nerror-seconds = 120\n",
    A_FILE,
)
(A,) = APPLICATIONS.applications


class Story(Timeline):
    """Tells the control plane what happened, as the feed does, second by second."""

    def tell(self, kind: EventKind, payload: dict[str, object], task: str | None = None, *, event_id: str = "") -> str:
        self.ms += 1_000
        identity = event_id or f"a/{task or 'a-1'}/{kind.value}/{self.ms}"
        self.store(identity, kind, payload, task)
        return identity

    def pause(self, offset: int, task: str = "0_0") -> str:
        place = {"topic": "in", "partition": 0, "offset": offset, "timestamp_ms": 1}
        why = {"error": "not JSON", "error_type": "ValueError", "reason": "deserialization"}
        return self.tell(EventKind.TASK_PAUSED, {**place, **why}, task)

    def resumed(self, task: str = "0_0") -> None:
        self.tell(EventKind.TASK_RESUMED, {"offsets": {"in-0": 1}}, task)

    def react_globals(self) -> None:
        with self.control_plane.writing() as session:
            events, self.cursor = self.cursor.read(session, "a", incidents.GLOBAL_KINDS)
            incidents.of_globals(session, A, events, self.now)

    def alerts(self) -> list[Alert]:
        with self.control_plane.reading() as session:
            return list(session.scalars(select(Alert).order_by(Alert.id)))


@pytest.fixture
def story(control_plane: ControlPlane) -> Story:
    return Story(control_plane, A)


def test_a_pause_opens_one_alert_and_reserves_one_run_however_often_it_is_read(story: Story) -> None:
    event = story.pause(5)
    (run,) = story.react()
    story.cursor = Cursor()  # the sensor's cursor is lost
    (again,) = story.react()
    assert run.id == again.id
    assert (run.occurrence, run.offset, run.state) == (event, 5, RunBookState.REQUESTED.value)
    (alert,) = story.alerts()
    assert alert.state == AlertState.OPEN.value
    assert "in-0@5" in alert.title


def test_an_event_is_stored_once_by_its_id(story: Story) -> None:
    story.tell(EventKind.TASK_PAUSED, {"topic": "in", "partition": 0, "offset": 1}, "0_0", event_id="same")
    story.tell(EventKind.TASK_PAUSED, {"topic": "in", "partition": 0, "offset": 1}, "0_0", event_id="same")
    with story.control_plane.reading() as session:
        assert [event.sequence for event in session.scalars(select(Event))] == [1]


def test_a_policy_of_none_ends_in_an_alert(story: Story) -> None:
    (quiet,) = Applications.parse('[applications.a]\nfactory = "m:f"\ninstances = ["a-1"]\n', A_FILE).applications
    story.pause(1)
    assert story.react(quiet) == []
    assert [alert.state for alert in story.alerts()] == [AlertState.OPEN.value]


def test_a_pause_that_is_over_when_it_is_read_starts_no_run_and_its_alert_is_closed(story: Story) -> None:
    story.pause(1)
    story.resumed()
    assert story.react() == []
    assert [alert.state for alert in story.alerts()] == [AlertState.RESOLVED.value]


def test_pausing_at_another_record_supersedes_the_older_alert_and_pausing_at_the_same_one_is_counted(story: Story) -> None:
    story.pause(1)
    story.react()
    story.pause(1)
    story.react()
    (alert,) = story.alerts()
    assert (alert.count, alert.state, alert.last_seen_at) == (2, AlertState.OPEN.value, story.now)
    story.pause(2)
    story.react()
    assert [alert.state for alert in story.alerts()] == [AlertState.RESOLVED.value, AlertState.OPEN.value]


def test_a_global_recovery_is_resolved_when_the_instance_is_running(story: Story) -> None:
    story.tell(EventKind.GLOBAL_RECOVERY_STARTED, {"store": "airports", "topic": "airports", "partition": 0, "reason": "log start moved"})
    story.react_globals()
    story.tell(EventKind.GLOBAL_RECOVERY_ENDED, {"store": "airports", "records": 3, "seconds": 1})
    story.react_globals()
    assert story.alerts()[0].state == AlertState.OPEN.value
    story.tell(EventKind.INSTANCE_STATE, {"old": "RESTORING", "new": "RUNNING", "pid": 7})
    story.react_globals()
    (alert,) = story.alerts()
    assert alert.state == AlertState.RESOLVED.value
    assert alert.resolution == "a-1 is RUNNING after 3 records in 1 s"


def test_a_recovery_so_short_that_the_instance_stayed_running_is_resolved_at_its_end(story: Story) -> None:
    """A store that is rebuilt from a topic that is still empty is RESTORING for less than a turn."""
    story.tell(EventKind.INSTANCE_STATE, {"old": "RESTORING", "new": "RUNNING", "pid": 7})
    story.tell(EventKind.GLOBAL_RECOVERY_STARTED, {"store": "airports", "topic": "airports", "partition": 0, "reason": "created again"})
    story.react_globals()
    assert story.alerts()[0].state == AlertState.OPEN.value
    story.tell(EventKind.GLOBAL_RECOVERY_ENDED, {"store": "airports", "records": 0, "seconds": 0.4})
    story.react_globals()
    (alert,) = story.alerts()
    assert (alert.state, alert.resolution) == (AlertState.RESOLVED.value, "a-1 is RUNNING after 0 records in 0.4 s")


def test_recoveries_in_a_row_are_one_alert_that_says_so(story: Story) -> None:
    started: dict[str, object] = {"store": "airports", "topic": "airports", "partition": 0, "reason": "gone"}
    lost = {"lost": {"airports-0": {"from": 5, "to": 12}}, "current_ms": story.ms}
    for attempt, severity in ((1, "WARN"), (2, "WARN"), (3, "ERROR")):
        story.tell(EventKind.GLOBAL_RECOVERY_STARTED, {**started, **lost, "attempt": attempt, "wait_seconds": 2 * attempt})
        story.react_globals()
        (alert,) = story.alerts()
        assert alert.severity == severity
    assert alert.count == 3
    losses = "; lost: at most 7 records (offsets 5 to 11) of airports-0, written after 2013-01-01"
    assert f"(recovery 3 in a row, after a wait of 6 s): gone{losses}" in alert.title
    assert alert_text.facts(alert)["lost"] == "airports-0: at most 7 records (offsets 5 to 11)"


def test_an_alert_keeps_what_was_lost_if_the_store_is_rebuilt_once_more_for_another_reason(story: Story) -> None:
    started: dict[str, object] = {"store": "airports", "topic": "airports", "partition": 0, "reason": "gone"}
    lost = {"lost": {"airports-0": {"from": 5, "to": 12}}, "current_ms": story.ms}
    again = {"reason": "damaged", "attempt": 2, "wait_seconds": 1, "lost": {}, "current_ms": None}
    story.tell(EventKind.GLOBAL_RECOVERY_STARTED, {**started, **lost})
    story.react_globals()
    story.tell(EventKind.GLOBAL_RECOVERY_STARTED, {**started, **again})
    story.react_globals()
    (alert,) = story.alerts()
    since = alert.detail["complete until"]
    assert "damaged; lost: at most 7 records (offsets 5 to 11) of airports-0, written after 2013-01-01" in alert.title
    assert "penstock run-book restore-global-topic a airports --dry-run" in alert_text.next_commands(alert)
    more = {**again, "attempt": 3, "lost": {"airports-0": {"from": 12, "to": 13}}, "current_ms": story.ms}
    story.tell(EventKind.GLOBAL_RECOVERY_STARTED, {**started, **more})
    story.react_globals()
    story.cursor = Cursor()  # each event is read again, and counts once
    story.react_globals()
    (alert,) = story.alerts()
    expected = "airports-0: at most 7 records (offsets 5 to 11), then at most 1 record (offsets 12 to 12)"
    assert alert_text.facts(alert)["lost"] == expected
    assert alert.detail["complete until"] == since


def test_the_title_names_three_partitions_in_their_order_and_the_details_all(story: Story) -> None:
    lost = {f"airports-{number}": {"from": 5, "to": 6 + number} for number in (10, 2, 0, 1)}
    started = {"store": "airports", "topic": "airports", "reason": "gone", "current_ms": story.ms, "lost": lost}
    story.tell(EventKind.GLOBAL_RECOVERY_STARTED, started)
    story.react_globals()
    (alert,) = story.alerts()
    assert (
        "; lost: at most 1 record (offsets 5 to 5) of airports-0, at most 2 records (offsets 5 to 6) of airports-1, "
        "at most 3 records (offsets 5 to 7) of airports-2, and of 1 more partitions, written after 2013-01-01" in alert.title
    )
    shown = alert.detail["lost"]
    assert isinstance(shown, dict) and list(shown) == ["airports-0", "airports-1", "airports-2", "airports-10"]


def test_a_loss_while_the_store_is_being_rebuilt_keeps_the_time_until_which_it_was_complete(story: Story) -> None:
    """The lost records may have been written, and read, before that time."""
    started: dict[str, object] = {"store": "airports", "topic": "airports", "reason": "gone"}
    story.tell(EventKind.GLOBAL_RECOVERY_STARTED, {**started, "lost": {}, "current_ms": story.ms})
    story.react_globals()
    lost = {"lost": {"airports-0": {"from": 5, "to": 12}}, "current_ms": None, "attempt": 2, "wait_seconds": 1.0}
    story.tell(EventKind.GLOBAL_RECOVERY_STARTED, {**started, **lost})
    story.react_globals()
    (alert,) = story.alerts()
    assert str(alert.detail["complete until"]).startswith("2013-01-01")
    assert alert.title.endswith("lost: at most 7 records (offsets 5 to 11) of airports-0; tasks that read it wait")


def test_a_topic_that_is_not_compacted_is_reported_once(story: Story) -> None:
    for _ in range(2):
        story.tell(EventKind.GLOBAL_TOPIC_NOT_COMPACTED, {"topic": "airports", "cleanup_policy": "delete"})
    story.react_globals()
    assert len(story.alerts()) == 1


def test_partitions_that_are_taken_up_are_no_alert_and_others_are_one_per_topic(story: Story) -> None:
    added: dict[str, object] = {"topic": "in", "read": 2, "partitions": 3, "subtopologies": [0], "reason": "state"}
    story.tell(EventKind.INPUT_PARTITIONS_ADDED, {**added, "topic": "free", "reason": None})
    story.react_globals()
    assert story.alerts() == []
    for partitions in (3, 5):
        story.tell(EventKind.INPUT_PARTITIONS_ADDED, {**added, "partitions": partitions})
        story.react_globals()
    (alert,) = story.alerts()
    assert alert.count == 2 and alert.title.startswith("input topic in has 5 partitions, and 2 are read")
    assert "penstock reset a" in " ".join(alert_text.next_commands(alert))


def test_partitions_of_a_repartition_topic_and_of_a_global_table_have_their_own_advice(story: Story) -> None:
    added: dict[str, object] = {"read": 2, "partitions": 3, "subtopologies": [], "reason": "keys move"}
    story.tell(EventKind.INPUT_PARTITIONS_ADDED, {**added, "topic": "names", "store": "names"})
    story.tell(EventKind.INPUT_PARTITIONS_ADDED, {**added, "topic": "a-by-repartition", "internal": True})
    story.react_globals()
    table, between = sorted(story.alerts(), key=lambda alert: alert.subject, reverse=True)
    assert table.title == "global topic names has 3 partitions, and had 2 (keys move)"
    assert "penstock run-book restore-global-topic a names" in alert_text.next_commands(table)
    assert not any("reset" in line for line in alert_text.next_commands(table))
    assert alert_text.next_commands(between)[:2] == ["penstock stop a", "penstock reset a"]


def test_a_cursor_is_kept_as_text_and_one_that_cannot_be_read_starts_over() -> None:
    assert Cursor.parse(str(Cursor({"a": 4}))).seen == {"a": 4}
    assert Cursor.parse("not a cursor").seen == {}


def test_rule_28_an_application_that_commits_late_is_not_skipped(control_plane: ControlPlane) -> None:
    def tell(application: str, number: int) -> None:
        event = EngineEvent(
            id=f"{application}/{number}",
            application=application,
            instance="i",
            incarnation=1,
            kind=EventKind.TASK_PAUSED,
            task="0_0",
            at_ms=number,
            payload={},
        )
        with control_plane.writing() as session:
            writer.store_events(session, application, number - 1, [event.to_json()])

    def read(cursor: Cursor) -> tuple[list[str], Cursor]:
        found: list[str] = []
        with control_plane.reading() as session:
            for application in ("a", "b"):
                events, cursor = cursor.read(session, application, [EventKind.TASK_PAUSED])
                found += [event.id for event in events]
        return found, cursor

    tell("b", 1)
    found, cursor = read(Cursor())
    assert found == ["b/1"]
    tell("a", 1)  # numbered before b's, visible after it
    found, cursor = read(cursor)
    assert found == ["a/1"]
    assert read(cursor)[0] == []


def test_rule_28_events_that_become_visible_while_they_are_read_are_read_once(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL each query of a transaction sees what is committed by then: the events may be there, and their number not yet."""
    story.pause(1)
    with story.control_plane.reading() as session:
        with monkeypatch.context() as patched:
            patched.setattr(session, "scalar", lambda _: 0)
            events, cursor = Cursor().read(session, "a", [EventKind.TASK_PAUSED])
        assert [event.sequence for event in events] == [1]
        assert cursor.read(session, "a", [EventKind.TASK_PAUSED])[0] == []


def test_a_cursor_ahead_of_the_events_starts_over(story: Story) -> None:
    story.cursor = Cursor({"a": 99})
    story.pause(1)
    assert len(story.react()) == 1


def test_a_database_that_was_dropped_and_filled_again_gets_its_alerts_again(story: Story, tmp_path: Path) -> None:
    story.pause(1)
    assert len(story.react()) == 1
    story.react()
    with contextlib.closing(ControlPlane(f"sqlite:///{tmp_path / 'again.db'}")) as rebuilt:
        again = Story(rebuilt, A)
        again.cursor = Cursor.parse(str(story.cursor))
        again.pause(1)
        again.pause(2, task="0_1")
        assert len(again.react()) == 2
        assert len(again.alerts()) == 2


def test_past_problems_are_history_and_a_repeated_pause_is_one_alert(story: Story) -> None:
    story.pause(1)
    story.resumed()
    story.pause(2)
    story.pause(2)
    story.pause(7, task="0_1")
    story.resumed("0_1")
    story.react()
    assert [(alert.subject, alert.state, alert.count) for alert in story.alerts()] == [
        ("in-0@1", AlertState.RESOLVED.value, 1),
        ("in-0@2", AlertState.OPEN.value, 2),
        ("in-0@7", AlertState.RESOLVED.value, 1),
    ]


def test_alerts_are_acknowledged_and_resolved_with_their_history(control_plane: ControlPlane) -> None:
    at = audit.now()
    with control_plane.writing() as session:
        new = NewAlert(occurrence="o", kind="K", severity=Severity.WARN, application="a", subject="s", title="t")
        alert, opened = alerts.open_alert(session, new, actor="sensor", at=at)
        assert opened
        assert alerts.open_alert(session, new, actor="sensor", at=at) == (alert, False)
        alerts.acknowledge(session, alert.id, actor="ann", at=at)
        alerts.resolve(session, alert.id, actor="bob", at=at, resolution="mended")
        alerts.acknowledge(session, alert.id, actor="ann", at=at)
        assert alert.state == AlertState.RESOLVED.value
        assert alerts.open_alert(session, new, actor="sensor", at=at) == (alert, False)
        history = [(entry.actor, entry.action) for entry in audit.latest(session, alert_id=alert.id)]
    assert history == [("sensor", "alert opened"), ("ann", "alert acknowledged"), ("bob", "alert resolved")]


def test_an_unknown_alert_is_named(control_plane: ControlPlane) -> None:
    with pytest.raises(alerts.UnknownAlertError, match="no alert 7"), control_plane.writing() as session:
        alerts.acknowledge(session, 7, actor="ann", at=audit.now())


class Mailbox:
    """Takes messages, or refuses them."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.refuses = False

    def send(self, urls: object, title: str, body: str, severity: Severity) -> None:
        if self.refuses:
            raise NotificationError("refused")
        self.sent.append(title)


def test_notifications_follow_the_rules_and_are_tried_again(story: Story) -> None:
    mailbox = Mailbox()
    rules = [NotificationRule(("json://x",), Severity.ERROR, frozenset({"TASK_PAUSED"}), frozenset({"a"}))]
    story.pause(1)
    story.react()
    story.tell(EventKind.GLOBAL_TOPIC_NOT_COMPACTED, {"topic": "t", "cleanup_policy": "delete"})
    story.cursor = Cursor()
    story.react_globals()
    mailbox.refuses = True
    assert notify_pending(story.control_plane, rules, mailbox.send, at=story.now) == 0
    mailbox.refuses = False
    assert notify_pending(story.control_plane, rules, mailbox.send, at=story.now) == 1
    assert notify_pending(story.control_plane, rules, mailbox.send, at=story.now) == 0
    assert mailbox.sent == ["a: task 0_0 is paused at in-0@1: ValueError: not JSON"]
    with story.control_plane.reading() as session:
        actions = [entry.action for entry in audit.latest(session) if entry.actor == "notifications"]
    assert actions == ["alert not sent", "alert sent"]


def test_a_message_that_is_never_accepted_is_given_up(story: Story) -> None:
    mailbox = Mailbox()
    mailbox.refuses = True
    story.pause(1)
    story.react()
    for _ in range(NOTIFY_ATTEMPTS + 2):
        notify_pending(story.control_plane, [NotificationRule(("json://x",))], mailbox.send, at=story.now)
    assert story.alerts()[0].notify_attempts == NOTIFY_ATTEMPTS


@pytest.mark.parametrize(
    ("moved_s_ago", "checkpoint_s_ago", "severity"),
    [
        (0, 30, Severity.INFO),
        (0, 90, Severity.WARN),
        (0, 200, Severity.ERROR),
        (300, 200, Severity.INFO),
        (197, 200, Severity.INFO),
        (90, None, Severity.WARN),
    ],
)
def test_freshness_counts_unsaved_work(story: Story, moved_s_ago: int, checkpoint_s_ago: int | None, severity: Severity) -> None:
    now = story.now
    with story.control_plane.writing() as session:
        moved = now - timedelta(seconds=moved_s_ago)
        saved = None if checkpoint_s_ago is None else now - timedelta(seconds=checkpoint_s_ago)
        session.add(Instance(application="a", name="a-1", wanted=True, state="RUNNING", heartbeat_at=now))
        session.add(
            Task(
                application="a",
                task="0_0",
                instance="a-1",
                kind="ACTIVE",
                state="RUNNING",
                updated_at=now,
                moved_at=moved,
                first_moved_at=moved,
                checkpoint_at=saved,
            )
        )
    health = {result.name: result for result in examine(APPLICATIONS, story.control_plane, now)}
    assert health["checkpoint_freshness"].severity is severity
    assert health["instances_alive"].severity is Severity.INFO


def test_an_instance_that_is_wanted_and_silent_fails_the_check(story: Story) -> None:
    with story.control_plane.writing() as session:
        session.add(Instance(application="a", name="a-1", wanted=True, state="RUNNING", heartbeat_at=story.now - timedelta(seconds=31)))
    health = {result.name: result for result in examine(APPLICATIONS, story.control_plane, story.now)}
    assert health["instances_alive"].severity is Severity.ERROR
    assert health["instances_alive"].texts == ["a-1: wanted, and silent for 31 s"]
