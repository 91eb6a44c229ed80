"""A task that pauses for each reason in turn, and an operator who skips each record: all records between them are processed."""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import State
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.engine import BAD, counts_become, events_of_kind, paused, running
from tests.support.logs import alter

Topic = Callable[..., str]
TEXT = Consumed(serdes.STRING, value=serdes.STRING)
RECORDS, PARTITIONS = 400, 2
LIMIT = 20_000
HANDLERS: dict[str, object] = {
    "deserialization.exception.handler": "penstock.LogAndPauseExceptionHandler",
    "processing.exception.handler": "penstock.LogAndPauseProcessingExceptionHandler",
    "production.exception.handler": "penstock.LogAndPauseProductionExceptionHandler",
}
REASONS: dict[bytes | str, str] = {BAD: "deserialization", "poison": "processing", "huge": "production"}


def fail_on_poison(value: str) -> str:
    if value == "poison":
        raise ValueError(value)
    return value


def three_ways_to_fail() -> Topology:
    """Return a topology that counts per key. A value fails in the serde, in user code behind the count, or makes state too large."""
    builder = StreamsBuilder()
    stream = builder.stream(os.environ["TEST_SOURCE"], TEXT)
    grouped = stream.group_by_key()
    counts = grouped.count(Materialized("counts", caching=False))
    counts.to_stream().to(os.environ["TEST_OUTPUT"], Produced(serdes.STRING, value=serdes.LONG))
    grouped.aggregate(str, lambda _, value, old: "x" * 2 * LIMIT if value == "huge" else old, Materialized("sizes", value=serdes.STRING))
    stream.map_values(fail_on_poison).foreach(lambda key, value: None)
    return builder.build()


def rows(partition: int) -> list[tuple[str, bytes | str]]:
    """Return records, of which some cannot be processed: also the first, the last, and several in a row."""
    chance = random.Random(partition)
    found: list[tuple[str, bytes | str]] = [(f"k{chance.randrange(10)}-{partition}", "v") for _ in range(RECORDS)]
    bad = list(REASONS)
    for place in (0, 99, 100, 101, RECORDS - 1, *chance.sample(range(1, RECORDS - 1), 5)):
        found[place] = found[place][0], bad[chance.randrange(3)]
    return found


@pytest.mark.parametrize(
    ("workers", "guarantee"),
    [
        (1, "at_least_once"),
        (2, "exactly_once_v2"),
        pytest.param(1, "exactly_once_v2", marks=pytest.mark.nightly),
        pytest.param(2, "at_least_once", marks=pytest.mark.nightly),
    ],
)
def test_the_records_between_those_that_are_skipped_are_all_processed(
    broker: Kafka,
    topic: Topic,
    application_id: str,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    guarantee: str,
    workers: int,
) -> None:
    source, output = topic("in", partitions=PARTITIONS), topic("out")
    monkeypatch.setenv("TEST_SOURCE", source)
    monkeypatch.setenv("TEST_OUTPUT", output)
    topology = three_ways_to_fail() if workers == 1 else f"{__name__}:three_ways_to_fail"
    settings = {**HANDLERS, "processing.guarantee": guarantee, "num.stream.threads": workers, "commit.interval.ms": 100}
    data = {partition: rows(partition) for partition in range(PARTITIONS)}
    bad = {
        (partition, offset): REASONS[value] for partition, found in data.items() for offset, (_, value) in enumerate(found) if value != "v"
    }
    counts = Counter(key for found in data.values() for key, value in found if value == "v")
    with (
        running(broker, topology, application_id, state_dir, **settings) as streams,
        CommandClient(application_id, broker.connection, "test") as commands,
    ):
        alter(broker, f"{application_id}-sizes-changelog", "max.message.bytes", str(LIMIT))
        for partition, found in data.items():
            broker.produce(source, found, partition=partition)
        for partition in data:
            for offset in sorted(offset for where, offset in bad if where == partition):
                at = partial(_paused_at, broker, streams, application_id, source, partition)
                wait_until(lambda at=at, offset=offset: at() == offset, 60, f"the pause at {partition}@{offset}")  # type: ignore[misc]  # defaults
                shift = {"topic": source, "partition": partition, "from": offset, "to": offset + 1}
                assert commands.send("shift", task=TaskId(0, partition), args=shift).ok
                assert commands.send("resume", task=TaskId(0, partition)).ok
        counts_become(broker, output, dict(counts), 60)
        wait_until(lambda: broker.committed_offsets(application_id, source) == dict.fromkeys(data, RECORDS), what="the end of the input")
        assert streams.state is State.RUNNING
    pauses = [event.payload for event in events_of_kind(broker, application_id, EventKind.TASK_PAUSED)]
    assert {(payload["partition"], payload["offset"]): payload["reason"] for payload in pauses} == bad
    stored = {record.key: record.value for record in broker.consume(f"{application_id}-counts-changelog")}
    assert stored == {key.encode(): struct.pack(">q", count) for key, count in counts.items()}
    if guarantee == "exactly_once_v2":
        assert len(broker.consume(output)) == counts.total()


def _paused_at(broker: Kafka, streams: KafkaStreams, group: str, source: str, partition: int) -> int | None:
    """Return the committed offset of the partition's task if it is paused."""
    return broker.committed_offsets(group, source).get(partition) if f"0_{partition}" in paused(streams) else None
