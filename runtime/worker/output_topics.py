"""Watch of the topics that a worker writes, which says why the brokers take no records of it.

A record is written when `min.insync.replicas` copies have it. While a partition has fewer, the client library repeats the request until the
transaction is over, and its error says only that time ran out. The worker then rolls back, and goes on when the copies are back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from penstock.runtime.kafka.topic_admin import Shortage
from penstock.runtime.kafka.topic_watch import TopicWatch, TopicWatcher

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0


class OutputTopics:
    """Partitions of a worker's output and internal topics that take no records."""

    def __init__(self, request: Callable[[Collection[str]], Iterable[Shortage]], topics: Collection[str], watcher: TopicWatcher) -> None:
        """`request` returns the partitions of these topics that take no records."""
        self._request = request
        self._topics = topics
        self._reported: set[tuple[str, int]] = set()
        self._watch: TopicWatch[None] = watcher.watch(self._look, "output", INTERVAL_SECONDS)

    def start(self) -> None:
        self._watch.start()

    def close(self) -> None:
        self._watch.close()

    def _look(self) -> None:
        """Log what has changed since the last look, on the watcher's thread."""
        found = {(short.topic, short.partition): short for short in self._request(self._topics)}
        if new := [str(short) for place, short in sorted(found.items()) if place not in self._reported]:
            logger.warning(
                "the brokers take no records for %s: nothing is committed that writes there. It goes on by itself when brokers are back",
                "; ".join(new),
            )
        if over := sorted(self._reported - found.keys()):
            logger.info("the brokers take records again for %s", ", ".join(f"{topic}-{number}" for topic, number in over))
        self._reported = set(found)
