"""Input of the benchmarks: the same on every machine, for a given number of records.

About 100,000 keys, some much more frequent than others, JSON values of about 120 bytes, events 1.2 ms apart, four partitions.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PARTITIONS = 4
KEYS = 100_000
FIRST_EVENT_MS = 1_700_000_040_000
TABLE_SEED = 11
"""Of the other stream of a join."""
_SEED = 7
_CHUNK = 10_000
_STEP_SECONDS = 0.05


def records(count: int, seed: int = _SEED) -> Iterator[tuple[str, str, int]]:
    """Yield key, value, timestamp in ms."""
    choice = random.Random(seed)
    names = [f"u{number:08d}" for number in range(KEYS)]
    choice.shuffle(names)
    weights = list(accumulate((rank + 10.0) ** -0.8 for rank in range(KEYS)))
    number = 0
    while number < count:
        for name in choice.choices(names, cum_weights=weights, k=min(_CHUNK, count - number)):
            at = FIRST_EVENT_MS + number * 6 // 5
            amount = choice.random() * 100
            yield (
                name,
                f'{{"user":"{name}","amount":{amount:.2f},"ts":{at},"note":"order {number:09d} of the benchmark, padded to a length"}}',
                at,
            )
            number += 1


def wide_records(count: int, keys: int) -> Iterator[tuple[str, str, int]]:
    """Yield records like `records`, over `keys` equally frequent keys, so that no cache holds the next ones."""
    choice = random.Random(_SEED)
    for first in range(0, count, _CHUNK):
        for number, key in enumerate(choice.choices(range(keys), k=min(_CHUNK, count - first)), first):
            name, at = f"u{key:08d}", FIRST_EVENT_MS + number * 6 // 5
            amount = (key * 7 + number * 13) % 10_000
            yield (
                name,
                f'{{"user":"{name}","amount":{amount / 100:.2f},"ts":{at},'
                f'"note":"order {number:09d} of the benchmark, padded to a length"}}',
                at,
            )


def create_topic(bootstrap: str, topic: str) -> None:
    """Create a topic with `PARTITIONS` partitions. Raises KafkaException if it exists."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)


def profiles(keys: int = KEYS) -> Iterator[tuple[str, str, int]]:
    """Yield the rows of the joined table: all keys, older than the first event."""
    for number in range(keys):
        yield f"u{number:08d}", f'{{"country":"C{number % 200:03d}","tier":{number % 5}}}', FIRST_EVENT_MS - keys + number


def load(bootstrap: str, topic: str, count: int, progress: Callable[[int], object]) -> Counter[bytes]:
    """Write the input and return the number of records of each key. `progress` is called with the number written so far."""
    return write(bootstrap, topic, records(count), count, progress)


def produce(producer: Producer, topic: str, value: str | bytes, key: bytes, timestamp: int = 0, partition: int = -1) -> None:
    """Produce a record; wait while the client's queue is full. `timestamp` 0: the current time; `partition` -1: by the
    key."""
    while True:
        try:
            producer.produce(topic, value, key, partition, timestamp=timestamp)
            return
        except BufferError:
            producer.poll(0.1)


def feed(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    """Write `rate` records per second for so many seconds, in steps of `_STEP_SECONDS`, with the time of writing."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "partitioner": "murmur2_random", "enable.idempotence": True})
    steps, step = int(seconds / _STEP_SECONDS), int(rate * _STEP_SECONDS)
    rows, begun = records(steps * step), time.monotonic()
    for number in range(steps):
        for key, value, _ in islice(rows, step):
            produce(producer, topic, value, key.encode())
        producer.poll(0)
        time.sleep(max(0.0, begun + (number + 1) * _STEP_SECONDS - time.monotonic()))
    producer.flush()


def write(
    bootstrap: str, topic: str, rows: Iterable[tuple[str, str, int]], count: int, progress: Callable[[int], object]
) -> Counter[bytes]:
    """Write `count` rows, and return the number of rows of each key."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
        }
    )
    truth: Counter[bytes] = Counter()
    for number, (key, value, at) in enumerate(rows):
        raw = key.encode()
        truth[raw] += 1
        produce(producer, topic, value, raw, at)
        if number % _CHUNK == 0:
            producer.poll(0)
            progress(number)
    producer.flush()
    progress(count)
    return truth
