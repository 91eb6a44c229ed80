"""History with a real Spark: the topology of a stream run over its past gives the stream's outputs and stores, and the stream goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock.assets.spark.history.run as history_run
from penstock import KafkaStreams, StreamsConfig
from penstock.assets.spark.history.command import brokers_of
from penstock.assets.spark.history.errors import HistoryError
from penstock.assets.spark.history.inputs import Bounds, load_table, never_null, read_input
from penstock.assets.spark.history.records import HEADERS
from penstock.assets.spark.history.run import Brokers, HistoryRequest, HistoryResult, estimate, run_history
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.orchestration.alerts import alerts
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.backfills import BackfillInput
from penstock.orchestration.definitions import definitions
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.rehearsals.demand import last
from penstock.runtime.model.states import State
from penstock.runtime.seeds.install import install_seed
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.snapshots.catalogue import find
from tests.dagster.rehearsed import DOUBLED, KEYS, begin, checked, counted, damage, rehearsed_first, take_at_rest, write
from tests.dagster.telling import Project
from tests.dagster.test_commands import penstock
from tests.support import ROOT, Kafka, unique, wait_until
from tests.support.engine import reaches
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
    board,
    by_driver,
    comparable,
    letters_apart,
    records,
    with_unreadable,
)
from tests.support.history_families import expected_of, family_of, input_of, names_of_today, partitions_of
from tests.support.seeds import entries

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector, and PySpark still calls functions deprecated by Python 3.12: not in our code.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "default::DeprecationWarning"),
]

FEW_PARTITIONS = '"spark.sql.shuffle.partitions" = 2'

_ROW = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)


def known(counts: Mapping[str, int]) -> Brokers:
    """Return what brokers with these topics would say."""
    ends = {topic: dict.fromkeys(range(count), 1_000_000) for topic, count in counts.items()}
    starts = {topic: dict.fromkeys(range(count), 0) for topic, count in counts.items()}
    return Brokers(
        lambda topics: {topic: counts[topic] for topic in topics if topic in counts},
        lambda topics: Bounds({topic: starts[topic] for topic in topics}, {topic: ends[topic] for topic in topics}),
    )


def write_table(folder: Path, sent: Mapping[int, Sequence[Sent]]) -> str:
    """Write the records of a topic, by partition, as a table of three files in an order that is not theirs."""
    rows = [
        {
            "partition": number,
            "offset": offset,
            "timestamp": each.timestamp,
            "key": each.key,
            "value": each.value,
            "headers": None if each.headers is None else [{"key": key, "value": value} for key, value in each.headers],
        }
        for number, of_partition in sent.items()
        for offset, each in enumerate(of_partition)
    ]
    Random(7).shuffle(rows)
    folder.mkdir(parents=True)
    for part in range(3):
        pq.write_table(pa.Table.from_pylist(rows[part::3], schema=_ROW), folder / f"part-{part}.parquet")
    return str(folder)


def outputs_of(result: HistoryResult, task: str) -> dict[str, list[Sent]]:
    """Return a task's outputs by topic, in its order."""
    found: dict[str, list[Sent]] = {}
    assert result.outputs is not None
    for folder in sorted(Path(result.outputs).iterdir()):
        for file in sorted(folder.glob(f"{task}.*.parquet")) if folder.is_dir() else ():
            for row in pq.read_table(file).sort_by("sequence").to_pylist():
                headers = [(each["key"], each["value"]) for each in row["headers"]] if row["headers"] else None
                at = round(row["timestamp"].timestamp() * 1000)
                found.setdefault(folder.name, []).append(Sent(row["key"], row["value"], at, headers))
    return found


def stores_of(result: HistoryResult, partition: int) -> dict[str, dict[str, dict[bytes, bytes]]]:
    """Return the entries of the seed's stores of one partition."""
    seed, found = find(result.seed), {}
    for task in seed.tasks:
        if task.endswith(f"_{partition}"):
            local = seed.task_place(task).local
            assert local is not None
            for store in seed.task(task).stores:
                found[store.name] = entries(local / store.directory)
    return found


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_spark_makes_what_the_stream_makes(spark: SparkSession, family: Family, tmp_path: Path) -> None:
    """Two partitions; a topology with repartition topics has one, as in the test driver."""
    random = Random(f"{family}")
    count = 1 if family.one_partition else 2
    topics = (*family.topics, *family.global_topics)
    sent = {
        topic: {number: records(random, 300, null_keys=family.null_keys and topic in family.topics) for number in range(count)}
        for topic in topics
    }
    if family.global_topics:
        sent["everyone"] = {0: records(random, 10, null_keys=False)}
    counts = {topic: len(of_topic) for topic, of_topic in sent.items()}
    request = HistoryRequest(
        SeedApplication.of(APPLICATION, family.factory, family.config),
        {topic: BackfillInput(write_table(tmp_path / topic, sent[topic])) for topic in topics},
        "latest",
        str(tmp_path / "seeds"),
        str(tmp_path / "outputs"),
    )
    result = run_history(spark, request, known(counts))
    assert result.next_offsets == {topic: dict.fromkeys(range(count), 300) for topic in family.topics}
    for number in range(count):
        inputs = {topic: sent[topic][number] for topic in family.topics} | {topic: sent[topic][0] for topic in family.global_topics}
        expected = by_driver(family, inputs, tmp_path / f"driver-{number}")
        found = Made()
        for stage in result.stages:
            found.outputs |= outputs_of(result, f"{stage.sub_topology}_{number}")
        assert found.outputs == expected.outputs
        assert comparable(stores_of(result, number), number) == comparable(expected.stores, number)
        assert any(found.outputs.values())
    assert not (tmp_path / "seeds" / history_run.RUNS).exists() or not any((tmp_path / "seeds" / history_run.RUNS).iterdir())


def test_dead_letters_and_headers_of_several_sub_topologies_are_those_of_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Headers go through two repartition topics; each sub-topology skips records that it cannot read or process."""
    sent = with_unreadable(Random(5), 300)
    request = HistoryRequest(
        SeedApplication.of(APPLICATION, SKIPS.factory, SKIPS.config),
        {"in": BackfillInput(write_table(tmp_path / "in", {0: sent}))},
        "latest",
        str(tmp_path / "seeds"),
        str(tmp_path / "outputs"),
    )
    result = run_history(spark, request, known(dict.fromkeys(("in", "halves", "rests", DEAD), 1)))
    expected = by_driver(SKIPS, {"in": sent}, tmp_path / "driver")
    assert letters_apart(outputs_of(result, "?_0")) == letters_apart(expected.outputs)
    assert stores_of(result, 0) == expected.stores


def test_a_day_goes_on_with_the_state_of_the_day_before_if_it_is_there(spark: SparkSession, tmp_path: Path) -> None:
    """It reads only its own records then. Without that state, or after a change of an earlier day's records, it begins with the first."""
    [family] = [each for each in FAMILIES if str(each) == "repartitions"]
    sent = records(Random(8), 300, null_keys=False)
    table = write_table(tmp_path / "in", {0: sent})
    application = SeedApplication.of(APPLICATION, family.factory, family.config)
    said: list[str] = []

    def run(until: str, end: int, after: str | None, seeds: str = "seeds") -> HistoryResult:
        known_now = known({"in": 1, "values": 1})
        brokers = Brokers(known_now.partitions, lambda topics: replace(known_now.bounds(topics), ends={"in": {0: end}}))
        request = HistoryRequest(
            application,
            {"in": BackfillInput(table)},
            until,
            str(tmp_path / seeds),
            str(tmp_path / "outputs"),
            all_stores=True,
            daily=True,
            after=after,
        )
        return run_history(spark, request, brokers, report=said.append)

    first = run("day 1", 180, None)
    second = run("day 2", 300, "day 1")
    assert (first.goes_on_from, second.goes_on_from) == (None, first.seed)
    assert second.stages[0].records == 120 and f"goes on with the state until day 1: seed {first.seed}" in said
    whole = run("day 2", 300, "day 1", "others")
    assert whole.goes_on_from is None and whole.stages[0].records == 300
    assert "begins with the first record: there is no state until day 1 of this program, with this configuration and these inputs" in said
    assert stores_of(second, 0) == stores_of(whole, 0)
    before, after, both = (outputs_of(result, "1_0")["values"] for result in (first, second, whole))
    assert before and after and before + after == both
    late = {"partition": 0, "offset": 20, "timestamp": FIRST_MS, "key": b"a", "value": b"1", "headers": None}
    pq.write_table(pa.Table.from_pylist([late], schema=_ROW), Path(table) / "late.parquet")
    with pytest.raises(HistoryError, match="more than one record at offset 20"):  # it begins with the first record, and finds it
        run("day 2", 300, "day 1")
    assert "begins with the first record: the input of topic in has 181 records until day 1, and had 180 then" in said


def of_family(spark: SparkSession, name: str, folder: Path) -> str | None:
    """Run a family of the differential tests on Spark. Return what differs from the test driver."""
    family, counts, sent = family_of(name), partitions_of(name), input_of(name, Random(1))
    expected = expected_of(name, sent, folder / "driver")
    request = HistoryRequest(
        SeedApplication.of(APPLICATION, family.factory, family.config),
        {topic: BackfillInput(write_table(folder / topic, {0: of_topic})) for topic, of_topic in sent.items()},
        "latest",
        str(folder / "seeds"),
        str(folder / "outputs"),
    )
    try:
        result = run_history(spark, request, known(counts))
    except HistoryError as error:
        return None if expected.error is not None else f"{name}: {error}"
    found = outputs_of(result, "?_0")
    if expected.error is not None:
        return f"{name}: the test driver raises {expected.error!r}"
    if found != expected.made.outputs:
        return f"{name}: outputs {found} instead of {expected.made.outputs}"
    return (
        None if (stores := stores_of(result, 0)) == expected.made.stores else f"{name}: stores {stores} instead of {expected.made.stores}"
    )


def test_spark_makes_of_the_differential_families_what_the_stream_makes(spark: SparkSession, tmp_path: Path) -> None:
    """A part of them. Without Spark, the quick tests run all; tests/broker/test_history_families.py has the same part on a broker."""
    with ThreadPoolExecutor(2) as both:
        found = both.map(lambda name: of_family(spark, name, tmp_path / name), names_of_today())
        assert [difference for difference in found if difference] == []


# --- with a broker -------------------------------------------------------------------------------------------------------------------

FACTORY = "tests.support.history:board"


def empty_topic(broker: Kafka, name: str, partitions: int) -> str:
    """Create a topic whose name is fixed, in place of the one of an earlier test."""
    if name in broker.topics():
        broker.delete_topic(name)
    return broker.create_topic(name, partitions, exact=True)


def run_to_the_end(broker: Kafka, config: StreamsConfig, topic: str) -> None:
    with KafkaStreams(board(), config) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        wait_until(lambda: broker.committed_offsets(config.application_id, topic) == broker.end_offsets(topic), 60, "the end of the input")
        repartition = f"{config.application_id}-by-value-repartition"
        wait_until(
            lambda: broker.committed_offsets(config.application_id, repartition) == broker.end_offsets(repartition),
            60,
            "its repartitioning",
        )
        streams.close()


def state(config: StreamsConfig) -> dict[tuple[str, str], dict[str, dict[bytes, bytes]]]:
    """Return all entries of a closed application, by task and store."""
    folder = config.state_dir / config.application_id
    stores = {"0": ("totals", "windows"), "1": ("per-value",)}
    return {(task.name, store): entries(task / "rocksdb" / store) for task in sorted(folder.glob("?_?")) for store in stores[task.name[0]]}


def produced(broker: Kafka, topic: str, partition: int) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(each.key, each.value, each.timestamp) for each in broker.consume(topic) if each.partition == partition]


def test_a_stream_that_starts_with_the_seed_of_its_history_is_the_stream_of_the_whole(
    spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    """The topics have fixed names: Spark's Python workers began before this test, and do not see its environment."""
    topic, name = empty_topic(broker, "history-in", 2), unique("history")
    for output in ("totals", "finals"):
        empty_topic(broker, f"{topic}-{output}", 2)
    common = {**CONFIG, "bootstrap.servers": broker.bootstrap_servers, "state.dir": str(tmp_path / "state")}
    sent = records(Random(5), 800, null_keys=False)
    broker.produce(topic, [(each.key, each.value) for each in sent[:500]], timestamps=[each.timestamp for each in sent[:500]])
    application = SeedApplication.of(name, FACTORY, common)
    seeds, outputs = str(tmp_path / "seeds"), str(tmp_path / "outputs")
    request = HistoryRequest(application, {topic: BackfillInput("kafka")}, "latest", seeds, outputs)
    brokers = brokers_of(application, "latest")
    assert [(stage.tasks, stage.rows) for stage in estimate(spark, request, brokers)] == [
        (2, {topic: 500}),
        (2, {f"{name}-by-value-repartition": None}),
    ]
    result = run_history(spark, request, brokers)
    assert result.next_offsets[topic] == broker.end_offsets(topic)
    broker.produce(topic, [(each.key, each.value) for each in sent[500:]], timestamps=[each.timestamp for each in sent[500:]])

    config = StreamsConfig({**common, "application.id": name})
    install_seed(board().resolved(config), config, result.seed)
    run_to_the_end(broker, config, topic)
    rest = {(output, number): produced(broker, f"{topic}-{output}", number) for output in ("totals", "finals") for number in (0, 1)}
    whole = StreamsConfig({**common, "application.id": unique("whole")})
    run_to_the_end(broker, whole, topic)
    assert state(config) == state(whole)
    for (output, number), after in rest.items():
        before = [(each.key, each.value, each.timestamp) for each in outputs_of(result, f"0_{number}")[f"{topic}-{output}"]]
        assert before
        assert after
        assert before + after == produced(broker, f"{topic}-{output}", number)[len(after) :]


def test_each_partition_of_a_topic_is_one_task_also_without_records(spark: SparkSession, broker: Kafka, tmp_path: Path) -> None:
    """Nothing is sorted on the way: Spark reads each partition in its order. One has gaps, one an aborted record only, one nothing."""
    [family] = [each for each in FAMILIES if str(each) == "counts"]
    topic = empty_topic(broker, "in", 4)
    random = Random(9)
    sent = {number: records(random, 150, null_keys=True) for number in (0, 3)}
    producer = Producer(broker.connection.client({"transactional.id": unique("aborts")}))
    producer.init_transactions(30)

    def write(number: int, each: Sent) -> None:
        producer.produce(topic, each.value, each.key, number, timestamp=each.timestamp, headers=[*(each.headers or ())])

    for first in range(0, 150, 50):
        producer.begin_transaction()
        for number, of_partition in sent.items():
            for each in of_partition[first : first + 50]:
                write(number, each)
        producer.commit_transaction()
        producer.begin_transaction()
        for number in (1, 3):
            write(number, Sent(b"a", b"5", FIRST_MS))
        producer.flush()
        producer.abort_transaction()
    config = {**family.config, "bootstrap.servers": broker.bootstrap_servers}
    application = SeedApplication.of(APPLICATION, family.factory, config)
    request = HistoryRequest(application, {topic: BackfillInput("kafka")}, "latest", str(tmp_path / "seeds"), str(tmp_path / "outputs"))
    result = run_history(spark, request, brokers_of(application, "latest"))
    assert (result.stages[0].tasks, result.stages[0].records) == (4, 300)
    assert result.next_offsets[topic] == broker.end_offsets(topic)
    for number in range(4):
        expected = by_driver(family, {topic: sent.get(number, [])}, tmp_path / f"driver-{number}")
        assert outputs_of(result, f"0_{number}") == {name: rows for name, rows in expected.outputs.items() if rows}
        assert stores_of(result, number) == expected.stores


def test_the_command_goes_on_after_a_kill_and_stages_that_are_done_do_not_run_again(
    broker: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, name = broker.create_topic("history", 2), unique("history")
    sent = records(Random(6), 200, null_keys=False)
    broker.produce(topic, [(each.key, each.value) for each in sent], timestamps=[each.timestamp for each in sent])
    streams = tmp_path / "streams.toml"
    streams.write_text(
        f'[applications.{name}]\nfactory = "{FACTORY}"\ninstances = 1\n'
        f'[applications.{name}.config]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n'
        f'[spark]\nmaster = "local[2]"\ndriver-memory = "512m"\n[spark.conf]\n{FEW_PARTITIONS}\n'
    )
    for output in ("totals", "finals"):
        broker.create_topic(f"{topic}-{output}", 2, exact=True)
    environment = {
        **os.environ,
        "PENSTOCK_STREAMS": str(streams),
        "PENSTOCK_HOME": str(tmp_path / "home"),
        "PENSTOCK_TEST_HISTORY": topic,
        "PYTHONPATH": str(ROOT),
    }
    command = [
        sys.executable,
        "-m",
        "penstock.orchestration",
        "backfill",
        name,
        "--input",
        f"{topic}=kafka",
        "--seed",
        str(tmp_path / "seeds"),
    ]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    first = start()
    try:
        wait_until(lambda: first.poll() is not None or any((tmp_path / "seeds").glob(".backfill/*/stage-0.json")), 240, "the first stage")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
        said = first.communicate()[0]
    assert first.returncode == -signal.SIGKILL, said
    assert not list((tmp_path / "seeds").glob("*/snapshot.json"))
    broker.produce(topic, [(b"later", b"1")])  # not part of the run, which ends where its first try ended
    second = start()
    said = second.communicate(timeout=240)[0]
    assert second.returncode == 0, said
    assert "stage 1 of 2 (sub-topology 0, 2 tasks) was done before" in said
    assert "stage 2 of 2 (sub-topology 1, 2 tasks)\n" in said
    seed = find(tmp_path / "seeds")
    assert sum(at.next_offset for at in seed.manifest.inputs) == len(sent)
    assert len(list(seed.place.local.iterdir())) == 1 + 4  # type: ignore[union-attr]  # a folder; no attempt of the first try's second stage
    assert not any((tmp_path / "seeds" / ".backfill").iterdir())


@pytest.mark.nightly
def test_an_audit_and_a_rehearsal_on_spark_find_what_those_on_this_machine_find(project: Project, tmp_path: Path) -> None:
    """Both begin with the state of a snapshot; one sub-topology is behind a repartition topic."""
    begin(project)
    path, application, paths = project.operations.paths.streams_toml, project.application.id, project.operations.paths
    path.write_text(f'{path.read_text()}\n[spark]\nmaster = "local[2]"\ndriver-memory = "512m"\n[spark.conf]\n{FEW_PARTITIONS}\n')
    operations = Operations(paths, Applications.read(path), project.control_plane)
    wait_until(lambda: counted(project) == 500, 60, "500 records")
    take_at_rest(project)
    newest = find(paths.snapshots(application))
    place = newest.task_place("1_0").local or newest.task_place("1_1").local
    assert place is not None
    [sums] = [folder for folder in place.iterdir() if folder.is_dir()]
    damage(sums, b"b")
    found = penstock("audit-state", application, "--engine", "spark", status=1)
    assert "computed on Spark at local[2], as asked for" in found and "300 records from snapshot" in found
    assert "store sums: 3 rows; 1 keys differ" in found and f"store counts: {KEYS} rows, equal" in found
    with operations.control_plane.reading() as session:
        [alert] = alerts.unresolved(session, application=application, kinds=["STATE_DIFFERS"])
    assert alert.subject == "sums"
    table = (paths.home / "audits" / application / f"{newest.id}.csv").read_text()
    here = penstock("audit-state", application, status=1)
    assert "computed on this machine: 300 records are fewer than" in here
    assert (paths.home / "audits" / application / f"{newest.id}.csv").read_text() == table, "the same keys with the same values"

    write(project, DOUBLED)
    job = definitions(operations.applications).resolve_job_def("rehearse_application")
    config = {"application": application, "engine": "spark", "snapshot": rehearsed_first(newest, operations)}
    with dg.DagsterInstance.ephemeral() as instance:
        failed = job.execute_in_process(run_config={"ops": {"rehearse": {"config": config}}}, instance=instance, raise_on_error=False)
        assert "store sums differs at 1 keys; 0 are allowed" in refusal(failed)
        assert checked(instance, application) == (False, 1)
    last_on_spark = last(paths, application)
    penstock("rehearse", application, "--snapshot", str(config["snapshot"]), status=1)
    last_here = last(paths, application)
    assert last_on_spark is not None and last_here is not None
    assert last_on_spark.differences == last_here.differences and last_on_spark.records == last_here.records == 300
    assert [path.name for path in (paths.home / "rehearsals").iterdir()] == [f"{application}.json"]


# --- refusals and tables -------------------------------------------------------------------------------------------------------------


def test_rejected_records_are_a_table_or_end_the_run(spark: SparkSession, tmp_path: Path) -> None:
    sent = [Sent(b"a", (n + 1).to_bytes(8, "big"), FIRST_MS + n) for n in range(20)]
    sent[4], sent[11] = Sent(b"b", b"short", FIRST_MS + 4), Sent(b"b", bytes(8), FIRST_MS + 11)
    table = write_table(tmp_path / "in", {0: sent})
    application = SeedApplication.of(APPLICATION, "tests.support.history:divided", PAUSING)

    def request(rejected: str | None) -> HistoryRequest:
        return HistoryRequest(
            application, {"in": BackfillInput(table)}, "latest", str(tmp_path / "seeds"), str(tmp_path / "outputs"), rejected
        )

    with pytest.raises(HistoryError, match=r"^sub-topology 0: record in-0@4 pauses its task \(deserialization\).*--rejected"):
        run_history(spark, request(None), known({"in": 1}))
    assert not list((tmp_path / "seeds").glob("*/snapshot.json"))
    result = run_history(spark, request(str(tmp_path / "rejected")), known({"in": 1}))
    assert result.rejected is not None
    found = pq.read_table(result.rejected).to_pylist()
    assert [(row["offset"], row["value"], row["reason"]) for row in found] == [
        (4, b"short", "deserialization"),
        (11, bytes(8), "processing"),
    ]
    assert [stage.rejected for stage in result.stages] == [2]
    outputs = outputs_of(result, "0_0")
    assert [each.timestamp - FIRST_MS for each in outputs["out"]] == [n for n in range(20) if n not in (4, 11)]
    assert len(outputs["before"]) == 18


def test_a_table_without_offsets_is_read_by_time_and_partitioned_like_the_topic(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(b"%d" % (n % 7), b"%d" % n, FIRST_MS + n * 10) for n in range(100)]
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate(("key", "value", "timestamp"))})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "rows.parquet")
    application = SeedApplication.of(APPLICATION, "tests.support.history:stateless", CONFIG)
    request = HistoryRequest(
        application, {"in": BackfillInput(str(tmp_path / "in"))}, "x", str(tmp_path / "seeds"), str(tmp_path / "outputs")
    )
    brokers = known({"in": 3, "doubled": 5})
    with pytest.raises(HistoryError, match=r"no column 'offset'.*--until"):
        run_history(spark, request, brokers)
    timed = Brokers(brokers.partitions, lambda topics: replace(brokers.bounds(topics), until_ms=FIRST_MS + 500))
    result = run_history(spark, request, timed, restart=True)
    assert result.next_offsets == {"in": dict.fromkeys(range(3), 1_000_000)}
    for number in range(3):
        of_task = [Sent(key, value * 2, at, None) for key, value, at in rows[:50] if partition_for(key, 3) == number and value != b"3"]
        assert outputs_of(result, f"0_{number}").get("doubled", []) == of_task
    partitions = pq.read_table(Path(result.outputs or "") / "doubled").to_pylist()
    assert all(row["partition"] == partition_for(row["key"], 5) for row in partitions)


def test_columns_of_other_names_and_types_are_written_by_the_serdes_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    """A key of text, and a value made of one column, of several or of all others; rows that the declared type refuses end the run."""
    application = SeedApplication.of(APPLICATION, "tests.support.history:typed", CONFIG)
    rows = [("UA", n % 2, n, 0.5, FIRST_MS + n) for n in range(10)]
    schema = "name string, part int, at long, delay double, ms long"
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(tmp_path / "rows"))
    columns = {"key": ["name"], "timestamp": ["ms"], "partition": ["part"], "offset": ["at"]}

    def run(value: list[str]) -> HistoryResult:
        given = BackfillInput(str(tmp_path / "rows"), columns={**columns, "value": value})
        request = HistoryRequest(application, {"in": given}, "latest", str(tmp_path / "seeds"), str(tmp_path / "outputs"))
        return run_history(spark, request, known({"in": 2}))

    with pytest.raises(HistoryError, match=r"10 rows of a batch cannot be written by its serdes; the first: its value 0\.5 does not fit"):
        run(["delay"])
    with pytest.raises(HistoryError, match="it has no column late; there are name, part, at, delay, ms"):
        run(["late"])
    for value in (["*"], ["delay", "name"]):
        result = run(value)
        for number in range(2):
            found = outputs_of(result, f"0_{number}")["out"]
            assert [(each.key, each.timestamp) for each in found] == [(b"UA", FIRST_MS + n) for n in range(10) if n % 2 == number]
            assert {each.value for each in found} == {b'{"delay":0.5,"carrier":null}'}, "with the default that was not in the column"


def test_rows_for_the_tasks_have_no_null_among_their_headers(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's batches for Python take ten times as long with them; the tasks' outputs have no headers then all the same."""
    table = write_table(tmp_path / "in", {0: [Sent(b"a", b"1", FIRST_MS), Sent(b"a", b"1", FIRST_MS, [("h", b"1")])]})
    bounds = Bounds({"in": {0: 0}}, {"in": {0: 10}})
    application = SeedApplication.of(APPLICATION, "tests.support.history:stateless", CONFIG)
    source = BackfillInput(table)
    given = read_input(spark, "in", source, load_table(spark, "in", source), 1, bounds, application, ["in"])
    assert sorted(len(row.headers) for row in given.rows.collect()) == [0, 1]
    assert not spark.range(1).select(never_null(F.lit(None)).alias("headers")).schema["headers"].nullable


def test_tables_that_do_not_fit_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    application = SeedApplication.of(APPLICATION, "tests.support.history:stateless", CONFIG)

    def refused(name: str, rows: list[tuple[object, ...]], schema: str) -> str:
        spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(tmp_path / name))
        request = HistoryRequest(application, {"in": BackfillInput(str(tmp_path / name))}, "latest", str(tmp_path / "seeds"))
        with pytest.raises(HistoryError) as caught:
            run_history(spark, request, known({"in": 2}))
        return str(caught.value)

    said = refused("columns", [], "key string, value binary, offset long, carrier int")
    assert "column 'key' is string" in said
    assert "no column 'timestamp'" in said
    assert "column 'carrier'" in said
    assert "no column 'partition'" in said
    with_offsets = "key binary, value binary, timestamp long, partition int, offset long"
    assert "more than one record at offset 4" in refused("twice", [(b"a", b"1", 1, 0, 4), (b"b", b"2", 2, 0, 4)], with_offsets)
    beyond = refused("beyond", [(b"a", b"1", 1, 2, 0)], with_offsets)
    assert beyond == "input of topic in: a record has the partition 2; the topic has 0 to 1"
    timeless = refused("timeless", [(b"a", b"1", None, 0, 0)], with_offsets)
    assert timeless == "sub-topology 0: input of topic in: a record has the timestamp null"
    with_headers = f"{with_offsets}, headers array<struct<key:string,value:binary>>"
    nameless = refused("nameless", [(b"a", b"1", 1, 0, 0, [(None, b"1")])], with_headers)
    assert nameless.endswith("input of topic in: a record of partition 0 has a header without a key")
    early = refused("early", [(b"a", b"1", -5, 0, 0)], with_offsets)
    assert early.startswith("sub-topology 0: in-0@0: source") and "invalid timestamp -5: set default.timestamp.extractor" in early
    assert early.endswith("with one that pauses, --rejected URI keeps such records in a table and goes on)")


def test_files_that_are_no_table_are_refused_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark raises some of these as errors of the library that connects it with the JVM, with pages of Java."""
    application = SeedApplication.of(APPLICATION, "tests.support.history:stateless", CONFIG)

    def refused(name: str) -> str:
        request = HistoryRequest(application, {"in": BackfillInput(str(tmp_path / name))}, "latest", str(tmp_path / "seeds"))
        with pytest.raises(HistoryError) as caught:
            run_history(spark, request, known({"in": 1}))
        return str(caught.value)

    write_table(tmp_path / "damaged", {0: [Sent(b"a", b"1", FIRST_MS)]})
    part = tmp_path / "damaged" / "part-1.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "rows.csv").write_text("key,value\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "exact").mkdir()
    pq.write_table(pa.table({"timestamp": pa.array([1], pa.timestamp("ns", "UTC"))}), tmp_path / "exact" / "rows.parquet")
    assert refused("damaged").startswith(f"input of topic in: the file file://{part} cannot be read: file:{part} is not a Parquet file")
    assert "/text/rows.csv cannot be read: " in (text := refused("text")) and "is not a Parquet file" in text
    assert refused("empty") == "input of topic in: there is no file of format Parquet at its location"
    assert refused("missing") == f"input of topic in: file:{tmp_path / 'missing'} does not exist"
    assert refused("exact").startswith("input of topic in: a column has timestamps in nanoseconds, which Spark does not read from Parquet")


def counts_in(seed: str) -> list[int]:
    """Return the counts in a seed's only store."""
    found = find(seed)
    stores = [(found.task_place(task).local, store) for task in found.tasks for store in found.task(task).stores]
    families = [rows for local, store in stores if local is not None for rows in entries(local / store.directory).values()]
    return [int.from_bytes(value[8:], "big") for rows in families for value in rows.values()]


def refusal(done: dg.ExecuteInProcessResult) -> str:
    """Return the message of the step that failed, which shows no stack trace."""
    (failure,) = [event for event in done.all_node_events if event.is_step_failure]
    error = failure.step_failure_data.error
    assert error is not None and (error.stack, error.cause) == ([], None)
    return error.message


@pytest.mark.nightly
def test_a_declared_backfill_is_an_asset_by_days_and_its_job_starts_the_application_with_the_seed(project: Project, tmp_path: Path) -> None:
    application, broker = project.application.id, project.broker
    for end in ("in", "out"):
        broker.create_topic(f"{application}-{end}", 2, exact=True)
    day = 24 * 3_600_000
    rows = [(f"k{n % 5}", n, FIRST_MS // day * day + n * day // 20) for n in range(40)]
    records_of = [(name.encode(), json.dumps({"amount": amount}).encode()) for name, amount, _ in rows]
    broker.produce(f"{application}-in", records_of, timestamps=[at for _, _, at in rows])
    columns = {name: [row[place] for row in rows] for place, name in enumerate(("name", "amount", "at"))}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    path = project.operations.paths.streams_toml
    first_day = datetime.fromtimestamp(FIRST_MS / 1000, UTC).date()
    path.write_text(
        path.read_text()
        + f"""
[applications.{application}.backfill]
first-day = {first_day}

[applications.{application}.backfill.inputs.{application}-in]
uri = "rows.parquet"
key = "name"
value = ["amount"]
timestamp = "at"

[spark]
master = "local[2]"
driver-memory = "512m"
[spark.conf]
{FEW_PARTITIONS}
"""
    )
    operations = Operations(project.operations.paths, Applications.read(path), project.control_plane)
    defined = definitions(operations.applications)
    key = dg.AssetKey([application, "backfill"])
    with dg.DagsterInstance.ephemeral() as instance:
        made = dg.materialize(
            [defined.resolve_assets_def(key)],
            partition_key=str(first_day),
            instance=instance,
        )
        [materialized] = made.asset_materializations_for_node(defined.resolve_assets_def(key).node_def.name)
        assert materialized.metadata["records"].value == 20, "the first of two days"
        asset = defined.resolve_assets_def(key)
        second_day = dg.materialize([asset], partition_key=str(first_day + timedelta(days=1)), instance=instance)
        [of_second] = second_day.asset_materializations_for_node(asset.node_def.name)
        assert of_second.metadata["records"].value == 20, "the second day alone"
        assert of_second.metadata["goes on from"].value == materialized.metadata["1 seed"].value
        assert sum(counts_in(str(of_second.metadata["1 seed"].value))) == 40
        job = defined.resolve_job_def("backfill_and_start")
        config = {"application": application, "until": str(first_day + timedelta(days=1))}
        assert job.execute_in_process(run_config=config, instance=instance).success
        again = job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)
        assert refusal(again).endswith("run: state is installed only while none does (penstock stop)")
        (tmp_path / "rows.parquet").unlink()
        gone = dg.materialize([asset], partition_key=str(first_day + timedelta(days=1)), instance=instance, raise_on_error=False)
        assert "rows.parquet" in refusal(gone), "the message is that of Spark's process"

    def last_counts() -> dict[bytes | None, int]:
        return {each.key: int.from_bytes(each.value or b"", "big") for each in broker.consume(f"{application}-out")}

    wait_until(lambda: sum(last_counts().values()) == 40, 60, "20 records of the history, and 20 of the stream")
