"""Watch of the coordination topic's identity.

Somebody deletes it by mistake, or makes it anew. Tasks do not need it: they go on. But nobody would learn of a death any more, and clients
tell nothing: a reader of a topic that is gone just reads nothing. So its id is asked for, by the worker's watcher of topics. When it is
gone, or is another topic's, each worker lets go of its tasks, makes the topic if nobody has, and begins anew as after a lost session;
pauses by hand are written down again.

A worker that has not noticed yet still runs its tasks, and the group still lets it commit. So in a log without an assignment the leader
grants nothing before each member of the group has announced itself there (`Leader`). (Rejected: to go on under the old assignments. What
stood on the topic is each worker's own memory then, and a leader that is made later has none.)
"""

from __future__ import annotations

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.topics import COORDINATION_CONFIG, coordination_topic
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicWatch, TopicWatcher
from penstock.runtime.model.clock import Clock

LOOK_EVERY_SECONDS = 1.0
ABSENT_LOOKS = 2
"""So often in a row it must be missing: a broker that has just started may not know all topics."""


class TopicLife:
    """The id of the coordination topic. Belongs to the worker's thread."""

    def __init__(self, config: StreamsConfig, topics: TopicAdmin, clock: Clock, watcher: TopicWatcher) -> None:
        """Contacts nobody before `start`."""
        self._topic = coordination_topic(config.application_id)
        self._admin = topics
        self._clock = clock
        self._watch: TopicWatch[str | None] = watcher.watch(self._look, "coordination", LOOK_EVERY_SECONDS)
        self._started = False
        self._since_ms = 0
        self._known: str | None = None
        self._absent = 0
        self._over = False

    def start(self) -> None:
        """Begins to look, the first time. The topic exists."""
        if not self._started:
            self._started = True
            self._watch.start()

    def _look(self) -> str | None:
        found = self._admin.describe([self._topic]).get(self._topic)
        return None if found is None else found.topic_id

    def over(self) -> bool:
        """True once the topic is gone, or another one, until `renew`. Never waits."""
        observation = self._watch.take()
        if observation is not None and observation.asked_ms >= self._since_ms:
            self._absent = self._absent + 1 if observation.facts is None else 0
            self._known = self._known or observation.facts
            self._over = self._over or self._absent >= ABSENT_LOOKS or observation.facts not in (None, self._known)
        return self._over

    def renew(self) -> None:
        """Makes the topic if it is not there; from now on that is the one. Raises BrokerUnavailableError, StreamsError."""
        self._admin.create(self._topic, 1, COORDINATION_CONFIG)
        self._since_ms = self._clock.wall_ms()
        self._known, self._absent, self._over = None, 0, False

    def close(self) -> None:
        """Waits for a look that is under way."""
        if self._started:
            self._watch.close()
