"""Refusal of stores whose changelog misses records, because the topology that ran last did not have them: results would be silently wrong.

Example: a version with a new store ran, then the version before it, and now the new one again. The records that the earlier version has
processed are not in the store's changelog, and are not processed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.topic_admin import TopicAdmin, TopicDescription
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.topology.shape import StoreShape, TopologyShape, left_behind


def refuse_left_behind(last: TopologyShape | None, now: TopologyShape, config: StreamsConfig, topics: TopicAdmin) -> None:
    """Check the stores of a topology. `last`: the shape of the one that was started last. Raises TopologyError with the stores and the way
    out; BrokerUnavailableError."""
    stores = [] if last is None else left_behind(last, now)
    found = topics.describe({store.changelog for store in stores}) if stores else {}
    stale = [store for store in stores if store.changelog in found and _holds_something(found[store.changelog], topics)]
    if stale:
        raise TopologyError(_refusal(stale, config))


def _holds_something(topic: TopicDescription, topics: TopicAdmin) -> bool:
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    starts, ends = topics.start_offsets(partitions), topics.high_watermarks(partitions)
    return any(ends[partition] > starts[partition] for partition in partitions)


def _refusal(stores: Sequence[StoreShape], config: StreamsConfig) -> str:
    changes = "".join(
        f"\n  store {store.name} of sub-topology {store.sub_topology}: its changelog {store.changelog} holds state, and misses all records "
        "that the topology which ran last has processed without it"
        for store in stores
    )
    names = "|".join(store.changelog for store in stores)
    delete = f"{Connection.of(config.admin_properties()).tool('kafka-topics')} --delete"
    return (
        f"the topology has stores that application {config.application_id} had once, and did not have when it ran last:{changes}\n"
        f"To begin with them empty, as new stores begin: {delete} --topic "
        f"'{names}', then start again. To keep the old state too: give the stores other names. To build them from the whole input: "
        f"penstock reset {config.application_id}"
    )
