"""What somebody would write by hand for one job, as fast as Python allows: the denominator of the engine's speed.

A count per key, exactly once, on confluent-kafka and rocksdict, with nothing in it but that job: partitions are assigned by hand, there is
no group, no topology, no timestamps, headers, handlers, restore or metrics. Batches are counted by a `Counter`, counts live in a dict
over RocksDB, and a commit writes each changed key once to the changelog and RocksDB; to the output too, unless every update is
asked for.

    BENCH_SPEC='{…}' python -m benchmarks.handwritten       (as `benchmarks.peer`; kind count, exactly once)
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from operator import methodcaller
from pathlib import Path
from struct import Struct
from typing import cast

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rocksdict import Options, Rdict, WriteBatch

from benchmarks.workloads import Run

BATCH = 5_000
POLL_SECONDS = 0.02
MOST_KEPT = 200_000
"""Counts kept in memory per partition."""

_LONG = Struct(">q")


class PartitionCounts:
    """The counts of one partition: a dict over RocksDB."""

    def __init__(self, path: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._database = Rdict(str(path), options)
        self.known: dict[bytes, int] = {}
        self.changed: dict[bytes, int] = {}
        self.position = 0

    def load(self, keys: Iterable[bytes]) -> None:
        """Makes sure that these keys are known."""
        missing: list[str | int | float | bytes | bool] = [key for key in keys if key not in self.known]
        if missing:
            for key, value in zip(missing, cast(list[bytes | None], self._database.get(missing)), strict=True):
                self.known[cast(bytes, key)] = _LONG.unpack(value)[0] if value else 0

    def commit(self) -> None:
        """Writes what changed, with the position, in one batch."""
        batch = WriteBatch(raw_mode=True)
        for key, count in self.changed.items():
            batch.put(key, _LONG.pack(count))
        batch.put(b"\0position", _LONG.pack(self.position))
        self._database.write(batch)
        self.changed.clear()
        if len(self.known) > MOST_KEPT:
            self.known.clear()

    def close(self) -> None:
        self._database.close()


def _keys(messages: list[Message]) -> list[bytes]:
    """The keys; a record without one is not counted."""
    return [key for message in messages if (key := message.key()) is not None]


class Loop:
    """The job."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._changelog = f"{run.app}-counts-changelog"
        self._consumer = Consumer(
            {
                "bootstrap.servers": run.bootstrap,
                "group.id": run.app,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "fetch.queue.backoff.ms": 2,
                "queued.min.messages": 200_000,
                "fetch.message.max.bytes": 4 << 20,
            }
        )
        self._producer = Producer(
            {
                "bootstrap.servers": run.bootstrap,
                "transactional.id": run.app,
                "linger.ms": 5,
                "batch.size": 512 << 10,
                "queue.buffering.max.messages": 1_000_000,
                "retry.backoff.ms": 1,
                "retry.backoff.max.ms": 10,
            }
        )
        partitions = self._consumer.list_topics(run.input, timeout=10).topics[run.input].partitions
        admin = AdminClient({"bootstrap.servers": run.bootstrap, "log_level": 3})
        for future in admin.create_topics([NewTopic(self._changelog, len(partitions), 1, config={"cleanup.policy": "compact"})]).values():
            future.result(30)
        self._counts = {number: PartitionCounts(Path(run.state) / str(number)) for number in partitions}
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        """Counts until `stop()`, then leaves without a last commit."""
        producer, interval = self._producer, self._run.commit_ms / 1000
        producer.init_transactions()
        producer.begin_transaction()
        self._consumer.assign([TopicPartition(self._run.input, number, 0) for number in self._counts])
        count = self._count_folded if self._run.cache else self._count_each
        waiting, committed, pending = True, time.monotonic(), False
        while not self._stopping:
            messages = self._consumer.consume(BATCH, POLL_SECONDS)
            if messages:
                if waiting:
                    waiting = False
                    print("BENCH FIRST", time.time_ns() // 1_000_000, flush=True)
                for number, group in groupby(messages, key=methodcaller("partition")):
                    count(number, list(group))
                pending = True
                producer.poll(0)
            if time.monotonic() - committed >= interval:
                if pending:
                    self._commit()
                    pending = False
                committed = time.monotonic()
        producer.abort_transaction()
        self._consumer.close()
        for counts in self._counts.values():
            counts.close()

    def _count_folded(self, number: int, messages: list[Message]) -> None:
        counts = self._counts[number]
        added: Counter[bytes] = Counter(_keys(messages))
        counts.load(added)
        known, changed = counts.known, counts.changed
        for key, more in added.items():
            known[key] = changed[key] = known[key] + more
        counts.position = (messages[-1].offset() or 0) + 1

    def _count_each(self, number: int, messages: list[Message]) -> None:
        counts = self._counts[number]
        keys = _keys(messages)
        counts.load(set(keys))
        known, changed, output, pack = counts.known, counts.changed, self._run.output, _LONG.pack
        for key in keys:
            known[key] = changed[key] = count = known[key] + 1
            self._send(output, key, pack(count), number)
        counts.position = (messages[-1].offset() or 0) + 1

    def _send(self, topic: str, key: bytes, value: bytes, number: int) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, number)
                return
            except BufferError:
                self._producer.poll(0.01)

    def _commit(self) -> None:
        producer, cache, output = self._producer, self._run.cache, self._run.output
        for number, counts in self._counts.items():
            for key, count in counts.changed.items():
                value = _LONG.pack(count)
                self._send(self._changelog, key, value, number)
                if cache:
                    self._send(output, key, value, number)
        positions = [TopicPartition(self._run.input, number, counts.position) for number, counts in self._counts.items() if counts.changed]
        producer.send_offsets_to_transaction(positions, self._consumer.consumer_group_metadata())
        producer.commit_transaction()
        for counts in self._counts.values():
            if counts.changed:
                counts.commit()
        producer.begin_transaction()


def main() -> int:
    """Runs what `BENCH_SPEC` says until SIGTERM or SIGINT."""
    run = Run.from_environment()
    if run.kind != "count" or not run.eos:
        print(f"the hand-written loop counts, exactly once; it cannot run kind {run.kind!r} with eos={run.eos}", file=sys.stderr)
        return 2
    loop = Loop(run)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    gc.collect()
    gc.freeze()
    gc.disable()
    loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
