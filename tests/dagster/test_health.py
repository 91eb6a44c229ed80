"""Checks on a real broker and a real instance: those that only the brokers can answer, and how an alert reaches Dagster and is resolved."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions
from sqlalchemy import select

from penstock.assets.checks import checks_job
from penstock.orchestration.alerts import alert_text, incidents
from penstock.orchestration.dagster.alert_check import NO_OPEN_ALERTS
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database.audit import now
from penstock.orchestration.database.models import Alert, Checkpoint, Task
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.orchestration.embedded.tools import run_tool
from penstock.orchestration.health.checks import TRANSACTIONS, CheckResult, partitions
from penstock.orchestration.health.examination import facts, gather, remember, results_of
from penstock.orchestration.health.figures import report
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.model.states import TaskKind
from penstock.sensors.alerts import open_alerts
from penstock.sensors.event_cursor import Cursor
from tests.dagster.telling import Project, project_on
from tests.support import Kafka, unique, wait_until


@pytest.fixture
def dagster() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def running(project: Project) -> Project:
    """Return the project with a global table whose topic is not compacted, and one instance, though a standby needs two."""
    path = project.operations.paths.streams_toml
    path.write_text(_toml(project))
    operations = Operations(project.operations.paths, Applications.read(path), project.control_plane)
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


def tool_says(command_line: str) -> list[str]:
    """Run a command of Kafka's tools as an alert has it, and return the lines of its output."""
    tool, *arguments = shlex.split(command_line)
    return run_tool(tool, arguments).splitlines()


def evaluate(dagster: dg.DagsterInstance) -> dict[str, dg.AssetCheckEvaluation]:
    """Return the results of the schedule's job."""
    result = checks_job().execute_in_process(instance=dagster, resources={"penstock": PenstockResource()})
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
    table = found["consumer_lag"].metadata["2 looked at"]
    assert isinstance(table, dg.TableMetadataValue) and [record.data["task"] for record in table.records] == ["1_0"]

    assert found["hanging_transactions"].passed
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique("open")})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(f"{application.id}-in", b"{}", partition=0)
    producer.flush(20)
    opened = evaluate(dagster)["hanging_transactions"]
    table = opened.metadata["2 looked at"]
    assert isinstance(table, dg.TableMetadataValue) and f"{application.id}-in" in [record.data["topic"] for record in table.records]
    assert opened.passed, "it may still end in time"
    producer.abort_transaction(20)

    with running.control_plane.writing() as session:
        events, _ = Cursor().read(session, application.id, incidents.GLOBAL_KINDS)
        incidents.of_globals(session, application, events, now())
    result = tick(dagster, None)
    shown = {type(event).__name__: event for event in result.asset_events}
    observed, evaluated = shown["AssetObservation"], shown["AssetCheckEvaluation"]
    assert isinstance(observed, dg.AssetObservation) and isinstance(evaluated, dg.AssetCheckEvaluation)
    assert (evaluated.check_name, evaluated.passed) == (NO_OPEN_ALERTS, False)
    assert {"1 what", "2 since", "6 repair", "7 what else"} <= set(observed.metadata)
    assert tick(dagster, result.cursor).asset_events == [], "on change only"

    topic = ConfigResource(ConfigResource.Type.TOPIC, f"{application.id}-names")
    topic.add_incremental_config(ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET))
    admin = broker.admin
    admin.incremental_alter_configs([topic])[topic].result(30)
    assert evaluate(dagster)["global_topics_compacted"].passed
    changed = [event for event in tick(dagster, result.cursor).asset_events if isinstance(event, dg.AssetObservation)]
    assert [str(event.description) for event in changed if "is compacted now" in str(event.description)]


def test_a_transaction_that_no_coordinator_knows_is_found_and_ended_by_the_commands_of_its_alert(
    own_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker loses the log of its transactions. The record is two minutes old by its timestamp, by which Kafka's tool goes; the looks
    of the health check are two minutes apart by the clock that they are given."""
    with project_on(Kafka(own_broker.bootstrap_servers), tmp_path, monkeypatch) as project:
        application, broker, control_plane = project.application, project.broker, project.control_plane
        topic, out = (f"{application.id}-{end}" for end in ("in", "out"))
        for each in (topic, out):
            broker.create_topic(each, exact=True)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique("lost"), "log_level": 0})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(topic, b"{}", key=b"lost", partition=0, timestamp=time.time_ns() // 1_000_000 - 120_000)
        assert producer.flush(20) == 0
        group = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": application.id})
        producer.send_offsets_to_transaction([ClientPartition(topic, 0, 0)], group.consumer_group_metadata(), 20)
        group.close()
        own_broker.stop()
        for log in (own_broker.data_dir / "log").glob("__transaction_state-*"):
            shutil.rmtree(log)
        own_broker.start()
        broker.produce(topic, [("key", "{}")])
        process, _ = project.operations.launcher.start(application, application.instances[0])

        def look(minutes: int) -> CheckResult:
            project.feed()
            at = now() + timedelta(minutes=minutes)
            known = facts(application, control_plane, at, brokers=True)
            results = results_of(known)
            remember(control_plane, application, results, at, report(known, results).samples)
            (found,) = (each for each in results if each.name == TRANSACTIONS)
            return found

        def alert() -> Alert:
            with control_plane.reading() as session:
                return session.scalars(select(Alert).where(Alert.kind == "HANGING_TRANSACTION")).one()

        both = {topic, "__consumer_offsets"}
        wait_until(lambda: both <= {row.cells["topic"] for row in look(0).rows}, 60, "the first record of the topology, with its inputs")
        assert look(0).passed
        found = look(2)
        assert not found.passed
        of_offsets, of_input = found.texts
        assert f"a transaction in {topic}-0 " in of_input and "it contains committed offsets" in of_offsets
        _, _, abort_commit, find, _, abort = alert_text.next_commands(alert())
        assert broker.consume(out) == [], "the reader waits"
        header, *listed = tool_says(find)
        assert [line.split()[:2] for line in listed] == [[topic, "0"]] and "ProducerId" in header
        tool_says(abort)
        assert broker.consume(out) == [], "the task waits for its committed offset"
        tool_says(abort_commit)
        wait_until(lambda: len(broker.consume(out)) == 1, 30, "the result of what stands behind the transaction")
        assert len(tool_says(find)) == 1, "only the header"
        assert look(4).passed and alert().resolved_at is not None
        assert process.alive


def test_input_partitions_that_no_task_reads_are_an_alert_and_a_failing_check_until_each_has_a_task(
    running: Project, dagster: dg.DagsterInstance
) -> None:
    """Partitions are added while the instance runs; its state is kept by partition."""
    application, topic = running.application, f"{running.application.id}-in"
    assert evaluate(dagster)["input_partitions"].passed
    admin = running.broker.admin
    before = admin.list_topics(topic).topics[topic].partitions
    admin.create_partitions([NewPartitions(topic, len(before) + 1)])[topic].result(30)

    def reported() -> bool:
        running.feed()
        with running.control_plane.writing() as session:
            events, _ = Cursor().read(session, application.id, incidents.GLOBAL_KINDS)
            incidents.of_globals(session, application, events, now())
            return session.scalar(select(Alert).where(Alert.kind == incidents.INPUT_PARTITIONS)) is not None

    wait_until(reported, 60, "the alert")
    with running.control_plane.reading() as session:
        (alert,) = session.scalars(select(Alert).where(Alert.kind == incidents.INPUT_PARTITIONS))
    assert alert.subject == topic and f"penstock reset {application.id}" in alert_text.next_commands(alert)
    failed = evaluate(dagster)["input_partitions"]
    assert not failed.passed and f"partitions {len(before)} of input topic {topic} are read by no task" in str(failed.description)
    with running.control_plane.reading() as session:
        known = gather(session, application, now())
        task = next(each for each in known.tasks if each.kind == TaskKind.ACTIVE.value)
        added = [Task(task=f"1_{number}", instance="x", kind=task.kind, state="RUNNING") for number in range(len(before) + 1)]
    assert not partitions(dataclasses.replace(known, tasks=added)).texts
