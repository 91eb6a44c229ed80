"""Ticks of the sensors and of the minute's checks while brokers do not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import KafkaError, KafkaException
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.errors import SensorExecutionError, user_code_error_boundary
from dagster._core.events import DagsterEventType, StepMaterializationData
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord
from dagster._utils.error import serializable_error_info_from_exc_info

from penstock.assets import checks
from penstock.orchestration.dagster.names import instances_key
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.policies import Severity
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.definitions import definitions
from penstock.orchestration.health import DESCRIPTIONS, CheckResult, Row, examination
from penstock.orchestration.health.checks import COMPACTION, Known
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.projection.feed import Feed, Step
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.sensors.ticks import NothingSeenError, for_each_application
from tests.support import wait_until

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Brokers:
    """Stands for the brokers of the applications' feeds: those that answer, and the applications that asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, away: str, code: int = KafkaError._TRANSPORT) -> None:
        self.asked: list[str] = []

        def step(feed: Feed, timeout_s: float = 5.0) -> Step:
            application: Application = feed._application
            self.asked.append(application.id)
            if application.bootstrap_servers == away:
                raise BrokerUnavailableError(f"{application.id}: no broker answers at {away}") from KafkaException(KafkaError(code))
            return Step(0, True)

        monkeypatch.setattr(Feed, "step", step)


def operations(folder: Path, control_plane: ControlPlane, **servers: str) -> Operations:
    declared = "".join(
        f'[applications.{name}]\nfactory = "a:b"\ninstances = ["{name}-1"]\n[applications.{name}.config]\n"bootstrap.servers" = "{at}"\n'
        for name, at in servers.items()
    )
    paths = ProjectPaths(folder, folder, folder / "streams.toml", f"sqlite:///{folder / 'unused.db'}")
    return Operations(paths, Applications.parse(declared, paths.streams_toml), control_plane)


def test_a_broker_that_does_not_answer_is_waited_for_once_in_a_tick(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its applications would wait 5 s, and Dagster ends the tick before those of other brokers are looked at."""
    brokers = Brokers(monkeypatch, "away:1")
    looked: list[str] = []
    found = operations(tmp_path, control_plane, a="away:1", b="away:1", c="away:1", d="here:1")
    away = for_each_application(found, lambda application: looked.append(application.id))
    assert (brokers.asked, looked) == (["a", "d"], ["d"])
    assert away == [f"{name}: no broker answers at away:1" for name in "abc"], "each is named all the same"
    for_each_application(found, lambda _: None)
    assert brokers.asked == ["a", "d"] * 2, "the next tick asks again"


def test_an_error_of_one_application_says_nothing_of_its_broker(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers(monkeypatch, "away:1", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    found = operations(tmp_path, control_plane, a="away:1", b="away:1", c="here:1")
    for_each_application(found, lambda _: None)
    assert brokers.asked == ["a", "b", "c"]


def test_an_application_whose_configuration_cannot_be_used_does_not_keep_the_sensors_from_the_others(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    Brokers(monkeypatch, "away:1")
    monkeypatch.delenv("PENSTOCK_TEST_UNSET", raising=False)
    looked: list[str] = []
    found = operations(tmp_path, control_plane, a="${PENSTOCK_TEST_UNSET}", b="here:1")
    away = for_each_application(found, lambda application: looked.append(application.id))
    assert (looked, away) == (["b"], ["a, bootstrap.servers: ${PENSTOCK_TEST_UNSET} is not set in the environment"])


def test_the_checks_of_a_minute_wait_once_for_a_broker(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_AT_ONCE", 1)
    brokers = Brokers(monkeypatch, "away:1")
    found = operations(tmp_path, control_plane, a="away:1", b="away:1")
    with dg.DagsterInstance.ephemeral() as dagster:
        reports = checks.reports(found, dagster, datetime.now(UTC), logging.getLogger())
    assert brokers.asked == ["a"]
    assert reports.problems == [f"{name}: cannot be known: no broker answers at away:1" for name in "ab"]


def test_an_error_in_the_checks_of_one_application_is_shown_by_these_and_leaves_the_others_alone(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    Brokers(monkeypatch, "away:1")
    broken = {"a"}

    def facts(application: Application, control_plane: ControlPlane, at: datetime, *, brokers: bool, outputs: Iterable[str] = ()) -> Known:
        if application.id in broken:
            raise KeyError("offset")
        return facts_without_broker(application, control_plane, at, brokers=brokers, outputs=outputs)

    monkeypatch.setattr(checks, "facts", facts)
    found = operations(tmp_path, control_plane, a="here:1", b="here:1")
    sentence = "cannot be known: its checks cannot be computed: KeyError: 'offset'"

    def look(minute: int, dagster: dg.DagsterInstance) -> checks.Reports:
        return checks.reports(found, dagster, NOW + timedelta(minutes=minute), logging.getLogger("test"))

    with dg.DagsterInstance.ephemeral() as dagster:
        look(0, dagster)
        seen = look(1, dagster)
        assert seen.problems == [f"a: {sentence}"] and len(seen.errors) == 1
        of_a = [each for each in seen.kept if isinstance(each, dg.AssetCheckEvaluation) and each.asset_key.path[0] == "a"]
        assert len(of_a) == len(DESCRIPTIONS) + 1
        assert {(each.passed, each.severity, each.description) for each in of_a} == {(False, dg.AssetCheckSeverity.ERROR, sentence)}
        assert "KeyError: 'offset'" in str(of_a[0].metadata["1 error"].value), "with its stack"
        status = observed(seen, "a")
        assert [(each.partition, each.metadata["lag"].value) for each in status] == [(None, "unknown")], "instances: at the first time only"
        broken.clear()
        mended = look(2, dagster)
        assert not mended.errors and not mended.problems
        assert [(each.partition, each.description) for each in observed(mended, "a")] == [(None, "nothing runs yet")]


def test_a_failing_check_is_not_reported_each_minute_because_its_numbers_grow(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster keeps the results of checks for ever."""
    Brokers(monkeypatch, "away:1")
    found = operations(tmp_path, control_plane, a="here:1")
    texts = iter(["a 0_4 on a-4: lag of 5 records", "a 0_4 on a-4: lag of 60 records", "a 0_5 on a-4: lag of 60 records"])

    def results_of(known: Known, unknown: str = "") -> list[CheckResult]:
        problem = Row({"topic": "names"}, Severity.WARN, next(texts))
        return [
            replace(result, rows=(problem,)) if result.name == COMPACTION else result for result in examination.results_of(known, unknown)
        ]

    monkeypatch.setattr(checks, "results_of", results_of)
    monkeypatch.setattr(checks, "facts", facts_without_broker)
    with dg.DagsterInstance.ephemeral() as dagster:
        said = []
        for minute in range(3):
            seen = checks.reports(found, dagster, NOW + timedelta(minutes=minute), logging.getLogger("test"))
            for event in seen.kept:
                dagster.report_runless_asset_event(event)
            said.append([e.description for e in seen.kept if isinstance(e, dg.AssetCheckEvaluation) and e.check_name == COMPACTION])
    assert said == [["a 0_4 on a-4: lag of 5 records"], [], ["a 0_5 on a-4: lag of 60 records"]]


def test_checks_are_reported_while_a_run_is_about_to_compute_them(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start of an instance computes them too. If its process is killed, they stay planned for ever."""
    Brokers(monkeypatch, "away:1")
    found = operations(tmp_path, control_plane, a="away:1")
    with dg.DagsterInstance.ephemeral() as dagster:
        checks.reports(found, dagster, NOW, logging.getLogger("test"))
        planned = AssetCheckEvaluationPlanned(asset_key=instances_key("a"), check_name=COMPACTION)
        event = dg.DagsterEvent(DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value, job_name="start_a", event_specific_data=planned)
        dagster.report_dagster_event(event, run_id="killed")
        seen = checks.reports(found, dagster, NOW + timedelta(minutes=1), logging.getLogger("test"))
    assert COMPACTION in {event.check_name for event in seen.kept if isinstance(event, dg.AssetCheckEvaluation)}


def test_checks_are_reported_again_when_a_run_has_hidden_them(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick reports between the plan of a run that starts an instance and its materialisation: Dagster then shows *Not Evaluated*."""
    Brokers(monkeypatch, "away:1")
    found = operations(tmp_path, control_plane, a="away:1")
    key, check = instances_key("a"), dg.AssetCheckKey(instances_key("a"), COMPACTION)

    def report(minute: int, dagster: dg.DagsterInstance) -> set[str]:
        seen = checks.reports(found, dagster, datetime.now(UTC) + timedelta(minutes=minute), logging.getLogger("test"))
        for event in seen.kept:
            dagster.report_runless_asset_event(event)
        return {event.check_name for event in seen.kept if isinstance(event, dg.AssetCheckEvaluation)}

    def last(dagster: dg.DagsterInstance) -> AssetCheckExecutionRecord:
        record = dagster.event_log_storage.get_latest_asset_check_execution_by_key([check])[check]
        assert record is not None
        return record

    def is_shown(dagster: dg.DagsterInstance) -> bool:
        return asyncio.run(last(dagster).targets_latest_materialization(LoadingContextForTest(dagster)))

    with dg.DagsterInstance.ephemeral() as dagster:
        every = report(0, dagster)
        assert every == {*DESCRIPTIONS, "no_open_alerts", "rehearsal", "state_audit"}
        assert report(1, dagster) == set()
        made = dg.AssetMaterialization(key, partition="a-1")
        started = dg.DagsterEvent(
            DagsterEventType.ASSET_MATERIALIZATION.value, job_name="start_a", event_specific_data=StepMaterializationData(made)
        )
        dagster.report_dagster_event(started, run_id="a-run")
        assert not is_shown(dagster)
        assert report(2, dagster) == every
        wait_until(lambda: not report(3, dagster), 10, "a report that is later than the materialisation")
        assert is_shown(dagster)


def facts_without_broker(
    application: Application, control_plane: ControlPlane, at: datetime, *, brokers: bool, outputs: Iterable[str] = ()
) -> Known:
    return examination.facts(application, control_plane, at, brokers=False)


def observed(seen: checks.Reports, application: str) -> list[dg.AssetObservation]:
    return [event for event in seen.events if isinstance(event, dg.AssetObservation) and event.asset_key.path[0] == application]


NO_BROKER, NO_DATABASE = "a: no broker answers at 127.0.0.1:1", "broken.db: file is not a database"
NEEDS_NO_BROKER = ("instances_no_longer_declared", "open_alerts")
"""Sensors that work while the brokers are away."""


@pytest.mark.parametrize(("away", "said"), [("broker", NO_BROKER), ("database", NO_DATABASE), ("declaration", "streams.toml: not TOML")])
def test_each_sensor_that_cannot_look_fails_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str, said: str) -> None:
    path, database = tmp_path / "streams.toml", tmp_path / "broken.db"
    path.write_text(
        '[applications.a]\nfactory = "m:f"\ninstances = 1\n[applications.a.config]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        '[[tables]]\nname = "t"\napplication = "a"\nstore = "s"\nrefresh = {minutes = 1}\n'
    )
    monkeypatch.setenv("PENSTOCK_STREAMS", str(path))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", f"sqlite:///{database}")
    monkeypatch.setattr("penstock.sensors.ticks.FEED_SECONDS", 0.5)
    repository = definitions(Applications.read(path)).get_repository_def()
    if away == "database":
        database.write_text("no database " * 1_000)
        monkeypatch.setattr(Feed, "step", lambda feed, timeout_s: feed._next("a-events"))  # its broker answers
    elif away == "declaration":
        path.write_text(path.read_text() + "[applications.b\n")
    failed, names = {}, {sensor.name for sensor in repository.sensor_defs}
    with dg.DagsterInstance.ephemeral() as dagster:
        for sensor in repository.sensor_defs:
            resources = {"penstock": PenstockResource()}
            with dg.build_sensor_context(instance=dagster, resources=resources, repository_def=repository) as context:
                try:
                    sensor.evaluate_tick(context)
                except NothingSeenError as error:
                    failed[sensor.name] = str(error)
    assert set(failed) == (names - {*NEEDS_NO_BROKER} if away == "broker" else names)
    assert all(said in sentence for sentence in failed.values()), failed


def test_a_tick_that_sees_nothing_fails_with_a_sentence_and_no_stack_trace(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    Brokers(monkeypatch, "away:1")

    def what() -> str:
        return "while the sensor evaluates"

    with pytest.raises(NothingSeenError) as failed, user_code_error_boundary(SensorExecutionError, what):
        for_each_application(operations(tmp_path, control_plane, a="away:1"), lambda _: None)
    shown = serializable_error_info_from_exc_info((failed.type, failed.value, failed.tb)).to_string()
    assert "a: no broker answers at away:1" in shown
    assert "Stack Trace" not in shown and 'File "' not in shown, shown
