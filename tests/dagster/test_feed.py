"""The feed writes events to SQL exactly once, whatever happens between Kafka and the database (rules.md, 26 and 28)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from sqlalchemy import select
from sqlalchemy.orm import Session

from penstock.orchestration.database.models import Event, FeedOffset, Instance
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.projection import writer
from penstock.orchestration.projection.feed import Feed
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.events import EventKind, events_topic
from tests.dagster.telling import Project
from tests.support import unique


def stored(project: Project) -> list[tuple[int, str]]:
    """Return number and kind of the events in SQL."""
    with project.control_plane.reading() as session:
        return [(event.sequence, event.kind) for event in session.scalars(select(Event).order_by(Event.sequence))]


def next_offset(project: Project) -> int:
    with project.control_plane.reading() as session:
        row = session.get_one(FeedOffset, (project.application.id, events_topic(project.application.id), 0))
        return row.next_offset


def state(project: Project, new: str, *, event_id: str = "") -> None:
    """Publish a state of the first instance."""
    project.publish(project.event(EventKind.INSTANCE_STATE, {"old": "", "new": new, "pid": 1}, event_id=event_id))


def test_topics_that_do_not_exist_yet_are_empty(project: Project) -> None:
    assert project.feed().records == 0


def test_rule_28_each_event_is_stored_once_however_often_the_feed_runs(project: Project) -> None:
    project.create_events_topic()
    state(project, "REBALANCING")
    state(project, "RUNNING")
    assert project.feed().records == 2
    assert project.feed().records == 0
    state(project, "RUNNING", event_id="told twice")
    state(project, "RUNNING", event_id="told twice")
    project.feed()
    assert [number for number, _ in stored(project)] == [1, 2, 3]
    with project.control_plane.reading() as session:
        row = session.get_one(Instance, (project.application.id, f"{project.application.id}-1"))
        assert row.state == "RUNNING"


def test_rule_28_a_step_that_fails_leaves_neither_rows_nor_offsets(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.create_events_topic()
    state(project, "REBALANCING")
    project.feed()
    before = next_offset(project)
    state(project, "RUNNING")
    store = writer.store_events

    def store_and_die(session: Session, application: str, sequence: int, values: list[bytes | None]) -> int:
        store(session, application, sequence, values)
        session.flush()
        raise RuntimeError("killed between the rows and the commit")

    with monkeypatch.context() as patched:
        patched.setattr(writer, "store_events", store_and_die)
        with pytest.raises(RuntimeError, match="killed"):
            project.feed()
    assert stored(project) == [(1, "INSTANCE_STATE")]
    assert next_offset(project) == before
    project.feed()
    assert [number for number, _ in stored(project)] == [1, 2]
    assert next_offset(project) == before + 1


def test_rule_28_feeds_side_by_side_store_each_event_once_in_the_order_of_the_topic(project: Project) -> None:
    project.create_events_topic()
    project.publish(*[project.event(EventKind.TASK_RESUMED, {"number": number}, "0_0") for number in range(300)])
    with ThreadPoolExecutor(4) as pool:
        steps = list(pool.map(lambda _: project.feed(), range(4)))
    assert sum(step.records for step in steps) == 300
    with project.control_plane.reading() as session:
        events = list(session.scalars(select(Event).order_by(Event.sequence)))
    assert [event.sequence for event in events] == list(range(1, 301))
    assert [event.payload["number"] for event in events] == list(range(300))


def test_one_feed_continues_where_another_one_left_off(project: Project) -> None:
    project.create_events_topic()
    with Feed(project.application, project.control_plane) as first:
        state(project, "REBALANCING")
        assert first.step(20).records == 1
        state(project, "RUNNING")
        assert project.feed().records == 1
        assert first.step(20).records == 0
        state(project, "PENDING_SHUTDOWN")
        assert first.step(20).records == 1


def test_events_of_an_aborted_transaction_are_never_heard_of(project: Project) -> None:
    project.create_events_topic()
    producer = Producer({"bootstrap.servers": project.broker.bootstrap_servers, "transactional.id": unique("events")})
    producer.init_transactions(30)
    for number, end in enumerate((producer.abort_transaction, producer.commit_transaction)):
        producer.begin_transaction()
        event = project.event(EventKind.TASK_PAUSED, {"number": number}, "0_0")
        producer.produce(events_topic(project.application.id), key=event.key, value=event.to_json())
        producer.flush(30)
        end(30)
    assert project.feed().at_end, "a marker at the end of the topic is the end"
    with project.control_plane.reading() as session:
        assert [event.payload["number"] for event in session.scalars(select(Event))] == [1]


def test_a_record_that_cannot_be_read_does_not_stop_the_feed(project: Project) -> None:
    project.create_events_topic()
    project.broker.produce(events_topic(project.application.id), [(b"k", b"no event"), (b"k", None)])
    state(project, "RUNNING")
    project.feed()
    assert len(stored(project)) == 1


def test_a_recreated_topic_is_read_from_its_start(project: Project) -> None:
    project.create_events_topic()
    state(project, "RUNNING", event_id="old")
    state(project, "RUNNING")
    project.feed()
    project.broker.delete_topic(events_topic(project.application.id))
    project.create_events_topic()
    state(project, "RUNNING", event_id="old")
    state(project, "RUNNING", event_id="new")
    project.feed()
    with project.control_plane.reading() as session:
        assert session.get(Event, "new") is not None
    assert [number for number, _ in stored(project)] == [1, 2, 3], "what was known before is not stored again"


def test_a_broker_that_is_away_is_named(project: Project) -> None:
    text = project.operations.paths.streams_toml.read_text().replace(project.broker.bootstrap_servers, "127.0.0.1:1")
    (application,) = Applications.parse(text, project.operations.paths.streams_toml).applications
    with (
        Feed(application, project.control_plane) as feed,
        pytest.raises(BrokerUnavailableError, match=r"no broker answers at 127\.0\.0\.1:1"),
    ):
        feed.step(1.0)
