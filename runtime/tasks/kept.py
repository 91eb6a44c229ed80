"""What a task keeps in its stores beside their entries: input offsets, times, and of which inputs it has seen the end.

All of it is written in the batch of a commit, so it is as old as the data. It is read where the group's committed offsets do not tell:
after a tool has erased their metadata (rules.md, 17), or when they are gone (rules.md, 14).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from runtime.ids import NextOffset, Partition
from runtime.intake.queues import PartitionQueue
from runtime.stores.base import EngineStore

_INT64 = struct.Struct(">q")
_STREAM_TIME = "stream.time"


def _time_name(partition: Partition) -> str:
    return f"partition.time.{partition}"


def _at_end_name(partition: Partition) -> str:
    return f"input.at.end.{partition}"


def keep_times(store: EngineStore, stream_time: int, queues: Iterable[PartitionQueue]) -> None:
    """Stream time and each input's partition time; written with the store's next commit."""
    store.set_meta(_STREAM_TIME, _INT64.pack(stream_time))
    for queue in queues:
        store.set_meta(_time_name(queue.partition), _INT64.pack(queue.partition_time))


def times_as_kept(stream_time: int, partition_times: Mapping[Partition, int]) -> dict[str, bytes]:
    """The metas that `keep_times` writes; times in ms."""
    times = {_time_name(partition): time for partition, time in partition_times.items()}
    return {name: _INT64.pack(time) for name, time in {_STREAM_TIME: stream_time, **times}.items()}


def kept_stream_time(stores: Mapping[str, EngineStore]) -> int:
    """The largest of all stores, -1 if none has it."""
    return _largest(stores, _STREAM_TIME)


def kept_partition_time(stores: Mapping[str, EngineStore], partition: Partition) -> int:
    """The same of an input partition."""
    return _largest(stores, _time_name(partition))


def _largest(stores: Mapping[str, EngineStore], name: str) -> int:
    found = [meta for store in stores.values() if (meta := store.get_meta(name)) is not None]
    return max((_INT64.unpack(meta)[0] for meta in found), default=-1)


def keep_inputs_at_end(store: EngineStore, queues: Iterable[PartitionQueue], now_ms: int) -> None:
    """Notes of which inputs the store holds all that there is; written with its next commit."""
    for queue in queues:
        if queue.at_end and not queue.buffered:
            store.set_meta(_at_end_name(queue.partition), _INT64.pack(now_ms))


def kept_at_end_ms(store: EngineStore, partition: Partition) -> int | None:
    """Wall-clock time at which the store was committed with all that an input partition had then; None if that is not known."""
    meta = store.get_meta(_at_end_name(partition))
    return None if meta is None else int(_INT64.unpack(meta)[0])


def kept_inputs(stores: Mapping[str, EngineStore], inputs: Iterable[Partition]) -> dict[Partition, NextOffset]:
    """The input offsets that the stores were last committed with: the largest of each partition."""
    found: dict[Partition, NextOffset] = {}
    for partition in inputs:
        for store in stores.values():
            offset = store.committed_offset(partition)
            if offset is not None:
                found[partition] = max(offset, found.get(partition, offset))
    return found
