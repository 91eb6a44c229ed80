"""Watch of the coordination topic's identity.

The topic may be deleted by mistake, or created again. Tasks do not need it and keep running, but no death would be reported any more, and
clients raise no error: a reader of a deleted topic just gets no records. So the worker's topic watcher polls the topic's id. When the topic
is gone, or its id has changed, each worker releases its tasks, creates the topic if no other member has, and rejoins as after a lost
session; manual pauses are recorded again.

A worker that has not noticed yet still runs its tasks, and the group still lets it commit. So on a log without an assignment the leader
grants nothing before each member of the group has announced itself there (`Leader`).

Rejected: to keep the old assignments. The topic's records would then exist in each worker's memory only, and a later leader has none.
"""

from __future__ import annotations

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.topics import COORDINATION_CONFIG, coordination_topic
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicWatch, TopicWatcher
from penstock.runtime.model.clock import Clock

POLL_EVERY_SECONDS = 1.0
ABSENT_POLLS = 2
"""The topic must be missing in this many consecutive answers: a broker that has just started may not know all topics."""


class TopicLife:
    """Id of the coordination topic. Used by the worker's thread only."""

    def __init__(self, config: StreamsConfig, topics: TopicAdmin, clock: Clock, watcher: TopicWatcher) -> None:
        """Makes no request before `start`."""
        self._topic = coordination_topic(config.application_id)
        self._admin = topics
        self._clock = clock
        self._watch: TopicWatch[str | None] = watcher.watch(self._topic_id, "coordination", POLL_EVERY_SECONDS)
        self._started = False
        self._since_ms = 0
        self._known: str | None = None
        self._absent = 0
        self._over = False

    def start(self) -> None:
        """Start polling, on the first call. The topic exists."""
        if not self._started:
            self._started = True
            self._watch.start()

    def _topic_id(self) -> str | None:
        found = self._admin.describe([self._topic]).get(self._topic)
        return None if found is None else found.topic_id

    def over(self) -> bool:
        """Return True once the topic is gone or another one, until `renew`. Never waits."""
        observation = self._watch.take()
        if observation is not None and observation.asked_ms >= self._since_ms:
            self._absent = self._absent + 1 if observation.facts is None else 0
            self._known = self._known or observation.facts
            self._over = self._over or self._absent >= ABSENT_POLLS or observation.facts not in (None, self._known)
        return self._over

    def renew(self) -> None:
        """Create the topic if it does not exist, and watch the new one from now on. Raises BrokerUnavailableError, StreamsError."""
        self._admin.create(self._topic, 1, COORDINATION_CONFIG)
        self._since_ms = self._clock.wall_ms()
        self._known, self._absent, self._over = None, 0, False

    def close(self) -> None:
        """Stop polling. Waits for a request that is under way."""
        if self._started:
            self._watch.close()
