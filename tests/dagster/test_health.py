"""The checks on a real broker and a real instance: what only the brokers know, and how an alert comes into Dagster and leaves it."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from sqlalchemy import select

from assets.checks import instance_checks
from orchestration import incidents
from orchestration.applications import Applications
from orchestration.audit import now
from orchestration.control_plane.models import Checkpoint
from orchestration.cursor import Cursor
from orchestration.dagster_alerts import NO_OPEN_ALERTS
from orchestration.operations import Operations
from orchestration.resources import PenstockResource
from sensors.open_alerts import open_alerts
from tests.dagster.telling import Project
from tests.support import wait_until


@pytest.fixture
def dagster() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def running(project: Project) -> Project:
    """The project with a global table whose topic is not compacted, and one instance, where two were needed for a standby."""
    path = project.operations.places.streams_toml
    path.write_text(_toml(project))
    operations = Operations(project.operations.places, Applications.read(path), project.control_plane)
    for end in ("in", "out", "names"):
        project.broker.create_topic(f"{project.application.id}-{end}", exact=True)
    operations.start(operations.applications.instances[0], actor="ann")
    return Project(operations, project.broker)


def _toml(project: Project) -> str:
    name = project.application.id
    return f"""
[applications.{name}]
factory = "tests.dagster.topology:build_with_table"
instances = ["{project.application.instances[0]}"]
[applications.{name}.config]
"bootstrap.servers" = "{project.broker.bootstrap_servers}"
"statestore.checkpoint.interval.ms" = 1000
"num.standby.replicas" = 1
"""


def evaluate(dagster: dg.DagsterInstance) -> dict[str, dg.AssetCheckEvaluation]:
    """What the schedule's job finds."""
    result = instance_checks.execute_in_process(instance=dagster, resources={"penstock": PenstockResource()})
    return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}


def tick(dagster: dg.DagsterInstance, cursor: str | None) -> dg.SensorResult:
    with dg.build_sensor_context(instance=dagster, cursor=cursor, resources={"penstock": PenstockResource()}) as context:
        result = open_alerts(context)
    assert isinstance(result, dg.SensorResult)
    return result


def number(evaluation: dg.AssetCheckEvaluation, name: str) -> float:
    value = evaluation.metadata[name].value
    assert isinstance(value, (int, float))
    return value


def test_what_the_brokers_know_is_in_the_checks_and_an_alert_is_shown_until_it_is_over(
    running: Project, dagster: dg.DagsterInstance
) -> None:
    application, broker = running.application, running.broker
    broker.produce(f"{application.id}-in", [(f"{n}", b"{}") for n in range(50)])

    def checkpointed() -> bool:
        running.feed()
        with running.control_plane.reading() as session:
            return session.scalar(select(Checkpoint).where(Checkpoint.task == "1_0")) is not None

    wait_until(checkpointed, 30, "a checkpoint of the task")
    wait_until(lambda: number(evaluate(dagster)["consumer_lag"], "lag") <= 1, 30, "a lag of no record (a marker may follow the last)")
    found = evaluate(dagster)
    assert 0 <= number(found["checkpoint_freshness"], "restore_debt") <= 60, "the changelog has 50 records and some markers"
    assert found["standby_replicas"].description == f"{application.id} 1_0: 0 of 1 standbys; only 1 instances live"
    assert not found["global_topics_compacted"].passed
    assert found["offset_expiry"].passed and found["dead_letter_growth"].passed
    assert "| 1_0 |" in str(found["consumer_lag"].metadata["overview"].value)

    with running.control_plane.writing() as session:
        events, _ = Cursor().read(session, application.id, incidents.GLOBAL_KINDS)
        incidents.of_globals(session, application, events, now())
    result = tick(dagster, None)
    shown = {type(event).__name__: event for event in result.asset_events}
    observed, evaluated = shown["AssetObservation"], shown["AssetCheckEvaluation"]
    assert isinstance(observed, dg.AssetObservation) and isinstance(evaluated, dg.AssetCheckEvaluation)
    assert (evaluated.check_name, evaluated.passed) == (NO_OPEN_ALERTS, False)
    assert {"alert", "severity", "subject", "seen", "next_command"} <= set(observed.metadata)
    assert tick(dagster, result.cursor).asset_events == [], "on change only"

    topic = ConfigResource(ConfigResource.Type.TOPIC, f"{application.id}-names")
    topic.add_incremental_config(ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET))
    admin = broker.admin
    admin.incremental_alter_configs([topic])[topic].result(30)
    assert evaluate(dagster)["global_topics_compacted"].passed
    changed = [event for event in tick(dagster, result.cursor).asset_events if isinstance(event, dg.AssetObservation)]
    assert [str(event.description) for event in changed if "is compacted now" in str(event.description)]
