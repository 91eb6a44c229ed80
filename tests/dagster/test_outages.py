"""Dagster, the database and the broker fail in turn, under load. Outages last seconds instead of minutes: nothing depends on their length.

The stream continues where it can. Afterwards each event is in the database once, in order; each record is counted once; each bad record
was skipped once. Instead of Dagster's daemon, the test itself runs the sensors and the runs that they request (`watch()`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from sqlalchemy import select

from penstock.orchestration.alerts import incidents, pauses
from penstock.orchestration.database import ControlPlane, ControlPlaneError
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import Alert, Event, RunBookRun, RunBookState
from penstock.orchestration.dead_letters.topic import DeadLetterError, dead_letter_topic
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.run_books import PausedRecord, Request, RunBookError, SkipRecord
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import Event as EngineEvent
from penstock.runtime.model.events import events_topic
from penstock.runtime.model.ids import TaskId
from penstock.sensors.event_cursor import Cursor
from tests.dagster.postgresql import PostgreSQL, postgresql
from tests.dagster.telling import STREAMS_TOML, Project
from tests.support import Kafka, unique, wait_until

BAD = b'{"truncated'
AWAY = (ControlPlaneError, StreamsError, KafkaException, DeadLetterError, RunBookError)
"""Errors that callers get while Kafka or the database is down."""


class Load(threading.Thread):
    """Writes good records continuously, and a bad one on request. Records that the broker did not accept are sent again, in order."""

    def __init__(self, broker: Kafka, topic: str) -> None:
        super().__init__(daemon=True)
        self.good = self.bad = 0
        self._broker, self._topic = broker, topic
        self._stopping, self._poison = threading.Event(), threading.Semaphore(0)

    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self._broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        while not self._stopping.wait(0.01):
            bad = self._poison.acquire(blocking=False)
            producer.produce(self._topic, key=b"key", value=BAD if bad else b"{}", partition=0)
            producer.poll(0)
            self.good, self.bad = self.good + (not bad), self.bad + bad
        assert producer.flush(60) == 0

    def poison(self) -> None:
        self._poison.release()

    def finish(self) -> None:
        self._stopping.set()
        self.join(90)


class Watcher:
    """Feed, sensor and run-books, tick by tick. Its cursor is kept as in Dagster: only a completed tick advances it."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._cursor = Cursor()

    def watch(self) -> None:
        project = self._project
        application = project.application
        project.feed()
        with project.control_plane.writing() as session:
            events, cursor = self._cursor.read(session, application.id, incidents.TASK_KINDS)
            runs = incidents.of_tasks(session, application, events, now())
            runs += pauses.unfinished(session, application, now())
        self._cursor = cursor
        for run in runs:
            assert run.task is not None and run.topic is not None and run.partition is not None and run.offset is not None
            record = PausedRecord(TaskId.parse(run.task), run.topic, run.partition, run.offset)
            SkipRecord(application, project.control_plane, record, Request("policy", run_id=run.id, occurrence=run.occurrence)).run()


@pytest.fixture
def database() -> Iterator[PostgreSQL]:
    with postgresql() as server:
        yield server


@pytest.fixture
def project(tmp_path: Path, own_broker: EmbeddedBroker, database: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    application, path, home = unique("app"), tmp_path / "streams.toml", tmp_path / "home"
    text = STREAMS_TOML.format(application=application, bootstrap_servers=own_broker.bootstrap_servers)
    path.write_text(text.replace("budget-per-hour = 2", "budget-per-hour = 100"))
    monkeypatch.setenv("PENSTOCK_TEST_APPLICATION", application)
    monkeypatch.setattr(pauses, "PATIENCE", pauses.PATIENCE / 100)  # a run interrupted by an outage is started again after 3 s
    monkeypatch.setattr(pauses, "MOST_ATTEMPTS", 100)
    paths = ProjectPaths(tmp_path, home, path, database.new_database())
    operations = Operations(paths, Applications.read(path), ControlPlane(paths.database_url))
    yield Project(operations, Kafka(own_broker.bootstrap_servers))
    for name in operations.launcher.known():
        operations.launcher.stop(name, 5.0, kill=True)
    operations.control_plane.close()


def outputs(project: Project) -> int:
    return sum(project.broker.end_offsets(f"{project.application.id}-out").values())


def goes_on(project: Project) -> None:
    """Check that the output grows."""
    before = outputs(project)
    wait_until(lambda: outputs(project) > before + 50, 60, "more output")


def ends_well(project: Project, watcher: Watcher, load: Load, bad: int) -> None:
    """Tick until this many bad records are skipped and the stream continues after them."""

    def out_of_the_way() -> bool:
        with suppress(*AWAY):
            watcher.watch()
        with project.control_plane.reading() as session:
            done = session.scalars(select(RunBookRun).where(RunBookRun.state == RunBookState.DONE.value)).all()
        return len(done) == bad

    wait_until(out_of_the_way, 90, f"{bad} run-books")
    goes_on(project)


@pytest.mark.nightly
def test_dagster_database_and_broker_down_in_turn_under_load(project: Project, own_broker: EmbeddedBroker, database: PostgreSQL) -> None:
    application, broker = project.application, project.broker
    for end, partitions in (("in", 2), ("out", 1)):
        broker.create_topic(f"{application.id}-{end}", partitions, exact=True)
    project.operations.start(application.instances[0], actor="ann")
    load, watcher = Load(broker, f"{application.id}-in"), Watcher(project)
    load.start()
    load.poison()
    ends_well(project, watcher, load, 1)

    # Dagster is down: there are no ticks.
    goes_on(project)
    load.poison()
    wait_until(lambda: load.bad == 2, 10)
    ends_well(project, watcher, load, 2)

    # The database is down.
    database.stop()
    with pytest.raises(ControlPlaneError):
        watcher.watch()
    goes_on(project)
    load.poison()
    wait_until(lambda: load.bad == 3, 10)
    database.start()
    ends_well(project, watcher, load, 3)

    # The broker is killed, and started again after a while.
    status = own_broker.status()
    assert status is not None
    os.kill(status.pid, signal.SIGKILL)
    with pytest.raises(AWAY):
        watcher.watch()
    load.poison()
    time.sleep(3)  # the outage itself: all components experience it
    own_broker.start()
    ends_well(project, watcher, load, 4)

    load.finish()
    wait_until(lambda: _count(project) == load.good, 60, "the count of all good records, each once")
    watcher.watch()
    reported = [EngineEvent.from_json(record.value or b"").id for record in broker.consume(events_topic(application.id))]
    with project.control_plane.reading() as session:
        rows = list(session.scalars(select(Event).order_by(Event.sequence)))
        runs = list(session.scalars(select(RunBookRun)))
        states = Counter(alert.state for alert in session.scalars(select(Alert).where(Alert.kind == "TASK_PAUSED")))
    assert [row.id for row in rows] == list(dict.fromkeys(reported))
    assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))
    places = Counter(dict(record.headers)["__streams.errors.offset"] for record in broker.consume(dead_letter_topic(application.id)))
    assert sorted(places.values()) == [1, 1, 1, 1]
    assert {(run.state, str(run.offset).encode()) for run in runs} == {(RunBookState.DONE.value, place) for place in places}
    assert states == {"RESOLVED": 4}


def _count(project: Project) -> int:
    """Return the newest count of the only key."""
    records = project.broker.consume(f"{project.application.id}-out", timeout=60)
    return int.from_bytes(records[-1].value or b"", "big") if records else 0
