"""Whether a newcomer fits the members that run: all workers of an application must run the same topology.

Task ids are numbers of sub-topologies and partitions. Two members with different topologies would mean different things by the same
number, and restore one table's changelog into another's store. So whoever comes later is refused, and is told what differs.
"""

from __future__ import annotations

from difflib import unified_diff

from runtime.coordination.liveness import Liveness
from runtime.coordination.records import Member, TopologyText
from runtime.coordination.registry import Registry
from runtime.errors import TopologyError

MOST_LINES = 30


class Compatibility:
    """The check of one worker. `mine` is its topology."""

    def __init__(self, mine: TopologyText, registry: Registry, liveness: Liveness) -> None:
        self._mine = mine
        self._registry = registry
        self._liveness = liveness

    def checked(self, member: Member) -> bool:
        """True once it is known that no earlier member that lives runs another topology. Never waits. Raises TopologyError."""
        own = self._registry.members.get(member.who)
        waiting = False
        for known in self._registry.members.values():
            other = known.member
            if other.topology_hash in ("", self._mine.hash) or other.instance == member.instance or (own and own.offset < known.offset):
                continue
            self._liveness.look()
            lives = self._liveness.lives(known)
            if lives:
                raise TopologyError(self._refusal(other))
            waiting = waiting or lives is None
        return not waiting

    def _refusal(self, other: Member) -> str:
        theirs = self._registry.topologies.get(other.topology_hash)
        text = (
            f"instance {other.instance} on {other.host} runs another topology under the same application.id. Stop all instances of the old "
            "version first, or give the new one an application.id of its own"
        )
        if theirs is None:
            return text
        changes = list(unified_diff(theirs.splitlines(), self._mine.text.splitlines(), "running", "refused", lineterm="", n=0))
        shown = [line for line in changes if not line.startswith("@@")][:MOST_LINES]
        return f"{text}. What differs:\n" + "\n".join(shown)
