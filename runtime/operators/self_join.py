"""An inner join of a stream with itself in one node and one store (Kafka Streams' `KStreamKStreamSelfJoin`, KIP-862)."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.operators.base import OperatorSupplier
from runtime.operators.context import Forward, NodeContext
from runtime.operators.kept_time import OBSERVED_TIME, keep_time, kept_time
from runtime.operators.materialized import key_bytes
from runtime.operators.stream_join import Joiner, JoinOne, JoinWindow, duplicates


@dataclass(frozen=True, slots=True)
class StreamSelfJoin(OperatorSupplier):
    """Stands below the node that keeps the stream's records (`StreamWindowed`), which come here before they are kept. Its results are those
    of the join that it stands for, in the same order. `retention_ms` is that of the store: a record that is older meets only others. (1 ms
    sooner than in that join, as in Kafka Streams.)"""

    store_name: str
    windows: JoinWindow
    joiner: Joiner
    with_key: bool
    retention_ms: int

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        store = duplicates(context, self.store_name)
        values_between, to_bytes, drop = store.values_between, key_bytes(store), context.task.dropped.add
        before, after, retention, joiner = self.windows.before_ms, self.windows.after_ms, self.retention_ms, self.joiner
        join_one: JoinOne = joiner if self.with_key else lambda _key, left, right: joiner(left, right)
        observed = kept_time(context, store, OBSERVED_TIME)
        keep_time(context, store, OBSERVED_TIME, lambda: observed)

        def join(key: object, value: object, timestamp: int) -> None:
            nonlocal observed
            if key is None or value is None:
                drop()
                return
            observed = max(observed, timestamp)
            raw = to_bytes(key)
            for time, other in values_between(raw, timestamp - before, timestamp + after):
                forward(key, join_one(key, value, other), max(time, timestamp))
            itself = timestamp > observed - retention + 1
            for time, other in values_between(raw, timestamp - after, timestamp + before):
                if itself and time > timestamp:  # results come in the order of time
                    itself = False
                    forward(key, join_one(key, value, value), timestamp)
                forward(key, join_one(key, other, value), max(time, timestamp))
            if itself:
                forward(key, join_one(key, value, value), timestamp)

        return join
