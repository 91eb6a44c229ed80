"""Single read of the coordination topic to its current end, for resets and for an instance before it joins."""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import Tombstone, Written, decode
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.log_reader import LogReader
from penstock.runtime.kafka.messages import Message
from penstock.runtime.kafka.topic_admin import ANSWER_SECONDS, TopicAdmin
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.ids import TopicPartition


def read_past(config: StreamsConfig, *kinds: str) -> list[Written]:
    """Return the latest record of each key of these kinds, in the order of writing, without deleted ones. The topic must exist. Raises
    BrokerUnavailableError, StreamsError."""
    found: dict[bytes, Written] = {}
    for message in _messages(config):
        key = message.key() or b""
        if key.decode(errors="replace").partition("/")[0] in kinds:
            found.pop(key, None)
            record = decode(key, message.value())
            if record is not None and not isinstance(record, Tombstone):
                found[key] = record
    return list(found.values())


def living_keys(config: StreamsConfig) -> list[bytes]:
    """Return the keys of all records that are not deleted, including those of unknown kinds. Raises as `read_past`."""
    living: dict[bytes, bool] = {}
    for message in _messages(config):
        living[message.key() or b""] = message.value() is not None
    return [key for key, lives in living.items() if lives]


def _messages(config: StreamsConfig) -> Iterator[Message]:
    partition, until = TopicPartition(coordination_topic(config.application_id), 0), time.monotonic() + ANSWER_SECONDS
    reader = LogReader({**config.consumer_properties("restore"), "fetch.wait.max.ms": 10}, "coordination past")
    try:
        reader.assign(partition, None)
        asked = False
        while True:
            poll = reader.poll(1.0)
            yield from poll.runs.get(partition, ())
            if partition in poll.ends:
                return
            if not poll and not asked:  # without the right to see the topic, the client library says nothing for 30 s
                asked = True
                TopicAdmin(config).partition_counts([partition.topic])
            if time.monotonic() > until:
                raise BrokerUnavailableError(f"bootstrap.servers = {config['bootstrap.servers']}: {partition} cannot be read")
    finally:
        reader.close()
