"""A hand-written program for one job, as fast as Python allows: the baseline for the engine's speed.

The jobs of `workloads.py` on confluent-kafka and rocksdict, with nothing except the job (`handwritten_jobs.py`): partitions are
assigned manually; there is no group, no topology, no headers, handlers, restore or metrics. A commit flushes the changes, with the
offsets in a transaction or after a flush.

    BENCH_SPEC='{…}' python -m benchmarks.handwritten       (as `benchmarks.peer`)
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from itertools import groupby

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.handwritten_jobs import JOBS, Job
from benchmarks.workloads import Run

BATCH = 5_000
POLL_SECONDS = 0.02


class Loop:
    """Polls, passes records to the job, and commits."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._consumer = Consumer(
            {
                "bootstrap.servers": run.bootstrap,
                "group.id": run.app,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed" if run.eos else "read_uncommitted",
                "fetch.queue.backoff.ms": 2,
                "queued.min.messages": 200_000,
                "fetch.message.max.bytes": 4 << 20,
            }
        )
        producing: dict[str, str | int | float | bool | None] = {
            "bootstrap.servers": run.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 512 << 10,
            "queue.buffering.max.messages": 1_000_000,
            "retry.backoff.ms": 1,
            "retry.backoff.max.ms": 10,
        }
        self._producer = Producer({**producing, "transactional.id": run.app} if run.eos else producing)
        partitions = sorted(self._consumer.list_topics(run.input, timeout=10).topics[run.input].partitions)
        self._job: Job = JOBS[run.kind](run, partitions, self._send)
        admin = AdminClient({"bootstrap.servers": run.bootstrap, "log_level": 3})
        logs = [NewTopic(topic, len(partitions), 1, config={"cleanup.policy": "compact"}) for topic in self._job.changelogs]
        for future in admin.create_topics(logs).values() if logs else ():
            future.result(30)
        self._read = [TopicPartition(topic, number, 0) for topic in self._job.topics for number in partitions]
        self._positions: dict[tuple[str, int], int] = {}
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        """Run until `stop()`, then return without a last commit."""
        producer, interval = self._producer, self._run.commit_ms / 1000
        if self._run.eos:
            producer.init_transactions()
            producer.begin_transaction()
        print("BENCH FIRST", time.time_ns() // 1_000_000, flush=True)
        self._job.prepare()
        self._consumer.assign(self._read)
        committed = time.monotonic()
        while not self._stopping:
            messages = self._consumer.consume(BATCH, POLL_SECONDS)
            if messages:
                for (topic, number), group in groupby(messages, key=_place):
                    run = list(group)
                    self._job.take(topic, number, run)
                    self._positions[topic, number] = (run[-1].offset() or 0) + 1
                producer.poll(0)
            if time.monotonic() - committed >= interval:
                if self._positions:
                    self._commit()
                committed = time.monotonic()
        if self._run.eos:
            producer.abort_transaction()
        self._consumer.close()
        self._job.close()

    def _send(self, topic: str, key: bytes, value: bytes, number: int) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, number)
                return
            except BufferError:
                self._producer.poll(0.01)

    def _commit(self) -> None:
        self._job.flush()
        positions = [TopicPartition(topic, number, position) for (topic, number), position in self._positions.items()]
        if self._run.eos:
            self._producer.send_offsets_to_transaction(positions, self._consumer.consumer_group_metadata())
            self._producer.commit_transaction()
        else:
            self._producer.flush()
            self._consumer.commit(offsets=positions, asynchronous=False)
        self._job.store()
        self._positions.clear()
        if self._run.eos:
            self._producer.begin_transaction()


def _place(message: Message) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0


def main() -> int:
    """Run the job in `BENCH_SPEC` until SIGTERM or SIGINT."""
    loop = Loop(Run.from_environment())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    gc.collect()
    gc.freeze()
    gc.disable()
    loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
