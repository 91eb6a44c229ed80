"""The engine on a real broker: visibility of outputs, restarts, offsets that are gone or moved, records without key or value."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.kafka.input_reader import BATCH
from penstock.runtime.model.errors import MissingSourceTopicError, ProcessingError, StateLostError
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import State, TaskState
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.engine import (
    BAD,
    client,
    count_topology,
    counts_become,
    events,
    events_of_the_start_are_committed,
    latest,
    reaches,
    running,
    set_offset,
    worker_of,
)
from tests.support.logs import recreate_topic

Topic = Callable[..., str]
GUARANTEES = ("exactly_once_v2", "at_least_once")


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("caching", [True, False])
def test_a_count_per_key_continues_after_a_restart(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, guarantee: str, caching: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source, output = topic("in", partitions=3), topic("out", partitions=3)
    settings: dict[str, object] = {"processing.guarantee": guarantee, "commit.interval.ms": 100}
    broker.produce(source, [(f"k{n % 7}", "v") for n in range(700)])
    with running(broker, count_topology(source, output, caching=caching), application_id, state_dir, **settings) as streams:
        counts_become(broker, output, {f"k{n}": 100 for n in range(7)})
        assert {task.state for thread in streams.metadata_for_local_threads() for task in thread.active_tasks} == {TaskState.RUNNING}
        wait_until(lambda: sum(broker.committed_offsets(application_id, source).values()) == 700, what="the last commit")
        streams.close(leave_group=False)
    assert streams.state is State.NOT_RUNNING
    broker.produce(source, [(f"k{n % 7}", "v") for n in range(70)])
    with running(broker, count_topology(source, output, caching=caching), application_id, state_dir, **settings) as streams:
        counts_become(broker, output, {f"k{n}": 110 for n in range(7)})
        wait_until(lambda: sum(broker.committed_offsets(application_id, source).values()) == 770, what="the last commit")
        assert streams.store("counts").get("k3") == 110
    assert "is dead" not in caplog.text, "the first run has closed"


def test_state_is_rebuilt_from_the_changelog_when_the_disk_is_gone(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    broker.produce(source, [(f"k{n % 5}", "v") for n in range(100)])
    with running(broker, count_topology(source, output), application_id, state_dir):
        counts_become(broker, output, {f"k{n}": 20 for n in range(5)})
    shutil.rmtree(state_dir / application_id)
    broker.produce(source, [(f"k{n % 5}", "v") for n in range(5)])
    with running(broker, count_topology(source, output), application_id, state_dir):
        counts_become(broker, output, {f"k{n}": 21 for n in range(5)})


def test_a_failed_record_leaves_nothing_visible(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    builder = StreamsBuilder()
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
    stream.to(output, Produced(serdes.STRING, value=serdes.STRING))
    stream.foreach(lambda key, value: 1 // (value != "poison"))
    with running(broker, builder.build(), application_id, state_dir, **{"commit.interval.ms": 60_000}) as streams:
        events_of_the_start_are_committed(broker, application_id)
        broker.produce(source, [("a", "1")])
        wait_until(lambda: broker.consume(output, committed=False), what="the output in an open transaction")
        broker.produce(source, [("a", "poison")])
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, ProcessingError)
        assert f"{source}-0@1" in str(streams.failure)
    assert broker.consume(output) == []
    assert b"1" in {record.value for record in broker.consume(output, committed=False)}
    [reported] = [event for event in events(broker, application_id) if event.kind is EventKind.SHUTDOWN]
    assert "ZeroDivisionError" in str(reported.payload["reason"])
    assert broker.committed_offsets(application_id, source) == {}


def test_what_was_processed_and_committed_is_counted(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in", partitions=2), topic("out")
    broker.produce(source, [("a", "1")] * 3, partition=0)
    broker.produce(source, [("b", "1")] * 2, partition=1)
    with running(broker, count_topology(source, output), application_id, state_dir) as streams:
        counts_become(broker, output, {"a": 3, "b": 2})
        metrics = streams.metrics()
        processed = {dict(metric.tags)["task-id"]: value for metric, value in metrics.items() if metric.name == "process-total"}
        assert processed == {"0_0": 3, "0_1": 2}
        assert next(value for metric, value in metrics.items() if metric.name == "commit-total") >= 1


def test_tombstones_and_records_without_a_key(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    builder = StreamsBuilder()
    builder.table(source, Consumed(serdes.STRING, value=serdes.STRING), Materialized("table", caching=False)).to_stream().to(
        output, Produced(serdes.STRING, value=serdes.STRING)
    )
    broker.produce(source, [("a", "1"), (None, "lost"), ("b", "1"), ("a", None), ("c", "1")])
    with running(broker, builder.build(), application_id, state_dir) as streams:
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 5}, what="the commit")
        assert dict(streams.store("table").all()) == {"b": "1", "c": "1"}
    assert {record.key: record.value for record in broker.consume(output)} == {b"a": None, b"b": b"1", b"c": b"1"}
    assert all(record.key is not None for record in broker.consume(output))


def test_slow_code_does_not_make_the_queue_grow(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    """A turn polls more records than slow code processes in it: without a bound, the queue would in the end hold the whole topic."""
    source, output, sent = topic("in"), topic("out"), 20_000
    buffered: list[int] = []
    slow = True

    def slowly(value: str) -> str:
        if slow:
            time.sleep(0.001)
        buffered.append(worker_of(streams)._assembled.tasks.buffered)
        return value

    builder = StreamsBuilder()
    texts = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).map_values(slowly)
    texts.to(output, Produced(serdes.STRING, value=serdes.STRING))
    with running(broker, builder.build(), application_id, state_dir, **{"buffered.records.per.partition": 1_000}) as streams:
        broker.produce(source, [("k", f"{number}") for number in range(sent)])
        wait_until(lambda: len(buffered) >= 3_000, 120, "3,000 processed records")
        slow = False
        wait_until(lambda: len(broker.consume(output)) == sent, 60, "all records")
    assert max(buffered) <= 1_000 + BATCH
    assert [record.value for record in broker.consume(output)] == [f"{number}".encode() for number in range(sent)]


def test_headers_and_timestamps_reach_the_output(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    builder = StreamsBuilder()
    builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).to(output, Produced(serdes.STRING, value=serdes.STRING))
    broker.produce(source, [("a", "1")], timestamps=[1_357_016_400_000], headers=[("trace", b"x")])
    with running(broker, builder.build(), application_id, state_dir):
        [record] = wait_until(lambda: broker.consume(output), what="the output")
    assert record.timestamp == 1_357_016_400_000
    assert record.headers == (("trace", b"x"),)


def test_records_are_repartitioned_by_their_new_key(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in", partitions=3), topic("out", partitions=3)
    builder = StreamsBuilder()
    (
        builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
        .select_key(lambda key, value: value)
        .group_by_key()
        .count(Materialized("counts"))
        .to_stream()
        .to(output, Produced(serdes.STRING, value=serdes.LONG))
    )
    config: dict[str, object] = {
        "default.key.serde": serdes.STRING,
        "default.value.serde": serdes.STRING,
        "repartition.purge.interval.ms": 200,
    }
    broker.produce(source, [(f"k{n}", f"v{n % 4}") for n in range(200)])
    with running(broker, builder.build(), application_id, state_dir, **config):
        counts_become(broker, output, {f"v{n}": 50 for n in range(4)})
        [repartition] = [name for name in broker.topics() if name.startswith(application_id) and name.endswith("-repartition")]
        broker.produce(source, [("k", "v0")])  # one more commit, so that a purge follows it
        counts_become(broker, output, {"v0": 51, "v1": 50, "v2": 50, "v3": 50})
        wait_until(lambda: len(broker.consume(repartition)) < 200, what="the purge")


# -- offsets --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disk", ["kept", "gone"])
def test_rule_14_state_without_committed_offsets_is_refused(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, disk: str
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", "2")])
    with running(broker, count_topology(source, output), application_id, state_dir):
        counts_become(broker, output, {"a": 2})
    admin = broker.admin
    wait_until(lambda: not admin.describe_consumer_groups([application_id])[application_id].result(10).members, what="an empty group")
    admin.delete_consumer_groups([application_id])[application_id].result(10)
    if disk == "gone":
        shutil.rmtree(state_dir / application_id)
    with client(broker, count_topology(source, output), application_id, state_dir) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the refusal")
        assert isinstance(streams.failure, StateLostError)
        assert f"--topic {source}:0 --to-offset 2" in str(streams.failure) or disk == "gone"
        assert f"penstock reset {application_id}" in str(streams.failure)
        assert f"group {application_id} has no committed offset" in str(streams.failure)


def test_rule_14_a_topic_is_recreated_while_nothing_runs(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    """Without state the policy applies; with state the start is refused, and the message's command lets the new topic be read."""
    source, output, settings = topic("in"), topic("out"), {"auto.offset.reset": "latest"}
    broker.produce(source, [("a", "old"), ("a", "old")])
    with running(broker, count_topology(source, output), application_id, state_dir, **settings):
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 2}, what="the position of the start")
    recreate_topic(broker, source)
    with running(broker, count_topology(source, output), application_id, state_dir, **settings):
        broker.produce(source, [("a", "1"), ("a", "2")])
        counts_become(broker, output, {"a": 2})
    recreate_topic(broker, source)
    broker.produce(source, [("a", "3"), ("a", "4"), ("a", "5")])
    with client(broker, count_topology(source, output), application_id, state_dir, **settings) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the refusal")
        assert isinstance(streams.failure, StateLostError)
        assert f"--topic {source}:0 --to-earliest" in str(streams.failure)
    set_offset(broker, application_id, source, 0)
    with running(broker, count_topology(source, output), application_id, state_dir, **settings):
        counts_become(broker, output, {"a": 5})


def test_rule_19_an_offset_moved_while_its_task_runs_is_reported(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runtime.worker.assembly.MOVED_OFFSETS_MS", 200)
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", "2"), ("a", "3")])
    with running(broker, count_topology(source, output), application_id, state_dir):
        counts_become(broker, output, {"a": 3})
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3}, what="the commit")
        admin = broker.admin
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(application_id, [TopicPartition(source, 0, 1)])])[
            application_id
        ].result(10)
        [moved] = wait_until(
            lambda: [event for event in events(broker, application_id) if event.kind is EventKind.OFFSET_MOVED], what="the event"
        )
        assert (moved.payload["committed"], moved.payload["expected"]) == (1, 3)
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3}, what="our own offset again")
    assert latest(broker, output) == {"a": 3}


def commits_of_idle_offsets(broker: Kafka) -> None:
    """Wait until the offsets topic receives a record."""
    before = sum(broker.end_offsets("__consumer_offsets").values())
    wait_until(lambda: sum(broker.end_offsets("__consumer_offsets").values()) > before, what="a commit of idle offsets")


def test_rule_20_offsets_of_idle_and_paused_tasks_are_committed_again_as_they_are(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runtime.worker.assembly.RECOMMIT_MS", 1500)
    source, output = topic("in", partitions=2), topic("out")
    broker.produce(source, [("a", "1"), ("a", BAD)], partition=0)
    broker.produce(source, [("b", "1")], partition=1)
    settings: dict[str, object] = {"deserialization.exception.handler": "penstock.LogAndPauseExceptionHandler"}
    with running(broker, count_topology(source, output), application_id, state_dir, **settings) as streams:
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 1, 1: 1}, what="the commits")
        commits_of_idle_offsets(broker)  # the next is 1.5 s away
        admin = broker.admin
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(application_id, [TopicPartition(source, 0, 2)])])[
            application_id
        ].result(10)
        commits_of_idle_offsets(broker)
        assert broker.committed_offsets(application_id, source) == {0: 2, 1: 1}  # the operator's offset for the paused task is kept
        assert streams.resume(TaskId(0, 0)) is True


@pytest.mark.parametrize(("policy", "wanted"), [("earliest", {"a": 3}), ("latest", {"a": 1})])
def test_an_offset_out_of_range_is_reset_by_the_policy_and_reported(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, policy: str, wanted: dict[str, int]
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("x", "v")] * 10)
    admin = broker.admin
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(application_id, [TopicPartition(source, 0, 3)])])[
        application_id
    ].result(10)
    next(iter(admin.delete_records([TopicPartition(source, 0, 10)]).values())).result(10)
    broker.produce(source, [("a", "v")] * 2)
    with running(broker, count_topology(source, output), application_id, state_dir, **{"auto.offset.reset": policy}):
        [reset] = wait_until(
            lambda: [event for event in events(broker, application_id) if event.kind is EventKind.OFFSET_RESET], what="the event"
        )
        assert (reset.payload["from"], reset.payload["to"], reset.payload["policy"]) == (3, 10 if policy == "earliest" else 12, policy)
        broker.produce(source, [("a", "v")])
        counts_become(broker, output, wanted)


def test_an_offset_that_is_out_of_range_stops_the_client_where_the_policy_is_none(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("x", "v")] * 2)
    with client(broker, count_topology(source, output), application_id, state_dir, **{"auto.offset.reset": "none"}) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert "auto.offset.reset = none" in str(streams.failure)


# -- missing topics -----------------------------------------------------------------------------------------------------------------


def test_a_missing_source_topic_is_named(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    with client(broker, count_topology("no-such-topic", topic("out")), application_id, state_dir) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert isinstance(streams.failure, MissingSourceTopicError)
        assert "no-such-topic" in str(streams.failure)


def test_pause_and_resume_of_the_whole_client(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    with running(broker, count_topology(source, output), application_id, state_dir) as streams:
        broker.produce(source, [("a", "1")])
        counts_become(broker, output, {"a": 1})
        streams.pause()
        broker.produce(source, [("a", "2")])
        assert streams.state is State.RUNNING
        assert latest(broker, output) == {"a": 1}
        streams.resume()
        counts_become(broker, output, {"a": 2})


def wordy(source: str, output: str) -> Topology:
    """Return a topology whose sink receives records that are too large for the broker."""
    builder = StreamsBuilder()
    builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).map_values(
        lambda value: value * 2_000_000 if value == "x" else value
    ).to(output, Produced(serdes.STRING, value=serdes.STRING))
    return builder.build()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_an_output_that_is_too_large_stops_the_client_and_says_so(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, guarantee: str
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", "x")])
    with client(broker, wordy(source, output), application_id, state_dir, **{"processing.guarantee": guarantee}) as streams:
        streams.start()
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert output in str(streams.failure)
        assert "2000001 bytes" in str(streams.failure)


def test_states_come_in_order(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    seen: list[State] = []
    streams = client(broker, count_topology(source, output), application_id, state_dir)
    streams.set_state_listener(lambda new, old: seen.append(new))
    with streams:
        streams.start()
        reaches(streams, State.RUNNING)
    assert seen[0] is State.REBALANCING
    assert seen[-3:] == [State.RUNNING, State.PENDING_SHUTDOWN, State.NOT_RUNNING]


@pytest.mark.parametrize("at", [State.REBALANCING, State.RUNNING, State.PENDING_SHUTDOWN, State.NOT_RUNNING])
def test_a_state_listener_that_raises_keeps_nothing_from_happening(
    broker: Kafka, application_id: str, state_dir: Path, caplog: pytest.LogCaptureFixture, at: State
) -> None:
    source, output = broker.create_topic("in", 1), broker.create_topic("out", 1)
    streams = client(broker, count_topology(source, output), application_id, state_dir)

    def listener(new: State, old: State) -> None:
        if new is at:
            raise ValueError("no")

    streams.set_state_listener(listener)
    streams.start()
    reaches(streams, State.RUNNING)
    assert streams.close(20_000)
    assert streams.state is State.NOT_RUNNING
    assert f"to {at.value}" in "".join(line.getMessage() for line in caplog.records if line.exc_info)
