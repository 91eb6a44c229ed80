"""KIP-990 on a real broker: a malformed record pauses its task, and no other."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from penstock import serdes
from penstock.orchestration.embedded.tools import run_tool
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.model.error_details import ErrorDetails
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.handlers import (
    DeserializationExceptionHandler,
    DeserializationHandlerResponse,
    ErrorHandlerContext,
    ProcessingExceptionHandler,
    ProcessingHandlerResponse,
)
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import State
from penstock.runtime.model.timestamps import ConsumerRecord
from tests.support import Kafka, wait_until
from tests.support.engine import BAD, PAUSE, client, count_topology, counts_become, events, paused, reaches, running

Topic = Callable[..., str]


def test_rule_16_the_bad_records_own_offset_is_committed_and_the_other_tasks_run_on(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    broker.produce(source, [("a", "1"), ("a", "2"), ("a", BAD), ("a", "3")], partition=0)
    broker.produce(source, [("b", "1")], partition=1)
    with running(
        broker, count_topology(source, output), application_id, state_dir, **{"deserialization.exception.handler": PAUSE}
    ) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        assert broker.committed_offsets(application_id, source)[0] == 2
        assert streams.state is State.RUNNING
        broker.produce(source, [("b", "2"), ("b", "3")], partition=1)
        counts_become(broker, output, {"a": 2, "b": 3})
        [reported] = [event for event in events(broker, application_id) if event.kind is EventKind.TASK_PAUSED]
        assert (reported.task, reported.payload["topic"], reported.payload["partition"], reported.payload["offset"]) == (
            "0_0",
            source,
            0,
            2,
        )
        assert reported.payload["value_base64"] == base64.b64encode(BAD).decode()
        assert reported.payload["error_type"] == "UnicodeDecodeError"
        assert str(reported.payload["node"]).startswith("KSTREAM-SOURCE-0000000000 (stream at ")
        assert [reported.payload[name] for name in ("part", "serde", "byte")] == ["value", "STRING", 0]
        assert str(reported.payload["stack"]).endswith("UnicodeDecodeError")
        [task] = streams.paused_local_tasks()
        assert task.paused is not None
        assert (task.paused.details, task.paused.since_ms) == (details_of_event(reported), reported.payload["since_ms"])


def details_of_event(event: Event) -> ErrorDetails:
    return msgspec.convert({field.name: event.payload[field.name] for field in fields(ErrorDetails)}, ErrorDetails)


def test_rule_16_the_offset_is_committed_when_the_bad_record_is_the_first(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", BAD)])
    with running(
        broker, count_topology(source, output), application_id, state_dir, **{"deserialization.exception.handler": PAUSE}
    ) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        assert broker.committed_offsets(application_id, source) == {0: 0}


def test_rule_17_the_java_tool_shifts_the_offset_while_the_application_runs_and_resume_continues_behind_it(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", BAD), ("a", "2")])
    with running(
        broker, count_topology(source, output), application_id, state_dir, **{"deserialization.exception.handler": PAUSE}
    ) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        arguments = ["--bootstrap-server", broker.bootstrap_servers, "--group", application_id, "--topic", f"{source}:0"]
        run_tool("kafka-consumer-groups", [*arguments, "--reset-offsets", "--shift-by", "1", "--execute"])
        assert broker.committed_offsets(application_id, source) == {0: 2}
        assert streams.resume(TaskId(0, 0)) is True
        assert paused(streams) == set()
        counts_become(broker, output, {"a": 2})
        assert streams.resume(TaskId(0, 0)) is False


def test_resume_without_a_shift_meets_the_record_again(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", BAD)])
    with running(
        broker, count_topology(source, output), application_id, state_dir, **{"deserialization.exception.handler": PAUSE}
    ) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        assert streams.resume(TaskId(0, 0)) is True
        wait_until(
            lambda: sum(event.kind is EventKind.TASK_PAUSED for event in events(broker, application_id)) == 2, what="the second pause"
        )
        assert broker.committed_offsets(application_id, source) == {0: 1}


def test_a_restart_resumes_at_the_bad_record(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", BAD), ("a", "2")])
    pausing: dict[str, object] = {"deserialization.exception.handler": PAUSE}
    with running(broker, count_topology(source, output), application_id, state_dir, **pausing) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
    skipping: dict[str, object] = {"deserialization.exception.handler": "penstock.LogAndContinueExceptionHandler"}
    with running(broker, count_topology(source, output), application_id, state_dir, **skipping):
        counts_become(broker, output, {"a": 2})
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 3}, what="the commit behind it")
    assert [event.payload["offset"] for event in events(broker, application_id) if event.kind is EventKind.RECORD_SKIPPED] == [1]


def test_rule_20_a_shift_by_command_is_a_compare_and_set(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", BAD), ("a", "2")])
    with (
        running(
            broker, count_topology(source, output), application_id, state_dir, **{"deserialization.exception.handler": PAUSE}
        ) as streams,
        CommandClient(application_id, broker.connection, "test") as client,
    ):
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        where: dict[str, object] = {"topic": source, "partition": 0}
        task = TaskId(0, 0)
        refused = client.send("shift", task=task, args={**where, "from": 0, "to": 2})
        assert not refused.ok
        assert "not at 0" in refused.reason
        assert broker.committed_offsets(application_id, source) == {0: 1}
        assert client.send("shift", task=task, args={**where, "from": 1, "to": 2}).ok
        assert broker.committed_offsets(application_id, source) == {0: 2}
        again = client.send("shift", task=task, args={**where, "from": 1, "to": 2})
        assert again.ok
        assert again.data["already"] is True
        assert client.send("resume", task=task).ok
        counts_become(broker, output, {"a": 2})
        late = client.send("shift", task=task, args={**where, "from": 3, "to": 9})
        assert not late.ok
        assert "not PAUSED" in late.reason


def test_a_task_is_paused_and_resumed_by_command(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1")])
    with (
        running(broker, count_topology(source, output), application_id, state_dir) as streams,
        CommandClient(application_id, broker.connection, "test") as client,
    ):
        counts_become(broker, output, {"a": 1})
        assert client.send("pause", task=TaskId(0, 0)).ok
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        broker.produce(source, [("a", "2")])
        assert client.send("resume", task=TaskId(0, 0)).ok
        counts_become(broker, output, {"a": 2})
        unknown = client.send("resume", task=TaskId(7, 7))
        assert not unknown.ok
        assert "there is no task 7_7" in unknown.reason


class PauseAlways(ProcessingExceptionHandler):
    """Answers PAUSE for every record for which the user's code fails."""

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> ProcessingHandlerResponse:
        return ProcessingHandlerResponse.PAUSE


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_rule_18_pause_from_the_processing_handler_leaves_no_trace_of_the_record(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, guarantee: str
) -> None:
    broken = {"on": True}

    def fail_on_poison(value: object) -> object:
        if value == "poison" and broken["on"]:
            raise ValueError("poison")
        return value

    source, output = topic("in"), topic("out")
    poisoned = StreamsBuilder()
    stream = poisoned.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
    stream.group_by_key().count(Materialized("counts", caching=False)).to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    stream.map_values(fail_on_poison).foreach(lambda key, value: None)  # after the count: its effects exist when this fails
    broker.produce(source, [("a", "1"), ("a", "2"), ("a", "poison"), ("a", "3")])
    settings: dict[str, object] = {
        "processing.exception.handler": PauseAlways,
        "processing.guarantee": guarantee,
        "commit.interval.ms": 100,
    }
    with running(broker, poisoned.build(), application_id, state_dir, **settings) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        assert broker.committed_offsets(application_id, source) == {0: 2}
        counts_become(broker, output, {"a": 2})
        broken["on"] = False
        assert streams.resume(TaskId(0, 0)) is True
        counts_become(broker, output, {"a": 4})


class Counting(DeserializationExceptionHandler):
    """Answers PAUSE, and keeps the number of calls."""

    asked: list[int] = []  # noqa: RUF012 (a class attribute: the engine creates the handler)

    def handle(self, context: ErrorHandlerContext, record: ConsumerRecord, exception: Exception) -> DeserializationHandlerResponse:
        Counting.asked.append(record.offset)
        return DeserializationHandlerResponse.PAUSE


def test_rule_16_the_handler_is_asked_once_per_meeting(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    Counting.asked.clear()
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", BAD), ("a", BAD)])
    with running(
        broker, count_topology(source, output), application_id, state_dir, **{"deserialization.exception.handler": Counting}
    ) as streams:
        wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
        assert Counting.asked == [1]
        request = ConsumerGroupTopicPartitions(application_id, [TopicPartition(source, 0, 2)])
        admin = broker.admin  # the client must outlive its requests
        admin.alter_consumer_group_offsets([request])[application_id].result(10)
        assert streams.resume(TaskId(0, 0)) is True
        wait_until(lambda: Counting.asked == [1, 2], what="the second bad record")
        reaches(streams, State.RUNNING)


def test_pause_and_resume_from_the_clients_own_state_listener_do_not_wait_for_themselves(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    """On the stream thread they take effect at once; at a change that another thread makes while the stream thread waits, they are
    refused."""
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1")])
    streams = client(broker, count_topology(source, output), application_id, state_dir)
    refused: list[str] = []
    answers: list[bool] = []

    def listener(new: State, old: State) -> None:
        if old is State.CREATED:
            try:
                streams.pause()
            except StreamsError as error:
                refused.append(str(error))
        elif new is State.RUNNING:
            streams.pause()
            answers.append(streams.resume(TaskId(0, 0)) or not streams.is_paused())

    streams.set_state_listener(listener)
    with streams:
        began = time.monotonic()
        streams.start()
        reaches(streams, State.RUNNING)
        assert time.monotonic() - began < 30
        assert answers == [False]
        assert "not from the state listener at the move to REBALANCING" in refused[0]
        broker.produce(source, [("a", "2")])
        streams.resume()
        assert not streams.is_paused()
        counts_become(broker, output, {"a": 2})


def test_the_other_tasks_hardly_notice_that_one_pauses(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    """A pause costs them only the commit that makes it durable."""
    source, output = topic("in", partitions=2), topic("out", partitions=2)
    seen: list[float] = []
    builder = StreamsBuilder()
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING))
    stream.filter(lambda key, value: key == "b").foreach(lambda key, value: seen.append(time.monotonic()))
    stream.group_by_key().count(Materialized("counts")).to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    stop = threading.Event()

    def feed() -> None:
        while not stop.wait(0.01):
            broker.produce(source, [("b", "1")], partition=1)

    settings: dict[str, object] = {"deserialization.exception.handler": PAUSE}
    with running(broker, builder.build(), application_id, state_dir, **settings) as streams:
        feeding = threading.Thread(target=feed)
        feeding.start()
        try:
            wait_until(lambda: len(seen) > 20, what="records of the other task")
            before = len(seen)
            broker.produce(source, [("a", "1"), ("a", BAD)], partition=0)
            wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")
            wait_until(lambda: len(seen) > before + 40, what="more records of the other task")
        finally:
            stop.set()
            feeding.join()
    times = seen[before - 10 :]
    assert max(later - earlier for earlier, later in pairwise(times)) < 1.0
