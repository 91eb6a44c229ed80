"""The short form of `make chaos`: a few kills at instants that a random one would not hit, and what must be true after them."""

from __future__ import annotations

from pathlib import Path

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from tests.chaos.rounds import BROKER, Chaos

SEED, RATE = 892, 600
KILLS = [
    "between two stores' commits",
    "between a checkpoint's flush and its file",
    "between the broker's commit and the stores'",
    "after a restore's write",
    BROKER,
]


def test_whenever_it_is_killed_each_output_comes_once_and_every_start_continues_from_its_offset(
    own_broker: EmbeddedBroker, application_id: str, tmp_path: Path
) -> None:
    chaos = Chaos(own_broker, tmp_path, application_id, SEED, rate=RATE)
    chaos.run(KILLS)
    assert chaos.kills >= len(KILLS)
