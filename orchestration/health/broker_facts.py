"""The numbers of one application that only the brokers know: where its logs end, what is committed, how topics and offsets are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from orchestration.applications import Application
from runtime.config import StreamsConfig
from runtime.errors import BrokerUnavailableError
from runtime.ids import Partition
from runtime.topics import TopicAdmin

_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """As of one moment. Offsets are next offsets; what could not be learnt is left out."""

    committed: Mapping[Partition, int] = field(default_factory=dict)
    starts: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    cleanup_policies: Mapping[str, str] = field(default_factory=dict)
    offsets_retention_minutes: int | None = None


def ask_broker(application: Application, changelogs: Iterable[Partition], global_topics: Iterable[str]) -> BrokerFacts:
    """Asks for the application's committed offsets, for the bounds of these and of its changelogs, and for configurations.

    Raises BrokerUnavailableError.
    """
    topics = TopicAdmin(StreamsConfig({**application.config, "application.id": application.id}))
    admin = AdminClient({"bootstrap.servers": application.bootstrap_servers, "log_level": 2})
    try:
        retention = _offsets_retention(admin)  # first: what follows may only be asked where a broker answers (see `orchestration.tasks`)
        committed = _committed(admin, application.id)
    except KafkaException as error:
        raise BrokerUnavailableError(f"{application.id}: {application.bootstrap_servers}: {error.args[0].str()}") from error
    partitions = {*committed, *changelogs}
    known = topics.describe([*(partition.topic for partition in partitions), *global_topics])
    there = [each for each in partitions if each.topic in known and each.number < known[each.topic].partitions]
    return BrokerFacts(
        committed=committed,
        starts=topics.start_offsets(there),
        ends=topics.end_offsets(there),
        cleanup_policies={topic: known[topic].config.get("cleanup.policy", "") for topic in global_topics if topic in known},
        offsets_retention_minutes=retention,
    )


def _committed(admin: AdminClient, group: str) -> dict[Partition, int]:
    asked = [ConsumerGroupTopicPartitions(group)]
    answer = admin.list_consumer_group_offsets(asked, request_timeout=_SECONDS)[group].result(_SECONDS)
    return {Partition(str(each.topic), int(each.partition)): each.offset for each in answer.topic_partitions if each.offset >= 0}


def _offsets_retention(admin: AdminClient) -> int | None:
    """How long the brokers keep the offsets of a group that nobody commits to, in minutes."""
    brokers = sorted(admin.list_topics(timeout=_SECONDS).brokers)
    if not brokers:
        return None
    asked = [ConfigResource(ConfigResource.Type.BROKER, str(brokers[0]))]
    (future,) = admin.describe_configs(asked, request_timeout=_SECONDS).values()
    entry = future.result(_SECONDS).get("offsets.retention.minutes")
    return None if entry is None or entry.value is None else int(entry.value)
