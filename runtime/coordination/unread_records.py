"""Detection of records behind a committed offset. Offsets alone do not show them: transaction markers and aborted records have offsets
too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.log_reader import LogReader
from penstock.runtime.kafka.topic_admin import ANSWER_SECONDS
from penstock.runtime.model.errors import BrokerUnavailableError
from penstock.runtime.model.ids import NextOffset, TopicPartition


def with_records(config: StreamsConfig, starts: Mapping[TopicPartition, NextOffset], give_up: Callable[[], bool]) -> set[TopicPartition]:
    """Return the partitions that hold a committed record at or behind their offset. Raises BrokerUnavailableError (also if `give_up` ends
    the wait), StreamsError."""
    found: set[TopicPartition] = set()
    waiting, until = set(starts), time.monotonic() + ANSWER_SECONDS
    reader = LogReader({**config.consumer_properties("restore"), "fetch.wait.max.ms": 10}, "unread records")
    try:
        for partition, start in starts.items():
            reader.assign(partition, start)
        while waiting:
            poll = reader.poll(1.0)
            here = {*poll.runs, *poll.out_of_range}  # what was deleted meanwhile was there
            found |= here & waiting
            for partition in waiting & {*here, *poll.ends}:
                reader.unassign(partition)
                waiting.discard(partition)
            if waiting and (time.monotonic() > until or give_up()):
                names = ", ".join(map(str, sorted(waiting)))
                raise BrokerUnavailableError(f"bootstrap.servers = {config['bootstrap.servers']}: {names} cannot be read")
    finally:
        reader.close()
    return found
