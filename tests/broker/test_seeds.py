"""A seed of the first half plus the stream of the second half equals the stream of the whole, for every kind of store, with
interruptions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import serdes
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Application, Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.snapshots.taking import take_snapshot as take_application_snapshot
from penstock.runtime.changelog.listeners import SuspendReason
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import BrokerUnavailableError, SeedRefusedError, StateDirectoryError, TaskCorruptedError
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.model.states import State
from penstock.runtime.seeds.install import install_seed
from penstock.runtime.seeds.journal import journal_group
from penstock.runtime.snapshots.manifest import read_manifest
from penstock.runtime.stores import Stores
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.topology.topology import Topology
from tests.support import ROOT, Kafka, unique, wait_until
from tests.support.engine import events, reaches, worker_of
from tests.support.logs import cut, transaction
from tests.support.seeds import MINUTE_MS, STORES, Tally, config_of, entries, make_seed, seed_of_counts, take_snapshot, topology_of

KEYS = [f"k{number}" for number in range(40)]
TASKS = [f"{part}_{partition}" for part in (0, 1) for partition in (0, 1)]


class World:
    """Two topics, and applications that read them."""

    def __init__(self, broker: Kafka, folder: Path) -> None:
        self.broker = broker
        self.source = broker.create_topic("source", 2)
        self.table = broker.create_topic("table", 2, {"cleanup.policy": "compact"})
        self.topology: Topology = topology_of(self.source, self.table)
        self.folder = folder
        self.now_ms = int(time.time() * 1000) - 30 * MINUTE_MS

    def write(self, half: int) -> None:
        """Write a quarter of an hour of records, in which keys return, pause and are deleted."""
        for topic in (self.source, self.table):
            rows = [
                (key, None if topic == self.table and (step + number) % 7 == 3 else f"{half}-{step}")
                for step in range(5)
                for number, key in enumerate(KEYS)
                if (number + step + half) % 3
            ]
            times = (self.now_ms + half * 15 * MINUTE_MS + index * 2_000 for index in range(len(rows)))
            self.broker.produce(topic, rows, timestamps=times)

    def config(self, application_id: str, disk: str = "state", settings: Mapping[str, object] | None = None) -> StreamsConfig:
        return config_of(application_id, self.broker.bootstrap_servers, self.folder / disk, settings or {})

    @property
    def ends(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(topic, number): end
            for topic in (self.source, self.table)
            for number, end in self.broker.end_offsets(topic).items()
        }

    def has_processed_all(self, config: StreamsConfig) -> bool:
        """Whether the application has committed all existing input."""
        done = {
            TopicPartition(topic, number): offset
            for topic in (self.source, self.table)
            for number, offset in self.broker.committed_offsets(config.application_id, topic).items()
        }
        return done == self.ends

    def runs_to_the_end(self, config: StreamsConfig) -> None:
        """Run an application until it has committed all existing input, and close it."""
        with KafkaStreams(self.topology, config) as streams:
            streams.start()
            reaches(streams, State.RUNNING)
            wait_until(lambda: self.has_processed_all(config), 60, "the end of the input")
            streams.close()

    def state(self, config: StreamsConfig) -> dict[tuple[str, str], dict[str, dict[bytes, bytes]]]:
        """Return all entries of a closed application, by task and store."""
        folder = config.state_dir / config.application_id
        found = {
            (task, store): entries(folder / task / "rocksdb" / store)
            for task in TASKS
            for store in STORES
            if (folder / task / "rocksdb" / store).exists()
        }
        assert len(found) == 8
        return found


@pytest.fixture
def world(broker: Kafka, tmp_path: Path) -> World:
    return World(broker, tmp_path)


@dataclass(frozen=True)
class Half:
    """A world with its first half written, an application that has processed it, and a seed with its entries. No more records are
    written."""

    world: World
    whole: StreamsConfig
    seed: Path

    @property
    def seeded(self) -> StreamsConfig:
        """Configuration of an application that has not run."""
        application_id = unique("seeded")
        return self.world.config(application_id, application_id)


@pytest.fixture(scope="module")
def half(broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Half:
    return first_half(World(broker, tmp_path_factory.mktemp("half")))


def first_half(world: World) -> Half:
    world.write(0)
    former = world.config(unique("former"), "former")
    world.runs_to_the_end(former)
    return Half(world, former, make_seed(world.folder / "seeds", "s1", world.topology, former, world.ends))


def install(world: World, config: StreamsConfig, seed: Path, reset: bool = False, of: Topology | None = None) -> str:
    return str(install_seed((of or world.topology).resolved(config), config, str(seed), reset=reset))


def test_rule_30_a_seed_and_the_rest_of_the_stream_are_the_stream_of_the_whole(world: World) -> None:
    half = first_half(world)
    whole, seed, seeded = half.whole, half.seed, half.seeded
    assert "is installed: 4 tasks" in install(world, seeded, seed)
    assert "installed before" in install(world, seeded, seed)
    assert world.state(seeded) == world.state(whole), "files are in place before anything runs"
    world.write(1)
    world.runs_to_the_end(whole)
    world.runs_to_the_end(seeded)
    assert world.state(seeded) == world.state(whole)
    with pytest.raises(SeedRefusedError, match="has committed offsets"):
        install(world, seeded, make_seed(world.folder / "seeds", "s2", world.topology, whole, world.ends))
    # A disk is lost: all its content is on the changelogs.
    shutil.rmtree(seeded.state_dir)
    world.runs_to_the_end(seeded)
    assert world.state(seeded) == world.state(whole)
    with KafkaStreams(world.topology, seeded) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        tallies = dict(streams.store("tallies").all())
        assert sum(tally.count for tally in tallies.values() if isinstance(tally, Tally)) == sum(
            world.broker.end_offsets(world.source).values()
        )


def test_rule_30_an_installation_that_is_killed_continues_where_it_was(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at its beginning, in the middle of a store, and when only the offsets are missing: the next attempt writes the rest. A start
    in between is refused, also if its question is not answered at first."""
    world, whole, seed, seeded = half.world, half.whole, half.seed, half.seeded
    kill_installation(world, seeded, seed, after=1)
    assert not any(committed_records(world, seeded).values())
    kill_installation(world, seeded, seed, after=4)
    part = sum(committed_records(world, seeded).values())
    unanswered, ask = [1], TopicAdmin.last_committed

    def answered_late(admin: TopicAdmin, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        if group == journal_group(seeded.application_id) and unanswered:
            unanswered.pop()
            raise BrokerUnavailableError("the coordinator hangs")
        return ask(admin, group, partitions)

    monkeypatch.setattr(TopicAdmin, "last_committed", answered_late)
    with KafkaStreams(world.topology, seeded) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, 40, "the refusal")
        assert isinstance(streams.failure, SeedRefusedError)
        assert "seed s1 was being installed" in str(streams.failure)
    with pytest.raises(SeedRefusedError, match="are not empty: what they hold is not of this seed"):
        install(world, seeded, make_seed(world.folder / "seeds", unique("other"), world.topology, whole, world.ends))
    kill_installation(world, seeded, seed, after=None)
    rows = {place: sum(map(len, families.values())) for place, families in world.state(seeded).items()}
    assert committed_records(world, seeded) == rows, "every entry is on its changelog once"
    assert 0 < part < sum(rows.values())
    assert "4 tasks, 0 changelog records written" in install(world, seeded, seed)
    assert committed_records(world, seeded) == rows
    assert world.state(seeded) == world.state(whole)
    assert world.broker.committed_offsets(seeded.application_id, world.source) == world.broker.end_offsets(world.source)
    assert "installed before" in install(world, seeded, seed)


def committed_records(world: World, config: StreamsConfig) -> dict[tuple[str, str], int]:
    """Return the number of committed records on the changelogs, by task and store."""
    found = {(task, store): 0 for task in TASKS for store in STORES if (store == "versions") is (task[0] == "1")}
    for store in STORES:
        for record in world.broker.consume(f"{config.application_id}-{store}-changelog"):
            found[f"{int(store == 'versions')}_{record.partition}", store] += 1
    return found


def kill_installation(world: World, config: StreamsConfig, seed: Path, after: int | None) -> None:
    """Run an installation that waits before each of its commits; kill it after some commits, or before the last one."""
    arguments = [world.source, world.table, config.application_id, world.broker.bootstrap_servers, str(config.state_dir), str(seed)]
    command = [sys.executable, "-m", "tests.broker.seeding", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            while (reported := process.stdout.readline()) == "commit\n" and after != 0:
                after = None if after is None else after - 1
                process.stdin.write("\n")
                process.stdin.flush()
            assert reported == ("offsets\n" if after is None else "commit\n")
        finally:
            process.kill()


class Counter:
    """A `StateRestoreListener` that counts, by changelog partition."""

    def __init__(self) -> None:
        self.started: dict[TopicPartition, tuple[int, int]] = {}
        self.restored: dict[TopicPartition, int] = {}
        self.ended: set[TopicPartition] = set()

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
        self.started[partition] = start, end

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end: int, records: int) -> None:
        self.restored[partition] = self.restored.get(partition, 0) + records

    def on_restore_end(self, partition: TopicPartition, store: str, total: int) -> None:
        self.ended.add(partition)

    def on_restore_suspended(self, partition: TopicPartition, store: str, total: int) -> None: ...


class Follower:
    """A `StandbyUpdateListener` that keeps the start offsets of copies."""

    def __init__(self) -> None:
        self.started: dict[TopicPartition, int] = {}

    def on_update_start(self, partition: TopicPartition, store: str, start: int) -> None:
        self.started[partition] = start

    def on_batch_loaded(self, partition: TopicPartition, store: str, task: TaskId, batch_end: int, records: int, end: int) -> None: ...

    def on_update_suspended(self, partition: TopicPartition, store: str, offset: int, end: int, reason: SuspendReason) -> None: ...


def restores(world: World, config: StreamsConfig) -> Counter:
    """Start an application, which restores its stores, and close it."""
    counter = Counter()
    with KafkaStreams(world.topology, config) as streams:
        streams.set_global_state_restore_listener(counter)
        streams.start()
        reaches(streams, State.RUNNING)
        streams.close()
    return counter


def test_a_lost_disk_begins_with_the_newest_snapshot_and_reads_the_rest(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write(0)
    app = world.config(unique("app"))
    world.runs_to_the_end(app)
    snapshots = world.folder / "snapshots" / app.application_id
    taken_ms = int(time.time() * 1000)
    snapshot = take_snapshot(snapshots, "s1", world.topology, app, world.ends, taken_ms)
    world.write(1)
    world.runs_to_the_end(app)
    state = world.state(app)
    logs = {
        TopicPartition(f"{app.application_id}-{store}-changelog", number): (store, f"{int(store == 'versions')}_{number}")
        for store in STORES
        for number in (0, 1)
    }
    at = {
        TopicPartition(found.changelog.topic, found.changelog.partition): found.changelog.next_offset
        for task in TASKS
        for found in read_manifest(snapshot / task).stores
        if found.changelog is not None
    }
    tail = {
        log: len([record for record in world.broker.consume(log.topic) if record.partition == log.partition and record.offset >= at[log]])
        for log in logs
    }
    assert all(tail.values())
    with_snapshots = world.config(app.application_id, settings={"snapshot.uri": str(snapshots.parent)})

    shutil.rmtree(app.state_dir)
    counter = restores(world, with_snapshots)
    assert {log: start for log, (start, _) in counter.started.items()} == at
    assert counter.restored == tail, "only what came after the snapshot is read"
    assert world.state(app) == state
    assert not {"OFFSET_MOVED"} & {event.kind.value for event in events(world.broker, app.application_id)}

    # Files that turn out to be damaged while the task runs: restored from the snapshot once, and not again if that does not help.
    counter = Counter()
    with KafkaStreams(world.topology, with_snapshots) as streams:
        streams.set_global_state_restore_listener(counter)
        streams.start()
        reaches(streams, State.RUNNING)
        own = {log for log, (_, task) in logs.items() if task == "0_0"}
        for expected in ({log: at[log] for log in own}, dict.fromkeys(own, 0)):
            counter.started.clear()
            counter.ended.clear()
            worker_of(streams).report_damage(TaskCorruptedError([TaskId(0, 0)], "damaged", "tallies"))
            wait_until(lambda: counter.ended == own, 40, "the restore")
            assert {log: start for log, (start, _) in counter.started.items()} == expected
        streams.close()
    assert world.state(app) == state

    # A joining instance, which gets learners and standbys, begins in the same way.
    with KafkaStreams(world.topology, world.config(app.application_id, settings={"num.standby.replicas": 1})) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        follower = Follower()
        second = {"client.id": "two", "num.standby.replicas": 1, "snapshot.uri": str(snapshots)}
        with KafkaStreams(world.topology, world.config(app.application_id, "second", second)) as other:
            other.set_standby_update_listener(follower)
            other.start()
            wait_until(lambda: follower.started == at, 40, "copies of all tasks that begin where the snapshot ends")

    # A damaged snapshot causes a warning; the start succeeds.
    shutil.rmtree(app.state_dir)
    damaged = next((snapshot / "0_0" / "tallies").glob("*.sst"), None) or next((snapshot / "0_0" / "tallies").glob("*.log"))
    damaged.write_bytes(damaged.read_bytes()[:-5])
    (snapshot / "1_1" / "manifest.json").write_text("{")
    counter = restores(world, with_snapshots)
    begun = {log: start for log, (start, _) in counter.started.items()}
    whole = {log for log, (store, task) in logs.items() if task == "1_1" or (store, task) == ("tallies", "0_0")}
    assert begun == {log: 0 if log in whole else offset for log, offset in at.items()}
    assert world.state(app) == state
    assert "store tallies is not restored from a snapshot" in caplog.text
    assert "task 1_1 is not restored from a snapshot" in caplog.text


def test_a_seed_that_does_not_fit_is_refused_and_nothing_is_changed(half: Half, application_id: str) -> None:
    """All mismatches are reported at once; then the state on the brokers is checked."""
    world, seeds = half.world, half.world.folder / "seeds"
    other = topology_of(world.table, world.source)
    with pytest.raises(SeedRefusedError) as refused:
        install(world, half.seeded, half.seed, of=other)
    assert f"there is no offset of {world.table}-0, which task 0_0 reads" in str(refused.value)
    wider = world.broker.create_topic("wider", 3)
    with pytest.raises(SeedRefusedError) as refused:
        install(world, half.seeded, half.seed, of=topology_of(wider, world.table))
    assert "task 0_2 is missing (stores sessions, tallies, windows)" in str(refused.value)
    assert f"there is no offset of {wider}-0" in str(refused.value)
    assert f"its input {world.source} is not read by the topology" in str(refused.value)

    late = make_seed(seeds, unique("late"), world.topology, half.whole, {partition: end + 5 for partition, end in world.ends.items()})
    with pytest.raises(SeedRefusedError, match="the topic was created again since, or is another one"):
        install(world, half.seeded, late)
    damaged = make_seed(seeds, unique("damaged"), world.topology, half.whole, world.ends)
    file = next(file for file in sorted((damaged / "1_1").rglob("*")) if file.suffix in (".sst", ".log") and file.stat().st_size > 5)
    file.write_bytes(file.read_bytes()[:-5])
    spared = half.seeded
    with pytest.raises(StateDirectoryError, match=f"{file} is damaged"):
        install(world, spared, damaged)
    assert "is installed: 4 tasks" in install(world, spared, half.seed), "the damaged one has left no trace"
    assert not (StateDirectory(spared.state_dir, spared.application_id).path / ".seeding").exists()
    seeded = half.seeded
    with KafkaStreams(world.topology, seeded) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        with pytest.raises(SeedRefusedError, match="runs on this machine"):
            install(world, seeded, half.seed)
        elsewhere = world.config(seeded.application_id, "elsewhere")
        with pytest.raises(SeedRefusedError, match=r"runs [(]one[)]: stop every instance first") as refused:
            install(world, elsewhere, half.seed)
        assert "reset" not in str(refused.value), "nothing of an application that runs is to be deleted"
        topics = world.broker.topics()
        with pytest.raises(SeedRefusedError, match=r"runs [(]one[)]: stop every instance first(.|\n)*there is no offset of"):
            install(world, elsewhere, half.seed, of=other)
        absent = topology_of("absent", "absent-too")  # its error says how to go on, and not that the application runs
        with pytest.raises(SeedRefusedError, match=r"runs [(]one[)](.|\n)*source topic absent, absent-too does not exist on [^ ]+$"):
            install(world, elsewhere, half.seed, of=absent)
        assert world.broker.topics() == topics, "nothing is made beside an application that runs"
        wait_until(lambda: world.has_processed_all(seeded), 40, "updates of all stores: without them their changelogs are new")
    with pytest.raises(SeedRefusedError) as refused:
        install(world, elsewhere, late, of=topology_of(world.source, world.table, more=True))
    for reported in ("store more of task 0_0 is missing", "has committed offsets", "the topic was created again since"):
        assert reported in str(refused.value)
    assert f"begin again from the seed: penstock reset {seeded.application_id}" in str(refused.value)


def test_a_snapshot_of_an_application_with_a_global_table_seeds_another_one(broker: Kafka, tmp_path: Path) -> None:
    """Also if the other one has no such table; records counted by the first application are not counted again. A stream of its topic is not
    read from where the table was: no task has processed the records before."""
    source, cards = broker.create_topic("source"), broker.create_topic("cards", 1, {"cleanup.policy": "compact"})
    broker.produce(cards, [("a", "A"), ("b", "B")])
    broker.produce(source, [("a", "1"), ("b", "1")])

    def topology(with_table: bool) -> Topology:
        builder = StreamsBuilder()
        text = Consumed(serdes.STRING, value=serdes.STRING)
        builder.stream(source, text).group_by_key().count(Materialized("counts", caching=False))
        if with_table:
            builder.global_table(cards, text, Materialized("cards"))
        return builder.build()

    def counted(with_table: bool, config: StreamsConfig, total: int) -> Path:
        """Return the folder of a snapshot taken after this many records were counted."""
        with KafkaStreams(topology(with_table), config) as streams:
            streams.start()
            reaches(streams, State.RUNNING)
            wait_until(
                lambda: sum(value for _, value in streams.store("counts").all() if isinstance(value, int)) == total, 40, "the counts"
            )
            paths = ProjectPaths(tmp_path, tmp_path / "home", tmp_path / "streams.toml", default_database_url(tmp_path))
            operations = Operations(paths, Applications(), ControlPlane(paths.database_url))
            application = Application(config.application_id, "", ("one",), {"bootstrap.servers": broker.bootstrap_servers})
            return Path(str(take_application_snapshot(operations, application, actor="test").place))

    snapshot = counted(True, config_of(unique("former"), broker.bootstrap_servers, tmp_path / "former"), 2)
    for with_table in (True, False):
        app = config_of(unique("seeded"), broker.bootstrap_servers, tmp_path / f"seeded-{with_table}")
        assert "is installed: 1 tasks" in str(install_seed(topology(with_table).resolved(app), app, str(snapshot)))
        broker.produce(source, [("a", "2")])
        counted(with_table, app, 3 if with_table else 4)
    builder = StreamsBuilder()
    text = Consumed(serdes.STRING, value=serdes.STRING)
    builder.stream(source, text).group_by_key().count(Materialized("counts", caching=False))
    builder.stream(cards, text).to(broker.create_topic("elsewhere"))
    app = config_of(unique("seeded"), broker.bootstrap_servers, tmp_path / "seeded-stream")
    with pytest.raises(
        SeedRefusedError, match=f"no offset of {cards}-0, which task 1_0 reads: in the seed it is the input of a global store"
    ):
        install_seed(builder.build().resolved(app), app, str(snapshot))


def test_offsets_that_no_longer_exist_are_reported_with_the_reason(world: World, caplog: pytest.LogCaptureFixture) -> None:
    half, end = first_half(world), world.broker.end_offsets(world.table)[0]
    transaction(world.broker, world.table, [("k", "v")] * 4, commit=False)
    world.broker.produce(world.table, [("k", "v")], partition=0)
    install(world, half.seeded, half.seed)
    assert f"{world.table}-0: no record is left at offsets {end} to {end + 4}, from which the application continues" in caplog.text
    assert f"{world.table}-1: nothing" not in caplog.text
    begin = make_seed(world.folder / "seeds", "early", world.topology, half.whole, dict.fromkeys(world.ends, 1))
    cut(world.broker, world.source, 10)
    with pytest.raises(SeedRefusedError) as refused:
        install(world, half.seeded, begin)
    assert f"{world.source}-0 begins at 10, and the seed is up to 1: the 9 records from 1 to 9 were deleted by retention" in str(
        refused.value
    )
    assert f"{world.source}-1" not in str(refused.value)


def test_lost_changelogs_are_put_back_to_a_snapshot(world: World) -> None:
    """The disk and the changelogs of one sub-topology are lost: its tasks continue from the snapshot, the others from their state."""
    world.write(0)
    app = world.config(unique("app"))
    world.runs_to_the_end(app)
    snapshot = take_snapshot(world.folder / "snapshots", "s1", world.topology, app, world.ends, int(time.time() * 1000))
    world.write(1)
    world.runs_to_the_end(app)
    state = world.state(app)
    world.broker.delete_topic(f"{app.application_id}-tallies-changelog")
    with pytest.raises(SeedRefusedError, match="state that belongs together can be put back only as a whole"):
        install(world, app, snapshot, reset=True)
    for store in ("windows", "sessions", "tallies"):
        world.broker.delete_topic(f"{app.application_id}-{store}-changelog")
    shutil.rmtree(app.state_dir)
    with pytest.raises(SeedRefusedError, match="of sub-topology 0 are empty; if they were lost, --reset-offsets"):
        install(world, app, snapshot)
    assert "is installed: 2 tasks" in install(world, app, snapshot, reset=True)
    assert "installed before" in install(world, app, snapshot, reset=True)
    world.runs_to_the_end(app)
    assert world.state(app) == state
    shutil.rmtree(app.state_dir)
    world.runs_to_the_end(app)
    assert world.state(app) == state


def test_records_in_transit_between_tasks_are_neither_lost_nor_processed_twice(broker: Kafka, tmp_path: Path) -> None:
    """A topology with a repartition topic: a seed begins at its end, and so does a snapshot if no records were in flight; otherwise it is
    refused."""
    source = broker.create_topic("source", 2)
    builder = StreamsBuilder()
    text = Consumed(serdes.STRING, value=serdes.STRING)
    by_first = builder.stream(source, text).select_key(lambda key, value: key[-1])
    by_first.group_by_key(Grouped(serdes.STRING, value=serdes.STRING, name="first")).count(Materialized("counts", caching=False))
    topology = builder.build()

    def config(application_id: str) -> StreamsConfig:
        return config_of(application_id, broker.bootstrap_servers, tmp_path / application_id)

    def run(application_id: str, total: int) -> None:
        with KafkaStreams(topology, config(application_id)) as streams:
            streams.start()
            reaches(streams, State.RUNNING)

            def counted() -> int:
                return sum(value for _, value in streams.store("counts").all() if isinstance(value, int))

            wait_until(lambda: counted() == total, 40, f"{total} records counted")
            streams.close()

    def inputs(application_id: str) -> dict[TopicPartition, int]:
        topics = (source, f"{application_id}-first-repartition")
        done = {topic: broker.committed_offsets(application_id, topic) for topic in topics}
        return {TopicPartition(topic, number): done[topic].get(number, 0) for topic in topics for number in (0, 1)}

    former, (seeded, cloned, late) = unique("former"), [unique("app") for _ in range(3)]
    broker.produce(source, [(key, "v") for key in KEYS])
    run(former, 40)
    at_ms = int(time.time() * 1000)
    seed = make_seed(tmp_path, "seed", topology, config(former), inputs(former))
    snapshot = take_snapshot(tmp_path, "snapshot", topology, config(former), inputs(former), at_ms)
    for application_id, where in ((seeded, seed), (cloned, snapshot)):
        install_seed(topology.resolved(config(application_id)), config(application_id), str(where))
    broker.produce(source, [(key, "v") for key in KEYS])
    run(former, 80)
    with pytest.raises(SeedRefusedError, match=r"were in transit in .*-first-repartition-0 when the snapshot was taken, or were written"):
        install_seed(topology.resolved(config(late)), config(late), str(snapshot))
    for application_id in (seeded, cloned):
        run(application_id, 80)
    # The changelog is lost: its reader returns to the snapshot, its writers continue, and the records between are still on the topic.
    broker.delete_topic(f"{former}-counts-changelog")
    shutil.rmtree(config(former).state_dir)
    reported = install_seed(topology.resolved(config(former)), config(former), str(snapshot), reset=True)
    assert reported.tasks == 2
    run(former, 80)


def test_an_instance_that_is_started_with_a_seed_installs_it_and_runs(half: Half) -> None:
    world, config = half.world, half.seeded
    log = world.folder / "one.log"
    settings = {
        "application": config.application_id,
        "instance": "one",
        "factory": "tests.support.seeds:build",
        "config": {"bootstrap.servers": world.broker.bootstrap_servers, "state.dir": str(config.state_dir)},
        "log_path": str(log),
    }
    path = world.folder / "one.json"
    path.write_text(json.dumps(settings))
    environment = {**os.environ, "TEST_SOURCE": world.source, "TEST_TABLE": world.table}
    command = [sys.executable, "-m", "penstock.runtime.instance", "--config", str(path), "--seed"]
    nowhere = subprocess.run([*command, str(world.folder)], cwd=ROOT, env=environment, timeout=60, check=False)
    assert nowhere.returncode == 3
    assert "there is no snapshot at" in log.read_text()
    with subprocess.Popen([*command, str(half.seed)], cwd=ROOT, env=environment) as process:
        try:
            wait_until(lambda: "to RUNNING" in log.read_text(), 60, "RUNNING")
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert "seed s1 is installed: 4 tasks" in log.read_text()
    assert world.state(config) == world.state(half.whole)


def test_a_store_in_memory_is_seeded_by_its_changelog(broker: Kafka, application_id: str, tmp_path: Path) -> None:
    source = broker.create_topic("source", 2)
    broker.produce(source, [("key", "v")] * 3, partition=0)
    builder, supplier = StreamsBuilder(), Stores.in_memory_key_value_store("counts")
    builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key().count(Materialized(supplier))
    topology, config = builder.build(), config_of(application_id, broker.bootstrap_servers, tmp_path / "state")
    install_seed(topology.resolved(config), config, str(seed_of_counts(tmp_path, source, {"key": 100, "other": 7}, 3)))
    broker.produce(source, [("key", "v")] * 2, partition=0)
    with KafkaStreams(topology, config) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        wait_until(lambda: dict(streams.store("counts").all()) == {"key": 102, "other": 7}, 30, "the counts")
