"""Detection of source topics that were deleted and recreated.

Such a topic causes an error only if it is shorter than the reader's position. Otherwise the reader continues in the middle of other data,
and only the topic's id reveals it (rules.md, 27). So the worker's topic watcher polls ids every second. Records of a new topic read before
that are wasted, and are read again if the policy says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from penstock.runtime.kafka.topic_watch import TopicWatch, TopicWatcher
from penstock.runtime.model.clock import Clock


class SourceTopics:
    """Ids of a worker's source topics. Used by the worker's thread only."""

    def __init__(
        self, request: Callable[[Collection[str]], Mapping[str, str]], topics: Collection[str], clock: Clock, watcher: TopicWatcher
    ) -> None:
        """`request` returns the ids of the topics that exist, of those asked for, or raises StreamsError if no broker answers."""
        self._request = request
        self._clock = clock
        self._watch: TopicWatch[Mapping[str, str]] = watcher.watch(lambda: request(topics), "source")
        self._known: dict[str, str] = {}
        self._known_ms: dict[str, int] = {}

    def start(self) -> None:
        self._watch.start()

    def close(self) -> None:
        self._watch.close()

    def recreated(self) -> list[str]:
        """Return the topics that were deleted and recreated, as polled since the last call. Never waits."""
        observation = self._watch.take()
        if observation is None:
            return []
        return [topic for topic, topic_id in observation.facts.items() if self._changed(topic, topic_id, observation.asked_ms)]

    def poll_now(self, topic: str) -> None:
        """Poll a topic whose position was lost and is reset: if the topic was recreated, the reset covers that as well. Raises StreamsError
        if no broker answers."""
        asked_ms = self._clock.wall_ms()
        for name, topic_id in self._request([topic]).items():
            self._changed(name, topic_id, asked_ms)

    def _changed(self, topic: str, topic_id: str, asked_ms: int) -> bool:
        if asked_ms < self._known_ms.get(topic, asked_ms):
            return False  # an older poll than the one that is known
        known = self._known.get(topic, topic_id)
        self._known[topic], self._known_ms[topic] = topic_id, asked_ms
        return known != topic_id
