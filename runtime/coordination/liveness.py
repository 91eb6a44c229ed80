"""Which members the group has now, asked without waiting (rules.md, 24).

The group protocol tells a member nothing of another's death, so it is looked at: the group's coordinator lists the members whose session
lives.

An answer that does not know the asker is no answer: a broker that has just started may not have read its groups yet, and shows none.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.group import members_group
from penstock.runtime.coordination.registry import Known
from penstock.runtime.kafka.group_members import GroupMembers
from penstock.runtime.kafka.membership import Membership
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StreamsError

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 500


class Liveness:
    """The last answer of the group's coordinator. Belongs to the worker's thread; asks on one of its own."""

    def __init__(self, config: StreamsConfig, membership: Membership, clock: Clock) -> None:
        """Contacts nobody."""
        self._members = GroupMembers(config, members_group(config.application_id))
        self._membership = membership
        self._clock = clock
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
            self._asked = (now_ms, self._pool.submit(self._members.ask))

    def _take(self, asked_ms: int, future: Future[frozenset[str]]) -> None:
        try:
            members = future.result()
        except StreamsError as error:
            logger.info("%s", error)
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
