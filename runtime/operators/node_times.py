"""Times that a node commits: its own stream time, and the time up to which it has emitted closed windows.

They are written in the batch of the store's commit, and in the metadata of the committed offsets, because a store restored from its
changelog has no times. Kafka Streams commits only the second, with the offsets (`ProcessorMetadata`). It loses the first, so that after a
restart it accepts records that were late before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from penstock.runtime.operators.context import NodeContext
from penstock.runtime.stores.base import EngineStore

OBSERVED_TIME = "observed.stream.time"
"""Name of an aggregate's stream time in its store."""
EMITTED_TIME = "emitted.until"
"""Name of the time up to which closed windows are emitted."""
_INT64 = struct.Struct(">q")


def committed_time(context: NodeContext, store: EngineStore, name: str) -> int:
    """Return the time in ms that was committed with the store or the offsets, -1 if there is none."""
    stored = store.get_meta(name)
    with_store = -1 if stored is None else int(_INT64.unpack(stored)[0])
    return max(with_store, context.task.processor_metadata.get(_metadata_name(store.name, name), -1))


def commit_time(context: NodeContext, store: EngineStore, name: str, now: Callable[[], int]) -> None:
    """Write the result of `now()` at each commit at which it has changed."""
    metadata, metadata_name = context.task.processor_metadata, _metadata_name(store.name, name)
    written = -1

    def write() -> None:
        nonlocal written
        if now() != written:
            written = now()
            store.set_meta(name, _INT64.pack(written))
            metadata[metadata_name] = written

    context.hooks.before_commit.append(write)


def select_processor_metadata(store: str, metas: Mapping[str, bytes]) -> dict[str, int]:
    """Select the times among a store's metadata, under their names in the metadata of the committed offsets."""
    times = {name: metas[name] for name in (OBSERVED_TIME, EMITTED_TIME) if name in metas}
    return {_metadata_name(store, name): int(_INT64.unpack(value)[0]) for name, value in times.items()}


def encoded_time(time: int) -> bytes:
    """Encode a time in ms as a store's metadata."""
    return _INT64.pack(time)


def _metadata_name(store: str, name: str) -> str:
    """Name of a time in the offsets. As in Kafka Streams, that of emitted windows is the store's name alone."""
    return store if name == EMITTED_TIME else f"{store}/{name}"
