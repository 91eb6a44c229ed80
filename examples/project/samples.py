"""Sample records: 40 sensors in eight rooms."""

from __future__ import annotations

import random
from collections.abc import Iterator

from examples.project.topology import READINGS, ROOMS, Reading

TOPICS: dict[str, dict[str, str]] = {READINGS: {}, ROOMS: {"cleanup.policy": "compact"}}
"""Every topic that must exist, with its settings."""


def samples(count: int, end_ms: int) -> Iterator[tuple[str, str, object, int]]:
    """`count` records, one per second up to `end_ms`: topic, key, value, timestamp in ms."""
    chance = random.Random(end_ms)
    for number in range(count):
        sensor = chance.randrange(40)
        reading = Reading(f"room-{sensor % 8}", round(chance.gauss(18 + sensor % 8, 1), 1))
        yield READINGS, f"sensor-{sensor}", reading, end_ms - (count - 1 - number) * 1000
