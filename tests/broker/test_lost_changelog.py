"""A changelog is lost while the application runs, or is stopped: its tasks are emptied and restored from what is left; others continue."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from penstock import serdes
from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Materialized
from penstock.runtime.model.events import EventKind
from penstock.runtime.topology.topology import Topology
from tests.support import Kafka, wait_until
from tests.support.engine import client, events, running
from tests.support.logs import alter, cut, end_of

Topic = Callable[..., str]


def two_counts(first: str, second: str) -> Topology:
    """Return two sub-topologies: 0 counts the keys of one topic, 1 those of the other."""
    builder = StreamsBuilder()
    for topic, store in ((first, "lost"), (second, "kept")):
        builder.stream(topic, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key().count(Materialized(store, caching=False))
    return builder.build()


def count(streams: KafkaStreams, store: str) -> object:
    return streams.store(store).get("a")


def corrupted(broker: Kafka, application_id: str) -> list[tuple[str | None, object]]:
    return [(event.task, event.payload["reason"]) for event in events(broker, application_id) if event.kind is EventKind.TASK_CORRUPTED]


@pytest.mark.parametrize("made", ["deleted", "deleted and created again"])
def test_a_changelog_that_is_deleted_while_the_application_runs(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    monkeypatch.setattr("penstock.runtime.worker.assembly.CHANGELOGS_MS", 500)
    first, second = topic("first"), topic("second")
    changelog = f"{application_id}-lost-changelog"
    broker.produce(first, [("a", "v")] * 5)
    broker.produce(second, [("a", "v")] * 5)
    with running(broker, two_counts(first, second), application_id, state_dir) as streams:
        wait_until(lambda: (count(streams, "lost"), count(streams, "kept")) == (5, 5), what="the counts")
        broker.delete_topic(changelog)
        if made == "deleted and created again":
            with suppress(KafkaException):  # the application may have made it by now
                broker.create_topic(changelog, config={"cleanup.policy": "compact"}, exact=True)
        [(task, reason)] = wait_until(lambda: corrupted(broker, application_id), what="the event")
        assert task == "0_0"
        assert f"{changelog} was deleted" in str(reason)
        broker.produce(first, [("a", "v")] * 2)
        broker.produce(second, [("a", "v")] * 2)
        wait_until(lambda: broker.committed_offsets(application_id, first) == {0: 7}, what="the input that came after")
        wait_until(lambda: (count(streams, "lost"), count(streams, "kept")) == (2, 7), what="the counts")
        assert streams.failure is None
    assert [record.key for record in broker.consume(changelog)][-1:] == [b"a"]
    assert len(corrupted(broker, application_id)) == 1


def test_a_changelog_that_is_deleted_while_the_application_is_away(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    first, second = counted(broker, topic, application_id, state_dir)
    broker.delete_topic(f"{application_id}-lost-changelog")
    broker.produce(first, [("a", "v")] * 2)
    broker.produce(second, [("a", "v")] * 2)
    with running(broker, two_counts(first, second), application_id, state_dir) as streams:
        wait_until(lambda: (count(streams, "lost"), count(streams, "kept")) == (2, 7), what="the counts")


def counted(broker: Kafka, topic: Topic, application_id: str, state_dir: Path) -> tuple[str, str]:
    """Run `two_counts` until each has counted five records, and return their topics."""
    first, second = topic("first"), topic("second")
    broker.produce(first, [("a", "v")] * 5)
    broker.produce(second, [("a", "v")] * 5)
    with running(broker, two_counts(first, second), application_id, state_dir) as streams:
        wait_until(lambda: (count(streams, "lost"), count(streams, "kept")) == (5, 5), what="the counts")
    return first, second


def texts(first: str, second: str) -> Topology:
    """Return the topology of `two_counts`, but with text in the store of the first topic."""
    builder = StreamsBuilder()
    grouped = builder.stream(first, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key()
    grouped.aggregate(lambda: "", lambda key, value, text: text + value, Materialized("lost", value=serdes.STRING, caching=False))
    builder.stream(second, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key().count(Materialized("kept", caching=False))
    return builder.build()


def test_a_store_that_has_changed_begins_empty_once_its_changelog_is_deleted(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the refusal says: files on disk that belong to the deleted changelog are emptied, and the other store continues."""
    first, second = counted(broker, topic, application_id, state_dir)
    changelog = f"{application_id}-lost-changelog"
    with client(broker, texts(first, second), application_id, state_dir) as streams:
        streams.start()
        failure = wait_until(lambda: streams.failure, what="the refusal")
    assert f"delete its changelog (kafka-topics --bootstrap-server {broker.bootstrap_servers} --delete --topic {changelog})" in str(failure)
    broker.delete_topic(changelog)
    broker.produce(first, [("a", "w")])
    with running(broker, texts(first, second), application_id, state_dir) as streams:
        wait_until(lambda: (count(streams, "lost"), count(streams, "kept")) == ("w", 5), what="the texts")
        assert streams.failure is None
    assert "store lost has changed" in caplog.text and "is emptied, because its changelog was deleted" in caplog.text


def test_records_that_are_deleted_from_a_changelog_cost_only_a_store_that_still_needs_them(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    """Two stores are reset to an older state of theirs, and one log is truncated beyond it: that store is restored from the remaining
    records."""
    first, second = topic("first"), topic("second")
    lost, kept = f"{application_id}-lost-changelog", f"{application_id}-kept-changelog"
    with running(broker, two_counts(first, second), application_id, state_dir) as streams:
        for topic_name in (first, second):
            broker.produce(topic_name, [("a", "v"), ("b", "v")])
        wait_until(lambda: (count(streams, "lost"), count(streams, "kept")) == (1, 1), what="the counts")
    for changelog in (lost, kept):  # written by another producer, as if this instance had been away for a while
        broker.produce(changelog, [("a", (9).to_bytes(8, "big"))], partition=0)
    alter(broker, lost, "cleanup.policy", "compact,delete")  # records of a compacted topic cannot be deleted
    cut(broker, lost, end_of(broker, lost) - 1)
    alter(broker, lost, "cleanup.policy", "compact")
    with running(broker, two_counts(first, second), application_id, state_dir) as streams:
        wait_until(lambda: (count(streams, "lost"), count(streams, "kept")) == (9, 9), what="the counts")
        assert (streams.store("lost").get("b"), streams.store("kept").get("b")) == (None, 1)
        assert [task for task, _ in corrupted(broker, application_id)] == ["0_0"]


def test_a_store_without_a_changelog_keeps_its_state_when_its_neighbour_loses_one(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no other copy of it, and it is intact."""
    monkeypatch.setattr("penstock.runtime.worker.assembly.CHANGELOGS_MS", 500)
    source = topic("first")
    builder = StreamsBuilder()
    grouped = builder.stream(source, Consumed(serdes.STRING, value=serdes.STRING)).group_by_key()
    for store, logging in (("lost", True), ("alone", False)):
        grouped.count(Materialized(store, caching=False, logging=logging))
    broker.produce(source, [("a", "v")] * 5)
    with running(broker, builder.build(), application_id, state_dir) as streams:
        wait_until(lambda: (count(streams, "lost"), count(streams, "alone")) == (5, 5), what="the counts")
        broker.delete_topic(f"{application_id}-lost-changelog")
        wait_until(lambda: corrupted(broker, application_id), what="the event")
        broker.produce(source, [("a", "v")] * 2)
        wait_until(lambda: broker.committed_offsets(application_id, source) == {0: 7}, what="the input that came after")
        wait_until(lambda: (count(streams, "lost"), count(streams, "alone")) == (2, 7), what="the counts")
