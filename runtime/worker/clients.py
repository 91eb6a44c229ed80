"""The Kafka clients of a worker, made in one place, so that what the engine relies on cannot be configured away.

`StreamsConfig` gives the user's settings and our defaults; what is set here overrides both:
the input consumer has no policy of its own for offsets that are out of range (`auto.offset.reset=error`: the engine decides, and tells),
reports the end of partitions, and never commits by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException

from runtime.config import StreamsConfig
from runtime.errors import BrokerUnavailableError
from runtime.kafka_logs import KAFKA_LOGGER

logger = logging.getLogger(__name__)

FIRST_CONTACT_SECONDS = 30.0
"""How long a start waits for a broker."""


def input_consumer(config: StreamsConfig) -> Consumer:
    """The consumer of all input partitions, with the application's group, which it never joins."""
    return Consumer(
        {
            **config.consumer_properties("main"),
            "group.id": config.application_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        },
        logger=KAFKA_LOGGER,
    )


def await_broker(consumer: Consumer, config: StreamsConfig, give_up: Callable[[], bool]) -> None:
    """Returns when a broker has answered. Raises BrokerUnavailableError, naming `bootstrap.servers`, after `FIRST_CONTACT_SECONDS`."""
    deadline = time.monotonic() + FIRST_CONTACT_SECONDS
    while True:
        try:
            consumer.list_topics(timeout=max(0.1, min(2.0, deadline - time.monotonic())))
            return
        except KafkaException as error:
            if time.monotonic() >= deadline or give_up():
                servers = config["bootstrap.servers"]
                raise BrokerUnavailableError(
                    f"bootstrap.servers = {servers}: no broker answered within {FIRST_CONTACT_SECONDS:.0f} s ({error.args[0].str()}); "
                    "is it running, and can this machine reach it?"
                ) from error
