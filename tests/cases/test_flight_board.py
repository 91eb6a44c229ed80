"""The example application on the first flights of the year, without a broker: its answers are those that pandas finds in the same files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from examples.flight_board import data, topology, truth
from examples.flight_board.data import InputRecord
from examples.flight_board.truth import Truth
from penstock import Windowed, serdes
from penstock.testing import TopologyTestDriver

FLIGHTS = 400
LAST_HOUR = "2013-01-02"
"""Hours of weather from this day on are not needed."""
SKIPPING = {"deserialization.exception.handler": "penstock.LogAndContinueExceptionHandler"}


@pytest.fixture(scope="module")
def expected() -> Truth:
    return truth.compute(FLIGHTS)


@pytest.fixture(scope="module")
def found() -> Truth:
    """Return the outputs for the slice; the record that was cut in half is skipped."""
    with TopologyTestDriver(topology.build(), SKIPPING) as driver:
        inputs = {topic: driver.create_input_topic(topic, serdes.STRING, serdes.BYTES) for topic in (*data.TABLES, topology.FLIGHTS)}
        for record in slice_of_the_year():
            inputs[record.topic].pipe_input(None if record.key is None else record.key.decode(), record.value, record.timestamp)
        hour_key = serdes.time_windowed(serdes.STRING, topology.HOUR)
        carriers = driver.create_output_topic(topology.PER_CARRIER, serdes.STRING, serdes.JSON).read_key_values_to_list()
        hours = driver.create_output_topic(topology.PER_HOUR, hour_key, serdes.JSON).read_key_values_to_list()
        flights = driver.create_output_topic(topology.WITH_WEATHER, serdes.STRING, serdes.JSON).read_key_values_to_list()
    columns = (*topology.FLIGHT_FIELDS, *topology.WEATHER_FIELDS)
    return Truth(
        {str(key): cast(topology.Row, row) for key, row in carriers},
        {(str(cast(Windowed, key).key), cast(Windowed, key).window.start): cast(topology.Row, row) for key, row in hours},
        Counter(tuple(cast(topology.Row, row)[name] for name in columns) for _, row in flights),
    )


def slice_of_the_year() -> Iterator[InputRecord]:
    for record in data.table_records():
        if record.topic != topology.WEATHER or (record.key or b"").split(b"@")[1].decode() < LAST_HOUR:
            yield record
    yield from data.flight_records(FLIGHTS)


def test_the_answers_are_those_of_the_files(expected: Truth, found: Truth) -> None:
    assert truth.compare(expected, found) == []
    assert sum(cast(int, row["flights"]) for row in found.carriers.values()) == FLIGHTS


def test_a_difference_is_reported(expected: Truth) -> None:
    united = {**expected.carriers["UA"], "flights": 1}
    lost = Counter(expected.weather)
    some_flight = next(iter(lost))
    lost[some_flight] -= 1
    wrong = replace(expected, carriers={**expected.carriers, "UA": united}, weather=lost)
    reported = truth.compare(expected, wrong)
    assert len(reported) == 2
    assert reported[0].startswith("carrier UA: should be ") and reported[0].endswith(f"is {united}")


def test_the_truth_about_the_whole_year() -> None:
    whole = truth.compute()
    assert whole.carriers["UA"]["flights"] == 58_665
    assert sum(cast(int, row["flights"]) for row in whole.carriers.values()) == data.FLIGHTS_IN_ALL
    assert sum(cast(int, row["cancelled"]) for row in whole.hours.values()) == 8_255
    assert sum(whole.weather.values()) == data.FLIGHTS_IN_ALL


def test_the_stream_is_in_order_of_departure_and_has_one_record_that_was_cut() -> None:
    records = list(data.flight_records(FLIGHTS))
    assert [record.timestamp for record in records] == sorted(record.timestamp for record in records)
    assert len(records) == FLIGHTS + 1
    (bad,) = [number for number, record in enumerate(records) if not record.value.endswith(b"}")]
    before = records[bad - 1]
    assert records[bad] == replace(before, value=data.truncated(before.value))


def test_the_tables_come_before_what_is_joined_with_them() -> None:
    reported = {record.key: record.timestamp for record in data.table_records() if record.topic == topology.WEATHER}
    assert list(reported.values()) == sorted(reported.values())
    flights = data.read_flights()
    keys = [topology.weather_key(*pair).encode() for pair in zip(flights["origin"], flights["time_hour"], strict=True)]
    late = [key for key, departed in zip(keys, flights["departure_ms"], strict=True) if key in reported and reported[key] >= departed]
    assert late == []


def test_each_record_is_on_the_partition_of_its_key() -> None:
    by_key: dict[bytes, set[int]] = {}
    for record in data.flight_records(FLIGHTS):
        if record.key is not None:
            by_key.setdefault(record.key, set()).add(record.partition)
    assert all(len(partitions) == 1 for partitions in by_key.values())
    assert {partition for partitions in by_key.values() for partition in partitions} == set(range(data.PARTITIONS))


def test_record_count_is_what_is_sent() -> None:
    assert len(list(data.table_records())) + len(list(data.flight_records(FLIGHTS))) == data.record_count(FLIGHTS)
