"""Makes a consumer know the leaders of topics before their partitions are assigned.

librdkafka 2.16 looks for the leader of an assigned partition that it does not know once per second, so its first record comes up to a
second later: measured 0.1 to 1.0 s, and 3 ms for a topic whose metadata were requested before. A task that moves would stand still as long.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException

ANSWER_SECONDS = 0.5
"""Longest wait for the answers about all topics of a call."""
KNOWN_SECONDS = 60.0
"""Time for which an answer is taken to hold. The client keeps it for longer (`metadata.max.age.ms`), and updates it while a partition of
the topic is assigned."""
UNANSWERED_SECONDS = 5.0
"""Time without requests after one that was not answered: the worker's other tasks wait meanwhile."""


class TopicLeaders:
    """The topics of one consumer whose leaders it knows. Used by the consumer's thread."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._asked: dict[str, float] = {}
        self._not_before = 0.0

    def find(self, topics: Iterable[str]) -> None:
        """Request the leaders of topics that were not asked for lately. Never raises: without an answer in time, the client looks for them
        itself, and reports what is wrong when it is polled."""
        now = time.monotonic()
        wanted = [topic for topic in topics if now - self._asked.get(topic, -KNOWN_SECONDS) >= KNOWN_SECONDS]
        if not wanted or now < self._not_before:
            return
        self._not_before = now + UNANSWERED_SECONDS
        with suppress(KafkaException):
            for topic in wanted:
                left = now + ANSWER_SECONDS - time.monotonic()
                if left <= 0:
                    return
                self._consumer.list_topics(topic, left)
                self._asked[topic] = now
            self._not_before = 0.0
