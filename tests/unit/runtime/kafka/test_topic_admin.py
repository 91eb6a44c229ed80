"""Questions of `TopicAdmin` that a broker cannot be made to answer so at will."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin._config import ConfigResource

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka import topic_admin as topics
from penstock.runtime.kafka.topic_admin import TopicAdmin, TopicDescription
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


class LateBroker:
    """An admin client that describes a new topic, and finds it unknown this many times when it asks for its configuration. Then the topic
    has one, or has been deleted."""

    def __init__(self, late: int, *, deleted: bool = False) -> None:
        self.late, self.deleted = late, deleted

    def describe_topics(self, names: TopicCollection, **_: object) -> dict[str, Future[object]]:
        there = self.late or not self.deleted
        return {"new": self._answer(SimpleNamespace(partitions=[0, 1], topic_id="id") if there else None)}

    def describe_configs(self, resources: list[ConfigResource], **_: object) -> dict[ConfigResource, Future[object]]:
        known, self.late = self.late == 0, max(0, self.late - 1)
        return {resources[0]: self._answer({"cleanup.policy": SimpleNamespace(value="compact")} if known else None)}

    @staticmethod
    def _answer(found: object) -> Future[object]:
        answer: Future[object] = Future()
        if found is None:
            answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        else:
            answer.set_result(found)
        return answer


def test_a_new_topic_that_one_of_two_brokers_does_not_know_yet_is_asked_for_again(
    asked: Callable[..., TopicAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration was taken for an empty one, and a start that found the coordination topic so was refused."""
    admin = asked()
    monkeypatch.setattr(admin, "_client", LateBroker(3))
    assert admin.describe(["new"]) == {"new": TopicDescription("new", 2, "id", {"cleanup.policy": "compact"})}
    monkeypatch.setattr(admin, "_client", LateBroker(1, deleted=True))
    assert admin.describe(["new"]) == {}
    monkeypatch.setattr(topics, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(admin, "_client", LateBroker(1_000_000))
    with pytest.raises(BrokerUnavailableError, match="configuration of topic new, which one broker knows and another does not"):
        admin.describe(["new"])


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


def test_an_offset_without_an_answer_is_requested_again_by_a_new_client(
    asked: Callable[..., TopicAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka reports no error if the leader of one of the partitions does not answer in time: a restore would end there."""
    admin, partition = asked(), TopicPartition("changelog", 0)
    monkeypatch.setattr(admin, "_client", Leaders(offset=OFFSET_INVALID))
    monkeypatch.setattr(topics, "admin_client", lambda config: Leaders())
    assert admin.end_offsets([partition]) == {partition: 7}
    monkeypatch.setattr(topics, "ANSWER_SECONDS", -1.0)
    refused = KafkaError(KafkaError._AUTHENTICATION, "Authentication failed")
    for found, text in ((None, r"\(\w+ offsets\)"), (refused, r"\(\w+ offsets; the brokers refuse this client: Authentication failed\)")):
        monkeypatch.setattr(admin, "_client", Leaders(offset=OFFSET_INVALID))
        monkeypatch.setattr(topics, "refused_login", lambda connection, found=found: found)
        with pytest.raises(BrokerUnavailableError, match=f"no answer within 0 s {text}"):
            admin.end_offsets([partition])


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


class Silent:
    """An admin client whose brokers do not answer until `answer` has a result. It keeps the time-outs of its requests."""

    def __init__(self, answer: Future[object]) -> None:
        self.answer = answer
        self.time_outs: list[float] = []

    def list_offsets(self, partitions: dict[ClientPartition, object], request_timeout: float, **_: object) -> object:
        self.time_outs.append(request_timeout)
        return dict.fromkeys(partitions, self.answer)


def test_each_attempt_at_a_request_has_twice_the_time_and_a_client_of_its_own_which_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client waits for the broker that it knows, though another has taken over. Without a broker for minutes, clients that
    live until the next collection of garbage have hundreds of threads."""
    time_outs: list[list[float]] = []
    clients: list[weakref.ref[object]] = []

    def make(config: StreamsConfig) -> object:
        timed_out: Future[object] = Future()
        timed_out.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        client = Silent(timed_out) if len(clients) < 4 else Leaders()
        clients.append(weakref.ref(client))
        if isinstance(client, Silent):
            time_outs.append(client.time_outs)
        return client

    monkeypatch.setattr(topics, "admin_client", make)
    monkeypatch.setattr(topics, "_LOADING_SECONDS", 0.0)
    admin, partition = TopicAdmin(StreamsConfig({"application.id": "app", "bootstrap.servers": "127.0.0.1:1"})), TopicPartition("in", 0)
    gc.disable()
    try:
        monkeypatch.setattr(topics, "ANSWER_SECONDS", -1.0)
        with pytest.raises(BrokerUnavailableError):
            admin.end_offsets([partition])
        monkeypatch.setattr(topics, "ANSWER_SECONDS", 30.0)
        assert admin.end_offsets([partition]) == {partition: 7}
        assert [client() is not None for client in clients] == [False, False, False, False, True]
    finally:
        gc.enable()
    assert time_outs == [[2.0], [2.0], [4.0], [8.0]]


def test_a_client_is_kept_while_another_thread_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a client is an error of its requests, which ends the instance. Threads that waited for the same one replace it once."""
    answer: Future[object] = Future()
    made: list[object] = [Leaders(), Silent(answer)]
    monkeypatch.setattr(topics, "admin_client", lambda config: made.pop())
    admin = TopicAdmin(StreamsConfig({"application.id": "app", "bootstrap.servers": "127.0.0.1:1"}))
    first = weakref.ref(admin._client)
    waits = Thread(target=admin.end_offsets, args=[[TopicPartition("in", 0)]])
    waits.start()
    wait_until(lambda: vars(admin._client)["time_outs"] != [], what="the request")
    for _ in range(2):
        waited_for = first()
        assert waited_for is not None
        admin._replace(waited_for)
    del waited_for
    assert first() is not None and made == []
    answer.set_result(SimpleNamespace(offset=7))
    waits.join()
    assert first() is None


class Deleting:
    """An admin client whose brokers answer a request to delete records when the test sets the result of `answer`."""

    def __init__(self) -> None:
        self.answer: Future[object] = Future()

    def delete_records(self, partitions: list[ClientPartition], **_: object) -> object:
        return dict.fromkeys(partitions, self.answer)


def test_a_purge_is_not_waited_for_and_its_error_is_raised_by_the_next(
    asked: Callable[..., TopicAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made by the worker's thread, which processes nothing while it waits."""
    made: list[Deleting] = []

    def make(config: StreamsConfig) -> Deleting:
        made.append(Deleting())
        return made[-1]

    monkeypatch.setattr(topics, "admin_client", make)
    admin, before = TopicAdmin(StreamsConfig({"application.id": "app", "bootstrap.servers": "127.0.0.1:1"})), {TopicPartition("in", 0): 7}
    made.clear()
    admin.begin_deleting_records(before)
    admin.begin_deleting_records(before)
    (first,) = made
    first.answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(StreamsError, match="delete records of in-0: TOPIC_AUTHORIZATION_FAILED"):
        admin.begin_deleting_records(before)
    assert len(made) == 2


def _partition(number: int, replicas: tuple[int, ...], in_sync: tuple[int, ...], leader: int | None = 1) -> SimpleNamespace:
    nodes = {broker: SimpleNamespace(id=broker) for broker in replicas}
    of = [nodes[broker] for broker in in_sync]
    return SimpleNamespace(id=number, leader=None if leader is None else nodes[leader], isr=of, replicas=[*nodes.values()])


class Short:
    """An admin client of a cluster that lacks brokers: one partition has too few copies in sync, one has no leader, one has enough."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed

    def describe_topics(self, topics: object, **_: object) -> object:
        parts = [_partition(0, (1, 2, 3), (1,)), _partition(1, (1, 2, 3), (3,), None), _partition(2, (1, 2, 3), (1, 2))]
        answer: Future[object] = Future()
        answer.set_result(SimpleNamespace(topic_id="id", partitions=parts))
        return {"out": answer}

    def describe_configs(self, resources: list[object], **_: object) -> object:
        answer: Future[object] = Future()
        if self.allowed:
            answer.set_result({"min.insync.replicas": SimpleNamespace(name="min.insync.replicas", value="2")})
        else:
            answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return dict.fromkeys(resources, answer)


def test_partitions_that_take_no_records_are_found_with_the_brokers_that_are_missing(
    asked: Callable[..., TopicAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right to read a topic's configuration, which writing to it does not need, only those without a leader."""
    admin = asked()
    monkeypatch.setattr(admin, "_client", Short(allowed=True))
    assert [str(short) for short in admin.shortages(["out"])] == [
        "out-0 (1 copies in sync, min.insync.replicas is 2; brokers that are missing: 2, 3)",
        "out-1 (no leader; brokers that are missing: 1, 2, 3)",
    ]
    monkeypatch.setattr(admin, "_client", Short(allowed=False))
    assert [short.partition for short in admin.shortages(["out"])] == [1]
