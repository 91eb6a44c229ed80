"""Which members the group has now, asked without waiting (rules.md, 24).

The group protocol tells a member nothing of another's death, so it is looked at: the group's coordinator lists the members whose session
lives.

There are two questions for that, and librdkafka 2.16 makes each of them a trap. `describe_consumer_groups` does not survive the death of a
broker: a client that has asked it before is not answered any more when the broker is back, and one that asks while the broker is away has
its process aborted by an assertion. `list_groups` does survive it, but fails as long as any broker of the cluster is away. So the second
is asked, and the first by a new client only, when that has just been answered by some broker.

An answer that does not know the asker is no answer: a broker that has just started may not have read its groups yet, and shows none.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from runtime.clock import Clock
from runtime.commit.transactions import kafka_error
from runtime.config import StreamsConfig
from runtime.coordination.group import Membership, members_group
from runtime.coordination.registry import Known
from runtime.kafka_logs import KAFKA_LOGGER

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 500
ANSWER_SECONDS = 5.0


class Liveness:
    """The last answer of the group's coordinator. Belongs to the worker's thread; asks on one of its own."""

    def __init__(self, config: StreamsConfig, membership: Membership, clock: Clock) -> None:
        """Contacts nobody."""
        self._group = members_group(config.application_id)
        self._membership = membership
        self._clock = clock
        self._properties = config.admin_properties()
        self._admin = AdminClient(self._properties, logger=KAFKA_LOGGER)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="liveness")
        self._asked: tuple[int, Future[frozenset[str]]] | None = None
        self._asked_ms = -LOOK_EVERY_MS
        self._answer: tuple[int, frozenset[str]] | None = None

    def look(self) -> None:
        """Takes in an answer that has come, and asks anew every `LOOK_EVERY_MS`. Never waits."""
        now_ms = self._clock.monotonic_ms()
        if self._asked is not None:
            asked_ms, future = self._asked
            if future.done():
                self._asked = None
                self._take(asked_ms, future)
        elif now_ms - self._asked_ms >= LOOK_EVERY_MS:
            self._asked_ms = now_ms
            self._asked = (now_ms, self._pool.submit(self._ask))

    def _ask(self) -> frozenset[str]:
        """On the thread for it. Raises KafkaException."""
        try:
            found = self._admin.list_groups(self._group, timeout=ANSWER_SECONDS)
            return frozenset(str(member.id) for group in found for member in group.members)
        except KafkaException:
            admin = AdminClient(self._properties, logger=KAFKA_LOGGER)
            admin.list_topics(timeout=ANSWER_SECONDS)
            description = admin.describe_consumer_groups([self._group], request_timeout=ANSWER_SECONDS)[self._group].result()
            return frozenset(member.member_id for member in description.members)

    def _take(self, asked_ms: int, future: Future[frozenset[str]]) -> None:
        try:
            members = future.result()
        except KafkaException as error:
            logger.info("the members' group cannot be looked at: %s", kafka_error(error).str())
            return
        if self._membership.member_id in members:
            self._answer = (asked_ms, members)

    def forget(self) -> None:
        """The next answer must be a new one."""
        self._asked, self._answer = None, None

    @property
    def everybody(self) -> frozenset[str] | None:
        """The ids of the group's members by the last answer; None as long as there is none."""
        return None if self._answer is None else self._answer[1]

    def lives(self, known: Known) -> bool | None:
        """Whether the group has this member, by an answer that was asked for after its record was read; None as long as there is none."""
        if self._answer is None or self._answer[0] <= known.since_ms:
            return None
        return known.member.member_id in self._answer[1]

    def close(self) -> None:
        """Does not wait for an answer."""
        self._pool.shutdown(wait=False, cancel_futures=True)
