"""Spark work in a child process of a run: on a real cluster of a master and two workers, and on a Spark Connect server.

If a run is terminated or killed, all its processes must be gone in seconds: the child, its JVM, the executors and their
Python processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import dagster as dg
import msgspec
import psutil
import pytest

from penstock import serdes
from penstock.assets.spark.history.run import HistoryResult
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.model.record import ValueAndTimestamp
from penstock.runtime.snapshots.catalogue import find
from penstock.runtime.snapshots.local import write_snapshot
from penstock.runtime.snapshots.manifest import SNAPSHOT, ApplicationManifest, TaskManifest, encoded, read_manifest
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import StoreContext
from tests.dagster.rehearsed import begin, counted, damage, take_at_rest
from tests.dagster.spark_cluster import BARE_PYTHON, ConnectServer, SparkCluster
from tests.dagster.spark_jobs import Work, run
from tests.dagster.telling import Project
from tests.dagster.test_commands import penstock
from tests.dagster.test_spark_history import outputs_of, stores_of, write_table
from tests.support import ROOT, Kafka, wait_until
from tests.support.history import FAMILIES, WAITS_IN, Sent, by_driver, records
from tests.support.quick_spark import QUICK_JAVA

pytestmark = pytest.mark.spark

ON_CLUSTER = f"""
[spark]
master = "{{master}}"
driver-memory = "600m"
executor-memory = "512m"
driver-host = "127.0.0.1"
python = "{{python}}"
packages = ["tests"]

[spark.conf] # the work begins when both workers have given their core
"spark.cores.max" = 2
"spark.sql.shuffle.partitions" = 2
"spark.scheduler.minRegisteredResourcesRatio" = 1
"spark.scheduler.maxRegisteredResourcesWaitingTime" = "120s"
"spark.executor.extraJavaOptions" = "{QUICK_JAVA}"
"""
END_SECONDS = 20.0
"""Timeout for all processes to be gone. On an idle machine they need two or three seconds."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    cluster = SparkCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.begin()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def streams_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "streams.toml"
    monkeypatch.setenv("PENSTOCK_STREAMS", str(path))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def snapshot(folder: Path) -> str:
    """Return a snapshot of a store with two tasks and 1,000 numbers each."""
    clock, root = SystemClock(), folder / "snapshots"
    parts: list[TaskManifest] = []
    for number in range(2):
        task, partition = TaskId(0, number), TopicPartition("board-carriers-changelog", number)
        supplier = Stores.persistent_timestamped_key_value_store("carriers")
        store = Stores.timestamped_key_value_store_builder(supplier, serdes.STRING, serdes.LONG).build()
        directory = folder / str(task)
        store.open(directory, StoreContext("board", directory, task, partition))
        for row in range(1000):
            store.put(f"{number}-{row}", ValueAndTimestamp(row, clock.wall_ms()))
        store.commit({partition: NextOffset(1000)})
        part = write_snapshot(
            root,
            "s1",
            application="board",
            task=task,
            stores={store: partition},
            input_offsets={},
            stream_time=clock.wall_ms(),
            at_ms=clock.wall_ms(),
        )
        store.close()
        parts.append(read_manifest(part))
    (root / "s1" / SNAPSHOT).write_bytes(encoded(ApplicationManifest.of(parts, {part.task: part.task for part in parts})))
    return str(root / "s1")


def lines(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """Return the run's log, without Dagster's own events."""
    return [entry.user_message for entry in instance.all_logs(run_id) if entry.dagster_event is None]


def three_records(broker: Kafka) -> str:
    """Return a topic of two partitions with three records, in the notation of `Work`."""
    topic = broker.create_topic("numbers", 2)
    broker.produce(topic, [("a", b"1"), ("b", b"2")], partition=0)
    broker.produce(topic, [("c", b"3")], partition=1)
    return f"{broker.bootstrap_servers} {topic}"


@pytest.mark.nightly
def test_a_cluster_does_the_work_and_continues_when_a_worker_is_killed(
    cluster: SparkCluster, streams_toml: Path, folder: Path, broker: Kafka
) -> None:
    streams_toml.write_text(ON_CLUSTER.format(master=cluster.master, python=BARE_PYTHON))
    request = Work(str(folder), tasks=6, seconds=1.5, snapshot=snapshot(folder), topic=three_records(broker), delta=True)
    over = threading.Event()

    def kill_a_worker() -> None:
        wait_until(lambda: over.is_set() or len({path.read_text() for path in folder.glob("beat-*")}) == 2, 180, "work on both executors")
        cluster.workers[1].kill()

    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    with dg.DagsterInstance.ephemeral() as instance:
        result, found = run("work", request, instance)
        over.set()
        killer.join()
        assert result.success, result.failure_data_for_node("table")
        log = lines(instance, result.run_id)
    assert cluster.workers[1].poll() is not None
    (done,) = found
    assert (done.rows, done.total, done.tasks) == (2000, 2 * sum(range(1000)), 6)
    assert (done.seeded, done.delta, done.records) == (2000, 2000, 3)
    assert all(".zip/penstock/runtime/" in path for path in done.code), done.code
    assert f"starting Spark at {cluster.master}" in log
    assert any(line.startswith("beating: ") and " of 6 tasks done" in line for line in log), log
    cluster.replace(1)


@pytest.mark.nightly
def test_a_foreign_key_join_over_history_is_that_of_the_stream_although_the_worker_that_ran_it_was_killed(
    cluster: SparkCluster, streams_toml: Path, folder: Path, tmp_path: Path
) -> None:
    """Its tasks take turns in one task of Spark, which another worker begins again. What the first attempt has written does not count, and
    its working files are removed."""
    (working := tmp_path / "working").mkdir()
    streams_toml.write_text(
        f'{ON_CLUSTER.format(master=cluster.master, python=BARE_PYTHON)}"spark.executorEnv.{WAITS_IN}" = "{folder}"\n'
        f'"spark.executorEnv.TMPDIR" = "{working}"\n'
    )
    [family] = [each for each in FAMILIES if str(each) == "foreign_keys"]
    random = Random(4)
    sent = {topic: records(random, 200, null_keys=False) for topic in family.topics}
    for topic, of_topic in sent.items():
        write_table(folder / topic, {0: of_topic})
    killed: list[int] = []
    left: list[Path] = []

    def kill_its_worker() -> None:
        try:
            wait_until((folder / "waits").exists, 180, "the join in the middle of its records")
            above = {each.pid for each in psutil.Process(int((folder / "waits").read_text())).parents()}
            [number] = [number for number, worker in enumerate(cluster.workers) if worker.pid in above]
            at_work = psutil.Process(cluster.workers[number].pid).children(recursive=True)
            cluster.workers[number].kill()
            killed.append(number)
            psutil.wait_procs([each for each in at_work if "java" in each.name()], 60)
            for each in at_work:  # the system may kill any of them, and it removes nothing then
                if each.is_running():
                    each.kill()
            left.extend(working.glob("penstock-history-*"))
        finally:
            (folder / "goes-on").touch()

    killer = threading.Thread(target=kill_its_worker)
    killer.start()
    with dg.DagsterInstance.ephemeral() as instance:
        result, _ = run("history", Work(str(folder)), instance)
        killer.join()
        assert result.success, reported(result)
    [number] = killed
    made = msgspec.json.decode((folder / "history.json").read_bytes(), type=HistoryResult)
    expected = by_driver(family, sent, tmp_path / "driver")
    found: dict[str, list[Sent]] = {}
    for task in find(made.seed).tasks:
        found |= outputs_of(made, task)
    assert found == expected.outputs
    assert stores_of(made, 0) == expected.stores
    assert left and not list(working.glob("penstock-history-*"))
    cluster.replace(number)


@pytest.mark.nightly
def test_an_audit_on_a_cluster_finds_what_one_on_this_machine_finds(cluster: SparkCluster, project: Project, tmp_path: Path) -> None:
    """The executors get the code of the build, read the topics, and fetch the snapshot from the folder of the seeds. Nothing is left
    there."""
    begin(project)
    application, paths = project.application.id, project.operations.paths
    declared = paths.streams_toml.read_text() + ON_CLUSTER.format(master=cluster.master, python=BARE_PYTHON)
    declared += f'"spark.executorEnv.PENSTOCK_TEST_APPLICATION" = "{application}"\n'
    paths.streams_toml.write_text(declared)
    wait_until(lambda: counted(project) == 500, 60, "500 records")
    take_at_rest(project)
    newest = find(paths.snapshots(application))
    refused = penstock("audit-state", application, "--engine", "spark", status=1)
    assert f"need a folder that all of them reach: [applications.{application}.backfill] seed" in refused
    seeds = tmp_path / "seeds"
    paths.streams_toml.write_text(f'{declared}\n[applications.{application}.backfill]\nseed = "{seeds}"\n')
    place = newest.task_place("1_0").local or newest.task_place("1_1").local
    assert place is not None
    [sums] = [folder for folder in place.iterdir() if folder.is_dir()]
    damage(sums, b"b")
    table = paths.home / "audits" / application / f"{newest.id}.csv"
    found = penstock("audit-state", application, "--engine", "spark", status=1)
    assert f"computed on Spark at {cluster.master}, as asked for" in found and "store sums: 3 rows; 1 keys differ" in found
    on_cluster = table.read_text()
    penstock("audit-state", application, "--engine", "local", status=1)
    assert table.read_text() == on_cluster, "the same keys with the same values"
    assert not list(seeds.glob(".rehearsals/*"))


@pytest.mark.nightly
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=["terminated", "killed"])
def test_nothing_is_left_of_a_run_that_ends_before_its_work(
    cluster: SparkCluster, streams_toml: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    streams_toml.write_text(ON_CLUSTER.format(master=cluster.master, python=BARE_PYTHON))
    home = tmp_path / "dagster"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    request = msgspec.json.encode(Work(str(folder), tasks=2, seconds=600)).decode()
    command = [sys.executable, "-c", "from tests.dagster.spark_jobs import main; main()", "work", request]
    with (tmp_path / "run.log").open("wb") as log:
        dagster_run = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: len(list(folder.glob("beat-*"))) == 2 or dagster_run.poll() is not None, 180, "work on both executors")
        assert dagster_run.poll() is None, (tmp_path / "run.log").read_text()[-3000:]
        (child,) = [each for each in psutil.Process(dagster_run.pid).children() if "penstock.assets.spark.process.run" in each.cmdline()]
        at_work = [child, *child.children(recursive=True)]
        at_work += [psutil.Process(int(path.read_text())) for path in folder.glob("beat-*")]
        at_work += cluster.executors()
        assert len(at_work) >= 6, at_work  # the child, its JVM, two executors and a Python process on each
        if end is signal.SIGINT:  # like the UI's button: a flag in the database, and a signal
            with dg.DagsterInstance.get() as instance:
                instance.report_run_canceling(instance.get_runs()[0])
        os.kill(dagster_run.pid, end)
        wait_until(lambda: not any(_lives(process) for process in at_work), END_SECONDS, "the end of all that worked")
        dagster_run.wait(END_SECONDS)
    finally:
        dagster_run.kill()
        dagster_run.wait()
    assert not (folder / "table").exists()
    wait_until(lambda: cluster.state("activeapps", "RUNNING") == 0, END_SECONDS, "the end of the application")
    if end is signal.SIGINT:
        with dg.DagsterInstance.get() as instance:
            (record,) = instance.get_run_records()
            assert record.dagster_run.status is dg.DagsterRunStatus.CANCELED
            assert "the run is being terminated: Spark's work is cancelled" in lines(instance, record.dagster_run.run_id)


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.nightly
def test_a_server_of_spark_connect_does_the_same(streams_toml: Path, folder: Path, tmp_path: Path, broker: Kafka) -> None:
    server = ConnectServer(tmp_path / "server")
    streams_toml.write_text(f'[spark]\nconnect = "{server.url}"\npackages = ["tests"]\n')
    try:
        server.begin()
        with dg.DagsterInstance.ephemeral() as instance:
            request = Work(str(folder), tasks=4, seconds=3, snapshot=snapshot(folder), topic=three_records(broker))
            result, found = run("work", request, instance)
            assert result.success, result.failure_data_for_node("table")
            log = lines(instance, result.run_id)
            refused, _ = run("work", Work(str(folder), delta=True), instance)
            failed, _ = run("fail", Work(str(folder)), instance)
    finally:
        server.stop()
    (done,) = found
    assert (done.rows, done.total, done.tasks) == (2000, 2 * sum(range(1000)), 4)
    assert (done.seeded, done.records) == (2000, 3)
    assert not any(str(ROOT) in path for path in done.code), done.code
    assert any(line.startswith("beating: ") for line in log), log
    assert "knows no Delta tables" in reported(refused)
    assert reported(failed) == "PythonException: ValueError: b'\\x01' is not a number of 8 bytes"


def reported(result: dg.ExecuteInProcessResult) -> str:
    """Return the UI's text for a failed step."""
    failure = result.failure_data_for_node("table")
    assert failure is not None and failure.user_failure_data is not None
    return str(failure.user_failure_data.description)
