"""Requests for the leaders of topics that are about to be read."""

from __future__ import annotations

import time
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka import input_reader, log_reader, topic_leaders
from penstock.runtime.kafka.input_reader import Reader
from penstock.runtime.kafka.log_reader import LogReader
from penstock.runtime.kafka.topic_leaders import KNOWN_SECONDS, UNANSWERED_SECONDS, TopicLeaders
from penstock.runtime.model.ids import NextOffset, TopicPartition


class Asked:
    """A consumer that notes its calls, and can be without an answer."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answers = True

    def list_topics(self, topic: str, timeout: float) -> None:
        assert 0 < timeout <= topic_leaders.ANSWER_SECONDS
        self.calls.append(f"ask {topic}")
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def incremental_assign(self, partitions: list[object]) -> None:
        self.calls.append(f"assign {len(partitions)}")

    def consume(self, number: int, timeout: float) -> list[object]:
        return []


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The consumer that readers get."""
    asked = Asked()
    monkeypatch.setattr(input_reader, "input_consumer", lambda *properties: asked)
    monkeypatch.setattr(log_reader, "log_consumer", lambda *properties: asked)
    return asked


def test_readers_ask_before_they_assign_and_once_per_topic(consumer: Asked) -> None:
    """Otherwise the first record comes up to a second later."""
    reader = Reader(StreamsConfig({"application.id": "app", "bootstrap.servers": "nowhere:1"}))
    reader.assign({TopicPartition("in", number): NextOffset(5) for number in range(3)})
    log = LogReader({}, "restore")
    for number in range(3):
        log.assign(TopicPartition("log", number), None)
    assert consumer.calls == ["ask in", "assign 3", "ask log", "assign 1", "assign 1", "assign 1"]


def test_an_answer_holds_for_a_minute_and_none_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, consumer: Asked) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    leaders = TopicLeaders(cast(Consumer, consumer))
    consumer.answers = False
    leaders.find(["a", "b"])
    leaders.find(["b"])
    assert consumer.calls == ["ask a"], "a broker that does not answer is asked about one topic, and left alone for a while"
    consumer.answers = True
    now[0] += UNANSWERED_SECONDS
    leaders.find(["a", "b"])
    leaders.find(["a", "b"])
    now[0] += KNOWN_SECONDS
    leaders.find(["b"])
    assert consumer.calls == ["ask a", "ask a", "ask b", "ask b"]
