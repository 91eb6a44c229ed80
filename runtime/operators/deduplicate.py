"""Deduplication of a stream (docs/deduplication.md): the first record of an id passes, others within the interval do not.

A store with a time to live has the timestamps of an id's records that passed, in ascending order; the last is the entry's. A record is
compared while it is later than stream time minus the interval, with records that are less than the interval before it. So those of the last
two intervals are needed, and because they are an interval apart, these are three at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import cast

from penstock.runtime.operators.base import OperatorSupplier
from penstock.runtime.operators.context import Forward, LookUp, NodeContext
from penstock.runtime.operators.materialized import entries_of, materialize_silent

_TIME = Struct(">q")


@dataclass(frozen=True, slots=True)
class Deduplicate(OperatorSupplier):
    """`deduplicate` of a stream. `select(key, value)` returns the id; None: the record's key. A record without an id, or too late to be
    compared, passes and is not remembered."""

    store_name: str
    within_ms: int
    select: Callable[..., object] | None = None

    def keeps_key(self) -> bool:
        return True

    def look_up(self, context: NodeContext) -> LookUp | None:
        return entries_of(context, self.store_name) if self.select is None else None

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        store = materialize_silent(context, self.store_name)
        to_bytes, load, update, find = store.to_bytes, store.load, store.update, store.store.find  # type: ignore[union-attr]  # of entries
        task, within, select = context.task, self.within_ms, self.select
        pack, unpack = _TIME.pack, _TIME.unpack

        def deduplicate(key: object, value: object, timestamp: int) -> None:
            identity = key if select is None else select(key, value)
            if identity is None or timestamp <= task.stream_time - within:
                forward(key, value, timestamp)
                return
            raw = to_bytes(identity)
            entry = find(raw) or load(raw)
            passed = cast("bytes | None", entry.value)
            if passed is None:
                update(raw, identity, entry, pack(timestamp), timestamp, None)
            else:
                if len(passed) == _TIME.size and -within < timestamp - unpack(passed)[0] < within:
                    return
                times = [time for (time,) in _TIME.iter_unpack(passed)]
                if any(-within < timestamp - time < within for time in times):
                    return
                oldest = task.stream_time - 2 * within
                times = sorted([timestamp, *(time for time in times if time > oldest)])
                update(raw, identity, entry, b"".join(map(pack, times)), times[-1], None)
            forward(key, value, timestamp)

        return deduplicate
