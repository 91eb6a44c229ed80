"""Whether the topics that tasks read are still the ones that they began to read.

A topic that is deleted and made anew while it is read gives an error only if it is shorter than the reader's position. A longer one is
read on in the middle of other data, and only its id tells (rules.md, 27). So ids are looked at once a second, by a thread of its own: what
is read of a new topic before that look was read in vain, and is read again if the policy says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from runtime.changelog.topic_watch import TopicWatch
from runtime.clock import Clock


class SourceTopics:
    """The ids of the source topics of a worker. Belongs to the worker's thread."""

    def __init__(self, look: Callable[[Collection[str]], Mapping[str, str]], topics: Collection[str], clock: Clock) -> None:
        """`look` gives the ids of the topics that exist, of those asked for; it raises StreamsError if no broker answers."""
        self._look = look
        self._clock = clock
        self._watch: TopicWatch[Mapping[str, str]] = TopicWatch(lambda: look(topics), clock, "source")
        self._known: dict[str, str] = {}
        self._known_ms: dict[str, int] = {}

    def start(self) -> None:
        self._watch.start()

    def close(self) -> None:
        self._watch.close()

    def made_anew(self) -> list[str]:
        """The topics that were deleted and made anew, by a look that was taken since the last call. Never waits."""
        sight = self._watch.take()
        if sight is None:
            return []
        return [topic for topic, topic_id in sight.facts.items() if self._changed(topic, topic_id, sight.asked_ms)]

    def look_again(self, topic: str) -> None:
        """The topic's position was lost, and is set anew: if the topic is another one by now, that is done with as well. Raises
        StreamsError if no broker answers."""
        asked_ms = self._clock.wall_ms()
        for name, topic_id in self._look([topic]).items():
            self._changed(name, topic_id, asked_ms)

    def _changed(self, topic: str, topic_id: str, asked_ms: int) -> bool:
        if asked_ms < self._known_ms.get(topic, asked_ms):
            return False  # an older look than the one that we know of
        known = self._known.get(topic, topic_id)
        self._known[topic], self._known_ms[topic] = topic_id, asked_ms
        return known != topic_id
