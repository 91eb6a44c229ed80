"""The topology, without a broker."""

from __future__ import annotations

import msgspec

from examples.project.samples import TOPICS, samples
from examples.project.topology import READING, READINGS, ROOM, ROOMS, Reading, Room, build
from penstock import serdes
from penstock.testing import TopologyTestDriver


def test_a_room_has_the_readings_of_all_its_sensors() -> None:
    with TopologyTestDriver(build()) as driver:
        readings = driver.create_input_topic(READINGS, serdes.STRING, READING)
        rooms = driver.create_output_topic(ROOMS, serdes.STRING, ROOM)
        readings.pipe_input("sensor-1", Reading("kitchen", 21.5))
        readings.pipe_input("sensor-2", Reading("kitchen", 19.0))
        readings.pipe_input("sensor-3", Reading("cellar", 8.0))
        assert rooms.read_key_values_to_list() == [
            ("kitchen", Room(1, 21.5, 21.5)),
            ("kitchen", Room(2, 19.0, 21.5)),
            ("cellar", Room(1, 8.0, 8.0)),
        ]
        assert driver.get_key_value_store("rooms").get("cellar") == Room(1, 8.0, 8.0)


def test_the_sample_records_give_results() -> None:
    with TopologyTestDriver(build()) as driver:
        inputs = {topic: driver.create_input_topic(topic, serdes.STRING, serdes.BYTES) for topic in TOPICS.keys() - {ROOMS}}
        for topic, key, value, timestamp in samples(100, 1_000_000):
            inputs[topic].pipe_input(key, msgspec.json.encode(value), timestamp)
        rooms = driver.create_output_topic(ROOMS, serdes.STRING, ROOM).read_key_values_to_map()
    assert sum(room.readings for room in rooms.values()) == 100
