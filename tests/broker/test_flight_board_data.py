"""The example's data on a separate broker (its topics have fixed names): loaded twice, after an interruption, over other data."""

from __future__ import annotations

from itertools import islice

import pytest

from examples.flight_board import data, topology
from examples.flight_board.data import LoadError
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from tests.support import Kafka

FLIGHTS = 300


def test_loading_may_be_interrupted_and_repeated_and_does_not_mix_slices(own_broker: EmbeddedBroker) -> None:
    servers = own_broker.bootstrap_servers
    kafka = Kafka(servers)
    data.create_topics(servers)
    assert data.send(servers, islice(data.table_records(), 500)) == 500  # then the process died
    reported: list[int] = []
    assert data.load(servers, FLIGHTS, reported.append) == data.record_count(FLIGHTS) - 500
    assert sum(reported) == data.record_count(FLIGHTS)

    before = {topic: kafka.end_offsets(topic) for topic in data.TOPICS}
    assert data.load(servers, FLIGHTS) == 0
    assert {topic: kafka.end_offsets(topic) for topic in data.TOPICS} == before

    expected = sorted((r.partition, r.timestamp, r.key, r.value) for r in data.flight_records(FLIGHTS) if r.key is not None)
    found = kafka.consume(topology.FLIGHTS)
    assert sorted((r.partition, r.timestamp, r.key, r.value) for r in found if r.key is not None) == expected

    with pytest.raises(LoadError, match=r"topic flights was loaded otherwise.*kafka-topics -- --delete --topic flights"):
        data.load(servers, FLIGHTS * 2)
    with pytest.raises(LoadError, match=r"topic flights"):
        data.load(servers, FLIGHTS // 2)

    kafka.delete_topic(topology.FLIGHTS)
    kafka.create_topic(topology.FLIGHTS, 1, exact=True)
    with pytest.raises(LoadError, match="topic flights has 1 partitions, not 6"):
        data.load(servers, FLIGHTS)
