"""Times that a node keeps with its store, from commit to commit: how far its own stream time is, up to when its results are out.

They are written in the batch of the store's commit. Kafka Streams forgets most of them, so that after a restart it takes records which were
late before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from runtime.operators.context import NodeContext
from runtime.stores.base import EngineStore

OBSERVED_TIME = "observed.stream.time"
"""Name under which a store of windows keeps the stream time of its aggregate."""
_INT64 = struct.Struct(">q")


def kept_time(store: EngineStore, name: str) -> int:
    """The time in ms that was committed with the store, -1 if there is none."""
    kept = store.get_meta(name)
    return -1 if kept is None else int(_INT64.unpack(kept)[0])


def keep_time(context: NodeContext, store: EngineStore, name: str, now: Callable[[], int]) -> None:
    """Writes `now()` into the store at each commit, if it has changed."""
    kept = kept_time(store, name)

    def keep() -> None:
        nonlocal kept
        if now() != kept:
            kept = now()
            store.set_meta(name, _INT64.pack(kept))

    context.hooks.before_commit.append(keep)
