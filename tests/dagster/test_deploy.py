"""New code for a running application: rolled out over its instances, or refused before any of them is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy import select

from benchmarks.updates import EachOnce, Load, Watch
from penstock.orchestration.database.models import AuditEntry
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.definitions import definitions
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.resets.brokers import Brokers
from penstock.runtime.coordination.records import Reset
from penstock.runtime.kafka.topic_admin import TopicAdmin
from tests.dagster.telling import Project
from tests.dagster.test_commands import penstock
from tests.support import ROOT, wait_until
from tests.support.fleets import ran_nothing_twice, settled_log

PARTITIONS, KEYS, RATE = 4, 40, 200
CODE = """
import os, sys
from penstock import Consumed, Grouped, Materialized, Produced, StreamsBuilder
from penstock.serdes import BYTES, LONG

def build():
    application = os.environ["PENSTOCK_TEST_APPLICATION"]
    builder = StreamsBuilder()
    records = builder.stream(f"{application}-in", Consumed(BYTES, value=BYTES))
    records.group_by_key(Grouped(BYTES, value=BYTES)).count(Materialized("counts", caching=False)).to_stream().to(
        f"{application}-out", Produced(BYTES, value=LONG)
    )
    # more
    return builder.build()
"""
MORE = """kept = records.filter(lambda key, value: True, "kept")
    kept.to(f"{application}-copies", Produced(BYTES, value=BYTES))
    kept.group_by_key(Grouped(BYTES, value=BYTES)).count(Materialized("seen"))"""
TABLE = 'builder.global_table(f"{application}-copies", Consumed(BYTES, value=BYTES), Materialized("copies"))'
DIES = """if sys.modules["__main__"].__spec__.name == "penstock.runtime.instance.__main__":
        raise RuntimeError("not on this day")"""
COUNTING = 'group_by_key(Grouped(BYTES, value=BYTES)).count(Materialized("counts", caching=False)).to_stream()'
LESS = CODE.replace(COUNTING, "filter(lambda key, value: False)")


@pytest.fixture
def deployed(project: Project) -> Iterator[Project]:
    """Yield two instances that count, with the code in the project's folder."""
    for end in ("in", "out", "copies"):
        project.broker.create_topic(f"{project.application.id}-{end}", PARTITIONS, exact=True)
    write(project, CODE)
    path = project.operations.paths.streams_toml
    settings = '"session.timeout.ms" = 4000\n"acceptable.recovery.lag" = 0\n"deserialization'
    path.write_text(path.read_text().replace("tests.dagster.topology:build", "deployed_code:build").replace('"deserialization', settings))
    reread(project)
    for name in project.application.instances:
        project.operations.start(name, actor="ann")
    yield project


def reread(project: Project) -> None:
    paths = project.operations.paths
    project.operations = Operations(paths, Applications.read(paths.streams_toml), project.control_plane)


def write(project: Project, code: str) -> Path:
    path = project.operations.paths.root / "deployed_code.py"
    path.write_text(code)
    return path


def processes(project: Project) -> list[int | None]:
    """Return the process of each instance."""
    found = (project.operations.launcher.running(name) for name in project.application.instances)
    return [None if process is None else process.pid for process in found]


def actions(project: Project) -> list[str]:
    """Return the audit trail's entries about deploys."""
    with project.control_plane.reading() as session:
        entries = session.scalars(select(AuditEntry).order_by(AuditEntry.id)).all()
    return [entry.action for entry in entries if "deploy" in entry.action]


def test_an_operator_a_sink_and_a_store_more_are_rolled_out_under_load_and_nothing_is_lost_or_doubled(deployed: Project) -> None:
    application, broker = deployed.application.id, deployed.broker
    first = processes(deployed)
    check = EachOnce(KEYS * PARTITIONS)
    load = Load(broker.bootstrap_servers, f"{application}-in", KEYS * PARTITIONS, RATE)
    with Watch(broker.bootstrap_servers, f"{application}-out", PARTITIONS, check.note) as watch:
        with load:
            wait_until(lambda: watch.records > 0, 60, "outputs")
            write(deployed, CODE.replace("# more", MORE))
            planned = penstock("deploy", application, "--dry-run")
            assert planned.count("hands its tasks over, and starts with the new code") == 2 and "kept" in planned
            assert planned.count("the topology differs") == 1
            assert (processes(deployed), actions(deployed)) == (first, [])
            assert "runs the new code" in penstock("deploy", application)
            second = processes(deployed)
            assert None not in second and not set(second) & set(first)
            since = time.monotonic()
            wait_until(lambda: all(times and times[-1] > since for times in watch.times), 60, "outputs of all partitions")
        wait_until(lambda: watch.records >= load.records, 60, f"{load.records} outputs")
    assert not check.wrong and check.seen == load.written, f"{watch.records} outputs of {load.records}, {check.wrong} of them wrong"
    ran_nothing_twice(settled_log(broker, application, [f"0_{number}" for number in range(PARTITIONS)]))
    assert broker.consume(f"{application}-copies"), "the new sink"
    assert actions(deployed) == ["deploy started", "instance deployed", "instance deployed", "deploy ended"]

    config = dg.RunConfig(ops={"deploy": {"config": {"application": application}}})
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions(deployed.operations.applications).resolve_job_def("deploy_application")
        assert job.execute_in_process(run_config=config, instance=instance).success
    assert processes(deployed) == second, "they run this code already"


def test_what_would_not_start_is_refused_with_everything_that_is_wrong_and_nothing_is_stopped(
    deployed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    application, (name, _) = deployed.application.id, deployed.application.instances
    before = processes(deployed)
    write(deployed, LESS)
    refused = penstock("deploy", application, status=1)
    assert "nothing was stopped" in refused and "store counts of sub-topology 0 is left out" in refused and "Remedies: stop all" in refused

    streams = deployed.operations.paths.streams_toml
    written = streams.read_text()
    broken = '"processing.exception.handler" = "json.JSONDecoder"\n"global.topic.compaction.check" = "error"\n"session.timeout.ms"'
    streams.write_text(written.replace('"session.timeout.ms"', broken))
    write(deployed, CODE.replace("# more", TABLE))
    refused = penstock("restart", name, status=1)
    assert "is not a ProcessingExceptionHandler" in refused and f"global topic {application}-copies is not compacted" in refused
    unset = '"client.rack" = "${PENSTOCK_TEST_RACK}"\n"client.tag.zone" = "${PENSTOCK_TEST_ZONE}"\n"session.timeout.ms"'
    streams.write_text(written.replace('"session.timeout.ms"', unset))
    write(deployed, "import no_such_module\n")
    for command in (("deploy", application), ("deploy", application, "--dry-run"), ("restart", name)):
        refused = penstock(*command, status=1)
        assert "${PENSTOCK_TEST_RACK} is not set" in refused and "${PENSTOCK_TEST_ZONE} is not set" in refused
        assert "No module named 'no_such_module'" in refused
    write(deployed, "raise SystemExit(3)\n")
    assert "SystemExit: 3" in penstock("restart", name, status=1)
    write(deployed, CODE)
    assert "is not set in the environment" in penstock("restart", name, status=1)
    assert (processes(deployed), actions(deployed)) == (before, [])
    assert all(deployed.operations.rows(each)[0].wanted for each in deployed.application.instances)

    monkeypatch.setenv("PENSTOCK_TEST_RACK", "r1")
    monkeypatch.setenv("PENSTOCK_TEST_ZONE", "z1")
    assert "is RUNNING" in penstock("restart", name)
    assert processes(deployed)[1] == before[1] and processes(deployed)[0] not in (None, before[0])


def test_an_instance_that_is_not_declared_any_more_is_named_and_counts_in_the_check(deployed: Project) -> None:
    """It keeps its code, so the only declared instance is not alone: beside it, the new version may not start."""
    application, (name, retired) = deployed.application.id, deployed.application.instances
    before = processes(deployed)
    streams = deployed.operations.paths.streams_toml
    streams.write_text(streams.read_text().replace(f', "{retired}"', ""))
    write(deployed, LESS)
    assert "store counts of sub-topology 0 is left out" in penstock("deploy", application, "--dry-run", status=1)
    write(deployed, CODE.replace("# more", "# other"))
    planned = penstock("deploy", application, "--dry-run")
    assert f"{name} hands its tasks over" in planned and f"{retired} is not declared, and keeps the code that it runs" in planned
    assert processes(deployed) == before


def test_a_deploy_during_a_reset_is_refused(deployed: Project) -> None:
    """The reset was killed after its mark, before it noted that no instance is wanted."""
    application, names = deployed.application.id, deployed.application.instances
    for name in names:
        deployed.operations.stop(name, actor="ann")
    config = deployed.application.streams_config()
    brokers = Brokers(config, TopicAdmin(config))
    brokers.mark(Reset(id="killed", at_ms=0, by="ann", options="--to latest"))
    brokers.close()
    for name in names:
        deployed.operations.close_for_restart(name, actor="ann")  # wanted, and without a process
    for command in (("deploy", application), ("restart", names[0])):
        refused = penstock(*command, status=1)
        assert "nothing was stopped" in refused and f"end it with penstock reset {application} --to latest" in refused
    assert processes(deployed) == [None, None]


def test_a_new_version_that_dies_stops_the_roll_and_the_next_deploy_continues(deployed: Project) -> None:
    application = deployed.application.id
    before = processes(deployed)
    write(deployed, CODE.replace("# more", DIES))
    stopped = penstock("deploy", application, "--timeout", "60", status=1)
    assert "not on this day" in stopped and "New code: none. Stopped at: " in stopped and "To roll back: " in stopped
    (left,) = [pid for pid in processes(deployed) if pid is not None]
    assert left in before, "the other one continues with the old code"
    assert actions(deployed) == ["deploy started", "deploy stopped"]
    write(deployed, CODE.replace("# more", "# repaired"))
    command = [sys.executable, "-m", "penstock.orchestration", "deploy", application]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}) as interrupted:
        assert interrupted.stderr is not None
        wait_until(lambda: "instance deployed" in actions(deployed), 90, "the first instance")
        interrupted.send_signal(signal.SIGINT)
        reported = interrupted.stderr.read()
    assert interrupted.returncode == 130 and "The deploy of" in reported and "continues where it stopped" in reported
    repaired = [pid for pid in processes(deployed) if pid not in (None, left)]
    assert "runs the new code" in penstock("deploy", application)
    assert None not in processes(deployed) and left not in processes(deployed)
    assert len(repaired) == 1 and repaired[0] in processes(deployed), "what runs the new code is left alone"
