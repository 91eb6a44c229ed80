"""Instances as separate processes under the control plane: started, killed, restarted, stopped, repaired. Nothing is mocked."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import msgspec
import psutil
import pytest
from sqlalchemy import select

from penstock.assets.instances import instances_asset
from penstock.assets.lineage import topics_of
from penstock.orchestration.alerts import alert_text
from penstock.orchestration.dagster import instance_life
from penstock.orchestration.dagster.instance_partitions import follow_instances
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import ControlPlane, audit
from penstock.orchestration.database.models import Alert, AlertState, AuditEntry, RunBookRun, RunBookState, StepState, Task
from penstock.orchestration.dead_letters.topic import dead_letter_topic
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.definitions import definitions
from penstock.orchestration.instances.launcher import LaunchError
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.run_books import PausedRecord, Request, SkipRecord
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.ids import TaskId
from penstock.sensors.alerts import paused_tasks
from penstock.sensors.ticks import NothingSeenError
from tests.dagster.telling import Project, instances_that_should_run
from tests.support import unique, wait_until

TASK = TaskId(0, 0)
BAD = b'{"truncated'


@pytest.fixture
def first(project: Project) -> str:
    """Return the name of the first instance; its input has two partitions, its output one."""
    for end, partitions in (("in", 2), ("out", 1)):
        project.broker.create_topic(f"{project.application.id}-{end}", partitions, exact=True)
    return project.application.instances[0]


@pytest.fixture
def dagster(project: Project) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        follow_instances(instance, project.operations)
        yield instance


def feed_records(project: Project, *values: bytes, partition: int = 0) -> None:
    project.broker.produce(f"{project.application.id}-in", [(b"key", value) for value in values], partition=partition)


def tick(project: Project, sensor: Callable[..., object], dagster: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    """Run one tick of a sensor, like the daemon."""
    with dg.build_sensor_context(instance=dagster, cursor=cursor, resources={"penstock": PenstockResource()}) as context:
        result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    return result


def run(project: Project, request: dg.RunRequest, job: str, dagster: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Handle a run request like the daemon: run the job with this configuration or for this partition."""
    found = definitions(project.operations.applications).resolve_job_def(job)
    return found.execute_in_process(
        run_config=request.run_config, partition_key=request.partition_key, instance=dagster, raise_on_error=False
    )


def task_state(project: Project, task: TaskId = TASK) -> str | None:
    project.feed()
    with project.control_plane.reading() as session:
        query = select(Task).where(Task.application == project.application.id, Task.task == str(task)).order_by(Task.updated_at.desc())
        row = session.scalar(query.limit(1))
    return None if row is None else row.state


def wait_for_pause(project: Project) -> None:
    wait_until(lambda: task_state(project) == "PAUSED", 60, "the pause")


def tick_until_alerted(project: Project, dagster: dg.DagsterInstance) -> dg.SensorResult:
    """Run ticks of the sensor on paused tasks, like the daemon, up to the one that requests a run."""

    def asked() -> dg.SensorResult | None:
        result = tick(project, paused_tasks, dagster)
        return result if result.run_requests else None

    found = wait_until(asked, 30, "the request of a run-book")
    assert found is not None
    return found


def skip(project: Project, offset: int, *, partition: int = 0) -> RunBookRun:
    record = PausedRecord(TaskId(0, partition), f"{project.application.id}-in", partition, offset)
    return SkipRecord(project.application, project.control_plane, record, Request("ann", "a test")).run()


def count_of(project: Project, expected: int) -> Callable[[], bool]:
    """Return a condition: the newest count of the key on the output is this."""

    def ask() -> bool:
        records = project.broker.consume(f"{project.application.id}-out")
        return bool(records) and int.from_bytes(records[-1].value or b"", "big") == expected

    return ask


def test_materialising_the_asset_starts_the_instance_and_reports_its_state(
    project: Project, first: str, dagster: dg.DagsterInstance
) -> None:
    asset = instances_asset(project.application, "group", topics_of(project.application))
    result = dg.materialize([asset], partition_key=first, instance=dagster, resources={"penstock": PenstockResource()})
    (materialised,) = result.asset_materializations_for_node("group__instances")
    shown = materialised.metadata
    assert shown["state"].value == "RUNNING"
    assert psutil.pid_exists(int(str(shown["pid"].value)))
    assert shown["log"].value == str(project.operations.paths.log_path(first))
    assert project.operations.paths.log_path(first).exists()
    assert shown["state_folder"].value == str(project.operations.paths.state_dir(first))
    assert f"penstock status {first}" in str(shown["next_command"].value)
    kind, picture = str(shown["topology"].value).removesuffix(")").split(";base64,")
    assert kind.endswith("(data:image/svg+xml")
    assert f"{project.application.id}-in" in base64.b64decode(picture).decode()
    table = shown["tasks"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [(record.data["task"], record.data["state"]) for record in table.records] == [("0_0", "RUNNING"), ("0_1", "RUNNING")]


def test_starting_twice_gives_one_process_and_it_leads_a_life_of_its_own(project: Project, first: str) -> None:
    once = project.operations.start(first, actor="ann")
    again = project.operations.start(first, actor="ann")
    assert (once.started, again.started) == (True, False)
    assert once.process == again.process
    child = psutil.Process(once.process.pid)
    assert os.getsid(child.pid) == child.pid, "it is the leader of its own session: Ctrl-C in ours does not reach it"
    launched = [process for process in psutil.process_iter(["cmdline"]) if first in " ".join(process.info["cmdline"] or [])]
    assert len(launched) == 1


def test_a_process_that_was_not_written_down_is_found(project: Project, first: str) -> None:
    """The launcher was killed between the start of the process and the record of its id."""
    once = project.operations.start(first, actor="ann")
    project.operations.paths.process_path(first).unlink()
    process, started = project.operations.launcher.start(project.application, first)
    assert (process.pid, started) == (once.process.pid, False)


def test_starts_and_ends_by_whatever_way_are_events_of_the_partition(project: Project, first: str, dagster: dg.DagsterInstance) -> None:
    """Each is reported once; a start by a run of the asset is reported by that run alone."""
    cursor = None

    def events() -> list[tuple[str, str | None, str]]:
        nonlocal cursor
        result = tick(project, instances_that_should_run, dagster, cursor)
        cursor = result.cursor
        found = []
        for event in result.asset_events:
            assert isinstance(event, dg.AssetMaterialization | dg.AssetObservation)
            dagster.report_runless_asset_event(event)
            found.append((type(event).__name__, event.partition, str(event.description)))
        return found

    assert events() == []
    process = project.operations.start(first, actor="ann").process
    (started,) = events()
    assert started[:2] == ("AssetMaterialization", first) and f"runs as process {process.pid}" in started[2]
    assert events() == []
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not process.alive, 10, "its death")
    (died,) = events()
    assert died[:2] == ("AssetObservation", first) and f"instance {first} (process {process.pid}) died" in died[2]
    assert run(project, dg.RunRequest(partition_key=first), project.start_job, dagster).success
    assert events() == [], "the run has reported it"
    project.operations.stop(first, actor="bob")
    assert events() == [("AssetObservation", first, f"{first} was stopped by bob")]
    assert events() == []


def test_an_instance_beyond_the_declared_number_that_is_drained_has_an_event_of_its_end(project: Project, first: str) -> None:
    """Its partition is deleted with it; the event stays."""
    path = project.operations.paths.streams_toml
    path.write_text(path.read_text().replace(f'["{first}", "{first[:-1]}2"]', "1"))
    operations = Operations(project.operations.paths, Applications.read(path), project.control_plane)
    more = f"{first[:-1]}2"
    seen: dict[str, instance_life.Life] = {}

    def events(dagster: dg.DagsterInstance) -> list[tuple[str, str | None]]:
        (application,) = operations.applications.applications
        found = instance_life.follow(dagster, operations, application, seen, audit.now())
        return [(str(event.description), event.partition) for event in found]

    with dg.DagsterInstance.ephemeral() as dagster:
        operations.scale(project.application.id, 2, actor="ann")
        assert {partition for _, partition in events(dagster)} == {first, more}
        operations.scale(project.application.id, 1, actor="bob")
        assert more not in operations.instances(operations.applications.applications[0])
        assert events(dagster) == [(f"{more} was stopped by bob", more)]
        assert events(dagster) == [] and more not in seen


def test_a_killed_instance_is_seen_and_started_again_by_the_sensor(project: Project, first: str, dagster: dg.DagsterInstance) -> None:
    killed = project.operations.start(first, actor="ann").process
    assert tick(project, instances_that_should_run, dagster).run_requests == []
    os.kill(killed.pid, signal.SIGKILL)
    wait_until(lambda: not killed.alive, 10, "its death")
    (request,) = tick(project, instances_that_should_run, dagster).run_requests or []
    assert request.tags["start"] == first, "the list of runs says which instance it is"
    assert request.partition_key == first
    assert tick(project, instances_that_should_run, dagster).run_requests == [], "one death, one start"
    assert run(project, request, project.start_job, dagster).success
    running = project.operations.launcher.running(first)
    assert running is not None
    assert running.pid != killed.pid
    tick(project, instances_that_should_run, dagster)
    with project.control_plane.reading() as session:
        alerts = [(alert.kind, alert.state) for alert in session.scalars(select(Alert))]
    assert alerts == [("INSTANCE_DIED", AlertState.RESOLVED.value)]


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Yield the file by which a process joins a group whose memory the kernel limits to 4 MiB beyond what it has."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")  # by the kernel's version of groups
    group = (first if first.exists() else second) / unique("penstock-test")
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first.exists() else "memory.max")).write_text(str(4 << 20))
    except OSError as error:
        pytest.skip(f"the memory of a group of processes cannot be limited, which needs root: {error}")
    yield group / "cgroup.procs"
    group.rmdir()


def test_the_death_of_an_instance_that_the_kernel_kills_for_memory_says_so(
    project: Project, first: str, dagster: dg.DagsterInstance, small_group: Path
) -> None:
    killed = project.operations.start(first, actor="ann").process
    small_group.write_text(str(killed.pid))
    feed_records(project, *[msgspec.json.encode("x" * 50_000)] * 1_000)
    wait_until(lambda: not killed.alive, 60, "its death")
    assert tick(project, instances_that_should_run, dagster).run_requests
    with project.control_plane.reading() as session:
        (alert,) = session.scalars(select(Alert))
    assert "died for lack of memory: the kernel killed it at " in alert.title
    assert "ended: for lack of memory: the kernel killed it at " in alert_text.sections(alert)["4 why"]


def test_rule_26_what_should_run_is_rebuilt_from_kafka(project: Project, first: str) -> None:
    project.operations.start(first, actor="ann")
    lost = Operations(
        project.operations.paths, project.operations.applications, ControlPlane(f"sqlite:///{project.operations.paths.home}/new.db")
    )
    with lost.feed(project.application) as feed:
        feed.step(20)
    row, _ = lost.rows(first)
    assert (row.wanted, row.wanted_by, row.state) == (True, "ann", "RUNNING")
    lost.stop(first, actor="bob")
    project.feed()
    assert not project.operations.rows(first)[0].wanted
    lost.control_plane.close()


def test_a_stopped_instance_stays_stopped(project: Project, first: str, dagster: dg.DagsterInstance) -> None:
    process = project.operations.start(first, actor="ann").process
    config = dg.RunConfig(ops={"stop": {"config": {"instance": first}}})
    job = definitions(project.operations.applications).resolve_job_def("stop_instance")
    assert job.execute_in_process(run_config=config, instance=dagster).success
    assert not process.alive
    result = tick(project, instances_that_should_run, dagster)
    assert result.run_requests == []
    assert f"{first}: not wanted" in str(result.skip_reason)


def test_restarting_gives_another_process_and_no_alert(project: Project, first: str, dagster: dg.DagsterInstance) -> None:
    before = project.operations.start(first, actor="ann").process
    config = dg.RunConfig(ops={"restart": {"config": {"instance": first}}})
    job = definitions(project.operations.applications).resolve_job_def("restart_instance")
    assert job.execute_in_process(run_config=config, instance=dagster).success
    running = project.operations.launcher.running(first)
    assert running is not None
    assert running.pid != before.pid
    tick(project, instances_that_should_run, dagster)
    with project.control_plane.reading() as session:
        assert session.scalars(select(Alert)).all() == []


def test_an_instance_that_cannot_start_says_why(project: Project) -> None:
    """Its input topic does not exist."""
    with pytest.raises(LaunchError, match=f"{project.application.id}-in"):
        project.operations.start(project.application.instances[0], actor="ann")


def test_without_a_broker_nothing_is_started_and_the_sensors_fail_visibly(
    project: Project, dagster: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = project.operations.paths
    paths.streams_toml.write_text(paths.streams_toml.read_text().replace(project.broker.bootstrap_servers, "127.0.0.1:1"))
    away = Operations(paths, Applications.read(paths.streams_toml), project.control_plane)
    monkeypatch.setattr("penstock.sensors.ticks.FEED_SECONDS", 1.0)
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1"):
        away.start(project.application.instances[0], actor="ann")
    assert away.launcher.known() == []
    for sensor in (paused_tasks, instances_that_should_run):
        with pytest.raises(NothingSeenError, match=r"no broker answers at 127\.0\.0\.1:1"):
            tick(project, sensor, dagster)


def test_a_stop_without_a_broker_is_published_when_it_is_back(project: Project, dagster: dg.DagsterInstance) -> None:
    name = project.application.instances[0]
    project.operations._want(project.application, name, True, "ann")
    project.operations.publish_wanted(project.application)
    text = project.operations.paths.streams_toml.read_text().replace(project.broker.bootstrap_servers, "127.0.0.1:1")
    declared = Applications.parse(text, project.operations.paths.streams_toml)
    Operations(project.operations.paths, declared, project.control_plane).stop(name, actor="bob")
    assert not project.operations.rows(name)[0].wanted_published
    tick(project, instances_that_should_run, dagster)
    row, _ = project.operations.rows(name)
    assert (row.wanted, row.wanted_published) == (False, True)
    values = [record.value or b"" for record in project.broker.consume(f"{project.application.id}-coordination")]
    assert [msgspec.json.decode(value)["running"] for value in values] == [True, False]


def test_a_paused_task_is_alerted_skipped_resumed_and_closed_by_the_policy(
    project: Project, first: str, dagster: dg.DagsterInstance
) -> None:
    """The full sequence: pause → event → feed → sensor → alert, reservation → run-book → dead letter → RUNNING → alert closed."""
    project.operations.start(first, actor="ann")
    feed_records(project, b'{"n": 1}', BAD, b'{"n": 2}')
    wait_for_pause(project)
    result = tick_until_alerted(project, dagster)
    (request,) = result.run_requests or []
    with project.control_plane.reading() as session:
        (alert,) = session.scalars(select(Alert)).all()
    assert (alert.kind, alert.state) == ("TASK_PAUSED", AlertState.OPEN.value)
    assert request.run_key == alert.occurrence
    assert run(project, request, "skip_record", dagster).success
    assert tick(project, paused_tasks, dagster, result.cursor).run_requests == []
    wait_until(count_of(project, 2), 30, "the record after the bad one")
    (dead,) = project.broker.consume(dead_letter_topic(project.application.id))
    assert (dead.key, dead.value) == (b"key", BAD)
    assert dict(dead.headers)["__streams.errors.offset"] == b"1"
    with project.control_plane.reading() as session:
        (done,) = session.scalars(select(RunBookRun)).all()
        (alert,) = session.scalars(select(Alert)).all()
        trail = [
            entry.action
            for entry in session.scalars(select(AuditEntry).where(AuditEntry.run_book_run_id == done.id).order_by(AuditEntry.id))
        ]
    assert (done.state, done.by_policy) == (RunBookState.DONE.value, True)
    assert [(step.name, step.state) for step in done.steps] == [
        (name, StepState.DONE.value) for name in ("check", "keep", "shift", "resume", "verify", "close")
    ]
    assert alert.state == AlertState.RESOLVED.value
    assert trail[:3] == ["run-book started", "step check started", "step check done"]
    assert trail[-1] == "run-book done"


def test_the_run_book_is_safe_to_run_twice_and_refused_where_it_does_not_fit(project: Project, first: str) -> None:
    project.operations.start(first, actor="ann")
    feed_records(project, b"{}", BAD, b"{}")
    wait_for_pause(project)
    other = skip(project, 0)
    assert (other.state, other.reason) == (
        RunBookState.REFUSED.value,
        f"task 0_0 is paused at {project.application.id}-in-0@1, not at {project.application.id}-in-0@0. "
        f"`penstock tasks {project.application.id}` shows the paused tasks and their records",
    )
    running = skip(project, 0, partition=1)
    assert running.state == RunBookState.REFUSED.value
    assert "task 0_1 is not paused: it is RUNNING" in str(running.reason)
    assert skip(project, 1).state == RunBookState.DONE.value
    again = skip(project, 1)
    assert (again.state, [step.name for step in again.steps]) == (RunBookState.DONE.value, ["check", "close"])
    assert len(project.broker.consume(dead_letter_topic(project.application.id))) == 1
    wait_until(count_of(project, 2), 30, "the record after the bad one")


def test_a_run_book_that_was_killed_half_way_is_finished_by_the_next(project: Project, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project.operations.start(first, actor="ann")
    feed_records(project, b"{}", BAD, b"{}")
    wait_for_pause(project)
    with monkeypatch.context() as patched:
        patched.setattr(
            "penstock.orchestration.kafka.task_commands.TaskCommands.resume", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt())
        )
        with pytest.raises(KeyboardInterrupt):
            skip(project, 1)
    done = skip(project, 1)
    assert done.state == RunBookState.DONE.value
    found = {step.name: step.detail for step in done.steps}
    assert found["keep"]["already"] is True
    assert found["shift"]["already"] is True
    assert len(project.broker.consume(dead_letter_topic(project.application.id))) == 1
    wait_until(count_of(project, 2), 30, "the record after the bad one")


def test_rule_20_where_no_owner_lives_the_offset_is_moved_by_admin(project: Project, first: str) -> None:
    project.operations.start(first, actor="ann")
    feed_records(project, b"{}", BAD, b"{}")
    wait_for_pause(project)
    project.operations.stop(first, actor="ann")
    done = skip(project, 1)
    assert done.state == RunBookState.DONE.value
    assert {step.name: step.detail for step in done.steps}["shift"]["by"] == "admin"
    assert project.broker.committed_offsets(project.application.id, f"{project.application.id}-in")[0] == 2
    project.operations.start(first, actor="ann")
    wait_until(count_of(project, 2), 30, "the record after the bad one")


def test_rule_20_an_offset_that_another_program_moved_is_not_moved_again(project: Project, first: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    project.operations.start(first, actor="ann")
    feed_records(project, b"{}", BAD, b"{}", b"{}")
    wait_for_pause(project)
    project.operations.stop(first, actor="ann")
    consumer = Consumer({"bootstrap.servers": project.broker.bootstrap_servers, "group.id": project.application.id})
    consumer.commit(offsets=[TopicPartition(f"{project.application.id}-in", 0, 3)], asynchronous=False)
    consumer.close()
    refused = skip(project, 1)
    assert refused.state == RunBookState.REFUSED.value
    assert "is committed at 3, not at 1: another program has moved it" in str(refused.reason)


def test_an_alert_is_closed_when_the_problem_was_repaired_elsewhere(project: Project, first: str, dagster: dg.DagsterInstance) -> None:
    """An operator moves the offset with Kafka's own tool and resumes; the sensor sees that the task runs."""
    project.operations.start(first, actor="ann")
    feed_records(project, b"{}", BAD, b"{}")
    wait_for_pause(project)
    cursor = tick_until_alerted(project, dagster).cursor
    assert skip(project, 1).state == RunBookState.DONE.value
    wait_until(lambda: task_state(project) == "RUNNING", 30, "RUNNING")
    tick(project, paused_tasks, dagster, cursor)
    with project.control_plane.reading() as session:
        assert [alert.state for alert in session.scalars(select(Alert))] == [AlertState.RESOLVED.value]
        assert audit.latest(session, application=project.application.id)
