"""Where a history begins and ends: records that retention has deleted, files that change between two tries, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock.assets.spark.history.run as history_run
from penstock.assets.spark.history.command import brokers_of
from penstock.assets.spark.history.errors import HistoryError
from penstock.assets.spark.history.job import run_stage
from penstock.assets.spark.history.run import Brokers, HistoryRequest, HistoryResult, run_history
from penstock.assets.spark.seeds.plan import SeedApplication
from penstock.orchestration.declarations.backfills import BackfillInput
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.ids import TopicPartition
from tests.dagster.test_spark_history import empty_topic, known, write_table
from tests.support import ROOT, Kafka, unique, wait_until
from tests.support.history import APPLICATION, CONFIG, FAMILIES, FIRST_MS, Family, Sent, records

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "default::DeprecationWarning"),
]

DAYS = ("2026-01-02T00:00:00", "2026-01-03T00:00:00")


def named(name: str) -> Family:
    [family] = [each for each in FAMILIES if str(each) == name]
    return family


def starting(brokers: Brokers, topic: str, start: int, end: int) -> Brokers:
    """Return brokers whose only partition of a topic begins and ends at these offsets."""
    return Brokers(
        brokers.partitions,
        lambda topics: replace(brokers.bounds(topics), starts={topic: {0: start}}, ends={topic: {0: end}}, until_ms=None),
    )


def test_a_day_is_refused_if_the_topic_has_lost_records_since_the_day_before(spark: SparkSession, broker: Kafka, tmp_path: Path) -> None:
    """The message names the partition and both offsets. The run from the first record on that is there says what is missing."""
    topic, name = empty_topic(broker, "history-in", 1), unique("days")
    sent = records(Random(3), 60, null_keys=False)
    broker.produce(topic, [(each.key, each.value) for each in sent], timestamps=[each.timestamp for each in sent])
    application = SeedApplication.of(name, "tests.support.history:board", {**CONFIG, "bootstrap.servers": broker.bootstrap_servers})
    for output in ("totals", "finals"):
        empty_topic(broker, f"{topic}-{output}", 1)

    def run(day: int, after: str | None, offset: int) -> HistoryResult:
        request = HistoryRequest(
            application, {topic: BackfillInput("kafka")}, DAYS[day], str(tmp_path / "seeds"), all_stores=True, daily=True, after=after
        )
        return run_history(spark, request, brokers_of(application, f"{topic}:0={offset}"))

    run(0, None, 20)
    TopicAdmin(StreamsConfig(application.config)).delete_records({TopicPartition(topic, 0): 30})
    with pytest.raises(HistoryError, match=f"records of {topic}-0 from 20 to 30 were deleted by retention after the day before"):
        run(1, DAYS[0], 60)
    whole = run(1, None, 60)
    assert whole.notes == [f"{topic}-0 begins at offset 30: earlier records were deleted, and are not part of the history"]
    assert whole.stages[0].records == 30


def test_a_table_of_the_archive_needs_no_records_of_the_topic(spark: SparkSession, tmp_path: Path) -> None:
    """Days go on although the topic has lost theirs. Records between the table and the topic, which nobody has, are noted."""
    family, sent = named("counts"), records(Random(8), 60, null_keys=False)
    table = write_table(tmp_path / "in", {0: sent})
    brokers = known({"in": 1, "counted": 1})

    def run(day: int, after: str | None, start: int, end: int) -> HistoryResult:
        request = HistoryRequest(
            SeedApplication.of(APPLICATION, family.factory, family.config),
            {"in": BackfillInput(table)},
            DAYS[day],
            str(tmp_path / "seeds"),
            all_stores=True,
            daily=True,
            after=after,
        )
        return run_history(spark, request, starting(brokers, "in", start, end))

    first = run(0, None, 0, 20)
    second = run(1, DAYS[0], 70, 100)
    assert second.goes_on_from == first.seed and second.stages[0].records == 40
    assert second.notes == [
        "the table ends before offset 60 of in-0, which begins at 70: records between them were deleted, and neither the history nor the "
        "stream has them"
    ]


def test_an_unfinished_run_begins_again_if_a_file_was_written_again_in_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = named("repartitions")
    table = tmp_path / "in" / "records.parquet"
    table.parent.mkdir()

    def write(sent: Sequence[Sent]) -> None:
        columns = {
            "partition": pa.array([0] * len(sent), pa.int32()),
            "offset": pa.array(range(len(sent)), pa.int64()),
            "timestamp": pa.array([each.timestamp for each in sent], pa.int64()),
            "key": pa.array([each.key for each in sent], pa.binary()),
            "value": pa.array([each.value for each in sent], pa.binary()),
        }
        pq.write_table(pa.table(columns), table)

    def run() -> HistoryResult:
        request = HistoryRequest(
            SeedApplication.of(APPLICATION, family.factory, family.config),
            {"in": BackfillInput(str(table))},
            "latest",
            str(tmp_path / "seeds"),
        )
        return run_history(spark, request, known({"in": 1, "values": 1}))

    stages: list[int] = []

    def fails_at_the_second(*given: object) -> object:
        stages.append(len(stages))
        if len(stages) == 2:
            raise HistoryError("the second stage fails")
        return run_stage(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(history_run, "run_stage", fails_at_the_second)
    write([Sent(b"a", b"1", FIRST_MS + n) for n in range(10)])
    with pytest.raises(HistoryError, match="second stage"):
        run()
    write([Sent(b"b", b"2", FIRST_MS + n) for n in range(20)])
    assert [(stage.reused, stage.records) for stage in run().stages] == [(False, 20), (False, 20)]


@pytest.mark.parametrize("kind", ["delta", pytest.param("parquet", marks=pytest.mark.nightly)])
def test_rows_that_come_into_a_table_during_a_run_belong_to_the_next_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The state, the offsets from which the stream goes on, and the records of a day are those of the table at the beginning."""
    sent, table = records(Random(8), 60, null_keys=False), str(tmp_path / "in")
    schema = "partition int, offset long, timestamp long, key binary, value binary"

    def append(first: int, end: int) -> None:
        rows = [(0, at, sent[at].timestamp, sent[at].key, sent[at].value) for at in range(first, end)]
        spark.createDataFrame(rows, schema).coalesce(1).write.format(kind).mode("append").save(table)

    def run(after: str | None) -> HistoryResult:
        request = HistoryRequest(
            SeedApplication.of(APPLICATION, named("counts").factory, CONFIG),
            {"in": BackfillInput(table, kind)},
            DAYS[0] if after is None else DAYS[1],
            str(tmp_path / "seeds"),
            all_stores=True,
            daily=True,
            after=after,
        )
        return run_history(spark, request, starting(known({"in": 1, "counted": 1}), "in", 0, 60))

    def appends_first(*given: object) -> object:
        append(40, 60)
        return run_stage(*given)  # type: ignore[arg-type]

    append(0, 40)
    with monkeypatch.context() as during:
        during.setattr(history_run, "run_stage", appends_first)
        first = run(None)
    assert (first.next_offsets, first.stages[0].records) == ({"in": {0: 40}}, 40)
    second = run(DAYS[0])
    assert second.goes_on_from is None, "the day before has records that were not there then"
    assert (second.next_offsets, second.stages[0].records) == ({"in": {0: 60}}, 60)


def test_an_end_that_is_none_is_refused_by_name() -> None:
    application = SeedApplication.of(APPLICATION, named("counts").factory, CONFIG)
    for until, text in (("yesterday", "'yesterday' is no place in a topic"), ("earliest", "there is no history before the first record")):
        with pytest.raises(HistoryError, match=f"^until: {text}"):
            brokers_of(application, until)


def test_a_record_that_ends_the_command_is_its_only_message(broker: Kafka, tmp_path: Path) -> None:
    """The stacks of Spark's JVM and of the task are in a log; a second run at the same time is refused before Spark starts."""
    name = unique("refusing")
    topic, *_ = (broker.create_topic(f"{name}-{of}", 1, exact=True) for of in ("in", "before", "out"))
    broker.produce(topic, [(b"a", bytes(7)), (b"a", b"short")], timestamps=[FIRST_MS] * 2)
    streams = tmp_path / "streams.toml"
    streams.write_text(
        f'[applications.{name}]\nfactory = "tests.support.history:divided"\ninstances = 1\n'
        f'[applications.{name}.config]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n'
        f'"deserialization.exception.handler" = "penstock.LogAndPauseExceptionHandler"\n'
        f'[spark]\nmaster = "local[1]"\ndriver-memory = "512m"\n[spark.conf]\n"spark.sql.shuffle.partitions" = 2\n'
    )
    home, prefix = tmp_path / "home", f"{name}-"
    names = {"PENSTOCK_STREAMS": str(streams), "PENSTOCK_HOME": str(home), "PENSTOCK_TEST_PREFIX": prefix, "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **names}
    command = [sys.executable, "-m", "penstock.orchestration", "backfill", name, "--input", f"{topic}=kafka"]
    log = home / "backfills" / f"{name}.log"
    begun = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: log.exists() or begun.poll() is not None, 60, "the log")
        second = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        said = begun.communicate(timeout=240)[0]
    finally:
        begun.kill()
        begun.wait()
    assert begun.returncode == 1
    assert said.splitlines() == [
        f"the log of Spark and of the tasks is {log}",
        "stage 1 of 1 (sub-topology 0, 1 tasks)",
        f"sub-topology 0: record {topic}-0@0 pauses its task (deserialization): error: unpack requires a buffer of 8 bytes. "
        "--rejected URI keeps such records in a table and goes on",
    ]
    assert "Traceback" in log.read_text() and "HistoryError" in log.read_text()
    assert (second.returncode, second.stderr.partition(", from")[0]) == (1, f"another backfill of {name} runs on this machine")


def test_ctrl_c_ends_the_command_and_the_same_command_goes_on(broker: Kafka, tmp_path: Path) -> None:
    """At any moment: PySpark's own handler lets the run go on, or breaks off the exchange with the JVM in the middle."""
    topic, name = broker.create_topic("history", 2), unique("interrupted")
    sent = records(Random(6), 200, null_keys=False)
    broker.produce(topic, [(each.key, each.value) for each in sent], timestamps=[each.timestamp for each in sent])
    for output in ("totals", "finals"):
        broker.create_topic(f"{topic}-{output}", 2, exact=True)
    streams = tmp_path / "streams.toml"
    streams.write_text(
        f'[applications.{name}]\nfactory = "tests.support.history:board"\ninstances = 1\n'
        f'[applications.{name}.config]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n'
        f'[spark]\nmaster = "local[2]"\ndriver-memory = "512m"\n[spark.conf]\n"spark.sql.shuffle.partitions" = 2\n'
    )
    environment = {
        **os.environ,
        "PENSTOCK_STREAMS": str(streams),
        "PENSTOCK_HOME": str(tmp_path / "home"),
        "PENSTOCK_TEST_HISTORY": topic,
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "penstock.orchestration", "backfill", name, "--input", f"{topic}=kafka"]
    said = tmp_path / "said"
    with said.open("w") as log:
        run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: run.poll() is not None or "stage 1 of 2" in said.read_text(), 240, "the first stage")
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        assert run.wait(60) == 130, said.read_text()
    finally:
        run.kill()
        run.wait()
    assert said.read_text().endswith("stopped: the same command goes on where it was: stages that are done are not run again\n")
    assert "Traceback" not in said.read_text()
    assert list((tmp_path / "home" / "seeds" / name).glob(".backfill/*/run.json"))
