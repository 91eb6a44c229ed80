"""Questions of `TopicAdmin` that a broker cannot be made to answer so at will."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka import topic_admin as topics
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import Partition


class Coordinator:
    """An admin client whose group coordinator gives these errors, one per question, and then the offsets."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def list_consumer_group_offsets(self, request: list[ConsumerGroupTopicPartitions], **_: object) -> object:
        answer: Future[ConsumerGroupTopicPartitions] = Future()
        if self.errors:
            answer.set_exception(KafkaException(KafkaError(self.errors.pop(0))))
        else:
            answer.set_result(ConsumerGroupTopicPartitions(request[0].group_id, [TopicPartition("in", 0, 7)]))
        return {request[0].group_id: answer}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TopicAdmin]:
    def make(*errors: int) -> TopicAdmin:
        admin = TopicAdmin(StreamsConfig({"application.id": "app", "bootstrap.servers": "127.0.0.1:1"}))
        monkeypatch.setattr(admin, "_client", Coordinator(*errors))
        return admin

    monkeypatch.setattr(topics, "_LOADING_SECONDS", 0.0)
    return make


def test_a_request_to_a_loading_coordinator_is_repeated(asked: Callable[..., TopicAdmin]) -> None:
    loading = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)
    assert asked(*loading).committed_offsets("app") == {Partition("in", 0): 7}


def test_another_error_of_a_coordinator_is_raised_at_once(asked: Callable[..., TopicAdmin]) -> None:
    with pytest.raises(StreamsError, match="GROUP_AUTHORIZATION_FAILED"):
        asked(KafkaError.GROUP_AUTHORIZATION_FAILED).committed_offsets("app")
