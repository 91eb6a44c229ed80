"""Scaling under the control plane: by a number in `streams.toml`, by a job, by a command; draining. Real processes on a real broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import dagster as dg
import pytest
from sqlalchemy import select

from penstock.assets.instances import instance_metadata
from penstock.orchestration.dagster.instance_partitions import follow_instances
from penstock.orchestration.dagster.live_metadata import learned_percent
from penstock.orchestration.dagster.names import partitions_name
from penstock.orchestration.database.models import Alert, AuditEntry, Task
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.definitions import definitions
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.observer import Observer
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.runtime.model.states import TaskKind
from penstock.sensors.instances import instances_no_longer_declared
from tests.dagster.telling import Project, instances_that_should_run
from tests.dagster.test_commands import penstock
from tests.dagster.test_instances import run, tick
from tests.support import wait_until


@pytest.fixture
def counted(project: Project) -> Project:
    """Return the project's application, declared by a number: one instance. Its input has four partitions."""
    for end, partitions in (("in", 4), ("out", 1)):
        project.broker.create_topic(f"{project.application.id}-{end}", partitions, exact=True)
    declare(project, 1)
    return project


@pytest.fixture
def dagster(counted: Project) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        follow_instances(instance, counted.operations)
        yield instance


def declare(project: Project, count: int) -> None:
    """Edit `streams.toml`."""
    path = project.operations.paths.streams_toml
    lines = [f"instances = {count}" if line.startswith("instances = ") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    project.operations = Operations(project.operations.paths, Applications.read(path), project.control_plane)


def name(project: Project, number: int) -> str:
    return f"{project.application.id}-{number}"


def partitions(project: Project, dagster: dg.DagsterInstance) -> list[str]:
    """Return the partitions of the application's asset."""
    return list(dagster.get_dynamic_partitions(partitions_name(project.application.id)))


def lives(project: Project) -> list[int]:
    """Return the instances that have a process."""
    return [number for number in range(1, 5) if project.operations.launcher.running(name(project, number))]


def wanted(project: Project) -> list[str]:
    """Return the instances that should run, according to Kafka."""
    picture = Observer(project.application.id, project.broker.connection).observe()
    return sorted(instance for instance, desired in picture.desired.items() if desired.running)


def tasks(project: Project) -> dict[str, int]:
    """Return the number of tasks of each instance, according to Kafka."""
    picture = Observer(project.application.id, project.broker.connection).observe()
    found: dict[str, int] = {}
    for _, instance, report in picture.reports():
        found[instance] = found.get(instance, 0) + (report.kind.value == "ACTIVE" and report.state.value == "RUNNING")
    return found


def run_by(project: Project, *shares: int) -> None:
    """Wait until the existing instances run these numbers of tasks."""
    wait_until(lambda: sorted(tasks(project).values()) == sorted(shares), 30, f"shares of {shares}")


def test_a_job_scales_out_and_in_and_may_be_run_again(counted: Project, dagster: dg.DagsterInstance) -> None:
    """Three are more than are declared. A surplus instance hands its tasks over and stays stopped."""
    job = definitions(counted.operations.applications).resolve_job_def("scale_application")

    def scale(instances: int) -> None:
        config = dg.RunConfig(ops={"scale": {"config": {"application": counted.application.id, "instances": instances}}})
        assert job.execute_in_process(run_config=config, instance=dagster).success

    names = [name(counted, number) for number in (1, 2, 3)]
    for _ in range(2):
        scale(3)
        assert (lives(counted), wanted(counted), sorted(partitions(counted, dagster))) == ([1, 2, 3], names, names)
    run_by(counted, 1, 1, 2)
    assert tick(counted, instances_that_should_run, dagster).run_requests == []
    assert tick(counted, instances_no_longer_declared, dagster).run_requests == [], "an operator asked for it"
    scale(1)
    assert (lives(counted), wanted(counted), partitions(counted, dagster)) == ([1], names[:1], names[:1])
    run_by(counted, 4)
    assert tick(counted, instances_that_should_run, dagster).run_requests == []
    with counted.control_plane.reading() as session:
        actions = [entry.action for entry in session.scalars(select(AuditEntry)) if entry.instance == names[2]]
        assert [alert.kind for alert in session.scalars(select(Alert))] == []
    assert actions == ["instance wanted", "instance started", "instance not wanted", "instance drained"]


def test_a_raised_number_in_the_file_starts_instances_and_a_lower_one_drains_them(counted: Project, dagster: dg.DagsterInstance) -> None:
    one, two = name(counted, 1), name(counted, 2)
    declare(counted, 2)
    assert tick(counted, instances_that_should_run, dagster).run_requests == [], "the application is not wanted"
    declare(counted, 1)
    counted.operations.start(one, actor="ann")
    declare(counted, 2)
    found = tick(counted, instances_that_should_run, dagster)
    (request,) = found.run_requests or []
    assert (request.partition_key, partitions(counted, dagster)) == (two, [one, two])
    assert run(counted, request, counted.start_job, dagster).success
    run_by(counted, 2, 2)
    declare(counted, 1)
    (drain,) = tick(counted, instances_no_longer_declared, dagster).run_requests or []
    assert run(counted, drain, "drain_instance", dagster).success
    assert (lives(counted), wanted(counted), partitions(counted, dagster)) == ([1], [one], [one])
    run_by(counted, 4)
    assert tick(counted, instances_no_longer_declared, dagster).run_requests == []
    declare(counted, 2)
    (again,) = tick(counted, instances_that_should_run, dagster).run_requests or []
    assert again.partition_key == two, "declared again, it is wanted again"
    counted.operations.stop(two, actor="ann")
    assert tick(counted, instances_that_should_run, dagster).run_requests == [], "but not against an operator's request"


def test_the_commands_scale_and_drain_and_a_dead_instance_beyond_the_declared_ones_is_started_again(
    counted: Project, dagster: dg.DagsterInstance
) -> None:
    one, two = name(counted, 1), name(counted, 2)
    assert f"{counted.application.id} runs as {one}, {two}" in penstock("scale", counted.application.id, "2")
    run_by(counted, 2, 2)
    shown = instance_metadata(counted.operations.paths, counted.operations.start(one, actor="ann"))
    numbers = {key: shown[key].value for key in ("workers", "active_tasks", "standby_tasks", "learner_tasks", "records_to_learn")}
    assert numbers == {"workers": 1, "active_tasks": 2, "standby_tasks": 0, "learner_tasks": 0, "records_to_learn": 0}
    assert f"{one} has handed its tasks over and closed" in penstock("drain", one)
    assert lives(counted) == [2]
    run_by(counted, 4)
    assert f"{one} has not been running" in penstock("drain", one)
    assert "no instance 'nobody' is declared" in penstock("drain", "nobody", status=1)
    killed = counted.operations.launcher.running(two)
    assert killed is not None
    os.kill(killed.pid, signal.SIGKILL)
    wait_until(lambda: not killed.alive, 10, "its death")
    (request,) = tick(counted, instances_that_should_run, dagster).run_requests or []
    assert request.partition_key == two
    with counted.control_plane.reading() as session:
        assert [(alert.kind, alert.instance) for alert in session.scalars(select(Alert))] == [("INSTANCE_DIED", two)]
    assert f"{two} has not been running" in penstock("stop")
    assert not tick(counted, instances_that_should_run, dagster).run_requests  # stopped like the declared ones, and stays stopped
    assert f"{two} has not been running" in penstock("drain", two)
    here = ("--application", counted.application.id, "-b", counted.broker.bootstrap_servers)
    assert f"{two} has not been running" in penstock("drain", two, *here)
    beyond = name(counted, 9)
    assert f"no instance {beyond!r} of {counted.application.id} is declared, and none has run" in penstock("drain", beyond, status=1)
    reported = f"no instance {beyond!r} of {counted.application.id} is known; known are {one}, {two}"
    assert reported in penstock("drain", beyond, *here, status=1)
    assert beyond not in penstock("status")


def test_only_scale_runs_more_than_are_declared(counted: Project, dagster: dg.DagsterInstance) -> None:
    """A misspelt number would start one more member. Instances started by `scale` are stopped and started by name, until `scale` reduces
    them."""
    one, two, three = (name(counted, number) for number in (1, 2, 3))
    more = f"no instance {two!r} is declared; declared are {one} "
    for command in (("start", two), ("start", one, two), ("restart", two), ("stop", two), ("run-book", "restart-instance", two)):
        said = penstock(*command, status=1)
        assert more in said and f"Did you mean {one!r}" in said and f"penstock scale {counted.application.id} 2" in said
    dagster.add_dynamic_partitions(partitions_name(counted.application.id), [two])
    by_config = {"ops": {"restart": {"config": {"instance": two}}}}
    for job, request in ((counted.start_job, dg.RunRequest(partition_key=two)), ("restart_instance", dg.RunRequest(run_config=by_config))):
        result = run(counted, request, job, dagster)
        (failure,) = (event.step_failure_data.error for event in result.all_events if event.is_step_failure)
        assert not result.success and failure is not None and any(more in each.message for each in (failure, failure.cause) if each)
    assert lives(counted) == []
    assert f"runs as {one}, {two}" in penstock("scale", counted.application.id, "2")
    assert f"{two} has closed" in penstock("stop", two)
    assert f"{two} is RUNNING" in penstock("start", two)
    said = penstock("start", three, status=1)
    assert f"declared are {one}, {two}" in said and lives(counted) == [1, 2]
    assert f"runs as {one}" in penstock("scale", counted.application.id, "1")
    assert more in penstock("start", two, status=1)
    assert lives(counted) == [1]


def test_an_instance_that_scale_has_added_is_not_drained_when_it_restarts_after_a_stop(
    counted: Project, dagster: dg.DagsterInstance
) -> None:
    operations, second = counted.operations, name(counted, 2)
    operations.scale(counted.application.id, 2, actor="ann")
    for close in (operations.close_for_restart, operations.hand_over_for_restart):
        operations.stop(second, actor="ann")
        assert not close(second, actor="ann"), "it did not run"
        assert not tick(counted, instances_no_longer_declared, dagster).run_requests
        assert operations.instances(counted.application) == (name(counted, 1), second)
    for number in (1, 2):
        operations.stop(name(counted, number), actor="ann")


def test_the_progress_of_a_copy_is_shown_in_percent() -> None:
    def reported(kind: TaskKind, lag: int | None, end: int | None) -> float | None:
        return learned_percent(Task(kind=kind.value, lag=lag, end_sum=end))

    assert [reported(TaskKind.LEARNER, lag, 200) for lag in (200, 150, 0)] == [0.0, 25.0, 100.0]
    assert (reported(TaskKind.ACTIVE, 5, 10), reported(TaskKind.LEARNER, None, 10), reported(TaskKind.STANDBY, 0, 0)) == (None, None, None)


def test_instances_that_are_named_one_by_one_are_scaled_among_their_names(project: Project) -> None:
    with pytest.raises(RefusedError, match=r"has 2 instances, which streams\.toml names one by one"):
        project.operations.scale(project.application.id, 3, actor="ann")
    with pytest.raises(RefusedError, match="at least 1"):
        project.operations.scale(project.application.id, 0, actor="ann")
