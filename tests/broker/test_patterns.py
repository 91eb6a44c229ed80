"""Streams of all topics that match a pattern: existing ones, and those created while the application runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.states import State
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, unique, wait_until
from tests.support.engine import reaches, running

Topic = Callable[..., str]


def count_all(prefix: str, output: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(re.compile(f"{prefix}-[a-z]+"), Consumed(serdes.STRING, value=serdes.STRING))
    counts = stream.group_by_key().count(Materialized("counts"))
    counts.to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()


def latest(broker: Kafka, output: str) -> dict[str, int]:
    return {(record.key or b"").decode(): int.from_bytes(record.value or b"", "big") for record in broker.consume(output)}


def inputs(streams: KafkaStreams) -> set[str]:
    tasks = [task for thread in streams.metadata_for_local_threads() for task in thread.active_tasks]
    return {at.topic for task in tasks for at in task.topic_partitions}


def test_topics_that_match_are_read_also_those_that_are_made_later(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    prefix, output = unique("matching"), topic("out")
    broker.create_topic(f"{prefix}-a", exact=True)
    broker.create_topic(f"{prefix}-1", exact=True)  # does not match
    broker.produce(f"{prefix}-a", [("x", "1"), ("y", "1")])
    broker.produce(f"{prefix}-1", [("x", "1")])
    more: dict[str, object] = {"commit.interval.ms": 100, "application.server": "localhost:1"}
    with running(broker, count_all(prefix, output), application_id, state_dir, **more) as streams:
        wait_until(lambda: latest(broker, output) == {"x": 1, "y": 1}, what="the counts of the first topic")
        broker.create_topic(f"{prefix}-b", exact=True)
        broker.produce(f"{prefix}-b", [("x", "2"), ("z", "2")])
        broker.produce(f"{prefix}-a", [("y", "2")])
        counted = {"x": 2, "y": 2, "z": 1}
        wait_until(lambda: latest(broker, output) == counted, what="the counts of both, behind those of before")
        reaches(streams, State.RUNNING)
        assert inputs(streams) == {f"{prefix}-a", f"{prefix}-b"}
        assert streams.query_metadata_for_key("counts", "x", serdes.STRING).partition == 0
    with running(broker, count_all(prefix, output), application_id, state_dir) as streams:
        assert inputs(streams) == {f"{prefix}-a", f"{prefix}-b"}
