"""A steady load that contains its expected results, and a consumer that notes the arrival times of each partition's outputs.

The value of an input record is the number of times its key has been written so far. So a count per key, and a copy, of the input must have
the same outputs: for each key 1, 2, 3 …, each once.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from benchmarks.data import produce

BATCH_SECONDS = 0.005
STRIDE = 7919
"""A prime: keys are visited in a scattered order, each equally often."""
MOST_AT_ONCE = 2_000


class InBackground:
    """A thread that runs `_run` until the block ends, which sets `_over`."""

    def __init__(self, name: str) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()


class Load(InBackground):
    """Writes to `topic`: `preload()` each key once, then `rate` records a second until the block ends."""

    def __init__(self, bootstrap: str, topic: str, keys: int, rate: int) -> None:
        super().__init__("load")
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "log_level": 2,
            }
        )
        self._topic = topic
        self._rate = rate
        self.written = array("q", bytes(8 * keys))
        """Number of records written, by key."""
        self.records = 0

    def preload(self) -> None:
        """Write each key once, and wait until all are written."""
        for number in range(len(self.written)):
            self._write(number)
        self._producer.flush()

    def _write(self, number: int) -> None:
        self.written[number] += 1
        produce(self._producer, self._topic, self.written[number].to_bytes(8, "big"), b"k%08d" % number)
        self.records += 1

    def _run(self) -> None:
        began, before = time.monotonic(), self.records
        while not self._over.wait(BATCH_SECONDS):
            due = int((time.monotonic() - began) * self._rate) - (self.records - before)
            for _ in range(due):
                self._write(self.records * STRIDE % len(self.written))
            self._producer.poll(0)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        self._producer.flush(60)


class Watch(InBackground):
    """Reads the committed records of `topic` until the block ends, and notes when records of each partition arrived."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, note: Callable[[Message], object] = lambda message: None) -> None:
        """`note` is called with each record, on the consumer's thread."""
        super().__init__("watch")
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-watch",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 2,
            "log_level": 2,
        }
        self._topic = topic
        self._note = note
        self.times: list[list[float]] = [[] for _ in range(partitions)]
        """Monotonic seconds, by partition."""
        self.records = 0

    def _run(self) -> None:
        with closing(Consumer(self._settings)) as consumer:
            consumer.assign([TopicPartition(self._topic, number, 0) for number in range(len(self.times))])
            while not self._over.is_set():
                seen = set()
                for message in consumer.consume(MOST_AT_ONCE, BATCH_SECONDS):
                    if message.error() is None:
                        seen.add(message.partition() or 0)
                        self.records += 1
                        self._note(message)
                now = time.monotonic()
                for partition in seen:
                    self.times[partition].append(now)

    def longest_gaps(self, since: float, until: float) -> list[float]:
        """Return per partition the longest time in seconds without an arrival between two moments, which delimit gaps like an arrival."""
        found = []
        for times in self.times:
            marks = [since, *times[bisect_right(times, since) : bisect_left(times, until)], until]
            found.append(max(later - earlier for earlier, later in pairwise(marks)))
        return found


class EachOnce:
    """Counts outputs that are not the next of their key: lost ones and duplicates. Pass `note` to a `Watch`."""

    def __init__(self, keys: int) -> None:
        self.seen = array("q", bytes(8 * keys))
        self.wrong = 0

    def note(self, message: Message) -> None:
        key, value = message.key(), message.value()
        assert isinstance(key, bytes) and isinstance(value, bytes)
        number, count = int(key[1:]), int.from_bytes(value, "big")
        if count != self.seen[number] + 1:
            self.wrong += 1
        self.seen[number] = count
