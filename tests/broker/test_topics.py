"""Topics on a real broker: queries, checks before a start, and creation (with Kafka Streams' names and settings)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ClientPartition

from penstock import serdes
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.topics import COORDINATION_CONFIG, TopicLayout, coordination_topic, guard_topic, prepare_topics
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Grouped, Materialized, Produced
from penstock.runtime.dsl.windows import TimeWindows
from penstock.runtime.kafka import topic_admin
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import (
    BrokerUnavailableError,
    MissingSourceTopicError,
    StoreChangedError,
    StreamsError,
    WrongPartitionsError,
)
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, unique, wait_until

Topic = Callable[..., str]


@pytest.fixture
def config(broker: Kafka, application_id: str) -> StreamsConfig:
    return StreamsConfig({"application.id": application_id, "bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def admin(config: StreamsConfig) -> TopicAdmin:
    return TopicAdmin(config)


def grouped(source: str, *, windows: TimeWindows | None = None) -> Topology:
    """Return a topology that groups by the value, which needs a repartition topic, and counts."""
    builder = StreamsBuilder()
    groups = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by(
        lambda key, value: value, Grouped(serdes.STRING, name="by-value")
    )
    if windows is None:
        groups.count(Materialized("counts"))
    else:
        groups.windowed_by(windows).count(Materialized("counts"))
    return builder.build()


def joined(stream: str, table: str) -> Topology:
    builder = StreamsBuilder()
    rows = builder.table(table, Consumed(serdes.STRING, value=serdes.STRING), Materialized("rows"))
    builder.stream(stream, Consumed(serdes.STRING, value=serdes.STRING)).join(rows, lambda left, right: left).foreach(
        lambda key, value: None
    )
    return builder.build()


def prepare(admin: TopicAdmin, topology: Topology, config: StreamsConfig, had: Collection[str] = ()) -> TopicLayout:
    return prepare_topics(admin, topology.resolved(config), config, had=had)


# -- queries -------------------------------------------------------------------------------------------------------------------


def test_a_topic_is_described_with_id_partitions_and_settings(admin: TopicAdmin, topic: Topic) -> None:
    name = topic("rows", partitions=3, config={"cleanup.policy": "compact", "delete.retention.ms": "5000"})
    absent = unique("absent")
    [(found, description)] = admin.describe([name, absent]).items()
    assert (found, description.partitions, description.compacted, description.delete_retention_ms) == (name, 3, True, 5000)
    assert description.topic_id and description.topic_id == admin.describe([name])[name].topic_id


def test_a_recreated_topic_has_another_id(admin: TopicAdmin, broker: Kafka) -> None:
    name = unique("again")
    broker.create_topic(name, exact=True)
    before = admin.describe([name])[name].topic_id
    broker.delete_topic(name)
    broker.create_topic(name, exact=True)
    assert admin.describe([name])[name].topic_id != before


def test_ends_are_what_committed_readers_can_reach(admin: TopicAdmin, topic: Topic, broker: Kafka) -> None:
    name = topic("in", partitions=2)
    broker.produce(name, [("k", "v")] * 3, partition=0)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique("open")})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(name, b"not committed", partition=0)
    producer.flush()
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    assert admin.end_offsets([first, second]) == {first: NextOffset(3), second: NextOffset(0)}
    producer.abort_transaction(20)
    admin.delete_records({first: 2})
    assert admin.start_offsets([first]) == {first: NextOffset(2)}


def test_an_offset_that_a_transaction_holds_cannot_be_read_yet(admin: TopicAdmin, topic: Topic, broker: Kafka) -> None:
    name, group = topic("in"), unique("group")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique("open")})
    producer.init_transactions(20)
    assert admin.committed_offsets(group) == {}
    consumer.commit(offsets=[ClientPartition(name, 0, 3)], asynchronous=False)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([ClientPartition(name, 0, 7)], consumer.consumer_group_metadata(), 20)
    with pytest.raises(StreamsError, match=f"{name}-0 in group {group} cannot be read"):
        admin.committed_offsets(group)
    producer.commit_transaction(20)

    def committed() -> dict[TopicPartition, NextOffset]:
        with suppress(StreamsError):  # the marker reaches the offsets a moment after the reply to the commit
            return admin.committed_offsets(group)
        return {}

    assert wait_until(committed, what="the commit") == {TopicPartition(name, 0): NextOffset(7)}
    consumer.close()


def test_an_absent_broker_is_named(application_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_admin, "ANSWER_SECONDS", 3.0)
    away = StreamsConfig({"application.id": application_id, "bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 1000})
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1"):
        TopicAdmin(away).describe(["any"])


# -- creation ------------------------------------------------------------------------------------------------------------------


def test_internal_topics_have_kafka_streams_names_partitions_and_settings(admin: TopicAdmin, config: StreamsConfig, topic: Topic) -> None:
    app = config.application_id
    layout = prepare(admin, grouped(topic("in", partitions=3)), config)
    repartition, changelog = f"{app}-by-value-repartition", f"{app}-counts-changelog"
    wait_until(lambda: len(admin.describe([repartition, changelog])) == 2, what="the topics, on every broker")
    found = admin.describe([repartition, changelog])
    assert {name: description.partitions for name, description in found.items()} == {repartition: 3, changelog: 3}
    assert found[repartition].config["cleanup.policy"] == "delete" and found[repartition].config["retention.ms"] == "-1"
    assert found[repartition].config["segment.bytes"] == "52428800"
    assert found[changelog].config["cleanup.policy"] == "compact"
    assert {found[name].config["message.timestamp.type"] for name in found} == {"CreateTime"}
    assert layout.repartition_topics == {repartition}
    assert layout.tasks == {TaskId(part, number) for part in (0, 1) for number in range(3)}


def test_a_changelog_of_state_that_is_recorded_is_lost_with_a_warning_and_a_new_one_is_made_without(
    admin: TopicAdmin, broker: Kafka, config: StreamsConfig, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if the coordination topic exists: after a failed start, and after a reset."""
    topology, changelog = grouped(topic("in")), f"{config.application_id}-counts-changelog"
    admin.create(coordination_topic(config.application_id), 1, COORDINATION_CONFIG)
    prepare(admin, topology, config)
    wait_until(lambda: changelog in admin.describe([changelog]), what="the changelog")
    broker.delete_topic(changelog)
    wait_until(lambda: changelog not in admin.describe([changelog]), what="its end")
    assert "lost" not in caplog.text
    prepare(admin, topology, config, had=[changelog])
    assert f"are lost, and are made again: {changelog}." in caplog.text and "--seed <URI> --reset-offsets" in caplog.text


def test_a_windowed_changelog_keeps_windows_a_day_longer_than_the_store(admin: TopicAdmin, config: StreamsConfig, topic: Topic) -> None:
    windows = TimeWindows.of_size_and_grace(60_000, 30_000)
    prepare(admin, grouped(topic("in"), windows=windows), config)
    changelog = f"{config.application_id}-counts-changelog"
    wait_until(lambda: changelog in admin.describe([changelog]), what="the changelog, on every broker")
    settings = admin.describe([changelog])[changelog].config
    assert settings["cleanup.policy"] == "compact,delete"
    assert int(settings["retention.ms"]) == 90_000 + 86_400_000


def test_the_topics_of_coordination_are_made_up_front(admin: TopicAdmin, config: StreamsConfig, topic: Topic) -> None:
    app = config.application_id
    layout = prepare(admin, grouped(topic("in")), config)
    names = [coordination_topic(app), guard_topic(app), f"{app}-events"]
    wait_until(lambda: len(admin.describe(names)) == 3, what="the topics, on every broker")
    found = admin.describe(names)
    assert {name: description.partitions for name, description in found.items()} == {
        coordination_topic(app): 1,
        guard_topic(app): 1,
        f"{app}-events": 1,
    }
    assert found[coordination_topic(app)].compacted
    assert layout.guard == TopicPartition(guard_topic(app), 0)


@pytest.mark.parametrize("by_an_earlier_version", [False, True])
def test_events_and_coordination_are_taken_from_a_machine_whose_clock_is_ahead(
    admin: TopicAdmin, broker: Kafka, config: StreamsConfig, topic: Topic, by_an_earlier_version: bool
) -> None:
    own = (f"{config.application_id}-events", coordination_topic(config.application_id))
    in_two_hours = time.time_ns() // 1_000_000 + 7_200_000
    if by_an_earlier_version:
        for name, policy in zip(own, ("delete", "compact"), strict=True):
            hour = {"message.timestamp.after.max.ms": "3600000"}  # the default from Kafka 4.0 on
            broker.create_topic(name, config={"cleanup.policy": policy, **hour}, exact=True)
            assert written(broker, name, in_two_hours) == KafkaError.INVALID_TIMESTAMP
    prepare(admin, grouped(topic("in")), config)
    for name in own:
        wait_until(lambda name=name: written(broker, name, in_two_hours) is None, what=f"{name} takes the record")  # type: ignore[misc]


def written(broker: Kafka, topic: str, timestamp: int) -> int | None:
    """Write a record with this timestamp; return the error code if it is refused."""
    errors: list[int | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(
        topic, b"value", b"key", timestamp=timestamp, on_delivery=lambda error, _: errors.append(None if error is None else error.code())
    )
    producer.flush(10)
    [error] = errors
    return error


def test_preparing_twice_changes_nothing(admin: TopicAdmin, config: StreamsConfig, topic: Topic) -> None:
    """It changes no topic's settings either: with the broker's timestamps, a changelog would lose the times of its records."""
    topology = grouped(topic("in", partitions=2))
    layout = prepare(admin, topology, config)
    names = [*layout.partitions, coordination_topic(config.application_id), f"{config.application_id}-events"]
    wait_until(lambda: len(admin.describe(names)) == len(names), what="the topics, on every broker")
    made = admin.describe(names)
    assert prepare(admin, topology, config) == layout
    assert admin.describe(names) == made


# -- refusals ------------------------------------------------------------------------------------------------------------------


def test_a_missing_source_topic_is_named_with_the_command_and_nothing_is_made(
    admin: TopicAdmin, config: StreamsConfig, broker: Kafka, topic: Topic
) -> None:
    missing = unique("missing")
    with pytest.raises(MissingSourceTopicError) as refused:
        prepare(admin, grouped(missing), config)
    command = f"kafka-topics --bootstrap-server {broker.bootstrap_servers} --create --topic {missing} --partitions"
    assert str(refused.value).splitlines()[1:] == [f"  {command} 6"]
    with pytest.raises(MissingSourceTopicError) as refused:
        prepare(admin, joined(missing, topic("table", partitions=4)), config)
    assert str(refused.value).splitlines()[1:] == [f"  {command} 4"], "as many as the topic that it is joined with"
    assert not any(name.startswith(config.application_id) for name in broker.topics())


def test_topics_that_are_joined_must_have_equal_partitions(admin: TopicAdmin, config: StreamsConfig, topic: Topic) -> None:
    stream, table = topic("stream", partitions=4), topic("table", partitions=2)
    with pytest.raises(WrongPartitionsError) as refused:
        prepare(admin, joined(stream, table), config)
    assert f"{stream} has 4" in str(refused.value) and f"{table} has 2" in str(refused.value)


def test_a_changelog_that_does_not_fit_its_input_any_more_is_refused(
    admin: TopicAdmin, config: StreamsConfig, topic: Topic, broker: Kafka
) -> None:
    changelog = f"{config.application_id}-counts-changelog"
    broker.create_topic(changelog, 5, {"cleanup.policy": "compact"}, exact=True)
    with pytest.raises(WrongPartitionsError, match=f"{changelog} has 5 partitions, but must have 2"):
        prepare(admin, grouped(topic("in", partitions=2)), config)


def test_a_changelog_that_is_not_compacted_is_refused(admin: TopicAdmin, config: StreamsConfig, topic: Topic, broker: Kafka) -> None:
    changelog = f"{config.application_id}-counts-changelog"
    broker.create_topic(changelog, 2, {"cleanup.policy": "delete"}, exact=True)
    with pytest.raises(StreamsError, match=f"{changelog} has cleanup.policy=delete, but must have compact"):
        prepare(admin, grouped(topic("in", partitions=2)), config)


def test_a_changelog_of_another_kind_of_store_is_refused(admin: TopicAdmin, config: StreamsConfig, topic: Topic, broker: Kafka) -> None:
    """On a new machine, which has no state on disk."""
    changelog = f"{config.application_id}-counts-changelog"
    broker.create_topic(changelog, 2, {"cleanup.policy": "compact,delete", "retention.ms": "90000000"}, exact=True)
    with pytest.raises(StoreChangedError, match=f"was a window or session store,.*penstock reset {config.application_id}"):
        prepare(admin, grouped(topic("in", partitions=2)), config)


def test_a_coordination_topic_with_several_partitions_is_refused(
    admin: TopicAdmin, config: StreamsConfig, topic: Topic, broker: Kafka
) -> None:
    """All members rely on its single order."""
    broker.create_topic(coordination_topic(config.application_id), 3, {"cleanup.policy": "compact"}, exact=True)
    with pytest.raises(WrongPartitionsError, match="has 3 partitions, but must have 1"):
        prepare(admin, grouped(topic("in")), config)


def test_a_missing_output_topic_is_named_before_anything_starts(admin: TopicAdmin, config: StreamsConfig, topic: Topic) -> None:
    builder, missing = StreamsBuilder(), unique("missing")
    builder.stream(topic("in"), Consumed(serdes.STRING, value=serdes.STRING)).to(missing, Produced(serdes.STRING, value=serdes.STRING))
    with pytest.raises(StreamsError, match=missing):
        prepare(admin, builder.build(), config)
