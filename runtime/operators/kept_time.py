"""Times that a node keeps with its store, from commit to commit: how far its own stream time is, up to when its results are out.

They are written in the batch of the store's commit, and in the text of the committed offsets, where they outlive the store's files: what is
restored from a changelog has no times. Kafka Streams keeps only the second kind, in the offsets (`ProcessorMetadata`), and forgets the
first, so that after a restart it takes records which were late before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from runtime.operators.context import NodeContext
from runtime.stores.base import EngineStore

OBSERVED_TIME = "observed.stream.time"
"""Name under which a store of windows keeps the stream time of its aggregate."""
EMITTED_TIME = "emitted.until"
"""Name under which it keeps up to when the results of closed windows are out."""
_INT64 = struct.Struct(">q")


def kept_time(context: NodeContext, store: EngineStore, name: str) -> int:
    """The time in ms that was committed with the store or the offsets, -1 if there is none."""
    kept = store.get_meta(name)
    with_store = -1 if kept is None else int(_INT64.unpack(kept)[0])
    return max(with_store, context.task.carried.get(_carried_name(store.name, name), -1))


def keep_time(context: NodeContext, store: EngineStore, name: str, now: Callable[[], int]) -> None:
    """Writes `now()` into the store at each commit, if it has changed."""
    carried, carried_name = context.task.carried, _carried_name(store.name, name)
    kept = -1

    def keep() -> None:
        nonlocal kept
        if now() != kept:
            kept = now()
            store.set_meta(name, _INT64.pack(kept))
            carried[carried_name] = kept

    context.hooks.before_commit.append(keep)


def carried_times(store: str, metas: Mapping[str, bytes]) -> dict[str, int]:
    """Of the metas of a store, the times that the text of the committed offsets has too, under the names that they have there."""
    kept = {name: metas[name] for name in (OBSERVED_TIME, EMITTED_TIME) if name in metas}
    return {_carried_name(store, name): int(_INT64.unpack(value)[0]) for name, value in kept.items()}


def time_as_kept(time: int) -> bytes:
    """A time in ms as such a meta."""
    return _INT64.pack(time)


def _carried_name(store: str, name: str) -> str:
    """As in Kafka Streams, up to when results are out stands under the store's name alone."""
    return store if name == EMITTED_TIME else f"{store}/{name}"
