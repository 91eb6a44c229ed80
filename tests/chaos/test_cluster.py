"""The short form of `make chaos ARGS=cluster`: what ends with other leaders, and with the death of a broker that coordinates."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.orchestration.embedded.ports import free_port
from tests.chaos.cluster import BROKERS, ClusterChaos, Round
from tests.support.network import TwoSidedCluster


@pytest.mark.nightly
def test_each_output_comes_once_when_leaders_change_and_when_the_broker_that_coordinates_the_group_is_killed(
    application_id: str, tmp_path: Path
) -> None:
    """It took minutes until outputs came again: requests waited for the broker that was away, and connected to it without a pause."""
    with TwoSidedCluster(tmp_path / "brokers", [free_port() for _ in range(BROKERS)]) as cluster:
        chaos = ClusterChaos(cluster, tmp_path, application_id, seed=1)
        chaos.run([Round.ELECTION, Round.GROUP])
    assert chaos.gaps.keys() == {Round.ELECTION, Round.GROUP}
