"""Current members of the group, requested without waiting (rules.md, 24).

The group protocol does not notify a member of another's death, so the group's coordinator is polled: it lists the members whose sessions
have not expired.

An answer without this worker itself is ignored: a broker that has just started may not have loaded its groups, and lists no members.
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

POLL_EVERY_MS = 500


class Liveness:
    """Last answer of the group's coordinator. Used by the worker's thread only; requests run on a thread of their own."""

    def __init__(self, config: StreamsConfig, membership: Membership, clock: Clock) -> None:
        """Makes no request."""
        self._group = GroupMembers(config, members_group(config.application_id))
        self._membership = membership
        self._clock = clock
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="liveness")
        self._asked: tuple[int, Future[frozenset[str]]] | None = None
        self._asked_ms = -POLL_EVERY_MS
        self._answer: tuple[int, frozenset[str]] | None = None

    def poll(self) -> None:
        """Take an answer that has arrived, and send a request every `POLL_EVERY_MS`. Never waits."""
        now_ms = self._clock.monotonic_ms()
        if self._asked is not None:
            asked_ms, future = self._asked
            if future.done():
                self._asked = None
                self._take(asked_ms, future)
        elif now_ms - self._asked_ms >= POLL_EVERY_MS:
            self._asked_ms = now_ms
            self._asked = (now_ms, self._pool.submit(self._group.ask))

    def _take(self, asked_ms: int, future: Future[frozenset[str]]) -> None:
        try:
            members = future.result()
        except StreamsError as error:
            logger.info("%s", error)
            return
        if self._membership.member_id in members:
            self._answer = (asked_ms, members)

    def forget(self) -> None:
        """Drop the last answer, and the one to a request that is under way."""
        self._asked, self._answer = None, None

    @property
    def members(self) -> frozenset[str] | None:
        """Ids of the group's members in the last answer; None before the first."""
        return None if self._answer is None else self._answer[1]

    def lives(self, known: Known) -> bool | None:
        """Return True if the group has this member, by an answer that was requested after its record was read; None before such an
        answer."""
        if self._answer is None or self._answer[0] <= known.since_ms:
            return None
        return known.member.member_id in self._answer[1]

    def close(self) -> None:
        """Stop the requests, without waiting for an answer."""
        self._pool.shutdown(wait=False, cancel_futures=True)
