"""Partitions added to an input topic at run time: read if nothing depends on their number, otherwise reported; never read wrongly."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized, Produced
from penstock.runtime.model.errors import WrongPartitionsError
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.states import State
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker import input_partitions
from tests.support import Kafka, unique, wait_until
from tests.support.engine import (
    client,
    count_topology,
    counts_become,
    events,
    events_of_the_start_are_committed,
    reaches,
    running,
    set_offset,
)
from tests.support.instances import Application

Make = Callable[..., str]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_partitions, "INTERVAL_SECONDS", 0.3)


def copying(source: str, output: str) -> Topology:
    """Return a topology without state and repartitioning."""
    builder = StreamsBuilder()
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
    stream.map_values(str.upper).to(output, Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


def unlogged(source: str, output: str) -> Topology:
    """Return a topology with counts that have no changelog."""
    builder = StreamsBuilder()
    counts = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key()
    counts.count(Materialized("counts", logging=False)).to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    return builder.build()


def grow(broker: Kafka, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
    wait_until(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == partitions, 10, "the new partitions")


def read(*clients: KafkaStreams) -> list[int]:
    """Return the partitions that tasks read."""
    threads = [thread for streams in clients for thread in streams.metadata_for_local_threads()]
    return sorted(at.partition for thread in threads for task in thread.active_tasks for at in task.topic_partitions)


def values(broker: Kafka, output: str) -> list[bytes]:
    return sorted(record.value or b"" for record in broker.consume(output))


def test_without_state_they_are_taken_up_by_all_members_and_nothing_is_doubled(
    broker: Kafka, topic: Make, application_id: str, tmp_path: Path
) -> None:
    source, output = topic("in", partitions=2), topic("out")
    topology = copying(source, output)
    sent = [f"a{number}" for number in range(20)]
    with (
        running(broker, topology, application_id, tmp_path / "one", **{"client.id": "one"}) as one,
        running(broker, topology, application_id, tmp_path / "two", **{"client.id": "two"}) as two,
    ):
        broker.produce(source, [(value, value) for value in sent])
        wait_until(lambda: read(one, two) == [0, 1], what="a task for each partition")
        grow(broker, source, 5)
        wait_until(lambda: read(one, two) == [0, 1, 2, 3, 4], what="tasks for the new ones")
        broker.produce(source, [(f"b{number}", f"b{number}") for number in range(30)])
        expected = sorted([*(value.upper().encode() for value in sent), *(f"B{number}".encode() for number in range(30))])
        wait_until(lambda: len(values(broker, output)) >= len(expected), what="all records")
        assert values(broker, output) == expected
        reaches(one, State.RUNNING)
        reaches(two, State.RUNNING)
        found = [event for event in events(broker, application_id) if event.kind is EventKind.INPUT_PARTITIONS_ADDED]
        assert {(event.payload["read"], event.payload["partitions"], event.payload["reason"]) for event in found} == {(2, 5, None)}
    with running(broker, topology, application_id, tmp_path / "one", **{"client.id": "one"}) as one:
        wait_until(lambda: read(one) == [0, 1, 2, 3, 4], what="all of them after a restart")


@pytest.mark.parametrize("topology", [count_topology, unlogged])
def test_with_state_they_are_reported_and_left_and_a_restart_is_refused(
    broker: Kafka,
    topic: Make,
    application_id: str,
    state_dir: Path,
    caplog: pytest.LogCaptureFixture,
    topology: Callable[[str, str], Topology],
) -> None:
    caplog.set_level(logging.WARNING)
    source, output = topic("in", partitions=2), topic("out")
    with running(broker, topology(source, output), application_id, state_dir) as streams:
        broker.produce(source, [("a", "1"), ("b", "1")])
        counts_become(broker, output, {"a": 1, "b": 1})
        grow(broker, source, 3)
        reported = wait_until(
            lambda: [event for event in events(broker, application_id) if event.kind is EventKind.INPUT_PARTITIONS_ADDED], what="the event"
        )
        payload = reported[0].payload
        assert (payload["topic"], payload["read"], payload["partitions"]) == (source, 2, 3) and "counts" in str(payload["reason"])
        assert f"input topic {source} has 3 partitions" in caplog.text and "penstock reset" in caplog.text
        assert streams.state is State.RUNNING and read(streams) == [0, 1]
    with client(broker, topology(source, output), application_id, state_dir) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the refusal")
        assert isinstance(streams.failure, WrongPartitionsError)
        assert f"{source} has 3 partitions, and had 2" in str(streams.failure) and "penstock reset" in str(streams.failure)


def test_a_repartition_topic_that_gets_partitions_stops_the_client_before_keys_move_to_them(
    broker: Kafka, topic: Make, application_id: str, state_dir: Path
) -> None:
    """Its writer is the application itself: its producers would use the new partitions as soon as they learn of them."""
    source, output = topic("in", partitions=2), topic("out")
    builder = StreamsBuilder()
    by_value = Grouped(serdes.STRING, value=serdes.STRING, name="by-value")
    counts = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by(lambda key, value: value, by_value)
    counts.count(Materialized("counts")).to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    with running(broker, builder.build(), application_id, state_dir) as streams:
        broker.produce(source, [("a", "1"), ("b", "2")])
        counts_become(broker, output, {"1": 1, "2": 1})
        between = f"{application_id}-by-value-repartition"
        grow(broker, between, 5)
        wait_until(lambda: streams.state is State.ERROR, what="the stop")
        assert isinstance(streams.failure, WrongPartitionsError)
        assert f"internal topic {between} has 5 partitions, and had 2" in str(streams.failure)
        assert f"penstock reset {application_id}" in str(streams.failure)
        found = [event.payload for event in events(broker, application_id) if event.kind is EventKind.INPUT_PARTITIONS_ADDED]
        assert [(payload["topic"], payload["internal"]) for payload in found] == [(between, True)]


@pytest.mark.parametrize("policy", ["latest", "none"])
def test_what_is_written_before_they_are_noticed_is_read_whatever_the_policy(
    broker: Kafka, topic: Make, application_id: str, state_dir: Path, policy: str
) -> None:
    source, output = topic("in", partitions=2), topic("out")
    for number in range(2):
        set_offset(broker, application_id, source, 0, number)
    with running(broker, copying(source, output), application_id, state_dir, **{"auto.offset.reset": policy}) as streams:
        wait_until(lambda: read(streams) == [0, 1], what="a task for each partition")
        grow(broker, source, 3)
        broker.produce(source, [("early", "early")], partition=2)
        wait_until(lambda: read(streams) == [0, 1, 2], what="a task for the new one")
        broker.produce(source, [("late", "late")], partition=2)
        wait_until(lambda: b"LATE" in values(broker, output), what="the second record")
        assert values(broker, output) == [b"EARLY", b"LATE"]


@pytest.mark.parametrize("policy", ["latest", "none", "by_duration:PT0S"])
def test_partitions_that_are_added_while_nothing_runs_are_read_from_their_first_record(
    broker: Kafka, topic: Make, application_id: str, state_dir: Path, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    caplog.set_level(logging.INFO)
    source, output = topic("in", partitions=2), topic("out")
    for number in range(2):
        set_offset(broker, application_id, source, 0, number)
    settings = {"auto.offset.reset": policy}
    with running(broker, copying(source, output), application_id, state_dir, **settings) as streams:
        wait_until(lambda: read(streams) == [0, 1], what="a task for each partition")
    grow(broker, source, 3)
    broker.produce(source, [("early", "early")], partition=2)
    with running(broker, copying(source, output), application_id, state_dir, **settings):
        broker.produce(source, [("late", "late")], partition=2)
        wait_until(lambda: b"LATE" in values(broker, output), what="the second record")
    assert values(broker, output) == [b"EARLY", b"LATE"]
    assert f"{source}-2 was added after the application began to read its topic" in caplog.text


def test_a_partition_without_offsets_follows_the_policy_where_it_was_there_before_or_all_offsets_are_gone(
    broker: Kafka, topic: Make, application_id: str, state_dir: Path
) -> None:
    """No record of an existing partition is taken for one that came after the start, although others have committed offsets."""
    source, output = topic("in", partitions=2), topic("out")
    broker.produce(source, [("old", "old")], partition=1)
    set_offset(broker, application_id, source, 0, 0)
    settings = {"auto.offset.reset": "latest"}
    with running(broker, copying(source, output), application_id, state_dir, **settings):
        broker.produce(source, [("1", "1")], partition=1)
        wait_until(lambda: b"1" in values(broker, output), what="a record after the start")
    grow(broker, source, 3)
    broker.produce(source, [("lost", "lost")], partition=2)
    admin = broker.admin  # the client must outlive its requests
    admin.delete_consumer_groups([application_id])[application_id].result(30)
    with running(broker, copying(source, output), application_id, state_dir, **settings) as streams:
        wait_until(lambda: read(streams) == [0, 1, 2], what="a task for each partition")
        broker.produce(source, [("2", "2")], partition=2)
        wait_until(lambda: b"2" in values(broker, output), what="a record after the second start")
    assert values(broker, output) == [b"1", b"2"]


@pytest.fixture
def killed(broker: Kafka, topic: Make, application_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    """Yield an application by `latest` whose process hangs at the first record `hang`, for a kill before its commit."""
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    source, output = topic("in", partitions=2), topic("out")
    settings: dict[str, object] = {"auto.offset.reset": "latest"}
    application = Application(broker, application_id, source, output, tmp_path, settings, factory="tests.broker.worker_apps:troubled_copy")
    yield application
    application.kill_all()


def test_a_kill_before_the_first_commit_of_an_added_partition_loses_nothing_by_latest(
    broker: Kafka, application_id: str, tmp_path: Path, killed: Application
) -> None:
    killed.start("one")
    wait_until(lambda: broker.committed_offsets(application_id, killed.source) == {0: 0, 1: 0}, 60, "the first commit")
    grow(broker, killed.source, 3)
    broker.produce(killed.source, [("k", "early"), ("k", "hang")], partition=2)
    wait_until((tmp_path / "hung").exists, 60, "the record in front of the kill")
    killed.kill("one")
    broker.produce(killed.source, [("k", "late")], partition=2)
    killed.start("one")
    wait_until(lambda: values(broker, killed.output) == [b"early", b"hang", b"late"], 60, "all records")


def test_a_kill_loses_nothing_in_partitions_that_had_no_record_since_the_start_by_latest(
    broker: Kafka, application_id: str, killed: Application
) -> None:
    broker.produce(killed.source, [("k", "old")], partition=1)
    killed.start("one")
    events_of_the_start_are_committed(broker, application_id)
    wait_until(lambda: killed.reports().get("one", {}).keys() == {"0_0", "0_1"}, 60, "both tasks")
    broker.produce(killed.source, [("k", "first")], partition=0)
    wait_until(lambda: values(broker, killed.output) == [b"first"], 60, "a commit")
    killed.kill("one")
    broker.produce(killed.source, [("k", "while away")], partition=1)
    killed.start("one")
    broker.produce(killed.source, [("k", "last")], partition=0)
    wait_until(lambda: b"last" in values(broker, killed.output), 60, "the last record")
    wait_until(lambda: values(broker, killed.output) == [b"first", b"last", b"while away"], 10, "the record of the idle partition")


def test_a_topic_that_matches_a_pattern_and_was_created_while_nothing_ran_is_read_from_its_first_record(
    broker: Kafka, topic: Make, application_id: str, state_dir: Path
) -> None:
    prefix, output = unique("matching"), topic("out")

    def reading(*named: str) -> Topology:
        builder = StreamsBuilder()
        text = Consumed(serdes.STRING, value=serdes.STRING)
        streams = [builder.stream(re.compile(f"{prefix}-[a-z]"), text), *(builder.stream(source, text) for source in named)]
        for stream in streams:
            stream.map_values(str.upper).to(output, Produced(serdes.STRING, value=serdes.STRING))
        return builder.build()

    broker.create_topic(f"{prefix}-a", exact=True)
    settings = {"auto.offset.reset": "latest"}
    with running(broker, reading(), application_id, state_dir, **settings):
        events_of_the_start_are_committed(broker, application_id)
    broker.create_topic(f"{prefix}-b", exact=True)
    new_in_program = topic("other")
    broker.produce(f"{prefix}-b", [("k", "early")])
    broker.produce(new_in_program, [("k", "history")])
    with running(broker, reading(new_in_program), application_id, state_dir, **settings) as streams:
        wait_until(lambda: len(read(streams)) == 3, what="all tasks")
        broker.produce(new_in_program, [("k", "new")])
        wait_until(lambda: b"NEW" in values(broker, output), what="the record after the start")
        wait_until(lambda: values(broker, output) == [b"EARLY", b"NEW"], what="the topic's first record, and no history of the other")
