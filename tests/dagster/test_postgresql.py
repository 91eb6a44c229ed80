"""The control plane on a real PostgreSQL, started for these tests. Skipped if the machine has none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import select

from penstock.orchestration.database import ControlPlane, ControlPlaneError, migrate
from penstock.orchestration.database.models import Base, Event, Instance
from penstock.orchestration.projection.feed import Feed
from penstock.runtime.model.events import EventKind
from penstock.sensors.event_cursor import Cursor
from tests.dagster.postgresql import PostgreSQL, postgresql
from tests.dagster.telling import Project
from tests.support.old_database import check_old_database_is_migrated


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with postgresql() as made:
        yield made


@pytest.fixture
def url(server: PostgreSQL) -> str:
    """Return the URL of an empty database."""
    return server.new_database()


@pytest.fixture
def control_plane(url: str) -> Iterator[ControlPlane]:
    made = ControlPlane(url)
    yield made
    made.close()


def test_several_that_come_first_together_make_the_tables_once_and_lose_no_update(url: str) -> None:
    def count(_: int) -> None:
        control_plane = ControlPlane(url)
        with control_plane.writing() as session:
            session.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(1)"))
            if session.get(Instance, ("a", "a-1")) is None:
                session.add(Instance(application="a", name="a-1", deaths=0))
        for _ in range(20):
            with control_plane.writing() as session:
                session.get_one(Instance, ("a", "a-1"), with_for_update=True).deaths += 1
        control_plane.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    control_plane = ControlPlane(url)
    with control_plane.reading() as session:
        assert session.get_one(Instance, ("a", "a-1")).deaths == 80
        connection = session.connection()
        assert migrate.is_current(connection)
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    control_plane.close()


def test_rule_28_the_feed_stores_each_event_once_and_the_cursor_misses_none(project: Project, control_plane: ControlPlane) -> None:
    """Four feeds at once, and a reader that polls continuously: it sees each event once, in the order of the topic."""
    project.create_events_topic()
    project.tell(*[project.event(EventKind.TASK_RESUMED, {"number": number}, "0_0") for number in range(400)])

    def feed(_: int) -> int:
        with Feed(project.application, control_plane) as one:
            return one.step(30).records

    cursor, seen = Cursor(), []
    with ThreadPoolExecutor(4) as pool:
        steps = [pool.submit(feed, number) for number in range(4)]
        while True:
            over = all(step.done() for step in steps)
            with control_plane.reading() as session:
                events, cursor = cursor.read(session, project.application.id, [EventKind.TASK_RESUMED])
            seen += [event.payload["number"] for event in events]
            if over:
                break
    assert sum(step.result() for step in steps) == 400
    assert seen == list(range(400))
    with control_plane.reading() as session:
        assert len(session.scalars(select(Event.id)).all()) == 400


def test_a_database_of_the_first_version_is_migrated(url: str) -> None:
    check_old_database_is_migrated(url)


def test_a_server_that_is_away_is_named_without_the_password() -> None:
    control_plane = ControlPlane("postgresql://penstock:secret@127.0.0.1:1/penstock")
    with pytest.raises(ControlPlaneError, match=r"127\.0\.0\.1:1/penstock") as caught, control_plane.reading():
        pass
    assert "secret" not in str(caught.value)
