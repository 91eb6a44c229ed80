"""Detection of instances that have ended or are silent, sooner than by the group's session (coordination.md, 5).

Each worker has a process that writes heartbeats to `<app>-heartbeats` (`heartbeat_process.py`). Two members read them: the leader, and its
*second*, the first member of another instance, which reports the end of the leader's instance and then stands in for it. What they report
is a record (`Death`), as of a process whose end its parent has seen; what follows is the same.

- *Ended*: the heartbeat process has seen the end of the worker's. That is certain.
- *Silent*: no heartbeat for `failure.detection.ms`. That is a guess. It is safe under exactly-once, because the leader fences the
  transactional id before it grants the tasks to others: a guess that was wrong costs a hand-over. Under at-least-once nothing fences the
  outputs and changelogs of a worker that lives, so silence counts for nothing there, and the group's session decides.

Silence is measured on the log, by the broker's clock, between the last heartbeat of the silent one and the last of the reader's own. So a
reader that is late itself, or a broker that is away, makes nobody silent. After a gap in the reader's own heartbeats each other one has to
be heard again before its silence counts: clients find a broker that has moved at different times.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.records import Member
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.coordination.topics import heartbeats_topic
from penstock.runtime.kafka.clients import tail_consumer
from penstock.runtime.kafka.heartbeat_process import ENDED
from penstock.runtime.kafka.messages import appended_ms
from penstock.runtime.kafka.shared_log import Tail
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StreamsError

logger = logging.getLogger(__name__)

READ_AGAIN = 500
"""Records of the past that a new reader reads: a process may have ended while nobody read, or before the reader's first request."""
AGAIN_MS = 60_000
"""Time after which heartbeats that could not be read are tried again."""


class Silence:
    """Heartbeats read so far, and what follows from them. Times are those of the log (ms)."""

    def __init__(self, silence_ms: int) -> None:
        """`silence_ms`: least silence that counts; the sender's own value counts if it is longer."""
        self._silence_ms = silence_ms
        self._own_ms: int | None = None
        self._last: dict[str, tuple[int, int]] = {}
        """Time of the last heartbeat, and the silence after which it counts as missing, by id."""
        self.ended: set[str] = set()
        """Ids whose process has ended."""
        self._forgotten: dict[str, int] = {}
        """Time of the last heartbeat that was known when its sender was forgotten, by id."""

    def note(self, sender: str, value: bytes, at_ms: int, own: str) -> None:
        """Take the next record of the log. `own`: id of the reader's heartbeats."""
        if value == ENDED:
            self.ended.add(sender)
            self._last.pop(sender, None)
        elif sender == own:
            if self._own_ms is None or abs(at_ms - self._own_ms) > self._silence_ms // 2:
                self._last.clear()
            self._own_ms = at_ms
        elif at_ms > self._forgotten.get(sender, -1):
            self._last[sender] = at_ms, max(self._silence_ms, int(value)) if value.isdigit() else self._silence_ms

    def silent(self) -> set[str]:
        """Return the ids that were heard, and are silent now."""
        if self._own_ms is None:
            return set()
        return {sender for sender, (at_ms, silence_ms) in self._last.items() if self._own_ms - at_ms > silence_ms}

    def forget(self, sender: str) -> None:
        """Count the silence or the end of a sender no more. It is silent again only after it was heard again: a worker that lives, and
        whose heartbeats do not arrive, is taken for dead once, and not in each of its next incarnations."""
        self._forgotten[sender], _ = self._last.pop(sender, (-1, 0))
        self.ended.discard(sender)


class FailureDetection:
    """Reads heartbeats while there are members to watch. Used by the worker's thread only."""

    def __init__(self, config: StreamsConfig, clock: Clock) -> None:
        """Makes no request."""
        self._config = config
        self._clock = clock
        self._topic = heartbeats_topic(config.application_id)
        self._silence_ms = config.integer("failure.detection.ms")
        self._silence_counts = config.exactly_once
        self._heard = Silence(self._silence_ms)
        self._tail: Tail | None = None
        self._not_before_ms = 0

    def dead(self, watched: Collection[Member], own: str) -> list[Member]:
        """Return the watched members that have ended, or have fallen silent. `own`: id of this worker's heartbeats. Never waits."""
        if not self._silence_ms or not watched:
            self.close()
            return []
        try:
            self._read(own)
        except StreamsError as error:
            logger.warning("heartbeats cannot be read, so the end of instances is noticed after session.timeout.ms: %s", error)
            self._not_before_ms = self._clock.monotonic_ms() + AGAIN_MS
            self.close()
            return []
        ended, silent = self._heard.ended, self._heard.silent() if self._silence_counts else set()
        dead = [member for member in watched if member.heartbeats in ended | silent]
        for member in dead:
            seen = "its process has ended" if member.heartbeats in ended else "it is silent for failure.detection.ms"
            logger.warning("member %s counts as dead: %s", member.identity, seen)
        for member in dead:
            self._heard.forget(member.heartbeats)
        return dead

    def _read(self, own: str) -> None:
        if self._tail is None:
            if self._clock.monotonic_ms() < self._not_before_ms:
                return
            name = f"{self._topic}-reader"
            self._tail = Tail(tail_consumer(self._config.consumer_properties("restore"), name), self._topic, name)
            self._tail.begin_with_last(READ_AGAIN)
        for message in self._tail.poll():
            key, value, at_ms = message.key(), message.value(), appended_ms(message)
            if key is not None and value is not None and at_ms is not None:
                self._heard.note(key.decode(errors="replace"), value, at_ms, own)

    def close(self) -> None:
        """Stop reading."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None


def watched_by(identity: str, registry: Registry, *, leads: bool) -> list[Member]:
    """Return the members whose end a worker has to report: the leader watches all other instances, its second the leader's. Members that
    close, and those whose death was reported, are not watched."""
    me = registry.members.get(identity)
    if me is None or registry.assignment is None:
        return []
    others = [known.member for known in registry.members.values() if known.member.instance != me.member.instance]
    if not leads:
        leader = registry.members.get(registry.assignment.leader)
        if leader is None or identity != _second(registry, leader.member):
            return []
        others = [member for member in others if member.instance == leader.member.instance]
    return [member for member in others if member.heartbeats and not member.returns and member.identity not in registry.deaths]


def _second(registry: Registry, leader: Member) -> str | None:
    """Return the first living member of another instance than the leader's."""
    others = (known.member for known in registry.members.values() if known.member.instance != leader.instance)
    return min(
        (member.identity for member in others if member.member_id and not member.returns and member.identity not in registry.deaths),
        default=None,
    )
