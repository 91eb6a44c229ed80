"""Seeds with a real Spark: history aggregated by Spark plus the rest of the stream equal the stream of the whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.assets.spark.seeds.command import main as seed_command
from penstock.assets.spark.seeds.command import offsets_as_of, offsets_at_end
from penstock.assets.spark.seeds.job import SeedError, write_seed
from penstock.assets.spark.seeds.partitioner import slots
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import State
from penstock.runtime.seeds.install import install_seed
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.snapshots.catalogue import find
from tests.support import Kafka, unique, wait_until
from tests.support.engine import reaches
from tests.support.seeded import HOUR_MS, MINUTE_MS, build
from tests.support.seeds import entries

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector, and PySpark still calls functions deprecated by Python 3.12: not in our code.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "default::DeprecationWarning"),
]

FACTORY = "tests.support.seeded:build"
STORES = ("totals", "hourly", "visits", "latest")
FIRST_MS = 1_790_000_000_000 // HOUR_MS * HOUR_MS
KEYS = [f"customer-{number}" for number in range(30)]
STEPS = 12
Record = tuple[str, bytes | None, int]


def half(number: int) -> list[Record]:
    """Return six hours of orders: key, value, time. Customers return within a visit and after it, and some of their orders are
    withdrawn."""
    found = []
    for step in range(STEPS):
        for index, key in enumerate(KEYS):
            at = FIRST_MS + ((number * STEPS + step) // 2) * HOUR_MS + (step % 2) * 3 * MINUTE_MS + index * 1_000 + number
            withdrawn = (step + index) % 11 == 5
            value = None if withdrawn else json.dumps({"amount": step * index, "city": "Oslo" if index % 3 else None}).encode()
            if (step + index) % 4:
                found.append((key, value, at))
    return found


def history(spark: SparkSession, records: list[Record], folder: Path) -> DataFrame:
    """Return the topic's records as a data lake keeps them."""
    rows = [(key, None if value is None else value.decode(), at) for key, value, at in records]
    spark.createDataFrame(rows, "key string, order string, at long").write.parquet(str(folder))
    return spark.read.parquet(str(folder)).withColumn("order", F.from_json("order", "amount int, city string"))


def summed_up(orders: DataFrame) -> Mapping[str, DataFrame]:
    """Compute the state of every store in Spark alone."""
    kept = orders.where("order is not null").withColumn("time", F.timestamp_millis("at"))
    latest = F.timestamp_millis(F.max("at")).alias("timestamp")
    hour, visit = F.window("time", "1 hour"), F.session_window("time", "5 minutes")
    hours = kept.groupBy("key", hour.alias("w")).agg(F.count("*").alias("value"), latest)
    visits = kept.groupBy("key", visit.alias("w")).agg(
        F.min("at").alias("window_start"), F.max("at").alias("window_end"), F.count("*").alias("value")
    )
    return {
        "totals": kept.groupBy("key").agg(F.count("*").alias("orders"), F.sum("order.amount").alias("amount"), latest),
        "hourly": hours.select("key", F.col("w.start").alias("window_start"), F.col("w.end").alias("window_end"), "value", "timestamp"),
        "visits": visits.drop("w"),
        "latest": orders.select("key", F.col("at").alias("valid_from"), F.col("order").alias("value")),
    }


def run_to_the_end(broker: Kafka, config: StreamsConfig, topic: str) -> None:
    with KafkaStreams(build(), config) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        wait_until(lambda: broker.committed_offsets(config.application_id, topic) == broker.end_offsets(topic), 60, "the end of the input")
        streams.close()


@pytest.fixture
def orders(broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the application's input topic, new."""
    topic = broker.create_topic("orders", 2)
    monkeypatch.setenv("PENSTOCK_TEST_ORDERS", topic)
    return topic


def state(config: StreamsConfig) -> dict[tuple[str, str], dict[str, dict[bytes, bytes]]]:
    """Return all entries of a closed application, by task and store."""
    folder = config.state_dir / config.application_id
    return {(task, store): entries(folder / task / "rocksdb" / store) for task in ("0_0", "0_1") for store in STORES}


def test_history_by_spark_and_the_rest_of_the_stream_are_the_stream_of_the_whole(
    spark: SparkSession, broker: Kafka, orders: str, tmp_path: Path
) -> None:
    topic, name = orders, unique("seeded")
    common = {"bootstrap.servers": broker.bootstrap_servers, "state.dir": str(tmp_path / "state")}
    for number in (0, 1):
        records = half(number)
        broker.produce(topic, [(key, value) for key, value, _ in records], timestamps=[at for *_, at in records])
    ends = broker.end_offsets(topic)
    middle = offsets_as_of(name, FACTORY, common, half(1)[0][2])
    assert offsets_at_end(name, FACTORY, common) == {topic: ends}
    assert all(0 < middle[topic][number] < ends[number] for number in ends)
    first = history(spark, half(0), tmp_path / "lake")
    found = write_seed(summed_up(first), application=name, factory=FACTORY, config=common, root=str(tmp_path / "seeds"), offsets=middle)
    assert found.left_empty == []
    assert {store.name: store.rows for store in found.stores}["totals"] == len(KEYS)

    seed = find(tmp_path / "seeds")
    assert (seed.manifest.kind, seed.tasks) == ("seed", ["0_0", "0_1"])
    for task in seed.tasks:  # a real producer has assigned the keys to the same partitions as the seed
        [totals] = [store for store in seed.task(task).stores if store.name == "totals"]
        local = seed.task_place(task).local
        assert local is not None
        keys = entries(local / totals.directory)["keyValueWithTimestamp"]
        assert {partition_for(key, 2) for key in keys} == {TaskId.parse(task).partition}
        produced = {record.key for record in broker.consume(topic) if record.partition == TaskId.parse(task).partition}
        assert set(keys) <= produced

    config = StreamsConfig({**common, "application.id": name})
    install_seed(build().resolved(config), config, found.place)
    run_to_the_end(broker, config, topic)
    whole = StreamsConfig({**common, "application.id": unique("whole")})
    run_to_the_end(broker, whole, topic)
    assert state(config) == state(whole)


def test_rows_that_do_not_fit_leave_no_seed_and_are_all_reported(spark: SparkSession, tmp_path: Path) -> None:
    rows = [("a", 1, 2, 5), ("a", 1, 2, 6), (None, 1, 2, 7), ("b", 1, None, 8)]
    totals = spark.createDataFrame(rows, "key string, orders int, amount int, timestamp long")
    with pytest.raises(SeedError) as caught:
        write_seed(
            {"totals": totals}, application="shop", factory=FACTORY, config={}, root=str(tmp_path), offsets={"seeded-orders": {0: 0, 1: 0}}
        )
    reported = str(caught.value)
    assert "2 rows do not fit" in reported
    assert "the key is null" in reported
    assert "amount" in reported
    assert "1 rows have the key (and time) of another row: b'a'" in reported
    assert not any(tmp_path.iterdir())


def test_each_task_has_a_place_of_its_own_in_sparks_shuffle(spark: SparkSession) -> None:
    for partitions in (1, 2, 7, 64):
        numbers = spark.createDataFrame([(number,) for number in slots(partitions)], "slot int")
        places = [row.place for row in numbers.select(F.pmod(F.hash("slot"), F.lit(partitions)).alias("place")).collect()]
        assert places == list(range(partitions))


def test_columns_that_are_missing_or_would_be_lost_are_reported_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    def refused(store: str, schema: str) -> str:
        with pytest.raises(SeedError) as caught:
            offsets = {"seeded-orders": {0: 0}}
            frame = spark.createDataFrame([], schema)
            write_seed({store: frame}, application="shop", factory=FACTORY, config={}, root=str(tmp_path), offsets=offsets)
        return str(caught.value)

    assert "no column 'timestamp'" in refused("totals", "key string, value string")
    assert "no column 'window_start'" in refused("hourly", "key string, value long, timestamp long")
    assert "'note' is neither key, time nor value" in refused(
        "visits", "key string, window_start long, window_end long, value long, note long"
    )
    assert "'valid_from' is string" in refused("latest", "key string, valid_from string, value string")
    assert "no column 'value'" in refused("totals", "key string, timestamp long")


def test_the_command_seeds_a_store_without_rows_in_all_its_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, offsets, streams = tmp_path / "lake", tmp_path / "offsets.json", tmp_path / "streams.toml"
    spark.createDataFrame([], "key string, value string, timestamp timestamp").write.parquet(str(lake))
    streams.write_text(f'[applications.shop]\nfactory = "{FACTORY}"\ninstances = 1\n[spark]\nmaster = "local[2]"\ndriver-memory = "512m"\n')
    monkeypatch.setenv("PENSTOCK_STREAMS", str(streams))
    offsets.write_text('{"seeded-orders": {"0": 3, "1": 4}}')
    command = typer.Typer()
    command.command()(seed_command)
    reported = ["-a", "shop", "--root", str(tmp_path / "seeds"), "--store", f"totals={lake}", "--offsets", str(offsets)]
    command(reported, standalone_mode=False)
    seed = find(tmp_path / "seeds")
    assert [len(seed.task(task).stores) for task in seed.tasks] == [4, 4]
    assert [at.next_offset for at in seed.manifest.inputs] == [3, 4]
    printed = capsys.readouterr().out
    assert "totals: 0 rows" in printed
    assert "begin empty: hourly, latest, visits" in printed
    assert str(seed.place) in printed
    with pytest.raises(typer.BadParameter, match="where the stream continues"):
        command([*reported, "--ends"], standalone_mode=False)


def test_a_seed_of_one_store_is_installed_with_the_others_empty(spark: SparkSession, broker: Kafka, orders: str, tmp_path: Path) -> None:
    topic, name = orders, unique("seeded")
    common = {"bootstrap.servers": broker.bootstrap_servers, "state.dir": str(tmp_path / "state")}
    rows = spark.createDataFrame([("of before", 1, 2, FIRST_MS)], "key string, orders int, amount int, timestamp long")
    from_start = {topic: {0: 0, 1: 0}}
    found = write_seed({"totals": rows}, application=name, factory=FACTORY, config=common, root=str(tmp_path / "seeds"), offsets=from_start)
    assert (found.left_empty, [store.name for store in found.stores]) == (["hourly", "latest", "visits"], ["totals"])
    config = StreamsConfig({**common, "application.id": name})
    install_seed(build().resolved(config), config, found.place)
    broker.produce(topic, [(key, value) for key, value, _ in half(0)], timestamps=[at for *_, at in half(0)])
    run_to_the_end(broker, config, topic)
    whole = StreamsConfig({**common, "application.id": unique("whole")})
    run_to_the_end(broker, whole, topic)
    seeded, expected = state(config), state(whole)
    assert {at: seeded[at] for at in seeded if at[1] != "totals"} == {at: expected[at] for at in expected if at[1] != "totals"}
    totals = {key for (_, store), families in seeded.items() if store == "totals" for family in families.values() for key in family}
    assert b"of before" in totals
