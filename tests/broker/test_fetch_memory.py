"""The consumer's queue for the tasks is bounded: librdkafka needs far more memory for a small record than its bytes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

from penstock.runtime.stores.budget import MIB
from tests.support import Kafka

PARTITIONS, RECORDS, AT_ONCE = 4, 250_000, 50_000
READ = """
import sys
import psutil
from confluent_kafka import Consumer, TopicPartition
from penstock.runtime.config.streams_config import StreamsConfig

servers, topic, partitions, records = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
config = StreamsConfig({"application.id": "app", "bootstrap.servers": servers, "auto.offset.reset": "earliest"})
process = psutil.Process()
before = most = process.memory_info().rss
consumer = Consumer({**config.consumer_properties("main"), "group.id": "fetch-memory"})
consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
read = 0
while read < records:
    read += len(consumer.consume(1_000, 10.0))
    most = max(most, process.memory_info().rss)
print(most - before)
"""


def test_the_queue_of_many_small_records_is_bounded(broker: Kafka, topic: Callable[..., str]) -> None:
    name = topic("in", partitions=PARTITIONS)
    for number, first in product(range(PARTITIONS), range(0, RECORDS, AT_ONCE)):
        broker.produce(name, ((b"u%08d" % key, b"12345678") for key in range(first, first + AT_ONCE)), partition=number)
    command = [sys.executable, "-c", READ, broker.bootstrap_servers, name, str(PARTITIONS), str(PARTITIONS * RECORDS)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True, timeout=240)
    assert int(ended.stdout) < 110 * MIB  # 4 MiB per partition at a time would need 150
