"""Check of a new member against the live ones. Two versions of an application may run at once as long as a task means the same to both. The
name of an instance is unique.

Task ids are numbers of sub-topologies and partitions. If two topologies used the same number for different tasks, one table's changelog
would be restored into another's store. Such a member is refused, with the differences and the remedies (`topology/shape.py`), and so
is a version of Penstock with another protocol.

An instance is identified by its name (`client.id`): a later incarnation reports the end of the earlier one, so two instances of one name
would end each other forever. The later one is refused, unless the other is silent: then it is the same instance, killed and moved to
another machine, and it waits for its old session to expire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import unified_diff

from penstock.runtime.coordination.liveness import Liveness
from penstock.runtime.coordination.records import PROTOCOL, Member, TopologyText
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.model.errors import StreamsConfigError, TopologyError
from penstock.runtime.topology.shape import conflicts

MOST_LINES = 30


class Compatibility:
    """The check of one worker. `mine` is its topology."""

    def __init__(self, mine: TopologyText, registry: Registry, liveness: Liveness) -> None:
        self._mine = mine
        self._registry = registry
        self._liveness = liveness
        self._namesakes: dict[str, int] = {}
        """Members elsewhere with this instance's name, and the time of their last record when this worker first saw them."""

    def has_its_name(self, member: Member) -> bool:
        """Return True once it is certain that no live member elsewhere has this instance's name. Never waits. Raises StreamsConfigError if
        one keeps writing."""
        silent = True
        for identity, known in self._registry.members.items():
            other = known.member
            if other.instance != member.instance or other.returns or (other.host, other.state_dir) == (member.host, member.state_dir):
                continue
            if known.written_ms != self._namesakes.setdefault(identity, known.written_ms):
                raise StreamsConfigError(
                    f"client.id = {member.instance!r} is the name of an instance that runs on {other.host} (process {other.pid}, state.dir "
                    f"{other.state_dir}): each instance of an application needs a name of its own, or none"
                )
            self._liveness.poll()
            silent = silent and self._liveness.lives(known) is False
        return silent

    def checked(self, member: Member) -> bool:
        """Return True once it is certain that no earlier live member conflicts with this one. Never waits. Raises TopologyError,
        StreamsConfigError (another protocol)."""
        own = self._registry.members.get(member.identity)
        waiting = False
        for known in self._registry.members.values():
            other = known.member
            same_worker = (other.instance, other.worker) == (member.instance, member.worker)
            if same_worker or (own and own.offset < known.offset):
                continue
            refusal = refusal_beside(self._mine, [other], self._registry.versions, self._registry.topologies)
            if refusal is None:
                continue
            self._liveness.poll()
            lives = self._liveness.lives(known)
            if lives:
                raise refusal
            waiting = waiting or lives is None
        return not waiting


def refusal_beside(
    mine: TopologyText, others: Sequence[Member], versions: Mapping[str, TopologyText], texts: Mapping[str, str]
) -> TopologyError | StreamsConfigError | None:
    """Return the reason why a member with topology `mine` cannot run beside other members of one version, or None. `versions` by digest and
    `texts` by hash are those of the coordination topic."""
    other = others[0]
    names = list(dict.fromkeys(f"instance {each.instance} on {each.host}" for each in others))
    others_run = f"{', '.join(names)} {'runs' if len(names) == 1 else 'run'}"
    if major(other.protocol) != major(PROTOCOL):
        return StreamsConfigError(
            f"{others_run} a version of Penstock whose records have protocol {other.protocol}; those of "
            f"this one have {PROTOCOL}, and the two cannot run at once: stop all instances of the application (penstock stop APPLICATION), "
            "then start them with the new version"
        )
    if other.topology == mine.digest or (not other.topology and other.topology_hash in ("", mine.hash)):
        return None
    theirs = versions.get(other.topology)
    found = ["it is run by a version of Penstock that cannot run beside another topology: upgrade Penstock first, then the topology"]
    if theirs is not None and theirs.shape is not None and mine.shape is not None:
        found = conflicts((theirs.shape, theirs.parts), (mine.shape, mine.parts))
    return TopologyError(_refusal(mine, others_run, texts.get(other.topology_hash), found)) if found else None


def major(protocol: str) -> str:
    """Return the major number of a protocol's version, in which members must agree."""
    return protocol.partition(".")[0]


def _refusal(mine: TopologyText, others_run: str, theirs: str | None, found: list[str]) -> str:
    text = (
        f"{others_run} another topology under the same application.id, beside which this one cannot run:"
        + "".join(f"\n  {each}" for each in found)
        + "\nRemedies: stop all its instances (penstock stop APPLICATION), then start them with the new version (penstock start), if "
        "its state fits (the start says so); or penstock reset, which begins without state; or another application.id, which a seed "
        "gives the state of this one (`penstock docs seeding`)"
    )
    if theirs is None:
        return text
    changes = list(unified_diff(theirs.splitlines(), mine.text.splitlines(), "running", "refused", lineterm="", n=0))
    shown = [line for line in changes if not line.startswith("@@")][:MOST_LINES]
    return f"{text}. What differs:\n" + "\n".join(shown) if shown else text
