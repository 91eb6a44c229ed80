"""The short form of `make chaos ARGS=fleet`: a few events in the life of a fleet, and what must be true after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from tests.chaos.fleet import FleetChaos

EVENTS, RATE = 4, 500
DRAWN = [
    pytest.param(248, 0, id="join, kill, join, leave, without standbys"),
    pytest.param(227, 1, id="join and kill at once, restart and freeze at once, with a standby", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("seed", "standbys"), DRAWN)
def test_whatever_befalls_a_fleet_each_output_comes_once_and_every_store_is_as_its_changelog_says(
    own_broker: EmbeddedBroker, application_id: str, tmp_path: Path, seed: int, standbys: int
) -> None:
    chaos = FleetChaos(own_broker, tmp_path, application_id, seed, rate=RATE, standbys=standbys)
    chaos.run(EVENTS)
    assert sum(map(len, chaos.gaps.values())) >= EVENTS / 2
