"""What of a topology its state depends on, so that a later topology can be held against it: does that still fit what is there?

State outlives the program. Stores are found by the name of their changelog and, on disk, by the number of their sub-topology; what is
on its way stands in repartition topics, which are found by their names. So an operator may come, go or change as long as stores and
repartition topics stay where they are; stores may be added, and left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from runtime.ids import changelog_topic
from runtime.topology.catalogue import known_stores
from runtime.topology.topology import Topology


class StoreShape(msgspec.Struct, frozen=True):
    """A store: what kind it is, where it is, and the topic that it is restored from, if any; `of_source`: that is a source topic."""

    name: str
    kind: str
    sub_topology: int
    changelog: str = ""
    of_source: bool = False


class TopologyShape(msgspec.Struct, frozen=True, kw_only=True):
    """Stores, topics that are read by the number of the sub-topology (those of patterns left out), and repartition topics."""

    stores: tuple[StoreShape, ...] = ()
    sources: dict[int, tuple[str, ...]] = {}
    repartitions: tuple[str, ...] = ()


def shape_of(topology: Topology, application_id: str) -> TopologyShape:
    """The shape of a resolved topology."""
    kinds = {name: store.kind for name, store in known_stores(topology).items()}
    stores = []
    for part in topology.sub_topologies():
        for store in part.stores:
            own = changelog_topic(application_id, store.name) if store.logging_enabled else ""
            source = part.source_changelogs.get(store.name)
            stores.append(StoreShape(store.name, kinds[store.name], part.id, source or own, source is not None))
    repartitions = tuple(topic.name for topic in topology.internal_topics() if topic.kind == "repartition")
    sources = {
        part.id: tuple(sorted({topic for source in part.sources if source.pattern is None for topic in source.topics} - set(repartitions)))
        for part in topology.sub_topologies()
    }
    return TopologyShape(stores=tuple(stores), sources=sources, repartitions=repartitions)


def misfits(former: TopologyShape, now: TopologyShape, kept: Collection[str], unread: Mapping[str, int]) -> list[str]:
    """What of a topology does not fit the state that the former one has left, in words; nothing if it fits.

    `kept`: the former stores of which there is something; `unread`: records in former repartition topics that were not processed.
    """
    here = {store.name: store for store in now.stores}
    left = [store for store in former.stores if store.name in kept]
    found = [text for store in left if (text := _misfit(store, here, former))]
    for number in sorted(
        {store.sub_topology for store in left if store.name in here and here[store.name].sub_topology == store.sub_topology}
    ):
        for topic in former.sources.get(number, ()):
            if topic not in now.sources.get(number, ()):
                found.append(f"source topic {topic} of sub-topology {number} is not read any more: its stores hold what came of it")
    found += [
        f"repartition topic {topic} is not there any more, and holds {records} records that nobody would process"
        for topic, records in sorted(unread.items())
        if topic not in now.repartitions
    ]
    return found


def left_out(former: TopologyShape, now: TopologyShape, kept: Collection[str]) -> list[str]:
    """The former stores that are no more, and of which there is something."""
    return [store.name for store in former.stores if store.name in kept and store.name not in {each.name for each in now.stores}]


def _misfit(store: StoreShape, here: Mapping[str, StoreShape], former: TopologyShape) -> str | None:
    now = here.get(store.name)
    if now is None:
        known = {each.name for each in former.stores}
        added = [each.name for each in here.values() if each.name not in known and _looks_alike(each, store)]
        renamed = f"store {store.name} of sub-topology {store.sub_topology} is not there any more: was it renamed to {' or '.join(added)}?"
        return renamed if added else None
    if now.kind != store.kind:
        return f"store {store.name} was a {_kind(store)} store and is a {_kind(now)} store now"
    if now.sub_topology != store.sub_topology:
        return (
            f"store {store.name} was in sub-topology {store.sub_topology} and is in sub-topology {now.sub_topology} now: "
            "what came or went before it has moved the numbers"
        )
    if store.of_source and now.changelog and not now.of_source:
        return f"store {store.name} was restored from topic {store.changelog}, and shall have a changelog now, which has nothing of it"
    return None


def _looks_alike(new: StoreShape, old: StoreShape) -> bool:
    return (new.kind, new.sub_topology) == (old.kind, old.sub_topology)


def _kind(store: StoreShape) -> str:
    return store.kind.replace("_", "-")
