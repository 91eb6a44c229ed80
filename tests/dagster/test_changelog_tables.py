"""Tables of changelogs, full and incremental, and the comparison with snapshots: a real Spark, a real broker, stores of every kind."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from msgspec.structs import replace
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from rocksdict import Options, Rdict

from penstock.assets.spark.changelog import incremental
from penstock.assets.spark.changelog.log_range import ChangelogError, log_range, require_whole
from penstock.assets.spark.changelog.reading import read_changelog
from penstock.assets.spark.changelog.reconcile import reconcile
from penstock.assets.spark.changelog.store_log import StoreLog
from penstock.assets.spark.types.formats import Decoder
from penstock.runtime.model.errors import WrongPartitionsError
from penstock.runtime.model.record import ValueAndTimestamp
from penstock.runtime.snapshots.manifest import MANIFEST, encoded, files_in, read_manifest
from penstock.runtime.stores.base import StoreLayout, StoreSchemas
from penstock.runtime.stores.rows import read_store
from tests.dagster.logged_stores import COMPACT_DELETE, COMPACT_LATE, COMPACT_SOON, KINDS, POLICIES, LoggedStore, change_at_random
from tests.support import Kafka, unique, wait_until
from tests.support.logs import alter, cleaned_often, cut, recreate_topic, transaction

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector, and PySpark still calls functions deprecated by Python 3.12: not in our code.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "default::DeprecationWarning"),
]

Rows = list[tuple[object, ...]]
MakeStore = Callable[..., LoggedStore]
"""Creates a store from a kind of store and settings of the topic."""


@pytest.fixture
def logged(broker: Kafka, topic: Callable[..., str], tmp_path: Path) -> Iterator[MakeStore]:
    made: list[LoggedStore] = []

    def make(kind: str, config: Mapping[str, str] | None = None) -> LoggedStore:
        changelog = topic("facts-changelog", partitions=2, config=config or POLICIES.get(kind, COMPACT_DELETE))
        made.append(LoggedStore(broker, tmp_path / f"state{len(made)}", KINDS[kind], changelog))
        return made[-1]

    yield make
    for store in made:
        store.close()


def collected(frame: DataFrame) -> Rows:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def assert_same(found: Rows, truth: Rows) -> None:
    assert ([row for row in found if row not in truth], [row for row in truth if row not in found]) == ([], [])
    assert found == truth


def in_files(store: LoggedStore, snapshot: str) -> Rows:
    """Return the content of the snapshot's files, read without Spark."""
    layout = store.stores[0].layout
    decoder = Decoder.of(layout)
    rows = [
        tuple(row.values())
        for number in range(store.tasks)
        for rows in read_store(Path(snapshot) / f"0_{number}" / store.name, layout)
        for row in decoder.batch(number, rows).to_pylist()
    ]
    return sorted((tuple(v.replace(tzinfo=None) if hasattr(v, "tzinfo") else v for v in row) for row in rows), key=repr)


def log_of(store: LoggedStore) -> StoreLog:
    one = store.stores[0]
    return StoreLog(
        application="app", store=store.name, layout=one.layout, schemas=one.schemas, topic=store.changelog, partitions=2, subtopology=0
    )


OF_KIND = [kind if kind == "key_value" else pytest.param(kind, marks=pytest.mark.nightly) for kind in KINDS]


@pytest.mark.parametrize("kind", OF_KIND)
def test_random_rounds_equal_the_files_by_increments_and_by_full_runs(
    kind: str, spark: SparkSession, logged: MakeStore, tmp_path: Path
) -> None:
    store, rng = logged(kind), random.Random(kind)
    log, previous = log_of(store), None
    for number in range(3 if kind in ("key_value", "window") else 2):
        for _ in range(40):
            store.now += rng.choice((0, 10, 500, 5_000))
            for task in store.stores:
                change_at_random(kind, task, rng, store.now)
        store.commit()
        version = tmp_path / "versions" / f"v{number}"
        truth = in_files(store, store.snapshot(f"s{number}"))
        assert len(truth) > 4
        with incremental.run(spark, log, store.config, previous, version) as run:
            assert run.kind == ("full" if number == 0 else "merged"), run.reason
            assert_same(collected(run.rows), truth)
            version.mkdir()
            run.save(version)
        previous = version
    whole = read_changelog(spark, log, store.config)
    assert_same(collected(whole.rows), truth)
    assert whole.offsets == run.offsets and whole.stream_times == run.stream_times
    whole.close()


def frame_of(spark: SparkSession, store: LoggedStore, snapshot: str) -> DataFrame:
    return spark.read.format("penstock.state").option("path", snapshot).option("store", store.name).load()


def damaged(snapshot: str, family: str, change: Callable[[Rdict], None], task: int = 0) -> None:
    """Change a store of the snapshot such that its files match its manifest, and only their content is wrong."""
    folder = Path(snapshot) / f"0_{task}"
    path = str(folder / "facts")
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(path)}
    database = Rdict(path, Options(raw_mode=True), column_families=families)
    change(database.get_column_family(family))
    database.close()
    manifest = replace(read_manifest(folder), files=files_in(folder))
    (folder / MANIFEST).write_bytes(encoded(manifest))


def ends(store: LoggedStore) -> dict[int, int]:
    return store.kafka.end_offsets(store.changelog)


def test_rule_29_a_store_damaged_on_purpose_is_found_key_by_key(spark: SparkSession, logged: MakeStore) -> None:
    store = logged("key_value", COMPACT_LATE)
    for number in range(50):
        store.stores[number % 2].put(f"k{number}", ValueAndTimestamp(number, 1_000))
    store.commit()
    snapshot, offsets = store.snapshot("s1"), ends(store)
    found = reconcile(spark, frame_of(spark, store, snapshot), log_of(store), store.config, offsets)
    assert found.equal and (found.rows, found.expected, found.moved_on) == (50, 50, 0)
    assert found.differences.count() == 0
    found.close()

    def change(rows: Rdict) -> None:
        rows[b"k0"] = (1_000).to_bytes(8, "big") + (99).to_bytes(8, "big")  # a value changed
        del rows[b"k2"]  # a key deleted
        rows[b"never"] = (1_000).to_bytes(8, "big") + (7).to_bytes(8, "big")  # a key added
        rows[b"k4"] = (2_000).to_bytes(8, "big") + (4).to_bytes(8, "big")  # a time changed
        rows[b"k6"] = (1_000).to_bytes(8, "big") + b"short"  # bytes that are not a number

    damaged(snapshot, "keyValueWithTimestamp", change)
    # Later records do not count, not even those of the damaged keys.
    store.stores[0].put("k0", ValueAndTimestamp(99, 1_000))
    store.stores[0].put("after", ValueAndTimestamp(1, 1_000))
    store.commit()
    found = reconcile(spark, frame_of(spark, store, snapshot), log_of(store), store.config, offsets)
    assert (found.missing, found.surplus, found.different, found.moved_on, found.malformed) == (1, 1, 3, 1, 1), found.first
    rows = {row.key: row for row in found.differences.collect()}
    assert {key: (row.side, row.value, row.expected_value) for key, row in rows.items()} == {
        "k0": ("different", 99, 0),
        "k2": ("missing", None, 2),
        "k4": ("different", 4, 4),
        "k6": ("different", None, 6),
        "never": ("surplus", 7, None),
    }
    assert rows["k4"].timestamp.timestamp() == 2 and rows["k4"].expected_timestamp.timestamp() == 1
    assert rows["k6"].malformed.value == b"short"
    assert {(row.task, row.partition) for row in rows.values()} == {("0_0", 0)}
    assert found.first[0] == (
        'different: {"key":"k0"} in task 0_0: the store has {"value":99,"timestamp":"1970-01-01T00:00:01.000Z"}, '
        'its topic {"value":0,"timestamp":"1970-01-01T00:00:01.000Z"}'
    )
    found.close()


def made(spark: SparkSession, store: LoggedStore, log: StoreLog, previous: Path | None, version: Path) -> tuple[str, str, Rows]:
    """Run as a writer of tables does; return `kind`, `reason` and rows."""
    with incremental.run(spark, log, store.config, previous, version) as run:
        rows = collected(run.rows)
        if run.kind == "unchanged":
            run.confirm()
        else:
            version.mkdir()
            run.save(version)
        return run.kind, run.reason, rows


def test_versions_from_a_time_that_no_table_can_show_are_ordered_and_replaced_by_it(
    spark: SparkSession, logged: MakeStore, tmp_path: Path
) -> None:
    """Microseconds mistaken for milliseconds are in a year far beyond 9999: `valid_from` is null, which cannot be used for merging."""
    far = 1_700_000_000_000_000
    store, versions = logged("versioned", {**COMPACT_LATE, "message.timestamp.after.max.ms": str(2**63 - 1)}), tmp_path / "versions"
    store.stores[0].put("a", 1, 1_000)
    store.stores[0].put("a", 2, far)
    store.commit()
    truth = [row[:5] for row in in_files(store, store.snapshot("s1"))]
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000)
    assert {row[1:5] for row in truth} == {("a", datetime(1970, 1, 1, 0, 0, 1), last, 1), ("a", None, None, 2)}
    _, _, rows = made(spark, store, log_of(store), None, versions / "v1")
    assert_same([row[:5] for row in rows], truth)
    store.stores[0].put("a", 3, far)
    store.commit()
    snapshot = store.snapshot("s2")
    kind, _, rows = made(spark, store, log_of(store), versions / "v1", versions / "v2")
    assert kind == "merged"
    assert_same([row[:5] for row in rows], [row[:5] for row in in_files(store, snapshot)])
    found = reconcile(spark, frame_of(spark, store, snapshot), log_of(store), store.config, ends(store))
    assert found.equal and (found.rows, found.malformed) == (2, 1), found.first
    found.close()


def test_the_life_of_a_table_that_is_made_by_increments(spark: SparkSession, logged: MakeStore, tmp_path: Path) -> None:
    store = logged("key_value", COMPACT_LATE)
    log, versions = log_of(store), tmp_path / "versions"
    store.stores[0].put("a", ValueAndTimestamp(1, 1_000))
    store.stores[1].put("b", ValueAndTimestamp(2, 1_000))
    store.commit()
    kind, _, first = made(spark, store, log, None, versions / "v1")
    assert kind == "full" and [row[1:3] for row in first] == [("a", 1), ("b", 2)]

    # No new records: nothing is written, and the state gets the present time. An aborted transaction counts as no records.
    transaction(store.kafka, store.changelog, [("a", None)], commit=False)
    before = incremental.read_state(versions / "v1")
    assert made(spark, store, log, versions / "v1", versions / "v2") == ("unchanged", "nothing came since the last run", first)
    confirmed = incremental.read_state(versions / "v1")
    assert before is not None and confirmed is not None
    assert confirmed.at_ms > before.at_ms and confirmed.offsets == ends(store) != before.offsets
    assert not (versions / "v2").exists()

    # A run that is killed before it has saved does not change the version, and the next run removes its files.
    store.stores[0].put("a", None)
    store.stores[1].put("c", ValueAndTimestamp(3, 1_000))
    store.commit()
    incremental.run(spark, log, store.config, versions / "v1", versions / "v2")
    assert [path.name for path in versions.glob(".*")] == [".v2_changelog"]
    assert incremental.read_state(versions / "v1") == confirmed
    kind, reason, rows = made(spark, store, log, versions / "v1", versions / "v3")
    assert (kind, reason) == ("merged", "2 entries came since the last run")
    assert [row[1:3] for row in rows] == [("b", 2), ("c", 3)]
    assert list(versions.glob(".*")) == []
    # Repetition is safe: it builds on the same version again.
    assert made(spark, store, log, versions / "v1", versions / "v4")[2] == rows

    # A topic that was created again is another topic, even if it is longer than the last run's offsets.
    recreate_topic(store.kafka, store.changelog, 2, COMPACT_LATE)
    store.kafka.produce(store.changelog, [("z", (9).to_bytes(8, "big"))] * 40, partition=0)
    kind, reason, rows = made(spark, store, log, versions / "v4", versions / "v5")
    assert kind == "full" and "was deleted and created again" in reason
    assert [row[1:3] for row in rows] == [("z", 9)]


def test_rule_29_what_compaction_took_is_no_difference_and_nothing_is_lost_by_increments(
    spark: SparkSession, logged: MakeStore, tmp_path: Path
) -> None:
    """With the broker's own log cleaner."""
    store = logged("key_value", COMPACT_SOON)
    log = log_of(store)
    for number in range(20):
        store.stores[0].put(f"k{number}", ValueAndTimestamp(number, 1_000))
    store.commit()
    snapshot, offsets = store.snapshot("s1"), ends(store)
    made(spark, store, log, None, tmp_path / "v1")
    for number in range(5):
        store.stores[0].put(f"k{number}", None if number % 2 else ValueAndTimestamp(100, 1_000))
    store.commit()

    def cleaned() -> bool:
        store.stores[0].put("filler", ValueAndTimestamp(time.monotonic_ns(), 1_000))
        store.commit()
        time.sleep(0.25)
        first = store.kafka.consume(store.changelog)[0]
        return (first.key, first.value) != (b"k0", bytes(8))

    with cleaned_often(store.kafka):
        wait_until(cleaned, 90, "a log without the first record of k0")
    found = reconcile(spark, frame_of(spark, store, snapshot), log, store.config, offsets)
    assert found.equal and found.rows == 20, found.first
    assert found.expected + found.moved_on == 21  # `filler` has arrived since
    assert found.moved_on > 1
    found.close()
    kind, _, rows = made(spark, store, log, tmp_path / "v1", tmp_path / "v2")
    assert kind == "merged"
    assert_same(rows, in_files(store, store.snapshot("s2")))


def json_log(store: LoggedStore, **more: object) -> StoreLog:
    layout = StoreLayout("key_value", False, "STRING", "JSON")
    log = StoreLog(application="app", store="facts", layout=layout, schemas=StoreSchemas(), topic=store.changelog)
    return replace(log, **more)


def test_undeclared_json_gets_its_type_from_all_values_and_invalid_bytes_are_reported(
    spark: SparkSession, logged: MakeStore, tmp_path: Path
) -> None:
    store = logged("key_value", COMPACT_LATE)
    log = json_log(store)
    store.kafka.produce(store.changelog, [("a", '{"n": 1}'), ("b", '{"n": 2}')], partition=0)
    store.kafka.produce(store.changelog, [("c", '{"n": 3}')], partition=1)
    with incremental.run(spark, log, store.config, None, tmp_path / "v1") as run:
        assert run.rows.schema["value"].dataType.simpleString() == "struct<n:bigint>"
        (tmp_path / "v1").mkdir()
        run.save(tmp_path / "v1")
    store.kafka.produce(store.changelog, [("a", '{"n": 9}')], partition=0)
    assert made(spark, store, log, tmp_path / "v1", tmp_path / "v2")[0] == "merged"
    store.kafka.produce(store.changelog, [("b", '{"n": 2, "more": "x"}'), ("bad", b"\xff{")], partition=0)
    kind, reason, rows = made(spark, store, log, tmp_path / "v2", tmp_path / "v3")
    assert kind == "full" and "do not have the type" in reason
    values = {row[1]: row[2] for row in rows}
    assert values == {"a": Row(more=None, n=9), "b": Row(more="x", n=2), "c": Row(more=None, n=3), "bad": None}
    assert [last.value for row in rows if isinstance(last := row[-1], Row)] == [b"\xff{"]


def test_stores_are_read_from_topics_that_are_not_changelogs_too(spark: SparkSession, logged: MakeStore) -> None:
    store = logged("key_value", {"cleanup.policy": "delete", "retention.ms": "-1"})
    application = unique("app")
    store.kafka.produce(store.changelog, [("a", "1"), ("b", "2"), (None, "3"), ("a", "4")], partition=0)
    store.kafka.produce(store.changelog, [("c", "5"), ("c", None)], partition=1)
    # A global store holds all partitions of its topic.
    everything = read_changelog(spark, json_log(store, is_global=True), store.config)
    assert [tuple(row)[:3] for row in everything.rows.orderBy("key").collect()] == [(-1, "a", 4), (-1, "b", 2)]
    everything.close()
    # A source topic that serves as changelog counts up to the application's committed offset.
    admin = store.kafka.admin
    at = ConsumerGroupTopicPartitions(application, [TopicPartition(store.changelog, 0, 2)])
    admin.alter_consumer_group_offsets([at])[application].result(30)
    source = read_changelog(spark, json_log(store, of_source=True, application=application), store.config)
    assert [tuple(row)[:3] for row in source.rows.orderBy("key").collect()] == [(0, "a", 1), (0, "b", 2)]
    assert source.offsets == {0: 2, 1: 0}
    before = source.rows.withColumn("timestamp", F.lit(0).cast("timestamp"))  # the store's times, as for an earlier equal record
    held = reconcile(spark, before, json_log(store, of_source=True, application=application), store.config, source.offsets)
    assert held.equal and held.rows == 2
    held.close()
    source.close()


def test_problems_of_a_topic_are_reported_before_spark_reads(logged: MakeStore) -> None:
    store, windows = logged("key_value"), logged("window")
    log = log_of(store)
    for each in (store, windows):
        each.kafka.produce(each.changelog, [("k" * 20, b"v")] * 5, partition=0)
    with pytest.raises(ChangelogError, match="topic nowhere, the changelog of store facts, does not exist"):
        log_range(replace(log, topic="nowhere"), store.config)
    with pytest.raises(WrongPartitionsError, match="has 2 partitions, and store facts of app is in 3 tasks"):
        log_range(replace(log, partitions=3), store.config)
    with pytest.raises(WrongPartitionsError, match="there is no partition 7"):
        log_range(log, store.config, {0: 1, 7: 1})
    with pytest.raises(ChangelogError, match=f"{store.changelog}-0 ends at offset 5, before the requested 99"):
        log_range(log, store.config, {0: 99})
    alter(store.kafka, store.changelog, "cleanup.policy", "delete")  # brokers do not delete records of topics that are only compacted
    cut(store.kafka, store.changelog, 3)
    alter(store.kafka, store.changelog, "cleanup.policy", "compact")
    with pytest.raises(ChangelogError, match=f"{store.changelog}-0 begins at offset 3, though it is only compacted"):
        require_whole(log, log_range(log, store.config))
    cut(windows.kafka, windows.changelog, 3)
    (note,) = require_whole(log_of(windows), log_range(log_of(windows), windows.config)).notes
    assert f"{windows.changelog}-0 begins at offset 3" in note and "retention" in note
