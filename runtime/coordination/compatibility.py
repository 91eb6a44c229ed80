"""Whether a newcomer fits the members that run: all workers of an application run the same topology, and an instance's name is its own.

Task ids are numbers of sub-topologies and partitions. Two members with different topologies would mean different things by the same
number, and restore one table's changelog into another's store. So whoever comes later is refused, and is told what differs.

An instance is known by its name (`client.id`): of two incarnations the later one tells of the earlier one's end. Two instances of one name
would end each other for ever. So whoever comes later is refused here too, unless the other is silent: that is the same instance, which was
killed and has moved to another machine, and it waits for its old session.
"""

from __future__ import annotations

from difflib import unified_diff

from runtime.coordination.liveness import Liveness
from runtime.coordination.records import Member, TopologyText
from runtime.coordination.registry import Registry
from runtime.errors import StreamsConfigError, TopologyError

MOST_LINES = 30


class Compatibility:
    """The check of one worker. `mine` is its topology."""

    def __init__(self, mine: TopologyText, registry: Registry, liveness: Liveness) -> None:
        self._mine = mine
        self._registry = registry
        self._liveness = liveness
        self._namesakes: dict[str, int] = {}
        """Members of this instance's name that are elsewhere, and when they wrote last as this worker saw them first."""

    def has_its_name(self, member: Member) -> bool:
        """True once it is known that no member that lives has this instance's name in another place. Never waits. Raises
        StreamsConfigError if one goes on writing."""
        silent = True
        for who, known in self._registry.members.items():
            other = known.member
            if other.instance != member.instance or other.returns or (other.host, other.state_dir) == (member.host, member.state_dir):
                continue
            if known.told_ms != self._namesakes.setdefault(who, known.told_ms):
                raise StreamsConfigError(
                    f"client.id = {member.instance!r} is the name of an instance that runs on {other.host} (process {other.pid}, state.dir "
                    f"{other.state_dir}): each instance of an application needs a name of its own, or none"
                )
            self._liveness.look()
            silent = silent and self._liveness.lives(known) is False
        return silent

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
