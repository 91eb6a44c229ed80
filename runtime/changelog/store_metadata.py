"""Metadata that a store keeps beside its entries: the topic of its changelog, times, and when everything of a topic was read.

All of it is written in the batch of a commit, so it is as old as the data. It shows whether the content is stale (`staleness.py`), and
replaces metadata of the group's committed offsets that a tool has erased (rules.md, 17), or offsets that have expired (rules.md, 14).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping

from penstock.runtime.input.queues import PartitionQueue
from penstock.runtime.model.ids import NextOffset, TopicPartition
from penstock.runtime.stores.base import EngineStore

TOPIC_ID = "topic.id"
"""Name of the id of the topic that the store's offsets belong to."""
AT_END_MS = "at.end.ms"
"""Name of the wall-clock time at which the store had everything of that topic, as decimal digits."""
COMPLETE_MS = "complete.ms"
"""Name of the wall-clock time until which a global store had everything of its topic; absent in one that was never complete."""
_STREAM_TIME = "stream.time"
_INT64 = struct.Struct(">q")


def _time_name(partition: TopicPartition) -> str:
    return f"partition.time.{partition}"


def _at_end_name(partition: TopicPartition) -> str:
    return f"input.at.end.{partition}"


# -- writing -------------------------------------------------------------------------------------------------------------------


def stage(store: EngineStore, metadata: Mapping[str, bytes]) -> None:
    """Set metadata that is written with the store's next commit."""
    for name, value in metadata.items():
        store.set_meta(name, value)


def encode_changelog_end(topic_id: str, now_ms: int) -> dict[str, bytes]:
    """Return the metadata of a store that holds everything on its changelog at `now_ms`."""
    return {TOPIC_ID: topic_id.encode(), AT_END_MS: b"%d" % now_ms}


def encode_times(stream_time: int, partition_times: Mapping[TopicPartition, int]) -> dict[str, bytes]:
    """Return the metadata for stream time and each input's partition time, in ms."""
    named = {_time_name(partition): time for partition, time in partition_times.items()}
    return {name: _INT64.pack(time) for name, time in {_STREAM_TIME: stream_time, **named}.items()}


def encode_inputs_at_end(queues: Iterable[PartitionQueue], now_ms: int) -> dict[str, bytes]:
    """Return the metadata for the inputs of which the store holds everything at `now_ms`."""
    return {_at_end_name(queue.partition): _INT64.pack(now_ms) for queue in queues if queue.at_end and not queue.buffered}


def encode_task(stream_time: int, queues: Collection[PartitionQueue], now_ms: int) -> dict[str, bytes]:
    """Return the metadata that all stores of a task share at a commit: its times, and the inputs that it has read to the end."""
    return {
        **encode_times(stream_time, {queue.partition: queue.partition_time for queue in queues}),
        **encode_inputs_at_end(queues, now_ms),
    }


# -- reading -------------------------------------------------------------------------------------------------------------------


def stored_topic_id(meta: Callable[[str], bytes | None]) -> str | None:
    """Return the id of the topic that a store's offsets belong to, from its metadata by name."""
    known = meta(TOPIC_ID)
    return None if known is None else known.decode()


def stored_complete_ms(store: EngineStore) -> int | None:
    """Return the wall-clock time until which a global store had everything of its topic; None if it was never complete."""
    stored = store.get_meta(COMPLETE_MS)
    return None if stored is None else int(stored)


def stored_stream_time(stores: Mapping[str, EngineStore]) -> int:
    """Return the largest stream time of all stores, -1 if none has one."""
    return _largest(stores, _STREAM_TIME)


def stored_partition_time(stores: Mapping[str, EngineStore], partition: TopicPartition) -> int:
    """Return the largest partition time of an input in all stores, -1 if none has one."""
    return _largest(stores, _time_name(partition))


def _largest(stores: Mapping[str, EngineStore], name: str) -> int:
    stored = [value for store in stores.values() if (value := store.get_meta(name)) is not None]
    return max((_INT64.unpack(value)[0] for value in stored), default=-1)


def stored_at_end_ms(store: EngineStore, partition: TopicPartition) -> int | None:
    """Return the wall-clock time at which the store was committed with everything on an input partition; None if unknown."""
    value = store.get_meta(_at_end_name(partition))
    return None if value is None else int(_INT64.unpack(value)[0])


def stored_input_offsets(stores: Mapping[str, EngineStore], inputs: Iterable[TopicPartition]) -> dict[TopicPartition, NextOffset]:
    """Return the input offsets of the stores' last commit, the largest of each partition."""
    found: dict[TopicPartition, NextOffset] = {}
    for partition in inputs:
        for store in stores.values():
            offset = store.committed_offset(partition)
            if offset is not None:
                found[partition] = max(offset, found.get(partition, offset))
    return found
