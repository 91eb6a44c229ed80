"""The control plane, and Dagster, on a real PostgreSQL, started for these tests. Skipped if the machine has none."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import select

from penstock.orchestration.database import ControlPlane, ControlPlaneError, migrate
from penstock.orchestration.database.models import Alert, Base, Event, Instance, RunBookRun, Task
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.projection.feed import Feed
from penstock.runtime.coordination.records import Member, PausedAt, TaskReport, encode
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.model.events import Event as Published
from penstock.runtime.model.events import EventKind, events_topic
from penstock.runtime.model.states import State, TaskKind, TaskState
from penstock.sensors.event_cursor import Cursor
from tests.dagster.live import LiveDagster
from tests.dagster.postgresql import PostgreSQL, postgresql
from tests.dagster.telling import Project
from tests.support import Kafka, unique, wait_until
from tests.support.old_database import check_nothing_is_lost, check_old_database_is_migrated


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
    project.publish(*[project.event(EventKind.TASK_RESUMED, {"number": number}, "0_0") for number in range(400)])

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


def test_nothing_is_lost_by_the_migration_of_an_earlier_version_also_if_it_is_killed(server: PostgreSQL) -> None:
    check_nothing_is_lost(server.new_database)


def test_a_server_that_is_away_is_named_without_the_password() -> None:
    control_plane = ControlPlane("postgresql://penstock:secret@127.0.0.1:1/penstock")
    with pytest.raises(ControlPlaneError, match=r"127\.0\.0\.1:1/penstock") as caught, control_plane.reading():
        pass
    assert "secret" not in str(caught.value)


BAD = b'{"truncated'
RUNNING, ALL = 2, 20
TOPOLOGIES = """
from penstock import StreamsBuilder, serdes

def _of(name):
    def build():
        builder = StreamsBuilder()
        records = builder.stream(f"{name}-in", key=serdes.STRING, value=serdes.JSON)
        records.group_by_key().count("counts").to_stream().to(f"{name}-out", key=serdes.STRING, value=serdes.LONG)
        return builder.build()
    return build

"""
DECLARED = """
[applications.{name}]
factory = "topologies_of_twenty:build_{number}"
instances = 1

[applications.{name}.config]
"bootstrap.servers" = "{bootstrap_servers}"
"deserialization.exception.handler" = "penstock.LogAndPauseExceptionHandler"

[applications.{name}.paused]
run-book = "skip-record"
start = "{start}"
"""


def pause_without_instance(broker: Kafka, name: str) -> None:
    """Write to Kafka what an application with a paused task has written."""
    at_ms, topic = time.time_ns() // 1_000_000, f"{name}-in"
    broker.create_topic(topic, 2, exact=True)
    broker.produce(topic, [(b"key", BAD)], partition=0)
    at = PausedAt(topic=topic, partition=0, offset=0, since_ms=at_ms, error="Input data was truncated", error_type="DecodeError")
    report = TaskReport(kind=TaskKind.ACTIVE, state=TaskState.PAUSED, offset_sum=0, end_sum=1, lag=1, paused=at)
    member = Member(
        instance=f"{name}-1",
        incarnation=1,
        transactional_id=name,
        host="elsewhere",
        pid=1,
        state=State.RUNNING,
        tasks={"0_0": report},
        heartbeat_ms=at_ms,
    )
    payload = {"topic": topic, "partition": 0, "offset": 0, "error_type": at.error_type, "error": at.error, "reason": "deserialization"}
    event = Published(
        id=f"{name}/pause",
        application=name,
        instance=f"{name}-1",
        incarnation=1,
        kind=EventKind.TASK_PAUSED,
        task="0_0",
        at_ms=at_ms,
        payload=payload,
    )
    broker.create_topic(coordination_topic(name), exact=True)
    broker.produce(coordination_topic(name), [(member.key, encode(member))])
    broker.create_topic(events_topic(name), exact=True)
    broker.produce(events_topic(name), [(event.key, event.to_json())])


@pytest.mark.nightly
def test_dagster_and_the_control_plane_of_twenty_applications_work_on_postgresql(
    server: PostgreSQL, broker: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a paused task: two by real instances, which are repaired, and the others by their records on Kafka, whose repairs wait for
    approval."""
    pytest.importorskip("dagster_postgres", reason="its package is in the group dev of pyproject.toml")
    fleet, url, dagster_url = unique("fleet"), server.new_database(), server.new_database()
    names = [f"{fleet}-{number}" for number in range(ALL)]
    declared = [
        DECLARED.format(
            name=name,
            number=number,
            bootstrap_servers=broker.bootstrap_servers,
            start="automatic" if number < RUNNING else "after-approval",
        )
        for number, name in enumerate(names)
    ]
    (tmp_path / "streams.toml").write_text("".join(declared))
    functions = "".join(f"build_{number} = _of({name!r})\n" for number, name in enumerate(names))
    (tmp_path / "topologies_of_twenty.py").write_text(TOPOLOGIES + functions)
    for variable, value in {"STREAMS": tmp_path / "streams.toml", "HOME": tmp_path / "home", "DATABASE_URL": url}.items():
        monkeypatch.setenv(f"PENSTOCK_{variable}", str(value))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    operations = Operations.find()
    with ExitStack() as stack:
        stack.callback(operations.control_plane.close)
        for name in names[RUNNING:]:
            pause_without_instance(broker, name)
        # SQLAlchemy 2.1 would take psycopg 3, which Dagster cannot use
        dagster_url = dagster_url.replace("postgresql:", "postgresql+psycopg2:")
        settings = f"storage: {{postgres: {{postgres_url: {dagster_url!r}}}}}\n"
        live = LiveDagster(tmp_path / "dagster", settings=settings)
        stack.callback(live.stop)
        for name in names[:RUNNING]:
            for end in ("in", "out"):
                broker.create_topic(f"{name}-{end}", exact=True)
            stack.callback(operations.launcher.stop, f"{name}-1", 5.0, kill=True)
            operations.start(f"{name}-1", actor="ann")
            broker.produce(f"{name}-in", [(b"key", BAD), (b"key", b"{}")])

        def repairs() -> Counter[tuple[str, str]]:
            with operations.control_plane.reading() as session:
                return Counter((run.application, run.state) for run in session.scalars(select(RunBookRun)))

        wanted = Counter((name, "DONE" if number < RUNNING else "PROPOSED") for number, name in enumerate(names))
        wait_until(lambda: repairs() == wanted, 120, "a repair or a proposal for each application")
        live.launch("instance_checks")
        assert live.assets() >= {f"{name}/instances" for name in names}
        ticks = live.last_ticks()
        with operations.control_plane.reading() as session:
            alerts = {alert.application: alert.state for alert in session.scalars(select(Alert).where(Alert.kind == "TASK_PAUSED"))}
            assert alerts == {name: "RESOLVED" if number < RUNNING else "OPEN" for number, name in enumerate(names)}
            assert {task.application for task in session.scalars(select(Task))} == set(names)
        engine = sqlalchemy.create_engine(dagster_url)
        stack.callback(engine.dispose)
        with engine.connect() as connection:
            done = set(connection.exec_driver_sql("SELECT pipeline_name FROM runs WHERE status = 'SUCCESS'").scalars())
            checked = set(connection.exec_driver_sql("SELECT DISTINCT asset_key FROM asset_check_executions").scalars())
        assert done >= {"skip_record", "instance_checks"} and len(checked) == ALL
        assert set(ticks.values()) <= {"SUCCESS", "SKIPPED"}, ticks
        assert not list((tmp_path / "dagster").rglob("*.db")) and not list((tmp_path / "home").rglob("*.db")), "nothing is in SQLite"
