"""Reading a topic once, from some offset to where it ends now, outside of any group.

Who wants all of it assigns `FROM_START`: an offset that retention has removed is the log's first one. (Rejected: OFFSET_BEGINNING. The
client library takes half a second to learn where a log begins.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from runtime.log_end import LogEnd

FROM_START = 0
_WAIT_SECONDS = 0.05  # the client library waits for so long even if less than was asked for has come


@contextmanager
def reader(bootstrap_servers: str) -> Iterator[Consumer]:
    """A consumer of committed records that belongs to no group, and says where a partition ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "penstock-reader",  # asked for by the client; nothing is committed to it
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 5,
            "log_level": 2,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def to_end(consumer: Consumer, timeout_s: float) -> Iterator[Message]:
    """The records of the one assigned partition, up to where it ends now. Raises KafkaException, also when that takes too long."""
    end, deadline = LogEnd(consumer), time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for message in consumer.consume(500, _WAIT_SECONDS):
            error = message.error()
            if error is None:
                yield message
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if end.reached(message):
                return
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"the end of the topic was not reached in {timeout_s:g} s"))
