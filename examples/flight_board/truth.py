"""Expected results of the flight board, computed from the package's files with pandas, and the comparison with actual results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import cast

import msgspec
import pandas as pd
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from examples.flight_board import topology
from examples.flight_board.data import HOUR_MS, read_file, read_flights
from penstock import Windowed, serdes

UNITED = 58_665
"""Flights of United in the whole year."""


CARRIER_FIELDS = ("name", "flights", "cancelled")
HOUR_FIELDS = ("airport", "flights", "cancelled", "delay_minutes", "mean_delay")


@dataclass(frozen=True, slots=True)
class Truth:
    """The expected results. `carriers`: by carrier code; `hours`: by (origin, start of the hour in ms);
    `weather`: each flight with its weather, counted."""

    carriers: Mapping[Hashable, Mapping[str, object]]
    hours: Mapping[Hashable, Mapping[str, object]]
    weather: Mapping[Hashable, int]


def compute(limit: int | None = None) -> Truth:
    """Expected results for the first `limit` flights (default: all)."""
    flights = read_flights(limit)
    return Truth(_carriers(flights), _hours(flights), _weather(flights))


def _carriers(flights: pd.DataFrame) -> dict[Hashable, dict[str, object]]:
    names = read_file("airlines.csv").set_index("carrier")["name"]
    grouped = flights.groupby("carrier")["dep_delay"].agg(flights="size", departed="count")
    return {
        code: {"name": names[code], "flights": int(row.flights), "cancelled": int(row.flights - row.departed)}
        for code, row in zip(grouped.index, grouped.itertuples(index=False), strict=True)
    }


def _hours(flights: pd.DataFrame) -> dict[Hashable, dict[str, object]]:
    names = read_file("airports.csv").set_index("faa")["name"]
    start = flights["departure_ms"] // HOUR_MS * HOUR_MS
    grouped = flights.groupby(["origin", start])["dep_delay"].agg(flights="size", departed="count", minutes="sum")
    return {
        (origin, int(hour)): {
            "airport": names[origin],
            "flights": int(row.flights),
            "cancelled": int(row.flights - row.departed),
            "delay_minutes": int(row.minutes),
            "mean_delay": int(row.minutes) / int(row.departed) if row.departed else None,
        }
        for (origin, hour), row in zip(grouped.index, grouped.itertuples(index=False), strict=True)
    }


def _weather(flights: pd.DataFrame) -> Counter[Hashable]:
    weather = read_file("weather.csv")[["origin", "time_hour", *topology.WEATHER_FIELDS]]
    joined = flights[list(topology.FLIGHT_FIELDS)].merge(weather, on=["origin", "time_hour"], how="left")
    columns = [[None if pd.isna(v) else v for v in joined[name].tolist()] for name in (*topology.FLIGHT_FIELDS, *topology.WEATHER_FIELDS)]
    return Counter(zip(*columns, strict=True))


def compare(truth: Truth, result: Truth) -> list[str]:
    """Return descriptions of the differences; empty if there are none."""
    return [
        *_differences("carrier", truth.carriers, result.carriers),
        *_differences("hour", truth.hours, result.hours),
        *_differences("flight with weather", truth.weather, result.weather),
    ]


def _differences(what: str, wanted: Mapping[Hashable, object], found: Mapping[Hashable, object], most: int = 5) -> list[str]:
    wrong = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
    lines = [f"{what} {key}: should be {wanted.get(key)}, is {found.get(key)}" for key in wrong[:most]]
    return [*lines, f"… and {len(wrong) - most} more differences of kind {what}"] if len(wrong) > most else lines


def read_results(bootstrap_servers: str, history: Path | None = None) -> Truth:
    """Return the application's outputs: those of its history, if they are files below `history`, then the committed records of its output
    topics, up to their current ends."""
    decode = msgspec.json.decode
    windowed = serdes.time_windowed(serdes.STRING, HOUR_MS).deserializer(topology.PER_HOUR)
    carriers: dict[Hashable, Mapping[str, object]] = {}
    hours: dict[Hashable, Mapping[str, object]] = {}
    weather: Counter[Hashable] = Counter()
    topics = (topology.PER_CARRIER, topology.PER_HOUR, topology.WITH_WEATHER)
    for topic, key, value in chain(_of_history(history, topics) if history else (), _committed(bootstrap_servers, topics)):
        row = decode(value)
        if topic == topology.PER_CARRIER:
            carriers[key.decode()] = row
        elif topic == topology.PER_HOUR:
            window = cast(Windowed, windowed(key))
            hours[str(window.key), window.window.start] = row
        else:
            weather[tuple(row[name] for name in (*topology.FLIGHT_FIELDS, *topology.WEATHER_FIELDS))] += 1
    return Truth(carriers, hours, weather)


def read_tables(folder: Path, truth: Truth) -> Truth:
    """Return the content of the Parquet tables `carriers` and `hourly_delay` under `folder`. Flights with weather have no table: the
    expected ones."""
    carriers = pd.read_parquet((folder / "carriers").resolve())
    hours = pd.read_parquet((folder / "hourly_delay").resolve())
    starts = pd.to_datetime(hours["window_start"], utc=True).astype("datetime64[ms, UTC]").astype("int64")
    return Truth(
        dict(zip(carriers["carrier"], _records(carriers, CARRIER_FIELDS), strict=True)),
        dict(zip(zip(hours["origin"], starts.tolist(), strict=True), _records(hours, HOUR_FIELDS), strict=True)),
        truth.weather,
    )


def _records(frame: pd.DataFrame, fields: Iterable[str]) -> list[dict[str, object]]:
    """Return the rows with these columns; None for missing numbers."""
    columns = {name: [None if pd.isna(value) else value for value in frame[name].tolist()] for name in fields}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _committed(bootstrap_servers: str, topics: Iterable[str]) -> Iterator[tuple[str, bytes, bytes]]:
    """The committed records of the topics, each partition up to its end. Raises KafkaException."""
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "flight-board-truth",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    with closing(Consumer(settings)) as consumer:
        known = consumer.list_topics(timeout=30).topics
        unread = {(topic, number) for topic in topics for number in known[topic].partitions}
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in unread])
        while unread:
            for message in consumer.consume(10_000, 0.2):
                topic, error = str(message.topic()), message.error()
                if error is None:
                    yield topic, _bytes(message.key()), _bytes(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard((topic, int(message.partition() or 0)))
                else:
                    raise KafkaException(error)


def _of_history(folder: Path, topics: Iterable[str]) -> Iterator[tuple[str, bytes, bytes]]:
    """The records of a backfill's output files; those of a task are in order."""
    for topic in topics:
        for path in sorted(folder.glob(f"*/{topic}/*.parquet")):
            rows = pd.read_parquet(path, columns=["sequence", "key", "value"]).sort_values("sequence")
            yield from ((topic, key, value) for key, value in zip(rows["key"], rows["value"], strict=True))


def _bytes(data: str | bytes | None) -> bytes:
    return data if isinstance(data, bytes) else b""
