"""The broker goes away while an application runs, for longer than a transaction may last, and comes back: it goes on by itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestration.embedded.kafka import EmbeddedBroker
from runtime.states import State
from tests.broker.engine import count_topology, counts_become, running
from tests.support import Kafka


@pytest.mark.parametrize("away_seconds", [1.0, 14.0])
def test_it_goes_on_when_the_broker_is_back_and_nothing_is_lost(
    own_broker: EmbeddedBroker, application_id: str, state_dir: Path, away_seconds: float
) -> None:
    broker = Kafka(own_broker.bootstrap_servers)
    source, output = broker.create_topic("in", 2), broker.create_topic("out", 2)
    broker.produce(source, [(f"k{n % 5}", "v") for n in range(100)])
    with running(broker, count_topology(source, output, caching=False), application_id, state_dir) as streams:
        counts_become(broker, output, {f"k{n}": 20 for n in range(5)})
        broker.produce(source, [(f"k{n % 5}", "v") for n in range(5)])  # likely to be in flight when the broker goes
        own_broker.stop()
        time.sleep(away_seconds)
        assert streams.state in (State.RUNNING, State.REBALANCING)
        own_broker.start()
        broker.produce(source, [(f"k{n % 5}", "v") for n in range(95)])
        counts_become(broker, output, {f"k{n}": 40 for n in range(5)}, seconds=90)
        assert streams.failure is None
