"""The input of the measurements: the same on every machine, for a given number of records.

About 100,000 keys, some much more frequent than others, JSON values of about 120 bytes, events 1.2 ms apart, four partitions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

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


def records(count: int, seed: int = _SEED) -> Iterator[tuple[str, str, int]]:
    """Key, value, timestamp in ms."""
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


def create_topic(bootstrap: str, topic: str) -> None:
    """Makes a topic of `PARTITIONS` partitions. Raises KafkaException if it exists."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)


def profiles() -> Iterator[tuple[str, str, int]]:
    """The rows of the table that is joined: all keys, older than the first event."""
    for number in range(KEYS):
        yield f"u{number:08d}", f'{{"country":"C{number % 200:03d}","tier":{number % 5}}}', FIRST_EVENT_MS - KEYS + number


def load(bootstrap: str, topic: str, count: int, progress: Callable[[int], object]) -> Counter[bytes]:
    """Writes the input and returns how often each key is in it. `progress` is told how many records were written so far."""
    return write(bootstrap, topic, records(count), count, progress)


def write(
    bootstrap: str, topic: str, rows: Iterable[tuple[str, str, int]], count: int, progress: Callable[[int], object]
) -> Counter[bytes]:
    """Writes rows, `count` of them, and returns how often each key is in them."""
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
        while True:
            try:
                producer.produce(topic, value, raw, timestamp=at)
                break
            except BufferError:
                producer.poll(0.1)
        if number % _CHUNK == 0:
            producer.poll(0)
            progress(number)
    producer.flush()
    progress(count)
    return truth
