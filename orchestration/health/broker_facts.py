"""Facts about an application that only the brokers know: log end offsets, committed offsets, open transactions, settings of topics and of
offset retention, a reset that has not ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from penstock.orchestration.declarations.applications import Application
from penstock.runtime.coordination.past import read_past
from penstock.runtime.coordination.records import RESET, TOPOLOGY, Reset, TopologyText, Written
from penstock.runtime.coordination.resets import unfinished
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.failures import with_remedy
from penstock.runtime.kafka.offsets_topic import OFFSETS_TOPIC, offsets_of
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.events import events_topic
from penstock.runtime.model.ids import TopicPartition

_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """Facts as of one moment. Offsets are next offsets; unavailable facts are missing."""

    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    open_transactions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """First offset of the oldest open transaction, of partitions that have one. In the partition of the committed offsets: only
    while such a transaction contains offsets of this application."""
    cleanup_policies: Mapping[str, str] = field(default_factory=dict)
    offsets_retention_minutes: int | None = None
    unfinished_reset: str = ""
    """Sentence on a reset that has begun and not ended, with the command that ends it."""


def ask_broker(application: Application, changelogs: Iterable[TopicPartition], global_topics: Iterable[str]) -> BrokerFacts:
    """Request the application's committed offsets, the bounds and open transactions of its input partitions, changelogs, events and
    coordination topic, transactions that contain its committed offsets, and configurations. Raises BrokerUnavailableError."""
    config = application.streams_config()
    topics = TopicAdmin(config)
    admin = AdminClient(application.connection.client({"log_level": 2}))
    try:
        retention = _offsets_retention(
            admin
        )  # first: the requests below are safe only if a broker answers (see `penstock.orchestration.kafka.task_commands`)
        committed = topics.committed_offsets(application.id, stable=False)
    except KafkaException as error:
        said = with_remedy(error.args[0], "DescribeConfigs on cluster kafka-cluster")
        raise BrokerUnavailableError(f"{application.id}: {application.bootstrap_servers}: {said}") from error
    except StreamsError as error:
        raise BrokerUnavailableError(f"{application.id}: {error}") from error
    own = coordination_topic(application.id)
    partitions = {*committed, *changelogs, TopicPartition(events_topic(application.id), 0), TopicPartition(own, 0)}
    known = topics.describe([*(partition.topic for partition in partitions), *global_topics])
    past = read_past(config, TOPOLOGY, RESET) if own in known else []
    reset = next((record for record in reversed(past) if isinstance(record, Reset)), None)
    inputs = topics.describe(_inputs(past) - known.keys())
    known |= inputs
    partitions |= {TopicPartition(name, number) for name, topic in inputs.items() for number in range(topic.partitions)}
    there = [each for each in partitions if each.topic in known and each.partition < known[each.topic].partitions]
    offsets = {offsets_of(application.id, count) for count in topics.partition_counts([OFFSETS_TOPIC]).values()}
    processed = list(there)
    there += offsets
    marks = topics.high_watermarks(there)  # before the ends: what is written in between is no open transaction
    ends = topics.end_offsets(there)
    unfinished_transactions = {each: end for each, end in ends.items() if end < marks[each]}
    if offsets & unfinished_transactions.keys() and not topics.has_pending_offsets(application.id, processed):
        unfinished_transactions = {each: end for each, end in unfinished_transactions.items() if each not in offsets}  # another group's
    return BrokerFacts(
        committed=committed,
        starts=topics.start_offsets(there),
        ends=ends,
        open_transactions=unfinished_transactions,
        cleanup_policies={topic: known[topic].config.get("cleanup.policy", "") for topic in global_topics if topic in known},
        offsets_retention_minutes=retention,
        unfinished_reset="" if reset is None or reset.ended else unfinished(reset, application.id),
    )


def _inputs(past: Iterable[Written]) -> set[str]:
    """Return the input topics of the application's versions, as they have recorded them: a topic of which nothing is committed yet has no
    committed offset, and may begin with a transaction that hangs."""
    return {topic for version in past if isinstance(version, TopologyText) for topic in version.first_partitions}


def _offsets_retention(admin: AdminClient) -> int | None:
    """Return for how many minutes the brokers retain the offsets of a group without commits."""
    brokers = sorted(admin.list_topics(timeout=_SECONDS).brokers)
    if not brokers:
        return None
    asked = [ConfigResource(ConfigResource.Type.BROKER, str(brokers[0]))]
    (future,) = admin.describe_configs(asked, request_timeout=_SECONDS).values()
    entry = future.result(_SECONDS).get("offsets.retention.minutes")
    return None if entry is None or entry.value is None else int(entry.value)
