"""KIP-990: offsets at which a paused task stops, in every input, and where it continues after an operator has moved them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.coordination.commands import CommandClient
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized, Produced
from penstock.runtime.kafka.transactions import TransactionalProducer
from penstock.runtime.model.events import EventKind
from penstock.runtime.model.ids import TaskId, TopicPartition
from penstock.runtime.model.states import State
from penstock.runtime.model.timestamps import ConsumerRecord
from tests.support import Kafka, wait_until
from tests.support.engine import BAD, PAUSE, count_topology, counts_become, events_of_kind, paused, running, set_offset
from tests.support.logs import cut

Topic = Callable[..., str]
TASK = TaskId(0, 0)
TEXT = Consumed(serdes.STRING, value=serdes.STRING)
PAUSING: dict[str, object] = {"deserialization.exception.handler": PAUSE}


def pauses(streams: KafkaStreams) -> None:
    wait_until(lambda: paused(streams) == {"0_0"}, what="the pause")


# -- where it stops -------------------------------------------------------------------------------------------------------------


def test_rule_16_the_next_offset_of_every_input_is_committed_and_bad_records_in_both_inputs_pause_one_after_the_other(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    orders, customers, output = topic("orders"), topic("customers"), topic("out")
    builder = StreamsBuilder()
    table = builder.table(customers, TEXT, Materialized("customers"))
    joined = builder.stream(orders, TEXT).join(table, lambda order, customer: f"{order}:{customer}")
    joined.to(output, Produced(serdes.STRING, value=serdes.STRING))
    broker.produce(customers, [("c", "Ann"), ("c", BAD), ("c", "Bob")], timestamps=[1, 20, 30])
    broker.produce(orders, [("c", "1"), ("c", "2"), ("c", BAD), ("c", "3")], timestamps=[10, 11, 12, 40])
    with running(broker, builder.build(), application_id, state_dir, **PAUSING) as streams:
        # A malformed record has no timestamp: it is handled as soon as it is next in its input, before the other input's records.
        for bad, stand in ((customers, {customers: 1, orders: 0}), (orders, {customers: 2, orders: 2})):
            pauses(streams)
            event = events_of_kind(broker, application_id, EventKind.TASK_PAUSED)[-1]
            assert (event.payload["topic"], event.payload["offset"]) == (bad, stand[bad])
            assert {source: broker.committed_offsets(application_id, source)[0] for source in stand} == stand
            [task] = streams.paused_local_tasks()
            assert {place.topic: at for place, at in task.committed_offsets.items()} == stand
            set_offset(broker, application_id, bad, stand[bad] + 1)
            assert streams.resume(TASK)
        wait_until(lambda: len(broker.consume(output)) == 3, what="the joins")
    assert [record.value for record in broker.consume(output)] == [b"1:Ann", b"2:Ann", b"3:Bob"]


def test_rule_16_an_input_without_a_processed_record_is_committed_too(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    left, right, output = topic("left"), topic("right"), topic("out")
    builder = StreamsBuilder()
    builder.stream([left, right], TEXT).to(output, Produced(serdes.STRING, value=serdes.STRING))
    broker.produce(left, [("a", BAD)])
    with running(broker, builder.build(), application_id, state_dir, **PAUSING) as streams:
        pauses(streams)
        assert [broker.committed_offsets(application_id, source) for source in (left, right)] == [{0: 0}, {0: 0}]


def no_time(record: ConsumerRecord, partition_time: int) -> int:
    """Return no timestamp for one record, and an invalid one for another."""
    if record.value == "raises":
        raise KeyError("when")
    return None if record.value == "nonsense" else 1  # type: ignore[return-value]  # what user code may do


@pytest.mark.parametrize(
    ("bad", "error"),
    [((BAD, "v"), "UnicodeDecodeError"), (("a", "raises"), "KeyError"), (("a", "nonsense"), "StreamsError")],
    ids=["a bad key", "an extractor that raises", "an extractor that returns no number"],
)
def test_what_else_cannot_be_read_pauses_as_well(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, bad: tuple[bytes | str, str], error: str
) -> None:
    source, output = topic("in"), topic("out")
    builder = StreamsBuilder()
    stream = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING, timestamp_extractor=no_time))
    stream.group_by_key().count(Materialized("counts")).to_stream().to(output, Produced(serdes.STRING, value=serdes.LONG))
    broker.produce(source, [("a", "1"), bad, ("a", "2")])
    with running(broker, builder.build(), application_id, state_dir, **PAUSING) as streams:
        pauses(streams)
        [event] = events_of_kind(broker, application_id, EventKind.TASK_PAUSED)
        assert (event.payload["offset"], event.payload["error_type"]) == (1, error)
        set_offset(broker, application_id, source, 2)
        assert streams.resume(TASK)
        counts_become(broker, output, {"a": 2})


def test_a_task_whose_queue_was_full_when_it_was_paused_reads_on_after_its_resume(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    """Fetching of its partition was paused too then, and librdkafka keeps that when the partition is assigned again."""
    source, output = topic("in"), topic("out")
    records = 20_000
    broker.produce(source, [*[("a", "1")] * records, ("a", BAD), *[("a", "1")] * records])
    settings = {**PAUSING, "buffered.records.per.partition": 100}
    with running(broker, count_topology(source, output), application_id, state_dir, **settings) as streams:
        pauses(streams)
        set_offset(broker, application_id, source, records + 1)
        assert streams.resume(TASK)
        counts_become(broker, output, {"a": 2 * records})


def test_several_bad_records_one_after_another_are_skipped_one_by_one(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), *[("a", BAD)] * 4, ("a", "2"), ("a", BAD), ("a", "3")])
    bad = [1, 2, 3, 4, 6]
    with (
        running(broker, count_topology(source, output), application_id, state_dir, **PAUSING) as streams,
        CommandClient(application_id, broker.connection, "test") as client,
    ):
        for offset in bad:
            wait_until(lambda at=offset: paused(streams) and broker.committed_offsets(application_id, source) == {0: at}, what=f"{offset}")  # type: ignore[misc]
            shift = {"topic": source, "partition": 0, "from": offset, "to": offset + 1}
            assert client.send("shift", task=TASK, args=shift).ok
            assert client.send("resume", task=TASK).ok
        counts_become(broker, output, {"a": 3})
    assert [event.payload["offset"] for event in events_of_kind(broker, application_id, EventKind.TASK_PAUSED)] == bad


def test_the_other_tasks_lag_reaches_zero_while_one_is_paused_and_its_own_is_reported(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in", partitions=2), topic("out")
    broker.produce(source, [("a", "1"), ("a", BAD), ("a", "2")], partition=0)
    with running(broker, count_topology(source, output), application_id, state_dir, **PAUSING) as streams:
        pauses(streams)
        broker.produce(source, [("a", "3")] * 5, partition=0)
        broker.produce(source, [("b", "1")] * 100, partition=1)
        counts_become(broker, output, {"a": 1, "b": 100})

        def lags() -> dict[str, int]:
            """Of the last commit; before it, a task has no committed offset."""
            [thread] = streams.metadata_for_local_threads()
            return {
                str(task.task_id): sum(
                    task.end_offsets.get(place, 0) - task.committed_offsets.get(place, 0) for place in task.topic_partitions
                )
                for task in thread.active_tasks
            }

        wait_until(lambda: lags() == {"0_0": 7, "0_1": 0}, what="the lags")


# -- where it continues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "wanted"),
    [(3, {"a": 4}), (4, {"a": 3}), (100, {"a": 2})],
    ids=["by one", "by several", "beyond the end"],
)
def test_rule_17_a_shift_forwards(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, to: int, wanted: dict[str, int]
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", "2"), ("a", BAD), ("a", "3"), ("a", "4")])
    with running(broker, count_topology(source, output), application_id, state_dir, **PAUSING) as streams:
        pauses(streams)
        set_offset(broker, application_id, source, to)
        assert streams.resume(TASK)
        [resumed] = wait_until(lambda: events_of_kind(broker, application_id, EventKind.TASK_RESUMED), what="the event")
        assert resumed.payload["moved"] == {f"{source}-0": {"from": 2, "to": to}}
        if to == 100:
            wait_until(lambda: events_of_kind(broker, application_id, EventKind.OFFSET_RESET), what="the word that it was too far")
        broker.produce(source, [("b", "1")])
        counts_become(broker, output, {**wanted, "b": 1})
        resets = [
            (event.payload["to"], event.payload["policy"]) for event in events_of_kind(broker, application_id, EventKind.OFFSET_RESET)
        ]
        assert resets == ([(5, "nearest")] if to == 100 else [])


def test_rule_17_a_shift_backwards_processes_again_and_meets_the_record_again(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", "2"), ("a", BAD), ("a", "3")])
    with running(broker, count_topology(source, output), application_id, state_dir, **PAUSING) as streams:
        pauses(streams)
        set_offset(broker, application_id, source, 1)
        assert streams.resume(TASK)
        counts_become(broker, output, {"a": 3})
        pauses(streams)
        assert [event.payload["offset"] for event in events_of_kind(broker, application_id, EventKind.TASK_PAUSED)] == [2, 2]


@pytest.mark.parametrize(
    ("policy", "shift", "goes_on_at", "wanted"),
    [
        ("earliest", None, (4, "earliest"), {"a": 3}),
        ("latest", None, (5, "latest"), {"a": 2}),
        ("by_duration:PT1H", None, (4, "by_duration:PT3600S"), {"a": 3}),
        ("latest", 0, (4, "nearest"), {"a": 3}),
        ("none", 0, (4, "nearest"), {"a": 3}),
    ],
    ids=["earliest", "latest", "by duration", "shifted there, latest", "shifted there, none"],
)
def test_a_paused_task_whose_place_is_no_longer_on_the_log(
    broker: Kafka,
    topic: Topic,
    application_id: str,
    state_dir: Path,
    policy: str,
    shift: int | None,
    goes_on_at: tuple[int, str],
    wanted: dict[str, int],
) -> None:
    """Retention has moved the log's start past it. The policy decides, unless an operator has set the offset: then the nearest one is
    used."""
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", "2"), ("a", BAD), ("a", "3"), ("a", "4")])
    set_offset(broker, application_id, source, 0)  # so that `latest` and `none` begin there
    with running(broker, count_topology(source, output), application_id, state_dir, **PAUSING, **{"auto.offset.reset": policy}) as streams:
        pauses(streams)
        cut(broker, source, 4)
        if shift is not None:
            set_offset(broker, application_id, source, shift)
        assert streams.resume(TASK)
        [reset] = wait_until(lambda: events_of_kind(broker, application_id, EventKind.OFFSET_RESET), what="the event")
        assert (reset.payload["to"], reset.payload["policy"]) == goes_on_at
        assert reset.payload["from"] == (2 if shift is None else shift)
        broker.produce(source, [("b", "1")])
        counts_become(broker, output, {**wanted, "b": 1})


def test_a_paused_task_whose_place_is_gone_stops_the_client_where_the_policy_is_none(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", BAD), ("a", "2"), ("a", "3")])
    set_offset(broker, application_id, source, 0)
    with running(broker, count_topology(source, output), application_id, state_dir, **PAUSING, **{"auto.offset.reset": "none"}) as streams:
        pauses(streams)
        cut(broker, source, 3)
        assert streams.resume(TASK)
        wait_until(lambda: streams.state is State.ERROR, what="the end")
        assert f"{source}-0: offset 1 is out of range" in str(streams.failure)
        assert "penstock reset" in str(streams.failure)


def test_a_shift_beyond_the_end_counts_for_a_restart_too(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> None:
    """With `earliest`, records in the store's count would be counted again."""
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", "2"), ("a", BAD)])
    with running(broker, count_topology(source, output), application_id, state_dir, **PAUSING) as streams:
        pauses(streams)
    set_offset(broker, application_id, source, 50)
    with running(broker, count_topology(source, output), application_id, state_dir, **PAUSING):
        [reset] = wait_until(lambda: events_of_kind(broker, application_id, EventKind.OFFSET_RESET), what="the event")
        assert (reset.payload["from"], reset.payload["to"], reset.payload["policy"]) == (50, 3, "nearest")
        broker.produce(source, [("a", "3")])
        counts_become(broker, output, {"a": 3})


def test_rule_20_what_an_operator_sets_while_idle_offsets_are_committed_again_stands(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator sets the offset after the engine has read it, and before it commits it again."""
    monkeypatch.setattr("penstock.runtime.worker.assembly.RECOMMIT_MS", 1000)
    source, output = topic("in"), topic("out")
    broker.produce(source, [("a", "1"), ("a", BAD), ("a", "2")])
    shifted: list[int] = []
    real = TransactionalProducer.send_offsets

    def send(self: TransactionalProducer, offsets: dict[TopicPartition, object], *others: object, **named: object) -> None:
        if paused(streams) and TopicPartition(source, 0) in offsets and not shifted:
            set_offset(broker, application_id, source, 2)
            shifted.append(2)
        real(self, offsets, *others, **named)  # type: ignore[arg-type]  # passed on unchanged

    with running(broker, count_topology(source, output), application_id, state_dir, **PAUSING) as streams:
        pauses(streams)
        with monkeypatch.context() as patch:
            patch.setattr(TransactionalProducer, "send_offsets", send)
            wait_until(lambda: shifted, what="the shift in the middle of a commit")
            wait_until(lambda: broker.committed_offsets(application_id, source) != {}, what="the commit")
        assert broker.committed_offsets(application_id, source) == {0: 2}
        assert streams.resume(TASK)
        counts_become(broker, output, {"a": 2})
