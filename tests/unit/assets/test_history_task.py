"""The work of an executor in a history run, on rows as Spark's shuffle delivers them, without Spark."""

from __future__ import annotations

import os
import shutil
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from random import Random, randrange

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import StreamsBuilder, StreamsConfig, Topology
from penstock.assets.spark.history.beginning import fetched_start, parts_of
from penstock.assets.spark.history.errors import HistoryError
from penstock.assets.spark.history.job import Places, StageJob, TaskReport, repartitioned_rows, run_circle, run_task
from penstock.assets.spark.history.plan import HistoryPlan, StagePlan, history_topology, plan_history
from penstock.assets.spark.history.records import BEGIN, ORDER, OUTPUTS, ROWS, ParquetPart, header_array
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.snapshots.catalogue import find
from penstock.runtime.snapshots.manifest import MANIFEST, SNAPSHOT, ApplicationManifest, PartitionOffset, encoded, read_manifest
from penstock.runtime.snapshots.places import LocalPlace
from tests.support.history import (
    APPLICATION,
    CONFIG,
    DEAD,
    FAMILIES,
    FIRST_MS,
    PAUSING,
    SKIPS,
    Family,
    Made,
    Sent,
    by_driver,
    comparable,
    letters_apart,
    records,
    with_unreadable,
)
from tests.support.history_families import CASES, expected_of, family_of, input_of, partitions_of
from tests.support.seeds import entries

BATCH = 50


def begin(partition: int) -> pa.Table:
    """Return the row that begins a task."""
    values = {"slot": 0, "partition": partition, "place": BEGIN}
    return pa.Table.from_pylist([{name: values.get(name) for name in ROWS.names}], schema=ROWS)


def rows_of(place: int, partition: int, sent: Sequence[Sent], first: int = 0) -> pa.Table:
    """Return records as rows of a stage. `first`: offset of the first one."""
    count = len(sent)
    columns = {
        "slot": [0] * count,
        "partition": [partition] * count,
        "place": [place] * count,
        "o1": range(first, first + count),
        "o2": [0] * count,
        "o3": [0] * count,
        "offset": range(first, first + count),
        "timestamp": [each.timestamp for each in sent],
        "key": [each.key for each in sent],
        "value": [each.value for each in sent],
        "headers": header_array([each.headers for each in sent], count),
    }
    arrays = [column if isinstance(column, pa.Array) else pa.array(column, ROWS.field(name).type) for name, column in columns.items()]
    return pa.Table.from_arrays(arrays, schema=ROWS)


def shuffled(tables: Sequence[pa.Table], partition: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, or of all, in the order in which Spark sorts them."""
    whole = pa.concat_tables(tables)
    kept = whole.filter(pa.array([partition is None or each == partition for each in whole.column("partition").to_pylist()]))
    yield from kept.sort_by([(name, "ascending") for name in ("partition", "place", *ORDER)]).to_batches(BATCH)


def in_one_table(folder: Path, topic: str, given: Sequence[Sent]) -> tuple[str, ...]:
    """Write the rows of a global topic, as the run does."""
    part = ParquetPart(folder / "local.parquet", ROWS)
    part.write(rows_of(0, 0, given).combine_chunks().to_batches()[0].columns)
    part.finish(LocalPlace(folder / f"{topic}.parquet"))
    return (str(folder / f"{topic}.parquet"),)


class Run:
    """The tasks of a history run, one after the other."""

    def __init__(
        self,
        plan: HistoryPlan,
        folder: Path,
        global_files: Mapping[str, tuple[str, ...]],
        rejected: str | None = None,
        begin: Mapping[str, str] | None = None,
        *,
        all_stores: bool = False,
    ) -> None:
        self._all_stores = all_stores
        self.plan = plan
        self._global_files = global_files
        self._begin = begin or {}
        self._next_offsets = {topic: dict.fromkeys(range(plan.partitions[topic]), 1_000) for topic in (*plan.inputs, *plan.global_inputs)}
        self.places = Places(str(folder / "seed"), str(folder / "rows"), str(folder / "outputs"), rejected)
        self.reports: list[TaskReport] = []

    def stage(
        self,
        stage: StagePlan,
        inputs: Mapping[str, Mapping[int, Sequence[Sent]]],
        first: Mapping[str, Mapping[int, int]] | None = None,
        next_offsets: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        """`first`: offsets of the first records; `next_offsets`: those of the seed."""
        self._next_offsets |= {topic: dict(of_topic) for topic, of_topic in (next_offsets or {}).items()}
        tables = [begin(number) for number in range(stage.spark_tasks)]
        for place, topic in enumerate(stage.topics):
            if topic in stage.repartitions:
                files = [
                    f"{self.places.rows}/{topic}/{each.name}" for report in self.reports for each in report.files if each.topic == topic
                ]
                tables += [pa.Table.from_batches(repartitioned_rows(uri, place), schema=ROWS) for uri in files]
            else:
                begins = (first or {}).get(topic, {})
                tables += [rows_of(place, number, sent, begins.get(number, 0)) for number, sent in inputs[topic].items()]
        if stage.circle:
            job = StageJob(
                self.plan, stage, self.places, "s1", 1, "r", self._next_offsets, self._global_files, self._begin, self._all_stores
            )
            self.reports += run_circle(job, shuffled(tables, None))
            return
        for number in range(stage.tasks):
            job = StageJob(
                self.plan, stage, self.places, "s1", 1, f"r{number}", self._next_offsets, self._global_files, self._begin, self._all_stores
            )
            self.reports.append(run_task(job, shuffled(tables, number)))

    def files(self, topic: str) -> list[str]:
        """Return the files of a repartition topic."""
        written = [file for report in self.reports for file in report.files if file.topic == topic]
        return [f"{self.places.rows}/{topic}/{file.name}" for file in written]

    def made(self, partition: int) -> Made:
        """Return what came of one partition."""
        found = Made()
        for report in self.reports:
            if not report.task.endswith(f"_{partition}"):
                continue
            for file in report.files:
                if file.topic not in self.plan.repartitions:
                    table = pq.read_table(f"{self.places.outputs}/{file.topic}/{file.name}", schema=OUTPUTS)
                    found.outputs.setdefault(file.topic, []).extend(_sent(row) for row in table.to_pylist())
            for store in report.manifest.stores:
                found.stores[store.name] = entries(Path(self.places.seed) / report.part / store.directory)
        return found


def _sent(row: Mapping[str, object]) -> Sent:
    headers = [(each["key"], each["value"]) for each in row["headers"]] if row["headers"] else None  # type: ignore[attr-defined]
    return Sent(row["key"], row["value"], round(row["timestamp"].timestamp() * 1000), headers)  # type: ignore[arg-type, attr-defined]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_tasks_of_a_run_make_what_the_stream_makes(family: Family, tmp_path: Path) -> None:
    random = Random(f"{family}")
    count = 1 if family.one_partition else 2
    sent = {topic: {number: records(random, 200, null_keys=family.null_keys) for number in range(count)} for topic in family.topics}
    everyone = records(random, 10, null_keys=False)
    counts = dict.fromkeys(family.topics, count) | dict.fromkeys(family.global_topics, 1)
    plan = plan_history(SeedApplication.of(APPLICATION, family.factory, family.config), list(counts), counts)
    run = Run(plan, tmp_path, {topic: in_one_table(tmp_path, topic, everyone) for topic in family.global_topics})
    for stage in plan.stages:
        run.stage(stage, sent)
    for number in range(count):
        inputs = {topic: sent[topic][number] for topic in family.topics} | dict.fromkeys(family.global_topics, everyone)
        expected = by_driver(family, inputs, tmp_path / f"driver-{number}")
        found = run.made(number)
        assert found.outputs == expected.outputs
        assert comparable(found.stores, number) == comparable(expected.stores, number)


def test_dead_letters_and_headers_of_several_sub_topologies_are_those_of_the_stream(tmp_path: Path) -> None:
    """Headers go through two repartition topics; each sub-topology skips records that it cannot read or process."""
    sent = with_unreadable(Random(5), 300)
    counts = dict.fromkeys(("in", "halves", "rests", DEAD), 1)
    run = Run(plan_history(SeedApplication.of(APPLICATION, SKIPS.factory, SKIPS.config), ["in"], counts), tmp_path, {})
    for stage in run.plan.stages:
        run.stage(stage, {"in": {0: sent}})
    expected, found = by_driver(SKIPS, {"in": sent}, tmp_path / "driver"), run.made(0)
    assert letters_apart(found.outputs) == letters_apart(expected.outputs)
    assert found.stores == expected.stores
    letters = {topic: len(sent) for topic, sent in letters_apart(found.outputs).items() if topic.startswith(DEAD)}
    assert sum(report.dropped for report in run.reports) == sum(letters.values())
    assert len(letters) == 3


@pytest.mark.parametrize("family", [each for each in FAMILIES if each.topics == ("in",) and not each.one_partition], ids=str)
def test_rows_that_are_read_in_their_order_need_no_first_row(family: Family, tmp_path: Path) -> None:
    """As Spark reads a partition of a topic: batches of any size, empty ones among them, offsets with gaps."""
    sent = records(Random(f"{family}"), 200, null_keys=family.null_keys)
    plan = plan_history(SeedApplication.of(APPLICATION, family.factory, family.config), ["in"], {"in": 2})
    table = pa.concat_tables([rows_of(0, 1, sent[:70], 5), rows_of(0, 1, sent[70:], 900)])
    filled = table.to_batches(BATCH)
    batches = [filled[0].slice(0, 0), *(each for batch in filled for each in (batch, batch.slice(0, 0)))]
    run = Run(plan, tmp_path, {})
    job = StageJob(plan, plan.stages[0], run.places, "s1", 1, "r", {"in": dict.fromkeys(range(2), 1_000)}, {})
    run.reports.append(run_task(job, iter(batches), in_order=True))
    assert [(report.task, report.records) for report in run.reports] == [("0_1", 200)]
    expected, found = by_driver(family, {"in": sent}, tmp_path / "driver"), run.made(1)
    assert found.outputs == expected.outputs
    assert comparable(found.stores, 1) == comparable(expected.stores, 1)


def test_rows_of_two_partitions_in_one_task_are_refused(tmp_path: Path) -> None:
    plan = plan_history(SeedApplication.of(APPLICATION, "tests.support.history:counts", CONFIG), ["in"], {"in": 2})
    sent = records(Random(1), 20, null_keys=False)
    both = pa.concat_tables([rows_of(0, 0, sent), rows_of(0, 1, sent)]).combine_chunks().to_batches()
    job = StageJob(plan, plan.stages[0], Run(plan, tmp_path, {}).places, "s1", 1, "r", {"in": dict.fromkeys(range(2), 1_000)}, {})
    with pytest.raises(HistoryError, match="Spark has read partition 0 of topic in together with another"):
        run_task(job, iter(both), in_order=True)


def day_and_rest(sent: Sequence[Sent], until_ms: int) -> tuple[Sequence[Sent], Sequence[Sent]]:
    """Split a partition after the records whose largest timestamp so far is before a time."""
    latest = list(accumulate((each.timestamp for each in sent), max))
    at = bisect_left(latest, until_ms)
    return sent[:at], sent[at:]


def with_offset(part: str, offset: PartitionOffset) -> None:
    """Add a next offset to the manifest of a task's part."""
    manifest = read_manifest(Path(part))
    changed = msgspec.structs.replace(manifest, input_offsets=[*manifest.input_offsets, offset])
    (Path(part) / MANIFEST).write_bytes(encoded(changed))


@pytest.mark.parametrize("family", [each for each in FAMILIES if str(each) != "processors"], ids=str)
def test_a_run_that_begins_with_the_state_of_another_goes_on_where_it_ended(family: Family, tmp_path: Path) -> None:
    """Both together make what one run makes. Punctuators begin again, as in a stream that is restarted."""
    random = Random(f"{family}")
    count = 1 if family.one_partition else 2
    sent = {topic: {number: records(random, 200, null_keys=family.null_keys) for number in range(count)} for topic in family.topics}
    everyone = records(random, 10, null_keys=False)
    counts = dict.fromkeys(family.topics, count) | dict.fromkeys(family.global_topics, 1)
    plan = plan_history(SeedApplication.of(APPLICATION, family.factory, family.config), list(counts), counts)
    global_files = {topic: in_one_table(tmp_path, topic, everyone) for topic in family.global_topics}
    halves = {topic: {n: day_and_rest(each, FIRST_MS + 70_000) for n, each in of_topic.items()} for topic, of_topic in sent.items()}
    ends = {topic: {n: len(both[0]) for n, both in of_topic.items()} for topic, of_topic in halves.items()}
    whole, first = (Run(plan, tmp_path / name, global_files, all_stores=True) for name in ("whole", "first"))
    for stage in plan.stages:
        whole.stage(stage, sent)
        first.stage(stage, {topic: {n: both[0] for n, both in of_topic.items()} for topic, of_topic in halves.items()}, None, ends)
    begin = {report.task: f"{first.places.seed}/{report.part}" for report in first.reports}
    for stage in plan.stages:
        for topic in stage.repartitions:
            with_offset(begin[f"{stage.sub_topology}_0"], PartitionOffset(topic, 0, 1_000))  # as in a snapshot of a stream
    rest = Run(plan, tmp_path / "rest", global_files, None, begin, all_stores=True)
    for stage in plan.stages:
        rest.stage(stage, {topic: {n: both[1] for n, both in of_topic.items()} for topic, of_topic in halves.items()}, ends)
    for number in range(count):
        expected, before, after = whole.made(number), first.made(number), rest.made(number)
        both = {topic: before.outputs.get(topic, []) + after.outputs.get(topic, []) for topic in {**before.outputs, **after.outputs}}
        assert both == expected.outputs
        assert all(before.outputs.values()) and all(after.outputs.values())
        assert comparable(after.stores, number) == comparable(expected.stores, number)


def test_parts_on_this_machine_are_copied_to_where_the_executors_reach_them(tmp_path: Path) -> None:
    plan = plan_history(SeedApplication.of(APPLICATION, "tests.support.history:counts", CONFIG), ["in"], {"in": 2})
    run = Run(plan, tmp_path, {})
    run.stage(plan.stages[0], {"in": {number: records(Random(number), 50, null_keys=False) for number in range(2)}})
    whole = ApplicationManifest.of([report.manifest for report in run.reports], {report.task: report.part for report in run.reports})
    seed = Path(run.places.seed)
    (seed / SNAPSHOT).write_bytes(encoded(whole))
    here = parts_of(find(seed))
    assert here == {report.task: str(seed / report.part) for report in run.reports}
    there = parts_of(find(seed), LocalPlace(tmp_path / "shared") / "begin")
    expected = {task: {store: entries(Path(part) / store) for store in ("counts", "versions")} for task, part in here.items()}
    shutil.rmtree(seed)
    [part] = history_topology(plan.application, ["in"]).sub_topologies()
    for task, uri in there.items():
        start = fetched_start(uri, part, tmp_path / "state", tmp_path / "kept")
        assert start.offsets == {TopicPartition("in", int(task[-1])): 1_000}
        assert {store: entries(tmp_path / "state" / task / "rocksdb" / store) for store in expected[task]} == expected[task]
    with pytest.raises(HistoryError, match="the state with which the run begins is not at"):
        fetched_start(here["0_0"], part, tmp_path / "state", tmp_path / "kept")


INPUTS = int(os.environ.get("PENSTOCK_HISTORY_INPUTS", "1"))
"""Random inputs per family of the differential tests: above 1, others in each run."""


@pytest.mark.parametrize("name", CASES)
def test_each_family_of_the_differential_tests_makes_what_the_stream_makes(name: str, tmp_path: Path) -> None:
    first = randrange(1 << 30) if INPUTS > 1 else 0
    family, counts = family_of(name), partitions_of(name)
    for seed in range(first, first + INPUTS):
        folder, sent = tmp_path / f"{seed}", input_of(name, Random(seed))
        folder.mkdir()
        expected = expected_of(name, sent, folder / "driver")
        given = [*family.topics, *family.global_topics]
        plan = plan_history(SeedApplication.of(APPLICATION, family.factory, family.config), given, counts)
        run = Run(plan, folder, {topic: in_one_table(folder, topic, sent[topic]) for topic in family.global_topics})
        with nullcontext() if expected.error is None else pytest.raises(type(expected.error)):
            for stage in plan.stages:
                run.stage(stage, {topic: {0: of_topic} for topic, of_topic in sent.items()})
        if expected.error is None:
            found = run.made(0)
            assert found.outputs == expected.made.outputs, f"seed {seed}"
            assert found.stores == expected.made.stores, f"seed {seed}"
        shutil.rmtree(folder)


def test_rows_of_several_writers_are_merged_by_time(tmp_path: Path) -> None:
    """The order of a repartition topic's partition: the largest timestamp so far of each writer, the writer, its own order."""
    [family] = [each for each in FAMILIES if str(each) == "repartitions"]
    random = Random(3)
    sent = {"in": {number: records(random, 80, null_keys=False) for number in range(3)}}
    plan = plan_history(SeedApplication.of(APPLICATION, family.factory, family.config), ["in"], {"in": 3, "values": 3})
    run = Run(plan, tmp_path, {})
    for stage in plan.stages:
        run.stage(stage, sent)
    [topic] = plan.stages[1].topics
    for uri in run.files(topic):
        rows = pq.read_table(uri).to_pylist()
        latest: dict[int, int] = {}
        for row in rows:
            latest[row["partition"]] = max(row["timestamp"], latest.get(row["partition"], -1))
            assert row["o1"] == latest[row["partition"]]
        assert [row["o3"] for row in rows] == list(range(len(rows)))
    total = sum(int.from_bytes(value[8:], "big") for report in run.reports for value in _entries(run, report, "per-value"))
    assert total == sum(each.value is not None for of_partition in sent["in"].values() for each in of_partition)


def _entries(run: Run, report: TaskReport, store: str) -> list[bytes]:
    stores = [each for each in report.manifest.stores if each.name == store]
    return [
        value
        for each in stores
        for family in entries(Path(run.places.seed) / report.part / each.directory).values()
        for value in family.values()
    ]


def _divided(folder: Path, sent: Sequence[Sent], rejected: str | None) -> TaskReport:
    plan = plan_history(SeedApplication.of(APPLICATION, "tests.support.history:divided", PAUSING), ["in"], {"in": 1})
    run = Run(plan, folder, {}, rejected)
    run.stage(plan.stages[0], {"in": {0: sent}})
    return run.reports[0]


def test_a_rejected_record_is_kept_with_its_error_or_ends_the_run(tmp_path: Path) -> None:
    sent = [Sent(b"a", (n + 1).to_bytes(8, "big"), FIRST_MS + n, [("h", b"1")]) for n in range(20)]
    sent[4], sent[11] = Sent(b"b", b"short", FIRST_MS + 4), Sent(b"b", bytes(8), FIRST_MS + 11, [("h", b"2")])
    with pytest.raises(HistoryError, match=r"record in-0@4 pauses its task \(deserialization\).*--rejected"):
        _divided(tmp_path / "fail", sent, None)
    report = _divided(tmp_path / "kept", sent, str(tmp_path / "rejected"))
    assert (report.records, report.rejected, report.rejected_file is not None) == (18, 2, True)
    found = pq.read_table(tmp_path / "rejected").to_pylist()
    assert [(row["offset"], row["value"], row["headers"], row["reason"]) for row in found] == [
        (4, b"short", None, "deserialization"),
        (11, bytes(8), [{"key": "h", "value": b"2"}], "processing"),
    ]
    assert found[1]["error_type"] == "ZeroDivisionError"


def chosen_by_record() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in").to(lambda key, value, context: "in" if value == "3" else "out")
    return builder.build(StreamsConfig(CONFIG))


def test_a_record_that_goes_to_a_topic_which_the_topology_reads_ends_the_run(tmp_path: Path) -> None:
    """A stream would read it again; topics that are chosen per record are not known at the start."""
    plan = plan_history(SeedApplication.of(APPLICATION, f"{__name__}:chosen_by_record", CONFIG), ["in"], {"in": 1, "out": 1})
    run = Run(plan, tmp_path, {})
    with pytest.raises(HistoryError, match="task 0_0 writes to topic in, which the topology reads"):
        run.stage(plan.stages[0], {"in": {0: [Sent(b"a", b"%d" % n, FIRST_MS) for n in range(5)]}})


def test_an_offset_that_occurs_twice_ends_the_run(tmp_path: Path) -> None:
    plan = plan_history(SeedApplication.of(APPLICATION, "tests.support.history:stateless", CONFIG), ["in"], {"in": 1})
    job = StageJob(plan, plan.stages[0], Places(str(tmp_path), str(tmp_path), None, None), "s1", 1, "r", {"in": {0: 1}}, {})
    rows = rows_of(0, 0, [Sent(b"a", b"1", 1)])
    with pytest.raises(HistoryError, match="partition 0 has more than one record at offset 0"):
        run_task(job, shuffled([begin(0), rows, rows], 0))
