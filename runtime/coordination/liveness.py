"""Which members the group has now, asked without waiting (rules.md, 24).

The group protocol tells a member nothing of another's death, so it is looked at: `DescribeGroups` lists the member ids whose session lives.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from runtime.clock import Clock
from runtime.commit.transactions import kafka_error
from runtime.config import StreamsConfig
from runtime.coordination.group import members_group
from runtime.coordination.registry import Known
from runtime.kafka_logs import KAFKA_LOGGER

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 500


class Liveness:
    """The last answer of the group's coordinator. Belongs to the worker's thread."""

    def __init__(self, config: StreamsConfig, clock: Clock) -> None:
        """Contacts nobody."""
        self._group = members_group(config.application_id)
        self._clock = clock
        self._admin = AdminClient(config.admin_properties(), logger=KAFKA_LOGGER)
        self._asked: tuple[int, Future[object]] | None = None
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
            self._asked = (now_ms, self._admin.describe_consumer_groups([self._group], request_timeout=10)[self._group])

    def _take(self, asked_ms: int, future: Future[object]) -> None:
        try:
            description = future.result()
        except KafkaException as error:
            logger.info("the members' group cannot be looked at: %s", kafka_error(error).str())
        else:
            self._answer = (asked_ms, frozenset(member.member_id for member in description.members))  # type: ignore[attr-defined] # untyped

    def forget(self) -> None:
        """The next answer must be a new one."""
        self._asked, self._answer = None, None

    def lives(self, known: Known) -> bool | None:
        """Whether the group has this member, by an answer that was asked for after its record was read; None as long as there is none."""
        if self._answer is None or self._answer[0] <= known.since_ms:
            return None
        return known.member.member_id in self._answer[1]
