"""Load: a thread that writes to a topic at a steady rate, whatever happens to the broker, each record once."""

from __future__ import annotations

import random
import time
from types import TracebackType

from confluent_kafka import KafkaError, Message, Producer

from benchmarks.updates import InBackground
from tests.support import Kafka

BATCH_SECONDS = 0.05


class Feeder(InBackground):
    """Writes `rate` records a second for as long as the block lasts; at its end everything is delivered."""

    def __init__(self, broker: Kafka, topic: str, rate: int, keys: int, dice: random.Random) -> None:
        super().__init__("feeder")
        settings = {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "partitioner": "murmur2_random"}
        self._producer = Producer({**settings, "log_level": 2})
        self._topic = topic
        self._per_batch = max(1, int(rate * BATCH_SECONDS))
        self._keys = keys
        self._dice = dice
        self._first_ms = int(time.time() * 1000)  # older records would fall to the retention of the windows' changelog
        self.failed: list[KafkaError] = []
        self.records = 0

    def _run(self) -> None:
        while not self._over.wait(BATCH_SECONDS):
            for _ in range(self._per_batch):
                self._write()

    def _write(self) -> None:
        key, value = f"k{self._dice.randrange(self._keys)}", f"v{self._dice.randrange(20)}"
        time_ms = self._first_ms + self.records * 10
        self._producer.produce(self._topic, value, key, timestamp=time_ms, on_delivery=self._delivered)
        self._producer.poll(0)
        self.records += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        left = self._producer.flush(60)
        assert error is not None or (not left and not self.failed), f"the load was not delivered: {left} left, {self.failed[:3]}"
