"""A new build beside the one that runs, over the same state and records; and a repair before it is deployed."""

from __future__ import annotations

import json

import dagster as dg
import pytest

from penstock.orchestration.alerts import alerts
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.definitions import definitions
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.observer import Observer
from penstock.runtime.model.states import TaskState
from penstock.runtime.snapshots.catalogue import find
from tests.dagster.rehearsed import CODE, DOUBLED, KEYS, begin, checked, counted, damage, rehearsed_first, take_at_rest, write
from tests.dagster.telling import Project
from tests.dagster.test_commands import penstock
from tests.support import wait_until

OTHER_TYPE = (
    CODE.replace('"sums", key=serdes.STRING, value=serdes.LONG', '"sums", key=serdes.STRING, value=serdes.STRING')
    .replace("lambda: 0, lambda key, value, total: total +", 'lambda: "", lambda key, value, total: total + str(')
    .replace('value["amount"], sums)', 'value["amount"]), sums)')
)
LENIENT = CODE.replace('value["amount"]', 'value.get("amount", 0)')


@pytest.fixture
def rehearsed(project: Project) -> Project:
    """An application of one instance that has counted 200 records, and whose snapshot was taken then."""
    begin(project)
    return project


def test_a_build_is_compared_with_the_one_that_runs(rehearsed: Project) -> None:
    application = rehearsed.application.id
    same = penstock("rehearse", application)
    assert "300 records since snapshot" in same and "the new build passes" in same
    assert f"store counts: {KEYS} rows, equal" in same and f"topic {application}-out:" in same

    write(rehearsed, DOUBLED)
    changed = penstock("rehearse", application, status=1)
    assert "store sums: 3 rows; 1 keys differ" in changed and "store sums differs at 1 keys; 0 are allowed" in changed
    before = sum(n for n in range(500) if n % 3 == 1)
    after = before + sum(n for n in range(200, 500) if n % 3 == 1)
    assert f"  b: {before} at " in changed and f"-> {after} at " in changed
    assert "store counts: 20 rows, equal" in changed
    assert "the new build passes" in penstock("rehearse", application, "--allow", "sums=1")
    found = json.loads(
        penstock("rehearse", application, "--records", "50", "--allow", "sums=any", "--json").split("\n{", 1)[-1].join(("{", ""))
    )
    assert found["records"] == 100 and found["failures"] == []

    write(rehearsed, OTHER_TYPE)
    refused = penstock("rehearse", application, status=1)
    assert "does not fit the state" in refused and "store sums" in refused
    left = [path.name for path in (rehearsed.operations.paths.home / "rehearsals").iterdir()]
    assert left == [f"{application}.json"], "the last result alone"
    assert rehearsed.operations.launcher.running(f"{application}-1") is not None


def test_a_deploy_that_demands_a_rehearsal_stops_nothing_until_it_passes(rehearsed: Project) -> None:
    application, path = rehearsed.application.id, rehearsed.operations.paths.streams_toml
    declared = f'{path.read_text()}\n[applications.{application}.deploy]\nrehearse = "1s"\n'
    path.write_text(f'{declared}allow = ["sms=any"]\n')
    process = rehearsed.operations.launcher.running(f"{application}-1")
    write(rehearsed, DOUBLED)
    refused = penstock("deploy", application, status=1)
    assert "nothing was stopped" in refused and "store sums differs at 1 keys; 0 are allowed" in refused
    assert f"[applications.{application}.deploy] allow names sms, which is neither a store nor an output topic" in refused
    path.write_text(declared)
    assert rehearsed.operations.launcher.running(f"{application}-1") == process

    paths = rehearsed.operations.paths
    operations = Operations(paths, Applications.read(path), rehearsed.control_plane)
    job = definitions(operations.applications).resolve_job_def("rehearse_application")
    config: dict[str, object] = {"application": application}
    with dg.DagsterInstance.ephemeral() as instance:
        failed = job.execute_in_process(run_config={"ops": {"rehearse": {"config": config}}}, instance=instance, raise_on_error=False)
        assert not failed.success
        assert checked(instance, application) == (False, 1)
        passing = {"ops": {"rehearse": {"config": {**config, "allow": ["sums=1"]}}}}
        assert job.execute_in_process(run_config=passing, instance=instance).success
        assert checked(instance, application) == (True, 1)

    path.write_text(f'{declared}allow = ["sums=any"]\n')
    assert "runs the new code" in penstock("deploy", application)
    assert rehearsed.operations.launcher.running(f"{application}-1") != process


def test_a_repair_is_tried_on_the_record_that_paused_the_task(rehearsed: Project) -> None:
    application, broker = rehearsed.application.id, rehearsed.broker
    assert "is not paused (paused: none is)" in penstock("rehearse", application, "--paused", "0_0", status=1)
    broker.produce(f"{application}-in", [(b"k0", b'{"group": "b"}'), (b"k0", b'{"group": "b", "amount": 7}')])
    wait_until(lambda: bool(paused(rehearsed)), 60, "a paused task")
    [task] = paused(rehearsed)
    again = penstock("rehearse", application, "--paused", task, status=1)
    assert "the record is rejected again" in again and "KeyError" in again
    write(rehearsed, LENIENT)
    now = penstock("rehearse", application, "--paused", task)
    assert "the record is processed" in now
    assert "store sums: 1 keys change" in now
    assert paused(rehearsed) == [task], "nothing was touched"


def paused(project: Project) -> list[str]:
    picture = Observer(project.application.id, project.broker.connection).observe()
    return [task for task, _, report in picture.reports() if report.state is TaskState.PAUSED]


def test_the_state_of_a_snapshot_is_computed_again_from_an_earlier_one(rehearsed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that was changed behind the stream's back is found key by key; an alert is open until an audit finds nothing. The addresses
    of the brokers are in a variable."""
    application, operations = rehearsed.application.id, rehearsed.operations
    declared, servers = operations.paths.streams_toml.read_text(), rehearsed.broker.bootstrap_servers
    assert servers in declared
    operations.paths.streams_toml.write_text(declared.replace(servers, "${AUDITED}"))
    monkeypatch.setenv("AUDITED", servers)
    assert "the state is what its input gives" in penstock("audit-state", application, "--from", "start")
    wait_until(lambda: counted(rehearsed) == 500, 60, "500 records")
    assert "is complete" in penstock("snapshot", "take", application)
    same = penstock("audit-state", application)
    assert "300 records from snapshot" in same and "store counts: 20 rows, equal" in same and "store sums: 3 rows, equal" in same

    newest = find(operations.paths.snapshots(application))
    place = newest.task_place("1_0").local or newest.task_place("1_1").local
    assert place is not None
    [sums] = [folder for folder in place.iterdir() if folder.is_dir()]
    damage(sums, b"b")
    found = penstock("audit-state", application, status=1)
    assert "store sums: 3 rows; 1 keys differ" in found and "store counts: 20 rows, equal" in found
    with operations.control_plane.reading() as session:
        [alert] = alerts.unresolved(session, application=application, kinds=["STATE_DIFFERS"])
    assert alert.subject == "sums" and "1 keys differ" in alert.title
    table = operations.paths.home / "audits" / application / f"{newest.id}.csv"
    assert table.read_text().splitlines()[0] == "store,key,stream,computed_again" and "sums,b,1 at" in table.read_text()

    job = definitions(operations.applications).resolve_job_def("audit_state")
    config = {"ops": {"audit": {"config": {"application": application, "first": "start", "last": rehearsed_first(newest, operations)}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(run_config=config, instance=instance).success
    with operations.control_plane.reading() as session:
        assert not alerts.unresolved(session, application=application, kinds=["STATE_DIFFERS"])


def test_an_audit_does_not_take_a_reset_or_a_seed_for_lost_records(rehearsed: Project) -> None:
    """Both begin anew, and no record between two snapshots says so. The first audit is that of the second snapshot since."""
    application = rehearsed.application.id
    wait_until(lambda: counted(rehearsed) == 500, 60, "500 records")
    take_at_rest(rehearsed)
    newest = find(rehearsed.operations.paths.snapshots(application))
    assert "the state is what its input gives" in penstock("audit-state", application)

    penstock("stop", application)
    penstock("reset", application, "--to", "latest", "--yes")
    penstock("start", application)
    penstock("snapshot", "take", application)
    of_reset = penstock("audit-state", application, status=1)
    assert "was reset at 20" in of_reset and f"after snapshot {newest.id}: the state of snapshot" in of_reset
    assert "(--to latest), and did not begin with the first records" in penstock("audit-state", application, "--from", "start", status=1)

    penstock("stop", application)
    penstock("reset", application, "--yes")
    penstock("start", application, "--seed", str(newest.place))
    penstock("snapshot", "take", application)
    of_seed = penstock("audit-state", application, "--from", "start", status=1)
    assert f"began with the state of seed {newest.id}, and not with none" in of_seed and "penstock snapshot take" in of_seed
    marks = f"{application}-seed"
    rehearsed.broker.admin.delete_consumer_groups([marks])[marks].result(30)  # as when its offsets have expired
    assert penstock("audit-state", application, "--from", "start", status=1) == of_seed
    with rehearsed.operations.control_plane.reading() as session:
        assert not alerts.unresolved(session, application=application, kinds=["STATE_DIFFERS"])
    same = penstock("rehearse", application)
    assert "no record came after snapshot" in same and "--since begins with an older snapshot" in same
