"""Questions of `TopicAdmin` that a broker cannot be made to answer so at will."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka import topic_admin as topics
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.ids import TopicPartition
from tests.support import wait_until
from tests.support.fenced_broker import fenced_broker


class Coordinator:
    """An admin client whose group coordinator gives these errors, one per question, then describes the group without members, and then
    gives the offsets. A request for offsets that is answered by NOT_COORDINATOR would end the process."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.described = False

    def describe_consumer_groups(self, groups: list[str]) -> object:
        answer: Future[object] = Future()
        if self.errors:
            answer.set_exception(KafkaException(KafkaError(self.errors.pop(0))))
        else:
            self.described = True
            answer.set_result(SimpleNamespace(members=[]))
        return {groups[0]: answer}

    def list_consumer_group_offsets(self, request: list[ConsumerGroupTopicPartitions], **_: object) -> object:
        assert self.described
        answer: Future[ConsumerGroupTopicPartitions] = Future()
        answer.set_result(ConsumerGroupTopicPartitions(request[0].group_id, [ClientPartition("in", 0, 7)]))
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
    assert asked(*loading).committed_offsets("app") == {TopicPartition("in", 0): 7}


def test_another_error_of_a_coordinator_is_raised_at_once(asked: Callable[..., TopicAdmin]) -> None:
    with pytest.raises(StreamsError, match="GROUP_AUTHORIZATION_FAILED"):
        asked(KafkaError.GROUP_AUTHORIZATION_FAILED).committed_offsets("app")


class Leaders:
    """An admin client that answers these errors, one per request for offsets of a partition, and then the offset 7."""

    def __init__(self, *errors: int, offset: int = 7) -> None:
        self.errors = list(errors)
        self.offset = offset

    def list_offsets(self, partitions: dict[ClientPartition, object], **_: object) -> object:
        answer: Future[object] = Future()
        if self.errors:
            answer.set_exception(KafkaException(KafkaError(self.errors.pop(0))))
        else:
            answer.set_result(SimpleNamespace(offset=self.offset))
        return dict.fromkeys(partitions, answer)


def test_offsets_of_a_partition_without_a_leader_are_requested_again(
    asked: Callable[..., TopicAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new topic has none for a moment, and each partition of a broker that stops. The worker would end of any other error."""
    admin, partition = asked(), TopicPartition("changelog", 0)
    monkeypatch.setattr(admin, "_client", Leaders(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE))
    assert admin.end_offsets([partition]) == {partition: 7}
    monkeypatch.setattr(topics, "ANSWER_SECONDS", -1.0)
    monkeypatch.setattr(admin, "_client", Leaders(KafkaError.NOT_LEADER_FOR_PARTITION))
    with pytest.raises(BrokerUnavailableError, match="a partition has no leader now"):
        admin.end_offsets([partition])


def test_an_offset_without_an_answer_is_no_offset(asked: Callable[..., TopicAdmin], monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka reports no error if the leader of one of the partitions does not answer in time: a restore would end there."""
    admin = asked()
    monkeypatch.setattr(admin, "_client", Leaders(offset=OFFSET_INVALID))
    with pytest.raises(BrokerUnavailableError, match="list offsets of changelog-0: its leader has not answered"):
        admin.end_offsets([TopicPartition("changelog", 0)])


def test_requests_are_sent_again_after_the_only_broker_was_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller fences a broker whose heartbeats come late, as on a machine with too much work. It then answers that there are none."""
    monkeypatch.setattr(topics, "ANSWER_SECONDS", 1.0)
    with fenced_broker() as broker:
        admin = TopicAdmin(StreamsConfig({"application.id": "app", "bootstrap.servers": broker.servers}))

        def answered() -> bool:
            try:
                return admin.partition_counts(["in"]) == {}
            except BrokerUnavailableError:
                return False

        assert answered()
        broker.fenced = True
        wait_until(lambda: not answered(), 30, "the client that has forgotten its broker")
        broker.fenced = False
        wait_until(answered, 30, "an answer")


class Answering:
    """An admin client whose brokers answer."""

    def list_topics(self, timeout: float) -> None:
        pass


def test_a_replaced_client_is_kept_since_other_threads_may_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a client is an error of its requests, which ends the instance. Threads that waited for the same one replace it once."""
    monkeypatch.setattr(topics, "admin_client", lambda config: Answering())
    admin = TopicAdmin(StreamsConfig({"application.id": "app", "bootstrap.servers": "127.0.0.1:1"}))
    first = weakref.ref(admin._client)
    admin._renew_client()
    second = admin._client
    admin._renew_client()
    assert first() is not None and admin._client is second
