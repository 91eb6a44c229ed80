"""A global table loses records of its topic under a running instance: recovery, alert and repair. Nothing is mocked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import dagster as dg
import psutil
import pytest
from sqlalchemy import select

from penstock.orchestration.alerts import incidents
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import Alert, AlertState, AuditEntry, Event, RunBookRun, RunBookState, to_ms
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.definitions import definitions
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.run_books import Request, RestoreGlobalTopic
from penstock.orchestration.snapshots.taking import take_snapshot
from penstock.runtime.kafka.topic_admin import TopicDescription
from penstock.runtime.model.events import EventKind
from penstock.runtime.serdes.murmur import partition_for
from penstock.sensors.alerts import global_recoveries
from tests.dagster.killed import make
from tests.dagster.telling import Project
from tests.dagster.test_run_books import start_and_kill
from tests.support import wait_until
from tests.support.logs import cut, end_of

TOML = """
[applications.{application}]
factory = "tests.dagster.topology:build_wide"
instances = ["{application}-1"]
[applications.{application}.config]
"bootstrap.servers" = "{servers}"
[applications.{application}.global-recovery]
error-attempts = 2
"""
RESTORE = 'run-book = "restore-global-topic"\nstart = "automatic"\n'
DAY_MS = 24 * 3_600_000
ROWS = [("a", "Ann"), ("b", "Bob"), ("c", "Cleo")]


@pytest.fixture
def dagster() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def running(project: Project) -> Project:
    """Return the project with one instance and a global table of three names."""
    path, name = project.operations.paths.streams_toml, project.application.id
    path.write_text(TOML.format(application=name, servers=project.broker.bootstrap_servers))
    operations = Operations(project.operations.paths, Applications.read(path), project.control_plane)
    for end in ("in", "out", "moved"):
        project.broker.create_topic(f"{name}-{end}", 1, exact=True)
    # Kafka deletes records on request only where the policy has `delete`.
    project.broker.create_topic(f"{name}-names", 1, {"cleanup.policy": "compact,delete", "retention.ms": "-1"}, exact=True)
    project.broker.produce(f"{name}-names", ROWS)
    operations.start(operations.applications.instances[0], actor="ann")
    return Project(operations, project.broker)


def lose_records(project: Project) -> int:
    """Delete all records of the topic but the last one, some of them before the instance can read them; return the log's start.

    While it is stopped, the broker answers the fetch that it has sent with the first record, and then nobody asks for the others.
    """
    topic = f"{project.application.id}-names"
    (name,) = project.operations.applications.instances
    instance = project.operations.launcher.running(name)
    assert instance is not None
    process = psutil.Process(instance.pid)
    process.suspend()
    try:
        for row in (("d", "Dora"), ("e", "Eve"), ("f", "Finn")):
            project.broker.produce(topic, [row])
        start = project.broker.consume(topic)[-1].offset
        cut(project.broker, topic, start)
    finally:
        process.resume()
    return start


def tick(project: Project, dagster: dg.DagsterInstance, cursor: str | None) -> dg.SensorResult:
    with dg.build_sensor_context(instance=dagster, cursor=cursor, resources={"penstock": PenstockResource()}) as context:
        result = global_recoveries(context)
    assert isinstance(result, dg.SensorResult)
    return result


def test_deleted_records_are_an_alert_that_says_what_was_lost_and_is_resolved_when_the_instance_runs(
    running: Project, dagster: dg.DagsterInstance
) -> None:
    """Again within ten minutes, the alert is an error."""
    application = running.application
    cursor = tick(running, dagster, None).cursor
    for number, severity in ((1, "WARN"), (2, "ERROR")):
        start = lose_records(running)

        def resolved(number: int = number) -> list[Alert]:
            nonlocal cursor
            cursor = tick(running, dagster, cursor).cursor
            with running.control_plane.reading() as session:
                found = list(session.scalars(select(Alert).where(Alert.kind == incidents.GLOBAL_RECOVERY).order_by(Alert.id)))
            return found if len(found) == number and found[-1].state == AlertState.RESOLVED.value else []

        alert = wait_until(resolved, 60, f"the end of recovery {number}")[-1]
        with running.control_plane.reading() as session:
            events = session.scalars(select(Event).where(Event.application == application.id).order_by(Event.sequence)).all()
            history = [entry.action for entry in session.scalars(select(AuditEntry).where(AuditEntry.alert_id == alert.id))]
        began = [event for event in events if event.kind == EventKind.GLOBAL_RECOVERY_STARTED.value][-1]
        (lost,) = incidents.lost_offsets(began).values()
        assert 0 < len(lost) <= 2 and lost.stop == start
        assert (
            f"lost: at most {len(lost)} record{'s' * (len(lost) > 1)} (offsets {lost.start} to {start - 1}) of {application.id}-names-0, "
            f"written after 20" in alert.title
        )
        assert (alert.severity, began.payload["attempt"]) == (severity, number)
        assert history == ["alert opened", "alert resolved"]
        assert str(alert.resolution).startswith(f"{application.id}-1 is RUNNING after 1 records in ")
        states = [str(event.payload["new"]) for event in events if event.kind == EventKind.INSTANCE_STATE.value]
        assert states[-2:] == ["RESTORING", "RUNNING"]
        assert running.operations.rows(f"{application.id}-1")[0].state == "RUNNING"


def on_topic(project: Project) -> dict[str, tuple[str, int]]:
    """Return value and timestamp of each record on the table's topic, by key; no key is there twice."""
    records = project.broker.consume(f"{project.application.id}-names")
    found = {(record.key or b"").decode(): ((record.value or b"").decode(), record.timestamp) for record in records}
    assert len(found) == len(records)
    return found


def test_rows_that_a_topic_lost_come_back_from_the_newest_snapshot_by_the_policy(running: Project, dagster: dg.DagsterInstance) -> None:
    """A run that is killed at any step, and started again, writes each row once. A newer record of a key stays."""
    operations, application = running.operations, running.application
    path, topic = operations.paths.streams_toml, f"{application.id}-names"
    assert "no snapshot of" in str(make(operations, RestoreGlobalTopic.NAME).run().reason)
    before = on_topic(running)
    take_snapshot(operations, application, actor="ann")
    cursor = tick(running, dagster, None).cursor
    path.write_text(path.read_text() + RESTORE)
    lose_records(running)

    def requested() -> dg.SensorResult | None:
        nonlocal cursor
        result = tick(running, dagster, cursor)
        cursor = result.cursor
        return result if result.run_requests else None

    result = wait_until(requested, 60, "the request of the run-book")
    assert result is not None and result.run_requests is not None
    (request,) = result.run_requests
    job = definitions(operations.applications).resolve_job_def("restore_global_topic")
    assert job.execute_in_process(run_config=request.run_config, instance=dagster).success
    with running.control_plane.reading() as session:
        (run,) = session.scalars(select(RunBookRun).where(RunBookRun.by_policy))
    assert (run.state, [step.name for step in run.steps]) == (RunBookState.DONE.value, ["check", "write", "verify"])
    assert str(run.reason).startswith("3 rows of snapshot ")
    after = on_topic(running)
    assert after.pop("f")[0] == "Finn" and after == before
    running.broker.produce(f"{application.id}-in", [(b"b", b"{}")])
    joined = wait_until(lambda: running.broker.consume(f"{application.id}-moved"), 30, "the join with a row that came back")
    assert [record.key for record in joined] == [b"Bob"]

    for step in RestoreGlobalTopic.STEPS:
        cut(running.broker, topic, end_of(running.broker, topic))
        running.broker.produce(topic, [("a", "Anna")])
        start_and_kill(RestoreGlobalTopic.NAME, step.name)
        done = make(operations, RestoreGlobalTopic.NAME).run()
        assert done.state == RunBookState.DONE.value, done.reason
        after = on_topic(running)
        assert after.pop("a")[0] == "Anna" and after == {key: row for key, row in before.items() if key != "a"}, step


def test_rows_whose_partition_is_not_known_and_those_that_retention_would_delete_again_are_not_written(project: Project) -> None:
    kept_a_day = TopicDescription("names", 1, "id", {"cleanup.policy": "compact,delete", "retention.ms": str(DAY_MS)})
    assert to_ms(now()) - RestoreGlobalTopic._oldest_kept(kept_a_day) == pytest.approx(DAY_MS, abs=60_000)
    assert RestoreGlobalTopic._oldest_kept(replace(kept_a_day, config={**kept_a_day.config, "cleanup.policy": "compact"})) == 0
    topic = f"{project.application.id}-names"
    project.broker.create_topic(topic, 2, exact=True)
    project.broker.produce(topic, [("a", "Ann")], partition=1 - partition_for(b"a", 2))
    with pytest.raises(RefusedError, match=f"key a is in {topic}-., where the default partitioner does not put it"):
        RestoreGlobalTopic(project.operations, project.application, topic, Request("ann"))._keys(2)
