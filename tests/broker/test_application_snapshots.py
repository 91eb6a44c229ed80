"""Snapshots of an application whose instances are processes: complete or absent, and equal to the changelogs at their offsets."""

from __future__ import annotations

import os
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.orchestration.cli import app
from penstock.orchestration.dagster.jobs import take_snapshot_job
from penstock.orchestration.dagster.resources import PenstockResource
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Application as Declared
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.kafka.task_commands import RefusedError, TaskCommands
from penstock.orchestration.snapshots.exports import export_snapshot
from penstock.orchestration.snapshots.taking import delete_snapshots, local_root, take_snapshot
from penstock.runtime.model.errors import StateDirectoryError, StreamsError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.snapshots.catalogue import Snapshot, find, find_all
from penstock.runtime.snapshots.manifest import GLOBAL, TaskManifest
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.reading import check, store_files
from penstock.runtime.stores.rocks_files import read_files
from tests.support import Kafka, unique, wait_until
from tests.support.instances import Application

PARTITIONS = 3
TASKS = [GLOBAL, *(f"{part}_{partition}" for part in (1, 2) for partition in range(PARTITIONS))]
DECLARED = """
[applications.{id}]
factory = "tests.broker.snapshot_app:build"
instances = ["one", "two"]
[applications.{id}.config]
"bootstrap.servers" = "{servers}"
[applications.{id}.snapshots]
keep = 2
export-keep = 1
"""


class Fleet:
    """Two instances, one of them with two workers, and a control plane that only has their declaration."""

    def __init__(self, broker: Kafka, folder: Path) -> None:
        self.broker = broker
        self.names = broker.create_topic("names", 2, {"cleanup.policy": "compact"})
        self.source = broker.create_topic("in", PARTITIONS)
        os.environ["TEST_NAMES"] = self.names
        self.application = Application(
            broker,
            unique("snapped"),
            self.source,
            "",
            folder,
            {"commit.interval.ms": 200, "session.timeout.ms": 6000},
            "tests.broker.snapshot_app:build",
        )
        toml = folder / "streams.toml"
        toml.write_text(DECLARED.format(id=self.application.id, servers=broker.bootstrap_servers))
        declared = Applications.read(toml)
        paths = ProjectPaths(folder, folder / "home", toml, f"sqlite:///{folder}/control-plane.db")
        self.operations = Operations(paths, declared, ControlPlane(paths.database_url))
        self.declared = declared.applications[0]

    def take(self, snapshot_id: str | None = None, timeout_s: float = 60) -> Snapshot:
        return take_snapshot(self.operations, self.declared, actor="test", snapshot_id=snapshot_id, timeout_s=timeout_s)

    def share(self, instance: str) -> Path:
        return self.application.folder / instance / self.application.id / "snapshots"

    def ids(self) -> list[str]:
        return [each.id for each in find_all(local_root(self.operations, self.declared), lambda error: pytest.fail(str(error)))]

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Produce records continuously during the block."""
        ended = threading.Event()

        def feed() -> None:
            number = 0
            while not ended.wait(0.02):
                number += 20
                self.broker.produce(self.source, [(f"k{each % 50}", f"v{each % 7}") for each in range(number, number + 20)])

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.fixture(scope="module")
def fleet(broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(broker, tmp_path_factory.mktemp("fleet"))
    broker.produce(fleet.names, [(f"k{number}", f"name {number}") for number in range(40)])
    broker.produce(fleet.source, [(f"k{number % 50}", f"v{number % 7}") for number in range(200)])
    application = fleet.application
    application.start("one", **{"num.stream.threads": 2})
    application.start("two")
    wait_until(lambda: sorted(len(tasks) for tasks in application.reports().values()) == [2, 4], 90, "the assignment")
    yield fleet
    application.kill_all()
    fleet.operations.control_plane.close()


def entries(snapshot: Snapshot, part: TaskManifest, name: str) -> dict[bytes, bytes]:
    [store] = [each for each in part.stores if each.name == name]
    with store_files(snapshot.task_place(part.task), part, store) as folder:
        return {key: value for _, batch in read_files(folder) for key, value in batch}


def on_changelog(broker: Kafka, part: TaskManifest, name: str) -> dict[bytes, bytes]:
    """Return the expected content of a timestamped store by its changelog, up to the snapshot's offset."""
    [changelog] = [each.changelog for each in part.stores if each.name == name]
    assert changelog is not None
    found: dict[bytes, bytes] = {}
    for record in broker.consume(changelog.topic):
        if record.partition == changelog.partition and record.offset < changelog.next_offset and record.value is not None:
            found[record.key or b""] = struct.pack(">q", record.timestamp) + record.value
    return found


def test_a_snapshot_is_complete_and_equal_to_the_changelogs_at_its_offsets_while_records_flow(fleet: Fleet) -> None:
    with fleet.flowing():
        wait_until(lambda: sum(fleet.broker.committed_offsets(fleet.application.id, fleet.source).values()) > 500, what="some records")
        first, second = fleet.take(), fleet.take()
        assert first.id < second.id and first.tasks == TASKS
    assert find(local_root(fleet.operations, fleet.declared)).id == second.id
    for snapshot in (first, second):
        parts = {task: snapshot.task(task) for task in snapshot.tasks}
        assert snapshot.manifest.left_out == ["own"] and snapshot.manifest.stores == ["by-value", "counts", "memory", "names", "windows"]
        for part in parts.values():
            check(snapshot.task_place(part.task), part.files)
            for store in part.stores:
                if not store.is_global:
                    assert entries(snapshot, part, store.name) == on_changelog(fleet.broker, part, store.name)
        names = parts[GLOBAL]
        assert len(entries(snapshot, names, "names")) == 40 and sum(at.next_offset for at in names.input_offsets) == 40
        assert [(store.is_global, store.topic, store.changelog) for store in names.stores] == [(True, fleet.names, None)]
        for partition in range(PARTITIONS):
            part = parts[str(TaskId(1, partition))]
            [at] = part.input_offsets
            counted = entries(snapshot, part, "counts")
            assert sum(int.from_bytes(value[8:], "big") for value in counted.values()) == at.next_offset, "data and offsets of one commit"
            assert part.partition_times[0].time_ms == max(int.from_bytes(value[:8], "big") for value in counted.values())
            assert part.stream_time == part.partition_times[0].time_ms
            assert snapshot.manifest.inputs[[each.topic for each in snapshot.manifest.inputs].index(at.topic) + partition] == at
    assert sum(at.next_offset for at in second.manifest.inputs) > sum(at.next_offset for at in first.manifest.inputs)
    assert fleet.take(first.id).manifest == first.manifest, "safe to do twice"


def test_the_newest_ones_stay_with_the_instances_and_deleted_ones_go(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken in each way: by a program, on the command line, by the job in Dagster."""
    monkeypatch.setenv("PENSTOCK_STREAMS", str(fleet.operations.paths.streams_toml))
    monkeypatch.setenv("PENSTOCK_HOME", str(fleet.operations.paths.home))
    taken = [fleet.take().id]
    shown = CliRunner().invoke(app, ["snapshot", "take", fleet.declared.id])
    assert shown.exit_code == 0 and f"is complete: {len(TASKS)} tasks" in shown.output, shown.output
    assert "left out: own (stores of your own kind" in shown.output.replace("\n", " ")
    taken.append(fleet.ids()[-1])
    config = {"ops": {"take": {"config": {"application": fleet.declared.id}}}}
    done = take_snapshot_job.execute_in_process(run_config=config, resources={"penstock": PenstockResource()})
    taken.append(done.output_for_node("take"))
    assert len(set(taken)) == 3 and fleet.ids() == taken[1:]
    for instance in ("one", "two"):
        assert sorted(path.name for path in fleet.share(instance).iterdir()) == taken[1:]
    delete_snapshots(fleet.operations, fleet.declared, [taken[1]], actor="test")
    assert fleet.ids() == taken[2:]
    assert [sorted(path.name for path in fleet.share(instance).iterdir()) for instance in ("one", "two")] == [taken[2:]] * 2
    with pytest.raises(StateDirectoryError, match=f"no snapshot 'nothing' .* complete are {taken[2]}"):
        delete_snapshots(fleet.operations, fleet.declared, ["nothing"], actor="test")


def test_the_instances_export_what_they_have(fleet: Fleet, tmp_path: Path) -> None:
    snapshot = fleet.take()
    uri = f"file://{tmp_path}/copies"
    reported: list[tuple[int, int]] = []

    def export(where: str | None = uri, declared: Declared = fleet.declared) -> Snapshot:
        return export_snapshot(
            fleet.operations, declared, actor="test", uri=where, progress=lambda done, total: reported.append((done, total))
        )

    def there() -> list[str]:
        return [each.id for each in find_all(place_of(f"{uri}/{fleet.application.id}"), lambda error: pytest.fail(str(error)))]

    exported = export()
    total = snapshot.manifest.bytes
    assert str(exported.place) == f"{uri}/{fleet.application.id}/{snapshot.id}" and reported[-1] == (total, total)
    assert exported.manifest.inputs == snapshot.manifest.inputs and exported.manifest.changelogs == snapshot.manifest.changelogs
    for task in exported.tasks:
        part = exported.task(task)
        check(exported.task_place(task), part.files)
        assert all(file.sha256 for file in part.files)
        assert exported.task_place(task).uri == f"{exported.place.uri}/{task}", "the copy stands alone"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.sst")}
    assert export().id == snapshot.id
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.sst")}
    newer = fleet.take()
    assert export().id == newer.id
    assert there() == [snapshot.id, newer.id], "nothing is removed from a place that an operator named"
    assert export(None, replace(fleet.declared, snapshots=replace(fleet.declared.snapshots, export=uri))).id == newer.id
    assert there() == [newer.id], "one is kept at the place that is declared"
    with pytest.raises(RefusedError, match="where to"):
        export(None)
    with pytest.raises(StateDirectoryError, match="Known are file"):
        export("nope://bucket/folder")
    with pytest.raises(StateDirectoryError, match=r"(one|two): .* cannot be written"):
        export("file:///proc/nowhere")


def test_a_task_that_cannot_be_written_makes_it_incomplete_and_killed_instances_leave_nothing_that_is_read(fleet: Fleet) -> None:
    """One instance is suspended: the snapshot is incomplete, and names the missing tasks. Then it is killed in the middle of the next one:
    its tasks move to the other instance, which receives the request for them again."""
    application, before = fleet.application, fleet.ids()
    held = sorted(task for task, _ in application.reports()["two"].items())
    application.freeze("two")
    with pytest.raises(StreamsError) as raised:
        fleet.take("stalled", timeout_s=4.0)
    message = str(raised.value)
    assert "not complete" in message and all(f"{task} (RUNNING on two)" in message for task in held)
    assert fleet.ids() == before
    with pytest.raises(StateDirectoryError, match="no snapshot 'stalled'"):
        find(local_root(fleet.operations, fleet.declared), "stalled")
    with pytest.raises(StateDirectoryError, match=r"holds parts of a snapshot .* but no snapshot.json"):
        find(fleet.share("one") / "stalled")
    taken: list[Snapshot] = []
    parts = set(fleet.share("one").iterdir())
    taking = threading.Thread(target=lambda: taken.append(fleet.take()))
    taking.start()
    wait_until(lambda: set(fleet.share("one").iterdir()) - parts, what="the first part of the snapshot")
    application.kill("two")
    taking.join(90)
    [snapshot] = taken
    assert snapshot.tasks == TASKS and set(snapshot.manifest.instances.values()) == {"one"}
    found: dict[str, int] = defaultdict(int)
    for task in snapshot.tasks:
        part = snapshot.task(task)
        for store in part.stores:
            found[store.name] += len(entries(snapshot, part, store.name))
            if not store.is_global:
                assert entries(snapshot, part, store.name) == on_changelog(fleet.broker, part, store.name)
    assert found["counts"] == found["memory"] == 50 and found["by-value"] == 7


def test_without_instances_there_is_nothing_to_take_and_what_is_on_this_machine_can_still_be_exported(fleet: Fleet, tmp_path: Path) -> None:
    snapshot = fleet.take()
    for name in list(fleet.application.processes):
        fleet.application.stop(name)
    with TaskCommands(fleet.declared, "test") as commands:
        wait_until(lambda: not commands.owner_lives(), 30, "the end of the members")
    with pytest.raises(RefusedError, match=r"no instance of .* runs.*penstock start one"):
        fleet.take()
    exported = export_snapshot(fleet.operations, fleet.declared, actor="test", uri=str(tmp_path / "copies"))
    assert exported.id == snapshot.id
    for task in exported.tasks:
        check(exported.task_place(task), exported.task(task).files)
