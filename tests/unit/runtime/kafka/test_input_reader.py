"""Errors of the client in the reader of input topics."""

from __future__ import annotations

from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.input_reader import Reader
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.ids import TopicPartition


class Refusing:
    """A consumer whose every request for the ends of a partition fails."""

    def __init__(self, code: int) -> None:
        self._code = code

    def get_watermark_offsets(self, *_: object) -> tuple[int, int]:
        raise KafkaException(KafkaError(self._code))


def reader(code: int) -> Reader:
    made = Reader(StreamsConfig({"application.id": "app", "bootstrap.servers": "127.0.0.1:1"}))
    made._consumer = cast(Consumer, Refusing(code))
    return made


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_a_topic_that_is_unknown_for_a_moment_is_asked_for_again(code: int) -> None:
    """While a topic is deleted and created again under its reader. The client ended in ERROR."""
    with pytest.raises(BrokerUnavailableError, match="the end of in-0 cannot be read: the brokers do not know it now"):
        reader(code).bounds(TopicPartition("in", 0), 1.0)


def test_a_refused_request_is_not_repeated() -> None:
    with pytest.raises(StreamsError) as caught:
        reader(KafkaError.TOPIC_AUTHORIZATION_FAILED).bounds(TopicPartition("in", 0), 1.0)
    assert not isinstance(caught.value, BrokerUnavailableError)
