"""Source partitions with lost positions: the log was truncated, or the topic created again; each policy, per topic and in the
configuration."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.model.states import State
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.engine import (
    BAD,
    PAUSE,
    client,
    count_topology,
    counts_become,
    events_of_kind,
    on_worker,
    paused,
    reaches,
    running,
    set_offset,
    texts,
    texts_become,
    worker_of,
)
from tests.support.logs import cut, recreate_topic

Topic = Callable[..., str]
HOUR_MS = 3_600_000


def copy(source: str, output: str, policy: AutoOffsetReset | str | None = None) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING, offset_reset_policy=policy))
    stream.to(output, Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


def stand_still(streams: KafkaStreams, still: bool) -> None:
    """Suspend or resume a client's reader, as if its process were stopped."""
    worker = worker_of(streams)

    def hold() -> None:
        consumer = worker._assembled.reader._consumer
        (consumer.pause if still else consumer.resume)(consumer.assignment())

    on_worker(worker, hold)


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (AutoOffsetReset.earliest(), ["day", "half", "now"]),
        (AutoOffsetReset.by_duration(HOUR_MS), ["half", "now"]),
        ("by_duration:PT1M", ["now"]),
        (AutoOffsetReset.latest(), ["now"]),
    ],
    ids=str,
)
def test_where_a_topic_without_a_committed_offset_begins(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, policy: AutoOffsetReset | str, wanted: list[str]
) -> None:
    """The topic's own policy overrides the configured one, which would stop the client."""
    source, output = topic("in"), topic("out")
    now_ms = time.time_ns() // 1_000_000
    broker.produce(source, [("k", "day"), ("k", "half")], timestamps=[now_ms - 24 * HOUR_MS, now_ms - HOUR_MS // 2])
    with running(broker, copy(source, output, policy), application_id, state_dir, **{"auto.offset.reset": "none"}):
        broker.produce(source, [("k", "now")])
        texts_become(broker, output, wanted)


@pytest.mark.parametrize(
    ("policy", "wanted", "to"),
    [
        ("earliest", ["1", "4", "5"], 3),
        ("latest", ["1", "5"], 4),
        ("by_duration:PT1H", ["1", "4", "5"], 3),
        ("by_duration:PT0S", ["1", "5"], 4),
    ],
)
def test_the_log_is_cut_past_a_reader_that_runs(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, policy: str, wanted: list[str], to: int
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("k", "1")])
    set_offset(broker, application_id, source, 0)
    with running(broker, copy(source, output), application_id, state_dir, **{"auto.offset.reset": policy}) as streams:
        texts_become(broker, output, ["1"])
        stand_still(streams, True)
        broker.produce(source, [("k", "2"), ("k", "3"), ("k", "4")])
        cut(broker, source, 3)
        stand_still(streams, False)
        [reset] = wait_until(lambda: events_of_kind(broker, application_id, EventKind.OFFSET_RESET), what="the event")
        broker.produce(source, [("k", "5")])
        texts_become(broker, output, wanted)
        assert (reset.payload["from"], reset.payload["to"], reset.payload["reason"]) == (1, to, "is out of range")
        assert streams.state is State.RUNNING


@pytest.mark.parametrize("records", [2, 30], ids=["shorter", "longer"])
@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_the_topic_is_recreated_under_a_running_reader(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, policy: str, records: int
) -> None:
    """A longer topic causes no error: its id differs, which is checked each second."""
    source, output = topic("in"), topic("out")
    broker.produce(source, [("k", f"old {n}") for n in range(10)])
    set_offset(broker, application_id, source, 0)
    with running(broker, copy(source, output), application_id, state_dir, **{"auto.offset.reset": policy}) as streams:
        wait_until(lambda: len(texts(broker, output)) == 10, what="the old ones")
        sources = worker_of(streams)._assembled.sources
        wait_until(lambda: source in sources._known, what="a first look")
        stand_still(streams, True)
        recreate_topic(broker, source)
        broker.produce(source, [("k", f"new {n}") for n in range(records)])
        stand_still(streams, False)
        wait_until(lambda: events_of_kind(broker, application_id, EventKind.OFFSET_RESET), what="the event")
        broker.produce(source, [("k", "last")])
        wait_until(lambda: texts(broker, output)[-1:] == ["last"], 40, "the last one")
        resets = [event.payload for event in events_of_kind(broker, application_id, EventKind.OFFSET_RESET)]
        assert resets[0]["from"] in range(10, max(10, records) + 1), "of the longer one some may have been read before the look"
        assert {each["policy"] for each in resets} == {policy}
        if policy == "earliest":
            # Records of the longer topic that were read before the check are discarded, and read again.
            seen = [value for value in texts(broker, output) if value.startswith("new")]
            assert seen[-records:] == [f"new {n}" for n in range(records)]
            assert len({(each["from"], each["to"]) for each in resets}) == 1, "reported again only after a rollback before the commit"
        assert streams.state is State.RUNNING


def test_a_recreated_topic_stops_the_client_if_the_policy_is_none(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("k", "old")])
    set_offset(broker, application_id, source, 0)
    with client(broker, copy(source, output), application_id, state_dir, **{"auto.offset.reset": "none"}) as streams:
        streams.start()
        reaches(streams, State.RUNNING)
        texts_become(broker, output, ["old"])
        sources = worker_of(streams)._assembled.sources
        wait_until(lambda: source in sources._known, what="a first look")
        recreate_topic(broker, source)
        broker.produce(source, [("k", "new")] * 5)
        wait_until(lambda: streams.state is State.ERROR, 40, "the end")
        assert "is of a topic that was deleted and created again" in str(streams.failure)


def test_a_topic_recreated_while_its_task_is_paused_is_reset_by_the_policy_on_resume(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("k", "old"), ("k", BAD), ("k", "old")])
    settings: dict[str, object] = {"deserialization.exception.handler": PAUSE}
    with running(broker, count_topology(source, output), application_id, state_dir, **settings) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        sources = worker_of(streams)._assembled.sources
        known = wait_until(lambda: sources._known.get(source), what="a first look")
        recreate_topic(broker, source)
        broker.produce(source, [("k", f"new {n}") for n in range(5)])
        wait_until(lambda: sources._known[source] != known, what="the look that sees it")
        assert paused(streams) == {"0_0"}
        assert streams.resume(TaskId(0, 0))
        counts_become(broker, output, {"k": 6})
        [reset] = events_of_kind(broker, application_id, EventKind.OFFSET_RESET)
        assert (reset.payload["from"], reset.payload["to"]) == (None, 0)  # Kafka has deleted the offset with the topic
