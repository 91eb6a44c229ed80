"""Seeds without a broker: what the files say as changelog records, what fits a topology, and for which tasks the ground is ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Literal, cast

import msgspec
import pytest

from penstock import Processor, Record, serdes
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination import resets
from penstock.runtime.coordination.records import SEED, Reset, StateShape, Written
from penstock.runtime.coordination.topics import TopicLayout
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized
from penstock.runtime.dsl.windows import TimeWindows
from penstock.runtime.kafka.topic_admin import TopicAdmin, TopicDescription
from penstock.runtime.model.errors import SeedRefusedError, StateDirectoryError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.seeds import entries
from penstock.runtime.seeds.entries import changelog_records, latest
from penstock.runtime.seeds.inputs import starts
from penstock.runtime.seeds.journal import Mark, Stage
from penstock.runtime.seeds.plan import SeededTask, misfit_text, plan_seed
from penstock.runtime.seeds.preconditions import Preconditions
from penstock.runtime.seeds.progress import Progress
from penstock.runtime.seeds.state_record import seeded_shape
from penstock.runtime.serdes.keys import session_key, window_store_key
from penstock.runtime.snapshots.catalogue import find
from penstock.runtime.snapshots.local import store_manifest
from penstock.runtime.snapshots.manifest import MANIFEST, SNAPSHOT, ApplicationManifest, PartitionOffset, TaskManifest, encoded
from penstock.runtime.stores import Stores
from penstock.runtime.stores.base import EngineStore, StateStore, StoreBuilder, StoreContext
from penstock.runtime.stores.custom import build_store
from penstock.runtime.stores.rocks import RocksStore
from penstock.runtime.stores.rocks_loading import inspect_store, place
from penstock.runtime.topology.shape import StoreShape, TopologyShape, misfits, shape_of
from penstock.runtime.topology.topology import Topology
from tests.support.own_stores import OwnBuilder

HOUR_MS = 3_600_000
LOG = TopicPartition("log", 0)


class Tally(msgspec.Struct, frozen=True):
    count: int
    last: str = ""


# --- files as changelog records ---------------------------------------------------------------------------------------------------


def opened(store: EngineStore, folder: Path) -> EngineStore:
    store.open(folder, StoreContext("app", folder, TaskId(0, 0), LOG))
    return store


def records_of(store: EngineStore, folder: Path) -> list[tuple[bytes, bytes | None, int]]:
    store.checkpoint(folder / "checkpoint")
    return [record for batch in changelog_records(folder / "checkpoint", store.layout, 777) for record in batch]


def versioned(name: str = "versions") -> EngineStore:
    supplier = Stores.persistent_versioned_key_value_store(name, timedelta(minutes=10))
    return build_store(Stores.versioned_key_value_store_builder(supplier, serdes.STRING, serdes.STRING))


def test_each_kind_gives_the_records_that_restore_it(tmp_path: Path) -> None:
    """A store restored from the records has the same entries, and gives the same records again."""
    windows = Stores.persistent_timestamped_window_store("b", timedelta(hours=5), timedelta(hours=1))
    kinds: list[tuple[StoreBuilder[StateStore], bytes]] = [
        (
            Stores.timestamped_key_value_store_builder(Stores.persistent_timestamped_key_value_store("a"), serdes.STRING, serdes.STRING),
            b"k",
        ),
        (Stores.timestamped_window_store_builder(windows, serdes.STRING, serdes.STRING), window_store_key(b"k", HOUR_MS)),
    ]
    for builder, key in kinds:
        store = opened(build_store(builder), tmp_path / builder.name)
        store.restore([(key, b"v", HOUR_MS + 5), (key[:-1] + bytes([key[-1] + 1]), b"w", HOUR_MS + 6)], {LOG: NextOffset(2)})
        records = records_of(store, tmp_path / builder.name)
        assert records == [(key, b"v", HOUR_MS + 5), (key[:-1] + bytes([key[-1] + 1]), b"w", HOUR_MS + 6)]
        store.close()


def test_values_without_timestamps_have_the_time_of_the_seed_the_window_or_the_session(tmp_path: Path) -> None:
    plain = build_store(Stores.key_value_store_builder(Stores.persistent_key_value_store("p"), serdes.STRING, serdes.STRING))
    windows = build_store(
        Stores.window_store_builder(
            Stores.persistent_window_store("w", timedelta(hours=5), timedelta(hours=1)), serdes.STRING, serdes.STRING
        )
    )
    sessions = build_store(
        Stores.session_store_builder(Stores.persistent_session_store("s", timedelta(hours=5)), serdes.STRING, serdes.STRING)
    )
    for store, key, time in (
        (plain, b"k", 777),
        (windows, window_store_key(b"k", 2 * HOUR_MS), 2 * HOUR_MS),
        (sessions, session_key(b"k", 50, 99), 99),
    ):
        opened(store, tmp_path / store.name)
        store.restore([(key, b"v", 5)], {LOG: NextOffset(1)})
        assert records_of(store, tmp_path / store.name) == [(key, b"v", time)]
        store.close()


def test_damage_found_when_files_are_closed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(versioned(), tmp_path).close()
    folder = tmp_path / "rocksdb" / "versions"
    close = RocksStore.close

    def damaged(store: RocksStore) -> None:
        close(store)
        raise Exception("Corruption: block checksum mismatch")

    with monkeypatch.context() as patched, pytest.raises(StateDirectoryError, match=rf"{folder} cannot be written: Corruption"):
        patched.setattr(RocksStore, "close", damaged)
        place(folder, {LOG: NextOffset(1)}, {})
    place(folder, {LOG: NextOffset(2)}, {}, forget=[LOG])
    assert inspect_store(folder).offsets == {LOG: 2}


def test_versions_come_in_the_order_of_time_also_when_they_do_not_fit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By key they would be dropped by the restore: what is older than stream time minus the history retention."""
    monkeypatch.setattr(entries, "_RUN", 3)
    minute, store = 60_000, opened(versioned(), tmp_path / "one")
    puts = [(b"a", b"1", 0), (b"b", b"2", minute), (b"a", b"3", 2 * minute), (b"c", b"4", 3 * minute), (b"b", None, 3 * minute)]
    puts += [(b"c", b"%d" % step, step * minute) for step in range(4, 9)] + [(b"d", None, 9 * minute), (b"z", b"last", 60 * minute)]
    store.restore(puts, {LOG: NextOffset(len(puts))})
    records = records_of(store, tmp_path / "one")
    assert [time for _, _, time in records] == sorted(time for _, _, time in records)
    assert records[0] == (b"a", b"3", 2 * minute), "the latest version of a key never expires"
    again = opened(versioned(), tmp_path / "two")
    again.restore(records, {LOG: NextOffset(len(records))})
    assert records_of(again, tmp_path / "two") == records
    found = latest(tmp_path / "one" / "checkpoint", store.layout)
    assert (found.time, found.timestamp) == (60 * minute, 60 * minute)
    for each in (store, again):
        each.close()


class Idle(Processor[object, object, object, object]):
    def process(self, record: Record[object, object]) -> None: ...


# --- types ------------------------------------------------------------------------------------------------------------------------


class Wider(msgspec.Struct):
    count: float
    last: str | None = None
    more: list[int] = []


class Strict(msgspec.Struct):
    count: float
    last: int = 0


class Nested(msgspec.Struct):
    tally: Tally
    by_name: dict[str, Tally] = {}


class OtherNested(msgspec.Struct):
    tally: Wider


@pytest.mark.parametrize(
    ("written", "read", "reported"),
    [
        (Tally, Tally, ""),
        (Tally, Wider, ""),
        (Nested, OtherNested, ""),
        (Wider, Tally, "count is float and is read as int"),
        (OtherNested, Nested, "tally.count is float and is read as int"),
        (int, Tally, "the value is int and is read as "),
        (Tally, Nested, "tally is new and has no default"),
    ],
)
@pytest.mark.parametrize("with_formats", [True, False])
def test_a_type_fits_if_what_was_written_can_be_read(tmp_path: Path, written: type, read: type, reported: str, with_formats: bool) -> None:
    """By the format, or in a manifest of an earlier version by the JSON Schema."""
    seed = seed_of(tmp_path, counted(value=written), with_formats=with_formats)
    found = plan_seed(counted(value=read), layout_of(), "app", find(seed)).misfits
    assert (reported in "; ".join(found)) if reported else not found


def test_what_a_seed_holds_is_recorded_in_all_its_versions(tmp_path: Path) -> None:
    """Of a manifest of an earlier version, what it says of types. The stores that are not seeded stay as they were recorded."""
    now = shape_of(counted(value=Wider), "app")
    for with_formats in (True, False):
        folder = seed_of(tmp_path / str(with_formats), counted(value=Tally), with_formats=with_formats)
        shape = seeded_shape(None, now, fits(counted(value=Wider), layout_of(), folder))
        (store,) = shape.stores
        assert store.format is not None and [str(each) for each in store.format.values] == ["json(Tally)"]
        assert misfits(shape, now, ["counts"], {}) == []
        assert "field last" in misfits(shape, shape_of(counted(value=Strict), "app"), ["counts"], {})[0]
        other = StoreShape("other", "window", 1)
        former = TopologyShape(stores=(other, now.stores[0]), repartitions=("r",))
        assert seeded_shape(former, now, fits(counted(value=Wider), layout_of(), folder)) == TopologyShape(
            stores=(other, store), repartitions=("r",)
        )


def test_a_seed_that_is_installed_after_a_reset_and_killed_can_be_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The record of its formats is no sign that an instance has run since."""
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "nowhere:1"})
    records: list[Written] = [Reset(id="r", at_ms=1, by="test", ended=True), StateShape(version=1, shape=TopologyShape(), by=SEED)]
    monkeypatch.setattr(resets, "read_past", lambda config, *kinds: records)
    topics = cast(TopicAdmin, Brokers({TopicPartition("app-coordination", 0): (0, 2)}, {}))
    assert resets.stands_as_reset(config, topics)
    records.append(StateShape(version=2, shape=TopologyShape(), by="one/1/1"))
    assert not resets.stands_as_reset(config, topics)


# --- what fits a topology ---------------------------------------------------------------------------------------------------------


def counted(name: str = "counts", value: type | None = None) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", Consumed(serdes.STRING, value=serdes.STRING)).group_by_key()
    if value is None:
        grouped.count(Materialized(name))
    else:
        grouped.aggregate(lambda: Tally(0), lambda _key, _value, tally: tally, Materialized(name, value=serdes.json(value)))
    return resolved(builder.build())


def resolved(topology: Topology) -> Topology:
    return topology.resolved(StreamsConfig({"application.id": "app", "bootstrap.servers": "nowhere:1"}))


def layout_of(partitions: int = 2) -> TopicLayout:
    tasks = frozenset(TaskId(0, number) for number in range(partitions))
    return TopicLayout({"in": partitions}, tasks, tasks, frozenset(), TopicPartition("guard", 0))


def seed_of(
    folder: Path,
    topology: Topology,
    partitions: int = 2,
    topic: str = "in",
    changes: Mapping[str, object] | None = None,
    with_formats: bool = False,
) -> Path:
    """The manifests of a seed without files, those of an earlier version unless `with_formats`. `changes` are made to each store's."""
    parts = []
    formats = {store.name: store.format for store in shape_of(topology, "app").stores if store.format is not None and with_formats}
    for number in range(partitions):
        stores = [
            msgspec.structs.replace(store_manifest(build_store(builder), builder.name, None), **(changes or {}))
            for part in topology.sub_topologies()
            for builder in part.stores
        ]
        part = TaskManifest(
            application="app",
            snapshot="s",
            task=f"0_{number}",
            at_ms=1,
            stream_time=1,
            input_offsets=[PartitionOffset(topic, number, 5)],
            stores=stores,
        )
        (folder / part.task).mkdir(parents=True)
        (folder / part.task / MANIFEST).write_bytes(encoded(part))
        parts.append(part.summary)
    manifest = ApplicationManifest.of(parts, {part.task: part.task for part in parts}, kind="seed", formats=formats)
    (folder / SNAPSHOT).write_bytes(encoded(manifest))
    return folder


def refused(topology: Topology, folder: Path, layout: TopicLayout | None = None) -> str:
    seed = find(folder)
    misfits = plan_seed(topology, layout or layout_of(), "app", seed).misfits
    assert misfits
    return misfit_text(misfits, "app", seed)


def fits(topology: Topology, layout: TopicLayout, folder: Path) -> list[SeededTask]:
    plan = plan_seed(topology, layout, "app", find(folder))
    assert plan.misfits == []
    return plan.tasks


def test_a_seed_that_fits_is_planned_task_by_task(tmp_path: Path) -> None:
    tasks = fits(counted(), layout_of(), seed_of(tmp_path / "s", counted()))
    assert [str(task.task) for task in tasks] == ["0_0", "0_1"]
    assert [task.changelogs for task in tasks] == [[TopicPartition("app-counts-changelog", number)] for number in (0, 1)]
    assert [dict(task.inputs) for task in tasks] == [{TopicPartition("in", number): 5} for number in (0, 1)]


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"kind": "window"}, "store counts: it was a window store and is a key-value store in the topology"),
        ({"timestamped": False}, "its values were kept without a timestamp and would be read with a timestamp"),
        ({"key_format": "LONG"}, "its keys were LONG and are STRING in the topology"),
        ({"value_format": "STRING"}, "its values were STRING and are LONG in the topology"),
        ({"name": "others"}, "store others of task 0_0 is not part of the topology, whose stores there are counts"),
        ({"name": "others"}, "store counts of task 0_0 is missing"),
    ],
)
def test_a_store_that_does_not_fit_is_reported(tmp_path: Path, changes: dict[str, object], reported: str) -> None:
    assert reported in refused(counted(), seed_of(tmp_path / "s", counted(), changes=changes))


def test_windows_of_another_retention_are_reported(tmp_path: Path) -> None:
    folder = seed_of(tmp_path / "s", counted(), changes={"retention_ms": 5})
    fits(counted(), layout_of(), folder)  # a key-value store has none

    def windows(retention: int) -> Topology:
        builder = StreamsBuilder()
        grouped = builder.stream("in", Consumed(serdes.STRING, value=serdes.STRING)).group_by_key()
        hourly = grouped.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(hours=1)))
        hourly.count(Materialized("w", retention=timedelta(hours=retention)))
        return resolved(builder.build())

    reported = refused(windows(6), seed_of(tmp_path / "t", windows(4)))
    assert f"store w: it has a retention of {4 * HOUR_MS} ms, and in the topology {6 * HOUR_MS} ms" in reported
    assert "segments of" in reported


def test_a_custom_store_cannot_be_seeded(tmp_path: Path) -> None:
    topology = Topology().add_source("source", "in", key_serde=serdes.STRING, value_serde=serdes.STRING)
    topology.add_processor("own", Idle, "source").add_state_store(OwnBuilder("shelf", "sqlite"), "own")
    text = refused(resolved(topology), seed_of(tmp_path / "s", counted()))
    assert "store shelf is one of your own, whose files only you can read" in text


@pytest.mark.parametrize(
    ("seeded", "has", "reported"),
    [
        (2, 3, "there is no offset of in-2, which task 0_2 reads: it was made for 2 partitions, and the topic has 3"),
        (2, 3, "task 0_2 is missing (stores counts)"),
        (3, 2, "tasks 0_2 are not part of the topology, which has 0_0, 0_1: one per partition of its input"),
    ],
)
def test_another_number_of_partitions_is_reported(tmp_path: Path, seeded: int, has: int, reported: str) -> None:
    assert reported in refused(counted(), seed_of(tmp_path / "s", counted(), seeded), layout_of(has))


def test_inputs_that_the_topology_does_not_read_are_reported(tmp_path: Path) -> None:
    text = refused(counted(), seed_of(tmp_path / "s", counted(), topic="elsewhere"))
    assert "its input elsewhere is not read by the topology, which reads in" in text
    assert "there is no offset of in-0, which task 0_0 reads: the seed's inputs are elsewhere" in text


# --- the ground -------------------------------------------------------------------------------------------------------------------


def planned(tmp_path: Path) -> list[SeededTask]:
    return fits(counted(), layout_of(), seed_of(tmp_path / "planned", counted()))


def preconditions(
    ends: tuple[int, int] = (0, 0), committed: Mapping[TopicPartition, NextOffset] | None = None, stage: Stage | None = None
) -> Preconditions:
    logs = [TopicPartition("app-counts-changelog", number) for number in (0, 1)]
    marks = {} if stage is None else {log: Mark("s", "id", 3, stage) for log in logs}
    return Preconditions("app", committed or {}, dict(zip(logs, map(NextOffset, ends), strict=True)), marks, {"app-counts-changelog": "id"})


HAS_RUN = {TopicPartition("in", 0): NextOffset(9)}


def test_new_changelogs_and_those_of_an_earlier_attempt_are_accepted(tmp_path: Path) -> None:
    tasks = planned(tmp_path)
    for found in (preconditions(), preconditions((0, 4), stage=Stage.PART), preconditions((3, 4), stage=Stage.WHOLE)):
        assert not found.is_installed(tasks)
        assert found.to_install(tasks, False) == tasks
    assert preconditions((3, 4), HAS_RUN, Stage.DONE).is_installed(tasks)


@pytest.mark.parametrize(
    ("found", "reset", "reported"),
    [
        (preconditions((0, 4)), False, "the changelogs app-counts-changelog are not empty"),
        (preconditions((3, 4), stage=Stage.DONE), False, "are not empty"),  # its offsets were deleted since
        (preconditions((3, 4), HAS_RUN), False, "has committed offsets (in-0@9)"),
        (preconditions((0, 0), HAS_RUN), False, "of sub-topology 0 are empty; if they were lost, --reset-offsets"),
        (preconditions((3, 4), HAS_RUN), True, "no changelog of application app is lost: there is nothing to put back"),
    ],
)
def test_changelogs_that_are_not_ready_are_refused(tmp_path: Path, found: Preconditions, reset: bool, reported: str) -> None:
    with pytest.raises(SeedRefusedError) as error:
        found.to_install(planned(tmp_path), reset)
    assert reported in str(error.value)


def test_what_is_lost_is_put_back(tmp_path: Path) -> None:
    tasks = planned(tmp_path)
    assert preconditions((0, 0), HAS_RUN).to_install(tasks, True) == tasks
    assert preconditions((0, 4), HAS_RUN, Stage.PART).to_install(tasks, True) == tasks


# --- between tasks ----------------------------------------------------------------------------------------------------------------


class Brokers:
    """The part of `TopicAdmin` that `starts` uses: topics with a start and an end, and what a group has committed."""

    def __init__(self, logs: Mapping[TopicPartition, tuple[int, int]], committed: Mapping[TopicPartition, int]) -> None:
        self._logs = logs
        self._committed = committed

    def describe(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        return {name: TopicDescription(name, 1, "id", {}) for name in topics if any(log.topic == name for log in self._logs)}

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self._logs[partition][0] for partition in partitions}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self._logs[partition][1] for partition in partitions}

    high_watermarks = end_offsets

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        return dict(self._committed)


SOURCE, BETWEEN = TopicPartition("in", 0), TopicPartition("app-by-count-repartition", 0)


def two_steps() -> Topology:
    """0 counts, and writes to 1 through a repartition topic; 1 counts the counts."""
    builder = StreamsBuilder()
    first = builder.stream("in", Consumed(serdes.STRING, value=serdes.STRING)).group_by_key().count(Materialized("first"))
    again = first.to_stream().select_key(lambda _key, count: str(count))
    again.group_by_key(Grouped(serdes.STRING, value=serdes.LONG, name="by-count")).count(Materialized("second"))
    return resolved(builder.build())


def begins(
    folder: Path,
    logs: Mapping[TopicPartition, tuple[int, int]],
    committed: Mapping[TopicPartition, int],
    kind: Literal["seed", "snapshot"],
    lost: set[int],
) -> dict[TopicPartition, int]:
    """Return the start offsets of the sub-topologies `lost`; the snapshot is at 5 of the source and at 7 of the repartition topic."""
    topology, parts = two_steps(), []
    for part in topology.sub_topologies():
        at = PartitionOffset("in", 0, 5) if part.id == 0 else PartitionOffset(BETWEEN.topic, 0, 7)
        stores = [store_manifest(build_store(builder), builder.name, None) for builder in part.stores]
        manifest = TaskManifest(
            application="app", snapshot="s", task=f"{part.id}_0", at_ms=1, stream_time=1, input_offsets=[at], stores=stores
        )
        (folder / manifest.task).mkdir(parents=True)
        (folder / manifest.task / MANIFEST).write_bytes(encoded(manifest))
        parts.append(manifest.summary)
    (folder / SNAPSHOT).write_bytes(encoded(ApplicationManifest.of(parts, {part.task: part.task for part in parts}, kind=kind)))
    tasks = frozenset({TaskId(0, 0), TaskId(1, 0)})
    layout = TopicLayout({"in": 1, BETWEEN.topic: 1}, tasks, tasks, frozenset({BETWEEN.topic}), TopicPartition("guard", 0))
    planned = fits(topology, layout, folder)
    install = [task for task in planned if task.task.subtopology in lost]
    staying = [task for task in planned if task not in install]
    return dict(starts(topology, cast(TopicAdmin, Brokers(logs, committed)), "app", find(folder), install, staying))


STOOD_STILL, MOVED = {SOURCE: 5, BETWEEN: 7}, {SOURCE: 8, BETWEEN: 9}


def test_a_computed_seed_begins_at_the_end_of_what_tasks_write_to_each_other(tmp_path: Path) -> None:
    assert begins(tmp_path, {SOURCE: (0, 9), BETWEEN: (0, 3)}, {}, "seed", {0, 1}) == {SOURCE: 5, BETWEEN: 3}


@pytest.mark.parametrize(
    ("lost", "committed", "log", "expected"),
    [
        ({0, 1}, STOOD_STILL, (7, 8), {SOURCE: 5, BETWEEN: 7}),  # nothing was done since
        ({1}, MOVED, (6, 9), {BETWEEN: 7}),  # the reader alone goes back
    ],
)
def test_a_snapshot_is_taken_where_nothing_is_lost_between_tasks(
    tmp_path: Path, lost: set[int], committed: dict[TopicPartition, int], log: tuple[int, int], expected: dict[TopicPartition, int]
) -> None:
    assert begins(tmp_path, {SOURCE: (0, 9), BETWEEN: log}, committed, "snapshot", lost) == expected


@pytest.mark.parametrize(
    ("lost", "committed", "log", "reported"),
    [
        ({0, 1}, MOVED, (0, 9), "tasks 0_0 would repeat their writes to app-by-count-repartition"),
        (
            {0},
            MOVED,
            (0, 9),
            "tasks 0_0 would repeat their writes to app-by-count-repartition",
        ),  # the reader stays, and would count it twice
        ({0, 1}, {}, (0, 9), "tasks 0_0 would repeat their writes to app-by-count-repartition"),  # unknown what was processed
        ({1}, MOVED, (8, 9), "app-by-count-repartition-0 holds offsets 8 to 9, and its reader was at 7"),
    ],
)
def test_a_snapshot_is_refused_where_something_is_lost_or_doubled_between_tasks(
    tmp_path: Path, lost: set[int], committed: dict[TopicPartition, int], log: tuple[int, int], reported: str
) -> None:
    with pytest.raises(SeedRefusedError) as error:
        begins(tmp_path, {SOURCE: (0, 9), BETWEEN: log}, committed, "snapshot", lost)
    assert reported in str(error.value)


# --- progress ---------------------------------------------------------------------------------------------------------------------


def test_progress_shows_percentage_rate_and_time_left() -> None:
    progress = Progress()
    progress.begin(1_000_000, already=100_000)
    progress.add(300_000)
    assert progress.text(1.5) == "40% · 400,000 of about 1,000,000 records · 200,000/s · 0:03 left"
    progress.begin(0)
    assert progress.text(0.0) == "100% · 0 of about 0 records · 0/s · 0:00 left"
