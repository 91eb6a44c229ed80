"""The topology: readings of sensors become a summary per room.

readings ── by room ── aggregate in the store `rooms` ─► rooms
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock import Grouped, StreamsBuilder, Topology, serdes

READINGS, ROOMS = "readings", "rooms"


@dataclass(frozen=True, slots=True)
class Reading:
    """A record of the topic `readings`; its key is the sensor."""

    room: str
    celsius: float


@dataclass(frozen=True, slots=True)
class Room:
    """A record of the topic `rooms`; its key is the room."""

    readings: int
    coldest: float
    warmest: float


READING, ROOM = serdes.json(Reading), serdes.json(Room)


def build() -> Topology:
    """A summary of the sensors' readings per room."""
    builder = StreamsBuilder()
    (
        builder.stream(READINGS, key=serdes.STRING, value=READING)
        .group_by(lambda sensor, reading: reading.room, Grouped(serdes.STRING, name="by-room"))
        .aggregate(lambda: Room(0, float("inf"), float("-inf")), summarized, "rooms", value=ROOM)
        .to_stream()
        .to(ROOMS)
    )
    return builder.build()


def summarized(_room: str, reading: Reading, so_far: Room) -> Room:
    return Room(so_far.readings + 1, min(so_far.coldest, reading.celsius), max(so_far.warmest, reading.celsius))
