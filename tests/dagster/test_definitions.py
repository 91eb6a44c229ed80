"""The code location loads, with Dagster's own tools too; a broken `streams.toml` causes an error that names the mistake."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from penstock.assets import checks
from penstock.orchestration.commands.dev import _dagster
from penstock.orchestration.dagster.alert_check import NO_OPEN_ALERTS
from penstock.orchestration.dagster.instance_partitions import follow_instances
from penstock.orchestration.dagster.names import instances_key, status_key
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.declarations import project_paths
from penstock.orchestration.declarations.applications import Applications, WrongDeclarationError
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.definitions import definitions
from penstock.orchestration.health import DESCRIPTIONS
from penstock.orchestration.health.checks import LIVENESS
from penstock.orchestration.instances.operations import Operations
from tests.support import ROOT

DECLARED = '[applications.a]\nfactory = "m:f"\ninstances = ["a-1", "a-2"]\n'


def tool(*command: str, streams: Path | None = None, home: Path) -> subprocess.CompletedProcess[str]:
    """Run one of Dagster's tools in the project's folder."""
    environment = {**os.environ, "PENSTOCK_HOME": str(home), **({"PENSTOCK_STREAMS": str(streams)} if streams else {})}
    path = Path(sys.executable).parent
    return subprocess.run(
        [path / command[0], *command[1:]], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    return definitions(Applications.parse(DECLARED, Path("streams.toml")))


def test_the_partitions_follow_the_instances(defs: dg.Definitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "streams.toml"
    monkeypatch.setenv("PENSTOCK_STREAMS", str(path))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    asset = defs.resolve_assets_def(instances_key("a"))
    assert asset.partitions_def is not None
    with dg.DagsterInstance.ephemeral() as dagster:
        for declared, wanted in (('["a-1", "a-2"]', ["a-1", "a-2"]), ("3", ["a-1", "a-2", "a-3"]), ('["a-2"]', ["a-2"])):
            path.write_text(f'[applications.a]\nfactory = "m:f"\ninstances = {declared}\n')
            follow_instances(dagster, Operations.find())
            assert sorted(asset.partitions_def.get_partition_keys(dynamic_partitions_store=dagster)) == wanted


def test_jobs_sensors_schedule_and_checks_are_there_and_run_by_default(defs: dg.Definitions) -> None:
    repository = defs.get_repository_def()
    run_books = {"restart_instance", "resume_task", "skip_record", "replay_dead_letters", "rebuild_global_store", "approve_run_book"}
    assert {"start_a", "stop_instance", "scale_application", "drain_instance", "instance_checks", *run_books} <= set(repository.job_names)
    assert {sensor.name: sensor.default_status for sensor in repository.sensor_defs} == dict.fromkeys(
        ("paused_tasks", "global_recoveries", "instances_that_should_run", "instances_no_longer_declared", "open_alerts"),
        dg.DefaultSensorStatus.RUNNING,
    )
    assert all(sensor.minimum_interval_seconds == 5 for sensor in repository.sensor_defs), "a death is seen within 15 s, by three looks"
    assert [schedule.default_status for schedule in repository.schedule_defs] == [dg.DefaultScheduleStatus.RUNNING]
    assert {key.name for key in repository.asset_graph.asset_check_keys} >= {*DESCRIPTIONS, NO_OPEN_ALERTS}


def test_rule_28_the_schedules_job_computes_the_checks_of_the_whole_asset(
    defs: dg.Definitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "streams.toml"
    path.write_text(DECLARED + '[applications.a.config]\n"bootstrap.servers" = "127.0.0.1:1"\n')
    monkeypatch.setenv("PENSTOCK_STREAMS", str(path))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    with dg.DagsterInstance.ephemeral() as dagster:
        result = defs.get_job_def("instance_checks").execute_in_process(instance=dagster)
        again = defs.get_job_def("instance_checks").execute_in_process(instance=dagster)
    assert len(again.get_asset_check_evaluations()) == len(DESCRIPTIONS) + 3, "whoever starts it sees all results"
    evaluated = {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}
    assert set(evaluated) == {*DESCRIPTIONS, NO_OPEN_ALERTS, "rehearsal", "state_audit"}
    for name in DESCRIPTIONS:
        assert not evaluated[name].passed and evaluated[name].severity is dg.AssetCheckSeverity.WARN
        assert evaluated[name].description == "cannot be known: no broker answers at 127.0.0.1:1"
    table = evaluated[LIVENESS].metadata["2 looked at"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [record.data["instance"] for record in table.records] == ["a-1", "a-2"]


def test_the_schedule_reports_without_a_run_and_leaves_a_late_tick_to_the_next_one(
    defs: dg.Definitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "streams.toml"
    path.write_text(DECLARED + '[applications.a.config]\n"bootstrap.servers" = "127.0.0.1:1"\n')
    monkeypatch.setenv("PENSTOCK_STREAMS", str(path))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    (schedule,) = defs.schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)

    def tick(due: datetime) -> str:
        with dg.build_schedule_context(
            instance=dagster, scheduled_execution_time=due, resources={"penstock": PenstockResource()}
        ) as context:
            data = schedule.evaluate_tick(context)
        assert not data.run_requests
        return str(data.skip_message)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as dagster:
        assert "this tick is 30" in tick(datetime.now(UTC) - timedelta(minutes=5))
        with monkeypatch.context() as hurried:
            hurried.setattr(checks, "_TICK_SECONDS", 0)
            assert tick(datetime.now(UTC)).endswith("; 13 of the events are left to the next tick")
        line = tick(datetime.now(UTC))
        assert line == "looked at 1 application, reported 13 events: a: cannot be known: no broker answers at 127.0.0.1:1"
        assert tick(datetime.now(UTC)).startswith("looked at 1 application, reported 1 event: a: cannot be known"), "no check has changed"
        observed, _ = dagster.fetch_observations(status_key("a"), limit=10).records
        shown = observed.event_log_entry.asset_observation
        assert shown is not None and next(iter(shown.metadata)) == "1 now"
        assert str(shown.metadata["1 now"].value) == "cannot be known: no broker answers at 127.0.0.1:1"
        table = shown.metadata["2 instances"]
        assert isinstance(table, dg.TableMetadataValue)
        assert [record.data["instance"] for record in table.records] == ["a-1", "a-2"]


@pytest.mark.parametrize("command", [("dg", "check", "defs"), ("dagster", "definitions", "validate")])
def test_dagsters_own_tools_find_nothing_wrong(command: tuple[str, ...], tmp_path: Path) -> None:
    result = tool(*command, home=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_broken_declaration_names_file_line_key_and_what_would_be_right(tmp_path: Path) -> None:
    broken = tmp_path / "streams.toml"
    broken.write_text(DECLARED + "[applications.a.paused]\nrun-bok = 'none'\n")
    result = tool("dagster", "definitions", "validate", streams=broken, home=tmp_path)
    assert result.returncode != 0
    assert f"{broken}, line 5: applications.a.paused.run-bok: unknown key: did you mean 'run-book'" in (
        result.stdout + result.stderr
    ).replace("\n", " ")


def test_a_path_is_looked_up_beside_the_calling_module_and_merges_with_a_project_of_another_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (project / "package").mkdir(parents=True)
    elsewhere.mkdir()
    (project / "streams.toml").write_text(DECLARED)
    module = project / "package" / "definitions.py"
    module.write_text("""
import dagster as dg
from penstock.dagster import definitions

defs = dg.Definitions.merge(definitions("streams.toml"), dg.Definitions(executor=dg.multiprocess_executor))
""")
    for name in ("PENSTOCK_STREAMS", "PENSTOCK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(project_paths, "_named", None)
    monkeypatch.chdir(elsewhere)
    found = runpy.run_path(str(module))["defs"]
    assert instances_key("a") in found.resolve_asset_graph().get_all_asset_keys()
    assert ProjectPaths.find().home == project / ".penstock"
    (project / "streams.toml").rename(elsewhere / "streams.toml")
    with pytest.raises(WrongDeclarationError, match=f"streams.toml is not in {project / 'package'} or a folder above it"):
        runpy.run_path(str(module))


def test_a_project_in_a_folder_of_its_own_loads_with_the_files_that_penstock_dev_writes(tmp_path: Path) -> None:
    (tmp_path / "streams.toml").write_text(DECLARED)
    paths = ProjectPaths(tmp_path, tmp_path / ".penstock", tmp_path / "streams.toml", "")
    arguments, environment = _dagster(paths)
    command = [str(Path(sys.executable).parent / "dagster"), "definitions", "validate", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "Validation successful for code location penstock" in done.stdout + done.stderr
